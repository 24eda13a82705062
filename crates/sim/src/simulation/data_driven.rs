//! Data-driven execution (DualPar) with the decisions of production: mode, quota, time of ghosts, patience, prefetched bytes, sorted
//! batches with holes filled, chunks and lists are those of `sluice_dualpar`. What stands around them is simulated: ghosts go
//! through their process's coming requests, neighbours meet by events, data comes over the simulated links.
//!
//! A ghost does not know where a request goes that depends on what was read (`dependent`), and passes barriers. The cache is spread
//! over all nodes; a chunk takes [`CHUNK_NS`], and what its way to another node takes with the network's bandwidth, but does not pass the
//! simulated links. Files are taken for unchanged by others.

use std::collections::{BTreeMap, HashSet, VecDeque};

use serde::Serialize;
use sluice_core::Op;
use sluice_dualpar::demand::Demand;
use sluice_dualpar::group::{DATA, ENTRIES, Kind};
use sluice_dualpar::limits::{COPY, GhostTime, Patience};
use sluice_dualpar::mode::{Budget, Cycle, ModeControl, Settings, SlotBuilder};
use sluice_dualpar::plan::{
    BATCH_CHUNKS, CHUNK, COLLECTED_WRITE, HOLE, LONGEST, Piece, Range, bounded, in_flight, merge, overlay, segments,
    whole_chunks, without, write_requests,
};
use sluice_dualpar::spans::Spans;

use super::Simulation;
use super::mpi::{Purpose, Work};
use super::processes::Step;
use crate::calendar::Event;
use crate::random::Random;
use crate::scenario::{Application, MpiIo};

/// Of a chunk, to or from the cache of a node.
const CHUNK_NS: u64 = 40_000;
/// Of a call that is served from memory, and of each of its bytes: 1/4 ns.
const SERVE_NS: u64 = 1_000;
const BYTES_A_NS: u64 = 4;
/// Of a call that a ghost passes, and memory of a process.
const GHOST_CALL_NS: u64 = 2_000;
const RESIDENT: f64 = 20e6;
/// Chunks that the cache keeps: 256 MB, as `sluice mpirun --memcached auto`.
const CACHE_CHUNKS: usize = 4096;

/// What data-driven execution did, of all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DataDrivenCounts {
    /// Ghosts made.
    pub ghosts: u64,
    /// Cycles of reads.
    pub cycles: u64,
    /// Bytes prefetched in them.
    pub prefetched: u64,
    /// Bytes of these that were read.
    pub used: u64,
    /// Requests to storage in batches.
    pub requests: u64,
    /// Chunks that a leader found in the cache, and put there.
    pub from_cache: u64,
    /// See `from_cache`.
    pub to_cache: u64,
    /// Writes that were collected.
    pub collected: u64,
    /// Writes to storage that they became.
    pub written: u64,
}

/// A process.
struct Place {
    client: u32,
    file: u64,
    modes: [ModeControl; 2],
    slots: [SlotBuilder; 2],
    budget: Budget,
    patience: [Patience; 2],
    ghost: GhostTime,
    /// Files that others wait for it for, by kind.
    expects: [Option<u64>; 2],
    spans: Spans,
    cost: u64,
    since: u64,
    /// Of the call that goes on: since when, and whether a cycle was tried for it.
    called: Option<u64>,
    tried: bool,
    requests: Vec<Range>,
    began: u64,
    /// What it comes for, since when, and what it does then.
    kind: Kind,
    came: u64,
    resume: Step,
    /// A call that was left to the library, and when it began.
    passing: Option<(Range, u64, bool)>,
    log: Vec<Range>,
    log_bytes: u64,
    log_cost: u64,
    log_since: u64,
}

/// Those of one node.
#[derive(Default)]
struct Neighbours {
    /// Where the last request began.
    last: u64,
    waiting: Vec<u32>,
    is_led: bool,
    demand: Demand,
    /// Of the batch that is under way: chunks that come from the cache, and those that are read and put there.
    found: u64,
    not_found: Vec<u64>,
}

/// An application whose calls are data-driven.
pub(super) struct DataDriven {
    settings: Settings,
    /// Number of its first process.
    first: u32,
    places: Vec<Place>,
    nodes: BTreeMap<u32, Neighbours>,
    cached: HashSet<(u64, u64)>,
    oldest: VecDeque<(u64, u64)>,
    pub(super) counts: DataDrivenCounts,
}

fn number_of(kind: Kind) -> usize {
    kind as usize - 1
}

impl DataDriven {
    pub(super) fn new(application: &Application, first: u32) -> Option<Box<DataDriven>> {
        let MpiIo::DataDriven { forced } = application.mpi_io else { return None };
        let default = Settings::default();
        let quota = application.quota;
        let settings = Settings { forced, quota, first_quota: default.first_quota.min(quota), ..default };
        let place = |_| Place {
            client: 0,
            file: u64::MAX,
            modes: [ModeControl::new(settings), ModeControl::new(settings)],
            slots: Default::default(),
            budget: Budget { started: application.start_ns, lost: 0.0, copy: RESIDENT * COPY },
            patience: [Patience::new(forced); 2],
            ghost: GhostTime::new(forced),
            expects: [None; 2],
            spans: Spans::default(),
            cost: 0,
            since: 0,
            called: None,
            tried: false,
            requests: Vec::new(),
            began: 0,
            kind: Kind::Read,
            came: 0,
            resume: Step::Issue,
            passing: None,
            log: Vec::new(),
            log_bytes: 0,
            log_cost: 0,
            log_since: 0,
        };
        Some(Box::new(DataDriven {
            settings,
            first,
            places: (0..application.processes).map(place).collect(),
            nodes: BTreeMap::new(),
            cached: HashSet::new(),
            oldest: VecDeque::new(),
            counts: DataDrivenCounts::default(),
        }))
    }

    fn place(&mut self, number: u32) -> &mut Place {
        &mut self.places[(number - self.first) as usize]
    }

    fn keep(&mut self, key: (u64, u64)) {
        if self.cached.insert(key) {
            self.oldest.push_back(key);
            if self.oldest.len() > CACHE_CHUNKS
                && let Some(gone) = self.oldest.pop_front()
            {
                self.cached.remove(&gone);
            }
        }
    }

    /// Asks the cache for what a process that leads is to read of a file of `size` bytes: the chunks that are there.
    fn ask_cache(&mut self, process: u32, runs: &[Range], size: u64) -> Vec<u64> {
        let (client, file) = (self.place(process).client, self.place(process).file);
        let node = self.nodes.entry(client).or_default();
        let mut chunks = whole_chunks(runs, size, BATCH_CHUNKS);
        chunks.retain(|&chunk| node.demand.wants(chunk));
        let (found, not_found): (Vec<u64>, Vec<u64>) =
            chunks.into_iter().partition(|&chunk| self.cached.contains(&(file, chunk)));
        node.demand = node.demand.after(found.len() + not_found.len(), found.len());
        (node.found, node.not_found) = (found.len() as u64, not_found);
        self.counts.from_cache += found.len() as u64;
        found
    }

    /// The unused bytes of a process's cycle are gone, and its mode learns how it went.
    fn finish_cycle(&mut self, number: u32, now: u64) {
        let place = self.place(number);
        let spans = std::mem::take(&mut place.spans);
        if spans.is_empty() {
            return;
        }
        let computing = now.saturating_sub(place.since);
        let cycle = Cycle { prefetched: spans.len(), used: spans.used(), cost: place.cost, computing };
        place.modes[0].cycle(&cycle, now, &mut place.budget);
        if !place.modes[0].is_on() {
            place.expects[0] = None;
        }
        self.counts.used += spans.used();
    }

    /// Whether all that come for the same as this process have come.
    fn is_complete(&self, number: u32) -> bool {
        let mine = &self.places[(number - self.first) as usize];
        let Some(node) = self.nodes.get(&mine.client) else { return true };
        let kind = number_of(mine.kind);
        (self.first..).zip(&self.places).all(|(other, place)| {
            place.client != mine.client || place.expects[kind] != Some(mine.file) || node.waiting.contains(&other)
        })
    }
}

/// Whether one of the collected writes has a byte of these.
fn touches(log: &[Range], ranges: &[Range]) -> bool {
    log.iter().any(|mine| ranges.iter().any(|range| range.overlaps(mine)))
}

impl Simulation<'_> {
    /// Serves the request of a process, or lets it go on its own way.
    pub(super) fn drive(&mut self, driven: &mut DataDriven, number: u32) {
        let now = self.calendar.now();
        let process = &self.processes[number as usize];
        let Some(next) = &process.next else { return self.issue(number) };
        let (op, bytes, client, file) = (next.op, next.bytes, process.client, self.file_of(number, next));
        let ranges: Vec<Range> = process.regions.iter().map(|&(offset, len)| Range::new(offset, len)).collect();
        let settings = driven.settings;
        let place = driven.place(number);
        place.client = client;
        if place.file != file {
            place.file = file;
            place.modes = [ModeControl::new(settings), ModeControl::new(settings)];
            place.slots = Default::default();
        }
        let called = *place.called.get_or_insert(now);
        let is_write = op == Op::Write;
        let is_collected = is_write
            && bytes <= COLLECTED_WRITE
            && bytes > 0
            && place.modes[1].may_start(now, &place.budget)
            && place.log.len() + ranges.len() <= ENTRIES;
        let is_full = is_collected && place.log_bytes + bytes > DATA as u64;
        let must_settle = if is_write { !is_collected && !place.log.is_empty() } else { touches(&place.log, &ranges) };
        if is_full || must_settle {
            return self.write_back(driven, number, Step::Issue, is_full);
        }
        if is_collected {
            if place.log.is_empty() {
                place.log_since = now;
                place.expects[1] = Some(file);
            }
            let ns = SERVE_NS + bytes / BYTES_A_NS;
            place.log.extend(ranges);
            place.log_bytes += bytes;
            place.log_cost += ns;
            driven.counts.collected += 1;
            return self.finish_from_memory(driven, number, called, ns);
        }
        if !is_write && !place.spans.is_empty() && ranges.iter().all(|range| place.spans.covers(range)) {
            ranges.iter().for_each(|range| _ = place.spans.read(range));
            let ns = SERVE_NS + bytes / BYTES_A_NS;
            place.cost += ns;
            place.since += ns;
            return self.finish_from_memory(driven, number, called, ns);
        }
        let tried = std::mem::take(&mut place.tried);
        if !is_write && !tried && self.cycle(driven, number, (file, bytes)) {
            return;
        }
        let place = driven.place(number);
        place.called = None;
        // A call is one request: its ranges are one to the servers at best.
        let from = ranges.first().map_or(0, |first| first.offset);
        place.passing = Some((Range::new(from, bytes), now, is_write));
        self.issue(number);
    }

    /// A call was served from memory.
    fn finish_from_memory(&mut self, driven: &mut DataDriven, number: u32, called: u64, ns: u64) {
        let place = driven.place(number);
        (place.called, place.tried) = (None, false);
        let until = self.calendar.now() + ns;
        let bytes = self.processes[number as usize].next.take().map_or(0, |next| next.bytes);
        self.count(number, bytes, called);
        self.sleep(number, until, Step::Fetch);
    }

    /// A call that was left to the library has ended.
    pub(super) fn passed(&mut self, number: u32) {
        let now = self.calendar.now();
        let app = self.processes[number as usize].app as usize;
        let Some(driven) = &mut self.data_driven[app] else { return };
        let Some((request, start, is_write)) = driven.place(number).passing.take() else { return };
        let client = driven.place(number).client;
        let node = driven.nodes.entry(client).or_default();
        let distance = std::mem::replace(&mut node.last, request.offset).abs_diff(request.offset);
        let place = driven.place(number);
        if let Some(slot) = place.slots[usize::from(is_write)].add(request, distance, start, now) {
            place.modes[usize::from(is_write)].slot(&slot, now, &place.budget);
        }
    }

    /// Begins a cycle: the ghost of the process runs ahead. False if there is none.
    fn cycle(&mut self, driven: &mut DataDriven, number: u32, (file, bytes): (u64, u64)) -> bool {
        let now = self.calendar.now();
        driven.finish_cycle(number, now);
        let place = driven.place(number);
        let Some(quota) = place.modes[0].quota_for(bytes) else { return false };
        if !place.modes[0].may_start(now, &place.budget) {
            return false;
        }
        place.expects[0] = Some(file);
        let (requests, took, is_late) = self.ghost(number, quota, place.ghost.ns());
        let requests = bounded(requests);
        place.tried = true;
        place.began = now;
        let told: u64 = requests.iter().map(|range| range.len).sum();
        if told <= bytes {
            // Nothing to serve together with the call.
            place.modes[0].cycle(&Cycle { cost: took, ..Cycle::default() }, now + took, &mut place.budget);
            place.expects[0] = None;
            self.sleep(number, now + took, Step::Issue);
        } else {
            place.ghost.ended(took, is_late);
            (place.requests, place.kind, place.resume) = (requests, Kind::Read, Step::Issue);
            self.sleep(number, now + took, Step::Join);
        }
        driven.counts.ghosts += 1;
        true
    }

    /// What a ghost of the process tells of its reads, the one that it stands at first; how long it takes, and whether it is stopped.
    fn ghost(&self, number: u32, quota: u64, most_ns: u64) -> (Vec<Range>, u64, bool) {
        let process = &self.processes[number as usize];
        let application = &self.scenario.applications[process.app as usize];
        let phase = &application.phases[process.phase as usize];
        let mut ahead = (process.progress.clone(), process.random.clone());
        if phase.dependent {
            ahead.1 = Random::new(self.calendar.now(), u64::from(number));
        }
        let mut end = self.ends[self.apps[process.app as usize].ends[process.phase as usize]];
        let mut regions = process.regions.clone();
        let mut told = Vec::new();
        let mut time = (RESIDENT * COPY) as u64;
        let mut left = quota;
        let mut op = Op::Read;
        loop {
            if op == Op::Read {
                for &(offset, len) in &regions {
                    if len > left || told.len() >= ENTRIES {
                        return (told, time, false);
                    }
                    left -= len;
                    told.push(Range::new(offset, len));
                }
            }
            if left == 0 {
                return (told, time, false);
            }
            let next =
                phase.next(process.rank, application.processes, &mut ahead.0, &mut ahead.1, &mut end, &mut regions);
            let Some(next) = next else { return (told, time, false) };
            op = next.op;
            time += next.think_ns + GHOST_CALL_NS;
            if time > most_ns {
                return (told, most_ns, true);
            }
        }
    }

    /// What a process has collected is written, with others if it comes to them.
    fn write_back(&mut self, driven: &mut DataDriven, number: u32, resume: Step, together: bool) {
        let now = self.calendar.now();
        let place = driven.place(number);
        (place.resume, place.came) = (resume, now);
        if together {
            place.kind = Kind::Write;
            self.sleep(number, now, Step::Join);
        } else {
            self.lead(driven, vec![number], Kind::Write, false);
        }
    }

    /// Before a process tells others something or waits for them, or at the end of a phase (`closes`): whether something of it is
    /// still to be written, after which it does `resume`.
    pub(super) fn settles(&mut self, number: u32, resume: Step, closes: bool) -> bool {
        let now = self.calendar.now();
        let app = self.processes[number as usize].app as usize;
        let Some(mut driven) = self.data_driven[app].take() else { return false };
        if closes {
            driven.finish_cycle(number, now);
        }
        let place = driven.place(number);
        if closes {
            place.expects[0] = None;
        }
        let comes = closes && place.expects[1] == Some(place.file);
        let settles = !place.log.is_empty() || comes;
        if settles {
            self.write_back(&mut driven, number, resume, closes);
        }
        let client = driven.place(number).client;
        self.data_driven[app] = Some(driven);
        if closes && !settles {
            self.others_of(app, client);
        }
        settles
    }

    /// Those who wait on a node may have waited for somebody who does not come any more.
    fn others_of(&mut self, app: usize, client: u32) {
        if let Some(mut driven) = self.data_driven[app].take() {
            self.next_leader(&mut driven, client);
            self.data_driven[app] = Some(driven);
        }
    }

    /// A process comes to its neighbours.
    pub(super) fn join(&mut self, number: u32) {
        let now = self.calendar.now();
        let app = self.processes[number as usize].app as usize;
        self.sleep_until_called(number);
        let Some(mut driven) = self.data_driven[app].take() else { return };
        let place = driven.place(number);
        place.came = now;
        let (client, until) = (place.client, now + place.patience[number_of(place.kind)].ns());
        driven.nodes.entry(client).or_default().waiting.push(number);
        if driven.is_complete(number) {
            self.take(&mut driven, number);
        }
        self.calendar.plan(until, Event::Patience(number));
        self.data_driven[app] = Some(driven);
    }

    /// A process has waited for as long as it may, unless it was served before.
    pub(super) fn patience_is_over(&mut self, number: u32) {
        let app = self.processes[number as usize].app as usize;
        if let Some(mut driven) = self.data_driven[app].take() {
            if self.is_impatient(&mut driven, number) {
                self.take(&mut driven, number);
            }
            self.data_driven[app] = Some(driven);
        }
    }

    fn is_impatient(&self, driven: &mut DataDriven, number: u32) -> bool {
        let place = driven.place(number);
        let (client, until) = (place.client, place.came + place.patience[number_of(place.kind)].ns());
        let waits = driven.nodes.get(&client).is_some_and(|node| node.waiting.contains(&number));
        waits && self.calendar.now() >= until
    }

    /// A process leads, if nobody does: with all that have come for the same.
    fn take(&mut self, driven: &mut DataDriven, number: u32) {
        let now = self.calendar.now();
        let place = driven.place(number);
        let (client, kind, file, came) = (place.client, place.kind, place.file, place.came);
        let waiting = match driven.nodes.get_mut(&client) {
            Some(node) if !node.is_led => {
                node.is_led = true;
                std::mem::take(&mut node.waiting)
            }
            _ => return,
        };
        let mut taken = vec![number];
        let mut left = Vec::new();
        for other in waiting.into_iter().filter(|&other| other != number) {
            let theirs = driven.place(other);
            if theirs.kind == kind && theirs.file == file { &mut taken } else { &mut left }.push(other);
        }
        if let Some(node) = driven.nodes.get_mut(&client) {
            node.waiting = left;
        }
        let others = taken.len() - 1;
        for &other in &taken {
            let patience = &mut driven.place(other).patience[number_of(kind)];
            if other == number { patience.waited(now - came, others) } else { patience.waited(0, 1) }
        }
        self.lead(driven, taken, kind, true);
    }

    /// Has done what these have come for; the first does it.
    fn lead(&mut self, driven: &mut DataDriven, taken: Vec<u32>, kind: Kind, is_led: bool) {
        let now = self.calendar.now();
        let process = taken[0];
        let file = driven.place(process).file;
        let mut all = Vec::new();
        for &number in &taken {
            let place = driven.place(number);
            all.extend_from_slice(if kind == Kind::Read { &place.requests } else { &place.log });
        }
        let (ranges, op) = if kind == Kind::Read {
            let runs = merge(all, HOLE);
            let size = self.file_ends.get(file as usize).copied().unwrap_or(u64::MAX / 2);
            (segments(&without(&runs, &driven.ask_cache(process, &runs, size)), LONGEST), Op::Read)
        } else {
            let pieces = overlay(&all);
            let whole = |pieces: &[Piece]| {
                let bytes = pieces.iter().map(|piece| piece.range.len).sum();
                Range::new(pieces[0].range.offset, bytes)
            };
            (write_requests(&pieces).into_iter().map(whole).collect(), Op::Write)
        };
        let requests = ranges.len() as u64;
        *(if kind == Kind::Read { &mut driven.counts.requests } else { &mut driven.counts.written }) += requests;
        let purpose = if kind == Kind::Read { Purpose::Read(taken) } else { Purpose::Write { taken, is_led } };
        let in_flight = in_flight(ranges.len(), ranges.iter().map(|range| range.len).sum());
        let lists = VecDeque::from([ranges.into_iter().map(|range| (op, range)).collect()]);
        let (together, under_way, next) = (false, 0, None);
        self.begin(Work { process, file, lists, in_flight, together, under_way, began_ns: now, purpose, next });
    }

    /// A batch was read: everybody has its own.
    pub(super) fn batch_read(&mut self, driven: &mut DataDriven, taken: &[u32], began: u64) {
        let now = self.calendar.now();
        let Some(&leader) = taken.first() else { return };
        let (client, file) = (driven.place(leader).client, driven.place(leader).file);
        let node = driven.nodes.entry(client).or_default();
        node.is_led = false;
        let (found, put) = (node.found, std::mem::take(&mut node.not_found));
        let spans: Vec<Spans> = taken
            .iter()
            .map(|&number| Spans::for_requests(&std::mem::take(&mut driven.place(number).requests)))
            .collect();
        // The leader puts chunks into the cache and hands over what others want while it reads.
        let handed: u64 = spans.iter().map(Spans::len).sum();
        let beside = put.len() as u64 * self.chunk_ns() + handed / BYTES_A_NS;
        let led_ns = found * self.chunk_ns() + beside.saturating_sub(now - began);
        driven.counts.to_cache += put.len() as u64;
        put.into_iter().for_each(|chunk| driven.keep((file, chunk)));
        for (&number, spans) in taken.iter().zip(spans) {
            let ns = led_ns + if number == leader { 0 } else { spans.len() / BYTES_A_NS };
            driven.counts.cycles += 1;
            driven.counts.prefetched += spans.len();
            let place = driven.place(number);
            place.spans = spans;
            place.cost = now + ns - place.began;
            place.since = now + ns;
            self.sleep(number, now + ns, Step::Issue);
        }
    }

    /// What a chunk takes to or from the cache, which is spread evenly over the nodes.
    fn chunk_ns(&self) -> u64 {
        let (nodes, bandwidth) = (u64::from(self.clients), self.scenario.network.bandwidth);
        let moving = (CHUNK * 1_000_000_000).checked_div(bandwidth).unwrap_or(0);
        CHUNK_NS + moving * (nodes - 1) / nodes
    }

    /// What these had collected is written.
    pub(super) fn batch_written(&mut self, driven: &mut DataDriven, taken: &[u32], began: u64, is_led: bool) {
        let now = self.calendar.now();
        for &number in taken {
            let place = driven.place(number);
            place.log.clear();
            let bytes = std::mem::take(&mut place.log_bytes);
            let cost = std::mem::take(&mut place.log_cost) + now - place.came.min(began);
            let computing = now.saturating_sub(place.log_since).saturating_sub(cost);
            if bytes > 0 {
                let cycle = Cycle { prefetched: bytes, used: bytes, cost, computing };
                place.modes[1].cycle(&cycle, now, &mut place.budget);
            }
            if place.resume == Step::Fetch || !place.modes[1].is_on() {
                place.expects[1] = None;
            }
            let resume = place.resume;
            self.sleep(number, now, resume);
            if is_led && let Some(node) = driven.nodes.get_mut(&driven.places[(number - driven.first) as usize].client)
            {
                node.is_led = false;
            }
        }
    }

    /// After a batch: who has come meanwhile may lead the next one.
    pub(super) fn look_around(&mut self, driven: &mut DataDriven, process: u32) {
        let client = driven.place(process).client;
        self.next_leader(driven, client);
    }

    fn next_leader(&mut self, driven: &mut DataDriven, client: u32) {
        let waiting = driven.nodes.get(&client).map(|node| node.waiting.clone()).unwrap_or_default();
        let leader =
            waiting.into_iter().find(|&number| driven.is_complete(number) || self.is_impatient(driven, number));
        if let Some(number) = leader {
            self.take(driven, number);
        }
    }
}
