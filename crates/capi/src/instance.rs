//! Schedulers, and clients whose executors are hosts' callbacks.

use std::cell::RefCell;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use sluice_core::{AppId, Batch, CancelError, GateError, GatePlan, GateSlice, Outcome, PolicyConfig, Request, Time};
use sluice_predict::{Options, Predictions, Source};
use sluice_runtime::{
    AttachError, Client, Executor, Scheduler, SchedulerConfig, Shutdown, ShutdownReport, Snapshot, StartError, Started,
    SubmitError,
};
use sluice_select::Selection;
use sluice_trace::Meta;

use crate::handle::{InCallback, not_in_callback, sluice};
use crate::in_flight::{CLIENTS_MAX, InFlight, split, to_number};
use crate::options::{self, ClientOptions};
use crate::status::{
    CLOSED, FULL, Failure, SLUICE_ERR_CONFIG, SLUICE_ERR_FULL, SLUICE_ERR_IN_FLIGHT, SLUICE_ERR_INVALID,
    SLUICE_ERR_SYSTEM, SLUICE_ERR_TIMEOUT, STALE,
};
use crate::types::{
    SLUICE_OTHERS, sluice_cancelled_fn, sluice_completion, sluice_options, sluice_part, sluice_slice,
    sluice_start_batch_fn, sluice_start_fn,
};

/// What a scheduler's handle and those of its clients share.
struct Shared {
    /// Before the scheduler: they end first.
    #[cfg(feature = "network")]
    metrics: Mutex<Option<sluice_metrics::Endpoint>>,
    #[cfg(feature = "network")]
    agent: Arc<Mutex<Option<sluice_control::Agent>>>,
    #[cfg(feature = "network")]
    announced: Arc<crate::announced::Announcements>,
    /// The algorithm as the host has set it: coordinators choose others.
    #[cfg(feature = "network")]
    own: Mutex<PolicyConfig>,
    selection: Option<Selection>,
    scheduler: Arc<Scheduler>,
    in_flight: Arc<InFlight>,
    /// Clients so far, and those that could not join: no number is used twice.
    clients: AtomicU32,
    /// Completions refused.
    stale: AtomicU64,
    predictions: Predictions,
    /// The profile of the device that predictions reckon with.
    profile: Mutex<Option<PathBuf>>,
    /// It was shut down: nobody will be told of anything any more.
    is_over: AtomicBool,
}

/// What a handle stands for: a scheduler, with a client or without, or a client that has joined one.
pub(crate) struct Instance {
    shared: Arc<Shared>,
    client: Option<Client>,
    number: u32,
    has_joined: bool,
}

/// Whom to listen to.
#[cfg_attr(not(feature = "network"), allow(dead_code))]
pub(crate) struct Coordinated<'a> {
    pub(crate) address: &'a str,
    /// The node's name there.
    pub(crate) name: &'a str,
    /// The file of the secret.
    pub(crate) token: Option<PathBuf>,
}

#[cfg(not(feature = "network"))]
const NO_NETWORK: Failure =
    Failure::new(SLUICE_ERR_INVALID, c"this library was built without coordinators and metrics (feature network)");

/// The host's side.
struct Host {
    start: sluice_start_fn,
    start_batch: sluice_start_batch_fn,
    cancelled: sluice_cancelled_fn,
    user: *mut c_void,
    handle: *mut sluice,
    number: u32,
    in_flight: Arc<InFlight>,
}

// SAFETY: `user` and `handle` are only handed to the callbacks, which the host made for any thread (documented).
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

thread_local! {
    static PARTS: RefCell<Vec<sluice_part>> = const { RefCell::new(Vec::new()) };
}

impl Host {
    fn part(&self, shard: usize, part: &sluice_core::Part) -> sluice_part {
        sluice_part::of(self.in_flight.add(self.number, shard, part.id), part)
    }
}

impl Executor for Host {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        let _inside = InCallback::enter();
        let shard = started.shard();
        match (batch.parts(), self.start_batch, self.start) {
            (parts @ [_, _, ..], Some(start_batch), _) => {
                // A thread that is about to end may have none any more.
                let mut list = PARTS.try_with(RefCell::take).unwrap_or_default();
                list.clear();
                list.extend(parts.iter().map(|part| self.part(shard, part)));
                // SAFETY: the host's function, under the conditions documented for it.
                unsafe { start_batch(self.user, self.handle, list.as_ptr(), list.len()) };
                let _ = PARTS.try_with(|parts| parts.replace(list));
            }
            (parts, _, Some(start)) => {
                for part in parts {
                    let part = self.part(shard, part);
                    // SAFETY: as above.
                    unsafe { start(self.user, self.handle, &raw const part) };
                }
            }
            _ => unreachable!("start was checked when the options were read"),
        }
    }

    fn cancelled(&self, request: &Request, errno: i32) {
        let _inside = InCallback::enter();
        if let Some(cancelled) = self.cancelled {
            let part = sluice_part::new(0, request);
            // SAFETY: as above.
            unsafe { cancelled(self.user, self.handle, &raw const part, errno) };
        }
    }
}

fn refused(error: SubmitError) -> Failure {
    match error {
        SubmitError::Full(_) => FULL,
        SubmitError::Closed => CLOSED,
        SubmitError::RangeOverflow => Failure::new(SLUICE_ERR_INVALID, c"offset + len is beyond the largest offset"),
        error @ SubmitError::Target(_) => Failure::made(SLUICE_ERR_INVALID, error.to_string()),
    }
}

fn not_attached(error: AttachError) -> Failure {
    match error {
        AttachError::Closed => CLOSED,
        AttachError::TooMany => Failure::made(SLUICE_ERR_SYSTEM, error.to_string()),
        error => Failure::made(SLUICE_ERR_INVALID, error.to_string()),
    }
}

impl Shared {
    /// Lets a client join; it and its number.
    fn attach(&self, options: &ClientOptions, handle: *mut sluice) -> Result<(Client, u32), Failure> {
        let next = |number: u32| (number < CLIENTS_MAX).then_some(number + 1);
        let number = self.clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let number = number.map_err(|_| not_attached(AttachError::TooMany))?;
        let host = Arc::new(Host {
            start: options.start,
            start_batch: options.start_batch,
            cancelled: options.cancelled,
            user: options.user,
            handle,
            number,
            in_flight: self.in_flight.clone(),
        });
        let client = match options.targets.clone() {
            None => self.scheduler.attach(host),
            Some(targets) => self.scheduler.attach_targets(host, targets),
        };
        Ok((client.map_err(not_attached)?, number))
    }
}

impl Instance {
    /// A scheduler; with a client, unless all clients are to join later.
    pub(crate) fn start(
        config: SchedulerConfig,
        options: Option<&ClientOptions>,
        selection: sluice_select::Options,
        handle: *mut sluice,
    ) -> Result<Instance, Failure> {
        let in_flight = Arc::new(InFlight::new(config.shards, config.engine.capacity));
        let scheduler = Scheduler::start(config).map_err(|error| match error {
            StartError::Config(error) => error.into(),
            error @ StartError::System { .. } => Failure::made(SLUICE_ERR_SYSTEM, error.to_string()),
        })?;
        let scheduler = Arc::new(scheduler);
        let selection = Selection::start(&scheduler, selection)
            .map_err(|error| Failure::made(SLUICE_ERR_SYSTEM, format!("{error:#}")))?;
        let shared = Arc::new(Shared {
            #[cfg(feature = "network")]
            metrics: Mutex::default(),
            #[cfg(feature = "network")]
            agent: Arc::default(),
            #[cfg(feature = "network")]
            announced: Arc::default(),
            #[cfg(feature = "network")]
            own: Mutex::new(scheduler.policy()),
            selection,
            scheduler,
            in_flight,
            clients: AtomicU32::new(0),
            stale: AtomicU64::new(0),
            predictions: Predictions::default(),
            profile: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let client = options.map(|options| shared.attach(options, handle)).transpose()?;
        let (client, number) = client.map_or((None, 0), |(client, number)| (Some(client), number));
        Ok(Instance { shared, client, number, has_joined: false })
    }

    /// A further client of the same scheduler.
    pub(crate) fn attach(&self, options: &ClientOptions, handle: *mut sluice) -> Result<Instance, Failure> {
        let (client, number) = self.shared.attach(options, handle)?;
        Ok(Instance { shared: self.shared.clone(), client: Some(client), number, has_joined: true })
    }

    fn client(&self) -> Result<&Client, Failure> {
        self.client.as_ref().ok_or(Failure::new(
            SLUICE_ERR_INVALID,
            c"this scheduler has no client of its own (SLUICE_SHARED): join it with sluice_attach()",
        ))
    }

    fn shard(&self, request: &Request) -> usize {
        match self.shared.scheduler.shards() {
            1 => 0,
            shards => request.target.0 as usize % shards,
        }
    }

    pub(crate) fn submit(&self, request: Request) -> Result<(), Failure> {
        self.client()?.try_submit(self.shard(&request), request).map_err(refused)
    }

    /// Submits in order until one is refused; gives the number of those accepted, and why not the next.
    pub(crate) fn submit_list(&self, requests: &[Request]) -> Result<usize, (usize, Failure)> {
        let client = self.client().map_err(|failure| (0, failure))?;
        let mut accepted = 0;
        for together in requests.chunk_by(|one, next| self.shard(one) == self.shard(next)) {
            let (count, result) = client.try_submit_list(self.shard(&together[0]), together);
            accepted += count;
            result.map_err(|error| (accepted, refused(error)))?;
        }
        Ok(accepted)
    }

    pub(crate) fn submit_wait(&self, request: Request) -> Result<(), Failure> {
        match self.submit(request) {
            Err(failure) if failure.code == SLUICE_ERR_FULL => {}
            result => return result,
        }
        not_in_callback()?;
        self.client()?.submit(self.shard(&request), request).map_err(refused)
    }

    /// Submits and returns the number to cancel it by.
    pub(crate) fn submit_numbered(&self, request: Request) -> Result<u64, Failure> {
        let shard = self.shard(&request);
        Ok(to_number(shard, self.client()?.submit_with_id(shard, request).map_err(refused)?))
    }

    /// Counts completions that are refused.
    pub(crate) fn complete(&self, done: &sluice_completion) -> Result<(), Failure> {
        let client = self.client()?;
        if !self.shared.in_flight.remove(self.number, done.id) {
            self.shared.stale.fetch_add(1, Ordering::Relaxed);
            return Err(STALE);
        }
        let (shard, id) = split(done.id);
        client.completer(shard).complete(id, Outcome { bytes: done.bytes, error: done.error });
        Ok(())
    }

    pub(crate) fn cancel(&self, number: u64) -> Result<(), Failure> {
        let client = self.client()?;
        let (shard, id) = split(number);
        if shard >= self.shared.scheduler.shards() {
            return Err(STALE);
        }
        match client.cancel(shard, id) {
            Ok(_) => Ok(()),
            Err(CancelError::Stale) => Err(STALE),
            Err(CancelError::InFlight) => {
                Err(Failure::new(SLUICE_ERR_IN_FLIGHT, c"the request was dispatched already; complete it instead"))
            }
        }
    }

    pub(crate) fn set_policy(&self, policy: &PolicyConfig) -> Result<(), Failure> {
        let scheduler = &self.shared.scheduler;
        if scheduler.shards() > 1 && policy.info().shared_engine {
            let text = format!("{} coordinates the data servers in one engine: create it with 1 shard", policy.name());
            return Err(Failure::made(SLUICE_ERR_CONFIG, text));
        }
        let selection = self.selection()?;
        #[cfg(feature = "network")]
        self.shared.own.lock().clone_from(policy);
        match selection {
            Some(selection) => selection.pause(&**scheduler, || scheduler.set_policy(policy)),
            None => scheduler.set_policy(policy),
        }
        Ok(())
    }

    /// Serves applications in turns.
    pub(crate) fn set_gate(
        &self,
        slices: &[sluice_slice],
        epoch_ns: u64,
        lasts_ns: u64,
        idle_ns: u64,
    ) -> Result<(), Failure> {
        not_in_callback()?;
        let scheduler = &self.shared.scheduler;
        if slices.iter().any(|slice| slice.reserved != 0) {
            return Err(Failure::new(SLUICE_ERR_INVALID, c"`reserved` of a slice must be 0"));
        }
        let slice = |slice: &sluice_slice| GateSlice {
            apps: if slice.app == SLUICE_OTHERS { Vec::new() } else { vec![AppId(slice.app)] },
            len_ns: slice.len_ns,
        };
        let now = scheduler.clock().now();
        let since_1970 =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let slices: Vec<GateSlice> = slices.iter().map(slice).collect();
        let idle_ns = (idle_ns > 0).then_some(idle_ns);
        let mut plan = GatePlan { epoch: Time::ZERO, from: now, expires: now.after(lasts_ns), slices, idle_ns };
        let invalid = |error: GateError| Failure::made(SLUICE_ERR_INVALID, error.to_string());
        if plan.slices.is_empty() {
            return scheduler.set_gate(None).map_err(invalid);
        }
        plan.check().map_err(invalid)?;
        // Where the window is now, by the clock that all machines share.
        let window_ns = i128::from(plan.window_ns());
        let phase = (i128::from(since_1970) - i128::from(epoch_ns)).rem_euclid(window_ns) as u64;
        plan.epoch = now.after(plan.window_ns() - phase);
        scheduler.set_gate(Some(&plan)).map_err(invalid)
    }

    /// Whoever chooses. It holds a lock while it changes the engines, which may wait for a callback to return: one that asks would never.
    fn selection(&self) -> Result<Option<&Selection>, Failure> {
        match &self.shared.selection {
            None => Ok(None),
            Some(selection) => not_in_callback().map(|()| Some(selection)),
        }
    }

    fn chooser(&self) -> Result<&Selection, Failure> {
        let nobody = c"nobody chooses here: create the scheduler with a selector";
        self.selection()?.ok_or(Failure::new(SLUICE_ERR_INVALID, nobody))
    }

    /// Takes over settings that can be changed while running.
    pub(crate) fn set_limits(&self, options: &sluice_options) -> Result<(), Failure> {
        if self.shared.selection.is_some() {
            let text = c"a selector chooses these here, within what the scheduler was created with";
            return Err(Failure::new(SLUICE_ERR_INVALID, text));
        }
        not_in_callback()?;
        let scheduler = &self.shared.scheduler;
        Ok(scheduler.set_limits(&options::limits(options, &scheduler.limits())?)?)
    }

    /// Records from now on.
    pub(crate) fn start_recording(&self, path: &Path) -> Result<(), Failure> {
        not_in_callback()?;
        let meta = Meta { program: "libsluice".into(), ..Meta::default() };
        let started = self.shared.scheduler.start_recording(path, meta);
        started.map_err(|error| Failure::made(SLUICE_ERR_INVALID, format!("{}: {error}", path.display())))
    }

    pub(crate) fn stop_recording(&self) -> Result<(), Failure> {
        not_in_callback()?;
        let stopped = self.shared.scheduler.stop_recording();
        let recording = stopped.map_err(|error| Failure::made(SLUICE_ERR_INVALID, error.to_string()))?;
        if recording.dropped == 0 {
            return Ok(());
        }
        let (path, missing) = (recording.path.display(), recording.dropped);
        let text = format!("{path}: {missing} requests are missing: they came faster than they could be written");
        Err(Failure::made(SLUICE_ERR_INVALID, text))
    }

    /// Listens to a coordinator from now on, or to none any more.
    #[cfg(feature = "network")]
    pub(crate) fn coordinate(&self, whom: Option<&Coordinated<'_>>) -> Result<(), Failure> {
        use sluice_control::Agent;
        not_in_callback()?;
        let invalid = |error: anyhow::Error| Failure::made(SLUICE_ERR_INVALID, format!("{error:#}"));
        if whom.is_some() && self.shared.selection.is_some() {
            let text = c"a selector chooses here: it or a coordinator, not both";
            return Err(Failure::new(SLUICE_ERR_INVALID, text));
        }
        // Before the old one ends: what is wrong changes nothing.
        let options = whom.map(|whom| self.listening(whom)).transpose().map_err(invalid)?;
        // Its thread carries decisions out, perhaps just now: the old one has ended before another begins.
        let old = self.shared.agent.lock().take();
        drop(old);
        let Some(options) = options else { return Ok(()) };
        let agent = Agent::start(&self.shared.scheduler, options).map_err(invalid)?;
        *self.shared.agent.lock() = Some(agent);
        Ok(())
    }

    #[cfg(feature = "network")]
    fn listening(&self, whom: &Coordinated<'_>) -> anyhow::Result<sluice_control::Options> {
        use sluice_control::{Address, Announced, Options, read_token};
        let token = whom.token.as_deref().map(read_token).transpose()?;
        let address = Address::new(whom.address, token.as_deref())?;
        let profile = self.shared.profile.lock().clone();
        let positioning = profile.as_deref().map(sluice_predict::positioning).transpose()?;
        let announced: Arc<dyn Announced> = self.shared.announced.clone();
        let own = Some(self.shared.own.lock().clone());
        let options = Options { positioning, announced: Some(announced), own, ..Options::new(address, whom.name) };
        options.check()?;
        Ok(options)
    }

    /// What there is to say of the coordinator: a JSON object.
    #[cfg(feature = "network")]
    pub(crate) fn coordination(&self) -> Result<String, Failure> {
        not_in_callback()?;
        let agent = self.shared.agent.lock();
        let agent =
            agent.as_ref().ok_or(Failure::new(SLUICE_ERR_INVALID, c"nobody is listened to: sluice_coordinate()"))?;
        let mut object = serde_json::to_value(agent.status()).unwrap_or_default();
        object["schema"] = 1.into();
        Ok(object.to_string())
    }

    /// Tells metrics there from now on, or nowhere any more.
    #[cfg(feature = "network")]
    pub(crate) fn measure(&self, address: Option<&str>) -> Result<(), Failure> {
        use std::net::SocketAddr;

        use sluice_metrics::{Endpoint, Samples};
        not_in_callback()?;
        let parse = |address: &str| {
            let text = || format!("{address:?} is no address and port, like 127.0.0.1:9464");
            address.parse::<SocketAddr>().map_err(|_| Failure::made(SLUICE_ERR_INVALID, text()))
        };
        let address = address.map(parse).transpose()?;
        // It may have had the same address.
        let old = self.shared.metrics.lock().take();
        drop(old);
        let Some(address) = address else { return Ok(()) };
        let (scheduler, agent) = (Arc::downgrade(&self.shared.scheduler), Arc::downgrade(&self.shared.agent));
        let source = move |samples: &mut Samples| {
            if let Some(scheduler) = scheduler.upgrade() {
                sluice_metrics::scheduler(&scheduler.snapshot(), samples);
            }
            if let Some(agent) = agent.upgrade()
                && let Some(agent) = &*agent.lock()
            {
                sluice_metrics::agent(&agent.status(), samples);
            }
        };
        let endpoint = Endpoint::start(address, source);
        let endpoint = endpoint.map_err(|error| Failure::made(SLUICE_ERR_SYSTEM, format!("{error:#}")))?;
        *self.shared.metrics.lock() = Some(endpoint);
        Ok(())
    }

    /// What the processes of an application do, for whom `speaker` speaks.
    #[cfg(feature = "network")]
    pub(crate) fn hear(&self, app: AppId, speaker: u64, number: u64, computes: bool) -> Result<(), Failure> {
        self.shared.announced.hear(app, speaker, number, computes);
        Ok(())
    }

    #[cfg(not(feature = "network"))]
    pub(crate) fn hear(&self, _: AppId, _: u64, _: u64, _: bool) -> Result<(), Failure> {
        Err(NO_NETWORK)
    }

    #[cfg(not(feature = "network"))]
    pub(crate) fn coordinate(&self, _: Option<&Coordinated<'_>>) -> Result<(), Failure> {
        Err(NO_NETWORK)
    }

    #[cfg(not(feature = "network"))]
    pub(crate) fn coordination(&self) -> Result<String, Failure> {
        Err(NO_NETWORK)
    }

    #[cfg(not(feature = "network"))]
    pub(crate) fn measure(&self, _: Option<&str>) -> Result<(), Failure> {
        Err(NO_NETWORK)
    }

    /// The selector goes on.
    pub(crate) fn adapt(&self) -> Result<(), Failure> {
        self.chooser()?.resume(&*self.shared.scheduler);
        Ok(())
    }

    /// What the selector says of itself: a JSON object.
    pub(crate) fn explain(&self) -> Result<String, Failure> {
        let status = self.chooser()?.status();
        let value = serde_json::to_value(&status);
        let mut object =
            value.map_err(|error| Failure::made(SLUICE_ERR_INVALID, format!("cannot be told: {error}")))?;
        object["schema"] = 1.into();
        Ok(object.to_string())
    }

    pub(crate) fn policy(&self) -> PolicyConfig {
        self.shared.scheduler.policy()
    }

    /// Predicts from traces, or what repeats, or not any more.
    pub(crate) fn predict(&self, source: &Source, state: Option<PathBuf>) -> Result<(), Failure> {
        not_in_callback()?;
        let options = Options { profile: self.shared.profile.lock().clone(), state, ..Options::default() };
        let set = self.shared.predictions.set(&*self.shared.scheduler, source, &options);
        set.map_err(|error| Failure::made(SLUICE_ERR_INVALID, format!("{error:#}")))
    }

    /// The profile that predictions reckon with from the next time on that they are set.
    pub(crate) fn set_profile(&self, path: Option<PathBuf>) -> Result<(), Failure> {
        if let Some(path) = &path {
            sluice_predict::check_profile(path)
                .map_err(|error| Failure::made(SLUICE_ERR_INVALID, format!("{error:#}")))?;
        }
        *self.shared.profile.lock() = path;
        Ok(())
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.shared.scheduler.snapshot()
    }

    pub(crate) fn stale(&self) -> u64 {
        self.shared.stale.load(Ordering::Relaxed)
    }

    /// No requests from now on; waits for those that were accepted, or fails those that are queued.
    pub(crate) fn shutdown(&self, timeout: Duration) -> Result<(), Failure> {
        not_in_callback()?;
        if self.has_joined {
            let text = c"this is a client that has joined a scheduler: it leaves with sluice_detach()";
            return Err(Failure::new(SLUICE_ERR_INVALID, text));
        }
        if let Some(selection) = &self.shared.selection {
            selection.end();
        }
        #[cfg(feature = "network")]
        {
            // Outside their locks: both end when their threads have.
            let metrics = self.shared.metrics.lock().take();
            drop(metrics);
            let agent = self.shared.agent.lock().take();
            drop(agent);
        }
        let report = self.shared.scheduler.shutdown(how(timeout));
        self.shared.is_over.store(true, Ordering::Release);
        if timeout.is_zero() { Ok(()) } else { nothing_left(report) }
    }

    /// Calls on other threads that drain it end.
    pub(crate) fn end_waits(&self) {
        self.shared.scheduler.end_waits();
    }

    /// The same for this client only.
    pub(crate) fn leave(&self, timeout: Duration) -> Result<(), Failure> {
        not_in_callback()?;
        let (true, Some(client)) = (self.has_joined, &self.client) else {
            let text = c"this is a scheduler, not a client that has joined one: it ends with sluice_destroy()";
            return Err(Failure::new(SLUICE_ERR_INVALID, text));
        };
        let report = client.detach(how(timeout));
        // What was failed was told; but what is in flight is to be completed first, as long as there is an engine for it.
        match report.in_flight == 0 || self.shared.is_over.load(Ordering::Acquire) {
            true => Ok(()),
            false => nothing_left(report),
        }
    }
}

fn how(timeout: Duration) -> Shutdown {
    if timeout.is_zero() { Shutdown::Fail(libc::ECANCELED) } else { Shutdown::Drain { timeout } }
}

fn nothing_left(report: ShutdownReport) -> Result<(), Failure> {
    if report.failed + report.in_flight == 0 {
        return Ok(());
    }
    let text = format!("{} requests were failed, {} are still in flight", report.failed, report.in_flight);
    Err(Failure::made(SLUICE_ERR_TIMEOUT, text))
}
