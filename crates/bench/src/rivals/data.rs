//! What the workloads work on: files spread over the whole disk, made and verified by fio, small files, databases.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use rustix::fs::{FallocateFlags, fallocate};

use super::workloads;
use crate::bed::{Runner, check_fio, fio_command};

const PROGRAMS: &str = include_str!("programs.py");
/// Files that are read in order, each by one job at a time.
pub(crate) const STREAM_FILES: usize = 32;
/// Files that are written.
pub(crate) const WRITTEN_FILES: usize = 8;
const WRITTEN_BYTES: u64 = 32 << 20;
/// Directory of files that are read one after the other, and their length: a few requests each.
pub(crate) const SHORT_DIR: &str = "short";
pub(crate) const SHORT_BYTES: u64 = 256 << 10;
/// So much is there for each second of a run, more than a disk of today's models reads: nothing is read twice, so nothing comes
/// from memory. Of a short run as much as of one of [`SECONDS_MIN`]: a program that is served before the others reads more than its
/// share, and at the end of its files it would begin again, in memory.
const BYTES_PER_S: u64 = 160 << 20;
const SECONDS_MIN: u32 = 5;
pub(crate) const SMALL_DIRS: usize = 100;
pub(crate) const SMALL_FILES_OF_A_DIR: usize = 60;
/// What fio computes checksums of.
const VERIFIED: &str = "--verify_interval=64k";

/// A part of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Data {
    Streams,
    Shared,
    Written,
    Short,
    Small,
    Database,
}

impl Data {
    pub(crate) const ALL: [Data; 6] =
        [Data::Streams, Data::Shared, Data::Written, Data::Short, Data::Small, Data::Database];
    pub(crate) const SHARED: &str = "shared";

    pub(crate) fn stream(number: usize) -> String {
        format!("stream-{number}")
    }

    pub(crate) fn written(number: usize) -> String {
        format!("written-{number}")
    }

    /// Its files and their length, of those that fio makes one by one.
    fn files(self, seconds: u32) -> Vec<(String, u64)> {
        let all = shared_bytes(seconds);
        match self {
            Data::Streams => (0..STREAM_FILES).map(|i| (Data::stream(i), all / STREAM_FILES as u64)).collect(),
            Data::Shared => vec![(Data::SHARED.to_owned(), shared_bytes(seconds))],
            Data::Written => (0..WRITTEN_FILES).map(|i| (Data::written(i), WRITTEN_BYTES)).collect(),
            Data::Short | Data::Small | Data::Database => Vec::new(),
        }
    }
}

/// Length of the file that several read together.
pub(crate) fn shared_bytes(seconds: u32) -> u64 {
    BYTES_PER_S * u64::from(seconds.max(SECONDS_MIN))
}

/// How many files are read one after the other, of data for a run of so many bytes: more than one who reads alone gets through, as
/// opening the next one takes time.
pub(crate) fn short_files(shared_bytes: u64) -> u64 {
    shared_bytes / 2 / SHORT_BYTES
}

/// The short files below `dir`, as arguments of fio.
pub(crate) fn short_args(dir: &Path, shared_bytes: u64) -> [OsString; 5] {
    [
        format!("--directory={}", dir.join(SHORT_DIR).display()).into(),
        "--filename_format=$filenum".into(),
        format!("--nrfiles={}", short_files(shared_bytes)).into(),
        format!("--filesize={SHORT_BYTES}").into(),
        "--openfiles=1".into(),
    ]
}

/// Makes what is needed below `dir`, which is on an empty disk of so many bytes: file after file in a piece of its own, as
/// far apart as the disk allows, for on a disk in use they do not lie together either.
///
/// # Errors
/// What the file system, fio or Python says.
pub(crate) fn lay(runner: &Runner, dir: &Path, needs: &[Data], seconds: u32, disk_bytes: u64) -> anyhow::Result<()> {
    let files: Vec<(String, u64)> = needs.iter().flat_map(|data| data.files(seconds)).collect();
    let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    // A part of the disk stays free, for its own tables and what else is made.
    let gap = (disk_bytes / 10 * 8).saturating_sub(bytes) / (files.len() as u64).max(1);
    let gap = gap - gap % (1 << 20);
    let mut gaps = Vec::new();
    for (name, bytes) in &files {
        reserve(&dir.join(name), *bytes)?;
        if gap > 0 {
            gaps.push(dir.join(format!("gap-{}", gaps.len())));
            reserve(&gaps[gaps.len() - 1], gap)?;
        }
    }
    let write = |args: &[OsString]| -> anyhow::Result<()> {
        let mut command = fio_command();
        command.args(["--name=lay", "--rw=write", "--bs=1m", "--end_fsync=1", "--do_verify=0", "--fallocate=none"]);
        command.args(["--verify=crc32c", "--verify_state_save=0", VERIFIED]);
        check_fio(&runner.run(command.args(args))?).map(|_| ())
    };
    for (name, bytes) in &files {
        write(&[format!("--size={bytes}").into(), format!("--filename={}", dir.join(name).display()).into()])?;
    }
    for gap in &gaps {
        fs::remove_file(gap).with_context(|| gap.display().to_string())?;
    }
    if needs.contains(&Data::Short) {
        let short = dir.join(SHORT_DIR);
        fs::create_dir(&short).with_context(|| short.display().to_string())?;
        let in_order = ["--file_service_type=sequential".into(), format!("--bs={SHORT_BYTES}").into()];
        write(&[&short_args(dir, shared_bytes(seconds))[..], &in_order].concat())?;
    }
    for (data, part) in [(Data::Small, "lay-small"), (Data::Database, "lay-database")] {
        if needs.contains(&data) {
            python(runner, &workloads::python(part, dir, seconds, 1))?;
        }
    }
    Ok(())
}

/// Space without content, in one piece as far as there is one.
fn reserve(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let made = || -> std::io::Result<()> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        Ok(fallocate(&file, FallocateFlags::empty(), 0, bytes)?)
    };
    made().with_context(|| format!("{}: {bytes} bytes of the emulated disk", path.display()))
}

/// Reads files below `dir` as the workloads do, and compares their content with the checksums in them.
///
/// # Errors
/// If anything is not what was written.
pub(crate) fn verify(runner: &Runner, dir: &Path, needs: &[Data], seconds: u32, direct: bool) -> anyhow::Result<()> {
    let short = needs.contains(&Data::Short).then(|| (format!("{SHORT_DIR}/0"), SHORT_BYTES));
    let firsts = needs.iter().filter_map(|data| data.files(seconds).into_iter().next());
    for (name, bytes) in firsts.chain(short) {
        let bytes = bytes.min(16 << 20);
        let path = dir.join(name);
        let mut command = fio_command();
        command.args(["--name=verify", "--rw=read", "--verify=crc32c", VERIFIED, "--verify_fatal=1"]);
        command.arg(format!("--bs={}", bytes.min(1 << 20)));
        command.args([format!("--size={bytes}"), format!("--direct={}", u8::from(direct))]);
        let output = runner.run(command.arg(format!("--filename={}", path.display())))?;
        check_fio(&output).with_context(|| format!("{} does not read as it was written", path.display()))?;
    }
    Ok(())
}

/// Whether the databases are whole after all that was done to them.
///
/// # Errors
/// If one is not.
pub(crate) fn check_databases(runner: &Runner, dir: &Path) -> anyhow::Result<()> {
    python(runner, &workloads::python("check-database", dir, 0, 1)).map(|_| ())
}

/// Runs a part of `programs.py`: how much it has done, and the seconds that it took.
///
/// # Errors
/// As [`Runner::run`].
pub(crate) fn python(runner: &Runner, args: &[OsString]) -> anyhow::Result<(f64, f64)> {
    let said = runner.run(Command::new("python3").args(["-c", PROGRAMS]).args(args))?;
    let mut numbers = said.out.split_whitespace().map(str::parse::<f64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(done)), Some(Ok(took))) if took > 0.0 => Ok((done, took)),
        _ => bail!("python3: not what was expected: {}", said.out.trim()),
    }
}
