//! Attaching a FUSE device to a directory, and detaching it.
//!
//! Done here rather than by the FUSE library: that one reports every failure as text, and unmounts by path when its
//! session ends, even if something else has been mounted there since.

use std::fs::{self, OpenOptions};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use sluice_storage::mounts::{self, Mount};

use crate::{MountError, MountOptions, Remount, spare};

/// As `mount -t fuse.sluice` has it, so that remounting and `/etc/fstab` find the helper.
const SUBTYPE: &str = "sluice";
const TYPE: &str = "fuse.sluice";

/// Checks the mountpoint, clears away a dead mount, and returns the canonical path.
pub(crate) fn prepare(path: &Path, sources: &[PathBuf]) -> Result<PathBuf, MountError> {
    let at = || path.to_owned();
    let gone = |error: &io::Error| error.raw_os_error() == Some(libc::ENOTCONN);
    let mut meta = fs::metadata(path);
    // A question that was under way when the server was killed; the next one is told that there is none.
    if meta.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ECONNABORTED)) {
        meta = fs::metadata(path);
    }
    if meta.as_ref().is_err_and(gone) {
        let stale = |source| MountError::Stale { mountpoint: at(), source };
        let place = resolve_parent(path).map_err(stale)?;
        // Other servers die, too, and their mounts may hide something else.
        match mounts_at(&place).map_err(stale)?.last() {
            Some(mount) if is_ours(mount) => {}
            Some(mount) => return Err(MountError::Foreign { mountpoint: at(), kind: mount.kind.clone() }),
            None => return Err(MountError::InDeadMount { mountpoint: at() }),
        }
        tracing::warn!(mountpoint = %path.display(), "removing the mount that a killed daemon left behind");
        detach(&place, true).map_err(stale)?;
        meta = fs::metadata(path);
    }
    let io = |what| move |source| MountError::Io { mountpoint: path.to_owned(), what, source };
    match meta {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MountError::Missing { mountpoint: at() }),
        Err(error) if gone(&error) => return Err(MountError::Stale { mountpoint: at(), source: error }),
        Err(error) => return Err(io("looking at the mountpoint")(error)),
        Ok(meta) if !meta.is_dir() => return Err(MountError::NotADirectory { mountpoint: at() }),
        Ok(_) => {}
    }
    let path = path.canonicalize().map_err(io("resolving the mountpoint"))?;
    let mounts = mounts_at(&path).map_err(io("reading the table of mounts"))?;
    if mounts.last().is_some_and(is_ours) {
        return Err(MountError::AlreadyMounted { mountpoint: path });
    }
    for source in sources {
        let storage = source.canonicalize().map_err(io("resolving the storage's directory"))?;
        // Also where it has another name (bind mounts): mounted there it may appear in the storage.
        let top = identity(&storage);
        let inside = top.is_some() && path.ancestors().any(|dir| identity(dir) == top);
        if inside || storage.starts_with(&path) {
            return Err(MountError::Overlap { mountpoint: path, storage });
        }
    }
    if let Some(entry) = fs::read_dir(&path).map_err(io("listing the mountpoint"))?.next() {
        let entry = entry.map_or_else(|error| error.to_string(), |e| e.file_name().to_string_lossy().into_owned());
        return Err(MountError::NotEmpty { mountpoint: path, entry });
    }
    Ok(path)
}

/// What tells a directory from others, whatever its path.
fn identity(dir: &Path) -> Option<(u64, u64)> {
    fs::metadata(dir).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The canonical path of something that cannot be looked at itself.
fn resolve_parent(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(path),
    }
}

/// Whether the process that served what is mounted at `path` has died.
pub(crate) fn is_dead(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
}

fn open_device() -> Result<fs::File, MountError> {
    OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|source| MountError::NoDevice { source })
}

/// Says early if this machine cannot mount at all.
pub(crate) fn expect_device() -> Result<(), MountError> {
    open_device().map(drop)
}

/// Mounts at a prepared path and returns the FUSE device.
pub(crate) fn attach(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = open_device()?;
    let io = |what| move |source| MountError::Io { mountpoint: path.to_owned(), what, source };
    let mode = fs::metadata(path).map_err(io("looking at the mountpoint"))?.permissions().mode();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let fd = device.as_raw_fd();
    let allow = if options.allow_other { ",allow_other" } else { "" };
    let data = format!("fd={fd},rootmode={mode:o},user_id={uid},group_id={gid},default_permissions{allow}\0");
    let data = std::ffi::CString::from_vec_with_nul(data.into_bytes()).expect("one NUL, at the end");
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    flags.set(MountFlags::NOATIME, options.no_atime);
    match mount(options.shown_name(), path, TYPE, flags, &*data) {
        Ok(()) => Ok(device.into()),
        Err(Errno::PERM) => {
            drop(device);
            attach_unprivileged(path, options)
        }
        Err(error) => Err(io("mounting")(error.into())),
    }
}

/// The set-user-ID helper mounts for ordinary users and sends the device back over a socket.
fn attach_unprivileged(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let refused = |detail: String| MountError::NotPermitted { mountpoint: path.to_owned(), detail };
    let io = |what| move |source: Errno| MountError::Io { mountpoint: path.to_owned(), what, source: source.into() };
    // Without CLOEXEC: the helper inherits its end.
    let (ours, theirs) =
        net::socketpair(net::AddressFamily::UNIX, net::SocketType::STREAM, net::SocketFlags::empty(), None)
            .map_err(io("making a socket"))?;
    // It ends an option at a comma.
    let name = options.shown_name().to_string_lossy().replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={name},subtype={SUBTYPE},default_permissions");
    if options.suid || options.dev {
        let detail = "only root may allow set-ID programs (suid) and device files (dev)";
        return Err(refused(detail.into()));
    }
    let wanted = [
        (options.allow_other, ",allow_other"),
        (options.read_only, ",ro"),
        (options.no_exec, ",noexec"),
        (options.no_atime, ",noatime"),
    ];
    for (wanted, option) in wanted {
        if wanted {
            list.push_str(option);
        }
    }
    let child = Command::new("fusermount3")
        .args(["-o", &list, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| refused(format!("fusermount3: {error}")))?;
    drop(theirs);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = net::recvmsg(&ours, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let device = received.ok().and_then(|_| {
        ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
    });
    drop(ours);
    let output = child.wait_with_output().map_err(|error| refused(error.to_string()))?;
    device.ok_or_else(|| refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Unmounts; `lazy` takes the mount out of sight at once and ends it with its last user.
pub(crate) fn detach(path: &Path, lazy: bool) -> io::Result<()> {
    let flags = UnmountFlags::NOFOLLOW | if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match unmount(path, flags) {
        Err(Errno::PERM) => {
            let output =
                Command::new("fusermount3").arg(if lazy { "-uz" } else { "-u" }).arg("--").arg(path).output()?;
            let text = String::from_utf8_lossy(&output.stderr);
            match output.status.success() {
                true => Ok(()),
                false if text.contains("busy") => Err(Errno::BUSY.into()),
                false => Err(io::Error::other(text.trim().to_owned())),
            }
        }
        result => Ok(result?),
    }
}

/// The mounts at exactly this path, without touching them. They lie on top of each other: paths lead to the last.
///
/// # Errors
/// If the table cannot be read: then nobody knows what is mounted.
pub(crate) fn mounts_at(path: &Path) -> io::Result<Vec<Mount>> {
    spare::with_descriptor(|| mounts::at(path))
}

/// Everything that is mounted, without touching it.
///
/// # Errors
/// If the table cannot be read: then nobody knows what is mounted.
pub(crate) fn table() -> io::Result<Vec<Mount>> {
    spare::with_descriptor(mounts::table)
}

/// What tells a mount from others wherever it is: it can be moved, and directories above it can be renamed.
#[derive(Clone, Default)]
pub(crate) struct Made {
    id: u32,
    /// Also: the other number may be another mount's once this one is gone.
    pub(crate) device: String,
}

impl Made {
    pub(crate) fn of(mount: Mount) -> Made {
        Made { id: mount.id, device: mount.device }
    }

    /// None: it is gone.
    pub(crate) fn among<'a>(&self, table: &'a [Mount]) -> Option<&'a Mount> {
        table.iter().find(|mount| mount.id == self.id && mount.device == self.device)
    }
}

/// Whether this program has made it.
pub(crate) fn is_ours(mount: &Mount) -> bool {
    mount.kind == TYPE
}

/// Changes flags of our mount at a canonical path; the others stay.
pub(crate) fn remount(path: &Path, change: &Remount) -> Result<(), MountError> {
    let failed = |what| move |source| MountError::Io { mountpoint: path.to_owned(), what, source };
    let mount = mounts_at(path).map_err(failed("reading the table of mounts"))?.pop().filter(is_ours);
    let mount = mount.ok_or_else(|| MountError::NotMounted { mountpoint: path.to_owned() })?;
    let has = |option: &str| mount.options.split(',').any(|own| own == option);
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, change.read_only.unwrap_or(has("ro")));
    flags.set(MountFlags::NOSUID, change.suid.map_or(has("nosuid"), |suid| !suid));
    flags.set(MountFlags::NODEV, change.dev.map_or(has("nodev"), |dev| !dev));
    flags.set(MountFlags::NOEXEC, change.no_exec.unwrap_or(has("noexec")));
    for (flag, option) in [
        (MountFlags::NOATIME, "noatime"),
        (MountFlags::NODIRATIME, "nodiratime"),
        (MountFlags::NOSYMFOLLOW, "nosymfollow"),
    ] {
        flags.set(flag, has(option));
    }
    let result = rustix::mount::mount_remount(path, flags, c"");
    result.map_err(|error| match error {
        Errno::PERM => MountError::NotPermitted {
            mountpoint: path.to_owned(),
            detail: "changing the options of a mount needs root".into(),
        },
        Errno::BUSY => MountError::Busy { mountpoint: path.to_owned() },
        error => failed("remounting")(error.into()),
    })
}

/// Whether a mount refuses changes, whatever it was mounted with.
pub(crate) fn is_read_only(mount: &Mount) -> bool {
    mount.options.split(',').any(|option| option == "ro")
}

/// Raises the read-ahead above what the kernel offers to FUSE; needs root, and is only about speed.
pub(crate) fn raise_readahead(device: &str, bytes: u32) {
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = fs::write(&file, (bytes / 1024).to_string()) {
        tracing::debug!(%file, %error, "read-ahead stays at the kernel's default");
    }
}
