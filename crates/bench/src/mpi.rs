//! `sluice-bench mpi`: MPI programs with and without Sluicegate, on a striped volume of emulated disks.
//!
//! Correctness first: random calls compared with the MPI library's own (`tests/mpi/generate.c`). Then the access patterns that
//! Resonant I/O and DualPar were measured with, written anew (`bench/mpi/programs.c`), by themselves, with the library's collective
//! calls, and under `sluice mpirun` both with collective calls (Resonant I/O) and by themselves (DualPar), in turns. All processes
//! are on this machine, where MPI libraries have one of them access the file for all; as those of a program on many nodes do,
//! each is asked to access a part of its own, and what one alone does is measured beside it.

mod random;
mod resonant;
mod simulated;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use sluice_cli::output;
use sluice_notation::counted;

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
    /// Nothing but Resonant I/O's programs in the simulator, 1 to 64 processes, beside the dissertation's figures
    #[arg(long, conflicts_with_all = ["random_only", "cases", "simulated"])]
    resonant: bool,
    /// With --simulated and --resonant: so many seeds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: u32,
    /// Rounds, in each of which every side has its turn [default: 5, with --quick 1]
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
    /// The library's collective calls with as many processes that access the file as it takes on one machine by itself.
    one_node_mb_s: f64,
    /// The same where each process does, as on nodes of their own.
    collective_mb_s: f64,
    resonant_mb_s: f64,
    /// Resonant I/O with an agent for each server in all calls, without trials.
    agents_mb_s: f64,
    dualpar_mb_s: f64,
    /// Divided by `collective_mb_s` of the same round: the middle, the least and the most.
    resonant_ratio: [f64; 3],
    agents_ratio: [f64; 3],
    /// Divided by `plain_mb_s` of the same round.
    dualpar_ratio: [f64; 3],
}

/// How a program is run: how it makes its calls, with each process accessing the file in the library's collective ones, and with
/// which options of `sluice mpirun`.
struct Side {
    calls: &'static str,
    each_accesses: bool,
    with: Option<&'static [&'static str]>,
}

const SIDES: [Side; 6] = [
    Side { calls: "plain", each_accesses: false, with: None },
    Side { calls: "collective", each_accesses: false, with: None },
    Side { calls: "collective", each_accesses: true, with: None },
    Side { calls: "collective", each_accesses: true, with: Some(&["--dualpar", "off"]) },
    Side { calls: "collective", each_accesses: true, with: Some(&["--dualpar", "off", "--mode", "agents"]) },
    Side { calls: "plain", each_accesses: false, with: Some(&["--dualpar", "always", "--memcached", "auto"]) },
];

/// A program of `bench/mpi/programs.c`; bytes of a segment, of a call of all processes, and of all calls.
struct Load {
    name: String,
    program: &'static str,
    direction: &'static str,
    segment: i64,
    call: i64,
    bytes: i64,
}

/// The dissertation's programs with its sizes, first those of DualPar (chapter 3; there 64 processes share a call of 4 MB), then those
/// of Resonant I/O (chapter 4, where its figures say most); `quick`: some of them, with little data.
fn loads(quick: bool) -> Vec<Load> {
    const KIB: i64 = 1 << 10;
    const MIB: i64 = 1 << 20;
    // Of BTIO's simple mode: pieces of 800 bytes, which take turns. Little data of what is slow.
    let mut of = vec![("btio", 800, 4 * MIB, 4 * MIB), ("mpi-io-test", 64 * KIB, 4 * MIB, 256 * MIB)];
    if !quick {
        of.extend([("mpi-io-test", 16 * KIB, 4 * MIB, 64 * MIB), ("noncontig", 2 * KIB, 256 * KIB, 32 * MIB)]);
        of.extend([("noncontig", 16 * KIB, 16 * MIB, 1024 * MIB), ("demo", 128 * KIB, 4 * MIB, 256 * MIB)]);
    }
    of.extend([("noncontig", 64 * KIB, 16 * MIB, 1024 * MIB), ("demo", 64 * KIB, 4 * MIB, 256 * MIB)]);
    let load = |direction, (program, segment, call, bytes): (&'static str, i64, i64, i64)| Load {
        name: if segment < KIB {
            format!("{program} {direction} {segment} B")
        } else {
            format!("{program} {direction} {} KiB", segment / KIB)
        },
        program: if program == "btio" { "mpi-io-test" } else { program },
        direction,
        segment,
        call,
        bytes: if quick { bytes.min(32 * MIB) } else { bytes },
    };
    ["write", "read"].into_iter().flat_map(|direction| of.iter().map(move |&of| load(direction, of))).collect()
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
    if args.resonant {
        return resonant::run(args.seeds, args.json).map(|()| ExitCode::SUCCESS);
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
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 });
    for mpi in mpis.into_iter().filter(|_| !args.random_only) {
        for load in loads(args.quick) {
            let row = bench.row(args, mpi, load, rounds)?;
            // Who interrupts a long run has what there is.
            output::tell(format_args!("{row}"));
            report.rows.push(row);
        }
    }
    let losses = report.rows.iter().map(|row| 1.0 - row.resonant_ratio[0]);
    report.worst_loss = losses.fold(report.random.worst(), f64::max);
    if args.json {
        output::pretty_json(&report)?;
    } else {
        report.print();
    }
    Ok(if report.mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:<26}{:<8}", self.program, self.mpi)?;
        for rate in [
            self.plain_mb_s,
            self.one_node_mb_s,
            self.collective_mb_s,
            self.resonant_mb_s,
            self.agents_mb_s,
            self.dualpar_mb_s,
        ] {
            write!(out, "{rate:>11.1}")?;
        }
        write!(out, " ")?;
        for [middle, least, most] in [self.resonant_ratio, self.agents_ratio, self.dualpar_ratio] {
            write!(out, " {:<17}", format!("{middle:.2} ({least:.2}..{most:.2})"))?;
        }
        Ok(())
    }
}

impl Report {
    fn print(&self) {
        output::line(format_args!("{}", self.setting));
        output::line(format_args!(
            "{}, {}",
            counted(self.cases as u64, "random case"),
            counted(self.mismatches as u64, "mismatch")
        ));
        self.random.print();
        if !self.rows.is_empty() {
            output::line(format_args!(
                "MB/s; one node: collective calls where the library has one process access the file, collective: where each does"
            ));
            let columns = ["plain", "one node", "collective", "resonant", "agents", "dualpar"];
            let columns = columns.map(|name| format!("{name:>11}")).concat();
            output::line(format_args!(
                "{:<26}{:<8}{columns}  {:<18}{:<18}dualpar/plain",
                "", "", "resonant/coll.", "agents/coll."
            ));
        }
        for row in &self.rows {
            output::line(format_args!("{row}"));
        }
        output::line(format_args!(
            "worst loss of the middle, of random programs or against the library's collective calls: {:.1} %",
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

    fn row(&self, args: &Args, mpi: &'static Mpi, load: Load, rounds: u32) -> anyhow::Result<Row> {
        let mount = self.mount(args)?;
        let file = mount.point.join("file");
        let one = |direction: &str, side: &Side| self.once(mpi, &load, direction, side, &file);
        // What is read must be there, and what is written is written over, as new blocks cost more.
        one("write", &SIDES[1])?;
        let mut rates: [Vec<f64>; SIDES.len()] = Default::default();
        for round in 0..rounds as usize {
            for turn in 0..SIDES.len() {
                let side = (turn + round) % SIDES.len();
                rates[side].push(one(load.direction, &SIDES[side])?);
            }
        }
        // Read by somebody who knows nothing of it.
        one("read", &SIDES[1]).with_context(|| format!("{}: reading what was written", load.name))?;
        let ratio = |of: usize, to: usize| {
            let mut ratios: Vec<f64> = rates[of].iter().zip(&rates[to]).map(|(of, to)| of / to).collect();
            let (least, most) = ratios.iter().fold((f64::INFINITY, 0.0f64), |(a, b), &x| (a.min(x), b.max(x)));
            [median(&mut ratios).0, least, most]
        };
        let (resonant_ratio, agents_ratio, dualpar_ratio) = (ratio(3, 2), ratio(4, 2), ratio(5, 0));
        let [plain, one_node, collective, resonant, agents, dualpar] = rates.map(|mut rates| median(&mut rates).0);
        Ok(Row {
            program: load.name,
            mpi: mpi.name,
            plain_mb_s: plain,
            one_node_mb_s: one_node,
            collective_mb_s: collective,
            resonant_mb_s: resonant,
            agents_mb_s: agents,
            dualpar_mb_s: dualpar,
            resonant_ratio,
            agents_ratio,
            dualpar_ratio,
        })
    }

    /// MB/s of one run, whose data was right.
    fn once(&self, mpi: &Mpi, load: &Load, direction: &str, side: &Side, file: &Path) -> anyhow::Result<f64> {
        let mut command = self.launch(mpi, side.with, "programs");
        command.args([load.program, direction, side.calls]);
        // Calls of one process take longer.
        let bytes = if side.calls == "plain" { (load.bytes / 8).max(4 << 20) } else { load.bytes };
        command.args([load.segment, load.call, bytes].map(|number| number.to_string())).arg(file);
        if side.each_accesses {
            // ROMIO takes hints; OMPIO, which Open MPI uses, a parameter.
            command.env("SLUICE_BENCH_HINTS", "cb_config_list=*:*");
            command.env("OMPI_MCA_io_ompio_num_aggregators", mpi.processes.to_string());
        }
        let said = self.runner.run(&mut command)?;
        match said.out.split_whitespace().collect::<Vec<_>>()[..] {
            [rate, "MB/s", "wrong", "0"] => rate.parse().with_context(|| said.out.clone()),
            _ => bail!(
                "{}, {}, {}: {}",
                load.name,
                side.calls,
                if side.with.is_some() { "under sluice" } else { "as it is" },
                said.out.trim()
            ),
        }
    }
}
