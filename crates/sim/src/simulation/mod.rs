//! One simulation: processes, machines, links, engines, devices.
//!
//! Everything happens at an [`Event`] of the [`Calendar`]. A process's request is a *call*; it is split into pieces, each of
//! which is *sent* to a machine and is a *job* there. The machine's engine, the one of production, lets jobs out in
//! *batches*. A data server executes a batch on its device; an I/O node sends it on as one request. Answers go back the same
//! way. Records are kept only as long as they are under way.

mod cache;
mod check;
mod data_driven;
mod disk;
mod elevator;
mod faults;
mod learning;
mod memory;
mod mpi;
mod network;
mod node;
mod orchestration;
mod outcome;
mod patterns;
mod places;
mod prediction;
mod processes;
mod records;
mod resonant;
mod selection;
mod tier;
mod windows;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_adapt::features::Answers;
use sluice_adapt::predictor::{Forecast, Handle};
use sluice_adapt::selector::Kind;
use sluice_core::PolicyConfig;

use crate::calendar::{Calendar, Event};
use crate::link::{Link, Message};
use crate::random::{Noise, Random};
use crate::scenario::{Application, MpiIo, Place, Scenario};
use crate::slab::Slab;
use crate::workload::Phase;

pub use cache::CacheOutcome;
pub(crate) use check::BLOCK;
pub use data_driven::DataDrivenCounts;
pub use disk::DeviceOutcome;
pub use faults::FaultCounts;
pub use orchestration::{OrchestrationOutcome, ProgramOutcome};
pub use outcome::{AppOutcome, Bin, Durations, NodesOutcome, Outcome, Point, Record, jain};
pub use patterns::{PatternWindow, Truth};
pub use prediction::PredictionCounts;
pub use resonant::ResonantCounts;
pub use selection::Adaptive;
pub use tier::TierOutcome;
pub use windows::{Selector, Setup, Window, windows_csv};

use cache::Transfer;
use check::Check;
use data_driven::DataDriven;
use disk::{Disk, Started};
use faults::Trouble;
use mpi::Work;
use node::Node;
use orchestration::Orchestration;
use patterns::Watch;
use prediction::Recorder;
use processes::{App, Process, Striping};
use records::{Batch, Call, Job, Sent};
use resonant::Resonant;

/// Why a simulation has no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The scenario cannot be simulated.
    #[error("{0}")]
    Setup(String),
    /// Someone wanted it to stop.
    #[error("interrupted")]
    Interrupted,
    /// Something that must never happen.
    #[error("{0}")]
    Violation(String),
}

/// How to simulate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Record time lines and the request path.
    pub record: bool,
    /// Check every step; needs requests that are multiples of 4 KiB, and memory for all of them.
    pub check: bool,
    /// Keep the features of every window of every engine.
    pub windows: bool,
    /// Keep what the requests of every data server and I/O node were like, and of which patterns they were; this is where the
    /// watchers of that know answers from. Times of windows as `windows`.
    pub patterns: Option<Answers>,
    /// Learn what every data server's device is like from what it serves ([`sluice_adapt::device`]).
    pub devices: bool,
    /// For tests of the checker: repeated requests are not recognised.
    #[doc(hidden)]
    pub forgetful: bool,
    /// Give up after so many events, as if interrupted; 0: never.
    pub events_max: u64,
    /// End after so many nanoseconds of virtual time, as one who measures with a clock does: only requests that were answered by
    /// then count, and the makespan is this time. 0: when all processes have finished. Not together with `check`.
    pub until_ns: u64,
}

/// A running hash over words.
#[derive(Clone, Copy, Debug)]
struct Digest(u64);

impl Digest {
    fn add(&mut self, words: &[u64]) {
        for word in words {
            self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            self.0 ^= self.0 >> 29;
        }
    }
}

pub(crate) struct Simulation<'a> {
    scenario: &'a Scenario,
    calendar: Calendar,
    random: Random,
    /// Numbers of machines.
    clients: u32,
    io_nodes: u32,
    servers: u32,
    header: u64,
    latency_ns: u64,
    /// Of each machine: for sending and for receiving.
    ports: Vec<(Link, Link)>,
    /// Messages that went through in a turn of a link.
    through: Vec<(Message, u64)>,
    striping: Striping,
    /// I/O nodes, then data servers.
    nodes: Vec<Node>,
    apps: Vec<App>,
    processes: Vec<Process>,
    /// Of each application, if it is data-driven.
    data_driven: Vec<Option<Box<DataDriven>>>,
    /// Of each application, if its collective calls are Resonant I/O's.
    resonant: Vec<Option<Box<Resonant>>>,
    /// What processes do for others.
    works: Slab<Work>,
    /// Ends of files that are appended to.
    ends: Vec<u64>,
    calls: Slab<Call>,
    sent: Slab<Sent>,
    jobs: Slab<Job>,
    batches: Slab<Batch>,
    /// Commands that devices serve, with the node.
    running: Slab<(u32, Started)>,
    /// Pages to be moved, and batches whose pages are there: for use again.
    transfers: Vec<Transfer>,
    batches_ready: Vec<u32>,
    /// Where files end, by number, as far as phases say.
    file_ends: Vec<u64>,
    /// Requests sent so far.
    numbers: u64,
    server_requests: u64,
    /// Messages lost at full ports, and sent again.
    retransmitted: u64,
    /// Processes that have not finished.
    unfinished: u32,
    dispatched: sluice_core::Batch,
    digest: Digest,
    faults: Option<Trouble>,
    check: Option<Check>,
    record: Option<Record>,
    /// What data servers receive, for predictions of later simulations.
    recorder: Option<Recorder>,
    predicts_from: Option<prediction::Source>,
    /// Of all predictors, also of those that were lost.
    predictions: Vec<Handle>,
    orchestration: Option<Orchestration>,
    /// Events that are planned at any time, whether anything else happens or not; those that are not planned again do not count.
    periodic: u64,
    events_max: u64,
    /// No event after that counts.
    until_ns: u64,
    selector: Option<&'a mut dyn Selector>,
    export_windows: bool,
    patterns: Option<Answers>,
    learns_devices: bool,
    windows: Vec<Window>,
    policy_changes: u64,
}

/// How many events happen between two looks at the flag to stop.
const LOOK_EVERY: u32 = 4096;
/// First stream of random numbers for noise.
const NOISE: u64 = 0x0153 << 40;
/// No time goes beyond this, so that sums of a time and a duration of a scenario cannot overflow.
const TIME_MAX: u64 = 1 << 61;

/// Simulates a scenario. The same scenario gives the same outcome, bit for bit.
///
/// # Errors
/// If it cannot be simulated, `stop` was set, or something happened that must not.
pub fn simulate(scenario: &Scenario, options: Options, stop: &AtomicBool) -> Result<Outcome, Failure> {
    let forecast = forecast(scenario, stop)?;
    simulate_predicted(scenario, options, forecast.as_ref(), stop)
}

/// What [`simulate`] predicts from: recordings of the scenario with other seeds; none if it wants no predictions.
///
/// # Errors
/// As [`simulate`].
pub fn forecast(scenario: &Scenario, stop: &AtomicBool) -> Result<Option<Arc<Forecast>>, Failure> {
    prediction::forecast(scenario, stop)
}

/// As [`simulate`], with this forecast, or none: for several simulations with the same recordings.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_predicted(
    scenario: &Scenario,
    options: Options,
    forecast: Option<&Arc<Forecast>>,
    stop: &AtomicBool,
) -> Result<Outcome, Failure> {
    let mut simulation = Simulation::new(scenario, options, forecast)?;
    let mut adaptive = Adaptive::new(scenario)?;
    if scenario.storage.selector != Kind::Fixed {
        simulation.selector = Some(&mut adaptive);
    }
    run_to_end(simulation, stop)?.outcome()
}

/// The same with somebody who is told of every window of every engine and may change the algorithm. What it does must follow
/// from what it is told alone; then the outcome is the same bit for bit, too.
///
/// # Errors
/// As [`simulate`]'s.
pub fn simulate_with(
    scenario: &Scenario,
    options: Options,
    selector: &mut dyn Selector,
    stop: &AtomicBool,
) -> Result<Outcome, Failure> {
    let forecast = prediction::forecast(scenario, stop)?;
    let mut simulation = Simulation::new(scenario, options, forecast.as_ref())?;
    simulation.selector = Some(selector);
    run_to_end(simulation, stop)?.outcome()
}

fn run_to_end<'a>(mut simulation: Simulation<'a>, stop: &AtomicBool) -> Result<Simulation<'a>, Failure> {
    simulation.run(stop)?;
    Ok(simulation)
}

impl<'a> Simulation<'a> {
    fn new(
        scenario: &'a Scenario,
        options: Options,
        forecast: Option<&Arc<Forecast>>,
    ) -> Result<Simulation<'a>, Failure> {
        let (clients, io_nodes, servers) = (scenario.clients.nodes, scenario.io_nodes.count, scenario.servers.count);
        let machines = clients + io_nodes + servers;
        let network = &scenario.network;
        let link = || Link::new(network.bandwidth, network.message_ns, network.by_arrival, network.burst);
        let mut simulation = Simulation {
            scenario,
            calendar: Calendar::default(),
            random: Random::new(scenario.seed, u64::MAX),
            clients,
            io_nodes,
            servers,
            header: network.header,
            latency_ns: network.latency_ns,
            ports: (0..machines).map(|_| (link(), link())).collect(),
            through: Vec::new(),
            striping: Striping {
                servers,
                hashed: scenario.storage.first_hashed.then(|| Random::new(scenario.seed, 0xf11e).next()),
            },
            nodes: Vec::new(),
            apps: Vec::new(),
            processes: Vec::new(),
            data_driven: Vec::new(),
            resonant: Vec::new(),
            works: Slab::default(),
            ends: Vec::new(),
            calls: Slab::default(),
            sent: Slab::default(),
            jobs: Slab::default(),
            batches: Slab::default(),
            running: Slab::default(),
            transfers: Vec::new(),
            batches_ready: Vec::new(),
            file_ends: Vec::new(),
            numbers: 0,
            server_requests: 0,
            retransmitted: 0,
            unfinished: 0,
            dispatched: sluice_core::Batch::new(),
            digest: Digest(0xcbf2_9ce4_8422_2325),
            faults: scenario.faults.clone().map(Trouble::new),
            check: options.check.then(|| Check::new(&scenario.io_nodes, &scenario.servers)),
            record: options.record.then(|| Record::new(servers)),
            recorder: None,
            predicts_from: None,
            predictions: Vec::new(),
            orchestration: None,
            periodic: 0,
            selector: None,
            export_windows: options.windows,
            patterns: options.patterns,
            learns_devices: options.devices,
            windows: Vec::new(),
            policy_changes: 0,
            events_max: if options.events_max == 0 { u64::MAX } else { options.events_max },
            until_ns: if options.until_ns == 0 { u64::MAX } else { options.until_ns },
        };
        if options.check && options.until_ns != 0 {
            return Err(Failure::Setup("what ends before all is answered cannot be checked".to_owned()));
        }
        if options.check && scenario.applications.iter().any(|application| application.mpi_io != MpiIo::Plain) {
            return Err(Failure::Setup("only applications whose `mpi_io` is plain can be checked".to_owned()));
        }
        if let Some(trouble) = &mut simulation.faults {
            trouble.forgetful = options.forgetful;
        }
        if let Some(wanted) = &scenario.storage.orchestration {
            simulation.orchestration = Some(Orchestration::new(scenario, wanted)?);
            if let Some(check) = &mut simulation.check {
                (io_nodes..io_nodes + servers).for_each(|node| check.anticipates(node));
            }
        }
        let files = simulation.add_apps();
        simulation.add_nodes(files)?;
        simulation.predicts_from = forecast.map(|it| prediction::Source::new(scenario, simulation.striping, it));
        (io_nodes..io_nodes + servers).for_each(|node| simulation.predict(node));
        simulation.plan_faults();
        Ok(simulation)
    }

    /// Adds applications and their processes; returns the number of files.
    fn add_apps(&mut self) -> u64 {
        let total: u64 = self.scenario.applications.iter().map(|app| u64::from(app.processes)).sum();
        let mut files = Files::default();
        let mut number: u64 = 0;
        for (place, application) in self.scenario.applications.iter().enumerate() {
            let (first, ends) = files.of(place, application, &mut self.ends);
            self.note_file_ends(application, &first, files.next);
            let classes = patterns::classes(self.scenario, application);
            self.apps.push(App::new(first, ends, classes, application.start_ns));
            self.data_driven.push(DataDriven::new(application, number as u32));
            self.resonant.push(Resonant::new(application));
            for rank in 0..application.processes {
                let client = self.client_of(number, total);
                let random = Random::new(self.scenario.seed, number);
                let mut process = Process::new(place as u32, rank, client, random);
                let late = process.random().below(application.start_spread_ns + 1);
                let computes = application.phases[0].computes(process.random());
                process.starts(application.start_ns + late + computes);
                self.processes.push(process);
                self.calendar.plan(application.start_ns + late + computes, Event::Process(number as u32));
                number += 1;
            }
            self.unfinished += application.processes;
        }
        files.next
    }

    fn note_file_ends(&mut self, application: &Application, first: &[u64], files: u64) {
        self.file_ends.resize(files as usize, 0);
        for (phase, first) in application.phases.iter().zip(first) {
            let end = phase.file_end(application.processes);
            let count = phase.files(application.processes).max(1);
            for file in *first..first + u64::from(count) {
                let known = &mut self.file_ends[file as usize];
                *known = end.max(*known);
            }
        }
    }

    /// The machine of a process, of so many.
    fn client_of(&self, number: u64, total: u64) -> u32 {
        let clients = u64::from(self.clients);
        (if self.scenario.clients.cyclic { number % clients } else { number * clients / total }) as u32
    }

    fn add_nodes(&mut self, files: u64) -> Result<(), Failure> {
        let total: u64 = self.scenario.applications.iter().map(|app| u64::from(app.processes)).sum();
        let pieces =
            |app: &Application| app.phases.iter().map(|phase| self.scenario.pieces_max(phase)).max().unwrap_or(1);
        // Requests under way, by client machine.
        let mut by_client = vec![0; self.clients as usize];
        let mut number: u64 = 0;
        for application in &self.scenario.applications {
            let batch = u64::try_from(self.scenario.batch_pieces(application)).unwrap_or(u64::MAX);
            let pieces = pieces(application).max(batch);
            for _ in 0..application.processes {
                let client = &mut by_client[self.client_of(number, total) as usize];
                *client = pieces.saturating_add(*client);
                number += 1;
            }
        }
        let all = by_client.iter().fold(0, |all: u64, one| all.saturating_add(*one));
        let mut by_node = vec![0u64; self.io_nodes as usize];
        if self.io_nodes > 0 {
            for (client, outstanding) in (0..).zip(&by_client) {
                let sum = &mut by_node[(self.entrance(client, 0) - self.clients) as usize];
                *sum = sum.saturating_add(*outstanding);
            }
        }
        for (node, outstanding) in (0..).zip(by_node) {
            let machine = self.clients + node;
            let policy = node_policy(&self.scenario.io_nodes.policy, node, self.servers);
            let files = files * u64::from(self.servers);
            let nodes = &self.scenario.io_nodes;
            let pace = Noise::new(self.scenario.seed, NOISE + (2 << 32) + u64::from(node), self.scenario.noise);
            let mut io_node = Node::new(nodes, policy, machine, outstanding, files, None)?;
            io_node.watch = self.watch(Place::IoNode(node));
            self.nodes.push(io_node.paced(pace.map_or(1.0, |noise| noise.run())));
        }
        let storage = &self.scenario.storage;
        // Drives of one kind have one firmware.
        let mut random = Random::new(self.scenario.seed, 0xf1e3);
        let drawn = storage.parameters.iter().map(|(key, least, most)| {
            (key.clone(), least + (most - least) * (random.next() >> 11) as f64 / (1u64 << 53) as f64)
        });
        let parameters: Vec<(String, f64)> = drawn.collect();
        for server in 0..self.servers {
            let seed = self.scenario.seed.wrapping_add(server.into());
            let device = sluice_device::model_with(&storage.device, &parameters, seed)
                .map_err(|error| Failure::Setup(error.to_string()))?;
            let noise = Noise::new(self.scenario.seed, NOISE + u64::from(server), self.scenario.noise);
            let starts = self.orchestration.as_ref().map(|orchestration| orchestration.starts(server));
            let before = |wanted| tier::Tier::new(wanted, device.capacity_bytes(), !seed).map(Box::new);
            let tier = storage.tier.as_ref().map(before).transpose()?;
            let disk = Disk::new(device, storage, noise, starts.clone(), tier);
            let nodes = &self.scenario.servers;
            let policy = node_policy(&nodes.policy, server, self.servers);
            let machine = self.server_machine(server);
            let mut node = Node::new(nodes, policy, machine, all, files, Some(disk))?;
            if self.learns_devices {
                node.learning = Some(Box::new(learning::Learning::new(storage.cache.is_some())));
                node.engine.watch_device(true);
            }
            if let Some(starts) = starts {
                node.engine.watch_locality(Some(Orchestration::locality(starts)));
            }
            node.watch = self.watch(Place::Server(server));
            let pace = Noise::new(self.scenario.seed, NOISE + (1 << 32) + u64::from(server), self.scenario.noise);
            let node = node.paced(pace.map_or(1.0, |noise| noise.run()));
            self.nodes.push(node.executes(storage.vectored, storage.threads));
        }
        Ok(())
    }

    /// Whoever wants to know what the requests there are like.
    fn watch(&self, place: Place) -> Option<Box<Watch>> {
        self.patterns.map(|answers| Box::new(Watch::new(place, self.scenario.storage.stripe, answers)))
    }

    fn plan_faults(&mut self) {
        let Some(faults) = &self.scenario.faults else { return };
        for (number, event) in (0..).zip(&faults.events) {
            self.calendar.plan(event.at_ns, Event::Fault(2 * number));
            self.calendar.plan(event.at_ns.saturating_add(event.lasts_ns), Event::Fault(2 * number + 1));
        }
    }

    fn run(&mut self, stop: &AtomicBool) -> Result<(), Failure> {
        self.plan_windows();
        self.plan_orchestration();
        while self.unfinished > 0 {
            if stop.load(Ordering::Relaxed) || self.calendar.planned() > self.events_max {
                return Err(Failure::Interrupted);
            }
            for _ in 0..LOOK_EVERY {
                let Some(event) = self.calendar.next() else { break };
                if self.calendar.now() > self.until_ns {
                    return Ok(());
                }
                if self.calendar.now() > TIME_MAX {
                    return Err(Failure::Setup(
                        "more than 73 years of virtual time: something takes far too long".to_owned(),
                    ));
                }
                self.step(event)?;
                if self.unfinished == 0 {
                    break;
                }
            }
            if self.calendar.is_empty() && self.unfinished > 0 {
                return Err(self.stuck());
            }
        }
        Ok(())
    }

    fn step(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Process(process) => self.wake(process),
            Event::Done(call) => self.done(call)?,
            Event::Arrive(job) => self.arrive(job)?,
            Event::Ready(job) => self.ready(job)?,
            Event::Answer(job) => self.answered(job)?,
            Event::Timer(node) => self.timer(node)?,
            Event::Device(running) => self.served(running)?,
            Event::Received(job) => self.batch_answered(job)?,
            Event::Window(node) => self.window(node)?,
            Event::Kernel(node) => self.start_device(node),
            Event::Ssd(node, number) => self.ssd_served(node, number)?,
            Event::Tier(node) => self.look_at_tier(node),
            Event::Copied(batch) => self.copied(batch)?,
            Event::Flush(node) => self.flush(node),
            Event::Link(port) => self.link_turn(port)?,
            Event::Retry(sent, attempt) => self.retry(sent, attempt),
            Event::Fault(number) => self.fault(number)?,
            Event::Report(server) => self.report(server)?,
            Event::Decide => self.decide(),
            Event::Control(message) => self.control(message)?,
            Event::Work(work) => self.worked(work),
            Event::Begin(work) => self.go_on(work),
            Event::Collective(app) => self.proceed(app as usize),
            Event::Patience(process) => self.patience_is_over(process),
        }
        Ok(())
    }

    fn stuck(&self) -> Failure {
        let inside: u64 = self.nodes.iter().map(Node::outstanding).sum();
        Failure::Violation(format!(
            "nothing happens any more at {} ns, but {} processes have not finished; {} calls are under way, {inside} \
             requests are inside machines",
            self.calendar.now(),
            self.unfinished,
            self.calls.len()
        ))
    }

    fn outcome(mut self) -> Result<Outcome, Failure> {
        if let Some(check) = &self.check {
            check.finish(self.calendar.now())?;
        }
        let inside: u64 = self.nodes.iter().map(Node::outstanding).sum();
        let is_whole = self.unfinished == 0 && self.faults.is_none();
        if is_whole && (inside != 0 || self.calls.len() != 0 || self.sent.len() != 0) {
            let text = format!("{inside} requests and {} calls are left over", self.calls.len());
            return Err(Failure::Violation(text));
        }
        let learned = self.nodes.iter().filter_map(|node| node.learning.as_ref().map(|it| it.estimate())).collect();
        let watches = self.nodes.iter_mut().filter_map(|node| node.watch.take());
        let patterns = watches.flat_map(|watch| watch.windows()).collect();
        let orchestration = self.orchestrated();
        let (io_nodes, servers) = self.nodes.split_at(self.io_nodes as usize);
        let mut device = DeviceOutcome::default();
        let mut cache: Option<CacheOutcome> = None;
        let mut tier: Option<TierOutcome> = None;
        let mut lanes = 0;
        for disk in servers.iter().filter_map(|node| node.disk.as_ref()) {
            device.merge(&disk.outcome);
            lanes += disk.lanes();
            if let Some(own) = &disk.cache {
                let own = CacheOutcome { dirty: own.unwritten(), ..own.outcome };
                cache.get_or_insert_default().merge(&own);
            }
            if let Some(own) = &disk.tier {
                tier.get_or_insert_default().merge(&own.outcome());
            }
        }
        let start = self.apps.iter().map(|app| app.start_ns).min().unwrap_or(0);
        // One that has not finished when time is up ends there.
        let until_ns = self.until_ns;
        let finish = |application: &Application, app: &App| {
            if app.finished < application.processes { until_ns.max(app.start_ns) } else { app.finish_ns }
        };
        let pairs = self.scenario.applications.iter().zip(&self.apps);
        let end = pairs.map(|(application, app)| finish(application, app)).max().unwrap_or(0);
        let apps = self.scenario.applications.iter().zip(&self.apps);
        Ok(Outcome {
            makespan_ns: end - start,
            bytes: self.apps.iter().map(|app| app.bytes).sum(),
            digest: self.digest.0,
            events: self.calendar.planned(),
            server_requests: self.server_requests,
            under_way_max: self.sent.most() as u64,
            apps: apps
                .zip(self.data_driven.iter().zip(&self.resonant))
                .map(|((application, app), (driven, resonant))| AppOutcome {
                    name: application.name.clone(),
                    makespan_ns: finish(application, app) - app.start_ns,
                    bytes: app.bytes,
                    calls: app.calls,
                    latency: (&app.latency).into(),
                    slow_down: None,
                    data_driven: driven.as_ref().map(|driven| driven.counts),
                    resonant: resonant.as_ref().map(|resonant| resonant.counts),
                })
                .collect(),
            servers: NodesOutcome::new(servers.iter().map(Node::counters)),
            io_nodes: (self.io_nodes > 0).then(|| NodesOutcome::new(io_nodes.iter().map(Node::counters))),
            device,
            devices: lanes,
            cache,
            tier,
            policy_changes: self.policy_changes,
            windows: self.windows,
            patterns,
            learned,
            retransmitted: self.retransmitted,
            predictions: (!self.predictions.is_empty()).then(|| PredictionCounts::of(&self.predictions)),
            orchestration,
            faults: self.faults.map(|trouble| trouble.counts),
            record: self.record,
        })
    }
}

/// The algorithm of one node: those that coordinate servers are told the numbers.
fn node_policy(policy: &PolicyConfig, node: u32, servers: u32) -> PolicyConfig {
    let mut policy = policy.clone();
    for (key, value) in [("node", node), ("servers", servers)] {
        if policy.info().params.iter().any(|param| param.key == key)
            && let Ok(told) = policy.clone().with(key, &value.to_string())
        {
            policy = told;
        }
    }
    policy
}

/// Numbers for files.
#[derive(Default)]
struct Files {
    next: u64,
    /// By owner (an application, or none for all) and name: first number, how many, and where the end is kept.
    known: HashMap<(Option<usize>, String, u32), (u64, usize)>,
}

impl Files {
    /// The first file of each phase, and where its end is kept.
    fn of(&mut self, place: usize, application: &Application, ends: &mut Vec<u64>) -> (Vec<u64>, Vec<usize>) {
        let of = |phase: &Phase| {
            let owner = (!phase.file.starts_with('/')).then_some(place);
            let count = phase.files(application.processes).max(1);
            *self.known.entry((owner, phase.file.clone(), count)).or_insert_with(|| {
                let first = self.next;
                self.next += u64::from(count);
                ends.push(0);
                (first, ends.len() - 1)
            })
        };
        application.phases.iter().map(of).unzip()
    }
}
