//! The global cache of data-driven execution: Memcached, for as long as the program runs.

use anyhow::{Context, bail};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// What the server may use; what is unused for longest goes first, MB.
const MEMORY: u32 = 256;
/// Bytes of a socket's path.
const SOCKET_PATH: usize = 107;
/// Time in which it must answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A Memcached on a unix socket, which ends with this.
pub(super) struct Cache {
    server: Child,
    dir: tempfile::TempDir,
}

impl Cache {
    /// Starts one.
    pub(super) fn start() -> anyhow::Result<Cache> {
        let dir = directory().context("no directory for a socket")?;
        let mut command = Command::new("memcached");
        command.arg("-s").arg(dir.path().join("cache")).args(["-m", &MEMORY.to_string(), "-t", "2"]);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        // SAFETY: one system call between fork and exec. Should this process be killed, the server ends, too.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        // What a terminal sends to all is for the program first.
        let command = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server =
            command.spawn().context("cannot run memcached; install it, or name servers by --memcached ADDRESS")?;
        let mut cache = Cache { server, dir };
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(cache.socket()).is_err() {
            if let Some(status) = cache.server.try_wait()? {
                bail!("memcached ended at once ({status})");
            }
            if Instant::now() > deadline {
                bail!("memcached does not answer on {}", cache.socket().display());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(cache)
    }

    /// Where it listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("cache")
    }
}

/// A directory whose paths are short enough for a socket's. That of temporary files may be missing, or far down.
fn directory() -> std::io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    let usual = builder.prefix("sluice-").tempdir().ok();
    let is_short = |dir: &tempfile::TempDir| dir.path().join("cache").as_os_str().len() <= SOCKET_PATH;
    usual.filter(is_short).map_or_else(|| builder.tempdir_in("/tmp"), Ok)
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Runs `command`, which gets the signals that this process gets.
pub(super) fn run(mut command: Command) -> anyhow::Result<ExitCode> {
    static LAUNCHER: AtomicU32 = AtomicU32::new(0);
    for signal in [SIGINT, SIGQUIT, SIGTERM, SIGHUP] {
        // SAFETY: one system call. Signals of a terminal have reached the launcher already, which is then told twice.
        unsafe {
            signal_hook::low_level::register(signal, move || {
                let pid = LAUNCHER.load(Ordering::Relaxed);
                if pid != 0 {
                    libc::kill(pid as libc::pid_t, signal);
                }
            })?;
        }
    }
    let mut child =
        command.spawn().with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
    LAUNCHER.store(child.id(), Ordering::Relaxed);
    let status = child.wait()?;
    LAUNCHER.store(0, Ordering::Relaxed);
    Ok(code(status))
}

/// As a shell says it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
