//! `sluice-bench tier`: whether the SSD before a disk loses anything, and what it brings.

mod figures;
mod simulated;

use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use anyhow::anyhow;
use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use sluice_cli::output;
use sluice_core::PolicyConfig;
use sluice_tier::crash::{self, Plan, Random, kill};
use sluice_tier::{Config, FileDevice, Geometry, Rule, Tier};

use self::figures::Row;
use self::simulated::Simulated;
use crate::bed;

/// Crashes tiers, kills writers, and measures workloads on an emulated disk with this machine's own disk as SSD.
///
/// Three columns: the disk under Sluicegate's scheduler; the same with an SSD before it; ext4 on such a disk through the
/// kernel's page cache (needs root, FUSE and loop devices). And what the dissertation on iTransformer reports, simulated.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fewer histories, kills and rounds, shorter workloads, a log of 1 GiB
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Device model of the disk
    #[arg(long, default_value = "hdd-7200")]
    model: String,
    /// The algorithm that orders the disk's requests, with and without an SSD
    #[arg(long, default_value = "noop")]
    policy: String,
    /// The kernel's scheduler below ext4
    #[arg(long, default_value = "mq-deadline")]
    scheduler: String,
    /// Where files are made; up to 10 GB, in full
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Histories [default: 10000, with --quick 300]
    #[arg(long, value_name = "N")]
    histories: Option<u64>,
    /// Kills [default: 200, with --quick 10]
    #[arg(long, value_name = "N")]
    kills: Option<u64>,
    /// Rounds, in each of which every column has its turn [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Only histories and kills
    #[arg(long)]
    no_figures: bool,
    /// Only chapter 6 of the dissertation, simulated; else that comes with the figures
    #[arg(long, conflicts_with = "no_figures")]
    simulated: bool,
    /// Seeds of each simulation [default: 3, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    seeds: Option<u32>,
    /// Simulations at a time; as many as there are cores if not given
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Only workloads whose name has this in it, no start of a full log, and nothing simulated unless that is asked for; may be
    /// repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Not the page cache
    #[arg(long)]
    no_page_cache: bool,
    /// Settings of the tier; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

/// A writer that is to be killed.
#[derive(clap::Args)]
pub(crate) struct WriterArgs {
    dir: PathBuf,
    seed: u64,
}

/// Writes until it is killed.
pub(crate) fn write(args: &WriterArgs) -> anyhow::Result<ExitCode> {
    kill::write_until_killed(&args.dir, args.seed).map_err(|error| anyhow!(error))?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Default, Serialize)]
struct Results {
    emulated: bool,
    model: String,
    histories: u64,
    crashes: u64,
    #[serde(rename = "violations")]
    violation_count: usize,
    violation_texts: Vec<String>,
    kills: u64,
    recovery: Option<Recovery>,
    rows: Vec<Row>,
    simulated: Option<Simulated>,
    /// The worst of all rows that wrote to the log.
    write_amplification: f64,
    seconds: f64,
}

/// Reading a full log at the start.
#[derive(Serialize)]
struct Recovery {
    log_bytes: u64,
    entries: u64,
    seconds: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    // Before the work, which takes minutes.
    figures::config(args)?;
    sluice_device::model(&args.model, args.seed)?;
    PolicyConfig::parse(&args.policy)?;
    let runner = bed::Runner::new()?;
    let mut results = Results { emulated: true, model: args.model.clone(), ..Results::default() };
    if args.simulated || !args.no_figures && args.only.is_empty() {
        let seeds = args.seeds.unwrap_or(if args.quick { 2 } else { 3 });
        results.simulated = Some(simulated::simulated(seeds, args.jobs, &args.only, &runner.stop)?);
    }
    if !args.simulated {
        measure(args, &runner, &mut results)?;
    }
    results.violation_count = results.violation_texts.len();
    results.seconds = began.elapsed().as_secs_f64();
    if args.json {
        output::pretty_json(&results)?;
    } else {
        print(args, &results);
    }
    Ok(if results.violation_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is done for real.
fn measure(args: &Args, runner: &bed::Runner, results: &mut Results) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("sluice-tier-").tempdir_in(&args.dir)?;
    histories(args, runner, results);
    runner.go_on()?;
    kills(args, runner, dir.path(), results)?;
    runner.go_on()?;
    if !args.no_figures {
        if args.only.is_empty() {
            results.recovery = Some(recovery(args, runner, dir.path())?);
        }
        results.rows = figures::rows(args, runner, dir.path())?;
        results.write_amplification = results.rows.iter().map(|row| row.write_amplification).fold(0.0, f64::max);
    }
    Ok(())
}

fn kills(args: &Args, runner: &bed::Runner, dir: &Path, results: &mut Results) -> anyhow::Result<()> {
    let wanted = args.kills.unwrap_or(if args.quick { 10 } else { 200 });
    let own = std::env::current_exe()?;
    let progress = output::bar(wanted, "{bar:40} {pos}/{len} kills, {eta} left");
    let killed = kill::run(dir, wanted, |seed| {
        progress.inc(1);
        let mut command = Command::new(&own);
        // Out of the reach of the terminal's signals.
        command.arg("tier-writer").arg(dir).arg(seed.to_string()).process_group(0);
        runner.go_on().is_ok().then_some(command)
    });
    progress.finish_and_clear();
    match killed {
        Ok(killed) => results.kills = killed,
        Err(error) => results.violation_texts.push(error),
    }
    Ok(())
}

/// Seeds on all processors.
fn histories(args: &Args, runner: &bed::Runner, results: &mut Results) {
    let wanted = args.histories.unwrap_or(if args.quick { 300 } else { 10_000 });
    let progress = output::bar(wanted, "{bar:40} {pos}/{len} histories, {eta} left");
    let (done, crashes, seed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(args.seed));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let violations = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut violations = Vec::new();
                    while done.load(Relaxed) < wanted && violations.len() < 10 && runner.go_on().is_ok() {
                        let seed = seed.fetch_add(1, Relaxed);
                        let faults = seed % 4 == 3;
                        let plan = Plan { operations: if faults { 40 } else { 30 }, branches: 2, lives: 3, faults };
                        match crash::run(seed, plan) {
                            Ok(counts) => {
                                progress.set_position(done.fetch_add(counts.histories, Relaxed) + counts.histories);
                                crashes.fetch_add(counts.crashes, Relaxed);
                            }
                            Err(error) => violations.push(error),
                        }
                    }
                    violations
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a panic was printed")).collect()
    });
    progress.finish_and_clear();
    (results.histories, results.crashes, results.violation_texts) =
        (done.into_inner(), crashes.into_inner(), violations);
}

/// A log full of entries of 4 KiB, of which nothing is in memory.
fn recovery(args: &Args, runner: &bed::Runner, dir: &Path) -> anyhow::Result<Recovery> {
    const DISK: u64 = 1 << 40;
    let log_bytes: u64 = if args.quick { 1 << 30 } else { 8 << 30 };
    let (disk, ssd) = (dir.join("large.img"), dir.join("log.img"));
    std::fs::File::create(&disk)?.set_len(DISK)?;
    let geometry = Geometry { queue_bytes: log_bytes, area_bytes: 0, ..Geometry::default() };
    let device = FileDevice::create(&ssd, log_bytes + (16 << 10))?;
    Tier::create(&FileDevice::open(&disk, true)?, "disk", &device, geometry)?;
    drop(device);
    // Never more than it can hold, so that nothing is written back.
    let config = Config { rule: Rule::Always, high: 1.0, unload: false, prefetch: false, ..Config::default() };
    let open = || -> anyhow::Result<Tier> {
        let (disk, ssd) = (FileDevice::open(&disk, true)?, FileDevice::open(&ssd, true)?);
        Ok(Tier::open(Arc::new(disk), Arc::new(ssd), config.clone())?)
    };
    let tier = open()?;
    let segments = u64::from(tier.status().segments);
    let progress = output::bar(segments, "{bar:40} {pos}/{len} segments of a full log, {eta} left");
    // Several writers share records, as they do in use.
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                let (tier, progress) = (&tier, &progress);
                scope.spawn(move || {
                    let mut random = Random(args.seed + thread);
                    loop {
                        let used = u64::from(tier.status().segments_used);
                        progress.set_position(used);
                        if used + 2 >= segments {
                            return Ok::<(), anyhow::Error>(());
                        }
                        runner.go_on()?;
                        for _ in 0..256 {
                            tier.write(&[0x5a; 4096], random.below(DISK / 4096) * 4096, false)?;
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a panic was printed"))
    })?;
    progress.finish_and_clear();
    tier.end()?;
    drop(tier);
    let file = std::fs::File::open(&ssd)?;
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let began = Instant::now();
    let tier = open()?;
    let seconds = began.elapsed().as_secs_f64();
    let entries = tier.status().recovery.entries;
    drop(tier);
    for path in [disk, ssd] {
        std::fs::remove_file(path)?;
    }
    Ok(Recovery { log_bytes, entries, seconds })
}

fn print(args: &Args, results: &Results) {
    if !args.simulated {
        output::line(format_args!(
            "{} histories, {} crashes recovered and compared, {} writers killed: {} violations",
            results.histories, results.crashes, results.kills, results.violation_count
        ));
    }
    if let Some(simulated) = &results.simulated {
        simulated::print(simulated);
    }
    results.violation_texts.iter().for_each(output::line);
    if let Some(Recovery { log_bytes, entries, seconds }) = results.recovery {
        let met = if seconds <= 5.0 { "met" } else { "missed" };
        output::line(format_args!(
            "start with a full log of {} GiB, {entries} entries: {seconds:.2} s (bar: 5 s for 8 GiB: {met})",
            log_bytes >> 30
        ));
    }
    if results.rows.is_empty() {
        return;
    }
    output::line(format_args!(
        "\nMB/s on an emulated {}; this machine's own disk as SSD; medians and spread\n\n\
         | workload | without | with | page cache | with/without | bar | read hits | SSD wrote for each byte |\n\
         |---|---|---|---|---|---|---|---|",
        args.model
    ));
    results.rows.iter().for_each(output::line);
    let missed = results.rows.iter().filter(|row| row.met == Some(false)).count();
    output::line(format_args!("\n{missed} bars missed; {:.0} s in all", results.seconds));
}
