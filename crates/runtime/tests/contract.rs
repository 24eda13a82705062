//! What a scheduler promises its hosts, with real threads: order, the end, calls from inside calls, and no waking for nothing.
//! `tests/model.rs` checks the same protocols in orders of threads that seldom happen.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock, Weak};
use std::time::Duration;

use common::{Faulty, Results, create, storage};
use parking_lot::{Condvar, Mutex};
use sluice_core::{
    AppId, Batch, Chosen, EngineConfig, Expected, FileId, Op, Outcome, PolicyConfig, Predictor, Request, RequestId,
    TargetId, Time,
};
use sluice_runtime::{
    AttachError, Client, Completer, Done, Driving, Executor, Host, Scheduler, SchedulerConfig, Shutdown,
    ShutdownReport, Started, SubmitError, Volume, VolumeConfig,
};

const BOTH: [Driving; 2] = [Driving::Caller, Driving::Thread];
const DRAIN: Shutdown = Shutdown::Drain { timeout: common::LIMIT };

fn request(cookie: u64, file: u64) -> Request {
    let (file, app, target) = (FileId(file), AppId(0), TargetId(0));
    Request { cookie, file, app, target, op: Op::Read, offset: cookie * 4096, len: 4096 }
}

fn config(policy: &str, driving: Driving, engine: EngineConfig) -> SchedulerConfig {
    SchedulerConfig { driving, engine, ..SchedulerConfig::new(PolicyConfig::parse(policy).unwrap()) }
}

type Parts = Vec<(RequestId, Request, Completer)>;

/// Notes in which order it was told what; completes at once, or keeps.
#[derive(Default)]
struct Notes {
    started: Mutex<Vec<u64>>,
    cancelled: AtomicU32,
    kept: Mutex<Parts>,
    keeps: AtomicBool,
    more: Condvar,
}

impl Executor for Notes {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        for part in batch.parts() {
            self.started.lock().push(part.request.cookie);
            if self.keeps.load(Ordering::SeqCst) {
                self.kept.lock().push((part.id, part.request, started.completer().clone()));
            } else {
                started.complete(part.id, Outcome::ok(part.request.len));
            }
        }
        self.more.notify_all();
    }

    fn cancelled(&self, _: &Request, _: i32) {
        self.cancelled.fetch_add(1, Ordering::SeqCst);
    }
}

impl Notes {
    fn keeping() -> Arc<Notes> {
        let notes = Notes::default();
        notes.keeps.store(true, Ordering::SeqCst);
        Arc::new(notes)
    }

    /// Takes `count` requests that were started and not completed.
    fn take(&self, count: usize) -> Parts {
        let mut kept = self.kept.lock();
        while kept.len() < count {
            self.more.wait_for(&mut kept, Duration::from_millis(20));
        }
        kept.drain(..count).collect()
    }

    fn complete(&self, parts: Parts) {
        parts.into_iter().for_each(|(id, request, completer)| completer.complete(id, Outcome::ok(request.len)));
    }
}

/// What is submitted together is aggregated, though the engine could have started the first at once.
#[test]
fn a_list_is_dispatched_once_all_of_it_is_there() {
    let engine = EngineConfig { capacity: 4, in_flight_max: 1, ..EngineConfig::default() };
    let notes = Arc::new(Notes { keeps: true.into(), ..Notes::default() });
    let scheduler = Scheduler::start(config("hbrr", Driving::Caller, engine)).unwrap();
    let client = scheduler.attach(notes.clone()).unwrap();
    let list: Vec<Request> = (0..5).map(|n| request(n, 0)).collect();
    let (accepted, result) = client.try_submit_list(0, &list);
    assert_eq!(accepted, 4);
    assert!(matches!(result, Err(SubmitError::Full(refused)) if refused == list[4]), "{result:?}");
    assert_eq!(*notes.started.lock(), [0, 1, 2, 3], "as one batch: one may be in flight");
    for (id, request, completer) in std::mem::take(&mut *notes.kept.lock()) {
        completer.complete(id, Outcome::ok(request.len));
    }
    let (accepted, result) = client.try_submit_list(0, &[]);
    assert!(accepted == 0 && result.is_ok());
    scheduler.shutdown(DRAIN);
    let (accepted, result) = client.try_submit_list(0, &list);
    assert!(accepted == 0 && matches!(result, Err(SubmitError::Closed)));
}

#[test]
fn a_request_submitted_for_its_handle_comes_after_those_before_it() {
    for driving in BOTH {
        let host = Arc::new(Notes::default());
        // With more in flight two threads may start one each: who is the first to call the host is nobody's promise.
        let engine = EngineConfig { in_flight_max: 1, ..EngineConfig::default() };
        let scheduler = Scheduler::start(config("to", driving, engine)).unwrap();
        let client = scheduler.attach(host.clone()).unwrap();
        for cookie in 0..400 {
            if cookie % 2 == 0 {
                client.submit(0, request(cookie, 1)).unwrap();
            } else {
                client.submit_with_id(0, request(cookie, 1)).unwrap();
            }
        }
        scheduler.wait_empty();
        assert!(host.started.lock().is_sorted(), "{driving:?}");
    }
}

#[test]
fn the_end_tells_every_host_of_every_request() {
    const COUNT: u32 = 20_000;
    // With a thread of its own, and nobody who completes.
    let engine = EngineConfig { capacity: COUNT, in_flight_max: 1, ..EngineConfig::default() };
    for driving in BOTH {
        let host = Notes::keeping();
        let scheduler = Scheduler::start(config("to", driving, engine.clone())).unwrap();
        let client = scheduler.attach(host.clone()).unwrap();
        (0..u64::from(COUNT)).for_each(|cookie| client.submit(0, request(cookie, 1)).unwrap());
        let report = scheduler.shutdown(Shutdown::Fail(libc::EIO));
        let started = host.started.lock().len() as u32;
        assert_eq!((report.failed, report.in_flight), (COUNT - started, started), "{driving:?}");
        assert_eq!(host.cancelled.load(Ordering::SeqCst), COUNT - started);
        assert!(matches!(client.submit(0, request(0, 1)), Err(SubmitError::Closed)));
        // Reporting late is harmless.
        host.complete(host.take(started as usize));
        assert_eq!(scheduler.snapshot().shards[0].in_flight, 0);
    }
    // Most of them wait in front of an engine whose table of files is full.
    let engine = EngineConfig { capacity: 3_000, files_max: 2, ..EngineConfig::default() };
    let host = Notes::keeping();
    let scheduler = Scheduler::start(config("to", Driving::Caller, engine)).unwrap();
    let client = scheduler.attach(host.clone()).unwrap();
    (0..3_000).for_each(|cookie| client.submit(0, request(cookie, cookie)).unwrap());
    let report = scheduler.shutdown(Shutdown::Fail(libc::EIO));
    assert_eq!(report.failed + report.in_flight, 3_000);
    assert_eq!(host.cancelled.load(Ordering::SeqCst), report.failed);
}

#[test]
fn a_request_that_the_engine_had_no_room_for_goes_when_there_is() {
    for driving in BOTH {
        let engine = EngineConfig { files_max: 2, ..EngineConfig::default() };
        let host = Notes::keeping();
        let scheduler = Scheduler::start(config("to", driving, engine)).unwrap();
        let client = scheduler.attach(host.clone()).unwrap();
        (0..3).for_each(|cookie| client.submit(0, request(cookie, cookie)).unwrap());
        // The third one needs no call from outside once a place is free, also if that comes about inside a call.
        let first = host.take(2);
        host.keeps.store(false, Ordering::SeqCst);
        host.complete(first);
        scheduler.wait_empty();
        assert_eq!(*host.started.lock(), [0, 1, 2]);
    }
}

#[test]
fn a_thread_of_its_own_sleeps_while_nothing_can_be_done() {
    let engine = EngineConfig { files_max: 1, max_wait_ns: 0, ..EngineConfig::default() };
    let host = Notes::keeping();
    let scheduler = Scheduler::start(config("to", Driving::Thread, engine)).unwrap();
    let client = scheduler.attach(host.clone()).unwrap();
    (0..2).for_each(|cookie| client.submit(0, request(cookie, cookie)).unwrap());
    let first = host.take(1);
    let before = scheduler.snapshot().wakes;
    let (lock, never) = (Mutex::new(()), Condvar::new());
    never.wait_for(&mut lock.lock(), Duration::from_millis(300));
    let woken = scheduler.snapshot().wakes - before;
    assert!(woken < 20, "woke {woken} times in 0.3 s with nothing to do");
    host.complete(first);
    host.complete(host.take(1));
    scheduler.wait_empty();
}

/// Calls everything from inside its calls, and notes whether it was called inside one.
struct Caller {
    client: OnceLock<Weak<Client>>,
    scheduler: OnceLock<Weak<Scheduler>>,
    inside: AtomicU32,
    deepest: AtomicU32,
    told: AtomicU32,
}

impl Executor for Caller {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        let depth = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.deepest.fetch_max(depth, Ordering::SeqCst);
        for part in batch.parts() {
            self.told.fetch_add(1, Ordering::SeqCst);
            let (client, scheduler) = (self.client.get().unwrap().upgrade(), self.scheduler.get().unwrap().upgrade());
            if let (Some(client), Some(scheduler), 0..10) = (client, scheduler, part.request.cookie) {
                let id = client.submit_with_id(0, request(1_000 + part.request.cookie, 7)).unwrap();
                let _ = client.cancel(0, id).map(|_| self.told.fetch_add(1, Ordering::SeqCst));
                client.try_submit(0, request(100 + part.request.cookie, 7)).unwrap();
                scheduler.set_policy(&PolicyConfig::parse("sjf").unwrap());
                assert!(scheduler.snapshot().total.total().submitted() > 0);
                assert!(scheduler.limits().capacity > 0);
            }
            started.complete(part.id, Outcome::ok(part.request.len));
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

#[test]
fn a_host_may_call_anything_from_inside_a_call() {
    for driving in BOTH {
        let zero = || AtomicU32::new(0);
        let (client, scheduler) = (OnceLock::new(), OnceLock::new());
        let host = Arc::new(Caller { client, scheduler, inside: zero(), deepest: zero(), told: zero() });
        let scheduler = Arc::new(Scheduler::start(config("to", driving, EngineConfig::default())).unwrap());
        let client = Arc::new(scheduler.attach(host.clone()).unwrap());
        let _ = host.client.set(Arc::downgrade(&client));
        let _ = host.scheduler.set(Arc::downgrade(&scheduler));
        (0..10).for_each(|cookie| client.submit(0, request(cookie, 1)).unwrap());
        scheduler.wait_empty();
        assert_eq!(host.told.load(Ordering::SeqCst), 30, "{driving:?}");
        if driving == Driving::Thread {
            assert_eq!(host.deepest.load(Ordering::SeqCst), 1, "with a thread of its own never inside another call");
        }
    }
}

/// Submits the next request from inside the call for the one before: a hundred thousand need no stack for each.
struct Chain {
    client: OnceLock<Weak<Client>>,
    length: u64,
}

impl Executor for Chain {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        for part in batch.parts() {
            started.complete(part.id, Outcome::ok(part.request.len));
            let next = part.request.cookie + 1;
            if next < self.length {
                self.client.get().unwrap().upgrade().unwrap().submit(0, request(next, 1)).unwrap();
            }
        }
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

#[test]
fn calls_inside_calls_do_not_pile_up() {
    for driving in BOTH {
        let host = Arc::new(Chain { client: OnceLock::new(), length: 100_000 });
        let scheduler = Scheduler::start(config("noop", driving, EngineConfig::default())).unwrap();
        let client = Arc::new(scheduler.attach(host.clone()).unwrap());
        let _ = host.client.set(Arc::downgrade(&client));
        client.submit(0, request(0, 1)).unwrap();
        scheduler.wait_empty();
        assert_eq!(scheduler.snapshot().total.total().completed(), 100_000);
    }
}

/// Panics for every third request.
struct Clumsy;

impl Executor for Clumsy {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        for part in batch.parts() {
            assert!(!part.request.cookie.is_multiple_of(3), "on purpose");
            started.complete(part.id, Outcome::ok(part.request.len));
        }
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

#[test]
fn a_host_that_panics_loses_its_own_requests_only() {
    for driving in BOTH {
        let scheduler = Scheduler::start(config("to-agg", driving, EngineConfig::default())).unwrap();
        let client = scheduler.attach(Arc::new(Clumsy)).unwrap();
        (0..30).for_each(|cookie| client.submit(0, request(cookie, cookie)).unwrap());
        scheduler.wait_empty();
        let total = scheduler.snapshot().total;
        let (completed, errors) = (total.total().completed(), total.total().ops[0].errors);
        assert_eq!((completed, errors), (30, 10), "{driving:?}");
    }
}

#[test]
fn clients_have_their_own_targets_and_hear_of_their_own_requests() {
    let scheduler = Scheduler::start(config("sjf", Driving::Caller, EngineConfig::default())).unwrap();
    let hosts: [Arc<Notes>; 2] = [Arc::default(), Arc::default()];
    let clients = [0, 1].map(|n| scheduler.attach_targets(hosts[n].clone(), n as u32..n as u32 + 1).unwrap());
    assert!(matches!(scheduler.attach(hosts[0].clone()), Err(AttachError::Targets(_))));
    assert!(matches!(scheduler.attach_targets(hosts[0].clone(), 5..5), Err(AttachError::NoTargets)));
    std::thread::scope(|scope| {
        for (n, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                // The same file number and ranges: on another target they are another file's.
                for cookie in 0..2_000 {
                    let target = TargetId(n as u32);
                    client.submit(0, Request { target, op: Op::Write, ..request(cookie, 1) }).unwrap();
                }
            });
        }
    });
    scheduler.wait_empty();
    for host in &hosts {
        let mut started = std::mem::take(&mut *host.started.lock());
        started.sort_unstable();
        assert_eq!(started, (0..2_000).collect::<Vec<u64>>());
    }
    assert!(matches!(
        clients[0].submit(0, Request { target: TargetId(1), ..request(0, 1) }),
        Err(SubmitError::Target(_))
    ));
    // One leaves while the other has requests outstanding; its targets can be had again.
    hosts[1].keeps.store(true, Ordering::SeqCst);
    clients[1].submit(0, Request { target: TargetId(1), ..request(7, 1) }).unwrap();
    assert_eq!(clients[0].detach(DRAIN).in_flight, 0);
    assert!(matches!(clients[0].submit(0, request(0, 1)), Err(SubmitError::Closed)));
    let third = scheduler.attach_targets(Arc::new(Notes::default()), 0..1).unwrap();
    third.submit(0, request(1, 1)).unwrap();
    hosts[1].complete(hosts[1].take(1));
    scheduler.wait_empty();
}

#[test]
fn what_a_window_contained_is_published_when_it_closes() {
    let engine = EngineConfig { window_ns: 5_000_000, ..EngineConfig::default() };
    let scheduler = Scheduler::start(config("noop", Driving::Caller, engine)).unwrap();
    let client = scheduler.attach(Arc::new(Notes::default())).unwrap();
    assert!(scheduler.window(0).is_none());
    (0..10).for_each(|cookie| client.submit(0, request(cookie, 1)).unwrap());
    // Nobody drives the engine any more: the serving thread closes the window when it is over.
    let (lock, never, begin) = (Mutex::new(()), Condvar::new(), std::time::Instant::now());
    while scheduler.window(0).is_none() && begin.elapsed() < common::LIMIT {
        never.wait_for(&mut lock.lock(), Duration::from_millis(10));
    }
    let window = scheduler.window(0).expect("a window has closed");
    assert!(window.ops[0].requests > 0 && window.ops[1].requests == 0, "{window:?}");
}

// ---- volumes ------------------------------------------------------------------------------------------------

fn volume_config(policy: &str, capacity: u32) -> VolumeConfig {
    let mut config = VolumeConfig::new(PolicyConfig::parse(policy).unwrap());
    config.engine.capacity = capacity;
    config
}

/// Memory and slots are given back by those who wait for them, too.
#[test]
fn waiting_for_memory_and_slots_does_not_freeze() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path(), 1);
    let file = create(&storage, "f");
    let config = VolumeConfig { buffer_bytes_max: 64 << 10, ..volume_config("to-agg", 16) };
    let host = Arc::new(Results::default());
    let volume = Volume::start(storage, host.clone(), config).unwrap();
    volume.write_at(&file, AppId(0), 0, &vec![1; 1 << 20]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..24_u64 {
            let (volume, file) = (&volume, &file);
            scope.spawn(move || {
                for n in 0..100 {
                    volume.read(file, AppId(0), (thread * 37 + n) % 200 * 4096, 30_000, thread * 1000 + n);
                }
            });
        }
    });
    assert!(host.take(2_400).iter().all(|(_, result)| result.is_ok()));
}

/// Two writers of the same range over two stripes: one of them is there, not a mixture.
#[test]
fn overlapping_writes_over_stripes_are_not_mixed() {
    const LEN: usize = 8192;
    for policy in ["noop", "to", "hbrr"] {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path(), 2);
        let file = create(&storage, "f");
        let host = Arc::new(Results::default());
        let volume = Volume::start(storage, host, volume_config(policy, 64)).unwrap();
        let start = Barrier::new(2);
        let write = |byte: u8| {
            for _ in 0..500 {
                start.wait();
                volume.write_at(&file, AppId(0), 2048, &[byte; LEN]).unwrap();
                if start.wait().is_leader() {
                    let mut back = [0; LEN];
                    volume.read_at(&file, AppId(0), 2048, &mut back).unwrap();
                    assert!(back.iter().all(|b| *b == back[0]), "{policy}: a mixture");
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| write(1));
            write(2);
        });
    }
}

/// A reader that follows a writer sees what was written, or the end of the file: no zeros that nobody wrote.
#[test]
fn a_reader_behind_a_writer_sees_no_zeros() {
    const RECORD: usize = 6_000;
    for policy in ["noop", "to-agg"] {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path(), 3);
        let file = create(&storage, "f");
        let volume = Volume::start(storage, Arc::new(Results::default()), volume_config(policy, 64)).unwrap();
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for record in 0..1_000_u64 {
                    volume.write_at(&file, AppId(0), record * RECORD as u64, &[1; RECORD]).unwrap();
                    written.store(record + 1, Ordering::SeqCst);
                }
            });
            let mut back = vec![0; 3 * RECORD];
            while written.load(Ordering::SeqCst) < 1_000 {
                let from = written.load(Ordering::SeqCst).saturating_sub(1) * RECORD as u64;
                let read = volume.read_at(&file, AppId(1), from, &mut back).unwrap();
                let zero = back[..read].iter().position(|byte| *byte == 0);
                assert_eq!(zero, None, "{policy}: a zero at {from} + {zero:?} of {read} bytes");
            }
        });
    }
}

/// Wraps data whose third target is full.
struct Full(Arc<dyn sluice_storage::Data>);

impl sluice_storage::Data for Full {
    fn layout(&self) -> sluice_storage::Layout {
        self.0.layout()
    }
    fn describe(&self) -> String {
        "full".to_owned()
    }
    fn read(
        &self,
        file: &sluice_storage::FileRef,
        target: usize,
        offset: u64,
        bufs: &mut [std::io::IoSliceMut<'_>],
    ) -> std::io::Result<usize> {
        self.0.read(file, target, offset, bufs)
    }
    fn write(
        &self,
        file: &sluice_storage::FileRef,
        target: usize,
        offset: u64,
        bufs: &[std::io::IoSlice<'_>],
    ) -> std::io::Result<usize> {
        if target == (file.first_target() as usize + 1) % self.layout().targets() as usize {
            return Err(std::io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.0.write(file, target, offset, bufs)
    }
    fn sync(&self, file: &sluice_storage::FileRef, metadata: bool) -> std::io::Result<()> {
        self.0.sync(file, metadata)
    }
    fn size_at_least(&self, file: &sluice_storage::FileRef, end: u64) -> std::io::Result<u64> {
        self.0.size_at_least(file, end)
    }
    fn trim(
        &self,
        file: &sluice_storage::FileRef,
        before: u64,
        range: std::ops::Range<u64>,
        written: u64,
    ) -> std::io::Result<()> {
        self.0.trim(file, before, range, written)
    }
}

/// A write that one of three targets refuses moves what comes before, and makes the file no longer than that.
#[test]
fn a_write_that_is_refused_does_not_extend_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let plain = storage(dir.path(), 3);
    let file = create(&plain, "f");
    let full = sluice_storage::Storage { data: Arc::new(Full(plain.data.clone())), ..plain.clone() };
    let volume = Volume::start(full, Arc::new(Results::default()), volume_config("to", 16)).unwrap();
    let size = || plain.namespace.getattr_open(&file).unwrap().size;
    assert_eq!(volume.write_at(&file, AppId(0), 0, &[1; 3 * 4096]).unwrap(), 4096);
    assert_eq!(size(), 4096);
    let error = volume.write_at(&file, AppId(0), 4096, &[1; 2 * 4096]).unwrap_err();
    assert_eq!((error.raw_os_error(), size()), (Some(libc::ENOSPC), 4096));
}

/// Whose results go on into another volume.
struct Onward {
    next: OnceLock<(Arc<Volume<Results>>, sluice_storage::FileRef)>,
    done: AtomicU64,
}

impl Host for Onward {
    type Ticket = u64;

    fn complete(&self, ticket: u64, result: std::io::Result<Done<'_>>) {
        assert!(result.is_ok());
        let (volume, file) = self.next.get().unwrap();
        // Also waiting for the other one is allowed.
        volume.write_at(file, AppId(0), ticket * 4096, &[3; 4096]).unwrap();
        volume.write(file, AppId(0), ticket * 4096, &[4; 4096], ticket);
        self.done.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_completion_may_use_another_volume() {
    for targets in [1, 3] {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let storages = [storage(dirs[0].path(), targets), storage(dirs[1].path(), targets)];
        let files = [create(&storages[0], "a"), create(&storages[1], "b")];
        let results = Arc::new(Results::default());
        let second = Volume::start(storages[1].clone(), results.clone(), volume_config("sjf", 32)).unwrap();
        let onward = Arc::new(Onward { next: OnceLock::new(), done: AtomicU64::new(0) });
        let _ = onward.next.set((Arc::new(second), files[1].clone()));
        let first = Volume::start(storages[0].clone(), onward.clone(), volume_config("to-agg", 32)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (first, file) = (&first, &files[0]);
                scope.spawn(move || {
                    for n in 0..200 {
                        first.write(file, AppId(0), (thread * 200 + n) * 4096, &[1; 4096], thread * 200 + n);
                    }
                });
            }
        });
        first.shutdown(DRAIN);
        assert_eq!(onward.done.load(Ordering::SeqCst), 800);
        assert!(results.take(800).iter().all(|(_, result)| result.is_ok()));
    }
}

/// A storage that panics fails the request, and the thread goes on.
#[test]
fn a_panicking_storage_fails_requests_not_the_volume() {
    struct Panics(Faulty);
    impl sluice_storage::Data for Panics {
        fn layout(&self) -> sluice_storage::Layout {
            self.0.layout()
        }
        fn describe(&self) -> String {
            "panics".to_owned()
        }
        fn read(
            &self,
            file: &sluice_storage::FileRef,
            target: usize,
            offset: u64,
            bufs: &mut [std::io::IoSliceMut<'_>],
        ) -> std::io::Result<usize> {
            assert!(offset >= 4096, "on purpose");
            self.0.read(file, target, offset, bufs)
        }
        fn write(
            &self,
            file: &sluice_storage::FileRef,
            target: usize,
            offset: u64,
            bufs: &[std::io::IoSlice<'_>],
        ) -> std::io::Result<usize> {
            self.0.write(file, target, offset, bufs)
        }
        fn sync(&self, file: &sluice_storage::FileRef, metadata: bool) -> std::io::Result<()> {
            self.0.sync(file, metadata)
        }
        fn size_at_least(&self, file: &sluice_storage::FileRef, end: u64) -> std::io::Result<u64> {
            self.0.size_at_least(file, end)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let plain = storage(dir.path(), 1);
    let file = create(&plain, "f");
    let data = Arc::new(Panics(Faulty::new(plain.data.clone())));
    let storage = sluice_storage::Storage { data, ..plain };
    let config = VolumeConfig { threads_max: 1, ..volume_config("to", 16) };
    let host = Arc::new(Results::default());
    let volume = Volume::start(storage, host.clone(), config).unwrap();
    volume.write_at(&file, AppId(0), 0, &[1; 20_000]).unwrap();
    for n in 0..20 {
        volume.read(&file, AppId(0), n % 2 * 8192, 100, n);
    }
    for (ticket, result) in host.take(20) {
        assert_eq!(result.is_err(), ticket % 2 == 0, "{ticket}: {result:?}");
    }
}

/// A storage that takes transfers and ends them by itself needs no thread for each.
#[test]
fn an_asynchronous_storage_needs_no_threads() {
    use sluice_storage::null::NullStorage;
    use sluice_storage::{Layout, Namespace, Storage};
    let null = NullStorage::asynchronous(Layout::striped(3, 4096), 1 << 30).unwrap();
    let file = null.open(&null.lookup(&null.root(), "1".as_ref()).unwrap(), libc::O_RDWR).unwrap();
    let config = VolumeConfig { inline: false, ..volume_config("to-agg", 4096) };
    let host = Arc::new(Results::default());
    let volume = Volume::start(Storage::from(null), host.clone(), config).unwrap();
    for n in 0..500 {
        volume.read(&file, AppId(0), n * 10_000, 10_000, n);
    }
    assert!(host.take(500).iter().all(|(_, result)| result.as_ref().is_ok_and(|data| data.len() == 10_000)));
    let snapshot = volume.snapshot();
    assert!(snapshot.by_ring > 0 && snapshot.by_threads == 0, "{snapshot:?}");
}

/// Counts how many of its kind there are.
#[derive(Debug)]
struct Counted(Arc<AtomicU32>);

impl Counted {
    fn one(count: &Arc<AtomicU32>) -> Option<Box<dyn Predictor>> {
        count.fetch_add(1, Ordering::SeqCst);
        Some(Box::new(Counted(count.clone())))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Predictor for Counted {
    fn submitted(&mut self, _: Time, _: &Request) {}

    fn expect(&mut self, _: Time, _: &Chosen) -> Option<Expected> {
        None
    }
}

#[test]
fn the_later_of_two_calls_decides_the_predictor_of_every_engine() {
    for driving in BOTH {
        let config = SchedulerConfig { shards: 3, ..config("to-agg", driving, EngineConfig::default()) };
        let scheduler = Scheduler::start(config).unwrap();
        let (earlier, later) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        scheduler.set_predictors(|shard| {
            // The other call begins and ends while this one is at its second engine.
            if shard == 1 {
                scheduler.set_predictors(|_| Counted::one(&later));
            }
            Counted::one(&earlier)
        });
        let left = |count: &AtomicU32| count.load(Ordering::SeqCst);
        assert_eq!((left(&earlier), left(&later)), (0, 3), "{driving:?}");
    }
}

/// It has left, and its targets are another's by the time it is dropped, or it leaves once more.
#[test]
fn a_client_that_has_left_does_not_wait_for_the_one_after_it() {
    for (driving, dropped) in BOTH.into_iter().flat_map(|driving| [(driving, true), (driving, false)]) {
        let host = Notes::keeping();
        let engine = EngineConfig { in_flight_max: 1, ..EngineConfig::default() };
        let scheduler = Scheduler::start(config("to", driving, engine)).unwrap();
        let first = scheduler.attach(Arc::new(Notes::default())).unwrap();
        assert_eq!(first.detach(DRAIN), ShutdownReport::default());
        let second = scheduler.attach(host.clone()).unwrap();
        (0..2).for_each(|cookie| second.submit(0, request(cookie, 1)).unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        let leave = std::thread::spawn(move || {
            if !dropped {
                assert_eq!(first.detach(DRAIN), ShutdownReport::default());
            }
            drop(first);
            tell.send(()).unwrap();
        });
        let waited = told.recv_timeout(common::LIMIT).is_err();
        for _ in 0..2 {
            host.complete(host.take(1));
        }
        leave.join().unwrap();
        assert!(!waited, "{driving:?}: it has waited for the second client's requests");
    }
}

/// Panics when it is asked, or told of a request.
#[derive(Debug)]
struct Panics {
    when_told: bool,
}

impl Predictor for Panics {
    fn submitted(&mut self, _: Time, _: &Request) {
        assert!(!self.when_told, "on purpose");
    }

    fn expect(&mut self, _: Time, _: &Chosen) -> Option<Expected> {
        panic!("on purpose")
    }
}

#[test]
fn a_predictor_that_panics_predicts_nothing_and_harms_nobody() {
    for (driving, when_told) in BOTH.into_iter().flat_map(|driving| [(driving, true), (driving, false)]) {
        let host = Arc::new(Notes::default());
        let scheduler = Scheduler::start(config("to-agg", driving, EngineConfig::default())).unwrap();
        let client = scheduler.attach(host.clone()).unwrap();
        scheduler.set_predictors(|_| Some(Box::new(Panics { when_told })));
        (0..10).for_each(|cookie| client.submit(0, request(cookie, 1)).unwrap());
        assert_eq!(scheduler.shutdown(DRAIN), ShutdownReport::default(), "{driving:?}");
        assert_eq!(host.started.lock().len(), 10, "{driving:?}");
    }
}

/// Its last request ends, and it leaves, while the thread that was to start that is on its way back from the call.
#[test]
fn a_client_leaves_while_a_thread_comes_back_from_a_call_of_it() {
    for driving in BOTH {
        let host = Notes::keeping();
        let scheduler = Scheduler::start(config("to", driving, EngineConfig::default())).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for cookie in 0..3_000 {
                let client = scheduler.attach(host.clone()).unwrap();
                std::thread::scope(|scope| {
                    scope.spawn(|| client.submit(0, request(cookie, 1)).unwrap());
                    host.complete(host.take(1));
                    client.detach(DRAIN);
                });
            }
            tell.send(()).unwrap();
        });
        told.recv_timeout(3 * common::LIMIT).unwrap_or_else(|_| panic!("{driving:?}: it waits for ever"));
    }
}

/// Completes at once; the first call stays until it is let go.
struct Stays {
    first: AtomicBool,
    entered: Barrier,
    let_go: Barrier,
    inside: AtomicBool,
}

impl Executor for Stays {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        batch.parts().iter().for_each(|part| started.completer().complete(part.id, Outcome::ok(part.request.len)));
        if self.first.swap(false, Ordering::SeqCst) {
            self.inside.store(true, Ordering::SeqCst);
            self.entered.wait();
            self.let_go.wait();
            self.inside.store(false, Ordering::SeqCst);
        }
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// All its requests have ended, and another one would like to have its targets.
#[test]
fn a_client_has_not_left_while_a_call_of_it_is_under_way() {
    let (first, inside) = (AtomicBool::new(true), AtomicBool::new(false));
    let host = Arc::new(Stays { first, entered: Barrier::new(2), let_go: Barrier::new(2), inside });
    let scheduler = Scheduler::start(config("to", Driving::Caller, EngineConfig::default())).unwrap();
    let client = scheduler.attach(host.clone()).unwrap();
    let attach = || scheduler.attach(Arc::new(Notes::default()));
    std::thread::scope(|scope| {
        scope.spawn(|| client.submit(0, request(0, 1)).unwrap());
        host.entered.wait();
        let leaving = scope.spawn(|| {
            client.detach(DRAIN);
            host.inside.load(Ordering::SeqCst)
        });
        while client.try_submit(0, request(1, 1)) != Err(SubmitError::Closed) {
            std::thread::yield_now();
        }
        let early = attach();
        host.let_go.wait();
        assert!(!leaving.join().unwrap(), "it has left, and is still called");
        assert!(early.is_err(), "another one has its targets");
    });
    assert!(attach().is_ok());
}
