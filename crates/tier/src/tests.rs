//! What histories do not try: damage, wrong devices, what is served from where, and many threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::crash::{Fault, Random, Recorder, Tape};
use crate::format::{Entry, Kind, LOG_START, SECTOR};
use crate::maintain::Work;
use crate::map::{Extent, State};
use crate::{Config, Device, FileDevice, Geometry, Health, OpenError, Rule, Runner, Tier, check, disk_name_of};

const DISK: usize = 256 << 10;
const SEGMENT: u32 = 16 << 10;
const GEOMETRY: Geometry =
    Geometry { queue_bytes: 8 * SEGMENT as u64, segment_bytes: SEGMENT, area_bytes: 4 * 16384, slot_bytes: 16384 };

struct Pair {
    disk: Arc<Recorder>,
    ssd: Arc<Recorder>,
}

impl Pair {
    fn new() -> Pair {
        let tape = Tape::default();
        let disk = Arc::new(Recorder::new(0, &tape, vec![0; DISK]));
        let ssd = Arc::new(Recorder::new(1, &tape, vec![0; 256 << 10]));
        Tier::create(&*disk, "the disk", &*ssd, GEOMETRY).unwrap();
        Pair { disk, ssd }
    }

    fn try_open(&self, config: &Config) -> Result<Tier, OpenError> {
        Tier::open(self.disk.clone(), self.ssd.clone(), config.clone())
    }

    fn open(&self) -> Tier {
        self.try_open(&always()).unwrap()
    }

    fn flip(&self, at: u64) {
        let mut byte = [0];
        self.ssd.read(&mut byte, at).unwrap();
        self.ssd.write(&[byte[0] ^ 4], at).unwrap();
    }
}

fn always() -> Config {
    Config { rule: Rule::Always, bypass_bytes: u64::MAX, idle: std::time::Duration::ZERO, ..Config::default() }
}

fn read(tier: &Tier, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0xaa; len];
    tier.read(&mut bytes, offset).map(|()| bytes)
}

#[test]
fn a_failing_ssd_is_emptied_and_left_alone() {
    for fault in [Fault { writes: 1, ..Fault::default() }, Fault { flushes: 1, ..Fault::default() }] {
        let pair = Pair::new();
        let tier = pair.open();
        tier.write(&[1; 3000], 100, false).unwrap();
        // Of the superblock that says so, too: nothing may be undone, so nothing that it holds may change.
        pair.ssd.fail(fault);
        let first = tier.write(&[2; 500], 200, true);
        assert!(first.is_err(), "nobody knows what becomes of the log: {fault:?}");
        assert_eq!(read(&tier, 0, 100).unwrap(), [0; 100]);
        assert_eq!(tier.status().health, Health::Failing);
        tier.write(&[3; 500], 100_000, false).expect("what the log does not hold goes to the disk");
        assert!(tier.flush().is_err(), "a start would bring back what the log has durable, and not what it has not");
        assert_eq!(pair.disk.bytes()[100_000..100_500], [3; 500]);
        assert!(tier.write(&[4; 500], 2000, true).unwrap_err().to_string().contains("older data"));
        // It recovers: then it can be said.
        pair.ssd.fail(Fault::default());
        assert_eq!(tier.work(true).unwrap(), Work::Done);
        assert_eq!(tier.status().health, Health::PassThrough);
        tier.write(&[5; 500], 2000, true).unwrap();
        let disk = pair.disk.bytes();
        assert_eq!((disk[100], disk[2000], disk[2600]), (1, 5, 1));
        drop(tier);
        let tier = pair.open();
        assert_eq!(tier.status().recovery.entries, 0);
        assert_eq!(read(&tier, 2000, 500).unwrap(), [5; 500]);
    }
}

#[test]
fn an_ssd_that_cannot_say_that_it_failed_is_marked_elsewhere() {
    let (pair, dir) = (Pair::new(), tempfile::tempdir().unwrap());
    let config = Config { failure_mark: Some(dir.path().join("failed")), ..always() };
    let tier = pair.try_open(&config).unwrap();
    tier.write(&[1; 4096], 0, true).unwrap();
    pair.ssd.fail(Fault { writes: 1, ..Fault::default() });
    tier.write(&[2; 4096], 0, true).expect("goes to the disk");
    assert_eq!(tier.status().health, Health::PassThrough);
    assert_eq!(pair.disk.bytes()[..4096], [2; 4096]);
    drop(tier);
    pair.ssd.fail(Fault::default());
    assert!(matches!(pair.try_open(&config), Err(OpenError::Failed(_))), "it would bring back what is older");
    Tier::create(&*pair.disk, "the disk", &*pair.ssd, GEOMETRY).unwrap();
    assert!(pair.try_open(&config).is_ok(), "another one");
}

#[test]
fn a_failing_disk_leaves_everything_in_the_log() {
    let pair = Pair::new();
    let tier = pair.open();
    tier.write(&[1; 5000], 7, false).unwrap();
    for fault in [Fault { writes: 1, ..Fault::default() }, Fault { flushes: 1, ..Fault::default() }] {
        pair.disk.fail(fault);
        assert!(tier.write_all_back().is_err());
        assert_eq!(tier.status().dirty_bytes, 5000);
        assert_eq!(read(&tier, 7, 5000).unwrap(), [1; 5000]);
        tier.flush().expect("the log alone is asked");
    }
    assert!(tier.status().counts.disk_errors > 0 && tier.status().last_error.contains("recorded disk"));
    pair.disk.fail(Fault::default());
    tier.write_all_back().unwrap();
    assert_eq!((tier.status().dirty_bytes, tier.status().segments_used), (0, 0));
    assert_eq!(pair.disk.bytes()[7..5007], [1; 5000]);
}

/// The first bytes of data in the log.
const DATA: u64 = LOG_START + SECTOR as u64;

#[test]
fn damaged_data_is_never_taken_for_what_the_disk_has() {
    let pair = Pair::new();
    let tier = pair.open();
    for at in 0..8 {
        tier.write(&[at as u8 + 1; 4096], at * 4096, true).unwrap();
    }
    pair.flip(DATA + 5);
    assert!(read(&tier, 0, 4096).is_err() && read(&tier, 4096, 4096).is_ok());
    tier.end().unwrap();
    assert_eq!(tier.status().lost_bytes, 4096);
    assert_eq!(pair.disk.bytes()[4096..8192], [2; 4096], "all else was written back");
    assert!(tier.detach().unwrap_err().to_string().contains("4096 bytes"));
    drop(tier);
    let found = check(&*pair.ssd).unwrap();
    assert_eq!((found.log.lost_bytes, found.detached), (4096, false));
    let tier = pair.open();
    assert!(tier.write_all_back().is_ok() && read(&tier, 0, 4096).is_err(), "also after a restart");
    // The log goes round several times: it is still known.
    for at in 0..200 {
        tier.write(&[9; 4096], 65536 + at % 16 * 4096, false).unwrap();
        while tier.work(true).unwrap() == Work::Done {}
    }
    assert!(read(&tier, 0, 1).is_err());
    drop(tier);
    let tier = pair.open();
    assert!(read(&tier, 0, 1).is_err() && tier.status().lost_bytes == 4096);
    tier.write(&[7; 4096], 0, true).unwrap();
    assert_eq!(read(&tier, 0, 4096).unwrap(), [7; 4096]);
    tier.detach().unwrap();
    assert_eq!(pair.disk.bytes()[..4096], [7; 4096]);
    drop(tier);
    assert!(matches!(pair.try_open(&always()), Err(OpenError::NoTier(_))));
}

#[test]
fn a_damaged_record_that_was_durable_stops_the_start() {
    let pair = Pair::new();
    let tier = pair.open();
    for at in 0..3 {
        tier.write(&[at as u8 + 1; 1000], at * 4096, true).unwrap();
    }
    drop(tier);
    // The header of the second: one sector of header, two of data.
    pair.flip(LOG_START + 3 * SECTOR as u64 + 60);
    let error = pair.try_open(&always()).err().unwrap();
    assert!(matches!(error, OpenError::Damaged { first: 2, last: 2, .. }), "{error}");
    assert_eq!(check(&*pair.ssd).unwrap().log.missing, Some((2, 2)));
    let tier = pair.try_open(&Config { salvage: true, ..always() }).unwrap();
    assert_eq!((read(&tier, 0, 1).unwrap()[0], read(&tier, 4096, 1).unwrap()[0]), (1, 0));
    assert_eq!(read(&tier, 8192, 1000).unwrap(), [3; 1000], "what comes after it");
}

#[test]
fn salvage_goes_on_behind_a_whole_segment_and_writes_over_nothing() {
    let pair = Pair::new();
    let tier = pair.open();
    // Three in each segment.
    for at in 0..9 {
        tier.write(&[at as u8 + 1; 4096], at * 4096, true).unwrap();
    }
    drop(tier);
    pair.ssd.write(&[0; SEGMENT as usize], LOG_START + u64::from(SEGMENT)).unwrap();
    assert!(matches!(pair.try_open(&always()), Err(OpenError::Damaged { first: 4, .. })));
    let tier = pair.try_open(&Config { salvage: true, ..always() }).unwrap();
    let is_left = |tier: &Tier| {
        for at in (0..3).chain(6..9) {
            assert_eq!(read(tier, at * 4096, 4096).unwrap(), [at as u8 + 1; 4096]);
        }
    };
    is_left(&tier);
    for at in 0..100 {
        tier.write(&[99; 4096], (16 + at % 8) * 4096, false).unwrap();
        is_left(&tier);
    }
    tier.write_all_back().unwrap();
    drop(tier);
    is_left(&pair.open());
}

/// An entry of small pieces is lost: each is said in the log, in segments that are too small for the largest record.
#[test]
fn what_is_lost_in_small_pieces_is_said_in_small_segments_too() {
    for segment_bytes in [4096, 8192, 8704, 9216] {
        let pair = Pair::new();
        let queue_bytes = 12 * u64::from(segment_bytes);
        Tier::create(&*pair.disk, "the disk", &*pair.ssd, Geometry { segment_bytes, queue_bytes, ..GEOMETRY }).unwrap();
        let tier = pair.open();
        tier.write(&[1; 100], 0, true).unwrap();
        let entry = Entry { offset: 0, len: 1, at: 0, crc: 0, kind: Kind::Lost };
        let extent = Extent { len: 1, segment: 0, entry, skip: 0, version: 0, state: State::Lost };
        let lost: Vec<(u64, Extent)> = (0..300).map(|at| (1000 + 2 * at, extent)).collect();
        tier.append_lost(&mut tier.appender.lock(), &lost).unwrap();
        tier.close_segment().unwrap();
        tier.flush().unwrap();
        drop(tier);
        let tier = pair.try_open(&always()).unwrap_or_else(|error| panic!("segments of {segment_bytes}: {error}"));
        assert_eq!(tier.status().lost_bytes, 300, "segments of {segment_bytes}");
        assert_eq!(read(&tier, 0, 100).unwrap(), [1; 100]);
        assert!(read(&tier, 1598, 1).is_err() && read(&tier, 1599, 1).is_ok());
    }
}

#[test]
fn one_of_two_superblocks_is_enough() {
    for at in crate::format::SUPERBLOCKS {
        let pair = Pair::new();
        let tier = pair.open();
        tier.write(&[1; 100], 0, true).unwrap();
        drop(tier);
        pair.flip(at + 100);
        assert_eq!(read(&pair.open(), 0, 100).unwrap(), [1; 100]);
    }
    let pair = Pair::new();
    crate::format::SUPERBLOCKS.iter().for_each(|at| pair.flip(at + 9));
    assert!(matches!(pair.try_open(&always()), Err(OpenError::NoTier(_))));
}

/// The older superblock must not bring back what was given up: the disk has newer data by then.
#[test]
fn a_damaged_superblock_brings_nothing_back_that_was_given_up() {
    for at in crate::format::SUPERBLOCKS {
        let pair = Pair::new();
        let tier = pair.try_open(&Config { bypass_bytes: 2048, ..always() }).unwrap();
        tier.write(&[1; 1024], 0, true).unwrap();
        tier.write_all_back().unwrap();
        tier.write(&[2; 4096], 0, true).unwrap();
        assert_eq!(tier.status().dirty_bytes, 0, "it is on the disk");
        drop(tier);
        pair.flip(at + 100);
        assert!(read(&pair.open(), 0, 4096).unwrap() == [2; 4096], "older data is back: superblock at {at}");
    }
}

#[test]
fn another_disk_and_sizes_that_cannot_be_are_refused() {
    let pair = Pair::new();
    let named = Config { disk_name: Some("another".to_owned()), ..always() };
    assert!(matches!(pair.try_open(&named), Err(OpenError::OtherDisk { .. })));
    let larger = Arc::new(Recorder::new(0, &Tape::default(), vec![0; DISK + 4096]));
    assert!(matches!(Tier::open(larger, pair.ssd.clone(), always()), Err(OpenError::OtherDisk { .. })));
    let tier = pair.open();
    for (offset, len) in [(DISK as u64, 1), (u64::MAX, 2), (1, DISK)] {
        assert_eq!(tier.read(&mut vec![0; len], offset).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
    for wrong in [
        Geometry { segment_bytes: 4000, ..GEOMETRY },
        Geometry { segment_bytes: 0, ..GEOMETRY },
        Geometry { queue_bytes: 3 * SEGMENT as u64, ..GEOMETRY },
        Geometry { slot_bytes: 1000, ..GEOMETRY },
        Geometry { area_bytes: 1 << 40, ..GEOMETRY },
    ] {
        let made = Tier::create(&*pair.disk, "the disk", &*pair.ssd, wrong);
        assert!(matches!(made, Err(OpenError::Geometry(_))), "{wrong:?}");
    }
}

#[test]
fn devices_are_locked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let device = FileDevice::create(&path, 8192).unwrap();
    let error = FileDevice::open(&path, true).err().unwrap();
    assert!(error.to_string().contains("in use by another process"), "{error}");
    device.write(&[1; 8192], 0).unwrap();
    device.zero(1000, 3000, true).unwrap();
    device.zero(5000, 100, false).unwrap();
    let mut bytes = [9; 8192];
    device.read(&mut bytes, 0).unwrap();
    let zeros = |range: std::ops::Range<usize>| bytes[range].iter().all(|&byte| byte == 0);
    assert!(zeros(1000..4000) && zeros(5000..5100) && bytes.iter().filter(|&&byte| byte == 1).count() == 8192 - 3100);
    drop(device);
    assert!(FileDevice::open(&path, true).is_ok() && FileDevice::create(&path, 1).is_err());
}

#[test]
fn what_is_read_again_and_again_comes_from_the_ssd_until_it_is_written() {
    let pair = Pair::new();
    pair.disk.write(&[5; 65536], 0).unwrap();
    let tier = pair.try_open(&Config { rule: Rule::Never, ..always() }).unwrap();
    for _ in 0..3 {
        for slot in 0..3 {
            assert_eq!(read(&tier, slot * 16384 + 99, 1000).unwrap(), [5; 1000]);
        }
    }
    while tier.work(true).unwrap() == Work::Done {}
    assert_eq!(tier.status().slots.loaded, 3);
    assert_eq!(read(&tier, 10_000, 20_000).unwrap(), [5; 20_000]);
    assert_eq!(tier.status().counts.read_area_bytes, 20_000);
    tier.write(&[6; 10], 12_000, false).unwrap();
    assert_eq!(read(&tier, 12_000, 20).unwrap()[9..11], [6, 5]);
    // Damaged in the area: the disk has it.
    let area = LOG_START + 8 * u64::from(SEGMENT);
    (0..4 * 4).for_each(|block| pair.flip(area + block * 4096 + 7));
    assert_eq!(read(&tier, 16384, 16384).unwrap(), [5; 16384]);
    assert!(tier.status().counts.ssd_errors > 0);
}

#[test]
fn extents_tell_data_from_zeros() {
    let pair = Pair::new();
    let tier = pair.open();
    tier.write(&[1; 4096], 4096, false).unwrap();
    tier.zero(0, 4096, true, false).unwrap();
    assert_eq!(tier.extents(0, 8192).unwrap(), [(0, 4096, false), (4096, 4096, true)]);
    assert_eq!(tier.extents(2048, DISK as u64 - 2048).unwrap()[0], (2048, 2048, false));
}

/// Each thread has its own blocks; all see their own data while it goes round in the log, is written back and prefetched.
#[test]
fn many_threads_read_what_they_have_written() {
    let pair = Pair::new();
    let config =
        Config { rule: Rule::Ratio { start: 1.1, stop: 0.9 }, ghost_requests: 8, prefetch_count: 1, ..always() };
    let tier = Arc::new(pair.try_open(&config).unwrap());
    let runner = Runner::start(tier.clone()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let tier = &tier;
            scope.spawn(move || {
                let mut random = Random(thread);
                let mut own = vec![0_u8; DISK / 4];
                // Stretches of 1000 bytes, so that neighbours share sectors and slots.
                let place = |at: u64| (at / 1000 * 4 + thread) * 1000 + at % 1000;
                for step in 0..1500 {
                    let at = random.below(60) * 1000 + random.below(900);
                    let len = 1 + random.below(1000 - at % 1000);
                    let range = at as usize..(at + len) as usize;
                    match random.below(8) {
                        0..4 => {
                            own[range.clone()].fill(step as u8);
                            tier.write(&own[range], place(at), random.one_in(20)).unwrap();
                        }
                        4 => {
                            own[range].fill(0);
                            tier.zero(place(at), len, random.one_in(2), false).unwrap();
                        }
                        _ => assert_eq!(read(tier, place(at), len as usize).unwrap(), own[range], "{thread} {step}"),
                    }
                }
            });
        }
    });
    drop(runner);
    let whole = read(&tier, 0, DISK).unwrap();
    tier.end().unwrap();
    assert_eq!(pair.disk.bytes(), whole);
}

/// A disk whose flushes are counted.
struct Counted(Arc<Recorder>, AtomicU64);

impl Device for Counted {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.0.read(buf, offset)
    }
    fn write(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.0.write(buf, offset)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.flush()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

/// What went to the disk itself before the server was killed may be in a cache.
#[test]
fn the_first_flush_after_a_kill_flushes_the_disk() {
    let pair = Pair::new();
    let disk = Arc::new(Counted(pair.disk.clone(), AtomicU64::new(0)));
    let config = Config { rule: Rule::Never, ..always() };
    let tier = Tier::open(disk.clone(), pair.ssd.clone(), config.clone()).unwrap();
    tier.write(&[1; 4096], 0, false).unwrap();
    drop(tier);
    let tier = Tier::open(disk.clone(), pair.ssd.clone(), config).unwrap();
    tier.flush().unwrap();
    assert!(disk.1.load(Ordering::SeqCst) > 0);
}

/// A mark that cannot be read may say that the SSD has failed: what that holds must not go over newer data.
#[test]
fn a_failure_mark_is_honoured_and_one_that_cannot_be_read_is_taken_for_one() {
    let pair = Pair::new();
    let dir = tempfile::tempdir().unwrap();
    let config = Config { failure_mark: Some(dir.path().join("failed")), ..always() };
    let tier = pair.try_open(&config).unwrap();
    tier.write(&[1; 4096], 0, true).unwrap();
    pair.ssd.fail(Fault { writes: 1, ..Fault::default() });
    tier.write(&[2; 4096], 0, true).unwrap();
    tier.flush().unwrap();
    drop(tier);
    pair.ssd.fail(Fault::default());
    assert_eq!(pair.disk.bytes()[0], 2);
    assert!(matches!(pair.try_open(&config), Err(OpenError::Failed(_))));
    // As if it had been killed while it wrote what was lost.
    let mark = std::fs::read_to_string(dir.path().join("failed")).unwrap();
    for end in ["", " ", " lost=", " lost=x"] {
        let id = mark.split_whitespace().next().unwrap();
        std::fs::write(dir.path().join("failed"), format!("{id}{end}")).unwrap();
        assert!(matches!(pair.try_open(&config), Err(OpenError::Mark { .. })), "{end:?}");
    }
    // A directory.
    let unreadable = Config { failure_mark: Some(dir.path().to_owned()), ..config };
    assert!(matches!(pair.try_open(&unreadable), Err(OpenError::Mark { .. })));
}

/// What is missing was given up with all before it: nobody looks for it again.
#[test]
fn after_what_was_left_was_written_back_nothing_is_missing_any_more() {
    for durable in [4, 5] {
        let pair = Pair::new();
        let tier = pair.open();
        // Three in each segment.
        (0..durable).for_each(|at| tier.write(&[at as u8 + 1; 4096], at * 4096, true).unwrap());
        while tier.work(true).unwrap() == Work::Done {}
        drop(tier);
        // The header of the last one.
        pair.flip(LOG_START + u64::from(SEGMENT) + (durable - 4) * (4096 + SECTOR as u64) + 60);
        assert!(matches!(pair.try_open(&always()), Err(OpenError::Damaged { .. })), "{durable} records");
        let tier = pair.try_open(&Config { salvage: true, ..always() }).unwrap();
        tier.write_all_back().unwrap();
        tier.end().unwrap();
        drop(tier);
        drop(pair.open());
        assert_eq!(check(&*pair.ssd).unwrap().log.missing, None, "{durable} records");
    }
}

/// The disk does not have everything then, which whoever gives the SSD back is to know.
#[test]
fn a_failure_mark_says_what_was_lost() {
    let (pair, dir) = (Pair::new(), tempfile::tempdir().unwrap());
    let config = Config { failure_mark: Some(dir.path().join("failed")), ..always() };
    let tier = pair.try_open(&config).unwrap();
    tier.write(&[1; 4096], 0, true).unwrap();
    pair.flip(DATA + 5);
    pair.ssd.fail(Fault { writes: 1, ..Fault::default() });
    tier.write(&[2; 4096], 8192, true).unwrap();
    assert_eq!((tier.status().health, tier.status().lost_bytes), (Health::PassThrough, 4096));
    drop(tier);
    pair.ssd.fail(Fault::default());
    assert!(matches!(pair.try_open(&config), Err(OpenError::Lost { bytes: 4096, .. })));
}

#[test]
fn a_disk_is_known_by_the_name_that_stays() {
    let dir = tempfile::tempdir().unwrap();
    let by_id = dir.path().canonicalize().unwrap().join("by-id");
    std::os::unix::fs::symlink("/dev/null", &by_id).unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
    assert_eq!(disk_name_of(&dir.path().join("link/./by-id")).unwrap(), by_id);
    assert!(disk_name_of(&dir.path().join("missing/disk")).is_err());
}

/// Writers make room themselves; nothing else does.
#[test]
fn a_full_log_whose_oldest_data_cannot_be_read_goes_on() {
    for damaged in [1, 3] {
        let pair = Pair::new();
        let tier = pair.open();
        // Three in each segment.
        (0..damaged).for_each(|at| tier.write(&[1; 4096], at * 4096, true).unwrap());
        for at in 0..damaged {
            pair.flip(DATA + at * (4096 + SECTOR as u64) + 5);
        }
        // The same bytes, so that they have to go into the log.
        for at in 0..200 {
            tier.write(&[at as u8; 4096], 65536 + at % 12 * 4096, false).unwrap();
        }
        assert_eq!(tier.status().lost_bytes, damaged * 4096);
        assert!(tier.status().counts.waits > 0);
        drop(tier);
        let tier = pair.open();
        assert!((0..damaged).all(|at| read(&tier, at * 4096, 1).is_err()), "also after a restart");
        for at in 0..50 {
            tier.write(&[9; 4096], 65536 + at % 12 * 4096, false).unwrap();
        }
        (0..damaged).for_each(|at| tier.write(&[7; 4096], at * 4096, false).unwrap());
        assert_eq!((tier.status().lost_bytes, read(&tier, 0, 4096).unwrap()), (0, vec![7; 4096]));
        tier.end().unwrap();
        assert_eq!((pair.disk.bytes()[4095], pair.disk.bytes()[65536 + 4096]), (7, 9));
    }
}

/// Every entry of the log is lost, and what is written is over that.
#[test]
fn a_log_of_which_nothing_can_be_read_takes_all_of_it_anew() {
    let pair = Pair::new();
    let tier = pair.open();
    let mut count = 0;
    while tier.status().segments_used < 7 {
        tier.write(&[1; 4096], count * 4096, true).unwrap();
        count += 1;
    }
    for segment in 0..7 {
        for entry in 0..3 {
            pair.flip(DATA + segment * u64::from(SEGMENT) + entry * (4096 + SECTOR as u64) + 5);
        }
    }
    for at in 0..count {
        tier.write(&[2; 4096], at * 4096, true).unwrap();
    }
    assert_eq!(tier.status().lost_bytes, 0);
    drop(tier);
    let tier = pair.open();
    assert_eq!(read(&tier, 0, count as usize * 4096).unwrap(), vec![2; count as usize * 4096]);
}

#[test]
fn a_record_that_is_there_although_its_writing_failed_does_not_come_back_over_newer_data() {
    let pair = Pair::new();
    let tier = pair.open();
    tier.write(&[1; 512], 0, true).unwrap();
    pair.ssd.fail(Fault { writes: 1, whole: true, ..Fault::default() });
    let first = tier.write(&[2; 512], 8192, false);
    let second = tier.write(&[3; 512], 8192, false);
    let newest = if second.is_ok() { 3 } else { 2 };
    assert!(tier.write(&[4; 512], 100_000, false).is_ok(), "of these bytes the log has nothing");
    // Killed.
    drop(tier);
    pair.ssd.fail(Fault::default());
    let tier = pair.open();
    assert_eq!((read(&tier, 0, 1).unwrap()[0], read(&tier, 100_000, 1).unwrap()[0]), (1, 4));
    let found = read(&tier, 8192, 1).unwrap()[0];
    assert!(found == newest || first.is_err() && second.is_err(), "{found}, {first:?}, {second:?}");
}

#[test]
fn a_flush_of_the_disk_that_failed_is_told_to_everybody_once() {
    let pair = Pair::new();
    let tier = pair.try_open(&Config { rule: Rule::Never, ..always() }).unwrap();
    let users = [tier.user(), tier.user(), tier.user()];
    tier.write(&[1; 512], 0, false).unwrap();
    pair.disk.fail(Fault { flushes: 1, ..Fault::default() });
    assert!(tier.flush_for(&users[0]).is_err());
    pair.disk.fail(Fault::default());
    assert!(tier.flush_for(&users[0]).is_ok(), "told");
    assert!(tier.flush_for(&users[1]).is_err() && tier.flush().is_err(), "not told");
    assert!(tier.flush_for(&users[1]).is_ok() && tier.flush().is_ok() && tier.flush_for(&tier.user()).is_ok());
    tier.write(&[2; 512], 0, false).unwrap();
    assert!(tier.flush_for(&users[2]).is_err() && tier.flush_for(&users[2]).is_ok());
}

/// An SSD some of whose sectors cannot be read.
struct Unreadable(Arc<Recorder>, Vec<u64>);

impl Device for Unreadable {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        let end = offset + buf.len() as u64;
        if self.1.iter().any(|&sector| sector < end && sector + 512 > offset) {
            return Err(std::io::Error::other("a medium error"));
        }
        self.0.read(buf, offset)
    }
    fn write(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.0.write(buf, offset)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

#[test]
fn a_sector_that_cannot_be_read_costs_no_record_but_its_own() {
    // In the list of the first segment's summary; in the data of the eighth record, in a segment that has none yet.
    let list = LOG_START + u64::from(SEGMENT) - 1024;
    let data = LOG_START + 2 * u64::from(SEGMENT) + 4608 + 1024;
    for (sector, lost) in [(list, None), (data, Some(7))] {
        let pair = Pair::new();
        let tier = pair.open();
        // Three in each segment.
        for at in 0..9 {
            tier.write(&[at as u8 + 1; 4096], at * 4096, true).unwrap();
        }
        drop(tier);
        let open = |config: Config| {
            Tier::open(pair.disk.clone(), Arc::new(Unreadable(pair.ssd.clone(), vec![sector])), config)
        };
        assert!(open(always()).is_err(), "whoever does not salvage hears of it");
        let tier = open(Config { salvage: true, ..always() }).unwrap();
        for at in 0..9 {
            let found = read(&tier, at * 4096, 4096);
            match lost == Some(at) {
                true => assert!(found.is_err(), "record {at}: its data cannot be read"),
                false => assert_eq!(found.unwrap(), [at as u8 + 1; 4096], "record {at}"),
            }
        }
    }
}
