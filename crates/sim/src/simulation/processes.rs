//! Client processes: they go through their phases and issue requests.

use crate::calendar::Event;
use crate::random::Random;
use crate::slab::NONE;
use crate::workload::{Barrier, Next, Pattern, Progress};

use super::mpi::Collective;
use super::records::{Call, Content, Parent};
use super::{Failure, Simulation};
use sluice_core::Histogram;

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Finds out its next request.
    Fetch,
    /// Waits at the barrier before a request, if there is one.
    Meet,
    /// Issues the request.
    Issue,
    /// Comes to its neighbours, to be served with them (DualPar).
    Join,
    /// Nothing before its event.
    Asleep,
    /// Nothing any more.
    Finished,
}

pub(super) struct Process {
    pub(super) app: u32,
    pub(super) rank: u32,
    /// Machine.
    pub(super) client: u32,
    pub(super) phase: u32,
    round: u32,
    outstanding: u32,
    phase_start_ns: u64,
    pub(super) progress: Progress,
    pub(super) random: Random,
    step: Step,
    /// What it does when its event comes.
    after: Step,
    pub(super) next: Option<Next>,
    pub(super) regions: Vec<(u64, u64)>,
}

impl Process {
    pub(super) fn new(app: u32, rank: u32, client: u32, random: Random) -> Process {
        Process {
            app,
            rank,
            client,
            phase: 0,
            round: 0,
            outstanding: 0,
            phase_start_ns: 0,
            progress: Progress { requests: 0, bytes: 0 },
            random,
            step: Step::Asleep,
            after: Step::Fetch,
            next: None,
            regions: Vec::new(),
        }
    }

    /// When its first phase starts.
    pub(super) fn starts(&mut self, at_ns: u64) {
        self.phase_start_ns = at_ns;
    }

    pub(super) fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

/// An application that runs.
pub(super) struct App {
    /// First file of each phase.
    pub(super) files: Vec<u64>,
    /// The access pattern of each phase.
    classes: Vec<u8>,
    /// For each phase, where its file is appended to: a place in [`Simulation::ends`].
    pub(super) ends: Vec<usize>,
    pub(super) start_ns: u64,
    pub(super) finish_ns: u64,
    pub(super) finished: u32,
    pub(super) bytes: u64,
    pub(super) calls: u64,
    pub(super) latency: Histogram,
    /// Waiting before a request, and after a phase.
    meeting: Vec<u32>,
    ended: Vec<u32>,
    pub(super) collective: Option<Collective>,
}

impl App {
    pub(super) fn new(files: Vec<u64>, ends: Vec<usize>, classes: Vec<u8>, start_ns: u64) -> App {
        App {
            files,
            classes,
            ends,
            start_ns,
            finish_ns: start_ns,
            finished: 0,
            bytes: 0,
            calls: 0,
            latency: Histogram::default(),
            meeting: Vec::new(),
            ended: Vec::new(),
            collective: None,
        }
    }
}

/// Which servers have what of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Striping {
    pub(super) servers: u32,
    /// Added to a file's number before it is hashed to its first server; none: all begin on server 0.
    pub(super) hashed: Option<u64>,
}

impl Striping {
    /// The server of a file's first stripe: multiplicative hashing (D. E. Knuth, *The Art of Computer Programming* 3, 6.4), which
    /// spreads numbers that follow each other evenly.
    pub(super) fn first_server(self, file: u64) -> u32 {
        let Some(seed) = self.hashed else { return 0 };
        let hash = file.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
        ((u128::from(hash) * u128::from(self.servers)) >> 64) as u32
    }

    /// How many servers this one is behind that on which the file begins, in the order of stripes.
    pub(super) fn position(self, file: u64, server: u32) -> u32 {
        (server + self.servers - self.first_server(file)) % self.servers
    }

    /// Where in its file something is that a server has.
    pub(super) fn in_file(self, content: &Content, stripe: u64) -> u64 {
        if self.servers == 1 {
            return content.offset;
        }
        let row = content.offset / stripe * u64::from(self.servers);
        (row + u64::from(self.position(content.file, content.server))) * stripe + content.offset % stripe
    }
}

impl Simulation<'_> {
    /// A process's event.
    pub(super) fn wake(&mut self, number: u32) {
        let process = &mut self.processes[number as usize];
        process.step = process.after;
        self.advance(number);
    }

    /// Lets a process go on as far as it can.
    pub(super) fn advance(&mut self, number: u32) {
        loop {
            let process = &self.processes[number as usize];
            match process.step {
                // It waits for answers; one of them will call again.
                Step::Fetch if process.outstanding >= self.depth(process) => return,
                Step::Fetch if process.outstanding > 0 && self.exhausted(process) => return,
                Step::Fetch => self.fetch(number),
                Step::Meet => self.meet(number),
                Step::Issue => self.carry_out(number),
                Step::Join => self.join(number),
                Step::Asleep | Step::Finished => return,
            }
        }
    }

    fn depth(&self, process: &Process) -> u32 {
        self.scenario.applications[process.app as usize].phases[process.phase as usize].depth
    }

    /// True if the phase has no further request.
    fn exhausted(&self, process: &Process) -> bool {
        let phase = &self.scenario.applications[process.app as usize].phases[process.phase as usize];
        match &phase.pattern {
            Pattern::Trace { trace, .. } => trace.is_over(process.rank, &process.progress),
            _ => process.progress.bytes >= phase.data,
        }
    }

    fn fetch(&mut self, number: u32) {
        let now = self.calendar.now();
        let process = &mut self.processes[number as usize];
        let application = &self.scenario.applications[process.app as usize];
        let phase = &application.phases[process.phase as usize];
        let end = &mut self.ends[self.apps[process.app as usize].ends[process.phase as usize]];
        process.next = phase.next(
            process.rank,
            application.processes,
            &mut process.progress,
            &mut process.random,
            end,
            &mut process.regions,
        );
        let Some(next) = &process.next else { return self.end_phase(number) };
        let at = (now + next.think_ns).max(process.phase_start_ns + next.not_before_ns);
        process.step = Step::Meet;
        if at > now {
            self.sleep(number, at, Step::Meet);
        }
    }

    /// A process does nothing until somebody has it go on.
    pub(super) fn sleep_until_called(&mut self, number: u32) {
        self.processes[number as usize].step = Step::Asleep;
    }

    pub(super) fn sleep(&mut self, number: u32, until: u64, after: Step) {
        let process = &mut self.processes[number as usize];
        (process.step, process.after) = (Step::Asleep, after);
        self.calendar.plan(until, Event::Process(number));
    }

    fn meet(&mut self, number: u32) {
        let process = &mut self.processes[number as usize];
        let app = process.app;
        let application = &self.scenario.applications[app as usize];
        let phase = &application.phases[process.phase as usize];
        let is_collective = application.mpi_io.is_collective() && !phase.per_process;
        if phase.barrier != Barrier::Request && !is_collective {
            process.step = Step::Issue;
            return;
        }
        process.step = Step::Asleep;
        if self.settles(number, Step::Meet, false) {
            return;
        }
        self.apps[app as usize].meeting.push(number);
        self.try_barrier(app);
    }

    /// Lets the processes of an application go on if all are at a barrier. Those that have ended the phase wait for the others.
    fn try_barrier(&mut self, app: u32) {
        let state = &mut self.apps[app as usize];
        let processes = self.scenario.applications[app as usize].processes as usize;
        if state.meeting.len() + state.ended.len() < processes {
            return;
        }
        let now = self.calendar.now() + self.scenario.applications[app as usize].barrier_ns;
        if !state.meeting.is_empty() {
            let met = std::mem::take(&mut state.meeting);
            if !self.collective(app, &met) {
                met.into_iter().for_each(|number| self.sleep(number, now, Step::Issue));
            }
            return;
        }
        for number in std::mem::take(&mut state.ended) {
            self.next_phase(number);
            if self.processes[number as usize].step == Step::Fetch {
                self.sleep(number, now, Step::Fetch);
            }
        }
    }

    fn end_phase(&mut self, number: u32) {
        let process = &mut self.processes[number as usize];
        let app = process.app;
        process.step = Step::Asleep;
        if self.settles(number, Step::Fetch, true) {
            return;
        }
        let process = &self.processes[number as usize];
        let phase = &self.scenario.applications[app as usize].phases[process.phase as usize];
        if phase.barrier == Barrier::None {
            return self.next_phase(number);
        }
        self.apps[app as usize].ended.push(number);
        self.try_barrier(app);
    }

    fn next_phase(&mut self, number: u32) {
        let process = &mut self.processes[number as usize];
        let application = &self.scenario.applications[process.app as usize];
        process.phase += 1;
        if process.phase as usize == application.phases.len() {
            process.round += 1;
            process.phase = 0;
            if process.round == application.repeat {
                process.step = Step::Finished;
                let app = &mut self.apps[process.app as usize];
                app.finished += 1;
                app.finish_ns = self.calendar.now();
                self.unfinished -= 1;
                return;
            }
        }
        self.begin_phase(number);
    }

    /// Starts the phase that the process is in.
    fn begin_phase(&mut self, number: u32) {
        let now = self.calendar.now();
        let process = &mut self.processes[number as usize];
        let phase = &self.scenario.applications[process.app as usize].phases[process.phase as usize];
        process.progress = Progress { requests: 0, bytes: 0 };
        let computes = phase.computes(&mut process.random);
        process.phase_start_ns = now + computes;
        process.step = Step::Fetch;
        if computes > 0 {
            self.sleep(number, now + computes, Step::Fetch);
        }
    }

    /// Issues the request that was fetched: splits it by stripe and by the largest transfer.
    pub(super) fn issue(&mut self, number: u32) {
        let process = &mut self.processes[number as usize];
        process.step = Step::Fetch;
        process.outstanding += 1;
        let Some(next) = process.next.take() else { return };
        let mut regions = std::mem::take(&mut process.regions);
        let file = self.file_of(number, &next);
        self.send(number, file, next.op, &regions, NONE);
        regions.clear();
        self.processes[number as usize].regions = regions;
    }

    /// The file that a request of a process is about.
    pub(super) fn file_of(&self, number: u32, next: &Next) -> u64 {
        let process = &self.processes[number as usize];
        let phase = &self.scenario.applications[process.app as usize].phases[process.phase as usize];
        let own = if phase.per_process { process.rank } else { 0 };
        self.apps[process.app as usize].files[process.phase as usize] + u64::from(next.file) + u64::from(own)
    }

    /// Sends what a process wants of a file; `work` is what it is part of, or [`NONE`].
    pub(super) fn send(&mut self, number: u32, file: u64, op: sluice_core::Op, regions: &[(u64, u64)], work: u32) {
        let now = self.calendar.now();
        let process = &self.processes[number as usize];
        let (app, client) = (process.app, process.client);
        let class = self.apps[app as usize].classes[process.phase as usize];
        let bytes = regions.iter().map(|&(_, len)| len).sum();
        let call = self.calls.insert(Call {
            process: number,
            pieces: 0,
            op,
            started_ns: now,
            done_ns: now,
            bytes,
            version: 0,
            work,
        });
        let version = self.check.as_mut().map_or(0, |check| check.began(now, op));
        self.calls[call].version = version;
        let late = self.random.below(self.scenario.clients.jitter_ns + 1);
        let disorder = self.scenario.clients.disorder_ns;
        let mut pieces = 0;
        for &(offset, len) in regions {
            let (mut at, end) = (offset, offset + len);
            while at < end {
                let content = self.piece(file, at, end, (app, class), op);
                at += u64::from(content.len);
                pieces += 1;
                let check = self.check.as_mut();
                let versions = check.map_or_else(Vec::new, |check| check.will_write(version, &content));
                let to = self.entrance(client, content.server);
                let late = late + if disorder > 0 { self.random.below(disorder + 1) } else { 0 };
                self.send_request(content, Parent::Call(call), (client, to), late, versions);
            }
        }
        self.calls[call].pieces = pieces;
        if pieces == 0 {
            self.calendar.plan(now, Event::Done(call));
        }
    }

    /// The first piece of a range of a file.
    fn piece(&self, file: u64, at: u64, end: u64, (app, class): (u32, u8), op: sluice_core::Op) -> Content {
        let servers = u64::from(self.striping.servers);
        let transfer = u64::from(self.scenario.clients.transfer);
        let (server, offset, left) = if servers == 1 {
            (0, at, u64::MAX)
        } else {
            let stripe = self.scenario.storage.stripe;
            let number = at / stripe;
            let first = u64::from(self.striping.first_server(file));
            ((first + number) % servers, number / servers * stripe + at % stripe, stripe - at % stripe)
        };
        let len = left.min(transfer).min(end - at) as u32;
        Content { file, offset, len, app, class, server: server as u32, op }
    }

    /// A piece of a call is answered.
    pub(super) fn piece_done(&mut self, call: u32, at: u64) {
        let record = &mut self.calls[call];
        record.pieces -= 1;
        record.done_ns = record.done_ns.max(at);
        if record.pieces == 0 {
            self.calendar.plan(record.done_ns, Event::Done(call));
        }
    }

    /// A call of a program has ended.
    pub(super) fn count(&mut self, process: u32, bytes: u64, started_ns: u64) {
        let now = self.calendar.now();
        self.digest.add(&[now, u64::from(process), bytes]);
        let app = &mut self.apps[self.processes[process as usize].app as usize];
        app.bytes += bytes;
        app.calls += 1;
        app.latency.record(now - started_ns);
    }

    /// All of a call is answered.
    pub(super) fn done(&mut self, call: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        let Call { process, bytes, started_ns, version, op, work, .. } = self.calls[call];
        if let Some(check) = &mut self.check {
            check.ended(now, op, version)?;
        }
        self.calls.free(call);
        if work != NONE {
            self.digest.add(&[now, u64::from(process), bytes]);
            self.part_done(work);
            return Ok(());
        }
        self.count(process, bytes, started_ns);
        self.passed(process);
        let state = &mut self.processes[process as usize];
        state.outstanding -= 1;
        if state.step == Step::Fetch {
            self.advance(process);
        }
        Ok(())
    }
}
