//! The selector where streams are read, of which more wait now and less then, and what it makes of luck.

use sluice_adapt::selector::{Arm, Context, Device, Knowledge, Known, Value, Why};

use crate::bed::{Bed, PER_S, Workload, bed};

/// Streams of which now 20 and now 64 wait, known as two workloads, and what is known of both.
fn streams_that_wait(gains: [&[(&str, f64)]; 2]) -> (Bed, [Workload; 2]) {
    let mut bed = bed(Device::Disk, 1, 0.0);
    let value = |gain: f64| Value { gain, variance: 0.01, weight: 20.0, seen_s: 0.0 };
    let known = |gains: &[(&str, f64)]| Known {
        level: 80e6_f64.ln(),
        windows: 100,
        stays: 3,
        stay_s: 4.0,
        arms: gains.iter().map(|(arm, gain)| ((*arm).to_owned(), value(*gain))).collect(),
        ..Known::default()
    };
    // Nothing is tried.
    let mut knowledge = Knowledge { budget_s: -60.0, ..Knowledge::new(Device::Disk) };
    for (context, gains) in ["r3.q0.d2.f1.a0", "r3.q0.d3.f1.a0"].iter().zip(gains) {
        knowledge.contexts.insert(Context::parse(context).unwrap(), known(gains));
    }
    bed.selector.remember(knowledge).unwrap();
    let workload = |at: usize, depth: u64| {
        let rate = |arm: &Arm| {
            let gain = gains[at].iter().find(|(name, _)| *name == arm.to_string()).map_or(0.0, |(_, gain)| *gain);
            80e6 * gain.exp()
        };
        let rates = bed.arms.iter().map(rate).collect();
        Workload { size: 1 << 19, depth, contiguous: 0.95, is_write: false, rates }
    };
    let workloads = [workload(0, 20), workload(1, 64)];
    (bed, workloads)
}

/// That more of them wait is no sign of programs that an arm brings into step.
#[test]
fn streams_of_which_more_wait_are_begun_with_what_is_best_then() {
    let (few, many) = ("aioli", "sjf anticipation=on");
    let (mut bed, workloads) = streams_that_wait([&[(few, 0.0), (many, -0.3)], &[(few, -0.3), (many, 0.0)]]);
    for _ in 0..10 {
        workloads.iter().for_each(|workload| bed.run(workload, 1));
    }
    let began = bed.records.iter().filter(|record| record.why == Why::KnownWorkload);
    let began: Vec<_> = began.map(|record| (record.context.clone().unwrap(), record.arm.clone())).collect();
    assert!(began.len() >= 15, "{began:?}");
    let wanted = |context: &str| if context.contains("d2") { few } else { many };
    assert!(began.iter().all(|(context, arm)| arm == wanted(context)), "{began:?}");
}

/// An arm is lucky in its trial, and gives less than the one before afterwards: what it gives then counts as much.
#[test]
fn who_was_lucky_in_a_trial_is_judged_by_what_comes_after_it() {
    let mut bed = bed(Device::Disk, 1, 0.0);
    let first = bed.arms[0].to_string();
    let usual = Workload { size: 1 << 19, depth: 20, contiguous: 0.95, is_write: false, rates: Vec::new() };
    let (mut lucky, mut won_at) = (None, None);
    for _ in 0..20 * PER_S {
        let arm = bed.selector.arm().to_string();
        let rate = match (&lucky, won_at) {
            _ if arm == first => 80e6,
            (None, None) => 150e6,
            (Some(lucky), None) if *lucky == arm => 150e6,
            _ => 70e6,
        };
        bed.give(&usual.window(bed.now, rate));
        let last = bed.records.last().unwrap();
        if last.why == Why::Trial && lucky.is_none() {
            lucky = Some(last.arm.clone());
        }
        if last.why == Why::TrialWon && Some(&last.arm) == lucky.as_ref() {
            won_at = Some(bed.now);
        }
        if won_at.is_some_and(|at| bed.now == at + 6) {
            break;
        }
    }
    let context = Context::parse("r3.q0.d2.f1.a0").unwrap();
    let known = &bed.selector.knowledge().contexts[&context].arms;
    let gain = known[&lucky.expect("something was tried")].gain - known[&first].gain;
    assert!(won_at.is_some() && gain < 0.45, "{gain}");
}
