//! Devices that are learned from what they serve, in whole systems: what is said of them is right, within a minute of load.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use sluice_adapt::device::{Estimate, Learner};
use sluice_adapt::selector::Device;
use sluice_core::{FileId, Op, ServedBatch, TargetId, Time};
use sluice_device::profiler::Modelled;
use sluice_sim::scenario::{Plan, Setting};
use sluice_sim::{Options, simulate};

static RUN: AtomicBool = AtomicBool::new(false);

/// Programs of all sorts; `op` and `more` are put in.
const RANDOM: &str = r#"
    [[application]]
    name = "random"
    processes = 3
    [[application.phase]]
    pattern = "random"
    op = "read"
    request = "16K"
    data = "2G"
"#;
const STREAMS: &str = r#"
    [[application]]
    name = "streams"
    processes = 4
    [[application.phase]]
    files = "per-process"
    op = "read"
    request = "128K"
    data = "2G"
"#;
const SHARED: &str = r#"
    [[application]]
    name = "shared"
    processes = 4
    [[application.phase]]
    pattern = "strided"
    op = "read"
    request = "32K"
    data = "2G"
"#;
const WRITES: &str = r#"
    [[application]]
    name = "writes"
    processes = 4
    [[application.phase]]
    files = "per-process"
    op = "write"
    request = "64K"
    data = "2G"
"#;

/// One process that reads a file from beginning to end, and then here and there.
const ONE: &str = r#"
    [[application]]
    name = "one"
    processes = 1
    [[application.phase]]
    op = "read"
    file = "first"
    request = "128K"
    data = "256M"
    [[application.phase]]
    pattern = "random"
    op = "read"
    request = "16K"
    data = "8G"
"#;

/// What is learned of a device in so many seconds, under these programs, and how many requests of the first were answered.
fn learned(device: &str, policy: &str, seconds: u64, programs: &[&str]) -> (Estimate, u64) {
    let text = format!("[servers]\ncount = 1\n{}", programs.concat());
    let settings: Vec<Setting> = [("servers.device", device), ("servers.policy", policy), ("servers.in_flight", "8")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let plan = Plan::parse(&text, "test", Path::new(""), &settings, &[]).unwrap_or_else(|error| panic!("{error}"));
    let options = Options { devices: true, until_ns: seconds * 1_000_000_000, ..Options::default() };
    let outcome = simulate(&plan.runs[0].scenario, options, &RUN).unwrap_or_else(|error| panic!("{error}"));
    (outcome.learned.into_iter().next().expect("one server"), outcome.apps[0].calls)
}

#[test]
fn all_kinds_of_devices_are_told_apart_under_mixed_load() {
    let mut rows = Vec::new();
    for model in sluice_device::models().iter().filter(|model| model.name != "null") {
        let has_arm = sluice_device::model(model.name, 1).unwrap().rotates();
        let seconds = if has_arm { 60 } else { 20 };
        let expected = if has_arm { Device::Disk } else { Device::Flash };
        for programs in [&[ONE][..], &[RANDOM, STREAMS], &[RANDOM, SHARED], &[RANDOM, STREAMS, WRITES]] {
            let (estimate, random) = learned(model.name, "hbrr", seconds, programs);
            rows.push((model.name, expected, estimate, random));
        }
    }
    let mut known = 0;
    for (name, expected, estimate, random) in &rows {
        println!("{name:<10} {random:>8} {:?} {:.3} {}", estimate.device, estimate.confidence, estimate.reason);
        // An array's model lets a stream keep requests of others from one of its disks.
        let is_starved = *random < 100;
        assert!(
            estimate.device == *expected || (is_starved && estimate.device == Device::Unknown),
            "{name}: {estimate:?}"
        );
        known += u32::from(estimate.device == *expected);
    }
    assert!(known as usize + 4 >= rows.len(), "{known} of {} are known", rows.len());
}

#[test]
fn under_loads_that_leave_it_open_nothing_wrong_is_said() {
    for (model, wrong) in
        [("hdd-7200", Device::Flash), ("grimoire", Device::Flash), ("ssd-sata", Device::Disk), ("nvme", Device::Disk)]
    {
        for programs in [&[STREAMS][..], &[SHARED], &[WRITES], &[RANDOM], &[STREAMS, WRITES]] {
            let seconds = if wrong == Device::Flash { 30 } else { 2 };
            let (estimate, _) = learned(model, "noop", seconds, programs);
            println!("{model:<10} {:?} {:.3} {}", estimate.device, estimate.confidence, estimate.reason);
            assert_ne!(estimate.device, wrong, "{model}: {estimate:?}");
        }
    }
}

#[test]
fn a_disk_behind_a_page_cache_is_a_disk_or_unknown() {
    let cached = RANDOM.replace("2G", "256M");
    for programs in [&[&*cached, STREAMS][..], &[&cached]] {
        let text = format!(
            "[servers]\ncount = 1\ndevice = \"hdd-7200\"\npage_cache = \"on\"\nmemory = \"1G\"\n{}",
            programs.concat()
        );
        let plan = Plan::parse(&text, "test", Path::new(""), &[], &[]).unwrap_or_else(|error| panic!("{error}"));
        let options = Options { devices: true, until_ns: 30_000_000_000, ..Options::default() };
        let outcome = simulate(&plan.runs[0].scenario, options, &RUN).unwrap_or_else(|error| panic!("{error}"));
        let estimate = &outcome.learned[0];
        println!("{:?} {:.3} {}", estimate.device, estimate.confidence, estimate.reason);
        assert_ne!(estimate.device, Device::Flash, "{estimate:?}");
    }
}

/// Learns from reads of 64 KiB one at a time, in sequence and here and there, as a profiler does them.
fn learned_alone(model: &str) -> Estimate {
    const LEN: u64 = 64 << 10;
    const BLOCKS: u64 = (1200 << 20) / LEN;
    let mut device = Modelled::of(model, 1, 1200 << 20).unwrap();
    let (mut learner, mut state) = (Learner::new(false), 1_u64);
    for number in 1..=4_000_u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = if number <= 2_000 { number } else { state >> 33 } % BLOCKS;
        let start = Time(device.now_ns());
        device.request(sluice_device::Op::Read, block * LEN, LEN);
        learner.served(
            0,
            &ServedBatch {
                number,
                op: Op::Read,
                file: FileId(1),
                target: TargetId(0),
                offset: block * LEN,
                len: LEN,
                start,
                end: Time(device.now_ns()),
                beside_at_start: 0,
                beside_at_end: 0,
            },
        );
    }
    learner.estimate()
}

#[test]
fn what_is_learned_of_a_device_is_what_the_profiler_measures() {
    for model in sluice_device::models().iter().filter(|model| model.name != "null") {
        let profile = sluice_device::profiler::profile_of_model(model.name).unwrap();
        let estimate = learned_alone(model.name);
        let point = estimate.points.iter().find(|point| point.read && point.size_bytes == 65_536.0).unwrap();
        let read = sluice_device::Op::Read;
        let off = |own: Option<f64>, measured: u64| own.unwrap() / measured as f64 - 1.0;
        let sequential = off(point.sequential_ns, profile.ttp_ns(read, 65_536));
        let random = off(point.random_ns, profile.random_ns(read, 65_536));
        println!("{:<10} sequential {:+.1} %, random {:+.1} %", model.name, sequential * 100.0, random * 100.0);
        assert!(sequential.abs() < 0.15 && random.abs() < 0.15, "{}: {point:?}", model.name);
    }
}

/// A server that has lost its memory gets to know its device all the same.
#[test]
fn a_device_is_learned_after_a_crash() {
    let crash = "[faults]\n[[faults.event]]\nkind = 'crash'\nnode = 'server 0'\nlasts = '10ms'\n";
    let (estimate, _) = learned("hdd-7200", "hbrr", 60, &[ONE, crash]);
    assert_eq!(estimate.device, Device::Disk, "{estimate:?}");
}
