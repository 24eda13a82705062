//! What a predictor and whoever looks at it share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::super::aggregate::{Aggregations, estimate_alpha};
use super::super::forecast::Forecast;
use super::super::{Settings, TimeToProcess};
use super::trial::Verdict;

/// By how much alpha must have changed for new aggregations.
const ALPHA_STEP: f64 = 0.1;

/// What predictions did so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counters {
    /// Requests to files that there are predictions for.
    pub known: u64,
    /// Of these, the ones that were predicted.
    pub linked: u64,
    /// Waits.
    pub waits: u64,
    /// Of these, the ones after which all was there.
    pub complete: u64,
    /// Bytes that joined batches by waiting.
    pub gained_bytes: u64,
    /// Time waited, in nanoseconds.
    pub waited_ns: u64,
    /// Of that, time in which the device had other requests.
    pub overlapped_ns: u64,
    /// Whether waiting pays, as far as is known.
    pub verdict: Verdict,
    /// By how much it made programs faster when that was measured last: 0.1 is a tenth more throughput.
    pub gain: f64,
    /// Share of overlapped waiting, as known now.
    pub alpha: f64,
}

/// What a predictor and whoever looks at it share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    counters: Mutex<Counters>,
    alpha_bits: AtomicU64,
    /// New aggregations wait to be taken over.
    fresh: AtomicBool,
    mailbox: Mutex<Option<(Arc<Forecast>, Aggregations)>>,
}

impl Shared {
    /// For a predictor with these aggregations.
    pub(super) fn new(counters: Counters) -> Arc<Shared> {
        let alpha_bits = AtomicU64::new(counters.alpha.to_bits());
        Arc::new(Shared { counters: Mutex::new(counters), alpha_bits, ..Shared::default() })
    }

    /// What was given since the last time.
    pub(super) fn take(&self) -> Option<(Arc<Forecast>, Aggregations)> {
        if !self.fresh.load(Ordering::Acquire) {
            return None;
        }
        self.fresh.store(false, Ordering::Relaxed);
        self.mailbox.lock().take()
    }

    /// Whoever looks sees these from now on.
    pub(super) fn publish(&self, counters: &Counters) {
        self.alpha_bits.store(counters.alpha.to_bits(), Ordering::Relaxed);
        // Whoever looks at the same moment sees the next ones.
        if let Some(mut shown) = self.counters.try_lock() {
            *shown = *counters;
        }
    }
}

/// Looks at a predictor that an engine owns, and brings what it knows up to date.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    settings: Settings,
    ttp: TimeToProcess,
    /// What it was given last, and for which share of overlapped waiting.
    given: Arc<Mutex<(Arc<Forecast>, f64)>>,
}

impl Handle {
    /// For a predictor with this forecast and aggregations for this share of overlapped waiting.
    pub(super) fn new(
        shared: Arc<Shared>,
        settings: Settings,
        ttp: TimeToProcess,
        forecast: Arc<Forecast>,
        alpha: f64,
    ) -> Handle {
        Handle { shared, settings, ttp, given: Arc::new(Mutex::new((forecast, alpha))) }
    }

    /// What predictions did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        *self.shared.counters.lock()
    }

    /// Predicted requests.
    #[must_use]
    pub fn predicted(&self) -> u64 {
        self.given.lock().0.totals().requests
    }

    /// Computes the aggregations anew if the observed share of overlapped waiting is another one than they were made for.
    /// Takes some time; the engine goes on meanwhile, and takes the new ones over with the next request. True if there are
    /// new ones.
    pub fn refresh(&self) -> bool {
        let alpha = self.alpha();
        let mut given = self.given.lock();
        if (alpha - given.1).abs() < ALPHA_STEP {
            return false;
        }
        given.1 = alpha;
        self.post(given.0.clone(), alpha);
        true
    }

    /// Gives it another forecast. Runs that are under way go on where the new one knows their files.
    pub fn replace(&self, forecast: Arc<Forecast>) {
        let mut given = self.given.lock();
        // Nothing was observed yet without predictions: only they can tell.
        let alpha = if given.0.requests.is_empty() { estimate_alpha(&forecast, &self.ttp) } else { self.alpha() };
        *given = (forecast.clone(), alpha);
        self.post(forecast, alpha);
    }

    fn alpha(&self) -> f64 {
        f64::from_bits(self.shared.alpha_bits.load(Ordering::Relaxed))
    }

    fn post(&self, forecast: Arc<Forecast>, alpha: f64) {
        let aggregations = Aggregations::new(&forecast, &self.settings, &self.ttp, alpha);
        *self.shared.mailbox.lock() = Some((forecast, aggregations));
        self.shared.fresh.store(true, Ordering::Release);
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("counters", &self.counters()).finish_non_exhaustive()
    }
}
