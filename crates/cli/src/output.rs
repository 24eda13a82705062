//! Writing to standard output and standard error.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

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

/// Whether a file can be written at this path: to be asked before long work whose result would be lost. Leaves nothing there,
/// and what is there as it is.
///
/// # Errors
/// Why it cannot.
pub fn check_file(path: &Path) -> anyhow::Result<()> {
    let tried = match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(meta) if meta.is_file() => std::fs::OpenOptions::new().write(true).open(path).map(drop),
        // A pipe, for one, would wait for its reader.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            tempfile::tempfile_in(dir).map(drop)
        }
        Err(error) => Err(error),
    };
    tried.with_context(|| format!("{} cannot be written", path.display()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_written_are_told_before() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("old"), "kept").unwrap();
        for good in ["old", "new"] {
            check_file(&at(good)).unwrap();
        }
        for bad in ["", "none/new", "old/new"] {
            let error = check_file(&at(bad)).unwrap_err().to_string();
            assert!(error.contains("cannot be written"), "{bad}: {error}");
        }
        assert_eq!(std::fs::read_to_string(at("old")).unwrap(), "kept");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
