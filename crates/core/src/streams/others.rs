//! Requests that belong to no stream worth waiting for: random ones, files of one request, what memory takes or has.

use super::Anticipation;
use super::habit::{Habit, NEW};
use crate::list::{Links, List, NIL};
use crate::queues::Slot;
use crate::request::Time;

/// All of them together: they have their turn between slices, as if they were one more stream.
#[derive(Debug)]
pub(super) struct Others {
    /// Those that are not dispatched, by arrival.
    queued: List,
    links: Links,
    outstanding: u32,
    /// The stream of the newest one ([`NIL`]: none).
    newest_of: u32,
    /// When the last of them was served.
    last: Option<Time>,
    /// They have their turn until then.
    pub(super) turn_until: Time,
    /// In their turn, when none is outstanding: how the next one comes.
    next: Habit,
    /// The device is kept for that.
    is_awaited: bool,
    /// It was, for as long as that pays, and it has not come since.
    is_given_up: bool,
    /// How long they take, from dispatch to completion.
    takes_ns: f32,
}

impl Others {
    pub(super) fn new(capacity: u32, config: &Anticipation) -> Others {
        Others {
            queued: List::new(),
            links: Links::new(capacity),
            outstanding: 0,
            newest_of: NIL,
            last: None,
            turn_until: Time::ZERO,
            next: Habit::NEW,
            is_awaited: false,
            is_given_up: false,
            takes_ns: config.positioning_ns as f32,
        }
    }

    /// Their turn is over, and nobody is waited for.
    pub(super) fn begin_anew(&mut self) {
        (self.turn_until, self.last) = (Time::ZERO, None);
        (self.is_awaited, self.is_given_up, self.newest_of) = (false, false, NIL);
    }

    pub(super) fn are_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// One of this stream may go from now on.
    pub(super) fn show(&mut self, now: Time, slot: Slot, stream: u32, config: &Anticipation) {
        let gain = config.positioning_ns as f32;
        // Who comes only when a stream has gone on instead has been counted as missing.
        let follows = self.outstanding == 0 && now < self.turn_until && !self.is_given_up;
        if let Some(last) = self.last.filter(|_| follows) {
            self.next.note(Some((now.since(last) as f32).min(4.0 * gain)), gain);
        }
        (self.is_awaited, self.is_given_up, self.newest_of) = (false, false, stream);
        self.outstanding += 1;
        self.queued.push_back(&mut self.links, slot);
    }

    /// One that was not dispatched may not go any more.
    pub(super) fn hide(&mut self, slot: Slot) {
        self.outstanding -= 1;
        self.queued.remove(&mut self.links, slot);
    }

    pub(super) fn dispatched(&mut self, slot: Slot) {
        self.queued.remove(&mut self.links, slot);
    }

    /// One has ended, `service_ns` after it was dispatched, or was cancelled before it was.
    pub(super) fn ended(&mut self, now: Time, slot: Slot, service_ns: Option<u64>) {
        match service_ns {
            Some(ns) => {
                self.outstanding -= 1;
                self.takes_ns += NEW * (ns as f32 - self.takes_ns);
                self.last = Some(now);
            }
            None => self.hide(slot),
        }
    }

    /// There are such requests, or there were a moment ago.
    pub(super) fn wait(&self, now: Time, config: &Anticipation) -> bool {
        self.outstanding > 0 || self.last.is_some_and(|last| now.since(last) < config.positioning_ns)
    }

    /// The oldest of them, if it is their turn.
    pub(super) fn first_in_turn(&self, now: Time) -> Option<Slot> {
        self.queued.front().filter(|_| now < self.turn_until)
    }

    /// In their turn: until when the device is kept for them though none is queued. Who has one request at a time would have its turn for the first
    /// one only, as a stream has more at the device by the time it has the next. Not for what memory serves: that and a stream go on together. Nor
    /// for the first requests of the stream that is `served`, of which it was not known yet that it is one.
    pub(super) fn keep_until(&mut self, now: Time, served: u32, config: &Anticipation) -> Option<Time> {
        let moves = self.takes_ns >= config.positioning_ns as f32 / 8.0;
        if now >= self.turn_until || !moves || self.newest_of == served {
            return None;
        }
        if self.outstanding > 0 {
            return Some(self.turn_until);
        }
        let until = self.last?.after(self.next.patience_ns(config)).min(self.turn_until);
        if now >= until {
            if std::mem::take(&mut self.is_awaited) {
                self.is_given_up = true;
                self.next.missed();
            }
            return None;
        }
        self.is_awaited = self.next.is_worth(config, self.next.in_time());
        self.is_awaited.then_some(until)
    }
}
