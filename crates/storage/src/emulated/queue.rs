//! One emulated device with its queue, in real time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};

use parking_lot::Mutex;
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::{Timespec, clock_gettime};
use serde::Serialize;
use sluice_core::Histogram;
use sluice_device::{Command, Device, Pending, Places};

/// Unit of placement on the device, in bytes. What is left of a device beyond a multiple of it is not used.
pub const EXTENT: u64 = 64 << 20;
/// The end of each wait that is spent spinning: the kernel's wake-up takes about this long.
const SPIN_NS: u64 = 15_000;

/// How much later than due calls returned, in nanoseconds, upper bounds within 1/8 of the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimerError {
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

/// What one emulated device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceStats {
    /// Commands served.
    pub requests: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Time that the device was at work, in nanoseconds. All times but the timer's are the model's.
    pub busy_ns: u64,
    /// Of that, moving the arm.
    pub seek_ns: u64,
    /// Of that, waiting for the platter.
    pub rotation_ns: u64,
    /// Sum of the distances between where a command ended and where the next started, in bytes.
    pub distance_bytes: u64,
    /// Commands for which the real I/O took longer than the model's. Many of them mean that the real storage is too slow
    /// for this emulation.
    pub overruns: u64,
    /// Error of the timer, for all other commands.
    pub timer: TimerError,
}

impl DeviceStats {
    /// Share of the busy time spent seeking, 0 to 1.
    #[must_use]
    pub fn seek_share(&self) -> f64 {
        self.seek_ns as f64 / self.busy_ns.max(1) as f64
    }

    /// Mean distance between commands, in bytes.
    #[must_use]
    pub fn mean_distance_bytes(&self) -> f64 {
        self.distance_bytes as f64 / self.requests.max(1) as f64
    }
}

pub(super) struct Queue {
    state: Mutex<State>,
    places: Mutex<Places>,
}

struct State {
    device: Box<dyn Device>,
    /// In the order of arrival; `waiting[i]` is who waits for `pending[i]`.
    pending: Vec<Pending>,
    waiting: Vec<Arc<Ticket>>,
    /// The device's lanes that are free, by since when.
    free: BinaryHeap<Reverse<u64>>,
    /// When the last command began, and up to when the device is at work.
    begun_ns: u64,
    busy_until_ns: u64,
    stats: DeviceStats,
    errors: Histogram,
}

struct Ticket {
    /// When the command is due; 0 until it was picked.
    due_ns: AtomicU64,
    thread: Thread,
}

impl Queue {
    pub(super) fn new(device: Box<dyn Device>) -> Queue {
        let places = Places::new(device.capacity_bytes(), EXTENT);
        let free = (0..device.lanes().max(1)).map(|_| Reverse(0)).collect();
        let state = State {
            device,
            pending: Vec::new(),
            waiting: Vec::new(),
            free,
            begun_ns: 0,
            busy_until_ns: 0,
            stats: DeviceStats::default(),
            errors: Histogram::default(),
        };
        Queue { state: Mutex::new(state), places: Mutex::new(places) }
    }

    /// Address and length on the device of a range of a target's file, in one part unless it lies in extents apart. A file
    /// that is not on the device yet is asked for its size on this target.
    pub(super) fn place(&self, file: u64, offset: u64, len: u64, size: impl FnOnce() -> u64) -> Vec<(u64, u64)> {
        let known = self.places.lock().knows(file);
        // Asked without the lock: it may wait for the real storage.
        let size = if known { 0 } else { size() };
        let mut places = self.places.lock();
        places.lay_out(file, size);
        let mut parts: Vec<(u64, u64)> = Vec::with_capacity(1);
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let address = places.address(file, at);
            let len = places.contiguous(at).min(end - at);
            match parts.last_mut() {
                Some(last) if last.0 + last.1 == address => last.1 += len,
                _ => parts.push((address, len)),
            }
            at += len;
        }
        parts
    }

    /// Queues the command, does the real `io` meanwhile, and returns when the device has served the command.
    pub(super) fn serve<R>(&self, command: Command, io: impl FnOnce() -> R) -> R {
        let ticket = Arc::new(Ticket { due_ns: AtomicU64::new(0), thread: thread::current() });
        {
            let mut state = self.state.lock();
            state.pending.push(Pending { command, arrived_ns: now_ns() });
            state.waiting.push(ticket.clone());
            state.dispatch();
        }
        // The device goes on, whatever happens in there.
        let result = catch_unwind(AssertUnwindSafe(io));
        let mut due = ticket.due_ns.load(Ordering::Acquire);
        while due == 0 {
            thread::park();
            due = ticket.due_ns.load(Ordering::Acquire);
        }
        let waited = sleep_until(due);
        let mut state = self.state.lock();
        if waited {
            state.errors.record(now_ns().saturating_sub(due));
        } else {
            state.stats.overruns += 1;
        }
        state.free.push(Reverse(due));
        state.dispatch();
        drop(state);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Forgets what the device has read and kept.
    pub(super) fn drop_read_cache(&self) {
        self.state.lock().device.drop_read_cache();
    }

    pub(super) fn stats(&self) -> DeviceStats {
        let state = self.state.lock();
        let errors = &state.errors;
        let timer = TimerError {
            p50_ns: errors.percentile_ns(50.0),
            p99_ns: errors.percentile_ns(99.0),
            max_ns: errors.max_ns(),
        };
        DeviceStats { timer, ..state.stats }
    }
}

impl State {
    /// Begins what can begin.
    fn dispatch(&mut self) {
        while let (Some(oldest), Some(Reverse(free_ns))) = (self.pending.first(), self.free.peek()) {
            // A command begins when a lane is free and something is there, whenever the threads get round to say so; the
            // device cannot know what arrives later.
            let start = oldest.arrived_ns.max(*free_ns).max(self.begun_ns);
            self.free.pop();
            self.begin(start);
        }
    }

    /// Begins one of the commands that are there at that time.
    fn begin(&mut self, start: u64) {
        let here = self.pending.partition_point(|pending| pending.arrived_ns <= start);
        let picked = self.device.pick(start, &self.pending[..here]);
        let command = self.pending.remove(picked).command;
        let ticket = self.waiting.remove(picked);
        let service = self.device.service(start, command);
        let due = start + service.total_ns;
        self.begun_ns = start;
        self.stats.requests += 1;
        self.stats.bytes += command.len;
        self.stats.busy_ns += due.saturating_sub(start.max(self.busy_until_ns));
        self.busy_until_ns = self.busy_until_ns.max(due);
        self.stats.seek_ns += service.seek_ns;
        self.stats.rotation_ns += service.rotation_ns;
        self.stats.distance_bytes += service.distance_bytes;
        ticket.due_ns.store(due.max(1), Ordering::Release);
        ticket.thread.unpark();
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns at that time, at the earliest. False if it was past already.
fn sleep_until(due_ns: u64) -> bool {
    thread_local!(static PRECISE: () = {
        // By default the kernel may round a thread's timers up by 50 us.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    });
    PRECISE.with(|()| ());
    let now = now_ns();
    if now >= due_ns {
        return false;
    }
    if due_ns - now > SPIN_NS {
        let wake = due_ns - SPIN_NS;
        let wake = Timespec { tv_sec: (wake / 1_000_000_000) as _, tv_nsec: (wake % 1_000_000_000) as _ };
        while clock_nanosleep_absolute(ClockId::Monotonic, &wake) == Err(rustix::io::Errno::INTR) {}
    }
    while now_ns() < due_ns {
        std::hint::spin_loop();
    }
    true
}
