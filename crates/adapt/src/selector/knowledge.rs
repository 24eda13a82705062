//! What was learned: of each kind of workload, what each arm gains.
//!
//! The rate of an arm in a window is taken as `level + gain + noise`, all logarithms: the level is common to all arms and moves
//! with what the workload happens to ask for (where on the disk it is, for one), the gain is the arm's own. Only differences
//! between gains of the same context mean anything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::meter::Unevenness;
use super::state::ARMS_MAX;
use super::{Arm, Context, Device, related};

/// Most contexts; those not seen for longest go first.
pub const CONTEXTS_MAX: usize = 256;
/// Evidence of one arm counts as at most so many windows, so that what comes later still matters.
pub(super) const WEIGHT_MAX: f64 = 64.0;
/// Deviation of a window's logarithmic rate, until it is known, and the least that is believed.
pub(super) const DEVIATION: f64 = 0.1;
const DEVIATION_MIN: f64 = 0.02;
/// No gain, as a logarithm, is further from that of the best arm.
pub(super) const GAIN_MAX: f64 = 50.0;
/// After so many windows an arm is known by itself.
pub(super) const SEEN_ENOUGH: f64 = 3.0;
/// By how much a gain may have changed since it was seen: variance for each second of load.
const DRIFT: f64 = 1e-5;
/// Deviation of what is expected of an arm that was never tried: from a model, from similar workloads, or from nothing.
const MODELLED: f64 = 0.15;
const GUESSED: f64 = 0.15;
const UNKNOWN: f64 = 0.4;
/// Below this belief a guess rules nothing out: it is no less than this logarithmic gain.
const BELIEVED: f64 = 0.5;
const LEAST_GUESS: f64 = -0.2;
/// Deviation of a window by evidence that is doubted.
const DOUBTED: f64 = 0.3;
/// Windows of a workload after which no arm goes untried because of what others gained: two minutes, by when it is worth a trial to
/// be sure.
const RELATED_WINDOWS: u64 = 480;
/// By how much less than the best these are then expected to gain.
const LATE: f64 = 0.2;
/// Evidence against an arm expires after so many seconds of load.
const EXPIRY_S: f64 = 1_800.0;
/// Workloads that are more different than that say nothing of each other.
const SIMILAR: f64 = 2.0;
/// Logarithm of how many times faster the same requests must have been served elsewhere, or before, than here and now to be a reason to
/// hope, or to doubt: where on a disk they are makes up to two.
pub(super) const FASTER: f64 = std::f64::consts::LN_2;

/// What is known of an arm in a context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Logarithmic gain.
    pub gain: f64,
    /// Variance of an observation's.
    pub variance: f64,
    /// Observations of it, of a quarter of a second or more; less where later evidence spoke against it.
    pub weight: f64,
    /// When it was seen last, on the [clock](Knowledge::clock_s).
    pub seen_s: f64,
}

impl Value {
    fn first(gain: f64, variance: f64, at_s: f64) -> Value {
        Value { gain, variance, weight: 1.0, seen_s: at_s }
    }

    /// By so many windows of this variance.
    pub(super) fn measured(gain: f64, variance: f64, windows: f64) -> Value {
        let variance = variance.clamp(DEVIATION_MIN * DEVIATION_MIN, 50.0);
        Value { gain: gain.clamp(-GAIN_MAX, GAIN_MAX), variance, weight: windows, seen_s: 0.0 }
    }

    /// Whether it is doubted, or of so long ago, that it speaks against nothing any more.
    pub(super) fn has_expired(&self, now_s: f64) -> bool {
        self.weight < 1.0 || now_s - self.seen_s > EXPIRY_S
    }

    /// Standard deviation of the gain as it may be by now.
    #[must_use]
    pub fn deviation(&self, now_s: f64) -> f64 {
        (self.variance / self.weight.max(0.1) + DRIFT * (now_s - self.seen_s).max(0.0)).sqrt()
    }
}

/// What is known of a kind of workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Logarithm of the rate of an arm of gain 0, in bytes per busy second, as it usually is: what it rose to counts at once, what it
    /// fell to by and by.
    pub level: f64,
    /// Observations, of a quarter of a second or more.
    pub windows: u64,
    /// Times that it began.
    pub stays: u64,
    /// How long it lasts, in seconds.
    pub stay_s: f64,
    /// When it was seen last, on the clock.
    pub seen_s: f64,
    /// By arm, as text.
    pub arms: BTreeMap<String, Value>,
    /// The class that it looks like under an arm, by arm.
    #[serde(default)]
    pub looks: BTreeMap<String, Context>,
    /// The arm that was in use last, by its own observations, trials aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// How its windows differ.
    #[serde(default, skip_serializing_if = "Unevenness::is_unknown")]
    pub uneven: Unevenness,
}

impl Known {
    /// An observation was of the arm in use.
    pub(super) fn uses(&mut self, arm: &str) {
        if self.last.as_deref() != Some(arm) {
            self.last = Some(arm.to_owned());
        }
    }

    /// The arm with the largest gain among those that were tried.
    #[must_use]
    pub fn best(&self) -> Option<(&str, &Value)> {
        self.best_of(|_| true)
    }

    /// The same of the arms that there are now.
    pub(super) fn best_of(&self, is_there: impl Fn(&str) -> bool) -> Option<(&str, &Value)> {
        let arms = self.arms.iter().filter(|(name, _)| is_there(name));
        let best = arms.max_by(|a, b| a.1.gain.total_cmp(&b.1.gain));
        best.map(|(name, value)| (name.as_str(), value))
    }

    /// Counts gains from the best arm's, as only differences mean anything. What the level of a gain of 0 grows by.
    pub(super) fn centre(&mut self) -> f64 {
        let best = self.best().map_or(0.0, |(_, value)| value.gain);
        self.lower(best);
        best
    }

    pub(super) fn lower(&mut self, by: f64) {
        self.arms.values_mut().for_each(|value| value.gain -= by);
    }

    /// As it is written: within the bounds of what is read. Of more arms than these those go that were seen longest ago.
    pub(super) fn kept(&self) -> Known {
        let mut kept = self.clone();
        if kept.arms.values().any(|value| value.gain.abs() > GAIN_MAX) {
            kept.level += kept.centre();
            kept.arms.values_mut().for_each(|value| value.gain = value.gain.max(-GAIN_MAX));
        }
        while kept.arms.len() > ARMS_MAX {
            let oldest = kept.arms.iter().min_by(|a, b| a.1.seen_s.total_cmp(&b.1.seen_s)).map(|(arm, _)| arm.clone());
            oldest.map(|arm| kept.arms.remove(&arm));
        }
        if kept.looks.len() > ARMS_MAX {
            kept.looks.retain(|arm, _| kept.arms.contains_key(arm));
        }
        kept
    }

    /// Standard deviation of a window's logarithmic gain, by the arm seen most.
    pub(super) fn noise(&self) -> f64 {
        let most = self.arms.values().max_by(|a, b| a.weight.total_cmp(&b.weight));
        most.filter(|value| value.weight >= SEEN_ENOUGH).map_or(DEVIATION, |value| value.variance.sqrt())
    }

    /// Takes a window of an arm with this logarithmic gain.
    pub(super) fn credit(&mut self, arm: &str, gain: f64, now_s: f64) {
        let variance = self.noise().powi(2);
        let Some(value) = self.arms.get_mut(arm) else {
            self.arms.insert(arm.to_owned(), Value::first(gain, variance, now_s));
            return;
        };
        if value.weight < 1.0 {
            // What is doubted may be of another level, too: nothing to take the mean of.
            (value.gain, value.weight, value.seen_s) = (gain, 1.0, now_s);
            return;
        }
        let off = gain - value.gain;
        value.weight = (value.weight + 1.0).min(WEIGHT_MAX);
        value.gain += off / value.weight;
        value.note(off);
        value.seen_s = now_s;
    }

    /// Counts times so much later, which ends at `clock_s`.
    fn shift(&mut self, by_s: f64, clock_s: f64) {
        // Rounding must not lead beyond the clock.
        let later = |seen_s: f64| (seen_s + by_s).min(clock_s);
        self.seen_s = later(self.seen_s);
        self.arms.values_mut().for_each(|value| value.seen_s = later(value.seen_s));
    }

    /// Adds what was seen elsewhere of arms, on the same clock. Those that both know say how the two compare; if there are none, the
    /// best arms of both count as equal.
    fn add(&mut self, other: &Known) {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (arm, value) in &other.arms {
            if let Some(own) = self.arms.get(arm) {
                let weight = own.weight.min(value.weight);
                sum += weight * (own.gain - value.gain);
                weights += weight;
            }
        }
        let best = |known: &Known| known.best().map_or(0.0, |(_, value)| value.gain);
        let shift = match (self.arms.is_empty(), weights > 0.0) {
            (true, _) => 0.0,
            (false, true) => sum / weights,
            (false, false) => best(self) - best(other),
        };
        for (arm, value) in &other.arms {
            let added = Value { gain: value.gain + shift, ..*value };
            let own = self.arms.entry(arm.clone()).or_insert(Value { weight: 0.0, ..added });
            let weight = (own.weight + value.weight).max(1e-6);
            own.gain += (added.gain - own.gain) * value.weight / weight;
            own.variance += (added.variance - own.variance) * value.weight / weight;
            own.weight = weight.min(WEIGHT_MAX);
            own.seen_s = own.seen_s.max(value.seen_s);
        }
    }

    /// What was known before is believed again, but for how often and when it was seen, and what it looked like.
    pub(super) fn restore(&mut self, before: Known) {
        let Known { level, arms, .. } = before;
        (self.level, self.arms) = (level, arms);
    }

    /// All of it may be wrong by now: what was seen counts for little, and what lost may be tried again.
    pub(super) fn doubt(&mut self) {
        for value in self.arms.values_mut() {
            value.weight = value.weight.min(0.5);
            value.variance = value.variance.max(DOUBTED * DOUBTED);
        }
    }
}

impl Value {
    /// A window was off by so much.
    pub(super) fn note(&mut self, off: f64) {
        let off = off.clamp(-1.0, 1.0);
        self.variance = (self.variance + (off * off - self.variance) / (self.weight + 1.0).min(16.0))
            .max(DEVIATION_MIN * DEVIATION_MIN);
    }
}

/// Everything that was learned at a place, for one kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct Knowledge {
    /// The devices that it is about.
    pub device: Device,
    /// Seconds of load seen: the clock by which evidence ages.
    pub clock_s: f64,
    /// Seconds that may be spent on trying.
    pub budget_s: f64,
    /// What a change of arms costs, in seconds of the device's work.
    pub switch_s: f64,
    /// Bytes that are written after a change of arms before it takes effect: they are held in memory below. `None`: it was never
    /// seen.
    pub held_bytes: Option<f64>,
    /// By context.
    pub contexts: BTreeMap<Context, Known>,
}

/// What is expected of an arm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// Logarithmic gain, comparable with others of the same context.
    pub gain: f64,
    /// Its standard deviation.
    pub deviation: f64,
    /// Observations of it; 0: it was never tried here.
    pub windows: f64,
}

impl Expectation {
    /// Nothing leads to expect anything of it.
    pub(super) fn is_unknown(&self) -> bool {
        (self.gain, self.deviation, self.windows) == (0.0, UNKNOWN, 0.0)
    }

    /// By how much this may be expected to be above `gain`, counting nothing where it is below (expected improvement: Mockus 1978).
    pub(super) fn improvement(&self, gain: f64) -> f64 {
        let above = self.gain - gain;
        let deviation = self.deviation.max(1e-6);
        let z = above / deviation;
        let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
        // The normal distribution within 0.01.
        let probability = 1.0 / (1.0 + (-1.702 * z).exp());
        (above * probability + deviation * density).max(0.0)
    }
}

impl Knowledge {
    /// Nothing is known.
    #[must_use]
    pub fn new(device: Device) -> Knowledge {
        Knowledge {
            device,
            clock_s: 0.0,
            budget_s: device.burn_in_s(),
            switch_s: 0.1,
            held_bytes: None,
            contexts: BTreeMap::new(),
        }
    }

    /// The same of devices of this kind: what was learned before it was known what the devices are is theirs. What may be spent on trying is no more
    /// than where nothing was learned.
    ///
    /// # Errors
    /// If it is about devices of another kind, or it is not known whether these are of that kind.
    pub fn for_device(self, device: Device) -> Result<Knowledge, super::StateError> {
        if self.device != device && self.device != Device::Unknown {
            return Err(super::StateError::OtherDevice { wanted: device, found: self.device });
        }
        Ok(Knowledge { device, budget_s: self.budget_s.min(device.burn_in_s()), ..self })
    }

    /// The workload that looks like this class under an arm: the one that is named so, else the only one that does.
    pub(super) fn resolve(&self, class: Context, arm: &str) -> Context {
        let mut alike = self.contexts.iter().filter(|(_, known)| known.looks.get(arm) == Some(&class));
        match (self.contexts.contains_key(&class), alike.next(), alike.next()) {
            (false, Some((only, _)), None) => *only,
            _ => class,
        }
    }

    /// What is known of a kind of workload, which begins now.
    pub(super) fn enter(&mut self, context: Context) -> &mut Known {
        if !self.contexts.contains_key(&context) && self.contexts.len() >= CONTEXTS_MAX {
            let oldest = self.contexts.iter().min_by(|a, b| a.1.seen_s.total_cmp(&b.1.seen_s)).map(|(key, _)| *key);
            oldest.map(|oldest| self.contexts.remove(&oldest));
        }
        let known = self.contexts.entry(context).or_default();
        known.stays = known.stays.saturating_add(1);
        known.seen_s = self.clock_s;
        known
    }

    /// The gain of an arm in workloads like this one, less that of the best arm there, and how far to believe it, 0 to 1: one
    /// workload that is like this one says little.
    fn similar(&self, context: &Context, arm: &str) -> Option<(f64, f64)> {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (other, known) in self.contexts.iter().filter(|(other, _)| *other != context) {
            let distance = context.distance(other);
            if distance > SIMILAR {
                continue;
            }
            if let (Some(value), Some((_, best))) = (known.arms.get(arm), known.best())
                && value.weight >= 1.0
            {
                let weight = 1.0 / (1.0 + distance).powi(2);
                sum += weight * (value.gain - best.gain);
                weights += weight;
            }
        }
        (weights > 0.0).then(|| (sum / weights, weights / (weights + 1.0)))
    }

    /// The gain of an arm over the best one that was seen here, by how fast it served workloads that ask for the same, if it did so much
    /// faster. Programs that use a file by turns ask for the same in step and apart, in another order, and all that is known of them
    /// apart may be arms that leave them so.
    fn elsewhere(&self, context: &Context, level: f64, known: &Known, arm: &str) -> Option<f64> {
        let alike = self.contexts.iter().filter(|(other, _)| *other != context && other.asks_the_same(context));
        let values = alike.filter_map(|(_, known)| Some((known.level, known.arms.get(arm)?)));
        let rates = values.filter(|(_, value)| value.weight >= 1.0).map(|(level, value)| level + value.gain);
        let gain = rates.max_by(f64::total_cmp)? - level - known.best()?.1.gain;
        (gain > FASTER).then_some(gain)
    }

    /// What is expected of each arm in a context: what was seen there, if that is enough; else what `prior` (logarithmic gains), or similar workloads,
    /// lead to expect, moved by what the arms that were seen here say of it (the module `related`). Where nothing was seen here it is
    /// that expectation itself, or nothing; where much was, what was not tried and not expected either may be as good as the best.
    /// O(arms x seen arms^2 + arms x contexts).
    #[must_use]
    pub fn expect(
        &self,
        context: &Context,
        level: Option<f64>,
        arms: &[Arm],
        prior: &[Option<f64>],
    ) -> Vec<Expectation> {
        let known = self.contexts.get(context);
        let elsewhere = |name: &str| {
            let known = known.filter(|known| !known.arms.contains_key(name))?;
            Some((self.elsewhere(context, level.unwrap_or(known.level), known, name)?, UNKNOWN))
        };
        // Gain and deviation.
        let guess = |(at, name): (usize, &String)| match prior.get(at).copied().flatten() {
            Some(gain) => Some((gain, MODELLED)),
            None => elsewhere(name).or_else(|| {
                let (gain, belief) = self.similar(context, name)?;
                let least = if belief < BELIEVED { LEAST_GUESS } else { f64::NEG_INFINITY };
                Some(((gain * belief).max(least), UNKNOWN + belief * (GUESSED - UNKNOWN)))
            }),
        };
        let names: Vec<String> = arms.iter().map(Arm::to_string).collect();
        let guesses: Vec<Option<related::Gain>> = names.iter().enumerate().map(guess).collect();
        let values: Vec<Option<&Value>> =
            names.iter().map(|name| known.and_then(|known| known.arms.get(name))).collect();
        if values.iter().all(Option::is_none) {
            let of = |guess: &Option<related::Gain>| {
                let (gain, deviation) = guess.unwrap_or((0.0, UNKNOWN));
                Expectation { gain, deviation, windows: 0.0 }
            };
            return guesses.iter().map(of).collect();
        }
        let before = |guess: &Option<related::Gain>| match guess {
            Some((gain, deviation)) => related::Expected { gain: *gain, scale: (deviation / UNKNOWN).min(1.0) },
            None => related::Expected { gain: 0.0, scale: 1.0 },
        };
        let before: Vec<related::Expected> = guesses.iter().map(before).collect();
        let seen: Vec<Option<related::Gain>> =
            values.iter().map(|value| value.map(|value| (value.gain, value.deviation(self.clock_s)))).collect();
        let best = values.iter().flatten().map(|value| value.gain).max_by(f64::total_cmp).unwrap_or(0.0);
        let is_late = known.is_some_and(|known| known.windows >= RELATED_WINDOWS);
        let of = |(at, (gain, deviation)): (usize, related::Gain)| match values[at] {
            None if is_late && guesses[at].is_none() => {
                Expectation { gain: best - LATE, deviation: UNKNOWN, windows: 0.0 }
            }
            Some(value) if value.weight >= SEEN_ENOUGH => {
                Expectation { gain: value.gain, deviation: value.deviation(self.clock_s), windows: value.weight }
            }
            value => Expectation { gain, deviation, windows: value.map_or(0.0, |value| value.weight) },
        };
        related::expect(arms, &before, &seen).into_iter().enumerate().map(of).collect()
    }

    /// A context of which both have an observation to the last digit: those who learn apart have none. What one of them has seen
    /// since may hide it.
    fn shared(&self, other: &Knowledge) -> Option<Context> {
        let is_same = |mine: &Value, theirs: &Value| {
            mine.gain != 0.0 && (mine.gain, mine.variance) == (theirs.gain, theirs.variance)
        };
        let shares = |mine: &Known, theirs: &Known| {
            let both = mine.arms.iter().filter_map(|(arm, value)| Some((value, theirs.arms.get(arm)?)));
            mine == theirs || both.into_iter().any(|(mine, theirs)| is_same(mine, theirs))
        };
        let both =
            self.contexts.iter().filter_map(|(context, mine)| Some((context, mine, other.contexts.get(context)?)));
        both.into_iter().find(|(_, mine, theirs)| shares(mine, theirs)).map(|(context, ..)| *context)
    }

    /// Adds what was learned elsewhere, on devices of the same kind, and apart: what both have from a common past counts twice, and
    /// is refused where it can be told. Where both know the same arms of a context, these say how the two compare; where they do
    /// not, the best arms of both count as equal. All is as old as it was: the clock is that of who has seen most load, and what the
    /// other has seen counts from its end. What trying may cost stays. O(contexts x arms).
    ///
    /// # Errors
    /// If it is about other devices, or shares observations with this.
    pub fn merge(&mut self, other: &Knowledge) -> Result<(), super::StateError> {
        if self.device != other.device {
            return Err(super::StateError::OtherDevice { wanted: self.device, found: other.device });
        }
        if let Some(context) = self.shared(other) {
            return Err(super::StateError::Shared(context));
        }
        let clock_s = self.clock_s.max(other.clock_s);
        let by_s = clock_s - self.clock_s;
        self.contexts.values_mut().for_each(|known| known.shift(by_s, clock_s));
        self.clock_s = clock_s;
        self.held_bytes = self.held_bytes.or(other.held_bytes);
        for (context, theirs) in &other.contexts {
            let mut theirs = theirs.clone();
            theirs.shift(clock_s - other.clock_s, clock_s);
            let mine = self.contexts.entry(*context).or_default();
            // It was never seen to its end.
            if mine.level == 0.0 {
                mine.level = theirs.level;
            }
            mine.add(&theirs);
            let stays = (mine.stays as f64 + theirs.stays as f64).max(1.0);
            mine.stay_s = (mine.stay_s * mine.stays as f64 + theirs.stay_s * theirs.stays as f64) / stays;
            mine.stays = mine.stays.saturating_add(theirs.stays);
            mine.windows = mine.windows.saturating_add(theirs.windows);
            mine.seen_s = mine.seen_s.max(theirs.seen_s);
            for (arm, look) in theirs.looks {
                mine.looks.entry(arm).or_insert(look);
            }
            mine.last = mine.last.take().or(theirs.last);
            if mine.uneven.differences < theirs.uneven.differences {
                mine.uneven = theirs.uneven;
            }
        }
        while self.contexts.len() > CONTEXTS_MAX {
            let fewest = self.contexts.iter().min_by_key(|(_, known)| known.windows).map(|(key, _)| *key);
            fewest.map(|fewest| self.contexts.remove(&fewest));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arms() -> Vec<Arm> {
        ["noop", "sjf", "aioli"].map(|name| Arm::parse(name).unwrap()).into()
    }

    fn context(text: &str) -> Context {
        Context::parse(text).unwrap()
    }

    fn knowing(context_text: &str, gains: &[(&str, f64)]) -> Knowledge {
        let mut knowledge = Knowledge::new(Device::Disk);
        let known = knowledge.enter(context(context_text));
        gains.iter().for_each(|(arm, gain)| (0..3).for_each(|_| known.credit(arm, *gain, 0.0)));
        knowledge
    }

    #[test]
    fn of_how_windows_differ_what_was_seen_more_of_is_merged() {
        let with = |differences, usual| {
            let mut knowledge = knowing("r1.q0.d2.f0.a0", &[("noop", usual)]);
            let uneven = Unevenness { variance: usual, usual, differences };
            knowledge.contexts.values_mut().for_each(|known| known.uneven = uneven);
            knowledge
        };
        for (ours, theirs, expected) in [(3, 9, 0.2), (9, 3, 0.1), (0, 1, 0.2)] {
            let mut mine = with(ours, 0.1);
            mine.merge(&with(theirs, 0.2)).unwrap();
            assert_eq!(mine.contexts.values().next().unwrap().uneven.usual, expected, "{ours} and {theirs}");
        }
    }

    #[test]
    fn what_is_doubted_is_replaced_by_what_is_seen_then() {
        let mut known = Known::default();
        (0..10).for_each(|_| known.credit("noop", 1.0, 0.0));
        known.credit("noop", 0.0, 0.0);
        assert!(known.arms["noop"].gain > 0.8);
        known.doubt();
        known.credit("noop", -3.0, 1.0);
        assert_eq!((known.arms["noop"].gain, known.arms["noop"].weight), (-3.0, 1.0));
    }

    #[test]
    fn what_was_seen_goes_before_guesses_and_guesses_before_nothing() {
        let knowledge = knowing("r2.q0.d1.f1.a0", &[("noop", 0.0), ("sjf", 0.5)]);
        let here = knowledge.expect(&context("r2.q0.d1.f1.a0"), None, &arms(), &[None, None, Some(0.1)]);
        assert_eq!((here[0].gain, here[1].gain), (0.0, 0.5));
        assert!(
            (0.25..0.45).contains(&here[2].gain) && here[2].deviation > 0.2,
            "like those seen, and a guess: {:?}",
            here[2]
        );
        let here = knowledge.expect(&context("r2.q0.d1.f1.a0"), None, &arms(), &[Some(1.0), Some(1.5), Some(1.2)]);
        assert!((here[2].gain - 0.2).abs() < 0.02 && here[2].windows == 0.0, "{:?}", here[2]);
        let near = knowledge.expect(&context("r3.q0.d1.f1.a0"), None, &arms(), &[]);
        let (gain, distance) = (near[1].gain - near[0].gain, 0.6);
        let weight = 1.0 / f64::powi(1.0 + distance, 2);
        assert!((gain - 0.5 * weight / (weight + 1.0)).abs() < 1e-9 && near[0].windows == 0.0, "{gain}");
        let far = knowledge.expect(&context("w0.q0.d3.f3.a0"), None, &arms(), &[]);
        assert!(far.iter().all(|one| one.gain == 0.0 && one.deviation == UNKNOWN));
    }

    #[test]
    fn what_two_have_learned_is_merged_by_what_both_know() {
        let mut one = knowing("r2.q0.d1.f1.a0", &[("noop", 0.0), ("sjf", 0.5)]);
        let two = knowing("r2.q0.d1.f1.a0", &[("sjf", 0.0), ("aioli", 0.3)]);
        let three = knowing("w2.q0.d1.f1.a0", &[("sjf", 0.0)]);
        one.merge(&two).unwrap();
        one.merge(&three).unwrap();
        let known = &one.contexts[&context("r2.q0.d1.f1.a0")];
        assert!((known.arms["aioli"].gain - 0.8).abs() < 1e-9 && (known.arms["sjf"].gain - 0.5).abs() < 1e-9);
        assert_eq!((known.arms["sjf"].weight, known.arms["aioli"].weight, one.contexts.len()), (6.0, 3.0, 2));
        assert!(one.merge(&Knowledge::new(Device::Flash)).unwrap_err().to_string().contains("non-rotational"));
    }

    #[test]
    fn what_is_merged_is_as_old_as_it_was() {
        let here = "r2.q0.d1.f1.a0";
        let at = |clock_s: f64, arms: &[(&str, f64, f64)]| {
            let mut knowledge = Knowledge { clock_s, ..Knowledge::new(Device::Disk) };
            let known = knowledge.enter(context(here));
            for (arm, gain, ago_s) in arms {
                (0..3).for_each(|_| known.credit(arm, *gain, clock_s - ago_s));
            }
            known.seen_s = clock_s - arms.iter().map(|arm| arm.2).fold(f64::INFINITY, f64::min);
            knowledge
        };
        let held_bytes = Some(1e6);
        let old = Knowledge { held_bytes, ..at(8_000.0, &[("noop", -0.1, 5_000.0), ("sjf", 0.0, 5_000.0)]) };
        let young = at(300.0, &[("sjf", 0.0, 20.0), ("aioli", -0.2, 100.0)]);
        for (mut one, two) in [(old.clone(), &young), (young.clone(), &old)] {
            one.merge(two).unwrap();
            assert_eq!((one.clock_s, one.held_bytes), (8_000.0, held_bytes));
            let known = &one.contexts[&context(here)];
            let ago = |arm: &str| one.clock_s - known.arms[arm].seen_s;
            assert_eq!(
                [ago("noop"), ago("sjf"), ago("aioli"), one.clock_s - known.seen_s],
                [5_000.0, 20.0, 100.0, 20.0]
            );
            assert!(known.arms["noop"].has_expired(one.clock_s) && !known.arms["aioli"].has_expired(one.clock_s));
            let of =
                |knowledge: &Knowledge, arm| knowledge.contexts[&context(here)].arms[arm].deviation(knowledge.clock_s);
            assert!((of(&one, "noop") - of(&old, "noop")).abs() < 1e-9);
            assert!((of(&one, "aioli") - of(&young, "aioli")).abs() < 1e-9);
            assert!((known.arms["sjf"].gain - known.arms["noop"].gain - 0.1).abs() < 1e-9);
            assert_eq!(Knowledge::from_text(one.to_text().as_bytes()).unwrap().clock_s, 8_000.0);
        }
    }

    #[test]
    fn what_was_learned_once_is_not_merged_twice() {
        let shared = |one: &Knowledge, two: &Knowledge| {
            matches!(one.clone().merge(two), Err(crate::selector::StateError::Shared(_)))
        };
        let (here, there) = ("r2.q0.d1.f1.a0", "w2.q0.d1.f1.a0");
        let mut one = knowing(here, &[("noop", -0.1), ("sjf", 0.5)]);
        assert!(shared(&one, &one) && shared(&knowing(here, &[("noop", 0.0)]), &knowing(here, &[("noop", 0.0)])));
        // One goes on, with one of the arms.
        let before = one.clone();
        one.enter(context(here)).credit("sjf", 0.4, 7.0);
        assert!(shared(&one, &before) && shared(&before, &one));
        // What was merged still has it.
        let other = knowing(there, &[("noop", 0.1), ("sjf", 0.3)]);
        let mut both = one.clone();
        both.merge(&other).unwrap();
        assert!(shared(&both, &one) && shared(&both, &other));
        let apart = knowing(here, &[("noop", -0.11), ("sjf", 0.51)]);
        assert!(!shared(&one, &apart) && !shared(&Knowledge::new(Device::Disk), &Knowledge::new(Device::Disk)));
    }

    #[test]
    fn the_number_of_contexts_is_bounded() {
        let mut knowledge = Knowledge::new(Device::Disk);
        let all = (0..3)
            .flat_map(|ops| (0..5).map(move |size| (ops, size)))
            .flat_map(|(ops, size)| (0..2).map(move |order| (ops, size, order)))
            .flat_map(|(ops, size, order)| (0..4).flat_map(move |d| (0..4).map(move |f| (ops, size, order, d, f))));
        for (at, (ops, size, order, depth, files)) in all.enumerate() {
            let ops = ["w", "m", "r"][ops];
            knowledge.clock_s = at as f64;
            knowledge.enter(context(&format!("{ops}{size}.q{order}.d{depth}.f{files}.a0")));
        }
        assert_eq!(knowledge.contexts.len(), CONTEXTS_MAX);
        assert!(knowledge.contexts.values().all(|known| known.seen_s >= (480 - CONTEXTS_MAX) as f64));
    }
}
