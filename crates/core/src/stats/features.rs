//! What was asked for in a window, in a few numbers: for pattern detection, for whoever chooses algorithms and their
//! parameters, and for monitoring.

use std::collections::VecDeque;

use super::Counters;
use crate::histogram::Histogram;
use crate::request::{AppId, Op, Request, TargetId, Time};

/// Closed windows kept until somebody takes them.
const CLOSED_MAX: usize = 8;
/// Targets told apart in a window.
const DISTINCT_MAX: u32 = 1_024;

/// How long something took for the requests of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationFeatures {
    /// Requests.
    pub count: u64,
    /// Mean in nanoseconds; 0 without requests, as are the others.
    pub mean_ns: u64,
    /// Median in nanoseconds, at most 12.5 % too high.
    pub p50_ns: u64,
    /// What one in a hundred exceeds, in nanoseconds, at most 12.5 % too high.
    pub p99_ns: u64,
    /// Largest in nanoseconds.
    pub max_ns: u64,
}

impl DurationFeatures {
    fn of(histogram: &Histogram) -> DurationFeatures {
        DurationFeatures {
            count: histogram.count(),
            mean_ns: histogram.mean_ns(),
            p50_ns: histogram.percentile_ns(50.0),
            p99_ns: histogram.percentile_ns(99.0),
            max_ns: histogram.max_ns(),
        }
    }
}

/// Requests of one operation in a window.
///
/// Distances are measured between requests of the same file, target and operation that follow each other in the order of
/// submission, from the end of the earlier to the beginning of the later; the earlier may belong to a window before.
/// Requests of no bytes are left out of them. Offsets from 2^63 on count as 2^63 - 1 here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpFeatures {
    /// Requests submitted.
    pub requests: u64,
    /// Bytes they asked for.
    pub bytes: u64,
    /// Smallest request in bytes; 0 without requests.
    pub size_min: u32,
    /// Mean size in bytes; 0 without requests.
    pub size_mean: f64,
    /// Largest request in bytes.
    pub size_max: u32,
    /// Requests that followed another one, so that there was a distance.
    pub distances: u64,
    /// Mean distance in bytes, negative backwards; 0 without distances, as are the others.
    pub distance_mean: f64,
    /// Mean absolute distance in bytes.
    pub distance_abs_mean: f64,
    /// Mean of the absolute distances, each divided by the length of the earlier request: the measure D of Boito 2015.
    pub distance_normalised: f64,
    /// Share of the distances, 0 to 1, that are 0: requests that begin where the one before ended.
    pub contiguous: f64,
    /// Requests completed, with or without an error.
    pub completed: u64,
    /// Of those, with an error.
    pub errors: u64,
    /// Bytes moved by completed requests.
    pub moved: u64,
}

/// What an engine saw in one window. Plain data whose fields keep their meaning: see [`WindowFeatures::VERSION`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowFeatures {
    /// When the window began.
    pub start: Time,
    /// When it ended.
    pub end: Time,
    /// By operation: index with [`Op::index`].
    pub ops: [OpFeatures; 2],
    /// Files to which requests were submitted, the same file on several targets counted for each. One that made room for
    /// others (`files_max`) and came back counts again.
    pub files: u32,
    /// Files with outstanding requests at any time in the window, counted as `files` are: of those that nobody served in it, too. 0
    /// for requests that went by the engine.
    pub files_outstanding: u32,
    /// Applications of the requests completed; all those beyond `apps_max` count as one.
    pub apps: u32,
    /// Applications with outstanding requests at any time in the window, of whom nobody was served in it, too; two may count as one,
    /// and 256 are the most.
    pub apps_outstanding: u32,
    /// Targets of the requests submitted; 1,024 stands for as many or more.
    pub targets: u32,
    /// Batches dispatched.
    pub batches: u64,
    /// Those of them that bring programs into step: see [`Counters::catching_up`](crate::Counters::catching_up).
    pub catching_up: u64,
    /// Requests in a batch on average; 0 without batches.
    pub batch_requests_mean: f64,
    /// Largest batch in requests.
    pub batch_requests_max: u32,
    /// Requests not dispatched that a submission found there, on average.
    pub depth_mean: f64,
    /// The most it found.
    pub depth_max: u32,
    /// From submission to dispatch, for requests dispatched.
    pub wait: DurationFeatures,
    /// From dispatch to completion, for requests completed.
    pub service: DurationFeatures,
    /// Requests that had to wait for an earlier overlapping one.
    pub blocked: u64,
    /// Batches that went first because a request in them had waited for `max_wait`.
    pub expired: u64,
    /// Requests cancelled.
    pub cancelled: u64,
    /// Submissions refused because the engine was full.
    pub refused: u64,
    /// Time in nanoseconds in which at least one request was outstanding, queued or in flight: at most the window's length.
    /// Windows that saw nothing leave no record, so what was outstanding in them is not told.
    pub busy_ns: u64,
    /// Requests outstanding on average over that time; 0 without it.
    pub outstanding_mean: f64,
    /// Bytes of outstanding requests on average over that time; 0 without it. Over `outstanding_mean` it is the mean size of what programs wait
    /// for, whoever is served.
    pub outstanding_bytes_mean: f64,
    /// Reads outstanding on average over that time; 0 without it.
    pub outstanding_reads_mean: f64,
}

impl WindowFeatures {
    /// Grows when a field changes its meaning or goes; not when one is added.
    pub const VERSION: u32 = 1;
}

/// What is remembered of a file queue from request to request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trail {
    /// End of its last request.
    end: u64,
    /// Length of that; 0: there was none.
    len: u32,
    /// The window in which a request was seen last.
    window: u32,
}

impl Trail {
    pub(crate) const EMPTY: Trail = Trail { end: 0, len: 0, window: 0 };
}

/// Sums over the requests of one operation.
#[derive(Clone, Copy, Debug)]
struct Tally {
    bytes: u64,
    size_min: u32,
    size_max: u32,
    distances: u64,
    contiguous: u64,
    distance: f64,
    distance_abs: f64,
    distance_normalised: f64,
}

impl Tally {
    const EMPTY: Tally = Tally {
        bytes: 0,
        size_min: u32::MAX,
        size_max: 0,
        distances: 0,
        contiguous: 0,
        distance: 0.0,
        distance_abs: 0.0,
        distance_normalised: 0.0,
    };

    fn size(&mut self, len: u32) {
        self.bytes = self.bytes.saturating_add(len.into());
        self.size_min = self.size_min.min(len);
        self.size_max = self.size_max.max(len);
    }

    #[inline]
    fn distance(&mut self, end: u64, len: u32, offset: u64) {
        self.distances += 1;
        if offset == end {
            self.contiguous += 1;
            return;
        }
        let place = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        let distance = (place(offset) - place(end)) as f64;
        self.distance += distance;
        self.distance_abs += distance.abs();
        self.distance_normalised += distance.abs() / f64::from(len);
    }

    fn features(&self, op: Op, counters: &Counters) -> OpFeatures {
        let counts = &counters.ops[op.index()];
        let mean = |sum: f64, count: u64| if count == 0 { 0.0 } else { sum / count as f64 };
        OpFeatures {
            requests: counts.submitted,
            bytes: self.bytes,
            size_min: if self.size_min > self.size_max { 0 } else { self.size_min },
            size_mean: mean(self.bytes as f64, counts.submitted),
            size_max: self.size_max,
            distances: self.distances,
            distance_mean: mean(self.distance, self.distances),
            distance_abs_mean: mean(self.distance_abs, self.distances),
            distance_normalised: mean(self.distance_normalised, self.distances),
            contiguous: mean(self.contiguous as f64, self.distances),
            completed: counts.completed,
            errors: counts.errors,
            moved: counts.bytes,
        }
    }
}

/// Counts different numbers in a window, up to [`DISTINCT_MAX`]: a hash table whose entries name their window, so that
/// it need not be emptied. O(1).
#[derive(Clone, Debug)]
struct Distinct {
    /// Number and window; twice as many places as numbers are told apart.
    entries: Box<[(u32, u32)]>,
    count: u32,
    /// The number seen last, and its window.
    recent: (u32, u32),
}

impl Distinct {
    fn new() -> Distinct {
        Distinct { entries: vec![(0, 0); 2 * DISTINCT_MAX as usize].into(), count: 0, recent: (0, 0) }
    }

    fn see(&mut self, number: u32, window: u32) {
        if self.recent == (number, window) || self.count == DISTINCT_MAX {
            return;
        }
        self.recent = (number, window);
        let places = self.entries.len();
        let mut at = (number.wrapping_mul(0x9E37_79B9) >> 21) as usize % places;
        while self.entries[at].1 == window {
            if self.entries[at].0 == number {
                return;
            }
            at = (at + 1) % places;
        }
        self.entries[at] = (number, window);
        self.count += 1;
    }
}

/// Places by which applications with outstanding requests are told apart.
const WAITING_PLACES: usize = 256;

/// How many applications have outstanding requests at any time in a window. Two that share a place count as one. O(1).
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// Outstanding requests, and the window in which the place was counted last.
    places: Box<[(u32, u32)]>,
    /// Places with outstanding requests, and those that had some in this window, and its number.
    in_use: u32,
    used: u32,
    window: u32,
}

impl Waiting {
    pub(super) fn new() -> Waiting {
        Waiting { places: vec![(0, 0); WAITING_PLACES].into(), in_use: 0, used: 0, window: 1 }
    }

    fn place(AppId(app): AppId) -> usize {
        (app.wrapping_mul(0x9E37_79B9) >> 24) as usize
    }

    #[inline]
    pub(super) fn add(&mut self, app: AppId) {
        let (outstanding, window) = &mut self.places[Self::place(app)];
        if *outstanding == 0 {
            self.in_use += 1;
            self.used += u32::from(*window != self.window);
            *window = self.window;
        }
        *outstanding += 1;
    }

    #[inline]
    pub(super) fn take(&mut self, app: AppId) {
        let (outstanding, window) = &mut self.places[Self::place(app)];
        *outstanding -= 1;
        if *outstanding == 0 {
            self.in_use -= 1;
            *window = self.window;
        }
    }

    /// A window ends. Returns how many there were in it.
    pub(super) fn end_window(&mut self) -> u32 {
        self.window = self.window.wrapping_add(1).max(1);
        std::mem::replace(&mut self.used, self.in_use)
    }
}

/// Collects the features of the window that is running, and keeps those of windows that are closed.
#[derive(Clone, Debug)]
pub(super) struct Features {
    /// Number of the running window, from 1.
    window: u32,
    ops: [Tally; 2],
    files: u32,
    targets: Distinct,
    closed: VecDeque<WindowFeatures>,
    lost: u64,
    /// The window that was closed last has a record: it saw something.
    has_record: bool,
}

impl Features {
    pub(super) fn new() -> Features {
        Features {
            window: 1,
            ops: [Tally::EMPTY; 2],
            files: 0,
            targets: Distinct::new(),
            closed: VecDeque::with_capacity(CLOSED_MAX),
            lost: 0,
            has_record: false,
        }
    }

    /// A request was accepted. `trails`: of its file, by operation, if files are remembered.
    #[inline]
    pub(super) fn submitted(&mut self, request: &Request, trails: Option<[&mut Trail; 2]>) {
        let op = &mut self.ops[request.op.index()];
        op.size(request.len);
        let Some(trails) = trails else { return };
        let is_new = trails[request.op.index()].window != self.window;
        if is_new && trails.iter().all(|trail| trail.window != self.window) {
            self.files += 1;
            let TargetId(target) = request.target;
            self.targets.see(target, self.window);
        }
        let trail = &mut *trails[request.op.index()];
        trail.window = self.window;
        if request.len > 0 {
            if trail.len > 0 {
                op.distance(trail.end, trail.len, request.offset);
            }
            (trail.end, trail.len) = (request.end(), request.len);
        }
    }

    /// The window to which these counters belong is over.
    pub(super) fn close(&mut self, counters: &Counters, apps_outstanding: u32) {
        self.has_record = counters.has_seen_anything();
        if self.has_record {
            if self.closed.len() == CLOSED_MAX {
                self.closed.pop_front();
                self.lost += 1;
            }
            self.closed.push_back(WindowFeatures { apps_outstanding, ..self.record(counters) });
        }
        self.window = self.window.wrapping_add(1).max(1);
        self.ops = [Tally::EMPTY; 2];
        (self.files, self.targets.count) = (0, 0);
    }

    fn record(&self, counters: &Counters) -> WindowFeatures {
        let op = |op: Op| self.ops[op.index()].features(op, counters);
        let busy = counters.busy_ns.max(1) as f64;
        WindowFeatures {
            start: counters.start,
            end: counters.start.after(counters.len_ns),
            ops: [op(Op::Read), op(Op::Write)],
            files: self.files,
            files_outstanding: 0,
            apps: counters.apps.iter().filter(|app| app.completed > 0).count() as u32,
            apps_outstanding: 0,
            targets: self.targets.count,
            batches: counters.batches,
            catching_up: counters.catching_up,
            batch_requests_mean: counters.mean_aggregation(),
            batch_requests_max: counters.batch_requests_max,
            depth_mean: counters.mean_depth(),
            depth_max: counters.depth_max,
            wait: DurationFeatures::of(&counters.wait),
            service: DurationFeatures::of(&counters.service),
            blocked: counters.blocked,
            expired: counters.expired,
            cancelled: counters.cancelled,
            refused: counters.refused,
            busy_ns: counters.busy_ns,
            outstanding_mean: counters.outstanding_ns as f64 / busy,
            outstanding_bytes_mean: counters.outstanding_bytes_ns as f64 / busy,
            outstanding_reads_mean: counters.outstanding_reads_ns as f64 / busy,
        }
    }

    /// So many files had outstanding requests in the window that was closed last.
    pub(super) fn waited_for(&mut self, files: u32) {
        if let Some(closed) = self.closed.back_mut().filter(|_| self.has_record) {
            closed.files_outstanding = files;
        }
    }

    pub(super) fn take_closed(&mut self) -> Option<WindowFeatures> {
        self.closed.pop_front()
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn different_numbers_are_counted_up_to_the_bound(windows in prop::collection::vec((0..3_000_u32, 1..3_000_u32), 1..5)) {
            let mut distinct = Distinct::new();
            for (window, (count, modulus)) in windows.into_iter().enumerate() {
                distinct.count = 0;
                let numbers: HashSet<u32> = (0..count).map(|n| n.wrapping_mul(2_654_435_761) % modulus).collect();
                (0..2).for_each(|_| numbers.iter().for_each(|&n| distinct.see(n, window as u32 + 1)));
                prop_assert_eq!(distinct.count, (numbers.len() as u32).min(DISTINCT_MAX));
            }
        }
    }
}
