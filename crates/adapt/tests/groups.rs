//! Which requests belong together, found in runs whose processes have drifted apart; and what that is good for.
//!
//! Everything is drawn from the numbers in the tests: a failure names them, and comes again.

use std::collections::BinaryHeap;
use std::sync::Arc;

use sluice_adapt::predictor::{Combiner, Forecast, Groups, Settings, TracePredictor, default_time_to_process};
use sluice_core::{AppId, Batch, Engine, EngineConfig, FileId, Op, Outcome, PolicyConfig, Request, TargetId, Time};
use sluice_trace::Entry;

const MS: u64 = 1_000_000;
const LEN: u64 = 16 << 10;

/// xorshift64*: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound
    }
}

fn entry(time: u64, offset: u64, len: u64) -> Entry {
    Entry { time, file: 0, app: 0, target: 0, op: Op::Write, offset, len: len as u32 }
}

fn combine(runs: &[Vec<Entry>]) -> Forecast {
    let mut combiner = Combiner::new(Settings::default());
    for run in runs {
        let mut begun = combiner.begin_run();
        run.iter().for_each(|&entry| begun.push(format!("file-{}", entry.file).as_bytes(), entry).unwrap());
        begun.end();
    }
    combiner.finish()
}

/// Processes that take turns in a file, each at its own pace: a request takes it 1 to 20 ms, and has so many pieces.
fn strided(processes: u64, steps: u64, pieces: u64, seed: u64) -> Vec<Entry> {
    let mut random = Random(seed);
    let mut entries = Vec::new();
    for process in 0..processes {
        let mut time = random.below(MS);
        for step in 0..steps {
            let offset = (step * processes + process) * LEN;
            let piece = |n| entry(time + n * 1000, offset + n * LEN / pieces, LEN / pieces);
            entries.extend((0..pieces).map(piece));
            time += MS + random.below(19 * MS);
        }
    }
    entries
}

#[test]
fn the_stride_is_found_however_far_processes_drift_apart() {
    for (processes, pieces) in [(2, 1), (3, 2), (4, 1), (8, 2), (16, 4)] {
        for seed in 1..20 {
            let runs = [1, 2, 3].map(|run| strided(processes, 64, pieces, seed * 1000 + run));
            let groups = combine(&runs).files()[0].groups(Op::Write);
            let expected = Groups { offset: 0, bytes: processes * LEN };
            assert_eq!(groups, Some(expected), "{processes} processes, {pieces} pieces, seed {seed}");
        }
    }
}

#[test]
fn what_one_program_sends_at_once_is_a_group() {
    // Always in the same order: 4 requests, 2 ms apart, every 100 ms.
    let run: Vec<Entry> = (0..80).map(|n| entry(n / 4 * 100 * MS + n % 4 * 2 * MS, n * LEN, LEN)).collect();
    assert_eq!(combine(&[run]).files()[0].groups(Op::Write), Some(Groups { offset: 0, bytes: 4 * LEN }));
}

#[test]
fn processes_with_stretches_of_their_own_are_no_group() {
    for seed in 1..20 {
        let mut random = Random(seed);
        let mut run = Vec::new();
        for process in 0..4 {
            let mut time = 0;
            for step in 0..64 {
                run.push(entry(time, (process * 64 + step) * LEN, LEN));
                time += MS + random.below(19 * MS);
            }
        }
        let groups = combine(&[run]).files()[0].groups(Op::Write);
        assert!(groups.is_none_or(|groups| groups.bytes == LEN), "{groups:?}, seed {seed}");
    }
}

#[test]
fn random_requests_are_no_group() {
    for seed in 1..20 {
        let mut random = Random(seed);
        let mut order: Vec<u64> = (0..256).collect();
        (1..256).rev().for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
        let run: Vec<Entry> = order.iter().zip(0..).map(|(&block, n)| entry(n * MS, block * LEN, LEN)).collect();
        assert_eq!(combine(&[run]).files()[0].groups(Op::Write), None, "seed {seed}");
    }
}

/// What a workload came to.
#[derive(Debug)]
struct Result {
    makespan: u64,
    batches: usize,
    /// Arrivals.
    trace: Vec<Entry>,
}

/// Programs, each with a file of its own in which its processes take turns; each process sends its next request a little
/// after it has got the one before. The device serves a batch at a time and is told of two.
fn closed_loop(policy: &str, forecast: Option<&Arc<Forecast>>, seed: u64) -> Result {
    const PROGRAMS: u64 = 3;
    const PROCESSES: u64 = 4;
    const STEPS: u64 = 100;
    let config = EngineConfig { in_flight_max: 2, ..EngineConfig::default() };
    let mut engine = Engine::new(config, &PolicyConfig::parse(policy).unwrap(), Time::ZERO).unwrap();
    let ttp = default_time_to_process();
    if let Some(forecast) = forecast {
        let names = Arc::new(|file: FileId| Some(Arc::from(format!("file-{}", file.0).into_bytes())));
        let (predictor, _) = TracePredictor::new(forecast.clone(), Settings::default(), ttp.clone(), names);
        engine.set_predictor(Some(Box::new(predictor)));
    }
    let mut random = Random(seed);
    // Sends to come, the earliest first: time, process, step.
    let mut sends = BinaryHeap::new();
    (0..PROGRAMS * PROCESSES).for_each(|process| sends.push(std::cmp::Reverse((random.below(MS), process, 0))));
    let (mut result, mut device) =
        (Result { makespan: 0, batches: 0, trace: Vec::new() }, Vec::<(Time, Vec<_>)>::new());
    let (mut now, mut free, mut batch) = (Time(0), Time(0), Batch::new());
    loop {
        while engine.poll_dispatch(now, &mut batch) {
            result.batches += 1;
            free = free.max(now).after(ttp(Op::Write, batch.bytes()));
            device.push((free, batch.parts().iter().map(|part| (part.id, part.request.cookie)).collect()));
        }
        let next =
            [sends.peek().map(|send| Time(send.0.0)), device.first().map(|(done, _)| *done), engine.poll_timeout()];
        let Some(next) = next.into_iter().flatten().min() else { break };
        now = now.max(next);
        if device.first().is_some_and(|(done, _)| *done <= now) {
            for (id, cookie) in device.remove(0).1 {
                engine.complete(now, id, Outcome::ok(LEN as u32)).unwrap();
                let (process, step) = (cookie % 1000, cookie / 1000 + 1);
                if step < STEPS {
                    // Some are slow to ask for more, so that processes drift apart.
                    let pause = if random.below(8) == 0 { 12 * MS } else { MS / 2 };
                    sends.push(std::cmp::Reverse((now.0 + pause, process, step)));
                }
            }
            result.makespan = now.0;
        }
        while let Some(&std::cmp::Reverse((at, process, step))) = sends.peek().filter(|send| send.0.0 <= now.0) {
            sends.pop();
            let (program, rank) = (process / PROCESSES, process % PROCESSES);
            let offset = (step * PROCESSES + rank) * LEN;
            result.trace.push(Entry { file: program as u32, ..entry(at, offset, LEN) });
            let request = Request {
                cookie: step * 1000 + process,
                file: FileId(program),
                app: AppId(program as u32),
                target: TargetId(0),
                op: Op::Write,
                offset,
                len: LEN as u32,
            };
            engine.submit(now, request).unwrap();
        }
    }
    result
}

#[test]
fn processes_that_are_served_together_stay_together() {
    for policy in ["to-agg", "sjf", "hbrr", "mlf"] {
        let runs = [1, 2].map(|seed| closed_loop(policy, None, seed).trace);
        let forecast = Arc::new(combine(&runs));
        let (without, with) = (closed_loop(policy, None, 7), closed_loop(policy, Some(&forecast), 7));
        println!(
            "{policy}: {} batches, {} ms -> {}, {}",
            without.batches,
            without.makespan / MS,
            with.batches,
            with.makespan / MS
        );
        assert!(with.batches <= without.batches, "{policy}: {} {}", with.batches, without.batches);
        let gains = if policy == "to-agg" { 0.9 } else { 1.01 };
        assert!((with.makespan as f64) < without.makespan as f64 * gains, "{policy}: {with:?} {}", without.makespan);
    }
}
