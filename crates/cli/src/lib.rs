//! The `sluice` command, and what of it `sluice-bench` (`crates/bench`) measures or uses: [`predict`], [`profile`],
//! [`output`], [`interrupt`].

mod check;
mod config;
mod control;
mod demo;
mod disk;
mod explain;
pub mod interrupt;
mod model;
mod mount;
pub mod output;
mod policy;
pub use sluice_predict as predict;
pub mod profile;
mod report;
mod simulate;
mod status;
mod trace;
mod unmount;

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Schedules file I/O requests: reorders, aggregates and paces what programs read and write through a mount, so that the
/// devices below see large sequential accesses
#[derive(Parser)]
#[command(name = "sluice", version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mount(Box<mount::Args>),
    Unmount(unmount::Args),
    Status(status::Args),
    Policy(policy::Args),
    #[command(subcommand)]
    Trace(trace::Command),
    Check(check::Args),
    #[command(subcommand)]
    Disk(disk::Command),
    Demo(demo::Args),
    Profile(Box<profile::Args>),
    Simulate(simulate::Args),
    Report(report::Args),
    Explain(explain::Args),
    #[command(subcommand)]
    Model(model::Command),
    #[command(hide = true)]
    DemoWorker(demo::worker::Args),
}

/// Does what the command line says, as `sluice` or `mount.fuse.sluice`.
#[must_use]
pub fn main() -> ExitCode {
    match mount::helper::arguments(&std::env::args_os().collect::<Vec<_>>()) {
        Ok(None) => {}
        Ok(Some(args)) => {
            // Only as another process does the daemon find its own arguments.
            let error = std::process::Command::new("/proc/self/exe").args(args).exec();
            output::tell(format_args!("starting this program anew: {error}"));
            return ExitCode::FAILURE;
        }
        Err(error) => {
            output::tell(format_args!("{error:#}"));
            return ExitCode::FAILURE;
        }
    }
    output::end(match Cli::parse().command {
        Command::Mount(args) => mount::run(&args),
        Command::Unmount(args) => unmount::run(args),
        Command::Status(args) => status::run(args),
        Command::Policy(args) => policy::run(args),
        Command::Trace(command) => trace::run(command),
        Command::Check(args) => check::run(args),
        Command::Disk(command) => disk::run(command),
        Command::Demo(args) => demo::run(args),
        Command::Profile(args) => profile::run(*args),
        Command::Simulate(args) => simulate::run(args),
        Command::Report(args) => report::run(args),
        Command::Explain(args) => explain::run(&args),
        Command::Model(command) => model::run(&command),
        Command::DemoWorker(args) => demo::worker::run(args),
    })
}
