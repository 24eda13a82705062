//! Trace points: what happened to each request, for recorders and debuggers.

use crate::request::{RequestId, Time};
use std::collections::VecDeque;

/// The stages of a request's life that are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Submitted and accepted.
    Queued,
    /// Given to the host, alone or in a batch.
    Dispatched,
    /// Completed by the host.
    Completed,
    /// Cancelled before it was dispatched.
    Cancelled,
}

/// One trace point. All events of a request carry the same id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The request.
    pub id: RequestId,
    /// The host's own reference.
    pub cookie: u64,
    /// What happened.
    pub stage: Stage,
    /// When, on the clock of the calls.
    pub at: Time,
}

/// A bounded queue of events. When the host does not keep up, the oldest are lost and counted.
#[derive(Debug)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    max: usize,
    lost: u64,
}

impl Events {
    pub(crate) fn new(max: u32) -> Events {
        Events { queue: VecDeque::with_capacity(max as usize), max: max as usize, lost: 0 }
    }

    #[inline]
    pub(crate) fn on(&self) -> bool {
        self.max > 0
    }

    pub(crate) fn push(&mut self, event: Event) {
        if self.queue.len() == self.max {
            self.queue.pop_front();
            self.lost += 1;
        }
        self.queue.push_back(event);
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}
