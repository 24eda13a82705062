//! Many threads through the C functions. Also run under ThreadSanitizer, which cannot look into programs in C: `make tsan`.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use ::sluice::{
    SLUICE_ERR_CLOSED, SLUICE_ERR_INVALID, SLUICE_ERR_STALE, SLUICE_OK, SLUICE_OWN_THREAD, SLUICE_TOTAL, sluice,
    sluice_attach, sluice_complete, sluice_counters, sluice_create, sluice_destroy, sluice_detach, sluice_options,
    sluice_part, sluice_request, sluice_set_policy, sluice_shutdown, sluice_stats, sluice_submit_wait,
};

const THREADS: u64 = 16;
const EACH: u64 = 100;

#[derive(Default)]
struct Host {
    seen: Vec<AtomicU32>,
    /// A request that another thread is to complete.
    left: AtomicPtr<sluice_part>,
    cancelled: AtomicU32,
}

unsafe extern "C" fn start(user: *mut c_void, s: *mut sluice, part: *const sluice_part) {
    // SAFETY: the scheduler hands back what it was created with, and a part that is valid during the call.
    let (host, part) = unsafe { (&*user.cast::<Host>(), *part) };
    host.seen[part.cookie as usize].fetch_add(1, Ordering::Relaxed);
    let before = host.left.swap(Box::into_raw(Box::new(part)), Ordering::AcqRel);
    complete(s, before);
}

unsafe extern "C" fn cancelled(user: *mut c_void, _: *mut sluice, _: *const sluice_part, _: c_int) {
    // SAFETY: as above.
    unsafe { &*user.cast::<Host>() }.cancelled.fetch_add(1, Ordering::Relaxed);
}

fn complete(s: *mut sluice, part: *mut sluice_part) {
    if !part.is_null() {
        // SAFETY: it came from `Box::into_raw`, and a swap gives it to one thread only.
        let part = unsafe { Box::from_raw(part) };
        // SAFETY: the scheduler lives.
        assert_eq!(unsafe { sluice_complete(s, part.id, part.len, 0) }, SLUICE_OK);
    }
}

/// A pointer that goes to other threads.
#[derive(Clone, Copy)]
struct Scheduler(*mut sluice);
// SAFETY: the functions may be called from any thread.
unsafe impl Send for Scheduler {}
// SAFETY: likewise.
unsafe impl Sync for Scheduler {}

impl Scheduler {
    fn submit(&self, thread: u64, n: u64) {
        let request = sluice_request {
            struct_size: size_of::<sluice_request>() as u32,
            op: n.is_multiple_of(3).into(),
            file: n % 5,
            offset: (n * THREADS + thread) * 4096,
            len: 4096,
            app: thread as u32,
            target: n as u32 % 4,
            reserved: 0,
            cookie: thread * EACH + n,
        };
        // SAFETY: the scheduler lives, the request is one.
        assert_eq!(unsafe { sluice_submit_wait(self.0, &raw const request) }, SLUICE_OK);
    }

    fn look(&self) -> sluice_counters {
        let size = size_of::<sluice_counters>() as u32;
        let mut counters = sluice_counters { struct_size: size, ..Default::default() };
        // SAFETY: as above.
        assert_eq!(unsafe { sluice_stats(self.0, SLUICE_TOTAL, &raw mut counters) }, SLUICE_OK);
        counters
    }
}

fn run(flags: u32, shards: u32) {
    let host = Host { seen: (0..THREADS * EACH).map(|_| AtomicU32::new(0)).collect(), ..Host::default() };
    // SAFETY: integers, pointers and optional functions.
    let mut options: sluice_options = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<sluice_options>() as u32;
    (options.flags, options.shards, options.capacity) = (flags, shards, 64);
    options.start = Some(start);
    options.cancelled = Some(cancelled);
    options.user = (&raw const host).cast_mut().cast();
    let mut s = null_mut();
    // SAFETY: both are what they should be.
    assert_eq!(unsafe { sluice_create(&raw const options, &raw mut s) }, SLUICE_OK);
    let scheduler = Scheduler(s);
    std::thread::scope(|scope| {
        let submitters: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || (0..EACH).for_each(|n| scheduler.submit(thread, n))))
            .collect();
        let host = &host;
        scope.spawn(move || {
            for policy in [c"to", c"sjf", c"mlf", c"hbrr", c"wfq", c"to-agg", c"sw", c"noop", c"aioli"] {
                // SAFETY: the scheduler lives, the text ends with a 0.
                assert_eq!(unsafe { sluice_set_policy({ scheduler }.0, policy.as_ptr()) }, SLUICE_OK);
                scheduler.look();
            }
            // Somebody has to complete what the last callback left, or nobody is ever done.
            while !submitters.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                complete({ scheduler }.0, host.left.swap(null_mut(), Ordering::AcqRel));
                std::thread::yield_now();
            }
        });
    });
    while scheduler.look().completed.iter().sum::<u64>() < THREADS * EACH {
        complete(s, host.left.swap(null_mut(), Ordering::AcqRel));
        std::thread::yield_now();
    }
    // SAFETY: the scheduler lives; after its end, the handle stays.
    unsafe {
        assert_eq!(sluice_shutdown(s, 60_000_000_000), SLUICE_OK);
        assert_eq!(sluice_destroy(s), SLUICE_OK);
        assert_eq!(sluice_destroy(s), SLUICE_ERR_CLOSED);
    }
    assert!(host.seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 1));
    assert_eq!(host.cancelled.load(Ordering::Relaxed), 0);
}

#[test]
fn driven_by_callers() {
    run(0, 1);
}

#[test]
fn driven_by_a_thread() {
    run(SLUICE_OWN_THREAD, 1);
}

#[test]
fn several_engines() {
    run(0, 4);
}

/// A client of targets 0 to 3 has a request in flight while others join, as many as there are numbers of 16 bits: all but
/// the last want a target of its own, and cannot.
#[test]
fn a_client_completes_no_request_of_another_one_however_many_came_before() {
    let host = Host { seen: vec![AtomicU32::new(0)], ..Host::default() };
    // SAFETY: integers, pointers and optional functions.
    let mut options: sluice_options = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<sluice_options>() as u32;
    options.start = Some(start);
    options.cancelled = Some(cancelled);
    options.user = (&raw const host).cast_mut().cast();
    options.target_count = 4;
    let (mut s, mut other) = (null_mut(), null_mut());
    // SAFETY: both are what they should be.
    assert_eq!(unsafe { sluice_create(&raw const options, &raw mut s) }, SLUICE_OK);
    Scheduler(s).submit(0, 0);
    for n in 0..=u16::MAX {
        let joins = n == u16::MAX;
        options.target_first = if joins { 4 } else { 3 };
        // SAFETY: as above, and the scheduler lives.
        let code = unsafe { sluice_attach(s, &raw const options, &raw mut other) };
        assert_eq!(code, if joins { SLUICE_OK } else { SLUICE_ERR_INVALID });
    }
    // SAFETY: it came from `Box::into_raw`.
    let part = unsafe { Box::from_raw(host.left.swap(null_mut(), Ordering::AcqRel)) };
    // SAFETY: all of them live.
    unsafe {
        assert_eq!(sluice_complete(other, part.id, part.len, 0), SLUICE_ERR_STALE);
        assert_eq!(sluice_complete(s, part.id, part.len, 0), SLUICE_OK);
        assert_eq!(sluice_detach(other, 0), SLUICE_OK);
        assert_eq!(sluice_destroy(s), SLUICE_OK);
    }
}
