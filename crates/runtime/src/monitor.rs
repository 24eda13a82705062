//! Somebody who follows what an engine does, for a while.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sluice_core::{Request, Time};

/// Told of what an engine does, by the thread that drives it, which waits for it: its methods must be fast and wait for nobody.
/// One that panics is told no more. Unlike an [`Observer`](crate::Observer), it hears of what happens when it happens, of
/// dispatches and completions too, and not of requests that go by the engine.
pub trait Monitor: Any + Send {
    /// It follows an engine from now on, which has so many requests queued, and so many with the executor. Of one that has followed
    /// it before some may have ended unheard.
    fn begins(&mut self, now: Time, queued: u32, in_flight: u32) {
        let _ = (now, queued, in_flight);
    }

    /// The engine has a new request.
    fn arrived(&mut self, now: Time, request: &Request);

    /// So many requests were given to the executor, in a batch.
    fn dispatched(&mut self, now: Time, requests: u32);

    /// A request has ended, or was cancelled.
    fn completed(&mut self, now: Time, request: &Request);
}

/// Tells the monitor, if there is one.
#[inline]
pub(crate) fn tell(monitor: &mut Option<Box<dyn Monitor>>, what: impl FnOnce(&mut dyn Monitor)) {
    if let Some(listener) = monitor
        && catch_unwind(AssertUnwindSafe(|| what(&mut **listener))).is_err()
    {
        tracing::error!("a monitor panicked; it hears of nothing any more");
        // What it holds may be as broken as it is.
        std::mem::forget(monitor.take());
    }
}
