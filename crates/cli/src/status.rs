//! `sluice status`.

use std::process::ExitCode;

/// Shows what a mount's scheduler does.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
