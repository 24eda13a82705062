//! One engine, and who may touch it.
//!
//! An engine is owned by whichever thread holds `owner`. Everybody else leaves what they have in a bounded lock-free
//! queue and *tries* to become the owner; a thread that fails leaves the work to the one that is. That is safe because
//! an owner looks at the queues once more after it gave the engine up, with a sequentially consistent fence between
//! (and pushers have one between their push and their attempt): either the pusher finds the engine free, or the owner
//! finds what was pushed.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sluice_core::{Batch, Engine, Outcome, Request, RequestId, Time};

use crate::clock::Clock;
use crate::gate::Gate;
use crate::runtime::{Executor, SubmitError};
use crate::server::{Bell, NEVER};

/// Submissions and batches that one call may handle for everybody before it leaves the rest to the serving thread, so
/// that no submitter is held hostage.
const TURN: u32 = 512;

/// Shortest time to the next look at an engine that asks to be called again at once although it has nothing to give.
const MIN_WAIT_NS: u64 = 20_000;

pub(crate) struct Owner {
    pub(crate) engine: Engine,
    batch: Batch,
    /// Taken out of the inbox, but the engine had no room (its table of files was full).
    held: Option<Request>,
    /// Set by a shutdown: what is submitted now fails with this error number.
    failing: Option<i32>,
    /// Completions of requests that were not in flight.
    pub(crate) stale: u64,
    /// When the engine was driven last: its time must not go back.
    latest: Time,
}

pub(crate) struct Shard {
    index: usize,
    clock: Clock,
    executor: Arc<dyn Executor>,
    owner: CachePadded<Mutex<Owner>>,
    inbox: ArrayQueue<Request>,
    finished: ArrayQueue<(RequestId, Outcome)>,
    /// Requests accepted and not yet completed. Never above `capacity`, which is what the engine and the queues hold.
    outstanding: CachePadded<AtomicU32>,
    capacity: u32,
    closed: AtomicBool,
    /// When the serving thread shall drive this shard.
    deadline: AtomicU64,
    /// The policy passes every request through at once.
    pub(crate) bypass: AtomicBool,
    pub(crate) lets_pass: AtomicBool,
    by_caller: bool,
    pub(crate) bell: Arc<Bell>,
    gate: Gate,
}

thread_local! {
    /// The shard whose executor this thread is calling: completions reported there need no queue.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
    static REPORTED: RefCell<Vec<(RequestId, Outcome)>> = const { RefCell::new(Vec::new()) };
}

/// Reports how dispatched requests ended. One for each shard; valid, if useless, after the runtime's end.
#[derive(Clone)]
pub struct Completer {
    shard: Arc<Shard>,
}

impl Completer {
    pub(crate) fn new(shard: Arc<Shard>) -> Completer {
        Completer { shard }
    }

    /// Reports the end of one request: from inside [`Executor::start`] or from any thread, once for each part.
    ///
    /// May dispatch, on this thread, what becomes eligible by it. Reports for requests that are not in flight are
    /// counted (see [`Snapshot`](crate::Snapshot)) and have no other effect.
    pub fn complete(&self, id: RequestId, outcome: Outcome) {
        self.complete_all(&[(id, outcome)]);
    }

    /// Reports several ends at once.
    pub fn complete_all(&self, ended: &[(RequestId, Outcome)]) {
        self.shard.complete(self, ended);
    }
}

impl Shard {
    pub(crate) fn new(
        index: usize,
        clock: Clock,
        executor: Arc<dyn Executor>,
        engine: Engine,
        capacity: u32,
        by_caller: bool,
        bell: Arc<Bell>,
    ) -> Shard {
        let bypass = AtomicBool::new(engine.bypasses_queue());
        let lets_pass = AtomicBool::new(engine.allows_bypass());
        let owner = Owner { engine, batch: Batch::new(), held: None, failing: None, stale: 0, latest: Time::ZERO };
        Shard {
            index,
            clock,
            executor,
            owner: CachePadded::new(Mutex::new(owner)),
            inbox: ArrayQueue::new(capacity as usize),
            finished: ArrayQueue::new(capacity as usize),
            outstanding: CachePadded::new(AtomicU32::new(0)),
            capacity,
            closed: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
            bypass,
            lets_pass,
            by_caller,
            bell,
            gate: Gate::default(),
        }
    }

    // ---- submitting ------------------------------------------------------------------------------------------

    /// Takes one of the `capacity` places.
    fn admit(&self, request: &Request) -> Result<(), SubmitError> {
        if request.offset.checked_add(u64::from(request.len)).is_none() {
            return Err(SubmitError::RangeOverflow);
        }
        let free = |n: u32| (n < self.capacity).then_some(n + 1);
        if self.outstanding.fetch_update(Ordering::SeqCst, Ordering::Relaxed, free).is_err() {
            let closed = self.closed.load(Ordering::SeqCst);
            return Err(if closed { SubmitError::Closed } else { SubmitError::Full(*request) });
        }
        // After the place was taken: a shutdown first closes, then waits for the places.
        if self.closed.load(Ordering::SeqCst) {
            self.release(1);
            return Err(SubmitError::Closed);
        }
        Ok(())
    }

    /// `at`: the time, if the caller has just looked at the clock.
    pub(crate) fn try_submit(
        &self,
        completer: &Completer,
        request: Request,
        at: Option<Time>,
    ) -> Result<(), SubmitError> {
        self.admit(&request)?;
        self.enqueue(request);
        if self.by_caller {
            self.drive_from(completer, at)
        } else {
            self.bell.ring_at(0)
        }
        Ok(())
    }

    /// As [`Shard::try_submit`], but waits for the engine instead of leaving the request to its present owner: what can
    /// be dispatched at once is then dispatched on this thread.
    pub(crate) fn try_submit_here(&self, completer: &Completer, request: Request) -> Result<(), SubmitError> {
        if INSIDE.get() == self.address() || !self.by_caller {
            return self.try_submit(completer, request, None);
        }
        self.admit(&request)?;
        // Behind what others left, but only once the engine is ours: its owner until then would dispatch it on its thread.
        self.with_owner(completer, |_| self.enqueue(request));
        Ok(())
    }

    /// Submits under the lock, for a caller that needs the handle.
    pub(crate) fn submit_with_id(&self, completer: &Completer, request: Request) -> Result<RequestId, SubmitError> {
        self.admit(&request)?;
        let id = self.with_owner(completer, |owner| owner.engine.submit(self.clock.now(), request));
        id.map_err(|error| {
            self.release(1);
            match error {
                sluice_core::SubmitError::RangeOverflow => SubmitError::RangeOverflow,
                _ => SubmitError::Full(request),
            }
        })
    }

    fn enqueue(&self, request: Request) {
        // Cannot fail: the inbox has a place for each of the `capacity` requests admitted. The owner frees the place in
        // the inbox long before the one in `outstanding`.
        let pushed = self.inbox.push(request);
        debug_assert!(pushed.is_ok());
    }

    /// Waits until a place may be free. False if nobody could free one: the caller is the shard's own executor.
    pub(crate) fn wait_for_room(&self) -> bool {
        if INSIDE.get() == self.address() {
            return false;
        }
        let free = || self.outstanding.load(Ordering::SeqCst) < self.capacity;
        self.gate.wait(None, || free() || self.closed.load(Ordering::SeqCst));
        true
    }

    /// Waits until every accepted request has ended; false if that took until after `until`.
    pub(crate) fn wait_empty(&self, until: Option<Instant>) -> bool {
        self.gate.wait(until, || self.outstanding.load(Ordering::SeqCst) == 0)
    }

    fn release(&self, places: u32) {
        if places > 0 {
            self.outstanding.fetch_sub(places, Ordering::SeqCst);
            self.gate.changed();
        }
    }

    // ---- completing ------------------------------------------------------------------------------------------

    fn complete(&self, completer: &Completer, ended: &[(RequestId, Outcome)]) {
        if INSIDE.get() == self.address() {
            REPORTED.with_borrow_mut(|reported| reported.extend_from_slice(ended));
            return;
        }
        for &done in ended {
            // Full only if there are reports for requests that are not in flight: make room by looking at them.
            let mut back = self.finished.push(done);
            while let Err(done) = back {
                self.with_owner(completer, |_| ());
                back = self.finished.push(done);
            }
        }
        if self.by_caller { self.drive_as(completer) } else { self.bell.ring_at(0) }
    }

    // ---- driving ---------------------------------------------------------------------------------------------

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(crate) fn deadline(&self) -> u64 {
        self.deadline.load(Ordering::Relaxed)
    }

    pub(crate) fn needs_server(&self, now: u64) -> bool {
        let has_work = !self.inbox.is_empty() || !self.finished.is_empty();
        self.deadline() <= now || (has_work && !self.by_caller)
    }

    /// Drives the engine if nobody else does.
    pub(crate) fn drive(self: &Arc<Shard>) {
        self.drive_as(&Completer { shard: self.clone() });
    }

    fn drive_as(&self, completer: &Completer) {
        self.drive_from(completer, None);
    }

    fn drive_from(&self, completer: &Completer, mut at: Option<Time>) {
        let mut budget = TURN;
        fence(Ordering::SeqCst); // between the caller's push and the attempt, see the head of the file
        while let Some(mut owner) = self.owner.try_lock() {
            let idle = self.turn(&mut owner, completer, &mut budget, at.take());
            drop(owner);
            if self.is_settled(idle) {
                return;
            }
        }
    }

    /// Waits for the engine, does something with it, and drives it.
    pub(crate) fn with_owner<R>(&self, completer: &Completer, action: impl FnOnce(&mut Owner) -> R) -> R {
        let mut budget = TURN;
        let mut owner = self.owner.lock();
        let result = action(&mut owner);
        self.bypass.store(owner.engine.bypasses_queue(), Ordering::Relaxed);
        self.lets_pass.store(owner.engine.allows_bypass(), Ordering::Relaxed);
        let idle = self.turn(&mut owner, completer, &mut budget, None);
        drop(owner);
        if !self.is_settled(idle) {
            self.drive_as(completer);
        }
        result
    }

    /// After the engine was given up: true if nothing is left to do for this thread.
    fn is_settled(&self, turn: Turn) -> bool {
        fence(Ordering::SeqCst);
        match turn {
            Turn::CutShort => {
                self.deadline.store(0, Ordering::Relaxed);
                self.bell.ring_at(0);
                return true;
            }
            Turn::Done if !self.inbox.is_empty() => return false,
            Turn::Done | Turn::Blocked => {}
        }
        if !self.finished.is_empty() {
            return false;
        }
        let deadline = self.deadline();
        if deadline != NEVER {
            self.bell.ring_at(deadline);
        }
        true
    }

    /// Everything there is to do, up to the budget. `at`: the time a moment ago, if that is known.
    fn turn(&self, owner: &mut Owner, completer: &Completer, budget: &mut u32, at: Option<Time>) -> Turn {
        let outer = INSIDE.replace(self.address());
        let base = REPORTED.with_borrow(Vec::len);
        let mut now = at.map_or_else(|| self.clock.now(), |at| at.max(owner.latest));
        loop {
            let mut ended = 0;
            while let Some((id, outcome)) = self.finished.pop() {
                ended += owner.complete(now, id, outcome);
            }
            while *budget > 0
                && let Some(request) = owner.held.take().or_else(|| self.inbox.pop())
            {
                *budget -= 1;
                if let Some(errno) = owner.failing {
                    self.executor.cancelled(&request, self.index, errno);
                    ended += 1;
                    continue;
                }
                match owner.engine.submit(now, request) {
                    Ok(_) => {}
                    Err(sluice_core::SubmitError::Full) if owner.engine.queued() + owner.engine.in_flight() > 0 => {
                        owner.held = Some(request);
                        break;
                    }
                    Err(_) => {
                        self.executor.cancelled(&request, self.index, libc::EINVAL);
                        ended += 1;
                    }
                }
            }
            while *budget > 0 && owner.engine.poll_dispatch(now, &mut owner.batch) {
                *budget -= 1;
                self.executor.start(&owner.batch, self.index, completer);
                if REPORTED.with_borrow(Vec::len) > base {
                    now = self.clock.now();
                    while let Some((id, outcome)) =
                        REPORTED.with_borrow_mut(|r| (r.len() > base).then(|| r.pop()).flatten())
                    {
                        ended += owner.complete(now, id, outcome);
                    }
                }
            }
            self.release(ended);
            let blocked = owner.held.is_some();
            let done = self.finished.is_empty() && (blocked || self.inbox.is_empty());
            if *budget == 0 || done {
                // An executor may also report for requests of earlier batches when it is told of a cancellation.
                let soonest = now.after(MIN_WAIT_NS).0;
                let deadline = owner.engine.poll_timeout().map_or(NEVER, |at| at.0.max(soonest));
                self.deadline.store(deadline, Ordering::Relaxed);
                owner.latest = now;
                INSIDE.set(outer);
                return match *budget {
                    0 => Turn::CutShort,
                    _ if blocked => Turn::Blocked,
                    _ => Turn::Done,
                };
            }
            now = self.clock.now();
        }
    }

    // ---- the end ---------------------------------------------------------------------------------------------

    /// Lets no more requests in. Those waiting for room are told.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.gate.changed();
    }

    /// Fails everything that was not dispatched. Returns how many requests that were.
    pub(crate) fn fail(&self, completer: &Completer, errno: i32) -> u32 {
        self.with_owner(completer, |owner| {
            owner.failing = Some(errno);
            let now = self.clock.now();
            let mut failed = 0;
            while let Some((_, request)) = owner.engine.cancel_any(now) {
                self.executor.cancelled(&request, self.index, errno);
                failed += 1;
            }
            self.release(failed);
            failed
        })
    }

    pub(crate) fn cancel(&self, completer: &Completer, id: RequestId) -> Result<Request, sluice_core::CancelError> {
        let cancelled = self.with_owner(completer, |owner| owner.engine.cancel(self.clock.now(), id));
        if cancelled.is_ok() {
            self.release(1);
        }
        cancelled
    }

    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding.load(Ordering::Relaxed)
    }
}

impl Owner {
    /// Places freed: 1, or 0 for a stale report.
    fn complete(&mut self, now: Time, id: RequestId, outcome: Outcome) -> u32 {
        let ok = self.engine.complete(now, id, outcome).is_ok();
        self.stale += u64::from(!ok);
        u32::from(ok)
    }
}

/// How a turn ended.
#[derive(Clone, Copy)]
enum Turn {
    /// Nothing left.
    Done,
    /// The engine takes no more requests until one completes.
    Blocked,
    /// The budget is used up.
    CutShort,
}
