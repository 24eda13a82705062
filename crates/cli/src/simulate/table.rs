//! Results for people.

use super::{Results, Row};
use sluice_notation::{counted, show_number, show_size, show_time, show_time_roughly};
use sluice_sim::{Durations, Estimate, Label, Outcome, SEEDS_MIN};
use std::fmt::Write as _;

/// More rows than this are summed up.
const ROWS_MAX: usize = 60;

pub(super) fn show(results: &Results) -> String {
    let mut text = String::new();
    let title = if results.title.is_empty() { "" } else { ": " };
    let _ = writeln!(text, "{}{title}{}", results.name, results.title);
    let mut scales: Vec<&str> = results.rows.iter().map(|row| row.scale.as_str()).collect();
    scales.sort_unstable();
    scales.dedup();
    let _ = writeln!(
        text,
        "simulated, {} x {}; data scaled by {}\n",
        counted(results.rows.len() as u64, "run"),
        counted(results.seeds.into(), "seed"),
        scales.join(", ")
    );
    match results.rows.as_slice() {
        [row] => one(&mut text, row),
        _ if results.compare.is_some() => compared(&mut text, results),
        _ => list(&mut text, results),
    }
    text
}

/// With an interval: to the second digit of its half width, but no more than four of the mean.
fn with_interval(estimate: &Estimate) -> String {
    let Estimate { mean, half_width, .. } = *estimate;
    if half_width == 0.0 {
        return show_number(mean);
    }
    let decimals = |value: f64, digits: f64| (digits - 1.0 - value.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    let decimals = decimals(half_width, 2.0).min(decimals(mean, 4.0));
    format!("{mean:.decimals$} ±{half_width:.decimals$}")
}

fn durations(text: &mut String, name: &str, d: &Durations) {
    let _ = writeln!(
        text,
        "  {name:<22} mean {}, median {}, 95 % {}, 99 % {}, longest {}",
        show_time(d.mean_ns as f64),
        show_time_roughly(d.p50_ns as f64),
        show_time_roughly(d.p95_ns as f64),
        show_time_roughly(d.p99_ns as f64),
        show_time(d.max_ns as f64)
    );
}

/// Everything about a single run; the distributions are the first seed's.
fn one(text: &mut String, row: &Row) {
    let Some(outcome) = row.outcomes.first() else { return };
    let _ = writeln!(text, "  {:<22} {} s", "makespan", with_interval(&row.makespan_s));
    let _ = writeln!(text, "  {:<22} {} MB/s", "throughput", with_interval(&row.throughput_mb_s));
    let _ = writeln!(text, "  {:<22} {} (Jain's index)", "fairness", with_interval(&row.jain));
    for app in &outcome.apps {
        let slow = app.slow_down.map_or_else(String::new, |slow| format!(", {slow:.2} times its time alone"));
        let _ = writeln!(text, "  {:<22} {}{slow}", app.name, show_time(app.makespan_ns as f64));
        durations(text, "  its requests", &app.latency);
    }
    nodes(text, outcome);
    let device = &outcome.device;
    let _ = writeln!(
        text,
        "  {:<22} {:.1} % busy, {:.1} % of that positioning, {} of {}",
        "devices",
        outcome.busy_share() * 100.0,
        device.seek_share() * 100.0,
        counted(device.commands, "command"),
        show_size(device.bytes as f64 / device.commands.max(1) as f64)
    );
    if let Some(predictions) = &outcome.predictions {
        let _ = writeln!(
            text,
            "  {:<22} {} predicted, {} ({} with all that was expected), {} joined",
            "predictions",
            counted(predictions.linked, "request"),
            counted(predictions.waits, "wait"),
            predictions.complete,
            show_size(predictions.gained_bytes as f64)
        );
    }
    if let Some(faults) = &outcome.faults {
        let _ = writeln!(
            text,
            "  {:<22} {} lost, {} doubled, {}, {}; {} sent again",
            "faults",
            counted(faults.lost, "message"),
            faults.doubled,
            counted(faults.crashes, "crash"),
            counted(faults.failed, "error"),
            counted(faults.repeated, "request")
        );
    }
    let _ = writeln!(text, "  {:<22} {:016x} ({})", "digest", outcome.digest, counted(outcome.events, "event"));
}

fn nodes(text: &mut String, outcome: &Outcome) {
    let kinds = [("I/O nodes", outcome.io_nodes.as_ref()), ("data servers", Some(&outcome.servers))];
    for (name, nodes) in kinds {
        let Some(nodes) = nodes else { continue };
        let _ = writeln!(
            text,
            "  {name:<22} {} in {} (aggregation {:.2}), {:.1} waiting",
            counted(nodes.requests, "request"),
            counted(nodes.batches, "batch"),
            nodes.aggregation,
            nodes.depth
        );
        durations(text, "  wait", &nodes.wait);
        durations(text, "  service", &nodes.service);
    }
}

fn axis_names(results: &Results, skip: Option<usize>) -> Vec<&str> {
    let names = results.axes.iter().enumerate().filter(|(at, _)| Some(*at) != skip);
    names.map(|(_, (name, _))| name.as_str()).collect()
}

fn list(text: &mut String, results: &Results) {
    let head: Vec<String> = axis_names(results, None).iter().map(|name| (*name).to_owned()).collect();
    let columns = ["makespan s", "MB/s", "aggregation", "99 % wait", "Jain", "busy %", "seek %"];
    let head = head.into_iter().chain(columns.map(str::to_owned)).collect();
    let row = |row: &Row| {
        let wait = row
            .outcomes
            .first()
            .map_or_else(String::new, |outcome| show_time_roughly(outcome.servers.wait.p99_ns as f64));
        let figures = [
            with_interval(&row.makespan_s),
            with_interval(&row.throughput_mb_s),
            with_interval(&row.aggregation),
            wait,
            show_number(row.jain.mean),
            show_number(row.busy_share.mean * 100.0),
            show_number(row.seek_share.mean * 100.0),
        ];
        row.values.iter().cloned().chain(figures).collect::<Vec<_>>()
    };
    let mut rows = vec![head];
    rows.extend(results.rows.iter().take(ROWS_MAX).map(row));
    text.push_str(&aligned(&rows, results.axes.len()));
    if results.rows.len() > ROWS_MAX {
        let _ = writeln!(text, "... and {} more; --out DIR writes them all", results.rows.len() - ROWS_MAX);
    }
}

/// Improvements over the baseline: a line for each combination of the other axes, a column for each value.
fn compared(text: &mut String, results: &Results) {
    let Some((name, baseline)) = &results.compare else { return };
    let Some(axis) = results.axes.iter().position(|(axis, _)| axis == name) else { return };
    let values: Vec<&String> = results.axes[axis].1.iter().filter(|value| *value != baseline).collect();
    let others = |row: &Row| {
        let others = row.values.iter().enumerate().filter(|(at, _)| *at != axis);
        others.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let note = if results.seeds > 1 {
        "; ?: not significant, paired by seed at 5 %"
    } else {
        "; one seed: nothing is said of chance"
    };
    let _ = writeln!(text, "less time than {name} {baseline}, in % (negative: more time{note}):\n");
    let mut head: Vec<String> = axis_names(results, Some(axis)).iter().map(|name| (*name).to_owned()).collect();
    let leading = head.len();
    head.push(format!("{baseline} s"));
    head.extend(values.iter().map(|value| (*value).clone()));
    let mut table = vec![head];
    for base in results.rows.iter().filter(|row| row.values[axis] == *baseline) {
        let mut line = others(base);
        line.push(with_interval(&base.makespan_s));
        for value in &values {
            let found = results.rows.iter().find(|row| row.values[axis] == **value && others(row) == others(base));
            let percent = |e: Estimate| Estimate { mean: e.mean * 100.0, half_width: e.half_width * 100.0, ..e };
            let improvement = found.and_then(|row| row.improvement).map(percent);
            line.push(improvement.map_or_else(|| "-".to_owned(), |e| percentage(&e) + mark(&e)));
        }
        table.push(line);
    }
    if results.seeds > 1 {
        head_of_best(&mut table[0], results);
        for (line, label) in table[1..].iter_mut().zip(&results.labels) {
            line.push(best(results, label, axis));
        }
    }
    if table.len() > ROWS_MAX + 1 {
        text.push_str(&summary(results, axis, baseline, &values));
        let _ = writeln!(text, "{} combinations; --out DIR writes them all", table.len() - 1);
        if results.seeds > 1 {
            winners(text, results, axis);
        }
    } else {
        text.push_str(&aligned(&table, leading));
    }
}

/// Per cent, to the tenth at most.
fn percentage(estimate: &Estimate) -> String {
    match estimate.half_width {
        half if half > 0.0 => format!("{:.1} ±{half:.1}", estimate.mean),
        _ => format!("{:.1}", estimate.mean),
    }
}

/// Where the interval contains 0.
fn mark(estimate: &Estimate) -> &'static str {
    match estimate {
        Estimate { count: 0..=1, .. } => "",
        estimate if estimate.is_significant() => " ",
        _ => "?",
    }
}

fn head_of_best(head: &mut Vec<String>, results: &Results) {
    let few = (results.seeds as usize) < SEEDS_MIN;
    head.push(if few { "best (too few seeds)".to_owned() } else { "best".to_owned() });
}

/// The fastest with those that tie with it, and what it gains on seeds that had no part in choosing it.
fn best(results: &Results, label: &Label, axis: usize) -> String {
    let names: Vec<&str> = label.best.iter().map(|value| results.axes[axis].1[*value].as_str()).collect();
    let gain = label.gain.map_or_else(String::new, |gain| format!(" ({:+.1} %)", gain * 100.0));
    match names.len() {
        _ if (results.seeds as usize) < SEEDS_MIN => "?".to_owned(),
        count if count == label.compared => "no difference".to_owned(),
        0..=3 => names.join(" = ") + &gain,
        count => format!("{} = {} others{gain}", names[0], count - 1),
    }
}

/// Quartiles of the improvements for each value of each other axis.
fn summary(results: &Results, axis: usize, baseline: &str, values: &[&String]) -> String {
    let mut head = vec!["".to_owned(), "runs".to_owned()];
    head.extend(values.iter().map(|value| (*value).clone()));
    let mut table = vec![head];
    let mut line = |name: String, fits: &dyn Fn(&Row) -> bool| {
        let runs = results.rows.iter().filter(|row| fits(row) && row.values[axis] == baseline).count();
        if runs == 0 {
            return;
        }
        let mut cells = vec![name, runs.to_string()];
        for value in values {
            let fitting = results.rows.iter().filter(|row| fits(row) && row.values[axis] == **value);
            let mut found: Vec<f64> = fitting.filter_map(|row| row.improvement).map(|e| e.mean * 100.0).collect();
            found.sort_by(f64::total_cmp);
            let at = |share: usize| found.get((found.len().max(1) - 1) * share / 100).copied().unwrap_or(f64::NAN);
            cells.push(format!("{:.0} [{:.0}, {:.0}]", at(50), at(0), at(100)));
        }
        table.push(cells);
    };
    line("all".to_owned(), &|_| true);
    for (at, (name, choices)) in results.axes.iter().enumerate().filter(|(at, _)| *at != axis) {
        for choice in choices {
            line(format!("{name} {choice}"), &|row| row.values[at] == *choice);
        }
    }
    format!("median [smallest, largest]:\n{}", aligned(&table, 1))
}

/// How often each value is the best, alone and with others.
fn winners(text: &mut String, results: &Results, axis: usize) {
    let labels: Vec<&Label> = results.labels.iter().filter(|label| label.best.len() < label.compared).collect();
    let none = results.labels.len() - labels.len();
    let mut table = vec![vec![results.axes[axis].0.clone(), "best alone".to_owned(), "among the best".to_owned()]];
    for (number, name) in results.axes[axis].1.iter().enumerate() {
        let among = labels.iter().filter(|label| label.best.contains(&number)).count();
        let alone = labels.iter().filter(|label| label.is_label && label.best == [number]).count();
        table.push(vec![name.clone(), alone.to_string(), among.to_string()]);
    }
    let all = counted(results.labels.len() as u64, "situation");
    let _ = writeln!(text, "\n{none} of {all} without a difference; in the others:");
    text.push_str(&aligned(&table, 1));
}

/// Columns of equal width: the first ones to the left, the others to the right.
fn aligned(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        text.push(' ');
        for (at, cell) in row.iter().enumerate() {
            let width = widths[at];
            let _ = if at < left { write!(text, " {cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    }
    text
}
