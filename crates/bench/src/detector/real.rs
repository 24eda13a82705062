//! The detector on real processes: programs whose pattern is known run on a mount over four directories, recorded; the
//! recording is judged in half seconds. How many processes there are, how much they ask for at once and how large their parts are
//! is drawn from a seed, so that no model can be fitted to the programs that it is judged by.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde::Serialize;
use sluice_adapt::detector::{Class, Detector};
use sluice_adapt::features::{Answers, Settings, Watcher};
use sluice_cli::output;
use sluice_core::{AppId, FileId, Op, Request, TargetId, Time};
use sluice_sim::scenario::Place;
use sluice_sim::{PatternWindow, Truth};
use sluice_trace::{Columns, Reader};

use super::Score;
use super::data::Seen;
use super::scenarios::Dice;
use crate::bed::Runner;

const PROGRAMS: &str = include_str!("programs.py");
const TARGETS: u64 = 4;
const STRIPE: u64 = 64 << 10;
const K: u64 = 1 << 10;
/// Requests of a process before it starts over, at least.
const CALLS_MIN: u64 = 16;
const WINDOW_NS: u64 = 500_000_000;
/// As `sluice trace info` has it: pieces of a request have one time in a recording.
const ANSWERED_NS: u64 = 1;

/// What runs.
struct Workload {
    program: &'static str,
    is_strided: bool,
    own_files: bool,
    op: &'static str,
    processes: u64,
    /// Bytes.
    request: u64,
    /// Requests of a process; then it starts over.
    calls: u64,
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

    /// Bytes of a process; what is not written is a hole.
    fn part(&self) -> u64 {
        self.request * self.calls
    }

    fn name(&self) -> String {
        let files = if self.own_files { "own files" } else { "shared" };
        let (part, request) = (self.part() >> 10, self.request >> 10);
        format!("{} {} {files} {} {} x {part}K by {request}K", self.program, self.class(), self.op, self.processes)
    }

    fn command(&self, dir: &Path, script: &Path, seconds: u32) -> Command {
        let Workload { processes, request, calls, .. } = *self;
        if self.program == "own" {
            let mut command = Command::new("python3");
            command.arg(script).arg(dir).arg(if self.is_strided { "strided" } else { "contiguous" });
            command.arg(if self.own_files { "own" } else { "shared" }).arg(self.op);
            command.args([processes.to_string(), request.to_string(), calls.to_string(), seconds.to_string()]);
            return command;
        }
        let mut command = Command::new("fio");
        let part = self.part();
        command.args(["--name=data", "--direct=1", "--ioengine=psync", "--time_based", "--fallocate=none"]);
        command.args([format!("--rw={}", self.op), format!("--bs={request}"), format!("--numjobs={processes}")]);
        command.args([format!("--runtime={seconds}"), format!("--directory={}", dir.display())]);
        if self.own_files {
            command.args([format!("--size={part}"), "--filename_format=data.$jobnum".to_owned()]);
        } else {
            command.args(["--filename=data.0".to_owned(), "--overwrite=1".to_owned()]);
            if self.is_strided {
                let range = request * processes;
                // Of a file that ends before a job's range does, fio first writes all, front to back, in requests of this size: that
                // would be what is recorded.
                command.args([format!("--offset_increment={request}"), format!("--size={}", range * (calls - 1))]);
                command.args(["--zonemode=strided".to_owned(), format!("--zonesize={request}")]);
                command.args([format!("--zonerange={range}"), "--io_size=1t".to_owned()]);
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

/// Programs, file layouts, sizes and operations in every combination; the rest is drawn.
fn workloads(seed: u64) -> Vec<Workload> {
    let mut dice = Dice::new(seed ^ 0x4ea1 << 32);
    let mut all = Vec::new();
    for program in ["own", "fio"] {
        for (is_strided, own_files) in [(false, false), (false, true), (true, false)] {
            for is_large in [false, true] {
                for op in ["read", "write"] {
                    let request = match (is_large, dice.percent(70)) {
                        (true, true) => TARGETS * STRIPE * dice.of(&[1, 2, 4]),
                        (true, false) => TARGETS * STRIPE + dice.below(192) * 4 * K,
                        (false, true) => STRIPE >> (1 + dice.below(4)),
                        (false, false) => (1 + dice.below(15)) * 4 * K,
                    };
                    let processes = *dice.of(&[2, 3, 4, 5, 6, 8, 10, 12, 16]);
                    let calls = (((2048 * K) << dice.below(9)) / request).max(CALLS_MIN);
                    all.push(Workload { program, is_strided, own_files, op, processes, request, calls });
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
    pub(super) seconds: u32,
    /// What they are is drawn from it.
    pub(super) seed: u64,
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
    /// Runs all workloads on each bed: `tmpfs`, or device models that are emulated. Also returns what was seen of each.
    ///
    /// # Errors
    /// If a program fails, or it was told to stop.
    pub(super) fn run(&self, beds: &[String]) -> anyhow::Result<Vec<(Run, Seen)>> {
        let mut runs = Vec::new();
        beds.iter().try_for_each(|bed| self.on(bed, &mut runs))?;
        Ok(runs)
    }

    fn on(&self, bed: &str, runs: &mut Vec<(Run, Seen)>) -> anyhow::Result<()> {
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
        for workload in workloads(self.seed) {
            output::tell(format_args!("{bed}: {}", workload.name()));
            let (requests, windows) = self.one(&mount.point, &workload, &script, &path("trace.slt"))?;
            let (server, file) = judge(&windows, workload.class(), self.detector);
            let run = Run { bed: bed.to_owned(), workload: workload.name(), requests, server, file };
            // Each has a number of its own, as scenarios have.
            let seed = self.seed * 1_000 + runs.len() as u64;
            let seen = Seen {
                seed,
                platform: bed.to_owned(),
                mode: workload.program,
                knows_answers: false,
                is_again: true,
                windows,
            };
            runs.push((run, seen));
        }
        Ok(())
    }

    /// Runs a workload below a mount's directory: how many requests it had, and what data servers saw of them.
    fn one(
        &self,
        mount: &Path,
        workload: &Workload,
        script: &Path,
        trace: &Path,
    ) -> anyhow::Result<(u64, Vec<PatternWindow>)> {
        let dir = mount.join("run");
        std::fs::create_dir(&dir)?;
        if workload.op == "read" || workload.program == "fio" {
            // What is read has to be there; fio would lay it out itself, in the recording.
            let (files, all) = (workload.processes, workload.processes * workload.part());
            let (count, len) = if workload.own_files { (files, workload.part()) } else { (1, all) };
            (0..count).try_for_each(|file| std::fs::File::create(dir.join(format!("data.{file}")))?.set_len(len))?;
        }
        let sluice = || Command::new(&self.sluice);
        self.runner.run(sluice().args(["trace", "start"]).arg(mount).arg("--out").arg(trace))?;
        self.runner.run(&mut workload.command(&dir, script, self.seconds))?;
        self.runner.run(sluice().args(["trace", "stop"]).arg(mount))?;
        std::fs::remove_dir_all(&dir)?;
        let seen = windows(trace, workload).with_context(|| workload.name())?;
        std::fs::remove_file(trace)?;
        Ok(seen)
    }
}

/// How many requests a recording has, and its windows, for each data server: each sees its own requests only.
fn windows(path: &Path, workload: &Workload) -> anyhow::Result<(u64, Vec<PatternWindow>)> {
    let mut reader = Reader::open(path)?;
    let settings = Settings { stripe: STRIPE, answers: Answers::After(ANSWERED_NS), ..Settings::default() };
    let mut watchers: Vec<Watcher> = (0..TARGETS).map(|_| Watcher::new(settings, Time::ZERO)).collect();
    let mut truths = vec![BTreeMap::<(u32, u32), Truth>::new(); TARGETS as usize];
    let op = if workload.op == "read" { Op::Read } else { Op::Write };
    let (mut requests, mut seen, mut end) = (0, Vec::new(), WINDOW_NS);
    let mut close = |watchers: &mut [Watcher], truths: &mut [BTreeMap<(u32, u32), Truth>], end: u64| {
        for ((server, watcher), truths) in (0..).zip(watchers).zip(truths) {
            let window = watcher.close(Time(end)).clone();
            let truths = std::mem::take(truths).into_iter();
            let truths = truths.map(|((file, app), truth)| ((FileId(file.into()), AppId(app), op), truth)).collect();
            seen.push(PatternWindow { place: Place::Server(server), window, truths });
        }
    };
    let mut block = Columns::default();
    while reader.next_block(&mut block)? {
        for entry in block.iter() {
            while entry.time >= end {
                close(&mut watchers, &mut truths, end);
                end += WINDOW_NS;
            }
            // A program that does something else than it was started for would be judged by what it does not do.
            anyhow::ensure!(entry.op == op && u64::from(entry.len) <= workload.request, "another request: {entry:?}");
            let request = Request {
                cookie: 0,
                file: FileId(entry.file.into()),
                app: AppId(entry.app),
                target: TargetId(entry.target),
                op,
                offset: entry.offset,
                len: entry.len,
            };
            requests += 1;
            let server = entry.target as usize % TARGETS as usize;
            watchers[server].arrived(Time(entry.time), &request);
            let truth = truths[server].entry((entry.file, entry.app)).or_default();
            truth[workload.class().index()] += u64::from(entry.len);
        }
    }
    close(&mut watchers, &mut truths, end);
    Ok((requests, seen))
}

/// How often windows of data servers are recognised, and files in them.
fn judge(windows: &[PatternWindow], class: Class, detector: &Detector) -> (Score, Score) {
    let (mut server, mut file) = (Score::default(), Score::default());
    for seen in windows {
        let patterns = detector.detect(&seen.window, Settings::default().requests_min);
        if let Some(found) = patterns.all.class() {
            server.add(found == class);
        }
        let verdicts = patterns.files.iter().filter(|file| file.file.is_some()).filter_map(|file| file.verdict);
        verdicts.for_each(|verdict| file.add(verdict.class == class));
    }
    (server, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// fio writes what a file lacks before it begins: in the recording that would be another pattern than is asked for.
    #[test]
    fn strided_jobs_of_fio_stay_within_the_file() {
        for workload in (0..50).flat_map(workloads).filter(|workload| workload.program == "fio" && workload.is_strided)
        {
            let command = workload.command(Path::new("/"), Path::new("/"), 1);
            let value = |name: &str| -> u64 {
                let mut args = command.get_args().filter_map(|arg| arg.to_str()?.strip_prefix(name));
                args.next().unwrap().parse().unwrap()
            };
            let last = value("--offset_increment=") * (workload.processes - 1) + value("--size=");
            assert!(last <= workload.processes * workload.part(), "{}", workload.name());
        }
    }
}
