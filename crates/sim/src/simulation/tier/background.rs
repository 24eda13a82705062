//! What a tier does when nobody waits for it: writing back, giving segments up, loading slots. One thing at a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use sluice_device::{Command, Op, Pending};
use sluice_tier::format::SECTOR;
use sluice_tier::map::Extent;
use sluice_tier::pace::{FLUSH_BYTES, FLUSH_EXTENTS, LOOK, LOOK_EVERY, LOOK_IDLE, MERGE, Seen, pass_segments};

use super::{Io, Step, Tier, Used, overlap};
use crate::simulation::elevator::{Owner, Queued};
use crate::slab::NONE;

/// What moves data in the background, as the kernel's scheduler would see it.
const CONTEXT: u32 = u32::MAX - 1;
/// Decisions in a row that lead to nothing before it waits for a while.
const VAIN_MAX: u32 = 8;

/// What is done in the background.
pub(super) enum Work {
    /// These go back, in one write.
    WriteBack { extents: Vec<(u64, Extent)>, whole: Range<u64>, filled: u64, arrivals: u64 },
    /// What was written back is made durable.
    Settle,
    /// So many segments are given up.
    Reclaim(usize),
    /// A slot gets its place in the prefetch area.
    Load { slot: u64, place: u32 },
}

pub(super) struct Task {
    pub(super) work: Work,
    steps: VecDeque<Step>,
}

impl Tier {
    /// Looks whether something is to be done, if it is time.
    pub(in crate::simulation) fn turn(&mut self, now: u64) {
        while self.look && self.task.is_none() {
            self.look = self.begin(now) && self.vain < VAIN_MAX;
            self.vain += 1;
        }
        if self.task.is_some() {
            self.vain = 0;
        }
    }

    /// When it wants to be asked again, if it is not going to be.
    pub(in crate::simulation) fn wake(&mut self, now: u64) -> Option<u64> {
        if self.timer || self.task.is_some() {
            return None;
        }
        let dirty = self.map.dirty_bytes() > 0 || !self.written.is_empty() || !self.waiting.is_empty();
        // Only what comes can change anything else.
        let slots = self.config.prefetch && self.users > 0;
        if !dirty && !slots && self.slots.candidate(None).is_none() {
            return None;
        }
        self.timer = true;
        let every = if dirty { LOOK_EVERY } else { LOOK_IDLE };
        Some(now + every.as_nanos() as u64)
    }

    /// The time for which it asked has come.
    pub(in crate::simulation) fn woken(&mut self) {
        (self.timer, self.look, self.vain) = (false, true, 0);
    }

    /// Begins something; false: there is nothing.
    fn begin(&mut self, now: u64) -> bool {
        if !self.waiting.is_empty() {
            if self.has_room() {
                self.try_again(now);
            } else {
                self.pressed = true;
                self.write_back(now);
                return true;
            }
        }
        let since = |then: u64| Duration::from_nanos(now - then);
        let seen = Seen {
            segments: (self.segments, self.used.len() as u32),
            dirty_bytes: self.map.dirty_bytes(),
            unused: (self.users == 0).then(|| since(self.used_ns)),
            quiet: since(self.appended_ns),
            in_pass: self.cursor.is_some(),
            forced: false,
        };
        let pace = self.config.pace(&seen, &mut self.pressed);
        if pace.write_back {
            self.write_back(now);
            return true;
        }
        if pace.reclaim && (self.settle(now) || self.reclaim(now)) {
            return true;
        }
        if !self.config.prefetch {
            return false;
        }
        let near = (!pace.any_slot).then_some((self.head, self.slot_bytes));
        let Some(slot) = self.slots.candidate(near) else { return false };
        let Some(place) = self.slots.load(slot) else { return false };
        let address = slot * self.slot_bytes;
        let len = self.slot_bytes.min(self.disk_bytes.saturating_sub(address));
        let steps = [
            Step::Disk(Command { op: Op::Read, address, len }),
            Step::Ssd(Command { op: Op::Write, address: self.place_start(place), len: self.slot_bytes }),
        ];
        self.start(now, Work::Load { slot, place }, steps.into());
        true
    }

    fn start(&mut self, now: u64, work: Work, steps: VecDeque<Step>) {
        self.task = Some(Task { work, steps });
        self.task_on(now);
    }

    /// The next step of what is done in the background.
    pub(super) fn task_on(&mut self, now: u64) {
        let Some(task) = &mut self.task else { return };
        match task.steps.pop_front() {
            Some(Step::Ssd(command)) => self.ask_ssd(now, command, Io::Task),
            Some(Step::Disk(command)) => {
                let pending = Pending { command, arrived_ns: now };
                let owner = Owner::Tier(NONE);
                self.direct.push(Queued { pending, owner, more: Vec::new(), context: CONTEXT, sync: false });
            }
            None => {
                if let Some(task) = self.task.take() {
                    self.finish(now, task.work);
                }
                self.look = true;
            }
        }
    }

    /// One write of the pass that is under way, or of a new one.
    fn write_back(&mut self, now: u64) {
        if self.cursor.is_none() {
            self.cursor = Some(0);
            let end = self.used.get(pass_segments(self.used.len(), self.pressed));
            let whole = self.used.back().map_or(0, |last| last.first_seq + 1);
            self.end_seq = end.map_or(whole, |used| used.first_seq);
        }
        let mut wanted = vec![false; self.segments as usize];
        for used in self.used.iter().filter(|used| used.first_seq < self.end_seq) {
            wanted[used.segment as usize] = true;
        }
        let from = self.cursor.unwrap_or(0);
        let (mut extents, mut next) = self.map.dirty_from(from, (LOOK, MERGE), |segment| wanted[segment as usize]);
        let mut count = self.config.together(&extents, self.config.fill_bytes);
        if let (Some((first, _)), Some((last, extent))) = (extents.first(), extents[..count].last()) {
            let whole = *first..*last + extent.len;
            if self.writing.iter().any(|(_, other)| overlap(other, &whole)) {
                count = self.config.together(&extents, 0);
            }
        }
        if count < extents.len() {
            next = Some(extents[count].0);
            extents.truncate(count);
        }
        self.cursor = next;
        let (Some((first, _)), Some((last, extent))) = (extents.first(), extents.last()) else {
            if next.is_none() && !self.settle(now) {
                self.reclaim(now);
            }
            return;
        };
        let whole = *first..*last + extent.len;
        let len = whole.end - whole.start;
        let filled = len - extents.iter().map(|(_, extent)| extent.len).sum::<u64>();
        let mut steps = VecDeque::new();
        if filled > 0 {
            self.filling = Some(whole.clone());
            steps.push_back(Step::Disk(Command { op: Op::Read, address: whole.start, len }));
        }
        let log_read = |extent: &Extent| self.log_read(extent.segment, extent.entry.at.into(), extent.entry.len);
        steps.extend(extents.iter().map(|(_, extent)| Step::Ssd(log_read(extent))));
        steps.push_back(Step::Disk(Command { op: Op::Write, address: whole.start, len }));
        self.slots.written(whole.start, len);
        let arrivals = self.arrivals;
        self.start(now, Work::WriteBack { extents, whole, filled, arrivals }, steps);
    }

    /// Flushes the device, if something was written back; false: nothing was.
    fn settle(&mut self, now: u64) -> bool {
        if self.written.is_empty() {
            return false;
        }
        let flush = Step::Disk(Command { op: Op::Flush, address: 0, len: 0 });
        self.start(now, Work::Settle, [flush].into());
        true
    }

    /// Gives up the oldest segments that hold nothing that the device does not have; false: there are none.
    fn reclaim(&mut self, now: u64) -> bool {
        let ready = |used: &&Used| !used.open && self.map.needed(used.segment) == 0;
        let count = self.used.iter().take_while(ready).count();
        if count == 0 {
            return false;
        }
        let flush = Step::Ssd(Command { op: Op::Flush, address: 0, len: 0 });
        let superblock = Step::Ssd(Command { op: Op::Write, address: 0, len: SECTOR as u64 });
        self.start(now, Work::Reclaim(count), [flush, superblock, flush].into());
        true
    }

    fn finish(&mut self, now: u64, work: Work) {
        match work {
            Work::WriteBack { extents, whole, filled, arrivals } => {
                let len = whole.end - whole.start;
                self.slots.written(whole.start, len);
                self.filling = None;
                for queued in std::mem::take(&mut self.held) {
                    self.write(now, queued);
                }
                self.outcome.written_back_bytes += len;
                self.outcome.filled_bytes += filled;
                self.written.extend(extents.iter().map(|(offset, extent)| (*offset, extent.len, extent.version)));
                self.written_bytes += len;
                self.decider.leaves_ssd(whole.start, len, len - filled, arrivals == self.arrivals);
                let enough = self.written_bytes >= FLUSH_BYTES || self.written.len() >= FLUSH_EXTENTS;
                if enough || self.cursor.is_none() {
                    self.settle(now);
                }
            }
            Work::Settle => {
                for (offset, len, version) in std::mem::take(&mut self.written) {
                    self.map.clean(offset, len, version);
                }
                self.written_bytes = 0;
                self.reclaim(now);
            }
            Work::Reclaim(count) => {
                for used in self.used.drain(..count) {
                    used.entries.iter().for_each(|entry| self.map.forget(used.segment, entry));
                }
                self.try_again(now);
            }
            Work::Load { slot, place } => self.slots.loaded(slot, place, true),
        }
    }
}
