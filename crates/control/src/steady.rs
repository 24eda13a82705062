//! What a situation is called, so that neither chance nor what was decided makes it another one.
//!
//! A node whose reads and writes are as many, or whose sizes lie between two powers of 2, would be in one situation in this second
//! and in another one in the next, and what is learned would be divided between them. And how many requests are under way depends
//! on the arm: windows keep them longer, HBRR answers sooner. If that alone made another situation, each arm would be known in the
//! situations that it makes itself, and be tried again and again in the others.
//!
//! So a node keeps its name until it clearly does something else twice running, and a load until the *same* arm has clearly more
//! or fewer requests under way than it had, twice running. The first of the two seconds teaches nothing. What all arms have under way
//! may become less or more little by little: once HBRR has put processes in step, that stays so for a while.
//!
//! And what a node does is an arm's doing only when the requests that came under the arm before have been served ([`Settling`]).
//!
//! No clock and no randomness: the same announcements give the same names.

use sluice_adapt::council::{Op, Pattern};

use crate::council::{ARMS, Classify};
use crate::seen::Seen;

/// Sizes and counts are others if they are so many times as large, or as small: more than the half power of 2 of a class.
const OTHER: f64 = 1.7;
/// A load, of the same arm, and of one that was not seen in it.
const LOAD: f64 = 2.0;
const LOAD_ANY: f64 = 16.0;
/// The majority is another one if the operation has a smaller share of the requests.
const MINORITY: f64 = 0.4;
/// The share of what is under way with all arms that each observation moves it by.
const FOLLOWS: f64 = 0.5;
/// Rounds after which a node has gone over to another arm, whatever is still queued.
const SETTLING_MAX: u32 = 10;
/// Observations that say how much is under way with an arm.
const SETTLED: u32 = 4;

fn differs(a: f64, b: f64, times: f64) -> bool {
    let (a, b) = (a.max(1.0), b.max(1.0));
    a > b * times || b > a * times
}

/// What a node does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Doing {
    pub(crate) pattern: Pattern,
    pub(crate) op: Op,
    /// Mean size of a request.
    pub(crate) size: f64,
}

impl Doing {
    fn of(seen: &Seen, classify: &Classify) -> Option<Doing> {
        let majority = seen.majority();
        let op = if majority == sluice_core::Op::Read { Op::Read } else { Op::Write };
        Some(Doing { pattern: classify(seen)?, op, size: seen.ops[majority.index()].size_mean })
    }
}

/// What a node does, as it is called.
#[derive(Clone, Debug, Default)]
pub(crate) struct Name {
    doing: Option<Doing>,
    /// It did something else last time.
    differed: bool,
}

impl Name {
    /// What it is called now, and whether it did that.
    pub(crate) fn see(&mut self, seen: &Seen, classify: &Classify) -> Option<(Doing, bool)> {
        let now = Doing::of(seen, classify)?;
        let named = *self.doing.get_or_insert(now);
        let differs = is_other(&named, &now, seen);
        if differs && self.differed {
            (self.doing, self.differed) = (Some(now), false);
            return Some((now, true));
        }
        self.differed = differs;
        Some((named, !differs))
    }
}

fn is_other(named: &Doing, now: &Doing, seen: &Seen) -> bool {
    if named.op != now.op {
        let of = if named.op == Op::Read { sluice_core::Op::Read } else { sluice_core::Op::Write };
        return (seen.ops[of.index()].requests as f64) < MINORITY * seen.requests() as f64;
    }
    named.pattern != now.pattern || differs(named.size, now.size, OTHER)
}

/// How much is asked of all nodes together, as it is called.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Nodes, and requests under way; 0 nodes: nothing was seen.
    nodes: f64,
    under_way: f64,
    /// Mean of the first observations with each arm over `scale`, and their number.
    by_arm: [(f64, u32); ARMS.len()],
    /// What all arms have under way of what they usually have: less where one has put processes in step, which stays so for a while
    /// under the others. It moves slowly; what is asked for jumps.
    scale: f64,
    differed: bool,
}

impl Default for Load {
    fn default() -> Load {
        Load { nodes: 0.0, under_way: 0.0, by_arm: [(0.0, 0); ARMS.len()], scale: 1.0, differed: false }
    }
}

impl Load {
    /// So many nodes have so much under way, with an arm (`None`: with several). Whether that is as it was.
    pub(crate) fn see(&mut self, arm: Option<usize>, nodes: u64, under_way: f64) -> bool {
        let nodes = nodes as f64;
        let differs = match arm.map(|arm| self.by_arm[arm]) {
            Some((usual, 1..)) => differs(usual * self.scale, under_way, LOAD),
            _ => differs(self.under_way, under_way, LOAD_ANY),
        } || !(LOAD_ANY.recip()..=LOAD_ANY).contains(&self.scale)
            || differs(self.nodes, nodes, OTHER);
        if self.nodes == 0.0 || (differs && self.differed) {
            *self = Load { nodes, under_way, ..Load::default() };
        } else if differs {
            self.differed = true;
            return false;
        }
        self.differed = false;
        let Some((usual, times)) = arm.map(|arm| &mut self.by_arm[arm]) else { return true };
        let under_way = under_way.max(1.0);
        if *times > 0 {
            self.scale *= (under_way / (*usual * self.scale)).powf(FOLLOWS);
        }
        if *times < SETTLED {
            *times += 1;
            *usual += (under_way / self.scale - *usual) / f64::from(*times);
        }
        true
    }

    /// Nodes and requests under way.
    pub(crate) fn named(&self) -> (u64, u64) {
        (self.nodes as u64, self.under_way as u64)
    }
}

/// Whether a node still serves what came under the arm before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settling {
    /// Requests under way in what it announced last.
    waiting: f64,
    /// Of those that were under way when it went over, so many have to be served yet, and are waited for so many rounds at most.
    left: f64,
    rounds: u32,
    is_on: bool,
}

impl Settling {
    /// It has announced this, and may have gone over to another arm since the last time. As many requests as were under way then
    /// have to be served first: so long each of them stays (J. D. C. Little 1961). The round in which the last of them are served is not
    /// yet the new arm's.
    pub(crate) fn see(&mut self, seen: &Seen, has_gone_over: bool) {
        if has_gone_over {
            (self.left, self.rounds) = (self.waiting, SETTLING_MAX);
        }
        self.is_on = has_gone_over || (self.left > 0.0 && self.rounds > 0);
        self.left -= seen.requests() as f64;
        self.rounds = self.rounds.saturating_sub(1);
        self.waiting = seen.outstanding;
    }

    pub(crate) fn is_on(self) -> bool {
        self.is_on
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::OpFeatures;

    use super::*;
    use crate::council::by_node;
    use crate::seen::{InForce, Kind};

    fn seen(reads: u64, writes: u64, size: u32) -> Seen {
        let mut seen = Seen::nothing(Kind::Forwarder, 4, InForce::default());
        let op = |requests| OpFeatures { requests, size_mean: size.into(), ..OpFeatures::default() };
        (seen.ops, seen.pattern) = ([op(reads), op(writes)], Some(Pattern::SharedStrided));
        seen
    }

    #[test]
    fn a_node_keeps_its_name_until_it_clearly_does_something_else_twice() {
        let classify: Classify = Box::new(by_node);
        let mut name = Name::default();
        let mut see = |reads, writes, size| {
            let (doing, does_it) = name.see(&seen(reads, writes, size), &classify).unwrap();
            (doing.op, doing.size as u32, does_it)
        };
        assert_eq!(see(100, 90, 46_000), (Op::Read, 46_000, true));
        // A little more of the other one, and sizes at the limit of two classes.
        assert_eq!(see(90, 100, 47_000), (Op::Read, 46_000, true));
        assert_eq!(see(100, 90, 47_000), (Op::Read, 46_000, true));
        assert_eq!(see(10, 100, 46_000), (Op::Read, 46_000, false));
        assert_eq!(see(100, 90, 46_000), (Op::Read, 46_000, true));
        assert_eq!(see(10, 100, 46_000), (Op::Read, 46_000, false));
        assert_eq!(see(10, 100, 46_000), (Op::Write, 46_000, true));
        assert_eq!(see(10, 100, 256_000), (Op::Write, 46_000, false));
        assert_eq!(see(10, 100, 256_000), (Op::Write, 256_000, true));
    }

    #[test]
    fn a_load_is_another_one_when_the_same_arm_shows_it_twice() {
        let mut load = Load::default();
        assert!(load.see(Some(7), 4, 10.0));
        assert!(load.see(Some(6), 4, 60.0), "windows keep requests");
        assert!(load.see(Some(7), 4, 12.0) && load.see(Some(6), 4, 50.0));
        assert_eq!(load.named(), (4, 10));
        assert!(!load.see(Some(7), 4, 60.0));
        assert!(load.see(Some(7), 4, 11.0), "once is chance");
        assert!(!load.see(Some(7), 4, 60.0) && load.see(Some(7), 4, 60.0));
        assert_eq!(load.named(), (4, 60));
        assert!(!load.see(Some(6), 1, 60.0) && load.see(Some(6), 1, 60.0), "fewer nodes");
        assert_eq!(load.named(), (1, 60));
    }

    #[test]
    fn what_becomes_less_little_by_little_under_all_arms_is_the_same_load() {
        let mut load = Load::default();
        // As measured of strided reads: after HBRR (8) the others have less under way, too, and HBRR itself when it comes again.
        let course = [
            (7, 44.0),
            (0, 48.7),
            (0, 40.5),
            (7, 48.0),
            (8, 37.4),
            (8, 31.8),
            (6, 30.0),
            (6, 28.9),
            (6, 22.2),
            (4, 20.8),
            (4, 17.4),
            (5, 14.9),
            (5, 14.3),
            (8, 13.8),
            (8, 13.7),
            (7, 13.8),
            (7, 13.7),
        ];
        assert!(course.iter().all(|&(arm, under_way)| load.see(Some(arm), 8, under_way * 8.0)));
        assert_eq!(load.named(), (8, 352));
        // What is asked for jumps, and then it is another load.
        assert!(!load.see(Some(7), 8, 300.0) && load.see(Some(7), 8, 300.0));
        assert_eq!(load.named(), (8, 300));
        // It cannot become any other load little by little.
        let mut under_way = 300.0;
        for _ in 0..40 {
            under_way *= 1.2;
            load.see(Some(7), 8, under_way);
        }
        assert!(load.named().1 > 4_000, "{load:?}");
    }

    #[test]
    fn a_node_has_gone_over_when_what_was_under_way_is_served() {
        let (mut settling, mut seen) = (Settling::default(), seen(40, 0, 256 << 10));
        let mut see = |outstanding: f64, has_gone_over: bool| {
            seen.outstanding = outstanding;
            settling.see(&seen, has_gone_over);
            settling.is_on()
        };
        assert!(!see(10.0, false));
        // Ten are served in a quarter of a second.
        assert_eq!([see(10.0, true), see(128.0, false)], [true, false]);
        // 128, 40 a second.
        assert_eq!(
            [see(120.0, true), see(120.0, false), see(9.0, false), see(9.0, false), see(9.0, false)],
            [true, true, true, true, false]
        );
        // What is never served is not waited for without end.
        assert!(!see(f64::MAX, false) && see(f64::MAX, true));
        assert_eq!((0..30).filter(|_| see(f64::MAX, false)).count(), SETTLING_MAX as usize - 1);
    }
}
