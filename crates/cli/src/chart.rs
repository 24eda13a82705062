//! What the command's pictures share: colours, a legend that has room of its own, ticks that are few and readable.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A part of a picture, in pixels.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

// Okabe and Ito (2008): told apart by people who see few colours, too.
pub(crate) const BLUE: RGBColor = RGBColor(0, 114, 178);
pub(crate) const ORANGE: RGBColor = RGBColor(230, 159, 0);
pub(crate) const GREEN: RGBColor = RGBColor(0, 158, 115);
pub(crate) const SKY: RGBColor = RGBColor(86, 180, 233);
pub(crate) const VERMILION: RGBColor = RGBColor(213, 94, 0);

/// Sizes of text, in plotters' measure: 1.24 times that of SVG.
pub(crate) const TITLE: u32 = 19;
pub(crate) const TEXT: u32 = 15;
/// Height of a line of a legend in pixels.
pub(crate) const LEGEND: u32 = 24;

/// How a legend shows a series.
#[derive(Clone, Copy)]
pub(crate) enum Mark {
    Bar(RGBColor),
    Line(RGBColor),
    /// From the least to the largest.
    Range,
}

/// Text of the pictures, standing at `anchor` of where it is put.
pub(crate) fn text(anchor: Pos) -> TextStyle<'static> {
    ("sans-serif", TEXT).into_font().color(&BLACK).pos(anchor)
}

/// Where each series of a legend stands: its left end, and its line.
fn places(area: &Area<'_>, series: &[(&str, Mark)]) -> anyhow::Result<Vec<(i32, u32)>> {
    let (style, width) = (text(Pos::new(HPos::Left, VPos::Center)), area.dim_in_pixel().0 as i32);
    let (mut places, mut next) = (Vec::new(), (0, 0));
    for (name, _) in series {
        let own = 20 + area.estimate_text_size(name, &style)?.0 as i32;
        if next.0 > 0 && next.0 + own > width {
            next = (0, next.1 + 1);
        }
        places.push(next);
        next.0 += own + 24;
    }
    Ok(places)
}

/// Height of a legend in pixels, in an area of this width.
///
/// # Errors
/// If the width of its texts is unknown.
pub(crate) fn legend_height(area: &Area<'_>, series: &[(&str, Mark)]) -> anyhow::Result<u32> {
    Ok(places(area, series)?.last().map_or(0, |(_, line)| line + 1) * LEGEND)
}

/// Draws the names of series side by side, from the left, in as many lines as it takes.
///
/// # Errors
/// If it cannot be drawn.
pub(crate) fn legend(area: &Area<'_>, series: &[(&str, Mark)]) -> anyhow::Result<()> {
    let style = text(Pos::new(HPos::Left, VPos::Center));
    for ((name, mark), (x, line)) in series.iter().zip(places(area, series)?) {
        let y = (line * LEGEND + LEGEND / 2) as i32;
        match *mark {
            Mark::Bar(colour) => area.draw(&Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour.filled()))?,
            Mark::Line(colour) => area.draw(&PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)))?,
            Mark::Range => area.draw(&PathElement::new([(x + 7, y - 7), (x + 7, y + 7)], BLACK))?,
        }
        area.draw_text(name, &style, (x + 20, y))?;
    }
    Ok(())
}

/// Ticks of a logarithmic axis, at most `most`: 1, 1.5, 2, 3, 5, 7 of each decade, fewer of them, or only some decades.
pub(crate) fn log_ticks(range: &Range<f64>, most: usize) -> Vec<f64> {
    let decades = || range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let finer = [&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0][..], &[1.0, 2.0, 5.0], &[1.0]].into_iter().map(|steps| (1, steps));
    let coarser = (2..).map(|every| (every, &[1.0][..]));
    for (every, steps) in finer.chain(coarser) {
        let these = decades().filter(|decade| decade % every == 0);
        // What people write as 0.2 is not the product of 2 and 0.1.
        let value =
            |decade: i32, step: f64| if decade < 0 { step / 10f64.powi(-decade) } else { step * 10f64.powi(decade) };
        let ticks: Vec<f64> = these.flat_map(|decade| steps.iter().map(move |&step| value(decade, step))).collect();
        let ticks: Vec<f64> = ticks.into_iter().filter(|tick| range.contains(tick)).collect();
        if ticks.len() <= most.max(1) {
            return ticks;
        }
    }
    unreachable!("some distance of decades leaves one")
}

/// Ticks of a logarithmic axis of sizes, at most `most`: powers of two, evenly.
pub(crate) fn size_ticks(range: &Range<f64>, most: usize) -> Vec<f64> {
    let (first, last) = (range.start.log2().ceil() as i32, range.end.log2().floor() as i32);
    let every = ((last - first + 1).max(1) as usize).div_ceil(most.max(1));
    (first..=last).step_by(every).map(|power| 2f64.powi(power)).collect()
}

/// A number of three digits, or more before the point: `0.25`, `12`, `1 000`.
pub(crate) fn number(value: f64) -> String {
    let magnitude = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let digits = (2 - magnitude).clamp(0, 12) as usize;
    let text = format!("{value:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let whole = text.find('.').unwrap_or(text.len());
    let first = usize::from(text.starts_with('-'));
    let mut grouped = String::new();
    for (at, digit) in text.char_indices() {
        if at > first && at < whole && (whole - at) % 3 == 0 {
            grouped.push('\u{a0}');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
pub(crate) mod seen;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_grouped() {
        let shown = [0.0, 0.2, 0.30000000000000004, 1.5, 12.0, 100.0, 999.9, 1e3, 1234567.0, -2500.0, 1e-9, -0.25];
        let texts = ["0", "0.2", "0.3", "1.5", "12", "100", "1\u{a0}000", "1\u{a0}000", "1\u{a0}234\u{a0}567"];
        let texts = texts.into_iter().chain(["-2\u{a0}500", "0.000000001", "-0.25"]);
        for (value, text) in shown.into_iter().zip(texts) {
            assert_eq!(number(value), text, "{value}");
        }
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(log_ticks(&(0.35..2.2), 8), [0.5, 0.7, 1.0, 1.5, 2.0]);
        assert_eq!(log_ticks(&(0.09..30.0), 8), [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(log_ticks(&(0.05..2e4), 8), [0.1, 1.0, 10.0, 100.0, 1e3, 1e4]);
        assert_eq!(log_ticks(&(1e-6..1e6), 5), [1e-6, 1e-3, 1.0, 1e3]);
        assert_eq!(size_ticks(&(6.4..1300.0), 8), [8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0]);
        assert_eq!(size_ticks(&(6.4..1300.0), 4), [8.0, 32.0, 128.0, 512.0]);
        for most in 1..12 {
            for (low, factor) in [(1e-9, 1.5), (0.3, 7.0), (17.0, 1e3), (1e-5, 1e12)] {
                let range = low..low * factor;
                assert!(log_ticks(&range, most).len() <= most && size_ticks(&range, most).len() <= most);
            }
        }
    }
}
