//! `sluice disk`: block devices with the timing of an emulated drive.
//!
//! A disk is a tower of five things, made from the bottom up and torn down from the top:
//!
//! ```text
//!     file system (--mkfs, --mount)        the kernel's own, with its page cache
//!     /dev/loopN                           the kernel's request queue and I/O scheduler
//!     image file in a mount of sluice      one process: sluice mount --emulate MODEL --cache none
//!     sparse file(s) in a real directory   one for each drive; direct I/O, so that nothing is in memory twice
//!     state file NAME.json                 what the disk is to be, and how far it got
//! ```
//!
//! With a tier (`--tier`), that one process serves the image, or a real disk, with an SSD before it (`tier`).
//!
//! The state file is written before anything else is made and removed after everything else. It says what the disk *should*
//! consist of; what is there is always asked of the system: loop devices are found by the name of the image, which no other
//! file has, mounts in the kernel's table. So whatever was killed at whatever moment, the same teardown clears it away.

mod create;
mod devices;
mod interrupt;
mod list;
mod loops;
mod queue;
mod remove;
mod state;
mod teardown;
mod tier;
mod up;

use std::process::ExitCode;

use anyhow::bail;

/// Makes block devices with the timing of an emulated hard disk or flash drive
///
/// They are Linux block devices (/dev/loopN): the kernel's I/O schedulers, file systems and page cache work on them as on
/// a drive. The bytes are real, in a sparse file; the times are computed, so everything measured on one is emulated. With --tier
/// an SSD stands before it; with --disk, too, it is a real disk, of which nothing is emulated.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Create(Box<create::Args>),
    List(list::Args),
    Up(up::Args),
    Remove(remove::Args),
}

/// Runs one of the commands.
///
/// # Errors
/// Whatever it says.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("sluice disk needs root: loop devices and their queues are root's");
    }
    match command {
        Command::Create(args) => create::run(&args),
        Command::List(args) => list::run(&args),
        Command::Up(args) => up::run(&args),
        Command::Remove(args) => remove::run(&args),
    }
}
