//! Execution by io_uring: no thread per request in flight.
//!
//! What the kernel has taken uses the memory of its request until its completion was seen, whatever happens to the ring.
//! So only a completion ends it. What the kernel does not take is given back and executed by a thread; after that nothing
//! is submitted any more. Completions are read from memory that the kernel shares, and there is room for all of them (the
//! completion queue is twice as long as what can be under way): no call is needed that could fail and leave requests, and
//! their memory, behind.
//!
//! The thread that takes completions tells hosts of them, and a host may wait in there, for other requests of this ring too.
//! So another thread takes completions meanwhile ([`blocking`]).
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use io_uring::{IoUring, Probe, opcode, types};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sluice_core::Op;
use sluice_storage::Segment;

use super::workers::LOOK;

/// How often is looked whether the last request has ended, at the end. There is none as a rule.
const LAST_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Most memory segments of one operation (`IOV_MAX`).
const SEGMENTS_MAX: usize = 1024;

/// What gets the jobs that have ended.
type Ended<J> = Box<dyn Fn(J, Vec<Segment>, io::Result<usize>) + Send + Sync>;

/// A ring, for a thread that takes its completions.
trait Reaped: Send + Sync {
    /// One more thread takes completions; false if there can be none.
    fn help(self: Arc<Self>) -> bool;
    /// One of them is enough again.
    fn helped(&self);
    /// Takes those that there are.
    fn take_completions(&self);
}

thread_local! {
    /// The ring of which this thread takes the completions.
    static REAPED: RefCell<Option<Arc<dyn Reaped>>> = const { RefCell::new(None) };
}

/// Runs `wait`, in which this thread waits for what others do, at most until the time that it is given. If it is one that takes
/// completions, another one does that meanwhile; where there can be no other, this one from time to time, `within` whatever
/// is necessary for that.
pub(super) fn blocking<R>(within: impl Fn(&dyn Fn()), mut wait: impl FnMut(Option<Instant>) -> Option<R>) -> R {
    let ring = REAPED.try_with(|ring| ring.borrow().clone()).ok().flatten();
    let helped = ring.as_ref().is_some_and(|ring| ring.clone().help());
    let result = loop {
        let alone = ring.as_ref().filter(|_| !helped);
        if let Some(result) = wait(alone.map(|_| Instant::now() + LOOK)) {
            break result;
        }
        if let Some(ring) = alone {
            within(&|| ring.take_completions());
        }
    };
    if let Some(ring) = ring.filter(|_| helped) {
        ring.helped();
    }
    result
}

/// One operation in the kernel. Keeps everything alive that the kernel uses.
struct Pending<J> {
    job: J,
    _fd: Arc<OwnedFd>,
    segments: Vec<Segment>,
}

/// A ring whose operations belong to jobs of type `J`.
pub(super) struct Ring<J> {
    ring: IoUring,
    /// Held to submit: at most the own entry is in the submission queue.
    push: Mutex<()>,
    pending: Box<[Mutex<Option<Pending<J>>>]>,
    free: ArrayQueue<u32>,
    /// Cleared, with `push` held, when the kernel took an entry no more. Nothing is submitted after that: the entry stays
    /// in the queue.
    alive: AtomicBool,
    /// Wakes the reaper, to end.
    wake: OwnedFd,
    stopping: AtomicBool,
    /// Held to take a completion.
    taking: Mutex<()>,
    reapers: Mutex<Vec<JoinHandle<()>>>,
    /// Reapers that are not needed any more.
    surplus: AtomicUsize,
    ended: OnceLock<Ended<J>>,
    /// Submitting fails as it would on a ring that is broken.
    #[cfg(test)]
    broken: AtomicBool,
    /// The system refuses threads.
    #[cfg(test)]
    refused: AtomicBool,
}

/// What is to be done with the bytes at an offset of an open file.
pub(super) struct RingRequest {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) segments: Vec<Segment>,
}

impl<J: Send + 'static> Ring<J> {
    /// Sets a ring up for `depth` operations at once.
    ///
    /// # Errors
    /// What the system says: containers often forbid io_uring.
    pub(super) fn new(depth: u32) -> io::Result<Ring<J>> {
        let depth = depth.clamp(1, 4096).next_power_of_two();
        Ring::over(IoUring::new(depth)?, depth)
    }

    fn over(ring: IoUring, depth: u32) -> io::Result<Ring<J>> {
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !(probe.is_supported(opcode::Readv::CODE) && probe.is_supported(opcode::Writev::CODE)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring cannot READV and WRITEV"));
        }
        let free = ArrayQueue::new(depth as usize);
        (0..depth).for_each(|at| _ = free.push(at));
        Ok(Ring {
            ring,
            push: Mutex::new(()),
            pending: (0..depth).map(|_| Mutex::new(None)).collect(),
            free,
            alive: AtomicBool::new(true),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stopping: AtomicBool::new(false),
            taking: Mutex::new(()),
            reapers: Mutex::new(Vec::new()),
            surplus: AtomicUsize::new(0),
            ended: OnceLock::new(),
            #[cfg(test)]
            broken: AtomicBool::new(false),
            #[cfg(test)]
            refused: AtomicBool::new(false),
        })
    }

    /// Starts an operation, or gives everything back: too many under way, or the ring cannot (any more).
    pub(super) fn start(&self, request: RingRequest, job: J) -> Result<(), (RingRequest, J)> {
        let place = match i64::try_from(request.offset) {
            Ok(_) if request.segments.len() <= SEGMENTS_MAX && self.alive.load(Ordering::SeqCst) => self.free.pop(),
            _ => None,
        };
        let Some(at) = place else { return Err((request, job)) };
        let RingRequest { fd, op, offset, segments } = request;
        let (iovecs, count) = (Segment::as_iovecs(&segments), segments.len() as u32);
        let number = types::Fd(fd.as_raw_fd());
        let entry = match op {
            Op::Read => opcode::Readv::new(number, iovecs, count).offset(offset).build(),
            Op::Write => opcode::Writev::new(number, iovecs, count).offset(offset).build(),
        };
        *self.pending[at as usize].lock() = Some(Pending { job, _fd: fd.clone(), segments });
        if self.submit(&entry.user_data(u64::from(at))) {
            return Ok(());
        }
        // The kernel never saw it, and never will.
        let taken = self.pending[at as usize].lock().take();
        let _ = self.free.push(at);
        let Pending { job, segments, .. } = taken.expect("only its completion takes it");
        Err((RingRequest { fd, op, offset, segments }, job))
    }

    /// True once the kernel has taken the entry; false if it never will.
    fn submit(&self, entry: &io_uring::squeue::Entry) -> bool {
        let _alone = self.push.lock();
        if !self.alive.load(Ordering::SeqCst) {
            return false;
        }
        // SAFETY: the lock makes this the only user of the submission queue. What the entry points to (descriptor, list of
        // memory, memory) is kept by `pending` until the completion was seen.
        let pushed = unsafe { self.ring.submission_shared().push(entry) };
        debug_assert!(pushed.is_ok(), "the queue is empty while nobody submits");
        loop {
            let submitted = self.enter();
            // SAFETY: as above.
            if unsafe { self.ring.submission_shared().is_empty() } {
                return true;
            }
            match submitted {
                Err(error) if !is_passing(&error) => {
                    tracing::error!(%error, "io_uring takes no requests any more; they go to threads");
                    self.alive.store(false, Ordering::SeqCst);
                    return false;
                }
                // Interrupted or out of resources.
                _ => std::thread::yield_now(),
            }
        }
    }

    fn enter(&self) -> io::Result<usize> {
        #[cfg(test)]
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EBADFD));
        }
        self.ring.submitter().submit()
    }

    /// Starts the thread that takes completions: `ended` gets the job, the list of memory, and the bytes moved or the
    /// error.
    pub(super) fn start_reaper(
        self: &Arc<Self>,
        ended: impl Fn(J, Vec<Segment>, io::Result<usize>) + Send + Sync + 'static,
    ) -> io::Result<()> {
        let first = self.ended.set(Box::new(ended)).is_ok();
        debug_assert!(first, "a ring is started once");
        self.spawn_reaper()
    }

    fn spawn_reaper(self: &Arc<Self>) -> io::Result<()> {
        #[cfg(test)]
        if self.refused.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let ring = self.clone();
        let reap = move || {
            REAPED.with(|reaped| *reaped.borrow_mut() = Some(ring.clone()));
            ring.reap();
            REAPED.with(|reaped| reaped.borrow_mut().take());
        };
        let mut reapers = self.reapers.lock();
        reapers.retain(|reaper| !reaper.is_finished());
        reapers.push(std::thread::Builder::new().name("sluice-ring".to_owned()).spawn(reap)?);
        Ok(())
    }

    fn reap(&self) {
        loop {
            let stopping = self.stopping.load(Ordering::SeqCst);
            loop {
                // As many have been added as are there too much, so one stays.
                let fewer = |surplus: usize| surplus.checked_sub(1);
                if self.surplus.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
                    return;
                }
                let Some(entry) = self.next() else { break };
                self.end(entry.user_data() as u32, entry.result());
            }
            if stopping && self.free.is_full() {
                return;
            }
            // SAFETY: open for as long as the ring is there.
            let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
            let ring = PollFd::from_borrowed_fd(ring, PollFlags::IN);
            // An error (interrupted, no memory) passes; completions are looked for in any case.
            let _ = if stopping {
                poll(&mut [ring], Some(&LAST_LOOK))
            } else {
                poll(&mut [ring, PollFd::new(&self.wake, PollFlags::IN)], None)
            };
        }
    }

    fn next(&self) -> Option<io_uring::cqueue::Entry> {
        let _alone = self.taking.lock();
        // SAFETY: the lock makes this the only user of the completion queue.
        unsafe { self.ring.completion_shared().next() }
    }

    fn end(&self, at: u32, result: i32) {
        let Some(ended) = self.ended.get() else { return };
        let Some(pending) = self.pending[at as usize].lock().take() else { return };
        let _ = self.free.push(at);
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        // Whatever happens in there, completions are taken on.
        if catch_unwind(AssertUnwindSafe(|| ended(pending.job, pending.segments, result))).is_err() {
            tracing::error!("a panic at the end of a request in the ring");
        }
    }

    /// Takes no requests any more and waits for those that the kernel has.
    pub(super) fn stop(&self) {
        if self.reapers.lock().is_empty() {
            return;
        }
        {
            let _alone = self.push.lock();
            self.alive.store(false, Ordering::SeqCst);
        }
        self.stopping.store(true, Ordering::SeqCst);
        // It cannot be full: this is the only time.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        let me = std::thread::current().id();
        while let Some(reaper) = { self.reapers.lock().pop() } {
            if reaper.thread().id() != me {
                let _ = reaper.join();
            }
        }
    }
}

impl<J: Send + 'static> Reaped for Ring<J> {
    fn help(self: Arc<Self>) -> bool {
        let started = self.spawn_reaper();
        if let Err(error) = &started {
            tracing::error!(%error, "cannot start another thread for io_uring while one waits");
        }
        started.is_ok()
    }

    fn helped(&self) {
        self.surplus.fetch_add(1, Ordering::SeqCst);
    }

    fn take_completions(&self) {
        while let Some(entry) = self.next() {
            self.end(entry.user_data() as u32, entry.result());
        }
    }
}

/// Tried again, it may work.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    type Told = (u32, io::Result<usize>);

    /// A ring of places for `depth` requests with its reaper, if there can be one here.
    fn running(ring: io::Result<Ring<u32>>) -> Option<(Arc<Ring<u32>>, Receiver<Told>)> {
        let Ok(ring) = ring.inspect_err(|error| eprintln!("skipped: no io_uring here: {error}")) else { return None };
        let (ring, (tell, ended)) = (Arc::new(ring), channel());
        ring.start_reaper(move |job, _, result| tell.send((job, result)).unwrap()).unwrap();
        Some((ring, ended))
    }

    fn read(fd: &Arc<OwnedFd>, memory: &mut [u8]) -> RingRequest {
        // SAFETY: the tests wait for the end of what they start.
        let segments = vec![unsafe { Segment::of_mut(memory) }];
        RingRequest { fd: fd.clone(), op: Op::Read, offset: 0, segments }
    }

    fn next(ended: &Receiver<Told>) -> (u32, usize) {
        let (job, result) = ended.recv_timeout(Duration::from_secs(120)).expect("it ends");
        (job, result.unwrap())
    }

    #[test]
    fn when_the_ring_breaks_what_the_kernel_has_ends_as_it_does_and_the_rest_comes_back() {
        let Some((ring, ended)) = running(Ring::new(4)) else { return };
        let (source, mut sink) = io::pipe().unwrap();
        let source = Arc::new(OwnedFd::from(source));
        let (mut first, mut second) = ([0; 4], [0; 4]);
        ring.start(read(&source, &mut first), 1).map_err(|_| ()).unwrap();
        ring.broken.store(true, Ordering::SeqCst);
        for job in 2..20 {
            let (request, back) = ring.start(read(&source, &mut second), job).err().unwrap();
            assert_eq!((back, request.segments.len()), (job, 1));
        }
        assert!(ended.try_recv().is_err(), "the kernel still has the memory of the first");
        assert_eq!(Arc::strong_count(&source), 2, "of the others nothing is kept");
        sink.write_all(b"data").unwrap();
        assert_eq!(next(&ended), (1, 4));
        assert_eq!((&first, &second), (b"data", &[0; 4]));
        ring.stop();
        assert_eq!((Arc::strong_count(&source), Arc::strong_count(&ring)), (1, 1), "nothing is kept");
    }

    #[test]
    fn a_ring_that_never_took_anything_gives_everything_back_and_stops() {
        let disabled = IoUring::builder().setup_r_disabled().build(4);
        let Some((ring, _ended)) = running(disabled.and_then(|ring| Ring::over(ring, 4))) else { return };
        let source = Arc::new(OwnedFd::from(io::pipe().unwrap().0));
        for job in 0..20 {
            assert_eq!(ring.start(read(&source, &mut [0; 4]), job).err().unwrap().1, job);
        }
        ring.stop();
        assert_eq!(Arc::strong_count(&source), 1);
    }

    #[test]
    fn stopping_waits_for_what_the_kernel_has_and_every_place_is_used_again() {
        let Some((ring, ended)) = running(Ring::new(4)) else { return };
        let (source, mut sink) = io::pipe().unwrap();
        let source = Arc::new(OwnedFd::from(source));
        for round in 0..100 {
            let mut memory = [[0; 1]; 4];
            for (job, byte) in (0..4).zip(&mut memory) {
                ring.start(read(&source, byte), job).map_err(|_| ()).unwrap();
            }
            assert!(ring.start(read(&source, &mut [0]), 9).is_err(), "too many");
            sink.write_all(&[round; 4]).unwrap();
            let mut jobs: Vec<_> = (0..4).map(|_| next(&ended)).collect();
            jobs.sort_unstable();
            assert_eq!(jobs, [(0, 1), (1, 1), (2, 1), (3, 1)]);
            assert_eq!(memory, [[round; 1]; 4]);
        }
        let mut last = [0; 1];
        ring.start(read(&source, &mut last), 7).map_err(|_| ()).unwrap();
        std::thread::scope(|scope| {
            let stop = scope.spawn(|| ring.stop());
            assert!(!stop.is_finished() && ended.try_recv().is_err());
            sink.write_all(b"x").unwrap();
        });
        assert_eq!(next(&ended), (7, 1));
        assert_eq!(last, *b"x");
    }

    #[test]
    fn who_waits_for_the_next_completion_takes_it_where_nobody_else_can() {
        let Ok(ring) = Ring::new(4).inspect_err(|error| eprintln!("skipped: no io_uring here: {error}")) else {
            return;
        };
        let (ring, (tell, ended)) = (Arc::new(ring), channel());
        let second = Arc::new(AtomicBool::new(false));
        let is_there = second.clone();
        let host = move |job, _, _: io::Result<usize>| {
            if job == 1 {
                // The host of the first waits in its call for the second.
                let wait = |until: Option<Instant>| {
                    while !is_there.load(Ordering::SeqCst) {
                        if until.is_some_and(|until| until <= Instant::now()) {
                            return None;
                        }
                        std::thread::yield_now();
                    }
                    Some(())
                };
                blocking(|work| work(), wait);
            }
            is_there.store(true, Ordering::SeqCst);
            tell.send(job).unwrap();
        };
        ring.start_reaper(host).unwrap();
        ring.refused.store(true, Ordering::SeqCst);
        let (source, mut sink) = io::pipe().unwrap();
        let source = Arc::new(OwnedFd::from(source));
        let mut memory = [[0; 1]; 2];
        for (job, memory) in (1..).zip(&mut memory) {
            ring.start(read(&source, memory), job).map_err(|_| ()).unwrap();
            sink.write_all(b"x").unwrap();
        }
        let mut jobs: Vec<u32> = (0..2).map(|_| ended.recv_timeout(Duration::from_secs(120)).unwrap()).collect();
        jobs.sort_unstable();
        assert_eq!(jobs, [1, 2]);
        drop(second);
        ring.stop();
    }
}
