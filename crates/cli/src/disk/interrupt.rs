//! Ctrl-C while a disk is made: noticed between steps, so that what is there can be taken back.

use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How long a signal may go unnoticed while a program runs.
const LOOK: Duration = Duration::from_millis(100);

/// Whether to go on.
pub(super) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// From now on the usual signals end nothing but are noted.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn catch() -> anyhow::Result<Interrupt> {
        let noted = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(signal, noted.clone(), signal as usize).context("handling signals")?;
        }
        Ok(Interrupt(noted))
    }

    /// # Errors
    /// If a signal came.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => {
                bail!("interrupted by {}", signal_hook::low_level::signal_name(signal as i32).unwrap_or("a signal"))
            }
        }
    }

    /// Runs a program to its end; its output is only shown if it fails. Signals of the terminal do not reach it: a signal
    /// ends it if it `may_be_ended`, and else is noted for the next [`Interrupt::check`].
    ///
    /// # Errors
    /// If it cannot be started, fails, or a signal came.
    pub(super) fn run(&self, command: &mut Command, may_be_ended: bool) -> anyhow::Result<()> {
        self.check()?;
        let program = command.get_program().to_string_lossy().into_owned();
        let mut said = tempfile::tempfile().context("a temporary file")?;
        let out = || said.try_clone().context("a temporary file");
        command.stdin(Stdio::null()).stdout(out()?).stderr(out()?).process_group(0);
        // Nor does it outlive this process, if that is killed: it would be at work on what is being cleared away.
        let end_with_us = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: between fork and exec only one system call is made, and no memory allocated.
        unsafe { command.pre_exec(end_with_us) };
        let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
        let status = self.wait(&mut child, may_be_ended).with_context(|| format!("waiting for {program}"))?;
        if may_be_ended {
            self.check()?;
        }
        if !status.success() {
            let mut text = String::new();
            let read = said.rewind().and_then(|()| said.read_to_string(&mut text));
            let text = read.map_or_else(|error| error.to_string(), |_| text);
            bail!("{program}: {status}\n{}", text.trim());
        }
        Ok(())
    }

    fn wait(&self, child: &mut Child, may_be_ended: bool) -> anyhow::Result<ExitStatus> {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if may_be_ended && self.check().is_err() {
                child.kill()?;
                return Ok(child.wait()?);
            }
            // Interrupted by a signal: all the better.
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&LOOK.try_into()?));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_end_well_badly_or_early() {
        let calm = Interrupt(Arc::default());
        calm.run(&mut Command::new("true"), true).unwrap();
        let error =
            calm.run(Command::new("sh").args(["-c", "echo no luck >&2; exit 3"]), true).unwrap_err().to_string();
        assert!(error.contains("sh") && error.contains("3") && error.contains("no luck"), "{error}");
        assert!(calm.run(&mut Command::new("/no/such/program"), true).is_err());
        let signalled = Interrupt(Arc::new(AtomicUsize::new(SIGTERM as usize)));
        assert!(signalled.run(&mut Command::new("true"), true).unwrap_err().to_string().contains("SIGTERM"));
        let noted = calm.0.clone();
        let ending = std::thread::spawn(move || calm.run(Command::new("sleep").arg("1000"), true));
        noted.store(SIGINT as usize, Ordering::Relaxed);
        assert!(ending.join().unwrap().unwrap_err().to_string().contains("SIGINT"));
    }
}
