//! Random operations on files of a mount, compared with a model in memory: what was read, sizes, names, links, holes, and
//! after `fsync` the bytes in the directory underneath; in the end everything, once more after mounting again.
//!
//! * `SLUICE_OPS=1000000`: so many operations, over all configurations together (20,000 if not given).
//! * `SLUICE_SEED=7`: other ones.
//! * `SLUICE_MODEL=striped/none/mlf`: only configurations that contain this.
//! * `SLUICE_OPS='open 0 0 0 0 34; write 0 0 5 10 1'` with `SLUICE_MODEL`: these operations and no others; a failing test
//!   prints such a list.

#[path = "../common/mod.rs"]
mod common;
mod contents;
mod memory;
mod op;
mod place;
mod shrink;
mod world;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::fuse_works;
use op::Op;
use place::{Bed, Configuration, Place};
use sluice_core::policy::table;
use sluice_fuse::CacheMode;
use world::World;

/// Operations of one sequence at most, after which everything is compared and mounted again.
const SEQUENCE: usize = 1000;

/// What a failed test prints.
fn report(configuration: Configuration, seed: u64, ops: &[Op], wrong: &str, told: &[String]) -> String {
    format!(
        "{wrong}\non {}, seed {seed}, with these {} operations:\n  {}\nrun them again with\n  SLUICE_MODEL={} \
         SLUICE_SEED={seed} SLUICE_OPS='{}' cargo test -p sluice-fuse --test model random",
        configuration.name(),
        ops.len(),
        told.join("\n  "),
        configuration.name(),
        op::written(ops)
    )
}

/// Runs a sequence; if it fails, finds a short one that does, and says so.
fn check(place: &mut Place, seed: u64, ops: &[Op]) {
    let Err((wrong, told)) = place.run_and_mount_again(ops) else { return };
    let configuration = place.configuration;
    let mut last = (wrong.clone(), told);
    let short = shrink::shortest(ops, |ops| match place.run_and_mount_again(ops) {
        Ok(()) => false,
        Err(found) => {
            last = found;
            true
        }
    });
    let once = if short.len() == ops.len() { "\n(NOT seen again when repeated)" } else { "" };
    panic!("{}{once}", report(configuration, seed, &short, &last.0, &last.1));
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn random(bed: Bed, caches: &[CacheMode]) {
    if bed != Bed::Plain && !fuse_works() {
        return;
    }
    let policies: Vec<&str> =
        if bed == Bed::Plain { vec!["noop"] } else { table().iter().map(|info| info.name).collect() };
    let wanted = std::env::var("SLUICE_MODEL").unwrap_or_default();
    let seed = number("SLUICE_SEED", 1);
    let given = std::env::var("SLUICE_OPS").ok().filter(|text| text.parse::<u64>().is_err());
    let given = given.map(|text| op::parse(&text).unwrap_or_else(|error| panic!("SLUICE_OPS: {error}")));
    // Two beds, three caches, every algorithm.
    let each = number("SLUICE_OPS", 20_000).div_ceil(6 * table().len() as u64) as usize;
    for (c, cache) in caches.iter().enumerate() {
        for (p, policy) in policies.iter().enumerate() {
            let configuration = Configuration { bed, cache: *cache, policy };
            if !configuration.name().contains(&wanted) {
                continue;
            }
            let mut place = Place::new(configuration);
            let mut done = 0;
            while done < each {
                let count = (each - done).min(SEQUENCE);
                // A seed for each sequence: what one configuration does not show, another may.
                let seed = seed + ((bed as usize * 10 + c) * 100 + p) as u64 * 1_000_003 + done as u64;
                let ops = given.clone().unwrap_or_else(|| op::sequence(seed, count));
                check(&mut place, seed, &ops);
                done = if given.is_some() { each } else { done + count };
            }
            place.unmount();
        }
    }
}

/// Not a test of its own: the process that serves the mounts of the others runs this.
#[test]
fn serves_for_the_other_tests() {
    place::serve();
}

/// A mount that does not answer ends the test program, with the operations that led to it, and is gone afterwards.
#[test]
fn a_hang_is_seen() {
    if !fuse_works() || !common::is_root() || std::env::var(place::HANG).is_ok() {
        return;
    }
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "random_operations_on_a_directory_cached"]);
    test.env("SLUICE_MODEL", "directory/auto/noop").env("SLUICE_OPS", "open 0 0 0 0 34; write 0 0 5 10 1");
    test.env(place::HANG, "1").env(place::LIMIT_S, "1");
    let dir = common::place();
    test.env("TMPDIR", dir.path());
    let output = common::bounded(move || test.output()).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(place::HUNG), "{said}");
    assert!(said.contains("SLUICE_MODEL=directory/auto/noop SLUICE_OPS='open 0 0 0 0 34; write 0 0 5 10 1'"), "{said}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.path().to_str().unwrap()), "still mounted");
}

#[test]
fn random_operations_on_the_plain_directory() {
    random(Bed::Plain, &[CacheMode::Auto]);
}

#[test]
fn random_operations_on_a_directory_uncached() {
    random(Bed::Directory, &[CacheMode::None]);
}

#[test]
fn random_operations_on_a_directory_cached() {
    random(Bed::Directory, &[CacheMode::Auto, CacheMode::Writeback]);
}

#[test]
fn random_operations_on_a_striped_volume_uncached() {
    random(Bed::Striped, &[CacheMode::None]);
}

#[test]
fn random_operations_on_a_striped_volume_cached() {
    random(Bed::Striped, &[CacheMode::Auto, CacheMode::Writeback]);
}

/// Breaks the storage behind the mount's back, as a storage would be that loses something. The checker must see it, and
/// find a short sequence that shows it.
fn broken(what: &str, breaks: fn(&Path, &World) -> bool) {
    if !fuse_works() {
        return;
    }
    let configuration = Configuration { bed: Bed::Directory, cache: CacheMode::None, policy: "noop" };
    let mut place = Place::new(configuration);
    let ops = op::sequence(11, 400);
    assert!(place.run_and_mount_again(&ops).is_ok(), "without the fault nothing is wrong");
    let mut found = String::new();
    let mut fails = |place: &mut Place, ops: &[Op]| {
        // From the first operation at which it can be broken, and once.
        let mut done = false;
        let result = place.run(ops, |world| {
            let source = world.source.clone().unwrap();
            done = done || breaks(&source, world);
        });
        if let Err((wrong, told)) = &result {
            found = report(configuration, 11, ops, wrong, told);
        }
        result.is_err()
    };
    assert!(fails(&mut place, &ops), "{what} is not seen");
    let short = shrink::shortest(&ops, |ops| fails(&mut place, ops));
    println!("{what} is seen:\n{found}");
    assert!(short.len() <= 4, "{what}: shown by {} operations: {}", short.len(), op::written(&short));
    assert!(op::parse(&op::written(&short)).unwrap() == short, "the list can be given back");
    place.unmount();
}

#[test]
fn a_lost_write_is_seen() {
    broken("a lost write", |source, world| {
        let Some(name) = world.some_name(true) else { return false };
        let file = fs::OpenOptions::new().write(true).open(source.join(name)).unwrap();
        let len = file.metadata().unwrap().len().min(4096);
        file.write_all_at(&vec![0; len as usize], 0).unwrap();
        true
    });
}

#[test]
fn stale_data_is_seen() {
    broken("stale data", |source, world| {
        let Some(name) = world.some_name(true) else { return false };
        let file = fs::OpenOptions::new().read(true).write(true).open(source.join(name)).unwrap();
        // One byte as it might have been before.
        let mut bytes = vec![0; file.metadata().unwrap().len().min(4096) as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let at = bytes.iter().position(|byte| *byte != 0).unwrap();
        file.write_all_at(&[bytes[at] ^ 0x40], at as u64).unwrap();
        true
    });
}

#[test]
fn a_wrong_size_is_seen() {
    broken("a wrong size", |source, world| {
        let Some(name) = world.some_name(false) else { return false };
        let file = fs::OpenOptions::new().write(true).open(source.join(name)).unwrap();
        file.set_len(file.metadata().unwrap().len() + 1).unwrap();
        true
    });
}

#[test]
fn a_lost_name_is_seen() {
    broken("a lost name", |source, world| {
        let Some(name) = world.some_name(false) else { return false };
        fs::remove_file(source.join(name)).unwrap();
        true
    });
}
