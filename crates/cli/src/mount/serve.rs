//! Makes a mount and stays with it until it ends.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context;
use sluice_adapt::selector::{Device, Kind, Prior};
use sluice_control::{Agent, Announced, Doing};
use sluice_fuse::{Activity, CacheMode, MountHandle, Programs};
use sluice_metrics::{Endpoint, Samples};
use sluice_runtime::Shutdown;
use sluice_select::{Learning, Selection};
use tracing_subscriber::filter::LevelFilter;

use super::tier::Tiered;
use super::{device, signals, storage};
use crate::config::{self, Settings};
use crate::predict::{self, Predictions};
use crate::{calibrate, control, log, output};

/// Longest wait at the end for requests that were accepted.
const DRAIN: Duration = Duration::from_secs(30);

/// A mount that is served.
pub(super) struct Mounted {
    pub(super) handle: Arc<MountHandle>,
    server: Option<control::Server>,
    signals: signals::Caught,
    selection: Option<Arc<Selection>>,
    learning: Option<Arc<Learning>>,
    agent: Option<Arc<Agent>>,
    metrics: Option<Endpoint>,
    tier: Option<Tiered>,
    /// One line for people.
    pub(super) summary: String,
}

/// What programs say of themselves, for the coordinator.
#[derive(Debug)]
struct Said(Programs);

impl Announced for Said {
    fn doing(&self) -> Vec<Doing> {
        let told = |said: Activity| Doing {
            app: said.app,
            computes: said.computes,
            for_ns: u64::try_from(said.lasts.as_nanos()).unwrap_or(u64::MAX),
        };
        self.0.activities().into_iter().map(told).collect()
    }
}

/// Mounts, says so, and returns when the mount has ended.
///
/// # Errors
/// Whatever keeps it from mounting.
pub(super) fn in_foreground(mut settings: Settings) -> anyhow::Result<ExitCode> {
    // Whoever asks where something is kept may be elsewhere.
    settings.stay_here().context("the current directory")?;
    start_log(&settings, Readers::People)?;
    let mounted = mount(&settings)?;
    // A service manager that waits for it is told, too.
    let states = [sd_notify::NotifyState::Ready, sd_notify::NotifyState::Status(&mounted.summary)];
    sd_notify::notify(&states).unwrap_or_else(|error| tracing::warn!("NOTIFY_SOCKET: {error}"));
    output::say(&mounted.summary);
    output::say(format_args!("To end: Ctrl-C here, or: sluice unmount {}", mounted.handle.mountpoint().display()));
    until_the_end(mounted)
}

/// Mounts and listens on the control socket.
///
/// # Errors
/// Whatever keeps it from mounting; nothing stays behind then.
pub(super) fn mount(settings: &Settings) -> anyhow::Result<Mounted> {
    let started = Instant::now();
    let mountpoint = settings.mountpoint.as_deref().context("no mountpoint")?;
    let mut dirs = storage::directories(settings)?;
    // Before anything is opened: a volume must not be made for a mount that cannot be.
    let mountpoint = sluice_fuse::check_mountpoint(mountpoint, &dirs)?;
    let disks = storage::on_disks(settings, &dirs);
    let (opened, tier) = storage::open(settings, &dirs)?;
    let (targets, description) = (opened.data.layout().targets(), opened.data.describe());
    let mut config = settings.volume_config(targets, disks)?;
    let devices = device::name(&dirs, settings.emulate.as_deref());
    let mut options = settings.mount.clone();
    let known = device::known(settings, &devices, disks, targets, &mut config, &mut options)?;
    let config = config;
    options.sources.append(&mut dirs);
    let predictions = Arc::new(Predictions::default());
    let state = settings.prediction.state.clone().or_else(|| mount_state(&mountpoint, "learned.slt"));
    let prediction = predict::Options {
        state,
        model: settings.emulate.clone(),
        request_max: Some(options.max_write),
        cached: match options.cache {
            CacheMode::None => predict::Cached::Nothing,
            CacheMode::Auto => predict::Cached::Reads,
            CacheMode::Writeback => predict::Cached::All,
        },
        ..settings.prediction.clone()
    };
    let coordination = settings.coordination(&mountpoint)?;
    let served = |handle, selection, learning, agent| control::Served {
        selection,
        learning,
        agent,
        tier: tier.as_ref().map(|tiered| tiered.tier.clone()),
        predictions: predictions.clone(),
        prediction: prediction.clone(),
        handle,
        started,
        cache: format!("{:?}", options.cache).to_lowercase(),
        targets,
        in_flight_max: config.engine.in_flight_max,
        anticipation: config.engine.anticipation,
        window_ns: config.engine.window_ns,
    };
    let signals = signals::catch()?;
    let handle = Arc::new(sluice_fuse::mount(opened, &mountpoint, options.clone(), config.clone())?);
    begin(settings, &prediction, &handle, &predictions).inspect_err(|_| _ = handle.unmount_lazily())?;
    let selection =
        select(settings, &mountpoint, &handle, known.device, &devices).inspect_err(|_| _ = handle.unmount_lazily())?;
    let learning = device::learn(settings, known, &config, &handle, selection.clone())
        .inspect_err(|_| _ = handle.unmount_lazily())?;
    let coordinate = |mut whom: sluice_control::Options| {
        whom.announced = Some(Arc::new(Said(handle.programs())));
        Agent::start(handle.volume(), whom).map(Arc::new)
    };
    let agent = coordination.map(coordinate).transpose();
    let agent = agent.inspect_err(|_| _ = handle.unmount_lazily())?;
    let metrics = measure(settings, &handle, agent.as_ref()).inspect_err(|_| _ = handle.unmount_lazily())?;
    // The mount serves applications, with or without somebody to talk to.
    let server = control::Server::start(served(handle.clone(), selection.clone(), learning.clone(), agent.clone()))
        .inspect_err(|error| tracing::warn!("sluice status, policy and unmount will not find this mount: {error:#}"))
        .ok();
    let limit = match config.engine.in_flight_max {
        0 => String::new(),
        n => format!(", {n} in flight"),
    };
    let chosen = match (&selection, config.policy) {
        (None, policy) => match &settings.coordinator {
            None => format!("algorithm {policy:?}"),
            Some(address) => format!("algorithm {policy:?}, or what the coordinator {address} chooses"),
        },
        (Some(_), _) => format!("algorithm chosen while in use ({})", settings.selector()),
    };
    let summary = format!("{} is mounted: {description}; {chosen}{limit}", mountpoint.display());
    tracing::info!(
        socket = server.as_ref().map(|server| server.path().display().to_string()),
        max_write = sluice_notation::show_bytes(options.max_write.into()),
        "{summary}"
    );
    Ok(Mounted { handle, server, signals, selection, learning, agent, metrics, tier, summary })
}

/// Where what was learned about this mount is kept, unless the user says otherwise; nowhere if there is no such place.
pub(crate) fn state_path(mountpoint: &Path, what: &str) -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = match (named("SLUICE_STATE_DIR"), rustix::process::geteuid().is_root()) {
        (Some(dir), _) => dir,
        (None, true) => PathBuf::from("/var/lib/sluice"),
        (None, false) => match named("XDG_STATE_HOME") {
            Some(dir) => dir.join("sluice"),
            None => named("HOME")?.join(".local/state/sluice"),
        },
    };
    // The current directory may be another one later.
    let dir = std::path::absolute(dir).ok()?;
    Some(dir.join(control::key(mountpoint)).with_extension(what))
}

/// The same, of a mount; nowhere either if that is inside the mount.
pub(super) fn mount_state(mountpoint: &Path, what: &str) -> Option<PathBuf> {
    let path = state_path(mountpoint, what)?;
    let is_inside = super::is_inside(&path, mountpoint);
    if is_inside {
        tracing::warn!(
            "{} lies inside the mountpoint, and is not kept: let SLUICE_STATE_DIR be a directory elsewhere",
            path.display()
        );
    }
    (!is_inside).then_some(path)
}

/// Starts choosing, if wanted.
fn select(
    settings: &Settings,
    mountpoint: &Path,
    handle: &MountHandle,
    device: Device,
    devices: &Path,
) -> anyhow::Result<Option<Arc<Selection>>> {
    if settings.selector() == Kind::Fixed {
        return Ok(None);
    }
    // What was learned of other devices says nothing of these, though they were mounted there, too.
    let state = || mount_state(mountpoint, &format!("{}.selector", control::key(devices)));
    let state = settings.learned.clone().or_else(state);
    if let (Some(calibrated), Some(state)) = (state_path(devices, "calibrated"), &state) {
        calibrate::adopt(&calibrated, state, device);
    }
    let options = sluice_select::Options {
        prior: settings.prior()?.map(|model| Box::new(model) as Box<dyn Prior>),
        state,
        log: settings.decisions.clone().or_else(|| mount_state(mountpoint, "decisions.jsonl")),
        likeliest_first: settings.names_no_policy(),
        emulated: settings.emulate.is_some(),
        ..config::selection(settings.selector(), device)
    };
    let selection = Selection::start(handle.volume(), options).context("nothing can be chosen")?;
    Ok(selection.map(Arc::new))
}

/// Tells metrics, if wanted.
fn measure(settings: &Settings, handle: &MountHandle, agent: Option<&Arc<Agent>>) -> anyhow::Result<Option<Endpoint>> {
    let Some(address) = settings.metrics else { return Ok(None) };
    let (volume, agent) = (Arc::downgrade(handle.volume()), agent.map(Arc::downgrade));
    let source = move |samples: &mut Samples| {
        if let Some(volume) = volume.upgrade() {
            sluice_metrics::scheduler(&volume.snapshot().runtime, samples);
        }
        if let Some(agent) = agent.as_ref().and_then(Weak::upgrade) {
            sluice_metrics::agent(&agent.status(), samples);
        }
    };
    Endpoint::start(address, source).map(Some)
}

/// Starts recording and predicting, if wanted.
fn begin(
    settings: &Settings,
    prediction: &predict::Options,
    handle: &MountHandle,
    predictions: &Predictions,
) -> anyhow::Result<()> {
    let volume = handle.volume();
    if let Some(path) = &settings.record {
        control::start_recording(handle, &std::path::absolute(path)?, settings.recording).context("trace.record")?;
    }
    predictions.set(&**volume, &settings.predict, prediction).context("the predictions cannot start")
}

/// Waits for the end, whoever brings it: a signal, `sluice unmount`, `umount`, or a failure.
///
/// # Errors
/// If serving the mount failed.
pub(super) fn until_the_end(mounted: Mounted) -> anyhow::Result<ExitCode> {
    let Mounted { handle, server, signals, selection, learning, agent, metrics, tier, .. } = mounted;
    signals.unmount(&handle)?;
    let result = handle.wait();
    // While the volume is there.
    drop(metrics);
    if let Some(agent) = agent {
        agent.end();
    }
    if let Some(learning) = learning {
        learning.end();
    }
    if let Some(selection) = selection {
        selection.end();
    }
    let report = handle.volume().shutdown(Shutdown::Drain { timeout: DRAIN });
    if report.failed > 0 {
        tracing::warn!(failed = report.failed, "requests were still queued at the end and failed");
    }
    let ended = tier.map_or(Ok(()), Tiered::end);
    // One error is told where this ends.
    if let (Err(_), Err(error)) = (&result, &ended) {
        tracing::error!("{error:#}");
    }
    tracing::info!("{} is unmounted", handle.mountpoint().display());
    drop(server);
    result.with_context(|| format!("{}: serving the mount failed", handle.mountpoint().display()))?;
    ended.map(|()| ExitCode::SUCCESS)
}

/// Who reads what is logged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Readers {
    /// People at a terminal, unless there is a log file: they are told what they must know.
    People,
    /// A log file, which standard error is.
    File,
}

/// Starts logging.
///
/// # Errors
/// If the log file cannot be written.
pub(super) fn start_log(settings: &Settings, readers: Readers) -> anyhow::Result<()> {
    let (to, default) = match (readers, &settings.log) {
        (Readers::File, _) => (log::To::StandardError, LevelFilter::INFO),
        (Readers::People, Some(path)) => (log::To::File(open_log(path)?), LevelFilter::INFO),
        (Readers::People, None) if log::is_journal() => (log::To::Journal, LevelFilter::INFO),
        (Readers::People, None) => (log::To::People, LevelFilter::WARN),
    };
    log::start(settings.log_level.map_or(default, LevelFilter::from_level), to);
    Ok(())
}

/// Opens a log file to append to.
///
/// # Errors
/// If it cannot be written.
pub(super) fn open_log(path: &Path) -> anyhow::Result<std::fs::File> {
    let open = std::fs::OpenOptions::new().create(true).append(true).open(path);
    open.with_context(|| format!("the log file {} cannot be written", path.display()))
}
