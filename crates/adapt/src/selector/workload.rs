//! Which workload is there: whether a window belongs to the one that is known to be, and what happens where another one comes.

use super::explain::Why;
use super::held::Aftermath;
use super::knowledge::Expectation;
use super::live::{CLEAR, CLEAR_NOISE, Mode, SETTLING, Selector};
use super::meter::{Meter, Unevenness};
use super::parts::Parts;
use super::{Context, Kind, Known, Load, PageHinkley};

/// Weight of a new stay in how long a workload lasts.
const STAY_WEIGHT: f64 = 0.3;

/// Share of the batches by which programs are brought into step from which on a window is about that, and windows for which that is
/// waited for until it has come to an end once: 6 s. In quarters of a second.
const CATCHING_UP: f64 = 0.25;
const PATIENCE: u32 = 24;
/// Logarithmic gain that makes up for programs coming apart now and then.
const PREMIUM: f64 = 0.1;
/// Weight of what was known of an arm that takes programs apart, beside one window of that.
const UNDONE: f64 = 1.0;

/// Seconds after which an arm has done what it does to the order.
const RECENT_S: f64 = 2.0;

/// Seconds for which a window that showed all of a workload says that those after it, which show less, show a part.
const SHOWN_S: f64 = 0.5;

/// Observations from the first on of which each is far below what such a workload usually gives, by which that counts as a fall of the
/// rate. Behind memory, where rates are high and low by turns and what was read before may be there no more, the same of what is expected, and
/// only of those whom one arm has in step and another has not: some stay apart without end.
const LOWS: u32 = 2;
const LOWS_MEMORY: u32 = 8;

/// How long a workload begins, in seconds.
const BEGINNING_S: f64 = 2.0;

/// A workload that is there.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) context: Context,
    /// The class of the last window that was it, and what it looks like under each arm, as far as that is known.
    seen: Context,
    looks: Vec<Option<Context>>,
    pub(super) since_s: f64,
    /// The class of the window by which it was taken for there, until one shows all of it.
    guessed: Option<Context>,
    /// Windows so far, and those that looked like it.
    pub(super) windows: u64,
    pub(super) alike: u64,
    /// What it looked like since the arm in force began, and when, on the clock: the last that is no part of the one before.
    most: Option<(Context, f64)>,
    /// Windows that showed a part of it: credited with the next that shows all, if one comes.
    pub(super) parts: Parts,
    /// Logarithmic rate of an arm of gain 0; none before it was seen.
    pub(super) level: Option<f64>,
    /// Judged windows at the arm in use since the last change, and by how much the last of them was off.
    pub(super) steady: u32,
    pub(super) off: f64,
    /// Observations still to come that compare the arm in use with the one whose place it took a moment ago: it may have been luck.
    pub(super) compared: u32,
    /// Observations from the first on, of one arm, that were far below what is usual; none: one was not, or there were enough.
    lows: Option<u32>,
    /// When an arm that anticipates was last given up for one that does not.
    pub(super) gave_up_s: Option<f64>,
    /// What the last trials, one after the other, [have gained](Selector::may_rise_by_itself); 0: the last has lost, or that was long ago.
    pub(super) risen: f64,
}

/// A workload before something was credited: what was known of it, and its [level](Place::level).
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) context: Context,
    pub(super) known: Known,
    pub(super) level: Option<f64>,
}

impl Place {
    /// Another arm is in force from now on.
    pub(super) fn change_arm(&mut self) {
        self.most = None;
        self.compared = 0;
        self.parts.clear();
        self.lows = self.lows.filter(|lows| *lows == 0);
    }

    /// Takes an observation. Whether it is the one by which all so far, and enough of them, were far below what is usual.
    pub(super) fn begins_low(&mut self, is_low: bool, memory_below: bool) -> bool {
        let enough = if memory_below { LOWS_MEMORY } else { LOWS };
        let may_be = !memory_below || self.looks.iter().flatten().any(Context::may_read_in_step);
        let lows = self.lows.filter(|_| is_low && may_be).map(|lows| lows + 1);
        self.lows = lows.filter(|lows| *lows < enough);
        lows == Some(enough)
    }
}

impl Selector {
    /// Begins with the arm that the workload that was there last ended with: what there is before a restart is what there will likely be
    /// after it. Where that is not known, or there is memory below, with the one that has the largest gain. What was only measured was
    /// never there. To be called before the first window.
    pub fn begin_where_it_ended(&mut self) {
        let were_there = self.knowledge.contexts.iter().filter(|(_, known)| known.stays > 0);
        let Some((context, known)) = were_there.max_by(|a, b| a.1.seen_s.total_cmp(&b.1.seen_s)) else { return };
        let in_use = known.last.as_ref().filter(|_| !self.settings.memory_below);
        let in_use = in_use.and_then(|last| self.names.iter().position(|name| name == last));
        let gain = |at: usize| Some(known.arms.get(&self.names[at])?.gain - self.premium(context, at));
        let seen = (0..self.arms.len()).filter_map(|at| Some((at, gain(at)?)));
        let best = in_use.or_else(|| seen.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at));
        if let Some(best) = best.filter(|best| *best != self.arm) {
            self.incumbent = best;
            self.switch(best, Why::KnownWorkload, String::new());
        }
    }

    /// Whether the window belongs to the workload that is known to be there, as a whole, and shows all of it.
    pub(super) fn is_same_workload(&mut self, load: &Load) -> bool {
        let settles = self.settling > 0;
        self.settling = self.settling.saturating_sub(1);
        if load.arrived() == 0 {
            // What came before is still being served: of a part, if that was one.
            let Some(place) = &mut self.place else { return false };
            let is_whole = place.parts.is_empty();
            if !is_whole {
                place.parts.add(load, self.quarter, self.settings.window_ns);
            }
            return is_whole && !self.is_changing;
        }
        let look = self.place.as_ref().map(|place| place.looks[self.arm].unwrap_or(place.seen));
        let class = Context::of(load, look);
        let is_usual = look.is_some_and(|look| class.asks_the_same(&look)) && self.is_as_expected(load);
        let is_usual = is_usual && self.settings.memory_below && !self.serves_badly(class);
        // Behind memory who is served does not show.
        let mut is_part = !self.settings.memory_below;
        if let Some(place) = &mut self.place {
            place.windows += 1;
            is_part = is_part && place.looks[self.arm].is_some_and(|look| class.is_part_of(&look));
            if is_part && place.parts.add(load, self.quarter, self.settings.window_ns) {
                place.alike += 1;
                return false;
            }
            let is_alike = match place.looks[self.arm] {
                // Behind memory, order and depth vary by what is written back meanwhile: what makes no difference is none.
                Some(look) => class == look || is_usual,
                // What changed with the arm is the arm's doing.
                None => (settles || class == place.seen) && class.may_be(&place.context, load),
            };
            if is_alike {
                (place.seen, place.alike, place.guessed) = (class, place.alike + 1, None);
                let now_s = self.knowledge.clock_s;
                let is_shown = |(most, at): &(Context, f64)| class.is_part_of(most) && now_s - at < SHOWN_S;
                let (class, at) = place.most.filter(is_shown).unwrap_or((class, now_s));
                place.most = Some((class, at));
                if self.settling == 0 && place.looks[self.arm].is_none() {
                    place.looks[self.arm] = Some(class);
                    if let Some(known) = self.knowledge.contexts.get_mut(&place.context) {
                        known.looks.insert(self.names[self.arm].clone(), class);
                    }
                }
                self.is_changing = false;
                return !self.has_drifted(load);
            }
        }
        // One window: a workload goes, another comes, perhaps since the window before. Two, or what it is now is known and served
        // badly: it has. Of parts it takes as many as there may be before.
        self.take_back();
        match &mut self.place {
            Some(place) if is_part => place.parts.push(load),
            Some(place) => place.parts.clear(),
            None => {}
        }
        let again = std::mem::replace(&mut self.is_changing, true) && self.is_new;
        if !again && !self.serves_badly(class) {
            self.meter.restart();
            return false;
        }
        let arm = self.arm;
        let (context, look) = self.known_as(class);
        self.enter(context, look, load);
        if look != class {
            self.has_guessed(class, (self.arm == arm).then_some(load));
            return false;
        }
        // What it saw was the work of the arm before.
        self.arm == arm
    }

    /// The workload that a window of a class belongs to, and what that looks like as a whole: the one that is known to look so, or one that
    /// this shows a part of, if only that is known. It may be what there is now of the one that is there, which is another one then.
    fn known_as(&self, class: Context) -> (Context, Context) {
        let name = &self.names[self.arm];
        let own = self.knowledge.resolve(class, name);
        let is_known = self.knowledge.contexts.contains_key(&own);
        if self.settings.memory_below || is_known || self.mistaken == Some(class) {
            return (own, class);
        }
        let look = |(context, known): (&Context, &Known)| Some((*context, *known.looks.get(name)?));
        // Who has one of several files waits for it, served or not.
        let whole = |(_, look): &(Context, Context)| class.is_part_of(look) && class.has_files() == look.has_files();
        let mut wholes = self.knowledge.contexts.iter().filter_map(look).filter(whole);
        let here = self.place.as_ref().map(|place| place.context);
        match (wholes.next(), wholes.next()) {
            (Some(only), None) if Some(only.0) != here => only,
            _ => (own, class),
        }
    }

    /// The workload that has begun is one of which a window showed a part, if it is that one. `load`: that window, if the arm is still the same.
    fn has_guessed(&mut self, class: Context, load: Option<&Load>) {
        let Some(place) = &mut self.place else { return };
        place.guessed = Some(class);
        match load {
            Some(load) => place.parts.push(load),
            // What it looks like under this arm is not to be learned from what may be another one.
            None if place.looks[self.arm].is_none() => self.settling = 0,
            None => {}
        }
    }

    /// A window that showed all of the workload, with those before it that showed a part, and how many windows that is.
    pub(super) fn with_parts(&mut self, load: &Load) -> (Load, u32) {
        self.place.as_mut().map_or((*load, 1), |place| place.parts.take_with(load))
    }

    /// Whether a window that is credited to nobody looks like the workload that is there.
    pub(super) fn is_still_there(&self, load: &Load) -> bool {
        let is_it = |place: &Place| {
            let class = Context::of(load, Some(place.seen));
            class == place.seen || place.looks[self.arm] == Some(class) || class.is_part_of(&place.seen)
        };
        load.arrived() > 0 && self.place.as_ref().is_some_and(is_it)
    }

    /// Whether the arm in force is still bringing programs that take turns in a file into step, by which it is not judged: what it
    /// gives is to be seen when it is done. For some windows, and no more until that has been seen.
    pub(super) fn waits_for_step(&mut self, load: &Load) -> bool {
        let catches_up = load.catching_up() >= CATCHING_UP;
        self.quiet = if catches_up { 0 } else { self.quiet.saturating_add(1) };
        // Of few batches a window has now more of them, now fewer.
        if self.arms[self.arm].anticipation && self.quiet >= self.quarter {
            self.patience = self.patience_max();
        }
        let waits = catches_up && self.patience > 0;
        if waits {
            self.patience -= 1;
            // What it comes to look like is the arm's doing.
            self.settling = SETTLING * self.quarter;
            self.before = None;
            self.meter.restart();
            self.features.iter_mut().for_each(PageHinkley::reset);
        }
        waits
    }

    /// Windows for which programs may be brought into step.
    pub(super) fn patience_max(&self) -> u32 {
        PATIENCE * self.quarter
    }

    /// Whether a workload has just begun, and the last observation was far off what the one before it led to expect: in the first window of
    /// programs that start one after the other few are served. Whatever is tried would be compared with that. Behind memory rates go up and down all the time.
    pub(super) fn begins_unevenly(&self) -> bool {
        let noise = |place: &Place| self.knowledge.contexts.get(&place.context).map_or(0.0, Known::noise);
        let is_off = |place: &Place| place.off.abs() >= CLEAR.max(CLEAR_NOISE * noise(place));
        let begins = |place: &&Place| self.knowledge.clock_s - place.since_s < BEGINNING_S;
        !self.settings.memory_below && self.place.as_ref().filter(begins).is_some_and(is_off)
    }

    /// Whether a window is served as fast as the workload that is there usually is.
    fn is_as_expected(&self, load: &Load) -> bool {
        self.expected_rate().is_some_and(|expected| (load.rate() / expected).ln().abs() < CLEAR)
    }

    /// Whether a class is known as a workload of which the arm in force is known to make much less than another one.
    fn serves_badly(&self, class: Context) -> bool {
        let name = &self.names[self.arm];
        let known = self.knowledge.contexts.get(&self.knowledge.resolve(class, name));
        let gains = known.and_then(|known| Some((known.arms.get(name)?, known.best_of(|name| self.has(name))?.1)));
        gains.is_some_and(|(own, best)| own.weight >= 1.0 && best.weight >= 1.0 && best.gain - own.gain > CLEAR)
    }

    /// The test of Page and Hinkley, for changes within a class.
    fn has_drifted(&mut self, load: &Load) -> bool {
        let values = [load.waiting_size().max(1.0).ln(), load.mixed_read_share(), load.concurrency().max(0.1).ln()];
        let drifted = self.features.iter_mut().zip(values).fold(false, |drifted, (test, value)| {
            // All of them see it.
            test.see(value).is_some() || drifted
        });
        if drifted {
            self.begin_anew();
        }
        drifted
    }

    /// The last window may have seen the end of its workload.
    fn take_back(&mut self) {
        if let Some(Before { context, known, .. }) = self.before.take() {
            self.knowledge.contexts.insert(context, known);
        }
    }

    /// The window before this one has seen how memory began to answer, which is no workload that is compared with this one: so much more than usual was
    /// the rate that the level goes back, too. The next one may see how that ends.
    pub(super) fn pass_over_memory(&mut self) {
        self.after_memory = true;
        self.meter.restart();
        if let (Some(before), Some(place)) = (&self.before, &mut self.place) {
            place.level = before.level;
        }
        self.take_back();
    }

    /// What comes is not to be compared with what was.
    pub(super) fn begin_anew(&mut self) {
        self.take_back();
        self.aftermath = Aftermath::default();
        self.features.iter_mut().for_each(PageHinkley::reset);
        self.reward.reset();
        self.meter.restart();
        if let Some(place) = &mut self.place {
            (place.steady, place.level, place.lows, place.compared) = (0, None, Some(0), 0);
            place.parts.clear();
        }
        if let Some(doubted) = &mut self.doubted {
            doubted.arm = None;
        }
        if self.arm != self.incumbent {
            // Nothing to compare with any more.
            self.mode = Mode::Steady;
            self.switch(self.incumbent, Why::TrialEnded, String::new());
        }
    }

    /// The workload is gone. `next`: the one that comes, if one does.
    pub(super) fn leave(&mut self, next: Option<Context>) {
        self.before = None;
        self.note_held();
        self.aftermath = Aftermath::default();
        let doubted = self.doubted.take();
        let Some(place) = self.place.take() else { return };
        if place.guessed.is_some() {
            // It never was: what looks so is to be seen as what it is.
            self.mistaken = place.guessed;
            let known = self.knowledge.contexts.get_mut(&place.context);
            known.into_iter().for_each(|known| known.stays = known.stays.saturating_sub(1));
            return;
        }
        // It was there for less time than it took to find out: next time the arm is judged at once.
        let is_unjudged = place.steady == 0 && self.mode == Mode::Steady && self.arms[self.arm].anticipation;
        if is_unjudged && place.context.may_be_apart() {
            self.unjudged = Some(place.context);
        }
        let stay = self.knowledge.clock_s - place.since_s;
        if let Some(known) = self.knowledge.contexts.get_mut(&place.context) {
            // It fell because it ended: of several programs one after the other. Those that came apart go on.
            let comes_apart = |next: &Context| place.context.is_reordered(next) && next.may_be_apart();
            let goes_on = next.is_some_and(|next| next == place.context || comes_apart(&next));
            let ended = doubted.filter(|one| one.was_its_end(place.windows, self.quarter) && !goes_on);
            let level = match ended {
                Some(before) => {
                    known.restore(before.known);
                    None
                }
                None => place.level,
            };
            let before = if known.stays <= 1 { stay } else { known.stay_s };
            known.stay_s = before + STAY_WEIGHT * (stay - before);
            if let Some(level) = level {
                let falls = known.stays > 1 && level < known.level;
                known.level = if falls { known.level + STAY_WEIGHT * (level - known.level) } else { level };
            }
        }
    }

    /// By the arm that is tried programs came into step, which is another class: that is what it gave.
    fn credit_reordered(&mut self, load: &Load) {
        let level = self.place.as_ref().and_then(|place| Some((place.context, place.level?)));
        let (Mode::Trial(_), Some((context, level))) = (self.mode, level) else { return };
        let known = self.knowledge.contexts.get_mut(&context).filter(|_| load.rate() > 0.0);
        if let Some(known) = known {
            known.credit(&self.names[self.arm], load.rate().ln() - level, self.knowledge.clock_s);
            self.unsaved = true;
        }
    }

    /// The arm in force took programs apart at once that another one had brought into step: that is what it gives, whatever was known.
    fn credit_undone(&mut self, load: &Load) {
        let Some((context, level)) = self.place.as_ref().map(|place| (place.context, place.level)) else { return };
        self.undone = Some(context);
        let name = &self.names[self.arm];
        let known = self.knowledge.contexts.get_mut(&context).filter(|_| load.rate() > 0.0);
        let Some(known) = known.filter(|_| self.mode == Mode::Steady) else { return };
        if let Some(value) = known.arms.get_mut(name) {
            value.weight = value.weight.min(UNDONE);
        }
        known.credit(name, load.rate().ln() - level.unwrap_or(known.level), self.knowledge.clock_s);
        self.unsaved = true;
    }

    /// Another workload is there, since before this window.
    fn enter(&mut self, context: Context, class: Context, load: &Load) {
        let since_s = self.knowledge.clock_s - load.seconds();
        // Only the order is another one, soon after the arm began to bring programs into step: that is its doing, and it goes on.
        let anticipates = self.arms[self.arm].anticipation;
        let is_reordered = self.place.as_ref().is_some_and(|place| place.context.is_reordered(&context)) && anticipates;
        let goes_on = is_reordered && self.place.as_ref().is_some_and(|place| since_s - place.since_s < RECENT_S);
        if is_reordered {
            self.credit_reordered(load);
        }
        let is_undone = |place: &&Place| {
            place.gave_up_s.is_some_and(|at| since_s - at < RECENT_S) && place.context.is_reordered(&context)
        };
        if context.may_be_apart() && self.place.as_ref().filter(is_undone).is_some() {
            self.credit_undone(load);
        }
        self.finding_out = if goes_on { self.finding_out } else { 0 };
        self.leave(Some(context));
        self.is_changing = false;
        self.mode = Mode::Steady;
        self.pattern = None;
        let known = self.knowledge.enter(context);
        let is_new = known.windows == 0;
        // What it was like is known before much of it can be seen. Behind memory that differs from time to time.
        let uneven = if self.settings.memory_below { Unevenness::default() } else { known.uneven };
        // Whatever it looked like under this arm before: compared with that, it would be another one window by window.
        known.looks.insert(self.names[self.arm].clone(), class);
        let looks = self.names.iter().map(|name| known.looks.get(name).copied()).collect();
        self.place = Some(Place {
            context,
            seen: class,
            looks,
            since_s,
            guessed: None,
            windows: 1,
            alike: 1,
            most: None,
            parts: Parts::default(),
            level: None,
            steady: 0,
            off: 0.0,
            compared: 0,
            lows: Some(0),
            gave_up_s: None,
            risen: 0.0,
        });
        self.features.iter_mut().for_each(PageHinkley::reset);
        self.reward.reset();
        self.meter = Meter::new(self.quarter, uneven);
        let expected = self.expectations(&context, load);
        let best = self.begin_with(&context, &expected);
        let best = if goes_on { self.in_step(&context, best, &expected) } else { best };
        if let Some(place) = self.place.as_mut().filter(|_| goes_on && !self.arms[best].anticipation) {
            place.gave_up_s = Some(since_s);
        }
        let why = if is_new { Why::NewWorkload } else { Why::KnownWorkload };
        self.incumbent = best;
        if best == self.arm {
            self.record(load, why, None, context.describe());
        } else {
            self.switch(best, why, context.describe());
        }
    }

    /// The arm that goes on bringing programs into step, instead of the best one: the one in force, or one that anticipates, too, if that was
    /// tried here and the one in force was not; unless it is clearly worse, as far as is known. What is known is wrong where the best one took them
    /// apart at once.
    fn in_step(&self, context: &Context, best: usize, expected: &[Expectation]) -> usize {
        if self.undone == Some(*context) {
            return self.arm;
        }
        let is_known = |at: &usize| expected[*at].windows >= 1.0;
        let may_be = |at: &usize| self.arms[*at].anticipation && expected[*at].gain > expected[best].gain - CLEAR;
        let by_gain = |a: &usize, b: &usize| expected[*a].gain.total_cmp(&expected[*b].gain);
        let known = || (0..self.arms.len()).filter(is_known).filter(may_be).max_by(by_gain);
        let own = Some(self.arm);
        own.filter(is_known).or_else(known).or(own.filter(may_be)).unwrap_or(best)
    }

    /// What an arm must gain over others of a workload, as a logarithm, to be taken for as good: programs that read a file by turns are served
    /// alike by all arms while they are in step, and come apart sooner or later under those that do not anticipate.
    pub(super) fn premium(&self, context: &Context, at: usize) -> f64 {
        // Who asks a model alone does what it says, and behind memory rates differ by more than that all the time.
        let is_free = self.settings.kind == Kind::Tree || self.settings.memory_below;
        if context.may_read_in_step() && !self.arms[at].anticipation && !is_free { PREMIUM } else { 0.0 }
    }

    /// Whether an arm must gain more than the one in use by that.
    pub(super) fn lets_come_apart(&self, at: usize) -> bool {
        let premium = |place: &Place| self.premium(&place.context, at) - self.premium(&place.context, self.incumbent);
        self.place.as_ref().is_some_and(|place| premium(place) > 0.0)
    }

    /// The arm to begin a workload with. What was never tried is begun with only where nothing was, here or in what is like it: it has no place among
    /// what was.
    fn begin_with(&self, context: &Context, expected: &[Expectation]) -> usize {
        // Behind memory what was seen is high and low by turns, and what is begun with is not left for long: there it pays to begin with others.
        let is_careful = !self.settings.memory_below;
        // What is doubted was seen, too: it is as uncertain as its deviation says.
        let was_seen = |one: &Expectation| if is_careful { one.windows > 0.0 } else { one.windows >= 1.0 };
        let seen = expected.iter().any(was_seen);
        let is_guessed = is_careful && expected.iter().any(|one| !one.is_unknown());
        let may_be = |at: &usize| {
            let one = &expected[*at];
            if seen { was_seen(one) } else { !is_guessed || !one.is_unknown() }
        };
        let by_model = self.settings.kind == Kind::Tree;
        if !seen && (by_model || !is_guessed) && expected.iter().all(|one| one.gain == expected[0].gain) {
            let named = self.begins_with.as_ref().and_then(|named| self.arms.iter().position(|arm| arm == named));
            return if by_model { self.arm } else { named.unwrap_or(0) };
        }
        // Of one that was seen once, for a moment in which all went well, a lot may be expected.
        let off = |at: usize| if seen && is_careful { expected[at].deviation } else { 0.0 };
        let sure = |at: usize| expected[at].gain - off(at) - self.premium(context, at);
        let by_gain = |a: &usize, b: &usize| sure(*a).total_cmp(&sure(*b));
        let best = (0..self.arms.len()).filter(may_be).max_by(by_gain).unwrap_or(self.arm);
        // Of those that are as good the first: what is the likeliest to be good is likely to stay so.
        let as_good = |at: &usize| sure(*at) > sure(best) - self.settings.gain_min;
        let best = (0..self.arms.len()).filter(may_be).find(as_good).unwrap_or(best);
        // The one that was in use last, if no other is better by more than its observations are off.
        let known = self.knowledge.contexts.get(context);
        let last = known.and_then(|known| self.names.iter().position(|name| Some(name) == known.last.as_ref()));
        let is_surer = |last: &usize| sure(best) - sure(*last) > self.sure_gain(context, expected[best].windows);
        let best = last.filter(|last| seen && is_careful && may_be(last) && !is_surer(last)).unwrap_or(best);
        // The one that is there already, if a change does not pay.
        let better = sure(best) - sure(self.arm);
        let stays = may_be(&self.arm) && self.arm == self.incumbent && !self.pays(context, better);
        if stays { self.arm } else { best }
    }
}
