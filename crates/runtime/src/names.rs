//! The paths of files, for whoever records or predicts.
//!
//! Engines know files by number, people and traces by path. While somebody wants to know, a volume notes the path of each
//! file when it is opened, or first used. That a file was noted is looked up in a small table without a lock; where two
//! files share a place in it, their paths are asked for more often than necessary.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use sluice_core::FileId;

/// Places in the table of files noted: a power of two.
const PLACES: usize = 4096;
/// Paths that are kept. When there are more, all are asked for anew.
const PATHS_MAX: usize = 1 << 17;

/// Paths by file. All methods may be called from any thread.
pub struct FileNames {
    targets: u64,
    /// Those who want to know.
    users: AtomicU32,
    noted: Box<[AtomicU64]>,
    paths: Mutex<HashMap<u64, Arc<[u8]>>>,
    changes: AtomicU64,
}

impl FileNames {
    pub(crate) fn new(targets: u32) -> FileNames {
        FileNames {
            targets: targets.max(1).into(),
            users: AtomicU32::new(0),
            noted: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            paths: Mutex::default(),
            changes: AtomicU64::new(0),
        }
    }

    /// The path of a file as the engines know it, if it was noted.
    #[must_use]
    pub fn get(&self, file: FileId) -> Option<Arc<[u8]>> {
        self.paths.lock().get(&(file.0 / self.targets)).cloned()
    }

    /// A data server's place in a file as the engines know it: which stripes of each row it has, which it has in common with
    /// other files whatever server they begin on.
    #[must_use]
    pub fn position(&self, file: FileId) -> u32 {
        (file.0 % self.targets) as u32
    }

    /// Grows whenever a number stands for another path than before.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Somebody wants to know from now on.
    pub fn watch(&self) {
        self.users.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes back a call of [`FileNames::watch`].
    pub fn unwatch(&self) {
        if self.users.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.forget(&mut self.paths.lock());
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    fn forget(&self, paths: &mut HashMap<u64, Arc<[u8]>>) {
        paths.clear();
        self.noted.iter().for_each(|place| place.store(0, Ordering::Release));
    }

    pub(crate) fn on(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }

    fn place(&self, id: u64) -> &AtomicU64 {
        &self.noted[(id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52) as usize % PLACES]
    }

    /// Notes the path of file `id` unless it is known.
    pub(crate) fn note(&self, id: u64, path: impl FnOnce() -> Option<Vec<u8>>) {
        // 0 means nobody.
        if self.place(id).load(Ordering::Acquire) != id.wrapping_add(1) {
            self.renew(id, path);
        }
    }

    /// Notes the path of file `id`, which may be another one than before.
    pub(crate) fn renew(&self, id: u64, path: impl FnOnce() -> Option<Vec<u8>>) {
        let path = path();
        // To the end: who empties it empties what was noted, too.
        let mut paths = self.paths.lock();
        if let Some(path) = path
            && paths.get(&id).is_none_or(|known| **known != *path)
        {
            // All are asked for anew, also those of which nobody can tell then whether they are others.
            let is_full = paths.len() >= PATHS_MAX;
            if is_full {
                self.forget(&mut paths);
            }
            if paths.insert(id, path.into()).is_some() || is_full {
                self.changes.fetch_add(1, Ordering::Release);
            }
        }
        self.place(id).store(id.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_asked_for_once_and_again_when_the_file_is_opened() {
        let names = FileNames::new(4);
        names.watch();
        let mut asked = 0;
        let mut note = |path: &str| {
            names.note(7, || {
                asked += 1;
                Some(path.into())
            });
        };
        note("a");
        note("b");
        assert_eq!(asked, 1);
        for target in 0..4 {
            assert_eq!(names.get(FileId(7 * 4 + target)).as_deref(), Some(&b"a"[..]));
            assert_eq!(u64::from(names.position(FileId(7 * 4 + target))), target);
        }
        let before = names.changes();
        names.renew(7, || Some(b"c".into()));
        assert_eq!((names.get(FileId(28)).as_deref(), names.changes()), (Some(&b"c"[..]), before + 1));
        names.renew(7, || Some(b"c".into()));
        assert_eq!(names.changes(), before + 1);
        names.unwatch();
        assert!(names.get(FileId(28)).is_none() && !names.on());
    }

    #[test]
    fn when_there_are_too_many_all_are_asked_for_anew() {
        let names = FileNames::new(1);
        names.watch();
        let path = |id: u64| Some(id.to_string().into_bytes());
        (0..PATHS_MAX as u64).for_each(|id| names.note(id, || path(id)));
        let (open, before) = (PATHS_MAX as u64 - 1, names.changes());
        names.note(PATHS_MAX as u64, || path(1));
        assert_eq!((names.get(FileId(open)), names.changes()), (None, before + 1));
        names.note(open, || path(open));
        assert!(names.get(FileId(open)).is_some(), "it is open still");
    }
}
