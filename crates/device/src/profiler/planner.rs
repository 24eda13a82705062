//! Decides what to measure next.

use super::curve::{Curve, Segment};
use super::sample::Sample;
use super::{Burst, Options, Order, Outcome, Report, TESTS, Test};
use crate::Op;
use crate::parameter::mix;
use crate::profile::{Point, Profile, Saturation, VERSION};

/// Intervals of sizes: low, high, step, in KiB. The ends are always measured.
const INTERVALS: [(u64, u64, u64); 2] = [(8, 64, 8), (64, 4096, 32)];
/// Sizes inside an interval, or a part of one, that are measured at least.
const INSIDE: usize = 2;
/// Bursts of each size at least, and at most.
const BURSTS_MIN: u32 = 2;
const BURSTS_MAX: u32 = 400;
/// Requests of a burst, as time permits: so many if they are small, and so many bytes; buffers hide the device for a while.
const REQUESTS_MAX: u64 = 256;
const BYTES_MAX: u64 = 48 << 20;
const SEQUENTIAL_BYTES: u64 = 32 << 20;
const RANDOM_BYTES: u64 = 4 << 20;
/// Requests of a burst at least, whatever time it takes.
const REQUESTS_MIN: u64 = 6;
/// Bursts that the budget has room for: says how long one may take.
const BURSTS_IN_BUDGET: u64 = 240;
/// Shares of the remaining time that random and sequential tests and the search for the saturation may take.
const RANDOM_SHARE: f64 = 4.0;
const SEQUENTIAL_SHARE: f64 = 2.0;
const SATURATION_SHARE: f64 = 1.0;
/// First requests of a burst that never count: they move the arm, fill buffers, wake things up.
const SKIP: usize = 2;
/// Before random writes count, this many bursts in a row must be as fast as the many before them, within this part.
const STEADY_BURSTS: usize = 6;
const STEADY: f64 = 0.04;
/// Most of the budget that waiting for that may take.
const STEADY_BUDGET: f64 = 0.1;
/// Size of the requests that bring the device to that state.
const STEADY_BYTES: u64 = 64 << 10;
/// More requests in flight help if throughput rises by this.
const SATURATION_GAIN: f64 = 1.10;
/// Size of the requests that search for the saturation.
const SATURATION_BYTES: u64 = 8 << 10;

/// What the planner is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Bringing the device to a steady state for the test in this place.
    Steady(usize),
    /// Measuring the test in this place.
    Curve(usize),
    /// Searching how many requests in flight help, of the operation in this place.
    Saturation(usize),
    Done,
}

/// How far the profiler is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What is measured, for people.
    pub doing: String,
    /// Part of the work that is done, 0 to 1, by time.
    pub share: f64,
    /// Nanoseconds left at most.
    pub left_ns: u64,
}

/// Plans the measurements; see the [module documentation](super).
pub struct Planner {
    options: Options,
    phase: Phase,
    spent_ns: u64,
    /// Time at which the present phase must end.
    phase_end_ns: u64,
    curves: [Curve; 4],
    /// Throughput by requests in flight, in bytes per nanosecond.
    throughput: [Vec<(u32, f64)>; 2],
    saturated: [bool; 2],
    /// Mean times of the bursts that are to become steady.
    steady: Vec<f64>,
    steady_since_ns: u64,
    unsteady: bool,
    /// Where the last sequential burst ended.
    cursor: u64,
    /// What the last burst measured.
    last: Option<(Test, u64)>,
    random: u64,
    requests: u64,
    ran_out: bool,
}

impl Planner {
    /// A plan for these options.
    #[must_use]
    pub fn new(options: Options) -> Planner {
        let mut curve = Curve::default();
        let mut random = mix(options.seed);
        match &options.sizes {
            Some(sizes) => curve.samples = sizes.iter().map(|size| (*size, Sample::default())).collect(),
            None => {
                for (low, high, _) in INTERVALS {
                    let segment = Segment { low: low << 10, high: high << 10 };
                    curve.segments.push(segment);
                    for size in [segment.low, segment.high].into_iter().chain(inside(segment, &mut random)) {
                        curve.samples.entry(size).or_default();
                    }
                }
            }
        }
        let curves = std::array::from_fn(|_| curve.clone());
        let mut planner = Planner {
            options,
            phase: Phase::Curve(0),
            spent_ns: 0,
            phase_end_ns: 0,
            curves,
            throughput: [Vec::new(), Vec::new()],
            saturated: [false; 2],
            steady: Vec::new(),
            steady_since_ns: 0,
            unsteady: false,
            cursor: 0,
            last: None,
            random,
            requests: 0,
            ran_out: false,
        };
        planner.enter(Phase::Curve(0));
        planner
    }

    /// The target was prepared, which took so long.
    pub fn prepared(&mut self, took_ns: u64) {
        self.spent_ns += took_ns;
        self.enter(self.phase);
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let doing = match self.phase {
            Phase::Steady(_) => "writing until the device is steady".to_owned(),
            Phase::Curve(test) => TESTS[test].name().to_owned(),
            Phase::Saturation(op) => format!("{} requests at a time", ["read", "write"][op]),
            Phase::Done => "done".to_owned(),
        };
        let budget = self.options.budget_ns.max(1);
        let share = if self.phase == Phase::Done { 1.0 } else { self.spent_ns as f64 / budget as f64 };
        Progress { doing, share: share.min(1.0), left_ns: budget.saturating_sub(self.spent_ns) }
    }

    /// What to measure next; nothing when it is done.
    pub fn next_burst(&mut self) -> Option<Burst> {
        loop {
            let burst = match self.phase {
                Phase::Steady(test) => self.next_steady(test),
                Phase::Curve(test) => self.next_of_curve(test),
                Phase::Saturation(op) => self.next_of_saturation(op),
                Phase::Done => return None,
            };
            if burst.is_some() {
                return burst;
            }
            self.enter(self.following());
        }
    }

    fn following(&self) -> Phase {
        match self.phase {
            Phase::Steady(test) => Phase::Curve(test),
            Phase::Curve(test) if test + 1 == TESTS.len() => Phase::Saturation(0),
            Phase::Curve(test) if TESTS[test + 1] == (Test { op: Op::Write, order: Order::Random }) => {
                Phase::Steady(test + 1)
            }
            Phase::Curve(test) => Phase::Curve(test + 1),
            Phase::Saturation(0) => Phase::Saturation(1),
            Phase::Saturation(_) | Phase::Done => Phase::Done,
        }
    }

    /// Begins a phase and gives it its share of the time that is left.
    fn enter(&mut self, phase: Phase) {
        let share = |test: &Test| if test.order == Order::Random { RANDOM_SHARE } else { SEQUENTIAL_SHARE };
        let (own, tests_left, ops_left) = match phase {
            Phase::Steady(test) | Phase::Curve(test) => (share(&TESTS[test]), &TESTS[test..], 2.0),
            Phase::Saturation(op) => (SATURATION_SHARE, &TESTS[4..], 2.0 - op as f64),
            Phase::Done => (1.0, &TESTS[4..], 0.0),
        };
        let all = tests_left.iter().map(share).sum::<f64>() + SATURATION_SHARE * ops_left;
        let left = self.options.budget_ns.saturating_sub(self.spent_ns) as f64;
        self.phase = phase;
        self.phase_end_ns = self.spent_ns + (left * own / all.max(own)) as u64;
        self.steady_since_ns = self.spent_ns;
    }

    fn slice_ns(&self) -> u64 {
        self.options.budget_ns / BURSTS_IN_BUDGET
    }

    fn burst(&mut self, test: Test, size_bytes: u64, in_flight: u32) -> Burst {
        self.random = mix(self.random);
        let each = u64::from(in_flight);
        let (bytes, slices) = match test.order {
            Order::Sequential => (SEQUENTIAL_BYTES, 2),
            Order::Random => (RANDOM_BYTES, 1),
        };
        Burst {
            test,
            size_bytes,
            in_flight,
            requests_max: REQUESTS_MAX.min(BYTES_MAX / size_bytes).max(each * 16).max(bytes / size_bytes),
            time_max_ns: self.slice_ns() * slices,
            requests_min: REQUESTS_MIN.max(each * 2),
            file_bytes: self.options.file_bytes,
            start: self.cursor.next_multiple_of(size_bytes),
            seed: self.random,
        }
    }

    fn next_steady(&mut self, test: usize) -> Option<Burst> {
        let time_max = (self.options.budget_ns as f64 * STEADY_BUDGET) as u64;
        let bursts = self.steady.len();
        if bursts >= 2 * STEADY_BURSTS {
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            let before = mean(&self.steady[bursts - 2 * STEADY_BURSTS..bursts - STEADY_BURSTS]);
            if (mean(&self.steady[bursts - STEADY_BURSTS..]) / before - 1.0).abs() < STEADY {
                return None;
            }
        }
        if self.spent_ns - self.steady_since_ns > time_max {
            self.unsteady = true;
            return None;
        }
        let size = self.options.sizes.as_ref().map_or(STEADY_BYTES, |sizes| sizes[sizes.len() / 2]);
        Some(self.burst(TESTS[test], size, 1))
    }

    fn next_of_curve(&mut self, test: usize) -> Option<Burst> {
        self.refine(test);
        let curve = &self.curves[test];
        // Every size is measured once, whatever it takes: without that there is no profile.
        let wanted = if self.spent_ns < self.phase_end_ns { BURSTS_MIN } else { 1 };
        // What was begun goes on, so that its bursts follow each other.
        let fewest = curve.samples.iter().filter(|s| s.1.bursts < wanted).min_by_key(|s| (s.1.bursts == 0, *s.0));
        let size = match fewest {
            Some((size, _)) => *size,
            None => {
                let worst = self.worst(curve)?;
                if self.spent_ns >= self.phase_end_ns {
                    self.ran_out = true;
                    return None;
                }
                worst
            }
        };
        Some(self.burst(TESTS[test], size, 1))
    }

    /// Adds sizes where the times are on no line.
    fn refine(&mut self, test: usize) {
        let curve = &self.curves[test];
        if curve.samples.values().any(|sample| sample.bursts < BURSTS_MIN) || self.spent_ns >= self.phase_end_ns {
            return;
        }
        let bends = curve.segments.iter().enumerate();
        let Some((place, at)) = bends.filter_map(|(place, s)| Some((place, curve.bend(*s)?))).next() else { return };
        let curve = &mut self.curves[test];
        let old = curve.segments.remove(place);
        for segment in [Segment { low: old.low, high: at }, Segment { low: at, high: old.high }] {
            curve.segments.push(segment);
            let known = curve.samples.range(segment.low + 1..segment.high).count();
            for size in inside(segment, &mut self.random).into_iter().take(INSIDE.saturating_sub(known)) {
                curve.samples.entry(size).or_default();
            }
        }
    }

    /// The size whose time is known least, if it is not known well enough.
    fn worst(&self, curve: &Curve) -> Option<u64> {
        let uncertain = curve.samples.iter().filter(|s| s.1.bursts < BURSTS_MAX);
        let uncertain = uncertain.filter_map(|(size, _)| Some((*size, curve.at(*size)?.relative())));
        let worst = uncertain.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (worst.1 > self.options.precision).then_some(worst.0)
    }

    fn next_of_saturation(&mut self, op: usize) -> Option<Burst> {
        let known = &self.throughput[op];
        let in_flight = known.last().map_or(1, |last| last.0 * 2);
        let over = self.spent_ns >= self.phase_end_ns && !known.is_empty();
        if self.saturated[op] || over || in_flight > self.options.in_flight_max {
            return None;
        }
        let size = self.options.sizes.as_ref().map_or(SATURATION_BYTES, |sizes| sizes[0]);
        let op = [Op::Read, Op::Write][op];
        Some(self.burst(Test { op, order: Order::Random }, size, in_flight))
    }

    /// Takes what a burst showed.
    pub fn record(&mut self, burst: &Burst, outcome: &Outcome) {
        self.spent_ns += outcome.elapsed_ns;
        let requests = outcome.latencies_ns.len() as u64;
        self.requests += requests;
        match self.phase {
            Phase::Steady(_) => self.steady.push(outcome.elapsed_ns as f64 / requests.max(1) as f64),
            Phase::Curve(test) => {
                if burst.test.order == Order::Sequential {
                    self.cursor = burst.offset(requests);
                }
                let follows = self.last == Some((burst.test, burst.size_bytes));
                self.last = Some((burst.test, burst.size_bytes));
                let sample = self.curves[test].samples.entry(burst.size_bytes).or_default();
                if follows { sample.add_next(outcome, SKIP) } else { sample.add(outcome, SKIP) }
            }
            Phase::Saturation(op) => self.record_throughput(op, burst, outcome),
            Phase::Done => {}
        }
    }

    fn record_throughput(&mut self, op: usize, burst: &Burst, outcome: &Outcome) {
        let rate = outcome.latencies_ns.len() as f64 / outcome.elapsed_ns.max(1) as f64;
        // Two steps without a gain are needed: one may be chance, or a device that needs more to begin with.
        let best = |known: &[(u32, f64)]| known.iter().map(|k| k.1).fold(0.0, f64::max);
        let known = &mut self.throughput[op];
        let before = best(&known[..known.len().saturating_sub(1)]);
        known.push((burst.in_flight, rate));
        self.saturated[op] = known.len() > 2 && best(&known[known.len() - 2..]) < before * SATURATION_GAIN;
    }

    /// The fewest requests in flight with about the best throughput.
    fn saturation(&self, op: usize) -> u32 {
        let best = self.throughput[op].iter().map(|known| known.1).fold(0.0, f64::max);
        let enough = self.throughput[op].iter().find(|known| known.1 * SATURATION_GAIN >= best);
        enough.map_or(1, |known| known.0)
    }

    fn points(&self, sequential: usize, random: usize) -> Vec<Point> {
        let (sequential, random) = (&self.curves[sequential], &self.curves[random]);
        let mut sizes: Vec<u64> = sequential.samples.keys().chain(random.samples.keys()).copied().collect();
        sizes.sort_unstable();
        sizes.dedup();
        let point = |size: u64| {
            let (s, r) = (sequential.at(size)?, random.at(size)?);
            let (sequential_ns, random_ns) = (s.ns, r.ns);
            let point = Point {
                size_bytes: size,
                sequential_ns: round(sequential_ns),
                random_ns: round(random_ns),
                sequential_error: round(s.relative()),
                random_error: round(r.relative()),
                ratio: round(round(random_ns) / round(sequential_ns)),
            };
            // What nobody could read back, a time of nothing above all, is no measurement.
            point.check().is_ok().then_some(point)
        };
        sizes.into_iter().filter_map(point).collect()
    }

    /// What was found.
    #[must_use]
    pub fn report(&self) -> Report {
        let enough = |points: &[Point], tests: [usize; 2]| {
            let sizes = tests.iter().map(|test| self.curves[*test].samples.len()).max().unwrap_or(0);
            !points.is_empty() && points.len() * 2 >= sizes
        };
        let profile = Profile {
            version: VERSION,
            method: format!(
                "sluice profile {}: adaptive sizes, bursts, linear fits, 95 % confidence intervals",
                env!("CARGO_PKG_VERSION")
            ),
            date: String::new(),
            host: String::new(),
            device: String::new(),
            emulated: false,
            file_bytes: self.options.file_bytes,
            saturation: Saturation { read: self.saturation(0), write: self.saturation(1) },
            reads: self.points(0, 1),
            writes: self.points(2, 3),
        };
        let is_enough = enough(&profile.reads, [0, 1]) && enough(&profile.writes, [2, 3]);
        let warnings = self.warnings(&profile);
        Report { profile, is_enough, warnings, elapsed_ns: self.spent_ns, requests: self.requests }
    }

    /// Sizes that were measured and are not in the profile.
    fn left_out(&self, profile: &Profile) -> Vec<u64> {
        let of = |points: &[Point], tests: [usize; 2]| {
            let sizes = tests.into_iter().flat_map(|test| self.curves[test].samples.keys().copied());
            let missing = sizes.filter(|size| points.iter().all(|point| point.size_bytes != *size));
            missing.collect::<Vec<u64>>()
        };
        let mut sizes = [of(&profile.reads, [0, 1]), of(&profile.writes, [2, 3])].concat();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    fn warnings(&self, profile: &Profile) -> Vec<String> {
        let mut warnings = Vec::new();
        let percent = |value: f64| format!("{:.0} %", value * 100.0);
        let points = || profile.reads.iter().chain(&profile.writes);
        let worst = points().map(|p| p.sequential_error.max(p.random_error)).fold(0.0, f64::max);
        if self.ran_out && worst > 3.0 * self.options.precision {
            warnings.push(format!("the time ran out: the worst time is known to {} only", percent(worst)));
        }
        let (left_out, sizes) = (self.left_out(profile), |sizes: &[u64]| {
            sizes.iter().map(|size| format!("{} KiB", *size as f64 / 1024.0)).collect::<Vec<_>>().join(", ")
        });
        if !left_out.is_empty() {
            warnings.push(format!("no time could be told of requests of {}: they are left out", sizes(&left_out)));
        }
        if self.unsteady {
            warnings.push("random writes did not become steady: the device may still be changing its pace".to_owned());
        }
        for (test, curve) in TESTS.iter().zip(&self.curves) {
            let drift = curve.samples.values().map(Sample::drift).fold(0.0, f64::max);
            if drift > 0.15 {
                let drift = percent(drift);
                warnings.push(format!("unstable: the same {} took {drift} more or less later", test.name()));
            }
        }
        let (quick, all) = self.curves[1].samples.values().fold((0, 0), |(q, a), s| (q + s.quick, a + s.requests));
        if quick * 20 > all {
            let share = percent(quick as f64 / all as f64);
            warnings.push(format!(
                "{share} of the random reads took less than a fifth of the median: a cache answers them; the file is too \
                 small for this device"
            ));
        }
        warnings
    }
}

/// Five digits are enough for anybody.
fn round(value: f64) -> f64 {
    let digits = 10_f64.powf(value.abs().max(1e-9).log10().floor() - 4.0);
    let rounded = (value / digits).round() * digits;
    // Shortest text: rounding in binary leaves a tail of digits.
    format!("{rounded:.9}").parse().unwrap_or(rounded)
}

/// Sizes inside a segment, one from each part of it on a logarithmic scale, at random.
fn inside(segment: Segment, random: &mut u64) -> Vec<u64> {
    let step = INTERVALS.iter().find(|i| segment.high <= i.1 << 10).map_or(4096, |i| i.2 << 10);
    let (low, high) = (segment.low as f64, segment.high as f64);
    let mut sizes = Vec::new();
    for part in 0..INSIDE {
        *random = mix(*random);
        let jitter = 0.25 + 0.5 * (*random >> 11) as f64 / (1u64 << 53) as f64;
        let size = low * (high / low).powf((part as f64 + jitter) / INSIDE as f64);
        let size = (size / step as f64).round() as u64 * step;
        if size > segment.low && size < segment.high && !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a busy machine makes of any device: most requests take their time, some take thousands of times as long.
    fn disturbed(burst: &Burst, seed: u64, worst: u64) -> Outcome {
        let mut outcome = Outcome::default();
        while burst.goes_on(outcome.latencies_ns.len() as u64, outcome.elapsed_ns) {
            let chance = mix(seed ^ burst.offset(outcome.latencies_ns.len() as u64) ^ outcome.elapsed_ns);
            let own = (burst.size_bytes / 4096) * (1 + chance % 7);
            let ns = if chance >> 32 & 3 == 0 { own * (1 + (chance >> 40) % worst) } else { own };
            outcome.latencies_ns.push(ns);
            outcome.elapsed_ns += ns;
        }
        outcome
    }

    fn plan(options: Options, mut run: impl FnMut(&Burst) -> Outcome) -> Report {
        let mut planner = Planner::new(options);
        while let Some(burst) = planner.next_burst() {
            let outcome = run(&burst);
            planner.record(&burst, &outcome);
        }
        planner.report()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn what_is_written_can_be_read(seed: u64, worst in 1_u64..1_000_000, budget_ms in 1_u64..3_000) {
            let options = Options { budget_ns: budget_ms * 1_000_000, seed, in_flight_max: 4, ..Options::default() };
            let report = plan(options, |burst| disturbed(burst, seed, worst));
            if report.is_enough {
                let text = report.profile.to_text();
                let read = Profile::parse("written", &text);
                prop_assert!(read.is_ok(), "{:?}\n{text}", read.err());
                let points = report.profile.reads.iter().chain(&report.profile.writes);
                prop_assert!(points.clone().all(|p| p.sequential_error <= 100.0 && p.random_error <= 100.0), "{text}");
            }
        }
    }

    #[test]
    fn sizes_without_a_time_are_left_out_and_too_many_are_no_profile() {
        let sizes = |n: u64| Options {
            sizes: Some((0..n).map(|bits| 8192 << bits).collect()),
            budget_ns: 1_000_000,
            ..Options::default()
        };
        let run = |burst: &Burst| {
            let ns = if burst.size_bytes == 8192 { 0 } else { burst.size_bytes };
            Outcome { latencies_ns: vec![ns; 40], elapsed_ns: 100_000 }
        };
        let report = plan(sizes(3), run);
        assert!(report.is_enough, "{report:?}");
        assert_eq!((report.profile.reads.len(), report.profile.writes.len()), (2, 2));
        assert!(report.warnings.iter().any(|w| w.contains("requests of 8 KiB: they are left out")), "{report:?}");
        assert!(!plan(sizes(1), run).is_enough);
    }
}
