//! `to-agg`: time order with aggregation. The oldest request goes next, together with every queued request that is
//! contiguous to it (Boito 2015, section 3.1.4).
//!
//! The original searches its whole timeline for contiguous requests when one arrives (O(N)); here the file queues in
//! offset order give the neighbours at once. Deviation: where the bounds on a batch do not allow all of them, those
//! behind the oldest request are taken before those in front of it.

use super::{Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::queues::{Queues, Slot};
use crate::request::Time;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "to-agg",
    summary: "the oldest request, with every queued request contiguous to it",
    source: "Boito 2015, 3.1.4",
    params: &[],
    aggregates: true,
    waits: false,
    bypasses_queue: false,
    shared_engine: false,
    build: |_: &Params<'_>, _: PolicyContext| Box::new(TimeOrderAggregating),
};

#[derive(Debug)]
struct TimeOrderAggregating;

impl Policy for TimeOrderAggregating {
    fn aggregates(&self) -> bool {
        true
    }

    fn enqueue(&mut self, _: Time, _: Slot, _: &Queues) {}

    fn pick(&mut self, _: Time, queues: &Queues) -> Pick {
        queues.oldest().map_or(Pick::Idle, |slot| Pick::extent(queues.extent_around(slot)))
    }

    fn removed(&mut self, _: Time, _: &[Slot], _: Removal, _: &Queues) {}
}
