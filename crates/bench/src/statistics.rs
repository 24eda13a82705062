//! What many runs come to.

/// The median, and the smallest and largest. `values` is not empty.
pub(crate) fn median(values: &mut [f64]) -> (f64, [f64; 2]) {
    values.sort_by(f64::total_cmp);
    let middle = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
    (middle, [values[0], values[values.len() - 1]])
}

/// Smallest, quarter, middle, three quarters, largest. `values` is not empty.
pub(crate) fn quartiles(mut values: Vec<f64>) -> [f64; 5] {
    values.sort_by(f64::total_cmp);
    [0, 1, 2, 3, 4].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

/// Between which values the median of what these are drawn from is, with 95 % or more, by the ranks of the sign test: of fewer than six the
/// smallest and largest, which say less. `values` is sorted and not empty.
pub(crate) fn median_interval(values: &[f64]) -> [f64; 2] {
    let count = values.len();
    // How likely it is that no more than so many of them are below the median.
    let (mut way, mut below) = (0.5_f64.powi(count as i32), 0.0);
    let mut out = 0;
    for rank in 0..count / 2 {
        below += way;
        if below > 0.025 {
            break;
        }
        (out, way) = (rank, way * (count - rank) as f64 / (rank + 1) as f64);
    }
    [values[out], values[count - 1 - out]]
}

/// How likely it is that values of the same distribution come out with as many of `high` above those of `low` as these, or more: the exact
/// one-sided test of Wilcoxon, Mann and Whitney. Equal values count as half, so with them it is only near. 1 if one of the two is
/// empty. O(n^2 m^2).
pub(crate) fn chance_above(high: &[f64], low: &[f64]) -> f64 {
    // Doubled, for the halves.
    let of_pair = |(a, b): (&f64, &f64)| match a.total_cmp(b) {
        std::cmp::Ordering::Greater => 2,
        std::cmp::Ordering::Equal => 1,
        std::cmp::Ordering::Less => 0,
    };
    let seen: usize = high.iter().flat_map(|a| low.iter().map(move |b| of_pair((a, b)))).sum();
    let ways = orders(high.len(), low.len());
    let as_many = ways.iter().enumerate().filter(|(above, _)| 2 * above >= seen).map(|(_, ways)| ways);
    as_many.sum::<f64>() / ways.iter().sum::<f64>()
}

/// Of all orders of `n` and `m` different values, those in which so many pairs have the one of the `n` above.
fn orders(n: usize, m: usize) -> Vec<f64> {
    // The largest of all is one of the n, above all m, or one of the m.
    let mut ways = vec![vec![1.0]; m + 1];
    for one in 1..=n {
        let mut next: Vec<Vec<f64>> = vec![vec![1.0]];
        for other in 1..=m {
            let mut sum = vec![0.0; one * other + 1];
            ways[other].iter().enumerate().for_each(|(above, ways)| sum[above + other] += ways);
            next[other - 1].iter().enumerate().for_each(|(above, ways)| sum[above] += ways);
            next.push(sum);
        }
        ways = next;
    }
    ways.swap_remove(m)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the table of D. Hollander and D. Wolfe for the sign test, two-sided 5 %.
    #[test]
    fn the_median_is_between_the_ranks_of_the_sign_test() {
        let ranks = |count: u32| median_interval(&(1..=count).map(f64::from).collect::<Vec<f64>>());
        assert_eq!([5, 6, 11, 25, 31].map(ranks), [[1.0, 5.0], [1.0, 6.0], [2.0, 10.0], [8.0, 18.0], [10.0, 22.0]]);
        assert_eq!(ranks(1), [1.0, 1.0]);
    }

    #[test]
    fn ranks_say_how_likely_chance_is() {
        let five = |from: f64| (0..5).map(|i| from + f64::from(i)).collect::<Vec<f64>>();
        assert_eq!(chance_above(&five(10.0), &five(0.0)), 1.0 / 252.0, "all of them above all");
        assert_eq!(chance_above(&five(0.0), &five(10.0)), 1.0);
        assert_eq!(chance_above(&[3.0], &[2.0, 1.0]), 1.0 / 3.0);
        // By hand: of the 20 orders of 3 and 3, one has 9 pairs, one 8, two 7.
        assert_eq!(chance_above(&[3.0, 5.0, 6.0], &[1.0, 2.0, 4.0]), 2.0 / 20.0);
        assert_eq!(chance_above(&[2.0, 5.0, 6.0], &[1.0, 3.0, 4.0]), 4.0 / 20.0);
        assert!((0.4..0.7).contains(&chance_above(&five(0.0), &five(0.0))), "equal");
        assert_eq!(chance_above(&[], &[1.0]), 1.0);
        assert_eq!(chance_above(&[1.0], &[]), 1.0);
    }
}
