//! Data servers that report what they serve to an orchestrator and follow its plans: the production engine's gate and locality,
//! the production orchestrator, and messages between them, which faults may lose, double, and delay.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use sluice_adapt::orchestrator::{Follow, Follower, Orchestrator, Plan, ProgramReport, Report, SeekTimes};
use sluice_core::{AppId, AppLocality, FileId, LocalityConfig, Placement, TargetId};
use sluice_device::profiler::Modelled;

use super::{Failure, Simulation};
use crate::calendar::Event;
use crate::random::Random;
use crate::scenario::{Orchestration as Wanted, Scenario};
use crate::slab::Slab;

/// Distance of files of which none has been touched.
const FAR_BYTES: u64 = 1 << 30;

/// What orchestration did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OrchestrationOutcome {
    /// Plans that were made with slices.
    pub plans: u64,
    /// Of all decisions, the share after which a plan was in force.
    pub planned_share: f64,
    /// Most programs that had slices of their own.
    pub programs_max: usize,
    /// Times a plan was tried and refused, since it brought too little.
    pub refusals: u64,
    /// What the last plan that was tried brought.
    pub gain: Option<f64>,
    /// Slices that began at all servers together, and those cut short.
    pub slices: u64,
    /// See `slices`.
    pub cuts: u64,
    /// When a server held requests back for the last time, in nanoseconds.
    pub last_held_ns: u64,
    /// Applications, in the order of the scenario.
    pub programs: Vec<ProgramOutcome>,
    /// `SeekTime_i` in nanoseconds: of requests one after the other of any program, while there was no plan.
    pub seek_ns: f64,
    seeks: u64,
}

/// What orchestration did with an application.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProgramOutcome {
    /// Share of the window that was its own, of the time in which it had a slice of its own.
    pub share: f64,
    /// Decisions that gave it one.
    pub planned: u64,
    /// The device's time for the distance from one of its requests to its next, in nanoseconds.
    pub seek_ns: f64,
    /// From one of its requests to its next at a server, while that served it alone, in nanoseconds.
    pub reuse_ns: f64,
    reports: u64,
    reuses: u64,
}

impl OrchestrationOutcome {
    fn program(&mut self, name: &str) -> Option<&mut ProgramOutcome> {
        let at: usize = name.parse().ok()?;
        self.programs.get_mut(at)
    }

    fn note(&mut self, report: &Report) {
        let add = |mean: &mut f64, count: &mut u64, value: f64| {
            *count += 1;
            *mean += (value - *mean) / *count as f64;
        };
        if report.plan == Some(0) && report.distance.count > 0 {
            add(&mut self.seek_ns, &mut self.seeks, report.seek_ns as f64);
        }
        for seen in &report.programs {
            let Some(program) = self.program(&seen.program) else { continue };
            if seen.distance.count > 0 {
                add(&mut program.seek_ns, &mut program.reports, seen.seek_ns as f64);
            }
            if seen.reuse.count > 0 {
                add(&mut program.reuse_ns, &mut program.reuses, seen.reuse.mean);
            }
        }
    }
}

/// Where files begin on a server's device, as far as it was used.
#[derive(Clone, Debug, Default)]
pub(super) struct Starts(Arc<Mutex<Vec<Option<u64>>>>);

impl Starts {
    /// A byte of a file lies there.
    pub(super) fn note(&self, file: u64, offset: u64, address: u64) {
        let mut starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if starts.len() <= file as usize {
            starts.resize(file as usize + 1, None);
        }
        starts[file as usize] = Some(address.wrapping_sub(offset));
    }
}

impl Placement for Starts {
    fn address(&self, file: FileId, _: TargetId) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(file.0 as usize).copied().flatten()
    }
}

#[derive(Clone, Debug)]
pub(super) enum Control {
    Report(Report),
    Plan(u32, Plan),
}

/// Everything about it.
pub(super) struct Orchestration {
    orchestrator: Orchestrator,
    ends_ns: u64,
    seek: SeekTimes,
    servers: Vec<Server>,
    messages: Slab<Option<Control>>,
    apps: Vec<AppLocality>,
    random: Random,
    decisions: u64,
    planned: u64,
    outcome: OrchestrationOutcome,
}

/// What a server knows of it.
#[derive(Debug, Default)]
struct Server {
    starts: Starts,
    follower: Follower,
    reports: u64,
    reported_ns: u64,
    plan: u64,
}

impl Orchestration {
    pub(super) fn new(scenario: &Scenario, wanted: &Wanted) -> Result<Orchestration, Failure> {
        Ok(Orchestration {
            orchestrator: Orchestrator::new(wanted.settings.clone()),
            ends_ns: if wanted.ends_ns == 0 { u64::MAX } else { wanted.ends_ns },
            seek: seek_times(&scenario.storage.device)?,
            servers: (0..scenario.servers.count).map(|_| Server::default()).collect(),
            messages: Slab::default(),
            apps: Vec::new(),
            random: Random::new(scenario.seed, 0x04c4),
            decisions: 0,
            planned: 0,
            outcome: OrchestrationOutcome {
                programs: vec![ProgramOutcome::default(); scenario.applications.len()],
                ..OrchestrationOutcome::default()
            },
        })
    }

    pub(super) fn starts(&self, server: u32) -> Starts {
        self.servers[server as usize].starts.clone()
    }

    pub(super) fn locality(starts: Starts) -> LocalityConfig {
        LocalityConfig { placement: Some(Box::new(starts)), far_bytes: FAR_BYTES }
    }

    pub(super) fn outcome(mut self) -> OrchestrationOutcome {
        self.outcome.planned_share = self.planned as f64 / self.decisions.max(1) as f64;
        self.outcome
    }
}

/// What a device of this kind needs to get so far and wait for its medium, beyond what going on needs: means of some places.
fn seek_times(device: &str) -> Result<SeekTimes, Failure> {
    static KNOWN: Mutex<Vec<(String, SeekTimes)>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, times)) = known.iter().find(|(known, _)| known == device) {
        return Ok(times.clone());
    }
    const LEN: u64 = 64 << 10;
    const PLACES: u64 = 64;
    let model = || sluice_device::model(device, 0).map_err(|error| Failure::Setup(error.to_string()));
    let capacity = model()?.capacity_bytes();
    let mut modelled = Modelled::new(model()?, capacity);
    let mut random = Random::new(0, 0x5ee4);
    let mut mean = |distance: u64| {
        let mut sum = 0;
        for _ in 0..PLACES {
            let from = random.below((capacity / 2).max(1)) / LEN * LEN;
            modelled.request(sluice_device::Op::Read, from, LEN);
            sum += modelled.request(sluice_device::Op::Read, from + distance, LEN);
        }
        sum / PLACES
    };
    let going_on = mean(LEN);
    let distances = (18..=50).map(|bits| 1_u64 << bits).filter(|distance| *distance <= capacity / 2 - LEN);
    let mut points: Vec<(u64, u64)> =
        distances.map(|distance| (distance, mean(distance).saturating_sub(going_on))).collect();
    points.push((LEN, 0));
    let times = SeekTimes::new(points).unwrap_or_else(|| SeekTimes::constant(0));
    known.push((device.to_owned(), times.clone()));
    Ok(times)
}

fn program(app: AppId) -> String {
    app.0.to_string()
}

impl Simulation<'_> {
    pub(super) fn plan_orchestration(&mut self) {
        let Some(orchestration) = &self.orchestration else { return };
        let window_ns = orchestration.orchestrator.settings().window_ns;
        for server in 0..self.servers {
            self.calendar.plan(window_ns, Event::Report(server));
        }
        self.calendar.plan(window_ns + window_ns / 4, Event::Decide);
        self.periodic += u64::from(self.servers) + 1;
    }

    /// A server reports.
    pub(super) fn report(&mut self, server: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        let node = self.io_nodes + server;
        let Some(orchestration) = &mut self.orchestration else { return Ok(()) };
        let here = &mut self.nodes[node as usize];
        let known = &mut orchestration.servers[server as usize];
        let clock = here.clock(now);
        if here.engine.gate().is_some_and(|gate| gate.held > 0) {
            orchestration.outcome.last_held_ns = now;
        }
        if let Some(device) = here.engine.locality(&mut orchestration.apps) {
            let plan = known.follower.in_force(clock.0);
            known.reports += 1;
            let programs = orchestration.apps.iter().map(|app| ProgramReport {
                program: program(app.app),
                requests: app.requests,
                bytes: app.bytes,
                distance: app.distance.into(),
                seek_ns: orchestration.seek.ns(app.distance.mean),
                reuse: app.reuse.into(),
                idle_ns: app.completed.map_or(0, |completed| clock.since(completed)),
            });
            let report = Report {
                server: server.into(),
                number: known.reports,
                window_ns: now - known.reported_ns,
                at: now,
                plan: ((plan > 0) == (known.plan > 0)).then_some(plan),
                distance: device.distance.into(),
                seek_ns: orchestration.seek.ns(device.distance.mean),
                others: device.others.into(),
                programs: programs.collect(),
                // Simulated programs say nothing of themselves.
                activities: Vec::new(),
            };
            (known.plan, known.reported_ns) = (plan, now);
            orchestration.outcome.note(&report);
            self.send_control(Control::Report(report));
        }
        self.plan_again(self.orchestration_window_ns(), Event::Report(server));
        Ok(())
    }

    fn orchestration_window_ns(&self) -> u64 {
        self.orchestration.as_ref().map_or(0, |it| it.orchestrator.settings().window_ns)
    }

    /// Plans a periodic event again, unless nothing but such events is left to happen: then the simulation is stuck, and must see it.
    pub(super) fn plan_again(&mut self, after_ns: u64, event: Event) {
        if self.calendar.left() >= self.periodic {
            self.calendar.plan(self.calendar.now() + after_ns, event);
        } else {
            self.periodic -= 1;
        }
    }

    /// The orchestrator decides.
    pub(super) fn decide(&mut self) {
        let now = self.calendar.now();
        let Some(orchestration) = self.orchestration.as_mut().filter(|it| now < it.ends_ns) else {
            // It does not happen again, and the other periodic events do not count on it.
            self.periodic -= 1;
            return;
        };
        let refused = |orchestrator: &Orchestrator| match orchestrator.phase() {
            sluice_adapt::orchestrator::Phase::Refused { gain } => Some(*gain),
            _ => None,
        };
        let before = refused(&orchestration.orchestrator);
        let plan = orchestration.orchestrator.decide(now);
        let after = refused(&orchestration.orchestrator);
        let outcome = &mut orchestration.outcome;
        outcome.refusals += u64::from(before.is_none() && after.is_some());
        outcome.gain = match orchestration.orchestrator.phase() {
            sluice_adapt::orchestrator::Phase::Keep { gain } => *gain,
            _ => after,
        }
        .or(outcome.gain);
        orchestration.decisions += 1;
        orchestration.planned += u64::from(orchestration.orchestrator.plan().is_some());
        if let Some(plan) = orchestration.orchestrator.plan() {
            let window_ns = plan.slices.iter().map(|slice| slice.len_ns).sum::<u64>() as f64;
            for slice in &plan.slices {
                if let [name] = &slice.programs[..]
                    && let Some(program) = outcome.program(name)
                {
                    program.planned += 1;
                    program.share += (slice.len_ns as f64 / window_ns - program.share) / program.planned as f64;
                }
            }
        }
        let period_ns = orchestration.orchestrator.period_ns();
        if let Some(plan) = plan {
            outcome.plans += u64::from(!plan.slices.is_empty());
            outcome.programs_max = outcome.programs_max.max(plan.slices.len().saturating_sub(1));
            for server in 0..self.servers {
                self.send_control(Control::Plan(server, plan.clone()));
            }
        }
        self.plan_again(period_ns, Event::Decide);
    }

    /// Messages are small: they take the latency of the network, and what faults add to it.
    fn send_control(&mut self, control: Control) {
        let (now, latency_ns) = (self.calendar.now(), self.latency_ns);
        let Some(orchestration) = &mut self.orchestration else { return };
        let random = &mut orchestration.random;
        let (loss, duplicate, delay_ns) =
            self.faults.as_ref().map_or((0, 0, 0), |it| (it.faults.loss, it.faults.duplicate, it.faults.delay_ns));
        let copies = 1 + u32::from(random.chance(duplicate));
        for _ in 0..copies {
            let (lost, late_ns) = (random.chance(loss), random.below(delay_ns + 1));
            if !lost {
                let message = orchestration.messages.insert(Some(control.clone()));
                self.calendar.plan(now + latency_ns + late_ns, Event::Control(message));
            }
        }
    }

    /// A message has come.
    pub(super) fn control(&mut self, message: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        let Some(orchestration) = &mut self.orchestration else { return Ok(()) };
        let control = orchestration.messages[message].take();
        orchestration.messages.free(message);
        match control {
            Some(Control::Report(report)) if now < orchestration.ends_ns => {
                orchestration.orchestrator.hear(now, &report);
                Ok(())
            }
            Some(Control::Plan(server, plan)) => self.follow(server, plan),
            _ => Ok(()),
        }
    }

    fn follow(&mut self, server: u32, plan: Plan) -> Result<(), Failure> {
        let now = self.calendar.now();
        let node = self.io_nodes + server;
        let Some(orchestration) = &mut self.orchestration else { return Ok(()) };
        let here = &mut self.nodes[node as usize];
        if here.down {
            return Ok(());
        }
        let clock = here.clock(now);
        let known = &mut orchestration.servers[server as usize];
        let plan = match known.follower.heard(clock.0, plan) {
            Follow::Ignore => return Ok(()),
            Follow::Clear => None,
            Follow::Set(plan) => Some(plan.gate(|name| name.parse().ok().map(AppId))),
        };
        here.engine.set_gate(clock, plan).map_err(|error| Failure::Violation(error.to_string()))?;
        self.pump(node)
    }

    /// A server has lost its memory.
    pub(super) fn watch_locality_again(&mut self, node: u32) {
        let server = node.wrapping_sub(self.io_nodes);
        if let Some(orchestration) = &self.orchestration
            && let Some(known) = orchestration.servers.get(server as usize)
        {
            let config = Orchestration::locality(known.starts.clone());
            self.nodes[node as usize].engine.watch_locality(Some(config));
        }
    }

    /// What the gates of all servers did.
    pub(super) fn orchestrated(&mut self) -> Option<OrchestrationOutcome> {
        let mut orchestration = self.orchestration.take()?;
        for node in &self.nodes[self.io_nodes as usize..] {
            let (changes, cuts) = node.engine.gate_changes();
            orchestration.outcome.slices += changes;
            orchestration.outcome.cuts += cuts;
        }
        Some(orchestration.outcome())
    }
}
