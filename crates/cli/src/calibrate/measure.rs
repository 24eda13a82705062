//! Patterns, run for real through a volume: what each arm makes of them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use parking_lot::Mutex;
use sluice_adapt::selector::{Arm, Context, Load};
use sluice_core::{AppId, EngineConfig, Op};
use sluice_runtime::{Shutdown, Volume, VolumeConfig};
use sluice_storage::emulated::Emulated;
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::{Creator, FileRef, Namespace, Storage};

use super::place::Place;
use super::progress::Cell;

/// Processes of each pattern; each has one request at a time.
pub(super) const PROCESSES: u64 = 8;
/// Share of a slot in which an arm gets going; it does not count.
const WARM_UP: f64 = 0.25;
/// Slices of a slot that count, and what is about the length of one.
const SLICES: (u32, u32) = (3, 8);
const SLICE: Duration = Duration::from_millis(250);
/// What a request counts for beside its bytes, as a selector counts.
const REQUEST: u64 = 4096;

/// What programs do.
pub(super) struct Pattern {
    pub(super) name: &'static str,
    op: Op,
    /// One file, in which the processes take turns; else each has its own.
    shared: bool,
    /// Bytes of a request.
    request: u64,
}

const fn pattern(name: &'static str, op: Op, shared: bool, request: u64) -> Pattern {
    Pattern { name, op, shared, request }
}

/// The four classes that the detector knows, read and written.
pub(super) const PATTERNS: [Pattern; 8] = [
    pattern("reads of 16K, own files", Op::Read, false, 16 << 10),
    pattern("reads of 16K, shared file", Op::Read, true, 16 << 10),
    pattern("reads of 512K, own files", Op::Read, false, 512 << 10),
    pattern("reads of 512K, shared file", Op::Read, true, 512 << 10),
    pattern("writes of 16K, own files", Op::Write, false, 16 << 10),
    pattern("writes of 16K, shared file", Op::Write, true, 16 << 10),
    pattern("writes of 512K, own files", Op::Write, false, 512 << 10),
    pattern("writes of 512K, shared file", Op::Write, true, 512 << 10),
];

/// A volume over the test files.
pub(super) struct Bed {
    volume: Arc<Volume<()>>,
    own: Vec<FileRef>,
    shared: FileRef,
    /// Bytes of a process's part of either.
    part: u64,
    /// Where each process goes on, by pattern.
    at: [Vec<AtomicU64>; PATTERNS.len()],
    host: EngineConfig,
    /// What was read stays in memory, and would be read from there.
    is_cached: bool,
}

impl Bed {
    /// Opens the volume, and makes its files. `None` if `stop` said so.
    ///
    /// # Errors
    /// If files cannot be made, or there is no such model.
    pub(super) fn open(
        place: &Place,
        bytes: u64,
        (emulate, direct): (Option<&str>, bool),
        config: VolumeConfig,
        stop: &dyn Fn() -> bool,
    ) -> anyhow::Result<Option<Bed>> {
        let part = bytes / 2 / PROCESSES;
        let names: Vec<String> = (0..PROCESSES).map(|n| format!("own-{n}")).collect();
        let all = names.iter().map(|name| (name.as_str(), part)).chain([("shared", part * PROCESSES)]);
        for (name, bytes) in all {
            // An emulated device asks for its time, whatever is there.
            if !place.file(name, bytes, emulate.is_none(), stop)? {
                return Ok(None);
            }
        }
        let posix = PosixStorage::open(place.dir(), PosixOptions { direct })
            .with_context(|| format!("{} cannot be opened", place.dir().display()))?;
        let open = |name: &str| -> anyhow::Result<FileRef> {
            let opened = posix.create(&posix.root(), OsStr::new(name), 0o600, libc::O_RDWR, &Creator::process());
            Ok(opened.with_context(|| format!("the test file {name}"))?.1)
        };
        let own = names.iter().map(|name| open(name)).collect::<anyhow::Result<Vec<_>>>()?;
        let shared = open("shared")?;
        let storage: Storage = posix.into();
        let storage = match emulate {
            Some(model) => storage.wrapped(|data| Emulated::new(data, model, 1))?,
            None => storage,
        };
        let host = config.engine.clone();
        let volume = Volume::start(storage, Arc::new(()), config).context("no volume can be started")?;
        let at = std::array::from_fn(|_| (0..PROCESSES).map(|_| AtomicU64::new(0)).collect());
        let is_cached = !direct && emulate.is_none();
        Ok(Some(Bed { volume: Arc::new(volume), own, shared, part, at, host, is_cached }))
    }

    /// Where the request number `n` of a process is, and in which file.
    fn place(&self, pattern: &Pattern, process: u64, n: u64) -> (&FileRef, u64) {
        let n = n % (self.part / pattern.request);
        match pattern.shared {
            true => (&self.shared, (n * PROCESSES + process) * pattern.request),
            false => (&self.own[process as usize], n * pattern.request),
        }
    }

    fn request(&self, pattern: &Pattern, process: u64, n: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let (file, offset) = self.place(pattern, process, n);
        let moved = match pattern.op {
            Op::Read => self.volume.read_at(file, AppId(0), offset, buffer)?,
            Op::Write => {
                buffer[..8].copy_from_slice(&n.to_le_bytes());
                self.volume.write_at(file, AppId(0), offset, buffer)?
            }
        };
        if moved == buffer.len() {
            Ok(())
        } else {
            Err(std::io::Error::other("a test file is shorter than it was made"))
        }
    }

    /// What memory has of the files is forgotten: the next reads are the device's.
    fn forget(&self) {
        if !self.is_cached {
            return;
        }
        for file in self.own.iter().chain([&self.shared]) {
            if let Some(fd) = self.volume.storage().data.descriptor(file, 0) {
                let all = std::num::NonZeroU64::new(self.part * PROCESSES);
                _ = rustix::fs::fadvise(&*fd, 0, all, rustix::fs::Advice::DontNeed);
            }
        }
    }

    /// Runs a pattern for so long under an arm, and adds what that gave. False if `stop` said so; then nothing is added.
    ///
    /// # Errors
    /// If a request failed.
    pub(super) fn run(
        &self,
        at: usize,
        arm: &Arm,
        slot: Duration,
        cell: &mut Cell,
        stop: &dyn Fn() -> bool,
    ) -> anyhow::Result<bool> {
        let pattern = &PATTERNS[at];
        self.volume.set_limits(&arm.limits(&self.host))?;
        self.volume.set_policy(&arm.policy);
        self.forget();
        let (ends, work) = (AtomicBool::new(false), AtomicU64::new(0));
        let failure: Mutex<Option<std::io::Error>> = Mutex::new(None);
        let measured = std::thread::scope(|scope| {
            for process in 0..PROCESSES {
                let (ends, work, failure, next) = (&ends, &work, &failure, &self.at[at][process as usize]);
                scope.spawn(move || {
                    let mut buffer = vec![process as u8 + 1; pattern.request as usize];
                    while !ends.load(Ordering::Relaxed) {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n > 0 && n.is_multiple_of(self.part / pattern.request) && process == 0 {
                            self.forget();
                        }
                        if let Err(error) = self.request(pattern, process, n, &mut buffer) {
                            failure.lock().get_or_insert(error);
                            return;
                        }
                        work.fetch_add(pattern.request + REQUEST, Ordering::Relaxed);
                    }
                });
            }
            let measured = self.watch(slot, &work, &|| stop() || failure.lock().is_some());
            ends.store(true, Ordering::Relaxed);
            measured
        });
        if let Some(error) = failure.into_inner() {
            return Err(error).with_context(|| format!("{}, {arm}", pattern.name));
        }
        if pattern.op == Op::Write {
            // The next one is not to wait for what this one has written.
            for file in self.own.iter().chain([&self.shared]) {
                self.volume.storage().data.sync(file, false).context("syncing a test file")?;
            }
        }
        let Some((rates, look)) = measured else { return Ok(false) };
        cell.add(&rates, look);
        Ok(true)
    }

    /// Work per second, slice by slice, after a while; and what most windows looked like. `None` if `stop` said so.
    fn watch(&self, slot: Duration, work: &AtomicU64, stop: &dyn Fn() -> bool) -> Option<(Vec<f64>, Option<Context>)> {
        // On a channel on which nothing ever comes one can wait.
        let (_never, pause) = channel::<()>();
        let (began, warm) = (Instant::now(), slot.mul_f64(WARM_UP));
        let counted = slot - warm;
        let slices =
            (counted.as_secs_f64() / SLICE.as_secs_f64()).round().clamp(SLICES.0.into(), SLICES.1.into()) as u32;
        let scheduler = self.volume.scheduler();
        let mut from = scheduler.clock().now().after(warm.as_nanos() as u64);
        let (mut rates, mut looks): (Vec<f64>, BTreeMap<Context, u32>) = Default::default();
        let mut before = (0, Duration::ZERO);
        for slice in 0..=slices {
            let until = warm + counted.mul_f64(f64::from(slice) / f64::from(slices));
            while began.elapsed() < until {
                if stop() {
                    return None;
                }
                let left = until.saturating_sub(began.elapsed());
                _ = pause.recv_timeout(left.min(Duration::from_millis(20)));
                if let Some(window) = scheduler.window(0).filter(|window| window.start >= from) {
                    from = window.end;
                    *looks.entry(Context::of(&Load::of(&window), None)).or_default() += 1;
                }
            }
            let now = (work.load(Ordering::Relaxed), began.elapsed());
            let (done, took) = (now.0 - before.0, now.1.saturating_sub(before.1));
            if slice == 0 {
                before = now;
            } else if done > 0 && took >= counted / (2 * slices) {
                rates.push(done as f64 / took.as_secs_f64());
                before = now;
            }
            // Where the device is slower than the slices, or this thread came late, one counts together with the next.
        }
        let look = looks.into_iter().max_by_key(|(_, count)| *count).map(|(look, _)| look);
        Some((rates, look))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.volume.shutdown(Shutdown::Drain { timeout: Duration::from_secs(30) });
    }
}

/// Whether a directory can be used with `O_DIRECT`.
pub(super) fn takes_direct(dir: &Path) -> bool {
    PosixStorage::open(dir, PosixOptions { direct: true }).is_ok()
}
