//! `sluice-bench detector`: how often patterns are recognised.

mod data;
mod real;
mod scenarios;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sluice_adapt::detector::{Class, Detector, INPUTS, THESIS, THESIS_PURPOSE, thesis_inputs};
use sluice_adapt::features::Settings;
use sluice_adapt::forest::{Forest, winner};
use sluice_cli::output;
use sluice_notation::counted;

use crate::bed::{self, Runner};
use data::{Seen, class, rows, simulated};
use real::Programs;
use scenarios::Set;

const BAR_SERVER: f64 = 0.97;
const BAR_FILE: f64 = 0.95;
const BAR_REAL: f64 = 0.9;

/// Judges the detector of access patterns on simulated systems and process counts that it was not trained on.
///
/// Seeds number the scenarios of a set: those of both sets may be the same, and are with what is usual, but not what is drawn from them.
///
/// A pattern is contiguous or 1-D strided, in small or large requests. Right for a file in a window is the pattern that its bytes
/// belong to; for a data server the one that most of its bytes belong to. Windows without enough requests count for neither.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Scenarios; 0: none, for `--real` alone
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1_000)]
    first: u64,
    /// Simulations at a time [default: one for each core]
    #[arg(long)]
    jobs: Option<std::num::NonZeroUsize>,
    /// A model other than the shipped one
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// A tree of D and ΔT_S other than the built-in one
    #[arg(long, value_name = "FILE")]
    thesis_model: Option<PathBuf>,
    /// Write the windows, also those of real processes, as a data set (CSV) instead of judging
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Print what the model says of a data set's rows of known patterns, the votes of each in a line, instead of judging
    #[arg(long, value_name = "FILE", conflicts_with = "export")]
    classify: Option<PathBuf>,
    /// With --classify: what the tree of D and ΔT_S says, instead
    #[arg(long, requires = "classify")]
    thesis: bool,
    /// Run real processes, too: programs with known patterns on a mount over four directories in memory, and over emulated
    /// devices; needs FUSE, fio and python3
    #[arg(long)]
    real: bool,
    /// From what their processes, requests and parts are drawn
    #[arg(long, default_value_t = 1, value_name = "SEED", value_parser = clap::value_parser!(u64).range(0..1_000_000))]
    real_seed: u64,
    /// How long each of these runs
    #[arg(long, default_value_t = 2, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Where they run: tmpfs, or models of devices that are emulated
    #[arg(long, value_delimiter = ',', default_values = ["tmpfs", "ssd-sata"], value_name = "BED")]
    beds: Vec<String>,
    /// Where their files are: in memory, so that times are those of the emulation, or none
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    dir: PathBuf,
    /// The sluice command [default: the one beside this]
    #[arg(long)]
    sluice: Option<PathBuf>,
    /// Which scenarios
    #[arg(long, value_enum, default_value = "held-out")]
    set: Set,
}

impl Args {
    fn detector(&self) -> anyhow::Result<Detector> {
        let Some(path) = &self.model else { return Ok(Detector::shipped()?) };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Detector::parse(&text).with_context(|| path.display().to_string())
    }

    fn thesis_tree(&self) -> anyhow::Result<Forest> {
        let Some(path) = &self.thesis_model else { return Ok(Forest::parse(THESIS, &THESIS_PURPOSE)?) };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Forest::parse(&text, &THESIS_PURPOSE).with_context(|| path.display().to_string())
    }
}

fn classify(path: &Path, args: &Args, mut out: impl Write) -> anyhow::Result<ExitCode> {
    let (detector, thesis) = (args.detector()?, args.thesis_tree()?);
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    for (number, line) in text.lines().enumerate().skip(1) {
        let row = data::inputs_of(line).with_context(|| format!("{}, line {}", path.display(), number + 1))?;
        let Some(inputs) = row else { continue };
        let mut votes = [0.0; 4];
        let (inputs, two) = inputs.split_at(INPUTS.len());
        if args.thesis {
            thesis.votes(two, &mut votes);
        } else {
            detector.forest().votes(inputs, &mut votes);
        }
        writeln!(out, "{}", votes.map(|vote| vote.to_string()).join(","))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Right ones of all.
#[derive(Clone, Copy, Default, Serialize)]
struct Score {
    right: u64,
    of: u64,
}

impl Score {
    fn add(&mut self, is_right: bool) {
        self.right += u64::from(is_right);
        self.of += 1;
    }

    fn share(self) -> f64 {
        if self.of == 0 { 0.0 } else { self.right as f64 / self.of as f64 }
    }
}

/// A table's line.
#[derive(Serialize)]
struct Line {
    what: String,
    server: Score,
    file: Score,
    thesis: Score,
}

#[derive(Default)]
struct Scores {
    server: Score,
    file: Score,
    /// The same files judged by D and ΔT_S.
    thesis: Score,
    /// Files: what they were, what they were taken for.
    confusion: [[u64; 4]; 4],
    by: std::collections::BTreeMap<String, (Score, Score, Score)>,
}

#[derive(Serialize)]
struct Report {
    server_accuracy: f64,
    file_accuracy: f64,
    thesis_tree_accuracy: f64,
    /// Rows: what files were; columns: what they were taken for; both in the order of `classes`.
    confusion: [[u64; 4]; 4],
    classes: [&'static str; 4],
    scenarios: usize,
    windows: u64,
    files: u64,
    lines: Vec<Line>,
    /// Of data servers in half seconds, with real processes, from recorded arrivals; none if they were not run.
    real_accuracy: Option<f64>,
    real: Vec<real::Run>,
    misses: Vec<String>,
}

impl Report {
    /// What is asked for: of what, which share, and which it is.
    fn bars(&self) -> Vec<(&'static str, f64, f64)> {
        let mut bars = Vec::new();
        if self.scenarios > 0 {
            bars = vec![("servers", BAR_SERVER, self.server_accuracy), ("files", BAR_FILE, self.file_accuracy)];
        }
        bars.extend(self.real_accuracy.map(|accuracy| ("servers of real processes", BAR_REAL, accuracy)));
        bars
    }
}

fn sum(scores: impl Iterator<Item = Score>) -> Score {
    scores.fold(Score::default(), |sum, score| Score { right: sum.right + score.right, of: sum.of + score.of })
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(data) = &args.classify {
        return classify(data, args, BufWriter::new(std::io::stdout().lock()));
    }
    anyhow::ensure!(args.seeds > 0 || args.real, "--seeds 0: nothing to judge without --real");
    let (detector, thesis) = (args.detector()?, args.thesis_tree()?);
    let jobs = args.jobs.or_else(|| std::thread::available_parallelism().ok()).map_or(1, usize::from);
    let progress = ProgressBar::new(args.seeds);
    progress.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} scenarios, {eta} left")?);
    let seen = simulated(args.set, args.first..args.first + args.seeds, jobs, &|| progress.inc(1))?;
    progress.finish_and_clear();
    let mut real = Vec::new();
    if args.real {
        let (runner, sluice) = (Runner::new()?, bed::program(args.sluice.as_deref())?);
        let (dir, seconds, seed) = (&args.dir, args.seconds, args.real_seed);
        real = Programs { runner, sluice, dir, seconds, seed, detector: &detector }.run(&args.beds)?;
    }
    if let Some(path) = &args.export {
        let mut text = data::head();
        seen.iter().chain(real.iter().map(|(_, seen)| seen)).for_each(|seen| data::lines(&mut text, seen));
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut scores = Scores::default();
    seen.iter().for_each(|seen| scores.judge(seen, &detector, &thesis));
    let mut report = scores.report(seen.len());
    if args.real {
        report.real = real.into_iter().map(|(run, _)| run).collect();
        report.real_accuracy = Some(sum(report.real.iter().map(|run| run.server)).share());
    }
    let missed = report.bars().into_iter().filter(|(_, bar, share)| share < bar);
    report.misses =
        missed.map(|(what, bar, share)| format!("{what}: {:.1} %, bar {:.0} %", share * 100.0, bar * 100.0)).collect();
    if args.json {
        output::pretty_json(&report)?;
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

impl Scores {
    fn judge(&mut self, seen: &Seen, detector: &Detector, thesis: &Forest) {
        let answers = if seen.knows_answers { "completions known" } else { "arrivals only" };
        let parts = if seen.is_again { "parts gone through again" } else { "parts gone through once" };
        let whats = [
            format!("platform {}", seen.platform),
            format!("workload {}", seen.mode),
            answers.to_owned(),
            parts.to_owned(),
        ];
        for window in &seen.windows {
            let found = detector.detect(&window.window, Settings::default().requests_min).all.class();
            let mut all = [0; 5];
            window
                .truths
                .iter()
                .for_each(|(_, truth)| all.iter_mut().zip(truth).for_each(|(sum, bytes)| *sum += bytes));
            if let (Some(found), Some(truth)) = (found, class(&all)) {
                self.server.add(found.index() == truth);
                whats.iter().for_each(|what| self.of(what).0.add(found.index() == truth));
            }
            for row in rows(window).iter().filter(|row| row.file.is_some()) {
                let Some(truth) = class(&row.truth) else { continue };
                let found = detector.classify(row.features).class.index();
                let mut votes = [0.0; 4];
                thesis.votes(&thesis_inputs(row.features), &mut votes);
                let by_thesis = winner(&votes) == truth;
                self.confusion[truth][found] += 1;
                self.file.add(found == truth);
                self.thesis.add(by_thesis);
                for what in &whats {
                    let (_, file, thesis) = self.of(what);
                    file.add(found == truth);
                    thesis.add(by_thesis);
                }
            }
        }
    }

    fn of(&mut self, what: &str) -> &mut (Score, Score, Score) {
        self.by.entry(what.to_owned()).or_default()
    }

    fn report(self, scenarios: usize) -> Report {
        Report {
            server_accuracy: self.server.share(),
            file_accuracy: self.file.share(),
            thesis_tree_accuracy: self.thesis.share(),
            confusion: self.confusion,
            classes: Class::NAMES,
            scenarios,
            windows: self.server.of,
            files: self.file.of,
            lines: self
                .by
                .into_iter()
                .map(|(what, (server, file, thesis))| Line { what, server, file, thesis })
                .collect(),
            real_accuracy: None,
            real: Vec::new(),
            misses: Vec::new(),
        }
    }
}

fn print(report: &Report) {
    let percent = |score: Score| if score.of == 0 { "-".to_owned() } else { format!("{:.1} %", score.share() * 100.0) };
    output::line(format!(
        "simulated systems, {}: {} of data servers, {} of files\n",
        counted(report.scenarios as u64, "scenario"),
        counted(report.windows, "window"),
        report.files
    ));
    output::line(format!("{:<28} {:>9} {:>9} {:>22}", "right", "servers", "files", "files, D and ΔT_S only"));
    output::line(format!(
        "{:<28} {:>8.1}% {:>8.1}% {:>21.1}%",
        "all",
        report.server_accuracy * 100.0,
        report.file_accuracy * 100.0,
        report.thesis_tree_accuracy * 100.0
    ));
    for Line { what, server, file, thesis } in &report.lines {
        output::line(format!("{what:<28} {:>9} {:>9} {:>22}", percent(*server), percent(*file), percent(*thesis)));
    }
    output::line("\nfiles: what they were (rows), what they were taken for");
    output::line(format!("{:<18} {}", "", report.classes.map(|name| format!("{name:>17}")).join("")));
    for (name, row) in report.classes.iter().zip(&report.confusion) {
        output::line(format!("{name:<18} {}", row.map(|count| format!("{count:>17}")).join("")));
    }
    if let Some(accuracy) = report.real_accuracy {
        let files = sum(report.real.iter().map(|run| run.file));
        let (accuracy, files) = (accuracy * 100.0, percent(files));
        output::line(format!("\nreal processes: {accuracy:.1} % of servers in half seconds, {files} of files"));
        for run in &report.real {
            let bed = if run.bed == "tmpfs" { "tmpfs".to_owned() } else { format!("emulated {}", run.bed) };
            let (server, file) = (percent(run.server), percent(run.file));
            output::line(format!("{bed:<18} {:<62} {:>7} requests {server:>8} {file:>8}", run.workload, run.requests));
        }
    }
    output::line("");
    for (what, bar, share) in report.bars() {
        let met = if share < bar { "MISSED" } else { "met" };
        output::line(format!("bar: {:.0} % of {what}: {met} ({:.1} %)", bar * 100.0, share * 100.0));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use sluice_adapt::detector::THESIS_INPUTS;
    use sluice_adapt::features;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn crc32(text: &str) -> u32 {
        let bit = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        !text.bytes().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(byte), bit))
    }

    #[test]
    fn the_tree_of_two_inputs_may_be_another() {
        let dir = tempfile::tempdir().unwrap();
        let (data, tree) = (dir.path().join("data.csv"), dir.path().join("tree.json"));
        let args = |more: &[&str]| {
            let words = ["detector", "--thesis-model", tree.to_str().unwrap()];
            Command::parse_from(words.iter().chain(more)).args
        };
        let said = format!("{:#}", run(&args(&[])).unwrap_err());
        assert!(said.contains("tree.json"), "{said}");
        // The second input says which class it is.
        let head = "{\n\"format\": \"sluice-forest 1\",\n";
        let rest = format!(
            "\"kind\": \"detector\",\n\"features\": {},\n\"inputs\": {THESIS_INPUTS:?},\n\"classes\": {:?},\n\"trained\": {{}},\n\
             \"trees\": [{{\"input\": [1, -1, -1], \"threshold\": [0.5, 0, 0], \"left\": [1, 0, 0], \"right\": [2, 0, 0],\n\
             \"votes\": [[], [0.25, 0.75, 0, 0], [0, 0, 0, 1]]}}]\n}}\n",
            features::VERSION,
            Class::NAMES
        );
        let crc32 = crc32(&format!("{head}{rest}"));
        std::fs::write(&tree, format!("{head}\"crc32\": \"{crc32:08x}\",\n{rest}")).unwrap();
        let row = |label: &str, last: &str| {
            format!("{}{label},{}{last}\n", "0,".repeat(11), "0,".repeat(5 + INPUTS.len() + 1))
        };
        std::fs::write(&data, [data::head(), row("0", "0"), row("-1", "0"), row("3", "1")].concat()).unwrap();
        let mut out = Vec::new();
        classify(&data, &args(&["--classify", data.to_str().unwrap(), "--thesis"]), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "0.25,0.75,0,0\n0,0,0,1\n");
    }
}
