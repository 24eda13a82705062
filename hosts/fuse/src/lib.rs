//! Sluicegate as a FUSE file system in front of a [`Storage`](sluice_storage::Storage).
//!
//! [`mount`] gives a directory that behaves like the storage's own, except that each read and write passes the
//! scheduler. With the pass-through policy a request is executed by the very thread that took it from the kernel; with
//! the others that thread goes back for the next request, and a worker answers.
//!
//! | module | what it does |
//! |---|---|
//! | `filesystem` | the FUSE operations |
//! | `core` | what they have in common: attributes, opening, creating |
//! | `coherence` | what the kernel's page cache may be believed to hold |
//! | `inodes`, `handles` | objects the kernel knows, what is open |
//! | `pool`, `syncs` | threads for operations that wait; syncs that go together |
//! | `apps`, `groups` | which application a request belongs to, which groups its process |
//! | `session`, `attach` | mounting, unmounting, clearing away dead mounts |
//! | [`passthrough`] | the same without a scheduler, to compare with |
//!
//! # Applications
//! A request belongs to the batch job of its process together with the user, `SLURM_JOB_ID=17 uid=1000`, or else to the
//! user, `uid=1000`. A job is known by an environment variable, which anybody can set, so it never counts without the user
//! id that the kernel gives: nobody can pose as another user. Among the processes of one user the variable is believed.
//!
//! # Limits
//! * Memory-mapped writes reach the scheduler when the kernel writes the pages back, and belong to whoever opened the
//!   file.
//! * `O_APPEND` writes go where the kernel believes the end to be: appending to one file both here and behind the
//!   mount at the same time loses data.
//! * With [`CacheMode::Auto`] a change behind the mount is seen when the file is opened next (and when its attributes are
//!   asked for after their timeout, if nobody has it open for writing here); reads through a file that stays open may show
//!   the old contents until then. A change behind the mount within the same tick of the clock (1 to 10 ms) as the last
//!   write through it, while a write through it is under way, or between two that are less than 10 ms apart, may be taken for
//!   one made here.
//! * While a file is mapped and written, `SEEK_DATA` may take the pages not yet written back for a hole.
//! * POSIX and `flock` locks hold among the users of this mount only: neither those of another mount of the same directory
//!   nor those of the directory itself see them.
//! * `inotify` and `fanotify` report what is done through this mount only; a change behind it is noticed, but not reported.
//! * File handles (`open_by_handle_at`, an NFS server above the mount) work for what the kernel knows and for 16,384
//!   objects that it forgot last. Older ones, and those of an earlier mount, are stale (`ESTALE`): the protocol has no
//!   operation that finds an object by its number. Clients of a re-export have to look names up again then.
//! * The time of last access is that of the directory behind the mount. Reads that the kernel's cache answers do not change
//!   it, so `strictatime` cannot be had.
//! * No splicing (the FUSE library copies), leases or `ioctl`.

mod announced;
mod apps;
mod attach;
mod coherence;
mod core;
mod error;
mod filesystem;
mod groups;
mod handles;
mod inodes;
mod limits;
mod lookups;
mod options;
pub mod passthrough;
mod pool;
mod session;
mod spare;
mod syncs;

pub use announced::{Activity, Phases};
pub use error::MountError;
pub use filesystem::{FuseHost, Ticket};
pub use options::{CacheMode, MountOptions, Remount};
pub use session::{MountHandle, MountState, Programs, check_mountpoint, mount, remount, state, unmount};
pub use syncs::GroupCommits;
