//! How fast the recorded runs went on: the throughput without predictions that a run with them is compared with.

/// Stretches of a run with as many requests each, by which its pace is known.
const STRETCHES: usize = 32;

/// When the requests to a file came in a recorded run, in the mean of the runs.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// Requests of a run.
    count: f64,
    /// When these shares of them had come, in nanoseconds since the first one.
    times: Box<[u64]>,
    /// The slowest run's time between two requests, over that of the fastest.
    spread: f64,
}

impl Pace {
    /// From the times of the requests of each run. Runs without any do not count. O(n log n), n being the requests.
    pub(super) fn new<'a>(runs: impl Iterator<Item = &'a mut Vec<u64>>) -> Pace {
        let (mut used, mut count, mut times) = (0_u64, 0, Vec::new());
        // Of each run, how many there were and when the last one came.
        let mut ends = Vec::new();
        for run in runs.filter(|run| !run.is_empty()) {
            run.sort_unstable();
            if used == 0 {
                times.resize(STRETCHES.min(run.len()) + 1, 0_u64);
            }
            let stretches = times.len() as u64 - 1;
            let last = run.len() as u64 - 1;
            let reached = |share: usize| run[(last * share as u64 / stretches) as usize];
            times.iter_mut().enumerate().for_each(|(share, time)| *time = time.saturating_add(reached(share)));
            ends.push((run.len(), run[last as usize]));
            (used, count) = (used + 1, count + run.len());
        }
        times.iter_mut().for_each(|time| *time /= used.max(1));
        let count = count as f64 / used.max(1) as f64;
        // One that was cut short says nothing of how the whole goes.
        let tells = |&&(len, _): &&(usize, u64)| len > 1 && len as f64 >= count / 2.0;
        let paces = ends.iter().filter(tells).map(|&(len, last)| last.max(1) as f64 / (len - 1) as f64);
        let (fastest, slowest) = paces.fold((f64::MAX, 0.0_f64), |(min, max), pace| (min.min(pace), max.max(pace)));
        Pace { count, times: times.into(), spread: (slowest / fastest).max(1.0) }
    }

    /// How long a run took from its first request to its last, in nanoseconds.
    pub(super) fn duration(&self) -> u64 {
        self.times.last().copied().unwrap_or_default()
    }

    /// How many times as long a request took in the slowest run as in the fastest; at least 1.
    pub(super) fn spread(&self) -> f64 {
        self.spread
    }

    /// How much time lay between a run's request of this number and the next one, in nanoseconds. 0 behind its end.
    pub(super) fn step(&self, number: u32) -> f64 {
        let stretches = self.times.len().saturating_sub(1);
        let place = (f64::from(number) / self.count.max(1.0) * stretches as f64) as usize;
        match self.times.get(place..place + 2) {
            Some(ends) => (ends[1] - ends[0]) as f64 * stretches as f64 / self.count,
            None => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_that_of_each_stretch() {
        // 64 requests at 1 ms, then 64 at 3 ms; the other run is half as fast.
        let at = |number: u64| if number < 64 { number * 1_000_000 } else { 64_000_000 + (number - 64) * 3_000_000 };
        let mut runs: Vec<Vec<u64>> =
            vec![(0..128).map(at).collect(), Vec::new(), (0..128).map(|n| 2 * at(n)).collect()];
        let pace = Pace::new(runs.iter_mut());
        assert_eq!(pace.count, 128.0);
        assert_eq!((pace.duration(), pace.spread()), (at(127) * 3 / 2, 2.0));
        for (number, step) in [(0, 1.5e6), (40, 1.5e6), (80, 4.5e6), (120, 4.5e6)] {
            assert!((pace.step(number) - step).abs() < step * 0.3, "{number}: {}", pace.step(number));
        }
        let whole: f64 = (0..128).map(|number| pace.step(number)).sum();
        assert!((whole - 1.5 * at(127) as f64).abs() < 1e6, "{whole}");
        assert_eq!(pace.step(128), 0.0);
        let mut cut: Vec<Vec<u64>> = vec![(0..128).map(at).collect(), vec![0], (0..96).map(at).collect()];
        let spread = Pace::new(cut.iter_mut()).spread();
        assert!((1.0..1.5).contains(&spread), "cut short, not slower: {spread}");
        let none = Pace::new(Vec::<Vec<u64>>::new().iter_mut());
        assert_eq!((none.step(0), none.duration(), none.spread()), (0.0, 0, 1.0));
    }
}
