//! Writing to standard output and standard error.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something could not be written.
static LOST: AtomicBool = AtomicBool::new(false);
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Writes a line. Whoever reads may have had enough (`sluice policy | head`); that is no failure. Others are told of by
/// [`end`], and must not end a mount.
pub fn line(text: impl Display) {
    written(writeln!(std::io::stdout().lock(), "{text}"));
}

/// Writes text that has its own line ends.
pub fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

fn written(result: io::Result<()>) {
    if result.is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        LOST.store(true, Ordering::Relaxed);
    }
}

/// The exit code of a command that has said all it has to say: a failure, which is told, if it failed or if that could not
/// be written, as on a full disk.
#[must_use]
pub fn end(result: anyhow::Result<ExitCode>) -> ExitCode {
    let code = result.unwrap_or_else(|error| {
        tell(format_args!("{error:#}"));
        ExitCode::FAILURE
    });
    written(std::io::stdout().lock().flush());
    if !LOST.load(Ordering::Relaxed) {
        return code;
    }
    tell("standard output cannot be written: what was to be said there is incomplete");
    ExitCode::FAILURE
}

/// Writes a line for people to standard error, which may be closed.
pub fn tell(text: impl Display) {
    let program = PROGRAM.get().unwrap_or(&"sluice");
    let _ = writeln!(std::io::stderr().lock(), "{program}: {text}");
}

/// Who [`tell`] says it is from now on, unless somebody has said so before.
pub fn program(name: &'static str) {
    let _ = PROGRAM.set(name);
}
