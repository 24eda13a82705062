//! `sluice bench engine`.

use std::process::ExitCode;

/// The engine alone: time and allocations per request.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
