//! One engine, its inbox, and who may touch it.
//!
//! The engine is held by one thread at a time, never while a host is called, and never waited for (`token.rs`). A request
//! that the engine has no room for (its table of files is full) waits in `Core::stalled`, not in the inbox, so completions
//! behind it are seen and nobody spins. What the holder itself brings does not go through the inbox: it comes right after
//! what is in there, so nobody can tell the difference.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use sluice_core::{CancelError, Engine, Outcome, Request, RequestId, Time};

use crate::bell::{AllServed, Bell, NEVER, Served};
use crate::client::{Completer, Port, SubmitError};
use crate::clock::Clock;
use crate::effects::{
    Carried, Deferred, Effect, Effects, Recipient, calling_nobody, calls_nobody, in_callback, telling_news,
};
use crate::gate::Gate;
use crate::holder::Core;
use crate::inbox::{Brought, Command, Inbox, Reply};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Held, back_off, sabotaged};
use crate::token::Token;
use crate::windows::{News, Windows};

/// Commands and batches that one call may handle for everybody before it leaves the rest to the serving thread, so that no
/// submitter is held hostage.
pub(crate) const TURN: u32 = 512;
/// Effects that are collected before the engine is let go for them.
const EFFECTS_MAX: usize = 64;
/// Shortest time to the next look at an engine that asks to be called again at once although it has nothing to give.
const MIN_WAIT_NS: u64 = 20_000;

/// Which threads drive an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Driving {
    /// Whoever submits or completes, if nobody else does just then. No hand-over between threads on the way of a request.
    #[default]
    Caller,
    /// A thread for each engine. Executors are called on that thread only, and never inside a call of theirs.
    Thread,
}

pub(crate) struct Shard {
    index: usize,
    clock: Clock,
    driving: Driving,
    token: CachePadded<Token>,
    /// The token's holder's.
    core: CachePadded<Held<Core>>,
    inbox: Inbox<Core>,
    /// Places of the token: requests accepted and not yet completed. What the engine and the inbox hold.
    capacity: u32,
    closed: AtomicBool,
    /// Threads that wait until all has ended, or nobody holds the engine or carries effects out.
    ending: AtomicU32,
    /// Nobody waits until all has ended any more.
    gives_up: AtomicBool,
    /// When the serving thread shall drive this engine.
    deadline: AtomicU64,
    bypasses_queue: AtomicBool,
    bypass_max: AtomicU32,
    /// Requests dispatched and not completed, as of the last turn.
    in_flight: AtomicU32,
    bell: Arc<Bell>,
    /// For all that wait: for room, for an answer, for the end.
    gate: Gate,
    pub(crate) windows: Windows,
}

crate::sync::thread_cell! {
    /// Lists reused from turn to turn; several where hosts' calls are inside each other.
    #[allow(clippy::vec_box)] // they are large, and go in and out
    static SPARE: RefCell<Vec<Box<Effects<Completer>>>> = RefCell::new(Vec::new());
}

/// An empty list of effects.
pub(crate) fn take_effects() -> Box<Effects<Completer>> {
    SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

/// Takes a list back, which is empty.
pub(crate) fn reuse_effects(effects: Box<Effects<Completer>>) {
    debug_assert!(effects.is_empty());
    // A thread that is about to end keeps none.
    let _ = SPARE.try_with(|spare| spare.borrow_mut().push(effects));
}

/// How a turn ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Nothing is left.
    Settled,
    /// There is more, but effects have to be carried out first, or others are to have their turn.
    Interrupted,
}

impl Shard {
    pub(crate) fn new(index: usize, clock: Clock, engine: Engine, driving: Driving, bell: Arc<Bell>) -> Arc<Shard> {
        let capacity = engine.config().capacity;
        let (bypass, bypass_max) = (engine.bypasses_queue(), engine.bypass_max());
        Arc::new_cyclic(|shard| Shard {
            index,
            clock,
            driving,
            token: CachePadded::new(Token::default()),
            core: CachePadded::new(Held::new(Core::new(engine, clock.now(), shard.clone()))),
            inbox: Inbox::new(capacity),
            capacity,
            closed: AtomicBool::new(false),
            ending: AtomicU32::new(0),
            gives_up: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
            bypasses_queue: AtomicBool::new(bypass),
            bypass_max: AtomicU32::new(bypass_max),
            in_flight: AtomicU32::new(0),
            bell,
            gate: Gate::default(),
            windows: Windows::default(),
        })
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn bypasses_queue(&self) -> bool {
        self.bypasses_queue.load(Ordering::Relaxed)
    }

    /// See [`Engine::bypass_max`].
    pub(crate) fn bypass_max(&self) -> u32 {
        self.bypass_max.load(Ordering::Relaxed)
    }

    // ---- submitting ------------------------------------------------------------------------------------------

    /// Takes one of the `capacity` places, and with `hold` the engine too, if nobody holds it (true).
    fn admit(&self, own: &Completer, request: &Request, hold: bool) -> Result<bool, SubmitError> {
        let port = &*own.port;
        if request.offset.checked_add(u64::from(request.len)).is_none() {
            return Err(SubmitError::RangeOverflow);
        }
        if !port.targets.contains(&request.target.0) {
            return Err(SubmitError::Target(request.target));
        }
        let Some(held) = self.token.enter(self.capacity, hold) else {
            let closed = self.is_closed(port);
            return Err(if closed { SubmitError::Closed } else { SubmitError::Full(*request) });
        };
        port.enters();
        // After the place was taken: who shuts down first closes, then waits for the places.
        if self.is_closed(port) {
            self.give_up(port);
            if held {
                // What others have brought meanwhile is told by the serving thread: who submits the pieces of an operation
                // has locked others out, whom a host may be in here.
                calling_nobody(|| self.drive_held(own, Brought::Nothing, None));
            }
            return Err(SubmitError::Closed);
        }
        Ok(held)
    }

    /// A request that had a place will not be in the engine.
    fn give_up(&self, port: &Port) {
        port.ended();
        self.release(1);
    }

    fn is_closed(&self, port: &Port) -> bool {
        self.closed.load(Ordering::SeqCst) || port.is_closed()
    }

    /// `at`: the time, if the caller has just looked at the clock.
    pub(crate) fn try_submit(&self, own: &Completer, request: Request, at: Option<Time>) -> Result<(), SubmitError> {
        if self.admit(own, &request, self.driving == Driving::Caller)? {
            self.drive_held(own, Brought::Submit(request), at);
        } else {
            self.bring(own, Brought::Submit(request), at);
        }
        Ok(())
    }

    /// See [`Client::try_submit_list`](crate::Client::try_submit_list).
    pub(crate) fn try_submit_list(&self, own: &Completer, requests: &[Request]) -> (usize, Result<(), SubmitError>) {
        let refused = requests.iter().enumerate().find_map(|(at, one)| Some((at, self.admit(own, one, false).err()?)));
        let (accepted, result) = refused.map_or((requests.len(), Ok(())), |(at, error)| (at, Err(error)));
        if accepted > 0 {
            self.bring(own, Brought::SubmitAll(&requests[..accepted]), None);
        }
        (accepted, result)
    }

    /// As [`Shard::try_submit`], with the handle.
    pub(crate) fn submit_with_id(&self, own: &Completer, request: Request) -> Result<RequestId, SubmitError> {
        self.admit(own, &request, false)?;
        let port = own.port.clone();
        self.ask(own, move |core| {
            let id = core.submit_now(request, port.number);
            if id.is_err() {
                core.give_up(&port);
            }
            id
        })
    }

    /// Submits, and leaves what can be dispatched now to the caller. `wait_to_hold`: waits until nobody else holds the
    /// engine, so that the caller gets its own request if that can go at once.
    pub(crate) fn submit_into(
        &self,
        own: &Completer,
        request: Request,
        effects: &mut Effects<Completer>,
        at: Option<Time>,
        wait_to_hold: bool,
    ) -> Result<(), SubmitError> {
        let held = self.admit(own, &request, self.driving == Driving::Caller)?;
        let mut brought = Brought::Submit(request);
        if self.driving == Driving::Thread {
            self.bring(own, brought, at);
            return Ok(());
        }
        // Only once the engine is ours: its holder until then would dispatch the request on its own thread.
        if !held && wait_to_hold {
            self.token.take();
        } else if !held && !self.hold(own, &mut brought) {
            return Ok(());
        }
        self.turns_into(own, effects, brought, at);
        Ok(())
    }

    pub(crate) fn cancel(&self, own: &Completer, id: RequestId) -> Result<Request, CancelError> {
        let port = own.port.clone();
        self.ask(own, move |core| {
            let cancelled = core.cancel_of(port.number, id);
            if cancelled.is_ok() || sabotaged!(CancelAlwaysSucceeds) {
                core.give_up(&port);
            }
            cancelled
        })
    }

    /// Cancels the oldest request of the caller's that is one of those `wanted`.
    pub(crate) fn cancel_where(
        &self,
        own: &Completer,
        wanted: impl Fn(&Request) -> bool + Send + 'static,
    ) -> Option<Request> {
        let port = own.port.clone();
        self.ask(own, move |core| {
            // Once it has left its targets may be another's.
            let own = |request: &Request| !port.has_left() && port.targets.contains(&request.target.0);
            let wanted = |request: &Request| own(request) && wanted(request);
            let cancelled = match core.engine.find(wanted) {
                Some(id) => core.cancel(id).ok(),
                None => core.cancel_stalled(wanted),
            };
            if cancelled.is_some() {
                core.give_up(&port);
            }
            cancelled
        })
    }

    /// Waits until a place may be free. False inside a call of a host, which must not wait for others to be told.
    pub(crate) fn wait_for_room(&self, port: &Port) -> bool {
        if in_callback() {
            return false;
        }
        self.wait_for_place(port, None)
    }

    /// As [`Shard::wait_for_room`], for who knows that others go on; false if it took until after `until`.
    pub(crate) fn wait_for_place(&self, port: &Port, until: Option<Instant>) -> bool {
        let free = || self.token.places() < self.capacity;
        self.gate.wait(until, || free() || self.is_closed(port))
    }

    pub(crate) fn release(&self, places: u32) {
        if places > 0 {
            self.token.give_back(places);
            self.gate.changed();
            self.quieter();
        }
    }

    // ---- completing ------------------------------------------------------------------------------------------

    pub(crate) fn complete(&self, own: &Completer, ended: &[(RequestId, Outcome)]) {
        self.bring(own, Brought::Complete(ended), None);
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// As [`Shard::complete`]; what becomes possible by it is left to the caller. `at`: the time, if the caller has just
    /// looked at the clock.
    pub(crate) fn complete_into(
        &self,
        own: &Completer,
        ended: &[(RequestId, Outcome)],
        effects: &mut Effects<Completer>,
        at: Option<Time>,
    ) {
        let mut brought = Brought::Complete(ended);
        if self.driving == Driving::Thread {
            self.bring(own, brought, at);
        } else if self.hold(own, &mut brought) {
            self.turns_into(own, effects, brought, at);
        }
    }

    // ---- asking ----------------------------------------------------------------------------------------------

    fn push(&self, own: &Completer, command: Command<Core>) {
        let (mut turn, mut back) = (0, self.inbox.push(command));
        // Full: there are many questions, or reports for requests that are not in flight. The holder makes room.
        while let Err(command) = back {
            // A host that is called in here might wait for what is not in there yet.
            calling_nobody(|| self.drive(own));
            back_off(turn);
            turn += 1;
            back = self.inbox.push(command);
        }
    }

    /// Leaves in the inbox what is brought.
    fn leave(&self, own: &Completer, brought: Brought<'_>) {
        match brought {
            Brought::Nothing => {}
            Brought::Submit(request) => self.push(own, Command::Submit { request, client: own.port.number }),
            Brought::SubmitAll(requests) => {
                requests.iter().for_each(|&request| self.leave(own, Brought::Submit(request)));
            }
            Brought::Complete(ended) => {
                ended.iter().for_each(|&(id, outcome)| self.push(own, Command::Complete { id, outcome }));
            }
        }
    }

    /// Does something with the engine, after all that was left in the inbox before, and waits for the answer.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        own: &Completer,
        action: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> T {
        let reply = Reply::new();
        let answer = reply.clone();
        // A panic in there is the asking thread's; the engine is as the action left it.
        let control = move |core: &mut Core| {
            let done = catch_unwind(AssertUnwindSafe(|| action(core)));
            // Who has the answer goes by the engine only where that may be from now on.
            core.note_bypass();
            answer.set(done);
        };
        self.push(own, Command::Control(Box::new(control)));
        self.drive(own);
        self.gate.wait(None, || {
            // The holder answers without waiting for anything, unless it let go before, to carry effects out.
            if !reply.is_ready() && self.token.has_work() {
                self.drive(own);
            }
            reply.is_ready()
        });
        reply.take().unwrap_or_else(|panic| resume_unwind(panic))
    }

    // ---- driving ---------------------------------------------------------------------------------------------

    /// Sees to it that this gets to the engine. `at`: the time a moment ago, if that is known.
    fn bring(&self, own: &Completer, mut brought: Brought<'_>, at: Option<Time>) {
        // After the end there is no thread that drives.
        if self.driving == Driving::Thread && !self.closed.load(Ordering::SeqCst) {
            self.leave(own, brought);
            self.token.announce();
            self.bell.ring_at(0);
            // Who ends it drives it, too.
            self.quieter();
            // Or it has ended since: it looks for work after the end has begun, and here it is the other way round.
            if self.closed.load(Ordering::SeqCst) && self.token.take_work() {
                self.drive_held(own, Brought::Nothing, None);
            }
        } else if self.hold(own, &mut brought) {
            self.drive_held(own, brought, at);
        }
    }

    /// Becomes the holder, to whom `brought` is left. False if there is one: then it gets what is brought.
    fn hold(&self, own: &Completer, brought: &mut Brought<'_>) -> bool {
        if !brought.is_nothing() {
            if self.token.try_take() {
                return true;
            }
            self.leave(own, brought.take());
        }
        self.token.knock()
    }

    /// Drives the engine if nobody else does, and carries out what follows.
    pub(crate) fn drive(&self, own: &Completer) {
        if self.token.knock() {
            self.drive_held(own, Brought::Nothing, None);
        }
    }

    /// As the holder: drives the engine, and carries out what follows.
    fn drive_held(&self, own: &Completer, mut brought: Brought<'_>, mut at: Option<Time>) {
        let mut effects = take_effects();
        let mut budget = TURN;
        loop {
            let turn = self.turn(own, &mut effects, &mut brought, &mut budget, at.take());
            if !effects.is_empty() {
                // A host may wait in its call for what was not taken over yet.
                self.leave_rest(own, brought.take());
            }
            let told = !effects.is_empty() && self.deliver(own, &mut effects);
            if told && self.hand_in(own, &effects) {
                continue;
            }
            if budget == 0 && self.closed.load(Ordering::SeqCst) {
                // There may be nobody any more to leave the rest to.
                budget = TURN;
            }
            if turn == Turn::Settled || budget == 0 || !self.token.take_work() {
                break;
            }
        }
        reuse_effects(effects);
        self.leave_rest(own, brought);
    }

    /// What was brought by a holder that had to let go before its time came.
    fn leave_rest(&self, own: &Completer, brought: Brought<'_>) {
        if !brought.is_nothing() {
            self.leave(own, brought);
            self.token.announce();
            self.bell.ring_at(0);
        }
    }

    /// After the effects of a turn were carried out here, and hosts may have reported completions in it. True: this thread
    /// holds the engine again.
    fn hand_in(&self, own: &Completer, effects: &Effects<Completer>) -> bool {
        if !effects.has_reports() {
            self.carried();
            return false;
        }
        if self.token.resume() {
            return true;
        }
        // Whoever holds it gets them.
        self.leave(own, Brought::Complete(&effects.reports.take()));
        self.carried();
        self.token.knock()
    }

    /// Turns of a holder that sees to the effects itself, and answers for them in its own way.
    fn turns_into(
        &self,
        own: &Completer,
        effects: &mut Effects<Completer>,
        mut brought: Brought<'_>,
        mut at: Option<Time>,
    ) {
        let mut budget = TURN;
        loop {
            let before = effects.len();
            let turn = self.turn(own, effects, &mut brought, &mut budget, at.take());
            if effects.len() > before {
                self.carried();
            }
            if turn == Turn::Settled || budget == 0 || !self.token.take_work() {
                break;
            }
        }
        self.leave_rest(own, brought);
    }

    /// What a holder does: everything there is, up to the budget and some effects. Then it lets go.
    fn turn(
        &self,
        own: &Completer,
        effects: &mut Effects<Completer>,
        brought: &mut Brought<'_>,
        budget: &mut u32,
        mut at: Option<Time>,
    ) -> Turn {
        let before = effects.len();
        let most = before + EFFECTS_MAX;
        let (mut ring, mut news, mut told) = (None, News::default(), false);
        let turn = loop {
            let now = at.take().unwrap_or_else(|| self.clock.now());
            effects.time = now;
            let look = |core: &mut Core| {
                core.begin(own.port.number, now);
                if effects.has_reports() {
                    core.complete_reported(effects);
                }
                let more = self.work(core, effects, brought, budget, most);
                (more, self.note_state(core, &mut news, told))
            };
            // SAFETY: this thread holds the token, and does not give it back in there.
            #[allow(unsafe_code)]
            let (more, changed) = unsafe { self.core.with(look) };
            ring = changed.or(ring);
            let carrying = effects.len() > before || news.is_any();
            if more {
                self.token.interrupt(carrying, effects.freed);
                break Turn::Interrupted;
            }
            if self.token.leave(carrying, effects.freed) {
                break Turn::Settled;
            }
            self.token.accept();
            told = true;
        };
        let freed = std::mem::take(&mut effects.freed) > 0;
        let answered = std::mem::take(&mut effects.answered);
        if freed || answered || turn == Turn::Interrupted || own.port.is_closed() {
            self.gate.changed();
        }
        self.quieter();
        match turn {
            Turn::Interrupted => self.bell.ring_at(0),
            Turn::Settled => match ring {
                None | Some(NEVER) => {}
                Some(deadline) => self.bell.ring_at(deadline),
            },
        }
        if news.is_any() {
            telling_news(|| self.windows.tell(news));
            if effects.len() == before {
                self.carried();
            }
        }
        turn
    }

    /// Commands, then what the holder brought, then batches. True if there is more to do.
    fn work(
        &self,
        core: &mut Core,
        effects: &mut Effects<Completer>,
        brought: &mut Brought<'_>,
        budget: &mut u32,
        most: usize,
    ) -> bool {
        loop {
            // To find out by `pop` that there is nothing costs a fence.
            while *budget > 0
                && effects.len() < most
                && !self.inbox.is_empty()
                && let Some(command) = self.inbox.pop()
            {
                *budget -= 1;
                core.apply(command, effects);
            }
            if *budget > 0 && effects.len() < most && !brought.is_nothing() {
                *budget -= 1;
                core.take_over(brought.take(), effects);
            }
            core.fail_queued(effects, most);
            core.admit_stalled(effects);
            while *budget > 0 && effects.len() < most && core.dispatch(effects) {
                *budget -= 1;
            }
            if *budget == 0 || effects.len() >= most {
                return true;
            }
            if self.inbox.is_empty() && brought.is_nothing() {
                return false;
            }
        }
    }

    /// What others may know without holding. Gives when to look again, if that is another time than before, or somebody has
    /// `told` of work meanwhile: that may have been the serving thread, which forgets the deadline before it does.
    fn note_state(&self, core: &mut Core, news: &mut News, told: bool) -> Option<u64> {
        self.note_bypass(core);
        self.in_flight.store(core.engine.in_flight(), Ordering::Release);
        self.windows.publish(&mut core.engine, news);
        let timeout = core.engine.poll_timeout().into_iter().chain(core.engine.stats().window_end()).min();
        let deadline = timeout.map_or(NEVER, |at| at.0.max(core.now.after(MIN_WAIT_NS).0));
        // Who set it before has rung for it.
        let changed = deadline != self.deadline.load(Ordering::Relaxed);
        self.deadline.store(deadline, Ordering::Release);
        (changed || told).then_some(deadline)
    }

    /// What may go by the engine.
    pub(crate) fn note_bypass(&self, core: &Core) {
        self.bypasses_queue.store(core.engine.bypasses_queue(), Ordering::Relaxed);
        // Who chooses an algorithm has to see what it does; one that lets everything through is left alone all the same.
        let may_miss = core.monitor.is_none() || core.engine.bypasses_queue();
        self.bypass_max.store(if may_miss { core.engine.bypass_max() } else { 0 }, Ordering::Relaxed);
    }

    /// Tells hosts; false if that was left to others, who answer for it then.
    fn deliver(&self, own: &Completer, effects: &mut Effects<Completer>) -> bool {
        let elsewhere = self.driving == Driving::Thread && (!self.bell.is_here() || in_callback());
        if !elsewhere && !calls_nobody() {
            return effects.carry_out(own);
        }
        self.bell.defer(|to| effects.defer(own, to));
        self.quieter();
        false
    }

    /// Has the serving thread tell a host.
    pub(crate) fn leave_to_server(&self, to: &Completer, effect: Effect) {
        self.token.carry();
        let turn = Carried::tells(to.boxed());
        self.bell.defer(|leave| leave(Deferred::Effect(to.boxed(), effect, Some(turn))));
        self.quieter();
    }

    /// Effects of one turn were carried out.
    pub(crate) fn carried(&self) {
        self.token.carried();
        self.quieter();
    }

    /// Somebody holds or tells no more: who waits for the end looks again, and so does the thread that may end with it.
    fn quieter(&self) {
        if self.ending.load(Ordering::SeqCst) > 0 {
            self.gate.changed();
        }
        if self.closed.load(Ordering::SeqCst) {
            self.bell.ring_at(0);
        }
    }

    /// A client was told something.
    pub(crate) fn told(&self, port: &Port) {
        if port.is_closed() {
            self.gate.changed();
        }
    }
}

/// On nobody's behalf.
impl Served for Completer {
    fn deadline(&self) -> u64 {
        self.shard.deadline.load(Ordering::SeqCst)
    }

    fn is_ready(&self) -> bool {
        // In a model a parked thread wakes at any time, and would find what was forgotten.
        self.shard.token.has_work() && !sabotaged!(TokenForgetsWork)
    }

    fn drive(&self) {
        // Whoever holds then sets it again.
        self.shard.deadline.store(NEVER, Ordering::SeqCst);
        self.shard.drive(self);
    }

    fn is_over(&self) -> bool {
        self.shard.closed.load(Ordering::SeqCst) && !self.is_ready() && self.shard.has_told()
    }

    fn let_go(&self) {
        self.shard.let_go(self, None);
    }
}

impl Shard {
    /// For driving on nobody's behalf.
    pub(crate) fn nobody(self: &Arc<Shard>) -> Completer {
        Completer { shard: self.clone(), port: Port::nobody() }
    }

    /// For the thread that serves these.
    pub(crate) fn served(shards: &[Arc<Shard>]) -> AllServed {
        shards.iter().map(|shard| Box::new(shard.nobody()) as Box<dyn Served>).collect()
    }
}

mod ending;
#[cfg(all(test, not(feature = "model")))]
mod tests;
