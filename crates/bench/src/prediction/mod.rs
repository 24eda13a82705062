//! `sluice-bench prediction`: the same workloads with and without prediction, on emulated disks.

mod draw;
mod measure;
mod sample;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::Serialize;
use sluice_cli::output;
use sluice_cli::predict::{Options, Predictions, Source};
use sluice_core::{AppId, EngineConfig, Op, PolicyConfig};
use sluice_notation::counted;
use sluice_runtime::{Volume, VolumeConfig};
use sluice_storage::emulated::Emulated;
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::{FileRef, Storage};

use crate::statistics::median;

/// Applications.
const APPS: u64 = 4;
/// Computing between two requests of a process, without jitter.
const COMPUTE: Duration = Duration::from_millis(20);
const LEN: u64 = 32 << 10;
/// Of a file-per-process request, which goes to the scheduler in pieces.
const LARGE: u64 = 256 << 10;
const PIECE: u32 = 64 << 10;
/// Cases of the sample, if nothing is said.
const SAMPLE: u64 = 200;
const JITTERS: [u32; 7] = [0, 5, 10, 20, 30, 40, 50];
/// Jitter of the table, in percent.
const USUAL: u32 = 5;

/// Measures what predictions from two earlier runs do, on an emulated disk, with real threads, files and waiting.
///
/// 4 applications of 16 processes work in steps: together the processes of an application begin to compute for about 20 ms,
/// do a request each, and wait for each other. With jitter, each time shorter or longer by
/// up to so many percent, differently in each run. Two runs are recorded, then runs with and without prediction from them
/// alternate. Also: predictions that know none of the files, and such that know them from another program.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("sampled").multiple(true).args(["sample", "case", "no_anticipation"])
    .conflicts_with_all(["policy", "pattern", "processes", "steps", "repetitions", "in_flight", "part"]))]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only these algorithms [default: all that aggregate]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<String>,
    /// Only these patterns [default: all]
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',', hide_default_value = true,
        default_values_t = PATTERNS)]
    pattern: Vec<Pattern>,
    /// Processes of each application
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..=64))]
    processes: u64,
    /// Requests of each process
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=1000))]
    steps: u64,
    /// Pairs of runs in each cell; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: u32,
    /// Batches at the disk at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// What to measure: the table of algorithms, the sweep of jitter, or the cost of predictions that are of no use
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Table, Part::Jitter, Part::Useless])]
    part: Vec<Part>,
    /// Start of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead: so many workloads on devices drawn at random from the seed, simulated with and without prediction
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    sample: Option<u64>,
    /// Of the sample, of 200 if nothing is said: these cases alone, and their scenarios
    #[arg(long, value_name = "N", value_delimiter = ',')]
    case: Vec<u64>,
    /// Of the sample: hard disks never idle for a stream, as a mount's would by itself
    #[arg(long)]
    no_anticipation: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    Table,
    Jitter,
    Useless,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Pattern {
    /// One file for each application; its processes take turns record by record.
    Strided,
    /// One file for each application; each process has a contiguous stretch of it.
    Contiguous,
    /// A file for each process; requests of 256 KiB, in pieces of 64 KiB.
    FilePerProcess,
}

const PATTERNS: [Pattern; 3] = [Pattern::Strided, Pattern::Contiguous, Pattern::FilePerProcess];

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Pattern::Strided => "strided",
            Pattern::Contiguous => "contiguous",
            Pattern::FilePerProcess => "file-per-process",
        }
    }
}

/// What is measured under which circumstances.
#[derive(Clone, Debug, Serialize)]
struct Cell {
    policy: &'static str,
    pattern: Pattern,
    op: &'static str,
    /// In percent.
    jitter: u32,
    /// `same program`, `unknown files`, or `another program`.
    predicted_from: &'static str,
    without: Measured,
    with: Measured,
    /// Median over the pairs of the makespan with prediction over that without.
    makespan_ratio: f64,
    makespan_ratio_range: [f64; 2],
    aggregation_ratio: f64,
    /// Of the last run with prediction.
    linked_share: f64,
    waits: u64,
    complete: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Measured {
    makespan_s: f64,
    mean_aggregation: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = crate::bed::Runner::new()?.stop;
    if let Some(sample) = args.sample.or((args.no_anticipation || !args.case.is_empty()).then_some(SAMPLE)) {
        return sample::run(sample, args, &stop);
    }
    let policies = crate::policies(&args.policy, |info| info.aggregates)?;
    if let Some(other) = policies.iter().find(|policy| !policy.info().aggregates) {
        bail!("--policy {}: it does not aggregate, and uses no predictions", other.name());
    }
    let plan = plan(args, &policies);
    if plan.is_empty() {
        bail!("nothing to measure: the sweep of jitter is of the pattern strided alone");
    }
    let progress = output::bar(plan.len() as u64, "{bar:40} {pos}/{len} cells, {eta} left  {msg}");
    let bed = Bed::make(args)?;
    let mut cells = Vec::new();
    for wanted in &plan {
        progress.set_message(format!("{} {}", wanted.policy.name(), wanted.pattern.name()));
        let Some(cell) = bed.cell(wanted, args, &stop)? else {
            output::tell("interrupted; everything the benchmark made is removed");
            return Ok(ExitCode::from(130));
        };
        cells.push(cell);
        progress.inc(1);
    }
    progress.finish_and_clear();
    if args.json {
        output::pretty_json(&serde_json::json!({
            "emulated": true, "model": bed.model, "processes": args.processes * APPS, "steps": args.steps,
            "in_flight": args.in_flight, "repetitions": args.repetitions, "cells": cells,
        }))?;
    } else {
        print(args, bed.model, &cells);
    }
    Ok(ExitCode::SUCCESS)
}

/// A cell to be measured.
struct Wanted {
    policy: PolicyConfig,
    pattern: Pattern,
    op: Op,
    jitter: u32,
    from: &'static str,
}

const SAME: &str = "same program";
const UNKNOWN: &str = "unknown files";
const ANOTHER: &str = "another program";

fn plan(args: &Args, policies: &[PolicyConfig]) -> Vec<Wanted> {
    let mut plan = Vec::new();
    let wanted =
        |policy: &PolicyConfig, pattern, op, jitter, from| Wanted { policy: policy.clone(), pattern, op, jitter, from };
    for policy in policies.iter().filter(|_| args.part.contains(&Part::Table)) {
        for pattern in PATTERNS {
            for op in [Op::Write, Op::Read] {
                plan.push(wanted(policy, pattern, op, USUAL, SAME));
            }
        }
    }
    let few: Vec<_> = policies.iter().take(2).collect();
    for policy in few.iter().filter(|_| args.part.contains(&Part::Jitter)) {
        for jitter in JITTERS {
            plan.push(wanted(policy, Pattern::Strided, Op::Write, jitter, SAME));
        }
    }
    for policy in few.iter().filter(|_| args.part.contains(&Part::Useless)) {
        for pattern in PATTERNS {
            for from in [UNKNOWN, ANOTHER] {
                plan.push(wanted(policy, pattern, Op::Write, USUAL, from));
            }
        }
    }
    plan.retain(|wanted| args.pattern.contains(&wanted.pattern));
    plan
}

/// The files, with and without the emulated disk.
struct Bed {
    disk: Storage,
    model: &'static str,
    dir: tempfile::TempDir,
}

/// One run of the applications.
struct Load<'a> {
    files: &'a [FileRef],
    pattern: Pattern,
    op: Op,
    jitter: f64,
    processes: u64,
    steps: u64,
    seed: u64,
}

impl Bed {
    fn make(args: &Args) -> anyhow::Result<Bed> {
        let model = "hdd-7200";
        let dir = tempfile::Builder::new().prefix("sluice-bench-").tempdir()?;
        std::fs::create_dir(dir.path().join("data"))?;
        let plain: Storage = PosixStorage::open(dir.path().join("data"), PosixOptions::default())?.into();
        let disk = plain.wrapped(|data| Emulated::new(data, model, args.seed))?;
        Ok(Bed { disk, model, dir })
    }

    /// The files of a pattern, made or opened, as large as they will be.
    fn files(&self, pattern: Pattern, prefix: &str, args: &Args) -> anyhow::Result<Vec<FileRef>> {
        let (count, size) = match pattern {
            Pattern::FilePerProcess => (APPS * args.processes, args.steps * LARGE),
            _ => (APPS, args.processes * args.steps * LEN),
        };
        let tree = &self.disk.namespace;
        let root = tree.root();
        let open = |number: u64| -> anyhow::Result<FileRef> {
            let name = format!("{prefix}-{}-{number}", pattern.name());
            let path = self.dir.path().join("data").join(&name);
            if !path.exists() {
                std::fs::write(&path, vec![1; size as usize]).with_context(|| path.display().to_string())?;
            }
            Ok(tree.open(&tree.lookup(&root, OsStr::new(&name))?, libc::O_RDWR)?)
        };
        (0..count).map(open).collect()
    }

    fn volume(&self, wanted: &Wanted, args: &Args) -> anyhow::Result<Volume<()>> {
        let mut config = VolumeConfig::new(wanted.policy.clone());
        config.engine = EngineConfig { in_flight_max: args.in_flight, ..config.engine };
        config.request_bytes_max = PIECE;
        Ok(Volume::start(self.disk.clone(), Arc::new(()), config)?)
    }

    /// All pairs of a cell; `None` if interrupted.
    fn cell(&self, wanted: &Wanted, args: &Args, stop: &AtomicBool) -> anyhow::Result<Option<Cell>> {
        let volume = self.volume(wanted, args)?;
        let files = self.files(wanted.pattern, "same", args)?;
        let mut traces: Vec<PathBuf> = Vec::new();
        for run in 0..2 {
            let path = self.dir.path().join(format!("run{run}.slt"));
            volume.start_recording(&path, "bench")?;
            match wanted.from {
                UNKNOWN => {
                    let others = self.files(wanted.pattern, "other", args)?;
                    Load::new(&others, wanted, args, run).run(&volume)?;
                }
                // The same files in other orders: what one process reads or writes another one did.
                ANOTHER => Load::new(&files, wanted, args, run).backwards(&volume)?,
                _ => _ = Load::new(&files, wanted, args, run).run(&volume)?,
            }
            volume.stop_recording()?;
            traces.push(path);
        }
        let predictions = Predictions::default();
        let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let mut status = None;
        for pair in 0..args.repetitions {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let load = Load::new(&files, wanted, args, 10 + u64::from(pair));
            let plain = |predictions: &Predictions| -> anyhow::Result<Measured> {
                predictions.set(&volume, &Source::Off, &Options::default())?;
                load.run(&volume)
            };
            let predicted = |predictions: &Predictions| -> anyhow::Result<Measured> {
                let options = Options { model: Some(self.model.to_owned()), ..Options::default() };
                predictions.set(&volume, &Source::Files(traces.clone()), &options)?;
                load.run(&volume)
            };
            let (a, b) = if pair % 2 == 0 {
                let a = plain(&predictions)?;
                (a, predicted(&predictions)?)
            } else {
                let b = predicted(&predictions)?;
                status = predictions.status();
                (plain(&predictions)?, b)
            };
            status = predictions.status().or(status);
            ratios.push(b.makespan_s / a.makespan_s);
            without.push(a);
            with.push(b);
        }
        let status = status.unwrap_or_default();
        let middle =
            |runs: &[Measured], of: fn(&Measured) -> f64| median(&mut runs.iter().map(of).collect::<Vec<_>>()).0;
        let [without, with] = [without, with].map(|runs| Measured {
            makespan_s: middle(&runs, |run| run.makespan_s),
            mean_aggregation: middle(&runs, |run| run.mean_aggregation),
        });
        let (makespan_ratio, makespan_ratio_range) = median(&mut ratios);
        Ok(Some(Cell {
            policy: wanted.policy.name(),
            pattern: wanted.pattern,
            op: ["read", "write"][wanted.op.index()],
            jitter: wanted.jitter,
            predicted_from: wanted.from,
            without,
            with,
            makespan_ratio,
            makespan_ratio_range,
            aggregation_ratio: with.mean_aggregation / without.mean_aggregation,
            linked_share: status.linked as f64 / status.known.max(1) as f64,
            waits: status.waits,
            complete: status.complete,
        }))
    }
}

impl<'a> Load<'a> {
    fn new(files: &'a [FileRef], wanted: &Wanted, args: &Args, run: u64) -> Load<'a> {
        Load {
            files,
            pattern: wanted.pattern,
            op: wanted.op,
            jitter: f64::from(wanted.jitter) / 100.0,
            processes: args.processes,
            steps: args.steps,
            seed: args.seed.wrapping_mul(1000).wrapping_add(run),
        }
    }

    fn run(&self, volume: &Volume<()>) -> anyhow::Result<Measured> {
        self.execute(volume, false)
    }

    /// Every process does what it does from its end to its beginning, and is another one.
    fn backwards(&self, volume: &Volume<()>) -> anyhow::Result<()> {
        self.execute(volume, true).map(drop)
    }

    fn execute(&self, volume: &Volume<()>, backwards: bool) -> anyhow::Result<Measured> {
        let before = volume.snapshot().runtime.total.total();
        let barrier = Barrier::new((APPS * self.processes) as usize + 1);
        let together: Vec<Barrier> = (0..APPS).map(|_| Barrier::new(self.processes as usize)).collect();
        let makespan_s = std::thread::scope(|scope| -> anyhow::Result<f64> {
            let processes: Vec<_> = (0..APPS * self.processes)
                .map(|process| {
                    let (barrier, together) = (&barrier, &together[(process / self.processes) as usize]);
                    scope.spawn(move || self.process(volume, process, (barrier, together), backwards))
                })
                .collect();
            barrier.wait();
            let start = Instant::now();
            for process in processes {
                process.join().expect("a process of the load does not panic")?;
            }
            Ok(start.elapsed().as_secs_f64())
        })?;
        let after = volume.snapshot().runtime.total.total();
        let (requests, batches) = (after.batched_requests - before.batched_requests, after.batches - before.batches);
        Ok(Measured { makespan_s, mean_aggregation: requests as f64 / batches.max(1) as f64 })
    }

    fn process(
        &self,
        volume: &Volume<()>,
        process: u64,
        (barrier, together): (&Barrier, &Barrier),
        backwards: bool,
    ) -> std::io::Result<()> {
        let (app, rank) = (process / self.processes, process % self.processes);
        let mut random = (self.seed.wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (process << 32 | 0x5EED);
        let len = if self.pattern == Pattern::FilePerProcess { LARGE } else { LEN };
        let (mut data, mut result) = (vec![2; len as usize], Ok(()));
        barrier.wait();
        for step in 0..self.steps {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
            // The processes of an application begin each step together, as time-step programs do.
            together.wait();
            std::thread::sleep(COMPUTE.mul_f64(1.0 + self.jitter * (2.0 * unit - 1.0)));
            let (step, rank) =
                if backwards { (self.steps - 1 - step, (rank * 7 + step) % self.processes) } else { (step, rank) };
            let (file, block) = match self.pattern {
                Pattern::Strided => (app, step * self.processes + rank),
                Pattern::Contiguous => (app, rank * self.steps + step),
                Pattern::FilePerProcess => (app * self.processes + rank, step),
            };
            let (file, app) = (&self.files[file as usize], AppId(app as u32));
            // After an error the others still wait for this one in each step.
            result = result.and_then(|()| match self.op {
                Op::Read => volume.read_at(file, app, block * len, &mut data).map(drop),
                Op::Write => volume.write_at(file, app, block * len, &data).map(drop),
            });
        }
        result
    }
}

fn print(args: &Args, model: &str, cells: &[Cell]) {
    let all = APPS * args.processes;
    output::line(format_args!(
        "emulated {model}, {all} processes of {APPS} applications, {} each, {} at the disk; medians of {}\n",
        counted(args.steps, "request"),
        counted(args.in_flight as u64, "batch"),
        args.repetitions
    ));
    output::line(format_args!(
        "{:<8} {:<17} {:<6} {:>6} {:<16} {:>9} {:>9} {:>15} {:>15} {:>7} {:>14}",
        "policy",
        "pattern",
        "op",
        "jitter",
        "predicted from",
        "without s",
        "with s",
        "makespan",
        "aggregation",
        "linked",
        "complete/waits"
    ));
    for cell in cells {
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let [low, high] = cell.makespan_ratio_range.map(percent);
        output::line(format_args!(
            "{:<8} {:<17} {:<6} {:>5}% {:<16} {:>9.3} {:>9.3} {:>+5.0}% {:>9} {:>4.1}->{:<4.1}{:>+5.0}% {:>6.0}% {:>14}",
            cell.policy,
            cell.pattern.name(),
            cell.op,
            cell.jitter,
            cell.predicted_from,
            cell.without.makespan_s,
            cell.with.makespan_s,
            percent(cell.makespan_ratio),
            format!("{low:+.0}..{high:+.0}"),
            cell.without.mean_aggregation,
            cell.with.mean_aggregation,
            percent(cell.aggregation_ratio),
            cell.linked_share * 100.0,
            format!("{}/{}", cell.complete, cell.waits),
        ));
    }
    let whole: Vec<&Cell> = cells.iter().filter(|cell| cell.predicted_from == SAME && cell.jitter == USUAL).collect();
    if !whole.is_empty() {
        output::line("");
    }
    for op in ["write", "read"] {
        let of_op: Vec<&Cell> = whole.iter().copied().filter(|cell| cell.op == op).collect();
        let strided: Vec<&Cell> = of_op.iter().copied().filter(|cell| cell.pattern == Pattern::Strided).collect();
        for (of, what) in [(of_op, "all patterns"), (strided, "strided alone")] {
            if of.is_empty() {
                continue;
            }
            let mean =
                |value: &dyn Fn(&Cell) -> f64| of.iter().map(|cell| value(cell)).sum::<f64>() / of.len() as f64 * 100.0;
            output::line(format_args!(
                "{op}s, mean of {what}: throughput {:+.1} %, aggregation {:+.1} %",
                mean(&|cell| 1.0 / cell.makespan_ratio - 1.0),
                mean(&|cell| cell.aggregation_ratio - 1.0)
            ));
        }
    }
}
