//! Writes, collected and written back in batches: at the end of a cycle (the quota is full), when the file is synchronised or
//! closed, before a message of the process, and before it reads them.
//!
//! They wait in memory that the processes of a node share, not in the cache as in the dissertation: a cache may lose what it has,
//! and writes must not be lost. The processes' writes are merged, and no byte is written that none of them wrote.

use crate::batch::several;
use crate::ghost;
use crate::group::{DATA, FileKey, Group, Kind, Outcome};
use crate::memory::Memory;
use crate::mode::Cycle;
use crate::plan::{COLLECTED_WRITE, Piece, Range, in_flight, overlay, write_requests};
use crate::process::{Answer, File, Process, file_of, identity, status};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// What this process has collected: data and ranges are in its place of the group.
#[derive(Debug, Default)]
pub(crate) struct Log {
    file: Option<(usize, FileKey)>,
    /// From the first to the last byte.
    bounds: Range,
    used: usize,
    /// Calls that it is of.
    calls: u64,
    /// Time that collecting took, and when it began, ns.
    cost: u64,
    since: u64,
}

impl Log {
    /// Whether `ranges` may have bytes that were collected.
    pub(crate) fn touches(&self, key: FileKey, ranges: &[Range]) -> bool {
        self.file.is_some_and(|(_, mine)| mine == key) && ranges.iter().any(|range| range.overlaps(&self.bounds))
    }

    /// Whether what was collected makes the file longer, and `ranges` reach beyond what it has: there are zeros then.
    pub(crate) fn lengthens(&self, file: &File, ranges: &[Range]) -> bool {
        let is_beyond = |size: u64| self.bounds.end() > size && ranges.iter().any(|range| range.end() > size);
        let size = || status(&file.descriptor).map(|status| identity(&status).size);
        self.is_of(file.key) && size().is_none_or(is_beyond)
    }

    fn is_of(&self, key: FileKey) -> bool {
        self.file.is_some_and(|(_, mine)| mine == key)
    }
}

impl Process {
    /// A blocking write of `memory` to `ranges` of a file, in this order.
    pub fn write(&mut self, index: usize, ranges: &[Range], memory: Memory<'_>) -> Answer {
        self.begin();
        let bytes: u64 = ranges.iter().map(|range| range.len).sum();
        if ghost::is_ghost() {
            return Answer::Ghost(bytes);
        }
        let now = self.now();
        // Other handles of the file may have read ahead what this changes.
        self.news = true;
        let Some(file) = file_of(&mut self.files, index) else { return Answer::Pass };
        let key = file.key;
        let may = file.writable
            && file.error.is_none()
            && bytes <= COLLECTED_WRITE
            && file.write_mode.may_start(now, &self.budget);
        // Also those of other handles; what is prefetched through them is looked at again when it is used.
        if ranges.iter().any(|range| file.spans.touches(range)) {
            self.finish_cycle(index);
        }
        if !may || bytes == 0 {
            self.settle(key);
            return Answer::Pass;
        }
        if self.log.file.is_some_and(|(mine, _)| mine != index) {
            self.flush_own();
        }
        if self.log.used + bytes as usize > DATA {
            self.flush(index, true);
        }
        if self.log.file.is_none() {
            self.log = Log { file: Some((index, key)), bounds: ranges[0], since: now, ..Log::default() };
            self.expect_writes(index);
        }
        let mut place = memory.begin();
        for range in ranges {
            if !self.group.add_write(*range, self.log.used, |room| place.take(room)) {
                // No room for another range: what is there goes out, this call's ranges once more from the beginning.
                self.flush_own();
                return Answer::Pass;
            }
            self.log.used += range.len as usize;
            let end = self.log.bounds.end().max(range.end());
            self.log.bounds.offset = self.log.bounds.offset.min(range.offset);
            self.log.bounds.len = end - self.log.bounds.offset;
        }
        self.log.calls += 1;
        self.log.cost += self.now() - now;
        Answer::Served
    }

    /// Writes what was collected for a file, in all processes if they come, too: it is synchronised or closed, which they all
    /// do, also those that have nothing to write.
    ///
    /// # Errors
    /// `errno` of a collected write of this file that failed since the last time.
    pub fn sync(&mut self, index: usize) -> Result<(), i32> {
        if ghost::is_ghost() {
            return Ok(());
        }
        let comes = self
            .files
            .get(index)
            .and_then(Option::as_ref)
            .is_some_and(|file| file.writable && self.expected == Some(file.key));
        if self.log.file.is_some_and(|(mine, _)| mine == index) || (self.log.file.is_none() && comes) {
            self.flush(index, true);
        }
        match file_of(&mut self.files, index).and_then(|file| file.error.take()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Before anything else is done with a file: what was collected for it, through whatever handle, is written.
    pub fn before_other(&mut self, index: usize) {
        if ghost::is_ghost() {
            return;
        }
        // What it does to the file this process may have read ahead, through this handle or another one.
        self.news = true;
        let Some(Some(file)) = self.files.get(index) else { return };
        let key = file.key;
        self.settle(key);
    }

    fn settle(&mut self, key: FileKey) {
        if self.log.is_of(key) {
            self.flush_own();
        }
    }

    /// Writes what was collected, without waiting for anybody.
    pub fn flush_own(&mut self) {
        if let Some((index, _)) = self.log.file {
            self.flush(index, false);
        }
    }

    /// From now on the other processes that have opened the file together with this one wait for its writes.
    pub(crate) fn expect_writes(&mut self, index: usize) {
        if let Some(Some(file)) = self.files.get(index)
            && file.is_shared
        {
            self.expected = Some(file.key);
            self.group.expect(Kind::Write, self.expected);
        }
    }

    fn flush(&mut self, index: usize, together: bool) {
        let begin = Instant::now();
        let Some(Some(file)) = self.files.get(index) else { return };
        let (key, together) = (file.key, together && file.is_shared);
        let patience = if together { self.patience(Kind::Write) } else { Duration::ZERO };
        let descriptor = &file.descriptor;
        let group = &self.group;
        let mut written = 0;
        let mut serve = |taken: &[usize]| {
            file.announce(format_args!("batch {}", taken.iter().map(|&place| bytes_of(group, place)).sum::<u64>()));
            let done = write_all(group, taken, descriptor, &mut written);
            file.announce(format_args!("batch end"));
            done
        };
        let mut waiting = Duration::ZERO;
        let (outcome, mut result) = if together {
            group.join(Kind::Write, key, patience, |taken| {
                waiting = begin.elapsed();
                serve(taken)
            })
        } else {
            (Outcome::Led(0), serve(&[group.mine()]))
        };
        if outcome == Outcome::Alone {
            result = serve(&[group.mine()]);
        }
        if let (true, Outcome::Led(others)) = (together, outcome) {
            self.waited(Kind::Write, waiting, others);
        }
        self.group.clear_writes();
        let log = std::mem::take(&mut self.log);
        let now = self.now();
        let flushing = begin.elapsed().as_nanos() as u64;
        let bytes = log.used as u64;
        let cost = log.cost + flushing;
        let computing = now.saturating_sub(log.since).saturating_sub(cost);
        if let Some(file) = file_of(&mut self.files, index) {
            file.counters.collected += log.calls;
            file.counters.written += written;
            if bytes > 0 {
                let cycle = Cycle { prefetched: bytes, used: bytes, cost, computing };
                file.write_mode.cycle(&cycle, now, &mut self.budget);
            }
            if let Err(error) = result {
                file.error = Some(error);
            }
        }
        // Also what it has read of this file through another handle.
        self.news = true;
    }
}

/// Bytes that the process at `place` has collected.
fn bytes_of(group: &Group, place: usize) -> u64 {
    group.writes(place).0.iter().map(|range| range.len).sum()
}

/// Writes what the processes at `taken` have collected.
fn write_all(group: &Group, taken: &[usize], descriptor: &OwnedFd, written: &mut u64) -> Result<(), i32> {
    let mut writes: Vec<Range> = Vec::new();
    let mut from: Vec<&[u8]> = Vec::new();
    for &place in taken {
        let (ranges, data) = group.writes(place);
        let mut at = 0;
        for range in ranges {
            // Processes write what they like to their places: nothing beyond them is believed.
            let Some(bytes) = data.get(at..).and_then(|rest| rest.get(..range.len as usize)) else { break };
            writes.push(*range);
            from.push(bytes);
            at += bytes.len();
        }
    }
    let pieces = overlay(&writes);
    let requests: Vec<&[Piece]> = write_requests(&pieces);
    *written += requests.len() as u64;
    let bytes = pieces.iter().map(|piece| piece.range.len).sum();
    let data = |piece: &Piece| &from[piece.write][piece.skip as usize..][..piece.range.len as usize];
    // Several at a time, as servers are busy only then: they have nothing in common.
    several(&requests, in_flight(requests.len(), bytes), |_, request| match *request {
        [] => Ok(()),
        [piece] => write_at(descriptor, piece.range.offset, data(piece)),
        // Tiny pieces are copied together, which costs less than a vector of them.
        [first, ..] => {
            let buffer = request.iter().map(data).collect::<Vec<_>>().concat();
            write_at(descriptor, first.range.offset, &buffer)
        }
    })
}

/// How long a range is waited for that somebody has locked, and how often it is looked at.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// A range of a file that nobody else has locked, until dropped.
struct Locked<'a>(&'a OwnedFd, libc::flock);

/// MPICH reads, changes and writes back whole blocks for calls whose pieces have gaps (ROMIO's data sieving), with the block locked: what is
/// written meanwhile without a lock is undone. These locks are of an open file, which all threads that write a batch have in common,
/// and meet those of processes. None where there are no locks, or whoever has one keeps it: that is not MPICH.
fn lock(descriptor: &OwnedFd, offset: u64, len: usize) -> Option<Locked<'_>> {
    // SAFETY: numbers only; all zeros is one of it.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    (range.l_type, range.l_whence) = (libc::F_WRLCK as _, libc::SEEK_SET as _);
    (range.l_start, range.l_len) = (offset as libc::off_t, len as libc::off_t);
    let begin = Instant::now();
    loop {
        // SAFETY: the descriptor is open, the range is there.
        if unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } == 0 {
            return Some(Locked(descriptor, range));
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) if begin.elapsed() < LOCK_PATIENCE => std::thread::sleep(LOCK_PAUSE),
            Some(libc::EINTR) => {}
            _ => return None,
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.1.l_type = libc::F_UNLCK as _;
        // SAFETY: as above.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_SETLK, &raw const self.1) };
    }
}

/// Writes `buffer` at `offset`.
fn write_at(descriptor: &OwnedFd, offset: u64, buffer: &[u8]) -> Result<(), i32> {
    let _locked = lock(descriptor, offset, buffer.len());
    let mut done = 0;
    while done < buffer.len() {
        let rest = &buffer[done..];
        // SAFETY: the pointer and the length are those of `rest`.
        let wrote = unsafe {
            libc::pwrite(descriptor.as_raw_fd(), rest.as_ptr().cast(), rest.len(), (offset + done as u64) as i64)
        };
        match usize::try_from(wrote) {
            Ok(0) => return Err(libc::EIO),
            Ok(wrote) => done += wrote,
            Err(_) => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(error.raw_os_error().unwrap_or(libc::EIO));
                }
            }
        }
    }
    Ok(())
}
