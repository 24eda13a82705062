//! `sluice-bench emulation`: how exactly emulated devices keep their times.

use serde::Serialize;
use sluice_cli::output;
use sluice_storage::emulated::{Emulated, TimerError};
use sluice_storage::null::NullStorage;
use sluice_storage::{Data, Layout, Namespace};
use std::io::IoSliceMut;
use std::process::ExitCode;
use std::sync::Arc;

/// Callers at a time.
const THREADS: [u64; 3] = [1, 8, 64];
const BAR_NS: u64 = 100_000;

/// Measures how much later than due the calls on an emulated device return (random reads of 8 KiB, a null storage below).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Device model: a shipped one's name, or a file.
    #[arg(long, default_value = "hdd-7200")]
    model: String,
    /// Reads for each number of callers.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(64..=1_000_000))]
    reads: u64,
}

#[derive(Serialize)]
struct Row {
    threads: u64,
    reads: u64,
    timer_error: TimerError,
    overruns: u64,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rows = THREADS.iter().map(|&threads| measure(&args, threads)).collect::<anyhow::Result<Vec<_>>>()?;
    if args.json {
        output::pretty_json(&serde_json::json!({"model": args.model, "emulated": true, "rows": rows}))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format_args!("emulated {}: how late calls return, in microseconds\n", args.model));
    output::line(format_args!(
        "{:>7} {:>6} {:>8} {:>8} {:>8} {:>9}",
        "threads", "reads", "p50", "p99", "max", "overruns"
    ));
    for row in &rows {
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        let e = row.timer_error;
        output::line(format_args!(
            "{:>7} {:>6} {:>8} {:>8} {:>8} {:>9}",
            row.threads,
            row.reads,
            us(e.p50_ns),
            us(e.p99_ns),
            us(e.max_ns),
            row.overruns
        ));
    }
    let met = rows.iter().all(|row| row.timer_error.p50_ns < BAR_NS);
    output::line(format_args!("\nbar: median below {} us: {}", BAR_NS / 1_000, if met { "met" } else { "MISSED" }));
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args, threads: u64) -> anyhow::Result<Row> {
    let null = Arc::new(NullStorage::new(Layout::single(), 1 << 40));
    let file = null.open(&null.lookup(&null.root(), "1".as_ref())?, libc::O_RDWR)?;
    let storage = Emulated::new(null, &args.model, 1)?;
    let each = args.reads / threads;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|thread| {
                let (storage, file) = (&storage, &file);
                scope.spawn(move || {
                    let mut memory = [0; 8192];
                    (0..each).try_for_each(|n| {
                        let offset = (thread * 7_919 + n * 104_729) % 100_000 * 8_192;
                        storage.read(file, 0, offset, &mut [IoSliceMut::new(&mut memory)]).map(|_| ())
                    })
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })?;
    let stats = storage.device_stats()[0];
    Ok(Row { threads, reads: stats.requests, timer_error: stats.timer, overruns: stats.overruns })
}
