//! Writing to standard output and standard error.

use std::fmt::Display;
use std::io::Write as _;

/// Writes a line. Whoever reads may have had enough (`sluice policy | head`); that is no failure, and must not end a mount.
pub(crate) fn line(text: impl Display) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Writes text that has its own line ends.
pub(crate) fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes a line for people to standard error, which may be closed.
pub(crate) fn tell(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "sluice: {text}");
}
