//! Doing again what a trace recorded, in a directory or a mount.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use parking_lot::Mutex;
use serde::Serialize;
use sluice_core::{Histogram, Op};
use sluice_trace::{Columns, Entry, Meta};

use super::{Opened, blocks, open, stop_on_signals};
use crate::output;

/// Bytes prepared at a time.
const CHUNK: usize = 1 << 20;
/// Longest sleep before looking whether to stop.
const NAP: Duration = Duration::from_millis(50);

/// Does the requests of a trace again, on files of the same names in a directory (a mount, for example)
///
/// Files that are missing are made first, as large as the trace needs them. Files that are there are read, and written only
/// with --overwrite. What is written depends on file and place alone; with --check everything that is read is compared.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The trace
    trace: PathBuf,
    /// Where its files are, or will be
    dir: PathBuf,
    /// Each request at its time; without it as fast as possible
    #[arg(long)]
    timed: bool,
    /// As --timed, but so many times as fast
    #[arg(long, value_name = "FACTOR", value_parser = speed)]
    speed: Option<f64>,
    /// Requests at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: u32,
    /// Compare what is read with what the files hold; makes all of them anew
    #[arg(long)]
    check: bool,
    /// Write to files that are there
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
    /// Requests of which all data was compared.
    checked: u64,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signals()?;
    let mut reader = open(&args.trace)?;
    let meta = reader.meta().clone();
    let needs = needs(&args.trace, &mut reader, &meta)?;
    let files = prepare(args, &needs, &stop)?;
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::from(130));
    }
    let speed = args.speed.or(args.timed.then_some(1.0));
    let reader = open(&args.trace)?;
    let source = Source { reader, meta, block: Columns::default(), at: 0, ahead: None };
    let replay =
        Replay { source: Mutex::new(source), files, speed, check: args.check, start: Instant::now(), stop: &stop };
    let report = replay.run(args.threads)?;
    if args.json {
        output::line(serde_json::to_string(&report)?);
    } else {
        show(&report);
    }
    Ok(ExitCode::from(if stop.load(Ordering::Relaxed) { 130 } else { 0 }))
}

fn show(report: &Report) {
    let Report { requests, seconds, mb_s, .. } = report;
    output::line(format_args!("{requests} requests in {seconds:.3} s, {mb_s:.1} MB/s"));
    let (p50, p99) = (report.latency_p50_us, report.latency_p99_us);
    output::line(format_args!("latency: median {p50:.1} us, 99th percentile {p99:.1} us"));
    if let Some(late) = report.late_p99_us {
        output::line(format_args!("began late by (99th percentile): {late:.1} us"));
    }
    if report.checked > 0 {
        output::line(format_args!("data: {} reads compared, all right", report.checked));
    }
}

/// A file of the trace.
#[derive(Default)]
struct Need {
    path: Vec<u8>,
    /// Where its last request ends.
    size: u64,
    written: bool,
}

fn needs(path: &Path, reader: &mut Opened, meta: &Meta) -> anyhow::Result<Vec<Need>> {
    let mut needs: Vec<Need> = Vec::new();
    blocks(path, reader, |paths, block| {
        for entry in block.iter() {
            let at = entry.file as usize;
            if at >= needs.len() {
                needs.resize_with(at + 1, Need::default);
            }
            let need = &mut needs[at];
            if need.size == 0 {
                need.path = paths.get(entry.file).to_vec();
            }
            let end = meta.logical_offset(entry.target, entry.offset).saturating_add(entry.len.into());
            need.size = need.size.max(end);
            need.written |= entry.op == Op::Write;
        }
        Ok(())
    })?;
    Ok(needs)
}

/// Where a path of a trace lies below `dir`. Nothing leads out of there.
fn below(dir: &Path, path: &[u8]) -> anyhow::Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let mut result = dir.to_owned();
    for part in path.components() {
        match part {
            Component::Normal(name) => result.push(name),
            Component::RootDir | Component::CurDir => {}
            _ => bail!("the trace names a file outside the directory: {}", path.display()),
        }
    }
    if result == dir {
        bail!("the trace has a file without a name");
    }
    Ok(result)
}

/// Opens all files, making those that are missing.
fn prepare(args: &Args, needs: &[Need], stop: &AtomicBool) -> anyhow::Result<HashMap<u32, Arc<File>>> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Best effort: too many files are told below.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if !args.dir.is_dir() {
        bail!("{} is not a directory", args.dir.display());
    }
    let (mut files, mut made) = (HashMap::new(), HashSet::new());
    for (number, need) in needs.iter().enumerate().filter(|(_, need)| !need.path.is_empty()) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let path = below(&args.dir, &need.path)?;
        let shown = path.display().to_string();
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        let there = path.symlink_metadata().is_ok() && !made.contains(&path);
        if there && (need.written || args.check) && !args.overwrite {
            bail!("{shown} is there and would be written; give another directory, or --overwrite");
        }
        let file = File::options()
            .read(true)
            .write(need.written || !there || args.check)
            .create(!there)
            .truncate(false)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .with_context(|| shown.clone())?;
        let size = file.metadata().with_context(|| shown.clone())?.len();
        let from = if there && !args.check { need.size.max(size) } else { 0 };
        fill_file(&file, &need.path, from, need.size, stop).with_context(|| shown)?;
        made.insert(path);
        files.insert(number as u32, Arc::new(file));
    }
    Ok(files)
}

fn fill_file(file: &File, name: &[u8], from: u64, to: u64, stop: &AtomicBool) -> io::Result<()> {
    let (mut at, mut buffer, seed) = (from, Vec::new(), seed(name));
    while at < to && !stop.load(Ordering::Relaxed) {
        buffer.resize((to - at).min(CHUNK as u64) as usize, 0);
        fill(&mut buffer, seed, at);
        file.write_all_at(&buffer, at)?;
        at += buffer.len() as u64;
    }
    Ok(())
}

fn seed(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// What a file holds at `offset`.
fn fill(buffer: &mut [u8], seed: u64, offset: u64) {
    let mut done = 0;
    while done < buffer.len() {
        let at = offset + done as u64;
        let mut word = (seed ^ (at / 8)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word = (word ^ (word >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let bytes = (word ^ (word >> 32)).to_le_bytes();
        let from = (at % 8) as usize;
        let count = (8 - from).min(buffer.len() - done);
        buffer[done..done + count].copy_from_slice(&bytes[from..from + count]);
        done += count;
    }
}

/// The requests of applications, put together of their pieces.
struct Source {
    reader: Opened,
    meta: Meta,
    block: Columns,
    at: usize,
    ahead: Option<Entry>,
}

impl Source {
    /// The next entry with its offset in the whole file.
    fn entry(&mut self) -> anyhow::Result<Option<Entry>> {
        if let Some(entry) = self.ahead.take() {
            return Ok(Some(entry));
        }
        if self.at == self.block.len() {
            self.at = 0;
            match self.reader.next_block(&mut self.block) {
                Ok(true) => {}
                // Damage was told when the trace was read the first time.
                Ok(false) | Err(sluice_trace::Error::Corrupt { .. }) => {
                    self.block.clear();
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let entry = self.block.get(self.at);
        self.at += 1;
        Ok(Some(Entry { offset: self.meta.logical_offset(entry.target, entry.offset), ..entry }))
    }

    fn next(&mut self) -> anyhow::Result<Option<Entry>> {
        let Some(mut whole) = self.entry()? else { return Ok(None) };
        while self.meta.pieces
            && let Some(next) = self.entry()?
        {
            let same = (next.time, next.file, next.op, next.app) == (whole.time, whole.file, whole.op, whole.app);
            let len = whole.len.checked_add(next.len).filter(|_| same && next.offset == whole.end());
            match len {
                Some(len) => whole.len = len,
                None => {
                    self.ahead = Some(next);
                    break;
                }
            }
        }
        Ok(Some(whole))
    }
}

struct Replay<'a> {
    source: Mutex<Source>,
    files: HashMap<u32, Arc<File>>,
    speed: Option<f64>,
    check: bool,
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
            latency.merge(&done.latency);
            late.merge(&done.late);
        }
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
            && let Some(entry) = { self.source.lock().next()? }
        {
            if let Some(speed) = self.speed {
                let due = self.start + Duration::from_nanos((entry.time as f64 / speed) as u64);
                while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                    if self.stop.load(Ordering::Relaxed) {
                        return Ok(done);
                    }
                    std::thread::sleep(left.min(NAP));
                }
                done.late.record(Instant::now().saturating_duration_since(due).as_nanos() as u64);
            }
            self.execute(&entry, &mut buffer, &mut done).inspect_err(|_| self.stop.store(true, Ordering::Relaxed))?;
        }
        Ok(done)
    }

    fn execute(&self, entry: &Entry, buffer: &mut Vec<u8>, done: &mut Done) -> anyhow::Result<()> {
        let file = self.files.get(&entry.file).context("the trace has changed while it was read")?;
        let name = { self.source.lock().reader.paths().get(entry.file).to_vec() };
        let place = || format!("{} at byte {}", String::from_utf8_lossy(&name), entry.offset);
        buffer.resize(entry.len as usize, 0);
        if entry.op == Op::Write {
            fill(buffer, seed(&name), entry.offset);
        }
        let begin = Instant::now();
        match entry.op {
            Op::Read => read(file, buffer, entry.offset).with_context(place)?,
            Op::Write => file.write_all_at(buffer, entry.offset).with_context(place)?,
        }
        done.latency.record(begin.elapsed().as_nanos() as u64);
        done.report.requests += 1;
        match entry.op {
            Op::Read => done.report.read_bytes += u64::from(entry.len),
            Op::Write => done.report.write_bytes += u64::from(entry.len),
        }
        if self.check && entry.op == Op::Read {
            let mut expected = vec![0; buffer.len()];
            fill(&mut expected, seed(&name), entry.offset);
            if let Some(wrong) = buffer.iter().zip(&expected).position(|(is, should)| is != should) {
                bail!("{}: wrong data at byte {}", place(), entry.offset + wrong as u64);
            }
            done.report.checked += 1;
        }
        Ok(())
    }
}

/// Reads what there is; files may be shorter than they were.
fn read(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out_of_the_directory() {
        let dir = Path::new("/d");
        assert_eq!(below(dir, b"/tmp/./x").unwrap(), Path::new("/d/tmp/x"));
        for path in [&b"../x"[..], b"a/../../x", b"/", b"", b"."] {
            assert!(below(dir, path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn the_pattern_depends_on_the_place_alone() {
        let mut whole = [0; 64];
        fill(&mut whole, 7, 100);
        for from in 0..64 {
            let mut part = vec![0; (64 - from).min(13)];
            fill(&mut part, 7, 100 + from as u64);
            assert_eq!(part, whole[from..from + part.len()]);
        }
    }
}
