//! Drives an engine and checks every promise that holds whatever the policy.
#![allow(dead_code, reason = "each test program uses a part")]

use std::cmp::Reverse;
use std::collections::BTreeSet;

use proptest::prelude::*;
use sluice_core::{
    Anticipation, AppId, Batch, Engine, EngineConfig, FileId, GatePlan, Op, Ordering, Outcome, PolicyConfig, Request,
    RequestId, TargetId, Time,
};

/// A request as the harness knows it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Item {
    pub id: RequestId,
    pub request: Request,
    /// Place in the order of submission.
    pub number: u64,
    pub arrived: Time,
    /// Since when nothing holds it back, and its place in the order of becoming so.
    pub eligible: Option<(Time, u64)>,
    pub in_flight: bool,
}

impl Item {
    pub fn place(&self) -> u64 {
        self.eligible.expect("only asked of eligible requests").1
    }

    /// The file queue.
    pub fn queue(&self) -> (u64, u32, Op) {
        (self.request.file.0, self.request.target.0, self.request.op)
    }

    pub fn is_queued(&self) -> bool {
        self.eligible.is_some() && !self.in_flight
    }

    fn conflicts(&self, later: &Item) -> bool {
        let (a, b) = (&self.request, &later.request);
        let overlap = a.offset < b.end() && b.offset < a.end() && a.len > 0 && b.len > 0;
        overlap && (a.file, a.target) == (b.file, b.target) && (a.op == Op::Write || b.op == Op::Write)
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    Submit { file: u64, write: bool, block: u64, blocks: u32, app: u32, target: u32 },
    Dispatch,
    Complete(usize),
    Cancel(usize),
    Pass(u64),
}

pub const BLOCK: u64 = 1_000;

/// Sequences in which neighbours, overlaps and duplicates are common; on one target, or with the same files on several.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    (1..6_u32).prop_flat_map(steps_on)
}

fn steps_on(targets: u32) -> impl Strategy<Value = Vec<Step>> {
    let submit = (0..3_u64, prop::bool::weighted(0.3), 0..12_u64, 0..4_u32, 0..3_u32, 0..targets)
        .prop_map(|(file, write, block, blocks, app, target)| Step::Submit { file, write, block, blocks, app, target });
    let step = prop_oneof![
        10 => submit,
        7 => Just(Step::Dispatch),
        4 => any::<usize>().prop_map(Step::Complete),
        1 => any::<usize>().prop_map(Step::Cancel),
        3 => (0..3_000_000_u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..150)
}

pub fn limits() -> impl Strategy<Value = EngineConfig> {
    let max_wait = prop_oneof![Just(0), Just(2_000_000), Just(u64::MAX)];
    let bounds = prop_oneof![Just((u64::MAX, u32::MAX)), (1..6_000_u64, 1..5_u32)];
    let ordering = prop_oneof![4 => Just(Ordering::Strict), 1 => Just(Ordering::None)];
    (max_wait, bounds, prop_oneof![Just(0), Just(1), Just(3)], ordering).prop_map(
        |(max_wait_ns, (batch_bytes_max, batch_requests_max), in_flight_max, ordering)| EngineConfig {
            capacity: 48,
            files_max: 16,
            ordering,
            max_wait_ns,
            batch_bytes_max,
            batch_requests_max,
            in_flight_max,
            ..EngineConfig::default()
        },
    )
}

/// As [`limits`], with anticipation or without.
pub fn any_limits() -> impl Strategy<Value = EngineConfig> {
    let some = (1..3_000_000_u64, 1..10_000_u64, 1..5_000_000_u64)
        .prop_map(|(positioning_ns, near_bytes, slice_ns)| Some(Anticipation { positioning_ns, near_bytes, slice_ns }));
    (limits(), prop_oneof![Just(None), some]).prop_map(|(limits, anticipation)| EngineConfig { anticipation, ..limits })
}

/// What a call of `poll_dispatch` gave.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// These requests, by number.
    Batch(Vec<u64>),
    Wait(Time),
    Nothing,
}

pub struct Harness {
    pub engine: Engine,
    pub now: Time,
    pub items: Vec<Item>,
    batch: Batch,
    /// Requests of each batch in flight.
    pub batches: Vec<Vec<u64>>,
    submitted: u64,
    places: u64,
    pub completed: u64,
    pub cancelled: u64,
    pub gate: Gate,
}

/// The gate as the harness knows it.
#[derive(Default)]
pub struct Gate {
    pub plan: Option<GatePlan>,
    used: bool,
    /// The objects, and which of them is open.
    turn: Option<(Vec<Vec<AppId>>, usize)>,
    /// What was cancelled or completed since that one opened: what it waited for, maybe through one that was cancelled, may have
    /// been called before.
    gone: Vec<Item>,
}

impl Gate {
    /// The plan in force.
    pub fn in_force(&self, now: Time) -> Option<&GatePlan> {
        self.plan.as_ref().filter(|plan| plan.from <= now && now < plan.expires)
    }

    pub fn object(plan: &GatePlan, app: AppId) -> usize {
        let own = plan.slices.iter().position(|slice| slice.apps.contains(&app));
        own.or_else(|| plan.slices.iter().position(|slice| slice.apps.is_empty())).expect("there are others")
    }

    /// Whose slice it is, and when that ends: counted from the window's first.
    pub fn open(plan: &GatePlan, now: Time) -> (usize, Time) {
        let window = i128::from(plan.window_ns());
        let mut at = i128::from(now.0) - (i128::from(now.0) - i128::from(plan.epoch.0)).rem_euclid(window);
        for (object, slice) in plan.slices.iter().enumerate() {
            at += i128::from(slice.len_ns);
            if i128::from(now.0) < at {
                return (object, Time(at as u64));
            }
        }
        unreachable!("the window ends after now")
    }
}

impl Harness {
    pub fn new(config: EngineConfig, policy: &PolicyConfig) -> Harness {
        let engine = Engine::new(config, policy, Time(1)).expect("a valid configuration");
        Harness {
            engine,
            now: Time(1),
            items: Vec::new(),
            batch: Batch::new(),
            batches: Vec::new(),
            submitted: 0,
            places: 0,
            completed: 0,
            cancelled: 0,
            gate: Gate::default(),
        }
    }

    /// Sets a gate that is in force from now on.
    pub fn set_gate(&mut self, plan: Option<GatePlan>) {
        self.engine.set_gate(self.now, plan.clone()).expect("a valid plan");
        if plan.as_ref().is_some_and(|plan| plan.expires <= self.now) {
            return;
        }
        (self.gate.plan, self.gate.used) = (plan, true);
        self.turn_gate();
    }

    /// Time has come to the engine: maybe another object is open.
    fn turn_gate(&mut self) {
        let objects = |plan: &GatePlan| plan.slices.iter().map(|slice| slice.apps.clone()).collect();
        let turn = self.gate.in_force(self.now).map(|plan| (objects(plan), Gate::open(plan, self.now).0));
        if turn != self.gate.turn {
            (self.gate.turn, self.gate.gone) = (turn, Vec::new());
        }
    }

    /// A request behind the gate that may go now.
    fn is_open(&self, plan: &GatePlan, request: &Request) -> bool {
        plan.idle_ns.is_some() || Gate::object(plan, request.app) == Gate::open(plan, self.now).0
    }

    /// Numbers of requests that may go now: those of the open object, and what they wait for, also through others.
    fn called(&self, plan: &GatePlan, gone: &[Item]) -> BTreeSet<u64> {
        let strict = self.engine.config().ordering == Ordering::Strict;
        let mut items: Vec<&Item> = self.items.iter().chain(gone).collect();
        items.sort_by_key(|item| Reverse(item.number));
        let mut called: Vec<&Item> = Vec::new();
        for item in items {
            let is_called = || strict && called.iter().any(|later| item.conflicts(later));
            if self.is_open(plan, &item.request) || is_called() {
                called.push(item);
            }
        }
        called.iter().map(|item| item.number).collect()
    }

    /// What is in flight, and what waits for that, maybe through others.
    pub fn served(&self) -> Vec<Item> {
        let mut items = self.items.clone();
        items.sort_by_key(|item| item.number);
        let mut served: Vec<Item> = Vec::new();
        for item in items {
            if item.in_flight || served.iter().any(|earlier| earlier.conflicts(&item)) {
                served.push(item);
            }
        }
        served
    }

    /// A batch that was let out although it may be of a closed object.
    pub fn check_gate(&mut self, numbers: &[u64]) {
        self.turn_gate();
        let Some(plan) = self.gate.in_force(self.now) else { return };
        let max_wait = self.engine.config().max_wait_ns;
        let called = self.called(plan, &self.gate.gone);
        for item in self.items.iter().filter(|item| numbers.contains(&item.number)) {
            let waited = item.eligible.map_or(0, |(since, _)| self.now.since(since));
            let overdue = max_wait != 0 && waited >= max_wait.saturating_add(plan.window_ns()) && numbers.len() == 1;
            assert!(
                overdue || called.contains(&item.number),
                "request {} goes although its object is closed",
                item.number
            );
        }
    }

    pub fn queued(&self) -> Vec<Item> {
        let mut queued: Vec<Item> = self.items.iter().filter(|item| item.is_queued()).copied().collect();
        queued.sort_by_key(Item::place);
        queued
    }

    /// Requests that have just become eligible.
    fn release(&mut self) -> Vec<Item> {
        let strict = self.engine.config().ordering == Ordering::Strict;
        let mut released = Vec::new();
        for at in 0..self.items.len() {
            let item = self.items[at];
            let held = strict && self.items.iter().any(|other| other.number < item.number && other.conflicts(&item));
            if item.eligible.is_none() && !held {
                self.places += 1;
                self.items[at].eligible = Some((self.now, self.places));
                released.push(self.items[at]);
            }
        }
        released
    }

    /// Submits; what became eligible by it.
    pub fn submit(&mut self, request: Request) -> Vec<Item> {
        let full = self.items.len() == self.engine.config().capacity as usize;
        match self.engine.submit(self.now, request) {
            Ok(id) => {
                assert!(!full, "more requests than the capacity");
                self.submitted += 1;
                let (number, arrived) = (self.submitted, self.now);
                self.items.push(Item { id, request, number, arrived, eligible: None, in_flight: false });
                self.release()
            }
            Err(_) => {
                assert!(full, "refused although there is room");
                Vec::new()
            }
        }
    }

    /// Whether the in-flight limit forbids a batch.
    pub fn at_limit(&self) -> bool {
        let limit = self.engine.config().in_flight_max as usize;
        !self.engine.policy().info().bypasses_queue && limit > 0 && self.batches.len() >= limit
    }

    /// Calls `poll_dispatch` and checks what must hold under any policy.
    pub fn dispatch(&mut self) -> Answer {
        let mut queued = self.queued();
        // What is held is overdue later, and what was held is queued in another order.
        let waiting = queued.len();
        let plan = self.gate.in_force(self.now).cloned();
        if let Some(plan) = &plan {
            queued.retain(|item| self.is_open(plan, &item.request) && plan.idle_ns.is_none());
        }
        let oldest = queued.iter().min_by_key(|item| item.place()).copied();
        let max_wait = self.engine.config().max_wait_ns;
        let slice = self.engine.config().anticipation.map(|anticipation| anticipation.longest_slice_ns());
        let goes = self.engine.poll_dispatch(self.now, &mut self.batch);
        self.turn_gate();
        if !goes {
            let wake = self.engine.poll_timeout();
            assert!(wake.is_none_or(|at| at > self.now), "asks to be called again at once");
            if let Some(plan) = &plan
                && waiting > queued.len()
                && self.engine.gate().is_some_and(|gate| gate.held > 0)
            {
                let latest = Gate::open(plan, self.now).1.min(plan.expires);
                assert!(wake.is_some_and(|at| at <= latest), "would sleep beyond the slice: {wake:?}, {latest:?}");
            }
            if let Some((since, _)) = oldest.and_then(|item| item.eligible)
                && !self.at_limit()
                && max_wait != 0
                && since.after(max_wait) < Time(u64::MAX)
            {
                let latest = since.after(max_wait).max(self.now.after(slice.unwrap_or(0)));
                assert!(wake.is_some_and(|at| at <= latest), "would sleep beyond max_wait");
            }
            return wake.map_or(Answer::Nothing, Answer::Wait);
        }
        assert!(!self.at_limit(), "more batches in flight than allowed");
        let numbers = self.check_batch();
        self.check_gate(&numbers);
        if let Some((since, _)) = oldest.and_then(|item| item.eligible)
            && max_wait != 0
            && slice.is_none()
            && self.gate.plan.is_none()
            && self.now.since(since) >= max_wait
        {
            let first = oldest.map(|item| item.number).unwrap_or_default();
            // Behind a gate those of different objects that came at the same time have no order.
            let as_old = |item: &&Item| self.gate.used && item.eligible.is_some_and(|(at, _)| at == since);
            let goes = self.items.iter().filter(as_old).any(|item| numbers.contains(&item.number));
            assert!(goes || numbers.contains(&first), "request {first} is overdue and does not go next");
        }
        self.batches.push(numbers.clone());
        Answer::Batch(numbers)
    }

    fn check_batch(&mut self) -> Vec<u64> {
        let config = self.engine.config();
        let parts = self.batch.parts();
        assert!(!parts.is_empty() && parts.len() <= config.batch_requests_max as usize);
        assert!(parts.len() == 1 || self.batch.bytes() <= config.batch_bytes_max, "too many bytes");
        for pair in parts.windows(2) {
            let (a, b) = (&pair[0].request, &pair[1].request);
            assert_eq!(
                (a.end(), a.file, a.target, a.op),
                (b.offset, b.file, b.target, b.op),
                "parts do not follow each other"
            );
        }
        let mut numbers = Vec::new();
        for part in parts {
            let item = self.items.iter_mut().find(|item| item.id == part.id).expect("only what was submitted");
            assert_eq!(item.request, part.request, "a request comes out as it went in");
            assert!(item.eligible.is_some(), "an earlier request that overlaps is not complete");
            assert!(!std::mem::replace(&mut item.in_flight, true), "dispatched twice");
            numbers.push(item.number);
        }
        numbers
    }

    fn nth(&self, at: usize, in_flight: bool) -> Option<Item> {
        let there: Vec<&Item> = self.items.iter().filter(|item| item.in_flight == in_flight).collect();
        (!there.is_empty()).then(|| *there[at % there.len()])
    }

    fn forget(&mut self, number: u64) -> Vec<Item> {
        self.items.retain(|item| item.number != number);
        self.release()
    }

    /// Completes some request in flight; what became eligible by it.
    pub fn complete(&mut self, at: usize) -> Vec<Item> {
        let Some(item) = self.nth(at, true) else { return Vec::new() };
        self.engine.complete(self.now, item.id, Outcome::ok(item.request.len)).expect("it is in flight");
        assert!(self.engine.complete(self.now, item.id, Outcome::ok(0)).is_err(), "completed twice");
        assert!(self.engine.cancel(self.now, item.id).is_err(), "cancelled after its completion");
        self.completed += 1;
        self.gate.gone.push(item);
        self.batches.iter_mut().for_each(|batch| batch.retain(|number| *number != item.number));
        self.batches.retain(|batch| !batch.is_empty());
        self.forget(item.number)
    }

    /// Cancels some request not in flight; it, and what became eligible by it.
    pub fn cancel(&mut self, at: usize) -> Option<(Item, Vec<Item>)> {
        if let Some(item) = self.nth(at, true) {
            assert!(self.engine.cancel(self.now, item.id).is_err(), "cancelled in flight");
        }
        let item = self.nth(at, false)?;
        assert!(self.engine.complete(self.now, item.id, Outcome::ok(0)).is_err(), "completed before its dispatch");
        assert_eq!(self.engine.cancel(self.now, item.id), Ok(item.request));
        assert!(self.engine.cancel(self.now, item.id).is_err(), "cancelled twice");
        self.cancelled += 1;
        self.gate.gone.push(item);
        Some((item, self.forget(item.number)))
    }

    pub fn apply(&mut self, step: &Step) {
        match *step {
            Step::Submit { .. } => _ = self.submit(request(step, self.submitted)),
            Step::Dispatch => _ = self.dispatch(),
            Step::Complete(at) => _ = self.complete(at),
            Step::Cancel(at) => _ = self.cancel(at),
            Step::Pass(ns) => self.now = self.now.after(ns),
        }
        self.check_counts();
    }

    pub fn check_counts(&self) {
        let in_flight = self.items.iter().filter(|item| item.in_flight).count();
        assert_eq!(self.engine.in_flight() as usize, in_flight);
        assert_eq!(self.engine.queued() as usize, self.items.len() - in_flight);
        let total = self.engine.stats().total();
        let counted = (total.submitted(), total.completed(), total.cancelled);
        assert_eq!(counted, (self.submitted, self.completed, self.cancelled), "statistics");
    }

    /// Everything comes out within the time that waits and windows allow.
    pub fn drain(&mut self) {
        let mut idle = 0;
        while !self.items.is_empty() {
            let answer = self.dispatch();
            match answer {
                Answer::Batch(_) => continue,
                _ if self.items.iter().any(|item| item.in_flight) => _ = self.complete(0),
                Answer::Wait(at) => self.now = at,
                Answer::Nothing => panic!("{} requests are stuck", self.items.len()),
            }
            idle += 1;
            assert!(idle < 10_000, "{} requests never come out", self.items.len());
        }
        self.check_counts();
    }
}

/// The request of a submission step.
pub fn request(step: &Step, cookie: u64) -> Request {
    let Step::Submit { file, write, block, blocks, app, target } = *step else { panic!("not a submission") };
    Request {
        cookie,
        file: FileId(file),
        app: AppId(app),
        target: TargetId(target),
        op: if write { Op::Write } else { Op::Read },
        offset: block * BLOCK,
        len: blocks * BLOCK as u32,
    }
}
