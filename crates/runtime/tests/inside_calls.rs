//! What hosts do inside their calls while others drive, wait or end: each test failed before.

mod common;

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use common::{Faulty, Results, create, in_time, storage};
use parking_lot::Mutex;
use sluice_core::{
    AppId, Batch, EngineConfig, FileId, GatePlan, GateSlice, Op, Outcome, PolicyConfig, Request, RequestId, TargetId,
    Time,
};
use sluice_runtime::{
    Client, Completer, Done, Driving, Executor, Host, Scheduler, SchedulerConfig, Shutdown, Started, SubmitError,
    Volume, VolumeConfig,
};
use sluice_storage::{Data, FileRef, Layout, Storage};

/// A request for a file of its own.
fn request(cookie: u64) -> Request {
    Request { cookie, file: FileId(cookie), app: AppId(0), target: TargetId(0), op: Op::Read, offset: 0, len: 4096 }
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

type Inside = Box<dyn Fn(&Scheduler, &Client) + Send + Sync>;

/// Keeps its thread in the call for request 0, does something in the one for request 1, and counts calls inside calls.
struct Thread {
    scheduler: Scheduler,
    entered: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
    client: OnceLock<Client>,
    inside: Inside,
    ended: Mutex<Sender<()>>,
    deepest: AtomicU32,
}

struct Calls(Arc<Thread>);

impl Executor for Calls {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        DEPTH.set(DEPTH.get() + 1);
        self.0.deepest.fetch_max(DEPTH.get(), Ordering::SeqCst);
        for part in batch.parts() {
            match part.request.cookie {
                0 => {
                    self.0.entered.lock().send(()).unwrap();
                    self.0.go_on.lock().recv().unwrap();
                }
                1 => {
                    (self.0.inside)(&self.0.scheduler, self.0.client.get().unwrap());
                    self.0.ended.lock().send(()).unwrap();
                }
                _ => {}
            }
            started.complete(part.id, Outcome::ok(part.request.len));
        }
        DEPTH.set(DEPTH.get() - 1);
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// Has request 1 dispatched by another thread than the serving one, which is told to start it.
fn dispatched_by_another(capacity: u32, inside: Inside) -> u32 {
    in_time("a call left to the serving thread", move || {
        let (entered, has_entered) = channel();
        let (let_go, go_on) = channel();
        let (ended, has_ended) = channel();
        let policy = PolicyConfig::parse("sjf").unwrap();
        let engine = EngineConfig { capacity, in_flight_max: 8, ..EngineConfig::default() };
        let config = SchedulerConfig { engine, driving: Driving::Thread, ..SchedulerConfig::new(policy) };
        let thread = Arc::new(Thread {
            scheduler: Scheduler::start(config).unwrap(),
            entered: Mutex::new(entered),
            go_on: Mutex::new(go_on),
            client: OnceLock::new(),
            inside,
            ended: Mutex::new(ended),
            deepest: AtomicU32::new(0),
        });
        let client = thread.scheduler.attach(Arc::new(Calls(thread.clone()))).unwrap();
        let client = thread.client.get_or_init(|| client);
        client.submit(0, request(0)).unwrap();
        has_entered.recv().unwrap();
        client.submit(0, request(1)).unwrap();
        // Who asks drives, after the answer.
        let _ = thread.scheduler.snapshot();
        assert_eq!(thread.scheduler.snapshot().shards[0].in_flight, 2);
        let_go.send(()).unwrap();
        has_ended.recv().unwrap();
        thread.scheduler.shutdown(Shutdown::Drain { timeout: common::LIMIT });
        thread.deepest.load(Ordering::SeqCst)
    })
}

#[test]
fn a_call_that_was_left_to_the_serving_thread_does_not_wait_for_room() {
    let inside = |_: &Scheduler, client: &Client| {
        assert_eq!(client.submit(0, request(2)), Ok(()));
        assert_eq!(client.submit(0, request(3)), Err(SubmitError::Full(request(3))));
    };
    dispatched_by_another(2, Box::new(inside));
}

#[test]
fn a_call_that_was_left_to_the_serving_thread_has_none_inside() {
    let inside = |scheduler: &Scheduler, client: &Client| {
        client.submit(0, request(2)).unwrap();
        let _ = scheduler.snapshot();
        assert_eq!(scheduler.snapshot().shards[0].queued, 0);
    };
    assert_eq!(dispatched_by_another(8, Box::new(inside)), 1);
}

type Told = Box<dyn Fn(&Volume<Acts>, u64) + Send + Sync>;

/// Does something when it is first told of the end of a request from number `only` on, up to 2.
struct Acts {
    volume: OnceLock<Weak<Volume<Acts>>>,
    only: u64,
    first: AtomicBool,
    inside: Told,
    told: Mutex<Sender<(u64, i32)>>,
}

impl Host for Acts {
    type Ticket = u64;

    fn complete(&self, ticket: u64, result: io::Result<Done<'_>>) {
        let errno = result.err().and_then(|error| error.raw_os_error()).unwrap_or(0);
        self.told.lock().send((ticket, errno)).unwrap();
        if (self.only..=2).contains(&ticket) && self.first.swap(false, Ordering::SeqCst) {
            (self.inside)(&self.volume.get().and_then(Weak::upgrade).unwrap(), ticket);
        }
    }
}

/// Ends a volume on which request 0 is in flight and requests 1 and 2, for another file, are queued.
fn ended_with_two_queued(driving: Driving, inside: fn(&Volume<Acts>, &FileRef, &FileRef)) -> Vec<(u64, i32)> {
    in_time("the end of a volume", move || {
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), 1);
        let (one, other) = (create(&plain, "one"), create(&plain, "other"));
        let (faulty, storage) = Faulty::over(&plain, u64::MAX, usize::MAX);
        let mut config = VolumeConfig { driving, ..VolumeConfig::new(PolicyConfig::parse("sjf").unwrap()) };
        (config.engine.in_flight_max, config.buffer_bytes_max) = (1, 8192);
        let (tell, told) = channel();
        let (first, files) = (AtomicBool::new(true), (one.clone(), other.clone()));
        let inside = Box::new(move |volume: &Volume<Acts>, _| inside(volume, &files.0, &files.1));
        let host = Arc::new(Acts { volume: OnceLock::new(), only: 1, first, inside, told: Mutex::new(tell) });
        let volume = Arc::new(Volume::start(storage, host.clone(), config).unwrap());
        let _ = host.volume.set(Arc::downgrade(&volume));
        faulty.set_open(false);
        volume.write(&one, AppId(0), 0, &[1; 4096], 0);
        while faulty.calls() == 0 {
            std::thread::yield_now();
        }
        volume.write(&other, AppId(0), 0, &[1; 2048], 1);
        volume.write(&other, AppId(0), 1 << 20, &[1; 2048], 2);
        let end = std::thread::spawn(move || _ = volume.shutdown(Shutdown::Fail(libc::ENODEV)));
        let first = told.recv().unwrap();
        faulty.set_open(true);
        end.join().unwrap();
        let mut ended: Vec<_> = std::iter::once(first).chain(told.try_iter()).collect();
        ended.sort_unstable();
        ended
    })
}

#[test]
fn a_host_told_of_the_end_may_ask_for_more_than_there_is_memory_for() {
    for driving in [Driving::Caller, Driving::Thread] {
        let ended = ended_with_two_queued(driving, |volume, one, _| volume.read(one, AppId(0), 0, 8192, 3));
        assert_eq!(ended, [(0, 0), (1, libc::ENODEV), (2, libc::ENODEV), (3, libc::ESHUTDOWN)], "{driving:?}");
    }
}

#[test]
fn a_host_told_of_the_end_may_wait_for_other_requests() {
    for driving in [Driving::Caller, Driving::Thread] {
        let ended = ended_with_two_queued(driving, |volume, _, other| volume.wait_idle(other));
        assert_eq!(ended, [(0, 0), (1, libc::ENODEV), (2, libc::ENODEV)], "{driving:?}");
    }
}

/// Waits for no device, but for the test.
struct Plain(Arc<Faulty>);

impl Data for Plain {
    fn layout(&self) -> Layout {
        self.0.layout()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.0.sync(file, metadata)
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.0.size_at_least(file, end)
    }
    fn never_waits(&self, _: &FileRef) -> bool {
        true
    }
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read(file, target, offset, bufs)
    }
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(file, target, offset, bufs)
    }
}

/// Request 2 is executed, and its end told, in the call that submitted request 1, when that one has been executed.
#[test]
fn a_host_told_inside_a_submitting_call_may_wait_for_the_memory_of_what_that_submitted() {
    for writes in [true, false] {
        in_time("memory of the request that is being submitted", move || {
            let dir = tempfile::tempdir().unwrap();
            let plain = storage(dir.path(), 1);
            let file = create(&plain, "f");
            let faulty = Arc::new(Faulty::new(plain.data.clone()));
            let mut config = VolumeConfig::new(PolicyConfig::parse("to").unwrap());
            (config.engine.in_flight_max, config.buffer_bytes_max) = (1, 4096);
            let ((tell, told), again) = (channel(), file.clone());
            let inside = Box::new(move |volume: &Volume<Acts>, ticket| {
                assert_eq!(ticket, 2);
                volume.read(&again, AppId(0), 0, 4096, 3);
            });
            let (first, told_to) = (AtomicBool::new(true), Mutex::new(tell));
            let host = Arc::new(Acts { volume: OnceLock::new(), only: 2, first, inside, told: told_to });
            let storage = Storage { data: Arc::new(Plain(faulty.clone())), ..plain.clone() };
            let volume = Arc::new(Volume::start(storage, host.clone(), config).unwrap());
            let _ = host.volume.set(Arc::downgrade(&volume));
            faulty.set_open(false);
            let (submitter, to) = (volume.clone(), file.clone());
            let call = std::thread::spawn(move || match writes {
                true => submitter.write(&to, AppId(0), 0, &[1; 2048], 1),
                false => submitter.read(&to, AppId(0), 0, 2048, 1),
            });
            while faulty.calls() == 0 {
                std::thread::yield_now();
            }
            volume.write(&file, AppId(0), 1 << 20, &[1; 2048], 2);
            faulty.set_open(true);
            call.join().unwrap();
            volume.wait_idle(&file);
            volume.shutdown(Shutdown::Fail(libc::ENODEV));
            let mut ended: Vec<_> = told.try_iter().collect();
            ended.sort_unstable();
            assert_eq!(ended, [(1, 0), (2, 0), (3, 0)], "writes: {writes}");
        });
    }
}

/// As above, told inside a call that waits for its own request, and waits for whatever there is.
#[test]
fn a_host_told_inside_a_waiting_call_may_wait_for_the_file() {
    in_time("all requests for the file", || {
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), 1);
        let file = create(&plain, "f");
        let faulty = Arc::new(Faulty::new(plain.data.clone()));
        let mut config = VolumeConfig::new(PolicyConfig::parse("to").unwrap());
        config.engine.in_flight_max = 1;
        let ((tell, told), again) = (channel(), file.clone());
        let inside = Box::new(move |volume: &Volume<Acts>, _| volume.wait_idle(&again));
        let (first, told_to) = (AtomicBool::new(true), Mutex::new(tell));
        let host = Arc::new(Acts { volume: OnceLock::new(), only: 2, first, inside, told: told_to });
        let storage = Storage { data: Arc::new(Plain(faulty.clone())), ..plain.clone() };
        let volume = Arc::new(Volume::start(storage, host.clone(), config).unwrap());
        let _ = host.volume.set(Arc::downgrade(&volume));
        faulty.set_open(false);
        let (reader, of) = (volume.clone(), file.clone());
        let call = std::thread::spawn(move || reader.read_at(&of, AppId(0), 0, &mut [0; 2048]).unwrap());
        while faulty.calls() == 0 {
            std::thread::yield_now();
        }
        volume.write(&file, AppId(0), 1 << 20, &[1; 2048], 2);
        faulty.set_open(true);
        assert_eq!((call.join().unwrap(), told.recv().unwrap()), (0, (2, 0)));
        volume.shutdown(Shutdown::Fail(libc::ENODEV));
    });
}

/// Submits the next request, and writes two pieces to a volume, each time it is to start one.
struct Writes {
    client: OnceLock<Client>,
    volume: Volume<Results>,
    file: FileRef,
    last: u64,
    deepest: AtomicU32,
    told: Mutex<Sender<()>>,
}

struct WritesInside(Arc<Writes>);

impl Executor for WritesInside {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        let Writes { client, volume, file, last, deepest, told } = &*self.0;
        DEPTH.set(DEPTH.get() + 1);
        deepest.fetch_max(DEPTH.get(), Ordering::SeqCst);
        let Request { cookie, len, .. } = batch.parts()[0].request;
        if cookie < *last {
            client.get().unwrap().submit(0, request(cookie + 1)).unwrap();
            volume.write(file, AppId(0), 0, &[1; 8192], cookie);
        } else {
            told.lock().send(()).unwrap();
        }
        started.complete(batch.parts()[0].id, Outcome::ok(len));
        DEPTH.set(DEPTH.get() - 1);
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// A host with a scheduler of its own is not told inside the submission of what it has admitted to a volume.
#[test]
fn a_host_is_not_called_while_its_own_operation_is_half_submitted() {
    for capacity in [1, 2, 1024] {
        let deepest = in_time("a chain over a scheduler and a volume", move || {
            let dir = tempfile::tempdir().unwrap();
            let plain = storage(dir.path(), 2);
            let file = create(&plain, "f");
            let policy = PolicyConfig::parse("sjf").unwrap();
            let mut config = VolumeConfig::new(policy.clone());
            config.engine.capacity = capacity;
            let volume = Volume::start(plain, Arc::new(Results::default()), config).unwrap();
            let scheduler = Scheduler::start(SchedulerConfig::new(policy)).unwrap();
            let ((tell, told), deepest) = (channel(), AtomicU32::new(0));
            let writes = Writes { client: OnceLock::new(), volume, file, last: 200, deepest, told: Mutex::new(tell) };
            let writes = Arc::new(writes);
            let client = scheduler.attach(Arc::new(WritesInside(writes.clone()))).unwrap();
            writes.client.get_or_init(|| client).submit(0, request(0)).unwrap();
            told.recv().unwrap();
            scheduler.shutdown(Shutdown::Drain { timeout: common::LIMIT });
            writes.deepest.load(Ordering::SeqCst)
        });
        // A host that waits for room in each call has others told inside.
        assert!(capacity < 1024 || deepest < 10, "{deepest} calls inside each other");
    }
}

/// Asks for nothing inside each call, and then waits for a read. Request `3` is told in the fourth call inside calls.
#[test]
fn a_read_that_is_waited_for_deep_inside_calls_leaves_room_for_who_is_told_meanwhile() {
    in_time("a read in the fourth call", || {
        let dir = tempfile::tempdir().unwrap();
        let plain = storage(dir.path(), 1);
        let file = create(&plain, "f");
        let mut config = VolumeConfig::new(PolicyConfig::parse("sjf").unwrap());
        config.engine.capacity = 1;
        let (tell, told) = channel();
        let deep = Arc::new(Deep { volume: OnceLock::new(), file: file.clone(), told: Mutex::new(tell) });
        let volume = Arc::new(Volume::start(plain, deep.clone(), config).unwrap());
        let _ = deep.volume.set(Arc::downgrade(&volume));
        volume.write(&file, AppId(0), 0, &[], 0);
        let mut all: Vec<u64> = (0..=5).map(|_| told.recv().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
    });
}

struct Deep {
    volume: OnceLock<Weak<Volume<Deep>>>,
    file: FileRef,
    told: Mutex<Sender<u64>>,
}

impl Host for Deep {
    type Ticket = u64;

    fn complete(&self, ticket: u64, _: io::Result<Done<'_>>) {
        let volume = self.volume.get().and_then(Weak::upgrade).unwrap();
        match ticket {
            0..=3 => {
                volume.write(&self.file, AppId(0), 0, &[], ticket + 1);
                if ticket == 3 {
                    volume.read_at(&self.file, AppId(0), 0, &mut [0; 512]).unwrap();
                }
            }
            4 => volume.read(&self.file, AppId(0), 0, 512, 5),
            _ => {}
        }
        self.told.lock().send(ticket).unwrap();
    }
}

/// Waits inside a call, for what the call itself has reported and for what comes after it.
struct Waiting {
    scheduler: OnceLock<Weak<Scheduler>>,
    client: OnceLock<Weak<Client>>,
    /// In the call for request 0.
    wait: fn(&Scheduler, &Client),
    started: AtomicU32,
}

impl Executor for Waiting {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        for part in batch.parts() {
            self.started.fetch_add(1, Ordering::SeqCst);
            started.complete(part.id, Outcome::ok(part.request.len));
        }
        if batch.parts()[0].request.cookie == 0 {
            (self.wait)(
                &self.scheduler.get().unwrap().upgrade().unwrap(),
                &self.client.get().unwrap().upgrade().unwrap(),
            );
        }
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

#[test]
fn a_host_may_wait_for_what_it_has_just_reported() {
    const LONG: Shutdown = Shutdown::Drain { timeout: Duration::from_secs(3600) };
    let waits: [fn(&Scheduler, &Client); 3] = [
        |scheduler, _| scheduler.wait_empty(),
        |scheduler, _| _ = scheduler.shutdown(LONG),
        |_, client| _ = client.detach(LONG),
    ];
    for driving in [Driving::Caller, Driving::Thread] {
        // The second algorithm keeps requests back for a while, which the waiting thread may have to see to.
        for policy in ["sjf", "twins"] {
            for wait in waits {
                in_time("a host waits in a call for what it reported in there", move || {
                    let mut config = SchedulerConfig::new(PolicyConfig::parse(policy).unwrap());
                    (config.driving, config.engine.in_flight_max) = (driving, 1);
                    let scheduler = Arc::new(Scheduler::start(config).unwrap());
                    let (to_scheduler, to_client) = (OnceLock::new(), OnceLock::new());
                    let started = AtomicU32::new(0);
                    let host = Arc::new(Waiting { scheduler: to_scheduler, client: to_client, wait, started });
                    let client = Arc::new(scheduler.attach_targets(host.clone(), 0..1).unwrap());
                    host.scheduler.set(Arc::downgrade(&scheduler)).ok().unwrap();
                    host.client.set(Arc::downgrade(&client)).ok().unwrap();
                    (0..4).for_each(|cookie| _ = client.submit(0, request(cookie)));
                    scheduler.wait_empty();
                    assert!(host.started.load(Ordering::SeqCst) > 0);
                });
            }
        }
    }
}

#[test]
fn a_host_may_wait_for_what_its_own_thread_is_to_start_next() {
    let waits: [fn(&Scheduler, &Client); 2] = [
        |scheduler, _| scheduler.wait_empty(),
        |_, client| _ = client.detach(Shutdown::Drain { timeout: Duration::from_secs(3600) }),
    ];
    for wait in waits {
        let started = in_time("batches that one turn has dispatched", move || {
            let scheduler =
                Arc::new(Scheduler::start(SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap())).unwrap());
            let (to_scheduler, to_client, started) = (OnceLock::new(), OnceLock::new(), AtomicU32::new(0));
            let host = Arc::new(Waiting { scheduler: to_scheduler, client: to_client, wait, started });
            let client = Arc::new(scheduler.attach_targets(host.clone(), 0..1).unwrap());
            host.scheduler.set(Arc::downgrade(&scheduler)).ok().unwrap();
            host.client.set(Arc::downgrade(&client)).ok().unwrap();
            let other = Arc::new(Waiting {
                scheduler: OnceLock::new(),
                client: OnceLock::new(),
                wait,
                started: AtomicU32::new(0),
            });
            let of_another = scheduler.attach_targets(other.clone(), 1..2).unwrap();
            // All are dispatched by the thread that takes the gate away, in one turn.
            scheduler.set_gate(Some(&closed())).unwrap();
            client.submit(0, request(0)).unwrap();
            of_another.submit(0, Request { target: TargetId(1), ..request(7) }).unwrap();
            (1..4).for_each(|cookie| client.submit(0, request(cookie)).unwrap());
            scheduler.set_gate(None).unwrap();
            scheduler.wait_empty();
            assert_eq!(other.started.load(Ordering::SeqCst), 1);
            host.started.load(Ordering::SeqCst)
        });
        assert_eq!(started, 4);
    }
}

/// Nothing of application 0 is served for an hour.
fn closed() -> GatePlan {
    let slice = |apps, len_ns| GateSlice { apps, len_ns };
    let slices = vec![slice(vec![AppId(1)], 3_600_000_000_000), slice(Vec::new(), 1_000_000)];
    GatePlan { epoch: Time::ZERO, from: Time::ZERO, expires: Time(u64::MAX), slices, idle_ns: None }
}

#[test]
fn a_panic_of_who_is_told_of_windows_stops_nothing() {
    in_time("the engine goes on", || {
        let mut config = SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap());
        config.engine.window_ns = 1_000_000;
        let scheduler = Scheduler::start(config).unwrap();
        scheduler.on_window(Some(Box::new(|| panic!("on purpose: the test wants to see what happens"))));
        let host = Arc::new(AtOnce);
        let client = scheduler.attach(host).unwrap();
        for cookie in 0.. {
            client.submit(0, request(cookie)).unwrap();
            if cookie > 10 && scheduler.window(0).is_some() {
                break;
            }
        }
        client.submit(0, request(0)).unwrap();
        scheduler.wait_empty();
    });
}

/// Submits, window by window, until somebody has `told`.
fn submit_until(client: &Client, told: &std::sync::mpsc::Receiver<()>) {
    loop {
        client.submit(0, request(0)).unwrap();
        if told.recv_timeout(Duration::from_millis(10)).is_ok() {
            return;
        }
    }
}

/// Asks the scheduler when it is dropped.
struct Asks(Weak<Scheduler>, Sender<()>);

impl Drop for Asks {
    fn drop(&mut self) {
        let scheduler = self.0.upgrade();
        scheduler.iter().for_each(|scheduler| _ = scheduler.snapshot());
        // Another thread drops what it has, too.
        std::mem::forget(scheduler);
        let _ = self.1.send(());
    }
}

#[test]
fn what_belongs_to_who_is_told_of_windows_may_call_the_scheduler_when_it_goes() {
    in_time("who was told of windows goes while he is told", || {
        let mut config = SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap());
        config.engine.window_ns = 1_000_000;
        let scheduler = Arc::new(Scheduler::start(config).unwrap());
        let ((tell, told), (replace, replaced), (dropped, drops)) = (channel(), channel::<()>(), channel());
        let (asks, replaced) = (Asks(Arc::downgrade(&scheduler), dropped), Mutex::new(replaced));
        let tester = std::thread::current().id();
        let call = move || {
            let _ = &asks;
            // A thread that submits may be the one that finds the window over; this one is not to wait for itself.
            if std::thread::current().id() != tester {
                let _ = tell.send(());
                let _ = replaced.lock().recv();
            }
        };
        scheduler.on_window(Some(Box::new(call)));
        let client = Arc::new(scheduler.attach(Arc::new(AtOnce)).unwrap());
        submit_until(&client, &told);
        scheduler.on_window(None);
        drop(replace);
        drops.recv().unwrap();
        scheduler.wait_empty();
    });
}

/// What is dropped last tells.
struct Last(Option<Arc<Scheduler>>, Sender<()>);

impl Drop for Last {
    fn drop(&mut self) {
        drop(self.0.take());
        let _ = self.1.send(());
    }
}

#[test]
fn who_is_told_of_windows_may_be_the_last_to_know_the_scheduler() {
    in_time("a scheduler ends with who is told of its windows", || {
        let mut config = SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap());
        config.engine.window_ns = 1_000_000;
        let scheduler = Arc::new(Scheduler::start(config).unwrap());
        let ((tell, told), (replace, replaced), (dropped, drops)) = (channel(), channel::<()>(), channel());
        let (last, replaced) = (Last(Some(scheduler.clone()), dropped), Mutex::new(replaced));
        let tester = std::thread::current().id();
        let call = move || {
            let _ = &last;
            // A thread that submits may be the one that finds the window over; this one is not to wait for itself.
            if std::thread::current().id() != tester {
                let _ = tell.send(());
                let _ = replaced.lock().recv();
            }
        };
        scheduler.on_window(Some(Box::new(call)));
        let client = scheduler.attach_targets(Arc::new(AtOnce), 0..1).unwrap();
        submit_until(&client, &told);
        scheduler.on_window(None);
        drop((client, scheduler));
        drop(replace);
        drops.recv().unwrap();
    });
}

struct AtOnce;

impl Executor for AtOnce {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        batch.parts().iter().for_each(|part| started.complete(part.id, Outcome::ok(part.request.len)));
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// Asks the scheduler when it is dropped, as one does that logs what it has done.
struct Curious {
    scheduler: Weak<Scheduler>,
    started: Mutex<Sender<(RequestId, Completer)>>,
    dropped: Mutex<Sender<()>>,
}

impl Executor for Curious {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        self.started.lock().send((batch.parts()[0].id, started.completer().clone())).unwrap();
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

impl Drop for Curious {
    fn drop(&mut self) {
        if let Some(scheduler) = self.scheduler.upgrade() {
            let _ = scheduler.snapshot();
            scheduler.attach_targets(Arc::new(AtOnce), 7..8).unwrap();
        }
        let _ = self.dropped.lock().send(());
    }
}

#[test]
fn an_executor_that_is_dropped_may_call_the_scheduler() {
    in_time("an executor is dropped", || {
        let scheduler = Arc::new(Scheduler::start(SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap())).unwrap());
        let ((started, starts), (dropped, drops)) = (channel(), channel());
        let (started, dropped) = (Mutex::new(started), Mutex::new(dropped));
        let host = Arc::new(Curious { scheduler: Arc::downgrade(&scheduler), started, dropped });
        let client = scheduler.attach_targets(host, 0..1).unwrap();
        client.submit(0, request(0)).unwrap();
        // It leaves with this in flight, so it is forgotten when somebody joins.
        drop(client);
        let (id, completer) = starts.recv().unwrap();
        completer.complete(id, Outcome::ok(1));
        drop(completer);
        let _next = scheduler.attach_targets(Arc::new(AtOnce), 0..1).unwrap();
        drops.recv().unwrap();
    });
}

/// Gives what it is to start to the test, but for request 0: it reports that at once, and waits in the call.
struct Waits {
    scheduler: OnceLock<Weak<Scheduler>>,
    started: Mutex<Sender<(RequestId, Completer)>>,
}

impl Executor for Waits {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        for part in batch.parts() {
            match part.request.cookie {
                0 => started.complete(part.id, Outcome::ok(part.request.len)),
                _ => self.started.lock().send((part.id, started.completer().clone())).unwrap(),
            }
        }
        if batch.parts()[0].request.cookie == 0 {
            self.scheduler.get().and_then(Weak::upgrade).unwrap().wait_empty();
        }
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// Request 2 is held for a moment, which begins when the only thread that could see to its end waits for it already.
#[test]
fn who_waits_on_the_serving_thread_sees_to_deadlines_that_come_later() {
    in_time("a deadline that is set meanwhile", || {
        let mut config = SchedulerConfig::new(PolicyConfig::parse("to").unwrap());
        config.driving = Driving::Thread;
        (config.engine.window_ns, config.engine.max_wait_ns) = (3_600_000_000_000, 0);
        let scheduler = Arc::new(Scheduler::start(config).unwrap());
        let (started, starts) = channel();
        let host = Arc::new(Waits { scheduler: OnceLock::new(), started: Mutex::new(started) });
        host.scheduler.set(Arc::downgrade(&scheduler)).unwrap();
        let client = scheduler.attach(host).unwrap();
        client.submit(0, request(1)).unwrap();
        let (first, completer) = starts.recv().unwrap();
        client.submit(0, request(0)).unwrap();
        // What it has reported is known as soon as it waits.
        while scheduler.snapshot().total.total().completed() == 0 {
            std::thread::yield_now();
        }
        let (now, slice) = (scheduler.clock().now(), |apps| GateSlice { apps, len_ns: 300_000_000 });
        let slices = vec![slice(vec![AppId(1)]), slice(Vec::new())];
        let plan = GatePlan { epoch: now, from: now, expires: Time(u64::MAX), slices, idle_ns: None };
        scheduler.set_gate(Some(&plan)).unwrap();
        client.submit(0, request(2)).unwrap();
        completer.complete(first, Outcome::ok(1));
        let (held, completer) = starts.recv().unwrap();
        completer.complete(held, Outcome::ok(1));
        scheduler.wait_empty();
    });
}

/// Gives what it is to start to the test, and keeps the scheduler alive.
struct Owner {
    _scheduler: Arc<Scheduler>,
    started: Mutex<Sender<(RequestId, Completer)>>,
}

impl Executor for Owner {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        batch.parts().iter().for_each(|part| self.started.lock().send((part.id, started.completer().clone())).unwrap());
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// Gives what it is to start to the test, but for request 4: it waits in that call until it is to go on.
struct Lingers {
    started: Mutex<Sender<(RequestId, Completer)>>,
    go_on: Mutex<Receiver<()>>,
}

impl Executor for Lingers {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        for part in batch.parts() {
            match part.request.cookie {
                4 => {
                    self.go_on.lock().recv().unwrap();
                    started.complete(part.id, Outcome::ok(part.request.len));
                }
                _ => self.started.lock().send((part.id, started.completer().clone())).unwrap(),
            }
        }
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// A client leaves while the thread that has started its request starts another one's. That thread is the last one to know its
/// executor, which is the last one to know the scheduler.
#[test]
fn a_scheduler_may_end_with_an_executor_on_a_thread_that_starts_requests() {
    in_time("the end of a scheduler between two calls", || {
        let mut config = SchedulerConfig::new(PolicyConfig::parse("to").unwrap());
        (config.engine.in_flight_max, config.engine.batch_requests_max) = (2, 1);
        let scheduler = Arc::new(Scheduler::start(config).unwrap());
        let ((of_owner, owners), (of_other, others), (go, go_on)) = (channel(), channel(), channel());
        let owner = Owner { _scheduler: scheduler.clone(), started: Mutex::new(of_owner) };
        let lingers = Lingers { started: Mutex::new(of_other), go_on: Mutex::new(go_on) };
        let client = scheduler.attach_targets(Arc::new(owner), 0..1).unwrap();
        let other = scheduler.attach_targets(Arc::new(lingers), 1..2).unwrap();
        let of_other = |cookie| Request { target: TargetId(1), ..request(cookie) };
        (1..3).for_each(|cookie| other.submit(0, of_other(cookie)).unwrap());
        client.submit(0, request(3)).unwrap();
        other.submit(0, of_other(4)).unwrap();
        let [(first, completer), (second, _)] = [others.recv().unwrap(), others.recv().unwrap()];
        // One turn starts what is queued of both.
        let driving = std::thread::spawn(move || {
            completer.complete_all(&[(first, Outcome::ok(1)), (second, Outcome::ok(1))]);
        });
        let (id, completer) = owners.recv().unwrap();
        completer.complete(id, Outcome::ok(1));
        drop(completer);
        assert_eq!(client.detach(Shutdown::Drain { timeout: common::LIMIT }).in_flight, 0);
        drop((client, scheduler));
        go.send(()).unwrap();
        driving.join().unwrap();
    });
}
