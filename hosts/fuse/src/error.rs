//! What can go wrong when mounting and unmounting: what, where, and what to do.

use std::io;
use std::path::PathBuf;

/// Why a mount could not be made or ended.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel's FUSE device is missing or closed to this process.
    #[error(
        "/dev/fuse cannot be opened ({source}): load the kernel module (modprobe fuse), pass the device into the \
         container (--device /dev/fuse), or let this user open it (chmod 666 /dev/fuse)"
    )]
    NoDevice {
        /// The system's answer.
        source: io::Error,
    },
    /// Neither the process nor fusermount3 may mount.
    #[error("{}: not allowed to mount here ({detail}): run as root, or install fusermount3 (package fuse3)", mountpoint.display())]
    NotPermitted {
        /// Where.
        mountpoint: PathBuf,
        /// What refused.
        detail: String,
    },
    /// The mountpoint does not exist.
    #[error("{}: the mountpoint does not exist; create the directory first (mkdir -p)", mountpoint.display())]
    Missing {
        /// Where.
        mountpoint: PathBuf,
    },
    /// The mountpoint is not a directory.
    #[error("{}: the mountpoint is not a directory; choose an empty directory", mountpoint.display())]
    NotADirectory {
        /// Where.
        mountpoint: PathBuf,
    },
    /// The mountpoint has entries that the mount would hide.
    #[error("{}: the mountpoint is not empty (it holds {entry:?}); choose an empty directory", mountpoint.display())]
    NotEmpty {
        /// Where.
        mountpoint: PathBuf,
        /// One of its entries.
        entry: String,
    },
    /// A living Sluicegate mount is there already.
    #[error("{}: already a Sluicegate mount; unmount it first (sluice unmount {})", mountpoint.display(),
        mountpoint.display())]
    AlreadyMounted {
        /// Where.
        mountpoint: PathBuf,
    },
    /// The mount would contain its own storage, or the other way round: requests would wait for themselves.
    #[error(
        "{}: the mountpoint and the storage {} lie inside one another; choose a mountpoint outside the storage",
        mountpoint.display(), storage.display()
    )]
    Overlap {
        /// Where.
        mountpoint: PathBuf,
        /// The storage's directory.
        storage: PathBuf,
    },
    /// What a killed daemon left could not be cleared away.
    #[error(
        "{}: a dead mount is in the way (\"transport endpoint is not connected\") and cannot be removed ({source}); \
         try: umount -l {}", mountpoint.display(), mountpoint.display()
    )]
    Stale {
        /// Where.
        mountpoint: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// What does not answer at the mountpoint is somebody else's mount.
    #[error(
        "{}: a dead mount of another program is in the way (type {kind}, \"transport endpoint is not connected\"); \
         it is left alone: unmount it (umount -l {}), or choose another mountpoint",
        mountpoint.display(), mountpoint.display()
    )]
    Foreign {
        /// Where.
        mountpoint: PathBuf,
        /// Its file system type.
        kind: String,
    },
    /// The mountpoint lies in a mount whose server has died.
    #[error(
        "{}: the mountpoint lies in a mount whose server has died (\"transport endpoint is not connected\"); unmount that \
         first, or choose another mountpoint",
        mountpoint.display()
    )]
    InDeadMount {
        /// Where.
        mountpoint: PathBuf,
    },
    /// There is no mount whose options could be changed.
    #[error("{}: no Sluicegate mount is there; mount first (sluice mount)", mountpoint.display())]
    NotMounted {
        /// Where.
        mountpoint: PathBuf,
    },
    /// The mount is in use.
    #[error(
        "{}: in use; close the files and leave the directories below it (fuser -vm shows who), or take it out of sight \
         now and let them finish (sluice unmount --lazy)",
        mountpoint.display()
    )]
    Busy {
        /// Where.
        mountpoint: PathBuf,
    },
    /// The scheduler could not be started.
    #[error("the scheduler did not start: {0}")]
    Runtime(#[from] sluice_runtime::StartError),
    /// Anything else the system says.
    #[error("{}: {what}: {source}", mountpoint.display())]
    Io {
        /// Where.
        mountpoint: PathBuf,
        /// During what.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl MountError {
    /// True if this machine cannot mount at all, whatever the arguments: callers may go on without.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, MountError::NoDevice { .. } | MountError::NotPermitted { .. })
    }
}
