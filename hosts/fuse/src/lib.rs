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
//! | [`bench`] | compares the two with fio |
//!
//! Not supported: splicing (the FUSE library copies), leases, `ioctl`. Memory-mapped writes reach the scheduler when
//! the kernel writes the pages back, and belong to whoever opened the file.

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
pub use session::{MountHandle, mount};
