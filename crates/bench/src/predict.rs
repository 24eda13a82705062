//! `sluice-bench predict`: how long the traces of earlier runs take to become predictions, and their memory.

use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use sluice_adapt::predictor::{Aggregations, Combiner, Settings, default_time_to_process, estimate_alpha};
use sluice_cli::output;
use sluice_notation::counted;
use sluice_trace::{Meta, Reader, Writer};

use crate::allocations;
use crate::bed::Runner;
use crate::patterns::{PATTERNS, entries};

const BAR_S: f64 = 5.0;
const BAR_BYTES: f64 = 64.0;

/// Measures the set-up of predictions: traces of several runs of an application are read from files, combined, and their
/// aggregations computed, on one core.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Runs
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    traces: u32,
    /// Entries of each run's trace
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    entries: u64,
    /// strided, contiguous, file-per-process
    #[arg(long, value_name = "NAME", default_value = "file-per-process", value_parser = PATTERNS)]
    pattern: String,
}

#[derive(Serialize)]
struct Report {
    pattern: &'static str,
    traces: u32,
    entries: u64,
    seconds: f64,
    /// Of these, for reading and combining.
    combine_seconds: f64,
    /// Most memory at any time of the set-up, for each entry.
    bytes_per_entry: f64,
    /// Memory that stays, for each entry.
    bytes_per_entry_after: f64,
    predicted_requests: u64,
    paired: u64,
    aggregations: usize,
    alpha: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pattern = PATTERNS.iter().find(|pattern| **pattern == args.pattern).expect("one of them");
    let runner = Runner::new()?;
    let dir = tempfile::Builder::new().prefix("sluice-bench-").tempdir()?;
    let paths: Vec<_> = (0..args.traces).map(|run| dir.path().join(format!("run{run}.slt"))).collect();
    for (run, path) in paths.iter().enumerate() {
        let mut writer = Writer::create(path, &Meta::default())?;
        for entry in entries(pattern, args.entries, run as u64 + 1) {
            while writer.paths().len() <= entry.file as usize {
                writer.file(format!("run/data.{:05}", writer.paths().len()).as_bytes())?;
            }
            writer.push(entry)?;
        }
        writer.finish(0)?;
        runner.go_on()?;
    }
    crate::engine::stay_on_one_core();
    let (settings, ttp) = (Settings::default(), default_time_to_process());
    let before = allocations::watch_peak();
    let start = Instant::now();
    let mut combiner = Combiner::new(settings);
    combiner.reserve((args.entries * u64::from(args.traces)) as usize);
    for path in &paths {
        combiner.add(&mut Reader::open(path)?)?;
        runner.go_on()?;
    }
    let forecast = combiner.finish();
    let combine_seconds = start.elapsed().as_secs_f64();
    let alpha = estimate_alpha(&forecast, &ttp);
    let aggregations = Aggregations::new(&forecast, &settings, &ttp, alpha);
    let seconds = start.elapsed().as_secs_f64();
    let totals = forecast.totals();
    let each = |bytes: i64| (bytes - before) as f64 / totals.entries as f64;
    let report = Report {
        pattern,
        traces: args.traces,
        entries: totals.entries,
        seconds,
        combine_seconds,
        bytes_per_entry: each(allocations::peak_bytes()),
        bytes_per_entry_after: each(allocations::live_bytes()),
        predicted_requests: totals.requests,
        paired: totals.paired,
        aggregations: aggregations.list().len(),
        alpha,
    };
    if args.json {
        output::pretty_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Report { entries, predicted_requests, paired, bytes_per_entry, bytes_per_entry_after, .. } = report;
    output::line(format_args!(
        "{} of {}, {entries} entries in all, one core",
        counted(args.traces as u64, "run"),
        args.pattern
    ));
    output::line(format_args!("{seconds:.2} s, of which {combine_seconds:.2} s to read and combine"));
    output::line(format_args!("{bytes_per_entry:.1} bytes an entry at most, {bytes_per_entry_after:.1} that stay"));
    output::line(format_args!("{predicted_requests} predicted requests, {paired} of them in several runs"));
    output::line(format_args!("{} aggregations, alpha {alpha:.2}", report.aggregations));
    let met = |met: bool| if met { "met" } else { "MISSED" };
    let (fast, small) = (met(seconds <= BAR_S), met(bytes_per_entry <= BAR_BYTES));
    output::line(format_args!("\nbars (8 runs of 400,000): {BAR_S} s: {fast}; {BAR_BYTES} bytes an entry: {small}"));
    Ok(ExitCode::SUCCESS)
}
