//! The primitives that the protocols of this crate are made of.
//!
//! Built with the feature `model` they are those of [shuttle](https://docs.rs/shuttle), which runs all threads of a test on
//! one, in an order drawn from a seed, and notices when all of them wait. So the very code that is shipped is what the tests
//! in `tests/model` check. Everything that two threads may do to each other goes through here; `std::sync::Arc` needs no
//! model.

#[cfg(not(feature = "model"))]
mod primitives {
    use std::time::Instant;

    pub(crate) use crossbeam_queue::ArrayQueue;
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::atomic;
    pub(crate) use std::thread::{self, JoinHandle, Thread};

    /// Sleeps until notified or until the time; false if it was the time.
    pub(crate) fn wait_on<'a, T>(
        condition: &Condvar,
        mut guard: MutexGuard<'a, T>,
        until: Option<Instant>,
    ) -> (MutexGuard<'a, T>, bool) {
        let in_time = match until {
            None => {
                condition.wait(&mut guard);
                true
            }
            Some(until) => !condition.wait_until(&mut guard, until).timed_out(),
        };
        (guard, in_time)
    }

    /// Waits for the lock, or until the time.
    pub(crate) fn lock_until<T>(mutex: &Mutex<T>, until: Option<Instant>) -> Option<MutexGuard<'_, T>> {
        match until {
            None => Some(mutex.lock()),
            Some(until) => mutex.try_lock_until(until),
        }
    }

    /// Parks the thread until it is unparked, or for so long.
    pub(crate) fn park(ns: Option<u64>) {
        match ns {
            None => thread::park(),
            Some(ns) => thread::park_timeout(std::time::Duration::from_nanos(ns)),
        }
    }

    pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        thread::Builder::new().name(name.to_owned()).spawn(work)
    }

    /// Lets another thread go first that is about to finish something short.
    pub(crate) fn back_off(turn: u32) {
        if turn < 64 { std::hint::spin_loop() } else { thread::yield_now() }
    }

    /// A monotonic clock, in nanoseconds since an unknown moment. `Instant` reads the same one, at more cost; rustix's way
    /// around the C library does not run under valgrind.
    #[allow(unsafe_code)]
    pub(crate) fn monotonic_ns() -> u64 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it is given a valid place; it does not fail for a clock that every Linux has.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
    }
}

#[cfg(feature = "model")]
mod primitives {
    use std::collections::VecDeque;
    use std::time::Instant;

    pub(crate) use shuttle::sync::MutexGuard;
    pub(crate) use shuttle::sync::atomic;
    pub(crate) use shuttle::thread::{self, JoinHandle, Thread};

    /// As parking_lot's.
    #[derive(Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    #[derive(Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// Times do not come in a model: who waits for ever is found.
    pub(crate) fn wait_on<'a, T>(
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        _: Option<Instant>,
    ) -> (MutexGuard<'a, T>, bool) {
        (condition.0.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner), true)
    }

    /// Times do not come in a model.
    pub(crate) fn lock_until<T>(mutex: &Mutex<T>, _: Option<Instant>) -> Option<MutexGuard<'_, T>> {
        Some(mutex.lock())
    }

    /// A timed one may end at any time.
    pub(crate) fn park(ns: Option<u64>) {
        match ns {
            None => thread::park(),
            Some(_) => thread::yield_now(),
        }
    }

    pub(crate) fn spawn(_: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        Ok(thread::spawn(work))
    }

    pub(crate) fn back_off(_: u32) {
        thread::yield_now();
    }

    /// Time passes by being asked for.
    pub(crate) fn monotonic_ns() -> u64 {
        static TICKS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        TICKS.fetch_add(20_000, std::sync::atomic::Ordering::Relaxed)
    }

    /// A queue whose operations are atomic; what crossbeam's promises.
    pub(crate) struct ArrayQueue<T> {
        items: Mutex<VecDeque<T>>,
        capacity: usize,
    }

    impl<T> ArrayQueue<T> {
        pub(crate) fn new(capacity: usize) -> ArrayQueue<T> {
            ArrayQueue { items: Mutex::new(VecDeque::new()), capacity }
        }

        pub(crate) fn push(&self, item: T) -> Result<(), T> {
            let mut items = self.items.lock();
            if items.len() == self.capacity {
                return Err(item);
            }
            items.push_back(item);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.items.lock().pop_front()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.items.lock().is_empty()
        }

        pub(crate) fn len(&self) -> usize {
            self.items.lock().len()
        }
    }
}

pub(crate) use primitives::*;

/// Something that one thread at a time has, by a protocol elsewhere (`token.rs`): no lock of its own. Builds with debug
/// assertions, and models, check that the protocol keeps its word.
pub(crate) struct Held<T> {
    value: std::cell::UnsafeCell<T>,
    #[cfg(any(feature = "model", debug_assertions))]
    check: Mutex<()>,
}

// SAFETY: who calls `with` promises that no other thread does meanwhile.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for Held<T> {}

impl<T> Held<T> {
    pub(crate) fn new(value: T) -> Held<T> {
        Held {
            value: std::cell::UnsafeCell::new(value),
            #[cfg(any(feature = "model", debug_assertions))]
            check: Mutex::new(()),
        }
    }

    /// # Safety
    /// Nobody else, on this thread or another, is in here before the call returns, and whoever was has seen to it that this
    /// thread sees what it did.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(any(feature = "model", debug_assertions))]
        let _alone = self.check.try_lock().expect("the holder is alone");
        // SAFETY: exclusive, as promised by the caller.
        work(unsafe { &mut *self.value.get() })
    }
}

/// A variable of each thread, of the model's threads in a model.
macro_rules! thread_cell {
    ($(#[$doc:meta])* static $name:ident: $type:ty = $init:expr;) => {
        #[cfg(not(feature = "model"))]
        std::thread_local! {
            $(#[$doc])*
            static $name: $type = const { $init };
        }
        #[cfg(feature = "model")]
        shuttle::thread_local! {
            $(#[$doc])*
            static $name: $type = $init;
        }
    };
}
pub(crate) use thread_cell;

/// Faults that the checker must see: tests of the model switch one on, to show that they can fail. Without the feature
/// `model` none exists.
#[cfg(feature = "model")]
pub mod sabotage {
    use std::sync::atomic::{AtomicU8, Ordering};

    /// A protocol broken on purpose.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(u8)]
    pub enum Fault {
        /// None.
        None,
        /// The holder lets the engine go without looking whether work came meanwhile.
        TokenForgetsWork,
        /// A gate's change wakes nobody.
        GateWakesNobody,
        /// A waiter at a gate does not look once more before it sleeps.
        GateSleepsUnchecked,
        /// A cancellation that is too late is answered as if it had been in time.
        CancelAlwaysSucceeds,
        /// The end, or a client's leaving, does not wait for what others are about to tell.
        LeavesEarly,
        /// Pieces of one operation go to the engines without the others being kept out.
        PiecesUnordered,
        /// A request that found no room in the engine is not looked at again.
        StalledForgotten,
        /// A serving thread that waits in a call of a host serves nobody.
        WaiterServesNobody,
        /// The bypass does not look whether an engine has something.
        BypassUnchecked,
    }

    static FAULT: AtomicU8 = AtomicU8::new(0);

    /// Breaks this, and nothing else, from now on.
    pub fn set(fault: Fault) {
        FAULT.store(fault as u8, Ordering::SeqCst);
    }

    pub(crate) fn is(fault: Fault) -> bool {
        FAULT.load(Ordering::SeqCst) == fault as u8
    }
}

/// True if this protocol is broken on purpose just now.
macro_rules! sabotaged {
    ($fault:ident) => {{
        #[cfg(feature = "model")]
        let broken = crate::sync::sabotage::is(crate::sync::sabotage::Fault::$fault);
        #[cfg(not(feature = "model"))]
        let broken = false;
        broken
    }};
}
pub(crate) use sabotaged;
