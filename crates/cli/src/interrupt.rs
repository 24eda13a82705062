//! Being interrupted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The error of what was interrupted: the program ends with status 130.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// From now on SIGINT and SIGTERM set the flag, and SIGHUP (the terminal is gone) unless the caller (nohup) had it ignored, and do
/// nothing else.
///
/// # Errors
/// If the system does not let these signals be handled.
pub fn flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in wanted() {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// The signals by which a user ends a program.
pub(crate) fn wanted() -> impl Iterator<Item = i32> {
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !ignored(SIGHUP))
}

/// Whether this process was started with the signal ignored.
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
