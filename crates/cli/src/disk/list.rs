//! `sluice disk list`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use sluice_notation::show_size;
use sluice_storage::mounts;

use super::loops::Loop;
use super::queue;
use super::state::{Disk, Phase, Store};
use crate::control;
use crate::output::{self, Versioned};

/// Lists disks with model, size, scheduler, mount points, parts and state
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON: a list of objects
    #[arg(long)]
    json: bool,
}

/// A disk as it is.
#[derive(Serialize)]
struct Row {
    name: String,
    emulated: bool,
    /// The real disk that is below.
    disk: Option<PathBuf>,
    /// The SSD before it: `docs/tier.md` says what its status has.
    tier: Option<Tier>,
    device: Option<PathBuf>,
    model: Option<String>,
    drives: u32,
    stripe_bytes: Option<u64>,
    size_bytes: u64,
    queue_depth: u32,
    scheduler: Option<String>,
    filesystem: Option<String>,
    mount_points: Vec<PathBuf>,
    /// Where the bytes are.
    backing: Option<PathBuf>,
    state: State,
    /// Why it is broken.
    problem: Option<String>,
    /// What to do about that.
    remedy: Option<String>,
    /// What it is, for people.
    #[serde(skip)]
    description: String,
}

#[derive(Serialize)]
struct Tier {
    ssd: PathBuf,
    size_bytes: u64,
    /// Absent where nobody serves it.
    status: Option<serde_json::Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ready,
    Creating,
    Starting,
    Removing,
    /// A command is at work on it, and has not noted yet what it does.
    Busy,
    Broken,
}

/// Prints them.
///
/// # Errors
/// If the state files cannot be found.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = Store::open()?;
    let names = store.names()?;
    let rows: Vec<Row> = names.iter().filter_map(|name| look(&store, name)).collect();
    if args.json {
        let rows: Vec<_> = rows.iter().map(Versioned::new).collect();
        output::line(serde_json::to_string(&rows)?);
    } else if rows.is_empty() {
        output::say("There are no emulated disks; make one with: sluice disk create NAME --model hdd-7200 --size 20G");
    } else {
        output::text(&table(&rows));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether all parts of a disk are there.
pub(super) fn problem(disk: &Disk) -> Option<String> {
    let path = disk.emulation();
    let problem = match disk.phase {
        Phase::Creating => "its creation did not come to an end",
        Phase::Removing => "its removal did not come to an end",
        Phase::Starting => "it was being brought back, which did not come to an end",
        Phase::Ready if !mounts::is_mount_point(&path) => {
            "the mount of the process that serves it is gone (was the machine restarted?)"
        }
        // Asked at the socket, not at the mount: a process that hangs answers neither, but only the latter is waited for.
        Phase::Ready if !matches!(control::connect(&path), Ok(Some(_))) => "the process that serves it has died",
        Phase::Ready if Loop::bound_to(&disk.image_name()).is_empty() => "its block device was unbound",
        Phase::Ready => return None,
    };
    Some(problem.to_owned())
}

/// `None` if it was removed just now.
fn look(store: &Store, name: &str) -> Option<Row> {
    let busy = store.is_busy(name);
    let disk = match store.load(name) {
        Ok(disk) => disk?,
        Err(error) => return Some(damaged(name, &error)),
    };
    let device = Loop::bound_to(&disk.image_name()).into_iter().next();
    let problem = if busy { None } else { problem(&disk) };
    let state = match (&problem, disk.phase) {
        (Some(_), _) => State::Broken,
        (None, Phase::Creating) => State::Creating,
        (None, Phase::Starting) => State::Starting,
        (None, Phase::Removing) => State::Removing,
        (None, Phase::Ready) if busy => State::Busy,
        (None, Phase::Ready) => State::Ready,
    };
    let numbers = device.as_ref().and_then(Loop::numbers);
    let scheduler = device.as_ref().and_then(|device| queue::scheduler(&device.sysfs()));
    let tier = disk.tier.as_ref().map(|tier| Tier {
        ssd: tier.ssd.clone(),
        size_bytes: tier.size_bytes,
        status: status_of_tier(&disk).filter(|_| state == State::Ready),
    });
    Some(Row {
        name: name.to_owned(),
        emulated: disk.emulated,
        disk: disk.disk.clone(),
        tier,
        device: device.as_ref().map(Loop::path),
        drives: disk.drives,
        stripe_bytes: disk.stripe_bytes,
        size_bytes: disk.size_bytes,
        queue_depth: disk.queue_depth,
        scheduler: scheduler.or(Some(disk.scheduler.clone())),
        filesystem: disk.filesystem.clone(),
        mount_points: numbers.map(|numbers| mounts::of_device(&numbers)).unwrap_or_default(),
        backing: Some(disk.dir.clone()),
        state,
        remedy: problem.as_ref().map(|_| remedy(&disk)),
        problem,
        description: disk.describe(),
        model: disk.emulated.then_some(disk.model),
    })
}

/// A disk about which its state file says nothing.
fn damaged(name: &str, error: &anyhow::Error) -> Row {
    Row {
        name: name.to_owned(),
        emulated: true,
        disk: None,
        tier: None,
        device: None,
        model: None,
        drives: 0,
        stripe_bytes: None,
        size_bytes: 0,
        queue_depth: 0,
        scheduler: None,
        filesystem: None,
        mount_points: Vec::new(),
        backing: None,
        state: State::Broken,
        problem: Some(format!("{error:#}")),
        remedy: Some("see losetup --list and /proc/mounts for what is left of it, and remove the file".to_owned()),
        description: "unknown".to_owned(),
    }
}

fn status_of_tier(disk: &Disk) -> Option<serde_json::Value> {
    control::connect(&disk.emulation()).ok()??.status().ok()?.tier
}

fn remedy(disk: &Disk) -> String {
    let name = &disk.name;
    let back =
        if disk.phase.was_ready() { format!("bring it back: sluice disk up {name}, or ") } else { String::new() };
    format!("{back}clear it away: sluice disk remove {name}")
}

fn table(rows: &[Row]) -> String {
    let shown =
        |path: &Option<PathBuf>| path.as_ref().map_or_else(|| "-".to_owned(), |path| path.display().to_string());
    let heading = ["NAME", "DEVICE", "WHAT", "SIZE", "SCHEDULER", "MOUNTED ON", "STATE", "BACKING"];
    let mut lines: Vec<[String; 8]> = vec![heading.map(str::to_owned)];
    for row in rows {
        let mount_points: Vec<String> = row.mount_points.iter().map(|path| path.display().to_string()).collect();
        lines.push([
            row.name.clone(),
            shown(&row.device),
            row.description.clone(),
            show_size(row.size_bytes as f64),
            row.scheduler.clone().unwrap_or_else(|| "-".to_owned()),
            if mount_points.is_empty() { "-".to_owned() } else { mount_points.join(",") },
            format!("{:?}", row.state).to_lowercase(),
            shown(&row.backing),
        ]);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text += line.trim_end();
        text.push('\n');
    }
    for row in rows {
        let status = row.tier.as_ref().and_then(|tier| tier.status.as_ref());
        if let Some(error) = status.filter(|status| status["health"] != "well").map(|status| &status["last_error"]) {
            text += &format!("{}: its tier has failed: {}\n", row.name, error.as_str().unwrap_or_default());
        }
        if let (Some(problem), Some(remedy)) = (&row.problem, &row.remedy) {
            text += &format!("{} is broken: {problem}; {remedy}\n", row.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_disks_say_what_to_do() {
        let row = damaged("d1", &anyhow::anyhow!("the state file is empty"));
        let text = table(&[row]);
        assert!(text.contains("d1 is broken: the state file is empty; see losetup"), "{text}");
        assert!(text.lines().nth(1).unwrap().contains("unknown"), "{text}");
    }

    #[test]
    fn parts_that_are_missing_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = Disk::new("d", "hdd-7200".into(), 1 << 30, dir.path().to_owned());
        assert!(problem(&disk).unwrap().contains("creation"));
        disk.phase = Phase::Removing;
        assert!(problem(&disk).unwrap().contains("removal"));
        disk.phase = Phase::Starting;
        assert!(problem(&disk).unwrap().contains("brought back"));
        assert!(remedy(&disk).contains("sluice disk up d"));
        disk.phase = Phase::Ready;
        assert!(problem(&disk).unwrap().contains("the mount of the process that serves it is gone"));
    }
}
