use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;

use super::*;
use crate::Namespace;
use crate::null::NullStorage;

/// A disk whose commands take microseconds, so that tests need not wait.
fn fast_model() -> tempfile::NamedTempFile {
    let mut text = sluice_device::models()[0].text.to_owned();
    for (from, to) in [
        ("rotation_rpm = 7200", "rotation_rpm = 100000.0"),
        ("seek_track_to_track_ms = 1.0", "seek_track_to_track_ms = 0.0"),
        ("seek_average_ms = 8.5", "seek_average_ms = 0.05"),
        ("seek_full_stroke_ms = 18.0", "seek_full_stroke_ms = 0.1"),
    ] {
        assert!(text.contains(from));
        text = text.replace(from, to);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn emulated(layout: Layout) -> (Emulated, FileRef) {
    let model = fast_model();
    let null = Arc::new(NullStorage::new(layout, 1 << 40));
    let node = null.lookup(&null.root(), "1".as_ref()).unwrap();
    let file = null.open(&node, libc::O_RDWR).unwrap();
    let storage = Emulated::new(null, model.path().to_str().unwrap(), 1).unwrap();
    (storage, file)
}

#[test]
fn a_call_takes_at_least_the_models_time() {
    let (storage, file) = emulated(Layout::striped(2, 4096));
    assert!(storage.emulated() && storage.describe().contains("emulated"));
    assert!(storage.descriptor(&file, 0).is_none() && !storage.never_waits(&file));
    let start = Instant::now();
    for offset in [9 << 30, 0, 4096] {
        assert_eq!(storage.read(&file, 1, offset, &mut [IoSliceMut::new(&mut [0; 4096])]).unwrap(), 4096);
    }
    storage.write(&file, 1, 0, &[IoSlice::new(&[0; 512])]).unwrap();
    storage.sync(&file, true).unwrap();
    let elapsed = start.elapsed().as_nanos() as u64;
    let [idle, used] = storage.device_stats()[..] else { panic!("two targets") };
    assert_eq!((idle.requests, used.requests), (1, 5));
    assert_eq!(used.bytes, 3 * 4096 + 512);
    assert!(used.busy_ns <= elapsed && used.busy_ns > 4 * 110_000, "{used:?} in {elapsed} ns");
    assert!(used.seek_share() < 1.0 && used.mean_distance_bytes() > 0.0);
}

#[test]
fn a_device_serves_one_of_many_threads_at_a_time() {
    let (storage, file) = emulated(Layout::single());
    let (threads, each) = (64, 1);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (storage, file) = (&storage, &file);
            scope.spawn(move || {
                for i in 0..each {
                    storage.write(file, 0, (thread * each + i) << 30, &[IoSlice::new(&[0; 4096])]).unwrap();
                }
            });
        }
    });
    let elapsed = start.elapsed().as_nanos() as u64;
    let stats = storage.device_stats()[0];
    assert_eq!(stats.requests, threads * each);
    assert!(stats.busy_ns <= elapsed, "{stats:?} in {elapsed} ns");
}

#[test]
fn a_request_across_extents_is_one_command_if_they_are_neighbours() {
    let (storage, file) = emulated(Layout::single());
    let end = (64 << 20) - 2048;
    storage.write(&file, 0, end, &[IoSlice::new(&[0; 4096])]).unwrap();
    assert_eq!(storage.device_stats()[0].requests, 1);
    storage.write(&file, 0, 1 << 40, &[IoSlice::new(&[0; 1])]).unwrap();
    assert_eq!(storage.write(&file, 0, end + (64 << 20), &[IoSlice::new(&[0; 4096])]).unwrap(), 4096);
    assert_eq!(storage.device_stats()[0].requests, 4, "another extent was taken between the two");
    storage.write(&file, 0, 0, &[]).unwrap();
    assert_eq!(storage.device_stats()[0].requests, 4, "no bytes, no command");
}

/// Data whose reads panic.
struct Panics(Arc<dyn Data>);

impl Data for Panics {
    fn layout(&self) -> Layout {
        self.0.layout()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn read(&self, _: &FileRef, _: usize, _: u64, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        panic!("on purpose")
    }
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(file, target, offset, bufs)
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.0.sync(file, metadata)
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.0.size_at_least(file, end)
    }
}

#[test]
fn a_panic_of_what_is_below_does_not_stop_the_device() {
    let (model, null) = (fast_model(), Arc::new(NullStorage::new(Layout::single(), 1 << 40)));
    let file = null.open(&null.lookup(&null.root(), "1".as_ref()).unwrap(), libc::O_RDWR).unwrap();
    let storage = Emulated::new(Arc::new(Panics(null)), model.path().to_str().unwrap(), 1).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..3 {
            let read = || storage.read(&file, 0, 0, &mut [IoSliceMut::new(&mut [0; 512])]);
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err());
            assert_eq!(storage.write(&file, 0, 0, &[IoSlice::new(&[0; 512])]).unwrap(), 512);
        }
        tell.send(storage.device_stats()[0].requests).unwrap();
    });
    assert_eq!(told.recv_timeout(std::time::Duration::from_secs(120)), Ok(6));
}

/// Runs this test program's `inner_sync_without_threads` in a process whose threads would need stacks that no machine has.
#[test]
fn syncing_needs_no_thread() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "emulated::tests::inner_sync_without_threads", "--test-threads=1", "--nocapture"]);
    let output = child.env("RUST_MIN_STACK", (1u64 << 46).to_string()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn inner_sync_without_threads() {
    if std::env::var_os("RUST_MIN_STACK").is_none() {
        return;
    }
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the system refuses threads");
    let (storage, file) = emulated(Layout::striped(3, 4096));
    storage.sync(&file, true).unwrap();
    assert!(storage.device_stats().iter().all(|stats| stats.requests == 1), "every device has flushed");
}

#[test]
fn behind_the_end_of_a_file_no_device_is_asked() {
    let model = fast_model();
    let null = Arc::new(NullStorage::new(Layout::striped(2, 4096), 10_000));
    let file = null.open(&null.lookup(&null.root(), "1".as_ref()).unwrap(), libc::O_RDWR).unwrap();
    let storage = Emulated::new(null, model.path().to_str().unwrap(), 1).unwrap();
    let first = file.first_target() as usize;
    // Of 10,000 bytes the second target of the file has 4,096.
    for (target, size) in [(first, 5904), (1 - first, 4096)] {
        let read = |offset| storage.read(&file, target, offset, &mut [IoSliceMut::new(&mut [0; 8192])]).unwrap();
        assert_eq!((read(0), read(size), read(size + 1)), (size as usize, 0, 0));
        assert_eq!(storage.device_stats()[target].requests, 1);
    }
}
