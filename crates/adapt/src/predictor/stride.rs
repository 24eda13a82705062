//! Which requests of a file belong to one step of a parallel program, from the times of single runs.
//!
//! Processes that take turns in a file (1-D strided, the layout of checkpoints and of arrays that are spread over processes)
//! come back to it one *stride* further on: everything in between is the others' part of the same step. Those parts arrive in
//! any order, early or late; but a process never asks for its next part before it has got the one before. So the stride is
//! the least distance over which requests always follow each other with about the time of a step in between, while over
//! shorter distances some follow at once, or even come first.
//!
//! What lies within a stride can be served together, however far apart it arrived in the recorded run: if it is waited for
//! once, its processes go on together.

use std::collections::BTreeMap;

/// Requests of a file that may arrive together: its range from `offset` on is cut into pieces of so many `bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Groups {
    /// Where the first begins.
    pub offset: u64,
    /// Bytes of each.
    pub bytes: u64,
}

impl Groups {
    /// The group of this offset. Longer ones than `bytes_max` are served in pieces.
    pub(super) fn at(&self, offset: u64, bytes_max: u64) -> Option<(u64, u64)> {
        let within = offset.checked_sub(self.offset)? % self.bytes;
        let piece = within - within % bytes_max;
        let start = offset - within + piece;
        Some((start, start.saturating_add(bytes_max.min(self.bytes - piece))))
    }
}

/// A request of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) time: u64,
}

/// Longest stride, in requests.
const PARTS_MAX: usize = 256;
/// Requests that distances are measured from: so many, at so many places of the file.
const SAMPLES: usize = 128;
const PLACES: usize = 3;
/// Distances that occur more rarely tell nothing.
const SAMPLES_MIN: u32 = 16;
/// Least time between a request and the next one of the same process, in nanoseconds.
const SOONEST_NS: i64 = 50_000;

/// Pairs of requests that are so far apart.
#[derive(Clone, Copy, Debug, Default)]
struct Pairs {
    all: u32,
    /// The one behind came first, or so soon that it did not wait for the one in front.
    independent: u32,
}

/// Pairs of requests by their distance in bytes, over all runs of a file and operation.
#[derive(Default)]
pub(super) struct Distances(BTreeMap<u64, Pairs>);

impl Distances {
    /// Adds a run. `run` is sorted by offset; of requests that come again the first counts.
    pub(super) fn add(&mut self, run: &[Seen]) {
        let places = if run.len() <= SAMPLES * PLACES { 1 } else { PLACES };
        for place in 0..places {
            let samples = if places == 1 { run.len() } else { SAMPLES };
            let start = (run.len() - samples) / places.saturating_sub(1).max(1) * place;
            (start..start + samples).for_each(|at| self.follow(&run[at..]));
        }
    }

    /// What lies behind the first request without a gap.
    fn follow(&mut self, run: &[Seen]) {
        let first = &run[0];
        let mut end = first.offset.saturating_add(first.len.into());
        for request in run[1..].iter().take(PARTS_MAX) {
            if request.offset != end || request.len == 0 {
                break;
            }
            let later = request.time as i64 - first.time as i64;
            let pairs = self.0.entry(request.offset - first.offset).or_default();
            pairs.all += 1;
            pairs.independent += u32::from(later < SOONEST_NS);
            end = request.offset.saturating_add(request.len.into());
        }
    }

    /// The least distance at which every request waits for the one in front.
    pub(super) fn stride(self) -> Option<u64> {
        let waits = |pairs: &Pairs| pairs.all >= SAMPLES_MIN && pairs.independent == 0;
        self.0.into_iter().find(|(_, pairs)| waits(pairs)).map(|(distance, _)| distance)
    }
}
