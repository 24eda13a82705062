//! What a holder does with an engine: commands in, effects out. Nothing in here is shared: one thread at a time has it, and
//! no host is called.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use sluice_core::{
    CancelError, ConfigError, Engine, EngineConfig, GateError, GatePlan, Outcome, Predictor, PreparedPolicy, Request,
    RequestId, Time,
};

use crate::client::{Completer, Port, SubmitError};
use crate::effects::{Effect, Effects};
use crate::inbox::{Brought, Command};
use crate::monitor::{Monitor, tell};
use crate::shard::Shard;
use crate::sync::sabotaged;

/// What the holder has.
pub(crate) struct Core {
    pub(crate) engine: Engine,
    shard: Weak<Shard>,
    /// The time of this turn.
    pub(crate) now: Time,
    /// Submitted, but the engine had no room.
    pub(crate) stalled: VecDeque<(Request, u16)>,
    /// Something has ended since the engine had no room.
    pub(crate) has_room: bool,
    /// By index; `None` where there was one.
    pub(crate) clients: Vec<Option<Route>>,
    /// Of each outstanding request, by its slot in the engine.
    pub(crate) client_of: Box<[u16]>,
    /// Set by a shutdown: what is not dispatched fails with this error number.
    pub(crate) failing: Option<i32>,
    /// Something may be queued that is to fail: what comes later is refused when it comes.
    fails_queued: bool,
    /// Requests that were failed so far.
    pub(crate) failed: u32,
    /// Places of requests that were taken back, or not taken in: they are given back where the engine is let go.
    given_up: u32,
    /// The client on whose behalf the engine is held.
    pub(crate) own: u16,
    /// Completions of requests that were not in flight.
    pub(crate) stale: u64,
    /// Is told of everything.
    pub(crate) monitor: Option<Box<dyn Monitor>>,
    versions: Versions,
}

/// The changes in force: of two at a time the later one counts, on every engine, in whatever order they come here.
#[derive(Clone, Copy, Default)]
struct Versions {
    policy: u64,
    limits: u64,
    predictor: u64,
    gate: u64,
}

/// Whether a change comes after the one that is in force, and so is from now on.
fn is_newer(version: u64, in_force: &mut u64) -> bool {
    let newer = version > *in_force;
    *in_force = version.max(*in_force);
    newer
}

/// A client, as the holder knows it.
pub(crate) struct Route {
    pub(crate) port: Arc<Port>,
    /// It leaves: what it has queued fails with this error number.
    pub(crate) failing: Option<i32>,
}

impl Core {
    pub(crate) fn new(engine: Engine, now: Time, shard: Weak<Shard>) -> Core {
        let capacity = engine.config().capacity;
        Core {
            engine,
            shard,
            now,
            stalled: VecDeque::with_capacity(capacity as usize),
            has_room: true,
            clients: Vec::new(),
            client_of: vec![0; capacity as usize].into_boxed_slice(),
            failing: None,
            fails_queued: false,
            failed: 0,
            given_up: 0,
            own: 0,
            stale: 0,
            monitor: None,
            versions: Versions::default(),
        }
    }

    /// A turn begins, on behalf of a client.
    pub(crate) fn begin(&mut self, own: u16, now: Time) {
        self.own = own;
        self.now = now.max(self.now);
        self.engine.roll(self.now);
    }

    /// What the holder itself brought.
    pub(crate) fn take_over(&mut self, brought: Brought<'_>, effects: &mut Effects<Completer>) {
        match brought {
            Brought::Nothing => {}
            Brought::Submit(request) => self.apply(Command::Submit { request, client: self.own }, effects),
            Brought::SubmitAll(requests) => {
                let client = self.own;
                requests.iter().for_each(|&request| self.apply(Command::Submit { request, client }, effects));
            }
            Brought::Complete(ended) => ended.iter().for_each(|&(id, outcome)| self.complete(id, outcome, effects)),
        }
    }

    pub(crate) fn apply(&mut self, command: Command<Core>, effects: &mut Effects<Completer>) {
        match command {
            Command::Submit { request, client } if !self.stalled.is_empty() && self.refusal(client).is_none() => {
                self.stalled.push_back((request, client));
            }
            Command::Submit { request, client } => self.submit(request, client, effects),
            Command::Complete { id, outcome } => self.complete(id, outcome, effects),
            Command::Control(action) => {
                action(self);
                effects.freed += std::mem::take(&mut self.given_up);
                effects.answered = true;
            }
        }
    }

    /// A client joins. Those that have left meanwhile (`none_left`: nothing of anybody is outstanding) are given back: they may be
    /// the last ones to know their executors, which may call whom they like when they are dropped.
    pub(crate) fn attach(&mut self, port: Arc<Port>, none_left: bool) -> Vec<Route> {
        let gone = |route: &mut Option<Route>| route.take_if(|route| route.port.is_gone(none_left));
        let gone = self.clients.iter_mut().filter_map(gone).collect();
        let at = port.number as usize;
        if self.clients.len() <= at {
            self.clients.resize_with(at + 1, || None);
        }
        self.clients[at] = Some(Route { port, failing: None });
        gone
    }

    /// Of one client, or of all, the engine has nothing but what is in flight: gives back what knows their executors. They are
    /// counted on.
    pub(crate) fn let_go(&mut self, client: Option<u16>) -> Vec<Arc<Port>> {
        let routes = self.clients.iter_mut().flatten();
        let routes = routes.filter(|route| client.is_none_or(|number| route.port.number == number));
        let without = |route: &mut Route| {
            let without = route.port.without_executor();
            std::mem::replace(&mut route.port, without)
        };
        routes.map(without).collect()
    }

    /// Changes the algorithm, unless a later change was faster. Gives back what is not needed any more.
    pub(crate) fn set_policy(&mut self, version: u64, prepared: PreparedPolicy) -> PreparedPolicy {
        if is_newer(version, &mut self.versions.policy) { self.engine.set_policy(self.now, prepared) } else { prepared }
    }

    /// Changes the limits, unless a later change was faster.
    ///
    /// # Errors
    /// As of [`Engine::set_limits`], also where they came too late.
    pub(crate) fn set_limits(&mut self, version: u64, limits: &EngineConfig) -> Result<(), ConfigError> {
        if version < self.versions.limits {
            return self.engine.check_limits(limits);
        }
        self.engine.set_limits(limits)?;
        self.versions.limits = version;
        Ok(())
    }

    /// Sets a gate or takes it away, unless a later change was faster.
    ///
    /// # Errors
    /// As of [`Engine::set_gate`], also where it came too late.
    pub(crate) fn set_gate(&mut self, version: u64, plan: Option<GatePlan>) -> Result<(), GateError> {
        plan.as_ref().map_or(Ok(()), GatePlan::check)?;
        if is_newer(version, &mut self.versions.gate) { self.engine.set_gate(self.now, plan) } else { Ok(()) }
    }

    /// As [`Core::set_policy`], for the predictor.
    pub(crate) fn set_predictor(
        &mut self,
        version: u64,
        predictor: Option<Box<dyn Predictor>>,
    ) -> Option<Box<dyn Predictor>> {
        if is_newer(version, &mut self.versions.predictor) { self.engine.set_predictor(predictor) } else { predictor }
    }

    /// The error number with which requests of a client fail.
    pub(crate) fn refusal(&self, client: u16) -> Option<i32> {
        match &self.clients[client as usize] {
            Some(route) => self.failing.or(route.failing),
            None => Some(libc::ESHUTDOWN),
        }
    }

    pub(crate) fn submit(&mut self, request: Request, client: u16, effects: &mut Effects<Completer>) {
        if let Some(errno) = self.refusal(client) {
            return self.refuse(request, client, errno, effects);
        }
        match self.engine.submit(self.now, request) {
            Ok(id) => self.accepted(id, &request, client),
            Err(sluice_core::SubmitError::Full) if self.engine.queued() + self.engine.in_flight() > 0 => {
                self.has_room = false;
                if !sabotaged!(StalledForgotten) {
                    self.stalled.push_back((request, client));
                }
            }
            Err(_) => self.refuse(request, client, libc::EINVAL, effects),
        }
    }

    fn accepted(&mut self, id: RequestId, request: &Request, client: u16) {
        self.client_of[id.slot() as usize] = client;
        let now = self.now;
        tell(&mut self.monitor, |monitor| monitor.arrived(now, request));
    }

    pub(crate) fn submit_now(&mut self, request: Request, client: u16) -> Result<RequestId, SubmitError> {
        if self.refusal(client).is_some() {
            return Err(SubmitError::Closed);
        }
        if !self.stalled.is_empty() {
            return Err(SubmitError::Full(request));
        }
        let id = self.engine.submit(self.now, request).map_err(|error| match error {
            sluice_core::SubmitError::RangeOverflow => SubmitError::RangeOverflow,
            sluice_core::SubmitError::Full => SubmitError::Full(request),
        })?;
        self.accepted(id, &request, client);
        Ok(id)
    }

    pub(crate) fn client(&self, id: RequestId) -> u16 {
        self.client_of[id.slot() as usize]
    }

    pub(crate) fn port(&self, client: u16) -> Option<&Port> {
        self.clients[client as usize].as_ref().map(|route| &*route.port)
    }

    /// A request of a client that had a place is not in the engine. Not left to the client's thread: hosts that wait are called
    /// there before it has the answer.
    pub(crate) fn give_up(&mut self, port: &Port) {
        port.ended();
        self.given_up += 1;
    }

    /// Tells what may go by the engine.
    pub(crate) fn note_bypass(&self) {
        if let Some(shard) = self.shard.upgrade() {
            shard.note_bypass(self);
        }
    }

    /// What hosts have reported inside their calls.
    pub(crate) fn complete_reported(&mut self, effects: &mut Effects<Completer>) {
        let mut reports = effects.reports.take();
        reports.drain(..).for_each(|(id, outcome)| self.complete(id, outcome, effects));
        effects.reports.reuse(reports);
    }

    pub(crate) fn complete(&mut self, id: RequestId, outcome: Outcome, effects: &mut Effects<Completer>) {
        let request = self.monitor.as_ref().and_then(|_| self.engine.request(id));
        if self.engine.complete(self.now, id, outcome).is_err() {
            self.stale += 1;
            return;
        }
        if let Some(request) = request {
            self.ended(&request);
        }
        self.has_room = true;
        if let Some(port) = self.port(self.client(id)) {
            port.completed();
            port.ended();
            // Whoever waits for the client's last one looks again.
            effects.answered |= port.is_closed();
        }
        effects.freed += 1;
    }

    fn ended(&mut self, request: &Request) {
        let now = self.now;
        tell(&mut self.monitor, |monitor| monitor.completed(now, request));
    }

    pub(crate) fn cancel(&mut self, id: RequestId) -> Result<Request, CancelError> {
        self.has_room = true;
        let request = self.engine.cancel(self.now, id)?;
        self.ended(&request);
        Ok(request)
    }

    /// Cancels a request of this client; one of another client's is not its to cancel.
    pub(crate) fn cancel_of(&mut self, client: u16, id: RequestId) -> Result<Request, CancelError> {
        match self.client_of.get(id.slot() as usize) {
            Some(owner) if *owner == client => self.cancel(id),
            _ => Err(CancelError::Stale),
        }
    }

    pub(crate) fn cancel_stalled(&mut self, wanted: impl Fn(&Request) -> bool) -> Option<Request> {
        let at = self.stalled.iter().position(|(request, _)| wanted(request))?;
        self.stalled.remove(at).map(|(request, _)| request)
    }

    /// The request was accepted by us, but the engine does not have it (any more).
    pub(crate) fn refuse(&mut self, request: Request, client: u16, errno: i32, effects: &mut Effects<Completer>) {
        self.failed += 1;
        self.push(client, Effect::Cancel(Box::new((request, errno))), effects);
    }

    pub(crate) fn push(&self, client: u16, effect: Effect, effects: &mut Effects<Completer>) {
        // Who has something outstanding is a client still, and who holds has the shard.
        let Some(route) = &self.clients[client as usize] else {
            debug_assert!(false, "a client leaves when nothing of it is left");
            return;
        };
        route.port.will_be_told();
        let recipient = || Some(Completer { shard: self.shard.upgrade()?, port: route.port.clone() });
        let is_known = effects.push(client, self.own, effect, recipient);
        debug_assert!(is_known, "a holder has the shard");
    }

    pub(crate) fn admit_stalled(&mut self, effects: &mut Effects<Completer>) {
        // The engine is not asked again and again what it has answered.
        while self.has_room
            && let Some((request, client)) = self.stalled.pop_front()
        {
            let before = self.stalled.len();
            self.submit(request, client, effects);
            if self.stalled.len() > before {
                // Still no room: it is the first again.
                self.stalled.rotate_right(1);
                return;
            }
        }
    }

    /// From now on requests of a client, or of all, fail. Gives how many have failed before.
    pub(crate) fn fail(&mut self, client: Option<u16>, errno: i32) -> u32 {
        match client {
            None => self.failing = Some(errno),
            Some(client) => {
                if let Some(route) = &mut self.clients[client as usize] {
                    route.failing = Some(errno);
                }
            }
        }
        self.fails_queued = true;
        self.failed
    }

    /// Requests that are queued although they are to fail.
    pub(crate) fn fail_queued(&mut self, effects: &mut Effects<Completer>, most: usize) {
        if !self.fails_queued {
            return;
        }
        for at in (0..self.stalled.len()).rev() {
            let (request, client) = self.stalled[at];
            if let Some(errno) = self.refusal(client) {
                self.stalled.remove(at);
                self.refuse(request, client, errno, effects);
            }
        }
        let mut from = 0;
        while effects.len() < most {
            let (failing, clients, client_of) = (self.failing, &self.clients, &self.client_of);
            let errno =
                |id: RequestId| failing.or_else(|| clients[client_of[id.slot() as usize] as usize].as_ref()?.failing);
            let Some((id, request)) = self.engine.cancel_next(self.now, &mut from, |id| errno(id).is_some()) else {
                self.fails_queued = false;
                return;
            };
            let errno = errno(id).unwrap_or(libc::ECANCELED);
            self.has_room = true;
            self.ended(&request);
            self.refuse(request, self.client(id), errno, effects);
        }
    }

    pub(crate) fn dispatch(&mut self, effects: &mut Effects<Completer>) -> bool {
        let mut batch = effects.batch();
        if !self.engine.poll_dispatch(self.now, &mut batch) {
            effects.reuse(batch);
            return false;
        }
        // All parts are of one target, and so of one client.
        let (client, requests) = (self.client(batch.parts()[0].id), batch.requests() as u32);
        let now = self.now;
        tell(&mut self.monitor, |monitor| monitor.dispatched(now, requests));
        self.push(client, Effect::Start(batch), effects);
        // Counted as untold before: see `Port::has_been_told`.
        if let Some(port) = self.port(client) {
            port.dispatched(requests);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::{AppId, GateSlice, PolicyConfig};

    use super::*;

    fn core() -> Core {
        let (config, fifo) = (EngineConfig::default(), PolicyConfig::parse("to").unwrap());
        Core::new(Engine::new(config, &fifo, Time::ZERO).unwrap(), Time::ZERO, Weak::new())
    }

    #[test]
    fn a_turn_costs_the_same_after_many_clients_have_left() {
        struct Quiet;
        impl crate::Executor for Quiet {
            fn start(&self, _: &sluice_core::Batch, _: &crate::Started<'_>) {}
            fn cancelled(&self, _: &Request, _: i32) {}
        }
        let executor: Arc<dyn crate::Executor> = Arc::new(Quiet);
        let port = |number: u16| Arc::new(Port::new(number, 0..1, executor.clone(), true));
        // A machine that does other things stops some of the rounds, not all.
        let turns = |core: &mut Core| {
            let round = || {
                let (mut effects, start) = (Effects::default(), std::time::Instant::now());
                (0..500).for_each(|_| core.fail_queued(&mut effects, 64));
                start.elapsed()
            };
            std::iter::repeat_with(round).take(20).min().unwrap()
        };
        let (mut few, mut many) = (core(), core());
        few.attach(port(0), false);
        // The table as it is then; joining itself looks at all of them.
        many.clients.resize_with(60_000, || None);
        many.attach(port(60_000), false);
        let (few, many) = (turns(&mut few), turns(&mut many));
        assert!(many < 100 * few.max(std::time::Duration::from_micros(5)), "{few:?}, then {many:?}");
    }

    #[test]
    fn of_two_changes_the_later_one_counts_even_if_it_comes_first() {
        let (config, fifo) = (EngineConfig::default(), PolicyConfig::parse("to").unwrap());
        let mut core =
            Core::new(Engine::new(config.clone(), &fifo, Time::default()).unwrap(), Time::default(), Weak::new());
        let limits = |in_flight_max| EngineConfig { in_flight_max, ..config.clone() };
        core.set_limits(2, &limits(7)).unwrap();
        core.set_limits(1, &limits(5)).unwrap();
        assert_eq!(core.engine.config().in_flight_max, 7);
        let nonsense = EngineConfig { batch_requests_max: 0, ..config.clone() };
        assert!(core.set_limits(1, &nonsense).is_err() && core.set_limits(9, &nonsense).is_err());
        core.set_limits(3, &limits(6)).unwrap();
        assert_eq!(core.engine.config().in_flight_max, 6, "what was refused does not count");
        let policy = |name: &str| PreparedPolicy::new(&PolicyConfig::parse(name).unwrap(), &config);
        let plan = |len_ns| {
            let slice = |apps| GateSlice { apps, len_ns };
            let (slices, expires) = (vec![slice(vec![AppId(1)]), slice(Vec::new())], Time(u64::MAX));
            GatePlan { epoch: Time::ZERO, from: Time::ZERO, expires, slices, idle_ns: None }
        };
        core.set_gate(2, Some(plan(7))).unwrap();
        core.set_gate(1, None).unwrap();
        assert!(core.set_gate(1, Some(plan(0))).is_err() && core.set_gate(9, Some(plan(0))).is_err());
        assert_eq!(core.engine.gate().and_then(|gate| gate.plan), Some(plan(7)));
        core.set_policy(2, policy("sjf"));
        core.set_policy(1, policy("noop"));
        assert_eq!(core.engine.policy().name(), "sjf");
    }
}
