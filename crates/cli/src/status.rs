//! `sluice status`.

use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use sluice_fuse::MountState;
use sluice_notation::{counted, show_number, show_rate, show_size, show_time, show_time_roughly};

use crate::control::{self, App, Client, Flow, Latency, Status, Window};
use crate::explain;
use crate::output::{self, Versioned};

/// Shows what a mount does: algorithm, queues, throughput, latency, applications
///
/// Percentiles are read from buckets of up to 12.5 % width: two digits of them are known. docs/status.md explains each figure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Print JSON: one object, with --watch one a line
    #[arg(long)]
    json: bool,
    /// Tell what the selector sees, what it chose, what it expected and got, and what else it considered
    #[arg(long)]
    explain: bool,
    /// Go on every second until the mount ends, or Ctrl-C
    #[arg(short, long)]
    watch: bool,
}

/// Prints the state of a mount.
///
/// # Errors
/// If nobody serves the mount.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut client = open(&args.mountpoint)?;
    let mut status = client.status()?;
    let show = |status: &Status, clear| show(status, &args, clear);
    if !args.watch {
        show(&status, false)?;
        return Ok(ExitCode::SUCCESS);
    }
    let clear = !args.json && std::io::stdout().is_terminal() && !output::is_dumb();
    // A channel on which nothing ever comes is a timer that needs no signal handling.
    let (_never, pause) = channel::<()>();
    loop {
        if !show(&status, clear)? {
            return Ok(ExitCode::SUCCESS);
        }
        if pause.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
            return Ok(ExitCode::SUCCESS);
        }
        match client.status() {
            Ok(next) => status = next,
            Err(_) => {
                output::tell(format_args!("{} is not served any more", status.mountpoint));
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// A connection to whoever serves the mount at this path.
///
/// # Errors
/// If nobody does; says what is there instead.
pub(crate) fn open(mountpoint: &Path) -> anyhow::Result<Client> {
    let path = control::canonical(mountpoint)?;
    if let Some(client) = control::connect(&path)? {
        return Ok(client);
    }
    let at = path.display();
    match sluice_fuse::state(&path)? {
        MountState::Absent => bail!("{at}: no Sluicegate mount; make one with: sluice mount SOURCE {at}"),
        MountState::Dead => bail!(
            "{at}: the process that served this mount has died; mount it again, or clear it away with: sluice unmount {at}"
        ),
        MountState::Alive => bail!(
            "{at}: is mounted, but its control socket is not found; ask as the user who mounted it, with the same \
             XDG_RUNTIME_DIR and SLUICE_RUNTIME_DIR"
        ),
    }
}

/// Whether whoever reads has not had enough.
fn show(status: &Status, args: &Args, clear: bool) -> anyhow::Result<bool> {
    let text = match (&status.selection, args.explain, args.json) {
        (Some(selection), true, true) => {
            serde_json::to_string(&Versioned::new(selection)).context("writing JSON")? + "\n"
        }
        (Some(selection), true, false) => explain::describe(selection, &algorithm(status), status.emulated),
        (None, true, _) => bail!("{}: {}", status.mountpoint, control::NOBODY_CHOOSES),
        (_, false, true) => serde_json::to_string(&Versioned::new(status)).context("writing JSON")? + "\n",
        (_, false, false) => describe(status),
    };
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok().filter(|_| clear);
    let text = match size {
        Some(size) => fitted(&text, size.ws_row.into(), size.ws_col.into()),
        None => text,
    };
    let clear = if clear { "\x1b[H\x1b[2J" } else { "" };
    let mut out = std::io::stdout().lock();
    match write!(out, "{clear}{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).context("standard output cannot be written"),
    }
}

/// As much of a text as a terminal shows: what wraps or scrolls takes the head out of sight. Some do not know how large they are.
fn fitted(text: &str, rows: usize, columns: usize) -> String {
    if rows < 2 || columns == 0 {
        return text.to_owned();
    }
    let cut = |line: &str| match line.chars().count() > columns {
        true => line.chars().take(columns.saturating_sub(3)).chain("...".chars()).collect(),
        false => line.to_owned(),
    };
    let mut lines: Vec<String> = text.lines().map(cut).collect();
    // The cursor is in the last row.
    if lines.len() > rows - 1 {
        lines.truncate(rows - 2);
        lines.push("...".to_owned());
    }
    lines.join("\n") + "\n"
}

fn describe(status: &Status) -> String {
    let mut text = String::new();
    let _ = write_head(&mut text, status);
    let _ = write_flows(&mut text, &status.recent, &status.total);
    let _ = write_windows(&mut text, &status.windows);
    let _ = write_apps(&mut text, &status.apps);
    let _ = write_traces(&mut text, status);
    for note in &status.notes {
        let _ = writeln!(text, "\nNote: {note}");
    }
    text
}

fn write_traces(text: &mut String, status: &Status) -> std::fmt::Result {
    if let Some(recording) = &status.recording {
        let control::Recorded { path, entries, dropped, failed } = recording;
        write!(text, "\nrecording  to {path}: {}, {dropped} lost", counted(*entries, "request"))?;
        writeln!(text, "{}", failed.as_ref().map_or_else(String::new, |why| format!("; failed: {why}")))?;
    }
    if let Some(prediction) = &status.prediction {
        let crate::predict::Status {
            from,
            predicted,
            known,
            linked,
            waits,
            complete,
            waited_ms,
            verdict,
            gain_percent,
            alpha,
            ..
        } = prediction;
        writeln!(text, "\nprediction from {from}: {}", counted(*predicted, "request"))?;
        writeln!(
            text,
            "           {linked} of {} linked; {}, {complete} complete, {} in all",
            counted(*known, "request"),
            counted(*waits, "wait"),
            show_time(waited_ms * 1e6)
        )?;
        let measured = if *gain_percent == 0.0 { String::new() } else { format!(" ({gain_percent:+.0} % throughput)") };
        let what = match verdict.as_str() {
            "no profile" => "nothing is waited for without a profile of the device: sluice profile, prediction.profile",
            "unknown" => "not known yet whether waiting pays",
            "pays" => "waiting pays",
            "does not pay" => "waiting does not pay: off until the next trial",
            other => other,
        };
        writeln!(text, "           {what}{measured}; alpha {alpha:.2}")?;
        if let Some(learned) = &prediction.learned {
            let crate::predict::Learned { series, repeating, runs, requests, open_requests, bytes, .. } = learned;
            writeln!(
                text,
                "learned    {series} series, {repeating} of them with repetitions; kept: {}, {}",
                counted(*runs, "run"),
                counted(*requests, "request")
            )?;
            let size = show_size(*bytes as f64);
            writeln!(text, "           {} of files in use; {size} in all", counted(*open_requests, "request"))?;
        }
    }
    Ok(())
}

/// What is in force, with its parameters.
fn algorithm(status: &Status) -> String {
    let params: String = status.policy.params.iter().map(|(key, value)| format!(" {key}={value}")).collect();
    format!("{}{params}", status.policy.name)
}

fn write_head(text: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(text, "{}  (process {}, up {})", status.mountpoint, status.pid, show_time(status.uptime_s * 1e9))?;
    writeln!(text, "algorithm  {}", algorithm(status))?;
    if let Some(selection) = &status.selection {
        let explanation = &selection.explanation;
        let what = if selection.paused { "paused: set by hand" } else { explain::mode(explanation) };
        let workload = explanation.workload.as_deref().unwrap_or("nothing to choose from");
        writeln!(text, "selector   {} ({what}); {workload}", explanation.selector)?;
    }
    if let Some(coordinator) = &status.coordinator {
        let how = match (coordinator.is_connected, coordinator.offset_error_us) {
            (false, _) => "does not answer: what is in force stays".to_owned(),
            (true, 0.0) => "answers".to_owned(),
            (true, error) => format!("answers; its clock is known to {error:.0} us"),
        };
        writeln!(text, "coordinator {} {how}; seek times: {}", coordinator.address, coordinator.seek_times)?;
    }
    writeln!(text, "storage    {}", status.storage)?;
    if let Some(tier) = &status.tier {
        let bytes = |key| tier[key].as_f64().unwrap_or(0.0);
        let health = tier["health"].as_str().unwrap_or("unknown");
        let (dirty, hits) = (show_size(bytes("dirty_bytes")), 100.0 * bytes("hit_rate"));
        writeln!(
            text,
            "tier       {health}; {dirty} that only the SSD has; {hits:.0} % of what was read came from it"
        )?;
    }
    if let Some(device) = &status.device {
        write_device(text, device)?;
    }
    if status.emulated {
        writeln!(text, "           times below are those of emulated devices")?;
    }
    let known = sluice_core::policy::table().iter().find(|one| one.name == status.policy.name);
    let limit = match status.in_flight_max {
        _ if known.is_some_and(|one| one.bypasses_queue) => format!("without limit ({})", status.policy.name),
        0 => "as many as there are workers".to_owned(),
        n => format!("at most {n} an engine"),
    };
    let read_only = if status.read_only { ", read-only" } else { "" };
    writeln!(
        text,
        "setup      {}, {}, workers: {}, in flight {limit}, cache {}{read_only}",
        counted(status.targets.into(), "target"),
        counted(status.engines as u64, "engine"),
        status.workers,
        status.cache
    )?;
    let has_no_part = known.is_some_and(|one| one.bypasses_queue || one.shared_engine);
    if let Some(anticipation) = &status.anticipation {
        let [moving, slice] = [anticipation.positioning_ms, anticipation.slice_ms].map(|ms| show_time(ms * 1e6));
        if has_no_part {
            let name = &status.policy.name;
            writeln!(text, "           no stream is waited for: {name} has no part in it")?;
        } else {
            writeln!(text, "           streams are waited for: moving costs the device {moving}, slices of {slice}")?;
        }
    }
    if let Some(commit) = status.group_commit.as_ref().filter(|commit| commit.held > 0) {
        writeln!(
            text,
            "           syncs go together: {} in {}, {} of them put off by {} in the mean",
            counted(commit.syncs, "sync"),
            counted(commit.groups, "group"),
            commit.held,
            show_time(commit.held_mean_ms * 1e6)
        )?;
    }
    if let Some(gate) = &status.gate {
        let [window, left] = [gate.window_ms, gate.left_ms].map(|ms| show_time(ms * 1e6));
        writeln!(
            text,
            "           one program at a time: {} in windows of {window}, number {} for another {left}, {} held back",
            counted(gate.objects as u64, "object"),
            gate.open,
            counted(gate.held.into(), "request")
        )?;
    }
    writeln!(text, "now        {} queued, {} in flight", status.queued, status.in_flight)
}

fn write_device(text: &mut String, device: &sluice_select::DeviceStatus) -> std::fmt::Result {
    let sluice_select::DeviceStatus { kind, seems, confidence, reason, positioning_ms, read_mb_s, .. } = device;
    let seems = if seems == kind { String::new() } else { format!(", seem to be {seems}") };
    writeln!(text, "learned    {kind}{seems} ({:.0} % sure): {reason}", confidence * 100.0)?;
    let moving = positioning_ms.map(|ms| format!("a batch elsewhere takes {} longer", show_time(ms.max(0.0) * 1e6)));
    let rate = read_mb_s.map(|rate| format!("{} in sequence", show_rate(rate * 1e6)));
    let figures: Vec<String> = moving.into_iter().chain(rate).collect();
    if figures.is_empty() { Ok(()) } else { writeln!(text, "           {}", figures.join(", ")) }
}

fn write_flows(text: &mut String, recent: &Flow, total: &Flow) -> std::fmt::Result {
    writeln!(text)?;
    let window = format!("last {}", show_time(recent.seconds * 1e9));
    writeln!(text, "{:<26}{window:>27}{:>27}", "", "since the mount")?;
    let mut row = |name: &str, show: &dyn Fn(&Flow) -> String| {
        writeln!(text, "{name:<26}{:>27}{:>27}", show(recent), show(total))
    };
    row("requests/s", &|f| show_number(f.requests_per_s))?;
    row("read, written", &|f| format!("{}, {}", show_rate(f.read_mb_s * 1e6), show_rate(f.write_mb_s * 1e6)))?;
    row("reads, writes", &|f| format!("{}, {}", f.reads, f.writes))?;
    row("requests a batch", &|f| format!("{:.2}, max {}", f.mean_aggregation, f.batch_requests_max))?;
    row("queue depth at arrival", &|f| format!("{:.1}, max {}", f.mean_depth, f.depth_max))?;
    row("wait p50 / p95 / p99", &|f| percentiles(&f.wait))?;
    row("service p50 / p95 / p99", &|f| percentiles(&f.service))?;
    if total.continued > 0 {
        row("batches, in slices", &|f| format!("{}, {}", f.batches, f.continued))?;
    }
    row("overdue, blocked, errors", &|f| format!("{}, {}, {}", f.expired, f.blocked, f.errors))
}

/// What the requests were like, engine by engine.
fn write_windows(text: &mut String, windows: &[Window]) -> std::fmt::Result {
    if windows.is_empty() {
        return Ok(());
    }
    let headings = ["engine", "window", "R / W", "mean size", "contiguous", "files", "depth", "wait p99"];
    let [engine, window, count, size, contiguous, files, depth, wait] = headings;
    writeln!(text, "\n{engine:>6}{window:>14}{count:>16}{size:>22}{contiguous:>14}{files:>7}{depth:>7}{wait:>10}")?;
    for one in windows {
        let Window { engine, reads, writes, files, depth_mean, .. } = one;
        let of_both = |read: String, write: String| format!("{read} / {write}");
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        writeln!(
            text,
            "{engine:>6}{:>14}{:>16}{:>22}{:>14}{files:>7}{depth_mean:>7.1}{:>10}",
            format!("{} ago", show_time(one.age_s * 1e9)),
            of_both(reads.submitted.to_string(), writes.submitted.to_string()),
            of_both(show_size(reads.size_mean_bytes), show_size(writes.size_mean_bytes)),
            of_both(percent(reads.contiguous), percent(writes.contiguous)),
            show_time_roughly(one.wait.p99_us * 1e3)
        )?;
    }
    Ok(())
}

fn percentiles(latency: &Latency) -> String {
    let [p50, p95, p99] = [latency.p50_us, latency.p95_us, latency.p99_us].map(|us| show_time_roughly(us * 1e3));
    format!("{p50} / {p95} / {p99}")
}

fn write_apps(text: &mut String, apps: &[App]) -> std::fmt::Result {
    if apps.is_empty() {
        return Ok(());
    }
    let headings = ["no", "application", "requests", "size", "now", "p50", "p99"];
    let [no, name, requests, size, now, p50, p99] = headings;
    writeln!(text, "\n{no:>5}  {name:<28}{requests:>10}{size:>11}{now:>11}{p50:>9}{p99:>9}")?;
    for app in apps {
        let number = app.number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        writeln!(
            text,
            "{number:>5}  {:<28}{:>10}{:>11}{:>11}{:>9}{:>9}",
            app.name,
            app.requests,
            show_size(app.bytes as f64),
            show_rate(app.recent_mb_s * 1e6),
            show_time_roughly(app.latency.p50_us * 1e3),
            show_time_roughly(app.latency.p99_us * 1e3)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_emulated_devices_say_so() {
        let mut status = Status { storage: "emulated hdd over x".into(), emulated: true, ..Status::default() };
        assert!(describe(&status).contains("times below are those of emulated devices"));
        status.apps.push(App { name: "uid=0".into(), number: Some(3), ..App::default() });
        assert!(describe(&status).lines().any(|line| line.trim_start().starts_with("3  uid=0 ")));
    }

    #[test]
    fn nobody_is_said_to_wait_where_requests_pass_through() {
        let mut status = Status { anticipation: Some(Default::default()), ..Status::default() };
        for (name, waits) in [("sjf", true), ("noop", false), ("twins", false)] {
            name.clone_into(&mut status.policy.name);
            let text = describe(&status);
            assert_eq!(text.contains("streams are waited for"), waits, "{text}");
            assert_eq!(text.contains("no stream is waited for"), !waits, "{text}");
        }
    }

    #[test]
    fn what_is_watched_fits_the_terminal() {
        let text = "abcdefgh\nab\n\nabcd\n";
        assert_eq!(fitted(text, 5, 8), text);
        assert_eq!(fitted(text, 5, 6), "abc...\nab\n\nabcd\n");
        assert_eq!(fitted(text, 4, 80), "abcdefgh\nab\n...\n");
        assert_eq!(fitted(text, 0, 0), text, "unknown");
    }

    #[test]
    fn what_passes_through_has_no_limit() {
        let mut status = Status { in_flight_max: 8, ..Status::default() };
        for (name, says) in [("sjf", "in flight at most 8 an engine"), ("noop", "in flight without limit (noop)")] {
            name.clone_into(&mut status.policy.name);
            let text = describe(&status);
            assert!(text.contains(says), "{text}");
        }
    }

    #[test]
    fn syncs_are_said_to_go_together_once_one_was_put_off() {
        let mut status = Status { group_commit: Some(Default::default()), ..Status::default() };
        assert!(!describe(&status).contains("syncs go together"));
        let commit = status.group_commit.as_mut().unwrap();
        (commit.syncs, commit.groups, commit.held, commit.held_mean_ms) = (12, 3, 8, 1.5);
        let text = describe(&status);
        assert!(text.contains("12 syncs in 3 groups, 8 of them put off by 1.50 ms"), "{text}");
    }

    #[test]
    fn windows_are_shown_engine_by_engine() {
        let mut status = Status::default();
        assert!(!describe(&status).contains("contiguous"));
        let mut window = Window { engine: 1, age_s: 2.0, files: 12, ..Window::default() };
        (window.writes.submitted, window.writes.size_mean_bytes, window.writes.contiguous) = (7, 4096.0, 0.5);
        status.windows.push(window);
        let text = describe(&status);
        let line = text.lines().skip_while(|line| !line.contains("contiguous")).nth(1).unwrap();
        let words: Vec<&str> = line.split_whitespace().filter(|word| !matches!(*word, "/" | "ago" | "%")).collect();
        assert_eq!(words, ["1", "2.00", "s", "0", "7", "0", "B", "4", "KiB", "0", "50", "12", "0.0", "0", "s"]);
    }
}
