//! The objects that the kernel knows, and what is open.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo};
use parking_lot::Mutex;
use sluice_core::AppId;
use sluice_storage::{Attr, DirEntries, FileRef, NodeRef};

use crate::apps::LastCaller;

const SHARDS: u64 = 64;

/// An object that the kernel has looked up and not forgotten.
pub(crate) struct Inode {
    pub(crate) node: NodeRef,
    /// The object had set-ID bits when last looked at, so a write must take them away.
    pub(crate) set_id: AtomicBool,
    /// A hash of size and time of modification as last seen: what the kernel's cached pages belong to.
    version: AtomicU64,
}

/// An open regular file. The kernel's file handle is a pointer to it.
pub(crate) struct Handle {
    pub(crate) file: FileRef,
    pub(crate) inode: Arc<Inode>,
    pub(crate) writable: bool,
    /// Whose the writes are that the kernel makes on its own.
    pub(crate) opener: AppId,
    pub(crate) last: LastCaller,
}

/// An open directory.
pub(crate) struct DirHandle {
    pub(crate) inode: Arc<Inode>,
    /// Taken when reading starts at the beginning, so that positions mean the same until the next rewind.
    pub(crate) entries: Mutex<Arc<DirEntries>>,
}

/// The inode table, in shards: only look-ups, forgetting and operations by inode take a (short) lock; reading and
/// writing go by the handle.
pub(crate) struct Inodes {
    root: Arc<Inode>,
    root_id: u64,
    shards: Vec<Mutex<HashMap<u64, Entry>>>,
}

struct Entry {
    inode: Arc<Inode>,
    lookups: u64,
}

impl Inode {
    fn new(node: NodeRef) -> Arc<Inode> {
        Arc::new(Inode { node, set_id: AtomicBool::new(false), version: AtomicU64::new(0) })
    }

    /// Remembers what matters of the attributes. True if the contents are those seen last.
    pub(crate) fn note(&self, attr: &Attr) -> bool {
        let mut hasher = DefaultHasher::new();
        (attr.mtime, attr.size).hash(&mut hasher);
        let version = hasher.finish();
        self.set_id.store(attr.mode & SET_ID != 0, Ordering::Relaxed);
        self.version.swap(version, Ordering::Relaxed) == version
    }
}

pub(crate) const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

impl Inodes {
    pub(crate) fn new(root: NodeRef) -> Inodes {
        let root_id = root.id();
        Inodes { root: Inode::new(root), root_id, shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// The inode number of a storage's id: the same, except that the top directory must be 1, and 1 then takes its
    /// place.
    pub(crate) fn number(&self, id: u64) -> INodeNo {
        INodeNo(match id {
            _ if id == self.root_id => 1,
            1 => self.root_id,
            _ => id,
        })
    }

    fn shard(&self, ino: INodeNo) -> &Mutex<HashMap<u64, Entry>> {
        &self.shards[(ino.0 % SHARDS) as usize]
    }

    pub(crate) fn get(&self, ino: INodeNo) -> Result<Arc<Inode>, Errno> {
        if ino == INodeNo::ROOT {
            return Ok(self.root.clone());
        }
        self.shard(ino).lock().get(&ino.0).map(|entry| entry.inode.clone()).ok_or(Errno::ESTALE)
    }

    /// The inode of an object about to be told to the kernel, which will forget it once for each time it was told.
    pub(crate) fn told(&self, node: NodeRef) -> Arc<Inode> {
        let ino = self.number(node.id());
        if ino == INodeNo::ROOT {
            return self.root.clone();
        }
        let mut shard = self.shard(ino).lock();
        let entry = shard.entry(ino.0).or_insert_with(|| Entry { inode: Inode::new(node), lookups: 0 });
        entry.lookups += 1;
        entry.inode.clone()
    }

    pub(crate) fn forget(&self, ino: INodeNo, lookups: u64) {
        let mut shard = self.shard(ino).lock();
        let gone = match shard.get_mut(&ino.0) {
            Some(entry) if entry.lookups <= lookups => shard.remove(&ino.0),
            Some(entry) => {
                entry.lookups -= lookups;
                None
            }
            None => None,
        };
        drop(shard);
        drop(gone); // closes descriptors: not under the lock
    }

    /// How many objects are known, the top directory not counted.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub(crate) fn file_attr(&self, attr: &Attr) -> FileAttr {
        FileAttr {
            ino: self.number(attr.ino),
            size: attr.size,
            blocks: attr.blocks,
            atime: time(attr.atime),
            mtime: time(attr.mtime),
            ctime: time(attr.ctime),
            crtime: UNIX_EPOCH,
            kind: kind((attr.mode >> 12) as u8).unwrap_or(FileType::RegularFile),
            perm: (attr.mode & 0o7777) as u16,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            // The kernel's 32-bit encoding is the lower half of the library's 64-bit one.
            rdev: attr.rdev as u32,
            blksize: attr.blksize,
            flags: 0,
        }
    }
}

impl Handle {
    pub(crate) fn into_raw(self) -> FileHandle {
        FileHandle(Arc::into_raw(Arc::new(self)).expose_provenance() as u64)
    }

    /// The handle behind a number that the kernel got from [`Handle::into_raw`].
    pub(crate) fn of(fh: &FileHandle) -> &Handle {
        // SAFETY: the kernel sends back the numbers it was given, and nothing for a handle after its release, which it
        // sends once, after all other requests for it were answered. Only `release` takes the value back.
        unsafe { &*std::ptr::with_exposed_provenance(fh.0 as usize) }
    }

    /// Ends a handle's life.
    pub(crate) fn take(fh: FileHandle) -> Arc<Handle> {
        // SAFETY: as in `of`; called by `release` only.
        unsafe { Arc::from_raw(std::ptr::with_exposed_provenance(fh.0 as usize)) }
    }
}

impl DirHandle {
    pub(crate) fn into_raw(self) -> FileHandle {
        FileHandle(Box::into_raw(Box::new(self)).expose_provenance() as u64)
    }

    pub(crate) fn of(fh: &FileHandle) -> &DirHandle {
        // SAFETY: as in `Handle::of`; the kernel tells directories from files.
        unsafe { &*std::ptr::with_exposed_provenance(fh.0 as usize) }
    }

    pub(crate) fn take(fh: FileHandle) -> Box<DirHandle> {
        // SAFETY: as in `Handle::take`; called by `releasedir` only.
        unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut(fh.0 as usize)) }
    }
}

/// The type of a directory entry, from `d_type`.
pub(crate) fn kind(d_type: u8) -> Option<FileType> {
    Some(match d_type {
        libc::DT_REG => FileType::RegularFile,
        libc::DT_DIR => FileType::Directory,
        libc::DT_LNK => FileType::Symlink,
        libc::DT_FIFO => FileType::NamedPipe,
        libc::DT_SOCK => FileType::Socket,
        libc::DT_CHR => FileType::CharDevice,
        libc::DT_BLK => FileType::BlockDevice,
        _ => return None,
    })
}

fn time((seconds, nanos): (i64, u32)) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    base.and_then(|time| time.checked_add(Duration::from_nanos(nanos.into()))).unwrap_or(UNIX_EPOCH)
}

/// The time that the kernel sent. The FUSE library turns the pair (-2 s, +0.8 s) into 2.8 s before 1970 instead of 1.2;
/// this undoes it.
pub(crate) fn sent_time(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
        // The earliest time is its own negative.
        Err(before) => ((before.duration().as_secs() as i64).wrapping_neg(), before.duration().subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970() {
        let minus_1_2 = time((-2, 800_000_000));
        assert_eq!(UNIX_EPOCH.duration_since(minus_1_2).unwrap(), Duration::from_millis(1200));
        assert_eq!(sent_time(UNIX_EPOCH - Duration::from_millis(2800)), (-2, 800_000_000));
        assert_eq!(sent_time(time((5, 7))), (5, 7));
        assert_eq!(sent_time(time((i64::MIN, 0))), (i64::MIN, 0));
        assert_eq!(sent_time(time((i64::MAX, 0))), (i64::MAX, 0));
    }
}
