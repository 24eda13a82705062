//! What the processes of an application do.
//!
//! A process goes through its phases; in a phase it issues requests until it has moved its share of the data. What comes
//! next is computed when it is needed, so a workload takes no memory beyond a few words for each process (and the traces
//! that it replays).

mod benchmarks;
mod replay;
mod trace;

use std::sync::Arc;

use sluice_core::Op;

use crate::random::Random;

pub(crate) use benchmarks::{BENCHMARKS, Wanted, benchmark};
pub use benchmarks::{Benchmark, benchmarks};
pub use replay::{Access, Replay};
pub use trace::{Trace, TraceError, TraceOp};

/// Where the requests of a phase go. `i` is the number of a request, `p` of a process, `P` of all processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Each process has a part of its own (of the shared file, or a file), from its beginning to its end.
    Contiguous,
    /// Request `i` of process `p` is block `i * P + p` of the file.
    Strided,
    /// Blocks of the file in random order, some of them perhaps several times.
    Random,
    /// As `Strided`, with regions instead of blocks, of which a request takes as many as fit; `spacing` bytes lie between
    /// two of them (a derived datatype of MPI; tiles; the lines of a matrix).
    Vector {
        /// Bytes of a region.
        region: u64,
        /// Bytes between two regions.
        spacing: u64,
    },
    /// Each request takes the next bytes of the file, whoever comes first (a shared file pointer; a log).
    Append,
    /// What was recorded.
    Trace {
        /// The recorded requests.
        trace: Arc<Trace>,
        /// At the recorded times; else the pauses are kept.
        recorded_times: bool,
    },
}

/// The operations of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpMix {
    /// Only one.
    Only(Op),
    /// Both; this many of a million are reads.
    Mixed(u64),
}

/// When processes wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Never.
    None,
    /// After the phase.
    Phase,
    /// Before each request, and after the phase.
    Request,
}

/// A stretch of a process's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Operations.
    pub op: OpMix,
    /// Where requests go.
    pub pattern: Pattern,
    /// Each process has its own file.
    pub per_process: bool,
    /// Name of the file or files.
    pub file: String,
    /// Bytes of each process.
    pub data: u64,
    /// Least and largest request in bytes.
    pub request: (u64, u64),
    /// Requests of a process under way at a time.
    pub depth: u32,
    /// Computing time before each request, in nanoseconds.
    pub think_ns: u64,
    /// By how many millionths that varies.
    pub think_spread: u64,
    /// Computing time before the phase, in nanoseconds.
    pub compute_ns: u64,
    /// By how many millionths that varies.
    pub compute_spread: u64,
    /// Waiting for others.
    pub barrier: Barrier,
    /// Where a random request goes depends on what the one before has read: who runs ahead without it is wrong.
    pub dependent: bool,
}

impl Default for Phase {
    fn default() -> Phase {
        Phase {
            op: OpMix::Only(Op::Read),
            pattern: Pattern::Contiguous,
            per_process: false,
            file: "data".to_owned(),
            data: 1 << 20,
            request: (64 << 10, 64 << 10),
            depth: 1,
            think_ns: 0,
            think_spread: 0,
            compute_ns: 0,
            compute_spread: 0,
            barrier: Barrier::None,
            dependent: false,
        }
    }
}

/// A time that is longer or shorter by up to so many millionths. Without them no random number is used up.
fn varied(ns: u64, spread: u64, random: &mut Random) -> u64 {
    let spread = ns / 1000 * spread / 1000;
    if spread == 0 { ns } else { ns - spread + random.below(2 * spread + 1) }
}

/// Where a process is in its phase.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    /// Requests issued.
    pub(crate) requests: u64,
    /// Bytes issued.
    pub(crate) bytes: u64,
}

/// A request of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) op: Op,
    /// Added to the phase's first file; for traces, the file's number there.
    pub(crate) file: u32,
    /// Bytes of all regions.
    pub(crate) bytes: u64,
    /// Pause before the request.
    pub(crate) think_ns: u64,
    /// Not before this time after the phase's start.
    pub(crate) not_before_ns: u64,
}

impl Phase {
    /// The next request of process `rank` of `processes`, its byte ranges in `regions`; none when the phase is over. `end`:
    /// of the file that is appended to.
    pub(crate) fn next(
        &self,
        rank: u32,
        processes: u32,
        progress: &mut Progress,
        random: &mut Random,
        end: &mut u64,
        regions: &mut Vec<(u64, u64)>,
    ) -> Option<Next> {
        regions.clear();
        if let Pattern::Trace { trace, recorded_times } = &self.pattern {
            return trace.next(rank, progress, *recorded_times, regions);
        }
        let left = self.data.saturating_sub(progress.bytes);
        if left == 0 {
            return None;
        }
        let (least, most) = self.request;
        let len = if least == most { most } else { least + random.below(most - least + 1) }.min(left);
        let (rank, sharers) = if self.per_process { (0, 1) } else { (u64::from(rank), u64::from(processes)) };
        match self.pattern {
            Pattern::Contiguous => regions.push((rank * self.data + progress.bytes, len)),
            Pattern::Strided => regions.push(((progress.requests * sharers + rank) * most, len)),
            Pattern::Random => {
                let blocks = (self.data * sharers / most).max(1);
                regions.push((random.below(blocks) * most, len));
            }
            Pattern::Vector { region, spacing } => {
                let row = progress.bytes / region;
                let mut taken = 0;
                while taken < len {
                    let at = ((row + taken / region) * sharers + rank) * (region + spacing);
                    regions.push((at, region.min(len - taken)));
                    taken += region;
                }
            }
            Pattern::Append => {
                regions.push((*end, len));
                *end += len;
            }
            Pattern::Trace { .. } => {}
        }
        progress.requests += 1;
        progress.bytes += len;
        let op = match self.op {
            OpMix::Only(op) => op,
            OpMix::Mixed(reads) => {
                if random.chance(reads) {
                    Op::Read
                } else {
                    Op::Write
                }
            }
        };
        let think_ns = varied(self.think_ns, self.think_spread, random);
        Some(Next { op, file: 0, bytes: len, think_ns, not_before_ns: 0 })
    }

    /// How long a process computes before the phase.
    pub(crate) fn computes(&self, random: &mut Random) -> u64 {
        varied(self.compute_ns, self.compute_spread, random)
    }

    /// Bytes that all processes move.
    #[must_use]
    pub fn bytes(&self, processes: u32) -> u64 {
        match &self.pattern {
            Pattern::Trace { trace, .. } => trace.bytes() as u64,
            _ => self.data * u64::from(processes),
        }
    }

    /// Where the files of the phase end at most.
    pub(crate) fn file_end(&self, processes: u32) -> u64 {
        let sharers = if self.per_process { 1 } else { u64::from(processes) };
        match self.pattern {
            Pattern::Contiguous | Pattern::Random | Pattern::Append => self.data * sharers,
            Pattern::Strided => self.data.div_ceil(self.request.0.max(1)) * self.request.1 * sharers,
            Pattern::Vector { region, spacing } => self.data.div_ceil(region) * sharers * (region + spacing),
            Pattern::Trace { ref trace, .. } => trace.end(),
        }
    }

    /// Processes of the trace that the phase replays; 0 if it replays none.
    #[must_use]
    pub fn recorded_processes(&self) -> u32 {
        match &self.pattern {
            Pattern::Trace { trace, .. } => trace.processes(),
            _ => 0,
        }
    }

    /// Files that are used by that many processes.
    #[must_use]
    pub fn files(&self, processes: u32) -> u32 {
        match &self.pattern {
            Pattern::Trace { trace, .. } => trace.files(),
            _ if self.per_process => processes,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(phase: &Phase, processes: u32) -> Vec<(u32, u64, u64)> {
        let (mut end, mut regions, mut ranges) = (0, Vec::new(), Vec::new());
        for rank in 0..processes {
            let (mut progress, mut random) = (Progress { requests: 0, bytes: 0 }, Random::new(1, rank.into()));
            while phase.next(rank, processes, &mut progress, &mut random, &mut end, &mut regions).is_some() {
                ranges.extend(regions.iter().map(|&(at, len)| (if phase.per_process { rank } else { 0 }, at, len)));
            }
            assert_eq!(progress.bytes, phase.data);
        }
        ranges
    }

    proptest! {
        /// Together the processes touch every byte once, without gaps (but for the spacing).
        #[test]
        fn a_phase_covers_its_file_exactly(
            processes in 1u32..9, requests in 1u64..9, size in 1u64..5000, kind in 0..4, per_process: bool, regions in 1u64..4,
        ) {
            let request = size * regions;
            let pattern = match kind {
                0 => Pattern::Contiguous,
                1 => Pattern::Strided,
                2 => Pattern::Append,
                _ => Pattern::Vector { region: size, spacing: 0 },
            };
            let per_process = per_process && kind != 2;
            let phase = Phase { pattern, per_process, data: requests * request, request: (request, request), ..Phase::default() };
            let mut ranges = all(&phase, processes);
            ranges.sort_unstable();
            let files = if per_process { processes } else { 1 };
            for file in 0..files {
                let mut at = 0;
                for range in ranges.iter().filter(|range| range.0 == file) {
                    prop_assert_eq!(range.1, at);
                    at += range.2;
                }
                prop_assert_eq!(at * u64::from(files), phase.bytes(processes));
            }
        }
    }

    #[test]
    fn spacing_lies_between_regions_and_random_stays_inside() {
        let pattern = Pattern::Vector { region: 10, spacing: 5 };
        let phase = Phase { pattern, data: 40, request: (20, 20), ..Phase::default() };
        let starts: Vec<u64> = all(&phase, 2).iter().map(|range| range.1).collect();
        assert_eq!(starts, [0, 30, 60, 90, 15, 45, 75, 105]);
        let phase = Phase { pattern: Pattern::Random, data: 1000, request: (100, 100), ..Phase::default() };
        assert!(all(&phase, 4).iter().all(|&(_, at, len)| at + len <= 4000 && at % 100 == 0));
    }
}
