//! The emulated devices of data servers: `sluice disk`, once for each.

use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use sluice_cluster::{Config, Plan, Role, running};

use crate::output;

fn name(config: &Config, n: usize) -> String {
    format!("{}-server-{n}", config.name)
}

fn sluice(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("/proc/self/exe")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .context("starting this program anew")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    ensure!(output.status.success(), "sluice {}: {}", args.join(" "), said.strip_prefix("sluice: ").unwrap_or(said));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Those that are there and whole.
fn ready() -> anyhow::Result<Vec<(String, bool)>> {
    let rows: serde_json::Value = serde_json::from_str(&sluice(&["disk", "list", "--json"])?)?;
    let row = |row: &serde_json::Value| Some((row["name"].as_str()?.to_owned(), row["state"] == "ready"));
    Ok(rows.as_array().map(|rows| rows.iter().filter_map(row).collect()).unwrap_or_default())
}

/// Makes those that are not there.
///
/// # Errors
/// If one cannot be made, or is broken.
pub(super) fn create(config: &Config, plan: &Plan) -> anyhow::Result<()> {
    let Some(emulate) = &config.servers.emulate else { return Ok(()) };
    let there = ready()?;
    let bricks = plan.machines.iter().filter_map(|machine| match &machine.role {
        Role::Server { brick, .. } => Some((machine, brick)),
        _ => None,
    });
    for (n, (machine, brick)) in bricks.enumerate() {
        let name = name(config, n);
        match there.iter().find(|(known, _)| *known == name) {
            // Else data would be written beside it.
            Some((_, true)) if running::mounted(brick).is_none() => {
                anyhow::bail!(
                    "{}: nothing is mounted there; mount the file system of the disk {name} first",
                    brick.display()
                )
            }
            Some((_, true)) => continue,
            Some((_, false)) => {
                sluice(&["disk", "up", &name])
                    .with_context(|| format!("the disk {name} is broken; end what uses it with sluice cluster down"))?;
                output::say(format_args!("{name:<12} is back, with what is on it"));
                continue;
            }
            None => {}
        }
        std::fs::create_dir_all(brick).with_context(|| brick.display().to_string())?;
        let brick = brick.to_str().context("the brick's name")?;
        let scheduler = emulate.scheduler.as_deref().unwrap_or("none");
        let seed = (n + 1).to_string();
        let mut words = vec![
            "disk",
            "create",
            &name,
            "--model",
            &emulate.model,
            "--size",
            &emulate.size,
            "--scheduler",
            scheduler,
            "--mkfs",
            "ext4",
            "--mount",
            brick,
            "--seed",
            &seed,
        ];
        if let Some(tier) = &emulate.tier {
            words.extend(["--tier", tier.to_str().context("the name of servers.emulate.tier")?]);
        }
        if let Some(size) = &emulate.tier_size {
            words.extend(["--tier-size", size]);
        }
        words.extend(emulate.tier_set.iter().flat_map(|text| ["--tier-set", text]));
        // What is made is empty.
        _ = std::fs::remove_file(machine.brick_note(plan));
        sluice(&words)?;
        let with = emulate.tier.as_ref().map_or_else(String::new, |tier| format!(" with a tier in {}", tier.display()));
        output::say(format_args!("{name:<12} emulated {}{with} on {brick}", emulate.model));
    }
    Ok(())
}

/// Removes them, with what is on them; by `force` even those that are in use.
///
/// # Errors
/// If one cannot be removed, after the others have been.
pub(super) fn remove(config: &Config, force: bool) -> anyhow::Result<()> {
    let mut failed = Ok(());
    for (name, _) in ready()?.into_iter().filter(|(name, _)| is_of(&config.name, name)) {
        let words: &[&str] = if force { &["disk", "remove", "--force", &name] } else { &["disk", "remove", &name] };
        match sluice(words) {
            Ok(_) => output::say(format_args!("{name:<12} removed")),
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    failed
}

/// Whether a disk is of a server of this cluster, also of one that its file no longer has.
fn is_of(cluster: &str, disk: &str) -> bool {
    let number = disk.strip_prefix(cluster).and_then(|rest| rest.strip_prefix("-server-"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::is_of;

    #[test]
    fn disks_of_servers_that_are_no_more_are_the_clusters_too() {
        assert!(is_of("a", "a-server-0") && is_of("a", "a-server-31") && is_of("a-server-1", "a-server-1-server-0"));
        for other in ["a-server-", "a-server-x", "a-server-1-server-0", "ab-server-0", "a"] {
            assert!(!is_of("a", other), "{other}");
        }
    }
}
