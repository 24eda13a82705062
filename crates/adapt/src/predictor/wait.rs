//! Whether a batch is held for what is expected next to it, and for how long: by what came of the waits before.

use sluice_core::WaitReport;

/// Least time that a group is waited for, in nanoseconds.
const PATIENCE_MIN: f64 = 500e3;
/// Most, and as long as nothing is known.
const PATIENCE_MAX: f64 = 100e6;
/// Waits in vain, one after the other, before some batches go without.
const FAILURES_MIN: u32 = 2;
/// Most batches that go without waiting between two attempts are 2 to the power of this.
const SKIP_MAX: u32 = 10;

/// What was in vain is tried more and more rarely.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trust {
    /// Waits in vain, one after the other.
    failures: u32,
    /// Batches that go without waiting before the next attempt.
    skip: u32,
}

impl Trust {
    /// Whether to wait this time.
    pub(super) fn allows(&mut self) -> bool {
        let allows = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        allows
    }

    /// A wait is over.
    pub(super) fn ended(&mut self, complete: bool) {
        if complete {
            *self = Trust::default();
        } else {
            self.failures = (self.failures + 1).min(SKIP_MAX + FAILURES_MIN);
            self.skip = self.failures.checked_sub(FAILURES_MIN).map_or(0, |more| 1 << more);
        }
    }
}

/// What came of the waits for one file and operation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct History {
    /// Mean and mean deviation of how long it took until all was there, in nanoseconds. `None`: that never was.
    took: Option<(f64, f64)>,
    trust: Trust,
}

impl History {
    /// Whether to wait this time.
    pub(super) fn allows(&mut self) -> bool {
        self.trust.allows()
    }

    /// How long to wait for a group, in nanoseconds.
    pub(super) fn patience(&self) -> u64 {
        let usual = self.took.map_or(PATIENCE_MAX, |(mean, deviation)| mean + 4.0 * deviation);
        usual.clamp(PATIENCE_MIN, PATIENCE_MAX) as u64
    }

    /// A wait is over.
    pub(super) fn ended(&mut self, wait: &WaitReport) {
        self.trust.ended(wait.complete);
        if !wait.complete {
            return;
        }
        let took = wait.gained_by_ns as f64;
        let (mean, deviation) = self.took.get_or_insert((took, took / 2.0));
        *deviation += ((took - *mean).abs() - *deviation) / 4.0;
        *mean += (took - *mean) / 8.0;
    }
}
