//! What lies on the SSD: superblocks, records, summaries of segments. All numbers are little-endian; every structure begins
//! with a magic number and a CRC-32 (IEEE) of all that follows it.
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 511, 4096 to 4607 | two superblocks; the valid one of the higher generation counts. A new one is written into one place, and when it is durable there into the other |
//! | from 8192 | the log: segments of equal size, used in a circle |
//! | after it | the prefetch area: slots. What is in it is known only in memory |
//!
//! A *record* is a header (whole sectors: who wrote it, its number, its entries) and the data of its entries, each from a
//! sector's start. It never crosses the end of its segment. A segment that is full ends with a *summary* of all its entries,
//! written after everything before it was made durable, so that a start need not look at each record.
//!
//! # Which record follows which
//! Records are numbered without gaps. The *epoch* counts how often the log was opened for writing, is durable before the first
//! record of that epoch is written, and never decreases from one record to the next: so what an earlier life left behind the
//! end that a later one found is never taken for a continuation, even where number and place fit.

/// Unit of placement and of what the device writes whole, in bytes.
pub const SECTOR: usize = 512;
/// Version of the format that this program writes, and the only one that it reads.
pub const VERSION: u32 = 1;
/// Where the superblocks are.
pub const SUPERBLOCKS: [u64; 2] = [0, 4096];
/// Where the log begins.
pub const LOG_START: u64 = 8192;
/// Most entries in a record: its header has at most 4 KiB.
pub const ENTRIES_MAX: usize = (HEADER_MAX - HEADER_FIXED) / ENTRY;
/// Most bytes in a record's header.
pub const HEADER_MAX: usize = 4096;
/// Bytes of an entry.
pub const ENTRY: usize = 32;
/// Most bytes of a disk's name that are kept.
pub const NAME_MAX: usize = 256;

const HEADER_FIXED: usize = 64;
const SUPER_MAGIC: u32 = 0x5254_4c53;
const RECORD_MAGIC: u32 = 0x4352_4c53;
const SUMMARY_MAGIC: u32 = 0x4d53_4c53;

/// What a superblock says of the tier's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The log holds what the disk may not have.
    Attached,
    /// Everything was written back; the log holds nothing.
    Detached,
}

/// The superblock: the geometry, and where reading the log begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Drawn when the tier is made: what other tiers left on the device is not this one's.
    pub log_id: u64,
    /// Counts the superblocks written.
    pub generation: u64,
    /// Counts the times the log was opened for writing.
    pub epoch: u64,
    /// Size of the disk, in bytes.
    pub disk_bytes: u64,
    /// Bytes of a segment, a multiple of [`SECTOR`].
    pub segment_bytes: u32,
    /// Number of segments.
    pub segments: u32,
    /// Bytes of a slot of the prefetch area, a multiple of 4096.
    pub slot_bytes: u32,
    /// Number of slots.
    pub slots: u32,
    /// The oldest segment that may hold what is needed.
    pub tail_segment: u32,
    /// In use or not.
    pub usage: Use,
    /// Number of the first record of the tail segment, or the next one's number if the log is empty.
    pub tail_seq: u64,
    /// All records before this one were durable when this was written.
    pub durable_seq: u64,
    /// Number of the first record of this epoch: what has that number or a later one and an older epoch was not found when
    /// the epoch began, and counts no more, whatever was written over parts of it.
    pub epoch_seq: u64,
    /// The disk, as its user calls it: a path. At most [`NAME_MAX`] bytes.
    pub disk_name: String,
}

impl Superblock {
    /// Where the superblock of this generation is written first,
    #[must_use]
    pub fn place(&self) -> u64 {
        SUPERBLOCKS[self.generation as usize % 2]
    }

    /// and where a copy of it is, as soon as it is durable there.
    #[must_use]
    pub fn other_place(&self) -> u64 {
        SUPERBLOCKS[(self.generation as usize + 1) % 2]
    }

    /// Where a segment begins.
    #[must_use]
    pub fn segment_start(&self, segment: u32) -> u64 {
        LOG_START + u64::from(segment) * u64::from(self.segment_bytes)
    }

    /// Where a slot begins; a multiple of 4096 from the log's end.
    #[must_use]
    pub fn slot_start(&self, slot: u32) -> u64 {
        self.segment_start(self.segments).next_multiple_of(4096) + u64::from(slot) * u64::from(self.slot_bytes)
    }

    /// Bytes of the whole.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.slot_start(self.slots)
    }

    /// As it lies on the device.
    #[must_use]
    pub fn encode(&self) -> [u8; SECTOR] {
        let mut out = Vec::with_capacity(SECTOR);
        for number in [SUPER_MAGIC, 0, VERSION, self.segment_bytes, self.segments, self.slot_bytes, self.slots] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.tail_segment.to_le_bytes());
        for number in
            [self.log_id, self.generation, self.epoch, self.disk_bytes, self.tail_seq, self.durable_seq, self.epoch_seq]
        {
            out.extend(number.to_le_bytes());
        }
        out.extend(u32::from(self.usage == Use::Detached).to_le_bytes());
        let name = &self.disk_name.as_bytes()[..self.disk_name.len().min(NAME_MAX)];
        out.extend((name.len() as u32).to_le_bytes());
        out.extend(name);
        out.resize(SECTOR, 0);
        seal(&mut out);
        out.try_into().expect("a sector")
    }

    /// `None` if this is no superblock or a damaged one; the version that was found if that is another one.
    #[must_use]
    pub fn decode(sector: &[u8]) -> Option<Result<Superblock, u32>> {
        let mut fields = Fields::checked(sector, SUPER_MAGIC)?;
        let version = fields.u32();
        if version != VERSION {
            return Some(Err(version));
        }
        let [segment_bytes, segments, slot_bytes, slots, tail_segment] = std::array::from_fn(|_| fields.u32());
        let [log_id, generation, epoch, disk_bytes, tail_seq, durable_seq, epoch_seq] =
            std::array::from_fn(|_| fields.u64());
        let usage = if fields.u32() == 1 { Use::Detached } else { Use::Attached };
        let len = (fields.u32() as usize).min(NAME_MAX);
        let disk_name = String::from_utf8_lossy(&fields.0[..len]).into_owned();
        let fits = tail_segment < segments
            && (4096..=1 << 30).contains(&segment_bytes)
            && (segment_bytes as usize).is_multiple_of(SECTOR)
            && slot_bytes > 0
            && slot_bytes.is_multiple_of(4096);
        fits.then_some(Ok(Superblock {
            log_id,
            generation,
            epoch,
            disk_bytes,
            segment_bytes,
            segments,
            slot_bytes,
            slots,
            tail_segment,
            usage,
            tail_seq,
            durable_seq,
            epoch_seq,
            disk_name,
        }))
    }
}

/// What an entry of the log does to the disk's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They are the entry's data.
    Data,
    /// They are zeros, and may be given back to the disk (`trim`) or not.
    Zero {
        /// They may.
        trim: bool,
    },
    /// They were lost with a damaged part of the SSD. Said in the log, so that the damaged part can be given up and nobody
    /// takes what the disk has for them.
    Lost,
}

/// One entry of a record or of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First byte on the disk.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Where the data begins, in bytes from the segment's start; a multiple of [`SECTOR`]. 0 for zeros.
    pub at: u32,
    /// CRC-32 of the data.
    pub crc: u32,
    /// What it does.
    pub kind: Kind,
}

impl Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.offset.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        let kind = match self.kind {
            Kind::Data => 0_u32,
            Kind::Zero { trim: false } => 1,
            Kind::Zero { trim: true } => 2,
            Kind::Lost => 3,
        };
        for number in [self.at, self.crc, kind, 0] {
            out.extend(number.to_le_bytes());
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Entry> {
        let (offset, len) = (fields.u64(), fields.u64());
        let [at, crc, kind, _] = std::array::from_fn(|_| fields.u32());
        let kind = match kind {
            0 => Kind::Data,
            1 => Kind::Zero { trim: false },
            2 => Kind::Zero { trim: true },
            3 => Kind::Lost,
            _ => return None,
        };
        Some(Entry { offset, len, at, crc, kind })
    }

    /// Bytes that the data takes in the log.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.kind == Kind::Data { (self.len as usize).next_multiple_of(SECTOR) } else { 0 }
    }
}

/// The header of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// See [`Superblock::log_id`].
    pub log_id: u64,
    /// In which it was written.
    pub epoch: u64,
    /// Its number.
    pub seq: u64,
    /// All records before this one were durable when it was written.
    pub durable_seq: u64,
    /// Bytes of the whole record, header and data.
    pub bytes: u32,
    /// Its entries, at most [`ENTRIES_MAX`], in the order in which they take effect.
    pub entries: Vec<Entry>,
}

/// Bytes of the header of a record with so many entries.
#[must_use]
pub fn header_bytes(entries: usize) -> usize {
    (HEADER_FIXED + entries * ENTRY).next_multiple_of(SECTOR)
}

impl Header {
    /// As it lies on the device.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let len = header_bytes(self.entries.len());
        let mut out = Vec::with_capacity(len);
        for number in [RECORD_MAGIC, 0, self.entries.len() as u32, self.bytes] {
            out.extend(number.to_le_bytes());
        }
        for number in [self.log_id, self.epoch, self.seq, self.durable_seq, 0, 0] {
            out.extend(number.to_le_bytes());
        }
        self.entries.iter().for_each(|entry| entry.encode(&mut out));
        out.resize(len, 0);
        seal(&mut out);
        out
    }

    /// The header that `bytes` begin with, if that is one and whole.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let count = Fields(bytes.get(8..12)?).u32() as usize;
        if count > ENTRIES_MAX {
            return None;
        }
        let mut fields = Fields::checked(bytes.get(..header_bytes(count))?, RECORD_MAGIC)?;
        let [_, bytes] = std::array::from_fn(|_| fields.u32());
        let [log_id, epoch, seq, durable_seq, _, _] = std::array::from_fn(|_| fields.u64());
        let entries = (0..count).map(|_| Entry::decode(&mut fields)).collect::<Option<Vec<_>>>()?;
        Some(Header { log_id, epoch, seq, durable_seq, bytes, entries })
    }

    /// True if bytes could be the first of a record.
    #[must_use]
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.starts_with(&RECORD_MAGIC.to_le_bytes())
    }
}

/// The end of a full segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// See [`Superblock::log_id`].
    pub log_id: u64,
    /// In which the segment was written.
    pub epoch: u64,
    /// Number of its first record.
    pub first_seq: u64,
    /// Number of the record after its last one.
    pub end_seq: u64,
    /// The entries of all its records.
    pub entries: Vec<Entry>,
}

/// Bytes of a summary of so many entries: the entries, then a sector that says how many.
#[must_use]
pub fn summary_bytes(entries: usize) -> usize {
    (entries * ENTRY).next_multiple_of(SECTOR) + SECTOR
}

impl Summary {
    /// As it lies at the end of the segment.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let len = summary_bytes(self.entries.len());
        let mut out = Vec::with_capacity(len);
        self.entries.iter().for_each(|entry| entry.encode(&mut out));
        out.resize(len - SECTOR, 0);
        let list = crc32fast::hash(&out);
        for number in [SUMMARY_MAGIC, 0, self.entries.len() as u32, list] {
            out.extend(number.to_le_bytes());
        }
        for number in [self.log_id, self.epoch, self.first_seq, self.end_seq] {
            out.extend(number.to_le_bytes());
        }
        out.resize(len, 0);
        seal(&mut out[len - SECTOR..]);
        out
    }

    /// What the last sector of a segment says: a summary without its entries, how many there are, and their CRC-32.
    #[must_use]
    pub fn decode_end(sector: &[u8]) -> Option<(Summary, usize, u32)> {
        let mut fields = Fields::checked(sector, SUMMARY_MAGIC)?;
        let [count, list] = std::array::from_fn(|_| fields.u32());
        let [log_id, epoch, first_seq, end_seq] = std::array::from_fn(|_| fields.u64());
        Some((Summary { log_id, epoch, first_seq, end_seq, entries: Vec::new() }, count as usize, list))
    }

    /// The entries, from the sectors before the last, if they have this CRC-32.
    #[must_use]
    pub fn decode_entries(bytes: &[u8], count: usize, crc: u32) -> Option<Vec<Entry>> {
        if crc32fast::hash(bytes) != crc || bytes.len() < count * ENTRY {
            return None;
        }
        let mut fields = Fields(bytes);
        (0..count).map(|_| Entry::decode(&mut fields)).collect()
    }
}

/// Writes the checksum of a structure whose second field it is.
fn seal(bytes: &mut [u8]) {
    let crc = crc32fast::hash(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Takes numbers from bytes. Whoever does has looked that there are enough.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// What follows magic number and checksum, if both are right.
    fn checked(bytes: &'a [u8], magic: u32) -> Option<Fields<'a>> {
        let mut fields = Fields(bytes);
        let right = bytes.len() >= SECTOR && fields.u32() == magic && fields.u32() == crc32fast::hash(&bytes[8..]);
        right.then_some(fields)
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (first, rest) = self.0.split_first_chunk().expect("as many bytes as the structure has");
        self.0 = rest;
        *first
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: u64) -> Vec<Entry> {
        let kinds = [Kind::Data, Kind::Zero { trim: false }, Kind::Zero { trim: true }, Kind::Lost];
        (0..count).map(|i| Entry { offset: i << 40, len: i, at: 512, crc: 7, kind: kinds[i as usize % 4] }).collect()
    }

    fn superblock() -> Superblock {
        Superblock {
            log_id: 1,
            generation: 2,
            epoch: 3,
            disk_bytes: 4,
            segment_bytes: 4096,
            segments: 9,
            slot_bytes: 8192,
            slots: 2,
            tail_segment: 8,
            usage: Use::Detached,
            tail_seq: 5,
            durable_seq: 6,
            epoch_seq: 7,
            disk_name: "/dev/sda".to_owned(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let whole = superblock();
        assert_eq!(Superblock::decode(&whole.encode()), Some(Ok(whole.clone())));
        assert!(whole.total_bytes() >= LOG_START + 9 * 4096 + 2 * 8192);
        for count in [0, 1, 14, 15, ENTRIES_MAX as u64] {
            let header = Header { log_id: 1, epoch: 2, seq: 3, durable_seq: 4, bytes: 4096, entries: entries(count) };
            let bytes = header.encode();
            assert!(bytes.len() <= HEADER_MAX && Header::may_begin(&bytes));
            assert_eq!(Header::decode(&bytes), Some(header));
            let summary = Summary { log_id: 1, epoch: 2, first_seq: 3, end_seq: 9, entries: entries(count) };
            let bytes = summary.encode();
            assert_eq!(bytes.len(), summary_bytes(count as usize));
            let (list, end) = bytes.split_at(bytes.len() - SECTOR);
            let (mut read, found, crc) = Summary::decode_end(end).unwrap();
            read.entries = Summary::decode_entries(list, found, crc).unwrap();
            assert_eq!(read, summary);
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let header = Header { log_id: 1, epoch: 2, seq: 3, durable_seq: 4, bytes: 4096, entries: entries(3) };
        let summary = Summary { log_id: 1, epoch: 2, first_seq: 3, end_seq: 9, entries: Vec::new() };
        let (superblock, header, summary) = (superblock().encode(), header.encode(), summary.encode());
        for bit in 0..SECTOR * 8 {
            let flipped = |bytes: &[u8]| {
                let mut bytes = bytes.to_vec();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            };
            assert_eq!(Superblock::decode(&flipped(&superblock)), None, "bit {bit}");
            assert_eq!(Header::decode(&flipped(&header)), None, "bit {bit}");
            assert!(Summary::decode_end(&flipped(&summary)).is_none(), "bit {bit}");
        }
        let mut newer = superblock;
        newer[8] = 2;
        seal(&mut newer);
        assert_eq!(Superblock::decode(&newer), Some(Err(2)), "a newer format is told from a damaged one");
        assert_eq!(Superblock::decode(&[0; SECTOR]), None);
        assert_eq!(Header::decode(&[]), None);
    }
}
