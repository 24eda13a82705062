//! `to`: time order. One timeline; the oldest request goes next, as fast as the in-flight limit allows
//! (Boito 2015, section 3.1.4).

use super::{Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::queues::{Queues, Slot};
use crate::request::Time;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "to",
    summary: "the oldest request",
    source: "Boito 2015, 3.1.4",
    params: &[],
    aggregates: false,
    waits: false,
    bypasses_queue: false,
    shared_engine: false,
    build: |_: &Params<'_>, _: PolicyContext| Box::new(TimeOrder),
};

#[derive(Debug)]
struct TimeOrder;

impl Policy for TimeOrder {
    fn enqueue(&mut self, _: Time, _: Slot, _: &Queues) {}

    fn pick(&mut self, _: Time, queues: &Queues) -> Pick {
        queues.oldest().map_or(Pick::Idle, Pick::one)
    }

    fn removed(&mut self, _: Time, _: &[Slot], _: Removal, _: &Queues) {}
}
