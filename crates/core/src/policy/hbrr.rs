//! `hbrr`: handle-based round robin (IOFSL; Ohta et al. 2010). Round robin over the file queues; a queue's turn is up to
//! `ranges` batches of contiguous requests (default 8) in offset order, each of at most `batch` requests (default 16).
//!
//! Deviation: IOFSL counts requests of a handle whatever their operation; here reads and writes of a file take turns of
//! their own, as in the other file-queue algorithms.

use super::{Kind, ParamInfo, Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::files::QueueId;
use crate::list::{Links, List};
use crate::queues::{Queues, Slot};
use crate::request::Time;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "hbrr",
    summary: "round robin over file queues, up to 8 ranges a turn",
    source: "IOFSL; Ohta et al. 2010",
    params: &[
        ParamInfo {
            key: "ranges",
            kind: Kind::Count,
            default: 8,
            min: 1,
            max: 1 << 20,
            help: "batches a queue may send in its turn",
        },
        ParamInfo {
            key: "batch",
            kind: Kind::Count,
            default: 16,
            min: 1,
            max: 1 << 20,
            help: "most requests in a batch (the engine's batch_requests_max holds too)",
        },
    ],
    aggregates: true,
    waits: false,
    bypasses_queue: false,
    shared_engine: false,
    build: |params: &Params<'_>, context: PolicyContext| {
        Box::new(HandleRoundRobin {
            ranges: params.get("ranges"),
            batch: params.get("batch") as u32,
            turn: 0,
            ring: List::new(),
            links: Links::new(context.queues),
        })
    },
};

#[derive(Debug)]
struct HandleRoundRobin {
    ranges: u64,
    batch: u32,
    /// Batches that the queue in front has sent in this turn.
    turn: u64,
    /// Non-empty queues; the one in front has the turn.
    ring: List,
    links: Links,
}

impl Policy for HandleRoundRobin {
    fn aggregates(&self) -> bool {
        true
    }

    fn enqueue(&mut self, _: Time, slot: Slot, queues: &Queues) {
        let queue = queues.queue(slot);
        if queues.count(queue) == 1 {
            self.ring.push_back(&mut self.links, queue.0);
        }
    }

    fn pick(&mut self, _: Time, queues: &Queues) -> Pick {
        if self.turn >= self.ranges {
            self.turn = 0;
            if let Some(done) = self.ring.pop_front(&mut self.links) {
                self.ring.push_back(&mut self.links, done);
            }
        }
        let head = self.ring.front().and_then(|queue| queues.head(QueueId(queue)));
        head.map_or(Pick::Idle, |head| Pick::extent(queues.extent_while(head, u64::MAX, self.batch, |_| true)))
    }

    fn removed(&mut self, _: Time, requests: &[Slot], why: Removal, queues: &Queues) {
        let queue = queues.queue(requests[0]);
        self.turn += u64::from(why == Removal::Picked);
        if queues.count(queue) == 0 {
            if self.ring.front() == Some(queue.0) {
                self.turn = 0;
            }
            self.ring.remove(&mut self.links, queue.0);
        }
    }
}
