//! Algorithms change under load.

use std::process::{Command, Stdio};
use std::time::Instant;

use sluice_core::policy::table;

use crate::beds::{DIRECTORY, STRIPED_FREELY, place};
use crate::common::{Place, fuse_works, run, unmount};

/// Rounds over all algorithms while fio runs, at least.
const ROUNDS: usize = 3;

fn verify(place: &Place) -> Command {
    let mut fio = Command::new("fio");
    fio.args(["--name=job", "--rw=randwrite", "--bs=4k", "--size=4M", "--ioengine=libaio", "--iodepth=32"])
        .args(["--direct=1", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64", "--verify_state_save=0"])
        .args(["--randrepeat=0", "--minimal", "--directory=."])
        .current_dir(place.path("mnt"))
        .stdout(Stdio::null());
    fio
}

/// Each change is a process that connects, asks and is answered: some tens in a second.
fn changes_while_fio_verifies(options: &[&str]) {
    if !fuse_works() {
        return;
    }
    let place = place();
    let mount = [&["mount", "--daemon", "--log", "@log", "--in-flight", "2", "--cache", "none"], options, &["@mnt"]];
    place.good(&mount.concat());
    let started = Instant::now();
    let mut changes = 0;
    while changes < ROUNDS * table().len() {
        let mut fio = verify(&place).spawn().unwrap();
        let status = loop {
            let info = table()[changes % table().len()];
            place.good(&["policy", "@mnt", info.name]);
            assert_eq!(place.status()["policy"]["name"], info.name);
            changes += 1;
            if let Some(status) = fio.try_wait().unwrap() {
                break status;
            }
        };
        assert!(status.success(), "fio after {changes} changes: {status}");
    }
    eprintln!("{changes} changes in {:?}", started.elapsed());
    // Once more, in peace: what was written under change is still right.
    assert!(run(&mut verify(&place)).status.success());
    unmount(&place);
}

#[test]
fn on_a_directory() {
    changes_while_fio_verifies(DIRECTORY);
}

#[test]
fn on_a_striped_volume() {
    changes_while_fio_verifies(STRIPED_FREELY);
}
