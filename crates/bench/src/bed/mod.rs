//! Linux beds: an emulated disk as a block device, and what is mounted on it for a side: ext4 under one of the kernel's
//! schedulers, with or without Sluicegate over it.

mod cluster;
mod run;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;
use sluice_notation::parse_bytes;

pub(crate) use cluster::{Cluster, ClusterArgs};
pub(crate) use run::{Runner, check_fio, fio_command};

/// How long a file system may be busy with what has just left it.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// At a random time in the first five seconds ext4 would read the bitmaps of all block groups, a third of a second in which the programs
/// have next to nothing: with some sides in what is measured, and with others before.
const MOUNT: &str = "no_prefetch_block_bitmaps";

/// What is compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Side {
    /// The kernel's scheduler.
    pub(crate) scheduler: String,
    /// Sluicegate's algorithm over it, if any; followed by [`Side::OFF`], it does without anticipation.
    pub(crate) policy: Option<String>,
}

impl Side {
    pub(crate) const OFF: &'static str = "/off";
    /// In place of an algorithm: none is named, so one is chosen. What is learned stays until [`Bed::forget`].
    pub(crate) const ADAPTIVE: &'static str = "adaptive";

    pub(crate) fn name(&self) -> String {
        match (&self.policy, self.scheduler.as_str()) {
            (None, scheduler) => scheduler.to_owned(),
            (Some(policy), "none") => policy.clone(),
            (Some(policy), scheduler) => format!("{policy} on {scheduler}"),
        }
    }
}

/// The disk that is measured on, as one says it on the command line.
#[derive(clap::Args, Debug)]
pub(crate) struct Disk {
    /// The emulated device that real programs run on
    #[arg(long, value_name = "MODEL", default_value = "hdd-7200")]
    pub(crate) model: String,
    /// Its size
    #[arg(long, value_name = "BYTES", default_value = "100G")]
    pub(crate) size: String,
    /// Where its image is to be; must be faster than the device [default: that of sluice disk]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The program sluice [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) sluice: Option<PathBuf>,
}

impl Disk {
    /// `emulated hdd-7200, 100G, ext4`.
    pub(crate) fn title(&self) -> String {
        format!("emulated {}, {}, ext4", self.model, self.size)
    }

    /// # Errors
    /// If its size is none.
    pub(crate) fn bytes(&self) -> anyhow::Result<u64> {
        let expected = "expected bytes from 1M to what the model holds, like 100G";
        parse_bytes(&self.size).with_context(|| format!("--size {}: cannot be used; {expected}", self.size))
    }

    /// It has an arm to move.
    ///
    /// # Errors
    /// If there is no such model.
    pub(crate) fn rotates(&self) -> anyhow::Result<bool> {
        Ok(sluice_device::model(&self.model, 1).context("--model")?.rotates())
    }

    /// See [`program`].
    pub(crate) fn program(&self) -> anyhow::Result<PathBuf> {
        program(self.sluice.as_deref())
    }
}

/// The program `sluice`, which makes disks and mounts: the one given, or the one beside this program.
///
/// # Errors
/// If there is none.
pub(crate) fn program(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("sluice"));
    let path = given.map(Path::to_owned).or_else(beside).context("finding the program sluice; say --sluice FILE")?;
    if !path.is_file() {
        let build = "cargo build --release -p sluice-bench -p sluice-cli";
        bail!("{} is no program; build both ({build}), or say --sluice FILE", path.display());
    }
    // Without a directory it would be looked for in PATH.
    std::path::absolute(&path).with_context(|| path.display().to_string())
}

/// An emulated disk of this program's own. Goes away with it.
pub(crate) struct Bed {
    runner: Runner,
    sluice: PathBuf,
    name: String,
    /// Where things are mounted, configurations and logs.
    room: tempfile::TempDir,
    device: PathBuf,
    queue: PathBuf,
    /// Requests that the disk takes at a time.
    depth: u64,
    /// There may be a disk.
    made: bool,
    /// Windows of mounts that choose, in milliseconds, if not the usual ones.
    pub(crate) window_ms: Option<u64>,
    /// Who chooses there, if not who usually does.
    pub(crate) selector: Option<String>,
}

impl Bed {
    /// Makes the disk, whose name begins with `purpose`.
    ///
    /// # Errors
    /// What `sluice disk` says.
    pub(crate) fn new(runner: &Runner, purpose: &str, disk: &Disk) -> anyhow::Result<Bed> {
        let sluice = disk.program()?;
        let room = tempfile::Builder::new()
            .prefix(&format!("sluice-{purpose}-"))
            .tempdir()
            .context("a temporary directory")?;
        for name in ["disk", "mount"] {
            fs::create_dir(room.path().join(name))?;
        }
        let mut bed = Bed {
            runner: runner.clone(),
            sluice: sluice.clone(),
            name: format!("{purpose}-{}", std::process::id()),
            room,
            device: PathBuf::new(),
            queue: PathBuf::new(),
            depth: 0,
            made: false,
            window_ms: None,
            selector: None,
        };
        let mut command = Command::new(&sluice);
        command.args(["disk", "create", &bed.name, "--model", &disk.model, "--size", &disk.size]);
        command.args(["--scheduler", "none", "--mkfs", "ext4"]);
        if let Some(dir) = &disk.dir {
            command.arg("--dir").arg(dir);
        }
        // It takes back what it made if it fails. If this is interrupted, it is removed as always.
        let created = runner.finish(&mut command, false).context("the emulated disk");
        bed.made = created.is_ok() || runner.stop.load(Ordering::Relaxed);
        created?;
        let list = runner.finish(Command::new(&sluice).args(["disk", "list", "--json"]), false)?;
        let list: Value = serde_json::from_str(&list.out).context("sluice disk list")?;
        let found = list.as_array().into_iter().flatten().find(|disk| disk["name"] == bed.name.as_str());
        let device =
            found.and_then(|disk| disk["device"].as_str()).context("sluice disk list: the disk is not in it")?;
        bed.device = device.into();
        let number = bed.device.file_name().context("a device without a name")?;
        bed.queue = Path::new("/sys/block").join(number).join("queue");
        // While it has no scheduler this is what the disk takes.
        let depth = bed.queue.join("nr_requests");
        let text = fs::read_to_string(&depth).with_context(|| depth.display().to_string())?;
        bed.depth = text.trim().parse().with_context(|| format!("{}: {text:?}", depth.display()))?;
        Ok(bed)
    }

    /// The device's directory in sysfs.
    pub(crate) fn sysfs(&self) -> PathBuf {
        self.queue.with_file_name("")
    }

    fn disk(&self) -> PathBuf {
        self.room.path().join("disk")
    }

    fn mount_point(&self) -> PathBuf {
        self.room.path().join("mount")
    }

    /// Sets everything up for a side: the directory to work in. Nothing of the disk is in memory then, for unmounting drops
    /// the caches of a file system and, as its last user leaves, of a device; below that all I/O is direct. Dropping those of
    /// the whole machine would only make it slow to start the programs. `settings` are lines of a mount's configuration, which
    /// begin in its section `mount`.
    ///
    /// # Errors
    /// What cannot be mounted or unmounted.
    pub(crate) fn switch(&self, side: &Side, settings: &[&str]) -> anyhow::Result<PathBuf> {
        self.leave()?;
        self.set_scheduler(&side.scheduler)?;
        self.runner.run(Command::new("mount").args(["-t", "ext4", "-o", MOUNT]).arg(&self.device).arg(self.disk()))?;
        let Some(policy) = &side.policy else { return Ok(self.disk()) };
        let scheduler = match policy.strip_suffix(Side::OFF) {
            Some(policy) => format!("policy = {policy:?}\nanticipation = \"off\""),
            None if policy == Side::ADAPTIVE => {
                let window = self.window_ms.map_or_else(String::new, |ms| format!("\nwindow = \"{ms}ms\""));
                let selector = self.selector.as_ref().map_or_else(String::new, |who| format!("\nselector = {who:?}"));
                format!("learned = {:?}\ndecisions = {:?}{window}{selector}", self.learned(), self.decisions())
            }
            None => format!("policy = {policy:?}"),
        };
        let text = format!(
            "[mount]\nsource = {:?}\nmountpoint = {:?}\n{}\n[scheduler]\n{scheduler}\n[log]\nfile = {:?}\n",
            self.disk(),
            self.mount_point(),
            settings.join("\n"),
            self.room.path().join("log")
        );
        let config = self.room.path().join("config.toml");
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let mut command = Command::new(&self.sluice);
        self.runner.finish(command.args(["mount", "--daemon", "--config"]).arg(&config), false)?;
        Ok(self.mount_point())
    }

    fn learned(&self) -> PathBuf {
        self.room.path().join("learned")
    }

    /// The log of what was decided.
    pub(crate) fn decisions(&self) -> PathBuf {
        self.room.path().join("decisions.jsonl")
    }

    /// The next mount that chooses knows nothing.
    ///
    /// # Errors
    /// If what was learned cannot be removed.
    pub(crate) fn forget(&self) -> anyhow::Result<()> {
        self.leave()?;
        for path in [self.learned(), self.decisions()] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).context(path.display().to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What the mount that chooses says of itself.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn explanation(&self) -> anyhow::Result<Value> {
        let mut command = Command::new(&self.sluice);
        let said =
            self.runner.finish(command.args(["status", "--explain", "--json"]).arg(self.mount_point()), false)?;
        serde_json::from_str(&said.out).context("sluice status --explain")
    }

    /// The kernel's scheduler of the disk, which loads a module for it if need be. `bfq` is told to work for throughput: with
    /// `low_latency` it favours programs that have just begun, and while there is one it idles for nobody. That lasts for longer than
    /// what is run here: two streams had 15 MB/s, and 116 without. So many requests wait as with `sluice disk create --scheduler`: twice
    /// what the disk takes, the kernel's rule for drives; left alone it would go by the 128 of loop devices.
    ///
    /// # Errors
    /// If the kernel has none of that name.
    pub(crate) fn set_scheduler(&self, name: &str) -> anyhow::Result<()> {
        let path = self.queue.join("scheduler");
        // It says "[none] mq-deadline kyber bfq".
        let set = fs::write(&path, name).and_then(|()| fs::read_to_string(&path));
        let now = set.with_context(|| format!("{}: this kernel has no scheduler {name}", path.display()))?;
        if now.trim() != name && !now.contains(&format!("[{name}]")) {
            bail!("{}: is {}, and not {name} as it was told to be", path.display(), now.trim());
        }
        if name != "none" {
            let path = self.queue.join("nr_requests");
            fs::write(&path, (2 * self.depth).to_string()).with_context(|| path.display().to_string())?;
        }
        if name == "bfq" {
            let path = self.queue.join("iosched/low_latency");
            fs::write(&path, "0").with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Unmounts everything.
    ///
    /// # Errors
    /// If something stays busy.
    pub(crate) fn leave(&self) -> anyhow::Result<()> {
        self.unmount(&self.mount_point())?;
        self.unmount(&self.disk())
    }

    fn unmount(&self, path: &Path) -> anyhow::Result<()> {
        unmount(&self.runner, path)
    }
}

/// Unmounts whatever is mounted there.
///
/// # Errors
/// If it stays busy.
pub(crate) fn unmount(runner: &Runner, path: &Path) -> anyhow::Result<()> {
    let begin = Instant::now();
    while sluice_storage::mounts::is_mount_point(path) {
        match runner.finish(Command::new("umount").arg(path), false) {
            // Those who had files open there may not have left yet.
            Err(_) if begin.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            result => result.map(|_| ())?,
        }
    }
    Ok(())
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            sluice_cli::output::tell(format_args!("{error:#}"));
        }
        if !self.made {
            return;
        }
        let mut command = Command::new(&self.sluice);
        if let Err(error) = self.runner.finish(command.args(["disk", "remove", "--force", &self.name]), false) {
            sluice_cli::output::tell(format_args!("{error:#}\nthe disk stays; try: sluice disk remove {}", self.name));
        }
    }
}
