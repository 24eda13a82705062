//! The bytes of a trace, as docs/trace-format.md describes them. All numbers are little-endian.

use serde::{Deserialize, Serialize};

/// How a trace begins. The first byte is no text, the line ends show a transfer that changed them.
pub(crate) const MAGIC: [u8; 8] = *b"\x89SLTR\r\n\x1a";
/// A later major version cannot be read by older programs; a later minor one has more, which they skip.
pub(crate) const MAJOR: u16 = 1;
/// Traces with checksums of data have 1, those with the numbers of processes 2.
pub(crate) const MINOR: u16 = 0;
pub(crate) const MINOR_CHECKSUMS: u16 = 1;
pub(crate) const MINOR_PROCESSES: u16 = 2;
/// Magic, versions, reserved, checksum.
pub(crate) const FILE_HEADER: usize = 24;

pub(crate) const BLOCK_MAGIC: [u8; 4] = *b"SLBK";
pub(crate) const BLOCK_HEADER: usize = 24;
/// Largest contents of a block.
pub(crate) const PAYLOAD_MAX: u32 = 64 << 20;
/// Entries that a writer puts into a block.
pub const BLOCK_ENTRIES: usize = 1 << 16;
/// Entries that a reader accepts in a block.
pub const BLOCK_ENTRIES_MAX: u32 = 1 << 20;
/// Longest path, in bytes.
pub(crate) const PATH_MAX: usize = 1 << 16;
/// Bytes of all paths of a trace together.
pub const PATH_BYTES_MAX: usize = 256 << 20;
/// Paths of a trace.
pub(crate) const PATHS_MAX: usize = 1 << 24;
/// Bytes of the text that says why a trace is not complete.
pub(crate) const INCOMPLETE_MAX: usize = 1 << 16;
/// Bytes of the paths of one block.
pub(crate) const PATH_BLOCK_MAX: usize = 16 << 20;

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Entries in columns.
    Entries = 0,
    /// Paths, which get the next numbers.
    Paths = 1,
    /// What was recorded: JSON.
    Meta = 2,
    /// Nothing follows: totals.
    End = 3,
}

/// A block's header, without its checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// A [`Kind`], or one of a later minor version.
    pub(crate) kind: u8,
    pub(crate) columns: u8,
    pub(crate) count: u32,
    pub(crate) len: u32,
    pub(crate) checksum: u32,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; BLOCK_HEADER] {
        let mut bytes = [0; BLOCK_HEADER];
        bytes[..4].copy_from_slice(&BLOCK_MAGIC);
        bytes[4] = self.kind;
        bytes[5] = self.columns;
        bytes[8..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.checksum.to_le_bytes());
        let own = crc32fast::hash(&bytes[..20]);
        bytes[20..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// `None` if no block begins so.
    pub(crate) fn of_bytes(bytes: &[u8; BLOCK_HEADER]) -> Option<Header> {
        let own = crc32fast::hash(&bytes[..20]);
        if bytes[..4] != BLOCK_MAGIC || u32_at(bytes, 20) != own {
            return None;
        }
        Some(Header {
            kind: bytes[4],
            columns: bytes[5],
            count: u32_at(bytes, 8),
            len: u32_at(bytes, 12),
            checksum: u32_at(bytes, 16),
        })
    }
}

pub(crate) fn file_header(minor: u16) -> [u8; FILE_HEADER] {
    let mut bytes = [0; FILE_HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&MAJOR.to_le_bytes());
    bytes[10..12].copy_from_slice(&minor.to_le_bytes());
    let own = crc32fast::hash(&bytes[..20]);
    bytes[20..].copy_from_slice(&own.to_le_bytes());
    bytes
}

/// The number at `at`; the caller knows that it is there.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The number at `at`; the caller knows that it is there.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// What was recorded. Readers ignore what they do not know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// When the times of the entries begin, in nanoseconds since 1970; 0 if not known.
    pub start_unix_ns: u64,
    /// Who wrote it.
    pub program: String,
    /// Data servers.
    pub targets: u32,
    /// Bytes of a file on a target before the next target's; 0 with one target.
    pub stripe: u64,
    /// Entries are pieces: those of one request follow each other with the same time.
    pub pieces: bool,
    /// Service times were emulated.
    pub emulated: bool,
    /// Where the requests were recorded: a mountpoint, or the file that was imported.
    pub source: String,
    /// The algorithm in force when the recording began.
    pub policy: String,
    /// Entries have checksums of their data.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub checksums: bool,
    /// Entries tell the process that sent them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub processes: bool,
    /// The batch job that was recorded, as its log names it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// The order of the entries is right, their times are made up.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub untimed: bool,
}

impl Default for Meta {
    fn default() -> Meta {
        Meta {
            start_unix_ns: 0,
            program: concat!("sluicegate ", env!("CARGO_PKG_VERSION")).to_owned(),
            targets: 1,
            stripe: 0,
            pieces: false,
            emulated: false,
            source: String::new(),
            policy: String::new(),
            checksums: false,
            processes: false,
            job: String::new(),
            untimed: false,
        }
    }
}

impl Meta {
    /// Where a byte of a target's part of a file is in the file as applications see it.
    #[must_use]
    pub fn logical_offset(&self, target: u32, offset: u64) -> u64 {
        if self.stripe == 0 || self.targets <= 1 {
            return offset;
        }
        let (unit, within) = (offset / self.stripe, offset % self.stripe);
        let first = unit.saturating_mul(self.targets.into()).saturating_add(target.into());
        first.saturating_mul(self.stripe).saturating_add(within)
    }
}
