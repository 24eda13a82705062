//! Execution by io_uring: no thread per request in flight.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_queue::ArrayQueue;
use io_uring::{IoUring, Probe, opcode, types};
use parking_lot::Mutex;
use sluice_core::Op;
use sluice_storage::Segment;

use super::Host;
use super::execute::{Caller, Inner};
use super::job::{Inside, Job};

/// Marks the entry that ends the reaper.
const STOP: u64 = u64::MAX;

/// One operation in the kernel. Keeps everything alive that the kernel uses.
struct Pending {
    job: Job,
    _fd: Arc<OwnedFd>,
    slices: Vec<Segment>,
    want: usize,
}

pub(super) struct Ring {
    ring: IoUring,
    /// Held to fill an entry of the submission queue.
    push: Mutex<()>,
    pending: Box<[Mutex<Option<Pending>>]>,
    free: ArrayQueue<u32>,
    spare: ArrayQueue<Vec<Segment>>,
    reaper: Mutex<Option<JoinHandle<()>>>,
}

impl Ring {
    /// Sets a ring up for `depth` operations at once.
    ///
    /// # Errors
    /// What the system says: containers often forbid io_uring.
    pub(super) fn new(depth: u32) -> io::Result<Ring> {
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
        let spare = ArrayQueue::new(depth as usize);
        Ok(Ring { ring, push: Mutex::new(()), pending, free, spare, reaper: Mutex::new(None) })
    }

    /// Starts a job, or gives it back: no descriptor, not one run, or too much under way.
    pub(super) fn start<H: Host>(&self, inner: &Inner<H>, job: Job) -> Option<Job> {
        let request = job.parts[0].request;
        if job.parts.len() > 1024 {
            return Some(job);
        }
        let Some(at) = self.free.pop() else { return Some(job) };
        let mut slices = self.spare.pop().unwrap_or_default();
        let run = inner.gather(&job.parts, 0, false, &mut slices);
        let fd =
            inner.storage.data.descriptor(&run.file, request.target.0 as usize).filter(|_| run.end == job.parts.len());
        let (Some(fd), Some(from)) = (fd, i64::try_from(request.offset).ok()) else {
            let _ = self.free.push(at);
            let _ = self.spare.push(slices);
            return Some(job);
        };
        let (iovecs, count) = (Segment::as_iovecs(&slices), slices.len() as u32);
        let want = slices.iter().map(Segment::len).sum();
        let number = types::Fd(fd.as_raw_fd());
        let entry = match request.op {
            Op::Read => opcode::Readv::new(number, iovecs, count).offset(from as u64).build(),
            Op::Write => opcode::Writev::new(number, iovecs, count).offset(from as u64).build(),
        };
        *self.pending[at as usize].lock() = Some(Pending { job, _fd: fd, slices, want });
        inner.counts.ring.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.submit(&entry.user_data(u64::from(at)));
        None
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
            if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) {
                tracing::error!(%error, "io_uring refused a request");
                break;
            }
            std::thread::yield_now();
        }
    }

    /// Starts the thread that takes completions.
    pub(super) fn start_reaper<H: Host>(&self, inner: &Arc<Inner<H>>) -> io::Result<()> {
        let inner = inner.clone();
        let run = move || {
            if let Some(ring) = &inner.ring {
                ring.reap(&inner);
            }
        };
        *self.reaper.lock() = Some(std::thread::Builder::new().name("sluice-ring".to_owned()).spawn(run)?);
        Ok(())
    }

    fn reap<H: Host>(&self, inner: &Inner<H>) {
        let _inside = Inside::enter(inner.address());
        loop {
            if let Err(error) = self.ring.submitter().submit_and_wait(1)
                && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            {
                tracing::error!(%error, "io_uring failed");
                return;
            }
            loop {
                // SAFETY: only this thread uses the completion queue.
                let Some(entry) = (unsafe { self.ring.completion_shared().next() }) else { break };
                if entry.user_data() == STOP {
                    return;
                }
                let at = entry.user_data() as u32;
                if let Some(pending) = self.pending[at as usize].lock().take() {
                    let _ = self.free.push(at);
                    self.ended(inner, pending, entry.result());
                }
            }
            inner.run_collected(Caller::Passer);
        }
    }

    fn ended<H: Host>(&self, inner: &Inner<H>, mut pending: Pending, result: i32) {
        pending.slices.clear();
        let _ = self.spare.push(pending.slices);
        let mut job = pending.job;
        match usize::try_from(result) {
            Ok(moved) if moved >= pending.want => inner.end_whole(job),
            Ok(moved) => {
                // A thread finds out what the rest is about.
                job.first = Some(Ok(moved));
                inner.to_thread(job);
            }
            Err(_) => {
                let again = matches!(-result, libc::EAGAIN | libc::EINTR | libc::ECANCELED);
                job.first = (!again).then(|| Err(io::Error::from_raw_os_error(-result)));
                inner.to_thread(job);
            }
        }
    }

    pub(super) fn stop(&self) {
        let Some(reaper) = self.reaper.lock().take() else { return };
        self.submit(&opcode::Nop::new().build().user_data(STOP));
        if reaper.thread().id() != std::thread::current().id() {
            let _ = reaper.join();
        }
    }
}
