//! Anticipation, on a device that is nothing but a head: what it gains, what it must not cost, and who waits how long.

mod random;

use std::collections::VecDeque;

use proptest::prelude::*;
use sluice_core::policy::table;

use random::Random;
use sluice_core::{
    Anticipation, AppId, Batch, Engine, EngineConfig, FileId, Op, Outcome, PolicyConfig, Request, TargetId, Time,
};

const POSITIONING_NS: u64 = 8_000_000;
const NS_PER_BYTE: u64 = 10;
const LEN: u32 = 65_536;
const SLICE_NS: u64 = 100_000_000;
/// While few have requests.
const LONGEST_SLICE_NS: u64 = 250_000_000;
const MAX_WAIT_NS: u64 = 500_000_000;
const SECOND: u64 = 1_000_000_000;

/// All processes use one file.
#[derive(Clone, Copy)]
enum Shared {
    /// Each has one of so many blocks, by turns.
    Turns(u64),
    /// Each has a part of its own, far from those of others.
    Parts,
    /// Each is at random within what is near of a place of its own.
    Hot,
    /// Each goes downwards in a part of its own, by so many bytes.
    Downwards(u64),
    /// At random in one of four files of 25 MB of its own.
    Small,
}

/// A process that has one request outstanding at a time.
#[derive(Clone, Copy)]
struct Process {
    op: Op,
    sequential: bool,
    think_ns: u64,
    /// Requests, after which it goes on to another file.
    file: u64,
    shared: Option<Shared>,
    starts: Time,
}

const READER: Process =
    Process { op: Op::Read, sequential: true, think_ns: 100_000, file: u64::MAX, shared: None, starts: Time::ZERO };

struct Run {
    engine: Engine,
    processes: Vec<Process>,
    /// When each submits next; `None` while it waits.
    submits: Vec<Option<Time>>,
    done: Vec<u64>,
    now: Time,
    head: (FileId, u64),
    /// At the device, in the order in which it serves.
    device: VecDeque<Batch>,
    free_at: Time,
    /// Writes go to a cache, and the head stays where it is.
    absorbs_writes: bool,
    /// Reads of whole streams are answered from memory, and the head stays where it is, too.
    has_streams: bool,
    random: Random,
    longest_wait_ns: u64,
}

impl Run {
    fn new(policy: &str, processes: &[Process], anticipates: bool, seed: u64) -> Run {
        let anticipation = anticipates.then_some(Anticipation {
            positioning_ns: POSITIONING_NS,
            near_bytes: 1 << 19,
            slice_ns: SLICE_NS,
        });
        let config =
            EngineConfig { in_flight_max: 1, max_wait_ns: MAX_WAIT_NS, anticipation, ..EngineConfig::default() };
        let policy = PolicyConfig::parse(policy).unwrap();
        Run {
            engine: Engine::new(config, &policy, Time::ZERO).unwrap(),
            processes: processes.to_vec(),
            submits: processes.iter().map(|process| Some(process.starts)).collect(),
            done: vec![0; processes.len()],
            now: Time::ZERO,
            head: (FileId(u64::MAX), 0),
            device: VecDeque::new(),
            free_at: Time::ZERO,
            absorbs_writes: true,
            has_streams: false,
            random: Random(seed),
            longest_wait_ns: 0,
        }
    }

    fn request(&mut self, process: usize) -> Request {
        let Process { op, sequential, file, shared, .. } = self.processes[process];
        let block = match shared {
            Some(Shared::Turns(turns)) => self.done[process] * turns + process as u64,
            Some(Shared::Parts) => self.done[process] + ((process as u64) << 20),
            Some(Shared::Hot) => self.random.below(8) + ((process as u64) << 8),
            Some(Shared::Downwards(_)) => 0,
            Some(Shared::Small) => self.random.below(400),
            None if sequential => self.done[process],
            None => self.random.below(1 << 20),
        };
        let own = process as u64 + self.done[process] / file * self.processes.len() as u64;
        Request {
            cookie: process as u64,
            file: FileId(match shared {
                Some(Shared::Small) => (1 << 33) + (process as u64) * 4 + self.random.below(4),
                Some(_) => 1 << 32,
                None => own,
            }),
            app: AppId(0),
            target: TargetId(0),
            op,
            offset: match shared {
                Some(Shared::Downwards(bytes)) => (((process as u64) + 1) << 40) - self.done[process] * bytes,
                _ => block * u64::from(LEN),
            },
            len: match shared {
                Some(Shared::Downwards(bytes)) => bytes as u32,
                _ => LEN,
            },
        }
    }

    /// Serves what is dispatched, one batch after the other, until `end`.
    fn run(mut self, end: Time) -> Run {
        while self.now < end {
            for process in 0..self.processes.len() {
                if self.submits[process].is_some_and(|at| at <= self.now) {
                    self.submits[process] = None;
                    let request = self.request(process);
                    self.engine.submit(self.now, request).unwrap();
                }
            }
            if !self.device.is_empty() && self.free_at <= self.now {
                self.complete();
            }
            self.dispatch();
            self.now = self.next_event();
        }
        self
    }

    fn complete(&mut self) {
        let batch = self.device.pop_front().unwrap();
        for part in batch.parts() {
            let process = part.request.cookie as usize;
            self.engine.complete(self.now, part.id, Outcome::ok(part.request.len)).unwrap();
            self.done[process] += 1;
            let think_ns = self.processes[process].think_ns;
            let think_ns = think_ns / 2 + self.random.below(think_ns + 1);
            self.submits[process] = Some(self.now.after(think_ns));
        }
    }

    fn dispatch(&mut self) {
        let mut batch = Batch::new();
        while self.engine.poll_dispatch(self.now, &mut batch) {
            let place = (batch.file(), batch.offset());
            let from = self.now.max(self.free_at);
            let in_memory = match batch.op() {
                Op::Write => self.absorbs_writes,
                Op::Read => self.has_streams && self.processes[batch.parts()[0].request.cookie as usize].sequential,
            };
            self.free_at = if in_memory {
                from.after(batch.bytes() / 2)
            } else {
                let seek = if self.head == place { 0 } else { POSITIONING_NS };
                self.head = (batch.file(), batch.offset() + batch.bytes());
                from.after(seek + batch.bytes() * NS_PER_BYTE)
            };
            self.device.push_back(batch.clone());
        }
        let wait = self.engine.stats().total().wait.max_ns();
        self.longest_wait_ns = self.longest_wait_ns.max(wait);
    }

    fn next_event(&self) -> Time {
        let ends = (!self.device.is_empty()).then_some(self.free_at);
        let wakes = self.engine.poll_timeout();
        let submits = self.submits.iter().flatten().copied().min();
        let next = [ends, wakes, submits].into_iter().flatten().min().expect("somebody goes on");
        next.max(Time(self.now.0 + 1))
    }

    fn total(&self) -> u64 {
        self.done.iter().sum()
    }
}

fn both(policy: &str, processes: &[Process], seconds: u64, seed: u64) -> [Run; 2] {
    [false, true].map(|anticipates| Run::new(policy, processes, anticipates, seed).run(Time(seconds * SECOND)))
}

/// Algorithms that it applies to, and that do not let the device idle for reasons of their own.
fn policies() -> impl Iterator<Item = &'static str> {
    table().iter().filter(|info| !info.bypasses_queue && !info.shared_engine).map(|info| info.name)
}

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

/// A stream has its slice when the turn of the others is over, from the end of its first request on: by then the device has done what it
/// took of the others in their turn. Without that it had a quarter of the time.
#[test]
fn a_stream_has_its_share_beside_several_others_in_flight() {
    for policy in policies() {
        let share = share_beside_four_random(policy, READER);
        assert!((0.4..0.5).contains(&share), "{policy}: {share}");
    }
}

/// One that goes from file to file is one stream.
#[test]
fn a_program_that_goes_from_file_to_file_has_the_share_of_a_stream() {
    for policy in policies() {
        let share = share_beside_four_random(policy, Process { file: 256, ..READER });
        assert!((0.4..0.5).contains(&share), "{policy}: {share}");
    }
}

/// Of the time that a reader would have alone, beside four random ones on a device that takes eight requests.
fn share_beside_four_random(policy: &str, reader: Process) -> f64 {
    let random = Process { sequential: false, shared: Some(Shared::Small), ..READER };
    let mut run = Run::new(policy, &[reader, random, random, random, random], true, 12);
    let config = EngineConfig { in_flight_max: 8, ..*run.engine.config() };
    run.engine.set_limits(&config).unwrap();
    let run = run.run(Time(10 * SECOND));
    let alone = 10 * SECOND / (u64::from(LEN) * NS_PER_BYTE + reader.think_ns);
    run.done[0] as f64 / alone as f64
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

fn in_offset_order() -> impl Iterator<Item = &'static str> {
    ["to-agg", "sjf", "hbrr"].into_iter()
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

/// Two programs, each at random within what is near of a place of its own in one file: whoever is behind has no more of the time.
#[test]
fn programs_at_two_places_of_a_file_have_their_shares() {
    for policy in in_offset_order() {
        let process = |n| Process { shared: Some(Shared::Hot), starts: Time(n), ..READER };
        let run = Run::new(policy, &[process(0), process(1)], true, 31).run(Time(20 * SECOND));
        assert!(run.done[0] < 3 * run.done[1] && run.done[1] < 3 * run.done[0], "{policy}: {:?}", run.done);
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
