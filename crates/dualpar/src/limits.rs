//! How long a ghost may take, and a process waits for its neighbours: learned from the last time.

/// Of a copy of the process, for each byte of its memory, ns: its tables, and pages that are copied when they change.
pub const COPY: f64 = 0.05;
/// Time of a ghost, ns: bounds, and at first where the mode has to prove itself.
const GHOST: (u64, u64) = (5_000_000, 200_000_000);
const FIRST_GHOST: u64 = 10_000_000;
/// Longest time that a process waits for others, ns: bounds; at first, and at first where the mode has to prove itself.
const PATIENCE: (u64, u64) = (500_000, 100_000_000);
const FIRST_PATIENCE: (u64, u64) = (50_000_000, 5_000_000);

/// Time that the next ghost of a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GhostTime(u64);

impl GhostTime {
    /// At first; `is_forced`: the mode was asked for, and need not prove itself.
    #[must_use]
    pub fn new(is_forced: bool) -> GhostTime {
        GhostTime(if is_forced { GHOST.1 } else { FIRST_GHOST })
    }

    /// Nanoseconds.
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.0
    }

    /// A ghost took so many nanoseconds: as much time as filling the quota took, with some room; more if it `was_late`.
    pub fn ended(&mut self, took: u64, was_late: bool) {
        let wanted = if was_late { self.0 * 2 } else { took.saturating_mul(4) };
        self.0 = wanted.clamp(GHOST.0, GHOST.1);
    }
}

/// How long a process waits for others that come for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience(u64);

impl Patience {
    /// At first; `is_forced` as for [`GhostTime::new`].
    #[must_use]
    pub fn new(is_forced: bool) -> Patience {
        Patience(if is_forced { FIRST_PATIENCE.0 } else { FIRST_PATIENCE.1 })
    }

    /// Nanoseconds.
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.0
    }

    /// It had waited for so many nanoseconds when `others` had come.
    pub fn waited(&mut self, ns: u64, others: usize) {
        if others > 0 {
            self.0 = self.0.max(ns.saturating_mul(4));
        } else if ns >= self.0 {
            self.0 /= 2;
        }
        self.0 = self.0.clamp(PATIENCE.0, PATIENCE.1);
    }
}
