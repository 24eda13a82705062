//! `sluice model`: what selectors have learned, and the trained models that they ask.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;
use sluice_adapt::forest::{BYTES_MAX, Forest};
use sluice_adapt::selector::{Knowledge, Model, SHIPPED_MODEL};
use sluice_notation::counted;

use crate::control::Command as Ask;
use crate::{input, output, status};

/// How trained models begin.
const TRAINED: &[u8; 25] = b"{\n\"format\": \"sluice-fores";

/// Shows, copies and merges what selectors have learned
///
/// Of files, - is standard input or output.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Shows what was learned: of each kind of workload, what each configuration gains
    ///
    /// Of a trained model: what it is for, what it is asked with, and where it comes from.
    Show {
        /// The file, a mountpoint whose selector learns, or `shipped`: the model that comes with Sluicegate; - is standard input, for
        /// what a selector has learned
        from: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Writes what a mount's selector has learned, up to now, into a file
    Export {
        /// The mountpoint, or the file that it keeps it in; - is standard input
        from: PathBuf,
        /// The file to write; - is standard output
        #[arg(short, long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Puts what several have learned together: a site's knowledge
    ///
    /// On devices of the same kind only, and of selectors that learned apart: what two files have from a common past would count
    /// twice. Files that hold the same observation are refused; a file that was made by merging another one, or two states of
    /// one mount at different times, may hold what can no longer be told apart.
    Merge {
        /// Files, or mountpoints; - is standard input
        #[arg(required = true, num_args = 2.., value_name = "FILE")]
        from: Vec<PathBuf>,
        /// The file to write; - is standard output
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
            if let Some(text) = trained(from)? {
                let forest = Forest::parse_any(&text).with_context(|| from.display().to_string())?;
                return show_trained(&forest, *json).map(|()| ExitCode::SUCCESS);
            }
            let knowledge = load(from)?;
            if *json {
                output::pretty_json(&as_json(&knowledge))?;
            } else {
                output::text(&table(&knowledge));
            }
        }
        Command::Export { from, out } => write(&load(from)?, out)?,
        Command::Merge { from, out } => {
            input::check_standard(from.iter().map(PathBuf::as_path))?;
            let mut all: Option<Knowledge> = None;
            for path in from {
                let one = load(path)?;
                match &mut all {
                    None => all = Some(one),
                    Some(all) => all.merge(&one).with_context(|| input::name(path))?,
                }
            }
            write(&all.context("nothing to merge")?, out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a model for selectors.
///
/// # Errors
/// If the file cannot be read, is damaged, of another version, or made for something else.
pub(crate) fn read(path: &Path) -> anyhow::Result<Model> {
    let shown = || format!("the model {}", path.display());
    let text = text(path).with_context(shown)?;
    Model::parse(&text, &path.display().to_string()).with_context(shown)
}

/// A file's text, unless it is longer than any model.
fn text(path: &Path) -> anyhow::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    String::from_utf8(text).map_err(|_| anyhow::anyhow!("not a model: it is no text"))
}

/// The text of a trained model; `None` if it is none.
fn trained(from: &Path) -> anyhow::Result<Option<String>> {
    if from.as_os_str() == "shipped" && !from.exists() {
        return Ok(Some(SHIPPED_MODEL.to_owned()));
    }
    if from.is_dir() {
        return Ok(None);
    }
    let mut begin = [0; TRAINED.len()];
    // A pipe is read once, by whoever reads what was learned.
    let is_file = std::fs::metadata(from).is_ok_and(|meta| meta.is_file());
    let is_trained =
        is_file && File::open(from).and_then(|mut file| file.read_exact(&mut begin)).is_ok() && begin == *TRAINED;
    is_trained.then(|| text(from).with_context(|| from.display().to_string())).transpose()
}

fn show_trained(forest: &Forest, json: bool) -> anyhow::Result<()> {
    let (about, (trees, nodes)) = (forest.about(), forest.size());
    if json {
        return output::pretty_json(&json!({
            "kind": about.kind, "features": about.features, "inputs": about.inputs, "classes": about.classes,
            "trees": trees, "nodes": nodes, "caution": forest.caution(), "trained": about.trained,
        }));
    }
    let what = match &*about.kind {
        "selection" => "what configurations are expected to give, for selectors",
        "detector" => "access patterns",
        other => other,
    };
    output::line(format_args!(
        "a trained model: {what}; {} of {}",
        counted(trees as u64, "decision tree"),
        counted(nodes as u64, "node")
    ));
    output::line(format_args!("inputs   {} (version {})", about.inputs.join(", "), about.features));
    output::line(format_args!("says of  {}", about.classes.join(", ")));
    let trained = about.trained.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let trained = trained.map(|(key, value)| match value.as_str() {
        Some(text) => format!("{key} {text}"),
        None => format!("{key} {value}"),
    });
    output::line(format_args!("trained  {}", trained.collect::<Vec<_>>().join(", ")));
    Ok(())
}

/// What is in a file, or what a mount knows by now.
fn load(from: &Path) -> anyhow::Result<Knowledge> {
    if input::is_standard(from) {
        return sluice_select::read(std::io::stdin().lock()).with_context(|| input::name(from));
    }
    if !from.is_dir() {
        return sluice_select::load(from);
    }
    let mut client = status::open(from)?;
    client.request(Ask::Keep)?;
    match client.status()?.selection.and_then(|selection| selection.state) {
        Some(path) => {
            // What is told is text.
            let of = || format!("{}: learned there, and kept in {path}", from.display());
            sluice_select::load(Path::new(&path)).with_context(of)
        }
        None => bail!("{}: what is learned there is not kept", from.display()),
    }
}

fn write(knowledge: &Knowledge, out: &Path) -> anyhow::Result<()> {
    if output::is_standard(out) {
        output::text(&knowledge.to_text());
        return Ok(());
    }
    // No directories are made for it: a path may be mistyped.
    output::check_file(out)?;
    sluice_select::export(knowledge, out)?;
    let kinds = counted(knowledge.contexts.len() as u64, "kind");
    output::line(format_args!("{}: {kinds} of workload", out.display()));
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
        // Below 0: to be earned first.
        knowledge.budget_s.max(0.0)
    );
    for (context, known) in &knowledge.contexts {
        text += &format!(
            "\n{context}: {}\n  {} in {} of about {:.0} s\n",
            context.describe(),
            counted(known.windows, "observation"),
            counted(known.stays, "stay"),
            known.stay_s
        );
        let mut arms: Vec<_> = known.arms.iter().collect();
        arms.sort_by(|a, b| b.1.gain.total_cmp(&a.1.gain));
        let best = arms.first().map_or(0.0, |(_, value)| value.gain);
        for (arm, value) in arms {
            text += &format!(
                "  {:>7.1} %  +- {:>4.1} %  {:>5.1} observations  {arm}{}\n",
                percent(value.gain - best),
                percent(2.0 * value.deviation(knowledge.clock_s)),
                value.weight,
                if known.last.as_ref() == Some(arm) { ", in use last" } else { "" }
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
                "stays": known.stays, "stay_s": known.stay_s, "last": known.last, "arms": known.arms.iter().map(arm).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "device": knowledge.device, "loaded_s": knowledge.clock_s, "budget_s": knowledge.budget_s,
        "switch_s": knowledge.switch_s, "contexts": contexts,
    })
}
