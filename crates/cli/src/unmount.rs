//! `sluice unmount`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use sluice_fuse::MountState;

use crate::control::{self, Command};
use crate::output;

/// Ends a mount; returns when the process that served it has ended too
///
/// Also clears away the dead mount of a process that was killed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Take it out of sight at once even if it is in use; open files work on until they are closed
    #[arg(short, long)]
    lazy: bool,
}

/// Unmounts.
///
/// # Errors
/// If nothing of ours is mounted there, or it is in use.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let path = control::canonical(&args.mountpoint)?;
    let at = path.display();
    match end(&path, args.lazy)? {
        None => output::say(format_args!("{at} is unmounted")),
        Some(who) => output::say(format_args!(
            "{at} is out of sight; {who} goes on until the last file that is open there is closed"
        )),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the mount at a canonical path; unless `lazy`, its process has ended then, too. Says which goes on.
///
/// # Errors
/// If nothing of ours is mounted there, or it is in use.
pub(crate) fn end(path: &Path, lazy: bool) -> anyhow::Result<Option<String>> {
    match sluice_fuse::state(path)? {
        MountState::Absent => bail!("{}: no Sluicegate mount", path.display()),
        MountState::Dead => sluice_fuse::unmount(path, true)?,
        MountState::Alive => match control::connect(path)? {
            Some(mut client) => {
                client.request(Command::Unmount { lazy })?;
                // In sight no more, but perhaps in use for long.
                if lazy {
                    return client.goes_on();
                }
                client.wait_for_the_end()?;
            }
            None => sluice_fuse::unmount(path, lazy)?,
        },
    }
    Ok(None)
}
