//! Ordering safety: a request that overlaps an earlier, not yet completed request to the same file, at least one of the
//! two being a write, becomes eligible only after that one completes.
//!
//! Requests that are queued or in flight are *busy*. They are put into the interval tree of their file and operation only
//! when a check comes near them: until then they are in a list, with the stretch of the file that covers them. So reads
//! of a file that nobody writes, and writes that follow each other, cost O(1).
//!
//! A new request is checked against the interval trees of its file (a read against writes only). If something overlaps,
//! it is *blocked*: kept out of the policy's sight and attached to one request it overlaps. When that one completes or
//! is cancelled, the attached requests are checked again, in order of submission: each either becomes eligible or is
//! attached to another one, at once to the one before it if it overlaps that. So a request that nothing overlaps costs
//! O(log n) for the check, nothing where the file has no writes; k writes that all overlap each other form a chain, at
//! the latest when what they all wait for has gone, and cost O(log n) each.
//!
//! Everything in the `queued` and `busy` trees that conflicts with a blocked request is earlier than it (a later one
//! would itself be blocked by it); only among blocked requests the order of submission has to be compared. Their trees
//! have these numbers, so that what came later is passed over as a whole, not request by request. Where long ranges
//! that came later lie among short ones that came earlier, a check may still look at many.
//!
//! AGIOS has a coarser form of this (Boito 2015, 3.1.5), which blocks reads behind any queued write to the file.

use crate::list::NIL;
use crate::queues::{Blocked, Queues, Slot, State};
use crate::request::Op;

impl Queues {
    /// Makes an eligible request visible to the checks of later ones.
    pub(crate) fn enter_busy(&mut self, slot: Slot) {
        let queue = self.entries[slot as usize].queue;
        self.nodes.push_loose(&mut self.files.queue_mut(queue).loose, slot);
    }

    pub(crate) fn leave_busy(&mut self, slot: Slot) {
        let queue = self.files.queue_mut(self.entries[slot as usize].queue);
        if self.nodes.is_loose(slot) {
            self.nodes.remove_loose(&mut queue.loose, slot);
        } else {
            self.nodes.remove(&mut queue.busy, slot);
        }
    }

    /// A request that must complete before `slot` may start. `number`: the slot's place in the order of submission.
    ///
    /// Amortised, as each busy request is moved into a tree at most once, it costs what its searches do: see
    /// [`last_overlap_before`](crate::offset_tree::Nodes::last_overlap_before).
    pub(crate) fn conflict(&mut self, slot: Slot, number: u64) -> Option<Slot> {
        let (lo, hi) = (self.nodes.offset(slot), self.nodes.end(slot));
        let queue = self.entries[slot as usize].queue;
        let conflicting = match queue.op() {
            Op::Read => &mut self.files.queues_mut(queue)[1..],
            Op::Write => &mut self.files.queues_mut(queue)[..],
        };
        for q in conflicting.iter_mut().filter(|q| q.loose.may_overlap(lo, hi)) {
            self.nodes.settle(&mut q.loose, &mut q.busy);
        }
        // Blocked ones first, of equal ranges the latest: overlapping requests mostly form a chain then, not a star.
        for q in conflicting.iter().filter(|q| !q.blocked.is_empty()) {
            if let Some(found) = self.nodes.last_overlap_before(&q.blocked, lo, hi, number) {
                return Some(found);
            }
        }
        conflicting.iter().find_map(|q| {
            self.nodes.last_overlap(&q.queued, lo, hi).or_else(|| self.nodes.last_overlap(&q.busy, lo, hi))
        })
    }

    /// Whether one of two requests of a file, neither of them empty, must wait for the other.
    fn in_conflict(&self, one: Slot, other: Slot) -> bool {
        let writes = |slot: Slot| self.queue(slot).op() == Op::Write;
        let overlap = self.offset(one) < self.end(other) && self.offset(other) < self.end(one);
        overlap && (writes(one) || writes(other))
    }

    /// Puts a request that is in no tree behind `blocker`.
    pub(crate) fn block(&mut self, slot: Slot, blocker: Slot, number: u64) {
        self.blocked += 1;
        let queue = self.entries[slot as usize].queue;
        self.nodes.insert_numbered(&mut self.files.queue_mut(queue).blocked, slot, number);
        self.attach(slot, blocker);
    }

    /// In front of those behind `blocker`. So the latest of new requests is in front; one that was attached to another
    /// before may be earlier than some, which is for [`Queues::take_waiters`] to put right. O(1).
    fn attach(&mut self, slot: Slot, blocker: Slot) {
        let next = std::mem::replace(&mut self.entries[blocker as usize].waiters, slot);
        if let Some(behind) = self.waiting_mut(next) {
            behind.prev = slot;
        }
        self.entries[slot as usize].state = State::Blocked(Blocked { blocker, prev: NIL, next });
    }

    /// The blocked request in a slot, [`NIL`] allowed.
    fn waiting(&self, slot: Slot) -> Option<Blocked> {
        self.entries.get(slot as usize).and_then(|entry| entry.blocked()).copied()
    }

    fn waiting_mut(&mut self, slot: Slot) -> Option<&mut Blocked> {
        self.entries.get_mut(slot as usize).and_then(|entry| entry.blocked_mut())
    }

    /// Takes a blocked request out; it is then in no tree. O(log n).
    pub(crate) fn unblock(&mut self, slot: Slot) {
        let Some(Blocked { blocker, prev, next }) = self.waiting(slot) else { return };
        match self.waiting_mut(prev) {
            Some(before) => before.next = next,
            None => self.entries[blocker as usize].waiters = next,
        }
        if let Some(behind) = self.waiting_mut(next) {
            behind.prev = prev;
        }
        self.leave_blocked(slot);
    }

    fn leave_blocked(&mut self, slot: Slot) {
        let queue = self.entries[slot as usize].queue;
        self.nodes.remove_numbered(&mut self.files.queue_mut(queue).blocked, slot);
        self.blocked -= 1;
    }

    /// Takes the requests attached to `slot` off it and returns the first in order of submission; follow [`Queues::next_waiter`].
    ///
    /// O(k) for k requests that were attached in that order, O(k log k) for any.
    pub(crate) fn take_waiters(&mut self, slot: Slot) -> Slot {
        // A merge sort. At each place is nothing, or what twice as many runs as at the place before were merged to.
        let mut merged = [NIL; Slot::BITS as usize];
        let mut rest = std::mem::replace(&mut self.entries[slot as usize].waiters, NIL);
        while rest != NIL {
            let mut run = self.take_run(&mut rest);
            let mut place = 0;
            while merged[place] != NIL {
                run = self.merge(std::mem::replace(&mut merged[place], NIL), run);
                place += 1;
            }
            merged[place] = run;
        }
        merged.into_iter().filter(|&run| run != NIL).fold(NIL, |all, run| self.merge(all, run))
    }

    /// As many from the front of a list as have the later ones in front, turned round.
    fn take_run(&mut self, rest: &mut Slot) -> Slot {
        let mut run = NIL;
        while *rest != NIL && (run == NIL || self.nodes.number(*rest) < self.nodes.number(run)) {
            let next = self.put_behind(*rest, run);
            run = std::mem::replace(rest, next);
        }
        run
    }

    /// Makes one of two lists, both in order of submission.
    fn merge(&mut self, mut one: Slot, mut other: Slot) -> Slot {
        let (mut first, mut last) = (NIL, NIL);
        while one != NIL && other != NIL {
            if self.nodes.number(other) < self.nodes.number(one) {
                std::mem::swap(&mut one, &mut other);
            }
            match last {
                NIL => first = one,
                last => _ = self.put_behind(last, one),
            }
            last = one;
            one = self.next_waiter(one);
        }
        let rest = if one == NIL { other } else { one };
        if last == NIL {
            return rest;
        }
        self.put_behind(last, rest);
        first
    }

    /// Behind `slot`, which is blocked, comes `next` now; returns what came before.
    fn put_behind(&mut self, slot: Slot, next: Slot) -> Slot {
        self.waiting_mut(slot).map_or(NIL, |blocked| std::mem::replace(&mut blocked.next, next))
    }

    /// The one behind `slot`, which is blocked.
    pub(crate) fn next_waiter(&self, slot: Slot) -> Slot {
        self.waiting(slot).map_or(NIL, |blocked| blocked.next)
    }

    /// Checks a request that was attached to one that is gone: true if it is free now (and then in no tree). `before`:
    /// the one that was checked before it, [`NIL`] allowed. Where they conflict nothing is searched, and those that
    /// overlap each other, but all waited for the same one, become a chain.
    pub(crate) fn recheck(&mut self, slot: Slot, before: Slot) -> bool {
        let number = self.nodes.number(slot);
        let near = Some(before).filter(|&before| before != NIL && self.in_conflict(slot, before));
        match near.or_else(|| self.conflict(slot, number)) {
            Some(blocker) => {
                self.attach(slot, blocker);
                false
            }
            None => {
                self.leave_blocked(slot);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset_tree::LOOKED_AT;
    use crate::queues::BatchLimits;
    use crate::request::{AppId, FileId, Outcome, Request, TargetId, Time};
    use crate::{Batch, Engine, EngineConfig, PolicyConfig};
    use proptest::prelude::*;

    fn write(cookie: u64, offset: u64) -> Request {
        let (file, app, target) = (FileId(1), AppId(0), TargetId(0));
        Request { cookie, file, app, target, op: Op::Write, offset, len: 8_192 }
    }

    /// At the same place, and each a byte above or below the one before.
    #[test]
    fn writes_that_all_overlap_look_at_few_others() {
        const WRITES: u64 = 4_096;
        for (first, last) in [(0, 0), (0, WRITES), (WRITES, 0)] {
            let config = EngineConfig { capacity: WRITES as u32, ..EngineConfig::default() };
            let mut engine = Engine::new(config, &PolicyConfig::parse("noop").unwrap(), Time(1)).unwrap();
            LOOKED_AT.set(0);
            for n in 0..WRITES {
                let offset = (first * (WRITES - n) + last * n) / WRITES;
                engine.submit(Time(1), write(n, offset)).unwrap();
            }
            let (mut batch, mut ended) = (Batch::new(), 0);
            while engine.poll_dispatch(Time(1), &mut batch) {
                for part in batch.parts() {
                    assert_eq!(part.request.cookie, ended);
                    engine.complete(Time(1), part.id, Outcome::ok(part.request.len)).unwrap();
                    ended += 1;
                }
            }
            assert_eq!(ended, WRITES);
            let looked_at = LOOKED_AT.get();
            assert!(looked_at < WRITES * 64, "{looked_at} from {first} to {last}");
        }
    }

    proptest! {
        /// Whatever the order in which they were attached.
        #[test]
        fn waiters_are_taken_in_order_of_submission(
            numbers in Just((1..64).collect::<Vec<u64>>()).prop_shuffle(),
            cancelled in prop::collection::vec(any::<bool>(), 63),
        ) {
            let mut queues = Queues::new(64, 1, BatchLimits { bytes: 1, requests: 1 });
            let (blocker, _) = queues.allocate(Time(1), &write(0, 0)).unwrap();
            let mut waiters = Vec::new();
            for number in numbers {
                let (slot, _) = queues.allocate(Time(1), &write(number, 0)).unwrap();
                queues.block(slot, blocker, number);
                waiters.push((number, slot));
            }
            let mut left = Vec::new();
            for ((number, slot), cancelled) in waiters.into_iter().zip(cancelled) {
                if cancelled {
                    queues.unblock(slot);
                } else {
                    left.push((number, slot));
                }
            }
            left.sort_unstable();
            let mut at = queues.take_waiters(blocker);
            for (_, slot) in left {
                prop_assert_eq!(at, slot);
                at = queues.next_waiter(at);
            }
            prop_assert_eq!(at, NIL);
        }
    }
}
