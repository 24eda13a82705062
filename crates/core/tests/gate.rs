//! Gates: what every algorithm promises holds behind them, too, and each object has its slices.
//!
//! A failure prints its input; `PROPTEST_CASES=10000 cargo test -p sluice-core --test gate` tries harder.

mod harness;

use harness::{Answer, BLOCK, Gate, Harness, Item, Step, any_limits, limits, steps};
use proptest::prelude::*;
use sluice_core::{
    Anticipation, AppId, Batch, Chosen, Engine, EngineConfig, Expected, FileId, GatePlan, GateSlice, LocalityConfig,
    Op, Outcome, PolicyConfig, Predictor, PreparedPolicy, Request, TargetId, Time, policy::table,
};

const MS: u64 = 1_000_000;
const NEVER: Time = Time(u64::MAX);

fn any_policy() -> impl Strategy<Value = PolicyConfig> {
    (0..table().len()).prop_map(|at| PolicyConfig::parse(table()[at].name).expect("a name from the table"))
}

/// Slices for some of the harness's three applications, and for all others.
fn any_plan() -> impl Strategy<Value = GatePlan> {
    let slices = prop_oneof![
        Just(vec![vec![0], vec![]]),
        Just(vec![vec![], vec![2, 0]]),
        Just(vec![vec![1], vec![], vec![0]]),
        Just(vec![vec![2], vec![1], vec![0], vec![]]),
    ];
    let idle = prop_oneof![3 => Just(None), 1 => (0..2 * MS).prop_map(Some)];
    let expires = prop_oneof![3 => Just(NEVER), 1 => (0..20 * MS).prop_map(Time)];
    (slices, prop::collection::vec(1..3 * MS, 4), 0..10 * MS, expires, idle).prop_map(
        |(slices, lens, epoch, expires, idle_ns)| {
            let slice =
                |(apps, len_ns): (Vec<u32>, u64)| GateSlice { apps: apps.into_iter().map(AppId).collect(), len_ns };
            let slices = slices.into_iter().zip(lens).map(slice).collect();
            GatePlan { epoch: Time(epoch), from: Time::ZERO, expires, slices, idle_ns }
        },
    )
}

/// Expects what is behind each batch.
#[derive(Debug)]
struct Behind;

impl Predictor for Behind {
    fn submitted(&mut self, _: Time, _: &Request) {}

    fn expect(&mut self, now: Time, chosen: &Chosen) -> Option<Expected> {
        let until = now.after(MS);
        Some(Expected {
            offset: chosen.offset,
            end: chosen.end + 3 * BLOCK,
            until,
            idle_until: until,
            missing: u64::MAX,
        })
    }
}

proptest! {
    #[test]
    fn every_promise_holds_behind_gates(
        policy in any_policy(),
        config in any_limits(),
        parts in prop::collection::vec((steps(), prop::option::weighted(0.8, any_plan())), 1..5),
    ) {
        let mut harness = Harness::new(config, &policy);
        for (steps, plan) in parts {
            harness.set_gate(plan);
            harness.check_counts();
            steps.iter().take(60).for_each(|step| harness.apply(step));
        }
        harness.drain();
    }

    #[test]
    fn algorithms_and_predictors_change_behind_gates(
        policies in prop::collection::vec(any_policy(), 1..5),
        config in limits(),
        plan in any_plan(),
        steps in steps(),
        predicted: bool,
    ) {
        let mut harness = Harness::new(config, &policies[0]);
        harness.set_gate(Some(plan));
        for (number, policy) in policies.iter().enumerate() {
            let predictor = (predicted && number % 2 == 0).then(|| Box::new(Behind) as Box<dyn Predictor>);
            harness.engine.set_predictor(predictor);
            steps.iter().take(40).for_each(|step| apply_predicted(&mut harness, step, predicted));
            let prepared = PreparedPolicy::new(policy, harness.engine.config());
            harness.engine.set_policy(harness.now, prepared);
            harness.check_counts();
        }
        harness.engine.set_predictor(None);
        // Nobody is waited for any more: everything comes out by its slice.
        while !harness.items.is_empty() {
            apply_predicted(&mut harness, &Step::Dispatch, predicted);
            harness.complete(0);
            harness.now = harness.now.after(MS / 4);
        }
    }

    #[test]
    fn everything_can_be_cancelled_behind_gates(policy in any_policy(), config in any_limits(), plan in any_plan(), steps in steps()) {
        let mut harness = Harness::new(config, &policy);
        harness.set_gate(Some(plan));
        steps.iter().for_each(|step| harness.apply(step));
        let waiting = harness.items.iter().filter(|item| !item.in_flight).count();
        let cancelled = std::iter::from_fn(|| harness.engine.cancel_any(harness.now)).count();
        prop_assert_eq!((cancelled, harness.engine.queued()), (waiting, 0));
    }

    #[test]
    fn equal_inputs_give_equal_outputs(policy in any_policy(), config in any_limits(), plan in any_plan(), steps in steps()) {
        let play = || {
            let mut harness = Harness::new(config.clone(), &policy);
            harness.set_gate(Some(plan.clone()));
            let step = |step: &Step| match step {
                Step::Dispatch => Some(harness.dispatch()),
                step => { harness.apply(step); None }
            };
            steps.iter().filter_map(step).collect::<Vec<Answer>>()
        };
        prop_assert_eq!(play(), play());
    }

    /// Each request of the open object goes, or something goes that it waits for, through any chain of others; and nothing else.
    #[test]
    fn nothing_that_the_open_object_waits_for_is_held(
        policy in prop_oneof![Just("noop"), Just("to")],
        plans in prop::collection::vec(any_plan(), 1..4),
        steps in prop::collection::vec(overlapping_step(), 1..120),
    ) {
        let config = EngineConfig { capacity: 48, max_wait_ns: 0, in_flight_max: 0, ..EngineConfig::default() };
        let mut harness = Harness::new(config, &PolicyConfig::parse(policy).unwrap());
        for (number, step) in steps.iter().enumerate() {
            if number % 40 == 0 {
                let plan = GatePlan { idle_ns: None, ..plans[number / 40 % plans.len()].clone() };
                harness.set_gate(Some(plan));
            }
            harness.apply(step);
            while let Answer::Batch(_) = harness.dispatch() {}
            let Some(plan) = harness.gate.in_force(harness.now) else { continue };
            let served = harness.served();
            let is_open = |item: &&Item| Gate::object(plan, item.request.app) == Gate::open(plan, harness.now).0;
            let stuck = harness.items.iter().filter(is_open).find(|item| !served.contains(item));
            prop_assert_eq!(stuck, None, "it is held, or waits for what is");
        }
        harness.drain();
    }
}

/// Requests that often wait for several others, of other applications.
fn overlapping_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<bool>(), 0..6_u64, 1..4_u32, 0..3_u32).prop_map(|(write, block, blocks, app)| {
            Step::Submit { file: 1, write, block, blocks, app, target: 0 }
        }),
        3 => any::<usize>().prop_map(Step::Complete),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => (0..3 * MS).prop_map(Step::Pass),
    ]
}

/// With a predictor requests wait for reasons that the harness does not know: only what may go is checked.
fn apply_predicted(harness: &mut Harness, step: &Step, predicted: bool) {
    if !predicted || !matches!(step, Step::Dispatch) {
        return harness.apply(step);
    }
    let mut batch = Batch::new();
    if harness.at_limit() || !harness.engine.poll_dispatch(harness.now, &mut batch) {
        return harness.check_gate(&[]);
    }
    let mut numbers = Vec::new();
    for part in batch.parts() {
        let item = harness.items.iter_mut().find(|item| item.id == part.id).expect("only what was submitted");
        assert!(item.eligible.is_some() && !std::mem::replace(&mut item.in_flight, true));
        numbers.push(item.number);
    }
    harness.check_gate(&numbers);
    harness.batches.push(numbers);
}

fn slice(apps: &[u32], len_ns: u64) -> GateSlice {
    GateSlice { apps: apps.iter().copied().map(AppId).collect(), len_ns }
}

/// Application 1 has 10 ms, all others 5.
fn plan() -> GatePlan {
    let slices = vec![slice(&[1], 10 * MS), slice(&[], 5 * MS)];
    GatePlan { epoch: Time::ZERO, from: Time::ZERO, expires: NEVER, slices, idle_ns: None }
}

fn engine(policy: &str, max_wait_ns: u64) -> Engine {
    let config = EngineConfig { max_wait_ns, ..EngineConfig::default() };
    Engine::new(config, &PolicyConfig::parse(policy).unwrap(), Time::ZERO).unwrap()
}

fn request(app: u32, number: u64, op: Op) -> Request {
    let (file, app, target) = (FileId(1), AppId(app), TargetId(0));
    Request { cookie: number, file, app, target, op, offset: number * BLOCK, len: BLOCK as u32 }
}

/// What goes until nothing does, by cookie; completed at once.
fn out(engine: &mut Engine, now: Time) -> Vec<u64> {
    let (mut batch, mut cookies) = (Batch::new(), Vec::new());
    while engine.poll_dispatch(now, &mut batch) {
        for part in batch.parts() {
            cookies.push(part.request.cookie);
            engine.complete(now, part.id, Outcome::ok(part.request.len)).unwrap();
        }
    }
    cookies
}

#[test]
fn each_object_has_its_slice_under_every_algorithm() {
    for info in table().iter().filter(|info| !info.shared_engine && !info.waits) {
        let mut engine = engine(info.name, 0);
        engine.set_gate(Time::ZERO, Some(plan())).unwrap();
        assert!(!engine.bypasses_queue() && engine.bypass_max() == 0);
        for number in 0..6 {
            engine.submit(Time(1), request(number as u32 % 3, number, Op::Read)).unwrap();
        }
        assert_eq!(out(&mut engine, Time(2)), [1, 4], "{}", info.name);
        assert_eq!((engine.poll_timeout(), engine.queued()), (Some(Time(10 * MS)), 4));
        engine.submit(Time(3), request(1, 7, Op::Read)).unwrap();
        assert_eq!(out(&mut engine, Time(3)), [7]);
        let mut others = out(&mut engine, Time(10 * MS));
        others.sort_unstable();
        assert_eq!(others, [0, 2, 3, 5], "{}", info.name);
        engine.submit(Time(11 * MS), request(1, 8, Op::Read)).unwrap();
        assert_eq!((out(&mut engine, Time(12 * MS)), engine.poll_timeout()), (vec![], Some(Time(15 * MS))));
        engine.set_gate(Time(12 * MS), None).unwrap();
        assert_eq!((out(&mut engine, Time(12 * MS)), engine.gate()), (vec![8], None));
        assert_eq!(engine.bypasses_queue(), info.bypasses_queue);
    }
}

#[test]
fn what_came_at_one_time_keeps_its_order() {
    let numbers = [0, 2, 4, 6];
    let submit = |engine: &mut Engine| {
        numbers.iter().for_each(|number| _ = engine.submit(Time(1), request(2, *number, Op::Read)).unwrap());
    };
    let other = GatePlan { slices: vec![slice(&[1], 10 * MS), slice(&[3], MS), slice(&[], 5 * MS)], ..plan() };
    type Case = fn(&mut Engine, &dyn Fn(&mut Engine), GatePlan);
    let cases: [Case; 3] = [
        |engine, submit, _| {
            engine.set_gate(Time::ZERO, Some(plan())).unwrap();
            submit(engine);
        },
        |engine, submit, other| {
            engine.set_gate(Time::ZERO, Some(other)).unwrap();
            submit(engine);
            engine.set_gate(Time(2), Some(plan())).unwrap();
        },
        |engine, submit, _| {
            submit(engine);
            engine.set_gate(Time(2), Some(plan())).unwrap();
        },
    ];
    for (at, case) in cases.iter().enumerate() {
        let mut engine = engine("to", 0);
        case(&mut engine, &submit, other.clone());
        assert_eq!(out(&mut engine, Time(3)), [], "case {at}");
        assert_eq!(out(&mut engine, Time(10 * MS)), numbers, "case {at}");
    }
}

#[test]
fn what_may_go_by_an_engine_is_bounded_and_nothing_where_somebody_listens() {
    let of = |policy: &str, change: fn(&mut EngineConfig)| {
        let mut config = EngineConfig { in_flight_max: 4, ..EngineConfig::default() };
        change(&mut config);
        Engine::new(config, &PolicyConfig::parse(policy).unwrap(), Time::ZERO).unwrap().bypass_max()
    };
    for info in table() {
        let (all, waits) = (info.bypasses_queue, info.waits || info.shared_engine);
        let expected = |max: u32| if all { u32::MAX } else { u32::from(!waits) * max };
        assert_eq!(of(info.name, |_| ()), expected(4), "{}", info.name);
        assert_eq!(of(info.name, |config| config.in_flight_max = 0), expected(u32::MAX), "{}", info.name);
        let anticipates = |config: &mut EngineConfig| config.anticipation = Some(Anticipation::for_device(1, 1));
        assert_eq!(of(info.name, anticipates), expected(0), "{}", info.name);
        assert_eq!(of(info.name, |config| config.events = 16), 0, "{}", info.name);
    }
}

#[test]
fn what_has_waited_for_max_wait_and_a_window_goes_whatever_is_open() {
    let mut engine = engine("to", 20 * MS);
    let plan = GatePlan { slices: vec![slice(&[1], 1_000 * MS), slice(&[], MS)], ..plan() };
    engine.set_gate(Time::ZERO, Some(plan)).unwrap();
    engine.submit(Time(5), request(2, 0, Op::Read)).unwrap();
    engine.submit(Time(6), request(1, 1, Op::Read)).unwrap();
    assert_eq!(out(&mut engine, Time(7)), [1]);
    // Its own slice comes before that.
    assert_eq!(engine.poll_timeout(), Some(Time(1_000 * MS)));
    assert_eq!(out(&mut engine, Time(1_021 * MS + 4)), [], "it has not waited for so long");
    assert_eq!(out(&mut engine, Time(1_021 * MS + 5)), [0]);
    assert_eq!(engine.gate().unwrap().overdue, 1);
}

/// The bound, or the window, is another one than when the request was held.
#[test]
fn what_is_held_is_bounded_by_what_is_in_force() {
    let long = GatePlan { slices: vec![slice(&[1], 1_000 * MS), slice(&[], MS)], ..plan() };
    let held = |max_wait_ns: u64| {
        let mut engine = engine("to", max_wait_ns);
        engine.set_gate(Time::ZERO, Some(long.clone())).unwrap();
        engine.submit(Time(5), request(2, 0, Op::Read)).unwrap();
        assert_eq!(out(&mut engine, Time(7)), []);
        engine
    };
    let mut bounded = held(0);
    let limits = EngineConfig { max_wait_ns: 20 * MS, ..bounded.config().clone() };
    bounded.set_limits(&limits).unwrap();
    assert_eq!(out(&mut bounded, Time(1_021 * MS + 4)), []);
    assert_eq!(out(&mut bounded, Time(1_021 * MS + 5)), [0]);
    let mut shorter = held(20 * MS);
    let short = GatePlan { slices: vec![slice(&[1], 100 * MS), slice(&[], MS)], ..plan() };
    shorter.set_gate(Time(MS), Some(short)).unwrap();
    assert_eq!(out(&mut shorter, Time(121 * MS + 4)), [], "its own slice was over");
    assert_eq!(out(&mut shorter, Time(121 * MS + 5)), [0]);
}

#[test]
fn what_keeps_back_a_request_of_the_open_object_goes() {
    let mut engine = engine("to", 0);
    engine.set_gate(Time::ZERO, Some(plan())).unwrap();
    engine.submit(Time(1), request(2, 0, Op::Write)).unwrap();
    engine.submit(Time(1), request(2, 9, Op::Write)).unwrap();
    assert_eq!(out(&mut engine, Time(1)), []);
    // A chain: the second write of 2 is blocked by the first, the read of 1 by the second.
    engine.submit(Time(2), Request { len: 2 * BLOCK as u32, ..request(2, 0, Op::Write) }).unwrap();
    engine.submit(Time(2), Request { cookie: 5, ..request(1, 9, Op::Read) }).unwrap();
    assert_eq!(out(&mut engine, Time(2)), [9, 5], "one that it waits for");
    assert_eq!(engine.gate().unwrap().called, 1);
    assert_eq!(out(&mut engine, Time(10 * MS)), [0, 0]);
}

/// A read of the open object behind a write of another behind a write of a third, and a second one behind what is left then.
#[test]
fn what_it_waits_for_through_others_goes_too() {
    let mut engine = engine("to", 0);
    let slices = vec![slice(&[1], 10 * MS), slice(&[2], 5 * MS), slice(&[], 5 * MS)];
    engine.set_gate(Time::ZERO, Some(GatePlan { slices, ..plan() })).unwrap();
    let long = |app, number, cookie, op| Request { cookie, len: 2 * BLOCK as u32, ..request(app, number, op) };
    engine.submit(Time(1), long(3, 0, 30, Op::Write)).unwrap();
    engine.submit(Time(1), long(2, 1, 20, Op::Write)).unwrap();
    engine.submit(Time(1), long(3, 5, 31, Op::Write)).unwrap();
    assert_eq!(out(&mut engine, Time(1)), []);
    engine.submit(Time(2), Request { cookie: 10, len: 4 * BLOCK as u32, ..request(1, 2, Op::Read) }).unwrap();
    assert_eq!(out(&mut engine, Time(2)), [30, 20, 31, 10]);
    assert_eq!(engine.gate().unwrap().called, 3);
    // What comes in another's slice calls when its own begins.
    assert_eq!(out(&mut engine, Time(16 * MS)), []);
    engine.submit(Time(16 * MS), long(2, 9, 21, Op::Write)).unwrap();
    engine.submit(Time(16 * MS), long(1, 9, 11, Op::Read)).unwrap();
    assert_eq!(out(&mut engine, Time(17 * MS)), []);
    assert_eq!(out(&mut engine, Time(20 * MS)), [21, 11]);
}

#[test]
fn a_plan_begins_follows_and_expires() {
    let mut engine = engine("to", 0);
    let first = GatePlan { from: Time(20 * MS), expires: Time(40 * MS), ..plan() };
    engine.set_gate(Time::ZERO, Some(first.clone())).unwrap();
    engine.submit(Time(1), request(2, 0, Op::Read)).unwrap();
    assert_eq!(out(&mut engine, Time(1)), [0], "there is no gate yet");
    engine.submit(Time(15 * MS), request(2, 1, Op::Read)).unwrap();
    assert_eq!((out(&mut engine, Time(20 * MS)), engine.poll_timeout()), (vec![], Some(Time(25 * MS))));
    // One that follows keeps the one before in force.
    let second = GatePlan { from: Time(45 * MS), expires: Time(60 * MS), ..first.clone() };
    engine.set_gate(Time(21 * MS), Some(second)).unwrap();
    assert_eq!(out(&mut engine, Time(29 * MS)), [1]);
    engine.submit(Time(42 * MS), request(1, 2, Op::Read)).unwrap();
    assert_eq!(out(&mut engine, Time(43 * MS)), []);
    assert_eq!(out(&mut engine, Time(45 * MS)), [2]);
    engine.submit(Time(45 * MS), request(2, 3, Op::Read)).unwrap();
    assert_eq!((out(&mut engine, Time(59 * MS)), engine.poll_timeout()), (vec![3], None));
    engine.submit(Time(59 * MS), request(1, 4, Op::Read)).unwrap();
    assert_eq!((out(&mut engine, Time(59 * MS)), engine.poll_timeout()), (vec![], Some(Time(60 * MS))));
    assert_eq!((out(&mut engine, Time(60 * MS)), engine.gate()), (vec![4], None));
    // One that is over already is none.
    engine.set_gate(Time(70 * MS), Some(first)).unwrap();
    assert_eq!(engine.gate(), None);
}

#[test]
fn a_slice_that_runs_empty_is_cut_short_if_that_is_wanted() {
    let mut engine = engine("to", 0);
    engine.set_gate(Time::ZERO, Some(GatePlan { idle_ns: Some(2 * MS), ..plan() })).unwrap();
    engine.submit(Time(MS), request(1, 0, Op::Read)).unwrap();
    engine.submit(Time(MS), request(2, 1, Op::Read)).unwrap();
    assert_eq!((out(&mut engine, Time(MS)), engine.poll_timeout()), (vec![0], Some(Time(3 * MS))));
    assert_eq!(out(&mut engine, Time(3 * MS)), [1]);
    // The rest of the slice belongs to the others, until they run empty, too.
    engine.submit(Time(3 * MS), request(1, 2, Op::Read)).unwrap();
    assert_eq!((out(&mut engine, Time(4 * MS)), engine.poll_timeout()), (vec![], Some(Time(5 * MS))));
    assert_eq!(out(&mut engine, Time(5 * MS)), [2]);
    assert_eq!(engine.gate().unwrap().cuts, 2);
}

/// The policy is shown a bounded number of requests, and gets the rest in order of arrival.
#[test]
fn a_deep_queue_comes_out_in_order_across_slices() {
    let mut engine = engine("to", 0);
    engine.set_gate(Time::ZERO, Some(plan())).unwrap();
    for number in 0..20_000 {
        engine.submit(Time(number), request(number as u32 % 2, number, Op::Read)).unwrap();
    }
    let (mut now, mut came) = (Time(20_000), [Vec::new(), Vec::new()]);
    while engine.queued() > 0 {
        let mut batch = Batch::new();
        for _ in 0..700 {
            if engine.poll_dispatch(now, &mut batch) {
                let part = batch.parts()[0];
                let (object, _) = Gate::open(&plan(), now);
                assert_eq!(object == 0, part.request.app == AppId(1));
                came[object].push(part.request.cookie);
                engine.complete(now, part.id, Outcome::ok(1)).unwrap();
            }
        }
        now = now.after(5 * MS);
    }
    assert!(came.iter().all(|came| came.is_sorted() && came.len() == 10_000));
}

/// Reuse distances count only within a slice.
#[test]
fn locality_knows_whose_slice_it_is() {
    let mut engine = engine("to", 0);
    engine.watch_locality(Some(LocalityConfig { placement: None, far_bytes: 1 << 30 }));
    engine.set_gate(Time::ZERO, Some(plan())).unwrap();
    for (number, at) in [MS, 3 * MS, 11 * MS, 16 * MS, 19 * MS].into_iter().enumerate() {
        let app = if at == 11 * MS { 2 } else { 1 };
        engine.submit(Time(at), request(app, number as u64, Op::Read)).unwrap();
        assert_eq!(out(&mut engine, Time(at)), [number as u64]);
    }
    let mut apps = Vec::new();
    let device = engine.locality(&mut apps).unwrap();
    let app = apps.iter().find(|app| app.app == AppId(1)).unwrap();
    let first = 2.0 * MS as f64 * 7.0 / 8.0;
    let second = first / 8.0 + 3.0 * MS as f64 * 7.0 / 8.0;
    assert_eq!((app.reuse.last, app.reuse.count, app.requests), (second, 2, 4));
    assert_eq!((device.others.count, device.requests, device.distance.count), (0, 5, 4));
}

/// A plan that has ended stays in force until the one that follows it: its slices are still woken for.
#[test]
fn slices_go_on_behind_the_end_of_a_plan_that_another_one_follows() {
    let config = EngineConfig { max_wait_ns: 0, ..EngineConfig::default() };
    let mut engine = Engine::new(config, &PolicyConfig::parse("noop").unwrap(), Time(0)).unwrap();
    let slice = |apps| GateSlice { apps, len_ns: 10 * MS };
    let plan = |from, expires| {
        let slices = vec![slice(vec![AppId(1)]), slice(Vec::new())];
        GatePlan { epoch: Time(0), from: Time(from), expires: Time(expires), slices, idle_ns: None }
    };
    engine.set_gate(Time(0), Some(plan(0, 25 * MS))).unwrap();
    engine.set_gate(Time(0), Some(plan(10_000 * MS, 20_000 * MS))).unwrap();
    let (file, target) = (FileId(0), TargetId(0));
    let request = Request { cookie: 1, file, app: AppId(2), target, op: Op::Read, offset: 0, len: 4096 };
    engine.submit(Time(41 * MS), request).unwrap();
    assert!(!engine.poll_dispatch(Time(41 * MS), &mut Batch::new()));
    assert_eq!(engine.poll_timeout(), Some(Time(50 * MS)));
}
