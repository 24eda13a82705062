//! The answering side: a thread that accepts, and one for each client, of which there are few.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::RwLock;
use sluice_core::{AppCounts, AppId, Counters, Time};
use sluice_fuse::MountHandle;
use sluice_runtime::{RecordOptions, ShardSnapshot, VolumeSnapshot};
use sluice_select::{Learning, Selection};

use super::protocol::{
    App, Command, Flow, Gate, GroupCommit, LINE_MAX, Policy, Predict, Question, Reply, Status, VERSION,
};
use super::window::Window;
use super::{elsewhere, key, make_directory};
use crate::config;
use crate::mount::is_inside;
use crate::predict::{self, Predictions};

/// Most clients at a time.
const CLIENTS_MAX: usize = 16;
/// A client that says nothing for so long is sent away.
const IDLE: Duration = Duration::from_secs(300);
/// A client that does not take its answer for so long is given up.
const SLOW: Duration = Duration::from_secs(5);

/// A mount as its control socket shows it.
pub(crate) struct Served {
    pub(crate) handle: Arc<MountHandle>,
    pub(crate) started: Instant,
    pub(crate) cache: String,
    pub(crate) targets: u32,
    pub(crate) in_flight_max: u32,
    pub(crate) anticipation: Option<sluice_core::Anticipation>,
    pub(crate) window_ns: u64,
    pub(crate) selection: Option<Arc<Selection>>,
    pub(crate) agent: Option<Arc<sluice_control::Agent>>,
    pub(crate) learning: Option<Arc<Learning>>,
    pub(crate) tier: Option<Arc<sluice_tier::Tier>>,
    pub(crate) predictions: Arc<Predictions>,
    pub(crate) prediction: predict::Options,
}

/// A control socket. Dropping it removes it, once all answers are out.
pub(crate) struct Server {
    path: PathBuf,
    /// Tells our socket from one that another process made at the same path since.
    inode: u64,
    /// Held for reading while a question is answered.
    answering: Arc<RwLock<()>>,
}

impl Server {
    /// Listens for questions about `served`.
    ///
    /// # Errors
    /// If there is no place for the socket.
    pub(crate) fn start(served: Served) -> anyhow::Result<Server> {
        let path = make_directory()?.join(key(served.handle.mountpoint())).with_extension("sock");
        // Nothing was mounted there, so whatever has this name is a remainder.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing the old socket {}", path.display()));
            }
            _ => {}
        }
        let failed = || format!("the control socket {}", path.display());
        let listener = UnixListener::bind(&path).with_context(failed)?;
        // The directory is closed to others anyway.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).with_context(failed)?;
        let inode = fs::symlink_metadata(&path).with_context(failed)?.ino();
        let answering = Arc::new(RwLock::new(()));
        let lock = answering.clone();
        std::thread::Builder::new()
            .name("sluice-control".into())
            .spawn(move || accept(&listener, &Arc::new(served), &lock))
            .with_context(failed)?;
        Ok(Server { path, inode, answering })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
        // Whoever asked for the end is to hear that it came.
        drop(self.answering.try_write_for(SLOW));
    }
}

fn accept(listener: &UnixListener, served: &Arc<Served>, answering: &Arc<RwLock<()>>) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                // Out of descriptors, most likely: do not turn that into a busy loop.
                tracing::warn!(%error, "the control socket cannot accept");
                std::thread::park_timeout(Duration::from_millis(100));
                continue;
            }
        };
        let (served, answering, clients) = (served.clone(), answering.clone(), clients.clone());
        if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
            clients.fetch_sub(1, Ordering::Relaxed);
            let _ = stream.set_write_timeout(Some(SLOW));
            let _ = send(&stream, &Reply::refused(format!("{CLIENTS_MAX} others ask already; try again later")));
            continue;
        }
        let counted = clients.clone();
        let serve = move || {
            if let Err(error) = converse(&stream, &served, &answering) {
                tracing::debug!(%error, "a control client left");
            }
            counted.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = std::thread::Builder::new().name("sluice-client".into()).spawn(serve) {
            clients.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "no thread for a control client");
        }
    }
}

fn converse(stream: &UnixStream, served: &Served, answering: &RwLock<()>) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(SLOW))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return send(stream, &Reply::refused("only the user who mounted, and root, may ask"));
    }
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        if (&mut lines).take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let _answering = answering.read();
        match understand(&line) {
            Ok(command) => send(stream, &answer(served, command))?,
            // What follows cannot be trusted to begin a line.
            Err(refusal) => return send(stream, &Reply::refused(refusal)),
        }
    }
}

fn understand(line: &[u8]) -> Result<Command, String> {
    if line.last() != Some(&b'\n') {
        return Err(format!("a question is one line of at most {LINE_MAX} bytes"));
    }
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    let unclear = |error| format!("not a question: {error}");
    let version: Version = serde_json::from_slice(line).map_err(unclear)?;
    if version.version != VERSION {
        return Err(format!(
            "the mount speaks version {VERSION} of the control protocol, not {}: use the sluice command that made the mount",
            version.version
        ));
    }
    serde_json::from_slice::<Question>(line).map(|question| question.command).map_err(unclear)
}

fn send(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn answer(served: &Served, command: Command) -> Reply {
    match command {
        Command::Status => Reply::status(status(served)),
        Command::SetPolicy { name, params } => {
            let policy = config::policy_for(&name, &params, served.targets);
            match policy {
                Ok(policy) => {
                    let change = || served.handle.volume().set_policy(&policy);
                    match &served.selection {
                        Some(selection) => selection.pause(&**served.handle.volume(), change),
                        None => change(),
                    }
                    tracing::info!(?policy, "the algorithm was changed");
                    Reply::done()
                }
                Err(error) => Reply::refused(format!("{error:#}")),
            }
        }
        Command::TraceStart { path, checksums } => {
            let started = start_recording(&served.handle, &path, RecordOptions { checksums });
            started.map_or_else(|error| Reply::refused(format!("{error:#}")), |()| Reply::done())
        }
        Command::TraceStop => match served.handle.volume().stop_recording() {
            Ok(recording) => Reply::recorded(recording.into()),
            Err(error) => Reply::refused(error.to_string()),
        },
        Command::Predict { from } => {
            let source = match from {
                Predict::Off => predict::Source::Off,
                Predict::Learn => predict::Source::Learn,
                Predict::Files(files) => predict::Source::Files(files),
            };
            let set = served.predictions.set(&**served.handle.volume(), &source, &served.prediction);
            set.map_or_else(|error| Reply::refused(format!("{error:#}")), |()| Reply::done())
        }
        Command::Adapt | Command::Keep => {
            if let Some(agent) = &served.agent {
                return Reply::refused(format!("the coordinator {} chooses here", agent.status().address));
            }
            let Some(selection) = &served.selection else {
                return Reply::refused(super::NOBODY_CHOOSES);
            };
            if command == Command::Adapt {
                selection.resume(&**served.handle.volume());
                return Reply::done();
            }
            selection.save().map(drop).map_or_else(|error| Reply::refused(format!("{error:#}")), |()| Reply::done())
        }
        Command::Unmount { lazy } => {
            let result = if lazy { served.handle.unmount_lazily() } else { served.handle.unmount() };
            result.map_or_else(|error| Reply::refused(error.to_string()), |()| Reply::done())
        }
    }
}

/// Starts a recording at a path outside the mount: inside it would record itself without end.
///
/// # Errors
/// If it lies inside, or cannot be written.
pub(crate) fn start_recording(handle: &MountHandle, path: &Path, options: RecordOptions) -> anyhow::Result<()> {
    let mountpoint = handle.mountpoint();
    let dir = path.parent().unwrap_or(Path::new("/"));
    if !path.is_absolute() || path.starts_with(mountpoint) || is_inside(path, mountpoint) {
        anyhow::bail!("{}: the trace must lie outside the mount {}", path.display(), mountpoint.display());
    }
    dir.canonicalize().with_context(|| dir.display().to_string())?;
    Ok(handle.volume().start_recording_with(path, &mountpoint.display().to_string(), options)?)
}

fn status(served: &Served) -> Status {
    let handle = &served.handle;
    let snapshot = handle.volume().snapshot();
    let recent = recent(&snapshot.runtime.shards, snapshot.runtime.at);
    let total = snapshot.runtime.total.total();
    let window_s = served.window_ns as f64 / 1e9;
    let name = |app: Option<AppId>| app.map_or_else(|| "others".to_owned(), |app| handle.app_name(app));
    let of_app = |app: &AppCounts| {
        let now = recent.apps.iter().find(|recent| recent.app == app.app);
        let phases = app.app.and_then(|app| handle.app_phases(app)).map(Into::into);
        App { phases, ..App::of(app, now, window_s, name(app.app)) }
    };
    let mut apps: Vec<App> = total.apps.iter().filter(|app| app.completed > 0).map(of_app).collect();
    apps.sort_by_key(|app| std::cmp::Reverse(app.bytes));
    let policy = &snapshot.runtime.policy;
    // They change with what is chosen, and with what is learned.
    let changes = served.selection.is_some() || served.learning.is_some();
    let limits = changes.then(|| handle.volume().limits());
    let mut notes = notes(&snapshot);
    let is_gone = elsewhere::is_gone(handle.mountpoint());
    if is_gone {
        notes.push("out of sight; ends with the last open file".to_owned());
    }
    let read_only = handle.is_read_only().unwrap_or_else(|error| {
        if !is_gone {
            notes.push(format!("whether it is read-only is not known: {error}"));
        }
        false
    });
    let device = served.learning.as_ref().map(|learning| learning.status());
    let selection = served.selection.as_ref().map(|selection| selection.status());
    notes.extend(selection.iter().filter_map(|selection| selection.note.clone()));
    notes.extend(device.iter().filter_map(|device| device.note.clone()));
    Status {
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        mountpoint: handle.mountpoint().display().to_string(),
        uptime_s: served.started.elapsed().as_secs_f64(),
        policy: Policy { name: policy.name().to_owned(), params: policy.describe() },
        storage: snapshot.storage.clone(),
        emulated: snapshot.emulated,
        cache: served.cache.clone(),
        read_only,
        targets: served.targets,
        engines: snapshot.runtime.shards.len(),
        in_flight_max: limits.as_ref().map_or(served.in_flight_max, |limits| limits.in_flight_max),
        anticipation: limits.map_or(served.anticipation, |limits| limits.anticipation).map(Into::into),
        group_commit: GroupCommit::of(handle.group_commits()),
        gate: Gate::of(snapshot.runtime.at, &snapshot.runtime.shards),
        workers: snapshot.workers.clone(),
        queued: snapshot.runtime.shards.iter().map(|shard| shard.queued).sum(),
        in_flight: snapshot.runtime.shards.iter().map(|shard| shard.in_flight).sum::<u32>() + snapshot.bypassing,
        known_objects: handle.known_objects(),
        recent: Flow::of(&recent, window_s),
        total: Flow::of(&total, served.started.elapsed().as_secs_f64()),
        apps,
        recording: handle.volume().recording().map(Into::into),
        prediction: served.predictions.status(),
        windows: windows(handle),
        device,
        selection,
        coordinator: served.agent.as_ref().map(|agent| agent.status()),
        tier: served.tier.as_ref().and_then(|tier| serde_json::to_value(tier.status()).ok()),
        notes,
    }
}

/// What the engines have published, without asking them.
fn windows(handle: &MountHandle) -> Vec<Window> {
    let scheduler = handle.volume().scheduler();
    let now = scheduler.clock().now();
    let window = |engine| Some(Window::of(engine, &*scheduler.window(engine)?, now));
    (0..scheduler.shards()).filter_map(window).collect()
}

fn notes(snapshot: &VolumeSnapshot) -> Vec<String> {
    let mut notes = Vec::new();
    let (policy, engines) = (&snapshot.runtime.policy, snapshot.runtime.shards.len());
    if policy.info().shared_engine && engines > 1 {
        notes.push(format!(
            "{} coordinates targets, but here each of the {engines} targets has an engine of its own; \
             mount with --engines shared for one engine over all",
            policy.name()
        ));
    }
    notes
}

/// The counters of the last window that has ended, over all engines. Engines look at the clock only when something
/// happens, so one that is idle may still hold what is long past.
fn recent(shards: &[ShardSnapshot], at: Time) -> Counters {
    let mut sum = Counters::default();
    for shard in shards {
        let mut stats = shard.stats.clone();
        stats.roll(at);
        sum.merge(stats.last_window());
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_told_from_questions() {
        assert_eq!(understand(b"{\"version\":1,\"command\":\"status\"}\n"), Ok(Command::Status));
        for line in
            [&b"\n"[..], b"\xff\xfe\n", b"[]\n", b"{}\n", b"{\"version\":1}\n", b"{\"version\":1,\"command\":\"x\"}\n"]
        {
            assert!(understand(line).unwrap_err().contains("not a question"), "{line:?}");
        }
        assert!(understand(b"{\"version\":1,\"comm").unwrap_err().contains("one line"));
        assert!(understand(b"{\"version\":2,\"new\":1}\n").unwrap_err().contains("version 1"));
    }
}
