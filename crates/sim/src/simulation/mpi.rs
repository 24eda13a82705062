//! What processes of an MPI program read and write for each other: collective calls, in two phases here, by Resonant I/O in
//! [`super::resonant`], and batches of data-driven execution ([`super::data_driven`]).
//!
//! A collective call is a sequence of [`Part`]s: messages among its processes, and accesses to the file. Messages are times, from the
//! network's latency and bandwidth, whoever exchanges what; they do not pass the simulated links.
//!
//! Two-phase collective calls (ROMIO): the processes of a call meet and tell each other what they want. Where no process's data begins
//! before that of the one before it ends, each accesses its own (`ADIOI_GEN_ReadStridedColl` and X. Zhang's dissertation, 4.3.2).
//! Else what all want together is cut into contiguous parts of equal size, one of each node, which its first process reads or
//! writes, up to [`COLLECTIVE_BUFFER`] at a time and from the first to the last byte that anybody wants; holes that are written over
//! are read before; data is exchanged before the writes, and after the reads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sluice_core::Op;
use sluice_dualpar::plan::{Range, merge};

use super::Simulation;
use super::processes::Step;
use crate::calendar::Event;
use crate::scenario::{COLLECTIVE_BUFFER, MpiIo};

/// No messages take longer, in nanoseconds, so that no sum of times overflows.
pub(super) const MESSAGES_MAX: u64 = 1 << 59;

/// Requests that one process makes, perhaps for others.
pub(super) struct Work {
    /// Whose machine they come from.
    pub(super) process: u32,
    pub(super) file: u64,
    /// What of a list comes before the next one is begun.
    pub(super) lists: VecDeque<VecDeque<(Op, Range)>>,
    /// Most requests under way.
    pub(super) in_flight: usize,
    /// A list is sent at once, in its order; else each of its requests leaves by itself.
    pub(super) together: bool,
    pub(super) under_way: usize,
    pub(super) began_ns: u64,
    pub(super) purpose: Purpose,
    /// What may begin when this is done, and so much later.
    pub(super) next: Option<(u32, u64)>,
}

/// Who goes on when it is done.
pub(super) enum Purpose {
    /// Those of a collective call.
    Collective,
    /// A batch of reads for these, who get their data through the cache; the first leads.
    Read(Vec<u32>),
    /// The same for what these have collected; `is_led`: they agreed on it.
    Write { taken: Vec<u32>, is_led: bool },
}

/// A collective call that goes on.
pub(super) struct Collective {
    processes: Vec<u32>,
    /// What is still to be done, in this order.
    parts: VecDeque<Part>,
    /// Accesses under way.
    works: u32,
    began_ns: u64,
}

/// A part of a collective call. All of its processes go on together to the next one.
pub(super) enum Part {
    /// Messages among them, for so many nanoseconds.
    Messages(u64),
    /// Processes access the file.
    Access(Vec<Access>),
}

/// What one process reads or writes.
pub(super) struct Access {
    pub(super) process: u32,
    /// What of a list comes before the next one is begun.
    pub(super) lists: VecDeque<VecDeque<(Op, Range)>>,
    pub(super) in_flight: usize,
    pub(super) together: bool,
    pub(super) begins: Begin,
}

/// When an access begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// So many nanoseconds after the part.
    After(u64),
    /// So many after another access of the part has ended, which has no other one behind it.
    Behind(usize, u64),
}

/// Data that processes send each other: bytes that each node sends, and receives.
#[derive(Default)]
pub(super) struct Moves {
    sent: BTreeMap<u32, u64>,
    received: BTreeMap<u32, u64>,
}

impl Moves {
    /// From one node to another one; what stays on a node costs nothing.
    pub(super) fn add(&mut self, from: u32, to: u32, bytes: u64) {
        if from != to {
            *self.sent.entry(from).or_default() += bytes;
            *self.received.entry(to).or_default() += bytes;
        }
    }

    /// Bytes on the link that has most of them, in one direction.
    pub(super) fn most(&self) -> u64 {
        self.sent.values().chain(self.received.values()).copied().max().unwrap_or(0)
    }
}

impl Simulation<'_> {
    /// Carries out the request of a process that has met whom it meets.
    pub(super) fn carry_out(&mut self, number: u32) {
        let app = self.processes[number as usize].app as usize;
        match self.data_driven[app].take() {
            None => self.issue(number),
            Some(mut driven) => {
                self.drive(&mut driven, number);
                self.data_driven[app] = Some(driven);
            }
        }
    }

    /// Begins what one process does for others.
    pub(super) fn begin(&mut self, work: Work) {
        let number = self.works.insert(work);
        self.go_on(number);
    }

    /// Sends what of it may be sent.
    pub(super) fn go_on(&mut self, number: u32) {
        loop {
            let work = &mut self.works[number];
            let Some(list) = work.lists.front_mut() else {
                if work.under_way == 0 {
                    self.calendar.plan(self.calendar.now(), Event::Work(number));
                }
                return;
            };
            if list.is_empty() {
                if work.under_way > 0 {
                    return;
                }
                work.lists.pop_front();
                continue;
            }
            if work.under_way >= work.in_flight {
                return;
            }
            let Some(&(op, _)) = list.front() else { return };
            let count = if work.together { list.len() } else { 1 };
            let ranges: Vec<(u64, u64)> = list.drain(..count).map(|(_, range)| (range.offset, range.len)).collect();
            work.under_way += 1;
            let (process, file) = (work.process, work.file);
            self.send(process, file, op, &ranges, number);
        }
    }

    /// One of its requests is answered.
    pub(super) fn part_done(&mut self, number: u32) {
        self.works[number].under_way -= 1;
        self.go_on(number);
    }

    /// All of it is done.
    pub(super) fn worked(&mut self, number: u32) {
        self.works.free(number);
        let work = &mut self.works[number];
        let (process, began) = (work.process, work.began_ns);
        let purpose = std::mem::replace(&mut work.purpose, Purpose::Collective);
        let app = self.processes[process as usize].app as usize;
        if let Purpose::Collective = purpose {
            if let Some((next, ns)) = work.next {
                self.calendar.plan(self.calendar.now() + ns, Event::Begin(next));
            }
            return self.accessed(app);
        }
        if let Some(mut driven) = self.data_driven[app].take() {
            match purpose {
                Purpose::Read(taken) => self.batch_read(&mut driven, &taken, began),
                Purpose::Write { taken, is_led } => self.batch_written(&mut driven, &taken, began, is_led),
                Purpose::Collective => {}
            }
            self.look_around(&mut driven, process);
            self.data_driven[app] = Some(driven);
        }
    }

    /// Carries out the requests of those who have met as one collective call. False if it is none: their own business.
    pub(super) fn collective(&mut self, app: u32, met: &[u32]) -> bool {
        let way = self.scenario.applications[app as usize].mpi_io;
        if !way.is_collective() {
            return false;
        }
        let about = |number: &u32| {
            let next = self.processes[*number as usize].next.as_ref();
            next.map(|next| (self.file_of(*number, next), next.op))
        };
        let Some((file, op)) = met.first().and_then(about) else { return false };
        if met.iter().any(|number| about(number) != Some((file, op))) {
            return false;
        }
        // They came in any order; their numbers are in that of ranks.
        let mut processes = met.to_vec();
        processes.sort_unstable();
        let parts = match way {
            MpiIo::Resonant(_) => self.resonant_call(app as usize, &processes, (file, op)),
            _ => self.two_phase(&processes, op),
        };
        let began_ns = self.calendar.now();
        self.apps[app as usize].collective = Some(Collective { processes, parts, works: 0, began_ns });
        self.proceed(app as usize);
        true
    }

    /// The parts of a call in two phases, or of one that does not need them.
    pub(super) fn two_phase(&self, met: &[u32], op: Op) -> VecDeque<Part> {
        let regions = |number: u32| self.processes[number as usize].regions.iter();
        let client = |number: u32| self.processes[number as usize].client;
        let first = |number: u32| regions(number).map(|&(offset, _)| offset).min();
        let end = |number: u32| regions(number).map(|&(offset, len)| offset + len).max();
        let is_interleaved = met.windows(2).any(|pair| first(pair[1]) < end(pair[0]));
        if !is_interleaved {
            let own = met.iter().map(|&process| Access {
                process,
                lists: VecDeque::from([regions(process).map(|&(offset, len)| (op, Range::new(offset, len))).collect()]),
                in_flight: 1,
                together: true,
                begins: Begin::After(0),
            });
            return VecDeque::from([Part::Messages(self.gather_ns(met.len())), Part::Access(own.collect())]);
        }
        let ranges = |number| regions(number).map(|&(offset, len)| Range::new(offset, len));
        let wanted = merge(met.iter().flat_map(|&number| ranges(number)).collect(), 0);
        let (begin, end) = (wanted.first().map_or(0, |first| first.offset), wanted.last().map_or(0, Range::end));
        let mut seen = BTreeSet::new();
        let nodes: Vec<u32> = met.iter().copied().filter(|&number| seen.insert(client(number))).collect();
        let domain = (end - begin).div_ceil(nodes.len() as u64).max(1);
        let mut accesses = Vec::new();
        for (place, &process) in (0..).zip(&nodes) {
            let part = Range::new(begin + place * domain, domain.min(end.saturating_sub(begin + place * domain)));
            let lists = windows(&wanted, part, op);
            if !lists.is_empty() {
                accesses.push(Access { process, lists, in_flight: 1, together: false, begins: Begin::After(0) });
            }
        }
        let mut moves = Moves::default();
        let mut told = 0;
        for &owner in met {
            for range in ranges(owner) {
                told += 1;
                let mut at = range.offset;
                while at < range.end() {
                    let place = (at - begin) / domain;
                    let until = range.end().min(begin + (place + 1) * domain);
                    let pair = (client(nodes[place as usize]), client(owner));
                    let (from, to) = if op == Op::Read { pair } else { (pair.1, pair.0) };
                    moves.add(from, to, until - at);
                    at = until;
                }
            }
        }
        let telling = Part::Messages(self.telling_ns(met.len(), told));
        let exchange = Part::Messages(self.exchange_ns(&moves, met.len()));
        let access = Part::Access(accesses);
        VecDeque::from(if op == Op::Read { [telling, access, exchange] } else { [telling, exchange, access] })
    }

    /// What so many bytes take on a link.
    fn bytes_ns(&self, bytes: u64) -> u64 {
        match self.scenario.network.bandwidth {
            0 => 0,
            bandwidth => (u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth)).min(MESSAGES_MAX.into()) as u64,
        }
    }

    /// What so many messages take, one after the other.
    pub(super) fn messages_ns(&self, count: u64) -> u64 {
        count.saturating_mul(self.scenario.network.latency_ns).min(MESSAGES_MAX)
    }

    /// Until all of so many processes know something of all others: a tree of messages.
    pub(super) fn gather_ns(&self, processes: usize) -> u64 {
        self.messages_ns(processes.next_power_of_two().ilog2().into())
    }

    /// Until all processes know how much the others want, and these `ranges`: 16 bytes each.
    pub(super) fn telling_ns(&self, processes: usize, ranges: usize) -> u64 {
        2 * self.gather_ns(processes) + self.bytes_ns(16 * ranges as u64)
    }

    /// What moving data between nodes takes: all passes each node's link once, and a process hears each other one, as the cost model of
    /// `sluice-mpiio` has it.
    pub(super) fn exchange_ns(&self, moves: &Moves, processes: usize) -> u64 {
        self.bytes_ns(moves.most()) + self.messages_ns(processes as u64)
    }

    /// Begins the next part of an application's collective call, or ends the call.
    pub(super) fn proceed(&mut self, app: usize) {
        let now = self.calendar.now();
        loop {
            let Some(call) = &mut self.apps[app].collective else { return };
            match call.parts.pop_front() {
                Some(Part::Messages(0)) => {}
                Some(Part::Messages(ns)) => return self.calendar.plan(now + ns, Event::Collective(app as u32)),
                Some(Part::Access(accesses)) if accesses.is_empty() => {}
                Some(Part::Access(accesses)) => {
                    call.works = accesses.len() as u32;
                    return self.access(app, accesses);
                }
                None => return self.end_collective(app),
            }
        }
    }

    fn access(&mut self, app: usize, accesses: Vec<Access>) {
        let now = self.calendar.now();
        let Some(number) = self.apps[app].collective.as_ref().and_then(|call| call.processes.first().copied()) else {
            return;
        };
        let Some(next) = self.processes[number as usize].next else { return };
        let file = self.file_of(number, &next);
        let mut begins = Vec::new();
        for Access { process, lists, in_flight, together, begins: begin } in accesses {
            let purpose = Purpose::Collective;
            let (under_way, began_ns, next) = (0, now, None);
            let work = Work { process, file, lists, in_flight, together, under_way, began_ns, purpose, next };
            begins.push((self.works.insert(work), begin));
        }
        for &(work, begin) in &begins {
            match begin {
                Begin::After(0) => self.go_on(work),
                Begin::After(ns) => self.calendar.plan(now + ns, Event::Begin(work)),
                Begin::Behind(before, ns) => self.works[begins[before].0].next = Some((work, ns)),
            }
        }
    }

    /// One of the accesses of a part is done.
    fn accessed(&mut self, app: usize) {
        let Some(call) = &mut self.apps[app].collective else { return };
        call.works -= 1;
        if call.works == 0 {
            self.proceed(app);
        }
    }

    fn end_collective(&mut self, app: usize) {
        let now = self.calendar.now();
        let Some(Collective { processes, began_ns, .. }) = self.apps[app].collective.take() else { return };
        self.resonant_ended(app);
        for number in processes {
            let process = &mut self.processes[number as usize];
            let bytes = process.next.take().map_or(0, |next| next.bytes);
            self.count(number, bytes, began_ns);
            self.sleep(number, now, Step::Fetch);
        }
    }
}

/// What a node reads or writes of its `part`, one buffer after the other.
fn windows(wanted: &[Range], part: Range, op: Op) -> VecDeque<VecDeque<(Op, Range)>> {
    let mut lists = VecDeque::new();
    let mut at = part.offset;
    while at < part.end() {
        let window = Range::new(at, COLLECTIVE_BUFFER.min(part.end() - at));
        at = window.end();
        let from = wanted.partition_point(|range| range.end() <= window.offset);
        let inside = wanted[from..].iter().take_while(|range| range.offset < window.end());
        let clipped = inside.map(|range| {
            let begin = range.offset.max(window.offset);
            Range::new(begin, range.end().min(window.end()) - begin)
        });
        let (mut span, mut bytes): (Option<Range>, u64) = (None, 0);
        for range in clipped {
            bytes += range.len;
            let begin = span.map_or(range.offset, |span: Range| span.offset);
            span = Some(Range::new(begin, range.end() - begin));
        }
        let Some(span) = span else { continue };
        if op == Op::Write && bytes < span.len {
            lists.push_back(VecDeque::from([(Op::Read, span)]));
        }
        lists.push_back(VecDeque::from([(op, span)]));
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_reads_from_the_first_to_the_last_byte_and_holes_before_it_writes() {
        let wanted = [Range::new(10, 10), Range::new(40, 10), Range::new(100, 10)];
        let part = Range::new(15, 60);
        let span = Range::new(15, 35);
        assert_eq!(windows(&wanted, part, Op::Read), [VecDeque::from([(Op::Read, span)])]);
        let written = windows(&wanted, part, Op::Write);
        assert_eq!(written, [VecDeque::from([(Op::Read, span)]), VecDeque::from([(Op::Write, span)])]);
        assert_eq!(windows(&wanted, Range::new(100, 10), Op::Write).len(), 1);
        assert!(windows(&wanted, Range::new(60, 10), Op::Read).is_empty());
    }
}
