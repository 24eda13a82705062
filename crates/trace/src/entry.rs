//! Entries, one by one and in columns.

use sluice_core::Op;

/// One recorded request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// When it arrived, in nanoseconds since the trace began.
    pub time: u64,
    /// Its file: a number in the trace's dictionary of paths.
    pub file: u32,
    /// The application.
    pub app: u32,
    /// The data server; 0 where there is only one. In a recording of a volume counted from the one that the file begins on.
    pub target: u32,
    /// Read or write.
    pub op: Op,
    /// First byte, in the target's part of the file.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Entry {
    /// The byte after the last one.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }
}

/// A checksum of what an entry read or wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    /// See [`checksum`].
    pub crc: u32,
    /// Bytes of the entry, the first ones, that it is of. Fewer than the entry has where the file ended before.
    pub bytes: u32,
}

/// What an entry may have besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extra {
    /// The process of the application that sent it: a rank, or a process id. 0 where nobody told.
    pub process: u32,
    /// The checksum of its data.
    pub sum: Option<Sum>,
}

/// CRC-32 of zlib and Ethernet (polynomial 0x04C11DB7, reflected).
#[must_use]
pub fn checksum(data: &[u8]) -> u32 {
    crc32fast::hash(data)
}

/// Many entries by columns, all of the same length, but for the last three.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Columns {
    /// See [`Entry::time`].
    pub time: Vec<u64>,
    /// See [`Entry::file`].
    pub file: Vec<u32>,
    /// See [`Entry::app`].
    pub app: Vec<u32>,
    /// See [`Entry::target`].
    pub target: Vec<u32>,
    /// 0 for a read, 1 for a write.
    pub op: Vec<u8>,
    /// See [`Entry::offset`].
    pub offset: Vec<u64>,
    /// See [`Entry::len`].
    pub len: Vec<u32>,
    /// See [`Sum::crc`]. Empty if no entry has a checksum.
    pub sum: Vec<u32>,
    /// Bytes at the end of the entry that its checksum is not of; all of them, if it has none. Empty as `sum`.
    pub unsummed: Vec<u32>,
    /// See [`Extra::process`]. Empty if no entry tells it.
    pub process: Vec<u32>,
}

impl Columns {
    /// No entries, and room for so many without anything besides.
    pub(crate) fn with_capacity(count: usize) -> Columns {
        Columns {
            time: Vec::with_capacity(count),
            file: Vec::with_capacity(count),
            app: Vec::with_capacity(count),
            target: Vec::with_capacity(count),
            op: Vec::with_capacity(count),
            offset: Vec::with_capacity(count),
            len: Vec::with_capacity(count),
            ..Columns::default()
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.time.len()
    }

    /// True without entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.time.is_empty()
    }

    /// One entry.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn get(&self, at: usize) -> Entry {
        Entry {
            time: self.time[at],
            file: self.file[at],
            app: self.app[at],
            target: self.target[at],
            op: if self.op[at] == 0 { Op::Read } else { Op::Write },
            offset: self.offset[at],
            len: self.len[at],
        }
    }

    /// The checksum of an entry's data, if it has one.
    ///
    /// # Panics
    /// If there are not so many entries.
    #[must_use]
    pub fn sum_of(&self, at: usize) -> Option<Sum> {
        let bytes = self.len[at] - *self.unsummed.get(at)?;
        (bytes > 0).then(|| Sum { crc: self.sum[at], bytes })
    }

    /// The process that sent an entry; 0 where nobody told.
    ///
    /// # Panics
    /// If there are not so many entries.
    #[must_use]
    pub fn process_of(&self, at: usize) -> u32 {
        assert!(at < self.len());
        self.process.get(at).copied().unwrap_or_default()
    }

    /// What an entry has besides.
    ///
    /// # Panics
    /// If there are not so many entries.
    #[must_use]
    pub fn extra_of(&self, at: usize) -> Extra {
        Extra { process: self.process_of(at), sum: self.sum_of(at) }
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..self.len()).map(|at| self.get(at))
    }

    /// Appends an entry, which has nothing besides.
    pub fn push(&mut self, entry: Entry) {
        self.push_with(entry, Extra::default());
    }

    /// Appends an entry with what it has besides.
    pub fn push_with(&mut self, entry: Entry, extra: Extra) {
        if extra.process != 0 || !self.process.is_empty() {
            // Those before have none.
            self.process.resize(self.len(), 0);
            self.process.push(extra.process);
        }
        if extra.sum.is_some() || !self.sum.is_empty() {
            self.sum.resize(self.len(), 0);
            self.unsummed.extend_from_slice(&self.len[self.unsummed.len()..]);
            self.push_sum(entry.len, extra.sum);
        }
        self.time.push(entry.time);
        self.file.push(entry.file);
        self.app.push(entry.app);
        self.target.push(entry.target);
        self.op.push(entry.op.index() as u8);
        self.offset.push(entry.offset);
        self.len.push(entry.len);
    }

    fn push_sum(&mut self, len: u32, sum: Option<Sum>) {
        let Sum { crc, bytes } = sum.unwrap_or(Sum { crc: 0, bytes: 0 });
        self.sum.push(crc);
        self.unsummed.push(len - bytes.min(len));
    }

    /// Appends entries, which have nothing besides, column by column.
    pub(crate) fn extend(&mut self, entries: &[Entry]) {
        if !self.process.is_empty() {
            self.process.resize(self.len() + entries.len(), 0);
        }
        if !self.sum.is_empty() {
            entries.iter().for_each(|entry| self.push_sum(entry.len, None));
        }
        self.time.extend(entries.iter().map(|entry| entry.time));
        self.file.extend(entries.iter().map(|entry| entry.file));
        self.app.extend(entries.iter().map(|entry| entry.app));
        self.target.extend(entries.iter().map(|entry| entry.target));
        self.op.extend(entries.iter().map(|entry| entry.op.index() as u8));
        self.offset.extend(entries.iter().map(|entry| entry.offset));
        self.len.extend(entries.iter().map(|entry| entry.len));
    }

    /// Removes all entries, keeping the memory.
    pub fn clear(&mut self) {
        self.time.clear();
        self.file.clear();
        self.app.clear();
        self.target.clear();
        self.op.clear();
        self.offset.clear();
        self.len.clear();
        self.sum.clear();
        self.unsummed.clear();
        self.process.clear();
    }
}
