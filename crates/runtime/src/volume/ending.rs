//! How operations end: whose each byte is, what the host is told, and when.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use sluice_core::{Op, Outcome, Part, Request, Time};

use super::host::{Done, Host};
use super::memory;
use super::ops::{Memory, Operation, Waiter, of_cookie};
use super::service::{Scratch, Service, guarded};
use super::transfer::Ended;
use crate::client::Completer;
use crate::effects::{Effects, InCallback, in_callback, tell_later};
use crate::sync::atomic::Ordering;

/// Bytes that an operation moved, from its first on, and the error number of what stopped it (0: nothing did, or the end of
/// the file).
#[derive(Clone, Copy)]
pub(super) struct Moved {
    pub(super) bytes: usize,
    pub(super) errno: i32,
}

impl From<Ended> for Moved {
    fn from(ended: Ended) -> Moved {
        Moved { bytes: ended.bytes as usize, errno: ended.errno }
    }
}

impl Moved {
    /// For who takes what was moved before an error, and is told the error when it asks for the rest.
    pub(super) fn as_call(self) -> Result<usize, i32> {
        if self.bytes == 0 && self.errno != 0 { Err(self.errno) } else { Ok(self.bytes) }
    }
}

/// What a host is to be told of an operation.
struct Ending<T> {
    ticket: T,
    result: Moved,
    op: Op,
    /// Where the data of a read is.
    memory: Memory,
}

impl<H: Host> Service<H> {
    /// Reports the ends in `scratch` and tells whoever's operations ended with them. `at`: when they ended, if that is known.
    pub(super) fn end_parts(
        &self,
        parts: &[Part],
        scratch: &mut Scratch,
        effects: &mut Effects<Completer>,
        at: Option<Time>,
    ) {
        scratch.outcomes.clear();
        scratch.finished.clear();
        for (part, ended) in parts.iter().zip(&scratch.ended) {
            scratch.outcomes.push((part.id, Outcome { bytes: ended.bytes, error: ended.errno }));
            scratch.finished.extend(self.end_piece(part.request.cookie, *ended));
        }
        // The engine first, so that the device has work while the hosts are told.
        let completer = self.completer(parts[0].request.target.0);
        completer.shard.complete_into(completer, &scratch.outcomes, effects, at);
        // All before any host is told: what it does then may wait for any of them.
        let mut ended: Vec<Ending<H::Ticket>> = Vec::new();
        let mut slots = scratch.finished.iter();
        let first = slots.next().and_then(|&slot| self.conclude(slot));
        ended.extend(slots.filter_map(|&slot| self.conclude(slot)));
        if first.is_none() && ended.is_empty() {
            return;
        }
        ended.extend(self.end_call().and_then(|slot| self.conclude(slot)));
        self.parking(effects, || first.into_iter().chain(ended).for_each(|ending| self.tell_ending(ending)));
    }

    /// A request that the engine gave back.
    pub(super) fn cancel(&self, request: &Request, errno: i32) {
        let completer = self.completer(request.target.0);
        self.end_cancelled(request, errno);
        completer.shard.release(1);
    }

    pub(super) fn end_cancelled(&self, request: &Request, errno: i32) {
        if let Some(slot) = self.end_piece(request.cookie, Ended { bytes: 0, errno }) {
            self.finish(slot);
        }
    }

    /// Notes how a piece ended. Gives the slot if it was the operation's last, for [`Service::finish`].
    pub(super) fn end_piece(&self, cookie: u64, ended: Ended) -> Option<u32> {
        let (slot, piece) = of_cookie(cookie);
        let mut state = self.ops.slot(slot).state.lock();
        state.pieces[piece].ended = ended;
        if state.op == Op::Write && ended.bytes < state.pieces[piece].len {
            let moved = state.pieces.iter().filter(|piece| piece.ended.bytes > 0);
            let end = moved.map(|piece| state.offset + piece.start + u64::from(piece.ended.bytes)).max();
            drop(state);
            self.ops.write_fails(slot, end.unwrap_or(0));
        } else {
            drop(state);
        }
        self.drop_pending(slot)
    }

    pub(super) fn drop_pending(&self, slot: u32) -> Option<u32> {
        // Release: what this thread did to the memory is seen by the one that finishes the operation (Acquire).
        (self.ops.slot(slot).pending.fetch_sub(1, Ordering::AcqRel) == 1).then_some(slot)
    }

    /// Ends an operation, and tells the host.
    pub(super) fn finish(&self, slot: u32) {
        if let Some(ending) = self.conclude(slot) {
            let call = self.end_call().and_then(|slot| self.conclude(slot));
            self.tell_ending(ending);
            call.into_iter().for_each(|ending| self.tell_ending(ending));
        }
    }

    /// Ends an operation: its slot and its share of the memory are free. Who waits in a call is woken; what there is to tell
    /// the host is given back.
    fn conclude(&self, slot: u32) -> Option<Ending<H::Ticket>> {
        let mut state = self.ops.slot(slot).state.lock();
        let result = self.result(&state);
        if state.op == Op::Write && self.targets > 1 && result.bytes != state.len {
            self.trim(slot, &state, result.bytes);
        }
        self.record_read(&mut state, result.bytes);
        let waiter = std::mem::replace(&mut state.waiter, Waiter::Nobody);
        let memory = std::mem::replace(&mut state.memory, Memory::None);
        let (op, bytes) = (state.op, state.len as u64);
        state.clear();
        let file = state.file.take();
        if let (Op::Write, Some(file)) = (op, &file) {
            self.ops.write_ends(slot, file.id(), self.targets > 1);
        }
        if let Waiter::Thread(thread) = waiter {
            // Here, and not when the thread has it: it may be telling a host of something else, who waits for the file.
            self.ops.end(slot);
            state.result = Some(result.as_call());
            drop(state);
            drop(file);
            thread.unpark();
            return None;
        }
        drop(state);
        drop(file);
        self.will_tell();
        self.ops.end(slot);
        self.ops.free(slot);
        self.ops.give_back(bytes);
        match waiter {
            Waiter::Ticket(ticket) => Some(Ending { ticket, result, op, memory }),
            Waiter::Nobody | Waiter::Thread(_) => {
                self.told();
                None
            }
        }
    }

    /// Tells the host how an operation ended; later, if calls of hosts are deep inside each other on this thread.
    fn tell_ending(&self, ending: Ending<H::Ticket>) {
        self.shallow(move |me| me.tell_ending_now(ending));
    }

    /// Does what calls a host, now or when fewer calls of hosts are inside each other on this thread.
    fn shallow(&self, tell: impl FnOnce(&Service<H>) + Send + 'static) {
        // In this order: what counts references is shared by all threads.
        if InCallback::is_deep()
            && let Some(me) = self.me.upgrade()
        {
            return tell_later(move || tell(&me));
        }
        tell(self);
    }

    fn tell_ending_now(&self, ending: Ending<H::Ticket>) {
        let Ending { ticket, result, op, memory } = ending;
        let done = match (op, &memory) {
            (Op::Write, _) => Done::Written(result.bytes),
            (Op::Read, Memory::Pooled(buffer)) => Done::Read(buffer.bytes(result.bytes)),
            (Op::Read, _) => Done::Read(&[]),
        };
        self.tell(ticket, done, result);
        if let Memory::Pooled(buffer) = memory {
            self.buffers.put(buffer);
        }
        self.told();
    }

    /// A host is about to be told of something, in a moment.
    pub(super) fn will_tell(&self) {
        self.telling.increase();
    }

    pub(super) fn told(&self) {
        self.telling.decrease();
        self.all_told.changed();
    }

    /// Waits until no host is being told. Not inside such a call.
    pub(super) fn wait_told(&self) {
        if !in_callback() {
            self.all_told.wait(None, || self.telling.sum() == 0);
        }
    }

    /// Tells the host of an operation that moves nothing.
    pub(super) fn tell_nothing(&self, ticket: H::Ticket, op: Op, result: Result<(), Errno>) {
        let done = if op == Op::Read { Done::Read(&[]) } else { Done::Written(0) };
        let errno = result.map_or_else(Errno::raw_os_error, |()| 0);
        self.shallow(move |me| me.tell(ticket, done, Moved { bytes: 0, errno }));
    }

    /// Tells the host of a result: of what was `moved`, which is `done`. A panic of it is its own.
    pub(super) fn tell(&self, ticket: H::Ticket, done: Done<'_>, moved: Moved) {
        let _inside = InCallback::enter();
        let error = io::Error::from_raw_os_error(moved.errno);
        let tell = || match moved {
            Moved { errno: 0, .. } => self.host.complete(ticket, Ok(done)),
            Moved { bytes: 0, .. } => self.host.complete(ticket, Err(error)),
            Moved { .. } => self.host.complete_in_part(ticket, done, error),
        };
        if catch_unwind(AssertUnwindSafe(tell)).is_err() {
            tracing::error!("the host panicked when told of a result");
        }
    }

    /// Leaves the pieces of a read, of which there are `bytes` in all, to the recording that waits for their checksums.
    fn record_read(&self, state: &mut Operation<H::Ticket>, bytes: usize) {
        let memory = match &state.memory {
            Memory::Pooled(buffer) => buffer.raw(state.len),
            Memory::Borrowed(memory) => *memory,
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
    fn result(&self, state: &Operation<H::Ticket>) -> Moved {
        let mut size = None;
        let mut total = 0;
        for piece in &state.pieces {
            let Ended { bytes, errno } = piece.ended;
            total += bytes as usize;
            if bytes == piece.len {
                continue;
            }
            if errno != 0 {
                return Moved { bytes: total, errno };
            }
            // The target's file ended here, or did when this piece was read, but the file may not: its size is what the
            // longest target says.
            if state.op == Op::Write || self.targets == 1 && state.pieces.len() == 1 {
                break;
            }
            let size = match size {
                Some(size) => size,
                None => match self.size(state) {
                    Ok(now) => *size.insert(now),
                    Err(errno) => return Moved { bytes: total, errno },
                },
            };
            let end = size.saturating_sub(state.offset + piece.start).min(u64::from(piece.len));
            let hole = usize::try_from(end.saturating_sub(u64::from(bytes))).unwrap_or(0);
            let at = piece.start as usize + bytes as usize;
            match &state.memory {
                Memory::Pooled(buffer) => memory::fill_zero(buffer.raw(state.len).part(at, hole)),
                Memory::Borrowed(memory) => memory::fill_zero(memory.part(at, hole)),
                Memory::None | Memory::Lent(..) => {}
            }
            total += hole;
            if bytes as usize + hole < piece.len as usize {
                break;
            }
        }
        Moved { bytes: total, errno: 0 }
    }

    /// A write over several targets failed in part: what it made the file longer by, beyond what it moved, goes again. Only
    /// while nobody else uses the file, and if no other write to it has ended since its size was asked for: that might be
    /// what made it longer.
    fn trim(&self, slot: u32, state: &Operation<H::Ticket>, moved: usize) {
        let (Some(file), Ok(before)) = (&state.file, state.size_before) else { return };
        // An operation opens its slot and then looks whether files are being cut; here it is the other way round.
        self.trimming.fetch_add(1, Ordering::SeqCst);
        if self.ops.is_only_one(slot, file.id()) && self.ops.writes_ended(file.id()) == state.writes_before {
            let range = state.offset..state.offset + state.len as u64;
            let trim = || self.storage.data.trim(file, before, range, moved as u64);
            if let Err(error) = guarded(Err(Errno::IO.into()), trim) {
                tracing::warn!(%error, "a write that failed leaves the file longer than what was written");
            }
        }
        self.trimming.fetch_sub(1, Ordering::SeqCst);
        self.trimmed.changed();
    }

    /// Waits while files are being cut. For an operation that has opened its slot.
    pub(super) fn wait_for_trims(&self) {
        if self.trimming.load(Ordering::SeqCst) > 0 {
            let is_over = || self.trimming.load(Ordering::SeqCst) == 0;
            self.blocking_inside(|until| self.trimmed.wait(until, is_over).then_some(()));
        }
    }

    /// Up to where what is missing from the pieces of a read is a hole: where the file had reached before they were
    /// submitted (what was written later may have come too late for the one piece and in time for the other) and still
    /// reaches (it may have been truncated).
    fn size(&self, state: &Operation<H::Ticket>) -> Result<u64, i32> {
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let before = state.awaited.iter().map(|write| write.end).fold(state.size_before?, u64::max);
        let Some(file) = &state.file else { return Ok(before) };
        let attr = guarded(Err(Errno::IO.into()), || self.storage.namespace.getattr_open(file));
        let now = attr.map_err(errno)?.size;
        Ok(before.min(now))
    }
}
