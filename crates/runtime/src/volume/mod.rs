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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use sluice_core::{AppId, ConfigError, EngineConfig, FileId, Op, PolicyConfig, Predictor, Request, TargetId, Time};
use sluice_storage::{FileRef, Layout, Segment, Storage};
use sluice_trace::Meta;

mod execute;
mod job;
mod lane;
mod memory;
mod ops;
mod ring;
mod transfer;
mod workers;

use self::execute::{Caller, Counts, Inner};
use self::job::{Inside, thread_token};
use self::lane::Lane;
use self::memory::Buffers;
use self::ops::{Memory, OpPiece, Ops, Waiter, cookie};
use self::ring::Ring;
use self::transfer::Ended;
use self::workers::Workers as Threads;
use crate::clock::ClockKind;
use crate::names::FileNames;
use crate::record::{Observer, RecordError, RecordOptions, Recording, Tap};
use crate::runtime::{Driving, Runtime, RuntimeConfig, Shutdown, ShutdownReport, Snapshot, StartError, SubmitError};

/// Who asked for the I/O.
pub trait Host: Send + Sync + 'static {
    /// Belongs to one request and comes back with its result.
    type Ticket: Send + 'static;

    /// A request has ended. Called once for each, from any thread, perhaps inside the call that submitted it.
    ///
    /// It may submit again (on a full volume that waits for other requests). It should not take long: it is on the way of
    /// the device's next request.
    fn complete(&self, ticket: Self::Ticket, result: io::Result<Done<'_>>);
}

/// A request's success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done<'a> {
    /// The bytes read; fewer than asked for at the end of the file, or before an error.
    Read(&'a [u8]),
    /// Number of bytes written; fewer than given only before an error.
    Written(usize),
}

/// How many engines a volume has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engines {
    /// One for each target, or one for all if the policy at the start coordinates targets.
    #[default]
    Auto,
    /// One for each target.
    PerTarget,
    /// One for all.
    Shared,
}

/// Who executes what is not executed in the submitting thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Workers {
    /// The faster one in general: threads.
    #[default]
    Auto,
    /// A pool of threads.
    Threads,
    /// io_uring for files whose storage gives descriptors, if the system allows it; else threads.
    Ring,
}

/// Settings of a [`Volume`].
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Settings of each engine. With `in_flight_max` 0, as many batches as there can be workers are in flight: more would
    /// only queue behind the policy's back.
    pub engine: EngineConfig,
    /// The algorithm.
    pub policy: PolicyConfig,
    /// Number of engines.
    pub engines: Engines,
    /// Who executes.
    pub workers: Workers,
    /// Most worker threads, and most operations in the ring for each target. At least 1.
    pub threads_max: u32,
    /// Largest request given to an engine, in bytes; larger ones are split.
    pub request_bytes_max: u32,
    /// Most memory for data on its way, in bytes; requests beyond wait. One request may exceed it when it is alone.
    pub buffer_bytes_max: u64,
    /// Requests may be executed in the thread that submits them.
    pub inline: bool,
    /// Who drives the engines.
    pub driving: Driving,
    /// What times count from.
    pub clock: ClockKind,
}

impl VolumeConfig {
    /// The defaults, with this algorithm.
    #[must_use]
    pub fn new(policy: PolicyConfig) -> VolumeConfig {
        VolumeConfig {
            engine: EngineConfig::default(),
            policy,
            engines: Engines::default(),
            workers: Workers::default(),
            threads_max: 16,
            request_bytes_max: 1 << 20,
            buffer_bytes_max: 256 << 20,
            inline: true,
            driving: Driving::default(),
            clock: ClockKind::default(),
        }
    }
}

impl Default for VolumeConfig {
    /// With the table's first algorithm that lets requests through at once.
    fn default() -> VolumeConfig {
        let table = sluice_core::policy::table();
        let first = table.iter().find(|info| info.bypasses_queue).unwrap_or(&table[0]);
        VolumeConfig::new(PolicyConfig::parse(first.name).expect("a name from the table"))
    }
}

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
    pub passing: u32,
    /// Bytes of memory set aside for them.
    pub buffer_bytes: u64,
}

/// Scheduled I/O on the files of a storage. All methods may be called from any thread.
pub struct Volume<H: Host> {
    runtime: Runtime<Inner<H>>,
    inner: Arc<Inner<H>>,
    layout: Layout,
    shared: bool,
    piece_max: u64,
    in_flight_default: u32,
    workers: String,
    /// `None` where requests cannot go by the engine.
    lane: Option<Lane>,
    strict: bool,
    names: Arc<FileNames>,
}

impl<H: Host> Volume<H> {
    /// Starts the engines, and threads as they are needed.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(storage: Storage, host: Arc<H>, config: VolumeConfig) -> Result<Volume<H>, StartError> {
        let layout = storage.data.layout();
        let targets = layout.targets();
        let shared = match config.engines {
            Engines::Auto => config.policy.info().shared_engine,
            Engines::PerTarget => false,
            Engines::Shared => true,
        } || targets == 1;
        let threads_max = config.threads_max.max(1);
        let mut engine = config.engine.clone();
        let in_flight_default = if shared { threads_max.saturating_mul(targets) } else { threads_max };
        if engine.in_flight_max == 0 {
            engine.in_flight_max = in_flight_default;
        }
        let (ring, workers) = match config.workers {
            Workers::Auto | Workers::Threads => (None, "threads".to_owned()),
            Workers::Ring => match Ring::new(threads_max * targets * 2) {
                Ok(ring) => (Some(ring), "io_uring".to_owned()),
                Err(error) => (None, format!("threads (io_uring: {error})")),
            },
        };
        let has_lane = targets == 1 && config.inline && config.driving == Driving::Caller;
        let engine_config = engine.clone();
        let inner = Arc::new_cyclic(|me| Inner {
            storage,
            host,
            targets,
            ops: Ops::new(engine.capacity, config.buffer_bytes_max),
            buffers: Buffers::new(),
            // Each target can have its share under way.
            workers: Threads::new(threads_max.saturating_mul(targets).min(1024)),
            ring_active: AtomicBool::new(ring.is_some()),
            ring,
            inline: config.inline,
            counts: Counts::default(),
            spare: ArrayQueue::new(256),
            tap: Arc::new(Tap::new()),
            me: me.clone(),
        });
        let system = |source| StartError::System { what: "a thread", source };
        inner.workers.start_one(|| inner.spawn()).map_err(system)?;
        let runtime = Runtime::start_with(
            inner.tap.clone(),
            inner.clone(),
            RuntimeConfig {
                shards: if shared { 1 } else { targets as usize },
                engine,
                policy: config.policy,
                driving: config.driving,
                clock: config.clock,
                name: "sluice".to_owned(),
            },
        );
        let runtime = runtime.inspect_err(|_| inner.workers.stop())?;
        let lane = has_lane.then(|| Lane::new(&engine_config, runtime.snapshot().total.total().start));
        let volume = Volume {
            runtime,
            layout,
            shared,
            piece_max: u64::from(config.request_bytes_max.max(1)),
            in_flight_default,
            workers,
            lane,
            strict: engine_config.ordering == sluice_core::Ordering::Strict,
            names: Arc::new(FileNames::new(targets)),
            inner,
        };
        if let Some(ring) = &volume.inner.ring {
            ring.start_reaper(&volume.inner).map_err(system)?;
        }
        Ok(volume)
    }

    /// Reads `len` bytes at `offset`. The result goes to the host, perhaps before this returns. Waits while the volume is
    /// full.
    pub fn read(&self, file: &FileRef, app: AppId, offset: u64, len: u32, ticket: H::Ticket) {
        let what = What { file, app, op: Op::Read, offset, len: len as usize };
        if let Some(passing) = self.passing(&what) {
            return self.pass_read(&what, passing, ticket);
        }
        self.run(&what, None, Waiter::Ticket(ticket));
    }

    /// Writes `data` at `offset`. The result goes to the host, perhaps before this returns. Waits while the volume is full.
    /// The data is copied only if the request cannot be executed within the call.
    pub fn write(&self, file: &FileRef, app: AppId, offset: u64, data: &[u8], ticket: H::Ticket) {
        let what = What { file, app, op: Op::Write, offset, len: data.len() };
        if let Some(passing) = self.passing(&what) {
            let result = self.pass(&what, memory::borrow(data), &passing);
            self.passed(passing, ticket, result.map(Done::Written));
            return;
        }
        self.run(&what, Some(memory::borrow(data)), Waiter::Ticket(ticket));
    }

    /// Reads into `buffer` and waits for it. Returns the number of bytes read.
    ///
    /// # Errors
    /// The storage's, if nothing was read before it.
    pub fn read_at(&self, file: &FileRef, app: AppId, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let what = What { file, app, op: Op::Read, offset, len: buffer.len() };
        if let Some(passing) = self.passing(&what) {
            return self.pass(&what, memory::borrow_mut(buffer), &passing);
        }
        self.run(&what, Some(memory::borrow_mut(buffer)), Waiter::Thread(std::thread::current())).unwrap_or(Ok(0))
    }

    /// Writes `data` and waits for it. Returns the number of bytes written.
    ///
    /// # Errors
    /// The storage's, if nothing was written before it.
    pub fn write_at(&self, file: &FileRef, app: AppId, offset: u64, data: &[u8]) -> io::Result<usize> {
        let what = What { file, app, op: Op::Write, offset, len: data.len() };
        if let Some(passing) = self.passing(&what) {
            return self.pass(&what, memory::borrow(data), &passing);
        }
        self.run(&what, Some(memory::borrow(data)), Waiter::Thread(std::thread::current())).unwrap_or(Ok(0))
    }

    /// Waits until no request for this file that was submitted before is outstanding. For `fsync`, truncation and the like.
    /// Not from inside [`Host::complete`].
    pub fn wait_idle(&self, file: &FileRef) {
        if let Some(lane) = &self.lane {
            lane.close();
            lane.wait_empty();
            lane.open();
        }
        self.inner.ops.wait_idle(Some(file.id()));
    }

    /// The storage.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    /// Changes the algorithm, with requests queued and in flight.
    ///
    /// # Errors
    /// If the configuration cannot be used; nothing changes then.
    pub fn set_policy(&self, policy: &PolicyConfig) -> Result<(), ConfigError> {
        self.settled(|| self.runtime.set_policy(policy))
    }

    /// Takes over the *live* settings of `limits`: `max_wait_ns`, the bounds of a batch, and `in_flight_max` (0: as many
    /// as there can be workers).
    ///
    /// # Errors
    /// If one is out of range; nothing changes then.
    pub fn set_limits(&self, limits: &EngineConfig) -> Result<(), ConfigError> {
        let in_flight_max = if limits.in_flight_max == 0 { self.in_flight_default } else { limits.in_flight_max };
        self.settled(|| self.runtime.set_limits(&EngineConfig { in_flight_max, ..limits.clone() }))
    }

    /// The settings in force.
    #[must_use]
    pub fn limits(&self) -> EngineConfig {
        self.settled(|| self.runtime.limits())
    }

    /// The algorithm.
    #[must_use]
    pub fn policy(&self) -> PolicyConfig {
        self.runtime.policy()
    }

    /// A file was opened: its path may be another one than the number's owner had before. Costs nothing while nobody
    /// records or predicts.
    pub fn opened(&self, file: &FileRef) {
        if self.names.on() {
            self.names.renew(file.id(), || self.inner.storage.namespace.file_path(file));
        }
    }

    /// The paths of files, while somebody [watches](FileNames::watch) them.
    #[must_use]
    pub fn names(&self) -> &Arc<FileNames> {
        &self.names
    }

    /// Records every request from now on in a new trace file, piece by piece as the engines see them. `source`: where it
    /// was recorded, for people.
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
            emulated: self.inner.storage.data.emulated(),
            source: source.to_owned(),
            policy: self.policy().name().to_owned(),
            checksums: options.checksums,
            ..Meta::default()
        };
        self.runtime.tap.record_to(path, meta, self.runtime.clock(), Some(self.names.clone()))
    }

    /// Ends the recording. All that was submitted before is in the file then.
    ///
    /// # Errors
    /// If there was none, or the file could not be written.
    pub fn stop_recording(&self) -> Result<Recording, RecordError> {
        self.runtime.stop_recording()
    }

    /// The recording that is running.
    #[must_use]
    pub fn recording(&self) -> Option<Recording> {
        self.runtime.recording()
    }

    /// Tells an observer of every request from now on.
    ///
    /// # Errors
    /// If there is one already, or the system refuses a thread.
    pub fn observe(&self, observer: Box<dyn Observer>) -> Result<(), RecordError> {
        self.runtime.watch.observe(observer, self.runtime.clock(), Some(self.names.clone()))
    }

    /// Ends the observation. The observer has heard of everything before.
    ///
    /// # Errors
    /// If there was none.
    pub fn end_observation(&self) -> Result<(), RecordError> {
        self.runtime.watch.stop().map(drop)
    }

    /// Gives each engine a predictor, or none. Whoever predicts by path watches the [names](Volume::names) before.
    pub fn set_predictors(&self, make: impl FnMut(usize) -> Option<Box<dyn Predictor>>) {
        self.settled(|| self.runtime.set_predictors(make));
    }

    /// Copies the state.
    #[must_use]
    pub fn snapshot(&self) -> VolumeSnapshot {
        let inner = &self.inner;
        let passing = self.lane.as_ref().map_or(0, Lane::inside);
        let mut runtime = self.settled(|| self.runtime.snapshot());
        if let Some(lane) = &self.lane {
            // There is one shard: it is the total.
            lane.add_to(runtime.at, &mut runtime.total);
            runtime.shards[0].stats = runtime.total.clone();
        }
        VolumeSnapshot {
            runtime,
            storage: inner.storage.data.describe(),
            emulated: inner.storage.data.emulated(),
            workers: self.workers.clone(),
            threads: inner.workers.threads(),
            by_caller: inner.counts.caller.load(Ordering::Relaxed) + self.lane.as_ref().map_or(0, Lane::passed),
            by_threads: inner.counts.threads.load(Ordering::Relaxed),
            by_ring: inner.counts.ring.load(Ordering::Relaxed),
            outstanding: inner.ops.outstanding() + passing as usize,
            passing,
            buffer_bytes: inner.ops.bytes(),
        }
    }

    /// The runtime below, for trace events and the clock.
    #[must_use]
    pub fn runtime(&self) -> &Runtime<impl crate::Executor + use<H>> {
        &self.runtime
    }

    /// Ends the volume: what was accepted is executed or failed, and every host was told when this returns. Requests after
    /// it fail with `ESHUTDOWN`. Not from inside [`Host::complete`].
    pub fn shutdown(&self, how: Shutdown) -> ShutdownReport {
        if let Some(lane) = &self.lane {
            // For good: from now on the runtime answers.
            lane.close();
            lane.wait_empty();
        }
        let mut report = self.settled(|| self.runtime.shutdown(how));
        // The storage returns from every call, so what is in flight ends.
        self.inner.ops.wait_idle(None);
        report.in_flight = 0;
        if let Some(ring) = &self.inner.ring {
            self.inner.ring_active.store(false, Ordering::SeqCst);
            ring.stop();
        }
        self.inner.workers.stop();
        report
    }

    /// Does something that may drive engines on this thread.
    fn settled<R>(&self, action: impl FnOnce() -> R) -> R {
        let inside = Inside::enter(self.inner.address());
        let result = action();
        if inside.outermost() {
            self.inner.run_collected(Caller::Passer);
        }
        result
    }

    // ---- submitting ------------------------------------------------------------------------------------------

    /// The way of every request. `memory`: what is written, or where to read to for a waiting thread.
    fn run(&self, what: &What<'_>, memory: Option<Segment>, waiter: Waiter<H::Ticket>) -> Option<io::Result<usize>> {
        let inner = &*self.inner;
        let waits = matches!(waiter, Waiter::Thread(_));
        if what.len == 0 || what.end().is_none() {
            let result = if what.len == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) };
            if let Waiter::Ticket(ticket) = waiter {
                let done = if what.op == Op::Read { Done::Read(&[]) } else { Done::Written(0) };
                inner.host.complete(ticket, result.map(|()| done));
                return None;
            }
            return Some(result.map(|()| 0));
        }
        let inside = Inside::enter(inner.address());
        let outermost = inside.outermost();
        let time = self.runtime.time();
        let summed = time.filter(|_| self.runtime.tap.wants_sums());
        let slot = self.admit(if waits { 0 } else { what.len as u64 });
        let pieces = {
            let mut state = inner.ops.slot(slot).state.lock();
            state.file = Some(what.file.clone());
            (state.op, state.offset, state.len, state.waiter) = (what.op, what.offset, what.len, waiter);
            state.memory = match memory {
                None => Memory::Pooled(inner.buffers.take(what.len)),
                Some(raw) if waits => Memory::Borrowed(raw),
                Some(raw) => Memory::Lent(raw, thread_token()),
            };
            for (start, target, offset, len) in self.pieces(what) {
                state.pieces.push(OpPiece { start, len, ended: Ended::default() });
                if let Some(time) = summed.filter(|_| what.op == Op::Read) {
                    state.recorded.0 = time;
                    state.recorded.1.push(self.request(what, 0, (target, offset, len)));
                }
            }
            state.pieces.len()
        };
        inner.ops.open(slot, what.file.id(), pieces as u32 + 1);
        // The slot is taken, so nobody new enters the lane.
        if let Some(lane) = self.lane.as_ref().filter(|lane| self.strict && !lane.is_empty()) {
            self.blocking(|| lane.wait_empty());
        }
        self.note(what.file);
        for (at, (start, target, offset, len)) in self.pieces(what).enumerate() {
            if let (Some(time), Op::Write, Some(data)) = (summed, what.op, memory) {
                let request = self.request(what, 0, (target, offset, len));
                let sum = memory::checksum(data.part(start as usize, len as usize));
                self.runtime.tap.record_summed(time, &request, sum, len);
            }
            self.submit(
                self.request(what, cookie(slot, at), (target, offset, len)),
                self.inner.storage.data.never_waits(what.file),
                time,
            );
        }
        let shard = if self.shared { 0 } else { self.layout.locate(what.offset).0 as usize };
        if outermost {
            inner.run_collected(Caller::Submitter { slot, waits, bypass: self.runtime.bypasses_queue(shard) });
        }
        if memory.is_some() && !waits {
            inner.take_lent(slot);
        }
        if inner.drop_pending(slot).is_some() {
            inner.finish(slot);
        }
        if outermost {
            // What the host submitted when it was told.
            inner.run_collected(Caller::Passer);
        }
        waits.then(|| self.wait_for(slot, outermost))
    }

    /// The request for a piece: target, offset in the target's file, length.
    fn request(&self, what: &What<'_>, cookie: u64, (target, offset, len): (u32, u64, u32)) -> Request {
        let targets = u64::from(self.inner.targets);
        Request {
            cookie,
            file: FileId(what.file.id().wrapping_mul(targets).wrapping_add(u64::from(target))),
            app: what.app,
            target: TargetId(target),
            op: what.op,
            offset,
            len,
        }
    }

    /// Start in the operation, target, offset in the target's file and length of each piece.
    fn pieces(&self, what: &What<'_>) -> impl Iterator<Item = (u64, u32, u64, u32)> {
        let (first, max) = (what.offset, self.piece_max);
        self.layout.split(what.offset, what.len as u64).flat_map(move |piece| {
            (0..piece.len.div_ceil(max)).map(move |n| {
                let at = n * max;
                (piece.logical - first + at, piece.target, piece.offset + at, (piece.len - at).min(max) as u32)
            })
        })
    }

    fn admit(&self, bytes: u64) -> u32 {
        let ops = &self.inner.ops;
        if let Some(slot) = ops.admit(bytes) {
            return slot;
        }
        let mut slot = None;
        self.blocking(|| {
            ops.room.wait(None, || {
                slot = ops.admit(bytes);
                slot.is_some()
            })
        });
        slot.expect("waited for it")
    }

    /// Notes the path of a file that is used, if somebody wants to know.
    fn note(&self, file: &FileRef) {
        if self.names.on() {
            self.names.note(file.id(), || self.inner.storage.namespace.file_path(file));
        }
    }

    /// `anywhere`: it does not matter which thread executes the request. `time`: when it came, if it is recorded.
    fn submit(&self, request: Request, anywhere: bool, time: Option<Time>) {
        let shard = if self.shared { 0 } else { request.target.0 as usize };
        loop {
            let submitted = match self.runtime.bypasses_queue(shard) && !anywhere {
                true => self.runtime.try_submit_here(shard, request, time),
                false => self.runtime.try_submit_at(shard, request, time),
            };
            let errno = match submitted {
                Ok(()) => return,
                Err(SubmitError::Full(_)) if self.blocking(|| self.runtime.wait_for_room(shard)) => continue,
                Err(SubmitError::Full(_)) => libc::EAGAIN,
                Err(SubmitError::RangeOverflow) => libc::EINVAL,
                Err(SubmitError::Closed) => libc::ESHUTDOWN,
            };
            // Never the last one: the call itself is pending.
            self.inner.end_piece(request.cookie, Ended { bytes: 0, errno });
            return;
        }
    }

    /// Waits for what other threads do. They get what this thread still has to do, and may be one more meanwhile.
    fn blocking<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.inner.run_collected(Caller::Passer);
        self.inner.workers.blocking(wait)
    }

    /// Sleeps until the operation has its result.
    fn wait_for(&self, slot: u32, outermost: bool) -> io::Result<usize> {
        let take = || self.inner.ops.slot(slot).state.lock().result.take();
        let wait = || loop {
            match take() {
                Some(result) => break result,
                None => std::thread::park(),
            }
        };
        let result = match take() {
            Some(result) => result,
            None if outermost => wait(),
            None => self.blocking(wait),
        };
        self.inner.ops.close(slot);
        result.map_err(io::Error::from_raw_os_error)
    }
}

/// A logical request.
struct What<'a> {
    file: &'a FileRef,
    app: AppId,
    op: Op,
    offset: u64,
    len: usize,
}

impl What<'_> {
    /// Where it ends; `None` beyond what files can have.
    fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len as u64).filter(|&end| i64::try_from(end).is_ok())
    }
}

impl<H: Host> Drop for Volume<H> {
    fn drop(&mut self) {
        self.shutdown(Shutdown::Fail(libc::ECANCELED));
    }
}
