//! Results in files: CSV for other programs, JSON for `sluice report`.

use super::Results;
use crate::output::Versioned;
use sluice_sim::{NodesOutcome, Outcome, SEEDS_MIN};
use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// Writes `runs.csv`, `apps.csv`, `labels.csv` if something is compared, `windows.csv` if windows were kept, and `results.json`.
pub(super) fn write(dir: &Path, results: &Results) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    // What an earlier call wrote here, and this one does not, would be taken for its own.
    for name in ["labels.csv", "windows.csv"] {
        match std::fs::remove_file(dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::write(dir.join("runs.csv"), runs(results))?;
    std::fs::write(dir.join("apps.csv"), apps(results))?;
    if results.compare.is_some() {
        std::fs::write(dir.join("labels.csv"), labels(results))?;
    }
    if let Some(text) = windows(results) {
        std::fs::write(dir.join("windows.csv"), text)?;
    }
    let json = serde_json::to_vec(&Versioned::new(results)).map_err(io::Error::other)?;
    std::fs::write(dir.join("results.json"), json)
}

/// A field; quoted if it must be.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

fn head(results: &Results) -> String {
    let axes = results.axes.iter().map(|(name, _)| field(name) + ",");
    format!("scenario,{}seed_number,scale", axes.collect::<String>())
}

fn lead(results: &Results, values: &[String], seed: usize, scale: &str) -> String {
    let values: String = values.iter().map(|value| field(value) + ",").collect();
    format!("{},{values}{seed},{scale}", field(&results.name))
}

fn runs(results: &Results) -> String {
    let mut text = head(results);
    text.push_str(
        ",makespan_s,throughput_mb_s,bytes,jain,slow_down_max,server_requests,batches,aggregation,depth,wait_mean_s,\
         wait_p50_s,wait_p95_s,wait_p99_s,wait_max_s,service_mean_s,expired,blocked,refused,io_aggregation,io_wait_mean_s,\
         io_wait_p99_s,device_busy_share,device_seek_share,device_commands,events,digest\n",
    );
    for row in &results.rows {
        for (seed, outcome) in row.outcomes.iter().enumerate() {
            let _ = writeln!(text, "{},{}", lead(results, &row.values, seed, &row.scale), run(outcome));
        }
    }
    text
}

fn seconds(ns: u64) -> String {
    format!("{:.9}", ns as f64 * 1e-9)
}

fn run(outcome: &Outcome) -> String {
    let NodesOutcome { batches, aggregation, depth, wait, service, expired, blocked, refused, .. } = outcome.servers;
    let optional = |value: Option<String>| value.unwrap_or_default();
    let io_nodes = outcome.io_nodes.as_ref();
    [
        seconds(outcome.makespan_ns),
        format!("{:.6}", outcome.throughput() * 1e-6),
        outcome.bytes.to_string(),
        format!("{:.6}", outcome.jain()),
        optional(outcome.slow_down_max().map(|slow| format!("{slow:.6}"))),
        outcome.server_requests.to_string(),
        batches.to_string(),
        format!("{aggregation:.6}"),
        format!("{depth:.6}"),
        seconds(wait.mean_ns),
        seconds(wait.p50_ns),
        seconds(wait.p95_ns),
        seconds(wait.p99_ns),
        seconds(wait.max_ns),
        seconds(service.mean_ns),
        expired.to_string(),
        blocked.to_string(),
        refused.to_string(),
        optional(io_nodes.map(|nodes| format!("{:.6}", nodes.aggregation))),
        optional(io_nodes.map(|nodes| seconds(nodes.wait.mean_ns))),
        optional(io_nodes.map(|nodes| seconds(nodes.wait.p99_ns))),
        format!("{:.6}", outcome.busy_share()),
        format!("{:.6}", outcome.device.seek_share()),
        outcome.device.commands.to_string(),
        outcome.events.to_string(),
        format!("{:016x}", outcome.digest),
    ]
    .join(",")
}

fn apps(results: &Results) -> String {
    let mut text = head(results);
    text.push_str(
        ",application,makespan_s,bytes,calls,slow_down,latency_mean_s,latency_p50_s,latency_p95_s,latency_p99_s,\
         latency_max_s\n",
    );
    for row in &results.rows {
        for (seed, outcome) in row.outcomes.iter().enumerate() {
            for app in &outcome.apps {
                let latency = &app.latency;
                let slow = app.slow_down.map_or_else(String::new, |slow| format!("{slow:.6}"));
                let times = [latency.mean_ns, latency.p50_ns, latency.p95_ns, latency.p99_ns, latency.max_ns];
                let _ = writeln!(
                    text,
                    "{},{},{},{},{},{slow},{}",
                    lead(results, &row.values, seed, &row.scale),
                    field(&app.name),
                    seconds(app.makespan_ns),
                    app.bytes,
                    app.calls,
                    times.map(seconds).join(",")
                );
            }
        }
    }
    text
}

/// For each situation its label, and the fastest value with its ties, of which every one is right. `no difference` if they cannot be told apart.
fn labels(results: &Results) -> String {
    let Some((compared, _)) = &results.compare else { return String::new() };
    let axis = results.axes.iter().position(|(name, _)| name == compared).unwrap_or(0);
    let others: Vec<&String> = results.axes.iter().map(|(name, _)| name).filter(|name| *name != compared).collect();
    let names: String = others.iter().map(|name| field(name) + ",").collect();
    let mut text = format!("scenario,{names}seeds,label,best,gain_over_baseline\n");
    for label in &results.labels {
        let value = |(at, &value): (usize, &usize)| (at != axis).then(|| field(&results.axes[at].1[value]) + ",");
        let place: String = label.place.iter().enumerate().filter_map(value).collect();
        let best: Vec<&str> = label.best.iter().map(|value| results.axes[axis].1[*value].as_str()).collect();
        let winner = match (results.seeds as usize) < SEEDS_MIN {
            true => "too few seeds",
            false if label.is_label => best[0],
            false => "no difference",
        };
        let gain = label.gain.map_or_else(String::new, |gain| format!("{gain:.4}"));
        let _ = writeln!(
            text,
            "{},{place}{},{},{},{gain}",
            field(&results.name),
            results.seeds,
            field(winner),
            field(&best.join(" = "))
        );
    }
    text
}

fn windows(results: &Results) -> Option<String> {
    let mut text = String::new();
    for row in &results.rows {
        for (seed, outcome) in row.outcomes.iter().enumerate().filter(|(_, outcome)| !outcome.windows.is_empty()) {
            let lead = lead(results, &row.values, seed, &row.scale);
            let all = sluice_sim::windows_csv(&outcome.windows);
            let mut lines = all.lines();
            let names = lines.next().unwrap_or_default();
            if text.is_empty() {
                let _ = writeln!(text, "{},{names}", head(results));
            }
            for line in lines {
                let _ = writeln!(text, "{lead},{line}");
            }
        }
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!(field("aioli wait_time=1ms"), "aioli wait_time=1ms");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
