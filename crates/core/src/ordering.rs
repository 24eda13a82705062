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
//! attached to another one. So a request that nothing overlaps costs O(log n) for the check, nothing where the file has
//! no writes; k requests that all overlap each other form a chain and cost O(log n) each.
//!
//! Everything in the `queued` and `busy` trees that conflicts with a blocked request is earlier than it (a later one
//! would itself be blocked by it); only among blocked requests the order of submission has to be compared.
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
    /// O(log n) amortised: each busy request is moved into a tree at most once.
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
        // The latest blocked one first: overlapping requests then form a chain instead of a star.
        let earlier = |other: Slot| self.entries[other as usize].blocked().is_some_and(|other| other.number < number);
        for q in conflicting.iter().filter(|q| !q.blocked.is_empty()) {
            if let Some(found) = self.nodes.last_overlap(&q.blocked, lo, hi, &earlier) {
                return Some(found);
            }
        }
        conflicting.iter().find_map(|q| {
            self.nodes
                .last_overlap(&q.queued, lo, hi, &|_| true)
                .or_else(|| self.nodes.last_overlap(&q.busy, lo, hi, &|_| true))
        })
    }

    /// Puts a request that is in no tree behind `blocker`.
    pub(crate) fn block(&mut self, slot: Slot, blocker: Slot, number: u64) {
        self.blocked += 1;
        self.tree_insert(slot, |q| &mut q.blocked);
        self.attach(slot, blocker, number);
    }

    /// Keeps the list of those behind `blocker` in order of submission, the latest in front: a new request goes in front
    /// at once; only one that was attached to another before may have to pass some.
    fn attach(&mut self, slot: Slot, blocker: Slot, number: u64) {
        let (mut before, mut at) = (NIL, self.entries[blocker as usize].waiters);
        while let Some(other) = self.waiting(at)
            && other.number > number
        {
            (before, at) = (at, other.next);
        }
        self.entries[slot as usize].state = State::Blocked(Blocked { number, blocker, next: at });
        self.link_waiter(blocker, before, slot);
    }

    /// The blocked request in a slot, [`NIL`] allowed.
    fn waiting(&self, slot: Slot) -> Option<Blocked> {
        self.entries.get(slot as usize).and_then(|entry| entry.blocked()).copied()
    }

    /// Behind `before` of those that wait for `blocker`, or in front of all, comes `slot` now.
    fn link_waiter(&mut self, blocker: Slot, before: Slot, slot: Slot) {
        match self.entries.get_mut(before as usize).and_then(|entry| entry.blocked_mut()) {
            Some(before) => before.next = slot,
            None => self.entries[blocker as usize].waiters = slot,
        }
    }

    /// Takes a blocked request out; it is then in no tree. O(requests attached to the same one).
    pub(crate) fn unblock(&mut self, slot: Slot) {
        let Some(Blocked { blocker, next, .. }) = self.waiting(slot) else { return };
        let (mut before, mut at) = (NIL, self.entries[blocker as usize].waiters);
        while let Some(other) = self.waiting(at).filter(|_| at != slot) {
            (before, at) = (at, other.next);
        }
        self.link_waiter(blocker, before, next);
        self.leave_blocked(slot);
    }

    fn leave_blocked(&mut self, slot: Slot) {
        self.tree_remove(slot, |q| &mut q.blocked);
        self.blocked -= 1;
    }

    /// Takes the requests attached to `slot` off it and returns the first in order of submission; follow [`Queues::next_waiter`].
    pub(crate) fn take_waiters(&mut self, slot: Slot) -> Slot {
        // The latest is in front, so the list has to be turned round.
        let mut at = std::mem::replace(&mut self.entries[slot as usize].waiters, NIL);
        let mut turned = NIL;
        while let Some(blocked) = self.entries.get_mut(at as usize).and_then(|entry| entry.blocked_mut()) {
            let next = std::mem::replace(&mut blocked.next, turned);
            turned = at;
            at = next;
        }
        turned
    }

    /// The one behind `slot`, which is blocked.
    pub(crate) fn next_waiter(&self, slot: Slot) -> Slot {
        self.waiting(slot).map_or(NIL, |blocked| blocked.next)
    }

    /// Checks a request that was attached to one that is gone: true if it is free now (and then in no tree).
    pub(crate) fn recheck(&mut self, slot: Slot) -> bool {
        let number = self.waiting(slot).map_or(0, |blocked| blocked.number);
        match self.conflict(slot, number) {
            Some(blocker) => {
                self.attach(slot, blocker, number);
                false
            }
            None => {
                self.leave_blocked(slot);
                true
            }
        }
    }
}
