//! `sluice-bench tier`: whether the SSD before a disk loses anything, and what it brings.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde::Serialize;
use sluice_cli::output;
use sluice_tier::crash::{self, Plan, Random, kill};
use sluice_tier::{Config, DataDevice, Device, FileDevice, Geometry, Rule, Runner, Tier};

use crate::bed;

const DISK: u64 = 2 << 30;
const GEOMETRY: Geometry =
    Geometry { queue_bytes: 256 << 20, segment_bytes: 4 << 20, area_bytes: 256 << 20, slot_bytes: 4 << 20 };

/// Crashes tiers, kills writers, and measures workloads on an emulated disk with this machine's own disk as SSD.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fewer histories and kills, shorter workloads.
    #[arg(long)]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Device model of the disk.
    #[arg(long, default_value = "hdd-7200")]
    model: String,
    /// Where files are made.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Histories [default: 10000, with --quick 300].
    #[arg(long)]
    histories: Option<u64>,
    /// Kills [default: 200, with --quick 10].
    #[arg(long)]
    kills: Option<u64>,
    /// Only histories and kills.
    #[arg(long)]
    no_figures: bool,
}

/// A writer that is to be killed.
#[derive(clap::Args)]
pub(crate) struct WriterArgs {
    dir: PathBuf,
    seed: u64,
}

/// Writes until it is killed.
pub(crate) fn write(args: &WriterArgs) -> anyhow::Result<ExitCode> {
    kill::write_until_killed(&args.dir, args.seed).map_err(|error| anyhow!(error))?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Default, Serialize)]
struct Results {
    emulated: bool,
    model: String,
    histories: u64,
    crashes: u64,
    violations: Vec<String>,
    kills: u64,
    kill_violations: Vec<String>,
    recovery: Option<Recovery>,
    rows: Vec<Row>,
    write_amplification: f64,
}

/// Reading a log at the start, through a page cache that was emptied where root could do that.
#[derive(Serialize)]
struct Recovery {
    log_bytes: u64,
    entries: u64,
    seconds: f64,
    /// For a log of 8 GiB of the same entries, by proportion.
    seconds_for_8g: f64,
}

#[derive(Serialize)]
struct Row {
    workload: &'static str,
    /// The emulated disk alone.
    without_mb_s: f64,
    with_mb_s: f64,
    /// The kernel's page cache over such a disk, written out at the end; `None` without root.
    page_cache_mb_s: Option<f64>,
    hit_rate: f64,
    write_amplification: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut results = Results { emulated: true, model: args.model.clone(), ..Results::default() };
    histories(args, &mut results);
    let dir = tempfile::Builder::new().prefix("sluice-tier").tempdir_in(&args.dir)?;
    results.kills = args.kills.unwrap_or(if args.quick { 10 } else { 200 });
    let own = std::env::current_exe()?;
    let killed = kill::run(dir.path(), results.kills, |seed| {
        let mut command = Command::new(&own);
        command.arg("tier-writer").arg(dir.path()).arg(seed.to_string());
        command
    });
    results.kill_violations.extend(killed.err());
    if !args.no_figures {
        results.recovery = Some(recovery(args, dir.path())?);
        for workload in WORKLOADS {
            results.rows.push(measure(args, dir.path(), workload)?);
        }
        let amplified = results.rows.iter().map(|row| row.write_amplification).filter(|&of| of > 0.0);
        results.write_amplification = amplified.fold(0.0, f64::max);
    }
    print(args, &results)?;
    let well = results.violations.is_empty() && results.kill_violations.is_empty();
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Seeds on all processors.
fn histories(args: &Args, results: &mut Results) {
    let wanted = args.histories.unwrap_or(if args.quick { 300 } else { 10_000 });
    let (done, crashes, seed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(args.seed));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let violations = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut violations = Vec::new();
                    while done.load(Relaxed) < wanted && violations.len() < 10 {
                        let seed = seed.fetch_add(1, Relaxed);
                        let faults = seed % 4 == 3;
                        let plan = Plan { operations: if faults { 40 } else { 30 }, branches: 2, lives: 3, faults };
                        match crash::run(seed, plan) {
                            Ok(counts) => {
                                done.fetch_add(counts.histories, Relaxed);
                                crashes.fetch_add(counts.crashes, Relaxed);
                            }
                            Err(error) => violations.push(error),
                        }
                    }
                    violations
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a panic was printed")).collect()
    });
    (results.histories, results.crashes, results.violations) = (done.into_inner(), crashes.into_inner(), violations);
}

fn files(dir: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (disk, ssd) = (dir.join("disk.img"), dir.join("ssd.img"));
    for path in [&disk, &ssd] {
        if path.exists() {
            std::fs::remove_file(path)?;
        }
    }
    std::fs::File::create(&disk)?.set_len(DISK)?;
    FileDevice::create(&ssd, GEOMETRY.queue_bytes + GEOMETRY.area_bytes + (16 << 10))?;
    Ok((disk, ssd))
}

fn recovery(args: &Args, dir: &Path) -> anyhow::Result<Recovery> {
    let (disk, ssd) = files(dir)?;
    let queue_bytes = if args.quick { 256 << 20 } else { 1 << 30 };
    std::fs::remove_file(&ssd)?;
    FileDevice::create(&ssd, queue_bytes + (16 << 10))?;
    let device = FileDevice::open(&ssd, true)?;
    Tier::create(
        &FileDevice::open(&disk, true)?,
        "disk",
        &device,
        Geometry { queue_bytes, area_bytes: 0, ..GEOMETRY },
    )?;
    drop(device);
    // Never more than it can hold, so that nothing is written back.
    let config = Config { rule: Rule::Always, high: 1.0, unload: false, prefetch: false, ..Config::default() };
    let open = || -> anyhow::Result<Tier> {
        Ok(Tier::open(
            Arc::new(FileDevice::open(&disk, true)?),
            Arc::new(FileDevice::open(&ssd, true)?),
            config.clone(),
        )?)
    };
    let tier = open()?;
    let mut random = Random(args.seed);
    let data = [0x5a; 4096];
    while tier.status().segments_used < tier.status().segments - 1 {
        for _ in 0..512 {
            tier.write(&data, random.below(DISK / 4096) * 4096, false)?;
        }
    }
    tier.end()?;
    drop(tier);
    std::fs::File::open(&ssd)?.sync_all()?;
    // Without root it is read from memory; then this is the computing alone.
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
    let began = Instant::now();
    let tier = open()?;
    let seconds = began.elapsed().as_secs_f64();
    let entries = tier.status().recovery.entries;
    let scale = (8_u64 << 30) as f64 / queue_bytes as f64;
    Ok(Recovery { log_bytes: queue_bytes, entries, seconds, seconds_for_8g: seconds * scale })
}

/// What is done, by so many threads.
struct Workload {
    name: &'static str,
    threads: u64,
    read: bool,
    /// Bytes of the next request, from a random number.
    size: fn(u64) -> u64,
    /// Its place: thread, how many before it, random number.
    place: fn(u64, u64, u64) -> u64,
    /// Bytes of the disk that it is in.
    within: u64,
}

const WORKLOADS: &[Workload] = &[
    Workload {
        name: "random writes, 4-32 KiB",
        threads: 4,
        read: false,
        size: |random| (1 + random % 8) * 4096,
        place: |_, _, random| random,
        within: DISK,
    },
    Workload {
        name: "random reads, 4-32 KiB, of 64 MiB",
        threads: 4,
        read: true,
        size: |random| (1 + random % 8) * 4096,
        place: |_, _, random| random,
        within: 64 << 20,
    },
    Workload { name: "strided writes, 512 B (HPIO)", size: |_| 512, ..HPIO },
    Workload { name: "strided writes, 1 KiB (HPIO)", size: |_| 1024, ..HPIO },
    Workload { name: "strided writes, 4 KiB (HPIO)", size: |_| 4096, ..HPIO },
    Workload { name: "sequential writes, 1 MiB", read: false, ..STREAM },
    Workload { name: "sequential reads, 1 MiB", read: true, ..STREAM },
];

/// Three programs with regions 8 KiB apart, in three parts of the disk.
const HPIO: Workload = Workload {
    name: "",
    threads: 3,
    read: false,
    size: |_| 512,
    place: |thread, before, _| thread * (DISK / 3) / 4096 * 4096 + before * (8192 + 4096),
    within: DISK,
};

const STREAM: Workload =
    Workload { name: "", threads: 1, read: false, size: |_| 1 << 20, place: |_, before, _| before << 20, within: DISK };

impl Workload {
    /// Bytes a second, in MB. What was written is made durable in that time.
    fn run(
        &self,
        time: Duration,
        io: impl Fn(u64, &mut [u8]) -> std::io::Result<()> + Sync,
        flush: impl FnOnce() -> std::io::Result<()>,
    ) -> anyhow::Result<f64> {
        let began = Instant::now();
        let bytes = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let io = &io;
                    scope.spawn(move || {
                        let mut random = Random(thread + 1);
                        let mut buf = vec![thread as u8; 1 << 20];
                        let (mut before, mut bytes) = (0, 0);
                        while began.elapsed() < time {
                            let size = (self.size)(random.number());
                            let place = (self.place)(thread, before, random.number() / 4096 * 4096);
                            io(place % (self.within - size), &mut buf[..size as usize])?;
                            (before, bytes) = (before + 1, bytes + size);
                        }
                        Ok::<u64, std::io::Error>(bytes)
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("a panic was printed")).sum::<Result<u64, _>>()
        })?;
        flush()?;
        Ok(bytes as f64 / 1e6 / began.elapsed().as_secs_f64())
    }
}

fn measure(args: &Args, dir: &Path, workload: &Workload) -> anyhow::Result<Row> {
    let time = Duration::from_secs(if args.quick { 2 } else { 10 });
    let (disk, ssd) = files(dir)?;
    let emulated = || DataDevice::emulated(&disk, &args.model, 1);
    let without = {
        let disk = emulated()?;
        let io = |at, buf: &mut [u8]| if workload.read { disk.read(buf, at) } else { disk.write(buf, at) };
        workload.run(time, io, || disk.flush())?
    };
    let (disk, ssd) = (Arc::new(emulated()?), Arc::new(FileDevice::open(&ssd, true)?));
    Tier::create(&*disk, "disk", &*ssd, GEOMETRY)?;
    let tier = Arc::new(Tier::open(disk, ssd, Config { unload: false, ..Config::default() })?);
    let runner = Runner::start(tier.clone())?;
    let io = |at, buf: &mut [u8]| if workload.read { tier.read(buf, at) } else { tier.write(buf, at, false) };
    if workload.read {
        // A working set that was used before.
        workload.run(time, io, || Ok(()))?;
    }
    let with = workload.run(time, io, || tier.flush())?;
    drop(runner);
    let status = tier.status();
    drop(tier);
    let page_cache =
        if rustix::process::geteuid().is_root() { Some(page_cache(args, dir, workload, time)?) } else { None };
    Ok(Row {
        workload: workload.name,
        without_mb_s: without,
        with_mb_s: with,
        page_cache_mb_s: page_cache,
        hit_rate: status.hit_rate,
        write_amplification: status.write_amplification,
    })
}

/// The rival: an emulated disk as block device, through the kernel's page cache.
fn page_cache(args: &Args, dir: &Path, workload: &Workload, time: Duration) -> anyhow::Result<f64> {
    let program = bed::program(None)?;
    let name = format!("tier-{}", std::process::id());
    let sluice = |words: &[&str]| -> anyhow::Result<String> {
        let output = Command::new(&program).args(words).output()?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(output.status.success(), "{} {}: {told}", program.display(), words.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let place = dir.to_str().context("a directory with a name in UTF-8")?;
    let made = sluice(&["disk", "create", &name, "--model", &args.model, "--size", "2G", "--dir", place])?;
    let result = (|| {
        let device = made.split_whitespace().find(|word| word.starts_with("/dev/")).context("no device was named")?;
        let device = device.trim_end_matches([',', ':', ';', '.']);
        let file = OpenOptions::new().read(true).write(true).open(device).with_context(|| device.to_owned())?;
        let io =
            |at, buf: &mut [u8]| if workload.read { file.read_exact_at(buf, at) } else { file.write_all_at(buf, at) };
        if workload.read {
            workload.run(time, io, || Ok(()))?;
        }
        workload.run(time, io, || file.sync_data())
    })();
    sluice(&["disk", "remove", "--force", &name])?;
    result
}

fn print(args: &Args, results: &Results) -> anyhow::Result<()> {
    if args.json {
        let mut object = serde_json::to_value(results)?;
        // What is looked at is how many.
        object["violation_texts"] = object["violations"].take();
        object["violations"] = (results.violations.len() + results.kill_violations.len()).into();
        return output::pretty_json(&object);
    }
    output::line(format_args!(
        "{} histories, {} crashes recovered and compared: {} violations",
        results.histories,
        results.crashes,
        results.violations.len()
    ));
    output::line(format_args!("{} writers killed: {} violations", results.kills, results.kill_violations.len()));
    results.violations.iter().chain(&results.kill_violations).for_each(output::line);
    if let Some(Recovery { log_bytes, entries, seconds, seconds_for_8g }) = results.recovery {
        output::line(format_args!(
            "start with {} MiB of log, {entries} entries: {seconds:.2} s; 8 GiB by proportion: {seconds_for_8g:.1} s",
            log_bytes >> 20
        ));
    }
    if !results.rows.is_empty() {
        output::line(format_args!(
            "\nMB/s on an emulated {}\n{:<36} {:>8} {:>8} {:>10} {:>8} {:>6}",
            args.model, "", "without", "with", "page cache", "hits", "WA"
        ));
    }
    for row in &results.rows {
        let cache = row.page_cache_mb_s.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
        output::line(format_args!(
            "{:<36} {:>8.2} {:>8.2} {cache:>10} {:>7.0}% {:>6.2}",
            row.workload,
            row.without_mb_s,
            row.with_mb_s,
            row.hit_rate * 100.0,
            row.write_amplification
        ));
    }
    Ok(())
}
