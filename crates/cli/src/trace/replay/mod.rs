//! Doing again what a trace recorded, in a directory or a mount.

mod files;
mod source;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use serde::Serialize;
use sluice_core::{Histogram, Op};
use sluice_notation::{counted, show_rate, show_time, show_time_roughly};

use self::files::{Expected, Target, Targets, fill};
use self::source::{Source, Whole};
use super::open;
use crate::input::Named;
use crate::output;

/// Wrong places that are listed.
const LISTED: usize = 20;
/// Longest sleep before looking whether to stop.
const NAP: Duration = Duration::from_millis(50);

/// Does the requests of a trace again, on files of the same names below a directory
///
/// Files that are missing are made first, as large as the trace needs them. Files that are there are read, and written only
/// with --overwrite. What is written depends on file and place alone.
///
/// With --check, what is read is compared. Of a file that was there before and that the trace only reads: with the checksums
/// in the trace (`sluice trace start --checksums`), so that it is told whether the file still holds what was read when the
/// trace was recorded. Of all others: with what the replay has written there; files that are there are made anew for that,
/// which needs --overwrite. Differences are listed, and the command fails.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The trace; - is standard input
    trace: PathBuf,
    /// Where its files are, or will be
    dir: PathBuf,
    /// Each request at its time; without it as fast as possible
    #[arg(long)]
    timed: bool,
    /// As --timed, but so many times as fast [default: 1 with --timed]
    #[arg(long, value_name = "FACTOR", value_parser = speed)]
    speed: Option<f64>,
    /// Requests at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: u32,
    /// Compare what is read with the checksums in the trace, or with what the replay wrote
    #[arg(long)]
    check: bool,
    /// Write to files that are there; with --check, make those anew that are not compared with checksums
    #[arg(long)]
    overwrite: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn speed(text: &str) -> Result<f64, String> {
    let factor: Option<f64> = text.parse().ok();
    factor
        .filter(|factor| (1e-3..=1e6).contains(factor))
        .ok_or_else(|| "expected a number from 0.001 to 1000000".into())
}

/// What a replay did.
#[derive(Debug, Default, Serialize)]
struct Report {
    requests: u64,
    read_bytes: u64,
    write_bytes: u64,
    seconds: f64,
    mb_s: f64,
    latency_p50_us: f64,
    latency_p99_us: f64,
    /// How late requests began; only with --timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    late_p99_us: Option<f64>,
    /// Reads of which all data was compared.
    checked: u64,
    /// Files that were missing.
    made: u64,
    /// Places with other data than expected.
    wrong: u64,
    /// The first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differences: Vec<Difference>,
}

/// A place with other data than expected.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
struct Difference {
    path: String,
    offset: u64,
    len: u64,
    /// What is wrong.
    problem: &'static str,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = crate::interrupt::flag()?;
    // It is read twice.
    let trace = Named::of(&args.trace)?;
    let mut reader = open(&trace)?;
    let meta = reader.meta().clone();
    let (needs, ended) = files::needs(&trace, &mut reader, &meta)?;
    let targets = files::prepare(args, &needs, meta.checksums, &stop)?;
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::from(130));
    }
    let speed = args.speed.or(args.timed.then_some(1.0));
    let source = Source::new(open(&trace)?);
    let replay = Replay { source: Mutex::new(source), targets, speed, start: Instant::now(), stop: &stop };
    let report = replay.run(args.threads)?;
    if args.json {
        output::json(&report)?;
    } else {
        show(&report);
    }
    Ok(match stop.load(Ordering::Relaxed) {
        true => ExitCode::from(130),
        false if report.wrong > 0 => ExitCode::FAILURE,
        false => ended.code(),
    })
}

fn show(report: &Report) {
    let (time, rate) = (show_time(report.seconds * 1e9), show_rate(report.mb_s * 1e6));
    output::line(format_args!("{} in {time}, {rate}", counted(report.requests, "request")));
    let [p50, p99] = [report.latency_p50_us, report.latency_p99_us].map(|us| show_time_roughly(us * 1e3));
    output::line(format_args!("latency: median {p50}, 99th percentile {p99}"));
    if let Some(late) = report.late_p99_us {
        output::line(format_args!("began late by (99th percentile): {}", show_time_roughly(late * 1e3)));
    }
    if report.made > 0 {
        output::line(format_args!("files made because they were missing: {}", report.made));
    }
    if report.checked > 0 || report.wrong > 0 {
        let right = match report.wrong {
            0 => "all right".to_owned(),
            wrong => format!("wrong in {}", counted(wrong, "place")),
        };
        output::line(format_args!("data: {} compared, {right}", counted(report.checked, "read")));
    }
    for Difference { path, offset, len, problem } in &report.differences {
        let path = super::show::printable(path);
        output::line(format_args!("  {path}: {} at byte {offset}: {problem}", counted(*len, "byte")));
    }
    if report.wrong > report.differences.len() as u64 {
        output::line(format_args!("  and {} more", report.wrong - report.differences.len() as u64));
    }
}

struct Replay<'a> {
    source: Mutex<Source>,
    targets: Targets,
    speed: Option<f64>,
    start: Instant,
    stop: &'a AtomicBool,
}

/// What one thread did.
struct Done {
    report: Report,
    latency: Histogram,
    late: Histogram,
}

impl Replay<'_> {
    fn run(&self, threads: u32) -> anyhow::Result<Report> {
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| self.thread())).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a replaying thread does not panic"))
                .collect::<Vec<_>>()
        });
        let seconds = self.start.elapsed().as_secs_f64();
        let (mut total, mut latency, mut late) = (Report::default(), Histogram::default(), Histogram::default());
        for done in results {
            let done = done?;
            total.requests += done.report.requests;
            total.read_bytes += done.report.read_bytes;
            total.write_bytes += done.report.write_bytes;
            total.checked += done.report.checked;
            total.wrong += done.report.wrong;
            total.differences.extend(done.report.differences);
            latency.merge(&done.latency);
            late.merge(&done.late);
        }
        total.differences.sort();
        total.differences.truncate(LISTED);
        total.made = self.targets.made;
        total.seconds = seconds;
        total.mb_s = (total.read_bytes + total.write_bytes) as f64 / 1e6 / seconds.max(1e-9);
        total.latency_p50_us = latency.percentile_ns(50.0) as f64 / 1e3;
        total.latency_p99_us = latency.percentile_ns(99.0) as f64 / 1e3;
        total.late_p99_us = self.speed.map(|_| late.percentile_ns(99.0) as f64 / 1e3);
        Ok(total)
    }

    fn thread(&self) -> anyhow::Result<Done> {
        let mut done = Done { report: Report::default(), latency: Histogram::default(), late: Histogram::default() };
        let mut buffer = Vec::new();
        while !self.stop.load(Ordering::Relaxed)
            && let Some(whole) = { self.source.lock().next()? }
        {
            if let Some(speed) = self.speed {
                let due = self.start + Duration::from_nanos((whole.entry.time as f64 / speed) as u64);
                while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                    if self.stop.load(Ordering::Relaxed) {
                        return Ok(done);
                    }
                    std::thread::sleep(left.min(NAP));
                }
                done.late.record(Instant::now().saturating_duration_since(due).as_nanos() as u64);
            }
            self.execute(&whole, &mut buffer, &mut done).inspect_err(|_| self.stop.store(true, Ordering::Relaxed))?;
        }
        Ok(done)
    }

    fn execute(&self, whole: &Whole, buffer: &mut Vec<u8>, done: &mut Done) -> anyhow::Result<()> {
        let entry = &whole.entry;
        let target = self.targets.files.get(&entry.file).context("the trace has changed while it was read")?;
        let place = || format!("{} at byte {}", target.name, entry.offset);
        buffer.resize(entry.len as usize, 0);
        if entry.op == Op::Write {
            fill(buffer, target.seed, entry.offset);
        }
        let begin = Instant::now();
        let got = match entry.op {
            Op::Read => read(&target.file, buffer, entry.offset).with_context(place)?,
            Op::Write => target.file.write_all_at(buffer, entry.offset).map(|()| buffer.len()).with_context(place)?,
        };
        done.latency.record(begin.elapsed().as_nanos() as u64);
        done.report.requests += 1;
        match entry.op {
            Op::Read => done.report.read_bytes += got as u64,
            Op::Write => done.report.write_bytes += u64::from(entry.len),
        }
        if entry.op == Op::Read {
            compare(target, whole, &buffer[..got], &mut done.report);
        }
        Ok(())
    }
}

/// Compares what was read with what is expected.
fn compare(target: &Target, whole: &Whole, data: &[u8], report: &mut Report) {
    let entry = &whole.entry;
    let mut wrong = |offset, len, problem| {
        report.wrong += 1;
        if report.differences.len() < LISTED {
            report.differences.push(Difference { path: target.name.clone(), offset, len, problem });
        }
    };
    match target.expected {
        Expected::Anything => return,
        Expected::Pattern => {
            let mut expected = vec![0; entry.len as usize];
            fill(&mut expected, target.seed, entry.offset);
            let differs = |at: &usize| data.get(*at) != expected.get(*at);
            if let Some(first) = (0..expected.len()).find(differs) {
                let last = (0..expected.len()).rfind(differs).unwrap_or(first);
                wrong(entry.offset + first as u64, (last - first + 1) as u64, "not what was written");
            }
        }
        Expected::Recorded => {
            for &(offset, _, sum) in &whole.sums {
                let Some(sum) = sum else { continue };
                let start = (offset - entry.offset) as usize;
                match data.get(start..start + sum.bytes as usize) {
                    Some(data) if sluice_trace::checksum(data) == sum.crc => {}
                    Some(_) => wrong(offset, sum.bytes.into(), "not what was read when the trace was recorded"),
                    None => wrong(offset, sum.bytes.into(), "the file ends before"),
                }
            }
            // A piece that had no data then has no checksum.
            if whole.sums.iter().all(|(_, _, sum)| sum.is_none()) {
                return;
            }
        }
    }
    report.checked += 1;
}

/// Reads what there is; files may be shorter than they were.
fn read(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
