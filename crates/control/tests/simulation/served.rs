//! A data server of the simulation: an engine behind a gate, two programs that are faster one at a time, and what must hold of it.

use sluice_adapt::orchestrator::{Activity, ProgramReport, Report, Value};
use sluice_control::{Estimate, Follow, Gated};
use sluice_core::{Batch, Engine, EngineConfig, GatePlan, PolicyConfig, Time};

use super::MS;

pub const WINDOW: u64 = 500 * MS;

pub struct Served {
    engine: Engine,
    batch: Batch,
    gated: Gated,
    reported: u64,
    /// The second program has said so to this server then; it sends nothing while it computes.
    pub computes: (bool, u64),
    /// Plans that were followed: by its own clock, by the coordinator's, and by how much its own was off at most.
    followed: Vec<(GatePlan, GatePlan, u64)>,
    /// Moments at which a gate was looked at.
    pub looked: u32,
}

/// Whose turn it may be by a plan, between two times of the coordinator's clock.
fn turns(plan: &GatePlan, from: u64, to: u64) -> Vec<usize> {
    let window = plan.window_ns();
    let mut phase = (i128::from(from) - i128::from(plan.epoch.0)).rem_euclid(i128::from(window)) as u64;
    let mut left = to - from;
    let mut turns = Vec::new();
    for (object, slice) in plan.slices.iter().enumerate().cycle().take(2 * plan.slices.len()) {
        let Some(rest) = slice.len_ns.checked_sub(phase).filter(|&rest| rest > 0) else {
            phase -= slice.len_ns;
            continue;
        };
        turns.push(object);
        let Some(later) = left.checked_sub(rest) else { break };
        (left, phase) = (later, 0);
    }
    turns
}

impl Served {
    pub fn new(now: u64, local: Time) -> Served {
        let config = EngineConfig { capacity: 16, ..EngineConfig::default() };
        Served {
            engine: Engine::new(config, &PolicyConfig::parse("hbrr").unwrap(), local).unwrap(),
            batch: Batch::default(),
            gated: Gated::default(),
            reported: now,
            computes: (false, now),
            followed: Vec::new(),
            looked: 0,
        }
    }

    /// What was served since the last report: more if there was a gate.
    pub fn report(&mut self, now: u64, local: Time) -> Report {
        let window_ns = (now - std::mem::replace(&mut self.reported, now)).max(1);
        let planned = self.gated.since_last(local);
        let value = |mean: f64| Value { last: mean, mean, count: 100 };
        let gains = planned == Some(true);
        let (computes, since) = self.computes;
        // It had requests before it said so.
        let sends = !computes || now.saturating_sub(since) < window_ns;
        let seen = |app: &str, idle_ns| ProgramReport {
            program: app.to_owned(),
            requests: 100,
            bytes: window_ns / if gains { 50 } else { 100 },
            distance: value(65_536.0),
            seek_ns: 100_000,
            reuse: if gains { value(2e6) } else { Value::default() },
            idle_ns,
        };
        let (first, second) = ("0000000a", "0000000b");
        let idle_ns = if computes { now.saturating_sub(since) } else { 0 };
        Report {
            server: 0,
            number: 0,
            window_ns,
            at: local.0,
            plan: planned.map(u64::from),
            distance: value(if gains { 1e6 } else { 1e9 }),
            seek_ns: 8_000_000,
            others: Value::default(),
            programs: [seen(first, 0)].into_iter().chain(sends.then(|| seen(second, idle_ns))).collect(),
            activities: vec![Activity { program: second.to_owned(), computes, for_ns: now.saturating_sub(since) }],
        }
    }

    pub fn follow(&mut self, local: Time, offset: Option<Estimate>, window_ns: u64, plan: Option<&GatePlan>) {
        match self.gated.heard(local, offset, window_ns, plan) {
            Follow::Ignore => {}
            Follow::Clear => self.engine.set_gate(local, None).unwrap(),
            Follow::Set(own) => {
                // An offset may be used as long as it differs by no more than a part of a window.
                let off = offset.unwrap().error_ns + window_ns / 256;
                assert!(off <= window_ns / 8 + window_ns / 256, "it follows though it does not know the time");
                self.engine.set_gate(local, Some(own.clone())).unwrap();
                self.followed.push((own, plan.unwrap().clone(), off));
                if self.followed.len() > 16 {
                    self.followed.remove(0);
                }
            }
        }
    }

    /// The slices of the plan in force.
    pub fn slices(&mut self, local: Time) -> usize {
        self.engine.poll_dispatch(local, &mut self.batch);
        self.engine.gate().and_then(|gate| gate.plan).map_or(0, |plan| plan.slices.len())
    }

    /// No gate outlives its plan, and the open object is that of the coordinator's plan, as far as clocks agree.
    pub fn check(&mut self, now: u64, local: Time) {
        self.engine.poll_dispatch(local, &mut self.batch);
        let Some(status) = self.engine.gate() else { return };
        let Some(plan) = status.plan else { return };
        self.looked += 1;
        let (_, newest, off) = self.followed.last().expect("somebody has set it");
        assert!(now <= newest.expires.0 + off, "a gate {} ns behind its plan's end", now - newest.expires.0);
        let (_, said, off) =
            self.followed.iter().rfind(|(own, ..)| *own == plan).expect("a plan that nobody has followed");
        let turns = turns(said, now - off, now + off);
        assert!(turns.contains(&status.open), "it serves {}, and it may be the turn of {turns:?}", status.open);
    }
}
