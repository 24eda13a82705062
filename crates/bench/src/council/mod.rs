//! `sluice-bench council`: what the council of the I/O nodes knows and learns: patterns recognised by networks, windows found by
//! bandits.

mod bandits;
mod experiments;
mod network;
mod scale;

use std::path::PathBuf;
use std::process::ExitCode;

use sluice_cli::output;

/// How well the council recognises patterns, and how fast it finds the best time window of TWINS, in simulated systems
///
/// The pattern networks are judged by experiments with seeds, numbers of processes and sizes that they were not trained with. The
/// bandits learn in 144 situations; arms are seven windows, arrival order and HBRR, so that it can be said that no window is best. A
/// choice is right if no other is significantly better (t-test, 5 %).
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
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(50..=100_000))]
    observations: u32,
    /// Bandits: how often all is repeated
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Bandits: start of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
    /// Networks: print what both say of each row of a data set instead of judging
    #[arg(long, value_name = "FILE", conflicts_with = "export")]
    classify: Option<PathBuf>,
}

/// What is judged.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The pattern networks.
    Network,
    /// The bandits.
    Bandit,
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
    if let Some(path) = &args.classify {
        network::classify(args, path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let network = (args.only != Some(Part::Bandit)).then(|| network::judge(args)).transpose()?;
    let bandit = (args.only != Some(Part::Network)).then(|| bandits::judge(args)).transpose()?;
    let met = network.as_ref().is_none_or(|it| it.met) && bandit.as_ref().is_none_or(|it| it.met);
    if args.json {
        let mut report = serde_json::json!({"simulated": true, "met": met});
        if let Some(network) = &network {
            report["network"] = serde_json::to_value(network)?;
        }
        if let Some(bandit) = &bandit {
            report["bandit"] = serde_json::to_value(bandit)?;
        }
        output::pretty_json(&report)?;
    } else {
        network.iter().for_each(network::print);
        bandit.iter().for_each(bandits::print);
    }
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
