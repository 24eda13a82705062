//! Operations that wait for a device keep nobody else waiting, and what closing reports is passed on.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::aio::Aio;
use common::wrap::{Gate, Hooks, wrap};
use common::{Mount, bounded};
use rustix::fs::FallocateFlags;
use sluice_fuse::CacheMode;
use sluice_runtime::VolumeConfig;
use sluice_storage::posix::{PosixOptions, PosixStorage};

/// More waiting operations than there are threads that serve the kernel.
const THREADS: usize = 2;
const WAITING: usize = 3 * THREADS;

/// So that a failed test does not leave processes that cannot be killed.
struct OpenAtEnd(Arc<Gate>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

fn others_go_on(name: &'static str, wait: impl Fn(&File, &std::path::Path) + Send + Sync + Clone + 'static) {
    let gate = Arc::new(Gate::default());
    let hooks = Arc::new(Hooks { gate: Some(gate.clone()), ..Hooks::default() });
    let options = |options: &mut sluice_fuse::MountOptions| {
        options.threads = THREADS;
        options.sync_threads = WAITING;
    };
    let Some(m) = Mount::wrapped(CacheMode::Auto, options, |storage| wrap(storage, &hooks)) else { return };
    let files: Vec<_> = (0..WAITING + 2).map(|i| m.path(&format!("f{i}"))).collect();
    files.iter().for_each(|path| fs::write(path, b"something").unwrap());
    let waiting: Vec<_> = files
        .iter()
        .map(|path| {
            let (path, wait) = (path.clone(), wait.clone());
            std::thread::spawn(move || wait(&OpenOptions::new().read(true).write(true).open(&path).unwrap(), &path))
        })
        .collect();
    let _opened = OpenAtEnd(gate.clone());
    gate.wait_for(WAITING);
    let (path, many) = (m.path(""), m.path("many"));
    bounded(move || {
        fs::create_dir(&many).unwrap();
        for i in 0..50 {
            let file = many.join(format!("{i}"));
            fs::write(&file, b"x").unwrap();
            assert_eq!(fs::read(&file).unwrap(), b"x");
            assert_eq!(fs::metadata(&file).unwrap().len(), 1);
            assert_eq!(fs::metadata(many.join("none")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
        }
        assert!(fs::read_dir(&path).unwrap().count() > WAITING);
    });
    assert!(waiting.iter().any(|thread| !thread.is_finished()), "{name} waited all the time");
    gate.open();
    bounded(move || waiting.into_iter().for_each(|thread| thread.join().unwrap()));
    m.finish();
}

#[test]
fn others_go_on_while_files_are_synced() {
    others_go_on("fsync", |file, _| file.sync_all().unwrap());
}

#[test]
fn others_go_on_while_directories_are_synced() {
    others_go_on("fsyncdir", |_, path| {
        // The kernel syncs one directory at a time for one user only.
        let dir = path.with_extension("d");
        fs::create_dir(&dir).unwrap();
        File::open(dir).unwrap().sync_all().unwrap();
    });
}

#[test]
fn others_go_on_while_files_are_truncated() {
    others_go_on("truncation", |file, _| file.set_len(3).unwrap());
}

#[test]
fn others_go_on_while_space_is_allocated() {
    others_go_on("fallocate", |file, _| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 4096).unwrap());
}

/// Each is carried out, also those that were put off; what was synced is in the directory.
#[test]
fn programs_that_sync_at_the_same_time_are_all_answered() {
    const SYNCS: u64 = 40;
    let options = |options: &mut sluice_fuse::MountOptions| {
        options.group_commit = Some(std::time::Duration::from_millis(8));
    };
    let Some(m) = Mount::with(CacheMode::Auto, options) else { return };
    let paths: Vec<_> = (0..WAITING).map(|i| (m.path(&format!("f{i}")), m.source(&format!("f{i}")))).collect();
    let work = |(path, source): (std::path::PathBuf, std::path::PathBuf)| {
        let mut file = File::create(&path).unwrap();
        for length in 1..=SYNCS {
            file.write_all(b"x").unwrap();
            file.sync_all().unwrap();
            assert_eq!(fs::metadata(&source).unwrap().len(), length);
        }
    };
    let threads: Vec<_> = paths.into_iter().map(|paths| std::thread::spawn(move || work(paths))).collect();
    bounded(move || threads.into_iter().for_each(|thread| thread.join().unwrap()));
    let told = m.handle().group_commits();
    assert_eq!((told.positioning_ns, told.counts.syncs), (8_000_000, WAITING as u64 * SYNCS));
    m.finish();
}

/// Also of those that go together: each program is told of its own sync, time after time.
#[test]
fn a_sync_that_fails_is_told_to_its_own_program_and_to_no_other() {
    const SYNCS: usize = 40;
    for mode in [CacheMode::None, CacheMode::Auto, CacheMode::Writeback] {
        let hooks = Arc::new(Hooks::default());
        let options = |options: &mut sluice_fuse::MountOptions| {
            options.group_commit = Some(std::time::Duration::from_millis(8));
        };
        let Some(m) = Mount::wrapped(mode, options, |storage| wrap(storage, &hooks)) else { return };
        let begin = Arc::new(std::sync::Barrier::new(WAITING));
        let work = |at: usize| {
            let mut file = File::create(m.path(&format!("f{at}"))).unwrap();
            let fails = at % 2 == 1;
            if fails {
                hooks.unsyncable.lock().insert(fs::metadata(m.source(&format!("f{at}"))).unwrap().ino());
            }
            let begin = begin.clone();
            std::thread::spawn(move || {
                begin.wait();
                for _ in 0..SYNCS {
                    file.write_all(b"x").unwrap();
                    let told = file.sync_data().map_err(|error| error.raw_os_error());
                    assert_eq!(told, if fails { Err(Some(libc::EIO)) } else { Ok(()) });
                }
            })
        };
        let threads: Vec<_> = (0..WAITING).map(work).collect();
        bounded(move || threads.into_iter().for_each(|thread| thread.join().unwrap()));
        assert_eq!(m.handle().group_commits().counts.syncs, (WAITING * SYNCS) as u64);
        m.finish();
    }
}

/// A page of memory, as direct I/O wants it.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// `cut` takes away what an asynchronous write, which is under way, is about to write.
fn what_was_cut_off_stays_so(cut: impl Fn(&File) + Send + 'static) -> Option<Vec<u8>> {
    const AT: u64 = 32 << 10;
    let gate = Arc::new(Gate::default());
    let hooks = Arc::new(Hooks { writes: Some(gate.clone()), ..Hooks::default() });
    let m = Mount::wrapped(CacheMode::None, |_| (), |storage| wrap(storage, &hooks))?;
    let direct =
        OpenOptions::new().read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT).open(m.path("f"));
    let file = Arc::new(direct.unwrap());
    file.set_len(2 * AT).unwrap();
    let (aio, page) = (Aio::new(), Page([7; 4096]));
    // SAFETY: the page lives until the end below.
    unsafe { aio.begin_write(&file, &page.0, AT) };
    let _opened = OpenAtEnd(gate.clone());
    gate.wait_for(1);
    let cutting = std::thread::spawn({
        let file = file.clone();
        move || cut(&file)
    });
    // Time enough to do it too early.
    let others = m.path("others");
    bounded(move || (0..300).for_each(|_| fs::create_dir(&others).and_then(|()| fs::remove_dir(&others)).unwrap()));
    assert!(!cutting.is_finished(), "done while the write is under way");
    gate.open();
    assert_eq!(aio.end(), 4096);
    bounded(move || cutting.join().unwrap());
    drop(file);
    let left = fs::read(m.path("f")).unwrap();
    m.finish();
    Some(left)
}

#[test]
fn what_an_asynchronous_write_writes_does_not_come_back_after_truncation() {
    let Some(left) = what_was_cut_off_stays_so(|file| file.set_len(0).unwrap()) else { return };
    assert!(left.is_empty(), "{} bytes came back", left.len());
}

#[test]
fn what_an_asynchronous_write_writes_does_not_come_back_after_punching() {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punch = move |file: &File| rustix::fs::fallocate(file, flags, 0, 64 << 10).unwrap();
    let Some(left) = what_was_cut_off_stays_so(punch) else { return };
    assert_eq!(left, vec![0; 64 << 10]);
}

/// Writes with flags for this write alone; gives the bytes written, or minus the error number.
fn write_with(file: &File, data: &[u8], flags: libc::c_int) -> isize {
    let part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: the list is of one part, which is only read.
    match unsafe { libc::pwritev2(file.as_raw_fd(), &raw const part, 1, 0, flags) } {
        -1 => -(std::io::Error::last_os_error().raw_os_error().unwrap() as isize),
        bytes => bytes,
    }
}

#[test]
fn a_write_that_is_to_be_durable_is_synced_before_it_is_answered() {
    for mode in [CacheMode::None, CacheMode::Auto, CacheMode::Writeback] {
        for flags in [libc::RWF_DSYNC, libc::RWF_SYNC] {
            let gate = Arc::new(Gate::default());
            let hooks = Arc::new(Hooks { gate: Some(gate.clone()), ..Hooks::default() });
            let Some(m) = Mount::wrapped(mode, |_| (), |storage| wrap(storage, &hooks)) else { return };
            let _opened = OpenAtEnd(gate.clone());
            let file = File::create(m.path("f")).unwrap();
            assert_eq!(write_with(&file, b"not synced", 0), 10);
            let writing = std::thread::spawn(move || {
                let synced = write_with(&file, b"synced", flags);
                (synced, file)
            });
            gate.wait_for(1);
            assert!(!writing.is_finished(), "{mode:?}");
            gate.open();
            let (synced, file) = bounded(move || writing.join().unwrap());
            assert_eq!(synced, 6);
            drop(file);
            m.finish();
        }
    }
}

/// Closes, and returns the error number or 0.
fn close(file: File) -> i32 {
    // SAFETY: the descriptor is nobody else's any more.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap(),
    }
}

#[test]
fn closing_reports_what_the_storage_reports() {
    for mode in [CacheMode::None, CacheMode::Auto, CacheMode::Writeback] {
        let hooks = Arc::new(Hooks::default());
        let Some(below) = Mount::wrapped(mode, |_| (), |storage| wrap(storage, &hooks)) else { return };
        // A second mount over the first: its storage is a file system that reports errors when a file is closed.
        let above = tempfile::tempdir().unwrap();
        let storage = PosixStorage::open(below.path(""), PosixOptions::default()).unwrap();
        let options = sluice_fuse::MountOptions { cache: mode, ..Default::default() };
        let handle = sluice_fuse::mount(storage.into(), above.path(), options, VolumeConfig::default()).unwrap();
        for path in [below.path("a"), above.path().join("b")] {
            hooks.at_close.store(libc::EDQUOT, Ordering::SeqCst);
            let mut file = File::create(&path).unwrap();
            file.write_all(b"too much").unwrap();
            assert_eq!(close(file), libc::EDQUOT, "{mode:?} {}", path.display());
            // A copy of the descriptor closes, too, and the file stays open.
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let copy = file.try_clone().unwrap();
            assert!(copy.as_raw_fd() != file.as_raw_fd());
            assert_eq!(close(copy), libc::EDQUOT);
            hooks.at_close.store(0, Ordering::SeqCst);
            assert_eq!(close(file), 0);
            assert_eq!(close(File::open(&path).unwrap()), 0);
        }
        common::unmount(&handle);
        bounded(move || handle.wait()).unwrap();
        below.finish();
    }
}
