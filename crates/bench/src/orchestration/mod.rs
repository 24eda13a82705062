//! `sluice-bench orchestration`: one program at a time on all data servers, against what the dissertation reports (Zhang 2012,
//! chapter 5) and against what it had no rival in: a local algorithm that anticipates. Simulated, and for real in a cluster of
//! GlusterFS on emulated disks.

mod load;
mod real;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use serde::Serialize;
use sluice_cli::output;
use sluice_notation::counted;
use sluice_sim::scenario::Plan;
use sluice_sim::{Estimate, Outcome, Sweep, jain, sweep};

pub(crate) use load::{LoadArgs, load};
use real::Real;

const PAIRS: &str = include_str!("../../../../scenarios/iorchestrator-pairs.toml");
const THREE: &str = include_str!("../../../../scenarios/iorchestrator-three.toml");
const DISTANCE: &str = include_str!("../../../../scenarios/iorchestrator-distance.toml");
const WINDOW: &str = include_str!("../../../../scenarios/iorchestrator-window.toml");

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
const BAR_REAL: f64 = 20.0;

/// Serves one program at a time on all data servers, simulated and for real, beside what the dissertation on IOrchestrator reports
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
    #[command(flatten)]
    real: real::RealArgs,
}

/// A gain in per cent, with the half-width of its interval towards 0.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Gain {
    pub(crate) percent: f64,
    pub(crate) half_width: f64,
}

/// An experiment.
#[derive(Debug, Serialize)]
struct Row {
    experiment: String,
    /// In per cent; absent where the dissertation gives no figure.
    paper: Option<f64>,
    /// Ours over none, in per cent; absent where only real runs were asked for.
    simulated: Option<f64>,
    half_width: f64,
    /// The same in a cluster of GlusterFS on emulated disks; absent where that was not measured.
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
    /// Of three different programs, orchestrated: simulated if that was, else for real.
    jain: f64,
    worst_slowdown: f64,
    /// What was measured for real.
    real: Option<Real>,
    /// Worst first.
    bars: Vec<Bar>,
}

#[derive(Serialize)]
struct Bar {
    bar: String,
    value: f64,
    met: bool,
}

impl Bar {
    fn of(bar: String, value: f64, met: bool) -> Bar {
        Bar { bar, value, met }
    }
}

impl Row {
    /// Of an experiment that was not simulated.
    fn only_real(experiment: &str, gain: f64) -> Row {
        Row {
            experiment: experiment.to_owned(),
            paper: paper(experiment),
            simulated: None,
            half_width: 0.0,
            real: Some(gain),
            services: BTreeMap::new(),
            none_mb_s: 0.0,
            planned_share: 0.0,
            conditions_share: 0.0,
            slow_downs: None,
            jain: None,
        }
    }
}

/// What the dissertation states of an experiment.
fn paper(experiment: &str) -> Option<f64> {
    PAPER.iter().find(|(name, _)| *name == experiment).map(|(_, percent)| *percent)
}

/// All programs' throughputs together, each over its own time: bytes a second.
pub(crate) fn throughput(outcome: &Outcome) -> f64 {
    outcome.apps.iter().map(|app| app.bytes as f64 * 1e9 / app.makespan_ns.max(1) as f64).sum()
}

pub(crate) fn gain(of: &[Outcome], over: &[Outcome]) -> Gain {
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
pub(crate) type Services = BTreeMap<String, Vec<Outcome>>;

/// Simulates a scenario file; for each situation the services that were compared in it.
pub(crate) fn simulate(
    text: &str,
    only: &[(String, Vec<String>)],
    seeds: u32,
    jobs: Option<NonZeroUsize>,
    alone: bool,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<(String, Services)>> {
    let plan = Plan::parse(text, "orchestration", Path::new(""), &[], only)?;
    let how = Sweep { seeds, jobs, record: false, alone, windows: false };
    let progress =
        output::bar((plan.runs.len() * seeds as usize) as u64, "{bar:40} {pos}/{len} simulations, {eta} left");
    let outcomes = sweep(&plan, how, stop, |done| progress.set_position(done as u64))?;
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
        paper: paper(&experiment),
        simulated: Some(percent),
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

/// Simulates everything.
fn simulated(args: &Args, seeds: u32) -> anyhow::Result<Report> {
    let only = |axis: &str, values: &[&str]| (axis.to_owned(), values.iter().map(|&value| value.to_owned()).collect());
    let quick = match args.quick {
        true => vec![only("together", &["barrier"]), only("program", &["mpi-io-test", "hpio-nc", "ior-mpi-io"])],
        false => Vec::new(),
    };
    // Signals end the program: nothing has been made that would stay.
    let stop = AtomicBool::new(false);
    let mut rows = Vec::new();
    for (situation, services) in simulate(PAIRS, &quick, seeds, args.jobs, false, &stop)? {
        rows.push(row(situation, &services)?);
    }
    let gain_of = |row: &Row| row.simulated.unwrap_or_default();
    // Where the conditions hold most of the time, whether ours then keeps the plan or not.
    let held: Vec<f64> = rows.iter().filter(|row| row.conditions_share >= 0.5).map(gain_of).collect();
    let weak = rows.iter().filter(|row| row.experiment.starts_with("ior")).map(gain_of).fold(0.0, f64::min);
    let worst = rows.iter().map(gain_of).fold(0.0, f64::min);
    let three = simulate(THREE, &[], seeds, args.jobs, true, &stop)?;
    let Some((_, services)) = three.first() else { bail!("three programs gave nothing") };
    let over_even = gain(&services["orchestrated"], &services["even"]);
    let three = row("three programs".to_owned(), services)?;
    let worst_slowdown = three.slow_downs.iter().flat_map(BTreeMap::values).copied().fold(0.0, f64::max);
    let jain = three.jain.as_ref().and_then(|jain| jain.get("orchestrated")).copied().unwrap_or_default();
    rows.push(three);
    if !args.quick {
        for (name, text) in [("distance", DISTANCE), ("window", WINDOW)] {
            for (situation, services) in simulate(text, &[], seeds, args.jobs, false, &stop)? {
                rows.push(row(format!("{name} {situation}"), &services)?);
            }
        }
    }
    let held_mean = mean(held.iter().copied());
    let bars = vec![
        Bar::of(
            format!("mean gain where the paper's conditions hold ({} situations) >= {BAR_MEAN} %", held.len()),
            held_mean,
            held_mean >= BAR_MEAN,
        ),
        Bar::of(format!("weak locality left alone: loss <= {BAR_WEAK_LOSS} %"), weak, weak >= -BAR_WEAK_LOSS),
        Bar::of(
            format!("three programs over equal slices >= {BAR_THREE} %"),
            over_even.percent,
            over_even.percent >= BAR_THREE,
        ),
        Bar::of("largest loss of a pair (no bar)".to_owned(), worst, true),
    ];
    Ok(Report { emulated: true, seeds, rows, jain, worst_slowdown, real: None, bars })
}

/// Adds what was measured for real.
fn add(report: &mut Report, real: Real) {
    let simulated = !report.rows.is_empty();
    for measured in &real.rows {
        let Some(ours) = measured.of("orchestrated") else { continue };
        match report.rows.iter_mut().find(|row| row.experiment == measured.experiment) {
            Some(row) => row.real = Some(ours.gain),
            None => report.rows.push(Row::only_real(measured.experiment, ours.gain)),
        }
        if !simulated && (measured.programs.len() == 3 || real.rows.len() == 1) {
            (report.jain, report.worst_slowdown) = (ours.jain, ours.slow_downs.iter().copied().fold(0.0, f64::max));
        }
    }
    let gains = |holds: bool| {
        let rows = real.rows.iter().filter(move |row| row.holds == holds);
        rows.filter_map(|row| row.of("orchestrated")).map(|cell| cell.gain)
    };
    if gains(true).count() > 0 {
        let gain = mean(gains(true));
        let text = format!("for real: mean gain where the paper's conditions hold >= {BAR_REAL} %");
        report.bars.push(Bar::of(text, gain, gain >= BAR_REAL));
    }
    if let Some(gain) = gains(false).reduce(f64::min) {
        report.bars.push(Bar::of("for real: weak locality (no bar)".to_owned(), gain, true));
    }
    report.real = Some(real);
}

/// Runs the experiments and prints what they give.
///
/// # Errors
/// If a scenario cannot be simulated; for real, if there can be no cluster, data are wrong, or it was interrupted: what was found
/// before is printed.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let seeds = args.seeds.unwrap_or(if args.quick { 3 } else { 10 });
    let mut report = match args.real.only_real {
        true => Report {
            emulated: true,
            seeds: 0,
            rows: Vec::new(),
            jain: 0.0,
            worst_slowdown: 0.0,
            real: None,
            bars: Vec::new(),
        },
        false => simulated(args, seeds)?,
    };
    let mut ended = Ok(());
    if args.real.real || args.real.only_real {
        ended = real::measure(&args.real, args.quick).and_then(|(measured, ended)| {
            add(&mut report, measured);
            ended
        });
    }
    if report.rows.is_empty() {
        ended?;
        return Ok(ExitCode::FAILURE);
    }
    report.rows.sort_by(|a, b| a.simulated.or(a.real).unwrap_or(0.0).total_cmp(&b.simulated.or(b.real).unwrap_or(0.0)));
    report.bars.sort_by_key(|bar| bar.met);
    if args.json {
        output::pretty_json(&report)?;
    } else {
        print(&report);
    }
    ended?;
    let met = report.bars.iter().all(|bar| bar.met);
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report) {
    if report.seeds > 0 {
        print_simulated(report);
    }
    if let Some(real) = &report.real {
        real::print(real);
    }
    for bar in &report.bars {
        output::line(format_args!("{}: {:.1}: {}", bar.bar, bar.value, if bar.met { "met" } else { "missed" }));
    }
}

fn print_simulated(report: &Report) {
    output::line(format_args!(
        "simulated, emulated disks, {}; gains in throughput over no orchestration in %, losses first\n\n{:<28}{:>7}{:>16}{:>8}{:>9}{:>9}{:>9}{:>10}{:>8}",
        counted(report.seeds as u64, "seed"),
        "experiment",
        "paper",
        "ours",
        "even",
        "anticip.",
        "paper's",
        "both",
        "none MB/s",
        "planned"
    ));
    for row in report.rows.iter().filter(|row| row.simulated.is_some()) {
        let of = |name: &str| row.services.get(name).map_or_else(String::new, |gain| format!("{:+.1}", gain.percent));
        let paper = row.paper.map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1}"));
        output::line(format_args!(
            "{:<28}{paper:>7}{:>+9.1} ±{:>5.1}{:>8}{:>9}{:>9}{:>9}{:>10.1}{:>7.0}%",
            row.experiment,
            row.simulated.unwrap_or_default(),
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
}
