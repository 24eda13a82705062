//! The `sluice` command, and what of it `sluice-bench` (`crates/bench`) measures or uses: [`predict`], [`profile`],
//! [`output`], [`interrupt`].

mod calibrate;
mod chart;
mod check;
mod cluster;
mod config;
mod control;
mod coordinate;
mod demo;
mod disk;
mod explain;
mod help;
mod input;
pub mod interrupt;
mod log;
mod model;
mod mount;
mod mpirun;
pub mod output;
mod policy;
pub use sluice_predict as predict;
pub mod profile;
mod report;
mod simulate;
mod status;
mod suggest;
mod tier;
mod trace;
mod unmount;
mod version;

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;
pub use version::VERSION;

/// Schedules file I/O requests, so that devices see large sequential accesses
///
/// It reorders, aggregates and paces what programs read and write through a mount of any directory, or of several as one
/// striped volume.
#[derive(Parser)]
#[command(name = "sluice", version = VERSION, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    verbosity: output::Verbosity,
    /// The process behind `mount --daemon`: reports on its standard output, which is a pipe
    #[arg(long, hide = true)]
    daemon_child: bool,
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
    #[command(subcommand)]
    Cluster(cluster::Command),
    Coordinate(coordinate::Args),
    Mpirun(mpirun::Args),
    #[command(subcommand)]
    Tier(tier::Command),
    Demo(demo::Args),
    Profile(Box<profile::Args>),
    Calibrate(calibrate::Args),
    Simulate(simulate::Args),
    Report(report::Args),
    Completions(help::completions::Args),
    Man(help::man::Args),
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
    let cli = Cli::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit());
    let verbosity = cli.verbosity;
    verbosity.heed();
    // A mount has its own.
    if !matches!(cli.command, Command::Mount(_)) {
        log::start(verbosity.level().unwrap_or(LevelFilter::WARN), log::To::People);
    }
    output::end(match cli.command {
        Command::Mount(args) => mount::run(&args, verbosity, cli.daemon_child),
        Command::Unmount(args) => unmount::run(args),
        Command::Status(args) => status::run(args),
        Command::Policy(args) => policy::run(args),
        Command::Trace(command) => trace::run(command),
        Command::Check(args) => check::run(args),
        Command::Disk(command) => disk::run(command),
        Command::Cluster(command) => cluster::run(&command),
        Command::Coordinate(args) => coordinate::run(args),
        Command::Mpirun(args) => mpirun::run(&args),
        Command::Tier(command) => tier::run(&command),
        Command::Demo(args) => demo::run(args),
        Command::Profile(args) => profile::run(*args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Simulate(args) => simulate::run(args),
        Command::Report(args) => report::run(args),
        Command::Completions(args) => help::completions::run(&args, command()),
        Command::Man(args) => help::man::run(&args, command()),
        Command::Explain(args) => explain::run(&args),
        Command::Model(command) => model::run(&command),
        Command::DemoWorker(args) => demo::worker::run(args),
    })
}

/// `sluice` with everything that its help says.
fn command() -> clap::Command {
    with_negative_numbers(help::with_pages(Cli::command()))
}

/// Lets options take `-1`, so that who gives it is told what is expected instead of how to write an argument that begins with `-`. Not `-1G`: an
/// option whose value was forgotten would take the next option for it.
#[must_use]
pub fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes = |arg: clap::Arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
    command.mut_args(takes).mut_subcommands(with_negative_numbers)
}
