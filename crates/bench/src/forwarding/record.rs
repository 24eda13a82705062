//! Windows of real I/O nodes, for networks: what nodes announce while programs run whose pattern is known.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use sluice_cli::output;
use sluice_notation::counted;

use super::load::Pattern;
use super::{Args, Arm, Bed};
use crate::council::KNOWN;

/// Bytes of requests.
const REQUESTS: [u64; 3] = [32 << 10, 128 << 10, 512 << 10];
/// Programs run for so long each; windows that begin in the first part, when the one before may be under way still, do not count.
const RUN: Duration = Duration::from_secs(12);
const SETTLING: Duration = Duration::from_secs(2);
/// A node announces what it saw in the second before.
const WINDOW_NS: u128 = 1_000_000_000;

/// What runs, whether it is what was written that is read, its place among the networks' classes, and what most requests are.
const RUNS: [(Pattern, bool, usize, &str); 6] = [
    (Pattern::OwnFiles, false, 0, "write"),
    (Pattern::OwnFiles, true, 0, "read"),
    (Pattern::SharedWrite, false, 1, "write"),
    (Pattern::SharedWrite, true, 1, "read"),
    (Pattern::Prepare, false, 2, "write"),
    (Pattern::StridedRead, false, 2, "read"),
];

/// A program that ran, and when its windows may begin and end.
struct Ran {
    label: usize,
    op: &'static str,
    request: u64,
    from: u128,
    to: u128,
}

fn now_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

/// Runs the programs, while the council tries what it may tell I/O nodes to do, and writes what the I/O nodes announced meanwhile as a data set.
///
/// # Errors
/// If a cluster cannot be started, a program fails, or nothing was announced.
pub(super) fn record(bed: &Bed<'_>, args: &Args, to: &Path) -> anyhow::Result<()> {
    let io_nodes = args.io_nodes()[0];
    let raw = bed.cluster.room().join("windows.csv");
    let bar = output::bar((REQUESTS.len() * RUNS.len()) as u64, "{bar:40} {pos}/{len} {msg}");
    let mut all = Vec::new();
    for request in REQUESTS {
        bed.start_with(&Arm::Council, io_nodes, &format!("[coordinator]\nrecord = {raw:?}\n"))?;
        bed.load(Pattern::Prepare, io_nodes, 0, false, request)?;
        for (pattern, verify, label, op) in RUNS {
            bar.set_message(format!("{}, {op}, {} KiB", pattern.name(), request >> 10));
            let (began, from) = (Instant::now(), now_ns() + SETTLING.as_nanos() + WINDOW_NS);
            while began.elapsed() < RUN {
                bed.load(pattern, io_nodes, 1, verify, request)?;
            }
            all.push(Ran { label, op, request, from, to: now_ns() });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let text = std::fs::read_to_string(&raw).with_context(|| raw.display().to_string())?;
    let (text, windows) = labelled(&text, &all, args, io_nodes)?;
    ensure!(windows > 0, "no I/O node has announced anything while programs ran");
    std::fs::write(to, text).with_context(|| to.display().to_string())?;
    output::say(format_args!(
        "{} of {}: {}",
        counted(windows as u64, "window"),
        counted(all.len() as u64, "run"),
        to.display()
    ));
    Ok(())
}

/// The rows of a data set of what was announced while programs ran.
fn labelled(text: &str, all: &[Ran], args: &Args, io_nodes: u32) -> anyhow::Result<(String, usize)> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().context("the coordinator recorded nothing")?.split(',').collect();
    let at: HashMap<&str, usize> = head.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let column = |name: &str| at.get(name).copied().with_context(|| format!("the coordinator records no {name}"));
    let (time, scheduler, window, requests) =
        (column("time_ns")?, column("scheduler")?, column("window_ns")?, column("requests")?);
    let mut out = format!("{},{}\n", KNOWN.join(","), head[requests + 1..].join(","));
    let mut windows = 0;
    for line in lines {
        let words: Vec<&str> = line.split(',').collect();
        ensure!(words.len() == head.len(), "the coordinator recorded a short line");
        let end: u128 = words[time].parse().context("a time that is none")?;
        let Some(number) = all.iter().position(|ran| (ran.from..=ran.to).contains(&end)) else { continue };
        // Which windows say nothing the networks know themselves: as of simulated ones, they are not written.
        if words[requests].parse::<u64>().context("a number of requests that is none")?
            < sluice_adapt::net::REQUESTS_MIN
        {
            continue;
        }
        let Ran { label, op, request, .. } = all[number];
        let device = if args.emulate == "none" { "directory" } else { &args.emulate };
        let (processes, servers) = (args.processes, args.servers);
        // Writing to a text cannot fail.
        _ = writeln!(
            out,
            "{number},{label},{op},{io_nodes},{processes},{request},{servers},{device},{} {}us,{},{}",
            words[scheduler],
            words[window].parse::<u64>().unwrap_or(0) / 1_000,
            words[requests],
            words[requests + 1..].join(",")
        );
        windows += 1;
    }
    Ok((out, windows))
}
