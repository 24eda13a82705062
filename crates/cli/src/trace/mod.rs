//! `sluice trace`: recording requests, looking at what was recorded, and predicting from it.

mod convert;
mod import;
mod live;
mod pattern;
mod replay;
mod show;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use sluice_trace::{Columns, End, Paths, Reader};

/// Records the requests that reach a mount's scheduler, shows and converts traces, replays them, and predicts from them.
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
        Command::Merge(args) => convert::merge(&args),
        Command::Convert(args) => convert::convert(&args),
        Command::Import(args) => import::run(&args),
        Command::Replay(args) => replay::run(&args),
    }
}

type Opened = Reader<BufReader<File>>;

fn open(path: &Path) -> anyhow::Result<Opened> {
    Reader::open(path).with_context(|| path.display().to_string())
}

/// All blocks of a trace. What follows a damaged place is not there; that is told on standard error, and `Err` only if
/// `each` fails or the file cannot be read at all.
fn blocks(
    path: &Path,
    reader: &mut Opened,
    mut each: impl FnMut(&Paths, &Columns) -> anyhow::Result<()>,
) -> anyhow::Result<End> {
    let mut block = Columns::default();
    loop {
        match reader.next_block(&mut block) {
            Ok(true) => each(reader.paths(), &block)?,
            Ok(false) => break,
            Err(error @ sluice_trace::Error::Corrupt { .. }) => {
                crate::output::tell(format_args!("{}: {error}", path.display()));
                break;
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
    if let End::CutShort { ignored } = reader.end()
        && ignored > 0
    {
        let note = "the trace was cut short; the bytes of a block that is not whole are ignored";
        crate::output::tell(format_args!("{}: {note}: {ignored}", path.display()));
    }
    Ok(reader.end())
}

/// A file that appears under its name only when it is whole.
struct Output {
    file: tempfile::NamedTempFile,
    path: PathBuf,
}

impl Output {
    fn create(path: &Path) -> anyhow::Result<Output> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".sluice-").tempfile_in(dir);
        let file = file.with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(Output { file, path: path.to_owned() })
    }

    fn keep(self) -> anyhow::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let shown = self.path.display().to_string();
        // Temporary files are for their owner alone.
        self.file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644)).with_context(|| shown.clone())?;
        self.file.persist(&self.path).with_context(|| shown)?;
        Ok(())
    }
}
