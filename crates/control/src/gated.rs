//! What a node does with plans that serve one program at a time: by its own clock, and never for longer than they say.

use sluice_core::{GatePlan, Time};

use crate::clock::Estimate;

/// A node whose clock may be off by more than this share of a window serves everything as it comes: its slices would not be
/// those of the others.
const ERROR_SHARE: u64 = 8;
/// An offset is taken over when it differs by more than this share of a window from the one in use: windows that move by
/// microseconds with each plan would begin slices anew.
const DRIFT_SHARE: u64 = 256;

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Nothing: the plan is over, or cannot be followed.
    Ignore,
    /// No gate from now on.
    Clear,
    /// This is the gate, by the node's clock; it begins and ends by itself.
    Set(GatePlan),
}

/// Follows plans. Which of them is the newest is [`Node`](crate::Node)'s to know.
#[derive(Clone, Debug, Default)]
pub struct Gated {
    /// The plan that was followed last is in force until then.
    expires: Time,
    /// The offset that it was carried out with.
    offset_ns: Option<i64>,
    /// Whether it was in force when that was asked for last.
    was: bool,
}

impl Gated {
    /// A plan has come, by the coordinator's clock, of windows of `window_ns`. O(slices).
    pub fn heard(&mut self, now: Time, offset: Option<Estimate>, window_ns: u64, plan: Option<&GatePlan>) -> Follow {
        let Some(plan) = plan else {
            self.expires = now;
            return Follow::Clear;
        };
        let Some(Estimate { offset_ns, error_ns }) = offset else { return Follow::Ignore };
        if error_ns > window_ns / ERROR_SHARE {
            return Follow::Ignore;
        }
        let is_near = |used: &i64| used.abs_diff(offset_ns) <= window_ns / DRIFT_SHARE;
        let used = self.offset_ns.filter(is_near).unwrap_or(offset_ns);
        let here = |there: Time| Time(there.0.saturating_add_signed(used.saturating_neg()));
        // Whatever a coordinator says, nothing is in force for longer than two windows from its begin.
        let latest = now.max(here(plan.from)).after(window_ns.saturating_mul(2));
        let own = GatePlan {
            epoch: here(plan.epoch),
            from: here(plan.from),
            expires: here(plan.expires).min(latest),
            ..plan.clone()
        };
        if own.expires <= now || own.from > now.after(window_ns.saturating_mul(2)) {
            return Follow::Ignore;
        }
        (self.expires, self.offset_ns) = (own.expires, Some(used));
        Follow::Set(own)
    }

    /// When the plan that was followed last ends, or has ended.
    #[must_use]
    pub fn expires(&self) -> Time {
        self.expires
    }

    /// Whether a plan was in force all the time since this was asked last, or never; `None`: that has changed. As reports say it.
    pub fn since_last(&mut self, now: Time) -> Option<bool> {
        let is = now < self.expires;
        (std::mem::replace(&mut self.was, is) == is).then_some(is)
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::{AppId, GateSlice};

    use super::*;

    const MS: u64 = 1_000_000;
    const WINDOW: u64 = 500 * MS;

    fn plan(from: u64, expires: u64) -> GatePlan {
        let slice = |apps: &[u32]| GateSlice { apps: apps.iter().map(|app| AppId(*app)).collect(), len_ns: WINDOW / 2 };
        let (from, expires) = (Time(from * MS), Time(expires * MS));
        GatePlan { epoch: from, from, expires, slices: vec![slice(&[7]), slice(&[])], idle_ns: None }
    }

    #[test]
    fn plans_are_followed_by_the_own_clock_while_that_is_good_enough() {
        let mut gated = Gated::default();
        let at = |offset_ms: i64, error_ms: u64| {
            Some(Estimate { offset_ns: offset_ms * MS as i64, error_ns: error_ms * MS })
        };
        let now = Time(10_000 * MS);
        let mut heard = |offset, plan: &GatePlan| match gated.heard(now, offset, WINDOW, Some(plan)) {
            Follow::Set(plan) => Some([plan.epoch.0 / MS, plan.expires.0 / MS]),
            _ => None,
        };
        let running = plan(13_000, 13_400);
        assert_eq!(heard(None, &running), None, "nobody knows by how much clocks differ");
        assert_eq!(heard(at(3_000, 63), &running), None, "nobody knows it well");
        assert_eq!(heard(at(3_000, 1), &running), Some([10_000, 10_400]));
        assert_eq!(heard(at(3_001, 1), &running), Some([10_000, 10_400]), "it has hardly changed");
        assert_eq!(heard(at(3_005, 1), &running), Some([9_995, 10_395]));
        assert_eq!(heard(at(3_500, 1), &running), None, "it is over");
        assert_eq!(heard(at(-100, 1), &running), None, "it is too far away");
        let endless = plan(13_000, 99_000_000);
        assert_eq!(heard(at(3_000, 1), &endless), Some([10_000, 11_000]), "nobody waits for ever");
    }

    #[test]
    fn reports_say_what_was_in_force() {
        let mut gated = Gated::default();
        let offset = Some(Estimate { offset_ns: 0, error_ns: 1 });
        assert_eq!(gated.since_last(Time(0)), Some(false));
        assert!(matches!(gated.heard(Time(MS), offset, WINDOW, Some(&plan(0, 400))), Follow::Set(_)));
        assert_eq!([gated.since_last(Time(2 * MS)), gated.since_last(Time(3 * MS))], [None, Some(true)]);
        assert_eq!([gated.since_last(Time(400 * MS)), gated.since_last(Time(401 * MS))], [None, Some(false)]);
        assert_eq!(gated.heard(Time(500 * MS), offset, WINDOW, None), Follow::Clear);
    }
}
