//! One case of the sample: simulated with and without predictions.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use sluice_sim::scenario::Plan;
use sluice_sim::{Options, forecast, simulate_predicted};

use super::draw::Case;

/// Simulations with and without predictions at first, with other seeds than the recorded runs.
const SEEDS: u64 = 5;
/// And at most: so many until the mean is known.
const SEEDS_MAX: u64 = 40;
/// What is known well enough: a standard error of so many percent.
const ERROR_MAX: f64 = 0.5;

/// What came of a case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    /// Of the sample.
    pub(crate) case: u64,
    /// The case in a few words.
    pub(crate) what: String,
    /// Time saved by predictions, in percent of the time without; negative: lost. Of all seeds together.
    pub(crate) saved: f64,
    /// Its standard error over the seeds, in percentage points.
    pub(crate) error: f64,
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
    let mut makespans: Vec<(f64, f64)> = Vec::new();
    let what = case.what.clone();
    let mut measured = Measured {
        case: number,
        what,
        saved: 0.0,
        error: 0.0,
        seeds: 0,
        without_s: 0.0,
        with_s: 0.0,
        requests: 0,
        linked: 0,
        waits: 0,
        complete: 0,
    };
    while measured.seeds < SEEDS || (measured.error > ERROR_MAX && measured.seeds < SEEDS_MAX) {
        // Recorded runs have seeds that are drawn from the scenario's.
        scenario.seed = 1_000 + measured.seeds;
        let run = |forecast| {
            simulate_predicted(&scenario, Options::default(), forecast, stop).map_err(|error| error.to_string())
        };
        let (without, with) = (run(None)?, run(forecast.as_ref())?);
        makespans.push((without.makespan_ns as f64 / 1e9, with.makespan_ns as f64 / 1e9));
        let counts = with.predictions.unwrap_or_default();
        measured.requests += with.server_requests;
        measured.linked += counts.linked;
        measured.waits += counts.waits;
        measured.complete += counts.complete;
        measured.seeds += 1;
        let seeds = measured.seeds as f64;
        measured.without_s = makespans.iter().map(|pair| pair.0).sum::<f64>() / seeds;
        measured.with_s = makespans.iter().map(|pair| pair.1).sum::<f64>() / seeds;
        let ratio = measured.with_s / measured.without_s;
        let squares: f64 = makespans.iter().map(|pair| (pair.1 - ratio * pair.0).powi(2)).sum();
        measured.saved = (1.0 - ratio) * 100.0;
        measured.error = (squares / (seeds - 1.0).max(1.0) / seeds).sqrt() / measured.without_s * 100.0;
    }
    Ok(measured)
}
