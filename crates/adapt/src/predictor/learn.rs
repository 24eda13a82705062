//! Learning what repeats: time steps, checkpoints, and other files that are made again and again in the same way.
//!
//! A *series* is what files have in common whose paths differ in numbers only (`out.0010`, `out.0020`), or one file that is
//! used again. Each use of a file, up to a pause, is a *run* of its series. The last runs of each series are kept and
//! combined like the traces of programs; what came in at least two of them is predicted for the next file of the series.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::sync::Arc;

use sluice_core::Op;
use sluice_trace::{Columns, Entry, Error, Reader, Writer};

use super::{Combiner, Forecast, Settings};

/// Bounds of what is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnLimits {
    /// Runs of each series.
    pub runs: usize,
    /// Requests of a run. Longer ones are not kept.
    pub run_requests_max: usize,
    /// Requests of all runs together. 24 bytes each.
    pub requests_max: usize,
    /// Series.
    pub series_max: usize,
    /// Files in use at a time that are followed.
    pub files_max: usize,
    /// A file that is not used for so many nanoseconds has ended its run.
    pub pause_ns: u64,
}

impl Default for LearnLimits {
    fn default() -> LearnLimits {
        LearnLimits {
            runs: 3,
            run_requests_max: 1 << 17,
            requests_max: 1 << 20,
            series_max: 1 << 14,
            files_max: 4096,
            pause_ns: 2_000_000_000,
        }
    }
}

/// What paths that differ in numbers only have in common: each number becomes `#`.
#[must_use]
pub fn series_of(path: &[u8]) -> Vec<u8> {
    let mut series = Vec::with_capacity(path.len());
    for &byte in path {
        if !byte.is_ascii_digit() {
            series.push(byte);
        } else if series.last() != Some(&b'#') {
            series.push(b'#');
        }
    }
    series
}

/// A request of a run. Its time is since the run began.
#[derive(Clone, Copy, Debug)]
struct Step {
    time: u64,
    offset: u64,
    len: u32,
    op: Op,
}

/// A file in use.
#[derive(Debug)]
struct Open {
    first: u64,
    last: u64,
    steps: Vec<Step>,
    too_long: bool,
}

type Run = Vec<Step>;

/// Series and target.
type Key = (Arc<[u8]>, u32);

#[derive(Debug, Default)]
struct Series {
    runs: VecDeque<Run>,
    /// When a run of it was kept last, by the number of runs.
    used: u64,
}

/// Follows requests and keeps the last runs of what repeats. Bounded.
#[derive(Debug, Default)]
pub struct Learner {
    limits: LearnLimits,
    open: HashMap<Key, Open>,
    series: HashMap<Key, Series>,
    requests: usize,
    runs: u64,
    changed: bool,
}

impl Learner {
    /// Knows nothing.
    #[must_use]
    pub fn new(limits: LearnLimits) -> Learner {
        Learner { limits, ..Learner::default() }
    }

    /// A request arrived. Times are those of one clock, and need not be in order.
    pub fn seen(&mut self, path: &Arc<[u8]>, entry: &Entry) {
        let key = (path.clone(), entry.target);
        let step = Step { time: 0, offset: entry.offset, len: entry.len, op: entry.op };
        if let Some(open) = self.open.get(&key) {
            let gap = entry.time.saturating_sub(open.last);
            let same = |first: &Step| (first.offset, first.len, first.op) == (step.offset, step.len, step.op);
            // Begins again: at once, or after a pause that nobody has noticed.
            let again = gap > self.limits.pause_ns / 20 && open.steps.first().is_some_and(same);
            if again || gap > self.limits.pause_ns {
                self.close(&key);
            }
        }
        if !self.open.contains_key(&key) {
            if self.open.len() >= self.limits.files_max {
                return;
            }
            let open = Open { first: entry.time, last: entry.time, steps: Vec::new(), too_long: false };
            self.open.insert(key.clone(), open);
        }
        let Some(open) = self.open.get_mut(&key) else { return };
        open.last = open.last.max(entry.time);
        if open.steps.len() >= self.limits.run_requests_max {
            (open.too_long, open.steps) = (true, Vec::new());
        }
        if !open.too_long {
            open.steps.push(Step { time: entry.time.saturating_sub(open.first), ..step });
        }
    }

    /// Ends the runs of files that are not used any more.
    pub fn settle(&mut self, now: u64) {
        let over = |open: &Open| now.saturating_sub(open.last) > self.limits.pause_ns;
        let ended: Vec<Key> = self.open.iter().filter(|(_, open)| over(open)).map(|(key, _)| key.clone()).collect();
        ended.iter().for_each(|key| self.close(key));
    }

    fn close(&mut self, key: &Key) {
        let Some(open) = self.open.remove(key) else { return };
        // A single request has no neighbours to wait for.
        if open.steps.len() >= 2 {
            self.keep((series_of(&key.0).into(), key.1), open.steps);
        }
    }

    fn keep(&mut self, key: Key, run: Run) {
        if run.len() > self.limits.requests_max {
            return;
        }
        self.runs += 1;
        self.changed = true;
        self.requests += run.len();
        let series = self.series.entry(key).or_default();
        series.used = self.runs;
        series.runs.push_back(run);
        if series.runs.len() > self.limits.runs {
            self.requests -= series.runs.pop_front().map_or(0, |run| run.len());
        }
        while self.requests > self.limits.requests_max || self.series.len() > self.limits.series_max {
            let oldest = self.series.iter().min_by_key(|(_, series)| series.used).map(|(key, _)| key.clone());
            let Some(series) = oldest.and_then(|key| self.series.remove(&key)) else { break };
            self.requests -= series.runs.iter().map(Vec::len).sum::<usize>();
        }
    }

    /// True once after something new was learned.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Series that were seen at least twice.
    #[must_use]
    pub fn repeating(&self) -> usize {
        self.series.values().filter(|series| series.runs.len() > 1).count()
    }

    /// Requests that are kept.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// What the next file of each repeating series will be asked for. Its paths are [series](series_of).
    #[must_use]
    pub fn forecast(&self, settings: Settings) -> Forecast {
        let mut combiner = Combiner::new(Settings { runs_min: 2, ..settings });
        for number in 0..self.limits.runs {
            let mut begun = combiner.begin_run();
            for ((path, target), series) in self.series.iter().filter(|(_, series)| series.runs.len() > 1) {
                let Some(run) = series.runs.get(number) else { continue };
                // Bounds are those of one trace at most, which fit.
                let _ = run.iter().try_for_each(|step| begun.push(path, entry(0, *target, step)));
            }
            begun.end();
        }
        combiner.finish()
    }

    /// Writes what is kept as a trace: each run a file of its own with the path of its series.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save<W: Write>(&self, writer: &mut Writer<W>) -> Result<(), Error> {
        let mut all: Vec<_> = self.series.iter().collect();
        all.sort_by_key(|(key, series)| (series.used, *key));
        for ((path, target), series) in all {
            for run in &series.runs {
                let file = writer.another_file(path)?;
                run.iter().try_for_each(|step| writer.push(entry(file, *target, step)))?;
            }
        }
        Ok(())
    }

    /// Takes over what [`Learner::save`] wrote.
    ///
    /// # Errors
    /// If it cannot be read; what was read before that place is kept.
    pub fn load<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<(), Error> {
        let mut runs: Vec<(Key, Run)> = Vec::new();
        let (mut numbers, mut block, mut total) = (HashMap::new(), Columns::default(), 0);
        let result = loop {
            match reader.next_block(&mut block) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
            for entry in block.iter().take(self.limits.requests_max.saturating_sub(total)) {
                let at = *numbers.entry((entry.file, entry.target)).or_insert_with(|| {
                    runs.push(((reader.paths().get(entry.file).into(), entry.target), Vec::new()));
                    runs.len() - 1
                });
                runs[at].1.push(Step { time: entry.time, offset: entry.offset, len: entry.len, op: entry.op });
                total += 1;
            }
        };
        runs.into_iter().for_each(|(key, run)| self.keep(key, run));
        result
    }
}

fn entry(file: u32, target: u32, step: &Step) -> Entry {
    Entry { time: step.time, file, app: 0, target, op: step.op, offset: step.offset, len: step.len }
}
