//! What a situation is called, so that neither chance nor what was decided makes it another one.
//!
//! A node whose reads and writes are as many, or whose sizes lie between two powers of 2, would be in one situation in this second
//! and in another one in the next, and what is learned would be divided between them. And how many requests are under way depends
//! on the arm: windows keep them longer, HBRR answers sooner. If that alone made another situation, each arm would be known in the
//! situations that it makes itself, and be tried again and again in the others.
//!
//! So a node keeps its name until it clearly does something else twice running, and a load until the *same* arm has clearly more
//! or fewer requests under way than it had, twice running. The first of the two seconds teaches nothing. Fewer under way of whom as
//! much is moved are no other load: HBRR puts processes in step within seconds, and what they ask for waits no more.
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
/// Fewer requests under way are another load if so much less is moved.
const LESS: f64 = 0.8;
/// The majority is another one if the operation has a smaller share of the requests.
const MINORITY: f64 = 0.4;
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

/// What an arm has under way, and how much it moves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    pub(crate) under_way: f64,
    /// Bytes a second.
    pub(crate) moved: f64,
}

impl Busy {
    /// Whether this is another load than was usual: so many times more under way, or fewer and less done.
    fn is_other(self, usual: Busy, times: f64) -> bool {
        let (now, was) = (self.under_way.max(1.0), usual.under_way.max(1.0));
        now > was * times || (was > now * times && self.moved < LESS * usual.moved)
    }
}

/// How much is asked of all nodes together, as it is called.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    /// 0 nodes: nothing was seen.
    nodes: f64,
    busy: Busy,
    /// Mean of the first observations with each arm, and their number.
    by_arm: [(Busy, u32); ARMS.len()],
    differed: bool,
}

impl Load {
    /// So many nodes do so much, with an arm (`None`: with several). Whether that is as it was.
    pub(crate) fn see(&mut self, arm: Option<usize>, nodes: u64, busy: Busy) -> bool {
        let nodes = nodes as f64;
        let differs = match arm.map(|arm| self.by_arm[arm]) {
            Some((usual, 1..)) => busy.is_other(usual, LOAD),
            _ => busy.is_other(self.busy, LOAD_ANY),
        } || differs(self.nodes, nodes, OTHER);
        if self.nodes == 0.0 || (differs && self.differed) {
            *self = Load { nodes, busy, ..Load::default() };
        } else if differs {
            self.differed = true;
            return false;
        }
        self.differed = false;
        if let Some((usual, times)) = arm.map(|arm| &mut self.by_arm[arm]).filter(|(_, times)| *times < SETTLED) {
            *times += 1;
            usual.under_way += (busy.under_way - usual.under_way) / f64::from(*times);
            usual.moved += (busy.moved - usual.moved) / f64::from(*times);
        }
        true
    }

    /// Nodes and requests under way.
    pub(crate) fn named(&self) -> (u64, u64) {
        (self.nodes as u64, self.busy.under_way as u64)
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

    /// That many requests under way, of which the more are moved the more there are.
    fn busy(under_way: f64) -> Busy {
        Busy { under_way, moved: under_way * 1e6 }
    }

    #[test]
    fn a_load_is_another_one_when_the_same_arm_shows_it_twice() {
        let mut load = Load::default();
        assert!(load.see(Some(7), 4, busy(10.0)));
        assert!(load.see(Some(6), 4, busy(60.0)), "windows keep requests");
        assert!(load.see(Some(7), 4, busy(12.0)) && load.see(Some(6), 4, busy(50.0)));
        assert_eq!(load.named(), (4, 10));
        assert!(!load.see(Some(7), 4, busy(60.0)));
        assert!(load.see(Some(7), 4, busy(11.0)), "once is chance");
        assert!(!load.see(Some(7), 4, busy(60.0)) && load.see(Some(7), 4, busy(60.0)));
        assert_eq!(load.named(), (4, 60));
        assert!(!load.see(Some(6), 1, busy(60.0)) && load.see(Some(6), 1, busy(60.0)), "fewer nodes");
        assert_eq!(load.named(), (1, 60));
        assert!(!load.see(Some(6), 1, busy(20.0)) && load.see(Some(6), 1, busy(20.0)), "fewer requests, less moved");
        assert_eq!(load.named(), (1, 20));
    }

    #[test]
    fn fewer_requests_of_whom_as_much_is_moved_are_no_other_load() {
        let mut load = Load::default();
        // As measured of strided writes and reads, under HBRR (8) and arrival order (7): what waits is served all at once, and comes back
        // when the processes fall out of step.
        let course = [(7, 352, 24), (8, 351, 31), (8, 357, 28), (8, 250, 118), (8, 72, 81), (8, 56, 65), (8, 56, 66)];
        let after = [(7, 93, 45), (7, 230, 25), (7, 352, 24), (8, 360, 28), (8, 120, 113), (8, 56, 67), (8, 56, 67)];
        for (arm, under_way, mb_s) in course.into_iter().chain(after) {
            let busy = Busy { under_way: f64::from(under_way), moved: f64::from(mb_s) * 1e6 };
            assert!(load.see(Some(arm), 4, busy), "{arm} {busy:?}");
        }
        assert_eq!(load.named(), (4, 352));
    }
}
