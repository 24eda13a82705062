//! What a mount knows of its devices: what was said, and what is learned from what they serve.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_adapt::device::Estimate;
use sluice_adapt::selector::Device;
use sluice_fuse::{MountHandle, MountOptions};
use sluice_runtime::VolumeConfig;
use sluice_select::{Learn, Learning, Selection};

use super::serve::state_path;
use crate::config::{Anticipate, Settings};

/// What is known before anything was served.
pub(super) struct Known {
    /// What was said, or what the system says.
    given: Device,
    /// That, or what was learned before.
    pub(super) device: Device,
    /// Where what is learned is kept; `None`: nowhere, or nothing is learned.
    state: Option<PathBuf>,
    /// Targets of an engine.
    targets: u32,
}

/// A name for the devices of these directories, which a real and an emulated one do not share.
pub(crate) fn name(dirs: &[PathBuf], emulate: Option<&str>) -> PathBuf {
    let mut name = OsString::new();
    for dir in dirs {
        if !name.is_empty() {
            name.push(":");
        }
        name.push(dir);
    }
    if let Some(model) = emulate {
        name.push(format!(" emulated {model}"));
    }
    name.into()
}

/// What is known of the devices of that name; the engines and the mount get settings for that.
///
/// # Errors
/// If the device's profile or model cannot be read.
pub(super) fn known(
    settings: &Settings,
    name: &Path,
    disks: bool,
    targets: u32,
    config: &mut VolumeConfig,
    options: &mut MountOptions,
) -> anyhow::Result<Known> {
    options.group_commit = settings.group_commit(disks)?;
    // Then a profile says whether there is anything to anticipate.
    let is_profiled = settings.prediction.profile.is_some() && settings.anticipation == Anticipate::Auto;
    let given = match settings.selected_device(disks) {
        Device::Unknown if is_profiled && config.engine.anticipation.is_some() => Device::Disk,
        Device::Unknown if is_profiled => Device::Flash,
        device => device,
    };
    let shared = match config.engines {
        sluice_runtime::Engines::Auto => config.policy.info().shared_engine,
        engines => engines == sluice_runtime::Engines::Shared,
    };
    let targets = if shared { targets } else { 1 };
    let mut known = Known { given, device: given, state: None, targets };
    if settings.learns_device() {
        // Beside what the selector learns.
        let beside = settings.learned.as_ref().map(|path| {
            let mut path = path.as_os_str().to_owned();
            path.push(".device");
            PathBuf::from(path)
        });
        let is_outside = |path: &PathBuf| !settings.mountpoint.as_deref().is_some_and(|at| super::is_inside(path, at));
        known.state = beside.or_else(|| state_path(name, "device").filter(is_outside));
        if let Some((device, learned)) = known.state.as_deref().map(sluice_select::remembered_device)
            && device != Device::Unknown
        {
            known.device = device;
            config.engine = settings.learned_limits(&config.engine, targets, &learned);
            options.group_commit = settings.learned_group_commit(&learned).unwrap_or(options.group_commit);
        }
    }
    Ok(known)
}

/// Learns what the devices are from now on, if that is wanted. `config`: what the engines have without.
///
/// # Errors
/// If the system refuses a thread.
pub(super) fn learn(
    settings: &Settings,
    known: Known,
    config: &VolumeConfig,
    handle: &Arc<MountHandle>,
    selection: Option<Arc<Selection>>,
) -> anyhow::Result<Option<Arc<Learning>>> {
    if !settings.learns_device() {
        return Ok(None);
    }
    let Known { given, state, targets, .. } = known;
    let (own, config, mount) = (settings.clone(), config.engine.clone(), Arc::downgrade(handle));
    let limits = move |learned: &Estimate| {
        if let (Some(mount), Some(positioning)) = (mount.upgrade(), own.learned_group_commit(learned)) {
            mount.set_group_commit(positioning);
        }
        own.learned_limits(&config, targets, learned)
    };
    let learn = Learn {
        // An emulated device answers when its model says so, whatever memory has.
        page_cache: !settings.direct && settings.emulate.is_none(),
        state,
        device: given,
        limits: Box::new(limits),
    };
    Ok(Some(Arc::new(Learning::start(handle.volume(), learn, selection)?)))
}
