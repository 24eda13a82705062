//! Where submitters leave what they submit until the recorder fetches it.
//!
//! Each thread has a ring of its own, so that leaving an entry takes no lock and no atomic operation that others have to
//! wait for: on a small request these are most of what recording costs. A ring that is full drops entries, which are counted.
//! Threads beyond the first 64 share a ring.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;
use rtrb::{Consumer, Producer, RingBuffer};
use sluice_core::{AppId, FileId, Op, Request, TargetId, Time};
use sluice_trace::Sum;

/// Entries of a ring, 768 KiB.
const RING: usize = 16_384;
/// After so many entries of one thread there is enough to fetch.
const WORTH: u32 = 2048;
/// Rings of threads, 48 MiB in all.
const RINGS_MAX: usize = 64;

/// What was submitted, in 48 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) at: Time,
    pub(super) file: FileId,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) app: AppId,
    target: u32,
    sum: u32,
    summed: u32,
    op: Op,
}

impl Seen {
    fn of(at: Time, request: &Request) -> Seen {
        let Request { file, app, target, op, offset, len, .. } = *request;
        Seen { at, file, offset, len, app, target: target.0, sum: 0, summed: 0, op }
    }

    /// The checksum of its data, if there is one.
    pub(super) fn sum(&self) -> Option<Sum> {
        (self.summed > 0).then_some(Sum { crc: self.sum, bytes: self.summed })
    }

    /// The request again, but for its cookie.
    pub(super) fn request(&self) -> Request {
        let Seen { file, offset, len, app, op, .. } = *self;
        Request { cookie: 0, file, app, target: TargetId(self.target), op, offset, len }
    }
}

/// One end of a ring, for those who leave entries.
struct Mine {
    /// Of the recording.
    id: u64,
    ring: Producer<Seen>,
    since_wake: u32,
}

thread_local! {
    /// This thread's rings: one for each recording or observation that it has met and that may still be running.
    static MINE: RefCell<Vec<Mine>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Rings {
    /// Those that the recorder has not seen yet.
    new: Vec<Consumer<Seen>>,
    made: usize,
    shared: Option<Mine>,
}

/// The rings of a tap.
#[derive(Default)]
pub(super) struct Buffers {
    /// Of the recording; never used again.
    id: AtomicU64,
    rings: Mutex<Rings>,
    dropped: AtomicU64,
}

impl Buffers {
    /// Leaves an entry. True if there is enough to fetch now.
    #[inline]
    pub(super) fn push(&self, at: Time, request: &Request) -> bool {
        self.push_seen(Seen::of(at, request))
    }

    /// Leaves an entry with the checksum of the first `bytes` of its data.
    pub(super) fn push_summed(&self, at: Time, request: &Request, sum: u32, bytes: u32) -> bool {
        self.push_seen(Seen { sum, summed: bytes, ..Seen::of(at, request) })
    }

    #[inline]
    fn push_seen(&self, seen: Seen) -> bool {
        let id = self.id.load(Ordering::Relaxed);
        let pushed = MINE.try_with(|mine| {
            let mine = &mut *mine.borrow_mut();
            match mine.iter_mut().find(|mine| mine.id == id) {
                Some(mine) => self.leave(mine, seen),
                None => self.leave_first(mine, id, seen),
            }
        });
        // A thread that is about to end has no ring any more.
        pushed.unwrap_or_else(|_| self.leave_shared(id, seen))
    }

    #[inline]
    fn leave(&self, mine: &mut Mine, seen: Seen) -> bool {
        if mine.ring.push(seen).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        mine.since_wake += 1;
        let enough = mine.since_wake == WORTH;
        if enough {
            mine.since_wake = 0;
        }
        enough
    }

    #[cold]
    fn leave_first(&self, all: &mut Vec<Mine>, id: u64, seen: Seen) -> bool {
        all.retain(|mine| !mine.ring.is_abandoned());
        let mut rings = self.rings.lock();
        if rings.made >= RINGS_MAX {
            drop(rings);
            return self.leave_shared(id, seen);
        }
        let mut mine = rings.make(id);
        drop(rings);
        let enough = self.leave(&mut mine, seen);
        all.push(mine);
        enough
    }

    #[cold]
    fn leave_shared(&self, id: u64, seen: Seen) -> bool {
        let mut rings = self.rings.lock();
        let mut mine = match rings.shared.take() {
            Some(mine) => mine,
            None => rings.make(id),
        };
        let enough = self.leave(&mut mine, seen);
        rings.shared = Some(mine);
        enough
    }

    /// Adds the rings that have been made since the last time.
    pub(super) fn meet(&self, rings: &mut Vec<Consumer<Seen>>) {
        let mut known = self.rings.lock();
        let before = rings.len();
        // Those of threads that have ended, once they are empty.
        let over = |ring: &Consumer<Seen>| {
            ring.is_abandoned() && {
                // What the thread left last must be seen after its end is.
                fence(Ordering::Acquire);
                ring.is_empty()
            }
        };
        rings.retain(|ring| !over(ring));
        known.made -= before - rings.len();
        rings.append(&mut known.new);
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Forgets everything, for the next recording.
    pub(super) fn clear(&self) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        *self.rings.lock() = Rings::default();
        self.dropped.store(0, Ordering::Relaxed);
        self.id.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Rings {
    fn make(&mut self, id: u64) -> Mine {
        let (ring, other) = RingBuffer::new(RING);
        self.new.push(other);
        self.made += 1;
        Mine { id, ring, since_wake: 0 }
    }
}

/// Takes what is in the rings, in the order of time. Returns the number of entries.
pub(super) fn fetch<E>(
    rings: &mut [Consumer<Seen>],
    mut each: impl FnMut(&[Seen]) -> Result<(), E>,
) -> Result<usize, E> {
    let chunks: Vec<_> = rings.iter_mut().filter_map(|ring| ring.read_chunk(ring.slots()).ok()).collect();
    let mut sources: Vec<Source<'_>> = Vec::with_capacity(chunks.len());
    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
        let (first, second) = chunk.as_slices();
        sources.push(Source::new(first, second));
    }
    let done = in_order(&mut sources, &mut each);
    drop(sources);
    let count = chunks.iter().map(rtrb::chunks::ReadChunk::len).sum();
    chunks.into_iter().for_each(rtrb::chunks::ReadChunk::commit_all);
    done.map(|()| count)
}

/// What is left of a ring: two slices, of which the first is not empty.
struct Source<'a> {
    first: Cow<'a, [Seen]>,
    at: usize,
    second: &'a [Seen],
}

impl<'a> Source<'a> {
    fn new(first: &'a [Seen], second: &'a [Seen]) -> Source<'a> {
        let sorted = |seen: &[Seen]| seen.is_sorted_by_key(|seen| seen.at);
        let follow = first.last().zip(second.first()).is_none_or(|(before, after)| before.at <= after.at);
        if sorted(first) && sorted(second) && follow {
            return Source { first: first.into(), at: 0, second };
        }
        // Requests that were submitted while another one was being submitted, on the same thread.
        let mut all = [first, second].concat();
        all.sort_by_key(|seen| seen.at);
        Source { first: all.into(), at: 0, second: &[] }
    }

    fn left(&self) -> &[Seen] {
        &self.first[self.at..]
    }

    /// Goes on behind so many. False at the end.
    fn skip(&mut self, count: usize) -> bool {
        self.at += count;
        if self.at == self.first.len() {
            (self.first, self.at, self.second) = (self.second.into(), 0, &[]);
        }
        !self.left().is_empty()
    }
}

fn in_order<E>(sources: &mut Vec<Source<'_>>, each: &mut impl FnMut(&[Seen]) -> Result<(), E>) -> Result<(), E> {
    while let Some(source) = sources.first() {
        // The source whose next entry is the earliest, and until when it stays so.
        let (mut first, mut earliest, mut until) = (0, source.left()[0].at, Time(u64::MAX));
        for (number, source) in sources.iter().enumerate().skip(1) {
            let at = source.left()[0].at;
            if at < earliest {
                (first, until, earliest) = (number, earliest, at);
            } else {
                until = until.min(at);
            }
        }
        let source = &mut sources[first];
        let count = source.left().iter().take_while(|seen| seen.at <= until).count().max(1);
        each(&source.left()[..count])?;
        if !source.skip(count) {
            sources.swap_remove(first);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(offset: u64) -> Request {
        Request { cookie: 0, file: FileId(1), app: AppId(2), target: TargetId(3), op: Op::Write, offset, len: 4 }
    }

    fn new() -> Buffers {
        let buffers = Buffers::default();
        buffers.clear();
        buffers
    }

    fn all(buffers: &Buffers, rings: &mut Vec<Consumer<Seen>>) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        buffers.meet(rings);
        let count = fetch(rings, |seen| {
            all.extend(seen.iter().map(|seen| (seen.at.0, seen.offset)));
            Ok::<(), ()>(())
        });
        assert_eq!(count, Ok(all.len()));
        all
    }

    #[test]
    fn an_entry_takes_48_bytes_and_comes_back_as_it_was() {
        assert_eq!(size_of::<Seen>(), 48);
        assert_eq!(Seen::of(Time(1), &request(9)).request(), request(9));
    }

    #[test]
    fn what_many_threads_leave_comes_in_the_order_of_time_and_their_rings_go_with_them() {
        const EACH: u64 = 5_000;
        let (buffers, clock) = (new(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let leave = || {
                for _ in 0..EACH {
                    let now = clock.fetch_add(1, Ordering::Relaxed);
                    buffers.push(Time(now), &request(now * 2));
                }
            };
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(leave)).collect();
            // The scope alone waits for what they do, but not for the end of what is theirs.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let mut rings = Vec::new();
        let seen = all(&buffers, &mut rings);
        assert!(seen.into_iter().eq((0..6 * EACH).map(|n| (n, n * 2))));
        assert_eq!((buffers.dropped(), rings.len()), (0, 6));
        assert!(all(&buffers, &mut rings).is_empty() && rings.is_empty());
        assert_eq!(buffers.rings.lock().made, 0);
    }

    #[test]
    fn the_recorder_is_woken_before_a_ring_is_full_and_what_does_not_fit_is_counted() {
        let (buffers, mut rings) = (new(), Vec::new());
        let count = RING as u64 + 10;
        let wakes: Vec<u64> = (0..count).filter(|&n| buffers.push(Time(n), &request(n))).collect();
        assert_eq!(wakes, [1, 2, 3, 4, 5, 6, 7, 8].map(|n| n * u64::from(WORTH) - 1));
        assert!(all(&buffers, &mut rings).into_iter().eq((0..count - 10).map(|n| (n, n))));
        assert_eq!((buffers.dropped(), rings.len()), (10, 1));
        // Around the end of the ring.
        for n in [5, 3, 4] {
            buffers.push(Time(n), &request(n));
        }
        assert_eq!(all(&buffers, &mut rings), [(3, 3), (4, 4), (5, 5)]);
        // The next recording has nothing of this one.
        buffers.push(Time(1), &request(1));
        buffers.clear();
        rings.clear();
        buffers.push(Time(2), &request(2));
        assert_eq!(all(&buffers, &mut rings), [(2, 2)]);
        assert_eq!(MINE.with_borrow(Vec::len), 1);
    }

    #[test]
    fn more_threads_than_rings_share_one() {
        let (buffers, go) = (new(), std::sync::Barrier::new(RINGS_MAX + 5));
        std::thread::scope(|scope| {
            for n in 0..RINGS_MAX as u64 + 5 {
                let (buffers, go) = (&buffers, &go);
                scope.spawn(move || {
                    go.wait();
                    buffers.push(Time(n), &request(n));
                    buffers.push(Time(n), &request(n));
                    go.wait();
                });
            }
        });
        let mut rings = Vec::new();
        assert_eq!(all(&buffers, &mut rings).len(), 2 * (RINGS_MAX + 5));
        assert_eq!(rings.len(), RINGS_MAX + 1);
    }
}
