//! Messages: requests and answers on the links.

use super::records::{Content, Job, Parent, Sent, Stage};
use super::{Failure, Simulation};
use crate::calendar::Event;
use crate::link::{Message, Passage};
use crate::slab::NONE;

/// A connection, as a machine sees it: to whom, and of which application.
fn flow(peer: u32, app: u32) -> u64 {
    u64::from(peer) << 32 | u64::from(app)
}

impl Simulation<'_> {
    /// Puts a message on its sender's link. `job` is [`NONE`] if it will be lost on the way.
    pub(super) fn transmit(&mut self, content: &Content, (from, to): (u32, u32), message: Message) {
        debug_assert_ne!(from, to);
        let now = self.calendar.now();
        let bytes = self.header + if message.is_answer { content.inbound() } else { content.outbound() };
        match self.ports[from as usize].0.send(now, bytes, flow(to, content.app), message) {
            Passage::Through(at) => self.on_the_wire(message, at),
            Passage::Waits(turn) => self.plan_turn(2 * from, turn),
        }
    }

    fn plan_turn(&mut self, port: u32, at: Option<u64>) {
        if let Some(at) = at {
            self.calendar.plan(at, Event::Link(port));
        }
    }

    /// A message's end has left its sender at that time.
    fn on_the_wire(&mut self, message: Message, at: u64) {
        let Message { job, is_answer, late_ns } = message;
        if job != NONE {
            let event = if is_answer { Event::Answer(job) } else { Event::Arrive(job) };
            self.calendar.plan(at + self.latency_ns + late_ns, event);
        }
    }

    /// The next flow has its turn on a link.
    pub(super) fn link_turn(&mut self, port: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        let (machine, receives) = (port / 2, !port.is_multiple_of(2));
        let mut through = std::mem::take(&mut self.through);
        let links = &mut self.ports[machine as usize];
        let link = if receives { &mut links.1 } else { &mut links.0 };
        let turn = link.turn(now, &mut through);
        self.plan_turn(port, turn);
        for (message, at) in through.drain(..) {
            match (receives, message.is_answer) {
                (false, _) => self.on_the_wire(message, at),
                (true, false) => self.received(message.job, at),
                (true, true) => self.answer_received(message.job, at)?,
            }
        }
        self.through = through;
        Ok(())
    }

    /// A message's end is at its receiver's link; returns when it is there, unless it has to wait or was lost.
    fn take_in(&mut self, job: u32, is_answer: bool) -> Option<u64> {
        let now = self.calendar.now();
        let record = &self.jobs[job];
        let (content, from, to) = (record.content, record.from, record.to);
        let (machine, peer) = if is_answer { (from, to) } else { (to, from) };
        let bytes = self.header + if is_answer { content.inbound() } else { content.outbound() };
        if self.overflows(machine, bytes) {
            self.retransmit(job, is_answer);
            return None;
        }
        let message = Message { job, is_answer, late_ns: 0 };
        match self.ports[machine as usize].1.receive(now, bytes, flow(peer, content.app), message) {
            Passage::Through(at) => Some(at),
            Passage::Waits(turn) => {
                self.plan_turn(2 * machine + 1, turn);
                None
            }
        }
    }

    /// Whether the switch has no room for what is for that machine. Of a long message only what is sent at a time counts.
    fn overflows(&self, machine: u32, bytes: u64) -> bool {
        let buffer = self.scenario.network.port_buffer;
        let backlog = if buffer == 0 { 0 } else { self.ports[machine as usize].1.backlog(self.calendar.now()) };
        backlog > 0 && backlog + bytes.min(64 << 10) > buffer
    }

    /// The sender finds out by its timer, which doubles with each loss, and sends the message again.
    fn retransmit(&mut self, job: u32, is_answer: bool) {
        let record = &mut self.jobs[job];
        let wait = self.scenario.network.retransmit_ns << record.losses.min(6);
        record.losses = record.losses.saturating_add(1);
        self.retransmitted += 1;
        let late_ns = wait + self.random.below(wait / 8 + 1);
        let event = if is_answer { Event::Answer(job) } else { Event::Arrive(job) };
        self.calendar.plan(self.calendar.now() + late_ns, event);
    }

    /// Sends a request for the first time, `late` later than it could be.
    pub(super) fn send_request(
        &mut self,
        content: Content,
        parent: Parent,
        (from, to): (u32, u32),
        late_ns: u64,
        versions: Vec<u64>,
    ) {
        self.numbers += 1;
        let number = self.numbers;
        let sent = self.sent.insert(Sent { content, parent, from, to, number, attempt: 0, attempts: 0, versions });
        if self.faults.is_some() {
            return self.send_unreliably(sent);
        }
        let job = self.jobs.insert(Job::new(sent, &self.sent[sent]));
        self.transmit(&content, (from, to), Message { job, is_answer: false, late_ns });
    }

    /// A request reaches its receiver's link.
    pub(super) fn arrive(&mut self, job: u32) -> Result<(), Failure> {
        let node = self.node(self.jobs[job].to);
        if self.nodes[node as usize].down {
            self.jobs.free(job);
        } else if let Some(at) = self.take_in(job, false) {
            self.received(job, at);
        }
        Ok(())
    }

    /// A request is there at that time; the processor deals with it.
    fn received(&mut self, job: u32, at: u64) {
        let Job { from, to, content, .. } = self.jobs[job];
        let node = self.node(to);
        let here = &mut self.nodes[node as usize];
        let cost = here.cost(content.file, from);
        let ready = here.processor.work(at, cost);
        self.calendar.plan(ready, Event::Ready(job));
    }

    /// A request has been received.
    pub(super) fn ready(&mut self, job: u32) -> Result<(), Failure> {
        let node = self.node(self.jobs[job].to);
        if self.faults.is_some() && !self.is_new(node, job) {
            return Ok(());
        }
        self.jobs[job].stage = Stage::Inside;
        if self.is_server(node) {
            self.server_requests += 1;
            if let Some(recorder) = &mut self.recorder {
                recorder.arrived(self.calendar.now(), &self.jobs[job].content)?;
            }
        }
        self.submit(node, job)?;
        self.pump(node)
    }

    /// An answer reaches the link of the one who asked.
    pub(super) fn answered(&mut self, job: u32) -> Result<(), Failure> {
        let from = self.jobs[job].from;
        if from >= self.clients && self.nodes[self.node(from) as usize].down {
            self.jobs.free(job);
            return Ok(());
        }
        match self.take_in(job, true) {
            Some(at) => self.answer_received(job, at),
            None => Ok(()),
        }
    }

    /// An answer is there at that time.
    fn answer_received(&mut self, job: u32, at: u64) -> Result<(), Failure> {
        let Job { from, content, sent, reply, number, .. } = self.jobs[job];
        // The node may have crashed while the answer waited at its link.
        let is_lost = from >= self.clients && self.nodes[self.node(from) as usize].down;
        if is_lost || self.faults.is_some() && !self.is_awaited(sent, number, reply) {
            self.jobs.free(job);
            return Ok(());
        }
        let Parent::Call(call) = self.sent[sent].parent else {
            if at <= self.calendar.now() {
                return self.batch_answered(job);
            }
            self.calendar.plan(at, Event::Received(job));
            return Ok(());
        };
        let versions = std::mem::take(&mut self.jobs[job].versions);
        self.jobs.free(job);
        self.settle(sent, from, number);
        if let Some(check) = &mut self.check {
            check.returned(self.calendar.now(), self.calls[call].version, &content, &versions)?;
        }
        self.piece_done(call, at);
        Ok(())
    }

    /// The answer to a batch of an I/O node has been received.
    pub(super) fn batch_answered(&mut self, job: u32) -> Result<(), Failure> {
        let Job { from, sent, number, reply, .. } = self.jobs[job];
        let versions = std::mem::take(&mut self.jobs[job].versions);
        self.jobs.free(job);
        // Since it reached the link the node may have crashed, or a repetition may have been answered.
        if self.faults.is_some() && (self.nodes[self.node(from) as usize].down || !self.is_awaited(sent, number, reply))
        {
            return Ok(());
        }
        let Parent::Batch(batch) = self.sent[sent].parent else { return Ok(()) };
        self.settle(sent, from, number);
        let record = &mut self.batches[batch];
        record.versions = versions;
        let node = record.node;
        self.complete(node, batch)?;
        self.pump(node)
    }

    /// A request is answered for good.
    fn settle(&mut self, sent: u32, from: u32, number: u64) {
        self.sent[sent].number = 0;
        self.sent.free(sent);
        if let Some(faults) = &mut self.faults {
            faults.settled(from, number);
        }
    }

    /// Number of a machine among those with an engine.
    pub(super) fn node(&self, machine: u32) -> u32 {
        machine - self.clients
    }

    /// The machine of a data server.
    pub(super) fn server_machine(&self, server: u32) -> u32 {
        self.clients + self.io_nodes + server
    }

    /// The machine to which a client sends what is for a data server.
    pub(super) fn entrance(&self, client: u32, server: u32) -> u32 {
        if self.io_nodes == 0 {
            return self.server_machine(server);
        }
        self.clients + (u64::from(client) * u64::from(self.io_nodes) / u64::from(self.clients)) as u32
    }
}
