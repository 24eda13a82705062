//! `sluice-bench runtime --against`: this program and another one, an earlier build, cell by cell.
//!
//! Both run as processes of their own with the same arguments, one algorithm at a time, in turns; which of the two goes first
//! changes from round to round. So whatever slows the machine down for a while slows both. Ratios are formed within a
//! round. The baseline, which is the same code in both, is compared too: what its ratios differ from 1 is noise.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sluice_core::PolicyConfig;

use sluice_cli::output;
use sluice_notation::counted;

use super::{BASELINE, VOLUME, waits};
use crate::statistics::median;

/// No cell may lose more than this.
const BAR_CELL: f64 = 0.9;
const BAR_MEDIAN: f64 = 1.0;
/// Of a volume over a null storage, with two threads that send on, and an algorithm that does not wait.
const BAR_VOLUME_PER_S: f64 = 1e6;
const BAR_VOLUME_THREADS: usize = 2;

/// What to compare.
pub(super) struct Comparison {
    pub(super) other: PathBuf,
    pub(super) policies: Vec<PolicyConfig>,
    pub(super) rounds: u32,
    /// Runs of a cell in each round; their median counts.
    pub(super) repetitions: u32,
}

/// What either program prints with `--json`, as far as it is compared. Earlier builds print the same.
#[derive(Deserialize)]
struct Printed {
    cells: Vec<PrintedCell>,
}

#[derive(Deserialize)]
struct PrintedCell {
    #[serde(flatten)]
    place: Place,
    requests_per_s: f64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Place {
    what: String,
    policy: String,
    threads: usize,
    window: u64,
}

/// The rates of a cell, round by round.
struct Rates {
    place: Place,
    this: Vec<f64>,
    other: Vec<f64>,
}

#[derive(Serialize)]
struct Cell {
    #[serde(flatten)]
    place: Place,
    /// Medians over the rounds.
    this_per_s: f64,
    other_per_s: f64,
    /// This over the other in the same round: median, smallest and largest.
    ratio: f64,
    ratio_range: [f64; 2],
}

#[derive(Serialize)]
pub(super) struct Report {
    unit: &'static str,
    other: PathBuf,
    rounds: u32,
    /// Largest loss first.
    cells: Vec<Cell>,
    /// The same code in both: how far ratios are from 1 by chance.
    baseline: Vec<Cell>,
    median_ratio: f64,
    smallest_ratio: f64,
    bars: Bars,
    misses: Vec<String>,
}

#[derive(Serialize)]
struct Bars {
    smallest_ratio: f64,
    median_ratio: f64,
    volume_per_s: f64,
}

/// Measures.
///
/// # Errors
/// If one of the programs fails, or prints something else.
pub(super) fn run(comparison: &Comparison) -> anyhow::Result<Report> {
    let this = std::env::current_exe().context("this program's own file")?;
    let runs = u64::from(comparison.rounds) * comparison.policies.len() as u64 * 2;
    let progress = output::bar(runs, "{bar:40} {pos}/{len} runs, {eta} left  {msg}");
    let mut rates: Vec<Rates> = Vec::new();
    for round in 0..comparison.rounds {
        for policy in &comparison.policies {
            progress.set_message(policy.name().to_owned());
            for turn in 0..2 {
                let is_this = (round + turn) % 2 == 0;
                let program = if is_this { &this } else { &comparison.other };
                for cell in measure(program, policy.name(), comparison.repetitions)? {
                    let at = rates.iter().position(|rates| rates.place == cell.place).unwrap_or_else(|| {
                        rates.push(Rates { place: cell.place.clone(), this: Vec::new(), other: Vec::new() });
                        rates.len() - 1
                    });
                    let side = if is_this { &mut rates[at].this } else { &mut rates[at].other };
                    side.push(cell.requests_per_s);
                }
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    // An algorithm, or a way of handing over, that only one of the two knows is left out.
    rates.retain(|rates| !rates.this.is_empty() && !rates.other.is_empty());
    if rates.iter().all(|rates| rates.place.what == BASELINE) {
        bail!("{} measures nothing that this program measures too", comparison.other.display());
    }
    Ok(report(comparison, rates))
}

fn measure(program: &Path, policy: &str, repetitions: u32) -> anyhow::Result<Vec<PrintedCell>> {
    let mut command = Command::new(program);
    command.args(if has_bench(program)? { &["bench", "runtime"][..] } else { &["runtime"] });
    command.args(["--json", "--quick", "--policy", policy]);
    command.args(["--repetitions", &repetitions.to_string()]);
    let output = command.output().with_context(|| cannot_run(program))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    let printed: Printed = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} does not print what `sluice-bench runtime --json` does", program.display()))?;
    Ok(printed.cells)
}

/// Whether a program is a build from before `sluice-bench`, when this was a subcommand of `sluice`.
fn has_bench(program: &Path) -> anyhow::Result<bool> {
    let output = Command::new(program).args(["bench", "--help"]).output().with_context(|| cannot_run(program))?;
    Ok(output.status.success())
}

fn cannot_run(program: &Path) -> String {
    format!("cannot run {}", program.display())
}

/// `rates` has something of both programs for each cell.
fn report(comparison: &Comparison, rates: Vec<Rates>) -> Report {
    let (baseline, mut cells): (Vec<Cell>, Vec<Cell>) =
        rates.into_iter().map(cell).partition(|cell| cell.place.what == BASELINE);
    cells.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let (median_ratio, [smallest_ratio, _]) = median(&mut cells.iter().map(|cell| cell.ratio).collect::<Vec<_>>());
    let misses = misses(&cells, median_ratio);
    Report {
        unit: "requests/s",
        other: comparison.other.clone(),
        rounds: comparison.rounds,
        cells,
        baseline,
        median_ratio,
        smallest_ratio,
        bars: Bars { smallest_ratio: BAR_CELL, median_ratio: BAR_MEDIAN, volume_per_s: BAR_VOLUME_PER_S },
        misses,
    }
}

fn cell(mut rates: Rates) -> Cell {
    let mut ratios: Vec<f64> = rates.this.iter().zip(&rates.other).map(|(this, other)| this / other).collect();
    let (ratio, ratio_range) = median(&mut ratios);
    let (this_per_s, other_per_s) = (median(&mut rates.this).0, median(&mut rates.other).0);
    Cell { place: rates.place, this_per_s, other_per_s, ratio, ratio_range }
}

fn misses(cells: &[Cell], median_ratio: f64) -> Vec<String> {
    let mut misses = Vec::new();
    for Cell { place: Place { what, policy, threads, window }, ratio, .. } in cells {
        if *ratio < BAR_CELL {
            misses.push(format!(
                "{what}, {policy}, {}, window {window}: {ratio:.2} of the other, bar {BAR_CELL}",
                counted(*threads as u64, "thread")
            ));
        }
    }
    if median_ratio < BAR_MEDIAN {
        misses.push(format!("median of all cells: {median_ratio:.3} of the other, bar {BAR_MEDIAN:.1}"));
    }
    for Cell { place: Place { what, policy, threads, window }, this_per_s, .. } in cells {
        let concerned = what == VOLUME && *threads == BAR_VOLUME_THREADS && *window > 1 && !waits(policy);
        if concerned && *this_per_s < BAR_VOLUME_PER_S {
            let rate = this_per_s / 1e3;
            misses.push(format!(
                "{what}, {policy}, {threads} threads, window {window}: {rate:.0} k requests/s, bar 1,000 k"
            ));
        }
    }
    misses
}

pub(super) fn print(report: &Report) {
    output::line(format_args!(
        "thousand requests a second of this program and of {}, medians of {} in turns,\nand the ratio of the two in a round (median, smallest..largest), largest loss first\n",
        report.other.display(),
        counted(report.rounds as u64, "round")
    ));
    output::line(format_args!(
        "{:<10} {:<7} {:>7} {:>6} {:>9} {:>9} {:>6}",
        "what", "policy", "threads", "window", "this", "other", "ratio"
    ));
    report.cells.iter().for_each(print_cell);
    output::line(format_args!("\nthe baseline, the same code in both: how far ratios are from 1 by chance"));
    report.baseline.iter().for_each(print_cell);
    output::line(format_args!(
        "\nmedian of all cells {:.3}, smallest {:.3}",
        report.median_ratio, report.smallest_ratio
    ));
    output::line(format_args!(
        "bars: no cell below {BAR_CELL}, median {BAR_MEDIAN:.1}; a volume, 2 threads with several outstanding, algorithms that do"
    ));
    output::line(format_args!("not wait: 1,000 k requests/s"));
    match report.misses.as_slice() {
        [] => output::line("all met"),
        misses => {
            output::line("missed:");
            misses.iter().for_each(|miss| output::line(format_args!("  {miss}")));
        }
    }
}

fn print_cell(cell: &Cell) {
    let Place { what, policy, threads, window } = &cell.place;
    let (this, other, [low, high]) = (cell.this_per_s / 1e3, cell.other_per_s / 1e3, cell.ratio_range);
    output::line(format_args!(
        "{what:<10} {policy:<7} {threads:>7} {window:>6} {this:>9.0} {other:>9.0} {:>6.2} ({low:.2}..{high:.2})",
        cell.ratio
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(what: &str, policy: &str, this: &[f64], other: &[f64]) -> Rates {
        let place = Place { what: what.to_owned(), policy: policy.to_owned(), threads: 2, window: 64 };
        Rates { place, this: this.to_vec(), other: other.to_vec() }
    }

    fn reported(rates: Vec<Rates>) -> Report {
        report(&Comparison { other: "old".into(), policies: Vec::new(), rounds: 3, repetitions: 3 }, rates)
    }

    #[test]
    fn losses_come_first_and_miss_the_bar() {
        let report = reported(vec![
            rates("callbacks", "sjf", &[3e6, 3e6, 3e6], &[2e6, 2e6, 1e6]),
            rates("baseline", "fifo", &[1.0, 1.0, 1.0], &[9.0, 9.0, 9.0]),
            // In each round 0.8 of the other, although the machine was ten times as slow in one of them.
            rates("volume", "noop", &[8e5, 8e6, 8e6], &[1e6, 1e7, 1e7]),
        ]);
        let order: Vec<&str> = report.cells.iter().map(|cell| cell.place.what.as_str()).collect();
        assert_eq!(order, ["volume", "callbacks"]);
        assert!((report.smallest_ratio - 0.8).abs() < 1e-9);
        assert_eq!(report.misses, ["volume, noop, 2 threads, window 64: 0.80 of the other, bar 0.9"]);
    }

    #[test]
    fn slow_volumes_are_told_unless_they_wait() {
        let report = reported(vec![
            rates("volume", "noop", &[9e5, 9e5, 9e5], &[9e5, 9e5, 9e5]),
            rates("volume", "mlf", &[1e5, 1e5, 1e5], &[1e5, 1e5, 1e5]),
        ]);
        assert_eq!(report.misses, ["volume, noop, 2 threads, window 64: 900 k requests/s, bar 1,000 k"]);
    }

    #[test]
    fn what_builds_print_is_read() {
        let text = r#"{"cells": [{"what": "callbacks", "policy": "noop", "threads": 1, "window": 64, "requests_per_s": 1.5e6,
            "requests_per_s_range": [1.0, 2.0], "ratio_to_baseline": 1.2, "ratio_range": [1.1, 1.3]}], "latency": [], "misses": []}"#;
        let printed: Printed = serde_json::from_str(text).unwrap();
        let place = Place { what: "callbacks".to_owned(), policy: "noop".to_owned(), threads: 1, window: 64 };
        assert_eq!((&printed.cells[0].place, printed.cells[0].requests_per_s), (&place, 1.5e6));
    }
}
