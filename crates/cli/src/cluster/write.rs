//! `sluice cluster write`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use sluice_cluster::{Config, Machine, Plan, Role};

use crate::output;

/// Writes graphs and systemd units for many machines, and says what to do with them
///
/// For each host a directory with a graph and a unit for each process there. Nothing is started, and no host is asked.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the cluster is to be
    #[arg(value_name = "CLUSTER.toml")]
    config: PathBuf,
    /// Directory to write to; what is in it under the same names is replaced
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Writes them.
///
/// # Errors
/// If the configuration or the directory is no good.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.config)?;
    let plan = Plan::new(&config)?;
    let mut hosts: BTreeMap<&str, Vec<&Machine>> = BTreeMap::new();
    for machine in &plan.machines {
        hosts.entry(machine.host.as_deref().unwrap_or("localhost")).or_default().push(machine);
    }
    let mut told = String::new();
    for (host, machines) in hosts {
        let dir = args.out.join(host);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        // Writing to a text cannot fail.
        _ = writeln!(told, "on {host}:");
        if let Some(translator) = &plan.translator {
            _ = writeln!(told, "  make install-gluster          # or put sluice.so at {}", translator.display());
        }
        let graphs = machines.iter().any(|machine| !machine.graph.is_empty());
        let copies = if graphs {
            format!(" && cp {}/*.vol {}/", dir.display(), plan.directory.display())
        } else {
            String::new()
        };
        _ = writeln!(told, "  mkdir -p {}{copies}", plan.directory.display());
        _ = writeln!(told, "  cp {}/*.service /etc/systemd/system/ && systemctl daemon-reload", dir.display());
        for machine in machines {
            let unit = unit(&plan, machine);
            if !machine.graph.is_empty() {
                write(&dir.join(format!("{}.vol", machine.name)), &machine.graph)?;
            }
            write(&dir.join(unit_name(&plan, machine)), &unit)?;
            _ = writeln!(told, "  systemctl enable --now {}", unit_name(&plan, machine));
        }
    }
    output::text(&told);
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

fn unit_name(plan: &Plan, machine: &Machine) -> String {
    format!("sluice-{}-{}.service", plan.name, machine.name)
}

fn unit(plan: &Plan, machine: &Machine) -> String {
    let mut words = machine.command(plan);
    let is_own = matches!(machine.role, Role::Coordinator { .. });
    // `make install` and packages put `sluice` in different directories, and a host may have either: systemd looks for it.
    if !is_own {
        words[0].insert_str(0, "/usr/sbin/");
    }
    let command = words.join(" ");
    let kind = if is_own {
        "Type=notify\n".to_owned()
    } else {
        format!("Type=forking\nPIDFile={}\n", plan.directory.join(format!("{}.pid", machine.name)).display())
    };
    let makes = match &machine.role {
        Role::Server { brick, .. } => format!("ExecStartPre=/bin/mkdir -p {}/data\n", brick.display()),
        Role::Client { mount, .. } => format!("ExecStartPre=/bin/mkdir -p {}\n", mount.display()),
        Role::Node { .. } | Role::Coordinator { .. } => String::new(),
    };
    // A brick may be a file system of its own: without it the root's would be served.
    let needs = match &machine.role {
        Role::Server { brick, .. } => format!("RequiresMountsFor={}\n", brick.display()),
        _ => String::new(),
    };
    let ends = match &machine.role {
        Role::Client { mount, .. } => {
            format!("ExecStop=/bin/umount {0}\nExecStopPost=-/bin/umount -l {0}\n", mount.display())
        }
        _ => String::new(),
    };
    format!(
        "[Unit]\n\
         Description=Sluicegate cluster {}: {}\n\
         After=network-online.target\n\
         Wants=network-online.target\n\
         {needs}\n\
         [Service]\n\
         {kind}\
         {makes}\
         ExecStart={command}\n\
         {ends}\
         Restart=on-failure\n\
         LimitNOFILE=1048576\n\n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        plan.name, machine.name,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinators_unit_finds_the_program_wherever_it_was_installed() {
        let config = Config::parse("name = 'a'\n[coordinator]\n[servers]\n").unwrap();
        let plan = Plan::new(&config).unwrap();
        let units: Vec<String> = plan.machines.iter().map(|machine| unit(&plan, machine)).collect();
        assert!(units[0].contains("\nExecStart=sluice coordinate --listen=127.0.0.1:24101 "), "{}", units[0]);
        assert!(units[1].contains("\nExecStart=/usr/sbin/glusterfsd "), "{}", units[1]);
    }
}
