//! `template`: a policy to copy. Smallest request first; of equal ones, the oldest.

use super::{Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::heap::IndexedHeap;
use crate::queues::{Queues, Slot};
use crate::request::Time;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "template",
    summary: "the smallest request",
    source: "CONTRIBUTING.md",
    params: &[],
    aggregates: false,
    waits: false,
    bypasses_queue: false,
    shared_engine: false,
    build: |_: &Params<'_>, context: PolicyContext| {
        Box::new(SmallestFirst { order: IndexedHeap::new(context.capacity) })
    },
};

#[derive(Debug)]
struct SmallestFirst {
    order: IndexedHeap<(u32, u64)>,
}

impl Policy for SmallestFirst {
    fn enqueue(&mut self, _: Time, slot: Slot, queues: &Queues) {
        self.order.set(slot, (queues.len(slot), queues.place(slot)));
    }

    fn pick(&mut self, _: Time, _: &Queues) -> Pick {
        self.order.peek().map_or(Pick::Idle, |(_, slot)| Pick::one(slot))
    }

    fn removed(&mut self, _: Time, requests: &[Slot], _: Removal, _: &Queues) {
        requests.iter().for_each(|&slot| self.order.remove(slot));
    }
}
