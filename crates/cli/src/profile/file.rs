//! A real file as the profiler's target.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use parking_lot::Mutex;
use sluice_device::Op;
use sluice_device::profile::Profile;
use sluice_device::profiler::{Burst, Outcome, Target};
use sluice_notation::{show_size, show_time};
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::{Creator, Data, FileRef, Namespace};

/// Requests of the preparation.
const PREPARE_BYTES: u64 = 4 << 20;
/// A file that had no time to become larger is still of use from here on.
const PREPARED_MIN: u64 = 64 << 20;
/// Alignment of memory that direct I/O takes.
const ALIGN: usize = 4096;
/// No device answers faster than this, in nanoseconds; memory does.
const MEMORY_NS: f64 = 5_000.0;

/// Why measuring ended early.
#[derive(Debug)]
pub enum Failure {
    /// By a signal.
    Stopped,
    /// By an error.
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

/// Whether the file has a name while it is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// No: nothing is left, however this process ends.
    None,
    /// Yes, for other programs.
    Kept,
}

/// A temporary file.
pub struct FileTarget {
    storage: PosixStorage,
    file: FileRef,
    name: Option<OsString>,
    path: PathBuf,
    direct: bool,
    file_bytes: u64,
    moved: AtomicU64,
    stop: Arc<AtomicBool>,
}

/// Bytes that can be written in a directory.
pub fn room(path: &Path) -> anyhow::Result<u64> {
    let at = path.display();
    let meta = std::fs::metadata(path).with_context(|| format!("{at} cannot be profiled"))?;
    if !meta.is_dir() {
        bail!("{at} is not a directory; name the directory whose storage is to be profiled");
    }
    let stat = rustix::fs::statvfs(path).with_context(|| format!("{at} cannot be profiled"))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

impl FileTarget {
    /// Creates the file, empty.
    pub fn create(dir: &Path, file_bytes: u64, name: Name, stop: Arc<AtomicBool>) -> anyhow::Result<FileTarget> {
        let at = dir.display();
        let (storage, direct) = match PosixStorage::open(dir, PosixOptions { direct: true }) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                (PosixStorage::open(dir, PosixOptions { direct: false }), false)
            }
            result => (result, true),
        };
        let storage = storage.with_context(|| format!("{at} cannot be opened"))?;
        let own = OsString::from(format!(".sluice-profile-{}", std::process::id()));
        let flags = libc::O_RDWR | libc::O_EXCL;
        let created = storage.create(&storage.root(), &own, 0o600, flags, &Creator::process());
        let (_, file) = created.with_context(|| format!("no file can be made in {at}"))?;
        let path = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let mut target =
            FileTarget { storage, file, name: Some(own), path, direct, file_bytes, moved: AtomicU64::new(0), stop };
        if name == Name::None {
            target.remove()?;
        }
        Ok(target)
    }

    /// Takes the file's name away. Its space is freed when this process lets go of it.
    pub fn remove(&mut self) -> anyhow::Result<()> {
        let Some(name) = self.name.take() else { return Ok(()) };
        let removed = self.storage.unlink(&self.storage.root(), &name);
        removed.with_context(|| format!("{} cannot be removed", self.path.join(&name).display()))
    }

    /// The file, if it has a name.
    pub fn file_path(&self) -> Option<PathBuf> {
        self.name.as_ref().map(|name| self.path.join(name))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size.
    pub const fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Bytes read and written so far.
    pub fn bytes_moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// What the file system does not do.
    pub fn warning(&self) -> Option<String> {
        let text = "the file system has no O_DIRECT: these are the times of the page cache, not of the device";
        (!self.direct).then(|| text.to_owned())
    }

    /// Writes the whole file. If that would take longer than `time`, the file becomes smaller; without, it takes its time.
    pub fn prepare_within(&mut self, time: Option<Duration>, bar: &ProgressBar) -> Result<u64, Failure> {
        let mut memory = Memory::new(PREPARE_BYTES as usize);
        memory.fill(1);
        let begin = Instant::now();
        let mut at = 0;
        while at < self.file_bytes {
            let late = time.is_some_and(|time| begin.elapsed() > time);
            if late && at >= PREPARED_MIN {
                self.file_bytes = at;
                break;
            }
            let len = PREPARE_BYTES.min(self.file_bytes - at);
            self.one(Op::Write, at, &mut memory.bytes()[..len as usize])?;
            at += len;
            bar.set_message(format!(
                "writing the file: {} of {}",
                show_size(at as f64),
                show_size(self.file_bytes as f64)
            ));
            bar.tick();
        }
        self.storage.sync(&self.file, true)?;
        Ok(begin.elapsed().as_nanos() as u64)
    }

    /// One request, all of it.
    fn one(&self, op: Op, offset: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Failure::Stopped);
        }
        let wanted = bytes.len();
        let done = match op {
            Op::Read => self.storage.read(&self.file, 0, offset, &mut [IoSliceMut::new(bytes)]),
            Op::Write | Op::Flush => self.storage.write(&self.file, 0, offset, &[IoSlice::new(bytes)]),
        };
        let done = match done {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(full(&error)),
            done => done?,
        };
        self.moved.fetch_add(done as u64, Ordering::Relaxed);
        match (done == wanted, op) {
            (true, _) => Ok(()),
            (false, Op::Read) => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than what was written").into())
            }
            (false, _) => Err(full(&"short write")),
        }
    }

    /// Does what is left of a burst; called by each of its threads.
    fn work(&self, burst: &Burst, next: &AtomicU64, begin: Instant) -> Result<Vec<u64>, Failure> {
        let mut memory = Memory::new(burst.size_bytes as usize);
        memory.fill(burst.size_bytes);
        let mut latencies = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if !burst.goes_on(number, begin.elapsed().as_nanos() as u64) {
                return Ok(latencies);
            }
            let bytes = &mut memory.bytes()[..burst.size_bytes as usize];
            // No two blocks are alike, so that nobody stores them but once.
            let stamp = number.to_le_bytes();
            bytes[..stamp.len()].copy_from_slice(&stamp);
            let start = Instant::now();
            self.one(burst.test.op, burst.offset(number), bytes)?;
            latencies.push(start.elapsed().as_nanos() as u64);
        }
    }
}

fn full(why: &dyn std::fmt::Display) -> Failure {
    let text = format!("the disk is full ({why}): make room, or use a smaller file (--file-size)");
    io::Error::new(io::ErrorKind::StorageFull, text).into()
}

impl Target for FileTarget {
    type Error = Failure;

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.prepare_within(None, &ProgressBar::hidden())
    }

    fn run(&mut self, burst: &Burst) -> Result<Outcome, Failure> {
        let (next, begin) = (AtomicU64::new(0), Instant::now());
        let this = &*self;
        let latencies_ns = if burst.in_flight <= 1 {
            this.work(burst, &next, begin)?
        } else {
            let all = Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..burst.in_flight)
                    .map(|_| {
                        let (next, all) = (&next, &all);
                        scope.spawn(move || this.work(burst, next, begin).map(|own| all.lock().extend(own)))
                    })
                    .collect();
                threads.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
            })?;
            all.into_inner()
        };
        Ok(Outcome { latencies_ns, elapsed_ns: begin.elapsed().as_nanos() as u64 })
    }
}

impl Drop for FileTarget {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            crate::output::tell(format_args!("{error:#}"));
        }
    }
}

/// What about the times looks wrong.
pub(super) fn suspicions(profile: &Profile) -> Option<String> {
    let smallest = profile.reads.iter().min_by_key(|point| point.size_bytes)?;
    (smallest.random_ns < MEMORY_NS).then(|| {
        format!(
            "random reads took {}: that is memory, not a device; a cache that O_DIRECT does not pass by, or a file \
             system in memory",
            show_time(smallest.random_ns)
        )
    })
}

/// Memory that direct I/O takes.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Memory {
        let bytes = vec![0; len + ALIGN];
        let start = bytes.as_ptr().addr().next_multiple_of(ALIGN) - bytes.as_ptr().addr();
        Memory { bytes, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// With what does not compress.
    fn fill(&mut self, seed: u64) {
        let mut state = seed | 1;
        for chunk in self.bytes().chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes());
        }
    }
}
