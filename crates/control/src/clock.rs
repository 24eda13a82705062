//! By how much a node's clock differs from the coordinator's, and where time windows begin.
//!
//! As NTP does (RFC 5905, sections 8 and 10): the node notes when it sent (t1) and when the answer came (t4), the coordinator when the
//! message came (t2) and when the answer went (t3). The offset is ((t2 - t1) + (t3 - t4)) / 2, wrong by at most half the
//! round trip (t4 - t1) - (t3 - t2); of the last eight the one with the shortest round trip counts.

use std::collections::VecDeque;

use sluice_core::Time;

use crate::wire;

const SAMPLES: usize = 8;

/// What is known of the difference of two clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    /// The coordinator's clock minus the node's, in nanoseconds.
    pub offset_ns: i64,
    /// It is wrong by so much at most, in nanoseconds, drift since the sample left out.
    pub error_ns: u64,
}

/// Estimates an offset. O(1).
#[derive(Clone, Debug, Default)]
pub(crate) struct Offset {
    samples: VecDeque<Estimate>,
}

impl Offset {
    /// An answer has come. One that cannot be (times that go back, or lie centuries apart) tells nothing.
    pub(crate) fn answered(&mut self, clock: &wire::Clock, now: Time) {
        let there = clock.answered_ns.checked_sub(clock.received_ns);
        let here = now.0.checked_sub(clock.sent_ns);
        let (Some(there), Some(here)) = (there, here) else { return };
        let Some(trip) = here.checked_sub(there) else { return };
        let sum = (i128::from(clock.received_ns) - i128::from(clock.sent_ns))
            + (i128::from(clock.answered_ns) - i128::from(now.0));
        let Ok(offset_ns) = i64::try_from(sum / 2) else { return };
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Estimate { offset_ns, error_ns: trip.div_ceil(2) });
    }

    /// The best sample.
    pub(crate) fn estimate(&self) -> Option<Estimate> {
        self.samples.iter().copied().min_by_key(|sample| sample.error_ns)
    }

    /// Another coordinator has another clock.
    pub(crate) fn forget(&mut self) {
        self.samples.clear();
    }
}

/// The `epoch` of `twins` on a node, by the node's clock: its windows then begin where the coordinator's clock is a multiple of
/// a round of them. Windows last `window_ns`, above 0; a round is one for each of the `servers`.
#[must_use]
pub fn epoch(offset_ns: i64, window_ns: u64, servers: u32) -> Time {
    let round = i128::from(window_ns.max(1)) * i128::from(servers.max(1));
    // Below 2^60, as windows last an hour at most and there are 2^16 servers.
    Time((-i128::from(offset_ns)).rem_euclid(round) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(offset: &mut Offset, sent: u64, there: (u64, u64), now: u64) {
        let (received_ns, answered_ns) = there;
        let clock = wire::Clock { sequence: 1, sent_ns: sent, received_ns, answered_ns };
        offset.answered(&clock, Time(now));
    }

    #[test]
    fn the_shortest_round_trip_counts_and_nonsense_does_not() {
        let mut offset = Offset::default();
        assert_eq!(offset.estimate(), None);
        // The coordinator is 1000 ahead; the ways take 10 and 90, and 5 and 5.
        answer(&mut offset, 100, (1110, 1120), 210);
        assert_eq!(offset.estimate(), Some(Estimate { offset_ns: 960, error_ns: 50 }));
        answer(&mut offset, 300, (1305, 1305), 310);
        answer(&mut offset, 400, (1490, 1500), 510);
        answer(&mut offset, 400, (1500, 1490), 510);
        answer(&mut offset, 600, (1500, 1500), 510);
        answer(&mut offset, 500, (1500, 2500), 510);
        assert_eq!(offset.estimate(), Some(Estimate { offset_ns: 1000, error_ns: 5 }));
    }

    #[test]
    fn windows_begin_at_the_same_time_on_all_nodes() {
        let (window, servers) = (1_000_000, 4);
        for (coordinator, offset) in [(1_700_000_000_000_000_000_u64, 5_i64), (9_000_000_000, -123_456_789), (77, 0)] {
            let node = Time((i128::from(coordinator) - i128::from(offset)) as u64);
            let of_node = node.since(epoch(offset, window, servers)) % (window * u64::from(servers));
            if node >= epoch(offset, window, servers) {
                assert_eq!(of_node, coordinator % (window * u64::from(servers)));
            }
        }
        assert_eq!(epoch(0, window, servers), Time(0));
    }
}
