//! Anticipation: the device may idle for a moment for the stream that it has just served, rather than move away and back
//! (Iyer and Druschel, SOSP 2001; slices as those of CFQ; BFQ, Valente and Checconi 2010, has budgets and a timeout).
//!
//! A *stream* is a place in a file that reads, or writes, go on from, whoever issues them: one process that reads
//! sequentially, or several that read one range together. Learned of each, while requests come and go: its *think time* (from the completion of its
//! last outstanding request to the arrival of the next one), and the share of its requests that came in time. A stream whose
//! next request saves more positioning than waiting for it costs gets a *slice* when a request of it is dispatched: until it
//! ends, the stream's requests go first and those of others are kept back, also while the stream has none for a moment.
//! Writes that a cache absorbs move nothing, so theirs are no streams to wait for.
//!
//! What begins is taken for what began before it: where most new streams went on, the next one is waited for from its first request.
//! Programs that had ended before a lull say nothing of that, nor of themselves; who goes on only after lulls does.
//!
//! A slice is longer while few have requests: moving from one to the next costs a share of it, and a turn of all of them is
//! short anyway. What belongs to no such stream has its turn, too: before a stream gets a second slice while others wait,
//! they go first for one slice's time, for which the device is kept for them; where they do not come one stream goes on. While they wait
//! slices are half as long.
//!
//! Who is late now and then, as the machine is busy or a network lies between, is waited for as long as that pays, if most who were late came; and
//! a slice that ends nevertheless is taken up where it was: others could go meanwhile, and need no turn for what it has not had.
//! What is left of it when a file ends is for the next one that its application begins.
//!
//! Programs that take turns in a file are in step, or apart: then each goes past the blocks of the others. So a stream waits for what it
//! would leave behind, where such things came in time, and of several in a file those behind have the slice first. What they have by turns may
//! be wider than what is near, and who is behind may go by strides longer than that.
//!
//! Everything here is O(1) but a change of what is near, and nothing is allocated after [`Streams::new`].

mod anticipation;
mod habit;
mod others;
mod places;
mod stream;

use crate::list::{Links, NIL};
use crate::policy::Removal;
use crate::queues::{Queues, Slot};
use crate::request::{Request, Time};
pub use anticipation::Anticipation;
use habit::NEW;
use others::Others;
use places::{Places, Quiet};
use stream::{BLANK, Stream};

/// Streams that are remembered.
const STREAMS: u32 = 1 << 12;
/// Requests that have followed each other before a stream is judged by them, and no longer by other streams.
const FOLLOWED_MIN: u32 = 2;
/// So many streams with requests outstanding, or more, have slices of the configured length. With slices of 100 ms a turn of
/// all takes 2.5 s then; fewer streams share that time, as far as the longest slice lets them.
const MANY: u64 = 25;
/// How far behind programs are brought back into step, in what is near: a device passes that in the time of 125 moves.
const REACH: u64 = 125;
/// Within so many of its lengths a request that follows the first one of a stream tells that new streams go on. Programs that take turns are
/// so near; what a database reads next in a tree is further away, but often within what is near.
const CLOSE: u64 = 16;
/// Weight of the newest stream, in what is expected of the next.
const NEW_STREAM: f32 = 0.125;
/// Weight of the newest one that was late.
const LATE: f32 = 0.125;
/// Share of the new streams that go on from which on the next one is waited for; and of those that were late and came.
const MOST: f32 = 0.5;
/// Lulls in a row, without having gone on in time between them, for which nothing is held against a stream: where many share a device some have
/// had no more than one request when all end, and again when all that began anew have ended.
const FORGIVEN_MAX: u8 = 32;

/// What the stream that is being served means for what goes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Whatever the policy says.
    Free,
    /// This request, which goes on with the stream.
    Continue(Slot),
    /// Nothing until then, unless a request of the stream arrives, or one that it would leave behind.
    Hold(Time),
}

/// The stream that is being served.
#[derive(Clone, Copy, Debug)]
struct Slice {
    stream: u32,
    until: Time,
    /// Until its first request has ended, which waits for what the device had before it, for a slice's time at the longest: how long it is from
    /// then on.
    from_first_ns: Option<u64>,
    /// The first request that went in it ([`NIL`]: none has gone), and whether that has ended.
    first: Slot,
    first_ended: bool,
    /// Where the device was in the stream when it began.
    from: u64,
    /// What belongs to no stream has its turn and goes first; the stream is what goes on meanwhile.
    is_of_others: bool,
    /// It has the slice in the place of one that it is behind.
    catches_up: bool,
    /// What its application has begun since its last request and is outstanding, maybe the next file of the program ([`NIL`]: nothing).
    successor: u32,
    /// The one that it is the successor of, in this slice ([`NIL`]: of none).
    predecessor: u32,
}

impl Slice {
    /// Nothing else is served meanwhile, nor has its application begun anything else: if it does not come, it is late.
    fn waits(&self) -> bool {
        !self.is_of_others && self.successor == NIL
    }
}

#[derive(Debug)]
pub(crate) struct Streams {
    config: Anticipation,
    table: Vec<Stream>,
    /// Where streams are, and where the next runs of those begin that go by strides.
    places: Places,
    runs: Places,
    quiet: Quiet,
    /// The stream of each outstanding request ([`NIL`]: none), and whether it was worth waiting for.
    stream_of: Vec<(u32, bool)>,
    links: Links,
    arrivals: u64,
    /// The latest time at which it was asked what goes next.
    latest: Time,
    slice: Option<Slice>,
    /// The stream that had the last slice.
    served_last: u32,
    /// The stream of the last request that was dispatched and moved the device (memory's does not), and of the last one that has ended.
    device_at: u32,
    ended_last: u32,
    others: Others,
    round: u32,
    /// Streams with requests outstanding.
    busy: u64,
    /// Since when nothing is outstanding, and when the last lull ended that was nobody's to send something in.
    idle_since: Time,
    lull_ended: Time,
    /// Whether a stream that moves the device went on in time since the last lull.
    in_time: bool,
    /// Share of the streams that went on in time, of those that began lately: what is expected of a new one. And the same when one went on
    /// last, or a new one began after that: those that were waited for since, if a lull follows, were of programs that ended.
    go_on: f32,
    went_on: f32,
    /// How long requests take by which the device comes to a stream, by operation: what a new one begins with.
    coming_ns: [f32; 2],
    /// Of those that were not there when their usual time had passed the share that came before waiting had cost more than it saves: what a new
    /// stream begins with, unless it is the next file of one.
    late: f32,
    /// The one that was left last.
    left: u32,
}

impl Streams {
    pub(crate) fn new(config: Anticipation, capacity: u32) -> Streams {
        Streams {
            config,
            table: vec![BLANK; STREAMS as usize],
            places: Places::new(STREAMS, config.wide_bytes()),
            runs: Places::new(STREAMS, 1),
            quiet: Quiet::new(STREAMS),
            stream_of: vec![(NIL, true); capacity as usize],
            links: Links::new(capacity),
            arrivals: 0,
            latest: Time::ZERO,
            slice: None,
            served_last: NIL,
            device_at: NIL,
            ended_last: NIL,
            others: Others::new(capacity, &config),
            round: 1,
            busy: 0,
            idle_since: Time::ZERO,
            lull_ended: Time::ZERO,
            in_time: false,
            go_on: MOST,
            went_on: MOST,
            // Before anything was seen reads move the device, and writes are absorbed.
            coming_ns: [config.positioning_ns as f32, 0.0],
            late: 0.0,
            left: NIL,
        }
    }

    /// From now on with these settings; the slice that is running is over, and so is the turn of what belongs to no stream.
    pub(crate) fn configure(&mut self, config: Anticipation) {
        if config.positioning_ns != self.config.positioning_ns {
            (self.coming_ns, self.late) = ([config.positioning_ns as f32, 0.0], 0.0);
        }
        self.config = config;
        self.begin_anew();
        if self.places.set_near(config.wide_bytes()) {
            for (number, stream) in self.table.iter().enumerate().filter(|(_, stream)| stream.used > 0) {
                self.places.place(number as u32, stream.key, stream.end);
            }
        }
    }

    /// The slice that is running is over, and so is the turn of what belongs to no stream.
    pub(crate) fn begin_anew(&mut self) {
        (self.slice, self.served_last) = (None, NIL);
        self.others.begin_anew();
    }

    /// A file's reads, or its writes.
    fn key(request: &Request) -> u64 {
        let of_file = request.file.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (of_file ^ u64::from(request.target.0) << 1 ^ request.op.index() as u64)
            .wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed ^ mixed >> 32
    }

    /// A request has become eligible. It is to be shown, unless it is kept back.
    pub(crate) fn arrived(&mut self, now: Time, slot: Slot, request: &Request) {
        self.arrivals += 1;
        self.note_lull(now);
        self.stream_of[slot as usize] = (NIL, true);
        let key = Self::key(request);
        let gain = self.config.positioning_ns as f32;
        // Of the stream that is being served, whichever one this goes on with.
        if let Some(served) = self.slice.map(|slice| &mut self.table[slice.stream as usize]).filter(|s| s.key == key) {
            served.note_gap(now, request.offset, gain);
        }
        let found = self.find(key, request.offset);
        let goes_on = found.filter(|number| !self.table[*number].begins_again(now, request.offset, &self.config));
        if let Some(number) = goes_on.or_else(|| self.begin(now, key, request, found)) {
            self.follow(now, number, request);
            let stream = &mut self.table[number];
            stream.queued.push_back(&mut self.links, slot);
            self.stream_of[slot as usize] = (number as u32, true);
        }
    }

    /// A request that is not dispatched may be from now on: if it belongs to no stream worth waiting for, it has its turn with its like.
    pub(crate) fn show(&mut self, now: Time, slot: Slot) {
        let (number, among_none) = self.stream_of[slot as usize];
        let stream = self.table.get(number as usize);
        if among_none && stream.is_none_or(|stream| !stream.is_worth(&self.config, self.go_on)) {
            self.stream_of[slot as usize].1 = false;
            self.others.show(now, slot, number, &self.config);
        }
    }

    /// A request that is not dispatched is kept back, not for the sake of a stream: until it is shown nobody waits for its turn.
    pub(crate) fn hide(&mut self, slot: Slot) {
        if !std::mem::replace(&mut self.stream_of[slot as usize].1, true) {
            self.others.hide(slot);
        }
    }

    /// Nothing was outstanding for a slice's time, or four moves. If streams had gone on before, whoever was waited for in
    /// vain at the end was of a program that had ended, unless others have begun since. If none had, this is what programs do: all of it between
    /// two lulls.
    fn note_lull(&mut self, now: Time) {
        // The clock may have been set back.
        (self.idle_since, self.lull_ended) = (self.idle_since.min(now), self.lull_ended.min(now));
        let lull_ns = self.config.slice_ns.max(self.config.positioning_ns.saturating_mul(4));
        if self.is_idle() && now.since(self.idle_since) >= lull_ns {
            self.slice = None;
            if std::mem::take(&mut self.in_time) {
                (self.lull_ended, self.go_on) = (now, self.went_on);
            }
        }
    }

    /// Nothing is outstanding.
    fn is_idle(&self) -> bool {
        self.busy == 0 && !self.others.are_outstanding()
    }

    /// A stream goes on with a request.
    fn follow(&mut self, now: Time, number: usize, request: &Request) {
        let gain = self.config.positioning_ns as f32;
        let stream = &mut self.table[number];
        let was_idle = stream.outstanding == 0;
        if was_idle && stream.idle_since < self.lull_ended && stream.used > 0 && stream.forgiven < FORGIVEN_MAX {
            // Programs had ended, and others begin, or the same anew: nothing is learned of how its requests follow each other. Who is never
            // in time but after lulls is late.
            (stream.gap, stream.forgiven, stream.rest_ns) = (None, stream.forgiven + 1, 0);
            if std::mem::take(&mut stream.is_left) {
                for known in [&mut stream.late, &mut self.late] {
                    *known = (*known / (1.0 - LATE)).min(1.0);
                }
            }
        } else if stream.used > 0 {
            stream.note_gap(now, request.offset, gain);
            let think = if was_idle { now.since(stream.idle_since) as f32 } else { 0.0 };
            // As long as a new stream is waited for: who thinks for longer is not found out by that. And not so far away that a random request
            // might be there.
            let is_close = request.offset.abs_diff(stream.end) <= u64::from(request.len).saturating_mul(CLOSE);
            let is_in_time = think <= stream.next.patience_ns(&self.config) as f32;
            if was_idle {
                self.note_late(number, think, is_in_time);
            }
            let stream = &mut self.table[number];
            let jumps = stream.goes_on(think, request.offset, &self.config);
            // What goes by strides is nothing to wait for.
            if !jumps {
                self.count(number, is_in_time && is_close);
            }
            let stream = &mut self.table[number];
            if is_in_time && !stream.is_absorbed(&self.config) {
                (self.in_time, self.went_on) = (true, self.go_on);
                // Otherwise it was asked for together with the one before.
                if was_idle {
                    stream.forgiven = 0;
                }
            }
        }
        let stream = &mut self.table[number];
        if let Some(slice) = self.slice.as_mut().filter(|slice| slice.stream as usize == number) {
            slice.successor = NIL;
        }
        stream.used = self.arrivals;
        stream.go_to(request, self.config.near_bytes);
        if stream.outstanding == 0 {
            self.busy += 1;
            self.quiet.ends(number as u32);
        }
        stream.outstanding += 1;
        self.places.place(number as u32, stream.key, stream.end);
        if let Some(next_run) = stream.next_run() {
            self.runs.place(number as u32, stream.key, next_run);
        }
    }

    /// A stream that had nothing outstanding goes on: if it was waited for and late, it came before that had cost more than it saves, or did not.
    fn note_late(&mut self, number: usize, think_ns: f32, is_in_time: bool) {
        let is_served = self.slice.is_some_and(|slice| slice.stream as usize == number && slice.waits());
        let came = think_ns <= self.config.positioning_ns as f32;
        let stream = &mut self.table[number];
        let was_left = std::mem::take(&mut stream.is_left);
        for known in [&mut stream.late, &mut self.late] {
            if was_left && came {
                // Taken for one that does not come, when it was left.
                *known = (*known + LATE).min(1.0);
            } else if is_served && !was_left && !is_in_time {
                *known += LATE * (if came { 1.0 } else { 0.0 } - *known);
            }
        }
    }

    /// A stream begins: maybe the next file of the one that was left last, or of the one that is waited for. Then that has come late, and in time
    /// all the same. The share of those that did, which the new one begins with.
    fn note_next_file(&mut self, now: Time, number: usize, key: u64, request: &Request) -> f32 {
        let config = self.config;
        let may_be_next = |stream: &Stream| {
            let is_alike = (stream.op, stream.app) == (request.op, request.app) && stream.may_go_on_in(key, &config);
            is_alike && stream.outstanding == 0 && now.since(stream.idle_since) <= config.positioning_ns
        };
        let left = self.table.get(self.left as usize).filter(|stream| stream.is_left && may_be_next(stream));
        let left = left.map(|_| self.left);
        let waited_for = self.slice.filter(|slice| slice.successor as usize == number && !slice.is_of_others);
        let waited_for =
            waited_for.map(|slice| slice.stream).filter(|served| may_be_next(&self.table[*served as usize]));
        let Some(ended) = left.or(waited_for) else { return self.late };
        let ended = &mut self.table[ended as usize];
        let is_late = now.since(ended.idle_since) > ended.next.patience_ns(&config);
        ended.is_left = false;
        for known in [&mut ended.late, &mut self.late] {
            // When it was left it was taken for one that nothing comes after.
            if left.is_some() {
                *known = (*known + LATE).min(1.0);
            } else if is_late {
                *known += LATE * (1.0 - *known);
            }
        }
        ended.late
    }

    /// The stream that a request at `offset` goes on with: the nearest one; or by its stride; or the nearest that several programs have by turns.
    fn find(&self, key: u64, offset: u64) -> Option<usize> {
        let of_file = |number: u32| Some(&self.table[number as usize]).filter(|stream| stream.key == key);
        let end = |number: u32| of_file(number).map(|stream| stream.end);
        let near = self.places.nearest(key, offset, self.config.near_bytes, end);
        let by_stride = || self.runs.nearest(key, offset, 0, |number| of_file(number)?.next_run());
        let end_of_shared = |number: u32| of_file(number).filter(|stream| stream.is_shared()).map(|stream| stream.end);
        let wide = || self.places.nearest(key, offset, self.config.wide_bytes(), end_of_shared);
        near.or_else(by_stride).or_else(wide).map(|number| number as usize)
    }

    /// How far a request that begins a stream is from the run that ended last, if a program that goes by strides may have come from there.
    fn stride(&self, key: u64, request: &Request) -> u64 {
        let before = self.table.get(self.ended_last as usize);
        let before = before.filter(|stream| (stream.key, stream.app, stream.outstanding) == (key, request.app, 0));
        let stride = before.and_then(|stream| request.offset.checked_sub(stream.run));
        stride.filter(|stride| *stride <= self.config.near_bytes.saturating_mul(REACH)).unwrap_or(0)
    }

    /// A new stream in the place of an old one, or of the one that has been quiet for longest.
    fn begin(&mut self, now: Time, key: u64, request: &Request, old: Option<usize>) -> Option<usize> {
        let Request { op, app, .. } = *request;
        let number = old.or_else(|| Some(self.quiet.longest()? as usize))?;
        self.went_on = self.go_on;
        if self.slice.is_some_and(|slice| slice.stream as usize == number) {
            self.slice = None;
        }
        let mut is_successor = false;
        if let Some(slice) = &mut self.slice {
            let served = &self.table[slice.stream as usize];
            let may_go_on = served.may_go_on_in(key, &self.config);
            if may_go_on && slice.successor == NIL && (served.op, served.app) == (op, app) {
                (slice.successor, is_successor) = (number as u32, served.is_long(&self.config));
            }
        }
        if self.table[number].used > 0 {
            self.count(number, false);
        }
        let late = self.note_next_file(now, number, key, request);
        let stride = self.stride(key, request);
        // Where it lies, or that memory has it, is known of what is read again; and what it does is counted once.
        let known = old.map(|old| &self.table[old]).map(|old| (old.coming_ns, old.is_counted));
        let (coming_ns, is_counted) = known.unwrap_or((self.coming_ns[op.index()], false));
        // Its first slice is one of this round, so that what goes from file to file does not put off the turn of the others.
        let (began, run, round) = (request.offset, request.offset, self.round);
        self.table[number] =
            Stream { key, op, app, began, run, stride, coming_ns, round, is_counted, late, is_successor, ..BLANK };
        Some(number)
    }

    /// A stream went on in time, or did not. Only the first time counts: what a new stream does is to be known.
    fn count(&mut self, number: usize, went_on: bool) {
        let stream = &mut self.table[number];
        // Nobody waits for what memory takes, or has, whatever it does.
        let tells = !(stream.is_absorbed(&self.config) || went_on && stream.is_successor);
        if !std::mem::replace(&mut stream.is_counted, true) && tells {
            self.go_on += NEW_STREAM * (if went_on { 1.0 } else { 0.0 } - self.go_on);
        }
    }

    /// Requests go to the device as a batch: in the slice that is running, whichever stream they are of, if they are `Continued`.
    /// `ordered`: those that are queued are in the order of the file. Whether the stream is one that catches up with others.
    pub(crate) fn dispatched(
        &mut self,
        now: Time,
        slots: &[Slot],
        queues: &Queues,
        ordered: bool,
        why: Removal,
    ) -> bool {
        let begins_at = |slot: &Slot| {
            let stream = self.table.get(self.stream_of[*slot as usize].0 as usize);
            stream.is_some_and(|stream| stream.at == queues.offset(*slot))
        };
        let is_dense = slots.len() > 1 || slots.first().is_some_and(begins_at);
        for &slot in slots {
            let (number, worth) = self.stream_of[slot as usize];
            if !worth {
                self.others.dispatched(slot);
            }
            let (comes_from, comes) = (self.device_at, self.device_at != number);
            let is_absorbed = self.table.get(number as usize).is_some_and(|stream| stream.is_absorbed(&self.config));
            // What memory takes, or has, leaves the device where it is.
            if !is_absorbed {
                self.device_at = number;
            }
            if let Some(stream) = self.table.get_mut(number as usize) {
                // Of several under way the first is measured.
                if comes && stream.came_by == NIL {
                    stream.came_by = slot;
                    let is_next =
                        self.slice.is_some_and(|slice| (slice.stream, slice.predecessor) == (number, comes_from));
                    stream.beside_ns = if is_next { self.config.beside_ns(slots, queues) } else { f32::INFINITY };
                }
                stream.queued.remove(&mut self.links, slot);
                stream.in_flight += 1;
                stream.go_past(now, queues.offset(slot), queues.end(slot));
                let key = stream.key;
                // Where the device is, the stream that is being served is, too.
                let served = self.slice.filter(|slice| why == Removal::Continued && slice.stream != number);
                if let Some(served) =
                    served.map(|slice| &mut self.table[slice.stream as usize]).filter(|s| s.key == key)
                {
                    served.go_past(now, queues.offset(slot), queues.end(slot));
                }
            }
        }
        let Some(&last) = slots.last() else { return false };
        let (number, worth) = self.stream_of[last as usize];
        if let Some(stream) = self.table.get_mut(number as usize) {
            stream.past = stream.past.saturating_sub(1);
            stream.dense += NEW * (if is_dense { 1.0 } else { 0.0 } - stream.dense);
        }
        if why != Removal::Continued && self.slice.is_none_or(|slice| slice.stream != number) {
            let lowest = if ordered { queues.head(queues.queue(last)) } else { None };
            self.slice = self.begin_slice(now, number, lowest, why == Removal::Overdue);
        }
        if let Some(slice) = self.slice.as_mut().filter(|slice| slice.stream == number && slice.first == NIL) {
            slice.first = last;
        }
        self.slice.is_some_and(|slice| slice.catches_up && (worth || slice.stream == number))
    }

    /// How long a slice that begins now is. `others_wait`: shorter, so that a turn of all, theirs with it, is short: they wait for
    /// all of it.
    fn slice_ns(&self, others_wait: bool) -> u64 {
        let shared = self.config.slice_ns.saturating_mul(MANY) / self.busy.max(1);
        let longest_ns = shared.min(self.config.longest_slice_ns()).max(self.config.slice_ns);
        if others_wait { (longest_ns / 2).max(self.config.slice_ns) } else { longest_ns }
    }

    /// The slice that a stream gets of which a request was dispatched, or those behind it. `lowest`: of what is queued for its file.
    fn begin_slice(&mut self, now: Time, number: u32, lowest: Option<Slot>, overdue: bool) -> Option<Slice> {
        self.table.get(number as usize).filter(|stream| stream.is_worth(&self.config, self.go_on))?;
        let lowest = lowest.map(|lowest| self.stream_of[lowest as usize].0);
        let mut candidates = [lowest, Some(self.served_last)].into_iter().flatten();
        let behind = candidates.find_map(|other| Some((other, self.behind(now, number, other)?)));
        let catches_up = behind.is_some();
        let number = match behind {
            // What has waited for long enough goes, and no more: a slice each would be one for each such request.
            Some(_) if overdue => return None,
            Some((other, distance)) => {
                self.table[number as usize].gave_way = distance;
                other
            }
            None => number,
        };
        self.served_last = number;
        let wait = self.others.wait(now, &self.config);
        let slice_ns = self.slice_ns(wait);
        let stream = &mut self.table[number as usize];
        stream.gave_way = u64::MAX;
        // A slice that ended as it was late, if more than a little is left of it.
        let is_in_round = stream.round == self.round;
        let is_worthwhile = stream.rest_ns >= (slice_ns / 4).max(1);
        let takes_up = is_in_round && wait && !catches_up && is_worthwhile && stream.is_of_one();
        if !takes_up {
            stream.rest_ns = 0;
        }
        let from = stream.at;
        if wait && is_in_round && !takes_up {
            self.round = self.round.wrapping_add(1).max(1);
            self.others.turn_until = now.after(slice_ns);
        }
        let of_others = Slice {
            stream: number,
            until: self.others.turn_until,
            from_first_ns: None,
            first: NIL,
            first_ended: false,
            from,
            is_of_others: true,
            catches_up,
            successor: NIL,
            predecessor: NIL,
        };
        let have_turn = wait && now < self.others.turn_until;
        Some(if have_turn { of_others } else { self.after_others(now, of_others) })
    }

    /// What belongs to no stream has no turn, or not any more: the stream that would give way to it has the slice that it was chosen for,
    /// whatever has come meanwhile.
    fn after_others(&mut self, now: Time, slice: Slice) -> Slice {
        let whole_ns = self.slice_ns(self.others.wait(now, &self.config));
        let stream = &mut self.table[slice.stream as usize];
        stream.round = self.round;
        let rest_ns = std::mem::take(&mut stream.rest_ns);
        let from_first_ns = Some(if rest_ns > 0 { rest_ns.min(whole_ns) } else { whole_ns });
        let until = now.after(self.config.longest_slice_ns());
        let from = stream.at;
        Slice { until, from_first_ns, first: NIL, first_ended: false, from, is_of_others: false, ..slice }
    }

    /// Of programs that take turns in a file and have fallen apart, by how much one stream is behind another that gives way to it:
    /// until it has caught up all go past each other's blocks. What it goes past on the way is passed at the speed of the device; where
    /// a slice did not bring it nearer by what is near, those ahead have theirs.
    fn behind(&self, now: Time, ahead: u32, behind: u32) -> Option<u64> {
        let (ahead, stream) = (&self.table[ahead as usize], self.table.get(behind as usize)?);
        let near = self.config.near_bytes;
        let reach = near.max(stream.stride).saturating_mul(REACH);
        let distance = ahead.at.checked_sub(stream.at).filter(|distance| (1..=reach).contains(distance))?;
        let comes_nearer = distance.saturating_add(near) <= ahead.gave_way;
        let comes = stream.outstanding > 0 || now < stream.idle_since.after(stream.next.patience_ns(&self.config));
        let goes_past = stream.past > 0 && stream.key == ahead.key;
        (comes_nearer && comes && goes_past && stream.may_catch_up(&self.config, self.go_on)).then_some(distance)
    }

    /// A request has ended, `service_ns` after it was dispatched, or was cancelled before it was.
    pub(crate) fn ended(&mut self, now: Time, slot: Slot, service_ns: Option<u64>) {
        self.leave(now, slot, service_ns);
        if self.is_idle() {
            self.idle_since = now;
        }
    }

    /// A request that has ended is none of its stream, or of the others, any more.
    fn leave(&mut self, now: Time, slot: Slot, service_ns: Option<u64>) {
        let (number, worth) = std::mem::replace(&mut self.stream_of[slot as usize], (NIL, true));
        if !worth {
            self.others.ended(now, slot, service_ns);
        }
        let Some(stream) = self.table.get_mut(number as usize) else { return };
        match service_ns {
            Some(ns) => {
                stream.in_flight -= 1;
                if stream.came_by == slot {
                    stream.came_by = NIL;
                    let ns = ns as f32;
                    // The next file, which lies beside the one before: that is no faster than the device, and says nothing of who comes from elsewhere.
                    let is_beside = ns >= stream.beside_ns;
                    let known = [&mut stream.coming_ns, &mut self.coming_ns[stream.op.index()]];
                    for known in known.into_iter().filter(|known| !is_beside || ns > **known) {
                        *known += NEW * (ns - *known);
                    }
                }
            }
            None => stream.queued.remove(&mut self.links, slot),
        }
        stream.outstanding -= 1;
        if service_ns.is_some() {
            self.ended_last = number;
            stream.ended = now;
            if let Some(slice) = self.slice.as_mut().filter(|slice| slice.first == slot) {
                slice.first_ended = true;
            }
        }
        if stream.outstanding == 0 {
            // What has been served is nothing to go on with.
            if let Some(slice) = self.slice.as_mut().filter(|slice| slice.successor == number) {
                slice.successor = NIL;
            }
            stream.idle_since = now;
            self.busy -= 1;
            self.quiet.begins(number);
        }
    }

    /// Whether a request below one with which the slice goes on in the same file goes before it: it belongs to the stream, or to one that
    /// this has caught up with.
    pub(crate) fn takes_along(&self, lower: Slot, offset: u64, slot: Slot) -> bool {
        let stream = |slot: Slot| self.stream_of[slot as usize].0;
        let of_slice = self.slice.filter(|slice| slice.stream == stream(slot));
        of_slice.is_some_and(|slice| stream(lower) == stream(slot) || offset >= slice.from)
    }

    /// Until when to wait before a request at `offset` with which the slice goes on, for what it would leave behind.
    pub(crate) fn waits_at(&mut self, now: Time, offset: u64) -> Option<Time> {
        let slice = self.slice.filter(|slice| !slice.is_of_others)?;
        let until = self.table[slice.stream as usize].waits_at(offset, &self.config)?;
        Some(until.min(slice.until)).filter(|until| now < *until)
    }

    /// Where the slice that is running began, of a stream that goes upwards.
    pub(crate) fn slice_from(&self) -> Option<u64> {
        self.slice.map(|slice| slice.from)
    }

    /// What goes next, for the sake of the stream that is being served.
    pub(crate) fn next(&mut self, now: Time) -> Next {
        // Where the clock went backwards nobody is waited for until it is there again.
        if now < std::mem::replace(&mut self.latest, now) {
            self.begin_anew();
        }
        let is_of_others = self.slice.is_none_or(|slice| slice.is_of_others);
        if is_of_others {
            if let Some(slot) = self.others.first_in_turn(now) {
                return Next::Continue(slot);
            }
            // Programs that take turns in a file come into step also meanwhile.
            let served = self.slice.map(|slice| slice.stream);
            let of_one = served.filter(|served| self.table[*served as usize].is_of_one());
            if let Some(until) = of_one.and_then(|served| self.others.keep_until(now, served, &self.config)) {
                return Next::Hold(until);
            }
        }
        let Some(mut slice) = self.slice else { return Next::Free };
        if slice.is_of_others && now >= slice.until {
            if self.table[slice.stream as usize].outstanding == 0 {
                slice = self.succeed(slice).unwrap_or(slice);
            }
            if self.table[slice.stream as usize].outstanding > 0 && self.is_waited_for(slice) {
                slice = self.after_others(now, slice);
            }
        } else if slice.first_ended {
            slice.until = slice.from_first_ns.take().map_or(slice.until, |slice_ns| now.after(slice_ns));
        }
        self.slice = Some(slice);
        if let Some(next) = self.next_of_slice(now, slice) {
            return next;
        }
        let stream = &self.table[slice.stream as usize];
        let is_over = stream.outstanding == 0 && now >= stream.idle_since.after(self.patience_ns(slice));
        if is_over {
            self.count(slice.stream as usize, false);
            self.leave_alone(now, slice);
        }
        self.slice = if is_over && now < slice.until { self.succeed(slice) } else { None };
        self.slice.and_then(|slice| self.next_of_slice(now, slice)).unwrap_or(Next::Free)
    }

    /// The next request of a slice, or how long to wait for it; `None` if the slice is over.
    fn next_of_slice(&self, now: Time, slice: Slice) -> Option<Next> {
        let stream = &self.table[slice.stream as usize];
        if now >= slice.until {
            return None;
        }
        if let Some(slot) = stream.queued.front() {
            return Some(Next::Continue(slot));
        }
        if !self.is_waited_for(slice) {
            return None;
        }
        let until = match stream.in_flight {
            0 => slice.until.min(stream.idle_since.after(self.patience_ns(slice))),
            _ => slice.until,
        };
        (now < until).then_some(Next::Hold(until))
    }

    /// How long the stream that is being served is waited for: longer than usual if most who were late have come.
    fn patience_ns(&self, slice: Slice) -> u64 {
        let stream = &self.table[slice.stream as usize];
        let is_longer = stream.has_gone_on() && stream.late >= MOST && slice.waits();
        if is_longer { self.config.positioning_ns } else { stream.next.patience_ns(&self.config) }
    }

    /// The stream that was being served has not come. It may still, and is then to have what is left of its slice.
    fn leave_alone(&mut self, now: Time, slice: Slice) {
        let stream = &mut self.table[slice.stream as usize];
        if !slice.is_of_others {
            stream.rest_ns = slice.from_first_ns.unwrap_or(slice.until.since(now));
        }
        stream.is_left = slice.waits() && stream.next.patience_ns(&self.config) < self.config.positioning_ns;
        if stream.is_left {
            self.left = slice.stream;
            for known in [&mut stream.late, &mut self.late] {
                *known -= LATE * *known;
            }
        }
    }

    fn is_waited_for(&self, slice: Slice) -> bool {
        let stream = &self.table[slice.stream as usize];
        match slice.catches_up {
            true => stream.may_catch_up(&self.config, self.go_on),
            false => stream.is_worth(&self.config, self.go_on),
        }
    }

    /// A program has come to the end of its file and has begun the next one, as far as that can be told by the application: what is left of the slice is for
    /// that, which is expected to go on likewise until it has shown what it does.
    fn succeed(&mut self, slice: Slice) -> Option<Slice> {
        let ended = &self.table[slice.stream as usize];
        let (next, has_gone_on) = (ended.next, ended.has_gone_on());
        let stream = self.table.get_mut(slice.successor as usize)?;
        if stream.next.followed < FOLLOWED_MIN && next.followed > 0 && has_gone_on {
            stream.next = next.expected(FOLLOWED_MIN);
        }
        let from = stream.at.max(stream.last);
        // It has all that is left.
        self.table[slice.stream as usize].rest_ns = 0;
        self.served_last = slice.successor;
        let predecessor = slice.stream;
        Some(Slice { stream: slice.successor, predecessor, successor: NIL, from, catches_up: false, ..slice })
    }
}
