//! A mount whose only file is a disk with an SSD before it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use rustix::fs::OFlags;
use sluice_notation::counted;
use sluice_storage::Storage;
use sluice_tier::{DataDevice, Device, FileDevice, OneFile, Runner, Tier};

use super::storage::{patience, when_free};
use crate::config::{Settings, TierSettings};

/// A tier at work.
pub(crate) struct Tiered {
    pub(crate) tier: Arc<Tier>,
    runner: Runner,
}

impl Tiered {
    /// Writes back what is to be written back, and makes the rest durable. Nobody uses it any more.
    ///
    /// # Errors
    /// Those of the devices: what was written and not synced may be lost.
    pub(super) fn end(self) -> anyhow::Result<()> {
        drop(self.runner);
        let ended = self.tier.end();
        ended.context("the tier: its end; what was written and not synced may be lost, what was synced is on the disk or in its log")
    }
}

/// The storage, or the disk with an SSD that is mounted instead of it.
///
/// # Errors
/// If one of the two is missing, in use, damaged, or not the other one's.
pub(super) fn open(
    settings: &Settings,
    storage: Storage,
    dirs: &[PathBuf],
) -> anyhow::Result<(Storage, Option<Tiered>)> {
    let TierSettings { disk, ssd, file, config } = &settings.tier;
    let (disk, ssd) = match (disk, ssd) {
        (Some(disk), Some(ssd)) => (disk, ssd),
        (None, None) => return Ok((storage, None)),
        _ => bail!("a tier needs both tier.disk and tier.ssd"),
    };
    let path = std::path::absolute(disk).with_context(|| format!("tier.disk {}", disk.display()))?;
    let emulation = settings.emulate.is_some().then(|| storage.data.clone());
    let device: Arc<dyn Device> = match &emulation {
        Some(_) => Arc::new(image(&storage, dirs, &path)?),
        None => Arc::new(device(&path)?),
    };
    let mut config = config.clone();
    // As it was named when the tier was made.
    config.disk_name.get_or_insert(path.display().to_string());
    if config.failure_mark.is_none() {
        config.failure_mark = sluice_tier::failure_mark_of(&path)?;
    }
    let tier = Arc::new(Tier::open(device, Arc::new(self::device(ssd)?), config)?);
    let found = tier.status().recovery;
    if found.dirty_bytes > 0 || found.lost_bytes > 0 {
        tracing::info!(
            "the SSD has {} that the disk does not have, {} of them damaged",
            counted(found.dirty_bytes, "byte"),
            found.lost_bytes
        );
    }
    let name = file.as_ref().map(|name| name.as_ref()).or(path.file_name()).context("tier.file: no name")?;
    let storage = Storage::from(OneFile::new(tier.clone(), name, emulation)?);
    let runner = Runner::start(tier.clone()).context("starting the thread behind the tier")?;
    Ok((storage, Some(Tiered { tier, runner })))
}

/// A file of the storage, which is the one directory.
fn image(storage: &Storage, dirs: &[PathBuf], path: &Path) -> anyhow::Result<DataDevice> {
    let there = path.canonicalize().with_context(|| format!("tier.disk {}", path.display()))?;
    let name = path.file_name().filter(|_| dirs.len() == 1 && there.parent() == Some(&*dirs[0]));
    let name = name.with_context(|| format!("tier.disk {}: not in mount.source, which is emulated", path.display()))?;
    let open = || {
        let node = storage.namespace.lookup(&storage.namespace.root(), name)?;
        let size = storage.namespace.getattr(&node)?.size;
        let file = storage.namespace.open(&node, OFlags::RDWR.bits() as i32)?;
        DataDevice::new(storage.data.clone(), file, size)
    };
    open().with_context(|| format!("tier.disk {}", path.display()))
}

/// Another process has it, or it is mounted.
pub(crate) fn is_in_use(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy)
}

/// A file or block device, which a process that was killed may have a moment longer.
///
/// # Errors
/// Those of opening it, with its name.
pub(crate) fn device(path: &Path) -> io::Result<FileDevice> {
    when_free(|| FileDevice::open(path, true), is_in_use, patience())
}
