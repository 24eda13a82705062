//! Memory that I/O goes to and comes from. With the ring, the only place with `unsafe` code.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crossbeam_queue::ArrayQueue;
use sluice_storage::Segment;

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

    pub(super) fn raw(&self, len: usize) -> Segment {
        assert!(len <= self.size);
        // SAFETY: within the allocation; whoever asks keeps the buffer until the I/O has ended.
        unsafe { Segment::new(self.start.as_ptr(), len) }
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

/// Memory to read into. The caller keeps the slice borrowed until the operation has ended.
pub(super) fn borrow_mut(slice: &mut [u8]) -> Segment {
    // SAFETY: whoever waits for the operation holds the borrow; nobody else uses the memory meanwhile.
    unsafe { Segment::of_mut(slice) }
}

/// Memory to write from. The caller keeps the slice borrowed until the operation has ended or its data was copied.
pub(super) fn borrow(slice: &[u8]) -> Segment {
    // SAFETY: as above, and operations that write never read into their memory.
    unsafe { Segment::of(slice) }
}

/// Only for the data of a write, while the call that lent it still runs.
pub(super) fn copy(from: Segment, to: &Buffer) -> Segment {
    let copy = to.raw(from.len());
    // SAFETY: both are valid for this many bytes and the buffer is not the source.
    unsafe { std::ptr::copy_nonoverlapping(from.start(), to.start.as_ptr(), from.len()) }
    copy
}

/// Only on the data of a write, while the call that lent it still runs, or as [`fill_zero`].
pub(super) fn checksum(segment: Segment) -> u32 {
    // SAFETY: valid for this many bytes, and nobody writes to them then.
    sluice_trace::checksum(unsafe { std::slice::from_raw_parts(segment.start(), segment.len()) })
}

/// Only on the memory of a read that has ended but was not reported.
pub(super) fn fill_zero(segment: Segment) {
    // SAFETY: valid, and nobody uses it: all I/O to it has ended.
    unsafe { std::ptr::write_bytes(segment.start(), 0, segment.len()) }
}
