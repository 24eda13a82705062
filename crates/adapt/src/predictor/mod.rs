//! Prediction of requests from traces (Boito 2015, chapter 4).
//!
//! Traces of several runs are [combined](Combiner) into a [`Forecast`]: the requests that will come, and when, counted from
//! the first request to their file. [`Aggregations`] of it are computed ahead: contiguous requests `R1`, `R2` of a file and
//! operation should be served together if
//!
//! ```text
//! TTP(S1) + TTP(S2)  >  TTP(S1 + S2) + |AT2 - AT1| * (1 - alpha)
//! ```
//!
//! where `TTP` is the time to process so many bytes, `AT` the predicted time of arrival, and `alpha` the share of waiting
//! time in which the device has other requests to serve. While running, a [`TracePredictor`] links arriving requests to
//! predicted ones, and lets the engine hold a batch back, once, if more of its aggregation is about to arrive.
//!
//! A [`Learner`] needs no traces: it notices files that are used again and again in the same way.
//!
//! # Beyond the thesis
//! Recorded times are those of a run in which neighbours came when they happened to; the processes of a program that do not
//! wait for each other drift apart by seconds. But when their requests are served together they go on together, and their next
//! requests arrive together as well. So which requests *can* be served together matters more than when they came: all that
//! lies within a [stride](Groups) of a program whose processes take turns in a file. That is found in the recorded runs,
//! and goes before the rule above, which decides where there is no stride.
//!
//! # Deviations
//! * Next to 0 a margin of 10 % is nothing: times also agree if they are less than [`Settings::margin_floor_ns`] apart.
//! * With more than two requests `|AT2 - AT1|` is what the next request adds to the time between the first arrival and the
//!   last. For two it is the same.
//! * Where the device always has other requests, `alpha` is 1 and the rule would wait for ever. But a process that waits for
//!   its request does not go on, and what it would have sent next is missing later. So no aggregation has its arrivals spread
//!   over more than [`Settings::span_max_ns`].
//! * The thesis's wait `W = (max AT - min AT) - (now - earliest arrival)` ends too early for the last part as often as not.
//!   Here it is half as long again. A group is waited for as long as its like took lately, and four deviations.
//! * No wait is longer than what it gains: the cost of a batch beside its bytes, which begins with the device's profile and
//!   then is what the device is seen to take. For groups, which gain again later, it is four times that, and the device may
//!   idle for one. For an aggregation it never idles: what a server gains by that, programs have lost that would have gone on
//!   to another one. Until waiting has shown that it pays, idling in vain may take 1 % of the
//!   time and 5 ms.
//! * Whether waiting pays is not asked of the waits, but of the programs: their throughput with it is compared with that of the
//!   recorded runs, and that without it. See `online/trial.rs`.
//! * Where the recorded runs were served better than in whole groups, and do not differ by a multiple, nothing is waited for: a
//!   trial of waiting could only lose. See `need.rs`.
//! * A batch that goes on where the last one ended is never held: the device is there already.
//! * On a device that is not known, and on one where a batch costs less than half a millisecond beside its bytes (flash),
//!   nothing is waited for.
//! * Where the device is busy for less than 70 % of the time an aggregation is not waited for: it has no use for one batch less.
//! * Waits that were in vain are tried more and more rarely.
//! * Runs that are learned are paired by the order of a request's occurrences, not by their times: one may have stalled.
//! * What is there when a wait ends in vain, but does not touch the batch, goes back to the queue.
//! * The time of a run is followed: when linked requests come late or early by some share of the margin, so are the next
//!   ones expected; and when several in a row are where they were expected but all later, or earlier, by about the same. A run
//!   that predictions make faster would soon not be recognised any more.

mod aggregate;
mod combine;
mod cost;
mod forecast;
mod learn;
mod need;
mod online;
mod pace;
mod stride;
mod wait;

use std::sync::Arc;

use sluice_core::Op;

pub use aggregate::{Aggregation, Aggregations, estimate_alpha};
pub use combine::{Added, CombineError, Combiner, NewRun, RUNS_MAX};
pub use forecast::{FileForecast, Forecast, Predicted, Totals};
pub use learn::{LearnLimits, Learner, series_of};
pub use online::{Counters, Handle, Names, TracePredictor, Verdict};
pub use stride::Groups;

/// Time to process so many bytes, in nanoseconds.
pub type TimeToProcess = Arc<dyn Fn(Op, u64) -> u64 + Send + Sync>;

/// The time to process requests of a 7,200 rpm hard disk with 100 MB/s, for devices that were not profiled: 8 ms to the
/// place, 10 ns a byte.
#[must_use]
pub fn default_time_to_process() -> TimeToProcess {
    Arc::new(|_, bytes| 8_000_000_u64.saturating_add(bytes.saturating_mul(10)))
}

/// Settings of predictions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// Times agree if they differ by at most this share of the predicted one.
    pub margin: f64,
    /// And in any case if they differ by at most so many nanoseconds.
    pub margin_floor_ns: u64,
    /// Runs that a request must have come in to be predicted.
    pub runs_min: u32,
    /// Most bytes of an aggregation: that of the engine's batches.
    pub bytes_max: u64,
    /// Most requests of an aggregation.
    pub requests_max: u32,
    /// Longest time between the arrivals of an aggregation's first part and its last, in nanoseconds.
    pub span_max_ns: u64,
    /// So many batches in flight keep the device busy.
    pub parallelism: u32,
    /// What the device takes is known: without that nothing is waited for.
    pub device_known: bool,
    /// The engine anticipates, which brings processes that take turns into step by itself: runs that fell out of it are no reason to
    /// wait, and waiting begins half a second late.
    pub anticipates: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            margin: 0.1,
            margin_floor_ns: 10_000_000,
            runs_min: 1,
            bytes_max: 1 << 20,
            requests_max: 256,
            span_max_ns: 25_000_000,
            parallelism: 1,
            device_known: true,
            anticipates: false,
        }
    }
}

impl Settings {
    /// How far an arrival may be from the predicted time.
    fn tolerance(&self, predicted_ns: u64) -> u64 {
        ((predicted_ns as f64 * self.margin) as u64).max(self.margin_floor_ns)
    }
}
