//! Writing records. Writers that come together share one: the first writes for all that have come meanwhile.

use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};

use crate::format::{ENTRIES_MAX, Entry, HEADER_MAX, Header, Kind, SECTOR, Summary, header_bytes, summary_bytes};
use crate::map::Extent;
use crate::pace::RECORD_BYTES;
use crate::recover::Used;
use crate::stats::Counters;
use crate::tier::Tier;

/// Why something is not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAppended {
    /// There is no room.
    Full,
    /// The SSD has failed.
    Failed,
}

/// Who writes records, and where.
pub(crate) struct Appender {
    /// Number of the next record.
    next_seq: u64,
    open: Option<Open>,
}

/// The segment that records are added to.
struct Open {
    segment: u32,
    first_seq: u64,
    fill: usize,
    entries: Vec<Entry>,
}

/// What a segment holds beside the data, with so many entries in one record.
fn around(entries: usize) -> usize {
    header_bytes(entries) + summary_bytes(entries)
}

/// Most entries without data in a record, which an empty segment has to hold with its summary.
fn most_entries(segment_bytes: usize) -> usize {
    (1..=ENTRIES_MAX).take_while(|&entries| around(entries) <= segment_bytes).count().max(1)
}

impl Appender {
    pub(crate) fn new(next_seq: u64) -> Appender {
        Appender { next_seq, open: None }
    }
}

/// What the next record will hold.
pub(crate) struct Batch {
    /// Room for the largest header, then the data.
    bytes: Vec<u8>,
    /// `at` counts from the start of the data.
    entries: Vec<Entry>,
    outcome: Arc<OnceLock<Result<(), NotAppended>>>,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch { bytes: vec![0; HEADER_MAX], entries: Vec::new(), outcome: Arc::default() }
    }
}

impl Batch {
    /// False if it has no room for that.
    fn add(&mut self, mut entry: Entry, data: Option<&[u8]>, segment_bytes: usize) -> bool {
        let (room, entries) = (self.bytes.len() - HEADER_MAX + entry.room(), self.entries.len() + 1);
        // An empty segment has to hold it.
        let fits = room + around(entries) <= segment_bytes && room <= RECORD_BYTES && entries <= ENTRIES_MAX;
        if fits {
            if let Some(data) = data {
                entry.at = (self.bytes.len() - HEADER_MAX) as u32;
                self.bytes.extend_from_slice(data);
                self.bytes.resize(self.bytes.len().next_multiple_of(SECTOR), 0);
            }
            self.entries.push(entry);
        }
        fits
    }
}

impl Tier {
    /// Most bytes of data in one entry.
    pub(crate) fn data_max(&self) -> u64 {
        let most = (self.layout.segment_bytes as usize - around(1)).min(RECORD_BYTES);
        (most / SECTOR * SECTOR) as u64
    }

    /// Puts an entry into the log: when this returns it was written, and is what reads see.
    pub(crate) fn append(&self, offset: u64, len: u64, kind: Kind, data: Option<&[u8]>) -> Result<(), NotAppended> {
        let entry = Entry { offset, len, at: 0, crc: data.map_or(0, crc32fast::hash), kind };
        let outcome = loop {
            let mut batch = self.incoming.lock();
            if batch.add(entry, data, self.layout.segment_bytes as usize) {
                break batch.outcome.clone();
            }
            drop(batch);
            // Full: it goes first.
            let appender = &mut self.appender.lock();
            self.write_batch(appender);
        };
        if outcome.get().is_none() {
            let appender = &mut self.appender.lock();
            if outcome.get().is_none() {
                self.write_batch(appender);
            }
        }
        *outcome.get().expect("the batch that had it was written")
    }

    /// Writes what has come.
    fn write_batch(&self, appender: &mut Appender) {
        let batch = std::mem::take(&mut *self.incoming.lock());
        if batch.entries.is_empty() {
            return;
        }
        let outcome = self.write_record(appender, batch.bytes, batch.entries);
        batch.outcome.set(outcome).expect("one writer for each batch");
    }

    fn write_record(
        &self,
        appender: &mut Appender,
        mut bytes: Vec<u8>,
        mut entries: Vec<Entry>,
    ) -> Result<(), NotAppended> {
        let header_len = header_bytes(entries.len());
        let len = header_len + bytes.len() - HEADER_MAX;
        let lost = entries.iter().all(|entry| entry.kind == Kind::Lost);
        self.make_open(appender, len, entries.len(), lost)?;
        let seq = appender.next_seq;
        let open = appender.open.as_mut().expect("made open");
        for entry in entries.iter_mut().filter(|entry| entry.kind == Kind::Data) {
            entry.at += (open.fill + header_len) as u32;
        }
        let header = Header {
            log_id: self.layout.log_id,
            epoch: self.layout.epoch,
            seq,
            durable_seq: self.durable_seq.load(SeqCst),
            bytes: len as u32,
            entries,
        };
        let start = HEADER_MAX - header_len;
        bytes[start..HEADER_MAX].copy_from_slice(&header.encode());
        let at = self.layout.segment_start(open.segment) + open.fill as u64;
        if let Err(error) = self.write_ssd(&bytes[start..], at) {
            // It may be there all the same.
            let ranges = header.entries.iter().map(|entry| entry.offset..entry.offset + entry.len);
            self.state.lock().doubtful.extend(ranges);
            self.ssd_failed("write", &error);
            return Err(NotAppended::Failed);
        }
        open.fill += len;
        open.entries.extend(&header.entries);
        appender.next_seq += 1;
        self.written_seq.store(appender.next_seq, SeqCst);
        let now = self.now();
        let mut state = self.state.lock();
        state.appended = now;
        for &entry in &header.entries {
            state.map.insert(open.segment, entry);
        }
        drop(state);
        Counters::add(&self.counters.records, 1);
        let data = header.entries.iter().filter(|entry| entry.kind == Kind::Data);
        Counters::add(&self.counters.logged_bytes, data.map(|entry| entry.len).sum());
        Ok(())
    }

    /// Says in the log that these are lost. With the appender, nothing newer can come between looking and saying so.
    pub(crate) fn append_lost(&self, appender: &mut Appender, extents: &[(u64, Extent)]) -> Result<(), NotAppended> {
        for extents in extents.chunks(most_entries(self.layout.segment_bytes as usize)) {
            let entry = |(offset, extent): &(u64, Extent)| Entry {
                offset: *offset,
                len: extent.len,
                at: 0,
                crc: 0,
                kind: Kind::Lost,
            };
            self.write_record(appender, vec![0; HEADER_MAX], extents.iter().map(entry).collect())?;
        }
        Ok(())
    }

    /// A segment with room for a record of `len` bytes and so many entries. One segment is kept for what says that something
    /// is `lost`: without it, the oldest segment could not be given up where that cannot be read.
    fn make_open(&self, appender: &mut Appender, len: usize, entries: usize, lost: bool) -> Result<(), NotAppended> {
        let (health, free) = {
            let state = self.state.lock();
            (state.health, state.segments_free())
        };
        if health != crate::Health::Well {
            return Err(NotAppended::Failed);
        }
        if let Some(open) = &appender.open {
            let summary = summary_bytes(open.entries.len() + entries);
            if open.fill + len + summary <= self.layout.segment_bytes as usize {
                return if lost || free > 0 { Ok(()) } else { Err(NotAppended::Full) };
            }
            self.close(appender).map_err(|_| NotAppended::Failed)?;
        }
        let mut state = self.state.lock();
        let full = if lost { state.segments_free() == 0 } else { !state.has_room(&self.config) };
        if full {
            return Err(NotAppended::Full);
        }
        let segment = state.next_segment;
        // Nothing is mapped to it, so no reader comes any more.
        while state.pins[segment as usize] > 0 {
            self.unpinned.wait(&mut state);
        }
        state.next_segment = (segment + 1) % self.layout.segments;
        let first_seq = appender.next_seq;
        state.used.push_back(Used { segment, first_seq, end_seq: first_seq, entries: Vec::new(), open: true });
        appender.open = Some(Open { segment, first_seq, fill: 0, entries: Vec::new() });
        Ok(())
    }

    /// Closes the segment that records are added to, if there is one: what is in it can then be given up.
    pub(crate) fn close_segment(&self) -> io::Result<()> {
        self.close(&mut self.appender.lock())
    }

    /// Nothing is added any more.
    pub(crate) fn abandon_segment(&self) {
        self.appender.lock().open = None;
    }

    fn close(&self, appender: &mut Appender) -> io::Result<()> {
        let Some(open) = appender.open.take() else { return Ok(()) };
        let end_seq = appender.next_seq;
        let result = self.flush_ssd(end_seq).and_then(|()| {
            let summary = Summary {
                log_id: self.layout.log_id,
                epoch: self.layout.epoch,
                first_seq: open.first_seq,
                end_seq,
                entries: open.entries.clone(),
            };
            let bytes = summary.encode();
            let end = self.layout.segment_start(open.segment) + u64::from(self.layout.segment_bytes);
            self.write_ssd(&bytes, end - bytes.len() as u64).inspect_err(|error| self.ssd_failed("write", error))
        });
        let mut state = self.state.lock();
        let used = state.used.back_mut().expect("the open one");
        (used.end_seq, used.entries, used.open) = (end_seq, open.entries, false);
        result
    }
}
