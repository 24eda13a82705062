//! Reading the log at the start.

use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::config::OpenError;
use crate::device::Device;
use crate::format::{self, ENTRY, Entry, HEADER_MAX, Header, Kind, SECTOR, SUPERBLOCKS, Summary, Superblock};
use crate::map::Map;

/// A segment that is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) segment: u32,
    pub(crate) first_seq: u64,
    /// Number of the record after the last.
    pub(crate) end_seq: u64,
    pub(crate) entries: Vec<Entry>,
    /// Records are still added.
    pub(crate) open: bool,
}

/// What reading the log has found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Records and segments read.
    pub records: u64,
    /// Segments in use.
    pub segments: u32,
    /// Of those, whose summary was used.
    pub summaries: u32,
    /// Entries of all records.
    pub entries: u64,
    /// Bytes in the log that the disk may not have.
    pub dirty_bytes: u64,
    /// The log ended with a record that was not whole: one that was under way when its writer ended.
    pub torn: bool,
    /// Bytes whose data was durable and does not match its checksum. Reads of them fail.
    pub lost_bytes: u64,
    /// Records that were durable and could not be read: the first, and the last known of. Salvage goes on behind them.
    pub missing: Option<(u64, u64)>,
    /// Time that it took, in milliseconds.
    pub millis: f64,
}

pub(crate) struct Recovered {
    pub(crate) map: Map,
    pub(crate) used: Vec<Used>,
    pub(crate) next_seq: u64,
    /// The first record that whoever comes next expects.
    pub(crate) tail_seq: u64,
    /// The newest epoch of a record.
    pub(crate) epoch: u64,
    pub(crate) report: Report,
}

/// The newest superblock.
pub(crate) fn superblock(ssd: &dyn Device) -> Result<Superblock, OpenError> {
    let mut newest: Option<Superblock> = None;
    let mut other = None;
    let mut failed = None;
    for at in SUPERBLOCKS {
        let mut sector = [0; SECTOR];
        // One that cannot be read is as good as a damaged one.
        match ssd.read(&mut sector, at) {
            Ok(()) => match Superblock::decode(&sector) {
                Some(Ok(found)) if newest.as_ref().is_none_or(|best| best.generation < found.generation) => {
                    newest = Some(found);
                }
                Some(Err(version)) => other = Some(version),
                _ => {}
            },
            Err(error) => failed = Some(error),
        }
    }
    match (newest, other, failed) {
        (_, Some(found), _) => Err(OpenError::Version { device: ssd.describe(), found }),
        (Some(found), ..) if found.total_bytes() > ssd.size() => Err(OpenError::Geometry(format!(
            "{}: has {} bytes, the tier on it {}; it was made shorter",
            ssd.describe(),
            ssd.size(),
            found.total_bytes()
        ))),
        (Some(found), ..) => Ok(found),
        (None, None, Some(error)) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error.into()),
        _ => Err(OpenError::NoTier(ssd.describe())),
    }
}

/// Reads the log. `verify`: also the data of segments that have a summary, which is otherwise compared with its checksum when
/// it is used. `salvage`: goes on behind records that are missing.
pub(crate) fn recover(ssd: &dyn Device, superblock: &Superblock, verify: bool, salvage: bool) -> io::Result<Recovered> {
    let began = Instant::now();
    let mut scan = Scan {
        ssd,
        superblock,
        verify,
        salvage,
        found: Recovered {
            map: Map::new(superblock.segments),
            used: Vec::new(),
            next_seq: superblock.tail_seq,
            tail_seq: superblock.tail_seq,
            epoch: 0,
            report: Report::default(),
        },
        epoch: 0,
        durable_seq: superblock.durable_seq,
        // Made once: most segments need only their end.
        bytes: Vec::new(),
    };
    let mut ended = false;
    for ahead in 0..superblock.segments {
        let segment = (superblock.tail_segment + ahead) % superblock.segments;
        if ended {
            scan.witness(segment);
        } else {
            ended = !scan.segment(segment)? && !salvage;
        }
    }
    let mut found = scan.found;
    found.epoch = scan.epoch;
    let report = &mut found.report;
    if scan.durable_seq > found.next_seq {
        report.missing.get_or_insert((found.next_seq, scan.durable_seq - 1));
        // Those numbers were given away. When all before them is given up nobody is to look for them any more.
        found.next_seq = scan.durable_seq;
        match found.used.last_mut() {
            Some(last) => last.end_seq = found.next_seq,
            None => found.tail_seq = found.next_seq,
        }
    }
    report.segments = found.used.len() as u32;
    report.lost_bytes = found.map.lost_bytes();
    report.dirty_bytes = found.map.dirty_bytes();
    report.millis = millis(began.elapsed());
    Ok(found)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

struct Scan<'a> {
    ssd: &'a dyn Device,
    superblock: &'a Superblock,
    verify: bool,
    salvage: bool,
    found: Recovered,
    epoch: u64,
    /// All records before this one are known to have been durable.
    durable_seq: u64,
    bytes: Vec<u8>,
}

/// Pieces of a segment that cannot be read as a whole, and of those that cannot be read either.
const PIECES: &[usize] = &[64 << 10, 4096, SECTOR];

/// Reads around what cannot be read: that is as good as damaged, and zeros here.
fn read_what_can_be(ssd: &dyn Device, bytes: &mut [u8], start: u64, pieces: &[usize]) {
    let Some((&len, smaller)) = pieces.split_first() else { return bytes.fill(0) };
    for (number, piece) in bytes.chunks_mut(len).enumerate() {
        let at = start + (number * len) as u64;
        if ssd.read(piece, at).is_err() {
            read_what_can_be(ssd, piece, at, smaller);
        }
    }
}

impl Scan<'_> {
    /// False if the log ends before or in this segment.
    fn segment(&mut self, segment: u32) -> io::Result<bool> {
        let (before, first_seq) = (self.found.report.records, self.found.next_seq);
        let mut used = Used { segment, first_seq, ..Used::default() };
        if let Some(summary) = self.summary(segment)? {
            self.found.report.summaries += 1;
            self.found.report.records += summary.end_seq - first_seq;
            self.found.next_seq = summary.end_seq;
            // It was written after all of them were made durable.
            self.durable_seq = self.durable_seq.max(summary.end_seq);
            self.epoch = summary.epoch;
            if self.verify {
                self.read(segment)?;
            }
            for entry in summary.entries {
                let whole = !self.verify || self.is_right(&entry);
                self.add(&mut used, entry, whole);
            }
        } else {
            self.read(segment)?;
            self.records(&mut used);
        }
        used.end_seq = self.found.next_seq;
        let any = self.found.report.records > before;
        if any {
            self.found.used.push(used);
        }
        Ok(any)
    }

    fn read(&mut self, segment: u32) -> io::Result<()> {
        self.bytes.resize(self.superblock.segment_bytes as usize, 0);
        let start = self.superblock.segment_start(segment);
        match self.ssd.read(&mut self.bytes, start) {
            Err(_) if self.salvage => read_what_can_be(self.ssd, &mut self.bytes, start, PIECES),
            result => result?,
        }
        Ok(())
    }

    /// The segment's summary, if it continues the log.
    fn summary(&mut self, segment: u32) -> io::Result<Option<Summary>> {
        let end = self.superblock.segment_start(segment) + u64::from(self.superblock.segment_bytes);
        let mut last = [0; SECTOR];
        match self.ssd.read(&mut last, end - SECTOR as u64) {
            Err(_) if self.salvage => return Ok(None),
            result => result?,
        }
        let Some((mut summary, count, crc)) = Summary::decode_end(&last) else { return Ok(None) };
        let list = (count * ENTRY).next_multiple_of(SECTOR);
        let continues = summary.log_id == self.superblock.log_id
            && summary.first_seq == self.found.next_seq
            && self.is_of_its_time(summary.end_seq, summary.epoch);
        if !continues || list + SECTOR > self.superblock.segment_bytes as usize {
            return Ok(None);
        }
        let mut bytes = vec![0; list];
        match self.ssd.read(&mut bytes, end - (SECTOR + list) as u64) {
            // The records themselves may be readable.
            Err(_) if self.salvage => return Ok(None),
            result => result?,
        }
        let Some(entries) = Summary::decode_entries(&bytes, count, crc) else { return Ok(None) };
        summary.entries = entries.into_iter().filter(|entry| self.is_possible(entry)).collect();
        Ok((summary.entries.len() == count).then_some(summary))
    }

    /// The records of the segment in `bytes`, one after the other.
    fn records(&mut self, used: &mut Used) {
        let mut at = 0;
        loop {
            let Some(header) = self.header(at) else {
                match self.later(at) {
                    Some((_, header)) if !self.salvage => self.miss(&header),
                    Some((later, header)) => {
                        self.miss(&header);
                        self.found.next_seq = header.seq;
                        at = later;
                        continue;
                    }
                    None => {}
                }
                return;
            };
            let next = at + header.bytes as usize;
            let right = header.entries.iter().all(|entry| self.is_right(entry));
            if !right {
                // Either the last one of its life, not finished, or what was once durable: then a later one says so.
                let known = self.later(next).map_or(0, |(_, later)| later.durable_seq);
                self.durable_seq = self.durable_seq.max(known);
                let durable = known > header.seq
                    || self.durable_seq > header.seq && !self.begins_anew(used.segment, header.epoch);
                if !durable {
                    self.found.report.torn = true;
                    return;
                }
            }
            if used.entries.is_empty() {
                // Not what was expected, if something before it is missing.
                used.first_seq = header.seq;
            }
            for &entry in &header.entries {
                let whole = self.is_right(&entry);
                self.add(used, entry, whole);
            }
            self.found.report.records += 1;
            self.found.next_seq = header.seq + 1;
            self.epoch = header.epoch;
            self.durable_seq = self.durable_seq.max(header.durable_seq);
            at = next;
        }
    }

    /// The record that continues the log, if it is there.
    fn header(&self, at: usize) -> Option<Header> {
        let header = self.any_header(at)?;
        (header.seq == self.found.next_seq && self.is_of_its_time(header.seq + 1, header.epoch)).then_some(header)
    }

    /// Records before this number may be of this epoch.
    fn is_of_its_time(&self, end_seq: u64, epoch: u64) -> bool {
        epoch >= self.epoch && (end_seq <= self.superblock.epoch_seq || epoch >= self.superblock.epoch)
    }

    fn any_header(&self, at: usize) -> Option<Header> {
        let rest = self.bytes.get(at..)?;
        let header = Header::decode(&rest[..rest.len().min(HEADER_MAX)])?;
        let fits = header.bytes as usize <= rest.len() && header.bytes as usize >= SECTOR;
        let ours = header.log_id == self.superblock.log_id && fits;
        (ours && header.entries.iter().all(|entry| self.is_possible(entry))).then_some(header)
    }

    /// A record somewhere behind which knows that the one expected was durable.
    fn later(&self, from: usize) -> Option<(usize, Header)> {
        (from..self.bytes.len())
            .step_by(SECTOR)
            .filter(|&at| Header::may_begin(&self.bytes[at..]))
            .filter_map(|at| Some((at, self.any_header(at)?)))
            .find(|(_, header)| header.durable_seq > self.found.next_seq && header.epoch >= self.epoch)
    }

    /// What a segment behind the end knows to have been durable: if that is more than was found, a whole segment is missing.
    fn witness(&mut self, segment: u32) {
        let start = self.superblock.segment_start(segment);
        let mut bytes = vec![0; HEADER_MAX.min(self.superblock.segment_bytes as usize)];
        let header = self.ssd.read(&mut bytes, start).ok().and_then(|()| Header::decode(&bytes));
        if let Some(header) = header.filter(|header| header.log_id == self.superblock.log_id) {
            self.durable_seq = self.durable_seq.max(header.durable_seq);
        }
        let mut last = [0; SECTOR];
        let end = start + u64::from(self.superblock.segment_bytes) - SECTOR as u64;
        let summary = self.ssd.read(&mut last, end).ok().and_then(|()| Summary::decode_end(&last));
        if let Some((summary, ..)) = summary.filter(|(summary, ..)| summary.log_id == self.superblock.log_id) {
            self.durable_seq = self.durable_seq.max(summary.end_seq);
        }
    }

    /// The record expected is the first one of a later life, in the next segment: what has its number here was never found by
    /// that one.
    fn begins_anew(&self, segment: u32, epoch: u64) -> bool {
        let next = (segment + 1) % self.superblock.segments;
        let mut bytes = vec![0; HEADER_MAX.min(self.superblock.segment_bytes as usize)];
        let read = self.ssd.read(&mut bytes, self.superblock.segment_start(next)).is_ok();
        let header = Header::decode(&bytes).filter(|_| read);
        let newer = |found: Header| {
            found.log_id == self.superblock.log_id && found.seq == self.found.next_seq && found.epoch > epoch
        };
        header.is_some_and(newer)
    }

    fn miss(&mut self, later: &Header) {
        let first = self.found.report.missing.map_or(self.found.next_seq, |(first, _)| first);
        self.found.report.missing = Some((first, later.durable_seq - 1));
    }

    fn is_possible(&self, entry: &Entry) -> bool {
        let at = u64::from(entry.at);
        let inside = entry.kind != Kind::Data || at + entry.len <= u64::from(self.superblock.segment_bytes);
        inside && entry.offset.checked_add(entry.len).is_some_and(|end| end <= self.superblock.disk_bytes)
    }

    fn is_right(&self, entry: &Entry) -> bool {
        let at = entry.at as usize;
        entry.kind != Kind::Data
            || self.bytes.get(at..at + entry.len as usize).is_some_and(|data| crc32fast::hash(data) == entry.crc)
    }

    fn add(&mut self, used: &mut Used, entry: Entry, whole: bool) {
        match whole {
            true => self.found.map.insert(used.segment, entry),
            false => self.found.map.insert_lost(used.segment, entry),
        }
        self.found.report.entries += 1;
        used.entries.push(entry);
    }
}

/// The disk that the tier on an SSD was made for. Reads the superblocks and nothing else.
///
/// # Errors
/// If there is none, or the SSD cannot be read.
pub fn made_for(ssd: &dyn Device) -> Result<String, OpenError> {
    Ok(superblock(ssd)?.disk_name)
}

/// Nothing but what a tier that was taken off leaves behind: no superblock, and a log.
///
/// # Errors
/// If the SSD cannot be read.
pub fn was_taken_off(ssd: &dyn Device) -> io::Result<bool> {
    let mut sector = [0; SECTOR];
    for at in SUPERBLOCKS {
        ssd.read(&mut sector, at)?;
        if sector != [0; SECTOR] {
            return Ok(false);
        }
    }
    ssd.read(&mut sector, format::LOG_START)?;
    Ok(Header::may_begin(&sector))
}

/// What [`check`] tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The disk that the tier was made for, and its size in bytes.
    pub disk: String,
    /// See `disk`.
    pub disk_bytes: u64,
    /// Version of the format.
    pub format: u32,
    /// Everything was written back, and nothing since.
    pub detached: bool,
    /// Times that the log was opened for writing.
    pub epoch: u64,
    /// Bytes of the log and of the prefetch area.
    pub queue_bytes: u64,
    /// See `queue_bytes`.
    pub area_bytes: u64,
    /// What is in the log.
    pub log: Report,
}

/// Looks at a tier that nobody uses, and changes nothing. All data is compared with its checksum.
///
/// # Errors
/// If there is none, or the SSD cannot be read.
pub fn check(ssd: &dyn Device) -> Result<Check, OpenError> {
    let superblock = superblock(ssd)?;
    let log = recover(ssd, &superblock, true, true)?.report;
    Ok(Check {
        disk: superblock.disk_name.clone(),
        disk_bytes: superblock.disk_bytes,
        format: format::VERSION,
        detached: superblock.usage == format::Use::Detached,
        epoch: superblock.epoch,
        queue_bytes: u64::from(superblock.segments) * u64::from(superblock.segment_bytes),
        area_bytes: u64::from(superblock.slots) * u64::from(superblock.slot_bytes),
        log,
    })
}
