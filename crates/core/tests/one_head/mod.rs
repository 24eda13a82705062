//! A device that is nothing but a head: a move costs a fixed time, a byte another, and batches are served in the order in which they came.
#![allow(dead_code, reason = "each test has its part of it")]

use std::collections::VecDeque;

use sluice_core::policy::table;
use sluice_core::{
    Anticipation, AppId, Batch, Engine, EngineConfig, FileId, Op, Outcome, PolicyConfig, Request, TargetId, Time,
};

use crate::random::Random;

pub const POSITIONING_NS: u64 = 8_000_000;
pub const NS_PER_BYTE: u64 = 10;
pub const LEN: u32 = 65_536;
pub const PAGE: u32 = 4_096;
pub const SLICE_NS: u64 = 100_000_000;
/// While few have requests.
pub const LONGEST_SLICE_NS: u64 = 250_000_000;
pub const MAX_WAIT_NS: u64 = 500_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// All processes use one file.
#[derive(Clone, Copy)]
pub enum Shared {
    /// Each has one of so many blocks, by turns.
    Turns(u64),
    /// Each has so many blocks of its own, then those behind the blocks of so many.
    Segments(u64, u64),
    /// Each has a part of its own, far from those of others.
    Parts,
    /// Each is at random within so many blocks of its own.
    Hot(u64),
    /// Each goes downwards in a part of its own, by so many bytes.
    Downwards(u64),
    /// At random in one of four files of 25 MB of its own.
    Small,
    /// Each reads pages of a file of 4 GB of its own by twos: one at random, and one that is near it, but 20 to 100 pages away.
    Trees,
}

/// A process that has one request outstanding at a time.
#[derive(Clone, Copy)]
pub struct Process {
    pub op: Op,
    pub sequential: bool,
    pub think_ns: u64,
    /// Requests, after which it goes on to another file.
    pub file: u64,
    pub shared: Option<Shared>,
    pub starts: Time,
    pub app: u32,
    /// So many of a thousand times it thinks for longer, by 0.5 to 1.5 times so many nanoseconds.
    pub late: Option<(u64, u64)>,
    /// So long in addition it thinks before each further file, in nanoseconds.
    pub opens_ns: u64,
}

pub const READER: Process = Process {
    op: Op::Read,
    sequential: true,
    think_ns: 100_000,
    file: u64::MAX,
    shared: None,
    starts: Time::ZERO,
    app: 0,
    late: None,
    opens_ns: 0,
};

pub struct Run {
    pub engine: Engine,
    pub processes: Vec<Process>,
    /// When each submits next; `None` while it waits.
    pub submits: Vec<Option<Time>>,
    pub done: Vec<u64>,
    pub now: Time,
    pub head: (FileId, u64),
    /// At the device, in the order in which it serves.
    pub device: VecDeque<(Time, Batch)>,
    pub free_at: Time,
    /// Writes go to a cache, and the head stays where it is.
    pub absorbs_writes: bool,
    /// Reads of whole streams are answered from memory, and the head stays where it is, too.
    pub has_streams: bool,
    /// A process' next file lies behind the one before it.
    pub files_adjoin: bool,
    pub random: Random,
    pub longest_wait_ns: u64,
}

impl Run {
    pub fn new(policy: &str, processes: &[Process], anticipates: bool, seed: u64) -> Run {
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
            files_adjoin: false,
            random: Random(seed),
            longest_wait_ns: 0,
        }
    }

    pub fn request(&mut self, process: usize) -> Request {
        let Process { op, sequential, file, shared, app, .. } = self.processes[process];
        let block = match shared {
            Some(Shared::Turns(turns)) => self.done[process] * turns + process as u64,
            Some(Shared::Segments(blocks, programs)) => {
                let (segment, block) = (self.done[process] / blocks, self.done[process] % blocks);
                (segment * programs + process as u64) * blocks + block
            }
            Some(Shared::Parts) => self.done[process] + ((process as u64) << 20),
            Some(Shared::Hot(blocks)) => self.random.below(blocks) + ((process as u64) << 8),
            Some(Shared::Downwards(_)) => 0,
            Some(Shared::Small) => self.random.below(400),
            Some(Shared::Trees) => {
                let mut pair =
                    Random((self.done[process] / 2).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (process as u64 + 1) << 32);
                let (page, away) = (pair.below(1 << 20), 20 + pair.below(80));
                page + away * (self.done[process] % 2)
            }
            None if sequential => self.done[process],
            None => self.random.below(1 << 20),
        };
        let own = process as u64 + self.done[process] / file * self.processes.len() as u64;
        Request {
            cookie: process as u64,
            file: FileId(match shared {
                Some(Shared::Small) => (1 << 33) + (process as u64) * 4 + self.random.below(4),
                None | Some(Shared::Trees) => own,
                Some(_) => 1 << 32,
            }),
            app: AppId(app),
            target: TargetId(0),
            op,
            offset: match shared {
                Some(Shared::Downwards(bytes)) => (((process as u64) + 1) << 40) - self.done[process] * bytes,
                Some(Shared::Trees) => block * u64::from(PAGE),
                _ => block * u64::from(LEN),
            },
            len: match shared {
                Some(Shared::Downwards(bytes)) => bytes as u32,
                Some(Shared::Trees) => PAGE,
                _ => LEN,
            },
        }
    }

    /// Serves what is dispatched, one batch after the other, until `end`.
    pub fn run(mut self, end: Time) -> Run {
        while self.now < end {
            for process in 0..self.processes.len() {
                if self.submits[process].is_some_and(|at| at <= self.now) {
                    self.submits[process] = None;
                    let request = self.request(process);
                    self.engine.submit(self.now, request).unwrap();
                }
            }
            while self.device.front().is_some_and(|(ends, _)| *ends <= self.now) {
                self.complete();
            }
            self.dispatch();
            self.now = self.next_event();
        }
        self
    }

    /// Programs end when they have what they have asked for, and after so long they begin anew, with the same files.
    pub fn begin_anew(mut self, after_ns: u64) -> Run {
        self.drain();
        self.now = self.now.after(after_ns);
        self.submits.fill(Some(self.now));
        self.done.fill(0);
        self
    }

    /// Serves what was asked for; nobody asks for more.
    pub fn drain(&mut self) {
        loop {
            self.submits.fill(None);
            let ends = self.device.front().map(|(ends, _)| *ends);
            let Some(next) = ends.into_iter().chain(self.engine.poll_timeout()).min() else { break };
            self.now = next.max(self.now);
            while self.device.front().is_some_and(|(ends, _)| *ends <= self.now) {
                self.complete();
            }
            self.dispatch();
        }
    }

    /// After a pause each process asks for so many, one after the other: until all have them, in nanoseconds.
    pub fn ask(&mut self, after_ns: u64, times: impl Fn(usize) -> u64) -> u64 {
        self.now = self.now.after(after_ns);
        let begins = self.now;
        let mut left: Vec<u64> = (0..self.processes.len()).map(times).collect();
        self.submits.fill(Some(begins));
        while left.iter().any(|left| *left > 0) {
            for (process, left) in left.iter_mut().enumerate() {
                let asks = *left > 0 && self.submits[process].is_some_and(|at| at <= self.now);
                if asks {
                    *left -= 1;
                    let request = self.request(process);
                    self.engine.submit(self.now, request).unwrap();
                }
                if asks || *left == 0 {
                    self.submits[process] = None;
                }
            }
            while self.device.front().is_some_and(|(ends, _)| *ends <= self.now) {
                self.complete();
            }
            self.dispatch();
            if left.iter().any(|left| *left > 0) {
                self.now = self.next_event();
            }
        }
        self.drain();
        self.now.since(begins)
    }

    fn complete(&mut self) {
        let (_, batch) = self.device.pop_front().unwrap();
        for part in batch.parts() {
            let process = part.request.cookie as usize;
            self.engine.complete(self.now, part.id, Outcome::ok(part.request.len)).unwrap();
            self.done[process] += 1;
            let Process { think_ns, late, file, opens_ns, .. } = self.processes[process];
            let mut think_ns = think_ns / 2 + self.random.below(think_ns + 1);
            if let Some((_, ns)) = late.filter(|(times, _)| self.random.below(1000) < *times) {
                think_ns += ns / 2 + self.random.below(ns + 1);
            }
            let opens_ns = if self.done[process].is_multiple_of(file) { opens_ns } else { 0 };
            self.submits[process] = Some(self.now.after(think_ns + opens_ns));
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
                let next_file = FileId(self.head.0.0.wrapping_add(self.processes.len() as u64));
                let adjoins = self.files_adjoin && place == (next_file, self.head.1);
                let seek = if self.head == place || adjoins { 0 } else { POSITIONING_NS };
                self.head = (batch.file(), batch.offset() + batch.bytes());
                from.after(seek + batch.bytes() * NS_PER_BYTE)
            };
            self.device.push_back((self.free_at, batch.clone()));
        }
        let wait = self.engine.stats().total().wait.max_ns();
        self.longest_wait_ns = self.longest_wait_ns.max(wait);
    }

    fn next_event(&self) -> Time {
        let ends = self.device.front().map(|(ends, _)| *ends);
        let wakes = self.engine.poll_timeout();
        let submits = self.submits.iter().flatten().copied().min();
        let next = [ends, wakes, submits].into_iter().flatten().min().expect("somebody goes on");
        next.max(Time(self.now.0 + 1))
    }

    pub fn total(&self) -> u64 {
        self.done.iter().sum()
    }
}

pub fn both(policy: &str, processes: &[Process], seconds: u64, seed: u64) -> [Run; 2] {
    [false, true].map(|anticipates| Run::new(policy, processes, anticipates, seed).run(Time(seconds * SECOND)))
}

/// Algorithms that it applies to, and that do not let the device idle for reasons of their own.
pub fn policies() -> impl Iterator<Item = &'static str> {
    table().iter().filter(|info| !info.bypasses_queue && !info.shared_engine).map(|info| info.name)
}

pub fn in_offset_order() -> impl Iterator<Item = &'static str> {
    ["to-agg", "sjf", "hbrr"].into_iter()
}
