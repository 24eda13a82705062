//! The scheduling algorithms: one file each, one row each in [`table`].
//!
//! To add one, copy `template.rs`, implement [`Policy`], and add its `INFO` to the table; the conformance suite, the
//! benchmarks, the command line and the documentation then find it by themselves.

mod aioli;
mod anticipation;
mod config;
mod hbrr;
mod mlf;
mod noop;
mod prepared;
mod sjf;
mod sw;
#[cfg(test)]
mod template;
mod to;
mod to_agg;
mod twins;
mod wfq;

use crate::files::QueueId;
use crate::queues::{Queues, Slot};
use crate::request::Time;

pub use config::{ConfigError, Kind, ParamInfo, Params, PolicyConfig};
pub use prepared::PreparedPolicy;

/// A policy's answer to "what goes next?".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// These requests, as one batch: `parts` neighbours in offset order starting with `first`, each beginning where the
    /// one before it ends (1 for a policy that does not aggregate).
    Dispatch {
        /// The part with the lowest offset.
        first: Slot,
        /// Number of parts, at least 1.
        parts: u32,
    },
    /// Nothing now; ask again at this time, or when something happens.
    WaitUntil(Time),
    /// Nothing until something happens (a submission, a completion).
    Idle,
}

impl Pick {
    /// An extent as a batch.
    #[must_use]
    pub const fn extent(extent: crate::queues::Extent) -> Pick {
        Pick::Dispatch { first: extent.first, parts: extent.parts }
    }

    /// One request alone.
    #[must_use]
    pub const fn one(slot: Slot) -> Pick {
        Pick::Dispatch { first: slot, parts: 1 }
    }
}

/// Why requests left the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// Dispatched as the policy's last pick.
    Picked,
    /// Dispatched by the engine, because one of them had waited for `max_wait`.
    Overdue,
    /// Dispatched by the engine, because it goes on with the stream that is being served.
    Continued,
    /// Cancelled, or taken back by a gate and perhaps [enqueued](Policy::enqueue) again later; always a single request.
    Cancelled,
    /// Goes with a batch that was picked before and is delayed; always a single request.
    Joined,
}

/// An algorithm: decides which dispatchable request goes next. A pure state machine; it never sees a request that
/// ordering safety still holds back, and everything it sees may be dispatched in any order.
///
/// A policy keeps slots and queue numbers, never requests: the engine owns those ([`Queues`]). It allocates when it is
/// built, sized for `Queues::capacity()` and [`PolicyContext`], and not later.
pub trait Policy: Send + std::fmt::Debug {
    /// True if the policy dispatches extents of contiguous requests. The engine then keeps the file queues in offset order
    /// (`Queues::head`, `next`, `extent_from`...), which costs O(log n) a request, and dispatches an overdue request
    /// together with the extent around it.
    fn aggregates(&self) -> bool {
        false
    }

    /// `slot` may be dispatched from now on; it is in all of the engine's orders already.
    fn enqueue(&mut self, now: Time, slot: Slot, queues: &Queues);

    /// What goes next? Called only while something is queued and the in-flight limit allows a batch.
    fn pick(&mut self, now: Time, queues: &Queues) -> Pick;

    /// These requests, of one file queue and in offset order, have left the engine's orders. Their attributes can still be
    /// read.
    fn removed(&mut self, now: Time, requests: &[Slot], why: Removal, queues: &Queues);

    /// A request that was never queued goes with a batch that was picked before and is still delayed.
    fn joined(&mut self, now: Time, slot: Slot, queues: &Queues) {
        let _ = (now, slot, queues);
    }

    /// A request that was picked, or joined what was picked, is not dispatched after all: its batch goes without it. It is
    /// queued again ([`Policy::enqueue`] follows) or was cancelled.
    fn returned(&mut self, now: Time, slot: Slot, queues: &Queues) {
        let _ = (now, slot, queues);
    }

    /// The queue's file record is about to be used for another file: forget what was remembered about it. The queue is
    /// empty.
    fn forget(&mut self, queue: QueueId) {
        let _ = queue;
    }
}

/// What a policy may size its tables by.
#[derive(Clone, Copy, Debug)]
pub struct PolicyContext {
    /// Slots are `0..capacity`.
    pub capacity: u32,
    /// Queue numbers are `0..queues`.
    pub queues: u32,
}

/// One row of the table of algorithms.
#[derive(Debug)]
pub struct PolicyInfo {
    /// The name users write.
    pub name: &'static str,
    /// One line: what is chosen next.
    pub summary: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Its parameters.
    pub params: &'static [ParamInfo],
    /// Dispatches contiguous requests together (with the default parameters).
    pub aggregates: bool,
    /// May let the device idle on purpose although requests are queued.
    pub waits: bool,
    /// Dispatches every request at once: a driver may execute it in the submitting thread, and the in-flight limit does
    /// not apply.
    pub bypasses_queue: bool,
    /// Coordinates over several data servers, so that one engine should see the requests to all of them.
    pub shared_engine: bool,
    /// Makes it.
    pub build: fn(&Params<'_>, PolicyContext) -> Box<dyn Policy>,
}

static TABLE: &[&PolicyInfo] = &[
    &noop::INFO,
    &to::INFO,
    &to_agg::INFO,
    &sjf::INFO,
    &mlf::INFO,
    &aioli::INFO,
    &sw::INFO,
    &twins::INFO,
    &hbrr::INFO,
    &wfq::INFO,
    #[cfg(test)]
    &template::INFO,
];

/// All algorithms.
#[must_use]
pub fn table() -> &'static [&'static PolicyInfo] {
    TABLE
}
