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
/// Bytes that are copied in a nanosecond, at least.
const COPIED_BYTES_PER_NS: u64 = 2;
/// What takes longer counts as this long.
const LONG_NS: u32 = 1_000_000;
/// Not measured yet.
const UNKNOWN: u32 = u32::MAX;
/// Weight of a new measurement: 1 in 8.
const WEIGHT_BITS: u32 = 3;

/// Mean service times, by operation.
pub(super) struct DeviceSpeed {
    means_ns: [AtomicU32; 2],
}

impl Default for DeviceSpeed {
    /// Slow until measured.
    fn default() -> DeviceSpeed {
        let means_ns = [AtomicU32::new(UNKNOWN), AtomicU32::new(UNKNOWN)];
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

    /// Known to take longer than to hand a request over. Where submitters execute their own requests all the same, there are
    /// never more of them at the device than threads that submit.
    pub(super) fn is_slow(&self, op: Op) -> bool {
        // Times of a model mean nothing.
        let mean = self.means_ns[op.index()].load(Ordering::Relaxed);
        !cfg!(feature = "model") && mean != UNKNOWN && mean > FAST_NS
    }

    /// A call of the storage for so many bytes took so many nanoseconds.
    pub(super) fn note(&self, took_ns: u64, bytes: u64, op: Op) {
        // To copy is a processor's work, which nobody else would do faster.
        let waited = took_ns.saturating_sub(bytes / COPIED_BYTES_PER_NS);
        // A thread that had to wait for a processor says little of the device: it is soon forgotten.
        let took = waited.min(u64::from(LONG_NS)) as u32;
        let mean = &self.means_ns[op.index()];
        let known = mean.load(Ordering::Relaxed);
        // The first one, and one that took so long that the mean would be slow to follow, count for themselves. Threads
        // that measure at the same time may lose one of the two.
        let next = match known {
            UNKNOWN => took,
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
        assert!(!speed.is_fast(Op::Read) && !speed.is_slow(Op::Read), "nothing is known");
        speed.note(5_048, 4_096, Op::Read);
        assert!(speed.is_fast(Op::Read) && !speed.is_fast(Op::Write));
        assert!(speed.allows(Op::Read, 26) && !speed.allows(Op::Read, 27) && !speed.allows(Op::Write, 1));
        speed.note(5_000_000, 4_096, Op::Read);
        assert!(!speed.is_fast(Op::Read), "one slow request is enough");
        assert!(speed.is_slow(Op::Read) && !speed.is_slow(Op::Write));
        (0..64).for_each(|_| speed.note(5_048, 4_096, Op::Read));
        assert!(speed.is_fast(Op::Read), "it becomes fast again");
        speed.note(500_000, 1 << 20, Op::Read);
        assert!(speed.is_fast(Op::Read), "copied, not waited");
        speed.note(u64::MAX, 4_096, Op::Read);
        assert!(!speed.is_fast(Op::Read), "one that never ended, nearly");
    }
}
