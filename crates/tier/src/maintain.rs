//! What is done in the background: writing back, giving segments up, prefetching; and ending the use of an SSD that fails.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use crate::append::NotAppended;
use crate::format::{Kind, SECTOR, SUPERBLOCKS, Use};
use crate::map::{Extent, Map, State as Newest};
use crate::pace::{FLUSH_BYTES, FLUSH_EXTENTS, LOOK, MERGE, Seen, pass_segments};
use crate::slots::BLOCK;
use crate::stats::{Counters, Health};
use crate::tier::{Tier, write_to};

/// A pass over the dirty extents, by offset, as an elevator.
#[derive(Default)]
pub(crate) struct Maintenance {
    /// Where the pass is; `None`: none is under way.
    cursor: Option<u64>,
    /// Segments whose first record is before this one are written back in it.
    end_seq: u64,
    /// On the disk, not flushed: offset, length, version.
    written: Vec<(u64, u64, u64)>,
    written_bytes: u64,
    /// [`Tier::flush_failures`] when the first of these was written.
    failures: u64,
    /// The oldest segment of which what is lost was tried once more: its first record.
    tried_again: u64,
    /// Write-back goes on although the disk is not idle.
    pressed: bool,
}

/// What is worth doing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Something was done; there may be more.
    Done,
    /// There is nothing to do now,
    Nothing,
    /// and nothing will be before something is written or read.
    Idle,
}

impl Tier {
    /// Does a small piece of background work: at most one write to the disk, or loading one slot. `idle`: as if nobody had
    /// used the disk for long.
    ///
    /// # Errors
    /// Those of disk and SSD; what was not written back stays in the log.
    pub(crate) fn work(&self, idle: bool) -> io::Result<Work> {
        let mut maintenance = self.maintenance.lock();
        let (health, seen, near) = {
            let state = self.state.lock();
            let seen = Seen {
                segments: (self.layout.segments, state.segments_used()),
                dirty_bytes: state.map.dirty_bytes() - state.map.lost_bytes(),
                unused: (state.disk_users == 0).then(|| self.since(state.disk_used)),
                quiet: self.since(state.appended),
                in_pass: maintenance.cursor.is_some(),
                forced: idle,
            };
            (state.health, seen, (state.disk_head, u64::from(self.layout.slot_bytes)))
        };
        if health == Health::Failing {
            return self.give_up_with(&mut maintenance).map(|()| Work::Done);
        }
        let pace = self.config.pace(&seen, &mut maintenance.pressed);
        if health == Health::Well && pace.write_back {
            return self.write_back(&mut maintenance);
        }
        if pace.reclaim {
            self.settle(&mut maintenance)?;
            if self.reclaim(&mut maintenance)? == Work::Done {
                return Ok(Work::Done);
            }
        }
        if health == Health::Well && self.config.prefetch {
            let slot = self.state.lock().slots.candidate((!pace.any_slot).then_some(near));
            if let Some(slot) = slot {
                return self.prefetch(slot);
            }
        }
        Ok(if seen.dirty_bytes > 0 { Work::Nothing } else { Work::Idle })
    }

    /// Writes everything back and gives all segments up.
    ///
    /// # Errors
    /// Those of disk and SSD; what was not written back stays in the log. Data that is lost stays so, and is no error.
    pub fn write_all_back(&self) -> io::Result<()> {
        let mut maintenance = self.maintenance.lock();
        maintenance.forget();
        // All of it in each pass.
        maintenance.pressed = false;
        loop {
            if self.state.lock().health == Health::Failing {
                return self.give_up_with(&mut maintenance);
            }
            if maintenance.cursor.is_none() {
                self.close_segment()?;
            }
            self.write_back(&mut maintenance)?;
            if maintenance.cursor.is_none() {
                // More may have come meanwhile.
                let state = self.state.lock();
                if state.map.dirty_bytes() == state.map.lost_bytes() {
                    break;
                }
            }
        }
        self.close_segment()?;
        while self.reclaim(&mut maintenance)? == Work::Done {}
        Ok(())
    }

    /// Ends the use: writes everything back if that is set, and makes durable what is in the log. The SSD may be taken away
    /// afterwards if [`Status::dirty_bytes`](crate::Status::dirty_bytes) and the lost ones are 0.
    ///
    /// # Errors
    /// As of [`Tier::write_all_back`] and [`Tier::flush`].
    pub fn end(&self) -> io::Result<()> {
        // Also if that tells of an earlier failure.
        let flushed = self.flush();
        if self.config.unload && self.state.lock().health == Health::Well {
            self.write_all_back()?;
            if self.state.lock().map.is_empty() {
                self.write_superblock(|superblock| superblock.usage = Use::Detached)?;
            }
        }
        flushed
    }

    /// Writes everything back and takes the tier off the SSD, which then is empty.
    ///
    /// # Errors
    /// As of [`Tier::write_all_back`]; if anything was lost, so that reads of it go on failing instead of finding what is old.
    pub fn detach(&self) -> io::Result<()> {
        self.write_all_back()?;
        let lost = self.state.lock().map.lost_bytes();
        if lost > 0 {
            return Err(io::Error::other(format!(
                "{lost} bytes cannot be read from the SSD, and were not written back; write them anew, or the disk's old data is \
                 all there is"
            )));
        }
        // After a failure nothing can be asked of it.
        if self.state.lock().health == Health::Well {
            for at in SUPERBLOCKS {
                self.write_ssd(&[0; SECTOR], at)?;
            }
            self.ssd.flush()?;
        }
        Ok(())
    }

    /// Room in the log, for a writer who must use it.
    pub(crate) fn make_room(&self) -> io::Result<()> {
        Counters::add(&self.counters.waits, 1);
        let mut maintenance = self.maintenance.lock();
        maintenance.pressed = true;
        let (mut passes, mut before) = (0, None);
        loop {
            let oldest = {
                let state = self.state.lock();
                if state.has_room(&self.config) || state.health != Health::Well {
                    return Ok(());
                }
                state.used.front().map(|oldest| oldest.first_seq)
            };
            if before != Some(oldest) {
                (passes, before) = (0, Some(oldest));
            }
            // One pass may be under way with less than all of it, another one has to begin; and what cannot be read is tried
            // twice before its segment is given up.
            passes += u32::from(maintenance.cursor.is_none());
            if passes > 4 {
                return Err(io::Error::other("the SSD's log is full, and nothing could be written back"));
            }
            self.write_back(&mut maintenance)?;
        }
    }

    /// One write of the pass that is under way, or of a new one.
    fn write_back(&self, maintenance: &mut Maintenance) -> io::Result<Work> {
        let failures = self.flush_failures.load(SeqCst);
        if maintenance.failures != failures {
            // Somebody was told that what was written may be lost: once more from the start.
            maintenance.forget();
            maintenance.failures = failures;
        }
        let arrivals = {
            let state = self.state.lock();
            if maintenance.cursor.is_none() {
                maintenance.cursor = Some(0);
                let end = state.used.get(pass_segments(state.used.len(), maintenance.pressed));
                let whole = state.used.back().map_or(0, |last| last.first_seq + 1);
                maintenance.end_seq = end.map_or(whole, |used| used.first_seq);
            }
            state.arrivals
        };
        let (extents, next) = self.dirty(maintenance);
        maintenance.cursor = next;
        if let (Some((first, _)), Some((last, extent))) = (extents.first(), extents.last()) {
            let (first, end) = (*first, last + extent.len);
            let own = extents.iter().map(|(_, extent)| extent.len).sum();
            if let Err(error) = self.copy_back(maintenance, &extents) {
                maintenance.forget();
                return Err(error);
            }
            let mut state = self.state.lock();
            let free = state.arrivals == arrivals;
            state.decider.leaves_ssd(first, end - first, own, free);
        }
        let enough = maintenance.written_bytes >= FLUSH_BYTES || maintenance.written.len() >= FLUSH_EXTENTS;
        if enough || maintenance.cursor.is_none() {
            self.settle(maintenance)?;
            self.reclaim(maintenance)?;
        }
        Ok(Work::Done)
    }

    /// The next extents that lie together, pinned; and where the pass goes on.
    fn dirty(&self, maintenance: &Maintenance) -> (Vec<(u64, Extent)>, Option<u64>) {
        let mut state = self.state.lock();
        let wanted: Vec<bool> = {
            let mut wanted = vec![false; self.layout.segments as usize];
            for used in state.used.iter().filter(|used| used.first_seq < maintenance.end_seq) {
                wanted[used.segment as usize] = true;
            }
            wanted
        };
        let from = maintenance.cursor.unwrap_or(0);
        let (mut extents, mut next) = state.map.dirty_from(from, (LOOK, MERGE), |segment| wanted[segment as usize]);
        let mut count = self.config.together(&extents, self.config.fill_bytes);
        if let Some(whole) = gaps(&extents[..count]) {
            // What lies between is written as it is on the disk, so nobody else may write it meanwhile. Nobody is waited for:
            // that one may wait for this thread.
            if state.writing.iter().any(|other| other.start < whole.end && whole.start < other.end) {
                count = self.config.together(&extents, 0);
            } else {
                state.writing.push(whole);
            }
        }
        if count < extents.len() {
            next = Some(extents[count].0);
            extents.truncate(count);
        }
        for (_, extent) in &extents {
            state.pins[extent.segment as usize] += 1;
        }
        (extents, next)
    }

    /// Copies extents that lie together to the disk, and unpins them.
    fn copy_back(&self, maintenance: &mut Maintenance, extents: &[(u64, Extent)]) -> io::Result<()> {
        let Some(whole) = gaps(extents) else { return self.copy_side_by_side(maintenance, extents) };
        let result = match self.filled(&whole, extents) {
            Ok(data) => {
                let result = self.put_back(maintenance, &whole, Kind::Data, Some(&data), extents);
                self.unpin_all(extents);
                result
            }
            // Each for itself, then.
            Err(_) => {
                let mut rest = extents;
                let mut result = Ok(());
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(self.config.together(rest, 0));
                    match &result {
                        Ok(()) => result = self.copy_side_by_side(maintenance, now),
                        Err(_) => self.unpin_all(now),
                    }
                    rest = later;
                }
                result
            }
        };
        let mut state = self.state.lock();
        let own = state.writing.iter().position(|other| *other == whole).expect("pushed when they were taken");
        state.writing.swap_remove(own);
        drop(state);
        self.written.notify_all();
        result
    }

    /// What the disk has there, with the extents in it.
    fn filled(&self, whole: &Range<u64>, extents: &[(u64, Extent)]) -> io::Result<Vec<u8>> {
        let mut data = vec![0; (whole.end - whole.start) as usize];
        self.disk.read(&mut data, whole.start)?;
        let mut part = Vec::new();
        for (offset, extent) in extents {
            part.clear();
            self.read_for_disk(extent, &mut part)?;
            data[(offset - whole.start) as usize..][..part.len()].copy_from_slice(&part);
        }
        let own: u64 = extents.iter().map(|(_, extent)| extent.len).sum();
        Counters::add(&self.counters.filled_bytes, data.len() as u64 - own);
        Ok(data)
    }

    fn copy_side_by_side(&self, maintenance: &mut Maintenance, extents: &[(u64, Extent)]) -> io::Result<()> {
        let mut result = Ok(());
        let mut data: Vec<u8> = Vec::new();
        let mut start = extents[0].0;
        for (at, (offset, extent)) in extents.iter().enumerate() {
            let kind = extent.entry.kind;
            let range = *offset..offset + extent.len;
            let read = if kind == Kind::Data { self.read_for_disk(extent, &mut data) } else { Ok(()) };
            match read {
                // Those before it go, the ones behind it another time.
                Err(error) => {
                    self.lose(*offset, extent, &error);
                    self.unpin_all(&extents[at..]);
                    let before = start..*offset;
                    if !before.is_empty() {
                        result = self.put_back(maintenance, &before, Kind::Data, Some(&data), &extents[..at]);
                    }
                    maintenance.cursor = Some(range.end);
                    self.unpin_all(&extents[..at]);
                    return result;
                }
                Ok(()) if kind != Kind::Data => {
                    start = *offset;
                    result = self.put_back(maintenance, &range, kind, None, extents);
                }
                Ok(()) => {}
            }
        }
        if !data.is_empty() {
            let end = start + data.len() as u64;
            result = self.put_back(maintenance, &(start..end), Kind::Data, Some(&data), extents);
        }
        self.unpin_all(extents);
        result
    }

    fn unpin_all(&self, extents: &[(u64, Extent)]) {
        let mut state = self.state.lock();
        extents.iter().for_each(|(_, extent)| self.unpin(&mut state, extent.segment));
    }

    fn put_back(
        &self,
        maintenance: &mut Maintenance,
        range: &Range<u64>,
        kind: Kind,
        data: Option<&[u8]>,
        extents: &[(u64, Extent)],
    ) -> io::Result<()> {
        let len = range.end - range.start;
        self.state.lock().slots.written(range.start, len);
        let result = write_to(&*self.disk, range, kind, data);
        self.state.lock().slots.written(range.start, len);
        result.inspect_err(|error| self.disk_failed("write-back", error))?;
        Counters::add(&self.counters.written_back_bytes, len);
        Counters::add(&self.counters.write_backs, 1);
        maintenance.written.extend(extents.iter().map(|(offset, extent)| (*offset, extent.len, extent.version)));
        maintenance.written_bytes += len;
        Ok(())
    }

    /// Adds the extent's data, compared with the checksum of its whole entry.
    fn read_for_disk(&self, extent: &Extent, data: &mut Vec<u8>) -> io::Result<()> {
        let at = self.layout.segment_start(extent.segment) + u64::from(extent.entry.at);
        let mut entry = vec![0; extent.entry.len as usize];
        self.ssd.read(&mut entry, at)?;
        if crc32fast::hash(&entry) != extent.entry.crc {
            return Err(io::Error::other("does not match its checksum"));
        }
        data.extend_from_slice(&entry[extent.skip as usize..(extent.skip + extent.len) as usize]);
        Ok(())
    }

    /// The extent's data cannot be read: from now on nor can those bytes.
    fn lose(&self, offset: u64, extent: &Extent, error: &io::Error) {
        Counters::add(&self.counters.ssd_errors, 1);
        let (bytes, ssd) = (extent.len, self.ssd.describe());
        self.tell(&format!(
            "{ssd}: {bytes} bytes at {offset} are lost: {error}; reads of them fail until they are written"
        ));
        self.state.lock().map.lose(offset, extent.len, extent.version);
    }

    /// Flushes the disk: what was written back is clean then.
    fn settle(&self, maintenance: &mut Maintenance) -> io::Result<()> {
        if maintenance.written.is_empty() {
            return Ok(());
        }
        let result = self.flush_disk();
        let failed = maintenance.failures != self.flush_failures.load(SeqCst);
        if result.is_err() || failed {
            maintenance.forget();
            return result;
        }
        let mut state = self.state.lock();
        for (offset, len, version) in maintenance.written.drain(..) {
            state.map.clean(offset, len, version);
        }
        maintenance.written_bytes = 0;
        Ok(())
    }

    /// Gives up the oldest segments that hold nothing that the disk does not have.
    fn reclaim(&self, maintenance: &mut Maintenance) -> io::Result<Work> {
        if self.state.lock().health != Health::Well {
            return Ok(Work::Nothing);
        }
        let (count, tail) = {
            let state = self.state.lock();
            let ready = |used: &&crate::recover::Used| !used.open && state.map.needed(used.segment) == 0;
            let count = state.used.iter().take_while(ready).count();
            let tail = match (state.used.get(count), state.used.back()) {
                (Some(tail), _) => Some((tail.segment, tail.first_seq)),
                (None, Some(last)) => Some((state.next_segment, last.end_seq)),
                (None, None) => None,
            };
            (count, tail)
        };
        let Some((segment, seq)) = tail.filter(|_| count > 0) else {
            return self.move_lost(maintenance);
        };
        // What has taken the place of something in there must not be lost where that could have been found.
        self.flush_ssd(self.written_seq.load(SeqCst))?;
        // Before anything is written over them.
        let changed = self.write_superblock(|superblock| {
            superblock.tail_segment = segment;
            superblock.tail_seq = seq;
        });
        if let Err(error) = changed {
            self.superblock_failed(&error);
            return Err(error);
        }
        let state = &mut *self.state.lock();
        for used in state.used.drain(..count) {
            used.entries.iter().for_each(|entry| state.map.forget(used.segment, entry));
        }
        Ok(Work::Done)
    }

    /// If the oldest segment is kept only by what is lost, that is tried once more, then said anew at the log's end.
    fn move_lost(&self, maintenance: &mut Maintenance) -> io::Result<Work> {
        // Nothing newer of these bytes comes into the log meanwhile.
        let appender = &mut self.appender.lock();
        let lost: Vec<(u64, Extent)> = {
            let mut state = self.state.lock();
            let Some(oldest) = state.used.front().filter(|used| !used.open && maintenance.pressed) else {
                return Ok(Work::Nothing);
            };
            let (segment, first_seq) = (oldest.segment, oldest.first_seq);
            let mut kept = BTreeMap::new();
            for entry in &oldest.entries {
                let extents = state.map.overlapping(entry.offset..entry.offset + entry.len);
                kept.extend(extents.into_iter().filter(|(_, extent)| extent.segment == segment));
            }
            kept.retain(|_, extent| extent.state != Newest::Clean);
            if kept.is_empty() || kept.values().any(|extent| extent.state == Newest::Dirty) {
                return Ok(Work::Nothing);
            }
            if maintenance.tried_again < first_seq {
                maintenance.tried_again = first_seq;
                find_again(&mut state.map, &kept);
                return Ok(Work::Done);
            }
            kept.into_iter().collect()
        };
        match self.append_lost(appender, &lost) {
            Ok(()) => Ok(Work::Done),
            Err(NotAppended::Full | NotAppended::Failed) => Ok(Work::Nothing),
        }
    }

    /// Copies a slot to the prefetch area.
    fn prefetch(&self, slot: u64) -> io::Result<Work> {
        let Some(place) = self.state.lock().slots.load(slot) else { return Ok(Work::Nothing) };
        let bytes = u64::from(self.layout.slot_bytes);
        let mut data = vec![0; bytes as usize];
        let len = (self.size() - slot * bytes).min(bytes) as usize;
        let loaded = self.disk.read(&mut data[..len], slot * bytes).inspect_err(|error| {
            self.disk_failed("prefetching", error);
        });
        let loaded = loaded.and_then(|()| {
            self.area.lock()[place as usize] = data.chunks(BLOCK as usize).map(crc32fast::hash).collect();
            let written = self.write_ssd(&data, self.layout.slot_start(place));
            written.inspect_err(|error| self.ssd_failed("write", error))
        });
        self.state.lock().slots.loaded(slot, place, loaded.is_ok());
        loaded?;
        Counters::add(&self.counters.prefetched_bytes, bytes);
        Ok(Work::Done)
    }

    /// Ends the use of an SSD that has failed: what it holds goes to the disk, as far as it can be read.
    ///
    /// # Errors
    /// If the disk fails, too, or the SSD cannot be marked: then it is tried again, and what the log holds is not written over
    /// on the disk alone.
    pub(crate) fn give_up(&self) -> io::Result<()> {
        self.give_up_with(&mut self.maintenance.lock())
    }

    fn give_up_with(&self, maintenance: &mut Maintenance) -> io::Result<()> {
        if self.state.lock().health != Health::Failing {
            return Ok(());
        }
        // No record is being written after this: who writes one looks at the health first.
        self.abandon_segment();
        maintenance.forget();
        maintenance.pressed = false;
        {
            // The last chance.
            let mut state = self.state.lock();
            let all = state.map.overlapping(0..self.size());
            find_again(&mut state.map, &all.into_iter().collect());
        }
        loop {
            if maintenance.written.is_empty() {
                maintenance.failures = self.flush_failures.load(SeqCst);
            }
            maintenance.cursor.get_or_insert(0);
            maintenance.end_seq = u64::MAX;
            let (extents, next) = self.dirty(maintenance);
            maintenance.cursor = next;
            if !extents.is_empty() {
                self.copy_back(maintenance, &extents).inspect_err(|_| maintenance.forget())?;
            }
            if maintenance.cursor.is_none() {
                self.settle(maintenance)?;
                let state = self.state.lock();
                if state.map.dirty_bytes() == state.map.lost_bytes() {
                    break;
                }
            }
        }
        // What it holds must not come back over what is on the disk from now on; what was lost must not be forgotten.
        let end = self.written_seq.load(SeqCst);
        let lost = self.state.lock().map.lost_bytes();
        let emptied = match lost {
            0 => self.write_superblock(|superblock| {
                (superblock.tail_seq, superblock.durable_seq) = (end, end);
                superblock.tail_segment = self.state.lock().next_segment;
                superblock.usage = Use::Detached;
            }),
            lost => Err(io::Error::other(format!("{lost} bytes there cannot be read"))),
        };
        let marked = match (&emptied, &self.config.failure_mark) {
            (Err(_), Some(path)) => self.mark(path, lost),
            _ => Ok(()),
        };
        let mut state = self.state.lock();
        if let (Err(error), true) = (&emptied, self.config.failure_mark.is_none() || marked.is_err()) {
            state.stuck = true;
            return Err(io::Error::new(error.kind(), format!("{}: {error}", self.ssd.describe())));
        }
        let lost: Vec<_> = state.map.overlapping(0..self.size());
        for (offset, extent) in lost.into_iter().filter(|(_, extent)| extent.state != Newest::Lost) {
            state.map.remove(offset..offset + extent.len);
        }
        state.used.clear();
        state.doubtful.clear();
        state.stuck = false;
        state.health = Health::PassThrough;
        self.durable_seq.fetch_max(end, SeqCst);
        drop(state);
        self.tell(&format!("{}: it is not used any more; everything goes to the disk", self.ssd.describe()));
        Ok(())
    }

    fn mark(&self, path: &std::path::Path, lost: u64) -> io::Result<()> {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        // At once, and behind the end of a line that was cut off.
        let line = format!("\n{:016x} lost={lost} {}\n", self.layout.log_id, self.ssd.describe());
        file.write_all(line.as_bytes())?;
        file.sync_all()?;
        // And its name.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        std::fs::File::open(directory.unwrap_or(std::path::Path::new(".")))?.sync_all()
    }
}

/// All of the range that the extents are in, if there is something between them.
fn gaps(extents: &[(u64, Extent)]) -> Option<Range<u64>> {
    let (first, (last, extent)) = (extents.first()?, extents.last()?);
    let whole = first.0..last + extent.len;
    let own: u64 = extents.iter().map(|(_, extent)| extent.len).sum();
    (whole.end - whole.start > own).then_some(whole)
}

/// What is lost, but was written, is tried again.
fn find_again(map: &mut Map, extents: &BTreeMap<u64, Extent>) {
    for (offset, extent) in extents {
        if extent.state == Newest::Lost && extent.entry.kind != Kind::Lost {
            map.find_again(*offset, extent.len, extent.version);
        }
    }
}

impl Maintenance {
    /// What was written back and not flushed counts as not written.
    fn forget(&mut self) {
        self.written.clear();
        self.written_bytes = 0;
        self.cursor = None;
    }
}
