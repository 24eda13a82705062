//! What was done for each file, as JSON: `SLUICE_MPI_REPORT`.
//!
//! `{"files": [...]}`: one object of each file that was closed, by the process of lowest rank that had it open. Programs of
//! several files, and several programs, may add to one report; each holds its lock while it does.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use serde_json::{Value, json};

use crate::choose::Chooser;
use crate::plan::Strategy;

/// Calls of a sort that one process made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sort {
    /// How many.
    pub calls: i64,
    /// Bytes asked for.
    pub bytes: i64,
    /// Nanoseconds in them.
    pub nanoseconds: i64,
}

/// The sorts: reads and writes by themselves, with others, with the shared pointer, and those that return early.
pub const SORTS: [&str; 8] = [
    "read",
    "read_collective",
    "read_shared",
    "read_later",
    "write",
    "write_collective",
    "write_shared",
    "write_later",
];

/// What a file's entry says. `sorts` are of the process that writes it.
#[must_use]
pub fn entry(name: &str, ranks: i32, layout: Option<String>, chooser: Option<&Chooser>, sorts: &[Sort; 8]) -> Value {
    let seconds = |nanoseconds: i64| nanoseconds as f64 * 1e-9;
    let calls: serde_json::Map<String, Value> = SORTS
        .iter()
        .zip(sorts)
        .filter(|(_, sort)| sort.calls > 0)
        .map(|(name, sort)| {
            let told = json!({"calls": sort.calls, "bytes": sort.bytes, "seconds": seconds(sort.nanoseconds)});
            ((*name).to_owned(), told)
        })
        .collect();
    let outcomes = chooser.map(Chooser::outcomes).unwrap_or_default();
    let strategies: Vec<Value> = outcomes
        .iter()
        .map(|(kind, strategy, outcome)| {
            let library = outcomes.iter().find(|(other, strategy, _)| other == kind && *strategy == Strategy::Library);
            let rate = |bytes: i64, seconds: f64| bytes as f64 / seconds / 1e6;
            let own = rate(outcome.bytes, outcome.seconds);
            // Of the library on calls of the same kind; 1 for itself.
            let gain = library.map(|(_, _, of_library)| own / rate(of_library.bytes, of_library.seconds));
            json!({
                "direction": if kind.write { "write" } else { "read" },
                "call_bytes_log2": kind.bytes,
                "range_bytes_log2": kind.range,
                "strategy": strategy.name(),
                "calls": outcome.calls,
                "bytes": outcome.bytes,
                "seconds": outcome.seconds,
                "predicted_seconds": outcome.predicted,
                "mb_s": own,
                "gain": gain,
            })
        })
        .collect();
    json!({
        "file": name,
        "processes": ranks,
        "layout": layout,
        "verdict": chooser.map_or("the library: no layout is known", Chooser::verdict),
        "calls": calls,
        "collective": strategies,
    })
}

/// Adds an entry to the report at `path`, which is made if it is not there.
///
/// # Errors
/// It cannot be opened, read or written, or holds something else.
pub fn add(path: &Path, entry: Value) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    lock(&file)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut whole: Value = if text.trim().is_empty() {
        json!({"files": []})
    } else {
        serde_json::from_str(&text).map_err(io::Error::other)?
    };
    let files = whole.get_mut("files").and_then(Value::as_array_mut);
    files.ok_or_else(|| io::Error::other("it is no report"))?.push(entry);
    file.rewind()?;
    let text = format!("{whole:#}\n");
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

fn lock(file: &File) -> io::Result<()> {
    // SAFETY: a descriptor that is open; the lock goes with it.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    if locked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_added_to_what_is_there() {
        let path = std::env::temp_dir().join(format!("sluice-mpiio-report-{}", std::process::id()));
        let sorts = [Sort { calls: 2, bytes: 10, nanoseconds: 500_000_000 }; 8];
        for name in ["a", "b"] {
            add(&path, entry(name, 4, None, None, &sorts)).unwrap();
        }
        let whole: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(whole["files"][1]["file"], "b");
        assert_eq!(whole["files"][0]["calls"]["write_later"]["seconds"], 0.5);
        std::fs::write(&path, "{}").unwrap();
        assert!(add(&path, json!({})).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
