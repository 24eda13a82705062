//! Ends inside calls of hosts, while others submit: every accepted request is told once all the same, and what a client had is
//! free for the next one. `SLUICE_SEED=1 SLUICE_RUNS=1000 cargo test -p sluice-runtime --test ends` goes on for longer.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use common::Random;
use sluice_core::{AppId, Batch, FileId, Op, Outcome, PolicyConfig, Request, TargetId};
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
