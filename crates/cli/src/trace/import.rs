//! Traces from what other programs have recorded.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, BufWriter, Chain, Cursor, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use sluice_notation::counted;
use sluice_trace::Meta;
use sluice_trace::import::{self, Imported};

use super::{Output, PARTLY, convert, tell_made, temporary};
use crate::input::{self, Named};
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
    /// The log; - is standard input
    log: PathBuf,
    /// The new trace; - is standard output
    pub(super) out: PathBuf,
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
    output::check_binary(&args.out)?;
    let shown = || input::name(&args.log);
    let (log, format) = open(args).with_context(shown)?;
    // Python makes files only.
    if args.below.is_none() && !(format == Format::Darshan && output::is_standard(&args.out)) {
        return import(args, log, format, &args.out, Said::Here);
    }
    let whole = temporary(&args.out)?.into_temp_path();
    let code = import(args, log, format, &whole, Said::Later)?;
    if code == ExitCode::FAILURE {
        return Ok(code);
    }
    convert::anew(&whole, &args.out, args.below.as_deref()).with_context(shown)?;
    Ok(code)
}

/// Whether to say what became of the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Here,
    Later,
}

fn import(args: &Args, log: Log, format: Format, out: &Path, said: Said) -> anyhow::Result<ExitCode> {
    match format {
        Format::Darshan => {
            let log = Named::of(&args.log)?;
            let mut command: Vec<&OsStr> = vec!["import-darshan".as_ref(), log.as_ref(), out.as_ref()];
            command.extend((said == Said::Later).then_some(OsStr::new("--quiet")));
            if input::is_standard(&args.log) {
                command.extend(["--source", "standard input"].map(OsStr::new));
            }
            convert::python("darshan", &command)
        }
        Format::Fio => text(args, log, out, said, |log, meta, out| import::fio_iolog(log, meta, out)),
        Format::Strace => {
            let below = args.below.as_deref().map(|dir| dir.as_os_str().as_bytes());
            text(args, log, out, said, |log, meta, out| import::strace(log, meta, below, out))
        }
    }
}

/// A log from its beginning on, some of which was looked at.
type Log = BufReader<Chain<Cursor<Vec<u8>>, File>>;
type Out<'a> = BufWriter<&'a File>;

/// The log and its format: the one that was said, or that it looks like. Of Darshan's nothing is read.
fn open(args: &Args) -> anyhow::Result<(Log, Format)> {
    let ends_so = args.log.extension().is_some_and(|ending| ending == "darshan");
    let said = args.format.or(ends_so.then_some(Format::Darshan));
    let (mut file, mut head) = (input::open(&args.log)?, Vec::new());
    if said.is_none() {
        Read::by_ref(&mut file).take(64).read_to_end(&mut head)?;
    }
    let format = match (said, head.trim_ascii_start()) {
        (Some(said), _) => said,
        (None, []) => bail!("the log is empty"),
        (None, head) if head.starts_with(b"fio version ") => Format::Fio,
        (None, head) if head[0].is_ascii_digit() || head.starts_with(b"[pid ") || head.starts_with(b"strace: ") => {
            Format::Strace
        }
        _ => bail!("line 1: this looks like no log of fio, Darshan or strace; --format says which it is"),
    };
    Ok((BufReader::new(Cursor::new(head).chain(file)), format))
}

/// Imports a log that is text.
fn text(
    args: &Args,
    log: Log,
    path: &Path,
    said: Said,
    import: impl FnOnce(Log, Meta, Out<'_>) -> Result<Imported, import::ImportError>,
) -> anyhow::Result<ExitCode> {
    let shown = input::name(&args.log);
    let out = Output::create(path)?;
    let meta = Meta { source: shown.clone(), ..Meta::default() };
    let imported = import(log, meta, BufWriter::new(out.file())).with_context(|| shown.clone())?;
    if let (Some(dir), 0) = (&args.below, imported.entries) {
        bail!("{shown}: no request is to a file below {}", dir.display());
    }
    out.keep()?;
    if said == Said::Here {
        let (entries, others) = (counted(imported.entries, "request"), counted(imported.others, "other line"));
        tell_made(path, format_args!("{entries}; {others} left out"));
    }
    if imported.untimed {
        output::tell(format_args!(
            "{shown}: this version of the log has no times; the order is right, the times are not"
        ));
    }
    if imported.incomplete.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    output::tell(format_args!("{shown}: {}", imported.incomplete));
    Ok(ExitCode::from(PARTLY))
}
