//! `aioli`: first come, first served between file queues (by their oldest request), offset order within, quanta
//! (Lebre et al. 2006; Boito 2015, 3.1.1).
//!
//! * Each selection is a step; a request's quantum is 0 when it arrives, the base quantum after one step, and doubles
//!   with each further one. A queue may be selected when the sum of the quanta of its lowest-offset batch's parts covers
//!   the batch. Of those that may, the one with the oldest request is; where none may, steps pass until one does.
//! * A queue has a quantum of its own for its turn: after the first batch, which always goes, it goes on with the batch
//!   that begins exactly where the last one ended, while that fits into what is left. At the end of the turn, bytes
//!   used / quantum decides the next quantum: from 1.75 on twice, from 1.25 on one and a half times, from 0.75 on the
//!   same, else half of it; never less than the base quantum nor more than the largest batch.
//! * Before its turn a queue may [wait](super::anticipation).
//! * `synchronous`: nothing is dispatched while anything is in flight.
//!
//! The step at which a batch is covered is computed in closed form when it is the queue's turn to be looked at. A queue
//! that is not covered is put aside until that step or its next arrival: no step visits all queues or all requests.
//! Deviation: only a queue's head batch is considered (the original looks for any covered request).

use super::anticipation::Anticipation;
use super::mlf::quantum;
use super::{Kind, ParamInfo, Params, Pick, Policy, PolicyContext, PolicyInfo, Removal};
use crate::files::QueueId;
use crate::heap::IndexedHeap;
use crate::list::{Links, List};
use crate::queues::{Extent, Queues, Slot};
use crate::request::Time;

pub(super) static INFO: PolicyInfo = PolicyInfo {
    name: "aioli",
    summary: "first come, first served between file queues, offset order and growing quanta within",
    source: "Lebre et al. 2006; Boito 2015, 3.1.1",
    params: &[
        ParamInfo {
            key: "quantum",
            kind: Kind::Bytes,
            default: 64 << 10,
            min: 1,
            max: 1 << 40,
            help: "quantum of a request after one step, and least quantum of a queue",
        },
        ParamInfo {
            key: "wait_time",
            kind: Kind::Duration,
            default: 900_000,
            min: 0,
            max: 10_000_000_000,
            help: "how long a queue waits for a better batch; 0: never",
        },
        ParamInfo {
            key: "synchronous",
            kind: Kind::Bool,
            default: 1,
            min: 0,
            max: 1,
            help: "false: do not wait for completions, for devices that need parallel requests",
        },
    ],
    aggregates: true,
    waits: true,
    bypasses_queue: false,
    shared_engine: false,
    build: |params: &Params<'_>, context: PolicyContext| {
        let base = params.get("quantum");
        Box::new(Aioli {
            base,
            synchronous: params.flag("synchronous"),
            step: 0,
            turn: None,
            step_at_arrival: vec![0; context.capacity as usize],
            by_arrival: vec![List::new(); context.queues as usize],
            links: Links::new(context.capacity),
            quanta: vec![base; context.queues as usize],
            ready: IndexedHeap::new(context.queues),
            growing: IndexedHeap::new(context.queues),
            anticipation: Anticipation::new(params.get("wait_time"), context.queues),
        })
    },
};

/// The queue that was selected and may go on.
#[derive(Clone, Copy, Debug)]
struct Turn {
    queue: QueueId,
    /// End of its last batch.
    end: u64,
    used: u64,
}

#[derive(Debug)]
struct Aioli {
    base: u64,
    synchronous: bool,
    step: u64,
    turn: Option<Turn>,
    /// Steps wrap round; a request does not stay for 2^32 of them.
    step_at_arrival: Vec<u32>,
    /// The requests of each queue in order of arrival.
    by_arrival: Vec<List>,
    links: Links,
    /// Quantum for the next turn of each queue.
    quanta: Vec<u64>,
    /// Queues that may be covered, by their oldest request.
    ready: IndexedHeap<u64>,
    /// Queues that are not, by the step at which they will be.
    growing: IndexedHeap<u64>,
    anticipation: Anticipation,
}

impl Aioli {
    /// The first step, not before the present one, at which the parts' quanta cover the extent. O(parts).
    fn covered_at(&self, extent: &Extent, queues: &Queues) -> u64 {
        let (mut sum, mut fresh) = (0_u64, 0_u64);
        let mut at = Some(extent.first);
        for _ in 0..extent.parts {
            let Some(slot) = at else { break };
            let age = (self.step as u32).wrapping_sub(self.step_at_arrival[slot as usize]);
            sum = sum.saturating_add(quantum(self.base, age));
            fresh += u64::from(age == 0);
            if sum >= extent.bytes {
                return self.step;
            }
            at = queues.next(slot);
        }
        let mut step = self.step;
        while sum < extent.bytes {
            step += 1;
            sum = sum.saturating_mul(2).saturating_add(self.base.saturating_mul(std::mem::take(&mut fresh)));
        }
        step
    }

    fn make_ready(&mut self, queue: QueueId, queues: &Queues) {
        if let Some(oldest) = self.by_arrival[queue.0 as usize].front() {
            self.ready.set(queue.0, queues.place(oldest));
        }
    }

    /// The next batch of the queue whose turn it is, if it begins where the last one ended and quantum is left.
    fn go_on(&self, turn: &Turn, queues: &Queues) -> Option<Extent> {
        let left = self.quanta[turn.queue.0 as usize].checked_sub(turn.used)?;
        let first = queues.starting_at(turn.queue, turn.end)?;
        (u64::from(queues.len(first)) <= left).then(|| queues.extent_while(first, left, u32::MAX, |_| true))
    }

    fn end_turn(&mut self, turn: &Turn, queues: &Queues) {
        let given = self.quanta[turn.queue.0 as usize];
        let used = u128::from(turn.used) * 4;
        let next = match u128::from(given) {
            g if used >= g * 7 => given.saturating_mul(2),
            g if used >= g * 5 => given.saturating_add(given / 2),
            g if used >= g * 3 => given,
            _ => given / 2,
        };
        self.quanta[turn.queue.0 as usize] = next.min(queues.batch_bytes_max()).max(self.base);
    }

    /// Queues covered by now are ready.
    fn advance(&mut self, queues: &Queues) {
        while let Some((_, queue)) = self.growing.peek().filter(|&(step, _)| step <= self.step) {
            self.growing.remove(queue);
            self.make_ready(QueueId(queue), queues);
        }
    }
}

impl Policy for Aioli {
    fn aggregates(&self) -> bool {
        true
    }

    fn enqueue(&mut self, _: Time, slot: Slot, queues: &Queues) {
        let queue = queues.queue(slot);
        self.step_at_arrival[slot as usize] = self.step as u32;
        self.by_arrival[queue.0 as usize].push_back(&mut self.links, slot);
        if self.anticipation.is_waiting(queue) && !self.anticipation.arrived(queue, queues) {
            return;
        }
        // An arrival is never the oldest of a queue that is ready. Otherwise it may have changed the head batch: the
        // queue has to be looked at anew.
        if !self.ready.contains(queue.0) {
            self.growing.remove(queue.0);
            self.make_ready(queue, queues);
        }
    }

    fn pick(&mut self, now: Time, queues: &Queues) -> Pick {
        if self.synchronous && queues.batches_in_flight() > 0 {
            return Pick::Idle;
        }
        if let Some(turn) = self.turn {
            if let Some(extent) = self.go_on(&turn, queues) {
                return Pick::extent(extent);
            }
            self.end_turn(&turn, queues);
            self.turn = None;
        }
        while let Some(queue) = self.anticipation.expire(now) {
            self.make_ready(queue, queues);
        }
        self.step += 1;
        loop {
            self.advance(queues);
            while let Some((_, queue)) = self.ready.peek() {
                let queue = QueueId(queue);
                let Some(head) = queues.head(queue) else { break };
                let extent = queues.extent_from(head);
                let covered_at = self.covered_at(&extent, queues);
                if covered_at > self.step {
                    self.ready.remove(queue.0);
                    self.growing.set(queue.0, covered_at);
                } else if self.anticipation.wait(now, queue, &extent, queues) {
                    self.ready.remove(queue.0);
                } else {
                    return Pick::extent(extent);
                }
            }
            match self.growing.peek() {
                Some((step, _)) => self.step = step,
                None => return self.anticipation.deadline().map_or(Pick::Idle, Pick::WaitUntil),
            }
        }
    }

    fn removed(&mut self, _: Time, requests: &[Slot], why: Removal, queues: &Queues) {
        let queue = queues.queue(requests[0]);
        let mut bytes = 0;
        for &slot in requests {
            self.by_arrival[queue.0 as usize].remove(&mut self.links, slot);
            bytes += u64::from(queues.len(slot));
        }
        if matches!(why, Removal::Picked | Removal::Overdue | Removal::Continued) {
            self.anticipation.dispatched(queue, requests, queues);
        }
        if why == Removal::Picked {
            let used = self.turn.map_or(0, |turn| turn.used);
            self.turn = Some(Turn { queue, end: queues.end(requests[requests.len() - 1]), used: used + bytes });
        }
        self.growing.remove(queue.0);
        if queues.count(queue) == 0 {
            self.ready.remove(queue.0);
            self.anticipation.end_wait(queue);
        } else if !self.anticipation.is_waiting(queue) {
            self.make_ready(queue, queues);
        }
    }

    fn forget(&mut self, queue: QueueId) {
        self.anticipation.forget(queue);
        self.quanta[queue.0 as usize] = self.base;
        self.turn = self.turn.filter(|turn| turn.queue != queue);
    }
}
