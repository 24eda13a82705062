//! Means that follow, and evidence that ages.

use serde::{Deserialize, Serialize};

/// Batches that a mean goes back to, about.
const MEMORY: f64 = 256.0;

/// From so many batches on, what is off by more than so many deviations counts as that far off.
const SETTLED: f64 = 8.0;
const FAR_OFF: f64 = 2.0;
/// What takes longer counts as this long, in nanoseconds.
const LONGEST_NS: f64 = 1e15;

/// Mean and variance of what batches took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Moments {
    /// How many there were, as far as they count.
    pub(super) count: f64,
    pub(super) mean_ns: f64,
    pub(super) variance: f64,
    pub(super) mean_len: f64,
}

impl Moments {
    pub(super) fn add(&mut self, took_ns: u64, len: u64) {
        let most =
            if self.count < SETTLED { f64::INFINITY } else { FAR_OFF * self.variance.sqrt().max(0.01 * self.mean_ns) };
        self.count = (self.count + 1.0).min(MEMORY);
        let weight = 1.0 / self.count;
        // A thread that had to wait for a processor says little of the device.
        let off = ((took_ns as f64).min(LONGEST_NS) - self.mean_ns).clamp(-most, most);
        self.mean_ns += weight * off;
        self.variance = (1.0 - weight) * (self.variance + weight * off * off);
        self.mean_len += weight * (len as f64 - self.mean_len);
    }

    /// Variance of the mean.
    pub(super) fn of_mean(&self) -> f64 {
        self.variance / self.count.max(1.0)
    }

    /// Whether it can be what was written.
    pub(super) fn is_sound(&self) -> bool {
        let range = |value: f64, most: f64| (0.0..=most).contains(&value);
        range(self.count, MEMORY)
            && range(self.mean_ns, LONGEST_NS)
            && range(self.variance, LONGEST_NS * LONGEST_NS)
            && range(self.mean_len, 1e15)
    }
}

/// Batches for which the device had to move, and those for which it had not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Evidence {
    pub(super) slow: f64,
    pub(super) fast: f64,
}

impl Evidence {
    pub(super) fn add(&mut self, is_slow: bool) {
        if self.count() >= MEMORY {
            (self.slow, self.fast) = (self.slow / 2.0, self.fast / 2.0);
        }
        *(if is_slow { &mut self.slow } else { &mut self.fast }) += 1.0;
    }

    /// Something was slow elsewhere: what was fast counts for less.
    pub(super) fn contradict(&mut self) {
        self.fast *= 1.0 - 1.0 / MEMORY;
    }

    /// What is remembered counts as much as a quarter of what can be.
    pub(super) fn fade(&mut self) {
        let part = (MEMORY / 4.0 / self.count().max(1.0)).min(1.0);
        (self.slow, self.fast) = (self.slow * part, self.fast * part);
    }

    pub(super) fn count(&self) -> f64 {
        self.slow + self.fast
    }

    /// Expected share of slow ones, 0 to 1, by the rule of succession (Laplace): a half while there are none.
    pub(super) fn slow_share(&self) -> f64 {
        (self.slow + 1.0) / (self.count() + 2.0)
    }

    pub(super) fn plus(&self, other: &Evidence) -> Evidence {
        Evidence { slow: self.slow + other.slow, fast: self.fast + other.fast }
    }

    pub(super) fn is_sound(&self) -> bool {
        [self.slow, self.fast].iter().all(|value| (0.0..=MEMORY + 1.0).contains(value))
    }
}
