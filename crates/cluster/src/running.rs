//! Processes of a plan on this machine: started, watched, ended.
//!
//! What should run stands in the plan; what does run is asked of the system: a process is the one that its file of a number names
//! if it has the machine's graph on its command line. GlusterFS's write that number themselves; a coordinator's is written by who
//! started it, and without one it is looked for among all processes. So whatever was killed at whatever moment, [`up`] starts
//! what is missing, and [`down`] ends what is there.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use sluice_storage::mounts;

use crate::links;
use crate::plan::{Machine, Plan, Role, TOKEN};

/// How long a process may take until it can be used.
const READY: Duration = Duration::from_secs(30);
/// How long it may take to end.
const END: Duration = Duration::from_secs(15);
/// What a client mounts.
const FILE_SYSTEM: &str = "fuse.glusterfs";
/// The machine that is looked for also without a number.
const COORDINATOR: &str = "coordinator";
/// Between two looks.
/// How long a killed process may keep its sockets.
const FREE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(20);
/// Bytes of a log that are looked through for the reason of a failure.
const LOG_TAIL: u64 = 64 << 10;

/// What a machine is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It can be used.
    Up,
    /// Its process is there, and cannot be used.
    Starting,
    /// There is none, and there was.
    Dead,
    /// It was never started, or ended as it should.
    Down,
}

/// What is known of a machine.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// `server-0`, `node-1`, `client-0`.
    pub name: String,
    /// What it is doing.
    pub state: State,
    /// Its process.
    pub pid: Option<i32>,
    /// Where it can be reached: an address, or a mountpoint.
    pub at: String,
    /// Its log.
    pub log: PathBuf,
}

impl Machine {
    /// Where its graph is, once written.
    #[must_use]
    pub fn graph_file(&self, plan: &Plan) -> PathBuf {
        plan.directory.join(format!("{}.vol", self.name))
    }

    /// Where it logs.
    #[must_use]
    pub fn log_file(&self, plan: &Plan) -> PathBuf {
        plan.directory.join(format!("{}.log", self.name))
    }

    /// Where it is noted which directory has its data, once it has.
    #[must_use]
    pub fn brick_note(&self, plan: &Plan) -> PathBuf {
        plan.directory.join(format!("{}.brick", self.name))
    }

    fn pid_file(&self, plan: &Plan) -> PathBuf {
        plan.directory.join(format!("{}.pid", self.name))
    }

    /// The process, if it is there.
    fn process(&self, plan: &Plan) -> Option<Pid> {
        let is_coordinator = matches!(self.role, Role::Coordinator { .. });
        let own =
            if is_coordinator { self.state(plan) } else { format!("--volfile={}", self.graph_file(plan).display()) };
        let has_own = |pid: &Pid| words(*pid).split(|byte| *byte == 0).any(|word| word == own.as_bytes());
        let numbered = self.numbered(plan).filter(has_own);
        if is_coordinator { numbered.or_else(|| find_coordinator(&own)) } else { numbered }
    }

    /// Whatever process has its number.
    fn numbered(&self, plan: &Plan) -> Option<Pid> {
        let text = fs::read_to_string(self.pid_file(plan)).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }

    /// Where what it has mounted is, with no symbolic links; also if nobody serves it any more. It is known by its source: a path says
    /// nothing of whose mount is there, and who asks a mount itself is answered by the kernel though its process was killed.
    fn mounts(&self, plan: &Plan) -> Vec<PathBuf> {
        let source = self.graph_file(plan);
        let is_own = |mount: &mounts::Mount| mount.kind == FILE_SYSTEM && mount.source == source;
        mounts::table().unwrap_or_default().into_iter().filter(is_own).map(|mount| mount.path).collect()
    }

    /// Of one that runs: whether it was started as the plan has it now.
    fn is_as_planned(&self, plan: &Plan) -> bool {
        let is_mounted_there = |mount: &Path| match mount.canonicalize() {
            // Others may have bound it elsewhere.
            Ok(path) => {
                let mounts = self.mounts(plan);
                mounts.is_empty() || mounts.contains(&path)
            }
            Err(_) => true,
        };
        let is_there = match &self.role {
            Role::Client { mount, .. } => is_mounted_there(mount),
            _ => true,
        };
        match &self.role {
            Role::Coordinator { .. } => self.process(plan).is_none_or(|pid| has_words(pid, &self.command(plan)[1..])),
            _ => is_there && fs::read_to_string(self.graph_file(plan)).is_ok_and(|graph| graph == self.graph),
        }
    }

    /// Where a coordinator keeps what it learns: its own word.
    fn state(&self, plan: &Plan) -> String {
        format!("--state={}", plan.directory.join(&self.name).display())
    }

    fn is_usable(&self, plan: &Plan) -> bool {
        match &self.role {
            Role::Server { listens, .. } | Role::Node { listens } | Role::Coordinator { listens, .. } => {
                TcpStream::connect_timeout(listens, Duration::from_secs(1)).is_ok()
            }
            Role::Client { .. } => !self.mounts(plan).is_empty(),
        }
    }

    fn at(&self) -> String {
        match &self.role {
            Role::Server { listens, .. } | Role::Node { listens } | Role::Coordinator { listens, .. } => {
                listens.to_string()
            }
            Role::Client { mount, .. } => mount.display().to_string(),
        }
    }

    /// The command that runs it. Of `sluice` the name only: who has it knows where it is.
    #[must_use]
    pub fn command(&self, plan: &Plan) -> Vec<String> {
        if let Role::Coordinator { listens, token_file, how, metrics } = &self.role {
            let mut words =
                vec!["sluice".to_owned(), "coordinate".to_owned(), format!("--listen={listens}"), self.state(plan)];
            words.extend(token_file.iter().map(|path| format!("--token-file={}", path.display())));
            words.extend(metrics.iter().map(|address| format!("--metrics={address}")));
            words.extend(how.iter().cloned());
            return words;
        }
        let program = if matches!(self.role, Role::Client { .. }) { "glusterfs" } else { "glusterfsd" };
        let mut words = vec![
            program.to_owned(),
            format!("--volfile={}", self.graph_file(plan).display()),
            format!("--volfile-id={}", self.name),
            format!("--pid-file={}", self.pid_file(plan).display()),
            format!("--log-file={}", self.log_file(plan).display()),
        ];
        if let Role::Client { mount, timeout } = &self.role {
            let seconds = timeout.iter().flat_map(|s| [("attribute", s), ("entry", s), ("negative", s)]);
            words.extend(seconds.map(|(what, s)| format!("--{what}-timeout={s}")));
            words.push(format!("--fs-display-name={}", self.graph_file(plan).display()));
            words.push(mount.display().to_string());
        }
        words
    }
}

/// What a process was started with, each word with a zero behind it; nothing if it is gone.
fn words(pid: Pid) -> Vec<u8> {
    fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default()
}

/// A coordinator of this user that has this word: who started it may have been killed before its number was written.
fn find_coordinator(own: &str) -> Option<Pid> {
    let user = geteuid().as_raw();
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let users = entries.filter(|entry| entry.metadata().is_ok_and(|meta| meta.uid() == user));
    let mut pids = users.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.find(|pid| {
        let line = words(*pid);
        let mut arguments = line.split(|byte| *byte == 0).skip(1);
        // Not who only speaks of it, as `sudo` and `pgrep` do.
        arguments.next().is_some_and(|word| word == b"coordinate") && arguments.any(|word| word == own.as_bytes())
    })
}

/// Whether a process was started with these arguments: it may be gone by now.
fn has_words(pid: Pid, arguments: &[String]) -> bool {
    let Ok(line) = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())) else { return true };
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    line.is_empty() || line.split(|byte| *byte == 0).skip(1).eq(arguments.iter().map(|word| word.as_bytes()))
}

/// What every machine of a plan does.
#[must_use]
pub fn status(plan: &Plan) -> Vec<Status> {
    let of = |machine: &Machine| {
        let process = machine.process(plan);
        let state = match process {
            Some(_) if machine.is_usable(plan) => State::Up,
            Some(_) => State::Starting,
            None if machine.pid_file(plan).exists() => State::Dead,
            None => State::Down,
        };
        Status {
            name: machine.name.clone(),
            state,
            pid: process.map(|pid| pid.as_raw_nonzero().get()),
            at: machine.at(),
            log: machine.log_file(plan),
        }
    };
    plan.machines.iter().map(of).collect()
}

/// Writes the graphs and starts what does not run. `started` is called with each machine that can be used, and whether it was
/// started just now.
///
/// # Errors
/// If a machine cannot be started, with the reason that its log has; the others stay as they are. If `stop` is set meanwhile.
pub fn up(plan: &Plan, stop: &AtomicBool, mut started: impl FnMut(&Machine, bool)) -> anyhow::Result<()> {
    fs::create_dir_all(&plan.directory).with_context(|| plan.directory.display().to_string())?;
    let _lock = lock(plan)?;
    link(plan).context("links")?;
    let runs = |machine: &&Machine| machine.process(plan).is_some();
    if let Some(machine) = plan.machines.iter().filter(runs).find(|machine| !machine.is_as_planned(plan)) {
        bail!("{} runs with another configuration: sluice cluster down, then up", machine.name);
    }
    for machine in &plan.machines {
        if machine.process(plan).is_some() && machine.is_usable(plan) {
            started(machine, false);
            continue;
        }
        start(plan, machine, stop).with_context(|| machine.name.clone())?;
        started(machine, true);
    }
    Ok(())
}

/// Makes what machines are connected by, if it is not loopback.
fn link(plan: &Plan) -> anyhow::Result<()> {
    let runs = || plan.machines.iter().chain(&strangers(plan)).any(|machine| machine.process(plan).is_some());
    let Some(links) = &plan.links else {
        ensure!(
            !links::are_recorded(&plan.directory) || !runs(),
            "there are none any more, and machines run that have some: sluice cluster down, then up"
        );
        return links::down(&plan.directory);
    };
    links.up(&plan.directory, runs())?;
    let token = plan.directory.join(TOKEN);
    let needs = |machine: &Machine| matches!(&machine.role, Role::Coordinator { token_file, .. } if *token_file == Some(token.clone()));
    if plan.machines.iter().any(needs) && !token.exists() {
        write_secret(&token).with_context(|| token.display().to_string())?;
    }
    Ok(())
}

/// A secret that nobody knows yet.
fn write_secret(path: &Path) -> std::io::Result<()> {
    let mut bytes = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let new = path.with_extension("new");
    let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}

/// Does something where the network is this machine's.
fn beside<T: Send>(plan: &Plan, machine: &Machine, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    match &plan.links {
        Some(links) => links::inside(&links.namespace(&machine.name), work),
        None => Ok(work()),
    }
}

fn start(plan: &Plan, machine: &Machine, stop: &AtomicBool) -> anyhow::Result<()> {
    let log = machine.log_file(plan);
    if machine.process(plan).is_none() {
        beside(plan, machine, || prepare(plan, machine))??;
        let begins = fs::metadata(&log).map_or(0, |meta| meta.len());
        let words = machine.command(plan);
        if let Role::Coordinator { .. } = machine.role {
            beside(plan, machine, || launch(plan, machine, &words[1..]))??;
            return wait(plan, machine, stop, begins);
        }
        let graph = machine.graph_file(plan);
        fs::write(&graph, &machine.graph).with_context(|| graph.display().to_string())?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        let output = beside(plan, machine, || command.output())?
            .with_context(|| format!("{}: is glusterfs installed (glusterfs-server)?", words[0]))?;
        ensure!(output.status.success(), "{} failed: {}", words[0], reason(&log, begins, &output.stderr));
    }
    let begins = fs::metadata(&log).map_or(0, |meta| meta.len());
    wait(plan, machine, stop, begins.saturating_sub(LOG_TAIL / 4))
}

/// Starts this program anew, in the background: GlusterFS's go there by themselves.
fn launch(plan: &Plan, machine: &Machine, args: &[String]) -> anyhow::Result<()> {
    let log = machine.log_file(plan);
    let to = fs::OpenOptions::new().create(true).append(true).open(&log).with_context(|| log.display().to_string())?;
    let own = std::env::current_exe().context("this program")?;
    let mut child = Command::new(&own)
        .args(args)
        .stdin(Stdio::null())
        .stdout(to.try_clone().with_context(|| log.display().to_string())?)
        .stderr(to)
        // Where it was called may be one of the cluster's own mounts, which it would keep in use.
        .current_dir("/")
        // Ctrl-C here is not meant for it.
        .process_group(0)
        .spawn()
        .with_context(|| own.display().to_string())?;
    let number = machine.pid_file(plan);
    let new = number.with_extension("new");
    let written = fs::write(&new, child.id().to_string()).and_then(|()| fs::rename(&new, &number));
    if written.is_err() {
        // As if it had not been started. It may have ended by itself.
        _ = child.kill();
        _ = child.wait();
    }
    written.with_context(|| number.display().to_string())
}

/// Until it can be used. `begins`: where its log is to be looked through from.
fn wait(plan: &Plan, machine: &Machine, stop: &AtomicBool, begins: u64) -> anyhow::Result<()> {
    let log = machine.log_file(plan);
    let since = Instant::now();
    while !machine.is_usable(plan) {
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        // The number is written a moment after the process has begun.
        let gone = since.elapsed() > Duration::from_secs(2) && machine.process(plan).is_none();
        if gone || since.elapsed() > READY {
            let what = if gone { "it ended" } else { "it cannot be reached" };
            bail!("{what}: {}", reason(&log, begins, &[]));
        }
        std::thread::sleep(STEP);
    }
    Ok(())
}

/// What a process finds where it begins.
fn prepare(plan: &Plan, machine: &Machine) -> anyhow::Result<()> {
    match &machine.role {
        Role::Server { brick, .. } => {
            becomes_free(machine)?;
            take_brick(brick, &machine.brick_note(plan))
        }
        Role::Node { .. } | Role::Coordinator { .. } => becomes_free(machine),
        Role::Client { mount, .. } => {
            // What a killed process has left.
            machine.mounts(plan).iter().try_for_each(|mount| unmount(mount, true))?;
            if let Some(kind) = mounted(mount) {
                bail!(
                    "{}: a file system of type {kind} is mounted there that this cluster did not mount",
                    mount.display()
                );
            }
            fs::create_dir_all(mount).with_context(|| mount.display().to_string())
        }
    }
}

/// Makes the directory that has the data of a server, once: where it was and is gone, the file system with it is not mounted, and data
/// would be in two places.
fn take_brick(brick: &Path, note: &Path) -> anyhow::Result<()> {
    let data = brick.join("data");
    let noted = match fs::read(note) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        known => Some(known.with_context(|| note.display().to_string())?),
    };
    let is_noted = noted.as_deref() == Some(brick.as_os_str().as_bytes());
    ensure!(
        data.is_dir() || !is_noted,
        "{} is gone, and has had data of this server: mount the file system with it first, or if the data is to be gone remove {}",
        data.display(),
        note.display()
    );
    fs::create_dir_all(&data).with_context(|| data.display().to_string())?;
    if is_noted {
        Ok(())
    } else {
        fs::write(note, brick.as_os_str().as_bytes()).with_context(|| note.display().to_string())
    }
}

/// Until a machine can listen where it is to: a process that was killed keeps its sockets until its last thread has ended, which may
/// wait for a disk.
fn becomes_free(machine: &Machine) -> anyhow::Result<()> {
    let since = Instant::now();
    loop {
        match machine.addresses().into_iter().try_for_each(is_free) {
            Err(_) if since.elapsed() < FREE => std::thread::sleep(STEP),
            result => return result,
        }
    }
}

/// Whether somebody could listen there.
///
/// # Errors
/// If not.
pub fn is_free(address: SocketAddr) -> anyhow::Result<()> {
    // Also what is bound and does not listen.
    let bound = TcpListener::bind(address);
    bound.map(drop).with_context(|| format!("{address} cannot be listened at: choose another `port` (or `metrics`)"))
}

/// The first error in a log from there on, or what was said on standard error.
fn reason(log: &Path, from: u64, said: &[u8]) -> String {
    let mut first = None;
    if let Ok(mut file) = fs::File::open(log) {
        let end = file.metadata().map_or(0, |meta| meta.len());
        _ = file.seek(SeekFrom::Start(from.max(end.saturating_sub(LOG_TAIL))));
        // `[time] E [MSGID: n] [file.c:line:function] 0-volume: text`
        let is_error = |line: &String| line.contains("] E [") || line.starts_with("sluice: ");
        let errors = BufReader::new(file).lines().map_while(Result::ok).filter(is_error);
        // What comes first is the reason of what follows.
        first = { errors }.next().map(|line| message(&line).to_owned());
    }
    let said = String::from_utf8_lossy(said);
    let said = said.lines().last().unwrap_or("no error is in its log").to_owned();
    format!("{}; its log is {}", first.unwrap_or(said), log.display())
}

/// What a line of a log says: `[time] E [MSGID: n] [file.c:line:function] 0-volume: text`.
fn message(line: &str) -> &str {
    let mut rest = line;
    while let Some((head, tail)) = rest.split_once(' ')
        && (rest.starts_with('[') || head.len() == 1)
    {
        rest = if rest.starts_with('[') { rest.split_once("] ").map_or("", |(_, tail)| tail) } else { tail };
    }
    rest.trim_end()
}

/// Ends what runs: clients first, with `force` also those that are in use. `ended` is called with each machine that ran.
///
/// # Errors
/// If something cannot be unmounted or ended; what comes after it still runs.
pub fn down(plan: &Plan, force: bool, mut ended: impl FnMut(&Machine)) -> anyhow::Result<()> {
    let _lock = lock(plan)?;
    for machine in strangers(plan).iter().chain(plan.machines.iter().rev()) {
        let process = machine.process(plan);
        for mount in machine.mounts(plan) {
            unmount(&mount, force || process.is_none()).with_context(|| machine.name.clone())?;
        }
        if let Some(pid) = process {
            end(plan, machine, pid).with_context(|| machine.name.clone())?;
            ended(machine);
        }
        _ = fs::remove_file(machine.pid_file(plan));
    }
    links::down(&plan.directory).context("links")
}

/// Nobody else starts or ends anything of the cluster while this lives.
fn lock(plan: &Plan) -> anyhow::Result<Option<fs::File>> {
    if !plan.directory.is_dir() {
        return Ok(None);
    }
    let path = plan.directory.join("lock");
    let file = fs::File::create(&path).with_context(|| path.display().to_string())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("{}: somebody starts or ends this cluster just now", path.display()))?;
    Ok(Some(file))
}

/// Machines that run, or may run, and are in the plan no more.
fn strangers(plan: &Plan) -> Vec<Machine> {
    let entries = fs::read_dir(&plan.directory).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".pid")?.to_owned()));
    names
        // That one may run without a number.
        .filter(|name| name != COORDINATOR)
        .chain([COORDINATOR.to_owned()])
        .filter(|name| plan.machines.iter().all(|machine| machine.name != *name))
        .map(|name| {
            if name == COORDINATOR {
                let listens = SocketAddr::from(([127, 0, 0, 1], 0));
                let role = Role::Coordinator { listens, token_file: None, how: Vec::new(), metrics: None };
                return Machine { name, role, graph: String::new(), host: None };
            }
            let mount = plan.directory.join(&name);
            // Where servers and nodes listened does not matter for their end.
            Machine { name, role: Role::Client { mount, timeout: None }, graph: String::new(), host: None }
        })
        .collect()
}

fn end(plan: &Plan, machine: &Machine, pid: Pid) -> anyhow::Result<()> {
    // It may have ended by itself: clients do when they are unmounted.
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(()),
        opened => opened.context("pidfd_open")?,
    };
    // From here on the number is not given to another process.
    if machine.process(plan) != Some(pid) {
        return Ok(());
    }
    for signal in [Signal::TERM, Signal::KILL] {
        match pidfd_send_signal(&process, signal) {
            Err(Errno::SRCH) => return Ok(()),
            sent => sent.with_context(|| format!("{signal:?} to process {}", pid.as_raw_nonzero()))?,
        }
        let end = Timespec { tv_sec: END.as_secs() as i64, tv_nsec: 0 };
        // Readable once it has ended.
        if rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&end)))? > 0 {
            return Ok(());
        }
        tracing::warn!("{} does not end: it is killed", machine.name);
    }
    bail!("process {} does not end", pid.as_raw_nonzero())
}

/// The type of the file system that is mounted there, even if nobody serves it.
#[must_use]
pub fn mounted(path: &Path) -> Option<String> {
    // The table has no links. The mountpoint itself cannot be asked if nobody serves it.
    let below_parent = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    let path = path.canonicalize().ok().or_else(below_parent)?;
    Some(mounts::at(&path).ok()?.pop()?.kind)
}

fn unmount(path: &Path, lazily: bool) -> anyhow::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags) {
        // It went with another one, of which it was a copy.
        Err(Errno::INVAL) => Ok(()),
        result => result.with_context(|| {
            let advice = if lazily { "" } else { "; --force does so in any case" };
            format!("{} cannot be unmounted{advice}", path.display())
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::process::{Command, Stdio};

    use rustix::process::Pid;

    use super::{COORDINATOR, down, has_words, message, status, take_brick};
    use crate::plan::{Machine, Plan, Role};

    /// It is there before it is the program.
    fn until_it_is_the_program(pid: Pid) {
        while std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap().is_empty() {
            std::thread::yield_now();
        }
    }

    /// Who started it was killed before its number was written.
    #[test]
    fn a_coordinator_without_a_number_is_found_and_ended() {
        let dir = tempfile::tempdir().unwrap();
        // Waits for what never comes, and ends with whoever would write it.
        std::fs::write(dir.path().join("coordinate"), "read line\n").unwrap();
        let listens = SocketAddr::from(([127, 0, 0, 1], 0));
        let role = Role::Coordinator { listens, token_file: None, how: Vec::new(), metrics: None };
        let machine = Machine { name: COORDINATOR.to_owned(), role, graph: String::new(), host: None };
        let plan = Plan {
            name: "a".to_owned(),
            directory: dir.path().to_owned(),
            translator: None,
            links: None,
            machines: vec![machine],
        };
        let state = plan.machines[0].state(&plan);
        // Also where the configuration has none any more.
        for ends in [plan.clone(), Plan { machines: Vec::new(), ..plan.clone() }] {
            let mut command = Command::new("sh");
            command.args(["coordinate", &state]).current_dir(dir.path()).stdin(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let pid = Pid::from_child(&child);
            until_it_is_the_program(pid);
            let found = status(&plan)[0].pid;
            let mut names = Vec::new();
            let ended = down(&ends, false, |machine| names.push(machine.name.clone()));
            let left = status(&plan)[0].pid;
            child.kill().unwrap();
            child.wait().unwrap();
            ended.unwrap();
            assert_eq!((found, left), (Some(pid.as_raw_nonzero().get()), None));
            assert_eq!(names, [COORDINATOR]);
        }
    }

    #[test]
    fn a_process_is_told_by_all_its_arguments() {
        let mut child = Command::new("sleep").args(["300", "200"]).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let has = |words: &[&str]| has_words(pid, &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        until_it_is_the_program(pid);
        let as_it_is = has(&["300", "200"]);
        let otherwise = [has(&["300"]), has(&["300", "100"]), has(&["300", "200", "100"])];
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(as_it_is && otherwise == [false; 3], "{as_it_is} {otherwise:?}");
    }

    #[test]
    fn a_server_is_not_started_beside_its_data() {
        let dir = tempfile::tempdir().unwrap();
        let (brick, note) = (dir.path().join("brick"), dir.path().join("server-0.brick"));
        (0..2).for_each(|_| take_brick(&brick, &note).unwrap());
        // As if it was not mounted.
        std::fs::rename(brick.join("data"), dir.path().join("data")).unwrap();
        let error = take_brick(&brick, &note).unwrap_err().to_string();
        assert!(error.contains("mount") && error.contains("server-0.brick") && !brick.join("data").exists(), "{error}");
        take_brick(&dir.path().join("another"), &note).unwrap();
        std::fs::remove_file(&note).unwrap();
        take_brick(&brick, &note).unwrap();
    }

    #[test]
    fn what_a_log_says_is_found_behind_time_place_and_number() {
        let line =
            "[2026-11-22 15:27:58.200159 +0000] E [MSGID: 101002] [options.c:64:validate] 0-a: no number [{error=x}] ";
        assert_eq!(message(line), "0-a: no number [{error=x}]");
        assert_eq!(message("anything else"), "anything else");
        assert_eq!(message("["), "[");
    }
}
