//! An SSD before a server's device: the layer of `crates/tier`, on metadata. What goes into the log, what is written back, given
//! up and loaded, and when, is decided by the code of production ([`sluice_tier::locality`], [`sluice_tier::pace`],
//! [`sluice_tier::slots`], [`sluice_tier::map`]), with that log's sizes of headers and summaries; this module moves no bytes, only
//! commands to two device models.
//!
//! It lies above the kernel's scheduler, as a target of the device mapper does. What it moves in the background goes past that
//! scheduler to the device (as in X. Zhang's, 2012, 6.3.1), one thing at a time, as [`sluice_tier::Runner`] does.
//!
//! Deviations: a write that overlaps one on its way is not held back, as there are no bytes to mix up (the engine does that for
//! requests of one file); nobody flushes, so that only closing a segment does; devices do not fail.

mod background;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::ops::Range;

use serde::Serialize;
use sluice_core::Time;
use sluice_device::{Command, Device, Op, Pending};
use sluice_tier::Config;
use sluice_tier::format::{ENTRIES_MAX, Entry, Kind, LOG_START, SECTOR, header_bytes, summary_bytes};
use sluice_tier::locality::Decider;
use sluice_tier::map::Map;
use sluice_tier::pace::RECORD_BYTES;
use sluice_tier::slots::{BLOCK, Slots};

use self::background::Task;
use super::disk::Mixer;
use super::elevator::{Owner, Queued};
use super::{Failure, Simulation};
use crate::scenario::Tier as Wanted;
use crate::slab::{NONE, Slab};

/// What tiers have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierOutcome {
    /// Writes, and how many of them went into the log.
    pub writes: u64,
    /// See `writes`.
    pub logged_writes: u64,
    /// Bytes put into the log.
    pub logged_bytes: u64,
    /// Bytes read, and how many of them from the log and from the prefetch area.
    pub read_bytes: u64,
    /// See `read_bytes`.
    pub read_log_bytes: u64,
    /// See `read_bytes`.
    pub read_area_bytes: u64,
    /// Bytes written to the SSD.
    pub ssd_written_bytes: u64,
    /// Bytes written back to the device, with those between pieces, and how many these were.
    pub written_back_bytes: u64,
    /// See `written_back_bytes`.
    pub filled_bytes: u64,
    /// Slots loaded.
    pub loads: u64,
    /// Times that a write had to wait for room in the log.
    pub waits: u64,
    /// Times that writes began to go to the SSD.
    pub starts: u64,
    /// Bytes that only the log had at the end.
    pub dirty_bytes: u64,
}

impl TierOutcome {
    /// Adds another server's.
    pub fn merge(&mut self, other: &TierOutcome) {
        self.writes += other.writes;
        self.logged_writes += other.logged_writes;
        self.logged_bytes += other.logged_bytes;
        self.read_bytes += other.read_bytes;
        self.read_log_bytes += other.read_log_bytes;
        self.read_area_bytes += other.read_area_bytes;
        self.ssd_written_bytes += other.ssd_written_bytes;
        self.written_back_bytes += other.written_back_bytes;
        self.filled_bytes += other.filled_bytes;
        self.loads += other.loads;
        self.waits += other.waits;
        self.starts += other.starts;
        self.dirty_bytes += other.dirty_bytes;
    }

    /// Bytes that the SSD wrote for each byte put into the log; 0 if that is none.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        if self.logged_bytes == 0 { 0.0 } else { self.ssd_written_bytes as f64 / self.logged_bytes as f64 }
    }

    /// Share of the bytes read that came from the SSD, 0 to 1.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        (self.read_log_bytes + self.read_area_bytes) as f64 / self.read_bytes.max(1) as f64
    }
}

/// A part of a write on its way into the log.
struct Append {
    range: Range<u64>,
    /// The write that ends with it.
    queued: Option<Queued>,
}

/// One thing after the other that something consists of.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ssd(Command),
    Disk(Command),
}

/// A read that is not only the device's.
struct Reading {
    queued: Queued,
    steps: VecDeque<Step>,
    /// Of the prefetch area, which must stay until it has ended.
    places: Vec<u32>,
}

/// What the SSD serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Io {
    /// The record with [`Tier::record`] in it.
    Record,
    /// Before the summary of a full segment,
    Flush,
    /// and that.
    Summary,
    /// A step of that read.
    Reading(u32),
    /// A step in the background.
    Task,
}

struct Used {
    segment: u32,
    /// Number of its first record.
    first_seq: u64,
    entries: Vec<Entry>,
    open: bool,
}

/// See the [module documentation](self).
pub(super) struct Tier {
    config: Config,
    segments: u32,
    segment_bytes: u64,
    slot_bytes: u64,
    disk_bytes: u64,
    ssd: Box<dyn Device>,
    busy: u32,
    /// What the SSD may choose from; `ios[i]` is what `pending[i]` is for.
    pending: Vec<Pending>,
    ios: Vec<Io>,
    running: Slab<(Io, Command)>,

    map: Map,
    used: VecDeque<Used>,
    next_segment: u32,
    next_seq: u64,
    /// Bytes in the segment that records are added to.
    fill: u64,
    decider: Decider,
    slots: Slots,

    /// For the next record; in the one under way; and those for which there was no room.
    incoming: VecDeque<Append>,
    record: Vec<(Append, Entry)>,
    waiting: VecDeque<Append>,
    /// A record is written, or a segment closed.
    appending: bool,
    readings: Slab<Reading>,
    /// Of writes under way: the decider's ticket, and how many requests had arrived.
    tickets: HashMap<Owner, (u64, u64), BuildHasherDefault<Mixer>>,

    /// Writes at the device; what is being written back with what lies between pieces; and writes there that wait for that.
    writing: Vec<(Owner, Range<u64>)>,
    filling: Option<Range<u64>>,
    held: Vec<Queued>,

    arrivals: u64,
    /// Requests at the device, when the last one ended, and where.
    users: u32,
    used_ns: u64,
    head: u64,
    appended_ns: u64,

    /// Where the pass of write-back is, and before which record segments begin that it is about.
    cursor: Option<u64>,
    end_seq: u64,
    pressed: bool,
    /// On the device, not flushed: offset, length, version.
    written: Vec<(u64, u64, u64)>,
    written_bytes: u64,
    task: Option<Task>,
    /// It is time to look for something to do.
    look: bool,
    timer: bool,
    vain: u32,

    /// For the device: by way of the kernel's scheduler, and past it.
    pub(super) to_disk: Vec<Queued>,
    pub(super) direct: Vec<Queued>,
    /// Whose commands have ended, with their bytes.
    pub(super) ended: VecDeque<(Owner, u64)>,
    outcome: TierOutcome,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Setup(format!("servers.tier: {error}"))
}

impl Tier {
    /// Before a device of `disk_bytes`.
    pub(super) fn new(wanted: &Wanted, disk_bytes: u64, seed: u64) -> Result<Tier, Failure> {
        let config = wanted.config().map_err(wrong)?;
        let ssd = sluice_device::model_with(&wanted.device, &[], seed).map_err(wrong)?;
        let (segments, slots) = ((wanted.queue / wanted.segment) as u32, (wanted.area / wanted.slot) as u32);
        let bytes = LOG_START + wanted.queue + wanted.area;
        if bytes > ssd.capacity_bytes() {
            return Err(wrong(format!(
                "{} has {} bytes, log and area need {bytes}",
                wanted.device,
                ssd.capacity_bytes()
            )));
        }
        let slots = if config.prefetch { slots } else { 0 };
        let used_share = (config.used_pause, config.used_resume);
        Ok(Tier {
            segments,
            segment_bytes: wanted.segment,
            slot_bytes: wanted.slot,
            disk_bytes,
            ssd,
            busy: 0,
            pending: Vec::new(),
            ios: Vec::new(),
            running: Slab::default(),
            map: Map::new(segments),
            used: VecDeque::new(),
            next_segment: 0,
            next_seq: 1,
            fill: 0,
            decider: Decider::new(&config, wanted.queue).map_err(wrong)?,
            slots: Slots::new(slots, wanted.slot, config.prefetch_count, used_share),
            incoming: VecDeque::new(),
            record: Vec::new(),
            waiting: VecDeque::new(),
            appending: false,
            readings: Slab::default(),
            tickets: HashMap::default(),
            writing: Vec::new(),
            filling: None,
            held: Vec::new(),
            arrivals: 0,
            users: 0,
            used_ns: 0,
            head: 0,
            appended_ns: 0,
            cursor: None,
            end_seq: 0,
            pressed: false,
            written: Vec::new(),
            written_bytes: 0,
            task: None,
            look: false,
            timer: false,
            vain: 0,
            to_disk: Vec::new(),
            direct: Vec::new(),
            ended: VecDeque::new(),
            outcome: TierOutcome::default(),
            config,
        })
    }

    pub(super) fn outcome(&self) -> TierOutcome {
        let starts = self.decider.decision().starts;
        TierOutcome { starts, loads: self.slots.stats().loads, dirty_bytes: self.map.dirty_bytes(), ..self.outcome }
    }

    // ---- requests --------------------------------------------------------------------------------------------

    /// A command comes.
    pub(super) fn arrives(&mut self, now: u64, queued: Queued) {
        let Command { op, address, len } = queued.pending.command;
        self.arrivals += 1;
        match op {
            Op::Read => {
                self.decider.leaves_memory(Time(now), sluice_core::Op::Read, address, len);
                self.read(now, queued);
            }
            Op::Write => {
                let ticket = self.decider.leaves_memory(Time(now), sluice_core::Op::Write, address, len);
                self.tickets.insert(queued.owner, (ticket, self.arrivals));
                self.outcome.writes += 1;
                self.write(now, queued);
            }
            Op::Flush => self.pass_on(queued),
        }
    }

    fn pass_on(&mut self, queued: Queued) {
        self.users += 1;
        self.to_disk.push(queued);
    }

    /// The parts of the range in different slots.
    fn slot_parts(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let (range, slot) = (range.clone(), self.slot_bytes);
        let numbers = range.start / slot..range.end.div_ceil(slot);
        numbers.map(move |number| range.start.max(number * slot)..range.end.min((number + 1) * slot))
    }

    fn read(&mut self, now: u64, queued: Queued) {
        let Command { address, len, .. } = queued.pending.command;
        let range = address..address + len;
        self.outcome.read_bytes += len;
        for part in self.slot_parts(&range) {
            self.slots.read(part.start, part.end - part.start);
        }
        let (mut steps, mut places) = (VecDeque::new(), Vec::new());
        // From the device in one piece, with what the SSD has in between.
        let mut missing: Option<Range<u64>> = None;
        for (piece, extent) in self.map.pieces(range) {
            if let Some(extent) = extent {
                self.outcome.read_log_bytes += piece.end - piece.start;
                steps.push_back(Step::Ssd(self.log_read(extent.segment, extent.at(), piece.end - piece.start)));
                continue;
            }
            for part in self.slot_parts(&piece) {
                match self.slots.find(part.start, part.end - part.start) {
                    Some(place) => {
                        places.push(place);
                        self.outcome.read_area_bytes += part.end - part.start;
                        // Whole blocks, as they have a checksum each.
                        let from = part.start % self.slot_bytes / BLOCK * BLOCK;
                        let to = ((part.end - 1) % self.slot_bytes + 1).next_multiple_of(BLOCK);
                        let address = self.place_start(place) + from;
                        steps.push_back(Step::Ssd(Command { op: Op::Read, address, len: to - from }));
                    }
                    None => missing = Some(missing.map_or(part.start, |missing| missing.start)..part.end),
                }
            }
        }
        if let Some(missing) = missing {
            if steps.is_empty() {
                return self.pass_on(queued);
            }
            let command = Command { op: Op::Read, address: missing.start, len: missing.end - missing.start };
            steps.push_front(Step::Disk(command));
        }
        let reading = self.readings.insert(Reading { queued, steps, places });
        self.read_on(now, reading);
    }

    fn log_read(&self, segment: u32, at: u64, len: u64) -> Command {
        Command { op: Op::Read, address: self.segment_start(segment) + at, len }
    }

    /// The next step of a read.
    fn read_on(&mut self, now: u64, number: u32) {
        let reading = &mut self.readings[number];
        match reading.steps.pop_front() {
            Some(Step::Ssd(command)) => self.ask_ssd(now, command, Io::Reading(number)),
            Some(Step::Disk(command)) => {
                let Queued { context, sync, .. } = reading.queued;
                let pending = Pending { command, arrived_ns: now };
                let owner = Owner::Tier(number);
                self.pass_on(Queued { pending, owner, more: Vec::new(), context, sync });
            }
            None => {
                let (owner, len) = (reading.queued.owner, reading.queued.pending.command.len);
                let places = std::mem::take(&mut reading.places);
                self.readings.free(number);
                places.into_iter().for_each(|place| self.slots.unpin(place));
                self.ended.push_back((owner, len));
            }
        }
    }

    fn write(&mut self, now: u64, queued: Queued) {
        let Command { address, len, .. } = queued.pending.command;
        let range = address..address + len;
        if !self.in_log(&range) && !self.config.takes(len, self.decider.is_on(), false) {
            return self.write_to_disk(queued);
        }
        self.outcome.logged_writes += 1;
        // An entry has to fit into a record, and that into a segment.
        let around = (header_bytes(1) + summary_bytes(1)) as u64;
        let most = (self.segment_bytes - around).min(RECORD_BYTES as u64) / SECTOR as u64 * SECTOR as u64;
        let mut at = range.start;
        while range.end - at > most {
            self.incoming.push_back(Append { range: at..at + most, queued: None });
            at += most;
        }
        self.incoming.push_back(Append { range: at..range.end, queued: Some(queued) });
        self.append(now);
    }

    fn write_to_disk(&mut self, queued: Queued) {
        let Command { address, len, .. } = queued.pending.command;
        let range = address..address + len;
        // What lies between pieces is written as it was read.
        if self.filling.as_ref().is_some_and(|filling| overlap(filling, &range)) {
            return self.held.push(queued);
        }
        self.writing.push((queued.owner, range));
        self.slots.written(address, len);
        self.pass_on(queued);
    }

    /// Some of the range is in the log, or on its way there: it must not be older than what is on the device.
    fn in_log(&self, range: &Range<u64>) -> bool {
        let meets = |append: &Append| overlap(&append.range, range);
        self.map.overlaps(range)
            || self.incoming.iter().chain(&self.waiting).any(meets)
            || self.record.iter().any(|(append, _)| meets(append))
    }

    /// A write has ended.
    fn write_ended(&mut self, owner: Owner) {
        if let Some((ticket, arrivals)) = self.tickets.remove(&owner)
            && arrivals == self.arrivals
        {
            self.decider.undisturbed(ticket);
        }
    }

    // ---- the log ---------------------------------------------------------------------------------------------

    fn segment_start(&self, segment: u32) -> u64 {
        LOG_START + u64::from(segment) * self.segment_bytes
    }

    fn place_start(&self, place: u32) -> u64 {
        self.segment_start(self.segments) + u64::from(place) * self.slot_bytes
    }

    fn segments_free(&self) -> u32 {
        self.used
            .front()
            .map_or(self.segments, |oldest| (oldest.segment + self.segments - self.next_segment) % self.segments)
    }

    fn has_room(&self) -> bool {
        self.segments_free() > 1 && self.map.len() < self.config.extents_max
    }

    /// Writes what has come as one record, unless one is being written.
    fn append(&mut self, now: u64) {
        while !self.appending && !self.incoming.is_empty() {
            let (mut count, mut room) = (0, 0);
            for append in &self.incoming {
                let more = room + (append.range.end - append.range.start).next_multiple_of(SECTOR as u64);
                let fits = more + (header_bytes(count + 1) + summary_bytes(count + 1)) as u64 <= self.segment_bytes;
                if !fits || more > RECORD_BYTES as u64 || count == ENTRIES_MAX {
                    break;
                }
                (count, room) = (count + 1, more);
            }
            let len = header_bytes(count) as u64 + room;
            match self.open(now, len, count) {
                Some(true) => self.write_record(now, count, len),
                Some(false) => self.no_room(count),
                // First the segment that is full is closed.
                None => return,
            }
        }
    }

    /// A segment with room for a record; `None`: one is being closed.
    fn open(&mut self, now: u64, len: u64, entries: usize) -> Option<bool> {
        if let Some(open) = self.used.back().filter(|used| used.open) {
            let summary = summary_bytes(open.entries.len() + entries) as u64;
            if self.fill + len + summary <= self.segment_bytes {
                return Some(self.segments_free() > 0);
            }
            self.appending = true;
            self.ask_ssd(now, Command { op: Op::Flush, address: 0, len: 0 }, Io::Flush);
            return None;
        }
        if !self.has_room() {
            return Some(false);
        }
        let (segment, first_seq) = (self.next_segment, self.next_seq);
        self.next_segment = (segment + 1) % self.segments;
        self.used.push_back(Used { segment, first_seq, entries: Vec::new(), open: true });
        self.fill = 0;
        Some(true)
    }

    fn write_record(&mut self, now: u64, count: usize, len: u64) {
        let mut at = self.fill + header_bytes(count) as u64;
        for append in self.incoming.drain(..count) {
            let Range { start, end } = append.range;
            let entry = Entry { offset: start, len: end - start, at: at as u32, crc: 0, kind: Kind::Data };
            at += entry.room() as u64;
            self.record.push((append, entry));
        }
        let Some(open) = self.used.back() else { return };
        let address = self.segment_start(open.segment) + self.fill;
        self.fill += len;
        self.appending = true;
        self.ask_ssd(now, Command { op: Op::Write, address, len }, Io::Record);
    }

    /// What need not go into the log goes to the device, the rest waits.
    fn no_room(&mut self, count: usize) {
        let batch: Vec<Append> = self.incoming.drain(..count).collect();
        for append in batch {
            match append.queued {
                Some(queued) if append.range.start == queued.pending.command.address && !self.in_log(&append.range) => {
                    self.outcome.logged_writes -= 1;
                    self.write_to_disk(queued);
                }
                queued => {
                    self.outcome.waits += 1;
                    self.waiting.push_back(Append { queued, ..append });
                }
            }
        }
        self.look |= !self.waiting.is_empty();
    }

    /// There may be room for those that wait.
    fn try_again(&mut self, now: u64) {
        self.waiting.append(&mut self.incoming);
        std::mem::swap(&mut self.waiting, &mut self.incoming);
        self.append(now);
    }

    fn record_written(&mut self, now: u64) {
        self.next_seq += 1;
        self.appended_ns = now;
        let Some(open) = self.used.back_mut() else { return };
        let segment = open.segment;
        open.entries.extend(self.record.iter().map(|(_, entry)| *entry));
        for (append, entry) in std::mem::take(&mut self.record) {
            self.map.insert(segment, entry);
            self.outcome.logged_bytes += entry.len;
            if let Some(queued) = append.queued {
                self.write_ended(queued.owner);
                self.ended.push_back((queued.owner, queued.pending.command.len));
            }
        }
    }

    // ---- the SSD ---------------------------------------------------------------------------------------------

    fn ask_ssd(&mut self, now: u64, command: Command, io: Io) {
        if command.op == Op::Write {
            self.outcome.ssd_written_bytes += command.len;
        }
        self.pending.push(Pending { command, arrived_ns: now });
        self.ios.push(io);
    }

    /// Starts the SSD's next command: its number, and when it ends.
    pub(super) fn start_ssd(&mut self, now: u64) -> Option<(u32, u64)> {
        if self.busy == self.ssd.lanes() || self.pending.is_empty() {
            return None;
        }
        let picked = if self.pending.len() == 1 { 0 } else { self.ssd.pick(now, &self.pending) };
        let (command, io) = (self.pending.remove(picked).command, self.ios.remove(picked));
        self.busy += 1;
        let end = now + self.ssd.service(now, command).total_ns;
        Some((self.running.insert((io, command)), end))
    }

    /// The SSD has served a command.
    pub(super) fn ssd_served(&mut self, now: u64, number: u32) {
        self.busy -= 1;
        let (io, _) = self.running[number];
        self.running.free(number);
        match io {
            Io::Reading(reading) => self.read_on(now, reading),
            Io::Task => self.task_on(now),
            Io::Flush => {
                let Some(open) = self.used.back() else { return };
                let len = summary_bytes(open.entries.len()) as u64;
                let address = self.segment_start(open.segment) + self.segment_bytes - len;
                self.ask_ssd(now, Command { op: Op::Write, address, len }, Io::Summary);
            }
            Io::Summary => {
                if let Some(open) = self.used.back_mut() {
                    open.open = false;
                }
                self.appending = false;
                self.append(now);
            }
            Io::Record => {
                self.record_written(now);
                self.appending = false;
                self.append(now);
            }
        }
    }

    /// The device has served a command of these.
    pub(super) fn disk_served(&mut self, now: u64, command: Command, owners: impl Iterator<Item = Owner>) {
        for owner in owners {
            match owner {
                Owner::Tier(NONE) => self.task_on(now),
                Owner::Tier(reading) => {
                    self.user_left(now, command);
                    self.read_on(now, reading);
                }
                Owner::Batch(_) | Owner::Pages(_) => {
                    self.user_left(now, command);
                    if command.op == Op::Write {
                        if let Some(at) = self.writing.iter().position(|(other, _)| *other == owner) {
                            self.writing.swap_remove(at);
                        }
                        self.write_ended(owner);
                    }
                }
            }
        }
    }

    fn user_left(&mut self, now: u64, command: Command) {
        self.users -= 1;
        (self.used_ns, self.head) = (now, command.address + command.len);
        if command.op == Op::Write {
            self.slots.written(command.address, command.len);
        }
    }
}

impl Simulation<'_> {
    /// A server's SSD has served a command.
    pub(super) fn ssd_served(&mut self, node: u32, number: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        if let Some(tier) = self.nodes[node as usize].disk.as_mut().and_then(|disk| disk.tier.as_mut()) {
            tier.ssd_served(now, number);
        }
        self.start_device(node);
        self.tiered(node)
    }

    /// A tier looks whether something is to be done.
    pub(super) fn look_at_tier(&mut self, node: u32) {
        if let Some(tier) = self.nodes[node as usize].disk.as_mut().and_then(|disk| disk.tier.as_mut()) {
            tier.woken();
        }
        self.start_device(node);
    }

    /// Goes on with those whose commands a tier has served.
    pub(super) fn tiered(&mut self, node: u32) -> Result<(), Failure> {
        loop {
            let tier = self.nodes[node as usize].disk.as_mut().and_then(|disk| disk.tier.as_mut());
            match tier.and_then(|tier| tier.ended.pop_front()) {
                Some((Owner::Batch(batch), len)) => self.batch_served(node, batch, len)?,
                Some((Owner::Pages(transfer), _)) => self.pages_served(node, transfer)?,
                Some((Owner::Tier(_), _)) => {}
                None => return Ok(()),
            }
        }
    }
}
