//! `sluice unmount`.

use std::process::ExitCode;

/// Ends a mount.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
