//! How often the networks recognise the pattern of a second of an I/O node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Serialize;
use sluice_adapt::council::{Op, Pattern};
use sluice_adapt::net::{CLASSES, Filter, INPUTS, Network, Observation, PAPER_INPUTS, REQUESTS_MIN};
use sluice_cli::output;

use super::Args;
use super::experiments::{PATTERNS, Seen, simulated};

/// Of the experiments of each operation: the mean share of windows that are recognised, and the least.
const BAR_MEAN: f64 = 0.995;
const BAR_MIN: f64 = 0.95;
/// Windows of an experiment in a data set.
const ROWS_MAX: usize = 40;

/// How a network did with the experiments of an operation.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Scores {
    op: &'static str,
    experiments: usize,
    windows: u64,
    /// Windows with too few requests, of which nothing is said; they count for nothing else.
    silent: u64,
    /// Means over experiments of the share of windows that are right, and the least of them; `None` without experiments.
    mean: Option<f64>,
    min: Option<f64>,
    /// Experiments below the bar for the least.
    below: usize,
    /// Rows: what windows were; columns: what they were taken for; both in the order of `classes`.
    confusion: [[u64; 3]; 3],
    worst: Vec<Miss>,
}

/// An experiment in which windows were missed.
#[derive(Clone, Debug, Serialize)]
struct Miss {
    right: f64,
    windows: u64,
    experiment: String,
}

#[derive(Serialize)]
pub(super) struct Report {
    /// The lower one of reads' and writes', of what nodes go by if that is known; `None` if nothing was said of any window.
    mean: Option<f64>,
    min_experiment: Option<f64>,
    paper_mean: Option<f64>,
    paper_min: Option<f64>,
    classes: [&'static str; 3],
    /// What nodes go by ([`Filter`]); empty where it is not known which windows are of the same node.
    over_time: Vec<Scores>,
    /// Of each window by itself.
    ours: Vec<Scores>,
    paper: Vec<Scores>,
    /// Not by nothing.
    pub(super) met: bool,
}

fn load(path: &Path) -> anyhow::Result<Network> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Network::parse(&text).with_context(|| path.display().to_string())
}

/// The network of a file, or the one that comes with Sluicegate.
fn networks(args: &Args) -> anyhow::Result<[Network; 2]> {
    let of = |path: &Option<std::path::PathBuf>, shipped: fn() -> _| match path {
        Some(path) => load(path),
        None => Ok(shipped()?),
    };
    Ok([of(&args.model, Network::shipped)?, of(&args.paper_model, Network::paper)?])
}

fn seen(args: &Args) -> anyhow::Result<Vec<Seen>> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let bar = output::bar(args.experiments, "{bar:40} {pos}/{len} experiments, {eta} left");
    let seen = simulated(args.set, args.first..args.first + args.experiments, jobs, &|| bar.inc(1))?;
    bar.finish_and_clear();
    Ok(seen)
}

/// Columns of a data set before the inputs.
pub(crate) const KNOWN: [&str; 10] =
    ["seed", "label", "op", "io_nodes", "processes", "request", "servers", "device", "scheduler", "requests"];

/// Writes the windows of experiments as a data set; of long experiments some, evenly.
pub(super) fn export(args: &Args, path: &Path) -> anyhow::Result<()> {
    let paper: Vec<String> = PAPER_INPUTS.iter().map(|name| format!("paper_{name}")).collect();
    let mut text = format!("{},{},{}\n", KNOWN.join(","), paper.join(","), INPUTS.join(","));
    for Seen { known, windows, .. } in seen(args)? {
        let label = PATTERNS.iter().position(|pattern| *pattern == known.pattern).unwrap_or(0);
        let said: Vec<_> = windows.iter().filter(|window| window.requests >= REQUESTS_MIN).collect();
        for window in said.iter().step_by(said.len().div_ceil(ROWS_MAX).max(1)) {
            let _ = write!(
                text,
                "{},{label},{},{},{},{},{},{},{},{}",
                known.seed,
                op_name(known.op),
                known.io_nodes,
                known.processes,
                known.request,
                known.servers,
                known.device,
                known.scheduler,
                window.requests
            );
            for input in window.paper.iter().chain(window.inputs.iter().flatten()) {
                let _ = write!(text, ",{input}");
            }
            text.push('\n');
        }
    }
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// A row of a data set: what is known of it, and the shares of ours, then of the paper's.
struct Row {
    known: Vec<String>,
    shares: [[f64; 3]; 2],
}

fn rows(args: &Args, path: &Path) -> anyhow::Result<Vec<Row>> {
    let [ours, paper] = networks(args)?;
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let row = |(number, line): (usize, &str)| {
        let words: Vec<&str> = line.split(',').collect();
        let shares = || {
            let (known, inputs) = words.split_at_checked(KNOWN.len())?;
            let numbers: Vec<f64> = inputs.iter().map(|field| field.parse().ok()).collect::<Option<_>>()?;
            let (few, many) = numbers.split_at_checked(PAPER_INPUTS.len())?;
            let known = known.iter().map(|word| (*word).to_owned()).collect();
            Some(Row { known, shares: [ours.shares(many)?, paper.shares(few)?] })
        };
        shares().with_context(|| format!("{}, line {}: no row of such a data set", path.display(), number + 1))
    };
    text.lines().enumerate().skip(1).map(row).collect()
}

/// Prints what the networks say of a data set's rows: the shares of ours, then of the paper's.
pub(super) fn classify(args: &Args, path: &Path) -> anyhow::Result<()> {
    let mut answers = String::new();
    for row in rows(args, path)? {
        let shares: Vec<String> = row.shares.iter().flatten().map(f64::to_string).collect();
        let _ = writeln!(answers, "{}", shares.join(","));
    }
    output::line(answers.trim_end());
    Ok(())
}

/// Judges both networks by a data set, such as one of real windows.
pub(super) fn judge_data(args: &Args, path: &Path) -> anyhow::Result<Report> {
    let mut experiments: BTreeMap<String, Judged> = BTreeMap::new();
    for Row { known, shares } in rows(args, path)? {
        let truth: usize = known[1]
            .parse()
            .ok()
            .filter(|label| *label < CLASSES.len())
            .with_context(|| format!("{}: the label {:?} is no class", path.display(), known[1]))?;
        let judged = experiments.entry(known[0].clone()).or_insert_with(|| Judged {
            op: if known[2] == "read" { Op::Read } else { Op::Write },
            truth,
            experiment: format!(
                "run {}: {}, {} processes, {} bytes, {} I/O nodes, {} servers, {}, {}",
                known[0], CLASSES[truth], known[4], known[5], known[3], known[6], known[7], known[8]
            ),
            found: [Vec::new(), Vec::new()],
            over_time: None,
        });
        let most = |shares: [f64; 3]| (0..3).max_by(|&a, &b| shares[a].total_cmp(&shares[b]));
        judged.found.iter_mut().zip(shares).for_each(|(found, shares)| found.push(most(shares)));
    }
    let experiments: Vec<Judged> = experiments.into_values().collect();
    ensure!(!experiments.is_empty(), "{}: it has no rows", path.display());
    Ok(Report::of(&experiments))
}

fn op_name(op: Op) -> &'static str {
    if op == Op::Read { "read" } else { "write" }
}

/// An experiment, and what each of its windows was taken for by ours and by the paper's; `None`: nothing was said.
struct Judged {
    op: Op,
    truth: usize,
    experiment: String,
    found: [Vec<Option<usize>>; 2],
    /// What their node made of it and of the windows before; `None`: nodes are not known.
    over_time: Option<Vec<Option<usize>>>,
}

fn place(pattern: Pattern) -> usize {
    PATTERNS.iter().position(|known| *known == pattern).unwrap_or(0)
}

impl Judged {
    fn of(seen: &Seen, networks: &[Network; 2]) -> Judged {
        let Seen { known, windows, nodes, .. } = seen;
        let found = |network: &Network| {
            windows.iter().map(|window| network.classify(window).map(|verdict| place(verdict.pattern))).collect()
        };
        let mut filters = vec![Filter::default(); known.io_nodes as usize];
        let mut filtered = |window: &Observation, node: u32| {
            filters[node as usize].see(networks[0].classify(window)).map(|verdict| place(verdict.pattern))
        };
        let over_time = windows.iter().zip(nodes).map(|(window, node)| filtered(window, *node)).collect();
        let truth = place(known.pattern);
        Judged {
            op: known.op,
            truth,
            experiment: format!(
                "seed {}: {}, {} processes, {} KiB, {} I/O nodes, {} servers, {}, {}",
                known.seed,
                CLASSES[truth],
                known.processes,
                known.request >> 10,
                known.io_nodes,
                known.servers,
                known.device,
                known.scheduler
            ),
            found: networks.each_ref().map(found),
            over_time: Some(over_time),
        }
    }
}

/// `which`: what was found of an experiment's windows.
fn score<'a>(all: &'a [Judged], op: Op, which: impl Fn(&'a Judged) -> &'a [Option<usize>]) -> Scores {
    let mut scores = Scores {
        op: op_name(op),
        experiments: 0,
        windows: 0,
        silent: 0,
        mean: None,
        min: None,
        below: 0,
        confusion: [[0; 3]; 3],
        worst: Vec::new(),
    };
    let mut shares = Vec::new();
    for judged in all.iter().filter(|judged| judged.op == op) {
        let (mut right, mut said) = (0, 0);
        for found in which(judged) {
            let Some(found) = *found else {
                scores.silent += 1;
                continue;
            };
            scores.confusion[judged.truth][found] += 1;
            right += u64::from(found == judged.truth);
            said += 1;
        }
        if said == 0 {
            continue;
        }
        let share = right as f64 / said as f64;
        scores.windows += said;
        shares.push(share);
        scores.below += usize::from(share < BAR_MIN);
        if right < said {
            scores.worst.push(Miss { right: share, windows: said, experiment: judged.experiment.clone() });
        }
    }
    scores.experiments = shares.len();
    scores.mean = (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64);
    scores.min = shares.iter().copied().min_by(f64::total_cmp);
    scores.worst.sort_by(|a, b| a.right.total_cmp(&b.right));
    scores.worst.truncate(5);
    scores
}

impl Report {
    fn of(experiments: &[Judged]) -> Report {
        let ops = [Op::Read, Op::Write];
        let [ours, paper] =
            [0, 1].map(|which| ops.map(|op| score(experiments, op, |judged| judged.found[which].as_slice())).to_vec());
        let over_time = if experiments.iter().all(|judged| judged.over_time.is_some()) {
            ops.map(|op| score(experiments, op, |judged| judged.over_time.as_deref().unwrap_or_default())).to_vec()
        } else {
            Vec::new()
        };
        // Of an operation that was not there nothing is known.
        let least =
            |scores: &[Scores], of: fn(&Scores) -> Option<f64>| scores.iter().filter_map(of).min_by(f64::total_cmp);
        let judged = if over_time.is_empty() { &ours } else { &over_time };
        let (mean, min_experiment) = (least(judged, |it| it.mean), least(judged, |it| it.min));
        Report {
            mean,
            min_experiment,
            paper_mean: least(&paper, |it| it.mean),
            paper_min: least(&paper, |it| it.min),
            classes: CLASSES,
            met: mean.is_some_and(|mean| mean >= BAR_MEAN) && min_experiment.is_some_and(|min| min >= BAR_MIN),
            over_time,
            ours,
            paper,
        }
    }
}

/// Simulates the experiments and judges both networks by them.
pub(super) fn judge(args: &Args) -> anyhow::Result<Report> {
    let networks = networks(args)?;
    let judged: Vec<Judged> = seen(args)?.iter().map(|seen| Judged::of(seen, &networks)).collect();
    Ok(Report::of(&judged))
}

/// `what`: the experiments.
pub(super) fn print(report: &Report, what: &str) {
    let experiments: usize = report.ours.iter().map(|scores| scores.experiments).sum();
    output::line(format_args!(
        "pattern networks, {experiments} {what}: share of the seconds\nof I/O nodes that are recognised, in %\n"
    ));
    output::line(format_args!(
        "{:<8} {:<6} {:>8} {:>8} {:>8} {:>10} {:>9} {:>9}",
        "network", "op", "mean", "min", "below 95", "experiments", "windows", "silent"
    ));
    for (name, all) in [("paper", &report.paper), ("ours", &report.ours), ("nodes", &report.over_time)] {
        for it in all {
            let (mean, min) = (percent(it.mean, 2), percent(it.min, 1));
            let line = format!("{name:<8} {:<6} {mean:>8} {min:>8} {:>8}", it.op, it.below);
            output::line(format_args!("{line} {:>10} {:>9} {:>9}", it.experiments, it.windows, it.silent));
        }
    }
    let (name, judged) =
        if report.over_time.is_empty() { ("ours", &report.ours) } else { ("nodes", &report.over_time) };
    for it in judged {
        output::line(format_args!("\n{name}, {}: what windows were (rows), what they were taken for", it.op));
        output::line(format_args!("{:<18} {}", "", report.classes.map(|name| format!("{name:>18}")).join("")));
        for (name, row) in report.classes.iter().zip(&it.confusion) {
            output::line(format_args!("{name:<18} {}", row.map(|count| format!("{count:>18}")).join("")));
        }
        for Miss { right, windows, experiment } in &it.worst {
            output::line(format_args!("  {:>5.1} of {windows} windows: {experiment}", right * 100.0));
        }
    }
    let met = if report.met { "met" } else { "MISSED" };
    output::line(format_args!(
        "\nbars, reads and writes: mean {:.1} %, each experiment {:.0} %: {met} ({} %, {} %)\n",
        BAR_MEAN * 100.0,
        BAR_MIN * 100.0,
        percent(report.mean, 2),
        percent(report.min_experiment, 1)
    ));
}

fn percent(share: Option<f64>, places: usize) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.places$}", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_not_met_by_nothing() {
        let one = |found: Option<usize>| Judged {
            op: Op::Read,
            truth: 1,
            experiment: String::new(),
            found: [vec![found], vec![found]],
            over_time: None,
        };
        let report = Report::of(&[one(None)]);
        assert!(!report.met && report.mean.is_none() && report.ours[0].min.is_none() && report.ours[0].silent == 1);
        let report = Report::of(&[one(None), one(Some(1))]);
        assert!(report.met && report.mean == Some(1.0) && report.ours[1].mean.is_none());
        assert!(!Report::of(&[one(Some(0)), one(Some(1))]).met);
    }
}
