//! Windows that show a part of a workload only.
//!
//! Who anticipates serves a stream for a quarter of a second and then those who read here and there, or in many files: a window sees
//! one or the other, and neither says what the arm makes of both. They are put together with the next window that shows all.

use super::Load;

/// Time for which windows may show a part, in quarters of a second, and the same in seconds for windows that are longer: who has a slice of
/// time has a quarter of a second, and sometimes two or three one after the other.
const SLICES: u32 = 4;
const SLICES_S: f64 = 1.0;

/// Those since a window that showed all of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    /// Without a break between them.
    windows: u32,
    load: Load,
    /// All, and how long they were together, in seconds.
    all: u32,
    all_s: f64,
}

impl Parts {
    /// Takes one, of which so many are a quarter of a second and which are so long in nanoseconds, unless there are too many: then
    /// that is how the workload looks now.
    pub(super) fn add(&mut self, load: &Load, quarter: u32, window_ns: u64) -> bool {
        if load.start.since(self.load.end) > window_ns {
            self.pause();
        }
        let is_one = self.all < SLICES * quarter && self.all_s < SLICES_S;
        if is_one {
            self.push(load);
        }
        is_one
    }

    /// Takes one, however many there are.
    pub(super) fn push(&mut self, load: &Load) {
        self.windows += 1;
        self.load.append(load);
        self.all += 1;
        self.all_s += load.seconds();
    }

    /// A break: what comes is not put together with these.
    pub(super) fn pause(&mut self) {
        (self.windows, self.load) = (0, Load::default());
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

#[cfg(test)]
mod tests {
    use sluice_core::{Time, WindowFeatures};

    use super::*;

    #[test]
    fn what_shows_a_part_for_long_is_all_that_there_is_whatever_comes_between() {
        const WINDOW_NS: u64 = 250_000_000;
        let load = |at: u64| {
            let (start, end) = (Time(at * WINDOW_NS), Time((at + 1) * WINDOW_NS));
            Load::of(&WindowFeatures { start, end, ..WindowFeatures::default() })
        };
        for gap in [1, 8] {
            let mut parts = Parts::default();
            let mut add = |at: u64| parts.add(&load(at * gap), 1, WINDOW_NS);
            assert_eq!([0, 1, 2, 3, 4, 5].map(&mut add), [true, true, true, true, false, false], "gap {gap}");
            let (_, windows) = parts.take_with(&load(6 * gap));
            assert_eq!(windows, if gap == 1 { 5 } else { 1 }, "what was before a break is not in it");
            assert!(parts.add(&load(7 * gap), 1, WINDOW_NS), "all of it was shown since");
        }
    }
}
