//! `sjf`: shortest job first, a job being a file queue: the lowest-offset batch of the queue with the fewest queued
//! bytes (Boito 2015, section 3.1.3).
//!
//! A heap over the queues replaces the original's walk over all of them: O(log queues). Among queues with equally many
//! bytes, the one that became non-empty first goes first (the original: the order of its hash table).

use super::{Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::files::QueueId;
use crate::heap::IndexedHeap;
use crate::queues::{Queues, Slot};
use crate::request::Time;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "sjf",
    summary: "the lowest-offset batch of the file queue with the fewest queued bytes",
    source: "Boito 2015, 3.1.3",
    params: &[],
    aggregates: true,
    waits: false,
    bypasses_queue: false,
    shared_engine: false,
    build: |_: &Params<'_>, context: PolicyContext| {
        Box::new(ShortestJobFirst { queues: IndexedHeap::new(context.queues), since: vec![0; context.queues as usize] })
    },
};

#[derive(Debug)]
struct ShortestJobFirst {
    /// Non-empty queues by queued bytes.
    queues: IndexedHeap<(u64, u64)>,
    /// For each non-empty queue, its number in the order of becoming non-empty.
    since: Vec<u64>,
}

impl ShortestJobFirst {
    fn update(&mut self, queue: QueueId, queues: &Queues) {
        if queues.count(queue) == 0 {
            self.queues.remove(queue.0);
        } else {
            self.queues.set(queue.0, (queues.bytes(queue), self.since[queue.0 as usize]));
        }
    }
}

impl Policy for ShortestJobFirst {
    fn aggregates(&self) -> bool {
        true
    }

    fn enqueue(&mut self, _: Time, slot: Slot, queues: &Queues) {
        let queue = queues.queue(slot);
        if !self.queues.contains(queue.0) {
            self.since[queue.0 as usize] = queues.place(slot);
        }
        self.update(queue, queues);
    }

    fn pick(&mut self, _: Time, queues: &Queues) -> Pick {
        let shortest = self.queues.peek().map(|(_, queue)| QueueId(queue));
        let head = shortest.and_then(|queue| queues.head(queue));
        head.map_or(Pick::Idle, |head| Pick::extent(queues.extent_from(head)))
    }

    fn removed(&mut self, _: Time, requests: &[Slot], _: Removal, queues: &Queues) {
        self.update(queues.queue(requests[0]), queues);
    }
}
