//! Where the drivers' time comes from.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluice_core::Time;

/// What the engine's times are counted from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClockKind {
    /// The moment the runtime started.
    #[default]
    Start,
    /// 1970, as the system clock told at the start. Runtimes in different processes, on machines whose clocks agree,
    /// then agree about the time; policies that open time windows together (`twins`) need that.
    Realtime,
}

/// A monotonic clock in nanoseconds. It never steps, even if the system clock is set later.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What is taken from the machine's monotonic clock, modulo 2^64.
    minus_ns: u64,
}

impl Clock {
    /// Starts a clock.
    #[must_use]
    pub fn new(kind: ClockKind) -> Clock {
        let offset_ns = match kind {
            ClockKind::Start => 0,
            ClockKind::Realtime => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos),
        };
        Clock { minus_ns: crate::sync::monotonic_ns().wrapping_sub(offset_ns) }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(crate::sync::monotonic_ns().wrapping_sub(self.minus_ns))
    }
}

/// Saturates after 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
