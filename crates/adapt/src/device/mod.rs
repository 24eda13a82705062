//! Getting to know a device by what it serves: what a batch costs that continues the one before, what one costs that does not, and
//! whether there is an arm to move between the two.
//!
//! A [`Learner`] is told of every [`ServedBatch`] of an engine, in the order in which they ended, and gives an [`Estimate`]: the
//! figures of a SeRRa profile (F. Z. Boito, thesis, 2015, chapter 5: sequential and random access times by size, their ratio) as far
//! as the load has shown them, a [`Device`], how sure that is, and what is missing. No clock, no thread, no I/O; the same batches
//! lead to the same estimate. A batch costs O(1) and nothing is allocated for it, but for a target that was never seen.
//!
//! # How
//! * *What a batch took* lies between two bounds. It took no longer than from its dispatch to its end, and no less than from the end of the
//!   batch before it, if that is later: until then the device may have been at that one. Alone at the device both are the same.
//!   It is *slow* if it took at least 1 ms more, by the lower bound, than one that continues another, and *fast* if less, by the upper;
//!   else it says nothing.
//! * *An arm* is there if batches elsewhere are slow although the same size in sequence is not.
//! * *None* is there only if reads are fast in places that no cache can have: in a region of 2 MiB that was not touched since the
//!   learner began, nor the one before it, and at least 16 MiB away from the last one. Writes, which caches absorb, say nothing of this.
//! * *Memory*: with a page cache below ([`Learner::new`]) what is answered as fast as memory copies says nothing at all, and neither do
//!   writes.
//! * Evidence counts for some 256 batches of a kind, so that what is decided changes when the device does.

mod estimate;
mod moments;
mod state;
mod touched;

use serde::{Deserialize, Serialize};
use sluice_core::{FileId, Op, ServedBatch, TargetId, Time};

use crate::selector::Device;

pub use estimate::{Estimate, Point, SURE};
pub use state::{BYTES_MAX, StateError};

use moments::{Evidence, Moments};
use touched::Touched;

/// What makes a difference of an arm, in nanoseconds: what moves faster has none.
pub const ARM_NS: f64 = 1e6;
/// Answers of memory take at most so long, and one nanosecond for so many bytes.
const MEMORY_NS: u64 = 30_000;
const MEMORY_BYTES_PER_NS: u64 = 4;
/// A batch that begins so far from the end of the one before is elsewhere; between this and 0 it is neither here nor there.
const FAR: u64 = 2 << 20;
/// No device reads so far ahead, or has so much on a track.
const BEYOND: u64 = 16 << 20;
/// A device that turns has turned on when a batch comes later than this after the end of the one before it: only where nothing better is
/// known it says what continuing costs. What comes even later does not.
const GAP_NS: u64 = 500_000;
const LATE_NS: u64 = 10_000_000;
/// Batches that continue each other before one counts as sequential: the first ones find the arms of an array elsewhere.
const RUN_MIN: u32 = 3;
/// A slow device's transfer, in nanoseconds for a byte, while its own is not known.
const SLOWLY_NS: f64 = 20.0;
/// Classes of sizes: up to 4 KiB, 8 KiB, ..., 4 MiB, more.
const SIZES: usize = 12;
/// Batches of a class by which it is known.
const KNOWN: f64 = 8.0;
/// It is decided again after so many batches.
const DECIDE_EVERY: u32 = 16;
/// What is longer is no batch.
const LEN_MAX: u64 = 1 << 40;
/// Batches that each figure of a profile counts for.
const PROFILED: u32 = 64;
/// Targets that are told apart; those beyond are not learned from.
const LINES_MAX: usize = 256;

fn size_class(len: u64) -> usize {
    (len.max(1).next_power_of_two().trailing_zeros().saturating_sub(12) as usize).min(SIZES - 1)
}

/// What batches of an operation and a size take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    /// Those that continue the one before, and those elsewhere; alone at the device.
    sequential: Moments,
    random: Moments,
    /// The same while there were others, the lower bounds; or where one came late.
    sequential_beside: Moments,
    random_beside: Moments,
}

/// What was learned. Without what lasts only while the learner does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Learned {
    decided: Device,
    /// By operation and size.
    cells: [[Cell; SIZES]; 2],
    /// Batches elsewhere, by whether a cache could have had them.
    fresh: Evidence,
    cached: Evidence,
    /// Reads where `fresh` would look, which memory had all the same (`slow`) or not: where it has most, one that took long may have been
    /// memory's, too, and waited for a processor.
    warm: Evidence,
    /// Batches seen, and of these answered by memory.
    batches: u64,
    memory: u64,
}

/// What was served last on a target of an engine.
#[derive(Clone, Copy, Debug)]
struct Line {
    engine: u32,
    target: TargetId,
    /// Grows when batches of the engine are missing: what ended before is not what comes before the next one.
    epoch: u32,
    op: Op,
    file: FileId,
    end_offset: u64,
    end: Time,
    /// Batches that continued each other up to this one.
    run: u32,
}

/// Learns what a device is like; see the [module](self).
#[derive(Clone, Debug)]
pub struct Learner {
    page_cache: bool,
    learned: Learned,
    lines: Vec<Line>,
    /// By engine: number of its last batch, and its epoch.
    engines: Vec<(u64, u32)>,
    touched: Touched,
    /// Batches learned from since it was last decided what the device is.
    undecided: u32,
    unsaved: bool,
}

impl Learner {
    /// Knows nothing. `page_cache`: memory may answer instead of the device, and take what is written.
    #[must_use]
    pub fn new(page_cache: bool) -> Learner {
        Learner {
            page_cache,
            learned: Learned::default(),
            lines: Vec::new(),
            engines: Vec::new(),
            touched: Touched::new(),
            undecided: 0,
            unsaved: false,
        }
    }

    /// Knows what a profiler has measured: for each operation and size in bytes, nanoseconds in sequence and at random.
    #[must_use]
    pub fn profiled(points: impl IntoIterator<Item = (Op, u64, f64, f64)>) -> Learner {
        let mut learner = Learner::new(false);
        for (op, len, sequential_ns, random_ns) in points {
            let cell = &mut learner.learned.cells[op.index()][size_class(len)];
            for _ in 0..PROFILED {
                cell.sequential.add(sequential_ns as u64, len);
                cell.random.add(random_ns as u64, len);
                if op == Op::Read {
                    learner.learned.fresh.add(random_ns - sequential_ns >= ARM_NS);
                }
            }
        }
        learner.decide();
        learner
    }

    /// A batch has ended at an engine, of which there are at most 256; others are not learned from. In the order in which they did.
    pub fn served(&mut self, engine: u32, batch: &ServedBatch) {
        let Some(epoch) = self.epoch(engine, batch.number).filter(|_| (1..=LEN_MAX).contains(&batch.len)) else {
            return;
        };
        let now = Line {
            engine,
            target: batch.target,
            epoch,
            op: batch.op,
            file: batch.file,
            end_offset: batch.offset.saturating_add(batch.len),
            end: batch.end,
            run: 0,
        };
        let Some(at) = self.line(&now) else { return };
        self.learned.batches = self.learned.batches.saturating_add(1);
        let latency = batch.end.since(batch.start);
        let from_memory = latency <= MEMORY_NS + batch.len / MEMORY_BYTES_PER_NS;
        let is_fresh = self.touched.is_fresh_and_touch(batch.file, batch.target, batch.offset, batch.len);
        if self.page_cache && (from_memory || batch.op == Op::Write) {
            // The device has not moved; what comes before the next one is what came before this one.
            self.learned.memory = self.learned.memory.saturating_add(1);
            if is_fresh && batch.op == Op::Read {
                self.learned.warm.add(true);
            }
            return;
        }
        let before = std::mem::replace(&mut self.lines[at], now);
        if before.epoch == epoch {
            self.lines[at].run = self.learn(batch, &before, latency, is_fresh);
        }
    }

    /// The epoch of an engine from this batch on; none if there are too many engines.
    fn epoch(&mut self, engine: u32, number: u64) -> Option<u32> {
        let at = engine as usize;
        if at >= LINES_MAX {
            return None;
        }
        if self.engines.len() <= at {
            self.engines.resize(at + 1, (u64::MAX, 0));
        }
        let (last, epoch) = &mut self.engines[at];
        if last.wrapping_add(1) != number {
            *epoch = epoch.wrapping_add(1);
        }
        *last = number;
        Some(*epoch)
    }

    /// The line of a target; a new one is one that nothing continues. None if there are too many.
    fn line(&mut self, now: &Line) -> Option<usize> {
        let known = self.lines.iter().position(|line| (line.engine, line.target) == (now.engine, now.target));
        known.or_else(|| {
            (self.lines.len() < LINES_MAX).then(|| {
                self.lines.push(Line { epoch: now.epoch.wrapping_sub(1), ..*now });
                self.lines.len() - 1
            })
        })
    }

    /// Learns from a batch; how many have continued each other up to it.
    fn learn(&mut self, batch: &ServedBatch, before: &Line, latency: u64, is_fresh: bool) -> u32 {
        let at_least = batch.end.since(batch.start.max(before.end));
        let alone = batch.beside_at_start == 0 && batch.beside_at_end == 0;
        let size = size_class(batch.len);
        let cell = &mut self.learned.cells[batch.op.index()][size];
        let same_file = before.file == batch.file;
        let distance = before.end_offset.abs_diff(batch.offset);
        if same_file && distance == 0 && before.op == batch.op {
            let run = before.run.saturating_add(1);
            let gap_ns = batch.start.since(before.end);
            if gap_ns <= LATE_NS && run >= RUN_MIN {
                let is_exact = alone && gap_ns <= GAP_NS;
                let moments = if is_exact { &mut cell.sequential } else { &mut cell.sequential_beside };
                moments.add(at_least, batch.len);
                self.note();
            }
            return run;
        }
        if same_file && distance < FAR {
            return 0;
        }
        let moments = if alone { &mut cell.random } else { &mut cell.random_beside };
        moments.add(at_least, batch.len);
        self.note();
        let Some(is_slow) = self.is_slow(batch, latency, at_least) else { return 0 };
        // So far from its file's beginning it is as far from another file's part, unless that begins just behind it.
        let is_beyond = if same_file { distance } else { batch.offset } >= BEYOND;
        match is_fresh && is_beyond && batch.op == Op::Read {
            true => {
                self.learned.fresh.add(is_slow);
                self.learned.warm.add(false);
            }
            false => {
                self.learned.cached.add(is_slow);
                if is_slow {
                    // What was fast there may not be any more; what is fast in a cache says nothing.
                    self.learned.fresh.contradict();
                }
            }
        }
        0
    }

    /// Something was learned; now and then it is looked at what that means.
    fn note(&mut self) {
        self.unsaved = true;
        self.undecided += 1;
        if self.undecided >= DECIDE_EVERY {
            self.undecided = 0;
            self.decide();
        }
    }

    /// Whether the device had to move for a batch, if that is certain.
    fn is_slow(&self, batch: &ServedBatch, latency: u64, at_least: u64) -> Option<bool> {
        let slowly = batch.len as f64 * SLOWLY_NS;
        let sequential = self.learned.sequential_ns(batch.op, batch.len).unwrap_or(slowly);
        if at_least as f64 >= sequential + ARM_NS {
            return Some(true);
        }
        // What is slow in sequence, too, tells nothing.
        ((latency as f64) < sequential.min(slowly) + ARM_NS).then_some(false)
    }

    /// Goes over to what is sure, and away from what is not any more.
    fn decide(&mut self) {
        let (device, confidence) = self.learned.verdict();
        if device != self.learned.decided && device != Device::Unknown && confidence >= SURE {
            self.learned.decided = device;
        }
    }

    /// What the device is, as far as that is sure; stays what it was until something else is.
    #[must_use]
    pub fn device(&self) -> Device {
        self.learned.decided
    }

    /// Whether anything was learned that nobody has [taken](Learner::take_unsaved).
    #[must_use]
    pub fn has_unsaved(&self) -> bool {
        self.unsaved
    }

    /// Whether anything was learned since this was asked last.
    pub fn take_unsaved(&mut self) -> bool {
        std::mem::take(&mut self.unsaved)
    }
}

#[cfg(test)]
mod tests;
