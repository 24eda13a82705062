//! Random scenarios whose patterns are known. No device or number of processes is in both sets, nor any platform: what a detector is
//! judged by it has never seen. Seeds are numbers within each set, and may be the same; what is drawn from them is not.

use std::fmt::Write as _;
use std::path::Path;

use sluice_adapt::features::Answers;
use sluice_sim::scenario::{Plan, Scenario};

use crate::random::SplitMix64;

/// What a scenario is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Set {
    /// Training.
    Train,
    /// Judging, on platforms and with process counts that training has not.
    HeldOut,
}

/// A kind of system.
struct Platform {
    name: &'static str,
    servers: u64,
    stripe: u64,
    transfer: u64,
    nodes: u32,
    bandwidth: &'static str,
    latency: &'static str,
    /// More of `[servers]`.
    more: &'static str,
    /// Lengths of windows.
    windows: &'static [&'static str],
}

/// The thesis's clusters: dNFSp with transfers of 8 KB, the page cache, CFQ.
const DNFSP: &str = "threads = 8\nin_flight = 8\npage_cache = 'on'\nkernel = 'cfq'\nmemory = '512M'\n";
const SLOW: &[&str] = &["500ms", "1s", "2s"];
const FAST: &[&str] = &["50ms", "100ms", "200ms"];
/// Of recordings, whose programs work in memory.
const RECORDED: &[&str] = &["50ms", "100ms", "200ms", "500ms"];
/// All pieces of a request are there when it is: a server's costs would spread them.
const AT_ONCE: &str = "request_cost = '0'\nengine_cost = '0'\n";
const CACHED: &str = "request_cost = '0'\nengine_cost = '0'\npage_cache = 'on'\nmemory = '4G'\n";
const K: u64 = 1 << 10;

#[rustfmt::skip]
const TRAIN: &[Platform] = &[
    Platform { name: "pastel", servers: 4, stripe: 32 * K, transfer: 8 * K, nodes: 16, bandwidth: "'1Gbit/s'", latency: "50us", more: DNFSP, windows: FAST },
    Platform { name: "graphene", servers: 4, stripe: 32 * K, transfer: 8 * K, nodes: 32, bandwidth: "'1Gbit/s'", latency: "50us", more: DNFSP, windows: FAST },
    Platform { name: "suno", servers: 4, stripe: 32 * K, transfer: 8 * K, nodes: 16, bandwidth: "'1Gbit/s'", latency: "50us", more: DNFSP, windows: FAST },
    Platform { name: "bali-hdd", servers: 4, stripe: 64 * K, transfer: 64 * K, nodes: 8, bandwidth: "'1Gbit/s'", latency: "50us", more: "threads = 16\nin_flight = 16\n", windows: SLOW },
    Platform { name: "hdd-7200", servers: 1, stripe: 64 * K, transfer: 1024 * K, nodes: 1, bandwidth: "0", latency: "0", more: "kernel = 'deadline'\n", windows: SLOW },
    Platform { name: "hdd-7200", servers: 2, stripe: 256 * K, transfer: 256 * K, nodes: 8, bandwidth: "'10Gbit/s'", latency: "20us", more: "in_flight = 4\n", windows: SLOW },
    Platform { name: "ssd-sata", servers: 2, stripe: 64 * K, transfer: 1024 * K, nodes: 8, bandwidth: "'10Gbit/s'", latency: "20us", more: "in_flight = 32\n", windows: FAST },
    Platform { name: "bali-ssd", servers: 8, stripe: 64 * K, transfer: 256 * K, nodes: 16, bandwidth: "'10Gbit/s'", latency: "30us", more: "in_flight = 16\n", windows: FAST },
    Platform { name: "chimint", servers: 4, stripe: 128 * K, transfer: 32 * K, nodes: 8, bandwidth: "'1Gbit/s'", latency: "80us", more: "threads = 8\nin_flight = 8\n", windows: SLOW },
    Platform { name: "graphite", servers: 6, stripe: 1024 * K, transfer: 1024 * K, nodes: 12, bandwidth: "'10Gbit/s'", latency: "10us", more: "in_flight = 8\n", windows: FAST },
    Platform { name: "ssd-sata", servers: 1, stripe: 128 * K, transfer: 128 * K, nodes: 1, bandwidth: "0", latency: "0", more: "", windows: FAST },
    Platform { name: "bali-hdd", servers: 3, stripe: 64 * K, transfer: 16 * K, nodes: 12, bandwidth: "'10Gbit/s'", latency: "30us", more: "page_cache = 'on'\nmemory = '1G'\nthreads = 32\n", windows: FAST },
];

#[rustfmt::skip]
const HELD_OUT: &[Platform] = &[
    Platform { name: "edel", servers: 4, stripe: 32 * K, transfer: 8 * K, nodes: 24, bandwidth: "'1Gbit/s'", latency: "50us", more: DNFSP, windows: FAST },
    Platform { name: "taurus", servers: 5, stripe: 64 * K, transfer: 16 * K, nodes: 10, bandwidth: "'1Gbit/s'", latency: "60us", more: "threads = 12\nin_flight = 12\n", windows: SLOW },
    Platform { name: "grimoire", servers: 4, stripe: 128 * K, transfer: 1024 * K, nodes: 16, bandwidth: "'10Gbit/s'", latency: "25us", more: "in_flight = 8\n", windows: SLOW },
    Platform { name: "nvme", servers: 3, stripe: 512 * K, transfer: 1024 * K, nodes: 6, bandwidth: "'25Gbit/s'", latency: "8us", more: "in_flight = 64\n", windows: FAST },
    Platform { name: "taurus", servers: 1, stripe: 64 * K, transfer: 512 * K, nodes: 1, bandwidth: "0", latency: "0", more: "", windows: SLOW },
    Platform { name: "grimoire", servers: 2, stripe: 64 * K, transfer: 64 * K, nodes: 8, bandwidth: "'1Gbit/s'", latency: "40us", more: "page_cache = 'on'\nmemory = '1G'\nthreads = 16\n", windows: FAST },
];

/// Mounts over directories that are recorded: no network, so that all pieces of a request come at one time.
#[rustfmt::skip]
const TRAIN_MOUNTS: &[Platform] = &[
    Platform { name: "ssd-sata", servers: 2, stripe: 64 * K, transfer: 1024 * K, nodes: 1, bandwidth: "0", latency: "5us", more: CACHED, windows: RECORDED },
    Platform { name: "hdd-7200", servers: 4, stripe: 128 * K, transfer: 1024 * K, nodes: 1, bandwidth: "0", latency: "5us", more: CACHED, windows: RECORDED },
    Platform { name: "bali-ssd", servers: 5, stripe: 64 * K, transfer: 1024 * K, nodes: 1, bandwidth: "0", latency: "5us", more: AT_ONCE, windows: RECORDED },
    Platform { name: "ssd-sata", servers: 8, stripe: 32 * K, transfer: 1024 * K, nodes: 1, bandwidth: "0", latency: "20us", more: AT_ONCE, windows: RECORDED },
    Platform { name: "bali-ssd", servers: 3, stripe: 256 * K, transfer: 1024 * K, nodes: 1, bandwidth: "0", latency: "5us", more: CACHED, windows: RECORDED },
];

#[rustfmt::skip]
const HELD_OUT_MOUNTS: &[Platform] = &[
    Platform { name: "nvme", servers: 6, stripe: 64 * K, transfer: 1024 * K, nodes: 1, bandwidth: "0", latency: "5us", more: AT_ONCE, windows: RECORDED },
    Platform { name: "taurus", servers: 3, stripe: 128 * K, transfer: 512 * K, nodes: 1, bandwidth: "0", latency: "5us", more: CACHED, windows: RECORDED },
];

const TRAIN_PROCESSES: &[u32] = &[2, 4, 8, 12, 16, 24, 32, 64];
const HELD_OUT_PROCESSES: &[u32] = &[3, 6, 10, 20, 28, 48];
/// Pieces that the servers get in a scenario, about.
const PIECES: u64 = 30_000;
/// Scenarios whose programs start over, in percent, and those of them that are recordings of a mount.
const AGAIN: u64 = 40;
const MOUNTED: u64 = 60;
/// Requests of a pass through a part, at least, and passes through it, at most.
const PASS_MIN: u64 = 16;
const PASSES_MAX: u64 = 60;
/// What arrivals alone tell over a network, where the pieces of a request come one after the other: a request that comes this
/// much later came after the answer.
const ANSWERED_NS: u64 = 100_000;
/// The same in recordings, as `sluice trace info` has it.
const RECORDED_NS: u64 = 1;

/// A random number generator with what scenarios need of it.
pub(super) struct Dice(SplitMix64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(SplitMix64(seed))
    }

    pub(super) fn below(&mut self, count: u64) -> u64 {
        self.0.next() % count.max(1)
    }

    pub(super) fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }

    pub(super) fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }
}

/// A scenario, and what it is called in tables.
pub(crate) struct Known {
    pub(crate) platform: &'static str,
    /// single, copies, mixed or changing.
    pub(crate) mode: &'static str,
    /// What the server's watcher is told.
    pub(crate) answers: Answers,
    /// Its programs go through small parts several times.
    pub(crate) is_again: bool,
    pub(crate) scenario: Scenario,
}

/// What a program is drawn from.
struct Source<'a> {
    platform: &'a Platform,
    processes: &'a [u32],
    dice: Dice,
    /// For parts that are gone through more than once; those of other programs are as long as their work.
    again: Option<Dice>,
}

/// The scenario of a seed.
pub(crate) fn scenario(set: Set, seed: u64) -> anyhow::Result<Known> {
    let (platforms, mounts, processes, salt) = match set {
        Set::Train => (TRAIN, TRAIN_MOUNTS, TRAIN_PROCESSES, 0x7e41),
        Set::HeldOut => (HELD_OUT, HELD_OUT_MOUNTS, HELD_OUT_PROCESSES, 0x0e1d),
    };
    let mut dice = Dice::new(seed.wrapping_mul(0x1_0001) ^ salt << 32);
    // Numbers of its own, so that programs that do not start over are the same with and without others.
    let mut more = Dice::new(seed.wrapping_mul(0x1_0001) ^ (salt ^ 0xa6a1) << 32);
    let again = more.percent(AGAIN);
    let (mut platform, mut answers) = (dice.of(platforms), Answers::After(ANSWERED_NS));
    let is_mount = again && more.percent(MOUNTED);
    if is_mount {
        (platform, answers) = (more.of(mounts), Answers::After(RECORDED_NS));
    }
    if dice.percent(67) && !is_mount {
        answers = Answers::Known;
    }
    let mut source = Source { platform, processes, dice, again: again.then_some(more) };
    let mut text = source.system(seed, is_mount);
    let mode = *source.dice.of(&["single", "single", "single", "copies", "mixed", "mixed", "changing"]);
    match mode {
        "copies" => {
            let copies = 2 + source.dice.below(3);
            source.application(&mut text, (copies, 1, PIECES));
        }
        "mixed" => {
            let apps = 2 + source.dice.below(2);
            (0..apps).for_each(|_| source.application(&mut text, (1, 1, PIECES / apps)));
        }
        "changing" => {
            let phases = 2 + source.dice.below(3);
            source.application(&mut text, (1, phases, PIECES / phases));
        }
        _ => source.application(&mut text, (1, 1, PIECES)),
    }
    let plan = Plan::parse(&text, "detector", Path::new(""), &[], &[])
        .map_err(|error| anyhow::anyhow!("scenario {seed}: {error}\n{text}"))?;
    let scenario = plan.runs[0].scenario.clone();
    Ok(Known { platform: platform.name, mode, answers, is_again: again, scenario })
}

impl Source<'_> {
    /// All but the programs.
    fn system(&mut self, seed: u64, is_mount: bool) -> String {
        let Source { platform, dice, .. } = self;
        let policy = dice.of(&["noop", "noop", "to", "to-agg", "sjf", "mlf", "aioli", "hbrr", "wfq"]);
        // `noop` lets everything through.
        let more: String = match *policy {
            "noop" => platform
                .more
                .lines()
                .filter(|line| !line.starts_with("in_flight"))
                .map(|line| format!("{line}\n"))
                .collect(),
            _ => platform.more.to_owned(),
        };
        let mut text = format!(
            "seed = {seed}\n[clients]\nnodes = {}\ntransfer = {}\njitter = '{}'\n[network]\nbandwidth = {}\nlatency = '{}'\n{}\
             [servers]\ncount = {}\nstripe = {}\ndevice = '{}'\npolicy = '{policy}'\nwindow = '{}'\n{more}",
            platform.nodes,
            platform.transfer,
            dice.of(&["5us", "20us", "100us"]),
            platform.bandwidth,
            platform.latency,
            if is_mount { "message_cost = '0'\n" } else { "" },
            platform.servers,
            platform.stripe,
            platform.name,
            dice.of(platform.windows),
        );
        if dice.percent(50) {
            text.push_str("[noise]\nrequest = 0.2\nrun = 0.1\n");
        }
        text
    }

    /// Adds an application; `(copies, phases, pieces)`: pieces of each phase.
    fn application(&mut self, text: &mut String, (copies, phases, pieces): (u64, u64, u64)) {
        let dice = &mut self.dice;
        let processes = *dice.of(self.processes);
        let spread = dice.of(&["1ms", "10ms", "200ms"]);
        let start = if copies == 1 && dice.percent(30) { "100ms" } else { "0" };
        let _ = write!(
            text,
            "[[application]]\ncopies = {copies}\nprocesses = {processes}\nstart = '{start}'\nstart_spread = '{spread}'\n"
        );
        for phase in 0..phases {
            self.phase(text, (u64::from(processes), pieces / copies, phase, phases > 1));
        }
    }

    fn phase(&mut self, text: &mut String, (processes, pieces, phase, is_one_of): (u64, u64, u64, bool)) {
        let Source { platform, dice, .. } = self;
        let is_strided = dice.percent(50);
        let is_large = dice.percent(50);
        let own_files = !is_strided && dice.percent(50);
        let all = platform.stripe * platform.servers;
        let request = match (is_large, dice.percent(70)) {
            (true, true) => all * dice.of(&[1, 2, 4]),
            (true, false) => all + dice.below(3 * all / (4 * K)) * 4 * K,
            (false, true) => platform.stripe >> (1 + dice.below(4)),
            (false, false) => (1 + dice.below(platform.stripe / 512 - 1)) * 512,
        };
        let request = request.min((16 << 20).max(all));
        let pieces_of_call = request.div_ceil(platform.transfer.min(platform.stripe)).max(1);
        let calls = (pieces / pieces_of_call / processes).clamp(8, 4_000);
        // Reads and writes of one file at random are rare, so few of them.
        let op = dice.of(&["read", "read", "read", "read", "write", "write", "write", "write", "mixed"]);
        let depth = if is_strided || dice.percent(85) { 1 } else { *dice.of(&[2, 4]) };
        let think = dice.of(&["0", "0", "0", "200us", "2ms"]);
        let barrier = *dice.of(&["none", "none", "phase", "request"]);
        let barrier = if is_one_of && barrier == "none" { "phase" } else { barrier };
        let file = if is_one_of && dice.percent(60) { format!("data{phase}") } else { "data".to_owned() };
        let (calls, passes) = self.passes(request, calls);
        for pass in 1..=passes {
            // What starts over does not wait for others to do so; only the whole of it is a phase of the program.
            let barrier = if barrier == "phase" && pass < passes { "none" } else { barrier };
            let _ = write!(
                text,
                "[[application.phase]]\nop = '{op}'\npattern = '{}'\nfiles = '{}'\nfile = '{file}'\nrequest = {request}\n\
                 data = {}\ndepth = {depth}\nthink = '{think}'\nthink_spread = 0.5\nbarrier = '{barrier}'\n",
                if is_strided { "strided" } else { "contiguous" },
                if own_files { "per-process" } else { "shared" },
                request * calls,
            );
        }
    }

    /// Requests of a part of a process, and how often it goes through that, for so many requests in all. Parts are 1 to 64 MB
    /// long, their logarithms evenly spread.
    fn passes(&mut self, request: u64, calls: u64) -> (u64, u64) {
        let Some(dice) = &mut self.again else { return (calls, 1) };
        let octave = (K * K) << dice.below(6);
        let part = octave + dice.below(octave / (4 * K)) * 4 * K;
        let pass = (part / request).max(PASS_MIN).min(calls);
        (pass, (calls / pass).clamp(1, PASSES_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_and_processes_of_the_sets_differ() {
        let same = |a: &Platform, b: &Platform| a.name == b.name;
        let held = || HELD_OUT.iter().chain(HELD_OUT_MOUNTS);
        assert!(!TRAIN.iter().chain(TRAIN_MOUNTS).any(|train| held().any(|held| same(held, train))));
        assert!(!HELD_OUT_PROCESSES.iter().any(|count| TRAIN_PROCESSES.contains(count)));
    }

    #[test]
    fn every_seed_is_a_scenario() {
        for set in [Set::Train, Set::HeldOut] {
            for seed in 0..300 {
                let known = scenario(set, seed).unwrap();
                assert!(known.scenario.bytes() > 0, "{seed}");
            }
        }
    }

    /// Parts for which a program has not enough requests are gone through once.
    #[test]
    fn programs_that_start_over_have_parts_of_some_megabytes() {
        let (mut again, mut passes) = (0, 0);
        for known in (0..300).map(|seed| scenario(Set::Train, seed).unwrap()).filter(|known| known.is_again) {
            again += 1;
            let phases = known.scenario.applications.iter().flat_map(|application| &application.phases);
            for phase in phases {
                passes += 1;
                assert!(phase.data <= (64 << 20).max(PASS_MIN * phase.request.1), "{phase:?}");
            }
        }
        assert!((80..160).contains(&again), "{again} of 300");
        assert!(passes > 4 * again, "{passes} passes of {again} scenarios");
    }
}
