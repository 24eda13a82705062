//! The engine: owns the requests, keeps ordering safety and bounds, asks the policy what goes next.

mod config;
mod error;
mod find;
mod gate;
mod prediction;

use crate::batch::{Batch, Part};
use crate::event::{Event, Events, Stage};
use crate::files::QueueId;
use crate::gate::Gate;
use crate::list::{List, NIL};
use crate::locality::{AppLocality, DeviceLocality, Locality, LocalityConfig};
use crate::policy::{ConfigError, Pick, PolicyConfig, PreparedPolicy, Removal};
use crate::probe::{Probe, ServedBatch};
use crate::queues::{Extent, Queues, Slot, State};
use crate::request::{Op, Outcome, Request, RequestId, Time};
use crate::stats::{Completion, Stats, WindowFeatures};
use crate::streams::{Next, Streams};
use prediction::Prediction;

pub use config::{EngineConfig, Ordering};
pub use error::{CancelError, CompleteError, Stale, SubmitError};

/// A scheduler of file I/O requests. A state machine without I/O, clock, threads or global state.
///
/// A host [submits](Engine::submit) requests, [takes](Engine::poll_dispatch) batches until there is none, executes them,
/// and [reports](Engine::complete) how each request ended. When nothing can be dispatched,
/// [`poll_timeout`](Engine::poll_timeout) tells when to ask again. Nothing is allocated after [`Engine::new`] except by
/// [`Engine::set_limits`] and [`Engine::set_predictor`]. Times must not go backwards from call to call; where they do, waits
/// are measured as 0.
///
/// # Example
/// ```
/// use sluice_core::{AppId, Batch, Engine, EngineConfig, FileId, Op, Outcome, PolicyConfig, Request, TargetId, Time};
///
/// let policy = PolicyConfig::parse("sjf")?;
/// let mut engine = Engine::new(EngineConfig::default(), &policy, Time::ZERO)?;
/// for block in [1, 0] {
///     let (offset, len) = (block * 4096, 4096);
///     let (file, app, target) = (FileId(7), AppId(0), TargetId(0));
///     engine.submit(Time(10), Request { cookie: block, file, app, target, op: Op::Read, offset, len })?;
/// }
/// let mut batch = Batch::new();
/// while engine.poll_dispatch(Time(20), &mut batch) {
///     assert_eq!((batch.offset(), batch.bytes(), batch.requests()), (0, 8192, 2));
///     for part in batch.parts() {
///         engine.complete(Time(30), part.id, Outcome::ok(part.request.len))?;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    policy: PreparedPolicy,
    queues: Queues,
    stats: Stats,
    events: Events,
    /// The policy works in offset order: queued requests are in the `queued` trees.
    in_offset_order: bool,
    bypasses_queue: bool,
    /// Of each batch in flight, the parts not complete; of an unused number, the next unused one.
    batch_parts: Vec<u32>,
    batch_free: u32,
    /// The parts of the batch in the making.
    candidate: Vec<Slot>,
    submissions: u64,
    /// Requests that have become eligible so far.
    arrivals: u64,
    wake: Option<Time>,
    prediction: Option<Prediction>,
    streams: Option<Box<Streams>>,
    probe: Option<Box<Probe>>,
    gate: Option<Box<Gate>>,
    locality: Option<Box<Locality>>,
    /// Where [`Engine::cancel_any`] goes on looking for requests that are blocked or delayed.
    scan: Slot,
}

impl Engine {
    /// An empty engine. Allocates everything it will need.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn new(config: EngineConfig, policy: &PolicyConfig, now: Time) -> Result<Engine, ConfigError> {
        config.check()?;
        let queues = Queues::new(config.capacity, config.files_max, config.batch_limits());
        let policy = PreparedPolicy::new(policy, &config).fresh(&config);
        Ok(Engine {
            in_offset_order: policy.algorithm().aggregates(),
            bypasses_queue: policy.config().info().bypasses_queue,
            policy,
            stats: Stats::new(now, config.window_ns, config.apps_max),
            events: Events::new(config.events),
            batch_parts: (1..=config.capacity).collect(),
            batch_free: 0,
            candidate: Vec::with_capacity(config.batch_requests_max.min(config.capacity) as usize),
            submissions: 0,
            arrivals: 0,
            wake: None,
            prediction: None,
            streams: config.anticipation.map(|anticipation| Box::new(Streams::new(anticipation, config.capacity))),
            probe: None,
            gate: None,
            locality: None,
            scan: 0,
            queues,
            config,
        })
    }

    /// Accepts a request. O(log n), n being the requests outstanding for its file.
    ///
    /// # Errors
    /// See [`SubmitError`]; the engine is unchanged then.
    pub fn submit(&mut self, now: Time, request: Request) -> Result<RequestId, SubmitError> {
        self.roll_windows(now);
        if request.offset.checked_add(u64::from(request.len)).is_none() {
            return Err(SubmitError::RangeOverflow);
        }
        let Some((slot, new_file)) = self.queues.allocate(now, &request) else {
            self.stats.refused();
            return Err(SubmitError::Full);
        };
        let file = self.queues.queue(slot).file();
        if new_file {
            for op in [Op::Read, Op::Write] {
                self.policy.algorithm_mut().forget(QueueId::new(file, op));
            }
        }
        let id = self.queues.id(slot);
        self.event(now, id, request.cookie, Stage::Queued);
        let waiting = self.queued();
        self.stats.submitted(now, &request, waiting, Some(self.queues.files.trails_mut(file)));
        self.submissions += 1;
        if let Some(predictor) = self.prediction.as_mut().and_then(|prediction| prediction.predictor.as_mut()) {
            predictor.submitted(now, &request);
        }
        if let Some(gate) = &mut self.gate {
            gate.arrived(slot, request.app);
        }
        let blocker = self.is_strict().then(|| self.queues.conflict(slot, self.submissions)).flatten();
        match blocker {
            Some(blocker) => {
                self.queues.block(slot, blocker, self.submissions);
                self.stats.blocked();
                if let Some(gate) = &mut self.gate {
                    gate.blocked(&mut self.queues.arrival_links, slot, request.app);
                    self.call(now, slot);
                }
            }
            None => self.make_eligible(now, slot),
        }
        Ok(id)
    }

    /// Fills `batch` with what goes next and returns true; false if nothing may be dispatched now.
    ///
    /// Call it until it returns false, after every submission and completion and at [`Engine::poll_timeout`].
    /// O(log n + parts), amortised.
    pub fn poll_dispatch(&mut self, now: Time, batch: &mut Batch) -> bool {
        self.wake = None;
        match self.gate {
            None => self.poll_open(now, batch),
            Some(_) => self.poll_gated(now, batch),
        }
    }

    /// Of what the policy sees.
    fn poll_open(&mut self, now: Time, batch: &mut Batch) -> bool {
        if self.queues.queued + self.delayed() == 0 || (!self.bypasses_queue && self.at_in_flight_limit()) {
            return false;
        }
        match self.next_of_stream(now) {
            Next::Free => {}
            Next::Continue(slot) => {
                let extent = self.around(slot);
                // Also in a slice what belongs to it may be about to arrive. The oldest may be what joins it.
                let deadline = self.deadline(self.queues.oldest().unwrap_or(slot));
                if deadline <= now || !self.delay(now, extent.first, extent.parts, deadline) {
                    self.dispatch(now, extent.first, extent.parts, Removal::Continued, batch);
                    return true;
                }
            }
            Next::Hold(until) => {
                self.wake = Some(until);
                return false;
            }
        }
        if self.prediction.is_some() && self.dispatch_delayed(now, batch) {
            return true;
        }
        while let Some(oldest) = self.queues.oldest() {
            let deadline = self.deadline(oldest);
            if deadline <= now {
                self.dispatch_around(now, oldest, Removal::Overdue, batch);
                return true;
            }
            match self.policy.algorithm_mut().pick(now, &self.queues) {
                Pick::Dispatch { first, parts } => {
                    if self.prediction.is_none() || !self.delay(now, first, parts, deadline) {
                        self.dispatch(now, first, parts, Removal::Picked, batch);
                        return true;
                    }
                }
                Pick::WaitUntil(at) => {
                    self.wake = Some(at.min(deadline));
                    break;
                }
                Pick::Idle => {
                    self.wake = (deadline.0 != u64::MAX).then_some(deadline);
                    break;
                }
            }
        }
        // One that was delayed just now may be complete with what was queued.
        if self.prediction.is_some() && (self.dispatch_delayed(now, batch) || self.dispatch_idle(now, batch)) {
            return true;
        }
        self.wake_for_delayed();
        false
    }

    /// When to call [`Engine::poll_dispatch`] again although nothing was submitted or completed: what the last call of
    /// it, having returned false, found out. `None`: not needed.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.wake
    }

    /// An outstanding request, queued or in flight; `None` if there is none of this handle. O(1).
    #[must_use]
    pub fn request(&self, id: RequestId) -> Option<Request> {
        Some(self.queues.request(self.queues.resolve(id)?))
    }

    /// Reports how a dispatched request ended. O(log n), plus O(log n) for each request that waited for it.
    ///
    /// # Errors
    /// See [`CompleteError`]; the engine is unchanged then.
    pub fn complete(&mut self, now: Time, id: RequestId, outcome: Outcome) -> Result<(), CompleteError> {
        let slot = self.queues.resolve(id).ok_or(CompleteError::Stale)?;
        let entry = self.queues.entries[slot as usize];
        let State::InFlight { since, batch } = entry.state else { return Err(CompleteError::NotDispatched) };
        self.roll_windows(now);
        let len = self.queues.len(slot);
        let done = Completion {
            op: entry.queue.op(),
            app: entry.app,
            len,
            bytes: outcome.bytes.min(len),
            error: outcome.error != 0,
            service_ns: now.since(since),
            latency_ns: now.since(entry.arrived),
        };
        self.stats.completed(now, &done);
        if let Some(streams) = &mut self.streams {
            streams.ended(now, slot, Some(done.service_ns));
        }
        if let Some(gate) = &mut self.gate {
            gate.ended(now, entry.app);
        }
        if self.locality.is_some() {
            self.note_completed(now, entry.app);
        }
        self.event(now, id, entry.cookie, Stage::Completed);
        if self.is_strict() {
            self.queues.leave_busy(slot);
        }
        self.queues.in_flight -= 1;
        if let Some(probe) = &mut self.probe {
            probe.completed(batch, &Outcome { bytes: done.bytes, ..outcome });
        }
        let parts = &mut self.batch_parts[batch as usize];
        *parts -= 1;
        if *parts == 0 {
            *parts = std::mem::replace(&mut self.batch_free, batch);
            self.queues.batches_in_flight -= 1;
            if let Some(probe) = &mut self.probe {
                probe.ended(now, batch, self.queues.batches_in_flight);
            }
            if self.queues.batches_in_flight == 0 {
                self.device_busy(now, false);
            }
            self.report_work(now);
        }
        if entry.waiters != NIL {
            self.release_waiters(now, slot);
        }
        self.queues.free(slot);
        Ok(())
    }

    /// Takes back a request that was not dispatched. O(log n), plus O(log n) for each request that waited for it.
    ///
    /// # Errors
    /// See [`CancelError`]; the engine is unchanged then.
    pub fn cancel(&mut self, now: Time, id: RequestId) -> Result<Request, CancelError> {
        let slot = self.queues.resolve(id).ok_or(CancelError::Stale)?;
        self.roll_windows(now);
        match self.queues.entries[slot as usize].state {
            State::InFlight { .. } | State::Free { .. } | State::Submitted => return Err(CancelError::InFlight),
            State::Blocked(_) => {
                self.queues.unblock(slot);
                self.note_unblocked(slot);
            }
            State::Delayed { .. } => self.cancel_delayed(now, slot),
            State::Held { .. } => self.cancel_held(slot),
            State::Queued { .. } => {
                self.leave_orders(slot);
                if !self.in_offset_order && self.is_strict() {
                    self.queues.leave_busy(slot);
                }
                self.policy.algorithm_mut().removed(now, &[slot], Removal::Cancelled, &self.queues);
            }
        }
        let request = self.queues.request(slot);
        self.stats.cancelled(now, &request);
        if let Some(gate) = &mut self.gate {
            gate.ended(now, request.app);
        }
        if let Some(streams) = &mut self.streams {
            streams.ended(now, slot, None);
        }
        self.event(now, id, request.cookie, Stage::Cancelled);
        if self.queues.entries[slot as usize].waiters != NIL {
            self.release_waiters(now, slot);
        }
        self.queues.free(slot);
        Ok(request)
    }

    /// Cancels some request that was not dispatched; `None` if there is none. To empty an engine at its end.
    pub fn cancel_any(&mut self, now: Time) -> Option<(RequestId, Request)> {
        let slot = match self.queues.oldest() {
            Some(oldest) => oldest,
            None if self.held() > 0 => self.some_held()?,
            None if self.queues.blocked + self.delayed() == 0 => return None,
            None => self.next_waiting()?,
        };
        let id = self.queues.id(slot);
        self.cancel(now, id).ok().map(|request| (id, request))
    }

    /// Cancels the next request, by slot from `from` on, that was not dispatched and is one of those `wanted`; `None` if
    /// there is none. `from` is where to go on: 0 at first. O(`capacity`) for all calls of one search together.
    pub fn cancel_next(
        &mut self,
        now: Time,
        from: &mut Slot,
        wanted: impl Fn(RequestId) -> bool,
    ) -> Option<(RequestId, Request)> {
        while *from < self.queues.capacity() && self.queued() > 0 {
            let slot = *from;
            let state = self.queues.entries[slot as usize].state;
            let waits = !matches!(state, State::Free { .. } | State::InFlight { .. });
            if waits && wanted(self.queues.id(slot)) {
                let id = self.queues.id(slot);
                return self.cancel(now, id).ok().map(|request| (id, request));
            }
            *from += 1;
        }
        None
    }

    /// Changes the algorithm or its parameters, with requests queued and in flight, and hands back the one that was in
    /// force. O(n log n), n being the requests queued. What the old one remembered is forgotten, also if it is the same
    /// algorithm.
    ///
    /// Allocates only where the policy was made for smaller tables than this engine's, or has been in use before: it is
    /// then built anew.
    pub fn set_policy(&mut self, now: Time, policy: PreparedPolicy) -> PreparedPolicy {
        let policy = policy.fresh(&self.config);
        let first = self.queues.oldest().unwrap_or(NIL);
        let mut at = first;
        while at != NIL {
            let next = self.queues.arrival_links.next(at);
            self.leave_file_queue(at);
            if !self.in_offset_order && self.is_strict() {
                self.queues.leave_busy(at);
            }
            at = next;
        }
        self.queues.arrival = List::new();
        self.queues.queued = 0;
        self.in_offset_order = policy.algorithm().aggregates();
        self.bypasses_queue = policy.config().info().bypasses_queue;
        let old = std::mem::replace(&mut self.policy, policy);
        if let Some(prediction) = &mut self.prediction {
            prediction.delayed.release_all();
        }
        let mut at = first;
        while at != NIL {
            let next = self.queues.arrival_links.next(at);
            self.enter_orders(now, at);
            at = next;
        }
        old
    }

    /// Takes over the *live* settings of `config`.
    ///
    /// # Errors
    /// If one is out of range; nothing changes then.
    pub fn set_limits(&mut self, config: &EngineConfig) -> Result<(), ConfigError> {
        let new = self.with_limits(config)?;
        self.queues.limits = new.batch_limits();
        self.candidate.reserve(new.batch_requests_max.min(new.capacity) as usize);
        match (&mut self.streams, new.anticipation) {
            (Some(streams), Some(anticipation)) => streams.configure(anticipation),
            (streams, anticipation) => *streams = anticipation.map(|a| Box::new(Streams::new(a, new.capacity))),
        }
        self.config = new;
        self.reckon_overdue_anew();
        Ok(())
    }

    /// What [`Engine::set_limits`] would say, without doing it.
    ///
    /// # Errors
    /// If one of the limits is out of range.
    pub fn check_limits(&self, config: &EngineConfig) -> Result<(), ConfigError> {
        self.with_limits(config).map(drop)
    }

    fn with_limits(&self, config: &EngineConfig) -> Result<EngineConfig, ConfigError> {
        let new = EngineConfig {
            max_wait_ns: config.max_wait_ns,
            batch_bytes_max: config.batch_bytes_max,
            batch_requests_max: config.batch_requests_max,
            in_flight_max: config.in_flight_max,
            anticipation: config.anticipation,
            ..self.config.clone()
        };
        new.check()?;
        Ok(new)
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The algorithm in force.
    #[must_use]
    pub fn policy(&self) -> &PolicyConfig {
        self.policy.config()
    }

    /// True if the algorithm lets every request through at once, so that a host may execute it where it is submitted.
    #[must_use]
    pub fn bypasses_queue(&self) -> bool {
        self.bypasses_queue && !self.is_gated()
    }

    /// So many requests a driver may have under way at a time without submitting them, counting them elsewhere
    /// ([`Stats::for_bypass`]), provided that nothing is outstanding: what is there alone has nobody to be put before or
    /// behind, and an algorithm that does not wait would dispatch it at once. None where somebody wants to hear of each one: a
    /// gate, events, and (unless the algorithm has no use for them) a predictor, anticipation, statistics of locality.
    /// `u32::MAX`: there is no limit in flight. O(1).
    #[must_use]
    pub fn bypass_max(&self) -> u32 {
        let info = self.policy.config().info();
        let listens = self.predicts() || self.streams.is_some() || self.locality.is_some();
        if self.is_gated() || self.events.on() {
            0
        } else if self.bypasses_queue {
            u32::MAX
        } else if info.waits || info.shared_engine || listens {
            0
        } else {
            Some(self.config.in_flight_max).filter(|&max| max > 0).unwrap_or(u32::MAX)
        }
    }

    /// Requests accepted and not dispatched, including those that wait for an overlapping one, for predicted neighbours, or
    /// behind a gate.
    #[must_use]
    pub fn queued(&self) -> u32 {
        self.queues.queued + self.queues.blocked + self.delayed() + self.held()
    }

    /// Requests dispatched and not completed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.queues.in_flight
    }

    /// What was seen so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The record of a window that has ended and saw anything, or requests outstanding: each once, in order, for a driver that publishes them. O(1).
    ///
    /// Windows end at calls that take the time; ask after those, and after [`Engine::roll`] at [`Stats::window_end`]. Eight
    /// are kept; what is not taken in time is lost and [counted](Stats::windows_lost).
    pub fn closed_window(&mut self) -> Option<WindowFeatures> {
        self.stats.take_closed()
    }

    /// Ends the windows of the statistics that are over at `now`. O(`apps_max`) if one is, else O(1).
    pub fn roll(&mut self, now: Time) {
        self.roll_windows(now);
    }

    /// Watches the device below from now on, or no more: what [`Engine::served`] gives. Allocates.
    pub fn watch_device(&mut self, watch: bool) {
        self.probe = watch.then(|| Box::new(Probe::new(self.config.capacity)));
    }

    /// Whether [`Engine::served`] has anything to tell.
    #[must_use]
    pub fn has_served(&self) -> bool {
        self.probe.as_ref().is_some_and(|probe| probe.has_served())
    }

    /// What the device has served since the last call, if it is [watched](Engine::watch_device): batches that moved all their bytes, of
    /// those the first ones. `room` takes what comes next, as many as fit without allocating. O(1).
    #[must_use]
    pub fn served(&mut self, room: Vec<ServedBatch>) -> Vec<ServedBatch> {
        self.probe.as_mut().map_or_else(Vec::new, |probe| probe.take(room))
    }

    /// Measures from now on, or no more, where the device is sent and how soon applications come again. Allocates.
    pub fn watch_locality(&mut self, config: Option<LocalityConfig>) {
        self.locality = config.map(|config| Box::new(Locality::new(config)));
    }

    /// What was measured since the last call, of each application that had requests into `apps`, if locality is
    /// [watched](Engine::watch_locality). O([`LOCALITY_APPS`](crate::LOCALITY_APPS)); allocates nothing if `apps` has room for
    /// that many.
    pub fn locality(&mut self, apps: &mut Vec<AppLocality>) -> Option<DeviceLocality> {
        self.locality.as_mut().map(|locality| locality.report(apps))
    }

    /// The oldest trace event not yet taken.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Trace events lost because nobody took them.
    #[must_use]
    pub fn events_lost(&self) -> u64 {
        self.events.lost()
    }

    // ---- inside ----------------------------------------------------------------------------------------------

    #[inline]
    fn roll_windows(&mut self, now: Time) {
        if self.stats.roll(now) {
            self.stats.waited_for(self.queues.files.end_window());
        }
    }

    fn is_strict(&self) -> bool {
        self.config.ordering == Ordering::Strict
    }

    /// When a request that has become the oldest queued one is overdue.
    fn deadline(&self, oldest: Slot) -> Time {
        match self.config.max_wait_ns {
            0 => Time(u64::MAX),
            max_wait => {
                let since = self.queues.entries[oldest as usize].eligible_since();
                since.map_or(Time(u64::MAX), |since| since.after(max_wait))
            }
        }
    }

    fn at_in_flight_limit(&self) -> bool {
        self.config.in_flight_max != 0 && self.queues.batches_in_flight >= self.config.in_flight_max
    }

    fn event(&mut self, at: Time, id: RequestId, cookie: u64, stage: Stage) {
        if self.events.on() {
            self.events.push(Event { id, cookie, stage, at });
        }
    }

    /// The request may be dispatched from now on.
    fn make_eligible(&mut self, now: Time, slot: Slot) {
        self.queues.entries[slot as usize].state = State::Queued { since: now, place: 0 };
        if let Some(streams) = &mut self.streams {
            streams.arrived(now, slot, &self.queues.request(slot));
        }
        if self.gate.is_some() && self.hold(slot) {
            return;
        }
        if let Some(streams) = &mut self.streams {
            streams.show(now, slot);
        }
        if self.prediction.is_none() || !self.join_delayed(now, slot) {
            self.enter_orders(now, slot);
        }
    }

    fn enter_orders(&mut self, now: Time, slot: Slot) {
        if self.in_offset_order {
            self.queues.tree_insert(slot, |q| &mut q.queued);
        } else if self.is_strict() {
            self.queues.enter_busy(slot);
        }
        let len = u64::from(self.queues.len(slot));
        let queue = self.queues.queue(slot);
        let record = self.queues.files.queue_mut(queue);
        record.queued_count += 1;
        record.queued_bytes += len;
        self.queues.arrival.push_back(&mut self.queues.arrival_links, slot);
        self.arrivals += 1;
        if let State::Queued { place, .. } = &mut self.queues.entries[slot as usize].state {
            *place = self.arrivals;
        }
        self.queues.queued += 1;
        self.policy.algorithm_mut().enqueue(now, slot, &self.queues);
    }

    /// Out of everything that holds queued requests, except the busy ones' and the policy's.
    fn leave_orders(&mut self, slot: Slot) {
        self.leave_file_queue(slot);
        self.queues.arrival.remove(&mut self.queues.arrival_links, slot);
        self.queues.queued -= 1;
    }

    fn leave_file_queue(&mut self, slot: Slot) {
        let queue = self.queues.queue(slot);
        let len = u64::from(self.queues.len(slot));
        if self.in_offset_order {
            self.queues.tree_remove(slot, |q| &mut q.queued);
        }
        let record = self.queues.files.queue_mut(queue);
        record.queued_count -= 1;
        record.queued_bytes -= len;
    }

    /// What goes next for the sake of a stream that is being served. Policies that let everything through, or that keep
    /// several devices apart themselves, leave nothing to anticipate.
    fn next_of_stream(&mut self, now: Time) -> Next {
        let Some(streams) = &mut self.streams else { return Next::Free };
        if self.bypasses_queue || self.policy.config().info().shared_engine {
            return Next::Free;
        }
        let next = streams.next(now);
        let overdue = matches!(next, Next::Continue(slot) if self.deadline(slot) <= now);
        let Some(streams) = &mut self.streams else { return Next::Free };
        match next {
            // One that is delayed for its neighbours goes when they are there.
            Next::Continue(slot) if !matches!(self.queues.entries[slot as usize].state, State::Queued { .. }) => {
                Next::Free
            }
            // In the order of the file, as several may read what is one stream by turns; but for what is overdue, or who reads
            // downwards would be served newest first.
            Next::Continue(slot) if self.in_offset_order && !overdue => {
                let queue = self.queues.queue(slot);
                let goes = |first: &Slot| streams.takes_along(*first, self.queues.offset(*first), slot);
                // What lies below where the slice began may be of others, that are to be kept back.
                let in_slice = || streams.slice_from().and_then(|from| self.queues.at_or_after(queue, from));
                let first = self.queues.head(queue).filter(goes).or_else(|| in_slice().filter(goes));
                let first = first.filter(|&first| self.queues.offset(first) < self.queues.offset(slot));
                let slot = first.unwrap_or(slot);
                match streams.waits_at(now, self.queues.offset(slot)) {
                    Some(until) => Next::Hold(until),
                    None => Next::Continue(slot),
                }
            }
            next => next,
        }
    }

    /// A request, and what is around it if the policy aggregates.
    fn around(&mut self, slot: Slot) -> Extent {
        match self.in_offset_order {
            true => self.queues.extent_around(slot),
            false => Extent { first: slot, parts: 1, bytes: 0, full: true },
        }
    }

    /// Dispatches a request, and what is around it.
    fn dispatch_around(&mut self, now: Time, slot: Slot, why: Removal, batch: &mut Batch) {
        let extent = self.around(slot);
        self.dispatch(now, extent.first, extent.parts, why, batch);
    }

    fn dispatch(&mut self, now: Time, first: Slot, parts: u32, why: Removal, batch: &mut Batch) {
        self.collect(first, parts);
        self.leave_queue(now, why);
        self.start_batch(now, why, batch);
    }

    /// The requests of `self.candidate` are not queued any more.
    fn leave_queue(&mut self, now: Time, why: Removal) {
        let busy_later = self.in_offset_order && self.is_strict();
        for at in 0..self.candidate.len() {
            let slot = self.candidate[at];
            self.leave_orders(slot);
            if busy_later {
                self.queues.enter_busy(slot);
            }
        }
        self.policy.algorithm_mut().removed(now, &self.candidate, why, &self.queues);
    }

    /// The requests of `self.candidate`, which have left the queue, are in flight as a batch.
    fn start_batch(&mut self, now: Time, why: Removal, batch: &mut Batch) {
        self.roll_windows(now);
        let number = self.batch_free;
        self.batch_free = std::mem::replace(&mut self.batch_parts[number as usize], self.candidate.len() as u32);
        self.queues.batches_in_flight += 1;
        self.queues.in_flight += self.candidate.len() as u32;
        // Each time: a predictor may have come while the device was busy.
        self.device_busy(now, true);
        self.note_work();
        let ordered = self.in_offset_order;
        let streams = self.streams.as_mut();
        let catches_up = streams.is_some_and(|s| s.dispatched(now, &self.candidate, &self.queues, ordered, why));
        batch.parts.clear();
        for at in 0..self.candidate.len() {
            let slot = self.candidate[at];
            let part = Part { id: self.queues.id(slot), request: self.queues.request(slot) };
            batch.parts.push(part);
            let entry = &mut self.queues.entries[slot as usize];
            entry.state = State::InFlight { since: now, batch: number };
            self.stats.waited(now.since(entry.arrived));
            self.event(now, part.id, part.request.cookie, Stage::Dispatched);
        }
        if let Some(locality) = &mut self.locality {
            batch.parts.iter().for_each(|part| locality.dispatched(&part.request));
        }
        if let Some(probe) = &mut self.probe {
            let beside = self.queues.batches_in_flight - 1;
            probe.dispatched(now, number, &batch.parts[0].request, batch.bytes(), beside);
        }
        self.stats.dispatched(self.candidate.len() as u32, why, catches_up);
    }

    /// The parts of an extent into `self.candidate`, in offset order.
    fn collect(&mut self, first: Slot, parts: u32) {
        self.candidate.clear();
        self.candidate.push(first);
        let mut last = first;
        while (self.candidate.len() as u32) < parts
            && let Some(next) = self.queues.next(last)
        {
            self.candidate.push(next);
            last = next;
        }
        assert!(
            self.candidate.len() as u32 == parts
                && matches!(self.queues.entries[first as usize].state, State::Queued { .. }),
            "policy {} picked what is not queued",
            self.policy.config().name()
        );
    }

    fn release_waiters(&mut self, now: Time, slot: Slot) {
        let (mut before, mut at) = (NIL, self.queues.take_waiters(slot));
        while at != NIL {
            let next = self.queues.next_waiter(at);
            if self.queues.recheck(at, before) {
                self.note_unblocked(at);
                self.make_eligible(now, at);
            } else if self.gate.is_some() {
                self.call(now, at);
            }
            (before, at) = (at, next);
        }
    }

    fn note_unblocked(&mut self, slot: Slot) {
        if let Some(gate) = &mut self.gate {
            gate.unblocked(&mut self.queues.arrival_links, slot, self.queues.entries[slot as usize].app);
        }
    }

    /// Some request that is blocked or delayed.
    fn next_waiting(&mut self) -> Option<Slot> {
        let capacity = self.queues.capacity();
        let found = (0..capacity).map(|ahead| (self.scan + ahead) % capacity).find(|&slot| {
            matches!(self.queues.entries[slot as usize].state, State::Blocked(_) | State::Delayed { .. })
        })?;
        self.scan = found;
        Some(found)
    }
}
