//! What was learned, as others use it.

use serde::{Deserialize, Serialize};
use sluice_core::Op;

use super::moments::{Evidence, Moments};
use super::{ARM_NS, Cell, KNOWN, Learned, Learner, SIZES, size_class};
use crate::selector::Device;

/// Confidence from which on a device is taken for what it seems to be.
pub const SURE: f64 = 0.9;
/// Below this size requests say little of throughput.
const LARGE: f64 = 65_536.0;
/// Batches elsewhere by which a device is judged, and by which one without an arm is.
const ELSEWHERE: f64 = 16.0;
/// Reads by which one without is sure.
const FLASH: f64 = 36.0;
/// Without sequential batches: how many others there must be, what moving an arm takes at least, in nanoseconds, and how far, over their
/// mean, the times of a device that turns are apart.
const ALONE: f64 = 64.0;
const TURNING_NS: f64 = 3e6;
const TURNING_SPREAD: std::ops::Range<f64> = 0.12..0.9;

/// What batches of an operation and a size take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// They are reads; else writes.
    pub read: bool,
    /// Mean size in bytes.
    pub size_bytes: f64,
    /// Nanoseconds of one that continues the one before, if there were enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequential_ns: Option<f64>,
    /// Nanoseconds of one elsewhere, if there were enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_ns: Option<f64>,
    /// The sequential-to-random throughput ratio, if both are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

/// What is known of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// What it is taken for, as far as that was ever sure.
    pub device: Device,
    /// What it seems to be by now; unknown while neither is likelier than not.
    pub seems: Device,
    /// How sure that is, 0 to 1, and of the unknown, the likelier of the two; from [`SURE`] on it is taken for it.
    pub confidence: f64,
    /// Why, or what is missing.
    pub reason: String,
    /// Nanoseconds by which a read elsewhere takes longer than one that continues another; of writes where no reads tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positioning_ns: Option<f64>,
    /// Sequential throughput in bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_s: Option<f64>,
    /// See `read_bytes_per_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes_per_s: Option<f64>,
    /// By operation and size, those that are known.
    pub points: Vec<Point>,
    /// Batches seen.
    pub batches: u64,
    /// Of these, those that memory answered, or may have.
    pub memory: u64,
}

impl Cell {
    /// Better alone than among others.
    fn best(alone: &Moments, beside: &Moments) -> Option<Moments> {
        [alone, beside].into_iter().find(|moments| moments.count >= KNOWN).copied()
    }

    fn sequential(&self) -> Option<Moments> {
        Cell::best(&self.sequential, &self.sequential_beside)
    }

    fn random(&self) -> Option<Moments> {
        Cell::best(&self.random, &self.random_beside)
    }
}

impl Learned {
    /// What one that continues another takes, by its own size, or the next that is known, as if only the transfer counted.
    pub(super) fn sequential_ns(&self, op: Op, len: u64) -> Option<f64> {
        let (cells, size) = (&self.cells[op.index()], size_class(len));
        if let Some(own) = cells[size].sequential() {
            return Some(own.mean_ns);
        }
        let mut near = (1..SIZES).flat_map(|far| [size.checked_sub(far), Some(size + far)]).flatten();
        let known = near.find_map(|at| cells.get(at)?.sequential())?;
        Some(known.mean_ns * len as f64 / known.mean_len.max(1.0))
    }

    /// By how much one elsewhere takes longer, over all sizes that tell, each by its evidence; with the deviation of that.
    fn positioning(&self, op: Op) -> Option<(f64, f64)> {
        let (mut sum, mut weights, mut variance) = (0.0, 0.0, 0.0);
        for cell in &self.cells[op.index()] {
            let Some(random) = cell.random() else { continue };
            let Some(sequential_ns) = self.sequential_ns(op, random.mean_len as u64) else { continue };
            let sequential = cell.sequential().map_or(0.0, |moments| moments.of_mean());
            sum += random.count * (random.mean_ns - sequential_ns);
            variance += random.count.powi(2) * (random.of_mean() + sequential);
            weights += random.count;
        }
        (weights > 0.0).then(|| (sum / weights, variance.sqrt() / weights))
    }

    /// Whether batches elsewhere take times like those of a device that turns: long ones, and no two alike. Several arms at work together
    /// look faster than one.
    fn turns(&self) -> bool {
        let turns = |moments: &Moments, least_ns: f64| {
            let spread = moments.variance.sqrt() / moments.mean_ns.max(1.0);
            moments.count >= ALONE && moments.mean_ns >= least_ns && TURNING_SPREAD.contains(&spread)
        };
        let mut cells = self.cells.iter().flatten();
        cells.any(|cell| turns(&cell.random, TURNING_NS) || turns(&cell.random_beside, ARM_NS))
    }

    /// What tells of an arm: whatever is slow, and what is fast in places that no cache has, or where there are too few of them, anywhere.
    fn evidence(&self) -> Evidence {
        let cached =
            Evidence { fast: if self.fresh.count() >= ELSEWHERE { 0.0 } else { self.cached.fast }, ..self.cached };
        self.fresh.plus(&cached)
    }

    /// What the device seems to be, and how sure that is.
    pub(super) fn verdict(&self) -> (Device, f64) {
        // Between these shares of slow ones nothing is certain.
        let between = |value: f64, least: f64, most: f64| ((value - least) / (most - least)).clamp(0.0, 1.0);
        let evidence = self.evidence();
        let enough = |count: f64| count / (count + 4.0);
        let positioning = self.positioning(Op::Read).or_else(|| self.positioning(Op::Write));
        let moves = match positioning {
            Some((mean, deviation)) => between(mean - 2.0 * deviation, 0.5 * ARM_NS, ARM_NS),
            None => f64::from(self.turns()),
        };
        let disk = enough(evidence.slow) * between(evidence.slow_share(), 0.2, 0.5) * moves;
        let fast = 1.0 - self.fresh.slow_share();
        let others = 1.0 - self.cached.slow_share();
        let cold = 1.0 - self.warm.slow / self.warm.count().max(1.0);
        let flash =
            enough(self.fresh.fast) * between(fast, 0.75, 0.9) * between(others, 0.4, 0.5) * between(cold, 0.5, 0.8);
        match disk.total_cmp(&flash) {
            _ if disk.max(flash) < 0.5 => (Device::Unknown, disk.max(flash)),
            std::cmp::Ordering::Less => (Device::Flash, flash),
            _ => (Device::Disk, disk),
        }
    }

    fn reason(&self, seems: Device, page_cache: bool) -> String {
        let count = |value: f64| format!("{value:.0}");
        let Evidence { slow, .. } = self.evidence();
        match seems {
            Device::Disk => format!(
                "{} of {} batches elsewhere took a millisecond longer than in sequence, or more",
                count(slow),
                count(self.evidence().count())
            ),
            Device::Flash => format!(
                "{} of {} reads in places that no cache can have were as fast as in sequence",
                count(self.fresh.fast),
                count(self.fresh.count())
            ),
            Device::Unknown => self.missing(page_cache),
        }
    }

    /// What would have to be seen.
    fn missing(&self, page_cache: bool) -> String {
        let all = self.fresh.plus(&self.cached);
        let sequential = self.cells.iter().flatten().any(|cell| cell.sequential().is_some());
        if self.batches == 0 {
            "nothing was served yet".to_owned()
        } else if page_cache && self.memory as f64 > 0.9 * self.batches as f64 {
            let percent = 100.0 * self.memory as f64 / self.batches as f64;
            format!("{percent:.0} % of {} batches went to memory, not to the device", self.batches)
        } else if all.count() < ELSEWHERE {
            format!("{:.0} batches elsewhere so far, {ELSEWHERE:.0} are needed", all.count())
        } else if all.slow_share() < 0.2 && self.fresh.fast < FLASH {
            format!(
                "{:.0} reads in places that no cache can have so far, {FLASH:.0} are needed: what is fast may be a cache",
                self.fresh.count()
            )
        } else if all.slow_share() >= 0.2 && !sequential {
            format!("{:.0} batches elsewhere were slow, but none continued another", all.slow)
        } else {
            let evidence = self.evidence();
            format!(
                "it contradicts itself: {:.0} batches elsewhere were slow, {:.0} fast",
                evidence.slow, evidence.fast
            )
        }
    }

    fn bytes_per_s(&self, op: Op) -> Option<f64> {
        let known = || self.cells[op.index()].iter().filter_map(Cell::sequential);
        let (mut bytes, mut ns) = (0.0, 0.0);
        let any_large = known().any(|moments| moments.mean_len >= LARGE);
        for moments in known().filter(|moments| moments.mean_len >= LARGE || !any_large) {
            bytes += moments.count * moments.mean_len;
            ns += moments.count * moments.mean_ns;
        }
        (ns > 0.0).then(|| bytes * 1e9 / ns)
    }

    fn points(&self) -> Vec<Point> {
        let of = |op: Op| {
            self.cells[op.index()].iter().filter_map(move |cell| {
                let (sequential, random) = (cell.sequential(), cell.random());
                let size_bytes = sequential.or(random)?.mean_len;
                let (sequential_ns, random_ns) = (sequential.map(|m| m.mean_ns), random.map(|m| m.mean_ns));
                let ratio = sequential_ns.zip(random_ns).map(|(sequential, random)| random / sequential.max(1.0));
                Some(Point { read: op == Op::Read, size_bytes, sequential_ns, random_ns, ratio })
            })
        };
        of(Op::Read).chain(of(Op::Write)).collect()
    }
}

impl Learner {
    /// What is known by now. O(sizes).
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let learned = &self.learned;
        let (seems, confidence) = learned.verdict();
        let positioning = learned.positioning(Op::Read).or_else(|| learned.positioning(Op::Write));
        Estimate {
            device: learned.decided,
            seems,
            confidence,
            reason: learned.reason(seems, self.page_cache),
            positioning_ns: positioning.map(|(mean, _)| mean),
            read_bytes_per_s: learned.bytes_per_s(Op::Read),
            write_bytes_per_s: learned.bytes_per_s(Op::Write).filter(|_| !self.page_cache),
            points: learned.points(),
            batches: learned.batches,
            memory: learned.memory,
        }
    }
}
