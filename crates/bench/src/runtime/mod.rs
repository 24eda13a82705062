//! `sluice-bench runtime`: what the driver around the engine costs, next to a hand-over through one lock.

mod against;

use serde::Serialize;
use sluice_core::{AppId, Batch, FileId, Op, Outcome, PolicyConfig, Request, TargetId, policy::table};
use sluice_runtime::{
    Client, Done, Executor, Host, Scheduler, SchedulerConfig, Shutdown, Started, SubmitError, Volume, VolumeConfig,
};
use sluice_storage::{Data, Layout, Namespace, Storage, null::NullStorage};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use against::Comparison;
use sluice_cli::output;

use crate::statistics::median;

const THREADS: [usize; 3] = [1, 2, 4];
const BLOCK: u32 = 4_096;
const FILES_EACH: u64 = 16;
/// Requests that a thread has outstanding at most: 1 for a server's thread that waits for its request, 64 for one that
/// does not.
const WINDOWS: [u64; 2] = [1, 64];
const BAR_PER_S: f64 = 1e6;
const BAR_RATIO: f64 = 5.0;
const BAR_LATENCY_US: f64 = 20.0;

/// Measures the runtime: requests a second from several submitting threads, and the latency it adds.
///
/// Each thread has at most 1 or 64 requests outstanding (window). Callbacks: the host completes each request inside the call that starts
/// it. Volume: 4 KiB reads of a null storage, with tickets. Baseline: requests are handed through one mutex and condition
/// variable to a scheduling thread, as AGIOS does. All in one run, in turns.
///
/// With --against, this program and another one are compared instead: each cell in both, in turns, several times.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Shorter runs.
    #[arg(long)]
    quick: bool,
    /// Only these algorithms.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<String>,
    /// Repetitions; medians count [default: 5, with --against 3 in each round].
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..=101))]
    repetitions: Option<u32>,
    /// Another `sluice-bench` to compare with, such as an earlier build, or a `sluice` that still has `bench`.
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
    /// Rounds of the comparison; medians count.
    #[arg(long, default_value_t = 5, requires = "against", value_parser = clap::value_parser!(u32).range(3..=101))]
    rounds: u32,
}

/// One way of handing over, with a number of submitting threads.
#[derive(Serialize)]
struct Cell {
    what: &'static str,
    policy: &'static str,
    threads: usize,
    window: u64,
    requests_per_s: f64,
    requests_per_s_range: [f64; 2],
    /// To the baseline with as many threads and the same window, in the same repetition; median, smallest and largest.
    ratio_to_baseline: f64,
    ratio_range: [f64; 2],
}

#[derive(Serialize)]
struct Latency {
    policy: &'static str,
    /// Submitting one read with a ticket at a time, until its completion is reported: median, less that of calling the storage.
    added_us: f64,
}

#[derive(Serialize)]
struct Report {
    cells: Vec<Cell>,
    latency: Vec<Latency>,
    misses: Vec<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let policies = crate::policies(&args.policy, |_| true)?;
    if let Some(other) = args.against {
        let repetitions = args.repetitions.unwrap_or(3);
        let report = against::run(&Comparison { other, policies, rounds: args.rounds, repetitions })?;
        match args.json {
            true => output::pretty_json(&report)?,
            false => against::print(&report),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let repetitions = args.repetitions.unwrap_or(5);
    let run_for = Duration::from_millis(if args.quick { 25 } else { 80 });
    let cells = throughput(&policies, repetitions, run_for)?;
    let direct = direct_latency_us()?;
    let latency = policies
        .iter()
        .map(|policy| Ok(Latency { policy: policy.name(), added_us: latency_us(policy)? - direct }))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let misses = misses(&cells, &latency);
    let report = Report { cells, latency, misses };
    if args.json {
        output::pretty_json(&report)?;
    } else {
        print(&report, repetitions);
    }
    Ok(ExitCode::SUCCESS)
}

/// A way of handing requests over, with its threads running.
trait Path: Sync {
    /// Hands over request `number` of a thread; its end is counted.
    fn submit(&self, thread: usize, number: u64);
    fn ended(&self) -> &Ended;
}

/// The ways compared.
const WAYS: [&str; 3] = [BASELINE, CALLBACKS, VOLUME];
pub(super) const BASELINE: &str = "baseline";
const CALLBACKS: &str = "callbacks";
pub(super) const VOLUME: &str = "volume";

fn throughput(policies: &[PolicyConfig], repetitions: u32, run_for: Duration) -> anyhow::Result<Vec<Cell>> {
    let runs = repetitions as usize * THREADS.len() * WINDOWS.len() * (policies.len() * 2 + 1);
    let progress = output::bar(runs as u64, "{bar:40} {pos}/{len} runs, {eta} left  {msg}");
    let mut rates: Vec<Rates> = Vec::new();
    for _ in 0..repetitions {
        for (threads, window) in THREADS.into_iter().flat_map(|threads| WINDOWS.map(|window| (threads, window))) {
            for way in WAYS {
                let of_way = if way == BASELINE { &policies[..1] } else { policies };
                for policy in of_way {
                    let name = if way == BASELINE { "fifo" } else { policy.name() };
                    progress.set_message(format!("{way} {name}"));
                    let rate = match way {
                        BASELINE => rate(&Baseline::start(), threads, window, run_for),
                        CALLBACKS => rate(&OverCallbacks::start(policy)?, threads, window, run_for),
                        _ => rate(&OverVolume::start(policy)?, threads, window, run_for),
                    };
                    let key = (way, name, threads, window);
                    match rates.iter_mut().find(|r| r.key == key) {
                        Some(rates) => rates.per_s.push(rate),
                        None => rates.push(Rates { key, per_s: vec![rate] }),
                    }
                    progress.inc(1);
                }
            }
        }
    }
    progress.finish_and_clear();
    Ok(cells(&rates))
}

/// What was measured for one cell, repetition by repetition.
struct Rates {
    /// Way, policy, threads, window.
    key: (&'static str, &'static str, usize, u64),
    per_s: Vec<f64>,
}

fn cells(rates: &[Rates]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for Rates { key, per_s } in rates {
        let (what, policy, threads, window) = *key;
        let base = rates.iter().find(|r| (r.key.0, r.key.2, r.key.3) == (BASELINE, threads, window));
        let base = base.map_or(per_s, |base| &base.per_s);
        let mut ratios: Vec<f64> = per_s.iter().zip(base).map(|(rate, base)| rate / base).collect();
        let (ratio_to_baseline, ratio_range) = median(&mut ratios);
        let (requests_per_s, requests_per_s_range) = median(&mut per_s.clone());
        cells.push(Cell {
            what,
            policy,
            threads,
            window,
            requests_per_s,
            requests_per_s_range,
            ratio_to_baseline,
            ratio_range,
        });
    }
    cells
}

/// Requests a second that `threads` submit and see ended.
fn rate(path: &impl Path, threads: usize, window: u64, run_for: Duration) -> f64 {
    let together = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let submitters: Vec<_> = (0..threads)
            .map(|thread| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    let until = Instant::now() + run_for;
                    let mut number = 0_u64;
                    while Instant::now() < until {
                        for _ in 0..64 {
                            path.ended().wait_for(thread, (number + 1).saturating_sub(window));
                            path.submit(thread, number);
                            number += 1;
                        }
                    }
                    path.ended().wait_for(thread, number);
                    number
                })
            })
            .collect();
        together.wait();
        let start = Instant::now();
        let submitted: u64 = submitters.into_iter().map(|s| s.join().expect("a submitter does not panic")).sum();
        submitted as f64 / start.elapsed().as_secs_f64()
    })
}

/// Threads have files of their own, which they read sequentially.
fn request(thread: usize, number: u64) -> Request {
    Request {
        cookie: cookie(thread, number),
        file: FileId(file(thread, number)),
        app: AppId(thread as u32),
        target: TargetId(0),
        op: Op::Read,
        offset: number / FILES_EACH * u64::from(BLOCK),
        len: BLOCK,
    }
}

fn file(thread: usize, number: u64) -> u64 {
    thread as u64 * FILES_EACH + number % FILES_EACH
}

fn cookie(thread: usize, number: u64) -> u64 {
    (thread as u64) << 56 | number
}

/// Requests ended, by submitting thread, each count on a cache line of its own. A thread that waits sleeps, as a
/// server's threads do.
#[derive(Default)]
struct Ended([Count; 4]);

#[derive(Default)]
#[repr(align(128))]
struct Count {
    ended: AtomicU64,
    /// What the thread waits for; 0 if it does not.
    wanted: AtomicU64,
    thread: OnceLock<Thread>,
}

impl Ended {
    fn of(&self, thread: usize) -> u64 {
        self.0[thread].ended.load(Ordering::SeqCst)
    }

    /// Sleeps until `wanted` requests of this thread have ended. Always called by the same thread.
    fn wait_for(&self, thread: usize, wanted: u64) {
        let count = &self.0[thread];
        while self.of(thread) < wanted {
            count.thread.get_or_init(std::thread::current);
            count.wanted.store(wanted, Ordering::SeqCst);
            if self.of(thread) < wanted {
                std::thread::park();
            }
            count.wanted.store(0, Ordering::SeqCst);
        }
    }

    fn count(&self, cookie: u64) {
        let count = &self.0[(cookie >> 56) as usize];
        let ended = count.ended.fetch_add(1, Ordering::SeqCst) + 1;
        let wanted = count.wanted.load(Ordering::SeqCst);
        if wanted != 0
            && ended >= wanted
            && let Some(thread) = count.thread.get()
        {
            thread.unpark();
        }
    }
}

// ---- the three ways -----------------------------------------------------------------------------------------

/// One mutex, one condition variable, one scheduling thread; first come, first served.
struct Baseline {
    shared: Arc<(Mutex<Waiting>, Condvar, Ended)>,
    scheduler: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    dispatched: u64,
    stop: bool,
}

impl Baseline {
    fn start() -> Baseline {
        let shared: Arc<(Mutex<Waiting>, Condvar, Ended)> = Arc::default();
        let scheduler = std::thread::spawn({
            let shared = shared.clone();
            move || {
                let (lock, wake, ended) = &*shared;
                let mut waiting = lock.lock().expect("no submitter panics");
                loop {
                    match waiting.requests.pop_front() {
                        Some(request) => {
                            waiting.dispatched += 1;
                            drop(waiting);
                            // The callback; its release takes the lock again.
                            std::hint::black_box(request);
                            waiting = lock.lock().expect("no submitter panics");
                            waiting.dispatched -= 1;
                            ended.count(request.cookie);
                        }
                        None if waiting.stop => return,
                        None => waiting = wake.wait(waiting).expect("no submitter panics"),
                    }
                }
            }
        });
        Baseline { shared, scheduler: Some(scheduler) }
    }
}

impl Path for Baseline {
    fn submit(&self, thread: usize, number: u64) {
        let (lock, wake, _) = &*self.shared;
        lock.lock().expect("the scheduler does not panic").requests.push_back(request(thread, number));
        wake.notify_one();
    }

    fn ended(&self) -> &Ended {
        &self.shared.2
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        if let Ok(mut waiting) = self.shared.0.lock() {
            waiting.stop = true;
        }
        self.shared.1.notify_all();
        if let Some(scheduler) = self.scheduler.take() {
            let _ = scheduler.join();
        }
    }
}

/// Completes inside the call.
impl Executor for Ended {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        for part in batch.parts() {
            started.complete(part.id, Outcome::ok(part.request.len));
            self.count(part.request.cookie);
        }
    }

    fn cancelled(&self, request: &Request, _: i32) {
        self.count(request.cookie);
    }
}

struct OverCallbacks {
    client: Client,
    host: Arc<Ended>,
    _scheduler: Scheduler,
}

impl OverCallbacks {
    fn start(policy: &PolicyConfig) -> anyhow::Result<OverCallbacks> {
        let scheduler = Scheduler::start(SchedulerConfig::new(policy.clone()))?;
        let host: Arc<Ended> = Arc::default();
        Ok(OverCallbacks { client: scheduler.attach(host.clone())?, host, _scheduler: scheduler })
    }
}

impl Path for OverCallbacks {
    fn submit(&self, thread: usize, number: u64) {
        while let Err(SubmitError::Full(_)) = self.client.submit(0, request(thread, number)) {}
    }

    fn ended(&self) -> &Ended {
        &self.host
    }
}

impl Host for Ended {
    type Ticket = u64;
    fn complete(&self, cookie: u64, _: io::Result<Done<'_>>) {
        self.count(cookie);
    }
}

struct OverVolume {
    volume: Volume<Ended>,
    host: Arc<Ended>,
    files: Vec<sluice_storage::FileRef>,
}

impl OverVolume {
    fn start(policy: &PolicyConfig) -> anyhow::Result<OverVolume> {
        let storage = Storage::from(NullStorage::new(Layout::single(), 1 << 50));
        let tree = &storage.namespace;
        let open = |n: u64| tree.open(&tree.lookup(&tree.root(), n.to_string().as_ref())?, libc::O_RDWR);
        let files = (0..4 * FILES_EACH).map(open).collect::<io::Result<_>>()?;
        let host: Arc<Ended> = Arc::default();
        let volume = Volume::start(storage.clone(), host.clone(), VolumeConfig::new(policy.clone()))?;
        Ok(OverVolume { volume, host, files })
    }
}

impl Path for OverVolume {
    fn submit(&self, thread: usize, number: u64) {
        let Request { offset, app, cookie, .. } = request(thread, number);
        self.volume.read(&self.files[file(thread, number) as usize], app, offset, BLOCK, cookie);
    }

    fn ended(&self) -> &Ended {
        &self.host
    }
}

impl Drop for OverVolume {
    fn drop(&mut self) {
        self.volume.shutdown(Shutdown::Drain { timeout: Duration::from_secs(10) });
    }
}

// ---- latency ------------------------------------------------------------------------------------------------

const LATENCY_READS: u64 = 2_000;

fn latency_us(policy: &PolicyConfig) -> anyhow::Result<f64> {
    let path = OverVolume::start(policy)?;
    let mut times: Vec<f64> = (0..LATENCY_READS)
        .map(|number| {
            let start = Instant::now();
            path.submit(0, number);
            while path.ended().of(0) <= number {
                std::hint::spin_loop();
            }
            start.elapsed().as_nanos() as f64 / 1e3
        })
        .collect();
    Ok(median(&mut times).0)
}

fn direct_latency_us() -> anyhow::Result<f64> {
    let storage = NullStorage::new(Layout::single(), 1 << 50);
    let file = storage.open(&storage.lookup(&storage.root(), "1".as_ref())?, libc::O_RDWR)?;
    let mut memory = vec![0; BLOCK as usize];
    let mut times = Vec::new();
    for number in 0..LATENCY_READS {
        let start = Instant::now();
        storage.read(&file, 0, number * u64::from(BLOCK), &mut [io::IoSliceMut::new(&mut memory)])?;
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    Ok(median(&mut times).0)
}

// ---- the report ---------------------------------------------------------------------------------------------

/// True for an algorithm that waits for better choices, so that its throughput says little.
pub(super) fn waits(policy: &str) -> bool {
    table().iter().any(|info| info.name == policy && info.waits)
}

/// The bars are about two submitting threads and algorithms that do not wait: the rate about threads that send on; the
/// ratio about threads that wait for their request, so that the hand-over is what they wait for, and about callbacks, which
/// do as little with a request as the baseline does.
fn misses(cells: &[Cell], latency: &[Latency]) -> Vec<String> {
    let mut misses = Vec::new();
    for cell in cells.iter().filter(|cell| cell.threads == 2 && cell.what != BASELINE && !waits(cell.policy)) {
        let place = format!("{}, {}, 2 threads, window {}", cell.what, cell.policy, cell.window);
        if cell.window == WINDOWS[1] && cell.requests_per_s < BAR_PER_S {
            misses.push(format!("{place}: {:.0} k requests/s, bar 1,000 k", cell.requests_per_s / 1e3));
        }
        if cell.window == WINDOWS[0] && cell.what == CALLBACKS && cell.ratio_to_baseline < BAR_RATIO {
            misses.push(format!("{place}: {:.1} times the baseline, bar {BAR_RATIO}", cell.ratio_to_baseline));
        }
    }
    for row in latency.iter().filter(|row| row.added_us >= BAR_LATENCY_US && !waits(row.policy)) {
        misses.push(format!("{}: {:.1} us added at depth 1, bar {BAR_LATENCY_US}", row.policy, row.added_us));
    }
    misses
}

fn print(report: &Report, repetitions: u32) {
    output::line(format_args!(
        "thousand requests a second, and times the baseline with as many threads (median, smallest..largest of {repetitions})\n"
    ));
    let head = ["what", "policy", "threads", "window", "k/s", "range", "ratio"];
    output::line(format_args!(
        "{:<10} {:<7} {:>7} {:>6} {:>9} {:>17} {:>9}",
        head[0], head[1], head[2], head[3], head[4], head[5], head[6]
    ));
    let mut cells: Vec<&Cell> = report.cells.iter().collect();
    let policy_at = |name: &str| table().iter().position(|info| info.name == name);
    cells.sort_by_key(|c| (WAYS.iter().position(|w| *w == c.what), policy_at(c.policy), c.window, c.threads));
    for cell in cells {
        let [low, high] = cell.requests_per_s_range;
        output::line(format_args!(
            "{:<10} {:<7} {:>7} {:>6} {:>9.0} {:>17} {:>9.1} ({:.1}..{:.1})",
            cell.what,
            cell.policy,
            cell.threads,
            cell.window,
            cell.requests_per_s / 1e3,
            format!("{:.0}..{:.0}", low / 1e3, high / 1e3),
            cell.ratio_to_baseline,
            cell.ratio_range[0],
            cell.ratio_range[1],
        ));
    }
    output::line(format_args!("\nlatency added at depth 1, median, us:"));
    for row in &report.latency {
        output::line(format_args!("  {:<7} {:>6.1}", row.policy, row.added_us));
    }
    output::line(format_args!(
        "\nbars, for algorithms that do not wait, with 2 threads: 1,000 k requests/s, {BAR_RATIO} times the baseline, less than"
    ));
    output::line(format_args!("{BAR_LATENCY_US} us added at depth 1"));
    if report.misses.is_empty() {
        output::line("all met");
    } else {
        output::line("missed:");
        report.misses.iter().for_each(|miss| output::line(format_args!("  {miss}")));
    }
}
