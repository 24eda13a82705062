//! `sluice model`: what selectors have learned.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;
use sluice_adapt::selector::Knowledge;

use crate::control::Command as Ask;
use crate::{output, status};

/// Shows, copies and merges what selectors have learned
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Shows what was learned: of each kind of workload, what each configuration gains
    Show {
        /// The file, or a mountpoint whose selector learns
        from: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Writes what a mount's selector has learned, up to now, into a file
    Export {
        /// The mountpoint, or the file that it keeps it in
        from: PathBuf,
        /// The file to write
        #[arg(short, long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Puts what several have learned together: a site's knowledge
    ///
    /// On devices of the same kind only.
    Merge {
        /// Files, or mountpoints
        #[arg(required = true, num_args = 2.., value_name = "FILE")]
        from: Vec<PathBuf>,
        /// The file to write
        #[arg(short, long, value_name = "FILE")]
        out: PathBuf,
    },
}

/// Does it.
///
/// # Errors
/// If something cannot be read or written, or was learned on other devices.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Show { from, json } => {
            let knowledge = load(from)?;
            if *json {
                output::pretty_json(&as_json(&knowledge))?;
            } else {
                output::text(&table(&knowledge));
            }
        }
        Command::Export { from, out } => write(&load(from)?, out)?,
        Command::Merge { from, out } => {
            let mut all: Option<Knowledge> = None;
            for path in from {
                let one = load(path)?;
                match &mut all {
                    None => all = Some(one),
                    Some(all) => all.merge(&one).with_context(|| path.display().to_string())?,
                }
            }
            write(&all.context("nothing to merge")?, out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is in a file, or what a mount knows by now.
fn load(from: &Path) -> anyhow::Result<Knowledge> {
    if !from.is_dir() {
        return sluice_select::load(from);
    }
    let mut client = status::open(from)?;
    client.request(Ask::Keep)?;
    match client.status()?.selection.and_then(|selection| selection.state) {
        Some(path) => sluice_select::load(&path),
        None => bail!("{}: what is learned there is not kept", from.display()),
    }
}

fn write(knowledge: &Knowledge, out: &Path) -> anyhow::Result<()> {
    sluice_select::save(knowledge, out)?;
    output::line(format_args!("{}: {} kinds of workload", out.display(), knowledge.contexts.len()));
    Ok(())
}

fn percent(gain: f64) -> f64 {
    (gain.exp() - 1.0) * 100.0
}

fn table(knowledge: &Knowledge) -> String {
    let mut text = format!(
        "learned on {}, from {:.0} s of load; a change costs {:.0} ms; {:.1} s may still be spent on trying\n",
        knowledge.device,
        knowledge.clock_s,
        knowledge.switch_s * 1e3,
        knowledge.budget_s
    );
    for (context, known) in &knowledge.contexts {
        text += &format!(
            "\n{context}: {}\n  {} windows in {} stays of about {:.0} s\n",
            context.describe(),
            known.windows,
            known.stays,
            known.stay_s
        );
        let mut arms: Vec<_> = known.arms.iter().collect();
        arms.sort_by(|a, b| b.1.gain.total_cmp(&a.1.gain));
        let best = arms.first().map_or(0.0, |(_, value)| value.gain);
        for (arm, value) in arms {
            text += &format!(
                "  {:>7.1} %  +- {:>4.1} %  {:>5.1} windows  {arm}\n",
                percent(value.gain - best),
                percent(2.0 * value.deviation(knowledge.clock_s)),
                value.weight
            );
        }
    }
    text
}

fn as_json(knowledge: &Knowledge) -> serde_json::Value {
    let contexts: Vec<_> = knowledge
        .contexts
        .iter()
        .map(|(context, known)| {
            let best = known.best().map_or(0.0, |(_, value)| value.gain);
            let arm = |(name, value): (&String, &sluice_adapt::selector::Value)| {
                json!({
                    "arm": name, "gain_percent": percent(value.gain - best), "windows": value.weight,
                    "uncertainty_percent": percent(2.0 * value.deviation(knowledge.clock_s)), "seen_s": value.seen_s,
                })
            };
            json!({
                "context": context.to_string(), "workload": context.describe(), "windows": known.windows,
                "stays": known.stays, "stay_s": known.stay_s, "arms": known.arms.iter().map(arm).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "device": knowledge.device, "loaded_s": knowledge.clock_s, "budget_s": knowledge.budget_s,
        "switch_s": knowledge.switch_s, "contexts": contexts,
    })
}
