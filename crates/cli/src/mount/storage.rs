//! Opens what is to be mounted.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sluice_storage::Storage;
use sluice_storage::emulated::Emulated;
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::striped::{StripedOptions, StripedStorage};

use crate::config::{DeviceKind, Settings};

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
pub(super) fn open(settings: &Settings, dirs: &[PathBuf]) -> anyhow::Result<Storage> {
    let direct = settings.direct;
    let storage: Storage = if settings.source.is_some() {
        let storage = PosixStorage::open(&dirs[0], PosixOptions { direct });
        storage.with_context(|| format!("the source {} cannot be opened", dirs[0].display()))?.into()
    } else {
        StripedStorage::create_or_open(dirs, StripedOptions { stripe: settings.stripe, direct })?.into()
    };
    Ok(match &settings.emulate {
        Some(model) => storage.wrapped(|data| Emulated::new(data, model, settings.seed))?,
        None => storage,
    })
}

/// Whether the devices below are hard disks.
pub(super) fn on_disks(settings: &Settings, dirs: &[PathBuf]) -> bool {
    match settings.device {
        DeviceKind::Disk => true,
        DeviceKind::Flash => false,
        DeviceKind::Auto => match &settings.emulate {
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
