//! `sluice-bench fuse`: what the scheduler costs a mount, next to the plainest pass-through.

mod pairs;
mod policies;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use sluice_cli::output;
use sluice_fuse::CacheMode;
use sluice_notation::counted;
use sluice_runtime::VolumeConfig;
use sluice_storage::Storage;
use sluice_storage::posix::{PosixOptions, PosixStorage};

use crate::bed::Runner;
use pairs::{BenchOptions, Cell, FuseBench};

/// Least throughput of the mount over the pass-through's.
const BAR: f64 = 0.95;

/// Compares a mount whose algorithm passes everything through with a FUSE pass-through without a scheduler.
///
/// Runs fio with 4 KB and 1 MB blocks, sequentially and at random, reading and writing, in pairs of short runs on the same
/// files, in random order within each pair. Some ten minutes; --quick one and a half.
///
/// Then both, and every algorithm that does not wait, side by side: 4 KB at random by 1 to 16 jobs, without a kernel cache, on
/// memory. Some eight minutes; --quick two.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to work; the files are removed in the end [default: the directory for temporary files; the algorithms: memory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Buffered I/O only, and few pairs
    #[arg(long)]
    quick: bool,
    /// Only one of the two tables: passthrough or policies
    #[arg(long, value_name = "TABLE")]
    only: Option<Table>,
    /// Kernel cache of both mounts: none, auto, writeback
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = cache_mode)]
    cache: CacheMode,
    /// Pairs of runs for each cell [default: 15; with --quick 5; the algorithms: 7 and 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Most seconds for a run [default: 1; the algorithms: 0.5, with --quick 0.25]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Megabytes of each of the two files [default: 512; with --quick 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    file_mb: Option<u32>,
    /// Start of the random numbers that order the pairs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Table {
    /// The mount next to a pass-through.
    Passthrough,
    /// Every algorithm that does not wait next to both.
    Policies,
}

fn cache_mode(text: &str) -> Result<CacheMode, String> {
    match text {
        "none" => Ok(CacheMode::None),
        "auto" => Ok(CacheMode::Auto),
        "writeback" => Ok(CacheMode::Writeback),
        _ => Err("expected none, auto or writeback".to_owned()),
    }
}

/// Measures and prints.
///
/// # Errors
/// If there is no fio, or no mount.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(dir) = args.dir.as_deref().filter(|dir| !dir.is_dir()) {
        anyhow::bail!("--dir: {} is not a directory", dir.display());
    }
    let options = BenchOptions { stop: Runner::new()?.stop, ..options(&args) };
    let mut json = serde_json::Map::new();
    if args.only != Some(Table::Policies) {
        json.append(&mut against_passthrough(&args, &options)?);
    }
    if args.only != Some(Table::Passthrough) {
        json.append(&mut each_policy(&args, &options)?);
    }
    if args.json {
        output::pretty_json(&json)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Every algorithm next to both.
fn each_policy(args: &Args, options: &BenchOptions) -> anyhow::Result<serde_json::Map<String, serde_json::Value>> {
    let report = policies::run(&policies::Options {
        dir: args.dir.as_deref(),
        rounds: args.repetitions.unwrap_or(if args.quick { 3 } else { 7 }),
        milliseconds: args.seconds.map_or(if args.quick { 250 } else { 500 }, |seconds| seconds * 1000),
        seed: args.seed,
        stop: &options.stop,
    })?;
    if !args.json {
        report.print();
    }
    Ok(report.as_json())
}

/// The mount next to a pass-through.
fn against_passthrough(
    args: &Args,
    options: &BenchOptions,
) -> anyhow::Result<serde_json::Map<String, serde_json::Value>> {
    let storage = |dir: &Path| PosixStorage::open(dir, PosixOptions::default()).map(Storage::from);
    if !args.json {
        output::line(format_args!(
            "{:<10}{:>6} {:<9}{:>12}{:>12}  ratio (lowest to highest pair)",
            "load", "block", "I/O", "sluice MB/s", "plain MB/s"
        ));
    }
    let show = |cell: &Cell| {
        if !args.json {
            output::line(row(cell));
        }
    };
    let result = pairs::run(options, storage, VolumeConfig::default(), show).map_err(|error| match error {
        pairs::BenchError::Stopped => sluice_cli::interrupt::Interrupted.into(),
        error => anyhow::Error::new(error),
    })?;
    if !args.json {
        output::line(verdict(&result));
        output::line(format_args!(
            "{}; {}; {} for each cell, seed {}",
            result.storage,
            result.setup,
            counted(options.repetitions as u64, "pair"),
            options.seed
        ));
    }
    Ok(as_json(&result, options))
}

fn options(args: &Args) -> BenchOptions {
    let mut options = BenchOptions::new(args.dir.clone().unwrap_or_else(std::env::temp_dir));
    if args.quick {
        options.direct = vec![false];
        options.repetitions = 5;
        options.file_mb = 256;
    }
    options.mount.cache = args.cache;
    options.repetitions = args.repetitions.unwrap_or(options.repetitions);
    options.seconds = args.seconds.unwrap_or(options.seconds);
    options.file_mb = args.file_mb.unwrap_or(options.file_mb);
    options.seed = args.seed;
    options
}

fn row(cell: &Cell) -> String {
    let block = if cell.block < 1 << 20 { format!("{}K", cell.block >> 10) } else { format!("{}M", cell.block >> 20) };
    let how = if cell.direct { "direct" } else { "buffered" };
    let missed = if cell.ratio < BAR { "  below the bar" } else { "" };
    format!(
        "{:<10}{block:>6} {how:<9}{:>12.1}{:>12.1}{:>10.2}{:>10.2}  {:.3} ({:.3} to {:.3}){missed}",
        cell.load,
        cell.sluice_mb_s,
        cell.plain_mb_s,
        cell.sluice_cpu_us,
        cell.plain_cpu_us,
        cell.ratio,
        cell.ratio_min,
        cell.ratio_max
    )
}

fn verdict(result: &FuseBench) -> String {
    let missed = result.cells.iter().filter(|cell| cell.ratio < BAR).count();
    match missed {
        0 => format!("All {} cells reach the bar of {BAR}.", result.cells.len()),
        n => format!("{n} of {} cells miss the bar of {BAR}.", result.cells.len()),
    }
}

fn as_json(result: &FuseBench, options: &BenchOptions) -> serde_json::Map<String, serde_json::Value> {
    let lowest = result.cells.iter().map(|cell| cell.ratio).fold(f64::INFINITY, f64::min);
    let fields = [
        ("storage", json!(result.storage)),
        ("setup", json!(result.setup)),
        ("cells", json!(result.cells)),
        ("repetitions", json!(options.repetitions)),
        ("seed", json!(options.seed)),
        ("bar", json!(BAR)),
        ("lowest_ratio", json!(lowest)),
        ("reached", json!(lowest >= BAR)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
