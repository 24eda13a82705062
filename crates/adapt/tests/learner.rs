//! Learning what repeats: against combining everything anew, and the cases that programs bring.
//!
//! A failure prints its input; `PROPTEST_CASES=10000 cargo test -p sluice-adapt --test learner` tries harder.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use sluice_adapt::predictor::{
    Combiner, Forecast, LearnLimits, Learner, Names, Predicted, Settings, TracePredictor, default_time_to_process,
    series_of,
};
use sluice_core::{AppId, Chosen, FileId, Op, Predictor, Request, TargetId, Time};
use sluice_trace::{Columns, Entry, Meta, Reader, Writer};

const MS: u64 = 1_000_000;
const BLOCK: u32 = 65_536;

fn entry(file: u32, time: u64, op: Op, offset: u64) -> Entry {
    Entry { time, file, app: 0, target: 0, op, offset, len: BLOCK }
}

fn see(learner: &mut Learner, path: &str, entry: Entry) {
    learner.seen(&path.as_bytes().into(), &entry);
}

/// Blocks one behind the other, 2 ms apart.
fn blocks(learner: &mut Learner, path: &str, (file, op): (u32, Op), start: u64, offset: u64, count: u64) {
    for n in 0..count {
        see(learner, path, entry(file, start + n * 2 * MS, op, offset + n * u64::from(BLOCK)));
    }
}

fn saved(learner: &Learner) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
    learner.save(&mut writer).unwrap();
    writer.finish(0).unwrap()
}

/// Runs as they are saved: path, target, entries.
fn runs(learner: &Learner) -> Vec<(Vec<u8>, u32, Vec<Entry>)> {
    let bytes = saved(learner);
    let (mut reader, mut block) = (Reader::new(&bytes[..]).unwrap(), Columns::default());
    let mut runs: Vec<(Vec<u8>, u32, Vec<Entry>)> = Vec::new();
    let mut last = None;
    while reader.next_block(&mut block).unwrap() {
        for entry in block.iter() {
            if last != Some((entry.file, entry.target)) {
                last = Some((entry.file, entry.target));
                runs.push((reader.paths().get(entry.file).to_vec(), entry.target, Vec::new()));
            }
            runs.last_mut().unwrap().2.push(entry);
        }
    }
    runs
}

/// Path, target, operation and request.
type Flat = Vec<(Vec<u8>, u32, Op, Predicted)>;

fn flat(forecast: &Forecast) -> Flat {
    let mut all = Vec::new();
    for file in forecast.files() {
        assert_eq!(
            forecast.find(forecast.paths().get(file.path), file.target).map(|at| forecast.files()[at]),
            Some(*file)
        );
        for op in [Op::Read, Op::Write] {
            let of_file = &forecast.requests()[file.range(op)];
            let path = forecast.paths().get(file.path).to_vec();
            all.extend(of_file.iter().map(|request| (path.clone(), file.target, op, *request)));
        }
    }
    all.sort_by_key(|(path, target, op, request)| {
        (path.clone(), *target, *op, request.offset, request.time, request.len)
    });
    all
}

/// The same from all runs at once.
fn anew(learner: &Learner, settings: Settings) -> Flat {
    let mut numbered: Vec<Vec<(Vec<u8>, Entry)>> = Vec::new();
    let mut counts = HashMap::new();
    for (path, target, entries) in runs(learner) {
        let count = counts.entry((path.clone(), target, entries[0].op)).or_insert(0);
        let number: usize = *count;
        *count += 1;
        numbered.resize_with(numbered.len().max(number + 1), Vec::new);
        numbered[number].extend(entries.into_iter().map(|entry| (path.clone(), entry)));
    }
    let mut combiner = Combiner::new(Settings { runs_min: 2, margin_floor_ns: u64::MAX, ..settings });
    numbered.resize_with(numbered.len().max(2), Vec::new);
    for run in numbered {
        let mut begun = combiner.begin_run();
        run.into_iter().for_each(|(path, entry)| begun.push(&path, entry).unwrap());
        begun.end();
    }
    flat(&combiner.finish())
}

/// What happens: a pause, or requests, or a look at the forecast.
#[derive(Clone, Debug)]
enum Event {
    Pause(u64),
    Back(u64),
    Blocks { path: u32, file: u32, write: bool, offset: u64, count: u64 },
    Forecast,
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let blocks = (0..8_u32, 0..3_u32, any::<bool>(), 0..6_u64, 1..9_u64)
        .prop_map(|(path, file, write, offset, count)| Event::Blocks { path, file, write, offset, count });
    let event = prop_oneof![
        6 => blocks,
        2 => (0..3_000_u64).prop_map(Event::Pause),
        1 => (0..3_000_u64).prop_map(Event::Back),
        1 => Just(Event::Forecast),
        1 => Just(Event::Restart),
    ];
    prop::collection::vec(event, 0..80)
}

proptest! {
    #[test]
    fn bounds_hold_and_forecasts_are_those_of_all_runs(events in events(), tight in any::<bool>()) {
        let wide = LearnLimits::default();
        let narrow = LearnLimits { run_requests_max: 12, requests_max: 60, series_max: 5, files_max: 3, ..wide };
        let limits = if tight { narrow } else { wide };
        let mut learner = Learner::new(limits);
        let mut now = 10_000 * MS;
        for event in events {
            match event {
                Event::Pause(ms) => {
                    now += ms * MS;
                    learner.settle(now);
                }
                Event::Back(ms) => now = now.saturating_sub(ms * MS),
                Event::Blocks { path, file, write, offset, count } => {
                    let op = if write { Op::Write } else { Op::Read };
                    // Two of each letter are of one series.
                    let path = format!("{}.{}", char::from(b'a' + (path / 2) as u8), path % 2);
                    blocks(&mut learner, &path, (file, op), now, offset * u64::from(BLOCK), count);
                    now += count * 2 * MS;
                }
                Event::Forecast => _ = learner.forecast(Settings::default()),
                Event::Restart => {
                    let bytes = saved(&learner);
                    let before = learner.learned();
                    let mut again = Learner::new(limits);
                    again.load(&mut Reader::new(&bytes[..]).unwrap()).unwrap();
                    let after = again.learned();
                    prop_assert_eq!((after.series, after.runs, after.requests), (before.series, before.runs, before.requests));
                    learner = again;
                }
            }
            let (learned, kept) = (learner.learned(), runs(&learner));
            prop_assert_eq!(learned.runs, kept.len() as u64);
            prop_assert_eq!(learned.requests, kept.iter().map(|run| run.2.len() as u64).sum::<u64>());
            prop_assert!(learned.requests <= limits.requests_max as u64 && learned.series <= limits.series_max as u64);
            prop_assert!(learned.open_requests <= limits.requests_max as u64);
            prop_assert!(kept.iter().all(|run| (2..=limits.run_requests_max).contains(&run.2.len())));
        }
        learner.settle(u64::MAX);
        prop_assert_eq!(learner.learned().open_requests, 0);
        let forecast = learner.forecast(Settings::default());
        prop_assert_eq!(flat(&forecast), anew(&learner, Settings::default()));
        let totals = forecast.totals();
        prop_assert_eq!(totals.requests, forecast.requests().len() as u64);
        prop_assert_eq!(totals.paired, totals.requests, "what came once is not predicted");
    }
}

#[test]
fn a_file_that_is_written_and_read_in_turn_has_both_predicted() {
    let mut learner = Learner::new(LearnLimits::default());
    for turn in 0..5 {
        let start = turn * 10_000 * MS;
        blocks(&mut learner, "state", (1, Op::Write), start, 0, 10);
        blocks(&mut learner, "state", (1, Op::Read), start + 5_000 * MS, 0, 10);
    }
    learner.settle(u64::MAX);
    let forecast = learner.forecast(Settings::default());
    let file = forecast.files()[forecast.find(b"state", 0).unwrap()];
    assert_eq!((file.range(Op::Write).len(), file.range(Op::Read).len()), (10, 10));
}

#[test]
fn a_run_that_stalled_is_paired_all_the_same() {
    let mut learner = Learner::new(LearnLimits::default());
    for run in 0..2 {
        // The second one stalls in the middle for longer than it takes in all.
        let (path, start) = (format!("step.{run}"), u64::from(run) * 10_000 * MS);
        blocks(&mut learner, &path, (run, Op::Write), start, 0, 10);
        blocks(
            &mut learner,
            &path,
            (run, Op::Write),
            start + (20 + u64::from(run) * 80) * MS,
            10 * u64::from(BLOCK),
            10,
        );
    }
    learner.settle(u64::MAX);
    let forecast = learner.forecast(Settings::default());
    assert_eq!(forecast.totals().requests, 20);
    assert_eq!(forecast.requests()[10].time, 60 * MS, "the mean");
}

#[test]
fn a_file_that_is_deleted_and_made_again_begins_a_run_at_once() {
    let mut learner = Learner::new(LearnLimits::default());
    for turn in 0..4 {
        blocks(&mut learner, "checkpoint", (turn, Op::Write), u64::from(turn) * 21 * MS, 0, 10);
    }
    learner.settle(u64::MAX);
    assert_eq!((learner.learned().runs, learner.learned().requests), (3, 30));
    assert_eq!(learner.forecast(Settings::default()).totals().requests, 10);
}

#[test]
fn many_files_that_are_used_once_do_not_drive_out_what_repeats() {
    let mut learner = Learner::new(LearnLimits::default());
    for step in 0..3_u64 {
        blocks(&mut learner, &format!("out.{step}"), (1, Op::Write), step * 5_000 * MS, 0, 100);
    }
    // Names as of objects of a version control system: letters and digits at random.
    let name = |n: u64| {
        let number = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (0..16).map(|at| char::from(b'a' + (number >> (at * 4) & 15) as u8)).collect::<String>()
    };
    let start = 100_000 * MS;
    for n in 0..60_000_u64 {
        let now = start + n * MS / 2;
        blocks(&mut learner, &format!("objects/{}", name(n)), (n as u32, Op::Write), now, 0, 1 + n % 4);
        if n % 500 == 0 {
            learner.settle(now);
        }
    }
    learner.settle(u64::MAX);
    let learned = learner.learned();
    assert_eq!(learned.repeating, 1, "{learned:?}");
    assert!(learned.series <= 1 << 14 && learned.bytes < 16 << 20, "{learned:?}");
    assert_eq!(learner.forecast(Settings::default()).totals().requests, 100);
}

#[test]
fn series_without_anything_in_common_are_the_first_to_go() {
    let limits = LearnLimits { requests_max: 400, ..LearnLimits::default() };
    let mut learner = Learner::new(limits);
    for step in 0..2_u64 {
        blocks(&mut learner, &format!("out.{step}"), (1, Op::Write), step * 5_000 * MS, 0, 50);
    }
    learner.settle(u64::MAX);
    for n in 0..200_u64 {
        // Always at other places.
        let place = n * 1000 * u64::from(BLOCK);
        let path = format!("{}.log{n}", char::from(b'a' + (n % 10) as u8));
        blocks(&mut learner, &path, (1, Op::Write), (100 + n * 5) * 1_000 * MS, place, 20);
        learner.settle((100 + n * 5 + 4) * 1_000 * MS);
        let _ = learner.forecast(Settings::default());
    }
    let forecast = learner.forecast(Settings::default());
    assert!(forecast.find(b"out.#", 0).is_some(), "{:?}", learner.learned());
}

#[test]
fn times_that_go_backwards_do_no_harm() {
    let mut learner = Learner::new(LearnLimits::default());
    for turn in 0..3_u64 {
        let base = (3 - turn) * 1_000_000 * MS;
        for n in 0..20 {
            let offset = n * u64::from(BLOCK);
            see(&mut learner, &format!("out.{turn}"), entry(1, base.saturating_sub(n * 3 * MS), Op::Write, offset));
        }
        learner.settle(base);
        learner.settle(0);
    }
    learner.settle(u64::MAX);
    assert_eq!((learner.learned().runs, learner.learned().open_requests), (3, 0));
}

#[test]
fn steps_that_are_appended_to_one_file_are_bursts_of_it() {
    for pause in [300, 5_000] {
        let mut learner = Learner::new(LearnLimits::default());
        for step in 0..6_u64 {
            let (start, offset) = (step * (pause + 40) * MS, step * 16 * u64::from(BLOCK));
            // A header that says how much there is, then the step.
            see(&mut learner, "steps", entry(1, start, Op::Write, if step == 0 { 0 } else { 512 }));
            blocks(&mut learner, "steps", (1, Op::Write), start + MS, (1 << 20) + offset, 16);
            learner.settle(start + 60 * MS);
        }
        learner.settle(u64::MAX);
        let forecast = learner.forecast(Settings::default());
        let found = forecast
            .find(&Learner::bursts_of(b"steps"), 0)
            .unwrap_or_else(|| panic!("{pause}: {:?}", learner.learned()));
        let burst = &forecast.requests()[forecast.files()[found].range(Op::Write)];
        let offsets: Vec<u64> = burst.iter().map(|request| request.offset / u64::from(BLOCK)).collect();
        assert_eq!(offsets, (0..16).collect::<Vec<_>>(), "{pause}: relative to the lowest one");
    }
}

#[test]
fn a_run_that_is_too_long_still_has_bursts() {
    let limits = LearnLimits { run_requests_max: 40, ..LearnLimits::default() };
    let mut learner = Learner::new(limits);
    for step in 0..20_u64 {
        let start = step * 300 * MS;
        blocks(&mut learner, "steps", (1, Op::Write), start, (1 << 20) + step * 16 * u64::from(BLOCK), 16);
        assert!(learner.learned().open_requests <= 40);
    }
    learner.settle(u64::MAX);
    let forecast = learner.forecast(Settings::default());
    assert_eq!(forecast.totals().requests, 16, "{:?}", learner.learned());
    assert!(forecast.find(&Learner::bursts_of(b"steps"), 0).is_some());
}

#[test]
fn what_cannot_be_read_is_told_and_the_rest_is_kept() {
    let mut learner = Learner::new(LearnLimits::default());
    for step in 0..3_u64 {
        blocks(&mut learner, &format!("out.{step}"), (1, Op::Write), step * 5_000 * MS, 0, 50);
    }
    learner.settle(u64::MAX);
    let bytes = saved(&learner);
    let load = |bytes: &[u8]| {
        let mut again = Learner::new(LearnLimits::default());
        let result = Reader::new(bytes).and_then(|mut reader| again.load(&mut reader));
        assert!(again.learned().requests <= 150, "it knows no more than there was");
        result
    };
    load(&bytes).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(load(&damaged).is_err(), "a bit of byte {at} is another");
        assert!(load(&bytes[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn paths_of_bursts_are_none_of_files() {
    let series: Arc<[u8]> = series_of(b"run/steps.1").into();
    assert_eq!(Learner::bursts_of(&series), b"run/steps.#//+");
}

/// A step of 16 blocks, as 4 processes write them in turn: in another order each time.
fn order(step: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..16).map(move |n| (n, n / 4 * 4 + (n + step) % 4))
}

#[test]
fn appended_steps_are_predicted_at_their_new_place() {
    let mut learner = Learner::new(LearnLimits::default());
    let long = 16 * u64::from(BLOCK) + 4096;
    let place = |step: u64, block: u64| 4096 + step * long + block * u64::from(BLOCK);
    for step in 0..4 {
        for (n, block) in order(step) {
            see(&mut learner, "steps", entry(1, step * 400 * MS + n * MS, Op::Write, place(step, block)));
        }
        learner.settle(step * 400 * MS + 200 * MS);
    }
    let forecast = learner.forecast(Settings::default());
    let names = Arc::new(|_: FileId| Some(Arc::from(&b"steps"[..])));
    let (mut predictor, handle) = TracePredictor::new(forecast, Settings::default(), default_time_to_process(), names);
    let request = |offset| Request {
        cookie: 0,
        file: FileId(7),
        app: AppId(0),
        target: TargetId(0),
        op: Op::Write,
        offset,
        len: BLOCK,
    };
    for step in 4..9 {
        let start = step * 400 * MS;
        for (n, block) in order(step) {
            let (now, offset) = (Time(start + n * MS), place(step, block));
            predictor.submitted(now, &request(offset));
            if n > 0 || step < 6 {
                continue;
            }
            let chosen = Chosen {
                file: FileId(7),
                target: TargetId(0),
                op: Op::Write,
                offset,
                end: offset + u64::from(BLOCK),
                earliest: now,
                continues: false,
            };
            let expected =
                predictor.expect(now, &chosen).unwrap_or_else(|| panic!("step {step}: {:?}", handle.counters()));
            // The whole step, or what the four processes write in their first turn.
            assert_eq!(expected.offset, place(step, 0), "step {step}");
            assert!((place(step, 4)..=place(step, 16)).contains(&expected.end), "step {step}: {expected:?}");
        }
    }
    let counters = handle.counters();
    assert!(
        counters.known == 80 && counters.linked >= 72,
        "the first two steps show how far they are apart: {counters:?}"
    );
}

/// Another file is made with each request, with a number that another one had.
struct Churn(AtomicU64);

impl Names for Churn {
    fn path(&self, file: FileId) -> Option<Arc<[u8]>> {
        Some(Arc::from(if file.0 < 2 { &b"out.#"[..] } else { b"tmp" }))
    }
    fn changes(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

#[test]
fn runs_go_on_while_other_files_come_and_go() {
    let mut learner = Learner::new(LearnLimits::default());
    for step in 0..3_u64 {
        blocks(&mut learner, &format!("out.{step}"), (1, Op::Write), step * 5_000 * MS, 0, 100);
    }
    learner.settle(u64::MAX);
    let forecast = learner.forecast(Settings::default());
    let names = Arc::new(Churn(AtomicU64::new(0)));
    let (mut predictor, handle) = TracePredictor::new(forecast, Settings::default(), default_time_to_process(), names);
    for n in 0..100_u64 {
        for file in [1, 2 + n % 7] {
            let request = Request {
                cookie: 0,
                file: FileId(file),
                app: AppId(0),
                target: TargetId(0),
                op: Op::Write,
                offset: n * u64::from(BLOCK),
                len: BLOCK,
            };
            predictor.submitted(Time(1 + n * 2 * MS), &request);
        }
    }
    let counters = handle.counters();
    assert_eq!((counters.known, counters.linked), (100, 100), "{counters:?}");
}

/// Names of volumes: numbers tell the part of the file, wherever that is.
struct Parts;

impl Names for Parts {
    fn path(&self, _: FileId) -> Option<Arc<[u8]>> {
        Some(Arc::from(&b"out.#"[..]))
    }
    fn part(&self, request: &Request) -> u32 {
        (request.file.0 % 2) as u32
    }
}

#[test]
fn a_file_that_begins_on_another_target_is_predicted() {
    let mut learner = Learner::new(LearnLimits::default());
    for step in 0..3_u64 {
        // Small files: all is in the first part.
        blocks(&mut learner, &format!("out.{step}"), (1, Op::Write), step * 5_000 * MS, 0, 50);
    }
    learner.settle(u64::MAX);
    let forecast = learner.forecast(Settings::default());
    for (part, first, expected) in [(0, 0, 50), (0, 1, 50), (1, 0, 0)] {
        let (mut predictor, handle) =
            TracePredictor::new(forecast.clone(), Settings::default(), default_time_to_process(), Arc::new(Parts));
        for n in 0..50_u64 {
            let request = Request {
                cookie: 0,
                file: FileId(8 + part),
                app: AppId(0),
                target: TargetId((first + part as u32) % 2),
                op: Op::Write,
                offset: n * u64::from(BLOCK),
                len: BLOCK,
            };
            predictor.submitted(Time(1 + n * 2 * MS), &request);
        }
        assert_eq!(handle.counters().linked, expected, "part {part} of a file that begins on target {first}");
    }
}
