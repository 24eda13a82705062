//! The bypass: requests that are executed where they are submitted, without an engine seeing them first.
//!
//! With an algorithm that lets everything through, an engine only keeps overlapping requests apart and counts; with any other
//! that does not wait, too, as long as fewer requests are under way than may be ([`Engine::bypass_max`]) and the storage
//! answers faster than a request could be handed over. On a volume of one target nothing is outstanding but what callers
//! execute themselves, mostly; then a request may go by the engine and be counted afterwards. That saves a third of the
//! processor time of a small request.
//!
//! [`Engine::bypass_max`]: sluice_core::Engine::bypass_max
//!
//! Ordering safety: requests in the bypass are concurrent calls of several threads, of which none is the earlier one, and
//! reach the storage as such. Against requests that an engine has:
//!
//! * who enters the bypass first counts itself and then looks whether the engine has anything; if so it leaves again;
//! * who submits to the engine is counted there first and then waits until the bypass is empty.
//!
//! So after a change of algorithm under load the bypass opens at the first moment at which nothing is outstanding.
//!
//! (All sequentially consistent: of two that come at the same time at least one sees the other.)

use std::cell::Cell;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use sluice_core::{EngineConfig, Op, Outcome, Request, Stats, Time};
use sluice_storage::Segment;

use super::ending::Moved;
use super::memory::{self, Buffer};
use super::{Access, Done, Host, Volume};
use crate::effects::InCallback;
use crate::gate::Gate;
use crate::striped::thread_number;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, sabotaged};

/// Largest buffer that a thread keeps, in bytes.
const KEPT: usize = 1 << 20;

crate::sync::thread_cell! {
    static BUFFER: Cell<Option<Buffer>> = Cell::new(None);
}

/// The bypass of a volume. What every request changes lies in stripes, of which each thread mostly has its own: a cache
/// line that goes back and forth between processors costs more than all the rest.
pub(super) struct Bypass {
    stripes: Box<[CachePadded<Stripe>]>,
    /// Those who keep it closed.
    closed: AtomicU32,
    emptied: Gate,
}

struct Stripe {
    inside: AtomicU32,
    requests: AtomicU64,
    stats: Mutex<Stats>,
}

/// A place in the bypass, until dropped.
pub(super) struct Stay<'a> {
    bypass: &'a Bypass,
    stripe: &'a Stripe,
}

impl Bypass {
    /// An open bypass beside an engine with these settings, whose statistics begin at `start`.
    pub(super) fn new(config: &EngineConfig, start: Time) -> Bypass {
        let count = 2 * std::thread::available_parallelism().map_or(2, usize::from).min(16);
        let stripe = |_| {
            let stats = Mutex::new(Stats::for_bypass(config, start));
            CachePadded::new(Stripe { inside: AtomicU32::new(0), requests: AtomicU64::new(0), stats })
        };
        Bypass { stripes: (0..count).map(stripe).collect(), closed: AtomicU32::new(0), emptied: Gate::default() }
    }

    /// Enters, if it is open, not more than `max` are inside and, once this one is counted, `free`.
    pub(super) fn enter(&self, max: u32, free: impl FnOnce() -> bool) -> Option<Stay<'_>> {
        let stripe = &*self.stripes[thread_number() as usize % self.stripes.len()];
        stripe.inside.fetch_add(1, Ordering::SeqCst);
        let stay = Stay { bypass: self, stripe };
        // Whoever comes last sees all the others.
        let has_room = || max == u32::MAX || self.inside() <= max;
        (has_room() && self.closed.load(Ordering::SeqCst) == 0 && free()).then_some(stay)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inside() == 0
    }

    /// Waits until nobody is inside; `None` if that took until after `until`. New ones must be kept out by something.
    pub(super) fn wait_empty(&self, until: Option<Instant>) -> Option<()> {
        self.emptied.wait(until, || self.is_empty()).then_some(())
    }

    /// Lets nobody in until [`Bypass::open`].
    pub(super) fn close(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn open(&self) {
        self.closed.fetch_sub(1, Ordering::SeqCst);
    }

    /// Requests in the bypass. While new ones are kept out, none that stays is missed, as each stays in its stripe.
    pub(super) fn inside(&self) -> u32 {
        self.stripes.iter().map(|stripe| stripe.inside.load(Ordering::SeqCst)).sum()
    }

    /// Requests that have passed.
    pub(super) fn requests(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.requests.load(Ordering::Relaxed)).sum()
    }

    /// Adds what has passed to the statistics of the engine beside.
    pub(super) fn add_to(&self, now: Time, total: &mut Stats) {
        total.roll(now);
        for stripe in self.stripes.iter().filter(|stripe| stripe.requests.load(Ordering::Relaxed) > 0) {
            let mut stats = stripe.stats.lock();
            stats.roll(now);
            total.merge(&stats);
        }
    }
}

impl Stay<'_> {
    fn count(&self, start: Time, end: Time, request: &Request, outcome: Outcome) {
        self.stripe.requests.fetch_add(1, Ordering::Relaxed);
        self.stripe.stats.lock().count_bypassed(start, end, request, outcome);
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.stripe.inside.fetch_sub(1, Ordering::SeqCst);
        self.bypass.emptied.changed();
    }
}

impl<H: Host> Volume<H> {
    /// A place in the bypass, if there is one and the request may take it.
    pub(super) fn enter_bypass(&self, access: &Access<'_>) -> Option<Stay<'_>> {
        let bypass = self.bypass.as_ref()?;
        let max = self.client.bypass_max(0);
        let fits = (1..=self.piece_max).contains(&(access.len as u64)) && access.end().is_some();
        // What is submitted from inside a completion does not hold that up.
        let speed = &self.service.speed;
        let suits = if self.client.bypasses_queue(0) { !speed.is_slow(access.op) } else { speed.is_fast(access.op) };
        if max == 0 || !fits || !suits || InCallback::is_deep() || self.service.descriptor(access.file, 0).is_none() {
            return None;
        }
        bypass.enter(max, || {
            self.client.bypass_max(0) > 0 && (self.service.ops.outstanding() == 0 || sabotaged!(BypassUnchecked))
        })
    }

    /// Executes a request that has a place in the bypass.
    pub(super) fn execute_bypassing(&self, access: &Access<'_>, memory: Segment, stay: &Stay<'_>) -> Moved {
        let (clock, tap) = (self.scheduler.clock(), &self.service.tap);
        let start = clock.now();
        let request = self.request(access, 0, (0, access.offset, access.len as u32));
        self.note(access.file);
        self.client.record(self.client.is_watched().then_some(start), &request);
        let result = self.service.call_whole(access.file, &request, memory);
        if tap.wants_sums() {
            let bytes = if access.op == Op::Write { access.len } else { result.bytes as usize };
            let sum = memory::checksum(memory.part(0, bytes));
            tap.record_summed(start, &request, sum, bytes as u32);
        }
        let outcome = Outcome { bytes: result.bytes, error: result.errno };
        let end = clock.now();
        self.service.speed.note(end.since(start), access.len as u64, access.op);
        stay.count(start, end, &request, outcome);
        result.into()
    }

    /// Executes a read in a buffer that stays with this thread, and so in its processor's cache.
    pub(super) fn read_bypassing(&self, access: &Access<'_>, stay: Stay<'_>, ticket: H::Ticket) {
        let buffers = &self.service.buffers;
        let kept = BUFFER.try_with(Cell::take).ok().flatten().filter(|kept| kept.size() >= access.len);
        let buffer = kept.unwrap_or_else(|| buffers.take(access.len));
        let result = self.execute_bypassing(access, buffer.raw(access.len), &stay);
        // The host is told outside the bypass: it may submit again.
        self.service.will_tell();
        drop(stay);
        self.service.tell(ticket, Done::Read(buffer.bytes(result.bytes)), result);
        self.service.told();
        match buffer.size() {
            ..=KEPT => _ = BUFFER.try_with(|kept| kept.set(Some(buffer))),
            _ => buffers.put(buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shutdown, VolumeConfig};
    use sluice_core::policy::PolicyInfo;
    use sluice_core::{AppId, PolicyConfig};
    use sluice_storage::posix::{PosixOptions, PosixStorage};
    use sluice_storage::{Creator, FileRef, Namespace};
    use std::ffi::OsStr;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Barrier};

    fn bypass() -> Bypass {
        Bypass::new(&EngineConfig::default(), Time::ZERO)
    }

    #[test]
    fn who_waits_sees_it_empty_and_nobody_enters_a_closed_bypass() {
        let (bypass, engine_has) = (bypass(), AtomicU32::new(0));
        let (end, entered) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !end.load(Ordering::Relaxed) {
                        if let Some(_stay) = bypass.enter(u32::MAX, || engine_has.load(Ordering::SeqCst) == 0) {
                            entered.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for turn in 0..500 {
                engine_has.fetch_add(1, Ordering::SeqCst);
                bypass.wait_empty(None);
                let before = entered.load(Ordering::Relaxed);
                // Somebody may stand at the entrance, but gets no further.
                assert!(bypass.enter(u32::MAX, || engine_has.load(Ordering::SeqCst) == 0).is_none());
                std::thread::yield_now();
                assert_eq!(entered.load(Ordering::Relaxed), before, "turn {turn}");
                engine_has.fetch_sub(1, Ordering::SeqCst);
            }
            bypass.close();
            bypass.wait_empty(None);
            assert!(bypass.enter(u32::MAX, || true).is_none());
            bypass.open();
            end.store(true, Ordering::Relaxed);
        });
        assert!(bypass.enter(u32::MAX, || true).is_some());
        assert!(bypass.is_empty());
    }

    #[test]
    fn no_more_are_inside_than_may_be() {
        const MAX: u32 = 3;
        let (bypass, entered) = (bypass(), Barrier::new(MAX as usize + 1));
        std::thread::scope(|scope| {
            for _ in 0..MAX {
                scope.spawn(|| {
                    let _stay = std::iter::repeat_with(|| bypass.enter(MAX, || true)).find_map(|stay| stay).unwrap();
                    entered.wait();
                    entered.wait();
                });
            }
            entered.wait();
            assert!(bypass.enter(MAX, || true).is_none() && bypass.enter(MAX + 1, || true).is_some());
            entered.wait();
        });
        assert!(bypass.enter(1, || true).is_some() && bypass.is_empty());
    }

    #[test]
    fn what_passes_counts_for_the_engine_beside() {
        let bypass = bypass();
        let request = Request {
            cookie: 0,
            file: sluice_core::FileId(1),
            app: AppId(3),
            target: sluice_core::TargetId(0),
            op: sluice_core::Op::Read,
            offset: 0,
            len: 4096,
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let stay = bypass.enter(u32::MAX, || true).unwrap();
                    stay.count(Time(10), Time(1_010), &request, Outcome::ok(4096));
                });
            }
        });
        assert_eq!(bypass.requests(), 3);
        let config = EngineConfig::default();
        let mut stats = Stats::for_bypass(&config, Time::ZERO);
        bypass.add_to(Time(config.window_ns + 5), &mut stats);
        let total = stats.total();
        assert_eq!((total.completed(), total.submitted(), total.batches, total.bytes()), (3, 3, 3, 3 * 4096));
        assert_eq!((total.apps[0].app, total.apps[0].completed), (Some(request.app), 3));
        assert_eq!(stats.last_window().completed(), 3);
        assert_eq!(stats.current_window().completed(), 0);
    }

    /// A monitor that nobody asks.
    struct Silent;

    impl crate::Monitor for Silent {
        fn arrived(&mut self, _: Time, _: &Request) {}
        fn dispatched(&mut self, _: Time, _: u32) {}
        fn completed(&mut self, _: Time, _: &Request) {}
    }

    #[test]
    fn algorithms_that_do_not_wait_are_bypassed_on_fast_storages_where_nobody_looks() {
        let dir = tempfile::tempdir().unwrap();
        let volume = |policy: &str, in_flight_max: u32| {
            let storage = PosixStorage::open(dir.path(), PosixOptions::default()).unwrap();
            let (flags, creator) = (libc::O_RDWR | libc::O_CREAT, Creator::process());
            let (_, file) = storage.create(&storage.root(), OsStr::new("f"), 0o600, flags, &creator).unwrap();
            let engine = EngineConfig { in_flight_max, ..EngineConfig::default() };
            let config =
                VolumeConfig { policy: PolicyConfig::parse(policy).unwrap(), engine, ..VolumeConfig::default() };
            (Volume::start(storage.into(), Arc::new(()), config).unwrap(), file)
        };
        // Whether one of so many writes goes by the engine. How fast the storage is, is measured: more may be needed for one.
        let goes_by = |(volume, file): &(Volume<()>, FileRef), turns: u32| {
            (0..turns).any(|_| {
                volume.write_at(file, AppId(0), 0, &[1; 512]).unwrap();
                volume.bypass.as_ref().unwrap().requests() > 0
            })
        };
        for info in sluice_core::policy::table().iter().filter(|info| !info.bypasses_queue) {
            let may = !info.waits && !info.shared_engine;
            assert_eq!(goes_by(&volume(info.name, 0), if may { 10_000_000 } else { 500 }), may, "{}", info.name);
        }
        let seen = volume("sjf", 0);
        assert!(seen.0.scheduler.set_monitor(0, Some(Box::new(Silent))).is_none());
        assert!(!goes_by(&seen, 500));
        seen.0.service.speed.note(1_000_000, 512, Op::Write);
        assert!(seen.0.scheduler.set_monitor(0, None).is_some());
        assert!(!goes_by(&seen, 1), "it was slow");
    }

    /// Each thread writes and reads back its own block; all sorts of algorithms come and go meanwhile.
    #[test]
    fn every_request_is_done_and_counted_once_while_algorithms_change() {
        const TURNS: u32 = 3_000;
        let dir = tempfile::tempdir().unwrap();
        let storage = PosixStorage::open(dir.path(), PosixOptions::default()).unwrap();
        let name = OsStr::new("f");
        let (_, file) = storage.create(&storage.root(), name, 0o600, libc::O_RDWR, &Creator::process()).unwrap();
        let volume = Volume::start(storage.into(), Arc::new(()), VolumeConfig::default()).unwrap();
        let change = |info: &PolicyInfo| volume.set_policy(&PolicyConfig::parse(info.name).unwrap());
        let all = sluice_core::policy::table();
        let passes = VolumeConfig::default().policy.info();
        // Once each way, whatever the threads meet: of those that do not wait each may pass, where the storage is fast.
        for info in [passes, *all.iter().find(|info| info.waits).unwrap()] {
            change(info);
            volume.write_at(&file, AppId(0), 0, &[1; 512]).unwrap();
        }
        let pause = Barrier::new(3);
        let work = |block: u32| {
            let app = AppId(block);
            for turn in 0..TURNS {
                if turn % 20 == 0 {
                    // For a moment nothing is outstanding, so the bypass can open.
                    pause.wait();
                }
                let data = [(turn % 251) as u8; 512];
                let mut back = [0; 512];
                let at = u64::from(block) * 512;
                assert_eq!(volume.write_at(&file, app, at, &data).unwrap(), 512);
                assert_eq!(volume.read_at(&file, app, at, &mut back).unwrap(), 512);
                assert_eq!(back, data, "block {block}, turn {turn}");
            }
        };
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..3).map(|block| scope.spawn(move || work(block))).collect();
            let mut turn = 0;
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                let all = sluice_core::policy::table();
                // Every other time the first one that lets requests pass.
                let info =
                    if turn % 2 == 0 { all[turn / 2 % all.len()] } else { VolumeConfig::default().policy.info() };
                volume.set_policy(&sluice_core::PolicyConfig::parse(info.name).unwrap());
                volume.wait_idle(&file);
                turn += 1;
            }
        });
        let snapshot = volume.snapshot();
        let total = snapshot.runtime.total.total();
        let requests = u64::from(3 * 2 * TURNS) + 2;
        assert_eq!((total.submitted(), total.completed(), total.bytes()), (requests, requests, requests * 512));
        let mut apps: Vec<u64> = total.apps.iter().map(|app| app.completed).collect();
        apps.sort_unstable();
        assert_eq!(apps, [2 * TURNS, 2 * TURNS, 2 * TURNS + 2].map(u64::from));
        assert_eq!((snapshot.outstanding, snapshot.bypassing), (0, 0));
        let passed = volume.bypass.as_ref().unwrap().requests();
        assert!((1..requests).contains(&passed), "both ways were taken: {passed} of {requests} passed");
        volume.shutdown(Shutdown::Fail(libc::ECANCELED));
        let error = volume.write_at(&file, AppId(0), 0, b"late").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESHUTDOWN));
    }
}
