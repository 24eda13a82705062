//! `sluice-bench fuse`, the first part: what the scheduler costs, with a mount that passes everything through and the plain
//! [`passthrough`] side by side on one directory, under the same `fio` loads.
//!
//! The two are measured in pairs, one right after the other, so whatever slows the machine down for a while slows both;
//! which of the two goes first is drawn anew for each pair, so nothing that comes at regular times favours one side. A
//! ratio is formed for each pair, and the median of the ratios is the result.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use sluice_fuse::{MountError, MountOptions, mount, passthrough};
use sluice_notation::counted;
use sluice_runtime::VolumeConfig;
use sluice_storage::Storage;

use crate::random::SplitMix64;

/// What to measure.
#[derive(Clone, Debug)]
pub(super) struct BenchOptions {
    /// Where to work: a directory of its own is made in it, and removed in the end.
    pub(super) dir: PathBuf,
    /// For both mounts.
    pub(super) mount: MountOptions,
    /// Most seconds for each run; it may be shorter, for it touches each block once.
    pub(super) seconds: u32,
    /// Pairs of runs for each cell.
    pub(super) repetitions: u32,
    /// Megabytes of each of the two files.
    pub(super) file_mb: u32,
    /// Block sizes in bytes.
    pub(super) blocks: Vec<u32>,
    /// Buffered (`false`) and direct (`true`) I/O of the application.
    pub(super) direct: Vec<bool>,
    /// Decides who goes first in each pair.
    pub(super) seed: u64,
    /// Set from elsewhere, ends the benchmark after the run in hand, everything cleared away.
    pub(super) stop: Arc<AtomicBool>,
}

impl BenchOptions {
    /// The full table, some ten minutes: many short pairs tell more than few long ones on a machine with other work.
    #[must_use]
    pub(super) fn new(dir: PathBuf) -> BenchOptions {
        BenchOptions {
            dir,
            mount: MountOptions::default(),
            seconds: 1,
            repetitions: 15,
            file_mb: 512,
            blocks: vec![4 << 10, 1 << 20],
            direct: vec![false, true],
            seed: 1,
            stop: Arc::default(),
        }
    }
}

/// The result, one cell for each load.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FuseBench {
    /// The storage's own description.
    pub(super) storage: String,
    /// Cache mode, threads and so on.
    pub(super) setup: String,
    /// In the order measured.
    pub(super) cells: Vec<Cell>,
}

/// One load.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cell {
    /// fio's name: `read`, `randwrite`...
    pub(super) load: String,
    /// Block size in bytes.
    pub(super) block: u32,
    /// `O_DIRECT` in the application.
    pub(super) direct: bool,
    /// MB/s through Sluicegate, median.
    pub(super) sluice_mb_s: f64,
    /// MB/s through the pass-through, median.
    pub(super) plain_mb_s: f64,
    /// Processor time that this program spent on an I/O of the application through Sluicegate, in microseconds, median.
    pub(super) sluice_cpu_us: f64,
    /// The same through the pass-through.
    pub(super) plain_cpu_us: f64,
    /// Throughput of Sluicegate over that of the pass-through: median over the pairs.
    pub(super) ratio: f64,
    /// Lowest ratio of a pair.
    pub(super) ratio_min: f64,
    /// Highest ratio of a pair.
    pub(super) ratio_max: f64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum BenchError {
    /// A mount failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// fio is missing or failed.
    #[error("fio: {0}; install it with: apt install fio")]
    Fio(String),
    /// It was told to stop.
    #[error("interrupted")]
    Stopped,
    /// Preparing the directories failed.
    #[error("{}: cannot work there", dir.display())]
    Io {
        /// Where.
        dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// Runs the benchmark. `storage` opens the storage on the directory given to it, `config` makes the scheduler's
/// settings, and `progress` hears of each finished cell.
///
/// # Errors
/// See [`BenchError`].
pub(super) fn run(
    options: &BenchOptions,
    storage: impl FnOnce(&Path) -> io::Result<Storage>,
    config: VolumeConfig,
    mut progress: impl FnMut(&Cell),
) -> Result<FuseBench, BenchError> {
    let room = Room::new(&options.dir)?;
    let io = |source| BenchError::Io { dir: room.0.clone(), source };
    let at = |name| room.0.join(name);
    let storage = storage(&at("source")).map_err(io)?;
    let describe = storage.data.describe();
    let with_source = MountOptions { sources: vec![at("source")], ..options.mount.clone() };
    let sluice = mount(storage, &at("sluice"), with_source, config)?;
    let plain = passthrough::mount(&at("source"), &at("plain"), &options.mount)?;

    let (mut cells, mut coin) = (Vec::new(), SplitMix64(options.seed));
    for &direct in &options.direct {
        for &block in &options.blocks {
            for load in ["read", "randread", "write", "randwrite"] {
                let cell = measure(&room.0, load, block, direct, options, &mut coin)?;
                progress(&cell);
                cells.push(cell);
            }
        }
    }
    plain.unmount()?;
    sluice.unmount()?;
    let _ = sluice.wait();
    let m = &options.mount;
    let setup = format!(
        "cache {:?}, {}, max_write {}, fio psync, 2 jobs",
        m.cache,
        counted(m.threads as u64, "thread"),
        m.max_write
    );
    Ok(FuseBench { storage: describe, setup, cells })
}

fn measure(
    room: &Path,
    load: &str,
    block: u32,
    direct: bool,
    options: &BenchOptions,
    coin: &mut SplitMix64,
) -> Result<Cell, BenchError> {
    let (sluice, plain) = (room.join("sluice"), room.join("plain"));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // Lays out the files and warms both up.
    let warm = BenchOptions { seconds: 1, ..options.clone() };
    for dir in [&sluice, &plain] {
        fio(dir, load, block, direct, &warm)?;
    }
    for _ in 0..options.repetitions.max(1) {
        if coin.toss() {
            ours.push(fio(&sluice, load, block, direct, options)?);
            theirs.push(fio(&plain, load, block, direct, options)?);
        } else {
            theirs.push(fio(&plain, load, block, direct, options)?);
            ours.push(fio(&sluice, load, block, direct, options)?);
        }
    }
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours.mb_s / theirs.mb_s).collect();
    let middle = |runs: &[Run], of: fn(&Run) -> f64| median(&runs.iter().map(of).collect::<Vec<_>>());
    Ok(Cell {
        load: load.into(),
        block,
        direct,
        sluice_mb_s: middle(&ours, |run| run.mb_s),
        plain_mb_s: middle(&theirs, |run| run.mb_s),
        sluice_cpu_us: middle(&ours, |run| run.cpu_us),
        plain_cpu_us: middle(&theirs, |run| run.cpu_us),
        ratio: median(&ratios),
        ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratio_max: ratios.iter().copied().fold(0.0, f64::max),
    })
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// What came out of one run.
struct Run {
    mb_s: f64,
    cpu_us: f64,
}

fn fio(dir: &Path, load: &str, block: u32, direct: bool, options: &BenchOptions) -> Result<Run, BenchError> {
    if options.stop.load(Ordering::Relaxed) {
        return Err(BenchError::Stopped);
    }
    let cpu = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
    let before = cpu();
    // Both mounts use the same files: where a file happens to lie in memory or on the disk is worth some percent.
    // Each mount has its own page cache, which fio empties first.
    let output = Command::new("fio")
        .args(["--name=bench", "--ioengine=psync", "--numjobs=2", "--group_reporting", "--output-format=json"])
        // At most one pass: the second would find everything in the kernel's cache and measure neither side.
        .args(["--fallocate=none", "--randrepeat=0"])
        .arg("--filename_format=file.$jobnum")
        .arg(format!("--directory={}", dir.display()))
        .arg(format!("--rw={load}"))
        .arg(format!("--bs={block}"))
        .arg(format!("--size={}m", options.file_mb))
        .arg(format!("--runtime={}", options.seconds))
        .arg(format!("--direct={}", u8::from(direct)))
        .output()
        .map_err(|error| BenchError::Fio(error.to_string()))?;
    let spent = cpu().saturating_sub(before);
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = || BenchError::Fio(format!("{} {}", text.trim(), String::from_utf8_lossy(&output.stderr).trim()));
    if options.stop.load(Ordering::Relaxed) {
        // A signal from the terminal goes to fio too.
        return Err(BenchError::Stopped);
    }
    if !output.status.success() {
        return Err(failed());
    }
    // Warnings may come before the JSON text.
    let json: serde_json::Value =
        text.find('{').and_then(|start| serde_json::from_str(&text[start..]).ok()).ok_or_else(failed)?;
    let side = if load.ends_with("read") { "read" } else { "write" };
    let result = &json["jobs"][0][side];
    let (bytes_s, ios) = result["bw_bytes"].as_f64().zip(result["total_ios"].as_f64()).ok_or_else(failed)?;
    Ok(Run { mb_s: bytes_s / 1e6, cpu_us: spent.as_secs_f64() * 1e6 / ios.max(1.0) })
}

/// A directory that goes away again; never below a mount, for that was taken down before.
struct Room(PathBuf);

impl Room {
    fn new(dir: &Path) -> Result<Room, BenchError> {
        if !dir.is_dir() {
            return Err(BenchError::Io { dir: dir.to_owned(), source: io::ErrorKind::NotADirectory.into() });
        }
        let room = Room(dir.join(format!("sluice-bench-{}", std::process::id())));
        for name in ["source", "sluice", "plain"] {
            let dir = room.0.join(name);
            std::fs::create_dir_all(&dir).map_err(|source| BenchError::Io { dir, source })?;
        }
        Ok(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // One file system only: a mount that could not be taken down keeps its files.
        let _ = std::fs::remove_dir_all(self.0.join("source"));
        for name in ["sluice", "plain"] {
            let _ = std::fs::remove_dir(self.0.join(name));
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_drawn_evenly_and_the_same_for_the_same_seed() {
        let tosses = |seed| -> Vec<bool> {
            std::iter::repeat_with({
                let mut coin = SplitMix64(seed);
                move || coin.toss()
            })
            .take(1000)
            .collect()
        };
        let heads = tosses(1).into_iter().filter(|&head| head).count();
        assert!((400..600).contains(&heads), "{heads}");
        assert_eq!(tosses(7), tosses(7));
        assert_ne!(tosses(7), tosses(8));
    }

    #[test]
    fn a_directory_that_is_not_there_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none");
        assert!(matches!(Room::new(&none), Err(BenchError::Io { .. })));
        assert!(!none.exists());
    }

    #[test]
    fn the_median_is_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
    }
}
