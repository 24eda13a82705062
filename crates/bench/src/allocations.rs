//! A global allocator that counts what each thread allocates, so that the benchmarks can show that the engine does not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(i64::MAX) };
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

/// Begins to watch for the most that is live at a time; returns what is now.
pub(crate) fn watch_peak() -> i64 {
    PEAK.set(LIVE.get());
    LIVE.get()
}

/// The most that was live at a time since [`watch_peak`].
pub(crate) fn peak_bytes() -> i64 {
    PEAK.get()
}

fn count(calls: u64, bytes: i64) {
    // Not there any more while a thread ends; nothing is measured then.
    let _ = CALLS.try_with(|c| c.set(c.get() + calls));
    let _ = LIVE.try_with(|l| {
        l.set(l.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(l.get())));
    });
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
