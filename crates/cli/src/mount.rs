//! `sluice mount`.

use std::process::ExitCode;

/// Puts the scheduler in front of a directory.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
