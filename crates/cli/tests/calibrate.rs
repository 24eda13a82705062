//! `sluice calibrate` on an emulated disk: interrupted, killed, and to its end.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Place, eventually, fuse_works};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const HOW: [&str; 8] = [
    "calibrate",
    "@source",
    "--emulate=hdd-7200",
    "--budget=10s",
    "--file-size=64M",
    "--force",
    "--json",
    "--out=model",
];

fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = place.sluice(args);
    command.env("SLUICE_STATE_DIR", place.path("state"));
    command
}

fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// How many patterns have been run under an arm so far.
fn slots(place: &Place) -> usize {
    let state = place.path("state");
    let name = files(&state).into_iter().find(|name| name.ends_with(".calibrating"));
    let text = name.map(|name| fs::read_to_string(state.join(name)).unwrap_or_default()).unwrap_or_default();
    text.matches("\"slots\":1").count()
}

/// Begins, and comes back when something was measured.
fn begun(place: &Place) -> Child {
    let before = slots(place);
    let child = command(place, &HOW).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("something is measured", || slots(place) > before + 2);
    child
}

#[test]
fn it_goes_on_where_it_was_interrupted_and_leaves_nothing_behind() {
    let place = Place::new();
    let source = place.path("source");
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::TERM, Some(130)), (Signal::KILL, None)] {
        let child = begun(&place);
        assert_eq!(files(&source), [".sluice-calibrate"]);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), code, "{output:?}");
        assert_eq!(
            files(&source).is_empty(),
            code.is_some(),
            "only who is killed at once leaves something, for the next one"
        );
    }
    let before = slots(&place);
    assert!(before >= 9, "{before} slots were run");
    let output = command(&place, &HOW).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.contains("goes on where it was interrupted"), "{told}");
    assert!(files(&source).is_empty());
    assert!(!files(&place.path("state")).iter().any(|name| name.ends_with(".calibrating")));
    let found: Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    assert_eq!((&found["device"], &found["emulated"]), (&Value::from("disk"), &Value::from("hdd-7200")));
    let patterns = found["patterns"].as_array().unwrap();
    assert!(patterns.len() == 8 && patterns.iter().all(|one| one["arms"].as_array().unwrap().len() == 9), "{found}");
    let shown: Value = serde_json::from_str(&place.good(&["model", "show", "--json", "@model"])).unwrap();
    let known = shown["contexts"].as_array().unwrap().len();
    assert!(known >= 4, "{shown}");
    if fuse_works() {
        let args = ["mount", "--daemon", "--log=log", "--emulate=hdd-7200", "--selector=bandit", "@source", "@mnt"];
        let output = command(&place, &args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(place.status()["selection"]["contexts"], known, "the mount begins with it");
        common::unmount(&place);
    }
}

#[test]
fn what_cannot_be_calibrated_is_refused_and_nothing_is_made() {
    let place = Place::new();
    fs::write(place.path("file"), "x").unwrap();
    for (args, why) in [
        (&["@none"][..], "cannot be calibrated"),
        (&["@file"], "is not a directory"),
        (&["@source", "--file-size=1M"], "at least"),
        (&["@source", "--force", "--file-size=4T"], "nearly full"),
        (&["@source", "--budget=1s"], "expected a time from"),
        (&["@source", "--force", "--emulate=hdd-1"], "no device model"),
        (&["@source", "--out=no/where"], "cannot be written"),
    ] {
        if why == "nearly full" {
            // What a call left that was killed goes before it is looked for room: it may be what fills the disk.
            let left = place.path("source/.sluice-calibrate");
            fs::create_dir(&left).unwrap();
            for name in ["lock", "f0"] {
                fs::write(left.join(name), "x").unwrap();
            }
        }
        let error = place.bad(&[&["calibrate"], args].concat());
        assert!(error.contains(why), "{args:?}: {error}");
        assert!(files(&place.path("source")).is_empty(), "{args:?}");
    }
    if fuse_works() {
        let daemon = place.daemon(&[]);
        let error = place.bad(&["calibrate", "@mnt"]);
        assert!(error.contains("calibrate the directory that is mounted there"), "{error}");
        daemon.unmount();
    }
}
