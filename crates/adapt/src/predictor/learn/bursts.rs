//! Where the bursts of a file begin, while its requests arrive.
//!
//! The offsets of a predicted burst count from its lowest one, which need not be that of the request that comes first. A
//! program that appends goes on where it had ended, or as far behind that as the time before. Where that is unknown, the
//! first request is taken for the earliest one predicted of its length. A request that is lower shows that this was wrong.

use std::collections::HashMap;

use sluice_core::{FileId, Request, TargetId, Time};

use super::LearnLimits;
use crate::predictor::Predicted;

/// Files that are followed; more, and all are forgotten.
const FILES_MAX: usize = 4096;
/// Predicted requests among which the earliest is looked for.
const LOOKED_AT: usize = 4096;

/// Where a request belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::predictor) enum Place {
    /// To no burst: it is not behind what was there before.
    Outside,
    /// To the burst that there is, which begins at this offset.
    Here(u64),
    /// To a new one, which begins at this offset.
    New(u64),
    /// To the one that there is, which begins at this offset, not where it was thought to.
    Moved(u64),
}

#[derive(Debug, Default)]
struct Burst {
    base: Option<u64>,
    lowest: Option<u64>,
    last: Option<Time>,
    /// By operation, the highest byte of all requests, and that before this burst.
    end: [u64; 2],
    floor: [u64; 2],
    /// From the end of what was there to the lowest offset of the burst before.
    gap: u64,
}

/// The bursts of all files that have such predictions.
#[derive(Debug, Default)]
pub(in crate::predictor) struct Bursts {
    files: HashMap<(FileId, TargetId), Burst>,
}

impl Bursts {
    /// Where a request belongs that arrives now. `predicted`: for its file and operation, by offset.
    pub(in crate::predictor) fn place(&mut self, now: Time, request: &Request, predicted: &[Predicted]) -> Place {
        let key = (request.file, request.target);
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&key) {
            self.files.clear();
        }
        let burst = self.files.entry(key).or_default();
        let op = request.op.index();
        let last = burst.last.replace(now);
        if last.is_none_or(|last| now.since(last) > LearnLimits::default().short_pause_ns()) {
            burst.end_here(op);
        }
        burst.end[op] = request.offset.saturating_add(request.len.into()).max(burst.end[op]);
        if request.offset < burst.floor[op] {
            return Place::Outside;
        }
        burst.lowest = Some(burst.lowest.map_or(request.offset, |lowest| lowest.min(request.offset)));
        match burst.base {
            Some(base) if base <= request.offset => Place::Here(base),
            Some(_) => {
                let lowest = predicted.iter().take(LOOKED_AT).find(|predicted| predicted.len == request.len);
                let base = request.offset.saturating_sub(lowest.map_or(0, |predicted| predicted.offset));
                burst.base = Some(base);
                Place::Moved(base)
            }
            None => {
                let base = burst.begin(op, request, predicted);
                burst.base = Some(base);
                Place::New(base)
            }
        }
    }
}

impl Burst {
    fn end_here(&mut self, op: usize) {
        if let Some(lowest) = self.lowest.take().filter(|_| self.floor[op] > 0) {
            self.gap = lowest.saturating_sub(self.floor[op]);
        }
        (self.floor, self.base) = (self.end, None);
    }

    /// Where a burst begins that this request is the first to arrive of.
    fn begin(&self, op: usize, request: &Request, predicted: &[Predicted]) -> u64 {
        let (offset, len) = (request.offset, request.len);
        let behind = self.floor[op].saturating_add(self.gap);
        if let Some(relative) = offset.checked_sub(behind).filter(|_| self.floor[op] > 0) {
            let at = predicted.partition_point(|predicted| predicted.offset < relative);
            let mut there = predicted[at..].iter().take_while(|predicted| predicted.offset == relative);
            if there.any(|predicted| predicted.len == len) {
                return behind;
            }
        }
        let alike = predicted.iter().take(LOOKED_AT).filter(|predicted| predicted.len == len);
        let first = alike.filter(|predicted| predicted.offset <= offset).min_by_key(|predicted| predicted.time);
        offset - first.map_or(0, |predicted| predicted.offset)
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::{AppId, Op, TargetId};

    use super::*;

    const MS: u64 = 1_000_000;

    fn request(offset: u64) -> Request {
        Request { cookie: 0, file: FileId(1), app: AppId(0), target: TargetId(0), op: Op::Write, offset, len: 10 }
    }

    /// Four contiguous requests, 1 ms apart; the second comes first.
    fn predicted() -> Vec<Predicted> {
        [(0, 1), (10, 0), (20, 2), (30, 3)]
            .map(|(offset, ms)| Predicted { offset, time: ms * MS, len: 10, runs: 2 })
            .to_vec()
    }

    #[test]
    fn a_burst_begins_behind_the_one_before_whichever_request_comes_first() {
        let (mut bursts, predicted) = (Bursts::default(), predicted());
        let mut place = |ms: u64, offset: u64| bursts.place(Time(ms * MS), &request(offset), &predicted);
        // Nothing is known but the predictions.
        assert_eq!(place(0, 1010), Place::New(1000));
        assert_eq!(
            (place(1, 1000), place(2, 1020), place(3, 1030)),
            (Place::Here(1000), Place::Here(1000), Place::Here(1000))
        );
        // The end is known.
        assert_eq!(place(300, 1070), Place::New(1040));
        assert_eq!((place(301, 1040), place(302, 500)), (Place::Here(1040), Place::Outside));
        // A gap comes once as a surprise, and is known then.
        assert_eq!((place(600, 1110), place(601, 1100)), (Place::New(1080), Place::Here(1080)));
        assert_eq!(place(602, 1130), Place::Here(1080));
        assert_eq!(place(900, 1180), Place::New(1160));
    }

    #[test]
    fn a_base_that_was_too_high_moves() {
        let (mut bursts, predicted) = (Bursts::default(), predicted());
        let mut place = |offset: u64| bursts.place(Time(1), &request(offset), &predicted);
        assert_eq!((place(1030), place(1000), place(1040)), (Place::New(1020), Place::Moved(1000), Place::Here(1000)));
        assert_eq!(Bursts::default().place(Time(1), &request(5), &predicted[1..]), Place::New(5));
    }
}
