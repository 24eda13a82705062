//! A process in data-driven execution: what becomes of its reads (this file) and writes (`collect.rs`).
//!
//! A read that is not in the process's prefetched bytes begins a *cycle*, if the mode says so: its ghost tells what comes next;
//! with the other processes of the node that are at this point, all is read in one batch (`batch.rs`), and the process goes on
//! with that. Whatever fails on the way, the call is left to the MPI library.
//!
//! Prefetched bytes are used as long as the file is as it was (change time, modification time, size, asked for again after
//! every message and after [`TRUST`]). A file that changed within the last [`QUIET`] is not prefetched from at all, so that the
//! resolution of these times cannot hide a change.

use crate::ghost::{self, Cage, End, Recorder, Side};
use crate::group::{FileKey, Group, Kind};
use crate::limits::{COPY, GhostTime, Patience};
use crate::memcached::Cache;
use crate::memory::Memory;
use crate::mode::{Budget, Cycle, ModeControl, Settings, SlotBuilder};
use crate::plan::{Range, bounded};
use crate::spans::Spans;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A file that changed less than this before is left alone.
pub const QUIET: Duration = Duration::from_millis(50);
/// Prefetched bytes are used for this long, ns, before the file is looked at again, where looking is slow.
pub const TRUST: u64 = 200_000;
/// Looking at a file that takes longer than this, ns, is slow.
const SLOW_LOOK: u64 = 2_000;
/// Threads that are there for this long, ns, are the program's.
const CROWDED: u64 = 100_000_000;

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is for the MPI library.
    Pass,
    /// It is done.
    Served,
    /// This is a ghost, which goes on as if it were done and had moved this many bytes.
    Ghost(u64),
}

/// What a process works with.
#[derive(Debug)]
pub struct Setup {
    /// Those on its node.
    pub group: Group,
    /// Addresses of the cache's servers; without any, what other nodes have read is read again.
    pub servers: Vec<String>,
    /// Makes keys of this run different from those of any other.
    pub run: u64,
    /// Of the mode.
    pub settings: Settings,
    /// Why there can be no ghosts, if the host knows.
    pub no_ghosts: Option<String>,
}

/// What has been done, for reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Ghosts that paused, whose time was over, and that were stopped.
    pub ghosts: [u64; 3],
    /// Cycles of reads; bytes prefetched in them, and used.
    pub cycles: u64,
    /// Bytes.
    pub prefetched: u64,
    /// Bytes.
    pub used: u64,
    /// Cycles whose bytes were given up since the file had changed.
    pub stale: u64,
    /// Batches that this process served for all, and requests that went to storage in them.
    pub led: u64,
    /// Requests to storage.
    pub requests: u64,
    /// Chunks that came from the cache.
    pub from_cache: u64,
    /// Writes that were collected, and what they became.
    pub collected: u64,
    /// Writes to storage.
    pub written: u64,
}

/// As a JSON object.
impl std::fmt::Display for Counters {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [paused, late, stopped] = self.ghosts;
        let Counters { cycles, prefetched, used, stale, led, requests, from_cache, collected, written, .. } = self;
        write!(
            to,
            "{{\"ghosts_paused\":{paused},\"ghosts_late\":{late},\"ghosts_stopped\":{stopped},\"cycles\":{cycles},\
             \"prefetched_bytes\":{prefetched},\"used_bytes\":{used},\"stale_cycles\":{stale},\"batches_led\":{led},\
             \"requests\":{requests},\"chunks_from_cache\":{from_cache},\"collected_writes\":{collected},\
             \"writes\":{written}}}"
        )
    }
}

/// How a file was, as far as the system tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Identity {
    pub(crate) size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    /// In keys of the cache.
    pub(crate) fn generation(&self) -> u64 {
        [self.size, self.modified.0 as u64, self.modified.1 as u64, self.changed.0 as u64, self.changed.1 as u64]
            .iter()
            .fold(0, |hash: u64, &part| (hash.rotate_left(23) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Whether it has not changed for [`QUIET`], so that another change would show.
    fn is_quiet(&self) -> bool {
        let (seconds, nanoseconds) = self.changed.max(self.modified);
        let since = Duration::new(seconds.max(0) as u64, nanoseconds.max(0) as u32);
        SystemTime::now().duration_since(UNIX_EPOCH).is_ok_and(|now| now.saturating_sub(since) >= QUIET)
    }
}

#[derive(Debug)]
pub(crate) struct File {
    pub(crate) descriptor: OwnedFd,
    pub(crate) key: FileKey,
    readable: bool,
    pub(crate) writable: bool,
    /// Opened together with other processes.
    pub(crate) is_shared: bool,
    /// Its file system is told of batches.
    pub(crate) listens: bool,
    pub(crate) identity: Identity,
    pub(crate) spans: Spans,
    looked: u64,
    mode: ModeControl,
    pub(crate) write_mode: ModeControl,
    slots: [SlotBuilder; 2],
    /// Cost of the cycle under way so far, ns, and when its batch ended.
    cost: u64,
    since: u64,
    /// No cycle before, since the file had just changed.
    not_before: u64,
    /// There was a cycle, or there could have been.
    has_begun: bool,
    pub(crate) counters: Counters,
    /// A collected write that failed: told by the next call that may tell.
    pub(crate) error: Option<i32>,
}

impl File {
    /// Tells a file system that listens what this process does for others (`hosts/fuse`); whether it hears that does not matter.
    pub(crate) fn announce(&self, what: std::fmt::Arguments<'_>) {
        if self.listens {
            let (name, text) = (c"system.sluice.phase", what.to_string());
            // SAFETY: the name ends with 0, and the text is as long as told.
            unsafe { libc::fsetxattr(self.descriptor.as_raw_fd(), name.as_ptr(), text.as_ptr().cast(), text.len(), 0) };
        }
    }
}

/// A process. Calls come one at a time.
#[derive(Debug)]
pub struct Process {
    pub(crate) group: Group,
    pub(crate) cache: Option<Cache>,
    pub(crate) run: u64,
    settings: Settings,
    pub(crate) budget: Budget,
    recorder: Option<Recorder>,
    cage: Option<Cage>,
    /// Why there are no ghosts, until that was said.
    complaint: Option<String>,
    /// Those that the MPI library has started.
    threads: usize,
    /// Since when there have been more, ns.
    crowded_since: Option<u64>,
    pub(crate) files: Vec<Option<File>>,
    clock: Instant,
    began: u64,
    /// A message may have told of a change.
    pub(crate) news: bool,
    look_time: u64,
    ghost_time: GhostTime,
    patience: [Patience; 2],
    ahead: Ahead,
    pub(crate) log: crate::collect::Log,
    /// Others wait for this process's writes to it.
    pub(crate) expected: Option<FileKey>,
}

/// Of a ghost: what it was made for.
#[derive(Debug, Clone, Copy, Default)]
struct Ahead {
    file: usize,
    bytes: u64,
    quota: u64,
}

impl Process {
    /// That has no files yet.
    #[must_use]
    pub fn new(setup: Setup) -> Process {
        let (mut cage, mut recorder, mut complaint) = (None, None, setup.no_ghosts);
        if complaint.is_none() {
            match Cage::new() {
                Ok(made) => cage = Some(made),
                Err(error) => complaint = Some(error),
            }
            recorder = Recorder::new().ok();
        }
        Process {
            group: setup.group,
            cache: (!setup.servers.is_empty()).then(|| Cache::new(&setup.servers)),
            run: setup.run,
            settings: setup.settings,
            budget: Budget::default(),
            recorder,
            cage,
            complaint,
            threads: ghost::threads(),
            crowded_since: None,
            files: Vec::new(),
            clock: Instant::now(),
            began: 0,
            news: true,
            look_time: 0,
            ghost_time: GhostTime::new(setup.settings.forced),
            patience: [Patience::new(setup.settings.forced); 2],
            ahead: Ahead::default(),
            log: crate::collect::Log::default(),
            expected: None,
        }
    }

    /// Whether all processes of the node are there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.group.is_complete()
    }

    /// Why there are no ghosts; told once, and only if one was wanted.
    pub fn complaint(&mut self) -> Option<String> {
        if self.complaint.is_some() && self.files.iter().flatten().any(|file| file.mode.is_on()) {
            self.complaint.take()
        } else {
            None
        }
    }

    /// A call begins.
    pub(crate) fn begin(&mut self) {
        self.began = self.now();
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// A file that was opened, by this process alone or (`is_shared`) together with others; `descriptor` is the caller's and is
    /// duplicated. None if nothing can be done for it.
    pub fn open(
        &mut self,
        descriptor: BorrowedFd<'_>,
        readable: bool,
        writable: bool,
        is_shared: bool,
    ) -> Option<usize> {
        let descriptor = crate::descriptors::duplicate(descriptor).ok()?;
        let status = status(&descriptor)?;
        if status.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        let now = self.now();
        let file = File {
            descriptor,
            key: FileKey { device: status.st_dev, inode: status.st_ino },
            readable,
            writable,
            is_shared,
            listens: false,
            identity: identity(&status),
            spans: Spans::default(),
            looked: 0,
            mode: ModeControl::new(self.settings),
            write_mode: ModeControl::new(self.settings),
            slots: Default::default(),
            cost: 0,
            since: now,
            not_before: 0,
            has_begun: false,
            counters: Counters::default(),
            error: None,
        };
        let index = self.files.iter().position(Option::is_none).unwrap_or(self.files.len());
        if index == self.files.len() {
            self.files.push(Some(file));
        } else {
            self.files[index] = Some(file);
        }
        if writable && self.settings.forced && self.expected.is_none() {
            self.expect_writes(index);
        }
        Some(index)
    }

    /// The file system of a file is told when this process begins and ends to serve a batch of it, if it `listens`.
    pub fn announces(&mut self, index: usize, listens: bool) {
        if let Some(file) = file_of(&mut self.files, index) {
            file.listens = listens;
        }
    }

    /// The end of a file: what was collected is written. Also what was done for it.
    pub fn close(&mut self, index: usize) -> (Result<(), i32>, Counters) {
        let result = self.sync(index);
        if ghost::is_ghost() {
            ghost::end();
        }
        self.finish_cycle(index);
        let Some(file) = self.files.get_mut(index).and_then(Option::take) else { return (result, Counters::default()) };
        // What a file system tells whoever closes first would be missing elsewhere.
        // SAFETY: the descriptor is given up here.
        let closed = unsafe { libc::close(file.descriptor.into_raw_fd()) };
        let error = std::io::Error::last_os_error().raw_os_error().filter(|&error| closed != 0 && error != libc::EINTR);
        let result = result.and(error.map_or(Ok(()), Err));
        if !self.files.iter().flatten().any(|other| other.key == file.key) {
            self.group.expect(Kind::Read, None);
            if self.expected == Some(file.key) {
                self.expected = None;
                self.group.expect(Kind::Write, None);
            }
        }
        (result, file.counters)
    }

    /// Whether nothing is collected or prefetched for a file, nor is to be yet: calls on it may go past this.
    #[must_use]
    pub fn is_idle(&self, index: usize) -> bool {
        let of = |file: &File| !file.mode.is_on() && !file.write_mode.is_on() && file.spans.is_empty();
        !ghost::is_ghost() && self.files.get(index).and_then(Option::as_ref).is_some_and(of)
    }

    /// A message was received, or sent: files may have changed, and others may look at what this process has written.
    pub fn message(&mut self) {
        if ghost::is_ghost() {
            return;
        }
        self.news = true;
        self.flush_own();
    }

    /// A call that was left to the MPI library has ended. It began when it was asked about.
    pub fn passed(&mut self, index: usize, ranges: &[Range], is_write: bool) {
        let now = self.now();
        let began = self.began;
        let Some(Some(file)) = self.files.get_mut(index) else { return };
        let Some(first) = ranges.first() else { return };
        // A request is one call here: its ranges are one request to the servers at best.
        let bytes = ranges.iter().map(|range| range.len).sum();
        let distance = self.group.distance(first.offset);
        let request = Range::new(first.offset, bytes);
        if let Some(slot) = file.slots[usize::from(is_write)].add(request, distance, began, now) {
            self.budget.copy = ghost::resident() as f64 * COPY;
            if is_write { &mut file.write_mode } else { &mut file.mode }.slot(&slot, now, &self.budget);
        }
    }

    /// A blocking read of `ranges` of a file, in this order, to `memory`, which has as many bytes.
    pub fn read(&mut self, index: usize, ranges: &[Range], memory: Memory<'_>) -> Answer {
        self.begin();
        let bytes: u64 = ranges.iter().map(|range| range.len).sum();
        if ghost::is_ghost() {
            return self.ghost_read(index, ranges);
        }
        let Some(Some(file)) = self.files.get(index) else { return Answer::Pass };
        if self.log.touches(file.key, ranges) || self.log.lengthens(file, ranges) {
            self.flush_own();
        }
        self.look(index);
        if self.serve(index, ranges, &memory) {
            return Answer::Served;
        }
        if bytes == 0 {
            return Answer::Pass;
        }
        match self.cycle(index, ranges, bytes) {
            Some(answer) => answer,
            None if self.serve(index, ranges, &memory) => Answer::Served,
            None => {
                // Not the time of the ghost: that is the cycle's.
                self.begin();
                Answer::Pass
            }
        }
    }

    fn ghost_read(&mut self, index: usize, ranges: &[Range]) -> Answer {
        let Some(Some(file)) = self.files.get(index) else { ghost::end() };
        let size = file.identity.size;
        let mut bytes = 0;
        for range in ranges {
            let there = size.saturating_sub(range.offset).min(range.len);
            if there > 0 && index == self.ahead.file {
                let told = self.recorder.as_mut().is_some_and(|recorder| recorder.add(Range::new(range.offset, there)));
                self.ahead.bytes += there;
                if !told || self.ahead.bytes >= self.ahead.quota {
                    ghost::end();
                }
            }
            bytes += there;
            if there < range.len {
                break;
            }
        }
        Answer::Ghost(bytes)
    }

    /// Gives up prefetched bytes of a file that is not as it was.
    fn look(&mut self, index: usize) {
        let Some(Some(file)) = self.files.get_mut(index) else { return };
        let must = self.news || self.look_time <= SLOW_LOOK || self.began.saturating_sub(file.looked) >= TRUST;
        if file.spans.is_empty() || !must {
            return;
        }
        let now = status(&file.descriptor).map(|status| identity(&status));
        file.looked = self.began;
        let is_same = now == Some(file.identity);
        file.counters.stale += u64::from(!is_same);
        self.look_time = self.now().saturating_sub(self.began);
        // Of other files nothing was asked.
        self.news &= self.files.iter().flatten().filter(|file| !file.spans.is_empty()).count() > 1;
        if !is_same {
            self.finish_cycle(index);
        }
    }

    fn serve(&mut self, index: usize, ranges: &[Range], memory: &Memory<'_>) -> bool {
        let Some(Some(file)) = self.files.get_mut(index) else { return false };
        if file.spans.is_empty() || !ranges.iter().all(|range| file.spans.covers(range)) {
            return false;
        }
        let mut place = memory.begin();
        for range in ranges {
            if let Some(bytes) = file.spans.read(range) {
                place.put(bytes);
            }
        }
        let cost = (self.clock.elapsed().as_nanos() as u64).saturating_sub(self.began);
        file.cost += cost;
        file.since += cost;
        true
    }

    /// Ends the cycle of a file: its unused bytes are gone, and the mode learns how it went.
    pub(crate) fn finish_cycle(&mut self, index: usize) {
        let now = self.now();
        let Some(Some(file)) = self.files.get_mut(index) else { return };
        let spans = std::mem::take(&mut file.spans);
        if spans.is_empty() {
            return;
        }
        let computing = now.saturating_sub(file.since);
        let cycle = Cycle { prefetched: spans.len(), used: spans.used(), cost: file.cost, computing };
        file.counters.used += spans.used();
        file.mode.cycle(&cycle, now, &mut self.budget);
        if !file.mode.is_on() {
            self.group.expect(Kind::Read, None);
        }
    }

    /// Has the ghost tell what comes, and all be read. An answer if the call is to end here.
    fn cycle(&mut self, index: usize, ranges: &[Range], bytes: u64) -> Option<Answer> {
        self.finish_cycle(index);
        let now = self.now();
        let Some(Some(file)) = self.files.get_mut(index) else { return None };
        let quota = file.mode.quota_for(bytes)?;
        if !file.readable || !file.mode.may_start(now, &self.budget) {
            return None;
        }
        if self.cage.is_none() || now < file.not_before {
            return None;
        }
        file.identity = identity(&status(&file.descriptor)?);
        let size = file.identity.size;
        if !file.identity.is_quiet() {
            file.not_before = now + QUIET.as_nanos() as u64;
            return None;
        }
        if ranges.iter().any(|range| range.end() > size) {
            return None;
        }
        let device = if std::mem::replace(&mut file.has_begun, true) { None } else { ghost::device() };
        if let Some(device) = device {
            (self.complaint, self.cage) = (Some(format!("{device} is in use")), None);
        } else if ghost::threads() > self.threads {
            // Threads that served a batch may still be ending.
            if now - *self.crowded_since.get_or_insert(now) < CROWDED {
                return None;
            }
            (self.complaint, self.cage) = (Some("the program has several threads".to_owned()), None);
        } else {
            self.crowded_since = None;
        }
        let (Some(recorder), Some(cage)) = (&mut self.recorder, &self.cage) else { return None };
        recorder.clear();
        if !ranges.iter().all(|&range| recorder.add(range)) {
            return None;
        }
        let key = file.key;
        self.group.expect(Kind::Read, Some(key));
        self.ahead = Ahead { file: index, bytes, quota };
        let end = match ghost::fork(recorder, cage) {
            Ok(Side::Ghost) => return Some(Answer::Ghost(bytes)),
            Ok(Side::Process(ghost)) => ghost.wait(Duration::from_nanos(self.ghost_time.ns())),
            Err(error) => {
                self.complaint = Some(format!("no process for a ghost: {error}"));
                self.cage = None;
                return None;
            }
        };
        let requests = bounded(recorder.requests(size, quota));
        let took = self.now() - now;
        let file = file_of(&mut self.files, index)?;
        file.counters.ghosts[end as usize] += 1;
        let told: u64 = requests.iter().map(|range| range.len).sum();
        if told <= bytes {
            // Nothing to serve together with the call.
            file.mode.cycle(&Cycle { cost: took, ..Cycle::default() }, now + took, &mut self.budget);
            self.group.expect(Kind::Read, None);
            return None;
        }
        self.ghost_time.ended(took, end == End::Late);
        let spans = if self.group.set_requests(&requests) { self.batch(index, &requests) } else { None };
        let ended = self.now();
        let file = file_of(&mut self.files, index)?;
        file.cost = ended - now;
        file.since = ended;
        let is_same = status(&file.descriptor).map(|status| identity(&status)) == Some(file.identity);
        file.looked = ended;
        match spans {
            Some(spans) if is_same => {
                file.counters.cycles += 1;
                file.counters.prefetched += spans.len();
                file.spans = spans;
            }
            _ => {
                file.counters.stale += u64::from(!is_same);
                file.mode.cycle(&Cycle { cost: ended - now, ..Cycle::default() }, ended, &mut self.budget);
            }
        }
        None
    }

    /// How long this process waits for others that come for the same.
    pub(crate) fn patience(&self, kind: Kind) -> Duration {
        Duration::from_nanos(self.patience[kind as usize - 1].ns())
    }

    /// Learns from how long it had waited when `others` had come.
    pub(crate) fn waited(&mut self, kind: Kind, time: Duration, others: usize) {
        self.patience[kind as usize - 1].waited(time.as_nanos() as u64, others);
    }
}

pub(crate) fn file_of(files: &mut [Option<File>], index: usize) -> Option<&mut File> {
    files.get_mut(index)?.as_mut()
}

pub(crate) fn status(descriptor: &OwnedFd) -> Option<libc::stat> {
    // SAFETY: all zeroes is a status, and there is room for one.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(descriptor.as_raw_fd(), &raw mut status) == 0).then_some(status)
    }
}

pub(crate) fn identity(status: &libc::stat) -> Identity {
    Identity {
        size: u64::try_from(status.st_size).unwrap_or(0),
        modified: (status.st_mtime, status.st_mtime_nsec),
        changed: (status.st_ctime, status.st_ctime_nsec),
    }
}
