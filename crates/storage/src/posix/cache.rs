//! Descriptors that can be done without for a while: a bounded number, for all storages of the process together.
//!
//! A host remembers as many objects as its kernel does, a million of them after a walk through a large tree. Each would
//! like an open `O_PATH` descriptor. So descriptors are kept for those used of late (second chance), and the others are
//! reopened when needed. The same holds for open files, where they [can be reopened](super::file): there is one bound for
//! either, and what these leave of the process's limit is for files that must keep their descriptors, and for others.
//! When the process runs out of descriptors, those kept here make room: remembered objects' first, then open files'.
//!
//! What keeps a descriptor for as long as somebody likes ([`to_keep`]) gets none of the last numbers, the reserve. So these are
//! only for what is closed after a moment or can be closed here, and look-ups, and reads of files that were closed early, go
//! on when nothing more can be opened. (The kernel gives out the lowest free number.)

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use rustix::io::{DupFlags, Errno, Result, dup3, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

/// Most descriptors kept, whatever the process may have: each keeps the kernel from forgetting an inode.
const MOST: u64 = 32_768;
const LEAST: u64 = 16;
/// How many are closed at a time when the process has no more.
const RELEASED: usize = 16;
/// Most places looked at for one that is free, where many may be in use.
const LOOKS: usize = 64;
const NO_PLACE: u32 = u32::MAX;
/// The part of the limit that is the reserve, and the most that it is: more than are in use for a moment.
const RESERVE_PART: u64 = 8;
const RESERVE_MAX: u64 = 128;

/// Something that has a descriptor and can do without.
pub(super) trait Evict: Send + Sync {
    /// Its place here.
    fn place(&self) -> &Place;
    /// Closes the descriptor, or hands it out to be closed.
    fn evict(&self) -> Eviction;
    /// Does what takes time and stands in the way of eviction. Called with nothing locked, when nothing else helps.
    fn settle(&self) {}
}

/// What an entry had, closed when dropped.
pub(super) type Descriptors = Box<dyn Send>;

pub(super) enum Eviction {
    /// There is no descriptor any more but these.
    Done(Option<Descriptors>),
    /// In use at this moment, or not settled.
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
    /// Most entries kept, whatever the process may have.
    most: u64,
    /// Most places looked at to keep to the bound.
    looks: usize,
}

/// What left the cache. Dropped after its lock was let go: closing may take long, and may end what an entry refers to.
type Left = Vec<(Arc<dyn Evict>, Option<Descriptors>)>;

/// Those of remembered objects.
pub(super) static CACHE: Cache = Cache::new(MOST, usize::MAX);
/// Those of open files. Of changed ones there may be more than the bound; then they are not all looked at each time.
pub(super) static FILES: Cache = Cache::new(u64::MAX, LOOKS);

/// Does something that needs a new descriptor, making room if the process has none left.
pub(super) fn with_room<R>(mut open: impl FnMut() -> Result<R>) -> Result<R> {
    loop {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) if make_room() => {}
            Err(none @ (Errno::MFILE | Errno::NFILE)) => {
                say_once(none);
                return Err(none);
            }
            result => return result,
        }
    }
}

/// As [`with_room`], for a descriptor that nobody can close before its user does: none of the reserve. `open` may have an
/// effect; without a descriptor for its result it is not called. `any`: some descriptor.
///
/// # Errors
/// Those of `open`; `EMFILE` if only the reserve is left.
pub(super) fn to_keep(any: impl AsFd, open: impl FnMut() -> Result<OwnedFd>) -> Result<OwnedFd> {
    let mut place = copy_to_keep(any)?;
    let fd = with_room(open)?;
    if is_reserve(&fd) {
        dup3(&fd, &mut place, DupFlags::CLOEXEC)?;
        return Ok(place);
    }
    Ok(fd)
}

/// Another descriptor for the same, none of the reserve.
///
/// # Errors
/// `EMFILE` if only the reserve is left.
pub(super) fn copy_to_keep(fd: impl AsFd) -> Result<OwnedFd> {
    loop {
        let copy = with_room(|| fcntl_dupfd_cloexec(&fd, 0))?;
        if !is_reserve(&copy) {
            return Ok(copy);
        }
        drop(copy);
        if !make_room() {
            say_once(Errno::MFILE);
            return Err(Errno::MFILE);
        }
    }
}

/// A descriptor of the reserve.
pub(super) fn is_reserve(fd: &OwnedFd) -> bool {
    fd.as_raw_fd() as u64 >= to_be_kept()
}

/// How many descriptors the process may have without the reserve.
fn to_be_kept() -> u64 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    limit - (limit / RESERVE_PART).min(RESERVE_MAX)
}

/// Closes what can be closed; false if there is nothing.
fn make_room() -> bool {
    CACHE.release(RELEASED) > 0 || FILES.release(RELEASED) > 0 || FILES.settle() > 0
}

/// Callers see the error; why it came, and what helps, whoever runs the process should know.
#[cold]
fn say_once(error: Errno) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        tracing::error!(
            %error,
            "no descriptor is left, and none can be closed for another file: those that are open must stay so; raise the \
             limit (ulimit -n, LimitNOFILE=) above what programs keep open, times the targets of a striped volume"
        );
    }
}

impl Cache {
    const fn new(most: u64, looks: usize) -> Cache {
        let bound = LEAST as usize;
        Cache(Mutex::new(Entries { places: Vec::new(), free: Vec::new(), hand: 0, bound, most, looks }))
    }

    /// Takes the process's limit into account, of which half is left for the other cache.
    pub(super) fn fit_to_limit(&self) {
        let limit = to_be_kept();
        let mut entries = self.0.lock();
        entries.bound = (limit / 2).saturating_sub(32).clamp(LEAST, entries.most) as usize;
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

    /// Closes up to `count` descriptors; tells how many.
    fn release(&self, count: usize) -> usize {
        let mut left = Left::new();
        let mut entries = self.0.lock();
        for _ in 0..2 * entries.places.len() {
            if left.iter().filter(|(_, had)| had.is_some()).count() >= count {
                break;
            }
            entries.step(&mut left);
        }
        drop(entries);
        let closed = left.iter().filter(|(_, had)| had.is_some()).count();
        drop(left);
        closed
    }

    /// Settles one entry after the other until one can be closed; tells how many were.
    fn settle(&self) -> usize {
        let places = self.0.lock().places.len();
        for _ in 0..places {
            let next = self.0.lock().next();
            let Some((at, entry)) = next else { continue };
            entry.settle();
            let mut left = Left::new();
            // Whoever is there by now.
            self.0.lock().empty(at, &mut left);
            if left.iter().any(|(_, had)| had.is_some()) {
                return 1;
            }
        }
        0
    }
}

impl Entries {
    fn insert(&mut self, entry: Arc<dyn Evict>) -> Left {
        let mut left = Left::new();
        if entry.place().at.load(Ordering::Relaxed) != NO_PLACE {
            return left;
        }
        // Twice round: once to take the second chances, once to use them. If everything is busy there is one more.
        let mut steps = self.looks.min(2 * self.places.len());
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

    /// The entry at the next place.
    fn next(&mut self) -> Option<(usize, Arc<dyn Evict>)> {
        self.hand = (self.hand + 1) % self.places.len().max(1);
        let entry = self.places.get(self.hand)?.clone()?;
        Some((self.hand, entry))
    }

    /// Looks at the next place and empties it if it can, and if it was not used of late.
    fn step(&mut self, left: &mut Left) {
        if let Some((at, entry)) = self.next()
            && !entry.place().used.swap(false, Ordering::Relaxed)
        {
            self.empty(at, left);
        }
    }

    fn empty(&mut self, at: usize, left: &mut Left) {
        let Some(entry) = &self.places[at] else { return };
        let had = match entry.evict() {
            Eviction::Busy => return,
            Eviction::Done(had) => had,
            Eviction::Never => None,
        };
        entry.place().at.store(NO_PLACE, Ordering::Relaxed);
        let entry = self.take(at as u32);
        left.extend(entry.map(|entry| (entry, had)));
    }

    fn take(&mut self, at: u32) -> Option<Arc<dyn Evict>> {
        self.free.push(at);
        self.places[at as usize].take()
    }
}
