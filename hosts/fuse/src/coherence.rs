//! What the kernel's page cache of a file may be believed to hold.
//!
//! With [`CacheMode::Auto`] a file that changes underneath must be seen as it is when it is opened next. The kernel offers
//! to drop its pages by itself when a file's times change (`FUSE_AUTO_INVAL_DATA`), and whenever a file is opened. Both are
//! wrong while somebody writes: the kernel copies the data of a cached write into pages, unlocks these, and only then sends
//! the request. Pages dropped in between are read anew *before* the write, and keep what the file held before it, so that
//! a thread does not read what it just wrote. Therefore the kernel is never asked to drop pages by itself, and
//!
//! * opening compares size and times of modification and of change (`ctime`, which nobody can set) with what the pages
//!   belong to. After a change by somebody else, and if nobody has the file open for cached writes, the pages are dropped
//!   by an explicit notification before the open is answered;
//! * if somebody has, and the file is opened for reading only, the open file bypasses the cache (`FOPEN_DIRECT_IO`): what it
//!   reads is right, and no write is disturbed. Those who open it to write share the pages of the writers there are;
//! * changes made through this mount are told from others by counting them and by the time of the last. The first one after a
//!   pause looks for others before. Attributes and names of a file change its `ctime`, too, so these count. (The kernel's change counter, `STATX_CHANGE_COOKIE`, would
//!   tell more; it is not given to programs.)
//!
//! The kernel still drops all pages when it learns of another *size*; the sizes of its own writes it knows itself.
//!
//! Direct I/O (`O_DIRECT`) of files that may have pages is left to the kernel: without `FOPEN_DIRECT_IO` it writes pages back
//! before, and drops them before and after a direct write. After an asynchronous one (Linux AIO) it does not, so it is not
//! offered these (`FUSE_ASYNC_DIO`) and carries them out synchronously; and it lets only one direct write to a file go on at
//! a time. Who wants many at a time mounts without the cache.
//!
//! What is written through a mapping the kernel sends when it likes, and it does not do so before it asks where data and holes
//! are (`SEEK_DATA`). While somebody has the file open for writing its pages are dropped before that is answered: the kernel
//! sends what has changed before it drops a page. It lets nobody else write meanwhile, so no cached write is disturbed.
//!
//! A notification waits for pages that are locked or being written back, and these for reads and writes under way; in the
//! kernel also for those that are not sent yet, because so many others are (`max_background`). So **no read or write may
//! ever wait for a notification, nor for a lock that is held across one**, or all wait for ever and cannot be killed. Only
//! opening, asking for attributes and for holes wait, which the kernel does without holding a page, and on threads of a pool. In
//! particular a write must not drop pages after itself: the kernel writes back mapped and delayed data with whatever open
//! file can write, also with one that bypasses the cache.
//!
//! [`CacheMode::Auto`]: crate::CacheMode::Auto

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{INodeNo, Notifier};
use parking_lot::{Mutex, MutexGuard, RwLock};
use sluice_storage::Attr;

use crate::inodes::Inode;
use crate::pool::Pool;

/// Notifications at a time.
const THREADS: usize = 4;
/// Changes here that follow each other faster than this are not looked between: 10 ms, in nanoseconds. A tick of the kernel's
/// clock is not longer.
const PAUSE_NS: u64 = 10_000_000;

/// One file's state.
#[derive(Default)]
pub(crate) struct Coherence {
    /// Held while pages are dropped, so threads that serve the kernel only try to take it.
    pages: Mutex<Pages>,
    /// Changes through this mount, begun and ended.
    begun: AtomicU64,
    ended: AtomicU64,
    /// When the last of them ended, in nanoseconds since 1970.
    last_ended_ns: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Pages {
    /// What the pages belong to; `None` if there can be no pages.
    version: Option<Version>,
    /// [`Coherence::begun`] at that time.
    begun: u64,
    /// Somebody else has changed the file since, whatever was changed here afterwards.
    foreign: bool,
    /// Open files with cached writes.
    writers: u32,
}

impl Pages {
    /// Whether there may be any.
    pub(crate) fn are_known(&self) -> bool {
        self.version.is_some()
    }
}

/// A file's state, as far as it can be told from the outside: the same after no change but one in the same tick of the
/// kernel's clock (a few milliseconds; none on file systems with multigrain timestamps, Linux 6.13).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    mtime: (i64, u32),
    /// Also where file systems do not keep it, or set it to `mtime`, this is no worse than that alone.
    ctime: (i64, u32),
    size: u64,
}

impl Version {
    fn of(attr: &Attr) -> Version {
        Version { mtime: attr.mtime, ctime: attr.ctime, size: attr.size }
    }

    /// When it came to be.
    fn since_1970_ns(self) -> u64 {
        since_1970_ns(self.mtime.max(self.ctime))
    }
}

/// What an open file is to do with the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The pages are the file's.
    Keep,
    /// Somebody else changed the file; the pages can be dropped.
    Drop,
    /// Somebody else changed the file, and it is being written here.
    Bypass,
}

impl Coherence {
    /// A change through this mount begins; [`Coherence::changed`] must follow, whether it succeeds or not.
    fn changing(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// A change through this mount has ended.
    fn changed(&self) {
        let now = now_ns();
        let later = |last| Some(if is_set_back(now, last) { now } else { now.max(last) });
        // Always some.
        let _ = self.last_ended_ns.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// To be taken before the attributes are asked for that [`Coherence::judge`] sees.
    pub(crate) fn before(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// `None` while pages are dropped.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Pages>> {
        self.pages.try_lock()
    }

    /// Waits while pages are dropped: for threads of the pool.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock()
    }

    /// Nothing was changed here for a while: who is about to should look before, as what others have done cannot be told
    /// from it later.
    pub(crate) fn is_quiet(&self) -> bool {
        let idle = self.begun.load(Ordering::SeqCst) == self.before();
        let (now, last) = (now_ns(), self.last_ended_ns.load(Ordering::SeqCst));
        idle && (now.saturating_sub(last) > PAUSE_NS || is_set_back(now, last))
    }

    /// Compares the file with its pages, and takes changes of our own over.
    pub(crate) fn judge(&self, pages: &mut Pages, before: u64, attr: &Attr) -> Verdict {
        let version = Version::of(attr);
        let begun = self.begun.load(Ordering::SeqCst);
        // A change of our own was under way while the attributes were read: they say nothing about others.
        let overlapped = begun != before;
        // Not exact where nobody looked in between: the kernel's times then lag by up to a tick of its clock.
        let ours = || begun != pages.begun && version.since_1970_ns() <= self.last_ended_ns.load(Ordering::SeqCst);
        match pages.version {
            None => {}
            Some(known) if !pages.foreign && (known == version || overlapped || ours()) => {}
            Some(_) => {
                pages.foreign = true;
                return if pages.writers > 0 { Verdict::Bypass } else { Verdict::Drop };
            }
        }
        if !overlapped || pages.version.is_none() {
            (pages.version, pages.begun) = (Some(version), before);
        }
        Verdict::Keep
    }

    /// Pages were dropped; `attr` was read before that, after `before`.
    pub(crate) fn dropped(&self, pages: &mut Pages, before: u64, attr: &Attr) {
        (pages.version, pages.foreign) = (None, false);
        self.judge(pages, before, attr);
    }

    /// A file was opened that uses the cache.
    pub(crate) fn opened(&self, pages: &mut Pages, writable: bool) {
        pages.writers += u32::from(writable);
    }

    /// Such a file was closed.
    pub(crate) fn closed(&self, writable: bool) {
        if writable {
            // Not held for long: no pages are dropped while there are writers.
            self.pages.lock().writers -= 1;
        }
    }
}

/// A change of a file's contents, attributes or names through this mount, while it is under way.
pub(crate) struct Change(Arc<Inode>);

impl Change {
    pub(crate) fn begin(inode: &Arc<Inode>) -> Change {
        inode.coherence.changing();
        Change(inode.clone())
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.0.coherence.changed();
    }
}

impl std::fmt::Debug for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Change({})", self.0.ino)
    }
}

/// Makes the kernel drop pages.
pub(crate) struct Invalidator {
    notifier: RwLock<Option<Notifier>>,
    pub(crate) pool: Pool,
}

impl Invalidator {
    pub(crate) fn new() -> Invalidator {
        Invalidator { notifier: RwLock::new(None), pool: Pool::new("sluice-cache", THREADS) }
    }

    pub(crate) fn start(&self, notifier: Notifier) {
        *self.notifier.write() = Some(notifier);
    }

    /// The mount has ended; lets the device go.
    pub(crate) fn end(&self) {
        *self.notifier.write() = None;
        self.pool.close();
    }

    /// Drops all pages of a file. Waits for those that are being read; on a thread of the pool only, and never for the
    /// answer to a read or write.
    pub(crate) fn drop_pages(&self, ino: INodeNo) {
        // A clone: the lock is not held while waiting.
        let Some(notifier) = self.notifier.read().clone() else { return };
        if let Err(error) = notifier.inval_inode(ino, 0, 0) {
            // The mount is going away, or the kernel does not know the object any more: there are no pages.
            tracing::debug!(%ino, %error, "cached pages were not dropped");
        }
    }
}

/// Whether the system's clock was set back since: not by what threads are late with.
fn is_set_back(now_ns: u64, last_ns: u64) -> bool {
    last_ns > now_ns.saturating_add(1_000_000_000)
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn since_1970_ns((seconds, nanos): (i64, u32)) -> u64 {
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(mtime_ns: u64, size: u64) -> Attr {
        let mtime = ((mtime_ns / 1_000_000_000) as i64, (mtime_ns % 1_000_000_000) as u32);
        Attr {
            ino: 1,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: 0,
            blksize: 0,
            atime: mtime,
            mtime,
            ctime: mtime,
        }
    }

    fn judge(file: &Coherence, attr: &Attr) -> Verdict {
        let before = file.before();
        file.judge(&mut file.lock(), before, attr)
    }

    /// Somebody else's change: it stays one until the pages are dropped. Then they are those of `now`.
    fn foreign(file: &Coherence, attr: &Attr, now: &Attr, what: &str) {
        assert_eq!(judge(file, attr), Verdict::Drop, "{what}");
        assert_eq!(judge(file, now), Verdict::Drop, "{what}, until the pages are dropped");
        file.dropped(&mut file.lock(), file.before(), now);
    }

    #[test]
    fn changes_by_others_are_noticed_and_own_ones_are_not() {
        let file = Coherence::default();
        let old = now_ns() - 1_000_000_000;
        assert_eq!(judge(&file, &attr(old, 5)), Verdict::Keep, "no pages yet");
        assert_eq!(judge(&file, &attr(old, 5)), Verdict::Keep);
        foreign(&file, &attr(old + 1, 5), &attr(old, 5), "another time");
        foreign(&file, &attr(old, 6), &attr(old, 5), "another size");
        foreign(&file, &attr(old - 1, 5), &attr(old, 5), "an older file took its place");
        file.changing();
        assert_eq!(judge(&file, &attr(old + 7, 7)), Verdict::Keep, "a write of our own is under way");
        file.changed();
        assert_eq!(judge(&file, &attr(old + 7, 7)), Verdict::Keep, "it came before the end of our own");
        foreign(&file, &attr(old + 6, 7), &attr(old + 6, 7), "nothing of our own since");
        file.changing();
        file.changed();
        assert_eq!(judge(&file, &attr(now_ns() + 1_000_000_000, 7)), Verdict::Drop, "after our last one");
    }

    /// Else what others do until it is as late again would count as done here.
    #[test]
    fn a_clock_that_was_set_back_hides_nothing() {
        let file = Coherence::default();
        assert_eq!(judge(&file, &attr(now_ns() - 1_000_000_000, 5)), Verdict::Keep);
        file.last_ended_ns.store(now_ns() + 3_600_000_000_000, Ordering::SeqCst);
        assert!(file.is_quiet());
        file.changing();
        file.changed();
        assert!(!file.is_quiet());
        assert_eq!(judge(&file, &attr(now_ns() + 5_000_000_000, 5)), Verdict::Drop, "after our last one");
    }

    #[test]
    fn a_time_of_modification_that_was_set_back_hides_nothing() {
        let file = Coherence::default();
        let old = now_ns() - 1_000_000_000;
        let later = |from: &Attr, ns: u64| Attr { ctime: attr(old + ns, 0).ctime, ..*from };
        let first = attr(old, 5);
        assert_eq!(judge(&file, &first), Verdict::Keep);
        foreign(&file, &later(&first, 1), &first, "as it was, but it was touched");
        // Right after a write of our own that nothing was compared with since.
        file.changing();
        file.changed();
        let set_back = Attr { ctime: attr(now_ns() + 1_000_000_000, 0).ctime, ..first };
        foreign(&file, &set_back, &first, "also then");
        file.changing();
        file.changed();
        assert_eq!(judge(&file, &later(&first, 2)), Verdict::Keep, "an attribute that we changed");
    }

    #[test]
    fn pages_that_are_being_written_stay() {
        let file = Coherence::default();
        assert_eq!(judge(&file, &attr(1, 1)), Verdict::Keep);
        file.opened(&mut file.lock(), true);
        assert_eq!(judge(&file, &attr(2, 1)), Verdict::Bypass);
        file.closed(true);
        assert_eq!(judge(&file, &attr(2, 1)), Verdict::Drop);
        file.dropped(&mut file.lock(), 0, &attr(2, 1));
        assert_eq!(judge(&file, &attr(2, 1)), Verdict::Keep);
        assert_eq!(judge(&file, &attr(3, 1)), Verdict::Drop);
    }

    #[test]
    fn what_others_did_is_not_forgotten_for_what_is_done_here() {
        let file = Coherence::default();
        let old = now_ns() - 1_000_000_000;
        assert_eq!(judge(&file, &attr(old, 5)), Verdict::Keep);
        file.opened(&mut file.lock(), true);
        assert!(file.is_quiet());
        assert_eq!(judge(&file, &attr(old + 1, 5)), Verdict::Bypass);
        file.changing();
        assert!(!file.is_quiet());
        file.changed();
        assert!(!file.is_quiet(), "so soon after a change");
        assert_eq!(judge(&file, &attr(now_ns() - 1, 5)), Verdict::Bypass);
        file.closed(true);
        assert_eq!(judge(&file, &attr(old, 5)), Verdict::Drop, "not even if it looks as it did");
        file.dropped(&mut file.lock(), file.before(), &attr(old, 5));
        assert_eq!(judge(&file, &attr(old, 5)), Verdict::Keep);
    }

    #[test]
    fn attributes_read_during_a_write_are_not_remembered() {
        let file = Coherence::default();
        assert_eq!(judge(&file, &attr(1, 1)), Verdict::Keep);
        let before = file.before();
        file.changing();
        file.changed();
        assert_eq!(
            file.judge(&mut file.lock(), before, &attr(2, 1)),
            Verdict::Keep,
            "perhaps before it, perhaps after"
        );
        assert_eq!(judge(&file, &attr(1, 1)), Verdict::Keep);
    }
}
