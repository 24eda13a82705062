//! `sluice-bench against-fio`: the profiler's times next to fio's, on the same file.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;

use anyhow::{Context, bail};
use serde::Serialize;
use sluice_cli::output;
use sluice_cli::profile::file::{Failure, FileTarget, Name, room};
use sluice_cli::profile::{bytes, is_emulated};
use sluice_device::profiler::{Burst, Order, TESTS, Target, Test};
use sluice_notation::show_size;

use crate::statistics::median;

/// Pairs of runs for each test and size; fio goes first in every other.
const PAIRS: usize = 25;
/// How long a run takes.
const RUN_NS: u64 = 300_000_000;
const SIZES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// How far the two may be apart.
const BAR: f64 = 0.10;
/// Of the file, unless the user says another.
const FILE_BYTES: u64 = 512 << 20;

/// Compares the profiler's times with fio's, by turns on the same temporary file.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory on the storage to measure
    path: PathBuf,
    /// Measure just these request sizes [default: 4K,64K,1M]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = bytes)]
    sizes: Option<Vec<u64>>,
    /// Size of the temporary file [default: 512M]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    file_size: Option<u64>,
    /// Start of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    test: &'static str,
    size_bytes: u64,
    /// Mean nanoseconds for a request, median over the runs.
    sluice_ns: f64,
    fio_ns: f64,
    /// Median over the pairs of one over the other, and the least and largest.
    ratio: f64,
    ratio_range: [f64; 2],
}

/// Runs both by turns and prints what each found.
///
/// # Errors
/// If there is no fio, or the file cannot be made.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_err() {
        bail!("fio is not installed; it is what the profiler is compared with");
    }
    let stop = crate::bed::Runner::new()?.stop;
    let bytes = args.file_size.unwrap_or(FILE_BYTES);
    if bytes > room(&args.path)? {
        bail!("{}: too little room for the file; see --file-size", args.path.display());
    }
    let mut target = FileTarget::create(&args.path, bytes, Name::Kept, stop.clone())?;
    let result = compare(&mut target, args);
    target.remove()?;
    let rows = match result {
        _ if stop.load(Ordering::Relaxed) => {
            output::tell("interrupted; the temporary file is removed");
            return Ok(ExitCode::from(130));
        }
        result => result?,
    };
    print(&rows, args, is_emulated(&args.path), target.warning())?;
    Ok(ExitCode::SUCCESS)
}

fn compare(target: &mut FileTarget, args: &Args) -> anyhow::Result<Vec<Row>> {
    let failed = |failure: Failure| match failure {
        Failure::Stopped => sluice_cli::interrupt::Interrupted.into(),
        Failure::Io(error) => anyhow::Error::new(error),
    };
    let named = target.file_path().context("the file has no name")?;
    target.prepare().map_err(failed)?;
    let sizes = args.sizes.clone().unwrap_or_else(|| SIZES.to_vec());
    let mut rows = Vec::new();
    for (test, size) in TESTS.iter().flat_map(|test| sizes.iter().map(move |size| (*test, *size))) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for pair in 0..PAIRS {
            let seed = args.seed ^ (pair as u64) << 32 ^ size;
            let mut own = || -> anyhow::Result<f64> {
                let burst = Burst::for_time(test, size, target.file_bytes(), RUN_NS, seed);
                let outcome = target.run(&burst).map_err(failed)?;
                let sum: u64 = outcome.latencies_ns.iter().sum();
                Ok(sum as f64 / outcome.latencies_ns.len().max(1) as f64)
            };
            if pair % 2 == 0 {
                theirs.push(fio(&named, test, size, seed)?);
                ours.push(own()?);
            } else {
                ours.push(own()?);
                theirs.push(fio(&named, test, size, seed)?);
            }
        }
        let mut ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(own, fio)| own / fio).collect();
        let (ratio, ratio_range) = median(&mut ratios);
        let (sluice_ns, fio_ns) = (median(&mut ours).0, median(&mut theirs).0);
        rows.push(Row { test: test.name(), size_bytes: size, sluice_ns, fio_ns, ratio, ratio_range });
    }
    Ok(rows)
}

/// Nanoseconds for a request, by fio.
fn fio(file: &Path, test: Test, size: u64, seed: u64) -> anyhow::Result<f64> {
    let (op, name) = match (test.op, test.order) {
        (sluice_device::Op::Read, Order::Sequential) => ("read", "read"),
        (sluice_device::Op::Read, Order::Random) => ("read", "randread"),
        (_, Order::Sequential) => ("write", "write"),
        (_, Order::Random) => ("write", "randwrite"),
    };
    let mut command = Command::new("fio");
    command.args(["--name=sluice", "--direct=1", "--ioengine=psync", "--iodepth=1", "--thread", "--norandommap"]);
    command.args(["--time_based", "--invalidate=0", "--fallocate=none", "--overwrite=1", "--output-format=json"]);
    command.arg(format!("--runtime={}ms", RUN_NS / 1_000_000)).arg(format!("--rw={name}")).arg(format!("--bs={size}"));
    command.arg(format!("--randseed={seed}")).arg("--filename").arg(file);
    let output = command.stdin(Stdio::null()).output().context("fio cannot be started")?;
    if !output.status.success() {
        bail!("fio: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    // Notes come before the JSON.
    let text = String::from_utf8_lossy(&output.stdout);
    let begin = text.find('{').context("fio printed no JSON")?;
    let json: serde_json::Value = serde_json::from_str(&text[begin..]).context("fio's JSON is not understood")?;
    let job = &json["jobs"][0][op];
    // Of the system call, as the profiler measures it: what fio does in between is not the device's.
    match job["clat_ns"]["mean"].as_f64() {
        Some(mean) if mean > 0.0 => Ok(mean),
        _ => bail!("fio did no requests"),
    }
}

fn print(rows: &[Row], args: &Args, emulated: bool, warning: Option<String>) -> anyhow::Result<()> {
    let within = rows.iter().all(|row| (row.ratio - 1.0).abs() <= BAR);
    if args.json {
        output::pretty_json(&serde_json::json!({"emulated": emulated, "rows": rows, "within": within, "bar": BAR}))?;
    } else {
        if emulated {
            output::line("the devices are emulated");
        }
        let head = format!("{:<18}{:>9}{:>12}{:>12}{:>8}", "test", "size", "sluice us", "fio us", "ratio");
        output::line(format_args!("{head}  (lowest to highest pair)"));
        for row in rows {
            output::line(format_args!(
                "{:<18}{:>9}{:>12.1}{:>12.1}{:>8.3}  ({:.3} to {:.3})",
                row.test,
                show_size(row.size_bytes as f64),
                row.sluice_ns / 1e3,
                row.fio_ns / 1e3,
                row.ratio,
                row.ratio_range[0],
                row.ratio_range[1],
            ));
        }
        let verdict = if within { "met" } else { "MISSED" };
        output::line(format_args!("\nbar: medians within {:.0} %: {verdict}", BAR * 100.0));
    }
    if let Some(warning) = warning {
        output::tell(format_args!("warning: {warning}"));
    }
    Ok(())
}
