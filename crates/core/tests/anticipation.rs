//! Anticipation, on a device that is nothing but a head: what it gains, what it must not cost, and who waits how long.

mod one_head;
mod random;

use std::collections::VecDeque;

use one_head::{
    LEN, LONGEST_SLICE_NS, MAX_WAIT_NS, NS_PER_BYTE, POSITIONING_NS, Process, READER, Run, SECOND, SLICE_NS, Shared,
    both, in_offset_order, policies,
};
use proptest::prelude::*;
use sluice_core::{
    Anticipation, AppId, Batch, Engine, EngineConfig, FileId, Op, Outcome, PolicyConfig, Request, TargetId, Time,
};

#[test]
fn sequential_readers_are_served_in_slices() {
    for policy in policies() {
        let [without, with] = both(policy, &[READER; 8], 5, 1);
        let alone = 5 * SECOND / (u64::from(LEN) * NS_PER_BYTE + READER.think_ns);
        assert!(with.total() * 100 > alone * 80, "{policy}: {} of {alone}", with.total());
        assert!(with.total() > 3 * without.total() || policy == "aioli" || policy == "mlf", "{policy}");
        let (least, most) = (with.done.iter().min().unwrap(), with.done.iter().max().unwrap());
        assert!(least * 2 > *most, "{policy} is unfair: {:?}", with.done);
        // Each of the others has a slice while a request waits.
        let bound = MAX_WAIT_NS + 8 * (LONGEST_SLICE_NS + 2 * POSITIONING_NS);
        assert!(with.longest_wait_ns < bound, "{policy}: {} ms", with.longest_wait_ns / 1_000_000);
    }
}

/// Moving between two of them costs 8 ms of 250 then, rather than of 100.
#[test]
fn few_readers_have_longer_slices() {
    for policy in policies() {
        let with = Run::new(policy, &[READER; 2], true, 7).run(Time(5 * SECOND));
        let alone = 5 * SECOND / (u64::from(LEN) * NS_PER_BYTE + READER.think_ns);
        assert!(with.total() * 100 > alone * 95, "{policy}: {} of {alone}", with.total());
        let bound = LONGEST_SLICE_NS + 4 * POSITIONING_NS;
        assert!(with.longest_wait_ns < bound, "{policy}: {} ms", with.longest_wait_ns / 1_000_000);
    }
}

/// Two streams and what belongs to none take turns in three slices of half the length.
#[test]
fn slices_are_half_as_long_while_others_wait() {
    // What begins goes on or does not: that is learned first.
    let (random, reader) = (Process { sequential: false, ..READER }, Process { starts: Time(SECOND), ..READER });
    for policy in policies() {
        let with = Run::new(policy, &[reader, reader, random], true, 7).run(Time(5 * SECOND));
        let bound = 3 * LONGEST_SLICE_NS / 2 + 8 * POSITIONING_NS;
        assert!(with.longest_wait_ns < bound, "{policy}: {} ms", with.longest_wait_ns / 1_000_000);
    }
}

/// A new file is waited for from its first request, where those before it went on.
#[test]
fn what_begins_is_taken_for_what_began_before() {
    const FILE: u64 = 32;
    for policy in policies() {
        for [op, other] in [[Op::Read, Op::Read], [Op::Write, Op::Write], [Op::Write, Op::Read]] {
            let process = |op| Process { op, file: FILE, ..READER };
            let processes = [op, op, op, op, other, other, other, other].map(process);
            let run = Run { absorbs_writes: false, ..Run::new(policy, &processes, true, 8) }.run(Time(5 * SECOND));
            let one = POSITIONING_NS + FILE * (u64::from(LEN) * NS_PER_BYTE + READER.think_ns);
            let best = 5 * SECOND * FILE / one;
            assert!(run.total() * 100 > best * 85, "{policy}, {op:?} and {other:?}: {} of {best}", run.total());
        }
    }
}

/// Of 24 readers most had one request when they ended, which says nothing of what they do when they begin anew.
#[test]
fn programs_that_begin_anew_are_taken_for_what_they_were() {
    for policy in policies() {
        for (readers, ns) in [(24, SECOND), (32, SECOND), (32, SECOND / 2), (64, SECOND)] {
            let mut run = Run::new(policy, &vec![READER; readers], true, 3).run(Time(ns));
            let first = run.total();
            for anew in 1..17 {
                run = run.begin_anew(SECOND);
                let until = run.now.after(ns);
                run = run.run(until);
                let done = run.total();
                assert!(done * 100 > first * 95, "{policy}, {readers} readers, anew {anew}: {done} instead of {first}");
            }
        }
    }
}

/// 32 programs compute between requests, all at a time: in each lull it is known a little better that nobody goes on. Nor does it help them that one
/// beside them does, or that all write what a cache takes.
#[test]
fn programs_that_go_on_only_after_lulls_are_not_waited_for() {
    let writers = [[READER; 32], [Process { op: Op::Write, ..READER }; 32]].concat();
    let once = |_| 1;
    let beside_one = |process: usize| if process == 0 { 20 } else { 1 };
    let beside_writes = |process: usize| if process < 32 { 1 } else { 3 };
    type Times<'a> = &'a dyn Fn(usize) -> u64;
    // The one that goes on is put off once by the turn of the others, which costs it a move.
    let cases: [(&str, &[Process], Times, u64); 3] = [
        ("alone", &[READER; 32], &once, 101),
        ("beside one that goes on", &[READER; 32], &beside_one, 104),
        ("who write, too", &writers, &beside_writes, 101),
    ];
    for (policy, (name, processes, times, most)) in policies().flat_map(|policy| cases.map(|case| (policy, case))) {
        for reads_first in [false, true] {
            let [without, with] = [false, true].map(|anticipates| {
                let mut run = Run::new(policy, processes, anticipates, 3);
                if reads_first {
                    run = run.run(Time(4 * SECOND));
                    run.drain();
                }
                (0..40).for_each(|_| _ = run.ask(SECOND / 5, times));
                (0..20).map(|_| run.ask(SECOND / 5, times)).sum::<u64>()
            });
            assert!(
                with * 100 <= without * most,
                "{policy}, {name}, reads first: {reads_first}: {with} and {without} ns"
            );
        }
    }
}

/// Each file goes on, but later than a new one is waited for.
#[test]
fn new_files_of_readers_that_think_for_a_while_are_not_waited_for_in_vain() {
    let process = Process { think_ns: POSITIONING_NS / 2, file: 2, ..READER };
    for policy in policies() {
        let [without, with] = both(policy, &[process; 6], 5, 9);
        assert!(with.total() * 100 >= without.total() * 98, "{policy}: {} of {}", with.total(), without.total());
    }
}

#[test]
fn slices_may_be_as_long_as_there_is_time() {
    for slice_ns in [1, u64::MAX / 2, u64::MAX] {
        let anticipation = Some(Anticipation { slice_ns, ..Anticipation::for_device(POSITIONING_NS, 100_000_000) });
        let config = EngineConfig { anticipation, ..EngineConfig::default() };
        let mut engine = Engine::new(config, &PolicyConfig::parse("to").unwrap(), Time::ZERO).unwrap();
        let request = |cookie| Request {
            cookie,
            file: FileId(1),
            app: AppId(0),
            target: TargetId(0),
            op: Op::Read,
            offset: cookie * 4096,
            len: 4096,
        };
        let mut batch = Batch::new();
        for cookie in 0..4 {
            engine.submit(Time(cookie), request(cookie)).unwrap();
            assert!(engine.poll_dispatch(Time(cookie), &mut batch), "{slice_ns} ns");
            engine.complete(Time(cookie), batch.parts()[0].id, Outcome::ok(4096)).unwrap();
        }
    }
}

#[test]
fn readers_that_think_for_long_are_not_waited_for() {
    for policy in policies() {
        let slow = Process { think_ns: 4 * POSITIONING_NS, ..READER };
        let [without, with] = both(policy, &[slow; 12], 5, 2);
        assert!(with.total() * 100 >= without.total() * 98, "{policy}: {} of {}", with.total(), without.total());
    }
}

#[test]
fn random_readers_and_writes_that_a_cache_absorbs_are_not_waited_for() {
    let random = Process { sequential: false, ..READER };
    let writer = Process { op: Op::Write, ..READER };
    for policy in policies() {
        for processes in [[random; 6], [writer; 6], [random, random, random, writer, writer, writer]] {
            let [without, with] = both(policy, &processes, 3, 3);
            // It costs a few waits of a millisecond to learn that.
            assert!(with.total() * 100 >= without.total() * 99, "{policy}: {:?} of {:?}", with.done, without.done);
        }
    }
}

/// Above a page cache that has what is read, or read it ahead, idling for a stream saves nothing.
#[test]
fn reads_that_are_answered_from_memory_are_not_waited_for() {
    let reader = Process { file: 64, ..READER };
    let random = Process { sequential: false, ..READER };
    let thinks = Process { think_ns: 2_000_000, ..reader };
    for policy in policies() {
        for processes in [[reader; 6], [thinks; 6], [random, random, random, thinks, thinks, thinks]] {
            let [without, with] = [false, true].map(|anticipates| {
                let run = Run::new(policy, &processes, anticipates, 8);
                Run { has_streams: true, ..run }.run(Time(6 * SECOND))
            });
            // It takes some of them to learn that.
            assert!(with.total() * 100 >= without.total() * 90, "{policy}: {:?} of {:?}", with.done, without.done);
        }
    }
}

#[test]
fn sequential_writers_that_move_the_head_are_served_in_slices() {
    for policy in policies() {
        let writer = Process { op: Op::Write, ..READER };
        let [without, with] = [false, true].map(|anticipates| {
            let run = Run::new(policy, &[writer, writer, READER, READER], anticipates, 6);
            Run { absorbs_writes: false, ..run }.run(Time(5 * SECOND))
        });
        assert!(with.total() > 2 * without.total(), "{policy}: {:?} of {:?}", with.done, without.done);
        assert!(with.done.iter().min().unwrap() * 2 > *with.done.iter().max().unwrap(), "{policy}: {:?}", with.done);
    }
}

#[test]
fn a_reader_alone_is_as_fast_as_without() {
    for policy in policies() {
        let [without, with] = both(policy, &[READER], 2, 5);
        assert_eq!(with.done, without.done, "{policy}");
    }
}

/// Offsets, in requests, in the order in which a file's requests are dispatched, one at a time, until something is waited for: each of these is submitted when so
/// many were dispatched before it.
fn order(policy: &str, submissions: &[(usize, u64)]) -> Vec<u64> {
    let config = EngineConfig {
        in_flight_max: 1,
        batch_requests_max: 1,
        anticipation: Some(Anticipation { near_bytes: 1 << 19, slice_ns: SLICE_NS, positioning_ns: POSITIONING_NS }),
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(config, &PolicyConfig::parse(policy).unwrap(), Time::ZERO).unwrap();
    let (mut batch, mut order) = (Batch::new(), Vec::new());
    for step in 0..submissions.len() as u64 {
        let now = Time(step * 1_000_000);
        for &(_, block) in submissions.iter().filter(|(before, _)| *before == step as usize) {
            let (file, app, target, offset) = (FileId(1), AppId(0), TargetId(0), block * u64::from(LEN));
            engine.submit(now, Request { cookie: 0, file, app, target, op: Op::Read, offset, len: LEN }).unwrap();
        }
        if !engine.poll_dispatch(now, &mut batch) {
            break;
        }
        order.push(batch.offset() / u64::from(LEN));
        engine.complete(now, batch.parts()[0].id, Outcome::ok(LEN)).unwrap();
    }
    order
}

/// Several read one range by turns: what came first lies above what came later.
#[test]
fn a_stream_goes_on_in_the_order_of_the_file() {
    for policy in in_offset_order() {
        assert_eq!(order(policy, &[(0, 0), (1, 2), (1, 1), (3, 4), (3, 3)]), [0, 1, 2, 3, 4], "{policy}");
    }
}

/// Also where a request of others, which is kept back, lies below all of them.
#[test]
fn what_is_kept_back_below_does_not_change_the_order() {
    for policy in in_offset_order() {
        assert_eq!(order(policy, &[(0, 100), (1, 0), (1, 102), (1, 101)]), [100, 101, 102], "{policy}");
    }
}

/// Programs that fell apart, beyond what is near, would read the file once each, and what lies between again and again.
#[test]
fn a_stream_takes_along_those_that_it_has_caught_up_with() {
    for policy in in_offset_order() {
        // The first begins at 0 and has all but every second block from 20 on, which others have asked for long ago.
        let first = (0..20).map(|n| (n, n as u64)).chain([(20, 21), (22, 23)]);
        let submissions: Vec<(usize, u64)> = first.chain([(0, 20), (0, 22), (0, 24)]).collect();
        let order = order(policy, &submissions);
        assert_eq!(order, (0..25).collect::<Vec<u64>>(), "{policy}");
    }
}

/// Streams are known by their place, so there may be many of them in one file.
#[test]
fn readers_of_parts_of_one_file_are_served_in_slices() {
    for policy in policies() {
        for readers in [8, 9, 40] {
            let processes = vec![Process { shared: Some(Shared::Parts), ..READER }; readers];
            let [without, with] = both(policy, &processes, 12, 23);
            assert!(with.total() > 5 * without.total(), "{policy}: {} against {}", with.total(), without.total());
            let (least, most) = (with.done.iter().min().unwrap(), with.done.iter().max().unwrap());
            assert!(least * 3 > *most, "{policy}, {readers}: {:?}", with.done);
        }
    }
}

/// Who reads downwards, several at a time, is not served newest first for ever.
#[test]
fn one_slice_for_a_reader_that_goes_downwards() {
    const DEPTH: u64 = 32;
    for policy in policies() {
        let config = EngineConfig {
            in_flight_max: 1,
            max_wait_ns: MAX_WAIT_NS,
            anticipation: Some(Anticipation::for_device(POSITIONING_NS, 100_000_000)),
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(config, &PolicyConfig::parse(policy).unwrap(), Time::ZERO).unwrap();
        let (mut now, mut batch, mut longest_ns) = (Time::ZERO, Batch::new(), 0);
        let mut places = [1 << 40, 0];
        let mut submit = |engine: &mut Engine, now: Time, file: u64| {
            let place = &mut places[file as usize];
            *place = if file == 0 { *place - 8_192 } else { *place + 4_096 };
            let (app, target) = (AppId(0), TargetId(0));
            let request =
                Request { cookie: now.0, file: FileId(file), app, target, op: Op::Read, offset: *place, len: 4_096 };
            engine.submit(now, request).unwrap();
        };
        (0..DEPTH).for_each(|_| submit(&mut engine, now, 0));
        submit(&mut engine, now, 1);
        while now < Time(10 * SECOND) {
            if !engine.poll_dispatch(now, &mut batch) {
                now = engine.poll_timeout().expect("somebody waits");
                continue;
            }
            now = now.after(500_000);
            for part in batch.parts() {
                longest_ns = longest_ns.max(now.since(Time(part.request.cookie)));
                engine.complete(now, part.id, Outcome::ok(4_096)).unwrap();
                submit(&mut engine, now, part.request.file.0);
            }
        }
        assert!(longest_ns < MAX_WAIT_NS + 2 * LONGEST_SLICE_NS, "{policy}: {} ms", longest_ns / 1_000_000);
    }
}

/// A program that is behind in a file has the slice first for a while, and what has waited for long enough goes all the same: 32
/// requests of another program lie far ahead in that file, and one of another file is younger than all of them.
#[test]
fn those_behind_put_nobody_off_for_long() {
    let anticipation = Some(Anticipation { positioning_ns: POSITIONING_NS, near_bytes: 1 << 19, slice_ns: SLICE_NS });
    for policy in in_offset_order() {
        let config =
            EngineConfig { in_flight_max: 1, max_wait_ns: MAX_WAIT_NS, anticipation, ..EngineConfig::default() };
        let mut engine = Engine::new(config, &PolicyConfig::parse(policy).unwrap(), Time::ZERO).unwrap();
        let (mut now, mut batch, mut behind, mut submits) = (Time::ZERO, Batch::new(), 0, Some(Time::ZERO));
        let submit = |engine: &mut Engine, now: Time, file: u64, offset: u64| {
            let (app, target) = (AppId(0), TargetId(0));
            engine
                .submit(now, Request { cookie: 0, file: FileId(file), app, target, op: Op::Read, offset, len: 4_096 })
                .unwrap();
        };
        let mut waits_since = None;
        while waits_since.is_none_or(|since| now < Time(since).after(2 * SECOND)) {
            if submits.is_some_and(|at| at <= now) {
                submits = None;
                behind += 1;
                submit(&mut engine, now, 1, behind * 8_192);
                if behind == 8 {
                    (0..32).for_each(|n| submit(&mut engine, now, 1, (32 << 20) + n * 65_536));
                    submit(&mut engine, now, 2, 0);
                    waits_since = Some(now.0);
                }
            }
            if engine.poll_dispatch(now, &mut batch) {
                now = now.after(POSITIONING_NS);
                for part in batch.parts() {
                    engine.complete(now, part.id, Outcome::ok(4_096)).unwrap();
                    if part.request.file == FileId(1) && part.request.offset < 32 << 20 {
                        submits = Some(now.after(1_000_000));
                    }
                }
                if batch.file() == FileId(2) {
                    let waited_ns = now.0 - waits_since.unwrap();
                    assert!(waited_ns < MAX_WAIT_NS + 4 * LONGEST_SLICE_NS, "{policy}: {} ms", waited_ns / 1_000_000);
                    waits_since = Some(0);
                    break;
                }
            } else {
                now = [engine.poll_timeout(), submits].into_iter().flatten().min().expect("somebody waits");
            }
        }
        assert_eq!(waits_since, Some(0), "{policy}: never");
    }
}

/// Downwards, in requests of a half, a third, and a quarter of what is near: one stream.
#[test]
fn large_requests_downwards_are_a_stream() {
    for policy in policies() {
        for parts in [2, 3, 4, 5] {
            let reader = Process { shared: Some(Shared::Downwards((1 << 19) / parts)), ..READER };
            let other = Process { shared: None, ..READER };
            let run = Run::new(policy, &[reader, other], true, 37).run(Time(5 * SECOND));
            let moves = 5 * SECOND / (2 * (POSITIONING_NS + u64::from(LEN) * NS_PER_BYTE));
            assert!(run.done[1] > 4 * moves && 2 * run.done[0] > moves, "{policy}, {parts}: {:?}", run.done);
        }
    }
}

#[test]
fn a_clock_that_goes_back_ends_a_wait() {
    let mut run = Run::new("to-agg", &[READER], true, 1);
    let now = Time(1000 * SECOND);
    let mut batch = Batch::new();
    let request = run.request(0);
    run.engine.submit(now, request).unwrap();
    assert!(run.engine.poll_dispatch(now, &mut batch));
    run.engine.complete(now, batch.parts()[0].id, Outcome::ok(LEN)).unwrap();
    run.engine.submit(Time(5), Request { file: FileId(7), ..request }).unwrap();
    assert!(run.engine.poll_dispatch(Time(5), &mut batch), "{:?}", run.engine.poll_timeout());
}

/// Requests of so many processes that have every so-manieth block and start one after the other.
fn total_of_turns(policy: &str, apart_ns: u64, (processes, turns): (u64, u64), anticipates: bool) -> u64 {
    let process = |n| Process { shared: Some(Shared::Turns(turns)), starts: Time(n * apart_ns), ..READER };
    let processes: Vec<Process> = (0..processes).map(process).collect();
    Run::new(policy, &processes, anticipates, 17).run(Time(4 * SECOND)).total()
}

/// Where every process has every eighth block, those that are apart go past each other's blocks, until those behind are waited for.
#[test]
fn programs_that_take_turns_come_into_step_again() {
    for policy in in_offset_order() {
        let in_step = total_of_turns(policy, 0, (8, 8), true);
        let [without, with] = [false, true].map(|anticipates| total_of_turns(policy, 30_000_000, (8, 8), anticipates));
        assert!(with * 2 > in_step, "{policy}: {with} of {in_step}");
        assert!(without * 10 < in_step * 3, "{policy}: {without} of {in_step}, nothing to gain");
    }
}

/// So many programs, one after the other each so long after the one before: the share of the device that they use.
fn share_of(policy: &str, shared: impl Fn(u64) -> Shared, programs: u64, apart_ms: u64, in_flight_max: u32) -> f64 {
    let program = |n| Process { shared: Some(shared(programs)), starts: Time(n * apart_ms * 1_000_000), ..READER };
    let mut run = Run::new(policy, &(0..programs).map(program).collect::<Vec<_>>(), true, 17);
    let config = EngineConfig { in_flight_max, ..*run.engine.config() };
    run.engine.set_limits(&config).unwrap();
    let total = run.run(Time(8 * SECOND)).total();
    (total * u64::from(LEN) * NS_PER_BYTE) as f64 / (8 * SECOND) as f64
}

/// Also where the blocks of all lie further apart than what is near, and several requests are under way.
#[test]
fn many_programs_that_take_turns_come_into_step() {
    for policy in in_offset_order() {
        // In the order of arrival only those that are nearly in step.
        let apart_ms = if policy == "to-agg" { 1 } else { 10 };
        for (programs, in_flight_max) in [(16, 1), (16, 4), (16, 8), (32, 1), (32, 4)] {
            let share = share_of(policy, Shared::Turns, programs, apart_ms, in_flight_max);
            assert!(share > 0.7, "{policy}, {programs} programs, {in_flight_max} in flight: {share}");
        }
    }
}

/// Nor need each of them go on near where it was: those behind are known by their stride.
#[test]
fn programs_that_go_by_strides_come_into_step() {
    for policy in in_offset_order() {
        for in_flight_max in [1, 4, 8] {
            let share = share_of(policy, Shared::Turns, 10, 30, in_flight_max);
            assert!(share > 0.7, "{policy}, {in_flight_max} in flight: {share}");
        }
    }
}

/// They are not one stream because they are not far from each other: a program that goes on where it was is one by itself.
#[test]
fn programs_that_go_through_segments_of_one_file_have_a_slice_each() {
    for policy in in_offset_order() {
        for programs in [2, 4, 8, 16] {
            let share = share_of(policy, |programs| Shared::Segments(16, programs), programs, 0, 1);
            assert!(share > 0.25, "{policy}, {programs} programs: {share}");
        }
    }
}

/// It is told which batches bring them into step: of those that began apart most at first, and none any more in the end.
#[test]
fn how_many_batches_bring_programs_into_step_is_told() {
    let catching_up = |apart_ns: u64, from_ms: u64| {
        let process = |n| Process { shared: Some(Shared::Turns(8)), starts: Time(n * apart_ns), ..READER };
        let processes: Vec<Process> = (0..8).map(process).collect();
        let at = |ms: u64| {
            let run = Run::new("hbrr", &processes, true, 17).run(Time(ms * 1_000_000));
            let total = run.engine.stats().total();
            (total.catching_up, total.batches)
        };
        let (before, after) = (at(from_ms), at(from_ms + 250));
        (after.0 - before.0) as f64 / (after.1 - before.1) as f64
    };
    assert!(catching_up(30_000_000, 250) > 0.3, "{}", catching_up(30_000_000, 250));
    for (apart_ns, from_ms) in [(30_000_000, 6_000), (0, 0)] {
        assert!(catching_up(apart_ns, from_ms) < 0.05, "{apart_ns} ns: {}", catching_up(apart_ns, from_ms));
    }
}

/// What lies between belongs to nobody: nothing is gained by waiting for it.
#[test]
fn gaps_that_nobody_fills_are_not_waited_for() {
    for policy in in_offset_order() {
        for apart_ns in [0, 30_000_000] {
            // Of six blocks, all of which are near, four are read.
            let [without, with] =
                [false, true].map(|anticipates| total_of_turns(policy, apart_ns, (4, 6), anticipates));
            assert!(with * 100 > without * 98, "{policy}, {apart_ns} ns: {with} of {without}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever the processes: no more than a slice for each other one beyond `max_wait`, and nobody starves.
    #[test]
    fn nobody_waits_for_ever(
        policy in prop::sample::select(policies().collect::<Vec<_>>()),
        processes in prop::collection::vec((any::<bool>(), any::<bool>(), 0..20_000_000_u64, any::<bool>(), 0..200_000_000_u64), 2..10),
        seed: u64,
    ) {
        let turns = processes.len() as u64;
        let process = |&(write, sequential, think_ns, shared, starts)| Process {
            op: if write { Op::Write } else { Op::Read },
            shared: (shared && sequential).then_some(Shared::Turns(turns)),
            starts: Time(starts),
            sequential,
            think_ns,
            ..READER
        };
        let processes: Vec<Process> = processes.iter().map(process).collect();
        let run = Run::new(policy, &processes, true, seed).run(Time(4 * SECOND));
        let others = processes.len() as u64;
        let bound = MAX_WAIT_NS + others * (LONGEST_SLICE_NS + 2 * (POSITIONING_NS + (1 << 20) * NS_PER_BYTE));
        prop_assert!(run.longest_wait_ns <= bound, "{} ms of {}", run.longest_wait_ns / 1_000_000, bound / 1_000_000);
        prop_assert!(run.done.iter().all(|&done| done > 0), "{:?}", run.done);
    }

    /// Submissions, cancellations, dispatches, ends, and anticipation switched off and on: each request goes once, or was taken back.
    #[test]
    fn nothing_is_lost_or_goes_twice(
        policy in prop::sample::select(policies().collect::<Vec<_>>()),
        steps in prop::collection::vec((0..10_u8, any::<u16>(), 0..3_000_000_u64), 1..400),
    ) {
        let with = |is_on: bool| EngineConfig {
            capacity: 16,
            in_flight_max: 2,
            anticipation: is_on.then(|| Anticipation::for_device(POSITIONING_NS, 100_000_000)),
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(with(true), &PolicyConfig::parse(policy).unwrap(), Time::ZERO).unwrap();
        let (mut now, mut batch) = (Time::ZERO, Batch::new());
        let (mut queued, mut in_flight, mut submitted, mut gone) = (Vec::new(), VecDeque::new(), 0_u64, 0_u64);
        let drain = std::iter::repeat_n((8, 0, 1_000_000_000), 200);
        for (what, random, ns) in steps.into_iter().chain(drain) {
            now = now.after(ns);
            match what {
                0..=4 => {
                    // Of each file some requests go on, others are anywhere.
                    let (file, place) = (random % 3, u64::from(random / 3));
                    let offset = if random & 0x800 == 0 { submitted } else { place * 37 } * 4_096;
                    let op = if random & 0x1000 == 0 { Op::Read } else { Op::Write };
                    let (file, app, target) = (FileId(file.into()), AppId(0), TargetId(0));
                    if let Ok(id) = engine.submit(now, Request { cookie: 0, file, app, target, op, offset, len: 4_096 }) {
                        queued.push(id);
                        submitted += 1;
                    }
                }
                5 if !queued.is_empty() => {
                    let id = queued.swap_remove(usize::from(random) % queued.len());
                    prop_assert!(engine.cancel(now, id).is_ok());
                    gone += 1;
                }
                6 => engine.set_limits(&with(random % 2 == 0)).unwrap(),
                7 => if let Some(id) = in_flight.pop_front() {
                    engine.complete(now, id, Outcome::ok(4_096)).unwrap();
                },
                _ => {
                    while let Some(id) = in_flight.pop_front() {
                        engine.complete(now, id, Outcome::ok(4_096)).unwrap();
                    }
                }
            }
            while engine.poll_dispatch(now, &mut batch) {
                for part in batch.parts() {
                    let at = queued.iter().position(|id| *id == part.id);
                    prop_assert!(at.is_some(), "{policy}: dispatched twice, or after it was taken back");
                    queued.swap_remove(at.unwrap());
                    in_flight.push_back(part.id);
                    gone += 1;
                }
            }
        }
        prop_assert_eq!((gone, queued.len()), (submitted, 0), "{}", policy);
    }
}

/// One completion that is reported with a time that is too late.
#[test]
fn a_slice_ends_although_the_clock_was_put_forward_for_one_completion() {
    let mut engine = Run::new("to", &[READER], true, 1).engine;
    let request = |file, offset| Request {
        cookie: 0,
        file: FileId(file),
        app: AppId(0),
        target: TargetId(0),
        op: Op::Read,
        offset,
        len: 4096,
    };
    let mut batch = Batch::new();
    let mut now = SECOND;
    engine.submit(Time(now), request(1, 0)).unwrap();
    assert!(engine.poll_dispatch(Time(now), &mut batch));
    engine.submit(Time(now), request(1, 4096)).unwrap();
    engine.submit(Time(now), request(2, 0)).unwrap();
    engine.complete(Time(1000 * SECOND), batch.parts()[0].id, Outcome::ok(4096)).unwrap();
    for block in 2.. {
        now += 1_000_000;
        assert!(engine.poll_dispatch(Time(now), &mut batch));
        if batch.file() == FileId(2) {
            break;
        }
        assert!(now < 3 * SECOND, "the other one waits for ever");
        engine.submit(Time(now), request(1, block * 4096)).unwrap();
        engine.complete(Time(now), batch.parts()[0].id, Outcome::ok(4096)).unwrap();
    }
}

/// A database reads a page of a tree, and then one that is near it, but not so near that waiting pays: the device has what all of them ask
/// for at a time, and sorts it.
#[test]
fn pages_of_trees_are_no_streams() {
    for policy in policies().filter(|policy| !matches!(*policy, "aioli" | "mlf" | "sw")) {
        let tree = Process { shared: Some(Shared::Trees), think_ns: 50_000, ..READER };
        let mut run = Run::new(policy, &[tree; 3], true, 5);
        let config = EngineConfig { in_flight_max: 8, ..*run.engine.config() };
        run.engine.set_limits(&config).unwrap();
        let run = run.run(Time(5 * SECOND));
        let held_ns = run.engine.stats().total().wait.mean_ns();
        assert!(held_ns < POSITIONING_NS / 8, "{policy}: requests are held for {held_ns} ns in the mean");
    }
}
