//! From reports to plans.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::activity::Activities;
use super::meter::{Meter, compare};
use super::verdict::{At, Server, Verdict, judge, mean, promise};
use super::{PROGRAMS_MAX, Plan, PlanSlice, Report, SERVERS_MAX, Settings, Slicing, Trial};

/// Format of what [`Orchestrator::save`] gives.
const VERSION: u32 = 1;
/// Programs that have a slice of their own; the gate's objects but for all others.
const OBJECTS_MAX: usize = sluice_core::OBJECTS_MAX - 1;
/// Windows without a report after which a server is gone, or a program.
const SILENT_WINDOWS: u64 = 4;
/// Decisions in a row that make a program eligible, or end that.
const PASSES: u32 = 2;
const FAILURES: u32 = 4;
/// A program whose requests came too late while it was served alone is not tried again for so many windows.
const SLOW_WINDOWS: u64 = 64;
/// When a program has gone, a plan that brought much is tried again with the others after so many windows.
const LEFT_WINDOWS: u64 = 16;
/// A program that computes, as it says, is known for so many windows after its last requests: about as long as a plan is kept.
const COMPUTING_WINDOWS: u64 = 240;
/// Of a window, in thousandths: what slices are rounded to; and what is left for newcomers where there are no others.
const GRAIN: u64 = 1_000;
const NEWCOMERS: u64 = 4;
/// Slices that differ by less than this share stay.
const CHANGE_MIN: f64 = 0.1;

/// What is going on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// Nothing to plan.
    Idle,
    /// What is done without a plan is measured.
    Watch,
    /// A plan is in force and measured.
    Trial {
        /// Bytes a second of a server without it.
        before: f64,
    },
    /// A plan is in force.
    Keep {
        /// By how much all are faster, if that was measured.
        gain: Option<f64>,
    },
    /// A plan did not bring enough.
    Refused {
        /// What it brought.
        gain: f64,
    },
}

#[derive(Debug, Default)]
struct Program {
    at: BTreeMap<u64, At>,
    /// Requests and bytes of the last reports, those before counting half.
    requests: f64,
    bytes: f64,
    heard: u64,
    /// Decisions in a row.
    passes: u32,
    failures: u32,
    eligible: bool,
    /// Not tried before then.
    slow_until: u64,
    activities: Activities,
}

impl Program {
    /// As it says itself, and nothing contradicts it.
    fn computes(&self, window_ns: u64) -> bool {
        self.activities.computes(&self.at, window_ns)
    }

    /// It is at an end or computes: it says so, or had a whole window and sent nothing.
    fn is_quiet(&self, now: u64, window_ns: u64) -> bool {
        let alive = self.heard.max(self.activities.began_io());
        self.computes(window_ns) || alive.saturating_add(window_ns) < now
    }
}

/// Why a saved state cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StateError {
    /// It is of another version.
    #[error(
        "the orchestrator's state is of version {0}, and this program reads version {VERSION}; delete it to begin anew"
    )]
    Version(u32),
    /// It makes no sense.
    #[error("the orchestrator's state is damaged ({0}); delete it to begin anew")]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    epoch: u64,
    number: u64,
    eligible: BTreeSet<String>,
    others: BTreeSet<String>,
    phase: Phase,
    until: u64,
    refusals: u32,
    /// A trial goes on with these: `SL_i` with `SeekTime_i`, a mean of the servers, and what was measured.
    #[serde(default)]
    apart: Option<(f64, f64)>,
    #[serde(default)]
    without: Vec<f64>,
    #[serde(default)]
    with: Vec<f64>,
}

/// Decides which programs are served alone, and when. See the [module](super).
#[derive(Debug)]
pub struct Orchestrator {
    settings: Settings,
    servers: BTreeMap<u64, Server>,
    programs: BTreeMap<String, Program>,
    /// Windows begin then.
    epoch: Option<u64>,
    number: u64,
    phase: Phase,
    /// The phase ends then, at the latest.
    until: u64,
    refusals: u32,
    /// Programs that have slices of their own in this phase, and those that have not.
    eligible: BTreeSet<String>,
    others: BTreeSet<String>,
    /// Those of them that had slices in plans that were refused.
    refused: BTreeSet<String>,
    /// What these programs do together while there is no plan, and while this one is tried.
    without: Meter,
    with: Meter,
    /// The newest report that was heard.
    latest: u64,
    plan: Option<Plan>,
    /// What was loaded holds until then, so that servers can report again.
    loaded_until: u64,
    /// What was loaded of servers without a plan, for those that have not been without one since.
    loaded: Option<(f64, f64)>,
}

impl Orchestrator {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Orchestrator {
        Orchestrator {
            settings,
            servers: BTreeMap::new(),
            programs: BTreeMap::new(),
            epoch: None,
            number: 0,
            phase: Phase::Idle,
            until: 0,
            refusals: 0,
            eligible: BTreeSet::new(),
            others: BTreeSet::new(),
            refused: BTreeSet::new(),
            without: Meter::default(),
            with: Meter::default(),
            latest: 0,
            plan: None,
            loaded_until: 0,
            loaded: None,
        }
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is going on.
    #[must_use]
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Programs that have slices of their own, or would have if plans were not refused.
    pub fn eligible(&self) -> impl Iterator<Item = &str> {
        self.eligible.iter().map(String::as_str)
    }

    /// Programs that compute, as they say, and are believed.
    pub fn computing(&self) -> impl Iterator<Item = &str> {
        let computes = |program: &Program| program.computes(self.settings.window_ns);
        self.programs.iter().filter(move |(_, program)| computes(program)).map(|(name, _)| name.as_str())
    }

    /// The plan that was made last, if servers should follow one.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// How often [`Orchestrator::decide`] should be called, in nanoseconds: twice in a window, so that one lost message changes
    /// nothing.
    #[must_use]
    pub fn period_ns(&self) -> u64 {
        self.settings.window_ns / 2
    }

    /// A server has reported. Reports that are doubled or late are ignored. O(programs of the report).
    pub fn hear(&mut self, now: u64, report: &Report) {
        if self.servers.len() >= SERVERS_MAX && !self.servers.contains_key(&report.server) {
            return;
        }
        let loaded = self.loaded;
        let server = self.servers.entry(report.server).or_insert_with(|| Server { apart: loaded, ..Server::default() });
        if report.number <= server.number {
            return;
        }
        (server.number, server.heard) = (report.number, now);
        self.latest = self.latest.max(report.at);
        if report.plan == Some(0)
            && let Some(distance) = self.settings.of(&report.distance)
        {
            server.apart = Some((distance, report.seek_ns as f64));
            let requests: u64 = report.programs.iter().map(|program| program.requests).sum();
            server.pace = Some(report.window_ns as f64 / requests.max(1) as f64);
        }
        server.others = self.settings.of(&report.others).or(server.others);
        for seen in &report.programs {
            if self.programs.len() >= PROGRAMS_MAX && !self.programs.contains_key(&seen.program) {
                continue;
            }
            let program = self.programs.entry(seen.program.clone()).or_default();
            program.heard = now;
            program.requests = program.requests / 2.0 + seen.requests as f64;
            program.bytes = program.bytes / 2.0 + seen.bytes as f64;
            let at = program.at.entry(report.server).or_default();
            (at.heard, at.seen) = (now, report.at.saturating_sub(seen.idle_ns));
            at.distance = self.settings.of(&seen.distance).map(|near| (near, seen.seek_ns as f64)).or(at.distance);
            at.reuse = self.settings.of(&seen.reuse).or(at.reuse);
        }
        for said in &report.activities {
            // What nobody has sent a request of is no program yet, whatever it says.
            if let Some(program) = self.programs.get_mut(&said.program) {
                program.activities.hear(report.server, said, report.at, now);
            }
        }
        let bytes: u64 = report.programs.iter().map(|program| program.bytes).sum();
        match report.plan {
            Some(0) => self.without.add(report, bytes),
            Some(_) => self.with.add(report, bytes),
            None => {}
        }
    }

    /// A server is gone.
    pub fn left(&mut self, server: u64) {
        self.servers.remove(&server);
        self.programs.values_mut().for_each(|program| {
            program.at.remove(&server);
        });
    }

    /// What all servers are to be told now; `None`: nothing. O(servers * programs).
    pub fn decide(&mut self, now: u64) -> Option<Plan> {
        self.forget(now);
        if now >= self.loaded_until {
            self.judge(now);
            let (eligible, others) = self.sets();
            if (&eligible, &others) != (&self.eligible, &self.others) {
                let is_same = eligible.union(&others).eq(self.eligible.union(&self.others));
                let is_less = eligible.is_subset(&self.eligible) && others.is_subset(&self.others);
                let are_several = eligible.len() + others.len() > 1 && !eligible.is_empty();
                if !is_same {
                    (self.without, self.refusals) = (Meter::starting(self.latest), 0);
                    self.refused.clear();
                }
                // Who is at the limit of the conditions comes and goes: that is no reason for another trial.
                let goes_on = match self.phase {
                    Phase::Trial { .. } => is_same && are_several,
                    // What brought much goes on for a while with those that are left.
                    Phase::Keep { gain: Some(gain) } => {
                        is_less && are_several && self.settings.trial.is_some_and(|trial| gain >= trial.promise_min)
                    }
                    Phase::Refused { .. } => is_same && eligible.is_subset(&self.refused),
                    _ => false,
                };
                (self.eligible, self.others) = (eligible, others);
                match self.phase {
                    _ if !goes_on => self.reconsider(),
                    Phase::Keep { .. } => {
                        self.until = self.until.min(now.saturating_add(LEFT_WINDOWS * self.settings.window_ns));
                    }
                    _ => {}
                }
            }
        }
        self.go_on(now);
        match self.phase {
            Phase::Trial { .. } | Phase::Keep { .. } => Some(self.make_plan(now)),
            Phase::Idle | Phase::Watch | Phase::Refused { .. } => {
                let plan = self.plan.take()?;
                self.number = now.max(self.number + 1);
                Some(Plan { number: self.number, from: now, expires: now, slices: Vec::new(), ..plan })
            }
        }
    }

    fn forget(&mut self, now: u64) {
        let window_ns = self.settings.window_ns;
        let oldest = now.saturating_sub(SILENT_WINDOWS * window_ns);
        self.servers.retain(|_, server| server.heard >= oldest);
        self.without.keep_only(&self.servers);
        self.with.keep_only(&self.servers);
        // While its plan is measured a program that computes would spoil that, and where slices are even its own would be lost.
        let keeps = matches!(self.phase, Phase::Keep { .. }) && self.settings.slicing == Slicing::Inverse;
        let (servers, eligible) = (&self.servers, &self.eligible);
        self.programs.retain(|name, program| {
            program.activities.forget(servers);
            let says_why = program.computes(window_ns) || program.activities.began_io() >= oldest.max(1);
            let lately = program.heard.saturating_add(COMPUTING_WINDOWS * window_ns) >= now;
            let waits = keeps && says_why && lately && eligible.contains(name);
            program.at.retain(|server, at| (waits || at.heard >= oldest) && servers.contains_key(server));
            waits || program.heard >= oldest || program.slow_until > now
        });
    }

    fn judge(&mut self, now: u64) {
        // What is measured, or is about to be, says more than what is reckoned of times between requests.
        let is_measured = matches!(self.phase, Phase::Watch | Phase::Trial { .. } | Phase::Keep { gain: Some(_) });
        for program in self.programs.values_mut() {
            let verdict = match self.settings.slicing {
                _ if program.at.is_empty() || program.slow_until > now => Verdict::Unknown,
                Slicing::Even => Verdict::Eligible,
                Slicing::Inverse => match judge(&self.settings, &self.servers, &program.at) {
                    Verdict::Slow if is_measured => Verdict::Eligible,
                    verdict => verdict,
                },
            };
            (program.passes, program.failures) = match verdict {
                Verdict::Eligible => (program.passes + 1, 0),
                _ => (0, program.failures + 1),
            };
            if verdict == Verdict::Slow && program.failures >= FAILURES {
                program.slow_until = now + SLOW_WINDOWS * self.settings.window_ns;
                program.at.values_mut().for_each(|at| at.reuse = None);
            }
            let bound = if program.eligible { program.failures < FAILURES } else { program.passes >= PASSES };
            program.eligible = bound;
        }
    }

    /// Programs with slices of their own, and the rest.
    fn sets(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let active = || self.programs.iter().filter(|(_, program)| !program.at.is_empty());
        let eligible: BTreeSet<String> =
            active().filter(|(_, program)| program.eligible).map(|(name, _)| name.clone()).take(OBJECTS_MAX).collect();
        let others = active().map(|(name, _)| name.clone()).filter(|name| !eligible.contains(name)).collect();
        (eligible, others)
    }

    /// Who is there has changed, or it is time to try again.
    fn reconsider(&mut self) {
        // One that is alone has the servers anyway.
        let alone = self.eligible.len() + self.others.len() < 2;
        self.phase = match self.settings.trial {
            _ if self.eligible.is_empty() || alone => Phase::Idle,
            Some(_) => Phase::Watch,
            None => Phase::Keep { gain: None },
        };
        self.until = u64::MAX;
    }

    fn go_on(&mut self, now: u64) {
        let Some(trial) = self.settings.trial else { return };
        match &self.phase {
            Phase::Watch => {
                let without = self.without.rates(&self.servers, trial.windows);
                // Where much is to be gained it shows at once; each window without a plan would cost that.
                let enough = if self.promise() >= trial.promise_min { 1 } else { trial.windows as usize };
                let before = mean(&without);
                if without.len() >= enough && before > 0.0 {
                    self.phase = Phase::Trial { before };
                    self.with = Meter::starting(self.next_window(now));
                    self.until = self.trial_ends(now, trial);
                }
            }
            Phase::Trial { .. } => {
                let without = self.without.rates(&self.servers, trial.windows);
                let with = self.with.rates(&self.servers, trial.windows);
                let Some(gain) = compare(&without, &with, &trial) else {
                    if now >= self.until {
                        self.give_up(now, trial);
                    }
                    return;
                };
                self.refusals = if gain < trial.gain_min { self.refusals + 1 } else { 0 };
                self.until = self.again(now, trial);
                let is_good = gain >= trial.gain_min;
                if !is_good {
                    self.refused.extend(self.eligible.iter().cloned());
                }
                self.phase = if is_good { Phase::Keep { gain: Some(gain) } } else { Phase::Refused { gain } };
            }
            Phase::Keep { .. } if now >= self.until => {
                // What was measured then is old.
                self.without = Meter::starting(now);
                self.reconsider();
            }
            Phase::Refused { .. } if now >= self.until => {
                self.refused.clear();
                self.reconsider();
            }
            _ => {}
        }
    }

    /// A trial says nothing, as where a server cannot follow plans: soon again, each time after a longer pause.
    fn give_up(&mut self, now: u64, trial: Trial) {
        let pause = (self.trial_ends(now, trial) - now) << self.refusals.min(8);
        self.refusals += 1;
        self.until = now.saturating_add(pause).min(self.again(now, trial));
        self.refused.extend(self.eligible.iter().cloned());
        self.without = Meter::starting(now);
        self.phase = Phase::Refused { gain: 0.0 };
    }

    /// When what is decided now is looked at again, in nanoseconds.
    fn again(&self, now: u64, trial: Trial) -> u64 {
        now.saturating_add(trial.again_ns << self.refusals.saturating_sub(1).min(8))
    }

    /// By when a trial that begins now has to be decided, in nanoseconds.
    fn trial_ends(&self, now: u64, trial: Trial) -> u64 {
        now.saturating_add(2 * (u64::from(trial.windows) + SILENT_WINDOWS) * self.settings.window_ns)
    }

    /// What slices are to bring by the device's times, as a share of what is done without.
    fn promise(&self) -> f64 {
        let programs = self.programs.values().filter(|program| !program.at.is_empty());
        promise(&self.servers, programs.map(|program| (&program.at, program.requests)))
    }

    /// When the next window begins.
    fn next_window(&self, now: u64) -> u64 {
        let (epoch, window_ns) = (self.epoch.unwrap_or(now), self.settings.window_ns);
        epoch + now.saturating_sub(epoch).div_ceil(window_ns) * window_ns
    }

    /// The plan for the next window, or the one in force for longer.
    fn make_plan(&mut self, now: u64) -> Plan {
        let window_ns = self.settings.window_ns;
        let epoch = *self.epoch.get_or_insert(now);
        let slices = self.slices(now);
        let before = self.plan.take().filter(|plan| plan.expires > now && is_near(&plan.slices, &slices));
        let (from, slices) = match before {
            Some(plan) => (plan.from, plan.slices),
            None => (self.next_window(now), slices),
        };
        self.number = now.max(self.number + 1);
        let expires = now.saturating_add(window_ns).max(from + 1);
        let plan = Plan { number: self.number, epoch, from, expires, slices, idle_ns: self.settings.idle_ns };
        self.plan = Some(plan.clone());
        plan
    }

    /// Who is served for how long in a window. Who is quiet leaves what it would have to the others.
    fn slices(&self, now: u64) -> Vec<PlanSlice> {
        let settings = &self.settings;
        let is_quiet =
            |name: &String| self.programs.get(name).is_none_or(|program| program.is_quiet(now, settings.window_ns));
        let reuse = |name: &String| {
            let known: Vec<f64> = self.programs.get(name)?.at.values().filter_map(|at| at.reuse).collect();
            (!known.is_empty()).then(|| mean(&known).max(1.0) / self.size([name]))
        };
        let others: Vec<f64> = self.servers.values().filter_map(|server| server.others).collect();
        let mut objects: Vec<(Vec<String>, Option<f64>)> =
            self.eligible.iter().map(|name| (vec![name.clone()], reuse(name))).collect();
        objects.push((Vec::new(), (!others.is_empty()).then(|| mean(&others).max(1.0) / self.size(&self.others))));
        let known: Vec<f64> = objects.iter().filter_map(|(_, reuse)| *reuse).collect();
        let usual = if known.is_empty() { 1.0 } else { mean(&known) };
        let others_of = |programs: &Vec<String>| self.others.iter().filter(|_| programs.is_empty()).collect::<Vec<_>>();
        let weight = |(programs, reuse): &(Vec<String>, Option<f64>)| match settings.slicing {
            Slicing::Even if programs.is_empty() && self.others.is_empty() => 0.0,
            Slicing::Inverse if programs.iter().chain(others_of(programs)).all(is_quiet) => 0.0,
            Slicing::Even => 1.0,
            Slicing::Inverse => 1.0 / reuse.unwrap_or(usual),
        };
        let weights: Vec<f64> = objects.iter().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let grain = (settings.window_ns / GRAIN).max(1);
        let share = |weight: f64| match weight {
            0.0 => NEWCOMERS * grain,
            weight => ((weight / sum).max(settings.share_min) * GRAIN as f64) as u64 * grain,
        };
        let mut lens: Vec<u64> = weights.iter().map(|&weight| share(weight).max(grain)).collect();
        // What rounding and least shares have left or taken is the longest one's.
        let longest = (0..lens.len()).max_by_key(|&at| lens[at]).unwrap_or(0);
        let rest: u64 = lens.iter().enumerate().filter(|(at, _)| *at != longest).map(|(_, len)| len).sum();
        lens[longest] = settings.window_ns.saturating_sub(rest).max(grain);
        objects.into_iter().zip(lens).map(|((programs, _), len_ns)| PlanSlice { programs, len_ns }).collect()
    }

    /// What a request of these programs counts: its bytes, if they count.
    fn size<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> f64 {
        let programs = names.into_iter().filter_map(|name| self.programs.get(name));
        let (requests, bytes) = programs.fold((0.0, 0.0), |sum, it| (sum.0 + it.requests, sum.1 + it.bytes));
        if self.settings.by_bytes && requests > 0.0 { (bytes / requests).max(1.0) } else { 1.0 }
    }

    /// What is to be known after a restart.
    ///
    /// # Panics
    /// Never: the state is made of numbers and texts.
    #[must_use]
    pub fn save(&self) -> serde_json::Value {
        let saved = Saved {
            version: VERSION,
            epoch: self.epoch.unwrap_or(0),
            number: self.number,
            eligible: self.eligible.clone(),
            others: self.others.clone(),
            phase: self.phase.clone(),
            until: self.until,
            refusals: self.refusals,
            apart: self.loaded_or_mean(),
            without: self.rates(&self.without),
            with: self.rates(&self.with),
        };
        serde_json::to_value(saved).expect("numbers and texts")
    }

    /// Goes on from what was saved: windows begin when they did, and what was found out is not tried again.
    ///
    /// # Errors
    /// See [`StateError`]; nothing changes then.
    pub fn load(&mut self, now: u64, saved: serde_json::Value) -> Result<(), StateError> {
        let version = saved.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0) as u32;
        if version != VERSION {
            return Err(StateError::Version(version));
        }
        let saved: Saved = serde_json::from_value(saved).map_err(|error| StateError::Damaged(error.to_string()))?;
        // The clock may have been set back: windows that begin in the future would let nobody begin until then.
        let (window_ns, ahead) = (self.settings.window_ns, saved.epoch.saturating_sub(now));
        let epoch = saved.epoch.saturating_sub(ahead.div_ceil(window_ns).saturating_mul(window_ns));
        (self.epoch, self.number) = (Some(epoch).filter(|epoch| *epoch > 0), saved.number);
        for name in saved.eligible.iter().chain(&saved.others).take(PROGRAMS_MAX) {
            // It has some windows to be heard of again.
            let eligible = saved.eligible.contains(name);
            let program = Program { heard: now, eligible, ..Program::default() };
            self.programs.insert(name.clone(), program);
        }
        (self.eligible, self.others) = (saved.eligible, saved.others);
        (self.phase, self.refusals) = (saved.phase, saved.refusals);
        // Nothing is to last longer than it would if it began now.
        self.until = match (&self.phase, self.settings.trial) {
            (Phase::Trial { .. }, Some(trial)) => self.trial_ends(now, trial),
            (_, Some(trial)) if saved.until != u64::MAX => saved.until.min(self.again(now, trial)),
            _ => saved.until,
        };
        if matches!(self.phase, Phase::Refused { .. }) {
            self.refused = self.eligible.clone();
        }
        (self.without, self.with) = (Meter::going_on(saved.without, now), Meter::going_on(saved.with, now));
        self.loaded = saved.apart;
        self.loaded_until = now + SILENT_WINDOWS * self.settings.window_ns;
        // It was kept by one that is set otherwise: what that tried, or did not, says nothing here.
        let is_of_trials = !matches!(self.phase, Phase::Idle | Phase::Keep { gain: None });
        if self.phase != Phase::Idle && is_of_trials != self.settings.trial.is_some() {
            self.reconsider();
        }
        Ok(())
    }

    fn rates(&self, meter: &Meter) -> Vec<f64> {
        meter.rates(&self.servers, self.settings.trial.map_or(0, |trial| trial.windows))
    }

    /// `SL_i` and `SeekTime_i` without a plan, as far as they are known.
    fn loaded_or_mean(&self) -> Option<(f64, f64)> {
        let apart: Vec<(f64, f64)> = self.servers.values().filter_map(|server| server.apart).collect();
        let (distances, seeks): (Vec<f64>, Vec<f64>) = apart.into_iter().unzip();
        if distances.is_empty() { self.loaded } else { Some((mean(&distances), mean(&seeks))) }
    }
}

/// Whether plans have the same objects and about the same slices.
fn is_near(old: &[PlanSlice], new: &[PlanSlice]) -> bool {
    let near = |(a, b): (&PlanSlice, &PlanSlice)| {
        a.programs == b.programs && a.len_ns.abs_diff(b.len_ns) as f64 <= CHANGE_MIN * a.len_ns as f64
    };
    old.len() == new.len() && old.iter().zip(new).all(near)
}
