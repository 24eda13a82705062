//! What the council keeps of a node from one announcement to the next.

use sluice_adapt::council::Situation;
use sluice_core::Time;

use crate::seen::Seen;
use crate::steady::Name;

/// With fewer requests, or a shorter look, nothing is said.
const REQUESTS_MIN: u64 = 16;
const PERIOD_MIN_NS: u64 = 100_000_000;
/// Announcements after a change that say nothing of the new arm, at most.
const SETTLING_MAX: u32 = 10;
/// Who says nothing for so many rounds may be kept waiting by others; after that it has nothing to do.
const WAITING_MAX: u32 = 5;

/// A node that has gone over to another arm, while that says nothing of it: until as many requests have come as were under way (Little
/// 1961). Before, what it serves is what the arm before had put in order, or had not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settling {
    left: f64,
    rounds: u32,
}

impl Settling {
    /// It has gone over, with what it announces now.
    pub(crate) fn begun(seen: &Seen) -> Settling {
        Settling { left: seen.outstanding - seen.requests() as f64, rounds: 1 }
    }

    /// With its next announcement, if that does not say anything of the new arm, either.
    pub(crate) fn next(self, seen: &Seen) -> Option<Settling> {
        let lasts = self.left > 0.0 && self.rounds < SETTLING_MAX;
        lasts.then(|| Settling { left: self.left - seen.requests() as f64, rounds: self.rounds + 1 })
    }
}

/// A forwarding node, as the council knows it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// What it has announced in this round.
    pub(crate) seen: Option<Seen>,
    /// The last one that said something, and rounds since.
    pub(crate) before: Option<Seen>,
    pub(crate) waited: u32,
    pub(crate) vote: Option<usize>,
    /// What it voted in, and the share of that second in which something was under way.
    pub(crate) situation: Option<Situation>,
    pub(crate) busy: f64,
    pub(crate) name: Name,
    /// The arm that was in force in what it announced last, if it has said anything yet, and if that is one; while it still serves what was
    /// under way under another one.
    pub(crate) under: Option<Option<usize>>,
    pub(crate) settles: Option<Settling>,
    /// When it spoke last.
    pub(crate) heard: Time,
}

impl Member {
    /// One that has not announced anything yet.
    pub(crate) fn new(now: Time) -> Member {
        Member {
            seen: None,
            before: None,
            waited: 0,
            vote: None,
            situation: None,
            busy: 1.0,
            name: Name::default(),
            under: None,
            settles: None,
            heard: now,
        }
    }

    /// It has announced what was in force: whether what it served says nothing of that yet.
    pub(crate) fn settles_under(&mut self, arm: Option<usize>, seen: &Seen) -> bool {
        self.settles = if self.under.is_some_and(|before| before != arm) {
            Some(Settling::begun(seen))
        } else {
            self.settles.and_then(|settling| settling.next(seen))
        };
        self.under = Some(arm);
        self.settles.is_some()
    }

    /// What it has announced, if that says something.
    pub(crate) fn says(&self) -> Option<&Seen> {
        let says =
            |seen: &&Seen| seen.requests() >= REQUESTS_MIN && seen.period_ns >= PERIOD_MIN_NS && seen.rate().is_some();
        self.seen.as_ref().filter(says)
    }

    /// What it was asked for, as far as is known: what it does now, or what it did shortly before it began to wait for others.
    pub(crate) fn asked(&self) -> Option<&Seen> {
        self.says().or_else(|| self.before.as_ref().filter(|_| self.waited < WAITING_MAX))
    }
}
