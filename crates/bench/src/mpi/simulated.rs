//! `sluice-bench mpi --simulated`: chapter 3 of X. Zhang's dissertation (2012; DualPar) in the simulator, with its figures beside.
//!
//! 64 processes, 9 servers, much less data than there. What is to be the same is who wins (signs) and by how much (ratios), not MB/s.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use sluice_cli::output;
use sluice_notation::counted;
use sluice_sim::scenario::Plan;
use sluice_sim::{Outcome, Sweep, sweep};

const SCENARIOS: [(&str, &str); 3] = [
    ("dualpar", include_str!("../../../../scenarios/dualpar.toml")),
    ("dualpar-btio", include_str!("../../../../scenarios/dualpar-btio.toml")),
    ("dualpar-s3asim", include_str!("../../../../scenarios/dualpar-s3asim.toml")),
];

/// What the dissertation has: a program of ours, DualPar's throughput divided by that of plain calls and of collective ones, where.
/// Of S3asim it has times, on average and at best.
const PAPER: [(&str, Option<f64>, Option<f64>, &str); 10] = [
    ("mpi-io-test, read", Some(263.0 / 115.0), Some(263.0 / 117.0), "Figure 3.3"),
    ("two mpi-io-test, read", Some(284.0 / 160.0), Some(284.0 / 168.0), "Table 3.2"),
    ("two mpi-io-test, write", Some(127.0 / 54.0), Some(127.0 / 67.0), "Table 3.2"),
    ("noncontig, read", None, Some(1.57), "Figure 3.3"),
    ("ior, read", Some(2.05), None, "Figure 3.3"),
    ("ior, write", Some(1.35), None, "Figure 3.3"),
    ("wrong, read", Some(138.0 / 140.0), None, "Table 3.3"),
    ("btio, read", Some(35.0), Some(35.0 / 24.0), "Figure 3.4, at most"),
    ("btio, write", Some(35.0), Some(35.0 / 24.0), "Figure 3.4, at most"),
    ("s3asim, 1M", Some(1.0 / 0.83), Some(1.0 / 0.83), "Figure 3.5, on average"),
];

/// One program.
#[derive(Debug, serde::Serialize)]
struct Row {
    program: String,
    plain_mb_s: f64,
    collective_mb_s: f64,
    dualpar_mb_s: f64,
    /// Where DualPar itself decides.
    auto_mb_s: f64,
    /// Of `dualpar`, divided by plain and by collective.
    over_plain: f64,
    over_collective: f64,
    auto_over_plain: f64,
    /// The same in the dissertation, and where.
    paper_over_plain: Option<f64>,
    paper_over_collective: Option<f64>,
    paper: &'static str,
    /// Bytes prefetched for nothing, divided by those that the program reads.
    unused: f64,
    unused_auto: f64,
}

/// What came of a row's ways: seconds of all seeds, bytes, and bytes prefetched in vain.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    seconds: f64,
    bytes: f64,
    unused: f64,
}

impl Way {
    fn of(outcomes: &[Outcome]) -> Way {
        let vain = |outcome: &Outcome| {
            let counts = outcome.apps.iter().filter_map(|app| app.data_driven);
            counts.map(|counts| counts.prefetched.saturating_sub(counts.used)).sum::<u64>() as f64
        };
        Way {
            seconds: outcomes.iter().map(|outcome| outcome.makespan_ns as f64 * 1e-9).sum(),
            bytes: outcomes.iter().map(|outcome| outcome.bytes as f64).sum(),
            unused: outcomes.iter().map(vain).sum(),
        }
    }

    fn mb_s(&self) -> f64 {
        self.bytes / self.seconds / 1e6
    }
}

/// What makes rows of a plan and of the outcomes of each run, one for each seed.
type Table<Row> = fn(&Plan, &[Vec<Outcome>]) -> anyhow::Result<Vec<Row>>;

/// Simulates all runs of scenarios (names and texts) with so many seeds; `alone`: each program also by itself. The rows that `table`
/// makes of each scenario.
pub(super) fn swept<Row>(
    scenarios: &[(&str, &str)],
    seeds: u32,
    alone: bool,
    table: Table<Row>,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, text) in scenarios {
        let plan = Plan::parse(text, name, Path::new(""), &[], &[])?;
        let total = plan.runs.len() * seeds as usize;
        let how = Sweep { seeds, jobs: None, record: false, alone, windows: false };
        let told = |done: usize| {
            if done.is_multiple_of(20) || done == total {
                output::tell(format_args!("{name}: {done} of {total} simulations"));
            }
        };
        rows.extend(table(&plan, &sweep(&plan, how, &AtomicBool::new(false), told)?)?);
    }
    Ok(rows)
}

/// Simulates and prints.
///
/// # Errors
/// If a scenario cannot be simulated.
pub(super) fn run(seeds: u32, json: bool) -> anyhow::Result<()> {
    let mut rows = swept(&SCENARIOS, seeds, false, table)?;
    // What DualPar loses comes first.
    rows.sort_by(|a, b| a.over_plain.min(a.over_collective).total_cmp(&b.over_plain.min(b.over_collective)));
    if json {
        return output::pretty_json(&rows);
    }
    output::line(format_args!(
        "simulated, 64 processes, 9 servers with modelled disks, {}; MB/s, and ratios (the dissertation's)",
        counted(seeds.into(), "seed")
    ));
    output::line(format_args!(
        "{:<28}{:>9}{:>12}{:>9}{:>9}{:>20}{:>20}{:>9}",
        "", "plain", "collective", "dualpar", "auto", "dualpar/plain", "/collective", "unused"
    ));
    for row in &rows {
        let ratio = |ours: f64, theirs: Option<f64>| {
            format!("{ours:.2} ({})", theirs.map_or_else(|| "-".to_owned(), |theirs| format!("{theirs:.2}")))
        };
        output::line(format_args!(
            "{:<28}{:>9.1}{:>12.1}{:>9.1}{:>9.1}{:>20}{:>20}{:>8.1}%",
            row.program,
            row.plain_mb_s,
            row.collective_mb_s,
            row.dualpar_mb_s,
            row.auto_mb_s,
            ratio(row.over_plain, row.paper_over_plain),
            ratio(row.over_collective, row.paper_over_collective),
            row.unused * 100.0
        ));
    }
    Ok(())
}

/// The rows of a plan: one of each combination of all axes but `way`.
fn table(plan: &Plan, outcomes: &[Vec<Outcome>]) -> anyhow::Result<Vec<Row>> {
    let way_axis = plan.axes.iter().position(|axis| axis.name == "way").context("no axis says the way")?;
    let mut found: Vec<(String, Vec<(&str, Way)>)> = Vec::new();
    for (run, outcomes) in plan.runs.iter().zip(outcomes) {
        let values = plan.axes.iter().zip(&run.place).enumerate().filter(|(number, _)| *number != way_axis);
        let mut words: Vec<&str> = values.map(|(_, (axis, &value))| axis.values[value].as_str()).collect();
        // Scenarios of one program have its name.
        if plan.axes.iter().all(|axis| axis.name != "program") {
            words.insert(0, plan.name.rsplit('-').next().unwrap_or_default());
        }
        let program = words.join(", ");
        let way = plan.axes[way_axis].values[run.place[way_axis]].as_str();
        let at = found.iter().position(|(name, _)| *name == program).unwrap_or(found.len());
        if at == found.len() {
            found.push((program, Vec::new()));
        }
        found[at].1.push((way, Way::of(outcomes)));
    }
    let mut rows = Vec::new();
    for (program, ways) in &found {
        let of = |name: &str| ways.iter().find(|(way, _)| *way == name).map(|(_, way)| *way).unwrap_or_default();
        let (plain, collective, auto) = (of("plain").mb_s(), of("collective").mb_s(), of("auto"));
        for (name, dualpar) in ways.iter().filter(|(way, _)| way.starts_with("dualpar")) {
            let program = match name.split_once(", ") {
                Some((_, with)) => format!("{program}, {with}"),
                None => program.clone(),
            };
            let paper = PAPER.iter().find(|(name, ..)| *name == program);
            rows.push(Row {
                plain_mb_s: plain,
                collective_mb_s: collective,
                dualpar_mb_s: dualpar.mb_s(),
                auto_mb_s: auto.mb_s(),
                over_plain: dualpar.mb_s() / plain,
                over_collective: dualpar.mb_s() / collective,
                auto_over_plain: auto.mb_s() / plain,
                paper_over_plain: paper.and_then(|paper| paper.1),
                paper_over_collective: paper.and_then(|paper| paper.2),
                paper: paper.map_or("", |paper| paper.3),
                unused: dualpar.unused / dualpar.bytes,
                unused_auto: auto.unused / auto.bytes,
                program,
            });
        }
    }
    Ok(rows)
}
