//! `sluice-bench orchestration`: one program at a time on all data servers, against what the dissertation reports (Zhang 2012,
//! chapter 5) and against what it had no rival in: a local algorithm that anticipates.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use serde::Serialize;
use sluice_cli::output;
use sluice_sim::scenario::Plan;
use sluice_sim::{Estimate, Outcome, Sweep, jain, sweep};

const PAIRS: &str = include_str!("../../../scenarios/iorchestrator-pairs.toml");
const THREE: &str = include_str!("../../../scenarios/iorchestrator-three.toml");
const DISTANCE: &str = include_str!("../../../scenarios/iorchestrator-distance.toml");
const WINDOW: &str = include_str!("../../../scenarios/iorchestrator-window.toml");

/// Gains over no orchestration that the dissertation states, in per cent.
const PAPER: [(&str, f64); 16] = [
    ("mpi-io-test read barrier", 57.0),
    ("mpi-io-test write barrier", 37.0),
    ("mpi-io-test read neither", 72.0),
    ("mpi-io-test write neither", 36.0),
    ("mpi-tile-io read barrier", 11.0),
    ("mpi-tile-io write barrier", 15.0),
    ("ior-mpi-io read barrier", 0.0),
    ("ior-mpi-io write barrier", 0.0),
    ("ior-mpi-io read neither", 0.0),
    ("ior-mpi-io write neither", 0.0),
    ("three programs", 52.1),
    ("distance 30G", 150.0),
    ("window 125ms", 40.2),
    ("window 250ms", 48.5),
    ("window 500ms", 58.6),
    ("window 1s", 59.6),
];

/// Bars of the issue, in per cent.
const BAR_MEAN: f64 = 39.0;
const BAR_WEAK_LOSS: f64 = 1.0;
const BAR_THREE: f64 = 30.0;

/// Serves one program at a time on all data servers, simulated, beside what the dissertation on IOrchestrator reports
///
/// Compared are no orchestration, equal slices for all programs, local anticipation, the paper's conditions, ours, and ours with
/// local anticipation. Gains are of the throughput over none, seed by seed, with 95 % intervals.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Three seeds, and only what bars are about
    #[arg(long)]
    quick: bool,
    /// Seeds of each run; ten, with --quick three, if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    seeds: Option<u32>,
    /// Simulations at a time; as many as there are cores if not given
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

/// A gain in per cent, with the half-width of its interval towards 0.
#[derive(Clone, Copy, Debug, Serialize)]
struct Gain {
    percent: f64,
    half_width: f64,
}

/// An experiment.
#[derive(Debug, Serialize)]
struct Row {
    experiment: String,
    /// In per cent; absent where the dissertation gives no figure.
    paper: Option<f64>,
    /// Ours over none, in per cent.
    simulated: f64,
    half_width: f64,
    /// On emulated or real devices: not measured here.
    real: Option<f64>,
    /// The other services over none.
    services: BTreeMap<String, Gain>,
    /// Throughput of no orchestration, MB/s.
    none_mb_s: f64,
    /// Share of the time in which a plan was in force: of ours, and by the paper's conditions alone.
    planned_share: f64,
    /// See `planned_share`.
    conditions_share: f64,
    /// Of programs, against running alone; absent where that was not simulated.
    slow_downs: Option<BTreeMap<String, f64>>,
    /// Jain's index of these.
    jain: Option<BTreeMap<String, f64>>,
}

#[derive(Serialize)]
struct Report {
    emulated: bool,
    seeds: u32,
    rows: Vec<Row>,
    /// Of three different programs, orchestrated.
    jain: f64,
    worst_slowdown: f64,
    /// Worst first.
    bars: Vec<Bar>,
}

#[derive(Serialize)]
struct Bar {
    bar: String,
    value: f64,
    met: bool,
}

/// All programs' throughputs together, each over its own time: bytes a second.
fn throughput(outcome: &Outcome) -> f64 {
    outcome.apps.iter().map(|app| app.bytes as f64 * 1e9 / app.makespan_ns.max(1) as f64).sum()
}

fn gain(of: &[Outcome], over: &[Outcome]) -> Gain {
    let logs: Vec<f64> = of.iter().zip(over).map(|(a, b)| (throughput(a) / throughput(b)).ln()).collect();
    let estimate = Estimate::of(&logs);
    let percent = |log: f64| (log.exp() - 1.0) * 100.0;
    let bound = percent(estimate.mean - estimate.half_width.copysign(estimate.mean));
    Gain { percent: percent(estimate.mean), half_width: (percent(estimate.mean) - bound).abs() }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// The services of one situation, by name.
type Services = BTreeMap<String, Vec<Outcome>>;

/// Simulates a scenario file; for each situation the services that were compared in it.
fn simulate(
    text: &str,
    only: &[(String, Vec<String>)],
    seeds: u32,
    jobs: Option<NonZeroUsize>,
    alone: bool,
) -> anyhow::Result<Vec<(String, Services)>> {
    let plan = Plan::parse(text, "orchestration", Path::new(""), &[], only)?;
    let how = Sweep { seeds, jobs, record: false, alone, windows: false };
    let progress =
        output::bar((plan.runs.len() * seeds as usize) as u64, "{bar:40} {pos}/{len} simulations, {eta} left");
    let outcomes = sweep(&plan, how, &AtomicBool::new(false), |done| progress.set_position(done as u64))?;
    progress.finish_and_clear();
    let (compared, _) = plan.compare.context("the scenario compares nothing")?;
    let mut situations: Vec<(String, Services)> = Vec::new();
    for (run, outcomes) in plan.runs.iter().zip(outcomes) {
        let named = || plan.axes.iter().zip(&run.place).enumerate();
        let words: Vec<&str> =
            named().filter(|(at, _)| *at != compared).map(|(_, (axis, value))| axis.values[*value].as_str()).collect();
        let (situation, service) = (words.join(" "), plan.axes[compared].values[run.place[compared]].clone());
        match situations.iter_mut().find(|(known, _)| *known == situation) {
            Some((_, services)) => _ = services.insert(service, outcomes),
            None => situations.push((situation, BTreeMap::from([(service, outcomes)]))),
        }
    }
    Ok(situations)
}

fn row(experiment: String, services: &Services) -> anyhow::Result<Row> {
    let of = |name: &str| services.get(name).with_context(|| format!("{experiment}: nobody simulated {name:?}"));
    let (none, ours) = (of("none")?, of("orchestrated")?);
    let gains = services.iter().filter(|(name, _)| *name != "none").map(|(name, of)| (name.clone(), gain(of, none)));
    let services_gain: BTreeMap<String, Gain> = gains.collect();
    let slow = |outcome: &Outcome| outcome.apps.iter().filter_map(|app| app.slow_down).collect::<Vec<f64>>();
    let alone = ours.iter().all(|outcome| slow(outcome).len() == outcome.apps.len());
    let slow_downs = alone.then(|| {
        let program = |at: usize| {
            (ours[0].apps[at].name.clone(), mean(ours.iter().filter_map(|outcome| outcome.apps[at].slow_down)))
        };
        (0..ours[0].apps.len()).map(program).collect()
    });
    let fairness = |of: &Vec<Outcome>| mean(of.iter().map(|outcome| jain(&slow(outcome))));
    let share = |outcome: &Outcome| outcome.orchestration.as_ref().map_or(0.0, |it| it.planned_share);
    let Gain { percent, half_width } = services_gain["orchestrated"];
    Ok(Row {
        paper: PAPER.iter().find(|(name, _)| *name == experiment).map(|(_, percent)| *percent),
        simulated: percent,
        half_width,
        real: None,
        none_mb_s: mean(none.iter().map(throughput)) / 1e6,
        planned_share: mean(ours.iter().map(share)),
        conditions_share: mean(of("paper")?.iter().map(share)),
        slow_downs,
        jain: alone.then(|| services.iter().map(|(name, of)| (name.clone(), fairness(of))).collect()),
        services: services_gain,
        experiment,
    })
}

/// Runs the experiments and prints what they give.
///
/// # Errors
/// If a scenario cannot be simulated.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let seeds = args.seeds.unwrap_or(if args.quick { 3 } else { 10 });
    let only = |axis: &str, values: &[&str]| (axis.to_owned(), values.iter().map(|&value| value.to_owned()).collect());
    let quick = match args.quick {
        true => vec![only("together", &["barrier"]), only("program", &["mpi-io-test", "hpio-nc", "ior-mpi-io"])],
        false => Vec::new(),
    };
    let mut rows = Vec::new();
    for (situation, services) in simulate(PAIRS, &quick, seeds, args.jobs, false)? {
        rows.push(row(situation, &services)?);
    }
    // Where the conditions hold most of the time, whether ours then keeps the plan or not.
    let held: Vec<f64> = rows.iter().filter(|row| row.conditions_share >= 0.5).map(|row| row.simulated).collect();
    let weak = rows.iter().filter(|row| row.experiment.starts_with("ior")).map(|row| row.simulated).fold(0.0, f64::min);
    let worst = rows.iter().map(|row| row.simulated).fold(0.0, f64::min);
    let three = simulate(THREE, &[], seeds, args.jobs, true)?;
    let Some((_, services)) = three.first() else { bail!("three programs gave nothing") };
    let over_even = gain(&services["orchestrated"], &services["even"]);
    let three = row("three programs".to_owned(), services)?;
    let worst_slowdown = three.slow_downs.iter().flat_map(BTreeMap::values).copied().fold(0.0, f64::max);
    let jain = three.jain.as_ref().and_then(|jain| jain.get("orchestrated")).copied().unwrap_or_default();
    rows.push(three);
    if !args.quick {
        for (name, text) in [("distance", DISTANCE), ("window", WINDOW)] {
            for (situation, services) in simulate(text, &[], seeds, args.jobs, false)? {
                rows.push(row(format!("{name} {situation}"), &services)?);
            }
        }
    }
    rows.sort_by(|a, b| a.simulated.total_cmp(&b.simulated));
    let bar = |bar: String, value: f64, met: bool| Bar { bar, value, met };
    let held_mean = mean(held.iter().copied());
    let mut bars = vec![
        bar(
            format!("mean gain where the paper's conditions hold ({} situations) >= {BAR_MEAN} %", held.len()),
            held_mean,
            held_mean >= BAR_MEAN,
        ),
        bar(format!("weak locality left alone: loss <= {BAR_WEAK_LOSS} %"), weak, weak >= -BAR_WEAK_LOSS),
        bar(
            format!("three programs over equal slices >= {BAR_THREE} %"),
            over_even.percent,
            over_even.percent >= BAR_THREE,
        ),
        bar("largest loss of a pair (no bar)".to_owned(), worst, true),
    ];
    bars.sort_by_key(|bar| bar.met);
    let report = Report { emulated: true, seeds, rows, jain, worst_slowdown, bars };
    if args.json {
        output::pretty_json(&report)?;
    } else {
        print(&report);
    }
    let met = report.bars.iter().all(|bar| bar.met);
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report) {
    output::line(format_args!(
        "simulated, emulated disks, {} seeds; gains in throughput over no orchestration in %, losses first\n\n{:<28}{:>7}{:>16}{:>8}{:>9}{:>9}{:>9}{:>10}{:>8}",
        report.seeds, "experiment", "paper", "ours", "even", "anticip.", "paper's", "both", "none MB/s", "planned"
    ));
    for row in &report.rows {
        let of = |name: &str| row.services.get(name).map_or_else(String::new, |gain| format!("{:+.1}", gain.percent));
        let paper = row.paper.map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1}"));
        output::line(format_args!(
            "{:<28}{paper:>7}{:>+9.1} ±{:>5.1}{:>8}{:>9}{:>9}{:>9}{:>10.1}{:>7.0}%",
            row.experiment,
            row.simulated,
            row.half_width,
            of("even"),
            of("anticipation"),
            of("paper"),
            of("both"),
            row.none_mb_s,
            row.planned_share * 100.0
        ));
    }
    for row in report.rows.iter().filter(|row| row.slow_downs.is_some()) {
        let slow: Vec<String> =
            row.slow_downs.iter().flatten().map(|(name, times)| format!("{name} {times:.2}")).collect();
        let fair: Vec<String> = row.jain.iter().flatten().map(|(name, index)| format!("{name} {index:.3}")).collect();
        output::line(format_args!(
            "\n{}: slow-down against running alone, orchestrated: {}; Jain's index: {}",
            row.experiment,
            slow.join(", "),
            fair.join(", ")
        ));
    }
    for bar in &report.bars {
        output::line(format_args!("{}: {:.1}: {}", bar.bar, bar.value, if bar.met { "met" } else { "missed" }));
    }
}
