//! `sluice cluster check`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use sluice_cluster::running::{self, State};
use sluice_cluster::{Config, Machine, Plan, Role};

use crate::output;

/// Says whether a cluster could be started here, or what is in the way
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the cluster is to be
    #[arg(value_name = "CLUSTER.toml")]
    config: PathBuf,
}

/// Looks at everything, and tells all that is wrong.
///
/// # Errors
/// If the configuration cannot be read.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.config)?;
    output::say(format_args!("{} is well-formed", args.config.display()));
    let mut fine = true;
    let mut tell = |what: &str, result: anyhow::Result<String>| match result {
        Ok(found) => output::line(format_args!("ok       {what}: {found}")),
        Err(error) => {
            fine = false;
            output::line(format_args!("PROBLEM  {what}: {error:#}"));
        }
    };
    tell("GlusterFS", version());
    tell("root", if rustix::process::geteuid().is_root() { Ok("yes".into()) } else { Err(anyhow::anyhow!("no")) });
    if let Some(tier) = config.servers.emulate.as_ref().and_then(|emulate| emulate.tier.as_deref()) {
        let found = || {
            ensure!(
                tier.is_dir(),
                "{} is no directory, in which each data server's disk could have a file",
                tier.display()
            );
            Ok(format!("files in {}", tier.display()))
        };
        tell("tier", found());
    }
    let plan = Plan::new(&config);
    match plan {
        Err(error) => tell("translator", Err(error)),
        Ok(plan) => {
            if let Some(path) = &plan.translator {
                tell("translator", Ok(path.display().to_string()));
            }
            if config.clients.count > 0 {
                tell(
                    "FUSE",
                    Path::new("/dev/fuse").try_exists().context("/dev/fuse").and_then(|there| {
                        ensure!(there, "there is no /dev/fuse");
                        Ok("yes".into())
                    }),
                );
            }
            if let Some(links) = &plan.links {
                tell("links", links.check(&plan.directory));
            }
            let runs = running::status(&plan);
            for (machine, status) in plan.machines.iter().zip(&runs) {
                if machine.host.is_some() {
                    continue;
                }
                if matches!(status.state, State::Up | State::Starting) {
                    tell(&machine.name, Ok(format!("runs, process {}", status.pid.unwrap_or(0))));
                } else {
                    tell(&machine.name, place(machine, plan.links.is_some()));
                }
            }
        }
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `glusterfs 10.3`.
fn version() -> anyhow::Result<String> {
    let mut found = String::new();
    for program in ["glusterfsd", "glusterfs"] {
        let output = Command::new(program).arg("--version").output();
        let output = output.with_context(|| format!("{program} is not there: install glusterfs-server"))?;
        found = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned();
    }
    let major = found.split_whitespace().nth(1).and_then(|number| number.split('.').next()?.parse::<u32>().ok());
    ensure!(major == Some(10), "{found}; the translator is for version 10");
    Ok(found)
}

/// Whether a process would find what it needs. With links nobody else is where it listens.
fn place(machine: &Machine, has_links: bool) -> anyhow::Result<String> {
    let addresses = machine.addresses();
    let listed: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    if !has_links {
        addresses.into_iter().try_for_each(running::is_free)?;
    }
    let free = format!("{} {} free", listed.join(" and "), if listed.len() > 1 { "are" } else { "is" });
    match &machine.role {
        Role::Server { brick, .. } => {
            attributes(brick)?;
            Ok(format!("{} can keep data, {free}", brick.display()))
        }
        Role::Node { .. } | Role::Coordinator { .. } => Ok(free),
        Role::Client { mount, .. } => {
            let empty =
                mount.read_dir().map_or(Ok(true), |mut entries| entries.next().transpose().map(|one| one.is_none()))?;
            ensure!(empty, "{} is not empty", mount.display());
            Ok(format!("{} can be mounted on", mount.display()))
        }
    }
}

/// GlusterFS keeps what it knows of files in `trusted.*` attributes.
fn attributes(brick: &Path) -> anyhow::Result<()> {
    let there = brick.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    let file = tempfile::NamedTempFile::new_in(there).with_context(|| there.display().to_string())?;
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(file.path(), "trusted.sluice.check", b"1", flags)
        .with_context(|| format!("{} keeps no trusted.* attributes", there.display()))
}
