//! What the council costs in large systems, and what windows bring that do not idle or that differ between I/O nodes.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use prost::Message as _;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use sluice_adapt::net::Network;
use sluice_cli::output;
use sluice_control::wire::{FromNode, ToNode};
use sluice_control::{ARMS, Action, Coordinator, Council, InForce, Kind, Limits, Node, Role, Seen, SessionId, by_node};
use sluice_core::{EngineConfig, PolicyConfig, Time, WindowFeatures};
use sluice_sim::scenario::{Place, Plan, Scenario};
use sluice_sim::{Options, Selector, Setup, simulate_with};

use super::experiments::{SCENARIO, Set, simulated};
use crate::allocations;
use crate::random::SplitMix64;
use crate::statistics::median;

/// I/O nodes: those of Mira (Bez et al. 2019, IV-A), and ten times as many.
const NODES: [usize; 2] = [384, 3_840];
const CLIENTS_PER_NODE: usize = 128;
/// When the nodes come.
const BEGIN: Time = Time(1_700_000_000_000_000_000);
const SECOND_NS: u64 = 1_000_000_000;
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
    /// Announcements in, answers and decisions out.
    messages_s: usize,
    /// Their bytes, encoded.
    bytes_s: usize,
    /// Processor time of a second's round, with the messages' encoding: median and largest, in milliseconds.
    round_ms: f64,
    round_max_ms: f64,
    /// From the last announcement to the decision, the same.
    delay_ms: f64,
    delay_max_ms: f64,
    /// Of the coordinator, in KiB.
    memory_kib: f64,
    situations: u64,
}

/// Of this thread alone: whatever else the machine does.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// An I/O node of a job.
struct Machine<'a> {
    node: Node,
    seen: &'a super::experiments::Seen,
    /// Which of the arms is best for its job.
    best: usize,
    in_force: InForce,
}

impl Machine<'_> {
    /// What it sees in a second, the more the better what it uses is.
    fn look(&self, at: usize, network: &Network, random: &mut SplitMix64) -> Seen {
        let (window, observation) =
            (&self.seen.features[at % self.seen.features.len()], &self.seen.windows[at % self.seen.windows.len()]);
        let mut seen = Seen::nothing(Kind::Forwarder, self.seen.known.servers, self.in_force.clone());
        seen.add(window, false);
        seen.pattern = network.classify(observation).map(|verdict| verdict.pattern);
        let uses =
            |(name, window_ns): &(&str, u64)| *name == self.in_force.policy && *window_ns == self.in_force.window_ns;
        let arm = ARMS.iter().position(uses).unwrap_or(0);
        let noise = (random.next() % 1_000) as f64 / 1_000.0 - 0.5;
        let gain = (-0.02 * self.best.abs_diff(arm) as f64 + 0.05 * noise).exp();
        seen.ops.iter_mut().for_each(|op| op.moved = (op.moved as f64 * gain) as u64);
        seen
    }
}

fn machines<'a>(nodes: usize, seen: &'a [super::experiments::Seen], random: &mut SplitMix64) -> Vec<Machine<'a>> {
    let mut machines = Vec::new();
    while machines.len() < nodes {
        let size = JOB << (random.next().trailing_ones().min(4));
        let (seen, best) =
            (&seen[(random.next() % seen.len() as u64) as usize], (random.next() % ARMS.len() as u64) as usize);
        for _ in 0..size.min(nodes - machines.len()) {
            let mut node = Node::new(&format!("node-{}", machines.len()), 1, random.next(), BEGIN);
            node.connected(BEGIN);
            let in_force = InForce { policy: "hbrr".to_owned(), window_ns: 0 };
            machines.push(Machine { node, seen, best, in_force });
        }
    }
    machines
}

/// Sends what the coordinator has to send; returns the bytes.
fn pump(coordinator: &mut Coordinator, now: Time, sent: &mut Vec<(SessionId, Vec<u8>)>) {
    while let Some((session, message)) = coordinator.take_answer(now) {
        sent.push((session, message.encode_to_vec()));
    }
}

fn cost(nodes: usize, seen: &[super::experiments::Seen], network: &Network) -> anyhow::Result<Cost> {
    let mut random = SplitMix64(nodes as u64);
    let mut machines = machines(nodes, seen, &mut random);
    let roles: Vec<Box<dyn Role>> = vec![Box::new(Council::new(Box::new(by_node)))];
    let mut coordinator = Coordinator::new(Limits::default(), 1, roles, BEGIN);
    let (mut rounds, mut delays, mut messages, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
    for round in 0..ROUNDS {
        let now = BEGIN.after(round as u64 * SECOND_NS);
        let announced: Vec<Vec<u8>> = machines
            .iter_mut()
            .enumerate()
            .map(|(at, machine)| {
                let seen = machine.look(round * 7 + at, network, &mut random);
                machine.node.announcement(now, &seen).encode_to_vec()
            })
            .collect();
        // As `sluice_control::serve` does it, message for message.
        let (began, mut last, mut sent) = (cpu_ns(), 0, Vec::with_capacity(2 * nodes));
        for (at, announced) in announced.iter().enumerate() {
            last = cpu_ns();
            let message = FromNode::decode(announced.as_slice())?;
            coordinator.receive(now, SessionId(at as u64), &message)?;
            pump(&mut coordinator, now, &mut sent);
            if coordinator.next() <= now {
                coordinator.tick(now);
                pump(&mut coordinator, now, &mut sent);
            }
        }
        let end = cpu_ns();
        rounds.push((end - began) as f64 / 1e6);
        delays.push((end - last) as f64 / 1e6);
        // When nodes have only just come, the first of them is a round of its own, and that of all comes half a second later.
        let later = now.after(SECOND_NS / 2);
        coordinator.tick(later);
        pump(&mut coordinator, later, &mut sent);
        messages += announced.len() + sent.len();
        bytes += announced.iter().chain(sent.iter().map(|(_, message)| message)).map(Vec::len).sum::<usize>();
        for (session, message) in sent {
            let machine = &mut machines[session.0 as usize];
            for action in machine.node.received(later, &ToNode::decode(message.as_slice())?) {
                let Action::Policy { name, window_ns } = action else { continue };
                machine.in_force = InForce { policy: name, window_ns };
            }
        }
    }
    let status = coordinator.status(BEGIN.after(ROUNDS as u64 * SECOND_NS));
    let situations = status.roles["council"]["situations"].as_u64().context("the council's status")?;
    let with = allocations::live_bytes();
    drop(coordinator);
    let memory = with - allocations::live_bytes();
    let ((round_ms, [_, round_max_ms]), (delay_ms, [_, delay_max_ms])) = (median(&mut rounds), median(&mut delays));
    Ok(Cost {
        io_nodes: nodes,
        clients: nodes * CLIENTS_PER_NODE,
        messages_s: messages / ROUNDS,
        bytes_s: bytes / ROUNDS,
        round_ms,
        round_max_ms,
        delay_ms,
        delay_max_ms,
        memory_kib: memory as f64 / 1_024.0,
        situations,
    })
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
    let costs = NODES.into_iter().map(|nodes| cost(nodes, &seen, &network)).collect::<anyhow::Result<Vec<Cost>>>()?;
    let compared = MIXES.iter().map(compare).collect::<anyhow::Result<Vec<_>>>()?;
    if json {
        return output::pretty_json(&serde_json::json!({"simulated": true, "costs": costs, "windows": compared}));
    }
    output::line(
        "a council of simulated I/O nodes that announce every second: processor time of this machine, with the messages' encoding,\n\
         without the network\n",
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
