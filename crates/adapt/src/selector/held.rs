//! How much of what was written is still in memory below, and is written back during what comes.
//!
//! Behind a page cache, or a device's own memory, a write is answered once it is in memory. What an arm made of the order of writes
//! shows when they are written back: after as many bytes were written as are held. So a change of arms takes effect then and not at
//! once, and until then windows say what the arm before has done. Nobody tells how much is held. It is seen by when the rate
//! changes after a change of arms: where two means for the windows before and after a moment fit best (the least-squares
//! estimate of a single change point: Hinkley, *Inference about the change-point in a sequence of random variables*, Biometrika
//! 57, 1970).

use super::Load;
use super::live::{COST_MAX_S, Selector};

/// Windows after a change of arms in which its effect is waited for and looked for.
pub(super) const WINDOWS_MAX: usize = 16;
/// Windows before the change that are looked at, and those that have to follow the moment of the effect.
const BEFORE_MAX: usize = 3;
const AFTER_MIN: usize = 3;
/// Windows after a change in which an effect is an immediate one.
const IMMEDIATE: usize = 1;
/// Logarithmic difference that is an effect, at least, and in deviations of the windows.
const EFFECT: f64 = 0.15;
const EFFECT_NOISE: f64 = 3.0;
/// Share of a new observation in what is believed to be held.
const WEIGHT: f64 = 0.5;

/// The windows around the last change of arms, all of one workload.
#[derive(Debug, Default)]
pub(super) struct Aftermath {
    /// Logarithmic rates before it.
    before: Vec<f64>,
    /// Those since, and the bytes written between the change and the end of each window.
    after: Vec<(f64, f64)>,
    /// Windows since, and bytes written in them.
    windows: usize,
    written: f64,
    /// It has taken effect.
    is_over: bool,
}

impl Aftermath {
    /// A window of the workload that is there. `held`: bytes that are believed to be held, infinite if something is and nothing is
    /// known of how much.
    pub(super) fn see(&mut self, load: &Load, held: f64) {
        self.windows += 1;
        self.written += load.written();
        if self.after.len() < WINDOWS_MAX && load.rate() > 0.0 {
            self.after.push((load.rate().ln(), self.written));
        }
        // Of a workload that has just begun, too: its first windows fill the memory, and show what was held before it.
        let is_over = self.written >= held || self.windows >= WINDOWS_MAX || load.written() == 0.0;
        self.is_over = self.is_over || is_over || self.held().is_some();
    }

    /// Arms change.
    pub(super) fn change(&mut self) {
        let recent = self.before.iter().copied().chain(self.after.iter().map(|(rate, _)| *rate));
        let before: Vec<f64> = recent.collect();
        let from = before.len().saturating_sub(BEFORE_MAX);
        *self = Aftermath { before: before[from..].to_vec(), ..Aftermath::default() };
    }

    /// Whether windows say what the arm in force does, and no longer what the one before has done.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Bytes that were written between the change and the moment at which it took effect, if that can be told.
    pub(super) fn held(&self) -> Option<f64> {
        if self.before.len() < BEFORE_MAX || self.after.len() < AFTER_MIN || self.written == 0.0 {
            return None;
        }
        let rates: Vec<f64> = self.before.iter().copied().chain(self.after.iter().map(|(rate, _)| *rate)).collect();
        let split = |at: usize| {
            let (first, second) = rates.split_at(at);
            let (one, two) = (mean(first), mean(second));
            (at, squares(first, one) + squares(second, two), two - one)
        };
        let splits = (self.before.len()..=rates.len() - AFTER_MIN).map(split);
        let (at, squares, effect) = splits.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let deviation = (squares / (rates.len() - 2) as f64).sqrt();
        if effect.abs() < EFFECT.max(EFFECT_NOISE * deviation) {
            return None;
        }
        let windows = at - self.before.len();
        Some(if windows <= IMMEDIATE { 0.0 } else { self.after[windows - 1].1 })
    }
}

/// What is believed to be held, after another observation.
pub(super) fn believed(before: Option<f64>, seen: f64) -> f64 {
    before.map_or(seen, |before| before + WEIGHT * (seen - before))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn squares(values: &[f64], mean: f64) -> f64 {
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

impl Selector {
    /// What the change of arms has cost, by the window in which it happened.
    pub(super) fn note_cost(&mut self, load: &Load) {
        if let Some(expected) = self.expected_rate().filter(|_| load.has_choice()) {
            let lost = (1.0 - load.rate() / expected).clamp(0.0, 1.0) * load.seconds().min(COST_MAX_S);
            self.knowledge.switch_s += 0.1 * (lost - self.knowledge.switch_s);
        }
    }

    /// How much is held below, by when the last change of arms took effect.
    pub(super) fn note_held(&mut self) {
        if let Some(seen) = self.aftermath.held().filter(|_| self.settings.memory_below) {
            self.knowledge.held_bytes = Some(believed(self.knowledge.held_bytes, seen));
        }
    }

    /// Bytes that are believed to be held below; infinite: some are, and nothing is known of how many.
    pub(super) fn held(&self) -> f64 {
        if self.settings.memory_below { self.knowledge.held_bytes.unwrap_or(f64::INFINITY) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::random::Random;
    use sluice_core::{OpFeatures, Time, WindowFeatures};

    /// A window of 250 ms with writes of this rate, in MB/s.
    fn window(rate: f64) -> Load {
        let op = OpFeatures { requests: 1, completed: 1, moved: (rate * 0.25e6) as u64, ..OpFeatures::default() };
        let features = WindowFeatures {
            end: Time(250_000_000),
            busy_ns: 250_000_000,
            ops: [OpFeatures::default(), op],
            ..WindowFeatures::default()
        };
        Load::of(&features)
    }

    /// A change of arms between two rates that takes effect after so many windows, with noise.
    fn seen(rates: [f64; 2], late: usize, seed: u64) -> Option<f64> {
        let mut random = Random(seed);
        let mut aftermath = Aftermath::default();
        let mut see = |aftermath: &mut Aftermath, rate: f64| {
            aftermath.see(&window(rate * (0.9 + 0.2 * random.share())), f64::INFINITY);
        };
        (0..6).for_each(|_| see(&mut aftermath, rates[0]));
        aftermath.change();
        (0..late).for_each(|_| see(&mut aftermath, rates[0]));
        (0..6).for_each(|_| see(&mut aftermath, rates[1]));
        aftermath.held()
    }

    #[test]
    fn what_is_held_is_what_was_written_before_the_rate_changed() {
        for seed in 0..100 {
            for (rates, late) in [([120.0, 60.0], 4), ([60.0, 120.0], 6), ([100.0, 70.0], 2)] {
                let held = seen(rates, late, seed).expect("a change by a third is an effect");
                let true_bytes = rates[0] * 0.25e6 * late as f64;
                assert!((held / true_bytes - 1.0).abs() < 0.15, "seed {seed}, {rates:?}: {held} of {true_bytes}");
            }
            assert_eq!(seen([120.0, 60.0], 0, seed), Some(0.0), "seed {seed}: at once");
            assert_eq!(seen([60.0, 120.0], 1, seed), Some(0.0), "seed {seed}: after the window that straddles");
            assert_eq!(seen([100.0, 100.0], 4, seed), None, "seed {seed}: no effect, nothing to be seen");
        }
    }

    #[test]
    fn what_was_written_before_is_waited_for() {
        let over_after = |held: f64, rates: &[f64]| {
            let mut aftermath = Aftermath::default();
            (0..3).for_each(|_| aftermath.see(&window(100.0), held));
            aftermath.change();
            let mut windows = rates.iter().copied().chain(std::iter::repeat(100.0));
            (1..100).find(|_| {
                aftermath.see(&window(windows.next().unwrap_or(100.0)), held);
                aftermath.is_over()
            })
        };
        assert_eq!(over_after(0.0, &[]), Some(1));
        assert_eq!(over_after(100e6, &[]), Some(4), "25 MB a window");
        assert_eq!(over_after(f64::INFINITY, &[]), Some(WINDOWS_MAX), "no effect");
        assert_eq!(over_after(f64::INFINITY, &[100.0, 100.0, 50.0, 50.0, 50.0]), Some(5), "an effect is one at once");
        let mut first = Aftermath::default();
        let over = (1..100).find(|_| {
            first.see(&window(100.0), f64::INFINITY);
            first.is_over()
        });
        assert_eq!(over, Some(WINDOWS_MAX), "a workload begins");
    }

    #[test]
    fn nothing_is_held_of_what_is_read() {
        let mut aftermath = Aftermath::default();
        let read = |rate: f64| {
            let op = OpFeatures { requests: 1, completed: 1, moved: (rate * 0.25e6) as u64, ..OpFeatures::default() };
            Load::of(&WindowFeatures { busy_ns: 250_000_000, ops: [op, OpFeatures::default()], ..Default::default() })
        };
        (0..6).for_each(|_| aftermath.see(&read(100.0), 1.0));
        aftermath.change();
        (0..4).for_each(|_| aftermath.see(&read(100.0), 1.0));
        (0..6).for_each(|_| aftermath.see(&read(50.0), 1.0));
        assert_eq!(aftermath.held(), None);
        assert!(aftermath.is_over());
    }
}
