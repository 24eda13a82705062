//! A global allocator that counts what each thread allocates, so that the benchmarks can show that the engine does not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, counted: one thread-local addition a call.
pub(crate) struct Counting;

/// Allocations this thread has made since it began.
pub(crate) fn calls() -> u64 {
    CALLS.get()
}

/// Bytes this thread has allocated minus bytes it has freed.
pub(crate) fn live_bytes() -> i64 {
    LIVE.get()
}

fn count(calls: u64, bytes: i64) {
    // Not there any more while a thread ends; nothing is measured then.
    let _ = CALLS.try_with(|c| c.set(c.get() + calls));
    let _ = LIVE.try_with(|l| l.set(l.get() + bytes));
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(1, new_size as i64 - layout.size() as i64);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
