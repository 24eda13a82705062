//! Executing what the engines dispatch, and what follows from it.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use rustix::io::Errno;
use sluice_core::{Batch, Op, Outcome, Part, Request, RequestId, TargetId};
use sluice_storage::{Direction, FileRef, Segment, Started, Storage, Transfer, TransferDone};

use super::device_speed::DeviceSpeed;
use super::flights::Flights;
use super::host::Host;
use super::memory::{self, Buffers};
use super::ops::{Memory, Operation, Ops, of_cookie};
use super::ring::{self, Ring, RingRequest};
use super::transfer::{Ended, transfer};
use super::workers::{Spawned, Workers};
use crate::client::{self, Completer, Executor};
use crate::effects::{Effect, Effects, InCallback, telling_later};
use crate::gate::Gate;
use crate::parked::{Owners, Parked, before_locking, before_waiting, owner};
use crate::record::Tap;
use crate::shard::{TURN, reuse_effects, take_effects};
use crate::striped::{Striped, thread_number};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{ArrayQueue, spawn};

/// Requests whose ends are reported together, where the device is fast: their submitters should not wait long.
const TOGETHER_MAX: usize = 8;

/// Batches by who executed them.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) caller: Striped,
    pub(super) threads: Striped,
    /// Given to the ring, or to the storage to end by itself.
    pub(super) asynchronous: AtomicU64,
}

/// A dispatched batch on its way to the thread that executes it.
pub(super) struct Job {
    parts: Vec<Part>,
    /// What the first call on its first extent gave already, where somebody else made it (the ring, the storage).
    first: Option<io::Result<usize>>,
}

/// What a volume executes with.
pub(super) struct Service<H: Host> {
    pub(super) storage: Storage,
    pub(super) host: Arc<H>,
    pub(super) targets: u32,
    pub(super) ops: Ops<H::Ticket>,
    pub(super) buffers: Buffers,
    pub(super) workers: Workers<Job>,
    pub(super) ring: Option<Arc<Ring<Job>>>,
    /// Batches that the storage ends by itself.
    flights: Flights<Job>,
    /// The storage can do that, as far as is known.
    is_asynchronous: AtomicBool,
    pub(super) speed: DeviceSpeed,
    /// Files are being cut to what a failed write moved: new operations wait.
    pub(super) trimming: AtomicU32,
    /// Hosts to be told of operations that have ended.
    pub(super) telling: Striped,
    pub(super) all_told: Gate,
    pub(super) trimmed: Gate,
    /// Requests may be executed in the thread that submits them.
    pub(super) inline: bool,
    pub(super) counts: Counts,
    spare: ArrayQueue<Vec<Part>>,
    /// For reads of which a recording wants checksums.
    pub(super) tap: Arc<Tap>,
    /// One for each engine; set once, at the start.
    completers: OnceLock<Owners>,
    pub(super) me: Weak<Service<H>>,
    /// The system refuses threads.
    #[cfg(test)]
    pub(super) refused: AtomicBool,
}

/// What a [`Service`] is made of.
pub(super) struct Parts<H: Host> {
    pub(super) storage: Storage,
    pub(super) host: Arc<H>,
    pub(super) ops: Ops<H::Ticket>,
    pub(super) threads_max: u32,
    pub(super) ring: Option<Arc<Ring<Job>>>,
    pub(super) inline: bool,
    pub(super) tap: Arc<Tap>,
}

/// Lists reused from job to job.
#[derive(Default)]
pub(super) struct Scratch {
    parts: Vec<Segment>,
    slices: Vec<Segment>,
    pub(super) ended: Vec<Ended>,
    /// Parts that were executed and whose ends, in `ended`, are still to be reported.
    unreported: Vec<Part>,
    /// Batches that a submitter has executed so far.
    executed: u32,
    pub(super) outcomes: Vec<(RequestId, Outcome)>,
    pub(super) finished: Vec<u32>,
}

crate::sync::thread_cell! {
    /// This thread is giving a transfer to the storage, and may have others to start yet.
    static STARTING: Cell<bool> = Cell::new(false);
}

crate::sync::thread_cell! {
    /// The operation whose submitting call this thread is in, and has nothing to add to: its service, by address, and its slot.
    static CALL: Cell<Option<(usize, u32)>> = Cell::new(None);
}

crate::sync::thread_cell! {
    #[allow(clippy::vec_box)] // they are large, and go in and out
    static SCRATCH: RefCell<Vec<Box<Scratch>>> = RefCell::new(Vec::new());
}

/// What a call of the storage gives, or this if it panics.
pub(super) fn guarded<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        tracing::error!("the storage panicked");
        otherwise
    })
}

fn take_scratch() -> Box<Scratch> {
    let spare = SCRATCH.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
    let mut scratch = spare.unwrap_or_default();
    scratch.ended.clear();
    scratch.executed = 0;
    scratch
}

fn reuse_scratch(scratch: Box<Scratch>) {
    let _ = SCRATCH.try_with(|spare| spare.borrow_mut().push(scratch));
}

/// Requests of one file that follow each other in a batch: what one system call can do.
struct Extent {
    file: FileRef,
    /// The first part behind it.
    end: usize,
    /// Through several handles (of which the first is used).
    mixed: bool,
}

/// On whose thread effects are seen to.
#[derive(Clone, Copy)]
pub(super) enum Caller {
    /// The submitter of the operation in this slot.
    Submitter {
        slot: u32,
        /// It will wait for the operation anyway.
        waits: bool,
        /// The policy lets everything through at once.
        bypass: bool,
    },
    /// Somebody who is not to wait for a device.
    Other,
    Worker,
}

/// The volume as its engines know it. It does not keep the service alive.
pub(super) struct Dispatched<H: Host>(pub(super) Weak<Service<H>>);

impl<H: Host> Executor for Dispatched<H> {
    fn start(&self, batch: &Batch, _: &client::Started<'_>) {
        if let Some(service) = self.0.upgrade() {
            service.hand_over(batch.parts());
        }
    }

    fn cancelled(&self, request: &Request, errno: i32) {
        if let Some(service) = self.0.upgrade() {
            service.end_cancelled(request, errno);
        }
    }
}

/// Hears of transfers that the storage has ended by itself.
struct Landed<H: Host>(Weak<Service<H>>);

impl<H: Host> TransferDone for Landed<H> {
    fn done(&self, token: u64, _: Vec<Segment>, result: io::Result<usize>) {
        if let Some(service) = self.0.upgrade()
            && let Some(job) = service.flights.take(token)
        {
            service.landed(job, result);
        }
    }
}

impl<H: Host> Service<H> {
    pub(super) fn new(parts: Parts<H>) -> Arc<Service<H>> {
        let targets = parts.storage.data.layout().targets();
        Arc::new_cyclic(|me| Service {
            targets,
            ops: parts.ops,
            buffers: Buffers::new(),
            workers: Workers::new(parts.threads_max),
            ring: parts.ring,
            flights: Flights::default(),
            is_asynchronous: AtomicBool::new(true),
            speed: DeviceSpeed::default(),
            trimming: AtomicU32::new(0),
            telling: Striped::default(),
            all_told: Gate::default(),
            trimmed: Gate::default(),
            inline: parts.inline,
            counts: Counts::default(),
            spare: ArrayQueue::new(256),
            tap: parts.tap,
            completers: OnceLock::new(),
            me: me.clone(),
            storage: parts.storage,
            host: parts.host,
            #[cfg(test)]
            refused: AtomicBool::new(false),
        })
    }

    /// Learns who reports to the engines. Once, before anything is submitted.
    pub(super) fn connect(&self, completers: Owners) {
        let first = self.completers.set(completers).is_ok();
        debug_assert!(first, "a service is connected once");
    }

    fn completers(&self) -> &Owners {
        self.completers.get().expect("connected before anything is submitted")
    }

    /// Reports to the engine of a target.
    pub(super) fn completer(&self, target: u32) -> &Completer {
        owner(self.completers(), TargetId(target))
    }

    /// Calls hosts. While one waits in there others get what was dispatched here.
    pub(super) fn parking(&self, effects: &mut Effects<Completer>, tell: impl FnOnce()) {
        let parked = (!effects.is_empty()).then(|| Parked::put(self.completers(), std::mem::take(effects)));
        tell();
        if let Some(parked) = parked {
            *effects = parked.take();
        }
    }

    // ---- the submitting call ---------------------------------------------------------------------------------

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Settles the effects of submitting the operation in `slot`, and ends the call. Before a
    /// host is told of anything in there: it may wait for this very operation, or the memory that it has.
    pub(super) fn settle_call(&self, caller: Caller, slot: u32, effects: &mut Effects<Completer>) {
        let outer = CALL.with(|call| call.replace(Some((self.address(), slot))));
        self.settle(effects, caller);
        let ended = self.end_call();
        CALL.with(|call| call.set(outer));
        if let Some(slot) = ended {
            self.finish(slot);
        }
    }

    /// Ends the submitting call that this thread is in, if it has not ended. Gives the slot if nothing is left of it.
    pub(super) fn end_call(&self) -> Option<u32> {
        let (service, slot) = CALL.with(Cell::get)?;
        if service != self.address() {
            return None;
        }
        CALL.with(|call| call.set(None));
        self.take_lent(slot);
        self.drop_pending(slot)
    }

    // ---- who executes ----------------------------------------------------------------------------------------

    /// Sees to what was dispatched on this thread: executes it or hands it over, until nothing is left.
    pub(super) fn settle(&self, effects: &mut Effects<Completer>, caller: Caller) {
        if effects.is_empty() {
            return;
        }
        let mut scratch = take_scratch();
        loop {
            // Before anything is taken out of the list: while a host is told, others must get all that is dispatched here.
            if !scratch.unreported.is_empty() && !self.goes_with(effects, caller, &scratch) {
                self.report(&mut scratch, effects);
            }
            match effects.pop_own() {
                Some(Effect::Start(batch)) => {
                    self.start(batch.parts(), effects, caller, &mut scratch);
                    effects.reuse(batch);
                }
                Some(Effect::Cancel(refused)) => self.parking(effects, || self.cancel(&refused.0, refused.1)),
                None => break,
            }
        }
        reuse_scratch(scratch);
    }

    /// As [`Service::settle`] for a thread that is about to wait with locks held: hands everything over, and leaves telling
    /// hosts for later.
    pub(super) fn hand_over_all(&self, effects: &mut Effects<Completer>, later: &mut Vec<(Request, i32)>) {
        while let Some(effect) = effects.pop_own() {
            match effect {
                Effect::Start(batch) => {
                    // Not to the storage, which may end it in the call.
                    self.to_thread(self.job(batch.parts()));
                    effects.reuse(batch);
                }
                Effect::Cancel(refused) => later.push(*refused),
            }
        }
    }

    /// The next batch is to be executed here, and its end may be reported together with those that are not reported yet.
    fn goes_with(&self, effects: &Effects<Completer>, caller: Caller, scratch: &Scratch) -> bool {
        let (Some(Effect::Start(batch)), Some(other)) = (effects.first(), scratch.unreported.first()) else {
            return false;
        };
        let Request { op, target, .. } = batch.parts()[0].request;
        let elsewhere = self.targets > 1 && other.request.target != target;
        !elsewhere
            && self.speed.is_fast(op)
            && self.may_execute(batch.parts(), effects.len() - 1, caller, scratch.executed >= TURN)
    }

    fn start(&self, parts: &[Part], effects: &mut Effects<Completer>, caller: Caller, scratch: &mut Scratch) {
        scratch.executed = scratch.executed.saturating_add(1);
        // What ends lets others' requests go, as long as there are any.
        let held_up = scratch.executed > TURN;
        // With ends that are still to be reported that was found out a moment ago.
        if !scratch.unreported.is_empty() || self.may_execute(parts, effects.len(), caller, held_up) {
            self.counts.caller.increase();
            return self.execute_as_submitter(parts, effects, scratch);
        }
        match caller {
            Caller::Worker if effects.is_empty() => self.execute_as_worker(parts, None, effects),
            Caller::Submitter { .. }
                if self.inline && !held_up && !InCallback::is_deep() && self.execute_cached(parts, effects) => {}
            Caller::Submitter { .. } | Caller::Worker | Caller::Other => self.hand_over(parts),
        }
    }

    /// May the submitter execute this batch, and block in it? `more`: batches that would have to wait for that. `held_up`:
    /// it has executed enough for others.
    fn may_execute(&self, parts: &[Part], more: usize, caller: Caller, held_up: bool) -> bool {
        let Caller::Submitter { slot, waits, bypass } = caller else { return false };
        if !self.inline || InCallback::is_deep() {
            return false;
        }
        let first = &parts[0].request;
        let own = more == 0 && parts.iter().all(|part| of_cookie(part.request.cookie).0 == slot);
        if own && waits {
            return true;
        }
        if !held_up && self.speed.allows(first.op, more + 1) {
            return true;
        }
        let file = self.ops.slot(of_cookie(first.cookie).0).state.lock().file.clone();
        let Some(file) = file else { return false };
        // Nothing emulated waits in a plain descriptor.
        (!held_up && self.never_waits(&file))
            || (own && bypass && !self.speed.is_slow(first.op) && self.descriptor(&file, first.target.0).is_some())
    }

    // ---- what the storage says; a panic of it is a no ----------------------------------------------------------

    pub(super) fn never_waits(&self, file: &FileRef) -> bool {
        guarded(false, || self.storage.data.never_waits(file))
    }

    pub(super) fn descriptor(&self, file: &FileRef, target: u32) -> Option<Arc<OwnedFd>> {
        guarded(None, || self.storage.data.descriptor(file, target as usize))
    }

    pub(super) fn file_path(&self, file: &FileRef) -> Option<Vec<u8>> {
        guarded(None, || self.storage.namespace.file_path(file))
    }

    /// See [`sluice_storage::Data::size_at_least`].
    pub(super) fn size_at_least(&self, file: &FileRef, end: u64) -> Result<u64, i32> {
        let size = guarded(Err(Errno::IO.into()), || self.storage.data.size_at_least(file, end));
        size.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    // ---- handing over ----------------------------------------------------------------------------------------

    /// To the storage, the ring or another thread.
    fn hand_over(&self, parts: &[Part]) {
        if let Some(job) = self.start_asynchronously(self.job(parts)) {
            self.to_thread(job);
        }
    }

    fn job(&self, parts: &[Part]) -> Job {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(parts);
        Job { parts: copy, first: None }
    }

    fn to_thread(&self, job: Job) {
        self.workers.push(job, || self.spawn());
    }

    pub(super) fn spawn(&self) -> Spawned {
        #[cfg(test)]
        if self.refused.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let me = self.me.clone();
        spawn("sluice-io", move || {
            if let Some(service) = me.upgrade() {
                service.work();
            }
        })
    }

    fn work(&self) {
        while let Some(job) = self.workers.next() {
            self.execute_job(job);
        }
    }

    fn execute_job(&self, mut job: Job) {
        let mut effects = take_effects();
        self.execute_as_worker(&job.parts, job.first.take(), &mut effects);
        self.reuse(job.parts);
        self.settle(&mut effects, Caller::Worker);
        reuse_effects(effects);
    }

    /// Where the device is fast the ends of several batches are reported together: each report takes the engine.
    fn execute_as_submitter(&self, parts: &[Part], effects: &mut Effects<Completer>, scratch: &mut Scratch) {
        let fast = self.speed.is_fast(parts[0].request.op);
        if scratch.unreported.is_empty() && (!fast || effects.is_empty()) {
            return self.execute(parts, None, true, effects);
        }
        self.run(parts, None, true, effects, scratch);
        scratch.unreported.extend_from_slice(parts);
        if scratch.unreported.len() >= TOGETHER_MAX {
            self.report(scratch, effects);
        }
    }

    /// Reports what was executed and not reported yet.
    fn report(&self, scratch: &mut Scratch, effects: &mut Effects<Completer>) {
        if scratch.unreported.is_empty() {
            return;
        }
        let mut parts = std::mem::take(&mut scratch.unreported);
        self.end_parts(&parts, scratch, effects, Some(effects.time));
        scratch.ended.clear();
        parts.clear();
        scratch.unreported = parts;
    }

    fn execute_as_worker(&self, parts: &[Part], first: Option<io::Result<usize>>, effects: &mut Effects<Completer>) {
        self.counts.threads.increase();
        self.execute(parts, first, false, effects);
    }

    fn reuse(&self, mut parts: Vec<Part>) {
        parts.clear();
        let _ = self.spare.push(parts);
    }

    /// Runs `wait`, in which this thread waits for what others do, at most until the time that it is given; again if it did so
    /// in vain (`None`). One more thread may be there meanwhile.
    pub(super) fn blocking<R>(&self, mut wait: impl FnMut(Option<Instant>) -> Option<R>) -> R {
        before_waiting();
        let help = |job| self.execute_job(job);
        ring::blocking(|work| work(), |until| self.workers.blocking(|| self.spawn(), help, until, &mut wait))
    }

    /// As [`Service::blocking`] for a thread that has an operation admitted and not submitted yet: a host that it would call
    /// might wait for what that operation has. [`tell_late`](crate::effects::tell_late) must follow.
    pub(super) fn blocking_inside<R>(&self, wait: impl FnMut(Option<Instant>) -> Option<R>) -> R {
        before_locking();
        self.blocking_with_lock(wait)
    }

    /// As [`Service::blocking_inside`] for a thread that holds a lock.
    pub(super) fn blocking_with_lock<R>(&self, mut wait: impl FnMut(Option<Instant>) -> Option<R>) -> R {
        let help = |job| telling_later(|| self.execute_job(job));
        ring::blocking(
            |work| telling_later(work),
            |until| self.workers.blocking(|| self.spawn(), help, until, &mut wait),
        )
    }

    // ---- without a thread ------------------------------------------------------------------------------------

    /// Gives a job to the storage or the ring, or back: neither takes it.
    fn start_asynchronously(&self, job: Job) -> Option<Job> {
        if self.is_asynchronous.load(Ordering::Relaxed) {
            return self.start_at_storage(job);
        }
        let Some(ring) = &self.ring else { return Some(job) };
        let request = job.parts[0].request;
        let mut segments = Vec::new();
        let extent = self.gather(&job.parts, 0, false, &mut segments);
        if extent.end < job.parts.len() {
            return Some(job);
        }
        let Some(fd) = self.descriptor(&extent.file, request.target.0) else { return Some(job) };
        match ring.start(RingRequest { fd, op: request.op, offset: request.offset, segments }, job) {
            Ok(()) => {
                self.counts.asynchronous.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err((_, job)) => Some(job),
        }
    }

    fn start_at_storage(&self, job: Job) -> Option<Job> {
        let request = job.parts[0].request;
        let mut segments = Vec::new();
        let extent = self.gather(&job.parts, 0, false, &mut segments);
        if extent.end < job.parts.len() {
            return Some(job);
        }
        let direction = match request.op {
            Op::Read => Direction::Read,
            Op::Write => Direction::Write,
        };
        let done: Arc<dyn TransferDone> = Arc::new(Landed(self.me.clone()));
        let token = self.flights.put(job);
        let place = (extent.file, request.target.0 as usize);
        let transfer = Transfer::new(place, direction, request.offset, segments, (done, token));
        // A transfer that is dropped in a panic has ended, with an error.
        let before = STARTING.with(|starting| starting.replace(true));
        let started = guarded(Started::Accepted, || self.storage.data.start(transfer));
        STARTING.with(|starting| starting.set(before));
        match started {
            Started::Accepted => {
                self.counts.asynchronous.fetch_add(1, Ordering::Relaxed);
                None
            }
            Started::Unsupported(transfer) => {
                let _ = transfer.take_back();
                // One that has never taken anything never will.
                if self.counts.asynchronous.load(Ordering::Relaxed) == 0 {
                    self.is_asynchronous.store(false, Ordering::Relaxed);
                }
                self.flights.take(token)
            }
        }
    }

    /// A job's first call has ended, made by the storage or the ring.
    pub(super) fn landed(&self, mut job: Job, result: io::Result<usize>) {
        let want: usize = job.parts.iter().map(|part| part.request.len as usize).sum();
        match result {
            // It may come inside the call that gave the transfer to the storage, and so inside a host's. No host is told in
            // there: it might wait for what this thread is to start next.
            Ok(moved) if moved >= want && !InCallback::is_deep() && !STARTING.with(Cell::get) => {
                return self.end_whole(job);
            }
            // A thread finds out what the rest is about.
            Ok(moved) => job.first = Some(Ok(moved)),
            Err(error) => {
                let again = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ECANCELED));
                job.first = (!again).then_some(Err(error));
            }
        }
        self.to_thread(job);
    }

    /// All parts of a job moved all their bytes.
    fn end_whole(&self, job: Job) {
        let (mut scratch, mut effects) = (take_scratch(), take_effects());
        scratch.ended.extend(job.parts.iter().map(|part| Ended { bytes: part.request.len, errno: 0 }));
        self.end_parts(&job.parts, &mut scratch, &mut effects, None);
        self.reuse(job.parts);
        reuse_scratch(scratch);
        self.settle(&mut effects, Caller::Other);
        reuse_effects(effects);
    }

    // ---- executing -------------------------------------------------------------------------------------------

    /// Executes a batch and reports its end. `lender`: on the thread that submitted, whose data need not be copied.
    fn execute(
        &self,
        parts: &[Part],
        first: Option<io::Result<usize>>,
        lender: bool,
        effects: &mut Effects<Completer>,
    ) {
        let mut scratch = take_scratch();
        self.run(parts, first, lender, effects, &mut scratch);
        self.end_parts(parts, &mut scratch, effects, Some(effects.time));
        reuse_scratch(scratch);
    }

    /// Executes a batch, and adds how its parts ended to `scratch`.
    fn run(
        &self,
        parts: &[Part],
        first: Option<io::Result<usize>>,
        lender: bool,
        effects: &mut Effects<Completer>,
        scratch: &mut Scratch,
    ) {
        let shard = &self.completer(parts[0].request.target.0).shard;
        // Where the submitter executes, the turn that dispatched began a moment ago: that saves a look at the clock.
        let start = first.is_none().then(|| if lender { effects.time } else { shard.now() });
        let before = scratch.ended.len();
        // Whatever goes wrong in there, the thread lives and the requests end.
        if catch_unwind(AssertUnwindSafe(|| self.transfer_all(parts, first, lender, scratch))).is_err() {
            tracing::error!(requests = parts.len(), "a panic while a batch was executed; it fails");
            scratch.ended.truncate(before);
            scratch.ended.resize(before + parts.len(), Ended { bytes: 0, errno: libc::EIO });
        }
        effects.time = shard.now();
        if let Some(start) = start {
            let bytes = parts.iter().map(|part| u64::from(part.request.len)).sum();
            self.speed.note(effects.time.since(start), bytes, parts[0].request.op);
        }
    }

    /// Moves the bytes of a batch and notes how each part ended.
    fn transfer_all(&self, parts: &[Part], mut first: Option<io::Result<usize>>, lender: bool, scratch: &mut Scratch) {
        let (mut from, before) = (0, scratch.ended.len());
        while from < parts.len() {
            let extent = self.gather(parts, from, lender, &mut scratch.parts);
            let request = parts[from].request;
            let Scratch { parts: memory, slices, ended, .. } = &mut *scratch;
            let mut io = |slices: &mut [Segment], at| {
                first.take().unwrap_or_else(|| self.call(&extent.file, &request, slices, at))
            };
            transfer(memory, request.offset, request.op == Op::Write, slices, &mut io, ended);
            // An error may come from the handle that was used.
            let own = &mut ended[before + from..before + extent.end];
            let failed = parts[from..extent.end].iter().zip(own).filter(|(_, ended)| ended.errno != 0);
            if extent.mixed {
                failed.for_each(|(part, ended)| self.redo(part, lender, ended));
            }
            from = extent.end;
        }
    }

    /// Reads what is in the page cache at once, and reports the end; false if that was not possible.
    fn execute_cached(&self, parts: &[Part], effects: &mut Effects<Completer>) -> bool {
        let request = parts[0].request;
        if request.op != Op::Read {
            return false;
        }
        let mut scratch = take_scratch();
        let extent = self.gather(parts, 0, true, &mut scratch.parts);
        let mut hit = false;
        if extent.end == parts.len() {
            let mut missed = false;
            let target = request.target.0 as usize;
            let Scratch { parts: memory, slices, ended, .. } = &mut *scratch;
            let mut io = |slices: &mut [Segment], at: u64| {
                let try_read = || self.storage.data.try_read(&extent.file, target, at, Segment::for_read(slices));
                let read = if missed { None } else { guarded(Ok(None), try_read)? };
                missed |= read.is_none();
                read.ok_or_else(|| Errno::AGAIN.into())
            };
            transfer(memory, request.offset, false, slices, &mut io, ended);
            hit = !missed && ended.iter().all(|ended| ended.errno == 0);
        }
        if hit {
            self.counts.caller.increase();
            let (start, end) = (effects.time, self.completer(request.target.0).shard.now());
            let bytes = parts.iter().map(|part| u64::from(part.request.len)).sum();
            self.speed.note(end.since(start), bytes, request.op);
            effects.time = end;
            self.end_parts(parts, &mut scratch, effects, Some(end));
        }
        reuse_scratch(scratch);
        hit
    }

    /// Executes one part through its own handle.
    fn redo(&self, part: &Part, lender: bool, ended: &mut Ended) {
        let (mut parts, mut again) = (Vec::new(), Vec::new());
        let extent = self.gather(std::slice::from_ref(part), 0, lender, &mut parts);
        let request = part.request;
        let mut io = |slices: &mut [Segment], at| self.call(&extent.file, &request, slices, at);
        let write = request.op == Op::Write;
        transfer(&parts, request.offset, write, &mut Vec::new(), &mut io, &mut again);
        *ended = again[0];
    }

    fn call(&self, file: &FileRef, request: &Request, slices: &mut [Segment], at: u64) -> io::Result<usize> {
        let (data, target) = (&self.storage.data, request.target.0 as usize);
        let call = AssertUnwindSafe(|| match request.op {
            Op::Read => data.read(file, target, at, Segment::for_read(slices)),
            Op::Write => data.write(file, target, at, Segment::for_write(slices)),
        });
        catch_unwind(call).unwrap_or_else(|_| {
            tracing::error!(?request, "the storage panicked; the request fails");
            Err(Errno::IO.into())
        })
    }

    /// Executes a request that is a whole operation, on this thread: what [`transfer`] does with one part.
    pub(super) fn call_whole(&self, file: &FileRef, request: &Request, memory: Segment) -> Ended {
        let (mut done, len) = (0, memory.len());
        let errno = loop {
            let mut rest = [memory.part(done, len - done)];
            match self.call(file, request, &mut rest, request.offset + done as u64) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.raw_os_error().unwrap_or(libc::EIO),
                Ok(0) => break if request.op == Op::Write { libc::EIO } else { 0 },
                Ok(moved) => done = len.min(done + moved),
            }
            if done == len {
                break 0;
            }
        };
        Ended { bytes: done as u32, errno }
    }

    /// Memory of the parts from `from` on that one call can do.
    fn gather(&self, batch: &[Part], from: usize, lender: bool, parts: &mut Vec<Segment>) -> Extent {
        parts.clear();
        let (mut file, mut mixed): (Option<FileRef>, bool) = (None, false);
        let mut end = from;
        for part in &batch[from..] {
            let (slot, piece) = of_cookie(part.request.cookie);
            let mut state = self.ops.slot(slot).state.lock();
            let own = state.file.as_ref().expect("an operation with outstanding pieces has its file");
            match &file {
                None => file = Some(own.clone()),
                Some(first) if Arc::ptr_eq(first, own) => {}
                // Reads of several readers of one file may go together. Writes not: a handle may be synchronous.
                Some(first) if part.request.op == Op::Read && first.id() == own.id() => mixed = true,
                // The ids of two files met when they were made to fit 64 bits.
                Some(_) => break,
            }
            let (start, len) = (state.pieces[piece].start as usize, state.pieces[piece].len as usize);
            parts.push(self.memory(&mut state, lender).part(start, len));
            end += 1;
        }
        Extent { file: file.expect("a batch has parts"), end, mixed }
    }

    /// The operation's memory. Lent data is copied unless `lender` and this is the lending thread.
    fn memory(&self, state: &mut Operation<H::Ticket>, lender: bool) -> Segment {
        match &state.memory {
            Memory::Borrowed(memory) => *memory,
            Memory::Pooled(buffer) => buffer.raw(state.len),
            Memory::Lent(memory, thread) if lender && *thread == thread_number() => *memory,
            Memory::Lent(memory, _) => {
                let buffer = self.buffers.take(state.len);
                let copy = memory::copy(*memory, &buffer);
                state.memory = Memory::Pooled(buffer);
                copy
            }
            Memory::None => unreachable!("an operation with outstanding pieces has memory"),
        }
    }

    /// The lending call is about to return.
    fn take_lent(&self, slot: u32) {
        let slot = self.ops.slot(slot);
        if slot.pending.load(Ordering::Acquire) > 1 {
            let mut state = slot.state.lock();
            if let Memory::Lent(..) = state.memory {
                self.memory(&mut state, false);
            }
        }
    }
}
