//! Hosts of two schedulers that submit, take back, ask, change algorithms and wait inside their calls, on both, from seeds. Every
//! request that was accepted ends once, and nobody waits for ever.
//!
//! `SLUICE_SEED=1 SLUICE_RUNS=1000 cargo test -p sluice-runtime --test nested -- --nocapture` goes on for longer.

mod common;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use common::Random;
use parking_lot::Mutex;
use sluice_core::{AppId, Batch, EngineConfig, FileId, Op, Outcome, PolicyConfig, Request, RequestId, TargetId};
use sluice_runtime::{
    Client, Completer, Driving, Executor, Scheduler, SchedulerConfig, Shutdown, Started, SubmitError,
};

/// Requests of both schedulers.
const COOKIES: usize = 600;
/// Calls inside each other in which a host does something.
const DEPTH_MAX: u32 = 6;
const ACCEPTED: u8 = 1;
const ENDED: u8 = 2;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

struct World {
    schedulers: [Arc<Scheduler>; 2],
    clients: [Client; 2],
}

/// What is completed by a thread of its own.
type Later = Mutex<Vec<(RequestId, u32, Completer)>>;

struct Host {
    world: Arc<OnceLock<Weak<World>>>,
    own: usize,
    later: Arc<Later>,
    cookies: Arc<Cookies>,
    calls: AtomicU64,
    seed: u64,
}

struct Cookies {
    states: Vec<AtomicU8>,
    next: AtomicU64,
}

impl Cookies {
    fn request(&self, random: &mut Random) -> Option<Request> {
        let cookie = self.next.fetch_add(1, Ordering::SeqCst);
        (cookie < COOKIES as u64).then(|| Request {
            cookie,
            file: FileId(random.below(3)),
            app: AppId(random.below(2) as u32),
            target: TargetId(0),
            op: if random.below(2) == 0 { Op::Read } else { Op::Write },
            offset: random.below(8) * 512,
            len: 512 + random.below(3) as u32 * 512,
        })
    }

    fn note(&self, cookie: u64, what: u8) {
        self.states[cookie as usize].fetch_add(what, Ordering::SeqCst);
    }
}

fn policy(random: &mut Random) -> PolicyConfig {
    let names = ["noop", "to", "to-agg", "sjf", "hbrr", "wfq"];
    PolicyConfig::parse(names[random.below(names.len() as u64) as usize]).unwrap()
}

fn submit(client: &Client, cookies: &Cookies, random: &mut Random) {
    let Some(request) = cookies.request(random) else { return };
    let refused = |error: SubmitError| assert!(matches!(error, SubmitError::Full(_)), "{error}");
    match random.below(4) {
        0 => match client.submit_with_id(0, request) {
            Ok(id) => {
                cookies.note(request.cookie, ACCEPTED);
                if random.below(2) == 0 && client.cancel(0, id).is_ok() {
                    cookies.note(request.cookie, ENDED);
                }
            }
            Err(error) => refused(error),
        },
        1 => {
            let list: Vec<Request> = [Some(request), cookies.request(random)].into_iter().flatten().collect();
            let (accepted, result) = client.try_submit_list(0, &list);
            list[..accepted].iter().for_each(|request| cookies.note(request.cookie, ACCEPTED));
            result.unwrap_or_else(refused);
        }
        _ => match client.submit(0, request) {
            Ok(()) => cookies.note(request.cookie, ACCEPTED),
            Err(error) => refused(error),
        },
    }
}

impl Host {
    fn act(&self, world: &World, random: &mut Random) {
        let other = 1 - self.own;
        let any = random.below(2) as usize;
        match random.below(14) {
            0..=3 => submit(&world.clients[self.own], &self.cookies, random),
            4..=6 => submit(&world.clients[other], &self.cookies, random),
            7 => _ = world.schedulers[any].snapshot(),
            8 => world.schedulers[any].set_policy(&policy(random)),
            9 | 10 => world.schedulers[self.own].wait_empty(),
            11 => world.schedulers[other].wait_empty(),
            _ => {}
        }
    }
}

impl Executor for Host {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let mut random = Random((self.seed ^ call.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1);
        random.below(3);
        for part in batch.parts() {
            self.cookies.note(part.request.cookie, ENDED);
            let outcome = Outcome::ok(part.request.len);
            match random.below(3) {
                0 => started.complete(part.id, outcome),
                1 => started.completer().complete(part.id, outcome),
                _ => self.later.lock().push((part.id, part.request.len, started.completer().clone())),
            }
        }
        if DEPTH.get() < DEPTH_MAX
            && let Some(world) = self.world.get().and_then(Weak::upgrade)
        {
            DEPTH.set(DEPTH.get() + 1);
            self.act(&world, &mut random);
            DEPTH.set(DEPTH.get() - 1);
        }
    }

    fn cancelled(&self, request: &Request, _: i32) {
        self.cookies.note(request.cookie, ENDED);
    }
}

fn start(random: &mut Random, driving: Driving) -> Arc<Scheduler> {
    let capacity = 1 + random.below(16) as u32;
    let engine = EngineConfig {
        capacity,
        files_max: 1 + random.below(3) as u32,
        in_flight_max: random.below(3) as u32,
        batch_requests_max: 1 + random.below(3) as u32,
        window_ns: 1_000_000,
        ..EngineConfig::default()
    };
    Arc::new(Scheduler::start(SchedulerConfig { engine, driving, ..SchedulerConfig::new(policy(random)) }).unwrap())
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1);
    random.below(7);
    let driving = if random.below(3) == 0 { Driving::Thread } else { Driving::Caller };
    let schedulers = [start(&mut random, driving), start(&mut random, driving)];
    let (later, to_world) = (Arc::<Later>::default(), Arc::default());
    let states = (0..COOKIES).map(|_| AtomicU8::new(0)).collect();
    let cookies = Arc::new(Cookies { states, next: AtomicU64::new(0) });
    let clients = [0, 1].map(|own| {
        let host = Host {
            world: Arc::clone(&to_world),
            own,
            later: later.clone(),
            cookies: cookies.clone(),
            calls: AtomicU64::new(0),
            seed: seed * 2 + own as u64,
        };
        schedulers[own].attach(Arc::new(host)).unwrap()
    });
    let world = Arc::new(World { schedulers, clients });
    to_world.set(Arc::downgrade(&world)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let completing = scope.spawn(|| {
            // Hosts that are called on this thread do not wait for what it is to complete.
            DEPTH.set(DEPTH_MAX);
            let next = || later.lock().pop();
            while !over.load(Ordering::SeqCst) {
                while let Some((id, len, completer)) = next() {
                    completer.complete(id, Outcome::ok(len));
                }
                std::thread::yield_now();
            }
        });
        let submitting: Vec<_> = (0..3)
            .map(|thread| {
                let (world, cookies) = (&world, &cookies);
                scope.spawn(move || {
                    let mut random = Random((seed * 31 + thread) | 1);
                    while cookies.next.load(Ordering::SeqCst) < COOKIES as u64 {
                        submit(&world.clients[random.below(2) as usize], cookies, &mut random);
                    }
                })
            })
            .collect();
        submitting.into_iter().for_each(|thread| thread.join().unwrap());
        // What ends on the one may have been submitted to the other.
        (0..4).for_each(|turn| world.schedulers[turn % 2].wait_empty());
        over.store(true, Ordering::SeqCst);
        completing.join().unwrap();
    });
    world.schedulers.iter().for_each(|scheduler| _ = scheduler.shutdown(Shutdown::Fail(libc::EIO)));
    for (cookie, state) in cookies.states.iter().enumerate() {
        let state = state.load(Ordering::SeqCst);
        assert!(state == 0 || state == ACCEPTED + ENDED, "seed {seed}, request {cookie}: {state}");
    }
}

#[test]
fn hosts_do_anything_in_their_calls() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, runs) = (number("SLUICE_SEED", 1_u64), number("SLUICE_RUNS", 12));
    for seed in first..first + runs {
        eprintln!("seed {seed}");
        common::in_time("hosts that wait in their calls", move || run(seed));
    }
}
