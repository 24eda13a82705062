//! The objects that the kernel knows.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo};
use parking_lot::Mutex;
use sluice_storage::{Attr, NodeRef};

use crate::coherence::Coherence;

const SHARDS: u64 = 64;
/// Most forgotten objects kept for file handles; each costs some 200 bytes.
const FORGOTTEN_MAX: usize = 16_384;

/// An object that the kernel has looked up.
pub(crate) struct Inode {
    pub(crate) node: NodeRef,
    pub(crate) ino: INodeNo,
    /// Tells this object from others that had the number before, in file handles (`name_to_handle_at`, NFS).
    pub(crate) generation: Generation,
    /// The object had set-ID bits when last looked at, so a write must take them away.
    pub(crate) set_id: AtomicBool,
    /// Held by who changes the mode: one that was looked at may be set without some bits.
    pub(crate) modes: Mutex<()>,
    /// The object may have capabilities, which a write must take away: see `Core::drops_capabilities`.
    pub(crate) capable: AtomicBool,
    /// Open files that can write. Who maps one keeps it open.
    pub(crate) writers: AtomicU32,
    pub(crate) coherence: Coherence,
}

/// The inode table, in shards: only look-ups, forgetting and operations by inode take a (short) lock; reading and
/// writing go by the handle.
pub(crate) struct Inodes {
    root: Arc<Inode>,
    root_id: u64,
    shards: Vec<Mutex<HashMap<u64, Entry>>>,
    generations: AtomicU32,
    nobodies: AtomicU64,
    forgotten: Mutex<Forgotten>,
}

/// What the kernel has forgotten lately: users of file handles come back to it.
#[derive(Default)]
struct Forgotten {
    by_number: HashMap<u64, (u64, Arc<Inode>)>,
    /// Numbers and times, the longest ago in front; what came back since has no entry with this time.
    order: VecDeque<(u64, u64)>,
    time: u64,
}

struct Entry {
    inode: Arc<Inode>,
    lookups: u64,
}

impl Forgotten {
    /// Returns those that have to go.
    fn push(&mut self, inode: Arc<Inode>, max: usize) -> Vec<Arc<Inode>> {
        self.time += 1;
        self.order.push_back((inode.ino.0, self.time));
        let replaced = self.by_number.insert(inode.ino.0, (self.time, inode));
        let mut out: Vec<_> = replaced.into_iter().map(|(_, inode)| inode).collect();
        // What came back leaves its place in the order behind, so that is bounded by itself.
        while self.by_number.len() > max || self.order.len() > 2 * max {
            let Some((ino, time)) = self.order.pop_front() else { break };
            if self.by_number.get(&ino).is_some_and(|known| known.0 == time) {
                out.extend(self.by_number.remove(&ino).map(|(_, inode)| inode));
            }
        }
        out
    }
}

impl Inode {
    fn new(node: NodeRef, ino: INodeNo, generation: u32) -> Arc<Inode> {
        let (set_id, modes, capable, writers, coherence) = Default::default();
        let generation = Generation(generation.into());
        Arc::new(Inode { node, ino, generation, set_id, modes, capable, writers, coherence })
    }

    /// Somebody has it open for writing, or mapped so.
    pub(crate) fn is_written(&self) -> bool {
        self.writers.load(Ordering::SeqCst) > 0
    }

    /// Remembers what matters of the attributes.
    pub(crate) fn note(&self, attr: &Attr) {
        // Only what takes the bits away clears it: what is noted here may be older than a mode set meanwhile.
        if attr.mode & SET_ID != 0 {
            self.set_id.store(true, Ordering::Relaxed);
        }
    }
}

pub(crate) const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

impl Inodes {
    pub(crate) fn new(root: NodeRef) -> Inodes {
        let root_id = root.id();
        // From another number at each start: a file handle of an earlier mount is stale, not somebody else's file. Not from
        // the clock, which may have been set back.
        let start = RandomState::new().hash_one(root_id) as u32;
        Inodes {
            root: Inode::new(root, INodeNo::ROOT, 0),
            root_id,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            generations: AtomicU32::new(start),
            nobodies: AtomicU64::new(0),
            forgotten: Mutex::default(),
        }
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

    /// A number that is no object's: for what a list names and nobody can look at. What the kernel forgets of it is not known.
    fn nobody(&self) -> INodeNo {
        loop {
            let ino = INodeNo(!self.nobodies.fetch_add(1, Ordering::Relaxed));
            if self.get(ino).is_err() {
                return ino;
            }
        }
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

    /// The inode of an object that an answer to the kernel names: the kernel will forget it once for each such answer.
    pub(crate) fn looked_up(&self, node: NodeRef) -> Arc<Inode> {
        let ino = self.number(node.id());
        if ino == INodeNo::ROOT {
            return self.root.clone();
        }
        let mut shard = self.shard(ino).lock();
        let entry = shard.entry(ino.0).or_insert_with(|| {
            let known = self.take_forgotten(ino).filter(|inode| inode.node.id() == node.id());
            let make = || Inode::new(node.clone(), ino, self.generations.fetch_add(1, Ordering::Relaxed));
            Entry { inode: known.unwrap_or_else(make), lookups: 0 }
        });
        if !entry.inode.node.is_whole() && node.is_whole() {
            // Could not be opened before, so there is nothing else to remember.
            entry.inode = Inode::new(node, ino, entry.inode.generation.0 as u32);
        }
        entry.lookups += 1;
        entry.inode.clone()
    }

    /// The node behind a number in a file handle, which the kernel may have forgotten.
    pub(crate) fn find(&self, ino: INodeNo) -> Result<NodeRef, Errno> {
        if let Ok(inode) = self.get(ino) {
            return Ok(inode.node.clone());
        }
        let forgotten = self.forgotten.lock();
        forgotten.by_number.get(&ino.0).map(|(_, inode)| inode.node.clone()).ok_or(Errno::ESTALE)
    }

    fn take_forgotten(&self, ino: INodeNo) -> Option<Arc<Inode>> {
        self.forgotten.lock().by_number.remove(&ino.0).map(|(_, inode)| inode)
    }

    /// Returns the object that the kernel does not know any more, for [`Inodes::keep`].
    pub(crate) fn forget(&self, ino: INodeNo, lookups: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        let entry = shard.get_mut(&ino.0)?;
        if entry.lookups > lookups {
            entry.lookups -= lookups;
            return None;
        }
        shard.remove(&ino.0).map(|entry| entry.inode)
    }

    /// Keeps a forgotten object for a while. Not for one without a name: it would keep its space.
    pub(crate) fn keep(&self, inode: Arc<Inode>) {
        let shard = self.shard(inode.ino).lock();
        // Looked up again meanwhile, when nobody had it: there is another one.
        let is_known = shard.contains_key(&inode.ino.0);
        let out = if is_known { vec![inode] } else { self.forgotten.lock().push(inode, FORGOTTEN_MAX) };
        drop(shard);
        drop(out); // closes descriptors: not under the lock
    }

    /// The mount has ended: nothing is known any more.
    pub(crate) fn clear(&self) {
        self.shards.iter().for_each(|shard| drop(std::mem::take(&mut *shard.lock())));
        drop(std::mem::take(&mut *self.forgotten.lock()));
    }

    /// How many objects are known, the top directory not counted.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Attributes of something that is there, of which nothing else is known.
    pub(crate) fn unknown_attr(&self, kind: FileType) -> FileAttr {
        let none = UNIX_EPOCH;
        FileAttr {
            ino: self.nobody(),
            size: 0,
            blocks: 0,
            atime: none,
            mtime: none,
            ctime: none,
            crtime: none,
            kind,
            perm: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
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
    fn each_mount_counts_generations_from_elsewhere() {
        struct Top;
        impl sluice_storage::Node for Top {
            fn id(&self) -> u64 {
                7
            }
        }
        let start = |_| Inodes::new(Arc::new(Top)).generations.into_inner();
        let starts: std::collections::HashSet<u32> = (0..32).map(start).collect();
        assert!(starts.len() > 30, "two of them at the same time: {starts:?}");
    }

    #[test]
    fn what_was_looked_up_again_while_it_was_forgotten_is_not_kept_twice() {
        struct Numbered(u64);
        impl sluice_storage::Node for Numbered {
            fn id(&self) -> u64 {
                self.0
            }
        }
        let inodes = Inodes::new(Arc::new(Numbered(7)));
        let known = inodes.looked_up(Arc::new(Numbered(9)));
        let forgotten = inodes.forget(known.ino, 1).expect("looked up once");
        let again = inodes.looked_up(Arc::new(Numbered(9)));
        inodes.keep(forgotten);
        assert!(inodes.forgotten.lock().by_number.is_empty());
        inodes.keep(inodes.forget(again.ino, 1).expect("looked up once"));
        assert_eq!(inodes.forgotten.lock().by_number.len(), 1);
    }

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
