//! `sluice explain`, and `sluice status --explain`: what a selector chose, and why.

mod plot;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use sluice_adapt::selector::{Alternative, Context, Explanation, Record, Why};
use sluice_notation::{counted, show_time};
use sluice_select::Status;

use crate::{input, output};

/// Longest line of a log.
const LINE_MAX: usize = 16 << 10;
/// Most lines of a log that are looked at; the last ones count.
const LINES_MAX: usize = 1 << 20;
/// Seconds by which a line may be older than the one before it.
const LATE_S: f64 = 1.0;

/// No selector runs for longer, three centuries, and no device moves more, in MB/s: a line that says more is damaged, and nothing could
/// be drawn to scale with it.
const TIME_MAX_S: f64 = 1e10;
const RATE_MAX_MB_S: f64 = 1e12;

/// Lines of windows are a second apart while there is load; more is a pause, and counts as so much.
const PAUSE_S: f64 = 2.0;

/// With fewer requests at a time, on average, there is nothing to choose from (docs/selection.md).
const CHOICE_MIN: f64 = 1.3;

/// What tells configurations apart: the measure of the table, of the picture, and of the decisions themselves.
const RATE: &str = "MB per busy second";

/// Shows a selector's log of decisions as a timeline
///
/// Which workload was there, what was chosen, what it gave, and what it lost. Rates are in MB per busy second, by which the
/// selector decides: what was moved, and 4 KiB for each request, over the time in which there were requests.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The log (`sluice status --explain` says where it is); - is standard input
    log: PathBuf,
    /// Draw the timeline into this SVG file; - is standard output [default: none]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Only the last so many seconds [default: all]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    last: Option<f64>,
    /// Print JSON: the summary
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let good = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0 && seconds.is_finite());
    good.ok_or_else(|| "expected a number of seconds above 0, like 600".to_owned())
}

/// A log, from the last time that a selector began.
struct Timeline {
    records: Vec<Record>,
    /// It says so where it begins.
    emulated: bool,
    /// Lines that could not be read.
    bad: usize,
}

/// Shows a log.
///
/// # Errors
/// If it cannot be read, or the picture cannot be written.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plot = args.plot.as_deref();
    output::check_standard(plot, args.json)?;
    plot.map_or(Ok(()), output::check_file)?;
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    if plot.and_then(real).is_some_and(|plot| real(&args.log) == Some(plot)) {
        bail!("{}: the picture would take the place of the log", args.log.display());
    }
    let timeline = read(args)?;
    if args.json {
        output::pretty_json(&summary(&timeline))?;
    } else if !plot.is_some_and(output::is_standard) {
        output::text(&describe_timeline(&timeline));
    }
    if let Some(path) = plot {
        let svg = plot::draw(&timeline.records, timeline.emulated).context("drawing the timeline")?;
        output::write_file(path, svg.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(args: &Args) -> anyhow::Result<Timeline> {
    let shown = || input::name(&args.log);
    let mut reader = BufReader::new(input::open(&args.log).with_context(shown)?);
    let (mut records, mut emulated, mut bad, mut line) = (Vec::<Record>::new(), false, 0, Vec::new());
    loop {
        line.clear();
        // A line without end is none.
        if reader.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line).with_context(shown)? == 0 {
            break;
        }
        if line.len() > LINE_MAX {
            // One line, and one that is not read, whatever it ends with.
            if line.last() != Some(&b'\n') {
                reader.skip_until(b'\n').with_context(shown)?;
            }
            bad += 1;
            continue;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice::<Record>(&line) {
            Ok(mut record) if can_be(&record) => {
                // Times begin anew with each start. Of several engines one may be seen late.
                if record.why == Why::Begin || records.last().is_some_and(|last| record.t < last.t - LATE_S) {
                    records.clear();
                    emulated = record.why == Why::Begin && record.text.contains("emulated");
                }
                record.t = records.last().map_or(record.t, |last| last.t.max(record.t));
                records.push(record);
                if records.len() > 2 * LINES_MAX {
                    records.drain(..LINES_MAX);
                }
            }
            _ => bad += 1,
        }
    }
    if let (Some(seconds), Some(end)) = (args.last, records.last().map(|last| last.t)) {
        records.retain(|record| record.t >= end - seconds);
    }
    if records.iter().all(|record| record.why == Why::Begin) {
        bail!(
            "{}: there is no decision in it{}",
            shown(),
            if bad > 0 { ", and it is no log of a selector" } else { "" }
        );
    }
    Ok(Timeline { records, emulated, bad })
}

/// Whether its numbers are some that a selector writes.
fn can_be(record: &Record) -> bool {
    let rates = [Some(record.mb_s), Some(record.rate_mb_s), record.expected_mb_s];
    (0.0..=TIME_MAX_S).contains(&record.t)
        && rates.into_iter().flatten().all(|rate| (0.0..=RATE_MAX_MB_S).contains(&rate))
        && record.regret.is_none_or(|regret| (-1e3..=1.0).contains(&regret))
        && record.pattern_confidence.is_none_or(|confidence| (0.0..=1.0).contains(&confidence))
}

/// Each record with the seconds that it stands for: those since the one before, but for pauses. The first stands for none.
fn spans(records: &[Record]) -> impl Iterator<Item = (&Record, f64)> {
    let before = records.iter().take(1).chain(records);
    records.iter().zip(before).map(|(record, before)| (record, (record.t - before.t).clamp(0.0, PAUSE_S)))
}

impl Timeline {
    /// The share of the throughput of the best configuration that was known that was lost, over time: by those in use, as far as
    /// that was known of them, and by trials.
    fn lost(&self) -> f64 {
        let (mut lost_s, mut seconds, mut trial) = (0.0, 0.0, None::<f64>);
        for (record, passed_s) in spans(&self.records) {
            trial = trial.map(|trial_s| trial_s + passed_s);
            match record.why {
                Why::Trial => trial = Some(0.0),
                Why::TrialWon | Why::TrialLost => {
                    lost_s += record.regret.unwrap_or(0.0) * trial.take().unwrap_or(0.0);
                }
                // What is tried is counted as a whole when that is over.
                Why::Window if trial.is_some() => {}
                Why::Window => lost_s += record.regret.unwrap_or(0.0) * passed_s,
                _ => trial = None,
            }
            seconds += passed_s;
        }
        if seconds > 0.0 { lost_s / seconds } else { 0.0 }
    }

    /// The mean of a rate over the time that the records stand for: lines of decisions stand for less of it than those of windows. Of
    /// a record alone, its own.
    fn mean(&self, rate: impl Fn(&Record) -> f64) -> f64 {
        let sums = spans(&self.records).map(|(record, passed_s)| [rate(record) * passed_s, passed_s]);
        let [sum, seconds] = sums.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d]);
        if seconds > 0.0 { sum / seconds } else { self.records.last().map_or(0.0, rate) }
    }
}

/// For programs.
fn summary(timeline: &Timeline) -> serde_json::Value {
    let count = |why: Why| timeline.records.iter().filter(|record| record.why == why).count();
    let ends = timeline.records.first().zip(timeline.records.last());
    serde_json::json!({
        "seconds": ends.map_or(0.0, |(first, last)| last.t - first.t),
        "windows": count(Why::Window), "mb_s": timeline.mean(|record| record.mb_s),
        "rate_mb_s": timeline.mean(|record| record.rate_mb_s), "regret": timeline.lost(),
        "changes": timeline.records.iter().filter(|record| record.from.is_some()).count(),
        "trials": count(Why::Trial), "trials_won": count(Why::TrialWon),
        "workloads": plot::distinct(timeline.records.iter().filter_map(|record| record.context.as_deref())).len(),
        "workload_changes": count(Why::NewWorkload) + count(Why::KnownWorkload), "unreadable_lines": timeline.bad,
        "emulated": timeline.emulated,
    })
}

fn workload(context: Option<&str>) -> String {
    let context = context.unwrap_or("-");
    Context::parse(context).map_or_else(|| context.to_owned(), |context| context.describe())
}

/// Why the configuration was changed last.
fn reason(why: Why) -> &'static str {
    match why {
        Why::Begin => "begins",
        Why::NewDevice => "more is known of the device",
        Why::Window => "",
        Why::NewWorkload => "a new workload",
        Why::KnownWorkload => "a known workload is back",
        Why::Trial => "it is tried",
        Why::TrialWon => "it was better",
        Why::TrialLost => "what was tried was no better",
        Why::TrialEnded => "a trial was broken off",
        Why::Better => "it is better by what is known now",
        Why::Doubt => "rates have changed",
        Why::DoubtEnded => "rates are as before",
        Why::Resting => "nothing to choose from",
    }
}

/// What was decided, in a line.
fn decision(record: &Record) -> String {
    let (text, arm) = (&record.text, &record.arm);
    let from = record.from.as_deref().unwrap_or("another one");
    match record.why {
        Why::Begin if !text.is_empty() => format!("begins, {text}"),
        Why::NewDevice => format!("more is known of the device: {text}"),
        Why::Begin | Why::Window => reason(record.why).to_owned(),
        Why::NewWorkload => format!("a new workload: {}", workload(record.context.as_deref())),
        Why::KnownWorkload => format!("a known workload is back: {}", workload(record.context.as_deref())),
        Why::Trial => format!("tries {arm} instead of {from}"),
        Why::TrialWon => format!("tried {text}: it stays"),
        Why::TrialLost if record.from.is_some() => format!("tried {text}, back to {arm}"),
        Why::TrialLost => format!("tried {text}"),
        Why::TrialEnded if !text.is_empty() => format!("{text}, so {from} is tried no longer, back to {arm}"),
        Why::TrialEnded => format!("the workload changed while {from} was tried, back to {arm}"),
        Why::Better => format!("{arm} instead of {from}: {text}"),
        Why::Doubt => format!("rates have changed: {text}; others may be tried again"),
        Why::DoubtEnded => "rates are as before: what was known is believed again".to_owned(),
        Why::Resting => text.clone(),
    }
}

fn describe_timeline(timeline: &Timeline) -> String {
    let on = if timeline.emulated { "emulated devices; " } else { "" };
    let mut text = format!(
        "{on}rate: {RATE}, and configuration: since the line before\n\n{:>9}  {:>8}  {:<26}  what\n",
        "time", "rate", "configuration"
    );
    // Since the line before: the sum of rates, each for the time since the record before, but for pauses, and that time.
    let (mut weighted, mut seconds, mut pattern) = (0.0, 0.0, None);
    for (record, since) in spans(&timeline.records) {
        (weighted, seconds) = (weighted + record.rate_mb_s * since, seconds + since);
        let is_other = record.pattern.is_some() && record.pattern != pattern;
        if is_other {
            pattern.clone_from(&record.pattern);
        }
        if record.why == Why::Window && !is_other {
            continue;
        }
        let rate = if seconds > 0.0 { weighted / seconds } else { record.rate_mb_s };
        (weighted, seconds) = (0.0, 0.0);
        let mut line = |what: &str| {
            let time = format!("{:.1} s", record.t);
            let arm = record.from.as_ref().unwrap_or(&record.arm);
            let _ = writeln!(text, "{time:>9}  {rate:>8.1}  {arm:<26}  {what}");
        };
        if let Some(pattern) = record.pattern.as_ref().filter(|_| is_other) {
            let sure = record.pattern_confidence.unwrap_or(0.0) * 100.0;
            line(&format!("pattern: {pattern} ({sure:.0} % sure)"));
        }
        if record.why != Why::Window {
            line(&decision(record));
        }
    }
    let of = summary(timeline);
    let number = |name: &str| of[name].as_f64().unwrap_or(0.0);
    let count = |name: &str, noun: &str| counted(of[name].as_u64().unwrap_or(0), noun);
    let _ = writeln!(
        text,
        "\n{:.0} s: {:.1} {RATE}; {}, {} of which {:.0} won; {:.1} % lost against the best that was known, trials included",
        number("seconds"),
        number("rate_mb_s"),
        count("changes", "change"),
        count("trials", "trial"),
        number("trials_won"),
        number("regret") * 100.0
    );
    if timeline.bad > 0 {
        let _ = writeln!(text, "Note: {} could not be read", counted(timeline.bad as u64, "line"));
    }
    text
}

/// Why there is nothing to choose from, as far as that is known.
fn no_choice(e: &Explanation) -> String {
    match e.concurrency {
        0.0 => String::new(),
        few if few < CHOICE_MIN => format!(": {few:.1} requests at a time"),
        // Else it would not rest.
        _ if e.mode == "resting" => ": the device answers at once".to_owned(),
        _ => String::new(),
    }
}

/// What is being done, for people: before there was a workload, too, it rests.
pub(crate) fn mode(e: &Explanation) -> &str {
    if e.workload.is_none() && e.mode == "steady" { "resting" } else { &e.mode }
}

/// `sluice status --explain`, where the algorithm `in_force` is.
pub(crate) fn describe(status: &Status, in_force: &str, emulated: bool) -> String {
    let mut text = String::new();
    let _ = write_status(&mut text, status, in_force, emulated);
    text
}

fn write_status(text: &mut String, status: &Status, in_force: &str, emulated: bool) -> std::fmt::Result {
    let Explanation { selector, model, device, arm, alternatives, .. } = &status.explanation;
    let e = &status.explanation;
    let seconds = |s: f64| show_time(s * 1e9);
    let paused = if status.paused { "; paused (to go on: sluice policy MOUNTPOINT adaptive)" } else { "" };
    writeln!(
        text,
        "selector   {selector}{}{paused}",
        model.as_ref().map_or_else(String::new, |m| format!(", model {m}"))
    )?;
    writeln!(text, "device     {device}{}", if emulated { " (emulated)" } else { "" })?;
    match &e.workload {
        Some(workload) => writeln!(
            text,
            "workload   {workload}\n           for {}, {:.0} % of its windows looked like it; {:.1} requests at a time, busy {:.0} % of the time",
            seconds(e.lasts_s),
            e.confidence * 100.0,
            e.concurrency,
            e.busy * 100.0
        )?,
        None => writeln!(text, "workload   nothing to choose from{}", no_choice(e))?,
    }
    if let Some(pattern) = &e.pattern {
        let percent = |share: f64| share * 100.0;
        writeln!(
            text,
            "pattern    {} ({:.0} % sure), {:.0} % of the bytes; {} ago",
            pattern.class,
            percent(pattern.confidence),
            percent(pattern.share),
            seconds(pattern.ago_s)
        )?;
        if let Some(why) = &pattern.why {
            writeln!(text, "           {why}")?;
        }
    }
    match status.paused {
        true => writeln!(text, "chosen     paused; in force: {in_force}, set by hand; afterwards again {arm}")?,
        false => writeln!(text, "chosen     {arm} ({})", mode(e))?,
    }
    match e.expected_mb_s {
        Some(expected) => {
            writeln!(text, "expected   {expected:.1} {RATE}, got {:.1} in the last window", e.got_mb_s)?;
        }
        None => writeln!(text, "expected   nothing yet, got {:.1} {RATE} in the last window", e.got_mb_s)?,
    }
    match &e.last_change {
        Some(change) => writeln!(
            text,
            "changed    {} ago, from {} to {}: {}; {} in all",
            seconds(change.ago_s),
            change.from,
            change.to,
            match change.why {
                // What is lost is changed back.
                Why::Trial if e.mode != "trying" => "it was tried, and won",
                why => reason(why),
            },
            counted(e.changes, "change")
        )?,
        None => writeln!(text, "changed    never")?,
    }
    writeln!(
        text,
        "trying     {}, {} of {} of load since the beginning; {} may still be spent; a change costs {}",
        counted(e.trials, "trial"),
        seconds(e.tried_s),
        seconds(e.loaded_s),
        seconds(e.budget_s.max(0.0)),
        seconds(e.switch_s)
    )?;
    writeln!(
        text,
        "deciding   {:.1} us a window, {:.3} % of a core; {} of workload known",
        status.decision_us,
        status.overhead * 100.0,
        counted(e.contexts as u64, "kind")
    )?;
    for (what, path) in [("knowledge", &status.state), ("decisions", &status.log)] {
        if let Some(path) = path {
            writeln!(text, "{what:<10} {path}")?;
        }
    }
    if let Some(note) = &status.note {
        writeln!(text, "note       {note}")?;
    }
    if !alternatives.is_empty() {
        writeln!(text, "\n{:<28}{:>9}{:>22}{:>9}  what of it", "configuration", "gain", "from .. to", "windows")?;
        for one in alternatives {
            let (gain, between) = (percent(one.gain_percent), interval(one));
            writeln!(text, "{:<28}{gain:>9}{between:>22}{:>9.1}  {}", one.arm, one.windows, one.verdict)?;
        }
    }
    Ok(())
}

/// Between what an alternative's gain is, by two standard deviations. These are a factor of the rate: nothing loses all of it.
fn interval(one: &Alternative) -> String {
    let [gain, off] = [one.gain_percent, one.uncertainty_percent].map(|percent| 1.0 + percent / 100.0);
    let [from, to] = [gain / off, gain * off].map(|factor| percent((factor - 1.0) * 100.0));
    format!("{from} .. {to}")
}

fn percent(percent: f64) -> String {
    if percent < 1_000.0 { format!("{percent:.1}%") } else { "> 999%".to_owned() }
}

#[cfg(test)]
mod tests {
    use sluice_adapt::selector::Change;

    use super::*;

    pub(super) fn record(t: f64, why: Why, arm: &str, mb_s: f64) -> Record {
        Record {
            t,
            why,
            context: Some("r2.q0.d1.f1.a0".to_owned()),
            arm: arm.to_owned(),
            from: (why == Why::Trial).then(|| "noop".to_owned()),
            mb_s,
            rate_mb_s: mb_s,
            expected_mb_s: Some(20.0),
            best: Some("hbrr".to_owned()),
            regret: Some(0.25),
            pattern: Some("strided small".to_owned()),
            pattern_confidence: Some(0.97),
            text: String::new(),
        }
    }

    fn log(lines: &[String]) -> (tempfile::TempDir, Args) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::write(&log, lines.join("\n")).unwrap();
        (dir, Args { log, plot: None, last: None, json: false })
    }

    fn line(record: &Record) -> String {
        serde_json::to_string(record).unwrap()
    }

    #[test]
    fn a_log_becomes_a_timeline_from_its_last_beginning() {
        let lines = [
            line(&record(90.0, Why::Trial, "mlf", 1.0)),
            line(&record(0.0, Why::Begin, "noop", 0.0)),
            line(&record(1.0, Why::Window, "noop", 10.0)),
            "{\"t\": oops".to_owned(),
            line(&record(2.0, Why::Window, "noop", 20.0)),
            line(&record(2.0, Why::Trial, "aioli", 20.0)),
        ];
        let (_dir, args) = log(&lines);
        let timeline = read(&args).unwrap();
        let text = describe_timeline(&timeline);
        assert!(!text.contains("mlf") && text.contains("Note: 1 line could not be read"), "{text}");
        let trial = text.lines().find(|line| line.contains("tries aioli instead of noop")).unwrap();
        assert!(trial.contains("15.0"), "the mean since the line before: {trial}");
        let patterns: Vec<&str> = text.lines().filter(|line| line.contains("strided small (97 % sure)")).collect();
        assert_eq!(patterns.len(), 1, "once: {text}");
        assert!(text.contains("2 s: 15.0 MB per busy second; 1 change, 1 trial of which 0 won"), "{text}");
        assert_eq!(summary(&timeline)["regret"], 0.25);
        let svg = plot::draw(&timeline.records, false).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("noop"));
    }

    #[test]
    fn pauses_do_not_weigh_in_the_rates() {
        let windows = [1.0, 2.0, 3.0].map(|t| line(&record(t, Why::Window, "noop", 100.0)));
        let after = [record(603.0, Why::Window, "noop", 1.0), record(603.0, Why::Trial, "aioli", 1.0)];
        let (_dir, args) = log(&[&windows[..], &after.map(|record| line(&record))].concat());
        let text = describe_timeline(&read(&args).unwrap());
        let trial = text.lines().find(|line| line.contains("tries aioli")).unwrap();
        // Two seconds of 100, and two (of ten minutes) of 1.
        assert!(trial.contains("50.5"), "{text}");
    }

    #[test]
    fn the_mean_of_all_is_weighted_by_time() {
        let lines = [
            record(1.0, Why::Window, "noop", 100.0),
            record(2.0, Why::Window, "noop", 100.0),
            // Half a second of 10 that no line of a window tells of, and the other half of 30.
            record(2.5, Why::Trial, "aioli", 10.0),
            record(3.0, Why::Window, "aioli", 30.0),
            record(603.0, Why::Window, "aioli", 1.0),
        ];
        let (_dir, args) = log(&lines.map(|record| line(&record)));
        let all = summary(&read(&args).unwrap());
        let mean = (100.0 + 0.5 * 10.0 + 0.5 * 30.0 + PAUSE_S * 1.0) / 4.0;
        assert_eq!((&all["rate_mb_s"], &all["mb_s"], &all["windows"]), (&mean.into(), &mean.into(), &4.into()));
        let last = summary(&read(&Args { last: Some(1.0), ..args }).unwrap());
        assert_eq!(last["rate_mb_s"], 1.0, "a line alone");
    }

    #[test]
    fn a_line_that_is_far_too_long_is_one_that_cannot_be_read() {
        let window = |t: f64| line(&record(t, Why::Window, "noop", 10.0));
        let long = |len: usize, end: &str| format!("{:>width$}", end, width = len + end.len());
        // What is beyond the longest line would be a line of its own, and one that begins anew.
        let hidden = line(&record(0.0, Why::Begin, "hidden", 1.0));
        let lines = [
            line(&record(0.5, Why::Trial, "sjf", 10.0)),
            long(LINE_MAX + 1, &hidden),
            window(1.0),
            "x".repeat(5 * LINE_MAX),
            window(2.0),
            // The longest.
            long(LINE_MAX - 1 - window(3.0).len(), &window(3.0)),
            long(LINE_MAX - window(4.0).len(), &window(4.0)),
            "x".repeat(LINE_MAX + 7),
        ];
        let (_dir, args) = log(&lines);
        let timeline = read(&args).unwrap();
        let times: Vec<f64> = timeline.records.iter().map(|record| record.t).collect();
        assert_eq!((times, timeline.bad), (vec![0.5, 1.0, 2.0, 3.0], 4));
    }

    #[test]
    fn numbers_that_no_selector_writes_are_damage() {
        let good = record(1.0, Why::Window, "noop", 10.0);
        let of = |change: fn(&mut Record)| {
            let mut record = good.clone();
            change(&mut record);
            line(&record)
        };
        let lines = [
            line(&record(0.5, Why::Trial, "sjf", 10.0)),
            of(|record| record.t = 1e308),
            of(|record| record.t = -1.0),
            of(|record| record.rate_mb_s = 1e308),
            of(|record| record.mb_s = -1.0),
            of(|record| record.expected_mb_s = Some(1e300)),
            of(|record| record.regret = Some(-1e300)),
            of(|record| record.pattern_confidence = Some(1e300)),
            line(&good),
        ];
        let (_dir, args) = log(&lines);
        let timeline = read(&args).unwrap();
        assert_eq!((timeline.records.len(), timeline.bad), (2, 7));
    }

    #[test]
    fn seconds_are_a_number_above_0() {
        assert_eq!((seconds("0.5"), seconds("600")), (Ok(0.5), Ok(600.0)));
        for text in ["-1", "0", "nan", "inf", "-inf", "1e999", "", "10min"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_trials_lose_counts_and_emulated_is_kept() {
        let begin = Record { text: "emulated devices".to_owned(), ..record(0.0, Why::Begin, "noop", 0.0) };
        let lost = Record { regret: Some(0.5), ..record(4.0, Why::TrialLost, "noop", 20.0) };
        let of = [begin, record(1.0, Why::Window, "noop", 10.0), record(2.0, Why::Window, "noop", 10.0)];
        // Of the window in the trial nothing counts by itself.
        let tried = [record(2.0, Why::Trial, "aioli", 10.0), record(3.0, Why::Window, "aioli", 5.0), lost];
        let lines: Vec<String> = of.iter().chain(&tried).map(line).collect();
        let (_dir, args) = log(&lines);
        let all = summary(&read(&args).unwrap());
        assert_eq!((&all["regret"], &all["workloads"]), (&((2.0 * 0.25 + 2.0 * 0.5) / 4.0).into(), &1.into()));
        let last = read(&Args { last: Some(2.5), ..args }).unwrap();
        assert!(last.emulated && last.records.len() == 4, "{:?}", last.records);
        let text = describe_timeline(&last);
        assert!(text.starts_with("emulated devices; "), "the line that says so is not in the last ones: {text}");
    }

    /// What was tried, what it did against what, and what became of it.
    #[test]
    fn the_outcome_of_a_trial_is_told() {
        let lost = Record {
            text: "sjf for 3 windows: 12.0 % less than hbrr".to_owned(),
            ..record(1.0, Why::TrialLost, "sjf", 1.0)
        };
        assert_eq!(decision(&lost), "tried sjf for 3 windows: 12.0 % less than hbrr");
        let back = Record { arm: "hbrr".to_owned(), from: Some("sjf".to_owned()), ..lost.clone() };
        assert_eq!(decision(&back), "tried sjf for 3 windows: 12.0 % less than hbrr, back to hbrr");
        let won = Record { why: Why::TrialWon, text: "sjf for 2 windows: 20.1 % more than hbrr".to_owned(), ..lost };
        assert_eq!(decision(&won), "tried sjf for 2 windows: 20.1 % more than hbrr: it stays");
    }

    #[test]
    fn a_picture_does_not_take_the_place_of_its_log() {
        let lines = [line(&record(0.0, Why::Begin, "noop", 0.0)), line(&record(1.0, Why::Trial, "sjf", 10.0))];
        let (_dir, args) = log(&lines);
        let before = std::fs::read(&args.log).unwrap();
        let error = run(&Args { plot: Some(args.log.clone()), log: args.log.clone(), last: None, json: false });
        assert!(error.unwrap_err().to_string().contains("the place of the log"));
        assert_eq!(std::fs::read(&args.log).unwrap(), before);
    }

    /// Nothing was logged for an hour while something was tried: nothing was asked for, and nothing lost.
    #[test]
    fn a_pause_within_a_trial_loses_nothing() {
        let records = vec![
            record(1.0, Why::Trial, "sjf", 10.0),
            record(3_600.0, Why::Window, "sjf", 10.0),
            record(3_601.0, Why::TrialLost, "hbrr", 10.0),
        ];
        let lost = Timeline { records, emulated: false, bad: 0 }.lost();
        assert!((lost - 0.25).abs() < 1e-9, "{lost}");
    }

    #[test]
    fn what_is_no_log_is_refused() {
        let (_dir, args) = log(&["#!/bin/sh".to_owned(), "exit".to_owned()]);
        assert!(read(&args).err().unwrap().to_string().contains("no log of a selector"));
        let (_dir, args) = log(&[]);
        assert!(read(&args).err().unwrap().to_string().contains("no decision"));
    }

    #[test]
    fn where_there_is_no_choice_it_is_said_why() {
        let of = |mode: &str, concurrency: f64| {
            let explanation = Explanation { mode: mode.to_owned(), concurrency, ..Explanation::default() };
            describe(&Status { explanation, ..Status::default() }, "sjf", false)
        };
        for (mode, concurrency, says) in [
            ("resting", 4.7, "nothing to choose from: the device answers at once\n"),
            ("resting", 1.0, "nothing to choose from: 1.0 requests at a time\n"),
            ("steady", 4.7, "nothing to choose from\n"),
            ("steady", 0.0, "nothing to choose from\n"),
        ] {
            let text = of(mode, concurrency);
            assert!(text.contains(says) && text.contains("(resting)"), "{text}");
        }
    }

    #[test]
    fn a_trial_that_is_over_is_not_told_as_one() {
        let change = Change { ago_s: 1.9, from: "sjf".into(), to: "hbrr".into(), why: Why::Trial };
        for (mode, says) in [("trying", "from sjf to hbrr: it is tried;"), ("steady", ": it was tried, and won;")] {
            let last_change = Some(change.clone());
            let explanation = Explanation { mode: mode.to_owned(), last_change, ..Explanation::default() };
            let text = describe(&Status { explanation, ..Status::default() }, "hbrr", false);
            assert!(text.contains(says), "{text}");
        }
    }

    #[test]
    fn nothing_is_said_to_lose_more_than_all() {
        let one = |gain_percent: f64, uncertainty_percent: f64| Alternative {
            arm: "sjf".to_owned(),
            gain_percent,
            uncertainty_percent,
            windows: 3.0,
            verdict: "in use".to_owned(),
        };
        let alternatives = vec![one(-59.7, 197.2), one(0.0, 0.0), one(50.0, 1e9)];
        let explanation = Explanation { alternatives, ..Explanation::default() };
        let text = describe(&Status { explanation, ..Status::default() }, "sjf", false);
        for says in ["-59.7%       -86.4% .. 19.8%", "0.0%          0.0% .. 0.0%", "-100.0% .. > 999%      3.0  in use"]
        {
            assert!(text.contains(says), "{text}");
        }
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }

    #[test]
    fn what_was_set_by_hand_is_told() {
        let arm = "sjf anticipation=on".to_owned();
        let explanation = Explanation { arm, mode: "steady".to_owned(), ..Explanation::default() };
        let mut status = Status { explanation, paused: true, ..Status::default() };
        let text = describe(&status, "hbrr ranges=8", false);
        assert!(text.contains("paused; in force: hbrr ranges=8, set by hand; afterwards again sjf"), "{text}");
        status.paused = false;
        assert!(!describe(&status, "hbrr ranges=8", false).contains("hbrr"));
    }

    #[test]
    fn figures_of_emulated_devices_say_so() {
        let text = describe(&Status::default(), "sjf", true);
        assert!(text.contains("(emulated)"), "{text}");
    }
}
