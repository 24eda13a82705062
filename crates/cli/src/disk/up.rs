//! `sluice disk up`.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::interrupt::Interrupt;
use super::state::{Phase, Store, check_name};
use super::{create, list, teardown};
use crate::output;

/// Brings back disks whose process was killed, or after a restart, with their data
///
/// What runs stays as it is. What was durable is there; with a tier, its log is read again.
#[derive(clap::Args)]
#[command(override_usage = "sluice disk up NAME...\n       sluice disk up --all")]
pub(crate) struct Args {
    /// Disks to bring back
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// All disks
    #[arg(long)]
    all: bool,
}

/// Brings them back; one that cannot be does not keep the others.
///
/// # Errors
/// If the state files cannot be found.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = Store::open()?;
    let names = if args.all { store.names()? } else { args.names.clone() };
    let interrupt = Interrupt::catch()?;
    let mut failed = false;
    for name in &names {
        match up(&store, name, &interrupt) {
            Ok(said) => output::line(said),
            Err(error) => {
                output::tell(format_args!("{name}: {error:#}"));
                failed = true;
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn up(store: &Store, name: &str, interrupt: &Interrupt) -> anyhow::Result<String> {
    check_name(name)?;
    if store.load(name)?.is_none() {
        let known = store.names()?;
        bail!("there is no such disk{}", sluice_notation::hint(name, known.iter().map(String::as_str)));
    }
    let lock = store.lock(name)?;
    let mut disk = lock.load()?.context("another process has just removed it")?;
    let Some(problem) = list::problem(&disk) else { return Ok(format!("{name} runs already")) };
    if !disk.phase.was_ready() {
        bail!("{problem}; clear it away: sluice disk remove {name}");
    }
    // What ends half way is not taken for a disk that runs.
    disk.phase = Phase::Starting;
    lock.save(&disk)?;
    // What is left of it is of no use without the process behind it.
    teardown::unbind(&disk, false)?;
    teardown::end_emulation(&disk.emulation())?;
    let at = disk.emulation();
    fs::DirBuilder::new().mode(0o700).create(&at).with_context(|| format!("making the directory {}", at.display()))?;
    create::serve(&disk, interrupt)?;
    let device = create::attach(&mut disk, &lock, interrupt)?;
    if let Some(path) = &disk.mount_point {
        create::mount(disk.filesystem.as_deref(), &device, path)?;
    }
    disk.phase = Phase::Ready;
    lock.save(&disk)?;
    Ok(create::summary(&disk, &device))
}
