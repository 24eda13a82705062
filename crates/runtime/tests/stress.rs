//! Volumes that call into each other with everything that can go wrong at once, from seeds: small engines and buffers, several
//! engines, every algorithm and driving, storages that are fast, slow, failing and panicking, hosts that submit, wait, ask,
//! change the algorithm and panic inside their calls, an end while all of this goes on. Every request must be told once, with
//! right bytes, and nothing may be left.
//!
//! `SLUICE_SEED=1 SLUICE_RUNS=1000 cargo test -p sluice-runtime --test stress -- --nocapture` goes on for longer; where it
//! hangs, the last seed printed is the one.

mod common;

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use common::{Random, create, storage};
use sluice_core::{AppId, PolicyConfig};
use sluice_runtime::*;
use sluice_storage::{Data, FileRef, Layout, Storage};

const BLOCK: u64 = 512;
const BLOCKS: u64 = 40;

fn random(seed: u64) -> Random {
    let mut random = Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1);
    random.below(7);
    random
}

/// A storage that is fast, then slow, then fails or panics, and sometimes says that it never waits.
struct Moody {
    inner: Arc<dyn Data>,
    calls: AtomicU64,
    seed: u64,
    fails: bool,
}

impl Moody {
    fn mood(&self) -> io::Result<()> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let mood = random(self.seed ^ call.wrapping_mul(0x9E37_79B9_7F4A_7C15)).below(400);
        match (mood, self.fails) {
            (0, true) => panic!("the storage, as it should"),
            (1..=4, true) => Err(io::Error::from_raw_os_error(libc::EIO)),
            (5..=6, _) => {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_micros(200) {
                    std::thread::yield_now();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Data for Moody {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }
    fn describe(&self) -> String {
        "moody".to_owned()
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.inner.sync(file, metadata)
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.inner.size_at_least(file, end)
    }
    fn never_waits(&self, _: &FileRef) -> bool {
        self.seed.is_multiple_of(3)
    }
    fn try_read(
        &self,
        file: &FileRef,
        target: usize,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        match self.calls.load(Ordering::Relaxed).is_multiple_of(3) {
            true => Ok(None),
            false => self.inner.try_read(file, target, offset, bufs),
        }
    }
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.mood()?;
        self.inner.read(file, target, offset, bufs)
    }
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.mood()?;
        self.inner.write(file, target, offset, bufs)
    }
    fn trim(&self, file: &FileRef, before: u64, range: std::ops::Range<u64>, moved: u64) -> io::Result<()> {
        self.inner.trim(file, before, range, moved)
    }
}

/// What one run counts, over all its volumes.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    told: AtomicU64,
    wrong: AtomicBool,
}

struct Caller {
    peers: OnceLock<Vec<(Weak<Volume<Caller>>, FileRef)>>,
    told: AtomicU64,
    counts: Arc<Counts>,
    seed: u64,
}

struct Sent {
    block: u64,
    /// So many generations of requests may follow from it.
    left: u32,
}

/// What every writer writes to a block: never 0.
fn content(block: u64) -> u8 {
    (block % 251) as u8 + 1
}

fn policy(random: &mut Random) -> PolicyConfig {
    let table = sluice_core::policy::table();
    PolicyConfig::parse(table[random.below(table.len() as u64) as usize].name).unwrap()
}

fn submit(volume: &Volume<Caller>, file: &FileRef, random: &mut Random, left: u32, counts: &Counts) {
    let (block, count, app) = (random.below(BLOCKS), 1 + random.below(20), AppId(random.below(3) as u32));
    counts.sent.fetch_add(1, Ordering::SeqCst);
    if random.below(2) == 0 {
        volume.read(file, app, block * BLOCK, (count * BLOCK) as u32, Sent { block, left });
    } else {
        let data: Vec<u8> = (0..count * BLOCK).map(|byte| content(block + byte / BLOCK)).collect();
        volume.write(file, app, block * BLOCK, &data, Sent { block, left });
    }
}

impl Host for Caller {
    type Ticket = Sent;

    fn complete(&self, Sent { block, left }: Sent, result: io::Result<Done<'_>>) {
        if let Ok(Done::Read(data)) = &result {
            let right = |(at, byte): (usize, &u8)| *byte == 0 || *byte == content(block + at as u64 / BLOCK);
            if !data.iter().enumerate().all(right) {
                self.counts.wrong.store(true, Ordering::SeqCst);
            }
        }
        let mut random = random(self.seed ^ self.told.fetch_add(1, Ordering::SeqCst).wrapping_mul(77));
        let peers = self.peers.get().filter(|_| left > 0);
        if let Some((peer, file)) = peers.map(|peers| &peers[random.below(peers.len() as u64) as usize])
            && let Some(volume) = peer.upgrade()
        {
            match random.below(20) {
                0 => volume.set_policy(&policy(&mut random)),
                1 => _ = volume.snapshot(),
                2 => _ = volume.read_at(file, AppId(9), random.below(BLOCKS) * BLOCK, &mut [0; 3_000]),
                _ => {}
            }
            for _ in 0..1 + u64::from(random.below(3) == 0) {
                submit(&volume, file, &mut random, left - 1, &self.counts);
            }
        }
        self.counts.told.fetch_add(1, Ordering::SeqCst);
        assert_ne!(random.below(97), 0, "the host, as it should");
    }
}

type Volumes = Vec<(Arc<Volume<Caller>>, FileRef)>;

fn config(random: &mut Random) -> VolumeConfig {
    let mut config = VolumeConfig::new(policy(random));
    config.engine.capacity = 1 + random.below(16) as u32;
    config.engine.in_flight_max = random.below(5) as u32;
    config.threads_max = 1 + random.below(3) as u32;
    config.inline = random.below(5) != 0;
    config.request_bytes_max = if random.below(2) == 0 { BLOCK as u32 } else { 1 << 20 };
    config.buffer_bytes_max = 1_024 + random.below(60_000);
    config.driving = if random.below(4) == 0 { Driving::Thread } else { Driving::Caller };
    config.engines = [Engines::Auto, Engines::PerTarget, Engines::Shared][random.below(3) as usize];
    config.workers = if random.below(4) == 0 { Workers::Ring } else { Workers::Threads };
    config
}

fn volumes(dir: &std::path::Path, seed: u64, random: &mut Random, counts: &Arc<Counts>) -> Volumes {
    let volumes: Vec<_> = (0..1 + random.below(3))
        .map(|number| {
            let dir = dir.join(number.to_string());
            std::fs::create_dir(&dir).unwrap();
            let plain = storage(&dir, 1 + random.below(3) as usize);
            let file = create(&plain, "f");
            let (inner, fails) = (plain.data.clone(), random.below(2) == 0);
            let data = Arc::new(Moody { inner, calls: AtomicU64::new(0), seed: seed + number, fails });
            let storage = if random.below(4) == 0 { plain } else { Storage { data, ..plain } };
            let (peers, told) = (OnceLock::new(), AtomicU64::new(0));
            let host = Arc::new(Caller { peers, told, counts: counts.clone(), seed });
            let volume = Arc::new(Volume::start(storage, host.clone(), config(random)).unwrap());
            (volume, file, host)
        })
        .collect();
    let peers = || volumes.iter().map(|(volume, file, _)| (Arc::downgrade(volume), file.clone())).collect();
    volumes.iter().for_each(|(_, _, host)| host.peers.set(peers()).unwrap_or_else(|_| unreachable!("set once")));
    volumes.into_iter().map(|(volume, file, _)| (volume, file)).collect()
}

fn use_them(volumes: &Volumes, random: &mut Random, counts: &Counts) {
    for _ in 0..150 {
        let (volume, file) = &volumes[random.below(volumes.len() as u64) as usize];
        match random.below(12) {
            0 => {
                let mut room = vec![0; 1 + random.below(5_000) as usize];
                let _ = volume.read_at(file, AppId(1), random.below(BLOCKS * BLOCK), &mut room);
            }
            1 => {
                let block = random.below(BLOCKS);
                let _ = volume.write_at(file, AppId(2), block * BLOCK, &[content(block); BLOCK as usize]);
            }
            2 => volume.wait_idle(file),
            3 => volume.set_policy(&policy(random)),
            4 => _ = volume.snapshot(),
            _ => submit(volume, file, random, 2, counts),
        }
    }
}

fn run(seed: u64) {
    let (mut random, counts) = (random(seed), Arc::<Counts>::default());
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), seed, &mut random, &counts);
    let mut how = |_| match random.below(2) {
        0 => Shutdown::Fail(libc::EIO),
        _ => Shutdown::Drain { timeout: Duration::from_millis(random.below(5)) },
    };
    let ends: Vec<Shutdown> = volumes.iter().map(&mut how).collect();
    let early = random.below(2) == 0;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (volumes, counts) = (&volumes, &counts);
            scope.spawn(move || use_them(volumes, &mut self::random(seed * 31 + thread), counts));
        }
        for ((volume, _), end) in volumes.iter().zip(&ends).filter(|_| early) {
            scope.spawn(|| volume.shutdown(*end));
        }
    });
    volumes.iter().zip(&ends).for_each(|((volume, _), end)| _ = volume.shutdown(*end));
    // A thread of one volume may still be inside a call of another's host.
    let (begin, both) = (Instant::now(), || [&counts.sent, &counts.told].map(|count| count.load(Ordering::SeqCst)));
    while both()[0] != both()[1] {
        assert!(begin.elapsed() < common::LIMIT, "seed {seed}: sent and told: {:?}", both());
        std::thread::yield_now();
    }
    assert!(!counts.wrong.load(Ordering::SeqCst), "seed {seed}: wrong bytes");
    for (volume, _) in &volumes {
        let left = volume.snapshot();
        assert_eq!((left.outstanding, left.buffer_bytes, left.runtime.stale), (0, 0, 0), "seed {seed}");
        assert!(left.runtime.shards.iter().all(|shard| shard.queued + shard.in_flight == 0), "seed {seed}");
    }
}

#[test]
fn everything_at_once() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, runs) = (number("SLUICE_SEED", 1_u64), number("SLUICE_RUNS", 40));
    for seed in first..first + runs {
        eprintln!("seed {seed}");
        run(seed);
    }
}
