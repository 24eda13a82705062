//! The `sluice-bench` command: the figures of docs/benchmarks.md, and how right profiler, models, simulator and predictions are.
//!
//! Nobody who uses Sluicegate needs it, so it is not installed.

mod adaptivity;
mod allocations;
mod bed;
mod council;
mod detector;
mod device;
mod emulation;
mod engine;
mod features;
mod fidelity;
mod forwarding;
mod fuse;
mod mpi;
mod orchestration;
mod patterns;
mod predict;
mod prediction;
mod profiler;
mod random;
mod rivals;
mod runtime;
mod selection;
mod sim;
mod statistics;
mod tier;
mod trace;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use sluice_cli::output;
use sluice_core::policy::{PolicyInfo, table};
use sluice_core::{ConfigError, PolicyConfig};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Measures Sluicegate itself.
#[derive(Parser)]
#[command(name = "sluice-bench", version = sluice_cli::VERSION, max_term_width = 120)]
enum Command {
    Engine(engine::Args),
    Runtime(runtime::Args),
    Fuse(fuse::Args),
    Mpi(mpi::Args),
    Rivals(rivals::Args),
    Emulation(emulation::Args),
    Device(device::Args),
    Sim(sim::Args),
    Trace(trace::Args),
    Predict(predict::Args),
    Fidelity(fidelity::Args),
    #[command(hide = true)]
    FidelityServer(fidelity::ServerArgs),
    Prediction(prediction::Args),
    Features(features::Args),
    Detector(detector::Args),
    Selection(selection::Args),
    Study(profiler::StudyArgs),
    Calibration(profiler::CalibrationArgs),
    AgainstFio(profiler::fio::Args),
    Adaptivity(adaptivity::Args),
    Council(council::Args),
    Orchestration(orchestration::Args),
    #[command(hide = true)]
    OrchestrationLoad(orchestration::LoadArgs),
    Forwarding(forwarding::Args),
    #[command(hide = true)]
    ForwardingLoad(forwarding::LoadArgs),
    Tier(tier::Args),
    #[command(hide = true)]
    TierWriter(tier::WriterArgs),
}

fn main() -> ExitCode {
    output::program("sluice-bench");
    let command = sluice_cli::with_negative_numbers(Command::command());
    let command = Command::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    output::end(match command {
        Command::Engine(args) => engine::run(args),
        Command::Runtime(args) => runtime::run(args),
        Command::Fuse(args) => fuse::run(args),
        Command::Mpi(args) => mpi::run(&args),
        Command::Rivals(args) => rivals::run(args),
        Command::Emulation(args) => emulation::run(args),
        Command::Device(args) => device::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Trace(args) => trace::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Fidelity(args) => fidelity::run(args),
        Command::FidelityServer(args) => fidelity::serve(&args),
        Command::Prediction(args) => prediction::run(&args),
        Command::Council(args) => council::run(&args),
        Command::Orchestration(args) => orchestration::run(&args),
        Command::OrchestrationLoad(args) => orchestration::load(&args),
        Command::Forwarding(args) => forwarding::run(&args),
        Command::ForwardingLoad(args) => forwarding::load(&args),
        Command::Tier(args) => tier::run(&args),
        Command::TierWriter(args) => tier::write(&args),
        Command::Features(args) => features::run(&args),
        Command::Detector(args) => detector::run(&args),
        Command::Selection(args) => selection::run(&args),
        Command::Study(args) => profiler::study(&args),
        Command::Calibration(args) => profiler::calibration(&args),
        Command::AgainstFio(args) => profiler::fio::run(&args),
        Command::Adaptivity(args) => adaptivity::run(&args),
    })
}

/// The algorithms with these names, or all that `wanted` takes.
fn policies(names: &[String], wanted: impl Fn(&PolicyInfo) -> bool) -> anyhow::Result<Vec<PolicyConfig>> {
    let all = table().iter().filter(|info| wanted(info)).map(|info| info.name);
    let names: Vec<&str> = if names.is_empty() { all.collect() } else { names.iter().map(String::as_str).collect() };
    let policy = |name: &str| {
        let hint = |error: ConfigError| anyhow::anyhow!("{error}{}", sluice_notation::hint(name, error.known()));
        PolicyConfig::parse(name).map_err(hint)
    };
    names.into_iter().map(policy).collect()
}
