//! What a `sluice *` points to: a small block that outlives the scheduler, so that a call that comes too late finds out
//! instead of touching freed memory.
//!
//! Each call counts itself in and out; destroying marks the block as closed, waits until nobody is inside any more, and
//! only then frees the scheduler. The block itself stays (some bytes for each scheduler ever destroyed, kept reachable in
//! a list). A forked child sees by a counter that the scheduler's threads are not in its process.

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::instance::Instance;
use crate::status::{CLOSED, Failure, IN_CALLBACK, SLUICE_ERR_FORKED, SLUICE_ERR_INVALID};

/// A scheduler. Opaque; created by sluice_create().
pub struct sluice {
    /// `CLOSED_BIT`, and how many calls are inside.
    users: AtomicU64,
    /// Value of `FORKS` in the process that created it.
    fork: u64,
    instance: AtomicPtr<Instance>,
}

const CLOSED_BIT: u64 = 1 << 63;

/// Forks between the first process that created a scheduler and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The blocks of destroyed schedulers.
static DESTROYED: Mutex<Vec<&'static sluice>> = Mutex::new(Vec::new());

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

thread_local! {
    /// How many callbacks this thread is inside of.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, this thread runs a callback.
pub(crate) struct InCallback;

impl InCallback {
    pub(crate) fn enter() -> InCallback {
        CALLBACKS.set(CALLBACKS.get() + 1);
        InCallback
    }
}

impl Drop for InCallback {
    fn drop(&mut self) {
        CALLBACKS.set(CALLBACKS.get() - 1);
    }
}

/// Refuses what would wait for the end of the callback that it is called in.
pub(crate) fn not_in_callback() -> Result<(), Failure> {
    if CALLBACKS.get() > 0 { Err(IN_CALLBACK) } else { Ok(()) }
}

/// A call that is inside.
pub(crate) struct Call<'a> {
    handle: &'a sluice,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.handle.users.fetch_sub(1, Ordering::Release);
    }
}

impl Call<'_> {
    pub(crate) fn instance(&self) -> &Instance {
        // SAFETY: it is freed only after `users` had fallen to 0 with the closed bit set, and this call is counted.
        unsafe { &*self.handle.instance.load(Ordering::Relaxed) }
    }
}

impl sluice {
    /// The block for a new scheduler; `make` gets its address.
    pub(crate) fn create(make: impl FnOnce(*mut sluice) -> Result<Instance, Failure>) -> Result<*mut sluice, Failure> {
        static AT_FORK: Once = Once::new();
        // SAFETY: the function does nothing but an atomic addition, which is allowed in a forked child.
        AT_FORK.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(forked));
        });
        let block =
            sluice { users: AtomicU64::new(0), fork: FORKS.load(Ordering::Relaxed), instance: AtomicPtr::default() };
        let handle = Box::into_raw(Box::new(block));
        match make(handle) {
            Ok(instance) => {
                // SAFETY: made above, and nobody else knows it yet.
                unsafe { &*handle }.instance.store(Box::into_raw(Box::new(instance)), Ordering::Release);
                Ok(handle)
            }
            Err(failure) => {
                // SAFETY: made above, and nobody else knows it.
                drop(unsafe { Box::from_raw(handle) });
                Err(failure)
            }
        }
    }

    /// Counts a call in.
    ///
    /// # Safety
    /// `handle` is null or came from [`sluice::create`].
    pub(crate) unsafe fn enter<'a>(handle: *mut sluice) -> Result<Call<'a>, Failure> {
        // SAFETY: blocks are never freed.
        let Some(handle) = (unsafe { handle.as_ref() }) else {
            return Err(Failure::new(SLUICE_ERR_INVALID, c"the scheduler is NULL"));
        };
        if handle.fork != FORKS.load(Ordering::Relaxed) {
            let text = c"the scheduler belongs to the parent process; create one after fork()";
            return Err(Failure::new(SLUICE_ERR_FORKED, text));
        }
        let before = handle.users.fetch_add(1, Ordering::Acquire);
        let call = Call { handle };
        if before & CLOSED_BIT == 0 { Ok(call) } else { Err(CLOSED) }
    }

    /// Closes it for new calls, waits for those inside, and frees the scheduler. The caller counts as inside.
    pub(crate) fn destroy(call: Call<'_>) -> Result<(), Failure> {
        // SAFETY: blocks are never freed.
        let handle: &'static sluice = unsafe { &*std::ptr::from_ref(call.handle) };
        if handle.users.fetch_or(CLOSED_BIT, Ordering::AcqRel) & CLOSED_BIT != 0 {
            return Err(CLOSED);
        }
        drop(call);
        while handle.users.load(Ordering::Acquire) != CLOSED_BIT {
            std::thread::yield_now();
        }
        // SAFETY: nobody is inside, nobody comes in any more, and the bit was set by this thread only.
        drop(unsafe { Box::from_raw(handle.instance.swap(std::ptr::null_mut(), Ordering::AcqRel)) });
        DESTROYED.lock().push(handle);
        Ok(())
    }
}
