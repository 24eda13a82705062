//! The orchestrator: which programs data servers serve one at a time (IOrchestrator: Zhang 2012, chapter 5; `docs/orchestration.md`).
//!
//! All thinking is [`sluice_adapt::orchestrator`]'s. Here it hears data servers, and tells them plans twice in a window by the
//! coordinator's clock; the first thing that they are told is how long a window is, from when on they report.

use std::collections::BTreeSet;

use serde_json::json;
use sluice_adapt::orchestrator::{Orchestrator as Decider, Phase, Plan, Report, Settings};
use sluice_core::Time;

use crate::locality::{WINDOW_NS, app};
use crate::role::{Action, Directive, NodeId, Role, To};
use crate::seen::{Kind, Seen};
use crate::wire;

/// See the module.
#[derive(Debug)]
pub struct Orchestrator {
    decider: Decider,
    servers: BTreeSet<NodeId>,
    decides_at: Option<Time>,
    /// Servers know that they are to report.
    has_said: bool,
    /// What was said last.
    plan: Option<Plan>,
    plans: u64,
    reports: u64,
}

impl Orchestrator {
    /// One that knows nothing yet. Windows are 100 ms to 60 s long; others become the next that is possible.
    #[must_use]
    pub fn new(settings: Settings) -> Orchestrator {
        let window_ns = settings.window_ns.clamp(*WINDOW_NS.start(), *WINDOW_NS.end());
        Orchestrator {
            decider: Decider::new(Settings { window_ns, ..settings }),
            servers: BTreeSet::new(),
            decides_at: None,
            has_said: false,
            plan: None,
            plans: 0,
            reports: 0,
        }
    }

    fn window_ns(&self) -> u64 {
        self.decider.settings().window_ns
    }

    /// In the middle between two halves of a window: reports come where windows end.
    fn next(&self, now: Time) -> Time {
        let period_ns = self.decider.period_ns().max(1);
        let phase = now.0.wrapping_add(period_ns / 2) % period_ns;
        now.after(period_ns - phase)
    }
}

impl Role for Orchestrator {
    fn kind(&self) -> wire::Role {
        wire::Role::Orchestrator
    }

    fn announced(&mut self, now: Time, node: NodeId, seen: &Seen) {
        if seen.kind != Kind::Server {
            return self.left(now, node);
        }
        self.servers.insert(node);
        // The first one is told at once that it is to report.
        let at = if self.has_said { self.next(now) } else { now };
        self.decides_at.get_or_insert(at);
    }

    fn reported(&mut self, now: Time, node: NodeId, report: &Report) {
        if self.servers.contains(&node) {
            self.reports += 1;
            self.decider.hear(now.0, report);
        }
    }

    fn left(&mut self, _: Time, node: NodeId) {
        if self.servers.remove(&node) {
            self.decider.left(node.0);
        }
    }

    fn due(&self) -> Option<Time> {
        self.decides_at
    }

    fn decide(&mut self, now: Time) -> Vec<Directive> {
        if self.decides_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        let plan = self.decider.decide(now.0);
        // Without servers nothing is decided but the end of what there was.
        self.decides_at = (!self.servers.is_empty() || plan.is_some()).then(|| self.next(now));
        if plan.is_none() && self.has_said {
            return Vec::new();
        }
        self.has_said = true;
        self.plan = plan.filter(|plan| !plan.slices.is_empty());
        self.plans += u64::from(self.plan.is_some());
        let action = Action::Gate { window_ns: self.window_ns(), plan: self.plan.as_ref().map(|plan| plan.gate(app)) };
        vec![Directive { to: To::Every(Kind::Server), action }]
    }

    fn save(&self) -> serde_json::Value {
        self.decider.save()
    }

    fn load(&mut self, now: Time, saved: serde_json::Value) -> Result<(), String> {
        self.decider.load(now.0, saved).map_err(|error| error.to_string())
    }

    fn status(&self) -> serde_json::Value {
        let (phase, gain) = match self.decider.phase() {
            Phase::Idle => ("idle", None),
            Phase::Watch => ("watch", None),
            Phase::Trial { .. } => ("trial", None),
            Phase::Keep { gain } => ("keep", *gain),
            Phase::Refused { gain } => ("refused", Some(*gain)),
        };
        let slices = |plan: &Plan| {
            let slice = |slice: &sluice_adapt::orchestrator::PlanSlice| json!({"programs": slice.programs, "ms": slice.len_ns as f64 / 1e6});
            plan.slices.iter().map(slice).collect::<Vec<_>>()
        };
        json!({
            "phase": phase,
            "gain": gain,
            "window_ms": self.window_ns() as f64 / 1e6,
            "servers": self.servers.len(),
            "reports": self.reports,
            "plans": self.plans,
            "programs": self.decider.eligible().collect::<Vec<_>>(),
            "computing": self.decider.computing().collect::<Vec<_>>(),
            "plan": self.plan.as_ref().map(slices),
        })
    }
}

#[cfg(test)]
mod tests {
    use sluice_adapt::orchestrator::{ProgramReport, Value};
    use sluice_core::{AppId, GatePlan};

    use super::*;
    use crate::locality::program;
    use crate::seen::InForce;

    const WINDOW: u64 = 500_000_000;

    /// Reports as of two programs that send the device to and fro unless they are served one at a time.
    fn report(server: u64, number: u64, at: u64, planned: bool) -> Report {
        let value = |mean: f64| Value { last: mean, mean, count: 100 };
        let seen = |app| ProgramReport {
            program: program(AppId(app)),
            requests: 100,
            bytes: if planned { 20_000_000 } else { 10_000_000 },
            distance: value(65_536.0),
            seek_ns: 100_000,
            reuse: if planned { value(2e6) } else { Value::default() },
            idle_ns: 0,
        };
        Report {
            server,
            number,
            window_ns: WINDOW,
            at,
            plan: Some(u64::from(planned)),
            distance: value(if planned { 1e6 } else { 1e9 }),
            seek_ns: 8_000_000,
            others: Value::default(),
            programs: vec![seen(0xa), seen(0xb)],
            activities: Vec::new(),
        }
    }

    /// What is said to all data servers in so many windows.
    fn run(role: &mut Orchestrator, from: u64, windows: u64) -> Vec<Option<GatePlan>> {
        let mut said = Vec::new();
        let server = Seen::nothing(Kind::Server, 0, InForce { policy: "hbrr".into(), window_ns: 0 });
        for window in from..from + windows {
            let now = window * WINDOW;
            for id in 1..=4 {
                role.announced(Time(now), NodeId(id), &server);
                let report = report(id, window, now, role.plan.is_some());
                role.reported(Time(now), NodeId(id), &report);
            }
            let mut at = role.due().unwrap();
            while at < Time(now + WINDOW) {
                for Directive { to, action } in role.decide(at) {
                    let Action::Gate { window_ns, plan } = action else { panic!("{action:?}") };
                    assert_eq!((to, window_ns), (To::Every(Kind::Server), WINDOW));
                    said.push(plan);
                }
                at = role.due().unwrap();
            }
        }
        said
    }

    #[test]
    fn servers_are_told_to_report_then_plans_twice_in_a_window_and_a_restart_goes_on() {
        let mut role = Orchestrator::new(Settings::default());
        let said = run(&mut role, 10, 30);
        assert_eq!(said[0], None, "at first nothing is known");
        let plan = said.last().unwrap().clone().expect("a plan is kept");
        let apps: Vec<_> = plan.slices.iter().map(|slice| slice.apps.clone()).collect();
        assert_eq!(apps, [vec![AppId(0xa)], vec![AppId(0xb)], vec![]]);
        assert_eq!(plan.check(), Ok(()));
        assert_eq!(run(&mut role, 40, 5).len(), 10);
        assert_eq!(role.status()["phase"], "keep");
        assert_eq!(role.status()["plan"].as_array().unwrap().len(), 3);
        let mut again = Orchestrator::new(Settings::default());
        assert!(again.load(Time(45 * WINDOW), json!({"version": 7})).is_err());
        again.load(Time(45 * WINDOW), role.save()).unwrap();
        let first = run(&mut again, 45, 1).into_iter().flatten().next().expect("it goes on at once");
        assert_eq!((first.epoch, first.slices.len()), (plan.epoch, 3));
    }

    #[test]
    fn without_servers_there_is_nothing_to_do() {
        let mut role = Orchestrator::new(Settings::default());
        assert_eq!(role.due(), None);
        run(&mut role, 10, 30);
        (1..=4).for_each(|id| role.left(Time(40 * WINDOW), NodeId(id)));
        let mut said = Vec::new();
        for _ in 0..100 {
            let Some(due) = role.due() else { break };
            said = role.decide(due);
        }
        assert_eq!(role.due(), None, "{:?}", role.status());
        assert!(matches!(&said[..], [Directive { action: Action::Gate { plan: None, .. }, .. }] | []));
        assert!(Orchestrator::new(Settings { window_ns: 1, ..Settings::default() }).window_ns() >= *WINDOW_NS.start());
    }
}
