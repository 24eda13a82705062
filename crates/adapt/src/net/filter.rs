//! What an I/O node goes by: what the network says of this second, and of those before.
//!
//! A second of few requests can look like another pattern: of 768 processes that write 512 KiB each through one node, which moves a
//! hundred of these, some seconds of a file used by turns look as if it were used in parts. But programs do not change their
//! pattern from second to second. This is the forward recursion of a hidden Markov model (Rabiner 1989, III A) of three states, each of
//! which stays with the same probability, and of which the network's shares are the likelihoods.

use super::{CLASSES, PATTERNS, Verdict};
use crate::forest::winner;

/// That a pattern is another one in the next second.
const CHANGE: f64 = 0.02;
/// Least likelihood that is believed: the network errs in a few windows of a hundred, however certain it is. With
/// [`CHANGE`] this has a new pattern believed in its second window.
const LEAST: f64 = 0.02;

/// See the module. Three numbers for each node; O(1), allocates nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filter {
    shares: [f64; CLASSES.len()],
}

impl Default for Filter {
    fn default() -> Filter {
        Filter { shares: [1.0 / CLASSES.len() as f64; CLASSES.len()] }
    }
}

impl Filter {
    /// What is most likely after this window, of which the network says so much. Nothing is said of one of which it says nothing, and
    /// what was before counts for less after it.
    pub fn see(&mut self, of_window: Option<Verdict>) -> Option<Verdict> {
        let others = (CLASSES.len() - 1) as f64;
        self.shares = self.shares.map(|share| share * (1.0 - CHANGE) + (1.0 - share) * CHANGE / others);
        let likelihoods = of_window?.shares;
        self.shares.iter_mut().zip(likelihoods).for_each(|(share, likelihood)| *share *= likelihood.max(LEAST));
        let sum: f64 = self.shares.iter().sum();
        self.shares = self.shares.map(|share| share / sum);
        Some(Verdict { pattern: PATTERNS[winner(&self.shares)], shares: self.shares })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of_shares(shares: [f64; CLASSES.len()]) -> Option<Verdict> {
        Some(Verdict { pattern: PATTERNS[winner(&shares)], shares })
    }

    fn sure_of(class: usize) -> Option<Verdict> {
        let mut shares = [0.0; CLASSES.len()];
        shares[class] = 1.0;
        of_shares(shares)
    }

    #[test]
    fn a_window_that_errs_is_passed_over_and_a_change_is_followed_in_two() {
        let mut filter = Filter::default();
        let mut see = |class: usize| filter.see(sure_of(class)).map(|verdict| verdict.pattern).unwrap();
        assert_eq!(see(2), PATTERNS[2], "the first window counts alone");
        for _ in 0..100 {
            assert_eq!(see(2), PATTERNS[2]);
        }
        assert_eq!(see(1), PATTERNS[2], "one window is no change");
        assert_eq!([see(2), see(2), see(2)], [PATTERNS[2]; 3]);
        see(0);
        assert_eq!(see(0), PATTERNS[0], "two are");
    }

    #[test]
    fn doubt_says_nothing_and_silence_makes_forget() {
        let mut filter = Filter::default();
        filter.see(sure_of(1));
        let third = 1.0 / 3.0;
        for _ in 0..3 {
            assert_eq!(filter.see(of_shares([third; 3])).unwrap().pattern, PATTERNS[1]);
        }
        for _ in 0..300 {
            assert_eq!(filter.see(None), None);
        }
        assert_eq!(filter.see(sure_of(0)).unwrap().pattern, PATTERNS[0], "one window is enough after five minutes");
    }

    proptest! {
        #[test]
        fn shares_are_shares(windows in proptest::collection::vec((0.0..1.0_f64, 0.0..1.0_f64), 0..200)) {
            let mut filter = Filter::default();
            for (a, b) in windows {
                let shares = [a * b, a * (1.0 - b), 1.0 - a];
                let verdict = filter.see(of_shares(shares)).unwrap();
                prop_assert!((verdict.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                prop_assert!(verdict.shares.iter().all(|share| (0.0..=1.0).contains(share)));
            }
        }
    }
}
