//! What batches cost the device, and how busy it is, as it turns out while running.

use sluice_core::{Op, Time, Work};

use super::TimeToProcess;

/// Share of what was seen that is forgotten with each report: a memory of about 50 of them, half a second of work.
const FORGOTTEN: f64 = 0.02;
/// Weight of the profile among the reports: that of so many.
const PROFILE_WEIGHT: f64 = 4.0;
/// A device that moves bytes so many times as fast as its profile says is another one.
const FASTER: f64 = 2.0;
/// The line through the profile is laid through these sizes.
const SIZES: [u64; 2] = [64 << 10, 128 << 10];

/// Least squares of `busy = batch * batches + byte * bytes` over the recent reports of one operation, beginning with the
/// device's profile.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// Of a batch, in nanoseconds.
    batch: f64,
    /// Of a byte.
    byte: f64,
    /// Sums of squares and products: batches², batches x KiB, KiB², batches x ns, KiB x ns.
    sums: [f64; 5],
}

impl Line {
    fn new(op: Op, ttp: &TimeToProcess) -> Line {
        let [small, large] = SIZES.map(|size| ttp(op, size) as f64);
        let byte = ((large - small) / (SIZES[1] - SIZES[0]) as f64).max(0.0);
        let batch = (small - byte * SIZES[0] as f64).max(0.0);
        let mut line = Line { batch, byte, sums: [0.0; 5] };
        // Two points of the profile keep the solution unique.
        for bytes in [4 << 10, 256 << 10] {
            let busy = batch + byte * f64::from(bytes);
            line.add(PROFILE_WEIGHT, 1.0, f64::from(bytes), busy);
        }
        line
    }

    fn add(&mut self, weight: f64, batches: f64, bytes: f64, busy: f64) {
        let kib = bytes / 1024.0;
        let products = [batches * batches, batches * kib, kib * kib, batches * busy, kib * busy];
        self.sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += weight * product);
    }

    fn seen(&mut self, batches: f64, bytes: f64, busy: f64) {
        self.sums.iter_mut().for_each(|sum| *sum *= 1.0 - FORGOTTEN);
        // Reports weigh the same, however many batches were in them.
        self.add(1.0 / (batches * batches), batches, bytes, busy);
        let [bb, bk, kk, bt, kt] = self.sums;
        let determinant = bb * kk - bk * bk;
        if determinant > bb * kk * 1e-6 {
            self.batch = ((bt * kk - kt * bk) / determinant).max(0.0);
            self.byte = ((kt * bb - bt * bk) / determinant / 1024.0).max(0.0);
        }
    }
}

/// What a batch costs beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceCost {
    seen: [Line; 2],
    /// By the profile.
    profile: [Line; 2],
}

impl DeviceCost {
    pub(super) fn new(ttp: &TimeToProcess) -> DeviceCost {
        let seen = [Op::Read, Op::Write].map(|op| Line::new(op, ttp));
        DeviceCost { seen, profile: seen }
    }

    /// The device has worked. What is of both operations tells little about either.
    pub(super) fn served(&mut self, work: &Work) {
        for op in [Op::Read, Op::Write] {
            let (own, other) = (op.index(), 1 - op.index());
            if work.batches[own] > 0 && work.batches[other] == 0 {
                self.seen[own].seen(work.batches[own] as f64, work.bytes[own] as f64, work.busy_ns as f64);
            }
        }
    }

    /// Time that one batch less saves, in nanoseconds. Where waiting `pays`, at least what the profile says: whole groups follow
    /// each other, and hardly cost more than their bytes. What is seen is what their parts would cost no more. Unless bytes are
    /// much faster than the profile says: then it is another device.
    pub(super) fn of_batch(&self, op: Op, pays: bool) -> u64 {
        let (seen, profile) = (&self.seen[op.index()], &self.profile[op.index()]);
        let is_known = pays && seen.byte * FASTER >= profile.byte;
        (if is_known { seen.batch.max(profile.batch) } else { seen.batch }) as u64
    }
}

/// After so many nanoseconds half of the load is that of the time since.
const LOAD_WINDOW_NS: u64 = 50_000_000;

/// In which share of the time the device is busy while programs use it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    share: f64,
    since: Time,
    busy_ns: u64,
}

impl Default for Load {
    fn default() -> Load {
        // As long as nothing is known predictions are worth a try.
        Load { share: 1.0, since: Time::ZERO, busy_ns: 0 }
    }
}

impl Load {
    pub(super) fn served(&mut self, work: &Work) {
        self.busy_ns += work.busy_ns;
    }

    /// From 0 to 1.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// There is a batch for the device.
    pub(super) fn batch(&mut self, now: Time) {
        let elapsed = now.since(self.since);
        if elapsed < LOAD_WINDOW_NS {
            return;
        }
        // After a longer time without any batch programs had no use for the device: the load is what it was before.
        if elapsed < 4 * LOAD_WINDOW_NS {
            let share = (self.busy_ns as f64 / elapsed as f64).min(1.0);
            self.share = (self.share + share) / 2.0;
        }
        (self.since, self.busy_ns) = (now, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn what_whole_groups_cost_does_not_end_waiting_that_pays() {
        // 8 ms and 1 ms for 64 KiB by the profile; whole groups follow each other without a seek.
        let ttp: TimeToProcess = std::sync::Arc::new(|_, bytes| 8 * MS + bytes * MS / 65_536);
        let mut cost = DeviceCost::new(&ttp);
        let both = |cost: &DeviceCost| [false, true].map(|pays| cost.of_batch(Op::Read, pays) / MS);
        assert_eq!(both(&cost), [8, 8]);
        let served = |batches, kib: u64| Work {
            busy_ns: kib * MS / 64,
            batches: [batches, 0],
            bytes: [kib << 10, 0],
            ..Work::default()
        };
        (0..200).for_each(|n| cost.served(&served(2 + n % 3, 64 * (1 + n % 7))));
        assert_eq!(both(&cost), [0, 8], "seen: nothing but bytes");
        let fast = |work: Work| Work { busy_ns: work.busy_ns / 4, ..work };
        (0..200).for_each(|n| cost.served(&fast(served(2 + n % 3, 64 * (1 + n % 7)))));
        assert_eq!(both(&cost), [0, 0], "four times as fast as the profile: another device");
    }

    #[test]
    fn the_load_follows_what_the_device_did_and_outlasts_pauses() {
        let mut load = Load::default();
        let mut step = |at: u64, busy: u64| {
            load.served(&Work { busy_ns: busy * MS, ..Work::default() });
            load.batch(Time(at * MS));
            load.share()
        };
        assert_eq!(step(1_000_000, 10), 1.0, "what was before is not known");
        assert_eq!(step(1_000_040, 20), 1.0, "too early to tell");
        assert_eq!(step(1_000_100, 30), 0.75, "50 ms of 100, and 1 before");
        assert_eq!(step(1_000_160, 0), 0.375);
        assert_eq!(step(1_010_000, 5), 0.375, "a pause");
        assert_eq!(step(1_010_050, 200), 0.6875, "no more than all the time");
    }
}
