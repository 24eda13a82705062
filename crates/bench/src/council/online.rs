//! The council at work in simulated systems, with the paper's bandits and with ours: the production council decides once a second
//! of virtual time what the I/O nodes do, and what that brings is what it learns from.
//!
//! Where [`bandits`](super::bandits) draw from what whole runs came to, a choice here has a past: what was queued under the
//! window before, and a second that varies more than a run. Each system is also simulated with every arm for good; a choice is
//! right if no other arm moves significantly more in the same fifty seconds. That says little where the past matters: what one arm has
//! put in order stays so under the others for a while. So it is also said whether all in all as much was moved as by the best arm.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Context;
use serde::Serialize;
use sluice_adapt::council::{EPSILON, Method as Bandits};
use sluice_cli::output;
use sluice_control::{ARMS, Action, Council, InForce, Kind, NodeId, Role, Seen, To, by_node};
use sluice_core::{EngineConfig, Op, PolicyConfig, Time, WindowFeatures};
use sluice_notation::counted;
use sluice_sim::scenario::Place;
use sluice_sim::{Options, Selector, Setup, simulate_with};

use super::Args;
use super::systems::{CHANGE_S, DRAWN, System};
use crate::bed::Runner;

/// Observations of a bin, one a second.
const BIN: usize = CHANGE_S;
const SECOND_NS: u64 = 1_000_000_000;
/// Windows of the engines' statistics in a second, of which those count that lie wholly under what was decided.
const WINDOWS: u64 = 10;
/// Student's t of two times three seeds, 95 %, two-sided.
const SEEDS: u64 = 3;
const T_4: f64 = 2.776;
/// As much as the best.
const EQUAL: f64 = 0.99;
/// Systems that were not drawn.
const CHOSEN: usize = 4;
/// Of the systems that are drawn, so many were looked at while the bandits were made what they are.
const SEEN: usize = 12;

/// Who decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Method {
    /// Nobody: this arm for good.
    Fixed(usize),
    /// Who knows: this arm, and another one once the load has changed.
    Knowing { first: usize, then: usize },
    /// The paper's bandits.
    EpsilonGreedy,
    /// Ours.
    Confidence,
}

fn methods() -> impl Iterator<Item = Method> {
    (0..ARMS.len()).map(Method::Fixed).chain([Method::EpsilonGreedy, Method::Confidence])
}

fn arm_name(arm: usize) -> String {
    match ARMS[arm] {
        (name, 0) => name.to_owned(),
        (name, window_ns) => format!("{name} {} ms", window_ns as f64 / 1e6),
    }
}

/// An I/O node, as the council's agent on it sees it.
struct Forwarder {
    arm: usize,
    seen: Seen,
}

/// What announces to a council, and does what it says.
struct Online<'a> {
    method: Method,
    council: Council,
    system: &'a System,
    nodes: Vec<Forwarder>,
    policies: Vec<PolicyConfig>,
    /// What all are to do, and since when.
    wanted: (usize, Time),
    /// Bytes that were moved in each second, and by how many windows of nodes each arm was in force.
    moved: Vec<u64>,
    used: Vec<Vec<u32>>,
}

fn nothing(servers: u32, arm: usize) -> Seen {
    let (name, window_ns) = ARMS[arm];
    Seen::nothing(Kind::Forwarder, servers, InForce { policy: name.to_owned(), window_ns })
}

impl Online<'_> {
    fn new(system: &System, method: Method, seed: u64) -> anyhow::Result<Online<'_>> {
        let policy = |(name, window_ns): &(&str, u64)| {
            let policy = PolicyConfig::parse(name).map_err(anyhow::Error::msg)?;
            if *window_ns == 0 {
                return Ok(policy);
            }
            // As the scenario has it: the paper's windows idle.
            let settings = [("window", format!("{window_ns}ns")), ("alone_after", "0".to_owned())];
            settings.iter().try_fold(policy, |policy, (key, value)| policy.with(key, value).map_err(anyhow::Error::msg))
        };
        let bandits = match method {
            Method::EpsilonGreedy => Bandits::EpsilonGreedy { epsilon: EPSILON, seed },
            Method::Fixed(_) | Method::Knowing { .. } | Method::Confidence => Bandits::Confidence,
        };
        // Where systems begin.
        let first = ARMS.iter().position(|(name, _)| *name == "noop").context("arrival order is no arm")?;
        let wanted = match method {
            Method::Fixed(arm) | Method::Knowing { first: arm, .. } => arm,
            Method::EpsilonGreedy | Method::Confidence => first,
        };
        Ok(Online {
            method,
            council: Council::new(Box::new(by_node)).learning(bandits),
            system,
            nodes: (0..system.io_nodes)
                .map(|_| Forwarder { arm: first, seen: nothing(system.servers, first) })
                .collect(),
            policies: ARMS.iter().map(policy).collect::<anyhow::Result<_>>()?,
            wanted: (wanted, Time::ZERO),
            moved: vec![0; seconds(system)],
            used: vec![vec![0; ARMS.len()]; seconds(system)],
        })
    }

    /// A node's second is over: it announces, and when all have, the council decides.
    fn announce(&mut self, number: usize, now: Time) {
        let node = &mut self.nodes[number];
        let mut seen = std::mem::replace(&mut node.seen, nothing(self.system.servers, node.arm));
        let second = (now.0 / SECOND_NS) as usize - 1;
        seen.pattern = Some(self.system.pattern(seen.majority() == Op::Write, second));
        self.council.announced(now, NodeId(number as u64), &seen);
    }

    /// Lets the council decide when it wants to.
    fn decide(&mut self, now: Time) {
        if self.council.due().is_none_or(|due| due > now) {
            return;
        }
        for directive in self.council.decide(now) {
            let Action::Policy { name, window_ns } = directive.action else { continue };
            let arm = ARMS.iter().position(|arm| (arm.0, arm.1) == (name.as_str(), window_ns));
            if let (To::Every(Kind::Forwarder), Some(arm)) = (directive.to, arm) {
                self.wanted = (arm, now);
            }
        }
    }
}

impl Selector for Online<'_> {
    fn window_closed(
        &mut self,
        place: Place,
        window: &WindowFeatures,
        _: &PolicyConfig,
        _: &EngineConfig,
    ) -> Option<Setup> {
        let Place::IoNode(number) = place else { return None };
        let (number, now) = (number as usize, window.end);
        let second = (window.start.0 / SECOND_NS) as usize;
        if let Some(moved) = self.moved.get_mut(second) {
            *moved += window.ops.iter().map(|op| op.moved).sum::<u64>();
            self.used[second][self.nodes[number].arm] += 1;
        }
        self.nodes[number].seen.add(window, false);
        match self.method {
            Method::Fixed(_) => {}
            Method::Knowing { then, .. } => {
                if second >= CHANGE_S && self.wanted.0 != then {
                    self.wanted = (then, now);
                }
            }
            Method::EpsilonGreedy | Method::Confidence => {
                if now.0 % SECOND_NS == 0 {
                    self.announce(number, now);
                }
                self.decide(now);
            }
        }
        // What is decided at the end of a window comes to all of them at the end of the next one.
        let (wanted, since) = self.wanted;
        let node = &mut self.nodes[number];
        if node.arm == wanted || (now <= since && since != Time::ZERO) {
            return None;
        }
        (node.arm, node.seen) = (wanted, nothing(self.system.servers, wanted));
        Some(Setup { policy: self.policies[wanted].clone(), limits: None })
    }
}

/// How long a system runs: until fifty observations of what it does at last have been made, and fifty more, which are judged.
fn seconds(system: &System) -> usize {
    2 * BIN + if system.changes() { CHANGE_S } else { 0 }
}

/// What a simulation came to: bytes of each bin, and the share of each arm.
#[derive(Clone)]
struct Ran {
    moved: Vec<f64>,
    used: Vec<Vec<f64>>,
}

fn ran(system: &System, method: Method, seed: u64, stop: &AtomicBool) -> anyhow::Result<Ran> {
    let mut online = Online::new(system, method, seed)?;
    let options = Options { until_ns: seconds(system) as u64 * SECOND_NS, ..Options::default() };
    let scenario = system.scenario(seed, WINDOWS)?;
    simulate_with(&scenario, options, &mut online, stop).with_context(|| system.name.clone())?;
    anyhow::ensure!(online.moved.last().is_some_and(|moved| *moved > 0), "{} has ended early", system.name);
    let used = |seconds: &[Vec<u32>]| {
        let sum = |arm: usize| seconds.iter().map(|second| f64::from(second[arm])).sum::<f64>();
        let all: f64 = (0..ARMS.len()).map(sum).sum();
        (0..ARMS.len()).map(|arm| sum(arm) / all.max(1.0)).collect()
    };
    Ok(Ran {
        moved: online.moved.chunks(BIN).map(|seconds| seconds.iter().sum::<u64>() as f64).collect(),
        used: online.used.chunks(BIN).map(used).collect(),
    })
}

/// Which systems, which method, which seed.
type Job = (usize, Method, u64);

/// Simulates them, on all processors.
fn simulate_all(systems: &[System], jobs: &[Job], first_seed: u64, runner: &Runner) -> anyhow::Result<Vec<Ran>> {
    let bar = output::bar(jobs.len() as u64, "{bar:40} {pos}/{len} simulated systems, {eta} left");
    let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![None; jobs.len()]));
    let work = || -> anyhow::Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((system, method, seed)) = jobs.get(at) else { return Ok(()) };
            let ran = ran(&systems[*system], *method, first_seed + seed, &runner.stop)?;
            found.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[at] = Some(ran);
            bar.inc(1);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect::<anyhow::Result<Vec<()>>>()
    })?;
    bar.finish_and_clear();
    let found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    found.into_iter().map(|ran| ran.context("a system was not simulated")).collect()
}

/// Fifty observations: the share of right choices, and the throughput over that of the best arm.
#[derive(Clone, Copy, Debug, Serialize)]
struct Bin {
    right: f64,
    of_best: f64,
    /// Right, or it has moved as much as the best arm for good: then it is as if it had been chosen.
    or_equal: f64,
}

#[derive(Serialize)]
struct Compared {
    /// In the order of drawing, for `--system`.
    number: usize,
    system: String,
    /// How it came into the list.
    set: Set,
    /// Its load changes.
    changes: bool,
    /// The arm that moved most while it was judged, and million bytes a second of it.
    best: String,
    best_mb_s: f64,
    arrival_order: Bin,
    /// Who knows the best arm, and pays for going over to it alone.
    knowing: Bin,
    paper: Bin,
    ours: Bin,
    /// Ours in the first fifty observations of what the system does at last: they are not judged.
    first: Bin,
    paper_first: Bin,
}

/// Whether a system is one of those that a mean is of.
type Belongs = fn(&Compared) -> bool;

/// Means of some systems.
#[derive(Serialize)]
struct Means {
    set: &'static str,
    systems: usize,
    knowing: Bin,
    paper: Bin,
    ours: Bin,
    first: Bin,
    paper_first: Bin,
}

/// What was learned while the systems ran.
#[derive(Serialize)]
pub(super) struct Report {
    seeds: u64,
    /// Observations of a bin, one a second.
    bin: usize,
    /// The worst first.
    systems: Vec<Compared>,
    means: Vec<Means>,
    /// Means of all; no system counts for more than 100 % of its best arm.
    pub(super) right: f64,
    or_equal: f64,
    pub(super) of_best: f64,
    pub(super) paper_right: f64,
    pub(super) paper_of_best: f64,
    pub(super) met: bool,
}

/// How a system came into the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Set {
    /// One of the four.
    Chosen,
    /// Drawn, and seen while the bandits were made what they are.
    Drawn,
    /// Drawn, and looked at when all was done.
    Unseen,
    /// Drawn from another seed, when the bandits were done.
    Later,
    /// Drawn from a third seed, when equal votes were counted in bytes.
    Third,
    /// Drawn from a fourth seed, when that a load is another one depended on what is moved.
    Fourth,
    /// Drawn from a fifth and a sixth seed, when arms were judged only after what was under way before them was served.
    Fifth,
}

impl Set {
    fn of(number: usize, drawn: usize) -> Set {
        match number.checked_sub(CHOSEN) {
            None => Set::Chosen,
            Some(at) if at >= drawn => match (at - drawn) / DRAWN {
                0 => Set::Later,
                1 => Set::Third,
                2 => Set::Fourth,
                _ => Set::Fifth,
            },
            Some(at) if at >= SEEN => Set::Unseen,
            Some(_) => Set::Drawn,
        }
    }

    fn mark(self) -> char {
        match self {
            Set::Chosen => '*',
            Set::Drawn => ' ',
            Set::Unseen => '+',
            Set::Later => '#',
            Set::Third => '=',
            Set::Fourth => '-',
            Set::Fifth => '~',
        }
    }
}

/// What every arm brings that is in force for good, in the bins of a system.
struct Arms<'a>(Vec<&'a [Ran]>);

/// Mean, and square of its standard error.
fn moved(runs: &[Ran], at: usize) -> (f64, f64) {
    let n = runs.len() as f64;
    let mean = runs.iter().map(|ran| ran.moved[at]).sum::<f64>() / n;
    (mean, runs.iter().map(|ran| (ran.moved[at] - mean).powi(2)).sum::<f64>() / (n - 1.0) / n)
}

impl Arms<'_> {
    fn best(&self, at: usize) -> usize {
        let of = |arm: usize| moved(self.0[arm], at).0;
        (0..self.0.len()).max_by(|&a, &b| of(a).total_cmp(&of(b))).unwrap_or(0)
    }

    fn judge(&self, runs: &[Ran], at: usize) -> Bin {
        let (most, error) = moved(self.0[self.best(at)], at);
        let is_right = |arm: usize| {
            let (mean, own) = moved(self.0[arm], at);
            most - mean <= T_4 * (error + own).sqrt()
        };
        let share = |ran: &Ran| (0..ARMS.len()).filter(|arm| is_right(*arm)).map(|arm| ran.used[at][arm]).sum::<f64>();
        let right = runs.iter().map(share).sum::<f64>() / runs.len() as f64;
        let of_best = moved(runs, at).0 / most;
        Bin { right, of_best, or_equal: if of_best >= EQUAL { 1.0 } else { right } }
    }
}

fn mean(set: &'static str, of: &[&Compared]) -> Means {
    let bin = |bin: fn(&Compared) -> Bin| {
        let mean = |value: fn(Bin) -> f64| of.iter().map(|it| value(bin(it))).sum::<f64>() / of.len() as f64;
        let of_best = mean(|bin| bin.of_best.min(1.0));
        Bin { right: mean(|bin| bin.right), or_equal: mean(|bin| bin.or_equal), of_best }
    };
    Means {
        set,
        systems: of.len(),
        knowing: bin(|it| it.knowing),
        paper: bin(|it| it.paper),
        ours: bin(|it| it.ours),
        first: bin(|it| it.first),
        paper_first: bin(|it| it.paper_first),
    }
}

/// The systems that are asked for, and their numbers.
fn wanted(args: &Args) -> anyhow::Result<(Vec<usize>, Vec<System>)> {
    let mut systems = System::chosen();
    systems.extend(System::drawn(args.systems as usize));
    systems.extend(System::drawn_later(args.later as usize));
    if let Some(number) = args.system.iter().find(|number| **number >= systems.len()) {
        anyhow::bail!("there is no system {number}: they are numbered from 0 to {}", systems.len() - 1);
    }
    let is_wanted = |number: usize| args.system.is_empty() || args.system.contains(&number);
    Ok(systems.into_iter().enumerate().filter(|(number, _)| is_wanted(*number)).unzip())
}

/// Lets both work, beside every arm for good.
///
/// # Errors
/// If a system cannot be simulated, or it was interrupted.
pub(super) fn judge(args: &Args) -> anyhow::Result<Report> {
    let runner = Runner::new()?;
    let (numbers, systems) = wanted(args)?;
    let all = |methods: Vec<(usize, Method)>| -> Vec<Job> {
        methods.into_iter().flat_map(|(system, method)| (0..SEEDS).map(move |seed| (system, method, seed))).collect()
    };
    let jobs = all((0..systems.len()).flat_map(|system| methods().map(move |method| (system, method))).collect());
    let runs = simulate_all(&systems, &jobs, args.seed, &runner)?;
    let seeds = SEEDS as usize;
    let of = |system: usize, method: usize| {
        let from = (system * methods().count() + method) * seeds;
        &runs[from..from + seeds]
    };
    let arms: Vec<Arms<'_>> =
        (0..systems.len()).map(|system| Arms((0..ARMS.len()).map(|arm| of(system, arm)).collect())).collect();
    let last = |system: usize| seconds(&systems[system]) / BIN - 1;
    // Before the change, and after it.
    let known = |system: usize| {
        let best = |at: usize| arms[system].best(at);
        let first = if systems[system].changes() { best(0) } else { best(last(system)) };
        (system, Method::Knowing { first, then: best(last(system)) })
    };
    let knowing = simulate_all(&systems, &all((0..systems.len()).map(known).collect()), args.seed, &runner)?;
    let compare = |number: usize| {
        let (arms, at) = (&arms[number], last(number));
        let arrival_order = ARMS.iter().position(|(name, _)| *name == "noop").unwrap_or(0);
        let (paper, ours) = (of(number, ARMS.len()), of(number, ARMS.len() + 1));
        Compared {
            number: numbers[number],
            system: systems[number].name.clone(),
            set: Set::of(numbers[number], args.systems as usize),
            changes: systems[number].changes(),
            best: arm_name(arms.best(at)),
            best_mb_s: moved(arms.0[arms.best(at)], at).0 / BIN as f64 / 1e6,
            arrival_order: arms.judge(of(number, arrival_order), at),
            knowing: arms.judge(&knowing[number * seeds..(number + 1) * seeds], at),
            paper: arms.judge(paper, at),
            ours: arms.judge(ours, at),
            first: arms.judge(ours, at - 1),
            paper_first: arms.judge(paper, at - 1),
        }
    };
    let mut compared: Vec<Compared> = (0..systems.len()).map(compare).collect();
    compared.sort_by(|a, b| a.ours.of_best.total_cmp(&b.ours.of_best));
    let some: [(&'static str, Belongs); 10] = [
        ("* chosen", |it| it.set == Set::Chosen),
        ("drawn", |it| it.set == Set::Drawn),
        ("+ drawn, and first looked at when the bandits were done", |it| it.set == Set::Unseen),
        ("# drawn later from another seed", |it| it.set == Set::Later),
        ("= drawn from a third seed", |it| it.set == Set::Third),
        ("- drawn from a fourth seed", |it| it.set == Set::Fourth),
        ("~ drawn from a fifth and a sixth seed", |it| it.set == Set::Fifth),
        ("of the first draw", |it| matches!(it.set, Set::Chosen | Set::Drawn | Set::Unseen)),
        ("whose load changes", |it| it.changes),
        ("all", |_| true),
    ];
    let means: Vec<Means> = some
        .into_iter()
        .map(|(name, is_one)| mean(name, &compared.iter().filter(|it| is_one(it)).collect::<Vec<_>>()))
        .filter(|means| means.systems > 0)
        .collect();
    let Means { ours, paper, .. } = means.last().context("no systems")?;
    Ok(Report {
        seeds: SEEDS,
        bin: BIN,
        right: ours.right,
        or_equal: ours.or_equal,
        of_best: ours.of_best,
        paper_right: paper.or_equal,
        paper_of_best: paper.of_best,
        met: ours.or_equal >= super::bandits::BAR_RIGHT && ours.of_best >= super::bandits::BAR_OF_BEST,
        systems: compared,
        means,
    })
}

fn words(bins: &[Bin]) -> String {
    let word =
        |bin: &Bin| format!("{:>5.0}{:>4.0}{:>6.1}", bin.right * 100.0, bin.or_equal * 100.0, bin.of_best * 100.0);
    bins.iter().map(word).collect()
}

pub(super) fn print(report: &Report) {
    let Report { seeds, systems, means, right, or_equal, of_best, paper_right, paper_of_best, met, .. } = report;
    output::line(format_args!(
        "\nthe council at work in {}, {}; of observations 51 to 100 of what a system does at last, one a \
         second,\nand of the {BIN} before: right choices, right ones or as much moved, throughput over that of the arm that is best \
         for good; in %\n\n{:<15}{:<15}{:<15}{:<15}{:<15}",
        counted(systems.len() as u64, "simulated system"),
        counted(*seeds, "seed"),
        "    ours",
        "    paper",
        "    knowing",
        "  ours before",
        "  paper before",
    ));
    for it in systems {
        let bins = words(&[it.ours, it.paper, it.knowing, it.first, it.paper_first]);
        output::line(format_args!(
            "{bins} {} {:>2} {}: {}, {:.1} MB/s",
            it.set.mark(),
            it.number,
            it.system,
            it.best,
            it.best_mb_s
        ));
    }
    output::line(format_args!("\nmeans; no system counts for more than 100 % of its best arm\n"));
    for it in means {
        let bins = words(&[it.ours, it.paper, it.knowing, it.first, it.paper_first]);
        output::line(format_args!("{bins} {:>2} {}", it.systems, it.set));
    }
    output::line(format_args!(
        "\nbars, mean of all: {:.0} % right or equal, {:.0} % of the best: {} ({:.1} %, {:.1} %; right by the arm alone: {:.1} %; paper's \
         bandits: {:.1} %, {:.1} %)",
        super::bandits::BAR_RIGHT * 100.0,
        super::bandits::BAR_OF_BEST * 100.0,
        if *met { "met" } else { "missed" },
        or_equal * 100.0,
        of_best * 100.0,
        right * 100.0,
        paper_right * 100.0,
        paper_of_best * 100.0
    ));
}
