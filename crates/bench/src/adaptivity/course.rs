//! How long each phase of a simulated run took, and a run with an arm of its own for each phase.

use std::collections::VecDeque;

use sluice_adapt::selector::Arm;
use sluice_core::{EngineConfig, PolicyConfig, WindowFeatures};
use sluice_sim::scenario::Place;
use sluice_sim::{Selector, Setup};

/// Follows one server through phases of so many bytes each, which begin when the one before has ended, by the bytes that it has
/// moved.
#[derive(Clone, Debug)]
pub(super) struct Course {
    /// Bytes moved when each phase ends.
    ends: Vec<u64>,
    moved: u64,
    /// When the phases that have ended did, in seconds.
    ended_s: Vec<f64>,
}

impl Course {
    /// `bytes`: of each phase, by all processes together.
    pub(super) fn new(bytes: impl Iterator<Item = u64>) -> Course {
        let sum = |sum: &mut u64, bytes| {
            *sum += bytes;
            Some(*sum)
        };
        Course { ends: bytes.scan(0, sum).collect(), moved: 0, ended_s: Vec::new() }
    }

    /// Takes a window. Where a phase ended in it, that was when its share of the bytes had been moved.
    fn see(&mut self, window: &WindowFeatures) {
        let moved: u64 = window.ops.iter().map(|op| op.moved).sum();
        let (start_s, end_s) = (window.start.0 as f64 * 1e-9, window.end.0 as f64 * 1e-9);
        while let Some(end) = self.ends.get(self.ended_s.len()).filter(|end| self.moved + moved >= **end) {
            let share = (end - self.moved) as f64 / moved.max(1) as f64;
            self.ended_s.push(start_s + share * (end_s - start_s));
        }
        self.moved += moved;
    }

    /// The phase that is under way, or the last one.
    fn phase(&self) -> usize {
        self.ended_s.len().min(self.ends.len().saturating_sub(1))
    }

    /// Seconds of each phase of a run that took so long.
    pub(super) fn seconds(&self, makespan_s: f64) -> Vec<f64> {
        let mut before = 0.0;
        let of = |phase: usize| {
            let is_last = phase + 1 == self.ends.len();
            let end = self.ended_s.get(phase).copied().filter(|_| !is_last).unwrap_or(makespan_s);
            end - std::mem::replace(&mut before, end)
        };
        (0..self.ends.len()).map(of).collect()
    }
}

/// How soon a selector follows the phases of a [`Course`].
#[derive(Clone, Debug)]
pub(super) struct Pursuit {
    course: Course,
    /// The arms that are as good as the best one, of each phase.
    good: Vec<Vec<String>>,
    /// Windows that have closed in the phase that is under way, with that in which it began.
    closed: u32,
    at: usize,
    /// At the end of which of its windows, from 1, the first of them was in force, of each phase; 0: one was before.
    pub(super) windows: Vec<Option<u32>>,
    /// What was in force at the end of the last window.
    arm: String,
}

impl Pursuit {
    pub(super) fn new(course: Course, good: Vec<Vec<String>>) -> Pursuit {
        let windows = vec![None; good.len()];
        Pursuit { course, good, closed: 0, at: 0, windows, arm: String::new() }
    }

    /// Takes a window, and the arm that is in force from its end on. One in which a phase has ended is the first of the next one.
    pub(super) fn see(&mut self, window: &WindowFeatures, arm: &str) {
        self.course.see(window);
        let phase = self.course.phase();
        let before = std::mem::replace(&mut self.arm, arm.to_owned());
        let is_good = |arm: &str| self.good[phase].iter().any(|good| good == arm);
        if std::mem::replace(&mut self.at, phase) == phase {
            self.closed += 1;
        } else {
            self.closed = 1;
            self.windows[phase] = is_good(&before).then_some(0);
        }
        if self.windows[phase].is_none() && is_good(arm) {
            self.windows[phase] = Some(self.closed);
        }
    }
}

/// Who chooses while a [`Course`] is followed.
pub(super) struct Followed<'a> {
    pub(super) course: Course,
    pub(super) who: &'a mut dyn Selector,
}

impl Selector for Followed<'_> {
    fn window_closed(
        &mut self,
        place: Place,
        features: &WindowFeatures,
        current: &PolicyConfig,
        limits: &EngineConfig,
    ) -> Option<Setup> {
        self.course.see(features);
        self.who.window_closed(place, features, current, limits)
    }
}

/// Stays with what there is.
pub(super) struct Nobody;

impl Selector for Nobody {
    fn window_closed(&mut self, _: Place, _: &WindowFeatures, _: &PolicyConfig, _: &EngineConfig) -> Option<Setup> {
        None
    }
}

/// Uses the arm that it was given for each phase, from the end of the window in which the one before has ended, or so many windows later.
pub(super) struct Clairvoyant<'a> {
    course: Course,
    arms: Vec<&'a Arm>,
    /// The phases of the windows that it has seen and has not acted on yet, the oldest first; and the one that it acted on last.
    seen: VecDeque<usize>,
    at: usize,
    /// The settings of the server's engine, of which an arm may have others.
    host: EngineConfig,
}

impl<'a> Clairvoyant<'a> {
    /// `arms`: of each phase of the course. That of the first one has to be in force already.
    pub(super) fn new(course: Course, arms: Vec<&'a Arm>, host: EngineConfig, late: usize) -> Clairvoyant<'a> {
        Clairvoyant { course, arms, seen: vec![0; late].into(), at: 0, host }
    }

    pub(super) fn course(&self) -> &Course {
        &self.course
    }
}

impl Selector for Clairvoyant<'_> {
    fn window_closed(
        &mut self,
        _: Place,
        features: &WindowFeatures,
        _: &PolicyConfig,
        limits: &EngineConfig,
    ) -> Option<Setup> {
        self.course.see(features);
        self.seen.push_back(self.course.phase());
        let now = self.seen.pop_front()?;
        let before = std::mem::replace(&mut self.at, now);
        let arm = self.arms[self.at];
        if self.arms[before] == arm {
            return None;
        }
        let EngineConfig { anticipation, in_flight_max, batch_bytes_max, .. } = self.host;
        let host = EngineConfig { anticipation, in_flight_max, batch_bytes_max, ..limits.clone() };
        Some(Setup { policy: arm.policy.clone(), limits: Some(arm.limits(&host)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::{Anticipation, OpFeatures, Time};

    fn window(start_ms: u64, end_ms: u64, read: u64, written: u64) -> WindowFeatures {
        let op = |moved| OpFeatures { moved, ..OpFeatures::default() };
        let (start, end) = (Time(start_ms * 1_000_000), Time(end_ms * 1_000_000));
        WindowFeatures { start, end, ops: [op(read), op(written)], ..WindowFeatures::default() }
    }

    #[test]
    fn a_phase_ends_when_its_bytes_have_been_moved() {
        let mut course = Course::new([100, 50, 200].into_iter());
        course.see(&window(0, 1000, 50, 0));
        assert_eq!(course.phase(), 0);
        course.see(&window(1000, 2000, 40, 60));
        assert_eq!(course.phase(), 2, "150 of 150 bytes");
        course.see(&window(2000, 4000, 200, 0));
        assert_eq!(course.seconds(4.5), [1.5, 0.5, 2.5], "the last one ends with the run");
        assert_eq!(Course::new([100].into_iter()).seconds(3.0), [3.0]);
    }

    #[test]
    fn a_phase_is_followed_when_an_arm_that_is_good_for_it_is_in_force() {
        let course = Course::new([100, 100, 100].into_iter());
        let good =
            [&["noop"][..], &["sjf", "hbrr"], &["sjf"]].map(|arms| arms.iter().map(|arm| (*arm).to_owned()).collect());
        let mut pursuit = Pursuit::new(course, good.into());
        let windows = [(60, "noop"), (60, "noop"), (20, "noop"), (20, "hbrr"), (20, "sjf"), (80, "hbrr"), (20, "hbrr")];
        // The second phase began in the second window; what is in force when the third one begins is good for it.
        for (at, (moved, arm)) in (0..).zip(windows) {
            pursuit.see(&window(at * 10, at * 10 + 10, moved, 0), arm);
        }
        assert_eq!(pursuit.windows, [Some(1), Some(3), Some(0)]);
    }

    #[test]
    fn whoever_knows_the_phases_changes_when_one_ends_and_only_then() {
        let arms = ["noop", "sjf", "sjf", "hbrr anticipation=on"].map(|name| Arm::parse(name).unwrap());
        let anticipation = Some(Anticipation::for_device(8_000_000, 100_000_000));
        let host = EngineConfig { anticipation, ..EngineConfig::default() };
        let course = Course::new([100, 100, 100, 100].into_iter());
        let who = |late| Clairvoyant::new(course.clone(), arms.iter().collect(), host.clone(), late);
        let limits = EngineConfig::default();
        let see = |who: &mut Clairvoyant<'_>, at: u64, moved| {
            let setup =
                who.window_closed(Place::Server(0), &window(at, at + 10, moved, 0), &arms[0].policy, &limits)?;
            Some((setup.policy.name(), setup.limits?.anticipation.is_some()))
        };
        let (mut at_once, mut late) = (who(0), who(1));
        let mut both = |at: u64, moved| (see(&mut at_once, at, moved), see(&mut late, at, moved));
        let (sjf, hbrr) = (Some(("sjf", false)), Some(("hbrr", true)));
        assert_eq!(both(0, 99), (None, None));
        assert_eq!(both(10, 1), (sjf, None));
        assert_eq!(both(20, 0), (None, sjf));
        assert_eq!(both(30, 100), (None, None), "the same arm");
        assert_eq!(both(40, 100), (hbrr, None));
        assert_eq!(both(50, 100), (None, hbrr), "beyond the end");
    }
}
