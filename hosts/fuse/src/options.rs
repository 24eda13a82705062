//! How a mount behaves.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the kernel may keep in its page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheMode {
    /// Nothing: each read and write of an application is one request (`direct_io`), so the scheduler sees the
    /// application's own pattern. Shared mappings work (Linux 6.6 and later).
    None,
    /// Reads are cached, also over close and open; writes go through at once. A file that changes in the source
    /// directory is noticed when it is opened (close-to-open, as with NFS). The default, because small and repeated reads
    /// gain much. Where the cache does not help it costs a copy: writes, and large reads of what is read once, are faster
    /// with [`CacheMode::None`]. So is direct I/O (`O_DIRECT`): to keep it coherent with its cache the kernel carries out
    /// one direct write to a file at a time, and asynchronous I/O (AIO) one by one. In neither mode is a write reported as
    /// done before the storage has it.
    #[default]
    Auto,
    /// Writes too stay in the kernel's cache and come later, merged, in the name of whoever opened the file. Fastest for
    /// small writes, but only for directories that nobody changes except through this mount: the kernel then believes
    /// its own sizes and times.
    Writeback,
}

/// Options of a mount. [`Default`] is right for most.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// See [`CacheMode`].
    pub cache: CacheMode,
    /// How long the kernel may believe attributes.
    pub attr_timeout: Duration,
    /// How long the kernel may believe that a name leads to an object.
    pub entry_timeout: Duration,
    /// Threads that serve the kernel. With the pass-through policy each also executes requests, so this is then the
    /// storage's queue depth.
    pub threads: usize,
    /// Most threads for operations that wait for a device: `fsync`, truncation, allocation. They start when needed.
    pub sync_threads: usize,
    /// What moving costs the device, if syncs of several programs may be put off a little so that they go together: one commit
    /// of the file system's journal then serves all of them. `None`: each sync goes at once.
    pub group_commit: Option<Duration>,
    /// Largest write request in bytes; the kernel allows 1 MiB unless `fs.fuse.max_pages_limit` says more.
    pub max_write: u32,
    /// Read-ahead in bytes. The kernel offers 128 KiB; as root more is set through sysfs.
    pub max_readahead: u32,
    /// Requests without a waiting process (read-ahead, write-back, asynchronous I/O) that the kernel sends at a time.
    pub max_background: u16,
    /// From how many of these the kernel calls the mount congested; `None`: three quarters.
    pub congestion_threshold: Option<u16>,
    /// Lets other users in; the kernel checks permissions. Without root this needs `user_allow_other` in
    /// `/etc/fuse.conf`. Default: as root.
    pub allow_other: bool,
    /// Refuses changes.
    pub read_only: bool,
    /// Honours set-ID bits of programs on the mount. Needs root.
    pub suid: bool,
    /// Honours device files on the mount. Needs root.
    pub dev: bool,
    /// Refuses to start programs on the mount.
    pub no_exec: bool,
    /// Reading changes no times of access.
    pub no_atime: bool,
    /// First column of `/proc/mounts`; empty: the sources, `/disk1:/disk2`, by which `mount -a` and `findmnt` know a mount again.
    pub name: String,
    /// Directories that the storage consists of; a mountpoint inside or around one is refused.
    pub sources: Vec<PathBuf>,
    /// Environment variables that hold a batch job's id, most wanted first. A process without any is its user.
    pub job_variables: Vec<String>,
}

/// What can be changed about a living mount; `None` leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remount {
    /// See [`MountOptions::read_only`].
    pub read_only: Option<bool>,
    /// See [`MountOptions::suid`].
    pub suid: Option<bool>,
    /// See [`MountOptions::dev`].
    pub dev: Option<bool>,
    /// See [`MountOptions::no_exec`].
    pub no_exec: Option<bool>,
}

impl MountOptions {
    /// What is mounted, as `/proc/mounts` has it.
    pub(crate) fn shown_name(&self) -> OsString {
        let mut name = OsString::from(&self.name);
        for source in self.sources.iter().filter(|_| self.name.is_empty()) {
            if !name.is_empty() {
                name.push(":");
            }
            name.push(source);
        }
        if name.is_empty() { "sluicegate".into() } else { name }
    }
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let jobs = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "COBALT_JOBID", "OMPI_MCA_ess_base_jobid"];
        MountOptions {
            cache: CacheMode::default(),
            attr_timeout: Duration::from_secs(1),
            entry_timeout: Duration::from_secs(1),
            threads: (2 * cores).clamp(4, 16),
            sync_threads: 32,
            group_commit: None,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 64,
            congestion_threshold: None,
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            suid: false,
            dev: false,
            no_exec: false,
            no_atime: false,
            name: String::new(),
            sources: Vec::new(),
            job_variables: jobs.map(String::from).into(),
        }
    }
}
