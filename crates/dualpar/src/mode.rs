//! Execution mode control (DualPar, section 3.3.2): whether a file's requests are data-driven.
//!
//! From the dissertation: data-driven if the I/O ratio is above 80 % and the mean seek distance of the servers above 3 times
//! the mean distance between sorted requests; off if more than 20 % of what was prefetched goes unused. Deviations:
//!
//! * The seek distance is estimated from the order in which a node's processes issue their requests; no daemon on the servers.
//! * Tiny requests count too: if a batch would have 3 times fewer. In lockstep, processes with interleaved requests are next to
//!   each other all the time, and still slow, which the distances cannot say (on the servers, read-ahead and others say it).
//! * The mode must prove itself: a first cycle is small, and cycles that take longer than plain calls would have end the mode.
//!   What failed cycles of all files cost stays below [`Settings::loss`] of the run time; the dissertation has -1.4 % to -7.2 %.
//! * Hysteresis: two slots to enter, lower thresholds to leave, twice as long a pause after each failure, and after several in
//!   a row an end for the file.

use crate::plan::{CHUNK, Range, merge};

/// Thresholds and limits. Times are nanoseconds, sizes bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Share of the time that goes to I/O, above which the mode is entered.
    pub io_ratio: f64,
    /// Below this estimated share it is left.
    pub leave_ratio: f64,
    /// Seek distance over request distance (or requests over requests of a batch), above which it is entered.
    pub improvement: f64,
    /// Share of unused prefetched bytes, above which it is left.
    pub unused: f64,
    /// Prefetched bytes of a process in a cycle, when the mode has proven itself.
    pub quota: u64,
    /// The same in the first cycle.
    pub first_quota: u64,
    /// Share of the run time that failed cycles may cost.
    pub loss: f64,
    /// Pause after the first failure; after each further one in a row twice as long, up to 64 times.
    pub pause: u64,
    /// In the mode from the start, whatever the ratios are; mis-prefetching and losses still end it.
    pub forced: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            io_ratio: 0.8,
            leave_ratio: 0.6,
            improvement: 3.0,
            unused: 0.2,
            quota: 1 << 20,
            first_quota: 64 << 10,
            loss: 0.01,
            pause: 1_000_000_000,
            forced: false,
        }
    }
}

/// Requests of a slot that are looked at for their distances; more are counted only.
const SAMPLES: usize = 1024;
/// A slot ends after this time, ...
const SLOT: u64 = 50_000_000;
/// ... if it has this many requests.
const SLOT_REQUESTS: usize = 8;
/// Requests up to this mean size are tiny.
const TINY: u64 = CHUNK / 4;
/// What a first cycle may cost, ns: time of a ghost, and of waiting for neighbours.
const FIRST_TRIAL: f64 = 15_000_000.0;
/// Slots or cycles in a row that must agree.
const AGREE: u32 = 2;
/// Failures in a row after which a file's mode is not entered again.
const GIVE_UP: u32 = 4;

/// What the failed cycles of a process may cost and have cost, of whichever file. Times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Budget {
    /// When the process began, on the clock of the calls below.
    pub started: u64,
    /// What failed cycles have cost, less what others have gained since.
    pub lost: f64,
    /// What a copy of the process costs beside what is measured of a first cycle: memory that it has.
    pub copy: f64,
}

/// What a slot of requests has seen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slot {
    /// Time from the slot's first request to its end, ns.
    pub elapsed: u64,
    /// What of it was spent in I/O calls, ns.
    pub io: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Mean distance from where the request before began, in order of arrival, bytes.
    pub seek_distance: f64,
    /// The same in order of offset.
    pub request_distance: f64,
    /// Requests, over those of a batch of them with holes filled.
    pub merged: f64,
    /// Mean size of a request, bytes.
    pub size: f64,
}

/// Collects a slot.
#[derive(Debug, Default)]
pub struct SlotBuilder {
    since: Option<u64>,
    io: u64,
    bytes: u64,
    count: u64,
    seek: f64,
    requests: Vec<Range>,
}

impl SlotBuilder {
    /// A request for `range` that was under way from `start` to `end` (ns), and at `distance` bytes from the one that came
    /// before it on this node. Gives the slot if it ends with that.
    pub fn add(&mut self, range: Range, distance: u64, start: u64, end: u64) -> Option<Slot> {
        let since = *self.since.get_or_insert(start);
        self.io += end.saturating_sub(start);
        self.bytes += range.len;
        self.count += 1;
        if self.requests.len() < SAMPLES {
            self.seek += distance as f64;
            self.requests.push(range);
        }
        let elapsed = end.saturating_sub(since);
        if elapsed < SLOT || self.requests.len() < SLOT_REQUESTS {
            return None;
        }
        let done = std::mem::take(self);
        // The next one begins where this one ends, so that no computation is left out.
        self.since = Some(end);
        Some(done.close(elapsed))
    }

    fn close(mut self, elapsed: u64) -> Slot {
        let count = self.requests.len() as f64;
        self.requests.sort_unstable();
        let sorted: u64 = self.requests.windows(2).map(|pair| pair[1].offset - pair[0].offset).sum();
        let runs = merge(self.requests, CHUNK).len().max(1) as f64;
        Slot {
            elapsed,
            io: self.io.min(elapsed),
            bytes: self.bytes,
            seek_distance: self.seek / count,
            request_distance: sorted as f64 / (count - 1.0).max(1.0),
            merged: count / runs,
            size: self.bytes as f64 / self.count as f64,
        }
    }
}

/// What came of a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cycle {
    /// Bytes prefetched (or collected to be written), and what of them was used.
    pub prefetched: u64,
    /// At most `prefetched`.
    pub used: u64,
    /// Time of ghost, waiting, batch, and of copying what was used, ns.
    pub cost: u64,
    /// Time between the calls that it served, ns.
    pub computing: u64,
}

/// Decides for one file of one process. O(1) for each slot and cycle.
#[derive(Debug)]
pub struct ModeControl {
    settings: Settings,
    on: bool,
    proven: bool,
    agreed: u32,
    losing: u32,
    failures: u32,
    not_before: u64,
    /// Expected cost of a failed cycle, ns.
    trial: f64,
    quota: u64,
    /// Of plain calls, bytes a nanosecond.
    rate: Option<f64>,
}

impl ModeControl {
    /// Of a file that was just opened.
    #[must_use]
    pub fn new(settings: Settings) -> ModeControl {
        ModeControl {
            settings,
            on: settings.forced,
            proven: false,
            agreed: 0,
            losing: 0,
            failures: 0,
            not_before: 0,
            trial: FIRST_TRIAL,
            quota: settings.first_quota.min(settings.quota),
            rate: None,
        }
    }

    /// Whether a cycle may begin at `now` (ns of any clock that never goes back).
    #[must_use]
    pub fn may_start(&self, now: u64, budget: &Budget) -> bool {
        self.on && now >= self.not_before && (self.proven || self.affordable(now, budget))
    }

    fn affordable(&self, now: u64, budget: &Budget) -> bool {
        let elapsed = now.saturating_sub(budget.started) as f64;
        let risk = budget.lost + self.trial + budget.copy;
        // The very first one of a mode that was asked for costs little and has to be somewhere.
        (self.settings.forced && self.failures == 0) || risk <= elapsed * self.settings.loss
    }

    /// Bytes that the next cycle may prefetch.
    #[must_use]
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// Bytes that a cycle which begins with a call of `bytes` may prefetch; none if it would serve little beside that call.
    #[must_use]
    pub fn quota_for(&self, bytes: u64) -> Option<u64> {
        let quota = self.quota.max(bytes.saturating_mul(4)).min(self.settings.quota);
        (bytes <= quota / 2).then_some(quota)
    }

    /// Whether calls are data-driven now (may still be pausing).
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// A slot of plain calls ended at `now`.
    pub fn slot(&mut self, slot: &Slot, now: u64, budget: &Budget) {
        if slot.io > 0 {
            let rate = slot.bytes as f64 / slot.io as f64;
            self.rate = Some(self.rate.map_or(rate, |old| 0.5 * (old + rate)));
        }
        if self.on || self.failures >= GIVE_UP {
            return;
        }
        self.agreed = if self.wanted(slot) { self.agreed + 1 } else { 0 };
        if self.agreed >= AGREE && now >= self.not_before && self.affordable(now, budget) {
            self.on = true;
            self.proven = false;
        }
    }

    fn wanted(&self, slot: &Slot) -> bool {
        let busy = slot.io as f64 > self.settings.io_ratio * slot.elapsed as f64;
        let scattered = slot.seek_distance > self.settings.improvement * slot.request_distance;
        let tiny = slot.size <= TINY as f64 && slot.merged > self.settings.improvement;
        busy && (scattered || tiny)
    }

    /// A cycle ended at `now`.
    pub fn cycle(&mut self, cycle: &Cycle, now: u64, budget: &mut Budget) {
        let used = cycle.used.min(cycle.prefetched) as f64;
        // Nothing prefetched is nothing gained: as bad as nothing used.
        let mispredicted = used < (1.0 - self.settings.unused) * (cycle.prefetched as f64).max(1.0);
        let plain = self.rate.map(|rate| used / rate);
        let gain =
            plain.map_or(if mispredicted { -(cycle.cost as f64) } else { 0.0 }, |plain| plain - cycle.cost as f64);
        budget.lost = (budget.lost - gain).max(0.0);
        self.losing = if gain < 0.0 { self.losing + 1 } else { 0 };
        let ratio = plain.map(|plain| plain / (plain + cycle.computing as f64).max(1.0));
        if mispredicted {
            self.fail(cycle, now);
        } else if self.settings.forced {
            self.prove();
        } else if self.losing >= AGREE {
            self.fail(cycle, now);
        } else if ratio.is_some_and(|ratio| ratio < self.settings.leave_ratio) {
            self.on = false;
            self.agreed = 0;
        } else if gain >= 0.0 {
            self.prove();
        }
    }

    fn prove(&mut self) {
        self.proven = true;
        self.failures = 0;
        self.quota = (self.quota * 2).min(self.settings.quota);
    }

    fn fail(&mut self, cycle: &Cycle, now: u64) {
        self.trial = cycle.cost as f64;
        self.proven = false;
        self.on = self.settings.forced;
        self.agreed = 0;
        self.losing = 0;
        self.not_before = now.saturating_add(self.settings.pause << self.failures.min(6));
        self.failures += 1;
        self.quota = self.settings.first_quota.min(self.settings.quota);
    }
}
