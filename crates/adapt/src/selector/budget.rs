//! What trying may cost.

use sluice_core::Time;

use super::Load;
use super::held;
use super::live::{STRADDLING, Selector, TRIAL_MAX};

/// Expected improvement, as a logarithm, for which another arm is tried: with all the time for it left, and with next to none.
const HOPE_MIN: f64 = 0.01;
const HOPE_MAX: f64 = 0.1;
/// Seconds that trying may have taken beyond what was allowed, at most: more than a trial of windows of a quarter of a second takes.
pub(super) const DEBT_MAX_S: f64 = 60.0;
/// A window that ends so much earlier than the last one is of a clock that was set back.
const LATE_NS: u64 = 1_000_000_000;

impl Selector {
    /// The clock goes on, by what of a window was not seen yet.
    pub(super) fn spend(&mut self, load: &Load) {
        if self.until.since(load.end) > LATE_NS {
            self.until = Time::ZERO;
        }
        self.is_new = load.end > self.until;
        let seconds = load.end.since(load.start.max(self.until)) as f64 * 1e-9;
        self.until = self.until.max(load.end);
        let share = self.settings.explore_share;
        let most = self.settings.device.burn_in_s();
        let knowledge = &mut self.knowledge;
        knowledge.clock_s += seconds;
        knowledge.budget_s = (knowledge.budget_s + share * seconds).min(most);
        if self.arm != self.incumbent {
            knowledge.budget_s = (knowledge.budget_s - seconds).max(-DEBT_MAX_S);
            self.tried_s += seconds;
        }
    }

    /// Windows that a trial may take, with those at its beginning and on the way back that show what was done before.
    pub(super) fn trial_windows(&self, load: &Load) -> f64 {
        let held = self.held() / load.written().max(1.0);
        let held = if load.written() > 0.0 { held.ceil().min(held::WINDOWS_MAX as f64) } else { 0.0 };
        f64::from(TRIAL_MAX * self.meter.windows()) + 2.0 * held.max(f64::from(STRADDLING))
    }

    /// The improvement for which something is tried: the less is left to spend on trying, the more.
    pub(super) fn worth_trying(&self) -> f64 {
        let left = self.knowledge.budget_s / self.settings.device.burn_in_s();
        HOPE_MIN + (HOPE_MAX - HOPE_MIN) * (1.0 - left.clamp(0.0, 1.0))
    }
}
