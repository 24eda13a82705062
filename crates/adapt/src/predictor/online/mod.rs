//! Predictions while requests arrive.

mod budget;
mod goals;
mod handle;
mod linking;
mod trial;

use std::sync::Arc;

use sluice_core::{Chosen, Expected, FileId, Predictor, Request, Time, WaitReport, Work};

use super::aggregate::{Aggregations, estimate_alpha};
use super::forecast::Forecast;
use super::{Settings, TimeToProcess};
use budget::Budget;
use goals::Goal;
use handle::Shared;
use linking::Linking;
pub(super) use trial::PAUSE_NS;

pub use handle::{Counters, Handle};
pub use trial::Verdict;

/// Weight of the estimate among the observations of alpha: that of so much waiting.
const ESTIMATE_NS: f64 = 200e6;

/// Knows the paths of files.
pub trait Names: Send + Sync {
    /// The path of a file, if it is known.
    fn path(&self, file: FileId) -> Option<Arc<[u8]>>;

    /// The part of its file that a request is to, as the forecast's [`FileForecast::target`](super::forecast::FileForecast)
    /// counts them.
    fn part(&self, request: &Request) -> u32 {
        request.target.0
    }

    /// Grows whenever a number stands for another path than before.
    fn changes(&self) -> u64 {
        0
    }
}

impl<F: Fn(FileId) -> Option<Arc<[u8]>> + Send + Sync> Names for F {
    fn path(&self, file: FileId) -> Option<Arc<[u8]>> {
        self(file)
    }
}

/// Holds batches of an engine back for what a [`Forecast`] says is about to arrive.
pub struct TracePredictor {
    settings: Settings,
    linking: Linking,
    aggregations: Aggregations,
    budget: Budget,
    counters: Counters,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for TracePredictor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TracePredictor").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl TracePredictor {
    /// A predictor, and a handle to look at it. `names` tells the path of a file when its first request arrives.
    #[must_use]
    pub fn new(
        forecast: Arc<Forecast>,
        settings: Settings,
        ttp: TimeToProcess,
        names: Arc<dyn Names>,
    ) -> (TracePredictor, Handle) {
        let alpha = estimate_alpha(&forecast, &ttp);
        let aggregations = Aggregations::new(&forecast, &settings, &ttp, alpha);
        TracePredictor::with_aggregations(forecast, settings, ttp, names, aggregations)
    }

    /// As [`TracePredictor::new`], with aggregations computed before: for several engines with the same forecast.
    #[must_use]
    pub fn with_aggregations(
        forecast: Arc<Forecast>,
        settings: Settings,
        ttp: TimeToProcess,
        names: Arc<dyn Names>,
        aggregations: Aggregations,
    ) -> (TracePredictor, Handle) {
        let alpha = aggregations.alpha();
        let counters = Counters { alpha, ..Counters::default() };
        let shared = Shared::new(counters);
        let budget = Budget::new(forecast.files.len(), &ttp, settings.anticipates);
        let handle = Handle::new(shared.clone(), settings, ttp, forecast.clone(), alpha);
        let linking = Linking::new(forecast, settings, names);
        (TracePredictor { settings, linking, aggregations, budget, counters, shared }, handle)
    }

    fn take_over(&mut self) {
        let Some((forecast, aggregations)) = self.shared.take() else { return };
        self.aggregations = aggregations;
        if !Arc::ptr_eq(&forecast, &self.linking.forecast) {
            let old = std::mem::replace(&mut self.linking.forecast, forecast.clone());
            self.budget.replace(&old, &forecast);
            self.linking.forecast = old;
            self.linking.replace(forecast);
        }
    }

    /// A request of a run has come: how fast that goes on, and how fast the recorded runs did.
    fn advances(&mut self, now: Time, request: &Request, file: u32) {
        let Some((number, took)) = self.linking.counts(now, request) else { return };
        if let Some(pace) = self.linking.forecast.paces.get(file as usize).filter(|_| number > 0) {
            let pause = PAUSE_NS as f64;
            // Behind the end of the recorded runs nothing tells how fast it should be.
            let recorded = pace.step(number - 1).min(pause);
            if recorded > 0.0 {
                self.budget.advances(request.app, (took as f64).min(pause), recorded);
            }
        }
    }

    /// What to wait for, by offsets as predictions have them.
    fn expect_more(&mut self, now: Time, chosen: &Chosen) -> Option<Expected> {
        let TracePredictor { settings, linking, aggregations, budget, .. } = self;
        if !settings.device_known || chosen.continues || budget.is_hopeless(chosen.op) {
            return None;
        }
        let known = linking.file_of(chosen).filter(|known| aggregations.promises(known.file))?;
        let link = *linking.arrived(chosen, chosen.offset, known.epoch)?;
        let history = budget.history(known.file, chosen.op);
        let goal = Goal::of(linking, aggregations, settings, chosen, (&known, &link), history)?;
        let time = linking.forecast.requests[link.request as usize].time;
        let missing = goal.missing(linking, settings, chosen, &known, time).filter(|missing| *missing > 0)?;
        let wait = budget.wait(now, known.file, chosen.op, goal.until, goal.in_time)?;
        let (offset, end) = goal.range;
        Some(Expected { offset, end, until: wait.until, idle_until: wait.idle_until, missing })
    }
}

impl Predictor for TracePredictor {
    fn submitted(&mut self, now: Time, request: &Request) {
        self.take_over();
        self.budget.arrives(now, request.app);
        let Some(known) = self.linking.meet(now, request) else { return };
        self.counters.known += 1;
        (self.counters.verdict, self.counters.gain) = self.budget.verdict();
        if let Some((request, known)) = self.linking.in_burst(now, request, known) {
            let link = self.linking.arrives(now, &request, known);
            self.advances(now, &request, known.file);
            self.counters.linked += u64::from(link.is_some_and(|link| link.linked));
        }
        self.shared.publish(&self.counters);
    }

    fn expect(&mut self, now: Time, chosen: &Chosen) -> Option<Expected> {
        self.budget.chosen(now);
        let base = self.linking.file_of(chosen)?.base;
        let (offset, end) = (chosen.offset.checked_sub(base)?, chosen.end.checked_sub(base)?);
        let expected = self.expect_more(now, &Chosen { offset, end, ..*chosen })?;
        let end = expected.end.checked_add(base)?;
        Some(Expected { offset: expected.offset + base, end, ..expected })
    }

    fn parallelism(&self) -> u32 {
        self.settings.parallelism
    }

    fn served(&mut self, work: &Work) {
        self.budget.served(work);
    }

    fn waited(&mut self, wait: &WaitReport) {
        let counters = &mut self.counters;
        counters.waits += 1;
        counters.complete += u64::from(wait.complete);
        counters.gained_bytes += wait.gained;
        counters.waited_ns += wait.waited_ns;
        counters.overlapped_ns += wait.overlapped_ns;
        self.budget.ended(wait, self.linking.file_of(&wait.chosen).map(|known| known.file));
        let estimate = self.aggregations.alpha();
        let weight = ESTIMATE_NS + counters.waited_ns as f64;
        counters.alpha = (ESTIMATE_NS * estimate + counters.overlapped_ns as f64) / weight;
        self.shared.publish(&self.counters);
    }
}
