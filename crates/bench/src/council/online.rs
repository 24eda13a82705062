//! The council at work in simulated systems, with the paper's bandits and with ours: the production council decides once a second
//! of virtual time what the I/O nodes do, and what that brings is what it learns from.
//!
//! Where [`bandits`](super::bandits) draw from what whole runs came to, a choice here has a past: what was queued under the
//! window before, and a second that varies more than a run. Each system is also simulated with every arm for good; a choice is
//! right if no other arm moves significantly more in the same fifty seconds.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Context;
use serde::Serialize;
use sluice_adapt::council::{EPSILON, Method as Bandits, Pattern};
use sluice_cli::output;
use sluice_control::{ARMS, Action, Council, InForce, Kind, NodeId, Role, Seen, To, by_node};
use sluice_core::{EngineConfig, PolicyConfig, Time, WindowFeatures};
use sluice_sim::scenario::{Place, Plan, Scenario};
use sluice_sim::{Options, Selector, Setup, simulate_with};

use super::Args;
use super::experiments::SCENARIO;
use crate::bed::Runner;

const IO_NODES: usize = 8;
const SERVERS: u32 = 4;
/// Observations, one a second, and those of a bin.
const SECONDS: usize = 100;
const BIN: usize = 50;
const BINS: usize = SECONDS / BIN;
const SECOND_NS: u64 = 1_000_000_000;
/// Windows of the engines' statistics in a second, of which those count that lie wholly under what was decided.
const WINDOWS: u64 = 10;
/// Student's t of two times three seeds, 95 %, two-sided.
const SEEDS: u64 = 3;
const T_4: f64 = 2.776;

/// A system.
struct Case {
    name: &'static str,
    /// Of the first application.
    pattern: Pattern,
    /// What each application does, and when it begins.
    apps: &'static [(&'static str, &'static str)],
}

const CASES: [Case; 4] = [
    Case {
        name: "strided reads of 256 KiB",
        pattern: Pattern::SharedStrided,
        apps: &[("op = 'read'\npattern = 'strided'\nfiles = 'shared'\nrequest = '256K'", "0s")],
    },
    Case {
        name: "contiguous writes of 256 KiB to a shared file",
        pattern: Pattern::SharedContiguous,
        apps: &[("op = 'write'\npattern = 'contiguous'\nfiles = 'shared'\nrequest = '256K'", "0s")],
    },
    Case {
        name: "strided writes of 256 KiB",
        pattern: Pattern::SharedStrided,
        apps: &[("op = 'write'\npattern = 'strided'\nfiles = 'shared'\nrequest = '256K'", "0s")],
    },
    Case {
        name: "strided reads, from 50 s on writes of own files beside them",
        pattern: Pattern::SharedStrided,
        apps: &[
            ("op = 'read'\npattern = 'strided'\nfiles = 'shared'\nrequest = '32K'", "0s"),
            ("op = 'write'\npattern = 'contiguous'\nfiles = 'per-process'\nrequest = '256K'", "50s"),
        ],
    },
];

/// Who decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Method {
    /// Nobody: this arm for good.
    Fixed(usize),
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

fn scenario(case: &Case, seed: u64) -> anyhow::Result<Scenario> {
    let mut table: toml::Table = SCENARIO.parse().context("scenarios/twins-windows.toml")?;
    ["axis", "report", "scale", "application"].iter().for_each(|key| drop(table.remove(*key)));
    let mut text = table.to_string();
    for (number, (phase, start)) in case.apps.iter().enumerate() {
        text.push_str(&format!(
            "[[application]]\nname = 'app{number}'\nprocesses = 128\nstart = '{start}'\n[[application.phase]]\ndata = '256M'\n{phase}\n"
        ));
    }
    let settings = [
        ("seed", seed.to_string()),
        ("io_nodes.count", IO_NODES.to_string()),
        ("io_nodes.policy", "noop".to_owned()),
        ("io_nodes.window", format!("{}ms", 1_000 / WINDOWS)),
        ("servers.count", SERVERS.to_string()),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value));
    Ok(Plan::parse(&text, case.name, Path::new(""), &settings, &[])?.runs[0].scenario.clone())
}

/// An I/O node, as the council's agent on it sees it.
struct Forwarder {
    arm: usize,
    seen: Seen,
}

/// What announces to a council, and does what it says.
struct Online {
    method: Method,
    council: Council,
    pattern: Pattern,
    nodes: Vec<Forwarder>,
    policies: Vec<PolicyConfig>,
    /// What all are to do, and since when.
    wanted: (usize, Time),
    /// Bytes that were moved in each second, and by how many windows of nodes each arm was in force.
    moved: Vec<u64>,
    used: Vec<Vec<u32>>,
}

fn nothing(arm: usize) -> Seen {
    let (name, window_ns) = ARMS[arm];
    Seen::nothing(Kind::Forwarder, SERVERS, InForce { policy: name.to_owned(), window_ns })
}

impl Online {
    fn new(case: &Case, method: Method, seed: u64) -> anyhow::Result<Online> {
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
            Method::Fixed(_) | Method::Confidence => Bandits::Confidence,
        };
        // Where systems begin.
        let first = ARMS.iter().position(|(name, _)| *name == "noop").context("arrival order is no arm")?;
        let wanted = if let Method::Fixed(arm) = method { arm } else { first };
        Ok(Online {
            method,
            council: Council::new(Box::new(by_node)).learning(bandits),
            pattern: case.pattern,
            nodes: (0..IO_NODES).map(|_| Forwarder { arm: first, seen: nothing(first) }).collect(),
            policies: ARMS.iter().map(policy).collect::<anyhow::Result<_>>()?,
            wanted: (wanted, Time::ZERO),
            moved: vec![0; SECONDS],
            used: vec![vec![0; ARMS.len()]; SECONDS],
        })
    }

    /// A node's second is over: it announces, and when all have, the council decides.
    fn announce(&mut self, number: usize, now: Time) {
        let node = &mut self.nodes[number];
        let mut seen = std::mem::replace(&mut node.seen, nothing(node.arm));
        seen.pattern = Some(self.pattern);
        self.council.announced(now, NodeId(number as u64), &seen);
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

impl Selector for Online {
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
        if now.0 % SECOND_NS == 0 && !matches!(self.method, Method::Fixed(_)) {
            self.announce(number, now);
        }
        // What is decided at the end of a window comes to all of them at the end of the next one.
        let (wanted, since) = self.wanted;
        let node = &mut self.nodes[number];
        if node.arm == wanted || (now <= since && since != Time::ZERO) {
            return None;
        }
        (node.arm, node.seen) = (wanted, nothing(wanted));
        Some(Setup { policy: self.policies[wanted].clone(), limits: None })
    }
}

/// What a simulation came to: bytes of each bin, and the share of each arm.
#[derive(Clone)]
struct Ran {
    moved: [f64; BINS],
    used: [Vec<f64>; BINS],
}

fn ran(case: &Case, method: Method, seed: u64, stop: &AtomicBool) -> anyhow::Result<Ran> {
    let mut online = Online::new(case, method, seed)?;
    let options = Options { until_ns: SECONDS as u64 * SECOND_NS, ..Options::default() };
    simulate_with(&scenario(case, seed)?, options, &mut online, stop).with_context(|| case.name)?;
    let bin = |at: usize| at * BIN..(at + 1) * BIN;
    let used = |at: usize| {
        let sums = |arm: usize| online.used[bin(at)].iter().map(|second| f64::from(second[arm])).sum::<f64>();
        let all: f64 = (0..ARMS.len()).map(sums).sum();
        (0..ARMS.len()).map(|arm| sums(arm) / all.max(1.0)).collect()
    };
    Ok(Ran {
        moved: std::array::from_fn(|at| online.moved[bin(at)].iter().sum::<u64>() as f64),
        used: std::array::from_fn(used),
    })
}

/// Fifty observations: the share of right choices, and the throughput over that of the best arm.
#[derive(Clone, Copy, Debug, Serialize)]
struct Bin {
    right: f64,
    of_best: f64,
}

#[derive(Serialize)]
struct Compared {
    case: &'static str,
    /// The arm that moved most, in each bin.
    best: [String; BINS],
    /// Million bytes a second of it.
    best_mb_s: [f64; BINS],
    arrival_order: [Bin; BINS],
    paper: [Bin; BINS],
    ours: [Bin; BINS],
}

/// What was learned while the systems ran.
#[derive(Serialize)]
pub(super) struct Report {
    seeds: u64,
    /// Observations of a bin, one a second.
    bin: usize,
    cases: Vec<Compared>,
    /// Means of all cases in the last bin.
    pub(super) right: f64,
    pub(super) of_best: f64,
    pub(super) paper_right: f64,
    pub(super) paper_of_best: f64,
    pub(super) met: bool,
}

/// `runs`: of each method all seeds, in their order.
fn compare(case: &Case, runs: &[(Method, Vec<Ran>)]) -> Compared {
    let of = |method: Method| runs.iter().find(|(known, _)| *known == method).map_or(&[][..], |(_, ran)| ran);
    let n = SEEDS as f64;
    // Mean, and square of its standard error.
    let moved = |method: Method, at: usize| {
        let values: Vec<f64> = of(method).iter().map(|ran| ran.moved[at]).collect();
        let mean = values.iter().sum::<f64>() / n;
        (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0) / n)
    };
    let best = |at: usize| {
        let arms = 0..ARMS.len();
        arms.max_by(|&a, &b| moved(Method::Fixed(a), at).0.total_cmp(&moved(Method::Fixed(b), at).0)).unwrap_or(0)
    };
    let bin = |method: Method, at: usize| {
        let (most, error) = moved(Method::Fixed(best(at)), at);
        let is_right = |arm: usize| {
            let (mean, own) = moved(Method::Fixed(arm), at);
            most - mean <= T_4 * (error + own).sqrt()
        };
        let share = |ran: &Ran| (0..ARMS.len()).filter(|arm| is_right(*arm)).map(|arm| ran.used[at][arm]).sum::<f64>();
        Bin { right: of(method).iter().map(share).sum::<f64>() / n, of_best: moved(method, at).0 / most }
    };
    let arrival_order = ARMS.iter().position(|(name, _)| *name == "noop").unwrap_or(0);
    Compared {
        case: case.name,
        best: std::array::from_fn(|at| arm_name(best(at))),
        best_mb_s: std::array::from_fn(|at| moved(Method::Fixed(best(at)), at).0 / BIN as f64 / 1e6),
        arrival_order: std::array::from_fn(|at| bin(Method::Fixed(arrival_order), at)),
        paper: std::array::from_fn(|at| bin(Method::EpsilonGreedy, at)),
        ours: std::array::from_fn(|at| bin(Method::Confidence, at)),
    }
}

/// Lets both work, beside every arm for good.
///
/// # Errors
/// If a system cannot be simulated, or it was interrupted.
pub(super) fn judge(args: &Args) -> anyhow::Result<Report> {
    let runner = Runner::new()?;
    let seeds = args.seed..args.seed + SEEDS;
    let jobs: Vec<(usize, Method, u64)> = (0..CASES.len())
        .flat_map(|case| methods().flat_map(move |method| (0..SEEDS).map(move |seed| (case, method, seed))))
        .collect();
    let bar = output::bar(jobs.len() as u64, "{bar:40} {pos}/{len} simulated systems, {eta} left");
    let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![None; jobs.len()]));
    let work = || -> anyhow::Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((case, method, seed)) = jobs.get(at) else { return Ok(()) };
            let ran = ran(&CASES[*case], *method, seeds.start + seed, &runner.stop)?;
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
    let mut runs: Vec<Vec<(Method, Vec<Ran>)>> =
        CASES.iter().map(|_| methods().map(|method| (method, Vec::new())).collect()).collect();
    for ((case, method, _), ran) in jobs.into_iter().zip(found) {
        let of = runs[case].iter_mut().find(|(known, _)| *known == method);
        of.context("a method that is none")?.1.push(ran.context("a system was not simulated")?);
    }
    let cases: Vec<Compared> = CASES.iter().zip(&runs).map(|(case, runs)| compare(case, runs)).collect();
    let mean = |of: fn(&Compared) -> f64| cases.iter().map(of).sum::<f64>() / cases.len() as f64;
    let (right, of_best) = (mean(|it| it.ours[BINS - 1].right), mean(|it| it.ours[BINS - 1].of_best));
    Ok(Report {
        seeds: SEEDS,
        bin: BIN,
        right,
        of_best,
        paper_right: mean(|it| it.paper[BINS - 1].right),
        paper_of_best: mean(|it| it.paper[BINS - 1].of_best),
        met: right >= super::bandits::BAR_RIGHT && of_best >= super::bandits::BAR_OF_BEST,
        cases,
    })
}

pub(super) fn print(report: &Report) {
    let Report { seeds, cases, right, of_best, paper_right, paper_of_best, met, .. } = report;
    output::line(format_args!(
        "\nthe council at work in {} simulated systems, {IO_NODES} I/O nodes, {SERVERS} data servers, {seeds} seeds: of each {BIN} \
         observations, one a\nsecond, right choices and throughput over that of the arm that is best for good, in %\n",
        cases.len()
    ));
    for case in cases {
        let best: Vec<String> =
            case.best.iter().zip(case.best_mb_s).map(|(name, mb_s)| format!("{name} ({mb_s:.1} MB/s)")).collect();
        output::line(format_args!("{}; best: {}", case.case, best.join(", then ")));
        for (name, bins) in [("arrival order", case.arrival_order), ("paper", case.paper), ("ours", case.ours)] {
            let bins = bins.map(|bin| format!("{:>8.1}{:>7.1}", bin.right * 100.0, bin.of_best * 100.0));
            output::line(format_args!("  {name:<16}{}", bins.join("")));
        }
    }
    output::line(format_args!(
        "\nbars, mean of all, observations {} to {SECONDS}: {:.0} % right, {:.0} % of the best: {} ({:.1} %, {:.1} %; paper's bandits: \
         {:.1} %, {:.1} %)",
        SECONDS - BIN + 1,
        super::bandits::BAR_RIGHT * 100.0,
        super::bandits::BAR_OF_BEST * 100.0,
        if *met { "met" } else { "missed" },
        right * 100.0,
        of_best * 100.0,
        paper_right * 100.0,
        paper_of_best * 100.0
    ));
}
