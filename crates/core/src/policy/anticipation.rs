//! Short waits before the head of a file queue is dispatched, shared by `aioli` and `mlf` (Boito 2015, 3.1.1 and 3.1.2).
//!
//! A queue waits, once for each reason between two dispatches, for at most `wait_time`:
//!
//! 1. *shift*: its last batch began below the one before it, and the head lies beyond the end of that batch. A process
//!    that fell behind is likely about to send the piece in between;
//! 2. *better aggregation*: the head lies beyond the last dispatched end and its extent has fewer parts than the last batch.
//!
//! The wait ends early when an arrival takes the reason away. Other queues are served meanwhile. All waits have the same
//! length, so the queues that wait are in order of their deadlines by themselves.

use crate::files::QueueId;
use crate::list::{Links, List};
use crate::queues::{Extent, Queues, Slot};
use crate::request::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Shift = 1,
    Aggregation = 2,
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    /// Start and end of the last dispatched batch.
    start: u64,
    end: u64,
    deadline: Time,
    parts: u32,
    /// The last batch began below the one before it.
    backwards: bool,
    waiting: bool,
    /// Reasons waited for since the last dispatch.
    waited: u8,
}

const BLANK: Memory =
    Memory { start: 0, end: 0, deadline: Time::ZERO, parts: 0, backwards: false, waiting: false, waited: 0 };

#[derive(Debug)]
pub(super) struct Anticipation {
    wait_ns: u64,
    memory: Vec<Memory>,
    /// Waiting queues by deadline.
    waiting: List,
    links: Links,
}

impl Anticipation {
    pub(super) fn new(wait_ns: u64, queues: u32) -> Anticipation {
        Anticipation { wait_ns, memory: vec![BLANK; queues as usize], waiting: List::new(), links: Links::new(queues) }
    }

    pub(super) fn is_waiting(&self, queue: QueueId) -> bool {
        self.memory[queue.0 as usize].waiting
    }

    /// Whether `queue` shall wait before `extent`, its head, goes. If so, it is waiting from now on.
    pub(super) fn wait(&mut self, now: Time, queue: QueueId, extent: &Extent, queues: &Queues) -> bool {
        let memory = &mut self.memory[queue.0 as usize];
        let Some(reason) = memory.reason(extent, queues).filter(|_| self.wait_ns > 0) else { return false };
        memory.waited |= reason as u8;
        memory.waiting = true;
        memory.deadline = now.after(self.wait_ns);
        self.waiting.push_back(&mut self.links, queue.0);
        true
    }

    /// After an arrival at a waiting queue: ends the wait, and returns true, if what it waited for is there.
    pub(super) fn arrived(&mut self, queue: QueueId, queues: &Queues) -> bool {
        let Some(head) = queues.head(queue) else { return false };
        let memory = &mut self.memory[queue.0 as usize];
        // The reason for the present wait counts again here, although it is marked as waited for.
        let asks = Memory { waited: 0, ..*memory }.reason(&queues.extent_from(head), queues);
        if asks.is_some() {
            return false;
        }
        self.end_wait(queue);
        true
    }

    /// Ends the first wait whose time is over.
    pub(super) fn expire(&mut self, now: Time) -> Option<QueueId> {
        let queue = QueueId(self.waiting.front()?);
        if self.memory[queue.0 as usize].deadline > now {
            return None;
        }
        self.end_wait(queue);
        Some(queue)
    }

    /// When the first wait is over.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiting.front().map(|queue| self.memory[queue as usize].deadline)
    }

    pub(super) fn end_wait(&mut self, queue: QueueId) {
        let memory = &mut self.memory[queue.0 as usize];
        if std::mem::take(&mut memory.waiting) {
            self.waiting.remove(&mut self.links, queue.0);
        }
    }

    pub(super) fn dispatched(&mut self, queue: QueueId, requests: &[Slot], queues: &Queues) {
        let memory = &mut self.memory[queue.0 as usize];
        let start = queues.offset(requests[0]);
        memory.backwards = memory.parts > 0 && start < memory.start;
        memory.start = start;
        memory.end = queues.end(requests[requests.len() - 1]);
        memory.parts = requests.len() as u32;
        memory.waited = 0;
    }

    pub(super) fn forget(&mut self, queue: QueueId) {
        self.end_wait(queue);
        self.memory[queue.0 as usize] = BLANK;
    }
}

impl Memory {
    /// Why to wait before `extent`, if there is a reason not yet waited for.
    fn reason(&self, extent: &Extent, queues: &Queues) -> Option<Reason> {
        if self.parts == 0 || queues.offset(extent.first) <= self.end {
            return None;
        }
        if self.backwards && self.waited & Reason::Shift as u8 == 0 {
            return Some(Reason::Shift);
        }
        let fewer = extent.parts < self.parts && !extent.full;
        (fewer && self.waited & Reason::Aggregation as u8 == 0).then_some(Reason::Aggregation)
    }
}
