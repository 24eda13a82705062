//! Traces from what other programs have recorded.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use sluice_notation::counted;
use sluice_trace::Meta;
use sluice_trace::import::{self, Imported};

use super::{Output, PARTLY, convert};
use crate::output;

/// Makes a trace from another program's log: fio's, strace's or Darshan's
///
/// Of fio it reads what --write_iolog writes (versions 2 and 3), of strace what -f -ttt -y writes, of Darshan extended traces
/// (DXT, by the Python package).
///
/// What is kept of each and what is lost: docs/trace-format.md. Ranks and threads are kept as processes. What strace has to
/// see: strace -f -ttt -T -y -e trace=%file,%desc,%process -o LOG PROGRAM
///
/// Paths are those of the log, without `.` and `..`. In a trace that is to be predicted from, they begin where the mount
/// begins: a log of programs that used /scratch, of which /scratch is to be mounted, needs --below /scratch.
///
/// The exit code is 3 if requests are missing, because the log is cut or does not tell enough; standard error says which,
/// `sluice trace info` too. A log that is damaged in any other way is refused.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The log
    log: PathBuf,
    /// The new trace
    out: PathBuf,
    /// The log's format [default: darshan for files that end in .darshan, else what the log looks like]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Only files below this directory, with paths that begin there [default: all files]
    #[arg(long, value_name = "DIR")]
    below: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Fio,
    Darshan,
    Strace,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    if file(&args.out).is_some_and(|out| Some(out) == file(&args.log)) {
        bail!("{} is the log itself; give the trace a name of its own", args.out.display());
    }
    let Some(below) = &args.below else { return import(args, &args.out, Said::Here) };
    let whole = Output::create(&args.out)?.file.into_temp_path();
    let code = import(args, &whole, Said::Later)?;
    if code == ExitCode::FAILURE {
        return Ok(code);
    }
    convert::anew(&whole, &args.out, Some(below)).with_context(|| args.log.display().to_string())?;
    Ok(code)
}

/// Whether to say what became of the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Here,
    Later,
}

fn import(args: &Args, out: &Path, said: Said) -> anyhow::Result<ExitCode> {
    let log = args.log.as_path();
    let format = match args.format {
        Some(format) => format,
        None => guessed(log).with_context(|| log.display().to_string())?,
    };
    match format {
        Format::Darshan => {
            let quiet = (said == Said::Later).then_some("--quiet".as_ref());
            let command: [&OsStr; 3] = ["import-darshan".as_ref(), log.as_ref(), out.as_ref()];
            convert::python("darshan", &command.into_iter().chain(quiet).collect::<Vec<_>>())
        }
        Format::Fio => text(args, out, said, |log, meta, out| import::fio_iolog(log, meta, out)),
        Format::Strace => {
            let below = args.below.as_deref().map(|dir| dir.as_os_str().as_bytes());
            text(args, out, said, |log, meta, out| import::strace(log, meta, below, out))
        }
    }
}

/// The format that a log looks like.
fn guessed(log: &Path) -> anyhow::Result<Format> {
    if log.extension().is_some_and(|ending| ending == "darshan") {
        return Ok(Format::Darshan);
    }
    let mut head = Vec::new();
    File::open(log)?.take(64).read_to_end(&mut head)?;
    match head.trim_ascii_start() {
        [] => bail!("the log is empty"),
        head if head.starts_with(b"fio version ") => Ok(Format::Fio),
        head if head[0].is_ascii_digit() || head.starts_with(b"[pid ") || head.starts_with(b"strace: ") => {
            Ok(Format::Strace)
        }
        _ => bail!("line 1: this looks like no log of fio, Darshan or strace; --format says which it is"),
    }
}

type Log = BufReader<File>;
type Out<'a> = BufWriter<&'a File>;

/// Imports a log that is text.
fn text(
    args: &Args,
    path: &Path,
    said: Said,
    import: impl FnOnce(Log, Meta, Out<'_>) -> Result<Imported, import::ImportError>,
) -> anyhow::Result<ExitCode> {
    let shown = args.log.display().to_string();
    let file = BufReader::new(File::open(&args.log).with_context(|| shown.clone())?);
    let out = Output::create(path)?;
    let meta = Meta { source: shown.clone(), ..Meta::default() };
    let imported = import(file, meta, BufWriter::new(out.file.as_file())).with_context(|| shown.clone())?;
    if let (Some(dir), 0) = (&args.below, imported.entries) {
        bail!("{shown}: no request is to a file below {}", dir.display());
    }
    out.keep()?;
    if said == Said::Here {
        let (entries, others) = (counted(imported.entries, "request"), counted(imported.others, "other line"));
        output::line(format_args!("{}: {entries}; {others} left out", path.display()));
    }
    if imported.untimed {
        output::line("Note: this version of the log has no times; the order is right, the times are not");
    }
    if imported.incomplete.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    output::tell(format_args!("{shown}: {}", imported.incomplete));
    Ok(ExitCode::from(PARTLY))
}
