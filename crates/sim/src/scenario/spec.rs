//! A scenario: everything that one simulation is about.

use sluice_adapt::orchestrator::Settings;
use sluice_adapt::selector::Kind;
use sluice_core::{Ordering, PolicyConfig};
use sluice_mpiio::plan::Strategy;

use crate::workload::Phase;

/// Data multiplied by a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Above the line.
    pub numerator: u64,
    /// Below it.
    pub denominator: u64,
}

impl std::fmt::Display for Scale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            denominator => write!(f, "{}/{denominator}", self.numerator),
        }
    }
}

/// The machines on which processes run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// How many.
    pub nodes: u32,
    /// Processes go to them by turns; else in contiguous groups.
    pub cyclic: bool,
    /// Largest request on the network in bytes.
    pub transfer: u32,
    /// A request of a process leaves up to this much later.
    pub jitter_ns: u64,
    /// Each part of a request that is split leaves up to this much later than the request, by itself.
    pub disorder_ns: u64,
}

/// Links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Bytes per second of each direction of a machine's link; 0: no limit.
    pub bandwidth: u64,
    /// From the end of sending to the beginning of receiving, in nanoseconds.
    pub latency_ns: u64,
    /// A message occupies a link for this long beside its bytes.
    pub message_ns: u64,
    /// Bytes of a message beside its data.
    pub header: u64,
    /// Messages pass a link in order of arrival; else flows share it.
    pub by_arrival: bool,
    /// Bytes that may pass a link at once after a pause, as through a token bucket.
    pub burst: u64,
    /// Bytes that the switch can hold for each machine; 0: no limit.
    pub port_buffer: u64,
    /// After this time a message that found no room is sent again, in nanoseconds.
    pub retransmit_ns: u64,
}

/// A kind of machine with an engine: data servers, or I/O nodes.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// How many.
    pub count: u32,
    /// The algorithm.
    pub policy: PolicyConfig,
    /// Most batches out at a time; 0: no limit.
    pub in_flight: u32,
    /// Bound on waiting, in nanoseconds; 0: none.
    pub max_wait_ns: u64,
    /// What moving costs a device that may be kept idle for the stream that it serves, in nanoseconds; 0: it is not.
    pub anticipation_ns: u64,
    /// Most bytes in a batch.
    pub batch_bytes: u64,
    /// Most requests in a batch.
    pub batch_requests: u32,
    /// Most requests in the engine.
    pub capacity: u32,
    /// Whether overlapping requests keep their order.
    pub ordering: Ordering,
    /// Processor time of a request, in nanoseconds.
    pub request_ns: u64,
    /// Of that in the engine.
    pub engine_ns: u64,
    /// The same for each file with requests.
    pub engine_per_file_ns: u64,
    /// What `contention` and `coherence` count: machines with requests inside; else threads at work.
    pub count_peers: bool,
    /// How much longer that takes for each other thread at work.
    pub contention: f64,
    /// How much longer for each pair of threads at work.
    pub coherence: f64,
    /// Cores.
    pub cores: u32,
    /// Length of the windows of the engine's statistics, in nanoseconds.
    pub window_ns: u64,
    /// The engine knows where requests are in the file, not in the data server's part of it. I/O nodes only.
    pub in_file: bool,
}

/// What only data servers have.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Stripe size in bytes.
    pub stripe: u64,
    /// Device model.
    pub device: String,
    /// Threads that execute batches; 0: no limit.
    pub threads: u32,
    /// A batch is one command.
    pub vectored: bool,
    /// Parameters of the device that differ from the model's: name, least and largest; drawn from the seed.
    pub parameters: Vec<(String, f64, f64)>,
    /// Where files lie on the device.
    pub allocation: Allocation,
    /// Commands that the device may choose from; 0: as many as the kernel lets it.
    pub device_queue: u32,
    /// Most bytes of a command that the page cache or the kernel's scheduler makes.
    pub device_transfer: u64,
    /// The kernel's scheduler.
    pub kernel: Kernel,
    /// The page cache; none: requests go past it.
    pub cache: Option<PageCache>,
    /// Runs recorded before, from which requests are predicted; 0: no predictions.
    pub predict: u32,
    /// The first stripe of a file is on a server that its number is hashed to; else on server 0.
    pub first_hashed: bool,
    /// Unit of space on the device in bytes.
    pub extent: u64,
    /// Who chooses the algorithm while it runs.
    pub selector: Kind,
    /// Bytes left free on the device behind each file that lies in one piece.
    pub file_distance: u64,
    /// Who decides which programs are served alone; none: nobody.
    pub orchestration: Option<Orchestration>,
    /// An SSD before the device.
    pub tier: Option<Tier>,
}

/// An SSD as extension of the queue before a server's device ([`sluice_tier`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// By the rules of the paper alone; else with ours.
    pub paper: bool,
    /// Settings that differ from these.
    pub settings: Vec<(String, String)>,
    /// Device model of the SSD.
    pub device: String,
    /// Bytes of the log,
    pub queue: u64,
    /// and of a segment of it.
    pub segment: u64,
    /// Bytes of the area for slots that are read,
    pub area: u64,
    /// and of a slot.
    pub slot: u64,
}

/// What the paper does differently: its rule, all writes whatever their size, nothing written that was not asked for, and a ghost
/// queue that is bounded by bytes only.
const PAPER: [(&str, &str); 3] = [("rule", "paper"), ("bypass", "none"), ("fill", "0")];
/// Settings about what a simulated tier has not: data, files, an end.
const NOT_SIMULATED: [&str; 6] = ["profile", "durable-writes", "unload", "disk-name", "failure-mark", "salvage"];

impl Tier {
    /// The settings as [`sluice_tier`] takes them.
    ///
    /// # Errors
    /// In words, if one cannot be used.
    pub fn config(&self) -> Result<sluice_tier::Config, String> {
        let mut config = sluice_tier::Config::default();
        let paper = PAPER.iter().filter(|_| self.paper).copied();
        for (key, value) in paper.chain(self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()))) {
            if NOT_SIMULATED.contains(&key) {
                return Err(format!("{key} means nothing for a simulated tier"));
            }
            config.set(key, value)?;
        }
        Ok(config)
    }
}

/// An orchestrator of all data servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Orchestration {
    /// How it decides.
    pub settings: Settings,
    /// From then on there is none any more, in nanoseconds; 0: it stays.
    pub ends_ns: u64,
}

/// Where files get their places on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// In block groups: those that are read before they are written lie in one piece, others get extents as they are written.
    Groups,
    /// The same, but all are there from the beginning, and lie in one piece also if they are written first.
    Present,
    /// All get extents when they are first touched.
    Extents,
}

/// The operating system's scheduler between a server and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// In order of arrival.
    None,
    /// By address, with deadlines.
    Deadline,
    /// Slices of time for each context, and idling.
    Cfq,
}

/// The page cache of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct PageCache {
    /// Bytes.
    pub memory: u64,
    /// Share of it that may be dirty before write-back begins.
    pub background: f64,
    /// Share that may be dirty before writers wait.
    pub hard: f64,
    /// Most bytes of a read-ahead window.
    pub read_ahead: u64,
    /// Most commands of write-back that are under way.
    pub write_back: u32,
    /// How often all of it is written back and forgotten, in nanoseconds; 0: never.
    pub sync_ns: u64,
}

/// What a node reads or writes at a time in a collective call, in bytes (ROMIO's `cb_buffer_size`).
pub(crate) const COLLECTIVE_BUFFER: u64 = 16 << 20;

/// How the calls of an MPI program are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiIo {
    /// Each process's by itself.
    Plain,
    /// As collective calls, in two phases (ROMIO): each node reads or writes a contiguous part of what all want.
    Collective,
    /// As collective calls by Resonant I/O, with the plans of `sluice_mpiio`: always in this way, or as it decides.
    Resonant(Option<Strategy>),
    /// Data-driven (DualPar), by the decisions of `sluice_dualpar`; `forced`: without asking whether it pays.
    DataDriven {
        /// In the mode from the start.
        forced: bool,
    },
}

impl MpiIo {
    /// Whether the processes meet at each call.
    pub(crate) fn is_collective(self) -> bool {
        matches!(self, MpiIo::Collective | MpiIo::Resonant(_))
    }
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// For the results.
    pub name: String,
    /// Processes.
    pub processes: u32,
    /// Start in nanoseconds.
    pub start_ns: u64,
    /// Each process starts up to this much later.
    pub start_spread_ns: u64,
    /// Times it goes through its phases.
    pub repeat: u32,
    /// From the last process's coming to a barrier until all go on, in nanoseconds.
    pub barrier_ns: u64,
    /// How its calls are carried out.
    pub mpi_io: MpiIo,
    /// Bytes that a process may have prefetched, if it is data-driven.
    pub quota: u64,
    /// Its phases.
    pub phases: Vec<Phase>,
}

impl Application {
    /// Bytes that it moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.phases.iter().map(|phase| phase.bytes(self.processes)).sum::<u64>() * u64::from(self.repeat)
    }
}

/// A machine that something happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A data server.
    Server(u32),
    /// An I/O node.
    IoNode(u32),
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The node loses what it has in memory and is away for a while.
    Crash,
    /// The device takes this many times as long.
    Slow(u64),
    /// This many of a million commands fail.
    DeviceErrors(u64),
    /// The node's clock is ahead by this much.
    Skew(u64),
}

/// A fault at a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultEvent {
    /// What.
    pub kind: FaultKind,
    /// Where.
    pub place: Place,
    /// From when on.
    pub at_ns: u64,
    /// For how long.
    pub lasts_ns: u64,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// A request is sent again after this time.
    pub timeout_ns: u64,
    /// Millionths of the messages that are lost.
    pub loss: u64,
    /// Millionths of the messages that arrive twice.
    pub duplicate: u64,
    /// Messages are late by up to this much.
    pub delay_ns: u64,
    /// What happens at certain times.
    pub events: Vec<FaultEvent>,
}

/// Everything that one simulation is about.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Short name.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where the experiment comes from.
    pub source: String,
    /// Data is multiplied by this (already done in the phases).
    pub scale: Scale,
    /// Base of all random numbers.
    pub seed: u64,
    /// Machines of the processes.
    pub clients: Clients,
    /// Links.
    pub network: Network,
    /// Data servers.
    pub servers: Nodes,
    /// Their storage.
    pub storage: Storage,
    /// Machines between; none if the count is 0.
    pub io_nodes: Nodes,
    /// Standard deviations of the logarithms of the factors by which times vary: for each request, and for each run.
    pub noise: (f64, f64),
    /// Programs.
    pub applications: Vec<Application>,
    /// What goes wrong.
    pub faults: Option<Faults>,
    /// Compared axis and its baseline.
    pub compare: Option<(String, String)>,
}

impl Scenario {
    /// Bytes that all applications move.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.applications.iter().map(Application::bytes).sum()
    }
}
