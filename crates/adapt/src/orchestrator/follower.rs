//! What a server does with plans: whatever is lost, late, doubled, or out of order.

use super::Plan;

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Nothing: it was known, or is over.
    Ignore,
    /// No gate from now on.
    Clear,
    /// This is the gate; it begins and expires by itself.
    Set(Plan),
}

/// Knows which plan is the newest.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    number: u64,
    expires: u64,
}

impl Follower {
    /// A plan has come. O(1).
    pub fn heard(&mut self, now: u64, plan: Plan) -> Follow {
        if plan.number <= self.number {
            return Follow::Ignore;
        }
        self.number = plan.number;
        if plan.slices.is_empty() {
            self.expires = 0;
            return Follow::Clear;
        }
        if plan.expires <= now {
            return Follow::Ignore;
        }
        self.expires = plan.expires;
        Follow::Set(plan)
    }

    /// The number of the plan in force, or about to be; 0: none.
    #[must_use]
    pub fn in_force(&self, now: u64) -> u64 {
        if now < self.expires { self.number } else { 0 }
    }
}
