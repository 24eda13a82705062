//! How far apart what was simulated and what was measured are.

/// How far the simulated value is from the real one, so that half as much is as wrong as twice as much: positive if it is
/// larger. 1.0 is twice, -1.0 half.
pub(super) fn error(simulated: f64, real: f64) -> f64 {
    if simulated >= real { simulated / real - 1.0 } else { 1.0 - real / simulated }
}

/// The smallest value that at least this share of all do not exceed (nearest rank). NaN if there are none.
pub(super) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// Spearman's rank correlation, -1 to 1: Pearson's of the ranks, those of equal values being their mean. NaN if one of the two
/// does not vary.
pub(super) fn spearman(pairs: &[(f64, f64)]) -> f64 {
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (a, b) = (ranks(&a), ranks(&b));
    let mean = (pairs.len() as f64 + 1.0) / 2.0;
    let sum = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    sum(&a, &b) / (sum(&a, &a) * sum(&b, &b)).sqrt()
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let (less, equal) = values.iter().fold((0, 0), |(less, equal), other| match other.total_cmp(value) {
            std::cmp::Ordering::Less => (less + 1, equal),
            std::cmp::Ordering::Equal => (less, equal + 1),
            std::cmp::Ordering::Greater => (less, equal),
        });
        f64::from(less) + (f64::from(equal) + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// Number of the largest. NaN never is.
pub(super) fn largest(values: impl Iterator<Item = f64>) -> usize {
    let best = values.enumerate().filter(|(_, value)| !value.is_nan()).max_by(|a, b| a.1.total_cmp(&b.1));
    best.map_or(0, |(place, _)| place)
}

/// Whether the side that is simulated to be the best is so for real, or at most so much behind: real and simulated values, side
/// by side. Of several that are simulated to be the same, each.
pub(super) fn same_winner(sides: &[(f64, f64)], tie: f64) -> bool {
    let (real, simulated) = (largest(sides.iter().map(|side| side.0)), largest(sides.iter().map(|side| side.1)));
    let (Some(real), Some(simulated)) = (sides.get(real), sides.get(simulated)) else { return false };
    sides.iter().filter(|side| side.1 == simulated.1).all(|side| side.0 >= real.0 * (1.0 - tie))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn half_is_as_wrong_as_twice() {
        assert_eq!([error(2.0, 1.0), error(1.0, 2.0), error(3.0, 3.0)], [1.0, -1.0, 0.0]);
        assert!((error(1.0, 8.81) + 7.81).abs() < 1e-9);
    }

    #[test]
    fn percentiles_are_values_of_the_list() {
        let values: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.9, 0.91, 1.0].map(|share| percentile(&values, share)), [1.0, 5.0, 9.0, 10.0, 10.0]);
        assert!(percentile(&[], 0.5).is_nan());
        assert_eq!(percentile(&[7.0], 0.9), 7.0);
    }

    #[test]
    fn ranks_correlate_whatever_the_scale_and_ties_count_as_their_mean() {
        let mut random = SplitMix64(5);
        let rising: Vec<(f64, f64)> = (0..40).map(|i| (f64::from(i), f64::from(i).exp())).collect();
        assert!((spearman(&rising) - 1.0).abs() < 1e-12);
        let falling: Vec<(f64, f64)> = rising.iter().map(|&(a, b)| (a, -b)).collect();
        assert!((spearman(&falling) + 1.0).abs() < 1e-12);
        let chance: Vec<(f64, f64)> = (0..2000).map(|_| (random.next() as f64, random.next() as f64)).collect();
        assert!(spearman(&chance).abs() < 0.1);
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 9.0]), [2.5, 1.0, 2.5, 4.0]);
        // By hand: d² = 0 + 1 + 1 + 0, 1 - 6 * 2 / (4 * 15) = 0.8.
        assert!((spearman(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)]) - 0.8).abs() < 1e-12);
        assert!(spearman(&[(1.0, 2.0), (1.0, 3.0)]).is_nan());
    }

    #[test]
    fn a_winner_may_be_behind_by_a_tie() {
        assert!(same_winner(&[(10.0, 1.0), (9.0, 0.5)], 0.05));
        // Which of two comes first does not decide.
        assert!(!same_winner(&[(10.0, 2.0), (9.0, 2.0)], 0.05));
        assert!(!same_winner(&[(9.0, 2.0), (10.0, 2.0)], 0.05));
        assert!(same_winner(&[(9.6, 2.0), (10.0, 2.0)], 0.05));
        assert!(!same_winner(&[(10.0, 1.0), (9.0, 2.0)], 0.05));
        assert!(same_winner(&[(10.0, 1.0), (9.6, 2.0)], 0.05));
        assert!(!same_winner(&[], 0.05));
    }
}
