//! Ending when told to: what was made or mounted is taken back, and other people's programs end, too.

use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use serde_json::Value;
use signal_hook::consts::SIGHUP;
use sluice_cli::interrupt::{self, Interrupted};

/// How often a program that runs is ended if it is to be.
const LOOK: Duration = Duration::from_millis(100);

/// What a program said before it ended well.
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs programs until it is told to stop. Every benchmark that makes what must go away again has one.
#[derive(Clone)]
pub(crate) struct Runner {
    /// Set by signals.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Runner {
    /// From now on SIGINT, SIGTERM and SIGHUP tell it to stop, and do nothing else, however many come: a terminal that closes
    /// sends two. What is waited for ends soon, or is ended.
    ///
    /// # Errors
    /// If the system does not let these signals be handled.
    pub(crate) fn new() -> anyhow::Result<Runner> {
        let stop = interrupt::flag()?;
        signal_hook::flag::register(SIGHUP, stop.clone())?;
        Ok(Runner { stop })
    }

    /// Fails if it was told to stop.
    pub(crate) fn go_on(&self) -> anyhow::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!(Interrupted);
        }
        Ok(())
    }

    /// Runs it to its end, or until it is told to stop: then it is ended, with all it has started.
    ///
    /// # Errors
    /// If it cannot be started, fails, or was ended.
    pub(crate) fn run(&self, command: &mut Command) -> anyhow::Result<Said> {
        self.go_on()?;
        self.finish(command, true)
    }

    /// Runs it to its end in any case: for what must not be left half done.
    ///
    /// # Errors
    /// If it cannot be started, or fails.
    pub(crate) fn finish(&self, command: &mut Command, may_be_ended: bool) -> anyhow::Result<Said> {
        let program = command.get_program().to_string_lossy().into_owned();
        let file = || tempfile::tempfile().context("a temporary file");
        let (mut out, mut err) = (file()?, file()?);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
        // Out of the reach of the terminal's signals, of which it hears from us.
        let mut child = command.process_group(0).spawn().with_context(|| format!("starting {program}"))?;
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if may_be_ended && self.stop.load(Ordering::Relaxed) {
                end_all(pid);
                child.wait()?;
                bail!(Interrupted);
            }
            // Interrupted by a signal: all the better.
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&LOOK.try_into()?));
        };
        let text = |file: &mut std::fs::File| -> anyhow::Result<String> {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let said = Said { out: text(&mut out)?, err: text(&mut err)? };
        if !status.success() {
            bail!("{program}: {status}\n{}", format!("{}\n{}", said.err.trim(), said.out.trim()).trim());
        }
        Ok(said)
    }
}

/// Ends the processes of a group, and what they have started: fio's jobs are sessions of their own.
fn end_all(leader: Pid) {
    let (mut all, mut at) = (vec![leader], 0);
    while let Some(&pid) = all.get(at) {
        // What is stopped starts nothing more.
        let _ = kill_process(pid, Signal::STOP);
        all.extend(children(pid));
        at += 1;
    }
    for pid in all {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = kill_process_group(leader, Signal::KILL);
}

/// What a process has started itself. O(processes of the machine).
fn children(parent: Pid) -> Vec<Pid> {
    let is_child = |pid: &Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        // Number, name in parentheses, state, parent.
        let parent_of = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parent_of == Some(parent.as_raw_nonzero().get())
    };
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?)).filter(is_child).collect()
}

/// fio, with what is the same for all.
pub(crate) fn fio_command() -> Command {
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "--ioengine=psync"]);
    command
}

/// What fio found, if it had no errors.
///
/// # Errors
/// If a job had some, or the output is not fio's.
pub(crate) fn check_fio(said: &Said) -> anyhow::Result<Value> {
    // Warnings may come before the JSON text.
    let json: Option<Value> = said.out.find('{').and_then(|start| serde_json::from_str(&said.out[start..]).ok());
    let jobs = json.as_ref().and_then(|json| json["jobs"].as_array());
    let fine = jobs.is_some_and(|jobs| !jobs.is_empty() && jobs.iter().all(|job| job["error"] == 0));
    match json {
        Some(json) if fine => Ok(json),
        _ => bail!("fio: {} {}", said.err.trim(), said.out.trim()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Longest time that the test waits for anything.
    const LIMIT: Duration = Duration::from_secs(60);

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn sessions_of_their_own_end_too() {
        let dir = tempfile::tempdir().unwrap();
        let (new, there) = (dir.path().join("new"), dir.path().join("there"));
        let script = "setsid sh -c 'echo $$ > $0; mv $0 $1; exec sleep 1000' $0 $1 & wait";
        let runner = Runner { stop: Arc::default() };
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_until("the session begins", || there.exists());
                runner.stop.store(true, Ordering::Relaxed);
            });
            runner.run(Command::new("sh").args(["-c", script]).args([&new, &there]))
        });
        assert!(result.err().unwrap().is::<Interrupted>());
        let pid: u32 = std::fs::read_to_string(&there).unwrap().trim().parse().unwrap();
        // Dead, but perhaps not yet fetched by the one who inherits it.
        let lives = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        wait_until("the session ends", || !lives());
    }
}
