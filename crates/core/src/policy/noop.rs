//! `noop`: every request leaves at once, in order of arrival (AGIOS v2).
//!
//! The baseline of every comparison. The in-flight limit does not apply, so that the device's own queue sees everything,
//! as without a scheduler; ordering safety still does.

use super::{Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::queues::{Queues, Slot};
use crate::request::Time;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "noop",
    summary: "every request leaves at once",
    source: "AGIOS v2",
    params: &[],
    aggregates: false,
    waits: false,
    bypasses_queue: true,
    shared_engine: false,
    build: |_: &Params<'_>, _: PolicyContext| Box::new(Noop),
};

#[derive(Debug)]
struct Noop;

impl Policy for Noop {
    fn enqueue(&mut self, _: Time, _: Slot, _: &Queues) {}

    fn pick(&mut self, _: Time, queues: &Queues) -> Pick {
        queues.oldest().map_or(Pick::Idle, Pick::one)
    }

    fn removed(&mut self, _: Time, _: &[Slot], _: Removal, _: &Queues) {}
}
