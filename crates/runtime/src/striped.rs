//! A count that many threads change and few read: each thread has a cache line of it, nearly always for itself.

use std::cell::Cell;

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicU64, Ordering};

const STRIPES: usize = 8;

#[derive(Default)]
pub(crate) struct Striped([CachePadded<AtomicU64>; STRIPES]);

impl Striped {
    fn own(&self) -> &AtomicU64 {
        &self.0[thread_number() as usize % STRIPES]
    }

    pub(crate) fn increase(&self) {
        self.own().fetch_add(1, Ordering::SeqCst);
    }

    /// By any thread, after the increase.
    pub(crate) fn decrease(&self) {
        self.own().fetch_sub(1, Ordering::SeqCst);
    }

    /// Exact while nobody changes it. While it is only decreased: 0 only if it is.
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, own| sum.wrapping_add(own.load(Ordering::SeqCst)))
    }
}

/// Numbers threads in the order in which they first ask.
pub(crate) fn thread_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    crate::sync::thread_cell! {
        static NUMBER: Cell<u64> = Cell::new(u64::MAX);
    }
    NUMBER.with(|number| {
        if number.get() == u64::MAX {
            number.set(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        }
        number.get()
    })
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_sum_whoever_increases_and_decreases() {
        let count = Striped::default();
        (0..3).for_each(|_| count.increase());
        std::thread::scope(|scope| {
            (0..2 * STRIPES).for_each(|_| _ = scope.spawn(|| count.increase()));
        });
        assert_eq!(count.sum(), 3 + 2 * STRIPES as u64);
        // One thread takes back what others gave: its own stripe wraps, the sum does not.
        (0..3 + 2 * STRIPES).for_each(|_| count.decrease());
        assert_eq!(count.sum(), 0);
    }
}
