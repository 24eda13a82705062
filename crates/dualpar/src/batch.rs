//! The batch of a cycle: what the ghosts of a node told, read in ascending order, and given to all.
//!
//! Whoever leads hands each process of the node its bytes through the memory that they share, and no others. The cache has whole
//! chunks, for other nodes and for later, where somebody finds them there ([`crate::demand`]).

use crate::group::{Group, Kind, Outcome};
use crate::memcached::Cache;
use crate::plan::{
    BATCH_CHUNKS, CHUNK, HOLE, LIST_SEGMENTS, LONGEST, Range, in_flight, merge, segments, whole_chunks, without,
};
use crate::process::{File, Process, file_of, identity, status};
use crate::spans::{Layout, Spans};
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
        let key = file.key;
        let mut run = Run { file, group, cache: cache.as_mut(), run: *run };
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
            Outcome::Served(_) => {
                self.waited(Kind::Read, Duration::ZERO, 1);
                result.is_ok() && spans.fill_all(self.group.handed_over())
            }
            Outcome::Alone => false,
        };
        // What was not possible for all may be for this process's part.
        (done || read_own(file_of(&mut self.files, index)?, requests, &mut spans)).then_some(spans)
    }
}

/// What a batch works with.
struct Run<'a> {
    file: &'a mut File,
    group: &'a Group,
    cache: Option<&'a mut Cache>,
    run: u64,
}

impl Run<'_> {
    /// Reads what the processes at these places want, hands it over to the others, and puts this process's own part into `spans`.
    fn lead(&mut self, taken: &[usize], spans: &mut Spans) -> Result<(), i32> {
        self.file.counters.led += 1;
        let group = self.group;
        let others: Vec<(usize, Layout)> =
            taken[1..].iter().map(|&place| (place, Layout::new(group.requests(place)))).collect();
        let all: Vec<Range> = taken.iter().flat_map(|&place| group.requests(place)).copied().collect();
        let runs = merge(all, HOLE);
        let mut give = |offset: u64, bytes: &[u8]| {
            spans.fill(offset, bytes);
            for (place, layout) in &others {
                // SAFETY: this process leads, and whoever calls this holds a lock.
                layout.give(offset, bytes, |at, part| unsafe { group.hand_over(*place, at, part) });
            }
        };
        let cached = self.take_cached(&runs, &mut give);
        let rest = without(&runs, &cached.found);
        let (cache, file, run) = (&mut self.cache, &*self.file, self.run);
        file.announce(format_args!("batch {}", rest.iter().map(|run| run.len).sum::<u64>()));
        let requests = read_runs(&file.descriptor, &rest, |offset, bytes| {
            give(offset, bytes);
            let Some(cache) = cache.as_mut() else { return };
            let end = offset + bytes.len() as u64;
            let from = cached.not_found.partition_point(|&chunk| chunk * CHUNK < offset);
            for &chunk in cached.not_found[from..].iter().take_while(|&&chunk| chunk * CHUNK < end) {
                let value = &bytes[(chunk * CHUNK - offset) as usize..];
                cache.set(&key(run, file, chunk), &value[..value.len().min(CHUNK_BYTES)]);
            }
        });
        self.file.announce(format_args!("batch end"));
        if let Some(cache) = &mut self.cache {
            cache.flush();
        }
        self.file.counters.requests += requests?;
        // Others may have seen the file later than this process did, in another state than the one that chunks of the cache are of.
        let is_same = status(&self.file.descriptor).map(|status| identity(&status)) == Some(self.file.identity);
        if is_same { Ok(()) } else { Err(libc::ESTALE) }
    }

    /// Asks the cache for chunks of `runs` that are worth it, and gives what it has.
    fn take_cached(&mut self, runs: &[Range], give: &mut impl FnMut(u64, &[u8])) -> Cached {
        let Some(cache) = &mut self.cache else { return Cached::default() };
        let (demand, size) = (self.group.demand(), self.file.identity.size);
        let mut chunks = whole_chunks(runs, size, BATCH_CHUNKS);
        chunks.retain(|&chunk| demand.wants(chunk));
        let keys: Vec<String> = chunks.iter().map(|&chunk| key(self.run, self.file, chunk)).collect();
        let mut there = vec![false; chunks.len()];
        cache.get(&keys, CHUNK_BYTES, |index, value| {
            let at = chunks[index] * CHUNK;
            if value.len() as u64 == CHUNK.min(size.saturating_sub(at)) {
                give(at, value);
                there[index] = true;
            }
        });
        let of = |wanted: bool| {
            let some = chunks.iter().zip(&there).filter(move |(_, there)| **there == wanted);
            some.map(|(&chunk, _)| chunk).collect::<Vec<_>>()
        };
        let cached = Cached { found: of(true), not_found: of(false) };
        self.group.set_demand(demand.after(chunks.len(), cached.found.len()));
        self.file.counters.from_cache += cached.found.len() as u64;
        cached
    }
}

/// Numbers of the chunks that the cache was asked for.
#[derive(Default)]
struct Cached {
    found: Vec<u64>,
    not_found: Vec<u64>,
}

/// Key of a chunk: whose, of which file, in which state.
fn key(run: u64, file: &File, chunk: u64) -> String {
    let (device, inode) = (file.key.device, file.key.inode);
    format!("sluice:{run:x}:{device:x}:{inode:x}:{:x}:{chunk:x}", file.identity.generation())
}

/// Reads this process's requests itself, small holes between them filled.
fn read_own(file: &mut File, requests: &[Range], spans: &mut Spans) -> bool {
    let runs = merge(requests.to_vec(), HOLE);
    match read_runs(&file.descriptor, &runs, |offset, bytes| spans.fill(offset, bytes)) {
        Ok(requests) => {
            file.counters.requests += requests;
            true
        }
        Err(_) => false,
    }
}

/// Reads `runs` in ascending order, several requests at a time, and hands the bytes to `take`. The system is told of as many as make a
/// list before the first of them is waited for. How many requests it took; `errno` if one failed or the file is shorter.
fn read_runs(file: &OwnedFd, runs: &[Range], take: impl FnMut(u64, &[u8]) + Send) -> Result<u64, i32> {
    let segments = segments(runs, LONGEST);
    let lists: Vec<&[Range]> = segments.chunks(LIST_SEGMENTS).collect();
    let tell = |list: usize| {
        for segment in lists.get(list).copied().unwrap_or_default() {
            let (from, len) = (segment.offset as i64, segment.len as i64);
            // SAFETY: takes no pointers. Advice: whether it was taken does not matter.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), from, len, libc::POSIX_FADV_WILLNEED) };
        }
    };
    tell(0);
    let take = Mutex::new(take);
    let at_a_time = in_flight(segments.len(), segments.iter().map(|segment| segment.len).sum());
    several(&segments, at_a_time, |index, segment| {
        if index % LIST_SEGMENTS == 0 {
            tell(index / LIST_SEGMENTS + 1);
        }
        let mut buffer = vec![0; segment.len as usize];
        read_at(file, segment.offset, &mut buffer)?;
        (take.lock().unwrap_or_else(PoisonError::into_inner))(segment.offset, &buffer);
        Ok(())
    })?;
    Ok(segments.len() as u64)
}

/// Does what there is to do with each of `list`, of which it is given the number, in this order, up to `at_a_time`. The first error
/// that any of them had; what is not begun by then is not done.
pub(crate) fn several<T: Sync>(
    list: &[T],
    at_a_time: usize,
    each: impl Fn(usize, &T) -> Result<(), i32> + Sync,
) -> Result<(), i32> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), i32> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = list.get(index) else { return Ok(()) };
            // What fails in one thread ends the others with their next request.
            each(index, one).inspect_err(|_| next.store(list.len(), Ordering::Relaxed))?;
        }
    };
    let helpers = list.len().min(at_a_time).saturating_sub(1);
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
