//! What must hold, whatever the order of the threads.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use sluice_core::{AppId, Batch, EngineConfig, FileId, Op, Outcome, PolicyConfig, Request, RequestId, TargetId};
use sluice_runtime::sabotage::{self, Fault};
use sluice_runtime::{Completer, Driving, Executor, SchedulerConfig, Started};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Faults are switched for the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn rounds(scenario: impl Fn() + Send + Sync + 'static, rounds: u64) {
    rounds_in(scenario, rounds, RandomScheduler::new_from_seed);
}

fn rounds_in<S: Scheduler + 'static>(
    scenario: impl Fn() + Send + Sync + 'static,
    rounds: u64,
    scheduler: impl FnOnce(u64, usize) -> S,
) {
    let seed = number("SLUICE_MODEL_SEED", 0x5eed);
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.max_steps = shuttle::MaxSteps::FailAfter(400_000);
    println!("seed {seed}, {rounds} rounds; SLUICE_MODEL_SEED and SLUICE_MODEL_ROUNDS change them");
    Runner::new(scheduler(seed, rounds as usize), config).run(scenario);
}

/// Checks a scenario in `default` orders of its threads.
pub fn check(default: u64, scenario: impl Fn() + Send + Sync + 'static) {
    let _alone = alone();
    sabotage::set(Fault::None);
    rounds(scenario, number("SLUICE_MODEL_ROUNDS", default));
}

/// As [`check`], in orders in which a thread stops for long at a place that the seed draws: S. Burckhardt et al., *A
/// Randomized Scheduler with Probabilistic Guarantees of Finding Bugs*, ASPLOS 2010.
pub fn check_stopping(default: u64, scenario: impl Fn() + Send + Sync + 'static) {
    let _alone = alone();
    sabotage::set(Fault::None);
    let scheduler = |seed, rounds| PctScheduler::new_from_seed(seed, 2, rounds);
    rounds_in(scenario, number("SLUICE_MODEL_ROUNDS", default), scheduler);
}

/// Breaks a protocol, and expects that the checker sees it within so many rounds.
pub fn expect_seen(fault: Fault, most: u64, scenario: impl Fn() + Send + Sync + 'static) {
    let _alone = alone();
    sabotage::set(fault);
    let seen = catch_unwind(AssertUnwindSafe(|| rounds(scenario, most))).is_err();
    sabotage::set(Fault::None);
    assert!(seen, "{fault:?} was not seen in {most} rounds");
}

/// Short, as time passes slowly: whoever waits for the end of a window waits for some turns.
pub const WINDOW_NS: u64 = 1_000_000;

/// One engine with few places.
pub fn config(policy: &str, capacity: u32, driving: Driving) -> SchedulerConfig {
    let engine = EngineConfig {
        capacity,
        files_max: capacity,
        in_flight_max: 2,
        window_ns: WINDOW_NS,
        ..EngineConfig::default()
    };
    let policy = PolicyConfig::parse(policy).expect("a policy");
    SchedulerConfig { engine, driving, ..SchedulerConfig::new(policy) }
}

pub fn request(cookie: u64, file: u64, op: Op, offset: u64) -> Request {
    Request { cookie, file: FileId(file), app: AppId(0), target: TargetId(0), op, offset, len: 10 }
}

/// When a host completes what it is to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completes {
    /// Inside the call, and the call knows.
    AtOnce,
    /// Inside the call.
    InTheCall,
    /// On another thread.
    Later,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Submitted,
    Started,
    Completed,
    Cancelled,
}

#[derive(Default)]
struct Seen {
    requests: HashMap<u64, (Request, Life)>,
    order: Vec<u64>,
    /// No call may come any more.
    over: bool,
    wrong: Vec<String>,
}

pub type Inside = Arc<dyn Fn(&Request) + Send + Sync>;

/// A host that notes what it is told. Panics inside its calls would be caught by what is tested, so it keeps a list.
pub struct Checked {
    seen: Mutex<Seen>,
    completes: Completes,
    later: shuttle::sync::Mutex<Vec<(RequestId, Request, Completer)>>,
    /// What the host does inside its calls.
    pub inside: Mutex<Option<Inside>>,
    /// The same, once it has completed what the call was to start.
    pub after: Mutex<Option<Inside>>,
}

impl Checked {
    pub fn new(completes: Completes) -> Arc<Checked> {
        Arc::new(Checked {
            seen: Mutex::default(),
            completes,
            later: shuttle::sync::Mutex::new(Vec::new()),
            inside: Mutex::new(None),
            after: Mutex::new(None),
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("nobody panics with it")
    }

    /// About to be submitted; [`Checked::refused`] takes it back.
    pub fn submits(&self, request: Request) {
        let mut seen = self.seen();
        seen.order.push(request.cookie);
        if seen.requests.insert(request.cookie, (request, Life::Submitted)).is_some() {
            seen.wrong.push(format!("cookie {} was used twice by the test", request.cookie));
        }
    }

    pub fn refused(&self, cookie: u64) {
        self.step(cookie, Life::Submitted, Life::Cancelled, "refused");
    }

    /// A cancellation was answered with success.
    pub fn cancelled_ok(&self, cookie: u64) {
        self.step(cookie, Life::Submitted, Life::Cancelled, "cancelled");
    }

    fn step(&self, cookie: u64, from: Life, to: Life, what: &str) {
        let mut seen = self.seen();
        let over = seen.over;
        let wrong = match seen.requests.get_mut(&cookie) {
            None => Some(format!("{what}: {cookie} was never submitted")),
            Some((_, life)) if *life != from => Some(format!("{what}: {cookie} is {life:?} already")),
            Some((_, life)) => {
                *life = to;
                (over && !matches!(what, "completed" | "refused")).then(|| format!("{what}: {cookie} after the end"))
            }
        };
        seen.wrong.extend(wrong);
    }

    /// Starts are in order where ranges overlap and one writes: an earlier one has ended.
    fn check_order(&self, request: &Request) {
        let mut seen = self.seen();
        let overlaps = |other: &Request| {
            other.file == request.file
                && other.target == request.target
                && (other.op == Op::Write || request.op == Op::Write)
                && other.offset < request.offset + u64::from(request.len)
                && request.offset < other.offset + u64::from(other.len)
        };
        let busy = seen
            .order
            .iter()
            .map(|cookie| seen.requests[cookie])
            .find(|(other, life)| other.cookie != request.cookie && *life == Life::Started && overlaps(other));
        if let Some((other, _)) = busy {
            seen.wrong.push(format!("{} was started while {} is in flight", request.cookie, other.cookie));
        }
    }

    /// Something is left for later.
    pub fn has_started(&self) -> bool {
        !self.later.lock().expect("no panic").is_empty()
    }

    /// Completes what was left for later; false if there was nothing.
    pub fn complete_some(&self) -> bool {
        let Some((id, request, completer)) = self.later.lock().expect("no panic").pop() else { return false };
        self.step(request.cookie, Life::Started, Life::Completed, "completed");
        completer.complete(id, Outcome::ok(request.len));
        true
    }

    /// Completes until every request has ended, also those that other threads are about to start.
    pub fn complete_all(&self) {
        let open = |life: &Life| matches!(life, Life::Submitted | Life::Started);
        while self.seen().requests.values().any(|(_, life)| open(life)) {
            if !self.complete_some() {
                shuttle::thread::yield_now();
            }
        }
    }

    /// No call is to come from now on.
    pub fn is_over(&self) {
        self.seen().over = true;
    }

    /// Everything was told once, and nothing was wrong.
    pub fn expect_all_told(&self) {
        let seen = self.seen();
        assert!(seen.wrong.is_empty(), "{:?}", seen.wrong);
        let open: Vec<_> = seen.requests.values().filter(|(_, life)| *life == Life::Submitted).collect();
        assert!(open.is_empty(), "never told of: {open:?}");
    }

    /// As [`Checked::expect_all_told`], and nothing is in flight.
    pub fn expect_all_ended(&self) {
        self.expect_all_told();
        let seen = self.seen();
        let open: Vec<_> = seen.requests.values().filter(|(_, life)| *life == Life::Started).collect();
        assert!(open.is_empty(), "never completed: {open:?}");
    }
}

impl Executor for Checked {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        for part in batch.parts() {
            self.check_order(&part.request);
            self.step(part.request.cookie, Life::Submitted, Life::Started, "started");
            let inside = self.inside.lock().expect("no panic").clone();
            if let Some(inside) = inside {
                inside(&part.request);
            }
            match self.completes {
                Completes::AtOnce => {
                    self.step(part.request.cookie, Life::Started, Life::Completed, "completed");
                    started.complete(part.id, Outcome::ok(part.request.len));
                }
                // Through the inbox, as hosts do that know nothing of the call they are in.
                Completes::InTheCall => {
                    self.step(part.request.cookie, Life::Started, Life::Completed, "completed");
                    started.completer().complete(part.id, Outcome::ok(part.request.len));
                }
                Completes::Later => {
                    self.later.lock().expect("no panic").push((part.id, part.request, started.completer().clone()));
                }
            }
        }
        let after = self.after.lock().expect("no panic").clone();
        if let Some(after) = after {
            after(&batch.parts()[0].request);
        }
    }

    fn cancelled(&self, request: &Request, _: i32) {
        self.step(request.cookie, Life::Submitted, Life::Cancelled, "told of cancellation");
    }
}
