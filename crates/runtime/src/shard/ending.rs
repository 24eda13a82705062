//! Clients that come and go, and the end of an engine: who waits for that sees to what nobody else may do meanwhile.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::Shard;
use crate::bell::Serving;
use crate::client::{Completer, Port};
use crate::effects::{
    Deferred, Effect, Recipient, Reporting, Reports, calling_nobody, carry_out, in_callback, take_behind, take_reported,
};
use crate::parked::before_waiting;
use crate::sync::atomic::Ordering;
use crate::sync::{sabotaged, thread_cell};

thread_cell! {
    /// Engines whose hosts this thread has called.
    static CALLED: RefCell<Vec<Weak<Shard>>> = RefCell::new(Vec::new());
}

/// For a host that waits: whomever it waits for may wait for what this thread has of any engine.
fn hand_in_all() {
    let all = |called: &RefCell<Vec<Weak<Shard>>>| called.borrow().iter().filter_map(Weak::upgrade).collect();
    let called: Vec<Arc<Shard>> = CALLED.try_with(all).unwrap_or_default();
    called.iter().for_each(Shard::hand_in_open);
}

impl Shard {
    pub(crate) fn attach(&self, own: &Completer) {
        let (port, none_left) = (own.port.clone(), self.token.is_idle());
        drop(self.ask(own, move |core| core.attach(port, none_left)));
    }

    /// Lets no more requests in, of one client or (`None`) of anybody. Those waiting for room are told.
    pub(crate) fn close(&self, port: Option<&Port>) {
        match port {
            Some(port) => port.close(),
            None => self.closed.store(true, Ordering::SeqCst),
        }
        self.gate.changed();
    }

    /// Whoever waits until all has ended gives up, now and later.
    pub(crate) fn end_waits(&self) {
        self.gives_up.store(true, Ordering::SeqCst);
        self.gate.changed();
    }

    /// Waits until every accepted request has ended, of one client or of all; false if that took until after `until`, or nobody waits any
    /// more.
    pub(crate) fn wait_empty(&self, own: &Completer, port: Option<&Port>, until: Option<Instant>) -> bool {
        let is_empty = || match port.and_then(Port::counts) {
            Some((outstanding, _)) => outstanding == 0,
            None => self.token.places() == 0 || port.is_some_and(Port::has_left),
        };
        let is_over = || is_empty() || self.gives_up.load(Ordering::SeqCst);
        self.wait_driving(own, until, false, is_over) && is_empty()
    }

    /// Waits for what others do, and hands in before what a host has reported in the very call in which it waits. `drives`:
    /// does meanwhile what nobody else may do. A serving thread goes on serving meanwhile: there is no other for that.
    fn wait_driving(&self, own: &Completer, until: Option<Instant>, drives: bool, done: impl Fn() -> bool) -> bool {
        let go_on = || {
            hand_in_all();
            if drives && self.token.has_work() {
                self.drive(own);
            }
            before_waiting();
        };
        let waiting = u32::from(drives);
        self.ending.fetch_add(waiting, Ordering::SeqCst);
        let is_done = match Serving::here().filter(|_| !sabotaged!(WaiterServesNobody)) {
            None => self.gate.wait(until, || {
                go_on();
                done()
            }),
            Some(serving) => {
                let serves = || {
                    // Before the rest: deep inside calls it leaves to this thread what follows.
                    serving.look();
                    go_on();
                    done()
                };
                self.gate.wait_parked(until, serves, || serving.may_park())
            }
        };
        self.ending.fetch_sub(waiting, Ordering::SeqCst);
        is_done
    }

    /// A host is about to be called on this thread.
    pub(crate) fn note_call(self: &Arc<Shard>) {
        let note = |called: &RefCell<Vec<Weak<Shard>>>| {
            let mut called = called.borrow_mut();
            if !called.iter().any(|one| std::ptr::eq(one.as_ptr(), Arc::as_ptr(self))) {
                called.retain(|one| one.strong_count() > 0);
                called.push(Arc::downgrade(self));
            }
        };
        // A thread that is about to end waits for nobody in a call.
        let _ = CALLED.try_with(note);
    }

    /// While this lives completions may be left in `reports`.
    pub(crate) fn reporting(&self, reports: &Rc<Reports>) -> Reporting {
        Reporting::begin(self.address(), reports)
    }

    /// Hands in what hosts on this thread have reported in calls that are not over, and carries out what is behind those.
    fn hand_in_open(self: &Arc<Shard>) {
        let own = self.nobody();
        let reported = take_reported(self.address());
        if !reported.is_empty() {
            self.complete(&own, &reported);
        }
        if self.bell.is_here() {
            // It is left to this very thread, which may wait by means of its own next.
            if self.token.has_work() {
                self.drive(&own);
            }
            self.bell.carry_out_deferred();
        }
        let behind = std::iter::from_fn(|| take_behind(self.address()));
        carry_out(behind.filter_map(|(client, effect)| self.deferred(&own, client, effect)).collect());
    }

    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// An effect for a client, to be carried out apart from those of its turn.
    fn deferred(&self, own: &Completer, client: u16, effect: Effect) -> Option<Deferred> {
        // A host that is called meanwhile might wait for this effect, which nobody else has.
        let port = calling_nobody(|| {
            self.ask(own, move |core| core.clients[client as usize].as_ref().map(|route| route.port.clone()))
        });
        debug_assert!(port.is_some(), "a client leaves when nothing of it is left");
        let to = Completer { shard: own.shard.clone(), port: port? };
        Some(Deferred::Effect(to.boxed(), effect, None))
    }

    /// Fails everything that was not dispatched, of one client or of all. When this returns the hosts have been told of
    /// all that they will be told of (inside a call of a host: of all but what other threads are telling just then).
    /// Returns how many requests failed, and how many are in flight still. To be closed before.
    pub(crate) fn fail(&self, own: &Completer, port: Option<&Port>, errno: i32) -> (u32, u32) {
        let number = port.map(|port| port.number);
        let before = self.ask(own, move |core| core.fail(number, errno));
        let alone = port.is_none_or(Port::is_alone);
        let told = || match port {
            Some(port) if port.has_left() => true,
            Some(port) if !alone => port.has_been_told(),
            _ => self.has_told(),
        };
        // Inside a call this thread itself has hosts to tell, when it returns.
        let waits = !sabotaged!(LeavesEarly) && !in_callback();
        self.wait_driving(own, None, true, || !waits || told());
        if port.is_some_and(Port::has_left) {
            return (0, 0);
        }
        let (failed, in_flight) = self.ask(own, |core| (core.failed, core.engine.in_flight()));
        (failed - before, port.and_then(Port::counts).map_or(in_flight, |(_, in_flight)| in_flight))
    }

    /// Hosts have been told of everything but what is in flight.
    pub(super) fn has_told(&self) -> bool {
        self.token.places() <= self.in_flight.load(Ordering::Acquire) && self.token.is_quiet()
    }

    /// See [`Port::is_gone`].
    pub(crate) fn is_gone(&self, port: &Port) -> bool {
        port.is_gone(self.token.is_idle())
    }

    /// Of a client that leaves, or of all at the end, there is nothing left but what is in flight: executors, which hear of nothing
    /// any more, are not kept alive by the engine. They may know its scheduler.
    pub(crate) fn let_go(&self, own: &Completer, port: Option<&Port>) {
        let number = port.map(|port| port.number);
        drop(self.ask(own, move |core| core.let_go(number)));
    }

    /// Forgets a client that has left.
    pub(crate) fn detach(&self, own: &Completer) {
        let number = own.port.number;
        // The route goes outside: it may be the last one to know the executor.
        drop(self.ask(own, move |core| core.clients[number as usize].take()));
        // Before its targets are another's, who would be waited for by whoever else waits for its end.
        own.port.leave();
        self.gate.changed();
    }
}
