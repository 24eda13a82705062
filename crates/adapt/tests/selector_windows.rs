//! Windows shorter than a quarter of a second: changes are noticed by them, and arms are judged by several together.

use sluice_adapt::selector::{
    Arm, Context, Device, Kind, Knowledge, Known, Load, Record, Selector, Settings, Value, Why, arms,
};
use sluice_core::{Anticipation, EngineConfig, OpFeatures, Time, WindowFeatures};

const WINDOW_NS: u64 = 100_000_000;
const SIZE: u64 = 32 << 10;
const LEVEL: f64 = 17.0;

/// A window of sixteen processes that read (write) so many requests.
fn window(at: u64, reads: bool, requests: u64, distance: f64) -> Load {
    let all = OpFeatures {
        requests,
        bytes: requests * SIZE,
        distances: requests,
        distance_normalised: distance,
        completed: requests,
        moved: requests * SIZE,
        ..OpFeatures::default()
    };
    let none = OpFeatures::default();
    Load::of(&WindowFeatures {
        start: Time(at * WINDOW_NS),
        end: Time((at + 1) * WINDOW_NS),
        busy_ns: WINDOW_NS,
        ops: if reads { [all, none] } else { [none, all] },
        outstanding_mean: 16.0,
        outstanding_bytes_mean: (16 * SIZE) as f64,
        outstanding_reads_mean: if reads { 16.0 } else { 0.0 },
        files: 1,
        apps: 1,
        ..WindowFeatures::default()
    })
}

fn selector(in_force: &str, contexts: &[(&str, &[(&str, f64)])], memory_below: bool) -> Selector {
    let anticipation = Some(Anticipation::for_device(8_000_000, 100_000_000));
    let all = arms(Device::Disk, &EngineConfig { anticipation, ..EngineConfig::default() });
    let settings = Settings { memory_below, window_ns: WINDOW_NS, ..Settings::new(Kind::Bandit, Device::Disk) };
    let mut selector = Selector::new(settings, all, &Arm::parse(in_force).unwrap(), None).unwrap();
    let mut knowledge = Knowledge { clock_s: 100.0, budget_s: -100.0, ..Knowledge::new(Device::Disk) };
    for (context, gains) in contexts {
        let value = |gain| Value { gain, variance: 0.01, weight: 20.0, seen_s: 100.0 };
        let arms = gains.iter().map(|(arm, gain)| ((*arm).to_owned(), value(*gain))).collect();
        let context = Context::parse(context).unwrap();
        let looks = gains.iter().map(|(arm, _)| ((*arm).to_owned(), context)).collect();
        let known =
            Known { level: LEVEL, looks, windows: 100, stays: 3, stay_s: 4.0, seen_s: 100.0, arms, ..Known::default() };
        knowledge.contexts.insert(context, known);
    }
    selector.remember(knowledge).unwrap();
    selector
}

fn records(selector: &mut Selector) -> Vec<Record> {
    std::iter::from_fn(|| selector.take_record()).filter(|record| record.why != Why::Window).collect()
}

#[test]
fn an_observation_is_a_quarter_of_a_second_or_more() {
    let mut selector = selector("hbrr", &[], false);
    let context = Context::parse("r1.q0.d2.f0.a0").unwrap();
    let credited = |selector: &Selector| selector.knowledge().contexts.get(&context).map_or(0, |known| known.windows);
    let counts: Vec<u64> = (0..40)
        .map(|at| {
            selector.window(&window(at, true, 100, 4.0));
            credited(&selector).into()
        })
        .collect();
    let first = counts.iter().position(|count| *count > 0).unwrap();
    assert!(counts.windows(2).all(|pair| pair[1] - pair[0] <= 1));
    let each: Vec<usize> = (first..first + 9).filter(|at| counts[*at] > counts[at - 1]).collect();
    assert_eq!(each, [first, first + 3, first + 6], "three windows are one observation: {counts:?}");
}

#[test]
fn a_known_workload_has_its_arm_within_two_windows() {
    let reads: &[(&str, f64)] = &[("hbrr", 0.0), ("to-agg", -0.1)];
    let writes: &[(&str, f64)] = &[("aioli", 0.0), ("hbrr", -0.2)];
    let mut selector = selector("hbrr", &[("r1.q0.d2.f0.a0", reads), ("w1.q0.d2.f0.a0", writes)], false);
    for at in 0..200 {
        let is_read = at / 25 % 2 == 0;
        selector.window(&window(at, is_read, 100, 4.0));
        if at > 25 && at % 25 >= 1 {
            assert_eq!(selector.arm().to_string(), if is_read { "hbrr" } else { "aioli" }, "window {at}");
        }
    }
}

/// Programs that are brought into step look in order for some windows, and then not: what is known of them in order is arms under
/// which they come apart again.
#[test]
fn an_arm_that_brings_programs_into_step_goes_on_while_only_the_order_changes() {
    let apart: &[(&str, f64)] = &[("to-agg anticipation=on", 0.0), ("noop", -1.0)];
    let in_step: &[(&str, f64)] = &[("noop", 0.0), ("sjf", 0.0), ("to-agg anticipation=on", -0.6)];
    let contexts = [("r1.q1.d2.f0.a0", apart), ("r1.q0.d2.f0.a0", in_step)];
    let mut selector = selector("noop", &contexts, false);
    // In step after two seconds of anticipation; every now and then it looks so before.
    let mut anticipates = 0;
    for at in 0..40 {
        anticipates = if selector.arm().anticipation { anticipates + 1 } else { 0 };
        let (in_step, looks_so) = (anticipates > 20, anticipates % 5 > 2);
        let requests = if in_step { 400 } else { 50 };
        let distance = if in_step || looks_so { 4.0 } else { 500.0 };
        selector.window(&window(at, true, requests, distance));
        if in_step {
            return;
        }
    }
    panic!("never in step: {:?}", records(&mut selector));
}

#[test]
fn an_arm_that_begins_to_anticipate_has_a_second_where_programs_may_be_apart() {
    let first_credit = |distance: f64, context: &str| {
        let gains: &[(&str, f64)] = &[("to-agg anticipation=on", 0.0), ("noop", -1.0)];
        let mut selector = selector("noop", &[(context, gains)], false);
        let context = Context::parse(context).unwrap();
        let before = selector.knowledge().contexts[&context].windows;
        let credited = |selector: &Selector| selector.knowledge().contexts[&context].windows > before;
        (0..60).find(|at| {
            selector.window(&window(*at, true, 100, distance));
            credited(&selector)
        })
    };
    let (in_order, scattered) = (first_credit(4.0, "r1.q0.d2.f0.a0"), first_credit(500.0, "r1.q1.d2.f0.a0"));
    let (in_order, scattered) = (in_order.unwrap(), scattered.unwrap());
    assert!((9..=15).contains(&(scattered - in_order)), "{in_order} {scattered}");
}

/// Where what is written is held below, what arms do shows late: the same decisions as by windows of a quarter of a second, about.
#[test]
fn behind_memory_windows_are_put_together() {
    let mut selector = selector("hbrr", &[], true);
    let clock = |selector: &Selector| selector.knowledge().clock_s;
    let clocks: Vec<f64> = (0..9)
        .map(|at| {
            selector.window(&window(at, false, 100, 4.0));
            clock(&selector)
        })
        .collect();
    let jumps: Vec<usize> = (1..9).filter(|at| clocks[*at] > clocks[at - 1]).collect();
    assert_eq!(jumps, [2, 5, 8], "{clocks:?}");
    assert!((clocks[8] - clocks[1] - 0.9).abs() < 1e-9, "no time is lost: {clocks:?}");
}
