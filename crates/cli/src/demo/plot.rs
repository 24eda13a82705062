//! The demo's picture: how long each algorithm took relative to no scheduling, pattern by pattern.

use super::report::{Report, Row};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (1100, 480);
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115)];

/// Draws the report as SVG.
pub(super) fn draw(report: &Report) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut patterns: Vec<&str> = report.rows.iter().map(|row| row.pattern).collect();
        patterns.dedup();
        let mut policies: Vec<&str> = Vec::new();
        for row in &report.rows {
            if !policies.contains(&row.policy) {
                policies.push(row.policy);
            }
        }
        // The legend has the uppermost fifth for itself.
        let top = report.rows.iter().map(|row| row.ratio_range[1]).fold(1.2, f64::max) * 1.28;
        let title = "Makespan relative to no scheduling, emulated disks (lower is better; lines: smallest to largest)";
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(58)
            .build_cartesian_2d(0.0..policies.len() as f64, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_labels(8)
            .y_desc("makespan over that of noop")
            .light_line_style(WHITE)
            .draw()?;
        let width = 0.8 / patterns.len() as f64;
        for (place, pattern) in patterns.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let of_pattern = |row: &&Row| row.pattern == *pattern;
            let bars = report.rows.iter().filter(of_pattern).map(|row| {
                let x = position(&policies, row.policy) + 0.1 + width * place as f64;
                Rectangle::new([(x, 0.0), (x + width * 0.9, row.ratio_to_noop)], colour.filled())
            });
            chart
                .draw_series(bars)?
                .label(*pattern)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
            chart.draw_series(report.rows.iter().filter(of_pattern).map(|row| {
                let x = position(&policies, row.policy) + 0.1 + width * (place as f64 + 0.45);
                PathElement::new([(x, row.ratio_range[0]), (x, row.ratio_range[1])], BLACK)
            }))?;
        }
        chart.draw_series([PathElement::new([(0.0, 1.0), (policies.len() as f64, 1.0)], BLACK.mix(0.5))])?;
        let style = ("sans-serif", 15).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top));
        let names = policies.iter().enumerate().map(|(at, name)| {
            EmptyElement::at((at as f64 + 0.5, 0.0)) + Text::new((*name).to_owned(), (0, 8), style.clone())
        });
        chart.draw_series(names)?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

fn position(policies: &[&str], policy: &str) -> f64 {
    policies.iter().position(|known| *known == policy).unwrap_or(0) as f64
}
