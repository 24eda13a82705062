//! `sluice-bench rivals`: Sluicegate next to what somebody would use instead, the kernel's own I/O schedulers, on the same
//! emulated disk.
//!
//! One disk of `sluice disk` has ext4 on it, and always the same files. A *side* is either ext4 as it is under one of the
//! kernel's schedulers, or a mount of Sluicegate over it, under one of the kernel's schedulers, too: `none`, unless said. Under
//! each workload the sides take turns, in an order drawn anew for each round; ratios are formed within a round.

pub(crate) mod data;
pub(crate) mod report;
pub(crate) mod workloads;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use sluice_cli::output;

use crate::bed::{Bed, Disk, Runner, Side, check_fio};
use crate::random::SplitMix64;
use data::Data;
use report::{Report, Row, Run, settings};
use workloads::{Program, Unit, WORKLOADS, Workload};

pub(crate) const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "bfq", "kyber"];
/// Sluicegate's sides: its default, the plainest that merges, and its default over a scheduler of the kernel.
const POLICIES: [&str; 3] = ["hbrr", "to-agg", "hbrr+mq-deadline"];

/// Compares Sluicegate with the kernel's I/O schedulers, on an emulated hard disk.
///
/// Makes a block device with `sluice disk`, ext4 on it, and runs fio, SQLite and other programs on that, directly under each of
/// the kernel's schedulers and through mounts of Sluicegate, in turns. Needs root, FUSE, loop devices, fio, python3, and the
/// program `sluice` beside this one. Everything is emulated but the programs, the file systems and the schedulers.
///
/// All of it takes about 80 minutes, with --quick 23.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long, conflicts_with = "list")]
    json: bool,
    /// 3 rounds of 2 seconds for each instead of 5 rounds of 5
    #[arg(long)]
    quick: bool,
    /// Show the workloads, and do nothing
    #[arg(long)]
    list: bool,
    /// Only these workloads; may be given several times
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// Sluicegate's algorithms, each over the kernel's `none` or, as in hbrr+mq-deadline, over another scheduler; hbrr/off does
    /// without anticipation; may be given several times [default: hbrr, to-agg, hbrr+mq-deadline]
    #[arg(long, value_name = "NAME[/off][+SCHEDULER]")]
    policy: Vec<String>,
    /// The kernel's schedulers; may be given several times [default: none, mq-deadline, bfq, kyber]
    #[arg(long, value_name = "NAME")]
    scheduler: Vec<String>,
    /// Rounds, in each of which every side has its turn [default: 5; with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds for which a workload runs on a side in a round [default: 5; with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: Option<u32>,
    #[command(flatten)]
    disk: Disk,
    /// Start of the random numbers that order the sides and place the requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Measures and prints.
///
/// # Errors
/// If something is missing, there are no such workloads or algorithms, or anything fails.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.list {
        for workload in WORKLOADS {
            output::line(format_args!("{:<32}{} ({})", workload.name, workload.about, workload.unit.name()));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let workloads = chosen(&args.workload)?;
    let sides = sides(&args)?;
    let (disk_bytes, rotates) = (args.disk.bytes()?, args.disk.rotates()?);
    expect_all(&workloads)?;

    let runner = Runner::new()?;
    let bed = Bed::new(&runner, "rivals", &args.disk)?;
    sides.iter().try_for_each(|side| bed.set_scheduler(&side.scheduler))?;
    let test = Test {
        rounds: args.rounds.unwrap_or(if args.quick { 3 } else { 5 }),
        seconds: args.seconds.unwrap_or(if args.quick { 2 } else { 5 }),
        seed: args.seed,
        rotates,
        bed,
        runner,
        sides,
    };
    test.prepare(&workloads, disk_bytes)?;
    let mut rows = Vec::new();
    let result = test.measure(&workloads, &mut rows);
    // What was measured for an hour is not to go with what fails then.
    if result.is_ok() || !rows.is_empty() {
        let report = Report::new(args.disk.title(), rotates, test.rounds, test.seconds, test.sides.clone(), rows);
        if args.json {
            output::pretty_json(&report.as_json())?;
        } else {
            report.print();
        }
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// The workloads with these names, or all.
fn chosen(names: &[String]) -> anyhow::Result<Vec<Workload>> {
    let find = |name: &String| {
        let found = WORKLOADS.iter().find(|workload| workload.name == name).copied();
        found.with_context(|| {
            let known = WORKLOADS.iter().map(|workload| workload.name);
            format!("--workload {name}: there is none{}; see --list", sluice_notation::hint(name, known))
        })
    };
    if names.is_empty() { Ok(WORKLOADS.to_vec()) } else { names.iter().map(find).collect() }
}

/// The kernel's schedulers first.
fn sides(args: &Args) -> anyhow::Result<Vec<Side>> {
    let or = |given: &[String], default: &[&str]| -> Vec<String> {
        if given.is_empty() { default.iter().map(|&name| name.to_owned()).collect() } else { given.to_vec() }
    };
    let mut given: Vec<Side> =
        or(&args.scheduler, &SCHEDULERS).into_iter().map(|scheduler| Side { scheduler, policy: None }).collect();
    for text in or(&args.policy, &POLICIES) {
        let (policy, scheduler) = text.split_once('+').unwrap_or((&text, "none"));
        crate::policies(&[policy.strip_suffix(Side::OFF).unwrap_or(policy).to_owned()], |_| true)?;
        given.push(Side { scheduler: scheduler.to_owned(), policy: Some(policy.to_owned()) });
    }
    let mut sides: Vec<Side> = Vec::new();
    for side in given {
        if !SCHEDULERS.contains(&side.scheduler.as_str()) {
            let hint = sluice_notation::hint(&side.scheduler, SCHEDULERS);
            bail!("--scheduler {}: unknown{hint}; there are {}", side.scheduler, SCHEDULERS.join(", "));
        }
        if !sides.contains(&side) {
            sides.push(side);
        }
    }
    Ok(sides)
}

/// Names everything that is missing.
pub(crate) fn expect_all(workloads: &[Workload]) -> anyhow::Result<()> {
    let usable = |path: &str| std::fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
    let runs = |program: &str, args: &[&OsStr]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    let python = workloads.iter().any(|workload| matches!(workload.program, Program::Python(_)));
    let checks = [
        (rustix::process::geteuid().is_root(), "root (sudo)"),
        (usable("/dev/loop-control"), "loop devices (modprobe loop)"),
        (usable("/dev/fuse"), "FUSE (modprobe fuse)"),
        (runs("fio", &["--version".as_ref()]), "fio (apt install fio)"),
        (
            !python || runs("python3", &["-c".as_ref(), "import sqlite3".as_ref()]),
            "python3 with sqlite3 (apt install python3)",
        ),
    ];
    let missing: Vec<&str> = checks.iter().filter(|(there, _)| !there).map(|&(_, what)| what).collect();
    if !missing.is_empty() {
        bail!("missing here: {}", missing.join(", "));
    }
    Ok(())
}

struct Test {
    // Goes away first, while programs can still be run.
    bed: Bed,
    runner: Runner,
    sides: Vec<Side>,
    rounds: u32,
    seconds: u32,
    seed: u64,
    rotates: bool,
}

impl Test {
    /// Lays the data out, and looks at it from every side.
    fn prepare(&self, workloads: &[Workload], disk_bytes: u64) -> anyhow::Result<()> {
        let bar = ProgressBar::new_spinner();
        bar.set_message("laying out the files");
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        let needs: Vec<Data> = Data::ALL
            .into_iter()
            .filter(|data| workloads.iter().any(|workload| workload.needs.contains(data)))
            .collect();
        let none = Side { scheduler: "none".to_owned(), policy: None };
        let dir = self.bed.switch(&none, &settings(self.rotates, false))?;
        data::lay(&self.runner, &dir, &needs, self.seconds, disk_bytes)?;
        bar.set_message("verifying the files from every side");
        for side in &self.sides {
            for direct in [false, true] {
                if workloads.iter().any(|workload| workload.direct == direct) {
                    let dir = self.bed.switch(side, &settings(self.rotates, direct))?;
                    data::verify(&self.runner, &dir, &needs, self.seconds, direct)
                        .with_context(|| format!("{}, direct: {direct}", side.name()))?;
                }
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn measure(&self, workloads: &[Workload], rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let runs = (workloads.len() * self.sides.len()) as u64 * u64::from(self.rounds);
        let bar = output::bar(runs, "{bar:40} {pos}/{len} runs, {eta} left  {msg}");
        for workload in workloads {
            let mut row = Row { workload: *workload, runs: vec![Vec::new(); self.sides.len()] };
            for round in 0..self.rounds {
                // Every side makes the same requests in a round.
                let seed = self.seed.wrapping_add(round.into());
                for side in SplitMix64(seed).shuffled(self.sides.len()) {
                    self.runner.go_on()?;
                    let name = self.sides[side].name();
                    bar.set_message(format!("{}, {name}", workload.name));
                    let dir = self.bed.switch(&self.sides[side], &settings(self.rotates, workload.direct))?;
                    let run = run_workload(&self.runner, workload, &dir, [self.seconds; 2], seed)
                        .with_context(|| format!("{}, {name}", workload.name))?;
                    row.runs[side].push(run);
                    bar.inc(1);
                }
            }
            rows.push(row);
        }
        if workloads.iter().any(|workload| workload.needs.contains(&Data::Database)) {
            bar.set_message("checking the databases");
            data::check_databases(&self.runner, &self.bed.switch(&self.sides[0], &settings(self.rotates, false))?)?;
        }
        bar.finish_and_clear();
        self.bed.leave()
    }
}

/// Runs a workload below `dir` for so many seconds, on data that was laid out for so many ([`data::lay`]).
///
/// # Errors
/// What the programs say.
pub(crate) fn run_workload(
    runner: &Runner,
    workload: &Workload,
    dir: &Path,
    [seconds, laid_s]: [u32; 2],
    seed: u64,
) -> anyhow::Result<Run> {
    let groups = match workload.program {
        Program::Fio(groups) => groups,
        Program::Python(part) => {
            let (done, took) = data::python(runner, &workloads::python(part, dir, seconds, seed))?;
            if part == "create" {
                // The next side finds the disk as this one did.
                let made = dir.join(format!("created-{seed}"));
                std::fs::remove_dir_all(&made).with_context(|| made.display().to_string())?;
            }
            return Ok(Run { value: done / took, mb_s: None, parts: Vec::new() });
        }
    };
    let args = workload.fio(groups, dir, seconds, data::shared_bytes(laid_s), seed);
    let said = runner.run(Command::new("fio").args(args))?;
    let json = check_fio(&said)?;
    let (mut parts, mut mb_s) = (Vec::new(), 0.0);
    for job in json["jobs"].as_array().into_iter().flatten() {
        let both = |key: &str| ["read", "write"].map(|op| job[op][key].as_f64().unwrap_or(0.0)).iter().sum::<f64>();
        let job_mb_s = both("bw_bytes") / 1e6;
        let value = if workload.unit == Unit::MegaBytes { job_mb_s } else { both("iops") };
        parts.push((job["jobname"].as_str().unwrap_or_default().to_owned(), value));
        mb_s += job_mb_s;
    }
    if parts.len() != groups.len() {
        bail!("fio: results of {} groups of jobs where there are {}", parts.len(), groups.len());
    }
    let value: f64 = parts.iter().map(|(_, value)| value).sum();
    if parts.len() == 1 {
        parts.clear();
    }
    Ok(Run { value, mb_s: Some(mb_s), parts })
}
