//! Executing jobs, and what follows from it.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use rustix::io::Errno;
use sluice_core::{Batch, Op, Outcome, Part, Request, RequestId};
use sluice_storage::{FileRef, Segment, Storage};

use super::job::{self, Inside, Job};
use super::memory::{self, Buffers};
use super::ops::{Memory, Operation, Ops, Waiter, of_cookie};
use super::ring::Ring;
use super::transfer::{Ended, transfer};
use super::workers::Workers;
use super::{Done, Host};
use crate::record::Tap;
use crate::runtime::Executor;
use crate::shard::Completer;

/// Batches by who executed them.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) caller: AtomicU64,
    pub(super) threads: AtomicU64,
    pub(super) ring: AtomicU64,
}

pub(super) struct Inner<H: Host> {
    pub(super) storage: Storage,
    pub(super) host: Arc<H>,
    pub(super) targets: u32,
    pub(super) ops: Ops<H::Ticket>,
    pub(super) buffers: Buffers,
    pub(super) workers: Workers,
    pub(super) ring: Option<Ring>,
    pub(super) ring_active: AtomicBool,
    /// Requests may be executed in the thread that submits them.
    pub(super) inline: bool,
    pub(super) counts: Counts,
    pub(super) spare: ArrayQueue<Vec<Part>>,
    /// For reads of which a recording wants checksums.
    pub(super) tap: Arc<Tap>,
    pub(super) me: std::sync::Weak<Inner<H>>,
}

/// Lists reused from job to job.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) parts: Vec<Segment>,
    slices: Vec<Segment>,
    ended: Vec<Ended>,
    outcomes: Vec<(RequestId, Outcome)>,
    finished: Vec<u32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Requests of one file that follow each other in a job: what one system call can do.
pub(super) struct Run {
    pub(super) file: FileRef,
    pub(super) end: usize,
    /// Through several handles (of which the first is used).
    mixed: bool,
}

/// Who executes what a call left to do on its thread.
#[derive(Clone, Copy)]
pub(super) enum Caller {
    /// The submitter of the operation in this slot.
    Submitter {
        slot: u32,
        /// It will wait for the operation anyway.
        waits: bool,
        /// The policy lets everything through at once.
        bypass: bool,
    },
    /// Somebody who has nothing to wait for.
    Passer,
    Worker,
}

impl<H: Host> Executor for Inner<H> {
    fn start(&self, batch: &Batch, _shard: usize, completer: &Completer) {
        let mut parts = self.spare.pop().unwrap_or_default();
        parts.extend_from_slice(batch.parts());
        let job = Job { parts, completer: completer.clone(), first: None };
        if let Some(job) = job::collect(self.address(), job) {
            self.hand_over(job);
        }
    }

    fn cancelled(&self, request: &Request, _shard: usize, errno: i32) {
        if let Some(slot) = self.end_piece(request.cookie, Ended { bytes: 0, errno }) {
            self.finish(slot);
        }
    }
}

impl<H: Host> Inner<H> {
    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    // ---- who executes ----------------------------------------------------------------------------------------

    /// To the ring or another thread.
    pub(super) fn hand_over(&self, job: Job) {
        let job = match &self.ring {
            Some(ring) if self.ring_active.load(Ordering::Relaxed) => match ring.start(self, job) {
                None => return,
                Some(job) => job,
            },
            _ => job,
        };
        self.to_thread(job);
    }

    pub(super) fn to_thread(&self, job: Job) {
        self.workers.push(job, || self.spawn());
    }

    pub(super) fn spawn(&self) -> io::Result<std::thread::JoinHandle<()>> {
        let me = self.me.clone();
        std::thread::Builder::new().name("sluice-io".to_owned()).spawn(move || {
            if let Some(inner) = me.upgrade() {
                inner.work();
            }
        })
    }

    fn work(&self) {
        let inside = Inside::enter(self.address());
        debug_assert!(inside.outermost());
        while let Some(job) = self.workers.next() {
            self.counts.threads.fetch_add(1, Ordering::Relaxed);
            self.execute(job, false);
            self.run_collected(Caller::Worker);
        }
    }

    /// Executes or hands over what was dispatched while this thread submitted or completed, until nothing is left.
    pub(super) fn run_collected(&self, caller: Caller) {
        while let Some((job, more)) = job::take() {
            match caller {
                Caller::Worker if !more => {
                    self.counts.threads.fetch_add(1, Ordering::Relaxed);
                    self.execute(job, false);
                }
                Caller::Submitter { slot, waits, bypass } if self.may_run(&job, more, slot, waits, bypass) => {
                    self.counts.caller.fetch_add(1, Ordering::Relaxed);
                    self.execute(job, true);
                }
                Caller::Submitter { .. } if self.inline && self.never_waits(&job.parts[0]) => {
                    self.counts.caller.fetch_add(1, Ordering::Relaxed);
                    self.execute(job, true);
                }
                Caller::Submitter { .. } if self.inline => {
                    if let Some(job) = self.try_cached(job) {
                        self.hand_over(job);
                    }
                }
                Caller::Submitter { .. } | Caller::Worker | Caller::Passer => self.hand_over(job),
            }
        }
    }

    /// May the submitter of this slot execute this job, and block in it?
    fn may_run(&self, job: &Job, more: bool, slot: u32, waits: bool, bypass: bool) -> bool {
        // Where there is more than one job, the others should not wait for this one.
        let own = self.inline && !more && job.parts.iter().all(|part| of_cookie(part.request.cookie).0 == slot);
        own && (waits || (bypass && self.is_plain(&job.parts[0])))
    }

    fn never_waits(&self, part: &Part) -> bool {
        let state = self.ops.slot(of_cookie(part.request.cookie).0).state.lock();
        state.file.as_ref().is_some_and(|file| self.storage.data.never_waits(file))
    }

    /// Plain system calls do it: nothing emulated waits in there.
    fn is_plain(&self, part: &Part) -> bool {
        let state = self.ops.slot(of_cookie(part.request.cookie).0).state.lock();
        let target = part.request.target.0 as usize;
        state.file.as_ref().is_some_and(|file| self.storage.data.descriptor(file, target).is_some())
    }

    /// Reads what is in the page cache at once; the job comes back if that was not possible.
    fn try_cached(&self, job: Job) -> Option<Job> {
        let request = job.parts[0].request;
        let target = request.target.0 as usize;
        if request.op != Op::Read {
            return Some(job);
        }
        let mut scratch = SCRATCH.take();
        let run = self.gather(&job.parts, 0, true, &mut scratch.parts);
        let mut hit = false;
        if run.end == job.parts.len() && run.end <= 1024 {
            let io = &mut |slices: &mut [Segment], at: u64| {
                let read = self.storage.data.try_read(&run.file, target, at, Segment::for_read(slices))?;
                read.ok_or_else(|| Errno::AGAIN.into())
            };
            let mut missed = false;
            scratch.ended.clear();
            let mut guarded = |slices: &mut [Segment], at: u64| {
                let result = if missed { Err(Errno::AGAIN.into()) } else { io(slices, at) };
                missed |= result.is_err();
                result
            };
            let Scratch { parts, slices, ended, .. } = &mut scratch;
            transfer(parts, request.offset, false, false, slices, &mut guarded, ended);
            hit = !missed;
        }
        SCRATCH.set(std::mem::take(&mut scratch));
        if !hit {
            return Some(job);
        }
        self.counts.caller.fetch_add(1, Ordering::Relaxed);
        let mut scratch = SCRATCH.take();
        self.end_job(job, &mut scratch);
        SCRATCH.set(scratch);
        None
    }

    // ---- executing -------------------------------------------------------------------------------------------

    /// Executes a job and reports its end. `lender`: on the thread that submitted, whose data need not be copied.
    fn execute(&self, mut job: Job, lender: bool) {
        let mut scratch = SCRATCH.take();
        scratch.ended.clear();
        let mut first = job.first.take();
        let mut from = 0;
        while from < job.parts.len() {
            let run = self.gather(&job.parts, from, lender, &mut scratch.parts);
            let request = job.parts[from].request;
            let Scratch { parts, slices, ended, .. } = &mut scratch;
            let mut io =
                |slices: &mut [Segment], at| first.take().unwrap_or_else(|| self.call(&run.file, &request, slices, at));
            transfer(parts, request.offset, request.op == Op::Write, self.targets == 1, slices, &mut io, ended);
            // An error may come from the handle that was used.
            let failed = job.parts[from..run.end].iter().zip(&mut ended[from..run.end]).filter(|(_, e)| e.errno != 0);
            if run.mixed {
                failed.for_each(|(part, ended)| self.redo(part, lender, ended));
            }
            from = run.end;
        }
        self.end_job(job, &mut scratch);
        SCRATCH.set(scratch);
    }

    /// Executes one part through its own handle.
    fn redo(&self, part: &Part, lender: bool, ended: &mut Ended) {
        let (mut parts, mut again) = (Vec::new(), Vec::new());
        let run = self.gather(std::slice::from_ref(part), 0, lender, &mut parts);
        let request = part.request;
        let mut io = |slices: &mut [Segment], at| self.call(&run.file, &request, slices, at);
        transfer(
            &parts,
            request.offset,
            request.op == Op::Write,
            self.targets == 1,
            &mut Vec::new(),
            &mut io,
            &mut again,
        );
        *ended = again[0];
    }

    fn call(&self, file: &FileRef, request: &Request, slices: &mut [Segment], at: u64) -> io::Result<usize> {
        let target = request.target.0 as usize;
        let call = AssertUnwindSafe(|| match request.op {
            Op::Read => self.storage.data.read(file, target, at, Segment::for_read(slices)),
            Op::Write => self.storage.data.write(file, target, at, Segment::for_write(slices)),
        });
        catch_unwind(call).unwrap_or_else(|_| {
            tracing::error!(?request, "the storage panicked; the request fails");
            Err(Errno::IO.into())
        })
    }

    /// Executes a request that is a whole operation, on this thread.
    pub(super) fn call_whole(&self, file: &FileRef, request: &Request, memory: Segment) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let mut rest = [memory.part(done, memory.len() - done)];
            match self.call(file, request, &mut rest, request.offset + done as u64) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What was moved before an error counts; the error comes with the next request.
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
                // Neither progress nor an error: do not try for ever.
                Ok(0) if request.op == Op::Write => return if done > 0 { Ok(done) } else { Err(Errno::IO.into()) },
                // A storage that claims more is wrong, but must not harm its neighbours.
                Ok(moved) => done = memory.len().min(done + moved),
            }
            // A short read is the end of the file.
            if request.op == Op::Read || done == memory.len() {
                return Ok(done);
            }
        }
    }

    /// Memory of the parts from `from` on that one call can do.
    pub(super) fn gather(&self, job: &[Part], from: usize, lender: bool, parts: &mut Vec<Segment>) -> Run {
        parts.clear();
        let (mut file, mut mixed): (Option<FileRef>, bool) = (None, false);
        let mut end = from;
        for part in &job[from..] {
            let (slot, piece) = of_cookie(part.request.cookie);
            let mut state = self.ops.slot(slot).state.lock();
            let own = state.file.as_ref().expect("an operation with outstanding pieces has its file");
            match &file {
                None => file = Some(own.clone()),
                Some(first) if Arc::ptr_eq(first, own) => {}
                // Reads of several readers of one file may go together. Writes not: a handle may be synchronous.
                Some(first) if part.request.op == Op::Read && first.id() == own.id() => mixed = true,
                // The ids of two files met when they were made to fit 64 bits.
                Some(_) => break,
            }
            let OpPieceRange { start, len } = range(&state, piece);
            parts.push(self.memory(&mut state, lender).part(start, len));
            end += 1;
        }
        Run { file: file.expect("a job has parts"), end, mixed }
    }

    /// The operation's memory. Lent data is copied unless `lender` and this is the lending thread.
    fn memory(&self, state: &mut Operation<H::Ticket>, lender: bool) -> Segment {
        match &state.memory {
            Memory::Borrowed(raw) => *raw,
            Memory::Pooled(buffer) => buffer.raw(state.len),
            Memory::Lent(raw, token) if lender && *token == job::thread_token() => *raw,
            Memory::Lent(raw, _) => {
                let buffer = self.buffers.take(state.len);
                let copy = memory::copy(*raw, &buffer);
                state.memory = Memory::Pooled(buffer);
                copy
            }
            Memory::None => unreachable!("an operation with outstanding pieces has memory"),
        }
    }

    /// The lending call is about to return.
    pub(super) fn take_lent(&self, slot: u32) {
        let slot = self.ops.slot(slot);
        if slot.pending.load(Ordering::Acquire) > 1 {
            self.memory(&mut slot.state.lock(), false);
        }
    }

    /// Reports the ends in `scratch` and tells whoever's operations ended with them.
    fn end_job(&self, mut job: Job, scratch: &mut Scratch) {
        scratch.outcomes.clear();
        scratch.finished.clear();
        for (part, ended) in job.parts.iter().zip(&scratch.ended) {
            scratch.outcomes.push((part.id, Outcome { bytes: ended.bytes, error: ended.errno }));
            scratch.finished.extend(self.end_piece(part.request.cookie, *ended));
        }
        // The engine first, so that the device has work while the hosts are told.
        job.completer.complete_all(&scratch.outcomes);
        job.parts.clear();
        let _ = self.spare.push(job.parts);
        scratch.finished.iter().for_each(|&slot| self.finish(slot));
    }

    /// All parts of a job moved all their bytes.
    pub(super) fn end_whole(&self, job: Job) {
        let mut scratch = SCRATCH.take();
        scratch.ended.clear();
        scratch.ended.extend(job.parts.iter().map(|part| Ended { bytes: part.request.len, errno: 0 }));
        self.end_job(job, &mut scratch);
        SCRATCH.set(scratch);
    }

    // ---- ending ----------------------------------------------------------------------------------------------

    /// Notes how a piece ended. Gives the slot if it was the operation's last, for [`Inner::finish`].
    pub(super) fn end_piece(&self, cookie: u64, ended: Ended) -> Option<u32> {
        let (slot, piece) = of_cookie(cookie);
        self.ops.slot(slot).state.lock().pieces[piece].ended = ended;
        self.drop_pending(slot)
    }

    pub(super) fn drop_pending(&self, slot: u32) -> Option<u32> {
        // Release: what this thread did to the memory is seen by the one that finishes the operation (Acquire).
        (self.ops.slot(slot).pending.fetch_sub(1, Ordering::AcqRel) == 1).then_some(slot)
    }

    /// Tells the host, or the thread that waits.
    pub(super) fn finish(&self, slot: u32) {
        let mut state = self.ops.slot(slot).state.lock();
        let result = self.result(&state);
        self.record_read(&mut state, result.unwrap_or(0));
        let waiter = std::mem::replace(&mut state.waiter, Waiter::Nobody);
        let memory = std::mem::replace(&mut state.memory, Memory::None);
        let (op, bytes) = (state.op, state.len as u64);
        state.pieces.clear();
        let file = state.file.take();
        if let Waiter::Thread(thread) = waiter {
            state.result = Some(result);
            drop(state);
            thread.unpark();
            return;
        }
        drop(state);
        drop(file);
        self.ops.close(slot);
        if let Waiter::Ticket(ticket) = waiter {
            let done = match (&result, op, &memory) {
                (Err(errno), ..) => Err(io::Error::from_raw_os_error(*errno)),
                (Ok(len), Op::Write, _) => Ok(Done::Written(*len)),
                (Ok(len), Op::Read, Memory::Pooled(buffer)) => Ok(Done::Read(buffer.bytes(*len))),
                (Ok(_), Op::Read, _) => Ok(Done::Read(&[])),
            };
            if catch_unwind(AssertUnwindSafe(|| self.host.complete(ticket, done))).is_err() {
                tracing::error!("the host panicked when told of a result");
            }
        }
        if let Memory::Pooled(buffer) = memory {
            self.buffers.put(buffer);
        }
        self.ops.give_back(bytes);
    }

    /// Leaves the pieces of a read, of which there are `bytes` in all, to the recording that waits for their checksums.
    fn record_read(&self, state: &mut Operation<H::Ticket>, bytes: usize) {
        let memory = match &state.memory {
            Memory::Pooled(buffer) => buffer.raw(state.len),
            Memory::Borrowed(raw) => *raw,
            Memory::None | Memory::Lent(..) => return,
        };
        let (at, requests) = &mut state.recorded;
        for (request, piece) in requests.drain(..).zip(&state.pieces) {
            let start = piece.start as usize;
            let there = bytes.saturating_sub(start).min(piece.len as usize);
            self.tap.record_summed(*at, &request, memory::checksum(memory.part(start, there)), there as u32);
        }
    }

    /// Bytes until the first piece that is short, holes filled with zeros.
    fn result(&self, state: &Operation<H::Ticket>) -> Result<usize, i32> {
        let mut size = None;
        let mut total = 0;
        for piece in &state.pieces {
            let Ended { bytes, errno } = piece.ended;
            total += bytes as usize;
            if bytes == piece.len {
                continue;
            }
            if errno != 0 {
                return if total == 0 { Err(errno) } else { Ok(total) };
            }
            // The target's file ended here, but the file may not: its size is what the longest target says.
            if state.op == Op::Write || self.targets == 1 {
                break;
            }
            let Some(file) = &state.file else { break };
            let size = match size {
                Some(size) => size,
                None => match self.storage.data.size_at_least(file, u64::MAX) {
                    Ok(now) => *size.insert(now),
                    Err(error) if total == 0 => return Err(error.raw_os_error().unwrap_or(libc::EIO)),
                    Err(_) => break,
                },
            };
            let end = size.saturating_sub(state.offset + piece.start).min(u64::from(piece.len));
            let hole = usize::try_from(end.saturating_sub(u64::from(bytes))).unwrap_or(0);
            let at = piece.start as usize + bytes as usize;
            match &state.memory {
                Memory::Pooled(buffer) => memory::fill_zero(buffer.raw(state.len).part(at, hole)),
                Memory::Borrowed(raw) => memory::fill_zero(raw.part(at, hole)),
                Memory::None | Memory::Lent(..) => {}
            }
            total += hole;
            if bytes as usize + hole < piece.len as usize {
                break;
            }
        }
        Ok(total)
    }
}

struct OpPieceRange {
    start: usize,
    len: usize,
}

fn range<T>(state: &Operation<T>, piece: usize) -> OpPieceRange {
    let piece = &state.pieces[piece];
    OpPieceRange { start: piece.start as usize, len: piece.len as usize }
}
