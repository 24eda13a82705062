//! `mlf`: multilevel feedback (Boito 2015, 3.1.2). Round robin over the file queues. Each visit to a queue raises the
//! quantum of its requests, from 0 to the base quantum and then doubling; the lowest-offset batch goes when the sum of
//! its parts' quanta covers its bytes. Before that the queue may [wait](super::anticipation).
//!
//! A request's quantum follows from the number of visits to its queue since it arrived, so a visit costs O(parts) of one
//! batch, not of the queue. A batch that is not covered is visited at most log2(batch bytes / base) + 2 times.
//!
//! Deviations: where the original goes on to the first covered request of the queue, only the head batch is considered,
//! which keeps offset order and reaches it a few visits later; it never waits for completions (nor did AGIOS).

use super::anticipation::Anticipation;
use super::{Kind, ParamInfo, Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::files::QueueId;
use crate::list::{Links, List};
use crate::queues::{Extent, Queues, Slot};
use crate::request::Time;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "mlf",
    summary: "round robin over file queues; the lowest-offset batch once its quantum covers it",
    source: "Boito 2015, 3.1.2",
    params: &[
        ParamInfo {
            key: "quantum",
            kind: Kind::Bytes,
            default: 8 << 10,
            min: 1,
            max: 1 << 40,
            help: "quantum of a request at the first visit after its arrival",
        },
        ParamInfo {
            key: "wait_time",
            kind: Kind::Duration,
            default: 900_000,
            min: 0,
            max: 10_000_000_000,
            help: "how long a queue waits for a better batch; 0: never",
        },
    ],
    aggregates: true,
    waits: true,
    bypasses_queue: false,
    shared_engine: false,
    build: |params: &Params<'_>, context: PolicyContext| {
        Box::new(MultilevelFeedback {
            base: params.get("quantum"),
            ring: List::new(),
            links: Links::new(context.queues),
            visits: vec![0; context.queues as usize],
            visits_at_arrival: vec![0; context.capacity as usize],
            anticipation: Anticipation::new(params.get("wait_time"), context.queues),
        })
    },
};

/// The quantum of a request after `steps` steps: 0, base, 2 base, 4 base...
pub(super) fn quantum(base: u64, steps: u32) -> u64 {
    match steps {
        0 => 0,
        steps => base.saturating_mul(1_u64.checked_shl(steps - 1).unwrap_or(u64::MAX)),
    }
}

#[derive(Debug)]
struct MultilevelFeedback {
    base: u64,
    /// Non-empty queues that do not wait; the one in front is visited next.
    ring: List,
    links: Links,
    visits: Vec<u32>,
    visits_at_arrival: Vec<u32>,
    anticipation: Anticipation,
}

impl MultilevelFeedback {
    fn covers(&self, extent: &Extent, queue: QueueId, queues: &Queues) -> bool {
        let visits = self.visits[queue.0 as usize];
        let mut sum = 0_u64;
        let mut at = Some(extent.first);
        for _ in 0..extent.parts {
            let Some(slot) = at else { break };
            sum = sum.saturating_add(quantum(self.base, visits.wrapping_sub(self.visits_at_arrival[slot as usize])));
            if sum >= extent.bytes {
                return true;
            }
            at = queues.next(slot);
        }
        extent.bytes == 0
    }
}

impl Policy for MultilevelFeedback {
    fn aggregates(&self) -> bool {
        true
    }

    fn enqueue(&mut self, _: Time, slot: Slot, queues: &Queues) {
        let queue = queues.queue(slot);
        self.visits_at_arrival[slot as usize] = self.visits[queue.0 as usize];
        if queues.count(queue) == 1 {
            self.ring.push_back(&mut self.links, queue.0);
        } else if self.anticipation.is_waiting(queue) && self.anticipation.arrived(queue, queues) {
            self.ring.push_front(&mut self.links, queue.0);
        }
    }

    fn pick(&mut self, now: Time, queues: &Queues) -> Pick {
        while let Some(queue) = self.anticipation.expire(now) {
            self.ring.push_front(&mut self.links, queue.0);
        }
        while let Some(queue) = self.ring.front().map(QueueId) {
            let Some(head) = queues.head(queue) else { break };
            let visits = &mut self.visits[queue.0 as usize];
            *visits = visits.wrapping_add(1);
            let extent = queues.extent_from(head);
            if !self.covers(&extent, queue, queues) {
                self.ring.remove(&mut self.links, queue.0);
                self.ring.push_back(&mut self.links, queue.0);
            } else if self.anticipation.wait(now, queue, &extent, queues) {
                self.ring.remove(&mut self.links, queue.0);
            } else {
                return Pick::extent(extent);
            }
        }
        self.anticipation.deadline().map_or(Pick::Idle, Pick::WaitUntil)
    }

    fn removed(&mut self, _: Time, requests: &[Slot], why: Removal, queues: &Queues) {
        let queue = queues.queue(requests[0]);
        if matches!(why, Removal::Picked | Removal::Overdue | Removal::Continued) {
            self.anticipation.dispatched(queue, requests, queues);
        }
        let is_empty = queues.count(queue) == 0;
        if self.anticipation.is_waiting(queue) {
            if is_empty {
                self.anticipation.end_wait(queue);
            }
            return;
        }
        if is_empty {
            self.ring.remove(&mut self.links, queue.0);
        } else if why == Removal::Picked {
            self.ring.remove(&mut self.links, queue.0);
            self.ring.push_back(&mut self.links, queue.0);
        }
    }

    fn forget(&mut self, queue: QueueId) {
        self.anticipation.forget(queue);
    }
}
