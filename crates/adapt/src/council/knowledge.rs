//! Situations, and what their bandits have learned.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bandit::{Arms, Bandit, Hopes, Kept, Prior};
use super::epsilon::EpsilonGreedy;
use crate::selector::random::Random;

/// Most situations; those not seen for longest go first.
pub const SITUATIONS_MAX: usize = 1024;
/// Situations further apart say nothing of each other.
const SIMILAR: f64 = 3.0;
/// Deviation of what a situation says of another one: at no distance, and more for each unit of it.
const ALIKE: f64 = 0.15;
const APART: f64 = 0.15;
/// An arm of a similar situation that was used less often says nothing.
const USES_MIN: f64 = 2.0;

/// How a system's processes go through their files (the paper's classes).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// A file for each process, from front to back.
    OwnContiguous,
    /// One file, each process through a part of its own.
    SharedContiguous,
    /// One file, processes take turns.
    SharedStrided,
}

/// What most of the requests are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// What is learned of one is used when its like comes again. Counts and sizes are by power of 2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Situation {
    /// The pattern.
    pub pattern: Pattern,
    /// The operation.
    pub op: Op,
    servers: u8,
    nodes: u8,
    processes: u8,
    size: u8,
}

fn class(count: u64) -> u8 {
    // To the nearest power.
    (count.max(1) as f64).log2().round() as u8
}

impl Situation {
    /// Of a system with so many data servers and I/O nodes, whose processes ask for so many bytes at a time in the mean.
    #[must_use]
    pub fn new(pattern: Pattern, op: Op, servers: u64, nodes: u64, processes: u64, size: u64) -> Situation {
        Situation {
            pattern,
            op,
            servers: class(servers),
            nodes: class(nodes),
            processes: class(processes),
            size: class(size),
        }
    }

    /// How different two are: 0 for the same; those of other servers or operations are too far apart.
    #[must_use]
    pub fn distance(&self, other: &Situation) -> f64 {
        let off = |a: u8, b: u8, weight: f64| f64::from(a.abs_diff(b)) * weight;
        let same = |same: bool, weight: f64| if same { 0.0 } else { weight };
        same(self.op == other.op, 4.0)
            + same(self.pattern == other.pattern, 2.5)
            + off(self.servers, other.servers, 4.0)
            + off(self.nodes, other.nodes, 1.0)
            + off(self.processes, other.processes, 0.5)
            + off(self.size, other.size, 0.5)
    }
}

/// Which bandits learn.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Method {
    /// [`Bandit`], in new situations with what similar ones know.
    #[default]
    Confidence,
    /// The paper's [`EpsilonGreedy`], each situation for itself.
    EpsilonGreedy {
        /// From 0 to 1; the paper's is 0.15.
        epsilon: f64,
        /// Of the random numbers.
        seed: u64,
    },
}

impl Method {
    /// As configurations have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Confidence => "confidence",
            Method::EpsilonGreedy { .. } => "epsilon-greedy",
        }
    }
}

#[derive(Clone, Debug)]
enum Learner {
    Confidence(Bandit),
    EpsilonGreedy(EpsilonGreedy),
}

/// A bandit, and when it was asked last.
#[derive(Clone, Debug)]
struct Known {
    bandit: Learner,
    asked: u64,
}

/// How a bandit is kept.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    situation: Situation,
    asked: u64,
    bandit: Kept,
}

/// The bandits of all situations that were seen.
#[derive(Clone, Debug)]
pub struct Knowledge {
    arms: Arms,
    method: Method,
    random: Random,
    all: BTreeMap<Situation, Known>,
    asked: u64,
}

impl Knowledge {
    /// Nothing is known of so many arms.
    #[must_use]
    pub fn new(arms: impl Into<Arms>, method: Method) -> Knowledge {
        let seed = if let Method::EpsilonGreedy { seed, .. } = method { seed } else { 0 };
        Knowledge { arms: arms.into(), method, random: Random(seed), all: BTreeMap::new(), asked: 0 }
    }

    /// Which bandits learn.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// What similar situations say of each arm.
    fn priors(&self, situation: &Situation) -> Vec<Option<Prior>> {
        let mut sums = vec![(0.0, 0.0, f64::INFINITY); self.arms.count];
        for (other, known) in &self.all {
            let distance = situation.distance(other);
            if distance > SIMILAR {
                continue;
            }
            let Learner::Confidence(bandit) = &known.bandit else { continue };
            let weight = (1.0 + distance).powi(2).recip();
            for (sum, gain) in sums.iter_mut().zip(bandit.gains()) {
                if let Some((gain, _)) = gain.filter(|(_, uses)| *uses >= USES_MIN) {
                    *sum = (sum.0 + weight * gain, sum.1 + weight, sum.2.min(distance));
                }
            }
        }
        let prior = |(sum, weight, nearest): (f64, f64, f64)| {
            (weight > 0.0).then(|| Prior { gain: sum / weight, deviation: ALIKE + APART * nearest })
        };
        sums.into_iter().map(prior).collect()
    }

    /// The arm that is next in a situation. O(arms + log situations), if the situation is known.
    pub fn choose(&mut self, situation: Situation) -> usize {
        let mut random = self.random.clone();
        let arm = match self.of(situation) {
            Learner::Confidence(bandit) => bandit.choose(),
            Learner::EpsilonGreedy(bandit) => bandit.choose(|| random.share()),
        };
        self.random = random;
        arm
    }

    /// What an arm has brought in a situation: the logarithm of a throughput. Not finite: it tells nothing. As
    /// [`choose`](Self::choose).
    pub fn learn(&mut self, situation: Situation, arm: usize, reward: f64) {
        match self.of(situation) {
            Learner::Confidence(bandit) => bandit.learn(arm, reward),
            Learner::EpsilonGreedy(bandit) => bandit.learn(arm, reward.exp()),
        }
    }

    /// What may be hoped for in a situation ([`Bandit::hopes`]), if ours is asked and knows the situation.
    #[must_use]
    pub fn hopes(&self, situation: &Situation) -> Option<Hopes> {
        match &self.all.get(situation)?.bandit {
            Learner::Confidence(bandit) => bandit.hopes(),
            Learner::EpsilonGreedy(_) => None,
        }
    }

    /// The bandit of a situation; a new one of ours begins with what similar ones know.
    fn of(&mut self, situation: Situation) -> &mut Learner {
        if !self.all.contains_key(&situation) {
            if self.all.len() >= SITUATIONS_MAX {
                let oldest = self.all.iter().min_by_key(|(_, known)| known.asked).map(|(key, _)| *key);
                oldest.map(|oldest| self.all.remove(&oldest));
            }
            let bandit = match self.method {
                Method::Confidence => Learner::Confidence(Bandit::new(self.arms.clone(), &self.priors(&situation))),
                Method::EpsilonGreedy { epsilon, .. } => {
                    Learner::EpsilonGreedy(EpsilonGreedy::new(self.arms.count, epsilon))
                }
            };
            self.all.insert(situation, Known { bandit, asked: 0 });
        }
        self.asked += 1;
        let known = self.all.get_mut(&situation).expect("it is there or was inserted");
        known.asked = self.asked;
        &mut known.bandit
    }

    /// Everything, to be kept.
    #[must_use]
    pub fn save(&self) -> serde_json::Value {
        let entry = |(situation, known): (&Situation, &Known)| Entry {
            situation: *situation,
            asked: known.asked,
            bandit: match &known.bandit {
                Learner::Confidence(bandit) => bandit.keep(),
                Learner::EpsilonGreedy(bandit) => bandit.keep(),
            },
        };
        // Finite numbers and names: they have JSON.
        serde_json::to_value(self.all.iter().map(entry).collect::<Vec<_>>()).unwrap_or_default()
    }

    /// What was kept, of so many arms, whichever bandits had learned it.
    ///
    /// # Errors
    /// If it says what cannot be.
    pub fn load(saved: serde_json::Value, arms: impl Into<Arms>, method: Method) -> Result<Knowledge, String> {
        let entries: Vec<Entry> = serde_json::from_value(saved).map_err(|error| error.to_string())?;
        if entries.len() > SITUATIONS_MAX {
            return Err(format!("{} situations", entries.len()));
        }
        let mut knowledge = Knowledge::new(arms, method);
        for Entry { situation, asked, bandit } in entries {
            // There are no more powers of 2, and no more questions than that in a life.
            if [situation.servers, situation.nodes, situation.processes, situation.size].into_iter().any(|n| n > 64)
                || asked > u64::MAX / 2
            {
                return Err(format!("{situation:?} cannot be"));
            }
            knowledge.asked = knowledge.asked.max(asked);
            let kept = bandit.checked(knowledge.arms.count)?;
            let bandit = match method {
                Method::Confidence => Learner::Confidence(Bandit::kept(kept, &knowledge.arms)),
                Method::EpsilonGreedy { epsilon, .. } => Learner::EpsilonGreedy(EpsilonGreedy::kept(&kept, epsilon)),
            };
            knowledge.all.insert(situation, Known { bandit, asked });
        }
        Ok(knowledge)
    }

    /// Situations that are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn situation(pattern: Pattern, op: Op, processes: u64) -> Situation {
        Situation::new(pattern, op, 4, 2, processes, 32 << 10)
    }

    #[test]
    fn a_new_situation_begins_with_what_similar_ones_know() {
        let mut knowledge = Knowledge::new(3, Method::Confidence);
        let here = situation(Pattern::SharedStrided, Op::Read, 128);
        for _ in 0..30 {
            let arm = knowledge.choose(here);
            knowledge.learn(here, arm, [0.0, 0.0, 0.4][arm]);
        }
        assert_eq!(knowledge.choose(situation(Pattern::SharedStrided, Op::Read, 256)), 2);
        let far = [(Pattern::SharedStrided, Op::Write), (Pattern::OwnContiguous, Op::Write)];
        assert!(
            far.iter().all(|&(pattern, op)| knowledge.priors(&situation(pattern, op, 128)).iter().all(Option::is_none))
        );
        assert_eq!(knowledge.len(), 4 - 2);
    }

    #[test]
    fn what_was_kept_is_known_again_and_what_cannot_be_is_refused() {
        let mut knowledge = Knowledge::new(3, Method::Confidence);
        let here = situation(Pattern::SharedStrided, Op::Read, 128);
        for _ in 0..30 {
            let arm = knowledge.choose(here);
            knowledge.learn(here, arm, [0.1, 0.0, 0.4][arm]);
        }
        knowledge.of(situation(Pattern::SharedStrided, Op::Read, 512));
        let saved = knowledge.save();
        let mut again = Knowledge::load(saved.clone(), 3, Method::Confidence).unwrap();
        assert_eq!(again.save(), saved);
        assert_eq!(again.choose(here), 2);
        assert!(Knowledge::load(saved.clone(), 4, Method::Confidence).unwrap_err().contains("3 arms"));
        for (from, to) in
            [("\"weight\":", "\"weight\":-"), ("strided", "stridden"), ("\"asked\":", "\"asked\":1e99,\"x\":")]
        {
            let bad = saved.to_string().replacen(from, to, 1);
            assert_ne!(bad, saved.to_string());
            let bad = serde_json::from_str(&bad).unwrap();
            Knowledge::load(bad, 3, Method::Confidence).unwrap_err();
        }
    }

    #[test]
    fn the_papers_bandits_learn_by_themselves_and_what_they_know_the_others_take_over() {
        let greedy = Method::EpsilonGreedy { epsilon: 0.15, seed: 7 };
        let mut knowledge = Knowledge::new(3, greedy);
        let (here, there) =
            (situation(Pattern::SharedStrided, Op::Read, 128), situation(Pattern::SharedStrided, Op::Read, 256));
        let mut uses = [0; 3];
        for _ in 0..2_000 {
            let arm = knowledge.choose(here);
            uses[arm] += 1;
            knowledge.learn(here, arm, [0.1, 0.0, 0.4][arm]);
        }
        // Any of three in 15 of 100 cases, else the best.
        assert!((1_700..1_900).contains(&uses[2]) && uses[0] > 50 && uses[1] > 50, "{uses:?}");
        let saved = knowledge.save();
        let again = Knowledge::load(saved.clone(), 3, greedy).unwrap();
        let arms = |saved: &serde_json::Value| saved[0]["bandit"]["arms"].clone();
        let mean = |saved: &serde_json::Value, at: usize| arms(saved)[at]["mean"].as_f64().unwrap();
        assert!((0..3).all(|at| (mean(&again.save(), at) - mean(&saved, at)).abs() < 1e-9), "{saved}");
        let mut ours = Knowledge::load(saved, 3, Method::Confidence).unwrap();
        assert_eq!(ours.choose(here), 2);
        assert_eq!(ours.choose(there), 2, "similar ones begin with it");
    }

    #[test]
    fn the_number_of_situations_is_bounded() {
        let mut knowledge = Knowledge::new(2, Method::Confidence);
        for n in 0..40_u64 {
            for m in 0..40_u64 {
                knowledge.of(Situation::new(Pattern::OwnContiguous, Op::Read, 1 << n.min(63), 1 << m.min(63), 1, 1));
            }
        }
        assert_eq!(knowledge.len(), SITUATIONS_MAX);
    }
}
