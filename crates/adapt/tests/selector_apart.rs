//! Programs that use a file by turns have two ways of working: in step, when whatever arms do to the order gives the same, and apart,
//! when it is an eighth. Anticipation brings them together, and nothing else does.

use sluice_adapt::selector::{
    Arm, Context, Device, Kind, Knowledge, Known, Load, Selector, Settings, Value, Why, arms,
};
use sluice_core::{Anticipation, EngineConfig, OpFeatures, Time, WindowFeatures};

const WINDOW_NS: u64 = 250_000_000;
const SIZE: u64 = 32 << 10;
const IN_STEP: f64 = 140e6;
const APART: f64 = 18e6;

/// A window of sixteen processes.
fn window(at: u64, is_apart: bool) -> WindowFeatures {
    let requests = (if is_apart { APART } else { IN_STEP } * 0.25) as u64 / SIZE;
    let read = OpFeatures {
        requests,
        bytes: requests * SIZE,
        distances: requests,
        distance_normalised: if is_apart { 500.0 } else { 4.0 },
        completed: requests,
        moved: requests * SIZE,
        ..OpFeatures::default()
    };
    WindowFeatures {
        start: Time(at * WINDOW_NS),
        end: Time((at + 1) * WINDOW_NS),
        busy_ns: WINDOW_NS,
        ops: [read, OpFeatures::default()],
        outstanding_mean: 16.0,
        outstanding_bytes_mean: (16 * SIZE) as f64,
        outstanding_reads_mean: 16.0,
        files: 1,
        apps: 1,
        ..WindowFeatures::default()
    }
}

fn selector(in_force: &str) -> Selector {
    let host = EngineConfig {
        anticipation: Some(Anticipation::for_device(8_000_000, 100_000_000)),
        ..EngineConfig::default()
    };
    let (arms, in_force) = (arms(Device::Disk, &host), Arm::parse(in_force).unwrap());
    Selector::new(Settings::new(Kind::Bandit, Device::Disk), arms, &in_force, None).unwrap()
}

/// What was seen of a workload, of these arms, all as good as each other.
fn known(arms: &[&str], rate: f64) -> Known {
    let value = Value { gain: 0.0, variance: 0.01, weight: 20.0, seen_s: 100.0 };
    let arms = arms.iter().map(|arm| ((*arm).to_owned(), value)).collect();
    // A request counts for 4 KiB beside its bytes.
    let level = (rate * (SIZE + 4096) as f64 / SIZE as f64).ln();
    Known { level, windows: 100, stays: 3, stay_s: 4.0, seen_s: 100.0, arms, ..Known::default() }
}

/// Windows until they are in step again; at most 100. `budget_s`: what may be spent on trying.
fn windows_apart(in_step: f64, budget_s: f64) -> u64 {
    let mut selector = selector("sjf");
    let mut knowledge = Knowledge { clock_s: 100.0, budget_s, ..Knowledge::new(Device::Disk) };
    let context = |text: &str| Context::parse(text).unwrap();
    knowledge.contexts.insert(context("r1.q0.d2.f0.a0"), known(&["sjf", "hbrr anticipation=on", "aioli"], in_step));
    knowledge.contexts.insert(context("r1.q1.d2.f0.a0"), known(&["sjf", "noop", "to-agg", "hbrr", "aioli"], APART));
    selector.remember(knowledge).unwrap();
    // Anticipation takes two windows to bring them together.
    let (mut together, mut apart) = (0, 0);
    for at in 0..100 {
        let anticipates = selector.arm().anticipation;
        together = if anticipates { together + 1 } else { together };
        let is_apart = together < 3;
        apart += u64::from(is_apart);
        selector.window(&Load::of(&window(at, is_apart)));
    }
    apart
}

#[test]
fn what_serves_the_same_much_faster_in_another_order_is_tried_soon() {
    let apart = windows_apart(IN_STEP, 3.0);
    assert!(apart < 12, "{apart} of 100 windows apart");
}

#[test]
fn the_last_of_the_allowance_is_for_what_promises_to_be_faster_by_a_factor() {
    // The same, but that nothing promises it: in another order they were served as fast.
    let apart = windows_apart(APART, 3.0);
    assert_eq!(apart, 100, "nothing was tried");
    assert_eq!(windows_apart(IN_STEP, -10.0), 100, "what is spent is spent");
}

/// Bringing them together takes a while, in which nothing is gained. Whether that ends is not known, so it is not waited for without end.
#[test]
fn an_arm_that_brings_programs_into_step_is_judged_when_it_has() {
    let tried_at = |windows: u64| {
        let mut selector = selector("hbrr anticipation=on");
        let begins = (0..100).find(|at| {
            let features = window(*at, *at < windows);
            let catching_up = if *at < windows { 90 } else { 0 };
            selector.window(&Load::of(&WindowFeatures { batches: 100, catching_up, ..features })).is_some()
        });
        begins.unwrap_or(100)
    };
    assert!(tried_at(0) < 5, "{}", tried_at(0));
    for windows in [5, 10, 20] {
        assert!((windows..windows + 5).contains(&tried_at(windows)), "{windows}: {}", tried_at(windows));
    }
    assert!((20..35).contains(&tried_at(100)), "{}", tried_at(100));
}

/// Phases may be shorter than it is waited for.
#[test]
fn programs_that_never_come_into_step_are_not_waited_for_anew_in_each_phase() {
    let mut selector = selector("hbrr anticipation=on");
    let tried = (0..200).any(|at| {
        let mut features = WindowFeatures { batches: 100, catching_up: 90, ..window(at, true) };
        if at / 12 % 2 == 0 {
            features.ops.swap(0, 1);
            features.outstanding_reads_mean = 0.0;
        }
        selector.window(&Load::of(&features)).is_some_and(|arm| !arm.anticipation)
    });
    assert!(tried, "nothing else was tried");
}

/// Programs end one after the other: the rate falls before the next workload is there, and what was known of this one is as true as before.
#[test]
fn a_fall_at_the_end_of_a_workload_casts_no_doubt_on_what_is_known() {
    let other = |at| {
        let features = window(at, false);
        let write = features.ops[0];
        WindowFeatures { ops: [OpFeatures::default(), write], outstanding_reads_mean: 0.0, ..features }
    };
    let weight = |falls_for: u64| {
        let mut selector = selector("sjf");
        let mut knowledge = Knowledge { clock_s: 100.0, budget_s: -10.0, ..Knowledge::new(Device::Disk) };
        let context = Context::parse("r1.q0.d2.f0.a0").unwrap();
        knowledge.contexts.insert(context, known(&["sjf", "noop", "hbrr anticipation=on"], IN_STEP));
        selector.remember(knowledge).unwrap();
        for at in 0..40 + falls_for + 8 {
            let features = match at {
                0..40 => window(at, false),
                at if at < 40 + falls_for => WindowFeatures { busy_ns: 4 * WINDOW_NS, ..window(at, false) },
                at => other(at),
            };
            selector.window(&Load::of(&features));
        }
        let doubts = std::iter::from_fn(|| selector.take_record()).filter(|record| record.why == Why::Doubt).count();
        (doubts, selector.knowledge().contexts[&context].arms["noop"].weight)
    };
    let (doubts, kept) = weight(5);
    assert!(doubts == 1 && kept == 20.0, "{doubts} doubts, {kept} windows");
    let (doubts, kept) = weight(40);
    assert!(doubts == 1 && kept < 1.0, "{doubts} doubts, {kept} windows");
}

/// A device that is a hundred times as fast for a while, and then is not, and nothing is tried.
#[test]
fn what_is_usual_stays_within_bounds_for_hours() {
    let arm = Arm::parse("noop").unwrap();
    let mut selector =
        Selector::new(Settings::new(Kind::Bandit, Device::Flash), vec![arm.clone()], &arm, None).unwrap();
    let mut knowledge = Knowledge { clock_s: 100.0, ..Knowledge::new(Device::Flash) };
    // It is not there for the first time.
    knowledge.contexts.insert(Context::parse("r1.q0.d2.f0.a0").unwrap(), known(&["noop"], IN_STEP));
    selector.remember(knowledge).unwrap();
    for at in 0..20_000 {
        let mut features = window(at, false);
        features.busy_ns = if at / 40 % 2 == 0 { WINDOW_NS / 10 } else { WINDOW_NS * 10 };
        selector.window(&Load::of(&features));
        if at % 500 == 0 {
            let text = selector.knowledge().to_text();
            let read = Knowledge::from_text(text.as_bytes()).unwrap_or_else(|error| panic!("window {at}: {error}"));
            let least = read.contexts.values().map(|known| known.level).fold(f64::INFINITY, f64::min);
            assert!(least > -30.0, "window {at}: {least}");
        }
    }
}
