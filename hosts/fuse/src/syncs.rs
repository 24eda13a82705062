//! Syncs, which are put off a little where one commit of the file system's journal then serves several
//! ([`sluice_core::GroupCommit`]). Each is carried out on a thread of the pool, after it has come, and answered after that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use sluice_core::{GroupCommit, GroupCommitCounts, SyncTicket, Time};

use crate::pool::Pool;

/// The thread that lets held syncs go ends after so long without any; in tests never, where it is to be woken.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 86_400 } else { 10 });

/// A sync: does it, then tells that it has ended, then answers.
type Job = Box<dyn FnOnce(Running) + Send>;

#[derive(Clone)]
pub(crate) struct Syncs {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    clock: Box<dyn Fn() -> Time + Send + Sync>,
    state: Mutex<State>,
    /// There is another time to wake at, or the end has come, or what was let go is with the pool.
    changed: Condvar,
    /// The system refuses threads.
    #[cfg(test)]
    refused: std::sync::atomic::AtomicBool,
}

struct State {
    groups: GroupCommit<Job>,
    /// When something that is held goes, if nothing happens until then.
    wakes: Option<Time>,
    /// There is a thread that sleeps until then.
    has_timer: bool,
    /// Threads that have let syncs go and are about to hand them to the pool.
    letting_go: usize,
    closed: bool,
}

/// Syncs that have been let go, until the pool has them.
struct LetGo<'a> {
    shared: &'a Arc<Shared>,
    syncs: Vec<(Job, SyncTicket)>,
}

impl LetGo<'_> {
    fn hand_over(mut self) {
        for (job, ticket) in std::mem::take(&mut self.syncs) {
            let running = Running { shared: self.shared.clone(), ticket: Some(ticket) };
            self.shared.pool.run(move || job(running));
        }
    }
}

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.letting_go -= 1;
        if state.closed {
            self.shared.changed.notify_all();
        }
    }
}

/// What a mount has done about syncs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupCommits {
    /// What moving costs the device, in nanoseconds; 0: nothing is put off.
    pub positioning_ns: u64,
    /// Since the mount began.
    pub counts: GroupCommitCounts,
}

/// A sync that is under way. Dropping it tells that it has ended.
pub(crate) struct Running {
    shared: Arc<Shared>,
    ticket: Option<SyncTicket>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut state = self.shared.state.lock();
        let now = self.shared.now();
        state.groups.end(now, ticket);
        self.shared.go_on(state, now);
    }
}

impl Syncs {
    pub(crate) fn new(threads_max: usize, positioning: Option<Duration>) -> Syncs {
        let began = Instant::now();
        let clock = move || Time(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        Syncs::with_clock(threads_max, positioning, clock)
    }

    fn with_clock(
        threads_max: usize,
        positioning: Option<Duration>,
        clock: impl Fn() -> Time + Send + Sync + 'static,
    ) -> Syncs {
        let groups = GroupCommit::new(nanoseconds(positioning));
        let state = Mutex::new(State { groups, wakes: None, has_timer: false, letting_go: 0, closed: false });
        let pool = Pool::new("sluice-sync", threads_max);
        let shared = Shared {
            pool,
            clock: Box::new(clock),
            state,
            changed: Condvar::new(),
            #[cfg(test)]
            refused: Default::default(),
        };
        Syncs { shared: Arc::new(shared) }
    }

    /// Carries a sync of the thread `syncer` out, together with others where that pays. `sync` is called after this has
    /// been; `answer` gets its result.
    pub(crate) fn sync<R>(
        &self,
        syncer: u32,
        sync: impl FnOnce() -> R + Send + 'static,
        answer: impl FnOnce(R) + Send + 'static,
    ) {
        let job = Box::new(move |running| {
            let result = sync();
            // Before its thread can come again: what it needs until then is what counts.
            drop(running);
            answer(result);
        });
        let mut state = self.shared.state.lock();
        let now = self.shared.now();
        state.groups.arrive(now, syncer.into(), job);
        self.shared.go_on(state, now);
    }

    /// Runs what else waits for a device.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.shared.pool.run(job);
    }

    /// Moving costs the device so long; `None`: nothing, and nothing is put off.
    pub(crate) fn set_positioning(&self, positioning: Option<Duration>) {
        let mut state = self.shared.state.lock();
        if state.closed {
            // Nobody would let go what is held.
            return;
        }
        state.groups.set_positioning(nanoseconds(positioning));
        let now = self.shared.now();
        self.shared.go_on(state, now);
    }

    pub(crate) fn group_commits(&self) -> GroupCommits {
        let state = self.shared.state.lock();
        GroupCommits { positioning_ns: state.groups.positioning_ns(), counts: state.groups.counts() }
    }

    /// Runs what is held and queued, and waits until the last job has ended.
    pub(crate) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        state.groups.set_positioning(0);
        let now = self.shared.now();
        self.shared.go_on(state, now);
        self.shared.changed.notify_all();
        // Others that were let go just before: the pool would not wait for what it does not have yet.
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while(&mut state, |state| state.letting_go > 0);
        drop(state);
        self.shared.pool.close();
    }
}

impl Shared {
    fn now(&self) -> Time {
        (self.clock)()
    }

    /// Starts what is to go now.
    fn go_on(self: &Arc<Shared>, state: MutexGuard<'_, State>, now: Time) {
        if let Some(go) = self.let_go(state, now) {
            go.hand_over();
        }
    }

    /// Takes what is to go now, if there is any.
    fn let_go(self: &Arc<Shared>, mut state: MutexGuard<'_, State>, now: Time) -> Option<LetGo<'_>> {
        let mut start = Vec::new();
        let before = state.wakes;
        state.wakes = state.groups.poll(now, &mut start);
        // Who sleeps too short finds out.
        let is_sooner = state.wakes.is_some_and(|wakes| before.is_none_or(|before| wakes < before));
        if is_sooner && !self.is_awaited(&mut state) {
            // Nobody would let them go.
            state.groups.set_positioning(0);
            state.wakes = state.groups.poll(now, &mut start);
        }
        if start.is_empty() {
            return None;
        }
        state.letting_go += 1;
        drop(state);
        Some(LetGo { shared: self, syncs: start })
    }

    /// Whether there is a thread that waits for the time.
    fn is_awaited(self: &Arc<Shared>, state: &mut State) -> bool {
        if state.has_timer {
            self.changed.notify_all();
            return true;
        }
        let started = self.start_timer();
        state.has_timer = started.is_ok();
        if let Err(error) = started {
            tracing::warn!(%error, "syncs go one by one: the system refuses a thread");
        }
        state.has_timer
    }

    fn start_timer(self: &Arc<Shared>) -> std::io::Result<()> {
        #[cfg(test)]
        if self.refused.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        let shared = self.clone();
        std::thread::Builder::new().name("sluice-group".into()).spawn(move || shared.keep_time()).map(drop)
    }

    /// Lets go what has been held for long enough.
    fn keep_time(self: &Arc<Shared>) {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                break;
            }
            let now = self.now();
            match state.wakes {
                Some(at) if at <= now => {
                    self.go_on(state, now);
                    state = self.state.lock();
                }
                Some(at) => _ = self.changed.wait_for(&mut state, Duration::from_nanos(at.since(now))),
                None => {
                    if self.changed.wait_for(&mut state, IDLE).timed_out() && state.wakes.is_none() {
                        break;
                    }
                }
            }
        }
        state.has_timer = false;
    }
}

fn nanoseconds(positioning: Option<Duration>) -> u64 {
    positioning.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const POSITIONING: Duration = Duration::from_millis(8);
    const SYNC_NS: u64 = 30_000_000;
    const THINK_NS: u64 = 100_000;
    /// Ends what hangs.
    const LIMIT: Duration = Duration::from_secs(120);

    /// Syncs on a clock that only stands still or is moved.
    struct Place {
        syncs: Syncs,
        now: Arc<AtomicU64>,
    }

    /// A sync that has been asked for: says when it begins, and ends when told to.
    struct Asked {
        begins: Receiver<()>,
        end: Sender<()>,
        /// With how many syncs were under way when it was answered.
        answered: Receiver<u32>,
    }

    impl Place {
        fn new() -> Place {
            let now = Arc::new(AtomicU64::new(1));
            let clock = now.clone();
            let clock = move || Time(clock.load(Ordering::SeqCst));
            Place { syncs: Syncs::with_clock(8, Some(POSITIONING), clock), now }
        }

        fn ask(&self, syncer: u32) -> Asked {
            let ((beginning, begins), (end, ends)) = (channel(), channel());
            let (answer, answered) = channel();
            let sync = move || {
                beginning.send(()).unwrap();
                ends.recv().unwrap();
            };
            let shared = self.syncs.shared.clone();
            let under_way = move || shared.state.lock().groups.under_way();
            self.syncs.sync(syncer, sync, move |()| answer.send(under_way()).unwrap());
            Asked { begins, end, answered }
        }

        fn pass(&self, ns: u64) {
            self.now.fetch_add(ns, Ordering::SeqCst);
        }

        /// A sync from its beginning to its end, and its thread's time until the next one.
        fn once(&self, syncer: u32) {
            let asked = self.ask(syncer);
            asked.begin();
            self.pass(SYNC_NS);
            assert_eq!(asked.end(), 0, "it has ended before it is answered: its thread could come again at once");
            self.pass(THINK_NS);
        }

        /// Threads that come back soon; the last of them will now.
        fn teach(&self, syncers: &[u32]) {
            for &syncer in syncers {
                // Nobody waits for the one before any more.
                self.pass(10 * SYNC_NS);
                (0..10).for_each(|_| self.once(syncer));
            }
        }

        /// One that is under way, and another one that is held for it.
        fn hold(&self) -> (Asked, Asked) {
            self.teach(&[2, 1]);
            let first = self.ask(1);
            first.begin();
            let second = self.ask(2);
            assert!(!second.has_begun() && self.held() == 1);
            (first, second)
        }

        fn held(&self) -> usize {
            self.syncs.shared.state.lock().groups.held()
        }
    }

    impl Asked {
        fn end(&self) -> u32 {
            self.end.send(()).unwrap();
            self.answered.recv_timeout(LIMIT).expect("answered")
        }

        fn begin(&self) {
            self.begins.recv_timeout(LIMIT).expect("begun");
        }

        fn has_begun(&self) -> bool {
            self.begins.try_recv().is_ok()
        }
    }

    #[test]
    fn who_syncs_while_another_does_goes_with_its_next_one() {
        let place = Place::new();
        place.teach(&[2, 1]);
        let first = place.ask(1);
        first.begin();
        place.pass(SYNC_NS / 2);
        let second = place.ask(2);
        assert!(!second.has_begun() && place.held() == 1);
        place.pass(SYNC_NS / 2);
        first.end();
        assert!(!second.has_begun() && place.held() == 1, "the first is about to come back");
        place.pass(THINK_NS);
        let again = place.ask(1);
        for asked in [second, again] {
            asked.begin();
            asked.end();
        }
        let counts = place.syncs.group_commits().counts;
        assert_eq!((counts.held, counts.syncs - counts.groups), (1, 1), "{counts:?}");
        place.syncs.close();
    }

    #[test]
    fn what_is_held_goes_when_its_time_is_over_though_nothing_happens() {
        let place = Place::new();
        // The second time there is a thread that keeps the time, asleep.
        for _ in 0..2 {
            let (first, second) = place.hold();
            // More than two syncs: that thread sees it.
            place.pass(3 * SYNC_NS);
            second.begin();
            first.end();
            second.end();
        }
        place.syncs.close();
        let has_timer = || place.syncs.shared.state.lock().has_timer;
        let until = Instant::now() + LIMIT;
        while has_timer() {
            assert!(Instant::now() < until, "the thread that keeps the time stays");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_held_goes_as_soon_as_there_is_nobody_to_wait_for() {
        let place = Place::new();
        // There is no such thread: nothing but the end of the first one lets the second go.
        place.syncs.shared.state.lock().has_timer = true;
        let (first, second) = place.hold();
        // It took so long that it is not waited for again.
        place.pass(100 * SYNC_NS);
        first.end();
        second.begin();
        second.end();
        place.syncs.close();
    }

    #[test]
    fn where_nobody_can_keep_the_time_nothing_is_held() {
        let place = Place::new();
        place.syncs.shared.refused.store(true, Ordering::SeqCst);
        place.teach(&[2, 1]);
        let first = place.ask(1);
        first.begin();
        let second = place.ask(2);
        second.begin();
        assert_eq!((first.end(), second.end(), place.held()), (1, 0, 0));
        place.syncs.close();
    }

    #[test]
    fn what_is_held_goes_when_the_device_turns_out_to_have_no_arm() {
        let place = Place::new();
        let (first, second) = place.hold();
        place.syncs.set_positioning(None);
        second.begin();
        first.end();
        second.end();
        place.syncs.close();
        place.syncs.set_positioning(Some(POSITIONING));
        assert_eq!(place.syncs.group_commits().positioning_ns, 0, "nobody would let go what is held after the end");
    }

    #[test]
    fn closing_waits_for_what_somebody_has_just_let_go() {
        let place = Place::new();
        let (first, second) = place.hold();
        first.end();
        let shared = &place.syncs.shared;
        let mut state = shared.state.lock();
        state.groups.set_positioning(0);
        let go = shared.let_go(state, shared.now()).expect("the second one");
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| place.syncs.close());
            // Time enough to do it too early.
            let mut looks = 0;
            while looks < 10_000 && !closing.is_finished() {
                looks += usize::from(shared.state.lock().closed);
                std::thread::yield_now();
            }
            assert!(!closing.is_finished(), "the pool does not have it yet");
            go.hand_over();
            second.begin();
            second.end();
        });
    }

    #[test]
    fn closing_carries_out_what_is_held_and_what_comes_later() {
        let place = Place::new();
        let (first, second) = place.hold();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| place.syncs.close());
            second.begin();
            assert!(!closing.is_finished(), "it waits for those that are under way");
            first.end();
            second.end();
        });
        let (answer, answered) = channel();
        place.syncs.sync(1, || (), move |()| answer.send(()).unwrap());
        assert!(answered.try_recv().is_ok(), "on the caller's thread");
        assert_eq!(place.held(), 0);
    }

    #[test]
    fn a_sync_that_panics_holds_nobody_back() {
        let place = Place::new();
        place.teach(&[2, 1]);
        let ((go, goes), (beginning, begins)) = (channel::<()>(), channel());
        let sync = move || {
            beginning.send(()).unwrap();
            goes.recv().unwrap();
            panic!("on purpose: the test wants to see what happens");
        };
        place.syncs.sync(1, sync, |()| ());
        begins.recv().unwrap();
        let second = place.ask(2);
        assert_eq!(place.held(), 1);
        go.send(()).unwrap();
        // Its thread comes again.
        let again = loop {
            if place.syncs.shared.state.lock().groups.under_way() == 0 {
                break place.ask(1);
            }
            std::thread::yield_now();
        };
        for asked in [second, again] {
            asked.begin();
            asked.end();
        }
        place.syncs.close();
    }

    /// Whatever comes together: each sync is carried out once, after it was asked for, and answered after that.
    #[test]
    fn a_sync_is_answered_after_one_that_began_after_it_was_asked_for() {
        let syncs = Syncs::new(8, Some(POSITIONING));
        let steps = Arc::new(AtomicU64::new(0));
        std::thread::scope(|scope| {
            for syncer in 1..=6 {
                let (syncs, steps) = (&syncs, &steps);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let asked = steps.fetch_add(1, Ordering::SeqCst);
                        let (answer, answered) = channel();
                        let at = steps.clone();
                        let sync = move || {
                            let began = at.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                            [began, at.fetch_add(1, Ordering::SeqCst)]
                        };
                        syncs.sync(syncer, sync, move |told| answer.send(told).unwrap());
                        let [began, ended] = answered.recv().unwrap();
                        assert!(asked < began && began < ended && ended < steps.load(Ordering::SeqCst));
                    }
                });
            }
        });
        let counts = syncs.group_commits().counts;
        assert_eq!(counts.syncs, 6 * 50);
        assert_eq!(syncs.shared.state.lock().groups.under_way(), 0);
        syncs.close();
    }
}
