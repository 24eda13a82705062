//! Predicted requests.

use std::ops::Range;

use sluice_core::Op;
use sluice_trace::Paths;

use super::pace::Pace;
use super::stride::Groups;

/// A predicted request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Predicted {
    /// First byte.
    pub offset: u64,
    /// Mean time of arrival in nanoseconds since the first request to the file.
    pub time: u64,
    /// Bytes.
    pub len: u32,
    /// Runs in which it came.
    pub runs: u32,
}

impl Predicted {
    /// The byte after the last one.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }
}

/// What is predicted for a file's part on a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileForecast {
    /// Its path: a number in [`Forecast::paths`].
    pub path: u32,
    /// The target, as the traces count it: from the one that the file begins on.
    pub target: u32,
    /// Mean time of its first request, since the run began.
    pub start: u64,
    /// Time of its last request, since its first.
    pub duration: u64,
    /// Reads and writes that may arrive together.
    pub(super) groups: [Option<Groups>; 2],
    /// Where its requests are: reads up to `writes`, then writes.
    pub(super) reads: u32,
    pub(super) writes: u32,
    pub(super) end: u32,
}

impl FileForecast {
    /// Which requests of an operation may arrive together, if that is known.
    #[must_use]
    pub fn groups(&self, op: Op) -> Option<Groups> {
        self.groups[op.index()]
    }

    /// Where the requests of an operation are in [`Forecast::requests`].
    #[must_use]
    pub fn range(&self, op: Op) -> Range<usize> {
        match op {
            Op::Read => self.reads as usize..self.writes as usize,
            Op::Write => self.writes as usize..self.end as usize,
        }
    }
}

/// How many entries became how many predictions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Runs combined.
    pub runs: u32,
    /// Entries of their traces.
    pub entries: u64,
    /// Predicted requests.
    pub requests: u64,
    /// Of these, the ones that came in more than one run.
    pub paired: u64,
    /// Left out because they came in too few runs.
    pub rare: u64,
}

/// All predicted requests, by file, operation, offset and time.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    pub(super) paths: Paths,
    /// By path and target.
    pub(super) files: Vec<FileForecast>,
    pub(super) requests: Vec<Predicted>,
    /// Of each file, how fast it was used.
    pub(super) paces: Vec<Pace>,
    pub(super) totals: Totals,
    /// Each path was learned for itself: how the runs of one lay to those of another is not known.
    pub(super) apart: bool,
}

impl Forecast {
    /// The paths.
    #[must_use]
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &[FileForecast] {
        &self.files
    }

    /// The requests; [`FileForecast::range`] tells whose they are.
    #[must_use]
    pub fn requests(&self) -> &[Predicted] {
        &self.requests
    }

    /// How many entries became how many predictions.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The number of a file's part on a target.
    #[must_use]
    pub fn find(&self, path: &[u8], target: u32) -> Option<usize> {
        let path = self.paths.find(path)?;
        self.files.binary_search_by_key(&(path, target), |file| (file.path, file.target)).ok()
    }

    /// The predicted request of this place whose time is nearest to `time`.
    pub(super) fn nearest_at(&self, range: Range<usize>, offset: u64, time: u64) -> Option<usize> {
        let slice = &self.requests[range.clone()];
        let after = slice.partition_point(|request| (request.offset, request.time) < (offset, time));
        let beside = [after.checked_sub(1), Some(after)].into_iter().flatten();
        let here = beside.filter(|&at| slice.get(at).is_some_and(|request| request.offset == offset));
        let found = here.min_by_key(|&at| slice[at].time.abs_diff(time))?;
        Some(range.start + found)
    }

    /// The predicted request of this place and length whose time is nearest to `time` and within `tolerance` of it.
    pub(super) fn nearest(
        &self,
        range: Range<usize>,
        (offset, len): (u64, u32),
        time: u64,
        tolerance: impl Fn(u64) -> u64,
    ) -> Option<usize> {
        let slice = &self.requests[range.clone()];
        let after = slice.partition_point(|request| (request.offset, request.time) < (offset, time));
        let same = |at: &usize| slice[*at].offset == offset;
        let around = (after..slice.len()).take_while(same).take(PROBES);
        let around = around.chain((0..after).rev().take_while(same).take(PROBES));
        let fits = |at: &usize| {
            let request = &slice[*at];
            request.len == len && request.time.abs_diff(time) <= tolerance(request.time)
        };
        let found = around.filter(fits).min_by_key(|&at| slice[at].time.abs_diff(time))?;
        Some(range.start + found)
    }
}

/// Requests of the same offset that are looked at on either side of a time.
const PROBES: usize = 16;
