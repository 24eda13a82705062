//! What the arms that were seen say of those that were not.
//!
//! Arms have parts in common: where idling for a stream gives five times as much, it does so under each algorithm, and one arm
//! without it that was tried stands for all. The logarithmic gain of an arm is taken as a level, plus what anticipation does, what
//! waiting does, what ordering does, what the algorithm does, and something of its own, all normal and independent; the gains that were seen are observations with
//! their own deviations. What follows for the others is the posterior of a Gaussian process over arms (Rasmussen and Williams,
//! *Gaussian Processes for Machine Learning*, 2006, section 2.2, with a level of unknown mean as in 2.7).

use super::Arm;

/// Deviations, as logarithms, of what arms may differ by. To idle, as anticipation does or as the algorithm itself does, is worth a
/// factor of ten, or costs two thirds, or does nothing; whether requests are ordered at all matters as much at times; which of the
/// algorithms orders them seldom makes a half, nor does anything else (parameters, limits).
const ANTICIPATION: f64 = 1.0;
const WAITING: f64 = 1.0;
const ORDERING: f64 = 0.7;
const ALGORITHM: f64 = 0.15;
const OWN: f64 = 0.1;
/// How many times wider the last two may be for a workload, and how likely that is before anything was seen.
const WIDTHS: [(f64, f64); 3] = [(1.0, 0.8), (2.0, 0.15), (4.0, 0.05)];
/// Deviation of the level: nothing is known of it.
const LEVEL: f64 = 10.0;

/// A logarithmic gain and its standard deviation.
pub(super) type Gain = (f64, f64);

/// Before anything was seen of an arm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Its gain, on the same scale for all arms.
    pub gain: f64,
    /// By how much less than usual it may differ from what is expected, 0 to 1.
    pub scale: f64,
}

/// Covariance of two arms: of what they have in common, and of the algorithm and of their own at its usual width.
fn covariance(a: &Arm, b: &Arm) -> (f64, f64) {
    let sign = |is: bool| if is { 0.5 } else { -0.5 };
    let (of_a, of_b) = (a.policy.info(), b.policy.info());
    let both = |of_a: bool, of_b: bool, deviation: f64| deviation * deviation * sign(of_a) * sign(of_b);
    let same = |is_same: bool, deviation: f64| if is_same { deviation * deviation } else { 0.0 };
    // Where anticipation decides when to idle, an algorithm's own waits do not.
    let waits = |arm: &Arm, waits: bool| waits && !arm.anticipation;
    let common = both(a.anticipation, b.anticipation, ANTICIPATION)
        + both(waits(a, of_a.waits), waits(b, of_b.waits), WAITING)
        + both(of_a.bypasses_queue, of_b.bypasses_queue, ORDERING);
    (common, same(a.policy.name() == b.policy.name(), ALGORITHM) + same(a == b, OWN))
}

/// What the widths have in common: the arms that were seen, and their covariances with each of all.
struct Problem<'a> {
    expected: &'a [Expected],
    seen: &'a [Option<Gain>],
    with: Vec<usize>,
    covariances: Vec<Vec<(f64, f64)>>,
    /// Of each with itself.
    variances: Vec<(f64, f64)>,
}

/// What is to be expected of each arm, by `seen`, gains with deviations, and by what was expected of each before. What was seen of
/// an arm is one more observation: one window that is far from those of its like is not believed at once. How much algorithms
/// differ for this workload is told by those that were seen: each width has the weight that its marginal likelihood gives it (Rasmussen and
/// Williams, 5.2). O(arms x seen^2).
pub(super) fn expect(arms: &[Arm], expected: &[Expected], seen: &[Option<Gain>]) -> Vec<Gain> {
    let problem = Problem::new(arms, expected, seen);
    let all = WIDTHS.map(|(width, prior)| {
        let (evidence, gains) = problem.posterior(width);
        (evidence + prior.ln(), gains)
    });
    let most = all.iter().map(|(weight, _)| *weight).fold(f64::NEG_INFINITY, f64::max);
    let weights = all.each_ref().map(|(weight, _)| (weight - most).exp());
    let sum: f64 = weights.iter().sum();
    let of = |at: usize| {
        let mean = |value: &dyn Fn(&Gain) -> f64| {
            all.iter().zip(weights).map(|((_, gains), weight)| weight * value(&gains[at])).sum::<f64>() / sum
        };
        let gain = mean(&|(gain, _)| *gain);
        (gain, mean(&|(one, deviation)| deviation * deviation + (one - gain).powi(2)).sqrt())
    };
    (0..arms.len()).map(of).collect()
}

impl Problem<'_> {
    fn new<'a>(arms: &[Arm], expected: &'a [Expected], seen: &'a [Option<Gain>]) -> Problem<'a> {
        let with: Vec<usize> = (0..arms.len()).filter(|at| seen[*at].is_some()).collect();
        let covariances = arms.iter().map(|a| with.iter().map(|b| covariance(a, &arms[*b])).collect()).collect();
        Problem { expected, seen, with, covariances, variances: arms.iter().map(|a| covariance(a, a)).collect() }
    }

    /// What is expected where algorithms differ by so many times what they usually do, and the logarithm of how likely what was seen is
    /// then, but for what is the same for all widths.
    fn posterior(&self, width: f64) -> (f64, Vec<Gain>) {
        let scaled = |a: usize, b: usize, (common, own): (f64, f64)| {
            LEVEL * LEVEL + self.expected[a].scale * self.expected[b].scale * (common + width * width * own)
        };
        let row = |a: usize| -> Vec<f64> {
            self.with.iter().zip(&self.covariances[a]).map(|(b, both)| scaled(a, *b, *both)).collect()
        };
        let mut root: Vec<Vec<f64>> = self.with.iter().map(|a| row(*a)).collect();
        for (at, arm) in self.with.iter().enumerate() {
            root[at][at] += self.seen[*arm].map_or(0.0, |(_, deviation)| deviation.max(1e-3).powi(2));
        }
        factor(&mut root);
        let off = |at: &usize| self.seen[*at].map_or(0.0, |(gain, _)| gain - self.expected[*at].gain);
        let off = forward(&root, &self.with.iter().map(off).collect::<Vec<f64>>());
        let volume: f64 = root.iter().enumerate().map(|(at, row)| row[at].ln()).sum();
        let evidence = -0.5 * off.iter().map(|x| x * x).sum::<f64>() - volume;
        let of = |at: usize| {
            let common = forward(&root, &row(at));
            let gain: f64 = common.iter().zip(&off).map(|(a, b)| a * b).sum();
            let known: f64 = common.iter().map(|a| a * a).sum();
            let variance = scaled(at, at, self.variances[at]);
            (self.expected[at].gain + gain, (variance - known).max(0.0).sqrt())
        };
        (evidence, (0..self.expected.len()).map(of).collect())
    }
}

/// Cholesky's factor, in the lower triangle. The matrix is symmetric and positive definite.
fn factor(matrix: &mut [Vec<f64>]) {
    for row in 0..matrix.len() {
        for column in 0..=row {
            let sum: f64 = (0..column).map(|k| matrix[row][k] * matrix[column][k]).sum();
            let left = matrix[row][column] - sum;
            matrix[row][column] = if row == column { left.max(1e-12).sqrt() } else { left / matrix[column][column] };
        }
    }
}

/// Solves `root * x = right`.
fn forward(root: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut x: Vec<f64> = Vec::with_capacity(right.len());
    for (row, value) in root.iter().zip(right) {
        let sum: f64 = row.iter().zip(&x).map(|(a, b)| a * b).sum();
        x.push((value - sum) / row[x.len()]);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arms() -> Vec<Arm> {
        ["hbrr anticipation=on", "noop", "aioli", "sjf", "sjf anticipation=on", "hbrr"]
            .map(|name| Arm::parse(name).unwrap())
            .into()
    }

    const NOTHING: Expected = Expected { gain: 0.0, scale: 1.0 };

    fn expect_of(seen: &[(usize, f64)]) -> Vec<Gain> {
        let mut gains = vec![None; arms().len()];
        seen.iter().for_each(|(at, gain)| gains[*at] = Some((*gain, 0.1)));
        expect(&arms(), &vec![NOTHING; arms().len()], &gains)
    }

    #[test]
    fn one_arm_without_anticipation_stands_for_those_that_do_not_wait_either() {
        let before = expect_of(&[(0, 0.0)]);
        assert!(before[1].0.abs() < 0.01 && before[1].1 > 0.9, "noop may be anything: {:?}", before[1]);
        assert!(before[4].1 < 0.5, "what anticipates too is alike: {:?}", before[4]);
        let after = expect_of(&[(0, 0.0), (1, -1.9)]);
        for at in [3, 5] {
            assert!(after[at].0 < -1.0 && after[at].0 + after[at].1 < -0.4, "{at}: {:?}", after[at]);
        }
        assert!(after[2].0 + 2.0 * after[2].1 > 0.1, "what waits itself may be another thing: {:?}", after[2]);
        assert!(after[4].0.abs() < 0.15, "{:?}", after[4]);
    }

    #[test]
    fn what_was_expected_is_believed_by_its_scale() {
        let seen = [Some((0.0, 0.01)), Some((-1.0, 0.01)), None, None, None, None];
        let sure = |at: usize| Expected { gain: [0.0, -1.0, -0.5, -0.6, -0.1, -0.7][at], scale: 0.1 };
        let told = expect(&arms(), &[0, 1, 2, 3, 4, 5].map(sure), &seen);
        for (at, (gain, deviation)) in told.iter().enumerate().skip(2) {
            assert!((gain - sure(at).gain).abs() < 0.01 && *deviation < 0.15, "{at}: {gain} {deviation}");
        }
        let is = |at: usize, gain: f64| (told[at].0 - gain).abs() < 0.01 && told[at].1 < 0.02;
        assert!(is(0, 0.0) && is(1, -1.0), "what was seen for certain is what was seen: {told:?}");
    }

    #[test]
    fn where_algorithms_were_seen_to_differ_the_others_may_too() {
        // Without anticipation: aioli, sjf, and what is said of hbrr.
        let alike = expect_of(&[(0, 0.0), (3, 0.0), (2, 0.02)])[5];
        let unlike = expect_of(&[(0, 0.0), (3, 0.0), (2, 0.02), (4, -1.0)])[5];
        assert!(unlike.1 > 1.3 * alike.1, "{alike:?}, {unlike:?}");
    }

    #[test]
    fn nothing_seen_is_nothing_known() {
        let all = expect_of(&[]);
        assert!(all.iter().all(|(gain, deviation)| *gain == 0.0 && *deviation > 5.0));
    }

    proptest! {
        #[test]
        fn it_is_the_regression_that_a_naive_solver_finds(gains in prop::collection::vec(prop::option::of(-3.0..3.0_f64), 6)) {
            let seen: Vec<Option<Gain>> = gains.iter().map(|gain| gain.map(|gain| (gain, 0.2))).collect();
            let (_, got) = Problem::new(&arms(), &[NOTHING; 6], &seen).posterior(1.0);
            let with: Vec<usize> = (0..6).filter(|at| seen[*at].is_some()).collect();
            for (at, (gain, spread)) in got.iter().enumerate() {
                let of = |a: usize, b: usize| {
                    let (common, own) = covariance(&arms()[a], &arms()[b]);
                    LEVEL * LEVEL + common + own
                };
                // Gauss's elimination of (K + noise) w = k.
                let mut rows: Vec<Vec<f64>> = with.iter().map(|a| {
                    let noise = |b: &usize| if a == b { 0.04 } else { 0.0 };
                    with.iter().map(|b| of(*a, *b) + noise(b)).chain([of(at, *a)]).collect()
                }).collect();
                for pivot in 0..rows.len() {
                    for row in 0..rows.len() {
                        if row != pivot {
                            let share = rows[row][pivot] / rows[pivot][pivot];
                            let from = rows[pivot].clone();
                            rows[row].iter_mut().zip(from).for_each(|(a, b)| *a -= share * b);
                        }
                    }
                }
                let weight = |n: usize| rows[n][with.len()] / rows[n][n];
                let mean: f64 = with.iter().enumerate().map(|(n, a)| weight(n) * gains[*a].unwrap()).sum();
                let known: f64 = with.iter().enumerate().map(|(n, a)| weight(n) * of(at, *a)).sum();
                let deviation = (of(at, at) - known).max(0.0).sqrt();
                prop_assert!((gain - mean).abs() < 1e-6, "{gain} {mean}");
                prop_assert!((spread - deviation).abs() < 1e-4, "{spread} {deviation}");
            }
        }
    }
}
