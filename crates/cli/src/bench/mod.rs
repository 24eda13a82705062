//! `sluice bench`: the figures of docs/benchmarks.md.

pub(crate) mod allocations;
mod engine;
mod fuse;

use clap::Subcommand;
use std::process::ExitCode;

/// Measures Sluicegate itself.
#[derive(Subcommand)]
pub(crate) enum Command {
    Engine(engine::Args),
    Fuse(fuse::Args),
}

pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Engine(args) => engine::run(args),
        Command::Fuse(args) => fuse::run(args),
    }
}
