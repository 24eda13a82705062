//! Anticipation: what streams and what belongs to no stream have of a device beside each other.

mod one_head;
mod random;

use one_head::{
    LEN, NS_PER_BYTE, POSITIONING_NS, Process, READER, Run, SECOND, Shared, both, in_offset_order, policies,
};
use sluice_core::{AppId, Batch, EngineConfig, FileId, GatePlan, GateSlice, Op, Outcome, Request, TargetId, Time};

/// What belongs to no stream gets a third of what it has without, or more, and the whole gains.
#[test]
fn others_have_their_turn_between_slices() {
    let random = Process { sequential: false, ..READER };
    let writer = Process { op: Op::Write, think_ns: 1_000_000, ..READER };
    for policy in policies() {
        for others in [[random; 4], [writer; 4], [random, writer, random, writer]] {
            let processes: Vec<Process> = [READER].into_iter().chain(others).collect();
            let [without, with] = both(policy, &processes, 10, 4);
            let enough = with.done[1..].iter().zip(&without.done[1..]).all(|(&with, &without)| with * 3 >= without);
            assert!(enough && with.done[0] >= without.done[0], "{policy}: {:?} of {:?}", with.done, without.done);
        }
    }
}

/// While one application has the device, requests of others are held: they take no turns of its streams, nor does the device move for them.
#[test]
fn what_a_gate_holds_has_no_turn() {
    let done = |policy: &str, random: usize| {
        let others = vec![Process { sequential: false, app: 2, ..READER }; random];
        let run = Run::new(policy, &[vec![Process { app: 1, ..READER }; 2], others].concat(), true, 6);
        // Who is random is known then.
        let mut run = run.run(Time(2 * SECOND));
        let slices = [(vec![AppId(1)], 2 * SECOND), (Vec::new(), SECOND)];
        let slices = slices.map(|(apps, len_ns)| GateSlice { apps, len_ns }).into();
        let plan = GatePlan { epoch: run.now, from: run.now, expires: Time(u64::MAX), slices, idle_ns: None };
        run.engine.set_gate(run.now, Some(plan)).unwrap();
        let of_streams = |run: &Run| run.done[..2].iter().sum::<u64>();
        let [before, begins] = [of_streams(&run), run.now.0];
        let run = run.run(Time(begins + 2 * SECOND));
        let in_slice = of_streams(&run) - before;
        // Then it is the others' slice, and all may go again when nobody is held back.
        let mut run = run.run(Time(begins + 3 * SECOND));
        run.engine.set_gate(run.now, None).unwrap();
        let before = run.done.clone();
        let until = run.now.after(2 * SECOND);
        let run = run.run(until);
        let all_go = run.done.iter().zip(before).all(|(done, before)| *done > before + 5);
        assert!(all_go, "{policy}: {:?}", run.done);
        in_slice
    };
    for policy in policies() {
        let [alone, beside] = [0, 8].map(|random| done(policy, random));
        assert!(beside * 100 > alone * 95, "{policy}: {beside} of {alone}");
    }
}

/// A reader beside so many random ones, for ten seconds, on a device that takes so many requests at a time; and the share that it has of what it
/// would have alone.
fn beside_random(policy: &str, reader: Process, random: usize, in_flight_max: u32) -> (Run, f64) {
    let others = vec![Process { sequential: false, ..READER }; random];
    let mut run = Run::new(policy, &[vec![reader], others].concat(), true, 12);
    let config = EngineConfig { in_flight_max, ..*run.engine.config() };
    run.engine.set_limits(&config).unwrap();
    let run = run.run(Time(10 * SECOND));
    let alone = 10 * SECOND / (u64::from(LEN) * NS_PER_BYTE + reader.think_ns);
    let share = run.done[0] as f64 / alone as f64;
    (run, share)
}

/// Those that leave it to the slices who has what: the others share by applications.
fn sharing_by_slices() -> impl Iterator<Item = &'static str> {
    policies().filter(|policy| !["sw", "wfq"].contains(policy))
}

/// What the four random ones beside the reader have done.
fn of_others(run: &Run) -> u64 {
    run.done[1..].iter().sum()
}

/// Who is late now and then, by less than waiting for it saves, has its share nevertheless, and those beside it have theirs.
#[test]
fn a_stream_that_is_late_now_and_then_has_its_share() {
    for policy in policies() {
        let (punctual, _) = beside_random(policy, READER, 4, 8);
        for (times, ns) in [(10, 2_000_000), (30, 2_000_000), (100, 2_000_000), (30, 5_000_000)] {
            let (run, share) = beside_random(policy, Process { late: Some((times, ns)), ..READER }, 4, 8);
            let alone_ns = u64::from(LEN) * NS_PER_BYTE + READER.think_ns;
            // Of what it would have alone, and as late.
            let share = share * (alone_ns + times * ns / 1000) as f64 / alone_ns as f64;
            let [others, theirs] = [&run, &punctual].map(of_others);
            assert!(
                share > 0.36 && others * 100 > theirs * 95,
                "{policy}, {times} of 1000 by {ns}: {share}; {others} of {theirs}"
            );
        }
    }
}

/// Also if it is later than it is waited for: then it has what is left of its slice.
#[test]
fn a_stream_that_comes_too_late_has_the_rest_of_its_slice() {
    for policy in policies() {
        let (punctual, _) = beside_random(policy, READER, 4, 8);
        let (run, share) = beside_random(policy, Process { late: Some((20, 16_000_000)), ..READER }, 4, 8);
        let [others, theirs] = [&run, &punctual].map(of_others);
        assert!(share > 0.22 && others > theirs, "{policy}: {share}; {others} of {theirs}");
    }
}

/// What is left of a slice at the end of a file is for the next one, however short they are: each by itself would have one of its own, which
/// ends with it, and a reader of long files all the rest.
#[test]
fn who_goes_from_one_short_file_to_the_next_has_its_share_beside_a_stream() {
    for policy in sharing_by_slices() {
        for file in [2, 4, 6] {
            let files = Process { file, app: 2, ..READER };
            let random = Process { sequential: false, app: 3, ..READER };
            for others in [&[][..], &[random; 2]] {
                let run = Run::new(policy, &[&[READER, files], others].concat(), true, 8).run(Time(10 * SECOND));
                let file_ns = POSITIONING_NS + file * u64::from(LEN) * NS_PER_BYTE;
                let share = (run.done[1] / file * file_ns) as f64 / (10 * SECOND) as f64;
                assert!(share > 0.24, "{policy}, files of {file}: {share} of the device, {:?}", run.done);
            }
        }
    }
}

/// Also if opening a file takes longer than a stream is waited for at first, and when all of them are read again.
#[test]
fn who_opens_files_has_its_share_beside_a_stream() {
    for policy in sharing_by_slices() {
        for file in [2, 4, 16] {
            for opens_ns in [0, 3_000_000] {
                let files = Process { file, opens_ns, ..READER };
                let first = Run::new(policy, &[READER, files], true, 8).run(Time(4 * SECOND));
                let file_ns = POSITIONING_NS + file * u64::from(LEN) * NS_PER_BYTE + opens_ns;
                let first_share = (first.done[1] / file * file_ns) as f64 / (4 * SECOND) as f64;
                let again = first.begin_anew(300_000_000);
                let until = again.now.after(3 * SECOND);
                let again = again.run(until);
                let share = (again.done[1] / file * file_ns) as f64 / (3 * SECOND) as f64;
                assert!(
                    first_share > 0.24 && share > 0.3,
                    "{policy}, files of {file}, {opens_ns}: {first_share} of the device, then {share}"
                );
            }
        }
    }
}

/// Files that lie beside each other are no memory: coming to the next one is as fast as to go on.
#[test]
fn who_reads_files_that_adjoin_has_its_share_beside_a_stream() {
    for policy in in_offset_order() {
        // Files of one request are no streams: they have the turn of what belongs to none.
        for (file, least) in [(1, 0.05), (2, 0.2), (4, 0.2), (16, 0.2)] {
            let mut run = Run::new(policy, &[READER, Process { file, app: 1, ..READER }], true, 8);
            run.files_adjoin = true;
            let run = run.run(Time(10 * SECOND));
            let share = (run.done[1] * u64::from(LEN) * NS_PER_BYTE) as f64 / (10 * SECOND) as f64;
            assert!(share > least, "{policy}, files of {file}: {share} of the device, {:?}", run.done);
        }
    }
}

/// Files of one block, too, where most go on and these are waited for in vain.
#[test]
fn who_reads_files_of_one_block_has_a_share_where_most_go_on() {
    for policy in in_offset_order() {
        for apps in [[0, 0], [1, 2]] {
            let [single, files] = [(1, apps[0]), (4, apps[1])].map(|(file, app)| Process { file, app, ..READER });
            let run = Run::new(policy, &[READER, single, files], true, 8).run(Time(10 * SECOND));
            let share = (run.done[1] * (POSITIONING_NS + u64::from(LEN) * NS_PER_BYTE)) as f64 / (10 * SECOND) as f64;
            assert!(share > 0.07, "{policy}, applications {apps:?}: {share} of the device, {:?}", run.done);
        }
    }
}

/// One that belongs to no stream and has one request at a time has its whole turn: the stream does not take the device while it
/// thinks, nor beside what it has there.
#[test]
fn one_alone_that_belongs_to_no_stream_has_its_turn() {
    for policy in sharing_by_slices() {
        for in_flight_max in [1, 8] {
            let (run, share) = beside_random(policy, READER, 1, in_flight_max);
            let theirs_ns = POSITIONING_NS + u64::from(LEN) * NS_PER_BYTE + READER.think_ns;
            let theirs = (run.done[1] * theirs_ns) as f64 / (10 * SECOND) as f64;
            assert!(
                theirs > 0.4 && share > 0.47,
                "{policy}, {in_flight_max} in flight: {theirs} of the device, {share}"
            );
        }
    }
}

/// The device is not kept for whom memory serves, nor for whom it would be kept in vain.
#[test]
fn a_stream_goes_on_beside_what_memory_serves_and_who_thinks_for_long() {
    let absorbed = Process { op: Op::Write, sequential: false, ..READER };
    let thinks = Process { sequential: false, think_ns: 20_000_000, ..READER };
    for policy in sharing_by_slices() {
        for (other, least) in [(absorbed, 0.9), (thinks, 0.72)] {
            let mut run = Run::new(policy, &[READER, other], true, 12);
            let config = EngineConfig { in_flight_max: 8, ..*run.engine.config() };
            run.engine.set_limits(&config).unwrap();
            let run = run.run(Time(10 * SECOND));
            let alone = 10 * SECOND / (u64::from(LEN) * NS_PER_BYTE + READER.think_ns);
            let share = run.done[0] as f64 / alone as f64;
            assert!(share > least, "{policy}, {:?} after {} ns: {share}", other.op, other.think_ns);
        }
    }
}

/// A stream has its slice when the turn of the others is over, from the end of its first request on: by then the device has done what it
/// took of the others in their turn.
#[test]
fn a_stream_has_its_share_beside_several_others_in_flight() {
    for policy in policies() {
        let (_, share) = beside_random(policy, READER, 4, 8);
        assert!((0.37..0.5).contains(&share), "{policy}: {share}");
        // What they have in flight takes longer than a slice.
        let (_, share) = beside_random(policy, READER, 16, 16);
        assert!((0.2..0.5).contains(&share), "{policy}, 16: {share}");
    }
}

/// One that goes from file to file is one stream, and no more than that.
#[test]
fn a_program_that_goes_from_file_to_file_has_the_share_of_a_stream() {
    for policy in policies() {
        let (_, share) = beside_random(policy, Process { file: 256, ..READER }, 4, 8);
        assert!((0.37..0.5).contains(&share), "{policy}: {share}");
        for file in [16, 64] {
            let (run, _) = beside_random(policy, Process { file, ..READER }, 4, 8);
            let alone = 10 * SECOND / (POSITIONING_NS + u64::from(LEN) * NS_PER_BYTE);
            let share = run.done[1..].iter().sum::<u64>() as f64 / alone as f64;
            assert!((0.3..0.6).contains(&share), "{policy}, beside files of {file}: {share}");
        }
    }
}

/// One among many streams has a turn, of which of these only one has a part, and the device half: about a twentieth of the time. A
/// writer whose requests are absorbed gets as much as a stream by that.
#[test]
fn one_other_among_many_streams_is_not_starved() {
    const SECONDS: u64 = 30;
    let alone = SECONDS * SECOND / (u64::from(LEN) * NS_PER_BYTE + READER.think_ns);
    for policy in policies() {
        for other in [Process { op: Op::Write, ..READER }, Process { sequential: false, ..READER }] {
            let processes = [READER, READER, READER, READER, READER, READER, READER, READER, other];
            let with = Run::new(policy, &processes, true, 11).run(Time(SECONDS * SECOND));
            let by_itself = Run::new(policy, &[other], true, 11).run(Time(SECONDS * SECOND)).total();
            let enough = if other.sequential { with.done[0] * 3 / 4 } else { by_itself / 40 };
            assert!(with.done[8] > enough, "{policy}: {:?}, alone {by_itself}", with.done);
            let streams: u64 = with.done[..8].iter().sum();
            assert!(streams * 100 > alone * 75, "{policy}: {:?} of {alone}", with.done);
        }
    }
}

/// Two programs, each at random within what is near of a place of its own in one file: whoever is behind has no more of the time.
#[test]
fn programs_at_two_places_of_a_file_have_their_shares() {
    for policy in in_offset_order() {
        let process = |n| Process { shared: Some(Shared::Hot(8)), starts: Time(n), ..READER };
        let run = Run::new(policy, &[process(0), process(1)], true, 31).run(Time(20 * SECOND));
        assert!(run.done[0] < 3 * run.done[1] && run.done[1] < 3 * run.done[0], "{policy}: {:?}", run.done);
    }
}

/// Whatever reads short files is a new stream each time.
#[test]
fn others_have_their_turn_beside_readers_of_short_files() {
    let writer = Process { op: Op::Write, sequential: false, think_ns: 50_000, ..READER };
    for policy in policies() {
        for file in [8, 64] {
            let mut processes = vec![Process { file, ..READER }];
            processes.extend([writer; 4]);
            let [without, with] = both(policy, &processes, 6, 29);
            let of_writers = |run: &Run| run.done[1..].iter().sum::<u64>();
            assert!(
                of_writers(&with) * 3 > of_writers(&without),
                "{policy}, {file}: {:?} {:?}",
                with.done,
                without.done
            );
        }
    }
}

/// What belongs to no stream has no more than its share where short files begin all the time.
#[test]
fn a_long_reader_has_its_share_beside_short_files_and_others() {
    let writer = Process { op: Op::Write, sequential: false, think_ns: 50_000, ..READER };
    for policy in policies() {
        let processes = [READER, Process { file: 4, ..READER }, writer, writer, writer, writer];
        let [without, with] = both(policy, &processes, 10, 41);
        assert!(with.done[0] > 3 * without.done[0], "{policy}: {:?} {:?}", with.done, without.done);
        assert!(with.done[2] > 3 * without.done[2], "{policy}: {:?} {:?}", with.done, without.done);
    }
}

/// Of two programs of the same files of 16 requests, one with two requests outstanding.
#[test]
fn a_program_with_two_requests_outstanding_has_as_much_as_one_with_one() {
    for policy in policies().filter(|policy| !["aioli", "mlf"].contains(policy)) {
        let mut engine = Run::new(policy, &[READER], true, 1).engine;
        let (mut now, mut issued, mut done, mut head) = (Time(0), [0_u64; 2], [0_u64; 2], (FileId(u64::MAX), 0));
        let mut at_device: Option<(Time, Batch)> = None;
        let mut submits = vec![(now, 0_usize), (now, 1), (now, 1)];
        while now < Time(10 * SECOND) {
            if let Some((_, batch)) = at_device.take_if(|(ends, _)| *ends <= now) {
                for part in batch.parts() {
                    engine.complete(now, part.id, Outcome::ok(LEN)).unwrap();
                    done[part.request.cookie as usize] += 1;
                    submits.push((now.after(READER.think_ns), part.request.cookie as usize));
                }
            }
            for (_, process) in submits.extract_if(.., |(at, _)| *at <= now) {
                let (file, block) = (issued[process] / 16, issued[process] % 16);
                issued[process] += 1;
                let (cookie, app) = (process as u64, AppId(process as u32));
                let (file, offset) = (FileId(file * 2 + cookie), block * u64::from(LEN));
                let request = Request { cookie, file, app, target: TargetId(0), op: Op::Read, offset, len: LEN };
                engine.submit(now, request).unwrap();
            }
            let mut batch = Batch::new();
            if at_device.is_none() && engine.poll_dispatch(now, &mut batch) {
                let seek = if head == (batch.file(), batch.offset()) { 0 } else { POSITIONING_NS };
                head = (batch.file(), batch.offset() + batch.bytes());
                at_device = Some((now.after(seek + batch.bytes() * NS_PER_BYTE), batch));
            }
            let events = submits.iter().map(|(at, _)| *at).chain(at_device.as_ref().map(|(ends, _)| *ends));
            now = events.chain(engine.poll_timeout()).min().unwrap().max(now.after(1));
        }
        assert!(done[0] < 2 * done[1] && done[1] < 2 * done[0], "{policy}: {done:?}");
    }
}

/// Programs that are at random within a few megabytes are no streams, or a reader would have next to nothing beside them.
#[test]
fn a_reader_has_its_share_beside_hot_regions() {
    let hot = Process { shared: Some(Shared::Hot(24)), ..READER };
    for policy in in_offset_order() {
        let run = Run::new(policy, &[vec![READER], vec![hot; 8]].concat(), true, 12).run(Time(10 * SECOND));
        let share = (run.done[0] * u64::from(LEN) * NS_PER_BYTE) as f64 / (10 * SECOND) as f64;
        assert!(share > 0.25, "{policy}: {share}");
    }
}
