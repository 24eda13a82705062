//! What hosts do inside their calls while others drive, wait or end: each test failed before.

mod common;

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_core::{AppId, Batch, EngineConfig, FileId, Op, Outcome, PolicyConfig, Request, TargetId};
use sluice_runtime::{Client, Driving, Executor, Scheduler, SchedulerConfig, Shutdown, Started, SubmitError};

/// Fails the test (leaving the thread) unless it ends in time.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = channel();
    std::thread::spawn(move || _ = tell.send(work()));
    match told.recv_timeout(Duration::from_secs(15)) {
        Ok(value) => value,
        Err(_) => {
            eprintln!("HANG: {what}");
            std::process::exit(77);
        }
    }
}

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
        thread.scheduler.shutdown(Shutdown::Drain { timeout: Duration::from_secs(10) });
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
