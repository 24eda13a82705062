//! `sluice cluster`: data servers, I/O nodes and clients on GlusterFS.

mod check;
mod disks;
mod write;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use sluice_cluster::running::{self, State, Status};
use sluice_cluster::{Config, LinksStatus, Plan};

use crate::{interrupt, output};

/// Runs clusters of GlusterFS processes with Sluicegate's scheduler in them
///
/// A TOML file says how many there are and how requests are scheduled; graphs, logs and the numbers of the processes are in
/// the cluster's directory.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Up(Up),
    Status(StatusArgs),
    Down(Down),
    Check(check::Args),
    Write(write::Args),
}

/// Starts what does not run, in order: data servers, I/O nodes, clients
///
/// What runs stays as it is. Can be called again at any time, also after processes were killed.
#[derive(clap::Args)]
pub(crate) struct Up {
    /// What the cluster is to be
    #[arg(value_name = "CLUSTER.toml")]
    config: PathBuf,
}

/// Says what runs
#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// What the cluster is to be
    #[arg(value_name = "CLUSTER.toml")]
    config: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Unmounts the clients and ends all processes; data stay
#[derive(clap::Args)]
pub(crate) struct Down {
    /// What the cluster is to be
    #[arg(value_name = "CLUSTER.toml")]
    config: PathBuf,
    /// Unmount clients, and with --remove-disks remove devices, even if programs use them, which then find nothing there
    #[arg(long)]
    force: bool,
    /// Remove the emulated devices as well, with the data on them
    #[arg(long)]
    remove_disks: bool,
}

/// Does one of them.
///
/// # Errors
/// Whatever it says.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(args) => up(args),
        Command::Status(args) => status(args),
        Command::Down(args) => down(args),
        Command::Check(args) => check::run(args),
        Command::Write(args) => write::run(args),
    }
}

fn up(args: &Up) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.config)?;
    let plan = Plan::new(&config)?;
    if let Some(away) = plan.machines.iter().find(|machine| machine.host.is_some()) {
        anyhow::bail!(
            "{} is to be on {}: sluice cluster write says what to run where",
            away.name,
            away.host.as_deref().unwrap_or_default()
        );
    }
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "it needs root: data servers keep attributes that are root's"
    );
    let stop = interrupt::flag()?;
    disks::create(&config, &plan)?;
    running::up(&plan, &stop, |machine, started| {
        let how = if started { "started" } else { "runs already" };
        output::say(format_args!("{:<12} {how}", machine.name));
    })?;
    let all = running::status(&plan);
    for client in all.iter().filter(|status| status.name.starts_with("client")) {
        output::say(format_args!("mounted on {}", client.at));
    }
    output::say(format_args!("To end: sluice cluster down {}", args.config.display()));
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Report {
    name: String,
    directory: PathBuf,
    /// Devices of data servers are emulated.
    emulated: bool,
    /// Of a stated rate; none: loopback.
    links: Option<LinksStatus>,
    machines: Vec<Status>,
}

fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.config)?;
    let plan = Plan::of_running(&config);
    let machines = running::status(&plan);
    let links = plan.links.as_ref().map(|links| links.status());
    let all_up = machines.iter().all(|machine| machine.state == State::Up)
        && links.as_ref().is_none_or(|links| links.missing.is_empty());
    let emulated = config.servers.emulate.is_some();
    if args.json {
        let report = Report { name: plan.name, directory: plan.directory, emulated, links, machines };
        output::json(&report)?;
    } else {
        let mut text = format!("{:<12} {:<9} {:>8}  at\n", "machine", "state", "process");
        for machine in &machines {
            let state = match machine.state {
                State::Up => "up",
                State::Starting => "starting",
                State::Dead => "dead",
                State::Down => "down",
            };
            let pid = machine.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            // Writing to a text cannot fail.
            _ = writeln!(text, "{:<12} {state:<9} {pid:>8}  {}", machine.name, machine.at);
        }
        output::text(&text);
        if emulated {
            output::say("the data servers' devices are emulated");
        }
        if let Some(links) = links {
            output::say(links.text());
        }
    }
    Ok(if all_up { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn down(args: &Down) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.config)?;
    let plan = Plan::of_running(&config);
    running::down(&plan, args.force, |machine| output::say(format_args!("{:<12} ended", machine.name)))?;
    if args.remove_disks {
        disks::remove(&config, args.force)?;
    }
    Ok(ExitCode::SUCCESS)
}
