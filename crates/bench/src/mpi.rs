//! `sluice-bench mpi`: MPI programs with and without Sluicegate, on a striped volume of emulated disks.
//!
//! Correctness first: random calls compared with the MPI library's own (`tests/mpi/generate.c`). Then the access patterns that
//! Resonant I/O and DualPar were measured with, written anew (`bench/mpi/programs.c`), by themselves, with the library's collective
//! calls, and under `sluice mpirun` both with collective calls (Resonant I/O) and by themselves (DualPar), in turns.

mod random;
mod simulated;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use sluice_cli::output;

use crate::bed::{self, Runner};
use crate::statistics::median;

const PROGRAMS: &str = include_str!("../../../bench/mpi/programs.c");
const GENERATE: &str = include_str!("../../../tests/mpi/generate.c");
const STRIPE: i64 = 64 << 10;

/// Runs MPI programs on a striped volume of emulated disks: as they are, with collective calls, and under sluice mpirun.
///
/// Needs FUSE, mpicc and mpiexec of MPICH or Open MPI (scripts/setup.sh mpi), the program `sluice` and the libraries of
/// `make mpi` beside this one. The disks are emulated; processes, their MPI library and the mount are real, all on this machine.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// One size of segments, little data, one round, 100 random cases
    #[arg(long)]
    quick: bool,
    /// Random cases that are compared with the MPI library, for each [default: 1000, with --quick 100]
    #[arg(long, value_name = "N")]
    cases: Option<u32>,
    /// The first of them
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Random programs, with Sluicegate and past it [default: 100, with --quick 8]
    #[arg(long, value_name = "N")]
    random: Option<u32>,
    /// What the second half of them is drawn from [default: the time]
    #[arg(long, value_name = "N")]
    random_seed: Option<u64>,
    /// Only these, no cases and no rows
    #[arg(long)]
    random_only: bool,
    /// Nothing but DualPar's programs in the simulator, 64 processes, beside the dissertation's figures
    #[arg(long, conflicts_with_all = ["random_only", "cases"])]
    simulated: bool,
    /// With --simulated: so many seeds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: u32,
    /// Rounds, in each of which every side has its turn [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// The emulated disks
    #[arg(long, value_name = "MODEL", default_value = "hdd-7200")]
    model: String,
    /// How many there are
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=16))]
    disks: u32,
    /// The mount's use of the kernel's cache; none is what clients without one see
    #[arg(long, value_name = "MODE", default_value = "none")]
    cache: String,
    /// Where the volume is to be; must be faster than the disks [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The program sluice [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// Where libsluice-mpich.so and libsluice-openmpi.so are [default: where sluice is]
    #[arg(long, value_name = "DIR")]
    libraries: Option<PathBuf>,
}

/// An MPI library of this machine. MPICH's processes wait without sleeping: more than there are processors get in each other's way.
struct Mpi {
    name: &'static str,
    processes: u32,
}

const MPIS: [Mpi; 2] = [Mpi { name: "mpich", processes: 2 }, Mpi { name: "openmpi", processes: 4 }];

#[derive(serde::Serialize)]
struct Row {
    program: String,
    mpi: &'static str,
    plain_mb_s: f64,
    collective_mb_s: f64,
    resonant_mb_s: f64,
    dualpar_mb_s: f64,
}

#[derive(serde::Serialize)]
struct Report {
    setting: String,
    cases: u32,
    mismatches: u32,
    rows: Vec<Row>,
    random: random::Programs,
    /// The part of the library's collective throughput, or of the time of a random program, that is lost at worst; 0 if nothing is.
    worst_loss: f64,
}

/// A mount that goes when this does.
struct Mount<'a> {
    bench: &'a Bench,
    point: PathBuf,
}

struct Bench {
    runner: Runner,
    sluice: PathBuf,
    libraries: PathBuf,
    room: tempfile::TempDir,
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let unmount = |how: &[&str]| {
            let mut command = Command::new(&self.bench.sluice);
            self.bench.runner.finish(command.arg("unmount").args(how).arg(&self.point), false)
        };
        if let Err(error) = unmount(&[]).or_else(|_| unmount(&["--lazy"])) {
            output::tell(format_args!("{error:#}"));
        }
    }
}

/// Measures and prints.
///
/// # Errors
/// If something is missing, or anything fails; a mismatch is one of the results.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.simulated {
        return simulated::run(args.seeds, args.json).map(|()| ExitCode::SUCCESS);
    }
    let sluice = bed::program(args.sluice.as_deref())?;
    let libraries = args.libraries.clone().or_else(|| sluice.parent().map(Path::to_owned)).unwrap_or_default();
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("sluice-mpi-");
    let room = args.dir.as_ref().map_or_else(|| builder.tempdir(), |dir| builder.tempdir_in(dir));
    let bench = Bench { runner: Runner::new()?, sluice, libraries, room: room.context("a directory for the volume")? };
    let mpis: Vec<&Mpi> = MPIS.iter().filter(|mpi| bench.has(mpi)).collect();
    ensure!(
        !mpis.is_empty(),
        "there is no MPI library here; scripts/setup.sh mpi installs them, make mpi builds for them"
    );
    let mut report = Report {
        setting: format!("{} emulated {}, stripes of {STRIPE} bytes, cache {}", args.disks, args.model, args.cache),
        cases: 0,
        mismatches: 0,
        rows: Vec::new(),
        random: random::Programs::default(),
        worst_loss: 0.0,
    };
    let cases = args.cases.unwrap_or(if args.quick { 100 } else { 1000 });
    for mpi in &mpis {
        bench.compile(mpi, "generate", GENERATE)?;
        bench.compile(mpi, "programs", PROGRAMS)?;
        if !args.random_only {
            report.mismatches += bench.compare(mpi, args.seed, cases)?;
            report.cases += cases;
        }
    }
    report.random = bench.random(args, &mpis, args.random.unwrap_or(if args.quick { 8 } else { 100 }))?;
    let segments: &[i64] = if args.quick { &[64 << 10] } else { &[16 << 10, 64 << 10, 256 << 10] };
    let bytes = if args.quick { 32 << 20 } else { 256 << 20 };
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 });
    for mpi in mpis.into_iter().filter(|_| !args.random_only) {
        // BTIO's simple mode: pieces of 800 bytes, which take turns; little data, as they are slow.
        for direction in ["write", "read"] {
            let (name, little) = (format!("btio {direction} 800 B"), bytes / 64);
            output::tell(format_args!("{}: {name}", mpi.name));
            report.rows.push(bench.row(args, mpi, name, ("mpi-io-test", direction, 800, little), rounds)?);
        }
        for program in ["mpi-io-test", "noncontig", "demo"] {
            for direction in ["write", "read"] {
                for &segment in segments {
                    let name = format!("{program} {direction} {} KiB", segment >> 10);
                    output::tell(format_args!("{}: {name}", mpi.name));
                    report.rows.push(bench.row(args, mpi, name, (program, direction, segment, bytes), rounds)?);
                }
            }
        }
    }
    let losses = report.rows.iter().map(|row| 1.0 - row.resonant_mb_s / row.collective_mb_s);
    report.worst_loss = losses.fold(report.random.worst(), f64::max);
    if args.json {
        output::pretty_json(&report)?;
    } else {
        report.print();
    }
    Ok(if report.mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Report {
    fn print(&self) {
        output::line(format_args!("{}", self.setting));
        output::line(format_args!("{} random cases, {} mismatches", self.cases, self.mismatches));
        self.random.print();
        output::line(format_args!(
            "{:<30}{:<9}{:>12}{:>12}{:>12}{:>12}",
            "MB/s", "", "plain", "collective", "resonant", "dualpar"
        ));
        for row in &self.rows {
            let rates = [row.plain_mb_s, row.collective_mb_s, row.resonant_mb_s, row.dualpar_mb_s];
            let rates = rates.map(|rate| format!("{rate:>12.1}"));
            output::line(format_args!("{:<30}{:<9}{}", row.program, row.mpi, rates.concat()));
        }
        output::line(format_args!(
            "worst loss, of random programs or against the library's collective calls: {:.1} %",
            self.worst_loss * 100.0
        ));
    }
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.room.path().join(name)
    }

    fn library(&self, mpi: &Mpi) -> PathBuf {
        self.libraries.join(format!("libsluice-{}.so", mpi.name))
    }

    fn has(&self, mpi: &Mpi) -> bool {
        let finds = |program: &str| {
            let paths = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&paths).any(|dir| dir.join(format!("{program}.{}", mpi.name)).is_file())
        };
        let has = finds("mpicc") && finds("mpiexec") && self.library(mpi).is_file();
        if !has {
            let library = self.library(mpi);
            output::tell(format_args!(
                "{} is left out: mpicc.{0}, mpiexec.{0} or {} is missing",
                mpi.name,
                library.display()
            ));
        }
        has
    }

    fn compile(&self, mpi: &Mpi, name: &str, source: &str) -> anyhow::Result<()> {
        let file = self.path(&format!("{name}.c"));
        std::fs::write(&file, source)?;
        let mut command = Command::new(format!("mpicc.{}", mpi.name));
        command.args(["-std=gnu11", "-O2", "-o"]).arg(self.path(&format!("{name}-{}", mpi.name))).arg(file);
        self.runner.run(&mut command).map(|_| ())
    }

    /// A program, under `sluice mpirun` with these options or without it.
    fn launch(&self, mpi: &Mpi, with: Option<&[&str]>, program: &str) -> Command {
        let launcher = format!("mpiexec.{}", mpi.name);
        let mut command = if let Some(options) = with {
            let mut command = Command::new(&self.sluice);
            command.args(["mpirun", "--mpi", mpi.name, "--library"]).arg(self.library(mpi)).args(options).arg(launcher);
            command
        } else {
            Command::new(launcher)
        };
        command.envs([
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ]);
        command.args(["-n", &mpi.processes.to_string()]).arg(self.path(&format!("{program}-{}", mpi.name)));
        command
    }

    /// How many of the random cases differ.
    fn compare(&self, mpi: &Mpi, seed: u64, cases: u32) -> anyhow::Result<u32> {
        let mut command = self.launch(mpi, Some(&[]), "generate");
        let command = command.arg(self.room.path()).args([seed.to_string(), cases.to_string()]);
        // It fails where something differs, and says what.
        let out = command.output().context("starting sluice mpirun")?;
        let text = String::from_utf8_lossy(&out.stdout);
        let found = text.lines().find_map(|line| line.strip_prefix(&format!("cases {cases} mismatches ")));
        let errors = String::from_utf8_lossy(&out.stderr);
        let mismatches = found.and_then(|count| count.trim().parse().ok());
        let mismatches =
            mismatches.with_context(|| format!("{}: random cases from seed {seed} on: {errors}", mpi.name))?;
        if mismatches > 0 {
            output::tell(format_args!("{errors}"));
        }
        Ok(mismatches)
    }

    fn mount(&self, args: &Args) -> anyhow::Result<Mount<'_>> {
        let point = self.path("mount");
        std::fs::create_dir_all(&point)?;
        let mut command = Command::new(&self.sluice);
        command.args(["mount", "--daemon", "--emulate", &args.model, "--cache", &args.cache]);
        command.args(["--stripe", &STRIPE.to_string()]);
        for disk in 0..args.disks {
            let dir = self.path(&format!("disk{disk}"));
            std::fs::create_dir_all(&dir)?;
            command.arg("--target").arg(dir);
        }
        self.runner.go_on()?;
        self.runner.finish(command.arg(&point), false)?;
        Ok(Mount { bench: self, point })
    }

    fn row(
        &self,
        args: &Args,
        mpi: &Mpi,
        name: String,
        (program, direction, segment, bytes): (&str, &str, i64, i64),
        rounds: u32,
    ) -> anyhow::Result<Row> {
        const SIDES: [(&str, Option<&[&str]>); 4] = [
            ("plain", None),
            ("collective", None),
            ("collective", Some(&["--dualpar", "off"])),
            ("plain", Some(&["--dualpar", "always", "--memcached", "auto"])),
        ];
        let mount = self.mount(args)?;
        let file = mount.point.join("file");
        let one = |direction: &str, (calls, with): (&str, Option<&[&str]>)| -> anyhow::Result<f64> {
            let mut command = self.launch(mpi, with, "programs");
            command.args([program, direction, calls]);
            command.args([segment.to_string(), (4 << 20).to_string(), bytes.to_string()]).arg(&file);
            let said = self.runner.run(&mut command)?;
            match said.out.split_whitespace().collect::<Vec<_>>()[..] {
                [rate, "MB/s", "wrong", "0"] => rate.parse().with_context(|| said.out.clone()),
                _ => bail!(
                    "{name}, {calls}, {}: {}",
                    if with.is_some() { "under sluice" } else { "as it is" },
                    said.out.trim()
                ),
            }
        };
        // What is read must be there, and what is written is written over, as new blocks cost more.
        one("write", SIDES[0])?;
        let mut rates: [Vec<f64>; 4] = Default::default();
        for round in 0..rounds as usize {
            for turn in 0..SIDES.len() {
                let side = (turn + round) % SIDES.len();
                rates[side].push(one(direction, SIDES[side])?);
            }
        }
        let [plain, collective, resonant, dualpar] = rates.map(|mut rates| median(&mut rates).0);
        // Read by somebody who knows nothing of it.
        one("read", SIDES[0]).with_context(|| format!("{name}: reading what was written"))?;
        Ok(Row {
            program: name,
            mpi: mpi.name,
            plain_mb_s: plain,
            collective_mb_s: collective,
            resonant_mb_s: resonant,
            dualpar_mb_s: dualpar,
        })
    }
}
