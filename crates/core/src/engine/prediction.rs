//! Holding batches back for what is predicted to arrive next to them.

use super::Engine;
use crate::batch::Batch;
use crate::delay::{Chosen, DelayedBatches, PARTS_MAX, Predictor, Work};
use crate::files::QueueId;
use crate::policy::Removal;
use crate::queues::{Queues, Slot, State};
use crate::request::Time;

/// Busy time between two reports of what was done.
const WORK_NS: u64 = 10_000_000;

/// A predictor, and the batches delayed because of it.
#[derive(Debug)]
pub(super) struct Prediction {
    /// `None`: it was taken away; what it had delayed may be there still.
    pub(super) predictor: Option<Box<dyn Predictor>>,
    pub(super) delayed: DelayedBatches,
    /// Scratch space: what is left over of a batch that was delayed.
    pub(super) rest: Vec<Slot>,
    /// Dispatched since the last report; `busy_ns`: up to that.
    pub(super) work: Work,
    /// The queue of the batch dispatched last, and where that ended.
    pub(super) last: Option<(QueueId, u64)>,
}

impl Engine {
    /// Uses a predictor from now on, or none, and hands back the one before, so that it can be dropped where that holds up
    /// nobody. It has an effect with policies that aggregate. Batches delayed because of the one before go now.
    pub fn set_predictor(&mut self, predictor: Option<Box<dyn Predictor>>) -> Option<Box<dyn Predictor>> {
        // Delayed batches stay where they are: the table of them outlives their predictor until it is empty.
        let Some(mut prediction) = self.prediction.take() else {
            let delayed = || DelayedBatches::new(self.config.files_max * 2);
            self.prediction = predictor.map(|predictor| Prediction {
                predictor: Some(predictor),
                delayed: delayed(),
                rest: Vec::with_capacity(PARTS_MAX),
                work: Work::default(),
                last: None,
            });
            return None;
        };
        prediction.delayed.release_all();
        let goes_on = predictor.is_some() || prediction.delayed.requests() > 0;
        let old = std::mem::replace(&mut prediction.predictor, predictor);
        if goes_on {
            self.prediction = Some(prediction);
        }
        old
    }

    /// There is a predictor, or what one has delayed.
    pub(super) fn predicts(&self) -> bool {
        self.prediction.as_ref().is_some_and(|p| p.predictor.is_some() || p.delayed.requests() > 0)
    }

    /// Requests in delayed batches.
    pub(super) fn delayed(&self) -> u32 {
        self.prediction.as_ref().map_or(0, |p| p.delayed.requests())
    }

    pub(super) fn device_busy(&mut self, now: Time, busy: bool) {
        if let Some(prediction) = &mut self.prediction {
            prediction.delayed.device_busy(now, busy);
        }
    }

    /// A batch goes to the device.
    pub(super) fn note_work(&mut self) {
        let Some(prediction) = &mut self.prediction else { return };
        let queue = self.queues.queue(self.candidate[0]);
        prediction.last = self.candidate.last().map(|&slot| (queue, self.queues.end(slot)));
        let op = queue.op().index();
        prediction.work.batches[op] += 1;
        prediction.work.bytes[op] += self.candidate.iter().map(|&slot| u64::from(self.queues.len(slot))).sum::<u64>();
    }

    /// A batch is complete: now and then the predictor hears what the device has done in how much time.
    pub(super) fn report_work(&mut self, now: Time) {
        let outstanding = self.queued() + self.queues.in_flight;
        let Some(Prediction { predictor, delayed, work, .. }) = &mut self.prediction else { return };
        let busy_ns = delayed.busy_until(now);
        // It may be less than at the last report where the time went backwards.
        let since = busy_ns.saturating_sub(work.busy_ns);
        if since < WORK_NS {
            return;
        }
        if let Some(predictor) = predictor {
            predictor.served(&Work { busy_ns: since, outstanding, ..*work });
        }
        *work = Work { busy_ns, ..Work::default() };
    }

    /// Dispatches a delayed batch that is complete or has waited long enough.
    pub(super) fn dispatch_delayed(&mut self, now: Time, batch: &mut Batch) -> bool {
        let Some(prediction) = &mut self.prediction else { return false };
        let limits = (self.queues.limits.bytes, self.queues.limits.requests);
        let mut rest = std::mem::take(&mut prediction.rest);
        let Some(report) = prediction.delayed.take_due(now, limits, &mut self.candidate, &mut rest) else {
            prediction.rest = rest;
            return false;
        };
        if let Some(predictor) = &mut prediction.predictor {
            predictor.waited(&report);
        }
        rest.iter().for_each(|&slot| self.queue_again(now, slot));
        if let Some(prediction) = &mut self.prediction {
            prediction.rest = rest;
        }
        self.start_batch(now, Removal::Picked, batch);
        true
    }

    /// Nothing else can be dispatched: a delayed batch goes rather than let the device idle for longer than it is worth.
    pub(super) fn dispatch_idle(&mut self, now: Time, batch: &mut Batch) -> bool {
        let idle = self.is_idle();
        let Some(prediction) = &mut self.prediction else { return false };
        idle && prediction.delayed.end_idle_wait(now) && self.dispatch_delayed(now, batch)
    }

    /// The device could serve more than it has.
    fn is_idle(&self) -> bool {
        let keeps_busy =
            self.prediction.as_ref().and_then(|p| p.predictor.as_ref()).map_or(1, |predictor| predictor.parallelism());
        self.queues.batches_in_flight < keeps_busy
    }

    pub(super) fn wake_for_delayed(&mut self) {
        let idle = self.is_idle();
        if let Some(due) = self.prediction.as_ref().and_then(|p| p.delayed.next_due(idle)) {
            self.wake = Some(self.wake.map_or(due, |wake| wake.min(due)));
        }
    }

    /// Takes the batch that the policy has picked out of the queue and delays it, if its predicted neighbours are worth
    /// waiting for. `deadline`: when the oldest queued request is overdue.
    pub(super) fn delay(&mut self, now: Time, first: Slot, parts: u32, deadline: Time) -> bool {
        let queue = self.queues.queue(first);
        if self.prediction.is_none() || !self.in_offset_order {
            return false;
        }
        let Some(chosen) = self.chosen(queue, first, parts) else { return false };
        let (requests_max, slice_end) = (self.queues.limits.requests, self.slice_end());
        let Some(prediction) = &mut self.prediction else { return false };
        if prediction.delayed.takes(queue, (chosen.offset, chosen.end), parts, requests_max) {
            self.join_extent(now, first, parts);
            return true;
        }
        if !prediction.delayed.has_room(queue, parts) {
            return false;
        }
        let expected = prediction.predictor.as_mut().and_then(|predictor| predictor.expect(now, &chosen));
        let Some(mut expected) = expected else { return false };
        let whole = expected.end.saturating_sub(expected.offset);
        let grows =
            expected.offset <= chosen.offset && expected.end >= chosen.end && whole > chosen.end - chosen.offset;
        expected.until = expected.until.min(deadline).min(slice_end);
        expected.idle_until = expected.idle_until.min(expected.until);
        // A batch that could not go as one is not worth waiting for.
        if !grows || expected.until <= now || whole > self.queues.limits.bytes {
            return false;
        }
        prediction.delayed.delay(now, queue, chosen, expected);
        self.join_extent(now, first, parts);
        self.join_queued(now, queue);
        if let Some(prediction) = &mut self.prediction {
            prediction.delayed.settle(queue);
        }
        true
    }

    /// The extent that the policy has picked; `None` if a part of it is empty, which has no place in a range.
    fn chosen(&self, queue: QueueId, first: Slot, parts: u32) -> Option<Chosen> {
        let mut chosen = Chosen {
            file: self.queues.file_id(queue),
            target: self.queues.target_of(queue),
            op: queue.op(),
            offset: self.queues.offset(first),
            end: self.queues.end(first),
            earliest: self.queues.arrived(first),
            continues: self.prediction.as_ref().and_then(|p| p.last) == Some((queue, self.queues.offset(first))),
        };
        let (mut at, mut empty) = (first, self.queues.len(first) == 0);
        for _ in 1..parts {
            let next = self.queues.next(at)?;
            empty |= self.queues.len(next) == 0;
            chosen.end = self.queues.end(next);
            chosen.earliest = chosen.earliest.min(self.queues.arrived(next));
            at = next;
        }
        (!empty).then_some(chosen)
    }

    /// An extent that the policy has picked joins the delayed batch of its queue, which has room for it.
    fn join_extent(&mut self, now: Time, first: Slot, parts: u32) {
        self.collect(first, parts);
        self.leave_queue(now, Removal::Picked);
        for at in 0..self.candidate.len() {
            let joined = self.try_join(now, self.candidate[at]);
            debug_assert!(joined, "there is room for the whole extent");
        }
    }

    /// A request has become eligible: joins a delayed batch if it is what was waited for.
    pub(super) fn join_delayed(&mut self, now: Time, slot: Slot) -> bool {
        if !self.try_join(now, slot) {
            return false;
        }
        if self.is_strict() {
            self.queues.enter_busy(slot);
        }
        self.policy.algorithm_mut().joined(now, slot, &self.queues);
        true
    }

    fn try_join(&mut self, now: Time, slot: Slot) -> bool {
        let queue = self.queues.queue(slot);
        let range = (self.queues.offset(slot), self.queues.end(slot));
        let requests_max = self.queues.limits.requests;
        let Some(prediction) = &mut self.prediction else { return false };
        let joined = prediction.delayed.join(now, queue, slot, range, requests_max);
        if joined {
            let entry = &mut self.queues.entries[slot as usize];
            let since = entry.eligible_since().unwrap_or(now);
            entry.state = State::Delayed { since };
        }
        joined
    }

    /// What is queued of the expected range joins the delayed batch, too.
    fn join_queued(&mut self, now: Time, queue: crate::files::QueueId) {
        let Some((offset, end)) = self.prediction.as_ref().and_then(|p| p.delayed.expected(queue)) else { return };
        let mut at = self.queues.at_or_after(queue, offset);
        while let Some(slot) = at.filter(|&slot| self.queues.offset(slot) < end) {
            at = self.queues.next(slot);
            if self.try_join(now, slot) {
                self.candidate.clear();
                self.candidate.push(slot);
                self.leave_queue(now, Removal::Joined);
            }
        }
    }

    /// Takes a request out of its delayed batch. The others are queued again, by their age.
    pub(super) fn cancel_delayed(&mut self, now: Time, slot: Slot) {
        let queue = self.queues.queue(slot);
        let Some(prediction) = &mut self.prediction else { return };
        prediction.delayed.take_queue(queue, &mut self.candidate);
        let others = self.candidate.len();
        for at in 0..others {
            let other = self.candidate[at];
            if other != slot {
                self.queue_again(now, other);
                continue;
            }
            self.policy.algorithm_mut().returned(now, other, &self.queues);
            if self.is_strict() {
                self.queues.leave_busy(other);
            }
        }
    }

    /// No batch is delayed any more; what they had is queued again. O(requests in delayed batches).
    pub(super) fn end_delays(&mut self, now: Time) {
        while let Some(prediction) = &mut self.prediction
            && prediction.delayed.take_some(&mut self.candidate)
        {
            for at in 0..self.candidate.len() {
                self.queue_again(now, self.candidate[at]);
            }
        }
    }

    /// A request of a delayed batch that has ended is queued as if it had never left.
    fn queue_again(&mut self, now: Time, slot: Slot) {
        if self.is_strict() {
            self.queues.leave_busy(slot);
        }
        self.policy.algorithm_mut().returned(now, slot, &self.queues);
        let entry = &mut self.queues.entries[slot as usize];
        let since = entry.eligible_since().unwrap_or(now);
        entry.state = State::Queued { since, place: 0 };
        self.enter_orders(now, slot);
        self.move_by_age(slot);
    }

    /// Moves a request that was queued just now to where its age belongs: the front of the order of arrival tells when
    /// somebody is overdue. O(requests that became eligible since this one did).
    pub(super) fn move_by_age(&mut self, slot: Slot) {
        let Queues { arrival, arrival_links, entries, .. } = &mut self.queues;
        let since = |slot: Slot| entries[slot as usize].eligible_since();
        arrival.remove(arrival_links, slot);
        arrival.insert_from_back(arrival_links, slot, |other| since(other) <= since(slot));
    }
}
