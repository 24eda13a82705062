//! `sluice demo`.

use std::process::ExitCode;

/// Shows the algorithms at work: four processes interfere on emulated disks.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
