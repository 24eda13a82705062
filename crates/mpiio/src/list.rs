//! List I/O: many ranges of a file, ascending, from and to memory, on a descriptor of the host.

use std::io::{self, Error, ErrorKind};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::flat::Range;

/// Segments of one request, as ROMIO's list I/O has them.
pub const SEGMENTS: usize = 64;
/// Bytes of one request: larger ones are sent one part after the other by most file systems.
pub const REQUEST_BYTES: i64 = 1 << 20;
/// Requests that a process waits for at the same time.
pub const IN_FLIGHT: usize = 8;

/// Memory that data lies in, in its order.
pub struct Memory {
    ranges: Vec<Range>,
    /// Bytes of data before each.
    starts: Vec<i64>,
}

/// A range of the file and where in memory its bytes are.
pub struct Segment {
    /// In the file.
    pub file: Range,
    /// Addresses, in the order of the bytes.
    pub memory: Vec<(usize, usize)>,
}

impl Memory {
    /// Absolute ranges.
    #[must_use]
    pub fn new(ranges: Vec<Range>) -> Memory {
        let starts = ranges.iter().scan(0, |sum, r| Some(std::mem::replace(sum, *sum + r.len))).collect();
        Memory { ranges, starts }
    }

    /// Data bytes.
    #[must_use]
    pub fn bytes(&self) -> i64 {
        self.ranges.iter().map(|range| range.len).sum()
    }

    /// Address and length of each part of data bytes `from..from + len`. O(parts + log ranges).
    pub fn parts(&self, from: i64, len: i64) -> impl Iterator<Item = (usize, usize)> {
        let first = self.starts.partition_point(|&start| start <= from).saturating_sub(1);
        let pairs = self.ranges.iter().zip(&self.starts).skip(first);
        pairs
            .map(move |(range, &start)| {
                let (low, high) = (from.max(start), (from + len).min(start + range.len));
                ((range.offset + low - start) as usize, (high - low).max(0) as usize)
            })
            .take_while(|&(_, len)| len > 0)
    }
}

/// Joins ranges that follow each other in the file.
#[must_use]
pub fn joined(segments: impl IntoIterator<Item = Segment>) -> Vec<Segment> {
    let mut all: Vec<Segment> = Vec::new();
    for segment in segments {
        match all.last_mut() {
            Some(last)
                if last.file.end() == segment.file.offset
                    && last.memory.len() < SEGMENTS
                    && last.file.len + segment.file.len <= REQUEST_BYTES =>
            {
                last.file.len += segment.file.len;
                last.memory.extend(segment.memory);
            }
            _ => all.push(segment),
        }
    }
    all
}

/// Reads or writes one segment, whole.
///
/// # Safety
/// Its memory is the caller's, to read for a write and to write for a read.
unsafe fn transfer_one(fd: RawFd, write: bool, segment: &Segment) -> io::Result<()> {
    let (mut done, mut skip) = (0, 0);
    let mut parts = &segment.memory[..];
    while let Some(&(_, first)) = parts.first() {
        if skip >= first {
            skip -= first;
            parts = &parts[1..];
            continue;
        }
        let vectors: Vec<libc::iovec> = parts
            .iter()
            .take(SEGMENTS)
            .enumerate()
            .map(|(index, &(address, len))| {
                let skipped = if index == 0 { skip } else { 0 };
                libc::iovec { iov_base: (address + skipped) as *mut _, iov_len: len - skipped }
            })
            .collect();
        let offset = segment.file.offset + done;
        // SAFETY: as the caller promises.
        let moved = unsafe {
            let call = if write { libc::pwritev } else { libc::preadv };
            call(fd, vectors.as_ptr(), vectors.len() as i32, offset)
        };
        match moved {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            moved if moved > 0 => {
                done += moved as i64;
                skip += moved as usize;
            }
            _ => match Error::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Reads or writes a list in its order, several segments at a time: servers that have to wait for each request have nothing to
/// put in order.
///
/// # Safety
/// The memory of all segments is the caller's, to read for a write and to write for a read.
pub unsafe fn transfer(fd: RawFd, write: bool, list: &[Segment]) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        // What fails in one thread ends the others with their next segment.
        while let Some(segment) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
            // SAFETY: as the caller promises.
            unsafe { transfer_one(fd, write, segment) }.inspect_err(|_| next.store(list.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    let helpers = list.len().min(IN_FLIGHT).saturating_sub(1);
    if helpers == 0 {
        return work();
    }
    std::thread::scope(|scope| {
        // The program's signal handlers are not for these threads.
        let before = signals(libc::SIG_BLOCK, None);
        // Those that cannot be had are done without.
        let threads: Vec<_> =
            (0..helpers).map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        signals(libc::SIG_SETMASK, Some(before));
        let result = work();
        threads
            .into_iter()
            .fold(result, |result, thread| result.and(thread.join().unwrap_or_else(|_| Err(ErrorKind::Other.into()))))
    })
}

/// Changes this thread's signal mask, to `set` or by all signals, and gives the one before.
fn signals(how: i32, set: Option<libc::sigset_t>) -> libc::sigset_t {
    // SAFETY: sets are plain data that these calls fill.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(how, &set.unwrap_or(all), &mut before);
        before
    }
}

/// Asks the system to read what will be wanted, without waiting.
pub fn ask_early(fd: RawFd, ranges: &[Range]) {
    for range in ranges {
        // SAFETY: numbers only.
        unsafe { libc::posix_fadvise(fd, range.offset, range.len, libc::POSIX_FADV_WILLNEED) };
    }
}
