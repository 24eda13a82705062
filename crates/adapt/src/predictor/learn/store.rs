//! The runs of series.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use sluice_core::Op;

use super::state::entry;
use super::{LearnLimits, Learned};
use crate::predictor::forecast::{FileForecast, Predicted, Totals};
use crate::predictor::{Combiner, Forecast, Settings};

/// A request of a run. Its time is since the run began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) time: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) op: Op,
}

pub(super) type Run = Box<[Step]>;

/// Path and target, of a file or a series.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Key {
    pub(super) path: Arc<[u8]>,
    pub(super) target: u32,
}

impl Key {
    /// Of it and its place in a table, nearly.
    pub(super) fn bytes(&self) -> usize {
        2 * size_of::<Key>() + 16 + self.path.len()
    }
}

#[derive(Debug, Default)]
struct Series {
    /// By what they begin with, so that a file that is written and read in turn has both.
    runs: [VecDeque<Run>; 2],
    /// When a run of it was kept last, by the number of runs.
    used: u64,
    /// There are several runs, and they have something in common as far as is known.
    repeats: bool,
}

impl Series {
    fn all(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().flatten()
    }

    fn requests(&self) -> usize {
        self.all().map(|run| run.len()).sum()
    }
}

/// Series by the time of their last use, and their requests.
#[derive(Debug, Default)]
struct Queue {
    by_use: BTreeMap<u64, Key>,
    requests: usize,
}

/// Keeps the last runs of series, within bounds. Series that have not repeated go first while they take more than a quarter:
/// tens of thousands of files that are used once do not drive out what is worth knowing.
#[derive(Debug, Default)]
pub(super) struct Store {
    limits: LearnLimits,
    series: HashMap<Key, Series>,
    once: Queue,
    often: Queue,
    runs: u64,
    /// Runs ever kept.
    uses: u64,
    /// Bytes of all paths and tables.
    overhead: usize,
    /// Series that are not what they were at the last forecast.
    touched: HashSet<Key>,
    changed: bool,
    /// Runs were kept since somebody asked.
    unsaved: bool,
}

/// Memory of a series without its runs, beside its key: its place in the tables, and the lists of runs.
const SERIES_BYTES: usize = size_of::<Series>() + 4 * size_of::<Run>() + 64;

impl Store {
    pub(super) fn new(limits: LearnLimits) -> Store {
        Store { limits, ..Store::default() }
    }

    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn take_unsaved(&mut self) -> bool {
        std::mem::take(&mut self.unsaved)
    }

    pub(super) fn learned(&self) -> Learned {
        let requests = self.once.requests + self.often.requests;
        Learned {
            series: self.series.len() as u64,
            repeating: self.often.by_use.len() as u64,
            runs: self.runs,
            requests: requests as u64,
            open_requests: 0,
            bytes: (requests * size_of::<Step>() + self.overhead) as u64,
        }
    }

    /// All runs, those of the series that was used longest ago first.
    pub(super) fn runs(&self) -> impl Iterator<Item = (&Key, &Run)> {
        let mut all: Vec<_> = self.series.iter().collect();
        all.sort_unstable_by_key(|(_, series)| series.used);
        all.into_iter().flat_map(|(key, series)| series.all().map(move |run| (key, run)))
    }

    fn queue(&mut self, repeats: bool) -> &mut Queue {
        if repeats { &mut self.often } else { &mut self.once }
    }

    /// One more run of a series. Not if it is empty or larger than all may be together.
    pub(super) fn keep(&mut self, key: Key, run: Run) {
        let Some(kind) = run.first().map(|step| step.op.index()) else { return };
        if run.len() > self.limits.requests_max {
            return;
        }
        self.uses += 1;
        let mut series = match self.take(&key) {
            Some(series) => series,
            None => {
                self.overhead += key.bytes() + SERIES_BYTES;
                Series::default()
            }
        };
        self.runs += 1;
        series.runs[kind].push_back(run);
        if series.runs[kind].len() > self.limits.runs {
            series.runs[kind].pop_front();
            self.runs -= 1;
        }
        series.used = self.uses;
        series.repeats = series.runs.iter().any(|runs| runs.len() > 1);
        self.changed |= series.repeats;
        self.unsaved = true;
        self.touched.insert(key.clone());
        self.put(key, series);
        self.evict();
    }

    fn take(&mut self, key: &Key) -> Option<Series> {
        let series = self.series.remove(key)?;
        let queue = self.queue(series.repeats);
        queue.by_use.remove(&series.used);
        queue.requests -= series.requests();
        Some(series)
    }

    fn put(&mut self, key: Key, series: Series) {
        let queue = self.queue(series.repeats);
        queue.by_use.insert(series.used, key.clone());
        queue.requests += series.requests();
        self.series.insert(key, series);
    }

    fn evict(&mut self) {
        let LearnLimits { requests_max, series_max, .. } = self.limits;
        while self.once.requests + self.often.requests > requests_max || self.series.len() > series_max {
            let once = self.once.requests > requests_max / 4 || self.once.by_use.len() > series_max / 4;
            let queue = self.queue(!once && !self.often.by_use.is_empty());
            let Some(key) = queue.by_use.first_entry().map(|entry| entry.get().clone()) else { return };
            if let Some(series) = self.take(&key) {
                self.runs -= series.all().count() as u64;
                self.overhead -= key.bytes() + SERIES_BYTES;
                self.changed |= series.repeats;
                self.touched.remove(&key);
            }
        }
    }

    /// What repeating series predict. `last`: the forecast before, from which series that were not touched are taken over.
    pub(super) fn forecast(&mut self, settings: Settings, last: Option<&Forecast>) -> Forecast {
        let mut keys: Vec<Key> = self.often.by_use.values().cloned().collect();
        keys.sort_unstable();
        let touched = std::mem::take(&mut self.touched);
        let mut new = Forecast {
            totals: Totals { runs: self.limits.runs as u32, ..Totals::default() },
            apart: true,
            ..Forecast::default()
        };
        for key in keys {
            let known = last.filter(|_| !touched.contains(&key));
            let found = known.and_then(|last| Some((last, last.find(&key.path, key.target)?)));
            let entries = self.series[&key].requests();
            let any = match found {
                Some((last, at)) => append(&mut new, &key, last, at, entries),
                None => {
                    let one = combine(&key, &self.series[&key], &self.limits, settings);
                    !one.files.is_empty() && append(&mut new, &key, &one, 0, entries)
                }
            };
            if !any && let Some(series) = self.take(&key) {
                // Several runs that have nothing in common are worth no more than one.
                self.put(key, Series { repeats: false, ..series });
            }
        }
        new
    }
}

fn combine(key: &Key, series: &Series, limits: &LearnLimits, settings: Settings) -> Forecast {
    // What is learned was not recorded for the purpose: a run may have stalled anywhere. So the order of a request's
    // occurrences pairs them, not their times; arrivals must still be near the mean to be linked.
    let mut combiner = Combiner::new(Settings { runs_min: 2, margin_floor_ns: u64::MAX, ..settings });
    for number in 0..limits.runs {
        let mut begun = combiner.begin_run();
        for run in series.runs.iter().filter_map(|runs| runs.get(number)) {
            // Bounds are those of one trace at most, which fit.
            let _ = run.iter().try_for_each(|step| begun.push(&key.path, entry(0, key.target, step)));
        }
        begun.end();
    }
    combiner.finish()
}

/// Takes over a file with its requests, if there are any.
fn append(to: &mut Forecast, key: &Key, from: &Forecast, file: usize, entries: usize) -> bool {
    let (pace, file) = (&from.paces[file], from.files[file]);
    let requests: &[Predicted] = &from.requests[file.reads as usize..file.end as usize];
    if requests.is_empty() {
        return false;
    }
    let Ok(path) = to.paths.insert(&key.path) else { return false };
    // How far its requests move.
    let (start, before) = (to.requests.len() as u32, file.reads);
    let moved = |at: u32| at - before + start;
    to.files.push(FileForecast { path, reads: start, writes: moved(file.writes), end: moved(file.end), ..file });
    to.paces.push(pace.clone());
    to.requests.extend_from_slice(requests);
    let paired: u64 = requests.iter().map(|request| u64::from(request.runs)).sum();
    let totals = &mut to.totals;
    totals.entries += entries as u64;
    totals.requests += requests.len() as u64;
    totals.paired += requests.iter().filter(|request| request.runs > 1).count() as u64;
    // What is not in a pair came once.
    totals.rare += entries as u64 - paired;
    true
}
