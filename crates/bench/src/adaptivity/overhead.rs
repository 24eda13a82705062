//! What a mount that chooses costs where there is nothing to choose: on memory, and on this machine's own disk.
//!
//! Two mounts of one directory are there all the time and take turns of a second: `noop`, named, and one that names nothing, which has had
//! some seconds of the same load before. Ratios are formed within a round, as what such a device gives changes by tens of percent within
//! seconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::Serialize;
use sluice_cli::output;
use sluice_notation::counted;

use crate::bed::{Runner, check_fio, fio_command, unmount};
use crate::statistics::{median, median_interval};

/// How it is asked for.
pub(super) const NAME: &str = "overhead";
/// Most that choosing may cost.
const BAR: f64 = 0.02;
const SECONDS: u32 = 1;
const FILE_BYTES: u64 = 64 << 20;
/// Directories that they are mounted on.
const SIDES: [&str; 2] = ["noop", "adaptive"];
/// Where, what fio does, and further options.
const CELLS: [(&str, &str, &[&str]); 4] = [
    ("memory", "random reads, 4K, 2 jobs", &["--rw=randread", "--bs=4k", "--numjobs=2"]),
    ("memory", "writes, 64K, 2 jobs", &["--rw=write", "--bs=64k", "--numjobs=2"]),
    ("own disk", "random reads, 4K, O_DIRECT, 1 job", &["--rw=randread", "--bs=4k", "--numjobs=1", "--direct=1"]),
    ("own disk", "random reads, 4K, O_DIRECT, 8 jobs", &["--rw=randread", "--bs=4k", "--numjobs=8", "--direct=1"]),
];

/// Adaptive over `noop`.
#[derive(Serialize)]
pub(super) struct Overhead {
    place: &'static str,
    dir: String,
    workload: &'static str,
    /// Median of the rounds, with 95 % where it is, smallest and largest.
    pub(super) ratio: f64,
    interval: [f64; 2],
    range: [f64; 2],
    rounds: u32,
    noop_mb_s: f64,
    adaptive_mb_s: f64,
    /// What was chosen in the end.
    arm: String,
}

/// A directory, and where it is mounted. Goes away with it.
struct Place<'a> {
    runner: &'a Runner,
    sluice: &'a Path,
    room: tempfile::TempDir,
}

/// Measures on memory and in `own`, on this machine's own disk.
///
/// # Errors
/// What the programs say.
pub(super) fn measure(
    runner: &Runner,
    sluice: &Path,
    own: &Path,
    rounds: u32,
    learn_s: u32,
) -> anyhow::Result<Vec<Overhead>> {
    let mut found = Vec::new();
    let places = [("memory", PathBuf::from("/dev/shm")), ("own disk", own.to_owned())];
    for (name, dir) in places {
        let room = tempfile::Builder::new().prefix("sluice-adaptivity-").tempdir_in(&dir);
        let room = room.with_context(|| dir.display().to_string())?;
        for name in ["source", SIDES[0], SIDES[1]] {
            fs::create_dir(room.path().join(name))?;
        }
        let place = Place { runner, sluice, room };
        place.lay()?;
        for (_, workload, options) in CELLS.into_iter().filter(|(place, ..)| *place == name) {
            let direct = options.contains(&"--direct=1");
            output::tell(format_args!("overhead: {workload}, {name}"));
            let mut rates = [Vec::new(), Vec::new()];
            for side in SIDES {
                place.mount(side, direct)?;
            }
            for (side, seconds) in SIDES.into_iter().zip([SECONDS, learn_s.max(SECONDS)]) {
                place.run(side, options, 0, seconds)?;
            }
            for round in 0..rounds {
                // Each is the first one every other time.
                for turn in 0..2 {
                    let side = (round + turn) as usize % 2;
                    rates[side].push(place.run(SIDES[side], options, 1 + round, SECONDS)?);
                }
            }
            let arm = place.arm()?;
            place.leave()?;
            let mut ratios: Vec<f64> = rates[1].iter().zip(&rates[0]).map(|(ours, noop)| ours / noop).collect();
            let (ratio, range) = median(&mut ratios);
            let interval = median_interval(&ratios);
            let [noop_mb_s, adaptive_mb_s] = rates.map(|mut rates| median(&mut rates).0);
            let (place, dir) = (name, dir.display().to_string());
            found.push(Overhead {
                place,
                dir,
                workload,
                ratio,
                interval,
                range,
                rounds,
                noop_mb_s,
                adaptive_mb_s,
                arm,
            });
        }
    }
    Ok(found)
}

/// # Errors
/// If the directory is in memory.
pub(super) fn expect_disk(own: &Path) -> anyhow::Result<()> {
    const IN_MEMORY: [i64; 2] = [libc::TMPFS_MAGIC, 0x8584_58f6];
    let stat = rustix::fs::statfs(own).with_context(|| own.display().to_string())?;
    if IN_MEMORY.contains(&(stat.f_type as i64)) {
        bail!("--own {}: that is in memory, and no disk; name a directory on this machine's disk", own.display());
    }
    Ok(())
}

impl Place<'_> {
    fn mount_point(&self, side: &str) -> PathBuf {
        self.room.path().join(side)
    }

    fn leave(&self) -> anyhow::Result<()> {
        SIDES.into_iter().try_for_each(|side| unmount(self.runner, &self.mount_point(side)))
    }

    fn lay(&self) -> anyhow::Result<()> {
        for job in 0..8 {
            let path = self.room.path().join(format!("source/f{job}"));
            fs::write(&path, vec![7_u8; FILE_BYTES as usize]).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn mount(&self, side: &str, direct: bool) -> anyhow::Result<()> {
        let room = self.room.path();
        let scheduler = match side {
            "noop" => "policy = \"noop\"".to_owned(),
            _ => format!("learned = {:?}\ndecisions = {:?}", room.join("learned"), room.join("decisions")),
        };
        let text = format!(
            "[mount]\nsource = {:?}\nmountpoint = {:?}\ncache = \"none\"\n[volume]\ndirect = {direct}\n[scheduler]\n{scheduler}\n\
             [log]\nfile = {:?}\n",
            room.join("source"),
            self.mount_point(side),
            room.join(format!("{side}.log"))
        );
        let config = room.join(format!("{side}.toml"));
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let mut command = Command::new(self.sluice);
        self.runner.finish(command.args(["mount", "--daemon", "--config"]).arg(&config), false).map(drop)
    }

    /// MB/s.
    fn run(&self, side: &str, options: &[&str], seed: u32, seconds: u32) -> anyhow::Result<f64> {
        let mut command = fio_command();
        command.args([
            "--name=o",
            "--group_reporting",
            "--time_based",
            "--thread",
            "--invalidate=0",
            "--fallocate=none",
        ]);
        command.args([
            "--filename_format=f$jobnum".to_owned(),
            format!("--directory={}", self.mount_point(side).display()),
        ]);
        command.args([format!("--runtime={seconds}"), format!("--size={FILE_BYTES}"), format!("--randseed={seed}")]);
        let json = check_fio(&self.runner.run(command.args(options))?)?;
        let of = |op: &str| json["jobs"][0][op]["bw_bytes"].as_f64().unwrap_or(0.0) / 1e6;
        Ok(of("read") + of("write"))
    }

    fn arm(&self) -> anyhow::Result<String> {
        let mut command = Command::new(self.sluice);
        let said = self
            .runner
            .finish(command.args(["status", "--explain", "--json"]).arg(self.mount_point(SIDES[1])), false)?;
        let told: serde_json::Value = serde_json::from_str(&said.out).context("sluice status --explain")?;
        Ok(told["arm"].as_str().unwrap_or_default().to_owned())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            output::tell(format_args!("{error:#}"));
        }
    }
}

pub(super) fn print(found: &[Overhead]) {
    if found.is_empty() {
        return;
    }
    output::line(format_args!(
        "\n{:<10}{:<38}{:>10}{:>10}  adaptive / noop, median of rounds of {SECONDS} s each and its 95 %; smallest to largest",
        "", "choosing where there is nothing to choose", "noop", "adaptive"
    ));
    for one in found {
        let missed = match 1.0 - BAR {
            bar if one.interval[1] < bar => "MISSED ",
            bar if one.ratio < bar => "~MISSED ",
            _ => "",
        };
        output::line(format_args!(
            "{:<10}{:<38}{:>10.1}{:>10.1}  {missed}{:.3} ({:.3}..{:.3}); {:.3}..{:.3}, {}: {}, in {}",
            one.place,
            one.workload,
            one.noop_mb_s,
            one.adaptive_mb_s,
            one.ratio,
            one.interval[0],
            one.interval[1],
            one.range[0],
            one.range[1],
            counted(one.rounds.into(), "round"),
            one.arm,
            one.dir
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_not_this_machines_own_disk() {
        let error = expect_disk(Path::new("/dev/shm")).unwrap_err().to_string();
        assert!(error.contains("--own /dev/shm: that is in memory"), "{error}");
        assert!(expect_disk(Path::new("/nowhere")).is_err());
    }
}
