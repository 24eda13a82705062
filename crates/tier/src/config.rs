//! Settings, and what can go wrong at the start.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use sluice_core::PolicyConfig;

use crate::locality::Rule;

/// Settings of a tier in use. Sizes of the log and the prefetch area are fixed when it is made ([`Geometry`]).
#[derive(Clone, Debug)]
pub struct Config {
    /// When writes go to the SSD. Ours by default ([`Rule::cost`]).
    pub rule: Rule,
    /// The algorithm of the ghost queue: the one that orders the disk's requests.
    pub ghost_policy: PolicyConfig,
    /// Most requests in the ghost queue, 1 to 67,108,862. The paper's is as large as the queue on the SSD in bytes, which
    /// bounds this one, too; more requests than this are not looked at.
    pub ghost_requests: u32,
    /// A request of this many bytes or more goes to the disk where that is allowed, whatever the rule says; ours: that large,
    /// the disk's own bandwidth is what counts. `u64::MAX`: the paper's.
    pub bypass_bytes: u64,
    /// Write-back without waiting for idleness begins when this share of the segments is in use, 0 to 1,
    pub high: f64,
    /// and ends when it has come down to this one.
    pub low: f64,
    /// Most bytes that one write to the disk puts together.
    pub writeback_bytes: usize,
    /// What lies between two pieces that are written back is read and written with them if it has at most so many bytes; 0:
    /// never. Ours: small pieces close together cost a disk nearly a revolution each, the bytes between them next to nothing.
    pub fill_bytes: u64,
    /// The disk is idle when nobody has used it for this long.
    pub idle: Duration,
    /// Idle time is used for write-back only if there are so many bytes, or nothing has come for [`Config::quiet`]; the more
    /// there are, the closer together they lie.
    pub idle_bytes: u64,
    /// See [`Config::idle_bytes`].
    pub quiet: Duration,
    /// Prefetching is done.
    pub prefetch: bool,
    /// A slot whose counter is above this is worth prefetching.
    pub prefetch_count: u32,
    /// Prefetching pauses when of the recently evicted slots less than this share was used, 0 to 1,
    pub used_pause: f64,
    /// and goes on when it is above this one.
    pub used_resume: f64,
    /// Every write is made durable before it is acknowledged, as the paper's; else only flushes and FUA do that, as a disk
    /// with a write cache.
    pub durable_writes: bool,
    /// Most extents in the mapping table (about 150 bytes of memory each); beyond that writes go as if the log was full.
    pub extents_max: usize,
    /// Ending writes everything back, as the paper's; else what is in the log stays there for the next start.
    pub unload: bool,
    /// What the disk is called: compared with the name under which the tier was made. `None`: not compared.
    pub disk_name: Option<String>,
    /// A file, not on the SSD, that is made when an SSD that cannot be written any more holds data that the disk has newer:
    /// such an SSD is refused later. Without it, writes over such data fail.
    pub failure_mark: Option<PathBuf>,
    /// Goes on where records that were durable are missing: what they held is what was there before.
    pub salvage: bool,
}

/// `aioli` on a single file: what does not wait for more goes in offset order.
fn offset_order() -> PolicyConfig {
    let aioli = PolicyConfig::parse("aioli").and_then(|policy| policy.with("wait_time", "0"));
    aioli.expect("an algorithm and a parameter that the engine has")
}

/// Where the failure of an SSD before this disk is noted unless somebody says otherwise: beside the disk, where a link leads; nowhere
/// for block devices.
///
/// # Errors
/// If the disk is not there.
pub fn failure_mark_of(disk: &std::path::Path) -> std::io::Result<Option<PathBuf>> {
    let disk = disk.canonicalize()?;
    Ok(disk.is_file().then(|| PathBuf::from(format!("{}.tier-failed", disk.display()))))
}

/// Whether the file says that this log failed, and if it does how many bytes were lost with it.
///
/// # Errors
/// If it is there and cannot be read: it may say so.
pub(crate) fn marked(path: &std::path::Path, log_id: u64) -> Result<Option<u64>, OpenError> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| OpenError::Mark { path: path.to_owned(), error })?,
    };
    let id = format!("{log_id:016x}");
    let mut lines = text.lines().map(str::split_whitespace).filter(|words| words.clone().any(|word| word == id));
    let lost = |word: &str| word.strip_prefix("lost=")?.parse().ok();
    // The first is of when it failed.
    let Some(mut words) = lines.next() else { return Ok(None) };
    let cut = || OpenError::Mark { path: path.to_owned(), error: io::Error::other("it was not written to its end") };
    words.find_map(lost).map(Some).ok_or_else(cut)
}

/// The name by which a tier knows its disk unless somebody says otherwise: absolute, and a link's own, as the name that
/// `/dev/disk/by-id/` has for a disk stays when the system gives disks other names at its next start.
///
/// # Errors
/// If the directory is not there.
pub fn disk_name_of(disk: &std::path::Path) -> std::io::Result<PathBuf> {
    let disk = std::path::absolute(disk)?;
    match (disk.parent(), disk.file_name()) {
        (Some(directory), Some(name)) => Ok(directory.canonicalize()?.join(name)),
        _ => Ok(disk),
    }
}

impl Default for Config {
    /// Our rule, the paper's prefetching (2; 40 %, 60 %); everything else as the fields say.
    fn default() -> Config {
        Config {
            rule: Rule::cost(),
            ghost_policy: offset_order(),
            ghost_requests: 1024,
            bypass_bytes: 1 << 20,
            high: 0.75,
            low: 0.5,
            writeback_bytes: 1 << 20,
            fill_bytes: 64 << 10,
            idle: Duration::from_millis(20),
            idle_bytes: 64 << 20,
            quiet: Duration::from_secs(1),
            prefetch: true,
            prefetch_count: 2,
            used_pause: 0.4,
            used_resume: 0.6,
            durable_writes: false,
            extents_max: 8 << 20,
            unload: true,
            disk_name: None,
            failure_mark: None,
            salvage: false,
        }
    }
}

/// The division of an SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the log: the queue's extension.
    pub queue_bytes: u64,
    /// Bytes of a segment, a multiple of 512, at least 4096; the log has at least four.
    pub segment_bytes: u32,
    /// Bytes of the prefetch area.
    pub area_bytes: u64,
    /// Bytes of a slot, a multiple of 4096.
    pub slot_bytes: u32,
}

impl Default for Geometry {
    /// The paper's: 8 GB, 8 GB, 4 MB; segments of 4 MiB.
    fn default() -> Geometry {
        Geometry { queue_bytes: 8 << 30, segment_bytes: 4 << 20, area_bytes: 8 << 30, slot_bytes: 4 << 20 }
    }
}

/// Why a tier cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A device failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// No valid superblock.
    #[error("{0}: no tier on it; make one with `sluice tier create`")]
    NoTier(String),
    /// A format of another version.
    #[error("{device}: format {found}, this program knows {}; use the program that made it", crate::format::VERSION)]
    Version {
        /// Which device.
        device: String,
        /// What was found.
        found: u32,
    },
    /// Sizes that cannot be.
    #[error("{0}")]
    Geometry(String),
    /// The disk is another one.
    #[error("the tier belongs to {wanted}, this is {found}; written back there it would destroy what is on it")]
    OtherDisk {
        /// Name and size of the one that it was made for.
        wanted: String,
        /// Of the one given.
        found: String,
    },
    /// The SSD failed before and holds what is out of date.
    #[error("{0}: this SSD failed while in use, and the disk has newer data than it holds; make the tier anew")]
    Failed(String),
    /// The same, and some of what only it had could not be read.
    #[error(
        "{device}: this SSD failed while in use, and {bytes} bytes that only it had could not be read; the disk has older data there"
    )]
    Lost {
        /// Which device.
        device: String,
        /// How many.
        bytes: u64,
    },
    /// Nobody can tell whether the SSD failed before.
    #[error("{}: {error}; it may say that the SSD failed while in use, after which the disk has newer data than that holds", .path.display())]
    Mark {
        /// The failure mark.
        path: std::path::PathBuf,
        /// Why it cannot be read.
        error: io::Error,
    },
    /// Records that had been durable are missing or damaged.
    #[error(
        "{device}: records {first} to {last} of the log were durable and are damaged; `sluice tier check` tells more, with \
         salvage what is left is used"
    )]
    Damaged {
        /// Which device.
        device: String,
        /// The first one missing.
        first: u64,
        /// The last one known to have been durable.
        last: u64,
    },
    /// A setting that cannot be.
    #[error("{0}")]
    Setting(String),
}
