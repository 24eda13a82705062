//! Client processes of a cluster: they go through files as the papers' programs do, and compare every byte.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use sluice_cli::output;

use crate::random::SplitMix64;

/// Bytes that say where they belong; also what direct I/O asks of memory and offsets.
const BLOCK: usize = 4_096;

/// What all processes do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Pattern {
    /// Processes take turns in one file, and read.
    StridedRead,
    /// Each writes a part of one file.
    SharedWrite,
    /// Each writes a file of its own.
    OwnFiles,
    /// Half of them read by turns, the others write files of their own.
    Mixed,
    /// The file for reading by turns is made.
    Prepare,
}

impl Pattern {
    pub(crate) const MEASURED: [Pattern; 4] =
        [Pattern::StridedRead, Pattern::SharedWrite, Pattern::OwnFiles, Pattern::Mixed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Pattern::StridedRead => "strided-read",
            Pattern::SharedWrite => "shared-write",
            Pattern::OwnFiles => "own-files",
            Pattern::Mixed => "mixed",
            Pattern::Prepare => "prepare",
        }
    }

    /// What a process of it does.
    fn of(self, rank: u64) -> Pattern {
        match self {
            Pattern::Mixed if rank.is_multiple_of(2) => Pattern::StridedRead,
            Pattern::Mixed => Pattern::OwnFiles,
            other => other,
        }
    }
}

/// Runs the processes of a pattern; prints seconds from the first request to the last answer, and bytes
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    #[arg(long, value_enum)]
    pattern: Pattern,
    /// Mounts, which processes take by turns
    #[arg(long, value_delimiter = ',', required = true)]
    mounts: Vec<PathBuf>,
    #[arg(long)]
    processes: u64,
    /// Bytes of a request, a multiple of 4096
    #[arg(long)]
    request: u64,
    /// Requests of each process
    #[arg(long)]
    requests: u64,
    /// Of the run: what it writes is not what the one before wrote
    #[arg(long, default_value_t = 0)]
    round: u64,
    /// Read what was written through another mount, and compare
    #[arg(long)]
    verify: bool,
    /// This is one of the processes
    #[arg(long)]
    rank: Option<u64>,
}

/// What all blocks of a run have in common, with room for where they are.
struct Content {
    template: [u8; BLOCK],
}

impl Content {
    fn new(file: u64, round: u64) -> Content {
        let mut random = SplitMix64(file << 32 ^ round);
        let mut template = [0; BLOCK];
        template.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        Content { template }
    }

    fn fill(&self, offset: u64, bytes: &mut [u8]) {
        for (block, at) in bytes.chunks_exact_mut(BLOCK).zip((offset..).step_by(BLOCK)) {
            block.copy_from_slice(&self.template);
            block[..8].copy_from_slice(&at.to_le_bytes());
        }
    }

    fn check(&self, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        for (block, at) in bytes.chunks_exact(BLOCK).zip((offset..).step_by(BLOCK)) {
            ensure!(
                block[..8] == at.to_le_bytes() && block[8..] == self.template[8..],
                "WRONG DATA in the 4096 bytes from {at}"
            );
        }
        Ok(())
    }
}

/// One process's file and way through it.
struct Way {
    path: PathBuf,
    /// Names the content.
    file: u64,
    round: u64,
    writes: bool,
    /// Of its first request, and from each to the next.
    first: u64,
    step: u64,
}

fn way(args: &LoadArgs, rank: u64) -> Way {
    let what = args.pattern.of(rank);
    // Verified through another mount.
    let mount = &args.mounts[(rank as usize + usize::from(args.verify)) % args.mounts.len()];
    let (name, file, round) = match what {
        Pattern::StridedRead | Pattern::Prepare => ("strided".to_owned(), 1, 0),
        Pattern::SharedWrite => ("shared".to_owned(), 2, args.round),
        Pattern::OwnFiles | Pattern::Mixed => (format!("own-{rank}"), 3 + rank, args.round),
    };
    let (first, step) = match what {
        Pattern::StridedRead | Pattern::Prepare => (rank * args.request, args.processes * args.request),
        Pattern::SharedWrite => (rank * args.requests * args.request, args.request),
        Pattern::OwnFiles | Pattern::Mixed => (0, args.request),
    };
    Way { path: mount.join(name), file, round, writes: what != Pattern::StridedRead && !args.verify, first, step }
}

/// Direct I/O wants its memory where blocks begin.
fn aligned(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    memory.resize(len + BLOCK, 0);
    let skip = memory.as_ptr().align_offset(BLOCK);
    &mut memory[skip..skip + len]
}

fn open(path: &Path, writes: bool) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.read(!writes).write(writes).create(writes).custom_flags(libc::O_DIRECT);
    options.open(path).with_context(|| path.display().to_string())
}

/// A process: says that it is ready, waits for a line, does its requests, and says so.
fn process(args: &LoadArgs, rank: u64) -> anyhow::Result<ExitCode> {
    // Whoever started it may be killed.
    set_parent_process_death_signal(Some(Signal::KILL)).context("binding to the parent's life")?;
    let way = way(args, rank);
    let (file, content) = (open(&way.path, way.writes)?, Content::new(way.file, way.round));
    let mut memory = Vec::new();
    let bytes = aligned(&mut memory, args.request as usize);
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let offsets = (0..args.requests).map(|n| way.first + n * way.step);
    for offset in offsets {
        let place = || format!("{} at {offset}", way.path.display());
        if way.writes {
            content.fill(offset, bytes);
            file.write_all_at(bytes, offset).with_context(place)?;
        } else {
            file.read_exact_at(bytes, offset).with_context(place)?;
            content.check(offset, bytes).with_context(place)?;
        }
    }
    if way.writes {
        file.sync_data().with_context(|| way.path.display().to_string())?;
    }
    println!("done");
    Ok(ExitCode::SUCCESS)
}

fn said(out: &mut BufReader<std::process::ChildStdout>, what: &str) -> anyhow::Result<()> {
    let mut line = String::new();
    out.read_line(&mut line)?;
    if line.trim() != what {
        bail!("a process ended before it said {what:?}");
    }
    Ok(())
}

/// Runs all processes, or is one.
///
/// # Errors
/// If one of them fails, or reads what nobody wrote.
pub(crate) fn load(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    if let Some(rank) = args.rank {
        return process(args, rank);
    }
    ensure!(args.request.is_multiple_of(BLOCK as u64) && args.request > 0, "requests are multiples of {BLOCK} bytes");
    let program = std::env::current_exe().context("finding this program")?;
    let mut children: Vec<Child> = Vec::new();
    for rank in 0..args.processes {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).arg("--rank").arg(rank.to_string());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting a process")?;
        children.push(child);
    }
    let outputs = children.iter_mut().map(|child| child.stdout.take().map(BufReader::new).context("no output"));
    let mut outputs: Vec<_> = outputs.collect::<anyhow::Result<_>>()?;
    outputs.iter_mut().try_for_each(|out| said(out, "ready"))?;
    let began = Instant::now();
    for child in &mut children {
        writeln!(child.stdin.take().context("no input")?, "go")?;
    }
    outputs.iter_mut().try_for_each(|out| said(out, "done"))?;
    let seconds = began.elapsed().as_secs_f64();
    for child in &mut children {
        let status = child.wait()?;
        ensure!(status.success(), "a process failed: {status}");
    }
    let bytes = args.processes * args.requests * args.request;
    output::line(serde_json::json!({"seconds": seconds, "bytes": bytes}));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_is_not_what_was_written_there_is_noticed() {
        let content = Content::new(2, 7);
        let mut bytes = vec![0; 4 * BLOCK];
        content.fill(1 << 20, &mut bytes);
        content.check(1 << 20, &bytes).unwrap();
        assert!(content.check(2 << 20, &bytes).is_err(), "from another place");
        assert!(Content::new(2, 6).check(1 << 20, &bytes).is_err(), "of another run");
        assert!(Content::new(3, 7).check(1 << 20, &bytes).is_err(), "of another file");
        for at in (0..bytes.len()).step_by(997) {
            bytes[at] ^= 1;
            assert!(content.check(1 << 20, &bytes).is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn processes_use_every_byte_of_their_files_once() {
        for pattern in [Pattern::StridedRead, Pattern::SharedWrite] {
            let mut all: Vec<u64> = (0..6)
                .flat_map(|rank| {
                    let mounts = vec![PathBuf::from("/a"), PathBuf::from("/b")];
                    let args = LoadArgs {
                        pattern,
                        mounts,
                        processes: 6,
                        request: 8_192,
                        requests: 5,
                        round: 0,
                        verify: false,
                        rank: None,
                    };
                    let way = way(&args, rank);
                    (0..5).map(move |n| way.first + n * way.step)
                })
                .collect();
            all.sort_unstable();
            assert_eq!(all, (0..30).map(|n| n * 8_192).collect::<Vec<u64>>(), "{pattern:?}");
        }
    }
}
