//! The last closed window of each engine, as `sluice status --json` prints it (`docs/status.md`).

use serde::{Deserialize, Serialize};
use sluice_core::{DurationFeatures, Op, OpFeatures, Time, WindowFeatures};

/// What an engine saw in the last window that has closed. Requests that passed the engine by, as the algorithm let
/// everything through at once, are not among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// [`WindowFeatures::VERSION`].
    pub(crate) version: u32,
    /// Which engine, from 0.
    pub(crate) engine: usize,
    /// Its length in seconds.
    pub(crate) seconds: f64,
    /// How long ago it closed, in seconds.
    pub(crate) age_s: f64,
    pub(crate) reads: Requests,
    pub(crate) writes: Requests,
    /// Files to which requests were submitted; the same file on several targets counts for each.
    pub(crate) files: u32,
    /// Applications of completed requests.
    pub(crate) apps: u32,
    /// Targets of submitted requests.
    pub(crate) targets: u32,
    /// Batches dispatched.
    pub(crate) batches: u64,
    /// Requests in a batch.
    pub(crate) batch_requests_mean: f64,
    pub(crate) batch_requests_max: u32,
    /// Requests not dispatched that a submission found.
    pub(crate) depth_mean: f64,
    pub(crate) depth_max: u32,
    /// From submission to dispatch.
    pub(crate) wait: Duration,
    /// From dispatch to completion.
    pub(crate) service: Duration,
    /// Requests that waited for an earlier overlapping one.
    pub(crate) blocked: u64,
    /// Batches that went first because of `max_wait`.
    pub(crate) expired: u64,
    /// Requests taken back.
    pub(crate) cancelled: u64,
    /// Submissions refused because the engine was full.
    pub(crate) refused: u64,
}

/// Reads or writes of a window. Distances are from the end of a request to the beginning of the next one of the same file,
/// target and operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Requests {
    /// Requests submitted.
    pub(crate) submitted: u64,
    /// Bytes they asked for.
    pub(crate) bytes: u64,
    pub(crate) size_min_bytes: u32,
    pub(crate) size_mean_bytes: f64,
    pub(crate) size_max_bytes: u32,
    /// Requests that followed another one.
    pub(crate) distances: u64,
    /// Negative backwards.
    pub(crate) distance_mean_bytes: f64,
    pub(crate) distance_abs_mean_bytes: f64,
    /// Mean of absolute distances in lengths of the earlier request.
    pub(crate) distance_normalised: f64,
    /// Share of the distances, 0 to 1, that are 0.
    pub(crate) contiguous: f64,
    /// Requests completed, with or without an error.
    pub(crate) completed: u64,
    /// Of those, with an error.
    pub(crate) errors: u64,
    /// Bytes moved by completed requests.
    pub(crate) moved_bytes: u64,
}

/// How long something took, in microseconds; percentiles are at most 12.5 % too high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Duration {
    /// Requests.
    pub(crate) count: u64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

impl Window {
    /// The window of an engine, seen at `now`.
    pub(super) fn of(engine: usize, window: &WindowFeatures, now: Time) -> Window {
        let seconds = |from: Time, to: Time| to.0.saturating_sub(from.0) as f64 / 1e9;
        Window {
            version: WindowFeatures::VERSION,
            engine,
            seconds: seconds(window.start, window.end),
            age_s: seconds(window.end, now),
            reads: Requests::of(&window.ops[Op::Read.index()]),
            writes: Requests::of(&window.ops[Op::Write.index()]),
            files: window.files,
            apps: window.apps,
            targets: window.targets,
            batches: window.batches,
            batch_requests_mean: window.batch_requests_mean,
            batch_requests_max: window.batch_requests_max,
            depth_mean: window.depth_mean,
            depth_max: window.depth_max,
            wait: Duration::of(&window.wait),
            service: Duration::of(&window.service),
            blocked: window.blocked,
            expired: window.expired,
            cancelled: window.cancelled,
            refused: window.refused,
        }
    }
}

impl Requests {
    fn of(of: &OpFeatures) -> Requests {
        Requests {
            submitted: of.requests,
            bytes: of.bytes,
            size_min_bytes: of.size_min,
            size_mean_bytes: of.size_mean,
            size_max_bytes: of.size_max,
            distances: of.distances,
            distance_mean_bytes: of.distance_mean,
            distance_abs_mean_bytes: of.distance_abs_mean,
            distance_normalised: of.distance_normalised,
            contiguous: of.contiguous,
            completed: of.completed,
            errors: of.errors,
            moved_bytes: of.moved,
        }
    }
}

impl Duration {
    fn of(of: &DurationFeatures) -> Duration {
        let us = |ns: u64| ns as f64 / 1e3;
        Duration {
            count: of.count,
            mean_us: us(of.mean_ns),
            p50_us: us(of.p50_ns),
            p99_us: us(of.p99_ns),
            max_us: us(of.max_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_the_units_of_their_names() {
        let mut window = WindowFeatures { start: Time(1_000_000_000), end: Time(3_000_000_000), ..Default::default() };
        window.wait.p99_ns = 1_500;
        window.ops[Op::Write.index()].size_max = 7;
        let shown = Window::of(2, &window, Time(3_500_000_000));
        assert_eq!((shown.engine, shown.seconds, shown.age_s, shown.wait.p99_us), (2, 2.0, 0.5, 1.5));
        assert_eq!((shown.reads.size_max_bytes, shown.writes.size_max_bytes), (0, 7));
    }
}
