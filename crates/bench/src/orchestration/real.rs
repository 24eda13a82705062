//! The same for real: data servers of GlusterFS on emulated disks on this machine, and programs that stripe their files over them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use sluice_cli::output;
use sluice_sim::jain;

use crate::bed::{self, Runner};
use crate::random::SplitMix64;
use crate::statistics::median;

/// The drives of the scenarios (`servers.parameters` there): the paper's read ahead for one stream only.
const DRIVE: &str = include_str!("../../../device/models/hdd-7200.toml");
const OF_2006: [(&str, u32); 4] =
    [("read_ahead_segments", 1), ("read_ahead_kib", 64), ("write_cache_entries", 1), ("write_cache_kib", 256)];

fn drive() -> String {
    let line = |line: &str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        let other = OF_2006.iter().find(|(name, _)| *name == key);
        other.map_or_else(|| format!("{line}\n"), |(name, value)| format!("{name} = {value}\n"))
    };
    DRIVE.lines().map(line).collect()
}

/// Programs at a time, at most.
const MOUNTS: usize = 3;
/// Slices need some windows to be tried: four without a plan, one, and four with it, of 500 ms.
const SECONDS: u64 = 30;
const QUICK_SECONDS: u64 = 12;

/// How it is measured for real.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct RealArgs {
    /// Measure for real, too: a cluster of GlusterFS on emulated disks; needs root, glusterfs-server and the translator
    #[arg(long)]
    pub(super) real: bool,
    /// Measure for real, and simulate nothing
    #[arg(long)]
    pub(super) only_real: bool,
    /// Data servers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=16))]
    servers: u32,
    /// How often everything is measured for real, in random order; five, with --quick one, if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: Option<u32>,
    /// Seconds of each real run; 30, with --quick 12, if not given
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: Option<u64>,
    /// Only real experiments whose names have this in them
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// MiB of each program's file, on all data servers together
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    file: u64,
    /// MiB between the programs' files on each data server
    #[arg(long, value_name = "MIB", default_value_t = 1_536, value_parser = clap::value_parser!(u64).range(0..=65_536))]
    between: u64,
    /// Ranks of each program
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    ranks: u64,
    /// Model of the emulated disks of the data servers [default: hdd-7200 with the cache of a drive of 2006, as in
    /// scenarios/iorchestrator-*.toml]
    #[arg(long, value_name = "MODEL")]
    emulate: Option<String>,
    /// Where everything is, and is removed afterwards
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// The translator sluice.so [default: where make install-gluster puts it]
    #[arg(long, value_name = "FILE")]
    translator: Option<PathBuf>,
    /// The first of the ports of the processes
    #[arg(long, default_value_t = 24_300)]
    port: u16,
    /// The sluice command [default: the one beside this]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
}

/// What data servers do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Arm {
    None,
    /// Equal slices for all.
    Even,
    /// The paper's conditions alone.
    Paper,
    Orchestrated,
    /// A local algorithm that waits for the next request of a stream.
    Anticipation,
    /// The algorithm is chosen while running.
    Adaptive,
}

impl Arm {
    const ALL: [Arm; 6] = [Arm::None, Arm::Even, Arm::Paper, Arm::Orchestrated, Arm::Anticipation, Arm::Adaptive];

    fn name(self) -> &'static str {
        match self {
            Arm::None => "none",
            Arm::Even => "even",
            Arm::Paper => "paper",
            Arm::Orchestrated => "orchestrated",
            Arm::Anticipation => "anticipation",
            Arm::Adaptive => "adaptive",
        }
    }

    /// Lines of a cluster's configuration.
    fn servers(self) -> &'static str {
        match self {
            Arm::Anticipation => "policy = \"to-agg\"\noptions = { positioning-time = \"8000\" }\n",
            Arm::Adaptive => "policy = \"hbrr\"\noptions = { selector = \"tree+bandit\" }\n",
            _ => "policy = \"hbrr\"\n",
        }
    }

    fn coordinator(self) -> Option<&'static str> {
        match self {
            Arm::Even => Some("even"),
            Arm::Paper => Some("paper"),
            Arm::Orchestrated => Some("tried"),
            Arm::None | Arm::Anticipation | Arm::Adaptive => None,
        }
    }
}

/// Programs that run at the same time: accesses, and what they do.
struct Experiment {
    name: &'static str,
    programs: &'static [&'static str],
    op: &'static str,
    /// The paper's conditions hold.
    holds: bool,
}

const EXPERIMENTS: [Experiment; 4] = [
    Experiment { name: "mpi-io-test read barrier", programs: &["mpi-io-test", "mpi-io-test"], op: "read", holds: true },
    Experiment {
        name: "mpi-io-test write barrier",
        programs: &["mpi-io-test", "mpi-io-test"],
        op: "write",
        holds: true,
    },
    Experiment { name: "ior-mpi-io read barrier", programs: &["ior-mpi-io", "ior-mpi-io"], op: "read", holds: false },
    Experiment { name: "three programs", programs: &["mpi-io-test", "noncontig", "hpio"], op: "read", holds: true },
];

/// A cluster of its own, which ends with it.
struct Cluster<'a> {
    args: &'a RealArgs,
    seconds: u64,
    runner: &'a Runner,
    sluice: PathBuf,
    room: tempfile::TempDir,
}

impl Cluster<'_> {
    fn config(&self) -> PathBuf {
        self.room.path().join("cluster.toml")
    }

    fn sluice(&self, words: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(&self.sluice);
        command.args(["-q", "cluster"]).args(words).arg(self.config());
        self.runner.finish(&mut command, false).map(drop)
    }

    fn text(&self, arm: Arm) -> String {
        let mut text = format!(
            "name = \"orchestration-{}\"\ndirectory = {:?}\nport = {}\n",
            std::process::id(),
            self.room.path().join("run"),
            self.args.port
        );
        // Writing to a text cannot fail.
        if let Some(translator) = &self.args.translator {
            _ = writeln!(text, "translator = {translator:?}");
        }
        let own = self.room.path().join("drive.toml").display().to_string();
        let (count, model) = (self.args.servers, self.args.emulate.as_ref().unwrap_or(&own));
        _ = write!(text, "[servers]\ncount = {count}\n{}", arm.servers());
        _ = writeln!(text, "emulate = {{ model = {model:?}, size = \"8G\" }}");
        // Each program has a mount of its own, which says whose its requests are.
        _ = writeln!(
            text,
            "[nodes]\ndistribution = \"distribute\"\n[clients]\ncount = {MOUNTS}\nattribute_timeout = 0"
        );
        if let Some(how) = arm.coordinator() {
            _ = writeln!(text, "[coordinator]\nroles = [\"orchestrator\"]\norchestrate = {how:?}");
        }
        text
    }

    /// Starts it anew with what the data servers are to do, with nothing in their memory.
    fn start(&self, arm: Arm) -> anyhow::Result<()> {
        self.runner.go_on()?;
        if self.config().exists() {
            self.sluice(&["down"])?;
        }
        fs::write(self.config(), self.text(arm))?;
        self.sluice(&["up"])
    }

    /// Runs programs, by their places in an experiment; MB/s of each.
    fn load(&self, experiment: &Experiment, programs: &[usize], prepare: bool) -> anyhow::Result<Vec<f64>> {
        let program = |at: &usize| {
            let dir = self.room.path().join(format!("run/client-{at}/program-{at}"));
            format!("{}:{}:{}", experiment.programs[*at], experiment.op, dir.display())
        };
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command
            .arg("orchestration-load")
            .args(["--programs", &programs.iter().map(program).collect::<Vec<_>>().join(",")]);
        for (key, value) in [
            ("--servers", u64::from(self.args.servers)),
            ("--ranks", self.args.ranks),
            ("--bytes", self.args.file << 20),
            ("--seconds", self.seconds),
        ] {
            command.arg(key).arg(value.to_string());
        }
        if prepare {
            command.arg("--prepare").arg((self.args.between << 20).to_string());
            return self.runner.run(&mut command).context("making files").map(|_| Vec::new());
        }
        let said = self.runner.run(&mut command).context(experiment.name)?;
        let said: Value = serde_json::from_str(&said.out).context("what the programs say")?;
        let seconds = said["seconds"].as_f64().context("the programs say no seconds")?;
        let bytes = said["bytes"].as_array().context("the programs say no bytes")?;
        Ok(bytes.iter().map(|bytes| bytes.as_f64().unwrap_or(0.0) / seconds / 1e6).collect())
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if self.config().exists()
            && let Err(error) = self.sluice(&["down", "--force", "--remove-disks"])
        {
            output::tell(format_args!("{error:#}\nparts of the cluster stay in {}", self.room.path().display()));
        }
    }
}

/// What was measured of an arm.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cell {
    pub(super) arm: &'static str,
    /// All programs together, million bytes a second: median, smallest and largest.
    pub(super) mb_s: f64,
    pub(super) range: [f64; 2],
    /// Over none in the same round, in per cent: median, smallest and largest.
    pub(super) gain: f64,
    pub(super) gain_range: [f64; 2],
    /// Of each program, throughput alone over throughput here, and Jain's index of these.
    pub(super) slow_downs: Vec<f64>,
    pub(super) jain: f64,
}

/// An experiment for real.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RealRow {
    pub(super) experiment: &'static str,
    pub(super) holds: bool,
    pub(super) programs: Vec<&'static str>,
    /// Each alone, MB/s.
    pub(super) alone_mb_s: Vec<f64>,
    pub(super) cells: Vec<Cell>,
}

impl RealRow {
    pub(super) fn of(&self, arm: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.arm == arm)
    }
}

/// What was measured, and where.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Real {
    pub(super) devices: String,
    pub(super) servers: u32,
    pub(super) rounds: u32,
    pub(super) seconds: u64,
    pub(super) rows: Vec<RealRow>,
}

/// Rates of the programs of an experiment, by arm and round.
type Measured = BTreeMap<Arm, Vec<Vec<f64>>>;

fn row(experiment: &Experiment, measured: &Measured, alone: &[Vec<f64>]) -> anyhow::Result<RealRow> {
    let alone_mb_s: Vec<f64> = alone.iter().map(|rates| median(&mut rates.clone()).0).collect();
    let sums = |arm: Arm| -> Vec<f64> { measured[&arm].iter().map(|rates| rates.iter().sum()).collect() };
    let none = sums(Arm::None);
    let cell = |arm: Arm| {
        let mut all = sums(arm);
        let mut gains: Vec<f64> = all.iter().zip(&none).map(|(here, none)| (here / none - 1.0) * 100.0).collect();
        let slow = |program: usize| {
            let mut times: Vec<f64> = measured[&arm].iter().map(|rates| alone_mb_s[program] / rates[program]).collect();
            median(&mut times).0
        };
        let slow_downs: Vec<f64> = (0..experiment.programs.len()).map(slow).collect();
        let ((mb_s, range), (gain, gain_range)) = (median(&mut all), median(&mut gains));
        Cell { arm: arm.name(), mb_s, range, gain, gain_range, jain: jain(&slow_downs), slow_downs }
    };
    let cells = Arm::ALL.into_iter().map(cell).collect();
    Ok(RealRow {
        experiment: experiment.name,
        holds: experiment.holds,
        programs: experiment.programs.to_vec(),
        alone_mb_s,
        cells,
    })
}

/// Measures for real.
///
/// # Errors
/// If a cluster cannot be started, a program fails, or data are wrong.
pub(super) fn measure(args: &RealArgs, quick: bool) -> anyhow::Result<Real> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "it needs root: data servers keep attributes that are root's"
    );
    let runner = Runner::new()?;
    let rounds = args.rounds.unwrap_or(if quick { 1 } else { 5 });
    let seconds = args.seconds.unwrap_or(if quick { QUICK_SECONDS } else { SECONDS });
    let room = tempfile::Builder::new().prefix("sluice-orchestration-").tempdir_in(&args.dir);
    let room = room.with_context(|| args.dir.display().to_string())?;
    let cluster = Cluster { args, seconds, runner: &runner, sluice: bed::program(args.sluice.as_deref())?, room };
    let wanted = |experiment: &&Experiment| match &args.only {
        Some(text) => experiment.name.contains(text.as_str()),
        None => !quick || ["mpi-io-test read barrier", "three programs"].contains(&experiment.name),
    };
    let experiments: Vec<&Experiment> = EXPERIMENTS.iter().filter(wanted).collect();
    anyhow::ensure!(!experiments.is_empty(), "--only: no experiment has that in its name");
    let mut measured: Vec<Measured> = experiments.iter().map(|_| Measured::new()).collect();
    let mut alone: Vec<Vec<Vec<f64>>> =
        experiments.iter().map(|experiment| vec![Vec::new(); experiment.programs.len()]).collect();
    fs::write(cluster.room.path().join("drive.toml"), drive())?;
    cluster.start(Arm::None)?;
    // The files are those of all experiments: what programs write is what was there.
    cluster.load(&EXPERIMENTS[EXPERIMENTS.len() - 1], &[0, 1, 2], true)?;
    let mut random = SplitMix64(17);
    let bar = output::bar(u64::from(rounds) * Arm::ALL.len() as u64, "{bar:40} {pos}/{len} {msg}");
    for _ in 0..rounds {
        for at in random.shuffled(Arm::ALL.len()) {
            let arm = Arm::ALL[at];
            bar.set_message(arm.name());
            for (at, experiment) in experiments.iter().enumerate() {
                // What one has learned of another is not the question.
                cluster.start(arm).with_context(|| arm.name())?;
                if arm == Arm::None {
                    for (program, rates) in alone[at].iter_mut().enumerate() {
                        rates.extend(cluster.load(experiment, &[program], false)?);
                    }
                }
                let all: Vec<usize> = (0..experiment.programs.len()).collect();
                let rates = cluster.load(experiment, &all, false).with_context(|| arm.name())?;
                measured[at].entry(arm).or_default().push(rates);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let rows = experiments.iter().zip(&measured).zip(&alone);
    Ok(Real {
        devices: format!("emulated {}", args.emulate.as_deref().unwrap_or("hdd-7200 with a cache as of 2006")),
        servers: args.servers,
        rounds,
        seconds,
        rows: rows
            .map(|((experiment, measured), alone)| row(experiment, measured, alone))
            .collect::<anyhow::Result<_>>()?,
    })
}

pub(super) fn print(real: &Real) {
    output::line(format_args!(
        "\nfor real: {} data servers of GlusterFS on {}, {} rounds of {} s in random order; MB/s of all programs, gain over none in \
         the same round in %: median and range",
        real.servers, real.devices, real.rounds, real.seconds
    ));
    for row in &real.rows {
        let alone: Vec<String> =
            row.programs.iter().zip(&row.alone_mb_s).map(|(name, rate)| format!("{name} {rate:.1}")).collect();
        output::line(format_args!("{}: alone {}", row.experiment, alone.join(", ")));
        for cell in &row.cells {
            let slow: Vec<String> = cell.slow_downs.iter().map(|times| format!("{times:.2}")).collect();
            output::line(format_args!(
                "    {:<14}{:>8.1}  {:>6.1}..{:<6.1}{:>+8.1}  {:>+6.1}..{:<+6.1}  slow-down {}, Jain's index {:.3}",
                cell.arm,
                cell.mb_s,
                cell.range[0],
                cell.range[1],
                cell.gain,
                cell.gain_range[0],
                cell.gain_range[1],
                slow.join(" "),
                cell.jain
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drive_is_that_of_the_scenarios() {
        let text = drive();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("drive.toml");
        fs::write(&path, &text).unwrap();
        sluice_device::model(&path.display().to_string(), 0).unwrap();
        for (key, value) in OF_2006 {
            assert!(text.contains(&format!("\n{key} = {value}\n")), "{key}");
            assert!(super::super::PAIRS.contains(&format!("{key} = {value}")), "{key}");
        }
    }
}
