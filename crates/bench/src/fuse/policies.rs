//! `sluice-bench fuse`, the second part: what each algorithm costs a mount, next to one that passes everything through and to
//! a pass-through without a scheduler.
//!
//! On memory (tmpfs) and without the kernel's cache, where nothing hides the cost. One mount has all algorithms in turn; all
//! sides work on the same files. A round goes through all of them, each round in another order, and ratios are formed within
//! a round.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use sluice_cli::output;
use sluice_core::{PolicyConfig, policy::table};
use sluice_fuse::{CacheMode, MountOptions, mount, passthrough};
use sluice_notation::counted;
use sluice_runtime::VolumeConfig;
use sluice_storage::Storage;
use sluice_storage::posix::{PosixOptions, PosixStorage};

use crate::random::SplitMix64;
use crate::statistics::median;

const LOADS: [&str; 2] = ["randread", "randwrite"];
const JOBS: [u32; 5] = [1, 2, 4, 8, 16];
const BLOCK: u32 = 4 << 10;
/// Of the file of each job. All together they are small next to the memory of a server.
const FILE_BYTES: u64 = 16 << 20;
/// The plain pass-through's name in the tables.
const PLAIN: &str = "passthrough";
/// Least throughput of an algorithm that does not wait, over that of the one that passes everything through.
const BAR: f64 = 0.9;
const MEMORY: &str = "/dev/shm";

/// What to measure.
pub(super) struct Options<'a> {
    /// Where to work; memory, unless somebody says otherwise.
    pub(super) dir: Option<&'a Path>,
    pub(super) rounds: u32,
    pub(super) milliseconds: u32,
    pub(super) seed: u64,
    /// Set from elsewhere: ends it after the run in hand.
    pub(super) stop: &'a AtomicBool,
}

/// The sides compared: the pass-through, `noop` and the others that do not wait.
struct Sides {
    names: Vec<&'static str>,
    /// Of each, without the first, which has none.
    policies: Vec<PolicyConfig>,
}

/// What was measured under one load: for each side, thousands of operations a second, round by round.
struct Row {
    load: &'static str,
    jobs: u32,
    rates: Vec<Vec<f64>>,
}

pub(super) struct Report {
    storage: String,
    rounds: u32,
    sides: Vec<&'static str>,
    rows: Vec<Row>,
}

/// Measures.
///
/// # Errors
/// If there is no fio, or no mount, or it was told to stop.
pub(super) fn run(options: &Options<'_>) -> anyhow::Result<Report> {
    let room = Room::new(options.dir)?;
    let source = room.at("source");
    let sides = Sides::all()?;
    let storage = PosixStorage::open(&source, PosixOptions::default()).map(Storage::from)?;
    let mounting = MountOptions { cache: CacheMode::None, ..MountOptions::default() };
    let with_source = MountOptions { sources: vec![source.clone()], ..mounting.clone() };
    let sluice = mount(storage, &room.at("sluice"), with_source, VolumeConfig::default())?;
    let plain = passthrough::mount(&source, &room.at(PLAIN), &mounting)?;
    let runs = (LOADS.len() * JOBS.len() * sides.names.len()) as u64 * u64::from(options.rounds);
    let progress = output::bar(runs, "{bar:40} {pos}/{len} runs, {eta} left  {msg}");
    let mut rows = Vec::new();
    for load in LOADS {
        for jobs in JOBS {
            let mut rates = vec![Vec::new(); sides.names.len()];
            for round in 0..options.rounds {
                for side in order(sides.names.len(), options.seed.wrapping_add(round.into())) {
                    if options.stop.load(Ordering::Relaxed) {
                        bail!(sluice_cli::interrupt::Interrupted);
                    }
                    progress.set_message(format!("{load}, {jobs} jobs, {}", sides.names[side]));
                    let dir = match side {
                        0 => room.at(PLAIN),
                        side => {
                            sluice.volume().set_policy(&sides.policies[side - 1]);
                            room.at("sluice")
                        }
                    };
                    rates[side].push(fio(&dir, load, jobs, options.milliseconds)?);
                    progress.inc(1);
                }
            }
            rows.push(Row { load, jobs, rates });
        }
    }
    progress.finish_and_clear();
    plain.unmount()?;
    sluice.unmount()?;
    let _ = sluice.wait();
    Ok(Report { storage: kind_of(&source), rounds: options.rounds, sides: sides.names, rows })
}

impl Sides {
    fn all() -> anyhow::Result<Sides> {
        let at_once = table().iter().filter(|info| !info.waits && info.bypasses_queue);
        let queueing = table().iter().filter(|info| !info.waits && !info.bypasses_queue);
        let names: Vec<&'static str> = at_once.chain(queueing).map(|info| info.name).collect();
        let policies = names.iter().map(|name| PolicyConfig::parse(name)).collect::<Result<_, _>>()?;
        Ok(Sides { names: std::iter::once(PLAIN).chain(names).collect(), policies })
    }
}

/// The sides in an order drawn for a round (Fisher and Yates), so that nothing that comes at regular times
/// favours one.
fn order(count: usize, seed: u64) -> Vec<usize> {
    let mut random = SplitMix64(seed);
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, (random.next() % (last as u64 + 1)) as usize);
    }
    order
}

/// Thousands of operations a second.
fn fio(dir: &Path, load: &str, jobs: u32, milliseconds: u32) -> anyhow::Result<f64> {
    let output = Command::new("fio")
        .args(["--name=bench", "--ioengine=psync", "--thread", "--group_reporting", "--output-format=json"])
        .args(["--randrepeat=0", "--norandommap", "--invalidate=0", "--time_based", "--filename_format=file.$jobnum"])
        .arg(format!("--directory={}", dir.display()))
        .arg(format!("--rw={load}"))
        .arg(format!("--bs={BLOCK}"))
        .arg(format!("--size={FILE_BYTES}"))
        .arg(format!("--numjobs={jobs}"))
        .arg(format!("--runtime={milliseconds}ms"))
        .output()
        .context("fio: install it with: apt install fio")?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Warnings may come before the JSON text.
    let json: Option<Value> = text.find('{').and_then(|start| serde_json::from_str(&text[start..]).ok());
    let side = if load.ends_with("read") { "read" } else { "write" };
    match json.and_then(|json| json["jobs"][0][side]["iops"].as_f64()) {
        Some(iops) if output.status.success() && iops > 0.0 => Ok(iops / 1e3),
        _ => bail!("fio on {}: {} {}", dir.display(), text.trim(), String::from_utf8_lossy(&output.stderr).trim()),
    }
}

impl Row {
    fn middle(&self, side: usize) -> f64 {
        median(&mut self.rates[side].clone()).0
    }

    /// Of a side over the one that passes everything through, in the same round: median, smallest and largest.
    fn ratio(&self, side: usize) -> (f64, [f64; 2]) {
        let rates = self.rates[side].iter().zip(&self.rates[1]);
        median(&mut rates.map(|(rate, passing)| rate / passing).collect::<Vec<_>>())
    }
}

impl Report {
    /// Sides that are held to the bar.
    fn queueing(&self) -> impl Iterator<Item = usize> {
        2..self.sides.len()
    }

    fn misses(&self) -> Vec<String> {
        let mut misses = Vec::new();
        for row in &self.rows {
            for side in self.queueing() {
                let (ratio, _) = row.ratio(side);
                if ratio < BAR {
                    let (name, passing) = (self.sides[side], self.sides[1]);
                    misses.push(format!(
                        "{}, {}, {name}: {ratio:.2} of {passing}'s throughput, bar {BAR}",
                        row.load,
                        counted(row.jobs as u64, "job")
                    ));
                }
            }
        }
        misses
    }

    /// For machines; `rows` has one number for each side.
    pub(super) fn as_json(&self) -> Map<String, Value> {
        let row = |row: &Row| {
            let mut fields =
                Map::from_iter([("load".to_owned(), json!(row.load)), ("jobs".to_owned(), json!(row.jobs))]);
            fields.extend(
                self.sides.iter().enumerate().map(|(side, name)| ((*name).to_owned(), json!(row.middle(side)))),
            );
            Value::Object(fields)
        };
        let ratio = |row: &Row, side: usize| {
            let (ratio, range) = row.ratio(side);
            json!({"load": row.load, "jobs": row.jobs, "policy": self.sides[side], "ratio": ratio, "ratio_range": range})
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        let ratios: Vec<Value> =
            self.rows.iter().flat_map(|row| self.queueing().map(move |side| ratio(row, side))).collect();
        Map::from_iter([
            ("unit".to_owned(), json!("kIOPS")),
            ("rows".to_owned(), json!(rows)),
            ("rows_storage".to_owned(), json!(self.storage)),
            ("rounds".to_owned(), json!(self.rounds)),
            ("ratios_to_noop".to_owned(), json!(ratios)),
            ("policy_bar".to_owned(), json!(BAR)),
            ("misses".to_owned(), json!(self.misses())),
        ])
    }

    pub(super) fn print(&self) {
        output::line(format_args!(
            "\nthousand operations a second: 4 KiB at random, a file for each job, no kernel cache, on {} (medians of {} in turns)\n",
            self.storage,
            counted(self.rounds as u64, "round")
        ));
        let names: String = self.sides.iter().map(|name| format!(" {name:>11}")).collect();
        output::line(format_args!("{:<10}{:>5}{names}", "load", "jobs"));
        for row in &self.rows {
            let rates: String = (0..self.sides.len()).map(|side| format!(" {:>11.1}", row.middle(side))).collect();
            output::line(format_args!("{:<10}{:>5}{rates}", row.load, row.jobs));
        }
        output::line(format_args!(
            "\nof {}'s throughput in the same round (median, smallest..largest)\n",
            self.sides[1]
        ));
        for row in &self.rows {
            let ratios: String = self
                .queueing()
                .map(|side| {
                    let (ratio, [low, high]) = row.ratio(side);
                    format!("  {} {ratio:.2} ({low:.2}..{high:.2})", self.sides[side])
                })
                .collect();
            output::line(format_args!("{:<10}{:>5}{ratios}", row.load, row.jobs));
        }
        let misses = self.misses();
        let verdict = if misses.is_empty() { "all reach it" } else { "missed:" };
        output::line(format_args!(
            "\nbar, for algorithms that do not wait: {BAR} of {}'s throughput; {verdict}",
            self.sides[1]
        ));
        misses.iter().for_each(|miss| output::line(format_args!("  {miss}")));
    }
}

/// What a directory is on, as far as it matters here.
fn kind_of(dir: &Path) -> String {
    let is_memory = rustix::fs::statfs(dir).is_ok_and(|stat| stat.f_type == libc::TMPFS_MAGIC);
    if is_memory { "tmpfs".to_owned() } else { format!("what {} is on (not tmpfs)", dir.display()) }
}

/// A directory that goes away again, with the files that the loads use.
struct Room(tempfile::TempDir);

impl Room {
    fn new(dir: Option<&Path>) -> anyhow::Result<Room> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None if kind_of(Path::new(MEMORY)) == "tmpfs" => MEMORY.into(),
            None => std::env::temp_dir(),
        };
        let made = tempfile::Builder::new().prefix("sluice-bench-").tempdir_in(&dir);
        let room = Room(made.with_context(|| format!("{}: cannot work there", dir.display()))?);
        for name in ["source", "sluice", PLAIN] {
            std::fs::create_dir(room.at(name))?;
        }
        let content = vec![0x5a; FILE_BYTES as usize];
        for job in 0..JOBS[JOBS.len() - 1] {
            let file = room.at("source").join(format!("file.{job}"));
            std::fs::write(&file, &content).with_context(|| format!("{}: cannot be written", file.display()))?;
        }
        Ok(room)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rates: [&[f64]; 3]) -> Report {
        let row = Row { load: "randread", jobs: 4, rates: rates.iter().map(|rates| rates.to_vec()).collect() };
        Report { storage: "tmpfs".to_owned(), rounds: 3, sides: vec![PLAIN, "noop", "hbrr"], rows: vec![row] }
    }

    #[test]
    fn ratios_are_formed_within_a_round() {
        // Always 0.95 of it, although the machine was ten times as slow in one round.
        let good = report([&[50.0, 5.0, 50.0], &[100.0, 10.0, 100.0], &[95.0, 9.5, 95.0]]);
        assert!(good.misses().is_empty(), "{:?}", good.misses());
        let bad = report([&[50.0, 5.0, 50.0], &[100.0, 10.0, 100.0], &[62.0, 6.2, 95.0]]);
        assert_eq!(bad.misses(), ["randread, 4 jobs, hbrr: 0.62 of noop's throughput, bar 0.9"]);
    }

    #[test]
    fn a_row_has_a_number_for_each_side() {
        let json = report([&[1.0, 2.0, 3.0], &[4.0, 4.0, 4.0], &[2.0, 8.0, 4.0]]).as_json();
        assert_eq!(json["unit"], "kIOPS");
        assert_eq!(
            json["rows"],
            json!([{"load": "randread", "jobs": 4, "passthrough": 2.0, "noop": 4.0, "hbrr": 4.0}])
        );
    }

    #[test]
    fn each_side_comes_once_and_not_always_in_the_same_place() {
        let orders: Vec<Vec<usize>> = (0..50).map(|seed| order(8, seed)).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..8).collect::<Vec<_>>());
        }
        let firsts: std::collections::HashSet<usize> = orders.iter().map(|order| order[0]).collect();
        assert!(firsts.len() > 4, "{firsts:?}");
    }

    #[test]
    fn the_sides_are_those_that_do_not_wait() {
        let sides = Sides::all().unwrap();
        assert_eq!(sides.names[..2], [PLAIN, "noop"]);
        assert!(sides.names.contains(&"hbrr") && !sides.names.contains(&"aioli"));
        assert_eq!(sides.policies.len() + 1, sides.names.len());
    }
}
