//! What the program says to mistakes: what, where, and what to do.

mod common;

use std::fs;

use common::{Place, fuse_works, run, stderr};

#[test]
fn wrong_paths_are_explained() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    fs::write(place.path("file"), b"").unwrap();
    fs::create_dir_all(place.path("full/inner")).unwrap();
    fs::create_dir(place.path("source/inner")).unwrap();
    place.make("t0");
    std::os::unix::fs::symlink("mnt/later", place.path("link")).unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["mount"], "what to mount, and where?"),
        (&["mount", "source"], "a source and a mountpoint are needed"),
        (&["mount", "nowhere", "mnt"], "the source nowhere does not exist; create it first (mkdir -p)"),
        (&["mount", "file", "mnt"], "the source file is not a directory"),
        (&["mount", "source", "file"], "the mountpoint is not a directory"),
        (&["mount", "source", "nowhere"], "the mountpoint does not exist; create the directory first"),
        (&["mount", "source", "full"], "is not empty (it holds \"inner\")"),
        (&["mount", "source", "source"], "lie inside one another; choose a mountpoint outside"),
        (&["mount", "source", "source/inner"], "lie inside one another"),
        (&["mount", "full/inner", "full"], "lie inside one another"),
        (&["mount", "--target", "t0", "source", "mnt"], "give only the mountpoint: sluice mount --target DIR"),
        (&["mount", "--target", "t0", "--target", "t0", "mnt"], "is given twice"),
        (&["mount", "--target", "t9", "mnt"], "the target t9 does not exist"),
        (&["mount", "--target", "full", "mnt"], "is not empty and not part of a striped volume"),
        (&["mount", "--log", "mnt/log", "source", "mnt"], "lies inside the mountpoint"),
        (
            &["mount", "-o", "decisions=mnt/later/log", "source", "mnt"],
            "the log of decisions mnt/later/log lies inside",
        ),
        (&["mount", "-o", "learned=mnt/known", "source", "mnt"], "lies inside the mountpoint"),
        (&["mount", "-o", "learned=link", "source", "mnt"], "lies inside the mountpoint"),
        (&["mount", "--config", "no.toml", "source", "mnt"], "the configuration file no.toml cannot be read"),
    ];
    for (args, wanted) in cases {
        let error = place.bad(args);
        assert!(error.contains(wanted), "sluice {args:?} says {error}");
        assert!(!place.is_mounted());
    }
    assert!(fs::read_dir(place.path("t0")).unwrap().next().is_none(), "no volume is made for a mount that fails");
}

#[test]
fn wrong_options_are_explained() {
    let place = Place::new();
    let cases: &[(&[&str], &str)] = &[
        (&["--policy", "toagg"], "did you mean \"to-agg\"?"),
        (&["--policy", "adaptve"], "did you mean \"adaptive\"?"),
        (&["--policy", "adaptive", "--param", "ranges=4"], "adaptive has no parameters"),
        (&["--policy", "adaptive", "--selector", "fixed"], "policy adaptive and selector fixed"),
        (&["--profile", "atuo"], "expected auto, off, or a profile's file; did you mean \"auto\"?"),
        (&["--policy", "mlf", "--param", "wait_tine=1ms"], "did you mean \"wait_time\"?"),
        (&["--policy", "mlf", "--param", "wait_time=long"], "expected a duration from 0 to 10s"),
        (&["--policy", "mlf", "--param", "wait_time"], "is not KEY=VALUE"),
        (&["--in-flight", "many"], "--in-flight many: cannot be used; expected auto, or a number"),
        (&["--max-wait", "500"], "expected a duration like 500ms"),
        (&["--anticipation", "perhaps"], "expected auto, off, or a duration like 500ms"),
        (&["--ordering", "loose"], "expected one of strict, none"),
        (&["--cache", "all"], "expected one of none, auto, writeback"),
        (&["--stripe", "64Q"], "expected bytes from 1 to 1T, like 65536, 64K or 1M"),
        (&["--stripe", "-64"], "--stripe -64: cannot be used; expected bytes from 1 to 1T"),
        (&["--batch-bytes-max", "-1"], "--batch-bytes-max -1: cannot be used; expected bytes from"),
        (&["--engines", "two"], "expected one of auto, per-target, shared"),
        (&["--workers", "none"], "expected one of auto, threads, io_uring"),
        (&["--log-level", "loud"], "expected one of auto, error, warn"),
        (&["--chache", "none"], "--cache"),
        (&["--policy", "sjf", "--model", "m.json"], "--model: nobody asks it"),
    ];
    for (args, wanted) in cases {
        let error = place.bad(&[&["mount"][..], args, &["source", "mnt"]].concat());
        assert!(error.contains(wanted), "sluice mount {args:?} says {error}");
    }
}

/// A file's parameters are for the file's algorithm, wherever another one is named.
#[test]
fn parameters_of_a_file_are_not_for_another_algorithm() {
    let place = Place::new();
    fs::write(place.path("c.toml"), "[scheduler]\npolicy = \"mlf\"\n[scheduler.params]\nwait_time = \"1ms\"\n")
        .unwrap();
    for policy in ["sjf", "adaptive"] {
        let option = format!("config=c.toml,policy={policy}");
        let cases: [&[&str]; 2] = [&["-o", &option], &["--config", "c.toml", "--policy", policy]];
        for args in cases {
            let error = place.bad(&[&["mount"][..], args, &["nowhere", "mnt"]].concat());
            assert!(error.contains("the source nowhere does not exist"), "sluice mount {args:?} says {error}");
        }
    }
}

#[test]
fn device_models_are_looked_for_before_anything_is_mounted() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let error = place.bad(&["mount", "--emulate", "hdd-9000", "source", "mnt"]);
    assert!(error.contains("no device model or file named 'hdd-9000'; models: hdd-7200"), "{error}");
}

#[test]
fn mistakes_in_the_configuration_file_have_a_line() {
    let place = Place::new();
    let cases = [
        (
            "[mount]\nchache = \"none\"\n",
            "c.toml, line 2: [mount] has no key chache; did you mean \"cache\"? It has source",
        ),
        ("[mount]\n\ncache = \"all\"\n", "c.toml, line 3: mount.cache = \"all\" cannot be used; expected one of none"),
        ("[prediction]\npredict = \"lern\"\n", "expected off, learn, or trace files; did you mean \"learn\"?"),
        ("[scheduler]\npolicy = \"adaptve\"\n", "c.toml, line 2: no algorithm is called \"adaptve\""),
        ("[scheduler]\npolicy = \"adaptve\"\n", "did you mean \"adaptive\"?"),
        ("[scheduler]\npolicy = \"adaptive\"\n[scheduler.params]\nranges = 4\n", "adaptive has no parameters"),
        ("[prediction]\nprofile = \"of\"\n", "did you mean \"off\"?"),
        ("[mout]\n", "c.toml, line 1: unknown section [mout]; did you mean \"mount\"?"),
        ("[mount\n", "c.toml, line 1:"),
        ("[scheduler]\nin_flight = -1\n", "c.toml, line 2: scheduler.in_flight = -1 cannot be used"),
        ("[mount]\nsource = \"/a\"\n[volume]\ntargets = [\"/b\"]\n", "has both mount.source and volume.targets"),
    ];
    for (text, wanted) in cases {
        fs::write(place.path("c.toml"), text).unwrap();
        let error = place.bad(&["mount", "--config", "c.toml", "--daemon"]);
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
}

#[test]
fn other_commands_explain_themselves() {
    let place = Place::new();
    assert!(place.bad(&["status", "mnt"]).contains("no Sluicegate mount; make one with: sluice mount"));
    assert!(place.bad(&["policy", "mnt", "to"]).contains("no Sluicegate mount"));
    assert!(place.bad(&["policy", "mnt", "adaptive", "ranges=4"]).contains("adaptive has no parameters"));
    assert!(place.bad(&["policy", "--list", "mnt", "to"]).contains("--list explains all algorithms"));
    assert!(place.bad(&["policy", "--list", "sjf"]).contains("--list explains all algorithms"));
    assert!(place.bad(&["coordinate", "--window", "1s"]).contains("--role orchestrator"));
    assert!(place.bad(&["coordinate", "--role", "orchestrator", "--window", "5"]).contains("not a time, like 500ms"));
    assert!(place.bad(&["check"]).contains("--target"));
    assert!(place.bad(&["check", "--target", "mnt"]).contains("mnt"));
    assert!(place.bad(&["calibrate", "source", "--emulate", "hdd-9000"]).contains("no device model"));
    assert!(place.bad(&["demo", "--seed", "-1"]).contains("invalid value '-1' for '--seed <N>'"));
    assert!(
        place.bad(&["explain", "log", "--last=-1"]).contains("invalid value '-1' for '--last <SECONDS>': expected")
    );
    assert!(place.bad(&["explain", "log", "--last", "nan"]).contains("expected a number of seconds above 0"));
    assert!(place.bad(&["simulate", "--keys", "quick.toml"]).contains("--keys"));
}

#[test]
fn sizes_and_times_below_nothing_are_answered_with_what_can_be() {
    let place = Place::new();
    let cases: &[(&[&str], &str)] = &[
        (
            &["profile", "source", "--file-size", "-1"],
            "invalid value '-1' for '--file-size <SIZE>': expected bytes from",
        ),
        (&["profile", "source", "--budget", "-5"], "'--budget <TIME>': expected a time from 1s to a week"),
        (&["calibrate", "source", "--file-size", "-1"], "'--file-size <SIZE>': expected bytes from 512 to 4T"),
        (&["tier", "create", "ssd", "--disk", "d", "--queue", "-8"], "--queue -8: cannot be used; expected at least"),
        (&["tier", "create", "ssd", "--disk", "d", "--slot", "-4"], "--slot -4: cannot be used; expected a multiple"),
    ];
    for (args, wanted) in cases {
        let error = place.bad(args);
        assert!(error.contains(wanted), "sluice {args:?} says {error}");
    }
}

/// Whoever finds it: the parser of the command line, or the command.
#[test]
fn what_is_missing_on_the_command_line_has_the_status_that_help_says() {
    let place = Place::new();
    let cases: &[&[&str]] = &[
        &[],
        &["mount"],
        &["mount", "source"],
        &["mount", "--target", "t0"],
        &["mount", "-o", "remount,ro"],
        &["mount", "--policy"],
        &["unmount"],
        &["status"],
        &["policy", "--list", "mnt"],
        &["policy", "mnt", "sjf", "ranges"],
        &["trace"],
        &["trace", "info"],
        &["check"],
        &["disk", "create"],
        &["disk", "create", "d"],
        &["disk", "remove"],
        &["cluster", "up"],
        &["coordinate", "status"],
        &["mpirun"],
        &["tier", "create", "ssd"],
        &["profile"],
        &["calibrate"],
        &["simulate"],
        &["report"],
        &["explain"],
        &["model", "merge", "a.json"],
    ];
    for args in cases {
        let output = run(&mut place.sluice(args));
        assert_eq!(output.status.code(), Some(2), "sluice {args:?} says {}", stderr(&output));
    }
    // What is there and cannot be used is something else.
    let output = run(&mut place.sluice(&["simulate", "none.toml"]));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn help_begins_with_what_the_program_is() {
    assert!(Place::new().good(&["--help"]).starts_with("Schedules file I/O requests, so that"));
}
