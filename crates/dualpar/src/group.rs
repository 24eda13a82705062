//! How the processes of a node agree: memory that they share, with a place for each.
//!
//! A process that has something to be served (requests that its ghost told, or writes that it collected) says so in its place and
//! waits until all those that are in the same mode on the same file have come, or its patience is over. Then one of them *leads*:
//! it takes who has come, serves all of them in one sorted batch, and lets them go. Nobody waits for one that is computing or
//! that waits for a message longer than that, so the program's progress never depends on it. A leader that dies is noticed.
//!
//! The memory has no name as soon as all have it, so nothing stays behind. Processes trust each other here: they are one
//! program; ghosts do not have it.

use crate::demand::Demand;
use crate::plan::Range;
use std::cell::UnsafeCell;
use std::io::{Error, ErrorKind, Result};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Requests, and collected writes, that a place has room for.
pub const ENTRIES: usize = crate::ghost::RECORDS;
/// Bytes that a place has room for, prefetched ones and as many collected writes: the quota of a process.
pub const DATA: usize = 1 << 20;

const IDLE: u32 = 0;
const READY: u32 = 1;
const TAKEN: u32 = 2;
const DONE: u32 = 3;

/// How often somebody who waits for a leader looks whether it is alive.
const LOOK: Duration = Duration::from_millis(100);
/// After this time a process that has not been taken by any leader goes on alone.
const GIVE_UP: Duration = Duration::from_secs(2);

/// Why a process comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// To have prefetched what its ghost told.
    Read = 1,
    /// To have written what it collected.
    Write = 2,
}

/// A file: the same for all processes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileKey {
    /// Device.
    pub device: u64,
    /// Number on it.
    pub inode: u64,
}

#[repr(C)]
struct Header {
    places: AtomicU32,
    /// Process that leads; 0 if nobody does.
    leader: AtomicU32,
    /// Where the last request on this node began.
    last: AtomicU64,
    /// What was found in the cache.
    demand: AtomicU64,
}

#[repr(C, align(4096))]
struct Place {
    state: AtomicU32,
    kind: AtomicU32,
    pid: AtomicU32,
    error: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    /// Which files it comes for, by kind; 0 if none. Hashes: a wrong one is waited for in vain, once.
    expects: [AtomicU64; 2],
    count: AtomicU64,
    writes: AtomicU64,
    /// What is read, and from `write_ranges` on what is written: there may be memory for one of them alone.
    ranges: UnsafeCell<[Range; ENTRIES]>,
    room: UnsafeCell<[u8; DATA]>,
    write_ranges: UnsafeCell<[Range; ENTRIES]>,
    data: UnsafeCell<[u8; DATA]>,
}

/// One process's view of the memory.
#[derive(Debug)]
pub struct Group {
    base: *mut u8,
    places: usize,
    mine: usize,
    /// What is mapped, if it is a file: touching what there is no memory for is fatal.
    file: Option<std::fs::File>,
    /// Whether there is memory for the part of this process's place that is of a kind, once that was asked for.
    reserved: [Option<bool>; 2],
}

// SAFETY: the memory is shared by processes in any case; what is not atomic is written only by the owner of a place, and read by
// others only while that one is taken.
unsafe impl Send for Group {}
// SAFETY: what several threads of a process may call at a time without more is atomic.
unsafe impl Sync for Group {}

/// How a process was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// By itself, with this many others.
    Led(usize),
    /// By another one. If that failed, with this error (`errno`).
    Served(std::result::Result<(), i32>),
    /// Nobody did.
    Alone,
}

const FIRST: usize = 4096;

impl Group {
    fn bytes(places: usize) -> usize {
        Group::place_at(places)
    }

    fn place_at(index: usize) -> usize {
        FIRST + index * size_of::<Place>()
    }

    /// Whether there is memory for what this process's place has of a kind.
    fn reserve(&mut self, kind: Kind) -> bool {
        let (begin, end) = match kind {
            Kind::Read => (offset_of!(Place, ranges), offset_of!(Place, write_ranges)),
            Kind::Write => (offset_of!(Place, write_ranges), size_of::<Place>()),
        };
        let at = Group::place_at(self.mine) + begin;
        let file = self.file.as_ref();
        let make = || file.is_none_or(|file| allocate(file, at, end - begin).is_ok());
        *self.reserved[kind as usize - 1].get_or_insert_with(make)
    }

    /// Memory for `places` processes in a new file, which is to be removed when all have attached.
    ///
    /// # Errors
    /// The file exists, or cannot be made.
    pub fn create(path: &Path, places: usize) -> Result<Group> {
        let file = std::fs::File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(Group::bytes(places) as u64)?;
        let group = Group::map(Some(file), places, 0)?;
        group.header().places.store(places as u32, Ordering::Release);
        Ok(group)
    }

    /// Place `mine` of what another process has created.
    ///
    /// # Errors
    /// It is not there, or not for that many.
    pub fn attach(path: &Path, mine: usize) -> Result<Group> {
        let file = std::fs::File::options().read(true).write(true).open(path)?;
        let places = (file.metadata()?.len() as usize).saturating_sub(FIRST) / size_of::<Place>();
        if mine >= places {
            return Err(ErrorKind::InvalidData.into());
        }
        Group::map(Some(file), places, mine)
    }

    /// Of a process that has nobody else.
    ///
    /// # Errors
    /// No memory.
    pub fn alone() -> Result<Group> {
        Group::map(None, 1, 0)
    }

    fn map(file: Option<std::fs::File>, places: usize, mine: usize) -> Result<Group> {
        let flags = if file.is_some() { 0 } else { libc::MAP_ANONYMOUS } | libc::MAP_SHARED;
        let descriptor = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        if let Some(file) = &file {
            allocate(file, 0, FIRST)?;
            allocate(file, Group::place_at(mine), 4096)?;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping; the file has this size.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), Group::bytes(places), access, flags, descriptor, 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let group = Group { base: base.cast(), places, mine, file, reserved: [None; 2] };
        group.place(mine).pid.store(std::process::id(), Ordering::Release);
        Ok(group)
    }

    /// Whether all have attached and see each other as processes: not if they are in different containers.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        (0..self.places).all(|place| is_alive(self.place(place).pid.load(Ordering::Acquire)))
    }

    fn header(&self) -> &Header {
        // SAFETY: mapped as long as this exists; all of it is atomic.
        unsafe { &*self.base.cast() }
    }

    fn place(&self, index: usize) -> &Place {
        assert!(index < self.places);
        // SAFETY: mapped as long as this exists, and within it.
        unsafe { &*self.base.add(FIRST).cast::<Place>().add(index) }
    }

    /// Distance of a request at `offset` from the one before on this node, whoever made that.
    pub fn distance(&self, offset: u64) -> u64 {
        self.header().last.swap(offset, Ordering::Relaxed).abs_diff(offset)
    }

    /// Says that this process will come for `file`, or not any more.
    pub fn expect(&self, kind: Kind, file: Option<FileKey>) {
        self.place(self.mine).expects[kind as usize - 1].store(file.map_or(0, fold), Ordering::Release);
    }

    /// Requests of a place: of this process's own, or of one that was taken.
    #[must_use]
    pub fn requests(&self, index: usize) -> &[Range] {
        let place = self.place(index);
        // SAFETY: written only by its owner, who does not while the place is taken, or is this process.
        let ranges = unsafe { &*place.ranges.get() };
        &ranges[..(place.count.load(Ordering::Acquire) as usize).min(ENTRIES)]
    }

    /// Sets this process's requests; what has no room is left out. False without memory.
    pub fn set_requests(&mut self, requests: &[Range]) -> bool {
        if !self.reserve(Kind::Read) {
            return false;
        }
        let len = requests.len().min(ENTRIES);
        let place = self.place(self.mine);
        // SAFETY: nobody else looks at a place that is not taken.
        unsafe { (&mut *place.ranges.get())[..len].copy_from_slice(&requests[..len]) };
        place.count.store(len as u64, Ordering::Release);
        true
    }

    /// Puts `bytes` into the room for what was read at a place that this process has taken, `at` bytes from its beginning. What
    /// nobody has taken, or has no room, is left as it is.
    ///
    /// # Safety
    /// By whoever leads (in what [`Group::join`] calls), one thread at a time.
    pub unsafe fn hand_over(&self, index: usize, at: usize, bytes: &[u8]) {
        let place = self.place(index);
        let fits = at <= DATA && bytes.len() <= DATA - at;
        if fits && place.state.load(Ordering::Acquire) == TAKEN {
            // SAFETY: within the room; its owner does not look there while the place is taken, and has memory for it, since it has
            // set requests.
            unsafe { place.room.get().cast::<u8>().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
    }

    /// What whoever served this process's requests has handed over.
    #[must_use]
    pub fn handed_over(&self) -> &[u8] {
        match self.reserved[Kind::Read as usize - 1] {
            // SAFETY: there is memory for it, and nobody writes there as this process's place is not taken.
            Some(true) => unsafe { &*self.place(self.mine).room.get() },
            _ => &[],
        }
    }

    /// What the processes of this node have found in the cache.
    #[must_use]
    pub fn demand(&self) -> Demand {
        Demand::unpack(self.header().demand.load(Ordering::Relaxed))
    }

    /// See [`Group::demand`].
    pub fn set_demand(&self, demand: Demand) {
        self.header().demand.store(demand.pack(), Ordering::Relaxed);
    }

    /// Collected writes of a place, in the order in which they were made; the data of each follows that of the one before.
    #[must_use]
    pub fn writes(&self, index: usize) -> (&[Range], &[u8]) {
        let place = self.place(index);
        // SAFETY: as in `requests`.
        let (ranges, data) = unsafe { (&*place.write_ranges.get(), &*place.data.get()) };
        (&ranges[..(place.writes.load(Ordering::Acquire) as usize).min(ENTRIES)], data)
    }

    /// This process's index.
    #[must_use]
    pub fn mine(&self) -> usize {
        self.mine
    }

    /// Adds a write of `range` whose data `copy` puts where it is told, after `used` bytes of data; false if there is no
    /// room.
    pub fn add_write(&mut self, range: Range, used: usize, copy: impl FnOnce(&mut [u8])) -> bool {
        if !self.reserve(Kind::Write) {
            return false;
        }
        let place = self.place(self.mine);
        let writes = place.writes.load(Ordering::Relaxed) as usize;
        // SAFETY: nobody else looks at a place that is not taken.
        let (ranges, data) = unsafe { (&mut *place.write_ranges.get(), &mut *place.data.get()) };
        let Some(room) = data.get_mut(used..).and_then(|rest| rest.get_mut(..range.len as usize)) else { return false };
        // One that continues the one before is a part of it.
        if let Some(last) = writes.checked_sub(1).map(|last| &mut ranges[last])
            && last.end() == range.offset
        {
            copy(room);
            last.len += range.len;
            return true;
        }
        let Some(entry) = ranges.get_mut(writes) else { return false };
        copy(room);
        *entry = range;
        place.writes.store(writes as u64 + 1, Ordering::Release);
        true
    }

    /// Forgets the collected writes.
    pub fn clear_writes(&mut self) {
        self.place(self.mine).writes.store(0, Ordering::Release);
    }

    /// Comes for `file`, waits for the others, and has `serve` called if this process leads, with the places of all that
    /// are served. What that returns is told to all.
    pub fn join(
        &self,
        kind: Kind,
        file: FileKey,
        patience: Duration,
        serve: impl FnOnce(&[usize]) -> std::result::Result<(), i32>,
    ) -> (Outcome, std::result::Result<(), i32>) {
        let mine = self.place(self.mine);
        mine.kind.store(kind as u32, Ordering::Relaxed);
        mine.device.store(file.device, Ordering::Relaxed);
        mine.inode.store(file.inode, Ordering::Relaxed);
        mine.error.store(0, Ordering::Relaxed);
        mine.state.store(READY, Ordering::SeqCst);
        let come = Instant::now();
        loop {
            match mine.state.load(Ordering::Acquire) {
                DONE => {
                    mine.state.store(IDLE, Ordering::Release);
                    let result = match mine.error.load(Ordering::Acquire) {
                        0 => Ok(()),
                        error => Err(error),
                    };
                    return (Outcome::Served(result), result);
                }
                TAKEN => {
                    // A leader that is alive may still touch what is here, so nothing else is to be done than waiting.
                    if !is_alive(self.header().leader.load(Ordering::Acquire))
                        && mine.state.compare_exchange(TAKEN, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok()
                    {
                        return (Outcome::Alone, Ok(()));
                    }
                    wait(&mine.state, TAKEN, LOOK);
                }
                _ => {
                    let waited = come.elapsed();
                    if (waited >= patience || self.all_have_come(kind, file)) && self.lead() {
                        if let Some(taken) = self.take(kind, file) {
                            let taken = Taken { group: self, places: taken };
                            let result = serve(&taken.places);
                            return (Outcome::Led(taken.release(result)), result);
                        }
                        self.header().leader.store(0, Ordering::Release);
                        continue;
                    }
                    if waited >= patience.max(GIVE_UP)
                        && mine.state.compare_exchange(READY, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok()
                    {
                        return (Outcome::Alone, Ok(()));
                    }
                    let left = patience.saturating_sub(waited);
                    wait(&mine.state, READY, left.clamp(Duration::from_micros(200), LOOK));
                }
            }
        }
    }

    fn all_have_come(&self, kind: Kind, file: FileKey) -> bool {
        (0..self.places).all(|index| {
            let place = self.place(index);
            place.expects[kind as usize - 1].load(Ordering::Acquire) != fold(file) || self.is_ready(place, kind, file)
        })
    }

    fn is_ready(&self, place: &Place, kind: Kind, file: FileKey) -> bool {
        place.state.load(Ordering::SeqCst) == READY
            && place.kind.load(Ordering::Acquire) == kind as u32
            && place.device.load(Ordering::Acquire) == file.device
            && place.inode.load(Ordering::Acquire) == file.inode
    }

    fn lead(&self) -> bool {
        let leader = &self.header().leader;
        let before = leader.load(Ordering::Acquire);
        (before == 0 || !is_alive(before))
            && leader.compare_exchange(before, std::process::id(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Those that are served: this process first, if nobody else has taken it.
    fn take(&self, kind: Kind, file: FileKey) -> Option<Vec<usize>> {
        let take = |index: usize| {
            let place = self.place(index);
            self.is_ready(place, kind, file)
                && place.state.compare_exchange(READY, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        if !take(self.mine) {
            return None;
        }
        let others = (0..self.places).filter(|&index| index != self.mine && take(index));
        Some(std::iter::once(self.mine).chain(others).collect())
    }

    /// Lets those go that were taken; this process is idle then, and the others are what is said.
    fn release(&self, taken: &[usize], others: u32, result: std::result::Result<(), i32>) {
        for &index in taken {
            let place = self.place(index);
            place.error.store(result.err().unwrap_or(0), Ordering::Release);
            let state = if index == self.mine { IDLE } else { others };
            let _ = place.state.compare_exchange(TAKEN, state, Ordering::AcqRel, Ordering::Acquire);
            wake(&place.state);
        }
        // Not before: who is taken goes on alone when nobody leads.
        self.header().leader.store(0, Ordering::Release);
    }
}

/// The places that this process serves. They wait for as long as it lives: if serving them panics, they are ready for another leader.
struct Taken<'a> {
    group: &'a Group,
    places: Vec<usize>,
}

impl Taken<'_> {
    /// Lets them go with a result. How many others there were.
    fn release(mut self, result: std::result::Result<(), i32>) -> usize {
        let places = std::mem::take(&mut self.places);
        self.group.release(&places, DONE, result);
        places.len() - 1
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.places.is_empty() {
            self.group.release(&self.places, READY, Ok(()));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.expect(Kind::Read, None);
        self.expect(Kind::Write, None);
        // SAFETY: mapped by `map`, used no more.
        unsafe { libc::munmap(self.base.cast(), Group::bytes(self.places)) };
    }
}

/// Never 0, which stands for no file.
fn fold(file: FileKey) -> u64 {
    (file.device.rotate_left(40) ^ file.inode) | 1 << 63
}

fn allocate(file: &std::fs::File, at: usize, len: usize) -> Result<()> {
    // SAFETY: takes no pointers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), at as i64, len as i64) } {
        0 => Ok(()),
        error => Err(Error::from_raw_os_error(error)),
    }
}

fn is_alive(pid: u32) -> bool {
    // SAFETY: takes no pointers; signal 0 is none.
    if pid == 0 || unsafe { libc::kill(pid as libc::pid_t, 0) } != 0 {
        return false;
    }
    // One that has died and that nobody has waited for is not alive.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X']))
}

fn wait(word: &AtomicU32, value: u32, time: Duration) {
    let time = libc::timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ };
    // SAFETY: the word is aligned and stays where it is. Whatever comes back, the caller looks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time, 0, 0) };
}

fn wake(word: &AtomicU32) {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
}
