//! `sluice-bench adaptivity`: what choosing while running brings, simulated and for real.

mod course;
mod mixes;
mod overhead;
mod real;
mod simulated;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use crate::bed::Disk;

/// Measures what a selector that starts from nothing makes of workloads.
///
/// Simulated: workloads that change, phases of different patterns, or of several programs at once, one after the other, on one modelled
/// device. Compared are every fixed configuration that it may choose, over the whole run, and an oracle that has the best of them in each
/// phase.
///
/// With --real: programs on an emulated disk with ext4, as `sluice-bench rivals` has them, and workloads that change from one of
/// these to the next, against the kernel's schedulers and fixed configurations; and what a mount that chooses costs where there is
/// nothing to choose, in memory and on this machine's own disk. Needs what rivals needs. Takes some ten hours, with --quick less than one.
/// Ctrl-C then prints what there is so far.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Fewer runs. Simulated: the disk and flash. Real: 16 workloads and 6 that change, 3 fixed configurations, 2 rounds of 2 s
    /// after 10 s of learning instead of 5 rounds of 5 s after 60 s
    #[arg(long)]
    quick: bool,
    /// Real programs on an emulated disk
    #[arg(long)]
    real: bool,
    /// Only workloads whose name contains this; may be given several times. Real: `overhead` stands for the costs
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Simulated: device models; with `+cache` at the end the server has a page cache over it
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    device: Vec<String>,
    /// Simulated: seeds of each cell; fewer than 10 say little [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Simulated: the first of these seeds
    #[arg(long, value_name = "SEED", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    first_seed: u64,
    /// Simulated: compare this configuration, too, as "hbrr anticipation=on in_flight=1"; may be given several times. Selectors do not choose it, and
    /// the oracle does
    #[arg(long, value_name = "CONFIGURATION", conflicts_with = "real")]
    arm: Vec<String>,
    /// Milliseconds of the windows by which selectors choose [default: 100, as of mounts]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=1000))]
    window: Option<u64>,
    /// Log the decisions for `sluice explain`: simulated, of the first run, from nothing, and in FILE.again with what was learned;
    /// real, of each workload from nothing in FILE.WORKLOAD, and with what came after it in FILE.WORKLOAD.again
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Real: seconds of load that a workload is learned for before anything counts [default: 60; with --quick 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=600))]
    learn: Option<u32>,
    /// Real: rounds, in each of which every side has its turn [default: 5; with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Real: seconds for which a workload, or a phase of one, runs on a side in a round [default: 5; with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: Option<u32>,
    /// Real: all nine configurations that a selector chooses from, also with --quick
    #[arg(long)]
    all_arms: bool,
    /// Real: who chooses on the mounts that are measured, but for `overhead` [default: bandit, as on mounts]
    #[arg(long, value_parser = ["bandit", "tree", "tree+bandit"], requires = "real")]
    selector: Option<String>,
    /// Real: where `overhead` measures this machine's own disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    own: PathBuf,
    #[command(flatten)]
    disk: Disk,
}

impl Args {
    /// Whether a workload of this name is asked for.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only.as_str()))
    }
}

/// Measures and prints.
///
/// # Errors
/// If something is missing or fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // A log is written when the first row is there, minutes later.
    let directory = args.log.as_ref().and_then(|log| log.parent()).filter(|dir| !dir.as_os_str().is_empty());
    if let Some(missing) = directory.filter(|dir| !dir.is_dir()) {
        bail!("--log: there is no directory {}: make it first", missing.display());
    }
    if args.real { real::run(args) } else { simulated::run(args) }
}
