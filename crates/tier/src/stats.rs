//! What a tier has done.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use crate::locality::Decision;
use crate::recover::Report;
use crate::slots::SlotStats;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// Counts since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn get(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Bytes read by whoever uses the tier.
    read_bytes,
    /// Of these, from the log.
    read_log_bytes,
    /// Of these, from the prefetch area.
    read_area_bytes,
    /// Bytes written by whoever uses the tier.
    written_bytes,
    /// Of these, into the log.
    logged_bytes,
    /// Writes, and of these how many went into the log.
    writes,
    /// See `writes`.
    logged_writes,
    /// Records written.
    records,
    /// Bytes written to the SSD, for whatever reason: its wear.
    ssd_written_bytes,
    /// Bytes written back to the disk.
    written_back_bytes,
    /// Writes to the disk that this took.
    write_backs,
    /// Bytes read from the disk and written there again, as they lay between others that were written back.
    filled_bytes,
    /// Bytes loaded into the prefetch area.
    prefetched_bytes,
    /// Flushes by whoever uses the tier.
    flushes,
    /// Writes that waited for room in the log.
    waits,
    /// Errors of the disk.
    disk_errors,
    /// Errors of the SSD, and data there that did not match its checksum.
    ssd_errors,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Relaxed);
    }
}

/// How well the tier is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// In use.
    #[default]
    Well,
    /// The SSD has failed; what it holds is being written back.
    Failing,
    /// The SSD has failed and is not used any more; everything goes to the disk.
    PassThrough,
}

/// A tier's state and what it has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// How well it is.
    pub health: Health,
    /// The last error, in words; empty if there was none.
    pub last_error: String,
    /// The disk and the SSD.
    pub disk: String,
    /// See `disk`.
    pub ssd: String,
    /// Bytes that only the log has.
    pub dirty_bytes: u64,
    /// Bytes that were lost: reads of them fail.
    pub lost_bytes: u64,
    /// Segments of the log, and how many are in use.
    pub segments: u32,
    /// See `segments`.
    pub segments_used: u32,
    /// Extents in the mapping table.
    pub extents: usize,
    /// Share of read bytes that came from log or prefetch area, 0 to 1.
    pub hit_rate: f64,
    /// Bytes written to the SSD for each byte written into the log, 0 if none was: record headers, summaries, superblocks, and
    /// prefetched data.
    pub write_amplification: f64,
    /// The counts.
    pub counts: Counts,
    /// What decides.
    pub decision: Decision,
    /// The prefetch area.
    pub slots: SlotStats,
    /// What the start found.
    pub recovery: Report,
}
