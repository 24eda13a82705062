//! Looking at traces.

use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;
use sluice_core::Op;
use sluice_notation::{counted, show_number, show_rate, show_size, show_time};
use sluice_trace::summary::{Counts, Gatherer, Summary};
use sluice_trace::{End, Meta};

use super::pattern::{Pattern, Recogniser};
use super::{Ended, blocks, open, plot};
use crate::{input, output};

/// Says what is in a trace: files, sizes, read share, order, bursts, duration
#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    /// The trace; - is standard input
    trace: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw what arrived over time into this SVG file; - is standard output [default: none]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Counts the requests of every file
#[derive(clap::Args)]
pub(crate) struct StatsArgs {
    /// The trace; - is standard input
    trace: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the requests of a trace
#[derive(clap::Args)]
pub(crate) struct CatArgs {
    /// The trace; - is standard input
    trace: PathBuf,
    /// Print JSON: one object a line
    #[arg(long)]
    json: bool,
    /// Stop after so many requests [default: all]
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u64>,
}

/// What a trace holds, how reading it ended, and why requests are missing from it as it says itself.
struct Looked {
    summary: Summary,
    meta: Meta,
    ended: Ended,
    incomplete: String,
    /// Of the file.
    bytes: u64,
}

fn look(path: &Path, files: usize, mut recogniser: Option<&mut Recogniser>) -> anyhow::Result<Looked> {
    let mut reader = open(path)?;
    let meta = reader.meta().clone();
    let mut gatherer = Gatherer::default();
    let ended = blocks(path, &mut reader, |_, block| {
        gatherer.add(block);
        if let Some(recogniser) = &mut recogniser {
            recogniser.add(&meta, block);
        }
        Ok(())
    })?;
    let summary = gatherer.finish(reader.paths(), files);
    // Of what is no file there is only what was read.
    let file = std::fs::metadata(path).ok().filter(|file| file.is_file() && !input::is_standard(path));
    let bytes = file.map_or(reader.bytes(), |file| file.len());
    Ok(Looked { summary, meta, ended, incomplete: reader.incomplete().to_owned(), bytes })
}

impl Looked {
    fn end_json(&self) -> serde_json::Value {
        let why = self.ended.why(&self.incomplete);
        let mut json = json!({"complete": why.is_empty()});
        if let End::Complete { dropped } = self.ended.end {
            json["dropped"] = dropped.into();
        }
        if !why.is_empty() {
            json["incomplete"] = why.into();
        }
        json
    }
}

pub(super) fn info(args: &InfoArgs) -> anyhow::Result<ExitCode> {
    output::check_standard(args.plot.as_deref(), args.json)?;
    args.plot.as_deref().map_or(Ok(()), output::check_file)?;
    let mut recogniser = Recogniser::new()?;
    let looked = look(&args.trace, 10, Some(&mut recogniser))?;
    let pattern = recogniser.finish();
    let Looked { summary, meta, ended, .. } = &looked;
    if let Some(plot) = &args.plot {
        let svg = plot::draw(summary, meta.emulated).context("drawing the plot")?;
        output::write_file(plot, svg.as_bytes())?;
    }
    if args.json {
        output::json(&json!({"meta": meta, "end": looked.end_json(), "file_bytes": looked.bytes, "summary": summary,
            "pattern": pattern}))?;
    } else if !args.plot.as_deref().is_some_and(output::is_standard) {
        let mut text = String::new();
        describe(&mut text, &looked, &pattern)?;
        output::text(&text);
    }
    Ok(ended.code())
}

fn describe(text: &mut String, looked: &Looked, pattern: &Pattern) -> std::fmt::Result {
    let Looked { summary, meta, ended, incomplete, bytes } = looked;
    let requests = summary.reads.requests + summary.writes.requests;
    let count = |of: usize, noun: &str| counted(of as u64, noun);
    let processes = if meta.processes { format!(" ({})", count(summary.processes, "process")) } else { String::new() };
    writeln!(
        text,
        "requests   {requests} in {}, of {} by {}{processes} on {}",
        show_time(summary.seconds * 1e9),
        count(summary.files, "file"),
        count(summary.apps, "application"),
        // Files that all fit into a stripe have parts on all targets, but only first ones.
        count(summary.targets.max(meta.targets as usize), "target")
    )?;
    let mut origin = vec![meta.program.clone()];
    origin.extend((!meta.source.is_empty()).then(|| format!("from {}", meta.source)));
    origin.extend((!meta.policy.is_empty()).then(|| format!("algorithm {}", meta.policy)));
    origin.extend((!meta.job.is_empty()).then(|| format!("job {}", printable(&meta.job))));
    origin.extend(meta.untimed.then(|| "without times: only the order is right".to_owned()));
    origin.extend(meta.checksums.then(|| "with checksums of the data".to_owned()));
    origin.extend(meta.emulated.then(|| "times of emulated devices".to_owned()));
    writeln!(text, "recorded   {}", origin.join(", "))?;
    let each = if requests == 0 { 0.0 } else { *bytes as f64 / requests as f64 };
    write!(text, "file       {}, {} bytes a request; ", show_size(*bytes as f64), show_number(each))?;
    match (ended.why(incomplete), ended.dropped()) {
        (why, 0) if why.is_empty() => writeln!(text, "complete")?,
        (why, dropped) if why.is_empty() => {
            writeln!(text, "complete but for {} that the recorder lost", counted(dropped, "request"))?
        }
        (why, _) => writeln!(text, "incomplete: {}", printable(&why))?,
    }
    if requests == 0 {
        return Ok(());
    }
    for (name, counts) in [("reads", &summary.reads), ("writes", &summary.writes)] {
        let Counts { requests, bytes, len_min, len_max } = *counts;
        if requests == 0 {
            writeln!(text, "{name:<10} none")?;
            continue;
        }
        let [all, least, most] = [bytes, len_min.into(), len_max.into()].map(|bytes: u64| show_size(bytes as f64));
        writeln!(text, "{name:<10} {requests}, {all}, of {least} to {most}")?;
    }
    writeln!(text, "read share {:.0} % of the bytes", summary.read_share * 100.0)?;
    let [contiguous, strided, other] =
        [summary.spatiality.contiguous, summary.spatiality.strided, summary.spatiality.other]
            .map(|share| share * 100.0);
    writeln!(text, "follow     {contiguous:.0} % contiguous, {strided:.0} % strided, {other:.0} % neither")?;
    match (pattern.class, &pattern.why) {
        (Some(class), Some(why)) => {
            let shares = pattern.shares.iter().map(|(name, share)| format!("{name} {:.0} %", share * 100.0));
            let shares: Vec<String> = shares.collect();
            let sure = pattern.confidence * 100.0;
            writeln!(text, "pattern    {class} ({sure:.0} % sure): {}", shares.join(", "))?;
            writeln!(text, "           {why}")?;
        }
        _ => writeln!(text, "pattern    unknown: no file or application has 16 requests in a second")?,
    }
    let each = show_number(summary.burst_requests);
    writeln!(text, "bursts     {} of {each} requests (pauses of 100 ms)", summary.bursts)?;
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
    let bytes: Vec<u64> = summary
        .course
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |sum: u64, p| sum.saturating_add(p.read_bytes).saturating_add(p.write_bytes)))
        .collect();
    let most = bytes.iter().copied().max().unwrap_or_default().max(1);
    let line: String =
        bytes.iter().map(|&bytes| BLOCKS[(u128::from(bytes) * 8).div_ceil(most.into()).min(8) as usize]).collect();
    let each = 2.0 * summary.point_seconds;
    let (rate, each) = (show_rate(most as f64 / each.max(1e-9)), show_time(each * 1e9));
    writeln!(text, "over time  |{line}| up to {rate}, {each} a column")
}

/// Paths come from anywhere: what would move the cursor is shown as it is written.
pub(super) fn printable(path: &str) -> String {
    path.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

pub(super) fn stats(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let Looked { summary, ended, .. } = look(&args.trace, usize::MAX, None)?;
    if args.json {
        output::json(&json!({"files": summary.largest_files}))?;
        return Ok(ended.code());
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
    Ok(ended.code())
}

pub(super) fn cat(args: &CatArgs) -> anyhow::Result<ExitCode> {
    let mut reader = open(&args.trace)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let (mut left, json, processes) = (args.limit.unwrap_or(u64::MAX), args.json, reader.meta().processes);
    // Only where the trace tells it.
    let of_process = |text: &str| if processes { format!(" {text:>8}") } else { String::new() };
    if !json {
        let _ = writeln!(
            out,
            "{:>18} {:>5} {:>16} {:>10} {:>6}{} {:>6}  path",
            "seconds",
            "op",
            "offset",
            "bytes",
            "app",
            of_process("process"),
            "target"
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
                if processes {
                    line["process"] = block.process_of(at).into();
                }
                if let Some(sum) = block.sum_of(at) {
                    line["crc32"] = sum.crc.into();
                    line["crc32_bytes"] = sum.bytes.into();
                }
                writeln!(out, "{line}")
            } else {
                let (offset, len, path) = (entry.offset, entry.len, printable(&path));
                let process = of_process(&block.process_of(at).to_string());
                writeln!(
                    out,
                    "{seconds:>18.9} {op:>5} {offset:>16} {len:>10} {:>6}{process} {:>6}  {path}",
                    entry.app, entry.target
                )
            };
            written.map_err(stopped)?;
        }
        Ok(())
    });
    let enough = |error: anyhow::Error| if error.is::<Enough>() { Ok(()) } else { Err(error) };
    let code = match result {
        Ok(ended) => ended.code(),
        Err(error) => enough(error).map(|()| ExitCode::SUCCESS)?,
    };
    out.flush().map_err(stopped).or_else(enough)?;
    Ok(code)
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
