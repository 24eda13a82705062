//! Which of the disk's bytes are in the log, and where.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::format::{Entry, Kind};

/// How far a piece of the log has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Only the log has it.
    Dirty,
    /// It was written back, and the disk flushed. It stays mapped, and reads are served from the log, until its segment is
    /// given up: before that a crash would bring it back, so nothing newer may be on the disk alone.
    Clean,
    /// It could not be read from the log any more. Reads of it fail until it is written again.
    Lost,
}

/// A part of an entry of the log that is the newest data of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// In which segment.
    pub segment: u32,
    /// The entry it is of; its bytes begin `skip` bytes after the entry's first.
    pub entry: Entry,
    /// See there.
    pub skip: u64,
    /// Tells different writes of the same bytes apart.
    pub version: u64,
    /// How far it is.
    pub state: State,
}

impl Extent {
    /// Byte in the segment where its data begins; means nothing for zeros.
    #[must_use]
    pub fn at(&self) -> u64 {
        u64::from(self.entry.at) + self.skip
    }

    /// True if it covers its whole entry, so that its checksum can be compared.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.skip == 0 && self.len == self.entry.len
    }

    fn part(mut self, from: u64, len: u64) -> Extent {
        self.skip += from;
        self.len = len;
        self
    }

    fn needs_segment(&self) -> bool {
        self.state != State::Clean
    }
}

/// The mapping table: non-overlapping extents by offset, O(log n) for each that a call touches.
pub struct Map {
    extents: BTreeMap<u64, Extent>,
    /// Bytes of each segment that the disk does not have.
    needed: Vec<u64>,
    dirty_bytes: u64,
    lost_bytes: u64,
    versions: u64,
}

impl Map {
    /// An empty table for a log of so many segments.
    #[must_use]
    pub fn new(segments: u32) -> Map {
        Map { extents: BTreeMap::new(), needed: vec![0; segments as usize], dirty_bytes: 0, lost_bytes: 0, versions: 0 }
    }

    /// Takes an entry of the log in: it is the newest data of its bytes.
    pub fn insert(&mut self, segment: u32, entry: Entry) {
        self.insert_as(segment, entry, if entry.kind == Kind::Lost { State::Lost } else { State::Dirty });
    }

    /// The same, of what cannot be read.
    pub fn insert_lost(&mut self, segment: u32, entry: Entry) {
        self.insert_as(segment, entry, State::Lost);
    }

    fn insert_as(&mut self, segment: u32, entry: Entry, state: State) {
        if entry.len == 0 {
            return;
        }
        self.carve(entry.offset, entry.offset + entry.len);
        self.versions += 1;
        let extent = Extent { len: entry.len, segment, entry, skip: 0, version: self.versions, state };
        self.place(entry.offset, extent);
    }

    /// Forgets what is known of the range.
    pub fn remove(&mut self, range: Range<u64>) {
        self.carve(range.start, range.end);
    }

    /// Forgets what is still the newest of an entry whose segment is given up.
    pub fn forget(&mut self, segment: u32, entry: &Entry) {
        for (offset, extent) in self.overlapping(entry.offset..entry.offset + entry.len) {
            if extent.segment == segment {
                self.carve(offset, offset + extent.len);
            }
        }
    }

    fn place(&mut self, offset: u64, extent: Extent) {
        if extent.needs_segment() {
            self.needed[extent.segment as usize] += extent.len;
            self.dirty_bytes += extent.len;
        }
        if extent.state == State::Lost {
            self.lost_bytes += extent.len;
        }
        self.extents.insert(offset, extent);
    }

    fn take(&mut self, offset: u64) -> Extent {
        let extent = self.extents.remove(&offset).expect("found before");
        if extent.needs_segment() {
            self.needed[extent.segment as usize] -= extent.len;
            self.dirty_bytes -= extent.len;
        }
        if extent.state == State::Lost {
            self.lost_bytes -= extent.len;
        }
        extent
    }

    fn carve(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.extents.range(..start).next_back().map(|(&at, _)| at);
        let mut next = first.or_else(|| self.extents.range(start..end).next().map(|(&at, _)| at));
        while let Some(at) = next {
            if at >= end {
                break;
            }
            if at + self.extents[&at].len > start {
                let old = self.take(at);
                let old_end = at + old.len;
                if at < start {
                    self.place(at, old.part(0, start - at));
                }
                if old_end > end {
                    self.place(end, old.part(end - at, old_end - end));
                }
            }
            next = self.extents.range(at + 1..end).next().map(|(&at, _)| at).filter(|&at| at < end);
        }
    }

    /// True if any byte of the range is mapped.
    #[must_use]
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.extents.range(..range.end).next_back();
        before.is_some_and(|(&at, extent)| at + extent.len > range.start)
    }

    /// The extents that overlap the range, whole, by offset.
    #[must_use]
    pub fn overlapping(&self, range: Range<u64>) -> Vec<(u64, Extent)> {
        let first = self.extents.range(..range.start).next_back();
        let first = first.filter(|(at, extent)| **at + extent.len > range.start);
        let rest = self.extents.range(range.start..range.end.max(range.start));
        first.into_iter().chain(rest).map(|(&at, &extent)| (at, extent)).collect()
    }

    /// The range in pieces, in order: its length, and the part of an extent that it is, `None` where nothing is mapped.
    #[must_use]
    pub fn pieces(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<Extent>)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        for (offset, extent) in self.overlapping(range.clone()) {
            if offset > at {
                pieces.push((at..offset, None));
            }
            let (from, to) = (offset.max(range.start), (offset + extent.len).min(range.end));
            pieces.push((from..to, Some(extent.part(from - offset, to - from))));
            at = to;
        }
        if at < range.end {
            pieces.push((at..range.end, None));
        }
        pieces
    }

    /// The next dirty extents from `from` up in segments that `wanted` accepts: looks at `look` extents at most, takes
    /// `take` at most. Also where to go on; `None` at the end of the table.
    #[must_use]
    pub fn dirty_from(
        &self,
        from: u64,
        (look, take): (usize, usize),
        wanted: impl Fn(u32) -> bool,
    ) -> (Vec<(u64, Extent)>, Option<u64>) {
        let mut found = Vec::new();
        for (looked, (&at, &extent)) in self.extents.range(from..).enumerate() {
            if looked == look || found.len() == take {
                return (found, Some(at));
            }
            if extent.state == State::Dirty && wanted(extent.segment) {
                found.push((at, extent));
            }
        }
        (found, None)
    }

    /// The disk has, durably, what was mapped there with these versions.
    pub fn clean(&mut self, offset: u64, len: u64, version: u64) {
        self.change(offset, len, version, State::Clean);
    }

    /// What was mapped there with this version cannot be read any more.
    pub fn lose(&mut self, offset: u64, len: u64, version: u64) {
        self.change(offset, len, version, State::Lost);
    }

    /// What was mapped there with this version, and lost, may be read again after all.
    pub fn find_again(&mut self, offset: u64, len: u64, version: u64) {
        self.change(offset, len, version, State::Dirty);
    }

    fn change(&mut self, offset: u64, len: u64, version: u64, state: State) {
        for (at, extent) in self.overlapping(offset..offset + len) {
            if extent.version == version && extent.state != state {
                self.take(at);
                self.place(at, Extent { state, ..extent });
            }
        }
    }

    /// Bytes of the segment that the disk does not have.
    #[must_use]
    pub fn needed(&self, segment: u32) -> u64 {
        self.needed[segment as usize]
    }

    /// Bytes that only the log has, or that are lost.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Number of extents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// True if nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Bytes that are lost.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::Random;

    /// Against an array with one cell for each byte.
    #[test]
    fn the_table_is_what_an_array_of_bytes_says() {
        for seed in 0..200 {
            let mut random = Random(seed);
            let mut map = Map::new(4);
            // Of each byte: version, segment, state, place in its entry.
            let mut model: Vec<Option<(u64, u32, State, u64)>> = vec![None; 64];
            for step in 1..60_u64 {
                let start = random.below(64);
                let len = random.below(64 - start + 1).min(20);
                let segment = random.below(4) as u32;
                let range = start as usize..(start + len) as usize;
                match random.below(8) {
                    0 => {
                        map.remove(start..start + len);
                        model[range].fill(None);
                    }
                    1 => {
                        let entry = Entry { offset: start, len, at: 0, crc: 0, kind: Kind::Data };
                        map.forget(segment, &entry);
                        assert!(cells(&map)[range].iter().flatten().all(|cell| cell.1 != segment));
                        model = cells(&map);
                    }
                    2 => {
                        let version = random.below(step);
                        map.clean(start, len, version);
                        model = cells(&map);
                    }
                    _ => {
                        let kind = if random.below(4) == 0 { Kind::Zero { trim: true } } else { Kind::Data };
                        map.insert(segment, Entry { offset: start, len, at: 512, crc: 0, kind });
                        let version = map.versions;
                        for (at, cell) in model[range].iter_mut().enumerate() {
                            *cell = Some((version, segment, State::Dirty, at as u64));
                        }
                    }
                }
                assert_eq!(cells(&map), model, "seed {seed} step {step}");
                for segment in 0..4 {
                    let dirty = |cell: &&(u64, u32, State, u64)| cell.1 == segment && cell.2 != State::Clean;
                    let count = model.iter().flatten().filter(dirty).count() as u64;
                    assert_eq!(map.needed(segment), count, "seed {seed} step {step}");
                }
                assert_eq!(map.dirty_bytes(), (0..4).map(|segment| map.needed(segment)).sum());
                let looked = map.pieces(start..start + len);
                assert_eq!(looked.iter().map(|(piece, _)| piece.end - piece.start).sum::<u64>(), len);
                let any = looked.iter().any(|(_, extent)| extent.is_some());
                assert_eq!(map.overlaps(&(start..start + len)), any, "seed {seed} step {step}");
            }
        }
    }

    fn cells(map: &Map) -> Vec<Option<(u64, u32, State, u64)>> {
        let mut cells = vec![None; 64];
        for (range, extent) in map.pieces(0..64) {
            if let Some(extent) = extent {
                for at in range.clone() {
                    let place = extent.skip + at - range.start;
                    cells[at as usize] = Some((extent.version, extent.segment, extent.state, place));
                }
            }
        }
        cells
    }

    #[test]
    fn what_is_given_up_goes_only_where_it_is_still_the_newest() {
        let mut map = Map::new(2);
        let old = Entry { offset: 0, len: 100, at: 512, crc: 0, kind: Kind::Data };
        map.insert(0, old);
        map.insert(1, Entry { offset: 20, len: 10, ..old });
        map.clean(0, 100, 1);
        assert_eq!((map.needed(0), map.needed(1)), (0, 10), "the newer write is not clean");
        map.forget(0, &old);
        assert_eq!(map.pieces(0..100).iter().filter(|(_, extent)| extent.is_some()).count(), 1);
        assert!(map.overlaps(&(20..30)) && !map.overlaps(&(0..20)) && !map.overlaps(&(30..100)));
    }
}
