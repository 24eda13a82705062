//! What the demo found, as a table and as JSON.

use super::bed::{DISKS, MODEL, Outcome, STRIPE};
use super::pattern::{PATTERNS, PROCESSES, Pattern, THREADS};
use serde::Serialize;
use sluice_notation::{counted, show_number, show_size};
use std::fmt::Write as _;

/// One run.
pub(super) struct Sample {
    pub(super) policy: &'static str,
    pub(super) pattern: Pattern,
    pub(super) repetition: usize,
    pub(super) bytes: u64,
    pub(super) outcome: Outcome,
}

/// One algorithm under one pattern; medians over the repetitions.
#[derive(Default, Serialize)]
pub(super) struct Row {
    pub(super) policy: &'static str,
    pub(super) pattern: &'static str,
    pub(super) makespan_s: f64,
    pub(super) throughput_mb_s: f64,
    /// Makespan divided by that of noop in the same repetition: below 1 is faster.
    pub(super) ratio_to_noop: f64,
    /// Smallest and largest over the repetitions.
    pub(super) ratio_range: [f64; 2],
    /// Requests (of at most a stripe) in a batch.
    pub(super) mean_aggregation: f64,
    /// Of an application's calls.
    pub(super) p99_ms: f64,
}

/// The time of what chose an algorithm over that of the fastest of those that were run, known afterwards only: of algorithms that are
/// as good as each other the luckiest is compared with.
#[derive(Serialize)]
struct Chosen {
    pattern: &'static str,
    /// The algorithm with the least median of the pattern, of those that were run.
    best: &'static str,
    /// Median over the repetitions; below 1 is faster than the best.
    ratio_to_best: f64,
    /// Smallest and largest.
    ratio_range: [f64; 2],
}

/// Everything.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    chosen: Vec<Chosen>,
    pub(super) repetitions: usize,
    /// Seconds for which the selector has learned before, all patterns together; its rows are of what came after.
    pub(super) learned_s: f64,
    /// Every byte read and written was compared; a difference ends the demo with an error.
    data_verified: bool,
    emulated: bool,
    device: String,
    fuse: bool,
}

impl Report {
    /// `chooser`: the side that chooses, which has learned for so many seconds before.
    pub(super) fn new(names: &[&'static str], chooser: &str, samples: &[Sample], learned_s: f64, fuse: bool) -> Report {
        let mut rows = Vec::new();
        for pattern in PATTERNS {
            for name in names {
                rows.extend(row(name, names[0], pattern, samples));
            }
        }
        let chosen = PATTERNS.iter().filter_map(|pattern| against_best(chooser, *pattern, &rows, samples)).collect();
        let repetitions = samples.iter().map(|sample| sample.repetition + 1).max().unwrap_or(0);
        let data_verified = !samples.is_empty();
        Report { chosen, data_verified, learned_s, fuse, ..Report::of(rows, repetitions) }
    }

    /// Of rows whose data nobody has compared.
    pub(super) fn of(rows: Vec<Row>, repetitions: usize) -> Report {
        let device = format!("{DISKS} emulated disks ({MODEL}), striped by {}", show_size(STRIPE as f64));
        Report {
            rows,
            chosen: Vec::new(),
            repetitions,
            learned_s: 0.0,
            data_verified: false,
            emulated: true,
            device,
            fuse: false,
        }
    }

    /// As a table.
    pub(super) fn text(&self, in_flight: u32) -> String {
        let how = if self.fuse { "through a FUSE mount" } else { "driven directly, without FUSE" };
        let mut text = format!(
            "{PROCESSES} processes x {THREADS} threads on {}, {how}\n\
             medians of {}; time / noop's: makespan relative to noop in the same repetition\n\n",
            self.device,
            counted(self.repetitions as u64, "repetition")
        );
        let [pattern, policy, makespan, rate, aggregation, p99, ratio] =
            ["pattern", "policy", "makespan", "MB/s", "aggregation", "p99", "time / noop's"];
        let _ =
            writeln!(text, "{pattern:<17} {policy:<8} {makespan:>9} {rate:>7} {aggregation:>12} {p99:>9}   {ratio}");
        let mut last = "";
        for row in &self.rows {
            if row.pattern != last && !last.is_empty() {
                text.push('\n');
            }
            last = row.pattern;
            let [least, most] = row.ratio_range;
            let line = format!(
                "{:<17} {:<8} {:>7.2} s {:>7} {:>12.2} {:>6.0} ms   {:>5.2} ({least:.2}..{most:.2}) {}",
                row.pattern,
                row.policy,
                row.makespan_s,
                show_number(row.throughput_mb_s),
                row.mean_aggregation,
                row.p99_ms,
                row.ratio_to_noop,
                row.verdict()
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let _ = writeln!(
            text,
            "\nall data read and written was checked; aggregation: requests in a batch; p99: of the applications' calls\n\
             the disks are emulated: real files, computed times; their caches are empty when a run begins. Under noop up to 16\n\
             requests wait at each disk, which orders them itself (command queueing); under the others the scheduler orders\n\
             them, {} at a disk. Fixed algorithms do not anticipate (a mount's anticipation = \"off\"): with it, as a mount of such\n\
             disks has it unless told otherwise, they are slower in these patterns. twins has one engine over all disks",
            counted(in_flight.into(), "batch")
        );
        if self.learned_s > 0.0 {
            let _ = writeln!(
                text,
                "adaptive: what a mount does that names no algorithm. It knew nothing at first and tried out what serves each\n\
                 pattern best for {:.0} s in all, which do not count. Before a run that counts the same pattern runs for 0.7 s, so\n\
                 that it is seen which one is there; other algorithms need no such time",
                self.learned_s
            );
        }
        if !self.chosen.is_empty() {
            text.push_str("time of adaptive / that of the fastest other in the same repetition; above 1 is slower\n");
        }
        for one in &self.chosen {
            let [least, most] = one.ratio_range;
            let _ = writeln!(
                text,
                "  {:<17} {:.2} ({least:.2}..{most:.2}) of {}'s",
                one.pattern, one.ratio_to_best, one.best
            );
        }
        text
    }
}

impl Row {
    fn verdict(&self) -> &'static str {
        match self.ratio_range {
            [_, most] if most < 0.95 => "faster",
            [least, _] if least > 1.05 => "SLOWER",
            _ => "",
        }
    }
}

/// Makespans of one algorithm over those of another in the same repetition, from the least; `None` where one is missing.
fn ratios(policy: &str, baseline: &str, pattern: Pattern, samples: &[Sample]) -> Option<Vec<f64>> {
    let of = |policy| move |s: &&Sample| s.policy == policy && s.pattern == pattern;
    let ratio = |run: &Sample| {
        let base = samples.iter().filter(of(baseline)).find(|base| base.repetition == run.repetition)?;
        Some(run.outcome.makespan_s / base.outcome.makespan_s)
    };
    let mut ratios: Vec<f64> = samples.iter().filter(of(policy)).map(ratio).collect::<Option<_>>()?;
    ratios.sort_by(f64::total_cmp);
    (!ratios.is_empty()).then_some(ratios)
}

fn against_best(chooser: &str, pattern: Pattern, rows: &[Row], samples: &[Sample]) -> Option<Chosen> {
    let fixed = rows.iter().filter(|row| row.pattern == pattern.name() && row.policy != chooser);
    let best = fixed.min_by(|a, b| a.makespan_s.total_cmp(&b.makespan_s))?.policy;
    let ratios = ratios(chooser, best, pattern, samples)?;
    let ratio_range = [ratios[0], ratios[ratios.len() - 1]];
    Some(Chosen { pattern: pattern.name(), best, ratio_to_best: ratios[ratios.len() / 2], ratio_range })
}

fn row(policy: &'static str, baseline: &str, pattern: Pattern, samples: &[Sample]) -> Option<Row> {
    let runs: Vec<&Sample> = samples.iter().filter(|s| s.policy == policy && s.pattern == pattern).collect();
    let ratios = ratios(policy, baseline, pattern, samples)?;
    let mut makespans: Vec<f64> = runs.iter().map(|run| run.outcome.makespan_s).collect();
    makespans.sort_by(f64::total_cmp);
    let mut latencies: Vec<u64> = runs.iter().flat_map(|run| &run.outcome.latencies_ns).copied().collect();
    latencies.sort_unstable();
    let (batches, requests) =
        runs.iter().fold((0, 0), |sum, run| (sum.0 + run.outcome.batches, sum.1 + run.outcome.requests));
    let makespan_s = *makespans.get(makespans.len() / 2)?;
    Some(Row {
        policy,
        pattern: pattern.name(),
        makespan_s,
        throughput_mb_s: runs[0].bytes as f64 / 1e6 / makespan_s,
        ratio_to_noop: ratios[ratios.len() / 2],
        ratio_range: [ratios[0], ratios[ratios.len() - 1]],
        mean_aggregation: requests as f64 / batches.max(1) as f64,
        p99_ms: *latencies.get((latencies.len() * 99).div_ceil(100).saturating_sub(1))? as f64 / 1e6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(policy: &'static str, pattern: Pattern, repetition: usize, makespan_s: f64) -> Sample {
        let outcome = Outcome { makespan_s, latencies_ns: vec![1], batches: 1, requests: 1 };
        Sample { policy, pattern, repetition, bytes: 1, outcome }
    }

    #[test]
    fn what_was_chosen_is_compared_with_the_best_of_each_pattern_within_repetitions() {
        let [first, second, third] = PATTERNS;
        let runs = [
            ("noop", first, [4.0, 2.0, 4.0]),
            ("sjf", first, [2.0, 1.0, 2.0]),
            ("adaptive", first, [2.2, 1.3, 1.8]),
            ("noop", second, [1.0, 1.0, 1.0]),
            ("sjf", second, [3.0, 3.0, 3.0]),
            ("adaptive", second, [0.5, 0.5, 0.5]),
            ("noop", third, [1.0, 1.0, 1.0]),
        ];
        let samples: Vec<Sample> = runs
            .iter()
            .flat_map(|(policy, pattern, times)| {
                times.iter().enumerate().map(|(at, time)| sample(policy, *pattern, at, *time))
            })
            .collect();
        let report = Report::new(&["noop", "sjf", "adaptive"], "adaptive", &samples, 1.0, true);
        let found: Vec<_> =
            report.chosen.iter().map(|one| (one.pattern, one.best, one.ratio_to_best, one.ratio_range)).collect();
        assert_eq!(found, [(first.name(), "sjf", 1.1, [0.9, 1.3]), (second.name(), "noop", 0.5, [0.5, 0.5])]);
        assert_eq!((report.repetitions, report.rows.len()), (3, 7));
        let text = report.text(8);
        assert!(text.contains("  strided-read      1.10 (0.90..1.30) of sjf's\n"), "{text}");
    }
}
