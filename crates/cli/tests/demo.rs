//! The demo, with little data.

mod common;

use common::{Place, eventually, fuse_works, run, stderr};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::Stdio;

/// Runs the demo and checks the report's shape.
fn check_report(place: &Place, more: &[&str], fuse: bool) {
    let args = ["demo", "--json", "--seconds", "1", "--policy", "hbrr,wfq,adaptive", "--plot", "@demo.svg"];
    let output = run(&mut place.sluice(&[&args[..], more].concat()));
    assert!(output.status.success(), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["data_verified"], &report["emulated"], &report["fuse"]),
        (&true.into(), &true.into(), &fuse.into())
    );
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12, "three algorithms and what is chosen, three patterns");
    for row in rows {
        for number in ["makespan_s", "throughput_mb_s", "ratio_to_noop", "mean_aggregation", "p99_ms"] {
            assert!(row[number].as_f64().is_some_and(|value| value > 0.0), "{number} in {row}");
        }
        let [low, high] = [0, 1].map(|at| row["ratio_range"][at].as_f64().unwrap());
        let ratio = row["ratio_to_noop"].as_f64().unwrap();
        assert!(low <= ratio && ratio <= high, "{row}");
        assert!(row["policy"] != "noop" || (ratio, low, high) == (1.0, 1.0, 1.0), "{row}");
    }
    assert!(report["repetitions"] == 3 && report["learned_s"].as_f64() > Some(0.0), "with little time");
    let chosen = report["chosen"].as_array().unwrap();
    assert_eq!(chosen.len(), 3, "patterns");
    for one in chosen {
        let fixed = rows.iter().filter(|row| row["pattern"] == one["pattern"] && row["policy"] != "adaptive");
        let time = |row: &serde_json::Value| row["makespan_s"].as_f64().unwrap();
        let fastest = fixed.min_by(|a, b| time(a).total_cmp(&time(b))).unwrap();
        assert_eq!(one["best"], fastest["policy"]);
        let [low, ratio, high] =
            [&one["ratio_range"][0], &one["ratio_to_best"], &one["ratio_range"][1]].map(|one| one.as_f64().unwrap());
        assert!(0.0 < low && low <= ratio && ratio <= high, "{one}");
    }
    let svg = fs::read_to_string(place.path("demo.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("emulated disks") && svg.contains("wfq"));
}

#[test]
fn the_demo_reports_what_it_measured_and_checks_all_data() {
    if fuse_works() {
        check_report(&Place::new(), &[], true);
    }
}

#[test]
fn the_demo_runs_without_fuse() {
    check_report(&Place::new(), &["--no-fuse"], false);
}

#[test]
fn a_plot_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let place = Place::new();
    let temporary = place.make("tmp");
    let output = run(place.sluice(&["demo", "--plot", "@none/x.svg"]).env("TMPDIR", &temporary));
    let said = stderr(&output);
    assert!(!output.status.success() && said.contains("none/x.svg cannot be written"), "{said}");
    // The progress of the runs would be there.
    assert!(!said.contains("runs"), "{said}");
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let place = Place::new();
    let temporary = place.make("tmp");
    let fuse = if fuse_works() { &[][..] } else { &["--no-fuse"][..] };
    let mut command = place.sluice(&[&["demo", "--plot", "@demo.svg"][..], fuse].concat());
    let mut demo = command.env("TMPDIR", &temporary).stderr(Stdio::null()).spawn().unwrap();
    eventually("the demo has begun", || {
        let made = fs::read_dir(&temporary).unwrap().next();
        made.is_some_and(|dir| dir.unwrap().path().join("disk0/contiguous-write").exists())
    });
    kill_process(Pid::from_child(&demo), Signal::TERM).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    assert!(!place.path("demo.svg").exists());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(temporary.to_str().unwrap()), "{mounts}");
}
