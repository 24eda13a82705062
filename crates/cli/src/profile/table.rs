//! A profile for people and for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};
use sluice_device::Op;
use sluice_device::profile::{Point, Profile};
use sluice_device::profiler::Report;

use sluice_notation::{show_size, show_time};

fn rows(text: &mut String, what: &str, points: &[Point]) {
    let _ =
        writeln!(text, "\n{what:<10}{:>13}{:>10}{:>13}{:>10}{:>9}{:>10}", "sequential", "", "random", "", "ratio", "");
    for point in points {
        let percent = |error: f64| format!("±{:.*} %", usize::from(error < 0.0995), error * 100.0);
        let _ = writeln!(
            text,
            "{:>10}{:>13}{:>10}{:>13}{:>10}{:>9.2}{:>10}",
            show_size(point.size_bytes as f64),
            show_time(point.sequential_ns),
            percent(point.sequential_error),
            show_time(point.random_ns),
            percent(point.random_error),
            point.ratio,
            percent(point.ratio_error()),
        );
    }
}

/// The profile as a table.
pub(super) fn text(profile: &Profile) -> String {
    let mut text = format!(
        "{}\n{}, {}; file of {}{}\n",
        profile.device,
        profile.host,
        profile.date,
        show_size(profile.file_bytes as f64),
        if profile.emulated { "; emulated: these are a model's times" } else { "" },
    );
    rows(&mut text, "reads", &profile.reads);
    rows(&mut text, "writes", &profile.writes);
    text.push_str("\nsequential over random throughput, 8 KiB to 4 MiB:\n");
    for (name, op) in [("reads", Op::Read), ("writes", Op::Write)] {
        let ratios = profile.ratios(op);
        let _ = writeln!(
            text,
            "  {name:<7} mean {:.2}, from {:.2} to {:.2}; saturated with {} in flight",
            ratios.mean,
            ratios.min,
            ratios.max,
            profile.saturation(op),
        );
    }
    text
}

/// The report as JSON.
pub(super) fn json(report: &Report) -> Value {
    json!({
        "schema": crate::output::SCHEMA,
        "profile": report.profile,
        "emulated": report.profile.emulated,
        "ratios": {"read": report.profile.ratios(Op::Read), "write": report.profile.ratios(Op::Write)},
        "warnings": report.warnings,
        "elapsed_s": report.elapsed_ns as f64 * 1e-9,
        "requests": report.requests,
    })
}
