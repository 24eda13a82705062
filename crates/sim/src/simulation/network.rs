//! Messages: requests and answers on the links.

use super::records::{Content, Job, Parent, Sent, Stage};
use super::{Failure, Simulation};
use crate::calendar::Event;

impl Simulation<'_> {
    /// Occupies the sender's link; returns when the message's end reaches the receiver's.
    pub(super) fn wire(&mut self, from: u32, to: u32, bytes: u64) -> u64 {
        debug_assert_ne!(from, to);
        self.ports[from as usize].0.send(self.calendar.now(), bytes) + self.latency_ns
    }

    /// Occupies the receiver's link; returns when the message is there.
    pub(super) fn take_in(&mut self, machine: u32, bytes: u64) -> u64 {
        self.ports[machine as usize].1.receive(self.calendar.now(), bytes)
    }

    /// Sends a request for the first time, `late` later than it could be.
    pub(super) fn send_request(
        &mut self,
        content: Content,
        parent: Parent,
        (from, to): (u32, u32),
        late: u64,
        versions: Vec<u64>,
    ) {
        self.numbers += 1;
        let number = self.numbers;
        let sent = self.sent.insert(Sent { content, parent, from, to, number, attempt: 0, attempts: 0, versions });
        if self.faults.is_some() {
            return self.send_unreliably(sent);
        }
        let job = self.jobs.insert(Job::new(sent, &self.sent[sent]));
        let at = self.wire(from, to, self.header + content.outbound());
        self.calendar.plan(at + late, Event::Arrive(job));
    }

    /// A request reaches its receiver's link.
    pub(super) fn arrive(&mut self, job: u32) {
        let Job { to, content, .. } = self.jobs[job];
        let node = self.node(to);
        if self.nodes[node as usize].down {
            self.jobs.free(job);
            return;
        }
        let received = self.take_in(to, self.header + content.outbound());
        let here = &mut self.nodes[node as usize];
        let cost = here.cost(content.file);
        let ready = here.processor.work(received, cost);
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
        let Job { from, content, sent, reply, number, .. } = self.jobs[job];
        let versions = std::mem::take(&mut self.jobs[job].versions);
        self.jobs.free(job);
        if from >= self.clients && self.nodes[self.node(from) as usize].down {
            return Ok(());
        }
        let at = self.take_in(from, self.header + content.inbound());
        if self.faults.is_some() && !self.is_awaited(sent, number, reply) {
            return Ok(());
        }
        let record = &mut self.sent[sent];
        record.number = 0;
        let (parent, content) = (record.parent, record.content);
        self.sent.free(sent);
        if let Some(faults) = &mut self.faults {
            faults.settled(from, number);
        }
        match parent {
            Parent::Call(call) => {
                if let Some(check) = &mut self.check {
                    check.returned(self.calendar.now(), self.calls[call].version, &content, &versions)?;
                }
                self.piece_done(call, at);
                Ok(())
            }
            Parent::Batch(batch) => {
                let record = &mut self.batches[batch];
                record.versions = versions;
                let node = record.node;
                self.complete(node, batch)?;
                self.pump(node)
            }
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
