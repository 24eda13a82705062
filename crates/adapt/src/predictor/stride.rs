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
/// Requests of a run that distances are measured from: so many, at so many places of the file.
const SAMPLES: usize = 96;
const PLACES: usize = 2;
/// Runs that are looked at.
pub(super) const RUNS: usize = 4;
/// Distances that occur more rarely tell nothing.
const SAMPLES_MIN: usize = 16;
/// Least time between a request and the next one of the same process, in nanoseconds.
const SOONEST_NS: i64 = 50_000;
/// Of the mean time between requests, what all but a fiftieth of them take at least: where they come regularly, and where
/// they certainly do not.
const REGULAR: f64 = 0.8;
const IRREGULAR: f64 = 0.2;

/// Pairs of requests with so many requests between them, over some runs of a file and operation.
#[derive(Clone, Debug, Default)]
struct Pairs {
    /// Bytes from the one to the other.
    distance: u64,
    /// By how much the one behind comes later, in nanoseconds.
    later: Vec<i64>,
}

/// Pairs of requests, by the number of requests between them.
#[derive(Default)]
pub(super) struct Distances(Vec<Pairs>);

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
        for (between, request) in run[1..].iter().take(PARTS_MAX).enumerate() {
            if request.offset != end || request.len == 0 {
                break;
            }
            let distance = request.offset - first.offset;
            if between == self.0.len() {
                self.0.push(Pairs { distance, later: Vec::new() });
            }
            // Where requests are of different lengths, those like the first ones count.
            let pairs = &mut self.0[between];
            if pairs.distance == distance {
                pairs.later.push((request.time as i64).wrapping_sub(first.time as i64));
            }
            end = request.offset.saturating_add(request.len.into());
        }
    }

    /// The least distance at which every request waits for the one in front. Where requests always come in the same order
    /// (one program that sends several at once, in each of its steps), all distances are like that, and the least one is
    /// within a burst: then it is that of a burst, at which they are suddenly regular.
    pub(super) fn stride(self) -> Option<u64> {
        let enough = self.0.first()?.later.len().div_ceil(2).max(SAMPLES_MIN);
        let (mut least, mut before) = (None, 1.0);
        for Pairs { distance, later: mut times } in self.0 {
            if times.len() < enough || times.iter().any(|&later| later < SOONEST_NS) {
                before = 1.0;
                continue;
            }
            times.sort_unstable();
            let mean = times.iter().map(|time| *time as f64).sum::<f64>() / times.len() as f64;
            let regular = times[times.len() / 50] as f64 / mean;
            if least.is_none() && regular >= IRREGULAR || regular >= REGULAR && before < IRREGULAR {
                return Some(distance);
            }
            (least, before) = (least.or(Some(distance)), regular);
        }
        least
    }
}
