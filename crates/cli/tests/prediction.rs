//! Predictions on real mounts: learned from what repeats, and loaded from traces.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{LIMIT, Place, eventually, fuse_works, run, stderr};
use serde_json::Value;

const RECORD: u64 = 4096;
/// Processes of an application, and records of each in a file.
const PROCESSES: u64 = 4;
const RECORDS: u64 = 10;

fn config(place: &Place, prediction: &str) {
    let config = format!(
        "[mount]\nsource = \"source\"\nmountpoint = \"mnt\"\ncache = \"none\"\n[scheduler]\npolicy = \"to-agg\"\n\
         [prediction]\n{prediction}\n"
    );
    fs::write(place.path("c.toml"), config).unwrap();
}

fn mount(place: &Place) {
    place.good(&["mount", "--daemon", "--log", "@log", "--config", "@c.toml"]);
}

/// Several processes write a file together, in turn: process p has records p, p + 4, p + 8...
fn strided(place: &Place, name: &str, base: u64) {
    let file =
        File::options().create(true).truncate(false).write(true).open(place.path(&format!("mnt/{name}"))).unwrap();
    let together = Barrier::new(PROCESSES as usize);
    std::thread::scope(|scope| {
        for process in 0..PROCESSES {
            let (file, together) = (&file, &together);
            scope.spawn(move || {
                for record in 0..RECORDS {
                    together.wait();
                    let at = base + (record * PROCESSES + process) * RECORD;
                    file.write_all_at(&[1; RECORD as usize], at).unwrap();
                }
            });
        }
    });
}

fn learned(place: &Place) -> Value {
    place.status()["prediction"]["learned"].clone()
}

/// Asks ten times a second.
fn comes(what: &str, mut came: impl FnMut() -> bool) {
    let (until, (_never, pause)) = (Instant::now() + LIMIT, channel::<()>());
    while !came() {
        assert!(Instant::now() < until, "never: {what}");
        let _ = pause.recv_timeout(Duration::from_millis(100));
    }
}

fn predicted(place: &Place) -> Option<u64> {
    place.status()["prediction"]["predicted"].as_u64()
}

/// Requests to predicted files, and those of them that were predicted.
fn linked(place: &Place) -> (u64, u64) {
    let prediction = &place.status()["prediction"];
    (prediction["known"].as_u64().unwrap(), prediction["linked"].as_u64().unwrap())
}

/// Runs of a program, from number 3 on, until a third of one's requests came when they were predicted: on a machine that is
/// busy otherwise times differ more than usual.
fn is_predicted_soon(place: &Place, run: impl Fn(u64)) {
    for number in 3.. {
        let before = linked(place);
        run(number);
        let (known, linked) = (linked(place).0 - before.0, linked(place).1 - before.1);
        if linked > PROCESSES * RECORDS / 3 {
            break;
        }
        assert!(number < 12, "{linked} of {known}");
    }
}

#[test]
fn checkpoints_of_several_processes_are_learned_while_they_are_written() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    config(&place, "predict = \"learn\"\nstate = \"kept/learned.slt\"");
    mount(&place);
    let all = PROCESSES * RECORDS;
    strided(&place, "out.0001", 0);
    strided(&place, "out.0002", 0);
    // Another application, at the same time.
    strided(&place, "restart-7.dat", 0);
    let whole = |now: &Value| now["requests"].as_u64() >= Some(3 * all) && now["open_requests"] == 0;
    comes("three runs", || whole(&learned(&place)));
    let now = learned(&place);
    // A machine that stalls within a run makes bursts of it, which are series of their own.
    assert!(now["series"].as_u64() >= Some(2) && now["repeating"].as_u64() >= Some(1), "{now}");
    assert!((24 * 3 * all..100_000).contains(&now["bytes"].as_u64().unwrap()), "{now}");
    is_predicted_soon(&place, |number| {
        if number > 3 {
            comes("the run before", || learned(&place)["open_requests"] != 0);
            comes("the end of the run before", || learned(&place)["open_requests"] == 0);
        }
        let before = linked(&place).0;
        strided(&place, &format!("out.{number:04}"), 0);
        assert!(linked(&place).0 - before == all || predicted(&place) == Some(0), "{}", place.status());
    });
    let text = place.good(&["status", "@mnt"]);
    assert!(text.contains(" series, ") && text.contains(" of them with repetitions"), "{text}");
    common::unmount(&place);
}

#[test]
fn steps_appended_to_one_file_are_predicted_at_their_new_place() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    config(&place, "predict = \"learn\"\nstate = \"kept/learned.slt\"");
    mount(&place);
    let all = PROCESSES * RECORDS;
    let step = |number: u64| {
        strided(&place, "steps", number * all * RECORD);
        comes("the end of the step", || learned(&place)["runs"].as_u64() >= Some(number));
    };
    // The first one begins at 0, and could be all there is; the others are behind it. When the machine is busy, it may take
    // some more.
    (0..3).for_each(step);
    is_predicted_soon(&place, step);
    common::unmount(&place);
    assert!(place.good(&["trace", "info", "@kept/learned.slt"]).contains("steps//+"));
}

#[test]
fn what_is_learned_survives_the_death_of_the_process() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    config(&place, "predict = \"learn\"\nstate = \"kept/learned.slt\"");
    mount(&place);
    strided(&place, "out.1", 0);
    strided(&place, "out.2", 0);
    comes("saved", || place.path("kept/learned.slt").exists());
    let pid = place.status()["pid"].as_i64().unwrap() as i32;
    common::kill(rustix::process::Pid::from_raw(pid).unwrap());
    place.good(&["unmount", "@mnt"]);
    mount(&place);
    // The second run may have ended a little later than what was saved first.
    assert!(learned(&place)["runs"].as_u64() >= Some(1), "{}", learned(&place));
    assert_eq!(fs::read_dir(place.path("kept")).unwrap().count(), 1, "nothing half done is left");
    common::unmount(&place);
}

#[test]
fn what_cannot_be_read_is_set_aside_and_learned_anew() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    config(&place, "predict = \"learn\"\nstate = \"kept/learned.slt\"");
    place.make("kept");
    fs::write(place.path("kept/learned.slt"), "this was never a trace").unwrap();
    mount(&place);
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("cannot be read") && log.contains("learned.slt.damaged-"), "{log}");
    assert_eq!(learned(&place)["series"], 0);
    strided(&place, "out.1", 0);
    // The end of the mount ends the run.
    common::unmount(&place);
    let names: Vec<_> = fs::read_dir(place.path("kept")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    for name in names {
        let old = fs::read(&name).unwrap() == b"this was never a trace";
        assert_eq!(old, name.to_string_lossy().contains("damaged"), "{name:?}");
    }
    mount(&place);
    assert!(learned(&place)["runs"].as_u64() >= Some(1), "a single run is remembered as well");
    common::unmount(&place);
}

/// A trace of a program that writes blocks of 4 KiB to a file, one each millisecond.
fn log(place: &Place, trace: &str, file: &str, requests: u64) {
    let mut text = format!("fio version 3 iolog\n0 {file} add\n0 {file} open\n");
    (0..requests).for_each(|n| text += &format!("{}000 {file} write {} 4096\n", n, n * RECORD));
    fs::write(place.path("log.txt"), text + &format!("{requests}000 {file} close\n")).unwrap();
    place.good(&["trace", "import", "@log.txt", &format!("@{trace}")]);
}

#[test]
fn traces_of_several_programs_are_loaded_at_the_start_and_replaced_live() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    log(&place, "a1.slt", "a", 50);
    log(&place, "a2.slt", "a", 50);
    log(&place, "b.slt", "b", 30);
    config(&place, "predict = [\"a1.slt\", \"a2.slt\", \"b.slt\"]");
    mount(&place);
    assert_eq!(predicted(&place), Some(80), "what comes in two runs is one prediction");
    let file = File::create(place.path("mnt/b")).unwrap();
    (0..30).for_each(|n| file.write_all_at(&[1; RECORD as usize], n * RECORD).unwrap());
    assert_eq!(linked(&place).0, 30);
    place.good(&["trace", "predict", "@mnt", "@b.slt"]);
    assert_eq!(predicted(&place), Some(30));
    log(&place, "absolute.slt", "/scratch/b", 30);
    let said = run(&mut place.sluice(&["trace", "predict", "@mnt", "@absolute.slt", "@b.slt"]));
    assert!(
        said.status.success() && stderr(&said).contains("absolute.slt: 30 cannot match: their paths begin"),
        "{said:?}"
    );
    let counted = String::from_utf8_lossy(&said.stdout);
    assert!(counted.contains("absolute.slt: 30 requests; 0 can match"), "{counted}");
    assert!(counted.contains("b.slt: 30 requests; all can match"), "{counted}");
    assert!(!stderr(&said).contains("b.slt:"), "{said:?}");
    place.good(&["trace", "convert", "@absolute.slt", "@b.slt", "--below", "/scratch"]);
    let said = run(&mut place.sluice(&["trace", "predict", "@mnt", "@b.slt"]));
    assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
    // What is wrong leaves what was there.
    let whole = fs::read(place.path("a1.slt")).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 0x40;
    fs::write(place.path("damaged.slt"), damaged).unwrap();
    fs::write(place.path("text.slt"), "hello, this is no trace at all").unwrap();
    fs::write(place.path("empty.slt"), "").unwrap();
    for (name, says) in
        [("missing", "No such file"), ("damaged", "damaged"), ("text", "not a trace"), ("empty", "not a trace")]
    {
        let error = place.bad(&["trace", "predict", "@mnt", "@a1.slt", &format!("@{name}.slt")]);
        assert!(error.contains(says) && error.contains(&format!("{name}.slt")), "{name}: {error}");
        assert_eq!(predicted(&place), Some(30), "{name}");
    }
    let many: Vec<&str> = ["trace", "predict", "@mnt"].into_iter().chain(["@a1.slt"; 65]).collect();
    assert!(place.bad(&many).contains("64 runs"));
    // A trace that ends in the middle is as good as it is long.
    fs::write(place.path("torn.slt"), &whole[..whole.len() - 7]).unwrap();
    let said = run(&mut place.sluice(&["trace", "predict", "@mnt", "@torn.slt"]));
    assert!(said.status.code() == Some(3) && stderr(&said).contains("torn.slt: requests may be missing"), "{said:?}");
    assert_eq!(predicted(&place), Some(50));
    place.good(&["trace", "predict", "@mnt", "off"]);
    assert_eq!(predicted(&place), None);
    drop(file);
    common::unmount(&place);
    fs::write(place.path("c.toml"), fs::read_to_string(place.path("c.toml")).unwrap().replace("b.slt", "text.slt"))
        .unwrap();
    let error = place.bad(&["mount", "--daemon", "--log", "@log", "--config", "@c.toml"]);
    assert!(error.contains("text.slt") && !place.is_mounted(), "{error}");
}

#[test]
fn requests_go_on_while_predictions_are_loaded() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    log(&place, "a.slt", "a", 50_000);
    let daemon = place.daemon(&["--cache", "none", "--policy", "to-agg"]);
    let file = File::create(place.path("mnt/other")).unwrap();
    let (done, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let during = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                file.write_all_at(&[1; RECORD as usize], 0).unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        eventually("the load runs", || done.load(Ordering::Relaxed) > 10);
        let mut loads = Vec::new();
        for source in [&["@a.slt"; 8][..], &["learn"], &["@a.slt"; 3], &["off"]] {
            let before = done.load(Ordering::Relaxed);
            place.good(&[&["trace", "predict", "@mnt"], source].concat());
            loads.push(done.load(Ordering::Relaxed) - before);
        }
        end.store(true, Ordering::Relaxed);
        load.join().unwrap();
        loads
    });
    // The others may be over too soon.
    assert!(during[0] > 0 && during[2] > 0, "{during:?}");
    drop(file);
    daemon.unmount();
}
