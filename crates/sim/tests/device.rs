//! Devices that are learned from what they serve, in whole systems: what is said of them is right, within a minute of load.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use sluice_adapt::device::Estimate;
use sluice_adapt::selector::Device;
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
        let seconds = if has_arm { 60 } else { 8 };
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
    assert!(known >= 48, "{known} of {} are known", rows.len());
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
