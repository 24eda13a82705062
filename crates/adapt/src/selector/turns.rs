//! Two classes that one workload looks like by turns.
//!
//! How many requests wait varies from window to window where it is read-ahead that makes them, and near a border, however wide its
//! margin, the workload is of one class now and of another half a second later. Each would be learned by itself, in pieces too short
//! to compare arms in, and each change would be one of arms. So two classes that ask for the same and have taken turns for a while,
//! faster than it pays to choose for each, are one workload from then on, until one of them stays.

use super::Context;

/// A stay of at most so many windows is a turn.
const TURN_MAX: u64 = 5;
/// So many, one after the other, are enough.
const TURNS: u32 = 4;
/// After so many windows in a row of one class nobody takes turns any more.
pub(super) const STAYS: u32 = 16;

/// The last stays.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    /// The workload before the one that is there.
    before: Option<Context>,
    /// Turns of the two so far.
    count: u32,
}

impl Turns {
    /// A workload has ended after so many windows, and another is there. Whether the two are one.
    pub(super) fn next(&mut self, ended: Context, windows: u64, next: Context) -> bool {
        let is_turn = windows <= TURN_MAX && ended != next && ended.asks_the_same(&next);
        let goes_back = self.before == Some(next);
        self.count = match (is_turn, goes_back) {
            (true, true) => self.count + 1,
            (true, false) => 1,
            (false, _) => 0,
        };
        self.before = Some(ended);
        self.count >= TURNS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(text: &str) -> Context {
        Context::parse(text).unwrap()
    }

    /// Which of these stays, each with its windows, shows that two are one.
    fn shown(stays: &[(&str, u64)]) -> Option<usize> {
        let mut turns = Turns::default();
        stays.windows(2).position(|pair| turns.next(context(pair[0].0), pair[0].1, context(pair[1].0)))
    }

    #[test]
    fn who_takes_turns_for_a_while_is_one_and_who_stays_or_asks_for_something_else_is_not() {
        let (few, many, large) = ("r2.q0.d2.f1.a0", "r2.q0.d3.f1.a0", "r4.q0.d3.f1.a0");
        let alternate = |a, b, windows| (0..40).map(|at| ([a, b][at % 2], windows)).collect::<Vec<_>>();
        assert_eq!(shown(&alternate(few, many, 3)), Some(TURNS as usize - 1));
        assert_eq!(shown(&alternate(few, many, TURN_MAX + 1)), None, "phases");
        assert_eq!(shown(&alternate(few, large, 3)), None, "another size");
        let three = [few, many, "r2.q1.d3.f1.a0"];
        assert_eq!(shown(&(0..40).map(|at| (three[at % 3], 3)).collect::<Vec<_>>()), None, "three");
        let mut some = alternate(few, many, 3);
        some[3].1 = 20;
        assert_eq!(shown(&some), Some(TURNS as usize + 3), "counted anew after one that stayed");
    }
}
