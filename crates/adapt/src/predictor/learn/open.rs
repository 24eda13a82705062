//! Files in use.

use sluice_trace::Entry;

use super::LearnLimits;
use super::store::{Run, Step};

/// What a request begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begins {
    /// Nothing: it goes on.
    Nothing,
    /// A burst, as far as it is behind everything before.
    Burst,
    /// The next run.
    Run,
}

/// A file in use, or one that was: where it ended is remembered for a while.
#[derive(Debug)]
pub(super) struct Open {
    /// Tells it apart from others that had its path.
    file: u32,
    first: u64,
    last: u64,
    steps: Vec<Step>,
    /// Where the steps of the present burst begin.
    burst: usize,
    /// By operation, the highest byte of all requests, and that before the present burst.
    end: [u64; 2],
    floor: [u64; 2],
    /// The run is not kept: there are steps of the present burst only, or none if that is too long as well.
    run_lost: bool,
    burst_lost: bool,
}

impl Open {
    pub(super) fn new(entry: &Entry) -> Open {
        Open {
            file: entry.file,
            first: entry.time,
            last: entry.time,
            steps: Vec::new(),
            burst: 0,
            end: [0; 2],
            floor: [0; 2],
            run_lost: false,
            burst_lost: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn has_burst(&self) -> bool {
        self.burst < self.steps.len()
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Open>() + self.steps.capacity() * size_of::<Step>()
    }

    /// What a request begins that comes next.
    pub(super) fn begins(&self, entry: &Entry, limits: &LearnLimits) -> Begins {
        let gap = entry.time.saturating_sub(self.last);
        let same = |first: &Step| (first.offset, first.len, first.op) == (entry.offset, entry.len, entry.op);
        let again = !self.run_lost && self.steps.first().is_some_and(same);
        if entry.file != self.file || gap > limits.pause_ns {
            Begins::Run
        } else if gap <= limits.short_pause_ns() {
            Begins::Nothing
        } else if again {
            Begins::Run
        } else {
            Begins::Burst
        }
    }

    /// Takes a request; `steps_max`: most that there may be.
    pub(super) fn push(&mut self, entry: &Entry, steps_max: usize) {
        if entry.file != self.file {
            (self.file, self.end, self.floor) = (entry.file, [0; 2], [0; 2]);
        }
        if self.steps.is_empty() && !self.run_lost {
            self.first = entry.time;
        }
        self.last = self.last.max(entry.time);
        let end = &mut self.end[entry.op.index()];
        *end = entry.offset.saturating_add(entry.len.into()).max(*end);
        if self.steps.len() >= steps_max {
            // The burst may still fit without what was before it.
            let keep = if self.burst > 0 { self.burst } else { self.steps.len() };
            (self.run_lost, self.burst_lost) = (true, self.burst_lost || self.burst == 0);
            self.steps.drain(..keep);
            self.burst = 0;
        }
        if !self.burst_lost && self.steps.len() < steps_max {
            let time = entry.time.saturating_sub(self.first);
            self.steps.push(Step { time, offset: entry.offset, len: entry.len, op: entry.op });
        }
    }

    /// Ends the burst. It is worth keeping if it does not begin at the file's first byte: else it is a run.
    pub(super) fn end_burst(&mut self) -> Option<Run> {
        let floor = std::mem::replace(&mut self.floor, self.end);
        let behind = |step: &&Step| step.offset >= floor[step.op.index()];
        let steps = || self.steps[self.burst..].iter().filter(behind);
        let base = steps().map(|step| step.offset).min().unwrap_or(0);
        let first = steps().map(|step| step.time).min().unwrap_or(0);
        let relative = |step: &Step| Step { time: step.time - first, offset: step.offset - base, ..*step };
        let run = (base > 0 && steps().nth(1).is_some()).then(|| steps().map(relative).collect());
        if self.run_lost {
            self.steps = Vec::new();
        }
        (self.burst, self.burst_lost) = (self.steps.len(), false);
        run
    }

    /// Ends the run, after its burst.
    pub(super) fn end_run(&mut self) -> Option<Run> {
        let steps = std::mem::take(&mut self.steps);
        let lost = std::mem::take(&mut self.run_lost);
        self.burst = 0;
        // A single request has no neighbours to wait for.
        (steps.len() >= 2 && !lost).then(|| steps.into())
    }
}
