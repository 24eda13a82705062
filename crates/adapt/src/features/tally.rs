//! Sums over the requests of a window, which can be added up.

use sluice_core::Op;

use super::window::{DISTANCES, Features, SIZES};

/// Requests whose reach is measured together.
pub(super) const BLOCK: u32 = 16;

/// Sums of one file or of several. What every request changes comes first, and what changes together is close together: a request
/// of another file than the last one waits for each cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Tally {
    /// By operation.
    pub(super) bytes: [u64; 2],
    pub(super) requests: [u32; 2],
    pub(super) depth: u64,
    pub(super) distance_sum: f64,
    pub(super) gap_ns: u64,
    /// Requests as far from the one before as most are, and how far that is.
    pub(super) stride: i64,
    pub(super) stride_votes: u32,
    pub(super) size_max: u32,

    pub(super) distances: [u32; DISTANCES],
    pub(super) stripes: u32,
    pub(super) stripe_ns: u64,
    /// Requests of a whole stripe or more.
    pub(super) whole: u32,
    /// Bursts that begin with a stripe.
    pub(super) aligned: u32,
    pub(super) continued: u32,
    pub(super) answered: u32,

    /// Time since the request that a continuing one continues: the sum, that of the powers of two, and the sum and number of those
    /// at the beginning of a stripe.
    pub(super) stream_gap_ns: u64,
    pub(super) stream_gap_log2: u64,
    pub(super) boundary_gap_ns: u64,
    pub(super) boundaries: u32,
    pub(super) streams: u32,
    pub(super) think_ns: u64,
    pub(super) think_log2: u64,
    /// Requests that end where an earlier one began, those of them where that had been answered, and those that also continue one.
    pub(super) preceding: u32,
    pub(super) preceding_answered: u32,
    pub(super) between: u32,
    pub(super) blocks: u32,

    pub(super) sizes: [u32; SIZES],
    /// Completed requests of which it is known whether the device had them in its cache, and those that it had.
    pub(super) hits_known: u32,
    pub(super) hits: u32,
    pub(super) reach_log2: f32,
    /// The same of all requests of a file in the window.
    pub(super) extent_log2: f32,
    pub(super) files: u32,
}

/// The power of two of a size, 0 for less than 1 KiB, at most the last class.
#[inline]
pub(super) fn size_class(len: u32) -> usize {
    ((len >> 9 | 1).ilog2() as usize).min(SIZES - 1)
}

/// The class of a distance: see [`Features::distances`].
#[inline]
pub(super) fn distance_class(distance: u64, len: u32, is_backward: bool) -> usize {
    let lengths = |n: u32| u64::from(len) << n;
    let class = 1
        + usize::from(distance > lengths(0))
        + usize::from(distance > lengths(3))
        + usize::from(distance > lengths(6));
    if distance == 0 { 0 } else { class + if is_backward { 4 } else { 0 } }
}

impl Tally {
    pub(super) fn count(&self) -> u64 {
        u64::from(self.requests[0]) + u64::from(self.requests[1])
    }

    pub(super) fn merge(&mut self, other: &Tally) {
        for op in 0..2 {
            self.requests[op] += other.requests[op];
            self.bytes[op] += other.bytes[op];
        }
        self.size_max = self.size_max.max(other.size_max);
        self.whole += other.whole;
        self.sizes.iter_mut().zip(&other.sizes).for_each(|(mine, theirs)| *mine += theirs);
        self.distances.iter_mut().zip(&other.distances).for_each(|(mine, theirs)| *mine += theirs);
        self.distance_sum += other.distance_sum;
        self.gap_ns = self.gap_ns.saturating_add(other.gap_ns);
        self.stripes += other.stripes;
        self.stripe_ns = self.stripe_ns.saturating_add(other.stripe_ns);
        self.continued += other.continued;
        self.streams += other.streams;
        self.stream_gap_ns = self.stream_gap_ns.saturating_add(other.stream_gap_ns);
        self.stream_gap_log2 += other.stream_gap_log2;
        self.boundary_gap_ns = self.boundary_gap_ns.saturating_add(other.boundary_gap_ns);
        self.boundaries += other.boundaries;
        self.answered += other.answered;
        self.think_ns = self.think_ns.saturating_add(other.think_ns);
        self.think_log2 += other.think_log2;
        self.preceding += other.preceding;
        self.preceding_answered += other.preceding_answered;
        self.between += other.between;
        self.aligned += other.aligned;
        self.depth += other.depth;
        self.hits_known += other.hits_known;
        self.hits += other.hits;
        self.blocks += other.blocks;
        self.reach_log2 += other.reach_log2;
        self.extent_log2 += other.extent_log2;
        // The one that more requests keep is kept (Boyer and Moore 1981, for what two have found).
        if self.stride == other.stride {
            self.stride_votes += other.stride_votes;
        } else if other.stride_votes > self.stride_votes {
            (self.stride, self.stride_votes) = (other.stride, other.stride_votes - self.stride_votes);
        } else {
            self.stride_votes -= other.stride_votes;
        }
        self.files += other.files;
    }

    pub(super) fn features(&self, stripe: u64, app_files: u32, knows_answers: bool) -> Features {
        let requests = self.count();
        let bytes = self.bytes[0] + self.bytes[1];
        // What continues a request that is not answered is of that one's burst.
        let bursts = requests - u64::from(self.continued - self.answered);
        let mean = |sum: f64, count: u64| if count == 0 { 0.0 } else { sum / count as f64 };
        let distances: u64 = self.distances.iter().map(|&count| u64::from(count)).sum();
        let (continued, answered) = (u64::from(self.continued), u64::from(self.answered));
        Features {
            requests,
            bytes,
            read_share: mean(self.bytes[Op::Read.index()] as f64, bytes),
            stripe,
            size_mean: mean(bytes as f64, requests),
            size_max: self.size_max,
            sizes: self.sizes,
            whole_stripes: mean(f64::from(self.whole), requests),
            distance: mean(self.distance_sum, distances),
            distances: self.distances,
            stripe_span_ns: mean(self.stripe_ns as f64, self.stripes.into()),
            gap_ns: mean(self.gap_ns as f64, distances),
            continued: mean(f64::from(self.continued), requests),
            streams: self.streams,
            stride: self.stride,
            stride_share: mean(f64::from(self.stride_votes), distances).min(1.0),
            reach: if self.blocks == 0 { 0.0 } else { f64::from((self.reach_log2 / self.blocks as f32).exp2()) },
            extent: f64::from((self.extent_log2 / self.files.max(1) as f32).exp2()),
            burst_bytes: mean(bytes as f64, bursts),
            burst_aligned: mean(f64::from(self.aligned), bursts),
            stream_gap_ns: mean(self.stream_gap_ns as f64, continued),
            stream_gap_spread: spread(self.stream_gap_ns, self.stream_gap_log2, continued),
            boundary_gap: boundary_gap(self),
            answered: mean(f64::from(self.answered), continued),
            preceding: mean(f64::from(self.preceding), requests),
            preceding_answered: mean(f64::from(self.preceding_answered), requests),
            between: mean(f64::from(self.between), requests),
            depth: knows_answers.then(|| mean(self.depth as f64, requests)),
            think_ns: knows_answers.then(|| mean(self.think_ns as f64, answered)),
            think_spread: knows_answers.then(|| spread(self.think_ns, self.think_log2, answered)),
            cache_hits: (self.hits_known > 0).then(|| mean(f64::from(self.hits), self.hits_known.into())),
            files: self.files,
            app_files,
        }
    }
}

/// Powers of two between the mean of times and their geometric mean, of whose logarithms the sum is given (rounded down).
fn spread(sum_ns: u64, sum_log2: u64, count: u64) -> f64 {
    if count == 0 {
        return 0.0;
    }
    let count = count as f64;
    // Rounding down takes off half a power on average.
    (sum_ns as f64 / count + 1.0).log2() - (sum_log2 as f64 / count + 0.5)
}

fn boundary_gap(tally: &Tally) -> f64 {
    let inside = tally.continued - tally.boundaries;
    if tally.boundaries == 0 || inside == 0 {
        return 1.0;
    }
    let mean = |sum: u64, count: u32| (sum as f64 + 1.0) / f64::from(count);
    mean(tally.boundary_gap_ns, tally.boundaries)
        / mean(tally.stream_gap_ns.saturating_sub(tally.boundary_gap_ns), inside)
}
