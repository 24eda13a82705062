//! `sluice-bench mpi --resonant`: chapter 4 of X. Zhang's dissertation (2012; Resonant I/O) in the simulator, with its figures beside.
//!
//! Much less data than there. What is to be the same is who wins (signs) and by how much (ratios), not MB/s.

use anyhow::Context;
use sluice_cli::output;
use sluice_notation::counted;
use sluice_sim::scenario::Plan;
use sluice_sim::{Estimate, Outcome};

use super::simulated::swept;

const SCENARIOS: [(&str, &str); 3] = [
    ("resonant", include_str!("../../../../scenarios/resonant.toml")),
    ("resonant-interference", include_str!("../../../../scenarios/resonant-interference.toml")),
    ("resonant-scaling", include_str!("../../../../scenarios/resonant-scaling.toml")),
];

/// What the dissertation has: a situation of ours, and how much more throughput than in two phases, in %.
const PAPER: [(&str, f64, &str); 6] = [
    ("demo, 64 KB, 4 processes, read", 151.0, "4.3.1"),
    ("demo, 128 KB, 2 processes, read", 75.0, "4.3.1"),
    ("noncontig, 64 KB, 4 processes, read", 157.0, "4.3.2"),
    ("noncontig, 64 KB, 4 processes, write", 97.0, "4.3.2"),
    ("mpi-io-test, 256 KB, 4 processes, read", 61.0, "4.3.2, at most, over all sizes but 64 KB"),
    ("demo beside mpi-io-test, computing 0", (48.0 / 22.0 - 1.0) * 100.0, "Figure 4.11"),
];

/// One way of carrying out a situation's calls. Rates are of the first program.
#[derive(Debug, serde::Serialize)]
struct Row {
    program: String,
    way: String,
    /// Means over seeds.
    two_phase_mb_s: f64,
    mb_s: f64,
    /// How much more throughput than in two phases, in %: geometric mean over seeds, bounds of its 95 % interval, least and most.
    gain: f64,
    gain_from: f64,
    gain_to: f64,
    least: f64,
    most: f64,
    /// The same in the dissertation, and where.
    paper: Option<f64>,
    paper_at: &'static str,
    /// Calls by how they were carried out, of the first seed: library, agents, early, timed.
    calls: [u64; 4],
    /// Throughput beside another program, divided by that alone: in two phases, and in this way.
    two_phase_relative: Option<f64>,
    relative: Option<f64>,
}

/// Simulates and prints.
///
/// # Errors
/// If a scenario cannot be simulated.
pub(super) fn run(seeds: u32, json: bool) -> anyhow::Result<()> {
    let mut rows = swept(&SCENARIOS, seeds, true, table)?;
    // What is lost comes first.
    rows.sort_by(|a, b| a.gain.total_cmp(&b.gain));
    if json {
        return output::pretty_json(&rows);
    }
    output::line(format_args!(
        "simulated, {}: MB/s, and % more than in two phases with the 95 % interval, least and most of a seed, the \
         dissertation's; calls by the library/agents/early/timed; throughput beside the other program divided by that alone",
        counted(seeds.into(), "seed")
    ));
    output::line(format_args!(
        "{:<54}{:<10}{:>10}{:>9}{:>9}{:>18}{:>18}{:>7}  {:<18}{}",
        "", "", "two-phase", "MB/s", "gain", "95 %", "least to most", "paper", "calls", "relative"
    ));
    rows.iter().for_each(print);
    Ok(())
}

fn print(row: &Row) {
    let range = |from: f64, to: f64| format!("{from:.1} to {to:.1}");
    let relative = row.two_phase_relative.zip(row.relative);
    output::line(format_args!(
        "{:<54}{:<10}{:>10.1}{:>9.1}{:>9.1}{:>18}{:>18}{:>7}  {:<18}{}",
        row.program,
        row.way,
        row.two_phase_mb_s,
        row.mb_s,
        row.gain,
        range(row.gain_from, row.gain_to),
        range(row.least, row.most),
        row.paper.map_or_else(|| "-".to_owned(), |paper| format!("{paper:.0}")),
        row.calls.map(|calls| calls.to_string()).join("/"),
        relative.map_or_else(String::new, |(base, this)| format!("{base:.2} {this:.2}")),
    ));
}

/// MB/s of the first program.
fn rate(outcome: &Outcome) -> f64 {
    outcome.apps[0].bytes as f64 / (outcome.apps[0].makespan_ns.max(1) as f64 * 1e-9) / 1e6
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    Estimate::of(&values.collect::<Vec<f64>>()).mean
}

/// Throughput beside other programs, divided by that alone.
fn relative(outcomes: &[Outcome]) -> Option<f64> {
    let slow: Option<Vec<f64>> = outcomes.iter().map(|outcome| outcome.apps[0].slow_down).collect();
    slow.map(|slow| mean(slow.iter().map(|slow| 1.0 / slow)))
}

/// The rows of a plan: one of each way but the baseline in each situation.
fn table(plan: &Plan, outcomes: &[Vec<Outcome>]) -> anyhow::Result<Vec<Row>> {
    let (way_axis, baseline) = plan.compare.context("nothing is compared")?;
    let mut rows = Vec::new();
    for (run, these) in plan.runs.iter().zip(outcomes).filter(|(run, _)| run.place[way_axis] != baseline) {
        let mut place = run.place.clone();
        place[way_axis] = baseline;
        let base = plan.runs.iter().position(|run| run.place == place).context("there is no baseline")?;
        let base = &outcomes[base];
        let program = situation(plan, &run.place, way_axis);
        let ratios: Vec<f64> = these.iter().zip(base).map(|(this, base)| rate(this) / rate(base)).collect();
        let logs = Estimate::of(&ratios.iter().map(|ratio| ratio.ln()).collect::<Vec<f64>>());
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let paper = PAPER.iter().find(|(name, ..)| *name == program);
        rows.push(Row {
            way: plan.axes[way_axis].values[run.place[way_axis]].clone(),
            two_phase_mb_s: mean(base.iter().map(rate)),
            mb_s: mean(these.iter().map(rate)),
            gain: percent(logs.mean.exp()),
            gain_from: percent((logs.mean - logs.half_width).exp()),
            gain_to: percent((logs.mean + logs.half_width).exp()),
            least: percent(ratios.iter().copied().fold(f64::INFINITY, f64::min)),
            most: percent(ratios.iter().copied().fold(0.0, f64::max)),
            paper: paper.map(|paper| paper.1),
            paper_at: paper.map_or("", |paper| paper.2),
            calls: calls(these),
            two_phase_relative: relative(base),
            relative: relative(these),
            program,
        });
    }
    Ok(rows)
}

/// Names of the values of all axes but `way`.
fn situation(plan: &Plan, place: &[usize], way: usize) -> String {
    let axes = plan.axes.iter().zip(place).enumerate().filter(|(number, _)| *number != way);
    let values = axes.map(|(_, (axis, &value))| match axis.name.as_str() {
        "computing" => format!("demo beside mpi-io-test, computing {}", axis.values[value]),
        "processes" => format!("mpi-io-test, 1 MB, {} processes", axis.values[value]),
        _ => axis.values[value].clone(),
    });
    values.collect::<Vec<String>>().join(", ")
}

fn calls(outcomes: &[Outcome]) -> [u64; 4] {
    let counts = outcomes.first().and_then(|outcome| outcome.apps[0].resonant).unwrap_or_default();
    [counts.library, counts.agents, counts.early, counts.timed]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure of the dissertation that stands beside nothing would be lost.
    #[test]
    fn every_figure_of_the_dissertation_has_its_situation() {
        let mut situations = Vec::new();
        for (name, text) in SCENARIOS {
            let plan = Plan::parse(text, name, std::path::Path::new(""), &[], &[]).unwrap();
            let (way, _) = plan.compare.unwrap();
            situations.extend(plan.runs.iter().map(|run| situation(&plan, &run.place, way)));
        }
        for (name, ..) in PAPER {
            assert!(situations.iter().any(|situation| situation == name), "{name}");
        }
    }
}
