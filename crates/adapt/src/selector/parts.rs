//! Windows that show a part of a workload only.
//!
//! Who anticipates serves a stream for a quarter of a second and then those who read here and there, or in many files: a window sees
//! one or the other, and neither says what the arm makes of both. They are put together with the next window that shows all.

use super::Load;

/// Time for which windows may show a part, in quarters of a second, and the same in seconds for windows that are longer: who has a slice of
/// time has a quarter of a second, and sometimes two or three one after the other.
const SLICES: u32 = 4;
const SLICES_S: f64 = 1.0;

/// Those since a window that showed all of it, without a break between them.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    windows: u32,
    load: Load,
}

impl Parts {
    /// Takes one, of which so many are a quarter of a second and which are so long in nanoseconds, unless there are too many: then
    /// that is how the workload looks now.
    pub(super) fn add(&mut self, load: &Load, quarter: u32, window_ns: u64) -> bool {
        if load.start.since(self.load.end) > window_ns {
            self.clear();
        }
        let is_one = self.windows < SLICES * quarter && self.load.seconds() < SLICES_S;
        if is_one {
            self.push(load);
        }
        is_one
    }

    /// Takes one, however many there are.
    pub(super) fn push(&mut self, load: &Load) {
        self.windows += 1;
        self.load.append(load);
    }

    /// Those that there are and a window that shows all, as one, and how many windows that is.
    pub(super) fn take_with(&mut self, load: &Load) -> (Load, u32) {
        let mut parts = std::mem::take(self);
        parts.push(load);
        (parts.load, parts.windows)
    }

    pub(super) fn clear(&mut self) {
        *self = Parts::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.windows == 0
    }
}
