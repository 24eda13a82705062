//! The log: what `tracing` reports, on standard error or in a file.

use std::fs::File;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::output;

/// Where it goes.
pub(crate) enum To {
    /// Standard error, read by people if it is a terminal.
    People,
    /// Standard error, which is a file.
    StandardError,
    /// Standard error, which is systemd's journal: that notes the times.
    Journal,
    /// A file.
    File(File),
}

/// Starts logging what is not below this level.
pub(crate) fn start(level: LevelFilter, to: To) {
    // What is interrupted may be answered too late; the FUSE library calls that an error, and any user can cause it.
    let library = if level >= LevelFilter::DEBUG { level } else { LevelFilter::OFF };
    let filter = Targets::new().with_default(level).with_target("fuser", library);
    // What cannot be logged is lost. By default it would be told on standard error, which may be the very file that is full:
    // telling fails then, too, and the thread panics.
    let layer = tracing_subscriber::fmt::layer().with_target(false).log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    match to {
        To::People => registry.with(layer.with_ansi(output::colours()).with_writer(std::io::stderr)).init(),
        To::StandardError => registry.with(layer.with_ansi(false).with_writer(std::io::stderr)).init(),
        To::Journal => registry.with(layer.without_time().with_ansi(false).with_writer(std::io::stderr)).init(),
        To::File(file) => registry.with(layer.with_ansi(false).with_writer(file)).init(),
    }
}

/// Whether standard error is systemd's journal, as systemd.exec(5) tells to find out.
pub(crate) fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(std::io::stderr()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}
