//! What the SSD before a disk brings: workloads on an emulated disk under a scheduler, with this machine's own disk as SSD, and
//! with memory of the SSD's size instead.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};
use serde::Serialize;
use sluice_cli::output;
use sluice_core::{AppId, PolicyConfig};
use sluice_runtime::{Shutdown, Volume, VolumeConfig};
use sluice_storage::emulated::Emulated;
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::{FileRef, Storage};
use sluice_tier::crash::Random;
use sluice_tier::{Config, Device, FileDevice, Geometry, Runner, Status, Tier};

use super::Args;
use crate::bed::{self, Bed, Disk, Side};
use crate::statistics::median;

/// What is written to and read from: as much as the paper's random programs had, three files of 20 GB.
const DISK: u64 = 60 << 30;
/// The log and the area for what is read. What the burst writes fits into the log before it is written back.
const GEOMETRY: Geometry =
    Geometry { queue_bytes: 512 << 20, segment_bytes: 4 << 20, area_bytes: 512 << 20, slot_bytes: 4 << 20 };
/// A log that is full soon, so that what is measured is writing back.
const SMALL: u64 = 64 << 20;
const BURST: u64 = 256 << 20;
/// Of a burst of requests that write, as many are given to the page cache at most: it takes them at the speed of memory, and then
/// the disk needs milliseconds for each. Where the log is full soon, so is the page cache, and no bound is needed.
const RIVAL_REQUESTS: u64 = 2048;
/// What was written becomes durable so often, as in the paper's tests (section 6.3.2 of the dissertation).
const SYNC: Duration = Duration::from_secs(1);

/// What is done, by so many threads.
struct Workload {
    name: &'static str,
    threads: u64,
    read: bool,
    size: u64,
    /// Place of a request: thread, how many it did before, bytes of each, a random number.
    place: fn(u64, u64, u64, u64) -> u64,
    /// Bytes of the disk that it is in.
    within: u64,
    /// It takes so many times as long: what is read has to be loaded first.
    times: u32,
    /// It ends after so many bytes, or when its time is over.
    most: u64,
    queue: u64,
    /// With over without that is wanted.
    bar: Option<f64>,
}

const RANDOM: Workload = Workload {
    name: "",
    threads: 16,
    read: false,
    size: 4 << 10,
    place: |_, _, _, random| random,
    within: DISK,
    times: 1,
    most: BURST,
    queue: GEOMETRY.queue_bytes,
    bar: Some(3.0),
};

/// Three programs of four processes, which write regions 8 KiB apart in turns, each program in a file of its own.
const HPIO: Workload = Workload {
    threads: 12,
    place: |thread, before, size, _| thread % 3 * (DISK / 3 / 4096 * 4096) + (before * 4 + thread / 3) * (size + 8192),
    bar: Some(5.0),
    ..RANDOM
};

const STREAM: Workload = Workload {
    threads: 1,
    size: 256 << 10,
    place: |_, before, size, _| before * size,
    most: 640 << 20,
    bar: Some(0.98),
    ..RANDOM
};

const READS: Workload = Workload { read: true, within: 256 << 20, times: 3, most: u64::MAX, bar: Some(2.4), ..RANDOM };

const WORKLOADS: &[Workload] = &[
    Workload { name: "random writes 4 KiB", ..RANDOM },
    Workload { name: "random writes 8 KiB", size: 8 << 10, ..RANDOM },
    Workload { name: "random writes 16 KiB", size: 16 << 10, ..RANDOM },
    Workload { name: "random writes 32 KiB", size: 32 << 10, ..RANDOM },
    Workload {
        name: "random writes 16 KiB, log full",
        size: 16 << 10,
        queue: SMALL,
        most: u64::MAX,
        bar: None,
        ..RANDOM
    },
    Workload { name: "random reads 4 KiB of 256 MiB", ..READS },
    Workload { name: "random reads 32 KiB of 256 MiB", size: 32 << 10, ..READS },
    Workload { name: "HPIO writes 512 B", size: 512, ..HPIO },
    Workload { name: "HPIO writes 1 KiB", size: 1024, ..HPIO },
    Workload { name: "HPIO writes 2 KiB", size: 2048, ..HPIO },
    Workload { name: "HPIO writes 4 KiB", ..HPIO },
    Workload { name: "HPIO writes 4 KiB, log full", queue: SMALL, most: u64::MAX, bar: None, ..HPIO },
    Workload { name: "sequential writes 256 KiB", ..STREAM },
    Workload { name: "sequential reads 256 KiB", read: true, ..STREAM },
];

/// Medians over the rounds, and what was smallest and largest.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) workload: &'static str,
    /// The emulated disk under the scheduler.
    pub(super) without_mb_s: f64,
    without_spread: [f64; 2],
    /// The same with an SSD before it.
    pub(super) with_mb_s: f64,
    with_spread: [f64; 2],
    /// ext4 on an emulated block device, through the kernel's page cache, of which as much may be dirty as the log has bytes;
    /// `None` where that is not possible.
    pub(super) page_cache_mb_s: Option<f64>,
    page_cache_spread: Option<[f64; 2]>,
    /// With over without.
    pub(super) ratio: f64,
    pub(super) bar: Option<f64>,
    pub(super) met: Option<bool>,
    pub(super) hit_rate: f64,
    /// Bytes that the SSD wrote, and for each byte written to the log.
    ssd_written_bytes: u64,
    pub(super) write_amplification: f64,
}

/// Without, with, the page cache, and what the tier said, of one round.
type Round = (f64, f64, Option<f64>, Status);

/// All rows, those that lose most first.
pub(super) fn rows(args: &Args, runner: &bed::Runner, dir: &Path) -> anyhow::Result<Vec<Row>> {
    let wanted: Vec<&Workload> = WORKLOADS
        .iter()
        .filter(|workload| args.only.is_empty() || args.only.iter().any(|only| workload.name.contains(only.as_str())))
        .collect();
    anyhow::ensure!(!wanted.is_empty(), "--only: there is no such workload");
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 });
    let time = Duration::from_secs(if args.quick { 2 } else { 4 });
    let rival = Rival::new(args, runner)?;
    let progress = output::bar(u64::from(rounds) * wanted.len() as u64, "{bar:40} {pos}/{len} runs, {eta} left  {msg}");
    let mut found: Vec<Vec<Round>> = wanted.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (workload, found) in wanted.iter().zip(&mut found) {
            runner.go_on()?;
            progress.set_message(workload.name);
            let run = Run { workload, time, stop: &runner.stop };
            let without = run.without(args, dir)?;
            let (with, status) = run.with(args, dir)?;
            let cache = rival.as_ref().map(|rival| rival.measure(&run)).transpose()?;
            found.push((without, with, cache, status));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let mut rows: Vec<Row> = wanted.iter().zip(&found).map(|(workload, found)| row(workload, found)).collect();
    rows.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    Ok(rows)
}

fn row(workload: &Workload, found: &[Round]) -> Row {
    let (without, without_spread) = median(&mut found.iter().map(|of| of.0).collect::<Vec<_>>());
    let (with, with_spread) = median(&mut found.iter().map(|of| of.1).collect::<Vec<_>>());
    let mut caches: Vec<f64> = found.iter().filter_map(|of| of.2).collect();
    let cache = (!caches.is_empty()).then(|| median(&mut caches));
    let (ratio, status) = (with / without, &found[found.len() - 1].3);
    Row {
        workload: workload.name,
        without_mb_s: without,
        without_spread,
        with_mb_s: with,
        with_spread,
        page_cache_mb_s: cache.map(|(median, _)| median),
        page_cache_spread: cache.map(|(_, spread)| spread),
        ratio,
        bar: workload.bar,
        met: workload.bar.map(|bar| ratio >= bar),
        hit_rate: status.hit_rate,
        ssd_written_bytes: status.counts.ssd_written_bytes,
        write_amplification: status.write_amplification,
    }
}

impl std::fmt::Display for Row {
    /// A line of a Markdown table.
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = |median: f64, [from, till]: [f64; 2]| format!("{median:.2} ({from:.2} to {till:.2})");
        let cache = self.page_cache_mb_s.zip(self.page_cache_spread);
        let cache = cache.map_or("-".to_owned(), |(median, spread)| rate(median, spread));
        let bar = self.bar.map_or("-".to_owned(), |bar| {
            format!("{bar}x, {}", if self.met == Some(true) { "met" } else { "**missed**" })
        });
        write!(
            to,
            "| {} | {} | {} | {cache} | {:.2}x | {bar} | {:.0} % | {:.2} |",
            self.workload,
            rate(self.without_mb_s, self.without_spread),
            rate(self.with_mb_s, self.with_spread),
            self.ratio,
            self.hit_rate * 100.0,
            self.write_amplification
        )
    }
}

#[derive(Clone, Copy)]
struct Run<'a> {
    workload: &'a Workload,
    time: Duration,
    stop: &'a AtomicBool,
}

impl Run<'_> {
    /// MB a second. What was written is durable at the end.
    fn rate(
        &self,
        io: impl Fn(u64, &mut [u8]) -> io::Result<()> + Sync,
        flush: impl Fn() -> io::Result<()> + Sync,
    ) -> anyhow::Result<f64> {
        let Workload { threads, read, size, place, within, most, times, .. } = *self.workload;
        let (io, flush, began, bytes) = (&io, &flush, Instant::now(), &AtomicU64::new(0));
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut random = Random(thread + 1);
                        let mut buf = vec![thread as u8; size as usize];
                        let mut before = 0;
                        while began.elapsed() < self.time * times && !self.stop.load(Relaxed) {
                            if bytes.fetch_add(size, Relaxed) >= most {
                                bytes.fetch_sub(size, Relaxed);
                                break;
                            }
                            let at = place(thread, before, size, random.number() / size * size);
                            io(at % (within / size * size), &mut buf)?;
                            before += 1;
                        }
                        Ok::<(), io::Error>(())
                    })
                })
                .collect();
            let (ended, end) = channel::<()>();
            let flusher = (!read).then(|| {
                scope.spawn(move || {
                    while end.recv_timeout(SYNC) == Err(RecvTimeoutError::Timeout) {
                        flush()?;
                    }
                    flush()
                })
            });
            let done: io::Result<()> =
                workers.into_iter().try_for_each(|worker| worker.join().expect("a panic was printed"));
            drop(ended);
            done.and(flusher.map_or(Ok(()), |flusher| flusher.join().expect("a panic was printed")))
        })?;
        let rate = bytes.load(Relaxed) as f64 / 1e6 / began.elapsed().as_secs_f64();
        anyhow::ensure!(!self.stop.load(Relaxed), sluice_cli::interrupt::Interrupted);
        Ok(rate)
    }

    fn on(&self, device: &(impl Device + ?Sized)) -> anyhow::Result<f64> {
        let read = self.workload.read;
        self.rate(|at, buf| if read { device.read(buf, at) } else { device.write(buf, at) }, || device.flush())
    }

    fn without(&self, args: &Args, dir: &Path) -> anyhow::Result<f64> {
        self.on(&Scheduled::new(args, dir)?)
    }

    fn with(&self, args: &Args, dir: &Path) -> anyhow::Result<(f64, Status)> {
        let path = dir.join("ssd.img");
        let _ = std::fs::remove_file(&path);
        let geometry = Geometry { queue_bytes: self.workload.queue, ..GEOMETRY };
        let ssd = FileDevice::create(&path, geometry.queue_bytes + geometry.area_bytes + (16 << 10))?;
        let (disk, ssd) = (Arc::new(Scheduled::new(args, dir)?), Arc::new(Uncached::new(ssd, &path)?));
        Tier::create(&*disk, "disk", &*ssd, geometry)?;
        let tier = Arc::new(Tier::open(disk, ssd, config(args)?)?);
        let background = Runner::start(tier.clone())?;
        let read = self.workload.read;
        let rate =
            self.rate(|at, buf| if read { tier.read(buf, at) } else { tier.write(buf, at, false) }, || tier.flush())?;
        drop(background);
        Ok((rate, tier.status()))
    }
}

/// How the tier is to work.
///
/// # Errors
/// If there is no such setting, or it takes no such value.
pub(super) fn config(args: &Args) -> anyhow::Result<Config> {
    let mut config = Config { unload: false, ..Config::default() };
    for setting in &args.settings {
        let (key, value) = setting.split_once('=').with_context(|| format!("--set {setting}: expected KEY=VALUE"))?;
        config.set(key, value).map_err(anyhow::Error::msg)?;
    }
    Ok(config)
}

/// An emulated disk as a file under Sluicegate's scheduler.
struct Scheduled {
    volume: Volume<()>,
    file: FileRef,
}

impl Scheduled {
    /// A new, empty one.
    fn new(args: &Args, dir: &Path) -> anyhow::Result<Scheduled> {
        let path = dir.join("disk.img");
        let _ = std::fs::remove_file(&path);
        File::create(&path)?.set_len(DISK)?;
        let storage = Storage::from(PosixStorage::open(dir, PosixOptions::default())?);
        let storage = storage.wrapped(|data| Emulated::new(data, &args.model, 1))?;
        let node = storage.namespace.lookup(&storage.namespace.root(), "disk.img".as_ref())?;
        let file = storage.namespace.open(&node, OFlags::RDWR.bits() as i32)?;
        let volume = Volume::start(storage, Arc::new(()), VolumeConfig::new(PolicyConfig::parse(&args.policy)?))?;
        Ok(Scheduled { volume, file })
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        self.volume.shutdown(Shutdown::Drain { timeout: Duration::from_secs(10) });
    }
}

impl Device for Scheduled {
    fn size(&self) -> u64 {
        DISK
    }
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.volume.read_at(&self.file, AppId(0), offset, buf)?;
        if read == buf.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
    fn write(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let written = self.volume.write_at(&self.file, AppId(0), offset, buf)?;
        if written == buf.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
    fn flush(&self) -> io::Result<()> {
        self.volume.storage().data.sync(&self.file, false)
    }
    fn describe(&self) -> String {
        self.volume.storage().data.describe()
    }
}

/// This machine's disk as SSD, of which nothing stays in memory: what is read comes from it.
struct Uncached {
    device: FileDevice,
    file: File,
}

impl Uncached {
    fn new(device: FileDevice, path: &Path) -> anyhow::Result<Uncached> {
        Ok(Uncached { device, file: File::open(path)? })
    }

    fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(fadvise(&self.file, offset, std::num::NonZeroU64::new(len), Advice::DontNeed)?)
    }
}

impl Device for Uncached {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.device.read(buf, offset)?;
        self.forget(offset, buf.len() as u64)
    }
    fn write(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.device.write(buf, offset)?;
        // A slot of the prefetch area, which nobody flushes: what is not written yet would be read from memory.
        if buf.len() >= GEOMETRY.slot_bytes as usize { self.flush() } else { Ok(()) }
    }
    fn flush(&self) -> io::Result<()> {
        self.device.flush()?;
        self.forget(0, 0)
    }
    fn describe(&self) -> String {
        self.device.describe()
    }
}

/// The rival: the kernel's page cache over ext4 on an emulated block device.
struct Rival {
    bed: Bed,
    side: Side,
}

impl Rival {
    /// `None` where block devices cannot be made.
    fn new(args: &Args, runner: &bed::Runner) -> anyhow::Result<Option<Rival>> {
        if args.no_page_cache || !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let disk =
            Disk { model: args.model.clone(), size: "100G".to_owned(), dir: Some(args.dir.clone()), sluice: None };
        let bed = Bed::new(runner, "tier", &disk)?;
        let rival = Rival { bed, side: Side { scheduler: args.scheduler.clone(), policy: None } };
        // Its space is there, and what is read was written.
        let file = rival.file()?;
        fallocate(&file, FallocateFlags::empty(), 0, DISK)?;
        let part = vec![1; 1 << 20];
        (0..STREAM.most >> 20).try_for_each(|at| file.write_all_at(&part, at << 20))?;
        file.sync_all()?;
        Ok(Some(rival))
    }

    /// With nothing of it in memory.
    fn file(&self) -> anyhow::Result<File> {
        let path: PathBuf = self.bed.switch(&self.side, &[])?.join("file");
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        opened.with_context(|| path.display().to_string())
    }

    /// As much of the disk's data may wait in memory to be written as the log holds, so that writers then wait for the disk.
    fn bound(&self, bytes: u64) -> anyhow::Result<()> {
        let bdi = self.bed.sysfs().join("bdi");
        for (name, value) in [("strict_limit", 1), ("max_bytes", bytes)] {
            let path = bdi.join(name);
            let hint = "no bound on dirty memory (Linux 6.2 has one); try --no-page-cache";
            std::fs::write(&path, value.to_string()).with_context(|| format!("{}: {hint}", path.display()))?;
        }
        Ok(())
    }

    fn measure(&self, run: &Run<'_>) -> anyhow::Result<f64> {
        let (file, read) = (self.file()?, run.workload.read);
        self.bound(run.workload.queue)?;
        let most = match (read, run.workload.most) {
            (false, BURST) => RIVAL_REQUESTS * run.workload.size,
            _ => run.workload.most,
        };
        let workload = Workload { most, ..*run.workload };
        Run { workload: &workload, ..*run }.rate(
            |at, buf| if read { file.read_exact_at(buf, at) } else { file.write_all_at(buf, at) },
            || file.sync_data(),
        )
    }
}
