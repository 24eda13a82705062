//! `sluice profile`: models, real directories, files.

mod common;

use common::{Place, run, stderr};
use std::process::{Command, Stdio};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_models_profile_is_written_shown_and_drawn() {
    let place = Place::new();
    let args = ["profile", "--device", "pastel", "--budget", "20s", "--out", "@p.toml", "--plot", "@p.svg", "--json"];
    let report = json(&place.good(&args));
    assert_eq!(report["emulated"], true);
    let ratio = report["ratios"]["read"]["max"].as_f64().unwrap();
    assert!((30.0..50.0).contains(&ratio), "{ratio}");
    let svg = std::fs::read_to_string(place.path("p.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("emulated pastel"));
    let shown = place.good(&["profile", "show", "@p.toml", "--plot", "@again.svg"]);
    assert!(shown.contains("emulated") && shown.contains("random") && shown.contains("saturate"), "{shown}");
    assert_eq!(svg, std::fs::read_to_string(place.path("again.svg")).unwrap());
    let mut again = json(&place.good(&["profile", "show", "@p.toml", "--json"]));
    assert_eq!(again.as_object_mut().unwrap().remove("schema"), Some(1.into()));
    assert_eq!(again, report["profile"]);
    // The same seed, the same profile, but for the date.
    let again = json(&place.good(&["profile", "--device", "pastel", "--budget", "20s", "--json"]));
    assert_eq!(again["profile"]["read"], report["profile"]["read"]);
}

#[test]
fn mistakes_are_answered() {
    let place = Place::new();
    assert!(place.bad(&["profile", "--device", "pastell"]).contains("did you mean \"pastel\"?"));
    assert!(place.bad(&["profile", "--device", "null"]).contains("device model null takes no time"));
    // Before anything is measured.
    assert!(place.bad(&["profile", "@nowhere", "--out", "@none/p"]).contains("none/p cannot be written"));
    assert!(place.bad(&["profile", "@nowhere"]).contains("nowhere"));
    std::fs::write(place.path("file"), "x").unwrap();
    assert!(place.bad(&["profile", "@file"]).contains("is not a directory"));
    assert!(place.bad(&["profile", "@source", "--file-size", "1M"]).contains("at least 16 MiB"));
    assert!(place.bad(&["profile", "--device", "pastel", "--sizes", "8X"]).contains("expected bytes"));
    assert!(place.bad(&["profile", "--device", "pastel", "--budget", "soon"]).contains("expected a time"));
    std::fs::write(place.path("bad.toml"), "version = 1\nmethod = 7\n").unwrap();
    let said = place.bad(&["profile", "show", "@bad.toml"]);
    assert!(said.contains("bad.toml") && said.contains("line 2"), "{said}");
}

#[test]
fn a_directory_is_profiled_and_left_as_it_was() {
    let place = Place::new();
    let args =
        ["profile", "@source", "--budget", "3s", "--file-size", "64M", "--sizes", "8K,64K", "--json", "--out", "@p"];
    let report = json(&place.good(&args));
    assert_eq!(report["emulated"], false);
    assert_eq!(report["profile"]["read"].as_array().unwrap().len(), 2);
    assert!(report["profile"]["write"][1]["random_ns"].as_f64().unwrap() > 100.0);
    assert_eq!(std::fs::read_dir(place.path("source")).unwrap().count(), 0);
    assert!(place.good(&["profile", "show", "@p"]).contains(place.path("source").to_str().unwrap()));
}

#[test]
fn a_signal_ends_it_and_leaves_nothing() {
    let place = Place::new();
    let mut profiler = place
        .sluice(&["profile", "@source", "--budget", "60s", "--file-size", "64M", "--out", "@p"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It has begun once its file, which has no name, takes space: watch its open files.
    let opened = || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", profiler.id())).into_iter().flatten().flatten();
        fds.filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .any(|to| to.to_string_lossy().contains(".sluice-profile-"))
    };
    let begin = std::time::Instant::now();
    while !opened() && begin.elapsed() < common::LIMIT {
        std::thread::yield_now();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&profiler), rustix::process::Signal::INT).unwrap();
    let status = profiler.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(std::fs::read_dir(place.path("source")).unwrap().count(), 0);
    assert!(!place.path("p").exists());
}

/// On a file system too small for the file.
#[test]
fn a_disk_with_too_little_room_is_left_alone() {
    if !common::is_root() {
        eprintln!("SKIP: only root can mount a small file system: this test did NOT run");
        return;
    }
    let place = Place::new();
    let small = place.make("small");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=48m", "none"]).arg(&small).status();
    if !mount.is_ok_and(|status| status.success()) {
        eprintln!("SKIP: no file system can be mounted here: this test did NOT run");
        return;
    }
    let output = run(&mut place.sluice(&["profile", "@small", "--file-size", "64M"]));
    let left = std::fs::read_dir(&small).unwrap().count();
    let unmounted = Command::new("umount").arg(&small).status().unwrap();
    assert!(!output.status.success() && stderr(&output).contains("too little"), "{}", stderr(&output));
    assert!(left == 0 && unmounted.success());
}
