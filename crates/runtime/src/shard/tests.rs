use std::sync::OnceLock;

use super::*;
use crate::client::{ALL, Executor, Started};
use crate::clock::ClockKind;
use crate::parked::{Owners, Parked, before_waiting};
use sluice_core::{AppId, Batch, EngineConfig, FileId, Op, PolicyConfig, TargetId};

struct Quiet;

impl Executor for Quiet {
    fn start(&self, _: &Batch, _: &Started<'_>) {}
    fn cancelled(&self, _: &Request, _: i32) {}
}

fn request(target: u32) -> Request {
    Request { cookie: 0, file: FileId(1), app: AppId(0), target: TargetId(target), op: Op::Read, offset: 0, len: 1 }
}

#[test]
fn what_is_left_to_a_holder_after_the_end_is_seen_to_however_much_it_is() {
    const COUNT: u32 = 3 * TURN;
    let (clock, mut config) = (Clock::new(ClockKind::Start), EngineConfig::default());
    (config.capacity, config.in_flight_max) = (COUNT, COUNT);
    for driving in [Driving::Caller, Driving::Thread] {
        let engine = Engine::new(config.clone(), &PolicyConfig::parse("noop").unwrap(), Time::ZERO).unwrap();
        let shard = Shard::new(0, clock, engine, driving, Bell::new());
        let own = Completer { shard: shard.clone(), port: Arc::new(Port::new(0, ALL, Arc::new(Quiet), true)) };
        shard.attach(&own);
        // Without a thread nobody would drive before the end: this one asks for each.
        let ids: Vec<_> = (0..COUNT).map(|_| shard.submit_with_id(&own, request(0)).unwrap()).collect();
        shard.ask(&own, |_| ());
        shard.close(None);
        let reporter = own.clone();
        shard.ask(&own, move |_| ids.iter().for_each(|id| reporter.complete(*id, Outcome::ok(1))));
        assert_eq!(shard.token.places(), 0, "{driving:?}");
    }
}

#[test]
fn what_is_parked_gives_its_place_back_to_its_own_engine() {
    let (clock, config) = (Clock::new(ClockKind::Start), EngineConfig::default());
    let engine = || Engine::new(config.clone(), &PolicyConfig::parse("sjf").unwrap(), Time::ZERO).unwrap();
    let shard = |index| Shard::new(index, clock, engine(), Driving::Caller, Bell::new());
    let own = |index| Completer { shard: shard(index), port: Arc::new(Port::new(0, ALL, Arc::new(Quiet), true)) };
    let owners: Owners = Arc::new([own(0), own(1)]);
    let request = request(1);
    for own in &*owners {
        assert_eq!(own.shard.admit(own, &request, false), Ok(false));
    }
    let mut effects = Effects::default();
    effects.push(0, 0, Effect::Cancel(Box::new((request, libc::EIO))), || unreachable!("it is its own"));
    let parked = Parked::put(&owners, effects);
    before_waiting();
    assert!(parked.take().is_empty());
    assert_eq!(owners.iter().map(|own| own.shard.token.places()).collect::<Vec<_>>(), [1, 0]);
}

/// Drives the engine when it is told of a cancellation, and notes what is in flight then.
struct Drives {
    own: OnceLock<Completer>,
    in_flight: AtomicU32,
}

impl Executor for Drives {
    fn start(&self, _: &Batch, _: &Started<'_>) {}

    fn cancelled(&self, _: &Request, _: i32) {
        let own = self.own.get().expect("set before anything is submitted");
        Shard::drive(&own.shard, own);
        self.in_flight.fetch_max(own.shard.in_flight.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// More requests are refused than are told of at a time, before it is the turn of a completion.
#[test]
fn what_a_thread_has_brought_is_not_kept_from_a_host_that_it_calls() {
    let (clock, config) = (Clock::new(ClockKind::Start), EngineConfig::default());
    let engine = Engine::new(config, &PolicyConfig::parse("to").unwrap(), Time::ZERO).unwrap();
    let shard = Shard::new(0, clock, engine, Driving::Caller, Bell::new());
    let host = Arc::new(Drives { own: OnceLock::new(), in_flight: AtomicU32::new(0) });
    let own = Completer { shard: shard.clone(), port: Arc::new(Port::new(0, ALL, host.clone(), true)) };
    host.own.set(own.clone()).ok().unwrap();
    shard.attach(&own);
    let id = shard.submit_with_id(&own, request(0)).unwrap();
    assert_eq!(shard.in_flight.load(Ordering::SeqCst), 1);
    assert!(shard.token.try_take());
    shard.push(&own, Command::Control(Box::new(|core: &mut Core| _ = core.fail(None, libc::EIO))));
    (0..EFFECTS_MAX + 9).for_each(|_| shard.try_submit(&own, request(0), None).unwrap());
    shard.drive_held(&own, Brought::Complete(&[(id, Outcome::ok(1))]), None);
    assert_eq!((shard.token.places(), host.in_flight.load(Ordering::SeqCst)), (0, 0));
}
