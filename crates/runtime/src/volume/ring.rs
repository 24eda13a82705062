//! Execution by io_uring: no thread per request in flight.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_queue::ArrayQueue;
use io_uring::{IoUring, Probe, opcode, types};
use parking_lot::Mutex;
use sluice_core::Op;
use sluice_storage::Segment;

/// Marks the entry that ends the reaper.
const STOP: u64 = u64::MAX;
/// Most memory segments of one operation (`IOV_MAX`).
const SEGMENTS_MAX: usize = 1024;

/// One operation in the kernel. Keeps everything alive that the kernel uses.
struct Pending<J> {
    job: J,
    _fd: Arc<OwnedFd>,
    segments: Vec<Segment>,
}

/// A ring whose operations belong to jobs of type `J`.
pub(super) struct Ring<J> {
    ring: IoUring,
    /// Held to fill an entry of the submission queue.
    push: Mutex<()>,
    pending: Box<[Mutex<Option<Pending<J>>>]>,
    free: ArrayQueue<u32>,
    /// Cleared when nobody takes completions any more.
    alive: AtomicBool,
    reaper: Mutex<Option<JoinHandle<()>>>,
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
        let ring = IoUring::new(depth)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !(probe.is_supported(opcode::Readv::CODE) && probe.is_supported(opcode::Writev::CODE)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring cannot READV and WRITEV"));
        }
        // One place less than the queue has: the last one is for the end.
        let free = ArrayQueue::new(depth as usize);
        (0..depth - u32::from(depth > 1)).for_each(|at| _ = free.push(at));
        let pending = (0..depth).map(|_| Mutex::new(None)).collect();
        let alive = AtomicBool::new(true);
        Ok(Ring { ring, push: Mutex::new(()), pending, free, alive, reaper: Mutex::new(None) })
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
        if !self.alive.load(Ordering::SeqCst) {
            // The reaper has gone meanwhile. Either it has ended this one, or it is still here.
            return match self.pending[at as usize].lock().take() {
                Some(Pending { job, segments, .. }) => Err((RingRequest { fd, op, offset, segments }, job)),
                None => Ok(()),
            };
        }
        self.submit(&entry.user_data(u64::from(at)));
        Ok(())
    }

    fn submit(&self, entry: &io_uring::squeue::Entry) {
        {
            let _guard = self.push.lock();
            // SAFETY: the lock makes this the only user of the submission queue. What the entry points to (descriptor,
            // list of memory, memory) is kept by `pending` until the completion was seen.
            let pushed = unsafe { self.ring.submission_shared().push(entry) };
            debug_assert!(pushed.is_ok(), "there are as many places in the queue as in `pending`");
        }
        // Interrupted or out of resources: the entry stays in the queue, and the reaper submits what is left.
        while let Err(error) = self.ring.submitter().submit() {
            if !is_passing(&error) {
                tracing::error!(%error, "io_uring refused a request");
                break;
            }
            std::thread::yield_now();
        }
    }

    /// Starts the thread that takes completions: `ended` gets the job, the list of memory, and the bytes moved or the
    /// error.
    pub(super) fn start_reaper(
        self: &Arc<Self>,
        ended: impl Fn(J, Vec<Segment>, io::Result<usize>) + Send + 'static,
    ) -> io::Result<()> {
        let ring = self.clone();
        let reap = move || ring.reap(&ended);
        *self.reaper.lock() = Some(std::thread::Builder::new().name("sluice-ring".to_owned()).spawn(reap)?);
        Ok(())
    }

    fn reap(&self, ended: &dyn Fn(J, Vec<Segment>, io::Result<usize>)) {
        loop {
            if let Err(error) = self.ring.submitter().submit_and_wait(1)
                && !is_passing(&error)
            {
                tracing::error!(%error, "io_uring failed; requests in it fail, later ones go to threads");
                return self.fail_all(ended);
            }
            loop {
                // SAFETY: only this thread uses the completion queue.
                let Some(entry) = (unsafe { self.ring.completion_shared().next() }) else { break };
                if entry.user_data() == STOP {
                    self.alive.store(false, Ordering::SeqCst);
                    return;
                }
                self.end(entry.user_data() as u32, entry.result(), ended);
            }
        }
    }

    fn end(&self, at: u32, result: i32, ended: &dyn Fn(J, Vec<Segment>, io::Result<usize>)) {
        let Some(pending) = self.pending[at as usize].lock().take() else { return };
        let _ = self.free.push(at);
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        // Whatever happens in there, completions are taken on.
        if catch_unwind(AssertUnwindSafe(|| ended(pending.job, pending.segments, result))).is_err() {
            tracing::error!("a panic at the end of a request in the ring");
        }
    }

    /// The ring is lost: what is in it ends with an error, whatever the kernel still makes of it.
    fn fail_all(&self, ended: &dyn Fn(J, Vec<Segment>, io::Result<usize>)) {
        self.alive.store(false, Ordering::SeqCst);
        (0..self.pending.len() as u32).for_each(|at| self.end(at, -libc::EIO, ended));
    }

    pub(super) fn stop(&self) {
        let Some(reaper) = self.reaper.lock().take() else { return };
        if !reaper.is_finished() {
            self.submit(&opcode::Nop::new().build().user_data(STOP));
        }
        if reaper.thread().id() != std::thread::current().id() {
            let _ = reaper.join();
        }
    }
}

/// Tried again, it may work.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
