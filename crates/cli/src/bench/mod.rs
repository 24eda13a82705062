//! `sluice bench`: the figures of docs/benchmarks.md.

mod against;
pub(crate) mod allocations;
mod device;
mod emulation;
mod engine;
mod fidelity;
mod fuse;
mod patterns;
mod predict;
mod prediction;
mod runtime;
mod sim;
mod trace;

use clap::Subcommand;
use std::process::ExitCode;

/// Measures Sluicegate itself.
#[derive(Subcommand)]
pub(crate) enum Command {
    Engine(engine::Args),
    Runtime(runtime::Args),
    Fuse(fuse::Args),
    Emulation(emulation::Args),
    Device(device::Args),
    Sim(sim::Args),
    Trace(trace::Args),
    Predict(predict::Args),
    Fidelity(fidelity::Args),
    Prediction(prediction::Args),
}

pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Engine(args) => engine::run(args),
        Command::Runtime(args) => runtime::run(args),
        Command::Fuse(args) => fuse::run(args),
        Command::Emulation(args) => emulation::run(args),
        Command::Device(args) => device::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Trace(args) => trace::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Fidelity(args) => fidelity::run(args),
        Command::Prediction(args) => prediction::run(&args),
    }
}
