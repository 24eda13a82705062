//! Traces from the command line: recorded from a mount, imported, shown, converted, replayed, predicted from.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use common::{Place, fuse_works, run};
use serde_json::Value;

/// fio's log of 3 reads and 2 writes of two files.
const LOG: &str = "fio version 3 iolog\n0 /t/a add\n0 /t/b open\n0 /t/b add\n1 /t/a write 0 8192\n2 /t/a write 8192 8192\n\
    700000 /t/a read 0 8192\n701000 /t/b read 100 1000\n702000 /t/b read 1100 1000\n703000 /t/b close\n";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn imported(place: &Place) {
    fs::write(place.path("log"), LOG).unwrap();
    let said = place.good(&["trace", "import", "@log", "@t.slt"]);
    assert!(said.contains("5 requests; 4 other lines"), "{said}");
}

#[test]
fn an_imported_log_is_shown_and_converted() {
    let place = Place::new();
    imported(&place);
    let info = json(&place.good(&["trace", "info", "@t.slt", "--json", "--plot", "@plot.svg"]));
    let summary = &info["summary"];
    assert_eq!((summary["reads"]["requests"].as_u64(), summary["writes"]["bytes"].as_u64()), (Some(3), Some(16_384)));
    assert_eq!((summary["files"].as_u64(), summary["bursts"].as_u64()), (Some(2), Some(2)));
    assert_eq!(info["end"]["complete"], true);
    assert!(fs::read_to_string(place.path("plot.svg")).unwrap().starts_with("<svg"));
    let text = place.good(&["trace", "info", "@t.slt"]);
    for expected in ["5 requests", "of 1000 B to 8 KiB", "/t/a", "contiguous", "over time", "complete"] {
        assert!(text.replace("requests   5", "5 requests").contains(expected), "{expected}: {text}");
    }
    let lines: Vec<Value> = place.good(&["trace", "cat", "--json", "@t.slt"]).lines().map(json).collect();
    assert_eq!(lines.len(), 5);
    assert_eq!((&lines[3]["path"], lines[3]["offset"].as_u64()), (&Value::from("/t/b"), Some(100)));
    assert_eq!(place.good(&["trace", "cat", "-n", "2", "@t.slt"]).lines().count(), 3, "a head and two");
    let stats = json(&place.good(&["trace", "stats", "--json", "@t.slt"]));
    assert_eq!(stats["files"].as_array().unwrap().len(), 2);
    place.good(&["trace", "convert", "@t.slt", "@t.csv"]);
    let csv = common::lines(&place.path("t.csv"));
    assert_eq!(csv[0], "time_ns,path,op,offset,length,application,target,target_offset");
    assert_eq!(csv[1], "1000,/t/a,write,0,8192,0,0,0");
    std::os::unix::fs::symlink("t.slt", place.path("link.slt")).unwrap();
    for same in ["@t.slt", "@link.slt"] {
        let error = place.bad(&["trace", "merge", "@t.slt", same, "--out", "@both.slt"]);
        assert!(error.contains("is the same file as") && !place.path("both.slt").exists(), "{error}");
    }
    fs::copy(place.path("t.slt"), place.path("copy.slt")).unwrap();
    place.good(&["trace", "merge", "@t.slt", "@copy.slt", "--out", "@both.slt", "--align", "start"]);
    assert_eq!(place.good(&["trace", "cat", "--json", "@both.slt"]).lines().count(), 10);
    // What a recorder that was killed left.
    let bytes = fs::read(place.path("both.slt")).unwrap();
    fs::write(place.path("torn.slt"), &bytes[..bytes.len() - 7]).unwrap();
    let info = run(&mut place.sluice(&["trace", "info", "@torn.slt"]));
    assert!(info.status.code() == Some(3) && String::from_utf8_lossy(&info.stdout).contains("has no end"), "{info:?}");
    let said = place.good(&["trace", "import", "@log", "@below.slt", "--below", "/t/"]);
    assert!(said.ends_with("below.slt: 5 requests\n") && said.lines().count() == 1, "{said}");
    let lines = place.good(&["trace", "cat", "--json", "@below.slt"]);
    assert_eq!(json(lines.lines().next().unwrap())["path"], "a");
    let error = place.bad(&["trace", "convert", "@t.slt", "@none.slt", "--below", "/t/a"]);
    assert!(error.contains("no file is below /t/a: one is /t/a") && !place.path("none.slt").exists(), "{error}");
    assert!(place.bad(&["trace", "convert", "@t.slt", "@t.csv", "--below", "/t"]).contains(".slt"));
    assert_eq!(run(&mut place.sluice(&["trace", "convert", "@torn.slt", "@whole.slt"])).status.code(), Some(3));
    // It is whole, and says what it is not.
    let end = json(&place.good(&["trace", "info", "--json", "@whole.slt"]))["end"].take();
    assert!(end["complete"] == false && end["incomplete"].as_str().unwrap().contains("has no end"), "{end}");
}

#[test]
fn traces_and_logs_go_through_pipes() {
    let place = Place::new();
    imported(&place);
    let trace = fs::read(place.path("t.slt")).unwrap();
    let through = |args: &[&str], input: &[u8]| {
        common::good_output(common::with_input(&place, &[&["trace"], args].concat(), input))
    };
    let requests = |trace: &[u8]| String::from_utf8(through(&["cat", "--json", "-"], trace)).unwrap();
    for what in ["info", "stats", "cat"] {
        assert_eq!(through(&[what, "-"], &trace), place.good(&["trace", what, "@t.slt"]).into_bytes(), "{what}");
    }
    assert!(through(&["info", "-", "--plot", "-"], &trace).starts_with(b"<svg"));
    assert_eq!(requests(&through(&["import", "-", "-"], LOG.as_bytes())), requests(&trace));
    let below = requests(&through(&["import", "-", "-", "--below", "/t"], LOG.as_bytes()));
    assert_eq!(json(below.lines().next().unwrap())["path"], "a");
    assert_eq!(requests(&through(&["convert", "-", "-"], &trace)), requests(&trace));
    let none = place.sluice(&["trace", "convert", "--below", "/scratch", "@t.slt", "-"]).output().unwrap();
    assert!(none.status.code() == Some(1) && none.stdout.is_empty(), "no trace without its end: {none:?}");
    place.good(&["trace", "convert", "@t.slt", "@t.csv"]);
    assert_eq!(through(&["convert", "--format", "csv", "-", "-"], &trace), fs::read(place.path("t.csv")).unwrap());
    let both = through(&["merge", "@t.slt", "-", "--align", "start", "--out", "-"], &trace);
    assert_eq!(requests(&both).lines().count(), 10);
    place.make("dir");
    assert_eq!(json(std::str::from_utf8(&through(&["replay", "-", "@dir", "--json"], &trace)).unwrap())["requests"], 5);
    let cut = common::with_input(&place, &["trace", "info", "-"], &trace[..trace.len() - 7]);
    let said = common::stderr(&cut);
    assert!(cut.status.code() == Some(3) && said.contains("standard input: the trace has no end"), "{said}");
    for (args, wanted) in [
        (&["trace", "merge", "-", "-", "--out", "@x.slt"][..], "standard input (-) is one file"),
        (&["trace", "convert", "--format", "parquet", "@t.slt", "-"], "Parquet goes into a file"),
        (&["trace", "info", "@t.slt", "--json", "--plot", "-"], "standard output takes one thing"),
        (&["trace", "import", "-", "@x.slt"], "standard input: the log is empty"),
        (&["trace", "info", "-"], "standard input: this is not a trace"),
    ] {
        let error = place.bad(args);
        assert!(error.contains(wanted), "{args:?}: {error}");
    }
    assert!(!place.path("-").exists() && !place.path("x.slt").exists());
}

/// `script` makes the terminal.
#[test]
fn a_trace_is_sent_to_no_terminal_and_a_reader_may_have_enough() {
    let place = Place::new();
    let lines: String = (0..20_000).map(|n| format!("{n} /t/a read {} 4096\n", n * 4096)).collect();
    fs::write(place.path("log"), format!("fio version 3 iolog\n0 /t/a add\n0 /t/a open\n{lines}0 /t/a close\n"))
        .unwrap();
    run(&mut place.sluice(&["trace", "import", "@log", "@t.slt"]));
    let (sluice, trace) = (env!("CARGO_BIN_EXE_sluice"), place.text("t.slt"));
    let line = format!("{sluice} trace convert --format csv {trace} - | head -n 1; exit ${{PIPESTATUS[0]}}");
    let output = run(std::process::Command::new("bash").args(["-c", &line]));
    assert!(output.status.success() && output.stdout.starts_with(b"time_ns,"), "{output:?}");
    let line = format!("{sluice} trace convert {trace} -");
    match std::process::Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output() {
        Err(_) => eprintln!("SKIP: no script: this test did NOT run to its end"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(!output.status.success() && said.contains("standard output is a terminal"), "{said}");
        }
    }
}

#[test]
fn a_replay_makes_files_does_everything_and_checks() {
    let place = Place::new();
    imported(&place);
    let dir = place.make("dir");
    let report = json(&place.good(&["trace", "replay", "@t.slt", "@dir", "--check", "--json"]));
    assert_eq!((report["requests"].as_u64(), report["checked"].as_u64()), (Some(5), Some(3)));
    assert_eq!(fs::metadata(dir.join("t/b")).unwrap().len(), 2100);
    let before = fs::read(dir.join("t/a")).unwrap();
    let error = place.bad(&["trace", "replay", "@t.slt", "@dir"]);
    assert!(error.contains("--overwrite"), "{error}");
    let report = json(&place.good(&["trace", "replay", "@t.slt", "@dir", "--overwrite", "--speed", "10", "--json"]));
    assert!(report["seconds"].as_f64().unwrap() >= 0.0702, "{report}");
    assert_eq!(fs::read(dir.join("t/a")).unwrap(), before, "what is written depends on the place alone");
}

#[test]
fn mistakes_are_told() {
    let place = Place::new();
    fs::write(place.path("text"), "hello, this is no trace at all").unwrap();
    assert!(place.bad(&["trace", "info", "@text"]).contains("not a trace"));
    assert!(place.bad(&["trace", "info", "@missing"]).contains("missing"));
    assert!(place.bad(&["trace", "import", "@text", "@out"]).contains("line 1"));
    assert!(!place.path("out").exists(), "nothing half done");
    imported(&place);
    assert!(place.bad(&["trace", "convert", "@t.slt", "@t.xyz"]).contains(".csv, .parquet or .slt"));
    let output = run(place.sluice(&["trace", "convert", "@t.slt", "@t.parquet"]).env("SLUICE_PYTHON", "/no/python"));
    assert!(common::stderr(&output).contains("pip install './python[parquet]'"), "{output:?}");
    fs::write(place.path("evil"), "fio version 2 iolog\n../../evil write 0 10\n").unwrap();
    place.good(&["trace", "import", "@evil", "@evil.slt"]);
    assert!(place.bad(&["trace", "replay", "@evil.slt", "@source"]).contains("outside the directory"));
    let mut bytes = fs::read(place.path("t.slt")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs::write(place.path("bad.slt"), bytes).unwrap();
    let output = run(&mut place.sluice(&["trace", "cat", "@bad.slt"]));
    assert!(common::stderr(&output).contains("damaged at byte"), "{output:?}");
    let error = place.bad(&["trace", "merge", "@t.slt", "@bad.slt", "--out", "@m.slt"]);
    assert!(error.contains("bad.slt") && error.contains("damaged at byte") && !place.path("m.slt").exists(), "{error}");
    for (command, says) in [("cat", "cannot be printed"), ("info", "cannot be written")] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = place.sluice(&["trace", command, "@t.slt"]).stdout(full).output().unwrap();
        assert!(!output.status.success() && common::stderr(&output).contains(says), "{output:?}");
    }
    fs::write(place.path("begun.slt"), &fs::read(place.path("t.slt")).unwrap()[..24]).unwrap();
    let said = run(&mut place.sluice(&["trace", "info", "@begun.slt"]));
    assert_eq!(said.status.code(), Some(3));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("has no end") && !said.contains("over time"), "{said}");
    assert!(place.bad(&["trace", "start", "@mnt"]).contains("no Sluicegate mount"));
}

fn write(place: &Place, name: &str, blocks: u64) {
    let file = fs::File::create(place.path(&format!("mnt/{name}"))).unwrap();
    for block in 0..blocks {
        file.write_all_at(&[1; 4096], block * 4096).unwrap();
    }
}

#[test]
fn a_mount_is_recorded_and_predicted_live() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&["--cache", "none", "--policy", "to-agg"]);
    write(&place, "before", 3);
    let said = place.good(&["trace", "start", "@mnt", "--out", "@run.slt"]);
    assert!(said.contains("run.slt"), "{said}");
    assert!(place.bad(&["trace", "start", "@mnt", "--out", "@other.slt"]).contains("a recording is running already"));
    write(&place, "a", 50);
    assert_eq!(place.status()["recording"]["path"], place.text("run.slt"));
    let recorded = json(&place.good(&["trace", "stop", "@mnt", "--json"]));
    assert_eq!((recorded["entries"].as_u64(), recorded["dropped"].as_u64()), (Some(50), Some(0)));
    assert!(place.bad(&["trace", "stop", "@mnt"]).contains("no recording"));
    let kept = fs::read(place.path("run.slt")).unwrap();
    let error = place.bad(&["trace", "start", "@mnt", "--out", "@run.slt"]);
    assert!(error.contains("exists; name another file") && error.contains("--overwrite"), "{error}");
    assert_eq!(fs::read(place.path("run.slt")).unwrap(), kept);
    fs::write(place.path("old.slt"), &kept).unwrap();
    place.good(&["trace", "start", "@mnt", "--out", "@old.slt", "--overwrite"]);
    let recorded = json(&place.good(&["trace", "stop", "@mnt", "--json"]));
    assert_eq!(recorded["entries"], 0);
    write(&place, "after", 3);
    let lines: Vec<Value> = place.good(&["trace", "cat", "--json", "@run.slt"]).lines().map(json).collect();
    assert_eq!(lines.len(), 50);
    assert!(lines.iter().all(|line| line["path"] == "a" && line["op"] == "write"), "{}", lines[0]);
    std::os::unix::fs::symlink(place.path("mnt/t.slt"), place.path("link.slt")).unwrap();
    for inside in ["@mnt/t.slt", "@mnt/../mnt/t.slt", "@link.slt"] {
        let error = place.bad(&["trace", "start", "@mnt", "--out", inside]);
        assert!(error.contains("outside the mount"), "{error}");
    }

    place.good(&["trace", "predict", "@mnt", "@run.slt"]);
    write(&place, "a", 50);
    let prediction = &place.status()["prediction"];
    assert_eq!((prediction["predicted"].as_u64(), prediction["known"].as_u64()), (Some(50), Some(50)), "{prediction}");
    assert!(place.good(&["status", "@mnt"]).contains("prediction from"));
    assert!(place.bad(&["trace", "predict", "@mnt", "@missing"]).contains("missing"));
    assert_eq!(place.status()["prediction"]["predicted"], 50, "what was there stays");
    let trace = fs::read(place.path("run.slt")).unwrap();
    let said = common::with_input(&place, &["trace", "predict", "@mnt", "-"], &trace);
    let said = String::from_utf8(common::good_output(said)).unwrap();
    assert!(
        said.starts_with("the mount ") && said.contains("standard-input-") && said.contains("all can match"),
        "{said}"
    );
    assert_eq!(place.status()["prediction"]["predicted"], 50);
    assert!(place.bad(&["trace", "start", "@mnt", "--out", "-"]).contains("must be a file"));
    let said = place.good(&["trace", "predict", "@mnt", "off"]);
    assert!(said.ends_with("predicts nothing\n"), "{said}");
    assert!(place.status().get("prediction").is_none());
    daemon.unmount();
}

#[test]
fn what_was_read_is_compared_with_its_checksums() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(place.path("source/data"), &content).unwrap();
    let daemon = place.daemon(&["--cache", "none", "--policy", "to-agg"]);
    place.good(&["trace", "start", "@mnt", "--out", "@run.slt", "--checksums"]);
    assert_eq!(fs::read(place.path("mnt/data")).unwrap(), content);
    fs::write(place.path("mnt/new"), &content[..10_000]).unwrap();
    place.good(&["trace", "stop", "@mnt"]);
    let lines: Vec<Value> = place.good(&["trace", "cat", "--json", "@run.slt"]).lines().map(json).collect();
    let mut read = 0;
    for line in &lines {
        let at = line["offset"].as_u64().unwrap() as usize;
        let len = line["crc32_bytes"].as_u64().unwrap_or_default() as usize;
        if len > 0 {
            assert_eq!(line["crc32"].as_u64(), Some(sluice_trace::checksum(&content[at..at + len]).into()), "{line}");
        }
        read += len * usize::from(line["op"] == "read");
    }
    assert!(read >= content.len(), "{read}");
    assert!(lines.iter().any(|line| line["op"] == "write" && line["crc32_bytes"] == 10_000), "{lines:?}");
    assert!(place.good(&["trace", "info", "@run.slt"]).contains("with checksums"));
    place.good(&["trace", "convert", "@run.slt", "@run.csv"]);
    let csv = common::lines(&place.path("run.csv"));
    assert!(csv[0].ends_with(",crc32,crc32_bytes") && csv[1].split(',').count() == 10, "{}", csv[1]);
    place.good(&["trace", "convert", "@run.slt", "@again.slt"]);
    assert_eq!(place.good(&["trace", "cat", "--json", "@again.slt"]).lines().map(json).collect::<Vec<_>>(), lines);

    // Only reads of a file that is there: nothing is written.
    fs::remove_file(place.path("mnt/new")).unwrap();
    let replay = ["trace", "replay", "@again.slt", "@mnt", "--check", "--json"];
    let report = json(&place.good(&replay));
    assert_eq!((report["wrong"].as_u64(), report["made"].as_u64()), (Some(0), Some(1)), "{report}");
    assert!(report["checked"].as_u64().unwrap() > 0, "{report}");
    let error = place.bad(&replay);
    assert!(error.contains("new is there and would be written"), "{error}");
    let file = fs::File::options().write(true).open(place.path("source/data")).unwrap();
    file.write_all_at(&[!content[1_234_567]], 1_234_567).unwrap();
    fs::remove_file(place.path("mnt/new")).unwrap();
    let output = run(&mut place.sluice(&replay));
    let report = json(&String::from_utf8_lossy(&output.stdout));
    assert_eq!((output.status.code(), report["wrong"].as_u64()), (Some(1), Some(1)), "{report}");
    let place_told = &report["differences"][0];
    let (offset, len) = (place_told["offset"].as_u64().unwrap(), place_told["len"].as_u64().unwrap());
    assert!(place_told["path"] == "data" && (offset..offset + len).contains(&1_234_567), "{place_told}");
    file.set_len(2_000_000).unwrap();
    file.write_all_at(&content[1_234_567..1_234_568], 1_234_567).unwrap();
    let output = run(&mut place.sluice(&["trace", "replay", "@again.slt", "@mnt", "--check", "--overwrite"]));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && said.contains("the file ends before"), "{said}");
    daemon.unmount();
}

#[test]
fn a_trace_that_asks_for_too_much_is_refused() {
    let place = Place::new();
    fs::write(place.path("log"), "fio version 2 iolog\nf write 4611686018427387904 10\n").unwrap();
    assert!(place.bad(&["trace", "import", "@log", "@source/../log"]).contains("is the log itself"));
    place.good(&["trace", "import", "@log", "@far.slt"]);
    assert!(place.bad(&["trace", "replay", "@far.slt", "@source"]).contains("GB more"));
    fs::write(place.path("log"), "fio version 2 iolog\nf write 0 4294967295\n").unwrap();
    place.good(&["trace", "import", "@log", "@long.slt"]);
    assert!(place.bad(&["trace", "replay", "@long.slt", "@source"]).contains("a request of 4294967295 bytes"));
    assert_eq!(fs::read_dir(place.path("source")).unwrap().count(), 0, "nothing was made");
}

#[test]
fn the_configuration_records_and_predicts_from_the_start() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let config =
        "[mount]\nsource = \"source\"\nmountpoint = \"mnt\"\ncache = \"none\"\n[trace]\nrecord = \"run.slt\"\n";
    std::os::unix::fs::symlink(place.path("mnt/run.slt"), place.path("link.slt")).unwrap();
    for inside in ["mnt/run.slt", "link.slt"] {
        fs::write(place.path("c.toml"), config.replace("run.slt", inside)).unwrap();
        let error = place.bad(&["mount", "--daemon", "--log", "@log", "--config", "@c.toml"]);
        assert!(error.contains("trace.record") && error.contains("outside the mount"), "{error}");
        assert!(!place.is_mounted());
    }
    fs::write(place.path("c.toml"), format!("{config}checksums = true\n")).unwrap();
    place.good(&["mount", "--daemon", "--log", "@log", "--config", "@c.toml"]);
    write(&place, "a", 5);
    common::unmount(&place);
    // The end of the mount ends the recording.
    let info = json(&place.good(&["trace", "info", "--json", "@run.slt"]));
    assert_eq!(
        (&info["end"]["complete"], &info["meta"]["checksums"]),
        (&Value::from(true), &Value::from(true)),
        "{info}"
    );
    let config = config.replace("[trace]\nrecord = \"run.slt\"", "[prediction]\npredict = [\"run.slt\"]");
    fs::write(place.path("c.toml"), &config).unwrap();
    place.good(&["mount", "--daemon", "--log", "@log", "--config", "@c.toml"]);
    assert_eq!(place.status()["prediction"]["predicted"], 5);
    common::unmount(&place);
    fs::write(place.path("c.toml"), config.replace("run.slt", "none.slt")).unwrap();
    let error = place.bad(&["mount", "--daemon", "--log", "@log", "--config", "@c.toml"]);
    assert!(error.contains("none.slt"), "{error}");
    assert!(!place.is_mounted());
}

#[test]
fn what_repeats_is_learned_and_kept_over_restarts() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let config = "[mount]\nsource = \"source\"\nmountpoint = \"mnt\"\ncache = \"none\"\n[scheduler]\npolicy = \"to-agg\"\n\
        [prediction]\npredict = \"learn\"\nstate = \"kept/learned.slt\"\n";
    fs::write(place.path("c.toml"), config).unwrap();
    place.good(&["mount", "--daemon", "--log", "@log", "--config", "@c.toml"]);
    assert_eq!(place.status()["prediction"]["predicted"], 0);
    write(&place, "step.001", 20);
    write(&place, "step.002", 20);
    // The end ends what is in use.
    common::unmount(&place);
    let learned = place.good(&["trace", "cat", "--json", "@kept/learned.slt"]);
    // A machine that stalls between two requests makes bursts of a run, which are learned besides.
    let whole: Vec<Value> = learned.lines().map(json).filter(|line| line["path"] == "step.#").collect();
    assert_eq!(whole.len(), 40, "{learned}");
    let predicted = || place.status()["prediction"]["predicted"].as_u64().unwrap();
    place.good(&["mount", "--daemon", "--log", "@log", "--config", "@c.toml"]);
    assert!(predicted() >= 20, "{}", place.status());
    write(&place, "step.003", 20);
    assert_eq!(place.status()["prediction"]["known"], 20);
    place.good(&["trace", "predict", "@mnt", "off"]);
    assert!(place.status().get("prediction").is_none());
    place.good(&["trace", "predict", "@mnt", "learn"]);
    assert!(predicted() >= 20, "{}", place.status());
    common::unmount(&place);
}
