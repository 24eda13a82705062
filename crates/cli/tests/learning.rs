//! Mounts that learn what their devices are from what these serve.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Place, eventually, fuse_works};
use serde_json::Value;

const FILE_BYTES: u64 = 512 << 20;
const BLOCK: u64 = 64 << 10;

/// Tells readers to stop.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads one file from beginning to end and another one here and there, by turns, until told to stop.
fn read_meanwhile(place: &Place, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let files = ["mnt/f0", "mnt/f1"].map(|name| File::open(place.path(name)).unwrap());
            let (mut buffer, mut state) = (vec![0; BLOCK as usize], 1_u64);
            for n in (0..FILE_BYTES / BLOCK).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let random = (state >> 33) % (FILE_BYTES / BLOCK);
                // Runs of each.
                let (file, block) = if n % 32 < 24 { (&files[0], n) } else { (&files[1], random) };
                file.read_exact_at(&mut buffer, block * BLOCK).unwrap();
            }
        });
        let _stops = Stops(&stop);
        work();
    });
}

fn device(place: &Place) -> Value {
    place.status()["device"].clone()
}

fn mount(place: &Place, more: &[&str]) {
    let config =
        "[scheduler]\nlearned = \"kept/knowledge\"\ndecisions = \"kept/decisions\"\n[mount]\ncache = \"none\"\n";
    fs::write(place.path("c.toml"), config).unwrap();
    place.good(&[&["mount", "--daemon", "--log", "@log", "--config", "@c.toml"], more, &["@source", "@mnt"]].concat());
}

#[test]
fn an_emulated_disk_is_recognised_remembered_and_forgotten_when_the_file_is_damaged() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    for name in ["source/f0", "source/f1"] {
        // Sparse: the emulated disk asks for its time all the same.
        File::create(place.path(name)).unwrap().set_len(FILE_BYTES).unwrap();
    }
    let blind = ["--emulate=hdd-7200", "--profile=auto", "--selector=bandit"];
    mount(&place, &blind);
    let status = place.status();
    assert_eq!((&status["device"]["kind"], &status["selection"]["device"]), (&"unknown".into(), &"unknown".into()));
    assert_eq!(status["device"]["reason"], "nothing was served yet");
    read_meanwhile(&place, || {
        eventually("it is a disk", || device(&place)["kind"] == "disk");
        eventually("what moving costs is known", || place.status()["device"]["positioning_ms"].as_f64() > Some(1.0));
    });
    let status = place.status();
    assert_eq!((&status["selection"]["device"], status["in_flight_max"].as_u64()), (&"disk".into(), Some(8)));
    assert!(status["device"]["confidence"].as_f64() >= Some(0.9), "{status}");
    let text = place.good(&["status", "@mnt"]);
    assert!(text.contains("learned    rotational devices"), "{text}");
    common::unmount(&place);
    // It is known from the beginning.
    mount(&place, &blind);
    let status = place.status();
    assert_eq!((&status["device"]["kind"], &status["selection"]["device"]), (&"disk".into(), &"disk".into()));
    common::unmount(&place);
    // Where nobody chooses, only if it is asked for.
    mount(&place, &["--emulate=hdd-7200", "--selector=fixed"]);
    assert!(device(&place).is_null());
    common::unmount(&place);
    mount(&place, &["--emulate=hdd-7200", "--profile=auto", "--selector=fixed"]);
    let status = place.status();
    assert!(status["anticipation"].is_object() && status["selection"].is_null(), "{status}");
    common::unmount(&place);
    let kept = place.path("kept/knowledge.device");
    let mut bytes = fs::read(&kept).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&kept, bytes).unwrap();
    mount(&place, &blind);
    assert_eq!(device(&place)["kind"], "unknown");
    let names: Vec<_> = fs::read_dir(place.path("kept")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().any(|name| name.to_string_lossy().starts_with("knowledge.device.damaged-")), "{names:?}");
    // Meanwhile somebody measures it.
    fs::write(&kept, "measured").unwrap();
    common::unmount(&place);
    assert_eq!(fs::read_to_string(&kept).unwrap(), "measured", "nothing was learned that would be better");
}

#[test]
fn what_memory_answers_says_nothing() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    for name in ["source/f0", "source/f1"] {
        File::create(place.path(name)).unwrap().set_len(FILE_BYTES).unwrap();
    }
    let mut learned = Value::Null;
    // On a busy machine memory is at times as slow as flash; not always, and each time nothing is known before.
    let says_nothing = (0..30).any(|_| {
        let _ = fs::remove_dir_all(place.path("kept"));
        // An algorithm that sees each request; by default it is learned where somebody chooses.
        mount(&place, &["--selector=bandit", "--policy=sjf"]);
        read_meanwhile(&place, || eventually("batches are seen", || device(&place)["batches"].as_u64() > Some(500)));
        learned = device(&place);
        common::unmount(&place);
        learned["kind"] != "flash"
    });
    assert!(says_nothing, "{learned}");
}
