//! Waiting for a condition on atomics, at no cost to those who change them while nobody waits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A changer changes (sequentially consistent) and then calls [`Gate::changed`], which reads `waiting`; a waiter adds
/// itself to `waiting` and then reads what may change. One of the two sees the other.
#[derive(Default)]
pub(crate) struct Gate {
    waiting: AtomicU32,
    lock: Mutex<()>,
    condition: Condvar,
}

impl Gate {
    pub(crate) fn changed(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
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
        let mut guard = self.lock.lock();
        let mut is_done = done();
        let mut in_time = true;
        while in_time && !is_done {
            match until {
                None => self.condition.wait(&mut guard),
                Some(at) => in_time = !self.condition.wait_until(&mut guard, at).timed_out(),
            }
            is_done = done();
        }
        drop(guard);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        is_done
    }
}
