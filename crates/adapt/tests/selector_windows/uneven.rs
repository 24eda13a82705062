//! Workloads whose windows differ: programs have slices of time, and what they are served at differs by a factor.

use sluice_adapt::selector::Unevenness;

use super::*;

/// Of a workload whose windows were seen to differ by a factor the first of them say no more than they did then.
#[test]
fn windows_of_a_workload_that_was_uneven_are_put_together_from_the_first_on() {
    let observed_after = |uneven: Unevenness, memory_below: bool| {
        let mut selector = selector("hbrr", &[("r1.q0.d2.f0.a0", &[("hbrr", 0.0)])], memory_below);
        let mut knowledge = selector.knowledge().clone();
        knowledge.contexts.values_mut().for_each(|known| known.uneven = uneven);
        selector.remember(knowledge).unwrap();
        let observations = |selector: &Selector| selector.knowledge().contexts.values().next().unwrap().windows;
        let after = (0..60).position(|at| {
            selector.window(&window(at, true, if at / 5 % 2 == 0 { 300 } else { 20 }, 4.0));
            observations(&selector) > 100
        });
        after.unwrap()
    };
    let uneven = Unevenness { variance: 2.0, usual: 0.2, differences: 20 };
    assert_eq!(observed_after(uneven, false), 9 + observed_after(Unevenness::default(), false));
    assert_eq!(observed_after(uneven, true), observed_after(Unevenness::default(), true), "not behind memory");
}

/// What one phase has shown of that is known in the next.
#[test]
fn how_uneven_windows_are_is_learned() {
    let mut selector = selector("hbrr", &[("w1.q0.d2.f0.a0", &[("hbrr", 0.0)])], false);
    (0..40).for_each(|at| _ = selector.window(&window(at, false, if at % 2 == 0 { 20 } else { 300 }, 4.0)));
    let uneven = selector.knowledge().contexts.values().next().unwrap().uneven;
    assert!(uneven.variance > 1.0 && uneven.usual < uneven.variance && uneven.differences > 20, "{uneven:?}");
}

/// Every trial gives 15 % more than the mean of the arm in use, in each of its windows: neither in it nor after it is that enough.
#[test]
fn a_gain_is_no_surer_than_what_it_is_compared_with() {
    let wins = |uneven: u64| {
        let mut selector = selector("hbrr anticipation=on", &[], false);
        selector.remember(Knowledge { budget_s: 60.0, ..Knowledge::new(Device::Disk) }).unwrap();
        let in_use = selector.arm().clone();
        (0..80).any(|at| {
            let own = if at % 2 == 0 { 100 - uneven } else { 100 + uneven };
            let requests = if *selector.arm() == in_use { own } else { 115 };
            selector.window(&window(at, false, requests, 4.0));
            records(&mut selector).iter().any(|record| matches!(record.why, Why::TrialWon | Why::Better))
        })
    };
    assert!(wins(0) && !wins(20));
}

/// One observation is enough to give up what loses two fifths, unless those of the arm in use are as far from each other.
#[test]
fn where_windows_differ_one_of_them_is_no_clear_loss() {
    let lost_after = |uneven: u64| {
        let mut selector = selector("hbrr anticipation=on", &[], false);
        selector.remember(Knowledge { budget_s: 60.0, ..Knowledge::new(Device::Disk) }).unwrap();
        let in_use = selector.arm().clone();
        let mut trial = 0;
        (0..120).find_map(|at| {
            let is_tried = *selector.arm() != in_use;
            trial = if is_tried { trial + 1 } else { 0 };
            let own = if at % 2 == 0 { 100 - uneven } else { 100 + uneven };
            selector.window(&window(at, false, if is_tried { 55 } else { own }, 4.0));
            records(&mut selector).iter().any(|record| record.why == Why::TrialLost).then_some(trial)
        })
    };
    let [even, uneven] = [0, 40].map(|uneven| lost_after(uneven).expect("something is tried, and lost"));
    assert!(even <= 4 && uneven > 6, "{even} and {uneven} windows");
}

/// A window in which a stream has its slice of time, or those who read here and there beside it have theirs.
fn slice(at: u64, is_stream: bool) -> Load {
    let (requests, distance, files) = if is_stream { (300, 0.0, 4) } else { (20, 500.0, 20) };
    Load::of(&WindowFeatures { files, ..features(at, true, requests, distance, 0) })
}

#[test]
fn slices_of_time_make_no_other_workload_of_each_program() {
    for windows in [2, 3, 5] {
        let mut selector = selector("hbrr anticipation=on", &[], false);
        let mut at = 0;
        let mut run = |selector: &mut Selector, slices: u64, is_stream: &dyn Fn(u64) -> bool| {
            for slice_at in 0..slices {
                for _ in 0..windows {
                    selector.window(&slice(at, is_stream(slice_at)));
                    at += 1;
                }
            }
            records(selector)
        };
        run(&mut selector, 4, &|slice| slice % 2 == 0);
        let by_turns = run(&mut selector, 40, &|slice| slice % 2 == 0);
        assert_eq!(entered(&by_turns), 0, "slices of {windows} windows");
        // What stays is another workload, whichever of the two that is.
        let alone = run(&mut selector, 20_u64.div_ceil(windows), &|_| true);
        let random = run(&mut selector, 20_u64.div_ceil(windows), &|_| false);
        assert_eq!((entered(&alone), entered(&random)), (1, 1), "slices of {windows} windows");
    }
}

/// Of a known workload that comes again a stream has its slice first: it is begun with what is known of all. A stream that goes on alone is
/// another one.
#[test]
fn a_known_workload_is_known_by_a_part_of_it() {
    let arms: &[(&str, f64)] = &[("hbrr anticipation=on", 0.0), ("noop", -1.0)];
    let of_all = "r1.q1.d2.f2.a0";
    for memory_below in [false, true] {
        let mut selector = selector("hbrr anticipation=on", &[(of_all, arms)], memory_below);
        let known =
            |selector: &Selector| selector.knowledge().contexts.keys().map(Context::to_string).collect::<Vec<_>>();
        (0..8).for_each(|at| _ = selector.window(&slice(at, true)));
        let is_known = known(&selector) == [of_all];
        assert_eq!(is_known, !memory_below, "{:?}", known(&selector));
        (8..30).for_each(|at| _ = selector.window(&slice(at, true)));
        assert_eq!(known(&selector), ["r1.q0.d2.f1.a0", of_all]);
    }
}

/// What may be a part of two is taken for neither, also where one of them was there until now.
#[test]
fn what_may_be_a_part_of_two_workloads_is_another_one() {
    let arms: &[(&str, f64)] = &[("hbrr anticipation=on", 0.0), ("noop", -1.0)];
    let contexts = [("r1.q1.d2.f1.a0", arms), ("r1.q1.d2.f2.a0", arms)];
    let mut selector = selector("hbrr anticipation=on", &contexts, false);
    (0..30).for_each(|at| _ = selector.window(&slice(at, false)));
    records(&mut selector);
    (30..130).for_each(|at| _ = selector.window(&slice(at, true)));
    assert_eq!(entered(&records(&mut selector)), 1);
    assert!(selector.knowledge().contexts[&Context::parse("r1.q0.d2.f1.a0").unwrap()].windows > 10);
}

/// Bursts that are shorter than it takes to find out that they are no part of what they were taken for.
#[test]
fn a_class_is_taken_for_a_part_of_what_it_is_not_once() {
    let arms: &[(&str, f64)] = &[("hbrr anticipation=on", 0.0), ("noop", -1.0)];
    let of_all = Context::parse("r1.q1.d2.f2.a0").unwrap();
    let mut selector = selector("hbrr anticipation=on", &[("r1.q1.d2.f2.a0", arms)], false);
    let before = selector.knowledge().contexts[&of_all].clone();
    for at in 0..200 {
        let is_stream = at % 40 < 8;
        selector.window(&if is_stream { slice(at, true) } else { window(at, false, 100, 4.0) });
    }
    let after = &selector.knowledge().contexts[&of_all];
    assert_eq!((after.stays, after.stay_s, after.level), (before.stays, before.stay_s, before.level));
    let stream = &selector.knowledge().contexts[&Context::parse("r1.q0.d2.f1.a0").unwrap()];
    assert_eq!((stream.stays, stream.windows > 4), (4, true), "{stream:?}");
}

/// Four who read at random beside a stream, in files of which each window has other ones.
#[test]
fn how_many_files_a_window_has_seen_makes_no_other_workload() {
    let mut selector = selector("hbrr anticipation=on", &[], false);
    for at in 0..200 {
        let files = [5, 8, 16, 15][at as usize / 12 % 4];
        let features = WindowFeatures { files, outstanding_mean: 5.0, ..features(at, true, 20, 500.0, 0) };
        selector.window(&Load::of(&features));
    }
    assert_eq!(selector.knowledge().contexts.len(), 1, "{:?}", selector.knowledge().contexts.keys());
}

#[test]
fn what_a_workload_gives_in_slices_is_credited_as_a_whole() {
    let mut selector = selector("hbrr anticipation=on", &[], false);
    selector.remember(Knowledge::new(Device::Disk)).unwrap();
    let mut without = 0;
    for at in 0..1_200 {
        // Without anticipation nobody waits for the stream.
        let anticipates = selector.arm().anticipation;
        without += u64::from(!anticipates);
        selector.window(&slice(at, anticipates && at / 3 % 2 == 0));
    }
    let best = selector.knowledge().contexts.values().max_by_key(|known| known.windows).unwrap();
    let gain = |arm: &str| best.arms[arm].gain;
    assert!(gain("noop") < gain("hbrr anticipation=on") - 1.0, "{best:?}");
    assert!(selector.arm().anticipation && without < 120, "{} after {without} windows without", selector.arm());
}

/// One that has seen the whole of a workload for a while, of which streams are a part.
fn selector_of_slices() -> Selector {
    let mut selector = selector("hbrr anticipation=on", &[], false);
    (0..30).for_each(|at| _ = selector.window(&slice(at, false)));
    records(&mut selector);
    selector
}

#[test]
fn a_part_that_stays_is_another_workload_even_if_nothing_arrives_now_and_then() {
    for every in [2, 3, 5, 9, 20] {
        let mut selector = selector_of_slices();
        for at in 30..60 {
            let mut features = WindowFeatures { files: 4, ..features(at, true, 300, 0.0, 0) };
            if at % every == 0 {
                (features.ops[0].requests, features.ops[0].bytes, features.ops[0].distances) = (0, 0, 0);
            }
            selector.window(&Load::of(&features));
        }
        assert_eq!(entered(&records(&mut selector)), 1, "no arrivals in one window of {every}");
    }
}

#[test]
fn a_part_excuses_nothing_else() {
    for first in [0, 1] {
        let mut selector = selector_of_slices();
        let noticed = (30..60).find(|at| {
            let writes = window(*at, false, 100, 4.0);
            selector.window(&if at % 2 == first { slice(*at, true) } else { writes });
            entered(&records(&mut selector)) > 0
        });
        assert!(noticed.is_some_and(|at| at <= 33), "writes every other window are noticed in {noticed:?}");
    }
}

#[test]
fn parts_before_a_gap_are_forgotten() {
    for has_light_load in [false, true] {
        let mut selector = selector_of_slices();
        let mut windows = 30..;
        for _ in 0..10 {
            for (count, is_stream) in [(2, true), (0, false), (4, true), (4, false)] {
                let gap = if count == 0 { 20 } else { 0 };
                for at in windows.by_ref().take(gap) {
                    let none = WindowFeatures { outstanding_mean: 1.0, ..features(at, true, 20, 0.0, 0) };
                    if has_light_load {
                        selector.window(&Load::of(&none));
                    }
                }
                windows.by_ref().take(count).for_each(|at| _ = selector.window(&slice(at, is_stream)));
            }
        }
        assert_eq!(entered(&records(&mut selector)), 0, "light load: {has_light_load}");
    }
}

/// Requests come in bursts: of some windows that follow a change of arms nothing arrives in the last.
#[test]
fn bursts_are_no_other_workload_after_a_change_of_arms() {
    for first in 0..3 {
        let mut selector = selector("hbrr", &[("w1.q0.d2.f0.a0", &[("hbrr", 0.0)])], false);
        selector.remember(Knowledge { budget_s: 60.0, ..selector.knowledge().clone() }).unwrap();
        let mut changed = 0;
        for at in 0..300 {
            // So few that trials last for longer than what is new may be the arm's doing.
            let mut features = features(at, false, 5, 4.0, 0);
            if at > 4 && at % 3 != first {
                (features.ops[1].requests, features.ops[1].bytes, features.ops[1].distances) = (0, 0, 0);
            }
            selector.window(&Load::of(&features));
            changed += entered(&records(&mut selector));
        }
        assert!(selector.explain().changes > 2, "something is tried");
        assert_eq!(changed, 1, "arrivals in window {first} of three");
    }
}
