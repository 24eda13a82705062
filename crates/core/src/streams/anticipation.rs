//! The settings of anticipation, and what follows from them.

use crate::queues::{Queues, Slot};

/// So much further than what is near may be what goes on with a stream that several programs have by turns: what all of them ask for in a round
/// may be longer than that.
const WIDE: u64 = 4;

/// When and how long a device is kept idle for a stream of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anticipation {
    /// What a request in another place costs the device more than one that goes on where the last one ended, in
    /// nanoseconds: of a hard disk about 8 ms. It is also the longest wait for one request. At least 1.
    pub positioning_ns: u64,
    /// Within how many bytes a request saves the move: what the device passes in the time of one. Four times as far from
    /// each other may be what several programs ask for by turns. At least 1.
    pub near_bytes: u64,
    /// How long a stream is served while others wait, in nanoseconds, if 25 or more have requests outstanding; with fewer
    /// up to [`Anticipation::longest_slice_ns`]. At least 1.
    pub slice_ns: u64,
}

impl Anticipation {
    /// For a device that needs so long to get from one place to another and so long for a byte: what it would pass in that
    /// time is near; slices of 100 ms, as BFQ's (`slice_sync`).
    #[must_use]
    pub fn for_device(positioning_ns: u64, bytes_per_s: u64) -> Anticipation {
        let near = u128::from(positioning_ns) * u128::from(bytes_per_s) / 1_000_000_000;
        Anticipation {
            positioning_ns: positioning_ns.max(1),
            near_bytes: u64::try_from(near).unwrap_or(u64::MAX).max(1),
            slice_ns: 100_000_000,
        }
    }

    /// How far from the end of a stream that several programs have by turns what goes on with it may begin.
    pub(super) fn wide_bytes(&self) -> u64 {
        self.near_bytes.saturating_mul(WIDE)
    }

    /// From how long a batch takes on that goes on where the last one ended it is the device's work, and not memory's: half of the transfer, or
    /// the 128th part of a move if that is longer.
    pub(super) fn beside_ns(&self, slots: &[Slot], queues: &Queues) -> f32 {
        let bytes: u64 = slots.iter().map(|slot| queues.end(*slot) - queues.offset(*slot)).sum();
        let transfer_ns = bytes as f32 * self.positioning_ns as f32 / self.near_bytes as f32;
        (transfer_ns / 2.0).max(self.positioning_ns as f32 / 128.0)
    }

    /// The slice of a stream while few others have requests: 2.5 times the configured one. In nanoseconds.
    #[must_use]
    pub fn longest_slice_ns(&self) -> u64 {
        self.slice_ns.saturating_mul(5) / 2
    }
}
