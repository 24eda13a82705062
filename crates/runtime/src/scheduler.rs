//! Engines, the threads that drive them, and the clients that use them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_core::{
    AppLocality, CancelError, ConfigError, DeviceLocality, Engine, EngineConfig, Event, GateError, GatePlan,
    GateStatus, LOCALITY_APPS, LocalityConfig, PolicyConfig, Predictor, PreparedPolicy, Request, RequestId,
    ServedBatch, Stats, Time, WindowFeatures,
};
use sluice_trace::Meta;

use crate::bell::{Bell, Server};
use crate::client::{ALL, Completer, Executor, Port, SubmitError};
use crate::clock::{Clock, ClockKind};
use crate::effects::in_callback;
use crate::monitor::{Monitor, tell};
use crate::predictor::Guarded;
use crate::record::{Observer, RecordError, Recording, Tap};
use crate::shard::{Driving, Shard};
use crate::sync::Mutex;
use crate::windows::OnWindow;

/// How to start a [`Scheduler`].
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
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

impl SchedulerConfig {
    /// One engine driven by its callers.
    #[must_use]
    pub fn new(policy: PolicyConfig) -> SchedulerConfig {
        SchedulerConfig {
            shards: 1,
            engine: EngineConfig::default(),
            policy,
            driving: Driving::default(),
            clock: ClockKind::default(),
            name: "sluice".to_owned(),
        }
    }
}

/// A scheduler could not start.
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

/// A client could not join.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttachError {
    /// Another client has some of the targets, or has left and is in a call still. A target belongs to one client.
    #[error("targets {0:?} are another client's: give each client targets of its own")]
    Targets(Range<u32>),
    /// The range is empty.
    #[error("a client needs at least one target")]
    NoTargets,
    /// More clients than can be told apart have come and gone.
    #[error("65,000 clients have joined this scheduler; start another one")]
    TooMany,
    /// The scheduler is shutting down or has.
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

impl Shutdown {
    /// Until when to wait, and the error number for what is queued then.
    fn terms(self) -> (Option<Instant>, i32) {
        match self {
            Shutdown::Fail(errno) => (None, errno),
            Shutdown::Drain { timeout } => {
                (Instant::now().checked_add(timeout).or_else(|| Instant::now().checked_add(FOREVER)), libc::ETIMEDOUT)
            }
        }
    }
}

/// Longer than anybody waits.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// What became of the requests that were outstanding at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShutdownReport {
    /// Queued requests that were failed.
    pub failed: u32,
    /// Dispatched requests whose completion was not reported yet, or is being reported just then. Reporting them later is
    /// harmless.
    pub in_flight: u32,
}

/// One engine at one moment.
#[derive(Clone, Debug)]
pub struct ShardSnapshot {
    /// Requests waiting in the engine.
    pub queued: u32,
    /// Requests dispatched.
    pub in_flight: u32,
    /// What the engine saw.
    pub stats: Stats,
    /// The gate, if there is one.
    pub gate: Option<GateStatus>,
}

/// A scheduler at one moment (each engine at its own; taking it stops nobody for longer than copying takes).
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When.
    pub at: Time,
    /// The algorithm.
    pub policy: PolicyConfig,
    /// All engines together.
    pub total: Stats,
    /// Each engine.
    pub shards: Vec<ShardSnapshot>,
    /// Completions reported for requests that were not in flight.
    pub stale: u64,
    /// Times the serving threads woke up; does not grow while nothing happens.
    pub wakes: u64,
}

/// One or more engines, driven. All methods may be called from any thread, also inside calls of executors.
///
/// Requests come from [clients](Scheduler::attach), of which there can be several, each with an executor and targets of its
/// own; they join and leave while the others go on. The time that an engine sees for a submission or completion is the one
/// at which the driving thread takes note of it, normally some microseconds after the call.
pub struct Scheduler(Arc<Engines>);

/// What a scheduler and its clients share.
struct Engines {
    shards: Vec<Arc<Shard>>,
    servers: Vec<Server>,
    engine: EngineConfig,
    clock: Clock,
    current: Mutex<Current>,
    clients: Mutex<Clients>,
    tap: Arc<Tap>,
    watch: Arc<Tap>,
}

/// The algorithm, and how often what was changed. Of two changes at a time the later one counts, on every engine.
struct Current {
    policy: PolicyConfig,
    policies: u64,
    limits: u64,
    predictors: u64,
    gates: u64,
}

/// Counts a change, and returns its number.
fn count(changes: &mut u64) -> u64 {
    *changes += 1;
    *changes
}

#[derive(Default)]
struct Clients {
    /// Those that are there, or have left while something of theirs was to be told.
    members: Vec<Member>,
    /// Numbers given so far: none is used twice, so that what a client left behind is nobody else's.
    numbers: u16,
    closed: bool,
}

/// A client.
struct Member {
    number: u16,
    targets: Range<u32>,
    completers: Vec<Completer>,
}

impl Member {
    /// It has left, and nothing of it is to be told any more; who waits for its end does not wait for others then.
    fn has_left(&self) -> bool {
        let is_gone = self.completers.iter().all(|own| own.shard.is_gone(&own.port));
        if is_gone {
            self.completers.iter().for_each(|own| own.port.leave());
        }
        is_gone
    }
}

/// Starts the threads of groups of engines. If the system refuses one those that run already end.
fn start_servers(
    groups: Vec<(Arc<Bell>, Vec<Arc<Shard>>)>,
    start: impl Fn(usize, Arc<Bell>, Vec<Arc<Shard>>) -> std::io::Result<Server>,
) -> std::io::Result<Vec<Server>> {
    let mut servers = Vec::with_capacity(groups.len());
    for (number, (bell, served)) in groups.iter().enumerate() {
        match start(number, bell.clone(), served.clone()) {
            Ok(server) => servers.push(server),
            Err(error) => {
                // A thread does not end before its engines have.
                groups.iter().flat_map(|(_, shards)| shards).for_each(|shard| shard.close(None));
                return Err(error);
            }
        }
    }
    Ok(servers)
}

impl Scheduler {
    /// Starts the engines and the threads.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: SchedulerConfig) -> Result<Scheduler, StartError> {
        let clock = Clock::new(config.clock);
        // The windows of all engines begin together.
        let begin = clock.now();
        let count = config.shards.max(1);
        let shard = |index, bell| -> Result<Arc<Shard>, ConfigError> {
            let engine = Engine::new(config.engine.clone(), &config.policy, begin)?;
            Ok(Shard::new(index, clock, engine, config.driving, bell))
        };
        let groups: Vec<(Arc<Bell>, Vec<Arc<Shard>>)> = match config.driving {
            Driving::Caller => {
                let bell = Bell::new();
                let all = (0..count).map(|index| shard(index, bell.clone())).collect::<Result<_, _>>()?;
                vec![(bell, all)]
            }
            Driving::Thread => (0..count)
                .map(|index| {
                    let bell = Bell::new();
                    Ok((bell.clone(), vec![shard(index, bell)?]))
                })
                .collect::<Result<_, ConfigError>>()?,
        };
        let shards = groups.iter().flat_map(|(_, shards)| shards).cloned().collect();
        let servers = start_servers(groups, |number, bell, served| {
            let name = match config.driving {
                Driving::Caller => config.name.clone(),
                Driving::Thread => format!("{}-{number}", config.name),
            };
            Server::start(&name, bell, clock, Shard::served(&served))
        })
        .map_err(|source| StartError::System { what: "a thread", source })?;
        Ok(Scheduler(Arc::new(Engines {
            shards,
            servers,
            engine: config.engine,
            clock,
            current: Mutex::new(Current { policy: config.policy, policies: 0, limits: 0, predictors: 0, gates: 0 }),
            clients: Mutex::default(),
            tap: Arc::new(Tap::new()),
            watch: Arc::new(Tap::new()),
        })))
    }

    /// Lets a client join that has all targets: the only one, while it stays.
    ///
    /// The executor lives as long as the client, and as the [completers](Completer) of its requests in flight. It may own the
    /// scheduler, but knows its client weakly: what it keeps alive keeps it alive. Where the client leaves inside a call of an
    /// executor, this one lives until the next client joins or the scheduler ends.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(&self, executor: Arc<dyn Executor>) -> Result<Client, AttachError> {
        self.attach_targets(executor, ALL)
    }

    /// Lets a client join that has these targets, and whose requests name one of them. Files of the same number on
    /// different targets are different files to an engine.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach_targets(&self, executor: Arc<dyn Executor>, targets: Range<u32>) -> Result<Client, AttachError> {
        self.join(executor, targets, true)
    }

    /// As [`Scheduler::attach`], for an executor that hands over what it is to start, and calls no host for that.
    pub(crate) fn attach_volume(&self, executor: Arc<dyn Executor>) -> Result<Client, AttachError> {
        self.join(executor, ALL, false)
    }

    fn join(&self, executor: Arc<dyn Executor>, targets: Range<u32>, is_host: bool) -> Result<Client, AttachError> {
        if targets.is_empty() {
            return Err(AttachError::NoTargets);
        }
        let engines = &self.0;
        let mut clients = engines.clients.lock();
        if clients.closed {
            return Err(AttachError::Closed);
        }
        clients.members.retain(|member| !member.has_left());
        let overlaps = |range: &Range<u32>| range.start < targets.end && targets.start < range.end;
        if clients.members.iter().any(|member| overlaps(&member.targets)) {
            return Err(AttachError::Targets(targets));
        }
        let number = clients.numbers;
        clients.numbers = number.checked_add(1).filter(|next| *next < 65_000).ok_or(AttachError::TooMany)?;
        // What is outstanding is counted for each engine.
        let port = || Arc::new(Port::new(number, targets.clone(), executor.clone(), is_host));
        let completers: Vec<Completer> =
            engines.shards.iter().map(|shard| Completer { shard: shard.clone(), port: port() }).collect();
        let known = |own: &Completer| Completer { shard: own.shard.clone(), port: own.port.without_executor() };
        let member = Member { number, targets: targets.clone(), completers: completers.iter().map(known).collect() };
        clients.members.push(member);
        drop(clients);
        completers.iter().for_each(|completer| completer.shard.attach(completer));
        let client = Client { engines: engines.clone(), completers, number, targets };
        if engines.clients.lock().closed {
            // The end may have come before the engines knew it. Dropping it makes them forget it.
            return Err(AttachError::Closed);
        }
        Ok(client)
    }

    /// Number of engines.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.0.shards.len()
    }

    /// The clock that the engines' times are from.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// Records every request submitted from now on in a new trace file. Files are named by their numbers.
    ///
    /// # Errors
    /// If a recording is running, or the file cannot be written or has something in it.
    pub fn start_recording(&self, path: &Path, meta: Meta) -> Result<(), RecordError> {
        let policy = self.policy().name().to_owned();
        self.0.tap.record_to(path, false, Meta { policy, checksums: false, ..meta }, self.0.clock, None)
    }

    /// Ends the recording. All that was submitted before is in the file then.
    ///
    /// # Errors
    /// If there was none, or the file could not be written.
    pub fn stop_recording(&self) -> Result<Recording, RecordError> {
        self.0.tap.stop()
    }

    /// The recording that is running.
    #[must_use]
    pub fn recording(&self) -> Option<Recording> {
        self.0.tap.recording()
    }

    /// Tells an observer of every request from now on.
    ///
    /// # Errors
    /// If there is one already, or the system refuses a thread.
    pub fn observe(&self, observer: Box<dyn Observer>) -> Result<(), RecordError> {
        self.0.watch.observe(observer, self.0.clock, None)
    }

    /// Ends the observation. The observer has heard of everything before.
    ///
    /// # Errors
    /// If there was none.
    pub fn end_observation(&self) -> Result<(), RecordError> {
        self.0.watch.stop().map(drop)
    }

    /// Lets `monitor` follow an engine from now on, or nobody; gives back who did.
    pub fn set_monitor(&self, shard: usize, monitor: Option<Box<dyn Monitor>>) -> Option<Box<dyn Monitor>> {
        let (shard, clock) = (&self.0.shards[shard], self.0.clock);
        shard.ask(&shard.nobody(), move |core| {
            let before = std::mem::replace(&mut core.monitor, monitor);
            let (now, queued, in_flight) = (clock.now(), core.engine.queued(), core.engine.in_flight());
            tell(&mut core.monitor, |monitor| monitor.begins(now, queued, in_flight));
            before
        })
    }

    /// Where submitters leave what is recorded, and what an observer hears of.
    pub(crate) fn taps(&self) -> (&Arc<Tap>, &Arc<Tap>) {
        (&self.0.tap, &self.0.watch)
    }

    /// Does something with each engine, in the order of its commands.
    fn each<T: Send + 'static>(&self, action: impl FnMut(&Arc<Shard>) -> T) -> Vec<T> {
        self.0.shards.iter().map(action).collect()
    }

    /// Gives each engine a predictor, or none ([`Engine::set_predictor`]). Of two calls at a time the later one counts, on
    /// every engine; what the other one made is dropped.
    pub fn set_predictors(&self, mut make: impl FnMut(usize) -> Option<Box<dyn Predictor>>) {
        let version = count(&mut self.0.current.lock().predictors);
        self.each(|shard| {
            let predictor = make(shard.index()).map(Guarded::boxed);
            shard.ask(&shard.nobody(), move |core| core.set_predictor(version, predictor));
        });
    }

    /// Changes the algorithm of all engines, with requests queued and in flight. Of two calls at a time the later one
    /// counts, on every engine.
    pub fn set_policy(&self, policy: &PolicyConfig) {
        let version = {
            let mut current = self.0.current.lock();
            current.policy = policy.clone();
            count(&mut current.policies)
        };
        let set = |shard: &Arc<Shard>| {
            let prepared = PreparedPolicy::new(policy, &self.0.engine);
            // What comes back, the old algorithm or the one that came too late, goes outside.
            shard.ask(&shard.nobody(), move |core| core.set_policy(version, prepared))
        };
        drop(self.each(set));
    }

    /// Takes over the *live* settings of `limits` ([`Engine::set_limits`]) on all engines. Of two calls at a time the later
    /// one counts, on every engine.
    ///
    /// # Errors
    /// If one is out of range; nothing changes then.
    pub fn set_limits(&self, limits: &EngineConfig) -> Result<(), ConfigError> {
        let version = count(&mut self.0.current.lock().limits);
        let set = |shard: &Arc<Shard>| {
            let limits = limits.clone();
            shard.ask(&shard.nobody(), move |core| core.set_limits(version, &limits))
        };
        self.each(set).into_iter().collect()
    }

    /// Sets a gate on all engines, or takes it away ([`Engine::set_gate`]); times are those of the scheduler's
    /// [clock](Scheduler::clock). Of two calls at a time the later one counts, on every engine.
    ///
    /// # Errors
    /// If no engine can follow such a plan; nothing changes then.
    pub fn set_gate(&self, plan: Option<&GatePlan>) -> Result<(), GateError> {
        plan.map_or(Ok(()), GatePlan::check)?;
        let version = count(&mut self.0.current.lock().gates);
        let set = |shard: &Arc<Shard>| {
            let plan = plan.cloned();
            shard.ask(&shard.nobody(), move |core| core.set_gate(version, plan))
        };
        self.each(set).into_iter().collect()
    }

    /// Measures locality on all engines from now on ([`Engine::watch_locality`]), or no more. `far_bytes`: the distance of two
    /// files, whose places nobody knows here.
    pub fn watch_locality(&self, far_bytes: Option<u64>) {
        self.each(|shard| {
            let config = far_bytes.map(|far_bytes| LocalityConfig { placement: None, far_bytes });
            shard.ask(&shard.nobody(), move |core| core.engine.watch_locality(config));
        });
    }

    /// What an engine has measured since the last call ([`Engine::locality`]); `None` if it measures nothing.
    #[must_use]
    pub fn locality(&self, shard: usize) -> Option<(DeviceLocality, Vec<AppLocality>)> {
        let (shard, mut apps) = (&self.0.shards[shard], Vec::with_capacity(LOCALITY_APPS));
        shard.ask(&shard.nobody(), move |core| core.engine.locality(&mut apps).map(|device| (device, apps)))
    }

    /// The settings in force.
    #[must_use]
    pub fn limits(&self) -> EngineConfig {
        let shard = &self.0.shards[0];
        shard.ask(&shard.nobody(), |core| core.engine.config().clone())
    }

    /// The algorithm.
    #[must_use]
    pub fn policy(&self) -> PolicyConfig {
        self.0.current.lock().policy.clone()
    }

    /// Copies the state of all engines, as it is when what was submitted and completed before has been seen to.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut stale = 0;
        let shards = self.each(|shard| {
            let (copy, stale_here) = shard.ask(&shard.nobody(), |core| {
                let engine = &core.engine;
                let (stats, gate) = (engine.stats().clone(), engine.gate());
                (ShardSnapshot { queued: engine.queued(), in_flight: engine.in_flight(), stats, gate }, core.stale)
            });
            stale += stale_here;
            copy
        });
        let mut total = shards[0].stats.clone();
        shards[1..].iter().for_each(|shard| total.merge(&shard.stats));
        let wakes = self.0.servers.iter().map(Server::wakes).sum();
        Snapshot { at: self.0.clock.now(), policy: self.policy(), total, shards, stale, wakes }
    }

    /// What the last window of an engine that has closed contained; `None` before the first. Published when a window
    /// closes (which an idle engine's last one does, too); reading it waits for nobody and drives nothing.
    #[must_use]
    pub fn window(&self, shard: usize) -> Option<Arc<WindowFeatures>> {
        self.0.shards[shard].windows.last()
    }

    /// Calls this whenever a window of any engine was published ([`Scheduler::window`]), instead of what was to be called before;
    /// `None`: nothing. It is called on whatever thread drives the engine, which waits for it: it must return at once, and must
    /// not use this scheduler.
    pub fn on_window(&self, call: Option<Box<dyn Fn() + Send + Sync>>) {
        let call = call.map(|call| Arc::new(OnWindow(call)));
        self.0.shards.iter().for_each(|shard| shard.windows.on_window(call.clone()));
    }

    /// Watches the devices below from now on ([`Scheduler::served`]), and calls this whenever a window was published in which they
    /// have served anything; under the same conditions as [`Scheduler::on_window`]. `None`: watches them no more.
    pub fn watch_devices(&self, call: Option<Box<dyn Fn() + Send + Sync>>) {
        let call = call.map(|call| Arc::new(OnWindow(call)));
        for shard in &self.0.shards {
            let watch = call.is_some();
            shard.windows.on_served(call.clone());
            shard.ask(&shard.nobody(), move |core| core.engine.watch_device(watch));
        }
    }

    /// What the devices below an engine have served since the last call, if they are watched. `room` takes what they serve next, as
    /// many batches as fit.
    #[must_use]
    pub fn served(&self, shard: usize, room: Vec<ServedBatch>) -> Vec<ServedBatch> {
        let shard = &self.0.shards[shard];
        shard.ask(&shard.nobody(), move |core| core.engine.served(room))
    }

    /// Hands an engine's trace events (`EngineConfig::events` of them are kept) to `each`, oldest first.
    pub fn drain_events(&self, shard: usize, each: impl FnMut(Event)) {
        let shard = &self.0.shards[shard];
        let events =
            shard.ask(&shard.nobody(), |core| std::iter::from_fn(|| core.engine.poll_event()).collect::<Vec<Event>>());
        events.into_iter().for_each(each);
    }

    /// Waits until no accepted request is outstanding. Inside a call of an executor, too, once all requests that the call is to
    /// start are reported, to [`Started`](crate::Started) or otherwise. Where that is a call on the serving thread of this scheduler or
    /// another one, the thread serves its own meanwhile: others may then be started inside that call.
    pub fn wait_empty(&self) {
        self.each(|shard| shard.wait_empty(&shard.nobody(), None, None));
    }

    /// Whoever waits on another thread until requests have ended, in [`Scheduler::shutdown`], [`Client::detach`] or
    /// [`Scheduler::wait_empty`], gives up as if the time for that were over, now and later. For who is about to free the scheduler.
    pub fn end_waits(&self) {
        self.0.shards.iter().for_each(|shard| shard.end_waits());
    }

    /// Ends the scheduler: no request is accepted any more, those accepted are dispatched or failed, the threads end.
    ///
    /// When this returns, every client has been told of everything: no call of an executor is under way or will come, except
    /// inside such a call, which nothing is waited for in: clients are told of the rest later, by whoever is telling them, and
    /// the report counts what has failed by then. [`Shutdown::Drain`] waits there, too, as [`Scheduler::wait_empty`].
    pub fn shutdown(&self, how: Shutdown) -> ShutdownReport {
        let engines = &self.0;
        engines.clients.lock().closed = true;
        engines.shards.iter().for_each(|shard| shard.close(None));
        if let Err(error @ RecordError::Trace { .. }) = engines.tap.stop() {
            tracing::warn!("{error}");
        }
        let _ = engines.watch.stop();
        let (until, errno) = how.terms();
        if until.is_some() {
            self.each(|shard| shard.wait_empty(&shard.nobody(), None, until));
        }
        let ended = self.each(|shard| shard.fail(&shard.nobody(), None, errno));
        engines.servers.iter().for_each(Server::stop);
        engines.clients.lock().members.clear();
        let (failed, in_flight) = ended.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        ShutdownReport { failed, in_flight }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.shutdown(Shutdown::Fail(libc::ECANCELED));
    }
}

/// One user of a scheduler. Dropping it leaves the scheduler, and fails what it has queued. All methods may be called from
/// any thread, also inside calls of executors.
pub struct Client {
    engines: Arc<Engines>,
    completers: Vec<Completer>,
    number: u16,
    targets: Range<u32>,
}

impl Client {
    /// The targets of this client.
    #[must_use]
    pub fn targets(&self) -> Range<u32> {
        self.targets.clone()
    }

    /// Reports completions for an engine.
    #[must_use]
    pub fn completer(&self, shard: usize) -> &Completer {
        &self.completers[shard]
    }

    /// Submits to an engine. May dispatch (and complete) this and other requests on this thread.
    ///
    /// # Errors
    /// [`SubmitError::Full`] with the request, for back-pressure.
    pub fn try_submit(&self, shard: usize, request: Request) -> Result<(), SubmitError> {
        let at = self.time();
        let own = &self.completers[shard];
        own.shard.try_submit(own, request, at)?;
        self.record(at, &request);
        Ok(())
    }

    /// Submits what belongs together to an engine, in order. Unless another thread drives the engine just then, none of it is
    /// dispatched before the engine has all that it accepts, so that neighbours are aggregated. Gives the number of those accepted,
    /// which come first.
    ///
    /// # Errors
    /// Why the next one was refused: see [`Client::try_submit`].
    pub fn try_submit_list(&self, shard: usize, requests: &[Request]) -> (usize, Result<(), SubmitError>) {
        let at = self.time();
        let own = &self.completers[shard];
        let (accepted, result) = own.shard.try_submit_list(own, requests);
        requests[..accepted].iter().for_each(|request| self.record(at, request));
        (accepted, result)
    }

    /// As [`Client::try_submit`], but waits while the engine is full, except inside a call of an executor.
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

    /// Submits, after everything that was submitted before, and returns the handle, for hosts that cancel. Slower: waits
    /// until the engine has the request. It may be dispatched, and may even have ended, when this returns.
    ///
    /// # Errors
    /// See [`SubmitError`]; `Full` also where the engine has no room for another file.
    pub fn submit_with_id(&self, shard: usize, request: Request) -> Result<RequestId, SubmitError> {
        let at = self.time();
        let own = &self.completers[shard];
        let id = own.shard.submit_with_id(own, request)?;
        self.record(at, &request);
        Ok(id)
    }

    /// Takes a request back that was not dispatched yet. The executor hears nothing of it.
    ///
    /// # Errors
    /// If it is in flight or has ended.
    pub fn cancel(&self, shard: usize, id: RequestId) -> Result<Request, CancelError> {
        let own = &self.completers[shard];
        own.shard.cancel(own, id)
    }

    /// Takes the oldest request back that was not dispatched yet and is one of those `wanted`, for hosts that know requests
    /// by what they are. Slow: looks at all that the engine has.
    pub fn cancel_where(&self, shard: usize, wanted: impl Fn(&Request) -> bool + Send + 'static) -> Option<Request> {
        let own = &self.completers[shard];
        own.shard.cancel_where(own, wanted)
    }

    /// Leaves the scheduler: no request is accepted any more, those accepted are dispatched or failed. When this returns the
    /// executor has been told of everything, as after [`Scheduler::shutdown`]; others go on.
    pub fn detach(&self, how: Shutdown) -> ShutdownReport {
        let (until, errno) = how.terms();
        let each = || self.completers.iter().map(|own| (own, &*own.shard));
        each().for_each(|(own, shard)| shard.close(Some(&own.port)));
        if until.is_some() {
            each().for_each(|(own, shard)| _ = shard.wait_empty(own, Some(&own.port), until));
        }
        let ended: Vec<(u32, u32)> = each().map(|(own, shard)| shard.fail(own, Some(&own.port), errno)).collect();
        let in_flight = ended.iter().map(|(_, in_flight)| in_flight).sum();
        if self.completers.iter().all(|own| own.shard.is_gone(&own.port)) {
            self.forget();
        } else if !in_callback() {
            each().for_each(|(own, shard)| shard.let_go(own, Some(&own.port)));
        }
        ShutdownReport { failed: ended.iter().map(|(failed, _)| failed).sum(), in_flight }
    }

    /// Nothing of this client is left anywhere.
    fn forget(&self) {
        self.completers.iter().for_each(|own| own.shard.detach(own));
        self.engines.clients.lock().members.retain(|member| member.number != self.number);
    }

    // ---- for the volume --------------------------------------------------------------------------------------

    pub(crate) fn completers(&self) -> &[Completer] {
        &self.completers
    }

    fn wait_for_room(&self, shard: usize) -> bool {
        let own = &self.completers[shard];
        own.shard.wait_for_room(&own.port)
    }

    /// True while the algorithm passes requests through at once.
    pub(crate) fn bypasses_queue(&self, shard: usize) -> bool {
        self.completers[shard].shard.bypasses_queue()
    }

    /// See [`Engine::bypass_max`].
    pub(crate) fn bypass_max(&self, shard: usize) -> u32 {
        self.completers[shard].shard.bypass_max()
    }

    /// The time, if somebody wants to know what is submitted.
    #[inline]
    pub(crate) fn time(&self) -> Option<Time> {
        self.is_watched().then(|| self.engines.clock.now())
    }

    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.engines.tap.on() || self.engines.watch.on()
    }

    pub(crate) fn record(&self, at: Option<Time>, request: &Request) {
        if let Some(at) = at {
            // One that wants checksums is told elsewhere, when they are known.
            for tap in [&self.engines.tap, &self.engines.watch].into_iter().filter(|tap| tap.on() && !tap.wants_sums())
            {
                tap.record(at, request);
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.detach(Shutdown::Fail(libc::ECANCELED));
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests;
