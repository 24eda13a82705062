//! A bandit that stops trying when nothing is to be gained.
//!
//! Rewards are logarithms, so that a difference of 0.01 is 1 % of throughput whatever the throughput is. Each arm has a mean. How
//! much rewards of one arm differ from the one before is pooled over all arms, since noise is the system's and not the arm's; what
//! grows or wears off slowly under an arm is no noise. Arms that are lengths of one thing tell of their neighbours: an untried window
//! between two that lose by far is not tried. Two arms matter at a time
//! (the idea of LUCB, Kalyanakrishnan et al., ICML 2012): the one with the largest mean, and the *challenger*, whose upper
//! confidence bound is the largest among the others. While that bound is above the leader's mean by more than
//! [`WORTH`], the one of the two that is known less is used; after that, the leader. So exploration costs nothing in the
//! long run, and an arm that is as good as the leader is not examined for ever.
//!
//! A change of the system shows as rewards that differ from what their arms brought before (Page and Hinkley): then all evidence
//! counts for little. That another arm leads, whose rewards are others, is no change.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::selector::PageHinkley;

/// What an arm must be able to gain to be tried: half a per cent, and more where many observations have not shown it, by so much
/// for each of them, up to a limit: what is within the noise of hundreds of them is not worth going to and fro.
const WORTH: f64 = 0.005;
const WORTH_LATER: f64 = 0.0002;
const WORTH_MAX: f64 = 0.02;
/// Standard deviations of the upper confidence bound.
const CONFIDENCE: f64 = 2.0;
/// Deviation of a reward until it is known, and so many observations' worth; the least that is believed.
const DEVIATION: f64 = 0.05;
const DEVIATION_WEIGHT: f64 = 4.0;
const DEVIATION_MIN: f64 = 0.003;
/// What differs by less from what was expected, in deviations, is no sign of a change.
const CHANGE_MIN: f64 = 0.5;
/// Evidence of an arm counts as at most so many observations, so that what comes later still matters.
const WEIGHT_MAX: f64 = 200.0;
/// Logarithms of rewards are not larger: their powers of e are finite.
pub(super) const MEAN_MAX: f64 = 600.0;
/// Of an arm of which similar situations say how good it is.
const PRIOR_WEIGHT: f64 = 1.0;
/// Deviation of an arm from its neighbour, such as a window twice as long. In the paper windows differ by 35 % at most, so that most
/// neighbours are much more alike; this much leaves room for one good window among bad ones.
const STEP: f64 = 0.2;
/// An arm that similar situations, neighbours or one observation say loses so much is not tried: a half.
const HOPELESS: f64 = -0.7;

/// How many arms there are, and which of them are lengths of one thing, in their order: neighbours differ little.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arms {
    pub(super) count: usize,
    ordered: Range<usize>,
}

impl Arms {
    /// `ordered`: some of them.
    #[must_use]
    pub fn new(count: usize, ordered: Range<usize>) -> Arms {
        let count = count.max(1);
        Arms { count, ordered: ordered.start.min(count)..ordered.end.min(count) }
    }
}

impl From<usize> for Arms {
    fn from(count: usize) -> Arms {
        Arms::new(count, 0..0)
    }
}

/// What is thought of an arm: mean, and how certain that is (one over the variance; 0: nothing is known).
#[derive(Clone, Copy, Debug, Default)]
struct Belief {
    mean: f64,
    precision: f64,
}

impl Belief {
    fn and(self, other: Belief) -> Belief {
        let precision = self.precision + other.precision;
        if precision > 0.0 {
            Belief { mean: (self.mean * self.precision + other.mean * other.precision) / precision, precision }
        } else {
            self
        }
    }

    /// What it says of a neighbour.
    fn beside(self) -> Belief {
        let precision = if self.precision > 0.0 { (self.precision.recip() + STEP * STEP).recip() } else { 0.0 };
        Belief { precision, ..self }
    }

    fn deviation(self) -> f64 {
        self.precision.sqrt().recip()
    }
}

/// What is expected of an arm before it was tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prior {
    /// Logarithm of its reward over that of the best arm: 0 or less.
    pub gain: f64,
    /// Standard deviation of that.
    pub deviation: f64,
}

/// What may be hoped for.
#[derive(Clone, Debug, PartialEq)]
pub struct Hopes {
    /// Mean of the rewards of the best arm.
    pub leading: f64,
    /// What each arm may gain over that, as a logarithm: at most, and never more than a factor of two either way.
    pub gains: Vec<f64>,
}

/// What is known of an arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arm {
    pub(super) mean: f64,
    pub(super) weight: f64,
    prior: Option<Prior>,
    /// Its last reward.
    #[serde(skip)]
    last: Option<f64>,
}

impl Arm {
    pub(super) fn tried(mean: f64, weight: f64) -> Arm {
        Arm { mean, weight, prior: None, last: None }
    }
}

/// What is kept of a bandit: all but how its leader has done lately. Of [`EpsilonGreedy`](super::EpsilonGreedy) it is the same, so
/// that what one has learned the other one knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    arms: Vec<Arm>,
    squares: f64,
    seen: f64,
}

impl Kept {
    /// Of arms alone: how much rewards differ is not known.
    pub(super) fn of(arms: Vec<Arm>) -> Kept {
        Kept { arms, squares: DEVIATION * DEVIATION * DEVIATION_WEIGHT, seen: DEVIATION_WEIGHT }
    }

    /// Of so many arms.
    ///
    /// # Errors
    /// If it says what cannot be.
    pub(super) fn checked(self, arms: usize) -> Result<Kept, String> {
        let range = |what: &str, value: f64, least: f64, most: f64| {
            if (least..=most).contains(&value) { Ok(()) } else { Err(format!("{what} is {value}")) }
        };
        if self.arms.len() != arms {
            return Err(format!("{} arms instead of {arms}", self.arms.len()));
        }
        for arm in &self.arms {
            range("mean", arm.mean, -MEAN_MAX, MEAN_MAX)?;
            range("weight", arm.weight, 0.0, 1e15)?;
            if let Some(prior) = arm.prior {
                range("gain", prior.gain, -MEAN_MAX, MEAN_MAX)?;
                range("deviation", prior.deviation, 1e-9, MEAN_MAX)?;
            }
        }
        range("squares", self.squares, 0.0, 1e12)?;
        range("seen", self.seen, 1.0, 1e15)?;
        Ok(self)
    }

    pub(super) fn arms(&self) -> &[Arm] {
        &self.arms
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Bandit {
    arms: Vec<Arm>,
    ordered: Range<usize>,
    /// Sum of squared deviations, and their number.
    squares: f64,
    seen: f64,
    change: PageHinkley,
}

impl Bandit {
    /// For so many arms, of which nothing is known but the priors; `priors` may be empty.
    #[must_use]
    pub fn new(arms: impl Into<Arms>, priors: &[Option<Prior>]) -> Bandit {
        let Arms { count, ordered } = arms.into();
        let arm = |at: usize| Arm { prior: priors.get(at).copied().flatten(), ..Arm::default() };
        Bandit {
            arms: (0..count).map(arm).collect(),
            ordered,
            squares: DEVIATION * DEVIATION * DEVIATION_WEIGHT,
            seen: DEVIATION_WEIGHT,
            change: PageHinkley::new(CHANGE_MIN),
        }
    }

    pub(super) fn keep(&self) -> Kept {
        Kept { arms: self.arms.clone(), squares: self.squares, seen: self.seen }
    }

    pub(super) fn kept(Kept { mut arms, squares, seen }: Kept, ordered: &Arms) -> Bandit {
        arms.iter_mut().for_each(|arm| arm.weight = arm.weight.min(WEIGHT_MAX));
        Bandit { arms, ordered: ordered.ordered.clone(), squares, seen, change: PageHinkley::new(CHANGE_MIN) }
    }

    /// Of one reward.
    fn deviation(&self) -> f64 {
        (self.squares / self.seen).sqrt().max(DEVIATION_MIN)
    }

    /// What an arm must be able to gain now.
    fn worth(&self) -> f64 {
        (WORTH_LATER * self.seen).clamp(WORTH, WORTH_MAX)
    }

    /// The arm with the largest mean among those that were tried.
    fn leader(&self) -> Option<usize> {
        let tried = (0..self.arms.len()).filter(|&at| self.arms[at].weight > 0.0);
        tried.max_by(|&a, &b| self.arms[a].mean.total_cmp(&self.arms[b].mean))
    }

    /// What is thought of each arm, of which the leader has this mean: by its rewards, by similar situations, and by its
    /// neighbours (the exact answer for a walk of steps of [`STEP`]: messages along the chain in both directions).
    fn beliefs(&self, leading: f64) -> Vec<Belief> {
        let variance = self.deviation().powi(2);
        let own = |arm: &Arm| {
            let seen = Belief { mean: arm.mean, precision: arm.weight / variance };
            arm.prior.map_or(seen, |prior| {
                seen.and(Belief { mean: leading + prior.gain, precision: PRIOR_WEIGHT / prior.deviation.powi(2) })
            })
        };
        let own: Vec<Belief> = self.arms.iter().map(own).collect();
        let mut beliefs = own.clone();
        let (mut before, mut after) = (Belief::default(), Belief::default());
        for (at, back) in self.ordered.clone().zip(self.ordered.clone().rev()) {
            beliefs[at] = beliefs[at].and(before);
            before = own[at].and(before).beside();
            beliefs[back] = beliefs[back].and(after);
            after = own[back].and(after).beside();
        }
        beliefs
    }

    /// The next arm. The same knowledge gives the same answer. O(arms).
    #[must_use]
    pub fn choose(&self) -> usize {
        let Some(leader) = self.leader() else {
            // What is best elsewhere, or the first.
            let gain = |at: usize| self.arms[at].prior.map_or(f64::NEG_INFINITY, |prior| prior.gain);
            return (0..self.arms.len()).rev().max_by(|&a, &b| gain(a).total_cmp(&gain(b))).unwrap_or(0);
        };
        let leading = self.arms[leader].mean;
        let beliefs = self.beliefs(leading);
        let bound = |at: usize| match beliefs[at] {
            Belief { precision, .. } if precision <= 0.0 => f64::INFINITY,
            it if it.mean - leading < HOPELESS => f64::NEG_INFINITY,
            it => it.mean + CONFIDENCE * it.deviation(),
        };
        let others = (0..self.arms.len()).filter(|&at| at != leader);
        let Some(challenger) = others.rev().max_by(|&a, &b| bound(a).total_cmp(&bound(b))) else { return leader };
        // The difference of two means is less certain than either.
        let own = self.deviation() / self.arms[leader].weight.sqrt();
        let is_open = match bound(challenger) {
            bound if bound.is_infinite() => bound > 0.0,
            _ => {
                let it = beliefs[challenger];
                it.mean + CONFIDENCE * own.hypot(it.deviation()) > leading + self.worth()
            }
        };
        if is_open && self.arms[challenger].weight <= self.arms[leader].weight { challenger } else { leader }
    }

    /// The arm that is best as far as is known, and nothing else.
    #[must_use]
    pub fn best(&self) -> usize {
        self.leader().unwrap_or_else(|| self.choose())
    }

    /// What an arm has brought: the logarithm of a throughput. Not finite: it tells nothing. O(arms).
    pub fn learn(&mut self, at: usize, reward: f64) {
        if !reward.is_finite() || at >= self.arms.len() {
            return;
        }
        let deviation = self.deviation();
        let arm = &mut self.arms[at];
        let off = reward - arm.mean;
        // In deviations, of which the mean that it is compared with has some, too. Whichever arm it is: that one arm brings other
        // rewards than another is no change.
        let surprise = (arm.weight > 1.0).then(|| off / deviation / (1.0 + arm.weight.recip()).sqrt());
        arm.weight = (arm.weight + 1.0).min(WEIGHT_MAX);
        arm.mean += off / arm.weight;
        if let Some(last) = arm.last.replace(reward) {
            // By successive differences (von Neumann 1941): an arm that brings more and more is not noisy.
            self.squares += (reward - last).powi(2).min(1e6) / 2.0;
            self.seen += 1.0;
        }
        if surprise.and_then(|surprise| self.change.see(surprise)).is_some() {
            self.doubt();
        }
    }

    /// All of it may be wrong by now.
    fn doubt(&mut self) {
        for arm in &mut self.arms {
            arm.weight = arm.weight.min(1.0);
            (arm.prior, arm.last) = (None, None);
        }
        self.squares = self.squares / self.seen * DEVIATION_WEIGHT;
        self.seen = DEVIATION_WEIGHT;
    }

    /// What may be hoped for; `None`: nothing was tried. O(arms).
    #[must_use]
    pub fn hopes(&self) -> Option<Hopes> {
        let leading = self.arms[self.leader()?].mean;
        let gain = |it: Belief| {
            if it.precision > 0.0 {
                (it.mean - leading + CONFIDENCE * it.deviation()).clamp(HOPELESS, -HOPELESS)
            } else {
                -HOPELESS
            }
        };
        Some(Hopes { leading, gains: self.beliefs(leading).into_iter().map(gain).collect() })
    }

    /// Of each arm that was tried: the logarithm of its reward over that of the best, and how often it was used.
    #[must_use]
    pub fn gains(&self) -> Vec<Option<(f64, f64)>> {
        let best = self.leader().map_or(0.0, |leader| self.arms[leader].mean);
        self.arms.iter().map(|arm| (arm.weight > 0.0).then_some((arm.mean - best, arm.weight))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::random::Random;
    use proptest::prelude::*;

    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.share()).sum::<f64>() - 6.0
    }

    /// Throughput over that of the best arm, and share of the last 50 steps on arms within 1 % of it.
    fn play(means: &[f64], deviation: f64, steps: usize, seed: u64) -> (f64, f64) {
        let (mut bandit, mut random) = (Bandit::new(means.len(), &[]), Random(seed));
        let best = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut sum, mut right) = (0.0, 0);
        for step in 0..steps {
            let arm = bandit.choose();
            sum += (means[arm] - best).exp();
            right += usize::from(step + 50 >= steps && means[arm] > best - 0.01);
            bandit.learn(arm, means[arm] + deviation * normal(&mut random));
        }
        (sum / steps as f64, right as f64 / 50.0)
    }

    #[test]
    fn it_finds_the_best_arm_and_stays() {
        for seed in 0..20 {
            let (of_best, right) = play(&[0.0, 0.1, 0.3, 0.25, -0.4, -1.0, 0.0, -2.0, 0.28], 0.03, 200, seed);
            assert!(right >= 0.98, "seed {seed}: {right}");
            assert!(of_best > 0.97, "seed {seed}: {of_best}");
        }
    }

    #[test]
    fn what_loses_more_than_half_is_tried_once() {
        let mut bandit = Bandit::new(3, &[]);
        let mut uses = [0; 3];
        for _ in 0..100 {
            let arm = bandit.choose();
            uses[arm] += 1;
            bandit.learn(arm, [0.0, -1.0, -2.0][arm]);
        }
        assert_eq!(uses[1..], [1, 1]);
    }

    #[test]
    fn what_is_known_of_similar_situations_comes_first_and_does_not_bind() {
        let prior = |gain| Some(Prior { gain, deviation: 0.2 });
        let mut bandit = Bandit::new(3, &[prior(-0.1), prior(0.0), prior(-2.0)]);
        assert_eq!(bandit.choose(), 1);
        for _ in 0..60 {
            let arm = bandit.choose();
            bandit.learn(arm, [0.5, 0.0, 0.0][arm]);
        }
        assert_eq!(bandit.best(), 0);
        assert_eq!(bandit.gains()[2], None, "hopeless elsewhere: never tried");
    }

    #[test]
    fn it_follows_a_change() {
        let mut bandit = Bandit::new(2, &[]);
        let mut random = Random(3);
        let mut late = 0;
        for step in 0..300 {
            let means = if step < 150 { [0.0, 0.3] } else { [0.0, -0.6] };
            let arm = bandit.choose();
            late += usize::from(step >= 180 && arm == 1);
            bandit.learn(arm, means[arm] + 0.02 * normal(&mut random));
        }
        assert!(late < 6, "{late}");
    }

    #[test]
    fn windows_between_two_that_lose_by_far_are_not_tried() {
        let means = [-0.5, -0.45, -0.5, -0.5, -0.45, -0.5, -0.5, 0.0];
        let tried = |arms: Arms| {
            let mut bandit = Bandit::new(arms, &[]);
            for _ in 0..60 {
                let arm = bandit.choose();
                bandit.learn(arm, means[arm]);
            }
            assert_eq!(bandit.best(), 7);
            bandit.gains().into_iter().flatten().count()
        };
        assert_eq!(tried(means.len().into()), means.len());
        let known = tried(Arms::new(means.len(), 0..7));
        assert!(known < means.len() - 1, "{known}");
    }

    #[test]
    fn one_good_window_among_bad_ones_is_found() {
        for good in 0..7 {
            let mut bandit = Bandit::new(Arms::new(8, 0..7), &[]);
            let mut last = 0;
            for _ in 0..60 {
                last = bandit.choose();
                bandit.learn(last, if last == good { 0.2 } else { -0.1 });
            }
            assert_eq!(last, good);
        }
    }

    #[test]
    fn that_another_arm_leads_is_no_change() {
        let mut bandit = Bandit::new(3, &[]);
        let mut random = Random(11);
        (0..12).for_each(|_| bandit.learn(0, 0.02 * normal(&mut random)));
        (0..12).for_each(|_| bandit.learn(1, 0.5 + 0.02 * normal(&mut random)));
        assert!(bandit.arms[..2].iter().all(|arm| arm.weight >= 12.0), "{:?}", bandit.arms);
    }

    #[test]
    fn what_grows_slowly_is_no_noise() {
        let mut bandit = Bandit::new(2, &[]);
        (0..40).for_each(|step| bandit.learn(0, f64::from(step) * 0.005));
        assert!(bandit.deviation() < 0.02, "{}", bandit.deviation());
    }

    proptest! {
        #[test]
        fn it_never_chooses_what_there_is_not(arms in 1..10_usize, rewards in proptest::collection::vec(-1e300..1e300_f64, 0..60)) {
            let mut bandit = Bandit::new(arms, &[]);
            for reward in rewards {
                let arm = bandit.choose();
                prop_assert!(arm < arms && bandit.best() < arms);
                bandit.learn(arm, reward);
                bandit.learn(arm, f64::NAN);
            }
        }
    }
}
