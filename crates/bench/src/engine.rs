//! `sluice-bench engine`: submit, dispatch and complete on one core, without any I/O.

use indicatif::ProgressBar;
use serde::Serialize;
use sluice_cli::output;
use sluice_core::{
    Anticipation, AppId, Batch, ConfigError, Engine, EngineConfig, FileId, Op, Outcome, PolicyConfig, Request,
    TargetId, Time, policy::table,
};
use sluice_notation::counted;
use std::process::ExitCode;
use std::time::Instant;

use crate::allocations;

const FILES: [u32; 3] = [1, 1_024, 102_400];
const DEPTHS: [u32; 4] = [1, 64, 4_096, 65_536];
/// Bars are about the first two.
const PATTERNS: [&str; 3] = ["sequential", "random", "mixed"];
const BLOCK: u32 = 4_096;
/// Passes over each cell in a row; the median counts.
const PASSES: usize = 5;
/// Times that all cells are measured again, in turns. The fastest counts: on a shared machine a neighbour slows the core
/// down for seconds, and nothing ever speeds it up.
const ROUNDS: usize = 3;
const BAR_NS: f64 = 250.0;
const BAR_NS_ANYWHERE: f64 = 1_000.0;
const BAR_GROWTH: f64 = 3.0;
const BAR_BYTES: f64 = 160.0;

/// Measures the engine alone: time and allocations for submit, dispatch and complete of a request, on one core.
///
/// The queue is kept at the given depth. Sequential: reads of 4 KiB, one stream a file, the files in turn. Random: reads of
/// 4 KiB at random offsets of random files. Mixed: as random, but a quarter are writes, the hardest case for ordering
/// safety (no bar). Time is virtual, so waits cost nothing.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Only these algorithms.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<String>,
    /// Only these numbers of files.
    #[arg(long, value_delimiter = ',', default_values_t = FILES, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: Vec<u32>,
    /// Only these queue depths.
    #[arg(long, value_delimiter = ',', default_values_t = DEPTHS, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    depth: Vec<u32>,
    /// Requests measured in each pass over a cell.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1_000..))]
    requests: u32,
    /// The engine looks for streams to idle for, as on a hard disk.
    #[arg(long)]
    anticipation: bool,
}

#[derive(Serialize)]
struct Cell {
    policy: &'static str,
    files: u32,
    depth: u32,
    pattern: &'static str,
    ns_per_request: f64,
    /// Fastest and slowest pass of all rounds.
    ns_range: [f64; 2],
    allocs_per_request: f64,
}

#[derive(Serialize)]
struct Memory {
    policy: &'static str,
    bytes_per_queued_request: f64,
}

#[derive(Serialize)]
struct Report {
    /// Whether the engine looks for streams to idle for.
    anticipation: bool,
    cells: Vec<Cell>,
    /// The largest of all algorithms.
    bytes_per_queued_request: f64,
    memory: Vec<Memory>,
    /// Bars that are missed, in words.
    misses: Vec<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let policies = crate::policies(&args.policy, |_| true)?;
    stay_on_one_core();
    let count = policies.len() * args.files.len() * args.depth.len() * PATTERNS.len();
    let progress = output::bar((count * ROUNDS) as u64, "{bar:40} {pos}/{len} cells, {eta} left  {msg}");
    let mut cells = round(&policies, &args, &progress)?;
    for _ in 1..ROUNDS {
        let again = round(&policies, &args, &progress)?;
        cells.iter_mut().zip(&again).for_each(|(cell, again)| cell.join(again));
    }
    progress.finish_and_clear();
    let memory = policies.iter().map(memory).collect::<Result<Vec<_>, _>>()?;
    let largest = memory.iter().map(|m| m.bytes_per_queued_request).fold(0.0, f64::max);
    let misses = misses(&cells, &memory);
    let report = Report { anticipation: args.anticipation, cells, bytes_per_queued_request: largest, memory, misses };
    if args.json {
        output::pretty_json(&report)?;
    } else {
        print(&report, &args);
    }
    Ok(ExitCode::SUCCESS)
}

impl Cell {
    /// Takes in another round of the same cell.
    fn join(&mut self, other: &Cell) {
        self.ns_per_request = self.ns_per_request.min(other.ns_per_request);
        self.ns_range = [self.ns_range[0].min(other.ns_range[0]), self.ns_range[1].max(other.ns_range[1])];
        self.allocs_per_request = self.allocs_per_request.max(other.allocs_per_request);
    }
}

/// Measures every cell once.
fn round(policies: &[PolicyConfig], args: &Args, progress: &ProgressBar) -> anyhow::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for policy in policies {
        progress.set_message(policy.name());
        for &files in &args.files {
            for &depth in &args.depth {
                for pattern in PATTERNS {
                    cells.push(measure(policy, files, depth, pattern, args)?);
                    progress.inc(1);
                }
            }
        }
    }
    Ok(cells)
}

/// Moving between cores in the middle of a cell would show as noise.
pub(crate) fn stay_on_one_core() {
    let here = rustix::thread::sched_getcpu();
    let mut set = rustix::thread::CpuSet::new();
    set.set(here);
    // Not allowed in some containers; the figures are noisier then, nothing else.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Makes the requests of a pattern. Cheap, as its time is part of what is measured.
struct Source {
    files: u64,
    random: bool,
    writes: bool,
    number: u64,
    state: u64,
}

impl Source {
    fn new(files: u32, pattern: &str) -> Source {
        let (random, writes) = (pattern != PATTERNS[0], pattern == PATTERNS[2]);
        Source { files: files.into(), random, writes, number: 0, state: 0x9E37_79B9_7F4A_7C15 }
    }

    fn next(&mut self) -> Request {
        let number = self.number;
        self.number += 1;
        let (file, block, op) = if self.random {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            let op = if self.writes && self.state >> 62 == 0 { Op::Write } else { Op::Read };
            (self.state % self.files, self.state >> 36, op)
        } else {
            (number % self.files, number / self.files, Op::Read)
        };
        Request {
            cookie: number,
            file: FileId(file),
            app: AppId((file % 4) as u32),
            // Of the file, as targets tell files apart: `files` is the number of them.
            target: TargetId((file % 4) as u32),
            op,
            offset: block * u64::from(BLOCK),
            len: BLOCK,
        }
    }
}

/// An engine kept at a constant depth by one thread, in virtual time.
struct Loop {
    engine: Engine,
    source: Source,
    batch: Batch,
    now: Time,
}

impl Loop {
    fn submit(&mut self) {
        let request = self.source.next();
        self.engine.submit(self.now, request).expect("the engine has room for the depth of the cell");
    }

    /// Dispatches and completes at least `requests` requests, replacing each; returns how many.
    fn turn_over(&mut self, requests: u32) -> u64 {
        let mut done = 0;
        while done < u64::from(requests) {
            if !self.engine.poll_dispatch(self.now, &mut self.batch) {
                let wake = self.engine.poll_timeout().expect("queued requests and nothing in flight: a time to wake");
                self.now = wake;
                continue;
            }
            self.now = self.now.after(200);
            let parts = self.batch.requests();
            for part in self.batch.parts() {
                self.engine.complete(self.now, part.id, Outcome::ok(BLOCK)).expect("it was dispatched");
            }
            for _ in 0..parts {
                self.submit();
            }
            done += parts as u64;
        }
        done
    }
}

fn measure(policy: &PolicyConfig, files: u32, depth: u32, pattern: &'static str, args: &Args) -> anyhow::Result<Cell> {
    let requests = args.requests;
    let config = EngineConfig {
        capacity: depth,
        files_max: files.min(depth.max(4_096)),
        anticipation: args.anticipation.then(|| Anticipation::for_device(8_000_000, 100_000_000)),
        ..EngineConfig::default()
    };
    let engine = Engine::new(config, policy, Time::ZERO)?;
    let mut cycle =
        Loop { engine, source: Source::new(files, pattern), batch: Batch::with_capacity(256), now: Time(1) };
    (0..depth).for_each(|_| cycle.submit());
    // Warm: every request there at the start is gone, every page was touched.
    cycle.turn_over(requests.min(depth * 2).max(10_000));
    let mut times = [0.0; PASSES];
    let (mut allocs, mut total) = (0, 0);
    for time in &mut times {
        let before = allocations::calls();
        let start = Instant::now();
        let done = cycle.turn_over(requests);
        *time = start.elapsed().as_nanos() as f64 / done as f64;
        allocs += allocations::calls() - before;
        total += done;
    }
    times.sort_by(f64::total_cmp);
    Ok(Cell {
        policy: policy.name(),
        files,
        depth,
        pattern,
        ns_per_request: times[PASSES / 2],
        ns_range: [times[0], times[PASSES - 1]],
        allocs_per_request: allocs as f64 / total as f64,
    })
}

/// Everything an engine of the largest depth allocates, divided by that depth; with the default proportion of files.
fn memory(policy: &PolicyConfig) -> Result<Memory, ConfigError> {
    let default = EngineConfig::default();
    let capacity = DEPTHS[DEPTHS.len() - 1];
    let files_max = (u64::from(capacity) * u64::from(default.files_max) / u64::from(default.capacity)) as u32;
    let before = allocations::live_bytes();
    let engine = Engine::new(EngineConfig { capacity, files_max, ..default }, policy, Time::ZERO)?;
    let bytes = allocations::live_bytes() - before;
    drop(engine);
    Ok(Memory { policy: policy.name(), bytes_per_queued_request: bytes as f64 / f64::from(capacity) })
}

fn misses(cells: &[Cell], memory: &[Memory]) -> Vec<String> {
    let mut misses = Vec::new();
    for cell in cells.iter().filter(|cell| cell.pattern != PATTERNS[2]) {
        let bar = if cell.depth <= 4_096 && cell.files <= 1_024 { BAR_NS } else { BAR_NS_ANYWHERE };
        let place =
            format!("{}, {}, depth {}, {}", cell.policy, counted(cell.files as u64, "file"), cell.depth, cell.pattern);
        if cell.ns_per_request > bar {
            misses.push(format!("{place}: {:.0} ns, bar {bar:.0} ns", cell.ns_per_request));
        }
        if cell.allocs_per_request > 0.0 {
            misses.push(format!("{place}: {:.4} allocations a request, bar 0", cell.allocs_per_request));
        }
        let one_file = cells
            .iter()
            .find(|c| c.files == FILES[0] && (c.policy, c.depth, c.pattern) == (cell.policy, cell.depth, cell.pattern));
        let growth = one_file.map_or(1.0, |one| cell.ns_per_request / one.ns_per_request);
        if cell.files == FILES[2] && growth > BAR_GROWTH {
            misses.push(format!("{place}: {growth:.1} times the time with one file, bar {BAR_GROWTH}"));
        }
    }
    for m in memory.iter().filter(|m| m.bytes_per_queued_request > BAR_BYTES) {
        misses.push(format!("{}: {:.0} bytes a queued request, bar {BAR_BYTES}", m.policy, m.bytes_per_queued_request));
    }
    misses
}

/// Slowest pass to figure, median over the cells: how noisy the machine was.
fn spread(cells: &[Cell]) -> f64 {
    let mut spreads: Vec<f64> = cells.iter().map(|cell| cell.ns_range[1] / cell.ns_per_request).collect();
    spreads.sort_by(f64::total_cmp);
    spreads.get(spreads.len() / 2).copied().unwrap_or(1.0)
}

fn print(report: &Report, args: &Args) {
    output::line(format_args!(
        "Engine alone, one core: ns for submit + dispatch + complete of a request (medians of {PASSES} passes, the fastest of"
    ));
    output::line(format_args!(
        "{ROUNDS} rounds through all cells; the slowest pass took {:.1} times as long, in the median cell)\n",
        spread(&report.cells)
    ));
    print!("{:<8} {:>7}  {:<10}", "policy", "files", "pattern");
    args.depth.iter().for_each(|depth| print!(" {:>10}", format!("depth {depth}")));
    output::line("");
    let mut rows: Vec<_> = report.cells.iter().map(|c| (c.policy, c.files, c.pattern)).collect();
    rows.sort_by_key(|&(policy, files, pattern)| {
        let place = table().iter().position(|info| info.name == policy);
        (place, PATTERNS.iter().position(|p| *p == pattern), files)
    });
    rows.dedup();
    for row in rows {
        print!("{:<8} {:>7}  {:<10}", row.0, row.1, row.2);
        for depth in &args.depth {
            let cell = report.cells.iter().find(|c| (c.policy, c.files, c.pattern) == row && c.depth == *depth);
            print!(" {:>10}", cell.map_or("-".to_owned(), |c| format!("{:.0}", c.ns_per_request)));
        }
        output::line("");
    }
    let allocs = report.cells.iter().map(|c| c.allocs_per_request).fold(0.0, f64::max);
    output::line(format_args!("\nallocations a request, largest of all cells: {allocs}"));
    let default = EngineConfig::default();
    let each = default.capacity / default.files_max;
    output::line(format_args!("bytes a queued request (capacity 65,536, a file for every {each} requests):"));
    for m in &report.memory {
        output::line(format_args!("  {:<8} {:>6.0}", m.policy, m.bytes_per_queued_request));
    }
    output::line(format_args!(
        "\nbars: {BAR_NS} ns up to depth 4,096 and 1,024 files, {BAR_NS_ANYWHERE} ns everywhere, at most {BAR_GROWTH} times the"
    ));
    output::line(format_args!("one-file time with 102,400 files, 0 allocations, {BAR_BYTES} bytes a queued request"));
    if report.misses.is_empty() {
        output::line("all met");
    } else {
        output::line("missed:");
        report.misses.iter().for_each(|miss| output::line(format_args!("  {miss}")));
    }
}
