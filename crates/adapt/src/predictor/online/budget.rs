//! How long a batch may be waited for.

use sluice_core::{Op, Time, WaitReport, Work};

use super::super::TimeToProcess;
use super::super::cost::{DeviceCost, Load};
use super::super::wait::{History, Trust};

/// What waits may cost before they have shown what they are good for.
const CREDIT_NS: f64 = 10e6;
/// Share of the time that waits in vain may cost.
const COST_SHARE: f64 = 0.01;
/// Most credit that successes earn.
const CREDIT_MAX_NS: f64 = 100e6;
/// Share of the time in which the device is busy, below which aggregations are not waited for.
const LOAD_MIN: f64 = 0.7;
/// While the device has other batches, waiting for a group may take so many times what it gains at once.
const BUSY_GAINS: u64 = 4;

/// What came of waits, and what the device takes.
pub(super) struct Budget {
    /// Of each file of the forecast, for reads and writes, what came of waits.
    histories: Vec<[History; 2]>,
    /// What came of all of them.
    trust: Trust,
    cost: DeviceCost,
    load: Load,
    began: Option<Time>,
    /// What waits have gained, minus what they have cost, in nanoseconds.
    credit: f64,
}

/// Until when a batch may wait.
pub(super) struct Wait {
    pub(super) until: Time,
    /// Until then the device may idle for it; [`Time::ZERO`]: not at all.
    pub(super) idle_until: Time,
    /// It might idle, had others not cost more than they gained.
    pub(super) refused: bool,
}

impl Budget {
    /// For a forecast with so many files.
    pub(super) fn new(files: usize, ttp: &TimeToProcess) -> Budget {
        Budget {
            histories: vec![Default::default(); files],
            trust: Trust::default(),
            cost: DeviceCost::new(ttp),
            load: Load::default(),
            began: None,
            credit: 0.0,
        }
    }

    /// Another forecast, with so many files: what came of waits for the old ones says nothing of them.
    pub(super) fn replace(&mut self, files: usize) {
        self.histories.clear();
        self.histories.resize(files, Default::default());
    }

    /// A request to a file that there are predictions for.
    pub(super) fn arrives(&mut self, now: Time) {
        self.began.get_or_insert(now);
    }

    /// A batch is chosen.
    pub(super) fn chosen(&mut self, now: Time) {
        self.load.batch(now);
    }

    /// The device has served a batch.
    pub(super) fn served(&mut self, work: &Work) {
        self.cost.served(work);
        self.load.served(work);
    }

    /// What came of waits for a file of the forecast.
    pub(super) fn history(&self, file: u32, op: Op) -> &History {
        &self.histories[file as usize][op.index()]
    }

    /// How long the device may idle now, in nanoseconds.
    fn allowance(&self, now: Time) -> u64 {
        let elapsed = self.began.map_or(0, |began| now.since(began));
        (self.credit + CREDIT_NS + elapsed as f64 * COST_SHARE).max(0.0) as u64
    }

    /// Whether to wait until `until` at the most, for an aggregation or else a group of this file of the forecast.
    pub(super) fn wait(&mut self, now: Time, file: u32, op: Op, until: Time, aggregation: bool) -> Option<Wait> {
        // One batch less is what waiting gains now. Idling for longer than that is a loss; while others are served, it is not,
        // but what is held back will be missing later. A group that is whole gains later, too, for the next one comes together;
        // an aggregation does not, and is no reason to idle, nor to wait where the device idles anyway.
        let gain = self.cost.of_batch(op);
        let (longest, idle) = if aggregation { (gain, 0) } else { (gain.saturating_mul(BUSY_GAINS), gain) };
        let until = until.min(now.after(longest));
        if (aggregation && self.load.share() < LOAD_MIN)
            || until <= now
            || !self.trust.allows()
            || !self.histories[file as usize][op.index()].allows()
        {
            return None;
        }
        let idle = idle.min(self.allowance(now));
        let idle_until = if idle == 0 { Time::ZERO } else { until.min(now.after(idle)) };
        Some(Wait { until, idle_until, refused: idle == 0 && !aggregation })
    }

    /// A wait has ended; `file`: of the forecast, if it is still known.
    pub(super) fn ended(&mut self, wait: &WaitReport, file: Option<u32>) {
        let saved = if wait.gained > 0 { self.cost.of_batch(wait.chosen.op) } else { 0 };
        self.trust.ended(wait.complete);
        if let Some(file) = file {
            self.histories[file as usize][wait.chosen.op.index()].ended(wait);
        }
        let idle = wait.waited_ns.saturating_sub(wait.overlapped_ns);
        self.credit = (self.credit + saved as f64 - idle as f64).min(CREDIT_MAX_NS);
    }
}
