//! A profile's picture: access times and ratios over the request size.

use crate::chart::{self, Area, Mark};
use plotters::prelude::*;
use sluice_device::profile::{Point, Profile};

const SIZE: (u32, u32) = (1100, 484);
/// What the bars at the points are, as profiles have it ([`Point`]).
const ERRORS: &str = "95 % confidence interval";
/// What is left of a legend that needs the room.
const INDENT: u32 = 24;
/// Size, value, and its lower and upper bound.
type Bounds = (f64, f64, f64, f64);
/// Name, colour, points.
type Line = (&'static str, RGBColor, Vec<Bounds>);

/// Draws a profile as SVG.
pub(super) fn draw(profile: &Profile) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let emulated = if profile.emulated && !profile.device.contains("emulated") { " (emulated)" } else { "" };
        let area =
            area.margin(8, 0, 0, 0).titled(&format!("{}{emulated}", profile.device), ("sans-serif", chart::TITLE))?;
        let (errors, area) = area.split_vertically(chart::LEGEND);
        chart::legend(&errors.margin(0, 0, INDENT, 0), &[(ERRORS, Mark::Range)])?;
        let (left, right) = area.split_horizontally(SIZE.0 / 2);
        let times = |points: &[Point], of: fn(&Point) -> (f64, f64)| {
            let bounds = |point: &Point| {
                let (ns, error) = of(point);
                let ms = ns / 1e6;
                (point.size_bytes as f64, ms, ms * (1.0 - error).max(0.01), ms * (1.0 + error))
            };
            points.iter().map(bounds).collect()
        };
        let sequential: fn(&Point) -> (f64, f64) = |point| (point.sequential_ns, point.sequential_error);
        let random: fn(&Point) -> (f64, f64) = |point| (point.random_ns, point.random_error);
        panel(
            &left,
            "time of a request in ms",
            &[
                ("sequential read", chart::SKY, times(&profile.reads, sequential)),
                ("random read", chart::BLUE, times(&profile.reads, random)),
                ("sequential write", chart::ORANGE, times(&profile.writes, sequential)),
                ("random write", chart::VERMILION, times(&profile.writes, random)),
            ],
        )?;
        let ratios = |points: &[Point]| {
            let bounds = |point: &Point| {
                let error = point.ratio_error();
                let low = point.ratio * (1.0 - error).max(0.01);
                (point.size_bytes as f64, point.ratio, low, point.ratio * (1.0 + error))
            };
            points.iter().map(bounds).collect()
        };
        panel(
            &right,
            "sequential / random throughput",
            &[("reads", chart::BLUE, ratios(&profile.reads)), ("writes", chart::VERMILION, ratios(&profile.writes))],
        )?;
        area.present()?;
    }
    Ok(svg)
}

fn panel(area: &Area<'_>, what: &str, lines: &[Line]) -> anyhow::Result<()> {
    let all = || lines.iter().flat_map(|line| &line.2);
    let range = |of: fn(&Bounds) -> (f64, f64)| {
        let low = all().map(|point| of(point).0).fold(f64::INFINITY, f64::min);
        low * 0.8..all().map(|point| of(point).1).fold(0.0, f64::max) * 1.25
    };
    let (x, y) = (range(|p| (p.0, p.0)), range(|p| (p.2, p.3)));
    let (sizes, values) = (chart::size_ticks(&x, 8), chart::log_ticks(&y, 10));
    let (legend, area) = area.split_vertically(chart::LEGEND);
    // Above the axis, unless it needs more room.
    let indent = if lines.len() > 2 { INDENT } else { 78 };
    let names: Vec<_> = lines.iter().map(|(name, colour, _)| (*name, Mark::Line(*colour))).collect();
    chart::legend(&legend.margin(0, 0, indent, 0), &names)?;
    let mut plot = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(46)
        .y_label_area_size(68)
        .build_cartesian_2d(x.log_scale().with_key_points(sizes), y.log_scale().with_key_points(values))?;
    plot.configure_mesh()
        .x_desc("size of the request")
        .y_desc(what)
        .x_label_formatter(&|bytes| sluice_notation::show_size(*bytes))
        .y_label_formatter(&|value| chart::number(*value))
        .label_style(("sans-serif", chart::TEXT))
        .light_line_style(WHITE)
        .draw()?;
    for (_, colour, points) in lines {
        plot.draw_series(LineSeries::new(points.iter().map(|p| (p.0, p.1)), colour.stroke_width(2)))?;
        plot.draw_series(points.iter().map(|p| ErrorBar::new_vertical(p.0, p.2, p.1, p.3, colour.filled(), 5)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::seen::Picture;
    use sluice_device::profile::{Saturation, VERSION};

    /// From 8 KiB to 4 MiB, of a disk with an arm.
    fn profile(slower: f64) -> Profile {
        let points = |transfer_ns: f64| {
            let point = |power: u32| {
                let (size_bytes, error) = (1_u64 << power, 0.02);
                let sequential_ns = slower * size_bytes as f64 * transfer_ns;
                let random_ns = sequential_ns + slower * 8e6;
                let (sequential_error, random_error) = (error, error);
                Point {
                    size_bytes,
                    sequential_ns,
                    random_ns,
                    sequential_error,
                    random_error,
                    ratio: random_ns / sequential_ns,
                }
            };
            (13..=22).map(point).collect()
        };
        let text = |text: &str| text.to_owned();
        Profile {
            version: VERSION,
            method: text("made up"),
            date: text("2026-01-31T12:00:00Z"),
            host: text("node7"),
            device: text("hdd-7200"),
            emulated: true,
            file_bytes: 1 << 30,
            saturation: Saturation { read: 16, write: 4 },
            reads: points(8.0),
            writes: points(9.5),
        }
    }

    #[test]
    fn all_of_it_can_be_read() {
        let picture = Picture::of(&draw(&profile(1.0)).unwrap());
        picture.is_readable();
        picture.has_legend(&["sequential read", "random read", "sequential write", "random write", "reads", "writes"]);
        let ticks = picture.texts_but(&["sequential", "random", "reads", "writes", "time", "size", "hdd-7200", ERRORS]);
        assert_eq!(picture.texts_but(&[]).iter().filter(|text| **text == ERRORS).count(), 1);
        let sizes = ["8 KiB", "32 KiB", "128 KiB", "512 KiB", "2 MiB"];
        let times = ["0.1", "0.2", "0.5", "1", "2", "5", "10", "20", "50"];
        let ratios = ["1", "2", "5", "10", "20", "50", "100"];
        assert_eq!(ticks, [&times[..], &sizes, &ratios, &sizes].concat());
    }

    #[test]
    fn a_slow_device_has_few_ticks_too() {
        let picture = Picture::of(&draw(&profile(300.0)).unwrap());
        picture.is_readable();
        let ticks = picture.texts_but(&["sequential", "random", "reads", "writes", "time", "size", "hdd-7200", ERRORS]);
        assert!(ticks.contains(&"1\u{a0}000") && ticks.len() <= 2 * (8 + 10), "{ticks:?}");
    }
}
