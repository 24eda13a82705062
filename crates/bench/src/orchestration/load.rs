//! Programs on the data servers of a cluster, as the dissertation's are (Zhang 2012, 5.3.1): ranks that go through one shared file in
//! stripes over all data servers, call by call, with a barrier after each.
//!
//! GlusterFS has had no striping since version 6: `shard` puts pieces of at least 4 MiB where a hash of their names says. So the
//! programs stripe themselves, as PVFS2's client library does: 64 KiB a stripe, one file for each data server.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::fs::FallocateFlags;
use sluice_cli::output;

/// Bytes of a stripe; of what says where it belongs, which direct I/O asks of memory and offsets, too.
const STRIPE: u64 = 64 << 10;
const BLOCK: usize = 4_096;
/// What files are written with when they are made.
const PREPARED: u64 = 1 << 20;
/// Names that are tried until one is on a data server.
const NAMES: u32 = 10_000;

/// What a program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    /// `mpi-io-test`: ranks take turns, 64 KiB each.
    Turns,
    /// `noncontig`: columns of a matrix, 16 pieces of 4 KiB a call.
    Columns,
    /// `hpio`: regions of 64 KiB with 4 KiB between them.
    Regions,
    /// `ior-mpi-io`: each rank a part of its own, 64 KiB a call.
    Parts,
}

/// A program of the command line: `ACCESS:OP:DIR`.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    access: Access,
    writes: bool,
    dir: PathBuf,
}

impl std::str::FromStr for Program {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> anyhow::Result<Program> {
        let [access, op, dir] = text.splitn(3, ':').collect::<Vec<_>>()[..] else {
            bail!("{text}: a program is ACCESS:OP:DIR")
        };
        let access = match access {
            "mpi-io-test" => Access::Turns,
            "noncontig" => Access::Columns,
            "hpio" => Access::Regions,
            "ior-mpi-io" => Access::Parts,
            _ => bail!("{access}: mpi-io-test, noncontig, hpio or ior-mpi-io"),
        };
        ensure!(["read", "write"].contains(&op), "{op}: read or write");
        Ok(Program { access, writes: op == "write", dir: dir.into() })
    }
}

/// Runs programs at the same time for a while; prints how long, and the bytes of each
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// ACCESS:OP:DIR, DIR on a mount of its own
    #[arg(long, value_delimiter = ',', required = true)]
    programs: Vec<Program>,
    #[arg(long)]
    servers: u64,
    /// Of each program
    #[arg(long)]
    ranks: u64,
    /// Of each program's file, on all data servers together
    #[arg(long)]
    bytes: u64,
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Make the files, and leave so much between programs on each data server
    #[arg(long)]
    prepare: Option<u64>,
}

/// A file in stripes.
struct Striped {
    parts: Vec<File>,
}

/// Direct I/O wants its memory where blocks begin.
struct Memory {
    bytes: Vec<u8>,
}

impl Memory {
    fn new(len: u64) -> Memory {
        Memory { bytes: vec![0; len as usize + BLOCK] }
    }

    fn aligned(&mut self, len: u64) -> &mut [u8] {
        let skip = self.bytes.as_ptr().align_offset(BLOCK);
        &mut self.bytes[skip..skip + len as usize]
    }
}

fn stamp(offset: u64, bytes: &mut [u8]) {
    for (block, at) in bytes.chunks_exact_mut(BLOCK).zip((offset..).step_by(BLOCK)) {
        block[..8].copy_from_slice(&at.to_le_bytes());
        block[BLOCK - 8..].copy_from_slice(&(!at).to_le_bytes());
    }
}

fn check(offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
    for (block, at) in bytes.chunks_exact(BLOCK).zip((offset..).step_by(BLOCK)) {
        let is_right = block[..8] == at.to_le_bytes() && block[BLOCK - 8..] == (!at).to_le_bytes();
        ensure!(is_right, "WRONG DATA in the 4096 bytes from {at}");
    }
    Ok(())
}

/// Where a file is, by the data server's directory that GlusterFS tells.
fn server_of(path: &Path, servers: u64) -> anyhow::Result<u64> {
    let mut said = vec![0; 4_096];
    let len = rustix::fs::getxattr(path, c"trusted.glusterfs.pathinfo", &mut said[..])
        .with_context(|| format!("{}: where it is", path.display()))?;
    let said = String::from_utf8_lossy(&said[..len]).into_owned();
    let found = (0..servers).find(|server| said.contains(&format!("/brick-{server}/")));
    found.with_context(|| format!("{}: it is on none of the data servers: {said}", path.display()))
}

fn name(dir: &Path, server: u64) -> PathBuf {
    dir.join(format!("part-{server}"))
}

/// Makes an empty file on a data server, under a name that leads there; the names are in links.
fn place(dir: &Path, what: &str, servers: u64) -> anyhow::Result<Vec<PathBuf>> {
    let mut found: Vec<Option<PathBuf>> = vec![None; servers as usize];
    for n in 0..NAMES {
        let path = dir.join(format!("{what}.{n}"));
        File::create(&path).with_context(|| path.display().to_string())?;
        let at = &mut found[server_of(&path, servers)? as usize];
        match at {
            None => *at = Some(path),
            Some(_) => std::fs::remove_file(&path).with_context(|| path.display().to_string())?,
        }
        if let Some(all) = found.iter().cloned().collect() {
            return Ok(all);
        }
    }
    bail!("{}: {NAMES} names, and none on some data server", dir.display())
}

fn prepare(args: &LoadArgs, between: u64) -> anyhow::Result<ExitCode> {
    for program in &args.programs {
        let dir = &program.dir;
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        if between > 0 {
            for path in place(dir, "between", args.servers)? {
                let file = OpenOptions::new().write(true).open(&path).with_context(|| path.display().to_string())?;
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, between)
                    .with_context(|| path.display().to_string())?;
            }
        }
        for (server, path) in place(dir, "data", args.servers)?.into_iter().enumerate() {
            let link = name(dir, server as u64);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&path, &link).with_context(|| link.display().to_string())?;
        }
        let file = Striped::open(dir, args.servers, true)?;
        let mut memory = Memory::new(PREPARED);
        for offset in (0..args.bytes).step_by(PREPARED as usize) {
            let bytes = memory.aligned(PREPARED);
            stamp(offset, bytes);
            file.each(offset, bytes, |part, at, bytes| part.write_all_at(bytes, at))?;
        }
        file.parts.iter().try_for_each(File::sync_all).context("syncing what was made")?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Striped {
    fn open(dir: &Path, servers: u64, writes: bool) -> anyhow::Result<Striped> {
        let part = |server| {
            let path = name(dir, server);
            let mut options = OpenOptions::new();
            options.read(true).write(writes).custom_flags(libc::O_DIRECT);
            options.open(&path).with_context(|| path.display().to_string())
        };
        Ok(Striped { parts: (0..servers).map(part).collect::<anyhow::Result<_>>()? })
    }

    /// Does something with each stripe's piece, at its offset on its data server.
    fn each(
        &self,
        offset: u64,
        mut bytes: &mut [u8],
        act: impl Fn(&File, u64, &mut [u8]) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        let (mut at, servers) = (offset, self.parts.len() as u64);
        while !bytes.is_empty() {
            let (stripe, within) = (at / STRIPE, at % STRIPE);
            let len = (STRIPE - within).min(bytes.len() as u64);
            let (piece, rest) = bytes.split_at_mut(len as usize);
            let part = &self.parts[(stripe % servers) as usize];
            act(part, stripe / servers * STRIPE + within, piece).with_context(|| format!("the stripe at {at}"))?;
            (at, bytes) = (at + len, rest);
        }
        Ok(())
    }
}

/// What a rank asks for in its call: offset and length, none beyond the file.
fn pieces(access: Access, rank: u64, ranks: u64, call: u64, bytes: u64) -> Vec<(u64, u64)> {
    // Whole steps only, so that it is the same way each time round.
    let at = |index: u64, step: u64, len: u64| (index % ((bytes - len) / step + 1) * step, len);
    let turn = call * ranks + rank;
    match access {
        Access::Turns => vec![at(turn, STRIPE, STRIPE)],
        Access::Columns => (0..16).map(|row| at((call * 16 + row) * ranks + rank, 4_096, 4_096)).collect(),
        Access::Regions => vec![at(turn, STRIPE + 4_096, STRIPE)],
        Access::Parts => {
            let part = bytes / ranks / STRIPE * STRIPE;
            vec![(rank * part + call * STRIPE % part, STRIPE)]
        }
    }
}

/// A rank's way through the file until it is time.
struct Rank<'a> {
    program: &'a Program,
    args: &'a LoadArgs,
    file: Arc<Striped>,
    rank: u64,
    /// All ranks of the program meet after each call.
    meet: Arc<Barrier>,
    ends: Arc<AtomicBool>,
    moved: Arc<AtomicU64>,
}

impl Rank<'_> {
    fn run(&self, began: Instant) -> anyhow::Result<()> {
        let mut memory = Memory::new(STRIPE);
        let mut failed = None;
        for call in 0.. {
            if failed.is_none() {
                failed = self.call(call, &mut memory).err();
            }
            let is_over = began.elapsed() >= Duration::from_secs(self.args.seconds) || failed.is_some();
            if is_over {
                self.ends.store(true, Ordering::Relaxed);
            }
            self.meet.wait();
            let ends = self.ends.load(Ordering::Relaxed);
            // Nobody sets it between the two.
            self.meet.wait();
            if ends {
                break;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn call(&self, call: u64, memory: &mut Memory) -> anyhow::Result<()> {
        for (offset, len) in pieces(self.program.access, self.rank, self.args.ranks, call, self.args.bytes) {
            let bytes = memory.aligned(len);
            if self.program.writes {
                stamp(offset, bytes);
                self.file.each(offset, bytes, |part, at, bytes| part.write_all_at(bytes, at))?;
            } else {
                self.file.each(offset, bytes, |part, at, bytes| part.read_exact_at(bytes, at))?;
                check(offset, bytes).with_context(|| self.program.dir.display().to_string())?;
            }
            self.moved.fetch_add(len, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Runs programs, or makes their files.
///
/// # Errors
/// If a file cannot be used, or has what nobody wrote.
pub(crate) fn load(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    let fits = args.bytes.is_multiple_of(PREPARED) && args.bytes >= args.ranks * PREPARED;
    ensure!(fits && args.ranks > 0 && args.servers > 0, "--bytes: a multiple of 1 MiB, that for each rank at least");
    if let Some(between) = args.prepare {
        return prepare(args, between);
    }
    let files = args.programs.iter().map(|program| Striped::open(&program.dir, args.servers, program.writes));
    let files: Vec<Arc<Striped>> = files.map(|file| file.map(Arc::new)).collect::<anyhow::Result<_>>()?;
    let moved: Vec<Arc<AtomicU64>> = args.programs.iter().map(|_| Arc::default()).collect();
    let began = Instant::now();
    let results: Vec<anyhow::Result<()>> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for ((program, file), moved) in args.programs.iter().zip(&files).zip(&moved) {
            let (meet, ends) = (Arc::new(Barrier::new(args.ranks as usize)), Arc::new(AtomicBool::new(false)));
            for number in 0..args.ranks {
                let (file, meet) = (file.clone(), meet.clone());
                let (ends, moved) = (ends.clone(), moved.clone());
                let rank = Rank { program, args, file, rank: number, meet, ends, moved };
                threads.push(scope.spawn(move || rank.run(began)));
            }
        }
        let ended = |thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a rank panicked")))
        };
        threads.into_iter().map(ended).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    results.into_iter().collect::<anyhow::Result<()>>()?;
    let bytes: Vec<u64> = moved.iter().map(|moved| moved.load(Ordering::Relaxed)).collect();
    output::line(serde_json::json!({"seconds": seconds, "bytes": bytes}));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_within_the_file_and_ranks_share_nothing() {
        let (ranks, bytes) = (4, 8 << 20);
        for access in [Access::Turns, Access::Columns, Access::Regions, Access::Parts] {
            let mut seen = std::collections::BTreeSet::new();
            for (rank, call) in (0..ranks).flat_map(|rank| (0..1000).map(move |call| (rank, call))) {
                for (offset, len) in pieces(access, rank, ranks, call, bytes) {
                    assert!(offset + len <= bytes && offset % BLOCK as u64 == 0, "{access:?} {offset} {len}");
                    assert!(call > 4 || seen.insert(offset), "{access:?}: two have {offset}");
                }
            }
        }
    }

    #[test]
    fn stripes_are_where_they_belong_and_wrong_ones_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let parts: Vec<File> = (0..3).map(|server| File::create_new(name(dir.path(), server)).unwrap()).collect();
        let file = Striped { parts };
        let mut bytes = vec![0; 5 * STRIPE as usize];
        stamp(STRIPE / 2, &mut bytes);
        file.each(STRIPE / 2, &mut bytes, |part, at, bytes| part.write_all_at(bytes, at)).unwrap();
        let lens: Vec<u64> = file.parts.iter().map(|part| part.metadata().unwrap().len() / BLOCK as u64).collect();
        // Stripes 0 to 5, of which the last is half.
        assert_eq!(lens, [32, 32, 24]);
        assert!(check(STRIPE / 2, &bytes).is_ok() && check(0, &bytes).is_err());
        bytes[BLOCK] ^= 1;
        assert!(check(STRIPE / 2, &bytes).is_err());
        assert!("ior-mpi-io:read:/a:b".parse::<Program>().is_ok() && "ior:read:/a".parse::<Program>().is_err());
    }
}
