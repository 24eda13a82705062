//! Holding back what belongs to closed objects (see [`crate::gate`]).
//!
//! The policy sees what belongs to the open object, [`SHOWN_MAX`] requests of it at most, the oldest: so the change of a slice
//! costs O(`SHOWN_MAX` log n), however much is queued. All others are in a list for each object, and visible to ordering safety.

use super::{Engine, State};
use crate::batch::Batch;
use crate::gate::{Gate, GateError, GatePlan, GateStatus};
use crate::list::{List, NIL};
use crate::locality::Turn;
use crate::policy::Removal;
use crate::queues::Slot;
use crate::request::{AppId, Time};

/// Most requests that a policy sees behind a gate.
const SHOWN_MAX: u32 = 1_024;

impl Engine {
    /// Sets a gate, or takes it away: at once if the plan begins now or before, else when it begins; until then the plan in
    /// force stays so, also beyond its end. A plan that is over already changes nothing.
    ///
    /// Allocates. O(1) where the objects stay the same, else O(n log n) once, n being what is queued.
    ///
    /// # Errors
    /// See [`GateError`]; the engine is unchanged then.
    pub fn set_gate(&mut self, now: Time, plan: Option<GatePlan>) -> Result<(), GateError> {
        let Some(plan) = plan else {
            if let Some(gate) = &mut self.gate {
                gate.next = None;
                self.open_gate(now);
            }
            return Ok(());
        };
        plan.check()?;
        if plan.expires <= now.max(plan.from) {
            return Ok(());
        }
        let gate = self.gate.get_or_insert_with(|| Box::new(Gate::new(self.config.capacity)));
        gate.next = Some(plan);
        self.advance_gate(now);
        Ok(())
    }

    /// What the gate does, if there is one. Allocates.
    #[must_use]
    pub fn gate(&self) -> Option<GateStatus> {
        self.gate.as_ref().filter(|gate| !gate.is_idle()).map(|gate| gate.status())
    }

    /// Slices that have begun since the first plan was set, and how many of them were cut short. O(1).
    #[must_use]
    pub fn gate_changes(&self) -> (u64, u64) {
        self.gate.as_ref().map_or((0, 0), |gate| (gate.changes, gate.cuts))
    }

    /// Whether requests may be held back, now or when a plan begins.
    pub(super) fn is_gated(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| !gate.is_idle())
    }

    /// Requests held back.
    pub(super) fn held(&self) -> u32 {
        self.gate.as_ref().map_or(0, |gate| gate.held)
    }

    /// Tells whoever watches locality whose request is complete.
    pub(super) fn note_completed(&mut self, now: Time, app: AppId) {
        let Some(locality) = &mut self.locality else { return };
        let gate = self.gate.as_ref().filter(|gate| gate.plan.is_some());
        let turn = gate.map(|gate| Turn {
            since: gate.since,
            own: gate.object(app) == gate.open,
            others: gate.is_others(gate.open),
        });
        locality.completed(now, app, turn);
    }

    /// When the slice ends; never without a gate.
    pub(super) fn slice_end(&self) -> Time {
        self.gate.as_ref().filter(|gate| gate.plan.is_some()).map_or(Time(u64::MAX), |gate| gate.until)
    }

    /// As [`Engine::poll_dispatch`], behind a gate.
    pub(super) fn poll_gated(&mut self, now: Time, batch: &mut Batch) -> bool {
        self.advance_gate(now);
        let at_limit = !self.bypasses_queue && self.at_in_flight_limit();
        if !at_limit && self.dispatch_held(now, batch) {
            return true;
        }
        self.show_held(now);
        if self.poll_open(now, batch) {
            return true;
        }
        if let Some(gate) = self.gate.as_ref().filter(|gate| gate.held > 0) {
            let overdue = if at_limit { None } else { Some(gate.overdue_from) };
            let next = gate.next.as_ref().map(|plan| plan.from);
            let expires = gate.plan.as_ref().map(|plan| plan.expires);
            // Also behind its end, where a plan stays in force until the one that follows.
            let until = gate.plan.is_some().then_some(gate.until);
            let wakes = [self.wake, overdue, next, expires, until, gate.cut_at()];
            self.wake = wakes.into_iter().flatten().filter(|&at| at > now && at.0 != u64::MAX).min();
        }
        false
    }

    /// Plans begin and end, slices change.
    fn advance_gate(&mut self, now: Time) {
        let Some(gate) = &mut self.gate else { return };
        let follows = gate.next.as_ref().map(|plan| plan.from);
        if follows.is_some_and(|from| from <= now) {
            self.install_plan(now);
        }
        let Some(gate) = &mut self.gate else { return };
        let Some(plan) = &gate.plan else { return };
        if plan.expires <= now && gate.next.is_none() {
            return self.open_gate(now);
        }
        // Also where the clock went backwards.
        if now >= gate.until || now < gate.since {
            let (object, since, until) = plan.turn(now);
            gate.changes += u64::from((object, since) != (gate.open, gate.since));
            (gate.since, gate.until) = (since, until);
            return self.open_object(now, object);
        }
        if gate.cut_at().is_some_and(|at| at <= now)
            && let Some(object) = gate.next_waiting()
        {
            gate.since = now;
            gate.cuts += 1;
            self.open_object(now, object);
        }
    }

    /// The plan that was to follow is in force.
    fn install_plan(&mut self, now: Time) {
        let Some(gate) = &mut self.gate else { return };
        let Some(plan) = gate.next.take() else { return };
        if gate.goes_on_with(&plan) {
            gate.plan = Some(plan);
            // Where the slices have moved, another one may be running.
            gate.until = now;
            return self.reckon_overdue_anew();
        }
        let held = self.take_back_all(now);
        let Some(gate) = &mut self.gate else { return };
        gate.tabulate(&plan);
        (gate.plan, gate.since, gate.until) = (Some(plan), Time::ZERO, now);
        for (slot, entry) in (0..).zip(&self.queues.entries) {
            match entry.state {
                State::Free { .. } => continue,
                State::Blocked(_) => gate.blocked(&mut self.queues.arrival_links, slot, entry.app),
                _ => {}
            }
            gate.arrived(slot, entry.app);
        }
        self.each_of(held, |engine, slot| engine.keep_back(slot, false));
    }

    /// Nobody is held back any more.
    fn open_gate(&mut self, now: Time) {
        let held = self.take_back_all(now);
        if let Some(gate) = &mut self.gate {
            gate.plan = None;
        }
        self.end_stream_slice();
        self.each_of(held, |engine, slot| engine.show(now, slot));
    }

    fn end_stream_slice(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.begin_anew();
        }
    }

    fn each_of(&mut self, mut slots: List, act: impl Fn(&mut Engine, Slot)) {
        while let Some(slot) = slots.pop_front(&mut self.queues.arrival_links) {
            act(self, slot);
        }
    }

    /// All eligible requests, by age, in no order any more.
    fn take_back_all(&mut self, now: Time) -> List {
        self.take_back(now, None);
        let mut all = List::new();
        let Some(gate) = &mut self.gate else { return all };
        let links = &mut self.queues.arrival_links;
        let entries = &self.queues.entries;
        let age = |slot: Slot| entries[slot as usize].eligible_since();
        while let Some((_, object)) =
            (0..gate.objects.len()).filter_map(|at| Some((age(gate.objects[at].held.front()?), at))).min()
        {
            if let Some(slot) = gate.objects[object].held.pop_front(links) {
                all.push_back(links, slot);
            }
        }
        gate.held = 0;
        gate.overdue_from = Time(u64::MAX);
        all
    }

    /// Takes back what the policy has been shown, but for what belongs to the object that opens.
    fn take_back(&mut self, now: Time, opens: Option<usize>) {
        self.end_delays(now);
        let mut at = self.queues.arrival.back().unwrap_or(NIL);
        while at != NIL {
            let (slot, app) = (at, self.queues.entries[at as usize].app);
            at = self.queues.arrival_links.prev(slot);
            if self.gate.as_ref().is_some_and(|gate| gate.plan.is_some() && opens == Some(gate.object(app))) {
                continue;
            }
            self.leave_orders(slot);
            if self.in_offset_order && self.is_strict() {
                self.queues.enter_busy(slot);
            }
            self.policy.algorithm_mut().removed(now, &[slot], Removal::Cancelled, &self.queues);
            self.keep_back(slot, true);
        }
    }

    /// An eligible request that is in no order is held, by its age: before those of the same age if it `returns`, else after them. O(1) where it is
    /// older, or younger, than all others held.
    fn keep_back(&mut self, slot: Slot, returns: bool) {
        let bound = self.overdue_after();
        if let Some(streams) = &mut self.streams {
            streams.hide(slot);
        }
        let Some(gate) = &mut self.gate else { return };
        let entries = &mut self.queues.entries;
        let entry = &mut entries[slot as usize];
        let since = entry.eligible_since().unwrap_or(Time::ZERO);
        entry.state = State::Held { since };
        let object = match gate.plan {
            Some(_) => gate.object(entry.app),
            None => 0,
        };
        let held = &mut gate.objects[object].held;
        let age = |slot: Slot| entries[slot as usize].eligible_since();
        match held.front() {
            Some(front) if age(front) > Some(since) || (returns && age(front) == Some(since)) => {
                held.push_front(&mut self.queues.arrival_links, slot)
            }
            _ => held.insert_from_back(&mut self.queues.arrival_links, slot, |other| age(other) <= Some(since)),
        }
        gate.held += 1;
        gate.overdue_from = gate.overdue_from.min(bound.map_or(Time(u64::MAX), |bound| since.after(bound)));
    }

    /// So long may a request be held: `max_wait`, and the window in which its object would have had its turn.
    fn overdue_after(&self) -> Option<u64> {
        let window_ns = self.gate.as_ref()?.plan.as_ref()?.window_ns();
        (self.config.max_wait_ns != 0).then(|| self.config.max_wait_ns.saturating_add(window_ns))
    }

    /// Requests may be held for another time from now on: which is due is looked for at the next dispatch.
    pub(super) fn reckon_overdue_anew(&mut self) {
        self.gate.iter_mut().for_each(|gate| gate.overdue_from = Time::ZERO);
    }

    /// Another object has the device.
    fn open_object(&mut self, now: Time, object: usize) {
        if self.gate.as_ref().is_some_and(|gate| gate.open != object) {
            self.take_back(now, Some(object));
            self.end_stream_slice();
            if let Some(gate) = &mut self.gate {
                gate.open_other(object);
            }
        }
        let mut blocked = self.gate.as_ref().and_then(|gate| gate.objects[object].blocked.front()).unwrap_or(NIL);
        while blocked != NIL {
            self.call(now, blocked);
            blocked = self.queues.arrival_links.next(blocked);
        }
        self.show_held(now);
    }

    /// Shows the policy what is held of the open object, as far as there is room.
    fn show_held(&mut self, now: Time) {
        while self.queues.queued < SHOWN_MAX
            && let Some(gate) = &mut self.gate
            && let Some(slot) = gate.objects[gate.open].held.pop_front(&mut self.queues.arrival_links)
        {
            gate.held -= 1;
            self.show(now, slot);
        }
    }

    /// A request that was held is queued as if it had never been.
    fn show(&mut self, now: Time, slot: Slot) {
        if self.is_strict() {
            self.queues.leave_busy(slot);
        }
        let entry = &mut self.queues.entries[slot as usize];
        let since = entry.eligible_since().unwrap_or(now);
        entry.state = State::Queued { since, place: 0 };
        if let Some(streams) = &mut self.streams {
            streams.show(now, slot);
        }
        if self.prediction.is_none() || !self.join_delayed(now, slot) {
            self.enter_orders(now, slot);
            self.move_by_age(slot);
        }
    }

    /// Whether a request that has become eligible is held, which it is then.
    pub(super) fn hold(&mut self, slot: Slot) -> bool {
        let Some(gate) = self.gate.as_mut().filter(|gate| gate.plan.is_some()) else { return false };
        let object = gate.object(self.queues.entries[slot as usize].app);
        let is_open = object == gate.open;
        let called = gate.is_called(slot);
        gate.called += u64::from(called && !is_open);
        if called || (is_open && self.queues.queued < SHOWN_MAX && gate.objects[object].held.front().is_none()) {
            return false;
        }
        if self.is_strict() {
            self.queues.enter_busy(slot);
        }
        self.keep_back(slot, false);
        true
    }

    /// A request is blocked. If it belongs to the open object, or one that does waits for it, what it waits for in the end goes
    /// now, and what is in between when it may. O(log n), and once in a slice O(1) for each request in between.
    pub(super) fn call(&mut self, now: Time, blocked: Slot) {
        let Some(gate) = self.gate.as_mut().filter(|gate| gate.plan.is_some()) else { return };
        let entries = &self.queues.entries;
        if gate.object(entries[blocked as usize].app) != gate.open && !gate.is_called(blocked) {
            return;
        }
        let mut at = blocked;
        while let Some(waits) = entries[at as usize].blocked() {
            at = waits.blocker;
            if !gate.call(at) {
                return;
            }
        }
        if !matches!(entries[at as usize].state, State::Held { .. }) {
            return;
        }
        let object = gate.object(entries[at as usize].app);
        gate.objects[object].held.remove(&mut self.queues.arrival_links, at);
        gate.held -= 1;
        gate.called += u64::from(object != gate.open);
        self.show(now, at);
    }

    /// A held request is cancelled.
    pub(super) fn cancel_held(&mut self, slot: Slot) {
        let Some(gate) = &mut self.gate else { return };
        let object = gate.object(self.queues.entries[slot as usize].app);
        gate.objects[object].held.remove(&mut self.queues.arrival_links, slot);
        gate.held -= 1;
        if self.is_strict() {
            self.queues.leave_busy(slot);
        }
    }

    /// Some request that is held. O(objects).
    pub(super) fn some_held(&self) -> Option<Slot> {
        self.gate.as_ref()?.objects.iter().find_map(|object| object.held.front())
    }

    /// Dispatches a request that has been held for too long. O(1), and O(objects) where one may be.
    fn dispatch_held(&mut self, now: Time, batch: &mut Batch) -> bool {
        let Some(gate) = self.gate.as_ref().filter(|gate| gate.overdue_from <= now) else { return false };
        let bound = self.overdue_after();
        let age = |slot: Slot| self.queues.entries[slot as usize].eligible_since();
        let oldest = gate.objects.iter().filter_map(|object| object.held.front()).min_by_key(|&slot| age(slot));
        let due = oldest.and_then(|slot| Some(age(slot)?.after(bound?)));
        let Some(gate) = &mut self.gate else { return false };
        gate.overdue_from = due.unwrap_or(Time(u64::MAX));
        let Some(slot) = oldest.filter(|_| due.is_some_and(|due| due <= now)) else { return false };
        let object = gate.object(self.queues.entries[slot as usize].app);
        gate.objects[object].held.remove(&mut self.queues.arrival_links, slot);
        gate.held -= 1;
        gate.overdue += 1;
        self.candidate.clear();
        self.candidate.push(slot);
        self.start_batch(now, Removal::Overdue, batch);
        true
    }
}
