//! Recording volumes: every request once, with its path, whatever way it takes.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Results, create, storage};
use parking_lot::Mutex;
use sluice_core::{AppId, Op, PolicyConfig, Request, Time, policy::table};
use sluice_runtime::{Observer, RecordError, RecordOptions, Volume, VolumeConfig};
use sluice_storage::{Creator, FileRef, NodeRef, Storage};
use sluice_trace::{Columns, End, Entry, Meta, Reader, checksum};

fn volume(storage: &Storage, policy: &str) -> Volume<Results> {
    let config = VolumeConfig::new(PolicyConfig::parse(policy).unwrap());
    Volume::start(storage.clone(), Arc::new(Results::default()), config).unwrap()
}

/// The entries with their paths, and what the trace says about itself.
fn read(path: &Path) -> (Vec<(Entry, String)>, Meta, End) {
    let (mut reader, mut block, mut all) = (Reader::open(path).unwrap(), Columns::default(), Vec::new());
    while reader.next_block(&mut block).unwrap() {
        all.extend(block.iter().map(|entry| (entry, reader.paths().text(entry.file).into_owned())));
    }
    (all, reader.meta().clone(), reader.end())
}

fn write(volume: &Volume<Results>, file: &FileRef, app: u32, offset: u64, len: usize) {
    assert_eq!(volume.write_at(file, AppId(app), offset, &vec![1; len]).unwrap(), len);
}

#[test]
fn each_request_is_recorded_once_with_its_path_under_every_algorithm() {
    for targets in [1, 4] {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path(), targets);
        let (a, b) = (create(&storage, "a"), create(&storage, "b"));
        for info in table() {
            let volume = volume(&storage, info.name);
            write(&volume, &a, 1, 0, 4096);
            let out = dir.path().join("trace");
            volume.start_recording(&out, "/mnt/x").unwrap();
            assert!(matches!(volume.start_recording(&out, ""), Err(RecordError::Running(path)) if path == out));
            for n in 0..50 {
                write(&volume, &a, 1, n * 4096, 4096);
                volume.read_at(&b, AppId(2), n * 8192, &mut [0; 8192]).unwrap();
            }
            assert_eq!(volume.recording().unwrap().path, out);
            let recorded = volume.stop_recording().unwrap();
            write(&volume, &a, 1, 0, 4096);
            assert!(matches!(volume.stop_recording(), Err(RecordError::None)) && volume.recording().is_none());

            let (all, meta, end) = read(&out);
            assert_eq!((recorded.entries, recorded.dropped, end), (all.len() as u64, 0, End::Complete { dropped: 0 }));
            assert_eq!((meta.targets, meta.source.as_str()), (targets as u32, "/mnt/x"));
            assert_eq!((meta.stripe, meta.policy.as_str()), (if targets == 1 { 0 } else { 4096 }, info.name));
            let logical: Vec<_> = all
                .iter()
                .map(|(entry, path)| {
                    (path.as_str(), entry.op, meta.logical_offset(entry.target, entry.offset), entry.app)
                })
                .collect();
            let mut expected = Vec::new();
            for n in 0..50 {
                expected.push(("a", Op::Write, n * 4096, 1));
                expected.push(("b", Op::Read, n * 8192, 2));
                if targets > 1 {
                    // Two stripes, which are two pieces.
                    expected.push(("b", Op::Read, n * 8192 + 4096, 2));
                }
            }
            assert_eq!(logical, expected, "{} on {targets}", info.name);
            assert!(all.windows(2).all(|pair| pair[0].0.time <= pair[1].0.time));
        }
    }
}

#[test]
fn checksums_are_of_what_was_written_and_of_what_was_read() {
    let data: Vec<u8> = (0..40_000_u32).map(|n| (n * 7 + n / 256) as u8).collect();
    for targets in [1, 4] {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path(), targets);
        let file = create(&storage, "f");
        for info in table() {
            let volume = volume(&storage, info.name);
            let out = dir.path().join("trace");
            volume.start_recording_with(&out, "", RecordOptions { checksums: true }).unwrap();
            for n in 0..4 {
                assert_eq!(
                    volume.write_at(&file, AppId(0), n * 10_000, &data[n as usize * 10_000..][..10_000]).unwrap(),
                    10_000
                );
            }
            // The last one ends behind the file.
            for n in 0..5 {
                let mut read = vec![0; 9_000];
                let expected = 9_000.min(40_000 - n as usize * 9_000);
                assert_eq!(volume.read_at(&file, AppId(1), n * 9_000, &mut read).unwrap(), expected);
            }
            volume.stop_recording().unwrap();

            let (mut reader, mut block) = (Reader::open(&out).unwrap(), Columns::default());
            let (mut written, mut read, mut pieces) = (0, 0, 0);
            while reader.next_block(&mut block).unwrap() {
                assert!(block.time.is_sorted());
                for (at, entry) in block.iter().enumerate() {
                    pieces += 1;
                    let start = reader.meta().logical_offset(entry.target, entry.offset) as usize;
                    let Some(sum) = block.sum_of(at) else {
                        assert!(start >= 40_000, "{} on {targets}: {entry:?}", info.name);
                        continue;
                    };
                    let end = start + sum.bytes as usize;
                    assert_eq!(sum.crc, checksum(&data[start..end]), "{} on {targets}: {entry:?}", info.name);
                    match entry.op {
                        Op::Write => written += sum.bytes,
                        Op::Read => read += sum.bytes,
                    }
                }
            }
            assert_eq!((written, read), (40_000, 40_000), "{} on {targets}", info.name);
            assert!(pieces >= 9 && reader.meta().checksums);
        }
    }
}

/// Keeps what it hears.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Request>>>);

impl Observer for Heard {
    fn seen(&mut self, _: Time, request: &Request) {
        self.0.lock().push(*request);
    }
    fn pause(&mut self, _: Time) {}
    fn end(&mut self, _: Time) {}
}

#[test]
fn files_that_are_used_alike_are_recorded_alike_wherever_they_begin() {
    const TARGETS: u32 = 3;
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), TARGETS as usize);
    let files: Vec<FileRef> = (0..6).map(|file| create(&storage, &file.to_string())).collect();
    let firsts: Vec<u32> = files.iter().map(|file| file.first_target()).collect();
    assert!((0..TARGETS).all(|target| firsts.contains(&target)), "{firsts:?}");
    let use_them = |volume: &Volume<Results>| {
        for file in &files {
            write(volume, file, 1, 1000, 30_000);
            volume.read_at(file, AppId(1), 5000, &mut [0; 10_000]).unwrap();
        }
    };
    for checksums in [false, true] {
        let volume = volume(&storage, "to-agg");
        let out = dir.path().join("trace");
        volume.start_recording_with(&out, "", RecordOptions { checksums }).unwrap();
        use_them(&volume);
        volume.stop_recording().unwrap();
        let (all, meta, _) = read(&out);
        let of = |file: usize| {
            let mine = all.iter().filter(move |(_, path)| *path == file.to_string());
            mine.map(|(entry, _)| (entry.target, entry.op, entry.offset, entry.len)).collect::<Vec<_>>()
        };
        assert_eq!(meta.logical_offset(of(0)[0].0, of(0)[0].2), 1000);
        assert_eq!(of(0).iter().map(|entry| u64::from(entry.3)).sum::<u64>(), 40_000);
        assert!((1..files.len()).all(|file| of(file) == of(0)));
    }
    // Whoever predicts knows the engines' requests again.
    let (volume, heard) = (volume(&storage, "to-agg"), Heard::default());
    volume.observe(Box::new(heard.clone())).unwrap();
    use_them(&volume);
    volume.end_observation().unwrap();
    let heard = heard.0.lock();
    assert!(heard.len() >= 6 * 11);
    assert!(heard.iter().all(|request| volume.names().position(request.file) == request.target.0));
    // And the bytes are where the files are.
    let held: u64 = (0..TARGETS).map(|target| dir.path().join(format!("t{target}/0")).metadata().unwrap().len()).sum();
    let first = dir.path().join(format!("t{}/0", firsts[0])).metadata().unwrap().len();
    assert!(first == 4096 * 3 && held <= 31_000, "{first} {held}");
}

#[test]
fn a_recording_is_switched_on_and_off_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 1);
    let file = create(&storage, "f");
    let volume = volume(&storage, VolumeConfig::default().policy.name());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (volume, file, stop) = (&volume, &file, &stop);
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    write(volume, file, thread as u32, (n * 2 + thread) * 512, 512);
                    n += 1;
                }
            });
        }
        for turn in 0..5 {
            let out = dir.path().join(format!("trace-{turn}"));
            volume.start_recording(&out, "").unwrap();
            let before = volume.snapshot().runtime.total.total().submitted();
            while volume.snapshot().runtime.total.total().submitted() < before + 2_000 {
                std::thread::yield_now();
            }
            let recorded = volume.stop_recording().unwrap();
            let (all, _, end) = read(&out);
            assert_eq!(end, End::Complete { dropped: recorded.dropped });
            assert!(all.len() as u64 + recorded.dropped >= 1_900, "{recorded:?}");
            for app in 0..2 {
                let mine: Vec<u64> = all.iter().filter(|(e, _)| e.app == app).map(|(e, _)| e.offset).collect();
                assert!(
                    recorded.dropped > 0 || mine.windows(2).all(|pair| pair[1] == pair[0] + 1024),
                    "none is missing"
                );
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn files_that_were_renamed_or_made_anew_have_their_new_paths() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 1);
    let volume = volume(&storage, "to-agg");
    let root = storage.namespace.root();
    let file = create(&storage, "old");
    let out = dir.path().join("trace");
    volume.start_recording(&out, "").unwrap();
    write(&volume, &file, 0, 0, 10);
    let (first, recording) = (read_paths(&volume, &file), volume.recording().unwrap());
    assert_eq!((first.as_deref(), recording.failed), (Some("old"), None));
    storage.namespace.rename(&root, "old".as_ref(), &root, "new".as_ref(), 0).unwrap();
    let again =
        storage.namespace.open(&storage.namespace.lookup(&root, "new".as_ref()).unwrap(), libc::O_RDWR).unwrap();
    volume.opened(&again);
    assert_eq!(read_paths(&volume, &again).as_deref(), Some("new"));
    volume.stop_recording().unwrap();
    assert_eq!(read_paths(&volume, &again), None, "nobody wants to know any more");
}

fn read_paths(volume: &Volume<Results>, file: &FileRef) -> Option<String> {
    let path = volume.names().get(sluice_core::FileId(file.id()))?;
    Some(String::from_utf8_lossy(&path).into_owned())
}

#[test]
fn what_cannot_be_written_is_told_and_hurts_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 1);
    let file = create(&storage, "f");
    let volume = volume(&storage, "to-agg");
    let error = volume.start_recording(&dir.path().join("no/where"), "").unwrap_err();
    assert!(error.to_string().contains("no/where"), "{error}");
    // A full device.
    volume.start_recording(Path::new("/dev/full"), "").unwrap_err();
    write(&volume, &file, 0, 0, 10);
    volume.start_recording(&dir.path().join("fine"), "").unwrap();
    // The end of the volume ends the recording properly.
    write(&volume, &file, 0, 0, 10);
    drop(volume);
    let (all, _, end) = read(&dir.path().join("fine"));
    assert_eq!((all.len(), end), (1, End::Complete { dropped: 0 }));
}

#[test]
fn two_recorders_do_not_write_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 1);
    let file = create(&storage, "f");
    let (first, second) = (volume(&storage, "to-agg"), volume(&storage, "sjf"));
    let out = dir.path().join("trace");
    first.start_recording(&out, "first").unwrap();
    write(&first, &file, 1, 0, 10);
    let error = second.start_recording(&out, "second").unwrap_err();
    assert!(error.to_string().contains("somebody is writing a trace there"), "{error}");
    first.stop_recording().unwrap();
    let (all, meta, end) = read(&out);
    assert_eq!((all.len(), meta.source.as_str(), end), (1, "first", End::Complete { dropped: 0 }));
    // Then it is free, and what was there is replaced.
    second.start_recording(&out, "second").unwrap();
    second.stop_recording().unwrap();
    let (all, meta, end) = read(&out);
    assert_eq!((all.len(), meta.source.as_str(), end), (0, "second", End::Complete { dropped: 0 }));
}

#[test]
fn a_path_that_no_trace_can_hold_is_not_the_end_of_a_recording() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 1);
    let (plain, creator) = (create(&storage, "f"), Creator::process());
    let name = "d".repeat(250);
    let down = |at: NodeRef, _| storage.namespace.mkdir(&at, name.as_ref(), 0o700, &creator).unwrap();
    let bottom = (0..270).fold(storage.namespace.root(), down);
    let (_, deep) = storage.namespace.create(&bottom, "f".as_ref(), 0o600, libc::O_RDWR, &creator).unwrap();
    let volume = volume(&storage, "to-agg");
    let out = dir.path().join("trace");
    volume.start_recording(&out, "").unwrap();
    for file in [&plain, &deep, &plain] {
        write(&volume, file, 1, 0, 10);
    }
    volume.stop_recording().unwrap();
    let (all, _, end) = read(&out);
    let paths: Vec<&str> = all.iter().map(|(_, path)| path.as_str()).collect();
    assert_eq!((paths, end), (vec!["f", &*format!("file {}", deep.id()), "f"], End::Complete { dropped: 0 }));
}

/// Tells a channel what it hears.
struct Teller(std::sync::mpsc::Sender<Option<(u64, u64)>>);

impl Observer for Teller {
    fn seen(&mut self, at: Time, request: &Request) {
        self.0.send(Some((at.0, request.offset))).unwrap();
    }
    fn pause(&mut self, _: Time) {}
    fn end(&mut self, _: Time) {
        self.0.send(None).unwrap();
    }
}

#[test]
fn an_observer_hears_of_everything_also_beside_a_recording() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 1);
    let file = create(&storage, "f");
    let volume = volume(&storage, "to-agg");
    let (sender, heard) = std::sync::mpsc::channel();
    volume.observe(Box::new(Teller(sender.clone()))).unwrap();
    assert!(matches!(volume.observe(Box::new(Teller(sender))), Err(RecordError::Running(_))));
    let out = dir.path().join("trace");
    volume.start_recording(&out, "").unwrap();
    for n in 0..20 {
        write(&volume, &file, 0, n * 512, 512);
    }
    volume.stop_recording().unwrap();
    write(&volume, &file, 0, 20 * 512, 512);
    volume.end_observation().unwrap();
    assert!(matches!(volume.end_observation(), Err(RecordError::None)));
    let all: Vec<_> = heard.iter().collect();
    assert_eq!((all.len(), all[21]), (22, None));
    let offsets: Vec<u64> = all.iter().flatten().map(|(_, offset)| offset / 512).collect();
    assert_eq!(offsets, (0..=20).collect::<Vec<_>>());
    assert_eq!(read(&out).0.len(), 20);
}
