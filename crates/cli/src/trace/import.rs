//! Traces from what other programs have recorded.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use sluice_notation::counted;
use sluice_trace::{Meta, Writer, import};

use super::{Output, convert};
use crate::output;

/// Makes a trace from another program's log: fio's or Darshan's
///
/// Of fio it reads what --write_iolog writes (versions 2 and 3), of Darshan extended traces (DXT, by the Python package).
///
/// Paths are those of the log. In a trace that is to be predicted from, they begin where the mount begins: a log of programs
/// that used /scratch, of which /scratch is to be mounted, needs --below /scratch.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The log
    log: PathBuf,
    /// The new trace
    out: PathBuf,
    /// The log's format [default: darshan for files that end in .darshan, else fio]
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
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    if file(&args.out).is_some_and(|out| Some(out) == file(&args.log)) {
        bail!("{} is the log itself; give the trace a name of its own", args.out.display());
    }
    let Some(below) = &args.below else {
        import(args, &args.out, Said::Here)?;
        return Ok(ExitCode::SUCCESS);
    };
    let whole = Output::create(&args.out)?.file.into_temp_path();
    import(args, &whole, Said::Later)?;
    convert::anew(&whole, &args.out, Some(below)).with_context(|| args.log.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Whether to say what became of the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Here,
    Later,
}

fn import(args: &Args, out: &Path, said: Said) -> anyhow::Result<()> {
    let darshan = args.log.extension().is_some_and(|ending| ending == "darshan");
    match args.format.unwrap_or(if darshan { Format::Darshan } else { Format::Fio }) {
        Format::Darshan => {
            let quiet = (said == Said::Later).then_some("--quiet".as_ref());
            let command: [&OsStr; 3] = ["import-darshan".as_ref(), args.log.as_ref(), out.as_ref()];
            convert::python("darshan", &command.into_iter().chain(quiet).collect::<Vec<_>>())
        }
        Format::Fio => fio(&args.log, out, said),
    }
}

fn fio(log: &Path, path: &Path, said: Said) -> anyhow::Result<()> {
    let shown = log.display().to_string();
    let log = BufReader::new(File::open(log).with_context(|| shown.clone())?);
    let out = Output::create(path)?;
    let meta = Meta { source: shown.clone(), ..Meta::default() };
    let mut writer = Writer::new(BufWriter::new(out.file.as_file()), &meta)?;
    let imported = import::fio_iolog(log, 0, &mut writer).with_context(|| shown)?;
    writer.finish(0)?;
    out.keep()?;
    if said == Said::Here {
        let (entries, others) = (counted(imported.entries, "request"), counted(imported.others, "other line"));
        output::line(format_args!("{}: {entries}; {others} left out", path.display()));
    }
    if imported.untimed {
        output::line("Note: this version of the log has no times; the order is right, the times are not");
    }
    Ok(())
}
