//! Ending when told to: what was made or mounted is taken back, and other people's programs end, too.

use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde_json::Value;
use signal_hook::consts::SIGHUP;
use sluice_cli::interrupt;

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
            bail!("interrupted");
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
                let _ = kill_process_group(pid, Signal::KILL);
                child.wait()?;
                bail!("interrupted");
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
