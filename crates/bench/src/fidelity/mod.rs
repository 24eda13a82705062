//! `sluice-bench fidelity`: the simulator against Linux.
//!
//! Each situation of a committed list is run for real on disks that only their timing is emulated of: ext4, the page cache, the
//! kernel's schedulers, mounts of Sluicegate, TCP and shaped links are real. The simulator, which has models of all of these,
//! is given the same situation, and the same requests.

mod load;
mod model;
mod network;
mod real;
mod report;
mod server;
mod situations;
mod statistics;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sluice_cli::output;
use sluice_sim::{Options, simulate};

use crate::bed::{self, Runner};
use crate::random::SplitMix64;
use real::{Real, Where};
use report::{Cell, Report};
pub(crate) use server::{ServerArgs, serve};
use situations::{Host, SEED, Situation, as_toml, draw, list};

/// Longest run, in seconds.
const SECONDS_MAX: u64 = 60;

/// Compares the simulator with Linux, on emulated hard disks.
///
/// Makes block devices with `sluice disk`, ext4 on them, and runs each situation of a committed list under each of its sides: on
/// ext4 under the kernel's schedulers, through mounts of Sluicegate, or on one or four server processes over TCP with shaped
/// links. Half of the list is not looked at while the simulator is worked on, and reported apart. Needs root, FUSE, loop devices,
/// iproute2, Linux 6.2 or later, and the program `sluice` beside this one.
///
/// All of it takes about 22 minutes, with --quick 5.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long, conflicts_with = "list")]
    json: bool,
    /// 2 repetitions of 1 second instead of 5 of 3 seconds
    #[arg(long)]
    quick: bool,
    /// Show the situations, and do nothing
    #[arg(long)]
    list: bool,
    /// Print the committed list as its seed draws it, and do nothing
    #[arg(long)]
    draw: bool,
    /// Only this situation; may be given several times
    #[arg(long, value_name = "NAME")]
    situation: Vec<String>,
    /// Only the half that may be looked at
    #[arg(long)]
    seen: bool,
    /// Runs of each side, each with other random requests [default: 5; with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    repetitions: Option<u64>,
    /// Seconds of each run [default: 3; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: Option<u64>,
    /// Write what was measured to this file, situation by situation, for --from
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Simulate, and compare with what an earlier run measured; the situations, times and repetitions are that run's
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "quick", "repetitions", "seconds", "model", "seed", "dir", "sluice"])]
    from: Option<PathBuf>,
    /// The emulated device
    #[arg(long, value_name = "MODEL", default_value = "hdd-7200")]
    model: String,
    /// Where the disks' images are to be; must be faster than the device [default: that of sluice disk]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The program sluice [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// First seed of the random requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// What was measured.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    /// Of the JSON; what was written before there was one has none.
    #[serde(default)]
    schema: u32,
    /// The disks are.
    emulated: bool,
    device: String,
    seconds: u64,
    /// First seed; the next repetition has the next one.
    seed: u64,
    /// Of the machine, in bytes.
    memory: u64,
    runs: Vec<Runs>,
}

/// The real runs of a situation.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Runs {
    situation: String,
    /// For each side, in the situation's order, bytes per second of each repetition.
    bytes_per_s: Vec<Vec<f64>>,
}

/// Measures, simulates and prints.
///
/// # Errors
/// If something is missing, there are no such situations, or anything fails.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.draw {
        output::line(as_toml(&draw(SEED))?.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let situations = chosen(&args)?;
    if args.list {
        for one in &situations {
            let half = if one.unseen { "unseen" } else { "seen" };
            output::line(format_args!("{:<44}{half:<8}{}", one.name, one.sides.join(", ")));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = args.out.as_ref().filter(|path| path.is_dir()) {
        bail!("--out {}: is a directory", path.display());
    }
    let runner = Runner::new()?;
    let measured = match &args.from {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let measured: Measured =
                serde_json::from_str(&text).with_context(|| format!("{}: not written by --out", path.display()))?;
            if measured.schema > output::SCHEMA || !(1..=SECONDS_MAX).contains(&measured.seconds) {
                bail!("{}: written by another version, or damaged", path.display());
            }
            measured
        }
        None => measure(&args, &runner, &situations)?,
    };
    let cells = simulated(&measured, &situations, &runner.stop)?;
    let report = Report::new(&measured.device, measured.seconds, cells);
    if args.json {
        output::pretty_json(&report.as_json())?;
    } else {
        report.print();
    }
    Ok(ExitCode::SUCCESS)
}

/// The situations asked for.
fn chosen(args: &Args) -> anyhow::Result<Vec<Situation>> {
    let all = list()?;
    for name in &args.situation {
        if all.iter().all(|one| one.name != *name) {
            let hint = sluice_notation::hint(name, all.iter().map(|one| one.name.as_str()));
            bail!("--situation {name}: there is none{hint}; see --list");
        }
    }
    let is_wanted = |one: &Situation| {
        (args.situation.is_empty() || args.situation.contains(&one.name)) && !(args.seen && one.unseen)
    };
    let chosen: Vec<Situation> = all.into_iter().filter(is_wanted).collect();
    if chosen.is_empty() {
        bail!("--situation with --seen: none is left, the ones named are of the unseen half");
    }
    Ok(chosen)
}

/// Names everything that is missing.
fn expect_all(situations: &[Situation]) -> anyhow::Result<()> {
    let usable = |path: &str| std::fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
    let runs = |program: &str| Command::new(program).arg("-V").output().is_ok_and(|output| output.status.success());
    let tcp = situations.iter().any(|one| one.host == Host::Tcp);
    let checks = [
        (rustix::process::geteuid().is_root(), "root (sudo)"),
        (usable("/dev/loop-control"), "loop devices (modprobe loop)"),
        (usable("/dev/fuse"), "FUSE (modprobe fuse)"),
        (!tcp || runs("ip") && runs("tc"), "ip and tc (apt install iproute2)"),
    ];
    let missing: Vec<&str> = checks.iter().filter(|(there, _)| !there).map(|&(_, what)| what).collect();
    if !missing.is_empty() {
        bail!("missing here: {}", missing.join(", "));
    }
    Ok(())
}

fn measure(args: &Args, runner: &Runner, situations: &[Situation]) -> anyhow::Result<Measured> {
    expect_all(situations)?;
    let sluice = bed::program(args.sluice.as_deref())?;
    let (repetitions, seconds) = if args.quick { (2, 1) } else { (5, 3) };
    let (repetitions, seconds) = (args.repetitions.unwrap_or(repetitions), args.seconds.unwrap_or(seconds));
    let memory = memory()?;
    let sides: usize = situations.iter().map(|one| one.sides.len()).sum();
    let bar = output::bar(sides as u64 * repetitions, "{bar:40} {pos}/{len} real runs, {eta} left  {msg}");
    bar.set_message("laying out the files");
    bar.tick();
    // What the simulator refuses is not worth measuring.
    for situation in situations {
        for side in &situation.sides {
            model::scenario(situation, side, &args.model, memory, args.seed)?;
        }
    }
    let at = Where { sluice: &sluice, model: &args.model, dir: args.dir.as_deref() };
    let real = Real::new(runner, &at, situations)?;
    bar.reset_eta();
    let (device, seed) = (args.model.clone(), args.seed);
    let mut measured =
        Measured { schema: output::SCHEMA, emulated: true, device, seconds, seed, memory, runs: Vec::new() };
    // The unseen half comes last: work can begin on the other while it runs.
    for situation in by_half(situations) {
        let mut bytes_per_s = vec![Vec::new(); situation.sides.len()];
        for seed in (0..repetitions).map(|number| args.seed.wrapping_add(number)) {
            // The sides take turns, in an order drawn for each round.
            for side in SplitMix64(seed).shuffled(situation.sides.len()) {
                runner.go_on()?;
                let name = &situation.sides[side];
                bar.set_message(format!("{}, {name}", situation.name));
                let scenario = model::scenario(situation, name, &args.model, memory, seed)?;
                let value = real.run(situation, name, &scenario, Duration::from_secs(seconds));
                bytes_per_s[side].push(value.with_context(|| format!("{}, {name}", situation.name))?);
                bar.inc(1);
            }
        }
        measured.runs.push(Runs { situation: situation.name.clone(), bytes_per_s });
        if let Some(path) = &args.out {
            let text = format!("{}\n", serde_json::to_string_pretty(&measured)?);
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
        }
    }
    bar.finish_and_clear();
    Ok(measured)
}

fn by_half(situations: &[Situation]) -> impl Iterator<Item = &Situation> {
    [false, true].into_iter().flat_map(move |unseen| situations.iter().filter(move |one| one.unseen == unseen))
}

/// Bytes of this machine's memory.
fn memory() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let total = total.and_then(|number| number.trim().parse::<u64>().ok());
    Ok(total.context("/proc/meminfo: no MemTotal")? << 10)
}

/// Simulates every run that was measured, of the situations asked for.
fn simulated(measured: &Measured, situations: &[Situation], stop: &AtomicBool) -> anyhow::Result<Vec<Cell>> {
    let options = Options { until_ns: measured.seconds * 1_000_000_000, ..Options::default() };
    let mut cells = Vec::new();
    for situation in situations {
        // Of a file, perhaps not all.
        let Some(runs) = measured.runs.iter().find(|runs| runs.situation == situation.name) else { continue };
        if runs.bytes_per_s.len() != situation.sides.len() {
            bail!(
                "{}: {} sides were measured, and there are {}",
                situation.name,
                runs.bytes_per_s.len(),
                situation.sides.len()
            );
        }
        for (side, real) in situation.sides.iter().zip(&runs.bytes_per_s) {
            let mut simulated = Vec::new();
            for seed in (0..real.len() as u64).map(|number| measured.seed.wrapping_add(number)) {
                let scenario = model::scenario(situation, side, &measured.device, measured.memory, seed)?;
                let outcome = simulate(&scenario, options, stop);
                if stop.load(Ordering::Relaxed) {
                    bail!(sluice_cli::interrupt::Interrupted);
                }
                let outcome = outcome.with_context(|| format!("{}, {side}", situation.name))?;
                simulated.push(outcome.throughput());
            }
            cells.push(Cell::new(situation, side, real, simulated)?);
        }
    }
    if cells.is_empty() {
        bail!("nothing was measured of the situations asked for");
    }
    Ok(cells)
}
