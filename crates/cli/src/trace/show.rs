//! Looking at traces.

use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;
use sluice_core::Op;
use sluice_notation::{show_number, show_rate, show_size, show_time};
use sluice_trace::summary::{Counts, Gatherer, Summary};
use sluice_trace::{End, Meta};

use super::{blocks, open, plot};
use crate::output;

/// Says what is in a trace: files, sizes, read share, order, bursts, duration
#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    /// The trace
    trace: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw what arrived over time into this SVG file [default: none]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Counts the requests of every file
#[derive(clap::Args)]
pub(crate) struct StatsArgs {
    /// The trace
    trace: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the requests of a trace
#[derive(clap::Args)]
pub(crate) struct CatArgs {
    /// The trace
    trace: PathBuf,
    /// Print JSON: one object a line
    #[arg(long)]
    json: bool,
    /// Stop after so many requests [default: all]
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u64>,
}

fn summary(path: &Path, files: usize) -> anyhow::Result<(Summary, Meta, End)> {
    let mut reader = open(path)?;
    let mut gatherer = Gatherer::default();
    let end = blocks(path, &mut reader, |_, block| {
        gatherer.add(block);
        Ok(())
    })?;
    Ok((gatherer.finish(reader.paths(), files), reader.meta().clone(), end))
}

fn end_json(end: End) -> serde_json::Value {
    match end {
        End::Complete { dropped } => json!({"complete": true, "dropped": dropped}),
        _ => json!({"complete": false}),
    }
}

pub(super) fn info(args: &InfoArgs) -> anyhow::Result<ExitCode> {
    let (summary, meta, end) = summary(&args.trace, 10)?;
    if let Some(plot) = &args.plot {
        let svg = plot::draw(&summary, meta.emulated).context("drawing the plot")?;
        std::fs::write(plot, svg).with_context(|| format!("{} cannot be written", plot.display()))?;
    }
    if args.json {
        let bytes = std::fs::metadata(&args.trace)?.len();
        output::json(json!({"meta": meta, "end": end_json(end), "file_bytes": bytes, "summary": summary}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let bytes = std::fs::metadata(&args.trace)?.len();
    let mut text = String::new();
    describe(&mut text, &summary, &meta, end, bytes)?;
    output::text(&text);
    Ok(ExitCode::SUCCESS)
}

fn describe(text: &mut String, summary: &Summary, meta: &Meta, end: End, bytes: u64) -> std::fmt::Result {
    let requests = summary.reads.requests + summary.writes.requests;
    writeln!(
        text,
        "requests   {requests} in {}, of {} files by {} applications on {} targets",
        show_time(summary.seconds * 1e9),
        summary.files,
        summary.apps,
        // Files that all fit into a stripe have parts on all targets, but only first ones.
        summary.targets.max(meta.targets as usize)
    )?;
    let mut origin = vec![meta.program.clone()];
    origin.extend((!meta.source.is_empty()).then(|| format!("from {}", meta.source)));
    origin.extend((!meta.policy.is_empty()).then(|| format!("algorithm {}", meta.policy)));
    origin.extend(meta.checksums.then(|| "with checksums of the data".to_owned()));
    origin.extend(meta.emulated.then(|| "times of emulated devices".to_owned()));
    writeln!(text, "recorded   {}", origin.join(", "))?;
    let each = if requests == 0 { 0.0 } else { bytes as f64 / requests as f64 };
    write!(text, "file       {}, {} bytes a request; ", show_size(bytes as f64), show_number(each))?;
    match end {
        End::Complete { dropped: 0 } => writeln!(text, "complete")?,
        End::Complete { dropped } => writeln!(text, "complete but for {dropped} requests that the recorder lost")?,
        _ => writeln!(text, "without an end: still being written, or the recorder was killed")?,
    }
    if requests == 0 {
        return Ok(());
    }
    for (name, counts) in [("reads", &summary.reads), ("writes", &summary.writes)] {
        let Counts { requests, bytes, len_min, len_max } = *counts;
        let [all, least, most] = [bytes, len_min.into(), len_max.into()].map(|bytes: u64| show_size(bytes as f64));
        writeln!(text, "{name:<10} {requests}, {all}, of {least} to {most}")?;
    }
    writeln!(text, "read share {:.0} % of the bytes", summary.read_share * 100.0)?;
    let [contiguous, strided, other] =
        [summary.spatiality.contiguous, summary.spatiality.strided, summary.spatiality.other]
            .map(|share| share * 100.0);
    writeln!(text, "follow     {contiguous:.0} % contiguous, {strided:.0} % strided, {other:.0} % neither")?;
    writeln!(text, "bursts     {} of {:.1} requests (pauses of 100 ms)", summary.bursts, summary.burst_requests)?;
    course(text, summary)?;
    writeln!(text, "\nlengths")?;
    let most = summary.lengths.iter().copied().max().unwrap_or_default().max(1);
    for (power, &count) in summary.lengths.iter().enumerate().filter(|(_, count)| **count > 0) {
        let bar = "#".repeat((count * 40).div_ceil(most) as usize);
        writeln!(text, "  {:>10} {count:>10} {bar}", show_size((1_u64 << power) as f64))?;
    }
    writeln!(text, "\nlargest files")?;
    for file in &summary.largest_files {
        let [reads, writes] = [file.reads.bytes, file.writes.bytes].map(|bytes| show_size(bytes as f64));
        writeln!(text, "  {reads:>10} read {writes:>10} written  {}", printable(&file.path))?;
    }
    Ok(())
}

/// What arrived over time, as a line of blocks.
fn course(text: &mut String, summary: &Summary) -> std::fmt::Result {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bytes: Vec<u64> =
        summary.course.chunks(2).map(|pair| pair.iter().map(|p| p.read_bytes + p.write_bytes).sum()).collect();
    let most = bytes.iter().copied().max().unwrap_or_default().max(1);
    let line: String = bytes.iter().map(|&bytes| BLOCKS[(bytes * 8).div_ceil(most).min(8) as usize]).collect();
    let each = 2.0 * summary.point_seconds;
    let (rate, each) = (show_rate(most as f64 / each.max(1e-9)), show_time(each * 1e9));
    writeln!(text, "over time  |{line}| up to {rate}, {each} a column")
}

/// Paths come from anywhere: what would move the cursor is shown as it is written.
pub(super) fn printable(path: &str) -> String {
    path.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

pub(super) fn stats(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let (summary, ..) = summary(&args.trace, usize::MAX)?;
    if args.json {
        output::json(json!({"files": summary.largest_files}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    let [reads, read, writes, written, time] = ["reads", "read", "writes", "written", "time"];
    writeln!(text, "{reads:>10} {read:>12} {writes:>10} {written:>12} {time:>10}  path")?;
    for file in &summary.largest_files {
        let (reads, writes) = (&file.reads, &file.writes);
        let [read, written] = [reads.bytes, writes.bytes].map(|bytes| show_size(bytes as f64));
        let time = show_time(file.seconds * 1e9);
        let (reads, writes, path) = (reads.requests, writes.requests, printable(&file.path));
        writeln!(text, "{reads:>10} {read:>12} {writes:>10} {written:>12} {time:>10}  {path}")?;
    }
    output::text(&text);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn cat(args: &CatArgs) -> anyhow::Result<ExitCode> {
    let mut reader = open(&args.trace)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let (mut left, json) = (args.limit.unwrap_or(u64::MAX), args.json);
    if !json {
        let _ = writeln!(
            out,
            "{:>18} {:>5} {:>16} {:>10} {:>6} {:>6}  path",
            "seconds", "op", "offset", "bytes", "app", "target"
        );
    }
    let result = blocks(&args.trace, &mut reader, |paths, block| {
        for (at, entry) in block.iter().enumerate() {
            if left == 0 {
                return Err(Enough.into());
            }
            left -= 1;
            let op = if entry.op == Op::Read { "read" } else { "write" };
            let (path, seconds) = (paths.text(entry.file), entry.time as f64 / 1e9);
            let written = if json {
                let mut line = json!({"schema": output::SCHEMA, "time_ns": entry.time, "path": path, "op": op, "offset": entry.offset,
                    "len": entry.len, "app": entry.app, "target": entry.target});
                if let Some(sum) = block.sum_of(at) {
                    line["crc32"] = sum.crc.into();
                    line["crc32_bytes"] = sum.bytes.into();
                }
                writeln!(out, "{line}")
            } else {
                let (offset, len, path) = (entry.offset, entry.len, printable(&path));
                writeln!(
                    out,
                    "{seconds:>18.9} {op:>5} {offset:>16} {len:>10} {:>6} {:>6}  {path}",
                    entry.app, entry.target
                )
            };
            written.map_err(stopped)?;
        }
        Ok(())
    });
    let enough = |error: anyhow::Error| if error.is::<Enough>() { Ok(()) } else { Err(error) };
    result.map(drop).or_else(enough)?;
    out.flush().map_err(stopped).or_else(enough)?;
    Ok(ExitCode::SUCCESS)
}

/// Why no more can be printed: whoever reads has had enough, or a disk is full.
fn stopped(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Enough.into(),
        _ => anyhow::Error::from(error).context("the requests cannot be printed"),
    }
}

/// Nothing more is to be printed.
#[derive(Debug, thiserror::Error)]
#[error("enough")]
struct Enough;
