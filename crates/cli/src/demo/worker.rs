//! The demo's processes. Each is this program again, told what to do on its standard input, one JSON line a run.

use super::pattern::{Pattern, THREADS, fill, mismatch};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sluice_core::Op;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Barrier;
use std::time::Instant;

/// One of the demo's processes (internal).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Its number.
    #[arg(long)]
    process: u32,
    /// Where the volume is mounted.
    #[arg(long)]
    dir: PathBuf,
}

/// What all processes do in a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) pattern: Pattern,
    pub(super) scale: u64,
    /// Number of this run: what is written depends on it.
    pub(super) writing: u64,
}

/// What a process reports.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Report {
    /// Of each access, in nanoseconds.
    pub(super) latencies_ns: Vec<u64>,
    /// What was wrong, empty if nothing.
    pub(super) error: String,
}

/// The files of the volume, as a thread sees them.
pub(super) trait Access: Sync {
    fn read(&self, file: &str, process: u32, offset: u64, buffer: &mut [u8]) -> anyhow::Result<()>;
    fn write(&self, file: &str, process: u32, offset: u64, data: &[u8]) -> anyhow::Result<()>;
}

/// Runs one process's threads to their end.
pub(super) fn run_threads(access: &impl Access, process: u32, task: Task) -> anyhow::Result<Vec<u64>> {
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    run_thread(access, process, thread, task)
                })
            })
            .collect();
        let mut latencies = Vec::new();
        for thread in threads {
            latencies.extend(thread.join().expect("a worker thread does not panic")?);
        }
        Ok(latencies)
    })
}

fn run_thread(access: &impl Access, process: u32, thread: u32, task: Task) -> anyhow::Result<Vec<u64>> {
    let file = task.pattern.file(process, thread);
    let mut memory = Vec::new();
    let mut latencies = Vec::new();
    for wanted in task.pattern.accesses_of(process, thread, task.scale) {
        let buffer = aligned(&mut memory, wanted.len);
        if wanted.op == Op::Write {
            fill(buffer, &file, wanted.offset, task.writing);
        }
        let start = Instant::now();
        match wanted.op {
            Op::Read => access.read(&file, process, wanted.offset, buffer)?,
            Op::Write => access.write(&file, process, wanted.offset, buffer)?,
        }
        latencies.push(start.elapsed().as_nanos() as u64);
        if wanted.op == Op::Read
            && let Some(at) = mismatch(buffer, &file, wanted.offset, 0)
        {
            bail!("{file}: wrong data at byte {at}");
        }
    }
    Ok(latencies)
}

/// A part of `memory` that begins with a page: the kernel splits large accesses that do not.
fn aligned(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    const PAGE: usize = 4096;
    memory.resize(len + PAGE, 0);
    let start = memory.as_ptr().align_offset(PAGE);
    &mut memory[start..start + len]
}

/// Files below a mount point.
struct Mounted<'a> {
    files: Vec<(String, std::fs::File)>,
    dir: &'a Path,
}

impl Mounted<'_> {
    fn open(dir: &Path, process: u32, pattern: Pattern) -> anyhow::Result<Mounted<'_>> {
        let mut names: Vec<_> = (0..THREADS).map(|thread| pattern.file(process, thread)).collect();
        names.dedup();
        let mut files = Vec::new();
        for name in names {
            let path = dir.join(&name);
            let file = std::fs::File::options().read(true).write(pattern.writes(process)).open(&path);
            files.push((name, file.with_context(|| format!("cannot open {}", path.display()))?));
        }
        Ok(Mounted { files, dir })
    }

    fn file(&self, name: &str) -> anyhow::Result<&std::fs::File> {
        let found = self.files.iter().find(|(known, _)| known == name);
        Ok(&found.with_context(|| format!("{} is not open", self.dir.join(name).display()))?.1)
    }
}

impl Access for Mounted<'_> {
    fn read(&self, file: &str, _: u32, offset: u64, buffer: &mut [u8]) -> anyhow::Result<()> {
        self.file(file)?.read_exact_at(buffer, offset).with_context(|| format!("reading {file}"))
    }

    fn write(&self, file: &str, _: u32, offset: u64, data: &[u8]) -> anyhow::Result<()> {
        self.file(file)?.write_all_at(data, offset).with_context(|| format!("writing {file}"))
    }
}

/// The process: opens the files, says so, waits for the start, reports; for each line of its input.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut lines = std::io::stdin().lock().lines();
    let mut out = std::io::stdout().lock();
    while let Some(line) = lines.next() {
        let task: Task = serde_json::from_str(&line?).context("the demo's own process got a line it cannot read")?;
        let opened = Mounted::open(&args.dir, args.process, task.pattern);
        writeln!(out, "ready")?;
        out.flush()?;
        if lines.next().is_none() {
            break;
        }
        let result = opened.and_then(|mounted| run_threads(&mounted, args.process, task));
        let report = match result {
            Ok(latencies_ns) => Report { latencies_ns, error: String::new() },
            Err(error) => Report { latencies_ns: Vec::new(), error: format!("{error:#}") },
        };
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A process, seen from the demo.
pub(super) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: std::io::BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process, which is an application of its own: it says that it belongs to a batch job.
    pub(super) fn start(process: u32, dir: &Path) -> anyhow::Result<Process> {
        let program = std::env::current_exe().context("cannot find this program to start it again")?;
        let mut child = Command::new(&program)
            .arg("demo-worker")
            .args(["--process", &process.to_string()])
            .arg("--dir")
            .arg(dir)
            .env("SLURM_JOB_ID", format!("{}", process + 1))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = std::io::BufReader::new(output.context("a process without standard output")?);
        Ok(Process { child, input, output })
    }

    /// Tells it what to do and waits until it is ready.
    pub(super) fn prepare(&mut self, task: Task) -> anyhow::Result<()> {
        self.tell(&serde_json::to_string(&task)?)?;
        self.hear().map(|_| ())
    }

    pub(super) fn go(&mut self) -> anyhow::Result<()> {
        self.tell("go")
    }

    /// Waits for its report.
    pub(super) fn report(&mut self) -> anyhow::Result<Vec<u64>> {
        let report: Report = serde_json::from_str(&self.hear()?)?;
        if !report.error.is_empty() {
            bail!("{}", report.error);
        }
        Ok(report.latencies_ns)
    }

    fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("the process has been told to end")?;
        writeln!(input, "{line}").and_then(|()| input.flush()).context("a process of the demo has ended early")
    }

    fn hear(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("a process of the demo has ended early");
        }
        Ok(line)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.input = None; // it ends by itself, unless it hangs in a read
        let _ = self.child.wait();
    }
}
