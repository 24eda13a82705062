//! How many windows make an observation of an arm.
//!
//! What is wanted is throughput over time, and what is compared are logarithms. Where windows of one arm are all alike a window is
//! enough. Where they are not, as of a stream that is served for a while and then is not, the mean of their logarithms is far below
//! the logarithm of their mean, and two windows say little: then several are put together, by how much one differs from the next.

use serde::{Deserialize, Serialize};

use super::Load;

/// Time that is put together until it has enough requests, at most; and because windows differ. In quarters of a second.
pub(super) const SPARSE_MAX: u32 = 8;
const UNEVEN_MAX: u32 = 4;
/// Logarithmic deviation from window to window beyond which several are put together.
const EVEN: f64 = 0.3;
/// Differences that say how uneven windows are, about; before there are so many the rest count as none.
const MEMORY: f64 = 12.0;
/// More than this adds nothing to how much an observation is usually off.
const USUAL_MAX: f64 = 0.7;
/// So many say how much an observation is off.
const NOISE_MIN: u32 = 3;
/// Of a difference more than this is an accident.
const DIFFERENCE_MAX: f64 = 2.0;

/// How the windows of a workload differ, by the differences between one and the next under one arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unevenness {
    /// Variance of a window's logarithmic rate; where few differences were seen the rest count as none.
    pub variance: f64,
    /// The same without those that are accidents.
    pub usual: f64,
    /// Differences that were seen.
    pub differences: u32,
}

impl Unevenness {
    /// Most that either variance can be: of windows of which each is an accident.
    pub(super) const MAX: f64 = 0.5 * DIFFERENCE_MAX * DIFFERENCE_MAX;

    /// Nothing was seen.
    pub(super) fn is_unknown(&self) -> bool {
        self.differences == 0
    }
}

/// Puts windows together.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    /// Windows that are a quarter of a second.
    quarter: u32,
    sum: Load,
    windows: u32,
    /// Logarithmic rate of the last window of the same arm.
    last: Option<f64>,
    uneven: Unevenness,
}

impl Meter {
    /// Of a workload whose windows were seen to differ like this. `quarter`: windows that are a quarter of a second; so many are an
    /// observation at least.
    pub(super) fn new(quarter: u32, uneven: Unevenness) -> Meter {
        Meter { quarter, sum: Load::default(), windows: 0, last: None, uneven }
    }

    /// How windows were seen to differ.
    pub(super) fn uneven(&self) -> Unevenness {
        self.uneven
    }

    /// Nothing was seen of what comes, which is the same workload; by another arm, perhaps.
    pub(super) fn restart(&mut self) {
        *self = Meter::new(self.quarter, self.uneven);
    }

    /// Windows of something else, or of nothing, come between: what there is goes on after them, and is not compared with it.
    pub(super) fn pause(&mut self) {
        self.last = None;
    }

    /// How many windows make an observation, if they have enough requests.
    pub(super) fn windows(&self) -> u32 {
        let wanted = (self.uneven.variance / (EVEN * EVEN)).ceil();
        (wanted as u32).clamp(self.quarter, UNEVEN_MAX * self.quarter)
    }

    /// Deviation of an observation's logarithmic rate, if its windows say nothing of each other; 0 before that was seen.
    pub(super) fn noise(&self) -> f64 {
        let Unevenness { usual, differences, .. } = self.uneven;
        if differences < NOISE_MIN {
            return 0.0;
        }
        // Of those that there were: the rest count as none.
        let seen = 1.0 - (1.0 - 1.0 / MEMORY).powf(differences.into());
        (usual / seen / f64::from(self.windows())).sqrt()
    }

    /// A load, which so many windows were put together to. `teaches`: what it differs by from the one before says how uneven they are. Returns an observation when one has come
    /// together.
    pub(super) fn add(&mut self, load: &Load, windows: u32, requests_min: u64, teaches: bool) -> Option<Load> {
        if load.rate() > 0.0 {
            let rate = load.rate().ln();
            if let Some(last) = self.last.replace(rate).filter(|_| teaches) {
                let half_square = |most: f64| 0.5 * (rate - last).abs().min(most).powi(2);
                let Unevenness { variance, usual, differences } = &mut self.uneven;
                *variance += (half_square(DIFFERENCE_MAX) - *variance) / MEMORY;
                *usual += (half_square(USUAL_MAX) - *usual) / MEMORY;
                *differences = differences.saturating_add(1);
            }
        }
        self.sum.append(load);
        self.windows += windows;
        let is_enough = self.sum.completed() >= requests_min;
        if (!is_enough && self.windows < SPARSE_MAX * self.quarter) || self.windows < self.windows() {
            return None;
        }
        let sum = std::mem::take(&mut self.sum);
        self.windows = 0;
        // With too few requests it says nothing.
        (is_enough && sum.rate() > 0.0).then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::{OpFeatures, WindowFeatures};

    fn window(rate: f64, completed: u64) -> Load {
        let op = OpFeatures { requests: completed, completed, moved: (rate * 0.25) as u64, ..OpFeatures::default() };
        let features = WindowFeatures { busy_ns: 250_000_000, ops: [op, OpFeatures::default()], ..Default::default() };
        Load::of(&features)
    }

    /// Readings of so many windows of these rates in turn.
    fn readings(rates: &[f64], count: usize, completed: u64) -> (Meter, Vec<Option<Load>>) {
        let mut meter = Meter::new(1, Unevenness::default());
        let all =
            rates.iter().cycle().take(count).map(|rate| meter.add(&window(*rate, completed), 1, 16, true)).collect();
        (meter, all)
    }

    #[test]
    fn even_windows_are_observations_and_uneven_ones_are_put_together() {
        let (meter, all) = readings(&[50e6, 60e6], 100, 100);
        assert!(meter.windows() == 1 && all.iter().all(Option::is_some));
        let (meter, all) = readings(&[2e6, 42e6], 100, 100);
        assert_eq!(meter.windows(), UNEVEN_MAX);
        let observed = all[60..].iter().flatten().map(Load::rate);
        let rates: Vec<f64> = observed.collect();
        assert_eq!(rates.len(), 10);
        assert!(rates.iter().all(|rate| (rate / 23.6e6 - 1.0).abs() < 0.01), "throughput over time: {rates:?}");
    }

    #[test]
    fn what_another_arm_makes_is_no_unevenness() {
        let (mut meter, _) = readings(&[50e6], 20, 100);
        for _ in 0..20 {
            meter.restart();
            meter.add(&window(5e6, 100), 1, 16, false);
            meter.add(&window(90e6, 100), 1, 16, false);
            meter.restart();
            (0..3).for_each(|_| _ = meter.add(&window(50e6, 100), 1, 16, true));
        }
        assert_eq!(meter.windows(), 1);
    }

    #[test]
    fn few_requests_are_put_together_and_given_up() {
        let (_, all) = readings(&[50e6], 8, 4);
        assert_eq!(all.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, false, true].repeat(2));
        let (_, all) = readings(&[50e6], 16, 1);
        assert!(all.iter().all(Option::is_none));
    }
}
