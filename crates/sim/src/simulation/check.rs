//! The checker: watches a simulation and knows what must never happen.
//!
//! * A batch is contiguous; nothing is dispatched twice, or before an earlier request with which it conflicts.
//! * When a request has waited longer than `max_wait` nothing that became ready later goes before it, unless nodes
//!   anticipate.
//! * A read returns the last write of each block: one that had not ended when the read began, or the last that had.
//! * No write is executed after it was answered.
//!
//! Contents are versions of blocks rather than bytes. It remembers all writes, so it is for short simulations.

use std::collections::HashMap;
use std::ops::Range;

use sluice_core::{Batch as Dispatched, Op, Ordering, Request};

use super::Failure;
use super::records::{Batch, Content};
use crate::scenario::Nodes;

/// Unit of contents. Everything that is checked is a multiple of it.
pub(crate) const BLOCK: u64 = 4096;

#[derive(Clone, Copy, Debug)]
struct Span {
    start_ns: u64,
    end_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    job: u32,
    request: Request,
    /// Since when it may be dispatched.
    ready_ns: Option<u64>,
    dispatched: bool,
}

impl Waiting {
    fn conflicts(&self, other: &Waiting) -> bool {
        let (a, b) = (&self.request, &other.request);
        (a.file, a.target) == (b.file, b.target)
            && (a.op == Op::Write || b.op == Op::Write)
            && a.offset < b.end()
            && b.offset < a.end()
    }
}

/// An engine's requests in order of submission.
#[derive(Debug)]
struct Queue {
    waiting: Vec<Waiting>,
    max_wait_ns: u64,
    /// Streams may go first for a while, also before what has waited too long. (How long is tested in `sluice_core`.)
    anticipates: bool,
    ordered: bool,
}

impl Queue {
    fn blocker(&self, place: usize) -> Option<&Waiting> {
        let it = &self.waiting[place];
        self.waiting[..place].iter().find(|earlier| self.ordered && earlier.conflicts(it))
    }

    fn release(&mut self, now: u64) {
        for place in 0..self.waiting.len() {
            if self.waiting[place].ready_ns.is_none() && self.blocker(place).is_none() {
                self.waiting[place].ready_ns = Some(now);
            }
        }
    }
}

type Block = (u64, u32, u64);

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Check {
    queues: Vec<Queue>,
    /// Writes and reads by number.
    spans: Vec<Span>,
    /// Numbers of the writes of each block.
    written: HashMap<Block, Vec<u64>>,
    /// What is on the devices.
    stored: HashMap<Block, u64>,
    /// Blocks read, and compared.
    pub(super) blocks_read: u64,
}

fn blocks(content: &Content, range: Range<u64>) -> impl Iterator<Item = Block> {
    let (file, server) = (content.file, content.server);
    (range.start / BLOCK..range.end / BLOCK).map(move |block| (file, server, block))
}

fn violation<T>(text: String) -> Result<T, Failure> {
    Err(Failure::Violation(text))
}

impl Check {
    pub(super) fn new(io_nodes: &Nodes, servers: &Nodes) -> Check {
        let queue = |nodes: &Nodes| Queue {
            waiting: Vec::new(),
            max_wait_ns: nodes.max_wait_ns,
            anticipates: super::node::anticipation(nodes).is_some(),
            ordered: nodes.ordering == Ordering::Strict,
        };
        let queues = (0..io_nodes.count).map(|_| queue(io_nodes)).chain((0..servers.count).map(|_| queue(servers)));
        Check {
            queues: queues.collect(),
            // Number 0 is what was there in the beginning.
            spans: vec![Span { start_ns: 0, end_ns: Some(0) }],
            written: HashMap::new(),
            stored: HashMap::new(),
            blocks_read: 0,
        }
    }

    /// A node's engine may serve streams from now on.
    pub(super) fn anticipates(&mut self, node: u32) {
        self.queues[node as usize].anticipates = true;
    }

    // ---- engines ---------------------------------------------------------------------------------------------

    pub(super) fn submitted(&mut self, node: u32, job: u32, now: u64, request: &Request) {
        let queue = &mut self.queues[node as usize];
        queue.waiting.push(Waiting { job, request: *request, ready_ns: None, dispatched: false });
        queue.release(now);
    }

    pub(super) fn dispatched(&mut self, node: u32, now: u64, batch: &Dispatched) -> Result<(), Failure> {
        let queue = &mut self.queues[node as usize];
        let mut end = batch.offset();
        let mut places = Vec::new();
        for part in batch.parts() {
            let Request { file, target, op, offset, .. } = part.request;
            if offset != end || (file, target, op) != (batch.file(), batch.target(), batch.op()) {
                return violation(format!("node {node}: a batch is not contiguous at {end}"));
            }
            end = part.request.end();
            let job = part.request.cookie as u32;
            match queue.waiting.iter().position(|waiting| waiting.job == job && !waiting.dispatched) {
                None => {
                    return violation(format!("node {node}: request {job} was dispatched twice, or never submitted"));
                }
                Some(place) => places.push(place),
            }
        }
        for &place in &places {
            if let Some(earlier) = queue.blocker(place) {
                let (late, early) = (queue.waiting[place].request, earlier.request);
                return violation(format!("node {node}: {late:?} was dispatched before {early:?} was complete"));
            }
        }
        let ready = |place: &usize| queue.waiting[*place].ready_ns.unwrap_or(now);
        let oldest = places.iter().map(ready).min().unwrap_or(now);
        let overdue = |waiting: &&Waiting| {
            let ready = waiting.ready_ns.filter(|_| !waiting.dispatched);
            ready.is_some_and(|ready| ready < oldest && ready + queue.max_wait_ns <= now)
        };
        let mut others = queue.waiting.iter().enumerate().filter(|(at, _)| !places.contains(at)).map(|(_, w)| w);
        let bounded = queue.max_wait_ns > 0 && !queue.anticipates;
        if let (true, Some(passed)) = (bounded, others.find(|other| overdue(other))) {
            return violation(format!(
                "node {node}: at {now} ns {:?}, ready since {:?} ns, was passed over",
                passed.request, passed.ready_ns
            ));
        }
        places.iter().for_each(|&place| queue.waiting[place].dispatched = true);
        Ok(())
    }

    pub(super) fn completed(&mut self, node: u32, job: u32, now: u64) {
        let queue = &mut self.queues[node as usize];
        queue.waiting.retain(|waiting| waiting.job != job);
        queue.release(now);
    }

    /// A node has lost its memory.
    pub(super) fn lost(&mut self, node: u32) {
        self.queues[node as usize].waiting.clear();
    }

    // ---- contents --------------------------------------------------------------------------------------------

    /// A call begins; returns its number.
    pub(super) fn began(&mut self, now: u64, _op: Op) -> u64 {
        self.spans.push(Span { start_ns: now, end_ns: None });
        self.spans.len() as u64 - 1
    }

    /// A piece of a call is sent; returns what it writes.
    pub(super) fn will_write(&mut self, version: u64, content: &Content) -> Vec<u64> {
        debug_assert!(content.offset.is_multiple_of(BLOCK) && content.end().is_multiple_of(BLOCK));
        if content.op == Op::Read {
            return Vec::new();
        }
        blocks(content, content.offset..content.end())
            .map(|block| {
                self.written.entry(block).or_default().push(version);
                version
            })
            .collect()
    }

    /// A device has executed a part of a batch.
    pub(super) fn executed(&mut self, of: &Content, range: Range<u64>, batch: &mut Batch) -> Result<(), Failure> {
        for block in blocks(of, range) {
            if of.op == Op::Read {
                batch.versions.push(self.stored.get(&block).copied().unwrap_or(0));
                continue;
            }
            let version = batch.versions[(block.2 - batch.offset / BLOCK) as usize];
            if self.spans[version as usize].end_ns.is_some() {
                return violation(format!("write {version} of block {block:?} was executed after it was answered"));
            }
            self.stored.insert(block, version);
        }
        Ok(())
    }

    /// The share of one part in what a batch has read.
    pub(super) fn part(&self, versions: &[u64], start: u64, content: &Content) -> Vec<u64> {
        if content.op == Op::Write {
            return Vec::new();
        }
        let at = |offset: u64| ((offset - start) / BLOCK) as usize;
        versions.get(at(content.offset)..at(content.end())).map_or_else(Vec::new, <[u64]>::to_vec)
    }

    /// A piece of a call is answered.
    pub(super) fn returned(
        &mut self,
        now: u64,
        number: u64,
        content: &Content,
        versions: &[u64],
    ) -> Result<(), Failure> {
        if content.op == Op::Write {
            return Ok(());
        }
        let started = self.spans[number as usize].start_ns;
        if versions.len() as u64 != u64::from(content.len) / BLOCK {
            return violation(format!("a read of {} bytes returned {} blocks", content.len, versions.len()));
        }
        for (block, version) in blocks(content, content.offset..content.end()).zip(versions) {
            self.blocks_read += 1;
            self.compare(block, *version, started, now)?;
        }
        Ok(())
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, now: u64, _op: Op, number: u64) -> Result<(), Failure> {
        let span = &mut self.spans[number as usize];
        if span.end_ns.replace(now).is_some() {
            return violation(format!("call {number} ended twice"));
        }
        Ok(())
    }

    /// Whether a block may have that content for someone who looked from `from` to `to`.
    fn compare(&self, block: Block, version: u64, from: u64, to: u64) -> Result<(), Failure> {
        let writes = self.written.get(&block).map_or(&[][..], Vec::as_slice);
        let span = self.spans[version as usize];
        if version != 0 && (!writes.contains(&version) || span.start_ns > to) {
            return violation(format!("block {block:?} contains {version}, which nobody wrote there"));
        }
        let follows = |other: &Span| version == 0 || span.end_ns.is_some_and(|end| end < other.start_ns);
        let newer = writes.iter().find(|&&other| {
            let other_span = &self.spans[other as usize];
            other != version && follows(other_span) && other_span.end_ns.is_some_and(|end| end < from)
        });
        match newer {
            None => Ok(()),
            Some(newer) => violation(format!(
                "a read from {from} to {to} ns of block {block:?} found write {version}, which write {newer} had replaced"
            )),
        }
    }

    /// At the end: nothing waits, and the devices contain the last writes.
    pub(super) fn finish(&self, now: u64) -> Result<(), Failure> {
        for block in self.written.keys() {
            self.compare(*block, self.stored.get(block).copied().unwrap_or(0), now, now)?;
        }
        match self.spans.iter().position(|span| span.end_ns.is_none()) {
            Some(number) => violation(format!("call {number} was never answered")),
            None => Ok(()),
        }
    }
}
