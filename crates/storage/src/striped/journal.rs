//! The intent journal: one record on target 0, written before an operation that several targets must take together.
//!
//! A record is there from before the first change until after the last. Opening the volume reads it: a record that is
//! not whole belongs to an operation that had not begun; a whole one is carried through or found void (see
//! [`recover`](super::StripedStorage::recover)). The model is a process killed at any moment: what was written stays in
//! the page cache, so nothing is synced. After a power failure run [`check`](super::check).

use std::io;
use std::path::Path;

use parking_lot::{Mutex, MutexGuard};
use rustix::fd::OwnedFd;
use rustix::fs::{self as sys, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::fault;

/// An operation under way. Paths are relative to the volume's top, as bytes; inode numbers are per target, 0 where there
/// is nothing, kept as TOML's signed numbers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Intent {
    /// Target 0 is renamed first, so it tells whether the operation happened.
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
        exchange: bool,
        /// Leaves a whiteout behind.
        #[serde(default)]
        whiteout: bool,
        from_inodes: Vec<i64>,
        to_inodes: Vec<i64>,
    },
    /// To be carried through.
    Truncate { path: Vec<u8>, inodes: Vec<i64>, size: u64 },
}

pub(super) struct Journal(Mutex<OwnedFd>);

/// The journal holds this operation's record. Dropping it ends the operation, unless the process was "killed".
pub(super) struct Entry<'a>(MutexGuard<'a, OwnedFd>);

impl Journal {
    pub(super) fn open(dir: &Path) -> io::Result<Journal> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = sys::open(dir.join(".sluice-journal"), flags, Mode::RUSR | Mode::WUSR)?;
        // Its space is taken now, so that truncations, which make space, are possible when there is none left. Where this
        // fails they may not be.
        let size = sys::fstat(&file)?.st_size as usize;
        if size < SPACE {
            let _ = rustix::io::pwrite(&file, &vec![0; SPACE - size], size as u64);
        }
        Ok(Journal(Mutex::new(file)))
    }

    /// Waits until no other operation is in the journal, and enters this one.
    pub(super) fn begin(&self, intent: &Intent) -> io::Result<Entry<'_>> {
        let file = self.0.lock();
        fault::step()?;
        let body = toml::to_string(intent).map_err(io::Error::other)?;
        let record = format!("sluice-journal 1 {} {:016x}\n{body}", body.len(), fnv1a(body.as_bytes()));
        // One call, and the page cache takes it whole or up to a point that the checksum tells.
        let written = rustix::io::pwrite(&*file, record.as_bytes(), 0)?;
        let entry = Entry(file);
        if written < record.len() {
            return Err(rustix::io::Errno::NOSPC.into()); // dropping the entry clears the part
        }
        Ok(entry)
    }

    /// The operation that was under way when the process ended.
    pub(super) fn pending(&self) -> io::Result<Option<Intent>> {
        let file = self.0.lock();
        let mut bytes = vec![0; sys::fstat(&*file)?.st_size as usize];
        let len = rustix::io::pread(&*file, &mut bytes[..], 0)?;
        Ok(parse(&bytes[..len]))
    }

    /// Forgets what [`Journal::pending`] returned.
    pub(super) fn clear(&self) -> io::Result<()> {
        erase(&self.0.lock())
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if fault::step().is_ok()
            && let Err(error) = erase(&self.0)
        {
            // Harmless: carrying an operation through twice changes nothing, as inode numbers tell.
            tracing::warn!(%error, "cannot clear the journal");
        }
    }
}

/// Space that a journal always has, in bytes. Records are mostly smaller.
const SPACE: usize = 4096;

/// Makes the record one that is not whole. The space stays.
fn erase(file: &OwnedFd) -> io::Result<()> {
    match rustix::io::pwrite(file, b"\0", 0)? {
        1 => Ok(()),
        _ => Err(rustix::io::Errno::IO.into()),
    }
}

/// `None` if the record is not whole. What follows it are bytes of earlier ones.
pub(super) fn parse(bytes: &[u8]) -> Option<Intent> {
    let line = bytes.iter().position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(&bytes[..line]).ok()?;
    let (len, sum) = head.strip_prefix("sluice-journal 1 ")?.split_once(' ')?;
    let body = bytes[line + 1..].get(..len.parse().ok()?)?;
    let whole = u64::from_str_radix(sum, 16) == Ok(fnv1a(body));
    if whole { toml::from_str(std::str::from_utf8(body).ok()?).ok() } else { None }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_comes_back_and_a_torn_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let intent = || Intent::Truncate { path: b"a/\xff".to_vec(), inodes: vec![1, -1], size: 9 };
        drop(journal.begin(&Intent::Truncate { path: vec![b'x'; 500], inodes: vec![1, -1], size: 9 }).unwrap());
        assert_eq!(journal.pending().unwrap(), None);
        let entry = journal.begin(&intent()).unwrap();
        let bytes = std::fs::read(dir.path().join(".sluice-journal")).unwrap();
        assert_eq!(parse(&bytes), Some(intent()), "with the rest of a longer one behind it");
        let line = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let len: usize = std::str::from_utf8(&bytes[..line]).unwrap().split(' ').nth(2).unwrap().parse().unwrap();
        let len = line + 1 + len;
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), if cut < len { None } else { Some(intent()) }, "cut at {cut}");
        }
        drop(entry);
        assert_eq!(journal.pending().unwrap(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(parse(&bytes), None);
        }
    }
}
