//! Traces from what other programs have recorded.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use sluice_trace::{Meta, Writer, import};

use super::{Output, convert};
use crate::output;

/// Makes a trace from another program's log: fio's (--write_iolog, versions 2 and 3), or Darshan's extended traces (DXT, by
/// the Python package)
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The log
    log: PathBuf,
    /// The new trace
    out: PathBuf,
    /// The log's format [default: darshan for files that end in .darshan, else fio]
    #[arg(long, value_enum)]
    format: Option<Format>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Fio,
    Darshan,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let darshan = args.log.extension().is_some_and(|ending| ending == "darshan");
    match args.format.unwrap_or(if darshan { Format::Darshan } else { Format::Fio }) {
        Format::Darshan => convert::python(&["import-darshan".as_ref(), args.log.as_ref(), args.out.as_ref()])?,
        Format::Fio => fio(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn fio(args: &Args) -> anyhow::Result<()> {
    let shown = args.log.display().to_string();
    let log = BufReader::new(File::open(&args.log).with_context(|| shown.clone())?);
    let out = Output::create(&args.out)?;
    let meta = Meta { source: shown.clone(), ..Meta::default() };
    let mut writer = Writer::new(BufWriter::new(out.file.as_file()), &meta)?;
    let imported = import::fio_iolog(log, 0, &mut writer).with_context(|| shown)?;
    writer.finish(0)?;
    out.keep()?;
    output::line(format_args!(
        "{}: {} requests; {} other lines left out",
        args.out.display(),
        imported.entries,
        imported.others
    ));
    if imported.untimed {
        output::line("Note: this version of the log has no times; the order is right, the times are not");
    }
    Ok(())
}
