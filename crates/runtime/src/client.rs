//! Clients of a scheduler, as engines know them: who submits, and hears what becomes of it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use sluice_core::{Batch, Outcome, Request, RequestId, TargetId};

use crate::effects::{Effect, Recipient, Reports};
use crate::shard::Shard;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Does what the engines dispatch.
///
/// Called with nothing held: a call may submit, complete, cancel, change the algorithm or take a snapshot, on this or another
/// scheduler, to any depth. It should return soon, as it is on the way of other requests, and must not wait *by its own
/// means* for a request that it submitted itself in the same call, nor for a call that is to come on its thread, or waits for
/// this one. [`Scheduler::wait_empty`](crate::Scheduler::wait_empty) may be used for any scheduler, unless that becomes empty only
/// by what the calling thread does after the submission or completion in which it was called.
///
/// If it panics, the requests of the batch that it has not completed fail with `EIO`.
pub trait Executor: Send + Sync + 'static {
    /// Starts a batch. Every part is reported once: in here to `started`, or later from any thread to its
    /// [completer](Started::completer).
    fn start(&self, batch: &Batch, started: &Started<'_>);

    /// The request was accepted but will never be started: the scheduler shuts down or the client leaves.
    fn cancelled(&self, request: &Request, errno: i32);
}

/// A request was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError {
    /// As many requests as the engine holds are outstanding; here it is back. From [`Client::submit`](crate::Client::submit) only inside a call of
    /// an executor, where it does not wait.
    #[error("the queue is full")]
    Full(Request),
    /// The range ends beyond 2^64.
    #[error("the byte range ends beyond the largest offset")]
    RangeOverflow,
    /// The target is not one of the client's.
    #[error("target {0:?} is not one of this client's")]
    Target(TargetId),
    /// The scheduler is shutting down or has, or the client has left.
    #[error("the scheduler is shutting down")]
    Closed,
}

/// One client, to one engine.
pub(crate) struct Port {
    pub(crate) number: u16,
    pub(crate) targets: Range<u32>,
    pub(crate) executor: Arc<dyn Executor>,
    /// The executor is a host's: nobody knows what it does in a call.
    is_host: bool,
    standing: Arc<Standing>,
}

/// How a client stands with one engine: what is known of it, too, when it has left with requests in flight and its executor is to
/// hear of nothing any more.
struct Standing {
    /// It has left, or is about to.
    closed: AtomicBool,
    /// It has left: what the engine has is others'.
    left: AtomicBool,
    /// What it has outstanding, if it is not alone. The counts of an engine say that of a client that has it for itself.
    counts: Option<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Requests accepted and not yet ended.
    outstanding: AtomicU32,
    /// Requests dispatched and not completed.
    in_flight: AtomicU32,
    /// Effects not yet told.
    untold: AtomicU32,
}

/// The number of nobody.
const NOBODY: u16 = u16::MAX;

struct Nobody;

impl Executor for Nobody {
    fn start(&self, _: &Batch, _: &Started<'_>) {}
    fn cancelled(&self, _: &Request, _: i32) {}
}

impl Port {
    /// A client for a range of targets; of all of them, if it is to be the only one.
    pub(crate) fn new(number: u16, targets: Range<u32>, executor: Arc<dyn Executor>, is_host: bool) -> Port {
        let counts = (targets != ALL).then(Counts::default);
        let standing = Standing { closed: AtomicBool::new(false), left: AtomicBool::new(false), counts };
        Port { number, targets, executor, is_host, standing: Arc::new(standing) }
    }

    /// The same client, for who tells its executor nothing and shall not keep it alive.
    pub(crate) fn without_executor(&self) -> Arc<Port> {
        let (targets, standing) = (self.targets.clone(), self.standing.clone());
        Arc::new(Port { number: self.number, targets, executor: Arc::new(Nobody), is_host: false, standing })
    }

    /// Stands for threads that hold an engine on nobody's behalf.
    pub(crate) fn nobody() -> Arc<Port> {
        let new = || Arc::new(Port::new(NOBODY, 0..0, Arc::new(Nobody), false));
        static SHARED: LazyLock<Arc<Port>> =
            LazyLock::new(|| Arc::new(Port::new(NOBODY, 0..0, Arc::new(Nobody), false)));
        // What the checker of the model watches must not outlive one run of it.
        if cfg!(feature = "model") { new() } else { SHARED.clone() }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.standing.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn close(&self) {
        self.standing.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_left(&self) -> bool {
        self.standing.left.load(Ordering::SeqCst)
    }

    pub(crate) fn leave(&self) {
        self.standing.left.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.standing.counts.is_none()
    }

    /// It submits no more, nothing of it is outstanding or to be told, and no call of it is under way. `none_left`: of nobody,
    /// which tells it of a client that is alone.
    pub(crate) fn is_gone(&self, none_left: bool) -> bool {
        let nothing_left = |counts: &Counts| {
            counts.outstanding.load(Ordering::SeqCst) == 0 && counts.untold.load(Ordering::SeqCst) == 0
        };
        self.has_left() || self.is_closed() && self.standing.counts.as_ref().map_or(none_left, nothing_left)
    }

    pub(crate) fn enters(&self) {
        if let Some(counts) = &self.standing.counts {
            counts.outstanding.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn ended(&self) {
        if let Some(counts) = &self.standing.counts {
            counts.outstanding.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn will_be_told(&self) {
        if let Some(counts) = &self.standing.counts {
            counts.untold.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn was_told(&self) {
        if let Some(counts) = &self.standing.counts {
            counts.untold.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn dispatched(&self, parts: u32) {
        if let Some(counts) = &self.standing.counts {
            counts.in_flight.fetch_add(parts, Ordering::SeqCst);
        }
    }

    pub(crate) fn completed(&self) {
        if let Some(counts) = &self.standing.counts {
            counts.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Requests outstanding and, of these, in flight, of a client that is not alone.
    pub(crate) fn counts(&self) -> Option<(u32, u32)> {
        // In this order: a request that ends in between makes it look as if there were more outstanding, never fewer.
        let counts = self.standing.counts.as_ref()?;
        let outstanding = counts.outstanding.load(Ordering::SeqCst);
        Some((outstanding, counts.in_flight.load(Ordering::SeqCst)))
    }

    /// For a client that is not alone: everything it is to hear it has heard, and the rest is in flight.
    pub(crate) fn has_been_told(&self) -> bool {
        let Some(counts) = &self.standing.counts else { return true };
        // What is in flight counted as untold before.
        self.counts().is_none_or(|(outstanding, in_flight)| outstanding <= in_flight)
            && counts.untold.load(Ordering::SeqCst) == 0
    }
}

/// All targets there can be.
pub(crate) const ALL: Range<u32> = 0..u32::MAX;

/// Reports how dispatched requests of one client and engine ended. Valid, if useless, after the scheduler's end.
#[derive(Clone)]
pub struct Completer {
    pub(crate) shard: Arc<Shard>,
    pub(crate) port: Arc<Port>,
}

impl Completer {
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

    /// Which engine of the scheduler the requests are in.
    #[must_use]
    pub fn shard(&self) -> usize {
        self.shard.index()
    }
}

/// A call of [`Executor::start`]: takes the ends of requests that end in there.
pub struct Started<'a> {
    completer: &'a Completer,
    /// Where they can be left until the call is over; else they go to the engine at once.
    reports: Option<&'a Reports>,
}

impl Started<'_> {
    /// As [`Completer::complete`], at less cost; what becomes eligible by it is dispatched after the call.
    pub fn complete(&self, id: RequestId, outcome: Outcome) {
        match self.reports {
            Some(reports) => reports.add(id, outcome),
            None => self.completer.complete(id, outcome),
        }
    }

    /// For reports after the call.
    #[must_use]
    pub fn completer(&self) -> &Completer {
        self.completer
    }

    /// Which engine of the scheduler the requests are in.
    #[must_use]
    pub fn shard(&self) -> usize {
        self.completer.shard()
    }
}

impl Recipient for Completer {
    fn start(&self, batch: &Batch, reports: Option<&Rc<Reports>>) {
        if self.port.is_host {
            self.shard.note_call();
        }
        let _reporting = reports.filter(|_| self.port.is_host).map(|reports| self.shard.reporting(reports));
        let started = Started { completer: self, reports: reports.map(|reports| &**reports) };
        let call = AssertUnwindSafe(|| self.port.executor.start(batch, &started));
        let panicked = catch_unwind(call).is_err();
        self.port.was_told();
        if panicked {
            tracing::error!("an executor panicked; what it has not completed of its batch fails");
            // Those it did complete are not in flight any more, and not hurt by this.
            let failed = Outcome { bytes: 0, error: libc::EIO };
            batch.parts().iter().for_each(|part| started.complete(part.id, failed));
        }
        self.shard.told(&self.port);
    }

    fn cancelled(&self, request: &Request, errno: i32) {
        // Before, so that a host may wait in there until nothing is outstanding. Who waits for the end waits for the call, too.
        self.port.ended();
        self.shard.release(1);
        let call = AssertUnwindSafe(|| self.port.executor.cancelled(request, errno));
        if catch_unwind(call).is_err() {
            tracing::error!("an executor panicked when told of a cancellation");
        }
        self.port.was_told();
        self.shard.told(&self.port);
    }

    fn carried(&self) {
        self.shard.carried();
    }

    fn is_host(&self) -> bool {
        self.port.is_host
    }

    fn engine(&self) -> usize {
        self.shard.address()
    }

    fn leave_to_server(&self, effect: Effect) {
        self.shard.leave_to_server(self, effect);
    }

    fn boxed(&self) -> Box<dyn Recipient> {
        Box::new(self.clone())
    }
}
