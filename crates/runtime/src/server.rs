//! The thread that drives shards when no caller does: at a policy's deadline, when a caller's turn was cut short, and
//! for every submission under [`Driving::Thread`](crate::Driving::Thread).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::shard::Shard;

/// No deadline: parked until somebody calls.
pub(crate) const NEVER: u64 = u64::MAX;
/// Awake, or about to be: no call is necessary.
const AWAKE: u64 = 0;

/// How the others reach a serving thread.
///
/// `wakes_at` is when the thread will look at its shards again. A caller publishes its work (a deadline, a request in
/// an inbox), passes a sequentially consistent fence and reads `wakes_at`; the thread publishes `wakes_at`, passes such
/// a fence and looks for work. Whatever the interleaving, one of the two sees the other, so no wake-up is lost and none
/// is needed while the thread is awake.
pub(crate) struct Bell {
    wakes_at: AtomicU64,
    thread: OnceLock<Thread>,
    stop: AtomicBool,
    /// Times the thread woke; idle runtimes must not add to it.
    wakes: AtomicU64,
}

impl Bell {
    pub(crate) fn new() -> Arc<Bell> {
        Arc::new(Bell {
            wakes_at: AtomicU64::new(AWAKE),
            thread: OnceLock::new(),
            stop: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
        })
    }

    /// Makes the thread look at its shards at `at` (0: now) or before.
    pub(crate) fn ring_at(&self, at: u64) {
        fence(Ordering::SeqCst);
        // The swap elects one of several callers to make the system call.
        if at < self.wakes_at.load(Ordering::Relaxed) && self.wakes_at.swap(AWAKE, Ordering::Relaxed) != AWAKE {
            self.unpark();
        }
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
    pub(crate) fn start(
        name: String,
        bell: Arc<Bell>,
        clock: Clock,
        shards: Vec<Arc<Shard>>,
    ) -> std::io::Result<Server> {
        let thread = std::thread::Builder::new().name(name).spawn({
            let bell = bell.clone();
            move || serve(&bell, clock, &shards)
        })?;
        // Until this is set nobody can unpark the thread, but it cannot have parked for good either: see `serve`.
        let _ = bell.thread.set(thread.thread().clone());
        Ok(Server { bell, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn wakes(&self) -> u64 {
        self.bell.wakes.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.bell.stop.store(true, Ordering::SeqCst);
        self.bell.unpark();
        if let Some(thread) = self.thread.lock().take() {
            // A host that drops its runtime inside a callback is on this very thread: it ends by itself then.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(bell: &Bell, clock: Clock, shards: &[Arc<Shard>]) {
    // Publishing our own handle first makes the order of this and `Server::start` irrelevant.
    let _ = bell.thread.set(std::thread::current());
    // The default slack of 50 us would be added to every wait of a policy.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
    while !bell.stop.load(Ordering::SeqCst) {
        bell.wakes.fetch_add(1, Ordering::Relaxed);
        bell.wakes_at.store(AWAKE, Ordering::Relaxed);
        let now = clock.now().0;
        for shard in shards {
            if shard.needs_server(now) {
                shard.drive();
            }
        }
        let next = shards.iter().map(|s| s.deadline()).min().unwrap_or(NEVER);
        bell.wakes_at.store(next.max(AWAKE + 1), Ordering::Relaxed);
        fence(Ordering::SeqCst); // see `Bell`
        let now = clock.now().0;
        if shards.iter().any(|s| s.needs_server(now) || s.deadline() < next) || bell.stop.load(Ordering::SeqCst) {
            continue;
        }
        match next {
            NEVER => std::thread::park(),
            at => std::thread::park_timeout(Duration::from_nanos(at.saturating_sub(now))),
        }
    }
}
