//! What the kernel's page cache holds of a file is what the file holds: own writes, changes underneath, direct I/O.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::aio::Aio;
use common::wrap::{Hooks, wrap};
use rustix::mount::UnmountFlags;
use sluice_fuse::CacheMode;

const BLOCK: usize = 8192;

/// Threads that write a block of their own in a shared file and read it back, while somebody reads all of it and asks for
/// holes; `reopens`: and opens it again and again.
fn own_writes(m: &common::Mount, threads: usize, rounds: u64, reopens: bool) {
    let path = m.path("shared");
    fs::write(&path, vec![0u8; threads * BLOCK]).unwrap();
    let (stale, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    std::thread::scope(|scope| {
        let work: Vec<_> = (0..threads)
            .map(|thread| {
                let (file, stale) = (&file, &stale);
                scope.spawn(move || {
                    let mut back = [0u8; BLOCK];
                    let at = (thread * BLOCK) as u64;
                    for round in 1..=rounds {
                        let value = (round % 251) as u8;
                        file.write_all_at(&[value; BLOCK], at).unwrap();
                        file.read_exact_at(&mut back, at).unwrap();
                        stale.fetch_add(u64::from(back != [value; BLOCK]), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                let mut kept = File::open(&path).unwrap();
                let mut all = vec![0; threads * BLOCK];
                for round in (0..).take_while(|_| !over.load(Ordering::Relaxed)) {
                    if reopens {
                        kept = File::open(&path).unwrap();
                    }
                    kept.metadata().unwrap();
                    kept.read_exact_at(&mut all, 0).unwrap();
                    if round % 8 == 0 {
                        assert_eq!(rustix::fs::seek(&kept, rustix::fs::SeekFrom::Data(0)), Ok(0), "it has no holes");
                    }
                }
            });
        }
        work.into_iter().for_each(|thread| thread.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(stale.into_inner(), 0, "stale reads of {} own writes", threads as u64 * rounds);
}

each_mode! {
    fn threads_read_what_they_wrote(m) {
        own_writes(m, 32, 600, false);
    }

    fn threads_read_what_they_wrote_while_others_open_the_file(m) {
        own_writes(m, 32, 600, true);
    }
}

#[test]
fn threads_read_what_they_wrote_striped() {
    let Some(m) = common::Mount::striped(CacheMode::Auto, 3) else { return };
    own_writes(&m, 32, 600, true);
    m.finish();
}

#[test]
fn changes_underneath_are_seen_at_the_next_open() {
    for mode in [CacheMode::None, CacheMode::Auto] {
        let Some(m) = common::Mount::new(mode) else { return };
        fs::write(m.path("a"), vec![b'-'; BLOCK]).unwrap();
        let seen = || fs::read(m.path("a")).unwrap()[0];
        assert_eq!(seen(), b'-');
        // A reader that stays, so that the kernel keeps its pages.
        let reader = File::open(m.path("a")).unwrap();
        reader.read_exact_at(&mut [0; BLOCK], 0).unwrap();
        for i in 0..50 {
            m.settle(1);
            // In place: neither size nor name changes.
            let change = OpenOptions::new().write(true).open(m.source("a")).unwrap();
            change.write_all_at(&[i; BLOCK], 0).unwrap();
            assert_eq!(seen(), i, "{mode:?}");
        }
        // A handle that is open for writing, but idle, hides nothing.
        let writer = OpenOptions::new().read(true).write(true).open(m.path("a")).unwrap();
        writer.write_all_at(&[60; BLOCK], 0).unwrap();
        assert_eq!(seen(), 60);
        let until = Instant::now() + common::LIMIT;
        let mut i = 60;
        // Changes within the same tick of the clock as the write through the mount cannot be told from it.
        while {
            i += 1;
            OpenOptions::new().write(true).open(m.source("a")).unwrap().write_all_at(&[i], 0).unwrap();
            seen() != i
        } {
            assert!(Instant::now() < until, "{mode:?}");
        }
        drop((reader, writer));
        m.finish();
    }
}

/// What is written here afterwards does not make somebody else's change one of ours.
#[test]
fn a_change_underneath_is_seen_whatever_is_written_here_afterwards() {
    let Some(m) = common::Mount::new(CacheMode::Auto) else { return };
    fs::write(m.path("a"), [0; 2 * BLOCK]).unwrap();
    let below = OpenOptions::new().write(true).open(m.source("a")).unwrap();
    let seen = || fs::read(m.path("a")).unwrap()[BLOCK];
    let changed = || fs::metadata(m.source("a")).unwrap().modified().unwrap();
    let now = std::time::SystemTime::now;
    for i in 1..11 {
        let looked = i % 2 == 0;
        let writer = OpenOptions::new().read(true).write(true).open(m.path("a")).unwrap();
        assert_eq!(seen(), i - 1);
        writer.write_all_at(&[i; BLOCK], 0).unwrap();
        // Changes within a few ticks of the clock of a write here, which ends when it is answered, may be taken for ours.
        let ours = now();
        while changed() < ours + Duration::from_millis(50) {
            below.write_all_at(&[i], BLOCK as u64).unwrap();
        }
        if looked {
            assert_eq!(seen(), i, "by somebody who opens the file anew");
        }
        writer.write_all_at(&[i], 0).unwrap();
        assert_eq!(seen(), i, "after a write to another place; looked at before: {looked}");
        drop(writer);
        m.settle(0);
        assert_eq!(seen(), i);
        m.settle(0);
    }
    m.finish();
}

/// As `rsync -t` and `cp -p` do it.
#[test]
fn a_change_underneath_that_sets_its_time_back_is_seen() {
    let Some(m) = common::Mount::new(CacheMode::Auto) else { return };
    let writer = File::create_new(m.path("a")).unwrap();
    let past = fs::metadata(m.source("a")).unwrap().modified().unwrap();
    let until = Instant::now() + common::LIMIT;
    let mut i = 0u8;
    // Changes within the same tick of the clock as the write through the mount cannot be told from it.
    while {
        i = i % 255 + 1;
        writer.write_all_at(&[0; BLOCK], 0).unwrap();
        let change = OpenOptions::new().write(true).open(m.source("a")).unwrap();
        change.write_all_at(&[i; BLOCK], 0).unwrap();
        change.set_modified(past).unwrap();
        fs::read(m.path("a")).unwrap() != [i; BLOCK]
    } {
        assert!(Instant::now() < until, "never seen");
    }
    drop(writer);
    m.finish();
}

#[test]
fn own_changes_of_attributes_and_names_leave_the_cache_alone() {
    let Some(m) = common::Mount::new(CacheMode::Auto) else { return };
    fs::write(m.path("a"), [1; BLOCK]).unwrap();
    let reads = || m.handle().volume().snapshot().runtime.total.total().ops[0].completed;
    m.settle(0);
    assert_eq!(fs::read(m.path("a")).unwrap(), [1; BLOCK]);
    let before = reads();
    for round in 0..20u32 {
        let change = |at: u32, name: &str| match at {
            0 => fs::set_permissions(m.path(name), fs::Permissions::from_mode(0o600 + round % 2)),
            1 => fs::rename(m.path("a"), m.path("b")),
            2 => fs::hard_link(m.path("b"), m.path(&format!("link{round}"))),
            _ => fs::rename(m.path("b"), m.path("a")),
        };
        for (at, (before, after)) in (0..).zip([("a", "a"), ("a", "b"), ("b", "b"), ("b", "a")]) {
            change(at, before).unwrap();
            assert_eq!(fs::read(m.path(after)).unwrap(), [1; BLOCK]);
            m.settle(0);
        }
    }
    assert_eq!(reads(), before, "all from the kernel's cache");
    m.finish();
}

each_mode! {
    /// The kernel writes back what is in its cache through any open file, also one for direct I/O: nobody may wait for each
    /// other then. (If they do, only `umount -f` ends it.)
    fn a_file_with_unwritten_pages_can_be_opened_for_direct_io(m) {
        let (path, mountpoint) = (m.path("a"), m.path(""));
        let (done, wait) = std::sync::mpsc::channel();
        let work = std::thread::spawn(move || {
            for round in 1..100u8 {
                let cached = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
                cached.write_all_at(&[round; 2 * BLOCK], 0).unwrap();
                let options = &mut OpenOptions::new();
                let direct = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
                let mut back = Aligned([0; BLOCK]);
                direct.read_exact_at(&mut back.0, 0).unwrap();
                assert_eq!(back.0, [round; BLOCK]);
                cached.write_all_at(&[round + 1; 1000], 0).unwrap();
                direct.write_all_at(&Aligned([round + 2; BLOCK]).0, 0).unwrap();
                cached.read_exact_at(&mut back.0, 0).unwrap();
                assert_eq!(back.0, [round + 2; BLOCK]);
                // Past the cache a file ends where it ends for everybody.
                let end = 1_000_000 * u64::from(round);
                cached.write_all_at(b"x", end).unwrap();
                direct.read_exact_at(&mut back.0, end / 8192 * 8192 - 8192).unwrap();
                assert_eq!(back.0, [0; BLOCK]);
                cached.set_len(0).unwrap();
            }
            let _ = done.send(());
        });
        if wait.recv_timeout(common::LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            for how in [UnmountFlags::FORCE, UnmountFlags::DETACH] {
                let _ = rustix::mount::unmount(&mountpoint, how);
            }
            panic!("hangs");
        }
        work.join().unwrap();
    }
}

/// A page-aligned buffer, as direct I/O wants it.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

each_mode! {
    /// After xfstests generic/451: buffered readers beside a writer with O_DIRECT.
    fn what_was_written_directly_is_read_through_the_cache(m) {
        let path = m.path("a");
        fs::write(&path, vec![0u8; 64 * BLOCK]).unwrap();
        let over = AtomicBool::new(false);
        let stale = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let reader = File::open(&path).unwrap();
                    let mut block = [0; BLOCK];
                    while !over.load(Ordering::Relaxed) {
                        for at in 0..8 {
                            reader.read_exact_at(&mut block, at * BLOCK as u64).unwrap();
                        }
                    }
                });
            }
            let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
            let reader = File::open(&path).unwrap();
            let (aio, mut back) = (Aio::new(), [0; BLOCK]);
            for round in 1..=800u64 {
                let data = Aligned([round as u8; BLOCK]);
                let at = (round % 8) * BLOCK as u64;
                if round % 4 == 0 {
                    direct.write_all_at(&data.0, at).unwrap();
                } else {
                    aio.write(&direct, &data.0, at);
                }
                reader.read_exact_at(&mut back, at).unwrap();
                stale.fetch_add(u64::from(back != data.0), Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(stale.into_inner(), 0, "stale reads of 800 direct writes");
        // A file that was open for direct I/O only: what is cached later is the newest, too.
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        for round in 1..50u8 {
            direct.write_all_at(&Aligned([round; BLOCK]).0, 0).unwrap();
            assert_eq!(fs::read(&path).unwrap()[..BLOCK], [round; BLOCK]);
        }
    }
}

const PAGES: usize = 16;
const LEN: usize = PAGES * 4096;
/// In the 10th page.
const BAD: u64 = 9 * 4096 + 100;

/// What is read of an open file, call after call, and the error that ends it.
fn read_on(file: &File) -> (Vec<u8>, Option<i32>) {
    let (mut all, mut part) = (Vec::new(), vec![0; LEN]);
    loop {
        match file.read_at(&mut part, all.len() as u64) {
            Ok(0) => return (all, None),
            Ok(read) => all.extend_from_slice(&part[..read]),
            Err(error) => return (all, error.raw_os_error()),
        }
    }
}

/// The kernel takes a short read for the end of the file: an error must stay one, and cost no more than the page it is on.
#[test]
fn an_error_in_the_middle_of_a_read_is_not_the_end_of_the_file() {
    for mode in [CacheMode::None, CacheMode::Auto, CacheMode::Writeback] {
        let hooks = Arc::new(Hooks::default());
        let Some(m) = common::Mount::wrapped(mode, |_| (), |storage| wrap(storage, &hooks)) else { return };
        let data: Vec<u8> = (0..LEN).map(|i| (i / 7) as u8).collect();
        fs::write(m.source("f"), &data).unwrap();
        hooks.bad.store(BAD, Ordering::SeqCst);
        // By a call: all up to the error. By the cache: all pages up to the one with the error.
        let pages = BAD as usize / 4096 * 4096;
        let read = read_on(&File::open(m.path("f")).unwrap());
        let before = if mode == CacheMode::None { BAD as usize } else { pages };
        assert_eq!((read.0.len(), read.1), (before, Some(libc::EIO)), "{mode:?}");
        assert!(read.0 == data[..before], "{mode:?}");
        // Pages of memory are aligned.
        let mut memory = vec![0u8; LEN + 4096];
        let start = memory.as_ptr().align_offset(4096);
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(m.path("f")).unwrap();
        let read = direct.read_at(&mut memory[start..start + LEN], 0).unwrap();
        assert_eq!(read, BAD as usize, "{mode:?}, O_DIRECT");
        assert!(memory[start..start + read] == data[..read]);
        drop(direct);
        assert_eq!(fs::metadata(m.path("f")).unwrap().len(), LEN as u64);
        hooks.bad.store(0, Ordering::SeqCst);
        assert!(fs::read(m.path("f")).unwrap() == data, "{mode:?}: once it can be read again it is all there");
        m.finish();
    }
}

/// The kernel does not look how much of what it writes back was written: a full device must be told.
#[test]
fn what_is_written_back_in_part_is_not_taken_for_written() {
    for (mode, mapped) in [(CacheMode::Writeback, false), (CacheMode::Writeback, true), (CacheMode::Auto, true)] {
        let hooks = Arc::new(Hooks::default());
        let Some(m) = common::Mount::wrapped(mode, |_| (), |storage| wrap(storage, &hooks)) else { return };
        fs::write(m.path("f"), vec![1; LEN]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
        file.sync_all().unwrap();
        hooks.bad.store(BAD, Ordering::SeqCst);
        let synced = if mapped {
            // SAFETY: nothing else uses the mapping.
            unsafe {
                let (all, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
                let memory = libc::mmap(std::ptr::null_mut(), LEN, all, shared, file.as_raw_fd(), 0);
                assert_ne!(memory, libc::MAP_FAILED);
                std::ptr::write_bytes(memory.cast::<u8>(), 2, LEN);
                let synced = libc::msync(memory, LEN, libc::MS_SYNC);
                let error = std::io::Error::last_os_error();
                libc::munmap(memory, LEN);
                if synced == 0 { Ok(()) } else { Err(error) }
            }
        } else {
            file.write_all_at(&[2; LEN], 0).unwrap();
            file.sync_all()
        };
        let error = synced.expect_err("it is not there").raw_os_error();
        assert_eq!(error, Some(libc::ENOSPC), "{mode:?}, mapped: {mapped}");
        hooks.bad.store(0, Ordering::SeqCst);
        drop(file);
        m.finish();
    }
}
