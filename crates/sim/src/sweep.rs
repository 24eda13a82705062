//! Many simulations on all cores, and what they say together.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::scenario::{Application, Plan, Scenario};
use crate::simulation::{Failure, Options, Outcome, simulate};

/// How to simulate a plan.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Each run is simulated with so many seeds, from the scenario's on.
    pub seeds: u32,
    /// At a time; `None`: as many as there are cores.
    pub jobs: Option<NonZeroUsize>,
    /// Record details of the first seed's simulations.
    pub record: bool,
    /// Simulate each application alone, too, for slow-downs.
    pub alone: bool,
    /// Keep the features of every window.
    pub windows: bool,
}

/// The simulation that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("run {run}, seed {seed}: {failure}")]
pub struct SweepError {
    /// The run's number in the plan.
    pub run: usize,
    /// The seed.
    pub seed: u64,
    /// Why.
    pub failure: Failure,
}

/// Simulates all runs of a plan; returns for each run its outcomes by seed. `progress` is told how many simulations are
/// over. The outcome does not depend on the number of jobs.
///
/// # Errors
/// The first simulation that failed, in the order of the plan.
pub fn sweep(
    plan: &Plan,
    how: Sweep,
    stop: &AtomicBool,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<Vec<Outcome>>, SweepError> {
    let seeds = how.seeds.max(1) as usize;
    let total = plan.runs.len() * seeds;
    let done = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let outcomes = parallel(total, how.jobs, |task| {
        if failed.load(Ordering::Relaxed) {
            return Err((task, Failure::Interrupted));
        }
        let mut scenario = plan.runs[task / seeds].scenario.clone();
        scenario.seed = scenario.seed.wrapping_add((task % seeds) as u64);
        let record = how.record && task.is_multiple_of(seeds);
        let options = Options { record, windows: how.windows, ..Options::default() };
        let outcome = one(&scenario, options, how.alone, stop);
        failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        outcome.map_err(|failure| (task, failure))
    });
    let mut by_run = Vec::with_capacity(plan.runs.len());
    let mut first: Option<(usize, Failure)> = None;
    for outcome in outcomes {
        match outcome {
            Ok(outcome) => by_run.push(outcome),
            // Those that were not begun because of another one do not count, unless somebody interrupted all.
            Err((_, Failure::Interrupted)) if first.is_some() => {}
            Err((task, failure)) if failure == Failure::Interrupted => first = Some((task, failure)),
            Err((task, failure)) => {
                if first.as_ref().is_none_or(|(_, before)| *before == Failure::Interrupted) {
                    first = Some((task, failure));
                }
            }
        }
    }
    if let Some((task, failure)) = first {
        let run = task / seeds;
        return Err(SweepError {
            run,
            seed: plan.runs[run].scenario.seed.wrapping_add((task % seeds) as u64),
            failure,
        });
    }
    let mut outcomes = by_run.into_iter();
    Ok((0..plan.runs.len()).map(|_| outcomes.by_ref().take(seeds).collect()).collect())
}

/// Does `count` tasks on several threads; returns what they gave in order.
pub(crate) fn parallel<R: Send>(count: usize, jobs: Option<NonZeroUsize>, task: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let jobs = jobs.unwrap_or_else(cores).get().min(count.max(1));
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let result = task(number);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

fn one(scenario: &Scenario, options: Options, alone: bool, stop: &AtomicBool) -> Result<Outcome, Failure> {
    let mut outcome = simulate(scenario, options, stop)?;
    if !alone || scenario.applications.len() < 2 {
        return Ok(outcome);
    }
    // Copies of a program need the same time alone.
    let mut known: Vec<(Application, u64)> = Vec::new();
    for (application, app) in scenario.applications.iter().zip(&mut outcome.apps) {
        let only = Application { name: String::new(), start_ns: 0, ..application.clone() };
        let makespan = match known.iter().find(|(known, _)| *known == only) {
            Some((_, makespan)) => *makespan,
            None => {
                let by_itself = Scenario { applications: vec![only.clone()], ..scenario.clone() };
                let makespan = simulate(&by_itself, Options::default(), stop)?.makespan_ns;
                known.push((only, makespan));
                makespan
            }
        };
        app.slow_down = Some(app.makespan_ns as f64 / makespan.max(1) as f64);
    }
    Ok(outcome)
}

/// A mean with the half-width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Mean.
    pub mean: f64,
    /// The interval reaches so far to both sides (of a share saved: towards 0); 0 for a single value.
    pub half_width: f64,
    /// Values that it comes from.
    pub count: usize,
}

/// Quantiles 0.975 of Student's distribution for 1 to 30 degrees of freedom.
static STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

impl Estimate {
    /// Whether the interval leaves out 0: the difference is significant (5 %). Never for a single value.
    #[must_use]
    pub fn is_significant(&self) -> bool {
        self.count > 1 && self.mean.abs() > self.half_width
    }

    /// From values of independent simulations.
    #[must_use]
    pub fn of(values: &[f64]) -> Estimate {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n.max(1.0);
        if values.len() < 2 {
            return Estimate { mean, half_width: 0.0, count: values.len() };
        }
        let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / (n - 1.0);
        let quantile = STUDENT.get(values.len() - 2).copied().unwrap_or(1.96);
        Estimate { mean, half_width: quantile * (variance / n).sqrt(), count: values.len() }
    }

    /// The share of time that is saved, from the logarithms of ratios of times: one less their geometric mean, so that half
    /// the time in one simulation and twice the time in another make nothing (a mean of shares would call that a loss of a
    /// quarter). The interval is symmetric in the logarithm (a paired t-test of the logarithms); the half-width is that of
    /// the side towards 0, so that the difference is significant exactly where the test says so.
    #[must_use]
    pub fn saved(log_ratios: &[f64]) -> Estimate {
        let log = Estimate::of(log_ratios);
        let ratio = log.mean.exp();
        // From the mean towards 0: up for what saves, down for what loses.
        let bound = (log.mean - log.half_width.copysign(log.mean)).exp();
        Estimate { mean: 1.0 - ratio, half_width: (bound - ratio).abs(), count: log.count }
    }
}

/// How much less time runs take than the baseline: 0.25 means three quarters of its time; negative means more time. For
/// each run of the plan, if it has a compared axis and its baseline is there; seed by seed. See [`Estimate::saved`].
#[must_use]
pub fn improvements(plan: &Plan, outcomes: &[Vec<Outcome>]) -> Vec<Option<Estimate>> {
    let Some((axis, baseline)) = plan.compare else { return vec![None; plan.runs.len()] };
    let find = |place: &[usize]| {
        let mut wanted = place.to_vec();
        wanted[axis] = baseline;
        plan.runs.iter().position(|run| run.place == wanted)
    };
    let improvement = |(run, outcomes_of_run): (&crate::scenario::Run, &Vec<Outcome>)| {
        let base = find(&run.place)?;
        let pairs = outcomes_of_run.iter().zip(&outcomes[base]);
        let ln = |outcome: &Outcome| (outcome.makespan_ns.max(1) as f64).ln();
        Some(Estimate::saved(&pairs.map(|(this, base)| ln(this) - ln(base)).collect::<Vec<f64>>()))
    };
    plan.runs.iter().zip(outcomes).map(improvement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        let estimate = Estimate::of(&[1.0, 2.0, 3.0]);
        assert!((estimate.mean - 2.0).abs() < 1e-12);
        assert!((estimate.half_width - 4.303 / 3f64.sqrt()).abs() < 1e-9);
        assert_eq!(Estimate::of(&[7.0]), Estimate { mean: 7.0, half_width: 0.0, count: 1 });
    }

    #[test]
    fn what_is_saved_does_not_depend_on_which_is_the_baseline() {
        let nothing = Estimate::saved(&[2f64.ln(), 0.5f64.ln()]);
        assert!(nothing.mean.abs() < 1e-12 && !nothing.is_significant(), "{nothing:?}");
        // The fewer the seeds that agree, the less is known; both directions say the same.
        for (logs, is_significant) in [([-0.5, -0.6, -0.7], true), ([-0.5, -0.6, 0.4], false)] {
            let [saved, lost] = [1.0, -1.0].map(|sign| Estimate::saved(&logs.map(|log| sign * log)));
            assert!(((1.0 - saved.mean) * (1.0 - lost.mean) - 1.0).abs() < 1e-12, "{saved:?} {lost:?}");
            assert_eq!([saved.is_significant(), lost.is_significant()], [is_significant; 2], "{saved:?} {lost:?}");
            assert_eq!(Estimate::of(&logs).is_significant(), is_significant);
        }
        let one = Estimate::saved(&[0.75f64.ln()]);
        assert!((one.mean - 0.25).abs() < 1e-12 && one.half_width == 0.0, "{one:?}");
    }

    #[test]
    fn tasks_are_done_once_each_and_stay_in_order() {
        let results = parallel(1000, NonZeroUsize::new(4), |number| number * 2);
        assert_eq!(results, (0..1000).map(|number| number * 2).collect::<Vec<_>>());
    }
}
