//! What was measured of one test and size.

use super::Outcome;

/// Batches that a burst is divided into.
const BATCHES: usize = 10;
/// A burst that is further than this from the one right before it, and further than chance explains, says that the device
/// had not settled then: a buffer was filling or being used up.
const SETTLED: f64 = 0.03;
const SETTLED_ERRORS: f64 = 4.0;
/// So often bursts may be forgotten for that reason.
const FORGET_MAX: u32 = 4;

/// Means of batches of requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Mean in nanoseconds, and number of requests.
    batches: Vec<(f64, f64)>,
    pub(super) bursts: u32,
    pub(super) requests: u64,
    /// Mean of each burst.
    bursts_mean: Vec<f64>,
    forgotten: u32,
    /// Requests that took less than a fifth of the median: something answered in the device's place.
    pub(super) quick: u64,
}

/// How many of the first values show a device that has not settled yet: those without which the standard error of the mean
/// of the rest is smallest (the MSER rule: K. P. White, *An effective truncation heuristic for bias reduction in simulation
/// output*, Simulation 69(6), 1997). At most half.
pub(super) fn settling(values: &[f64]) -> usize {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    let mut best = (f64::INFINITY, 0);
    for (at, value) in values.iter().enumerate().rev() {
        count += 1.0;
        sum += value;
        squares += value * value;
        if at <= values.len() / 2 && count > 1.0 {
            let spread = (squares - sum * sum / count).max(0.0) / (count * count);
            if spread <= best.0 {
                best = (spread, at);
            }
        }
    }
    best.1
}

impl Sample {
    /// Takes a burst that came right after the one before. If the two do not agree, those before it are forgotten.
    pub(super) fn add_next(&mut self, outcome: &Outcome, skip: usize) {
        let mut alone = Sample::default();
        alone.add(outcome, skip);
        let gap = (alone.mean() - self.mean()).abs();
        let chance = SETTLED_ERRORS * alone.error().hypot(self.error());
        if self.bursts > 0 && self.forgotten < FORGET_MAX && gap > chance.max(SETTLED * alone.mean()) {
            // What was quick stays: something that answers in the device's place is no matter of settling.
            *self = Sample {
                requests: self.requests,
                quick: self.quick,
                forgotten: self.forgotten + 1,
                ..Sample::default()
            };
        }
        self.add(outcome, skip);
    }

    /// Takes a burst's requests, one at a time. `skip`: so many at least do not count.
    pub(super) fn add(&mut self, outcome: &Outcome, skip: usize) {
        let values: Vec<f64> = outcome.latencies_ns.iter().map(|ns| *ns as f64).collect();
        let values = &values[skip.min(values.len() / 2)..];
        let values = &values[settling(values)..];
        self.bursts += 1;
        self.requests += outcome.latencies_ns.len() as u64;
        if values.is_empty() {
            return;
        }
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let bound = sorted[sorted.len() / 2] / 5.0;
        self.quick += sorted.partition_point(|value| *value < bound) as u64;
        self.bursts_mean.push(values.iter().sum::<f64>() / values.len() as f64);
        for batch in values.chunks(values.len().div_ceil(BATCHES)) {
            self.batches.push((batch.iter().sum::<f64>() / batch.len() as f64, batch.len() as f64));
        }
    }

    /// Mean, in nanoseconds.
    pub(super) fn mean(&self) -> f64 {
        let (sum, count) = self.batches.iter().fold((0.0, 0.0), |(s, c), (mean, n)| (s + mean * n, c + n));
        sum / f64::max(count, 1.0)
    }

    /// Standard error of the mean, widened for few batches so that twice of it is a 95 % confidence interval.
    pub(super) fn error(&self) -> f64 {
        let batches = self.batches.len() as f64;
        if batches < 2.0 {
            return self.mean();
        }
        let mean = self.mean();
        let count: f64 = self.batches.iter().map(|batch| batch.1).sum();
        let spread: f64 = self.batches.iter().map(|(value, n)| n * (value - mean) * (value - mean)).sum();
        let error = (spread / count / (batches - 1.0)).sqrt();
        // Nothing is known better than the clock and the model of independent batches are good.
        (error * student(batches - 1.0) / 2.0).max(mean * 1e-4)
    }

    /// How far the bursts that came last are from those that came first, over the mean; 0 if that may be chance.
    pub(super) fn drift(&self) -> f64 {
        let half = self.bursts_mean.len() / 2;
        if half < 2 {
            return 0.0;
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (first, last) = (mean(&self.bursts_mean[..half]), mean(&self.bursts_mean[half..]));
        let (gap, all) = ((last - first).abs(), self.mean());
        if gap > 8.0 * self.error() { gap / all } else { 0.0 }
    }
}

/// 97.5 % quantile of Student's distribution, within 3 %: the expansion around the normal distribution's
/// (M. Abramowitz and I. Stegun, *Handbook of mathematical functions*, 26.7.5).
fn student(freedom: f64) -> f64 {
    if freedom < 2.0 {
        return 12.71;
    }
    1.96 + 2.372 / freedom + 2.822 / freedom.powi(2) + 2.556 / freedom.powi(3) + 1.59 / freedom.powi(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(latencies_ns: Vec<u64>) -> Outcome {
        Outcome { elapsed_ns: latencies_ns.iter().sum(), latencies_ns }
    }

    #[test]
    fn what_has_not_settled_does_not_count() {
        let settled = (0..40).map(|i| 1000 + i % 7);
        let mut sample = Sample::default();
        sample.add(&outcome((0..10).map(|i| 9000 - i * 500).chain(settled).collect()), 0);
        assert!((sample.mean() - 1003.0).abs() < 20.0, "{}", sample.mean());
        assert_eq!(sample.requests, 50);
    }

    #[test]
    fn bursts_before_the_device_settled_are_forgotten() {
        let burst = |ns: u64| outcome((0..50).map(|i| ns + i % 7).collect());
        let mut sample = Sample::default();
        for ns in [1000, 2000, 2005, 2000] {
            sample.add_next(&burst(ns), 0);
        }
        assert!((sample.mean() - 2004.0).abs() < 5.0 && sample.bursts == 3, "{}", sample.mean());
        sample.add_next(&burst(2003), 0);
        assert_eq!(sample.drift(), 0.0, "what is forgotten is not compared with");
    }

    #[test]
    fn the_interval_holds_the_truth_about_as_often_as_it_says() {
        let (mut state, mut inside) = (1u64, 0);
        for _ in 0..1000 {
            let mut sample = Sample::default();
            for _ in 0..2 {
                let values = (0..50).map(|_| {
                    state = crate::parameter::mix(state);
                    1000 + state % 1001
                });
                sample.add(&outcome(values.collect()), 0);
            }
            inside += usize::from((sample.mean() - 1500.0).abs() <= 2.0 * sample.error());
        }
        assert!((900..990).contains(&inside), "{inside} of 1000");
    }

    #[test]
    fn few_batches_make_wide_intervals() {
        for (freedom, exact) in [(1.0, 12.71), (2.0, 4.30), (4.0, 2.78), (9.0, 2.26), (30.0, 2.04)] {
            let got = student(freedom);
            assert!((got / exact - 1.0).abs() < 0.03, "{got} instead of {exact}");
        }
    }
}
