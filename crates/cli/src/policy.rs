//! `sluice policy`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;
use sluice_core::policy::{Kind, ParamInfo, PolicyInfo, table};

use crate::config::{self, ADAPTIVE};
use crate::control::{Client, Command};
use crate::output::{self, Usage};
use crate::{status, suggest};

/// Changes the algorithm of a mount while it is in use, or explains the algorithms
///
/// Without arguments: the table of algorithms. With a mountpoint: its algorithm. With a name too: the algorithm from now
/// on, for waiting requests as well; parameters that are not given get their defaults. Where a selector chooses, as on a
/// mount that names no algorithm, it chooses no more then, until the name `adaptive` is given.
#[derive(clap::Args)]
#[command(override_usage = "sluice policy [--list]\n       sluice policy MOUNTPOINT [NAME [KEY=VALUE]...]")]
pub(crate) struct Args {
    /// Where it is mounted
    mountpoint: Option<PathBuf>,
    /// The algorithm to change to, or `adaptive`
    #[arg(value_parser = suggest::policies().and(ADAPTIVE))]
    name: Option<String>,
    /// Its parameters
    #[arg(value_name = "KEY=VALUE", value_parser = config::key_value)]
    params: Vec<(String, String)>,
    /// Explain the algorithms and their parameters
    #[arg(short, long)]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists algorithms, shows a mount's, or changes it.
///
/// # Errors
/// If nobody serves the mount, or the algorithm or a parameter is refused.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(mountpoint) = args.mountpoint.as_ref().filter(|_| !args.list) else {
        if args.mountpoint.is_some() {
            bail!(Usage("--list explains all algorithms; to see or change a mount's leave it out".to_owned()));
        }
        output::text(&if args.json { list_json() } else { list() });
        return Ok(ExitCode::SUCCESS);
    };
    // Before anybody is asked.
    if args.name.as_deref() == Some(ADAPTIVE) && !args.params.is_empty() {
        bail!(config::ADAPTIVE_HAS_NONE);
    }
    let mut client = status::open(mountpoint)?;
    if let Some(name) = args.name {
        if name == ADAPTIVE {
            client.request(Command::Adapt)?;
        } else {
            client.request(Command::SetPolicy { name, params: args.params })?;
        }
    }
    show(&mut client, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn show(client: &mut Client, json: bool) -> anyhow::Result<()> {
    let status = client.status()?;
    if json {
        return output::json(&status.policy);
    }
    let params: String = status.policy.params.iter().map(|(key, value)| format!(" {key}={value}")).collect();
    output::line(format_args!("{}: {}{params}", status.mountpoint, status.policy.name));
    if let Some(selection) = &status.selection {
        let who = selection.explanation.selector;
        let says = if selection.paused { "was set by hand" } else { "was chosen" };
        output::line(format_args!(
            "The algorithm {says}; selector {who}. See: sluice status --explain {}",
            status.mountpoint
        ));
    }
    for note in &status.notes {
        output::line(format_args!("Note: {note}"));
    }
    Ok(())
}

fn list() -> String {
    let mut text =
        String::from("Algorithms (sluice mount --policy NAME, sluice policy MOUNTPOINT NAME KEY=VALUE...)\n");
    for info in table() {
        text += &format!("\n{:<7} {}\n        ", info.name, info.summary);
        text += &traits(info).join(", ");
        text += &format!("; {}\n", info.source);
        let shown = |param: &ParamInfo| format!("{}={}", param.key, param.show_default());
        let wide = info.params.iter().map(|param| shown(param).len()).max().unwrap_or(0);
        for param in info.params {
            let (least, most) = param.range();
            text += &format!("        {:<wide$} {}\n", shown(param), param.help);
            text += &format!("        {:<wide$} {}, {least} to {most}\n", "", kind(param));
        }
    }
    text += "\nFor mounts that name none it is chosen while they are in use (docs/selection.md).\n";
    text
}

fn traits(info: &PolicyInfo) -> Vec<&'static str> {
    let may_aggregate = info.params.iter().any(|param| param.key == "aggregate");
    let mut traits = vec![match info.aggregates {
        true => "aggregates contiguous requests",
        false if may_aggregate => "aggregates contiguous requests if asked to (optional)",
        false => "does not aggregate",
    }];
    for (has, text) in [
        (info.waits, "may wait for better requests"),
        (info.bypasses_queue, "keeps no queue"),
        (info.shared_engine, "coordinates targets"),
    ] {
        if has {
            traits.push(text);
        }
    }
    traits
}

fn kind(param: &ParamInfo) -> &'static str {
    match param.kind {
        Kind::Bytes => "bytes",
        Kind::Duration => "duration",
        Kind::Bool => "switch",
        Kind::Count => "number",
        Kind::PerApp => "number for all applications, or with KEY.NUMBER for one",
    }
}

fn list_json() -> String {
    let param = |param: &ParamInfo| {
        let (min, max) = param.range();
        json!({
            "key": param.key, "kind": kind(param), "default": param.show_default(), "min": min, "max": max,
            "help": param.help,
        })
    };
    let row = |info: &&PolicyInfo| {
        json!({
            "name": info.name, "summary": info.summary, "source": info.source, "aggregates": info.aggregates,
            "waits": info.waits, "bypasses_queue": info.bypasses_queue, "shared_engine": info.shared_engine,
            "params": info.params.iter().map(param).collect::<Vec<_>>(),
        })
    };
    let rows: Vec<_> = table().iter().map(row).collect();
    format!("{:#}\n", json!({ "schema": output::SCHEMA, "default": ADAPTIVE, "algorithms": rows }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_aggregates_by_a_parameter_is_told_as_such() {
        let first = |name: &str| traits(table().iter().find(|info| info.name == name).unwrap())[0];
        assert!(first("wfq").contains("optional"));
        assert_eq!((first("noop"), first("hbrr")), ("does not aggregate", "aggregates contiguous requests"));
    }
}
