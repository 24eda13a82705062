//! Where the test files are, and that nothing of them is left.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sluice_notation::show_size;

/// Name of the directory for the test files.
const NAME: &str = ".sluice-calibrate";
/// Name of the lock in there: who holds it works there.
const LOCK: &str = "lock";
/// What must stay free of the file system: this part of it, but of a large one no more than so many bytes.
const FREE_PART: u64 = 20;
const FREE_MOST: u64 = 1 << 30;
/// Bytes written at a time.
const CHUNK: usize = 4 << 20;

/// The directory, while it is there. Dropping it removes it.
pub(super) struct Place {
    dir: PathBuf,
    lock: Option<File>,
}

/// Whether nobody holds the lock: it is held now. On file systems without locks (Lustre without `-o flock`) nobody can.
///
/// # Errors
/// If the lock cannot be taken for another reason than these.
fn take(lock: &File) -> std::io::Result<bool> {
    match flock(lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes a directory of ours: its files, then the lock, then itself. What is open when it is removed stays on NFS, by another name.
fn remove(dir: &Path, lock: Option<File>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() != LOCK {
            fs::remove_file(entry.path())?;
        }
    }
    if let Some(lock) = lock {
        drop(lock);
        fs::remove_file(dir.join(LOCK))?;
    }
    fs::remove_dir(dir)
}

impl Place {
    /// Makes the directory. What one that was killed has left is removed before.
    ///
    /// # Errors
    /// If somebody works there, or it cannot be made.
    pub(super) fn create(at: &Path) -> anyhow::Result<Place> {
        let dir = at.join(NAME);
        let failed = || format!("{}: no test files can be made there", at.display());
        match fs::symlink_metadata(&dir) {
            Ok(meta) if !meta.is_dir() => bail!("{}: is in the way, and no directory; remove it", dir.display()),
            Ok(_) => clear(&dir)?,
            Err(_) => {}
        }
        fs::create_dir(&dir).with_context(failed)?;
        let lock = match File::create_new(dir.join(LOCK)) {
            Ok(lock) => lock,
            Err(error) => {
                // Nothing stays, unless it is somebody else's by now.
                _ = fs::remove_dir(&dir);
                return Err(error).with_context(failed);
            }
        };
        match take(&lock) {
            Ok(true) => {}
            Ok(false) => bail!("{}: another sluice calibrate begins there at the same time", dir.display()),
            Err(error) => {
                _ = remove(&dir, Some(lock));
                return Err(error).with_context(failed);
            }
        }
        Ok(Place { dir, lock: Some(lock) })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes a file of so many bytes. `written`: they are there; else it is sparse. False if `stop` said so.
    ///
    /// # Errors
    /// If the disk is full, for one.
    pub(super) fn file(&self, name: &str, bytes: u64, written: bool, stop: &dyn Fn() -> bool) -> anyhow::Result<bool> {
        let path = self.dir.join(name);
        let failed = || format!("the test file {} cannot be written", path.display());
        let mut file = File::create_new(&path).with_context(failed)?;
        if !written {
            file.set_len(bytes).with_context(failed)?;
            return Ok(true);
        }
        let mut chunk = vec![0_u8; CHUNK];
        let (mut state, mut left) = (bytes | 1, bytes);
        while left > 0 {
            if stop() {
                return Ok(false);
            }
            // What does not compress, no two blocks alike.
            for word in chunk.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            let len = left.min(CHUNK as u64) as usize;
            file.write_all(&chunk[..len]).with_context(failed)?;
            left -= len as u64;
        }
        file.sync_data().with_context(failed)?;
        Ok(true)
    }
}

/// Removes what is left of one that was killed.
fn clear(dir: &Path) -> anyhow::Result<()> {
    let failed = || format!("{}: what an interrupted calibration has left cannot be removed", dir.display());
    // Held until all else is gone. To be written: NFS locks nothing else for one alone.
    let lock = match File::options().read(true).write(true).open(dir.join(LOCK)) {
        Ok(lock) => match take(&lock).with_context(failed)? {
            true => Some(lock),
            false => bail!("{}: another sluice calibrate is at work there; wait for its end", dir.display()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(failed),
    };
    remove(dir, lock).with_context(failed)
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.dir, self.lock.take()) {
            crate::output::tell(format_args!("{}: cannot be removed: {error}", self.dir.display()));
        }
    }
}

/// Whether so many bytes of test files leave the file system room.
///
/// # Errors
/// If they do not.
pub(super) fn check_room(at: &Path, bytes: u64) -> anyhow::Result<()> {
    let stat = rustix::fs::statvfs(at).with_context(|| format!("{} cannot be calibrated", at.display()))?;
    let [room, size] = [stat.f_bavail, stat.f_blocks].map(|blocks| blocks.saturating_mul(stat.f_frsize));
    let kept = kept_free(size);
    if bytes.saturating_add(kept) > room {
        let [wanted, kept, there] = [bytes, kept, room].map(|bytes| show_size(bytes as f64));
        bail!(
            "{}: the disk is nearly full: {there} are free, the test files take {wanted}, and {kept} are to stay free; make room, \
             or use smaller files (--file-size)",
            at.display()
        );
    }
    Ok(())
}

/// Bytes that must stay free of a file system of this size.
fn kept_free(size: u64) -> u64 {
    (size / FREE_PART).min(FREE_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_goes_with_its_owner_and_what_was_left_goes_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join(NAME);
        {
            let place = Place::create(dir.path()).unwrap();
            assert!(
                place.file("a", 3 << 20, true, &|| false).unwrap()
                    && place.file("b", 1 << 30, false, &|| false).unwrap()
            );
            assert!(!place.file("c", 3 << 20, true, &|| true).unwrap());
            assert_eq!(fs::metadata(place.dir().join("a")).unwrap().len(), 3 << 20);
            let error = Place::create(dir.path()).err().unwrap().to_string();
            assert!(error.contains("another sluice calibrate"), "{error}");
        }
        assert!(!there.exists());
        // Killed: nobody has the lock.
        fs::create_dir(&there).unwrap();
        fs::write(there.join(LOCK), "").unwrap();
        fs::write(there.join("f0"), "x").unwrap();
        drop(Place::create(dir.path()).unwrap());
        assert!(!there.exists());
        fs::write(&there, "mine").unwrap();
        assert!(Place::create(dir.path()).err().unwrap().to_string().contains("in the way"));
        assert_eq!(fs::read_to_string(&there).unwrap(), "mine");
    }

    #[test]
    fn a_disk_that_would_be_full_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let error = check_room(dir.path(), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("nearly full") && error.contains("--file-size"), "{error}");
        assert_eq!([0, 2 << 30, 1 << 50].map(kept_free), [0, (2 << 30) / 20, 1 << 30]);
    }
}
