//! Traces of several runs become predicted requests.
//!
//! All entries lie in one array and are sorted by file, operation, offset, length and time, so that the occurrences of a
//! request are neighbours. Those of different runs whose times agree become one, in place. 32 bytes an entry, 24 more for
//! each predicted request while they are copied out.

use std::collections::HashMap;
use std::io::Read;

use sluice_core::Op;
use sluice_trace::{Columns, Entry, Paths, Reader, Split, joined};

use super::Settings;
use super::forecast::{FileForecast, Forecast, Predicted, Totals};
use super::pace::Pace;
use super::stride::{Distances, Groups, RUNS, Seen};

/// Most runs that are combined.
pub const RUNS_MAX: u32 = 64;
/// Groups of agreeing occurrences of one request that are open at a time.
const OPEN_MAX: usize = 16;
/// Most entries, pieces counted one by one: 2 GiB while they are combined, which a mount does in its own process.
const ENTRIES_MAX: usize = 1 << 26;

/// Traces cannot be combined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CombineError {
    /// One cannot be read.
    #[error(transparent)]
    Trace(#[from] sluice_trace::Error),
    /// More runs than fit.
    #[error("at most {RUNS_MAX} runs can be combined: leave the oldest out")]
    TooManyRuns,
    /// More entries than fit.
    #[error("more than 2^26 entries (67 million) in all: leave some traces out")]
    TooManyEntries,
}

/// What became of a trace's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Added {
    /// Entries.
    pub entries: u64,
    /// Requests that are predicted from them: pieces, if they are split.
    pub requests: u64,
    /// Of these, those whose path begins with `/`, which no file of a volume has.
    pub absolute: u64,
    /// Of these, reads.
    pub reads: u64,
    /// Of these, parts of requests above [`Split::request_max`].
    pub parts: u64,
}

/// One entry of one run; once combined, one predicted request.
#[derive(Clone, Copy)]
struct Record {
    offset: u64,
    time: u64,
    file: u32,
    len: u32,
    /// The run; once combined, the number of runs.
    run: u16,
    op: u8,
}

/// Collects the entries of several runs.
#[derive(Default)]
pub struct Combiner {
    settings: Settings,
    split: Option<Split>,
    paths: Paths,
    records: Vec<Record>,
    /// Path and target of each file.
    files: Vec<(u32, u32)>,
    numbers: HashMap<(u32, u32), u32>,
    /// Of each file, the sum of its first times, and in how many runs it was.
    starts: Vec<(u128, u32)>,
    runs: u32,
}

impl Combiner {
    /// Nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Combiner {
        Combiner { settings, ..Combiner::default() }
    }

    /// Splits the requests of traces from now on as a volume does, which other volumes and programs have not. Without it they
    /// are taken as they are.
    #[must_use]
    pub fn splitting(self, split: Option<Split>) -> Combiner {
        Combiner { split, ..self }
    }

    /// Makes room for so many entries more. Without it memory grows by doubling.
    pub fn reserve(&mut self, entries: usize) {
        self.records.reserve_exact(entries.min(ENTRIES_MAX));
    }

    /// Takes all entries of a trace as those of one more run. Of a trace that is cut short, those that are there.
    ///
    /// # Errors
    /// If it cannot be read, or there are too many runs or entries. What was added before is kept.
    pub fn add<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<Added, CombineError> {
        if self.runs == RUNS_MAX {
            return Err(CombineError::TooManyRuns);
        }
        let mut run = self.begin_run();
        let result = run.read(reader);
        if result.is_ok() {
            run.end();
        }
        result
    }

    /// Begins one more run, which may have entries from anywhere. After [`RUNS_MAX`] runs its entries are ignored.
    pub fn begin_run(&mut self) -> NewRun<'_> {
        let (before, first) = (self.records.len(), vec![u64::MAX; self.files.len()]);
        NewRun { combiner: self, before, first, latest: ((u32::MAX, u32::MAX), 0), ended: false }
    }

    fn file(&mut self, key: (u32, u32)) -> u32 {
        *self.numbers.entry(key).or_insert_with(|| {
            self.files.push(key);
            self.starts.push((0, 0));
            self.files.len() as u32 - 1
        })
    }

    /// Pairs what was collected. O(n log n), n being the entries.
    #[must_use]
    pub fn finish(mut self) -> Forecast {
        // Files by path and target, so that they are found again by that.
        let mut order: Vec<u32> = (0..self.files.len() as u32).collect();
        order.sort_unstable_by_key(|&file| self.files[file as usize]);
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &file)| place[file as usize] = at as u32);
        self.records.iter_mut().for_each(|record| record.file = place[record.file as usize]);
        self.records.sort_unstable_by_key(|r| (r.file, r.op, r.offset, r.len, r.time, r.run));
        let entries = self.records.len() as u64;
        let mut totals = Totals { runs: self.runs, entries, ..Totals::default() };
        let groups = groups(&self.records, self.runs);
        let paces = paces(&self.records, self.runs, order.len());
        pair(&mut self.records, &self.settings, &mut totals);
        self.records.sort_unstable_by_key(|r| (r.file, r.op, r.offset, r.time, r.len));
        let requests: Vec<Predicted> = self
            .records
            .iter()
            .map(|r| Predicted { offset: r.offset, time: r.time, len: r.len, runs: r.run.into() })
            .collect();
        totals.requests = requests.len() as u64;
        let mut files = Vec::with_capacity(order.len());
        let mut at = 0;
        for (number, &file) in order.iter().enumerate() {
            let start = at;
            let of_file = |op: Op| {
                let last = (number as u32, op.index() as u8);
                start + self.records[start..].partition_point(|r| (r.file, r.op) <= last)
            };
            let (writes, end) = (of_file(Op::Read), of_file(Op::Write));
            let (path, target) = self.files[file as usize];
            let (sum, runs) = self.starts[file as usize];
            files.push(FileForecast {
                path,
                target,
                start: (sum / u128::from(runs.max(1))) as u64,
                duration: self.records[start..end].iter().map(|r| r.time).max().unwrap_or_default(),
                groups: groups.get(&(number as u32)).copied().unwrap_or_default(),
                reads: start as u32,
                writes: writes as u32,
                end: end as u32,
            });
            at = end;
        }
        Forecast { paths: self.paths, files, requests, paces, totals, apart: false }
    }
}

/// Of each file, which reads and writes may arrive together. `records` are sorted by file, operation and offset.
fn groups(records: &[Record], runs: u32) -> HashMap<u32, [Option<Groups>; 2]> {
    let mut all: HashMap<u32, [Option<Groups>; 2]> = HashMap::new();
    let mut requests: Vec<Vec<Seen>> = vec![Vec::new(); runs as usize];
    for same in records.chunk_by(|a, b| (a.file, a.op) == (b.file, b.op)) {
        for record in same {
            let run = &mut requests[usize::from(record.run)];
            let Record { offset, len, time, .. } = *record;
            match run.last_mut() {
                // Of the same place the first in time counts.
                Some(last) if last.offset == offset => {
                    if time < last.time {
                        *last = Seen { offset, len, time };
                    }
                }
                _ => run.push(Seen { offset, len, time }),
            }
        }
        let mut distances = Distances::default();
        requests.iter().filter(|run| !run.is_empty()).take(RUNS).for_each(|run| distances.add(run));
        if let Some(bytes) = distances.stride() {
            let op = usize::from(same[0].op);
            all.entry(same[0].file).or_default()[op] = Some(Groups { offset: same[0].offset, bytes });
        }
        requests.iter_mut().for_each(Vec::clear);
    }
    all
}

/// How fast each of so many files was used. `records` are sorted by file.
fn paces(records: &[Record], runs: u32, files: usize) -> Vec<Pace> {
    let mut times: Vec<Vec<u64>> = vec![Vec::new(); runs as usize];
    let mut paces = vec![Pace::new([].iter_mut()); files];
    for same in records.chunk_by(|a, b| a.file == b.file) {
        same.iter().for_each(|record| times[usize::from(record.run)].push(record.time));
        paces[same[0].file as usize] = Pace::new(times.iter_mut());
        times.iter_mut().for_each(Vec::clear);
    }
    paces
}

/// A run that is being added. Without [`NewRun::end`] it leaves nothing behind.
pub struct NewRun<'a> {
    combiner: &'a mut Combiner,
    /// Records of the runs before.
    before: usize,
    /// Of each file of all runs, when this run first asked for it.
    first: Vec<u64>,
    /// The file of the entry before, which mostly is the next one's.
    latest: ((u32, u32), u32),
    ended: bool,
}

impl NewRun<'_> {
    /// Adds an entry of the file with this path; its own number counts for nothing.
    ///
    /// # Errors
    /// If there are too many.
    pub fn push(&mut self, path: &[u8], entry: Entry) -> Result<(), CombineError> {
        let path = self.combiner.paths.insert(path)?;
        self.push_numbered(path, entry)
    }

    fn push_numbered(&mut self, path: u32, entry: Entry) -> Result<(), CombineError> {
        if self.combiner.records.len() >= ENTRIES_MAX {
            return Err(CombineError::TooManyEntries);
        }
        let key = (path, entry.target);
        if self.latest.0 != key {
            self.latest = (key, self.combiner.file(key));
            self.first.resize(self.combiner.files.len(), u64::MAX);
        }
        let file = self.latest.1;
        let earliest = &mut self.first[file as usize];
        *earliest = entry.time.min(*earliest);
        let (run, op) = (self.combiner.runs as u16, entry.op.index() as u8);
        let record = Record { offset: entry.offset, time: entry.time, file, len: entry.len, run, op };
        self.combiner.records.push(record);
        Ok(())
    }

    fn read<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<Added, CombineError> {
        let mut block = Columns::default();
        let mut taken = Taken { split: self.combiner.split, added: Added::default() };
        // The request whose pieces are being put together.
        let mut whole: Option<Entry> = None;
        // The numbers that paths of the trace have here, and whether they are absolute.
        let mut paths: Vec<(u32, bool)> = Vec::new();
        while reader.next_block(&mut block)? {
            for path in reader.paths().iter().skip(paths.len()) {
                paths.push((self.combiner.paths.insert(path)?, path.starts_with(b"/")));
            }
            taken.added.entries += block.len() as u64;
            for entry in block.iter() {
                if taken.split.is_none() {
                    taken.push(self, &paths, entry)?;
                    continue;
                }
                let entry = Entry { offset: reader.meta().logical_offset(entry.target, entry.offset), ..entry };
                let together = whole.filter(|_| reader.meta().pieces).and_then(|whole| joined(&whole, &entry));
                if let (Some(before), None) = (whole.replace(together.unwrap_or(entry)), together) {
                    taken.push(self, &paths, before)?;
                }
            }
        }
        if let Some(last) = whole {
            taken.push(self, &paths, last)?;
        }
        Ok(taken.added)
    }

    /// The run is whole.
    pub fn end(mut self) {
        let combiner = &mut *self.combiner;
        if combiner.runs == RUNS_MAX {
            return;
        }
        self.ended = true;
        for record in &mut combiner.records[self.before..] {
            record.time -= self.first[record.file as usize];
        }
        for (start, &first) in combiner.starts.iter_mut().zip(&self.first).filter(|(_, first)| **first != u64::MAX) {
            start.0 += u128::from(first);
            start.1 += 1;
        }
        combiner.runs += 1;
    }
}

impl Drop for NewRun<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.combiner.records.truncate(self.before);
        }
    }
}

/// What is taken of a trace.
struct Taken {
    split: Option<Split>,
    added: Added,
}

impl Taken {
    /// Takes a request of a file with this number in the trace.
    fn push(&mut self, run: &mut NewRun<'_>, paths: &[(u32, bool)], entry: Entry) -> Result<(), CombineError> {
        let (path, absolute) = paths[entry.file as usize];
        let is_part = self.split.is_some_and(|split| entry.len > split.request_max);
        let mut piece = |piece: Entry| {
            self.added.requests += 1;
            self.added.parts += u64::from(is_part);
            self.added.absolute += u64::from(absolute);
            self.added.reads += u64::from(piece.op == Op::Read);
            run.push_numbered(path, piece)
        };
        let Some(split) = self.split else { return piece(entry) };
        let mut pieces = split.pieces(entry.offset, entry.len);
        pieces.try_for_each(|(target, offset, len)| piece(Entry { target, offset, len, ..entry }))
    }
}

/// Occurrences of a request that agree about its time.
#[derive(Clone, Copy)]
struct Group {
    sum: u128,
    runs: u64,
    count: u32,
    /// Where its record is.
    at: usize,
}

impl Group {
    fn mean(&self) -> u64 {
        (self.sum / u128::from(self.count)) as u64
    }
}

/// Replaces the occurrences of requests that agree by one record each, with their mean time and their number. An
/// occurrence joins the oldest group that is near enough and has none of its run.
fn pair(records: &mut Vec<Record>, settings: &Settings, totals: &mut Totals) {
    let (mut out, mut open) = (0, Vec::<Group>::with_capacity(OPEN_MAX));
    let close = |records: &mut [Record], group: Group| {
        let record = &mut records[group.at];
        (record.time, record.run) = (group.mean(), group.count as u16);
    };
    for at in 0..records.len() {
        let record = records[at];
        let same = |a: &Record, b: &Record| (a.file, a.op, a.offset, a.len) == (b.file, b.op, b.offset, b.len);
        if at > 0 && open.first().is_some_and(|group: &Group| !same(&records[group.at], &record)) {
            open.drain(..).for_each(|group| close(records, group));
        }
        let agrees = |group: &Group| {
            let mean = group.mean();
            record.time.abs_diff(mean) <= settings.tolerance(mean)
        };
        let bit = 1 << record.run;
        if let Some(group) = open.iter_mut().find(|group| group.runs & bit == 0 && agrees(group)) {
            group.sum += u128::from(record.time);
            group.runs |= bit;
            group.count += 1;
            continue;
        }
        if open.len() == OPEN_MAX {
            close(records, open.remove(0));
        }
        records[out] = record;
        open.push(Group { sum: record.time.into(), runs: bit, count: 1, at: out });
        out += 1;
    }
    open.drain(..).for_each(|group| close(records, group));
    records.truncate(out);
    totals.paired = records.iter().filter(|record| record.run > 1).count() as u64;
    let runs_min = settings.runs_min.min(totals.runs) as u16;
    records.retain(|record| record.run >= runs_min);
    totals.rare = out as u64 - records.len() as u64;
}
