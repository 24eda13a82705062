//! Noticing that something has changed: the test of Page and Hinkley.
//!
//! Page, *Continuous inspection schemes*, Biometrika 41, 1954; in the form of Gama et al., *A survey on concept drift
//! adaptation*, ACM Computing Surveys 46(4), 2014, section 3.2.1. Of what comes in, everything above (below) the running mean by
//! more than a tolerance is summed up; when the sum has grown by more than a threshold since its minimum (maximum), the
//! mean has gone up (down). Tolerance and threshold are multiples of the deviation that was seen, as loads differ in how noisy they
//! are.

/// Where to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// It has become more.
    Up,
    /// It has become less.
    Down,
}

/// Tolerance and threshold in standard deviations.
const TOLERANCE: f64 = 0.5;
const THRESHOLD: f64 = 8.0;
/// One observation counts as no more than this, so that it takes two: a program that ends within a window is no change.
const OUTLIER: f64 = 5.0;
/// Observations before anything is noticed.
const WARM_UP: u32 = 4;
/// The mean follows slow drifts with this weight at least.
const WEIGHT_MIN: f64 = 0.02;

/// Watches one series for a change of its mean, in both directions. O(1) an observation.
#[derive(Clone, Debug)]
pub struct PageHinkley {
    count: u32,
    mean: f64,
    variance: f64,
    deviation_min: f64,
    above: f64,
    below: f64,
}

impl PageHinkley {
    /// `deviation_min`: less noise than this, in units of the series, is not believed; above 0.
    #[must_use]
    pub fn new(deviation_min: f64) -> PageHinkley {
        PageHinkley { count: 0, mean: 0.0, variance: 0.0, deviation_min, above: 0.0, below: 0.0 }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        *self = PageHinkley::new(self.deviation_min);
    }

    /// The mean of what was seen.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Takes an observation. When it tells of a change it has forgotten everything before.
    pub fn see(&mut self, value: f64) -> Option<Direction> {
        if !value.is_finite() {
            return None;
        }
        let deviation = self.variance.sqrt().max(self.deviation_min);
        let off = value - self.mean;
        if self.count >= WARM_UP {
            let off = off.clamp(-OUTLIER * deviation, OUTLIER * deviation);
            self.above = (self.above + off - TOLERANCE * deviation).max(0.0);
            self.below = (self.below - off - TOLERANCE * deviation).max(0.0);
            let direction = match THRESHOLD * deviation {
                threshold if self.above > threshold => Some(Direction::Up),
                threshold if self.below > threshold => Some(Direction::Down),
                _ => None,
            };
            if direction.is_some() {
                self.reset();
                return direction;
            }
        }
        self.count += 1;
        let weight = (1.0 / f64::from(self.count)).max(WEIGHT_MIN);
        // What is far off is a change, or an accident: neither says how noisy the series is.
        let off = if self.count > WARM_UP { off.clamp(-3.0 * deviation, 3.0 * deviation) } else { off };
        self.variance = (1.0 - weight) * (self.variance + weight * off * off);
        self.mean += weight * off;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::random::Random;

    /// Sum of 12 uniform numbers, less 6: nearly normal.
    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.share()).sum::<f64>() - 6.0
    }

    #[test]
    fn noise_is_seldom_a_change_and_a_step_is_soon_one() {
        let mut alarms = 0;
        let mut delays = Vec::new();
        for seed in 0..50 {
            let mut random = Random(seed);
            let mut test = PageHinkley::new(0.01);
            alarms += (0..400).filter(|_| test.see(normal(&mut random) * 0.1).is_some()).count();
            test.reset();
            (0..40).for_each(|_| _ = test.see(normal(&mut random) * 0.1));
            let step = if seed % 2 == 0 { 0.5 } else { -0.5 };
            let found = (1..40).find_map(|n| test.see(step + normal(&mut random) * 0.1).map(|to| (n, to)));
            let (delay, direction) = found.expect("five deviations are noticed");
            assert_eq!(direction, if step > 0.0 { Direction::Up } else { Direction::Down });
            delays.push(delay);
        }
        assert!(alarms <= 10, "{alarms} alarms in 20,000 observations of noise");
        delays.sort_unstable();
        assert!(delays[25] <= 3, "half of the steps are noticed within 3 observations: {delays:?}");
    }

    #[test]
    fn one_observation_is_an_accident_and_two_are_a_change() {
        let mut random = Random(3);
        let mut test = PageHinkley::new(0.01);
        for _ in 0..20 {
            (0..12).for_each(|_| assert_eq!(test.see(normal(&mut random) * 0.1), None));
            assert_eq!(test.see(-3.5), None);
        }
        (0..12).for_each(|_| assert_eq!(test.see(normal(&mut random) * 0.1), None));
        assert_eq!((test.see(-3.5), test.see(-3.5)), (None, Some(Direction::Down)));
    }

    #[test]
    fn nothing_is_made_of_what_is_no_number() {
        let mut test = PageHinkley::new(0.1);
        (0..100).for_each(|_| assert_eq!(test.see(f64::NAN), None));
        assert_eq!(test.count, 0);
    }
}
