//! Traces from other programs' logs: fio and strace are run, and what is imported is compared with what they did.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use common::{Place, fuse_works, run, stderr};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Requests of a trace as `sluice trace cat` tells them.
fn requests(place: &Place, trace: &str) -> Vec<Value> {
    place.good(&["trace", "cat", "--json", trace]).lines().map(json).collect()
}

fn number(line: &Value, field: &str) -> u64 {
    line[field].as_u64().unwrap_or_else(|| panic!("{field} of {line}"))
}

fn sluice(place: &Place, args: &[&str]) -> Output {
    let output = run(&mut place.sluice(args));
    assert!(!stderr(&output).contains("panicked"), "{args:?}: {output:?}");
    output
}

/// Runs fio in the place's source directory, or the mount; what it says of its only job.
fn fio(place: &Place, dir: &str, options: &[&str]) -> Value {
    let mut fio = Command::new("fio");
    fio.args(["--name=job", "--output-format=json", "--allow_file_create=1"]).args(options);
    let output = run(fio.current_dir(place.path(dir)));
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    json(&text[text.find('{').unwrap()..])["jobs"][0].take()
}

fn program_works(program: &str, args: &[&str]) -> bool {
    let works = Command::new(program).args(args).output().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("SKIP: {program} does not work here: this test did NOT run");
    }
    works
}

#[test]
fn a_log_of_fio_has_the_duration_the_gaps_and_the_requests_of_its_job() {
    if !program_works("fio", &["--version"]) {
        return;
    }
    let place = Place::new();
    let options = ["--filename=./x/../a b", "--rw=rw", "--bs=4k", "--size=200k", "--thinktime=20000", "--unlink=1"];
    let begin = std::time::Instant::now();
    let job = fio(&place, "source", &[&options[..], &["--write_iolog=log"]].concat());
    let took = begin.elapsed().as_secs_f64();
    let said = place.good(&["trace", "import", "@source/log", "@log.slt"]);
    let [reads, writes] = ["read", "write"].map(|op| (number(&job[op], "total_ios"), number(&job[op], "io_bytes")));
    assert!(said.contains(&format!("{} requests", reads.0 + writes.0)), "{said}");
    let info = json(&place.good(&["trace", "info", "--json", "@log.slt"]));
    for (op, (requests, bytes)) in [("reads", reads), ("writes", writes)] {
        let counts = &info["summary"][op];
        assert_eq!((number(counts, "requests"), number(counts, "bytes")), (requests, bytes), "{op}");
    }
    // It thinks for 20 ms after each of 50 requests; how much longer it takes is the machine's matter.
    let seconds = info["summary"]["seconds"].as_f64().unwrap();
    assert!(seconds >= 49.0 * 0.02 && seconds < took, "{seconds} s of {took} s");
    let all = requests(&place, "@log.slt");
    assert!(all.iter().all(|line| line["path"] == "a b"), "{}", all[0]);
    let mut gaps: Vec<u64> =
        all.windows(2).map(|two| number(&two[1], "time_ns") - number(&two[0], "time_ns")).collect();
    gaps.sort_unstable();
    assert!(gaps[gaps.len() / 2] >= 20_000_000, "the time that it thinks: {gaps:?}");
    assert_eq!(info["end"]["complete"], true);
}

#[test]
fn waits_in_old_logs_are_what_fio_makes_of_them() {
    if !program_works("fio", &["--version"]) {
        return;
    }
    let place = Place::new();
    fs::write(place.path("source/a"), [0; 8192]).unwrap();
    let log = "fio version 2 iolog\na add\na open\na read 0 4096\na wait 1200 0\na read 4096 4096\na close\n";
    fs::write(place.path("source/log"), log).unwrap();
    let begin = std::time::Instant::now();
    let job = fio(&place, "source", &["--read_iolog=log"]);
    // Milliseconds since fio began, and not microseconds.
    let took = begin.elapsed().as_secs_f64();
    assert!((1.2..1200.0).contains(&took) && number(&job["read"], "total_ios") == 2, "{took} s, {job}");
    let output = run(&mut place.sluice(&["trace", "import", "@source/log", "@log.slt"]));
    assert!(output.status.success() && stderr(&output).contains("no times"), "{output:?}");
    let times: Vec<u64> = requests(&place, "@log.slt").iter().map(|line| number(line, "time_ns")).collect();
    assert_eq!(times, [0, 1_200_000_000]);
}

#[test]
fn jobs_of_fio_are_merged_as_processes_and_a_killed_one_is_told() {
    if !program_works("fio", &["--version"]) {
        return;
    }
    let place = Place::new();
    let options = ["--bs=4k", "--size=64k", "--rw=write"];
    for job in ["one", "two"] {
        let names = [format!("--filename={job}"), format!("--write_iolog={job}.log")];
        fio(&place, "source", &[&options[..], &[&names[0], &names[1]]].concat());
        place.good(&["trace", "import", &format!("@source/{job}.log"), &format!("@{job}.slt")]);
    }
    place.good(&[
        "trace",
        "merge",
        "@one.slt",
        "@two.slt",
        "--each",
        "processes",
        "--align",
        "start",
        "--out",
        "@both.slt",
    ]);
    let mut of_process: BTreeMap<(u64, String), u64> = BTreeMap::new();
    for line in requests(&place, "@both.slt") {
        *of_process.entry((number(&line, "process"), line["path"].to_string())).or_default() += 1;
    }
    assert_eq!(of_process.into_values().collect::<Vec<_>>(), [16, 16]);
    assert!(place.good(&["trace", "info", "@both.slt"]).contains("1 application (2 processes)"));
    // fio appends: the second log begins where the first one ends.
    fio(&place, "source", &[&options[..], &["--filename=one", "--write_iolog=one.log"]].concat());
    let error = place.bad(&["trace", "import", "@source/one.log", "@twice.slt"]);
    assert!(error.contains("a second log begins here") && !place.path("twice.slt").exists(), "{error}");

    // A job that was killed has a log that ends anywhere.
    let log = fs::read(place.path("source/two.log")).unwrap();
    fs::write(place.path("killed.log"), &log[..log.len() * 2 / 3]).unwrap();
    let output = sluice(&place, &["trace", "import", "@killed.log", "@killed.slt"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stderr(&output).contains("killed.log: the log is cut in line"), "{output:?}");
    let info = place.good(&["trace", "info", "@killed.slt"]);
    assert!(info.contains("incomplete: the log is cut in line") && !info.contains("complete\n"), "{info}");
    let end = json(&place.good(&["trace", "info", "--json", "@killed.slt"]))["end"].take();
    assert!(end["complete"] == false && end["incomplete"].as_str().unwrap().contains("is cut"), "{end}");
    // It stays incomplete, whatever is made of it.
    place.good(&["trace", "merge", "@killed.slt", "@one.slt", "--align", "start", "--out", "@merged.slt"]);
    place.good(&["trace", "convert", "@merged.slt", "@again.slt"]);
    let info = place.good(&["trace", "info", "@again.slt"]);
    assert!(info.contains("killed.slt: the log is cut"), "{info}");
}

/// What a program does, and what of it is where; every line of the second list is a request.
const PROGRAM: &str = "import os, threading
os.chdir('data')
whole = os.open('./x/../a', os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
for n in range(8): os.write(whole, b'x' * 1000)
os.lseek(whole, 500, os.SEEK_SET)
os.read(whole, 100)
os.writev(whole, [b'ab', b'c\" = 7', b')'])
os.preadv(whole, [bytearray(10), bytearray(20)], 4000)
def work(at):
    for n in range(20): os.pwrite(whole, b'y' * 50, at + 50 * n)
threads = [threading.Thread(target=work, args=(10000 * t,)) for t in (1, 2, 3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
second = os.dup(whole)
if os.fork() == 0:
    os.read(second, 7)
    os._exit(0)
os.wait()
os.read(whole, 9)
log = os.open('log', os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
os.write(log, b'one'); os.write(log, b'three')
null = os.open('/dev/null', os.O_WRONLY); os.write(null, b'nothing')
os.close(whole); os.close(second)
";

#[test]
fn a_log_of_strace_has_what_a_program_did_and_where() {
    let place = Place::new();
    let probe = ["-f", "-o", "/dev/null", "true"];
    if !program_works("strace", &probe) || !program_works("python3", &["--version"]) {
        return;
    }
    fs::create_dir_all(place.path("data/x")).unwrap();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-ttt", "-T", "-y", "-e", "trace=%file,%desc,%process", "-o", "strace.log"]);
    strace.args(["python3", "-c", PROGRAM]).current_dir(place.path("."));
    let output = run(&mut strace);
    assert!(output.status.success(), "{output:?}");
    let data = place.path("data").canonicalize().unwrap();
    let below = ["trace", "import", "@strace.log", "@run.slt", "--below", data.to_str().unwrap()];
    let said = sluice(&place, &below);
    // Nothing is missing below the directory, wherever the output of the test goes.
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    let mut seen: Vec<(String, String, u64, u64)> = Vec::new();
    let mut processes: Vec<u64> = Vec::new();
    for line in requests(&place, "@run.slt") {
        let text = |field: &str| line[field].as_str().unwrap().to_owned();
        seen.push((text("path"), text("op"), number(&line, "offset"), number(&line, "len")));
        processes.push(number(&line, "process"));
    }
    let one = |path: &str, op: &str, offset: u64, len: u64| (path.to_owned(), op.to_owned(), offset, len);
    let mut expected: Vec<_> = (0..8).map(|n| one("a", "write", n * 1000, 1000)).collect();
    expected.extend([one("a", "read", 500, 100), one("a", "write", 600, 9), one("a", "read", 4000, 30)]);
    expected.extend((1..4).flat_map(|t| (0..20).map(move |n| one("a", "write", 10_000 * t + 50 * n, 50))));
    expected.extend([one("a", "read", 609, 7), one("a", "read", 616, 9)]);
    expected.extend([one("log", "write", 0, 3), one("log", "write", 3, 5)]);
    // Threads take turns as they like.
    seen[11..71].sort();
    expected[11..71].sort();
    assert_eq!(seen, expected);
    processes.sort_unstable();
    processes.dedup();
    assert_eq!(processes.len(), 5, "the program, its three threads and its child: {processes:?}");
    let error = place.bad(&["trace", "import", "@strace.log", "@none.slt", "--below", "/no/such/place"]);
    assert!(error.contains("no request is to a file below /no/such/place"), "{error}");
    // Cut anywhere it is told from the whole one; so it is with other programs' text in between, and without times or paths.
    let log = fs::read(place.path("strace.log")).unwrap();
    for cut in (1..20).map(|n| log.len() * n / 20) {
        fs::write(place.path("cut.log"), &log[..cut]).unwrap();
        let output = sluice(&place, &["trace", "import", "@cut.log", "@cut.slt"]);
        assert_eq!(output.status.code(), Some(3), "{cut}: {output:?}");
    }
    fs::write(place.path("mixed.log"), [&log[..], b"hello\n"].concat()).unwrap();
    let error = place.bad(&["trace", "import", "@mixed.log", "@mixed.slt"]);
    assert!(error.contains("line") && !place.path("mixed.slt").exists(), "{error}");
    for (options, says) in [(["-f", "-y"], "-ttt"), (["-f", "-ttt"], "-y")] {
        let script = ["sh", "-c", "echo hello > data/echo"];
        run(Command::new("strace").args(options).args(["-o", "bad.log"]).args(script).current_dir(place.path(".")));
        let error = place.bad(&["trace", "import", "--format", "strace", "@bad.log", "@bad.slt"]);
        assert!(error.contains(says), "{error}");
    }
}

/// What fio wrote with large blocks elsewhere is recognised on volumes that split them.
#[test]
fn large_requests_of_a_log_are_recognised_by_volumes_that_split_them() {
    if !fuse_works() || !program_works("fio", &["--version"]) {
        return;
    }
    let place = Place::new();
    for target in ["t0", "t1", "t2"] {
        place.make(target);
    }
    let mut options =
        vec!["--filename=out", "--rw=write", "--bs=4m", "--size=64m", "--fallocate=none", "--thinktime=30000"];
    fio(&place, "source", &[&options[..], &["--write_iolog=log"]].concat());
    place.good(&["trace", "import", "@source/log", "@log.slt"]);
    fs::remove_file(place.path("source/out")).unwrap();
    let striped = ["--target", "@t0", "--target", "@t1", "--target", "@t2", "--stripe", "256K"];
    for (volume, cache, pieces) in [
        (&["@source"][..], "auto", 64_u64),
        (&["@source"], "none", 64),
        (&striped, "auto", 256),
        (&striped, "none", 256),
    ] {
        let _ = fs::remove_file(place.path("source/out"));
        if cache == "none" {
            // What passes the cache by is split by pages of the program's memory.
            options.push("--mem_align=4096");
        }
        let mount = ["mount", "--daemon", "--log", "@mount.log", "--cache", cache, "--policy", "to-agg"];
        place.good(&[&mount[..], volume, &["@mnt"]].concat());
        let output = sluice(&place, &["trace", "predict", "@mnt", "@log.slt"]);
        let (said, told) = (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output));
        assert!(output.status.success(), "{said}{told}");
        assert!(said.contains(&format!("16 requests, which the volume splits into {pieces}; all can match")), "{said}");
        let parts = format!("{pieces} are parts of requests that the kernel splits");
        assert_eq!(told.contains(&parts), cache == "none", "{told}");
        fio(&place, "mnt", &options);
        let prediction = place.status()["prediction"].take();
        let counted = ["predicted", "known", "linked"].map(|field| number(&prediction, field));
        assert_eq!(counted[..2], [pieces, pieces], "{prediction}");
        // Each request is recognised but for those whose time is another one on this machine.
        assert!(counted[2] > pieces / 2, "{prediction}");
        assert_eq!(number(&prediction["traces"][0], "can_match"), pieces);
        common::unmount(&place);
    }
}

#[test]
fn exit_codes_tell_whole_traces_from_parts_and_from_none() {
    let place = Place::new();
    let mut log = "fio version 3 iolog\n0 f add\n".to_owned();
    (0..70_000).for_each(|n| log += &format!("{n} f write {} 4096\n", n % 97 * 4096));
    fs::write(place.path("log"), log).unwrap();
    place.good(&["trace", "import", "@log", "@whole.slt"]);
    let whole = fs::read(place.path("whole.slt")).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() - 100] ^= 0x10;
    fs::write(place.path("torn.slt"), &whole[..whole.len() - 7]).unwrap();
    fs::write(place.path("damaged.slt"), flipped).unwrap();
    fs::write(place.path("none.slt"), "hello").unwrap();
    // The same file twice is refused.
    fs::write(place.path("other.slt"), &whole).unwrap();
    let commands: [&[&str]; 7] = [
        &["trace", "info", "TRACE"],
        &["trace", "info", "--json", "TRACE"],
        &["trace", "stats", "TRACE"],
        &["trace", "cat", "TRACE"],
        &["trace", "convert", "TRACE", "@out.slt"],
        &["trace", "convert", "TRACE", "@out.csv"],
        &["trace", "merge", "@other.slt", "TRACE", "--out", "@out.slt"],
    ];
    for (trace, says, expected) in [
        ("@whole.slt", "", 0),
        ("@torn.slt", "torn.slt: the trace has no end", 3),
        ("@damaged.slt", "damaged.slt: the trace is damaged at byte", 3),
        ("@none.slt", "none.slt: this is not a trace", 1),
    ] {
        for command in commands {
            let args: Vec<&str> = command.iter().map(|word| if *word == "TRACE" { trace } else { word }).collect();
            let _ = fs::remove_file(place.path("out.slt"));
            let output = sluice(&place, &args);
            // What is damaged is not merged with what is not.
            let refused = command[1] == "merge" && trace == "@damaged.slt";
            let expected = if refused { 1 } else { expected };
            assert_eq!(output.status.code(), Some(expected), "{args:?}: {}", stderr(&output));
            assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
            if command.last() == Some(&"@out.slt") {
                assert_eq!(place.path("out.slt").exists(), expected != 1, "{args:?}");
            }
            if expected == 3 && command.last() == Some(&"@out.slt") {
                let info = place.good(&["trace", "info", "@out.slt"]);
                assert!(info.contains("incomplete: "), "{info}");
            }
        }
    }
}

#[test]
fn of_damaged_copies_of_a_trace_none_passes_for_it() {
    let place = Place::new();
    let mut log = "fio version 3 iolog\n0 f add\n".to_owned();
    (0..300).for_each(|n| log += &format!("{n} f write {} 4096\n", n * 4096));
    fs::write(place.path("log"), log).unwrap();
    place.good(&["trace", "import", "@log", "@whole.slt"]);
    let whole = fs::read(place.path("whole.slt")).unwrap();
    let expected = place.good(&["trace", "cat", "@whole.slt"]);
    for turn in 0..200 {
        let at = turn * whole.len() / 200;
        let mut copy = whole.clone();
        if turn % 2 == 0 {
            copy[at] ^= 1 << (turn % 8)
        } else {
            copy.truncate(at)
        }
        fs::write(place.path("copy.slt"), copy).unwrap();
        let output = sluice(&place, &["trace", "cat", "@copy.slt"]);
        assert!(matches!(output.status.code(), Some(1 | 3)), "{at}: {output:?}");
        assert!(expected.as_bytes().starts_with(&output.stdout) && !output.stderr.is_empty(), "{at}: {output:?}");
    }
}

/// What the Python package says is said on.
#[test]
fn exit_codes_of_the_python_package_are_handed_on() {
    let place = Place::new();
    fs::write(place.path("job.darshan"), "log").unwrap();
    let python = place.path("python");
    for (script, code, says) in [
        ("exit 3", Some(3), ""),
        ("echo 'sluicegate: damaged' >&2; exit 1", Some(1), "sluicegate: damaged"),
        ("kill -SEGV $$", Some(1), "the Python package has failed (signal: 11"),
    ] {
        fs::write(&python, format!("#!/bin/sh\n[ \"$1\" = -c ] && exit 0\n{script}\n")).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = place.sluice(&["trace", "import", "@job.darshan", "@job.slt"]);
        let output = run(command.env("SLUICE_PYTHON", &python));
        assert_eq!(output.status.code(), code, "{output:?}");
        assert!(stderr(&output).contains(says), "{output:?}");
    }
    // Of standard input it gets a copy, and is told what that is.
    let script = "[ \"$*\" = \"import-darshan $2 $3 --source standard input\" ] && grep -q often \"$2\"";
    fs::write(&python, format!("#!/bin/sh\n[ \"$1\" = -c ] && exit 0\nshift 2; {script}\n")).unwrap();
    let mut command = place.sluice(&["trace", "import", "--format", "darshan", "-", "@job.slt"]);
    fs::write(place.path("log"), "often").unwrap();
    let output = run(command.env("SLUICE_PYTHON", &python).stdin(fs::File::open(place.path("log")).unwrap()));
    assert!(output.status.success(), "{output:?}");
}
