//! What processes of an MPI program read and write for each other: collective calls in two phases, and batches of data-driven
//! execution ([`super::data_driven`]).
//!
//! Two-phase collective calls (ROMIO): the processes of a call meet; what all want together is cut into contiguous parts of equal
//! size, one of each node, which its first process reads or writes, up to [`COLLECTIVE_BUFFER`] at a time and from the first to the
//! last byte that anybody wants; holes that are written over are read before. The exchange between nodes is a time, from the
//! network's bandwidth and the number of processes; it does not pass the simulated links.

use std::collections::VecDeque;

use sluice_core::Op;
use sluice_dualpar::plan::{Range, merge};

use super::Simulation;
use super::processes::Step;
use crate::calendar::Event;
use crate::scenario::{COLLECTIVE_BUFFER, MpiIo};

/// Requests that one process makes, perhaps for others.
pub(super) struct Work {
    /// Whose machine they come from.
    pub(super) process: u32,
    pub(super) file: u64,
    /// What of a list comes before the next one is begun.
    pub(super) lists: VecDeque<VecDeque<(Op, Range)>>,
    /// Most requests under way.
    pub(super) in_flight: usize,
    pub(super) under_way: usize,
    pub(super) began_ns: u64,
    pub(super) purpose: Purpose,
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
    works: u32,
    began_ns: u64,
    exchange_ns: u64,
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

    fn go_on(&mut self, number: u32) {
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
            let Some((op, range)) = list.pop_front() else { return };
            work.under_way += 1;
            let (process, file) = (work.process, work.file);
            self.send(process, file, op, &[(range.offset, range.len)], number);
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
            return self.collective_part(app);
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
        if self.scenario.applications[app as usize].mpi_io != MpiIo::Collective {
            return false;
        }
        let now = self.calendar.now();
        let about = |number: &u32| {
            let next = self.processes[*number as usize].next.as_ref();
            next.map(|next| (self.file_of(*number, next), next.op))
        };
        let Some((file, op)) = met.first().and_then(about) else { return false };
        if met.iter().any(|number| about(number) != Some((file, op))) {
            return false;
        }
        let processes = met.iter().map(|&number| &self.processes[number as usize]);
        let all = processes.flat_map(|process| process.regions.iter().map(|&(offset, len)| Range::new(offset, len)));
        let wanted = merge(all.collect(), 0);
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return false };
        let (begin, end) = (first.offset, last.end());
        let mut nodes: Vec<u32> = met.to_vec();
        nodes.dedup_by_key(|number| self.processes[*number as usize].client);
        let domain = (end - begin).div_ceil(nodes.len() as u64).max(1);
        let bytes: u64 = wanted.iter().map(|range| range.len).sum();
        let mut works = 0;
        for (place, &process) in (0..).zip(&nodes) {
            let part = Range::new(begin + place * domain, domain.min(end.saturating_sub(begin + place * domain)));
            let lists = windows(&wanted, part, op);
            if !lists.is_empty() {
                works += 1;
                let purpose = Purpose::Collective;
                self.begin(Work { process, file, lists, in_flight: 1, under_way: 0, began_ns: now, purpose });
            }
        }
        let exchange_ns = self.exchange(bytes, nodes.len() as u64, met.len() as u64);
        self.apps[app as usize].collective =
            Some(Collective { processes: met.to_vec(), works, began_ns: now, exchange_ns });
        true
    }

    /// What moving data between nodes takes, as the cost model of `sluice-mpiio` has it: all but what is there already passes each node's
    /// link once, and a node hears each process.
    fn exchange(&self, bytes: u64, nodes: u64, processes: u64) -> u64 {
        let network = &self.scenario.network;
        let each = bytes / nodes * (nodes - 1) / nodes;
        let moving =
            if network.bandwidth == 0 { 0 } else { u128::from(each) * 1_000_000_000 / u128::from(network.bandwidth) };
        moving as u64 + processes * network.latency_ns
    }

    fn collective_part(&mut self, app: usize) {
        let Some(call) = &mut self.apps[app].collective else { return };
        call.works -= 1;
        if call.works > 0 {
            return;
        }
        let Some(Collective { processes, began_ns, exchange_ns, .. }) = self.apps[app].collective.take() else {
            return;
        };
        let until = self.calendar.now() + exchange_ns;
        for number in processes {
            let process = &mut self.processes[number as usize];
            let bytes = process.next.take().map_or(0, |next| next.bytes);
            self.count(number, bytes, began_ns);
            self.sleep(number, until, Step::Fetch);
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
