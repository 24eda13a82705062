//! Whether the recorded runs leave anything to gain: what the device would have needed for them if it had served nothing but
//! whole groups and aggregations.
//!
//! Where that is more than the time that they took, requests were served better than in whole groups already: what is asked
//! for at a time, by several processes or by one that has several requests outstanding, lies so close together that the
//! device hardly moves. To hold a part of it then brings nothing, and stops the programs. And it cannot be tried without harm:
//! many of these systems have a fast way of working and a slow one, and one wait at the beginning of a run is enough to turn it
//! into the slow one, out of which nothing brings it later.
//!
//! But where the recorded runs differ by a multiple from each other, some of them have fallen into the slow way without any
//! wait: so may the next one, and waiting keeps it in step. That has to be from the beginning, for processes that have
//! drifted apart once seldom come together again.
//!
//! Where the engine anticipates, processes come into step again by themselves: runs that differ are no reason then but an objection, as
//! nothing can be told by the throughput of such a system, and whole groups have to promise twice the speed, in runs that are long
//! enough for a trial.
//!
//! Where one file alone is used, a whole group goes on where the one before it ended: it costs its bytes and no more. But the
//! recorded runs must have been long enough for what a trial may cost.

use sluice_core::Op;

use super::aggregate::Aggregations;
use super::forecast::{FileForecast, Forecast};
use super::online::PAUSE_NS;
use super::pace::Pace;
use super::{Settings, TimeToProcess};

/// In nanoseconds. A trial takes 0.15 s, and is ended when throughput is less than 0.6 of what it was: 2 % of such a run.
const LONG_NS: u64 = 3_000_000_000;
/// The same where the engine anticipates, and several pairs of epochs may be asked for.
const LONG_ANTICIPATING_NS: u64 = 10_000_000_000;
/// Where whole groups would have needed more than this share of the time of the recorded runs, these were served better.
const NEED_MAX: f64 = 1.0;
/// The same where processes come into step without any wait: it takes more to be worth a trial then.
const NEED_MAX_ANTICIPATING: f64 = 0.5;
/// The slowest recorded run takes so many times as long as the fastest where there are two ways of working.
const SPREAD_MIN: f64 = 3.0;
/// And so many times at most where an engine that anticipates may tell by throughput what waiting brings.
const SPREAD_MAX_ANTICIPATING: f64 = 1.5;

/// What all requests up to one need and how long requests came, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct UpTo {
    time: u64,
    need: f64,
    active: u64,
}

/// Of each file of a forecast, whether waiting is worth a trial. None for what was learned file by file: how those were used at a
/// time is not known.
pub(super) fn promises(
    forecast: &Forecast,
    settings: &Settings,
    ttp: &TimeToProcess,
    aggregations: &Aggregations,
) -> Vec<bool> {
    let spread = |file: usize| forecast.paces.get(file).map_or(1.0, Pace::spread);
    let needs = needs(forecast, settings, ttp, aggregations);
    let is_long = |file: usize| forecast.paces.get(file).is_none_or(|pace| pace.duration() >= LONG_ANTICIPATING_NS);
    let promises = |(file, need)| match settings.anticipates {
        true => need <= NEED_MAX_ANTICIPATING && spread(file) <= SPREAD_MAX_ANTICIPATING && is_long(file),
        false => need <= NEED_MAX || spread(file) >= SPREAD_MIN,
    };
    needs.into_iter().enumerate().map(promises).collect()
}

/// Of each file of a forecast: the share of the time that its recorded runs took, which the device would have needed for all
/// that came meanwhile, had it served whole groups and aggregations. O(n log n), n being the predicted requests.
fn needs(forecast: &Forecast, settings: &Settings, ttp: &TimeToProcess, aggregations: &Aggregations) -> Vec<f64> {
    if forecast.apart {
        return Vec::new();
    }
    let files = &forecast.files;
    let took = |number: usize| forecast.paces.get(number).map_or(0, Pace::duration);
    let is_stream = files.iter().all(|file| file.path == files[0].path);
    let is_long_stream = is_stream && (0..files.len()).any(|number| took(number) >= LONG_NS);
    let whole = |at: usize, file: &FileForecast, op: Op| {
        let len = u64::from(forecast.requests[at].len);
        let whole = match file.groups(op) {
            Some(groups) => groups.bytes.min(settings.bytes_max),
            None => aggregations.of(at).map_or(len, |number| {
                let aggregation = &aggregations.list()[number as usize];
                aggregation.end - aggregation.offset
            }),
        };
        whole.max(len).max(1)
    };
    // In the mean of the runs: a request that came in some of them counts as much less.
    let runs = f64::from(forecast.totals.runs.max(1));
    let need = |at: usize, file: &FileForecast, op: Op| {
        let (request, whole) = (&forecast.requests[at], whole(at, file, op));
        let (len, came) = (u64::from(request.len), f64::from(request.runs) / runs);
        let bytes = ttp(op, whole + len).saturating_sub(ttp(op, whole)) as f64;
        let with_seeks = ttp(op, whole) as f64 * len as f64 / whole as f64;
        came * if is_long_stream { bytes } else { with_seeks }
    };
    let mut all = Vec::with_capacity(forecast.requests.len());
    for (file, op) in files.iter().flat_map(|file| [(file, Op::Read), (file, Op::Write)]) {
        let of = |at: usize| {
            let time = file.start.saturating_add(forecast.requests[at].time);
            UpTo { time, need: need(at, file, op), active: 0 }
        };
        all.extend(file.range(op).map(of));
    }
    let sums = summed(all);
    // Each of them has a device of its own.
    let targets = files.iter().map(|file| file.target).max().map_or(1.0, |last| f64::from(last) + 1.0);
    let of_file = |(number, file): (usize, &FileForecast)| {
        let end = file.start.saturating_add(took(number)).saturating_add(1);
        let (from, to) = (before(&sums, file.start), before(&sums, end));
        (to.need - from.need) / (targets * (to.active - from.active).max(1) as f64)
    };
    files.iter().enumerate().map(of_file).collect()
}

/// In the order of time, each with all before it.
fn summed(mut all: Vec<UpTo>) -> Vec<UpTo> {
    all.sort_unstable_by_key(|request| request.time);
    let mut sum = UpTo { time: all.first().map_or(0, |first| first.time), ..UpTo::default() };
    for request in &mut all {
        // Pauses of the programs are no time in which they wanted something.
        let active = sum.active + (request.time - sum.time).min(PAUSE_NS);
        sum = UpTo { time: request.time, need: sum.need + request.need, active };
        *request = sum;
    }
    all
}

/// All that came before a time.
fn before(sums: &[UpTo], time: u64) -> UpTo {
    let after = sums.partition_point(|request| request.time < time);
    after.checked_sub(1).map_or_else(UpTo::default, |last| sums[last])
}

#[cfg(test)]
mod tests {
    use super::super::{Combiner, default_time_to_process};
    use super::*;
    use sluice_trace::Entry;

    /// The needs of files that are used at the same time, each of which gets 64 KiB every `every_ms`, `count` times: 8.7 ms of
    /// the device, 0.7 of them for the bytes.
    fn of(files: u64, count: u64, every_ms: u64, apart: bool) -> Vec<f64> {
        let settings = Settings::default();
        let mut combiner = Combiner::new(settings);
        let mut run = combiner.begin_run();
        for (file, at) in (0..count).flat_map(|at| (0..files).map(move |file| (file, at))) {
            let entry = Entry {
                time: at * every_ms * 1_000_000,
                file: 0,
                app: 0,
                target: 0,
                op: Op::Read,
                offset: at * 1_000_000,
                len: 65_536,
            };
            run.push(format!("file {file}").as_bytes(), entry).unwrap();
        }
        run.end();
        let forecast = Forecast { apart, ..combiner.finish() };
        let ttp = default_time_to_process();
        needs(&forecast, &settings, &ttp, &Aggregations::new(&forecast, &settings, &ttp, 0.0))
    }

    /// Whether runs of one file with 200 requests, one each so many milliseconds, are worth a trial: a whole group needs 8.7 ms.
    fn promising(every_ms: &[u64], anticipates: bool) -> bool {
        promising_files(&["file"], 200, every_ms, anticipates)
    }

    /// The same of the first of these files, all used at a time, with so many requests.
    fn promising_files(files: &[&str], count: u64, every_ms: &[u64], anticipates: bool) -> bool {
        let settings = Settings { anticipates, ..Settings::default() };
        let mut combiner = Combiner::new(settings);
        for every_ms in every_ms {
            let mut run = combiner.begin_run();
            for (at, path) in (0..count).flat_map(|at| files.iter().map(move |path| (at, path))) {
                let (time, offset) = (at * every_ms * 1_000_000, at * 1_000_000);
                let entry = Entry { time, file: 0, app: 0, target: 0, op: Op::Read, offset, len: 65_536 };
                run.push(path.as_bytes(), entry).unwrap();
            }
            run.end();
        }
        let (forecast, ttp) = (combiner.finish(), default_time_to_process());
        let aggregations = Aggregations::new(&forecast, &settings, &ttp, 0.0);
        aggregations.promises(0)
    }

    fn are(needs: &[f64], all: &[f64]) {
        assert_eq!(needs.len(), all.len());
        assert!(needs.iter().zip(all).all(|(a, b)| (a - b).abs() < b * 0.02), "{needs:?} and not {all:?}");
    }

    #[test]
    fn what_all_files_need_at_a_time_counts() {
        are(&of(2, 200, 40, false), &[0.43, 0.43]);
        are(&of(2, 200, 10, false), &[1.73, 1.73]);
        are(&of(2, 200, 10, true), &[]);
    }

    #[test]
    fn runs_that_were_served_better_than_in_groups_promise_nothing_unless_they_differ_by_a_multiple() {
        assert!(promising(&[10, 10], false), "slower than groups");
        assert!(!promising(&[2, 2], false), "faster");
        assert!(!promising(&[2, 5], false), "faster, each of them");
        assert!(promising(&[1, 4], false), "one of them had fallen behind");
    }

    #[test]
    fn where_processes_come_into_step_by_themselves_groups_have_to_promise_more() {
        let two = |count, every_ms: &[u64], anticipates| promising_files(&["a", "b"], count, every_ms, anticipates);
        assert!(two(1_000, &[30, 30], false) && !two(1_000, &[30, 30], true), "not twice as slow as groups");
        assert!(
            two(1_000, &[40, 40], true) && !two(200, &[40, 40], true),
            "more than twice; long enough for a trial, or not"
        );
        assert!(!two(1_000, &[40, 70], true), "runs that differ tell nothing");
        assert!(!promising(&[1, 4], true), "whoever had fallen behind");
    }

    #[test]
    fn a_long_stream_needs_its_bytes_alone() {
        are(&of(1, 200, 4, false), &[2.17]);
        are(&of(1, 1_000, 4, false), &[0.164]);
    }
}
