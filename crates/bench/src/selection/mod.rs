//! `sluice-bench selection`: how good the model is that selectors ask.

mod cases;
mod data;
mod judge;
mod models;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sluice_cli::output;
use sluice_notation::counted;

use crate::bed::Runner;
use cases::Set;
use data::Case;
use judge::{Choices, Judged, Loss, Score, TREES};
use models::Models;

const BAR_MEAN: f64 = 0.01;
const BAR_WORST: f64 = 0.05;
const BAR_NOOP: f64 = 0.02;
/// Losses that are shown.
const SHOWN: usize = 12;

/// Judges the model that selectors ask, on simulated systems: what is lost by its choices against the best arm of each case.
///
/// Every case is simulated with every arm and four seeds. A difference that is not significant (paired t-tests of the logarithms of
/// the makespans, Holm's correction, 5 %) is a tie, and no regret. Numbers of processes, and mixes of programs of which one reads and
/// one writes, are none that the models were trained with; sizes of requests and parameters of firmware are drawn anew, from the same
/// ranges. Each platform is judged by a model that was trained without it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Cases; one half of them was looked at while the model was made
    #[arg(long, default_value_t = 320, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    cases: u64,
    /// Which half is judged
    #[arg(long, value_enum, default_value = "final")]
    half: Half,
    /// Simulations at a time [default: one for each core]
    #[arg(long)]
    jobs: Option<std::num::NonZeroUsize>,
    /// Judge by the cases in this file instead of simulating
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// A directory with models other than those built in
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Simulate cases and add those that the file does not have yet, instead of judging
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Which cases are simulated for --export
    #[arg(long, value_enum, default_value = "train")]
    set: Set,
    /// Print what --model says of each window of a file's cases, in order: the mean of its trees for each arm, and what a selector is
    /// told of each
    #[arg(long, value_name = "FILE", requires = "model")]
    classify: Option<PathBuf>,
    /// With --classify: what the trees say of each case, instead
    #[arg(long, requires = "classify")]
    trees: bool,
    /// The model for --classify
    #[arg(long, value_name = "FILE", requires = "classify")]
    model: Option<PathBuf>,
}

/// Which of the cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Half {
    /// Those that were never looked at.
    Final,
    /// Those by which the model was tuned.
    Tuning,
}

impl Half {
    /// Platforms alternate from case to case.
    fn has(self, case: u64) -> bool {
        (case / 8 % 2 == 1) == (self == Half::Final)
    }
}

#[derive(Serialize)]
struct Platform {
    name: String,
    /// By a model that was trained without it, if there is one.
    #[serde(flatten, serialize_with = "judge::or_nulls")]
    score: Option<Score>,
    /// By the shipped one.
    known: Option<Score>,
    t3: Option<Score>,
    best_fixed: String,
    best_fixed_mean_regret: f64,
}

#[derive(Serialize)]
struct Row {
    name: String,
    #[serde(flatten, serialize_with = "judge::or_nulls")]
    score: Option<Score>,
    /// Cases in which what was chosen was not measured: they are in no score.
    unmeasured: usize,
}

#[derive(Serialize)]
struct Report {
    platforms: Vec<Platform>,
    fixed: std::collections::BTreeMap<String, Option<Score>>,
    vs_noop_worst: Option<f64>,
    /// All who chose.
    policies: Vec<Row>,
    cases: usize,
    half: String,
    simulated_cpu_s: f64,
    /// Arms in force one after the other, on average, of who tries what the model says.
    arms_tried: Option<f64>,
    losses: Vec<Loss>,
    misses: Vec<String>,
}

const OURS: &str = "ours";
const KNOWN: &str = "ours, platform known";
const TRYING: &str = "ours, with trials";
/// Who has measured every arm, and takes the one with most work: per busy second, as selectors do, or per second.
const MEASURED: [(&str, bool); 2] = [("measured, per busy second", true), ("measured, per second", false)];
const ORACLE: &str = "oracle";

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let (Some(data), Some(model)) = (&args.classify, &args.model) {
        return classify(data, model, args.trees);
    }
    let jobs = args.jobs.or_else(|| std::thread::available_parallelism().ok()).map_or(1, usize::from);
    let progress = ProgressBar::new(args.cases);
    progress.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} cases, {eta} left")?);
    let Runner { stop } = Runner::new()?;
    if let Some(path) = &args.export {
        data::export(args.set, jobs, (0..args.cases).collect(), path, &stop, &|| progress.inc(1))?;
        progress.finish_and_clear();
        return Ok(ExitCode::SUCCESS);
    }
    let models = Models::load(args.models.as_deref())?;
    let all = match &args.data {
        Some(path) => data::read_unseen(path)?,
        None => {
            let dir = tempfile::tempdir()?;
            let path = dir.path().join("cases");
            let wanted: Vec<u64> = (0..args.cases).filter(|case| args.half.has(*case)).collect();
            progress.set_length(wanted.len() as u64);
            // Interrupted, it fails, and the directory goes with it.
            data::export(Set::HeldOut, jobs, wanted, &path, &stop, &|| progress.inc(1))?;
            progress.finish_and_clear();
            data::read(&path)?
        }
    };
    let cases: Vec<Case> = all.into_iter().filter(|case| case.case < args.cases && args.half.has(case.case)).collect();
    anyhow::ensure!(
        !cases.is_empty(),
        "none of so few cases is of this half: --cases 16 has 8 of each, --half says which"
    );
    let report = judged(&cases, &models, args.half)?;
    if args.json {
        output::pretty_json(&report)?;
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn classify(data: &Path, model: &Path, trees: bool) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(model).with_context(|| model.display().to_string())?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut write = |values: &[f64]| -> std::io::Result<()> {
        writeln!(out, "{}", values.iter().map(f64::to_string).collect::<Vec<_>>().join(","))
    };
    if trees {
        let trees = models::thesis(&text).with_context(|| model.display().to_string())?;
        for case in data::read(data)? {
            (0..trees.size().0).try_for_each(|tree| write(trees.leaf(tree, &case.thesis)))?;
        }
    } else {
        let model = models::ours(&text).with_context(|| model.display().to_string())?;
        for window in data::read(data)?.iter().flat_map(|case| case.arms.values()).flat_map(|arm| &arm.windows) {
            let mut values = vec![0.0; model.arms().len()];
            model.forest().votes(window, &mut values);
            values.extend(model.values(window).unwrap_or_default());
            write(&values)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn judged(cases: &[Case], models: &Models, half: Half) -> anyhow::Result<Report> {
    let (mut choices, mut tried) = (Choices::default(), Vec::new());
    let mut names: Vec<&str> = cases.iter().map(|case| case.platform.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let arms: std::collections::BTreeSet<&String> = cases.iter().flat_map(|case| case.arms.keys()).collect();
    for (number, case) in cases.iter().enumerate() {
        let judged = Judged::new(case);
        for arm in &arms {
            choices.add(arm, number, judged.worth(arm));
        }
        for (name, per_busy) in MEASURED {
            let chosen = judged.by_measuring(per_busy).unwrap_or_else(|| "noop".to_owned());
            choices.add(name, number, judged.worth(&chosen));
        }
        choices.add(ORACLE, number, judged.worth(judged.fastest()));
        let chosen = judged.by_model(&models.shipped);
        choices.add(KNOWN, number, judged.worth(&chosen));
        let (without, trees) = models.without(&case.platform);
        if let Some(model) = without {
            let chosen = judged.by_model(model);
            let worth = judged.worth(&chosen);
            choices.add(OURS, number, worth);
            worth.iter().for_each(|worth| choices.lose(&judged, &chosen, worth));
            let (chosen, count) = judged.by_trying(model);
            choices.add(TRYING, number, judged.worth(&chosen));
            tried.push(count as f64);
        }
        if let Some(trees) = trees.filter(|_| !case.thesis.is_empty()) {
            for (tree, name) in TREES.iter().enumerate() {
                choices.add(name, number, judged.by_tree(trees, tree).and_then(|arm| judged.worth(&arm)));
            }
        }
    }
    anyhow::ensure!(
        [OURS, KNOWN].iter().any(|who| choices.score(who, |_| true).is_some()),
        "nothing to judge: in none of {} was the arm measured that a model chose, and no model was made without {}",
        counted(cases.len() as u64, "case"),
        names.join(", ")
    );
    choices.losses.sort_by(|a, b| (b.regret + b.vs_noop).total_cmp(&(a.regret + a.vs_noop)));
    let fixed: std::collections::BTreeMap<String, Option<Score>> =
        arms.iter().map(|arm| ((*arm).clone(), choices.score(arm, |_| true))).collect();
    let platforms: Vec<Platform> = names
        .iter()
        .map(|name| {
            let of = |who: &str| choices.score(who, |number| cases[number].platform == *name);
            let best = arms.iter().filter_map(|arm| Some((*arm, of(arm)?)));
            let best = best.min_by(|a, b| a.1.mean_regret.total_cmp(&b.1.mean_regret));
            let (best_fixed, score) =
                best.map_or((String::new(), 0.0), |(arm, score)| (arm.clone(), score.mean_regret));
            Platform {
                name: (*name).to_owned(),
                score: of(OURS),
                known: of(KNOWN),
                t3: of("T3"),
                best_fixed,
                best_fixed_mean_regret: score,
            }
        })
        .collect();
    let row = |name: &String| Row {
        name: name.clone(),
        score: choices.score(name, |_| true),
        unmeasured: choices.unmeasured(name),
    };
    let mut policies: Vec<Row> = choices.names().map(row).collect();
    let regret = |row: &Row| row.score.as_ref().map_or(f64::INFINITY, |score| score.mean_regret);
    policies.sort_by(|a, b| regret(a).total_cmp(&regret(b)));
    let ours = choices.score(OURS, |_| true);
    let misses = misses(&platforms, &policies);
    Ok(Report {
        platforms,
        fixed,
        vs_noop_worst: ours.map(|ours| ours.vs_noop_worst),
        policies,
        cases: cases.len(),
        half: format!("{half:?}").to_lowercase(),
        simulated_cpu_s: cases.iter().map(|case| case.cpu_s).sum(),
        arms_tried: (!tried.is_empty()).then(|| tried.iter().sum::<f64>() / tried.len() as f64),
        losses: choices.losses,
        misses,
    })
}

fn misses(platforms: &[Platform], policies: &[Row]) -> Vec<String> {
    let mut misses = Vec::new();
    let mut check = |who: &str, score: &Option<Score>| {
        let Some(score) = score else { return };
        if score.mean_regret > BAR_MEAN {
            misses.push(format!("{who}: mean regret {}, bar {}", percent(score.mean_regret), percent(BAR_MEAN)));
        }
        if score.worst_regret > BAR_WORST {
            let share = percent(score.above_bar);
            let (worst, bar) = (percent(score.worst_regret), percent(BAR_WORST));
            misses.push(format!("{who}: worst regret {worst}, bar {bar}; {share} of the cases are above it"));
        }
        if score.vs_noop_worst > BAR_NOOP {
            let share = percent(score.vs_noop_above_bar);
            let (worst, bar) = (percent(score.vs_noop_worst), percent(BAR_NOOP));
            misses.push(format!("{who}: {worst} slower than noop, bar {bar}; {share} of the cases are above it"));
        }
    };
    platforms.iter().for_each(|platform| check(&format!("{} (left out)", platform.name), &platform.score));
    policies.iter().filter(|row| [OURS, KNOWN].contains(&&*row.name)).for_each(|row| check(&row.name, &row.score));
    misses
}

fn print(report: &Report) {
    output::line(format_args!(
        "simulated systems, {} ({} half), {:.0} minutes of processor time\n",
        counted(report.cases as u64, "case"),
        report.half,
        report.simulated_cpu_s / 60.0
    ));
    output::line(format_args!(
        "losses of the model that has never seen the platform (more than {} of the best, or {} of noop): {}",
        percent(BAR_WORST),
        percent(BAR_NOOP),
        if report.arms_tried.is_some() { report.losses.len().to_string() } else { "-".to_owned() }
    ));
    for loss in report.losses.iter().take(SHOWN) {
        output::line(format_args!(
            "  {:>5} against {}, {:>5} against noop: {} on {} (case {}): {}",
            percent(loss.regret),
            loss.best,
            percent(loss.vs_noop),
            loss.chosen,
            loss.platform,
            loss.case,
            loss.what
        ));
    }
    output::line(format_args!(
        "\n{:<26}{:>6}{:>9}{:>10}{:>18}{:>8}{:>8}{:>9}{:>8}{:>10}",
        "", "cases", "right", "regret", "95 %", "worst", "> 5 %", "of noop", "worst", "all"
    ));
    for Row { name, score, .. } in &report.policies {
        let Some(score) = score else {
            let none = "-";
            output::line(format_args!(
                "{name:<26}{:>6}{none:>9}{none:>10}{none:>18}{none:>8}{none:>8}{none:>9}{none:>8}{none:>10}",
                0
            ));
            continue;
        };
        let [low, high] = score.mean_regret_interval;
        output::line(format_args!(
            "{name:<26}{:>6}{:>9}{:>10}{:>18}{:>8}{:>8}{:>9.2}{:>8}{:>10}",
            score.cases,
            percent(score.accuracy),
            percent(score.mean_regret),
            format!("{} to {}", percent(low), percent(high)),
            percent(score.worst_regret),
            percent(score.above_bar),
            score.over_noop,
            percent(score.vs_noop_worst),
            percent(score.mean_regret_all)
        ));
    }
    if let Some(count) = report.arms_tried {
        output::line(format_args!("\n{TRYING}: {count:.1} arms in force, one after the other, on average"));
    }
    for Row { name, unmeasured, .. } in report.policies.iter().filter(|row| row.unmeasured > 0) {
        let cases = counted(*unmeasured as u64, "case");
        output::line(format_args!("{name}: {cases} not judged, as what was chosen was not measured"));
    }
    output::line(
        "\nright: not significantly slower than the fastest; regret: mean share of the fastest arm's throughput that is lost, \
         differences that are not significant are none (all: with them); of noop: geometric mean of throughputs, and the worst\n",
    );
    output::line(format_args!(
        "{:<12}{:>6}{:>24}{:>24}{:>12}  best fixed",
        "platform", "cases", "left out: mean, worst", "known: mean, worst", "T3: mean"
    ));
    for platform in &report.platforms {
        let both = |score: &Option<Score>| match score {
            Some(score) => format!("{}, {}", percent(score.mean_regret), percent(score.worst_regret)),
            None => "-".to_owned(),
        };
        output::line(format_args!(
            "{:<12}{:>6}{:>24}{:>24}{:>12}  {} {}",
            platform.name,
            platform.score.as_ref().map_or(0, |score| score.cases),
            both(&platform.score),
            both(&platform.known),
            platform.t3.as_ref().map_or("-".to_owned(), |score| percent(score.mean_regret)),
            platform.best_fixed,
            percent(platform.best_fixed_mean_regret)
        ));
    }
    output::line(format_args!(
        "\nbars: mean regret {}, worst {}, against noop {}",
        percent(BAR_MEAN),
        percent(BAR_WORST),
        percent(BAR_NOOP)
    ));
    report.misses.iter().for_each(|miss| output::line(format_args!("MISSED {miss}")));
}

#[cfg(test)]
mod tests {
    use sluice_adapt::selector::Device;

    use super::*;

    /// Of somebody's platform, with these arms.
    fn case(arms: &[&str]) -> Case {
        let measured = |arm: &&str| {
            ((*arm).to_owned(), data::Measured { seconds: vec![1.0, 1.01, 0.99, 1.0], windows: Vec::new() })
        };
        Case {
            case: 8,
            platform: "ours".to_owned(),
            device: Device::Disk,
            what: String::new(),
            thesis: Vec::new(),
            best: Vec::new(),
            cpu_s: 0.0,
            arms: arms.iter().map(measured).collect(),
        }
    }

    /// Nothing of no cases is perfect.
    #[test]
    fn of_platforms_that_every_model_has_seen_nothing_is_told_of_who_has_not() {
        let models = Models::load(None).unwrap();
        let report = judged(&[case(&["noop", "sjf"])], &models, Half::Final).unwrap();
        let said = serde_json::to_value(&report).unwrap();
        let platform = &said["platforms"][0];
        assert!(platform["mean_regret"].is_null() && platform["cases"] == 0, "{platform}");
        assert!(platform["known"]["cases"] == 1 && said["arms_tried"].is_null() && said["vs_noop_worst"].is_null());
        assert!(!said["policies"].as_array().unwrap().iter().any(|row| row["name"] == OURS));
        // What it chooses where there is no window is the cheapest, which nobody measured.
        let error = judged(&[case(&["hbrr", "sjf"])], &models, Half::Final).err().unwrap().to_string();
        assert!(error.contains("nothing to judge"), "{error}");
        let both = [case(&["hbrr", "sjf"]), Case { case: 9, ..case(&["noop", "sjf"]) }];
        let report = judged(&both, &models, Half::Final).unwrap();
        let known = report.policies.iter().find(|row| row.name == KNOWN).unwrap();
        assert_eq!((known.score.as_ref().unwrap().cases, known.unmeasured), (1, 1));
    }

    #[test]
    fn the_halves_have_all_platforms_and_no_case_in_common() {
        assert!((0..64).all(|case| Half::Final.has(case) != Half::Tuning.has(case)));
        let platforms: std::collections::BTreeSet<u64> =
            (0..64).filter(|case| Half::Final.has(*case)).map(|case| case % 8).collect();
        assert_eq!(platforms.len(), 8);
    }
}
