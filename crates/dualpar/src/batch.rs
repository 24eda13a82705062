//! The batch of a cycle: what the ghosts of a node told, read in ascending order, and given to all through the cache.

use crate::group::{Group, Kind, Outcome};
use crate::memcached::Cache;
use crate::plan::{BATCH_CHUNKS, CHUNK, IN_FLIGHT, LONGEST, Range, chunk_runs, chunks, lists, merge};
use crate::process::{File, Process, file_of};
use crate::spans::Spans;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const CHUNK_BYTES: usize = CHUNK as usize;

impl Process {
    /// Has `requests`, which are in this process's place of the group, read. None if that failed.
    pub(crate) fn batch(&mut self, index: usize, requests: &[Range]) -> Option<Spans> {
        let patience = self.patience(Kind::Read);
        let mut spans = Spans::for_requests(requests);
        let Process { files, cache, group, run, .. } = self;
        let file = file_of(files, index)?;
        let Some(cache) = cache else {
            return read_own(file, requests, &mut spans).then_some(spans);
        };
        let key = file.key;
        let mut run = Run { file, group, cache, run: *run };
        let begin = Instant::now();
        let mut waiting = Duration::ZERO;
        let (outcome, result) = group.join(Kind::Read, key, patience, |taken| {
            waiting = begin.elapsed();
            run.lead(taken, &mut spans)
        });
        let done = match outcome {
            Outcome::Led(others) => {
                self.waited(Kind::Read, waiting, others);
                result.is_ok()
            }
            // Also if the leader failed: what it has left in the cache is right.
            Outcome::Served(_) => {
                self.waited(Kind::Read, Duration::ZERO, 1);
                self.fetch(index, requests, &mut spans)?
            }
            Outcome::Alone => read_own(file_of(&mut self.files, index)?, requests, &mut spans),
        };
        done.then_some(spans)
    }

    /// Takes what another process has put into the cache; what is missing is read.
    fn fetch(&mut self, index: usize, requests: &[Range], spans: &mut Spans) -> Option<bool> {
        let Process { files, cache, group, run, .. } = self;
        let file = file_of(files, index)?;
        let mut run = Run { file, group, cache: cache.as_mut()?, run: *run };
        let wanted = chunks(spans.ranges(), BATCH_CHUNKS);
        let there = run.take_cached(&wanted, spans);
        let missing: Vec<u64> =
            wanted.iter().zip(&there).filter(|(_, there)| !**there).map(|(&chunk, _)| chunk).collect();
        if missing.is_empty() && wanted.len() < BATCH_CHUNKS {
            return Some(true);
        }
        let last = wanted.last().copied().unwrap_or(0);
        let rest: Vec<Range> = requests
            .iter()
            .filter(|range| {
                let (from, to) = (range.offset / CHUNK, (range.end() - 1) / CHUNK);
                to > last
                    || missing.partition_point(|&chunk| chunk < from) < missing.partition_point(|&chunk| chunk <= to)
            })
            .copied()
            .collect();
        Some(read_own(run.file, &rest, spans))
    }
}

/// What a batch works with.
struct Run<'a> {
    file: &'a mut File,
    group: &'a Group,
    cache: &'a mut Cache,
    run: u64,
}

impl Run<'_> {
    /// Reads what the processes at these places want, puts it into the cache, and this process's own part into `spans`.
    fn lead(&mut self, taken: &[usize], spans: &mut Spans) -> Result<(), i32> {
        self.file.counters.led += 1;
        let all: Vec<Range> = taken.iter().flat_map(|&place| self.group.requests(place)).copied().collect();
        let size = self.file.identity.size;
        let all = merge(all.into_iter().filter(|range| range.end() <= size).collect(), 0);
        let wanted = chunks(&all, BATCH_CHUNKS);
        let there = self.take_cached(&wanted, spans);
        let missing = wanted.iter().zip(there).filter(|(_, there)| !there).map(|(&chunk, _)| chunk);
        let runs = chunk_runs(missing, size);
        let is_alone = taken.len() == 1;
        let (cache, file, run) = (&mut *self.cache, &*self.file, self.run);
        file.announce(format_args!("batch {}", runs.iter().map(|run| run.len).sum::<u64>()));
        let requests = read_runs(&file.descriptor, &runs, |offset, bytes| {
            spans.fill(offset, bytes);
            for (chunk, value) in (offset / CHUNK..).zip(bytes.chunks(CHUNK_BYTES)) {
                // Of nobody else's interest is only what this process wants all of and no one else is here for.
                if !(is_alone && is_covered(&all, Range::new(chunk * CHUNK, value.len() as u64))) {
                    cache.set(&key(run, file, chunk), value);
                }
            }
        });
        self.file.announce(format_args!("batch end"));
        self.cache.flush();
        self.file.counters.requests += requests?;
        if wanted.len() < BATCH_CHUNKS {
            return Ok(());
        }
        let own: Vec<Range> = self.group.requests(self.group.mine()).to_vec();
        read_own(self.file, &own, spans).then_some(()).ok_or(libc::EIO)
    }

    fn len(&self, chunk: u64) -> u64 {
        CHUNK.min(self.file.identity.size.saturating_sub(chunk * CHUNK))
    }

    /// Which of `wanted` the cache had; its bytes are in `spans`.
    fn take_cached(&mut self, wanted: &[u64], spans: &mut Spans) -> Vec<bool> {
        let keys: Vec<String> = wanted.iter().map(|&chunk| key(self.run, self.file, chunk)).collect();
        let lens: Vec<u64> = wanted.iter().map(|&chunk| self.len(chunk)).collect();
        let mut there = vec![false; wanted.len()];
        self.cache.get(&keys, CHUNK_BYTES, |index, value| {
            if value.len() as u64 == lens[index] {
                spans.fill(wanted[index] * CHUNK, value);
                there[index] = true;
            }
        });
        self.file.counters.from_cache += there.iter().filter(|there| **there).count() as u64;
        there
    }
}

/// Key of a chunk: whose, of which file, in which state.
fn key(run: u64, file: &File, chunk: u64) -> String {
    let (device, inode) = (file.key.device, file.key.inode);
    format!("sluice:{run:x}:{device:x}:{inode:x}:{:x}:{chunk:x}", file.identity.generation())
}

/// Whether one of `runs` (ascending, not touching) has all of `range`.
fn is_covered(runs: &[Range], range: Range) -> bool {
    let index = runs.partition_point(|run| run.end() <= range.offset);
    runs.get(index).is_some_and(|run| run.offset <= range.offset && range.end() <= run.end())
}

/// Reads this process's requests itself, holes between them filled.
fn read_own(file: &mut File, requests: &[Range], spans: &mut Spans) -> bool {
    let runs = merge(requests.to_vec(), CHUNK);
    match read_runs(&file.descriptor, &runs, |offset, bytes| spans.fill(offset, bytes)) {
        Ok(requests) => {
            file.counters.requests += requests;
            true
        }
        Err(_) => false,
    }
}

/// Reads `runs` in ascending order, list by list, several requests of a list at a time, and hands the bytes to `take`. The system is
/// told of a whole list before its first byte is waited for. How many requests it took; `errno` if one failed or the file is shorter.
fn read_runs(file: &OwnedFd, runs: &[Range], take: impl FnMut(u64, &[u8]) + Send) -> Result<u64, i32> {
    let mut requests = 0;
    let take = Mutex::new(take);
    for list in lists(runs, LONGEST) {
        for segment in &list {
            let (from, len) = (segment.offset as i64, segment.len as i64);
            // SAFETY: takes no pointers. Advice: whether it was taken does not matter.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), from, len, libc::POSIX_FADV_WILLNEED) };
        }
        several(&list, |segment| {
            let mut buffer = vec![0; segment.len as usize];
            read_at(file, segment.offset, &mut buffer)?;
            (take.lock().unwrap_or_else(PoisonError::into_inner))(segment.offset, &buffer);
            Ok(())
        })?;
        requests += list.len() as u64;
    }
    Ok(requests)
}

/// Does what there is to do with each of `list`, in this order, up to [`IN_FLIGHT`] at a time. The first error that any of them had;
/// what is not begun by then is not done.
pub(crate) fn several<T: Sync>(list: &[T], each: impl Fn(&T) -> Result<(), i32> + Sync) -> Result<(), i32> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), i32> {
        while let Some(one) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
            // What fails in one thread ends the others with their next request.
            each(one).inspect_err(|_| next.store(list.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    let helpers = list.len().min(IN_FLIGHT).saturating_sub(1);
    let _masked = (helpers > 0).then(Masked::new);
    std::thread::scope(|scope| {
        let spawn = || std::thread::Builder::new().spawn_scoped(scope, work);
        // With fewer threads than wanted it only takes longer.
        let threads: Vec<_> = (0..helpers).map_while(|_| spawn().ok()).collect();
        let mine = work();
        threads.into_iter().fold(mine, |all, thread| thread.join().unwrap_or(Err(libc::EIO)).and(all))
    })
}

fn read_at(file: &OwnedFd, offset: u64, buffer: &mut [u8]) -> Result<(), i32> {
    let mut got = 0;
    while got < buffer.len() {
        let room = &mut buffer[got..];
        // SAFETY: the pointer and the length are those of `room`.
        let done = unsafe {
            libc::pread(file.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), (offset as usize + got) as i64)
        };
        match usize::try_from(done) {
            Ok(0) => return Err(libc::EIO),
            Ok(done) => got += done,
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

/// While this exists, threads that begin get none of the program's signals, whose handlers expect its own threads.
struct Masked(libc::sigset_t);

impl Masked {
    fn new() -> Masked {
        // SAFETY: both sets are ours.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Masked(before)
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was there before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
