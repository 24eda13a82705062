//! `sluice simulate`: experiments in virtual time, with the engine of production.

mod chaos;
mod files;
mod table;

use crate::input;
use crate::output::{self, Usage, Versioned};
use anyhow::{Context, bail};
use serde::Serialize;
use sluice_sim::scenario::{Only, Plan, Setting, keys};
use sluice_sim::{Estimate, Failure, Label, Outcome, Sweep, improvements, labels, sweep};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

/// With no more simulations than this, details are recorded without being asked for.
const RECORDED_MAX: usize = 64;

/// Each has a thread.
const JOBS_MAX: usize = 4096;

/// Simulates whole parallel I/O systems in virtual time, with the real engine inside
///
/// A scenario file describes machines, algorithms and programs, and what varies; each combination is a run. The same file
/// and seed give the same digest everywhere.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Scenario files, or directories of them; - is standard input
    #[arg(value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Replace a value of the scenario: servers.policy=sjf, application.processes=64; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = crate::config::key_value)]
    set: Vec<Setting>,
    /// Only these values of an axis: pattern=strided,random; may be given several times
    #[arg(long, value_name = "AXIS=VALUE,...", value_parser = only)]
    only: Vec<Only>,
    /// Simulate each run with so many seeds; results then have confidence intervals
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    /// Simulations at a time [default: one for each core]
    #[arg(long, value_name = "N", value_parser = jobs)]
    jobs: Option<NonZeroUsize>,
    /// Write results to this directory: runs.csv, apps.csv, results.json for `sluice report`, and where something is compared
    /// labels.csv: which is the best in each situation [default: none]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON: a list of objects, with --chaos one object
    #[arg(long)]
    json: bool,
    /// Record time lines and request paths for the report, however many runs there are
    #[arg(long)]
    record: bool,
    /// Write the features of every window of every engine, too: windows.csv
    #[arg(long, requires = "out")]
    windows: bool,
    /// Do not simulate each application alone, too (for slow-downs)
    #[arg(long)]
    no_alone: bool,
    /// Show every key that a scenario may have
    #[arg(long, conflicts_with_all = ["paths", "set", "only", "seeds", "jobs", "out", "json", "record", "no_alone", "chaos", "seed"])]
    keys: bool,
    /// Random experiments in which everything goes wrong, every step checked: --seeds of them, from --seed on
    #[arg(long, conflicts_with_all = ["paths", "set", "only", "out"])]
    chaos: bool,
    /// The first seed [default: the scenario's own; of --chaos 1]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

fn jobs(text: &str) -> Result<NonZeroUsize, String> {
    let good = text.parse().ok().filter(|jobs: &NonZeroUsize| jobs.get() <= JOBS_MAX);
    good.ok_or_else(|| format!("expected a number from 1 to {JOBS_MAX}"))
}

fn only(text: &str) -> Result<Only, String> {
    let (axis, values) = text.split_once('=').ok_or_else(|| format!("{text:?} is not AXIS=VALUE,..."))?;
    Ok((axis.trim().to_owned(), values.split(',').map(|value| value.trim().to_owned()).collect()))
}

/// A run with what its seeds say together.
#[derive(Serialize)]
pub(crate) struct Row {
    /// Values of the axes.
    pub(crate) values: Vec<String>,
    pub(crate) scale: String,
    pub(crate) makespan_s: Estimate,
    pub(crate) throughput_mb_s: Estimate,
    /// How much less time than the baseline; 0.25 is a quarter less.
    pub(crate) improvement: Option<Estimate>,
    pub(crate) jain: Estimate,
    pub(crate) slow_down_max: Option<Estimate>,
    pub(crate) aggregation: Estimate,
    pub(crate) busy_share: Estimate,
    pub(crate) seek_share: Estimate,
    pub(crate) outcomes: Vec<Outcome>,
}

/// An experiment with its results.
#[derive(Serialize)]
pub(crate) struct Results {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) source: String,
    pub(crate) axes: Vec<(String, Vec<String>)>,
    /// The compared axis and its baseline.
    pub(crate) compare: Option<(String, String)>,
    pub(crate) seeds: u32,
    pub(crate) rows: Vec<Row>,
    /// What can be said of each situation, in the order of the baseline's rows.
    pub(crate) labels: Vec<Label>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.keys {
        return Ok(print_keys());
    }
    let stop = crate::interrupt::flag()?;
    if args.chaos {
        return chaos::run(args.seed.unwrap_or(1), args.seeds.into(), args.jobs, args.json, &stop);
    }
    let files = scenario_files(&args.paths)?;
    if let Some(dir) = args.out.as_deref().filter(|dir| dir.exists() && !dir.is_dir()) {
        bail!("--out: {} is not a directory", dir.display());
    }
    let mut set = args.set.clone();
    set.extend(args.seed.map(|seed| ("seed".to_owned(), seed.to_string())));
    let plans = files.iter().map(|file| load(file, &set, &args.only)).collect::<anyhow::Result<Vec<_>>>()?;
    if args.out.is_some() && plans.len() > 1 {
        expect_directories(plans.iter().map(|plan| plan.name.as_str()))?;
    }
    let mut all = Vec::new();
    for plan in &plans {
        match simulate(plan, &args, &stop)? {
            Some(results) => all.push(results),
            None => {
                output::tell("interrupted; nothing was written");
                return Ok(ExitCode::from(130));
            }
        }
    }
    if let Some(dir) = &args.out {
        for results in &all {
            let dir = if all.len() == 1 { dir.clone() } else { dir.join(&results.name) };
            files::write(&dir, results).with_context(|| format!("cannot write results to {}", dir.display()))?;
        }
    }
    let has_windows =
        |results: &Results| results.rows.iter().flat_map(|row| &row.outcomes).any(|o| !o.windows.is_empty());
    if args.windows && !all.iter().any(has_windows) {
        output::tell(
            "no windows.csv: no window of an engine ended; `servers.window` and `io_nodes.window` are their lengths",
        );
    }
    if args.json {
        let all: Vec<_> = all.iter().map(Versioned::new).collect();
        output::line(serde_json::to_string_pretty(&all)?);
    } else {
        for results in &all {
            output::text(&table::show(results));
        }
        if let Some(dir) = &args.out {
            let simulations: usize = all.iter().map(|results| results.rows.len() * results.seeds as usize).sum();
            let lines = if args.record || simulations <= RECORDED_MAX { "" } else { " (without time lines: --record)" };
            output::say(format!("results: {}; see them with `sluice report {0}`{lines}", dir.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Each scenario of several has a directory of its name.
///
/// # Errors
/// If two have the same, or one is none of a directory.
fn expect_directories<'a>(names: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if name.contains('/') || ["", ".", ".."].contains(&name) {
            bail!(
                "--out: results of the scenario {name:?} would be in a directory of that name, which it cannot be; change its `name`"
            );
        }
        if !seen.insert(name) {
            bail!(
                "--out: two scenarios are called {name:?}: one's results would replace the other's; change a `name`, or write them apart"
            );
        }
    }
    Ok(())
}

fn print_keys() -> ExitCode {
    for key in keys() {
        output::line(format!("{:<34} {}\n{:<34}   {}", key.path, key.value, "", key.help));
    }
    ExitCode::SUCCESS
}

fn scenario_files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    if paths.is_empty() {
        bail!(Usage("name a scenario file or a directory of them, like scenarios/quick.toml".to_owned()));
    }
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut here = in_directory(path).with_context(|| format!("cannot read {}", path.display()))?;
        if here.is_empty() {
            bail!("{}: there is no scenario (*.toml) in this directory", path.display());
        }
        here.sort();
        files.extend(here);
    }
    Ok(files)
}

fn in_directory(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "toml") {
            files.push(file);
        }
    }
    Ok(files)
}

/// Of standard input, files that the scenario names count from the current directory.
fn load(file: &Path, set: &[Setting], only: &[Only]) -> anyhow::Result<Plan> {
    if file != "-" {
        return Ok(Plan::load(file, set, only)?);
    }
    let text = input::text(file).context("standard input cannot be read")?;
    let plan = Plan::parse(&text, "scenario", Path::new(""), set, only);
    Ok(plan.map_err(|error| error.in_file(input::name(file)))?)
}

/// All runs of a plan; `None` if interrupted.
fn simulate(plan: &Plan, args: &Args, stop: &AtomicBool) -> anyhow::Result<Option<Results>> {
    let total = plan.runs.len() * args.seeds as usize;
    let progress = output::bar(total as u64, "{msg} {bar:40} {pos}/{len} simulations, {elapsed}, {eta} left");
    progress.set_message(plan.name.clone());
    let record = args.record || total <= RECORDED_MAX;
    let how = Sweep { seeds: args.seeds, jobs: args.jobs, record, alone: !args.no_alone, windows: args.windows };
    let course = output::Course::new();
    let outcomes = sweep(plan, how, stop, |done| {
        progress.set_position(done as u64);
        course.is_at(|| format!("{}: {done} of {total} simulations", plan.name));
    });
    progress.finish_and_clear();
    match outcomes {
        Ok(outcomes) => Ok(Some(results(plan, outcomes, args.seeds))),
        Err(error) if error.failure == Failure::Interrupted => Ok(None),
        Err(error) => {
            let run = &plan.runs[error.run];
            let named =
                plan.axes.iter().zip(&run.place).map(|(axis, &at)| format!("{}={}", axis.name, axis.values[at]));
            let place: Vec<String> = named.collect();
            bail!("{}, {}, seed {}: {}", plan.name, place.join(", "), error.seed, error.failure)
        }
    }
}

fn results(plan: &Plan, outcomes: Vec<Vec<Outcome>>, seeds: u32) -> Results {
    let improvements = improvements(plan, &outcomes);
    let labels = labels(plan, &outcomes);
    let rows = plan.runs.iter().zip(outcomes).zip(improvements).map(|((run, outcomes), improvement)| {
        let of = |value: fn(&Outcome) -> f64| Estimate::of(&outcomes.iter().map(value).collect::<Vec<_>>());
        let slow: Option<Vec<f64>> = outcomes.iter().map(Outcome::slow_down_max).collect();
        Row {
            values: plan.axes.iter().zip(&run.place).map(|(axis, &at)| axis.values[at].clone()).collect(),
            scale: run.scenario.scale.to_string(),
            makespan_s: of(|outcome| outcome.makespan_ns as f64 * 1e-9),
            throughput_mb_s: of(|outcome| outcome.throughput() * 1e-6),
            improvement,
            jain: of(Outcome::jain),
            slow_down_max: slow.map(|slow| Estimate::of(&slow)),
            aggregation: of(|outcome| outcome.servers.aggregation),
            busy_share: of(Outcome::busy_share),
            seek_share: of(|outcome| outcome.device.seek_share()),
            outcomes,
        }
    });
    Results {
        name: plan.name.clone(),
        title: plan.title.clone(),
        source: plan.source.clone(),
        axes: plan.axes.iter().map(|axis| (axis.name.clone(), axis.values.clone())).collect(),
        compare: plan.compare.map(|(axis, base)| {
            let axis = &plan.axes[axis];
            (axis.name.clone(), axis.values[base].clone())
        }),
        seeds,
        labels,
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_of_one_directory_are_refused() {
        let said =
            |names: &[&'static str]| expect_directories(names.iter().copied()).map_err(|error| error.to_string());
        assert_eq!(said(&["a", "b"]), Ok(()));
        assert!(said(&["a", "b", "a"]).unwrap_err().contains("two scenarios are called \"a\""));
        for wrong in ["../a", "a/b", "", ".."] {
            assert!(said(&[wrong]).unwrap_err().contains("cannot be"), "{wrong}");
        }
    }

    #[test]
    fn jobs_are_told_their_range() {
        assert_eq!(jobs("2").map(NonZeroUsize::get), Ok(2));
        for wrong in ["0", "4097", "two"] {
            assert_eq!(jobs(wrong), Err("expected a number from 1 to 4096".to_owned()), "{wrong}");
        }
    }
}
