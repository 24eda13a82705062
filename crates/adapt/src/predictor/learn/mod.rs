//! Learning what repeats: time steps, checkpoints, and other files that are made again and again in the same way.
//!
//! A *series* is what files have in common whose paths differ in numbers only (`out.0010`, `out.0020`), or one file that is
//! used again. Each use of a file, up to a pause, is a *run* of its series. The last runs of each series are kept and
//! combined like the traces of programs; what came in at least two of them is predicted for the next file of the series.
//!
//! A program may also append step after step to one file. What comes between two pauses behind everything before is a
//! *burst*. Bursts are runs of a series of their own, with offsets counted from the lowest one.

pub(super) mod bursts;
mod open;
mod state;
mod store;

use std::collections::HashMap;
use std::sync::Arc;

use sluice_trace::Entry;

use open::{Begins, Open};
use store::{Key, Store};

use super::{Forecast, Settings};

/// Bounds of what is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnLimits {
    /// Runs of each series that begin with a read, and as many that begin with a write.
    pub runs: usize,
    /// Requests of a run. Longer ones are not kept.
    pub run_requests_max: usize,
    /// Requests of all runs together, and again so many of files in use. 24 bytes each.
    pub requests_max: usize,
    /// Series. Those that have not repeated may take all the room that is left, and are the first to go while they take more
    /// than a quarter of it.
    pub series_max: usize,
    /// Files that are followed at a time.
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

impl LearnLimits {
    /// A shorter pause, after which a file that begins again as before, or goes on behind its end, begins a run or burst.
    pub(super) fn short_pause_ns(&self) -> u64 {
        self.pause_ns / 20
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

/// Ends the path of bursts. No path of a file ends like this.
const BURSTS: &[u8] = b"//+";

/// How much is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Learned {
    /// Series.
    pub series: u64,
    /// Of these, the ones that have been seen at least twice.
    pub repeating: u64,
    /// Runs that are kept.
    pub runs: u64,
    /// Their requests.
    pub requests: u64,
    /// Requests of files in use.
    pub open_requests: u64,
    /// Memory, nearly.
    pub bytes: u64,
}

/// Follows requests and keeps the last runs of what repeats. Bounded.
#[derive(Debug, Default)]
pub struct Learner {
    limits: LearnLimits,
    open: HashMap<Key, Open>,
    /// Steps of open files.
    open_steps: usize,
    store: Store,
    /// The last one, which has what has not changed since.
    made: Option<(Settings, Arc<Forecast>)>,
}

impl Learner {
    /// Knows nothing.
    #[must_use]
    pub fn new(limits: LearnLimits) -> Learner {
        Learner { limits, store: Store::new(limits), ..Learner::default() }
    }

    /// A request arrived. Its file's number tells apart files that had the same path one after the other. Times are those
    /// of one clock, and need not be in order.
    pub fn seen(&mut self, path: &Arc<[u8]>, entry: &Entry) {
        let key = Key { path: path.clone(), target: entry.target };
        if !self.open.contains_key(&key) {
            self.make_room();
            self.open.insert(key.clone(), Open::new(entry));
        }
        let Some(open) = self.open.get_mut(&key) else { return };
        match open.begins(entry, &self.limits) {
            Begins::Nothing => {}
            Begins::Burst => self.end_burst(&key),
            Begins::Run => self.close(&key),
        }
        let full = self.open_steps >= self.limits.requests_max;
        let Some(open) = self.open.get_mut(&key) else { return };
        let before = open.len();
        open.push(entry, if full { 0 } else { self.limits.run_requests_max });
        self.open_steps = self.open_steps + open.len() - before;
    }

    /// Ends the runs of files that are not used any more.
    pub fn settle(&mut self, now: u64) {
        let over = |open: &Open| open.len() > 0 && now.saturating_sub(open.last()) > self.limits.pause_ns;
        let ended: Vec<Key> = self.open.iter().filter(|(_, open)| over(open)).map(|(key, _)| key.clone()).collect();
        ended.iter().for_each(|key| self.close(key));
        let over = |open: &Open| open.has_burst() && now.saturating_sub(open.last()) > self.limits.short_pause_ns();
        let ended: Vec<Key> = self.open.iter().filter(|(_, open)| over(open)).map(|(key, _)| key.clone()).collect();
        ended.iter().for_each(|key| self.end_burst(key));
    }

    /// Forgets those files that were not used for longest, if there are too many.
    fn make_room(&mut self) {
        if self.open.len() < self.limits.files_max.max(1) {
            return;
        }
        let mut all: Vec<(u64, Key)> = self.open.iter().map(|(key, open)| (open.last(), key.clone())).collect();
        all.sort_unstable();
        for (_, key) in all.into_iter().take((self.limits.files_max / 4).max(1)) {
            self.close(&key);
            self.open.remove(&key);
        }
    }

    fn end_burst(&mut self, key: &Key) {
        let Some(open) = self.open.get_mut(key) else { return };
        let before = open.len();
        let burst = open.end_burst();
        self.open_steps = self.open_steps + open.len() - before;
        if let Some(burst) = burst {
            let series = Learner::bursts_of(&series_of(&key.path));
            self.store.keep(Key { path: series.into(), target: key.target }, burst);
        }
    }

    fn close(&mut self, key: &Key) {
        self.end_burst(key);
        let Some(open) = self.open.get_mut(key) else { return };
        self.open_steps -= open.len();
        if let Some(run) = open.end_run() {
            self.store.keep(Key { path: series_of(&key.path).into(), target: key.target }, run);
        }
    }

    /// True once after something new was learned that may change the [forecast](Learner::forecast).
    pub fn take_changed(&mut self) -> bool {
        self.store.take_changed()
    }

    /// True once after something new was learned that [`Learner::save`] would write.
    pub fn take_unsaved(&mut self) -> bool {
        self.store.take_unsaved()
    }

    /// Series that were seen at least twice.
    #[must_use]
    pub fn repeating(&self) -> usize {
        self.store.learned().repeating as usize
    }

    /// Requests that are kept.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.store.learned().requests as usize
    }

    /// The path under which the bursts of a series are known: none that a file can have.
    #[must_use]
    pub fn bursts_of(series: &[u8]) -> Vec<u8> {
        [series, BURSTS].concat()
    }

    pub(super) fn are_bursts(path: &[u8]) -> bool {
        path.ends_with(BURSTS)
    }

    pub(super) fn without_bursts(path: &[u8]) -> &[u8] {
        path.strip_suffix(BURSTS).unwrap_or(path)
    }

    /// How much is known.
    #[must_use]
    pub fn learned(&self) -> Learned {
        let open: usize = self.open.iter().map(|(key, open)| key.bytes() + open.bytes()).sum();
        let kept = self.store.learned();
        Learned { open_requests: self.open_steps as u64, bytes: kept.bytes + open as u64, ..kept }
    }

    /// What the next file of each repeating series will be asked for. Its paths are [series](series_of), and
    /// [bursts](Learner::bursts_of) of series. Only what has changed since the last time is combined anew.
    #[must_use]
    pub fn forecast(&mut self, settings: Settings) -> Arc<Forecast> {
        let last = self.made.take().filter(|(made_for, _)| *made_for == settings);
        let forecast = Arc::new(self.store.forecast(settings, last.as_ref().map(|(_, forecast)| &**forecast)));
        self.made = Some((settings, forecast.clone()));
        forecast
    }
}
