//! `sluice-bench fidelity`: the simulator against the real runtime on emulated disks.

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sluice_cli::output;
use sluice_core::{AppId, EngineConfig, Op};
use sluice_runtime::{Volume, VolumeConfig};
use sluice_sim::scenario::{Plan, Scenario, Setting};
use sluice_sim::workload::{Access, Replay};
use sluice_sim::{Options, simulate};
use sluice_storage::emulated::Emulated;
use sluice_storage::null::NullStorage;
use sluice_storage::{FileRef, Layout, Storage};
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use crate::statistics::median;

const BAR_ERROR: f64 = 0.15;
const BAR_WINNERS: f64 = 0.80;
/// Algorithms that differ less are as good as each other.
const DIFFERENT: f64 = 0.10;
const POLICIES: [&str; 5] = ["noop", "to", "sjf", "hbrr", "aioli"];
/// Batches at a disk at a time, but for the algorithm that passes everything on.
const IN_FLIGHT: &str = "8";

/// Compares the simulator with real runs: the same requests through the real runtime, on emulated disks in real time.
///
/// Threads stand for processes, four emulated disks for data servers; there is no network in between, neither simulated
/// nor real. Every situation is run under several algorithms, for real and simulated.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Device model of the four disks.
    #[arg(long, default_value = "hdd-7200")]
    device: String,
    /// How unpunctual simulated processes are.
    #[arg(long, default_value = "20us")]
    jitter: String,
    /// Each run is repeated so often, with other seeds, for real and simulated; medians count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=101))]
    repetitions: u64,
    /// Only this many situations.
    #[arg(long, default_value_t = SITUATIONS.len(), hide_default_value = true)]
    situations: usize,
    /// First seed, for the disks' phases and random requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Name, and the application in a scenario.
const SITUATIONS: &[(&str, &str)] = &[
    ("16 shared strided read 32K", "processes=16 pattern=strided op=read request=32K data=3M"),
    ("16 shared strided write 32K", "processes=16 pattern=strided op=write request=32K data=3M"),
    ("16 shared contiguous read 32K", "processes=16 pattern=contiguous op=read request=32K data=2M"),
    ("16 shared contiguous write 32K", "processes=16 pattern=contiguous op=write request=32K data=2M"),
    ("16 own files read 64K", "processes=16 files=per-process op=read request=64K data=3M"),
    ("16 own files write 64K", "processes=16 files=per-process op=write request=64K data=3M"),
    ("32 random read 8K", "processes=32 pattern=random op=read request=8K data=64K"),
    ("32 random write 8K", "processes=32 pattern=random op=write request=8K data=64K"),
    ("8 shared strided read 256K", "processes=8 pattern=strided op=read request=256K data=8M"),
    ("8 shared strided write 256K", "processes=8 pattern=strided op=write request=256K data=8M"),
    ("8 shared contiguous read 256K", "processes=8 pattern=contiguous op=read request=256K data=8M"),
    ("8 own files mixed 128K", "processes=8 files=per-process op=mixed request=128K data=4M"),
    ("32 shared strided read 16K", "processes=32 pattern=strided op=read request=16K data=1M"),
    ("4 own files read 1M, thinking", "processes=4 files=per-process op=read request=1M data=12M think=5ms"),
];

#[derive(Serialize)]
struct Cell {
    policy: &'static str,
    real_s: f64,
    simulated_s: f64,
    /// Of the simulated makespan, relative to the real one.
    error: f64,
}

#[derive(Serialize)]
struct Situation {
    name: &'static str,
    cells: Vec<Cell>,
    /// Whether algorithms differ so much that there is a winner.
    decided: bool,
    real_winner: &'static str,
    simulated_winner: &'static str,
    /// The simulated winner is, for real, at most 10 % slower than the real one.
    agrees: bool,
}

#[derive(Serialize)]
struct Report {
    device: String,
    emulated: bool,
    situations: Vec<Situation>,
    median_error: f64,
    winners_agree: f64,
    misses: Vec<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let stop = sluice_cli::interrupt::flag()?;
    let chosen = &SITUATIONS[..args.situations.min(SITUATIONS.len())];
    let progress = ProgressBar::new((chosen.len() * POLICIES.len()) as u64 * args.repetitions);
    progress.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} real runs, {eta} left  {msg}")?);
    let mut situations = Vec::new();
    for &(name, application) in chosen {
        progress.set_message(name);
        let mut cells = Vec::new();
        for policy in POLICIES {
            let (mut real, mut simulated) = (Vec::new(), Vec::new());
            for seed in args.seed..args.seed + args.repetitions {
                let scenario = scenario(&args, seed, application, policy)?;
                real.push(for_real(&scenario).with_context(|| format!("{name} under {policy}"))?);
                let outcome = simulate(&scenario, Options::default(), &stop);
                if stop.load(Ordering::Relaxed) {
                    progress.finish_and_clear();
                    return Ok(ExitCode::from(130));
                }
                simulated.push(outcome?.makespan_ns as f64 * 1e-9);
                progress.inc(1);
            }
            let (real_s, simulated_s) = (median(&mut real).0, median(&mut simulated).0);
            cells.push(Cell { policy, real_s, simulated_s, error: simulated_s / real_s - 1.0 });
        }
        situations.push(compare(name, cells));
    }
    progress.finish_and_clear();
    let report = report(args.device, situations);
    if args.json {
        output::line(serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

/// The situation without a network.
fn scenario(args: &Args, seed: u64, application: &str, policy: &str) -> anyhow::Result<Scenario> {
    let mut settings: Vec<Setting> = vec![
        ("servers.device".to_owned(), args.device.clone()),
        ("servers.policy".to_owned(), policy.to_owned()),
        ("seed".to_owned(), seed.to_string()),
        ("clients.jitter".to_owned(), args.jitter.clone()),
    ];
    if policy != POLICIES[0] {
        settings.push(("servers.in_flight".to_owned(), IN_FLIGHT.to_owned()));
    }
    for word in application.split_whitespace() {
        let (key, value) = word.split_once('=').context("a key and a value")?;
        let key =
            if key == "processes" { "application.processes".to_owned() } else { format!("application.phase.{key}") };
        settings.push((key, value.to_owned()));
    }
    let text = "[clients]\ntransfer = '1M'\n[network]\nbandwidth = 0\nlatency = 0\nmessage_cost = 0\n[servers]\ncount = 4\n\
                stripe = '64K'\nfirst = 'zero'\nallocation = 'extents'\n[[application]]\nstart_spread = 0\n[[application.phase]]\n";
    let mut plan = Plan::parse(text, "fidelity", Path::new(""), &settings, &[])?;
    Ok(plan.runs.remove(0).scenario)
}

/// Lets threads do what the scenario's processes do; returns the makespan in seconds.
fn for_real(scenario: &Scenario) -> anyhow::Result<f64> {
    let layout = Layout::striped(scenario.servers.count, scenario.storage.stripe);
    let null = Storage::from(NullStorage::new(layout, 1 << 50));
    let storage = null.wrapped(|data| Emulated::new(data, &scenario.storage.device, scenario.seed))?;
    let nodes = &scenario.servers;
    let engine = EngineConfig { in_flight_max: nodes.in_flight, ..EngineConfig::default() };
    let config = VolumeConfig { engine, threads_max: 64, ..VolumeConfig::new(nodes.policy.clone()) };
    let volume = Volume::start(storage.clone(), Arc::new(()), config)?;
    let processes = scenario.applications[0].processes;
    let together = Barrier::new(processes as usize + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processes)
            .map(|rank| {
                let (volume, storage, together) = (&volume, &storage, &together);
                scope.spawn(move || {
                    let prepared = open_files(scenario, storage, rank);
                    together.wait();
                    prepared.and_then(|files| process(scenario, volume, &files, rank))
                })
            })
            .collect();
        together.wait();
        let start = Instant::now();
        for thread in threads {
            thread.join().expect("a process's thread does not panic")?;
        }
        Ok(start.elapsed().as_secs_f64())
    })
}

/// The files of a process, by number.
fn open_files(scenario: &Scenario, storage: &Storage, rank: u32) -> anyhow::Result<Vec<(u32, FileRef)>> {
    let mut files: Vec<(u32, FileRef)> = Vec::new();
    for access in Replay::new(scenario, 0, rank).flatten() {
        if files.iter().all(|(number, _)| *number != access.file) {
            let tree = &storage.namespace;
            let node = tree.lookup(&tree.root(), OsStr::new(&access.file.to_string()))?;
            files.push((access.file, tree.open(&node, libc::O_RDWR)?));
        }
    }
    Ok(files)
}

fn process(scenario: &Scenario, volume: &Volume<()>, files: &[(u32, FileRef)], rank: u32) -> anyhow::Result<()> {
    let mut memory = vec![0; 1 << 20];
    for Access { op, file, offset, len, think_ns, .. } in Replay::new(scenario, 0, rank).flatten() {
        if think_ns > 0 {
            std::thread::sleep(std::time::Duration::from_nanos(think_ns));
        }
        let (_, file) = files.iter().find(|(number, _)| *number == file).context("an open file")?;
        memory.resize(len as usize, 0);
        match op {
            Op::Read => volume.read_at(file, AppId(0), offset, &mut memory)?,
            Op::Write => volume.write_at(file, AppId(0), offset, &memory)?,
        };
    }
    Ok(())
}

fn compare(name: &'static str, cells: Vec<Cell>) -> Situation {
    let best = |value: fn(&Cell) -> f64| {
        let best = cells.iter().min_by(|a, b| value(a).total_cmp(&value(b)));
        best.map_or(("", f64::NAN), |cell| (cell.policy, cell.real_s))
    };
    let (real_winner, least) = best(|cell| cell.real_s);
    let (simulated_winner, of_simulated) = best(|cell| cell.simulated_s);
    let most = cells.iter().map(|cell| cell.real_s).fold(0.0, f64::max);
    Situation {
        name,
        decided: most > least * (1.0 + DIFFERENT),
        real_winner,
        simulated_winner,
        agrees: of_simulated <= least * (1.0 + DIFFERENT),
        cells,
    }
}

fn report(device: String, situations: Vec<Situation>) -> Report {
    let mut errors: Vec<f64> = situations.iter().flat_map(|s| &s.cells).map(|cell| cell.error.abs()).collect();
    errors.sort_by(f64::total_cmp);
    let median_error = errors.get(errors.len() / 2).copied().unwrap_or(0.0);
    let decided = situations.iter().filter(|situation| situation.decided).count();
    let agree = situations.iter().filter(|situation| situation.decided && situation.agrees).count();
    let winners_agree = if decided == 0 { 1.0 } else { agree as f64 / decided as f64 };
    let mut misses = Vec::new();
    if median_error > BAR_ERROR {
        misses.push(format!("median error {:.1} %, bar {:.0} %", median_error * 100.0, BAR_ERROR * 100.0));
    }
    if winners_agree < BAR_WINNERS {
        misses.push(format!("same winner {:.0} %, bar {:.0} %", winners_agree * 100.0, BAR_WINNERS * 100.0));
    }
    Report { device, emulated: true, situations, median_error, winners_agree, misses }
}

fn print(report: &Report) {
    output::line(format!("simulator against the runtime on four emulated {}: makespan in s\n", report.device));
    for situation in &report.situations {
        let agrees = match (situation.decided, situation.agrees) {
            (false, _) => "no winner",
            (true, true) => "same winner",
            (true, false) => "OTHER WINNER",
        };
        output::line(format!(
            "{}: {agrees} (real {}, simulated {})",
            situation.name, situation.real_winner, situation.simulated_winner
        ));
        for cell in &situation.cells {
            output::line(format!(
                "  {:<6} real {:>8.3}  simulated {:>8.3}  {:>+6.1} %",
                cell.policy,
                cell.real_s,
                cell.simulated_s,
                cell.error * 100.0
            ));
        }
    }
    output::line(format!(
        "\nmedian error {:.1} % (bar {:.0} %), same winner in {:.0} % of the situations that have one (bar {:.0} %)",
        report.median_error * 100.0,
        BAR_ERROR * 100.0,
        report.winners_agree * 100.0,
        BAR_WINNERS * 100.0
    ));
    report.misses.iter().for_each(|miss| output::line(format!("MISSED {miss}")));
}
