//! Real runs: emulated disks with ext4, mounts of Sluicegate and servers on them, and the load.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{FallocateFlags, fallocate};
use sluice_sim::scenario::Scenario;

use super::load::{self, Aligned, Files};
use super::model::{CLIENTS, DIRTY_BYTES, LINK_BITS_PER_S, OWN_BYTES, OWN_FILES, READ_AHEAD, SHARED_BYTES, STRIPE};
use super::network::{Network, enter};
use super::server::{self, Connections, Place, Servers};
use super::situations::{Host, Situation};
use crate::bed::{Bed, Disk, Runner, Side};

/// Most servers of a situation.
const SERVERS: u32 = 4;
/// Size of each disk.
const DISK_SIZE: &str = "20G";
/// How files are written when they are laid out.
const CHUNK: usize = 1 << 20;

/// What real runs need.
pub(super) struct Real {
    // In the order in which they go away.
    tunings: Vec<Tuning>,
    network: Option<Network>,
    disks: Vec<Bed>,
    stop: Arc<AtomicBool>,
}

/// Where to make it.
pub(super) struct Where<'a> {
    pub(super) sluice: &'a Path,
    pub(super) model: &'a str,
    pub(super) dir: Option<&'a Path>,
}

impl Real {
    /// Makes the disks and the network that these situations need, and lays out the files.
    ///
    /// # Errors
    /// What cannot be made; nothing is left then.
    pub(super) fn new(runner: &Runner, at: &Where<'_>, situations: &[Situation]) -> anyhow::Result<Real> {
        let mut real = Real { tunings: Vec::new(), network: None, disks: Vec::new(), stop: runner.stop.clone() };
        let striped = situations.iter().any(|one| one.servers > 1);
        for disk in 0..if striped { SERVERS } else { 1 } {
            runner.go_on()?;
            let device = Disk {
                model: at.model.to_owned(),
                size: DISK_SIZE.to_owned(),
                dir: at.dir.map(Path::to_owned),
                sluice: Some(at.sluice.to_owned()),
            };
            let bed = Bed::new(runner, &format!("fidelity{disk}"), &device)?;
            real.disks.push(bed);
            real.tunings.push(Tuning::new(&real.disks[disk as usize].sysfs())?);
        }
        if situations.iter().any(|one| one.host == Host::Tcp) {
            real.network = Some(Network::new(runner, SERVERS + CLIENTS, LINK_BITS_PER_S)?);
        }
        real.lay(runner, situations)?;
        Ok(real)
    }

    fn lay(&self, runner: &Runner, situations: &[Situation]) -> anyhow::Result<()> {
        let of_one = |own: bool| situations.iter().any(|one| one.servers == 1 && (one.pattern == "own") == own);
        let mut files: Vec<(usize, String, u64)> = Vec::new();
        if of_one(false) {
            files.push((0, load::file_name(false, 0), SHARED_BYTES));
        }
        if of_one(true) {
            files.extend((0..OWN_FILES).map(|number| (0, load::file_name(true, number as u32), OWN_BYTES)));
        }
        if self.disks.len() > 1 {
            let part = |disk| (disk, server::file_name(SERVERS).to_owned(), server::file_bytes(SERVERS));
            files.extend((0..self.disks.len()).map(part));
        }
        let none = Side { scheduler: "none".to_owned(), policy: None };
        let lay_disk = |(number, bed): (usize, &Bed)| -> anyhow::Result<()> {
            let dir = bed.switch(&none, &[])?;
            let own = || files.iter().filter(|(disk, ..)| *disk == number);
            // Each in one piece, before anything is written.
            for (_, name, bytes) in own() {
                reserve(&dir.join(name), *bytes)?;
            }
            own().try_for_each(|(_, name, bytes)| fill(runner, &dir.join(name), *bytes))?;
            bed.leave()
        };
        std::thread::scope(|scope| {
            let disks = self.disks.iter().enumerate().map(|disk| scope.spawn(move || lay_disk(disk)));
            let disks: Vec<_> = disks.collect();
            disks.into_iter().try_for_each(|disk| match disk.join() {
                Ok(result) => result,
                Err(_) => bail!("a thread that lays out files panicked"),
            })
        })
    }

    /// Runs a side of a situation with nothing in memory before; bytes per second.
    ///
    /// # Errors
    /// If anything fails, or it was told to stop.
    pub(super) fn run(
        &self,
        situation: &Situation,
        side: &str,
        scenario: &Scenario,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let own = situation.pattern == "own";
        let on_files = |dir: &Path| {
            let target = |rank| {
                let mut files = Files::new(dir, situation.direct, own);
                files.prepare(if own { rank } else { 0 })?;
                Ok(files)
            };
            load::run(scenario, time, &self.stop, target)
        };
        let none = || "none".to_owned();
        let result = match situation.host {
            Host::Ext4 => {
                let side = Side { scheduler: side.to_owned(), policy: None };
                on_files(&self.disks[0].switch(&side, &[])?)
            }
            Host::Mount => {
                let side = Side { scheduler: none(), policy: Some(side.to_owned()) };
                on_files(&self.disks[0].switch(&side, mount_settings(situation.direct))?)
            }
            Host::Tcp => self.over_tcp(situation, side, scenario, time),
        };
        self.disks.iter().try_for_each(Bed::leave)?;
        result
    }

    fn over_tcp(
        &self,
        situation: &Situation,
        policy: &str,
        scenario: &Scenario,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let network = self.network.as_ref().context("a network")?;
        let none = Side { scheduler: "none".to_owned(), policy: None };
        let place = |(bed, machine): (&Bed, u32)| -> anyhow::Result<Place> {
            Ok(Place { dir: bed.switch(&none, &[])?, namespace: network.namespace(machine) })
        };
        let disks = self.disks.iter().take(situation.servers as usize);
        let places: Vec<Place> = disks.zip(0..).map(place).collect::<anyhow::Result<_>>()?;
        let file = server::file_name(situation.servers);
        let servers = Servers::start(&places, file, policy, situation.direct, &self.stop)?;
        // As the simulator spreads processes over machines.
        let machines = scenario.clients.nodes;
        let target = |rank: u32| {
            let machine = u64::from(rank) * u64::from(machines) / u64::from(situation.processes);
            enter(&network.namespace(SERVERS + machine as u32))?;
            Connections::new(situation.servers, STRIPE)
        };
        let result = load::run(scenario, time, &self.stop, target);
        drop(servers);
        result
    }
}

/// Lines of a mount's configuration. Without a cache of the mount's own, requests reach the scheduler as they are, which is
/// what is simulated; below it the page cache of ext4 is used, or not.
fn mount_settings(direct: bool) -> &'static [&'static str] {
    if direct {
        &["cache = \"none\"", "[volume]", "direct = true", "[device]", "kind = \"disk\""]
    } else {
        &["cache = \"none\"", "[volume]", "direct = false", "[device]", "kind = \"disk\""]
    }
}

fn reserve(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let file = File::options().write(true).create_new(true).open(path).with_context(|| path.display().to_string())?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes)
        .with_context(|| format!("{}: {bytes} bytes of the emulated disk", path.display()))
}

/// Writes all of it: what was never written would be read without the disk.
fn fill(runner: &Runner, path: &Path, bytes: u64) -> anyhow::Result<()> {
    let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(path);
    let file = file.with_context(|| path.display().to_string())?;
    let mut memory = Aligned::new(CHUNK);
    for offset in (0..bytes).step_by(CHUNK) {
        runner.go_on()?;
        let len = (bytes - offset).min(CHUNK as u64) as usize;
        file.write_all_at(memory.bytes(len), offset).with_context(|| path.display().to_string())?;
    }
    file.sync_all().with_context(|| path.display().to_string())
}

/// How the kernel treats a device while this is there: how far it reads ahead, and how much may be dirty, so that buffered writes
/// reach the device within a run.
struct Tuning {
    /// Files, and what was in them.
    before: Vec<(PathBuf, String)>,
}

impl Tuning {
    /// # Errors
    /// If the kernel has no such bound (before Linux 6.2).
    fn new(sysfs: &Path) -> anyhow::Result<Tuning> {
        let mut tuning = Tuning { before: Vec::new() };
        // `max_bytes` sets the ratio, which is what can be put back exactly.
        for (name, kept, value) in [
            ("queue/read_ahead_kb", "queue/read_ahead_kb", READ_AHEAD >> 10),
            ("bdi/max_bytes", "bdi/max_ratio", DIRTY_BYTES),
            ("bdi/strict_limit", "bdi/strict_limit", 1),
        ] {
            let (path, kept) = (sysfs.join(name), sysfs.join(kept));
            let before = fs::read_to_string(&kept).with_context(|| kept.display().to_string())?;
            tuning.before.push((kept, before.trim().to_owned()));
            fs::write(&path, value.to_string())
                .with_context(|| format!("{}: needs Linux 6.2 or later", path.display()))?;
        }
        Ok(tuning)
    }
}

impl Drop for Tuning {
    fn drop(&mut self) {
        for (path, value) in &self.before {
            if let Err(error) = fs::write(path, value) {
                sluice_cli::output::tell(format_args!("{}: stays as it is: {error}", path.display()));
            }
        }
    }
}
