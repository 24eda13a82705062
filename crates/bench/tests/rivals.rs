//! `sluice-bench rivals`: makes a disk, measures, and leaves nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Longest time any test waits for anything.
const LIMIT: Duration = Duration::from_secs(300);

/// A directory in which all is that a run makes.
struct Place(tempfile::TempDir);

impl Place {
    /// `None` where the machine does not have what is needed.
    fn new() -> Option<Place> {
        let usable = |path: &str| fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
        let devices = rustix::process::geteuid().is_root() && usable("/dev/fuse") && usable("/dev/loop-control");
        let fio = Command::new("fio").arg("--version").output().is_ok();
        if devices && fio && sluice().is_file() {
            return Some(Place(tempfile::tempdir().unwrap()));
        }
        eprintln!(
            "SKIP: no root, loop devices, FUSE, fio or {} (cargo build -p sluice-cli): this test did NOT run",
            sluice().display()
        );
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// The smallest run there is, with what is said.
    fn bench(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-bench"));
        let smallest =
            ["rivals", "--workload", "stream-1", "--scheduler", "none", "--policy", "hbrr", "--seconds", "1"];
        command.args(smallest).args(["--size", "2G"]).args(args).stdin(Stdio::null());
        command.env("SLUICE_DISK_DIR", self.path().join("disks")).env("TMPDIR", self.path());
        command
    }

    fn mounts(&self) -> usize {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table
            .lines()
            .filter(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at).starts_with(self.path())))
            .count()
    }

    /// Nothing is mounted, no device is bound to anything here, and there are no files, but for locks and logs.
    fn assert_empty(&self) {
        assert_eq!(self.mounts(), 0);
        let mut disks = Command::new(sluice());
        disks.args(["disk", "list", "--json"]).env("SLUICE_DISK_DIR", self.path().join("disks"));
        assert_eq!(json_of(&good(&mut disks)), json!([]));
        let names = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.filter(|name| name != "disks").count(), 0);
    }
}

fn good(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Beside this one, if it was built.
fn sluice() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_sluice-bench")).with_file_name("sluice")
}

#[test]
fn the_smallest_run_has_a_row_with_both_sides() {
    let Some(place) = Place::new() else { return };
    let report = json_of(&good(&mut place.bench(&["--rounds", "1", "--json"])));
    assert_eq!(report["emulated"], true);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{report}");
    let row = &rows[0];
    assert_eq!((&row["workload"], &row["unit"]), (&json!("stream-1"), &json!("MB/s")), "{row}");
    let (kernel, ours) = (row["kernel"]["none"].as_f64().unwrap(), row["sluice"]["hbrr"].as_f64().unwrap());
    // No hard disk is faster, so neither reads from memory.
    assert!((0.01..400.0).contains(&kernel) && (0.01..400.0).contains(&ours), "{row}");
    assert!((row["ratios"]["hbrr"]["ratio"].as_f64().unwrap() - ours / kernel).abs() < 1e-6, "{row}");
    assert_eq!(row["best_kernel"], "none");
    place.assert_empty();
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let Some(place) = Place::new() else { return };
    for signals in [&[Signal::INT][..], &[Signal::TERM, Signal::HUP]] {
        let mut child = place.bench(&["--rounds", "1000"]).stderr(Stdio::piped()).spawn().unwrap();
        // The emulation, the file system on it, and the mount over that: some file is being verified or read.
        eventually("everything is mounted", || place.mounts() == 3);
        signals.iter().for_each(|&signal| kill_process(Pid::from_child(&child), signal).unwrap());
        eventually("it ends", || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("interrupted"), "{said}");
        place.assert_empty();
    }
}

#[test]
fn mistakes_are_answered_before_anything_is_made() {
    for (args, says) in [
        (&["--workload", "stream-9"][..], "did you mean"),
        (&["--policy", "hbr"], "did you mean \"hbrr\"?"),
        (&["--policy", "hbrr+bqf"], "did you mean \"bfq\"?"),
        (&["--scheduler", "cfq"], "none, mq-deadline, bfq, kyber"),
        (&["--size", "much"], "--size much"),
        (&["--size", "-1"], "--size -1: cannot be used; expected bytes from 1M"),
        (&["--sluice", "/nowhere/at/all"], "/nowhere/at/all"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_sluice-bench")).arg("rivals").args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says) && !said.contains("panicked"), "{args:?}: {said}");
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "never: {what}");
        std::thread::yield_now();
    }
}
