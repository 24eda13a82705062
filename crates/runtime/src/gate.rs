//! Waiting for a condition on atomics, at no cost to those who change them while nobody waits.

use std::time::Instant;

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, sabotaged, wait_on};

/// An event count. A changer changes (sequentially consistent), then calls [`Gate::changed`], which reads `waiting`; a waiter
/// adds itself to `waiting`, notes `changes`, and then looks at what may change. One of the two sees the other. Conditions
/// are looked at without a lock held, so they may do what they like, call [`Gate::changed`] of this very gate included.
#[derive(Default)]
pub(crate) struct Gate {
    waiting: AtomicU32,
    changes: AtomicU64,
    lock: Mutex<()>,
    condition: Condvar,
}

impl Gate {
    pub(crate) fn changed(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 && !sabotaged!(GateWakesNobody) {
            self.changes.fetch_add(1, Ordering::SeqCst);
            drop(self.lock.lock()); // a waiter between its check and its sleep is let to sleep first
            self.condition.notify_all();
        }
    }

    /// Waits until `done`; false if that took until after `until`. `done` reads sequentially consistently.
    pub(crate) fn wait(&self, until: Option<Instant>, mut done: impl FnMut() -> bool) -> bool {
        if done() {
            return true;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let is_done = loop {
            let seen = self.changes.load(Ordering::SeqCst);
            if !sabotaged!(GateSleepsUnchecked) && done() {
                break true;
            }
            if !self.sleep(seen, until) {
                break done();
            }
            if sabotaged!(GateSleepsUnchecked) && done() {
                break true;
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        is_done
    }

    /// Sleeps while nothing has changed since `seen`; false if the time is over.
    fn sleep(&self, seen: u64, until: Option<Instant>) -> bool {
        let mut guard = self.lock.lock();
        while self.changes.load(Ordering::SeqCst) == seen {
            let in_time;
            (guard, in_time) = wait_on(&self.condition, guard, until);
            if !in_time {
                return false;
            }
        }
        true
    }
}
