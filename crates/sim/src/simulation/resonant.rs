//! Collective calls by Resonant I/O, with the decisions of programs: layouts, agents, rounds, turns, lists, the cost model and what is
//! learned of calls are those of `sluice_mpiio`. What stands around them is simulated: requests go over the links, and what processes
//! tell and send each other takes the same times as in two-phase calls ([`super::mpi`]).
//!
//! * A call is looked at: all tell each other what they want (two trees of messages, 16 bytes a range). At its end they agree on how it
//!   went (one more). The processors' time for the plan is not simulated.
//! * What is asked for without waiting (`posix_fadvise`) goes to the servers in its order, in requests of up to [`REQUEST_BYTES`], at
//!   most [`SEGMENTS`] at a time, and stays where it was asked for: that process does not read it a second time. The call ends when it is there.
//! * The library's own calls, which are timed and compared with, are two-phase ones.

use std::collections::VecDeque;

use serde::Serialize;
use sluice_core::Op;
use sluice_dualpar::plan::Range;
use sluice_mpiio::choose::{Chooser, Costs, DELAY, Ended};
use sluice_mpiio::decide::{Decisions, Planned, Wanted};
use sluice_mpiio::flat;
use sluice_mpiio::layout::Layout;
use sluice_mpiio::list::{IN_FLIGHT, REQUEST_BYTES, SEGMENTS, Segment, joined};
use sluice_mpiio::plan::{Call, Strategy};

use super::Simulation;
use super::mpi::{Access, Begin, MESSAGES_MAX, Moves, Part};
use crate::scenario::{Application, MpiIo};

/// Messages to each process by which the network is measured (`measure` in `hosts/mpiio`).
const MEASURING: u64 = 12;

/// Collective calls by how they were carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResonantCounts {
    /// By the library: in two phases, or each process by itself.
    pub library: u64,
    /// Of these, without a look.
    pub skipped: u64,
    /// By agents.
    pub agents: u64,
    /// By agents who ask early.
    pub early: u64,
    /// In turns.
    pub timed: u64,
}

/// An application whose collective calls are Resonant I/O's.
pub(super) struct Resonant {
    forced: Option<Strategy>,
    /// The file that they are on, and what is known of it.
    file: u64,
    decisions: Option<Decisions>,
    /// When it was known how the call that goes on is carried out; without a look, if it began without one.
    planned_ns: u64,
    is_skipped: bool,
    /// What is to be told at the next look.
    ended: Ended,
    pub(super) counts: ResonantCounts,
}

impl Resonant {
    pub(super) fn new(application: &Application) -> Option<Box<Resonant>> {
        let MpiIo::Resonant(forced) = application.mpi_io else { return None };
        Some(Box::new(Resonant {
            forced,
            file: u64::MAX,
            decisions: None,
            planned_ns: 0,
            is_skipped: false,
            ended: Ended::default(),
            counts: ResonantCounts::default(),
        }))
    }

    /// The decisions for a file; nothing is decided where there is one server, unless the way is given.
    fn opens(&mut self, file: u64, layout: impl FnOnce() -> Option<Layout>) {
        if self.file == file {
            return;
        }
        self.file = file;
        self.ended = Ended::default();
        let before = self.decisions.take().map(|before| before.chooser.next_file(self.forced));
        let layout = layout().filter(|layout| layout.servers() > 1 || self.forced.is_some());
        self.decisions = layout.map(|layout| {
            let chooser = before.unwrap_or_else(|| Chooser::new(Costs::default(), self.forced));
            Decisions::new(layout, chooser)
        });
    }

    fn count(&mut self, strategy: Strategy) {
        let counts = &mut self.counts;
        *match strategy {
            Strategy::Library => &mut counts.library,
            Strategy::Agents => &mut counts.agents,
            Strategy::Early => &mut counts.early,
            Strategy::Timed => &mut counts.timed,
        } += 1;
    }
}

impl Simulation<'_> {
    /// The parts of a collective call of these processes, in the order of ranks.
    pub(super) fn resonant_call(&mut self, app: usize, met: &[u32], (file, op): (u64, Op)) -> VecDeque<Part> {
        let Some(mut own) = self.resonant[app].take() else { return self.two_phase(met, op) };
        let parts = self.decided(&mut own, met, (file, op));
        self.resonant[app] = Some(own);
        parts
    }

    fn decided(&self, own: &mut Resonant, met: &[u32], (file, op): (u64, Op)) -> VecDeque<Part> {
        let (striping, stripe) = (self.striping, self.scenario.storage.stripe);
        own.opens(file, || {
            Layout::round_robin(
                i64::try_from(stripe).ok()?,
                striping.first_server(file).into(),
                striping.servers.into(),
            )
        });
        let now = self.calendar.now();
        own.planned_ns = now;
        own.is_skipped = own.decisions.as_mut().is_none_or(|decisions| decisions.chooser.skips());
        let Some(decisions) = own.decisions.as_mut().filter(|_| !own.is_skipped) else {
            own.counts.skipped += 1;
            own.count(Strategy::Library);
            return self.two_phase(met, op);
        };
        let of_rank = |&number: &u32| -> Vec<flat::Range> {
            let regions = self.processes[number as usize].regions.iter();
            regions.map(|&(offset, len)| flat::Range { offset: offset as i64, len: len as i64 }).collect()
        };
        let ranges: Vec<Vec<flat::Range>> = met.iter().map(of_rank).collect();
        let all = || ranges.iter().flatten();
        decisions.chooser.ended(std::mem::take(&mut own.ended));
        let (bytes, count) = (all().map(|range| range.len).sum::<i64>(), all().count());
        let mut look_ns = self.gather_ns(met.len());
        let wanted = Wanted { write: op == Op::Write, bytes, ranges: count as i64, can: true };
        let mut planned = None;
        if decisions.begin(wanted) {
            look_ns = self.telling_ns(met.len(), count);
            if decisions.chooser.wants_costs() {
                let network = &self.scenario.network;
                let sent = if network.bandwidth == 0 { 0.0 } else { 1.0 / network.bandwidth as f64 };
                decisions.chooser.measured(network.latency_ns as f64 * 1e-9, sent);
                look_ns += self.messages_ns(MEASURING * met.len() as u64);
            }
            let slices: Vec<&[flat::Range]> = ranges.iter().map(Vec::as_slice).collect();
            planned = decisions.plan(&slices);
        }
        own.planned_ns = now + look_ns;
        own.count(planned.as_ref().map_or(Strategy::Library, |planned| planned.strategy));
        let mut parts = match planned {
            Some(planned) => {
                let mut parts = self.carried_out(&planned, met, &ranges);
                parts.push_back(Part::Messages(self.gather_ns(met.len())));
                parts
            }
            None => self.two_phase(met, op),
        };
        parts.push_front(Part::Messages(look_ns));
        parts
    }

    fn carried_out(&self, planned: &Planned, met: &[u32], ranges: &[Vec<flat::Range>]) -> VecDeque<Part> {
        let call = &planned.call;
        match planned.strategy {
            Strategy::Library => VecDeque::new(),
            Strategy::Agents => self.by_agents(call, planned.write, met),
            Strategy::Early => VecDeque::from([Part::Access(self.early(call, met, ranges))]),
            Strategy::Timed => VecDeque::from([Part::Access(self.in_turn(call, planned.write, met, ranges))]),
        }
    }

    fn by_agents(&self, call: &Call, write: bool, met: &[u32]) -> VecDeque<Part> {
        let agents = call.agents();
        let client = |rank: usize| self.processes[met[rank] as usize].client;
        let mut parts = VecDeque::new();
        let mut rounds: Vec<(Moves, Vec<Access>)> = Vec::new();
        for me in working(&agents) {
            for (number, round) in call.rounds(&agents, me).iter().enumerate() {
                if number == rounds.len() {
                    rounds.push(Default::default());
                }
                let (moves, accesses) = &mut rounds[number];
                for piece in &round.accessed {
                    let (from, to) = if write { (piece.owner, me) } else { (me, piece.owner) };
                    moves.add(client(from), client(to), piece.range.len as u64);
                }
                let segment = |&(file, _, at): &(flat::Range, u32, i64)| Segment {
                    file,
                    memory: vec![(at as usize, file.len as usize)],
                };
                let list = joined(round.list.iter().map(segment));
                if !list.is_empty() {
                    let ranges: Vec<flat::Range> = list.iter().map(|segment| segment.file).collect();
                    accesses.push(transferred(met[me], write, &ranges, Begin::After(0)));
                }
            }
        }
        for (moves, accesses) in rounds {
            let exchange = Part::Messages(self.exchange_ns(&moves, met.len()));
            let access = Part::Access(accesses);
            parts.extend(if write { [exchange, access] } else { [access, exchange] });
        }
        parts
    }

    /// Agents ask; when all have, everybody reads what it has not asked for itself.
    fn early(&self, call: &Call, met: &[u32], ranges: &[Vec<flat::Range>]) -> Vec<Access> {
        let agents = call.agents();
        let mut asked: Vec<Vec<flat::Range>> = vec![Vec::new(); met.len()];
        for me in working(&agents) {
            asked[me] = call.early(&agents, me);
        }
        let meets = self.gather_ns(met.len());
        let mut accesses = Vec::new();
        for (rank, &process) in met.iter().enumerate() {
            let own = outside(&ranges[rank], &asked[rank]);
            if !asked[rank].is_empty() {
                accesses.push(asked_for(process, &asked[rank], Begin::After(0)));
            }
            if !own.is_empty() {
                accesses.push(transferred(process, false, &own, Begin::After(meets)));
            }
        }
        accesses
    }

    /// Everybody accesses its own: readers after those before them have asked, writers after they have written.
    fn in_turn(&self, call: &Call, write: bool, met: &[u32], ranges: &[Vec<flat::Range>]) -> Vec<Access> {
        let latency = self.messages_ns(1);
        let turn = (DELAY * 1e9) as u64 + latency;
        let mut turns = vec![0u64; met.len()];
        let before = call.predecessors();
        let mut accesses = Vec::new();
        for (rank, &process) in met.iter().enumerate() {
            let begins = match before[rank] {
                None => Begin::After(0),
                Some(of) if write => Begin::Behind(of, latency),
                Some(of) => {
                    turns[rank] = (turns[of] + turn).min(MESSAGES_MAX);
                    Begin::After(turns[rank])
                }
            };
            let own = &ranges[rank];
            let access = if write { transferred(process, true, own, begins) } else { asked_for(process, own, begins) };
            accesses.push(access);
        }
        accesses
    }

    /// A call of the application has ended.
    pub(super) fn resonant_ended(&mut self, app: usize) {
        let now = self.calendar.now();
        let Some(own) = &mut self.resonant[app] else { return };
        let seconds = now.saturating_sub(own.planned_ns) as f64 * 1e-9;
        if own.is_skipped {
            own.ended.skipped += seconds;
        } else {
            own.ended = Ended { call: seconds, look: 0.0, skipped: 0.0 };
        }
    }
}

/// Processes that are agents, each once.
fn working(agents: &[Vec<(i64, usize)>]) -> Vec<usize> {
    let mut working: Vec<usize> = agents.iter().flatten().map(|&(_, rank)| rank).collect();
    working.sort_unstable();
    working.dedup();
    working
}

/// Ranges in requests of up to [`REQUEST_BYTES`].
fn requests(write: bool, ranges: &[flat::Range]) -> VecDeque<(Op, Range)> {
    let op = if write { Op::Write } else { Op::Read };
    let mut requests = VecDeque::new();
    for range in ranges {
        let mut at = range.offset;
        while at < range.end() {
            let len = REQUEST_BYTES.min(range.end() - at);
            requests.push_back((op, Range::new(at as u64, len as u64)));
            at += len;
        }
    }
    requests
}

/// A process reads or writes `ranges` and waits for them, several requests at a time.
fn transferred(process: u32, write: bool, ranges: &[flat::Range], begins: Begin) -> Access {
    let lists = VecDeque::from([requests(write, ranges)]);
    Access { process, lists, in_flight: IN_FLIGHT, together: false, begins }
}

/// A process asks for `ranges` without waiting for each: their order is kept.
fn asked_for(process: u32, ranges: &[flat::Range], begins: Begin) -> Access {
    let all = Vec::from(requests(false, ranges));
    let lists = all.chunks(SEGMENTS).map(|list| list.iter().copied().collect()).collect();
    Access { process, lists, in_flight: 1, together: true, begins }
}

/// What of `ranges` is not in `others`; both ascend.
fn outside(ranges: &[flat::Range], others: &[flat::Range]) -> Vec<flat::Range> {
    let mut left = Vec::new();
    for range in ranges {
        let mut at = range.offset;
        let from = others.partition_point(|other| other.end() <= range.offset);
        for other in others[from..].iter().take_while(|other| other.offset < range.end()) {
            if other.offset > at {
                left.push(flat::Range { offset: at, len: other.offset - at });
            }
            at = at.max(other.end());
        }
        if at < range.end() {
            left.push(flat::Range { offset: at, len: range.end() - at });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(all: &[(i64, i64)]) -> Vec<flat::Range> {
        all.iter().map(|&(offset, end)| flat::Range { offset, len: end - offset }).collect()
    }

    #[test]
    fn what_was_asked_for_is_not_read_again() {
        let own = ranges(&[(0, 10), (20, 30), (40, 50)]);
        assert_eq!(outside(&own, &ranges(&[(0, 10), (22, 25), (28, 44)])), ranges(&[(20, 22), (25, 28), (44, 50)]));
        assert_eq!(outside(&own, &[]), own);
        assert_eq!(outside(&own, &ranges(&[(0, 100)])), []);
    }

    #[test]
    fn requests_are_as_large_as_those_of_programs_at_most() {
        let access = transferred(3, true, &ranges(&[(5, 5 + (5 << 19)), (9 << 20, 9 << 20 | 1)]), Begin::After(0));
        let lens: Vec<u64> = access.lists[0].iter().map(|(_, range)| range.len).collect();
        assert_eq!(lens, [1 << 20, 1 << 20, 1 << 19, 1]);
        assert!(access.lists[0].iter().all(|(op, _)| *op == Op::Write));
        let many: Vec<(i64, i64)> = (0..65).map(|number| (number * 10, number * 10 + 5)).collect();
        let lens: Vec<usize> = asked_for(3, &ranges(&many), Begin::After(0)).lists.iter().map(VecDeque::len).collect();
        assert_eq!(lens, [SEGMENTS, 1]);
    }
}
