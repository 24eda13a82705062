//! A token bucket: so much at once, and then one more each while.

use sluice_core::Time;

/// So many at once, and one more each so many nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rate {
    pub(crate) burst: u32,
    pub(crate) spacing_ns: u64,
}

impl Rate {
    fn most_ns(self) -> u64 {
        u64::from(self.burst) * self.spacing_ns
    }
}

/// What is left of a [`Rate`], in nanoseconds of its spacing, and when that was counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    credit_ns: u64,
    counted: Time,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(rate: Rate, now: Time) -> Bucket {
        Bucket { credit_ns: rate.most_ns(), counted: now }
    }

    fn fill(&mut self, rate: Rate, now: Time) {
        self.credit_ns = self.credit_ns.saturating_add(now.since(self.counted)).min(rate.most_ns());
        self.counted = self.counted.max(now);
    }

    /// Takes one, if there is one.
    pub(crate) fn take(&mut self, rate: Rate, now: Time) -> bool {
        self.fill(rate, now);
        let left = self.credit_ns.checked_sub(rate.spacing_ns);
        self.credit_ns = left.unwrap_or(self.credit_ns);
        left.is_some()
    }

    /// As if nothing had ever been taken.
    #[cfg(feature = "coordinator")]
    pub(crate) fn is_full(&mut self, rate: Rate, now: Time) -> bool {
        self.fill(rate, now);
        self.credit_ns == rate.most_ns()
    }
}
