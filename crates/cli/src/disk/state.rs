//! State files: what a disk is to be, and how far it got.
//!
//! `NAME.json` is replaced as a whole (written beside, synced, renamed), by whoever holds the lock on `NAME.lock`. The lock is
//! the kernel's (`flock`), so it ends with the process that holds it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::queue;
use crate::control;

/// Overrides where the state files, and unless `--dir` says otherwise the images, are.
const DIR_VARIABLE: &str = "SLUICE_DISK_DIR";
const DIR: &str = "/var/lib/sluice/disks";
/// Of the format of state files.
const VERSION: u32 = 1;
/// How long a lock is tried to get.
const PATIENCE: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(5);

/// How far a disk got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Some of it may be there.
    Creating,
    /// All of it is there, unless something died.
    Ready,
    /// It was there, and is being brought back.
    Starting,
    /// Some of it may be gone.
    Removing,
}

impl Phase {
    /// It was whole once, so that it can be brought back.
    pub(super) fn was_ready(self) -> bool {
        matches!(self, Phase::Ready | Phase::Starting)
    }
}

/// What a state file says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Disk {
    pub(super) version: u32,
    pub(super) name: String,
    pub(super) emulated: bool,
    pub(super) phase: Phase,
    /// A shipped model's name or an absolute path; empty if nothing is emulated.
    pub(super) model: String,
    pub(super) rotates: bool,
    pub(super) size_bytes: u64,
    /// Emulated drives behind the device: RAID-0 if several.
    pub(super) drives: u32,
    /// Bytes on one drive before the next one's turn.
    pub(super) stripe_bytes: Option<u64>,
    /// Requests at the device at a time.
    pub(super) queue_depth: u32,
    pub(super) scheduler: String,
    pub(super) filesystem: Option<String>,
    pub(super) mount_point: Option<PathBuf>,
    /// The mount point was not there before.
    pub(super) made_mount_point: bool,
    /// Everything of the disk but this file; absolute.
    pub(super) dir: PathBuf,
    /// How the loop device's queue was before it was this disk's.
    pub(super) queue_before: Option<queue::Settings>,
    /// The real disk, file or device, that is not emulated.
    #[serde(default)]
    pub(super) disk: Option<PathBuf>,
    /// The SSD before it.
    #[serde(default)]
    pub(super) tier: Option<Tier>,
}

/// An SSD before a disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Tier {
    /// Absolute.
    pub(super) ssd: PathBuf,
    /// It is a file that was not there before.
    pub(super) made: bool,
    /// It is divided for this disk, and may have what the disk has not.
    pub(super) ready: bool,
    pub(super) size_bytes: u64,
    /// `KEY=VALUE`.
    pub(super) settings: Vec<String>,
}

impl Disk {
    /// A disk of which nothing is there yet, with one drive of this model and no file system.
    pub(super) fn new(name: &str, model: String, size_bytes: u64, dir: PathBuf) -> Disk {
        Disk {
            version: VERSION,
            name: name.to_owned(),
            emulated: true,
            phase: Phase::Creating,
            model,
            rotates: false,
            size_bytes,
            drives: 1,
            stripe_bytes: None,
            queue_depth: 1,
            scheduler: queue::NONE.to_owned(),
            filesystem: None,
            mount_point: None,
            made_mount_point: false,
            dir,
            queue_before: None,
            disk: None,
            tier: None,
        }
    }

    /// The directories that hold the bytes, one for each drive.
    pub(super) fn targets(&self) -> Vec<PathBuf> {
        (0..self.drives).map(|drive| self.dir.join(format!("drive{drive}"))).collect()
    }

    /// Where the emulation is mounted.
    pub(super) fn emulation(&self) -> PathBuf {
        self.dir.join("emulation")
    }

    /// The image's name, which is no other file's: the loop device is found by it.
    pub(super) fn image_name(&self) -> String {
        format!("{}.img", control::key(&self.dir))
    }

    pub(super) fn image(&self) -> PathBuf {
        self.emulation().join(self.image_name())
    }

    /// What the tier is before: the real disk, or the image of the emulated one.
    pub(super) fn below(&self) -> PathBuf {
        self.disk.clone().unwrap_or_else(|| self.dir.join("drive0").join(self.image_name()))
    }

    /// How the emulation is mounted.
    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("mount.toml")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// For people: `emulated hdd-7200`, `4 x emulated hdd-7200`, `/dev/sdb with a tier on /ssd/data.tier`.
    pub(super) fn describe(&self) -> String {
        let what = match &self.disk {
            Some(disk) => disk.display().to_string(),
            None => format!("emulated {}", self.model),
        };
        match &self.tier {
            Some(tier) => format!("{what} with a tier on {}", tier.ssd.display()),
            None if self.drives > 1 => format!("{} x {what}", self.drives),
            None => what,
        }
    }
}

/// The directory of state files.
pub(super) struct Store(PathBuf);

impl Store {
    /// The directory that this user's disks are noted in; need not be there.
    ///
    /// # Errors
    /// If its path cannot be made absolute.
    pub(super) fn open() -> anyhow::Result<Store> {
        let given = std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty());
        let dir = given.map_or_else(|| DIR.into(), PathBuf::from);
        let dir = dir.canonicalize().or_else(|_| std::path::absolute(&dir));
        dir.map(Store).context(DIR_VARIABLE)
    }

    #[cfg(test)]
    pub(super) fn at(dir: PathBuf) -> Store {
        Store(dir)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the directory, for nobody but its owner.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn make(&self) -> anyhow::Result<()> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.with_context(|| format!("the directory {} for the state of disks", self.0.display()))
    }

    fn file(&self, name: &str, extension: &str) -> PathBuf {
        self.0.join(format!("{name}.{extension}"))
    }

    /// The names of all disks, sorted.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(super) fn names(&self) -> anyhow::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| self.0.display().to_string())?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.with_context(|| self.0.display().to_string())?.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(".json"));
            names.extend(name.filter(|name| check_name(name).is_ok()).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// What is known of a disk; `None` if there is none of that name.
    ///
    /// # Errors
    /// If its file cannot be read or understood.
    pub(super) fn load(&self, name: &str) -> anyhow::Result<Option<Disk>> {
        let path = self.file(name, "json");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("the state file {}", path.display()))?,
        };
        let damaged = || format!("the state file {} is not understood", path.display());
        let disk: Disk = serde_json::from_str(&text).with_context(damaged)?;
        if disk.version != VERSION || disk.name != name {
            bail!("{}: it is of version {} and of the disk {:?}", damaged(), disk.version, disk.name);
        }
        Ok(Some(disk))
    }

    /// Whether somebody is at work on the disk.
    pub(super) fn is_busy(&self, name: &str) -> bool {
        let Ok(file) = File::open(self.file(name, "lock")) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// Takes the lock of a disk, which need not exist.
    ///
    /// # Errors
    /// If another process has it.
    pub(super) fn lock(&self, name: &str) -> anyhow::Result<Locked<'_>> {
        let (path, until) = (self.file(name, "lock"), Instant::now() + PATIENCE);
        loop {
            let open = OpenOptions::new().create(true).write(true).truncate(false).open(&path);
            let file = open.with_context(|| path.display().to_string())?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                // Who only looks (`is_busy`) has it for a moment.
                if Instant::now() < until {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                bail!("{name}: another sluice disk command is at work on it; wait for it, or end it");
            }
            // Whoever had the lock before may have removed the file with the disk.
            let ours = file.metadata().with_context(|| path.display().to_string())?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == ours) {
                return Ok(Locked { store: self, name: name.to_owned(), _file: file });
            }
        }
    }
}

/// The right to change a disk. Ends with this value, or the process.
pub(super) struct Locked<'a> {
    store: &'a Store,
    name: String,
    _file: File,
}

impl Locked<'_> {
    /// As [`Store::load`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn load(&self) -> anyhow::Result<Option<Disk>> {
        self.store.load(&self.name)
    }

    /// Replaces the state file; it is the old or the new one, whatever happens.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn save(&self, disk: &Disk) -> anyhow::Result<()> {
        let path = self.store.file(&self.name, "json");
        let write = || {
            let mut file = tempfile::NamedTempFile::new_in(&self.store.0)?;
            serde_json::to_writer_pretty(&mut file, disk)?;
            file.write_all(b"\n")?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)?;
            File::open(&self.store.0)?.sync_all()
        };
        write().with_context(|| format!("writing the state file {}", path.display()))
    }

    /// Forgets the disk.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn forget(self) -> anyhow::Result<()> {
        for extension in ["json", "lock"] {
            let path = self.store.file(&self.name, extension);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| path.display().to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Names become parts of paths and of what `list` prints.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check_name(name: &str) -> anyhow::Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(fits) || name.len() > 32 {
        bail!("{name:?} cannot be a disk's name: up to 32 letters, digits, '.', '_' and '-', first a letter or digit");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str) -> Disk {
        Disk::new(name, "hdd-7200".into(), 1 << 30, format!("/x/{name}").into())
    }

    #[test]
    fn names_are_parts_of_paths() {
        for good in ["a", "0", "d1.x_y-z", &"n".repeat(32)] {
            check_name(good).unwrap();
        }
        for bad in ["", ".", "..", "-a", "a/b", "a b", "ä", "a\n", &"n".repeat(33)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn images_have_names_of_their_own() {
        let (one, other) = (disk("a"), Disk { dir: "/y/a".into(), ..disk("a") });
        assert_ne!(one.image_name(), other.image_name());
        assert_eq!(one.image_name(), disk("a").image_name());
    }

    #[test]
    fn what_is_saved_is_loaded_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store(dir.path().join("disks"));
        assert!(store.names().unwrap().is_empty());
        store.make().unwrap();
        let lock = store.lock("a").unwrap();
        assert!(lock.load().unwrap().is_none());
        lock.save(&disk("a")).unwrap();
        let changed = Disk { phase: Phase::Ready, drives: 3, ..disk("a") };
        lock.save(&changed).unwrap();
        assert_eq!(store.names().unwrap(), ["a"]);
        let loaded = store.load("a").unwrap().unwrap();
        assert_eq!((loaded.phase, loaded.drives), (Phase::Ready, 3));
        assert_eq!(loaded.targets()[2], Path::new("/x/a/drive2"));
        lock.forget().unwrap();
        assert_eq!(fs::read_dir(store.path()).unwrap().count(), 0);
    }

    #[test]
    fn one_process_at_a_time_changes_a_disk() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store(dir.path().to_owned());
        assert!(!store.is_busy("a"));
        let lock = store.lock("a").unwrap();
        assert!(store.is_busy("a") && !store.is_busy("b"));
        assert!(store.lock("a").err().unwrap().to_string().contains("another sluice disk command"));
        store.lock("b").unwrap();
        drop(lock);
        assert!(!store.is_busy("a"));
        store.lock("a").unwrap();
    }

    #[test]
    fn who_only_looks_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store(dir.path().to_owned());
        let ends = std::sync::atomic::AtomicBool::new(false);
        let locked = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                    store.is_busy("a");
                }
            });
            let locked = (0..1_000).filter(|_| store.lock("a").is_ok()).count();
            ends.store(true, std::sync::atomic::Ordering::Relaxed);
            locked
        });
        assert_eq!(locked, 1_000);
    }

    #[test]
    fn damaged_state_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store(dir.path().to_owned());
        for text in ["", "{", "{\"version\":1}", "[]"] {
            fs::write(dir.path().join("a.json"), text).unwrap();
            assert!(store.load("a").unwrap_err().to_string().contains("a.json is not understood"), "{text}");
        }
        let other = serde_json::to_string(&disk("b")).unwrap();
        fs::write(dir.path().join("a.json"), other).unwrap();
        assert!(store.load("a").unwrap_err().to_string().contains("of the disk \"b\""));
    }
}
