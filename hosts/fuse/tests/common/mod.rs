//! A mount of a temporary directory, and the tests' way around machines without FUSE.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod aio;
pub mod wrap;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc;
use std::time::Duration;

use sluice_fuse::{CacheMode, MountHandle, MountOptions};
use sluice_runtime::VolumeConfig;
use sluice_storage::Storage;
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::striped::{StripedOptions, StripedStorage};

/// Longest time any test waits for anything.
pub const LIMIT: Duration = Duration::from_secs(120);

pub struct Mount {
    // Dropped in this order: the mount before the directories.
    handle: Option<MountHandle>,
    dir: tempfile::TempDir,
    pub mode: CacheMode,
}

/// False, and says so, where FUSE file systems cannot be mounted.
pub fn fuse_works() -> bool {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let helper = Command::new("fusermount3").arg("-V").output().is_ok();
    let works = device.is_ok() && (is_root() || helper);
    if !works {
        eprintln!("SKIP: no /dev/fuse, or neither root nor fusermount3: this test did NOT run");
    }
    works
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A directory with `source` and `mnt`, open to other users.
pub fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["source", "mnt"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    dir
}

pub fn options(mode: CacheMode, dir: &Path) -> MountOptions {
    MountOptions { cache: mode, sources: vec![dir.join("source")], ..MountOptions::default() }
}

pub fn mount_at(dir: &Path, options: MountOptions) -> Result<MountHandle, sluice_fuse::MountError> {
    let storage = PosixStorage::open(dir.join("source"), PosixOptions::default()).unwrap();
    sluice_fuse::mount(storage.into(), &dir.join("mnt"), options, VolumeConfig::default())
}

impl Mount {
    pub fn new(mode: CacheMode) -> Option<Mount> {
        Mount::with(mode, |_| ())
    }

    /// A mount of a directory whose data or names are wrapped.
    pub fn wrapped(
        mode: CacheMode,
        change: impl FnOnce(&mut MountOptions),
        wrap: impl FnOnce(Storage) -> Storage,
    ) -> Option<Mount> {
        if !fuse_works() {
            return None;
        }
        let dir = place();
        let mut options = options(mode, dir.path());
        change(&mut options);
        let plain = PosixStorage::open(dir.path().join("source"), PosixOptions::default()).unwrap();
        let at = dir.path().join("mnt");
        let handle = sluice_fuse::mount(wrap(plain.into()), &at, options, VolumeConfig::default());
        Some(Mount { handle: Some(handle.unwrap_or_else(|error| panic!("{error}"))), dir, mode })
    }

    pub fn with(mode: CacheMode, change: impl FnOnce(&mut MountOptions)) -> Option<Mount> {
        if !fuse_works() {
            return None;
        }
        let dir = place();
        let mut options = options(mode, dir.path());
        change(&mut options);
        let handle = mount_at(dir.path(), options).unwrap_or_else(|error| panic!("{error}"));
        Some(Mount { handle: Some(handle), dir, mode })
    }

    /// A mount of a volume striped over so many directories.
    pub fn striped(mode: CacheMode, targets: usize) -> Option<Mount> {
        if !fuse_works() {
            return None;
        }
        let dir = place();
        let dirs: Vec<_> = (0..targets).map(|i| dir.path().join("source").join(i.to_string())).collect();
        dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let striped = StripedOptions { stripe: Some(4096), ..StripedOptions::default() };
        let storage = StripedStorage::create_or_open(&dirs, striped).unwrap();
        let options = options(mode, dir.path());
        let handle = sluice_fuse::mount(storage.into(), &dir.path().join("mnt"), options, VolumeConfig::default());
        let handle = handle.unwrap_or_else(|error| panic!("{error}"));
        Some(Mount { handle: Some(handle), dir, mode })
    }

    /// Waits until the kernel has reported the end of every open file but those that the test still holds.
    pub fn settle(&self, held: usize) {
        let until = std::time::Instant::now() + LIMIT;
        while self.handle().open_files() > held {
            assert!(std::time::Instant::now() < until, "{} files stay open", self.handle().open_files());
            std::thread::yield_now();
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("mnt").join(name)
    }

    /// The same file without the mount.
    pub fn source(&self, name: &str) -> PathBuf {
        self.dir.path().join("source").join(name)
    }

    pub fn handle(&self) -> &MountHandle {
        self.handle.as_ref().unwrap()
    }

    /// Unmounts, and waits until it is over.
    pub fn finish(mut self) {
        let handle = self.handle.take().unwrap();
        unmount(&handle);
        bounded(move || handle.wait()).unwrap();
        assert!(fs::read_dir(self.dir.path().join("mnt")).unwrap().next().is_none(), "still mounted");
    }
}

/// Unmounts what the test itself does not use any more.
pub fn unmount(handle: &MountHandle) {
    // A child that another test is just starting may hold our closed files until it runs its program.
    let until = std::time::Instant::now() + LIMIT;
    while let Err(error) = handle.unmount() {
        let waits = matches!(error, sluice_fuse::MountError::Busy { .. }) && std::time::Instant::now() < until;
        assert!(waits, "{error}");
        std::thread::yield_now();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            let _ = handle.unmount_lazily();
        }
    }
}

/// Runs something that must end.
pub fn bounded<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    wait.recv_timeout(LIMIT).expect("ended within the limit")
}

/// A shell script as an ordinary user without supplementary groups.
pub fn as_nobody(script: &str) -> Output {
    Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script])
        .output()
        .unwrap()
}

/// Runs a test body for every cache mode, as tests of their own.
#[macro_export]
macro_rules! each_mode {
    ($($(#[$meta:meta])* fn $name:ident($mount:ident) $body:block)*) => {
        $(
            $(#[$meta])*
            mod $name {
                #[allow(unused_imports)]
                use super::*;
                fn body($mount: &$crate::common::Mount) $body
                fn run(mode: sluice_fuse::CacheMode) {
                    if let Some(mount) = $crate::common::Mount::new(mode) {
                        body(&mount);
                        mount.finish();
                    }
                }
                #[test]
                fn none() { run(sluice_fuse::CacheMode::None); }
                #[test]
                fn auto() { run(sluice_fuse::CacheMode::Auto); }
                #[test]
                fn writeback() { run(sluice_fuse::CacheMode::Writeback); }
            }
        )*
    };
}
