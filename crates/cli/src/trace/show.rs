//! Looking at traces.

use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;
use sluice_core::Op;
use sluice_trace::summary::{Counts, Gatherer, Summary};
use sluice_trace::{End, Meta};

use super::pattern::{Pattern, Recogniser};
use super::{blocks, open};
use crate::output;

/// Says what is in a trace: files, sizes, read share, how requests follow each other, bursts, duration
#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    /// The trace
    trace: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw what arrived over time, as SVG
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
    /// Stop after so many
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u64>,
}

fn summary(path: &Path, files: usize, mut recogniser: Option<&mut Recogniser>) -> anyhow::Result<(Summary, Meta, End)> {
    let mut reader = open(path)?;
    let meta = reader.meta().clone();
    let mut gatherer = Gatherer::default();
    let end = blocks(path, &mut reader, |_, block| {
        gatherer.add(block);
        if let Some(recogniser) = &mut recogniser {
            recogniser.add(&meta, block);
        }
        Ok(())
    })?;
    Ok((gatherer.finish(reader.paths(), files), meta, end))
}

fn end_json(end: End) -> serde_json::Value {
    match end {
        End::Complete { dropped } => json!({"complete": true, "dropped": dropped}),
        _ => json!({"complete": false}),
    }
}

pub(super) fn info(args: &InfoArgs) -> anyhow::Result<ExitCode> {
    let mut recogniser = Recogniser::new()?;
    let (summary, meta, end) = summary(&args.trace, 10, Some(&mut recogniser))?;
    let pattern = recogniser.finish();
    if let Some(plot) = &args.plot {
        let svg = draw(&summary, meta.emulated).context("drawing the plot")?;
        std::fs::write(plot, svg).with_context(|| format!("{} cannot be written", plot.display()))?;
    }
    if args.json {
        let bytes = std::fs::metadata(&args.trace)?.len();
        output::line(json!({"meta": meta, "end": end_json(end), "file_bytes": bytes, "summary": summary,
            "pattern": pattern}));
        return Ok(ExitCode::SUCCESS);
    }
    let bytes = std::fs::metadata(&args.trace)?.len();
    let mut text = String::new();
    describe(&mut text, &summary, &pattern, (&meta, end, bytes))?;
    output::text(&text);
    Ok(ExitCode::SUCCESS)
}

fn describe(
    text: &mut String,
    summary: &Summary,
    pattern: &Pattern,
    (meta, end, bytes): (&Meta, End, u64),
) -> std::fmt::Result {
    let requests = summary.reads.requests + summary.writes.requests;
    writeln!(
        text,
        "requests   {requests} in {:.3} s, of {} files by {} applications on {} targets",
        summary.seconds,
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
    write!(text, "file       {bytes} bytes, {each:.1} a request; ")?;
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
        writeln!(text, "{name:<10} {requests}, {:.1} MB, of {len_min} to {len_max} bytes", bytes as f64 / 1e6)?;
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
    writeln!(text, "bursts     {} of {:.1} requests (pauses of 100 ms)", summary.bursts, summary.burst_requests)?;
    course(text, summary)?;
    writeln!(text, "\nlengths")?;
    let most = summary.lengths.iter().copied().max().unwrap_or_default().max(1);
    for (power, &count) in summary.lengths.iter().enumerate().filter(|(_, count)| **count > 0) {
        let bar = "#".repeat((count * 40).div_ceil(most) as usize);
        writeln!(text, "  {:>10} {count:>10} {bar}", sluice_notation::show_bytes(1 << power))?;
    }
    writeln!(text, "\nlargest files")?;
    for file in &summary.largest_files {
        let (reads, writes) = (file.reads.bytes as f64 / 1e6, file.writes.bytes as f64 / 1e6);
        writeln!(text, "  {reads:>10.1} MB read {writes:>10.1} MB written  {}", printable(&file.path))?;
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
    let rate = most as f64 / 1e6 / (2.0 * summary.point_seconds).max(1e-9);
    let each = 2.0 * summary.point_seconds;
    writeln!(text, "over time  |{line}| up to {rate:.1} MB/s, {each:.3} s a column")
}

/// Paths come from anywhere: what would move the cursor is shown as it is written.
pub(super) fn printable(path: &str) -> String {
    path.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

fn draw(summary: &Summary, emulated: bool) -> anyhow::Result<String> {
    use plotters::prelude::*;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (900, 320)).into_drawing_area();
        area.fill(&WHITE)?;
        let width = summary.point_seconds;
        let end = (summary.course.len() as f64 * width).max(width);
        let rate = |bytes: u64| bytes as f64 / 1e6 / width;
        // Above the bars there is room for the legend.
        let top = summary.course.iter().map(|p| rate(p.read_bytes + p.write_bytes)).fold(1e-6, f64::max) * 1.4;
        let title = if emulated { "Arrivals over time, emulated devices" } else { "Arrivals over time" };
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..end, 0.0..top)?;
        chart.configure_mesh().disable_x_mesh().x_desc("seconds").y_desc("MB/s").draw()?;
        let (blue, orange) = (RGBColor(0, 114, 178), RGBColor(230, 159, 0));
        let bar = |at: usize, from: u64, to: u64, colour: RGBColor| {
            let x = at as f64 * width;
            Rectangle::new([(x, rate(from)), (x + width, rate(to))], colour.filled())
        };
        let points = || summary.course.iter().enumerate();
        chart
            .draw_series(points().map(|(at, p)| bar(at, 0, p.read_bytes, blue)))?
            .label("read")
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], blue.filled()));
        chart
            .draw_series(points().map(|(at, p)| bar(at, p.read_bytes, p.read_bytes + p.write_bytes, orange)))?
            .label("written")
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], orange.filled()));
        let legend = SeriesLabelPosition::UpperRight;
        chart.configure_series_labels().position(legend).background_style(WHITE.mix(0.8)).draw()?;
        area.present()?;
    }
    Ok(svg)
}

pub(super) fn stats(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let (summary, ..) = summary(&args.trace, usize::MAX, None)?;
    if args.json {
        output::line(json!({"files": summary.largest_files}));
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    writeln!(text, "{:>10} {:>12} {:>10} {:>12} {:>10}  path", "reads", "MB", "writes", "MB", "seconds")?;
    for file in &summary.largest_files {
        let (reads, writes) = (&file.reads, &file.writes);
        let [read, written] = [reads.bytes, writes.bytes].map(|bytes| bytes as f64 / 1e6);
        let (reads, writes, path) = (reads.requests, writes.requests, printable(&file.path));
        writeln!(text, "{reads:>10} {read:>12.3} {writes:>10} {written:>12.3} {:>10.3}  {path}", file.seconds)?;
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
                let mut line = json!({"time_ns": entry.time, "path": path, "op": op, "offset": entry.offset,
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
