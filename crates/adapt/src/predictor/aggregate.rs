//! Predicted aggregations.

use sluice_core::Op;

use super::forecast::{Forecast, Predicted};
use super::need::promises;
use super::{Settings, TimeToProcess};

/// Not part of an aggregation.
const NONE: u32 = u32::MAX;
/// Not looked at yet.
const NEW: u32 = u32::MAX - 1;
/// Requests of the same offset that are looked at on either side of a time.
const PROBES: usize = 8;

/// Predicted requests that should be served together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aggregation {
    /// First byte.
    pub offset: u64,
    /// The byte after the last one.
    pub end: u64,
    /// When its first part arrives, in nanoseconds since the first request to the file.
    pub first: u64,
    /// When its last part arrives.
    pub last: u64,
}

/// The aggregations of a forecast.
#[derive(Clone, Debug, Default)]
pub struct Aggregations {
    /// Of each request, its aggregation.
    of: Vec<u32>,
    list: Vec<Aggregation>,
    /// For which share of overlapped waiting they were computed.
    alpha: f64,
    /// Of each file, whether its recorded runs [leave something to gain](super::need).
    promising: Vec<bool>,
}

impl Aggregations {
    /// Computes them. O(n log n), n being the predicted requests.
    #[must_use]
    pub fn new(forecast: &Forecast, settings: &Settings, ttp: &TimeToProcess, alpha: f64) -> Aggregations {
        let mut all =
            Aggregations { of: vec![NEW; forecast.requests.len()], list: Vec::new(), alpha, promising: Vec::new() };
        for file in &forecast.files {
            for op in [Op::Read, Op::Write] {
                let range = file.range(op);
                let ttp = |bytes: u64| ttp(op, bytes) as f64;
                chain(&forecast.requests[range.clone()], settings, &ttp, alpha, &mut all.of[range], &mut all.list);
            }
        }
        all.promising = promises(forecast, settings, ttp, &all);
        all
    }

    /// That of a request, if it has one.
    #[must_use]
    pub fn of(&self, request: usize) -> Option<u32> {
        self.of.get(request).copied().filter(|&number| number != NONE)
    }

    /// All.
    #[must_use]
    pub fn list(&self) -> &[Aggregation] {
        &self.list
    }

    /// Whether waiting for a file is worth a trial, as far as its recorded runs tell.
    pub(super) fn promises(&self, file: u32) -> bool {
        self.promising.get(file as usize).copied().unwrap_or(true)
    }

    /// For which share of overlapped waiting they were computed.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Mean number of requests that are served together, and without prediction would be 1.
    #[must_use]
    pub fn mean_size(&self) -> f64 {
        let single = self.of.iter().filter(|&&number| number == NONE).count();
        self.of.len() as f64 / (self.list.len() + single).max(1) as f64
    }
}

/// Greedily, in the order of offsets: an accepted pair counts as one request for the next comparison, a rejected second
/// request begins the next candidate.
fn chain(
    requests: &[Predicted],
    settings: &Settings,
    ttp: &dyn Fn(u64) -> f64,
    alpha: f64,
    of: &mut [u32],
    list: &mut Vec<Aggregation>,
) {
    let mut parts = Vec::new();
    for start in 0..requests.len() {
        if of[start] != NEW {
            continue;
        }
        let request = &requests[start];
        let mut whole =
            Aggregation { offset: request.offset, end: request.end(), first: request.time, last: request.time };
        parts.clear();
        parts.push(start);
        of[start] = NONE;
        while (parts.len() as u32) < settings.requests_max && request.len > 0 {
            let Some(next) = next(requests, of, start, &whole) else { break };
            let candidate = &requests[next];
            let (s1, s2) = (whole.end - whole.offset, u64::from(candidate.len));
            // What it adds to the time between the first arrival and the last.
            let early = whole.first.saturating_sub(candidate.time);
            let late = candidate.time.saturating_sub(whole.last);
            let wait = (early + late) as f64 * (1.0 - alpha);
            let span = whole.last - whole.first + early + late;
            let fits = s1 + s2 <= settings.bytes_max && span <= settings.span_max_ns;
            if !fits || ttp(s1) + ttp(s2) <= ttp(s1 + s2) + wait {
                break;
            }
            whole.end = candidate.end();
            whole.first = whole.first.min(candidate.time);
            whole.last = whole.last.max(candidate.time);
            of[next] = NONE;
            parts.push(next);
        }
        if parts.len() > 1 {
            parts.iter().for_each(|&part| of[part] = list.len() as u32);
            list.push(whole);
        }
    }
}

/// The unused request behind `whole` that arrives nearest to it.
fn next(requests: &[Predicted], of: &[u32], start: usize, whole: &Aggregation) -> Option<usize> {
    let place = (whole.end, whole.first);
    let after = start + requests[start..].partition_point(|request| (request.offset, request.time) < place);
    let same = |at: &usize| requests[*at].offset == whole.end;
    let around = (after..requests.len()).take_while(same).take(PROBES);
    let around = around.chain((start..after).rev().take_while(same).take(PROBES));
    let distance = |at: usize| {
        let time = requests[at].time;
        whole.first.saturating_sub(time) + time.saturating_sub(whole.last)
    };
    around.filter(|&at| of[at] == NEW && requests[at].len > 0).min_by_key(|&at| distance(at))
}

/// The share of waiting time in which the device would have other requests to serve, from the predictions themselves: for
/// each two contiguous requests, of the time between their arrivals, how much the requests that arrive meanwhile take.
#[must_use]
pub fn estimate_alpha(forecast: &Forecast, ttp: &TimeToProcess) -> f64 {
    // Arrival since the run began, and what all up to it take together.
    let mut arrivals: Vec<(u64, u64)> = Vec::with_capacity(forecast.requests.len());
    for file in &forecast.files {
        for op in [Op::Read, Op::Write] {
            let arrival = |request: &Predicted| (file.start.saturating_add(request.time), ttp(op, request.len.into()));
            arrivals.extend(forecast.requests[file.range(op)].iter().map(arrival));
        }
    }
    arrivals.sort_unstable();
    let mut sum = 0_u64;
    for arrival in &mut arrivals {
        sum = sum.saturating_add(arrival.1);
        arrival.1 = sum;
    }
    let taken_before = |time: u64| match arrivals.partition_point(|arrival| arrival.0 < time) {
        0 => 0,
        at => arrivals[at - 1].1,
    };
    let (mut waiting, mut overlapped) = (0.0, 0.0);
    for file in &forecast.files {
        for op in [Op::Read, Op::Write] {
            let requests = &forecast.requests[file.range(op)];
            for (at, request) in requests.iter().enumerate() {
                let place = (request.end(), request.time);
                let next = at + requests[at..].partition_point(|other| (other.offset, other.time) < place);
                let Some(next) = requests.get(next).filter(|next| next.offset == request.end()) else { continue };
                let first = request.time.min(next.time);
                let wait = request.time.max(next.time) - first;
                let from = file.start.saturating_add(first);
                let own = ttp(op, if first == request.time { request.len } else { next.len }.into());
                let others = taken_before(from.saturating_add(wait)).saturating_sub(taken_before(from));
                waiting += wait as f64;
                overlapped += others.saturating_sub(own).min(wait) as f64;
            }
        }
    }
    if waiting == 0.0 { 0.0 } else { overlapped / waiting }
}
