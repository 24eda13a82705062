//! The load: threads that issue, for real, the requests that the simulated processes issue.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sluice_core::Op;
use sluice_sim::scenario::Scenario;
use sluice_sim::workload::Replay;

/// `O_DIRECT` wants memory aligned so.
const ALIGNMENT: usize = 4096;

/// Where the requests of a process go.
pub(super) trait Target {
    /// Reads or writes all of `memory` at an offset of a file.
    ///
    /// # Errors
    /// If that fails, or the file ends before.
    fn transfer(&mut self, op: Op, file: u32, offset: u64, memory: &mut [u8]) -> std::io::Result<()>;
}

/// Files of a directory.
pub(super) struct Files {
    dir: PathBuf,
    flags: i32,
    own: bool,
    open: Vec<(u32, File)>,
}

/// Name of the file of that number, of those that all share or of each process's own.
pub(super) fn file_name(own: bool, number: u32) -> String {
    if own { format!("own-{number}") } else { "shared".to_owned() }
}

impl Files {
    pub(super) fn new(dir: &Path, direct: bool, own: bool) -> Files {
        Files { dir: dir.to_owned(), flags: if direct { libc::O_DIRECT } else { 0 }, own, open: Vec::new() }
    }

    /// Opens the file before it is used.
    ///
    /// # Errors
    /// What the operating system says, with the file's name.
    pub(super) fn prepare(&mut self, number: u32) -> anyhow::Result<()> {
        if self.open.iter().all(|(known, _)| *known != number) {
            let path = self.dir.join(file_name(self.own, number));
            let file = OpenOptions::new().read(true).write(true).custom_flags(self.flags).open(&path);
            self.open.push((number, file.with_context(|| path.display().to_string())?));
        }
        Ok(())
    }
}

impl Target for Files {
    fn transfer(&mut self, op: Op, file: u32, offset: u64, memory: &mut [u8]) -> std::io::Result<()> {
        let Some((_, file)) = self.open.iter().find(|(number, _)| *number == file) else {
            return Err(std::io::ErrorKind::NotFound.into());
        };
        match op {
            Op::Read => file.read_exact_at(memory, offset),
            Op::Write => file.write_all_at(memory, offset),
        }
    }
}

/// Memory that `O_DIRECT` takes.
pub(super) struct Aligned {
    memory: Vec<u8>,
    first: usize,
    len: usize,
}

impl Aligned {
    pub(super) fn new(len: usize) -> Aligned {
        let memory = vec![0x5a; len + ALIGNMENT];
        let first = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Aligned { memory, first, len }
    }

    /// Makes room for at least so many bytes.
    pub(super) fn grow(&mut self, len: usize) {
        if len > self.len {
            *self = Aligned::new(len);
        }
    }

    /// So many of them, or all if there are fewer.
    pub(super) fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.first..self.first + len.min(self.len)]
    }
}

/// What a process has done by the end of the time.
struct Done {
    bytes: u64,
    at: Duration,
}

/// Lets threads do what the scenario's processes do for so long; returns bytes per second, of what was answered by then.
/// `target` makes what a process works with, on the process's own thread.
///
/// # Errors
/// If a request fails, or `stop` was set.
pub(super) fn run<T: Target>(
    scenario: &Scenario,
    time: Duration,
    stop: &AtomicBool,
    target: impl Fn(u32) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<f64> {
    let processes = scenario.applications[0].processes;
    let together = Barrier::new(processes as usize);
    let done: Vec<anyhow::Result<Done>> = std::thread::scope(|scope| {
        let process = |rank| {
            let (together, target) = (&together, &target);
            scope.spawn(move || {
                let target = target(rank);
                together.wait();
                process(scenario, rank, &mut target?, time, stop)
            })
        };
        let threads: Vec<_> = (0..processes).map(process).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| bail!("a thread of the load panicked"))
        };
        threads.into_iter().map(join).collect()
    });
    let done: Vec<Done> = done.into_iter().collect::<anyhow::Result<_>>()?;
    let bytes: u64 = done.iter().map(|done| done.bytes).sum();
    let end = done.iter().map(|done| done.at).max().unwrap_or(time).min(time);
    Ok(bytes as f64 / end.as_secs_f64())
}

fn process<T: Target>(
    scenario: &Scenario,
    rank: u32,
    target: &mut T,
    time: Duration,
    stop: &AtomicBool,
) -> anyhow::Result<Done> {
    let most = scenario.applications[0].phases.iter().map(|phase| phase.request.1).max().unwrap_or(0);
    let mut memory = Aligned::new(usize::try_from(most)?);
    let begin = Instant::now();
    let mut done = Done { bytes: 0, at: Duration::ZERO };
    for access in Replay::new(scenario, 0, rank).flatten() {
        if stop.load(Ordering::Relaxed) {
            bail!(sluice_cli::interrupt::Interrupted);
        }
        let bytes = memory.bytes(access.len as usize);
        target
            .transfer(access.op, access.file, access.offset, bytes)
            .with_context(|| format!("process {rank}: {} bytes at {}", access.len, access.offset))?;
        done.at = begin.elapsed();
        if done.at > time {
            return Ok(done);
        }
        done.bytes += access.len;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::super::model::{OWN_BYTES, SHARED_BYTES, scenario};
    use super::super::situations::list;
    use super::*;

    /// Notes what it is asked for, and takes a little time for it.
    struct Notes<'a>(&'a parking_lot::Mutex<Vec<(u32, u64, usize)>>);

    impl Target for Notes<'_> {
        fn transfer(&mut self, _: Op, file: u32, offset: u64, memory: &mut [u8]) -> std::io::Result<()> {
            assert!((memory.as_ptr() as usize).is_multiple_of(ALIGNMENT));
            let mut notes = self.0.lock();
            if notes.len() < 100_000 {
                notes.push((file, offset, memory.len()));
            }
            Ok(())
        }
    }

    #[test]
    fn requests_stay_in_their_files_and_time_ends() {
        for situation in list().unwrap().iter().take(8) {
            let scenario = scenario(situation, &situation.sides[0], "hdd-7200", 4 << 30, 3).unwrap();
            let notes = parking_lot::Mutex::new(Vec::new());
            // On a busy machine the time may be over before anything is done.
            let rate = (1..=100_u32).map(|times| {
                let time = times * Duration::from_millis(20);
                run(&scenario, time, &AtomicBool::new(false), |_| Ok(Notes(&notes))).unwrap()
            });
            assert!({ rate }.any(|rate| rate > 0.0));
            let end = if situation.pattern == "own" { OWN_BYTES } else { SHARED_BYTES };
            assert!(notes.lock().iter().all(|&(_, offset, len)| offset + len as u64 <= end), "{}", situation.name);
        }
    }

    #[test]
    fn errors_and_the_wish_to_stop_end_it() {
        struct Fails;
        impl Target for Fails {
            fn transfer(&mut self, _: Op, _: u32, _: u64, _: &mut [u8]) -> std::io::Result<()> {
                Err(std::io::ErrorKind::UnexpectedEof.into())
            }
        }
        let situation = &list().unwrap()[0];
        let scenario = scenario(situation, &situation.sides[0], "hdd-7200", 4 << 30, 3).unwrap();
        let second = Duration::from_secs(1);
        assert!(run(&scenario, second, &AtomicBool::new(false), |_| Ok(Fails)).is_err());
        assert!(run(&scenario, second, &AtomicBool::new(true), |_| Ok(Fails)).is_err());
        assert!(run::<Fails>(&scenario, second, &AtomicBool::new(false), |_| bail!("no target")).is_err());
    }
}
