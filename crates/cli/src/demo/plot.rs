//! The demo's picture: how long each algorithm took relative to no scheduling, pattern by pattern.

use super::report::{Report, Row};
use crate::chart::{self, Mark};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use sluice_core::policy::table;
use sluice_notation::counted;

const SIZE: (u32, u32) = (1100, 500);
const COLOURS: [RGBColor; 3] = [chart::BLUE, chart::ORANGE, chart::GREEN];
/// How much farther than the medians the axis goes: a single slow repetition farther away must not squash what the others
/// tell. Its line ends in a number.
const BEYOND: f64 = 1.5;
/// What is left on the right for the name of what the others are compared with.
const RIGHT: u32 = 52;

/// Draws the report as SVG.
pub(super) fn draw(report: &Report) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut patterns: Vec<&str> = report.rows.iter().map(|row| row.pattern).collect();
        patterns.dedup();
        // What the others are compared with is a line: its own bars would have no height.
        let reference = table().iter().find(|info| info.bypasses_queue).map_or("", |info| info.name);
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.policy != reference).collect();
        let mut policies: Vec<&str> = Vec::new();
        for row in &rows {
            if !policies.contains(&row.policy) {
                policies.push(row.policy);
            }
        }
        let end = policies.len().max(1) as f64;
        let title = "Makespan relative to no scheduling (noop), emulated disks: below 1 is faster";
        let area = area.margin(8, 4, 0, 0).titled(title, ("sans-serif", chart::TITLE))?;
        let (legend, area) = area.split_vertically(chart::LEGEND);
        let spread = format!("smallest to largest of {}", counted(report.repetitions as u64, "repetition"));
        let mut series: Vec<(&str, Mark)> =
            patterns.iter().zip(COLOURS.iter().cycle()).map(|(&name, &colour)| (name, Mark::Bar(colour))).collect();
        series.push((&spread, Mark::Range));
        chart::legend(&legend.margin(0, 0, 76, 0), &series)?;

        let medians = || report.rows.iter().map(|row| row.ratio_to_noop);
        let [low, high] = [medians().fold(1.0, f64::min) / BEYOND, medians().fold(1.0, f64::max) * BEYOND];
        let ticks = chart::log_ticks(&(low..high), 8);
        let mut plot = ChartBuilder::on(&area)
            .margin(12)
            .margin_right(RIGHT)
            .x_label_area_size(30)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..end, (low..high).log_scale().with_key_points(ticks))?;
        plot.configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc("makespan / that of noop")
            .y_label_formatter(&|ratio| chart::number(*ratio))
            .label_style(("sans-serif", chart::TEXT))
            .light_line_style(WHITE)
            .draw()?;
        let width = 0.8 / patterns.len() as f64;
        for (place, pattern) in patterns.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let of_pattern = || rows.iter().filter(move |row| row.pattern == *pattern);
            let left = |row: &Row| position(&policies, row.policy) + 0.1 + width * place as f64;
            plot.draw_series(of_pattern().map(|row| {
                let ends = [(left(row), 1.0), (left(row) + width * 0.9, row.ratio_to_noop)];
                Rectangle::new(ends, colour.filled())
            }))?;
            for row in of_pattern() {
                let (x, [least, most]) = (left(row) + width * 0.45, row.ratio_range);
                let line = [(x, least.clamp(low, high)), (x, most.clamp(low, high))];
                plot.draw_series([PathElement::new(line, BLACK)])?;
                let above = (most > high).then(|| (format!("↑{}", chart::number(most)), high, VPos::Top));
                let below = (least < low).then(|| (format!("↓{}", chart::number(least)), low, VPos::Bottom));
                for (text, y, anchor) in above.into_iter().chain(below) {
                    let style = chart::text(Pos::new(HPos::Left, anchor));
                    plot.draw_series([Text::new(text, (x + width * 0.05, y), style)])?;
                }
            }
        }
        plot.draw_series([PathElement::new([(0.0, 1.0), (end, 1.0)], BLACK.mix(0.5))])?;
        let beside = chart::text(Pos::new(HPos::Left, VPos::Center));
        plot.draw_series([EmptyElement::at((end, 1.0)) + Text::new(reference.to_owned(), (6, 0), beside)])?;
        let style = chart::text(Pos::new(HPos::Center, VPos::Top));
        plot.draw_series(policies.iter().enumerate().map(|(at, name)| {
            EmptyElement::at((at as f64 + 0.5, low)) + Text::new((*name).to_owned(), (0, 8), style.clone())
        }))?;
        area.present()?;
    }
    Ok(svg)
}

fn position(policies: &[&str], policy: &str) -> f64 {
    policies.iter().position(|known| *known == policy).unwrap_or(0) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::seen::Picture;
    use crate::demo::pattern::PATTERNS;

    /// A report with the ratios 0.4 to 1.8, as they are, and what a caller changes.
    fn report(change: impl FnOnce(&mut Vec<Row>)) -> Report {
        let mut rows = Vec::new();
        for pattern in PATTERNS {
            for (at, info) in table().iter().enumerate() {
                let ratio = if at == 0 { 1.0 } else { 0.4 + 1.4 * at as f64 / table().len() as f64 };
                let ratio_range = if at == 0 { [1.0, 1.0] } else { [ratio * 0.95, ratio * 1.1] };
                rows.push(Row {
                    policy: info.name,
                    pattern: pattern.name(),
                    ratio_to_noop: ratio,
                    ratio_range,
                    ..Row::default()
                });
            }
        }
        change(&mut rows);
        Report::of(rows, 3)
    }

    #[test]
    fn all_of_it_can_be_read() {
        let picture = Picture::of(&draw(&report(|_| ())).unwrap());
        picture.is_readable();
        picture.has_legend(&PATTERNS.map(|pattern| pattern.name()));
        let names: Vec<&str> = table().iter().map(|info| info.name).collect();
        let patterns = PATTERNS.map(|pattern| pattern.name());
        let left = picture.texts_but(&[&names[..], &patterns[..], &["Makespan", "smallest"]].concat());
        assert_eq!(left, ["makespan / that of noop", "0.5", "0.7", "1", "1.5", "2"]);
    }

    #[test]
    fn what_the_others_are_compared_with_is_a_line_with_its_name() {
        let drawn = |report: &Report| Picture::of(&draw(report).unwrap());
        let names = |picture: &Picture| -> Vec<String> {
            let names: Vec<&str> = table().iter().map(|info| info.name).collect();
            picture.texts_but(&[]).into_iter().filter(|text| names.contains(text)).map(str::to_owned).collect()
        };
        let all = drawn(&report(|_| ()));
        let once: Vec<&str> = table().iter().map(|info| info.name).collect();
        assert_eq!(names(&all), once);
        assert_eq!(all.heights(chart::BLUE).len(), once.len() - 1, "bars");
        assert!(all.heights(chart::BLUE).iter().all(|height| *height > 0.0));
        let alone = drawn(&report(|rows| rows.retain(|row| row.policy == "noop")));
        alone.is_readable();
        assert_eq!(names(&alone), ["noop"]);
    }

    #[test]
    fn an_outlier_leaves_the_bars_as_high_as_they_were() {
        let usual = Picture::of(&draw(&report(|_| ())).unwrap());
        let slow = Picture::of(
            &draw(&report(|rows| {
                rows[2].ratio_range[1] = 37.2;
                rows[15].ratio_range[0] = 0.001;
            }))
            .unwrap(),
        );
        slow.is_readable();
        assert_eq!(usual.heights(chart::BLUE), slow.heights(chart::BLUE));
        let names = slow.texts_but(&[]);
        assert!(names.contains(&"↑37.2") && names.contains(&"↓0.001"), "{names:?}");
        // A median that far away has its place, and the others are seen beside it.
        let far = Picture::of(
            &draw(&report(|rows| (rows[3].ratio_to_noop, rows[3].ratio_range) = (40.0, [30.0, 50.0]))).unwrap(),
        );
        far.is_readable();
        let heights = far.heights(chart::BLUE);
        assert!(heights.iter().filter(|height| **height > 20.0).count() >= 6, "{heights:?}");
    }
}
