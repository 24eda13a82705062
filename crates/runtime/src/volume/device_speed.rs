//! How long the storage takes, for the question whether a request is better executed where it was submitted.
//!
//! To hand a request to another thread costs some microseconds. Where the storage answers faster than that (a page cache,
//! memory), the submitter does it itself; where it does not, the submitter is better free to bring more requests, among
//! which the scheduler can choose.

use sluice_core::Op;

use crate::sync::atomic::{AtomicU32, Ordering};

/// About what a hand-over costs, in nanoseconds, with the wake-up of a sleeping thread.
const FAST_NS: u32 = 20_000;
/// What a thread that has its own request executed spends on others at most, in nanoseconds.
const ALL_NS: u64 = 4 * FAST_NS as u64;
/// Weight of a new measurement: 1 in 8.
const WEIGHT_BITS: u32 = 3;

/// Mean service times, by operation.
pub(super) struct DeviceSpeed {
    means_ns: [AtomicU32; 2],
}

impl Default for DeviceSpeed {
    /// Slow until measured.
    fn default() -> DeviceSpeed {
        let means_ns = [AtomicU32::new(u32::MAX), AtomicU32::new(u32::MAX)];
        DeviceSpeed { means_ns }
    }
}

impl DeviceSpeed {
    pub(super) fn is_fast(&self, op: Op) -> bool {
        self.means_ns[op.index()].load(Ordering::Relaxed) <= FAST_NS
    }

    /// May a thread execute so many requests, one after the other, instead of handing them over?
    pub(super) fn allows(&self, op: Op, requests: usize) -> bool {
        let mean = self.means_ns[op.index()].load(Ordering::Relaxed);
        mean <= FAST_NS && u64::from(mean).saturating_mul(requests as u64) <= ALL_NS
    }

    /// A call of the storage took so many nanoseconds.
    pub(super) fn note(&self, took_ns: u64, op: Op) {
        let took = u32::try_from(took_ns).unwrap_or(u32::MAX);
        let mean = &self.means_ns[op.index()];
        let known = mean.load(Ordering::Relaxed);
        // The first one, and one that took so long that the mean would be slow to follow, count for themselves. Threads
        // that measure at the same time may lose one of the two.
        let next = match known {
            u32::MAX => took,
            _ if took > 4 * FAST_NS => took,
            _ => known - (known >> WEIGHT_BITS) + (took >> WEIGHT_BITS),
        };
        mean.store(next, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn slow_at_first_then_as_measured() {
        let speed = DeviceSpeed::default();
        assert!(!speed.is_fast(Op::Read));
        speed.note(3_000, Op::Read);
        assert!(speed.is_fast(Op::Read) && !speed.is_fast(Op::Write));
        assert!(speed.allows(Op::Read, 26) && !speed.allows(Op::Read, 27) && !speed.allows(Op::Write, 1));
        speed.note(5_000_000, Op::Read);
        assert!(!speed.is_fast(Op::Read), "one slow request is enough");
        (0..64).for_each(|_| speed.note(3_000, Op::Read));
        assert!(speed.is_fast(Op::Read), "it becomes fast again");
        speed.note(u64::MAX, Op::Read);
        assert!(!speed.is_fast(Op::Read), "one that never ended, nearly");
    }
}
