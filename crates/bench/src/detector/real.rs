//! The detector on real processes: programs whose pattern is known run on a mount over four directories, recorded; the
//! recording is judged second by second.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde::Serialize;
use sluice_adapt::detector::{Class, Detector};
use sluice_adapt::features::{Answers, Settings, Watcher};
use sluice_cli::output;
use sluice_core::{AppId, FileId, Request, TargetId, Time};
use sluice_trace::{Columns, Reader};

use super::Score;
use crate::bed::Runner;

const PROGRAMS: &str = include_str!("programs.py");
const TARGETS: u64 = 4;
const STRIPE: u64 = 64 << 10;
const PROCESSES: u64 = 8;
/// Bytes that all processes have in their files: more than they get through in a window. What is not written is a hole.
const BYTES: u64 = 4 << 30;
const WINDOW_NS: u64 = 500_000_000;
/// As `sluice trace info` has it: pieces of a request have one time in a recording.
const ANSWERED_NS: u64 = 1;

/// What runs.
struct Workload {
    program: &'static str,
    is_strided: bool,
    own_files: bool,
    request: u64,
    op: &'static str,
}

impl Workload {
    fn class(&self) -> Class {
        match (self.is_strided, self.request >= TARGETS * STRIPE) {
            (false, false) => Class::ContiguousSmall,
            (false, true) => Class::ContiguousLarge,
            (true, false) => Class::StridedSmall,
            (true, true) => Class::StridedLarge,
        }
    }

    fn name(&self) -> String {
        let files = if self.own_files { "own files" } else { "shared" };
        format!("{} {} {files} {}K {}", self.program, self.class(), self.request >> 10, self.op)
    }

    fn command(&self, dir: &Path, script: &Path, seconds: f64) -> Command {
        let calls = BYTES / PROCESSES / self.request;
        if self.program == "own" {
            let mut command = Command::new("python3");
            command.arg(script).arg(dir).arg(if self.is_strided { "strided" } else { "contiguous" });
            command.arg(if self.own_files { "own" } else { "shared" }).arg(self.op);
            command.args([PROCESSES.to_string(), self.request.to_string(), calls.to_string(), seconds.to_string()]);
            return command;
        }
        let mut command = Command::new("fio");
        let (request, part) = (self.request, BYTES / PROCESSES);
        command.args(["--name=data", "--direct=1", "--ioengine=psync", "--time_based", "--fallocate=none"]);
        command.args([format!("--rw={}", self.op), format!("--bs={request}"), format!("--numjobs={PROCESSES}")]);
        command.args([format!("--runtime={seconds}"), format!("--directory={}", dir.display())]);
        if self.own_files {
            command.args([format!("--size={part}"), "--filename_format=data.$jobnum".to_owned()]);
        } else {
            command.args(["--filename=data.0".to_owned(), "--overwrite=1".to_owned()]);
            if self.is_strided {
                let (range, zones) = (request * PROCESSES, calls);
                command.args([format!("--offset_increment={request}"), format!("--size={}", range * zones)]);
                command.args([
                    "--zonemode=strided".to_owned(),
                    format!("--zonesize={request}"),
                    format!("--zonerange={range}"),
                ]);
                command.arg(format!("--io_size={BYTES}"));
            } else {
                command.args([format!("--offset_increment={part}"), format!("--size={part}")]);
            }
        }
        command
    }
}

/// What came of a workload.
#[derive(Serialize)]
pub(super) struct Run {
    /// tmpfs, or the model of the emulated devices.
    pub(super) bed: String,
    pub(super) workload: String,
    pub(super) requests: u64,
    pub(super) server: Score,
    pub(super) file: Score,
}

fn workloads() -> Vec<Workload> {
    let mut all = Vec::new();
    for program in ["own", "fio"] {
        for (is_strided, own_files) in [(false, false), (false, true), (true, false)] {
            for request in [16 << 10, TARGETS * STRIPE] {
                for op in ["read", "write"] {
                    all.push(Workload { program, is_strided, own_files, request, op });
                }
            }
        }
    }
    all
}

/// Runs programs, and judges what the detector says of them.
pub(super) struct Programs<'a> {
    pub(super) runner: Runner,
    pub(super) sluice: PathBuf,
    /// Where all is that they make.
    pub(super) dir: &'a Path,
    /// How long each of them runs.
    pub(super) seconds: f64,
    pub(super) detector: &'a Detector,
}

/// A mount that goes away with this.
struct Mount<'a> {
    programs: &'a Programs<'a>,
    point: PathBuf,
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let unmount = |how: &[&str]| {
            let mut command = Command::new(&self.programs.sluice);
            self.programs.runner.finish(command.arg("unmount").args(how).arg(&self.point), false)
        };
        // Jobs of a program that was ended may not have left yet.
        if let Err(error) = unmount(&[]).or_else(|_| unmount(&["--lazy"])) {
            output::tell(format_args!("{error:#}"));
        }
    }
}

impl Programs<'_> {
    /// Runs all workloads on each bed: `tmpfs`, or device models that are emulated.
    ///
    /// # Errors
    /// If a program fails, or it was told to stop.
    pub(super) fn run(&self, beds: &[String]) -> anyhow::Result<Vec<Run>> {
        let mut runs = Vec::new();
        beds.iter().try_for_each(|bed| self.on(bed, &mut runs))?;
        Ok(runs)
    }

    fn on(&self, bed: &str, runs: &mut Vec<Run>) -> anyhow::Result<()> {
        let room = tempfile::Builder::new().prefix("sluice-detector-").tempdir_in(self.dir);
        let room = room.with_context(|| self.dir.display().to_string())?;
        let path = |name: &str| room.path().join(name);
        let targets: Vec<PathBuf> = (0..TARGETS).map(|target| path(&format!("target{target}"))).collect();
        for dir in targets.iter().chain([&path("mount")]) {
            std::fs::create_dir(dir)?;
        }
        let script = path("programs.py");
        std::fs::write(&script, PROGRAMS)?;
        let emulate = if bed == "tmpfs" { String::new() } else { format!("[device]\nemulate = {bed:?}\n") };
        let text = format!(
            "[mount]\nmountpoint = {:?}\ncache = \"none\"\n[volume]\ntargets = {targets:?}\nstripe = \"{STRIPE}\"\n{emulate}[log]\nfile = {:?}\n",
            path("mount"),
            path("log")
        );
        std::fs::write(path("config.toml"), text)?;
        self.runner.go_on()?;
        let mut command = Command::new(&self.sluice);
        self.runner.finish(command.args(["mount", "--daemon", "--config"]).arg(path("config.toml")), false)?;
        let mount = Mount { programs: self, point: path("mount") };
        for workload in workloads() {
            output::tell(format_args!("{bed}: {}", workload.name()));
            let (requests, server, file) = self.one(&mount.point, &workload, &script, &path("trace.slt"))?;
            runs.push(Run { bed: bed.to_owned(), workload: workload.name(), requests, server, file });
        }
        Ok(())
    }

    /// Runs a workload below a mount's directory: how many requests it had, and how often these were recognised.
    fn one(
        &self,
        mount: &Path,
        workload: &Workload,
        script: &Path,
        trace: &Path,
    ) -> anyhow::Result<(u64, Score, Score)> {
        let dir = mount.join("run");
        std::fs::create_dir(&dir)?;
        if workload.op == "read" || workload.program == "fio" {
            // What is read has to be there; fio would lay it out itself, in the recording.
            let (count, len) = if workload.own_files { (PROCESSES, BYTES / PROCESSES) } else { (1, BYTES) };
            (0..count).try_for_each(|file| std::fs::File::create(dir.join(format!("data.{file}")))?.set_len(len))?;
        }
        let sluice = || Command::new(&self.sluice);
        self.runner.run(sluice().args(["trace", "start"]).arg(mount).arg("--out").arg(trace))?;
        self.runner.run(&mut workload.command(&dir, script, self.seconds))?;
        self.runner.run(sluice().args(["trace", "stop"]).arg(mount))?;
        std::fs::remove_dir_all(&dir)?;
        let judged = judge_trace(trace, workload.class(), self.detector)?;
        std::fs::remove_file(trace)?;
        Ok(judged)
    }
}

/// How often a recording is recognised: requests, data servers in windows, files in windows.
fn judge_trace(path: &Path, class: Class, detector: &Detector) -> anyhow::Result<(u64, Score, Score)> {
    let mut reader = Reader::open(path)?;
    let settings = Settings { stripe: STRIPE, answers: Answers::After(ANSWERED_NS), ..Settings::default() };
    // As each data server would: it sees its own requests only.
    let mut watchers: Vec<Watcher> = (0..TARGETS).map(|_| Watcher::new(settings, Time::ZERO)).collect();
    let (mut requests, mut server, mut file) = (0, Score::default(), Score::default());
    let mut end = WINDOW_NS;
    let mut close = |watchers: &mut Vec<Watcher>, end: u64| {
        for watcher in watchers {
            let patterns = detector.detect(watcher.close(Time(end)), settings.requests_min);
            if let Some(found) = patterns.all.class() {
                server.add(found == class);
            }
            let verdicts = patterns.files.iter().filter(|file| file.file.is_some()).filter_map(|file| file.verdict);
            verdicts.for_each(|verdict| file.add(verdict.class == class));
        }
    };
    let mut block = Columns::default();
    while reader.next_block(&mut block)? {
        for entry in block.iter() {
            while entry.time >= end {
                close(&mut watchers, end);
                end += WINDOW_NS;
            }
            let request = Request {
                cookie: 0,
                file: FileId(entry.file.into()),
                app: AppId(entry.app),
                target: TargetId(entry.target),
                op: entry.op,
                offset: entry.offset,
                len: entry.len,
            };
            requests += 1;
            watchers[entry.target as usize % TARGETS as usize].arrived(Time(entry.time), &request);
        }
    }
    close(&mut watchers, end);
    Ok((requests, server, file))
}
