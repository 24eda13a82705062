//! The intent journal: one record on target 0, written before an operation that several targets must take together.
//!
//! A record is there from before the first change until after the last. Opening the volume reads it: a record that is
//! not whole belongs to an operation that had not begun; a whole one is carried through or found void (see
//! [`recover`](super::StripedStorage::recover)). The model is a process killed at any moment: what was written stays in
//! the page cache, so nothing is synced. After a power failure run [`check`](super::check); a truncation's record from
//! before it is void, as the file may have been written and synced since, and a rename's is followed only on targets that
//! are as they were before it.

use std::io;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

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
        /// As of a truncation: in another system's time nothing is removed for it.
        #[serde(default)]
        boot: String,
    },
    /// To be carried through.
    Truncate {
        path: Vec<u8>,
        inodes: Vec<i64>,
        size: u64,
        /// For a file that lost the name it was found by (it may have others); empty where there are none.
        #[serde(default)]
        handles: Vec<Vec<u8>>,
        /// [`boot_id`] of the system that wrote it: in another one's time it is void. Empty: not known.
        #[serde(default)]
        boot: String,
    },
}

pub(super) struct Journal {
    inner: Mutex<Inner>,
    /// The record of an operation that is over is still to be erased. Changed with the lock held.
    stale: AtomicBool,
}

struct Inner {
    file: OwnedFd,
    /// The record is of an operation that is neither done nor undone: it stays until [`Journal::clear`].
    kept: bool,
}

/// The journal holds this operation's record. Dropping it ends the operation, unless the process was "killed".
pub(super) struct Entry<'a> {
    inner: MutexGuard<'a, Inner>,
    journal: &'a Journal,
}

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
        Ok(Journal { inner: Mutex::new(Inner { file, kept: false }), stale: AtomicBool::new(false) })
    }

    /// To be called before anything is changed that an operation in the journal may have been about: one that is over must
    /// not be repeated then.
    ///
    /// # Errors
    /// Those of erasing its record, which is tried again if it failed.
    pub(super) fn expect_erased(&self) -> io::Result<()> {
        if self.stale.load(Ordering::Acquire) {
            self.erase_stale(&mut self.inner.lock())?;
        }
        Ok(())
    }

    fn erase_stale(&self, inner: &mut Inner) -> io::Result<()> {
        if self.stale.load(Ordering::Acquire) { self.erase(inner) } else { Ok(()) }
    }

    /// Makes the record one that is not whole. The space stays.
    fn erase(&self, inner: &mut Inner) -> io::Result<()> {
        self.stale.store(true, Ordering::Release);
        fault::step()?;
        match rustix::io::pwrite(&inner.file, b"\0", 0)? {
            1 => {
                self.stale.store(false, Ordering::Release);
                Ok(())
            }
            _ => Err(rustix::io::Errno::IO.into()),
        }
    }

    /// Waits until no other operation is in the journal, and enters this one.
    ///
    /// # Errors
    /// `EIO` while a record is kept; those of erasing an earlier record, which is tried again if it failed.
    pub(super) fn begin(&self, intent: &Intent) -> io::Result<Entry<'_>> {
        let mut inner = self.inner.lock();
        if inner.kept {
            return Err(rustix::io::Errno::IO.into());
        }
        self.erase_stale(&mut inner)?;
        fault::step()?;
        let body = toml::to_string(intent).map_err(io::Error::other)?;
        let record = format!("sluice-journal 1 {} {:016x}\n{body}", body.len(), fnv1a(body.as_bytes()));
        // One call, and the page cache takes it whole or up to a point that the checksum tells.
        let written = rustix::io::pwrite(&inner.file, record.as_bytes(), 0)?;
        let entry = Entry { inner, journal: self };
        if written < record.len() {
            return Err(rustix::io::Errno::NOSPC.into()); // dropping the entry clears the part
        }
        Ok(entry)
    }

    /// The operation that was under way when the process ended.
    pub(super) fn pending(&self) -> io::Result<Option<Intent>> {
        let file = &self.inner.lock().file;
        let mut bytes = vec![0; sys::fstat(file)?.st_size as usize];
        let len = rustix::io::pread(file, &mut bytes[..], 0)?;
        Ok(parse(&bytes[..len]))
    }

    /// Forgets what [`Journal::pending`] returned, or what was kept.
    pub(super) fn clear(&self) -> io::Result<()> {
        let mut inner = self.inner.lock();
        self.erase(&mut inner)?;
        inner.kept = false;
        Ok(())
    }
}

impl Entry<'_> {
    /// Ends the operation here, neither done nor undone. Its record stays, and no other is accepted.
    pub(super) fn keep(mut self) {
        self.inner.kept = true;
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if !self.inner.kept
            && !fault::is_dead()
            && let Err(error) = self.journal.erase(&mut self.inner)
        {
            // To be done before anything else: a truncation carried through later would take what was written since.
            tracing::error!(%error, "cannot clear the journal; until this is possible nothing changes on the volume");
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(error) = self.expect_erased() {
            tracing::error!(%error, "cannot clear the journal; opening the volume would repeat the last operation");
        }
    }
}

/// Space that a journal always has, in bytes. Records are mostly smaller.
const SPACE: usize = 4096;

/// What tells one start of the system from another; empty where there is no such thing.
pub(super) fn boot_id() -> &'static str {
    static ID: LazyLock<String> = LazyLock::new(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    });
    &ID
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

/// The hash FNV-1a: for what must be recognised, not protected (torn records, short names).
pub fn fnv1a(bytes: &[u8]) -> u64 {
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
        let intent = || Intent::Truncate {
            path: b"a/\xff".to_vec(),
            inodes: vec![1, -1],
            size: 9,
            handles: vec![],
            boot: String::new(),
        };
        drop(
            journal
                .begin(&Intent::Truncate {
                    path: vec![b'x'; 500],
                    inodes: vec![1, -1],
                    size: 9,
                    handles: vec![],
                    boot: String::new(),
                })
                .unwrap(),
        );
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

    #[test]
    fn a_record_that_could_not_be_erased_is_erased_before_the_next_and_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".sluice-journal");
        let intent = |size| Intent::Truncate { path: vec![], inodes: vec![], size, handles: vec![], boot: "b".into() };
        let read_only = || sys::open(&path, OFlags::RDONLY, Mode::empty()).unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let mut entry = journal.begin(&intent(1)).unwrap();
        let writable = std::mem::replace(&mut entry.inner.file, read_only());
        drop(entry);
        assert_eq!(journal.pending().unwrap(), Some(intent(1)));
        assert!(journal.begin(&intent(2)).is_err());
        journal.inner.lock().file = writable;
        let entry = journal.begin(&intent(2)).unwrap();
        assert_eq!(parse(&std::fs::read(&path).unwrap()), Some(intent(2)));
        entry.keep();
        assert!(journal.begin(&intent(3)).is_err());
        journal.clear().unwrap();
        assert_eq!(journal.pending().unwrap(), None);
        let mut entry = journal.begin(&intent(3)).unwrap();
        let writable = std::mem::replace(&mut entry.inner.file, read_only());
        drop(entry);
        journal.inner.lock().file = writable;
        drop(journal);
        assert_eq!(Journal::open(dir.path()).unwrap().pending().unwrap(), None);
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let body = "operation = \"truncate\"\npath = [97]\ninodes = [1, 2]\nsize = 3\n";
        let record = format!("sluice-journal 1 {} {:016x}\n{body}", body.len(), fnv1a(body.as_bytes()));
        let expected =
            Intent::Truncate { path: b"a".to_vec(), inodes: vec![1, 2], size: 3, handles: vec![], boot: String::new() };
        assert_eq!(parse(record.as_bytes()), Some(expected));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(parse(&bytes), None);
        }
    }
}
