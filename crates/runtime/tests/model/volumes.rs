//! Volumes over memory: operations as wholes, the bypass, the end.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use shuttle::thread;
use sluice_core::{AppId, EngineConfig, GatePlan, GateSlice, PolicyConfig, Time};
use sluice_runtime::{Done, Host, Shutdown, Volume, VolumeConfig};
use sluice_storage::null::NullStorage;
use sluice_storage::{Data, FileRef, Layout, Namespace, Storage};

use crate::checker::{WINDOW_NS, check, check_stopping};

const STRIPE: usize = 4;
const SIZE: usize = 16;

/// The bytes of one file. A call moves them one by one and lets other threads go between.
struct Slow {
    layout: Layout,
    /// How often, for each byte.
    pauses: u32,
    bytes: Vec<Mutex<Vec<u8>>>,
}

impl Data for Slow {
    fn layout(&self) -> Layout {
        self.layout
    }
    fn describe(&self) -> String {
        "slow memory".to_owned()
    }
    fn read(&self, _: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        let mut at = offset as usize;
        for byte in bufs.iter_mut().flat_map(|buf| buf.iter_mut()) {
            thread::yield_now();
            *byte = self.bytes[target].lock().expect("no panic")[at];
            at += 1;
        }
        Ok(at - offset as usize)
    }
    fn write(&self, _: &FileRef, target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let mut at = offset as usize;
        for byte in bufs.iter().flat_map(|buf| buf.iter()) {
            (0..self.pauses).for_each(|_| thread::yield_now());
            self.bytes[target].lock().expect("no panic")[at] = *byte;
            at += 1;
        }
        Ok(at - offset as usize)
    }
    /// Whatever: it says that plain calls would do, so that requests may go by the engine.
    fn descriptor(&self, _: &FileRef, _: usize) -> Option<Arc<OwnedFd>> {
        Some(Arc::new(File::open("/dev/null").ok()?.into()))
    }
    fn sync(&self, _: &FileRef, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn size_at_least(&self, _: &FileRef, _: u64) -> io::Result<u64> {
        Ok(SIZE as u64)
    }
}

/// Counts what it is told.
#[derive(Default)]
struct Told(Mutex<Vec<(u64, bool)>>);

impl Host for Told {
    type Ticket = u64;
    fn complete(&self, ticket: u64, result: io::Result<Done<'_>>) {
        self.0.lock().expect("no panic").push((ticket, result.is_ok()));
    }
}

type Opened = (Volume<Told>, Arc<Told>, FileRef);

fn volume(targets: u32, policy: &str, capacity: u32) -> Opened {
    volume_with(targets, policy, capacity, |_| {})
}

fn slow_volume(targets: u32, policy: &str, capacity: u32, pauses: u32) -> Opened {
    start(targets, policy, capacity, pauses, |_| {})
}

fn volume_with(targets: u32, policy: &str, capacity: u32, change: impl FnOnce(&mut VolumeConfig)) -> Opened {
    start(targets, policy, capacity, 1, change)
}

fn start(targets: u32, policy: &str, capacity: u32, pauses: u32, change: impl FnOnce(&mut VolumeConfig)) -> Opened {
    let host = Arc::new(Told::default());
    let (volume, file) = start_for(host.clone(), targets, policy, capacity, pauses, change);
    (volume, host, file)
}

fn start_for<H: Host>(
    host: Arc<H>,
    targets: u32,
    policy: &str,
    capacity: u32,
    pauses: u32,
    change: impl FnOnce(&mut VolumeConfig),
) -> (Volume<H>, FileRef) {
    let layout = Layout::striped(targets, STRIPE as u64);
    let null = Arc::new(NullStorage::new(layout, SIZE as u64));
    let bytes = (0..targets).map(|_| Mutex::new(vec![0; SIZE])).collect();
    let storage = Storage { namespace: null.clone(), data: Arc::new(Slow { layout, pauses, bytes }) };
    let file = null.lookup(&null.root(), "1".as_ref()).and_then(|node| null.open(&node, libc::O_RDWR)).unwrap();
    let engine = EngineConfig { capacity, files_max: 4, window_ns: WINDOW_NS, ..EngineConfig::default() };
    let mut config = VolumeConfig { engine, threads_max: 2, ..VolumeConfig::new(PolicyConfig::parse(policy).unwrap()) };
    change(&mut config);
    (Volume::start(storage, host, config).unwrap(), file)
}

/// Two threads write all of the file, and read it: whatever is read is of one writer.
pub fn whole_operations(targets: u32, policy: &'static str) {
    let (volume, _, file) = volume(targets, policy, 16);
    let volume = Arc::new(volume);
    let threads: Vec<_> = (1..3u8)
        .map(|writer| {
            let (volume, file) = (volume.clone(), file.clone());
            thread::spawn(move || {
                assert_eq!(volume.write_at(&file, AppId(0), 0, &[writer; SIZE]).unwrap(), SIZE);
                let mut back = [0; SIZE];
                assert_eq!(volume.read_at(&file, AppId(0), 0, &mut back).unwrap(), SIZE);
                assert!(back.iter().all(|byte| *byte == back[0]), "a mixture: {back:?}");
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    volume.shutdown(Shutdown::Drain { timeout: Duration::from_secs(1) });
}

#[test]
fn operations_are_seen_as_wholes() {
    for policy in ["noop", "to", "hbrr"] {
        check(150, move || whole_operations(2, policy));
    }
    // With one target and `noop` requests go by the engine, and the storage keeps them apart.
    check(60, || whole_operations(1, "to"));
}

/// On one target, cut into pieces: a write of one piece comes between those of another one, and overlaps two of them.
pub fn whole_operations_of_pieces() {
    let (volume, _, file) = volume_with(1, "to", 16, |config| config.request_bytes_max = 4);
    let volume = Arc::new(volume);
    let large = {
        let (volume, file) = (volume.clone(), file.clone());
        thread::spawn(move || assert_eq!(volume.write_at(&file, AppId(0), 2, &[1; 8]).unwrap(), 8))
    };
    volume.write_at(&file, AppId(0), 4, &[2; 4]).unwrap();
    large.join().unwrap();
    let mut back = [0; 4];
    volume.read_at(&file, AppId(0), 4, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == back[0]), "a mixture: {back:?}");
    volume.shutdown(Shutdown::Drain { timeout: Duration::from_secs(1) });
}

#[test]
fn operations_in_pieces_are_seen_as_wholes() {
    check(400, whole_operations_of_pieces);
}

/// Fewer places than there are requests, all with tickets; the end comes before all have ended.
pub fn tickets(targets: u32, policy: &'static str, how: Shutdown) {
    let (volume, host, file) = volume(targets, policy, 2);
    let volume = Arc::new(volume);
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let (volume, file) = (volume.clone(), file.clone());
            thread::spawn(move || {
                for n in 0..3 {
                    let ticket = thread * 10 + n;
                    if n % 2 == 0 {
                        volume.write(&file, AppId(0), 0, &[ticket as u8; 6], ticket);
                    } else {
                        volume.read(&file, AppId(0), 2, 6, ticket);
                    }
                }
            })
        })
        .collect();
    if how == Shutdown::Fail(libc::EIO) {
        volume.shutdown(how);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    volume.shutdown(how);
    let mut told = host.0.lock().unwrap().clone();
    told.sort_unstable();
    let tickets: Vec<u64> = told.iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!(tickets, [0, 1, 2, 10, 11, 12]);
    if how != Shutdown::Fail(libc::EIO) {
        assert!(told.iter().all(|(_, ok)| *ok));
    }
}

#[test]
fn every_ticket_comes_back_once() {
    let drain = Shutdown::Drain { timeout: Duration::from_secs(3600) };
    for policy in ["noop", "to-agg"] {
        for targets in [1, 2] {
            check(60, move || tickets(targets, policy, drain));
            check(60, move || tickets(targets, policy, Shutdown::Fail(libc::EIO)));
        }
    }
}

/// Writes over several targets when it is told of something.
#[derive(Default)]
struct WritesInside {
    volume: OnceLock<(Weak<Volume<WritesInside>>, FileRef)>,
    told: Mutex<Vec<u64>>,
    /// Bytes that it writes then, for tickets that are even and odd.
    sizes: [usize; 2],
}

/// Tickets of writes inside calls begin here.
const INSIDE: u64 = 100;

impl Host for WritesInside {
    type Ticket = u64;
    fn complete(&self, ticket: u64, _: io::Result<Done<'_>>) {
        self.told.lock().expect("no panic").push(ticket);
        let (volume, file) = self.volume.get().expect("set before anything is submitted");
        if let Some(volume) = volume.upgrade().filter(|_| ticket < INSIDE) {
            volume.write(file, AppId(0), 0, &[0; SIZE][..self.sizes[ticket as usize % 2]], INSIDE + ticket);
        }
    }
}

/// The volume ends while operations over its targets are submitted, by a host that submits more of them in its calls, of these
/// sizes, with so many bytes of memory.
pub fn writes_inside_at_the_end(sizes: [usize; 2], memory: u64) {
    let host = Arc::new(WritesInside { sizes, ..WritesInside::default() });
    let (volume, file) = start_for(host.clone(), 2, "to", 16, 1, |config| {
        (config.engine.in_flight_max, config.buffer_bytes_max) = (1, memory);
    });
    let volume = Arc::new(volume);
    assert!(host.volume.set((Arc::downgrade(&volume), file.clone())).is_ok());
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let (volume, file) = (volume.clone(), file.clone());
            thread::spawn(move || {
                (0..2).for_each(|n| volume.write(&file, AppId(0), 0, &[1; 6], thread * 10 + n));
            })
        })
        .collect();
    volume.shutdown(Shutdown::Fail(libc::EIO));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    volume.shutdown(Shutdown::Fail(libc::EIO));
    let mut told = host.told.lock().unwrap().clone();
    told.sort_unstable();
    assert_eq!(told, [0, 1, 10, 11, 100, 101, 110, 111]);
}

#[test]
fn a_volume_ends_whose_host_writes_in_its_calls() {
    check_stopping(2000, || writes_inside_at_the_end([6, 6], 1 << 20));
    // What is told while a small one is submitted waits for the memory that it has.
    check(1000, || writes_inside_at_the_end([6, 12], 12));
    check_stopping(2000, || writes_inside_at_the_end([6, 12], 12));
}

/// Requests go by the engine and through it in turns, as the algorithm changes: no write is lost in between.
pub fn bypassing() {
    let (volume, _, file) = volume(1, "noop", 8);
    let volume = Arc::new(volume);
    let changes = {
        let volume = volume.clone();
        thread::spawn(move || {
            for policy in ["to", "noop", "sjf", "noop"] {
                volume.set_policy(&PolicyConfig::parse(policy).unwrap());
            }
        })
    };
    let threads: Vec<_> = (1..3u8)
        .map(|writer| {
            let (volume, file) = (volume.clone(), file.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let mut back = [0; 3];
                    volume.write_at(&file, AppId(0), 0, &[writer; 3]).unwrap();
                    volume.read_at(&file, AppId(0), 0, &mut back).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    changes.join().unwrap();
    assert_eq!(volume.snapshot().runtime.total.total().completed(), 8);
    volume.shutdown(Shutdown::Drain { timeout: Duration::from_secs(1) });
}

#[test]
fn nothing_is_lost_beside_the_engine() {
    check(300, bypassing);
}

/// A write that the engine has, and then one that could go by it: the later one counts.
pub fn bypass_order() {
    let (volume, _, file) = slow_volume(1, "to", 8, 20);
    volume.write(&file, AppId(0), 0, &[1; 12], 0);
    volume.set_policy(&PolicyConfig::parse("noop").unwrap());
    volume.write_at(&file, AppId(0), 0, &[2; 12]).unwrap();
    volume.wait_idle(&file);
    let mut back = [0; 12];
    volume.read_at(&file, AppId(0), 0, &mut back).unwrap();
    assert_eq!(back, [2; 12]);
    volume.shutdown(Shutdown::Drain { timeout: Duration::from_secs(1) });
}

#[test]
fn what_goes_by_the_engine_comes_after_what_it_has() {
    check(400, bypass_order);
}

/// Operations of several sizes come at once where there is a place for one: each has its turn.
pub fn sizes() {
    let (volume, host, file) = volume_with(1, "to", 1, |config| config.buffer_bytes_max = 8);
    let volume = Arc::new(volume);
    let threads: Vec<_> = [2_usize, 4, 6]
        .into_iter()
        .map(|size| {
            let (volume, file) = (volume.clone(), file.clone());
            thread::spawn(move || volume.write(&file, AppId(0), 0, &[1; SIZE][..size], size as u64))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    volume.shutdown(Shutdown::Drain { timeout: Duration::from_secs(1) });
    let mut told = host.0.lock().unwrap().clone();
    told.sort_unstable();
    assert_eq!(told, [(2, true), (4, true), (6, true)]);
}

#[test]
fn who_waits_for_room_gets_it_whoever_looks_beside() {
    check(2_000, sizes);
    check_stopping(4_000, sizes);
}

/// A gate is set while others ask. Whoever has set it goes by the engine no more.
pub fn closing_the_bypass() {
    let (volume, _, file) = volume(1, "noop", 8);
    let volume = Arc::new(volume);
    let asking = {
        let volume = volume.clone();
        thread::spawn(move || (0..3).for_each(|_| _ = volume.scheduler().snapshot()))
    };
    volume.write_at(&file, AppId(0), 0, &[1; 4]).unwrap();
    let slice = |apps| GateSlice { apps, len_ns: 1_000_000 };
    let slices = vec![slice(vec![AppId(7)]), slice(Vec::new())];
    let plan = GatePlan { epoch: Time::ZERO, from: Time::ZERO, expires: Time(u64::MAX), slices, idle_ns: None };
    volume.set_gate(Some(&plan)).unwrap();
    let before = volume.passed_by();
    volume.write_at(&file, AppId(7), 0, &[2; 4]).unwrap();
    assert_eq!(volume.passed_by(), before);
    asking.join().unwrap();
    volume.set_gate(None).unwrap();
    volume.shutdown(Shutdown::Drain { timeout: Duration::from_secs(1) });
}

#[test]
fn nothing_goes_by_a_gate_that_was_set() {
    check(1_000, closing_the_bypass);
}
