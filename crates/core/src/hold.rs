//! Batches held back for a short time because a predictor knows that their neighbours are about to arrive
//! (Boito 2015, 4.4: one wait for each batch, other queues are served meanwhile).
//!
//! The policy has picked a held batch and considers it gone, so every aggregating policy profits without knowing of
//! predictions. What arrives next to a held batch joins it. A batch goes when all that was expected is there, or its time
//! is over.

use crate::files::QueueId;
use crate::heap::IndexedHeap;
use crate::queues::Slot;
use crate::request::{FileId, Op, Request, Time};

/// Batches held at a time, one at most of each file queue.
const HOLDS_MAX: usize = 64;
/// Parts of a held batch.
const PARTS_MAX: usize = 256;
const NO_HOLD: u8 = u8::MAX;

/// Knows from earlier runs what will arrive.
pub trait Predictor: Send + std::fmt::Debug {
    /// A request was accepted. Called for each, in the order of submission.
    fn submitted(&mut self, now: Time, request: &Request);

    /// The policy has chosen these bytes to go next. The answer is what they should be dispatched together with, and
    /// until when to wait for it; `None`, or a time not after `now`: do not wait.
    fn expect(&mut self, now: Time, chosen: &Chosen) -> Option<Expected>;

    /// A wait is over: what it was for, and what came of it.
    fn waited(&mut self, wait: &WaitReport) {
        let _ = wait;
    }
}

/// A batch that was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// The file.
    pub file: FileId,
    /// The operation.
    pub op: Op,
    /// Its first byte.
    pub offset: u64,
    /// The byte after its last one.
    pub end: u64,
    /// When the first of its parts was submitted.
    pub earliest: Time,
}

/// What a batch should be dispatched together with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// First byte of the whole.
    pub offset: u64,
    /// The byte after its last one.
    pub end: u64,
    /// How long to wait for it.
    pub until: Time,
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitReport {
    /// The batch as it was chosen.
    pub chosen: Chosen,
    /// How long it waited, in nanoseconds.
    pub waited_ns: u64,
    /// Of that, how long at least one other batch was in flight, so that the device did not idle.
    pub overlapped_ns: u64,
    /// Bytes that joined it.
    pub gained: u64,
    /// All that was expected came.
    pub complete: bool,
}

#[derive(Debug)]
pub(crate) struct Hold {
    queue: QueueId,
    chosen: Chosen,
    expected: Expected,
    since: Time,
    offset: u64,
    end: u64,
    /// In offset order.
    pub(crate) parts: Vec<Slot>,
}

impl Hold {
    fn is_complete(&self) -> bool {
        self.offset <= self.expected.offset && self.end >= self.expected.end
    }
}

/// All held batches.
#[derive(Debug)]
pub(crate) struct Holds {
    holds: Vec<Hold>,
    free: Vec<u8>,
    of_queue: Vec<u8>,
    /// By the time at which they go.
    due: IndexedHeap<Time>,
    requests: u32,
    /// Time during which a batch was in flight, up to `busy_since`'s last change.
    busy_ns: u64,
    busy_since: Option<Time>,
    busy_at_start: [u64; HOLDS_MAX],
}

impl Holds {
    pub(crate) fn new(queues: u32) -> Holds {
        let blank = || Hold {
            queue: QueueId(0),
            chosen: Chosen { file: FileId(0), op: Op::Read, offset: 0, end: 0, earliest: Time::ZERO },
            expected: Expected { offset: 0, end: 0, until: Time::ZERO },
            since: Time::ZERO,
            offset: 0,
            end: 0,
            parts: Vec::with_capacity(PARTS_MAX),
        };
        Holds {
            holds: (0..HOLDS_MAX).map(|_| blank()).collect(),
            free: (0..HOLDS_MAX as u8).rev().collect(),
            of_queue: vec![NO_HOLD; queues as usize],
            due: IndexedHeap::new(HOLDS_MAX as u32),
            requests: 0,
            busy_ns: 0,
            busy_since: None,
            busy_at_start: [0; HOLDS_MAX],
        }
    }

    /// Requests in held batches.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Whether another batch of this queue, of so many parts, can be held.
    pub(crate) fn has_room(&self, queue: QueueId, parts: u32) -> bool {
        !self.free.is_empty() && self.of_queue[queue.0 as usize] == NO_HOLD && (parts as usize) < PARTS_MAX
    }

    pub(crate) fn hold(&mut self, now: Time, queue: QueueId, chosen: Chosen, expected: Expected, run: &[Slot]) {
        let number = self.free.pop().expect("there is room for a hold");
        self.of_queue[queue.0 as usize] = number;
        self.busy_at_start[usize::from(number)] = self.busy_until(now);
        let hold = &mut self.holds[usize::from(number)];
        (hold.queue, hold.chosen, hold.expected, hold.since) = (queue, chosen, expected, now);
        (hold.offset, hold.end) = (chosen.offset, chosen.end);
        hold.parts.clear();
        hold.parts.extend_from_slice(run);
        self.requests += run.len() as u32;
        self.due.set(number.into(), expected.until);
    }

    /// The stretch held of this queue: bytes next to it may join.
    pub(crate) fn held(&self, queue: QueueId) -> Option<(u64, u64)> {
        let hold = self.get(queue)?;
        Some((hold.offset, hold.end))
    }

    fn get(&self, queue: QueueId) -> Option<&Hold> {
        self.holds.get(usize::from(self.of_queue[queue.0 as usize]))
    }

    /// Takes a request that begins at the end of the held stretch, or ends at its beginning, if it was expected and
    /// fits. `bytes_max` and `requests_max`: bounds of a batch.
    pub(crate) fn join(
        &mut self,
        queue: QueueId,
        slot: Slot,
        range: (u64, u64),
        bytes_max: u64,
        requests_max: u32,
    ) -> bool {
        let number = self.of_queue[queue.0 as usize];
        let Some(hold) = self.holds.get_mut(usize::from(number)) else { return false };
        let (offset, end) = range;
        let fits = hold.parts.len() < PARTS_MAX.min(requests_max as usize)
            && (hold.end - hold.offset).saturating_add(end - offset) <= bytes_max;
        let expected = offset >= hold.expected.offset && end <= hold.expected.end;
        if !fits || !expected || offset == end {
            return false;
        }
        if offset == hold.end {
            hold.parts.push(slot);
            hold.end = end;
        } else if end == hold.offset {
            hold.parts.insert(0, slot);
            hold.offset = offset;
        } else {
            return false;
        }
        self.requests += 1;
        if hold.is_complete() {
            self.due.set(number.into(), Time::ZERO);
        }
        true
    }

    /// When the first held batch goes.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.due.peek().map(|(at, _)| at)
    }

    /// All of them go now.
    pub(crate) fn release_all(&mut self) {
        for number in 0..HOLDS_MAX as u32 {
            if self.due.contains(number) {
                self.due.set(number, Time::ZERO);
            }
        }
    }

    /// Ends the first hold that is due: its parts into `run`.
    pub(crate) fn take_due(&mut self, now: Time, run: &mut Vec<Slot>) -> Option<WaitReport> {
        let (_, number) = self.due.peek().filter(|&(at, _)| at <= now)?;
        Some(self.take(now, number, run))
    }

    /// Ends the hold of this queue.
    pub(crate) fn take_queue(&mut self, now: Time, queue: QueueId, run: &mut Vec<Slot>) -> WaitReport {
        let number = self.of_queue[queue.0 as usize];
        self.take(now, number.into(), run)
    }

    fn take(&mut self, now: Time, number: u32, run: &mut Vec<Slot>) -> WaitReport {
        let busy_ns = self.busy_until(now) - self.busy_at_start[number as usize];
        self.due.remove(number);
        self.free.push(number as u8);
        let hold = &self.holds[number as usize];
        self.of_queue[hold.queue.0 as usize] = NO_HOLD;
        self.requests -= hold.parts.len() as u32;
        run.clear();
        run.extend_from_slice(&hold.parts);
        WaitReport {
            chosen: hold.chosen,
            waited_ns: now.since(hold.since),
            overlapped_ns: busy_ns,
            gained: (hold.end - hold.offset) - (hold.chosen.end - hold.chosen.offset),
            complete: hold.is_complete(),
        }
    }

    /// Tells that the number of batches in flight became zero, or ceased to be.
    pub(crate) fn device_busy(&mut self, now: Time, busy: bool) {
        self.busy_ns = self.busy_until(now);
        self.busy_since = busy.then_some(now);
    }

    fn busy_until(&self, now: Time) -> u64 {
        self.busy_ns + self.busy_since.map_or(0, |since| now.since(since))
    }
}
