//! The scheduler behind the calls.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluice_core::{AppId, Batch, EngineConfig, Outcome, PolicyConfig, Request, RequestId, TargetId};
use sluice_runtime::{Client, Driving, Executor, SchedulerConfig, Shutdown, Started};

use crate::complain;
use crate::in_flight::{InFlight, Key};
use crate::services::{Services, Wanted};

/// Most requests outstanding, and files that they are for.
const CAPACITY: u32 = 131_072;
const FILES_MAX: u32 = 65_536;

/// How long the end waits for releases.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it looks for the last one where nobody tells.
const EXIT_POLL: Duration = Duration::from_millis(1);

pub(crate) type ProcessOne = unsafe extern "C" fn(i64) -> *mut c_void;
pub(crate) type ProcessMany = unsafe extern "C" fn(*mut i64, i32) -> *mut c_void;

thread_local! {
    /// How many callbacks this thread is inside of.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
    /// Whose requests this thread is handing over, by address; 0 if it is not.
    static HANDING_OVER: Cell<usize> = const { Cell::new(0) };
    /// Requests that were released meanwhile.
    static RELEASED: RefCell<Vec<(RequestId, Outcome)>> = const { RefCell::new(Vec::new()) };
    /// Room for the identifiers of a batch.
    static IDENTIFIERS: Cell<Vec<i64>> = const { Cell::new(Vec::new()) };
}

/// While it lives, this thread runs a callback.
struct InCallback;

impl InCallback {
    fn enter() -> InCallback {
        CALLBACKS.set(CALLBACKS.get() + 1);
        InCallback
    }
}

impl Drop for InCallback {
    fn drop(&mut self) {
        CALLBACKS.set(CALLBACKS.get() - 1);
    }
}

pub(crate) fn is_in_callback() -> bool {
    CALLBACKS.get() > 0
}

/// The program's side.
pub(crate) struct Host {
    one: ProcessOne,
    many: Option<ProcessMany>,
    in_flight: InFlight,
}

impl Host {
    pub(crate) fn new(one: ProcessOne, many: Option<ProcessMany>) -> Host {
        Host { one, many, in_flight: InFlight::new() }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn process_one(&self, identifier: i64) {
        // SAFETY: the program's function.
        unsafe { (self.one)(identifier) };
    }

    /// Hands over requests that are contiguous.
    fn process(&self, identifiers: &mut [i64]) {
        match (identifiers, self.many) {
            (several @ [_, _, ..], Some(many)) => {
                // SAFETY: the program's function, for as many identifiers.
                unsafe { many(several.as_mut_ptr(), several.len() as i32) };
            }
            (each, _) => each.iter().for_each(|&identifier| self.process_one(identifier)),
        }
    }
}

impl Executor for Host {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        let _inside = InCallback::enter();
        let parts = batch.parts();
        parts.iter().for_each(|part| self.in_flight.add(Key::of(&part.request), Some(part.id)));
        let outer = HANDING_OVER.replace(self.address());
        if let [part] = parts {
            self.process_one(part.request.cookie as i64);
        } else {
            let mut identifiers = IDENTIFIERS.take();
            identifiers.clear();
            identifiers.extend(parts.iter().map(|part| part.request.cookie as i64));
            self.process(&mut identifiers);
            IDENTIFIERS.set(identifiers);
        }
        HANDING_OVER.set(outer);
        RELEASED.with_borrow_mut(|released| {
            released.drain(..).for_each(|(id, outcome)| started.complete(id, outcome));
        });
    }

    /// AGIOS has nothing to tell of such a request by; how many there were is told at the end.
    fn cancelled(&self, _: &Request, _: i32) {}
}

/// An engine, and its only client.
struct Driven {
    scheduler: sluice_runtime::Scheduler,
    client: Client,
    services: Mutex<Services>,
    /// Queues are data servers, not applications: a file's parts on them are files of their own.
    queues_are_targets: bool,
}

/// Requests on their way from [`Scheduler::add`] to [`Scheduler::release`].
pub(crate) struct Scheduler {
    host: Arc<Host>,
    /// None with an algorithm that keeps no queue: its requests are handed over at once by those who add them, as AGIOS
    /// does it, and there is nothing for an engine to decide.
    driven: Option<Driven>,
    closed: AtomicBool,
    queue_id_max: i32,
}

/// What the end left behind.
pub(crate) struct Left {
    /// Requests that were never handed over.
    pub(crate) queued: usize,
    /// Requests that were, and never released.
    pub(crate) in_flight: usize,
}

impl Scheduler {
    /// Starts it.
    ///
    /// # Errors
    /// If there is no thread to be had, with the reason.
    pub(crate) fn start(
        host: Host,
        policy: PolicyConfig,
        queue_id_max: i32,
        wanted: &Wanted,
    ) -> Result<Scheduler, String> {
        let host = Arc::new(host);
        let driven = match policy.info().bypasses_queue {
            true => None,
            false => Some(Driven::start(host.clone(), policy, wanted)?),
        };
        if driven.is_none() && !wanted.is_nothing() {
            complain("NOOP keeps no queue: nothing is recorded or predicted");
        }
        Ok(Scheduler { host, driven, closed: AtomicBool::new(false), queue_id_max })
    }

    /// Gives it a request. Waits for room, but not inside a callback.
    ///
    /// # Errors
    /// If it is not accepted, with the reason.
    pub(crate) fn add(&self, key: Key, identifier: i64, queue_id: i32) -> Result<(), String> {
        if !(0..=self.queue_id_max).contains(&queue_id) {
            return Err(format!("queue_id {queue_id} is not between 0 and {}", self.queue_id_max));
        }
        let Some(driven) = &self.driven else {
            if self.closed.load(Ordering::Relaxed) {
                return Err("agios_exit was called".to_owned());
            }
            self.host.in_flight.add(key, None);
            let _inside = InCallback::enter();
            self.host.process_one(identifier);
            return Ok(());
        };
        let request = Request {
            cookie: identifier as u64,
            file: key.file,
            app: AppId(queue_id as u32),
            target: TargetId(if driven.queues_are_targets { queue_id as u32 } else { 0 }),
            op: key.op,
            offset: key.offset,
            len: key.len,
        };
        // Waits for room, but not inside a callback.
        driven.client.submit(0, request).map_err(|error| error.to_string())
    }

    /// A request that was handed over is done. False if there is none with these attributes.
    pub(crate) fn release(&self, key: Key) -> bool {
        let Some(id) = self.host.in_flight.remove(key) else { return false };
        if let Some((driven, id)) = self.driven.as_ref().zip(id) {
            match HANDING_OVER.get() == self.host.address() {
                // The engine's thread sees to it when the callback returns, as it would anyway.
                true => RELEASED.with_borrow_mut(|released| released.push((id, Outcome::ok(key.len)))),
                false => driven.client.completer(0).complete(id, Outcome::ok(key.len)),
            }
        }
        true
    }

    /// Takes back a request that was not handed over. False if there is none with these attributes. O(requests outstanding).
    pub(crate) fn cancel(&self, key: Key) -> bool {
        let named = move |request: &Request| key.names(request);
        self.driven.as_ref().is_some_and(|driven| driven.client.cancel_where(0, named).is_some())
    }

    /// Accepts no more requests, hands over what is queued and waits for what was, but not for ever.
    pub(crate) fn shutdown(&self) -> Left {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(driven) = &self.driven {
            // While there is a recording to end: the engine's end would end it, too, and keep what went wrong to itself.
            driven.services.lock().end(&driven.scheduler, complain);
            let left = driven.scheduler.shutdown(Shutdown::Drain { timeout: EXIT_TIMEOUT });
            return Left { queued: left.failed as usize, in_flight: left.in_flight as usize };
        }
        let until = Instant::now() + EXIT_TIMEOUT;
        while self.host.in_flight.len() > 0 && Instant::now() < until {
            std::thread::sleep(EXIT_POLL);
        }
        Left { queued: 0, in_flight: self.host.in_flight.len() }
    }
}

impl Driven {
    fn start(host: Arc<Host>, policy: PolicyConfig, wanted: &Wanted) -> Result<Driven, String> {
        let queues_are_targets = policy.info().shared_engine;
        let settings = SchedulerConfig {
            engine: EngineConfig { capacity: CAPACITY, files_max: FILES_MAX, ..EngineConfig::default() },
            // Programs may hold a lock that their callback takes, too.
            driving: Driving::Thread,
            name: "agios".to_owned(),
            ..SchedulerConfig::new(policy)
        };
        let scheduler = sluice_runtime::Scheduler::start(settings).map_err(|error| error.to_string())?;
        let client = scheduler.attach(host).map_err(|error| error.to_string())?;
        let services = Mutex::new(Services::start(&scheduler, wanted, complain));
        Ok(Driven { scheduler, client, services, queues_are_targets })
    }
}
