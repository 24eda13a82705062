//! Several engines and the threads that drive them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluice_core::{
    Batch, CancelError, ConfigError, Engine, EngineConfig, Event, PolicyConfig, Predictor, PreparedPolicy, Request,
    RequestId, Stats, Time,
};
use sluice_trace::Meta;

use crate::clock::{Clock, ClockKind};
use crate::record::{RecordError, Recording, Tap};
use crate::server::{Bell, Server};
use crate::shard::{Completer, Shard};

/// Does what the engines dispatch.
pub trait Executor: Send + Sync + 'static {
    /// Starts a batch. Every part is reported to `completer` once: in here, or later from any thread.
    ///
    /// Called with the engine of `shard` locked, so it must return soon and must not block. It may submit with
    /// [`Runtime::try_submit`].
    fn start(&self, batch: &Batch, shard: usize, completer: &Completer);

    /// The request was accepted but will never be started: the runtime shuts down. Called like [`Executor::start`].
    fn cancelled(&self, request: &Request, shard: usize, errno: i32);
}

/// Which threads drive an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Driving {
    /// Whoever submits or completes, if nobody else does just then. No hand-over between threads on the way of a request.
    #[default]
    Caller,
    /// A thread for each shard. [`Executor::start`] is never called inside a submission.
    Thread,
}

/// How to start a [`Runtime`].
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Number of engines, at least 1.
    pub shards: usize,
    /// Settings of each engine. `capacity` requests are accepted and not completed at most, in each.
    pub engine: EngineConfig,
    /// The algorithm.
    pub policy: PolicyConfig,
    /// Who drives.
    pub driving: Driving,
    /// What times count from.
    pub clock: ClockKind,
    /// Name of the threads, with a number after it where there are several.
    pub name: String,
}

impl RuntimeConfig {
    /// One shard driven by its callers.
    #[must_use]
    pub fn new(policy: PolicyConfig) -> RuntimeConfig {
        RuntimeConfig {
            shards: 1,
            engine: EngineConfig::default(),
            policy,
            driving: Driving::default(),
            clock: ClockKind::default(),
            name: "sluice".to_owned(),
        }
    }
}

/// A runtime could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system refused a thread or another resource.
    #[error("cannot start {what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// A request was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError {
    /// As many requests as the engine holds are outstanding; here it is back. From the blocking
    /// [`Runtime::submit`] only if called inside the shard's own [`Executor::start`], which must not wait.
    #[error("the queue is full")]
    Full(Request),
    /// The range ends beyond 2^64.
    #[error("the byte range ends beyond the largest offset")]
    RangeOverflow,
    /// The runtime is shutting down or has.
    #[error("the scheduler is shutting down")]
    Closed,
}

/// What to do with requests that were accepted before the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Dispatch and complete them all. What is still queued after `timeout` fails with `ETIMEDOUT`.
    Drain {
        /// How long to wait at most.
        timeout: Duration,
    },
    /// Fail at once, with this error number, whatever was not dispatched yet.
    Fail(i32),
}

/// What became of the requests that were outstanding at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShutdownReport {
    /// Queued requests that were failed.
    pub failed: u32,
    /// Dispatched requests whose completion was not reported yet. Reporting them later is harmless.
    pub in_flight: u32,
}

/// One shard at one moment.
#[derive(Clone, Debug)]
pub struct ShardSnapshot {
    /// Requests waiting in the engine.
    pub queued: u32,
    /// Requests dispatched.
    pub in_flight: u32,
    /// What its engine saw.
    pub stats: Stats,
}

/// A runtime at one moment (each shard at its own; taking it stops nobody for longer than copying takes).
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When.
    pub at: Time,
    /// The algorithm.
    pub policy: PolicyConfig,
    /// All shards together.
    pub total: Stats,
    /// Each shard.
    pub shards: Vec<ShardSnapshot>,
    /// Completions reported for requests that were not in flight.
    pub stale: u64,
    /// Times the serving threads woke up; does not grow while nothing happens.
    pub wakes: u64,
}

/// Drives one or more engines. All methods may be called from any thread.
///
/// The time that an engine sees for a submission or completion is the one at which the driving thread takes note of it,
/// normally some microseconds after the call.
pub struct Runtime<X: Executor> {
    executor: Arc<X>,
    shards: Vec<(Arc<Shard>, Completer)>,
    servers: Vec<Server>,
    clock: Clock,
    policy: Mutex<PolicyConfig>,
    /// For recording.
    pub(crate) tap: Arc<Tap>,
    /// For an observer.
    pub(crate) watch: Arc<Tap>,
}

impl<X: Executor> Runtime<X> {
    /// Starts the threads.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(executor: Arc<X>, config: RuntimeConfig) -> Result<Runtime<X>, StartError> {
        Runtime::start_with(Arc::new(Tap::new()), executor, config)
    }

    /// As [`Runtime::start`]; recordings get what is left in `tap`.
    pub(crate) fn start_with(tap: Arc<Tap>, executor: Arc<X>, config: RuntimeConfig) -> Result<Runtime<X>, StartError> {
        let clock = Clock::new(config.clock);
        let count = config.shards.max(1);
        let by_caller = config.driving == Driving::Caller;
        let shared_bell = Bell::new();
        let mut shards = Vec::with_capacity(count);
        for index in 0..count {
            let engine = Engine::new(config.engine.clone(), &config.policy, clock.now())?;
            let bell = if by_caller { shared_bell.clone() } else { Bell::new() };
            let capacity = config.engine.capacity;
            shards.push(Arc::new(Shard::new(index, clock, executor.clone(), engine, capacity, by_caller, bell)));
        }
        let mut servers = Vec::new();
        let failed = |source| StartError::System { what: "a thread", source };
        if by_caller {
            servers.push(Server::start(config.name.clone(), shared_bell, clock, shards.clone()).map_err(failed)?);
        } else {
            for (index, shard) in shards.iter().enumerate() {
                let name = format!("{}-{index}", config.name);
                // On an error the servers that run already are stopped by their drop.
                servers.push(Server::start(name, shard.bell.clone(), clock, vec![shard.clone()]).map_err(failed)?);
            }
        }
        let shards = shards.into_iter().map(|shard| (shard.clone(), Completer::new(shard))).collect();
        let (policy, watch) = (Mutex::new(config.policy), Arc::new(Tap::new()));
        Ok(Runtime { executor, shards, servers, clock, policy, tap, watch })
    }

    /// The executor.
    #[must_use]
    pub fn executor(&self) -> &Arc<X> {
        &self.executor
    }

    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Reports completions for `shard`.
    #[must_use]
    pub fn completer(&self, shard: usize) -> &Completer {
        &self.shards[shard].1
    }

    /// The clock that the engines' times are from.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Submits to a shard. May dispatch (and complete) this and other requests on this thread.
    ///
    /// # Errors
    /// [`SubmitError::Full`] with the request, for back-pressure.
    pub fn try_submit(&self, shard: usize, request: Request) -> Result<(), SubmitError> {
        self.try_submit_at(shard, request, self.time())
    }

    /// As [`Runtime::try_submit`]; recorded with the time `at`, if there is one.
    pub(crate) fn try_submit_at(&self, shard: usize, request: Request, at: Option<Time>) -> Result<(), SubmitError> {
        let (shard, completer) = &self.shards[shard];
        shard.try_submit(completer, request, at)?;
        self.record(at, &request);
        Ok(())
    }

    pub(crate) fn record(&self, at: Option<Time>, request: &Request) {
        if let Some(at) = at {
            // One that wants checksums is told elsewhere, when they are known.
            for tap in [&self.tap, &self.watch].into_iter().filter(|tap| tap.on() && !tap.wants_sums()) {
                tap.record(at, request);
            }
        }
    }

    /// The time, if somebody wants to know what is submitted.
    #[inline]
    pub(crate) fn time(&self) -> Option<Time> {
        self.is_watched().then(|| self.clock.now())
    }

    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.tap.on() || self.watch.on()
    }

    /// As [`Runtime::try_submit`], but waits while the shard is full.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub fn submit(&self, shard: usize, request: Request) -> Result<(), SubmitError> {
        loop {
            match self.try_submit(shard, request) {
                Err(SubmitError::Full(_)) if self.wait_for_room(shard) => {}
                result => return result,
            }
        }
    }

    /// As [`Runtime::try_submit`], but waits for the engine if another thread has it, so that what can be dispatched at
    /// once is dispatched on this thread.
    pub(crate) fn try_submit_here(&self, shard: usize, request: Request, at: Option<Time>) -> Result<(), SubmitError> {
        let (shard, completer) = &self.shards[shard];
        shard.try_submit_here(completer, request)?;
        self.record(at, &request);
        Ok(())
    }

    pub(crate) fn wait_for_room(&self, shard: usize) -> bool {
        self.shards[shard].0.wait_for_room()
    }

    /// Submits and returns the handle, for hosts that cancel. Slower: waits for the engine if another thread has it.
    /// The request may be dispatched, and may even have ended, when this returns. Not from inside
    /// [`Executor::start`].
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub fn submit_with_id(&self, shard: usize, request: Request) -> Result<RequestId, SubmitError> {
        let at = self.time();
        let (shard, completer) = &self.shards[shard];
        let id = shard.submit_with_id(completer, request)?;
        self.record(at, &request);
        Ok(id)
    }

    /// Takes a request back that was not dispatched yet. The executor hears nothing of it. Not from inside
    /// [`Executor::start`].
    ///
    /// # Errors
    /// If it is in flight or has ended.
    pub fn cancel(&self, shard: usize, id: RequestId) -> Result<Request, CancelError> {
        let (shard, completer) = &self.shards[shard];
        shard.cancel(completer, id)
    }

    /// Records every request submitted from now on in a new trace file. Files are named by their numbers.
    ///
    /// # Errors
    /// If a recording is running, or the file cannot be written.
    pub fn start_recording(&self, path: &Path, meta: Meta) -> Result<(), RecordError> {
        let policy = self.policy().name().to_owned();
        self.tap.record_to(path, Meta { policy, checksums: false, ..meta }, self.clock, None)
    }

    /// Ends the recording. All that was submitted before is in the file then.
    ///
    /// # Errors
    /// If there was none, or the file could not be written.
    pub fn stop_recording(&self) -> Result<Recording, RecordError> {
        self.tap.stop()
    }

    /// The recording that is running.
    #[must_use]
    pub fn recording(&self) -> Option<Recording> {
        self.tap.recording()
    }

    /// Gives each shard a predictor, or none ([`Engine::set_predictor`]). Not from inside [`Executor::start`].
    pub fn set_predictors(&self, mut make: impl FnMut(usize) -> Option<Box<dyn Predictor>>) {
        for (number, (shard, completer)) in self.shards.iter().enumerate() {
            let predictor = make(number);
            drop(shard.with_owner(completer, |owner| owner.engine.set_predictor(predictor)));
        }
    }

    /// Changes the algorithm of all shards, with requests queued and in flight. Not from inside [`Executor::start`].
    pub fn set_policy(&self, policy: &PolicyConfig) {
        let mut current = self.policy.lock();
        let limits = self.limits();
        for (shard, completer) in &self.shards {
            let prepared = PreparedPolicy::new(policy, &limits);
            drop(shard.with_owner(completer, |owner| owner.engine.set_policy(self.clock.now(), prepared)));
        }
        *current = policy.clone();
    }

    /// Takes over the *live* settings of `limits` ([`Engine::set_limits`]) on all shards. Not from inside
    /// [`Executor::start`].
    ///
    /// # Errors
    /// If one is out of range; nothing changes then.
    pub fn set_limits(&self, limits: &EngineConfig) -> Result<(), ConfigError> {
        for (shard, completer) in &self.shards {
            shard.with_owner(completer, |owner| owner.engine.set_limits(limits))?;
        }
        Ok(())
    }

    /// The settings in force.
    #[must_use]
    pub fn limits(&self) -> EngineConfig {
        let (shard, completer) = &self.shards[0];
        shard.with_owner(completer, |owner| owner.engine.config().clone())
    }

    /// The algorithm.
    #[must_use]
    pub fn policy(&self) -> PolicyConfig {
        self.policy.lock().clone()
    }

    /// True while the algorithm passes requests through at once.
    #[must_use]
    pub fn bypasses_queue(&self, shard: usize) -> bool {
        self.shards[shard].0.bypass.load(Ordering::Relaxed)
    }

    /// See [`Engine::allows_bypass`].
    pub(crate) fn lets_pass(&self, shard: usize) -> bool {
        self.shards[shard].0.lets_pass.load(Ordering::Relaxed)
    }

    /// Copies the state of all shards.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let (mut stale, mut shards) = (0, Vec::with_capacity(self.shards.len()));
        for (shard, completer) in &self.shards {
            shards.push(shard.with_owner(completer, |owner| {
                stale += owner.stale;
                let engine = &owner.engine;
                ShardSnapshot { queued: engine.queued(), in_flight: engine.in_flight(), stats: engine.stats().clone() }
            }));
        }
        let mut total = shards[0].stats.clone();
        shards[1..].iter().for_each(|shard| total.merge(&shard.stats));
        let wakes = self.servers.iter().map(Server::wakes).sum();
        Snapshot { at: self.clock.now(), policy: self.policy(), total, shards, stale, wakes }
    }

    /// Hands a shard's trace events (`EngineConfig::events` of them are kept) to `each`, oldest first.
    pub fn drain_events(&self, shard: usize, mut each: impl FnMut(Event)) {
        let (shard, completer) = &self.shards[shard];
        shard.with_owner(completer, |owner| {
            while let Some(event) = owner.engine.poll_event() {
                each(event);
            }
        });
    }

    /// Waits until no accepted request is outstanding on any shard.
    pub fn wait_empty(&self) {
        for (shard, _) in &self.shards {
            shard.wait_empty(None);
        }
    }

    /// Ends the runtime: no request is accepted any more, those accepted are dispatched or failed, the threads end.
    /// Not from inside the executor.
    pub fn shutdown(&self, how: Shutdown) -> ShutdownReport {
        self.shards.iter().for_each(|(shard, _)| shard.close());
        if let Err(error @ RecordError::Trace { .. }) = self.tap.stop() {
            tracing::warn!("{error}");
        }
        let _ = self.watch.stop();
        let errno = match how {
            Shutdown::Fail(errno) => errno,
            Shutdown::Drain { timeout } => {
                let until = Instant::now().checked_add(timeout).unwrap_or_else(|| Instant::now() + FOREVER);
                self.shards.iter().for_each(|(shard, _)| _ = shard.wait_empty(Some(until)));
                libc::ETIMEDOUT
            }
        };
        let failed = self.shards.iter().map(|(shard, completer)| shard.fail(completer, errno)).sum();
        self.servers.iter().for_each(Server::stop);
        ShutdownReport { failed, in_flight: self.shards.iter().map(|(shard, _)| shard.outstanding()).sum() }
    }
}

/// Longer than anybody waits.
const FOREVER: Duration = Duration::from_secs(1 << 30);

impl<X: Executor> Drop for Runtime<X> {
    fn drop(&mut self) {
        self.shutdown(Shutdown::Fail(libc::ECANCELED));
    }
}
