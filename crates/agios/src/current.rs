//! The scheduler that is running, if there is one.
//!
//! Every call looks it up, so threads must not write to the same memory to do so: each has one of several copies, behind a
//! lock that hardly anybody else takes. Whoever exchanges the scheduler takes all of them.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::{RwLock, const_rwlock};

use crate::scheduler::Scheduler;

/// More than threads that are likely to add requests at a time. A power of two.
const COPIES: usize = 16;

static CURRENT: [CachePadded<RwLock<Option<Arc<Scheduler>>>>; COPIES] =
    [const { CachePadded::new(const_rwlock(None)) }; COPIES];

/// Threads that have called so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

const UNKNOWN: usize = usize::MAX;

thread_local! {
    static COPY: Cell<usize> = const { Cell::new(UNKNOWN) };
}

fn copy() -> &'static RwLock<Option<Arc<Scheduler>>> {
    let mut number = COPY.get();
    if number == UNKNOWN {
        number = THREADS.fetch_add(1, Ordering::Relaxed) % COPIES;
        COPY.set(number);
    }
    &CURRENT[number]
}

/// Does something with the scheduler, which stays what it is meanwhile. May be called inside itself: callbacks do.
pub(crate) fn with<R>(action: impl FnOnce(&Scheduler) -> R) -> Option<R> {
    // A waiting writer would let no new reader in, not even one that is a reader already.
    copy().read_recursive().as_deref().map(action)
}

/// The scheduler, beyond the end of a call.
pub(crate) fn get() -> Option<Arc<Scheduler>> {
    copy().read_recursive().clone()
}

/// Makes `scheduler` the running one, or none; waits for calls that are under way with the one before. Not from inside
/// [`with`].
pub(crate) fn set(scheduler: Option<&Arc<Scheduler>>) {
    CURRENT.iter().for_each(|copy| *copy.write() = scheduler.cloned());
}
