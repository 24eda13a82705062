//! Evidence that is doubted: the reward has changed although the workload has not, so what was seen may be wrong by now.
//!
//! What is doubted counts for little, and what lost by it may be tried again. That is dear where nothing has changed: a file system
//! that reads its bitmaps takes a third of a second from everybody, and then all is as it was. So what was known is kept
//! for a while, and is believed again if the rate comes back, or if it fell because the workload was about to end.

use super::explain::Why;
use super::live::{CLEAR_NOISE, DIFFERENT, Selector};
use super::workload::{Before, Place};
use super::{Direction, Known, Load};

/// Time after a fall of the rate within which it may turn out to have been no reason for doubt: this workload ended, or the rate came back.
/// In quarters of a second.
const ENDING: u32 = 6;
/// Time after a fall within which the rate of the same arm that is back says so, too: programs that take turns in a file may come into
/// step again. In quarters of a second.
const BACK: u32 = 24;
/// Share of a fall, as a logarithm, that is to be made up for.
const MADE_UP: f64 = 0.75;

/// What trials one after the other gain together, as a logarithm, from which on it may not be the arms' doing.
const RISEN: f64 = 0.8;
/// Observations of the arm in use without a trial after which the rate has come to its end.
pub(super) const RISING_MAX: u32 = 24;

/// Rates of an arm, as logarithms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// What there is now.
    pub(super) now: f64,
    /// The mean of what there was, and what was expected.
    pub(super) mean: f64,
    pub(super) expected: f64,
}

/// What was known before the rate fell.
#[derive(Clone, Debug)]
pub(super) struct Doubted {
    pub(super) known: Known,
    /// Under which arm: if its rate comes back, that ends the doubt. None: what comes is not to be compared with what was.
    pub(super) arm: Option<usize>,
    /// In which window of the workload it fell.
    at: u64,
    rates: Rates,
}

impl Doubted {
    /// Whether it fell no more than so many windows ago, by those of the workload.
    fn is_within(&self, windows: u64, most: u32) -> bool {
        windows - self.at <= u64::from(most)
    }

    /// Whether the workload, which goes now, may just have been ending when the rate fell: that was a short time ago, and what falls for
    /// longer than it was there before is no end.
    pub(super) fn was_its_end(&self, windows: u64, quarter: u32) -> bool {
        self.is_within(windows, ENDING * quarter) && windows - self.at <= self.at
    }

    /// Whether the rate of this arm may still come back: it was in force, no longer ago than so many windows, and fell by more than
    /// windows differ by.
    fn may_end(&self, arm: usize, windows: u64, within: u32) -> bool {
        let fall = self.rates.expected - self.rates.now;
        self.arm == Some(arm)
            && self.is_within(windows, within)
            && fall > DIFFERENT.max(CLEAR_NOISE * self.known.noise())
    }

    /// Whether most of the fall is made up for by a rate.
    fn is_made_up(&self, rate: f64) -> bool {
        let Rates { now: low, expected, .. } = self.rates;
        rate > low + MADE_UP * (expected - low)
    }
}

impl Selector {
    /// The reward of the arm in force has changed.
    pub(super) fn doubt(&mut self, load: &Load, direction: Direction, rates: Rates) {
        let Rates { now: rate, mean, .. } = rates;
        let name = self.names[self.arm].clone();
        let Some(place) = &mut self.place else { return };
        let Some(known) = self.knowledge.contexts.get_mut(&place.context) else { return };
        let Some(gain) = known.arms.get(&name).map(|value| value.gain) else { return };
        // Who anticipates brings programs that read by turns together, and not apart.
        let keeps_step = place.context.may_read_in_step() && self.arms[self.arm].anticipation;
        let may_be_its_doing = direction == Direction::Down && (self.settings.memory_below || !keeps_step);
        // Less may be this arm's doing, so others look better, by so much and not by more each time that it happens; more is no
        // reason to look for others.
        let others = known.arms.iter().filter(|(arm, _)| **arm != name).map(|(_, value)| value.gain);
        let least = others.fold(gain, f64::max) + rate - mean;
        let gain = if may_be_its_doing { gain.min(least.max(gain + rate - mean)) } else { gain };
        known.arms.entry(name).and_modify(|value| value.gain = gain);
        (place.level, place.steady) = (Some(rate - gain), 0);
        // More may be what memory below makes of it by and by.
        if direction == Direction::Down || !self.settings.memory_below {
            let kept = if self.settings.memory_below { ENDING } else { BACK } * self.quarter;
            let is_recent = |one: &&mut Doubted| one.is_within(place.windows, kept);
            if let Some(one) = self.doubted.as_mut().filter(is_recent) {
                // What was known before is what was known before the first of them.
                if one.arm.is_none() && direction == Direction::Down {
                    (one.arm, one.at, one.rates) = (Some(self.arm), place.windows, rates);
                }
            } else {
                let before = self.before.as_ref().filter(|_| direction == Direction::Down);
                let of = |before: &Before| Doubted {
                    known: before.known.clone(),
                    arm: Some(self.arm),
                    at: place.windows,
                    rates,
                };
                self.doubted = before.map(of);
            }
            known.doubt();
        }
        // Less lowers a gain and more raises the level: by turns they would drift apart without end.
        let shift = known.centre();
        (place.level, known.level) = (place.level.map(|level| level + shift), known.level + shift);
        if direction == Direction::Up {
            known.level = known.level.max(place.level.unwrap_or(known.level));
        }
        if let Some(Before { known, level, .. }) = &mut self.before {
            known.lower(shift);
            known.level += shift;
            *level = level.map(|level| level + shift);
        }
        if direction == Direction::Down {
            // How that is taken back is told by `doubted`, and not by the next window.
            self.before = None;
        }
        let text = format!("{:+.0} % although the workload is the same", ((rate - mean).exp() - 1.0) * 100.0);
        self.record(load, Why::Doubt, None, text);
    }

    /// A trial is over, and has gained so much, as a logarithm. Where several in a row have, and much together, the rate may rise by itself, as
    /// where programs come into step, and whoever is tried last looks best: when one is won, what was seen of others is forgotten, so that
    /// they are tried again.
    pub(super) fn may_rise_by_itself(&mut self, gain: f64, is_won: bool) {
        let Some(place) = &mut self.place else { return };
        let before = std::mem::take(&mut place.risen);
        if gain < 0.0 {
            return;
        }
        if !is_won || before <= 0.0 || before + gain <= RISEN {
            place.risen = before + gain;
        } else if let Some(known) = self.knowledge.contexts.get_mut(&place.context) {
            known.arms.retain(|arm, _| *arm == self.names[self.arm]);
            self.before = None;
        }
    }

    /// Whether what is known is doubted and may soon be believed again: nothing is tried until then, as it would be compared with the
    /// accident. But programs that an arm has let come apart are so until another one brings them together.
    pub(super) fn may_end_doubt(&self) -> bool {
        let lets_apart = |place: &Place| place.context.may_read_in_step() && !self.arms[self.arm].anticipation;
        !self.place.as_ref().is_some_and(lets_apart) && self.may_end_within(ENDING)
    }

    fn may_end_within(&self, quarters: u32) -> bool {
        let Some(place) = self.place.as_ref().filter(|_| !self.settings.memory_below) else { return false };
        let within = quarters * self.quarter;
        self.doubted.as_ref().is_some_and(|one| one.may_end(self.arm, place.windows, within))
    }

    /// The rate of the arm in force, a logarithm, is back soon after it fell: that was an accident, and what was known is as true as before.
    /// Behind memory it goes up and down by what is written back meanwhile.
    pub(super) fn end_doubt(&mut self, load: &Load, rate: f64) {
        let may_end = self.may_end_within(BACK);
        let Some(place) = &mut self.place else { return };
        let Some(known) = self.knowledge.contexts.get_mut(&place.context) else { return };
        let Some(doubted) = self.doubted.take_if(|one| may_end && one.is_made_up(rate)) else { return };
        let gain = doubted.known.arms.get(&self.names[self.arm]).map_or(0.0, |value| value.gain);
        place.level = Some(doubted.rates.expected - gain);
        // What was seen of it meanwhile was the accident, and so is what the test has taken for its mean.
        known.restore(doubted.known);
        self.reward.reset();
        self.before = Some(Before { context: place.context, known: known.clone(), level: place.level });
        self.record(load, Why::DoubtEnded, None, "the rate is back".to_owned());
    }
}
