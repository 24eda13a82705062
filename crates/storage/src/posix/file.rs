//! Open files, whose descriptors may be closed while nobody uses them.
//!
//! An open file of a striped volume costs a descriptor on every target. When the process runs out of them, those that were
//! not used of late are closed ([cache](super::cache)) and opened again through the file's node when they are needed. What
//! that could change is ruled out:
//!
//! * *Permissions*: a file is checked when it is opened, and never again. So this is only done where the process may open
//!   whatever it likes, and by handle: whatever happened to names and modes since, it is the same file.
//! * *Removed files* are kept by their node ([`PosixNode::pin`]), which leads to them. One that others removed underneath
//!   keeps its descriptor, if it was not closed before that: then it is `ESTALE`.
//! * *Errors of writing back* are told to the descriptor through which the kernel was given the data. A file that was
//!   changed keeps its descriptor until it was synced. Only where nothing else is left to close it is synced for that, and
//!   an error is kept for the next [`PosixFile::sync`].
//! * *Errors of closing* exist on network file systems. There, nothing is closed early.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::fs::{self as sys, OFlags, Stat};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

use super::bytes::Bytes;
use super::cache::{Descriptors, Evict, Eviction, FILES, Place};
use super::node::PosixNode;
use crate::OpenFile;

/// An open file.
pub(super) struct PosixFile {
    body: Arc<Body>,
    /// As the file was opened, without what happens only once.
    flags: OFlags,
    direct: bool,
    /// Its descriptors may be closed early.
    reopens: bool,
}

/// What the cache may hold on to as well.
struct Body {
    node: Arc<PosixNode>,
    /// Locked for writing to take the descriptors away or put new ones there; for reading by who uses them.
    bytes: RwLock<Option<Bytes>>,
    /// How often something was changed through the descriptors, and how much of that was synced.
    changes: AtomicU64,
    synced: AtomicU64,
    /// What syncing said that nobody was told of.
    failed: Mutex<Option<Errno>>,
    place: Place,
}

/// The descriptors of an open file while they are used.
pub(super) type InUse<'a> = MappedRwLockReadGuard<'a, Bytes>;

impl OpenFile for PosixFile {
    fn id(&self) -> u64 {
        crate::Node::id(&*self.body.node)
    }
}

impl PosixFile {
    pub(super) fn new(bytes: Bytes, node: Arc<PosixNode>, (flags, direct): (OFlags, bool), reopens: bool) -> PosixFile {
        node.opens.fetch_add(1, Ordering::SeqCst);
        let body = Arc::new(Body {
            node,
            bytes: RwLock::new(Some(bytes)),
            changes: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            failed: Mutex::new(None),
            place: Place::new(),
        });
        if reopens {
            FILES.insert(body.clone());
        }
        PosixFile { body, flags: flags - (OFlags::TRUNC | OFlags::CREATE | OFlags::EXCL), direct, reopens }
    }

    pub(super) fn node(&self) -> &Arc<PosixNode> {
        &self.body.node
    }

    pub(super) fn writable(&self) -> bool {
        self.flags & OFlags::RWMODE != OFlags::RDONLY
    }

    /// For what changes nothing.
    ///
    /// # Errors
    /// If they had been closed and cannot be opened again: `ESTALE` where others removed the file underneath; `EMFILE`.
    pub(super) fn bytes(&self) -> io::Result<InUse<'_>> {
        self.body.place.touch();
        match self.in_use() {
            Some(bytes) => Ok(bytes),
            None => self.reopen(),
        }
    }

    /// As [`PosixFile::bytes`], for a change.
    pub(super) fn change<R>(&self, change: impl FnOnce(&Bytes) -> R) -> io::Result<R> {
        let bytes = self.bytes()?;
        let result = change(&bytes);
        // Afterwards, and while they are in use: a sync that began before does not count for it.
        self.body.changes.fetch_add(1, Ordering::SeqCst);
        Ok(result)
    }

    fn in_use(&self) -> Option<InUse<'_>> {
        RwLockReadGuard::try_map(self.body.bytes.read(), Option::as_ref).ok()
    }

    #[cold]
    fn reopen(&self) -> io::Result<InUse<'_>> {
        let fresh = Bytes::reopen(self.node().fd()?.as_fd(), self.flags, self.direct, true)?;
        let mut bytes = self.body.bytes.write();
        // Somebody else may have been faster.
        let unneeded = if bytes.is_none() { bytes.replace(fresh) } else { Some(fresh) };
        let bytes = RwLockWriteGuard::downgrade(bytes);
        drop(unneeded);
        // In use, so that it is not this one that makes room.
        FILES.insert(self.body.clone());
        Ok(RwLockReadGuard::map(bytes, |bytes| bytes.as_ref().expect("put there, and locked since")))
    }

    /// The file's attributes, for which its descriptors are not needed.
    pub(super) fn stat(&self) -> io::Result<Stat> {
        match self.in_use() {
            Some(bytes) => Ok(sys::fstat(bytes.fd())?),
            None => Ok(sys::fstat(self.node().fd()?)?),
        }
    }

    /// A descriptor for plain calls, if those are always right.
    pub(super) fn lend(&self) -> Option<Arc<OwnedFd>> {
        let bytes = self.bytes().ok()?;
        let lent = bytes.plain()?.clone();
        if self.writable() {
            // What is written with it is not seen here. Counted after it was lent, see `sync`.
            self.body.changes.fetch_add(1, Ordering::SeqCst);
        }
        Some(lent)
    }

    /// Makes the file durable.
    ///
    /// # Errors
    /// What the system says, also earlier when the descriptors were closed.
    pub(super) fn sync(&self, metadata: bool) -> io::Result<()> {
        let bytes = self.bytes()?;
        let result = self.body.sync(&bytes, metadata);
        let earlier = self.body.failed.lock().take();
        Ok(result.and(earlier.map_or(Ok(()), Err))?)
    }

    #[cfg(test)]
    pub(super) fn is_open(&self) -> bool {
        self.body.bytes.read().is_some()
    }

    /// As the cache would.
    #[cfg(test)]
    pub(super) fn try_close(&self) -> bool {
        let evicted = self.reopens && matches!(self.body.evict(), Eviction::Done(_));
        if evicted {
            FILES.remove(&self.body.place);
        }
        evicted
    }

    #[cfg(test)]
    pub(super) fn settle(&self) {
        self.body.settle();
    }

    /// As if [`Evict::settle`] had met an error.
    #[cfg(test)]
    pub(super) fn fail_settling(&self, error: Errno) {
        self.body.fail(self.body.changes.load(Ordering::SeqCst), error);
    }
}

impl Drop for PosixFile {
    fn drop(&mut self) {
        self.node().opens.fetch_sub(1, Ordering::SeqCst);
        if self.reopens {
            FILES.remove(&self.body.place);
        }
    }
}

impl Body {
    fn is_changed(&self) -> bool {
        self.changes.load(Ordering::SeqCst) != self.synced.load(Ordering::SeqCst)
    }

    fn sync(&self, bytes: &Bytes, metadata: bool) -> rustix::io::Result<()> {
        let changes = self.changes.load(Ordering::SeqCst);
        // Who has one may still write with it; who gets one from here on is counted.
        let lent = bytes.is_lent();
        let result = if metadata { sys::fsync(bytes.fd()) } else { sys::fdatasync(bytes.fd()) };
        if result.is_ok() && !lent {
            self.synced.fetch_max(changes, Ordering::SeqCst);
        }
        result
    }

    /// Syncing `changes` failed, which nobody but us was told.
    fn fail(&self, changes: u64, error: Errno) {
        tracing::warn!(%error, "a file could not be synced to close its descriptor; its next fsync will say so");
        self.failed.lock().get_or_insert(error);
        // The kernel tells an error once: what follows is that of later changes.
        self.synced.fetch_max(changes, Ordering::SeqCst);
    }
}

impl Evict for Body {
    fn place(&self) -> &Place {
        &self.place
    }

    fn evict(&self) -> Eviction {
        let Some(mut slot) = self.bytes.try_write() else { return Eviction::Busy };
        let Some(bytes) = &*slot else { return Eviction::Done(None) };
        if bytes.is_lent() || self.is_changed() {
            return Eviction::Busy;
        }
        // Removed underneath: there is no other way to it. (What was removed through us is with its node.)
        match sys::fstat(bytes.fd()) {
            Ok(stat) if stat.st_nlink > 0 || self.node.is_pinned() => {}
            _ => return Eviction::Busy,
        }
        Eviction::Done(slot.take().map(|bytes| Box::new(bytes) as Descriptors))
    }

    fn settle(&self) {
        // Never waited for: who has it for writing may be waiting for room.
        let Some(bytes) = self.bytes.try_read() else { return };
        let Some(bytes) = bytes.as_ref().filter(|bytes| !bytes.is_lent()) else { return };
        if !self.is_changed() {
            return;
        }
        let changes = self.changes.load(Ordering::SeqCst);
        if let Err(error) = self.sync(bytes, false) {
            self.fail(changes, error);
        }
    }
}

/// Whether this process may open any file, whatever its owner and mode.
pub(super) fn may_open_all() -> bool {
    // In a user namespace the right ends with the users that it knows.
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let everybody = map.split_whitespace().eq(["0", "0", "4294967295"]);
    everybody && capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::DAC_OVERRIDE))
}
