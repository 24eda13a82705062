//! The state machine.

use std::collections::VecDeque;

use sluice_core::Time;

use super::budget::DEBT_MAX_S;
use super::doubt::{Doubted, RISING_MAX, Rates};
use super::explain::{Change, Pattern, Record, Why};
use super::held::Aftermath;
use super::knowledge::{self, Expectation};
use super::meter::{Meter, SPARSE_MAX, Unevenness};
use super::workload::{Before, Place};
use super::{
    Arm, Context, Device, Direction, Kind, Knowledge, Known, Load, PageHinkley, Prior, SelectorError, StateError,
};

/// Windows after a change of arms that are credited to nobody: what the old arm had queued is served in them.
pub(super) const STRADDLING: u32 = 1;
/// The unit of what takes time and not windows, in nanoseconds; longer windows are taken for it.
const QUARTER_NS: u64 = 250_000_000;
/// Time after a change in which the workload may come to look different because of it, in quarters of a second.
pub(super) const SETTLING: u32 = 4;
/// Time that an arm has for finding out who takes turns, before it is judged by that, in quarters of a second.
const FINDING_OUT: u32 = 4;
/// Observations of a trial: at least, and at most.
const TRIAL_MIN: u32 = 2;
pub(super) const TRIAL_MAX: u32 = 4;
/// Logarithmic loss at which one window is enough, of a trial or of another workload, and difference at which two of a trial are.
pub(super) const CLEAR: f64 = 0.35;
pub(super) const DIFFERENT: f64 = 0.15;
/// The same in standard deviations of a window, if that is more.
pub(super) const CLEAR_NOISE: f64 = 3.0;
const DIFFERENT_NOISE: f64 = 1.5;
/// Deviations of its gain by which a trial is won: of the mean of its own observations, and of what that is compared with.
const UNEVEN: f64 = 2.0;
/// Observations that the level is the mean of, about: each new one counts for nearly half.
const LEVEL_OBSERVATIONS: f64 = 3.0;
/// Observations without which no arm takes another's place outside of trials.
const BETTER_MIN: f64 = 2.0;
/// Deviations of a window by which one alone may be off to move the level, if that is more than what is clear; more are an
/// accident until the next is off likewise.
const ACCIDENT_NOISE: f64 = 3.0;
/// Why an arm is used that is no faster.
pub(super) const IN_STEP: &str = "and it keeps programs in step";
/// Arms tried one after the other without going back in between.
const CHAIN: u32 = 4;
/// Share of the first allowance for trying that is kept for what promises to be faster by a factor.
const RESERVE: f64 = 1.0 / 12.0;
/// Windows at the arm in use before another one is tried.
const STEADY_MIN: u32 = 2;
/// Time without a choice before the cheapest arm is used, in quarters of a second; doubled each time that was too early.
const REST_AFTER: u32 = 8;
const REST_AFTER_MAX: u32 = 1 << 10;
/// Windows where the device answers at once.
const REST_AFTER_IMMEDIATE: u32 = 2;
/// How long a workload lasts before it is known, in seconds.
const STAY_S: f64 = 10.0;
/// Most that one change of arms is said to have cost, in seconds.
pub(super) const COST_MAX_S: f64 = 1e3;

/// How to choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Who chooses.
    pub kind: Kind,
    /// What the devices are.
    pub device: Device,
    /// Share of the time with load, 0 to 1, that may be spent on trying in the long run.
    pub explore_share: f64,
    /// An arm whose expected loss is more than this, 0 to 1, is not tried.
    pub loss_max: f64,
    /// What another arm must gain, as a natural logarithm.
    pub gain_min: f64,
    /// Requests by which a window can be judged; with fewer, several are put together.
    pub requests_min: u64,
    /// What is written goes to memory below first, as through a page cache.
    pub memory_below: bool,
    /// Somebody has named what is in force at first: workloads of which nothing is known are begun with that, and not with the first arm.
    pub named_first: bool,
    /// How long windows are, in nanoseconds. Changes are noticed by windows; what arms are worth, by a quarter of a second or more.
    pub window_ns: u64,
}

impl Settings {
    /// The usual ones.
    #[must_use]
    pub fn new(kind: Kind, device: Device) -> Settings {
        Settings {
            kind,
            device,
            explore_share: 0.02,
            loss_max: 0.2,
            gain_min: 0.03,
            requests_min: 16,
            memory_below: false,
            named_first: false,
            window_ns: QUARTER_NS,
        }
    }
}

/// Chooses arms; see the [module](super).
#[derive(Debug)]
pub struct Selector {
    pub(super) settings: Settings,
    pub(super) arms: Vec<Arm>,
    /// The one that was in force at first, if there is no such among what there is to choose from for these devices.
    pub(super) named: Option<Arm>,
    /// The one that workloads of which nothing is known are begun with, if not the first.
    pub(super) begins_with: Option<Arm>,
    pub(super) names: Vec<String>,
    pub(super) prior: Option<Box<dyn Prior>>,
    pub(super) knowledge: Knowledge,
    /// The arm in force, and the one that is to be when nothing is tried.
    pub(super) arm: usize,
    pub(super) incumbent: usize,
    pub(super) mode: Mode,
    /// The workload; none while nothing is known of it.
    pub(super) place: Option<Place>,
    /// A window was of another class; one more, and the workload has changed.
    pub(super) is_changing: bool,
    /// Windows still to be credited to nobody, and those in which what changes is the arm's doing.
    pub(super) skip: u32,
    pub(super) settling: u32,
    /// The windows around the last change of arms.
    pub(super) aftermath: Aftermath,
    pub(super) meter: Meter,
    /// Windows that are a quarter of a second; at least 1.
    pub(super) quarter: u32,
    /// Windows that are put together before they are looked at, and those that are.
    gather: u32,
    pub(super) gathered: (u32, Load),
    /// Windows in which requests were served and none had ended yet.
    pub(super) unfinished: Load,
    /// When the last window ended, and whether the one that is looked at ends later: of several engines one may be seen late.
    pub(super) until: Time,
    pub(super) is_new: bool,
    /// The last window was answered by memory.
    pub(super) after_memory: bool,
    pub(super) features: [PageHinkley; 3],
    pub(super) reward: PageHinkley,
    /// Windows without a choice, one after the other; how many are enough; windows since that was so.
    light: u32,
    rest_after: u32,
    rested: u32,
    /// The last window.
    pub(super) last: Option<Load>,
    /// The pattern that was recognised, and when.
    pub(super) pattern: Option<(Time, Pattern)>,
    pub(super) change: Option<(Time, Change)>,
    pub(super) changes: u64,
    pub(super) trials: u64,
    /// Logarithmic gain of the trial that ended last, over the arm in use; none if too little was seen of it.
    pub(super) trial_gain: Option<f64>,
    pub(super) tried_s: f64,
    pub(super) records: VecDeque<Record>,
    pub(super) unsaved: bool,
    /// What was known before the last credit, which is taken back if the workload turns out to have changed meanwhile.
    pub(super) before: Option<Before>,
    /// What was known of the workload that is there before the rate fell.
    pub(super) doubted: Option<Doubted>,
    /// Windows for which programs may still be brought into step, and those in which it is found out whether any are to be.
    pub(super) patience: u32,
    pub(super) finding_out: u32,
    /// Windows one after the other in which none were.
    pub(super) quiet: u32,
    /// The workload that went before it was found out.
    pub(super) unjudged: Option<Context>,
    /// A class that was taken for a part of a known workload, and was none.
    pub(super) mistaken: Option<Context>,
    /// The workload whose best arm, as far as is known, undid at once what an arm that anticipates had done.
    pub(super) undone: Option<Context>,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mode {
    /// The best arm that is known is in use.
    Steady,
    /// Another one is tried.
    Trial(Trial),
    /// There is nothing to choose from.
    Resting,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trial {
    /// Judged windows, and the sums of their logarithmic gains and of the squares of these.
    count: u32,
    sum: f64,
    squares: f64,
    /// All windows, and which of a chain it is.
    windows: u32,
    chain: u32,
}

impl Trial {
    /// Deviation of the mean of its gains, by how they differ.
    fn off(&self) -> f64 {
        let count = f64::from(self.count);
        let variance = (self.squares - self.sum * self.sum / count.max(1.0)).max(0.0) / (count - 1.0).max(1.0);
        (variance / count.max(1.0)).sqrt()
    }
}

/// The logarithmic gain over another arm that is none by chance, by so many observations: more than their mean is off. Without an arm to move arms
/// differ by little, and rarely. Behind memory rates are high and low by turns, and what differs is told by what is known.
fn sure_gain(settings: &Settings, meter: &Meter, known: &Known, observations: f64) -> f64 {
    let off = match settings.device {
        Device::Flash => CLEAR_NOISE * known.noise(),
        _ if settings.memory_below => 0.0,
        _ => known.noise().max(meter.noise()),
    };
    settings.gain_min.max(off / observations.max(1.0).sqrt())
}

impl Selector {
    /// A selector that knows nothing yet. `arms`: what there is to choose from, beside the one in force; of those that nothing is known
    /// of, the first comes first.
    ///
    /// # Errors
    /// If the kind asks a model and there is none.
    pub fn new(
        settings: Settings,
        mut arms: Vec<Arm>,
        in_force: &Arm,
        prior: Option<Box<dyn Prior>>,
    ) -> Result<Selector, SelectorError> {
        let named = (!arms.contains(in_force)).then(|| in_force.clone());
        let begins_with = settings.named_first.then(|| in_force.clone());
        let arm = arms.iter().position(|arm| arm == in_force).unwrap_or_else(|| {
            arms.push(in_force.clone());
            arms.len() - 1
        });
        if settings.kind.asks_model() && prior.is_none() {
            return Err(SelectorError::NoModel(settings.kind));
        }
        let windows = QUARTER_NS.div_ceil(settings.window_ns.max(1)).min(1 << 16) as u32;
        // Behind memory a change shows late, by however short windows.
        let (quarter, gather) = if settings.memory_below { (1, windows) } else { (windows, 1) };
        let mut selector = Selector {
            names: arms.iter().map(Arm::to_string).collect(),
            knowledge: Knowledge::new(settings.device),
            prior: prior.filter(|_| settings.kind.asks_model()),
            settings,
            arms,
            named,
            begins_with,
            arm,
            incumbent: arm,
            mode: Mode::Steady,
            place: None,
            is_changing: false,
            skip: 0,
            settling: 0,
            aftermath: Aftermath::default(),
            meter: Meter::new(quarter, Unevenness::default()),
            quarter,
            gather,
            gathered: (0, Load::default()),
            unfinished: Load::default(),
            until: Time::ZERO,
            is_new: true,
            after_memory: false,
            features: [0.1, 0.05, 0.2].map(PageHinkley::new),
            reward: PageHinkley::new(0.03),
            light: 0,
            rest_after: REST_AFTER * quarter,
            rested: 0,
            last: None,
            pattern: None,
            change: None,
            changes: 0,
            trials: 0,
            trial_gain: None,
            tried_s: 0.0,
            records: VecDeque::new(),
            unsaved: false,
            before: None,
            doubted: None,
            patience: 0,
            finding_out: 0,
            quiet: 0,
            unjudged: None,
            mistaken: None,
            undone: None,
        };
        selector.patience = selector.patience_max();
        selector.record(&Load::default(), Why::Begin, None, String::new());
        Ok(selector)
    }

    /// Goes on with what was learned before.
    ///
    /// # Errors
    /// If that is about other devices.
    pub fn remember(&mut self, knowledge: Knowledge) -> Result<(), StateError> {
        let knowledge = knowledge.for_device(self.settings.device)?;
        self.knowledge = Knowledge { budget_s: knowledge.budget_s.max(-DEBT_MAX_S), ..knowledge };
        Ok(())
    }

    /// Whether there is an arm of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// What was learned.
    #[must_use]
    pub fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }

    /// Whether anything was learned that nobody has [taken](Selector::take_unsaved).
    #[must_use]
    pub fn has_unsaved(&self) -> bool {
        self.unsaved
    }

    /// Whether anything was learned since this was asked last.
    pub fn take_unsaved(&mut self) -> bool {
        std::mem::take(&mut self.unsaved)
    }

    /// Somebody has looked at the requests of a window that ended at `at`, and recognised this. It is told, and decides nothing.
    pub fn see(&mut self, at: Time, pattern: Option<Pattern>) {
        self.pattern = pattern.map(|pattern| (at, pattern));
    }

    /// The arm in force.
    #[must_use]
    pub fn arm(&self) -> &Arm {
        &self.arms[self.arm]
    }

    /// The oldest line of the log that nobody has taken. 256 are kept.
    pub fn take_record(&mut self) -> Option<Record> {
        self.records.pop_front()
    }

    /// A window has closed. Returns the arm that is to be used from now on, if it is another one. O(arms), and when it looks for
    /// something to try, O(arms x contexts).
    pub fn window(&mut self, load: &Load) -> Option<&Arm> {
        if self.settings.kind == Kind::Fixed {
            return None;
        }
        if load.start.since(self.unfinished.end) > self.settings.window_ns {
            // Nobody has seen how it ended.
            self.unfinished = Load::default();
        }
        if load.completed() == 0 {
            if load.busy_ns > 0 {
                self.unfinished.append(load);
            }
            return None;
        }
        // What was being served all that time has ended in this one.
        let mut whole = std::mem::take(&mut self.unfinished);
        whole.append(load);
        let load = &whole;
        self.spend(load);
        if load.start.since(self.gathered.1.end) > self.settings.window_ns {
            // Between them there was nothing.
            self.gathered = Default::default();
        }
        self.gathered.0 += 1;
        self.gathered.1.append(load);
        if self.gathered.0 < self.gather {
            return None;
        }
        let load = &std::mem::take(&mut self.gathered).1;
        let before = self.arm;
        self.step(load);
        self.last = Some(*load);
        (self.arm != before).then(|| &self.arms[self.arm])
    }

    fn step(&mut self, load: &Load) {
        self.record_window(load);
        if self.skip > 0 {
            self.skip -= u32::from(self.is_new);
            if load.is_immediate() {
                self.pass_over_memory();
            } else if self.is_still_there(load) {
                // What was credited before is older than what ends next.
                self.before = None;
                self.aftermath.see(load, self.held());
            }
            self.note_cost(load);
            return;
        }
        if !load.has_choice() {
            return self.rest(load);
        }
        let after_memory = std::mem::take(&mut self.after_memory);
        if self.mode == Mode::Resting {
            // If it was for a moment only, patience pays.
            let usual = REST_AFTER * self.quarter;
            let hasty = self.rested < 2 * usual;
            self.rest_after = if after_memory {
                self.rest_after
            } else if hasty {
                (self.rest_after * 2).min(REST_AFTER_MAX * self.quarter)
            } else {
                usual
            };
            self.mode = Mode::Steady;
        }
        self.light = 0;
        if self.is_same_workload(load) {
            let (load, windows) = &self.with_parts(load);
            self.aftermath.see(load, self.held());
            let finds_out = self.finding_out > 0;
            self.finding_out = self.finding_out.saturating_sub(1);
            if self.aftermath.is_over() && !self.waits_for_step(load) && !finds_out && !after_memory {
                self.credit(load, *windows);
            }
        } else {
            self.pass_by(load);
        }
    }

    /// A window that a trial cannot be judged by; it ends without evidence after many of them.
    fn pass_by(&mut self, load: &Load) {
        if let Mode::Trial(trial) = &mut self.mode {
            trial.windows += 1;
            self.lose_patience(load);
        }
    }

    /// Whether a logarithmic gain outlasts the cost of a change.
    pub(super) fn pays(&self, context: &Context, gain: f64) -> bool {
        let stay = self.knowledge.contexts.get(context).map_or(0.0, |known| known.stay_s);
        let stay = if stay > 0.0 { stay } else { STAY_S };
        gain > self.settings.gain_min && gain * stay > self.knowledge.switch_s
    }

    /// There is nothing to choose from.
    fn rest(&mut self, load: &Load) {
        self.is_changing = false;
        if load.is_immediate() {
            self.pass_over_memory();
        } else {
            self.meter.pause();
        }
        self.place.iter_mut().for_each(|place| place.parts.pause());
        self.pass_by(load);
        (self.light, self.rested) = (self.light.saturating_add(1), self.rested.saturating_add(1));
        let enough = if load.is_immediate() { REST_AFTER_IMMEDIATE } else { self.rest_after };
        if self.mode == Mode::Resting || self.light < enough {
            return;
        }
        let Some(cheapest) = self.arms.iter().position(Arm::is_cheapest) else { return };
        self.leave(None);
        (self.mode, self.rested, self.incumbent) = (Mode::Resting, 0, cheapest);
        let text = match load.is_immediate() {
            true => "the device answers at once: nothing to choose from".to_owned(),
            false => format!("{:.1} requests at a time: nothing to choose from", load.concurrency()),
        };
        if self.arm == cheapest {
            self.record(load, Why::Resting, None, text);
        } else {
            self.switch(cheapest, Why::Resting, text);
        }
    }

    // ---- evidence --------------------------------------------------------------------------------------------

    /// Work per busy second that is expected of the arm in force.
    pub(super) fn expected_rate(&self) -> Option<f64> {
        let place = self.place.as_ref()?;
        let value = self.knowledge.contexts.get(&place.context)?.arms.get(&self.names[self.arm])?;
        Some((place.level? + value.gain).exp())
    }

    /// So many windows, together and as a whole, of a known workload and an arm.
    fn credit(&mut self, load: &Load, windows: u32) {
        if self.unjudged == self.place.as_ref().map(|place| place.context) {
            self.unjudged = None;
        }
        if let Mode::Trial(trial) = &mut self.mode {
            trial.windows += 1;
        }
        let observed = self.meter.add(load, windows, self.settings.requests_min, self.mode == Mode::Steady);
        let Some(meter) = observed else {
            // What was credited before is older than this window.
            self.before = None;
            return self.lose_patience(load);
        };
        self.unsaved = true;
        self.before = self.place.as_ref().and_then(|place| {
            let known = self.knowledge.contexts.get(&place.context)?;
            Some(Before { context: place.context, known: known.clone(), level: place.level })
        });
        let rate = meter.rate().ln();
        match self.mode {
            Mode::Trial(trial) => self.credit_trial(load, trial, rate),
            Mode::Steady => self.credit_steady(load, rate),
            Mode::Resting => {}
        }
    }

    fn credit_steady(&mut self, load: &Load, rate: f64) {
        self.end_doubt(load, rate);
        let Some(place) = &self.place else { return };
        let (context, now_s, name) = (place.context, self.knowledge.clock_s, self.names[self.arm].clone());
        let expected = self.expectations(&context, load)[self.arm].gain;
        let (Some(place), Some(known)) = (&mut self.place, self.knowledge.contexts.get_mut(&context)) else { return };
        (known.windows, known.seen_s) = (known.windows.saturating_add(1), now_s);
        known.uses(&name);
        known.uneven = self.meter.uneven();
        let noise = known.noise();
        let value = known.arms.entry(name.clone()).or_insert(super::Value {
            gain: expected,
            variance: 0.01,
            weight: 0.0,
            seen_s: now_s,
        });
        let (usual, is_known) = (known.level + value.gain, known.stays > 1 && value.weight >= 1.0);
        let expected_rate = place.level.map(|level| level + value.gain);
        match &mut place.level {
            None => place.level = Some(rate - value.gain),
            Some(level) => {
                // While the arm is new its gain learns, later the level does.
                let off = rate - *level - value.gain;
                let before = std::mem::replace(&mut place.off, off);
                let alike = if before * off > 0.0 { before.abs() } else { 0.0 };
                // Behind memory a rate goes up and down by what is written back meanwhile.
                let least = if self.settings.memory_below { 0.0 } else { CLEAR };
                let most = alike.max(least).max(ACCIDENT_NOISE * noise);
                let off = off.clamp(-most, most);
                let to_gain = match place.compared {
                    0 => 0.5 / (value.weight + 2.0),
                    // As in a trial: the level is what another arm was seen to make of it.
                    _ => 1.0 / (value.weight + 1.0),
                };
                *level += (0.5 - to_gain).max(0.0) * off;
                value.gain += to_gain * off;
                place.compared = place.compared.saturating_sub(1);
                value.note(off);
            }
        }
        // Behind memory one window is high and another low.
        let seen = if self.settings.memory_below { place.level.map_or(rate, |level| level + value.gain) } else { rate };
        let fell = place.begins_low(is_known && seen < usual - knowledge::FASTER, self.settings.memory_below);
        (value.weight, value.seen_s) = ((value.weight + 1.0).min(knowledge::WEIGHT_MAX), now_s);
        if known.stays <= 1 {
            known.level = place.level.unwrap_or(known.level);
        }
        place.steady += 1;
        if place.steady > RISING_MAX {
            place.risen = 0.0;
        }
        let mean = self.reward.mean();
        if let Some(direction) = self.reward.see(rate) {
            self.doubt(load, direction, Rates { now: rate, mean, expected: expected_rate.unwrap_or(mean) });
        } else if fell {
            self.doubt(load, Direction::Down, Rates { now: seen, mean: usual, expected: usual });
        }
        self.decide(load);
    }

    fn credit_trial(&mut self, load: &Load, mut trial: Trial, rate: f64) {
        let Some(place) = &self.place else { return };
        let (context, Some(level)) = (place.context, place.level) else { return self.begin_anew() };
        let (now_s, name) = (self.knowledge.clock_s, self.names[self.arm].clone());
        let premium = self.premium(&context, self.arm) - self.premium(&context, self.incumbent);
        let Some(known) = self.knowledge.contexts.get_mut(&context) else { return };
        (known.windows, known.seen_s) = (known.windows.saturating_add(1), now_s);
        known.credit(&name, rate - level, now_s);
        trial.count += 1;
        trial.sum += rate - level;
        trial.squares += (rate - level).powi(2);
        self.mode = Mode::Trial(trial);
        let own = known.arms.get(&self.names[self.incumbent]).map_or(0.0, |value| value.gain);
        let gain = trial.sum / f64::from(trial.count) - own;
        let noise = known.noise();
        let different = DIFFERENT.max(DIFFERENT_NOISE * noise);
        let sure = sure_gain(&self.settings, &self.meter, known, trial.count.into());
        let sure = premium + different.max(sure).max(self.unevenness(trial.off()));
        // One window may be where a program ends and the next begins.
        let uneven = if self.settings.memory_below { 0.0 } else { self.meter.noise() };
        let decided = match trial.count {
            1 => gain < -CLEAR.max(CLEAR_NOISE * noise.max(uneven)),
            TRIAL_MIN.. if gain < -different || gain > sure => true,
            _ => trial.count >= TRIAL_MAX,
        };
        if decided {
            let (percent, windows) =
                ((gain.exp() - 1.0) * 100.0, if trial.windows == 1 { "window" } else { "windows" });
            let (more, incumbent) = (if gain < 0.0 { "less" } else { "more" }, &self.names[self.incumbent]);
            let text =
                format!("{name} for {} {windows}: {:.1} % {more} than {incumbent}", trial.windows, percent.abs());
            self.conclude(load, trial, gain, text);
        }
    }

    /// A trial ends, if windows have been saying nothing for twice as long as they may take to say something.
    fn lose_patience(&mut self, load: &Load) {
        if let Mode::Trial(trial) = self.mode
            && trial.windows >= (trial.count + 2) * SPARSE_MAX * self.quarter
        {
            self.conclude(load, trial, f64::NEG_INFINITY, format!("{}: too little to judge by", self.names[self.arm]));
        }
    }

    /// A trial is over.
    fn conclude(&mut self, load: &Load, trial: Trial, gain: f64, text: String) {
        self.mode = Mode::Steady;
        self.trial_gain = gain.is_finite().then_some(gain);
        let Some(context) = self.place.as_ref().map(|place| place.context) else { return };
        let premium = self.premium(&context, self.arm) - self.premium(&context, self.incumbent);
        let known = gain.min(self.known_gain(&context)) - premium;
        let sure = self.sure_gain(&context, trial.count.into()).max(self.unevenness(trial.off()));
        let is_won = gain - premium > sure && self.pays(&context, known);
        self.may_rise_by_itself(gain, is_won);
        if is_won {
            let text = if gain > 0.0 { text } else { format!("{text}, {IN_STEP}") };
            self.incumbent = self.arm;
            self.reward.reset();
            // That was learned since.
            self.doubted = None;
            if let Some(place) = &mut self.place {
                place.steady = 0;
                // What it gave now is what others are compared with, whatever it gave before.
                let known =
                    self.knowledge.contexts.get(&context).and_then(|known| known.arms.get(&self.names[self.arm]));
                let mean = trial.sum / f64::from(trial.count.max(1));
                place.level = place.level.map(|level| level + mean - known.map_or(mean, |value| value.gain));
                place.compared = TRIAL_MAX;
            }
            return self.record(load, Why::TrialWon, None, text);
        }
        let text = if gain > 0.0 { format!("{text}, too little to stay") } else { text };
        // What the way back shows says how long to wait.
        let chain = if self.held().is_finite() { CHAIN } else { 1 };
        let next = (trial.chain + 1 < chain).then(|| self.candidate(load)).flatten();
        match next {
            Some(next) => {
                self.record(load, Why::TrialLost, None, text);
                self.begin_trial(next, trial.chain + 1);
            }
            None => {
                self.place.iter_mut().for_each(|place| place.steady = 0);
                self.switch(self.incumbent, Why::TrialLost, text);
            }
        }
    }

    /// What an arm must gain by more than a lucky observation, its own, by which its mean is off by so much, or one of the arm in use: how uneven
    /// windows are is not known of a new workload. Behind memory they are high and low by turns in any case.
    fn unevenness(&self, off: f64) -> f64 {
        if self.settings.memory_below {
            return 0.0;
        }
        UNEVEN * off.hypot(self.meter.noise() / LEVEL_OBSERVATIONS.sqrt())
    }

    /// Logarithmic gain of the arm in force over the one in use by all that was seen of both, of which the last trial is a part.
    fn known_gain(&self, context: &Context) -> f64 {
        let known = self.knowledge.contexts.get(context);
        let gain = |at: usize| known?.arms.get(&self.names[at]).map(|value| value.gain);
        gain(self.arm).unwrap_or(0.0) - gain(self.incumbent).unwrap_or(0.0)
    }

    // ---- decisions -------------------------------------------------------------------------------------------

    /// What is expected of the arms.
    pub(super) fn expectations(&self, context: &Context, load: &Load) -> Vec<Expectation> {
        let ask = |arm| {
            let expected = self.prior.as_ref()?.expected(load, self.settings.device, arm)?;
            (expected > 0.0 && expected.is_finite()).then(|| expected.ln())
        };
        let prior: Vec<Option<f64>> = self.arms.iter().map(ask).collect();
        if self.settings.kind == Kind::Tree {
            // Nothing but the model: of what it does not know nothing is expected.
            let worst = prior.iter().flatten().copied().min_by(f64::total_cmp).unwrap_or(0.0);
            let of = |gain: &Option<f64>| Expectation { gain: gain.unwrap_or(worst), deviation: 0.0, windows: 0.0 };
            return prior.iter().map(of).collect();
        }
        let place = self.place.as_ref().filter(|place| place.context == *context);
        self.knowledge.expect(context, place.and_then(|place| place.level), &self.arms, &prior)
    }

    /// Whether an arm is expected to lose more than may be lost, by evidence that still counts. Of one that was never tried that
    /// evidence is about others: it has to be sure of it by a deviation.
    pub(super) fn is_excluded(&self, at: usize, expected: &[Expectation]) -> bool {
        let best = expected.iter().filter(|one| one.windows > 0.0).map(|one| one.gain).max_by(f64::total_cmp);
        let doubt = if expected[at].windows >= 1.0 { 0.0 } else { expected[at].deviation };
        let loss = best.unwrap_or(expected[self.incumbent].gain) - (expected[at].gain + doubt);
        let known = self.place.as_ref().and_then(|place| self.knowledge.contexts.get(&place.context));
        let value = known.and_then(|known| known.arms.get(&self.names[at]));
        let has_expired = value.is_some_and(|value| value.has_expired(self.knowledge.clock_s));
        loss > -(1.0 - self.settings.loss_max).ln() && !has_expired
    }

    /// The arm that is most worth a trial.
    fn candidate(&self, load: &Load) -> Option<usize> {
        let place = self.place.as_ref()?;
        // A first allowance that no trial fits into is still one: what is spent beyond it is earned before the next.
        // Of the last window: several may have been put together.
        let needed_s = self.trial_windows(load) * self.last.as_ref().unwrap_or(load).seconds();
        let left_s = self.knowledge.budget_s - needed_s.min(0.5 * self.settings.device.burn_in_s());
        if left_s < 0.0 {
            return None;
        }
        let expected = self.expectations(&place.context, load);
        let context = &place.context;
        let own = expected[self.incumbent].gain - self.premium(context, self.incumbent);
        let hope = |at: usize| expected[at].improvement(own + self.premium(context, at));
        let may_be = |at: &usize| *at != self.incumbent && *at != self.arm && !self.is_excluded(*at, &expected);
        // Of those that promise as much the first.
        let best = (0..self.arms.len()).rev().filter(may_be).max_by(|a, b| hope(*a).total_cmp(&hope(*b)))?;
        let enough =
            if left_s < RESERVE * self.settings.device.burn_in_s() { knowledge::FASTER } else { self.worth_trying() };
        (hope(best) >= enough).then_some(best)
    }

    /// See [`sure_gain`].
    pub(super) fn sure_gain(&self, context: &Context, observations: f64) -> f64 {
        let known = self.knowledge.contexts.get(context);
        known.map_or(self.settings.gain_min, |known| sure_gain(&self.settings, &self.meter, known, observations))
    }

    fn decide(&mut self, load: &Load) {
        let Some(place) = &self.place else { return };
        let (context, steady) = (place.context, place.steady);
        let expected = self.expectations(&context, load);
        let by_model = self.settings.kind == Kind::Tree;
        let known =
            (0..self.arms.len()).filter(|at| expected[*at].windows >= BETTER_MIN || *at == self.incumbent || by_model);
        let gain = |at: usize| expected[at].gain - self.premium(&context, at);
        if let Some(best) = known.max_by(|a, b| gain(*a).total_cmp(&gain(*b))) {
            let gain = gain(best) - gain(self.incumbent);
            // No less than in a trial, which it may just have lost.
            let sure =
                || self.sure_gain(&context, expected[best].windows).max(self.unevenness(expected[best].deviation));
            let sure = if by_model { 0.0 } else { sure() };
            if best != self.incumbent && self.pays(&context, gain) && gain > expected[best].deviation.max(sure) {
                let own = expected[best].gain - expected[self.incumbent].gain;
                self.incumbent = best;
                let gives_up = self.arms[self.arm].anticipation && !self.arms[best].anticipation;
                if let Some(place) = &mut self.place {
                    place.steady = 0;
                    place.gave_up_s = gives_up.then_some(self.knowledge.clock_s);
                }
                let text = format!("{:+.1} % expected", (own.exp() - 1.0) * 100.0);
                let text = if own > 0.0 { text } else { format!("{text}, {IN_STEP}") };
                self.switch(best, Why::Better, text);
                self.place.iter_mut().for_each(|place| place.compared = TRIAL_MAX);
                return;
            }
        }
        if !by_model
            && steady >= STEADY_MIN
            && !self.begins_unevenly()
            && !self.may_end_doubt()
            && let Some(next) = self.candidate(load)
        {
            self.begin_trial(next, 0);
        }
    }

    pub(super) fn begin_trial(&mut self, at: usize, chain: u32) {
        self.trials += 1;
        // What has expired is nothing to take the mean with.
        let (now_s, name) = (self.knowledge.clock_s, &self.names[at]);
        let known = self.place.as_ref().and_then(|place| self.knowledge.contexts.get_mut(&place.context));
        let value = known.and_then(|known| known.arms.get_mut(name));
        if let Some(value) = value.filter(|value| value.has_expired(now_s)) {
            value.weight = value.weight.min(0.5);
        }
        self.switch(at, Why::Trial, String::new());
        self.mode = Mode::Trial(Trial { count: 0, sum: 0.0, squares: 0.0, windows: 0, chain });
    }

    pub(super) fn switch(&mut self, to: usize, why: Why, text: String) {
        let from = std::mem::replace(&mut self.arm, to);
        self.changes += 1;
        let here = self.place.as_ref().map(|place| place.context).filter(Context::may_be_apart);
        let begins = here.is_some() && self.arms[to].anticipation && !self.arms[from].anticipation;
        let begins = begins && !(why == Why::KnownWorkload && here == self.unjudged);
        self.quiet = 0;
        self.finding_out = if begins { FINDING_OUT * self.quarter } else { 0 };
        (self.skip, self.settling) = (STRADDLING, SETTLING * self.quarter + self.finding_out);
        self.note_held();
        self.aftermath.change();
        self.meter.restart();
        self.place.iter_mut().for_each(Place::change_arm);
        self.features.iter_mut().for_each(PageHinkley::reset);
        self.reward.reset();
        let load = self.last.unwrap_or_default();
        let (from, to) = (self.names[from].clone(), self.names[to].clone());
        self.change = Some((load.end, Change { ago_s: 0.0, from: from.clone(), to, why }));
        self.record(&load, why, Some(from), text);
    }
}
