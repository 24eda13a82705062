//! Everything on a directory and on a striped volume, under every algorithm; and the less usual settings.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Place, eventually, fuse_works, unmount};
use crate::programs::{PROGRAMS, fio};
use crate::semantics::{SEMANTICS, large_directory};
use crate::{Program, policies, shell};

/// Options of a mount of the place's `source`.
pub const DIRECTORY: &[&str] = &["@source"];
/// Options of a mount of a volume over three targets; so few requests in flight that others have to queue.
pub const STRIPED: &[&str] =
    &["--target", "@t0", "--target", "@t1", "--target", "@t2", "--stripe", "16K", "--in-flight", "2"];
/// The same without the limit.
pub const STRIPED_FREELY: &[&str] = STRIPED.split_at(STRIPED.len() - 2).0;

/// A place with what [`DIRECTORY`] and [`STRIPED`] mount.
pub fn place() -> Place {
    let place = Place::new();
    for target in ["t0", "t1", "t2"] {
        place.make(target);
    }
    place
}

/// Mounts, works in a new directory there, unmounts. The mount's state after the work.
pub fn with_mount(place: &Place, options: &[&str], work: impl FnOnce(&Path)) -> Value {
    place.good(&[&["mount", "--daemon", "--log", "@log"], options, &["@mnt"]].concat());
    let dir = place.path("mnt").join("work");
    fs::create_dir(&dir).unwrap();
    work(&dir);
    fs::remove_dir_all(&dir).unwrap();
    // What an application does not wait for (read-ahead, closing) may still be under way.
    eventually("nothing is outstanding", || {
        let status = place.status();
        status["queued"] == 0 && status["in_flight"] == 0
    });
    let status = place.status();
    unmount(place);
    status
}

fn all_under_every_algorithm(options: &[&str], work: &[(&str, Program)]) {
    if !fuse_works() {
        return;
    }
    let place = place();
    for info in policies() {
        let status = with_mount(&place, &[&["--policy", info.name], options].concat(), |dir| {
            for (name, program) in work {
                eprintln!("{name} under {}", info.name);
                let dir = dir.join(name);
                fs::create_dir(&dir).unwrap();
                program(&dir);
            }
        });
        assert_eq!(status["policy"]["name"], info.name);
        assert_eq!(status["total"]["errors"], 0, "{status}");
    }
    if options.contains(&"--target") {
        let said = place.good(&["check", "--target", "@t0", "--target", "@t1", "--target", "@t2"]);
        assert!(said.contains("All is well"), "{said}");
    }
}

#[test]
fn programs_run_on_a_directory_under_every_algorithm() {
    all_under_every_algorithm(DIRECTORY, &PROGRAMS);
}

#[test]
fn programs_run_on_a_striped_volume_under_every_algorithm() {
    all_under_every_algorithm(STRIPED, &PROGRAMS);
}

#[test]
fn a_directory_behaves_like_a_file_system_under_every_algorithm() {
    all_under_every_algorithm(DIRECTORY, &SEMANTICS);
}

#[test]
fn a_striped_volume_behaves_like_a_file_system_under_every_algorithm() {
    all_under_every_algorithm(STRIPED, &SEMANTICS);
}

/// Names do not pass the scheduler, so the algorithm changes on one mount.
#[test]
fn a_large_directory_is_listed_under_every_algorithm() {
    if !fuse_works() {
        return;
    }
    let place = place();
    with_mount(&place, DIRECTORY, |dir| large_directory(&place, dir));
}

/// Before an emulated disk that serves one batch at a time requests queue, so algorithms have something to choose from,
/// and those that aggregate do.
#[test]
fn requests_queue_and_are_aggregated() {
    if !fuse_works() {
        return;
    }
    let place = place();
    let pressure = ["--emulate", "hdd-7200", "--in-flight", "1", "--cache", "none", "@source"];
    for info in policies() {
        let status = with_mount(&place, &[&["--policy", info.name], &pressure[..]].concat(), |dir| {
            shell(dir, include_str!("scripts/queue.sh"));
        });
        let total = &status["total"];
        let (depth, largest) = (total["depth_max"].as_u64().unwrap(), total["batch_requests_max"].as_u64().unwrap());
        assert!(info.bypasses_queue || depth >= 8, "{}: at most {depth} requests were queued", info.name);
        assert_eq!(info.aggregates, largest > 1, "{}: the largest batch had {largest} requests", info.name);
    }
}

#[test]
fn the_other_settings_keep_data_right() {
    if !fuse_works() {
        return;
    }
    let place = place();
    let settings: [&[&str]; 5] = [
        &["--cache", "writeback"],
        &["--cache", "none", "--direct"],
        &["--workers", "io_uring", "--cache", "none"],
        &["--ordering", "none", "--threads", "1"],
        &["--policy", "mlf", "--max-wait", "1ms", "--batch-requests-max", "3", "--in-flight", "1"],
    ];
    for (options, bed) in settings.iter().flat_map(|options| [(options, DIRECTORY), (options, STRIPED_FREELY)]) {
        let status = with_mount(&place, &[options, bed].concat(), |dir| {
            eprintln!("{options:?} on {bed:?}");
            for (name, program) in PROGRAMS.iter().filter(|program| program.0 == "sqlite") {
                fs::create_dir(dir.join(name)).unwrap();
                program(&dir.join(name));
            }
            fio(dir);
        });
        assert_eq!(status["total"]["errors"], 0, "{status}");
    }
}

/// An emulated disk takes milliseconds for each batch, so everything queues and everything waits.
#[test]
fn emulated_disks_keep_data_right_and_say_that_they_are_emulated() {
    if !fuse_works() {
        return;
    }
    let place = place();
    let status = with_mount(&place, &[&["--emulate", "hdd-7200"], STRIPED].concat(), |dir| {
        shell(dir, include_str!("scripts/slow.sh"));
    });
    assert_eq!(status["emulated"], true);
    assert!(status["storage"].as_str().unwrap().contains("emulated"), "{status}");
    assert!(status["total"]["service"]["max_us"].as_f64().unwrap() > 1000.0, "{status}");
}
