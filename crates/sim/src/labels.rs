//! Which choice was best, as far as the simulations can tell.
//!
//! The value with the smallest mean makespan wins often by chance alone, and by more than it would win again (the winner's
//! curse). So each other value is compared with it, seed by seed (paired t-tests on the logarithm of the makespans, Holm's
//! correction, 5 %): those that are not significantly slower are ties. What the winner gains is estimated with other seeds
//! than those that made it the winner.

use serde::Serialize;

use crate::scenario::Plan;
use crate::simulation::Outcome;

/// Probability of finding any difference where there is none.
const ALPHA: f64 = 0.05;
/// With fewer seeds nothing is called the best.
pub const SEEDS_MIN: usize = 10;

/// What is known of a situation: a combination of the values of all axes but the compared one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Label {
    /// Of each axis the value's number; that of the compared axis is the winner's.
    pub place: Vec<usize>,
    /// Values of the compared axis, by number, that are not significantly slower than the fastest; the fastest first.
    pub best: Vec<usize>,
    /// With at least [`SEEDS_MIN`] seeds, and nothing ties with the fastest: the situation has one right answer. Else every choice
    /// among the best is right.
    pub is_label: bool,
    /// Values that were compared.
    pub compared: usize,
    /// How much less time than the baseline the winner takes on seeds that had no part in choosing it; absent without a
    /// baseline or with a single seed.
    pub gain: Option<f64>,
}

/// What can be said of every situation of a plan. Empty if nothing is compared.
#[must_use]
pub fn labels(plan: &Plan, outcomes: &[Vec<Outcome>]) -> Vec<Label> {
    let Some((axis, baseline)) = plan.compare else { return Vec::new() };
    let mut situations: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for (number, run) in plan.runs.iter().enumerate() {
        let mut others = run.place.clone();
        others[axis] = 0;
        let at = *known.entry(others.clone()).or_insert_with(|| {
            situations.push((others, Vec::new()));
            situations.len() - 1
        });
        situations[at].1.push(number);
    }
    let of = |(mut place, runs): (Vec<usize>, Vec<usize>)| {
        let logs = |run: &usize| -> Vec<f64> {
            outcomes[*run].iter().map(|outcome| (outcome.makespan_ns.max(1) as f64).ln()).collect()
        };
        let times: Vec<Vec<f64>> = runs.iter().map(logs).collect();
        let values: Vec<usize> = runs.iter().map(|&run| plan.runs[run].place[axis]).collect();
        let base = values.iter().position(|&value| value == baseline);
        let ties = ties(&times);
        place[axis] = values[ties[0]];
        let seeds = times.iter().map(Vec::len).min().unwrap_or(0);
        let gain = base.and_then(|base| gain(&times, base));
        let is_label = seeds >= SEEDS_MIN && ties.len() == 1;
        Label { place, best: ties.iter().map(|&at| values[at]).collect(), is_label, compared: times.len(), gain }
    };
    situations.into_iter().map(of).collect()
}

/// The series with the smallest mean, and those that are not significantly larger: one-sided paired t-tests with Holm's
/// correction, 5 %. Series are paired by place; there is one at least. O(series x places).
#[must_use]
pub fn ties(series: &[Vec<f64>]) -> Vec<usize> {
    let best = smallest(series, |_| true);
    let mut others: Vec<(usize, f64)> =
        (0..series.len()).filter(|&at| at != best).map(|at| (at, larger(&series[at], &series[best]))).collect();
    others.sort_by(|a, b| a.1.total_cmp(&b.1));
    let count = others.len();
    let significant =
        others.iter().enumerate().take_while(|(rank, (_, p))| *p <= ALPHA / (count - rank) as f64).count();
    let mut ties: Vec<usize> = others[significant..].iter().map(|(at, _)| *at).collect();
    ties.sort_unstable();
    ties.insert(0, best);
    ties
}

/// The series with the smallest mean over the places for which `use_place`.
fn smallest(series: &[Vec<f64>], use_place: impl Fn(usize) -> bool) -> usize {
    let sum = |values: &Vec<f64>| -> f64 {
        values.iter().enumerate().filter(|(place, _)| use_place(*place)).map(|(_, value)| value).sum()
    };
    (0..series.len()).min_by(|&a, &b| sum(&series[a]).total_cmp(&sum(&series[b]))).unwrap_or(0)
}

/// Each half of the seeds chooses a winner; what it gains is looked up in the other half.
fn gain(series: &[Vec<f64>], base: usize) -> Option<f64> {
    let seeds = series.iter().map(Vec::len).min().filter(|seeds| *seeds >= 2)?;
    let mut sum = 0.0;
    for half in 0..2 {
        let winner = smallest(series, |place| place % 2 == half);
        let others: Vec<usize> = (0..seeds).filter(|place| place % 2 != half).collect();
        let log: f64 = others.iter().map(|&place| series[winner][place] - series[base][place]).sum();
        sum += (1.0 - (log / others.len() as f64).exp()) / 2.0;
    }
    Some(sum)
}

/// One-sided p-value of the paired t-test that the first series is larger than the second; 1 if it cannot be told. O(n).
#[must_use]
pub fn larger(a: &[f64], b: &[f64]) -> f64 {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let n = differences.len() as f64;
    if differences.len() < 2 {
        return 1.0;
    }
    let mean = differences.iter().sum::<f64>() / n;
    let variance = differences.iter().map(|one| (one - mean) * (one - mean)).sum::<f64>() / (n - 1.0);
    if mean <= 0.0 {
        return 1.0;
    }
    if variance == 0.0 {
        return 0.0;
    }
    student_tail(mean / (variance / n).sqrt(), n - 1.0)
}

/// Probability that Student's t with so many degrees of freedom exceeds `t` (positive): half the regularised incomplete beta
/// function (Press et al., *Numerical Recipes*, 6.4).
fn student_tail(t: f64, freedom: f64) -> f64 {
    0.5 * incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(a, b, x) / a
    } else {
        1.0 - front * fraction(b, a, 1.0 - x) / b
    }
}

/// The continued fraction of the incomplete beta function, after Lentz.
fn fraction(a: f64, b: f64, x: f64) -> f64 {
    let nonzero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut c, mut d) = (1.0, 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0)));
    let mut h = d;
    for m in 1..300 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        for step in [even, odd] {
            d = 1.0 / nonzero(1.0 + step * d);
            c = nonzero(1.0 + step / c);
            h *= d * c;
        }
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    h
}

/// Lanczos' approximation.
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 6] = [
        76.180_091_729_471_46,
        -86.505_320_329_416_77,
        24.014_098_240_830_91,
        -1.231_739_572_450_155,
        0.001_208_650_973_866_179,
        -0.000_005_395_239_384_953,
    ];
    let series = TERMS.iter().zip(1..).fold(1.000_000_000_190_015, |sum, (term, n)| sum + term / (x + f64::from(n)));
    let t = x + 5.5;
    (x + 0.5) * t.ln() - t + (2.506_628_274_631_000_5 * series / x).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn tails_are_students() {
        // From tables: quantiles 0.95, 0.975 and 0.995.
        for (t, freedom, p) in [(6.314, 1.0, 0.05), (2.262, 9.0, 0.025), (3.250, 9.0, 0.005), (1.697, 30.0, 0.05)] {
            assert!((student_tail(t, freedom) - p).abs() < 5e-5, "{t} {freedom}: {}", student_tail(t, freedom));
        }
    }

    /// Ten series of one distribution: the smallest is not told apart from the others more often than the level allows.
    #[test]
    fn equals_are_ties_and_the_winner_gains_nothing() {
        let (mut false_alarms, mut gains) = (0, 0.0);
        for seed in 0..400 {
            let mut random = Random::new(seed, 7);
            let mut normal = || (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0;
            let series: Vec<Vec<f64>> = (0..10).map(|_| (0..10).map(|_| 0.1 * normal()).collect()).collect();
            false_alarms += u32::from(ties(&series).len() < 10);
            gains += gain(&series, 0).unwrap() / 400.0;
        }
        // The smallest of ten is compared, so the level is not kept exactly; it stays far from certainty.
        assert!(false_alarms < 120, "{false_alarms} of 400");
        assert!(gains.abs() < 0.01, "{gains}");
    }

    #[test]
    fn what_is_clearly_better_is_told_apart() {
        let at = |mean: f64| (0..10).map(|seed| mean + 0.01 * f64::from(seed % 3)).collect::<Vec<f64>>();
        let series = [at(1.0), at(0.5), at(0.502), at(2.0)];
        let jitter: Vec<f64> = (0..10).map(|seed| 0.5 + 0.02 * f64::from((seed * 7) % 5)).collect();
        assert_eq!(ties(&series)[0], 1);
        assert_eq!(ties(&[at(1.0), jitter.clone(), jitter, at(2.0)]), [1, 2]);
        assert!((gain(&series, 0).unwrap() - (1.0 - (-0.5f64).exp())).abs() < 1e-9);
    }
}
