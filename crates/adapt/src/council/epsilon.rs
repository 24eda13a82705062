//! The paper's bandit (Bez et al. 2019, IV-B; Sutton and Barto, *Reinforcement Learning*, 2.2 and 2.4).

use super::bandit::{Arm, Kept, MEAN_MAX};

/// The share of choices in which the paper's tries any arm.
pub const EPSILON: f64 = 0.15;

/// Chooses the arm with the largest mean reward so far, or with a fixed probability any. An arm that was never chosen counts as 0.
#[derive(Clone, Debug, PartialEq)]
pub struct EpsilonGreedy {
    epsilon: f64,
    /// Mean reward, and times chosen.
    arms: Vec<(f64, u64)>,
}

impl EpsilonGreedy {
    /// `arms`: how many, at least 1. `epsilon`: from 0 to 1; the paper's is 0.15.
    #[must_use]
    pub fn new(arms: usize, epsilon: f64) -> EpsilonGreedy {
        EpsilonGreedy { epsilon, arms: vec![(0.0, 0); arms.max(1)] }
    }

    pub(super) fn keep(&self) -> Kept {
        let arm = |&(mean, times): &(f64, u64)| match times {
            0 => Arm::default(),
            // A mean of 0 has no logarithm.
            _ => Arm::tried(mean.max(f64::MIN_POSITIVE).ln().max(-MEAN_MAX), times as f64),
        };
        Kept::of(self.arms.iter().map(arm).collect())
    }

    pub(super) fn kept(kept: &Kept, epsilon: f64) -> EpsilonGreedy {
        let arm = |arm: &Arm| if arm.weight > 0.0 { (arm.mean.exp(), arm.weight.ceil() as u64) } else { (0.0, 0) };
        EpsilonGreedy { epsilon, arms: kept.arms().iter().map(arm).collect() }
    }

    /// The next arm. `random` gives numbers from 0 to below 1. O(arms).
    pub fn choose(&self, mut random: impl FnMut() -> f64) -> usize {
        let any = |random: f64, of: usize| ((random * of as f64) as usize).min(of - 1);
        if random() < self.epsilon {
            return any(random(), self.arms.len());
        }
        let best = self.arms.iter().map(|arm| arm.0).fold(f64::NEG_INFINITY, f64::max);
        let alike: Vec<usize> = (0..self.arms.len()).filter(|&at| self.arms[at].0 >= best).collect();
        alike[any(random(), alike.len())]
    }

    /// What an arm has brought: 0 or more. Not finite: it tells nothing.
    pub fn learn(&mut self, arm: usize, reward: f64) {
        if let Some((mean, times)) = self.arms.get_mut(arm).filter(|_| reward.is_finite()) {
            *times += 1;
            *mean += (reward - *mean) / *times as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_to_what_was_best_and_now_and_then_tries_any() {
        let mut bandit = EpsilonGreedy::new(3, 0.15);
        assert_eq!(bandit.choose(|| 0.99), 2, "nothing is known: any");
        bandit.learn(1, 10.0);
        bandit.learn(1, 20.0);
        bandit.learn(0, 14.0);
        bandit.learn(0, f64::NAN);
        bandit.learn(7, 1e9);
        assert_eq!(bandit.choose(|| 0.5), 1);
        let mut numbers = [0.1, 0.0].into_iter();
        assert_eq!(bandit.choose(|| numbers.next().unwrap()), 0);
    }
}
