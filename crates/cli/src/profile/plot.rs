//! A profile's picture: access times and ratios over the request size.

use plotters::coord::Shift;
use plotters::prelude::*;
use sluice_device::profile::{Point, Profile};

const SIZE: (u32, u32) = (1100, 460);
const READ: RGBColor = RGBColor(0, 114, 178);
const WRITE: RGBColor = RGBColor(213, 94, 0);
const READ_SEQUENTIAL: RGBColor = RGBColor(86, 180, 233);
const WRITE_SEQUENTIAL: RGBColor = RGBColor(230, 159, 0);

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;
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
        let area = area.titled(&format!("{}{emulated}", profile.device), ("sans-serif", 20))?;
        let (left, right) = area.split_horizontally(SIZE.0 / 2);
        let times = |points: &[Point], of: fn(&Point) -> (f64, f64)| {
            let bounds = |point: &Point| {
                let (ns, error) = of(point);
                let ms = ns / 1e6;
                (point.size_bytes as f64 / 1024.0, ms, ms * (1.0 - error).max(0.01), ms * (1.0 + error))
            };
            points.iter().map(bounds).collect()
        };
        let sequential: fn(&Point) -> (f64, f64) = |point| (point.sequential_ns, point.sequential_error);
        let random: fn(&Point) -> (f64, f64) = |point| (point.random_ns, point.random_error);
        panel(
            &left,
            "milliseconds for a request",
            SeriesLabelPosition::UpperLeft,
            &[
                ("sequential read", READ_SEQUENTIAL, times(&profile.reads, sequential)),
                ("random read", READ, times(&profile.reads, random)),
                ("sequential write", WRITE_SEQUENTIAL, times(&profile.writes, sequential)),
                ("random write", WRITE, times(&profile.writes, random)),
            ],
        )?;
        let ratios = |points: &[Point]| {
            let bounds = |point: &Point| {
                let error = point.ratio_error();
                let low = point.ratio * (1.0 - error).max(0.01);
                (point.size_bytes as f64 / 1024.0, point.ratio, low, point.ratio * (1.0 + error))
            };
            points.iter().map(bounds).collect()
        };
        panel(
            &right,
            "sequential over random throughput",
            SeriesLabelPosition::UpperRight,
            &[("reads", READ, ratios(&profile.reads)), ("writes", WRITE, ratios(&profile.writes))],
        )?;
        area.present()?;
    }
    Ok(svg)
}

fn panel(area: &Panel<'_>, what: &str, legend: SeriesLabelPosition, lines: &[Line]) -> anyhow::Result<()> {
    let all = || lines.iter().flat_map(|line| &line.2);
    let range = |of: fn(&Bounds) -> (f64, f64)| {
        let low = all().map(|point| of(point).0).fold(f64::INFINITY, f64::min);
        low * 0.8..all().map(|point| of(point).1).fold(0.0, f64::max) * 1.25
    };
    let (x, y) = (range(|p| (p.0, p.0)), range(|p| (p.2, p.3)));
    let mut chart = ChartBuilder::on(area)
        .caption(what, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(x.log_scale(), y.log_scale())?;
    chart.configure_mesh().x_desc("request size in KiB").light_line_style(WHITE).draw()?;
    for (name, colour, points) in lines {
        let (name, colour) = (*name, *colour);
        chart
            .draw_series(LineSeries::new(points.iter().map(|p| (p.0, p.1)), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|p| ErrorBar::new_vertical(p.0, p.2, p.1, p.3, colour.filled(), 5)))?;
    }
    chart.configure_series_labels().position(legend).background_style(WHITE.mix(0.8)).draw()?;
    Ok(())
}
