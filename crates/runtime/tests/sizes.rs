//! How long a striped file is while several operations are under way: each test failed before.

mod common;

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Random, Results, create, storage};
use parking_lot::{Condvar, Mutex};
use sluice_core::{AppId, PolicyConfig};
use sluice_runtime::{Volume, VolumeConfig};
use sluice_storage::{Data, FileRef, Layout, Segment, Started, Storage, Transfer};

const STRIPE: usize = 4096;
const APP: AppId = AppId(0);

/// What a call of the storage is about: its first byte, if it writes, and which stripe of a row it is for.
type Call = (Option<u8>, u32);

/// Data of which some calls wait, and some writes fail.
struct Choosy {
    inner: Arc<dyn Data>,
    held: Mutex<Vec<Call>>,
    changed: Condvar,
    waiting: AtomicU32,
    failing: Vec<Call>,
}

impl Choosy {
    fn over(plain: &Storage, held: &[Call], failing: &[Call]) -> (Arc<Choosy>, Storage) {
        let (held, changed, waiting) = (Mutex::new(held.to_vec()), Condvar::new(), AtomicU32::new(0));
        let choosy = Choosy { inner: plain.data.clone(), held, changed, waiting, failing: failing.to_vec() };
        let choosy = Arc::new(choosy);
        (choosy.clone(), Storage { data: choosy, ..plain.clone() })
    }

    fn let_go(&self, call: Call) {
        self.held.lock().retain(|held| *held != call);
        self.changed.notify_all();
    }

    /// Waits until so many calls wait.
    fn expect_waiting(&self, count: u32) {
        while self.waiting.load(Ordering::SeqCst) < count {
            std::thread::yield_now();
        }
    }

    fn call(&self, file: &FileRef, target: usize, byte: Option<u8>) -> io::Result<()> {
        let call = (byte, self.layout().of(&**file).position(target as u32));
        let mut held = self.held.lock();
        if held.contains(&call) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            while held.contains(&call) {
                self.changed.wait(&mut held);
            }
        }
        if self.failing.contains(&call) { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
    }
}

impl Data for Choosy {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }
    fn describe(&self) -> String {
        "choosy".to_owned()
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.inner.sync(file, metadata)
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.inner.size_at_least(file, end)
    }
    fn trim(&self, file: &FileRef, before: u64, range: Range<u64>, written: u64) -> io::Result<()> {
        self.inner.trim(file, before, range, written)
    }
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.call(file, target, None)?;
        self.inner.read(file, target, offset, bufs)
    }
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.call(file, target, Some(bufs[0][0]))?;
        self.inner.write(file, target, offset, bufs)
    }
}

fn config() -> VolumeConfig {
    // Batches of one request: which calls there are is settled.
    let mut config = VolumeConfig { inline: false, ..VolumeConfig::new(PolicyConfig::parse("to").unwrap()) };
    config.engine.batch_requests_max = 1;
    config
}

fn start(storage: Storage) -> (Volume<Results>, Arc<Results>) {
    start_with(storage, config())
}

fn start_with(storage: Storage, config: VolumeConfig) -> (Volume<Results>, Arc<Results>) {
    let host = Arc::new(Results::default());
    (Volume::start(storage, host.clone(), config).unwrap(), host)
}

const fn at(stripe: usize) -> u64 {
    (stripe * STRIPE) as u64
}

/// The write comes first, leaves a hole, and has not begun when the read is submitted.
#[test]
fn a_read_behind_a_queued_write_sees_the_hole_that_it_leaves() {
    // And how many pieces of the read do not wait for the write.
    let cases =
        [(1, 1 << 20, 0), (1, STRIPE as u32, 3), (2, 1 << 20, 3), (3, 1 << 20, 3), (1, 1_000, 12), (3, 1_000, 15)];
    for (targets, request_bytes_max, others) in cases {
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), targets);
        let file = create(&plain, "f");
        let held = (Some(7), 2 % targets as u32);
        let (choosy, storage) = Choosy::over(&plain, &[held], &[]);
        let (volume, host) = start_with(storage, VolumeConfig { request_bytes_max, ..config() });
        volume.write_at(&file, APP, 0, &[1; 100]).unwrap();
        volume.write(&file, APP, at(2), &[7; STRIPE], 1);
        choosy.expect_waiting(1);
        volume.read(&file, APP, 0, 4 * STRIPE as u32, 2);
        while volume.snapshot().runtime.total.total().completed() < 1 + others {
            std::thread::yield_now();
        }
        choosy.let_go(held);
        let mut expected = vec![0; 3 * STRIPE];
        expected[..100].fill(1);
        expected[2 * STRIPE..].fill(7);
        let ended = host.take(2);
        let read = ended[1].1.as_ref().unwrap();
        assert!(read == &expected, "{targets} targets, pieces of {request_bytes_max}: {} bytes", read.len());
    }
}

/// A write that the read waits for fails, and one after the read makes the file longer before the read has ended.
#[test]
fn a_read_behind_a_write_that_fails_sees_no_hole() {
    let dir = tempfile::tempdir().unwrap();
    let plain = storage(dir.path(), 3);
    let file = create(&plain, "f");
    let (failing, last) = ((Some(7), 1), (None, 2));
    let (choosy, storage) = Choosy::over(&plain, &[failing, last], &[failing]);
    let (volume, host) = start(storage);
    volume.write_at(&file, APP, 0, &[1; 100]).unwrap();
    volume.write(&file, APP, at(1), &[7; STRIPE], 1);
    choosy.expect_waiting(1);
    volume.read(&file, APP, 0, 3 * STRIPE as u32, 2);
    choosy.expect_waiting(2);
    while volume.snapshot().runtime.total.total().completed() < 2 {
        std::thread::yield_now();
    }
    volume.write(&file, APP, at(1) + 3_000, &[8; STRIPE - 3_000], 3);
    choosy.let_go(failing);
    let writes = host.take(2);
    assert_eq!((&writes[0].1, writes[1].1.is_ok()), (&Err(libc::ENOSPC), true));
    choosy.let_go(last);
    assert_eq!(host.take(1)[0].1, Ok(vec![1; 100]), "what was there before the second write, which overlaps it");
}

/// The second write overlaps the first, which made the file longer after the second was submitted, and fails in part.
#[test]
fn a_write_that_fails_takes_nothing_from_one_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let plain = storage(dir.path(), 3);
    let file = create(&plain, "f");
    let (choosy, storage) = Choosy::over(&plain, &[(Some(1), 0), (Some(1), 1)], &[(Some(2), 1)]);
    let (volume, host) = start(storage);
    volume.write(&file, APP, 0, &[1; 2 * STRIPE], 1);
    choosy.expect_waiting(2);
    volume.write(&file, APP, at(1), &[2; 2 * STRIPE], 2);
    (0..2).for_each(|position| choosy.let_go((Some(1), position)));
    let ended = host.take(2);
    assert_eq!(ended[0].1, Ok(at(2).to_le_bytes().to_vec()));
    assert_eq!(ended[1].1, Err(libc::ENOSPC));
    let mut back = vec![9; 2 * STRIPE];
    assert_eq!(volume.read_at(&file, APP, 0, &mut back).unwrap(), back.len(), "what was written is there");
    assert!(back == [1; 2 * STRIPE]);
}

/// The second write overlaps a part of the first that has ended, and ends before the rest of it fails.
#[test]
fn a_write_that_fails_takes_nothing_from_one_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let plain = storage(dir.path(), 2);
    let file = create(&plain, "f");
    let held = (Some(1), 0);
    let (choosy, storage) = Choosy::over(&plain, &[held], &[held]);
    let (volume, host) = start(storage);
    volume.write(&file, APP, 0, &[1; 2 * STRIPE], 1);
    choosy.expect_waiting(1);
    assert_eq!(volume.write_at(&file, APP, at(1), &[2; STRIPE]).unwrap(), STRIPE);
    choosy.let_go(held);
    assert_eq!(host.take(1)[0].1, Err(libc::ENOSPC));
    let mut back = vec![9; STRIPE];
    assert_eq!(volume.read_at(&file, APP, at(1), &mut back).unwrap(), STRIPE, "what was written is there");
    assert!(back == [2; STRIPE]);
}

/// One thread submits reads and writes that overlap and leave holes, without waiting. What each read gives is as if they had
/// been carried out one after the other; only how far beyond everything that it overlaps the file goes is open.
#[test]
fn reads_are_as_if_all_had_been_carried_out_one_after_the_other() {
    let seed = std::env::var("SLUICE_SEED").map_or(1, |seed| seed.parse().unwrap());
    for round in 0..40 {
        let mut random = Random(seed * 1_000 + round);
        let targets = 1 + random.below(3) as usize;
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), targets);
        let file = create(&plain, "f");
        let host = Arc::new(Results::default());
        let policy = ["noop", "to", "to-agg", "hbrr"][random.below(4) as usize];
        let mut config = VolumeConfig::new(PolicyConfig::parse(policy).unwrap());
        (config.inline, config.threads_max) = (random.below(2) == 0, 1 + random.below(3) as u32);
        config.request_bytes_max = [STRIPE as u32, 1 << 20][random.below(2) as usize];
        let volume = Volume::start(plain, host.clone(), config).unwrap();
        let mut model: Vec<u8> = Vec::new();
        // Of each read: where it begins, how far it reaches at least, and the bytes from there on.
        let (mut reads, mut writes): (Vec<_>, Vec<Range<usize>>) = (Vec::new(), Vec::new());
        for n in 0..60_u64 {
            let from = random.below(8 * STRIPE as u64) as usize;
            let len = 1 + random.below(3 * STRIPE as u64) as usize;
            let range = from..from + len;
            if random.below(2) == 0 {
                let byte = 1 + (n % 250) as u8;
                model.resize(model.len().max(range.end), 0);
                model[range.clone()].fill(byte);
                volume.write(&file, APP, from as u64, &vec![byte; len], n);
                writes.push(range);
            } else {
                let overlap = |write: &&Range<usize>| write.start < range.end && range.start < write.end;
                let reaches = writes.iter().filter(overlap).map(|write| write.end.min(range.end)).max().unwrap_or(0);
                let expected = model[from.min(model.len())..range.end.min(model.len())].to_vec();
                volume.read(&file, APP, from as u64, len as u32, n);
                reads.push((n, reaches.saturating_sub(from), expected));
            }
        }
        let ended = host.take(60);
        for (n, least, expected) in reads {
            let got = ended[n as usize].1.as_ref().unwrap();
            assert!(got.len() >= least, "round {round}: read {n} gave {} of at least {least} bytes", got.len());
            let common = got.len().min(expected.len());
            let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            let right = got[..common] == expected[..common] && zero(&got[common..]) && zero(&expected[common..]);
            assert!(right, "round {round}: read {n}");
        }
    }
}

/// Ends transfers early, as the kernel's ring does: after 2 GiB, for example.
struct Early(Arc<dyn Data>);

impl Data for Early {
    fn layout(&self) -> Layout {
        self.0.layout()
    }
    fn describe(&self) -> String {
        "early".to_owned()
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.0.sync(file, metadata)
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.0.size_at_least(file, end)
    }
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read(file, target, offset, bufs)
    }
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(file, target, offset, bufs)
    }
    fn start(&self, transfer: Transfer) -> Started {
        let mut part = [transfer.segments[0].part(0, 10)];
        let moved = match transfer.direction {
            sluice_storage::Direction::Read => {
                let part = Segment::for_read(&mut part);
                self.0.read(&transfer.file, transfer.target, transfer.offset, part)
            }
            sluice_storage::Direction::Write => {
                self.0.write(&transfer.file, transfer.target, transfer.offset, Segment::for_write(&part))
            }
        };
        transfer.end(moved);
        Started::Accepted
    }
}

#[test]
fn a_transfer_that_ends_early_is_not_the_end_of_the_file() {
    for targets in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), targets);
        let file = create(&plain, "f");
        let data = Arc::new(Early(plain.data.clone()));
        let (volume, _) = start(Storage { data, ..plain });
        assert_eq!(volume.write_at(&file, APP, 0, &[1; 100]).unwrap(), 100);
        let mut back = [9; 120];
        assert_eq!(volume.read_at(&file, APP, 0, &mut back[..60]).unwrap(), 60);
        assert_eq!(volume.read_at(&file, APP, 0, &mut back).unwrap(), 100);
        assert!(back[..100] == [1; 100] && back[100..] == [9; 20]);
    }
}
