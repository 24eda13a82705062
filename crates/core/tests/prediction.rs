//! Holding batches back for predicted neighbours: whatever the predictor says, nothing is lost, doubled, reordered
//! unsafely or delayed beyond `max_wait`; and where it is right, requests are aggregated that would not have been.
//!
//! A failure prints its input; `PROPTEST_CASES=10000 cargo test -p sluice-core --test prediction` tries harder.

use proptest::prelude::*;
use sluice_core::{
    Anticipation, AppId, Batch, Chosen, Engine, EngineConfig, Expected, FileId, Op, Outcome, PolicyConfig, Predictor,
    PreparedPolicy, Request, RequestId, TargetId, Time, WaitReport, Work, policy::table,
};
use std::collections::HashMap;

const MAX_WAIT: u64 = 50_000;

/// Answers from a list, again and again.
#[derive(Debug)]
struct Arbitrary {
    answers: Vec<Answer>,
    next: usize,
}

/// Bytes in front and behind, how long to wait, and how much of that with an idle device.
type Answer = Option<(u64, u64, u64, u64)>;

impl Predictor for Arbitrary {
    fn submitted(&mut self, _: Time, _: &Request) {}

    fn expect(&mut self, now: Time, chosen: &Chosen) -> Option<Expected> {
        self.next += 1;
        let (before, behind, wait, idle) = self.answers[self.next % self.answers.len()]?;
        let offset = chosen.offset.saturating_sub(before);
        let (until, idle_until) = (now.after(wait), now.after(idle));
        Some(Expected { offset, end: chosen.end + behind, until, idle_until, missing: u64::MAX })
    }

    fn waited(&mut self, wait: &WaitReport) {
        assert!(wait.overlapped_ns <= wait.waited_ns, "{wait:?}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Submit { file: u64, write: bool, block: u64, blocks: u32 },
    Dispatch,
    Complete(usize),
    Cancel(usize),
    Pass(u64),
    Policy(usize),
    Predictor(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..3_u64, any::<bool>(), 0..12_u64, 0..3_u32)
            .prop_map(|(file, write, block, blocks)| Step::Submit { file, write, block, blocks }),
        6 => Just(Step::Dispatch),
        4 => any::<usize>().prop_map(Step::Complete),
        1 => any::<usize>().prop_map(Step::Cancel),
        3 => (0..20_000_u64).prop_map(Step::Pass),
        1 => (0..table().len()).prop_map(Step::Policy),
        1 => any::<bool>().prop_map(Step::Predictor),
    ];
    prop::collection::vec(step, 1..200)
}

struct Driver {
    engine: Engine,
    now: Time,
    batch: Batch,
    /// By handle: the request, its number in the order of submission, and whether it is in flight.
    outstanding: HashMap<u64, (Request, u64, bool)>,
    submitted: u64,
    answers: Vec<Answer>,
}

impl Driver {
    fn new(policy: &str, answers: Vec<Answer>) -> Driver {
        Driver::anticipating(policy, answers, false)
    }

    /// Streams may be waited for, too.
    fn anticipating(policy: &str, answers: Vec<Answer>, anticipates: bool) -> Driver {
        let streams = Anticipation { positioning_ns: 8_000, near_bytes: 1 << 16, slice_ns: 20_000 };
        let anticipation = anticipates.then_some(streams);
        let limits = EngineConfig { capacity: 64, files_max: 8, max_wait_ns: MAX_WAIT, ..EngineConfig::default() };
        let config = EngineConfig { anticipation, ..limits };
        let policy = PolicyConfig::parse(policy).expect("a name from the table");
        let engine = Engine::new(config, &policy, Time(1)).expect("a valid configuration");
        let (now, batch) = (Time(1), Batch::new());
        let mut driver = Driver { engine, now, batch, outstanding: HashMap::new(), submitted: 0, answers };
        driver.apply(&Step::Predictor(true));
        driver
    }

    fn submit(&mut self, request: Request) {
        if let Ok(id) = self.engine.submit(self.now, request) {
            self.submitted += 1;
            self.outstanding.insert(id.to_bits(), (request, self.submitted, false));
        }
    }

    fn dispatch(&mut self) -> bool {
        if !self.engine.poll_dispatch(self.now, &mut self.batch) {
            if let Some(at) = self.engine.poll_timeout() {
                assert!(at > self.now, "asks to be called again at once");
            }
            return false;
        }
        let parts = self.batch.parts().to_vec();
        for pair in parts.windows(2) {
            assert_eq!(pair[0].request.end(), pair[1].request.offset, "parts are contiguous");
        }
        for part in &parts {
            let (request, number, in_flight) = self.outstanding[&part.id.to_bits()];
            assert_eq!((request, in_flight), (part.request, false), "dispatched once, as submitted");
            for (other, earlier, _) in self.outstanding.values().filter(|(_, n, _)| *n < number) {
                let overlap = other.offset < request.end() && request.offset < other.end();
                let conflict = other.file == request.file && (other.op == Op::Write || request.op == Op::Write);
                assert!(!(overlap && conflict && other.len > 0 && request.len > 0), "{earlier} is not complete");
            }
            self.outstanding.insert(part.id.to_bits(), (request, number, true));
        }
        true
    }

    fn pick(&self, at: usize, in_flight: bool) -> Option<RequestId> {
        let mut ids: Vec<_> = self.outstanding.iter().filter(|(_, r)| r.2 == in_flight).collect();
        ids.sort_by_key(|(_, r)| r.1);
        (!ids.is_empty()).then(|| RequestId::from_bits(*ids[at % ids.len()].0))
    }

    fn complete(&mut self, at: usize) {
        if let Some(id) = self.pick(at, true) {
            self.engine.complete(self.now, id, Outcome::ok(0)).expect("it is in flight");
            self.outstanding.remove(&id.to_bits());
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Submit { file, write, block, blocks } => self.submit(Request {
                cookie: self.submitted,
                file: FileId(file),
                app: AppId(0),
                target: TargetId(0),
                op: if write { Op::Write } else { Op::Read },
                offset: block * 100,
                len: blocks * 100,
            }),
            Step::Dispatch => {
                self.dispatch();
            }
            Step::Complete(at) => self.complete(at),
            Step::Cancel(at) => {
                if let Some(id) = self.pick(at, false) {
                    let request = self.engine.cancel(self.now, id).expect("it is not dispatched");
                    assert_eq!(self.outstanding.remove(&id.to_bits()).map(|r| r.0), Some(request));
                }
            }
            Step::Pass(ns) => self.now = self.now.after(ns),
            Step::Policy(at) => {
                let policy = PolicyConfig::parse(table()[at].name).expect("a name from the table");
                let prepared = PreparedPolicy::new(&policy, self.engine.config());
                self.engine.set_policy(self.now, prepared);
            }
            Step::Predictor(on) => {
                let arbitrary = Arbitrary { answers: self.answers.clone(), next: 0 };
                self.engine.set_predictor(on.then(|| Box::new(arbitrary) as Box<dyn Predictor>));
            }
        }
    }

    /// Everything there comes out.
    fn drain(&mut self) {
        let mut wakes = 0;
        while !self.outstanding.is_empty() {
            while self.dispatch() {}
            if self.pick(0, true).is_some() {
                self.complete(0);
            } else {
                let wake = self.engine.poll_timeout();
                self.now = wake.expect("requests are queued and nothing is in flight: a time to wake");
                wakes += 1;
            }
            assert!(wakes < 10_000, "{} requests never come out", self.outstanding.len());
        }
        assert_eq!((self.engine.queued(), self.engine.in_flight()), (0, 0));
    }
}

proptest! {
    #[test]
    fn a_predictor_may_say_anything(
        policy in 0..table().len(),
        answers in prop::collection::vec(prop::option::of((0..400_u64, 0..800_u64, 0..30_000_u64, 0..30_000_u64)), 1..5),
        steps in steps(),
        anticipates in any::<bool>(),
    ) {
        let mut driver = Driver::anticipating(table()[policy].name, answers, anticipates);
        steps.iter().for_each(|step| driver.apply(step));
        driver.drain();
    }
}

#[test]
fn what_is_predicted_joins_the_batch_that_waits() {
    for info in table().iter().filter(|info| info.aggregates) {
        let mut driver = Driver::new(info.name, vec![Some((0, 300, 20_000, 20_000))]);
        let block = |block: u64| Step::Submit { file: 1, write: false, block, blocks: 1 };
        driver.apply(&block(0));
        assert!(!driver.dispatch(), "{}: it waits", info.name);
        driver.apply(&block(2));
        driver.apply(&block(3));
        driver.now = driver.now.after(1_000);
        driver.apply(&block(1));
        assert!(driver.dispatch(), "{}: all is there", info.name);
        assert_eq!(driver.batch.requests(), 4, "{}", info.name);
    }
}

/// A delay that ends because one of its parts is cancelled must not cost the others the time they have waited already.
#[test]
fn the_others_of_a_cancelled_hold_keep_their_age() {
    for info in table().iter().filter(|info| info.aggregates) {
        let mut driver = Driver::new(info.name, vec![Some((0, 300, MAX_WAIT, MAX_WAIT))]);
        let block = |file, block| Step::Submit { file, write: false, block, blocks: 1 };
        driver.apply(&block(1, 0));
        let first = driver.now;
        assert!(!driver.dispatch(), "{}: it waits", info.name);
        driver.apply(&block(1, 1)); // joins
        driver.apply(&Step::Predictor(false));
        driver.now = driver.now.after(10);
        driver.apply(&block(2, 7));
        driver.apply(&Step::Cancel(1));
        let oldest = driver.pick(0, false).expect("one is left of the batch");
        driver.now = first.after(MAX_WAIT);
        assert!(driver.dispatch(), "{}: overdue", info.name);
        assert_eq!(driver.batch.parts()[0].id, oldest, "{}: the one that is overdue goes", info.name);
    }
}

/// Expects blocks 0 to 3 together, of which so many bytes have not arrived yet. Says so once.
#[derive(Debug)]
struct Once {
    missing: Option<u64>,
}

impl Predictor for Once {
    fn submitted(&mut self, _: Time, _: &Request) {}

    fn expect(&mut self, now: Time, _: &Chosen) -> Option<Expected> {
        let until = now.after(20_000);
        self.missing.take().map(|missing| Expected { offset: 0, end: 400, until, idle_until: until, missing })
    }
}

#[test]
fn a_wait_ends_when_what_was_missing_is_there() {
    for info in table().iter().filter(|info| info.aggregates) {
        let mut driver = Driver::new(info.name, vec![None]);
        driver.engine.set_predictor(Some(Box::new(Once { missing: Some(100) })));
        let block = |block: u64| Step::Submit { file: 1, write: false, block, blocks: 1 };
        driver.apply(&block(0));
        assert!(!driver.dispatch(), "{}: it waits", info.name);
        driver.apply(&block(2));
        assert!(driver.dispatch(), "{}: the wait is over", info.name);
        assert_eq!((driver.batch.offset(), driver.batch.requests()), (0, 1), "{}", info.name);
        driver.complete(0);
        driver.now = driver.now.after(10_000);
        assert!(driver.dispatch(), "{}: what does not touch it goes as the algorithm likes", info.name);
        assert_eq!((driver.batch.offset(), driver.engine.queued()), (200, 0), "{}", info.name);
    }
}

#[test]
fn a_batch_is_delayed_only_as_long_as_the_device_has_others() {
    for info in table().iter().filter(|info| info.aggregates) {
        let mut driver = Driver::new(info.name, vec![Some((0, 300, 20_000, 0))]);
        driver.engine.set_predictor(None);
        let block = |file, block| Step::Submit { file, write: false, block, blocks: 1 };
        driver.apply(&block(1, 0));
        assert!(driver.dispatch(), "{}: the device is busy with this", info.name);
        driver.apply(&Step::Predictor(true));
        driver.apply(&block(2, 0));
        driver.now = driver.now.after(1_000);
        assert!(!driver.dispatch(), "{}: delayed, or the algorithm waits by itself", info.name);
        driver.complete(0);
        assert!(driver.dispatch(), "{}: the device would idle", info.name);
        assert_eq!(driver.batch.parts()[0].request.file, FileId(2), "{}", info.name);
    }
}

/// What was delayed with a gap in front of it had better wait for the gap in the queue.
#[test]
fn what_does_not_touch_a_batch_whose_time_is_over_is_queued_again() {
    for info in table().iter().filter(|info| info.aggregates) {
        let mut driver = Driver::new(info.name, vec![None]);
        driver.engine.set_predictor(Some(Box::new(Once { missing: Some(300) })));
        let block = |block: u64| Step::Submit { file: 1, write: false, block, blocks: 1 };
        driver.apply(&block(0));
        assert!(!driver.dispatch(), "{}: it waits", info.name);
        driver.apply(&block(2));
        driver.now = driver.now.after(20_000);
        assert!(driver.dispatch(), "{}: its time is over", info.name);
        assert_eq!((driver.batch.offset(), driver.batch.requests()), (0, 1), "{}", info.name);
        driver.apply(&block(1));
        driver.apply(&block(3));
        driver.complete(0);
        driver.now = driver.now.after(10_000);
        assert!(driver.dispatch(), "{}: the rest", info.name);
        assert_eq!((driver.batch.offset(), driver.batch.requests()), (100, 3), "{}: with the gap", info.name);
    }
}

/// Two applications under fair queueing; `file` is also the number of the application.
fn fair(missing: u64) -> Driver {
    let mut driver = Driver::new("wfq", vec![None]);
    let policy = PolicyConfig::parse("wfq").unwrap().with("aggregate", "true").unwrap();
    let prepared = PreparedPolicy::new(&policy, driver.engine.config());
    driver.engine.set_policy(driver.now, prepared);
    driver.engine.set_predictor(Some(Box::new(Once { missing: Some(missing) })));
    driver
}

impl Driver {
    fn submit_for(&mut self, app: u32, block: u64) {
        let (file, target, op) = (FileId(app.into()), TargetId(0), Op::Read);
        self.submit(Request { cookie: 0, file, app: AppId(app), target, op, offset: block * 100, len: 100 });
    }

    /// The applications of all that is dispatched now, in order; each batch is complete at once.
    fn served(&mut self) -> Vec<u32> {
        let mut apps = Vec::new();
        while self.dispatch() {
            apps.extend(self.batch.parts().iter().map(|part| part.request.app.0));
            while self.pick(0, true).is_some() {
                self.complete(0);
            }
        }
        apps
    }
}

#[test]
fn what_joins_a_delayed_batch_is_charged_to_its_application() {
    let mut driver = fair(300);
    driver.submit_for(1, 0);
    assert!(!driver.dispatch(), "it waits");
    (1..4).for_each(|block| driver.submit_for(1, block));
    assert!(driver.dispatch(), "all is there");
    assert_eq!(driver.batch.requests(), 4);
    // Application 1 has had 400 bytes. Now both want as much, nothing contiguous.
    (0..4).for_each(|n| driver.submit_for(1, 10 + 2 * n));
    (0..4).for_each(|n| driver.submit_for(2, 10 + 2 * n));
    assert_eq!(driver.served(), [2, 2, 2, 2, 1, 1, 1, 1]);
}

/// Both ways into a delayed batch: from the queue when it began, and on arrival.
#[test]
fn what_a_delayed_batch_leaves_behind_is_charged_once() {
    for on_arrival in [false, true] {
        let mut driver = fair(300);
        driver.submit_for(1, 0);
        if !on_arrival {
            driver.submit_for(1, 2);
        }
        assert!(!driver.dispatch(), "it waits");
        if on_arrival {
            driver.submit_for(1, 2);
        }
        (0..4).for_each(|n| driver.submit_for(2, 10 + 2 * n));
        driver.now = driver.now.after(20_000);
        // Block 0 alone was served: application 2 is 100 bytes behind, no more.
        assert_eq!(driver.served(), [1, 2, 2, 1, 2, 2], "on arrival: {on_arrival}");
    }
}

#[test]
fn what_is_cancelled_out_of_a_delayed_batch_is_not_charged() {
    let mut driver = fair(300);
    driver.submit_for(1, 0);
    assert!(!driver.dispatch(), "it waits");
    driver.submit_for(1, 1);
    driver.submit_for(1, 2);
    (0..3).for_each(|_| driver.apply(&Step::Cancel(0)));
    driver.submit_for(2, 10);
    driver.submit_for(2, 20);
    driver.submit_for(1, 10);
    driver.submit_for(1, 20);
    assert_eq!(driver.served(), [2, 1, 2, 1]);
}

/// All that was expected came, and a part of it has gone before: there is nothing to wait for, now or later.
#[test]
fn a_batch_of_which_nothing_is_missing_goes_at_once() {
    for info in table().iter().filter(|info| info.aggregates && !info.waits) {
        let mut driver = Driver::new(info.name, vec![None]);
        let block = |file, block| Step::Submit { file, write: false, block, blocks: 1 };
        driver.apply(&block(2, 0));
        assert!(driver.dispatch(), "{}: the device is busy with this", info.name);
        driver.engine.set_predictor(Some(Box::new(Once { missing: Some(0) })));
        driver.apply(&block(1, 0));
        assert!(driver.dispatch(), "{}: nothing is missing", info.name);
        assert_eq!(driver.engine.queued(), 0, "{}", info.name);
    }
}

#[test]
fn times_may_go_backwards_while_a_batch_is_delayed() {
    for info in table().iter().filter(|info| info.aggregates && !info.waits) {
        let mut driver = Driver::new(info.name, vec![None]);
        let block = |file, block| Step::Submit { file, write: false, block, blocks: 1 };
        let start = driver.now;
        driver.apply(&block(2, 0));
        assert!(driver.dispatch(), "{}: the device is busy with this", info.name);
        driver.engine.set_predictor(Some(Box::new(Once { missing: Some(100) })));
        driver.now = driver.now.after(20_000_000);
        driver.apply(&block(1, 0));
        assert!(!driver.dispatch(), "{}: it waits, beside a busy device", info.name);
        driver.now = start;
        driver.apply(&block(1, 1));
        assert!(driver.dispatch(), "{}: what was missing is there", info.name);
        (0..3).for_each(|_| driver.complete(0));
        assert_eq!(driver.engine.queued() + driver.engine.in_flight(), 0, "{}", info.name);
    }
}

/// It would be held until the clock is there again, an hour later perhaps.
#[test]
fn what_is_delayed_goes_when_times_go_backwards() {
    for info in table().iter().filter(|info| info.aggregates && !info.waits) {
        let mut driver = Driver::new(info.name, vec![None]);
        driver.engine.set_predictor(Some(Box::new(Once { missing: Some(100) })));
        driver.now = Time(3_600_000_000_000);
        driver.apply(&Step::Submit { file: 1, write: false, block: 0, blocks: 1 });
        assert!(!driver.dispatch(), "{}: it waits", info.name);
        driver.now = Time(1);
        assert!(driver.dispatch(), "{}: nobody knows how long it has waited", info.name);
    }
}

#[test]
fn a_predictor_that_was_taken_away_listens_no_more() {
    let mut driver = Driver::new("sjf", vec![None]);
    driver.engine.set_predictor(None);
    let bypass_max = driver.engine.bypass_max();
    driver.engine.set_predictor(Some(Box::new(Once { missing: Some(100) })));
    driver.apply(&Step::Submit { file: 1, write: false, block: 0, blocks: 1 });
    assert!(!driver.dispatch(), "it waits");
    driver.engine.set_predictor(None);
    assert_eq!(driver.engine.bypass_max(), 0, "what was delayed is there still");
    assert!(driver.dispatch());
    assert_eq!(driver.engine.bypass_max(), bypass_max);
}

/// Also what goes on with a stream in its slice is delayed for what is about to arrive.
#[test]
fn a_slice_waits_for_what_is_predicted() {
    let answers = vec![None, Some((0, 1 << 12, 5_000, 5_000)), Some((0, 1 << 12, 5_000, 5_000))];
    let mut driver = Driver::anticipating("to-agg", answers, true);
    let request = |block: u64| Request {
        cookie: 0,
        file: FileId(1),
        app: AppId(0),
        target: TargetId(0),
        op: Op::Read,
        offset: block << 12,
        len: 1 << 12,
    };
    let serve = |driver: &mut Driver, block| {
        driver.submit(request(block));
        (driver.dispatch(), driver.batch.parts().len())
    };
    let mut waited = 0;
    // Every other block: the one between is predicted, and comes 1 us later.
    for pair in 0..8 {
        let (went, _) = serve(&mut driver, pair * 2);
        driver.now = driver.now.after(1_000);
        if !went {
            waited += 1;
            assert_eq!(serve(&mut driver, pair * 2 + 1), (true, 2), "pair {pair} goes as one");
        }
        let ids: Vec<RequestId> = driver.batch.parts().iter().map(|part| part.id).collect();
        for id in ids {
            driver.engine.complete(driver.now, id, Outcome::ok(1 << 12)).unwrap();
            driver.outstanding.remove(&id.to_bits());
        }
        driver.now = driver.now.after(1_000);
    }
    assert!(waited >= 5, "{waited} of 8, {:?}", driver.engine.stats().total());
}

/// Notes what it hears: nanoseconds waited, of these beside a busy device, and reports of work.
#[derive(Debug)]
struct Hears(std::sync::mpsc::Sender<(u64, u64, u64)>);

impl Predictor for Hears {
    fn submitted(&mut self, _: Time, _: &Request) {}

    fn expect(&mut self, now: Time, chosen: &Chosen) -> Option<Expected> {
        let (until, idle_until) = (now.after(5_000), Time::ZERO);
        Some(Expected { offset: chosen.offset, end: chosen.end + (1 << 12), until, idle_until, missing: u64::MAX })
    }

    fn served(&mut self, _: &Work) {
        self.0.send((0, 0, 1)).unwrap();
    }

    fn waited(&mut self, wait: &WaitReport) {
        self.0.send((wait.waited_ns, wait.overlapped_ns, 0)).unwrap();
    }
}

/// As where `sluice trace predict` is called on a mount under load.
#[test]
fn a_predictor_that_comes_while_the_device_is_busy_hears_of_its_work() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut driver = Driver::new("to-agg", vec![None]);
    driver.engine.set_predictor(None);
    let read = |file, block: u64, len| Request {
        cookie: 0,
        file: FileId(file),
        app: AppId(0),
        target: TargetId(0),
        op: Op::Read,
        offset: block << 20,
        len,
    };
    // What is empty is never held, and keeps the device busy.
    driver.submit(read(2, 0, 0));
    assert!(driver.dispatch());
    driver.engine.set_predictor(Some(Box::new(Hears(sender))));
    for block in 0..4_000 {
        driver.submit(read(1, block, 1 << 12));
        driver.submit(read(2, 0, 0));
        driver.now = driver.now.after(1_000);
        while driver.dispatch() {}
        driver.now = driver.now.after(5_000);
        while driver.dispatch() {}
        while driver.engine.in_flight() > 1 {
            driver.complete(0);
        }
    }
    let (waited, beside, reports) =
        receiver.try_iter().fold((0, 0, 0), |all, one| (all.0 + one.0, all.1 + one.1, all.2 + one.2));
    assert!(
        waited > 0 && beside == waited && reports > 0,
        "{waited} ns waited, {beside} beside others, {reports} reports"
    );
}

/// What joins a batch that is delayed in a slice may be older than what the slice goes on with, and has waited for longer.
#[test]
fn in_a_slice_nothing_is_held_beyond_its_limit_by_predictions() {
    let mut longest = 0;
    for seed in 1..200_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut below = move |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        let answers = vec![Some((1 << 16, 1 << 16, MAX_WAIT * 9 / 10, MAX_WAIT * 9 / 10))];
        let mut driver = Driver::anticipating("to-agg", answers, true);
        let (mut at, mut next, mut left, mut since) = (0, driver.now, 600, HashMap::new());
        while left > 0 || !since.is_empty() {
            if left > 0 && next <= driver.now {
                left -= 1;
                let skip = below(3);
                let (file, app, target, offset) = (FileId(1), AppId(0), TargetId(0), (at + skip) << 12);
                let request = Request { cookie: 0, file, app, target, op: Op::Read, offset, len: 1 << 12 };
                let id = driver.engine.submit(driver.now, request).unwrap();
                since.insert(id.to_bits(), driver.now);
                at += if skip == 0 { 1 } else { below(2) * (skip + 1) };
                next = driver.now.after(1 + below(12_000));
            }
            while driver.engine.poll_dispatch(driver.now, &mut driver.batch) {
                for part in driver.batch.parts() {
                    longest = longest.max(driver.now.since(since[&part.id.to_bits()]));
                    since.remove(&part.id.to_bits());
                    driver.engine.complete(driver.now, part.id, Outcome::ok(1 << 12)).unwrap();
                }
            }
            let wakes = [driver.engine.poll_timeout(), (left > 0).then_some(next)];
            driver.now = wakes.into_iter().flatten().min().unwrap_or(driver.now).max(driver.now.after(1));
        }
    }
    // Anticipation alone has 20 us for a slice.
    assert!(longest <= MAX_WAIT + 20_000, "{longest} ns");
}
