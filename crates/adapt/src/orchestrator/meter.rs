//! What all programs do together, window by window, and when two such series differ.

use std::collections::{BTreeMap, VecDeque};

use super::verdict::{Server, mean};
use super::{Report, Trial};

/// Most windows of a server that are remembered.
const WINDOWS_MAX: usize = 64;
/// Windows of the same load differ by this share of their mean, whatever few of them say.
const NOISE_MIN: f64 = 0.1;
/// What differs by so many standard errors is taken to be different.
const ERRORS: f64 = 3.0;
/// A plan with which all programs together have less than this share of the speed is not tried to the end.
const LOSS_MAX: f64 = 0.9;

/// Bytes a second of each server, window by window.
#[derive(Debug, Default)]
pub(super) struct Meter {
    from: u64,
    /// Means of the servers before a restart.
    before: Vec<f64>,
    seen: BTreeMap<u64, VecDeque<f64>>,
}

impl Meter {
    pub(super) fn starting(from: u64) -> Meter {
        Meter { from, ..Meter::default() }
    }

    /// After a restart.
    pub(super) fn going_on(mut before: Vec<f64>, from: u64) -> Meter {
        before.truncate(WINDOWS_MAX);
        Meter { from, before, ..Meter::default() }
    }

    /// A window of which most is behind the begin. Servers' windows end where the coordinator's do, but for what messages take.
    pub(super) fn add(&mut self, report: &Report, bytes: u64) {
        if report.window_ns == 0 || report.at.saturating_sub(report.window_ns / 2) < self.from {
            return;
        }
        let seen = self.seen.entry(report.server).or_default();
        seen.truncate(WINDOWS_MAX - 1);
        seen.push_front(bytes as f64 * 1e9 / report.window_ns as f64);
    }

    /// Those that are gone are forgotten.
    pub(super) fn keep_only(&mut self, servers: &BTreeMap<u64, Server>) {
        self.seen.retain(|server, _| servers.contains_key(server));
    }

    /// The last windows, at most so many, that were seen of every one of these servers: means of the servers. There may be more of
    /// them than before, or fewer; of none, as after a restart, nothing new is known.
    pub(super) fn rates(&self, servers: &BTreeMap<u64, Server>, windows: u32) -> Vec<f64> {
        let all: Option<Vec<&VecDeque<f64>>> = servers.keys().map(|server| self.seen.get(server)).collect();
        let all = all.unwrap_or_default();
        let count = all.iter().map(|seen| seen.len()).min().unwrap_or(0);
        let here = (0..count).map(|at| all.iter().map(|seen| seen[at]).sum::<f64>() / all.len() as f64);
        here.chain(self.before.iter().copied()).take(windows as usize).collect()
    }
}

/// By how much all are faster with a plan than without, once that is clear: it has been tried for long enough, or what it brings
/// lies so far from what it has to that the windows' noise does not matter, or it loses.
///
/// The noise is that of the logarithms in both series around their means, and [`NOISE_MIN`] at least, of independent windows.
pub(super) fn compare(without: &[f64], with: &[f64], trial: &Trial) -> Option<f64> {
    let (before, after) = (mean(without), mean(with));
    if without.is_empty() || with.is_empty() || before <= 0.0 {
        return None;
    }
    let ratio = after / before;
    if with.len() >= trial.windows as usize || ratio < LOSS_MAX {
        return Some(ratio - 1.0);
    }
    let squares = |rates: &[f64], mean: f64| rates.iter().map(|rate| (rate / mean - 1.0).powi(2)).sum::<f64>();
    let freedom = without.len() + with.len() - 2;
    let variance = if freedom > 0 { (squares(without, before) + squares(with, after)) / freedom as f64 } else { 0.0 };
    let error = variance.max(NOISE_MIN * NOISE_MIN) * (1.0 / without.len() as f64 + 1.0 / with.len() as f64);
    let beyond = ratio.ln() - (1.0 + trial.gain_min).ln();
    (beyond.abs() > ERRORS * error.sqrt()).then_some(ratio - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_ends_as_soon_as_the_difference_is_clear() {
        let trial = Trial { windows: 4, gain_min: 0.05, again_ns: 0, promise_min: 0.5 };
        assert_eq!(compare(&[10.0], &[], &trial), None);
        assert_eq!(compare(&[10.0], &[20.0], &trial), Some(1.0), "twice as fast");
        assert_eq!(compare(&[10.0], &[13.0], &trial), None, "one window says little");
        assert_eq!(compare(&[8.0, 12.0, 4.0, 16.0], &[20.0], &trial), None, "nor does it where all differ");
        assert_eq!(compare(&[10.0; 4], &[13.0, 13.0, 13.0, 13.0], &trial).map(|gain| (gain * 10.0).round()), Some(3.0));
        assert_eq!(compare(&[10.0; 4], &[8.5], &trial).map(|gain| (gain * 100.0).round()), Some(-15.0), "it loses");
    }
}
