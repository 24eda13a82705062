//! Operations that overlap, cut into pieces in all sorts of ways, from threads that do not wait for each other: each is seen as a
//! whole. `SLUICE_SEED=1 SLUICE_RUNS=1000 cargo test -p sluice-runtime --test wholes` goes on for longer.

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Random, create, storage};
use parking_lot::{Condvar, Mutex};
use sluice_core::{AppId, PolicyConfig, policy::table};
use sluice_runtime::{Done, Driving, Host, Shutdown, Volume, VolumeConfig, Workers};

const THREADS: u64 = 4;
const TURNS: u64 = 30;
const LARGE: (u64, usize) = (700, 13_000);
/// Inside the other one.
const SMALL: (u64, usize) = (4_000, 5_000);

/// Counts ends, looks at what was read, and writes now and then from inside its call.
#[derive(Default)]
struct Told {
    ended: AtomicU64,
    wrong: Mutex<Vec<String>>,
    changed: Condvar,
}

/// What was read, of which range.
struct Ticket((u64, usize));

impl Host for Told {
    type Ticket = Ticket;

    fn complete(&self, Ticket((offset, len)): Ticket, result: io::Result<Done<'_>>) {
        match result {
            Ok(Done::Read(data)) if data.len() == len => {
                if let Some(wrong) = mixture(offset, data) {
                    self.wrong.lock().push(wrong);
                }
            }
            Ok(Done::Written(written)) if written == len => {}
            other => self.wrong.lock().push(format!("{other:?} of {len}")),
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        let _wrong = self.wrong.lock();
        self.changed.notify_all();
    }
}

/// The small range is of one writer, and so is what is around it.
fn mixture(offset: u64, data: &[u8]) -> Option<String> {
    let byte = |at: u64| data.get(usize::try_from(at.checked_sub(offset)?).ok()?).copied();
    let uniform = |range: &mut dyn Iterator<Item = u64>| {
        let mut bytes: Vec<u8> = range.filter_map(byte).collect();
        bytes.dedup();
        bytes.len() <= 1
    };
    let small = SMALL.0..SMALL.0 + SMALL.1 as u64;
    let mut around = (LARGE.0..small.start).chain(small.end..LARGE.0 + LARGE.1 as u64);
    let inside = uniform(&mut small.clone());
    (!inside || !uniform(&mut around)).then(|| format!("a mixture, inside: {}", !inside))
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1);
    let mut of = |limit: u64| random.below(limit) as usize;
    let targets = 1 + of(3);
    let info = table()[of(table().len() as u64)];
    let mut config = VolumeConfig::new(PolicyConfig::parse(info.name).unwrap());
    config.driving = [Driving::Caller, Driving::Thread][of(2)];
    config.workers = [Workers::Threads, Workers::Ring][of(2)];
    (config.inline, config.threads_max) = (of(2) == 0, 1 + of(3) as u32);
    config.request_bytes_max = [1_000, 4_096, 5_000, 1 << 20][of(4)];
    config.engine.capacity = [1, 2, 16, 4096][of(4)];
    config.engine.max_wait_ns = 2_000_000;
    config.buffer_bytes_max = [1, 20_000, 1 << 20][of(3)];
    let what = format!("seed {seed}: {targets} targets, {config:?}");
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), targets);
    let file = create(&storage, "f");
    let told = Arc::new(Told::default());
    let volume = Volume::start(storage, told.clone(), config).unwrap();
    volume.write_at(&file, AppId(0), 0, &[0; 20_000]).unwrap();
    let tickets = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (volume, file, tickets, told) = (&volume, &file, &tickets, &told);
            scope.spawn(move || {
                let mut random = Random(seed * 31 + thread);
                for turn in 0..TURNS {
                    let range = if random.below(2) == 0 { LARGE } else { SMALL };
                    let data = vec![(1 + thread * TURNS + turn) as u8; range.1];
                    let mut back = vec![0; range.1];
                    let app = AppId(thread as u32);
                    match random.below(4) {
                        0 => assert_eq!(volume.write_at(file, app, range.0, &data).unwrap(), range.1),
                        1 => {
                            assert_eq!(volume.read_at(file, app, range.0, &mut back).unwrap(), range.1);
                            told.wrong.lock().extend(mixture(range.0, &back));
                        }
                        other => {
                            tickets.fetch_add(1, Ordering::SeqCst);
                            match other {
                                2 => volume.write(file, app, range.0, &data, Ticket(range)),
                                _ => volume.read(file, app, range.0, range.1 as u32, Ticket(range)),
                            }
                        }
                    }
                }
            });
        }
    });
    volume.shutdown(Shutdown::Drain { timeout: common::LIMIT });
    assert_eq!(told.ended.load(Ordering::SeqCst), tickets.load(Ordering::SeqCst), "{what}");
    assert!(told.wrong.lock().is_empty(), "{what}: {:?}", told.wrong.lock());
}

#[test]
fn overlapping_operations_are_seen_as_wholes() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let first = number("SLUICE_SEED", 1_u64);
    (first..first + number("SLUICE_RUNS", 12)).for_each(run);
}
