//! What networks learn from and are judged by: windows of one second of simulated I/O nodes, of one pattern each.
//!
//! The system is that of `scenarios/twins-windows.toml`, or one such as GlusterFS's clients and I/O nodes ([`Gluster`]). Of each
//! kind of system no number of processes, size of requests or seed is in both the set for training and that for judging, nor is every
//! device of the second in the first. But networks are trained with both kinds, and some that are judged by in one are trained with in
//! the other: 48, 128 and 512 KiB, 48 and 96 processes of the first kind; 640 KiB, 40 and 80 processes of the second.

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
    /// Training: GlusterFS's I/O nodes.
    Gluster,
    /// Judging: GlusterFS's I/O nodes.
    GlusterUnseen,
}

impl Set {
    fn choices(self) -> &'static Choices {
        match self {
            Set::Train => &TRAIN,
            Set::Unseen => &UNSEEN,
            Set::Gluster => &GLUSTER,
            Set::GlusterUnseen => &GLUSTER_UNSEEN,
        }
    }
}

struct Choices {
    /// With `gluster` those of each I/O node.
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
    gluster: Option<Gluster>,
}

/// What GlusterFS and the kernels of its clients make of requests, which the paper's system does not:
/// * direct requests are cut to what FUSE passes on at once, and the parts overtake each other on the way through several threads;
/// * a file is in pieces of some MiB (`features/shard`), or on one server, and the translator knows where in the file a request is;
/// * one mount is one client, with few processes, often every so many-th of the program's; they go through the same file again and
///   again, with pauses between;
/// * the data servers' page caches and their disks' queues answer some processes many times while others wait.
struct Gluster {
    /// In KiB: most bytes of a FUSE request (128 with the kernels of Debian 12's time; `max_pages`).
    transfers: &'static [u64],
    /// In MiB: bytes of a piece. 1,024: the file is on one server.
    pieces: &'static [u64],
    /// In us: how much later each part may come.
    disorders: &'static [u64],
    /// In ms: from the end of one pass to the beginning of the next.
    pauses: &'static [u64],
    /// In us: processor time of a request at an I/O node.
    costs: &'static [u64],
    /// In us: what a process does from an answer to its next request, up to twice as long.
    thinks: &'static [u64],
    page_caches: &'static [&'static str],
    device_queues: &'static [u64],
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
    gluster: None,
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
    gluster: None,
};

const GLUSTER: Choices = Choices {
    processes: &[2, 3, 4, 6, 8, 12, 16, 24],
    io_nodes: &[1, 2, 2, 3, 4],
    sizes: &[16, 32, 48, 64, 80, 128, 128, 160, 256, 320, 512, 512, 768, 1_024, 2_048],
    servers: &[2, 2, 3, 4, 6],
    devices: &["hdd-7200", "hdd-7200", "grimoire", "ssd-sata", "bali-hdd", "suno", "edel"],
    mebibytes: &[16, 32, 64, 128, 256, 1_024],
    seconds: 12,
    salt: 0x61a5,
    gluster: Some(Gluster {
        transfers: &[128, 128, 128, 64, 256, 1_024],
        pieces: &[4, 4, 8, 64, 1_024],
        disorders: &[0, 50, 200, 500, 1_000, 3_000],
        pauses: &[0, 50, 200, 500],
        costs: &[20, 100, 300],
        thinks: &[0, 0, 200, 2_000],
        page_caches: &["off", "on"],
        device_queues: &[1, 32],
    }),
};

const GLUSTER_UNSEEN: Choices = Choices {
    processes: &[5, 7, 10, 20],
    io_nodes: &[1, 2, 3, 4],
    sizes: &[24, 40, 96, 192, 384, 640, 1_536],
    servers: &[2, 4, 5],
    devices: &["hdd-7200", "taurus", "nvme"],
    mebibytes: &[24, 48, 96, 512],
    seconds: 12,
    salt: 0x61e7,
    gluster: Some(Gluster {
        transfers: &[128, 128, 512],
        pieces: &[4, 16, 1_024],
        disorders: &[0, 100, 400, 2_000],
        pauses: &[20, 300],
        costs: &[50, 200],
        thinks: &[0, 500],
        page_caches: &["off", "on"],
        device_queues: &[4, 32],
    }),
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
/// More than there is time for.
const PASSES: u32 = 1_000;

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
    /// Of the same windows: the node that saw it.
    pub(crate) nodes: Vec<u32>,
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
    let mut known = Known {
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
    if choices.gluster.is_some() {
        known.processes *= u64::from(known.io_nodes);
    }
    let requests = ((dice.of(choices.mebibytes) << 20) / known.processes / known.request).max(REQUESTS_MIN);
    let further = choices.gluster.as_ref().map_or_else(Vec::new, |gluster| gluster.settings(&known, &mut dice));
    let scenario = scenario(&known, requests, further).with_context(|| format!("experiment {seed}"))?;
    Ok((known, scenario))
}

impl Gluster {
    fn settings(&self, known: &Known, dice: &mut SplitMix64) -> Vec<(&'static str, String)> {
        vec![
            ("clients.nodes", known.io_nodes.to_string()),
            ("clients.placement", if dice.toss() { "cyclic" } else { "block" }.to_owned()),
            ("clients.transfer", format!("{}K", dice.of(self.transfers))),
            ("clients.disorder", format!("{}us", dice.of(self.disorders))),
            ("servers.stripe", format!("{}M", dice.of(self.pieces))),
            ("io_nodes.offsets", "file".to_owned()),
            ("io_nodes.request_cost", format!("{}us", dice.of(self.costs))),
            ("servers.page_cache", dice.of(self.page_caches).to_owned()),
            ("servers.device_queue", dice.of(self.device_queues).to_string()),
            ("application.phase.think", format!("{}us", dice.of(self.thinks))),
            ("application.phase.think_spread", "1".to_owned()),
            ("application.phase.compute", format!("{}ms", dice.of(self.pauses))),
            // Until the time is over.
            ("application.repeat", PASSES.to_string()),
        ]
    }
}

fn scenario(known: &Known, requests: u64, further: Vec<(&'static str, String)>) -> anyhow::Result<Scenario> {
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
    let settings: Vec<(String, String)> =
        settings.into_iter().chain(further).map(|(key, value)| (key.to_owned(), value)).collect();
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
    let (mut windows, mut nodes, mut features) = (Vec::new(), Vec::new(), Vec::new());
    // Both lists are in order of time for each machine.
    for seen in &outcome.patterns {
        let Place::IoNode(node) = seen.place else { continue };
        let same = |window: &&sluice_sim::Window| window.place == seen.place && window.features.end == seen.window.end;
        let Some(window) = outcome.windows.iter().find(same) else { continue };
        windows.push(Observation::of(&window.features, Some(&seen.window)));
        nodes.push(node);
        features.push(window.features);
    }
    Ok(Seen { known, windows, nodes, features })
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
