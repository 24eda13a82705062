//! Clients that come and go on small schedulers, from seeds: executors that complete at once, later, elsewhere, or panic, that
//! submit inside their calls; requests that are taken back, algorithms and limits that change, an end in the middle. Every
//! request that was accepted ends once, none overlaps another in flight, and who has left hears of nothing.
//!
//! `SLUICE_SEED=1 SLUICE_RUNS=1000 cargo test -p sluice-runtime --test clients -- --nocapture` goes on for longer.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use common::Random;
use parking_lot::Mutex;
use sluice_core::{
    Anticipation, AppId, Batch, EngineConfig, FileId, GatePlan, GateSlice, Op, Outcome, PolicyConfig, Request,
    RequestId, TargetId, Time,
};
use sluice_runtime::{
    AttachError, Client, Completer, Driving, Executor, Scheduler, SchedulerConfig, Shutdown, Started, SubmitError,
};

const TARGETS: u32 = 4;
/// Most requests of a client.
const COOKIES: usize = 4_096;
const ACCEPTED: u8 = 1;
/// One end.
const ENDED: u8 = 2;

fn random(seed: u64) -> Random {
    let mut random = Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1);
    random.below(7);
    random
}

/// What is to be completed later, by whoever comes along.
type Later = Mutex<Vec<(Arc<Host>, RequestId, Request, Completer)>>;

struct Host {
    me: Weak<Host>,
    client: OnceLock<Weak<Client>>,
    later: Arc<Later>,
    seed: u64,
    shards: usize,
    calls: AtomicU64,
    next: AtomicU32,
    cookies: Vec<AtomicU8>,
    /// What is in flight.
    active: Mutex<Vec<Request>>,
    used: Mutex<Vec<Arc<Client>>>,
    /// It has left.
    silent: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl Host {
    fn new(later: &Arc<Later>, seed: u64, shards: usize) -> Arc<Host> {
        Arc::new_cyclic(|me| Host {
            me: me.clone(),
            client: OnceLock::new(),
            later: later.clone(),
            seed,
            shards,
            calls: AtomicU64::new(0),
            next: AtomicU32::new(0),
            cookies: (0..COOKIES).map(|_| AtomicU8::new(0)).collect(),
            active: Mutex::default(),
            used: Mutex::default(),
            silent: AtomicBool::new(false),
            wrong: Mutex::default(),
        })
    }

    fn complain(&self, what: String) {
        self.wrong.lock().push(what);
    }

    fn ended(&self, request: &Request) {
        self.cookies[request.cookie as usize].fetch_add(ENDED, Ordering::SeqCst);
    }

    /// A request that was not accepted yet.
    fn request(&self, random: &mut Random, targets: std::ops::Range<u32>) -> Option<Request> {
        let cookie = u64::from(self.next.fetch_add(1, Ordering::SeqCst));
        (cookie < COOKIES as u64).then(|| Request {
            cookie,
            file: FileId(random.below(4)),
            app: AppId(random.below(3) as u32),
            target: TargetId(targets.start + random.below(u64::from(targets.end.min(TARGETS) - targets.start)) as u32),
            op: if random.below(2) == 0 { Op::Read } else { Op::Write },
            offset: random.below(20) * 512,
            len: (random.below(4) * 512) as u32,
        })
    }

    fn accepted(&self, request: &Request) {
        self.cookies[request.cookie as usize].fetch_add(ACCEPTED, Ordering::SeqCst);
    }

    /// What happens before a request is completed.
    fn end(&self, request: &Request) {
        let mut active = self.active.lock();
        let at = active.iter().position(|other| other == request).expect("it was started");
        active.swap_remove(at);
    }

    fn called(&self, what: &str, request: &Request) -> u64 {
        if self.silent.load(Ordering::SeqCst) {
            self.complain(format!("{what} after it has left: {request:?}"));
        }
        self.calls.fetch_add(1, Ordering::SeqCst)
    }

    fn submit_inside(&self, random: &mut Random) {
        if let Some(client) = self.client.get().and_then(Weak::upgrade)
            && let Some(request) = self.request(random, client.targets())
        {
            submit(&client, self, random, request);
            // A client that is dropped in here would leave inside a call of its own.
            self.used.lock().push(client);
        }
    }
}

impl Executor for Host {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        let call = self.called("started", &batch.parts()[0].request);
        for part in batch.parts() {
            let request = part.request;
            let mut active = self.active.lock();
            let conflicts = |other: &&Request| {
                let same = (other.file, other.target) == (request.file, request.target);
                let writes = other.op == Op::Write || request.op == Op::Write;
                same && writes
                    && other.len.min(request.len) > 0
                    && other.offset < request.end()
                    && request.offset < other.end()
            };
            let conflict = active.iter().find(conflicts).copied();
            active.push(request);
            drop(active);
            self.ended(&request);
            if let Some(other) = conflict {
                self.complain(format!("{request:?} was started before {other:?} was complete"));
            }
        }
        let mut random = random(self.seed ^ call.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let how = random.below(40);
        for part in batch.parts() {
            match how {
                0..=9 => {
                    self.end(&part.request);
                    started.complete(part.id, Outcome::ok(part.request.len));
                }
                10..=19 => {
                    self.end(&part.request);
                    started.completer().complete(part.id, Outcome::ok(part.request.len));
                }
                20 => {
                    // What the panic leaves behind ends after it.
                    batch.parts().iter().for_each(|part| self.end(&part.request));
                    panic!("the executor, as it should");
                }
                _ => {
                    let me = self.me.upgrade().expect("called");
                    self.later.lock().push((me, part.id, part.request, started.completer().clone()));
                }
            }
        }
        if random.below(6) == 0 {
            self.submit_inside(&mut random);
        }
    }

    fn cancelled(&self, request: &Request, _: i32) {
        let call = self.called("cancelled", request);
        self.ended(request);
        if call.is_multiple_of(7) {
            self.submit_inside(&mut random(self.seed ^ call));
        }
        assert!(!call.is_multiple_of(31), "the executor, as it should");
    }
}

fn submit(client: &Client, host: &Host, random: &mut Random, request: Request) {
    let shard = request.target.0 as usize % host.shards;
    let refused = |error: &SubmitError| matches!(error, SubmitError::Full(_) | SubmitError::Closed);
    match random.below(5) {
        4 => {
            let others = (0..random.below(4)).filter_map(|_| host.request(random, client.targets()));
            let others = others.map(|other| Request { target: request.target, ..other });
            let list: Vec<Request> = [request].into_iter().chain(others).collect();
            let (accepted, result) = client.try_submit_list(shard, &list);
            assert_eq!(accepted < list.len(), result.is_err());
            list[..accepted].iter().for_each(|request| host.accepted(request));
            result.unwrap_or_else(|error| assert!(refused(&error), "{error}"));
        }
        0 => match client.try_submit(shard, request) {
            Ok(()) => host.accepted(&request),
            Err(error) => assert!(refused(&error), "{error}"),
        },
        1 => match client.submit_with_id(shard, request) {
            Ok(id) => {
                host.accepted(&request);
                if random.below(2) == 0 && client.cancel(shard, id).is_ok() {
                    host.ended(&request);
                }
            }
            Err(error) => assert!(refused(&error), "{error}"),
        },
        _ => match client.submit(shard, request) {
            Ok(()) => host.accepted(&request),
            Err(error) => assert!(refused(&error), "{error}"),
        },
    }
}

fn policy(random: &mut Random) -> PolicyConfig {
    let table = sluice_core::policy::table();
    PolicyConfig::parse(table[random.below(table.len() as u64) as usize].name).unwrap()
}

/// Turns of some microseconds for two applications and the rest, for a while, or none.
fn gate(random: &mut Random, now: Time) -> Option<GatePlan> {
    let mut slice = |apps: &[u32]| GateSlice {
        apps: apps.iter().copied().map(AppId).collect(),
        len_ns: 1_000 + random.below(200_000),
    };
    let slices = vec![slice(&[1]), slice(&[]), slice(&[2])];
    let (from, expires) = (now.after(random.below(50_000)), now.after(100_000 + random.below(3_000_000)));
    let idle_ns = (random.below(2) == 0).then(|| random.below(10_000));
    (random.below(4) > 0).then_some(GatePlan { epoch: now, from, expires, slices, idle_ns })
}

fn engine(random: &mut Random, capacity: u32) -> EngineConfig {
    EngineConfig {
        capacity,
        files_max: 1 + random.below(u64::from(capacity)) as u32,
        in_flight_max: random.below(4) as u32,
        batch_requests_max: 1 + random.below(4) as u32,
        max_wait_ns: 1_000 + random.below(2_000_000),
        window_ns: 1_000_000,
        anticipation: (random.below(3) == 0).then(|| Anticipation::for_device(100_000, 100_000_000)),
        ..EngineConfig::default()
    }
}

fn complete_some(later: &Later, random: &mut Random, most: u64) {
    for _ in 0..random.below(most) + 1 {
        let mut all = later.lock();
        if all.is_empty() {
            return;
        }
        let at = random.below(all.len() as u64) as usize;
        let (host, id, request, completer) = all.swap_remove(at);
        drop(all);
        host.end(&request);
        completer.complete(id, Outcome::ok(request.len));
    }
}

fn come_and_go(scheduler: &Scheduler, later: &Arc<Later>, seed: u64, capacity: u32) {
    let mut random = random(seed);
    for round in 0..12 {
        let host = Host::new(later, seed * 100 + round, scheduler.shards());
        let start = random.below(u64::from(TARGETS)) as u32;
        let targets = start..start + 1 + random.below(u64::from(TARGETS - start)) as u32;
        let attached = match random.below(4) {
            0 => scheduler.attach(host.clone()),
            _ => scheduler.attach_targets(host.clone(), targets),
        };
        let client = match attached {
            Ok(client) => Arc::new(client),
            Err(AttachError::Closed) => return,
            Err(AttachError::Targets(_)) => continue,
            Err(error) => panic!("{error}"),
        };
        let _ = host.client.set(Arc::downgrade(&client));
        for _ in 0..random.below(60) {
            match random.below(15) {
                14 => scheduler.set_gate(gate(&mut random, scheduler.clock().now()).as_ref()).unwrap(),
                0 => scheduler.set_policy(&policy(&mut random)),
                1 => scheduler.set_limits(&engine(&mut random, capacity)).unwrap(),
                2 => _ = scheduler.snapshot(),
                3 => {
                    let shard = random.below(scheduler.shards() as u64) as usize;
                    let app = AppId(random.below(3) as u32);
                    if let Some(request) = client.cancel_where(shard, move |request| request.app == app) {
                        host.ended(&request);
                    }
                }
                4 | 5 => complete_some(later, &mut random, 4),
                _ => {
                    if let Some(request) = host.request(&mut random, client.targets()) {
                        submit(&client, &host, &mut random, request);
                    }
                }
            }
        }
        let how = match random.below(2) {
            0 => Shutdown::Fail(libc::EIO),
            _ => Shutdown::Drain { timeout: Duration::from_millis(random.below(4)) },
        };
        let mut report = client.detach(how);
        while report.in_flight > 0 {
            complete_some(later, &mut random, 8);
            report = client.detach(Shutdown::Fail(libc::EIO));
        }
        host.silent.store(true, Ordering::SeqCst);
        drop(std::mem::take(&mut *host.used.lock()));
        assert_eq!(*host.wrong.lock(), Vec::<String>::new());
        for (cookie, state) in host.cookies.iter().enumerate() {
            let state = state.load(Ordering::SeqCst);
            assert!(state == 0 || state == ACCEPTED + ENDED, "request {cookie}: {state}");
        }
    }
}

fn run(seed: u64) {
    let (mut random, later) = (random(seed), Arc::<Later>::default());
    let capacity = 1 + random.below(16) as u32;
    let config = SchedulerConfig {
        engine: engine(&mut random, capacity),
        shards: 1 + random.below(3) as usize,
        driving: if random.below(2) == 0 { Driving::Thread } else { Driving::Caller },
        ..SchedulerConfig::new(policy(&mut random))
    };
    let scheduler = Scheduler::start(config).unwrap();
    let early = random.below(3) == 0;
    let busy = AtomicU32::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (scheduler, later, busy) = (&scheduler, &later, &busy);
            scope.spawn(move || {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    come_and_go(scheduler, later, seed * 31 + thread, capacity);
                }));
                busy.fetch_sub(1, Ordering::SeqCst);
                done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
        }
        scope.spawn(|| {
            let mut random = self::random(seed * 7);
            while busy.load(Ordering::SeqCst) > 0 {
                complete_some(&later, &mut random, 3);
                std::thread::yield_now();
            }
        });
        if early {
            let wait = random.below(300);
            (0..wait).for_each(|_| std::thread::yield_now());
            scheduler.shutdown(Shutdown::Drain { timeout: Duration::from_millis(random.below(4)) });
        }
    });
    complete_some(&later, &mut random, 1 << 20);
    scheduler.shutdown(Shutdown::Fail(libc::EIO));
    let left = scheduler.snapshot();
    assert!(left.shards.iter().all(|shard| shard.queued + shard.in_flight == 0), "seed {seed}");
}

#[test]
fn clients_come_and_go() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, runs) = (number("SLUICE_SEED", 1_u64), number("SLUICE_RUNS", 15));
    for seed in first..first + runs {
        eprintln!("seed {seed}");
        let (tell, told) = channel();
        let one = std::thread::spawn(move || {
            let done = std::panic::catch_unwind(|| run(seed));
            let _ = tell.send(());
            done
        });
        if told.recv_timeout(common::LIMIT).is_err() {
            eprintln!("HANG: seed {seed}");
            std::process::exit(77);
        }
        assert!(one.join().unwrap().is_ok(), "seed {seed}");
    }
}
