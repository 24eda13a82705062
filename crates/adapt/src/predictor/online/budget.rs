//! How long a batch may be waited for.

use sluice_core::{AppId, Op, Time, WaitReport, Work};

use super::super::TimeToProcess;
use super::super::cost::{DeviceCost, Load};
use super::super::forecast::{FileForecast, Forecast};
use super::super::wait::{History, Trust};
use super::trial::{Trial, Verdict};

/// A device on which one batch less saves less than this, in nanoseconds, does not repay waiting: a flash device.
const GAIN_MIN_NS: u64 = 500_000;
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
    trial: Trial,
}

/// Until when a batch may wait.
pub(super) struct Wait {
    pub(super) until: Time,
    /// Until then the device may idle for it; [`Time::ZERO`]: not at all.
    pub(super) idle_until: Time,
}

impl Budget {
    /// For a forecast with so many files, and an engine that anticipates or does not.
    pub(super) fn new(files: usize, ttp: &TimeToProcess, anticipates: bool) -> Budget {
        Budget {
            histories: vec![Default::default(); files],
            trust: Trust::default(),
            cost: DeviceCost::new(ttp),
            load: Load::default(),
            trial: Trial::new(anticipates),
        }
    }

    /// Another forecast: what came of waits for a file still holds.
    pub(super) fn replace(&mut self, old: &Forecast, new: &Forecast) {
        let before = |file: &FileForecast| {
            let known = old.find(new.paths().get(file.path), file.target)?;
            self.histories.get(known).copied()
        };
        self.histories = new.files.iter().map(|file| before(file).unwrap_or_default()).collect();
    }

    /// A request of this application.
    pub(super) fn arrives(&mut self, now: Time, app: AppId) {
        self.trial.arrives(now, app);
    }

    /// One of a known file came so long after the one before, and in the recorded runs so long.
    pub(super) fn advances(&mut self, app: AppId, took_ns: f64, recorded_ns: f64) {
        self.trial.advances(app, took_ns, recorded_ns);
    }

    /// What is known of waiting, and what it gains.
    pub(super) fn verdict(&self) -> (Verdict, f64) {
        (self.trial.verdict(), self.trial.gain())
    }

    /// A batch is chosen.
    pub(super) fn chosen(&mut self, now: Time) {
        self.load.batch(now);
    }

    /// The device has served a batch.
    pub(super) fn served(&mut self, work: &Work) {
        self.cost.served(work);
        self.load.served(work);
        self.trial.outstanding(work.outstanding);
    }

    /// What came of waits for a file of the forecast.
    pub(super) fn history(&self, file: u32, op: Op) -> &History {
        &self.histories[file as usize][op.index()]
    }

    /// Nothing will be waited for now, whatever is about to arrive: to be asked before that is looked for, which takes far longer.
    pub(super) fn is_hopeless(&self, op: Op) -> bool {
        self.batch_gain(op) < GAIN_MIN_NS || self.trial.rests_without()
    }

    /// What one batch less is worth.
    fn batch_gain(&self, op: Op) -> u64 {
        self.cost.of_batch(op, self.trial.verdict() == Verdict::Pays)
    }

    /// Whether to wait until `until` at the most, for an aggregation or else a group of this file of the forecast.
    pub(super) fn wait(&mut self, now: Time, file: u32, op: Op, until: Time, aggregation: bool) -> Option<Wait> {
        // One batch less is what waiting gains now. Idling for longer than that is a loss; while others are served, it is not,
        // but what is held back will be missing later. A group that is whole gains later, too, for the next one comes together;
        // an aggregation does not, and is no reason to idle, nor to wait where the device idles anyway.
        let gain = self.batch_gain(op);
        let (longest, idle) = if aggregation { (gain, 0) } else { (gain.saturating_mul(BUSY_GAINS), gain) };
        let until = until.min(now.after(longest));
        if (aggregation && self.load.share() < LOAD_MIN)
            || until <= now
            || self.is_hopeless(op)
            || !self.trial.allows()
            || !self.trust.allows()
            || !self.histories[file as usize][op.index()].allows()
        {
            return None;
        }
        self.trial.waits();
        let idle = if self.trial.may_idle() { idle } else { 0 };
        let idle_until = if idle == 0 { Time::ZERO } else { until.min(now.after(idle)) };
        Some(Wait { until, idle_until })
    }

    /// A wait has ended; `file`: of the forecast, if it is still known.
    pub(super) fn ended(&mut self, wait: &WaitReport, file: Option<u32>) {
        if !wait.complete {
            self.trial.idled_in_vain(wait.waited_ns.saturating_sub(wait.overlapped_ns));
        }
        self.trust.ended(wait.complete);
        if let Some(file) = file {
            self.histories[file as usize][wait.chosen.op.index()].ended(wait);
        }
    }
}
