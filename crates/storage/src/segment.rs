//! Memory that I/O goes to and comes from, without a lifetime.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};

/// A stretch of memory that I/O is done on, without a lifetime: a transfer may outlive the call that began it.
///
/// Making one is `unsafe`. Whoever does guarantees that the memory stays valid, and that nobody uses it otherwise, until
/// the I/O has ended: the operation that owns the request is that guarantee. Everything else relies on it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Segment(libc::iovec);

// SAFETY: an address and a length, of memory that may be used from any thread (promised to `Segment::new`).
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// `len` bytes from `start`.
    ///
    /// # Safety
    /// Until the last I/O on the segment, its copies and parts has ended, the memory must be valid for writing (for
    /// reading only, if it is only written from) from any thread, initialised, and used by nobody else.
    #[must_use]
    pub const unsafe fn new(start: *mut u8, len: usize) -> Segment {
        Segment(libc::iovec { iov_base: start.cast(), iov_len: len })
    }

    /// Memory to read into.
    ///
    /// # Safety
    /// The caller keeps the slice borrowed until the I/O has ended.
    #[must_use]
    pub const unsafe fn of_mut(slice: &mut [u8]) -> Segment {
        // SAFETY: the caller's promise.
        unsafe { Segment::new(slice.as_mut_ptr(), slice.len()) }
    }

    /// Memory to write from, and never to read into.
    ///
    /// # Safety
    /// The caller keeps the slice borrowed until the I/O has ended, and starts no read with it.
    #[must_use]
    pub const unsafe fn of(slice: &[u8]) -> Segment {
        // SAFETY: the caller's promise.
        unsafe { Segment::new(slice.as_ptr().cast_mut(), slice.len()) }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.iov_len
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the memory begins.
    #[must_use]
    pub const fn start(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// `len` bytes from `at`.
    ///
    /// # Panics
    /// If that is not inside.
    #[must_use]
    pub fn part(&self, at: usize, len: usize) -> Segment {
        assert!(at <= self.len() && len <= self.len() - at);
        // SAFETY: a part of memory for which the promise was given.
        unsafe { Segment::new(self.start().wrapping_add(at), len) }
    }

    /// For a call that reads into the memory.
    pub fn for_read(segments: &mut [Segment]) -> &mut [IoSliceMut<'_>] {
        // SAFETY: `IoSliceMut` is guaranteed to have the layout of `iovec`, as `Segment` has; the memory is valid and used
        // for this I/O alone (see the type).
        unsafe { &mut *(std::ptr::from_mut(segments) as *mut [IoSliceMut<'_>]) }
    }

    /// For a call that writes from the memory.
    #[must_use]
    pub fn for_write(segments: &[Segment]) -> &[IoSlice<'_>] {
        // SAFETY: as in `for_read`.
        unsafe { &*(std::ptr::from_ref(segments) as *const [IoSlice<'_>]) }
    }

    /// As the system takes them.
    #[must_use]
    pub const fn as_iovecs(segments: &[Segment]) -> *const libc::iovec {
        segments.as_ptr().cast()
    }
}
