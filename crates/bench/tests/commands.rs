//! The command itself: what it prints, what it leaves behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest time any test waits for anything.
const LIMIT: Duration = Duration::from_secs(300);

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-bench"));
    command.args(args).stdin(Stdio::null());
    command
}

fn good(args: &[&str]) -> serde_json::Value {
    let output = bench(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_cannot_be_used_is_told_before_the_work() {
    let cases = [
        ("tier --set foo=1", "there is no setting foo"),
        ("council --only bandit --observations 99", "99 is not in 100..="),
        ("tier --model hdd-9000", "no device model"),
        ("fuse --dir nope", "--dir: nope is not a directory"),
        ("selection --trees", "--classify"),
        ("prediction --policy noop", "it does not aggregate"),
        ("fidelity --out /", "is a directory"),
        ("fidelity --from nope --dir /tmp", "cannot be used with"),
        ("adaptivity --log nope/log", "there is no directory nope"),
        ("prediction --sample -4", "invalid value '-4' for '--sample <N>'"),
    ];
    for (command, wanted) in cases {
        let output = bench(&command.split(' ').collect::<Vec<_>>()).output().unwrap();
        let said = stderr(&output);
        assert!(!output.status.success() && output.stdout.is_empty() && said.contains(wanted), "{command}: {said}");
    }
}

#[test]
fn results_have_their_fields() {
    // The command, where its results are, and some of their fields.
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "engine --files 1 --depth 1 --requests 1000 --policy noop",
            "cells",
            &["policy", "ns_per_request", "allocs_per_request"],
        ),
        ("emulation --model null --reads 64", "rows", &["threads", "reads", "timer_error", "overruns"]),
        ("device --model nvme --requests 1000", "rows", &["model", "requests_per_s", "virtual_s"]),
        ("sim --thousands 10", "rows", &["what", "server_requests", "requests_per_s", "digest"]),
        ("trace --entries 10000 --pairs 0", "traces", &["pattern", "bytes_per_entry", "read_per_s"]),
        (
            "prediction --processes 2 --steps 2 --repetitions 1 --part table --pattern contiguous --policy to-agg",
            "cells",
            &["policy", "pattern", "op", "jitter", "predicted_from", "makespan_ratio", "linked_share"],
        ),
        (
            "study --device nvme --file-size 64M --budget 1s",
            "devices",
            &["device", "emulated", "median_error", "time_fraction"],
        ),
        ("selection --cases 16 --jobs 1", "platforms", &["name", "mean_regret", "worst_regret"]),
        ("calibration --file-size 64M --budget 1s", "devices", &["model", "at_8k", "model_at_8k", "error_mean"]),
    ];
    for (command, rows, fields) in cases {
        let mut args: Vec<&str> = command.split(' ').collect();
        args.push("--json");
        let report = good(&args);
        assert_eq!(report["schema"], 1, "{command}");
        let rows = report[rows].as_array().unwrap();
        assert!(!rows.is_empty(), "{command}");
        for (row, field) in rows.iter().flat_map(|row| fields.iter().map(move |field| (row, field))) {
            assert!(row.get(field).is_some(), "{command}: no {field} in {row}");
        }
    }
    let report = good(&["predict", "--json", "--traces", "2", "--entries", "1000"]);
    assert!(report["bytes_per_entry"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn mistakes_are_answered() {
    for (args, says) in [
        (&["engine", "--policy", "toagg"][..], "did you mean \"to-agg\"?"),
        (&["study", "--device", "pastell"], "pastell"),
        (&["against-fio", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["runtime", "--policy", "noop", "--against", "/nowhere/at/all"], "cannot run /nowhere/at/all"),
        (&["runtime", "--policy", "noop", "--against", "/bin/true"], "does not print what"),
    ] {
        let output = bench(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        let text = stderr(&output);
        assert!(text.contains("sluice-bench: ") && text.contains(says) && !text.contains("panicked"), "{text}");
    }
}

/// A build from before this command was one of its own: it knows nothing but `bench`.
#[test]
fn an_earlier_build_is_compared_with() {
    let dir = tempfile::tempdir().unwrap();
    let earlier = dir.path().join("sluice");
    let script = r#"#!/bin/sh
        [ "$1" = bench ] || exit 2
        echo '{"cells": [{"what": "volume", "policy": "noop", "threads": 2, "window": 64, "requests_per_s": 1e-3}]}'
    "#;
    fs::write(&earlier, script).unwrap();
    fs::set_permissions(&earlier, fs::Permissions::from_mode(0o755)).unwrap();
    let args = ["runtime", "--json", "--policy", "noop", "--rounds", "3", "--repetitions", "3", "--against"];
    let report = good(&[&args[..], &[earlier.to_str().unwrap()]].concat());
    let cells = report["cells"].as_array().unwrap();
    assert_eq!((cells.len(), &cells[0]["what"]), (1, &"volume".into()), "{report}");
    assert!(cells[0]["ratio"].as_f64().unwrap() > 1.0, "{report}");
}

#[test]
fn an_interrupted_benchmark_leaves_nothing_behind() {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let may_mount = rustix::process::geteuid().is_root() || Command::new("fusermount3").arg("-V").output().is_ok();
    if !device || !may_mount || Command::new("fio").arg("--version").output().is_err() {
        return eprintln!("SKIP: no FUSE, or no fio: this test did NOT run");
    }
    for table in ["passthrough", "policies"] {
        let place = tempfile::tempdir().unwrap();
        let room = place.path().to_str().unwrap();
        let args = ["fuse", "--only", table, "--dir", room, "--file-mb", "1", "--repetitions", "1000"];
        let mut child = bench(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // By the time both mounts are there the measuring begins.
        eventually("both mounts are there", || mounts_below(place.path()) == 2);
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        eventually("it ends", || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
        assert_eq!(mounts_below(place.path()), 0);
        assert!(fs::read_dir(place.path()).unwrap().next().is_none());
    }
}

/// Programs run on its mount by then.
#[test]
fn an_interrupted_detector_leaves_nothing_behind() {
    let sluice = Path::new(env!("CARGO_BIN_EXE_sluice-bench")).with_file_name("sluice");
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let may_mount = rustix::process::geteuid().is_root() || Command::new("fusermount3").arg("-V").output().is_ok();
    let python = Command::new("python3").arg("--version").output().is_ok();
    if !device || !may_mount || !python || !sluice.is_file() {
        return eprintln!("SKIP: no FUSE, python3, or sluice (cargo build -p sluice-cli): this test did NOT run");
    }
    for signals in [&[Signal::INT][..], &[Signal::TERM, Signal::HUP]] {
        let place = tempfile::tempdir().unwrap();
        let args = ["detector", "--seeds", "1", "--real", "--seconds", "600", "--dir", place.path().to_str().unwrap()];
        let mut child = bench(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("it is mounted", || mounts_below(place.path()) == 1);
        signals.iter().for_each(|&signal| kill_process(Pid::from_child(&child), signal).unwrap());
        eventually("it ends", || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success() && stderr(&output).contains("interrupted"), "{}", stderr(&output));
        assert_eq!(mounts_below(place.path()), 0);
        assert!(fs::read_dir(place.path()).unwrap().next().is_none());
    }
}

#[test]
fn bars_are_told_and_whether_they_are_met() {
    for (args, bars) in [
        (&["detector", "--seeds", "3"][..], &["bar: 97 % of servers: ", "bar: 95 % of files: "][..]),
        (
            &["trace", "--entries", "10000", "--pairs", "0"],
            &["bar: an entry takes at most 16 bytes: met", "bar: entries are read at 20 million a second or more: "],
        ),
    ] {
        let output = bench(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        for bar in bars {
            let line = said.lines().find(|line| line.starts_with(bar)).unwrap_or_else(|| panic!("no {bar}: {said}"));
            assert!(line.contains(": met (") || line.contains(": MISSED ("), "{line}");
        }
    }
}

fn mounts_below(dir: &Path) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at).starts_with(dir))).count()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "never: {what}");
        std::thread::yield_now();
    }
}
