//! `sluice-bench features`: what following requests costs.

use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use sluice_adapt::features::{Answers, Settings, Watcher};
use sluice_cli::output;
use sluice_core::{AppId, FileId, Op, Request, TargetId, Time};

use crate::allocations;
use crate::random::SplitMix64;

const BAR_NS: f64 = 30.0;
/// A request: what the end of a window may allocate is less, and counts as none.
const BAR_ALLOCATIONS: f64 = 0.001;
/// Passes over each pattern, in turns; the fastest counts, as everything that disturbs only slows down.
const PASSES: usize = 15;
/// Requests under way.
const DEPTH: usize = 32;

/// Measures the watcher that gives the features of windows: arrival, dispatch and completion of a request, on one core.
///
/// Shared: 16 streams in one file. Strided: 16 processes take turns. Own files: 256 files. Random: over 256 files. 32 requests
/// are under way. The time of the same loop without a watcher is taken off, and also told is its noise: by how much passes
/// differ.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Requests of a pass
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(10_000..=100_000_000))]
    requests: u32,
}

#[derive(Serialize)]
struct Cell {
    pattern: &'static str,
    /// With completions, or arrivals only.
    knows_answers: bool,
    /// As at an I/O node: with completions, more streams, and beginnings.
    at_io_node: bool,
    ns_per_request: f64,
    /// Of the passes: fastest, middle.
    passes_ns: [f64; 2],
    allocs_per_request: f64,
    /// Ending a window.
    close_us: f64,
}

impl Cell {
    fn how(&self) -> &'static str {
        match self {
            Cell { at_io_node: true, .. } => "at an I/O node",
            Cell { knows_answers: true, .. } => "with completions",
            _ => "arrivals only",
        }
    }
}

#[derive(Serialize)]
struct Report {
    cells: Vec<Cell>,
    misses: Vec<String>,
}

fn requests(pattern: &str, count: u32) -> Vec<Request> {
    let mut random = SplitMix64(1);
    let request = |n: u32| {
        let (n, process) = (u64::from(n), u64::from(n % 16));
        let (file, offset) = match pattern {
            "shared" => (0, (process << 32) + n / 16 * 32_768),
            "strided" => (0, (n / 16 * 16 + (process * 7 + n / 16 * 5) % 16) * 32_768),
            "own files" => (n % 256, n / 256 * 32_768),
            _ => (random.next() % 256, random.next() % 65_536 * 32_768),
        };
        let (app, target) = (AppId((file % 8) as u32), TargetId(0));
        Request { cookie: n, file: FileId(file), app, target, op: Op::Read, offset, len: 32_768 }
    };
    (0..count).map(request).collect()
}

/// Nanoseconds of a pass, and of the end of its window.
fn pass(requests: &[Request], watcher: &mut Option<Watcher>) -> (f64, f64) {
    let start = Instant::now();
    for (n, request) in requests.iter().enumerate() {
        let now = Time(n as u64 * 1_000 + 1_000);
        let done = std::hint::black_box(requests[n.saturating_sub(DEPTH)]);
        if let Some(watcher) = watcher {
            watcher.arrived(now, request);
            watcher.dispatched(now, 1);
            if n >= DEPTH {
                watcher.completed(now, &done, None);
            }
        }
    }
    let (took, end) = (start.elapsed(), Instant::now());
    if let Some(watcher) = watcher {
        std::hint::black_box(watcher.close(Time(requests.len() as u64 * 1_000 + 1_000)));
    }
    (took.as_nanos() as f64, end.elapsed().as_nanos() as f64)
}

fn measure(pattern: &'static str, settings: Settings, count: u32) -> Cell {
    let requests = requests(pattern, count);
    let mut watcher = Some(Watcher::new(settings, Time::ZERO));
    let each = |ns: f64| ns / f64::from(count);
    let (mut with, mut without, mut closes) = (Vec::new(), f64::INFINITY, f64::INFINITY);
    pass(&requests, &mut watcher);
    let before = allocations::calls();
    for _ in 0..PASSES {
        let (took, close) = pass(&requests, &mut watcher);
        with.push(took);
        closes = closes.min(close);
        without = without.min(pass(&requests, &mut None).0);
    }
    let allocs = allocations::calls() - before;
    with.sort_by(f64::total_cmp);
    Cell {
        pattern,
        knows_answers: settings.answers == Answers::Known,
        at_io_node: settings.beginnings,
        ns_per_request: each(with[0] - without),
        passes_ns: [each(with[0]), each(with[PASSES / 2])],
        allocs_per_request: allocs as f64 / (PASSES as f64 * f64::from(count)),
        close_us: closes / 1e3,
    }
}

/// Bars that are missed, in words.
fn misses(cells: &[Cell]) -> Vec<String> {
    let mut misses = Vec::new();
    for cell in cells {
        let place = format!("{}, {}", cell.pattern, cell.how());
        if cell.ns_per_request > BAR_NS {
            misses.push(format!("{place}: {:.1} ns, bar {BAR_NS:.0} ns", cell.ns_per_request));
        }
        if cell.allocs_per_request > BAR_ALLOCATIONS {
            misses.push(format!("{place}: {:.4} allocations a request, bar 0", cell.allocs_per_request));
        }
    }
    misses
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    crate::engine::stay_on_one_core();
    let patterns = ["shared", "strided", "own files", "random"];
    let settings = [
        Settings { answers: Answers::Known, ..Settings::default() },
        Settings { answers: Answers::After(100_000), ..Settings::default() },
        Settings::of_io_node(),
    ];
    let cells = patterns.iter().flat_map(|pattern| settings.map(|settings| measure(pattern, settings, args.requests)));
    let cells: Vec<Cell> = cells.collect();
    let report = Report { misses: misses(&cells), cells };
    if args.json {
        output::pretty_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line("features of windows, one core: a request's arrival, dispatch and completion\n");
    for cell in &report.cells {
        output::line(format!(
            "  {:<10} {:<18} {:>6.1} ns  (passes {:.1} fastest, {:.1} middle; {:.3} allocations); a window's end {:.0} us",
            cell.pattern,
            cell.how(),
            cell.ns_per_request,
            cell.passes_ns[0],
            cell.passes_ns[1],
            cell.allocs_per_request,
            cell.close_us
        ));
    }
    let met = if report.misses.is_empty() { "met" } else { "MISSED" };
    output::line(format!("\nbar: {BAR_NS} ns, no allocation: {met}"));
    report.misses.iter().for_each(|miss| output::line(format!("MISSED {miss}")));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_that_is_missed_is_told_with_its_place() {
        let cell = |knows_answers: bool, ns_per_request: f64, allocs_per_request: f64| Cell {
            pattern: "shared",
            knows_answers,
            at_io_node: false,
            ns_per_request,
            passes_ns: [0.0; 2],
            allocs_per_request,
            close_us: 0.0,
        };
        assert!(misses(&[cell(true, 30.0, 0.001), cell(false, 3.0, 0.0)]).is_empty());
        let told = misses(&[cell(true, 31.0, 0.0), cell(false, 32.5, 0.002)]);
        let expected = [
            "shared, with completions: 31.0 ns, bar 30 ns",
            "shared, arrivals only: 32.5 ns, bar 30 ns",
            "shared, arrivals only: 0.0020 allocations a request, bar 0",
        ];
        assert_eq!(told, expected);
        let report = serde_json::to_value(Report { cells: Vec::new(), misses: told }).unwrap();
        assert_eq!(report["misses"][0], expected[0]);
    }
}
