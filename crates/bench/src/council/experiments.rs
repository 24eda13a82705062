//! What networks learn from and are judged by: windows of one second of simulated I/O nodes, of one pattern each.
//!
//! The system is that of `scenarios/twins-windows.toml`. No number of processes, size of requests or seed is in both sets, nor is
//! every device of the second in the first.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context;
use sluice_adapt::council::{Op, Pattern};
use sluice_adapt::features::Answers;
use sluice_adapt::net::Observation;
use sluice_core::WindowFeatures;
use sluice_sim::scenario::{Place, Plan, Scenario};
use sluice_sim::{Options, simulate};

use crate::random::SplitMix64;

/// The system.
pub(super) const SCENARIO: &str = include_str!("../../../../scenarios/twins-windows.toml");

/// What an experiment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Set {
    /// Training.
    Train,
    /// Judging.
    Unseen,
}

impl Set {
    fn choices(self) -> &'static Choices {
        match self {
            Set::Train => &TRAIN,
            Set::Unseen => &UNSEEN,
        }
    }
}

struct Choices {
    processes: &'static [u64],
    io_nodes: &'static [u32],
    /// In KiB.
    sizes: &'static [u64],
    servers: &'static [u32],
    devices: &'static [&'static str],
    /// All processes together: the paper's 4 GB, and less.
    mebibytes: &'static [u64],
    /// Longer ones are cut off.
    seconds: u64,
    salt: u64,
}

const TRAIN: Choices = Choices {
    processes: &[24, 32, 40, 64, 80, 128, 144, 224, 256, 288, 448, 512, 576, 896, 1_024],
    io_nodes: &[1, 2, 3, 4, 5, 6, 8],
    sizes: &[16, 20, 28, 32, 36, 56, 64, 72, 80, 112, 144, 160, 256, 320, 448, 640, 1_024],
    servers: &[4, 4, 4, 2, 3, 5, 8],
    devices: &["grimoire", "grimoire", "hdd-7200", "ssd-sata", "bali-hdd", "bali-ssd", "suno", "edel"],
    mebibytes: &[512, 1_024, 2_048, 4_096],
    seconds: 120,
    salt: 0x7e41,
};

const UNSEEN: Choices = Choices {
    processes: &[48, 96, 160, 192, 320, 384, 640, 768],
    io_nodes: &[1, 2, 3, 4, 6, 8],
    sizes: &[24, 40, 48, 96, 128, 192, 384, 512],
    servers: &[4, 4, 4, 3, 6],
    devices: &["grimoire", "grimoire", "taurus", "nvme"],
    mebibytes: &[1_024, 2_048, 4_096],
    seconds: 120,
    salt: 0x0e1d,
};

const SCHEDULERS: &[&str] = &[
    "to",
    "hbrr",
    "twins window=125us alone_after=0",
    "twins window=250us alone_after=0",
    "twins window=500us alone_after=0",
    "twins window=1ms alone_after=0",
    "twins window=2ms alone_after=0",
    "twins window=4ms alone_after=0",
    "twins window=8ms alone_after=0",
];

/// A process has at least so many requests.
const REQUESTS_MIN: u64 = 8;

/// An experiment.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) seed: u64,
    pub(crate) pattern: Pattern,
    pub(crate) op: Op,
    pub(crate) io_nodes: u32,
    pub(crate) processes: u64,
    pub(crate) request: u64,
    pub(crate) servers: u32,
    pub(crate) device: &'static str,
    pub(crate) scheduler: &'static str,
}

/// What its I/O nodes saw.
pub(crate) struct Seen {
    pub(crate) known: Known,
    pub(crate) windows: Vec<Observation>,
    /// Of the same windows.
    pub(crate) features: Vec<WindowFeatures>,
}

pub(crate) const PATTERNS: [Pattern; 3] = [Pattern::OwnContiguous, Pattern::SharedContiguous, Pattern::SharedStrided];

/// The experiment of a seed. Patterns and operations take turns, so that none is rare.
pub(crate) fn experiment(set: Set, seed: u64) -> anyhow::Result<(Known, Scenario)> {
    let choices = set.choices();
    let mut dice = SplitMix64(seed.wrapping_mul(0x1_0001) ^ choices.salt << 32);
    let pattern = PATTERNS[(seed % 3) as usize];
    let op = if (seed / 3).is_multiple_of(2) { Op::Read } else { Op::Write };
    let known = Known {
        seed,
        pattern,
        op,
        io_nodes: dice.of(choices.io_nodes),
        processes: dice.of(choices.processes),
        request: dice.of(choices.sizes) << 10,
        servers: dice.of(choices.servers),
        device: dice.of(choices.devices),
        scheduler: dice.of(SCHEDULERS),
    };
    let requests = ((dice.of(choices.mebibytes) << 20) / known.processes / known.request).max(REQUESTS_MIN);
    let scenario = scenario(&known, requests).with_context(|| format!("experiment {seed}"))?;
    Ok((known, scenario))
}

fn scenario(known: &Known, requests: u64) -> anyhow::Result<Scenario> {
    let mut table: toml::Table = SCENARIO.parse().context("scenarios/twins-windows.toml")?;
    // They are about what varies there.
    ["axis", "report", "scale"].iter().for_each(|key| drop(table.remove(*key)));
    let settings = [
        ("seed", known.seed.to_string()),
        ("servers.count", known.servers.to_string()),
        ("servers.device", known.device.to_owned()),
        ("io_nodes.count", known.io_nodes.to_string()),
        ("io_nodes.policy", known.scheduler.to_owned()),
        ("application.processes", known.processes.to_string()),
        ("application.phase.op", if known.op == Op::Read { "read" } else { "write" }.to_owned()),
        ("application.phase.request", known.request.to_string()),
        ("application.phase.data", (requests * known.request).to_string()),
        (
            "application.phase.files",
            if known.pattern == Pattern::OwnContiguous { "per-process" } else { "shared" }.to_owned(),
        ),
        (
            "application.phase.pattern",
            if known.pattern == Pattern::SharedStrided { "strided" } else { "contiguous" }.to_owned(),
        ),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value));
    let plan = Plan::parse(&table.to_string(), "council", Path::new(""), &settings, &[])?;
    Ok(plan.runs[0].scenario.clone())
}

fn see(set: Set, seed: u64) -> anyhow::Result<Seen> {
    let (known, scenario) = experiment(set, seed)?;
    let options = Options {
        windows: true,
        patterns: Some(Answers::Known),
        until_ns: set.choices().seconds * 1_000_000_000,
        ..Options::default()
    };
    let outcome = simulate(&scenario, options, &AtomicBool::new(false))
        .with_context(|| format!("experiment {seed} ({known:?})"))?;
    let of_node = |place: &Place| matches!(place, Place::IoNode(_));
    let (mut windows, mut features) = (Vec::new(), Vec::new());
    // Both lists are in order of time for each machine.
    for seen in outcome.patterns.iter().filter(|seen| of_node(&seen.place)) {
        let same = |window: &&sluice_sim::Window| window.place == seen.place && window.features.end == seen.window.end;
        let Some(window) = outcome.windows.iter().find(same) else { continue };
        windows.push(Observation::of(&window.features, Some(&seen.window)));
        features.push(window.features);
    }
    Ok(Seen { known, windows, features })
}

/// Simulates experiments, several at a time; `progress` is called for each.
pub(crate) fn simulated(
    set: Set,
    seeds: std::ops::Range<u64>,
    jobs: usize,
    progress: &(dyn Fn() + Sync),
) -> anyhow::Result<Vec<Seen>> {
    let (next, all, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || failed.load(Ordering::Relaxed) {
                        return;
                    }
                    let seen = see(set, seed);
                    failed.fetch_or(seen.is_err(), Ordering::Relaxed);
                    all.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((seed, seen));
                    progress();
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.sort_by_key(|(seed, _)| *seed);
    all.into_iter().map(|(_, seen)| seen).collect()
}
