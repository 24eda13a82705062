//! What every algorithm promises: nothing lost or doubled, ordering safety, bounds, `max_wait`, handles, statistics, any
//! change at any time, no allocation.
//!
//! A failure prints its input; `PROPTEST_CASES=10000 cargo test -p sluice-core --test conformance` tries harder.

mod harness;

use harness::{Answer, Harness, Step, any_limits, request, steps};
use proptest::prelude::*;
use sluice_core::{
    AppId, Batch, CancelError, CompleteError, Engine, EngineConfig, FileId, Op, Outcome, PolicyConfig, PreparedPolicy,
    Request, RequestId, Stage, SubmitError, TargetId, Time, policy::table,
};
use std::collections::HashMap;

/// Every algorithm with its defaults, and variants that take other paths.
fn policies() -> Vec<PolicyConfig> {
    let named = |name: &str| PolicyConfig::parse(name).expect("a name from the table");
    let mut all: Vec<PolicyConfig> = table().iter().map(|info| named(info.name)).collect();
    for (name, key, value) in [
        ("aioli", "synchronous", "false"),
        ("aioli", "wait_time", "0"),
        ("mlf", "wait_time", "0"),
        ("twins", "work_conserving", "true"),
        ("twins", "servers", "1"),
        ("twins", "alone_after", "0"),
        ("wfq", "aggregate", "true"),
        ("wfq", "weight.1", "7"),
        ("hbrr", "ranges", "1"),
        ("sw", "window", "1ms"),
    ] {
        all.push(named(name).with(key, value).expect("a known parameter"));
    }
    all
}

fn any_policy() -> impl Strategy<Value = PolicyConfig> {
    (0..policies().len()).prop_map(|at| policies()[at].clone())
}

proptest! {
    #[test]
    fn every_promise_holds(policy in any_policy(), config in any_limits(), steps in steps()) {
        let mut harness = Harness::new(config, &policy);
        steps.iter().for_each(|step| harness.apply(step));
        harness.drain();
    }

    #[test]
    fn any_algorithm_follows_any_other(
        first in any_policy(),
        config in any_limits(),
        parts in prop::collection::vec((steps(), any_policy()), 1..6),
    ) {
        let mut harness = Harness::new(config, &first);
        for (steps, next) in &parts {
            steps.iter().take(40).for_each(|step| harness.apply(step));
            let prepared = PreparedPolicy::new(next, harness.engine.config());
            let before = harness.engine.policy().clone();
            let old = harness.engine.set_policy(harness.now, prepared);
            prop_assert_eq!(old.config(), &before);
            prop_assert_eq!(harness.engine.policy(), next);
            harness.check_counts();
        }
        harness.drain();
    }

    #[test]
    fn limits_change_while_running(policy in any_policy(), from in any_limits(), to in any_limits(), a in steps(), b in steps()) {
        let mut harness = Harness::new(from, &policy);
        a.iter().for_each(|step| harness.apply(step));
        harness.engine.set_limits(&to).unwrap();
        // Batches that are in flight already may be more than are allowed from now on.
        while harness.at_limit() {
            harness.complete(0);
        }
        b.iter().for_each(|step| harness.apply(step));
        harness.drain();
    }

    #[test]
    fn equal_inputs_give_equal_outputs(policy in any_policy(), config in any_limits(), steps in steps()) {
        let play = || {
            let mut harness = Harness::new(config.clone(), &policy);
            let mut answers = Vec::new();
            for step in &steps {
                match step {
                    Step::Dispatch => answers.push(harness.dispatch()),
                    step => harness.apply(step),
                }
            }
            answers
        };
        prop_assert_eq!(play(), play());
    }

    #[test]
    fn each_request_leaves_its_trace(policy in any_policy(), config in any_limits(), steps in steps()) {
        let mut harness = Harness::new(EngineConfig { events: 10_000, ..config }, &policy);
        steps.iter().for_each(|step| harness.apply(step));
        harness.drain();
        let mut stages: HashMap<RequestId, Vec<Stage>> = HashMap::new();
        let mut last = Time::ZERO;
        while let Some(event) = harness.engine.poll_event() {
            prop_assert!(event.at >= last);
            last = event.at;
            stages.entry(event.id).or_default().push(event.stage);
        }
        prop_assert_eq!(stages.len() as u64, harness.completed + harness.cancelled);
        for stages in stages.values() {
            let lived = [Stage::Queued, Stage::Dispatched, Stage::Completed];
            prop_assert!(stages[..] == lived || stages[..] == [Stage::Queued, Stage::Cancelled], "{:?}", stages);
        }
    }

    #[test]
    fn everything_can_be_cancelled_at_the_end(policy in any_policy(), config in any_limits(), steps in steps()) {
        let mut harness = Harness::new(config, &policy);
        steps.iter().for_each(|step| harness.apply(step));
        let waiting = harness.items.iter().filter(|item| !item.in_flight).count();
        let mut cancelled = 0;
        while let Some((id, request)) = harness.engine.cancel_any(harness.now) {
            let item = harness.items.iter().find(|item| item.id == id).copied();
            prop_assert_eq!(item.map(|item| (item.request, item.in_flight)), Some((request, false)));
            cancelled += 1;
        }
        prop_assert_eq!((cancelled, harness.engine.queued()), (waiting, 0));
    }
}

fn engine(policy: &PolicyConfig, config: EngineConfig) -> Engine {
    Engine::new(config, policy, Time(1)).expect("a valid configuration")
}

fn at(offset: u64, len: u32) -> Request {
    let (file, app, target) = (FileId(1), AppId(0), TargetId(0));
    Request { cookie: 0, file, app, target, op: Op::Write, offset, len }
}

/// The next batch, passing the time if the algorithm waits.
fn next(engine: &mut Engine, now: &mut Time, batch: &mut Batch) {
    while !engine.poll_dispatch(*now, batch) {
        *now = engine.poll_timeout().expect("something is queued");
    }
}

#[test]
fn the_largest_offsets_and_lengths_pass() {
    for policy in policies() {
        let mut engine = engine(&policy, EngineConfig::default());
        let (mut now, mut batch) = (Time(1), Batch::new());
        let largest = [at(u64::MAX - 5, 5), at(u64::MAX, 0), at(u64::MAX - u64::from(u32::MAX), u32::MAX), at(0, 0)];
        for request in largest {
            engine.submit(now, request).unwrap();
        }
        assert_eq!(engine.submit(now, at(u64::MAX, 1)), Err(SubmitError::RangeOverflow), "{policy:?}");
        let mut out = 0;
        while out < largest.len() {
            next(&mut engine, &mut now, &mut batch);
            for part in batch.parts() {
                engine.complete(now, part.id, Outcome::ok(0)).unwrap();
                out += 1;
            }
        }
        assert_eq!(engine.queued(), 0);
    }
}

#[test]
fn handles_that_are_not_outstanding_are_refused() {
    for policy in policies() {
        let mut engine = engine(&policy, EngineConfig::default());
        let (mut now, mut batch) = (Time(1), Batch::new());
        let id = engine.submit(now, at(0, 10)).unwrap();
        assert_eq!(engine.complete(now, id, Outcome::ok(10)), Err(CompleteError::NotDispatched));
        next(&mut engine, &mut now, &mut batch);
        assert_eq!(engine.cancel(now, id), Err(CancelError::InFlight));
        engine.complete(now, id, Outcome::err(5)).unwrap();
        let again = engine.submit(now, at(0, 10)).unwrap();
        for stale in [id, RequestId::from_bits(0), RequestId::from_bits(u64::MAX), RequestId::from_bits(1 << 32 | 9)] {
            assert_eq!(engine.complete(now, stale, Outcome::ok(0)), Err(CompleteError::Stale));
            assert_eq!(engine.cancel(now, stale), Err(CancelError::Stale));
        }
        assert_eq!(RequestId::from_bits(again.to_bits()), again);
        assert_eq!(engine.cancel(now, again), Ok(at(0, 10)));
    }
}

#[test]
fn a_full_engine_says_so_and_recovers() {
    for policy in policies() {
        let mut engine = engine(&policy, EngineConfig { capacity: 3, files_max: 2, ..EngineConfig::default() });
        let (mut now, mut batch) = (Time(1), Batch::new());
        let to = |file: u64| Request { file: FileId(file), ..at(0, 10) };
        let ids = [1, 2].map(|file| engine.submit(now, to(file)).unwrap());
        assert_eq!(engine.submit(now, to(3)), Err(SubmitError::Full), "no room for another file");
        engine.submit(now, to(2)).unwrap();
        assert_eq!(engine.submit(now, to(2)), Err(SubmitError::Full), "no room for another request");
        engine.cancel(now, ids[0]).unwrap();
        engine.submit(now, to(3)).unwrap();
        let mut out = 0;
        while out < 3 {
            next(&mut engine, &mut now, &mut batch);
            out += batch.requests();
            batch.parts().to_vec().iter().for_each(|part| engine.complete(now, part.id, Outcome::ok(10)).unwrap());
        }
        assert_eq!(engine.stats().total().refused, 2);
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let policy = &policies()[0];
    for (config, key) in [
        (EngineConfig { capacity: 0, ..EngineConfig::default() }, "capacity"),
        (EngineConfig { capacity: u32::MAX, ..EngineConfig::default() }, "capacity"),
        (EngineConfig { files_max: 0, ..EngineConfig::default() }, "files_max"),
        (EngineConfig { batch_bytes_max: 0, ..EngineConfig::default() }, "batch_bytes_max"),
        (EngineConfig { batch_requests_max: 0, ..EngineConfig::default() }, "batch_requests_max"),
        (EngineConfig { window_ns: 0, ..EngineConfig::default() }, "window"),
    ] {
        let error = Engine::new(config, policy, Time(1)).map(|_| ()).unwrap_err();
        assert!(error.to_string().starts_with(key), "{error}");
    }
}

#[test]
fn a_clock_that_goes_backwards_does_no_harm() {
    for policy in policies() {
        let mut harness = Harness::new(EngineConfig { capacity: 64, ..EngineConfig::default() }, &policy);
        for n in 0..40 {
            harness.now = Time(1_000_000_000 - n * 20_000_000);
            harness.submit(at(n * 10, 10));
            if let Answer::Batch(_) = harness.dispatch() {
                harness.complete(0);
            }
        }
        harness.now = Time(2_000_000_000);
        harness.drain();
    }
}

#[test]
fn submissions_are_requests() {
    let step = Step::Submit { file: 2, write: true, block: 3, blocks: 2, app: 1, target: 4 };
    let request = request(&step, 9);
    assert_eq!((request.offset, request.len, request.op, request.cookie), (3_000, 2_000, Op::Write, 9));
}

/// With nobody to take turns with, windows cost nothing; with somebody, each server has its window.
#[test]
fn time_windows_are_waited_for_only_where_servers_take_turns() {
    let policy = PolicyConfig::parse("twins").expect("a name from the table");
    let to = |target: u32| Request { target: TargetId(target), ..at(0, 10) };
    let mut batch = Batch::new();
    let mut go = |engine: &mut Engine, now: Time| {
        engine.poll_dispatch(now, &mut batch).then(|| {
            engine.complete(now, batch.parts()[0].id, Outcome::ok(10)).unwrap();
            batch.target().0
        })
    };
    let ms = |n: u64| Time(n * 1_000_000);
    // Windows of 1 ms each: server 0 at 4, 8, 12... ms, server 1 at 5, 9...
    let mut engine = engine(&policy, EngineConfig::default());
    for n in 4..8 {
        engine.submit(ms(n), to(0)).unwrap();
        assert_eq!(go(&mut engine, ms(n)), Some(0), "nobody else at {n} ms");
    }
    engine.submit(ms(8), to(1)).unwrap();
    assert_eq!((go(&mut engine, ms(8)), engine.poll_timeout()), (None, Some(ms(9))));
    assert_eq!(go(&mut engine, ms(9)), Some(1));
    // Server 1 had a request at 8 ms, so server 0 waits for its window until 108 ms, and no longer.
    engine.submit(ms(9), to(0)).unwrap();
    assert_eq!((go(&mut engine, ms(9)), engine.poll_timeout()), (None, Some(ms(12))));
    assert_eq!(go(&mut engine, ms(12)), Some(0));
    engine.submit(ms(105), to(0)).unwrap();
    assert_eq!((go(&mut engine, ms(107)), engine.poll_timeout()), (None, Some(ms(108))));
    engine.submit(ms(109), to(0)).unwrap();
    assert_eq!((go(&mut engine, ms(109)), go(&mut engine, ms(109))), (Some(0), Some(0)));
    // The paper's way waits all the same.
    let paper = policy.with("alone_after", "0").expect("a known parameter");
    let prepared = PreparedPolicy::new(&paper, engine.config());
    engine.set_policy(ms(200), prepared);
    engine.submit(ms(201), to(0)).unwrap();
    assert_eq!((go(&mut engine, ms(201)), engine.poll_timeout()), (None, Some(ms(204))));
}
