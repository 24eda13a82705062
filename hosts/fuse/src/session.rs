//! The life of a mount.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, Filesystem, Notifier, Session, SessionACL};
use parking_lot::{Condvar, Mutex};
use sluice_core::AppId;
use sluice_runtime::{Volume, VolumeConfig};
use sluice_storage::{Storage, mounts};

use crate::announced::{Activity, Phases};
use crate::apps::Apps;
use crate::attach::{self, Made};
use crate::coherence::Invalidator;
use crate::core::{Core, SluiceFs};
use crate::handles::{Handle, Handles};
use crate::inodes::Inodes;
use crate::pool::Pool;
use crate::syncs::Syncs;
use crate::{FuseHost, GroupCommits, MountError, MountOptions, Remount, limits, spare};

/// Mounts `storage` at `mountpoint` and serves it with threads of its own.
///
/// A dead mount that a killed daemon left at the mountpoint is removed first. The limits that the process has of descriptors, of
/// the size of files and of processor time are raised as far as it may; the signal that it would get at the largest size
/// (`SIGXFSZ`) is ignored from then on, unless somebody handles it.
///
/// # Errors
/// See [`MountError`]; nothing stays mounted then.
pub fn mount(
    storage: Storage,
    mountpoint: &Path,
    options: MountOptions,
    config: VolumeConfig,
) -> Result<MountHandle, MountError> {
    let path = attach::prepare(mountpoint, &options.sources)?;
    limits::raise();
    spare::keep();
    let io = |what| {
        let mountpoint = path.clone();
        move |source| MountError::Io { mountpoint, what, source }
    };
    let invalidator = Arc::new(Invalidator::new());
    let volume = Arc::new(Volume::start(storage.clone(), Arc::new(FuseHost), config)?);
    let apps = Apps::new(&options.job_variables).map_err(io("starting a thread"))?;
    if options.no_atime {
        storage.namespace.keep_access_times().map_err(io("noatime on the storage"))?;
    }
    let core = Arc::new(Core {
        inodes: Arc::new(Inodes::new(storage.namespace.root())),
        namespace: storage.namespace,
        data: storage.data,
        volume: volume.clone(),
        apps: apps.clone(),
        files: Arc::new(Handles::new()),
        dirs: Handles::new(),
        options: options.clone(),
        syncs: Syncs::new(options.sync_threads, options.group_commit),
        closes: Pool::new("sluice-close", options.sync_threads),
        invalidator: invalidator.clone(),
    });
    let (inodes, files, syncs) = (core.inodes.clone(), core.files.clone(), core.syncs.clone());
    let mounted = serve(SluiceFs(core), &path, &options, |notifier| invalidator.start(notifier))?;
    Ok(MountHandle { mounted, volume, apps, inodes, files, syncs })
}

/// Checks that a storage on the directories `sources` could be mounted at `mountpoint`, and returns its canonical path.
/// [`mount`] checks the same; this is for callers that would otherwise prepare a storage in vain. A dead mount that a
/// killed daemon left there is removed.
///
/// # Errors
/// See [`MountError`].
pub fn check_mountpoint(mountpoint: &Path, sources: &[PathBuf]) -> Result<PathBuf, MountError> {
    attach::expect_device()?;
    attach::prepare(mountpoint, sources)
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountState {
    /// No mount of this program.
    Absent,
    /// A mount whose process serves it.
    Alive,
    /// A mount whose process has died.
    Dead,
}

/// Looks at a canonical path; whoever made the mount there.
///
/// # Errors
/// If the table of mounts cannot be read.
pub fn state(path: &Path) -> Result<MountState, MountError> {
    let mounts = attach::mounts_at(path).map_err(unknown(path))?;
    Ok(match mounts.last() {
        Some(mount) if attach::is_ours(mount) && attach::is_dead(path) => MountState::Dead,
        Some(mount) if attach::is_ours(mount) => MountState::Alive,
        _ => MountState::Absent,
    })
}

/// Nobody knows what is mounted at the path.
fn unknown(path: &Path) -> impl Fn(io::Error) -> MountError {
    move |source| MountError::Io { mountpoint: path.to_owned(), what: "reading the table of mounts", source }
}

/// Unmounts whatever mount of this program is at a canonical path, without its process's help.
///
/// # Errors
/// [`MountError::Busy`] if somebody uses it and it is not to be done lazily, and what the system says.
pub fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    attach::detach(path, lazy).map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => MountError::Busy { mountpoint: path.to_owned() },
        _ => MountError::Io { mountpoint: path.to_owned(), what: "unmounting", source },
    })
}

/// Changes options of the mount at a canonical path, whoever serves it. Needs root.
///
/// # Errors
/// [`MountError::NotMounted`], and what the system says.
pub fn remount(path: &Path, change: &Remount) -> Result<(), MountError> {
    attach::remount(path, change)
}

/// The programs that use a mount. Keeps nothing of the mount but what it knows of them.
#[derive(Clone)]
pub struct Programs(Arc<Apps>);

impl Programs {
    /// What those do that say so (MPI programs under `sluice mpirun` do) and have not ended. O(their processes).
    #[must_use]
    pub fn activities(&self) -> Vec<Activity> {
        self.0.activities()
    }
}

impl std::fmt::Debug for Programs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Programs").finish_non_exhaustive()
    }
}

/// A mount. Dropping it unmounts lazily and does not wait.
pub struct MountHandle {
    mounted: Mounted,
    volume: Arc<Volume<FuseHost>>,
    apps: Arc<Apps>,
    inodes: Arc<Inodes>,
    files: Arc<Handles<Handle>>,
    syncs: Syncs,
}

impl MountHandle {
    /// Where it was mounted. It may be elsewhere now: a directory above it can be renamed, and root can move it.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mounted.path
    }

    /// The scheduler, for status and settings.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume<FuseHost>> {
        &self.volume
    }

    /// Whether it refuses changes now: that can be changed while it is mounted.
    ///
    /// # Errors
    /// If the table of mounts cannot be read.
    pub fn is_read_only(&self) -> Result<bool, MountError> {
        let table = attach::table().map_err(unknown(&self.mounted.path))?;
        Ok(self.mounted.made.among(&table).is_some_and(attach::is_read_only))
    }

    /// What to call an application: `SLURM_JOB_ID=17 uid=1000`, `uid=1000`.
    #[must_use]
    pub fn app_name(&self, app: AppId) -> String {
        self.apps.name(app)
    }

    /// What the processes of an application do, if they say so (MPI programs under `sluice mpirun` do). O(processes).
    #[must_use]
    pub fn app_phases(&self, app: AppId) -> Option<Phases> {
        self.apps.phases(app)
    }

    /// The programs that use it.
    #[must_use]
    pub fn programs(&self) -> Programs {
        Programs(self.apps.clone())
    }

    /// Objects that the kernel remembers.
    #[must_use]
    pub fn known_objects(&self) -> usize {
        self.inodes.len()
    }

    /// Files that are open. The kernel reports the end of one a moment after its last user has closed it.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.files.len()
    }

    /// How syncs of several programs are put together.
    #[must_use]
    pub fn group_commits(&self) -> GroupCommits {
        self.syncs.group_commits()
    }

    /// Sets [`MountOptions::group_commit`] from now on.
    pub fn set_group_commit(&self, positioning: Option<Duration>) {
        self.syncs.set_positioning(positioning);
    }

    /// Unmounts. What was written is in the storage when this returns; [`MountHandle::wait`] then returns soon.
    ///
    /// # Errors
    /// [`MountError::Busy`] if somebody uses the mount.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.mounted.unmount(false)
    }

    /// Takes the mount out of sight at once; it ends when its last user leaves.
    ///
    /// # Errors
    /// What the system says.
    pub fn unmount_lazily(&self) -> Result<(), MountError> {
        self.mounted.unmount(true)
    }

    /// Waits until the mount has ended, whoever ended it, and all its requests were answered.
    ///
    /// # Errors
    /// Why serving it stopped, if nobody asked for that.
    pub fn wait(&self) -> io::Result<()> {
        self.mounted.wait()
    }

    /// True once the mount has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.mounted.over.0.lock().is_some()
    }
}

/// A file system that is mounted and served.
pub(crate) struct Mounted {
    pub(crate) path: PathBuf,
    made: Made,
    over: Over,
}

/// How serving ended, once it has.
type Over = Arc<(Mutex<Option<Ending>>, Condvar)>;

/// Why serving stopped, if not because the mount went away.
type Ending = Result<(), String>;

/// Mounts at a prepared path. `notify` gets what tells the kernel of changes; it keeps the device open.
pub(crate) fn serve(
    fs: impl Filesystem,
    path: &Path,
    options: &MountOptions,
    notify: impl FnOnce(Notifier),
) -> Result<Mounted, MountError> {
    let io = |what| move |source| MountError::Io { mountpoint: path.to_owned(), what, source };
    let mut config = Config::default();
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    // The kernel keeps others out (`allow_other`). The library would also turn away the kernel itself, which writes times of
    // the write-back cache in nobody's name.
    config.acl = SessionACL::All;
    let device = attach::attach(path, options)?;
    // Until the first request was answered the mount is there but waits for us: do not touch it.
    let session = match Session::from_fd(fs, device, config.acl, config) {
        Ok(session) => session,
        Err(source) => {
            let _ = attach::detach(path, true);
            return Err(io("agreeing with the kernel")(source));
        }
    };
    notify(session.notifier());
    // Without knowing which it is it could not be told from another one at the end.
    let mounts = attach::mounts_at(path).inspect_err(|_| _ = attach::detach(path, true)).map_err(unknown(path))?;
    let made = mounts.into_iter().next_back().map(Made::of).unwrap_or_default();
    attach::raise_readahead(&made.device, options.max_readahead);
    let mounted = Mounted { path: path.to_owned(), made, over: Over::default() };
    let over = mounted.over.clone();
    let (at, made) = (mounted.path.clone(), mounted.made.clone());
    let run = move || {
        // Ends when the mount does, and closes the device: whatever happened, nobody waits for an answer after this.
        let gone = || attach::table().is_ok_and(|table| made.among(&table).is_none());
        let result = match session.run() {
            // A thread that was about to ask the kernel for requests when the mount went away.
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) && gone() => Ok(()),
            result => result,
        };
        if let Err(error) = &result {
            tracing::error!(mountpoint = %at.display(), %error, "serving the mount failed");
            let _ = remove(&at, &made, true);
        }
        *over.0.lock() = Some(result.map_err(|error| error.to_string()));
        over.1.notify_all();
    };
    if let Err(source) = std::thread::Builder::new().name("sluice-fuse".into()).spawn(run) {
        let _ = attach::detach(path, true);
        return Err(io("starting a thread")(source));
    }
    Ok(mounted)
}

/// Unmounts this very mount, wherever it is now; nothing to do if it is gone already.
fn remove(path: &Path, made: &Made, lazy: bool) -> Result<(), MountError> {
    let table = attach::table().map_err(unknown(path))?;
    let Some(mount) = made.among(&table) else { return Ok(()) };
    let busy = || MountError::Busy { mountpoint: mount.path.clone() };
    // Its path leads to another mount if that is on top of it, or of a directory above.
    if mounts::reached(&table, &mount.path).is_none_or(|reached| reached.id != mount.id) {
        return Err(busy());
    }
    attach::detach(&mount.path, lazy).or_else(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => Err(busy()),
        // Not mounted there: somebody else was faster, unless it was moved just now.
        Some(libc::EINVAL | libc::ENOENT) => {
            let table = attach::table().map_err(unknown(path))?;
            if made.among(&table).is_none() { Ok(()) } else { Err(busy()) }
        }
        _ => Err(MountError::Io { mountpoint: mount.path.clone(), what: "unmounting", source }),
    })
}

/// Ends a mount with `remove` and returns when that is done, or when the mount has ended: with all requests answered, the
/// kernel may still need long to forget what it knew of a large tree.
fn end(
    over: &Over,
    path: &Path,
    remove: impl FnOnce() -> Result<(), MountError> + Send + 'static,
) -> Result<(), MountError> {
    let removed = Arc::new(Mutex::new(None));
    let (told, ended) = (removed.clone(), over.clone());
    let work = move || {
        let result = remove();
        let _waiting = ended.0.lock();
        *told.lock() = Some(result);
        ended.1.notify_all();
    };
    let spawned = std::thread::Builder::new().name("sluice-unmount".into()).spawn(work);
    spawned.map_err(|source| MountError::Io { mountpoint: path.to_owned(), what: "starting a thread", source })?;
    let mut ending = over.0.lock();
    over.1.wait_while(&mut ending, |ending| ending.is_none() && removed.lock().is_none());
    drop(ending);
    let result = removed.lock().take();
    result.unwrap_or(Ok(()))
}

impl Mounted {
    pub(crate) fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        if self.over.0.lock().is_some() {
            return Ok(());
        }
        let (path, made) = (self.path.clone(), self.made.clone());
        end(&self.over, &self.path, move || remove(&path, &made, lazy))
    }

    pub(crate) fn wait(&self) -> io::Result<()> {
        let (result, changed) = &*self.over;
        let mut result = result.lock();
        changed.wait_while(&mut result, |result| result.is_none());
        result.clone().unwrap_or(Ok(())).map_err(io::Error::other)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.unmount(true);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn unmounting_returns_when_the_mount_has_ended_or_why_it_does_not() {
        let (over, at) = (Over::default(), Path::new("/x"));
        let busy = || MountError::Busy { mountpoint: PathBuf::from("/x") };
        assert!(matches!(end(&over, at, move || Err(busy())), Err(MountError::Busy { .. })));
        end(&over, at, || Ok(())).unwrap();
        // The mount ends, but the system call goes on for as long as the kernel has to forget a tree.
        let (forgotten, forgetting) = channel::<()>();
        let ended = over.clone();
        let remove = move || {
            *ended.0.lock() = Some(Ok(()));
            ended.1.notify_all();
            let _ = forgetting.recv();
            Ok(())
        };
        end(&over, at, remove).unwrap();
        drop(forgotten);
    }
}
