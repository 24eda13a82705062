//! Requests that belong to no stream worth waiting for: random ones, files of one request, what memory takes or has.

use super::Anticipation;
use super::habit::{Habit, NEW};
use crate::list::{Links, List};
use crate::queues::Slot;
use crate::request::Time;

/// All of them together: they have their turn between slices, as if they were one more stream.
#[derive(Debug)]
pub(super) struct Others {
    /// Those that are not dispatched, by arrival.
    queued: List,
    links: Links,
    outstanding: u32,
    /// When the last of them ended.
    last: Option<Time>,
    /// They have their turn until then.
    pub(super) turn_until: Time,
    /// In their turn, when none is outstanding: how the next one comes.
    next: Habit,
    /// The device is kept for that.
    is_awaited: bool,
    /// How long they take, from dispatch to completion.
    takes_ns: f32,
}

impl Others {
    pub(super) fn new(capacity: u32, config: &Anticipation) -> Others {
        Others {
            queued: List::new(),
            links: Links::new(capacity),
            outstanding: 0,
            last: None,
            turn_until: Time::ZERO,
            next: Habit::NEW,
            is_awaited: false,
            takes_ns: config.positioning_ns as f32,
        }
    }

    /// Their turn is over, and nobody is waited for.
    pub(super) fn begin_anew(&mut self) {
        (self.turn_until, self.last, self.is_awaited) = (Time::ZERO, None, false);
    }

    pub(super) fn are_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// One that may go from now on.
    pub(super) fn show(&mut self, now: Time, slot: Slot, config: &Anticipation) {
        let gain = config.positioning_ns as f32;
        let last = self.last.filter(|_| self.outstanding == 0 && now < self.turn_until);
        if let Some(last) = last {
            self.next.note(Some((now.since(last) as f32).min(4.0 * gain)), gain);
        }
        self.is_awaited = false;
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
            }
            None => self.hide(slot),
        }
        self.last = Some(now);
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
    /// one only, as a stream has more at the device by the time it has the next. Not for what memory serves: that and a stream go on together.
    pub(super) fn keep_until(&mut self, now: Time, config: &Anticipation) -> Option<Time> {
        let moves = self.takes_ns >= config.positioning_ns as f32 / 8.0;
        if now >= self.turn_until || !moves {
            return None;
        }
        if self.outstanding > 0 {
            return Some(self.turn_until);
        }
        let until = self.last?.after(self.next.patience_ns(config)).min(self.turn_until);
        if now >= until {
            if std::mem::take(&mut self.is_awaited) {
                self.next.missed();
            }
            return None;
        }
        self.is_awaited = self.next.is_worth(config, self.next.in_time());
        self.is_awaited.then_some(until)
    }
}
