//! A trace's picture: what arrived over time.

use crate::chart::{self, Mark};
use plotters::prelude::*;
use sluice_trace::summary::Summary;

/// Draws what arrived over time as SVG.
pub(super) fn draw(summary: &Summary, emulated: bool) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (900, 360)).into_drawing_area();
        area.fill(&WHITE)?;
        let title = if emulated { "Arrivals over time, emulated devices" } else { "Arrivals over time" };
        let area = area.margin(8, 0, 0, 0).titled(title, ("sans-serif", chart::TITLE))?;
        let (legend, area) = area.split_vertically(chart::LEGEND);
        let (read, written) = (chart::BLUE, chart::ORANGE);
        chart::legend(&legend.margin(0, 0, 104, 0), &[("read", Mark::Bar(read)), ("written", Mark::Bar(written))])?;
        let width = summary.point_seconds;
        let end = (summary.course.len() as f64 * width).max(width);
        let rate = |bytes: u64| bytes as f64 / 1e6 / width;
        let top = summary.course.iter().map(|p| rate(p.read_bytes + p.write_bytes)).fold(1e-6, f64::max) * 1.05;
        let mut plot = ChartBuilder::on(&area)
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(92)
            .build_cartesian_2d(0.0..end, 0.0..top)?;
        plot.configure_mesh()
            .disable_x_mesh()
            .x_desc("seconds")
            .y_desc("MB/s")
            .x_labels(8)
            .y_labels(6)
            .x_label_formatter(&|value| chart::number(*value))
            .y_label_formatter(&|value| chart::number(*value))
            .label_style(("sans-serif", chart::TEXT))
            .light_line_style(WHITE)
            .draw()?;
        let bar = |at: usize, from: u64, to: u64, colour: RGBColor| {
            let x = at as f64 * width;
            Rectangle::new([(x, rate(from)), (x + width, rate(to))], colour.filled())
        };
        let points = || summary.course.iter().enumerate();
        plot.draw_series(points().map(|(at, p)| bar(at, 0, p.read_bytes, read)))?;
        plot.draw_series(points().map(|(at, p)| bar(at, p.read_bytes, p.read_bytes + p.write_bytes, written)))?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::seen::Picture;
    use sluice_trace::summary::Point;

    /// Full from the first stretch to the last, where a legend inside would be in the way.
    fn summary(point_seconds: f64, bytes: u64) -> Summary {
        let course =
            (0..128).map(|at| Point { requests: 1, read_bytes: bytes * (at % 2), write_bytes: bytes }).collect();
        Summary { point_seconds, course, ..Summary::default() }
    }

    #[test]
    fn all_of_it_can_be_read() {
        let long = [(0.001, 1 << 20), (1.0, 1 << 40), (675.0, 1), (3600.0, 0)];
        for (point_seconds, bytes) in long {
            for emulated in [false, true] {
                let picture = Picture::of(&draw(&summary(point_seconds, bytes), emulated).unwrap());
                picture.is_readable();
                picture.has_legend(&["read", "written"]);
                let ticks = picture.texts_but(&["Arrivals", "read", "written", "seconds", "MB/s"]);
                assert!((6..=20).contains(&ticks.len()), "{ticks:?}");
            }
        }
        let picture = Picture::of(&draw(&summary(100.0, 1_000_000_000_000), false).unwrap());
        let ticks = picture.texts_but(&[]);
        assert!(ticks.contains(&"10\u{a0}000") && ticks.contains(&"15\u{a0}000"), "{ticks:?}");
    }

    #[test]
    fn a_trace_of_nothing_is_drawn() {
        let nothing = Summary::default();
        assert!(draw(&nothing, false).unwrap().starts_with("<svg"));
    }
}
