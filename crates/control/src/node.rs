//! A node's side as a state machine: when to connect, what to announce, which decisions to carry out.
//!
//! Without a coordinator everything stays as it is. Whoever cannot reach it tries again after ever longer, random pauses, so that
//! a coordinator that comes back is not met by all nodes at once.

use std::collections::BTreeMap;

use sluice_adapt::orchestrator::Report;
use sluice_core::Time;

use crate::clock::{Estimate, Offset};
use crate::locality;
use crate::role::Action;
use crate::seen::Seen;
use crate::wire::{self, from_node::What};

/// Announcements come where the coordinator's clock is a multiple of this, so that it has those of all at a time.
const PERIOD_NS: u64 = 1_000_000_000;
/// A coordinator that answers nothing for so long is as good as none.
const SILENCE_NS: u64 = 5_000_000_000;
/// Pauses between attempts to connect: up to the first, then each up to twice the one before, up to the last.
const PAUSE_MIN_NS: u64 = 200_000_000;
const PAUSE_MAX_NS: u64 = 10_000_000_000;

/// What is to be done now.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// Nothing before [`Node::next`].
    Wait,
    /// Connect, and say what came of it.
    Connect,
    /// Nobody is there any more: the connection is to be closed. [`Node::disconnected`] need not be called.
    Disconnect,
    /// [`Node::announcement`] is to be sent.
    Announce,
    /// [`Node::report`] is to be sent.
    Report,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nobody until then.
    Pause(Time),
    Connecting,
    /// When it was heard last.
    Connected(Time),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
    incarnation: u64,
    sequence: u64,
    state: State,
    announces_at: Time,
    /// How often the coordinator wants to be told of locality, in nanoseconds; 0: not at all. And when next.
    reports_ns: u64,
    reports_at: Time,
    /// Announcements are to have what patterns are recognised by.
    records: bool,
    pause_ns: u64,
    random: u64,
    offset: Offset,
    /// The coordinator that is listened to, the first message that was sent over the connection that stands, and whether this
    /// coordinator has answered one of those.
    coordinator: u64,
    first: u64,
    is_confirmed: bool,
    /// For each role: coordinator and number of the newest decision that was given out to be carried out.
    newest: BTreeMap<i32, (u64, u64)>,
}

impl Node {
    /// One that has connected nowhere yet. `name` names it among all of its coordinator; `incarnation` is larger than any it had before,
    /// like the time since 1970. `seed`: of the random pauses.
    #[must_use]
    pub fn new(name: &str, incarnation: u64, seed: u64, now: Time) -> Node {
        Node {
            name: name.to_owned(),
            incarnation,
            sequence: 0,
            state: State::Pause(now),
            announces_at: now,
            reports_ns: 0,
            reports_at: now,
            records: false,
            pause_ns: PAUSE_MIN_NS,
            random: seed,
            offset: Offset::default(),
            coordinator: 0,
            first: 1,
            is_confirmed: false,
            newest: BTreeMap::new(),
        }
    }

    /// From 0 to below 1 (SplitMix64).
    fn share(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// When [`Node::poll`] is to be called next; `None`: not before a connection stands or has failed.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        match self.state {
            State::Pause(until) => Some(until),
            State::Connecting => None,
            State::Connected(heard) => {
                let reports_at = if self.reports_ns == 0 { self.announces_at } else { self.reports_at };
                Some(self.announces_at.min(reports_at).min(heard.after(SILENCE_NS)))
            }
        }
    }

    /// What is to be done. Times are those of the scheduler's clock.
    pub fn poll(&mut self, now: Time) -> Step {
        match self.state {
            State::Pause(until) if now >= until => {
                self.state = State::Connecting;
                Step::Connect
            }
            State::Connected(heard) if now >= heard.after(SILENCE_NS) => {
                self.disconnected(now);
                Step::Disconnect
            }
            State::Connected(_) if now >= self.announces_at => {
                self.announces_at = self.next_whole(now, PERIOD_NS);
                Step::Announce
            }
            State::Connected(_) if self.reports_ns > 0 && now >= self.reports_at => {
                self.reports_at = self.next_whole(now, self.reports_ns);
                Step::Report
            }
            _ => Step::Wait,
        }
    }

    /// When a period begins by the coordinator's clock, or by the own one.
    fn next_whole(&self, now: Time, period_ns: u64) -> Time {
        let offset = self.offset.estimate().map_or(0, |estimate| estimate.offset_ns);
        let there = i128::from(now.0) + i128::from(offset);
        let left = period_ns - there.rem_euclid(i128::from(period_ns)) as u64;
        // One that is due in a moment would be the same again.
        now.after(if left < period_ns / 4 { left + period_ns } else { left })
    }

    /// A connection stands: announcements go over it from now on.
    pub fn connected(&mut self, now: Time) {
        self.state = State::Connected(now);
        self.announces_at = now;
        (self.first, self.is_confirmed) = (self.sequence + 1, false);
    }

    /// A connection could not be made, or has ended.
    pub fn disconnected(&mut self, now: Time) {
        // "Full jitter", but never at once.
        let pause_ns = (self.pause_ns as f64 * (0.25 + 0.75 * self.share())) as u64;
        self.state = State::Pause(now.after(pause_ns));
        self.pause_ns = (self.pause_ns * 2).min(PAUSE_MAX_NS);
    }

    /// Whether a coordinator has answered lately.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected(_)) && self.pause_ns == PAUSE_MIN_NS
    }

    /// What is to be sent. `seen`: since the last one.
    pub fn announcement(&mut self, now: Time, seen: &Seen) -> wire::FromNode {
        let estimate = self.offset.estimate();
        let mark = |(role, (incarnation, number)): (&i32, &(u64, u64))| wire::Mark {
            role: *role,
            incarnation: *incarnation,
            number: *number,
        };
        let said = wire::Announcement {
            offset_ns: estimate.map_or(0, |estimate| estimate.offset_ns),
            offset_error_ns: estimate.map_or(0, |estimate| estimate.error_ns.max(1)),
            carried_out: self.newest.iter().map(mark).collect(),
            ..seen.to_wire()
        };
        self.message(now, What::Announcement(said))
    }

    /// What is to be sent of the locality since the last one; whose report it is, and its number, go with the message.
    pub fn report(&mut self, now: Time, report: &Report) -> wire::FromNode {
        self.message(now, What::Locality(locality::to_wire(report)))
    }

    /// Whether the coordinator wants to be told of locality.
    #[must_use]
    pub fn reports(&self) -> bool {
        self.reports_ns > 0
    }

    /// Whether the coordinator wants to be told what patterns are recognised by.
    #[must_use]
    pub fn records(&self) -> bool {
        self.records
    }

    /// What is to be sent at the end.
    pub fn leave(&mut self, now: Time) -> wire::FromNode {
        self.message(now, What::Leave(wire::Leave {}))
    }

    fn message(&mut self, now: Time, what: What) -> wire::FromNode {
        self.sequence += 1;
        wire::FromNode {
            name: self.name.clone(),
            incarnation: self.incarnation,
            sequence: self.sequence,
            sent_ns: now.0,
            what: Some(what),
        }
    }

    /// Whether a message is of the coordinator that is there now. Another one than before shows itself by an answer to something that
    /// was sent over the connection that stands, which no past one can give. A larger incarnation is a later coordinator; one whose
    /// clock went back and which has lost its state has a smaller one, and is believed if nobody else has answered here before.
    fn listens_to(&mut self, message: &wire::ToNode) -> bool {
        let answers = message.clock.as_ref().is_some_and(|clock| clock.sequence >= self.first);
        if message.incarnation != self.coordinator {
            if !answers || (message.incarnation < self.coordinator && self.is_confirmed) {
                return false;
            }
            self.coordinator = message.incarnation;
            self.offset.forget();
            self.newest.clear();
            // It says so itself, if it wants that.
            self.reports_ns = 0;
        }
        self.is_confirmed |= answers;
        true
    }

    /// A message of the coordinator's has come. What is to be carried out now: each decision once, in order, and none of a
    /// coordinator that is there no more.
    pub fn received(&mut self, now: Time, message: &wire::ToNode) -> Vec<Action> {
        if message.node_incarnation != self.incarnation || !self.listens_to(message) {
            return Vec::new();
        }
        if let State::Connected(heard) = &mut self.state {
            *heard = now.max(*heard);
            self.pause_ns = PAUSE_MIN_NS;
        }
        self.records = message.records;
        if let Some(clock) = &message.clock {
            let was_unknown = self.offset.estimate().is_none();
            self.offset.answered(clock, now);
            if was_unknown {
                self.announces_at = self.next_whole(now, PERIOD_NS);
            }
        }
        let mut actions = Vec::new();
        for decision in &message.decisions {
            let Some(mark) = decision.mark.filter(|mark| mark.incarnation == message.incarnation) else { continue };
            let newest = self.newest.get(&mark.role).copied().unwrap_or_default();
            if (mark.incarnation, mark.number) <= newest {
                continue;
            }
            let action = match &decision.action {
                Some(wire::decision::Action::Policy(policy)) => {
                    Action::Policy { name: policy.name.clone(), window_ns: policy.window_ns }
                }
                Some(wire::decision::Action::Gate(gate)) => {
                    let Some((window_ns, plan)) = locality::gate_of(gate) else { continue };
                    if std::mem::replace(&mut self.reports_ns, window_ns) != window_ns {
                        self.reports_at = self.next_whole(now, window_ns);
                    }
                    Action::Gate { window_ns, plan }
                }
                // Of a later version.
                None => continue,
            };
            self.newest.insert(mark.role, (mark.incarnation, mark.number));
            actions.push(action);
        }
        actions
    }

    /// The coordinator's clock minus the own one.
    #[must_use]
    pub fn offset(&self) -> Option<Estimate> {
        self.offset.estimate()
    }

    /// For each role coordinator and number of the newest decision.
    #[must_use]
    pub fn newest(&self) -> &BTreeMap<i32, (u64, u64)> {
        &self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(incarnation: u64, number: u64) -> wire::ToNode {
        let policy = wire::Policy { name: "twins".into(), window_ns: number };
        wire::ToNode {
            incarnation,
            node_incarnation: 9,
            decisions: vec![wire::Decision {
                mark: Some(wire::Mark { role: 1, incarnation, number }),
                action: Some(wire::decision::Action::Policy(policy)),
            }],
            // To whatever was sent last.
            clock: Some(wire::Clock { sequence: u64::MAX, ..wire::Clock::default() }),
            records: false,
        }
    }

    #[test]
    fn a_coordinator_whose_clock_went_back_is_listened_to_by_those_who_connect_to_it() {
        let mut node = Node::new("n", 9, 1, Time(0));
        let seen = Seen::nothing(crate::Kind::Forwarder, 4, crate::InForce::default());
        let to = |incarnation, number, sequence| wire::ToNode {
            clock: Some(wire::Clock { sequence, ..wire::Clock::default() }),
            ..answer(incarnation, number)
        };
        node.connected(Time(0));
        node.announcement(Time(0), &seen);
        assert_eq!(node.received(Time(1), &to(8, 4, 1)).len(), 1);
        assert_eq!(node.received(Time(1), &to(5, 9, 1)).len(), 0, "another one has answered here");
        node.connected(Time(2));
        node.announcement(Time(2), &seen);
        assert_eq!(node.received(Time(3), &to(5, 1, 1)).len(), 0, "that was said to somebody else");
        assert_eq!(node.received(Time(3), &wire::ToNode { clock: None, ..answer(5, 1) }).len(), 0);
        assert_eq!(node.received(Time(3), &to(5, 1, 2)).len(), 1);
        assert_eq!(node.received(Time(4), &to(8, 5, 1)).len(), 0, "late, of the one before");
        assert_eq!(node.received(Time(4), &to(5, 2, 2)).len(), 1);
    }

    #[test]
    fn every_decision_is_carried_out_once_and_none_of_the_past() {
        let mut node = Node::new("n", 9, 1, Time(0));
        let mut count = |incarnation, number| node.received(Time(1), &answer(incarnation, number)).len();
        assert_eq!([count(5, 1), count(5, 1), count(5, 3), count(5, 2)], [1, 0, 1, 0]);
        assert_eq!([count(6, 1), count(5, 9), count(6, 1), count(6, 2)], [1, 0, 0, 1]);
        let other = wire::ToNode { node_incarnation: 8, ..answer(7, 1) };
        assert_eq!(node.received(Time(1), &other), []);
    }

    #[test]
    fn pauses_grow_are_random_and_begin_anew_after_an_answer() {
        let pauses = |seed| {
            let (mut node, mut now, mut pauses) = (Node::new("n", 9, seed, Time(0)), Time(0), Vec::new());
            for _ in 0..12 {
                assert_eq!(node.poll(now), Step::Connect);
                assert_eq!(node.poll(now), Step::Wait);
                node.disconnected(now);
                let next = node.next().unwrap();
                pauses.push(next.since(now));
                now = next;
            }
            node.poll(now);
            node.connected(now);
            assert!(!node.is_connected(), "nothing was heard yet");
            node.received(now, &answer(5, 1));
            assert!(node.is_connected());
            node.disconnected(now);
            pauses.push(node.next().unwrap().since(now));
            pauses
        };
        let all = pauses(1);
        assert_ne!(all, pauses(2));
        assert!(all[0] < PAUSE_MIN_NS && all[11] > PAUSE_MAX_NS / 4 && all[11] <= PAUSE_MAX_NS, "{all:?}");
        assert!(all[12] < PAUSE_MIN_NS);
    }

    #[test]
    fn it_announces_at_the_coordinators_seconds_and_gives_up_a_silent_one() {
        let mut node = Node::new("n", 9, 1, Time(0));
        node.poll(Time(0));
        node.connected(Time(100));
        assert_eq!(node.poll(Time(100)), Step::Announce);
        let clock = wire::Clock { sequence: 1, sent_ns: 100, received_ns: 400_000_100, answered_ns: 400_000_100 };
        node.received(Time(100), &wire::ToNode { clock: Some(clock), ..answer(5, 1) });
        assert_eq!(node.offset(), Some(Estimate { offset_ns: 400_000_000, error_ns: 0 }));
        assert_eq!(node.next(), Some(Time(600_000_000)));
        assert_eq!(node.poll(Time(600_000_000)), Step::Announce);
        assert_eq!(node.next(), Some(Time(1_600_000_000)));
        assert_eq!(node.poll(Time(100 + SILENCE_NS)), Step::Disconnect);
        assert!(node.next().unwrap() > Time(100 + SILENCE_NS));
    }
}
