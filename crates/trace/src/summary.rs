//! What a person wants to know about a trace, gathered in one pass.

use std::collections::HashMap;

use serde::Serialize;

use crate::entry::{Columns, Entry};
use crate::paths::Paths;
use sluice_core::Op;

/// A pause that ends a burst.
const PAUSE_NS: u64 = 100_000_000;
/// Most points of the course over time.
const POINTS_MAX: usize = 128;

/// Requests of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Smallest length.
    pub len_min: u32,
    /// Largest length.
    pub len_max: u32,
}

impl Counts {
    fn add(&mut self, len: u32) {
        self.len_min = if self.requests == 0 { len } else { self.len_min.min(len) };
        self.len_max = self.len_max.max(len);
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(len.into());
    }
}

/// How requests follow the one before of the same file, operation and data server; shares of 1.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Spatiality {
    /// Begin where that one ended.
    pub contiguous: f64,
    /// Are as far from it as it was from the one before.
    pub strided: f64,
    /// Neither.
    pub other: f64,
}

/// One file.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FileSummary {
    /// Its path.
    pub path: String,
    /// Reads.
    pub reads: Counts,
    /// Writes.
    pub writes: Counts,
    /// From its first request to its last, in seconds.
    pub seconds: f64,
}

/// A stretch of time in the course of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Point {
    /// Requests that arrived in it.
    pub requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// All of a trace.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Summary {
    /// Reads.
    pub reads: Counts,
    /// Writes.
    pub writes: Counts,
    /// Of all bytes, the share that was read.
    pub read_share: f64,
    /// From the first request to the last, in seconds.
    pub seconds: f64,
    /// Files with requests.
    pub files: usize,
    /// Applications.
    pub apps: usize,
    /// Their processes, as far as the trace tells: at least one each.
    pub processes: usize,
    /// Different [`Entry::target`]s.
    pub targets: usize,
    /// Requests by length: the entry at `n` counts those of 2^n to 2^(n+1) - 1 bytes (the first also those of 0).
    pub lengths: Vec<u64>,
    /// How requests follow each other.
    pub spatiality: Spatiality,
    /// Stretches without a pause of 100 ms.
    pub bursts: u64,
    /// Mean requests of a burst.
    pub burst_requests: f64,
    /// The files with the most bytes.
    pub largest_files: Vec<FileSummary>,
    /// Width of the points of `course`, in seconds.
    pub point_seconds: f64,
    /// What arrived over time.
    pub course: Vec<Point>,
}

#[derive(Clone, Copy, Default)]
struct Of {
    counts: [Counts; 2],
    first: u64,
    last: u64,
}

#[derive(Clone, Copy)]
struct Last {
    offset: u64,
    end: u64,
    stride: u64,
}

/// Gathers a [`Summary`]. Memory: some 100 bytes for each file on each data server.
#[derive(Default)]
pub struct Gatherer {
    counts: [Counts; 2],
    lengths: [u64; 32],
    files: HashMap<u32, Of>,
    last: HashMap<(u32, u32, u8), Last>,
    apps: HashMap<u32, ()>,
    processes: HashMap<(u32, u32), ()>,
    targets: HashMap<u32, ()>,
    contiguous: u64,
    strided: u64,
    followers: u64,
    times: Option<(u64, u64)>,
    latest: u64,
    bursts: u64,
    course: Vec<Point>,
    width: u64,
}

impl Gatherer {
    /// Looks at a block.
    pub fn add(&mut self, block: &Columns) {
        for (at, entry) in block.iter().enumerate() {
            self.add_entry(entry);
            self.processes.insert((entry.app, block.process_of(at)), ());
        }
    }

    fn add_entry(&mut self, entry: Entry) {
        let op = entry.op.index();
        self.counts[op].add(entry.len);
        self.lengths[entry.len.checked_ilog2().unwrap_or(0) as usize] += 1;
        let of = self.files.entry(entry.file).or_insert(Of { first: entry.time, ..Of::default() });
        of.counts[op].add(entry.len);
        (of.first, of.last) = (of.first.min(entry.time), of.last.max(entry.time));
        self.apps.insert(entry.app, ());
        self.targets.insert(entry.target, ());
        self.follow(entry);
        self.time(entry);
    }

    fn follow(&mut self, entry: Entry) {
        let key = (entry.file, entry.target, entry.op.index() as u8);
        let (offset, end) = (entry.offset, entry.end());
        let stride = match self.last.get(&key) {
            None => 0,
            Some(last) => {
                let stride = offset.wrapping_sub(last.offset);
                self.followers += 1;
                if offset == last.end {
                    self.contiguous += 1;
                } else if stride == last.stride {
                    self.strided += 1;
                }
                stride
            }
        };
        self.last.insert(key, Last { offset, end, stride });
    }

    fn time(&mut self, entry: Entry) {
        let now = entry.time;
        let (first, last) = self.times.unwrap_or((now, now));
        if self.times.is_none() || now.saturating_sub(self.latest) >= PAUSE_NS {
            self.bursts += 1;
        }
        self.latest = self.latest.max(now);
        self.times = Some((first.min(now), last.max(now)));
        self.width = self.width.max(1_000_000);
        while (now / self.width) as usize >= POINTS_MAX {
            self.width = self.width.saturating_mul(2);
            let halves = self.course.chunks(2).map(|pair| {
                pair.iter().fold(Point::default(), |sum, point| Point {
                    requests: sum.requests + point.requests,
                    read_bytes: sum.read_bytes + point.read_bytes,
                    write_bytes: sum.write_bytes + point.write_bytes,
                })
            });
            self.course = halves.collect();
        }
        let at = (now / self.width) as usize;
        if at >= self.course.len() {
            self.course.resize(at + 1, Point::default());
        }
        let point = &mut self.course[at];
        point.requests += 1;
        match entry.op {
            Op::Read => point.read_bytes += u64::from(entry.len),
            Op::Write => point.write_bytes += u64::from(entry.len),
        }
    }

    /// The result, with at most `files` of the largest files.
    #[must_use]
    pub fn finish(self, paths: &Paths, files: usize) -> Summary {
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let [reads, writes] = self.counts;
        let mut largest: Vec<_> = self.files.iter().collect();
        largest.sort_by_key(|(number, of)| (std::cmp::Reverse(of.counts[0].bytes + of.counts[1].bytes), **number));
        let file = |(number, of): &(&u32, &Of)| FileSummary {
            path: paths.text(**number).into_owned(),
            reads: of.counts[0],
            writes: of.counts[1],
            seconds: (of.last - of.first) as f64 / 1e9,
        };
        let used = self.lengths.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        let (contiguous, strided) = (share(self.contiguous, self.followers), share(self.strided, self.followers));
        Summary {
            reads,
            writes,
            read_share: share(reads.bytes, reads.bytes + writes.bytes),
            seconds: self.times.map_or(0.0, |(first, last)| (last - first) as f64 / 1e9),
            files: self.files.len(),
            apps: self.apps.len(),
            processes: self.processes.len(),
            targets: self.targets.len(),
            lengths: self.lengths[..used].to_vec(),
            spatiality: Spatiality {
                contiguous,
                strided,
                other: if self.followers == 0 { 0.0 } else { 1.0 - contiguous - strided },
            },
            bursts: self.bursts,
            burst_requests: share(reads.requests + writes.requests, self.bursts),
            largest_files: largest.iter().take(files).map(file).collect(),
            point_seconds: self.width as f64 / 1e9,
            course: self.course,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(time: u64, file: u32, op: Op, offset: u64, len: u32) -> Entry {
        Entry { time, file, app: 0, target: 0, op, offset, len }
    }

    #[test]
    fn a_summary_tells_sizes_shares_and_bursts() {
        let mut block = Columns::default();
        for n in 0..10 {
            block.push(entry(n * 1_000_000, 0, Op::Read, n * 4096, 4096));
        }
        for n in 0..10 {
            block.push(entry(5_000_000_000 + n * 1_000_000, 1, Op::Write, n * 65_536, 8192));
        }
        let mut paths = Paths::default();
        paths.insert(b"a").unwrap();
        paths.insert(b"b").unwrap();
        let mut gatherer = Gatherer::default();
        gatherer.add(&block);
        let summary = gatherer.finish(&paths, 10);
        assert_eq!((summary.reads.requests, summary.writes.bytes), (10, 81_920));
        assert_eq!((summary.files, summary.bursts, summary.burst_requests), (2, 2, 10.0));
        assert!((summary.read_share - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(
            summary.spatiality,
            Spatiality { contiguous: 0.5, strided: 8.0 / 18.0, other: 1.0 - 0.5 - 8.0 / 18.0 }
        );
        assert_eq!(summary.largest_files[0].path, "b");
        assert_eq!((summary.lengths[12], summary.lengths[13]), (10, 10));
        assert_eq!(summary.course.iter().map(|point| point.requests).sum::<u64>(), 20);
        assert!(summary.course.len() <= POINTS_MAX);
    }

    #[test]
    fn extreme_times_do_not_hurt() {
        let mut gatherer = Gatherer::default();
        let mut block = Columns::default();
        for time in [u64::MAX, 0, u64::MAX / 2] {
            block.push(entry(time, 0, Op::Read, 0, u32::MAX));
        }
        gatherer.add(&block);
        let summary = gatherer.finish(&Paths::default(), 10);
        assert_eq!(summary.reads.requests, 3);
        assert!(summary.course.len() <= POINTS_MAX);
    }
}
