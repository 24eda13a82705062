//! Opens what is to be mounted.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sluice_storage::Storage;
use sluice_storage::emulated::Emulated;
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::striped::{StripedError, StripedOptions, StripedStorage};

use super::tier::{self, Tiered};
use crate::config::{DeviceKind, Profiling, Settings};

/// How long a volume or an SSD may be in use by another process, which may just be ending, before that is said.
const PATIENCE: Duration = Duration::from_secs(3);

/// The directories that the storage consists of, checked.
///
/// # Errors
/// If one is not there or is not a directory.
pub(super) fn directories(settings: &Settings) -> anyhow::Result<Vec<PathBuf>> {
    let (what, dirs) = match &settings.source {
        Some(source) => ("the source", vec![source.clone()]),
        None => ("the target", settings.targets.clone()),
    };
    dirs.into_iter()
        .map(|dir| match std::fs::metadata(&dir) {
            Ok(meta) if !meta.is_dir() => bail!("{what} {} is not a directory", dir.display()),
            Ok(_) => dir.canonicalize().with_context(|| format!("{what} {}", dir.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("{what} {} does not exist; create it first (mkdir -p)", dir.display())
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
                bail!(
                    "{what} {} lies in a mount whose server is dead; unmount that first (sluice unmount)",
                    dir.display()
                )
            }
            Err(error) => Err(error).with_context(|| format!("{what} {}", dir.display())),
        })
        .collect()
}

/// Opens the storage on checked directories.
///
/// # Errors
/// If it cannot be opened, or there is no such device model.
pub(super) fn open(settings: &Settings, dirs: &[PathBuf]) -> anyhow::Result<(Storage, Option<Tiered>)> {
    let direct = settings.direct;
    let storage: Storage = if settings.source.is_some() {
        let storage = PosixStorage::open(&dirs[0], PosixOptions { direct });
        storage.with_context(|| format!("the source {} cannot be opened", dirs[0].display()))?.into()
    } else {
        let options = StripedOptions { stripe: settings.stripe, first: settings.first_target, direct };
        let open = || StripedStorage::create_or_open(dirs, options);
        when_free(open, |error| matches!(error, StripedError::InUse { .. }), patience())?.into()
    };
    let storage = match &settings.emulate {
        Some(model) => storage.wrapped(|data| Emulated::new(data, model, settings.seed))?,
        None => storage,
    };
    tier::open(settings, storage, dirs)
}

/// Waits a moment; false when that was long enough.
pub(crate) fn patience() -> impl FnMut() -> bool {
    let until = Instant::now() + PATIENCE;
    move || {
        std::thread::sleep(Duration::from_millis(50));
        Instant::now() < until
    }
}

/// Opens something again while another process has it (`is_in_use`) and `wait` says so: a process that was killed has its
/// locks until its last thread is gone, which waits for the disk.
pub(crate) fn when_free<T, E>(
    open: impl Fn() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
    mut wait: impl FnMut() -> bool,
) -> Result<T, E> {
    loop {
        match open() {
            Err(error) if is_in_use(&error) && wait() => {}
            result => return result,
        }
    }
}

/// Whether the devices below are hard disks.
pub(crate) fn on_disks(settings: &Settings, dirs: &[PathBuf]) -> bool {
    match settings.device {
        DeviceKind::Disk => true,
        DeviceKind::Flash => false,
        DeviceKind::Auto => match &settings.emulate {
            // For what it serves to say.
            Some(_) if settings.profiling == Profiling::Auto => false,
            Some(name) => sluice_device::model(name, settings.seed).is_ok_and(|device| device.rotates()),
            None => dirs.iter().any(|dir| rotates(dir)),
        },
    }
}

/// What the system says about the device below a directory. Virtual disks say anything, so they are not believed; neither
/// is there an answer for network file systems, whose servers schedule for themselves.
fn rotates(dir: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(dir) else { return false };
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let Ok(device) = Path::new(&format!("/sys/dev/block/{major}:{minor}")).canonicalize() else { return false };
    let is_virtual = device.components().any(|part| {
        let part = part.as_os_str().to_string_lossy();
        part == "virtual" || part.starts_with("virtio") || part.starts_with("vbd-") || part.starts_with("nbd")
    });
    // A partition's queue is its disk's.
    let queue = [device.join("queue/rotational"), device.join("../queue/rotational")];
    !is_virtual && queue.iter().any(|file| std::fs::read_to_string(file).is_ok_and(|text| text.trim() == "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_whose_process_is_just_ending_is_waited_for() {
        let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
        let paths: Vec<_> = dirs.iter().map(|dir| dir.path().to_owned()).collect();
        let open = || {
            StripedStorage::create_or_open(&paths, StripedOptions { stripe: Some(4096), ..StripedOptions::default() })
        };
        let mut other = Some(open().unwrap());
        let in_use = |error: &StripedError| matches!(error, StripedError::InUse { .. });
        assert!(matches!(when_free(open, in_use, || false), Err(StripedError::InUse { .. })), "not for ever");
        let mut waits = 0;
        let opened = when_free(open, in_use, || {
            waits += 1;
            if waits == 2 {
                other = None;
            }
            true
        });
        assert!(opened.is_ok());
        assert_eq!(waits, 2);
    }
}
