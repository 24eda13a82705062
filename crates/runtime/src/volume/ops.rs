//! The logical requests that are outstanding: a table of fixed size, found again by the cookies of their pieces.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use sluice_core::{Op, Request, Time};
use sluice_storage::{FileRef, Segment};

use super::memory::Buffer;
use super::transfer::Ended;
use crate::gate::Gate;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{ArrayQueue, Mutex, Thread};

/// Who waits for an operation.
pub(super) enum Waiter<T> {
    Nobody,
    /// Told through the host.
    Ticket(T),
    /// Asleep in the call; looks at `result`.
    Thread(Thread),
}

/// Where an operation's bytes are.
pub(super) enum Memory {
    None,
    /// In a buffer of ours.
    Pooled(Buffer),
    /// In the caller's memory until the operation ends: the caller waits for that.
    Borrowed(Segment),
    /// In the memory of the thread with this number, until its call returns. Other threads copy before they use it.
    Lent(Segment, u64),
}

/// A part of an operation that is scheduled on its own.
#[derive(Clone, Copy)]
pub(super) struct OpPiece {
    /// First byte, counted from the operation's first.
    pub(super) start: u64,
    pub(super) len: u32,
    pub(super) ended: Ended,
}

pub(super) struct Operation<T> {
    pub(super) file: Option<FileRef>,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) memory: Memory,
    pub(super) pieces: Vec<OpPiece>,
    pub(super) waiter: Waiter<T>,
    /// Of several pieces: the size, or a bound of it that the operation does not reach, before its pieces were submitted; or the
    /// error number of asking.
    pub(super) size_before: Result<u64, i32>,
    /// Of a read: the writes before it that it waits for, and that reach beyond that.
    pub(super) awaited: Vec<Awaited>,
    /// What [`Ops::writes_ended`] was before that was asked.
    pub(super) writes_before: u64,
    /// For a read whose data a recording wants the checksum of: its arrival, and the request for each piece.
    pub(super) recorded: (Time, Vec<Request>),
    /// For a waiting thread: bytes or error number.
    pub(super) result: Option<Result<usize, i32>>,
}

impl<T> Operation<T> {
    /// Forgets what it was made of. Slots are used in turn: what each keeps of its lists, all of them keep.
    pub(super) fn clear(&mut self) {
        empty(&mut self.pieces);
        empty(&mut self.awaited);
        empty(&mut self.recorded.1);
    }

    /// For how many entries memory is kept.
    #[cfg(all(test, not(feature = "model")))]
    pub(super) fn kept(&self) -> usize {
        self.pieces.capacity().max(self.awaited.capacity()).max(self.recorded.1.capacity())
    }
}

/// Entries of a list for which a slot keeps memory.
pub(super) const KEPT: usize = 32;

fn empty<T>(list: &mut Vec<T>) {
    match list.capacity() {
        ..=KEPT => list.clear(),
        _ => *list = Vec::new(),
    }
}

/// A write, for a read that waits for it.
#[derive(Clone, Copy)]
pub(super) struct Awaited {
    slot: u32,
    generation: u32,
    /// Up to where the file reaches with it.
    pub(super) end: u64,
}

pub(super) struct OpSlot<T> {
    pub(super) state: Mutex<Operation<T>>,
    /// Pieces not ended, and 1 until the submitting call returns. Who takes the last one finishes the operation.
    pub(super) pending: AtomicU32,
    /// Odd while in use.
    generation: AtomicU32,
    file: AtomicU64,
    /// Of a write that the engines have: where it begins and ends. The end is 0 for all others.
    written: [AtomicU64; 2],
}

/// In place of the end of a write of which a piece has failed: nobody waits for what it would have brought.
const FAILED: u64 = u64::MAX;
/// Counts of writes, by number of the file.
const WRITES: usize = 64;
/// One write that has ended; in the lower half are those that have not.
const ENDED: u64 = 1 << 32;

pub(super) struct Ops<T> {
    slots: Box<[CachePadded<OpSlot<T>>]>,
    unused: ArrayQueue<u32>,
    /// Bytes of memory that admitted operations may use.
    bytes: CachePadded<AtomicU64>,
    bytes_max: u64,
    /// Writes that are open and that have ended, of the files with a number; on volumes of several targets.
    writes: [CachePadded<AtomicU64>; WRITES],
    line: CachePadded<Line>,
    /// For those that wait for a free slot or for bytes.
    room: Gate,
    idle: Gate,
}

/// Threads that wait for room, in the order in which they came: else a large operation might wait for ever while there is
/// always room for small ones.
#[derive(Default)]
struct Line {
    /// Looked at by everybody, and changed with the list only.
    len: AtomicU32,
    list: Mutex<VecDeque<u64>>,
    next: AtomicU64,
}

impl Line {
    fn join(&self) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut list = self.list.lock();
        list.push_back(number);
        self.len.store(list.len() as u32, Ordering::SeqCst);
        number
    }

    fn is_first(&self, number: u64) -> bool {
        self.list.lock().front() == Some(&number)
    }

    fn leave(&self, number: u64) {
        let mut list = self.list.lock();
        list.retain(|other| *other != number);
        self.len.store(list.len() as u32, Ordering::SeqCst);
    }
}

pub(super) fn cookie(slot: u32, piece: usize) -> u64 {
    u64::from(slot) << 32 | piece as u64
}

pub(super) fn of_cookie(cookie: u64) -> (u32, usize) {
    ((cookie >> 32) as u32, (cookie & 0xffff_ffff) as usize)
}

impl<T> Ops<T> {
    pub(super) fn new(count: u32, bytes_max: u64) -> Ops<T> {
        let unused = ArrayQueue::new(count as usize);
        (0..count).for_each(|slot| _ = unused.push(slot));
        let slot = |_| {
            let state = Mutex::new(Operation {
                file: None,
                op: Op::Read,
                offset: 0,
                len: 0,
                memory: Memory::None,
                pieces: Vec::with_capacity(1),
                waiter: Waiter::Nobody,
                size_before: Ok(0),
                awaited: Vec::new(),
                writes_before: 0,
                recorded: (Time::ZERO, Vec::new()),
                result: None,
            });
            let (pending, generation, file) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU64::new(0));
            CachePadded::new(OpSlot { state, pending, generation, file, written: Default::default() })
        };
        let slots = (0..count).map(slot).collect();
        let (room, idle) = (Gate::default(), Gate::default());
        let writes = std::array::from_fn(|_| CachePadded::default());
        let bytes = CachePadded::new(AtomicU64::new(0));
        Ops { slots, unused, bytes, bytes_max, writes, line: CachePadded::default(), room, idle }
    }

    pub(super) fn slot(&self, slot: u32) -> &OpSlot<T> {
        &self.slots[slot as usize]
    }

    /// A slot for an operation that may need `bytes` of memory, or `None` if there is no room now, or others wait for some. One
    /// operation is let in however large it is.
    pub(super) fn admit(&self, bytes: u64) -> Option<u32> {
        if self.line.len.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let slot = self.take_room(bytes);
        if slot.is_none() {
            // Who has joined the line since looks again: it may have found no bytes while this one had some, and no slot.
            self.room.changed();
        }
        slot
    }

    /// As [`Ops::admit`]; waits for it, or until it is so late.
    pub(super) fn wait_to_admit(&self, bytes: u64, until: Option<Instant>) -> Option<u32> {
        let (number, mut slot) = (self.line.join(), None);
        self.room.wait(until, || {
            slot = slot.or_else(|| self.line.is_first(number).then(|| self.take_room(bytes)).flatten());
            slot.is_some()
        });
        self.line.leave(number);
        self.room.changed();
        slot
    }

    fn take_room(&self, bytes: u64) -> Option<u32> {
        let fits = |used: u64| (used == 0 || used.saturating_add(bytes) <= self.bytes_max).then(|| used + bytes);
        self.bytes.fetch_update(Ordering::SeqCst, Ordering::Relaxed, fits).ok()?;
        let slot = self.unused.pop();
        if slot.is_none() {
            // Who is in line is told of no more than the end of an operation; but see `Ops::admit`.
            self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
        slot
    }

    /// Marks an admitted slot as used for a file, which [`Ops::wait_idle`] sees.
    pub(super) fn open(&self, slot: u32, file: u64, pending: u32) {
        let slot = self.slot(slot);
        slot.pending.store(pending, Ordering::Relaxed);
        slot.file.store(file, Ordering::Relaxed);
        slot.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// The operation in the slot has ended: nobody [waits](Ops::wait_idle) for it any more.
    pub(super) fn end(&self, slot: u32) {
        self.slot(slot).generation.fetch_add(1, Ordering::SeqCst);
        self.idle.changed();
    }

    /// The slot of an operation that has ended is free.
    pub(super) fn free(&self, slot: u32) {
        let pushed = self.unused.push(slot);
        debug_assert!(pushed.is_ok());
        self.room.changed();
    }

    /// The memory of an operation is free again.
    pub(super) fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.room.changed();
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits for the operations on this file (or all) that are open now; `None` if that took until after `until`. O(slots), as
    /// it is rare.
    pub(super) fn wait_idle(&self, file: Option<u64>, until: Option<Instant>) -> Option<()> {
        for slot in &self.slots {
            let open = slot.generation.load(Ordering::SeqCst);
            if open % 2 == 1
                && file.is_none_or(|file| slot.file.load(Ordering::Relaxed) == file)
                && !self.idle.wait(until, || slot.generation.load(Ordering::SeqCst) != open)
            {
                return None;
            }
        }
        Some(())
    }

    /// Whether no operation on this file is open but the one in `slot`. O(slots).
    pub(super) fn is_only_one(&self, slot: u32, file: u64) -> bool {
        let others = self.slots.iter().enumerate().filter(|(at, _)| *at != slot as usize);
        let open = |slot: &OpSlot<T>| slot.generation.load(Ordering::SeqCst) % 2 == 1;
        !others.into_iter().any(|(_, slot)| open(slot) && slot.file.load(Ordering::Relaxed) == file)
    }

    fn writes(&self, file: u64) -> &AtomicU64 {
        &self.writes[file as usize % WRITES]
    }

    /// A write is about to be opened.
    pub(super) fn write_begins(&self, file: u64) {
        self.writes(file).fetch_add(1, Ordering::SeqCst);
    }

    /// The engines have all pieces of the write in this slot. One of them may have failed by now.
    pub(super) fn write_submitted(&self, slot: u32, range: Range<u64>) {
        let [start, end] = &self.slot(slot).written;
        start.store(range.start, Ordering::Relaxed);
        _ = end.compare_exchange(0, range.end, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// The write in this slot has ended, and is about to be free. `counted`: its begin was told.
    pub(super) fn write_ends(&self, slot: u32, file: u64, counted: bool) {
        self.slot(slot).written[1].store(0, Ordering::SeqCst);
        if counted {
            self.writes(file).fetch_add(ENDED - 1, Ordering::SeqCst);
        }
    }

    /// How many writes have ended, on this file and others. Its effect is there before one is counted.
    pub(super) fn writes_ended(&self, file: u64) -> u64 {
        self.writes(file).load(Ordering::SeqCst) / ENDED
    }

    /// No write that was counted is open, on this file and some others.
    pub(super) fn nobody_writes(&self, file: u64) -> bool {
        self.writes(file).load(Ordering::SeqCst).is_multiple_of(ENDED)
    }

    /// The writes of the file that the engines have, have not ended, and overlap the range. O(slots).
    pub(super) fn writes_over(&self, file: u64, range: &Range<u64>) -> Vec<Awaited> {
        let write = |at: usize| {
            let slot = &self.slots[at];
            let generation = slot.generation.load(Ordering::SeqCst);
            let end = slot.written[1].load(Ordering::SeqCst);
            let start = slot.written[0].load(Ordering::SeqCst);
            let overlaps =
                end != FAILED && start < range.end && range.start < end && slot.file.load(Ordering::SeqCst) == file;
            // Else it is another operation's by now, and this one has ended.
            let same = generation % 2 == 1 && slot.generation.load(Ordering::SeqCst) == generation;
            (overlaps && same).then_some(Awaited { slot: at as u32, generation, end })
        };
        (0..self.slots.len()).filter_map(write).collect()
    }

    /// Whether a write is under way still, and nothing of it has failed. To be asked by a read that has noted it.
    pub(super) fn is_awaited(&self, write: &Awaited) -> bool {
        let slot = self.slot(write.slot);
        slot.written[1].load(Ordering::SeqCst) == write.end
            && slot.generation.load(Ordering::SeqCst) == write.generation
    }

    /// A piece of the write in this slot has failed, and the others that have ended reach up to `end`: it is not awaited any
    /// more, and who awaits it is told. Before the engine hears of the piece. O(slots).
    pub(super) fn write_fails(&self, failed: u32, end: u64) {
        let slot = self.slot(failed);
        slot.written[1].store(FAILED, Ordering::SeqCst);
        let generation = slot.generation.load(Ordering::SeqCst);
        for other in self.slots.iter().filter(|other| !std::ptr::eq(&***other, slot)) {
            let awaited = &mut other.state.lock().awaited;
            let wanted = |write: &&mut Awaited| (write.slot, write.generation) == (failed, generation);
            awaited.iter_mut().filter(wanted).for_each(|write| write.end = end);
        }
    }

    /// Slots in use.
    pub(super) fn outstanding(&self) -> usize {
        self.slots.len() - self.unused.len()
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_failed_before_it_was_submitted_is_not_waited_for() {
        let ops = &Ops::<()>::new(8, 100);
        let over = |range: Range<u64>| ops.writes_over(7, &range).len();
        for fails_first in [false, true] {
            let slot = ops.admit(10).unwrap();
            ops.open(slot, 7, 1);
            if fails_first {
                ops.write_fails(slot, 0);
            }
            ops.write_submitted(slot, 10..20);
            assert_eq!(over(19..30), usize::from(!fails_first));
            assert_eq!(over(20..u64::MAX), 0);
            ops.write_ends(slot, 7, false);
            assert_eq!(over(0..100), 0);
            ops.end(slot);
            ops.free(slot);
            ops.give_back(10);
        }
    }

    #[test]
    fn who_waits_for_room_comes_before_those_who_need_less() {
        let ops = &Ops::<()>::new(8, 100);
        let end = |slot, bytes| {
            ops.open(slot, 1, 1);
            ops.end(slot);
            ops.free(slot);
            ops.give_back(bytes);
        };
        let first = ops.admit(60).unwrap();
        std::thread::scope(|scope| {
            let wait = |bytes, others| {
                let waiting = scope.spawn(move || ops.wait_to_admit(bytes, None).unwrap());
                while ops.line.len.load(Ordering::SeqCst) <= others {
                    std::thread::yield_now();
                }
                waiting
            };
            let large = wait(150, 0);
            assert_eq!(ops.admit(30), None, "there is room, but not for the one before");
            let small = wait(30, 1);
            end(first, 60);
            let slot = large.join().unwrap();
            assert_eq!((ops.bytes(), small.is_finished()), (150, false));
            end(slot, 150);
            end(small.join().unwrap(), 30);
        });
        assert_eq!((ops.bytes(), ops.outstanding()), (0, 0));
        assert!(ops.admit(30).is_some());
    }
}
