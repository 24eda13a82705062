//! The files that a trace is replayed on.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use sluice_core::Op;
use sluice_trace::Meta;

use super::super::{Ended, Opened, blocks};
use super::Args;

/// Bytes prepared at a time.
const CHUNK: usize = 1 << 20;
/// Longest request. Applications' requests are split into pieces of 1 MiB.
const LEN_MAX: u32 = 256 << 20;

/// A file of the trace.
#[derive(Default)]
pub(super) struct Need {
    pub(super) path: Vec<u8>,
    /// Where its last request ends.
    size: u64,
    written: bool,
}

pub(super) fn needs(path: &Path, reader: &mut Opened, meta: &Meta) -> anyhow::Result<(Vec<Need>, Ended)> {
    let mut needs: Vec<Need> = Vec::new();
    let ended = blocks(path, reader, |paths, block| {
        for entry in block.iter() {
            let at = entry.file as usize;
            if at >= needs.len() {
                needs.resize_with(at + 1, Need::default);
            }
            let need = &mut needs[at];
            if need.size == 0 {
                need.path = paths.get(entry.file).to_vec();
            }
            if entry.len > LEN_MAX {
                bail!(
                    "{}: a request of {} bytes ({} at byte {}); more than {LEN_MAX} at a time are not replayed",
                    path.display(),
                    entry.len,
                    paths.text(entry.file),
                    entry.offset
                );
            }
            let end = meta.logical_offset(entry.target, entry.offset).saturating_add(entry.len.into());
            need.size = need.size.max(end);
            need.written |= entry.op == Op::Write;
        }
        Ok(())
    })?;
    Ok((needs, ended))
}

/// Where a path of a trace lies below `dir`. Nothing leads out of there.
fn below(dir: &Path, path: &[u8]) -> anyhow::Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let mut result = dir.to_owned();
    for part in path.components() {
        match part {
            Component::Normal(name) => result.push(name),
            Component::RootDir | Component::CurDir => {}
            _ => bail!("the trace names a file outside the directory: {}", path.display()),
        }
    }
    if result == dir {
        bail!("the trace has a file without a name");
    }
    Ok(result)
}

/// What a read of a file should find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expected {
    /// Nobody knows, or wants to.
    Anything,
    /// What [`fill`] says: the replay has written all of the file.
    Pattern,
    /// What was read when the trace was recorded, of which it has checksums.
    Recorded,
}

/// A file to replay on.
pub(super) struct Target {
    pub(super) file: File,
    pub(super) name: String,
    pub(super) seed: u64,
    pub(super) expected: Expected,
}

/// All files of a trace, by number.
#[derive(Default)]
pub(super) struct Targets {
    pub(super) files: HashMap<u32, Target>,
    /// Files that were missing.
    pub(super) made: u64,
}

/// Opens all files, making those that are missing.
pub(super) fn prepare(args: &Args, needs: &[Need], sums: bool, stop: &AtomicBool) -> anyhow::Result<Targets> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Best effort: too many files are told below.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if !args.dir.is_dir() {
        let what = if args.dir.exists() { "is not a directory" } else { "does not exist" };
        bail!("{} {what}; name a directory for the files that are replayed", args.dir.display());
    }
    let used = || needs.iter().enumerate().filter(|(_, need)| !need.path.is_empty());
    // The same path may stand for several files: one that was removed and made again, say.
    let written: HashSet<&[u8]> = used().filter(|(_, need)| need.written).map(|(_, need)| &*need.path).collect();
    has_room(args, used().map(|(_, need)| need))?;
    let (mut targets, mut made) = (Targets::default(), HashSet::new());
    for (number, need) in used() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let path = below(&args.dir, &need.path)?;
        let shown = path.display().to_string();
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        let there = path.symlink_metadata().is_ok() && !made.contains(&path);
        let writes = written.contains(&*need.path);
        let expected = match args.check {
            false => Expected::Anything,
            true if there && !writes && sums => Expected::Recorded,
            true => Expected::Pattern,
        };
        if there && !args.overwrite && (writes || expected == Expected::Pattern) {
            let why = if writes { "would be written" } else { "the trace has no checksums to compare it with" };
            bail!("{shown} is there and {why}; give another directory, or --overwrite to make it anew");
        }
        let file = File::options()
            .read(true)
            .write(writes || !there || expected == Expected::Pattern)
            .create(!there)
            .truncate(false)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .with_context(|| shown.clone())?;
        if expected != Expected::Recorded {
            let size = file.metadata().with_context(|| shown.clone())?.len();
            let from = if there && expected == Expected::Anything { need.size.max(size) } else { 0 };
            fill_file(&file, &need.path, from, need.size, stop).with_context(|| shown)?;
            targets.made += u64::from(!there && made.insert(path));
        }
        let name = String::from_utf8_lossy(&need.path).into_owned();
        targets.files.insert(number as u32, Target { file, name, seed: seed(&need.path), expected });
    }
    Ok(targets)
}

/// A trace may name any size: better told now than by a full disk.
fn has_room<'a>(args: &Args, needs: impl Iterator<Item = &'a Need>) -> anyhow::Result<()> {
    let free = rustix::fs::statvfs(&args.dir).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    let mut missing = 0_u64;
    for need in needs {
        let there = below(&args.dir, &need.path)?.metadata().map_or(0, |metadata| metadata.len());
        missing = missing.saturating_add(need.size.saturating_sub(there));
    }
    if missing > free {
        let [missing, free] = [missing, free].map(|bytes| bytes as f64 / 1e9);
        let dir = args.dir.display();
        bail!("the files of the trace would take {missing:.1} GB more in {dir}, where {free:.1} GB are free");
    }
    Ok(())
}

fn fill_file(file: &File, name: &[u8], from: u64, to: u64, stop: &AtomicBool) -> io::Result<()> {
    let (mut at, mut buffer, seed) = (from, Vec::new(), seed(name));
    while at < to && !stop.load(Ordering::Relaxed) {
        buffer.resize((to - at).min(CHUNK as u64) as usize, 0);
        fill(&mut buffer, seed, at);
        file.write_all_at(&buffer, at)?;
        at += buffer.len() as u64;
    }
    Ok(())
}

fn seed(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// What a file holds at `offset`.
pub(super) fn fill(buffer: &mut [u8], seed: u64, offset: u64) {
    let mut done = 0;
    while done < buffer.len() {
        let at = offset + done as u64;
        let mut word = (seed ^ (at / 8)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word = (word ^ (word >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let bytes = (word ^ (word >> 32)).to_le_bytes();
        let from = (at % 8) as usize;
        let count = (8 - from).min(buffer.len() - done);
        buffer[done..done + count].copy_from_slice(&bytes[from..from + count]);
        done += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out_of_the_directory() {
        let dir = Path::new("/d");
        assert_eq!(below(dir, b"/tmp/./x").unwrap(), Path::new("/d/tmp/x"));
        for path in [&b"../x"[..], b"a/../../x", b"/", b"", b"."] {
            assert!(below(dir, path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn the_pattern_depends_on_the_place_alone() {
        let mut whole = [0; 64];
        fill(&mut whole, 7, 100);
        for from in 0..64 {
            let mut part = vec![0; (64 - from).min(13)];
            fill(&mut part, 7, 100 + from as u64);
            assert_eq!(part, whole[from..from + part.len()]);
        }
    }
}
