//! `sluice trace`: recording requests, looking at what was recorded, and predicting from it.

mod convert;
mod import;
mod live;
mod pattern;
mod plot;
mod replay;
mod show;

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use sluice_trace::import::ImportError;
use sluice_trace::{Columns, End, Error, Paths, Reader};
use tempfile::NamedTempFile;

use crate::{input, output};

/// Exit code where only a part of a trace or log could be used: what is there was, and what is missing was told.
const PARTLY: u8 = 3;

/// Records a mount's requests; shows, converts, replays traces; predicts from them
///
/// Exit codes: 0 if all of every trace or log was used; 1 if one was refused (it is none, or is damaged where that cannot be
/// left out), or the command failed, and nothing was made; 3 if a part was used, because a trace has no end or is damaged,
/// or a log is cut or lacks requests: standard error says what is missing.
///
/// Where a trace, a log, or a file to make is asked for, - is standard input or output.
#[derive(Subcommand)]
pub(crate) enum Command {
    Start(live::StartArgs),
    Stop(live::StopArgs),
    Predict(live::PredictArgs),
    Info(show::InfoArgs),
    Stats(show::StatsArgs),
    Cat(show::CatArgs),
    Merge(convert::MergeArgs),
    Convert(convert::ConvertArgs),
    Import(import::Args),
    Replay(replay::Args),
}

/// Runs one of them.
///
/// # Errors
/// See each.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Start(args) => live::start(&args),
        Command::Stop(args) => live::stop(&args),
        Command::Predict(args) => live::predict(&args),
        Command::Info(args) => show::info(&args),
        Command::Stats(args) => show::stats(&args),
        Command::Cat(args) => show::cat(&args),
        Command::Merge(args) => until_enough(&args.out, convert::merge(&args)),
        Command::Convert(args) => until_enough(&args.out, convert::convert(&args)),
        Command::Import(args) => until_enough(&args.out, import::run(&args)),
        Command::Replay(args) => replay::run(&args),
    }
}

type Opened = Reader<BufReader<File>>;

fn open(path: &Path) -> anyhow::Result<Opened> {
    let file = input::open(path).map_err(Error::from);
    let reader = file.and_then(|file| Reader::new(BufReader::with_capacity(1 << 18, file)));
    reader.with_context(|| input::name(path))
}

/// Whoever reads what is written to standard output may have had enough of it; that is no failure.
fn until_enough(out: &Path, result: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    let is_enough = |error: &anyhow::Error| {
        error.chain().any(|cause| {
            let trace = match cause.downcast_ref() {
                Some(ImportError::Trace(error)) => Some(error),
                _ => cause.downcast_ref(),
            };
            let io = if let Some(Error::Io(error)) = trace { Some(error) } else { cause.downcast_ref() };
            io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        })
    };
    match result {
        Err(error) if output::is_standard(out) && is_enough(&error) => Ok(ExitCode::SUCCESS),
        result => result,
    }
}

/// How the reading of a trace ended.
struct Ended {
    end: End,
    /// Where and how the trace is damaged, or that it has no end. Has been told on standard error.
    missing: Option<String>,
}

impl Ended {
    /// What a command returns that used all there is of the trace.
    fn code(&self) -> ExitCode {
        if self.missing.is_some() { ExitCode::from(PARTLY) } else { ExitCode::SUCCESS }
    }

    /// Entries that the recorder lost.
    fn dropped(&self) -> u64 {
        if let End::Complete { dropped } = self.end { dropped } else { 0 }
    }

    /// Why requests are missing from what was read; empty if none are. `incomplete`: what the trace itself says.
    fn why(&self, incomplete: &str) -> String {
        [incomplete, self.missing.as_deref().unwrap_or_default()]
            .into_iter()
            .filter(|why| !why.is_empty())
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// What is missing from a trace that ended so; nothing if it has its end.
fn missing(end: End) -> Option<String> {
    let End::CutShort { ignored } = end else { return None };
    let torn = match ignored {
        0 => String::new(),
        bytes => format!("; {bytes} bytes of a block that is not whole are ignored"),
    };
    Some(format!("the trace has no end: it is still being written, or its recorder was killed{torn}"))
}

/// All blocks of a trace. What follows a damaged place is not there; that is told on standard error, and `Err` only if
/// `each` fails or the file cannot be read at all.
fn blocks(
    path: &Path,
    reader: &mut Opened,
    mut each: impl FnMut(&Paths, &Columns) -> anyhow::Result<()>,
) -> anyhow::Result<Ended> {
    let mut damage = None;
    let mut block = Columns::default();
    loop {
        match reader.next_block(&mut block) {
            Ok(true) => each(reader.paths(), &block)?,
            Ok(false) => break,
            Err(error @ Error::Corrupt { .. }) => {
                damage = Some(error.to_string());
                break;
            }
            Err(error) => return Err(error).with_context(|| input::name(path)),
        }
    }
    let missing = damage.or_else(|| missing(reader.end()));
    if let Some(what) = &missing {
        output::tell(format_args!("{}: {what}", input::name(path)));
    }
    Ok(Ended { end: reader.end(), missing })
}

/// A file that appears under its name only when it is whole; or standard output, where a trace that breaks off has no end.
enum Output {
    File(NamedTempFile, PathBuf),
    Standard(File),
}

impl Output {
    fn create(path: &Path) -> anyhow::Result<Output> {
        if output::is_standard(path) {
            return Ok(Output::Standard(io::stdout().as_fd().try_clone_to_owned()?.into()));
        }
        Ok(Output::File(temporary(path)?, path.to_owned()))
    }

    fn file(&self) -> &File {
        match self {
            Output::File(file, _) => file.as_file(),
            Output::Standard(file) => file,
        }
    }

    /// It is whole.
    fn keep(self) -> anyhow::Result<()> {
        let Output::File(file, path) = self else { return Ok(()) };
        file.persist(&path).with_context(|| path.display().to_string())?;
        Ok(())
    }
}

/// A file that goes away, beside one that is to be made.
fn temporary(path: &Path) -> anyhow::Result<NamedTempFile> {
    if output::is_standard(path) {
        return tempfile::NamedTempFile::new().context("a temporary file");
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Else temporary files are for their owner alone. The umask is taken off.
    let mode: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    let file = tempfile::Builder::new().prefix(".sluice-").permissions(mode).tempfile_in(dir);
    file.with_context(|| format!("{} cannot be written", path.display()))
}

/// Tells what a file has that was made, unless it would be told in it.
fn tell_made(path: &Path, what: impl std::fmt::Display) {
    if !output::is_standard(path) {
        output::line(format_args!("{}: {what}", path.display()));
    }
}
