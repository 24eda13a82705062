//! Scheduled file I/O over a storage.
//!
//! # The way of a request
//! A logical request becomes an *operation* in a table of fixed size and is split into *pieces*: by the storage's layout,
//! and by `request_bytes_max`. Each piece is a request to the engine of its target. A dispatched batch becomes a *job* of
//! the thread that drove the engine, which after giving the engine up (never while it holds it) decides:
//!
//! 1. *here*: the storage never waits; or the policy passes everything through, or the caller waits anyway, and the job
//!    is the caller's own request;
//! 2. *here, if it is in the page cache*: `preadv2(RWF_NOWAIT)`;
//! 3. the ring (io_uring), or a worker thread.
//!
//! Where the policy passes everything through and there is one target, a request may even go by the engine; see `lane`.
//!
//! A worker that completed a job drives the engine and goes on with what became dispatchable by it. When the last piece
//! has ended, the thread that ended it puts the result together and tells the host.
//!
//! # io_uring or threads?
//! [`Workers::Auto`] takes threads: with them a completed job goes on with the next one on the same thread.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use sluice_core::{
    AppId, ConfigError, EngineConfig, FileId, GateError, GatePlan, Op, PolicyConfig, Predictor, Request, TargetId, Time,
};
use sluice_storage::{FileRef, Layout, Segment, Storage};
use sluice_trace::Meta;

mod bypass;
mod config;
mod device_speed;
mod ending;
mod flights;
mod host;
mod memory;
mod ops;
mod ring;
mod service;
mod transfer;
mod workers;

pub use self::config::{Engines, VolumeConfig, Workers};
pub use self::host::{Done, Host};

use self::bypass::Bypass;
use self::ops::{Awaited, Memory, OpPiece, Ops, Waiter, cookie};
use self::ring::Ring;
use self::service::{Caller, Dispatched, Parts, Service};
use self::transfer::Ended;
use crate::client::{Completer, SubmitError};
use crate::clock::nanos;
use crate::effects::{Effects, InCallback, tell_late};
use crate::names::FileNames;
use crate::parked::{before_locking, before_waiting};
use crate::record::{Observer, RecordError, RecordOptions, Recording};
use crate::scheduler::{Client, Scheduler, SchedulerConfig, Shutdown, ShutdownReport, Snapshot, StartError};
use crate::shard::{Driving, reuse_effects, take_effects};
use crate::striped::thread_number;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, lock_until, park, sabotaged, thread};

/// Locks for the order of operations; files share them by number.
const ORDER_LOCKS: usize = 64;

/// A volume at one moment.
#[derive(Clone, Debug)]
pub struct VolumeSnapshot {
    /// The engines.
    pub runtime: Snapshot,
    /// What the storage says it is.
    pub storage: String,
    /// Service times are emulated.
    pub emulated: bool,
    /// Who executes, and why if it is not what was asked for.
    pub workers: String,
    /// Worker threads running.
    pub threads: usize,
    /// Batches executed in the thread that submitted.
    pub by_caller: u64,
    /// Batches executed by worker threads.
    pub by_threads: u64,
    /// Batches given to the ring.
    pub by_ring: u64,
    /// Logical requests outstanding.
    pub outstanding: usize,
    /// Of these, the ones that callers execute without any engine.
    pub bypassing: u32,
    /// Bytes of memory set aside for them.
    pub buffer_bytes: u64,
}

/// Scheduled I/O on the files of a storage. All methods may be called from any thread.
///
/// Operations that overlap on a file keep their order as wholes, also where they are split over targets and engines: of two
/// writes one is there entirely, and a read sees all of a write or nothing of it. (Concurrent calls that go by the engine,
/// with an algorithm that lets everything through on one target, are kept apart as far as the storage does it.)
pub struct Volume<H: Host> {
    /// Before the rest: no request is under way any more when that goes.
    client: Client,
    scheduler: Scheduler,
    service: Arc<Service<H>>,
    /// Of files that begin on target 0.
    layout: Layout,
    piece_max: u64,
    in_flight_default: u32,
    workers: String,
    /// `None` where requests cannot go by the engine.
    bypass: Option<Bypass>,
    strict: bool,
    names: Arc<FileNames>,
    /// Held while the pieces of an operation of several are submitted: their order is the same on every engine then.
    order: Box<[Mutex<()>]>,
}

impl<H: Host> Volume<H> {
    /// Starts the engines, and threads as they are needed.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(storage: Storage, host: Arc<H>, config: VolumeConfig) -> Result<Volume<H>, StartError> {
        let layout = storage.data.layout();
        let targets = layout.targets();
        let shared = targets == 1
            || match config.engines {
                Engines::Auto => config.policy.info().shared_engine,
                Engines::PerTarget => false,
                Engines::Shared => true,
            };
        let threads_max = config.threads_max.max(1);
        let mut engine = config.engine.clone();
        let in_flight_default = if shared { threads_max.saturating_mul(targets) } else { threads_max };
        if engine.in_flight_max == 0 {
            engine.in_flight_max = in_flight_default;
        }
        let (ring, workers) = match config.workers {
            Workers::Auto | Workers::Threads => (None, "threads".to_owned()),
            Workers::Ring => match Ring::new(threads_max.saturating_mul(targets).saturating_mul(2)) {
                Ok(ring) => (Some(Arc::new(ring)), "io_uring".to_owned()),
                Err(error) => (None, format!("threads (io_uring: {error})")),
            },
        };
        let has_bypass = targets == 1 && config.inline && config.driving == Driving::Caller;
        let scheduler = Scheduler::start(SchedulerConfig {
            shards: if shared { 1 } else { targets as usize },
            engine: engine.clone(),
            policy: config.policy,
            driving: config.driving,
            clock: config.clock,
            name: "sluice".to_owned(),
        })?;
        let service = Service::new(Parts {
            storage,
            host,
            ops: Ops::new(engine.capacity, config.buffer_bytes_max),
            // Each target can have its share under way.
            threads_max: threads_max.saturating_mul(targets).min(1024),
            ring,
            inline: config.inline,
            tap: scheduler.taps().0.clone(),
        });
        let client =
            scheduler.attach_volume(Arc::new(Dispatched(Arc::downgrade(&service)))).expect("it is the first one");
        service.connect(client.completers().into());
        let system = |source| StartError::System { what: "a thread", source };
        service.workers.start_one(|| service.spawn()).map_err(system)?;
        let bypass = has_bypass.then(|| Bypass::new(&engine, scheduler.snapshot().total.total().start));
        let volume = Volume {
            client,
            scheduler,
            layout,
            piece_max: u64::from(config.request_bytes_max.max(1)),
            in_flight_default,
            workers,
            bypass,
            strict: engine.ordering == sluice_core::Ordering::Strict,
            names: Arc::new(FileNames::new(targets)),
            order: (0..ORDER_LOCKS).map(|_| Mutex::new(())).collect(),
            service,
        };
        if let Some(ring) = &volume.service.ring {
            let service = Arc::downgrade(&volume.service);
            let ended = move |job, _, result| {
                if let Some(service) = service.upgrade() {
                    service.landed(job, result);
                }
            };
            ring.start_reaper(ended).map_err(system)?;
        }
        Ok(volume)
    }

    /// Reads `len` bytes at `offset`. The result goes to the host, perhaps before this returns. Waits while the volume is
    /// full.
    pub fn read(&self, file: &FileRef, app: AppId, offset: u64, len: u32, ticket: H::Ticket) {
        let access = Access { file, app, op: Op::Read, offset, len: len as usize };
        match self.enter_bypass(&access) {
            Some(stay) => self.read_bypassing(&access, stay, ticket),
            None => _ = self.submit_operation(&access, None, Waiter::Ticket(ticket)),
        }
    }

    /// Writes `data` at `offset`. The result goes to the host, perhaps before this returns. Waits while the volume is full.
    /// The data is copied only if the request cannot be executed within the call.
    pub fn write(&self, file: &FileRef, app: AppId, offset: u64, data: &[u8], ticket: H::Ticket) {
        let access = Access { file, app, op: Op::Write, offset, len: data.len() };
        let memory = memory::borrow(data);
        if let Some(stay) = self.enter_bypass(&access) {
            let result = self.execute_bypassing(&access, memory, &stay);
            // The host is told outside the bypass: it may submit again.
            self.service.will_tell();
            drop(stay);
            self.service.tell(ticket, Done::Written(result.bytes), result);
            return self.service.told();
        }
        self.submit_operation(&access, Some(memory), Waiter::Ticket(ticket));
    }

    /// Reads into `buffer` and waits for it. Returns the number of bytes read.
    ///
    /// # Errors
    /// The storage's, if nothing was read before it.
    pub fn read_at(&self, file: &FileRef, app: AppId, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let access = Access { file, app, op: Op::Read, offset, len: buffer.len() };
        self.execute_waiting(&access, memory::borrow_mut(buffer))
    }

    /// Writes `data` and waits for it. Returns the number of bytes written.
    ///
    /// # Errors
    /// The storage's, if nothing was written before it.
    pub fn write_at(&self, file: &FileRef, app: AppId, offset: u64, data: &[u8]) -> io::Result<usize> {
        let access = Access { file, app, op: Op::Write, offset, len: data.len() };
        self.execute_waiting(&access, memory::borrow(data))
    }

    fn execute_waiting(&self, access: &Access<'_>, memory: Segment) -> io::Result<usize> {
        match self.enter_bypass(access) {
            Some(stay) => {
                let result = self.execute_bypassing(access, memory, &stay).as_call();
                result.map_err(io::Error::from_raw_os_error)
            }
            None => self.submit_operation(access, Some(memory), Waiter::Thread(thread::current())).unwrap_or(Ok(0)),
        }
    }

    /// Waits until no request for this file that was submitted before is outstanding. For truncation and the like.
    /// Not inside [`Host::complete`] of a request that it would wait for.
    pub fn wait_idle(&self, file: &FileRef) {
        self.wait_idle_number(file.id());
    }

    /// As [`Volume::wait_idle`], for who has not opened the file with this number ([`Node::id`](sluice_storage::Node::id)).
    pub fn wait_idle_number(&self, file: u64) {
        if let Some(bypass) = self.bypass.as_ref().filter(|bypass| !bypass.is_empty()) {
            bypass.close();
            self.service.blocking(|until| bypass.wait_empty(until));
            bypass.open();
        }
        // Most have nothing to wait for, and the table of operations is long.
        if self.service.ops.outstanding() > 0 {
            self.service.blocking(|until| self.service.ops.wait_idle(Some(file), until));
        }
    }

    /// The storage.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.service.storage
    }

    /// Changes the algorithm, with requests queued and in flight.
    pub fn set_policy(&self, policy: &PolicyConfig) {
        self.scheduler.set_policy(policy);
    }

    /// Sets a gate, or takes it away ([`Scheduler::set_gate`]).
    ///
    /// # Errors
    /// If no engine can follow such a plan; nothing changes then.
    pub fn set_gate(&self, plan: Option<&GatePlan>) -> Result<(), GateError> {
        self.scheduler.set_gate(plan)
    }

    /// Takes over the *live* settings of `limits`: `max_wait_ns`, the bounds of a batch, and `in_flight_max` (0: as many
    /// as there can be workers).
    ///
    /// # Errors
    /// If one is out of range; nothing changes then.
    pub fn set_limits(&self, limits: &EngineConfig) -> Result<(), ConfigError> {
        let in_flight_max = if limits.in_flight_max == 0 { self.in_flight_default } else { limits.in_flight_max };
        self.scheduler.set_limits(&EngineConfig { in_flight_max, ..limits.clone() })
    }

    /// The settings in force.
    #[must_use]
    pub fn limits(&self) -> EngineConfig {
        self.scheduler.limits()
    }

    /// The algorithm.
    #[must_use]
    pub fn policy(&self) -> PolicyConfig {
        self.scheduler.policy()
    }

    /// A file was opened: its path may be another one than the number's owner had before. Costs nothing while nobody
    /// records or predicts.
    pub fn opened(&self, file: &FileRef) {
        if self.names.on() {
            self.names.renew(file.id(), || self.service.file_path(file));
        }
    }

    /// The paths of files, while somebody [watches](FileNames::watch) them.
    #[must_use]
    pub fn names(&self) -> &Arc<FileNames> {
        &self.names
    }

    /// How requests become pieces: what predictions from other volumes' traces, or other programs' logs, have to do with them.
    #[must_use]
    pub fn split(&self) -> sluice_trace::Split {
        sluice_trace::Split {
            request_max: u32::MAX,
            piece_max: u32::try_from(self.piece_max).unwrap_or(u32::MAX),
            targets: self.layout.targets(),
            stripe: self.layout.stripe().unwrap_or(0),
        }
    }

    /// Records every request from now on in a new trace file, or in the place of an old one, piece by piece as the engines see them, but with targets
    /// counted from the one that a file begins on. `source`: where it was recorded, for people.
    ///
    /// # Errors
    /// If a recording is running, or the file cannot be written.
    pub fn start_recording(&self, path: &std::path::Path, source: &str) -> Result<(), RecordError> {
        self.start_recording_with(path, source, RecordOptions::default())
    }

    /// As [`Volume::start_recording`], with options.
    ///
    /// # Errors
    /// See there.
    pub fn start_recording_with(
        &self,
        path: &std::path::Path,
        source: &str,
        options: RecordOptions,
    ) -> Result<(), RecordError> {
        let meta = Meta {
            targets: self.layout.targets(),
            stripe: self.layout.stripe().unwrap_or(0),
            pieces: true,
            emulated: self.service.storage.data.emulated(),
            source: source.to_owned(),
            policy: self.policy().name().to_owned(),
            checksums: options.checksums,
            ..Meta::default()
        };
        self.service.tap.record_to(path, true, meta, self.scheduler.clock(), Some(self.names.clone()))
    }

    /// Ends the recording. All that was submitted before is in the file then.
    ///
    /// # Errors
    /// If there was none, or the file could not be written.
    pub fn stop_recording(&self) -> Result<Recording, RecordError> {
        self.scheduler.stop_recording()
    }

    /// The recording that is running.
    #[must_use]
    pub fn recording(&self) -> Option<Recording> {
        self.scheduler.recording()
    }

    /// Requests so far that went by the engine. What an engine's windows say is a part of what was asked for while this grows.
    #[must_use]
    pub fn passed_by(&self) -> u64 {
        self.bypass.as_ref().map_or(0, Bypass::requests)
    }

    /// Tells an observer of every request from now on.
    ///
    /// # Errors
    /// If there is one already, or the system refuses a thread.
    pub fn observe(&self, observer: Box<dyn Observer>) -> Result<(), RecordError> {
        self.scheduler.taps().1.observe(observer, self.scheduler.clock(), Some(self.names.clone()))
    }

    /// Ends the observation. The observer has heard of everything before.
    ///
    /// # Errors
    /// If there was none.
    pub fn end_observation(&self) -> Result<(), RecordError> {
        self.scheduler.taps().1.stop().map(drop)
    }

    /// Gives each engine a predictor, or none. Whoever predicts by path watches the [names](Volume::names) before.
    pub fn set_predictors(&self, make: impl FnMut(usize) -> Option<Box<dyn Predictor>>) {
        self.scheduler.set_predictors(make);
    }

    /// Copies the state.
    #[must_use]
    pub fn snapshot(&self) -> VolumeSnapshot {
        let service = &self.service;
        let bypassing = self.bypass.as_ref().map_or(0, Bypass::inside);
        let mut runtime = self.scheduler.snapshot();
        if let Some(bypass) = &self.bypass {
            // There is one engine: it is the total.
            bypass.add_to(runtime.at, &mut runtime.total);
            runtime.shards[0].stats = runtime.total.clone();
        }
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        VolumeSnapshot {
            runtime,
            storage: service.storage.data.describe(),
            emulated: service.storage.data.emulated(),
            workers: self.workers.clone(),
            threads: service.workers.threads(),
            by_caller: service.counts.caller.sum() + self.bypass.as_ref().map_or(0, Bypass::requests),
            by_threads: service.counts.threads.sum(),
            by_ring: count(&service.counts.asynchronous),
            outstanding: service.ops.outstanding() + bypassing as usize,
            bypassing,
            buffer_bytes: service.ops.bytes(),
        }
    }

    /// The scheduler below, for trace events, windows and the clock.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Ends the volume: what was accepted is executed or failed, and every host was told when this returns. Requests after
    /// it fail with `ESHUTDOWN`. Not from inside [`Host::complete`].
    pub fn shutdown(&self, how: Shutdown) -> ShutdownReport {
        if let Some(bypass) = &self.bypass {
            // For good: from now on the scheduler answers.
            bypass.close();
            bypass.wait_empty(None);
        }
        let mut report = self.scheduler.shutdown(how);
        // The storage returns from every call, so what is in flight ends; where a host drops the volume in a call, and this is
        // the only thread, by another one.
        self.service.blocking(|until| self.service.ops.wait_idle(None, until));
        self.service.wait_told();
        report.in_flight = 0;
        if let Some(ring) = &self.service.ring {
            ring.stop();
        }
        self.service.workers.stop();
        report
    }

    // ---- submitting ------------------------------------------------------------------------------------------

    /// The way of every operation. `memory`: what is written, or where to read to for a waiting thread.
    fn submit_operation(
        &self,
        access: &Access<'_>,
        memory: Option<Segment>,
        waiter: Waiter<H::Ticket>,
    ) -> Option<io::Result<usize>> {
        let service = &*self.service;
        let waits = matches!(waiter, Waiter::Thread(_));
        if access.len == 0 || access.end().is_none() {
            let result = if access.len == 0 { Ok(()) } else { Err(Errno::INVAL) };
            if let Waiter::Ticket(ticket) = waiter {
                service.tell_nothing(ticket, access.op, result);
                return None;
            }
            return Some(result.map(|()| 0).map_err(io::Error::from));
        }
        if waits && InCallback::is_deep() {
            // It will be executed by others, and hosts that are told here while it is might wait for its place.
            before_waiting();
        }
        let time = self.client.time();
        let slot = self.admit(if waits { 0 } else { access.len as u64 });
        if access.op == Op::Write && service.targets > 1 {
            service.ops.write_begins(access.file.id());
        }
        let pieces = self.fill(slot, access, memory, waiter, time);
        service.ops.open(slot, access.file.id(), pieces as u32 + 1);
        service.wait_for_trims();
        // The slot is taken, so nobody new enters the bypass.
        if let Some(bypass) = self.bypass.as_ref().filter(|bypass| self.strict && !bypass.is_empty()) {
            service.blocking_inside(|until| bypass.wait_empty(until));
        }
        self.note(access.file);
        let mut effects = take_effects();
        self.submit_pieces(access, slot, pieces, memory, time, &mut effects);
        if access.op == Op::Write {
            service.ops.write_submitted(slot, access.range());
        }
        let first = self.layout_of(access).locate(access.offset).0;
        let bypass = self.client.bypasses_queue(service.completer(first).shard());
        service.settle_call(Caller::Submitter { slot, waits, bypass }, slot, &mut effects);
        reuse_effects(effects);
        tell_late();
        waits.then(|| self.wait_for(slot))
    }

    /// Notes an operation in its slot; gives the number of its pieces.
    fn fill(
        &self,
        slot: u32,
        access: &Access<'_>,
        memory: Option<Segment>,
        waiter: Waiter<H::Ticket>,
        time: Option<Time>,
    ) -> usize {
        let service = &*self.service;
        let waits = matches!(waiter, Waiter::Thread(_));
        let recorded = time.filter(|_| access.op == Op::Read && service.tap.wants_sums());
        let writes_before = service.ops.writes_ended(access.file.id());
        // Before the slot is locked: it may ask every target.
        let several = service.targets > 1 || access.op == Op::Read && self.is_split(access);
        let (size_before, awaited) = if several { self.size_before(access) } else { (Ok(u64::MAX), Vec::new()) };
        let mut state = service.ops.slot(slot).state.lock();
        state.file = Some(access.file.clone());
        (state.op, state.offset, state.len, state.waiter) = (access.op, access.offset, access.len, waiter);
        (state.size_before, state.awaited, state.writes_before) = (size_before, awaited, writes_before);
        state.memory = match memory {
            None => Memory::Pooled(service.buffers.take(access.len)),
            Some(memory) if waits => Memory::Borrowed(memory),
            Some(memory) => Memory::Lent(memory, thread_number()),
        };
        for (start, target, offset, len) in self.pieces(access) {
            state.pieces.push(OpPiece { start, len, ended: Ended::default() });
            if let Some(time) = recorded {
                state.recorded.0 = time;
                let request = self.request(access, 0, (target, offset, len));
                state.recorded.1.push(self.as_recorded(access.file, request));
            }
        }
        let pieces = state.pieces.len();
        // Once those who fail find it here.
        let settled = state.awaited.iter().all(|write| service.ops.is_awaited(write));
        drop(state);
        if !settled {
            self.settle_size(slot, access);
        }
        pieces
    }

    /// See [`Operation::size_before`](ops::Operation::size_before) and what follows it there.
    fn size_before(&self, access: &Access<'_>) -> (Result<u64, i32>, Vec<Awaited>) {
        let (service, range) = (&self.service, access.range());
        let size = service.size_at_least(access.file, range.end);
        let (file, is_short) = (access.file.id(), size.is_ok_and(|size| size < range.end));
        if access.op == Op::Write || !is_short || service.targets > 1 && service.ops.nobody_writes(file) {
            return (size, Vec::new());
        }
        // In this order: a write that is not under way any more has reached its end.
        let awaited = service.ops.writes_over(file, &range);
        let size = if awaited.is_empty() { size } else { service.size_at_least(access.file, range.end) };
        (size, awaited)
    }

    /// Writes that the read in this slot was to wait for have ended or failed before it was submitted: the file tells what
    /// became of them.
    #[cold]
    fn settle_size(&self, slot: u32, access: &Access<'_>) {
        let service = &self.service;
        service.ops.slot(slot).state.lock().awaited.retain(|write| service.ops.is_awaited(write));
        let size = service.size_at_least(access.file, access.range().end);
        service.ops.slot(slot).state.lock().size_before = size;
    }

    /// Submits all pieces. Those of several are submitted together, as far as other operations on the file can see.
    fn submit_pieces(
        &self,
        access: &Access<'_>,
        slot: u32,
        pieces: usize,
        memory: Option<Segment>,
        time: Option<Time>,
        effects: &mut Effects<Completer>,
    ) {
        let summed = time.filter(|_| access.op == Op::Write && self.service.tap.wants_sums());
        let mut cancelled = Vec::new();
        let order = (pieces > 1 && self.strict && !sabotaged!(PiecesUnordered)).then(|| self.lock_order(access.file));
        for (at, (start, target, offset, len)) in self.pieces(access).enumerate() {
            if let (Some(time), Some(data)) = (summed, memory) {
                let request = self.as_recorded(access.file, self.request(access, 0, (target, offset, len)));
                let sum = memory::checksum(data.part(start as usize, len as usize));
                self.service.tap.record_summed(time, &request, sum, len);
            }
            let request = self.request(access, cookie(slot, at), (target, offset, len));
            self.submit_piece(access.file, request, time, effects, &mut cancelled, order.is_some());
        }
        drop(order);
        cancelled.iter().for_each(|(request, errno)| self.service.cancel(request, *errno));
    }

    /// Keeps other operations of several pieces on this file from being submitted.
    fn lock_order(&self, file: &FileRef) -> MutexGuard<'_, ()> {
        before_locking();
        let lock = &self.order[file.id() as usize % ORDER_LOCKS];
        lock.try_lock().unwrap_or_else(|| self.service.blocking_with_lock(|until| lock_until(lock, until)))
    }

    fn submit_piece(
        &self,
        file: &FileRef,
        request: Request,
        time: Option<Time>,
        effects: &mut Effects<Completer>,
        cancelled: &mut Vec<(Request, i32)>,
        locked: bool,
    ) {
        let own = self.service.completer(request.target.0);
        loop {
            // Whoever gets it executes it, where it does not matter who does.
            let wait_to_hold = own.shard.bypasses_queue() && !self.service.never_waits(file);
            let errno = match own.shard.submit_into(own, request, effects, time, wait_to_hold) {
                Ok(()) => {
                    if time.is_some() {
                        self.client.record(time, &self.as_recorded(file, request));
                    }
                    return;
                }
                Err(SubmitError::Full(_)) => {
                    // Others make room, if they get what this thread has dispatched.
                    self.service.hand_over_all(effects, cancelled);
                    let wait = |until| own.shard.wait_for_place(&own.port, until).then_some(());
                    if locked {
                        self.service.blocking_with_lock(wait);
                    } else {
                        self.service.blocking_inside(wait);
                    }
                    continue;
                }
                Err(SubmitError::RangeOverflow | SubmitError::Target(_)) => libc::EINVAL,
                Err(SubmitError::Closed) => libc::ESHUTDOWN,
            };
            // Never the last one: the call itself is pending.
            self.service.end_piece(request.cookie, Ended { bytes: 0, errno });
            return;
        }
    }

    /// The request for a piece: target, offset in the target's file, length. Its file's number tells which stripes of each
    /// row it is of: [`FileNames::position`].
    fn request(&self, access: &Access<'_>, cookie: u64, (target, offset, len): (u32, u64, u32)) -> Request {
        let targets = u64::from(self.service.targets);
        let position = self.layout_of(access).position(target);
        Request {
            cookie,
            file: FileId(access.file.id().wrapping_mul(targets).wrapping_add(u64::from(position))),
            app: access.app,
            target: TargetId(target),
            op: access.op,
            offset,
            len,
        }
    }

    /// A request as traces have it, and whoever observes: with the target counted from the one that the file begins on. So
    /// files that are used alike look alike, and offsets tell where in the file they are.
    fn as_recorded(&self, file: &FileRef, request: Request) -> Request {
        Request { target: TargetId(self.layout.of(&**file).position(request.target.0)), ..request }
    }

    fn layout_of(&self, access: &Access<'_>) -> Layout {
        self.layout.of(&**access.file)
    }

    /// Start in the operation, target, offset in the target's file and length of each piece. All operations are cut at the
    /// same places: one of a single piece, which may be submitted between the pieces of another one, overlaps a single one
    /// of these, and so is before or after all of it.
    fn pieces(&self, access: &Access<'_>) -> impl Iterator<Item = (u64, u32, u64, u32)> {
        let (first, max, stripe) = (access.offset, self.piece_max, self.layout.stripe());
        self.layout_of(access).split(access.offset, access.len as u64).flat_map(move |piece| {
            let before = stripe.map_or(piece.offset, |stripe| piece.offset % stripe) % max;
            let end = before + piece.len;
            // Nearly always one, known without a division.
            let count = if end <= max { 1 } else { end.div_ceil(max) };
            (0..count).map(move |n| {
                let (at, end) = ((n * max).max(before) - before, ((n + 1) * max).min(end) - before);
                (piece.logical - first + at, piece.target, piece.offset + at, (end - at) as u32)
            })
        })
    }

    /// On one target: whether an operation, which is not empty, has several pieces.
    fn is_split(&self, access: &Access<'_>) -> bool {
        access.offset % self.piece_max + access.len as u64 > self.piece_max
    }

    fn admit(&self, bytes: u64) -> u32 {
        let ops = &self.service.ops;
        ops.admit(bytes).unwrap_or_else(|| self.service.blocking(|until| ops.wait_to_admit(bytes, until)))
    }

    /// Notes the path of a file that is used, if somebody wants to know.
    fn note(&self, file: &FileRef) {
        if self.names.on() {
            self.names.note(file.id(), || self.service.file_path(file));
        }
    }

    /// Sleeps until the operation has its result.
    fn wait_for(&self, slot: u32) -> io::Result<usize> {
        let ops = &self.service.ops;
        let take = || ops.slot(slot).state.lock().result.take();
        let result = take().unwrap_or_else(|| {
            self.service.blocking(|until| {
                loop {
                    let left = until.map(|until| nanos(until.saturating_duration_since(Instant::now())));
                    match take() {
                        None if left != Some(0) => park(left),
                        result => break result,
                    }
                }
            })
        });
        ops.free(slot);
        result.map_err(io::Error::from_raw_os_error)
    }
}

/// A logical request.
struct Access<'a> {
    file: &'a FileRef,
    app: AppId,
    op: Op,
    offset: u64,
    len: usize,
}

impl Access<'_> {
    /// Where it ends; `None` beyond what files can have.
    fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len as u64).filter(|&end| i64::try_from(end).is_ok())
    }

    /// Of one that ends somewhere.
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len as u64
    }
}

impl<H: Host> Drop for Volume<H> {
    fn drop(&mut self) {
        self.shutdown(Shutdown::Fail(libc::ECANCELED));
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests;
