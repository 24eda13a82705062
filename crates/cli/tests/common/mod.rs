//! The real program on temporary directories.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longest time any test waits for anything: for the end of what hangs, on the busiest machine.
pub const LIMIT: Duration = Duration::from_secs(300);

/// False, and says so, where FUSE file systems cannot be mounted.
pub fn fuse_works() -> bool {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let helper = Command::new("fusermount3").arg("-V").output().is_ok();
    let works = device.is_ok() && (is_root() || helper);
    if !works {
        eprintln!("SKIP: no /dev/fuse, or neither root nor fusermount3: this test did NOT run");
    }
    works
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// False, and says so, where block devices cannot be made of files.
pub fn loop_devices_work() -> bool {
    let control = fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control");
    let works = is_root() && control.is_ok();
    if !works {
        eprintln!("SKIP: not root, or no /dev/loop-control: this test did NOT run");
    }
    works && fuse_works()
}

/// Directories of one test, and the program with a control directory of its own. What is still mounted in the end is
/// unmounted.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["source", "mnt"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Place(dir)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn make(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// `sluice` with these arguments; those that start with `@` are names in this place.
    pub fn sluice(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command.env("SLUICE_RUNTIME_DIR", self.path("run")).env("SLUICE_DISK_DIR", self.path("disks"));
        command.env("SLUICE_STATE_DIR", self.path("state"));
        // Whoever runs the tests in the background may ignore what a terminal sends.
        let heed = || {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                // SAFETY: sets what the system does; no handler is called.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made, and no memory allocated.
        unsafe { command.pre_exec(heed) };
        for arg in args {
            match arg.strip_prefix('@') {
                Some(name) => command.arg(self.path(name)),
                None => command.arg(arg),
            };
        }
        command
    }

    /// Runs it to the end; it must succeed.
    pub fn good(&self, args: &[&str]) -> String {
        let output = run(&mut self.sluice(args));
        assert!(output.status.success(), "sluice {args:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs it to the end; it must fail. What it says on standard error.
    pub fn bad(&self, args: &[&str]) -> String {
        let output = run(&mut self.sluice(args));
        assert!(!output.status.success(), "sluice {args:?} must fail, but says {output:?}");
        let text = stderr(&output);
        assert!(!text.contains("panicked"), "{text}");
        text
    }

    /// Mounts as a daemon with a log in this place.
    pub fn daemon(&self, more: &[&str]) -> Daemon<'_> {
        let args = [&["mount", "--daemon", "--log", "@log"], more, &["@source", "@mnt"]].concat();
        let said = self.good(&args);
        assert!(said.contains("is mounted") && said.contains("To end: sluice unmount"), "{said}");
        Daemon(self)
    }

    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.good(&["status", "--json", "@mnt"])).unwrap()
    }

    pub fn is_mounted(&self) -> bool {
        let path = self.path("mnt").canonicalize().unwrap_or_else(|_| self.path("mnt"));
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = self.sluice(&["unmount", "--lazy", "@mnt"]).output();
        }
    }
}

/// Runs it with this on its standard input.
pub fn with_input(place: &Place, args: &[&str], input: &[u8]) -> Output {
    let mut command = place.sluice(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Whoever refuses what it was told does not read.
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().unwrap()
    })
}

/// What it said, if it succeeded.
pub fn good_output(output: Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", stderr(&output));
    output.stdout
}

/// A daemon that is unmounted at the end of its test.
pub struct Daemon<'a>(&'a Place);

impl Daemon<'_> {
    pub fn pid(&self) -> rustix::process::Pid {
        let pid = self.0.status()["pid"].as_i64().unwrap();
        rustix::process::Pid::from_raw(pid as i32).unwrap()
    }

    /// Unmounts; the process has ended when this returns.
    pub fn unmount(self) {
        unmount(self.0);
    }
}

/// Unmounts what the test itself does not use any more.
pub fn unmount(place: &Place) {
    // A process that another test is just starting may hold our closed files until it runs its program.
    eventually("unmounted", || {
        let output = run(&mut place.sluice(&["unmount", "@mnt"]));
        let text = stderr(&output);
        assert!(output.status.success() || text.contains("in use"), "{text}");
        output.status.success()
    });
    assert!(!place.is_mounted());
}

/// A mount, or a coordinator, in the foreground.
pub struct Foreground {
    pub child: Child,
    output: BufReader<ChildStdout>,
    pub errors: mpsc::Receiver<String>,
}

impl Foreground {
    pub fn start(command: Command) -> Foreground {
        let (mount, line) = Foreground::saying(command);
        assert!(line.contains("is mounted"), "{line:?} {:?}", mount.errors.iter().collect::<Vec<_>>());
        mount
    }

    /// And the first thing that it says.
    pub fn saying(mut command: Command) -> (Foreground, String) {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, received) = mpsc::channel();
        std::thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut started = Foreground { child, output, errors: received };
        let line = started.line();
        (started, line)
    }

    /// The next line on standard output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for a line on standard error.
    pub fn hears(&self, text: &str) {
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.errors.recv_timeout(left).unwrap_or_else(|_| panic!("no word of {text:?}"));
            if line.contains(text) {
                return;
            }
        }
    }

    /// Waits until it ends.
    pub fn end(mut self) -> std::process::ExitStatus {
        let mut status = None;
        eventually("the process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills a process that is not the test's to wait for. When this returns it has ended, and holds nothing any more.
pub fn kill(pid: rustix::process::Pid) {
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("the killed process ends", || has_ended(pid));
}

/// Whether a process has ended, with all its threads: perhaps nobody has asked for its result (a container without an init).
pub fn has_ended(pid: rustix::process::Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    let stats = { threads }.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    { stats }.all(|stat| stat.contains(") Z ") || stat.contains(") X "))
}

/// Waits for something that must come soon.
pub fn eventually(what: &str, mut came: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !came() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::yield_now();
    }
}

/// Runs a program that must end.
pub fn run(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    wait.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{command:?} does not end")).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}
