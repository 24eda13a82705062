//! Whether batches lack parts all the time.
//!
//! Where the recorded runs were served better than in whole groups ([need](super::super::need)), a trial of waiting would cost
//! more than it could bring. It is begun all the same if parts are missing in most batches, and for a while: then this run
//! is not like those.

use super::trial::Verdict;

/// Newest batches that count, the older the less.
const RECENT: f64 = 32.0;
/// Share of them that lack parts from which on it is most of them: after 22 in a row at the earliest.
const MOST: f64 = 0.5;

/// How many of the newest batches lack parts that are known to come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lack {
    share: f64,
    /// A trial has been begun for it, and is not decided.
    begun: bool,
}

impl Lack {
    /// A batch is chosen.
    pub(super) fn chosen(&mut self) {
        self.share -= self.share / RECENT;
    }

    /// It lacks parts. Whether to wait for them, as far as that is a question of how many do.
    pub(super) fn lacks(&mut self, verdict: Verdict) -> bool {
        self.share += 1.0 / RECENT;
        let most = self.share > MOST;
        self.begun = match verdict {
            Verdict::Unknown => self.begun || most,
            Verdict::Pays => true,
            Verdict::DoesNotPay => most,
        };
        self.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_batches_for_a_while_is_enough_and_some_never_are() {
        let first = |every: u32, verdict: Verdict| {
            let mut lack = Lack::default();
            (1..1_000).find(|number| {
                lack.chosen();
                number % every == 0 && lack.lacks(verdict)
            })
        };
        assert_eq!(first(1, Verdict::Unknown), Some(22));
        assert_eq!(first(1, Verdict::DoesNotPay), Some(22));
        assert_eq!(first(3, Verdict::Unknown), None, "a third of them");
        assert_eq!(first(3, Verdict::Pays), Some(3));
    }

    #[test]
    fn a_trial_that_has_begun_goes_on_until_it_is_decided() {
        let mut lack = Lack::default();
        for _ in 0..22 {
            lack.chosen();
            lack.lacks(Verdict::Unknown);
        }
        (0..200).for_each(|_| lack.chosen());
        assert!(lack.lacks(Verdict::Unknown), "few are to be waited for because it is done");
        assert!(!lack.lacks(Verdict::DoesNotPay));
    }
}
