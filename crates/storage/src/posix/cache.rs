//! Descriptors of remembered objects: a bounded number, for all storages of the process together.
//!
//! A host remembers as many objects as its kernel does, a million of them after a walk through a large tree. Each would
//! like an open `O_PATH` descriptor. So descriptors are kept for those used of late (second chance), and the others are
//! reopened when needed. What the bound leaves of the process's limit is for open files; when that runs out, descriptors
//! kept here make room.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use rustix::io::{Errno, Result};
use rustix::process::{Resource, getrlimit};

/// Most descriptors kept, whatever the process may have: each keeps the kernel from forgetting an inode.
const MOST: u64 = 32_768;
const LEAST: u64 = 16;
/// How many are closed at a time when the process has no more.
const RELEASED: usize = 16;
const NO_PLACE: u32 = u32::MAX;

/// Something that has a descriptor and can do without.
pub(super) trait Evict: Send + Sync {
    /// Its place here.
    fn place(&self) -> &Place;
    /// Closes the descriptor, or hands it out to be closed.
    fn evict(&self) -> Eviction;
}

pub(super) enum Eviction {
    /// There is no descriptor any more but this one.
    Done(Option<Arc<OwnedFd>>),
    /// In use at this moment.
    Busy,
    /// It must keep its descriptor.
    Never,
}

/// What the cache notes in an entry.
pub(super) struct Place {
    at: AtomicU32,
    used: AtomicBool,
}

impl Place {
    pub(super) fn new() -> Place {
        Place { at: AtomicU32::new(NO_PLACE), used: AtomicBool::new(true) }
    }

    pub(super) fn touch(&self) {
        // A shared cache line is only written to when that changes something.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

pub(super) struct Cache(Mutex<Entries>);

struct Entries {
    places: Vec<Option<Arc<dyn Evict>>>,
    free: Vec<u32>,
    hand: usize,
    bound: usize,
}

/// What left the cache. Dropped after its lock was let go: closing may take long, and may end what an entry refers to.
type Left = Vec<(Arc<dyn Evict>, Option<Arc<OwnedFd>>)>;

pub(super) static CACHE: Cache =
    Cache(Mutex::new(Entries { places: Vec::new(), free: Vec::new(), hand: 0, bound: LEAST as usize }));

impl Cache {
    /// Takes the process's limit into account, of which half is left for open files.
    pub(super) fn fit_to_limit(&self) {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.0.lock().bound = (limit / 2).saturating_sub(32).clamp(LEAST, MOST) as usize;
    }

    /// Notes an entry that got a descriptor; others may lose theirs.
    pub(super) fn insert(&self, entry: Arc<dyn Evict>) {
        let left = self.0.lock().insert(entry);
        drop(left);
    }

    /// Forgets an entry.
    pub(super) fn remove(&self, place: &Place) {
        if place.at.load(Ordering::Relaxed) == NO_PLACE {
            return;
        }
        let mut entries = self.0.lock();
        let at = place.at.swap(NO_PLACE, Ordering::Relaxed);
        let entry = (at != NO_PLACE).then(|| entries.take(at));
        drop(entries);
        drop(entry);
    }

    /// Does something that needs a new descriptor, making room if the process has none left.
    pub(super) fn with_room<R>(&self, mut open: impl FnMut() -> Result<R>) -> Result<R> {
        loop {
            match open() {
                Err(Errno::MFILE | Errno::NFILE) if self.release(RELEASED) > 0 => {}
                result => return result,
            }
        }
    }

    /// Closes up to `count` descriptors; tells how many.
    fn release(&self, count: usize) -> usize {
        let mut left = Left::new();
        let mut entries = self.0.lock();
        for _ in 0..2 * entries.places.len() {
            if left.iter().filter(|(_, fd)| fd.is_some()).count() >= count {
                break;
            }
            entries.step(&mut left);
        }
        drop(entries);
        let closed = left.iter().filter(|(_, fd)| fd.is_some()).count();
        drop(left);
        closed
    }
}

impl Entries {
    fn insert(&mut self, entry: Arc<dyn Evict>) -> Left {
        let mut left = Left::new();
        if entry.place().at.load(Ordering::Relaxed) != NO_PLACE {
            return left;
        }
        // Twice round: once to take the second chances, once to use them. If everything is busy there is one more.
        let mut steps = 2 * self.places.len();
        while self.free.is_empty() && self.places.len() >= self.bound && steps > 0 {
            self.step(&mut left);
            steps -= 1;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        entry.place().at.store(at, Ordering::Relaxed);
        self.places[at as usize] = Some(entry);
        left
    }

    /// Looks at the next place and empties it if it can.
    fn step(&mut self, left: &mut Left) {
        if self.places.is_empty() {
            return;
        }
        self.hand = (self.hand + 1) % self.places.len();
        let Some(entry) = &self.places[self.hand] else { return };
        if entry.place().used.swap(false, Ordering::Relaxed) {
            return;
        }
        let fd = match entry.evict() {
            Eviction::Busy => return,
            Eviction::Done(fd) => fd,
            Eviction::Never => None,
        };
        entry.place().at.store(NO_PLACE, Ordering::Relaxed);
        let entry = self.take(self.hand as u32);
        left.extend(entry.map(|entry| (entry, fd)));
    }

    fn take(&mut self, at: u32) -> Option<Arc<dyn Evict>> {
        self.free.push(at);
        self.places[at as usize].take()
    }
}
