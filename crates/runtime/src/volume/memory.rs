//! Memory that I/O goes to and comes from. With the ring, the only place with `unsafe` code.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;

use crossbeam_queue::ArrayQueue;

/// What direct I/O wants buffers aligned to.
const PAGE: usize = 4096;
/// Sizes that are kept: 4 KiB to 4 MiB in powers of two.
const CLASSES: usize = 11;
/// Most bytes kept of each size.
const CACHED: usize = 8 << 20;

/// Page-aligned memory of its own.
pub(super) struct Buffer {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: a `Buffer` owns its memory like a `Box<[u8]>`; `raw` hands out pointers whose users take the responsibility.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(size: usize) -> Buffer {
        let layout = Self::layout(size);
        // SAFETY: the size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        Buffer { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), size }
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, PAGE).expect("a request's size, rounded up to pages")
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The first `len` bytes.
    pub(super) fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= self.size);
        // SAFETY: within the allocation, initialised (allocated zeroed), and nobody writes: the holder of a reference
        // got it after the last I/O to this buffer ended.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len) }
    }

    pub(super) fn raw(&self, len: usize) -> Raw {
        assert!(len <= self.size);
        Raw::new(self.start.as_ptr(), len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.size)) }
    }
}

/// Buffers for reuse. How many are in use is bounded by the volume's byte limit, how many are kept here.
pub(super) struct Buffers {
    classes: [ArrayQueue<Buffer>; CLASSES],
}

impl Buffers {
    pub(super) fn new() -> Buffers {
        Buffers { classes: std::array::from_fn(|class| ArrayQueue::new((CACHED / (PAGE << class)).min(512))) }
    }

    /// A buffer for at least `len` bytes. Its content is arbitrary.
    pub(super) fn take(&self, len: usize) -> Buffer {
        let class = Self::class(len);
        match self.classes.get(class) {
            Some(kept) => kept.pop().unwrap_or_else(|| Buffer::new(PAGE << class)),
            None => Buffer::new(len.next_multiple_of(PAGE)),
        }
    }

    pub(super) fn put(&self, buffer: Buffer) {
        if let Some(kept) = self.classes.get(Self::class(buffer.size)) {
            let _ = kept.push(buffer); // dropped if enough are kept
        }
    }

    fn class(len: usize) -> usize {
        len.div_ceil(PAGE).max(1).next_power_of_two().trailing_zeros() as usize
    }
}

/// A stretch of memory that I/O is done on, without a lifetime. Whoever makes one guarantees that the memory stays valid,
/// and is not used otherwise, until the I/O has ended; the operation that owns the request is that guarantee.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Raw(libc::iovec);

// SAFETY: an address and a length; dereferencing is what needs care.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    fn new(start: *mut u8, len: usize) -> Raw {
        Raw(libc::iovec { iov_base: start.cast(), iov_len: len })
    }

    /// The caller keeps the slice borrowed until the I/O has ended.
    pub(super) fn of_mut(slice: &mut [u8]) -> Raw {
        Raw::new(slice.as_mut_ptr(), slice.len())
    }

    /// For writing from only. The caller keeps the slice borrowed until the I/O has ended.
    pub(super) fn of(slice: &[u8]) -> Raw {
        Raw::new(slice.as_ptr().cast_mut(), slice.len())
    }

    pub(super) fn len(&self) -> usize {
        self.0.iov_len
    }

    /// `len` bytes from `at`.
    pub(super) fn part(&self, at: usize, len: usize) -> Raw {
        assert!(at <= self.len() && len <= self.len() - at);
        Raw::new(self.0.iov_base.cast::<u8>().wrapping_add(at), len)
    }

    pub(super) fn copy_to(&self, to: &Buffer) -> Raw {
        let copy = to.raw(self.len());
        // SAFETY: both are valid for this many bytes and the buffer is not the source. Only called for the data of a write,
        // while the call that lent it still runs.
        unsafe { std::ptr::copy_nonoverlapping(self.0.iov_base.cast::<u8>(), to.start.as_ptr(), self.len()) }
        copy
    }

    /// Only on the data of a write, while the call that lent it still runs, or as on [`Raw::fill_zero`].
    pub(super) fn checksum(&self) -> u32 {
        // SAFETY: valid for this many bytes, and nobody writes to them then.
        sluice_trace::checksum(unsafe { std::slice::from_raw_parts(self.0.iov_base.cast::<u8>(), self.len()) })
    }

    /// Only on the memory of a read that has ended but was not reported.
    pub(super) fn fill_zero(&self) {
        // SAFETY: valid, and nobody uses it: all I/O to it has ended.
        unsafe { std::ptr::write_bytes(self.0.iov_base.cast::<u8>(), 0, self.len()) }
    }

    /// For a system call that reads into the memory.
    pub(super) fn for_read(slices: &mut [Raw]) -> &mut [IoSliceMut<'_>] {
        // SAFETY: `IoSliceMut` is guaranteed to have the layout of `iovec`, as `Raw` has; the memory is valid and used
        // for this I/O alone (see the type).
        unsafe { &mut *(std::ptr::from_mut(slices) as *mut [IoSliceMut<'_>]) }
    }

    /// For a system call that writes from the memory.
    pub(super) fn for_write(slices: &[Raw]) -> &[IoSlice<'_>] {
        // SAFETY: as in `for_read`.
        unsafe { &*(std::ptr::from_ref(slices) as *const [IoSlice<'_>]) }
    }

    pub(super) fn as_iovecs(slices: &[Raw]) -> *const libc::iovec {
        slices.as_ptr().cast()
    }
}

/// The descriptor of an open file that the caller holds a reference to.
pub(super) fn borrow_fd(fd: &RawFd) -> BorrowedFd<'_> {
    // SAFETY: open as long as the file it came from, which every user keeps alive during the call.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}
