//! Sluicegate as a FUSE file system in front of a [`Storage`](sluice_storage::Storage).
//!
//! [`mount`] gives a directory that behaves like the storage's own, except that each read and write passes the
//! scheduler. With the pass-through policy a request is executed by the very thread that took it from the kernel; with
//! the others that thread goes back for the next request, and a worker answers.
//!
//! | module | what it does |
//! |---|---|
//! | `filesystem` | the FUSE operations |
//! | `inodes` | objects the kernel knows, open files |
//! | `apps` | which application a request belongs to |
//! | `session`, `attach` | mounting, unmounting, clearing away dead mounts |
//! | [`passthrough`] | the same without a scheduler, to compare with |
//! | [`mod@bench`] | compares the two with fio |
//!
//! # Limits
//! * Memory-mapped writes reach the scheduler when the kernel writes the pages back, and belong to whoever opened the
//!   file.
//! * `O_APPEND` writes go where the kernel believes the end to be: appending to one file both here and behind the
//!   mount at the same time loses data.
//! * While a file is mapped and written, `SEEK_DATA` may take the pages not yet written back for a hole.
//! * Locks hold among the users of this mount only.
//! * The kernel keeps a reference to each object it remembers, at the cost of one descriptor.
//! * No splicing (the FUSE library copies), leases or `ioctl`.

mod apps;
mod attach;
pub mod bench;
mod error;
mod filesystem;
mod inodes;
mod options;
pub mod passthrough;
mod session;

pub use error::MountError;
pub use filesystem::{FuseHost, Ticket};
pub use options::{CacheMode, MountOptions};
pub use session::{MountHandle, MountState, check_mountpoint, mount, state, unmount};
