//! Writing a trace: buffered and bounded.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::column::Encoder;
use crate::entry::{Columns, Entry, Extra, Sum};
use crate::error::Error;
use crate::format::{
    BLOCK_ENTRIES, Header, INCOMPLETE_MAX, Kind, MINOR, MINOR_CHECKSUMS, MINOR_PROCESSES, Meta, PATH_BLOCK_MAX,
    file_header,
};
use crate::paths::Paths;

/// Fast, and near what higher levels reach on these columns.
const LEVEL: i32 = 1;

/// Writes a trace. Memory: one block (65,536 entries, 4 MiB) and the paths.
///
/// What was pushed is in the file after [`Writer::flush`] or [`Writer::finish`]; dropping a writer loses what was not.
pub struct Writer<W: Write> {
    out: W,
    encoder: Encoder,
    paths: Paths,
    /// Paths that are in the file.
    written: usize,
    block: Columns,
    entries: u64,
    descriptors: Vec<u8>,
    data: Vec<u8>,
}

impl Writer<BufWriter<File>> {
    /// Starts a trace in a new file, or in the place of an old one.
    ///
    /// # Errors
    /// If the file cannot be written, or somebody is writing a trace there: two would mix.
    pub fn create(path: &Path, meta: &Meta) -> Result<Self, Error> {
        Writer::new(BufWriter::new(open_alone(path, true)?), meta)
    }

    /// As [`Writer::create`], but a file with something in it stays as it is.
    ///
    /// # Errors
    /// See there; and if there is such a file.
    pub fn create_new(path: &Path, meta: &Meta) -> Result<Self, Error> {
        Writer::new(BufWriter::new(open_alone(path, false)?), meta)
    }
}

/// Opens a file to write it anew, locked while it is open. Nothing is changed where another process has it locked.
fn open_alone(path: &Path, replace: bool) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    // Other errors: not every file system, and no device, has locks.
    if let Err(Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "somebody is writing a trace there"));
    }
    let there = file.metadata()?;
    if there.is_file() {
        if !replace && there.len() > 0 {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists; name another file, or remove it"));
        }
        file.set_len(0)?;
    }
    Ok(file)
}

impl<W: Write> Writer<W> {
    /// Starts a trace.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn new(out: W, meta: &Meta) -> Result<Writer<W>, Error> {
        let mut writer = Writer {
            out,
            encoder: Encoder::new(LEVEL)?,
            paths: Paths::default(),
            written: 0,
            block: Columns::with_capacity(BLOCK_ENTRIES),
            entries: 0,
            descriptors: Vec::new(),
            data: Vec::new(),
        };
        let minor = match meta {
            Meta { processes: true, .. } => MINOR_PROCESSES,
            Meta { checksums: true, .. } => MINOR_CHECKSUMS,
            _ => MINOR,
        };
        writer.out.write_all(&file_header(minor))?;
        let json = serde_json::to_vec(meta).map_err(std::io::Error::from)?;
        writer.write_block(Kind::Meta, 0, 0, &[&json])?;
        writer.out.flush()?;
        Ok(writer)
    }

    /// The number of a path, for [`Entry::file`].
    ///
    /// # Errors
    /// If there are too many paths.
    pub fn file(&mut self, path: &[u8]) -> Result<u32, Error> {
        self.paths.insert(path)
    }

    /// Gives the path the next number, for files that are different although they have the same path.
    ///
    /// # Errors
    /// If there are too many paths.
    pub fn another_file(&mut self, path: &[u8]) -> Result<u32, Error> {
        self.paths.append(path)
    }

    /// Entries so far.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Paths so far.
    #[must_use]
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Adds an entry. Times should not go back far: nothing breaks, but it takes more space.
    ///
    /// # Errors
    /// If a full block cannot be written, or the entry names no path or ends beyond 2^64.
    pub fn push(&mut self, entry: Entry) -> Result<(), Error> {
        self.push_all(std::slice::from_ref(&entry))
    }

    /// Adds entries: the same as one by one, but faster.
    ///
    /// # Errors
    /// See [`Writer::push`]. If one entry is wrong, none is added.
    pub fn push_all(&mut self, entries: &[Entry]) -> Result<(), Error> {
        self.check(entries)?;
        let mut left = entries;
        while !left.is_empty() {
            let room = BLOCK_ENTRIES - self.block.len();
            let (now, later) = left.split_at(left.len().min(room));
            self.block.extend(now);
            self.entries += now.len() as u64;
            if self.block.len() >= BLOCK_ENTRIES {
                self.write_entries()?;
            }
            left = later;
        }
        Ok(())
    }

    /// Adds an entry with the checksum of its data, for traces that say so ([`Meta::checksums`]).
    ///
    /// # Errors
    /// See [`Writer::push`].
    pub fn push_summed(&mut self, entry: Entry, sum: Option<Sum>) -> Result<(), Error> {
        self.push_with(entry, Extra { sum, ..Extra::default() })
    }

    /// Adds an entry with what it has besides, for traces that say so ([`Meta::checksums`], [`Meta::processes`]).
    ///
    /// # Errors
    /// See [`Writer::push`].
    pub fn push_with(&mut self, entry: Entry, extra: Extra) -> Result<(), Error> {
        self.check(std::slice::from_ref(&entry))?;
        self.block.push_with(entry, extra);
        self.entries += 1;
        if self.block.len() >= BLOCK_ENTRIES {
            self.write_entries()?;
        }
        Ok(())
    }

    fn check(&self, entries: &[Entry]) -> Result<(), Error> {
        let wrong = |entry: &Entry| self.names_nothing(entry) | entry.offset.checked_add(entry.len.into()).is_none();
        let Some(entry) = entries.iter().find(|entry| wrong(entry)) else { return Ok(()) };
        let what = if self.names_nothing(entry) { "names no path" } else { "ends beyond 2^64" };
        Err(Error::Io(std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("an entry {what}"))))
    }

    fn names_nothing(&self, entry: &Entry) -> bool {
        entry.file as usize >= self.paths.len()
    }

    /// Gives everything to the file below.
    ///
    /// # Errors
    /// If that fails.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.write_entries()?;
        Ok(self.out.flush()?)
    }

    /// Writes what is left and the end. `dropped`: entries that a recorder lost because it could not keep up.
    ///
    /// # Errors
    /// If the file below fails.
    pub fn finish(self, dropped: u64) -> Result<W, Error> {
        self.finish_incomplete(dropped, "")
    }

    /// The same for a trace of which more is missing than a recorder lost; `why`: what, for people. Of a text longer than
    /// 64 KiB the beginning is kept.
    ///
    /// # Errors
    /// If the file below fails.
    pub fn finish_incomplete(mut self, dropped: u64, why: &str) -> Result<W, Error> {
        self.write_entries()?;
        let mut totals = self.entries.to_le_bytes().to_vec();
        totals.extend_from_slice(&dropped.to_le_bytes());
        let kept = (0..=why.len().min(INCOMPLETE_MAX)).rfind(|&at| why.is_char_boundary(at));
        totals.extend_from_slice(&why.as_bytes()[..kept.unwrap_or(0)]);
        self.write_block(Kind::End, 0, 0, &[&totals])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn write_entries(&mut self) -> Result<(), Error> {
        self.write_paths()?;
        if self.block.is_empty() {
            return Ok(());
        }
        let block = std::mem::take(&mut self.block);
        let (mut descriptors, mut data) = (std::mem::take(&mut self.descriptors), std::mem::take(&mut self.data));
        descriptors.clear();
        data.clear();
        macro_rules! columns {
            ($($id:literal => $column:ident),*) => {
                $(self.encoder.encode($id, &block.$column, &mut descriptors, &mut data)?;)*
            };
        }
        columns!(1 => time, 2 => file, 3 => op, 4 => offset, 5 => len, 6 => app, 7 => target);
        let mut count = 7;
        if !block.sum.is_empty() {
            columns!(8 => sum, 9 => unsummed);
            count += 2;
        }
        if !block.process.is_empty() {
            columns!(10 => process);
            count += 1;
        }
        self.write_block(Kind::Entries, count, block.len() as u32, &[&descriptors, &data])?;
        (self.block, self.descriptors, self.data) = (block, descriptors, data);
        self.block.clear();
        Ok(())
    }

    /// Writes the paths that are not in the file yet.
    fn write_paths(&mut self) -> Result<(), Error> {
        while self.written < self.paths.len() {
            let mut raw = Vec::new();
            let first = self.written;
            for path in self.paths.iter().skip(first) {
                if raw.len() + path.len() + 4 > PATH_BLOCK_MAX {
                    break;
                }
                raw.extend_from_slice(&(path.len() as u32).to_le_bytes());
                raw.extend_from_slice(path);
                self.written += 1;
            }
            let count = (self.written - first) as u32;
            let packed = zstd::bulk::compress(&raw, LEVEL)?;
            let stored = if packed.len() < raw.len() { &packed } else { &raw };
            self.write_block(Kind::Paths, 0, count, &[&(raw.len() as u32).to_le_bytes(), stored])?;
        }
        Ok(())
    }

    fn write_block(&mut self, kind: Kind, columns: u8, count: u32, parts: &[&[u8]]) -> Result<(), Error> {
        let mut hasher = crc32fast::Hasher::new();
        parts.iter().for_each(|part| hasher.update(part));
        let len = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
        let header = Header { kind: kind as u8, columns, count, len, checksum: hasher.finalize() };
        self.out.write_all(&header.to_bytes())?;
        parts.iter().try_for_each(|part| self.out.write_all(part))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_something_is_replaced_only_on_demand() {
        let path = std::env::temp_dir().join(format!("sluice-writer-{}.slt", std::process::id()));
        File::create(&path).unwrap();
        Writer::create_new(&path, &Meta::default()).expect("there is nothing to lose").finish(0).unwrap();
        let before = std::fs::read(&path).unwrap();
        let error = Writer::create_new(&path, &Meta::default()).err().expect("it holds a trace").to_string();
        assert!(error.contains("it exists; name another file"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
        drop(Writer::create(&path, &Meta::default()).unwrap());
        assert!(std::fs::metadata(&path).unwrap().len() < before.len() as u64);
        std::fs::remove_file(&path).unwrap();
    }
}
