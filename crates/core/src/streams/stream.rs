//! A stream: where it is in its file, and how what follows comes.

use super::habit::{Habit, NEW};
use super::{Anticipation, FOLLOWED_MIN, MOST};
use crate::list::{List, NIL};
use crate::queues::Slot;
use crate::request::{AppId, Op, Request, Time};

/// Share of what would be left behind that comes in time from which on it is waited for.
const OFTEN: f32 = 0.25;
/// A stream goes downwards if so many requests in a row began each below the one before.
const DOWNWARDS: u32 = 4;
/// Batches after which a stream that left something behind is no longer taken for one that goes past what is others'.
const PAST: u8 = 16;

/// A part of a file that a stream goes past, from its last request to its next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    from: u64,
    to: u64,
    /// When it went past it; `None`: it has not yet.
    passed: Option<Time>,
    /// It was waited for.
    is_awaited: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// Its file and operation.
    pub(super) key: u64,
    /// Where it is: the end of its furthest request, or of its newest one if it goes downwards.
    pub(super) end: u64,
    /// Where it began.
    pub(super) began: u64,
    /// Its newest request, and how many before it began each below the one before.
    pub(super) last: u64,
    pub(super) descents: u32,
    /// Where its newest run of near requests began, and how far from the run before it, if that was further than what is near (0: there was
    /// none, or near): a program that has every so-manieth part of a file. Waiting for its next run saves nothing: the share of its requests that began one.
    pub(super) run: u64,
    pub(super) stride: u64,
    pub(super) jumps: f32,
    /// When that arrived, in arrivals.
    pub(super) used: u64,
    /// Requests not dispatched, by arrival.
    pub(super) queued: List,
    pub(super) in_flight: u32,
    pub(super) outstanding: u32,
    /// When it had nothing outstanding any more.
    pub(super) idle_since: Time,
    /// When a request of it ended last.
    pub(super) ended: Time,
    /// Where what was dispatched last ends.
    pub(super) at: u64,
    /// How its requests follow each other.
    pub(super) next: Habit,
    /// Share of its requests that began where it was; and of its batches that did, or were of several requests that touch each other.
    pub(super) exact: f32,
    pub(super) dense: f32,
    /// How what it would leave behind comes, requests between its last and its next one, if that is more than what it left behind last
    /// without anything of it coming; and if it is not.
    pub(super) fills: [Habit; 2],
    pub(super) unfilled: u64,
    /// What it is about to leave behind, or left behind last, if nothing of it has come since, or only long after.
    pub(super) gap: Option<Gap>,
    /// Batches for which it is still taken for one that goes past what is others'.
    pub(super) past: u8,
    /// How far behind those were that had the slice in its place.
    pub(super) gave_way: u64,
    pub(super) op: Op,
    /// Whose its first request was.
    pub(super) app: AppId,
    /// The request by which the device last came here from another stream.
    pub(super) came_by: Slot,
    /// From how long that takes on it is the device's work, and the stream the next file, which lies beside the one before; infinite where it is
    /// none. In nanoseconds.
    pub(super) beside_ns: f32,
    /// How long such requests take, from dispatch to completion.
    pub(super) coming_ns: f32,
    /// The round in which it had its last slice.
    pub(super) round: u32,
    /// Whether it went on has been counted.
    pub(super) is_counted: bool,
    /// Lulls that were forgiven since it was in time.
    pub(super) forgiven: u8,
    /// It may be the next file after a long stream: that it goes on says nothing of what others begin.
    pub(super) is_successor: bool,
    /// It was waited for in vain since its last request, and counted as one that does not come; what was left of its slice then, in nanoseconds;
    /// and the share of those that were late, and came.
    pub(super) is_left: bool,
    pub(super) rest_ns: u64,
    pub(super) late: f32,
}

pub(super) const BLANK: Stream = Stream {
    key: 0,
    end: 0,
    began: 0,
    last: 0,
    descents: 0,
    run: 0,
    stride: 0,
    jumps: 0.0,
    used: 0,
    queued: List::new(),
    in_flight: 0,
    outstanding: 0,
    idle_since: Time::ZERO,
    ended: Time::ZERO,
    at: 0,
    next: Habit::NEW,
    exact: 1.0,
    dense: 0.0,
    fills: [Habit::NEW; 2],
    unfilled: 0,
    gap: None,
    past: 0,
    gave_way: u64::MAX,
    op: Op::Read,
    app: AppId(0),
    came_by: NIL,
    beside_ns: f32::INFINITY,
    coming_ns: 0.0,
    round: 0,
    is_counted: false,
    forgiven: 0,
    is_successor: false,
    is_left: false,
    rest_ns: 0,
    late: 0.0,
};

impl Stream {
    /// A request of it came so long after it had nothing outstanding any more. Whether it came by the stride.
    pub(super) fn goes_on(&mut self, think_ns: f32, offset: u64, config: &Anticipation) -> bool {
        let gain_ns = config.positioning_ns as f32;
        self.next.note(Some(think_ns.min(gain_ns * 4.0)), gain_ns);
        let share = |is: bool| if is { 1.0 } else { 0.0 };
        self.exact += NEW * (share(offset == self.end) - self.exact);
        let jumps = self.goes_by_stride(offset, config.near_bytes);
        let weight = if self.next.followed == 1 { 1.0 } else { NEW };
        self.jumps += weight * (share(jumps) - self.jumps);
        jumps
    }

    /// A request at `offset` is too far to be near, but where the stride says.
    fn goes_by_stride(&self, offset: u64, near_bytes: u64) -> bool {
        self.next_run() == Some(offset) && offset.abs_diff(self.end) > near_bytes
    }

    /// Where its next run begins, if it goes by strides.
    pub(super) fn next_run(&self) -> Option<u64> {
        self.run.checked_add(self.stride).filter(|_| self.stride > 0)
    }

    /// Its newest request. Of several programs that take turns it is not the last in the order of the file.
    pub(super) fn go_to(&mut self, request: &Request, near_bytes: u64) {
        if self.goes_by_stride(request.offset, near_bytes) {
            self.run = request.offset;
        } else if request.end().saturating_sub(self.run) >= near_bytes {
            self.stride = 0;
        }
        self.descents = if request.offset < self.last { self.descents.saturating_add(1) } else { 0 };
        let continues_downwards =
            request.end() == self.last && self.end.saturating_sub(request.end()) >= near_bytes / 2;
        self.last = request.offset;
        let is_down = self.descents >= DOWNWARDS || continues_downwards;
        self.end = if is_down { request.end() } else { self.end.max(request.end()) };
    }

    /// The device has gone with it from `offset` to `end`.
    pub(super) fn go_past(&mut self, now: Time, offset: u64, end: u64) {
        // In whichever slice: who falls behind while others have their turn is to be known, too.
        if self.at > 0 && offset > self.at {
            self.past = PAST + 1;
        }
        self.at = end;
        if let Some(gap) = self.gap.as_mut().filter(|gap| gap.passed.is_none()) {
            gap.passed = Some(now);
        }
    }

    /// A request has come, maybe one that was left behind, or would have been.
    pub(super) fn note_gap(&mut self, now: Time, offset: u64, gain_ns: f32) {
        let Some(gap) = self.gap.filter(|gap| (gap.from..gap.to).contains(&offset)) else { return };
        // It was waited for, and not for long enough.
        if gap.is_awaited && gap.passed.is_some() {
            self.gap = None;
            self.fills_of(gap).missed();
            return;
        }
        let think_ns = match gap.passed {
            None if self.in_flight > 0 => Some(0.0),
            None => Some(now.since(self.ended) as f32),
            // How long it would have had to be waited for is not known.
            Some(at) if now.since(at) as f32 <= gain_ns * 4.0 => None,
            Some(_) => return,
        };
        self.gap = None;
        self.fills_of(gap).note(think_ns.map(|think_ns| think_ns.min(gain_ns * 4.0)), gain_ns);
    }

    /// Until when to wait for what would be left behind if a request at `offset` went next.
    pub(super) fn waits_at(&mut self, offset: u64, config: &Anticipation) -> Option<Time> {
        if offset <= self.at || self.at == 0 {
            return None;
        }
        match &mut self.gap {
            Some(gap) if gap.passed.is_none() && gap.from == self.at => gap.to = offset,
            gap => {
                let new = Gap { from: self.at, to: offset, passed: None, is_awaited: false };
                if let Some(unfilled) = gap.replace(new) {
                    self.fills_of(unfilled).missed();
                    self.unfilled = unfilled.to - unfilled.from;
                }
            }
        }
        let (gap, in_flight, ended) = (self.gap?, self.in_flight, self.ended);
        let fills = self.fills_of(gap);
        if fills.followed == 0 || fills.in_time() < OFTEN || !fills.is_worth(config, fills.in_time()) {
            return None;
        }
        let until = if in_flight > 0 { Time(u64::MAX) } else { ended.after(fills.patience_ns(config)) };
        self.gap = Some(Gap { is_awaited: true, ..gap });
        Some(until)
    }

    fn fills_of(&mut self, gap: Gap) -> &mut Habit {
        &mut self.fills[usize::from(gap.to - gap.from <= self.unfilled)]
    }

    /// Waiting for its next request costs less than it saves, as far as is known: of a new one, what others did. Where most do not
    /// go on, what begins is not waited for, even if that paid: random requests that happen to be near each other would
    /// take the time of the others.
    pub(super) fn is_worth(&self, config: &Anticipation, others_go_on: f32) -> bool {
        let is_new = self.next.followed < FOLLOWED_MIN;
        if is_new && others_go_on < MOST {
            return false;
        }
        let in_time = if is_new { others_go_on } else { self.next.in_time() * (1.0 - self.jumps) };
        self.next.is_worth(config, in_time) && !self.is_absorbed(config)
    }

    /// A request at `offset` is where it began, and it has been quiet for longer than anybody waits: the file is read once more.
    pub(super) fn begins_again(&self, now: Time, offset: u64, config: &Anticipation) -> bool {
        let is_quiet = self.outstanding == 0 && now.since(self.idle_since) > config.positioning_ns;
        is_quiet && offset == self.began && self.has_gone_on()
    }

    /// It has covered what is near.
    pub(super) fn is_long(&self, config: &Anticipation) -> bool {
        self.end.abs_diff(self.began) >= config.near_bytes
    }

    /// Whether what begins in a file, or a place, may be what it goes on with. Where it moves about in one file, that is what takes the time: then it
    /// is no stream.
    pub(super) fn may_go_on_in(&self, key: u64, config: &Anticipation) -> bool {
        self.key != key || self.is_long(config)
    }

    /// Its newest request is elsewhere than where it began.
    pub(super) fn has_gone_on(&self) -> bool {
        self.last != self.began
    }

    /// One program has it, as far as is known: it goes on where it was, and has left nothing behind lately.
    pub(super) fn is_of_one(&self) -> bool {
        self.exact >= 0.5 && self.past == 0
    }

    /// Several programs have it by turns: what they ask for touches, but comes in no order. Who goes on where he was is one program, and what
    /// does not touch is nobody's turn.
    pub(super) fn is_shared(&self) -> bool {
        self.exact < 0.5 && self.dense >= 0.5
    }

    /// While it catches up with others it is waited for also if it goes by strides, and saves no move by itself: as long as it is behind,
    /// so are all that take turns with it.
    pub(super) fn may_catch_up(&self, config: &Anticipation, others_go_on: f32) -> bool {
        let comes = || self.next.followed >= FOLLOWED_MIN && self.next.is_worth(config, self.next.in_time());
        self.is_worth(config, others_go_on) || self.stride > 0 && comes() && !self.is_absorbed(config)
    }

    /// It is served from memory: coming to it from another stream moves nothing.
    pub(super) fn is_absorbed(&self, config: &Anticipation) -> bool {
        self.coming_ns < config.positioning_ns as f32 / 8.0
    }
}
