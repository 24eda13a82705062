//! Holding batches back for what is predicted to arrive next to them.

use super::{Engine, Prediction};
use crate::batch::Batch;
use crate::hold::{Chosen, Holds, Predictor};
use crate::policy::Removal;
use crate::queues::{Queues, Slot, State};
use crate::request::Time;

impl Engine {
    /// Uses a predictor from now on, or none. It has an effect with policies that aggregate. Batches held because of the
    /// one before go now.
    pub fn set_predictor(&mut self, predictor: Option<Box<dyn Predictor>>) {
        // Held batches stay where they are: the holds outlive their predictor until they are empty.
        self.prediction = match (predictor, self.prediction.take()) {
            (Some(predictor), Some(mut old)) => {
                old.holds.release_all();
                Some(Prediction { predictor, ..old })
            }
            (Some(predictor), None) => Some(Prediction { predictor, holds: Holds::new(self.config.files_max * 2) }),
            (None, Some(mut old)) if old.holds.requests() > 0 => {
                old.holds.release_all();
                Some(Prediction { predictor: Box::new(NoPrediction), ..old })
            }
            (None, _) => None,
        };
    }

    /// Requests in held batches.
    pub(super) fn held(&self) -> u32 {
        self.prediction.as_ref().map_or(0, |p| p.holds.requests())
    }

    pub(super) fn device_busy(&mut self, now: Time, busy: bool) {
        if let Some(prediction) = &mut self.prediction {
            prediction.holds.device_busy(now, busy);
        }
    }

    /// Dispatches a held batch that is complete or has waited long enough.
    pub(super) fn dispatch_held(&mut self, now: Time, batch: &mut Batch) -> bool {
        let Some(prediction) = &mut self.prediction else { return false };
        let Some(report) = prediction.holds.take_due(now, &mut self.run) else { return false };
        prediction.predictor.waited(&report);
        self.start_batch(now, false, batch);
        true
    }

    pub(super) fn wake_for_held(&mut self) {
        if let Some(due) = self.prediction.as_ref().and_then(|p| p.holds.next_due()) {
            self.wake = Some(self.wake.map_or(due, |wake| wake.min(due)));
        }
    }

    /// Takes the batch that the policy has picked out of the queue and holds it, if its predicted neighbours are worth
    /// waiting for. `deadline`: when the oldest queued request is overdue.
    pub(super) fn hold_back(&mut self, now: Time, first: Slot, parts: u32, deadline: Time) -> bool {
        let queue = self.queues.queue(first);
        let Some(prediction) = &mut self.prediction else { return false };
        if !self.in_offset_order || !prediction.holds.has_room(queue, parts) {
            return false;
        }
        let mut chosen = Chosen {
            file: self.queues.file_id(queue),
            op: queue.op(),
            offset: self.queues.offset(first),
            end: self.queues.end(first),
            earliest: self.queues.arrived(first),
        };
        let mut at = first;
        for _ in 1..parts {
            let Some(next) = self.queues.next(at) else { break };
            chosen.end = self.queues.end(next);
            chosen.earliest = chosen.earliest.min(self.queues.arrived(next));
            at = next;
        }
        let Some(mut expected) = prediction.predictor.expect(now, &chosen) else { return false };
        let whole = expected.end.saturating_sub(expected.offset);
        let grows =
            expected.offset <= chosen.offset && expected.end >= chosen.end && whole > chosen.end - chosen.offset;
        expected.until = expected.until.min(deadline);
        if !grows || expected.until <= now {
            return false;
        }
        self.collect(first, parts);
        self.leave_queue(now, Removal::Picked);
        for &slot in &self.run {
            self.queues.entries[slot as usize].state = State::Held;
        }
        if let Some(prediction) = &mut self.prediction {
            prediction.holds.hold(now, queue, chosen, expected, &self.run);
        }
        self.join_neighbours(now, queue);
        true
    }

    /// A request has become eligible: joins a held batch if it is what was waited for.
    pub(super) fn join_held(&mut self, now: Time, slot: Slot) -> bool {
        if !self.try_join(slot) {
            return false;
        }
        if self.is_strict() {
            self.queues.enter_busy(slot);
        }
        self.join_neighbours(now, self.queues.queue(slot));
        true
    }

    fn try_join(&mut self, slot: Slot) -> bool {
        let queue = self.queues.queue(slot);
        let range = (self.queues.offset(slot), self.queues.end(slot));
        let limits = self.queues.limits;
        let Some(prediction) = &mut self.prediction else { return false };
        let joined = prediction.holds.join(queue, slot, range, limits.bytes, limits.requests);
        if joined {
            self.queues.entries[slot as usize].state = State::Held;
        }
        joined
    }

    /// What is queued right behind a held batch joins it, too.
    fn join_neighbours(&mut self, now: Time, queue: crate::files::QueueId) {
        while self.in_offset_order
            && let Some((_, end)) = self.prediction.as_ref().and_then(|p| p.holds.held(queue))
            && let Some(next) = self.queues.starting_at(queue, end)
            && self.try_join(next)
        {
            self.run.clear();
            self.run.push(next);
            self.leave_queue(now, Removal::Joined);
        }
    }

    /// Takes a request out of its held batch. The others are queued again, by their age.
    pub(super) fn cancel_held(&mut self, now: Time, slot: Slot) {
        let queue = self.queues.queue(slot);
        let Some(prediction) = &mut self.prediction else { return };
        prediction.holds.take_queue(now, queue, &mut self.run);
        let others = self.run.len();
        for at in 0..others {
            let other = self.run[at];
            if self.is_strict() {
                self.queues.leave_busy(other);
            }
            if other != slot {
                self.queues.entries[other as usize].state = State::Queued;
                self.enter_orders(now, other);
                self.move_by_age(other);
            }
        }
    }

    /// Moves a request that was queued just now to where its age belongs: the front of the order of arrival tells when
    /// somebody is overdue. O(requests that became eligible since this one did).
    fn move_by_age(&mut self, slot: Slot) {
        let Queues { arrival, arrival_links, entries, .. } = &mut self.queues;
        let since = |slot: Slot| entries[slot as usize].since;
        arrival.remove(arrival_links, slot);
        arrival.insert_from_back(arrival_links, slot, |other| since(other) <= since(slot));
    }
}

/// In the place of a predictor that was taken away, while batches held because of it are left.
#[derive(Debug)]
struct NoPrediction;

impl Predictor for NoPrediction {
    fn submitted(&mut self, _: Time, _: &crate::request::Request) {}

    fn expect(&mut self, _: Time, _: &Chosen) -> Option<crate::hold::Expected> {
        None
    }
}
