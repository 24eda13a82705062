//! Batches delayed for a short time because a predictor knows that their neighbours are about to arrive
//! (Boito 2015, 4.4: one wait for each batch, other queues are served meanwhile).
//!
//! The policy has picked a delayed batch and considers it gone, so every aggregating policy profits without knowing of
//! predictions. What arrives of the expected range joins the delayed batch, next to it or not, for parts come in any order. A
//! batch goes when all that was expected is there, or its time is over; where parts are missing then, what does not touch it
//! is queued again.

use std::ops::Range;

use crate::files::QueueId;
use crate::heap::IndexedHeap;
use crate::queues::Slot;
use crate::request::{FileId, Op, Request, TargetId, Time};

/// Batches delayed at a time, one at most of each file queue.
const DELAYED_MAX: usize = 64;
/// Parts of a delayed batch.
pub(crate) const PARTS_MAX: usize = 256;
const NOT_DELAYED: u8 = u8::MAX;

/// Knows from earlier runs what will arrive.
pub trait Predictor: Send + std::fmt::Debug {
    /// A request was accepted. Called for each, in the order of submission.
    fn submitted(&mut self, now: Time, request: &Request);

    /// The policy has chosen these bytes to go next. The answer is what they should be dispatched together with, and
    /// until when to wait for it; `None`, or a time not after `now`: do not wait.
    fn expect(&mut self, now: Time, chosen: &Chosen) -> Option<Expected>;

    /// So many batches in flight keep the device busy: with fewer it idles, wholly or in part.
    fn parallelism(&self) -> u32 {
        1
    }

    /// The device has worked for a while, and this is what it has done.
    fn served(&mut self, work: &Work) {
        let _ = work;
    }

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
    /// The data server that holds it.
    pub target: TargetId,
    /// The operation.
    pub op: Op,
    /// Its first byte.
    pub offset: u64,
    /// The byte after its last one.
    pub end: u64,
    /// When the first of its parts was submitted.
    pub earliest: Time,
    /// It begins where the batch dispatched last has ended, in the same file: the device is there already.
    pub continues: bool,
}

/// What a batch should be dispatched together with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// First byte of the whole.
    pub offset: u64,
    /// The byte after its last one.
    pub end: u64,
    /// How long to wait for it while the device has other batches to serve.
    pub until: Time,
    /// How long to wait for it with an idle device; not after `until`. In the past: not at all.
    pub idle_until: Time,
    /// Bytes of it that have not arrived yet: when so many have joined, the wait is over, although some of the range may
    /// have gone before. `u64::MAX`: all that is not there.
    pub missing: u64,
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
    /// How long it had waited when the last of them came, in nanoseconds; 0 if none did.
    pub gained_by_ns: u64,
    /// All that was expected came.
    pub complete: bool,
}

/// What the device did in some busy time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// The time, in nanoseconds.
    pub busy_ns: u64,
    /// Batches of reads and of writes.
    pub batches: [u64; 2],
    /// Bytes read and written.
    pub bytes: [u64; 2],
    /// Requests accepted and not complete, at its end.
    pub outstanding: u32,
}

#[derive(Debug)]
pub(crate) struct DelayedBatch {
    queue: QueueId,
    chosen: Chosen,
    expected: Expected,
    since: Time,
    /// When the last of its parts joined.
    joined: Time,
    /// In offset order; no two overlap.
    parts: Vec<Part>,
    /// Their bytes.
    bytes: u64,
    /// How many there will be when nothing is missing.
    target: u64,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    slot: Slot,
    offset: u64,
    end: u64,
}

impl DelayedBatch {
    fn is_complete(&self) -> bool {
        self.bytes >= self.target
    }

    /// Where a request of this range would be among the parts, if it was expected and overlaps none of them.
    fn place(&self, (offset, end): (u64, u64), requests_max: u32) -> Option<usize> {
        let expected = offset >= self.expected.offset && end <= self.expected.end && offset < end;
        if !expected || self.parts.len() >= PARTS_MAX.min(requests_max as usize) {
            return None;
        }
        let at = self.parts.partition_point(|part| part.offset < offset);
        let before = at == 0 || self.parts[at - 1].end <= offset;
        let behind = self.parts.get(at).is_none_or(|part| end <= part.offset);
        (before && behind).then_some(at)
    }

    /// The parts that follow each other round the one that was chosen, within these bounds.
    fn batch(&self, bytes_max: u64, requests_max: u32) -> Range<usize> {
        let parts = &self.parts;
        let chosen = parts.partition_point(|part| part.offset < self.chosen.offset).min(parts.len() - 1);
        let mut range = chosen..chosen + 1;
        let mut bytes = parts[chosen].end - parts[chosen].offset;
        let mut takes = |part: &Part, touches: bool, count: usize| {
            let whole = bytes + (part.end - part.offset);
            let fits = touches && whole <= bytes_max && count < requests_max as usize;
            if fits {
                bytes = whole;
            }
            fits
        };
        while let Some(next) = parts.get(range.end)
            && takes(next, parts[range.end - 1].end == next.offset, range.len())
        {
            range.end += 1;
        }
        while let Some(before) = range.start.checked_sub(1).map(|at| &parts[at])
            && takes(before, before.end == parts[range.start].offset, range.len())
        {
            range.start -= 1;
        }
        range
    }
}

/// All delayed batches.
#[derive(Debug)]
pub(crate) struct DelayedBatches {
    batches: Vec<DelayedBatch>,
    free: Vec<u8>,
    of_queue: Vec<u8>,
    /// By the time at which they go.
    due: IndexedHeap<Time>,
    /// By the time at which they go if the device is idle.
    idle_due: IndexedHeap<Time>,
    requests: u32,
    /// When it was asked last what is due.
    latest: Time,
    /// Time during which a batch was in flight, up to `busy_since`'s last change.
    busy_ns: u64,
    busy_since: Option<Time>,
    busy_at_start: [u64; DELAYED_MAX],
}

impl DelayedBatches {
    pub(crate) fn new(queues: u32) -> DelayedBatches {
        let blank = || DelayedBatch {
            queue: QueueId(0),
            chosen: Chosen {
                file: FileId(0),
                target: TargetId(0),
                op: Op::Read,
                offset: 0,
                end: 0,
                earliest: Time::ZERO,
                continues: false,
            },
            expected: Expected { offset: 0, end: 0, until: Time::ZERO, idle_until: Time::ZERO, missing: 0 },
            target: 0,
            since: Time::ZERO,
            joined: Time::ZERO,
            parts: Vec::with_capacity(PARTS_MAX),
            bytes: 0,
        };
        DelayedBatches {
            batches: (0..DELAYED_MAX).map(|_| blank()).collect(),
            free: (0..DELAYED_MAX as u8).rev().collect(),
            of_queue: vec![NOT_DELAYED; queues as usize],
            due: IndexedHeap::new(DELAYED_MAX as u32),
            idle_due: IndexedHeap::new(DELAYED_MAX as u32),
            requests: 0,
            latest: Time::ZERO,
            busy_ns: 0,
            busy_since: None,
            busy_at_start: [0; DELAYED_MAX],
        }
    }

    /// Requests in delayed batches.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Whether another batch of this queue, of so many parts, can be delayed.
    pub(crate) fn has_room(&self, queue: QueueId, parts: u32) -> bool {
        !self.free.is_empty() && self.of_queue[queue.0 as usize] == NOT_DELAYED && (parts as usize) < PARTS_MAX
    }

    /// Delays a batch, without its parts yet: they [join](DelayedBatches::join).
    pub(crate) fn delay(&mut self, now: Time, queue: QueueId, chosen: Chosen, expected: Expected) {
        let number = self.free.pop().expect("there is room for another one");
        self.of_queue[queue.0 as usize] = number;
        self.busy_at_start[usize::from(number)] = self.busy_until(now);
        let delayed = &mut self.batches[usize::from(number)];
        (delayed.queue, delayed.chosen, delayed.expected) = (queue, chosen, expected);
        (delayed.since, delayed.joined) = (now, now);
        delayed.bytes = 0;
        delayed.target = expected.end - expected.offset;
        delayed.parts.clear();
        self.due.set(number.into(), expected.until);
        self.idle_due.set(number.into(), expected.idle_until);
    }

    /// All that has arrived is in the delayed batch of this queue: from now on what was missing counts.
    pub(crate) fn settle(&mut self, queue: QueueId) {
        let number = self.of_queue[queue.0 as usize];
        if let Some(delayed) = self.batches.get_mut(usize::from(number)) {
            delayed.target = delayed.target.min(delayed.bytes.saturating_add(delayed.expected.missing));
            if delayed.is_complete() {
                self.due.set(number.into(), Time::ZERO);
            }
        }
    }

    /// The range that is expected for this queue, while it is waited for.
    pub(crate) fn expected(&self, queue: QueueId) -> Option<(u64, u64)> {
        let delayed = self.get(queue)?;
        Some((delayed.expected.offset, delayed.expected.end))
    }

    /// Whether a stretch of this queue, of so many requests, could join its delayed batch. `requests_max`: bound of a batch.
    pub(crate) fn takes(&self, queue: QueueId, range: (u64, u64), requests: u32, requests_max: u32) -> bool {
        let room = requests_max.min(PARTS_MAX as u32).saturating_sub(requests - 1);
        self.get(queue).is_some_and(|delayed| delayed.place(range, room).is_some())
    }

    fn get(&self, queue: QueueId) -> Option<&DelayedBatch> {
        self.batches.get(usize::from(self.of_queue[queue.0 as usize]))
    }

    /// Takes a request of the expected range, if there is room. `requests_max`: bound of a batch.
    pub(crate) fn join(&mut self, now: Time, queue: QueueId, slot: Slot, range: (u64, u64), requests_max: u32) -> bool {
        let number = self.of_queue[queue.0 as usize];
        let Some(delayed) = self.batches.get_mut(usize::from(number)) else { return false };
        let Some(at) = delayed.place(range, requests_max) else { return false };
        let (offset, end) = range;
        delayed.parts.insert(at, Part { slot, offset, end });
        delayed.bytes += end - offset;
        delayed.joined = now;
        self.requests += 1;
        if delayed.is_complete() {
            self.due.set(number.into(), Time::ZERO);
        }
        true
    }

    /// When the first delayed batch goes. `idle`: the device has nothing else to serve.
    pub(crate) fn next_due(&self, idle: bool) -> Option<Time> {
        let (due, _) = self.due.peek()?;
        Some(if idle { self.idle_due.peek().map_or(due, |(idle_due, _)| idle_due.min(due)) } else { due })
    }

    /// The device has nothing else to serve: the batch that has least to expect goes, if it is not to be waited for any
    /// more. True if there is one.
    pub(crate) fn end_idle_wait(&mut self, now: Time) -> bool {
        let Some((_, number)) = self.idle_due.peek().filter(|&(at, _)| at <= now) else { return false };
        self.due.set(number, Time::ZERO);
        true
    }

    /// All of them go now.
    pub(crate) fn release_all(&mut self) {
        for number in 0..DELAYED_MAX as u32 {
            if self.due.contains(number) {
                self.due.set(number, Time::ZERO);
            }
        }
    }

    /// Ends the first delay that is due: what goes as a batch, the extent around what was chosen first, into `candidate`.
    /// What does not touch it is left over, into `rest`: its neighbours are still to come, and it had better wait for them
    /// in the queue.
    pub(crate) fn take_due(
        &mut self,
        now: Time,
        (bytes_max, requests_max): (u64, u32),
        candidate: &mut Vec<Slot>,
        rest: &mut Vec<Slot>,
    ) -> Option<WaitReport> {
        // Where the clock went backwards nothing is waited for until it is there again.
        if now < std::mem::replace(&mut self.latest, now) {
            self.release_all();
        }
        let (_, number) = self.due.peek().filter(|&(at, _)| at <= now)?;
        let report = self.report(now, number);
        let delayed = &mut self.batches[number as usize];
        let batch = delayed.batch(bytes_max, requests_max);
        let slots = |parts: &[Part], into: &mut Vec<Slot>| into.extend(parts.iter().map(|part| part.slot));
        candidate.clear();
        slots(&delayed.parts[batch.clone()], candidate);
        rest.clear();
        slots(&delayed.parts[..batch.start], rest);
        slots(&delayed.parts[batch.end..], rest);
        self.requests -= delayed.parts.len() as u32;
        self.end(number);
        Some(report)
    }

    /// Ends some delay, if there is any: all its parts into `candidate`.
    pub(crate) fn take_some(&mut self, candidate: &mut Vec<Slot>) -> bool {
        let Some((_, number)) = self.due.peek() else { return false };
        self.take_queue(self.batches[number as usize].queue, candidate);
        true
    }

    /// Ends the delay of this queue: all its parts into `candidate`.
    pub(crate) fn take_queue(&mut self, queue: QueueId, candidate: &mut Vec<Slot>) {
        let number = self.of_queue[queue.0 as usize];
        let delayed = &mut self.batches[usize::from(number)];
        candidate.clear();
        candidate.extend(delayed.parts.drain(..).map(|part| part.slot));
        self.requests -= candidate.len() as u32;
        self.end(number.into());
    }

    fn end(&mut self, number: u32) {
        self.due.remove(number);
        self.idle_due.remove(number);
        self.free.push(number as u8);
        self.of_queue[self.batches[number as usize].queue.0 as usize] = NOT_DELAYED;
    }

    fn report(&self, now: Time, number: u32) -> WaitReport {
        let delayed = &self.batches[number as usize];
        WaitReport {
            chosen: delayed.chosen,
            waited_ns: now.since(delayed.since),
            // Less than 0 where the time went backwards.
            overlapped_ns: self.busy_until(now).saturating_sub(self.busy_at_start[number as usize]),
            gained: delayed.bytes - (delayed.chosen.end - delayed.chosen.offset),
            gained_by_ns: delayed.joined.since(delayed.since),
            complete: delayed.is_complete(),
        }
    }

    /// Tells that batches are in flight, which may be known, or none are any more.
    pub(crate) fn device_busy(&mut self, now: Time, busy: bool) {
        if busy && self.busy_since.is_some() {
            return;
        }
        self.busy_ns = self.busy_until(now);
        self.busy_since = busy.then_some(now);
    }

    /// Time up to now during which a batch was in flight.
    pub(crate) fn busy_until(&self, now: Time) -> u64 {
        self.busy_ns + self.busy_since.map_or(0, |since| now.since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_that_does_not_fit_leaves_room_for_the_one_on_the_other_side() {
        let mut batches = DelayedBatches::new(1);
        let queue = QueueId(0);
        let chosen = Chosen {
            file: FileId(0),
            target: TargetId(0),
            op: Op::Read,
            offset: 100,
            end: 110,
            earliest: Time::ZERO,
            continues: false,
        };
        let expected = Expected { offset: 0, end: 200, until: Time(5), idle_until: Time::ZERO, missing: u64::MAX };
        batches.delay(Time::ZERO, queue, chosen, expected);
        for (slot, range) in [(1, (100, 110)), (2, (110, 190)), (3, (90, 100))] {
            assert!(batches.join(Time(1), queue, slot, range, 8));
        }
        let (mut candidate, mut rest) = (Vec::new(), Vec::new());
        let report = batches.take_due(Time(5), (25, 8), &mut candidate, &mut rest).unwrap();
        assert_eq!((candidate, rest, report.gained, report.gained_by_ns), (vec![3, 1], vec![2], 90, 1));
    }
}
