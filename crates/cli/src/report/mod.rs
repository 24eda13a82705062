//! `sluice report`: results of `sluice simulate --out` as one page that opens without a network.

use crate::output;
use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

static PAGE: &str = include_str!("page.html");
/// Where the page wants its data.
const PLACE: &str = "\"DATA\"";

/// Makes one HTML page of plots, which needs no network, from results of simulations
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory that `sluice simulate --out` wrote, or a directory of such directories
    dir: PathBuf,
    /// Where to write the page; - is standard output [default: report.html in that directory]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let files = results_in(&args.dir)?;
    let mut experiments = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let results: Value = serde_json::from_str(&text)
            .with_context(|| format!("{}: not what `sluice simulate --out` writes", file.display()))?;
        let compacted = compact(&results);
        experiments.push(compacted.with_context(|| format!("{}: not results of simulations", file.display()))?);
    }
    let out = args.out.unwrap_or_else(|| args.dir.join("report.html"));
    output::write_file(&out, page(&Value::Array(experiments))?.as_bytes())?;
    if !output::is_standard(&out) {
        output::say(format!("report: {}", out.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn results_in(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let own = dir.join("results.json");
    if own.is_file() {
        return Ok(vec![own]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let file = entry?.path().join("results.json");
        if file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        bail!("{}: there are no results; make some with `sluice simulate FILE --out DIR`", dir.display());
    }
    Ok(files)
}

/// What the page shows of an experiment.
fn compact(results: &Value) -> Option<Value> {
    let rows: Option<Vec<Value>> = results.get("rows")?.as_array()?.iter().map(compact_row).collect();
    let mut experiment = Map::new();
    for key in ["name", "title", "source", "axes", "compare", "seeds", "labels"] {
        experiment.insert(key.to_owned(), results.get(key)?.clone());
    }
    experiment.insert("rows".to_owned(), Value::Array(rows?));
    Some(Value::Object(experiment))
}

fn compact_row(row: &Value) -> Option<Value> {
    let first = row.get("outcomes")?.get(0)?;
    let wait = first.pointer("/servers/wait")?;
    let apps: Vec<Value> = first.get("apps")?.as_array()?.iter().map(compact_app).collect::<Option<_>>()?;
    Some(json!({
        "values": row.get("values")?, "scale": row.get("scale")?, "makespan": row.get("makespan_s")?,
        "throughput": row.get("throughput_mb_s")?, "improvement": row.get("improvement")?, "jain": row.get("jain")?,
        "slow": row.get("slow_down_max")?, "aggregation": row.get("aggregation")?, "busy": row.get("busy_share")?,
        "seek": row.get("seek_share")?, "wait99": wait.get("p99_ns")?, "requests": first.get("server_requests")?,
        "digest": format!("{:016x}", first.get("digest")?.as_u64()?), "apps": apps, "record": first.get("record")?,
    }))
}

fn compact_app(app: &Value) -> Option<Value> {
    Some(json!({
        "name": app.get("name")?, "makespan": app.get("makespan_ns")?, "slow": app.get("slow_down")?,
        "p50": app.pointer("/latency/p50_ns")?, "p99": app.pointer("/latency/p99_ns")?,
    }))
}

fn page(data: &Value) -> anyhow::Result<String> {
    // Nothing in the data may end the script element.
    let data = serde_json::to_string(data)?.replace('<', "\\u003c");
    Ok(PAGE.replacen(PLACE, &data, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_break_out_of_the_page() {
        let page = page(&json!([{"name": "</script><b>"}])).unwrap();
        assert!(!page.contains("</script><b>") && page.contains("\\u003c/script>"));
        assert!(!page.contains(PLACE));
    }

    #[test]
    fn the_page_needs_no_network() {
        let urls = PAGE.matches("http").count();
        assert_eq!(urls, PAGE.matches("http://www.w3.org/2000/svg").count());
    }

    #[test]
    fn strange_results_are_refused() {
        assert!(compact(&json!({"rows": [{}]})).is_none());
        assert!(compact(&json!([])).is_none());
    }
}
