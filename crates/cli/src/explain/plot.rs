//! The picture of a timeline: throughput over time, coloured by configuration; below it the workloads and what was lost.

use plotters::prelude::*;
use sluice_adapt::selector::{Record, Why};

const SIZE: (u32, u32) = (1200, 560);
/// Okabe and Ito's colours, which people with any kind of colour vision tell apart, and two more: disks have nine arms.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(240, 228, 66),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
    RGBColor(140, 86, 75),
];

/// Draws it as SVG.
pub(super) fn draw(records: &[Record]) -> anyhow::Result<String> {
    let windows: Vec<&Record> = records.iter().filter(|record| record.why == Why::Window).collect();
    let (begin, end) = records.first().zip(records.last()).map_or((0.0, 1.0), |(first, last)| (first.t, last.t));
    let end = end.max(begin + 1.0);
    let mut arms: Vec<&str> = Vec::new();
    for record in records {
        if !arms.contains(&record.arm.as_str()) {
            arms.push(&record.arm);
        }
    }
    let colour = |arm: &str| COLOURS[arms.iter().position(|known| *known == arm).unwrap_or(0) % COLOURS.len()];
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (upper, lower) = area.split_vertically(SIZE.1 * 2 / 3);
        let top = windows.iter().map(|record| record.rate_mb_s.max(record.mb_s)).fold(1.0, f64::max) * 1.3;
        let mut chart = ChartBuilder::on(&upper)
            .caption("what was chosen, and what it gave per busy second (line: what was expected)", ("sans-serif", 17))
            .margin(10)
            .x_label_area_size(20)
            .y_label_area_size(58)
            .build_cartesian_2d(begin..end, 0.0..top)?;
        chart.configure_mesh().y_desc("MB per busy second").light_line_style(WHITE).disable_x_mesh().draw()?;
        for arm in &arms {
            let fill = colour(arm);
            let width = (end - begin) / windows.len().max(1) as f64;
            let bars = windows
                .iter()
                .filter(|record| record.arm == *arm)
                .map(|record| Rectangle::new([(record.t - width, 0.0), (record.t, record.rate_mb_s)], fill.filled()));
            chart
                .draw_series(bars)?
                .label(*arm)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], fill.filled()));
        }
        let expected = windows.iter().filter_map(|record| Some((record.t, record.expected_mb_s?)));
        chart.draw_series(LineSeries::new(expected, BLACK.stroke_width(1)))?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        let mut chart = ChartBuilder::on(&lower)
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(58)
            .build_cartesian_2d(begin..end, 0.0..100.0)?;
        chart.configure_mesh().x_desc("seconds").y_desc("lost, %").light_line_style(WHITE).disable_x_mesh().draw()?;
        let lost = windows.iter().map(|record| (record.t, record.regret.unwrap_or(0.0).clamp(0.0, 1.0) * 100.0));
        chart.draw_series(AreaSeries::new(lost, 0.0, RGBColor(213, 94, 0).mix(0.5)))?;
        let (mut before, mut pattern): (Option<&str>, Option<&str>) = (None, None);
        for record in records {
            let context = record.context.as_deref();
            if context.is_some() && context != before {
                before = context;
                chart.draw_series([PathElement::new([(record.t, 0.0), (record.t, 100.0)], BLACK.mix(0.4))])?;
                let name = context.unwrap_or_default().to_owned();
                chart.draw_series([Text::new(name, (record.t, 96.0), ("sans-serif", 11))])?;
            }
            let seen = record.pattern.as_deref();
            if seen.is_some() && seen != pattern {
                pattern = seen;
                let name = seen.unwrap_or_default().to_owned();
                chart.draw_series([Text::new(
                    name,
                    (record.t, 86.0),
                    ("sans-serif", 11).into_font().color(&BLACK.mix(0.6)),
                )])?;
            }
        }
        area.present()?;
    }
    Ok(svg)
}
