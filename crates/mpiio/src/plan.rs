//! Who accesses what in a collective call, so that each data server sees ascending offsets: Resonant I/O.
//!
//! Source: X. Zhang, *Rethinking the design and implementation of the I/O software stack for high-performance computing*
//! (dissertation, 2012), chapter 4: agents (4.2.3), timing (4.2.4).
//!
//! Deviations:
//! * Where agents read, data can be sent on as well as only be asked for early ([`Strategy::Agents`], [`Strategy::Early`]): not
//!   every data server keeps what it has read.
//! * With fewer processes than servers a process is the agent of several, in the same way.
//! * With many processes and much data a server's access set is cut into parts of equal size, one for each of its agents.
//! * What several processes write at the same place is left to the library, as its result depends on who comes last.
//!
//! Every process makes the plan of the same ranges, so that nothing but those must be told.

use std::collections::BTreeMap;

use crate::flat::Range;
use crate::layout::Layout;

/// How a collective call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Strategy {
    /// By the MPI library.
    Library,
    /// One process (or several) for each server accesses all of its data in ascending order; data is exchanged.
    Agents,
    /// Reads only: agents ask for all data of their servers without waiting, then every process reads its own.
    Early,
    /// Every process accesses its own data, when those of lower rank that share servers with it have asked for theirs.
    Timed,
}

impl Strategy {
    /// As reports and settings have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Library => "library",
            Strategy::Agents => "agents",
            Strategy::Early => "early",
            Strategy::Timed => "timed",
        }
    }
}

/// A range of one process that lies in one chunk, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The process whose data it is.
    pub owner: usize,
    /// The server that has it.
    pub server: u32,
    /// In the file.
    pub range: Range,
    /// Where in the owner's data it begins.
    pub stream: i64,
}

/// Agents of one server have parts of at least so many bytes, so that each part is many requests.
pub const PART_BYTES: i64 = 8 << 20;
/// Bytes that an agent may hold at a time; more goes in rounds. As the buffers of ROMIO's collective calls.
pub const ROUND_BYTES: i64 = 16 << 20;

/// Agents that a round is sized for: counts of bytes are 32 bits wide in MPI.
const MAX_WORKING: usize = 64;
/// Pieces end at multiples of this, so that large chunks can be cut, too.
const GRAIN: i64 = 1 << 20;

/// A collective call, of all processes.
#[derive(Debug)]
pub struct Call {
    /// Pieces of all processes, by owner and then as their data lies.
    pub pieces: Vec<Piece>,
    /// How many processes take part.
    pub ranks: usize,
    /// How many servers there are.
    pub servers: usize,
    /// Bytes that a server has of a process: `[server][process]`.
    shares: Vec<Vec<i64>>,
    unit: i64,
}

impl Call {
    /// Cuts the ranges of each process at chunks. `None` where the layout is not known there, offsets of a process go back, or
    /// more pieces come out than `most`. O(pieces).
    #[must_use]
    pub fn new(layout: &Layout, ranges: &[&[Range]], most: usize) -> Option<Call> {
        let (ranks, servers) = (ranges.len(), layout.servers() as usize);
        let mut shares = vec![vec![0; ranks]; servers];
        let mut pieces = Vec::new();
        for (owner, ranges) in ranges.iter().enumerate() {
            let mut stream = 0;
            let mut end = 0;
            for range in ranges.iter() {
                if range.offset < end || range.len <= 0 {
                    return None;
                }
                end = range.offset.checked_add(range.len)?;
                let mut offset = range.offset;
                while offset < end {
                    if pieces.len() == most {
                        return None;
                    }
                    let server = layout.server_of(offset)?;
                    let len = (layout.unit() - offset % layout.unit()).min(GRAIN - offset % GRAIN).min(end - offset);
                    pieces.push(Piece { owner, server, range: Range { offset, len }, stream });
                    shares[server as usize][owner] += len;
                    offset += len;
                    stream += len;
                }
            }
        }
        Some(Call { pieces, ranks, servers, shares, unit: layout.unit() })
    }

    /// Bytes of all processes.
    #[must_use]
    pub fn bytes(&self) -> i64 {
        self.shares.iter().flatten().sum()
    }

    /// Bytes of a server.
    #[must_use]
    pub fn bytes_of_server(&self, server: usize) -> i64 {
        self.shares[server].iter().sum()
    }

    /// Pieces in the order of the file.
    fn ascending(&self) -> Vec<Piece> {
        let mut sorted = self.pieces.clone();
        sorted.sort_by_key(|piece| (piece.range.offset, piece.owner));
        sorted
    }

    /// Whether two processes access the same bytes. O(pieces log pieces).
    #[must_use]
    pub fn overlaps(&self) -> bool {
        self.ascending().windows(2).any(|pair| pair[0].range.end() > pair[1].range.offset)
    }

    /// How often a server's data is interrupted by bytes that nobody wants: its contiguous runs, where the chunks that it has of
    /// a file lie one behind the other.
    #[must_use]
    pub fn runs(&self) -> Vec<usize> {
        let mut runs = vec![0; self.servers];
        let mut last: Vec<Option<i64>> = vec![None; self.servers];
        for piece in self.ascending() {
            let server = piece.server as usize;
            // The next chunk of the server goes on where the last one ended, if both are wanted whole.
            let joins = last[server].is_some_and(|end| {
                end == piece.range.offset || end % self.unit == 0 && piece.range.offset % self.unit == 0
            });
            runs[server] += usize::from(!joins);
            last[server] = Some(piece.range.end().max(last[server].unwrap_or(0)));
        }
        runs
    }

    /// Chunks that anything is wanted of, of each server. O(pieces log pieces).
    #[must_use]
    pub fn chunks(&self) -> Vec<usize> {
        let mut all: Vec<(u32, i64)> =
            self.pieces.iter().map(|piece| (piece.server, piece.range.offset / self.unit)).collect();
        all.sort_unstable();
        all.dedup();
        let mut chunks = vec![0; self.servers];
        all.iter().for_each(|&(server, _)| chunks[server as usize] += 1);
        chunks
    }

    /// Whether at every server the data of each process lies behind that of all processes of lower rank. O(pieces).
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        let mut ends = vec![0; self.servers];
        let mut owners = vec![0; self.servers];
        let mut before = vec![0; self.servers];
        self.pieces.iter().all(|piece| {
            let server = piece.server as usize;
            if owners[server] != piece.owner {
                (owners[server], before[server]) = (piece.owner, ends[server]);
            }
            ends[server] = ends[server].max(piece.range.end());
            piece.range.offset >= before[server]
        })
    }

    /// The process that each waits for in [`Strategy::Timed`]: those that share servers, also by way of others, go by rank in
    /// groups of as many as there are servers; each of a group waits for one of the group before.
    #[must_use]
    pub fn predecessors(&self) -> Vec<Option<usize>> {
        let mut set: Vec<usize> = (0..self.ranks).collect();
        fn root(set: &[usize], mut rank: usize) -> usize {
            while set[rank] != rank {
                rank = set[rank];
            }
            rank
        }
        for shares in &self.shares {
            let mut sharing = (0..self.ranks).filter(|&rank| shares[rank] > 0);
            let Some(first) = sharing.next() else { continue };
            for rank in sharing {
                let (a, b) = (root(&set, first), root(&set, rank));
                set[a.max(b)] = a.min(b);
            }
        }
        let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut before = vec![None; self.ranks];
        for (rank, before) in before.iter_mut().enumerate() {
            let set = members.entry(root(&set, rank)).or_default();
            *before = set.len().checked_sub(self.servers).map(|place| set[place]);
            set.push(rank);
        }
        before
    }

    /// The agents of each server: parts of its data by the offsets that they end before, and whose each is. The process with
    /// most of a server's data that is no agent yet is its agent, the lowest rank of several. O(servers x processes + pieces).
    #[must_use]
    pub fn agents(&self) -> Vec<Vec<(i64, usize)>> {
        let mut is_agent = vec![false; self.ranks];
        let mut choose = |shares: &[i64]| {
            if is_agent.iter().all(|&is| is) {
                is_agent.fill(false);
            }
            let free = (0..self.ranks).filter(|&rank| !is_agent[rank]);
            let best = free.max_by_key(|&rank| (shares[rank], std::cmp::Reverse(rank))).unwrap_or(0);
            is_agent[best] = true;
            best
        };
        let used = (0..self.servers).filter(|&server| self.bytes_of_server(server) > 0).count().max(1);
        let mut parts: Vec<Vec<(i64, usize)>> = self
            .shares
            .iter()
            .map(|shares| if shares.iter().any(|&n| n > 0) { vec![(i64::MAX, choose(shares))] } else { Vec::new() })
            .collect();
        let each = self.ranks / used;
        for (server, parts) in parts.iter_mut().enumerate() {
            let bytes = self.bytes_of_server(server);
            let count = (each as i64).min(bytes / PART_BYTES);
            if count < 2 {
                continue;
            }
            let first = parts[0].1;
            let mut ends = self.cuts(bytes / count + 1, |piece| piece.server as usize == server);
            ends.push(i64::MAX);
            *parts = ends
                .iter()
                .enumerate()
                .map(|(part, &end)| (end, if part == 0 { first } else { choose(&self.shares[server]) }))
                .collect();
        }
        parts
    }

    /// Offsets, between chunks, that cut the chosen pieces into parts of about `bytes`.
    fn cuts(&self, bytes: i64, chosen: impl Fn(&Piece) -> bool) -> Vec<i64> {
        let unit = self.unit.min(GRAIN);
        let mut of_unit: BTreeMap<i64, i64> = BTreeMap::new();
        for piece in self.pieces.iter().filter(|piece| chosen(piece)) {
            *of_unit.entry(piece.range.offset / unit).or_default() += piece.range.len;
        }
        let mut cuts = Vec::new();
        let mut sum = 0;
        for (unit_number, len) in of_unit {
            if sum > 0 && sum + len > bytes {
                cuts.push(unit_number.saturating_mul(unit));
                sum = 0;
            }
            sum += len;
        }
        cuts
    }

    /// The rounds of an exchange with these agents, as process `me` sees it.
    #[must_use]
    pub fn rounds(&self, agents: &[Vec<(i64, usize)>], me: usize) -> Vec<Round> {
        let agent_of = |piece: &Piece| {
            let parts = &agents[piece.server as usize];
            parts[parts.partition_point(|&(end, _)| end <= piece.range.offset)].1
        };
        let mut working: Vec<usize> = agents.iter().flatten().map(|&(_, rank)| rank).collect();
        working.sort_unstable();
        working.dedup();
        let mut ends = self.cuts(ROUND_BYTES * working.len().clamp(1, MAX_WORKING) as i64, |_| true);
        ends.push(i64::MAX);
        let mut rounds: Vec<Round> = ends.iter().map(|_| Round::new(self.ranks)).collect();
        for piece in &self.pieces {
            let agent = agent_of(piece);
            if agent != me && piece.owner != me {
                continue;
            }
            let round = &mut rounds[ends.partition_point(|&end| end <= piece.range.offset)];
            if piece.owner == me {
                round.own.push((agent, *piece));
            }
            if agent == me {
                round.accessed.push(*piece);
            }
        }
        rounds.iter_mut().for_each(Round::place);
        rounds
    }

    /// What agent `me` asks for early, in ascending order: each server's data once.
    #[must_use]
    pub fn early(&self, agents: &[Vec<(i64, usize)>], me: usize) -> Vec<Range> {
        let mut wanted: Vec<Range> = Vec::new();
        let mine = |piece: &Piece| {
            let parts = &agents[piece.server as usize];
            parts[parts.partition_point(|&(end, _)| end <= piece.range.offset)].1 == me
        };
        for piece in self.ascending().iter().filter(|piece| mine(piece)) {
            match wanted.last_mut() {
                Some(last) if last.end() >= piece.range.offset => {
                    last.len = last.len.max(piece.range.end() - last.offset);
                }
                _ => wanted.push(piece.range),
            }
        }
        wanted
    }
}

/// Part of an exchange: what owners have for agents and agents for owners, in two buffers that are cut by process.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Own pieces with their agents, in the order in which they lie in the owner's buffer.
    pub own: Vec<(usize, Piece)>,
    /// Pieces that this process accesses as agent, in the order in which they lie in the agent's buffer.
    pub accessed: Vec<Piece>,
    /// Bytes for and from each agent, and where they are in the owner's buffer.
    pub own_counts: Vec<i32>,
    /// See `own_counts`.
    pub own_places: Vec<i32>,
    /// Bytes from and for each owner, and where they are in the agent's buffer.
    pub accessed_counts: Vec<i32>,
    /// See `accessed_counts`.
    pub accessed_places: Vec<i32>,
    /// What the agent accesses, ascending: where in the file, on which server, and where in its buffer.
    pub list: Vec<(Range, u32, i64)>,
}

impl Round {
    fn new(ranks: usize) -> Round {
        Round { own_counts: vec![0; ranks], accessed_counts: vec![0; ranks], ..Round::default() }
    }

    fn place(&mut self) {
        let places = |counts: &[i32]| {
            counts.iter().scan(0, |sum, &count| Some(std::mem::replace(sum, *sum + count))).collect::<Vec<i32>>()
        };
        self.own.sort_by_key(|&(agent, piece)| (agent, piece.stream));
        for (agent, piece) in &self.own {
            self.own_counts[*agent] += piece.range.len as i32;
        }
        let mut at = 0;
        for piece in &self.accessed {
            self.accessed_counts[piece.owner] += piece.range.len as i32;
            self.list.push((piece.range, piece.server, at));
            at += piece.range.len;
        }
        self.list.sort_by_key(|(range, ..)| range.offset);
        self.own_places = places(&self.own_counts);
        self.accessed_places = places(&self.accessed_counts);
    }

    /// Bytes of the owner's buffer.
    #[must_use]
    pub fn own_bytes(&self) -> i64 {
        self.own_counts.iter().map(|&n| i64::from(n)).sum()
    }

    /// Bytes of the agent's buffer.
    #[must_use]
    pub fn accessed_bytes(&self) -> i64 {
        self.accessed_counts.iter().map(|&n| i64::from(n)).sum()
    }
}
