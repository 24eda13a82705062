//! What calls of a kind have taken, so that it can be compared though another program disturbs them.
//!
//! Beside a program on the same disks a call takes either its own time or, now and then, ten times that, as the disk serves the
//! other one first. A mean of the last few calls is then chance, and a median says nothing of how often that happens. So two figures are
//! kept: what a call *usually* takes, a median, and what it takes *on average*. What is faster is so in both, or by far on average, of
//! enough calls. The one longest of the last
//! calls is not held against a strategy if the library's calls have been as long.

/// Last calls that the median is of, and those that the mean of a strategy is of.
const USUAL: usize = 5;
const STEADY: usize = 16;
/// Calls that a mean of the library remembers.
const MEMORY: f64 = 64.0;
/// Calls after which what was slower, perhaps for other reasons, may be tried again; then after twice as many each time, so often.
const SECOND_CHANCE: u64 = 16;
const MOST_FAILURES: u32 = 20;
/// Calls of the library, of which a mean tells how often it is disturbed.
const ENOUGH: f64 = 16.0;
/// Times the library's mean; what takes less is by far faster.
const FAR: f64 = 0.75;
/// Times the longest of the library's calls; what takes longer has reasons of its own.
const ALIKE: f64 = 1.5;
/// Times what is usual; what takes longer is disturbed, if the library is at times.
pub(crate) const DISTURBED: f64 = 2.0;

/// What is known of calls of a kind with a strategy, of whichever file. Rates are seconds of a byte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// Calls whose times are known.
    pub(crate) calls: u64,
    /// The library's calls before the first one.
    pub(crate) library: u64,
    /// Trials that found it slower, lately, and the calls of these processes before which it is not tried again.
    pub(crate) failures: u32,
    pub(crate) due: u64,
    /// The last calls, the newest one at `calls - 1` modulo their number.
    recent: [f64; STEADY],
    /// Of how many calls the mean is, at most [`MEMORY`].
    weight: f64,
    mean: f64,
    longest: f64,
}

impl Known {
    /// A call took this.
    pub(crate) fn add(&mut self, rate: f64) {
        self.recent[self.calls as usize % STEADY] = rate;
        self.calls += 1;
        self.longest = self.longest.max(rate);
        self.average(rate, 1.0);
    }

    /// The same of the library, whose first call has costs of its own: nobody is to look good against them.
    pub(crate) fn add_of_library(&mut self, rate: f64) {
        if self.calls == 1 {
            let first = rate.min(self.mean);
            (self.recent[0], self.mean, self.longest) = (first, first, first);
        }
        self.add(rate);
    }

    /// So many calls took this on average, and nobody knows more.
    pub(crate) fn add_many(&mut self, rate: f64, calls: f64) {
        self.average(rate, calls);
    }

    fn average(&mut self, rate: f64, calls: f64) {
        self.weight = (self.weight + calls).min(MEMORY);
        self.mean += (rate - self.mean) * (calls / self.weight).min(1.0);
    }

    /// What a call takes on average, the longest one included.
    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// It was tried, or found slower, when there had been so many calls: the next time is later, by twice as many calls each time.
    pub(crate) fn put_off(&mut self, calls: u64) {
        self.due = calls + (SECOND_CHANCE << self.failures);
        self.failures = (self.failures + 1).min(MOST_FAILURES);
    }

    /// What a call of the library is to be expected to take, the longest ones included once there were enough to tell.
    pub(crate) fn expected(&self) -> f64 {
        if self.weight < ENOUGH { self.mean.min(self.usual()) } else { self.mean }
    }

    /// What a call usually takes: the median of the last ones; 0 if there were none.
    pub(crate) fn usual(&self) -> f64 {
        let calls = self.calls as usize;
        let mut last = [0.0; USUAL];
        let count = calls.min(USUAL);
        for (back, rate) in last[..count].iter_mut().enumerate() {
            *rate = self.recent[(calls - 1 - back) % STEADY];
        }
        last[..count].sort_by(f64::total_cmp);
        last[count.saturating_sub(1) / 2]
    }

    /// Whether calls with this strategy are slower than the library's: on average; or usually, and not by far faster on average.
    pub(crate) fn is_slower(&self, library: &Known) -> bool {
        let steady = self.steady(library);
        let is_far = steady < FAR * library.mean && library.weight >= ENOUGH;
        steady > library.mean || !is_far && self.usual() > library.usual()
    }

    /// The mean of the last calls, but for the longest one if the library has had such.
    pub(crate) fn steady(&self, library: &Known) -> f64 {
        let last = &self.recent[..STEADY.min(self.calls as usize)];
        let (sum, longest) = (last.iter().sum::<f64>(), last.iter().copied().fold(0.0, f64::max));
        match last.len() {
            0 => 0.0,
            1 => longest,
            count if longest > ALIKE * library.longest => sum / count as f64,
            count => (sum - longest) / (count - 1) as f64,
        }
    }

    /// Whether its only call says nothing, as it took as long as the library's do when they are disturbed.
    pub(crate) fn is_disturbed(&self, library: &Known) -> bool {
        let least = DISTURBED * library.usual();
        self.calls == 1 && library.longest > least && (least..=ALIKE * library.longest).contains(&self.mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rates: &[f64]) -> Known {
        let mut known = Known::default();
        rates.iter().for_each(|&rate| known.add(rate));
        known
    }

    #[test]
    fn one_disturbed_call_decides_nothing_and_many_do() {
        let library = of(&[6.0, 6.0, 100.0, 6.0, 6.0, 6.0, 6.0, 6.0]);
        let mut faster = of(&[3.0, 3.0, 3.0, 100.0, 3.0]);
        assert!(!faster.is_slower(&library));
        (0..2).for_each(|_| faster.add(100.0));
        assert!(faster.is_slower(&library), "faster as a rule, and slower on average");
        assert!(of(&[7.0; 5]).is_slower(&library), "faster on average, and slower as a rule");
        let mut well_known = library;
        well_known.add_many(17.0, 16.0);
        assert!(!of(&[7.0; 5]).is_slower(&well_known), "by far faster on average, of enough calls");
        assert!(of(&[3.0, 200.0, 3.0]).is_slower(&library), "such calls the library does not have");
        assert!(of(&[100.0]).is_disturbed(&library) && !of(&[200.0]).is_disturbed(&library));
        assert!(!of(&[12.0]).is_disturbed(&of(&[6.0, 6.5, 6.0])));
    }

    #[test]
    fn the_median_is_of_the_last_calls_and_the_mean_of_those_that_nobody_saw_too() {
        let mut library = Known::default();
        [50.0, 4.0, 6.0].iter().for_each(|&rate| library.add_of_library(rate));
        assert_eq!((library.usual(), library.calls), (4.0, 3), "the first one has costs of its own");
        (0..20).for_each(|_| library.add_of_library(8.0));
        assert_eq!(library.usual(), 8.0);
        library.add_many(20.0, 64.0);
        assert_eq!((library.usual(), library.expected()), (8.0, 20.0));
    }
}
