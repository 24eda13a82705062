//! `sluice-bench trace`: what traces take, and how fast they are read.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_cli::output;
use sluice_core::{AppId, PolicyConfig};
use sluice_runtime::{Volume, VolumeConfig};
use sluice_storage::null::NullStorage;
use sluice_storage::{Creator, Layout, Storage};
use sluice_trace::{Columns, Entry, Meta, Reader, Writer};

use crate::bed::Runner;
use crate::patterns::{PATTERNS, entries};
use crate::statistics::quartiles;

const BAR_BYTES: f64 = 16.0;
const BAR_READ_PER_S: f64 = 20e6;
const BAR_COST: f64 = 0.02;
/// Passes over each trace; the fastest counts, as everything that disturbs only slows down.
const PASSES: usize = 5;

/// Measures traces: bytes for an entry on the papers' workloads, entries written and read a second, and what recording costs
/// a volume.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Entries of each trace
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    entries: u64,
    /// Pairs of runs with and without recording; 0: leave that out
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pairs: u32,
}

#[derive(Serialize)]
struct Row {
    pattern: &'static str,
    entries: u64,
    bytes_per_entry: f64,
    written_per_s: f64,
    read_per_s: f64,
}

#[derive(Serialize)]
struct Recording {
    /// `null`: nothing but the scheduler, which no real volume is.
    storage: &'static str,
    /// Bytes of a request.
    len: u32,
    requests_per_s: f64,
    recorded_requests_per_s: f64,
    /// Median over the pairs of the share of throughput that recording costs.
    cost: f64,
    cost_range: [f64; 2],
    /// The middle half of the pairs.
    cost_middle: [f64; 2],
    /// Processor time of a request, of all threads together, the recorder's last bytes included.
    cpu_ns: f64,
    recorded_cpu_ns: f64,
    /// Median over the pairs of the share of processor time that recording adds: what throughput it costs where the
    /// processors are the bottleneck, less disturbed by what else runs.
    cpu_cost: f64,
    cpu_cost_middle: [f64; 2],
    dropped: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runner = Runner::new()?;
    let rows = PATTERNS
        .iter()
        .map(|pattern| runner.go_on().and_then(|()| measure(pattern, args.entries)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut recording = Vec::new();
    if args.pairs > 0 {
        for (storage, len) in [("null", 4096), ("files", 4096), ("files", 65_536)] {
            recording.push(record(&runner, storage, len, args.pairs)?);
        }
    }
    if args.json {
        let bars = bars(&rows, &recording);
        output::pretty_json(&serde_json::json!({"traces": rows, "recording": recording, "bars": bars}))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&rows, &recording);
    Ok(ExitCode::SUCCESS)
}

fn print(rows: &[Row], recording: &[Recording]) {
    output::line(
        "traces of 4 applications of 16 processes, requests of 32 KiB, 4 targets, arrivals random to the nanosecond\n",
    );
    output::line(format_args!("{:<18} {:>11} {:>12} {:>12}", "pattern", "bytes/entry", "written M/s", "read M/s"));
    for row in rows {
        let [written, read] = [row.written_per_s, row.read_per_s].map(|per_s| per_s / 1e6);
        output::line(format_args!("{:<18} {:>11.2} {written:>12.1} {read:>12.1}", row.pattern, row.bytes_per_entry));
    }
    let bars = || bars(rows, recording).iter().for_each(|bar| output::line(bar.to_string()));
    if recording.is_empty() {
        output::line("");
        return bars();
    }
    output::line(
        "\nrecording a volume written by 2 threads under hbrr, pairs of runs; the null storage does nothing\n",
    );
    output::line(format_args!(
        "{:<8} {:>8} {:>12} {:>12} {:>8} {:>14} {:>16} {:>8} {:>14} {:>6}",
        "storage",
        "bytes",
        "k/s without",
        "k/s with",
        "cost %",
        "middle half",
        "cpu ns/request",
        "more %",
        "middle half",
        "lost"
    ));
    let percent = |[from, to]: [f64; 2]| format!("{:.1}..{:.1}", from * 100.0, to * 100.0);
    for row in recording {
        let [without, with] = [row.requests_per_s, row.recorded_requests_per_s].map(|per_s| per_s / 1e3);
        output::line(format_args!(
            "{:<8} {:>8} {without:>12.1} {with:>12.1} {:>8.1} {:>14} {:>16} {:>8.1} {:>14} {:>6}",
            row.storage,
            row.len,
            row.cost * 100.0,
            percent(row.cost_middle),
            format!("{:.0}..{:.0}", row.cpu_ns, row.recorded_cpu_ns),
            row.cpu_cost * 100.0,
            percent(row.cpu_cost_middle),
            row.dropped
        ));
    }
    output::line("");
    bars();
}

/// What is asked for, and what came of it.
#[derive(Serialize)]
struct Bar {
    what: &'static str,
    /// At least or at most.
    bar: f64,
    /// The worst row.
    worst: f64,
    unit: &'static str,
    met: bool,
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bar { what, bar, worst, unit, met } = self;
        write!(f, "bar: {what} {bar} {unit}: {} ({worst:.1})", if *met { "met" } else { "MISSED" })
    }
}

fn bars(rows: &[Row], recording: &[Recording]) -> Vec<Bar> {
    let most = rows.iter().map(|row| row.bytes_per_entry).fold(0.0, f64::max);
    let slowest = rows.iter().map(|row| row.read_per_s).fold(f64::INFINITY, f64::min);
    let files = recording.iter().filter(|row| row.storage == "files").map(|row| row.cost);
    let mut bars = vec![
        Bar { what: "an entry takes at most", bar: BAR_BYTES, worst: most, unit: "bytes", met: most <= BAR_BYTES },
        Bar {
            what: "entries are read at",
            bar: BAR_READ_PER_S / 1e6,
            worst: slowest / 1e6,
            unit: "million a second or more",
            met: slowest >= BAR_READ_PER_S,
        },
    ];
    if let Some(cost) = files.max_by(f64::total_cmp) {
        let what = "recording costs a volume of files at most";
        let (bar, worst) = (BAR_COST * 100.0, cost * 100.0);
        bars.push(Bar { what, bar, worst, unit: "% of its throughput", met: cost <= BAR_COST });
    }
    bars
}

fn measure(pattern: &'static str, count: u64) -> anyhow::Result<Row> {
    let all: Vec<Entry> = entries(pattern, count, 1).collect();
    let files = all.iter().map(|entry| entry.file).max().unwrap_or_default() + 1;
    let (mut bytes, mut write_s, mut read_s) = (Vec::new(), f64::MAX, f64::MAX);
    for _ in 0..PASSES {
        bytes.clear();
        let start = Instant::now();
        let mut writer = Writer::new(&mut bytes, &Meta::default())?;
        for file in 0..files {
            writer.file(format!("run/data.{file:05}").as_bytes())?;
        }
        all.iter().try_for_each(|entry| writer.push(*entry))?;
        writer.finish(0)?.flush()?;
        write_s = write_s.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let (mut reader, mut block, mut read, mut sum) = (Reader::new(&bytes[..])?, Columns::default(), 0, 0_u64);
        while reader.next_block(&mut block)? {
            read += block.len() as u64;
            // Each value is looked at, as a user of it would.
            sum = block.len.iter().fold(sum, |sum, &len| sum.wrapping_add(len.into()));
        }
        read_s = read_s.min(start.elapsed().as_secs_f64());
        let expected: u64 = all.iter().map(|entry| u64::from(entry.len)).sum();
        anyhow::ensure!((read, sum) == (count, expected), "what was read is not what was written");
    }
    Ok(Row {
        pattern,
        entries: count,
        bytes_per_entry: bytes.len() as f64 / count as f64,
        written_per_s: count as f64 / write_s,
        read_per_s: count as f64 / read_s,
    })
}

/// Throughput of a volume with and without recording, turn by turn.
fn record(runner: &Runner, storage: &'static str, len: u32, pairs: u32) -> anyhow::Result<Recording> {
    const RUN: Duration = Duration::from_millis(500);
    let dir = tempfile::Builder::new().prefix("sluice-bench-").tempdir()?;
    std::fs::create_dir(dir.path().join("data"))?;
    let plain: Storage = if storage == "files" {
        sluice_storage::posix::PosixStorage::open(dir.path().join("data"), Default::default())?.into()
    } else {
        NullStorage::new(Layout::single(), 1 << 40).into()
    };
    let volume = Volume::start(plain.clone(), Arc::new(()), VolumeConfig::new(PolicyConfig::parse("hbrr")?))?;
    let tree = &plain.namespace;
    let root = tree.root();
    let name = std::ffi::OsStr::new("1");
    let file = match tree.lookup(&root, name) {
        Ok(node) => tree.open(&node, libc::O_RDWR)?,
        Err(_) => tree.create(&root, name, 0o600, libc::O_RDWR, &Creator::process())?.1,
    };
    let load = || -> anyhow::Result<(f64, f64)> {
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        let done: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2_u64)
                .map(|thread| {
                    let (volume, file, stop) = (&volume, &file, &stop);
                    scope.spawn(move || -> std::io::Result<u64> {
                        let (data, mut n) = (vec![1; len as usize], 0);
                        while !stop.load(Ordering::Relaxed) {
                            let offset = (thread * 64 + n % 64) * u64::from(len);
                            volume.write_at(file, AppId(thread as u32), offset, &data)?;
                            n += 1;
                        }
                        Ok(n)
                    })
                })
                .collect();
            std::thread::sleep(RUN);
            stop.store(true, Ordering::Relaxed);
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a writer does not panic"))
                .sum::<std::io::Result<u64>>()
        })?;
        Ok((done as f64, start.elapsed().as_secs_f64()))
    };
    load()?; // warm
    let plain = || -> anyhow::Result<Run> {
        let cpu = cpu_time();
        let (requests, seconds) = load()?;
        Ok(Run { requests, seconds, cpu: cpu_time() - cpu })
    };
    let mut dropped = 0;
    let mut recorded = || -> anyhow::Result<Run> {
        let cpu = cpu_time();
        volume.start_recording(&dir.path().join("trace"), "bench")?;
        let (requests, seconds) = load()?;
        dropped += volume.stop_recording()?.dropped;
        Ok(Run { requests, seconds, cpu: cpu_time() - cpu })
    };
    let mut runs = Vec::new();
    for pair in 0..pairs {
        runner.go_on()?;
        // In turn, so that what changes slowly hits both.
        runs.push(if pair % 2 == 0 {
            let off = plain()?;
            (off, recorded()?)
        } else {
            let on = recorded()?;
            (plain()?, on)
        });
    }
    let of = |value: &dyn Fn(&(Run, Run)) -> f64| quartiles(runs.iter().map(value).collect());
    let cost = of(&|(off, on)| 1.0 - on.per_s() / off.per_s());
    let cpu_cost = of(&|(off, on)| on.cpu_of_one() / off.cpu_of_one() - 1.0);
    Ok(Recording {
        storage,
        len,
        requests_per_s: of(&|(off, _)| off.per_s())[2],
        recorded_requests_per_s: of(&|(_, on)| on.per_s())[2],
        cost: cost[2],
        cost_range: [cost[0], cost[4]],
        cost_middle: [cost[1], cost[3]],
        cpu_ns: of(&|(off, _)| off.cpu_of_one())[2] * 1e9,
        recorded_cpu_ns: of(&|(_, on)| on.cpu_of_one())[2] * 1e9,
        cpu_cost: cpu_cost[2],
        cpu_cost_middle: [cpu_cost[1], cpu_cost[3]],
        dropped,
    })
}

/// A run, with or without recording.
struct Run {
    requests: f64,
    seconds: f64,
    /// Processor time, in seconds.
    cpu: f64,
}

impl Run {
    fn per_s(&self) -> f64 {
        self.requests / self.seconds
    }

    fn cpu_of_one(&self) -> f64 {
        self.cpu / self.requests
    }
}

/// Processor time of this process so far, in seconds.
fn cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
