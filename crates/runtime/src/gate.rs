//! Waiting for a condition on atomics, at no cost to those who change them while nobody waits.

use std::time::Instant;

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, Thread, park, sabotaged, thread, wait_on};

/// An event count. A changer changes (sequentially consistent), then calls [`Gate::changed`], which reads `waiting`; a waiter
/// adds itself to `waiting`, notes `changes`, and then looks at what may change. One of the two sees the other. Conditions
/// are looked at without a lock held, so they may do what they like, call [`Gate::changed`] of this very gate included.
#[derive(Default)]
pub(crate) struct Gate {
    waiting: AtomicU32,
    changes: AtomicU64,
    /// Waiters that are parked, as others have them unparked, too.
    lock: Mutex<Vec<Thread>>,
    condition: Condvar,
}

impl Gate {
    pub(crate) fn changed(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 && !sabotaged!(GateWakesNobody) {
            self.changes.fetch_add(1, Ordering::SeqCst);
            // With the lock, so that a waiter between its check and its sleep is let to sleep first.
            self.lock.lock().iter().for_each(Thread::unpark);
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

    /// As [`Gate::wait`], for a thread that is unparked for other reasons, too. `done` sees to those; after it `may_park` gives for
    /// how many nanoseconds there are none (`None`: until it is unparked), or that there are.
    pub(crate) fn wait_parked(
        &self,
        until: Option<Instant>,
        mut done: impl FnMut() -> bool,
        may_park: impl Fn() -> Result<Option<u64>, ()>,
    ) -> bool {
        let this = thread::current();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.lock.lock().push(this.clone());
        let is_done = loop {
            // Before the look, which takes time.
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_done = done();
            if is_done || left.is_some_and(|left| left.is_zero()) {
                break is_done;
            }
            if let Ok(ns) = may_park() {
                let left = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
                park(ns.into_iter().chain(left).min());
            }
        };
        let mut parked = self.lock.lock();
        // A host that it has called meanwhile may wait here, too: then it is in there twice.
        if let Some(at) = parked.iter().position(|thread| thread.id() == this.id()) {
            parked.swap_remove(at);
        }
        drop(parked);
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
