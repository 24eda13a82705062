//! A gate: of several sets of applications only one has the device at a time, in slices of a window that repeats.
//!
//! Several data servers that follow the same plan serve the same program at the same time without a message for each slice
//! (IOrchestrator: Zhang 2012, 5.2.3). The gate is beside the policies: what belongs to a closed object is kept out of their
//! sight, as what ordering safety holds back.
//!
//! Deviations from the paper: a plan says when it begins and expires, so that a server that hears no more of whoever makes plans
//! goes back to normal scheduling; a slice may be cut short when it runs empty (`idle_ns`); a request that has waited for
//! `max_wait` and a whole window goes whatever is open; so does one that keeps back a request of the open object, itself or
//! through others that wait for it.

use std::fmt;

use crate::list::{Links, List};
use crate::queues::Slot;
use crate::request::{AppId, Time};

/// Most objects of a plan.
pub const OBJECTS_MAX: usize = 16;
/// Most applications that a plan names.
pub const APPS_MAX: usize = 64;

/// One object's turn in each window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GateSlice {
    /// The object: these applications; if empty, all that no other slice names.
    pub apps: Vec<AppId>,
    /// How long it is served in each window, in nanoseconds; at least 1.
    pub len_ns: u64,
}

/// Who is served when. Times are the engine's clock's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatePlan {
    /// A window begins then, and each time that all slices together have passed; may be in the past or the future.
    pub epoch: Time,
    /// The plan is in force from then on. One that begins later than now follows the one in force.
    pub from: Time,
    /// From then on there is no gate. A plan that follows keeps this one in force until it begins.
    pub expires: Time,
    /// The slices of a window, 2 to [`OBJECTS_MAX`], in this order; exactly one of them is for all others.
    pub slices: Vec<GateSlice>,
    /// A slice whose object has had nothing outstanding for so many nanoseconds is cut short, and the next object that has
    /// gets the rest. `None`: never, as in the paper.
    pub idle_ns: Option<u64>,
}

/// What is wrong with a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GateError {
    /// Fewer than 2 slices, or more than [`OBJECTS_MAX`].
    Slices,
    /// A slice has no length, or all together are longer than 2^62 ns.
    Length,
    /// No slice is for all others, or more than one.
    Others,
    /// More than [`APPS_MAX`] applications are named, or one of them twice.
    Apps,
}

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GateError::Slices => write!(f, "a gate needs 2 to {OBJECTS_MAX} slices"),
            GateError::Length => f.write_str("each slice of a gate needs a length, and the window must end"),
            GateError::Others => {
                f.write_str("exactly one slice of a gate is for all others: one that names no application")
            }
            GateError::Apps => write!(f, "a gate names at most {APPS_MAX} applications, each once"),
        }
    }
}

impl std::error::Error for GateError {}

impl GatePlan {
    /// The length of a window: all slices. In nanoseconds.
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        self.slices.iter().fold(0, |sum: u64, slice| sum.saturating_add(slice.len_ns))
    }

    /// Whether an engine can follow it.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn check(&self) -> Result<(), GateError> {
        if !(2..=OBJECTS_MAX).contains(&self.slices.len()) {
            return Err(GateError::Slices);
        }
        if self.slices.iter().any(|slice| slice.len_ns == 0) || self.window_ns() > 1 << 62 {
            return Err(GateError::Length);
        }
        if self.slices.iter().filter(|slice| slice.apps.is_empty()).count() != 1 {
            return Err(GateError::Others);
        }
        let mut apps: Vec<AppId> = self.slices.iter().flat_map(|slice| slice.apps.iter().copied()).collect();
        let named = apps.len();
        apps.sort_unstable();
        apps.dedup();
        if named > APPS_MAX || apps.len() < named { Err(GateError::Apps) } else { Ok(()) }
    }

    /// Whose slice it is at `now`, and when that begins and ends. O(slices).
    pub(crate) fn turn(&self, now: Time) -> (usize, Time, Time) {
        let window_ns = self.window_ns();
        let phase = match now.0.checked_sub(self.epoch.0) {
            Some(since) => since % window_ns,
            None => (window_ns - (self.epoch.0 - now.0) % window_ns) % window_ns,
        };
        let (mut begin, mut object) = (0, 0);
        while phase >= begin + self.slices[object].len_ns {
            begin += self.slices[object].len_ns;
            object += 1;
        }
        let end = begin + self.slices[object].len_ns;
        (object, Time(now.0.saturating_sub(phase - begin)), now.after(end - phase))
    }

    fn has_same_objects(&self, other: &GatePlan) -> bool {
        let objects = |plan: &GatePlan| plan.slices.len();
        objects(self) == objects(other) && self.slices.iter().zip(&other.slices).all(|(a, b)| a.apps == b.apps)
    }
}

/// What a gate does at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GateStatus {
    /// The plan in force; `None` before the first one begins.
    pub plan: Option<GatePlan>,
    /// Number of the slice whose object is served.
    pub open: usize,
    /// When that ends.
    pub until: Time,
    /// Requests held back.
    pub held: u32,
    /// Slices that have begun, since the gate was set.
    pub changes: u64,
    /// Slices cut short.
    pub cuts: u64,
    /// Requests of closed objects that went because they had waited for too long.
    pub overdue: u64,
    /// Requests of closed objects that went because they kept back one of the open object.
    pub called: u64,
}

/// What is known of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    /// Its requests that are held back, by age.
    pub(crate) held: List,
    /// Its requests that ordering safety keeps back.
    pub(crate) blocked: List,
    /// Its requests that are not complete.
    pub(crate) outstanding: u32,
    /// When that became 0.
    pub(crate) idle_since: Time,
}

const NOBODY: Object = Object { held: List::new(), blocked: List::new(), outstanding: 0, idle_since: Time::ZERO };

/// The gate of an engine.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) plan: Option<GatePlan>,
    pub(crate) next: Option<GatePlan>,
    /// Whose object is which, of the plan in force, by application; the rest is `others`.
    apps: Vec<(AppId, u8)>,
    others: u8,
    pub(crate) objects: [Object; OBJECTS_MAX],
    pub(crate) open: usize,
    /// The slice: from then, until then.
    pub(crate) since: Time,
    pub(crate) until: Time,
    pub(crate) held: u32,
    /// No held request is overdue before then.
    pub(crate) overdue_from: Time,
    pub(crate) changes: u64,
    pub(crate) cuts: u64,
    pub(crate) overdue: u64,
    pub(crate) called: u64,
    /// Grows when another object opens.
    turn: u32,
    /// By slot, the turn in which the open object had a request that waited for this one, maybe through others.
    calls: Vec<u32>,
}

impl Gate {
    pub(crate) fn new(capacity: u32) -> Gate {
        Gate {
            plan: None,
            next: None,
            apps: Vec::with_capacity(APPS_MAX),
            others: 0,
            objects: [NOBODY; OBJECTS_MAX],
            open: 0,
            since: Time::ZERO,
            until: Time::ZERO,
            held: 0,
            overdue_from: Time(u64::MAX),
            changes: 0,
            cuts: 0,
            overdue: 0,
            called: 0,
            turn: 0,
            calls: vec![0; capacity as usize],
        }
    }

    /// Nothing is held, now or later.
    pub(crate) fn is_idle(&self) -> bool {
        self.plan.is_none() && self.next.is_none()
    }

    pub(crate) fn object(&self, app: AppId) -> usize {
        let place = self.apps.binary_search_by_key(&app, |&(app, _)| app);
        usize::from(place.map_or(self.others, |at| self.apps[at].1))
    }

    /// Whether this object is all others.
    pub(crate) fn is_others(&self, object: usize) -> bool {
        usize::from(self.others) == object
    }

    /// A plan that has the same objects as the one in force needs no new table.
    pub(crate) fn goes_on_with(&self, plan: &GatePlan) -> bool {
        self.plan.as_ref().is_some_and(|old| old.has_same_objects(plan))
    }

    /// The table of the objects of a plan. Nothing is held.
    pub(crate) fn tabulate(&mut self, plan: &GatePlan) {
        debug_assert_eq!(self.held, 0, "held requests belong to objects of the plan in force");
        self.apps.clear();
        for (number, slice) in (0..).zip(&plan.slices) {
            self.apps.extend(slice.apps.iter().map(|&app| (app, number)));
            if slice.apps.is_empty() {
                self.others = number;
            }
        }
        self.apps.sort_unstable();
        self.objects = [NOBODY; OBJECTS_MAX];
        self.open_other(self.open);
    }

    /// Another object opens: nobody has called for anything.
    pub(crate) fn open_other(&mut self, object: usize) {
        (self.open, self.turn) = (object, self.turn.wrapping_add(1));
    }

    /// Whether a request of the open object waits for this one.
    pub(crate) fn is_called(&self, slot: Slot) -> bool {
        self.calls[slot as usize] == self.turn
    }

    /// A request of the open object waits for this one; false if that was known.
    pub(crate) fn call(&mut self, slot: Slot) -> bool {
        std::mem::replace(&mut self.calls[slot as usize], self.turn) != self.turn
    }

    /// A request was accepted.
    pub(crate) fn arrived(&mut self, slot: Slot, app: AppId) {
        if self.plan.is_some() {
            self.objects[self.object(app)].outstanding += 1;
            self.calls[slot as usize] = self.turn.wrapping_sub(1);
        }
    }

    /// Ordering safety keeps a request back.
    pub(crate) fn blocked(&mut self, links: &mut Links, slot: Slot, app: AppId) {
        if self.plan.is_some() {
            let object = self.object(app);
            self.objects[object].blocked.push_back(links, slot);
        }
    }

    /// It does so no longer.
    pub(crate) fn unblocked(&mut self, links: &mut Links, slot: Slot, app: AppId) {
        if self.plan.is_some() {
            let object = self.object(app);
            self.objects[object].blocked.remove(links, slot);
        }
    }

    /// A request is complete or cancelled.
    pub(crate) fn ended(&mut self, now: Time, app: AppId) {
        if self.plan.is_some() {
            let object = self.object(app);
            let object = &mut self.objects[object];
            object.outstanding = object.outstanding.saturating_sub(1);
            if object.outstanding == 0 {
                object.idle_since = now;
            }
        }
    }

    /// When the open slice may be cut short, if somebody waits for that.
    pub(crate) fn cut_at(&self) -> Option<Time> {
        let idle_ns = self.plan.as_ref()?.idle_ns?;
        let open = &self.objects[self.open];
        (open.outstanding == 0 && self.held > 0).then(|| open.idle_since.max(self.since).after(idle_ns))
    }

    /// The next object, in the order of slices, of which something is held.
    pub(crate) fn next_waiting(&self) -> Option<usize> {
        let count = self.plan.as_ref()?.slices.len();
        (1..count).map(|ahead| (self.open + ahead) % count).find(|&object| self.objects[object].held.front().is_some())
    }

    pub(crate) fn status(&self) -> GateStatus {
        let &Gate { open, until, held, changes, cuts, overdue, called, .. } = self;
        GateStatus { plan: self.plan.clone(), open, until, held, changes, cuts, overdue, called }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(epoch: u64, lens: &[u64]) -> GatePlan {
        let slice = |(number, &len_ns): (usize, &u64)| GateSlice {
            apps: if number == 0 { Vec::new() } else { vec![AppId(number as u32)] },
            len_ns,
        };
        let slices = lens.iter().enumerate().map(slice).collect();
        GatePlan { epoch: Time(epoch), from: Time::ZERO, expires: Time(u64::MAX), slices, idle_ns: None }
    }

    proptest! {
        /// Counted step by step.
        #[test]
        fn turns_follow_each_other(epoch in 0..200_u64, now in 0..400_u64, lens in prop::collection::vec(1..30_u64, 2..5)) {
            let plan = plan(epoch, &lens);
            let window: u64 = lens.iter().sum();
            let (mut begin, mut object) = (epoch % window, 0);
            begin = if begin > 0 { begin } else { window } ;
            // A window begins at `begin - window`, which may be before 0.
            let mut at = i128::from(begin) - i128::from(window);
            while at + i128::from(lens[object]) <= i128::from(now) {
                at += i128::from(lens[object]);
                object = (object + 1) % lens.len();
            }
            let end = at + i128::from(lens[object]);
            let begin = u64::try_from(at).unwrap_or(0);
            prop_assert_eq!(plan.turn(Time(now)), (object, Time(begin), Time(u64::try_from(end).unwrap())));
        }
    }

    #[test]
    fn plans_that_nobody_can_follow_are_refused() {
        assert_eq!(plan(0, &[1, 1]).check(), Ok(()));
        assert_eq!(plan(0, &[1]).check(), Err(GateError::Slices));
        assert_eq!(plan(0, &[1; OBJECTS_MAX + 1]).check(), Err(GateError::Slices));
        assert_eq!(plan(0, &[1, 0]).check(), Err(GateError::Length));
        assert_eq!(plan(0, &[u64::MAX, u64::MAX]).check(), Err(GateError::Length));
        let others = |apps: [Vec<AppId>; 2]| {
            let mut plan = plan(0, &[1, 1]);
            plan.slices.iter_mut().zip(apps).for_each(|(slice, apps)| slice.apps = apps);
            plan.check()
        };
        assert_eq!(others([vec![], vec![]]), Err(GateError::Others));
        assert_eq!(others([vec![AppId(1)], vec![AppId(2)]]), Err(GateError::Others));
        assert_eq!(others([vec![AppId(1), AppId(1)], vec![]]), Err(GateError::Apps));
        assert_eq!(others([(0..65).map(AppId).collect(), vec![]]), Err(GateError::Apps));
    }
}
