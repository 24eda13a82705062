//! Predictions against a naive model, and at work in an engine.
//!
//! A failure prints its input; `PROPTEST_CASES=10000 cargo test -p sluice-adapt --test predictor` tries harder.

use std::sync::Arc;

use proptest::prelude::*;
use sluice_adapt::predictor::{
    Aggregations, Combiner, Forecast, Handle, LearnLimits, Learner, Predicted, Settings, TimeToProcess, TracePredictor,
    default_time_to_process, estimate_alpha, series_of,
};
use sluice_core::policy::table;
use sluice_core::{
    AppId, Batch, Chosen, Engine, EngineConfig, FileId, Op, Outcome, PolicyConfig, Predictor, Request, TargetId, Time,
};
use sluice_trace::{Entry, Meta, Reader, Writer};

const MS: u64 = 1_000_000;

fn trace(entries: &[Entry]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
    for entry in entries {
        while writer.paths().len() <= entry.file as usize {
            let path = format!("file-{}", writer.paths().len());
            writer.file(path.as_bytes()).unwrap();
        }
        writer.push(*entry).unwrap();
    }
    writer.finish(0).unwrap()
}

fn forecast(runs: &[Vec<Entry>], settings: Settings) -> Forecast {
    let mut combiner = Combiner::new(settings);
    for run in runs {
        combiner.add(&mut Reader::new(&trace(run)[..]).unwrap()).unwrap();
    }
    combiner.finish()
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let entry = (0..2_u32, any::<bool>(), 0..6_u64, 1..3_u32, 0..300_u64);
    prop::collection::vec(entry, 0..40).prop_map(|mut list| {
        list.sort_by_key(|entry| entry.4);
        let entry = |&(file, write, block, blocks, ms): &(u32, bool, u64, u32, u64)| {
            let op = if write { Op::Write } else { Op::Read };
            Entry { time: ms * MS, file, app: 0, target: 0, op, offset: block * 4096, len: blocks * 4096 }
        };
        list.iter().map(entry).collect()
    })
}

/// File, operation, offset, length.
type Key = (u32, Op, u64, u32);
/// Times, and the run each is of.
type Seen = Vec<(u64, usize)>;
/// Of each request the predictions: mean time and number of runs.
type Naive = Vec<(Key, Vec<(u64, u32)>)>;

/// The same by the definition, without any cleverness: lists and searches.
fn naive(runs: &[Vec<Entry>], settings: &Settings) -> Naive {
    let mut occurrences: Vec<(Key, Seen)> = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        for entry in run {
            let first = run.iter().filter(|other| other.file == entry.file).map(|other| other.time).min().unwrap();
            let key = (entry.file, entry.op, entry.offset, entry.len);
            let seen = (entry.time - first, number);
            match occurrences.iter_mut().find(|(known, _)| *known == key) {
                Some((_, list)) => list.push(seen),
                None => occurrences.push((key, vec![seen])),
            }
        }
    }
    occurrences.sort_by_key(|(key, _)| *key);
    let pair = |(key, mut seen): (Key, Seen)| {
        seen.sort_unstable();
        let mut groups: Vec<Seen> = Vec::new();
        for (time, run) in seen {
            let fits = |group: &Seen| {
                let mean = (group.iter().map(|g| u128::from(g.0)).sum::<u128>() / group.len() as u128) as u64;
                let tolerance = ((mean as f64 * settings.margin) as u64).max(settings.margin_floor_ns);
                time.abs_diff(mean) <= tolerance && group.iter().all(|g| g.1 != run)
            };
            match groups.iter_mut().find(|group| fits(group)) {
                Some(group) => group.push((time, run)),
                None => groups.push(vec![(time, run)]),
            }
        }
        let mut predicted: Vec<(u64, u32)> = groups
            .iter()
            .map(|group| {
                let sum = group.iter().map(|g| u128::from(g.0)).sum::<u128>();
                ((sum / group.len() as u128) as u64, group.len() as u32)
            })
            .collect();
        predicted.sort_unstable();
        (key, predicted)
    };
    occurrences.into_iter().map(pair).collect()
}

fn flat(forecast: &Forecast) -> Naive {
    let mut all: Naive = Vec::new();
    for file in forecast.files() {
        let number: u32 = String::from_utf8_lossy(forecast.paths().get(file.path))[5..].parse().unwrap();
        for op in [Op::Read, Op::Write] {
            for request in &forecast.requests()[file.range(op)] {
                let key = (number, op, request.offset, request.len);
                match all.iter_mut().find(|(known, _)| *known == key) {
                    Some((_, list)) => list.push((request.time, request.runs)),
                    None => all.push((key, vec![(request.time, request.runs)])),
                }
            }
        }
    }
    all.iter_mut().for_each(|(_, list)| list.sort_unstable());
    all.sort_by_key(|(key, _)| *key);
    all
}

proptest! {
    #[test]
    fn combining_is_what_the_definition_says(runs in prop::collection::vec(entries(), 1..4), margin in 0..3_u32) {
        let settings = Settings { margin: f64::from(margin) / 10.0, ..Settings::default() };
        let forecast = forecast(&runs, settings);
        // The bound on open groups is not reached by so few.
        prop_assert_eq!(flat(&forecast), naive(&runs, &settings));
        let totals = forecast.totals();
        prop_assert_eq!(totals.entries, runs.iter().map(|run| run.len() as u64).sum::<u64>());
        let runs: u64 = forecast.requests().iter().map(|request| u64::from(request.runs)).sum();
        prop_assert_eq!(runs, totals.entries, "each entry is in one predicted request");
    }

    #[test]
    fn aggregations_are_contiguous_bounded_and_worth_their_wait(
        runs in prop::collection::vec(entries(), 1..3), alpha in 0..=10_u32, bytes_max in 1..8_u64,
    ) {
        let settings = Settings { bytes_max: bytes_max * 4096, requests_max: 5, ..Settings::default() };
        let (forecast, ttp) = (forecast(&runs, settings), default_time_to_process());
        let alpha = f64::from(alpha) / 10.0;
        let all = Aggregations::new(&forecast, &settings, &ttp, alpha);
        let mut parts: Vec<Vec<&Predicted>> = vec![Vec::new(); all.list().len()];
        for (at, request) in forecast.requests().iter().enumerate() {
            if let Some(number) = all.of(at) {
                parts[number as usize].push(request);
            }
        }
        for (whole, mut parts) in all.list().iter().zip(parts) {
            parts.sort_by_key(|part| part.offset);
            prop_assert!((2..=5).contains(&parts.len()));
            prop_assert!(parts.windows(2).all(|pair| pair[0].end() == pair[1].offset));
            prop_assert_eq!((whole.offset, whole.end), (parts[0].offset, parts[parts.len() - 1].end()));
            prop_assert!(whole.end - whole.offset <= settings.bytes_max);
            prop_assert_eq!(whole.first, parts.iter().map(|part| part.time).min().unwrap());
            prop_assert_eq!(whole.last, parts.iter().map(|part| part.time).max().unwrap());
            // Each step saves one positioning of 8 ms and adds some waiting.
            let waited = (whole.last - whole.first) as f64 * (1.0 - alpha);
            prop_assert!(waited <= (parts.len() - 1) as f64 * 8e6, "{waited}");
        }
        let alpha = estimate_alpha(&forecast, &ttp);
        prop_assert!((0.0..=1.0).contains(&alpha), "{alpha}");
    }

    /// Any requests, linked or not, with any times: the answers keep what the engine relies on.
    #[test]
    fn answers_are_within_bounds(runs in prop::collection::vec(entries(), 1..3), arriving in entries()) {
        let forecast = Arc::new(forecast(&runs, Settings::default()));
        let (mut engine, _) = engine("to-agg", &forecast, 1);
        let mut bed = Bed::default();
        for entry in arriving {
            bed.submit(&mut engine, Time(entry.time), request(entry.file.into(), entry.op, entry.offset, entry.len));
        }
        bed.drain(&mut engine);
        prop_assert_eq!(bed.served.len(), bed.submitted);
    }
}

fn request(file: u64, op: Op, offset: u64, len: u32) -> Request {
    Request { cookie: 0, file: FileId(file), app: AppId(0), target: TargetId(0), op, offset, len }
}

fn engine(policy: &str, forecast: &Arc<Forecast>, in_flight_max: u32) -> (Engine, Handle) {
    let config = EngineConfig { in_flight_max, ..EngineConfig::default() };
    let mut engine = Engine::new(config, &PolicyConfig::parse(policy).unwrap(), Time::ZERO).unwrap();
    let resolve = Arc::new(|file: FileId| Some(Arc::from(format!("file-{}", file.0).as_bytes())));
    let (predictor, handle) =
        TracePredictor::new(forecast.clone(), Settings::default(), default_time_to_process(), resolve);
    engine.set_predictor(Some(Box::new(predictor)));
    (engine, handle)
}

/// Of somebody else, between groups: what goes on where the last batch ended is not held.
const ELSEWHERE: FileId = FileId(99);

/// A device that takes what the default curve says, in virtual time.
#[derive(Default)]
struct Bed {
    now: Time,
    batch: Batch,
    submitted: usize,
    /// Parts of the batches, in the order of dispatch.
    served: Vec<Request>,
    batches: Vec<usize>,
    /// The one in flight, and when it is done.
    busy: Option<Time>,
    ids: Vec<sluice_core::RequestId>,
}

impl Bed {
    /// Lets time pass up to `until`.
    fn run(&mut self, engine: &mut Engine, until: Time) {
        loop {
            if self.busy.is_none() && engine.poll_dispatch(self.now, &mut self.batch) {
                let ttp = default_time_to_process()(Op::Read, self.batch.bytes());
                self.busy = Some(self.now.after(ttp));
                self.ids = self.batch.parts().iter().map(|part| part.id).collect();
                if self.batch.parts()[0].request.file != ELSEWHERE {
                    self.served.extend(self.batch.parts().iter().map(|part| part.request));
                    self.batches.push(self.ids.len());
                }
                continue;
            }
            let next = match self.busy {
                Some(done) => done,
                None => engine.poll_timeout().unwrap_or(Time(u64::MAX)),
            };
            if next > until {
                self.now = self.now.max(until);
                return;
            }
            self.now = self.now.max(next);
            if self.busy.is_some_and(|done| done <= self.now) {
                self.busy = None;
                for id in std::mem::take(&mut self.ids) {
                    engine.complete(self.now, id, Outcome::ok(0)).unwrap();
                }
            }
        }
    }

    fn submit(&mut self, engine: &mut Engine, at: Time, request: Request) {
        self.run(engine, at);
        engine.submit(self.now, request).unwrap();
        self.submitted += 1;
    }

    fn drain(&mut self, engine: &mut Engine) {
        let end = self.now.after(3_600_000 * MS);
        self.run(engine, end);
    }
}

/// Contiguous requests of 64 KiB that come 2 ms after each other, groups of 4 every 100 ms.
fn groups(count: u64, jitter: impl Fn(u64) -> u64) -> Vec<Entry> {
    let entry = |n: u64| Entry {
        time: n / 4 * 100 * MS + n % 4 * 2 * MS + jitter(n),
        file: 0,
        app: 0,
        target: 0,
        op: Op::Write,
        offset: n * 65_536,
        len: 65_536,
    };
    (0..count).map(entry).collect()
}

fn replay(policy: &str, forecast: &Arc<Forecast>, entries: &[Entry]) -> (Bed, Handle) {
    let (mut engine, handle) = engine(policy, forecast, 1);
    let mut bed = Bed { now: Time(1), ..Bed::default() };
    for (n, entry) in entries.iter().enumerate() {
        if n % 4 == 0 {
            let moves = request(ELSEWHERE.0, Op::Write, n as u64 * 8192, 4096);
            bed.submit(&mut engine, Time((1 + entry.time).saturating_sub(20 * MS)), moves);
        }
        bed.submit(&mut engine, Time(1 + entry.time), request(entry.file.into(), entry.op, entry.offset, entry.len));
    }
    bed.drain(&mut engine);
    assert_eq!(bed.served.len(), entries.len());
    (bed, handle)
}

#[test]
fn what_came_before_is_waited_for_with_every_aggregating_policy() {
    let runs = [groups(40, |_| 0), groups(40, |n| n % 3 * 100_000)];
    let with = Arc::new(forecast(&runs, Settings::default()));
    let without = Arc::new(Forecast::default());
    for info in table().iter().filter(|info| info.aggregates) {
        // Later and earlier by a little than before.
        let run = groups(40, |n| n * 7 % 5 * 150_000);
        let (plain, _) = replay(info.name, &without, &run);
        let (predicted, handle) = replay(info.name, &with, &run);
        let (before, after) = (plain.batches.len(), predicted.batches.len());
        assert!(after <= before, "{}: {after} batches instead of {before}", info.name);
        let counters = handle.counters();
        assert!(counters.linked >= 38, "{}: {counters:?}", info.name);
        // 20 without waiting; an epoch goes without it for comparison.
        assert!(after <= 15, "{}: {after} batches for 10 groups, {counters:?}", info.name);
    }
}

#[test]
fn a_run_that_begins_again_is_predicted_again() {
    let once = groups(20, |_| 0);
    let with = Arc::new(forecast(std::slice::from_ref(&once), Settings::default()));
    let mut thrice = Vec::new();
    for turn in 0..3 {
        thrice.extend(once.iter().map(|entry| Entry { time: entry.time + turn * 700 * MS, ..*entry }));
    }
    let (bed, handle) = replay("to-agg", &with, &thrice);
    assert_eq!(handle.counters().linked, 60, "{:?}", handle.counters());
    // 15 groups; 30 batches if nothing is waited for, as in the epochs for comparison.
    assert!(bed.batches.len() <= 22, "{:?}", bed.batches);
}

#[test]
fn wrong_traces_cost_next_to_nothing() {
    // In the trace the second request of each pair comes soon; in fact it never does.
    let run: Vec<Entry> = groups(4000, |_| 0);
    let with = Arc::new(forecast(std::slice::from_ref(&run), Settings::default()));
    let lonely: Vec<Entry> = run.iter().copied().filter(|entry| entry.offset / 65_536 % 4 == 0).collect();
    let (plain, _) = replay("to-agg", &Arc::new(Forecast::default()), &lonely);
    let (predicted, handle) = replay("to-agg", &with, &lonely);
    assert_eq!(plain.batches.len(), predicted.batches.len());
    let counters = handle.counters();
    assert!(counters.waits < 20, "{counters:?}");
    let idle = counters.waited_ns - counters.overlapped_ns;
    let elapsed = lonely[lonely.len() - 1].time;
    assert!(idle as f64 <= elapsed as f64 * 0.01 + 60e6, "{counters:?} in {elapsed}");
}

#[test]
fn what_was_served_better_than_in_groups_is_not_waited_for_unless_runs_differ_by_a_multiple() {
    // Two files; a group of each every so many milliseconds. The device needs 10.6 ms for one. The second half comes later.
    let run = |period: u64, later_ms: u64| -> Vec<Entry> {
        let later = |entry: &Entry| if entry.offset < 200 * 65_536 { 0 } else { later_ms * MS };
        let time = |entry: &Entry| entry.time / 100 * period + later(entry);
        let both = |entry: &Entry| [0, 1].map(|file| Entry { file, time: time(entry), ..*entry });
        groups(400, |_| 0).iter().flat_map(both).collect()
    };
    let first_wait = |period: u64, later_ms: u64| {
        let runs = [run(period, 0), run(period, later_ms)];
        let with = Arc::new(forecast(&runs, Settings::default()));
        let names = Arc::new(|file: FileId| Some(Arc::from(format!("file-{}", file.0).as_bytes())));
        let (mut predictor, _) = TracePredictor::new(with, Settings::default(), default_time_to_process(), names);
        // The first part of each group is chosen as soon as it is there.
        runs[0].iter().filter(|entry| entry.offset % (4 * 65_536) == 0).position(|entry| {
            let (now, file) = (Time(1 + entry.time), FileId(entry.file.into()));
            predictor.submitted(now, &request(file.0, Op::Write, entry.offset, 65_536));
            let chosen = Chosen {
                file,
                target: TargetId(0),
                op: Op::Write,
                offset: entry.offset,
                end: entry.offset + 65_536,
                earliest: now,
                continues: false,
            };
            predictor.expect(now, &chosen).is_some()
        })
    };
    assert_eq!(first_wait(100, 0), Some(0));
    assert_eq!(first_wait(5, 0), None);
    assert_eq!(first_wait(5, 1_500), Some(0));
}

#[test]
fn unknown_files_and_requests_are_scheduled_as_ever() {
    let with = Arc::new(forecast(&[groups(40, |_| 0)], Settings::default()));
    let other: Vec<Entry> = groups(40, |_| 0).iter().map(|entry| Entry { file: 1, ..*entry }).collect();
    let longer: Vec<Entry> = groups(40, |_| 0).iter().map(|entry| Entry { len: 4096, ..*entry }).collect();
    for run in [other, longer] {
        let (plain, _) = replay("to-agg", &Arc::new(Forecast::default()), &run);
        let (predicted, handle) = replay("to-agg", &with, &run);
        assert_eq!(plain.served, predicted.served);
        assert_eq!((handle.counters().linked, handle.counters().waits), (0, 0));
    }
}

#[test]
fn alpha_is_the_share_of_waiting_that_other_requests_fill() {
    let ttp: TimeToProcess = Arc::new(|_, _| 10 * MS);
    let alone = groups(40, |_| 0);
    let quiet = estimate_alpha(&forecast(std::slice::from_ref(&alone), Settings::default()), &ttp);
    // Somebody else keeps the device busy all the time.
    let like = alone[0];
    let busy = (0..2000).map(|n| Entry { time: n * MS, file: 1, offset: n * 3 * 65_536, ..like });
    let mut both: Vec<Entry> = alone.into_iter().chain(busy).collect();
    both.sort_by_key(|entry| entry.time);
    let crowded = estimate_alpha(&forecast(&[both], Settings::default()), &ttp);
    assert!(quiet < 0.3 && crowded > 0.9, "{quiet} {crowded}");
}

#[test]
fn aggregations_follow_the_observed_alpha() {
    let run = groups(400, |_| 0);
    let (_, handle) = replay("to-agg", &Arc::new(forecast(std::slice::from_ref(&run), Settings::default())), &run);
    let counters = handle.counters();
    assert!(counters.waits > 0, "{counters:?}");
    let far =
        (counters.alpha - estimate_alpha(&forecast(&[run], Settings::default()), &default_time_to_process())).abs();
    assert_eq!(handle.refresh(), far >= 0.1, "{counters:?}");
    assert!(!handle.refresh(), "nothing has changed since");
}

#[test]
fn too_many_runs_are_refused() {
    let mut combiner = Combiner::new(Settings::default());
    let bytes = trace(&groups(1, |_| 0));
    for _ in 0..64 {
        combiner.add(&mut Reader::new(&bytes[..]).unwrap()).unwrap();
    }
    assert!(combiner.add(&mut Reader::new(&bytes[..]).unwrap()).unwrap_err().to_string().contains("64 runs"));
}

/// A time step: 12 blocks, 2 ms apart.
fn step(learner: &mut Learner, path: &str, start: u64, blocks: u64) {
    let path: Arc<[u8]> = path.as_bytes().into();
    for n in 0..blocks {
        let (time, offset) = (start + n * 2 * MS, n * 65_536);
        let entry = Entry { time, file: 0, app: 0, target: 0, op: Op::Write, offset, len: 65_536 };
        learner.seen(&path, &entry);
    }
}

#[test]
fn time_steps_are_learned_and_predicted() {
    let mut learner = Learner::new(LearnLimits::default());
    step(&mut learner, "run/out.0010", 0, 12);
    learner.settle(1_000 * MS);
    assert!(!learner.take_changed(), "it may still be in use");
    step(&mut learner, "run/out.0020", 5_000 * MS, 12);
    learner.settle(10_000 * MS);
    assert!(learner.take_changed() && !learner.take_changed());
    assert_eq!((learner.repeating(), learner.requests()), (1, 24));
    let forecast = learner.forecast(Settings::default());
    assert_eq!((forecast.totals().requests, forecast.totals().paired), (12, 12));
    assert!(forecast.find(&series_of(b"run/out.0030"), 0).is_some());
    // Over a restart.
    let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
    learner.save(&mut writer).unwrap();
    let bytes = writer.finish(0).unwrap();
    let mut again = Learner::new(LearnLimits::default());
    again.load(&mut Reader::new(&bytes[..]).unwrap()).unwrap();
    assert_eq!((again.repeating(), again.requests()), (1, 24));
    assert_eq!(again.forecast(Settings::default()).requests(), forecast.requests());
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    assert!(Learner::new(LearnLimits::default()).load(&mut Reader::new(&damaged[..]).unwrap()).is_err());
}

#[test]
fn a_file_that_is_written_again_is_a_run_again() {
    let mut learner = Learner::new(LearnLimits::default());
    for turn in 0..5 {
        step(&mut learner, "checkpoint", turn * 500 * MS, 12);
    }
    learner.settle(100_000 * MS);
    assert_eq!((learner.repeating(), learner.requests()), (1, 36), "the last three");
    assert_eq!(learner.forecast(Settings::default()).totals().requests, 12);
}

#[test]
fn what_is_learned_is_bounded() {
    let limits =
        LearnLimits { run_requests_max: 20, requests_max: 100, series_max: 6, files_max: 3, ..LearnLimits::default() };
    let mut learner = Learner::new(limits);
    step(&mut learner, "long", 0, 21);
    learner.settle(100_000 * MS);
    assert_eq!(learner.requests(), 0, "longer than a run may be");
    for n in 0..50_u64 {
        let name = format!("{}", char::from(b'a' + (n % 20) as u8));
        step(&mut learner, &name, n * 10_000 * MS, 10);
        learner.settle((n * 10_000 + 9_000) * MS);
        assert!(learner.requests() <= 100);
    }
    assert!(learner.repeating() <= 6);
    for n in 0..10 {
        step(&mut learner, &format!("open-{}", "x".repeat(n)), 1_000_000 * MS, 2);
    }
    learner.settle(u64::MAX);
    assert!(learner.requests() <= 100);
}

#[test]
fn paths_that_differ_in_numbers_are_one_series() {
    for (path, series) in [("out.0010", "out.#"), ("a1b22/c", "a#b#/c"), ("none", "none"), ("", ""), ("12", "#")] {
        assert_eq!(series_of(path.as_bytes()), series.as_bytes());
    }
}

#[test]
fn a_forecast_is_replaced_while_requests_arrive() {
    let run = groups(40, |_| 0);
    let new = Arc::new(forecast(std::slice::from_ref(&run), Settings::default()));
    let (mut engine, handle) = engine("to-agg", &Arc::new(Forecast::default()), 1);
    let mut bed = Bed { now: Time(1), ..Bed::default() };
    for (n, entry) in run.iter().chain(&run).enumerate() {
        if n == 10 {
            handle.replace(new.clone());
            assert_eq!(handle.predicted(), 40);
        }
        let turn = if n < 40 { 0 } else { 10_000 * MS };
        bed.submit(&mut engine, Time(1 + turn + entry.time), request(0, entry.op, entry.offset, entry.len));
    }
    bed.drain(&mut engine);
    assert_eq!(bed.served.len(), 80);
    assert!(handle.counters().linked >= 40, "{:?}", handle.counters());
}

#[test]
fn a_run_that_is_slower_is_followed() {
    let run = groups(400, |_| 0);
    let with = Arc::new(forecast(std::slice::from_ref(&run), Settings::default()));
    // From the first second on everything is 3 s late, which no margin covers at first.
    let slower: Vec<Entry> = run
        .iter()
        .map(|entry| Entry { time: entry.time + 3_000 * MS * u64::from(entry.time >= 1_000 * MS), ..*entry })
        .collect();
    let (_, handle) = replay("to-agg", &with, &slower);
    assert!(handle.counters().linked >= 390, "{:?}", handle.counters());
}

/// A closed loop on a device that serves a batch at a time and where each of `slowness` tells what a batch of so many
/// requests takes; the counters at its end.
fn damaged(slowness: impl Fn(usize) -> u64, steps: u64) -> (Vec<(u64, u64)>, sluice_adapt::predictor::Counters) {
    const PROCESSES: u64 = 8;
    let run = |predicted: Option<&Arc<Forecast>>| {
        let nothing = Arc::new(Forecast::default());
        let (mut engine, handle) = engine("to-agg", predicted.unwrap_or(&nothing), 1);
        let (mut now, mut batch, mut trace) = (Time(1), Batch::new(), Vec::new());
        let mut waits = Vec::new();
        let mut sends: std::collections::BTreeSet<(u64, u64, u64)> =
            (0..PROCESSES).map(|process| (1 + process * MS, process, 0)).collect();
        let mut busy: Option<(Time, Vec<_>)> = None;
        loop {
            if busy.is_none() && engine.poll_dispatch(now, &mut batch) {
                let parts = batch.parts().iter().map(|part| (part.id, part.request.cookie)).collect::<Vec<_>>();
                busy = Some((now.after(slowness(parts.len())), parts));
            }
            waits.push((now.0, handle.counters().waits));
            let next =
                [sends.first().map(|send| Time(send.0)), busy.as_ref().map(|busy| busy.0), engine.poll_timeout()];
            let Some(next) = next.into_iter().flatten().min() else { break };
            now = now.max(next);
            if let Some((_, parts)) = busy.take_if(|busy| busy.0 <= now) {
                for (id, cookie) in parts {
                    engine.complete(now, id, Outcome::ok(65_536)).unwrap();
                    let (process, step) = (cookie % 100, cookie / 100 + 1);
                    if step < steps {
                        sends.insert((now.0 + MS + process * 300_000, process, step));
                    }
                }
            }
            while let Some(&(at, process, step)) = sends.first().filter(|send| send.0 <= now.0) {
                sends.pop_first();
                // Steps from the end of the file to its beginning: no batch goes on where the last one ended.
                let offset = ((steps - 1 - step) * PROCESSES + process) * 65_536;
                let sent = Request { cookie: step * 100 + process, ..request(0, Op::Write, offset, 65_536) };
                trace.push(Entry { time: at, file: 0, app: 0, target: 0, op: Op::Write, offset, len: 65_536 });
                engine.submit(now, sent).unwrap();
            }
        }
        (trace, waits, handle.counters())
    };
    let (trace, ..) = run(None);
    let forecast = Arc::new(forecast(std::slice::from_ref(&trace), Settings::default()));
    let (_, waits, counters) = run(Some(&forecast));
    (waits, counters)
}

#[test]
fn a_forecast_that_does_not_pay_is_off_within_two_seconds() {
    // The larger the batch, the longer each of its requests takes: every wait that brings something does damage.
    let (waits, counters) = damaged(|parts| (parts * parts) as u64 * MS, 600);
    let at = |time: u64| waits.iter().rfind(|(now, _)| *now <= time).map_or(0, |(_, count)| *count);
    assert!(counters.waits > 0 && counters.verdict == sluice_adapt::predictor::Verdict::DoesNotPay, "{counters:?}");
    assert_eq!(at(2_000 * MS), at(3_500 * MS), "nothing is waited for any more: {counters:?}");
}
