//! Keeps an eye on what else goes on, and shows how far the profiler is.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use sluice_notation::show_size;

use crate::output;

/// Steps of the progress bar.
pub(super) const STEPS: u64 = 1000;
/// The device may have moved this many times what the profiler did, and so many bytes, before others are suspected.
const OTHERS_FACTOR: f64 = 1.25;
const OTHERS_BYTES: u64 = 64 << 20;
/// Bytes of a sector in the kernel's statistics.
const SECTOR: u64 = 512;

/// A bar that knows about when it will be full.
pub(super) fn bar(budget: Duration) -> ProgressBar {
    let bar = output::bar(STEPS, "{bar:40} {percent:>3} %  {msg}");
    bar.set_message(format!("at most {} s", budget.as_secs()));
    bar
}

/// State of the machine at the begin.
pub(super) struct Watch {
    device: Option<(u32, u32)>,
    sectors: u64,
}

impl Watch {
    /// Begins to watch the device below a directory.
    pub(super) fn new(path: &Path) -> Watch {
        let device = std::fs::metadata(path).ok().map(|meta| (libc::major(meta.dev()), libc::minor(meta.dev())));
        let sectors = device.and_then(sectors).unwrap_or(0);
        Watch { device, sectors }
    }

    /// What has disturbed the profiler, which has moved so many bytes itself.
    pub(super) fn warnings(&self, moved: u64) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(now) = self.device.and_then(sectors) {
            let bytes = now.saturating_sub(self.sectors) * SECTOR;
            if bytes > (moved as f64 * OTHERS_FACTOR) as u64 + OTHERS_BYTES {
                let (others, own) = (show_size((bytes - moved) as f64), show_size(moved as f64));
                warnings.push(format!("others used the device: {others} beside the profiler's {own}"));
            }
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
        if load > processors * 1.5 {
            warnings.push(format!("the machine is busy: load {load:.1} on {processors} processors"));
        }
        warnings
    }
}

/// Sectors that a block device has read and written.
fn sectors((major, minor): (u32, u32)) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/diskstats").ok()?;
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let here = fields.first()?.parse() == Ok(major) && fields.get(1)?.parse() == Ok(minor);
        let count = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        if here { Some(count(5)? + count(9)?) } else { None }
    })
}
