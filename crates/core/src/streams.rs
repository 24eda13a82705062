//! Anticipation: the device may idle for a moment for the stream that it has just served, rather than move away and back
//! (Iyer and Druschel, SOSP 2001; the slices are those of BFQ, Valente and Checconi 2010).
//!
//! A *stream* is a place in a file that reads, or writes, go on from, whoever issues them: one process that reads
//! sequentially, or several that read one range together. Learned of each, while requests come and go: its *think time* (from the completion of its
//! last outstanding request to the arrival of the next one), and the share of its requests that came in time. A stream whose
//! next request saves more positioning than waiting for it costs gets a *slice* when a request of it is dispatched: until it
//! ends, the stream's requests go first and those of others are kept back, also while the stream has none for a moment.
//! Writes that a cache absorbs move nothing, so theirs are no streams to wait for.
//!
//! What begins is taken for what began before it: where most new streams went on, the next one is waited for from its first request.
//!
//! A slice is longer while few have requests: moving from one to the next costs a share of it, and a turn of all of them is
//! short anyway. What belongs to no such stream has its turn, too: before a stream gets a second slice while others wait,
//! they go first for one slice's time, in which one stream alone goes on beside them. While they wait slices are half as long.
//!
//! Everything here is O(1), and nothing is allocated after [`Streams::new`].

use crate::files::QueueId;
use crate::list::{Links, List, NIL};
use crate::queues::Slot;
use crate::request::{Op, Time};

/// Sets of the table of streams, and streams of a set: a file's streams share a set with those of some other files.
const SETS: usize = 1 << 10;
const WAYS: usize = 8;
/// Requests that have followed each other before a stream is judged by them, and no longer by other streams.
const FOLLOWED_MIN: u32 = 2;
/// So many streams with requests outstanding, or more, have slices of the configured length. With slices of 100 ms a turn of
/// all takes 2.5 s then; fewer streams share that time, as far as the longest slice lets them.
const MANY: u64 = 25;
/// Weight of the newest observation.
const NEW: f32 = 0.25;
/// Weight of the newest stream, in what is expected of the next.
const NEW_STREAM: f32 = 0.125;
/// Share of the new streams that go on from which on the next one is waited for.
const MOST: f32 = 0.5;

/// When and how long a device is kept idle for a stream of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anticipation {
    /// What a request in another place costs the device more than one that goes on where the last one ended, in
    /// nanoseconds: of a hard disk about 8 ms. It is also the longest wait for one request. At least 1.
    pub positioning_ns: u64,
    /// How far from a stream's last request, in bytes, the next one may begin. At least 1.
    pub near_bytes: u64,
    /// How long a stream is served while others wait, in nanoseconds, if 25 or more have requests outstanding; with fewer
    /// up to [`Anticipation::longest_slice_ns`]. At least 1.
    pub slice_ns: u64,
}

impl Anticipation {
    /// For a device that needs so long to get from one place to another and so long for a byte: what it would pass in that
    /// time is near; slices of 100 ms, as BFQ's (`slice_sync`).
    #[must_use]
    pub fn for_device(positioning_ns: u64, bytes_per_s: u64) -> Anticipation {
        let near = u128::from(positioning_ns) * u128::from(bytes_per_s) / 1_000_000_000;
        Anticipation {
            positioning_ns: positioning_ns.max(1),
            near_bytes: u64::try_from(near).unwrap_or(u64::MAX).max(1),
            slice_ns: 100_000_000,
        }
    }

    /// The slice of a stream while few others have requests: 2.5 times the configured one. In nanoseconds.
    #[must_use]
    pub fn longest_slice_ns(&self) -> u64 {
        self.slice_ns.saturating_mul(5) / 2
    }
}

/// What the stream that is being served means for what goes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Whatever the policy says.
    Free,
    /// This request, which goes on with the stream.
    Continue(Slot),
    /// Nothing until then, unless a request of the stream arrives.
    Hold(Time),
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    queue: u32,
    /// Where its newest request ends.
    end: u64,
    /// When that arrived, in arrivals.
    used: u64,
    /// Requests not dispatched, by arrival.
    queued: List,
    in_flight: u32,
    outstanding: u32,
    /// Requests that followed another one.
    followed: u32,
    /// When it had nothing outstanding any more.
    idle_since: Time,
    think_ns: f32,
    /// Mean deviation of the think time.
    deviation_ns: f32,
    /// Share of requests that came before waiting for them had cost more than it saves.
    in_time: f32,
    is_write: bool,
    /// The request by which the device last came here from another stream.
    came_by: Slot,
    /// How long such requests take, from dispatch to completion.
    coming_ns: f32,
    /// The round in which it had its last slice.
    round: u32,
    /// Whether it went on has been counted.
    is_counted: bool,
}

const BLANK: Stream = Stream {
    queue: NIL,
    end: 0,
    used: 0,
    queued: List::new(),
    in_flight: 0,
    outstanding: 0,
    followed: 0,
    idle_since: Time::ZERO,
    think_ns: 0.0,
    deviation_ns: 0.0,
    in_time: 0.0,
    is_write: false,
    came_by: NIL,
    coming_ns: 0.0,
    round: 0,
    is_counted: false,
};

/// Requests that belong to no stream worth waiting for.
#[derive(Clone, Copy, Debug)]
struct Others {
    /// Those that are not dispatched, by arrival.
    queued: List,
    outstanding: u32,
    /// When the last of them ended.
    last: Option<Time>,
    /// They have their turn until then.
    turn_until: Time,
}

/// The stream that is being served.
#[derive(Clone, Copy, Debug)]
struct Slice {
    stream: u32,
    until: Time,
    /// Where the stream was when it began.
    from: u64,
    /// What belongs to no stream has its turn and goes first; the stream is what goes on meanwhile.
    is_of_others: bool,
}

#[derive(Debug)]
pub(crate) struct Streams {
    config: Anticipation,
    table: Vec<Stream>,
    /// The stream of each outstanding request ([`NIL`]: none), and whether it was worth waiting for.
    stream_of: Vec<(u32, bool)>,
    links: Links,
    links_of_others: Links,
    arrivals: u64,
    slice: Option<Slice>,
    /// The stream of the last request that was dispatched.
    device_at: u32,
    others: Others,
    round: u32,
    /// Streams with requests outstanding.
    busy: u64,
    /// Share of the streams that went on in time, of those that began lately: what is expected of a new one.
    go_on: f32,
    /// How long requests take by which the device comes to a stream of writes.
    coming_to_write_ns: f32,
}

impl Streams {
    pub(crate) fn new(config: Anticipation, capacity: u32) -> Streams {
        Streams {
            config,
            table: vec![BLANK; SETS * WAYS],
            stream_of: vec![(NIL, true); capacity as usize],
            links: Links::new(capacity),
            links_of_others: Links::new(capacity),
            arrivals: 0,
            slice: None,
            device_at: NIL,
            others: Others { queued: List::new(), outstanding: 0, last: None, turn_until: Time::ZERO },
            round: 1,
            busy: 0,
            go_on: MOST,
            coming_to_write_ns: 0.0,
        }
    }

    /// From now on with these settings; the slice that is running is over, and so is the turn of what belongs to no stream.
    pub(crate) fn configure(&mut self, config: Anticipation) {
        (self.config, self.slice, self.others.turn_until) = (config, None, Time::ZERO);
    }

    /// The slice that is running is over.
    pub(crate) fn end_slice(&mut self) {
        self.slice = None;
    }

    fn set(queue: QueueId) -> std::ops::Range<usize> {
        let set = (queue.0.wrapping_mul(0x9E37_79B9) >> 16) as usize % SETS;
        set * WAYS..(set + 1) * WAYS
    }

    /// A queue's file is another one from now on; nothing of it is outstanding.
    pub(crate) fn forget(&mut self, queue: QueueId) {
        self.table[Self::set(queue)].iter_mut().filter(|s| s.queue == queue.0).for_each(|stream| *stream = BLANK);
    }

    /// A request has become eligible.
    pub(crate) fn arrived(&mut self, now: Time, slot: Slot, queue: QueueId, offset: u64, end: u64) {
        self.arrivals += 1;
        self.stream_of[slot as usize] = (NIL, false);
        if let Some(number) = self.find(queue, offset).or_else(|| self.begin(queue)) {
            self.follow(now, number, end);
            let stream = &mut self.table[number];
            stream.queued.push_back(&mut self.links, slot);
            self.stream_of[slot as usize] = (number as u32, stream.is_worth(&self.config, self.go_on));
        }
        if !self.stream_of[slot as usize].1 {
            self.others.outstanding += 1;
            self.others.queued.push_back(&mut self.links_of_others, slot);
        }
    }

    /// A stream goes on, up to `end`.
    fn follow(&mut self, now: Time, number: usize, end: u64) {
        let gain = self.config.positioning_ns as f32;
        let stream = &mut self.table[number];
        if stream.used > 0 {
            stream.followed = stream.followed.saturating_add(1);
            let think = if stream.outstanding > 0 { 0.0 } else { now.since(stream.idle_since) as f32 };
            // As long as a new stream is waited for: who thinks for longer is not found out by that.
            let went_on = think <= stream.patience_ns(&self.config) as f32;
            stream.note(think.min(gain * 4.0), gain);
            self.count(number, went_on);
        }
        let stream = &mut self.table[number];
        stream.used = self.arrivals;
        stream.end = end;
        self.busy += u64::from(stream.outstanding == 0);
        stream.outstanding += 1;
    }

    /// The stream that a request at `offset` goes on with: the nearest one.
    fn find(&self, queue: QueueId, offset: u64) -> Option<usize> {
        let distance = |&number: &usize| self.table[number].end.abs_diff(offset);
        let near = Self::set(queue).filter(|&number| {
            let stream = &self.table[number];
            stream.queue == queue.0 && stream.end.abs_diff(offset) <= self.config.near_bytes
        });
        near.min_by_key(distance)
    }

    /// A new stream in the place of the one that has been quiet for longest.
    fn begin(&mut self, queue: QueueId) -> Option<usize> {
        let unused = Self::set(queue).filter(|&number| self.table[number].outstanding == 0);
        let number = unused.min_by_key(|&number| self.table[number].used)?;
        if self.slice.is_some_and(|slice| slice.stream as usize == number) {
            self.slice = None;
        }
        if self.table[number].used > 0 {
            self.count(number, false);
        }
        let is_write = queue.op() == Op::Write;
        let coming_ns = if is_write { self.coming_to_write_ns } else { 0.0 };
        self.table[number] = Stream { queue: queue.0, is_write, coming_ns, ..BLANK };
        Some(number)
    }

    /// A stream went on in time, or did not. Only the first time counts: what a new stream does is to be known.
    fn count(&mut self, number: usize, went_on: bool) {
        if !std::mem::replace(&mut self.table[number].is_counted, true) {
            self.go_on += NEW_STREAM * (if went_on { 1.0 } else { 0.0 } - self.go_on);
        }
    }

    /// Requests go to the device as a batch. `continues`: in the slice that is running, whichever stream they are of.
    pub(crate) fn dispatched(&mut self, now: Time, slots: &[Slot], continues: bool) {
        for &slot in slots {
            let (number, worth) = self.stream_of[slot as usize];
            if !worth {
                self.others.queued.remove(&mut self.links_of_others, slot);
            }
            let comes = std::mem::replace(&mut self.device_at, number) != number;
            if let Some(stream) = self.table.get_mut(number as usize) {
                if comes {
                    stream.came_by = slot;
                }
                stream.queued.remove(&mut self.links, slot);
                stream.in_flight += 1;
            }
        }
        let Some(&last) = slots.last() else { return };
        let (number, _) = self.stream_of[last as usize];
        if !continues && self.slice.is_none_or(|slice| slice.stream != number) {
            self.slice = self.begin_slice(now, number);
        }
    }

    /// How long a slice that begins now is.
    fn slice_ns(&self) -> u64 {
        let shared = self.config.slice_ns.saturating_mul(MANY) / self.busy.max(1);
        shared.min(self.config.longest_slice_ns()).max(self.config.slice_ns)
    }

    /// The slice that a stream gets of which a request was dispatched.
    fn begin_slice(&mut self, now: Time, number: u32) -> Option<Slice> {
        let longest_ns = self.slice_ns();
        let worth = |stream: &&mut Stream| stream.is_worth(&self.config, self.go_on);
        let stream = self.table.get_mut(number as usize).filter(worth)?;
        let others = &mut self.others;
        let are_there = others.last.is_some_and(|last| now.since(last) < self.config.positioning_ns);
        let wait = others.outstanding > 0 || are_there;
        // So that a turn of all, theirs with it, is short: they wait for all of it.
        let slice_ns = if wait { (longest_ns / 2).max(self.config.slice_ns) } else { longest_ns };
        if wait && stream.round == self.round {
            self.round = self.round.wrapping_add(1).max(1);
            others.turn_until = now.after(slice_ns);
        }
        let is_of_others = wait && now < others.turn_until;
        let until = if is_of_others { others.turn_until } else { now.after(slice_ns) };
        if !is_of_others {
            stream.round = self.round;
        }
        Some(Slice { stream: number, until, from: stream.end, is_of_others })
    }

    /// A request has ended, `service_ns` after it was dispatched, or was cancelled before it was.
    pub(crate) fn ended(&mut self, now: Time, slot: Slot, service_ns: Option<u64>) {
        let (number, worth) = std::mem::replace(&mut self.stream_of[slot as usize], (NIL, true));
        if !worth {
            (self.others.outstanding, self.others.last) = (self.others.outstanding - 1, Some(now));
            if service_ns.is_none() {
                self.others.queued.remove(&mut self.links_of_others, slot);
            }
        }
        let Some(stream) = self.table.get_mut(number as usize) else { return };
        match service_ns {
            Some(ns) => {
                stream.in_flight -= 1;
                if stream.came_by == slot {
                    stream.came_by = NIL;
                    stream.coming_ns += NEW * (ns as f32 - stream.coming_ns);
                    if stream.is_write {
                        self.coming_to_write_ns += NEW * (ns as f32 - self.coming_to_write_ns);
                    }
                }
            }
            None => stream.queued.remove(&mut self.links, slot),
        }
        stream.outstanding -= 1;
        if stream.outstanding == 0 {
            stream.idle_since = now;
            self.busy -= 1;
        }
    }

    /// Whether a request below one with which the slice goes on in the same file goes before it: it belongs to the stream, or to one that
    /// this has caught up with.
    pub(crate) fn takes_along(&self, lower: Slot, offset: u64, slot: Slot) -> bool {
        let stream = |slot: Slot| self.stream_of[slot as usize].0;
        let of_slice = self.slice.filter(|slice| slice.stream == stream(slot));
        of_slice.is_some_and(|slice| stream(lower) == stream(slot) || offset >= slice.from)
    }

    /// What goes next, for the sake of the stream that is being served.
    pub(crate) fn next(&mut self, now: Time) -> Next {
        let is_of_others = self.slice.is_none_or(|slice| slice.is_of_others);
        if let Some(slot) = self.others.queued.front().filter(|_| is_of_others && now < self.others.turn_until) {
            return Next::Continue(slot);
        }
        let Some(slice) = self.slice else { return Next::Free };
        let stream = &self.table[slice.stream as usize];
        if now < slice.until {
            if let Some(slot) = stream.queued.front() {
                return Next::Continue(slot);
            }
            if stream.is_worth(&self.config, self.go_on) {
                let until = match stream.in_flight {
                    0 => slice.until.min(stream.idle_since.after(stream.patience_ns(&self.config))),
                    _ => slice.until,
                };
                if now < until {
                    return Next::Hold(until);
                }
            }
        }
        if stream.outstanding == 0 && now >= stream.idle_since.after(stream.patience_ns(&self.config)) {
            self.count(slice.stream as usize, false);
        }
        self.slice = None;
        Next::Free
    }
}

impl Stream {
    /// A request followed after so long.
    fn note(&mut self, think_ns: f32, gain_ns: f32) {
        let came = if think_ns <= gain_ns { 1.0 } else { 0.0 };
        if self.followed == 1 {
            (self.think_ns, self.in_time) = (think_ns, came);
            return;
        }
        self.deviation_ns += NEW * ((think_ns - self.think_ns).abs() - self.deviation_ns);
        self.think_ns += NEW * (think_ns - self.think_ns);
        self.in_time += NEW * (came - self.in_time);
    }

    /// How long to wait for its next request at most.
    fn patience_ns(&self, config: &Anticipation) -> u64 {
        let usual = (self.think_ns + 4.0 * self.deviation_ns) as u64;
        usual.clamp(config.positioning_ns / 8, config.positioning_ns)
    }

    /// Waiting for its next request costs less than it saves, as far as is known: of a new one, what others did. Where most do not
    /// go on, what begins is not waited for, even if that paid: random requests that happen to be near each other would
    /// take the time of the others.
    fn is_worth(&self, config: &Anticipation, others_go_on: f32) -> bool {
        let is_new = self.followed < FOLLOWED_MIN;
        if is_new && others_go_on < MOST {
            return false;
        }
        let in_time = if is_new { others_go_on } else { self.in_time };
        let saved = in_time * config.positioning_ns as f32;
        let patience = self.patience_ns(config) as f32;
        let cost = in_time * self.think_ns.min(patience) + (1.0 - in_time) * patience;
        let absorbed = self.is_write && self.coming_ns < config.positioning_ns as f32 / 8.0;
        saved > cost && !absorbed
    }
}
