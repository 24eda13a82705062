//! For real: programs on an emulated disk, under the kernel's schedulers, under Sluicegate with fixed configurations, and under
//! Sluicegate as it is when nothing is said: adaptive.
//!
//! Of each workload first comes adaptive *from nothing*: an empty state, then the workload again and again; what it does after the
//! time of learning counts. Then all sides take turns, in an order drawn anew for each round, among them adaptive *again*, which
//! mounts anew with what it has learned. What comes first on a new mount does not count: where 32 streams begin at a time the first
//! two seconds give 8 % more than what follows, as not all have had a turn. Of a workload that changes that is its last phase, so what counts
//! begins as it would on a mount that goes on. Between runs on one mount the page cache is dropped where the workload uses it.
//!
//! Fixed configurations that are far from the best of them have no further turns: on disks five of nine are ten times slower with several
//! streams. The kernel's schedulers always have all.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use signal_hook::consts::SIGHUP;
use sluice_adapt::selector::{Record, Why};
use sluice_cli::{interrupt, output};
use sluice_notation::counted;

use super::Args;
use super::overhead::{self, Overhead};
use crate::bed::{Bed, Runner, Side};
use crate::random::SplitMix64;
use crate::rivals::data::{self, Data};
use crate::rivals::report::settings;
use crate::rivals::workloads::{Program, WORKLOADS, Workload};
use crate::rivals::{SCHEDULERS, expect_all, run_workload};
use crate::statistics::{chance_above, median};

/// Least throughput over that of the best of all others, and least geometric mean over the best kernel schedulers.
const BAR: f64 = 0.95;
const MEAN_BAR: f64 = 1.1;

/// What a mount takes to forget some thousand files.
const FORGETTING: Duration = Duration::from_millis(200);

/// Runs of a side from which on it can be told whether it is at the bar, and how likely chance is at most where that is told.
const RUNS_MIN: usize = 5;
const CHANCE_MAX: f64 = 0.05;

/// A fixed configuration has no further turn if its best run is less than this share of the least of the one that leads: after one
/// round, and after more. Its median would have to rise by as much in what is left.
const FAR_FIRST: f64 = 0.5;
const FAR: f64 = 0.75;

/// Fixed configurations: all that a selector chooses from on a disk.
const FIXED: [&str; 9] = ["noop", "hbrr", "to-agg", "hbrr/off", "to-agg/off", "aioli/off", "sjf", "sjf/off", "mlf"];
const FIXED_QUICK: [&str; 3] = ["noop", "hbrr", "to-agg"];

/// Those of rivals that --quick has.
const QUICK: [&str; 16] = [
    "stream-1",
    "stream-2",
    "stream-4",
    "stream-8",
    "stream-16",
    "stream-32",
    "stream-8-buffered",
    "strided-8",
    "random-32",
    "mixed-16",
    "writer-against-readers",
    "stream-against-random",
    "writers-4",
    "writers-4-buffered",
    "fsync-4",
    "read-files",
];

/// Those that change: a phase of each of these, one after the other.
const CHANGING: [(&str, [&str; 3]); 6] = [
    ("changing: streams, random, writers", ["stream-8", "random-32", "writers-4"]),
    ("changing: readers and writers", ["stream-16", "writer-against-readers", "writers-4"]),
    ("changing: number of streams", ["stream-2", "stream-32", "stream-8"]),
    ("changing: shared file, streams, mixed", ["strided-8", "stream-4", "mixed-16"]),
    ("changing: mixes", ["stream-against-random", "mixed-16", "stream-16"]),
    ("changing: through the cache", ["stream-8-buffered", "writers-4-buffered", "random-16-buffered"]),
];

/// What runs: a workload of rivals, or several one after the other, which all bypass the page cache or all use it.
struct Work {
    name: &'static str,
    phases: Vec<Workload>,
}

impl Work {
    fn all() -> Vec<Work> {
        let find = |name: &str| *WORKLOADS.iter().find(|one| one.name == name).expect("it is one of rivals");
        let steady = WORKLOADS.iter().map(|one| Work { name: one.name, phases: vec![*one] });
        let changing = CHANGING.iter().map(|(name, phases)| Work { name, phases: phases.map(find).to_vec() });
        steady.chain(changing).collect()
    }

    fn is_changing(&self) -> bool {
        self.phases.len() > 1
    }

    fn direct(&self) -> bool {
        self.phases[0].direct
    }

    /// fio knows the bytes; of other programs the figure is in the workload's unit.
    fn unit(&self) -> &'static str {
        match self.phases[0].program {
            Program::Fio(_) => "MB/s",
            Program::Python(_) => self.phases[0].unit.name(),
        }
    }
}

/// A workload. Rates are medians, in `unit`.
#[derive(Serialize)]
struct Row {
    workload: &'static str,
    real: bool,
    emulated: bool,
    unit: &'static str,
    /// From nothing, after the time of learning.
    adaptive_mb_s: f64,
    adaptive_range: [f64; 2],
    /// Mounted anew with what was learned, in turns with the others.
    again_mb_s: f64,
    again_range: [f64; 2],
    best_fixed: String,
    best_fixed_mb_s: f64,
    best_kernel: String,
    best_kernel_mb_s: f64,
    /// Of the best of all others: from nothing, and again.
    ratio: f64,
    ratio_again: f64,
    /// How these are judged: from nothing, and again.
    verdict: Verdict,
    verdict_again: Verdict,
    /// All sides but the adaptive ones: median, smallest, largest.
    sides: BTreeMap<String, [f64; 3]>,
    /// Each run, as it came, of every side, `adaptive` and `again` among them. Fewer than rounds of those that were [`far`].
    runs: BTreeMap<String, Vec<f64>>,
    /// Of a workload that changes, by phase: the median of every side, `adaptive` and `again` among them.
    phases: Vec<BTreeMap<String, f64>>,
    /// From nothing: what the runs gave while it learned.
    learning: Vec<f64>,
    /// In force at the end of the run from nothing, and the pattern that was recognised.
    arm: String,
    pattern: Option<String>,
    /// Share of a core that deciding took in that run.
    deciding: f64,
}

/// Of a row: whether adaptive's runs are above 0.95 of the runs of the best of the others, by the one-sided test of Wilcoxon, Mann and Whitney
/// at 5 %. That this best was chosen after the fact, which is to its advantage, is not corrected for. With fewer than five runs of a side the
/// ratio of the medians says it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// They are.
    Reached,
    /// Nobody can tell, whatever the ratio.
    Undecided,
    /// They are below.
    Missed,
}

impl Verdict {
    fn of(ratio: f64, adaptive: &[f64], best: &[f64]) -> Verdict {
        if adaptive.len().min(best.len()) < RUNS_MIN {
            return if ratio >= BAR { Verdict::Reached } else { Verdict::Missed };
        }
        let wanted: Vec<f64> = best.iter().map(|rate| rate * BAR).collect();
        if chance_above(adaptive, &wanted) <= CHANCE_MAX {
            Verdict::Reached
        } else if chance_above(&wanted, adaptive) <= CHANCE_MAX {
            Verdict::Missed
        } else {
            Verdict::Undecided
        }
    }

    fn mark(self) -> char {
        match self {
            Verdict::Reached => ' ',
            Verdict::Undecided => '~',
            Verdict::Missed => '!',
        }
    }
}

#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
    /// Share of its throughput that a mount loses by choosing where there is nothing to choose: the largest median of `overheads`.
    overhead: Option<f64>,
    overheads: Vec<Overhead>,
    disk: String,
    /// Who chooses.
    selector: String,
    rounds: u32,
    seconds: u32,
    learn_s: u32,
    bar: f64,
    /// What the best is taken of.
    fixed: Vec<String>,
    /// Workloads that reach the bar, those of which nobody can tell, and those whose ratio is at the bar, told or not.
    reached: usize,
    undecided: usize,
    at_bar: usize,
    /// Over the best kernel scheduler, geometric mean of all workloads.
    mean_over_kernel: f64,
    interrupted: bool,
}

struct Test<'a> {
    // Goes away first, while programs can still be run.
    bed: Bed,
    runner: Runner,
    args: &'a Args,
    fixed: Vec<Side>,
    rounds: u32,
    seconds: u32,
    learn_s: u32,
    rotates: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_in = |work: &Work| !args.quick || work.is_changing() || QUICK.contains(&work.name);
    let works: Vec<Work> = Work::all().into_iter().filter(|work| is_in(work) && args.wants(work.name)).collect();
    if works.is_empty() && !args.wants(overhead::NAME) {
        bail!(
            "--only {}: fits no workload; sluice-bench rivals --list has those that do not change",
            args.only.join(", ")
        );
    }
    // However many signals come: a terminal that closes sends two. What is waited for ends soon, or is ended.
    let runner = Runner { stop: interrupt::flag()? };
    signal_hook::flag::register(SIGHUP, runner.stop.clone())?;
    let rounds = args.rounds.unwrap_or(if args.quick { 2 } else { 5 });
    let seconds = args.seconds.unwrap_or(if args.quick { 2 } else { 5 });
    let learn_s = args.learn.unwrap_or(if args.quick { 10 } else { 60 });
    let mut report = Report {
        rows: Vec::new(),
        overhead: None,
        overheads: Vec::new(),
        disk: args.disk.title(),
        selector: args.selector.clone().unwrap_or_else(|| "bandit".to_owned()),
        rounds,
        seconds,
        learn_s,
        bar: BAR,
        fixed: sides(args).iter().filter(|side| side.policy.is_some()).map(Side::name).collect(),
        reached: 0,
        undecided: 0,
        at_bar: 0,
        mean_over_kernel: 0.0,
        interrupted: false,
    };
    // What was measured for hours is not to go with what fails then.
    let failed = match measure(args, &runner, &works, &mut report) {
        Err(_) if runner.go_on().is_err() => None,
        Err(error) if report.rows.is_empty() => return Err(error),
        Err(error) => Some(error),
        Ok(()) => None,
    };
    report.interrupted = failed.is_some() || runner.go_on().is_err();
    report.sum_up();
    if args.json {
        output::pretty_json(&report)?;
    } else {
        report.print();
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(if report.interrupted { ExitCode::from(130) } else { ExitCode::SUCCESS }),
    }
}

fn measure(args: &Args, runner: &Runner, works: &[Work], report: &mut Report) -> anyhow::Result<()> {
    let phases: Vec<Workload> = works.iter().flat_map(|work| work.phases.clone()).collect();
    expect_all(&phases)?;
    if args.wants(overhead::NAME) {
        overhead::expect_disk(&args.own)?;
    }
    if !works.is_empty() {
        let disk_bytes = args.disk.bytes()?;
        let mut bed = Bed::new(runner, "adaptivity", &args.disk)?;
        (bed.window_ms, bed.selector) = (args.window, args.selector.clone());
        let Report { rounds, seconds, learn_s, .. } = *report;
        let rotates = args.disk.rotates()?;
        let test = Test { bed, runner: runner.clone(), args, fixed: sides(args), rounds, seconds, learn_s, rotates };
        test.prepare(&phases, disk_bytes)?;
        test.measure(works, &mut report.rows)?;
    }
    if args.wants(overhead::NAME) {
        let rounds = if args.quick { 11 } else { 31 };
        report.overheads = overhead::measure(runner, &args.disk.program()?, &args.own, rounds, report.learn_s)?;
    }
    Ok(())
}

/// All but the adaptive ones.
fn sides(args: &Args) -> Vec<Side> {
    let kernel = SCHEDULERS.iter().map(|name| Side { scheduler: (*name).to_owned(), policy: None });
    let fixed: &[&str] = if args.quick && !args.all_arms { &FIXED_QUICK } else { &FIXED };
    kernel.chain(fixed.iter().map(|name| over_none(name))).collect()
}

fn over_none(policy: &str) -> Side {
    Side { scheduler: "none".to_owned(), policy: Some(policy.to_owned()) }
}

impl Test<'_> {
    fn prepare(&self, phases: &[Workload], disk_bytes: u64) -> anyhow::Result<()> {
        output::tell(format_args!("{}: laying out the files", self.args.disk.title()));
        let needs: Vec<Data> =
            Data::ALL.into_iter().filter(|data| phases.iter().any(|one| one.needs.contains(data))).collect();
        let none = Side { scheduler: "none".to_owned(), policy: None };
        let dir = self.bed.switch(&none, &settings(self.rotates, false))?;
        data::lay(&self.runner, &dir, &needs, self.seconds, disk_bytes)?;
        let dir = self.bed.switch(&over_none(Side::ADAPTIVE), &settings(self.rotates, true))?;
        data::verify(&self.runner, &dir, &needs, self.seconds, true).context("through an adaptive mount")
    }

    fn measure(&self, works: &[Work], rows: &mut Vec<Row>) -> anyhow::Result<()> {
        for (at, work) in works.iter().enumerate() {
            let row = self.row(work).with_context(|| work.name)?;
            output::tell(format_args!(
                "{}/{} {}: adaptive {:.1}, again {:.1} {}; best fixed {} {:.1}, best kernel {} {:.1}; of the best {:.2}, {:.2}",
                at + 1,
                works.len(),
                row.workload,
                row.adaptive_mb_s,
                row.again_mb_s,
                row.unit,
                row.best_fixed,
                row.best_fixed_mb_s,
                row.best_kernel,
                row.best_kernel_mb_s,
                row.ratio,
                row.ratio_again
            ));
            rows.push(row);
        }
        self.bed.leave()
    }

    /// All phases once: the rate of each.
    fn once(&self, work: &Work, dir: &Path, seed: u64) -> anyhow::Result<Vec<f64>> {
        let mut rates = Vec::with_capacity(work.phases.len());
        for phase in &work.phases {
            // What one phase has read is not for the next, nor what was read before.
            forget_pages(work)?;
            rates.push(self.phase(phase, dir, seed)?);
        }
        Ok(rates)
    }

    fn phase(&self, phase: &Workload, dir: &Path, seed: u64) -> anyhow::Result<f64> {
        let run = run_workload(&self.runner, phase, dir, [self.seconds; 2], seed)?;
        Ok(run.mb_s.unwrap_or(run.value))
    }

    fn row(&self, work: &Work) -> anyhow::Result<Row> {
        let adaptive = over_none(Side::ADAPTIVE);
        let lines = settings(self.rotates, work.direct());
        self.bed.forget()?;
        let dir = self.bed.switch(&adaptive, &lines)?;
        let mut seed = 1_000;
        let mut again = || {
            seed += 1;
            self.once(work, &dir, seed)
        };
        let passes = self.learn_s.div_ceil(self.seconds * work.phases.len() as u32);
        let learning = (0..passes).map(|_| Ok(geometric_mean(&again()?))).collect::<anyhow::Result<Vec<f64>>>()?;
        let from_nothing = (0..self.rounds).map(|_| again()).collect::<anyhow::Result<Vec<Vec<f64>>>>()?;
        let told = self.bed.explanation()?;
        self.keep_log(work, "")?;
        let mut sides = self.fixed.clone();
        sides.push(adaptive);
        let mut runs: Vec<Vec<Vec<f64>>> = vec![Vec::new(); sides.len()];
        for round in 0..self.rounds {
            // Every side makes the same requests in a round.
            let seed = 1 + u64::from(round);
            let far = if round == 0 { vec![false; sides.len()] } else { far(&sides, &runs) };
            for side in SplitMix64(seed).shuffled(sides.len()).into_iter().filter(|side| !far[*side]) {
                let dir = self.bed.switch(&sides[side], &lines)?;
                let of_side = || sides[side].name();
                let last = work.phases.last().context("a workload has a phase")?;
                self.phase(last, &dir, seed + 500).with_context(of_side)?;
                runs[side].push(self.once(work, &dir, seed).with_context(of_side)?);
            }
        }
        self.keep_log(work, ".again")?;
        let (adaptive_mb_s, adaptive_range) = middle(&from_nothing);
        let mut middles: Vec<(f64, [f64; 2])> = runs.iter().map(|runs| middle(runs)).collect();
        let names = sides
            .iter()
            .map(|side| if side.policy.as_deref() == Some(Side::ADAPTIVE) { "again".to_owned() } else { side.name() });
        let all: Vec<_> = names.zip(&runs).chain([("adaptive".to_owned(), &from_nothing)]).collect();
        let (again_mb_s, again_range) = middles.pop().context("adaptive is a side")?;
        let best = |is_kernel: bool| {
            let of_kind = (0..middles.len()).filter(|side| self.fixed[*side].policy.is_none() == is_kernel);
            let best = of_kind.max_by(|a, b| middles[*a].0.total_cmp(&middles[*b].0)).unwrap_or_default();
            (best, self.fixed[best].name(), middles[best].0)
        };
        let ((of_fixed, best_fixed, best_fixed_mb_s), (of_kernel, best_kernel, best_kernel_mb_s)) =
            (best(false), best(true));
        let most = best_fixed_mb_s.max(best_kernel_mb_s).max(f64::MIN_POSITIVE);
        let best = if best_fixed_mb_s > best_kernel_mb_s { of_fixed } else { of_kernel };
        let by_side: BTreeMap<String, Vec<f64>> = all.iter().map(|(name, runs)| (name.clone(), whole(runs))).collect();
        let verdict = |ratio, name: &str| Verdict::of(ratio, &by_side[name], &by_side[&self.fixed[best].name()]);
        let text = |pointer: &str| told.pointer(pointer).and_then(|value| value.as_str()).map(str::to_owned);
        Ok(Row {
            workload: work.name,
            real: true,
            emulated: true,
            unit: work.unit(),
            adaptive_mb_s,
            adaptive_range,
            again_mb_s,
            again_range,
            best_fixed,
            best_fixed_mb_s,
            best_kernel,
            best_kernel_mb_s,
            ratio: adaptive_mb_s / most,
            ratio_again: again_mb_s / most,
            verdict: verdict(adaptive_mb_s / most, "adaptive"),
            verdict_again: verdict(again_mb_s / most, "again"),
            sides: self.fixed.iter().zip(&middles).map(|(side, (m, [l, h]))| (side.name(), [*m, *l, *h])).collect(),
            phases: if work.is_changing() { phases(&all) } else { Vec::new() },
            runs: by_side,
            learning,
            arm: text("/arm").unwrap_or_default(),
            pattern: text("/pattern/class"),
            deciding: told["overhead"].as_f64().unwrap_or(0.0),
        })
    }

    /// Keeps the log of decisions, if that is wanted; `after`: of what comes after the run from nothing, that one included.
    fn keep_log(&self, work: &Work, after: &str) -> anyhow::Result<()> {
        let from = self.bed.decisions();
        let Some(path) = self.args.log.as_ref().filter(|_| from.exists()) else { return Ok(()) };
        let name: String = work.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let to = format!("{}.{name}{after}", path.display());
        let log = std::fs::read_to_string(&from).with_context(|| from.display().to_string())?;
        std::fs::write(&to, told_emulated(&log)).with_context(|| to)
    }
}

/// A log of decisions whose beginnings say that the device is emulated: a mount of a disk's file system does not know.
fn told_emulated(log: &str) -> String {
    let mut told = String::with_capacity(log.len());
    for line in log.lines() {
        let begin = serde_json::from_str::<Record>(line).ok().filter(|record| record.why == Why::Begin);
        let begin = begin.map(|begin| Record { text: "emulated devices".to_owned(), ..begin });
        told += &begin.and_then(|begin| serde_json::to_string(&begin).ok()).unwrap_or_else(|| line.to_owned());
        told.push('\n');
    }
    told
}

/// By side, all of which have run: a fixed configuration that is so far from the best of them that it need not run now. It does again if
/// that one has had a bad run since.
fn far(sides: &[Side], runs: &[Vec<Vec<f64>>]) -> Vec<bool> {
    let is_fixed = |side: usize| sides[side].policy.as_deref().is_some_and(|policy| policy != Side::ADAPTIVE);
    let middles: Vec<(f64, [f64; 2])> = runs.iter().map(|runs| middle(runs)).collect();
    let lead = (0..sides.len()).filter(|side| is_fixed(*side)).max_by(|a, b| middles[*a].0.total_cmp(&middles[*b].0));
    let enough = lead.map_or(0.0, |lead| middles[lead].1[0] * if runs[lead].len() == 1 { FAR_FIRST } else { FAR });
    (0..sides.len()).map(|side| is_fixed(side) && middles[side].1[1] < enough).collect()
}

/// Of none: 1.
fn geometric_mean(values: &[f64]) -> f64 {
    values.iter().product::<f64>().powf(1.0 / values.len() as f64)
}

/// Each run as the geometric mean of its phases.
fn whole(runs: &[Vec<f64>]) -> Vec<f64> {
    runs.iter().map(|rates| geometric_mean(rates)).collect()
}

/// Median, smallest and largest of runs.
fn middle(runs: &[Vec<f64>]) -> (f64, [f64; 2]) {
    median(&mut whole(runs))
}

/// The median of each side's runs, by phase.
fn phases(sides: &[(String, &Vec<Vec<f64>>)]) -> Vec<BTreeMap<String, f64>> {
    let count = sides.iter().flat_map(|(_, runs)| runs.iter()).map(Vec::len).min().unwrap_or(0);
    let of = |runs: &[Vec<f64>], at: usize| median(&mut runs.iter().map(|rates| rates[at]).collect::<Vec<f64>>()).0;
    (0..count).map(|at| sides.iter().map(|(name, runs)| (name.clone(), of(runs, at))).collect()).collect()
}

/// Empties the page cache, if the workload uses it, and forgets files. Twice: those of the file system below a mount are held until the
/// mount has been told that nobody knows its own any more. A mount that went on had 15 % more small files in a second than
/// ones that began; whether that was why was not measured.
fn forget_pages(work: &Work) -> anyhow::Result<()> {
    if work.direct() {
        return Ok(());
    }
    let path = "/proc/sys/vm/drop_caches";
    for _ in 0..2 {
        std::fs::write(path, "3").with_context(|| format!("{path}: to read from the disk again"))?;
        std::thread::sleep(FORGETTING);
    }
    Ok(())
}

impl Report {
    fn sum_up(&mut self) {
        self.rows.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        let judged = |as_what: Verdict| self.rows.iter().filter(|row| row.verdict == as_what).count();
        (self.reached, self.undecided) = (judged(Verdict::Reached), judged(Verdict::Undecided));
        self.at_bar = self.rows.iter().filter(|row| row.ratio >= BAR).count();
        let over: Vec<f64> = self.rows.iter().map(|row| row.adaptive_mb_s / row.best_kernel_mb_s).collect();
        self.mean_over_kernel = geometric_mean(&over);
        self.overhead = self.overheads.iter().map(|one| 1.0 - one.ratio).max_by(f64::total_cmp);
    }

    fn print(&self) {
        output::line(format_args!(
            "{}: medians of {} of {} s, after one that does not count (those that change: of a phase each), adaptive (`{}`) after \
             {} s of learning from nothing; again: mounted anew with what was learned, in turns with the others. Fixed configurations \
             far from the best of them have fewer. Losses first.\n",
            self.disk,
            counted(self.rounds.into(), "round"),
            self.seconds,
            self.selector,
            self.learn_s
        ));
        output::line(format_args!(
            "{:<38}{:<9}{:>9}{:>9}  {:<20}{:<20}{:>9}{:>9}  chosen",
            "workload", "unit", "adaptive", "again", "best fixed", "best kernel", "of best ", "again "
        ));
        for row in &self.rows {
            output::line(format_args!(
                "{:<38}{:<9}{:>9.1}{:>9.1}  {:<20}{:<20}{:>8.2}{}{:>8.2}{}  {}",
                row.workload,
                row.unit,
                row.adaptive_mb_s,
                row.again_mb_s,
                format!("{} {:.1}", row.best_fixed, row.best_fixed_mb_s),
                format!("{} {:.1}", row.best_kernel, row.best_kernel_mb_s),
                row.ratio,
                row.verdict.mark(),
                row.ratio_again,
                row.verdict_again.mark(),
                row.arm
            ));
        }
        if !self.rows.is_empty() {
            let missed = |is_missed: bool| if is_missed { "MISSED " } else { "" };
            output::line(format_args!(
                "\n{}{} of {} workloads have {BAR} of the best of {} fixed configurations and {} kernel schedulers, or more. By the test of Wilcoxon, Mann and \
                 Whitney at 5 % {} are above it, {} (!) below, and of {} (~) it does not tell (with fewer than {RUNS_MIN} runs the ratio does); {}geometric mean over \
                 the best kernel scheduler {:.2}, bar {MEAN_BAR}; deciding took {:.3} % of a core at most",
                missed(self.at_bar < self.rows.len()),
                self.at_bar,
                self.rows.len(),
                self.fixed.len(),
                SCHEDULERS.len(),
                self.reached,
                self.rows.len() - self.reached - self.undecided,
                self.undecided,
                missed(self.mean_over_kernel < MEAN_BAR),
                self.mean_over_kernel,
                self.rows.iter().map(|row| row.deciding).fold(0.0, f64::max) * 100.0
            ));
        }
        overhead::print(&self.overheads);
        if self.interrupted {
            output::line("interrupted: this is a part");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_adapt::selector::{Device, arms};
    use sluice_core::{Anticipation, EngineConfig};

    #[test]
    fn phases_are_of_one_kind_and_names_are_those_of_rivals() {
        let all = Work::all();
        for work in &all {
            assert!(work.phases.iter().all(|phase| phase.direct == work.direct()), "{}", work.name);
            assert!(!work.is_changing() || work.phases.iter().all(|phase| matches!(phase.program, Program::Fio(_))));
        }
        assert!(all.iter().filter(|work| work.is_changing()).count() >= 6);
        assert!(QUICK.iter().all(|name| WORKLOADS.iter().any(|one| one.name == *name)));
    }

    #[test]
    fn fixed_configurations_are_all_that_a_selector_chooses_from() {
        let host = EngineConfig { anticipation: Some(Anticipation::for_device(1, 1)), ..EngineConfig::default() };
        let mut arms: Vec<String> = arms(Device::Disk, &host).iter().map(ToString::to_string).collect();
        // A mount of these disks anticipates where its algorithm can, unless told not to.
        let as_arm = |name: &&str| match name.strip_suffix(Side::OFF) {
            Some(policy) => policy.to_owned(),
            None if *name == "noop" => "noop".to_owned(),
            None => format!("{name} anticipation=on"),
        };
        let mut fixed: Vec<String> = FIXED.iter().map(as_arm).collect();
        arms.sort();
        fixed.sort();
        assert_eq!(fixed, arms);
    }

    #[test]
    fn fixed_configurations_far_from_the_best_have_no_further_turn_until_it_has_a_bad_run() {
        let kernel = Side { scheduler: "bfq".to_owned(), policy: None };
        let sides = [kernel, over_none("hbrr"), over_none("sjf"), over_none("noop"), over_none(Side::ADAPTIVE)];
        let after = |runs: [&[f64]; 5]| {
            let runs = runs.map(|of_side| of_side.iter().map(|rate| vec![*rate]).collect());
            far(&sides, &runs).into_iter().enumerate().filter(|(_, far)| *far).map(|(side, _)| side).collect::<Vec<_>>()
        };
        assert_eq!(after([&[1.0], &[100.0], &[51.0], &[49.0], &[1.0]]), [3], "of others nothing is left out");
        assert_eq!(after([&[1.0; 2], &[100.0, 90.0], &[51.0, 69.0], &[49.0], &[1.0; 2]]), [3]);
        assert_eq!(after([&[1.0; 2], &[100.0, 90.0], &[51.0, 67.0], &[49.0], &[1.0; 2]]), [2, 3]);
        assert_eq!(after([&[1.0; 3], &[100.0, 90.0, 60.0], &[51.0, 67.0], &[49.0], &[1.0; 3]]), [] as [usize; 0]);
        // Of those that change, runs are judged whole.
        let changing =
            [vec![vec![9.0, 1.0]], vec![vec![100.0, 4.0]], vec![vec![25.0, 5.0]], vec![vec![4.0; 2]], vec![]];
        assert_eq!(far(&sides[..4], &changing[..4]), [false, false, false, true]);
    }

    #[test]
    fn what_is_at_the_bar_is_told_where_there_are_runs_enough() {
        let of = |adaptive: &[f64], best: &[f64]| {
            let middle = |runs: &[f64]| median(&mut runs.to_vec()).0;
            Verdict::of(middle(adaptive) / middle(best), adaptive, best)
        };
        let best = [100.0, 101.0, 102.0, 103.0, 104.0];
        assert_eq!(of(&[99.0, 100.0, 101.0, 102.0, 103.0], &best), Verdict::Reached);
        assert_eq!(of(&[97.5, 90.0, 97.0, 99.0, 100.0], &best), Verdict::Undecided, "its median is at the bar");
        assert_eq!(of(&[96.0, 90.0, 99.0, 80.0, 98.0], &best), Verdict::Undecided, "its median is not");
        assert_eq!(of(&[94.0, 90.0, 92.0, 80.0, 93.0], &best), Verdict::Missed);
        assert_eq!(of(&[90.0, 99.0, 95.0, 96.0], &best[1..]), Verdict::Missed, "of four the medians say it");
        assert_eq!(of(&[90.0, 99.0, 98.0, 99.0], &best[1..]), Verdict::Reached);
    }

    #[test]
    fn a_log_that_is_kept_says_emulated_where_it_begins() {
        let line = |why: &str, arm: &str| {
            format!(r#"{{"t":1.5,"why":"{why}","context":null,"arm":"{arm}","mb_s":2.0,"rate_mb_s":2.0,"text":""}}"#)
        };
        let log = [line("begin", "noop"), line("window", "sjf"), "half a li".to_owned()].join("\n");
        let told = told_emulated(&log);
        let lines: Vec<&str> = told.lines().collect();
        let begin: Record = serde_json::from_str(lines[0]).unwrap();
        assert_eq!((begin.t, begin.arm.as_str(), begin.text.as_str()), (1.5, "noop", "emulated devices"));
        assert_eq!(lines[1..], log.lines().skip(1).collect::<Vec<_>>()[..], "all else is as it was");
    }

    #[test]
    fn phases_are_the_medians_of_each_and_runs_their_geometric_means() {
        let runs = vec![vec![1.0, 100.0], vec![4.0, 25.0], vec![9.0, 100.0]];
        assert_eq!(middle(&runs), (10.0, [10.0, 30.0]));
        assert_eq!(geometric_mean(&[]), 1.0);
        let by_phase = phases(&[("noop".to_owned(), &runs), ("adaptive".to_owned(), &runs[1..2].to_vec())]);
        let of = |name: &str| by_phase.iter().map(|phase| phase[name]).collect::<Vec<_>>();
        assert_eq!((of("noop"), of("adaptive")), (vec![4.0, 100.0], vec![4.0, 25.0]));
    }
}
