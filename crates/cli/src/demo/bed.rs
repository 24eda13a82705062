//! The volume that the demo works on: striped over directories, behind emulated disks, mounted if possible.

use super::pattern::{PROCESSES, Pattern, fill, mismatch};
use super::worker::{self, Process, Task};
use crate::config::{self, Settings};
use anyhow::{Context, bail};
use sluice_adapt::selector::Device;
use sluice_core::{Anticipation, AppId, EngineConfig, PolicyConfig};
use sluice_fuse::{CacheMode, MountHandle, MountOptions};
use sluice_runtime::{Engines, Volume, VolumeConfig, VolumeSnapshot};
use sluice_select::{Ground, Selection};
use sluice_storage::striped::{FirstTarget, StripedOptions, StripedStorage};
use sluice_storage::{Creator, FileRef, Storage, emulated::Emulated};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// Emulated disks.
pub(super) const DISKS: u32 = 4;
/// Their model.
pub(super) const MODEL: &str = "hdd-7200";
/// Stripe size in bytes.
pub(super) const STRIPE: u64 = 64 << 10;
/// Length of the windows by which is chosen, in nanoseconds: shorter than a mount's, as the runs are short.
const WINDOW_NS: u64 = 100_000_000;
/// Bytes prepared and checked at a time.
const CHUNK: usize = 1 << 20;

enum Front {
    /// Mounted, used by processes.
    Mounted(MountHandle, Vec<Process>),
    /// Used by threads of this process.
    Direct(Arc<Volume<()>>),
}

/// Directories, disks, volume and processes; all gone when dropped.
pub(super) struct Bed {
    // In the order in which they go.
    front: Front,
    /// The same files without the disks, for preparing and checking.
    plain: Volume<()>,
    storage: Storage,
    disks: Arc<Emulated>,
    /// The scheduler's settings when nobody chooses.
    engine: EngineConfig,
    /// For who chooses.
    anticipation: Option<Anticipation>,
    dir: tempfile::TempDir,
}

/// What a run took.
pub(super) struct Outcome {
    pub(super) makespan_s: f64,
    pub(super) latencies_ns: Vec<u64>,
    pub(super) batches: u64,
    pub(super) requests: u64,
}

impl Bed {
    /// Makes everything. `mounted`: through FUSE, else directly. `shared`: one engine over all disks, as algorithms that coordinate
    /// servers have on a mount, else one for each.
    pub(super) fn make(mounted: bool, shared: bool, in_flight: u32, seed: u64) -> anyhow::Result<Bed> {
        let dir =
            tempfile::Builder::new().prefix("sluice-demo-").tempdir().context("cannot make a temporary directory")?;
        let disks: Vec<PathBuf> = (0..DISKS).map(|disk| dir.path().join(format!("disk{disk}"))).collect();
        disks.iter().try_for_each(std::fs::create_dir)?;
        // The same place for every algorithm's files.
        let options = StripedOptions { stripe: Some(STRIPE), first: Some(FirstTarget::Zero), direct: false };
        let plain: Storage = StripedStorage::create_or_open(&disks, options)?.into();
        let emulated = Arc::new(Emulated::new(plain.data.clone(), MODEL, seed)?);
        let storage = Storage { namespace: plain.namespace.clone(), data: emulated.clone() };
        let engines = if shared { Engines::Shared } else { Engines::PerTarget };
        let mut config = VolumeConfig { engines, ..VolumeConfig::default() };
        // As a mount over such disks has it: for who chooses. Here, with anticipation, fixed algorithms would be slower in each pattern.
        let as_mounted = Settings { emulate: Some(MODEL.to_owned()), seed, ..Settings::default() };
        let anticipation = as_mounted.volume_config(DISKS, true)?.engine.anticipation;
        let in_flight_max = if shared { in_flight.saturating_mul(DISKS) } else { in_flight };
        config.engine = EngineConfig { in_flight_max, window_ns: WINDOW_NS, ..config.engine };
        let engine = config.engine.clone();
        let front = if mounted {
            let mountpoint = dir.path().join("mnt");
            std::fs::create_dir(&mountpoint)?;
            let options = MountOptions { cache: CacheMode::None, sources: disks, ..MountOptions::default() };
            let mount = sluice_fuse::mount(storage.clone(), &mountpoint, options, config)?;
            let processes = (0..PROCESSES).map(|p| Process::start(p, &mountpoint)).collect::<anyhow::Result<_>>()?;
            Front::Mounted(mount, processes)
        } else {
            Front::Direct(Arc::new(Volume::start(storage.clone(), Arc::new(()), config)?))
        };
        let plain = Volume::start(plain, Arc::new(()), VolumeConfig::default())?;
        Ok(Bed { front, plain, storage, disks: emulated, engine, anticipation, dir })
    }

    pub(super) fn set_policy(&self, policy: &PolicyConfig) {
        match &self.front {
            Front::Mounted(mount, _) => mount.volume().set_policy(policy),
            Front::Direct(volume) => volume.set_policy(policy),
        }
    }

    /// Lets a selector choose until it is dropped; it knows what those before it have learned here. [`Bed::stay`] comes after it.
    /// `log`: where decisions are logged.
    pub(super) fn choose(&self, log: Option<PathBuf>) -> anyhow::Result<Selection> {
        match &self.front {
            Front::Mounted(mount, _) => self.choose_for(mount.volume(), log),
            Front::Direct(volume) => self.choose_for(volume, log),
        }
    }

    fn choose_for(&self, volume: &Arc<impl Ground>, log: Option<PathBuf>) -> anyhow::Result<Selection> {
        volume.set_limits(&EngineConfig { anticipation: self.anticipation, ..self.engine.clone() })?;
        let options = sluice_select::Options {
            state: Some(self.dir.path().join("learned")),
            log,
            emulated: true,
            likeliest_first: true,
            ..config::selection(config::DEFAULT_SELECTOR, Device::Disk)
        };
        Selection::start(volume, options)?.context("a mount's default is to have somebody choose")
    }

    /// Nobody chooses any more.
    pub(super) fn stay(&self) -> anyhow::Result<()> {
        match &self.front {
            Front::Mounted(mount, _) => mount.volume().set_limits(&self.engine)?,
            Front::Direct(volume) => volume.set_limits(&self.engine)?,
        }
        Ok(())
    }

    fn snapshot(&self) -> VolumeSnapshot {
        match &self.front {
            Front::Mounted(mount, _) => mount.volume().snapshot(),
            Front::Direct(volume) => volume.snapshot(),
        }
    }

    /// Makes the files of a pattern, at the speed of the real directories.
    pub(super) fn prepare(&self, pattern: Pattern, scale: u64) -> anyhow::Result<()> {
        let plain = self.plain.storage();
        let tree = &plain.namespace;
        let mut buffer = vec![0; CHUNK];
        for (name, size) in pattern.files(scale) {
            let name_os = OsStr::new(&name);
            let file = match tree.lookup(&tree.root(), name_os) {
                Ok(node) => tree.open(&node, libc::O_RDWR)?,
                Err(_) => tree.create(&tree.root(), name_os, 0o666, libc::O_RDWR, &Creator::process())?.1,
            };
            for (offset, len) in chunks(size) {
                fill(&mut buffer[..len], &name, offset, 0);
                self.plain.write_at(&file, AppId(0), offset, &buffer[..len])?;
            }
        }
        Ok(())
    }

    /// Has the disks write what they hold in their caches and forget the rest: a run is to pay for nothing that was before it, and
    /// to gain nothing by it.
    pub(super) fn settle(&self) {
        self.disks.settle();
    }

    /// Lets all processes do the task, and checks what they have written.
    pub(super) fn run(&mut self, task: Task) -> anyhow::Result<Outcome> {
        let before = self.snapshot().runtime.total.total();
        let (makespan_s, latencies_ns) = match &mut self.front {
            Front::Mounted(_, processes) => run_processes(processes, task)?,
            Front::Direct(volume) => run_directly(volume, &self.storage, task)?,
        };
        let after = self.snapshot().runtime.total.total();
        self.check(task)?;
        Ok(Outcome {
            makespan_s,
            latencies_ns,
            batches: after.batches - before.batches,
            requests: after.batched_requests - before.batched_requests,
        })
    }

    fn check(&self, task: Task) -> anyhow::Result<()> {
        let mut buffer = vec![0; CHUNK];
        for process in (0..PROCESSES).filter(|&p| task.pattern.writes(p)) {
            let mut names: Vec<_> = (0..super::pattern::THREADS).map(|t| task.pattern.file(process, t)).collect();
            names.dedup();
            for (name, size) in task.pattern.files(task.scale).into_iter().filter(|(name, _)| names.contains(name)) {
                let file = open(self.plain.storage(), &name, libc::O_RDONLY)?;
                for (offset, len) in chunks(size) {
                    let read = self.plain.read_at(&file, AppId(0), offset, &mut buffer[..len])?;
                    let wrong = mismatch(&buffer[..len], &name, offset, task.writing);
                    if read != len || wrong.is_some() {
                        bail!("{name}: not what was written, at byte {}", wrong.unwrap_or(offset + read as u64));
                    }
                }
            }
        }
        Ok(())
    }
}

fn chunks(size: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..size).step_by(CHUNK).map(move |at| (at, (size - at).min(CHUNK as u64) as usize))
}

fn open(storage: &Storage, name: &str, flags: i32) -> anyhow::Result<FileRef> {
    let tree = &storage.namespace;
    let node = tree.lookup(&tree.root(), OsStr::new(name)).with_context(|| format!("looking up {name}"))?;
    tree.open(&node, flags).with_context(|| format!("opening {name}"))
}

fn run_processes(processes: &mut [Process], task: Task) -> anyhow::Result<(f64, Vec<u64>)> {
    processes.iter_mut().try_for_each(|process| process.prepare(task))?;
    let start = Instant::now();
    processes.iter_mut().try_for_each(Process::go)?;
    let mut latencies = Vec::new();
    for process in processes {
        latencies.extend(process.report()?);
    }
    Ok((start.elapsed().as_secs_f64(), latencies))
}

/// The volume's files for threads of this process.
struct Files<'a> {
    volume: &'a Volume<()>,
    files: HashMap<String, FileRef>,
}

impl worker::Access for Files<'_> {
    fn read(&self, file: &str, process: u32, offset: u64, buffer: &mut [u8]) -> anyhow::Result<()> {
        let read = self.volume.read_at(&self.files[file], AppId(process), offset, buffer)?;
        if read == buffer.len() { Ok(()) } else { bail!("{file}: ends at byte {}", offset + read as u64) }
    }

    fn write(&self, file: &str, process: u32, offset: u64, data: &[u8]) -> anyhow::Result<()> {
        let written = self.volume.write_at(&self.files[file], AppId(process), offset, data)?;
        if written == data.len() { Ok(()) } else { bail!("{file}: short write at byte {offset}") }
    }
}

fn run_directly(volume: &Volume<()>, storage: &Storage, task: Task) -> anyhow::Result<(f64, Vec<u64>)> {
    let names = task.pattern.files(task.scale).into_iter().map(|(name, _)| name);
    let files = names.map(|name| Ok((name.clone(), open(storage, &name, libc::O_RDWR)?)));
    let files = Files { volume, files: files.collect::<anyhow::Result<_>>()? };
    let together = Barrier::new(PROCESSES as usize + 1);
    std::thread::scope(|scope| {
        let groups: Vec<_> = (0..PROCESSES)
            .map(|process| {
                let (files, together) = (&files, &together);
                scope.spawn(move || {
                    together.wait();
                    worker::run_threads(files, process, task)
                })
            })
            .collect();
        together.wait();
        let start = Instant::now();
        let mut latencies = Vec::new();
        for group in groups {
            latencies.extend(group.join().expect("a worker does not panic")?);
        }
        Ok((start.elapsed().as_secs_f64(), latencies))
    })
}
