//! Hosts that wait in their calls for what their own threads have: what is left to the serving thread, and, of two schedulers,
//! what one thread has of the one and waits for of the other.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex, OnceLock, Weak};

use sluice_core::{
    AppId, Batch, FileId, GatePlan, GateSlice, Op, Outcome, PolicyConfig, Request, RequestId, TargetId, Time,
};
use sluice_runtime::{Client, Completer, Driving, Executor, Scheduler, SchedulerConfig, Started};

fn request(cookie: u64) -> Request {
    Request { cookie, file: FileId(cookie), app: AppId(0), target: TargetId(0), op: Op::Read, offset: 0, len: 4096 }
}

fn start(driving: Driving) -> Arc<Scheduler> {
    let config = SchedulerConfig::new(PolicyConfig::parse("to").unwrap());
    Arc::new(Scheduler::start(SchedulerConfig { driving, ..config }).unwrap())
}

/// Reports what it is to start, and waits then until the other scheduler has nothing.
struct Crosses {
    other: OnceLock<Weak<Scheduler>>,
    meets: Arc<Barrier>,
    done: Arc<Barrier>,
}

impl Executor for Crosses {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        batch.parts().iter().for_each(|part| started.complete(part.id, Outcome::ok(part.request.len)));
        self.meets.wait();
        self.other.get().and_then(Weak::upgrade).unwrap().wait_empty();
        self.done.wait();
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

#[test]
fn two_hosts_wait_in_their_calls_for_each_others_schedulers() {
    for driving in [Driving::Caller, Driving::Thread] {
        common::in_time("two hosts that wait for each other", move || {
            // Two calls, and the test.
            let (meets, done) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(3)));
            let schedulers = [start(driving), start(driving)];
            let clients: Vec<Client> = [1, 0]
                .iter()
                .zip(&schedulers)
                .map(|(other, scheduler)| {
                    let to_other = OnceLock::from(Arc::downgrade(&schedulers[*other]));
                    let host = Crosses { other: to_other, meets: meets.clone(), done: done.clone() };
                    scheduler.attach(Arc::new(host)).unwrap()
                })
                .collect();
            std::thread::scope(|scope| {
                for client in &clients {
                    scope.spawn(move || client.submit(0, request(0)).unwrap());
                }
                done.wait();
            });
            schedulers.iter().for_each(|scheduler| scheduler.wait_empty());
        });
    }
}

/// Keeps what it is to start.
#[derive(Default)]
struct Keeps(Mutex<Vec<(RequestId, Completer)>>);

impl Executor for Keeps {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        let parts = batch.parts().iter().map(|part| (part.id, started.completer().clone()));
        self.0.lock().unwrap().extend(parts);
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// Waits in its first call for what the second one ends.
struct Below {
    above: Arc<Scheduler>,
    kept: Arc<Keeps>,
    calls: AtomicU32,
}

impl Executor for Below {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        batch.parts().iter().for_each(|part| started.complete(part.id, Outcome::ok(part.request.len)));
        match self.calls.fetch_add(1, Ordering::SeqCst) {
            0 => self.above.wait_empty(),
            _ => {
                let kept = std::mem::take(&mut *self.kept.0.lock().unwrap());
                kept.iter().for_each(|(id, completer)| completer.complete(*id, Outcome::ok(1)));
            }
        }
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

#[test]
fn a_host_waits_for_a_scheduler_whose_requests_end_in_its_threads_next_call() {
    common::in_time("what the same thread is to start next", || {
        let (above, below, kept) = (start(Driving::Caller), start(Driving::Caller), Arc::new(Keeps::default()));
        let of_above = above.attach(kept.clone()).unwrap();
        of_above.submit(0, request(7)).unwrap();
        let host = Arc::new(Below { above: above.clone(), kept, calls: AtomicU32::new(0) });
        let client = below.attach(host.clone()).unwrap();
        // Both are dispatched by the thread that takes the gate away, in one turn.
        let slice = |apps, len_ns| GateSlice { apps, len_ns };
        let slices = vec![slice(vec![AppId(1)], 3_600_000_000_000), slice(Vec::new(), 1_000_000)];
        let plan = GatePlan { epoch: Time::ZERO, from: Time::ZERO, expires: Time(u64::MAX), slices, idle_ns: None };
        below.set_gate(Some(&plan)).unwrap();
        (0..2).for_each(|cookie| client.submit(0, request(cookie)).unwrap());
        below.set_gate(None).unwrap();
        assert_eq!(host.calls.load(Ordering::SeqCst), 2);
        below.wait_empty();
    });
}

/// Stays in its call for request 0 until it is to go on; waits in that for request 1, once it has reported it.
struct Stays {
    scheduler: OnceLock<Weak<Scheduler>>,
    go_on: Mutex<Receiver<()>>,
}

impl Executor for Stays {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        let cookie = batch.parts()[0].request.cookie;
        if cookie == 0 {
            self.go_on.lock().unwrap().recv().unwrap();
        }
        batch.parts().iter().for_each(|part| started.complete(part.id, Outcome::ok(part.request.len)));
        if cookie == 1 {
            self.scheduler.get().and_then(Weak::upgrade).unwrap().wait_empty();
        }
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// Requests 1 and 2 are left to the serving thread together.
#[test]
fn a_host_waits_for_what_is_left_to_the_serving_thread_with_its_request() {
    common::in_time("what was left to the serving thread", || {
        let (scheduler, (go, go_on)) = (start(Driving::Thread), channel());
        let to_scheduler = OnceLock::from(Arc::downgrade(&scheduler));
        let host = Stays { scheduler: to_scheduler, go_on: Mutex::new(go_on) };
        let client = scheduler.attach(Arc::new(host)).unwrap();
        (0..3).for_each(|cookie| client.submit(0, request(cookie)).unwrap());
        // Who asks drives, after the answer.
        while scheduler.snapshot().shards[0].in_flight < 3 {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        scheduler.wait_empty();
    });
}

/// Request 0 waits for the other scheduler, whose request is kept until the call for request 1.
struct Serves {
    other: Arc<Scheduler>,
    /// Stays as long as its request.
    _of_other: Client,
    kept: Arc<Keeps>,
    entered: Mutex<Sender<()>>,
}

impl Executor for Serves {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        let cookie = batch.parts()[0].request.cookie;
        batch.parts().iter().for_each(|part| started.complete(part.id, Outcome::ok(part.request.len)));
        if cookie == 0 {
            self.entered.lock().unwrap().send(()).unwrap();
            self.other.wait_empty();
        } else {
            let kept = std::mem::take(&mut *self.kept.0.lock().unwrap());
            kept.iter().for_each(|(id, completer)| completer.complete(*id, Outcome::ok(1)));
        }
    }

    fn cancelled(&self, _: &Request, _: i32) {}
}

/// A scheduler whose thread waits for another one in the call for request 0, until that for request 1.
fn serves(config: SchedulerConfig) -> (Arc<Scheduler>, Client, Receiver<()>) {
    let (other, kept, (tell, entered)) = (start(Driving::Thread), Arc::new(Keeps::default()), channel());
    let of_other = other.attach(kept.clone()).unwrap();
    of_other.submit(0, request(7)).unwrap();
    while other.snapshot().shards[0].in_flight == 0 || kept.0.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    let scheduler = Arc::new(Scheduler::start(config).unwrap());
    let host = Serves { other, _of_other: of_other, kept, entered: Mutex::new(tell) };
    let client = scheduler.attach(Arc::new(host)).unwrap();
    (scheduler, client, entered)
}

/// A thread that has gone to sleep in there has to be woken; when it does nobody knows, so there are many goes at it.
#[test]
fn a_thread_that_waits_for_another_scheduler_in_a_call_serves_its_own() {
    common::in_time("what comes for a thread that waits for another scheduler", || {
        for round in 0..100 {
            let config = SchedulerConfig::new(PolicyConfig::parse("to").unwrap());
            let (scheduler, client, entered) = serves(SchedulerConfig { driving: Driving::Thread, ..config });
            client.submit(0, request(0)).unwrap();
            entered.recv().unwrap();
            (0..round % 8).for_each(|_| std::thread::yield_now());
            client.submit(0, request(1)).unwrap();
            scheduler.wait_empty();
        }
    });
}

/// Nobody but the thread itself sees to the time of request 1, of another engine.
#[test]
fn a_thread_that_waits_for_another_scheduler_in_a_call_sees_to_deadlines() {
    common::in_time("a deadline of a thread that waits for another scheduler", || {
        for round in 0..20 {
            let config = SchedulerConfig::new(PolicyConfig::parse("to").unwrap());
            let (scheduler, client, entered) = serves(SchedulerConfig { shards: 2, ..config });
            // Application 0 is served after a while, on both engines, by the one serving thread.
            let slice = |apps, len_ns| GateSlice { apps, len_ns };
            let plan = |ms: u64| {
                let now = scheduler.clock().now();
                let slices = vec![slice(vec![AppId(1)], ms * 1_000_000), slice(Vec::new(), 3_600_000_000_000)];
                GatePlan { epoch: now, from: now, expires: Time(u64::MAX), slices, idle_ns: None }
            };
            // Without: as where the slice is over before they are submitted.
            if round > 0 {
                scheduler.set_gate(Some(&plan(5 + round))).unwrap();
            }
            // Request 1 first: then this thread is called for them, and what it waits for must not be its own to bring.
            (0..2).rev().for_each(|cookie| client.submit(cookie as usize, request(cookie)).unwrap());
            entered.recv().unwrap();
            scheduler.wait_empty();
        }
    });
}
