//! How much a scenario asks for, estimated before anything is built: what cannot be done is refused with the numbers.

use sluice_dualpar::plan::{IN_FLIGHT, LONGEST, LONGEST_WRITE, SMALL_IN_FLIGHT};
use sluice_mpiio::list::{REQUEST_BYTES, SEGMENTS};
use sluice_notation::show_bytes;

use super::spec::{Application, COLLECTIVE_BUFFER, MpiIo, Scale, Scenario};
use super::value::{Result, ScenarioError};
use crate::workload::{Pattern, Phase};

/// Most runs of a plan.
pub(super) const RUNS_MAX: u128 = 100_000;
/// Most processes of all applications.
pub(super) const PROCESSES_MAX: u128 = 1 << 24;
/// Most requests at the data servers: some forty hours of one core.
const REQUESTS_MAX: u128 = 100_000_000_000;
/// Most memory that a simulation may be expected to need, in bytes.
const MEMORY_MAX: u128 = 16 << 30;
/// Files end before this, so that no sum of offsets can overflow.
const FILE_MAX: u128 = 1 << 61;

/// Bytes of a process, of a machine with its links, of a server's parts beside its engine, of a place in an engine, of a file
/// in an engine, of a piece of a request under way, and of a region of a request. Measured with ten times the clients of
/// Mira (`scenarios/mira.toml`) and rounded up.
const PROCESS: u128 = 320;
const MACHINE: u128 = 256;
const SERVER: u128 = 16 << 10;
const PLACE: u128 = 320;
const FILE: u128 = 320;
const PIECE: u128 = 320;
const CACHE_BLOCK: u128 = 160;
const REGION: u128 = 16;
/// Of what a process has on a server, in the plan of a collective call.
const SHARE: u128 = 16;
/// Of a piece of a tier's log: in its mapping table, in its segment, and while it is written back.
const EXTENT: u128 = 256;

/// What a simulation will need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Processes of all applications.
    pub processes: u128,
    /// Requests that data servers receive, without repetitions.
    pub requests: u128,
    /// Bytes that applications move.
    pub bytes: u128,
    /// Memory in bytes, rather too much than too little.
    pub memory: u128,
}

impl Scenario {
    /// Estimates what a simulation will need. O(phases of all applications).
    #[must_use]
    pub fn needs(&self) -> Needs {
        let mut needs = Needs { processes: 0, requests: 0, bytes: 0, memory: 0 };
        let (mut under_way, mut regions, mut files, mut shares) = (0, 0, 0, 0);
        for application in &self.applications {
            let processes = u128::from(application.processes);
            needs.processes += processes;
            let mut most = (0, 0);
            for phase in &application.phases {
                let pieces = self.pieces(phase);
                let calls = calls(phase, processes);
                let rounds = u128::from(application.repeat);
                needs.requests = needs.requests.saturating_add(calls.saturating_mul(pieces.0).saturating_mul(rounds));
                needs.bytes = needs.bytes.saturating_add(bytes(phase, processes).saturating_mul(rounds));
                let depth = u128::from(phase.depth);
                most = (most.0.max(pieces.1.saturating_mul(depth)), most.1.max(region_count(phase)));
                files += u128::from(phase.files(application.processes));
            }
            most.0 = most.0.max(self.batch_pieces(application));
            if let MpiIo::Resonant(_) = application.mpi_io {
                shares = processes.saturating_mul(self.servers.count.into()).saturating_mul(SHARE).max(shares);
            }
            under_way = most.0.saturating_mul(processes).saturating_add(under_way);
            regions = most.1.saturating_mul(processes).saturating_add(regions);
        }
        let servers = u128::from(self.servers.count);
        let io_nodes = u128::from(self.io_nodes.count);
        let machines = u128::from(self.clients.nodes) + servers + io_nodes;
        let engine = |capacity: u32, files: u128, outstanding: u128| {
            PLACE * outstanding.clamp(1, capacity.into()) + FILE * files.min(outstanding * 4).clamp(1, 65_536)
        };
        let forwarded = under_way / io_nodes.max(1);
        let cached = self.storage.cache.as_ref().map_or(0, |cache| {
            // What is never touched takes no room.
            let block = u128::from(cache.memory).min(needs.bytes.saturating_mul(2) / servers) / (64 << 10);
            block * CACHE_BLOCK
        });
        // Of what is written, no more than fits into the log.
        let logged = self.storage.tier.as_ref().map_or(0, |tier| {
            let pieces = u128::from(tier.queue) / 1024;
            pieces.min(needs.requests / servers) * EXTENT
        });
        needs.memory = needs.processes * PROCESS
            + servers * (cached + logged)
            + machines * MACHINE
            + servers * (SERVER + engine(self.servers.capacity, files, under_way))
            + io_nodes * engine(self.io_nodes.capacity, files.saturating_mul(servers), forwarded);
        let moving = under_way.saturating_mul(PIECE).saturating_add(regions.saturating_mul(REGION));
        needs.memory = needs.memory.saturating_add(moving).saturating_add(shares);
        needs
    }

    /// Requests on the network for a request of a process: the fewest, and the most.
    fn pieces(&self, phase: &Phase) -> (u128, u128) {
        let (request, region) = sizes(phase);
        let unit = u128::from(self.clients.transfer).min(self.storage.stripe.into());
        let region = region.clamp(1, request.max(1));
        let of = |each: u128| request.div_ceil(region).max(1).saturating_mul(each);
        (of(region.div_ceil(unit).max(1)), of(region.div_ceil(unit) + 1))
    }

    /// Most requests on the network that one process has under way in a phase.
    pub(crate) fn pieces_max(&self, phase: &Phase) -> u64 {
        u64::try_from(self.pieces(phase).1 * u128::from(phase.depth)).unwrap_or(u64::MAX)
    }

    /// Most requests on the network that one process has under way for others.
    pub(crate) fn batch_pieces(&self, application: &Application) -> u128 {
        let unit = self.clients.transfer.min(u32::try_from(self.storage.stripe).unwrap_or(u32::MAX));
        let most = match application.mpi_io {
            MpiIo::Plain => return 0,
            MpiIo::Collective => COLLECTIVE_BUFFER,
            // A list that an agent asks for early, or a round's requests, beside two-phase calls.
            MpiIo::Resonant(_) => COLLECTIVE_BUFFER.max(SEGMENTS as u64 * REQUEST_BYTES as u64),
            MpiIo::DataDriven { .. } => LONGEST_WRITE.max(LONGEST) * IN_FLIGHT as u64,
        };
        u128::from(most / u64::from(unit) + 1 + SMALL_IN_FLIGHT.max(SEGMENTS) as u64)
    }

    /// Refuses what cannot be simulated.
    pub(super) fn check_bounds(&self) -> Result<()> {
        for application in &self.applications {
            for (number, phase) in application.phases.iter().enumerate() {
                let end = file_end(phase, application.processes.into());
                if end > FILE_MAX {
                    let key = format!("application.{}.phase.{number}.data", application.name);
                    let reason = format!(
                        "the file would have {end} bytes; at most {FILE_MAX} can be simulated. Fewer processes, less data \
                         or smaller spacing make it shorter"
                    );
                    return Err(ScenarioError::new(key, reason));
                }
            }
        }
        let Needs { processes, requests, memory, bytes } = self.needs();
        let refuse = |reason: String| Err(ScenarioError::new("application", reason));
        if bytes > FILE_MAX {
            return refuse(format!(
                "{processes} processes would move {bytes} bytes; at most {FILE_MAX} can be simulated"
            ));
        }
        if memory > MEMORY_MAX {
            let (gib, most) = (memory >> 30, MEMORY_MAX >> 30);
            return refuse(format!(
                "{processes} processes with their requests under way would need about {gib} GiB of memory, at most {most} GiB \
                 are used. Smaller requests, larger regions, less depth or fewer processes need less"
            ));
        }
        if requests > REQUESTS_MAX {
            return refuse(format!(
                "the data servers would receive {requests} requests, some {} hours of one core; at most {REQUESTS_MAX} are \
                 simulated. `scale` makes the data smaller",
                requests / 700_000 / 3600
            ));
        }
        Ok(())
    }
}

/// Processes of an application and all its copies.
pub(super) fn check_processes(before: u128, processes: u64, copies: u64) -> std::result::Result<(), String> {
    let all = u128::from(processes) * u128::from(copies) + before;
    if all > PROCESSES_MAX {
        return Err(format!(
            "{copies} copies of {processes} processes make {all} in all, about {} of memory; at most {PROCESSES_MAX} can be \
             simulated",
            show_bytes(u64::try_from((all * PROCESS) >> 30).unwrap_or(u64::MAX).saturating_mul(1 << 30))
        ));
    }
    Ok(())
}

/// Data multiplied by the scale, if that can be simulated at all.
pub(super) fn scaled(data: u64, scale: Scale) -> std::result::Result<u64, String> {
    let all = u128::from(data) * u128::from(scale.numerator) / u128::from(scale.denominator);
    match u64::try_from(all) {
        Ok(all) if u128::from(all) <= FILE_MAX => Ok(all),
        _ => Err(format!("scaled by {scale} it would be {all} bytes; at most {FILE_MAX} can be simulated")),
    }
}

/// Bytes of the largest request, and of its contiguous pieces.
fn sizes(phase: &Phase) -> (u128, u128) {
    match &phase.pattern {
        Pattern::Vector { region, .. } => (phase.request.1.into(), (*region).into()),
        Pattern::Trace { trace, .. } => (trace.largest().into(), u128::MAX),
        _ => (phase.request.1.into(), u128::MAX),
    }
}

fn region_count(phase: &Phase) -> u128 {
    let (request, region) = sizes(phase);
    request.div_ceil(region.max(1)).max(1)
}

fn calls(phase: &Phase, processes: u128) -> u128 {
    match &phase.pattern {
        Pattern::Trace { trace, .. } => trace.requests(),
        _ => u128::from(phase.data.div_ceil(u64::midpoint(phase.request.0, phase.request.1).max(1))) * processes,
    }
}

fn bytes(phase: &Phase, processes: u128) -> u128 {
    match &phase.pattern {
        Pattern::Trace { trace, .. } => trace.bytes(),
        _ => u128::from(phase.data) * processes,
    }
}

/// Where the largest file of a phase ends at most.
fn file_end(phase: &Phase, processes: u128) -> u128 {
    let sharers = if phase.per_process { 1 } else { processes };
    let (data, request) = (u128::from(phase.data), u128::from(phase.request.1));
    let requests = data.div_ceil(phase.request.0.max(1).into());
    match phase.pattern {
        Pattern::Contiguous | Pattern::Random | Pattern::Append => data * processes,
        Pattern::Strided => (requests + 1).saturating_mul(sharers).saturating_mul(request),
        Pattern::Vector { region, spacing } => {
            let rows = data.div_ceil(region.max(1).into()) + 1;
            rows.saturating_mul(sharers).saturating_mul(u128::from(region) + u128::from(spacing))
        }
        // Ranges are looked at when a trace is read.
        Pattern::Trace { .. } => 0,
    }
}
