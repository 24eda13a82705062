//! Readers of the tables of a scenario.

use std::path::Path;
use std::sync::Arc;

use sluice_adapt::orchestrator::{Settings, Slicing};
use sluice_adapt::selector::Kind as Chooser;
use sluice_core::{Op, Ordering, PolicyConfig};
use sluice_mpiio::plan::Strategy;

use super::bounds::{check_processes, scaled};
use super::spec::{
    Allocation, Application, Clients, FaultEvent, FaultKind, Faults, Kernel, MpiIo, Network, Nodes, Orchestration,
    PageCache, Place, Scale, Scenario, Storage, Tier,
};
use super::value::{Reader, Result, ScenarioError};
use crate::workload::{BENCHMARKS, Barrier, OpMix, Pattern, Phase, Trace, Wanted, benchmark};

/// About what waking up a process on a busy machine costs.
const JITTER_NS: u64 = 20_000;

/// Length of the windows by which algorithms are chosen.
const SELECTING_NS: u64 = 100_000_000;

const ALLOCATIONS: [(&str, Allocation); 3] =
    [("groups", Allocation::Groups), ("present", Allocation::Present), ("extents", Allocation::Extents)];

const MPI_IO: [(&str, MpiIo); 8] = [
    ("plain", MpiIo::Plain),
    ("collective", MpiIo::Collective),
    ("resonant", MpiIo::Resonant(None)),
    ("agents", MpiIo::Resonant(Some(Strategy::Agents))),
    ("early", MpiIo::Resonant(Some(Strategy::Early))),
    ("timed", MpiIo::Resonant(Some(Strategy::Timed))),
    ("dualpar", MpiIo::DataDriven { forced: true }),
    ("dualpar-auto", MpiIo::DataDriven { forced: false }),
];

/// Most machines of a kind.
const NODES_MAX: u64 = 1 << 20;

impl Scenario {
    /// Reads a scenario from a table; files count from `base`.
    pub(super) fn read(table: &toml::Table, base: &Path, file_name: &str) -> Result<Scenario> {
        let root = Reader::new(table);
        for key in ["axis", "exclude"] {
            root.raw(key);
        }
        let scale = read_scale(&root)?;
        let clients = root.table("clients")?.map(read_clients).transpose()?;
        let network = root.table("network")?.map(read_network).transpose()?;
        let empty = toml::Table::new();
        let default = Reader::absent("servers", &empty);
        let (servers, storage) = read_servers(root.table("servers")?, &default, scale)?;
        let io_nodes = match root.table("io_nodes")? {
            Some(reader) => read_io_nodes(reader)?,
            None => Nodes { count: 0, ..servers.clone() },
        };
        let mut applications = Vec::new();
        for reader in root.tables("application")? {
            applications.extend(read_application(reader, scale, base, &applications)?);
        }
        if applications.is_empty() {
            return Err(root.error("application", "there must be one at least: [[application]]"));
        }
        let faults =
            root.table("faults")?.map(|reader| read_faults(reader, servers.count, io_nodes.count)).transpose()?;
        let scenario = Scenario {
            name: root.text("name")?.unwrap_or_else(|| file_name.to_owned()),
            title: root.text("title")?.unwrap_or_default(),
            source: root.text("source")?.unwrap_or_default(),
            scale,
            seed: root.number("seed", 1)?,
            clients: clients.unwrap_or(Clients {
                nodes: 1,
                cyclic: false,
                transfer: 1 << 20,
                jitter_ns: JITTER_NS,
                disorder_ns: 0,
            }),
            network: network.unwrap_or_else(default_network),
            servers,
            storage,
            io_nodes,
            noise: root.table("noise")?.map(read_noise).transpose()?.unwrap_or((0.0, 0.0)),
            applications,
            faults,
            compare: root.table("report")?.map(read_report).transpose()?.flatten(),
        };
        if scenario.faults.is_some() && scenario.storage.cache.is_some() {
            let reason =
                "with a page cache a crash would lose what was answered already; faults are for servers without one";
            return Err(root.error("faults", reason));
        }
        let crashes = |event: &FaultEvent| event.kind == FaultKind::Crash && matches!(event.place, Place::Server(_));
        if scenario.storage.tier.is_some() && scenario.faults.iter().flat_map(|faults| &faults.events).any(crashes) {
            return Err(root.error("faults.event", "a server with a simulated tier does not crash; `tier` must be off"));
        }
        if scenario.faults.is_some() && scenario.applications.iter().any(|app| app.mpi_io != MpiIo::Plain) {
            return Err(root.error("faults", "are for applications whose `mpi_io` is plain"));
        }
        root.finish()?;
        scenario.check_bounds()?;
        Ok(scenario)
    }
}

fn read_scale(root: &Reader<'_>) -> Result<Scale> {
    let Some(text) = root.text_or_number("scale")? else { return Ok(Scale { numerator: 1, denominator: 1 }) };
    let (above, below) = text.split_once('/').unwrap_or((&text, "1"));
    match (above.trim().parse(), below.trim().parse()) {
        (Ok(numerator), Ok(denominator))
            if (1..=1 << 30).contains(&numerator) && (1..=1 << 30).contains(&denominator) =>
        {
            Ok(Scale { numerator, denominator })
        }
        _ => Err(root.error("scale", format!("is {text:?}, must be a fraction like \"1/16\" or a number like \"2\""))),
    }
}

fn read_clients(reader: Reader<'_>) -> Result<Clients> {
    let clients = Clients {
        nodes: reader.count("nodes", 1, 1, NODES_MAX)? as u32,
        cyclic: reader.choice("placement", false, &[("block", false), ("cyclic", true)])?,
        transfer: reader.bytes("transfer", 512, 1 << 30)?.unwrap_or(1 << 20) as u32,
        jitter_ns: reader.duration("jitter", JITTER_NS)?,
        disorder_ns: reader.duration("disorder", 0)?,
    };
    reader.finish()?;
    Ok(clients)
}

fn default_network() -> Network {
    Network {
        bandwidth: 125_000_000,
        latency_ns: 50_000,
        message_ns: 2_000,
        header: 160,
        by_arrival: false,
        burst: 0,
        port_buffer: 0,
        retransmit_ns: 200_000_000,
    }
}

fn read_network(reader: Reader<'_>) -> Result<Network> {
    let default = default_network();
    let network = Network {
        bandwidth: reader.rate("bandwidth", default.bandwidth)?,
        latency_ns: reader.duration("latency", default.latency_ns)?,
        message_ns: reader.duration("message_cost", default.message_ns)?,
        header: reader.bytes("header", 0, 1 << 20)?.unwrap_or(default.header),
        by_arrival: reader.choice("sharing", false, &[("fair", false), ("arrival", true)])?,
        burst: reader.bytes("burst", 0, 1 << 30)?.unwrap_or(0),
        port_buffer: reader.bytes("port_buffer", 0, 1 << 30)?.unwrap_or(0),
        retransmit_ns: reader.duration("retransmit", default.retransmit_ns)?.max(1),
    };
    reader.finish()?;
    Ok(network)
}

/// `"aioli wait_time=500us"`.
fn read_policy(reader: &Reader<'_>) -> Result<PolicyConfig> {
    let text = reader.text("policy")?.unwrap_or_else(|| "noop".to_owned());
    parse_policy(&text).map_err(|reason| reader.error("policy", reason))
}

/// An algorithm with its parameters as scenarios write it: `aioli wait_time=500us`.
///
/// # Errors
/// What is wrong, with the nearest name.
pub fn parse_policy(text: &str) -> std::result::Result<PolicyConfig, String> {
    let mut words = text.split_whitespace();
    let say = |error: &sluice_core::ConfigError, given: &str| {
        format!("{error}{}", sluice_notation::hint(given, error.known()))
    };
    let name = words.next().unwrap_or_default();
    let mut policy = PolicyConfig::parse(name).map_err(|error| say(&error, name))?;
    for word in words {
        let (key, value) =
            word.split_once('=').ok_or_else(|| format!("{word:?} is not of the form parameter=value"))?;
        policy = policy.with(key, value).map_err(|error| say(&error, key))?;
    }
    Ok(policy)
}

fn read_nodes(reader: &Reader<'_>, count: u64) -> Result<Nodes> {
    let nodes = Nodes {
        count: reader.count("count", count, count, NODES_MAX)? as u32,
        policy: read_policy(reader)?,
        in_flight: reader.count("in_flight", 0, 0, 1 << 20)? as u32,
        max_wait_ns: reader.duration("max_wait", 500_000_000)?,
        anticipation_ns: reader.duration("anticipation", 0)?,
        batch_bytes: reader.bytes("batch_bytes", 1, 1 << 40)?.unwrap_or(1 << 20),
        batch_requests: reader.count("batch_requests", 256, 1, 1 << 20)? as u32,
        capacity: reader.count("capacity", 32_768, 1, 1 << 24)? as u32,
        ordering: reader.choice(
            "ordering",
            Ordering::Strict,
            &[("strict", Ordering::Strict), ("none", Ordering::None)],
        )?,
        request_ns: reader.duration("request_cost", 10_000)?,
        engine_ns: reader.duration("engine_cost", 300)?,
        engine_per_file_ns: reader.duration("engine_cost_per_file", 0)?,
        count_peers: reader.choice("active", false, &[("threads", false), ("peers", true)])?,
        contention: reader.factor("contention", 0.0, 1e6)?,
        coherence: reader.factor("coherence", 0.0, 1e6)?,
        cores: reader.count("cores", 4, 1, 1024)? as u32,
        window_ns: reader.duration("window", 1_000_000_000)?.max(1000),
        in_file: false,
    };
    let bounded = nodes.count_peers || nodes.in_flight > 0 || reader.table.contains_key("threads");
    if (nodes.contention > 0.0 || nodes.coherence > 0.0) && !bounded {
        return Err(reader.error(
            "contention",
            "and `coherence` are about threads: say how many (`in_flight`, or `threads` of servers)",
        ));
    }
    Ok(nodes)
}

/// `{ queue_age_max_ms = [20, 2000] }`: a parameter's value, or least and largest.
fn read_parameters(reader: &Reader<'_>) -> Result<Vec<(String, f64, f64)>> {
    let Some(value) = reader.raw("parameters") else { return Ok(Vec::new()) };
    let wrong = || {
        reader.error("parameters", "must be a table of the device model's parameters: a number, or least and largest")
    };
    let number = |value: &toml::Value| value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
    let table = value.as_table().ok_or_else(wrong)?;
    let read = |(key, value): (&String, &toml::Value)| {
        let (least, most) = match value.as_array().map(Vec::as_slice) {
            Some([least, most]) => (number(least), number(most)),
            Some(_) => (None, None),
            None => (number(value), number(value)),
        };
        match (least, most) {
            (Some(least), Some(most)) if least <= most => Ok((key.clone(), least, most)),
            _ => Err(wrong()),
        }
    };
    table.iter().map(read).collect()
}

fn read_noise(reader: Reader<'_>) -> Result<(f64, f64)> {
    let noise = (reader.factor("request", 0.0, 2.0)?, reader.factor("run", 0.0, 1.0)?);
    reader.finish()?;
    Ok(noise)
}

/// Size of a server's page cache: with little data it is small, too.
fn read_cache(reader: &Reader<'_>, scale: Scale) -> Result<Option<PageCache>> {
    let (background, hard) = (reader.factor("dirty_background", 0.1, 0.5)?, reader.factor("dirty_limit", 0.2, 0.5)?);
    let memory = reader.bytes("memory", 1 << 20, 1 << 50)?.unwrap_or(4 << 30);
    let read_ahead = reader.bytes("read_ahead", 4 << 10, 1 << 30)?.unwrap_or(128 << 10);
    let write_back = reader.count("write_back", 128, 1, 65_536)? as u32;
    let sync_ns = reader.duration("sync", 0)?;
    if !reader.choice("page_cache", false, &[("off", false), ("on", true)])? {
        return Ok(None);
    }
    if background >= hard {
        return Err(
            reader.error("dirty_background", format!("is {background}, must be less than `dirty_limit` ({hard})"))
        );
    }
    let memory = scaled(memory, scale).map_err(|reason| reader.error("memory", reason))?.max(1 << 20);
    Ok(Some(PageCache { memory, background, hard, read_ahead, write_back, sync_ns }))
}

#[derive(Clone, Copy, PartialEq)]
enum Orchestrator {
    Off,
    Even,
    Paper,
    On,
}

fn read_orchestration(reader: &Reader<'_>) -> Result<Option<Orchestration>> {
    let kinds = [
        ("off", Orchestrator::Off),
        ("even", Orchestrator::Even),
        ("paper", Orchestrator::Paper),
        ("on", Orchestrator::On),
    ];
    let settings = match reader.choice("orchestrator", Orchestrator::Off, &kinds)? {
        Orchestrator::Off => None,
        Orchestrator::Even => Some(Settings { slicing: Slicing::Even, ..Settings::paper() }),
        Orchestrator::Paper => Some(Settings::paper()),
        Orchestrator::On => Some(Settings::default()),
    };
    let default = settings.clone().unwrap_or_default();
    let window_ns = reader.duration("orchestrator_window", default.window_ns)?.max(1_000_000);
    let idle_ns = reader.duration("orchestrator_idle", default.idle_ns.unwrap_or(0))?;
    let ends_ns = reader.duration("orchestrator_ends", 0)?;
    let idle_ns = (idle_ns > 0).then_some(idle_ns);
    Ok(settings.map(|settings| Orchestration { settings: Settings { window_ns, idle_ns, ..settings }, ends_ns }))
}

/// An SSD before a server's device: with little data it is small, too.
fn read_tier(reader: &Reader<'_>, scale: Scale) -> Result<Option<Tier>> {
    let kind = reader.choice("tier", None, &[("off", None), ("paper", Some(true)), ("on", Some(false))])?;
    let setting = |word: &str| match word.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(reader.error("tier_settings", format!("{word:?} is not of the form KEY=VALUE"))),
    };
    let settings = reader.text("tier_settings")?.unwrap_or_default();
    let settings = settings.split_whitespace().map(setting).collect::<Result<Vec<_>>>()?;
    let bytes = |key| {
        let all = reader.bytes(key, 0, 1 << 50)?.unwrap_or(8 << 30);
        scaled(all, scale).map_err(|reason| reader.error(key, reason))
    };
    let (queue, area) = (bytes("tier_queue")?.max(1 << 20), bytes("tier_area")?);
    let slot = reader.bytes("tier_slot", 4096, 1 << 30)?.unwrap_or(4 << 20);
    if !slot.is_multiple_of(4096) {
        return Err(reader.error("tier_slot", format!("is {slot}, must be a multiple of 4096")));
    }
    let device = reader.text("tier_device")?.unwrap_or_else(|| "ssd-sata".to_owned());
    let Some(paper) = kind else { return Ok(None) };
    // As many segments as a log of the usual size has at least, so that room comes in pieces here, too.
    let segment = (queue / 64 / 4096 * 4096).clamp(64 << 10, 4 << 20);
    let tier = Tier { paper, settings, device, queue, segment, area, slot };
    tier.config().map_err(|reason| reader.error("tier_settings", reason))?;
    sluice_device::model_with(&tier.device, &[], 0).map_err(|e| reader.error("tier_device", e.to_string()))?;
    Ok(Some(tier))
}

fn read_servers(reader: Option<Reader<'_>>, default: &Reader<'_>, scale: Scale) -> Result<(Nodes, Storage)> {
    let reader = match &reader {
        Some(reader) => reader,
        None => default,
    };
    let mut nodes = read_nodes(reader, 1)?;
    let selector = reader.choice("selector", Chooser::Fixed, &Chooser::NAMES)?;
    if selector != Chooser::Fixed && !reader.table.contains_key("window") {
        nodes.window_ns = SELECTING_NS;
    }
    let storage = Storage {
        stripe: reader.bytes("stripe", 512, 1 << 40)?.unwrap_or(64 << 10),
        device: reader.text("device")?.unwrap_or_else(|| "hdd-7200".to_owned()),
        threads: reader.count("threads", 0, 0, 1 << 20)? as u32,
        vectored: reader.flag("vectored", true)?,
        parameters: read_parameters(reader)?,
        allocation: reader.choice("allocation", Allocation::Groups, &ALLOCATIONS)?,
        device_queue: reader.count("device_queue", 0, 0, 65_536)? as u32,
        device_transfer: reader.bytes("device_transfer", 64 << 10, 1 << 30)?.unwrap_or(512 << 10),
        kernel: reader.choice(
            "kernel",
            Kernel::None,
            &[("none", Kernel::None), ("deadline", Kernel::Deadline), ("cfq", Kernel::Cfq)],
        )?,
        cache: read_cache(reader, scale)?,
        predict: reader.count("predict", 0, 0, 64)? as u32,
        first_hashed: reader.choice("first", true, &[("hash", true), ("zero", false)])?,
        extent: reader.bytes("extent", 4096, 1 << 40)?.unwrap_or(64 << 20),
        selector,
        file_distance: reader.bytes("file_distance", 0, 1 << 50)?.unwrap_or(0),
        orchestration: read_orchestration(reader)?,
        tier: read_tier(reader, scale)?,
    };
    for most in [false, true] {
        let chosen = |(key, low, high): &(String, f64, f64)| (key.clone(), if most { *high } else { *low });
        let parameters: Vec<(String, f64)> = storage.parameters.iter().map(chosen).collect();
        if let Err(error) = sluice_device::model_with(&storage.device, &parameters, 0) {
            return Err(reader.error("device", error.to_string()));
        }
    }
    reader.check_all()?;
    Ok((nodes, storage))
}

fn read_io_nodes(reader: Reader<'_>) -> Result<Nodes> {
    let in_file = reader.choice("offsets", false, &[("server", false), ("file", true)])?;
    let nodes = Nodes { in_file, ..read_nodes(&reader, 0)? };
    reader.finish()?;
    Ok(nodes)
}

fn read_application(reader: Reader<'_>, scale: Scale, base: &Path, before: &[Application]) -> Result<Vec<Application>> {
    let name = reader.text("name")?.unwrap_or_else(|| "app".to_owned());
    let copies = reader.count("copies", 1, 1, 10_000)?;
    // Asked for in any case: names of keys are suggested from what was.
    let given = reader.raw("processes").is_some().then(|| reader.count("processes", 1, 1, 10_000_000)).transpose()?;
    let mut phases = read_benchmark(&reader, given.unwrap_or(1) as u32)?;
    for phase in reader.tables("phase")? {
        phases.push(read_phase(phase, base)?);
    }
    let recorded = phases.iter().map(Phase::recorded_processes).max().unwrap_or(0);
    let processes = given.map_or(recorded.max(1), |given| given as u32);
    if processes < recorded {
        let reason =
            format!("is {processes}, but the trace has {recorded} processes, whose requests would be left out");
        return Err(reader.error("processes", reason));
    }
    let others = before.iter().map(|application| u128::from(application.processes)).sum();
    check_processes(others, processes.into(), copies).map_err(|reason| reader.error("processes", reason))?;
    if phases.is_empty() {
        return Err(reader.error("phase", "there must be one at least (or a `benchmark`)"));
    }
    for phase in &mut phases {
        let data = scaled(phase.data, scale).map_err(|reason| reader.error("phase.data", reason))?;
        phase.data = round_to(data, phase.request.1);
    }
    let application = Application {
        name,
        processes,
        start_ns: reader.duration("start", 0)?,
        start_spread_ns: reader.duration("start_spread", 1_000_000)?,
        repeat: reader.count("repeat", 1, 1, 1 << 30)? as u32,
        barrier_ns: reader.duration("barrier_cost", 0)?,
        mpi_io: reader.choice("mpi_io", MpiIo::Plain, &MPI_IO)?,
        quota: reader.bytes("quota", 4096, 1 << 30)?.unwrap_or(1 << 20),
        phases,
    };
    if application.mpi_io != MpiIo::Plain && application.phases.iter().any(|phase| phase.depth > 1) {
        return Err(reader.error("mpi_io", "is about blocking calls: `depth` must be 1"));
    }
    reader.finish()?;
    let named = |copy| Application { name: format!("{}-{copy}", application.name), ..application.clone() };
    Ok(if copies == 1 { vec![application] } else { (1..=copies).map(named).collect() })
}

/// Whole requests, at least one.
fn round_to(data: u64, request: u64) -> u64 {
    if data.is_multiple_of(request) && data > 0 { data } else { (data / request).max(1) * request }
}

fn read_benchmark(reader: &Reader<'_>, processes: u32) -> Result<Vec<Phase>> {
    let name = reader.text("benchmark")?;
    let volume = reader.bytes("volume", 1, 1 << 60)?;
    let request = reader.bytes("request", 1, 1 << 40)?;
    let op = reader.choice("op", Op::Read, &[("read", Op::Read), ("write", Op::Write)])?;
    let Some(name) = name else {
        return match volume.or(request) {
            Some(_) => Err(reader
                .error("volume", "and `request` are for a `benchmark`; phases have their own `data` and `request`")),
            None => Ok(Vec::new()),
        };
    };
    let volume =
        volume.ok_or_else(|| reader.error("volume", "a benchmark needs it: bytes of all processes together"))?;
    benchmark(&name, Wanted { processes, volume, request, op }).ok_or_else(|| {
        let names: Vec<&str> = BENCHMARKS.iter().map(|row| row.name).collect();
        let hint = sluice_notation::hint(&name, names.iter().copied());
        reader.error("benchmark", format!("is {name:?}, must be one of {}{hint}", names.join(", ")))
    })
}

#[derive(Clone, Copy)]
enum Kind {
    Contiguous,
    Strided,
    Random,
    Vector,
    Append,
    Trace,
}

fn read_phase(reader: Reader<'_>, base: &Path) -> Result<Phase> {
    let read_share = reader.share("read_share", 500_000)?;
    let ops = [("read", OpMix::Only(Op::Read)), ("write", OpMix::Only(Op::Write)), ("mixed", OpMix::Mixed(read_share))];
    let kinds = [
        ("contiguous", Kind::Contiguous),
        ("strided", Kind::Strided),
        ("random", Kind::Random),
        ("vector", Kind::Vector),
        ("append", Kind::Append),
        ("trace", Kind::Trace),
    ];
    let barriers = [("none", Barrier::None), ("phase", Barrier::Phase), ("request", Barrier::Request)];
    let size = 1 << 40;
    let request = reader.size("request", size)?.unwrap_or((64 << 10, 64 << 10));
    let region = reader.bytes("region", 1, size)?.unwrap_or(request.1);
    let spacing = reader.bytes("spacing", 0, size)?.unwrap_or(0);
    let recorded_times = reader.choice("timing", false, &[("think", false), ("recorded", true)])?;
    let trace = reader.text("trace")?;
    let pattern = match reader.choice("pattern", Kind::Contiguous, &kinds)? {
        Kind::Contiguous => Pattern::Contiguous,
        Kind::Strided => Pattern::Strided,
        Kind::Random => Pattern::Random,
        Kind::Vector if request.0 != request.1 || !request.0.is_multiple_of(region) => {
            return Err(reader.error("region", "requests must be a whole number of regions"));
        }
        Kind::Vector => Pattern::Vector { region, spacing },
        Kind::Append => Pattern::Append,
        Kind::Trace => {
            let name = trace.ok_or_else(|| reader.error("trace", "this pattern needs it: the name of a CSV file"))?;
            let path = base.join(name);
            let load =
                Trace::load(&path).map_err(|error| reader.error("trace", format!("{}: {error}", path.display())));
            Pattern::Trace { trace: Arc::new(load?), recorded_times }
        }
    };
    let phase = Phase {
        op: reader.choice("op", OpMix::Only(Op::Read), &ops)?,
        pattern,
        per_process: reader.choice("files", false, &[("shared", false), ("per-process", true)])?,
        file: reader.text("file")?.unwrap_or_else(|| "data".to_owned()),
        data: reader.bytes("data", 1, 1 << 50)?.unwrap_or(1 << 20),
        request,
        depth: reader.count("depth", 1, 1, 65_536)? as u32,
        think_ns: reader.duration("think", 0)?,
        think_spread: reader.share("think_spread", 0)?,
        compute_ns: reader.duration("compute", 0)?,
        compute_spread: reader.share("compute_spread", 0)?,
        barrier: reader.choice("barrier", Barrier::None, &barriers)?,
        dependent: reader.flag("dependent", false)?,
    };
    reader.finish()?;
    Ok(phase)
}

fn read_faults(reader: Reader<'_>, servers: u32, io_nodes: u32) -> Result<Faults> {
    let mut events = Vec::new();
    for event in reader.tables("event")? {
        events.push(read_fault(event, servers, io_nodes)?);
    }
    let faults = Faults {
        timeout_ns: reader.duration("timeout", 2_000_000_000)?.max(1000),
        loss: reader.share("loss", 0)?,
        duplicate: reader.share("duplicate", 0)?,
        delay_ns: reader.duration("delay", 0)?,
        events,
    };
    reader.finish()?;
    Ok(faults)
}

#[derive(Clone, Copy)]
enum FaultName {
    Crash,
    Slow,
    DeviceErrors,
    Skew,
}

fn read_fault(reader: Reader<'_>, servers: u32, io_nodes: u32) -> Result<FaultEvent> {
    let (factor, share, by) =
        (reader.count("factor", 10, 1, 1000)?, reader.share("share", 100_000)?, reader.duration("by", 1_000_000)?);
    let names = [
        ("crash", FaultName::Crash),
        ("slow", FaultName::Slow),
        ("device-errors", FaultName::DeviceErrors),
        ("skew", FaultName::Skew),
    ];
    let kind = match reader.choice("kind", FaultName::Crash, &names)? {
        FaultName::Crash => FaultKind::Crash,
        FaultName::Slow => FaultKind::Slow(factor),
        FaultName::DeviceErrors => FaultKind::DeviceErrors(share),
        FaultName::Skew => FaultKind::Skew(by),
    };
    let text = reader.text("node")?.unwrap_or_default();
    let place = match text.split_once(' ').and_then(|(what, number)| Some((what, number.trim().parse::<u32>().ok()?))) {
        Some(("server", number)) if number < servers => Place::Server(number),
        Some(("io_node", number)) if number < io_nodes => Place::IoNode(number),
        _ => {
            let reason =
                format!("is {text:?}, must be \"server N\" (N below {servers}) or \"io_node N\" (N below {io_nodes})");
            return Err(reader.error("node", reason));
        }
    };
    if matches!((kind, place), (FaultKind::Slow(_) | FaultKind::DeviceErrors(_), Place::IoNode(_))) {
        return Err(reader.error("node", "I/O nodes have no device"));
    }
    let event = FaultEvent {
        kind,
        place,
        at_ns: reader.duration("at", 0)?,
        lasts_ns: reader.duration("lasts", 1_000_000_000)?,
    };
    reader.finish()?;
    Ok(event)
}

fn read_report(reader: Reader<'_>) -> Result<Option<(String, String)>> {
    let (compare, baseline) = (reader.text("compare")?, reader.text("baseline")?);
    reader.finish()?;
    match (compare, baseline) {
        (Some(compare), Some(baseline)) => Ok(Some((compare, baseline))),
        (None, None) => Ok(None),
        _ => Err(ScenarioError::new("report", "needs both `compare` and `baseline`")),
    }
}
