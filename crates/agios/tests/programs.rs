//! Programs written for AGIOS v2, compiled and linked against this library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library, by both the names that programs look for.
fn libraries(dir: &Path) -> PathBuf {
    let (lib, built) = (dir.join("lib"), std::env::current_exe().unwrap());
    if std::fs::create_dir(&lib).is_ok() {
        ["libagios.so", "libagios.so.0"]
            .iter()
            .for_each(|name| std::os::unix::fs::symlink(built.with_file_name("libagios.so"), lib.join(name)).unwrap());
    }
    lib
}

fn room() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn build(dir: &Path, source: &str) -> PathBuf {
    let program = dir.join(Path::new(source).file_stem().unwrap());
    let mut command = Command::new("gcc");
    command.args(["-g", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]);
    command.arg(room().join("include")).arg(room().join("tests/c").join(source)).arg("-o").arg(&program);
    command.arg("-L").arg(libraries(dir)).args(["-lagios", "-pthread"]);
    command.arg(format!("-Wl,-rpath,{}", libraries(dir).display()));
    succeed(&mut command);
    program
}

/// Runs it; what it printed to both.
fn succeed(command: &mut Command) -> (String, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    (out.into_owned(), err.into_owned())
}

fn run(program: &Path, config: &Path, args: &[&str]) -> (String, String) {
    succeed(Command::new("timeout").args(["-k", "1", "600"]).arg(program).arg(config).args(args))
}

/// The algorithms as AGIOS names them.
const ALGORITHMS: [&str; 9] = ["NOOP", "TO", "TO-agg", "SJF", "MLF", "aIOLi", "SW", "TWINS", "WFQ"];

fn config(dir: &Path, algorithm: &str) -> PathBuf {
    let path = dir.join(format!("{algorithm}.conf"));
    let text = format!(
        "library_options :\n{{\n  trace = false ;\n  trace_file_prefix = \"/tmp/x\" ;\n  default_algorithm = \"{algorithm}\" ;\n  waiting_time = 900000 ;\n  aioli_quantum = 65536 ;\n  mlf_quantum = 8192 ;\n  SW_window = 1 ;\n  twins_window = 1000 ;\n  max_trace_buffer_size = 1024 ;\n}} ;\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn every_algorithm_processes_everything_once() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "program.c");
    for algorithm in ALGORITHMS {
        let (_, err) = run(&program, &config(dir.path(), algorithm), &["4", "1000", "16"]);
        assert!(!err.contains("unknown key"), "{algorithm}: {err}");
    }
}

/// What is told of traces and predictions; the program also calls what is to be refused.
fn told(err: &str) -> Vec<&str> {
    let words = ["trace", ".slt", "recording", "predict", "profile"];
    err.lines().filter(|line| words.iter().any(|word| line.contains(word))).collect()
}

/// The entries of a trace.
fn entries(path: &Path) -> usize {
    let (mut reader, mut block) = (sluice_trace::Reader::open(path).unwrap(), sluice_trace::Columns::default());
    let mut count = 0;
    while reader.next_block(&mut block).unwrap() {
        count += block.len();
    }
    count
}

#[test]
fn what_is_recorded_predicts_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let (program, path) = (build(dir.path(), "program.c"), |name: &str| dir.path().join(name).display().to_string());
    let disk = sluice_device::profiler::profile_of_model("hdd-7200").unwrap();
    std::fs::write(path("disk.toml"), disk.to_text()).unwrap();
    let config = |text: String| {
        let file = dir.path().join("agios.conf");
        std::fs::write(&file, format!("library_options : {{ default_algorithm = \"TO-agg\"; {text} }};")).unwrap();
        file
    };
    let records = format!("trace = true; trace_file_prefix = \"{}\"; trace_file_sufix = \"slt\";", path("run"));
    for number in 0..2 {
        let (_, err) = run(&program, &config(records.clone()), &["2", "500", "4"]);
        assert!(told(&err).is_empty(), "{err}");
        assert_eq!(entries(&dir.path().join(format!("run.{number}.slt"))), 1_000, "none replaces another");
    }
    let device = format!("sluice_profile = \"{}\";", path("disk.toml"));
    let predicts = format!("sluice_predict = \"{}:{}\"; {device}", path("run.0.slt"), path("run.1.slt"));
    let (_, err) = run(&program, &config(predicts), &["2", "500", "4"]);
    assert!(told(&err).is_empty(), "{err}");
    let learns = format!("sluice_learn = \"{}\"; {device}", path("learned.slt"));
    let (_, err) = run(&program, &config(learns), &["2", "500", "4"]);
    assert!(told(&err).is_empty() && Path::new(&path("learned.slt")).exists(), "{err}");
    // What cannot be had is told, and the program runs all the same.
    let missing = format!("sluice_predict = \"/nowhere.slt\"; {device}");
    let (_, err) = run(&program, &config(missing), &["2", "500", "4"]);
    assert!(err.contains("nothing is predicted: /nowhere.slt"), "{err}");
    let unwritable = "trace = true; trace_file_prefix = \"/nowhere/run\";".to_owned();
    let (_, err) = run(&program, &config(unwritable), &["2", "500", "4"]);
    assert!(err.contains("no trace is recorded: /nowhere/run.0.slt"), "{err}");
}

#[test]
fn idle_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "program.c");
    let (out, _) = run(&program, &config(dir.path(), "aIOLi"), &["1", "100", "1", "idle"]);
    let seconds: f64 = out.split("idle: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(seconds < 0.01, "{out}");
}

#[test]
fn cancelled_requests_are_never_processed() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "cancel.c");
    let (_, err) = run(&program, &config(dir.path(), "TO-agg"), &[]);
    assert!(err.contains("agios_exit: not from inside a callback"), "{err}");
}

/// What a queue_id means depends on the algorithm: an application, or (TWINS) the server with other bytes of the file.
#[test]
fn overlapping_writes_are_ordered_unless_they_go_to_different_servers() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "queues.c");
    for algorithm in ALGORITHMS.into_iter().filter(|algorithm| !matches!(*algorithm, "TWINS" | "NOOP")) {
        run(&program, &config(dir.path(), algorithm), &["applications"]);
    }
    run(&program, &config(dir.path(), "TWINS"), &["servers"]);
}

#[test]
fn a_request_is_cancelled_or_processed() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "race.c");
    for algorithm in ALGORITHMS {
        let (out, _) = run(&program, &config(dir.path(), algorithm), &["4", "500"]);
        assert!(out.contains("2000 requests"), "{algorithm}: {out}");
    }
}

#[test]
fn noop_hands_over_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "noop.c");
    let config = config(dir.path(), "NOOP");
    let (_, err) = run(&program, &config, &["released"]);
    assert!(!err.contains("never"), "{err}");
    let (_, err) = run(&program, &config, &[]);
    assert!(err.contains("0 requests were never dispatched, 1 never released"), "{err}");
}

/// What the library keeps for a thread is gone before destructors of the program's own keys are called.
#[test]
fn a_thread_that_ends_may_release_and_end_the_scheduler() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "dying.c");
    for algorithm in ALGORITHMS {
        let (_, err) = run(&program, &config(dir.path(), algorithm), &[]);
        assert!(!err.contains("panicked") && !err.contains("never"), "{algorithm}: {err}");
    }
}

#[test]
fn mistakes_in_the_file_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "program.c");
    let path = dir.path().join("bad.conf");
    std::fs::write(&path, "library_options : { default_algorithm = \"SJF\"; colour = 1; };\n").unwrap();
    let (_, err) = run(&program, &path, &["1", "10", "1"]);
    assert!(err.contains("bad.conf:1: unknown key library_options.colour; ignored"), "{err}");
    let (_, err) = run(&program, Path::new("/no/such/file"), &["1", "10", "1"]);
    assert!(err.contains("/no/such/file: No such file"), "{err}");
    std::fs::write(&path, "default_algorithm = \"magic\";").unwrap();
    let output = Command::new(&program).arg(&path).args(["1", "1", "1"]).output().unwrap();
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(err.contains("no algorithm is called \"magic\""), "{err}");
}
