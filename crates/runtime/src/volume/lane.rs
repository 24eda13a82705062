//! The passing lane: requests that are executed where they are submitted, without an engine seeing them first.
//!
//! With an algorithm that lets everything through, an engine only keeps overlapping requests apart and counts. On a volume
//! of one target nothing is outstanding but what callers execute themselves, mostly; then a request may go by the engine
//! and be counted afterwards. That saves a third of the processor time of a small request.
//!
//! Ordering safety: requests in the lane are concurrent calls of several threads, of which none is the earlier one, and
//! reach the storage as such. Against requests that an engine has:
//!
//! * who enters the lane first counts itself and then looks whether the engine has anything; if so it leaves again;
//! * who submits to the engine is counted there first and then waits until the lane is empty.
//!
//! So after a change of algorithm under load the lane opens at the first moment at which nothing is outstanding.
//!
//! (All sequentially consistent: of two that come at the same time at least one sees the other.)

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sluice_core::{EngineConfig, Op, Outcome, Request, Stats, Time};

use super::execute::Caller;
use super::job::Inside;
use sluice_storage::Segment;

use super::memory::{self, Buffer};
use super::{Done, Host, Volume, What};
use crate::gate::Gate;

/// Largest buffer that a thread keeps, in bytes.
const KEPT: usize = 1 << 20;

thread_local! {
    static BUFFER: Cell<Option<Buffer>> = const { Cell::new(None) };
}

/// The lane of a volume. What every request changes lies in stripes, of which each thread mostly has its own: a cache
/// line that goes back and forth between processors costs more than all the rest.
pub(super) struct Lane {
    stripes: Box<[CachePadded<Stripe>]>,
    /// Those who keep it closed.
    closed: AtomicU32,
    emptied: Gate,
}

struct Stripe {
    inside: AtomicU32,
    passed: AtomicU64,
    stats: Mutex<Stats>,
}

/// A stay in the lane.
pub(super) struct Pass<'a> {
    lane: &'a Lane,
    stripe: &'a Stripe,
}

impl Lane {
    /// An open lane beside an engine with these settings, whose statistics begin at `start`.
    pub(super) fn new(config: &EngineConfig, start: Time) -> Lane {
        let count = 2 * std::thread::available_parallelism().map_or(2, usize::from).min(16);
        let stripe = |_| {
            let stats = Mutex::new(Stats::beside(config, start));
            CachePadded::new(Stripe { inside: AtomicU32::new(0), passed: AtomicU64::new(0), stats })
        };
        Lane { stripes: (0..count).map(stripe).collect(), closed: AtomicU32::new(0), emptied: Gate::default() }
    }

    /// Enters, if it is open and, once this one is counted, `free`.
    pub(super) fn enter(&self, free: impl FnOnce() -> bool) -> Option<Pass<'_>> {
        let stripe = &*self.stripes[thread_number() % self.stripes.len()];
        stripe.inside.fetch_add(1, Ordering::SeqCst);
        let pass = Pass { lane: self, stripe };
        (self.closed.load(Ordering::SeqCst) == 0 && free()).then_some(pass)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inside() == 0
    }

    /// Waits until nobody is inside. New ones must be kept out by something.
    pub(super) fn wait_empty(&self) {
        self.emptied.wait(None, || self.is_empty());
    }

    /// Lets nobody in until [`Lane::open`].
    pub(super) fn close(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn open(&self) {
        self.closed.fetch_sub(1, Ordering::SeqCst);
    }

    /// Requests in the lane. While new ones are kept out, none that stays is missed, as each stays in its stripe.
    pub(super) fn inside(&self) -> u32 {
        self.stripes.iter().map(|stripe| stripe.inside.load(Ordering::SeqCst)).sum()
    }

    /// Requests that have passed.
    pub(super) fn passed(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.passed.load(Ordering::Relaxed)).sum()
    }

    /// Adds what has passed to the statistics of the engine beside.
    pub(super) fn add_to(&self, now: Time, total: &mut Stats) {
        total.roll(now);
        for stripe in self.stripes.iter().filter(|stripe| stripe.passed.load(Ordering::Relaxed) > 0) {
            let mut stats = stripe.stats.lock();
            stats.roll(now);
            total.merge(&stats);
        }
    }
}

impl Pass<'_> {
    fn count(&self, start: Time, end: Time, request: &Request, outcome: Outcome) {
        self.stripe.passed.fetch_add(1, Ordering::Relaxed);
        self.stripe.stats.lock().count_passed(start, end, request, outcome);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.stripe.inside.fetch_sub(1, Ordering::SeqCst);
        self.lane.emptied.changed();
    }
}

/// Numbers threads in the order in which they first ask.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

/// A request that goes by the engine.
pub(super) struct Passing<'a> {
    pass: Pass<'a>,
    _inside: Inside,
}

impl<H: Host> Volume<H> {
    /// A place in the lane, if there is one and the request may take it.
    pub(super) fn passing(&self, what: &What<'_>) -> Option<Passing<'_>> {
        let lane = self.lane.as_ref().filter(|_| self.runtime.lets_pass(0))?;
        let fits = (1..=self.piece_max).contains(&(what.len as u64)) && what.end().is_some();
        // What is submitted from inside a completion does not hold that up.
        let inside = Inside::enter(self.inner.address());
        if !fits || !inside.outermost() || self.inner.storage.data.descriptor(what.file, 0).is_none() {
            return None;
        }
        let pass = lane.enter(|| self.runtime.lets_pass(0) && self.inner.ops.outstanding() == 0)?;
        Some(Passing { pass, _inside: inside })
    }

    /// Executes a request that is in the lane.
    pub(super) fn pass(&self, what: &What<'_>, memory: Segment, passing: &Passing<'_>) -> io::Result<usize> {
        let clock = self.runtime.clock();
        let start = clock.now();
        let request = self.request(what, 0, (0, what.offset, what.len as u32));
        self.note(what.file);
        self.runtime.record(self.runtime.is_watched().then_some(start), &request);
        let result = self.inner.call_whole(what.file, &request, memory);
        if self.runtime.tap.wants_sums() {
            let bytes = if what.op == Op::Write { what.len } else { *result.as_ref().unwrap_or(&0) };
            let sum = memory::checksum(memory.part(0, bytes));
            self.runtime.tap.record_summed(start, &request, sum, bytes as u32);
        }
        let outcome = match &result {
            Ok(bytes) => Outcome::ok(*bytes as u32),
            Err(error) => Outcome { bytes: 0, error: error.raw_os_error().unwrap_or(libc::EIO) },
        };
        passing.pass.count(start, clock.now(), &request, outcome);
        result
    }

    /// Executes a read in a buffer that stays with this thread, and so in its processor's cache.
    pub(super) fn pass_read(&self, what: &What<'_>, passing: Passing<'_>, ticket: H::Ticket) {
        let buffers = &self.inner.buffers;
        let buffer = BUFFER.take().filter(|kept| kept.size() >= what.len).unwrap_or_else(|| buffers.take(what.len));
        let result = self.pass(what, buffer.raw(what.len), &passing);
        self.passed(passing, ticket, result.map(|bytes| Done::Read(buffer.bytes(bytes))));
        match buffer.size() {
            ..=KEPT => BUFFER.set(Some(buffer)),
            _ => buffers.put(buffer),
        }
    }

    /// Tells the host, outside the lane: it may submit again.
    pub(super) fn passed(&self, passing: Passing<'_>, ticket: H::Ticket, result: io::Result<Done<'_>>) {
        drop(passing.pass);
        self.inner.host.complete(ticket, result);
        // What the host submitted when it was told.
        self.inner.run_collected(Caller::Passer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shutdown, VolumeConfig};
    use sluice_core::policy::PolicyInfo;
    use sluice_core::{AppId, PolicyConfig};
    use sluice_storage::posix::{PosixOptions, PosixStorage};
    use sluice_storage::{Creator, Namespace};
    use std::ffi::OsStr;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Barrier};

    fn lane() -> Lane {
        Lane::new(&EngineConfig::default(), Time::ZERO)
    }

    #[test]
    fn who_waits_sees_it_empty_and_nobody_enters_a_closed_lane() {
        let (lane, engine_has) = (lane(), AtomicU32::new(0));
        let (end, entered) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !end.load(Ordering::Relaxed) {
                        if let Some(_pass) = lane.enter(|| engine_has.load(Ordering::SeqCst) == 0) {
                            entered.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for turn in 0..2_000 {
                engine_has.fetch_add(1, Ordering::SeqCst);
                lane.wait_empty();
                let before = entered.load(Ordering::Relaxed);
                // Somebody may stand at the entrance, but gets no further.
                assert!(lane.enter(|| engine_has.load(Ordering::SeqCst) == 0).is_none());
                std::thread::yield_now();
                assert_eq!(entered.load(Ordering::Relaxed), before, "turn {turn}");
                engine_has.fetch_sub(1, Ordering::SeqCst);
            }
            lane.close();
            lane.wait_empty();
            assert!(lane.enter(|| true).is_none());
            lane.open();
            end.store(true, Ordering::Relaxed);
        });
        assert!(lane.enter(|| true).is_some());
        assert!(lane.is_empty());
    }

    #[test]
    fn what_passes_counts_for_the_engine_beside() {
        let lane = lane();
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
                    let pass = lane.enter(|| true).unwrap();
                    pass.count(Time(10), Time(1_010), &request, Outcome::ok(4096));
                });
            }
        });
        assert_eq!(lane.passed(), 3);
        let config = EngineConfig::default();
        let mut stats = Stats::beside(&config, Time::ZERO);
        lane.add_to(Time(config.window_ns + 5), &mut stats);
        let total = stats.total();
        assert_eq!((total.completed(), total.submitted(), total.batches, total.bytes()), (3, 3, 3, 3 * 4096));
        assert_eq!((total.apps[0].app, total.apps[0].completed), (Some(request.app), 3));
        assert_eq!(stats.last_window().completed(), 3);
        assert_eq!(stats.current_window().completed(), 0);
    }

    struct Nobody;

    impl Host for Nobody {
        type Ticket = ();
        fn complete(&self, (): (), _: io::Result<Done<'_>>) {}
    }

    /// Each thread writes and reads back its own block; all sorts of algorithms come and go meanwhile.
    #[test]
    fn every_request_is_done_and_counted_once_while_algorithms_change() {
        const TURNS: u32 = 3_000;
        let dir = tempfile::tempdir().unwrap();
        let storage = PosixStorage::open(dir.path(), PosixOptions::default()).unwrap();
        let name = OsStr::new("f");
        let (_, file) = storage.create(&storage.root(), name, 0o600, libc::O_RDWR, &Creator::process()).unwrap();
        let volume = Volume::start(storage.into(), Arc::new(Nobody), VolumeConfig::default()).unwrap();
        let change = |info: &PolicyInfo| volume.set_policy(&PolicyConfig::parse(info.name).unwrap()).unwrap();
        let all = sluice_core::policy::table();
        let passes = VolumeConfig::default().policy.info();
        // Once each way, whatever the threads meet.
        for info in [passes, *all.iter().find(|info| !info.bypasses_queue).unwrap()] {
            change(info);
            volume.write_at(&file, AppId(0), 0, &[1; 512]).unwrap();
        }
        let pause = Barrier::new(3);
        let work = |block: u32| {
            let app = AppId(block);
            for turn in 0..TURNS {
                if turn % 20 == 0 {
                    // For a moment nothing is outstanding, so the lane can open.
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
                volume.set_policy(&sluice_core::PolicyConfig::parse(info.name).unwrap()).unwrap();
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
        assert_eq!((snapshot.outstanding, snapshot.passing), (0, 0));
        assert!((1..requests).contains(&volume.lane.as_ref().unwrap().passed()), "both ways were taken");
        volume.shutdown(Shutdown::Fail(libc::ECANCELED));
        let error = volume.write_at(&file, AppId(0), 0, b"late").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESHUTDOWN));
    }
}
