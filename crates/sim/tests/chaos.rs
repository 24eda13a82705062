//! Random experiments with faults, every step checked. Again: `sluice simulate --chaos --seed S --seeds 1`.

use sluice_sim::{Failure, chaos, chaos_many};
use std::sync::atomic::AtomicBool;

static RUN: AtomicBool = AtomicBool::new(false);

#[test]
fn hundreds_of_seeds_hold_every_invariant() {
    let report = chaos_many(1, 300, None, &RUN, || ()).unwrap_or_else(|failure| {
        panic!("sluice simulate --chaos --seed {} --seeds 1: {}\n{}", failure.seed, failure.failure, failure.scenario)
    });
    let faults = report.faults;
    assert!(report.experiments == 300 && report.calls > 5_000, "{report:?}");
    // Each kind of fault was there to be survived.
    for count in [faults.lost, faults.doubled, faults.repeated, faults.recognised, faults.refused, faults.failed] {
        assert!(count > 100, "{faults:?}");
    }
    assert!(faults.crashes > 50 && report.policy_changes > 500, "{report:?}");
}

#[test]
fn the_same_seed_is_the_same_experiment() {
    let digest = |seed| chaos(seed, false, &RUN).unwrap().digest;
    assert_eq!(digest(7), digest(7));
    assert_ne!(digest(7), digest(8));
}

#[test]
fn a_receiver_that_forgets_what_it_has_done_is_caught() {
    let caught = (1..300).filter_map(|seed| chaos(seed, true, &RUN).err()).find_map(|failure| match failure.failure {
        Failure::Violation(text) => Some(text),
        _ => None,
    });
    let text = caught.expect("a seed in which a repeated write is executed after it was answered");
    assert!(text.contains("write"), "{text}");
}
