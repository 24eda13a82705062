//! Ways to lose, hang or overrun that a reader of the code has found: each test failed before.

mod common;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use common::{Faulty, LIMIT, Results, create, in_time, storage};
use parking_lot::Mutex;
use sluice_core::{AppId, Batch, EngineConfig, FileId, Op, Outcome, PolicyConfig, Request, TargetId};
use sluice_runtime::{
    Client, Completer, Done, Driving, Executor, Host, Scheduler, SchedulerConfig, Shutdown, Volume, VolumeConfig,
};
use sluice_storage::FileRef;

fn vconfig(policy: &str) -> VolumeConfig {
    VolumeConfig::new(PolicyConfig::parse(policy).unwrap())
}

type Action = Box<dyn Fn(&Volume<Acts>, u64) + Send + Sync>;
struct Acts {
    volume: OnceLock<Weak<Volume<Acts>>>,
    action: OnceLock<Action>,
    told: Mutex<Sender<u64>>,
}
impl Host for Acts {
    type Ticket = u64;
    fn complete(&self, ticket: u64, _: io::Result<Done<'_>>) {
        if let (Some(volume), Some(action)) = (self.volume.get().and_then(Weak::upgrade), self.action.get()) {
            action(&volume, ticket);
        }
        let _ = self.told.lock().send(ticket);
    }
}
fn acts(
    storage: sluice_storage::Storage,
    config: VolumeConfig,
    action: Action,
) -> (Arc<Volume<Acts>>, std::sync::mpsc::Receiver<u64>) {
    let (tell, told) = channel();
    let host = Arc::new(Acts { volume: OnceLock::new(), action: OnceLock::new(), told: Mutex::new(tell) });
    let volume = Arc::new(Volume::start(storage, host.clone(), config).unwrap());
    let _ = host.volume.set(Arc::downgrade(&volume));
    let _ = host.action.set(action);
    (volume, told)
}

/// A volume over a directory whose data can be kept from moving, and a file in it.
struct Bed {
    volume: Arc<Volume<Acts>>,
    told: std::sync::mpsc::Receiver<u64>,
    file: FileRef,
    data: Arc<Faulty>,
}
impl Bed {
    fn writes(&self, offset: u64, bytes: &[u8], ticket: u64) {
        self.volume.write(&self.file, AppId(0), offset, bytes, ticket);
    }
    fn hears(&self, count: usize) {
        (0..count).for_each(|_| _ = self.told.recv().unwrap());
    }
}

/// Runs `test` with a volume whose host does `inside` when it is told of an end.
fn inside(
    what: &'static str,
    config: VolumeConfig,
    inside: impl Fn(&Volume<Acts>, &FileRef, u64) + Send + Sync + 'static,
    test: impl FnOnce(&Bed) + Send + 'static,
) {
    in_time(what, move || {
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), 1);
        let file = create(&plain, "f");
        let (data, storage) = Faulty::over(&plain, u64::MAX, usize::MAX);
        let again = file.clone();
        let (volume, told) = acts(storage, config, Box::new(move |volume, n| inside(volume, &again, n)));
        let bed = Bed { volume, told, file, data };
        test(&bed);
        std::mem::forget(bed.volume);
    });
}

/// A chain of reads of a cached file, each submitted when the one before ends.
#[test]
fn chain_of_cached_reads() {
    for policy in ["sjf", "noop"] {
        in_time("chain", move || {
            const COUNT: u64 = 200_000;
            let dir = tempfile::tempdir().unwrap();
            let storage = storage(dir.path(), 1);
            let file = create(&storage, "f");
            let again = file.clone();
            let (volume, told) = acts(
                storage,
                vconfig(policy),
                Box::new(move |volume, n| {
                    if n < COUNT {
                        volume.read(&again, AppId(0), 0, 512, n + 1);
                    }
                }),
            );
            volume.write_at(&file, AppId(0), 0, &[1; 4096]).unwrap();
            volume.read(&file, AppId(0), 0, 512, 1);
            while told.recv().unwrap() != COUNT {}
            std::mem::forget(volume);
        });
    }
}

/// A completion that waits (for a request that another one, dispatched already, is before).
#[test]
fn read_at_inside_complete() {
    let reads = |volume: &Volume<Acts>, file: &FileRef, n| {
        if n == 1 {
            volume.read_at(file, AppId(0), 0, &mut [0; 4096]).unwrap();
        }
    };
    inside("read_at in complete", vconfig("sjf"), reads, |bed| {
        bed.data.set_open(false);
        bed.writes(0, &[1; 4096], 1);
        bed.writes(0, &[2; 4096], 2);
        bed.data.set_open(true);
        bed.hears(2);
    });
}

/// A completion that submits more than there is room for: waits for other requests.
#[test]
fn submit_on_a_full_volume_inside_complete() {
    let mut config = vconfig("sjf");
    (config.engine.capacity, config.engine.in_flight_max) = (2, 1);
    let submits = |volume: &Volume<Acts>, file: &FileRef, n| {
        if n == 1 {
            volume.write(file, AppId(0), 1 << 20, &[1; 4096], 3);
            volume.write(file, AppId(0), 1 << 24, &[1; 4096], 4);
        }
    };
    inside("submit in complete", config, submits, |bed| {
        bed.data.set_open(false);
        bed.writes(0, &[1; 4096], 1);
        bed.writes(8192, &[2; 4096], 2);
        bed.data.set_open(true);
        bed.hears(4);
    });
}

/// As above, where memory is what is full: of the very request that is being told.
#[test]
fn bytes_of_the_request_that_is_told() {
    let reads = |volume: &Volume<Acts>, file: &FileRef, n| {
        if n < 3 {
            volume.read(file, AppId(0), 0, 4096, n + 1);
        }
    };
    inside("bytes", VolumeConfig { buffer_bytes_max: 4096, ..vconfig("sjf") }, reads, |bed| {
        bed.volume.read(&bed.file, AppId(0), 0, 4096, 1);
        bed.hears(3);
    });
}

struct Ends {
    scheduler: OnceLock<Weak<Scheduler>>,
    client: OnceLock<Weak<Client>>,
    cancelled: AtomicU64,
    told: Mutex<Sender<u32>>,
}
fn request(cookie: u64, file: u64, target: u32) -> Request {
    Request {
        cookie,
        file: FileId(file),
        app: AppId(0),
        target: TargetId(target),
        op: Op::Read,
        offset: cookie * 8192,
        len: 4096,
    }
}
impl Executor for Ends {
    fn start(&self, _: &Batch, _: &sluice_runtime::Started<'_>) {
        let scheduler = self.scheduler.wait().upgrade().unwrap();
        let client = self.client.wait().upgrade().unwrap();
        (1..512).for_each(|n| client.try_submit(0, request(n, 1, 0)).unwrap());
        let report = scheduler.shutdown(Shutdown::Fail(libc::EIO));
        let _ = self.told.lock().send(report.failed);
        std::mem::forget((scheduler, client));
    }
    fn cancelled(&self, _: &Request, _: i32) {
        self.cancelled.fetch_add(1, Ordering::SeqCst);
    }
}

/// Shutting down inside a call on the scheduler's own thread.
#[test]
fn shutdown_inside_a_call_on_the_own_thread() {
    let (tell, told) = channel();
    let host = Arc::new(Ends {
        scheduler: OnceLock::new(),
        client: OnceLock::new(),
        cancelled: AtomicU64::new(0),
        told: Mutex::new(tell),
    });
    let engine = EngineConfig { in_flight_max: 1, max_wait_ns: 0, ..EngineConfig::default() };
    let config = SchedulerConfig {
        driving: Driving::Thread,
        engine,
        ..SchedulerConfig::new(PolicyConfig::parse("to").unwrap())
    };
    let scheduler = Arc::new(Scheduler::start(config).unwrap());
    let client = Arc::new(scheduler.attach(host.clone()).unwrap());
    let _ = host.scheduler.set(Arc::downgrade(&scheduler));
    let _ = host.client.set(Arc::downgrade(&client));
    client.submit(0, request(0, 1, 0)).unwrap();
    match told.recv_timeout(LIMIT) {
        Ok(failed) => assert_eq!(failed, 511),
        Err(_) => {
            eprintln!("HANG: {} of 511 cancelled", host.cancelled.load(Ordering::SeqCst));
            std::process::exit(77);
        }
    }
    std::mem::forget((scheduler, client));
}

struct Quiet;
impl Executor for Quiet {
    fn start(&self, batch: &Batch, completer: &sluice_runtime::Started<'_>) {
        batch.parts().iter().for_each(|part| completer.complete(part.id, Outcome::ok(part.request.len)));
    }
    fn cancelled(&self, _: &Request, _: i32) {}
}

/// A client leaves whose requests are stalled behind another one's.
#[test]
fn a_client_leaves_behind_anothers_stalled_request() {
    in_time("leaves before the window ends", || {
        let window_ns = 3_600_000_000_000;
        let engine = EngineConfig { files_max: 1, max_wait_ns: 0, window_ns, ..EngineConfig::default() };
        let policy =
            PolicyConfig::parse("twins").unwrap().with("window", "3600s").unwrap().with("alone_after", "0").unwrap();
        let scheduler = Scheduler::start(SchedulerConfig { engine, ..SchedulerConfig::new(policy) }).unwrap();
        let a = scheduler.attach_targets(Arc::new(Quiet), 1..2).unwrap();
        let b = scheduler.attach_targets(Arc::new(Quiet), 0..1).unwrap();
        b.submit(0, request(9, 9, 0)).unwrap(); // the window is target 0's
        a.submit(0, request(1, 1, 1)).unwrap();
        b.submit(0, request(2, 2, 0)).unwrap();
        a.submit(0, request(3, 3, 1)).unwrap();
        let snapshot = scheduler.snapshot();
        eprintln!("queued {} in flight {}", snapshot.shards[0].queued, snapshot.shards[0].in_flight);
        eprintln!("{:?}", a.detach(Shutdown::Fail(libc::EIO)));
        b.detach(Shutdown::Fail(libc::EIO));
    });
}

/// A predicate of one thread that panics.
#[test]
fn a_predicate_that_panics() {
    in_time("predicate", || {
        let engine = EngineConfig { in_flight_max: 1, max_wait_ns: 0, ..EngineConfig::default() };
        let scheduler =
            Scheduler::start(SchedulerConfig { engine, ..SchedulerConfig::new(PolicyConfig::parse("to").unwrap()) })
                .unwrap();
        struct Keeps;
        impl Executor for Keeps {
            fn start(&self, _: &Batch, _: &sluice_runtime::Started<'_>) {}
            fn cancelled(&self, _: &Request, _: i32) {}
        }
        let client = scheduler.attach(Arc::new(Keeps)).unwrap();
        (0..3).for_each(|n| client.submit(0, request(n, 1, 0)).unwrap());
        let call = std::panic::AssertUnwindSafe(|| client.cancel_where(0, |_| panic!("on purpose")));
        assert!(std::panic::catch_unwind(call).is_err());
        let _ = scheduler.snapshot();
    });
}

struct PanicsOnTry(Faulty);
impl sluice_storage::Data for PanicsOnTry {
    fn layout(&self) -> sluice_storage::Layout {
        self.0.layout()
    }
    fn describe(&self) -> String {
        "panics".to_owned()
    }
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read(file, target, offset, bufs)
    }
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(file, target, offset, bufs)
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.0.sync(file, metadata)
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.0.size_at_least(file, end)
    }
    fn try_read(&self, _: &FileRef, _: usize, _: u64, _: &mut [io::IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        panic!("on purpose")
    }
}

/// A storage that panics where it is asked for what is cached.
#[test]
fn a_storage_that_panics_elsewhere() {
    in_time("try_read", || {
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), 1);
        let file = create(&plain, "f");
        let data = Arc::new(PanicsOnTry(Faulty::new(plain.data.clone())));
        let storage = sluice_storage::Storage { data, ..plain };
        let host = Arc::new(Results::default());
        let volume = Volume::start(storage, host.clone(), vconfig("sjf")).unwrap();
        let call = std::panic::AssertUnwindSafe(|| volume.read(&file, AppId(0), 0, 4096, 1));
        eprintln!("unwound into the caller: {}", std::panic::catch_unwind(call).is_err());
        host.take(1);
    });
}

/// A client cancels a request that is another's.
#[test]
fn a_client_cannot_cancel_anothers_request() {
    in_time("foreign cancel", || {
        let engine = EngineConfig { in_flight_max: 1, max_wait_ns: 0, ..EngineConfig::default() };
        let scheduler =
            Scheduler::start(SchedulerConfig { engine, ..SchedulerConfig::new(PolicyConfig::parse("to").unwrap()) })
                .unwrap();
        struct Keeps(Mutex<Vec<(sluice_core::RequestId, Completer)>>);
        impl Executor for Keeps {
            fn start(&self, batch: &Batch, completer: &sluice_runtime::Started<'_>) {
                self.0.lock().push((batch.parts()[0].id, completer.completer().clone()));
            }
            fn cancelled(&self, _: &Request, _: i32) {}
        }
        let host = Arc::new(Keeps(Mutex::default()));
        let a = scheduler.attach_targets(host.clone(), 0..1).unwrap();
        let b = scheduler.attach_targets(host.clone(), 1..2).unwrap();
        a.submit(0, request(0, 1, 0)).unwrap();
        let id = b.submit_with_id(0, request(1, 2, 1)).unwrap();
        eprintln!("A cancels B's: {:?}", a.cancel(0, id).is_ok());
        let (id, completer) = host.0.lock().remove(0);
        completer.complete(id, Outcome::ok(4096));
        eprintln!("B leaves");
        eprintln!("{:?}", b.detach(Shutdown::Fail(libc::EIO)));
        eprintln!("A leaves");
        eprintln!("{:?}", a.detach(Shutdown::Fail(libc::EIO)));
    });
}

type Call = Box<dyn Fn() + Send + Sync>;
#[derive(Default)]
struct Keeps {
    kept: Mutex<Vec<(sluice_core::RequestId, Completer)>>,
    in_start: OnceLock<Call>,
    in_cancelled: OnceLock<Call>,
}
impl Executor for Keeps {
    fn start(&self, batch: &Batch, completer: &sluice_runtime::Started<'_>) {
        self.kept.lock().extend(batch.parts().iter().map(|part| (part.id, completer.completer().clone())));
        if let Some(call) = self.in_start.get() {
            call();
        }
    }
    fn cancelled(&self, _: &Request, _: i32) {
        if let Some(call) = self.in_cancelled.get() {
            call();
        }
    }
}
impl Keeps {
    fn complete(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        kept.into_iter().for_each(|(id, completer)| completer.complete(id, Outcome::ok(4096)));
    }
}
fn sconfig(shards: usize) -> SchedulerConfig {
    let engine = EngineConfig { in_flight_max: 1, max_wait_ns: 0, ..EngineConfig::default() };
    SchedulerConfig { engine, shards, ..SchedulerConfig::new(PolicyConfig::parse("to").unwrap()) }
}

/// A client of two engines leaves; what is queued in the second one fails.
#[test]
fn detach_over_two_shards_fails_what_is_queued() {
    in_time("detach over shards", || {
        let scheduler = Scheduler::start(sconfig(2)).unwrap();
        let host = Arc::new(Keeps::default());
        let client = scheduler.attach_targets(host.clone(), 0..4).unwrap();
        client.submit(1, request(0, 1, 0)).unwrap();
        client.submit(1, request(1, 1, 0)).unwrap();
        let report = client.detach(Shutdown::Fail(libc::EIO));
        eprintln!("{report:?}");
    });
}

#[test]
fn detach_over_two_shards_counts_once() {
    let scheduler = Scheduler::start(sconfig(2)).unwrap();
    let host = Arc::new(Keeps::default());
    let client = scheduler.attach_targets(host.clone(), 0..4).unwrap();
    client.submit(1, request(0, 1, 0)).unwrap();
    let report = client.detach(Shutdown::Fail(libc::EIO));
    eprintln!("{report:?}");
    assert_eq!(report.in_flight, 1);
}

#[test]
fn draining_over_two_shards_ends_when_all_has_ended() {
    in_time("draining over shards", || {
        let scheduler = Scheduler::start(sconfig(2)).unwrap();
        let host = Arc::new(Keeps::default());
        let client = scheduler.attach_targets(host.clone(), 0..4).unwrap();
        client.submit(1, request(0, 1, 0)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pause(Duration::from_millis(300));
                host.complete();
            });
            let report = client.detach(Shutdown::Drain { timeout: 30 * LIMIT });
            assert_eq!((report.failed, report.in_flight), (0, 0));
        });
    });
}

/// The scheduler ends inside the call that tells of a cancellation.
#[test]
fn shutdown_inside_cancelled() {
    in_time("shutdown in cancelled", || {
        let scheduler = Arc::new(Scheduler::start(sconfig(1)).unwrap());
        let host = Arc::new(Keeps::default());
        let client = scheduler.attach(host.clone()).unwrap();
        (0..2).for_each(|n| client.submit(0, request(n, 1, 0)).unwrap());
        let weak = Arc::downgrade(&scheduler);
        let _ = host.in_cancelled.set(Box::new(move || {
            let scheduler = weak.upgrade().unwrap();
            eprintln!("{:?}", scheduler.shutdown(Shutdown::Fail(libc::EIO)));
            std::mem::forget(scheduler);
        }));
        eprintln!("{:?}", client.detach(Shutdown::Fail(libc::EIO)));
    });
}

/// A client that shares its scheduler leaves inside a call of its own.
#[test]
fn a_shared_client_leaves_inside_its_own_call() {
    for alone in [true, false] {
        in_time(if alone { "alone" } else { "shared: detach in start" }, move || {
            let scheduler = Scheduler::start(sconfig(1)).unwrap();
            let host = Arc::new(Keeps::default());
            let client =
                if alone { scheduler.attach(host.clone()) } else { scheduler.attach_targets(host.clone(), 0..4) };
            let client = Arc::new(client.unwrap());
            let weak = Arc::downgrade(&client);
            let _ = host.in_start.set(Box::new(move || {
                let client = weak.upgrade().unwrap();
                eprintln!("{:?}", client.detach(Shutdown::Fail(libc::EIO)));
                std::mem::forget(client);
            }));
            client.submit(0, request(0, 1, 0)).unwrap();
            host.complete();
        });
    }
}

/// The scheduler goes first; its client completes what was in flight, then leaves.
#[test]
fn a_client_that_outlives_its_scheduler_knows_that_all_has_ended() {
    let scheduler = Scheduler::start(sconfig(1)).unwrap();
    let host = Arc::new(Keeps::default());
    let client = scheduler.attach_targets(host.clone(), 0..4).unwrap();
    client.submit(0, request(0, 1, 0)).unwrap();
    scheduler.shutdown(Shutdown::Fail(libc::EIO));
    host.complete();
    let report = client.detach(Shutdown::Drain { timeout: LIMIT });
    assert_eq!(report.in_flight, 0);
}

struct Slow(AtomicU64);
impl Host for Slow {
    type Ticket = ();
    fn complete(&self, (): (), _: io::Result<Done<'_>>) {
        pause(Duration::from_millis(500));
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
/// When a volume has ended every host was told.
#[test]
fn the_end_of_a_volume_comes_after_the_last_call() {
    use sluice_storage::null::NullStorage;
    use sluice_storage::{Layout, Namespace, Storage};
    let null = NullStorage::asynchronous(Layout::striped(1, 4096), 1 << 30).unwrap();
    let file = null.open(&null.lookup(&null.root(), "1".as_ref()).unwrap(), libc::O_RDWR).unwrap();
    let host = Arc::new(Slow(AtomicU64::new(0)));
    let volume = Volume::start(Storage::from(null), host.clone(), vconfig("sjf")).unwrap();
    volume.read(&file, AppId(0), 0, 4096, ());
    volume.shutdown(Shutdown::Drain { timeout: LIMIT });
    assert_eq!(host.0.load(Ordering::SeqCst), 1, "told when shutdown() returned");
}

/// One request waits for a place in the table of files; nothing was refused.
#[test]
fn a_stalled_request_is_not_refused_again_and_again() {
    let mut config = sconfig(1);
    config.engine.files_max = 1;
    let scheduler = Scheduler::start(config).unwrap();
    let host = Arc::new(Keeps::default());
    let client = scheduler.attach(host.clone()).unwrap();
    client.submit(0, request(0, 1, 0)).unwrap();
    client.submit(0, request(1, 2, 0)).unwrap();
    (0..100).for_each(|_| _ = scheduler.snapshot());
    let refused = scheduler.snapshot().total.total().refused;
    eprintln!(
        "refused: {refused}; found by cancel_where: {:?}",
        client.cancel_where(0, |request| request.cookie == 1).is_some()
    );
    assert!(refused <= 1, "{refused}");
}

/// Requests of four kilobytes, one at a time.
fn small_pieces() -> VolumeConfig {
    let mut config = VolumeConfig { request_bytes_max: 4096, ..vconfig("sjf") };
    (config.engine.capacity, config.engine.in_flight_max, config.engine.batch_requests_max) = (2, 1, 1);
    config
}

/// One operation of several pieces, submitted inside a completion, while another one waits for places.
#[test]
fn pieces_submitted_inside_complete() {
    let submits = |volume: &Volume<Acts>, file: &FileRef, n| {
        if n == 1 {
            volume.write(file, AppId(0), 0, &[3; 5 * 4096], 3);
        }
    };
    inside("pieces in complete", small_pieces(), submits, |bed| {
        bed.data.set_open(false);
        bed.writes(0, &[1; 4096], 1);
        let (volume, file) = (&bed.volume, &bed.file);
        std::thread::scope(|scope| {
            scope.spawn(|| volume.write(file, AppId(0), 1 << 20, &[2; 5 * 4096], 2));
            pause(Duration::from_millis(200));
            bed.data.set_open(true);
            bed.hears(3);
        });
    });
}

/// Ends transfers before `start` returns: inside the call, or (`elsewhere`) on a thread that is faster than the caller.
struct AtOnce {
    below: Arc<dyn sluice_storage::Data>,
    elsewhere: Option<Mutex<(Sender<sluice_storage::Transfer>, std::sync::mpsc::Receiver<()>)>>,
}
impl AtOnce {
    fn elsewhere(below: Arc<dyn sluice_storage::Data>) -> AtOnce {
        let (give, take) = channel::<sluice_storage::Transfer>();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for transfer in take {
                let len = transfer.len();
                transfer.end(Ok(len));
                if tell.send(()).is_err() {
                    return;
                }
            }
        });
        AtOnce { below, elsewhere: Some(Mutex::new((give, told))) }
    }
}
impl sluice_storage::Data for AtOnce {
    fn layout(&self) -> sluice_storage::Layout {
        self.below.layout()
    }
    fn describe(&self) -> String {
        "ends transfers inside start".to_owned()
    }
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        self.below.read(file, target, offset, bufs)
    }
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.below.write(file, target, offset, bufs)
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.below.sync(file, metadata)
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.below.size_at_least(file, end)
    }
    fn start(&self, transfer: sluice_storage::Transfer) -> sluice_storage::Started {
        match &self.elsewhere {
            Some(thread) => {
                let (give, told) = &*thread.lock();
                give.send(transfer).unwrap();
                told.recv().unwrap();
            }
            None => {
                let len = transfer.len();
                transfer.end(Ok(len));
            }
        }
        sluice_storage::Started::Accepted
    }
}
/// Each write is submitted inside the call that tells of the one before: `len` bytes, `count` times.
fn chain(what: &'static str, data: fn(Arc<dyn sluice_storage::Data>) -> AtOnce, len: usize, count: u64) {
    in_time(what, move || {
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), 1);
        let file = create(&plain, "f");
        let storage = sluice_storage::Storage { data: Arc::new(data(plain.data.clone())), ..plain };
        let again = file.clone();
        let action: Action = Box::new(move |volume, n| {
            if n < count {
                volume.write(&again, AppId(0), 0, &vec![1; len], n + 1);
            }
        });
        let (volume, told) = acts(storage, vconfig("sjf"), action);
        volume.write(&file, AppId(0), 0, &vec![1; len], 1);
        while told.recv().unwrap() != count {}
        std::mem::forget(volume);
    });
}

/// A storage may end a transfer inside `start`.
#[test]
fn chain_over_a_storage_that_ends_at_once() {
    chain("at once", |below| AtOnce { below, elsewhere: None }, 512, 200_000);
}

/// The submitter is the last to see its operation and tells of it, inside the call that submitted it.
#[test]
fn chain_over_a_storage_that_is_faster_than_the_submitter() {
    chain("faster", AtOnce::elsewhere, 512, 10_000);
}

#[test]
fn chain_of_writes_of_nothing() {
    chain("nothing", |below| AtOnce { below, elsewhere: None }, 0, 200_000);
}

/// Lets others go on for so long.
fn pause(time: Duration) {
    let (lock, never) = (parking_lot::Mutex::new(()), parking_lot::Condvar::new());
    never.wait_for(&mut lock.lock(), time);
}

/// One operation of several pieces, submitted inside a completion, needs the place of a request that was dispatched before
/// that completion was told, and that only this thread can start.
#[test]
fn pieces_submitted_inside_complete_before_what_was_dispatched_is_started() {
    let submits = |volume: &Volume<Acts>, file: &FileRef, n| {
        if n == 1 {
            volume.write(file, AppId(0), 1 << 20, &[3; 5 * 4096], 3);
        }
    };
    inside("pieces before what was dispatched", small_pieces(), submits, |bed| {
        bed.data.set_open(false);
        bed.writes(0, &[1; 4096], 1);
        bed.writes(8192, &[2; 4096], 2);
        bed.data.set_open(true);
        bed.hears(3);
    });
}

/// A completion may submit on a full volume, also where the thread that tells of it is the one that hears of all others.
#[test]
fn submit_on_a_full_volume_inside_complete_of_a_ring() {
    for driving in [Driving::Caller, Driving::Thread] {
        in_time("submit in complete, ring", move || {
            let dir = tempfile::tempdir().unwrap();
            let storage = storage(dir.path(), 1);
            let file = create(&storage, "f");
            let again = file.clone();
            let workers = sluice_runtime::Workers::Ring;
            let mut config = VolumeConfig { workers, driving, inline: false, ..vconfig("sjf") };
            config.engine.capacity = 2;
            let (volume, told) = acts(
                storage,
                config,
                Box::new(move |volume, n| {
                    if n == 1 {
                        (2..6).for_each(|n| volume.write(&again, AppId(0), n << 20, &[1; 4096], n));
                    }
                }),
            );
            // The first one finds out that the storage ends nothing by itself.
            for n in 0..2 {
                volume.write(&file, AppId(0), 0, &[1; 4096], n);
                if n == 0 {
                    told.recv().unwrap();
                }
            }
            (1..6).for_each(|_| _ = told.recv().unwrap());
            std::mem::forget(volume);
        });
    }
}

/// Keeps the first transfer until it is told to go on; the others end inside `start`.
struct KeepsFirst {
    below: AtOnce,
    first: Mutex<Option<sluice_storage::Transfer>>,
    seen: AtomicU64,
}
impl sluice_storage::Data for KeepsFirst {
    fn layout(&self) -> sluice_storage::Layout {
        self.below.layout()
    }
    fn describe(&self) -> String {
        self.below.describe()
    }
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        self.below.read(file, target, offset, bufs)
    }
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.below.write(file, target, offset, bufs)
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.below.sync(file, metadata)
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.below.size_at_least(file, end)
    }
    fn start(&self, transfer: sluice_storage::Transfer) -> sluice_storage::Started {
        if self.seen.fetch_add(1, Ordering::SeqCst) > 0 {
            return self.below.start(transfer);
        }
        *self.first.lock() = Some(transfer);
        sluice_storage::Started::Accepted
    }
}

/// A storage ends a transfer inside `start`, and the completion waits for what was dispatched together with it.
#[test]
fn a_completion_inside_start_waits_for_what_is_started_next() {
    in_time("waits inside start", || {
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), 1);
        let file = create(&plain, "f");
        let below = AtOnce { below: plain.data.clone(), elsewhere: None };
        let data = Arc::new(KeepsFirst { below, first: Mutex::new(None), seen: AtomicU64::new(0) });
        let storage = sluice_storage::Storage { data: data.clone(), ..plain };
        let again = file.clone();
        let (volume, told) = acts(
            storage,
            VolumeConfig { inline: false, ..vconfig("to") },
            Box::new(move |volume, n| {
                if n == 1 {
                    volume.write_at(&again, AppId(0), 4096, &[4; 4096]).unwrap();
                }
            }),
        );
        // Two that wait for the first, and go together when that ends.
        volume.write(&file, AppId(0), 0, &[1; 8192], 0);
        volume.write(&file, AppId(0), 0, &[2; 4096], 1);
        volume.write(&file, AppId(0), 4096, &[3; 4096], 2);
        let first = data.first.lock().take().unwrap();
        first.end(Ok(8192));
        (0..3).for_each(|_| _ = told.recv().unwrap());
        std::mem::forget(volume);
    });
}
