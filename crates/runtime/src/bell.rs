//! The thread that drives engines when no caller does: at a policy's deadline, when a caller's turn was cut short, and
//! for every submission under [`Driving::Thread`](crate::Driving::Thread).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use crate::clock::Clock;
use crate::effects::{Deferred, InCallback, carry_out, in_callback};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::{JoinHandle, Mutex, Thread, back_off, park, spawn, thread, thread_cell};

/// No deadline: parked until somebody calls.
pub(crate) const NEVER: u64 = u64::MAX;
/// Awake, or about to be: no call is necessary.
const AWAKE: u64 = 0;
/// Looks for work before the thread sleeps, if there was some at the last look: to fall asleep and be woken costs both sides
/// some microseconds, and a stream of submissions comes faster than that.
const LOOKS: u32 = 96;

/// What a serving thread serves.
pub(crate) trait Served: Send {
    /// When it wants to be driven, [`NEVER`] if not.
    fn deadline(&self) -> u64;
    /// It wants to be driven now, whatever the time is.
    fn is_ready(&self) -> bool;
    fn drive(&self);
    /// Nothing will come of it any more but completions of what is in flight. It rings when that may have become true.
    fn is_over(&self) -> bool;
    /// It was over, and hosts are told of nothing any more.
    fn let_go(&self);
}

/// What a thread serves.
pub(crate) type AllServed = Vec<Box<dyn Served>>;

thread_cell! {
    /// The address of the bell of this thread, if it is a serving one. To be asked on threads that are about to end, too, on which
    /// `thread::current` may panic.
    static HERE: Cell<usize> = Cell::new(0);
}

thread_cell! {
    /// What this thread serves.
    static SERVING: RefCell<Option<Rc<Serving>>> = RefCell::new(None);
}

/// How the others reach a serving thread.
///
/// `wakes_at` is when the thread will look at its engines again. A caller publishes its work (a deadline, work announced, an
/// effect), passes a sequentially consistent fence and reads `wakes_at`; the thread publishes `wakes_at`, passes such a
/// fence and looks for work. Whatever the interleaving, one of the two sees the other, so no wake-up is lost and none is
/// needed while the thread is awake.
pub(crate) struct Bell {
    wakes_at: AtomicU64,
    thread: OnceLock<Thread>,
    stop: AtomicBool,
    /// Times the thread woke; idle schedulers must not add to it.
    wakes: AtomicU64,
    /// What the thread is to tell hosts.
    deferred: Mutex<VecDeque<Deferred>>,
    has_deferred: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Arc<Bell> {
        Arc::new(Bell {
            wakes_at: AtomicU64::new(AWAKE),
            thread: OnceLock::new(),
            stop: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            deferred: Mutex::default(),
            has_deferred: AtomicBool::new(false),
        })
    }

    /// Makes the thread look at its engines at `at` (0: now) or before.
    pub(crate) fn ring_at(&self, at: u64) {
        fence(Ordering::SeqCst);
        // The swap elects one of several callers to make the system call.
        if at < self.wakes_at.load(Ordering::SeqCst) && self.wakes_at.swap(AWAKE, Ordering::SeqCst) != AWAKE {
            self.unpark();
        }
    }

    /// Leaves effects to the thread.
    pub(crate) fn defer(&self, fill: impl FnOnce(&mut dyn FnMut(Deferred))) {
        let mut deferred = self.deferred.lock();
        fill(&mut |effect| deferred.push_back(effect));
        self.has_deferred.store(true, Ordering::SeqCst);
        drop(deferred);
        self.ring_at(0);
    }

    /// The next one that was left to the thread. While there are more, who waits inside a call finds them, too.
    fn next_deferred(&self) -> Option<Deferred> {
        if !self.has_deferred.load(Ordering::SeqCst) {
            return None;
        }
        let mut deferred = self.deferred.lock();
        let next = deferred.pop_front();
        self.has_deferred.store(!deferred.is_empty(), Ordering::SeqCst);
        next
    }

    /// Carries out what was left to the thread, on this one. False if that was nothing.
    pub(crate) fn carry_out_deferred(&self) -> bool {
        let mut found = false;
        while let Some(deferred) = self.next_deferred() {
            found = true;
            if deferred.is_cancellation() {
                // A host that waits in there may wait for what is behind it.
                let mut left = std::mem::take(&mut *self.deferred.lock());
                left.push_front(deferred);
                carry_out(left);
            } else {
                // Who is called neither waits for this thread nor is called by it again inside.
                let _inside = InCallback::enter();
                deferred.carry_out();
            }
        }
        found
    }

    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    /// True on the serving thread.
    pub(crate) fn is_here(&self) -> bool {
        HERE.with(Cell::get) == std::ptr::from_ref(self).addr()
    }

    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// A running serving thread.
pub(crate) struct Server {
    bell: Arc<Bell>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    pub(crate) fn start(name: &str, bell: Arc<Bell>, clock: Clock, served: AllServed) -> std::io::Result<Server> {
        let thread = spawn(name, {
            let bell = bell.clone();
            move || serve(Serving { bell, clock, served })
        })?;
        // Until this is set nobody can unpark the thread, but it cannot have parked for good either: see `serve`.
        let _ = bell.thread.set(thread.thread().clone());
        Ok(Server { bell, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn wakes(&self) -> u64 {
        self.bell.wakes()
    }

    /// Ends the thread as soon as all that it serves is over. Waits for that, but not inside a call of a host, without which
    /// it is not over: then the thread ends by itself later.
    pub(crate) fn stop(&self) {
        self.bell.stop.store(true, Ordering::SeqCst);
        self.bell.unpark();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && !in_callback()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A serving thread's own: what it does in its loop, and where a host that it has called waits.
pub(crate) struct Serving {
    bell: Arc<Bell>,
    clock: Clock,
    served: AllServed,
}

impl Serving {
    /// That of this thread.
    pub(crate) fn here() -> Option<Rc<Serving>> {
        SERVING.try_with(|serving| serving.borrow().clone()).ok().flatten()
    }

    /// Does what there is. False if that was nothing but deadlines, from which nothing more follows.
    pub(crate) fn look(&self) -> bool {
        self.bell.wakes_at.store(AWAKE, Ordering::SeqCst);
        let now = self.clock.now().0;
        let mut found = self.bell.carry_out_deferred();
        for one in &self.served {
            found |= one.is_ready();
            if one.is_ready() || one.deadline() <= now {
                one.drive();
            }
        }
        found
    }

    /// To be called before the thread parks: for how long it may (`None`: until it is called). `Err`: not at all, there is
    /// something to do. It is awake again with the next [look](Serving::look).
    pub(crate) fn may_park(&self) -> Result<Option<u64>, ()> {
        let next = self.served.iter().map(|one| one.deadline()).min().unwrap_or(NEVER);
        self.bell.wakes_at.store(next.max(AWAKE + 1), Ordering::SeqCst);
        fence(Ordering::SeqCst); // see `Bell`
        let now = self.clock.now().0;
        let ready = |one: &dyn Served| one.is_ready() || one.deadline() <= now || one.deadline() < next;
        if self.served.iter().any(|one| ready(&**one)) || self.bell.has_deferred.load(Ordering::SeqCst) {
            return Err(());
        }
        Ok((next != NEVER).then(|| next.saturating_sub(now)))
    }

    fn is_over(&self) -> bool {
        self.bell.stop.load(Ordering::SeqCst) && self.served.iter().all(|one| one.is_over())
    }
}

fn serve(serving: Serving) {
    let bell = serving.bell.clone();
    let serving = Rc::new(serving);
    // Publishing our own handle first makes the order of this and `Server::start` irrelevant.
    let _ = bell.thread.set(thread::current());
    HERE.with(|here| here.set(Arc::as_ptr(&bell).addr()));
    SERVING.with(|here| here.replace(Some(serving.clone())));
    // The default slack of 50 us would be added to every wait of a policy.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
    while !serving.is_over() {
        bell.wakes.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0;
        while looks < LOOKS && !serving.is_over() {
            looks = if serving.look() {
                1
            } else if looks == 0 {
                LOOKS
            } else {
                looks + 1
            };
            back_off(looks % LOOKS);
        }
        if let Ok(ns) = serving.may_park()
            && !serving.is_over()
        {
            park(ns);
        }
    }
    bell.carry_out_deferred();
    // A host that goes with it may be the last to know its scheduler, which does not wait for this thread then.
    let inside = InCallback::enter();
    serving.served.iter().for_each(|one| one.let_go());
    drop(inside);
    SERVING.with(|here| here.replace(None));
}
