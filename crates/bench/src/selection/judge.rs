//! What choices are worth: of models, of the papers' trees, and of who always chooses the same.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_adapt::forest::Forest;
use sluice_adapt::selector::{Arm, INPUTS, Model, arms};
use sluice_sim::{larger, ties};

use super::data::{Case, host};
use crate::random::SplitMix64;

/// What another arm has to promise, as selectors have it.
const GAIN_MIN: f64 = 0.03;
/// Windows after which a choice counts as made.
const STEPS: usize = 6;
/// By how much less than the best that was seen, as a logarithm, what the model says of an arm may be for it to be tried.
const WORTH_TRYING: f64 = 0.3;
const RESAMPLES: usize = 2_000;
const ALPHA: f64 = 0.05;
pub(super) const TREES: [&str; 5] = ["T1", "T2", "T3", "T4", "T5"];

/// A case, and what each of its arms is worth.
pub(super) struct Judged<'a> {
    pub(super) case: &'a Case,
    names: Vec<String>,
    times: Vec<Vec<f64>>,
    means: Vec<f64>,
    best: Vec<usize>,
}

/// What a choice is worth in a case.
#[derive(Clone, Copy, Default)]
pub(super) struct Worth {
    /// Share of the best arm's throughput that is lost; 0 if the difference is not significant.
    regret: f64,
    /// The same whether or not it is.
    regret_all: f64,
    right: bool,
    /// Logarithm of the throughput over that of `noop`.
    gain: f64,
    /// What is significantly lost against `noop`.
    noop_loss: f64,
}

impl<'a> Judged<'a> {
    pub(super) fn new(case: &'a Case) -> Judged<'a> {
        let (names, times): (Vec<String>, Vec<Vec<f64>>) =
            case.arms.keys().filter_map(|name| Some((name.clone(), case.times(name)?))).unzip();
        let means = times.iter().map(|times| times.iter().sum::<f64>() / times.len() as f64).collect();
        let best = ties(&times);
        Judged { case, names, times, means, best }
    }

    fn place(&self, arm: &str) -> Option<usize> {
        let at = |name: &str| self.names.iter().position(|one| one == name);
        at(arm).or_else(|| at(arm.strip_suffix(" anticipation=on")?))
    }

    pub(super) fn worth(&self, arm: &str) -> Option<Worth> {
        let at = self.place(arm)?;
        let right = self.best.contains(&at);
        let regret_all = (1.0 - (self.means[self.best[0]] - self.means[at]).exp()).max(0.0);
        let noop = self.place("noop").unwrap_or(at);
        let gain = self.means[noop] - self.means[at];
        let is_worse = larger(&self.times[at], &self.times[noop]) < ALPHA;
        Some(Worth {
            regret: if right { 0.0 } else { regret_all },
            regret_all,
            right,
            gain,
            noop_loss: if is_worse { 1.0 - gain.exp() } else { 0.0 },
        })
    }

    pub(super) fn fastest(&self) -> &str {
        &self.names[self.best[0]]
    }

    /// What a selector that only asks the model comes to use: it begins with the first arm of such devices, and sees the windows of the
    /// arm in force.
    pub(super) fn by_model(&self, model: &Model) -> String {
        let candidates = arms(self.case.device, &host());
        let mut now = candidates[0].to_string();
        if self.case.arms.get(&now).is_none_or(|first| first.windows.is_empty()) {
            // There is nothing to choose from: the cheapest.
            return candidates.iter().find(|arm| arm.is_cheapest()).map_or(now, Arm::to_string);
        }
        for step in 0..STEPS {
            let windows = self.case.arms.get(&now).map_or(&[][..], |arm| &arm.windows);
            let Some(window) = windows.get(step % windows.len().max(1)) else { break };
            let Some(values) = model.values(window) else { break };
            let known = |arm: &Arm| model.arms().iter().position(|known| known == arm).map(|at| values[at]);
            let best = candidates.iter().filter_map(|arm| Some((arm, known(arm)?))).max_by(|a, b| a.1.total_cmp(&b.1));
            let own = candidates.iter().find(|arm| arm.to_string() == now).and_then(known);
            match best {
                Some((arm, value)) if value > own.unwrap_or(f64::NEG_INFINITY) + GAIN_MIN => now = arm.to_string(),
                _ => break,
            }
        }
        now
    }

    /// What a selector comes to use that tries what the model says, as `tree+bandit` does: each arm that was in force counts by the work
    /// per busy second of its windows, others by what the model says of them beside those. It tries what may be as good within
    /// [`WORTH_TRYING`], [`STEPS`] arms at most. The arm, and how many were in force.
    pub(super) fn by_trying(&self, model: &Model) -> (String, usize) {
        let candidates = arms(self.case.device, &host());
        let (mut now, mut seen) = (candidates[0].to_string(), Vec::<(String, f64)>::new());
        let mut sums = vec![0.0; model.arms().len()];
        while seen.len() < STEPS {
            let windows = self.case.arms.get(&now).map_or(&[][..], |arm| &arm.windows);
            let said: Vec<Vec<f64>> = windows.iter().filter_map(|window| model.values(window)).collect();
            let (Some(rate), false) = (rate(windows, true), said.is_empty()) else { break };
            seen.push((now.clone(), rate));
            for values in &said {
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value / said.len() as f64);
            }
            let value = |arm: &str| {
                let at = model.arms().iter().position(|known| known.to_string() == arm)?;
                Some(sums[at] / seen.len() as f64)
            };
            let off: f64 =
                seen.iter().filter_map(|(arm, rate)| Some(rate - value(arm)?)).sum::<f64>() / seen.len() as f64;
            let best = seen.iter().map(|(_, rate)| *rate).fold(f64::NEG_INFINITY, f64::max);
            let open = candidates.iter().map(Arm::to_string).filter(|arm| seen.iter().all(|(one, _)| one != arm));
            let open = open.filter_map(|arm| value(&arm).map(|value| (arm, value + off)));
            match open.max_by(|a, b| a.1.total_cmp(&b.1)) {
                Some((arm, value)) if value > best - WORTH_TRYING => now = arm,
                _ => break,
            }
        }
        let count = seen.len();
        let best = seen.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let cheapest = || candidates.iter().find(|arm| arm.is_cheapest()).map_or(now, Arm::to_string);
        (best.map_or_else(cheapest, |(arm, _)| arm), count)
    }

    /// What is chosen by who has measured every arm that selectors have, by the work that its windows did; `None` if there is nothing to
    /// choose from.
    pub(super) fn by_measuring(&self, per_busy: bool) -> Option<String> {
        let candidates = arms(self.case.device, &host());
        let measured = candidates.iter().filter_map(|arm| {
            let name = arm.to_string();
            Some((rate(&self.case.arms.get(&name)?.windows, per_busy)?, name))
        });
        measured.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
    }

    /// What one of the papers' trees says.
    pub(super) fn by_tree(&self, trees: &Forest, tree: usize) -> Option<String> {
        let votes = trees.leaf(tree, &self.case.thesis);
        let classes = trees.about().classes.iter().zip(votes);
        let measured = classes.filter(|(class, _)| self.place(class).is_some());
        measured.reduce(|best, one| if one.1 > best.1 { one } else { best }).map(|(class, _)| class.clone())
    }
}

/// The logarithm of the work per second, or per busy second, of some windows.
fn rate(windows: &[Vec<f32>], per_busy: bool) -> Option<f64> {
    let at = |name: &str| INPUTS.iter().position(|input| *input == name);
    let (rate, busy) = (at("rate_log2")?, at("busy")?);
    let sums = windows.iter().fold((0.0, 0.0), |(work, time), window| {
        let busy = f64::from(window[busy]).max(1e-3);
        (work + f64::from(window[rate]).exp2() * busy, time + if per_busy { busy } else { 1.0 })
    });
    (sums.1 > 0.0 && sums.0 > 0.0).then(|| (sums.0 / sums.1).ln())
}

/// What choices are worth over many cases.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Score {
    pub(super) cases: usize,
    /// Share in which the choice is not significantly slower than the fastest.
    pub(super) accuracy: f64,
    /// Mean share of the best arm's throughput that is lost; differences that are not significant count as none.
    pub(super) mean_regret: f64,
    /// 95 % confidence interval of that (bootstrap over cases).
    pub(super) mean_regret_interval: [f64; 2],
    /// Mean with differences that are not significant.
    pub(super) mean_regret_all: f64,
    pub(super) worst_regret: f64,
    /// Share of the cases with a regret above 5 %.
    pub(super) above_bar: f64,
    /// Geometric mean of the throughput over that of `noop`.
    pub(super) over_noop: f64,
    /// Most that is significantly lost against `noop`, and share of the cases with more than 2 %.
    pub(super) vs_noop_worst: f64,
    pub(super) vs_noop_above_bar: f64,
}

impl Score {
    /// Of no choices nothing is known, good or bad.
    pub(super) fn of(worths: &[Worth]) -> Option<Score> {
        if worths.is_empty() {
            return None;
        }
        let count = worths.len() as f64;
        let mean = |of: fn(&Worth) -> f64| worths.iter().map(of).sum::<f64>() / count;
        let most = |of: fn(&Worth) -> f64| worths.iter().map(of).fold(0.0, f64::max);
        let mut random = SplitMix64(1);
        let mut means: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let one = |_| worths[(random.next() % worths.len() as u64) as usize].regret;
                (0..worths.len()).map(one).sum::<f64>() / count
            })
            .collect();
        means.sort_by(f64::total_cmp);
        Some(Score {
            cases: worths.len(),
            accuracy: mean(|one| f64::from(u8::from(one.right))),
            mean_regret: mean(|one| one.regret),
            mean_regret_interval: [means[RESAMPLES / 40], means[RESAMPLES - 1 - RESAMPLES / 40]],
            mean_regret_all: mean(|one| one.regret_all),
            worst_regret: most(|one| one.regret),
            above_bar: mean(|one| f64::from(u8::from(one.regret > super::BAR_WORST))),
            over_noop: mean(|one| one.gain).exp(),
            vs_noop_worst: most(|one| one.noop_loss),
            vs_noop_above_bar: mean(|one| f64::from(u8::from(one.noop_loss > super::BAR_NOOP))),
        })
    }
}

/// A score among other fields: each of its own is null if there is none, but for the number of cases.
pub(super) fn or_nulls<S: serde::Serializer>(score: &Option<Score>, out: S) -> Result<S::Ok, S::Error> {
    if let Some(score) = score {
        return score.serialize(out);
    }
    let mut fields = serde_json::to_value(Score::default()).map_err(serde::ser::Error::custom)?;
    let known = fields.as_object_mut().into_iter().flat_map(|fields| fields.iter_mut());
    known.filter(|(name, _)| *name != "cases").for_each(|(_, value)| *value = serde_json::Value::Null);
    fields.serialize(out)
}

/// A case in which a choice costs something.
#[derive(Serialize)]
pub(super) struct Loss {
    pub(super) case: u64,
    pub(super) platform: String,
    pub(super) what: String,
    pub(super) chosen: String,
    pub(super) best: String,
    pub(super) regret: f64,
    pub(super) vs_noop: f64,
}

/// Choices in all cases, by who made them.
#[derive(Default)]
pub(super) struct Choices {
    by: BTreeMap<String, Vec<(usize, Worth)>>,
    /// Cases in which somebody chose what was not measured.
    unmeasured: BTreeMap<String, usize>,
    pub(super) losses: Vec<Loss>,
}

impl Choices {
    pub(super) fn add(&mut self, who: &str, number: usize, worth: Option<Worth>) {
        let own = self.by.entry(who.to_owned()).or_default();
        match worth {
            Some(worth) => own.push((number, worth)),
            None => *self.unmeasured.entry(who.to_owned()).or_default() += 1,
        }
    }

    pub(super) fn lose(&mut self, judged: &Judged<'_>, chosen: &str, worth: &Worth) {
        if worth.regret > super::BAR_WORST || worth.noop_loss > super::BAR_NOOP {
            let Case { case, platform, what, .. } = judged.case;
            self.losses.push(Loss {
                case: *case,
                platform: platform.clone(),
                what: what.clone(),
                chosen: chosen.to_owned(),
                best: judged.fastest().to_owned(),
                regret: worth.regret,
                vs_noop: worth.noop_loss,
            });
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.by.keys()
    }

    pub(super) fn unmeasured(&self, who: &str) -> usize {
        self.unmeasured.get(who).copied().unwrap_or(0)
    }

    /// The score of someone in some of the cases.
    pub(super) fn score(&self, who: &str, wanted: impl Fn(usize) -> bool) -> Option<Score> {
        let own = self.by.get(who).map_or(&[][..], Vec::as_slice);
        Score::of(&own.iter().filter(|(number, _)| wanted(*number)).map(|(_, worth)| *worth).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::data::Measured;
    use sluice_adapt::selector::Device;

    fn case(times: &[(&str, f64)]) -> Case {
        let measured = |mean: f64| Measured {
            seconds: [0.999, 1.0, 1.001, 1.0].map(|factor| mean * factor).to_vec(),
            windows: Vec::new(),
        };
        Case {
            case: 1,
            platform: "x".to_owned(),
            device: Device::Flash,
            what: String::new(),
            thesis: Vec::new(),
            best: Vec::new(),
            cpu_s: 0.0,
            arms: times.iter().map(|(arm, mean)| ((*arm).to_owned(), measured(*mean))).collect(),
        }
    }

    #[test]
    fn of_nothing_there_is_no_score() {
        let mut choices = Choices::default();
        choices.add("ours", 0, None);
        assert!(choices.score("ours", |_| true).is_none() && choices.score("nobody", |_| true).is_none());
        assert_eq!((choices.unmeasured("ours"), choices.names().count()), (1, 1));
        choices.add("ours", 1, Some(Worth::default()));
        assert_eq!(choices.score("ours", |_| true).unwrap().cases, 1);
    }

    #[test]
    fn a_choice_is_worth_what_it_loses() {
        let case = case(&[("noop", 1.0), ("sjf", 0.8), ("aioli", 2.0)]);
        let judged = Judged::new(&case);
        let aioli = judged.worth("aioli").unwrap();
        assert!((aioli.regret - 0.6).abs() < 1e-9 && (aioli.noop_loss - 0.5).abs() < 1e-9 && !aioli.right);
        let sjf = judged.worth("sjf anticipation=on").unwrap();
        assert!(
            sjf.right && sjf.regret == 0.0 && sjf.noop_loss == 0.0 && sjf.gain > 0.2,
            "flash has nothing to anticipate"
        );
        assert!(judged.worth("hbrr").is_none());
        let score = Score::of(&[aioli, sjf]).unwrap();
        assert!((score.mean_regret - 0.3).abs() < 1e-9 && (score.worst_regret - 0.6).abs() < 1e-9);
        assert_eq!((score.accuracy, score.above_bar), (0.5, 0.5));
        let [low, high] = score.mean_regret_interval;
        assert!(low <= 0.3 && 0.3 <= high);
    }
}
