//! The asking side.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use super::protocol::{Command, Question, Recorded, Reply, Status, VERSION};
use super::{directories, elsewhere, key};
use crate::output;

/// Longest wait for an answer: a drained engine answers in microseconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for an end: the kernel writes back before it, and forgets millions of objects in the serving process's name.
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(600);
/// After so much of it whoever waits is told what for.
const SILENCE: Duration = Duration::from_secs(2);
/// A process that serves nothing any more has ended by then.
const A_WHILE: Duration = Duration::from_secs(1);

/// A connection to the process that serves a mount.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    /// The process, if it can be seen from here.
    process: Option<OwnedFd>,
    mountpoint: PathBuf,
    /// The mount, as it was named before its end was asked for.
    device: Option<String>,
}

/// Connects to whoever serves the mount at this canonical path; `None` if nobody listens.
///
/// # Errors
/// If somebody listens but does not let us in.
pub(crate) fn connect(mountpoint: &Path) -> anyhow::Result<Option<Client>> {
    for socket in sockets(mountpoint) {
        match UnixStream::connect(&socket) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                let process = peer(&stream);
                return Ok(Some(Client {
                    stream: BufReader::new(stream),
                    process,
                    mountpoint: mountpoint.to_owned(),
                    device: None,
                }));
            }
            // Not there, or left behind by a process that was killed.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
            Err(error) => return Err(error).with_context(|| format!("the control socket {}", socket.display())),
        }
    }
    Ok(None)
}

/// The process at the other end; not from inside another container.
fn peer(stream: &UnixStream) -> Option<OwnedFd> {
    let pid = rustix::net::sockopt::socket_peercred(stream).ok()?.pid;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Removes what a process that was killed has left behind; not while somebody listens.
pub(crate) fn forget(mountpoint: &Path) {
    if matches!(connect(mountpoint), Ok(None)) {
        sockets(mountpoint).iter().for_each(|socket| _ = std::fs::remove_file(socket));
    }
}

fn sockets(mountpoint: &Path) -> Vec<PathBuf> {
    directories().into_iter().map(|dir| dir.join(key(mountpoint)).with_extension("sock")).collect()
}

impl Client {
    /// The mount's state.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub(crate) fn status(&mut self) -> anyhow::Result<Status> {
        let reply = self.ask(Command::Status)?;
        reply.status.map(|status| *status).ok_or_else(|| anyhow!("the mount's answer has no status"))
    }

    /// Ends the mount's recording.
    ///
    /// # Errors
    /// If there is none, or what the server says.
    pub(crate) fn stop_trace(&mut self) -> anyhow::Result<Recorded> {
        self.ask(Command::TraceStop)?.recorded.ok_or_else(|| anyhow!("the mount's answer has no recording"))
    }

    /// Asks for something without an answer but success.
    ///
    /// # Errors
    /// What the server says, or why it does not.
    pub(crate) fn request(&mut self, command: Command) -> anyhow::Result<()> {
        self.ask(command).map(drop)
    }

    /// Who serves the mount, if that process is there for a while yet.
    ///
    /// # Errors
    /// If nobody knows.
    pub(crate) fn goes_on(self) -> anyhow::Result<Option<String>> {
        let pid = rustix::net::sockopt::socket_peercred(self.stream.get_ref()).map(|peer| peer.pid.as_raw_nonzero());
        let Some(process) = &self.process else { return Ok(Some("its process".to_owned())) };
        let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&A_WHILE.try_into()?))?;
        Ok(if ended == 1 { None } else { Some(format!("process {}", pid?)) })
    }

    /// Waits until the server's process has ended, and with it its hold on the storage. Says what it waits for if that takes long.
    ///
    /// # Errors
    /// If it stays.
    pub(crate) fn wait_for_the_end(mut self) -> anyhow::Result<()> {
        let stays =
            "unmounted, but the process that served the mount does not end: is it still mounted in another namespace?";
        if let Some(process) = &self.process {
            // Readable once the process has ended. The connection ends a moment earlier.
            for (at, patience) in [SILENCE, PATIENCE_AT_THE_END - SILENCE].into_iter().enumerate() {
                if at > 0 {
                    output::tell(self.waits_for());
                }
                let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience.try_into()?));
                if ended.context(stays)? == 1 {
                    return Ok(());
                }
            }
            bail!(stays);
        }
        match self.stream.read(&mut [0; 64]) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(error).context(stays),
        }
    }

    /// What keeps the process from ending.
    fn waits_for(&self) -> String {
        let holders = self.device.as_deref().map(elsewhere::holders).unwrap_or_default();
        let what = match holders.is_empty() {
            true => {
                "the kernel to write back, or another mount namespace (a container) to let go of the mount".to_owned()
            }
            false => {
                format!("other mount namespaces (containers) that have it mounted: of process {}", holders.join(", "))
            }
        };
        let most = PATIENCE_AT_THE_END.as_secs() / 60;
        format!("{} is unmounted here; waiting, {most} minutes at most, for {what}", self.mountpoint.display())
    }

    fn ask(&mut self, command: Command) -> anyhow::Result<Reply> {
        if matches!(command, Command::Unmount { .. }) {
            self.device = elsewhere::device(&self.mountpoint);
            self.stream.get_ref().set_read_timeout(Some(PATIENCE_AT_THE_END))?;
        }
        let mut line = serde_json::to_string(&Question { version: VERSION, command })?;
        line.push('\n');
        let silent = "the mount does not answer on its control socket";
        self.stream.get_mut().write_all(line.as_bytes()).context(silent)?;
        let mut answer = String::new();
        if self.stream.read_line(&mut answer).context(silent)? == 0 {
            bail!("the mount ended before it answered");
        }
        let reply: Reply = serde_json::from_str(&answer).context("the mount's answer is not understood")?;
        if reply.ok { Ok(reply) } else { bail!(reply.error.unwrap_or_else(|| "refused without a reason".to_owned())) }
    }
}
