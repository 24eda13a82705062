//! `sluice-bench council`: what the council of the I/O nodes knows and learns: patterns recognised by networks, windows found by
//! bandits.

mod bandits;
mod experiments;
mod network;
mod online;
mod scale;
mod systems;

use std::path::PathBuf;
use std::process::ExitCode;

use sluice_cli::output;

pub(crate) use network::KNOWN;

/// How well the council recognises patterns, and how fast it finds the best time window of TWINS, in simulated systems
///
/// The pattern networks are judged by experiments with seeds that they were not trained with, nor, in such a system, with these numbers
/// of processes and sizes; some of these they know from the other kind of system, the paper's or GlusterFS's. The bandits learn in 144 situations, from what was measured of each; then, at work, in simulated systems. Arms are seven windows, arrival
/// order and HBRR, so that it can be said that no window is best. A choice is right if no other is significantly better (t-test, 5 %).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say what the council costs with 384 and 3,840 I/O nodes, and what windows bring that do not idle or differ, instead of judging
    #[arg(long)]
    scale: bool,
    /// Only this part
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Bandits: observations of each situation
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    observations: u32,
    /// Bandits: how often all is repeated
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Bandits: start of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// At work: systems that are drawn at random, beside four that are not
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    systems: u32,
    /// At work: further systems, drawn from other seeds, 24 of each, before changes that they were to judge
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u32).range(0..=120))]
    later: u32,
    /// At work: only this system, by the number that the table has; may be repeated
    #[arg(long, value_name = "NUMBER")]
    system: Vec<usize>,
    /// Networks: experiments
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    experiments: u64,
    /// Networks: which experiments
    #[arg(long, value_enum, default_value = "unseen")]
    set: experiments::Set,
    /// Networks: the first seed
    #[arg(long, value_name = "SEED", default_value_t = 20_000)]
    first: u64,
    /// Networks: one other than ours that comes with Sluicegate
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Networks: one other than the paper's that comes with Sluicegate
    #[arg(long, value_name = "FILE")]
    paper_model: Option<PathBuf>,
    /// Networks: write the windows of the experiments as a data set (CSV) instead of judging
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Networks: judge them by the rows of a data set, such as real windows (sluice-bench forwarding --record), instead of simulated ones
    #[arg(long, value_name = "FILE", conflicts_with_all = ["export", "classify", "scale", "only"])]
    judge: Option<PathBuf>,
    /// Networks: print what both say of each row of a data set instead of judging
    #[arg(long, value_name = "FILE", conflicts_with = "export")]
    classify: Option<PathBuf>,
}

/// What is judged.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The pattern networks.
    Network,
    /// The bandits, by what was measured.
    Bandit,
    /// The bandits at work.
    Online,
}

/// Judges, or writes what is asked for.
///
/// # Errors
/// If an experiment cannot be simulated, or a file not read or written.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.scale {
        scale::run(args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.export {
        network::export(args, path)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.judge {
        let report = network::judge_data(args, path)?;
        if args.json {
            output::pretty_json(&serde_json::json!({"data": path, "met": report.met, "network": report}))?;
        } else {
            network::print(&report, "runs of a data set");
        }
        return Ok(if report.met { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if let Some(path) = &args.classify {
        network::classify(args, path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = |part: Part| args.only.is_none_or(|only| only == part);
    let network = wanted(Part::Network).then(|| network::judge(args)).transpose()?;
    let bandit = wanted(Part::Bandit).then(|| bandits::judge(args)).transpose()?;
    let online = wanted(Part::Online).then(|| online::judge(args)).transpose()?;
    let met = network.as_ref().is_none_or(|it| it.met)
        && bandit.as_ref().is_none_or(|it| it.met)
        && online.as_ref().is_none_or(|it| it.met);
    if args.json {
        let mut report = serde_json::json!({"simulated": true, "met": met});
        if let Some(network) = &network {
            report["network"] = serde_json::to_value(network)?;
        }
        if let Some(bandit) = &bandit {
            report["bandit"] = serde_json::to_value(bandit)?;
        }
        if let Some(online) = &online {
            report["online"] = serde_json::to_value(online)?;
        }
        output::pretty_json(&report)?;
    } else {
        let what =
            "simulated experiments with other seeds, numbers of processes and sizes than training has of such systems";
        network.iter().for_each(|report| network::print(report, what));
        bandit.iter().for_each(bandits::print);
        online.iter().for_each(online::print);
    }
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
