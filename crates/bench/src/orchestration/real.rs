//! The same for real: data servers of GlusterFS on emulated disks on this machine, and programs that stripe their files over them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;
use sluice_cli::output;
use sluice_notation::counted;
use sluice_sim::jain;

use crate::bed::{Cluster, ClusterArgs, Runner};
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
    /// Only real experiments whose names have this in them; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
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
    /// The first of the ports of the processes
    #[arg(long, default_value_t = 24_300)]
    port: u16,
    #[command(flatten)]
    cluster: ClusterArgs,
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

/// The cluster, and what runs on it.
struct Bed<'a> {
    args: &'a RealArgs,
    seconds: u64,
    cluster: Cluster,
}

impl Bed<'_> {
    fn drive(&self) -> PathBuf {
        self.cluster.room().join("drive.toml")
    }

    /// Starts it anew with what the data servers are to do, with nothing in their memory.
    fn start(&self, arm: Arm) -> anyhow::Result<()> {
        let own = self.drive().display().to_string();
        let (count, model) = (self.args.servers, self.args.emulate.as_ref().unwrap_or(&own));
        // Each program has a mount of its own, which says whose its requests are.
        let mut text = format!(
            "[servers]\ncount = {count}\n{}emulate = {{ model = {model:?}, size = \"8G\" }}\n\
             [nodes]\ndistribution = \"distribute\"\n[clients]\ncount = {MOUNTS}\nattribute_timeout = 0\n",
            arm.servers()
        );
        if let Some(how) = arm.coordinator() {
            // Writing to a text cannot fail.
            _ = writeln!(text, "[coordinator]\nroles = [\"orchestrator\"]\norchestrate = {how:?}");
        }
        self.cluster.start(&text).with_context(|| arm.name())
    }

    /// Runs programs, by their places in an experiment; MB/s of each.
    fn load(&self, experiment: &Experiment, programs: &[usize], prepare: bool) -> anyhow::Result<Vec<f64>> {
        let program = |at: &usize| {
            let dir = self.cluster.mount(*at).join(format!("program-{at}"));
            format!("{}:{}:{}", experiment.programs[*at], experiment.op, dir.display())
        };
        let programs: Vec<String> = programs.iter().map(program).collect();
        let mut words = vec!["orchestration-load".to_owned(), format!("--programs={}", programs.join(","))];
        for (key, value) in [
            ("servers", u64::from(self.args.servers)),
            ("ranks", self.args.ranks),
            ("bytes", self.args.file << 20),
            ("seconds", self.seconds),
        ] {
            words.push(format!("--{key}={value}"));
        }
        if prepare {
            words.push(format!("--prepare={}", self.args.between << 20));
            return self.cluster.load(&words).context("making files").map(|_| Vec::new());
        }
        let said = self.cluster.load(&words).context(experiment.name)?;
        let seconds = said["seconds"].as_f64().context("the programs say no seconds")?;
        let bytes = said["bytes"].as_array().context("the programs say no bytes")?;
        Ok(bytes.iter().map(|bytes| bytes.as_f64().unwrap_or(0.0) / seconds / 1e6).collect())
    }

    /// An experiment with each arm, in random order. Each program alone comes with the first one.
    fn round(&self, experiment: &Experiment, order: &[usize]) -> anyhow::Result<Round> {
        let mut round = Round::default();
        let all: Vec<usize> = (0..experiment.programs.len()).collect();
        for arm in order.iter().map(|at| Arm::ALL[*at]) {
            // What one has learned of another is not the question.
            self.start(arm)?;
            if arm == Arm::None {
                for program in &all {
                    round.alone.extend(self.load(experiment, &[*program], false)?);
                }
            }
            round.together.insert(arm, self.load(experiment, &all, false).with_context(|| arm.name())?);
        }
        Ok(round)
    }
}

/// One round of an experiment, whole: MB/s of each program, alone and with the others.
#[derive(Default)]
struct Round {
    alone: Vec<f64>,
    together: BTreeMap<Arm, Vec<f64>>,
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
    /// Whole ones that were measured.
    pub(super) rounds: usize,
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
    pub(super) network: String,
    pub(super) servers: u32,
    /// That were asked for; each row says how many there were.
    pub(super) rounds: u32,
    pub(super) seconds: u64,
    pub(super) rows: Vec<RealRow>,
}

/// What rounds of an experiment come to; there is at least one.
fn row(experiment: &Experiment, rounds: &[Round]) -> RealRow {
    let middle = |values: &mut dyn Iterator<Item = f64>| median(&mut values.collect::<Vec<f64>>());
    let programs = 0..experiment.programs.len();
    let alone_mb_s: Vec<f64> =
        programs.clone().map(|program| middle(&mut rounds.iter().map(|round| round.alone[program])).0).collect();
    let sum = |round: &Round, arm: Arm| round.together[&arm].iter().sum::<f64>();
    let cell = |arm: Arm| {
        let (mb_s, range) = middle(&mut rounds.iter().map(|round| sum(round, arm)));
        let gain = |round: &Round| (sum(round, arm) / sum(round, Arm::None) - 1.0) * 100.0;
        let (gain, gain_range) = middle(&mut rounds.iter().map(gain));
        let slow = |program: usize| {
            middle(&mut rounds.iter().map(|round| alone_mb_s[program] / round.together[&arm][program])).0
        };
        let slow_downs: Vec<f64> = programs.clone().map(slow).collect();
        Cell { arm: arm.name(), mb_s, range, gain, gain_range, jain: jain(&slow_downs), slow_downs }
    };
    RealRow {
        experiment: experiment.name,
        holds: experiment.holds,
        programs: experiment.programs.to_vec(),
        rounds: rounds.len(),
        cells: Arm::ALL.into_iter().map(cell).collect(),
        alone_mb_s,
    }
}

/// Measures for real: round by round, experiment by experiment. What was measured when that failed or was interrupted, in whole
/// rounds of an experiment, and with what error.
///
/// # Errors
/// If a cluster cannot be started, a program fails, or data are wrong, before anything was measured.
pub(super) fn measure(args: &RealArgs, quick: bool) -> anyhow::Result<(Real, anyhow::Result<()>)> {
    let runner = Runner::new()?;
    let rounds = args.rounds.unwrap_or(if quick { 1 } else { 5 });
    let seconds = args.seconds.unwrap_or(if quick { QUICK_SECONDS } else { SECONDS });
    let bed = Bed { args, seconds, cluster: Cluster::new(&runner, "orchestration", &args.cluster, args.port)? };
    let wanted = |experiment: &&Experiment| match args.only.as_slice() {
        [] => !quick || ["mpi-io-test read barrier", "three programs"].contains(&experiment.name),
        only => only.iter().any(|text| experiment.name.contains(text.as_str())),
    };
    let experiments: Vec<&Experiment> = EXPERIMENTS.iter().filter(wanted).collect();
    anyhow::ensure!(!experiments.is_empty(), "--only: no experiment has that in its name");
    fs::write(bed.drive(), drive())?;
    bed.start(Arm::None)?;
    // The files are those of all experiments: what programs write is what was there.
    bed.load(&EXPERIMENTS[EXPERIMENTS.len() - 1], &[0, 1, 2], true)?;
    let mut measured: Vec<Vec<Round>> = experiments.iter().map(|_| Vec::new()).collect();
    let mut random = SplitMix64(17);
    let bar = output::bar(u64::from(rounds) * experiments.len() as u64, "{bar:40} {pos}/{len} {msg}");
    let ended = (0..rounds).try_for_each(|_| {
        experiments.iter().zip(&mut measured).try_for_each(|(experiment, measured)| {
            bar.set_message(experiment.name);
            measured.push(bed.round(experiment, &random.shuffled(Arm::ALL.len()))?);
            bar.inc(1);
            anyhow::Ok(())
        })
    });
    bar.finish_and_clear();
    let rows: Vec<RealRow> = { experiments.iter().zip(&measured) }
        .filter(|(_, rounds)| !rounds.is_empty())
        .map(|(experiment, rounds)| row(experiment, rounds))
        .collect();
    if rows.is_empty() {
        ended?;
        anyhow::bail!("nothing was measured");
    }
    let real = Real {
        devices: format!("emulated {}", args.emulate.as_deref().unwrap_or("hdd-7200 with a cache as of 2006")),
        network: args.cluster.network(),
        servers: args.servers,
        rounds,
        seconds,
        rows,
    };
    Ok((real, ended))
}

pub(super) fn print(real: &Real) {
    output::line(format_args!(
        "\nfor real: {} of GlusterFS on {}, {}, {} of {} s in random order; MB/s of all programs, gain over \
         none in the same round in %: median and range",
        counted(real.servers as u64, "data server"),
        real.devices,
        real.network,
        counted(real.rounds as u64, "round"),
        real.seconds
    ));
    for row in &real.rows {
        let alone: Vec<String> =
            row.programs.iter().zip(&row.alone_mb_s).map(|(name, rate)| format!("{name} {rate:.1}")).collect();
        let counted =
            if row.rounds == real.rounds as usize { String::new() } else { format!(" (rounds: {})", row.rounds) };
        output::line(format_args!("{}{counted}: alone {}", row.experiment, alone.join(", ")));
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
