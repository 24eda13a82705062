//! Which access pattern there is: engines are followed request by request for some windows, and the detector says what that was.
//!
//! Nobody is followed while nothing is chosen, and what goes by an engine is not seen. A window costs some 30 ns a request, on
//! the thread that drives the engine, and the detector's time on the selector's. Where that would be more than [`SHARE`] of the
//! time there are pauses, so that it is not. The first window after a pause is for learning where streams are, and says nothing.

use std::any::Any;
use std::time::Instant;

use sluice_adapt::detector::{Detector, Patterns};
use sluice_adapt::features::{Answers, Settings, Watcher, Window};
use sluice_adapt::selector::Pattern;
use sluice_core::{Request, Time};
use sluice_runtime::Monitor;

use crate::ground::Ground;

/// Share of the time of a processor that may be spent on this.
const SHARE: f64 = 0.002;
/// What following a request is reckoned with, in seconds: twice what `sluice-bench features` has with requests of ever other files.
const REQUEST_S: f64 = 60e-9;
/// How long engines are followed before anything is said, in nanoseconds: of shorter windows several are one.
const LOOK_NS: u64 = 250_000_000;
/// Engines that are followed at most, each with a watcher of 700 KB.
const ENGINES_MAX: usize = 8;

/// Follows an engine, request by request.
pub struct Follower(Watcher);

impl Follower {
    /// One that has seen nothing. It takes 700 KB.
    #[must_use]
    pub fn new(ground: &impl Ground) -> Box<Follower> {
        let usual = Settings::default();
        let settings = Settings { stripe: ground.stripe().unwrap_or(usual.stripe), answers: Answers::Known, ..usual };
        Box::new(Follower(Watcher::new(settings, ground.now())))
    }

    /// One for an I/O node's council, whose networks were trained by I/O nodes that know of no stripes: what it has below is no matter,
    /// as where a mount is one. It takes 1.2 MB.
    #[must_use]
    pub fn of_io_node(ground: &impl Ground) -> Box<Follower> {
        Box::new(Follower(Watcher::new(Settings::of_io_node(), ground.now())))
    }

    /// Takes back one that an engine was given ([`Ground::set_monitor`]); `None` if that is somebody else's.
    #[must_use]
    pub fn back(monitor: Box<dyn Monitor>) -> Option<Box<Follower>> {
        (monitor as Box<dyn Any>).downcast().ok()
    }

    /// What it has seen since the last time.
    pub fn close(&mut self, now: Time) -> &Window {
        self.0.close(now)
    }
}

impl Monitor for Follower {
    fn begins(&mut self, now: Time, queued: u32, in_flight: u32) {
        self.0.resume(now, queued, in_flight);
    }
    fn arrived(&mut self, now: Time, request: &Request) {
        self.0.arrived(now, request);
    }
    fn dispatched(&mut self, now: Time, requests: u32) {
        self.0.dispatched(now, requests);
    }
    fn completed(&mut self, now: Time, request: &Request) {
        self.0.completed(now, request, None);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nobody is followed until then.
    Pause(Time),
    /// The first window after a pause.
    Learning,
    /// A window that says something.
    Following,
}

/// Looks at the requests of some windows.
pub(crate) struct Looker {
    detector: Detector,
    /// Those who follow nobody just now.
    #[allow(clippy::vec_box)] // they go into engines and come out
    idle: Vec<Box<Follower>>,
    engines: usize,
    stage: Stage,
    /// When the stage began, and requests since.
    since: Time,
    requests: u64,
    /// Since the last pause: when it ended, and the processor time spent, in seconds.
    began: Time,
    spent_s: f64,
}

impl Looker {
    /// `None` if the detector's model cannot be used; the log says why.
    pub(crate) fn new(ground: &impl Ground) -> Option<Looker> {
        let detector = Detector::shipped()
            .inspect_err(|error| tracing::warn!("no access patterns are recognised: {error}"))
            .ok()?;
        let engines = ground.engines().min(ENGINES_MAX);
        let idle = (0..engines).map(|_| Follower::new(ground)).collect();
        let stage = Stage::Pause(Time::ZERO);
        let (since, began) = (Time::ZERO, Time::ZERO);
        Some(Looker { detector, idle, engines, stage, since, requests: 0, began, spent_s: 0.0 })
    }

    /// A window has closed, with so many requests. What was recognised in it, if anybody has looked: `Some(None)` if that were too
    /// few to say.
    pub(crate) fn window(&mut self, ground: &impl Ground, requests: u64) -> Option<Option<Pattern>> {
        let (start, now) = (Instant::now(), ground.now());
        match self.stage {
            Stage::Pause(until) if now < until => return None,
            Stage::Pause(_) => {
                (self.began, self.spent_s, self.stage) = (now, 0.0, Stage::Learning);
                (self.since, self.requests) = (now, 0);
                self.follow(ground);
                return None;
            }
            Stage::Learning | Stage::Following => self.requests += requests,
        }
        if now.since(self.since) < LOOK_NS {
            return None;
        }
        let says_something = self.stage == Stage::Following;
        self.leave(ground);
        let mut all = Seen::default();
        for follower in &mut self.idle {
            let window = follower.close(now);
            if says_something {
                let least = Settings::default().requests_min;
                all.add(window, &self.detector.detect(window, least));
            }
        }
        self.spent_s += self.requests as f64 * REQUEST_S + start.elapsed().as_secs_f64();
        (self.stage, self.since, self.requests) = (Stage::Following, now, 0);
        let earned = self.began.after((self.spent_s / SHARE * 1e9) as u64);
        if says_something && earned > now {
            self.stage = Stage::Pause(earned);
        } else {
            self.follow(ground);
        }
        says_something.then(|| all.pattern())
    }

    /// Follows nobody any more.
    pub(crate) fn end(&mut self, ground: &impl Ground) {
        if !matches!(self.stage, Stage::Pause(_)) {
            self.leave(ground);
            self.stage = Stage::Pause(Time::ZERO);
        }
    }

    fn follow(&mut self, ground: &impl Ground) {
        for (engine, follower) in self.idle.drain(..).enumerate() {
            // Somebody else's monitor is not ours to keep.
            drop(ground.set_monitor(engine, Some(follower)));
        }
    }

    fn leave(&mut self, ground: &impl Ground) {
        let taken = (0..self.engines).filter_map(|engine| ground.set_monitor(engine, None));
        self.idle = taken.filter_map(Follower::back).collect();
    }
}

/// What was recognised, over engines.
#[derive(Default)]
struct Seen {
    patterns: Patterns,
    /// For each pattern the most bytes of one file, and what speaks for it there.
    reasons: [(u64, Option<String>); 4],
}

impl Seen {
    fn add(&mut self, window: &Window, patterns: &Patterns) {
        self.patterns.all.merge(&patterns.all);
        let features = window.files.iter().map(|file| &file.features);
        let features = features.chain(window.rest.iter().map(|rest| &rest.features));
        for (file, features) in patterns.files.iter().zip(features) {
            let Some(verdict) = file.verdict else { continue };
            let best = &mut self.reasons[verdict.class.index()];
            if file.bytes > best.0 {
                *best = (file.bytes, Some(verdict.why(features)));
            }
        }
    }

    fn pattern(mut self) -> Option<Pattern> {
        let all = &self.patterns.all;
        let class = all.class()?;
        Some(Pattern {
            class: class.name().to_owned(),
            confidence: all.confidence(),
            share: all.share(class),
            why: self.reasons[class.index()].1.take(),
            ago_s: 0.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use sluice_core::{AppId, ConfigError, EngineConfig, FileId, Op, PolicyConfig, TargetId, WindowFeatures};
    use sluice_runtime::Scheduler;

    use super::*;

    /// Engines that do what a test says.
    #[derive(Default)]
    struct Stand {
        now: Mutex<Time>,
        stripe: Option<u64>,
        monitor: Mutex<Option<Box<dyn Monitor>>>,
    }

    impl Ground for Stand {
        fn limits(&self) -> EngineConfig {
            EngineConfig::default()
        }
        fn policy(&self) -> PolicyConfig {
            PolicyConfig::parse("noop").unwrap()
        }
        fn set_policy(&self, _: &PolicyConfig) {}
        fn set_limits(&self, _: &EngineConfig) -> Result<(), ConfigError> {
            Ok(())
        }
        fn engines(&self) -> usize {
            1
        }
        fn window(&self, _: usize) -> Option<Arc<WindowFeatures>> {
            None
        }
        fn on_window(&self, _: Option<Box<dyn Fn() + Send + Sync>>) {}
        fn now(&self) -> Time {
            *self.now.lock()
        }
        fn set_monitor(&self, _: usize, monitor: Option<Box<dyn Monitor>>) -> Option<Box<dyn Monitor>> {
            std::mem::replace(&mut self.monitor.lock(), monitor)
        }
        fn passed_by(&self) -> u64 {
            0
        }
        fn stripe(&self) -> Option<u64> {
            self.stripe
        }
        fn scheduler(&self) -> &Scheduler {
            unreachable!("there is none, and nobody learns here what the device is")
        }
    }

    impl Stand {
        fn is_followed(&self) -> bool {
            self.monitor.lock().is_some()
        }

        /// Four processes, each with a file of its own that it reads in requests of 16 KiB, over a window of so many seconds.
        fn window(&self, from: u64, seconds: u64) {
            let start = self.now();
            for n in 0..400 {
                let file = FileId(n % 4);
                let offset = (from + n / 4) << 14;
                let (app, target) = (AppId(1), TargetId(0));
                let request = Request { cookie: 0, file, app, target, op: Op::Read, offset, len: 1 << 14 };
                if let Some(monitor) = &mut *self.monitor.lock() {
                    let at = start.after(n * seconds * 2_500_000);
                    monitor.arrived(at, &request);
                    monitor.dispatched(at, 1);
                    monitor.completed(at.after(1_000_000), &request);
                }
            }
            *self.now.lock() = start.after(seconds * 1_000_000_000);
        }
    }

    #[test]
    fn a_pattern_is_known_after_two_windows_and_then_in_each() {
        // So long that whatever this machine takes is little.
        let (ground, seconds) = (Stand::default(), 10_000);
        let mut looker = Looker::new(&ground).unwrap();
        assert!(!ground.is_followed());
        assert_eq!(looker.window(&ground, 400), None);
        let mut seen = Vec::new();
        for window in 0..4 {
            assert!(ground.is_followed());
            ground.window(window * 100, seconds);
            seen.push(looker.window(&ground, 400));
        }
        assert_eq!(seen[0], None, "it was for learning");
        for pattern in &seen[1..] {
            let pattern = pattern.as_ref().unwrap().as_ref().expect("enough requests");
            assert_eq!((pattern.class.as_str(), pattern.share), ("contiguous small", 1.0), "{pattern:?}");
            assert!(pattern.why.is_some() && pattern.confidence > 0.25);
        }
        looker.end(&ground);
        assert!(!ground.is_followed());
    }

    #[test]
    fn io_nodes_are_followed_as_those_that_were_trained_with() {
        let ground = Stand { stripe: Some(1 << 20), ..Stand::default() };
        assert_eq!(Follower::of_io_node(&ground).0.settings(), &Settings::of_io_node());
        assert_eq!(Follower::new(&ground).0.settings().stripe, 1 << 20);
    }

    #[test]
    fn with_many_requests_there_are_pauses() {
        let (ground, mut looked) = (Stand::default(), 0);
        let mut looker = Looker::new(&ground).unwrap();
        // A million a second: 6 % of a core each time.
        for window in 0..100 {
            looked += usize::from(looker.window(&ground, 1_000_000).is_some());
            ground.window(window * 100, 1);
        }
        assert!((1..=2).contains(&looked), "two windows of 60 ms each allow for one a minute: {looked}");
    }
}
