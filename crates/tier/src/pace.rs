//! What goes into the log and what is done in the background, and when: decisions without I/O, as [`crate::locality`] and
//! [`crate::slots`]. A [`Tier`](crate::Tier) and the simulator make them with the same code.

use std::time::Duration;

use crate::config::Config;
use crate::format::Kind;
use crate::map::Extent;

/// Written back between flushes of the disk, in bytes
pub const FLUSH_BYTES: u64 = 64 << 20;
/// and in extents.
pub const FLUSH_EXTENTS: usize = 65_536;
/// Extents of the mapping table looked at for one write to the disk.
pub const LOOK: usize = 4096;
/// Most extents put together into one write.
pub const MERGE: usize = 512;
/// Most bytes of data in a record of the log.
pub const RECORD_BYTES: usize = 1 << 20;
/// How often it is looked whether there is something to do,
pub const LOOK_EVERY: Duration = Duration::from_millis(10);
/// and with nothing to write back and no slot to load.
pub const LOOK_IDLE: Duration = Duration::from_millis(100);

/// What decisions about the background are made from.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Segments of the log, and how many of them are in use.
    pub segments: (u32, u32),
    /// Bytes that only the log has, without those that cannot be read.
    pub dirty_bytes: u64,
    /// How long nobody has used the disk; `None`: somebody does.
    pub unused: Option<Duration>,
    /// How long nothing has come into the log.
    pub quiet: Duration,
    /// A pass of write-back is under way.
    pub in_pass: bool,
    /// As if nobody had used the disk for long.
    pub forced: bool,
}

/// What is worth doing, the first of these that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Writing back.
    pub write_back: bool,
    /// Flushing the disk, and giving up segments that it does not need.
    pub reclaim: bool,
    /// Loading any slot; else only one near the disk's head.
    pub any_slot: bool,
}

impl Config {
    /// What is to be done in the background. `pressed`: the log has been filling up, and is to be emptied to
    /// [`Config::low`] whether the disk is idle or not.
    #[must_use]
    pub fn pace(&self, seen: &Seen, pressed: &mut bool) -> Pace {
        let (all, used) = (f64::from(seen.segments.0), f64::from(seen.segments.1));
        if used >= all * self.high {
            *pressed = true;
        } else if used <= all * self.low {
            *pressed = false;
        }
        let unused = seen.unused.is_some_and(|time| time >= self.idle);
        let worth_it = seen.dirty_bytes >= self.idle_bytes || seen.quiet >= self.quiet;
        let idle = seen.forced || unused && worth_it;
        Pace {
            write_back: seen.dirty_bytes > 0 && (*pressed || idle || seen.in_pass && unused),
            reclaim: *pressed || idle,
            any_slot: unused,
        }
    }

    /// How many of the extents, which are in order, go to the disk in one write, with at most `fill` bytes between two.
    #[must_use]
    pub fn together(&self, extents: &[(u64, Extent)], fill: u64) -> usize {
        let Some((start, _)) = extents.first() else { return 0 };
        let mut end = *start;
        let mut zeros = false;
        let together = extents.iter().take_while(|(offset, extent)| {
            let zero = extent.entry.kind != Kind::Data;
            let first = offset == start;
            let joins = first || *offset == end || offset - end <= fill;
            end = offset + extent.len;
            // Zeros go alone: they may be long, and are not data.
            let fits = first || !zero && !zeros && end - start <= self.writeback_bytes as u64;
            zeros |= zero;
            joins && fits
        });
        together.count()
    }

    /// Whether a write of so many bytes, none of which are in the log, goes there. `on`: see [`crate::locality::Decider::is_on`];
    /// `full`: there is no room.
    #[must_use]
    pub fn takes(&self, len: u64, on: bool, full: bool) -> bool {
        on && !full && len < self.bypass_bytes
    }
}

/// How many of the segments in use, from the oldest on, a pass of write-back is about: half of them under pressure, as room then
/// comes sooner, in pieces.
#[must_use]
pub fn pass_segments(used: usize, pressed: bool) -> usize {
    if pressed { used.div_ceil(2) } else { used }
}
