//! A selector on a real mount, above an emulated disk.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{LIMIT, Place, fuse_works};
use serde_json::Value;

const FILE_BYTES: u64 = 64 << 20;
const READERS: u64 = 8;
const BLOCK: u64 = 64 << 10;

fn comes(what: &str, mut came: impl FnMut() -> bool) {
    let (until, (_never, pause)) = (Instant::now() + LIMIT, channel::<()>());
    while !came() {
        assert!(Instant::now() < until, "never: {what}");
        let _ = pause.recv_timeout(Duration::from_millis(100));
    }
}

fn selection(place: &Place) -> Value {
    place.status()["selection"].clone()
}

/// Tells readers to stop.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads files from beginning to end, again and again, until told to stop.
fn read_meanwhile(place: &Place, work: impl FnOnce()) {
    let (stop, read) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let file = File::open(place.path(&format!("mnt/f{reader}"))).unwrap();
            let (stop, read) = (&stop, &read);
            scope.spawn(move || {
                let mut buffer = vec![0; BLOCK as usize];
                for block in (0..FILE_BYTES / BLOCK).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    file.read_exact_at(&mut buffer, block * BLOCK).unwrap();
                    read.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Also where it panics: the readers would be waited for.
        let _stops = Stops(&stop);
        work();
    });
    assert!(read.load(Ordering::Relaxed) > 0);
}

fn files(place: &Place) {
    for reader in 0..READERS {
        // Sparse: the emulated disk asks for its time all the same.
        File::create(place.path(&format!("source/f{reader}"))).unwrap().set_len(FILE_BYTES).unwrap();
    }
}

fn mount(place: &Place, selector: &str, more: &[&str]) {
    let config = "[scheduler]\nlearned = \"kept/knowledge\"\ndecisions = \"kept/decisions\"\n\
                  [mount]\ncache = \"none\"\n[device]\nemulate = \"hdd-7200\"\n";
    fs::write(place.path("c.toml"), config).unwrap();
    let args = ["mount", "--daemon", "--log", "@log", "--config", "@c.toml", "--selector", selector];
    place.good(&[&args[..], more, &["@source", "@mnt"]].concat());
}

#[test]
fn a_mount_chooses_explains_remembers_and_gives_way() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    files(&place);
    // As if nothing was said.
    mount(&place, "auto", &[]);
    assert_eq!(place.status()["policy"]["name"], "hbrr", "what is likeliest for a disk");
    read_meanwhile(&place, || {
        comes("trials", || selection(&place)["trials"].as_u64() >= Some(2));
        comes("a workload", || selection(&place)["workload"].is_string());
        comes("a pattern", || selection(&place)["pattern"]["class"].is_string());
        let text = place.good(&["status", "--explain", "@mnt"]);
        for word in
            ["reads of", "% sure)", "(emulated)", "chosen", "expected", "configuration", "windows", "still be spent"]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
        let by_hand = place.good(&["policy", "@mnt", "sjf"]);
        assert!(by_hand.contains("set by hand"), "{by_hand}");
        let now = selection(&place);
        assert!(now["paused"] == true && place.status()["policy"]["name"] == "sjf", "{now}");
        assert!(place.good(&["policy", "@mnt", "adaptive"]).contains("was chosen"));
        assert_eq!(selection(&place)["paused"], false);
    });
    let shown = place.good(&["model", "show", "@mnt"]);
    assert!(shown.contains("on rotational devices") && shown.contains("reads of"), "{shown}");
    place.good(&["model", "export", "@mnt", "--out", "@one"]);
    common::unmount(&place);
    let timeline = place.good(&["explain", "@kept/decisions", "--plot", "@t.svg"]);
    for words in ["begins, emulated devices", "a new workload: reads", " instead of ", " than hbrr", "% sure)"] {
        assert!(timeline.contains(words), "{words}: {timeline}");
    }
    // Nothing is back that no other workload has replaced: there is one, which on a busy machine may look like several.
    assert!(timeline.matches("a new workload: ").count() > 1 || !timeline.contains("is back: "), "{timeline}");
    let log = fs::read(place.path("kept/decisions")).unwrap();
    let drawn = common::good_output(common::with_input(&place, &["explain", "-", "--plot", "-"], &log));
    assert!(drawn.starts_with(b"<svg") && drawn == fs::read(place.path("t.svg")).unwrap());
    let error = place.bad(&["model", "merge", "@one", "@kept/knowledge", "--out", "@both"]);
    assert!(error.contains("common past") && !place.path("both").exists(), "{error}");
    // Somebody else's is another one, in each digit.
    let mut other = sluice_select::load(&place.path("one")).unwrap();
    for known in other.contexts.values_mut() {
        known.windows += 1;
        known.arms.values_mut().for_each(|value| value.gain += 0.001);
    }
    let merged = common::with_input(&place, &["model", "merge", "@one", "-", "--out", "-"], other.to_text().as_bytes());
    fs::write(place.path("both"), common::good_output(merged)).unwrap();
    let both: Value = serde_json::from_str(&place.good(&["model", "show", "--json", "@both"])).unwrap();
    assert!(!both["contexts"].as_array().unwrap().is_empty(), "{both}");
    // It is known again.
    mount(&place, "bandit", &[]);
    read_meanwhile(&place, || comes("what was known", || selection(&place)["contexts"].as_u64() >= Some(1)));
    assert!(selection(&place)["loaded_s"].as_f64() >= both["loaded_s"].as_f64().map(|s| s / 2.0));
    common::unmount(&place);
    // What is damaged is set aside.
    let mut bytes = fs::read(place.path("kept/knowledge")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(place.path("kept/knowledge"), bytes).unwrap();
    assert!(place.bad(&["model", "show", "@kept/knowledge"]).contains("damaged"));
    mount(&place, "bandit", &[]);
    assert_eq!(selection(&place)["contexts"], 0);
    common::unmount(&place);
    let kept: Vec<String> = fs::read_dir(place.path("kept"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(kept.iter().any(|name| name.starts_with("knowledge.damaged-")), "{kept:?}");
}

#[test]
fn a_mount_does_what_a_model_says() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    files(&place);
    for (selector, more) in [("tree", &[][..]), ("tree+bandit", &["--model", "@own.json"])] {
        let shipped = include_str!("../../../models/selection.json");
        fs::write(place.path("own.json"), shipped).unwrap();
        mount(&place, selector, more);
        let named = if more.is_empty() { "shipped" } else { "own.json" };
        read_meanwhile(&place, || {
            comes("a workload", || selection(&place)["workload"].is_string());
            let now = selection(&place);
            assert!(now["model"].as_str().unwrap().ends_with(named) && now["selector"] == selector, "{now}");
            let gains = now["alternatives"].as_array().unwrap().iter().filter(|one| one["gain_percent"] != 0.0).count();
            assert!(gains >= 4, "the model says something of the others: {now}");
        });
        common::unmount(&place);
    }
}

#[test]
fn models_that_cannot_be_used_and_mounts_without_a_selector_say_so() {
    let place = Place::new();
    let shipped = include_str!("../../../models/selection.json");
    fs::write(place.path("bad.json"), shipped.replacen("noop", "nope", 1)).unwrap();
    fs::write(place.path("other.json"), include_str!("../../../models/detector.json")).unwrap();
    for (model, why) in [
        ("@bad.json", "is damaged"),
        ("@other.json", "for another purpose"),
        ("@none.json", "No such file"),
        ("@source", "Is a directory"),
    ] {
        let error = place.bad(&["mount", "--selector", "tree", "--model", model, "@source", "@mnt"]);
        assert!(error.contains(why) && error.contains("the model "), "{error}");
    }
    assert!(place.bad(&["model", "show", "@bad.json"]).contains("is damaged"));
    let shown = place.good(&["model", "show", "shipped"]);
    for word in ["a trained model", "for selectors", "hbrr anticipation=on", "concurrency_log2", "cases"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let shown: Value = serde_json::from_str(&place.good(&["model", "show", "--json", "@other.json"])).unwrap();
    assert_eq!(shown["kind"], "detector");
    let error = place.bad(&["mount", "--selector", "best", "@source", "@mnt"]);
    assert!(error.contains("tree+bandit"), "{error}");
    fs::write(place.path("log"), "hello\n").unwrap();
    assert!(place.bad(&["explain", "@log"]).contains("no log of a selector"));
    assert!(place.bad(&["model", "show", "@log"]).contains("does not begin like"));
    if fuse_works() {
        let daemon = place.daemon(&["--policy", "hbrr"]);
        assert!(place.bad(&["status", "--explain", "@mnt"]).contains("--selector bandit"));
        let error = place.bad(&["policy", "@mnt", "adaptive"]);
        assert!(error.contains("nobody chooses") && error.contains("unmount it, then mount it without"), "{error}");
        daemon.unmount();
    }
}
