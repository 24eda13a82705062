//! `sluice explain`, and `sluice status --explain`: what a selector chose, and why.

mod plot;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use sluice_adapt::selector::{Context, Explanation, Record, Why};
use sluice_notation::show_time;
use sluice_select::Status;

use crate::output;

/// Longest line of a log.
const LINE_MAX: usize = 16 << 10;
/// Most lines of a log that are looked at; the last ones count.
const LINES_MAX: usize = 1 << 20;

/// Shows a selector's log of decisions as a timeline
///
/// Which workload was there, what was chosen, what it gave, and what it lost.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The log (`sluice status --explain` says where it is)
    log: PathBuf,
    /// Draw the timeline as SVG [default: none]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Only the last so many seconds [default: all]
    #[arg(long, value_name = "SECONDS")]
    last: Option<f64>,
    /// Print JSON: the summary
    #[arg(long)]
    json: bool,
}

/// A log, from the last time that a selector began.
struct Timeline {
    records: Vec<Record>,
    /// Lines that could not be read.
    bad: usize,
}

/// Shows a log.
///
/// # Errors
/// If it cannot be read, or the picture cannot be written.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(plot) = &args.plot {
        output::check_file(plot)?;
    }
    let timeline = read(args)?;
    if args.json {
        output::pretty_json(&summary(&timeline))?;
    } else {
        output::text(&describe_timeline(&timeline));
    }
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::draw(&timeline.records)?).with_context(|| path.display().to_string())?;
        output::tell(format_args!("the timeline is in {}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn read(args: &Args) -> anyhow::Result<Timeline> {
    let shown = || args.log.display().to_string();
    let mut reader = BufReader::new(std::fs::File::open(&args.log).with_context(shown)?);
    let (mut records, mut bad, mut line) = (Vec::<Record>::new(), 0, Vec::new());
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).with_context(shown)? == 0 {
            break;
        }
        match serde_json::from_slice::<Record>(&line) {
            Ok(record) if line.len() <= LINE_MAX && record.t.is_finite() => {
                // Times begin anew with each start.
                if record.why == Why::Begin || records.last().is_some_and(|last| record.t < last.t) {
                    records.clear();
                }
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
    Ok(Timeline { records, bad })
}

/// For programs.
fn summary(timeline: &Timeline) -> serde_json::Value {
    let windows: Vec<&Record> = timeline.records.iter().filter(|record| record.why == Why::Window).collect();
    let mean = |of: &dyn Fn(&Record) -> Option<f64>| {
        let values: Vec<f64> = windows.iter().filter_map(|record| of(record)).collect();
        if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
    };
    let count = |why: Why| timeline.records.iter().filter(|record| record.why == why).count();
    let ends = timeline.records.first().zip(timeline.records.last());
    serde_json::json!({
        "seconds": ends.map_or(0.0, |(first, last)| last.t - first.t),
        "windows": windows.len(), "mb_s": mean(&|record| Some(record.mb_s)), "regret": mean(&|record| record.regret),
        "changes": timeline.records.iter().filter(|record| record.from.is_some()).count(),
        "trials": count(Why::Trial), "trials_won": count(Why::TrialWon),
        "workloads": count(Why::NewWorkload) + count(Why::KnownWorkload), "unreadable_lines": timeline.bad,
    })
}

fn workload(context: &Option<String>) -> String {
    let context = context.as_deref().unwrap_or("-");
    Context::parse(context).map_or_else(|| context.to_owned(), |context| context.describe())
}

fn reason(why: Why) -> &'static str {
    match why {
        Why::Begin => "begins",
        Why::Window => "",
        Why::NewWorkload => "new workload",
        Why::KnownWorkload => "workload is known",
        Why::Trial => "trial",
        Why::TrialWon => "was better: stays",
        Why::TrialLost => "was not better",
        Why::TrialEnded => "workload has changed",
        Why::Better => "better by now",
        Why::Doubt => "reward has changed",
        Why::Resting => "nothing to choose from",
    }
}

fn describe_timeline(timeline: &Timeline) -> String {
    let mut text = format!("{:>9}  {:>8}  {:<26}  {:<24}  why\n", "time", "MB/s", "configuration", "what");
    let mut rates: Vec<f64> = Vec::new();
    let mut pattern = None;
    for record in &timeline.records {
        let is_other = record.pattern.is_some() && record.pattern != pattern;
        if is_other {
            pattern.clone_from(&record.pattern);
        }
        if record.why == Why::Window {
            rates.push(record.mb_s);
            if !is_other {
                continue;
            }
        }
        // Since the line before.
        let rate = if rates.is_empty() { record.mb_s } else { rates.iter().sum::<f64>() / rates.len() as f64 };
        rates.clear();
        let is_new = matches!(record.why, Why::NewWorkload | Why::KnownWorkload);
        let mut line = |what: &str, more: &str| {
            let time = format!("{:.1}s", record.t);
            let _ = writeln!(text, "{time:>9}  {rate:>8.1}  {:<26}  {what:<24}  {more}", record.arm);
        };
        if let Some(pattern) = record.pattern.as_ref().filter(|_| is_other) {
            let sure = record.pattern_confidence.unwrap_or(0.0) * 100.0;
            line("pattern", &format!("{pattern} ({sure:.0} % sure)"));
        }
        if record.why != Why::Window {
            line(reason(record.why), &if is_new { workload(&record.context) } else { record.text.clone() });
        }
    }
    let of = summary(timeline);
    let number = |name: &str| of[name].as_f64().unwrap_or(0.0);
    let _ = writeln!(
        text,
        "\n{:.0} s: {:.1} MB/s, {:.0} changes, {:.0} trials of which {:.0} won; against the best that was known {:.1} % lost",
        number("seconds"),
        number("mb_s"),
        number("changes"),
        number("trials"),
        number("trials_won"),
        number("regret") * 100.0
    );
    if timeline.bad > 0 {
        let _ = writeln!(text, "Note: {} lines could not be read", timeline.bad);
    }
    text
}

/// `sluice status --explain`.
pub(crate) fn describe(status: &Status, emulated: bool) -> String {
    let mut text = String::new();
    let _ = write_status(&mut text, status, emulated);
    text
}

fn write_status(text: &mut String, status: &Status, emulated: bool) -> std::fmt::Result {
    let Explanation { selector, model, device, mode, arm, alternatives, .. } = &status.explanation;
    let e = &status.explanation;
    let seconds = |s: f64| show_time(s * 1e9);
    let paused =
        if status.paused { "; paused: the algorithm was set by hand (sluice policy MOUNTPOINT adaptive)" } else { "" };
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
        None => writeln!(text, "workload   nothing to choose from: {:.1} requests at a time", e.concurrency)?,
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
    writeln!(text, "chosen     {arm} ({mode})")?;
    match e.expected_mb_s {
        Some(expected) => {
            writeln!(text, "expected   {expected:.1} MB per busy second, got {:.1} in the last window", e.got_mb_s)?;
        }
        None => writeln!(text, "expected   nothing yet, got {:.1} MB per busy second in the last window", e.got_mb_s)?,
    }
    match &e.last_change {
        Some(change) => writeln!(
            text,
            "changed    {} ago, from {} to {}: {}; {} changes in all",
            seconds(change.ago_s),
            change.from,
            change.to,
            reason(change.why),
            e.changes
        )?,
        None => writeln!(text, "changed    never")?,
    }
    writeln!(
        text,
        "trying     {} trials, {} of {} of load since the beginning; {} may still be spent; a change costs {}",
        e.trials,
        seconds(e.tried_s),
        seconds(e.loaded_s),
        seconds(e.budget_s.max(0.0)),
        seconds(e.switch_s)
    )?;
    writeln!(
        text,
        "deciding   {:.1} us a window, {:.3} % of a core; {} kinds of workload known",
        status.decision_us,
        status.overhead * 100.0,
        e.contexts
    )?;
    for (what, path) in [("knowledge", &status.state), ("decisions", &status.log)] {
        if let Some(path) = path {
            writeln!(text, "{what:<10} {}", path.display())?;
        }
    }
    if !alternatives.is_empty() {
        writeln!(text, "\n{:<28}{:>9}{:>9}{:>9}  ", "configuration", "gain", "+-", "windows")?;
        for one in alternatives {
            let (gain, off) = (one.gain_percent, one.uncertainty_percent);
            writeln!(text, "{:<28}{gain:>8.1}%{off:>8.1}%{:>9.1}  {}", one.arm, one.windows, one.verdict)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(t: f64, why: Why, arm: &str, mb_s: f64) -> Record {
        Record {
            t,
            why,
            context: Some("r2.q2.d1.f1.a0".to_owned()),
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
        assert!(
            text.contains("aioli") && !text.contains("mlf") && text.contains("1 lines could not be read"),
            "{text}"
        );
        let trial = text.lines().find(|line| line.contains("trial  ")).unwrap();
        assert!(trial.contains("15.0"), "the mean since the line before: {trial}");
        let patterns: Vec<&str> = text.lines().filter(|line| line.contains("strided small (97 % sure)")).collect();
        assert_eq!(patterns.len(), 1, "once: {text}");
        assert_eq!(summary(&timeline)["regret"], 0.25);
        let svg = plot::draw(&timeline.records).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("aioli"));
    }

    #[test]
    fn what_is_no_log_is_refused() {
        let (_dir, args) = log(&["#!/bin/sh".to_owned(), "exit".to_owned()]);
        assert!(read(&args).err().unwrap().to_string().contains("no log of a selector"));
        let (_dir, args) = log(&[]);
        assert!(read(&args).err().unwrap().to_string().contains("no decision"));
    }

    #[test]
    fn figures_of_emulated_devices_say_so() {
        let text = describe(&Status::default(), true);
        assert!(text.contains("(emulated)"), "{text}");
    }
}
