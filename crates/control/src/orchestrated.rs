//! A scheduler under an orchestrator: what it measures, and whose turn it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_adapt::orchestrator::{Activity, ProgramReport, Report, SeekTimes, Value};
use sluice_core::{AppId, AppLocality, GatePlan, LOCALITY_APPS, Smoothed, Time};
use sluice_select::Ground;

use crate::announced::{Announced, Doing};
use crate::clock::Estimate;
use crate::gated::{Follow, Gated};
use crate::locality::program;

/// Distance of two files, whose places on the device nobody knows here, in bytes.
const FAR_BYTES: u64 = 1 << 30;

/// See the module.
#[derive(Debug)]
pub(crate) struct Orchestrated {
    seek: SeekTimes,
    /// Who knows what programs say of themselves.
    announced: Option<Arc<dyn Announced>>,
    gated: Gated,
    /// Since when locality is measured, or was reported last; `None`: it is not.
    measured: Option<Time>,
    /// A plan was in force when that was asked for last.
    gates: bool,
}

impl Orchestrated {
    /// On a device that needs these times.
    pub(crate) fn new(seek: SeekTimes, announced: Option<Arc<dyn Announced>>) -> Orchestrated {
        Orchestrated { seek, announced, gated: Gated::default(), measured: None, gates: false }
    }

    /// The coordinator wants to be told of windows of this length, and has a plan, by its own clock, or none.
    pub(crate) fn follow(
        &mut self,
        ground: &impl Ground,
        offset: Option<Estimate>,
        window_ns: u64,
        plan: Option<&GatePlan>,
    ) {
        let (scheduler, now) = (ground.scheduler(), ground.now());
        if self.measured.is_none() {
            scheduler.watch_locality(Some(FAR_BYTES));
            self.measured = Some(now);
        }
        let set = match self.gated.heard(now, offset, window_ns, plan) {
            Follow::Ignore => return,
            Follow::Clear => scheduler.set_gate(None),
            Follow::Set(plan) => scheduler.set_gate(Some(&plan)),
        };
        if let Err(why) = set {
            tracing::warn!("the coordinator's plan cannot be followed: {why}");
        }
    }

    /// What was measured since the last time; `None`: nothing is, as nobody wants to know.
    pub(crate) fn report(&mut self, ground: &impl Ground) -> Option<Report> {
        let now = ground.now();
        // Who begins to measure sees by this that nobody has yet.
        let since = self.measured.as_mut().map(|measured| std::mem::replace(measured, now))?;
        let (mut distance, mut others) = (Value::default(), Value::default());
        let mut apps: BTreeMap<AppId, Seen> = BTreeMap::new();
        for shard in 0..ground.engines() {
            let Some((device, seen)) = ground.scheduler().locality(shard) else { continue };
            add(&mut distance, device.distance);
            add(&mut others, device.others);
            for app in seen {
                apps.entry(app.app).or_default().add(&app);
            }
        }
        // Of several engines those with most requests.
        let mut apps: Vec<_> = apps.into_iter().collect();
        apps.sort_by_key(|(_, seen)| std::cmp::Reverse(seen.requests));
        let programs = apps.into_iter().take(LOCALITY_APPS).map(|(app, seen)| ProgramReport {
            program: program(app),
            requests: seen.requests,
            bytes: seen.bytes,
            distance: seen.distance,
            seek_ns: self.seek.ns(seen.distance.mean),
            reuse: seen.reuse,
            idle_ns: seen.completed.map_or(0, |completed| now.since(completed)),
        });
        let programs = programs.collect();
        Some(Report {
            // Both are the message's.
            server: 0,
            number: 0,
            window_ns: now.since(since).max(1),
            at: now.0,
            plan: self.gated.since_last(now).map(u64::from),
            distance,
            seek_ns: self.seek.ns(distance.mean),
            others,
            programs,
            activities: self.activities(),
        })
    }

    /// What programs say of themselves: of many those that have spoken last, so that every change is told.
    fn activities(&self) -> Vec<Activity> {
        let mut said = self.announced.as_ref().map_or_else(Vec::new, |announced| announced.doing());
        said.sort_by_key(|said| (said.for_ns, said.app));
        let told = said.into_iter().take(LOCALITY_APPS);
        told.map(|Doing { app, computes, for_ns }| Activity { program: program(app), computes, for_ns }).collect()
    }

    /// Whether a plan is in force.
    pub(crate) fn is_gated(&mut self, now: Time) -> bool {
        self.gates = now < self.gated.expires();
        self.gates
    }

    /// When that will have changed by itself, if it will.
    pub(crate) fn ends(&self) -> Option<Time> {
        self.gates.then(|| self.gated.expires())
    }

    /// Nobody orchestrates any more.
    pub(crate) fn end(&mut self, ground: &impl Ground) {
        if self.measured.take().is_some() {
            ground.scheduler().watch_locality(None);
            // Taking a gate away cannot fail.
            let _ = ground.scheduler().set_gate(None);
            self.gated = Gated::default();
        }
    }
}

/// What all engines have seen of an application.
#[derive(Default)]
struct Seen {
    requests: u64,
    bytes: u64,
    distance: Value,
    reuse: Value,
    completed: Option<Time>,
}

impl Seen {
    fn add(&mut self, app: &AppLocality) {
        self.requests += app.requests;
        self.bytes += app.bytes;
        add(&mut self.distance, app.distance);
        add(&mut self.reuse, app.reuse);
        self.completed = self.completed.max(app.completed);
    }
}

/// Adds what another engine of the server has measured of one thing: means weighted by observations.
fn add(sum: &mut Value, seen: Smoothed) {
    let count = sum.count + seen.count;
    if seen.count > 0 {
        let mean = |before: f64, here: f64| (before * sum.count as f64 + here * seen.count as f64) / count as f64;
        *sum = Value { last: mean(sum.last, seen.last), mean: mean(sum.mean, seen.mean), count };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs that have said something one after the other.
    #[cfg(feature = "coordinator")]
    #[derive(Debug)]
    struct Many(u32);

    #[cfg(feature = "coordinator")]
    impl Announced for Many {
        fn doing(&self) -> Vec<Doing> {
            let one = |app| Doing { app: AppId(app), computes: app % 2 == 0, for_ns: u64::from(self.0 - app) };
            (0..self.0).map(one).collect()
        }
    }

    #[cfg(feature = "coordinator")]
    #[test]
    fn what_programs_say_is_told_with_requests_or_without_and_of_many_what_is_new() {
        let policy = sluice_core::PolicyConfig::parse("hbrr").unwrap();
        let ground = sluice_runtime::Scheduler::start(sluice_runtime::SchedulerConfig::new(policy)).unwrap();
        let report = |announced: Option<Arc<dyn Announced>>| {
            let mut orchestrated = Orchestrated::new(SeekTimes::hard_disk(), announced);
            assert!(orchestrated.report(&ground).is_none(), "nobody wants to know");
            orchestrated.follow(&ground, None, 500_000_000, None);
            assert!(ground.locality(0).is_some(), "it is watched from now on");
            let report = orchestrated.report(&ground).unwrap();
            assert!(report.programs.is_empty());
            report.activities
        };
        assert_eq!(report(None), []);
        let told = report(Some(Arc::new(Many(100))));
        let newest = Activity { program: program(AppId(99)), computes: false, for_ns: 1 };
        assert_eq!((told.len(), &told[0]), (LOCALITY_APPS, &newest));
    }

    #[test]
    fn engines_are_one_server() {
        let mut sum = Value::default();
        add(&mut sum, Smoothed { last: 9.0, mean: 9.0, count: 0 });
        assert_eq!(sum, Value::default());
        add(&mut sum, Smoothed { last: 1.0, mean: 2.0, count: 1 });
        add(&mut sum, Smoothed { last: 5.0, mean: 6.0, count: 3 });
        assert_eq!(sum, Value { last: 4.0, mean: 5.0, count: 4 });
    }
}
