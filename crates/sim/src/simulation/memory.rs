//! Servers with a page cache: batches read and write memory, and the cache moves pages.

use sluice_core::Op;

use super::cache::{PAGE, Transfer};
use super::disk::Wanted;
use super::elevator::Owner;
use super::{Failure, Simulation};
use crate::calendar::Event;

/// What writes pages back, as the kernel's scheduler sees it.
const FLUSHER: u32 = u32::MAX;
/// Copying to or from the cache: some 2 GB/s, as servers of 2010 could (STREAM copy of one core), and a system call.
const COPY_BYTES_PER_US: u64 = 2000;
const CALL_NS: u64 = 1000;

fn pages(offset: u64, len: u64) -> (u64, u64) {
    (offset / PAGE, (offset + len).div_ceil(PAGE) - offset / PAGE)
}

impl Simulation<'_> {
    /// Executes the next `len` bytes of a batch in the server's memory.
    pub(super) fn use_cache(&mut self, node: u32, batch: u32, len: u64) {
        let now = self.calendar.now();
        let record = &mut self.batches[batch];
        record.moving = len;
        let content = &self.jobs[record.part].content;
        let (file, op) = (content.file, content.op);
        let range = pages(record.at, len);
        let context = self.context(node, batch);
        let file_end = self.server_file_end(file).div_ceil(PAGE);
        let mut wanted = std::mem::take(&mut self.transfers);
        let Some(disk) = &mut self.nodes[node as usize].disk else { return };
        let Some(cache) = &mut disk.cache else { return };
        let is_ready = match op {
            Op::Read => {
                let waits = cache.read(batch, file, range, file_end, &mut wanted);
                self.batches[batch].waits = waits;
                waits == 0
            }
            Op::Write => {
                let done = cache.write(now, batch, file, range);
                cache.write_back(now, &mut wanted);
                done
            }
        };
        self.flush_later(node);
        self.start_transfers(node, context, &mut wanted);
        self.transfers = wanted;
        if is_ready {
            self.copy(batch);
        }
    }

    /// The bytes are in memory: they are copied.
    fn copy(&mut self, batch: u32) {
        let len = self.batches[batch].moving;
        self.calendar.plan(self.calendar.now() + CALL_NS + len * 1000 / COPY_BYTES_PER_US, Event::Copied(batch));
    }

    /// A batch's bytes are copied.
    pub(super) fn copied(&mut self, batch: u32) -> Result<(), Failure> {
        let (node, len) = (self.batches[batch].node, self.batches[batch].moving);
        self.moved(node, batch, len)
    }

    fn start_transfers(&mut self, node: u32, context: u32, wanted: &mut Vec<Transfer>) {
        let now = self.calendar.now();
        if wanted.is_empty() {
            return;
        }
        let shape = (self.scenario.storage.stripe, u64::from(self.servers));
        let ends = &self.file_ends;
        let file_end = |file: u64| part_end(ends, file, shape);
        let most = self.scenario.storage.device_transfer;
        if let Some(disk) = &mut self.nodes[node as usize].disk {
            for what in wanted.drain(..) {
                let (mut offset, end) = (what.page * PAGE, (what.page + what.pages) * PAGE);
                while offset < end {
                    let op = if what.writes { Op::Write } else { Op::Read };
                    let len = (end - offset).min(most).min(disk.contiguous(what.file, offset, op, file_end(what.file)));
                    if let Some(cache) = &mut disk.cache {
                        cache.command(what.number);
                    }
                    let context = if what.writes { FLUSHER } else { context };
                    let owner = Owner::Pages(what.number);
                    disk.push(now, &Wanted { owner, context, op, file: what.file, offset, len });
                    offset += len;
                }
            }
        }
        self.start_device(node);
    }

    /// A command of the cache is served.
    pub(super) fn pages_served(&mut self, node: u32, transfer: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        let mut ready = std::mem::take(&mut self.batches_ready);
        let mut wanted = std::mem::take(&mut self.transfers);
        let mut released = Vec::new();
        if let Some(cache) = self.nodes[node as usize].disk.as_mut().and_then(|disk| disk.cache.as_mut())
            && cache.served(transfer, &mut ready)
        {
            while let Some(batch) = cache.released() {
                released.push(batch);
                let record = &self.batches[batch];
                let file = self.jobs[record.part].content.file;
                cache.write(now, batch, file, pages(record.at, record.moving));
            }
            cache.write_back(now, &mut wanted);
        }
        self.start_transfers(node, FLUSHER, &mut wanted);
        self.transfers = wanted;
        for batch in ready.drain(..) {
            let record = &mut self.batches[batch];
            record.waits -= 1;
            if record.waits == 0 {
                self.copy(batch);
            }
        }
        self.batches_ready = ready;
        released.into_iter().for_each(|batch| self.copy(batch));
        Ok(())
    }

    /// Looks for old dirty pages from time to time while there are dirty ones.
    fn flush_later(&mut self, node: u32) {
        let now = self.calendar.now();
        if let Some(cache) = self.nodes[node as usize].disk.as_mut().and_then(|disk| disk.cache.as_mut())
            && !cache.timer
            && cache.unwritten() > 0
        {
            cache.timer = true;
            self.calendar.plan(now + cache.look_every_ns(), Event::Flush(node));
        }
    }

    /// Old dirty pages are written back.
    pub(super) fn flush(&mut self, node: u32) {
        let now = self.calendar.now();
        let mut wanted = std::mem::take(&mut self.transfers);
        if let Some(cache) = self.nodes[node as usize].disk.as_mut().and_then(|disk| disk.cache.as_mut()) {
            cache.timer = false;
            cache.look(now, &mut wanted);
        }
        self.start_transfers(node, FLUSHER, &mut wanted);
        self.transfers = wanted;
        self.flush_later(node);
    }

    /// Where the part of a file on each server ends, rounded up to a stripe.
    pub(super) fn server_file_end(&self, file: u64) -> u64 {
        part_end(&self.file_ends, file, (self.scenario.storage.stripe, u64::from(self.servers)))
    }
}

fn part_end(ends: &[u64], file: u64, (stripe, servers): (u64, u64)) -> u64 {
    let end = ends.get(file as usize).copied().unwrap_or(u64::MAX / 2);
    if servers == 1 { end } else { end.div_ceil(stripe).div_ceil(servers).saturating_mul(stripe) }
}
