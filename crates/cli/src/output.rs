//! Writing to standard output, standard error and files, and how much.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tracing_subscriber::filter::LevelFilter;

use crate::interrupt::Interrupted;

/// Version of the JSON that commands print and write. Fields may be added to it; if one goes or means something else, it
/// becomes another.
pub const SCHEMA: u32 = 1;

/// Something could not be written.
static LOST: AtomicBool = AtomicBool::new(false);
/// Only results and errors are wanted.
static QUIET: AtomicBool = AtomicBool::new(false);
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// The error of a command line without something that it takes: the program ends with the same status as when clap finds that.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// How much a command says.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Verbosity {
    /// Say more: what the scheduler logs; -vv and -vvv even more [default: warnings]
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Say only results and errors: no progress, no hints
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
}

impl Verbosity {
    /// From now on everything in this module heeds it.
    pub fn heed(self) {
        QUIET.store(self.quiet, Ordering::Relaxed);
    }

    /// What is to be logged, if it was said.
    #[must_use]
    pub fn level(self) -> Option<LevelFilter> {
        match self.verbose {
            _ if self.quiet => Some(LevelFilter::ERROR),
            0 => None,
            1 => Some(LevelFilter::INFO),
            2 => Some(LevelFilter::DEBUG),
            _ => Some(LevelFilter::TRACE),
        }
    }
}

/// Whether standard error may be coloured: it is a terminal that can be, and nobody said no (<https://no-color.org>).
#[must_use]
pub fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !is_dumb() && !refused
}

/// Whether the terminal takes nothing but text.
#[must_use]
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|value| value == "dumb")
}

/// Shows how far something is, on a terminal; `template` is indicatif's.
#[must_use]
pub fn bar(steps: u64, template: &str) -> ProgressBar {
    if QUIET.load(Ordering::Relaxed) || is_dumb() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps).with_style(style)
}

/// Says now and then how far something long is, where [`bar`] shows nothing: in logs and pipes.
pub struct Course {
    is_wanted: bool,
    last: Mutex<Instant>,
}

impl Course {
    /// Often enough for whoever wonders whether it still runs.
    const EVERY: Duration = Duration::from_secs(30);

    /// Of something that begins now.
    #[must_use]
    pub fn new() -> Course {
        let is_wanted = !QUIET.load(Ordering::Relaxed) && (is_dumb() || !io::stderr().is_terminal());
        Course { is_wanted, last: Mutex::new(Instant::now()) }
    }

    /// It is this far.
    pub fn is_at(&self, text: impl FnOnce() -> String) {
        if self.is_wanted && self.is_due(Instant::now()) {
            tell(text());
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = now.saturating_duration_since(*last) >= Course::EVERY;
        if is_due {
            *last = now;
        }
        is_due
    }
}

impl Default for Course {
    fn default() -> Course {
        Course::new()
    }
}

/// Writes a line that is no result, but tells people what was done or can be done next.
pub fn say(text: impl Display) {
    if !QUIET.load(Ordering::Relaxed) {
        line(text);
    }
}

/// An object in JSON with the version of its schema.
#[derive(Serialize)]
pub struct Versioned<T> {
    schema: u32,
    #[serde(flatten)]
    object: T,
}

impl<T: Serialize> Versioned<T> {
    /// Of something that becomes an object.
    #[must_use]
    pub fn new(object: T) -> Versioned<T> {
        Versioned { schema: SCHEMA, object }
    }
}

/// Writes an object as one line of JSON, with the version of its schema.
///
/// # Errors
/// If it has no JSON.
pub fn json(object: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string(&Versioned::new(object)).context("writing JSON")?);
    Ok(())
}

/// As [`json`], on several lines.
///
/// # Errors
/// As [`json`].
pub fn pretty_json(object: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(&Versioned::new(object)).context("writing JSON")?);
    Ok(())
}

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

/// Whether standard output is meant by a path.
#[must_use]
pub fn is_standard(path: &Path) -> bool {
    path == "-"
}

/// That of these only one is standard output.
///
/// # Errors
/// If several are.
pub fn check_standard<'a>(paths: impl IntoIterator<Item = &'a Path>, json: bool) -> anyhow::Result<()> {
    let wanted = paths.into_iter().filter(|path| is_standard(path)).count() + usize::from(json);
    if wanted > 1 {
        bail!("standard output takes one thing: of several files only one can be -, and none with --json");
    }
    Ok(())
}

/// That a file may get what is no text: a terminal would show nonsense, or worse.
///
/// # Errors
/// If the path is `-` and standard output is a terminal.
pub fn check_binary(path: &Path) -> anyhow::Result<()> {
    if is_standard(path) && io::stdout().is_terminal() {
        bail!("a trace is no text, and standard output is a terminal: send it to a file or into another program");
    }
    Ok(())
}

/// Writes a whole file, or to standard output if the path is `-`.
///
/// # Errors
/// If it cannot be written; says which file.
pub fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if is_standard(path) {
        let mut out = std::io::stdout().lock();
        written(out.write_all(bytes).and_then(|()| out.flush()));
        return Ok(());
    }
    std::fs::write(path, bytes).with_context(|| format!("{} cannot be written", path.display()))
}

/// Whether a file can be written at this path: to be asked before long work whose result would be lost. Leaves nothing there,
/// and what is there as it is.
///
/// # Errors
/// Why it cannot.
pub fn check_file(path: &Path) -> anyhow::Result<()> {
    let tried = match std::fs::metadata(path) {
        _ if is_standard(path) => Ok(()),
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
        ExitCode::from(status(&error))
    });
    written(std::io::stdout().lock().flush());
    if !LOST.load(Ordering::Relaxed) {
        return code;
    }
    tell("standard output cannot be written: what was to be said there is incomplete");
    ExitCode::FAILURE
}

/// The status that a program ends with after an error.
fn status(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<Interrupted>()) {
        130
    } else if error.chain().any(|cause| cause.is::<Usage>()) {
        2
    } else {
        1
    }
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
    fn what_is_missing_has_another_status_than_what_fails() {
        let of = |error: anyhow::Error| [status(&error), status(&error.context("and where"))];
        assert_eq!(of(Usage("what to mount?".to_owned()).into()), [2, 2]);
        assert_eq!(of(Interrupted.into()), [130, 130]);
        assert_eq!(of(anyhow::anyhow!("no such file")), [1, 1]);
    }

    #[test]
    fn json_says_what_version_it_is_and_keeps_the_fields_in_order() {
        #[derive(Serialize)]
        struct Row {
            zebra: u32,
            ant: Option<u64>,
        }
        let text = serde_json::to_string(&Versioned::new(Row { zebra: 1, ant: Some(u64::MAX) })).unwrap();
        assert_eq!(text, format!(r#"{{"schema":{SCHEMA},"zebra":1,"ant":{}}}"#, u64::MAX));
    }

    #[test]
    fn a_course_is_told_every_half_minute() {
        let course = Course::new();
        let begin = *course.last.lock().unwrap();
        let due = |seconds| course.is_due(begin + Duration::from_secs(seconds));
        assert_eq!([0, 29, 30, 31, 59, 95, 100].map(due), [false, false, true, false, false, true, false]);
    }

    #[test]
    fn standard_output_takes_one_thing() {
        let paths = ["-", "a", "-"].map(Path::new);
        assert!(check_standard(paths[..2].iter().copied(), false).is_ok());
        assert!(check_standard(paths, false).is_err() && check_standard(paths[..1].iter().copied(), true).is_err());
        assert!(check_file(Path::new("-")).is_ok() && !Path::new("-").exists());
    }

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
