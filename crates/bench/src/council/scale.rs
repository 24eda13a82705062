//! What the council costs in large systems, and what windows bring that do not idle or that differ between I/O nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use sluice_adapt::council::{Knowledge, Situation};
use sluice_adapt::net::{Network, Observation};
use sluice_cli::output;
use sluice_core::{EngineConfig, PolicyConfig, WindowFeatures};
use sluice_sim::scenario::{Place, Plan, Scenario};
use sluice_sim::{Options, Selector, Setup, simulate_with};

use super::experiments::{SCENARIO, Set, simulated};
use crate::allocations;
use crate::random::SplitMix64;
use crate::statistics::median;

/// I/O nodes: those of Mira (Bez et al. 2019, IV-A), and ten times as many.
const NODES: [usize; 2] = [384, 3_840];
const CLIENTS_PER_NODE: usize = 128;
/// Seven windows, arrival order, HBRR.
const ARMS: usize = 9;
/// Experiments from which nodes announce, and seconds for which they do.
const EXPERIMENTS: u64 = 48;
const ROUNDS: usize = 120;
/// I/O nodes of a job: half of the jobs have so many, or twice, four times, ... as many.
const JOB: usize = 4;

/// What a council of so many nodes costs.
#[derive(Serialize)]
struct Cost {
    io_nodes: usize,
    clients: usize,
    /// Announcements in and decisions out.
    messages_s: usize,
    /// Bytes of observations a second, as they are in memory.
    bytes_s: usize,
    /// Processor time of a second's round: median and largest, in milliseconds.
    round_ms: f64,
    round_max_ms: f64,
    /// From the last announcement to the decision, the same.
    delay_ms: f64,
    delay_max_ms: f64,
    /// Of what is known and announced, in KiB.
    memory_kib: f64,
    situations: usize,
}

/// Of this thread alone: whatever else the machine does.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A job on some nodes.
struct Job<'a> {
    nodes: usize,
    windows: &'a [Observation],
    servers: u64,
    processes: u64,
    best: usize,
}

fn cost(nodes: usize, seen: &[super::experiments::Seen], network: &Network) -> Cost {
    let mut random = SplitMix64(nodes as u64);
    let mut jobs = Vec::new();
    let mut left = nodes;
    while left > 0 {
        let size = (JOB << (random.next().trailing_ones().min(4))).min(left);
        let experiment = &seen[(random.next() % seen.len() as u64) as usize];
        left -= size;
        jobs.push(Job {
            nodes: size,
            windows: &experiment.windows,
            servers: u64::from(experiment.known.servers),
            processes: (size * CLIENTS_PER_NODE) as u64,
            best: (random.next() % ARMS as u64) as usize,
        });
    }
    let before = allocations::live_bytes();
    let mut knowledge = Knowledge::new(ARMS);
    let mut votes: Vec<Option<usize>> = vec![None; nodes];
    let mut announced: Vec<Option<Observation>> = vec![None; nodes];
    let (mut rounds, mut delays, mut arm) = (Vec::new(), Vec::new(), 0);
    for round in 0..ROUNDS {
        let began = cpu_ns();
        let (mut node, mut last) = (0, began);
        // A situation's observation is the mean of its nodes'.
        let mut heard: BTreeMap<Situation, (f64, u64)> = BTreeMap::new();
        let mut situations = vec![None; nodes];
        for job in &jobs {
            for _ in 0..job.nodes {
                last = cpu_ns();
                let window = job.windows[(round * 7 + node) % job.windows.len()];
                announced[node] = Some(window);
                if let Some(verdict) = network.classify(&window) {
                    let (op, size) = (super::experiments::op_of(window.op), window.paper[3] as u64);
                    let nodes = job.nodes as u64;
                    let situation = Situation::new(verdict.pattern, op, job.servers, nodes, job.processes, size);
                    let noise = (random.next() % 1_000) as f64 / 1_000.0 - 0.5;
                    let reward = -0.02 * job.best.abs_diff(arm) as f64 + 0.05 * noise;
                    let (sum, count) = heard.entry(situation).or_default();
                    (*sum, *count) = (*sum + reward, *count + 1);
                    situations[node] = Some(situation);
                }
                node += 1;
            }
        }
        for (situation, (sum, count)) in &heard {
            knowledge.of(*situation).learn(arm, sum / *count as f64);
        }
        let chosen: BTreeMap<Situation, usize> =
            heard.keys().map(|situation| (*situation, knowledge.of(*situation).choose())).collect();
        let mut counts = [0_usize; ARMS];
        for (vote, situation) in votes.iter_mut().zip(&situations) {
            *vote = situation.and_then(|situation| chosen.get(&situation).copied());
            vote.iter().for_each(|vote| counts[*vote] += 1);
        }
        arm = (0..ARMS).max_by_key(|&arm| counts[arm]).unwrap_or(0);
        let end = cpu_ns();
        rounds.push((end - began) as f64 / 1e6);
        delays.push((end - last) as f64 / 1e6);
    }
    let live = allocations::live_bytes() - before;
    let ((round_ms, [_, round_max_ms]), (delay_ms, [_, delay_max_ms])) = (median(&mut rounds), median(&mut delays));
    Cost {
        io_nodes: nodes,
        clients: nodes * CLIENTS_PER_NODE,
        messages_s: 2 * nodes,
        bytes_s: nodes * size_of::<Observation>(),
        round_ms,
        round_max_ms,
        delay_ms,
        delay_max_ms,
        memory_kib: live as f64 / 1_024.0,
        situations: knowledge.len(),
    }
}

/// Two applications, each through half of eight I/O nodes.
struct Mix {
    name: &'static str,
    apps: [&'static str; 2],
}

const MIXES: [Mix; 3] = [
    Mix {
        name: "strided reads of 32 KiB beside writes of own files",
        apps: [
            "op = 'read'\npattern = 'strided'\nfiles = 'shared'\nrequest = '32K'",
            "op = 'write'\npattern = 'contiguous'\nfiles = 'per-process'\nrequest = '256K'",
        ],
    },
    Mix {
        name: "strided reads of 32 KiB beside strided reads of 256 KiB",
        apps: [
            "op = 'read'\npattern = 'strided'\nfiles = 'shared'\nrequest = '32K'",
            "op = 'read'\npattern = 'strided'\nfiles = 'shared'\nrequest = '256K'",
        ],
    },
    Mix {
        name: "contiguous reads of a shared file beside strided writes",
        apps: [
            "op = 'read'\npattern = 'contiguous'\nfiles = 'shared'\nrequest = '256K'",
            "op = 'write'\npattern = 'strided'\nfiles = 'shared'\nrequest = '32K'",
        ],
    },
];
const IO_NODES: u32 = 8;
const WINDOWS: [&str; 3] = ["125us", "1ms", "8ms"];
const SEEDS: u64 = 3;

/// Gives each half of the I/O nodes its window.
struct Halves {
    policies: [PolicyConfig; 2],
    told: [bool; IO_NODES as usize],
}

impl Selector for Halves {
    fn window_closed(&mut self, place: Place, _: &WindowFeatures, _: &PolicyConfig, _: &EngineConfig) -> Option<Setup> {
        let Place::IoNode(node) = place else { return None };
        let told = self.told.get_mut(node as usize)?;
        let policy = self.policies[usize::from(node >= IO_NODES / 2)].clone();
        (!std::mem::replace(told, true)).then_some(Setup { policy, limits: None })
    }
}

/// A way to use windows, at its best.
#[derive(Clone, Serialize)]
struct Way {
    windows: &'static str,
    work_conserving: bool,
    /// Those that were best, of each half.
    best: [&'static str; 2],
    /// Geometric mean of the applications' throughputs, median and range of the seeds.
    mb_s: f64,
    range: [f64; 2],
}

#[derive(Serialize)]
struct Compared {
    mix: &'static str,
    fifo_mb_s: f64,
    ways: Vec<Way>,
}

fn scenario(mix: &Mix, seed: u64) -> anyhow::Result<Scenario> {
    let mut table: toml::Table = SCENARIO.parse().context("scenarios/twins-windows.toml")?;
    ["axis", "report", "scale", "application"].iter().for_each(|key| drop(table.remove(*key)));
    let mut text = table.to_string();
    for (number, phase) in mix.apps.iter().enumerate() {
        text.push_str(&format!(
            "[[application]]\nname = 'app{number}'\nprocesses = 128\n[[application.phase]]\nbarrier = 'phase'\ndata = '4M'\n{phase}\n"
        ));
    }
    let settings = [
        ("seed", seed.to_string()),
        ("io_nodes.count", IO_NODES.to_string()),
        ("io_nodes.policy", "to".to_owned()),
        ("io_nodes.window", "10ms".to_owned()),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value));
    Ok(Plan::parse(&text, mix.name, Path::new(""), &settings, &[])?.runs[0].scenario.clone())
}

/// MB/s with windows for each half; none: arrival order.
fn throughput(scenario: &Scenario, windows: Option<[&str; 2]>, work_conserving: bool) -> anyhow::Result<f64> {
    let policy = |window: &str| -> anyhow::Result<PolicyConfig> {
        let twins = PolicyConfig::parse("twins").map_err(anyhow::Error::msg)?;
        let settings = [
            ("window", window),
            ("alone_after", "0"),
            ("work_conserving", if work_conserving { "true" } else { "false" }),
        ];
        settings.iter().try_fold(twins, |twins, (key, value)| twins.with(key, value).map_err(anyhow::Error::msg))
    };
    let (policies, told) = match windows {
        Some([first, second]) => ([policy(first)?, policy(second)?], false),
        None => ([policy("1ms")?, policy("1ms")?], true),
    };
    let mut halves = Halves { policies, told: [told; IO_NODES as usize] };
    let outcome = simulate_with(scenario, Options::default(), &mut halves, &AtomicBool::new(false))?;
    let logs: f64 = outcome.apps.iter().map(|app| (app.bytes as f64 / app.makespan_ns as f64 * 1e3).ln()).sum();
    Ok((logs / outcome.apps.len() as f64).exp())
}

fn compare(mix: &Mix) -> anyhow::Result<Compared> {
    let scenarios = (1..=SEEDS).map(|seed| scenario(mix, seed)).collect::<anyhow::Result<Vec<_>>>()?;
    let all = |windows, conserving| -> anyhow::Result<(f64, [f64; 2])> {
        let rates = scenarios.iter().map(|scenario| throughput(scenario, windows, conserving));
        Ok(median(&mut rates.collect::<anyhow::Result<Vec<f64>>>()?))
    };
    let mut ways: Vec<Way> = Vec::new();
    for work_conserving in [false, true] {
        for first in WINDOWS {
            for second in WINDOWS {
                let windows = if first == second { "one for all" } else { "each half its own" };
                let (mb_s, range) = all(Some([first, second]), work_conserving)?;
                let way = Way { windows, work_conserving, best: [first, second], mb_s, range };
                let same = |it: &&mut Way| (it.windows, it.work_conserving) == (windows, work_conserving);
                match ways.iter_mut().find(same) {
                    Some(known) if known.mb_s >= mb_s => {}
                    Some(known) => *known = way,
                    None => ways.push(way),
                }
            }
        }
    }
    ways.sort_by(|a, b| a.mb_s.total_cmp(&b.mb_s));
    Ok(Compared { mix: mix.name, fifo_mb_s: all(None, false)?.0, ways })
}

/// Prints both.
///
/// # Errors
/// If something cannot be simulated.
pub(super) fn run(json: bool) -> anyhow::Result<()> {
    let network = Network::shipped()?;
    let seen = simulated(Set::Unseen, 30_000..30_000 + EXPERIMENTS, 1, &|| {})?;
    let costs: Vec<Cost> = NODES.into_iter().map(|nodes| cost(nodes, &seen, &network)).collect();
    let compared = MIXES.iter().map(compare).collect::<anyhow::Result<Vec<_>>>()?;
    if json {
        return output::pretty_json(&serde_json::json!({"simulated": true, "costs": costs, "windows": compared}));
    }
    output::line(
        "a council of simulated I/O nodes that announce every second: processor time of this machine, without the network and its\n\
         messages' encoding\n",
    );
    output::line(format_args!(
        "{:>9} {:>9} {:>11} {:>9} {:>18} {:>18} {:>11} {:>11}",
        "I/O nodes", "clients", "messages/s", "KiB/s", "round ms (max)", "delay ms (max)", "memory KiB", "situations"
    ));
    for it in &costs {
        let round = format!("{:.2} ({:.2})", it.round_ms, it.round_max_ms);
        let delay = format!("{:.2} ({:.2})", it.delay_ms, it.delay_max_ms);
        output::line(format_args!(
            "{:>9} {:>9} {:>11} {:>9} {round:>18} {delay:>18} {:>11.0} {:>11}",
            it.io_nodes,
            it.clients,
            it.messages_s,
            it.bytes_s >> 10,
            it.memory_kib,
            it.situations
        ));
    }
    output::line(format_args!(
        "\nsimulated: {IO_NODES} I/O nodes, an application through each half of them; geometric mean of both throughputs, MB/s, \
         median\nand range of {SEEDS} seeds, with the best of {} windows; the slowest first\n",
        WINDOWS.join(", ")
    ));
    for Compared { mix, fifo_mb_s, ways } in &compared {
        output::line(format_args!("{mix}: arrival order {fifo_mb_s:.1}"));
        for Way { windows, work_conserving, best, mb_s, range } in ways {
            let idles = if *work_conserving { "work-conserving" } else { "idling" };
            let [least, most] = range;
            let best = if best[0] == best[1] { best[0].to_owned() } else { best.join(" and ") };
            output::line(format_args!("  {windows:<18} {idles:<16} {mb_s:>8.1}  {least:.1}..{most:.1}  {best}"));
        }
    }
    Ok(())
}
