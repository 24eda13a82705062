//! One case of the sample: simulated with and without predictions.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use sluice_sim::scenario::Plan;
use sluice_sim::{Options, SEEDS_MIN, forecast, larger, simulate_predicted};

use super::draw::Case;

/// Simulations with and without predictions at first, with other seeds than the recorded runs: what a label needs.
const SEEDS: u64 = SEEDS_MIN as u64;
/// And at most: so many until the mean is known, and where it looks like a loss.
const SEEDS_MAX: u64 = 40;
const SEEDS_MAX_LOSS: u64 = 160;
/// What is known well enough: a standard error of so many percent.
const ERROR_MAX: f64 = 0.5;
/// What looks like a loss, in percent.
const LOSS: f64 = 1.0;
/// A loss is one if chance makes such a one in fewer cases than this share; else with and without are a tie.
pub(super) const ALPHA: f64 = 0.05;

/// What came of a case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    /// Of the sample.
    pub(crate) case: u64,
    /// The case in a few words.
    pub(crate) what: String,
    /// Time saved by predictions, in percent of the time without; negative: lost. Geometric mean of the seeds.
    pub(crate) saved: f64,
    /// Its standard error over the seeds, in percentage points.
    pub(crate) error: f64,
    /// That it loses at all: p-value of the paired t-test on the logarithms, one-sided.
    pub(crate) p_loss: f64,
    pub(crate) seeds: u64,
    /// Mean makespans in seconds.
    pub(crate) without_s: f64,
    pub(crate) with_s: f64,
    /// In all runs with predictions: requests at data servers, those that were predicted, waits, and waits that brought all.
    pub(crate) requests: u64,
    pub(crate) linked: u64,
    pub(crate) waits: u64,
    pub(crate) complete: u64,
}

/// Simulates a case. `recorded`: runs that predictions are from.
pub(crate) fn measure(number: u64, case: &Case, recorded: u32, stop: &AtomicBool) -> Result<Measured, String> {
    let plan = Plan::parse(&case.text, &case.what, Path::new(""), &[], &[]).map_err(|error| error.to_string())?;
    let mut scenario = plan.runs[0].scenario.clone();
    scenario.storage.predict = recorded;
    let forecast = forecast(&scenario, stop).map_err(|error| error.to_string())?;
    let (mut without_s, mut with_s) = (Vec::new(), Vec::new());
    let what = case.what.clone();
    let mut measured = Measured {
        case: number,
        what,
        saved: 0.0,
        error: 0.0,
        p_loss: 1.0,
        seeds: 0,
        without_s: 0.0,
        with_s: 0.0,
        requests: 0,
        linked: 0,
        waits: 0,
        complete: 0,
    };
    while measured.wants_more() {
        // Recorded runs have seeds that are drawn from the scenario's.
        scenario.seed = 1_000 + measured.seeds;
        let run = |forecast| {
            simulate_predicted(&scenario, Options::default(), forecast, stop).map_err(|error| error.to_string())
        };
        let (without, with) = (run(None)?, run(forecast.as_ref())?);
        without_s.push(without.makespan_ns.max(1) as f64 / 1e9);
        with_s.push(with.makespan_ns.max(1) as f64 / 1e9);
        let counts = with.predictions.unwrap_or_default();
        measured.requests += with.server_requests;
        measured.linked += counts.linked;
        measured.waits += counts.waits;
        measured.complete += counts.complete;
        measured.seeds += 1;
        measured.compare(&without_s, &with_s);
    }
    Ok(measured)
}

impl Measured {
    fn wants_more(&self) -> bool {
        let known = self.error <= ERROR_MAX;
        let most = if self.saved < -LOSS { SEEDS_MAX_LOSS } else { SEEDS_MAX };
        self.seeds < SEEDS || (!known && self.seeds < most)
    }

    /// Looks at the makespans of all seeds so far.
    fn compare(&mut self, without_s: &[f64], with_s: &[f64]) {
        let seeds = without_s.len() as f64;
        self.without_s = without_s.iter().sum::<f64>() / seeds;
        self.with_s = with_s.iter().sum::<f64>() / seeds;
        let [without, with] = [without_s, with_s].map(|all| all.iter().map(|s| s.ln()).collect::<Vec<f64>>());
        let ratios: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
        let mean = ratios.iter().sum::<f64>() / seeds;
        let squares: f64 = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
        self.saved = (1.0 - mean.exp()) * 100.0;
        self.error = (squares / (seeds - 1.0).max(1.0) / seeds).sqrt() * mean.exp() * 100.0;
        self.p_loss = larger(&with, &without);
    }

    /// Time is lost, beyond what chance does.
    pub(crate) fn is_loss(&self) -> bool {
        self.saved < 0.0 && self.p_loss <= ALPHA
    }
}
