//! Reading a trace, block by block.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::column::{DESCRIPTOR, Decoder, Descriptor};
use crate::entry::Columns;
use crate::error::{Error, Problem};
use crate::format::{
    BLOCK_ENTRIES_MAX, BLOCK_HEADER, FILE_HEADER, Header, Kind, MAGIC, MAJOR, Meta, PATH_BLOCK_MAX, PAYLOAD_MAX,
    u32_at, u64_at,
};
use crate::paths::Paths;

/// How a trace ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Not read so far yet.
    Open,
    /// Properly.
    Complete {
        /// Entries that the recorder lost because it could not keep up.
        dropped: u64,
    },
    /// Without an end: it is still being written, or the recorder was killed. All whole blocks were read.
    CutShort {
        /// Bytes of a block that is not whole.
        ignored: u64,
    },
}

/// Reads a trace. Memory: one block (at most 1,048,576 entries, some 150 MB; as this crate writes them 8 MB), and the
/// paths.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    decoder: DecoderBox,
    /// Bytes read so far.
    at: u64,
    meta: Meta,
    paths: Paths,
    end: End,
    incomplete: String,
    entries: u64,
    payload: Vec<u8>,
}

/// For `Debug`.
struct DecoderBox(Decoder);

impl std::fmt::Debug for DecoderBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Decoder")
    }
}

impl Reader<BufReader<File>> {
    /// Opens a trace.
    ///
    /// # Errors
    /// If the file cannot be read, or does not begin as a trace does.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Reader::new(BufReader::with_capacity(1 << 18, File::open(path)?))
    }
}

impl<R: Read> Reader<R> {
    /// Reads the head of a trace.
    ///
    /// # Errors
    /// If `input` fails, or does not begin as a trace does.
    pub fn new(input: R) -> Result<Reader<R>, Error> {
        let decoder = DecoderBox(Decoder::new()?);
        let (meta, paths, payload) = (Meta::default(), Paths::default(), Vec::new());
        let incomplete = String::new();
        let mut reader = Reader { input, decoder, at: 0, meta, paths, end: End::Open, incomplete, entries: 0, payload };
        let mut header = [0; FILE_HEADER];
        let got = reader.fill(&mut header)?;
        if got < FILE_HEADER || header[..8] != MAGIC {
            return Err(Error::NotATrace);
        }
        let major = u16::from_le_bytes([header[8], header[9]]);
        if crc32fast::hash(&header[..20]) != u32_at(&header, 20) {
            return Err(reader.corrupt(0, Problem::Header));
        }
        if major != MAJOR {
            return Err(Error::Version(major));
        }
        let start = reader.at;
        // A recorder writes it before anything else; a trace without it was cut short there.
        if let Some(header) = reader.block_header()? {
            if header.kind != Kind::Meta as u8 {
                return Err(reader.corrupt(start, Problem::Meta));
            }
            reader.meta = serde_json::from_slice(&reader.payload).map_err(|_| reader.corrupt(start, Problem::Meta))?;
        }
        Ok(reader)
    }

    /// What was recorded.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The paths read so far; those of all entries read so far are there.
    #[must_use]
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// How it ends, once [`Reader::next_block`] has returned false.
    #[must_use]
    pub fn end(&self) -> End {
        self.end
    }

    /// Why requests are missing although the trace has an end, once [`Reader::next_block`] has returned false: what it was made
    /// of was cut or damaged. Empty if none are.
    #[must_use]
    pub fn incomplete(&self) -> &str {
        &self.incomplete
    }

    /// Bytes read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.at
    }

    /// Entries read so far.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Reads the next block of entries into `block`, which has at least one then; false at the end.
    ///
    /// # Errors
    /// If the input fails or is not what was written. Nothing more can be read then.
    pub fn next_block(&mut self, block: &mut Columns) -> Result<bool, Error> {
        block.clear();
        while self.end == End::Open {
            let start = self.at;
            let Some(header) = self.block_header()? else { return Ok(false) };
            let result = match header.kind {
                kind if kind == Kind::Entries as u8 => match self.read_entries(header, block) {
                    Ok(()) => return Ok(true),
                    Err(problem) => Err(problem),
                },
                kind if kind == Kind::Paths as u8 => self.read_paths(header)?,
                kind if kind == Kind::End as u8 => self.read_end()?,
                kind if kind == Kind::Meta as u8 => Err(Problem::Meta),
                // Of a later minor version.
                _ => Ok(()),
            };
            if let Err(problem) = result {
                block.clear();
                self.end = End::CutShort { ignored: 0 };
                return Err(self.corrupt(start, problem));
            }
        }
        Ok(false)
    }

    /// Reads everything that is left.
    ///
    /// # Errors
    /// As [`Reader::next_block`].
    pub fn for_each(&mut self, mut each: impl FnMut(&Paths, &Columns)) -> Result<End, Error> {
        let mut block = Columns::default();
        while self.next_block(&mut block)? {
            each(&self.paths, &block);
        }
        Ok(self.end)
    }

    /// The next block's header, with its contents in `payload`. `None` at the end of the input; `end` says how it ends.
    fn block_header(&mut self) -> Result<Option<Header>, Error> {
        let start = self.at;
        let mut bytes = [0; BLOCK_HEADER];
        let got = self.fill(&mut bytes)?;
        if got < BLOCK_HEADER {
            self.end = End::CutShort { ignored: got as u64 };
            return Ok(None);
        }
        let Some(header) = Header::of_bytes(&bytes) else {
            // What a crash leaves behind a file's last write is zeros.
            if self.rest_is_zero()? {
                self.end = End::CutShort { ignored: self.at - start };
                return Ok(None);
            }
            return Err(self.broken(start, Problem::Header));
        };
        if header.len > PAYLOAD_MAX {
            return Err(self.broken(start, Problem::TooLarge));
        }
        self.payload.clear();
        // Grows with what is there, not with what the header says.
        (&mut self.input).take(header.len.into()).read_to_end(&mut self.payload)?;
        self.at += self.payload.len() as u64;
        let whole = self.payload.len() == header.len as usize;
        if whole && crc32fast::hash(&self.payload) == header.checksum {
            return Ok(Some(header));
        }
        if !whole || self.rest_is_zero()? {
            self.end = End::CutShort { ignored: self.at - start };
            return Ok(None);
        }
        Err(self.broken(start, Problem::Checksum))
    }

    fn read_entries(&mut self, header: Header, block: &mut Columns) -> Result<(), Problem> {
        let count = header.count as usize;
        if count == 0 || header.count > BLOCK_ENTRIES_MAX {
            return Err(Problem::TooLarge);
        }
        let head = usize::from(header.columns) * DESCRIPTOR;
        if head > self.payload.len() {
            return Err(Problem::Columns);
        }
        let (descriptors, mut data) = self.payload.split_at(head);
        let decoder = &mut self.decoder.0;
        let mut seen = 0_u32;
        for bytes in descriptors.chunks_exact(DESCRIPTOR) {
            let descriptor = Descriptor::of_bytes(bytes)?;
            let (stored, rest) = data.split_at_checked(descriptor.stored as usize).ok_or(Problem::Columns)?;
            data = rest;
            if !(1..=10).contains(&descriptor.id) {
                continue; // of a later minor version
            }
            let bit = 1 << descriptor.id;
            if seen & bit != 0 {
                return Err(Problem::Columns);
            }
            seen |= bit;
            let values = decoder.decode(descriptor, stored, count)?;
            match descriptor.id {
                1 => block.time.extend_from_slice(values),
                2 => narrow(values, &mut block.file, self.paths.len() as u64, "a file without a path")?,
                3 => {
                    if values.iter().any(|&op| op > 1) {
                        return Err(Problem::Value("an operation"));
                    }
                    block.op.extend(values.iter().map(|&op| op as u8));
                }
                4 => block.offset.extend_from_slice(values),
                5 => narrow(values, &mut block.len, 1 << 32, "a length")?,
                6 => narrow(values, &mut block.app, 1 << 32, "an application")?,
                7 => narrow(values, &mut block.target, 1 << 32, "a data server")?,
                8 => narrow(values, &mut block.sum, 1 << 32, "a checksum")?,
                10 => narrow(values, &mut block.process, 1 << 32, "a process")?,
                _ => narrow(values, &mut block.unsummed, 1 << 32, "the length of what a checksum is of")?,
            }
        }
        const ALL: u32 = 0b000_1111_1110;
        const WITH_SUMS: u32 = 0b011_1111_1110;
        const PROCESS: u32 = 0b100_0000_0000;
        if ![ALL, WITH_SUMS].contains(&(seen & !PROCESS)) || !data.is_empty() {
            return Err(Problem::Columns);
        }
        let ends = block.offset.iter().zip(&block.len);
        if ends.fold(false, |over, (offset, &len)| over | offset.checked_add(len.into()).is_none()) {
            return Err(Problem::Value("a request beyond 2^64"));
        }
        if block.unsummed.iter().zip(&block.len).any(|(unsummed, len)| unsummed > len) {
            return Err(Problem::Value("the length of what a checksum is of"));
        }
        self.entries += count as u64;
        Ok(())
    }

    fn read_paths(&mut self, header: Header) -> Result<Result<(), Problem>, Error> {
        if self.payload.len() < 4 {
            return Ok(Err(Problem::Columns));
        }
        let raw = u32_at(&self.payload, 0) as usize;
        if raw > PATH_BLOCK_MAX {
            return Ok(Err(Problem::TooLarge));
        }
        let mut bytes = match self.decoder.0.decompress(&self.payload[4..], raw) {
            Ok(bytes) => bytes,
            Err(problem) => return Ok(Err(problem)),
        };
        let mut count = 0;
        while !bytes.is_empty() {
            let Some((len, rest)) = bytes.split_at_checked(4) else { return Ok(Err(Problem::Columns)) };
            let Some((path, rest)) = rest.split_at_checked(u32_at(len, 0) as usize) else {
                return Ok(Err(Problem::Columns));
            };
            self.paths.append(path)?;
            count += 1;
            bytes = rest;
        }
        Ok(if count == header.count { Ok(()) } else { Err(Problem::Columns) })
    }

    fn read_end(&mut self) -> Result<Result<(), Problem>, Error> {
        if self.payload.len() < 16 {
            return Ok(Err(Problem::Columns));
        }
        let (entries, dropped) = (u64_at(&self.payload, 0), u64_at(&self.payload, 8));
        if entries != self.entries {
            return Ok(Err(Problem::Count));
        }
        let incomplete = self.payload.split_off(16);
        if !self.rest_is_zero()? {
            return Ok(Err(Problem::Trailing));
        }
        self.incomplete = String::from_utf8_lossy(&incomplete).into_owned();
        self.end = End::Complete { dropped };
        Ok(Ok(()))
    }

    /// Whether nothing but zeros follows. Reads it.
    fn rest_is_zero(&mut self) -> Result<bool, Error> {
        let mut chunk = [0; 4096];
        loop {
            let got = self.fill(&mut chunk)?;
            if chunk[..got].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            if got < chunk.len() {
                return Ok(true);
            }
        }
    }

    /// Fills as much of `bytes` as there is.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.at += filled as u64;
        Ok(filled)
    }

    fn broken(&mut self, at: u64, problem: Problem) -> Error {
        self.end = End::CutShort { ignored: 0 };
        self.corrupt(at, problem)
    }

    fn corrupt(&self, at: u64, problem: Problem) -> Error {
        Error::Corrupt { at, problem }
    }
}

/// Values below `limit` (at most 2^32) as narrow ones.
fn narrow(values: &[u64], into: &mut Vec<u32>, limit: u64, what: &'static str) -> Result<(), Problem> {
    let largest = values.iter().fold(0, |largest, &value| largest.max(value));
    if largest >= limit {
        return Err(Problem::Value(what));
    }
    into.extend(values.iter().map(|&value| value as u32));
    Ok(())
}
