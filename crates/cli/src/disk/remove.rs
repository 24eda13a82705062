//! `sluice disk remove`.

use std::process::ExitCode;

use anyhow::{Context, bail};

use super::state::{Store, check_name};
use super::teardown;
use crate::output;

/// Removes disks, emulated ones with everything that is on them
///
/// Unmounts, frees the loop device, ends the emulation, removes the image. A real disk (--disk) keeps its data, and gets what
/// only its SSD has; the tier goes. Also clears away what is left of disks whose processes were killed, or that were not finished.
#[derive(clap::Args)]
#[command(override_usage = "sluice disk remove [--force] NAME...\n       sluice disk remove [--force] --all")]
pub(crate) struct Args {
    /// Disks to remove
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// All disks
    #[arg(long)]
    all: bool,
    /// Even those in use: for their users as if the drive was pulled out; what was not written back is lost
    #[arg(short, long)]
    force: bool,
}

/// Removes them; one that cannot be removed does not keep the others.
///
/// # Errors
/// If one is not there or in use.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = Store::open()?;
    let names = if args.all { store.names()? } else { args.names.clone() };
    if names.is_empty() {
        output::say("There are no emulated disks");
    }
    let mut failed = false;
    for name in &names {
        match remove(&store, name, args.force) {
            Ok(what) => output::say(format_args!("{name} ({what}) is removed")),
            Err(error) => {
                output::tell(format_args!("{name}: {error:#}"));
                failed = true;
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn remove(store: &Store, name: &str, force: bool) -> anyhow::Result<String> {
    check_name(name)?;
    if store.load(name)?.is_none() {
        let known = store.names()?;
        bail!("there is no such disk{}", sluice_notation::hint(name, known.iter().map(String::as_str)));
    }
    let lock = store.lock(name)?;
    let disk = lock.load()?.context("another process has just removed it")?;
    let what = disk.describe();
    teardown::remove(lock, disk, force)?;
    Ok(what)
}
