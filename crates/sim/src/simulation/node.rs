//! Machines with an engine: data servers and I/O nodes.

use std::collections::{HashMap, VecDeque};

use sluice_core::{
    Anticipation, AppId, Batch as Dispatched, Counters, Engine, EngineConfig, FileId, Outcome as Ended, PolicyConfig,
    Request, SubmitError, TargetId, Time,
};

use super::disk::{Disk, Wanted};
use super::elevator::Owner;
use super::faults::Seen;
use super::learning::Learning;
use super::patterns::Watch;
use super::records::{Batch, Content, Job, Parent, Reply, Stage};
use super::{Failure, Simulation};
use crate::calendar::Event;
use crate::link::{Message, Processor};
use crate::scenario::Nodes;
use crate::slab::NONE;

/// An error of the device, as the engine is told.
const EIO: i32 = 5;

/// A machine with an engine.
pub(super) struct Node {
    /// Its number among the machines.
    pub(super) machine: u32,
    pub(super) engine: Engine,
    pub(super) config: EngineConfig,
    pub(super) policy: PolicyConfig,
    pub(super) processor: Processor,
    /// Processor time of a request, in nanoseconds.
    cost_ns: u64,
    cost_per_file_ns: u64,
    /// Requests received and not answered, how many of them threads work on at most, and what each of these costs the others.
    active: u32,
    active_max: u32,
    contention: f64,
    /// Requests inside by the machine that sent them, if machines rather than threads get in each other's way.
    count_peers: bool,
    peers: HashMap<u32, u32>,
    coherence: f64,
    /// Outstanding requests of each file, if they cost something.
    files: HashMap<u64, u32>,
    /// When the engine will be asked again.
    timer_ns: u64,
    /// Requests for which the engine has no room.
    backlog: VecDeque<u32>,
    vectored: bool,
    threads: u32,
    /// Data servers have one.
    pub(super) disk: Option<Box<Disk>>,
    /// Of engines that were lost.
    pub(super) before: Vec<Counters>,
    /// Counts restarts.
    pub(super) epoch: u32,
    pub(super) down: bool,
    pub(super) skew_ns: u64,
    clock_ns: u64,
    /// Share of the commands that fail, in millionths.
    pub(super) failing: u64,
    pub(super) seen: Seen,
    /// Whoever wants to know what its requests are like.
    pub(super) watch: Option<Box<Watch>>,
    /// Whoever wants to know what its device is like.
    pub(super) learning: Option<Box<Learning>>,
}

/// What a hard disk transfers in a second.
pub(super) const DISK_BYTES_PER_S: u64 = 100_000_000;

/// As nodes are told to keep devices idle for streams.
pub(super) fn anticipation(nodes: &Nodes) -> Option<Anticipation> {
    (nodes.anticipation_ns > 0).then(|| Anticipation::for_device(nodes.anticipation_ns, DISK_BYTES_PER_S))
}

impl Node {
    pub(super) fn new(
        nodes: &Nodes,
        policy: PolicyConfig,
        machine: u32,
        outstanding_max: u64,
        files: u64,
        disk: Option<Disk>,
    ) -> Result<Node, Failure> {
        let config = EngineConfig {
            // What cannot be outstanding needs no room.
            capacity: u64::from(nodes.capacity).min(outstanding_max.max(1)) as u32,
            // Nor do files that cannot have requests, but for some that are remembered for a while.
            files_max: files.min(outstanding_max.saturating_mul(4)).clamp(1, 65_536) as u32,
            ordering: nodes.ordering,
            max_wait_ns: nodes.max_wait_ns,
            anticipation: anticipation(nodes),
            batch_bytes_max: nodes.batch_bytes.min(1 << 30),
            batch_requests_max: nodes.batch_requests,
            in_flight_max: nodes.in_flight,
            window_ns: nodes.window_ns,
            ..EngineConfig::default()
        };
        let engine = Engine::new(config.clone(), &policy, Time::ZERO).map_err(|e| Failure::Setup(e.to_string()))?;
        Ok(Node {
            machine,
            engine,
            config,
            policy,
            processor: Processor::new(nodes.cores),
            cost_ns: nodes.request_ns + nodes.engine_ns,
            cost_per_file_ns: nodes.engine_per_file_ns,
            active: 0,
            active_max: nodes.in_flight,
            contention: nodes.contention,
            count_peers: nodes.count_peers,
            peers: HashMap::new(),
            coherence: nodes.coherence,
            files: HashMap::new(),
            timer_ns: u64::MAX,
            backlog: VecDeque::new(),
            vectored: true,
            threads: 0,
            disk: disk.map(Box::new),
            before: Vec::new(),
            epoch: 0,
            down: false,
            skew_ns: 0,
            clock_ns: 0,
            failing: 0,
            seen: Seen::default(),
            watch: None,
            learning: None,
        })
    }

    /// Length of the windows of its engine's statistics.
    pub(super) fn window_ns(&self) -> u64 {
        self.config.window_ns
    }

    /// Makes everything that its processor does longer or shorter.
    pub(super) fn paced(mut self, pace: f64) -> Node {
        self.cost_ns = (self.cost_ns as f64 * pace) as u64;
        self
    }

    pub(super) fn executes(mut self, vectored: bool, threads: u32) -> Node {
        (self.vectored, self.threads) = (vectored, threads);
        if threads > 0 {
            self.active_max = threads;
        }
        self
    }

    /// The node's own clock: it may be wrong, but never goes backwards.
    pub(super) fn clock(&mut self, now: u64) -> Time {
        self.clock_ns = self.clock_ns.max(now + self.skew_ns);
        Time(self.clock_ns)
    }

    /// Processor time for a request that arrives.
    pub(super) fn cost(&mut self, file: u64, from: u32) -> u64 {
        self.active += 1;
        if self.count_peers {
            *self.peers.entry(from).or_default() += 1;
        }
        let mut cost = self.cost_ns;
        if self.cost_per_file_ns > 0 {
            *self.files.entry(file).or_default() += 1;
            cost += self.cost_per_file_ns * self.files.len() as u64;
        }
        if self.contention == 0.0 && self.coherence == 0.0 {
            return cost;
        }
        let n = match self.count_peers {
            true => self.peers.len() as f64,
            false => f64::from(self.active.min(self.active_max.max(1))),
        };
        (cost as f64 * (1.0 + self.contention * (n - 1.0) + self.coherence * n * (n - 1.0))) as u64
    }

    /// A request is answered. What was received before a restart may leave after it.
    pub(super) fn leaves(&mut self, from: u32) {
        self.active = self.active.saturating_sub(1);
        if let Some(count) = self.peers.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&from);
            }
        }
    }

    fn left(&mut self, file: u64) {
        if self.cost_per_file_ns != 0
            && let Some(count) = self.files.get_mut(&file)
        {
            *count -= 1;
            if *count == 0 {
                self.files.remove(&file);
            }
        }
    }

    /// Loses everything in memory. Returns the counters of the engine that is gone.
    pub(super) fn restart(&mut self, now: u64) {
        self.before.push(self.engine.stats().total());
        let clock = self.clock(now);
        if let Ok(engine) = Engine::new(self.config.clone(), &self.policy, clock) {
            self.engine = engine;
        }
        // Who looks on is not in its memory: they go on with the new engine.
        self.engine.watch_device(self.learning.is_some());
        if let Some(watch) = &mut self.watch {
            watch.lost(clock);
        }
        self.epoch += 1;
        self.timer_ns = u64::MAX;
        self.backlog.clear();
        self.files.clear();
        self.active = 0;
        self.peers.clear();
        self.seen = Seen::default();
        if let Some(disk) = &mut self.disk {
            disk.forget(self.threads);
        }
    }

    /// What its engines have counted.
    pub(super) fn counters(&self) -> Counters {
        let mut counters = self.engine.stats().total();
        self.before.iter().for_each(|before| counters.merge(before));
        counters
    }

    /// Requests that have not left it.
    pub(super) fn outstanding(&self) -> u64 {
        u64::from(self.engine.queued()) + u64::from(self.engine.in_flight()) + self.backlog.len() as u64
    }
}

impl Simulation<'_> {
    /// A request as the engine of a node knows it.
    fn request(&self, node: u32, job: u32) -> Request {
        let content = &self.jobs[job].content;
        let in_file = self.scenario.io_nodes.in_file && !self.is_server(node);
        Request {
            cookie: job.into(),
            file: FileId(content.file),
            app: AppId(content.app),
            target: TargetId(content.server),
            op: content.op,
            offset: if in_file { self.striping.in_file(content, self.scenario.storage.stripe) } else { content.offset },
            len: content.len,
        }
    }

    /// Gives a received request to the engine.
    pub(super) fn submit(&mut self, node: u32, job: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        let (request, class) = (self.request(node, job), self.jobs[job].content.class);
        let here = &mut self.nodes[node as usize];
        let clock = here.clock(now);
        match here.engine.submit(clock, request) {
            Ok(id) => {
                self.jobs[job].id = id;
                if let Some(watch) = &mut here.watch {
                    watch.arrived(clock, &request, class);
                }
                if let Some(check) = &mut self.check {
                    check.submitted(node, job, clock.0, &request);
                }
            }
            Err(SubmitError::Full) => here.backlog.push_back(job),
            Err(error) => return Err(Failure::Setup(format!("request of process refused: {error}"))),
        }
        Ok(())
    }

    /// Takes what the engine lets out, and plans when to ask it again.
    pub(super) fn pump(&mut self, node: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        let mut dispatched = std::mem::take(&mut self.dispatched);
        let clock = self.nodes[node as usize].clock(now);
        while self.nodes[node as usize].engine.poll_dispatch(clock, &mut dispatched) {
            if let Some(check) = &mut self.check {
                check.dispatched(node, clock.0, &dispatched)?;
            }
            if let Some(watch) = &mut self.nodes[node as usize].watch {
                watch.dispatched(clock, dispatched.parts().len());
            }
            let batch = self.collect(node, &dispatched);
            self.execute(node, batch);
        }
        self.dispatched = dispatched;
        let here = &mut self.nodes[node as usize];
        if let Some(wake) = here.engine.poll_timeout() {
            let at = now + wake.since(clock).max(1);
            if at < here.timer_ns {
                here.timer_ns = at;
                self.calendar.plan(at, Event::Timer(node));
            }
        }
        Ok(())
    }

    pub(super) fn timer(&mut self, node: u32) -> Result<(), Failure> {
        let here = &mut self.nodes[node as usize];
        // Later timers that an earlier one made unnecessary.
        if here.timer_ns != self.calendar.now() || here.down {
            return Ok(());
        }
        here.timer_ns = u64::MAX;
        self.pump(node)
    }

    fn collect(&mut self, node: u32, dispatched: &Dispatched) -> u32 {
        let mut versions = Vec::new();
        let mut next = NONE;
        for part in dispatched.parts().iter().rev() {
            let job = &mut self.jobs[part.request.cookie as u32];
            job.next = next;
            next = part.request.cookie as u32;
        }
        if self.check.is_some() {
            let parts = dispatched.parts().iter();
            parts.for_each(|part| versions.extend_from_slice(&self.jobs[part.request.cookie as u32].versions));
        }
        // Where the first part is in the server's file.
        let offset = self.jobs[next].content.offset;
        self.batches.insert(Batch {
            node,
            epoch: self.nodes[node as usize].epoch,
            live: true,
            first: next,
            offset,
            end: offset + dispatched.bytes(),
            at: offset,
            part: next,
            failed: false,
            positioned: None,
            thread: 0,
            waits: 0,
            moving: 0,
            versions,
        })
    }

    fn execute(&mut self, node: u32, batch: u32) {
        if !self.is_server(node) {
            return self.forward(node, batch);
        }
        let threads = self.nodes[node as usize].threads;
        if let Some(disk) = &mut self.nodes[node as usize].disk {
            if threads != 0 && disk.executing >= threads {
                disk.waiting.push_back(batch);
                return;
            }
            disk.executing += 1;
            self.batches[batch].thread = disk.idle.pop().unwrap_or(0);
        }
        self.next_command(node, batch);
    }

    /// Sends a batch of an I/O node to its data server as one request.
    fn forward(&mut self, node: u32, batch: u32) {
        let record = &mut self.batches[batch];
        let (offset, end, versions) = (record.offset, record.end, std::mem::take(&mut record.versions));
        let content = Content { offset, len: (end - offset) as u32, ..self.jobs[record.first].content };
        let (from, to) = (self.nodes[node as usize].machine, self.server_machine(content.server));
        self.send_request(content, Parent::Batch(batch), (from, to), 0, versions);
    }

    /// Gives the device the next command of a batch: up to the end of the extent, or of the part if the batch is not one.
    fn next_command(&mut self, node: u32, batch: u32) {
        let now = self.calendar.now();
        let here = &mut self.nodes[node as usize];
        let Some(disk) = &mut here.disk else { return };
        let record = &self.batches[batch];
        let part = &self.jobs[record.part];
        let end = if here.vectored { record.end } else { part.content.end() };
        if disk.cache.is_some() {
            return self.use_cache(node, batch, end - record.at);
        }
        let Content { op, file, .. } = part.content;
        let offset = record.at;
        let file_end = self.server_file_end(file);
        let context = self.context(node, batch);
        let owner = Owner::Batch(batch);
        let Some(disk) = &mut self.nodes[node as usize].disk else { return };
        let len = (end - offset).min(disk.contiguous(file, offset, op, file_end));
        disk.push(now, &Wanted { owner, context, op, file, offset, len });
        self.start_device(node);
    }

    /// Who issues a batch's commands, as the kernel's scheduler sees it: the server's thread, or without a bound on threads
    /// the process that asked.
    pub(super) fn context(&self, node: u32, batch: u32) -> u32 {
        if self.nodes[node as usize].threads > 0 {
            return self.batches[batch].thread;
        }
        match self.sent[self.jobs[self.batches[batch].part].sent].parent {
            Parent::Call(call) => self.calls[call].process,
            Parent::Batch(batch) => self.batches[batch].node,
        }
    }

    pub(super) fn start_device(&mut self, node: u32) {
        let now = self.calendar.now();
        let Some(disk) = &mut self.nodes[node as usize].disk else { return };
        while let Some(started) = disk.start(now) {
            if let Some(record) = &mut self.record {
                let app = match started.owner {
                    Owner::Batch(batch) => self.jobs[self.batches[batch].first].content.app,
                    Owner::Pages(_) | Owner::Tier(_) => NONE,
                };
                record.command(node - self.io_nodes, now, &started, app);
            }
            let end = now + started.service.total_ns;
            let running = self.running.insert((node, started));
            self.calendar.plan(end, Event::Device(running));
        }
        if disk.wake_ns != u64::MAX {
            self.calendar.plan(disk.wake_ns, Event::Kernel(node));
        }
        if let Some(tier) = &mut disk.tier {
            while let Some((number, end)) = tier.start_ssd(now) {
                self.calendar.plan(end, Event::Ssd(node, number));
            }
            if let Some(at) = tier.wake(now) {
                self.calendar.plan(at, Event::Tier(node));
            }
        }
    }

    /// A device has served a command.
    pub(super) fn served(&mut self, running: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        let (node, started) = self.running[running].clone();
        self.running[running].0 = NONE;
        self.running.free(running);
        if let Some(disk) = &mut self.nodes[node as usize].disk {
            disk.served(now, &started);
        }
        self.start_device(node);
        let positioned = started.positioned;
        for (owner, len) in started.owners() {
            match owner {
                Owner::Batch(batch) => {
                    let of_batch = &mut self.batches[batch].positioned;
                    *of_batch = positioned.map(|positioned| positioned || *of_batch == Some(true));
                    self.batch_served(node, batch, len)?;
                }
                Owner::Pages(transfer) => self.pages_served(node, transfer)?,
                Owner::Tier(_) => {}
            }
        }
        self.tiered(node)
    }

    /// A command of a batch is served.
    pub(super) fn batch_served(&mut self, node: u32, batch: u32, len: u64) -> Result<(), Failure> {
        let here = &mut self.nodes[node as usize];
        let record = &mut self.batches[batch];
        // The node may have lost its memory meanwhile; the batch is kept until then for the device's sake.
        if record.epoch != here.epoch {
            self.batches.free(batch);
            return Ok(());
        }
        if here.failing > 0 && self.random.chance(here.failing) {
            record.failed = true;
        }
        self.moved(node, batch, len)
    }

    /// A batch has got so many more of its bytes.
    pub(super) fn moved(&mut self, node: u32, batch: u32, len: u64) -> Result<(), Failure> {
        let record = &mut self.batches[batch];
        let from = record.at;
        record.at += len;
        if let (Some(check), false) = (&mut self.check, record.failed) {
            let first = &self.jobs[record.first].content;
            check.executed(first, from..record.at, record)?;
        }
        let record = &mut self.batches[batch];
        while record.part != NONE && self.jobs[record.part].content.end() <= record.at {
            record.part = self.jobs[record.part].next;
        }
        if record.at >= record.end {
            return self.finish(node, batch);
        }
        self.next_command(node, batch);
        Ok(())
    }

    /// A data server's batch is executed.
    fn finish(&mut self, node: u32, batch: u32) -> Result<(), Failure> {
        let thread = self.batches[batch].thread;
        self.complete(node, batch)?;
        let threads = self.nodes[node as usize].threads;
        if let Some(disk) = &mut self.nodes[node as usize].disk {
            disk.executing -= 1;
            if threads != 0 {
                match disk.waiting.pop_front() {
                    Some(next) => {
                        disk.executing += 1;
                        self.batches[next].thread = thread;
                        self.next_command(node, next);
                    }
                    None => disk.idle.push(thread),
                }
            }
        }
        self.pump(node)
    }

    /// All parts of a batch have ended: the engine is told, and those who asked.
    pub(super) fn complete(&mut self, node: u32, batch: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        let record = &mut self.batches[batch];
        record.live = false;
        let (failed, positioned, mut job, start) = (record.failed, record.positioned, record.first, record.offset);
        let versions = std::mem::take(&mut record.versions);
        self.batches.free(batch);
        let clock = self.nodes[node as usize].clock(now);
        while job != NONE {
            let next = self.jobs[job].next;
            let (content, request) = (self.jobs[job].content, self.request(node, job));
            let here = &mut self.nodes[node as usize];
            let ended = if failed { Ended::err(EIO) } else { Ended::ok(content.len) };
            let told = here.engine.complete(clock, self.jobs[job].id, ended);
            told.map_err(|error| Failure::Violation(format!("completion refused by the engine: {error}")))?;
            if let Some(watch) = &mut here.watch {
                watch.completed(clock, &request, positioned);
            }
            here.left(content.file);
            if let Some(check) = &mut self.check {
                check.completed(node, job, clock.0);
                self.jobs[job].versions = check.part(&versions, start, &content);
            }
            let reply = if failed { Reply::Failed } else { Reply::Ok };
            self.answer(job, reply);
            job = next;
        }
        while self.nodes[node as usize].backlog.front().is_some() {
            let before = self.nodes[node as usize].backlog.len();
            let job = self.nodes[node as usize].backlog.pop_front().unwrap_or(NONE);
            self.submit(node, job)?;
            let backlog = &mut self.nodes[node as usize].backlog;
            if backlog.len() == before {
                // Still no room: it goes back to the front.
                backlog.rotate_right(1);
                break;
            }
        }
        Ok(())
    }

    /// Sends an answer back.
    pub(super) fn answer(&mut self, job: u32, reply: Reply) {
        let record = &mut self.jobs[job];
        (record.stage, record.reply, record.losses) = (Stage::Returning, reply, 0);
        let (node, from) = (record.to - self.clients, record.from);
        self.nodes[node as usize].leaves(from);
        let record = &self.jobs[job];
        self.digest.add(&[self.calendar.now(), record.number, record.content.offset]);
        if self.faults.is_some() {
            return self.answer_unreliably(job);
        }
        let (from, to, content) = (record.to, record.from, record.content);
        self.transmit(&content, (from, to), Message { job, is_answer: true, late_ns: 0 });
    }

    /// Data servers' numbers among the nodes follow those of I/O nodes.
    pub(super) fn is_server(&self, node: u32) -> bool {
        node >= self.io_nodes
    }

    /// A job as the engine names it, if it is still in that node.
    pub(super) fn inside(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let machine = self.nodes[node as usize].machine;
        let there = move |job: &Job| job.to == machine && job.stage == Stage::Inside;
        self.jobs.places().filter(move |&place| there(&self.jobs[place]))
    }
}
