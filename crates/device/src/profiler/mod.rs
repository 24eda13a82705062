//! Measures what a device needs to be known for: sequential and random access times over request sizes.
//!
//! After SeRRa (F. Z. Boito et al., *Towards fast profiling of storage devices regarding access sequentiality*, SAC 2015;
//! thesis, 2015, chapter 5): request sizes in intervals, of which only some are measured (the ends always, others at
//! random), each sequentially and at random, reading and writing, without caches; a linear fit for each test and interval
//! gives the time of every size. Beyond that,
//!
//! * sizes are added where the measured times do not lie on a line, and time is spent where the estimate is uncertain:
//!   every time has a 95 % confidence interval, and measuring stops when all are narrow enough or the budget is used up;
//! * what each burst of requests shows before it has settled does not count, and before random writes the device is
//!   written to until it takes steady times;
//! * results that mislead are told: [`Report::warnings`].
//!
//! The [`Planner`] decides what to measure next and does no I/O; a [`Target`] does it, on a model in virtual time
//! ([`Modelled`]) or on a real file.

use crate::Op;

mod curve;
mod modelled;
mod planner;
mod sample;

pub use modelled::{Modelled, profile_of_model};
pub use planner::{Planner, Progress};

use crate::profile::Profile;

/// In which order a file is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Each request continues the one before.
    Sequential,
    /// Each is at a random multiple of its size.
    Random,
}

/// What is measured for each size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Test {
    /// Read or write.
    pub op: Op,
    /// Sequential or random.
    pub order: Order,
}

/// The four tests, in the order in which they are done: whatever disturbs the others comes last.
pub const TESTS: [Test; 4] = [
    Test { op: Op::Read, order: Order::Sequential },
    Test { op: Op::Read, order: Order::Random },
    Test { op: Op::Write, order: Order::Sequential },
    Test { op: Op::Write, order: Order::Random },
];

impl Test {
    /// For people.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match (self.op, self.order) {
            (Op::Read, Order::Sequential) => "sequential read",
            (Op::Read, Order::Random) => "random read",
            (_, Order::Sequential) => "sequential write",
            (_, Order::Random) => "random write",
        }
    }
}

/// Requests of one size, to be done one after the other or several at a time, until one of the limits is met.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// What to do.
    pub test: Test,
    /// Bytes of each request.
    pub size_bytes: u64,
    /// Requests under way at a time.
    pub in_flight: u32,
    /// At most so many requests.
    pub requests_max: u64,
    /// No request begins later than this after the first, once there have been `requests_min`.
    pub time_max_ns: u64,
    /// At least so many.
    pub requests_min: u64,
    file_bytes: u64,
    start: u64,
    seed: u64,
}

impl Burst {
    /// So much time's worth of requests, one at a time, in a file of this size: for comparisons with other tools.
    #[must_use]
    pub const fn for_time(test: Test, size_bytes: u64, file_bytes: u64, time_max_ns: u64, seed: u64) -> Burst {
        let (requests_max, requests_min) = (u64::MAX, 1);
        Burst { test, size_bytes, in_flight: 1, requests_max, time_max_ns, requests_min, file_bytes, start: 0, seed }
    }

    /// Where in the file the request with this number, from 0, starts.
    #[must_use]
    pub fn offset(&self, number: u64) -> u64 {
        let blocks = (self.file_bytes / self.size_bytes).max(1);
        let block = match self.test.order {
            Order::Sequential => (self.start / self.size_bytes).wrapping_add(number) % blocks,
            Order::Random => crate::parameter::mix(self.seed.wrapping_add(number)) % blocks,
        };
        block * self.size_bytes
    }

    /// Whether to begin another after so many requests and so much time.
    #[must_use]
    pub fn goes_on(&self, requests: u64, elapsed_ns: u64) -> bool {
        requests < self.requests_max && (requests < self.requests_min || elapsed_ns < self.time_max_ns)
    }
}

/// What a burst showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How long each request took, in the order in which they ended.
    pub latencies_ns: Vec<u64>,
    /// From the begin of the first to the end of the last.
    pub elapsed_ns: u64,
}

/// What is measured.
pub trait Target {
    /// Why it did not work.
    type Error;

    /// Writes the whole file, from begin to end; returns the nanoseconds that took.
    ///
    /// # Errors
    /// If it cannot.
    fn prepare(&mut self) -> Result<u64, Self::Error>;

    /// Does the requests of a burst.
    ///
    /// # Errors
    /// If it cannot.
    fn run(&mut self, burst: &Burst) -> Result<Outcome, Self::Error>;
}

/// What to measure and how well.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Sizes, if they are given: each is measured, nothing is fitted.
    pub sizes: Option<Vec<u64>>,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Time for everything, in nanoseconds.
    pub budget_ns: u64,
    /// Half the width of the 95 % confidence interval of a time, over its value, at which it is good enough.
    pub precision: f64,
    /// Most requests in flight to try.
    pub in_flight_max: u32,
    /// For what is random.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sizes: None,
            file_bytes: 1200 << 20,
            budget_ns: 60_000_000_000,
            precision: 0.02,
            in_flight_max: 256,
            seed: 1,
        }
    }
}

/// What the profiler found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What the rest loads. Who, where and when are for the caller to fill in.
    pub profile: Profile,
    /// Whether there are times of half of the sizes at least. Else there is no profile.
    pub is_enough: bool,
    /// What may mislead, for people.
    pub warnings: Vec<String>,
    /// Time spent, in nanoseconds of the target's time, preparation included.
    pub elapsed_ns: u64,
    /// Requests measured.
    pub requests: u64,
}

/// Profiles a target from begin to end.
///
/// # Errors
/// The target's.
pub fn profile<T: Target>(target: &mut T, options: &Options) -> Result<Report, T::Error> {
    let mut planner = Planner::new(options.clone());
    planner.prepared(target.prepare()?);
    while let Some(burst) = planner.next_burst() {
        let outcome = target.run(&burst)?;
        planner.record(&burst, &outcome);
    }
    Ok(planner.report())
}
