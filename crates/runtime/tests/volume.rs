//! Volumes over real files: data, errors, changes of the algorithm, and the end, under every algorithm and driver.
//!
//! Random loads have fixed seeds; `SLUICE_TEST_SEED=7 cargo test -p sluice-runtime` takes another.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::{Faulty, Random, Results, create, storage};
use sluice_core::{AppId, EngineConfig, PolicyConfig, policy::table};
use sluice_runtime::{Done, Driving, Host, Shutdown, Volume, VolumeConfig, Workers};
use sluice_storage::{FileRef, Storage};

fn seed() -> u64 {
    std::env::var("SLUICE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn config(policy: &str) -> VolumeConfig {
    let mut config = VolumeConfig::new(PolicyConfig::parse(policy).unwrap());
    config.engine.max_wait_ns = 20_000_000;
    config
}

fn start(storage: &Storage, config: VolumeConfig) -> (Volume<Results>, Arc<Results>) {
    let host = Arc::new(Results::default());
    (Volume::start(storage.clone(), host.clone(), config).unwrap(), host)
}

/// Random reads and writes of one file, compared with a copy in memory.
fn check_file(volume: &Volume<Results>, file: &FileRef, random: &mut Random, operations: u32) {
    const SIZE: u64 = 60_000;
    let mut copy: Vec<u8> = Vec::new();
    for _ in 0..operations {
        let (offset, len) = (random.below(SIZE), 1 + random.below(15_000) as usize);
        if random.below(2) == 0 {
            let data: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            assert_eq!(volume.write_at(file, AppId(1), offset, &data).unwrap(), len);
            let end = offset as usize + len;
            copy.resize(copy.len().max(end), 0);
            copy[offset as usize..end].copy_from_slice(&data);
        } else {
            let mut data = vec![0xAA; len];
            let read = volume.read_at(file, AppId(2), offset, &mut data).unwrap();
            let expected = copy.get(offset as usize..).unwrap_or_default();
            assert_eq!(data[..read], expected[..expected.len().min(len)], "{len} bytes at {offset}");
        }
    }
}

/// Passes on what it is told: the bytes, and the error number of what stopped the request.
struct InPart(std::sync::mpsc::Sender<(usize, i32)>);

impl Host for InPart {
    type Ticket = ();

    fn complete(&self, (): (), result: std::io::Result<Done<'_>>) {
        let told = result.map_or_else(|error| (0, error.raw_os_error().unwrap()), |done| (len(done), 0));
        self.0.send(told).unwrap();
    }

    fn complete_in_part(&self, (): (), done: Done<'_>, error: std::io::Error) {
        self.0.send((len(done), error.raw_os_error().unwrap())).unwrap();
    }
}

fn len(done: Done<'_>) -> usize {
    match done {
        Done::Read(data) => data.len(),
        Done::Written(bytes) => bytes,
    }
}

/// Of a request that an error stops half way a call gets what came before, and a host learns of the error, too.
#[test]
fn what_came_before_an_error_and_the_error_are_told() {
    const LEN: usize = 20_000;
    for (targets, policy, request_bytes_max) in
        [(1, "noop", 1 << 20), (1, "to-agg", 1 << 20), (1, "sjf", 4096), (3, "noop", 1 << 20), (3, "hbrr", 1000)]
    {
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), targets);
        let file = create(&plain, "f");
        let layout = plain.data.layout().of(&*file);
        for bad in [0, 100, 4095, 4096, 9_000, 19_999] {
            // In a target's file the byte that comes first has this offset; others of it come later.
            let (_, at) = layout.locate(bad);
            let first = (0..LEN as u64).find(|&logical| layout.locate(logical).1 == at).unwrap() as usize;
            let fill = start(&plain, config("noop")).0;
            fill.write_at(&file, AppId(0), 0, &[7; LEN]).unwrap();
            let (_, faulty) = Faulty::over(&plain, at, usize::MAX);
            let (tell, told) = std::sync::mpsc::channel();
            let config = VolumeConfig { request_bytes_max, ..config(policy) };
            let volume = Volume::start(faulty, Arc::new(InPart(tell)), config).unwrap();
            let told = || told.recv_timeout(Duration::from_secs(15)).unwrap();
            let what = format!("{targets} targets, {policy}, byte {bad}");
            volume.read(&file, AppId(0), 0, LEN as u32, ());
            assert_eq!(told(), (first, libc::EIO), "{what}");
            let call = volume.read_at(&file, AppId(0), 0, &mut [0; LEN]).map_err(|error| error.raw_os_error());
            assert_eq!(call, if first > 0 { Ok(first) } else { Err(Some(libc::EIO)) }, "{what}");
            volume.write(&file, AppId(0), 0, &[8; LEN], ());
            assert_eq!(told(), (first, libc::EIO), "{what}");
        }
    }
}

#[test]
fn data_is_right_under_every_algorithm_and_driver() {
    for info in table() {
        for (driving, workers) in [
            (Driving::Caller, Workers::Threads),
            (Driving::Thread, Workers::Threads),
            (Driving::Caller, Workers::Ring),
            (Driving::Thread, Workers::Ring),
        ] {
            for targets in [1, 3] {
                let dir = tempfile::tempdir().unwrap();
                let storage = storage(dir.path(), targets);
                let (volume, _) = start(&storage, VolumeConfig { driving, workers, ..config(info.name) });
                let files: Vec<FileRef> = (0..3).map(|n| create(&storage, &n.to_string())).collect();
                std::thread::scope(|scope| {
                    for (n, file) in files.iter().enumerate() {
                        let volume = &volume;
                        scope.spawn(move || check_file(volume, file, &mut Random(seed() + n as u64), 25));
                    }
                });
                assert_eq!(volume.snapshot().outstanding, 0, "{} {driving:?} {workers:?}", info.name);
            }
        }
    }
}

/// Requests that overlap keep their order although nobody waits between them.
#[test]
fn overlapping_writes_keep_their_order() {
    for info in table() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path(), 2);
        let (volume, host) = start(&storage, config(info.name));
        let file = create(&storage, "f");
        let mut random = Random(seed());
        let mut copy = vec![0; 40_000];
        for ticket in 0..300_u64 {
            let (offset, len) = (random.below(30_000), 1 + random.below(9_999) as usize);
            volume.write(&file, AppId(0), offset, &vec![ticket as u8; len], ticket);
            copy[offset as usize..][..len].fill(ticket as u8);
        }
        host.take(300).iter().for_each(|(_, result)| assert!(result.is_ok()));
        let mut data = vec![0; copy.len()];
        let read = volume.read_at(&file, AppId(0), 0, &mut data).unwrap();
        assert_eq!(data[..read], copy[..read], "{}", info.name);
    }
}

#[test]
fn an_error_reaches_the_requests_it_belongs_to() {
    for info in table() {
        for short in [usize::MAX, 700] {
            let dir = tempfile::tempdir().unwrap();
            let plain = storage(dir.path(), 1);
            let (faulty, storage) = Faulty::over(&plain, 5_500, short);
            let (volume, host) = start(&storage, config(info.name));
            let file = create(&storage, "f");
            // All wait together, so that they are aggregated where the algorithm does so.
            faulty.set_open(false);
            for n in 0..10_u64 {
                volume.write(&file, AppId(0), n * 1_000, &vec![n as u8 + 1; 1_000], n);
            }
            faulty.set_open(true);
            for (n, result) in host.take(10) {
                // A write that moved something before the bad byte reports that much, as the system call would.
                let expected = if n == 5 { 500_u64 } else { 1_000 };
                assert_eq!(result, Ok(expected.to_le_bytes().to_vec()), "{} write {n} short {short}", info.name);
            }
            faulty.set_open(false);
            for n in 0..10_u64 {
                let offset = if n == 5 { 5_500 } else { n * 1_000 };
                volume.read(&file, AppId(0), offset, 400, n);
            }
            faulty.set_open(true);
            for (n, result) in host.take(10) {
                let expected = if n == 5 { Err(libc::EIO) } else { Ok(vec![n as u8 + 1; 400]) };
                assert_eq!(result, expected, "{} read {n} short {short}", info.name);
            }
        }
    }
}

#[test]
fn the_algorithm_changes_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 3);
    let mut config = config("noop");
    config.engine.in_flight_max = 1;
    let (volume, _) = start(&storage, config);
    let files: Vec<FileRef> = (0..3).map(|n| create(&storage, &n.to_string())).collect();
    let (done, together) = (AtomicBool::new(false), Barrier::new(files.len() + 1));
    std::thread::scope(|scope| {
        let workers: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(n, file)| {
                let (volume, together) = (&volume, &together);
                scope.spawn(move || {
                    together.wait();
                    check_file(volume, file, &mut Random(seed() + n as u64), 300);
                })
            })
            .collect();
        let changer = scope.spawn(|| {
            let mut changes = 0;
            together.wait();
            loop {
                for info in table() {
                    volume.set_policy(&PolicyConfig::parse(info.name).unwrap());
                    let limits = EngineConfig { in_flight_max: changes % 4, ..volume.limits() };
                    volume.set_limits(&limits).unwrap();
                    changes += 1;
                }
                if done.load(Ordering::Relaxed) {
                    return changes;
                }
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
        assert!(changer.join().unwrap() >= table().len() as u32);
    });
}

#[test]
fn the_end_answers_every_request() {
    for info in table() {
        for how in [Shutdown::Drain { timeout: common::LIMIT }, Shutdown::Fail(libc::ENODEV)] {
            let dir = tempfile::tempdir().unwrap();
            let (faulty, storage) = Faulty::over(&storage(dir.path(), 1), u64::MAX, usize::MAX);
            let mut config = config(info.name);
            config.engine.in_flight_max = 2;
            config.threads_max = 2;
            let (volume, host) = start(&storage, config);
            let file = create(&storage, "f");
            faulty.set_open(false);
            for n in 0..50_u64 {
                volume.write(&file, AppId(0), n * 5_000, &[7; 100], n);
            }
            std::thread::scope(|scope| {
                let end = scope.spawn(|| volume.shutdown(how));
                faulty.set_open(true);
                let report = end.join().unwrap();
                assert_eq!(report.in_flight, 0);
            });
            let results = host.take(50);
            assert_eq!(results.len(), 50, "{}", info.name);
            for (_, result) in &results {
                let failed = matches!(how, Shutdown::Fail(_)) && *result == Err(libc::ENODEV);
                assert!(failed || *result == Ok(100_u64.to_le_bytes().to_vec()), "{} {how:?} {result:?}", info.name);
            }
            volume.write(&file, AppId(0), 0, &[1], 99);
            assert_eq!(host.take(1), [(99, Err(libc::ESHUTDOWN))]);
        }
    }
}

#[test]
fn a_small_engine_makes_its_callers_wait_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 2);
    let mut config = config("hbrr");
    config.engine = EngineConfig { capacity: 3, files_max: 1, ..config.engine };
    config.buffer_bytes_max = 10_000;
    let (volume, host) = start(&storage, config);
    let files = [create(&storage, "a"), create(&storage, "b")];
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (volume, file) = (&volume, &files[thread as usize % 2]);
            scope.spawn(move || {
                for n in 0..100 {
                    volume.write(file, AppId(0), thread * 1_000_000 + n * 5_000, &[thread as u8; 5_000], n);
                }
            });
        }
    });
    assert!(host.take(400).iter().all(|(_, result)| *result == Ok(5_000_u64.to_le_bytes().to_vec())));
}

#[test]
fn an_idle_volume_does_not_wake_up() {
    for info in table() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path(), 2);
        let (volume, _) = start(&storage, config(info.name));
        let file = create(&storage, "f");
        volume.write_at(&file, AppId(0), 0, &[1; 10_000]).unwrap();
        // Whatever was about to happen has happened when two looks some time apart see the same.
        let wakes = || volume.snapshot().runtime.wakes;
        let (mut before, mut after) = (wakes(), u64::MAX);
        for _ in 0..50 {
            let (_lock, never) = (parking_lot::Mutex::new(()), parking_lot::Condvar::new());
            never.wait_for(&mut _lock.lock(), Duration::from_millis(30));
            after = wakes();
            if after == before {
                break;
            }
            before = after;
        }
        assert_eq!(after, before, "{} keeps waking up", info.name);
    }
}
