//! Recording and predicting on a mount, through its control socket.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use sluice_notation::counted;

use crate::config::predict_hint;
use crate::control::{Command, Predict};
use crate::input::Named;
use crate::predict::TraceUse;
use crate::{input, output, status};

/// Starts recording every request of a mount, in a new trace file
///
/// Recorded is what reaches the scheduler: requests that the kernel answers from its cache do not (see --cache of
/// `sluice mount`). Recording ends with `sluice trace stop` or with the mount; what was written so far can be read meanwhile,
/// and after a crash.
#[derive(clap::Args)]
pub(crate) struct StartArgs {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// The trace file, which the mount's process writes [default: one in the current directory, named after the mountpoint and
    /// the time]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Record checksums of the data, too: of what was written as it was given, of what was read as it was returned. Then
    /// `sluice trace replay --check` can tell whether files still hold what was read
    #[arg(long)]
    checksums: bool,
    /// Record in the place of what is in the file
    #[arg(long)]
    overwrite: bool,
}

/// Ends the recording of a mount
#[derive(clap::Args)]
pub(crate) struct StopArgs {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Predicts a mount's requests from traces of earlier runs, from now on
///
/// With traces: the requests of their runs are combined, and batches wait for what is about to arrive. Requests of other
/// volumes' recordings and of other programs' logs are split as this volume splits them. How many can match is printed, and
/// why others cannot. With `learn`: the mount finds patterns that repeat by itself. With `off`: no prediction any more.
///
/// The exit code is 3 if a trace has no end: what is there is predicted from. A damaged one is refused, and what was predicted
/// before stays.
#[derive(clap::Args)]
#[command(
    override_usage = "sluice trace predict MOUNTPOINT TRACE...\n       sluice trace predict MOUNTPOINT learn|off"
)]
pub(crate) struct PredictArgs {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Trace files, of which one may be -, standard input; or `learn`, or `off`
    #[arg(required = true, value_name = "TRACE")]
    from: Vec<String>,
}

pub(super) fn start(args: &StartArgs) -> anyhow::Result<ExitCode> {
    let mut client = status::open(&args.mountpoint)?;
    let out = match &args.out {
        Some(out) if output::is_standard(out) => bail!("the mount's process writes the trace: --out must be a file"),
        Some(out) => out.clone(),
        None => {
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let name = args.mountpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
            PathBuf::from(format!("{name}-{seconds}.slt"))
        }
    };
    let path = std::path::absolute(&out).with_context(|| out.display().to_string())?;
    if !args.overwrite && path.metadata().is_ok_and(|there| there.is_file() && there.len() > 0) {
        bail!("{} exists; name another file, or remove it (--overwrite replaces it)", path.display());
    }
    client.request(Command::TraceStart { path: path.clone(), checksums: args.checksums })?;
    let mountpoint = args.mountpoint.display();
    output::line(format_args!("Recording to {}. To end: sluice trace stop {mountpoint}", path.display()));
    Ok(ExitCode::SUCCESS)
}

pub(super) fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    let recorded = status::open(&args.mountpoint)?.stop_trace()?;
    if args.json {
        output::json(&recorded)?;
    } else {
        output::line(format_args!("{}: {}", recorded.path, counted(recorded.entries, "request")));
        if recorded.dropped > 0 {
            let dropped = counted(recorded.dropped, "request");
            output::line(format_args!("Note: the recorder could not keep up and lost {dropped}"));
        }
    }
    if let Some(failed) = recorded.failed {
        bail!("{}: the recording ended early: {failed}", recorded.path);
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn predict(args: &PredictArgs) -> anyhow::Result<ExitCode> {
    let mut client = status::open(&args.mountpoint)?;
    input::check_standard(args.from.iter().map(Path::new))?;
    // The mount's process reads them, so they need names.
    let mut copies = Vec::new();
    let from = match args.from.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["off"] => Predict::Off,
        ["learn"] => Predict::Learn,
        [one] if !predict_hint(one, Path::new("")).is_empty() => {
            bail!("there is no trace {one}{}", predict_hint(one, Path::new("")))
        }
        files => {
            for &file in files {
                copies.push(Named::of(Path::new(file))?);
            }
            let absolute = |file: &Named<'_>| std::path::absolute(&**file).with_context(|| file.display().to_string());
            Predict::Files(copies.iter().map(absolute).collect::<anyhow::Result<_>>()?)
        }
    };
    client.request(Command::Predict { from: from.clone() })?;
    let Some(prediction) = client.status()?.prediction else {
        output::line(format_args!("the mount {} predicts nothing", args.mountpoint.display()));
        return Ok(ExitCode::SUCCESS);
    };
    output::line(format_args!("the mount {} predicts from {}", args.mountpoint.display(), prediction.from));
    for TraceUse { path, requests, pieces, can_match, notes, .. } in &prediction.traces {
        let split = if pieces == requests { String::new() } else { format!(", which the volume splits into {pieces}") };
        let can = if can_match == pieces { "all".to_owned() } else { can_match.to_string() };
        let requests = counted(*requests, "request");
        output::line(format_args!("{}: {requests}{split}; {can} can match", path.display()));
        notes.iter().for_each(|note| output::tell(format_args!("{}: {note}", path.display())));
    }
    let whole = prediction.traces.iter().all(|trace| trace.complete);
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(super::PARTLY) })
}
