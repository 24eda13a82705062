//! Ends inside calls of hosts, while others submit: every accepted request is told once all the same, and what a client had is
//! free for the next one. `SLUICE_SEED=1 SLUICE_RUNS=1000 cargo test -p sluice-runtime --test ends` goes on for longer.

mod common;

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use common::Random;
use sluice_core::{
    AppId, Batch, FileId, GatePlan, GateSlice, Op, Outcome, PolicyConfig, Request, RequestId, TargetId, Time,
};
use sluice_runtime::*;

/// What ends in the call that starts the batch with this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    Scheduler,
    Client,
}

struct Executing {
    ends: Ends,
    /// Batches until the end.
    left: AtomicU64,
    scheduler: OnceLock<Weak<Scheduler>>,
    client: OnceLock<Weak<Client>>,
    told: Vec<AtomicU64>,
}

impl Executor for Executing {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        for part in batch.parts() {
            self.told[part.request.cookie as usize].fetch_add(1, Ordering::SeqCst);
            started.complete(part.id, Outcome::ok(part.request.len));
        }
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            match self.ends {
                Ends::Scheduler => _ = self.scheduler.get().unwrap().upgrade().unwrap().shutdown(Shutdown::Fail(5)),
                Ends::Client => _ = self.client.get().unwrap().upgrade().unwrap().detach(Shutdown::Fail(5)),
            }
        }
    }

    fn cancelled(&self, request: &Request, errno: i32) {
        assert!(errno == 5 || errno == libc::ESHUTDOWN);
        self.told[request.cookie as usize].fetch_add(1, Ordering::SeqCst);
    }
}

/// Until it is so, or for a minute.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < common::LIMIT, "{what}");
        std::thread::yield_now();
    }
}

const THREADS: u64 = 3;
const REQUESTS: u64 = 400;

fn run(ends: Ends, driving: Driving, seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1);
    let mut config = SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap());
    config.driving = driving;
    config.engine.in_flight_max = 1;
    config.engine.batch_requests_max = 1;
    let scheduler = Arc::new(Scheduler::start(config).unwrap());
    let told = (0..THREADS * REQUESTS).map(|_| AtomicU64::new(0)).collect();
    let left = AtomicU64::new(1 + random.below(200));
    let (to_scheduler, to_client) = (OnceLock::new(), OnceLock::new());
    let host = Arc::new(Executing { ends, left, scheduler: to_scheduler, client: to_client, told });
    let client = Arc::new(scheduler.attach_targets(host.clone(), 0..1).unwrap());
    host.scheduler.set(Arc::downgrade(&scheduler)).unwrap();
    host.client.set(Arc::downgrade(&client)).unwrap();
    let accepted = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, accepted) = (&client, &accepted);
            scope.spawn(move || {
                for number in 0..REQUESTS {
                    let cookie = thread * REQUESTS + number;
                    let (file, app, target, offset) = (FileId(1), AppId(0), TargetId(0), cookie * 4_096);
                    let request = Request { cookie, file, app, target, op: Op::Read, offset, len: 512 };
                    if client.try_submit(0, request).is_ok() {
                        accepted.lock().unwrap().push(cookie);
                    }
                }
            });
        }
    });
    let accepted = accepted.into_inner().unwrap();
    let count = |cookie: &u64| host.told[*cookie as usize].load(Ordering::SeqCst);
    let what = format!("{ends:?} {driving:?} seed {seed}: accepted and never told");
    until(&what, || accepted.iter().all(|cookie| count(cookie) > 0));
    let all: u64 = (0..THREADS * REQUESTS).map(|cookie| count(&cookie)).sum();
    assert_eq!(all, accepted.len() as u64, "{ends:?} {driving:?} seed {seed}: told twice, or although not accepted");
    if ends == Ends::Client {
        let again = || scheduler.attach_targets(host.clone(), 0..1);
        until("its targets are free", || again().is_ok());
    }
}

/// Never ends what it has begun.
#[derive(Default)]
struct Holding(AtomicBool);

impl Executor for Holding {
    fn start(&self, _: &Batch, _: &Started<'_>) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

#[test]
fn who_drains_gives_up_when_nobody_is_to_wait() {
    for driving in [Driving::Caller, Driving::Thread] {
        let mut config = SchedulerConfig::new(PolicyConfig::parse("sjf").unwrap());
        config.driving = driving;
        let scheduler = Scheduler::start(config).unwrap();
        let host = Arc::new(Holding::default());
        let client = scheduler.attach_targets(host.clone(), 0..1).unwrap();
        let (file, app, target) = (FileId(1), AppId(0), TargetId(0));
        client.try_submit(0, Request { cookie: 0, file, app, target, op: Op::Read, offset: 0, len: 512 }).unwrap();
        until("it has begun", || host.0.load(Ordering::SeqCst));
        let drain = Shutdown::Drain { timeout: std::time::Duration::from_secs(3_600) };
        std::thread::scope(|scope| {
            let drains = scope.spawn(|| scheduler.shutdown(drain));
            scheduler.end_waits();
            assert_eq!(drains.join().unwrap().in_flight, 1, "{driving:?}");
        });
    }
}

#[test]
fn inside_a_call_they_lose_nothing() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, runs) = (number("SLUICE_SEED", 1_u64), number("SLUICE_RUNS", 25));
    for seed in first..first + runs {
        for ends in [Ends::Scheduler, Ends::Client] {
            [Driving::Caller, Driving::Thread].into_iter().for_each(|driving| run(ends, driving, seed));
        }
    }
}

/// The last request is reported in the very call in which the client leaves.
#[test]
fn a_client_that_leaves_with_its_last_request_leaves_its_targets() {
    let scheduler = Arc::new(Scheduler::start(SchedulerConfig::new(PolicyConfig::parse("noop").unwrap())).unwrap());
    // Those that have left stay, so that dropping them frees nothing.
    let mut left_clients = Vec::new();
    for _ in 0..3 {
        let (told, left) = (vec![AtomicU64::new(0)], AtomicU64::new(1));
        let (to_scheduler, to_client) = (OnceLock::new(), OnceLock::new());
        let host = Arc::new(Executing { ends: Ends::Client, left, scheduler: to_scheduler, client: to_client, told });
        let client = Arc::new(scheduler.attach_targets(host.clone(), 3..5).unwrap());
        host.client.set(Arc::downgrade(&client)).unwrap();
        let (file, app, target) = (FileId(1), AppId(0), TargetId(4));
        let request = Request { cookie: 0, file, app, target, op: Op::Write, offset: 0, len: 512 };
        client.try_submit(0, request).unwrap();
        assert_eq!(host.told[0].load(Ordering::SeqCst), 1);
        left_clients.push(client);
    }
}

/// Notes what it is to start, and never ends it.
#[derive(Default)]
struct Notes {
    started: Mutex<Vec<u64>>,
    cancelled: Mutex<Vec<(u64, i32)>>,
}

impl Executor for Notes {
    fn start(&self, batch: &Batch, _: &Started<'_>) {
        self.started.lock().unwrap().extend(batch.parts().iter().map(|part| part.request.cookie));
    }

    fn cancelled(&self, request: &Request, errno: i32) {
        self.cancelled.lock().unwrap().push((request.cookie, errno));
    }
}

/// One request at a time.
fn one_by_one() -> Scheduler {
    let mut config = SchedulerConfig::new(PolicyConfig::parse("to").unwrap());
    config.engine.in_flight_max = 1;
    Scheduler::start(config).unwrap()
}

fn read(cookie: u64) -> Request {
    let (file, app, target) = (FileId(cookie), AppId(0), TargetId(0));
    Request { cookie, file, app, target, op: Op::Read, offset: 0, len: 512 }
}

#[test]
fn a_client_that_has_left_takes_nothing_from_the_next_one() {
    let (scheduler, host) = (one_by_one(), Arc::new(Notes::default()));
    let left = scheduler.attach_targets(Arc::new(Notes::default()), 0..1).unwrap();
    left.detach(Shutdown::Fail(libc::EIO));
    let client = scheduler.attach_targets(host.clone(), 0..1).unwrap();
    (0..2).for_each(|cookie| client.submit(0, read(cookie)).unwrap());
    assert_eq!(left.cancel_where(0, |_| true), None);
    assert_eq!(client.cancel_where(0, |_| true), Some(read(1)));
    scheduler.shutdown(Shutdown::Fail(libc::EIO));
    assert_eq!((*host.started.lock().unwrap()).as_slice(), [0]);
    assert!(host.cancelled.lock().unwrap().is_empty());
}

thread_local! {
    static KEPT: RefCell<Option<Client>> = const { RefCell::new(None) };
}

/// Whatever the runtime keeps for a thread is gone by then.
#[test]
fn a_thread_may_end_with_a_client_that_it_keeps_for_itself() {
    let (scheduler, host) = (one_by_one(), Arc::new(Notes::default()));
    std::thread::scope(|scope| {
        let works = || {
            // What was used first goes last.
            KEPT.set(None);
            let client = scheduler.attach(host.clone()).unwrap();
            (0..2).for_each(|cookie| client.submit(0, read(cookie)).unwrap());
            KEPT.set(Some(client));
        };
        scope.spawn(works).join().unwrap();
    });
    assert_eq!(*host.started.lock().unwrap(), [0]);
    assert_eq!(*host.cancelled.lock().unwrap(), [(1, libc::ECANCELED)]);
}

/// In the call for the first one, drops the volume once the test has done so.
struct Drops {
    volume: OnceLock<Weak<Volume<Drops>>>,
    dropped: Mutex<Receiver<()>>,
    told: Mutex<Sender<(u64, bool)>>,
}

impl Host for Drops {
    type Ticket = u64;

    fn complete(&self, ticket: u64, result: io::Result<Done<'_>>) {
        let volume = self.volume.get().and_then(Weak::upgrade);
        self.told.lock().unwrap().send((ticket, result.is_ok())).unwrap();
        if ticket == 0 {
            self.dropped.lock().unwrap().recv().unwrap();
            drop(volume);
            self.told.lock().unwrap().send((100, true)).unwrap();
        }
    }
}

/// The only thread there is has the call, and is to execute what comes next.
#[test]
fn a_volume_may_go_in_a_call_of_its_host() {
    common::in_time("the end of a volume in a call of its host", || {
        let dir = tempfile::tempdir().unwrap();
        let plain = common::storage(dir.path(), 1);
        let file = common::create(&plain, "f");
        let (faulty, storage) = common::Faulty::over(&plain, u64::MAX, usize::MAX);
        let ((tell, told), (drop_it, dropped)) = (channel(), channel());
        let (dropped, tell) = (Mutex::new(dropped), Mutex::new(tell));
        let host = Arc::new(Drops { volume: OnceLock::new(), dropped, told: tell });
        let mut config = VolumeConfig { inline: false, ..VolumeConfig::new(PolicyConfig::parse("to").unwrap()) };
        (config.threads_max, config.engine.in_flight_max, config.engine.batch_requests_max) = (1, 1, 1);
        let volume = Arc::new(Volume::start(storage, host.clone(), config).unwrap());
        host.volume.set(Arc::downgrade(&volume)).unwrap();
        faulty.set_open(false);
        (0..3).for_each(|ticket| volume.write(&file, AppId(0), ticket << 20, &[1; 512], ticket));
        faulty.set_open(true);
        assert_eq!(told.recv(), Ok((0, true)));
        drop(volume);
        drop_it.send(()).unwrap();
        let mut rest = [told.recv().unwrap(), told.recv().unwrap(), told.recv().unwrap()];
        rest.sort_unstable();
        assert_eq!(rest, [(1, true), (2, false), (100, true)]);
    });
}

/// Waits until nothing is outstanding when it is told of a cancellation.
struct Empties {
    scheduler: OnceLock<Weak<Scheduler>>,
    cancelled: AtomicU64,
}

impl Executor for Empties {
    fn start(&self, _: &Batch, _: &Started<'_>) {}

    fn cancelled(&self, _: &Request, _: i32) {
        self.scheduler.get().and_then(Weak::upgrade).unwrap().wait_empty();
        self.cancelled.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_host_that_is_told_of_a_cancellation_may_wait_for_all_others() {
    for driving in [Driving::Caller, Driving::Thread] {
        common::in_time("a host that waits when it is told of a cancellation", move || {
            let config = SchedulerConfig { driving, ..SchedulerConfig::new(PolicyConfig::parse("to").unwrap()) };
            let scheduler = Arc::new(Scheduler::start(config).unwrap());
            let host = Arc::new(Empties { scheduler: OnceLock::new(), cancelled: AtomicU64::new(0) });
            host.scheduler.set(Arc::downgrade(&scheduler)).unwrap();
            let client = scheduler.attach_targets(host.clone(), 0..1).unwrap();
            scheduler.set_gate(Some(&closed())).unwrap();
            (0..3).for_each(|cookie| client.submit(0, read(cookie)).unwrap());
            assert_eq!(client.detach(Shutdown::Fail(libc::EIO)), ShutdownReport { failed: 3, in_flight: 0 });
            assert_eq!(host.cancelled.load(Ordering::SeqCst), 3);
        });
    }
}

/// Waits until nothing is outstanding when it is told of the first cancellation, and looks then whether the end comes before this
/// call has ended.
struct Lingers {
    scheduler: OnceLock<Weak<Scheduler>>,
    calls: AtomicU64,
    is_over: AtomicBool,
    too_early: AtomicBool,
}

impl Executor for Lingers {
    fn start(&self, _: &Batch, _: &Started<'_>) {}

    fn cancelled(&self, _: &Request, _: i32) {
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            self.scheduler.get().and_then(Weak::upgrade).unwrap().wait_empty();
            for _ in 0..1_000 {
                std::thread::yield_now();
                self.too_early.fetch_or(self.is_over.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        }
    }
}

#[test]
fn the_end_waits_for_a_call_in_which_others_were_told() {
    for driving in [Driving::Caller, Driving::Thread] {
        let config = SchedulerConfig { driving, ..SchedulerConfig::new(PolicyConfig::parse("to").unwrap()) };
        let scheduler = Arc::new(Scheduler::start(config).unwrap());
        let host = Arc::new(Lingers {
            scheduler: OnceLock::from(Arc::downgrade(&scheduler)),
            calls: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            too_early: AtomicBool::new(false),
        });
        let client = scheduler.attach(host.clone()).unwrap();
        scheduler.set_gate(Some(&closed())).unwrap();
        (0..3).for_each(|cookie| client.submit(0, read(cookie)).unwrap());
        scheduler.shutdown(Shutdown::Fail(libc::EIO));
        host.is_over.store(true, Ordering::SeqCst);
        assert_eq!(host.calls.load(Ordering::SeqCst), 3, "{driving:?}");
        // The call may be told so by the time that it has ended.
        drop((client, scheduler));
        assert!(!host.too_early.load(Ordering::SeqCst), "{driving:?}");
    }
}

/// Nothing of application 0 is served for an hour.
fn closed() -> GatePlan {
    let slice = |apps, len_ns| GateSlice { apps, len_ns };
    let slices = vec![slice(vec![AppId(1)], 3_600_000_000_000), slice(Vec::new(), 1_000_000)];
    GatePlan { epoch: Time::ZERO, from: Time::ZERO, expires: Time(u64::MAX), slices, idle_ns: None }
}

/// Knows its scheduler, which knows it. Tells when it goes.
struct Owns {
    _scheduler: Arc<Scheduler>,
    started: Mutex<Sender<(RequestId, Completer)>>,
    /// Nobody sends; its other end is told that it is gone.
    _gone: Sender<()>,
}

impl Executor for Owns {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        let part = &batch.parts()[0];
        self.started.lock().unwrap().send((part.id, started.completer().clone())).unwrap();
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// How its client leaves, with a request in flight.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Alone,
    AmongOthers,
    AfterTheEnd,
}

fn leaves(how: Leaves, driving: Driving, completes: bool) {
    let config = SchedulerConfig { driving, ..SchedulerConfig::new(PolicyConfig::parse("to").unwrap()) };
    let scheduler = Arc::new(Scheduler::start(config).unwrap());
    let ((tell, started), (keep, gone)) = (channel(), channel());
    let host = Arc::new(Owns { _scheduler: scheduler.clone(), started: Mutex::new(tell), _gone: keep });
    let client = match how {
        Leaves::AmongOthers => scheduler.attach_targets(host, 0..1).unwrap(),
        Leaves::Alone | Leaves::AfterTheEnd => scheduler.attach(host).unwrap(),
    };
    client.submit(0, read(0)).unwrap();
    let (id, completer) = started.recv().unwrap();
    if let Leaves::AfterTheEnd = how {
        assert_eq!(scheduler.shutdown(Shutdown::Fail(libc::EIO)).in_flight, 1);
    }
    assert_eq!(client.detach(Shutdown::Fail(libc::EIO)), ShutdownReport { failed: 0, in_flight: 1 });
    drop((client, scheduler));
    if completes {
        completer.complete(id, Outcome::ok(512));
    }
    drop(completer);
    assert_eq!(gone.recv(), Err(std::sync::mpsc::RecvError));
}

#[test]
fn an_executor_that_owns_its_scheduler_goes_with_its_client_and_what_that_had_in_flight() {
    for how in [Leaves::Alone, Leaves::AmongOthers, Leaves::AfterTheEnd] {
        for (driving, completes) in
            [Driving::Caller, Driving::Thread].into_iter().zip([true, false].into_iter().cycle())
        {
            let what = format!("an executor that owns its scheduler: {how:?} {driving:?}");
            common::in_time(&what, move || leaves(how, driving, completes));
            common::in_time(&what, move || leaves(how, driving, !completes));
        }
    }
}

/// Ends its scheduler, which nobody else knows, in its call for a request that it never ends.
struct EndsItself {
    scheduler: Mutex<Option<Arc<Scheduler>>>,
    client: OnceLock<Weak<Client>>,
    left: Sender<()>,
}

impl Executor for EndsItself {
    fn start(&self, _: &Batch, _: &Started<'_>) {
        let scheduler = self.scheduler.lock().unwrap().clone().unwrap();
        assert_eq!(scheduler.shutdown(Shutdown::Fail(libc::EIO)).in_flight, 1);
        self.client.get().and_then(Weak::upgrade).unwrap().detach(Shutdown::Fail(libc::EIO));
        self.left.send(()).unwrap();
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

#[test]
fn an_executor_that_owns_its_scheduler_may_end_it_in_a_call() {
    for driving in [Driving::Caller, Driving::Thread] {
        common::in_time("an executor that ends its own scheduler", move || {
            let config = SchedulerConfig { driving, ..SchedulerConfig::new(PolicyConfig::parse("to").unwrap()) };
            let scheduler = Arc::new(Scheduler::start(config).unwrap());
            let (tell, left) = channel();
            let to_scheduler = Mutex::new(Some(scheduler.clone()));
            let host = Arc::new(EndsItself { scheduler: to_scheduler, client: OnceLock::new(), left: tell });
            let client = Arc::new(scheduler.attach(host.clone()).unwrap());
            host.client.set(Arc::downgrade(&client)).unwrap();
            client.submit(0, read(0)).unwrap();
            assert_eq!(left.recv(), Ok(()));
            drop((client, scheduler, host));
            assert_eq!(left.recv(), Err(std::sync::mpsc::RecvError));
        });
    }
}
