//! The features of each window against a naive count over all that happened in it.
//!
//! A failure prints its input; `PROPTEST_CASES=10000 cargo test -p sluice-core --test windows` tries harder.

use proptest::prelude::*;
use sluice_core::{
    AppId, Batch, Engine, EngineConfig, FileId, Histogram, Op, OpFeatures, Outcome, PolicyConfig, Request, RequestId,
    TargetId, Time, WindowFeatures,
};
use std::collections::{BTreeMap, HashMap, HashSet};

const WINDOW_NS: u64 = 1_000;

#[derive(Clone, Debug)]
enum Step {
    Submit { file: u64, target: u32, app: u32, write: bool, offset: u64, len: u32 },
    Dispatch,
    Complete { error: bool },
    Cancel,
    Roll,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offset = prop_oneof![3 => (0..10_u64).prop_map(|n| n * 100), 1 => 0..=u64::MAX - 1_000];
    let submit = (0..4_u64, 0..3_u32, 0..5_u32, any::<bool>(), offset, prop_oneof![0..300_u32, Just(100)])
        .prop_map(|(file, target, app, write, offset, len)| Step::Submit { file, target, app, write, offset, len });
    let step = prop_oneof![
        8 => submit,
        5 => Just(Step::Dispatch),
        4 => prop::bool::weighted(0.2).prop_map(|error| Step::Complete { error }),
        1 => Just(Step::Cancel),
        1 => Just(Step::Roll),
        3 => (0..WINDOW_NS / 2).prop_map(Step::Pass),
        1 => (0..5 * WINDOW_NS).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..200)
}

/// Everything that happened in a window.
#[derive(Default)]
struct Seen {
    requests: Vec<Request>,
    done_for: HashSet<AppId>,
    /// Signed distance, length of the request before, and whether they touch, for each request that has a distance.
    distances: [Vec<(i128, u32, bool)>; 2],
    depths: Vec<u32>,
    batches: Vec<usize>,
    waits: Histogram,
    services: Histogram,
    moved: [u64; 2],
    completed: [u64; 2],
    errors: [u64; 2],
    blocked: u64,
    cancelled: u64,
    refused: u64,
}

fn is_close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    if count == 0 { 0.0 } else { values.sum::<f64>() / count as f64 }
}

impl Seen {
    fn check_op(&self, op: Op, features: &OpFeatures) {
        let requests: Vec<&Request> = self.requests.iter().filter(|r| r.op == op).collect();
        let sizes = || requests.iter().map(|r| r.len);
        assert_eq!((features.requests, features.bytes), (requests.len() as u64, sizes().map(u64::from).sum()));
        let range = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        assert_eq!((features.size_min, features.size_max), range);
        let distances = &self.distances[op.index()];
        assert_eq!(features.distances, distances.len() as u64);
        let contiguous = distances.iter().map(|(.., touches)| f64::from(u8::from(*touches)));
        for (name, got, expected) in [
            ("mean size", features.size_mean, mean(sizes().map(f64::from))),
            ("mean", features.distance_mean, mean(distances.iter().map(|(d, ..)| *d as f64))),
            ("mean absolute", features.distance_abs_mean, mean(distances.iter().map(|(d, ..)| d.abs() as f64))),
            ("D", features.distance_normalised, mean(distances.iter().map(|(d, l, _)| d.abs() as f64 / f64::from(*l)))),
            ("contiguous", features.contiguous, mean(contiguous)),
        ] {
            // Sums of distances lose their low bits against a far one.
            let scale = distances.iter().map(|(d, ..)| d.abs() as f64).fold(1.0, f64::max);
            assert!(is_close(got, expected) || (got - expected).abs() < scale * 1e-9, "{name}: {got}, not {expected}");
        }
        let done = (self.completed[op.index()], self.errors[op.index()], self.moved[op.index()]);
        assert_eq!((features.completed, features.errors, features.moved), done);
    }

    fn check(&self, features: &WindowFeatures) {
        [Op::Read, Op::Write].into_iter().for_each(|op| self.check_op(op, &features.ops[op.index()]));
        let different =
            |number: fn(&Request) -> (u64, u32)| self.requests.iter().map(number).collect::<HashSet<_>>().len() as u32;
        assert_eq!(features.files, different(|r| (r.file.0, r.target.0)));
        assert_eq!(features.apps as usize, self.done_for.len());
        assert_eq!(features.targets, different(|r| (0, r.target.0)));
        assert_eq!(features.batches, self.batches.len() as u64);
        assert_eq!(features.batch_requests_max as usize, self.batches.iter().copied().max().unwrap_or(0));
        assert!(is_close(features.batch_requests_mean, mean(self.batches.iter().map(|n| *n as f64))));
        assert!(is_close(features.depth_mean, mean(self.depths.iter().map(|n| f64::from(*n)))));
        assert_eq!(features.depth_max, self.depths.iter().copied().max().unwrap_or(0));
        for (features, exact) in [(&features.wait, &self.waits), (&features.service, &self.services)] {
            assert_eq!(
                (features.count, features.mean_ns, features.max_ns),
                (exact.count(), exact.mean_ns(), exact.max_ns())
            );
            assert_eq!(features.p50_ns, exact.percentile_ns(50.0));
            assert_eq!(features.p99_ns, exact.percentile_ns(99.0));
        }
        assert_eq!(
            (features.blocked, features.cancelled, features.refused),
            (self.blocked, self.cancelled, self.refused)
        );
    }
}

struct Driver {
    engine: Engine,
    now: Time,
    batch: Batch,
    queued: Vec<(RequestId, Time)>,
    in_flight: Vec<(RequestId, Request, Time)>,
    last: HashMap<(u64, u32, Op), Request>,
    /// By number of the window.
    windows: BTreeMap<u64, Seen>,
    /// Nanoseconds of each window in which something was outstanding, and how many requests, bytes, and reads in all.
    busy: BTreeMap<u64, (u64, [u64; 3])>,
    /// Files and applications that had outstanding requests in each window.
    waiting: BTreeMap<u64, HashSet<(FileId, TargetId, AppId)>>,
    closed: Vec<WindowFeatures>,
    /// Windows in which the engine was called.
    told: HashSet<u64>,
}

impl Driver {
    fn seen(&mut self) -> &mut Seen {
        self.windows.entry((self.now.0 - 1) / WINDOW_NS).or_default()
    }

    fn submit(&mut self, request: Request) {
        let (depth, blocked) = (self.engine.queued(), self.engine.stats().total().blocked);
        let Ok(id) = self.engine.submit(self.now, request) else {
            self.seen().refused += 1;
            return;
        };
        self.queued.push((id, self.now));
        self.waiting.entry((self.now.0 - 1) / WINDOW_NS).or_default().insert((
            request.file,
            request.target,
            request.app,
        ));
        let blocked = self.engine.stats().total().blocked - blocked;
        let queue = (request.file.0, request.target.0, request.op);
        let last = if request.len > 0 { self.last.insert(queue, request) } else { None };
        let seen = self.seen();
        seen.requests.push(request);
        seen.depths.push(depth);
        seen.blocked += blocked;
        if let Some(last) = last {
            let place = |offset: u64| i128::from(offset.min(i64::MAX as u64));
            let exact = i128::from(request.offset) - i128::from(last.end());
            let distance = place(request.offset) - place(last.end());
            seen.distances[request.op.index()].push((distance, last.len, exact == 0));
        }
    }

    fn dispatch(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        if self.engine.poll_dispatch(self.now, &mut batch) {
            self.seen().batches.push(batch.requests());
            for part in batch.parts() {
                let at = self.queued.iter().position(|(id, _)| *id == part.id).expect("it was queued");
                let (id, arrived) = self.queued.remove(at);
                let wait = self.now.since(arrived);
                self.seen().waits.record(wait);
                self.in_flight.push((id, part.request, self.now));
            }
        } else {
            // With nothing to dispatch the time may not be taken.
            self.engine.roll(self.now);
        }
        self.batch = batch;
    }

    fn pass(&mut self, ns: u64) {
        let ids = self.queued.iter().map(|(id, _)| *id).chain(self.in_flight.iter().map(|(id, ..)| *id));
        let outstanding: Vec<Request> = ids.filter_map(|id| self.engine.request(id)).collect();
        if !outstanding.is_empty() {
            let bytes = outstanding.iter().map(|request| u64::from(request.len)).sum();
            let reads = outstanding.iter().filter(|request| request.op == Op::Read).count() as u64;
            for at in self.now.0..self.now.0 + ns {
                let (busy, sums) = self.busy.entry((at - 1) / WINDOW_NS).or_default();
                *busy += 1;
                sums.iter_mut().zip([outstanding.len() as u64, bytes, reads]).for_each(|(sum, now)| *sum += now);
            }
        }
        for at in (self.now.0..=self.now.0 + ns).filter(|at| (at - 1) % WINDOW_NS == 0 || *at == self.now.0) {
            let files = outstanding.iter().map(|request| (request.file, request.target, request.app));
            self.waiting.entry((at - 1) / WINDOW_NS).or_default().extend(files);
        }
        self.now = self.now.after(ns);
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Submit { file, target, app, write, offset, len } => self.submit(Request {
                cookie: 0,
                file: FileId(file),
                app: AppId(app),
                target: TargetId(target),
                op: if write { Op::Write } else { Op::Read },
                offset,
                len,
            }),
            Step::Dispatch => self.dispatch(),
            Step::Complete { error } => {
                let Some((id, request, since)) = self.in_flight.pop() else { return };
                let outcome = if error { Outcome::err(5) } else { Outcome::ok(request.len / 2) };
                self.engine.complete(self.now, id, outcome).expect("it is in flight");
                let (service, op) = (self.now.since(since), request.op.index());
                let seen = self.seen();
                seen.done_for.insert(request.app);
                seen.services.record(service);
                seen.completed[op] += 1;
                seen.errors[op] += u64::from(error);
                seen.moved[op] += u64::from(outcome.bytes);
            }
            Step::Cancel => {
                let Some((id, _)) = self.queued.pop() else { return };
                self.engine.cancel(self.now, id).expect("it is queued");
                self.seen().cancelled += 1;
            }
            Step::Roll => self.engine.roll(self.now),
            Step::Pass(ns) => return self.pass(ns),
        }
        // A window that the engine was told of is recorded if requests were outstanding in it, too.
        self.told.insert((self.now.0 - 1) / WINDOW_NS);
        while let Some(closed) = self.engine.closed_window() {
            self.closed.push(closed);
        }
    }
}

fn driver(capacity: u32) -> Driver {
    let config = EngineConfig { capacity, files_max: 64, window_ns: WINDOW_NS, ..EngineConfig::default() };
    let policy = PolicyConfig::parse("sjf").expect("a name from the table");
    Driver {
        engine: Engine::new(config, &policy, Time(1)).expect("a valid configuration"),
        now: Time(1),
        batch: Batch::new(),
        queued: Vec::new(),
        in_flight: Vec::new(),
        last: HashMap::new(),
        windows: BTreeMap::new(),
        busy: BTreeMap::new(),
        waiting: BTreeMap::new(),
        closed: Vec::new(),
        told: HashSet::from([0]),
    }
}

proptest! {
    #[test]
    fn each_window_is_recorded_once_with_what_it_saw(steps in steps()) {
        let mut driver = driver(24);
        for step in &steps {
            driver.apply(step);
            // A window that saw something ends, and a timer can be set for it.
            let seen = driver.windows.contains_key(&((driver.now.0 - 1) / WINDOW_NS));
            prop_assert!(!seen || driver.engine.stats().window_end().is_some());
        }
        if let Some(end) = driver.engine.stats().window_end() {
            driver.pass(end.since(driver.now));
            driver.apply(&Step::Roll);
        }
        let goes_on = !driver.queued.is_empty() || !driver.in_flight.is_empty();
        prop_assert_eq!(driver.engine.stats().window_end().is_some(), goes_on);
        prop_assert_eq!(driver.engine.stats().windows_lost(), 0);
        let running = (driver.now.0 - 1) / WINDOW_NS;
        let busy = driver.busy.keys().filter(|number| driver.told.contains(number) && **number < running);
        busy.for_each(|number| _ = driver.windows.entry(*number).or_default());
        let expected: Vec<(u64, &Seen)> = driver.windows.iter().map(|(number, seen)| (*number, seen)).collect();
        let starts: Vec<u64> = driver.closed.iter().map(|closed| (closed.start.0 - 1) / WINDOW_NS).collect();
        prop_assert_eq!(starts, expected.iter().map(|(number, _)| *number).collect::<Vec<_>>());
        for (closed, (number, seen)) in driver.closed.iter().zip(expected) {
            prop_assert_eq!((closed.start, closed.end), (Time(1 + number * WINDOW_NS), Time(1 + (number + 1) * WINDOW_NS)));
            seen.check(closed);
            let (busy, sums) = driver.busy.get(&number).copied().unwrap_or_default();
            prop_assert_eq!(closed.busy_ns, busy);
            let waiting = driver.waiting.get(&number).cloned().unwrap_or_default();
            let files: HashSet<(FileId, TargetId)> = waiting.iter().map(|(file, target, _)| (*file, *target)).collect();
            let apps: HashSet<AppId> = waiting.iter().map(|(.., app)| *app).collect();
            prop_assert_eq!((closed.files_outstanding as usize, closed.apps_outstanding as usize), (files.len(), apps.len()));
            let means = [closed.outstanding_mean, closed.outstanding_bytes_mean, closed.outstanding_reads_mean];
            for (got, sum) in means.into_iter().zip(sums) {
                prop_assert!(is_close(got, sum as f64 / busy.max(1) as f64), "{got}, not {sum} / {busy}");
            }
        }
    }
}

/// What nobody takes does not grow, and is counted.
#[test]
fn windows_that_nobody_takes_are_lost_oldest_first() {
    let mut driver = driver(4);
    for _ in 0..20 {
        let (file, app, target) = (FileId(1), AppId(0), TargetId(0));
        let request = Request { cookie: 0, file, app, target, op: Op::Read, offset: 0, len: 1 };
        let id = driver.engine.submit(driver.now, request).expect("there is room");
        driver.engine.cancel(driver.now, id).expect("it is queued");
        driver.now = driver.now.after(WINDOW_NS);
        driver.engine.roll(driver.now);
    }
    assert_eq!(driver.engine.stats().windows_lost(), 12);
    let starts: Vec<u64> = std::iter::from_fn(|| driver.engine.closed_window()).map(|closed| closed.start.0).collect();
    assert_eq!(starts, (12..20).map(|n| 1 + n * WINDOW_NS).collect::<Vec<_>>());
}

/// A driver that does as it is told, with a device that takes longer than ten windows for a request: all of that time is in windows.
#[test]
fn windows_end_while_nothing_but_serving_goes_on() {
    let config = EngineConfig { window_ns: WINDOW_NS, ..EngineConfig::default() };
    let mut engine = Engine::new(config, &PolicyConfig::parse("sjf").unwrap(), Time::ZERO).unwrap();
    let (mut batch, mut windows) = (Batch::default(), Vec::new());
    let request =
        Request { cookie: 1, file: FileId(1), app: AppId(0), target: TargetId(0), op: Op::Read, offset: 0, len: 4096 };
    engine.submit(Time::ZERO, request).unwrap();
    assert!(engine.poll_dispatch(Time::ZERO, &mut batch));
    let end = Time(10 * WINDOW_NS + WINDOW_NS / 2);
    while let Some(at) = engine.stats().window_end().filter(|at| *at < end) {
        engine.roll(at);
        windows.extend(std::iter::from_fn(|| engine.closed_window()));
    }
    engine.complete(end, batch.parts()[0].id, Outcome::ok(4096)).unwrap();
    engine.roll(Time(20 * WINDOW_NS));
    windows.extend(std::iter::from_fn(|| engine.closed_window()));
    assert_eq!(windows.iter().map(|window| window.busy_ns).sum::<u64>(), end.0, "{} windows", windows.len());
    assert_eq!(engine.stats().window_end(), None, "nothing goes on: nothing to wait for");
}
