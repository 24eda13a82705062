//! What the scheduler executes.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::emulated::DeviceStats;
use crate::{FileRef, Layout, Started, Transfer};

/// The bytes of files on one or more targets. All calls may come from many threads at once and, unless they say
/// otherwise, may block.
///
/// Errors are the operating system's. An open file of another storage gives `EINVAL`.
pub trait Data: Send + Sync {
    /// How logical offsets of a file that begins on target 0 map to targets; of an open file: [`Layout::of`] it.
    fn layout(&self) -> Layout;

    /// One line for people: what this storage is, with the word "emulated" if it is.
    fn describe(&self) -> String;

    /// True if service times are emulated. Every output that shows a figure must then say so.
    fn emulated(&self) -> bool {
        false
    }

    /// What the emulated devices have done, one for each target; empty if nothing is emulated.
    fn device_stats(&self) -> Vec<DeviceStats> {
        Vec::new()
    }

    /// Reads from `target`'s file at `offset` into `bufs`, in order. Returns the bytes read; less than asked only at the end
    /// of the target's file (which may be before the logical end: the caller fills holes with zeros) or before an error.
    /// Asking for the rest tells which: no bytes, or the error.
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize>;

    /// Writes `bufs`, in order, to `target`'s file at `offset`. Returns the bytes written; less than asked only together
    /// with a reason that the next call would report (a full device).
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize>;

    /// Makes what was written durable on every target; without `metadata` as `fdatasync`.
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()>;

    /// As [`Data::read`], but only from memory: never waits for a device. May return fewer bytes than asked anywhere;
    /// `None` if there is nothing without waiting.
    fn try_read(
        &self,
        file: &FileRef,
        target: usize,
        offset: u64,
        bufs: &mut [io::IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        let _ = (file, target, offset, bufs);
        Ok(None)
    }

    /// Reads and writes of this file never wait for a device, so that any thread may do them at any time.
    fn never_waits(&self, file: &FileRef) -> bool {
        let _ = file;
        false
    }

    /// A descriptor on which plain calls at the offsets given to [`Data::read`] and [`Data::write`] (io_uring, `preadv2`)
    /// have the same effect, or `None` if the storage must do it. It stays open for as long as it is held, so hold it
    /// for one transfer and ask again for the next: the storage may have another one then, or none.
    fn descriptor(&self, file: &FileRef, target: usize) -> Option<Arc<OwnedFd>> {
        let _ = (file, target);
        None
    }

    /// The file's logical size, or a number from `end` up that the size is known to reach. Sampled before the parts of a
    /// read are moved, it tells holes from the end of the file: what was not yet written then may be missing from the
    /// parts. Costs nothing below what is known, else a look at every target.
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64>;

    /// Takes back what a failed write over several targets added to the file's size.
    ///
    /// The write of `range` (logical offsets) moved only its first `written` bytes, but some of its later parts may have
    /// been written and made the file longer. `before` is what [`Data::size_at_least`] said for `range.end` before the
    /// parts were submitted. All parts have ended, and no other write to the file was under way since. Then the size is at
    /// most the end of what was written, or what it was. Does nothing where a file lies on one target.
    fn trim(&self, file: &FileRef, before: u64, range: Range<u64>, written: u64) -> io::Result<()> {
        let _ = (file, before, range, written);
        Ok(())
    }

    /// Begins a transfer that ends without anybody waiting for it; see [`Started`]. Never waits.
    fn start(&self, transfer: Transfer) -> Started {
        Started::Unsupported(transfer)
    }
}
