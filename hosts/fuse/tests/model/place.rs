//! A directory, and the process that serves it as a mount.
//!
//! A process of its own: a program that maps files of a mount which it serves itself may wait for itself, since the thread
//! that waits for a page holds the lock that the serving threads need to get memory, and then not even a kill helps.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use sluice_core::policy::{PolicyConfig, table};
use sluice_fuse::{CacheMode, MountError, MountOptions};
use sluice_runtime::VolumeConfig;
use sluice_storage::Storage;
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::striped::{StripedOptions, StripedStorage};

use crate::common;
use crate::op::{self, Op};
use crate::world::World;

/// Where operations are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bed {
    /// The plain directory: shows that the model is right.
    Plain,
    Directory,
    Striped,
}

const BEDS: [Bed; 3] = [Bed::Plain, Bed::Directory, Bed::Striped];
const CACHES: [CacheMode; 3] = [CacheMode::None, CacheMode::Auto, CacheMode::Writeback];

#[derive(Clone, Copy, Debug)]
pub struct Configuration {
    pub bed: Bed,
    pub cache: CacheMode,
    pub policy: &'static str,
}

impl Configuration {
    pub fn name(&self) -> String {
        format!("{:?}/{:?}/{}", self.bed, self.cache, self.policy).to_lowercase()
    }

    fn all() -> impl Iterator<Item = Configuration> {
        BEDS.into_iter().flat_map(|bed| {
            CACHES
                .into_iter()
                .flat_map(move |cache| table().iter().map(move |info| Configuration { bed, cache, policy: info.name }))
        })
    }
}

/// Environment variables that tell the serving process what to serve.
const SERVE: &str = "SLUICE_MODEL_SERVES";
const SERVE_IN: &str = "SLUICE_MODEL_SERVES_IN";
/// ... and a test of the test that the serving process is to be stopped, and after how many seconds that is a hang.
pub const HANG: &str = "SLUICE_MODEL_HANGS";
pub const LIMIT_S: &str = "SLUICE_MODEL_LIMIT_S";
/// The exit code then.
pub const HUNG: i32 = 103;

/// Serves, in a process that was started for that, until it is unmounted or the other process has ended.
pub fn serve() {
    let (Ok(name), Ok(dir)) = (std::env::var(SERVE), std::env::var(SERVE_IN)) else { return };
    let configuration =
        Configuration::all().find(|configuration| configuration.name() == name).expect("a configuration");
    let path = |name: &str| Path::new(&dir).join(name);
    let storage: Storage = match configuration.bed {
        Bed::Plain => unreachable!("nothing to serve"),
        Bed::Directory => PosixStorage::open(path("source"), PosixOptions::default()).unwrap().into(),
        Bed::Striped => {
            // Small, so that most operations touch several.
            let options = StripedOptions { stripe: Some(16_384), ..StripedOptions::default() };
            let targets = ["t0", "t1", "t2"].map(path);
            StripedStorage::create_or_open(&targets, options).unwrap_or_else(|error| panic!("{error}")).into()
        }
    };
    let options = MountOptions {
        cache: configuration.cache,
        sources: ["source", "t0", "t1", "t2"].map(path).into(),
        ..MountOptions::default()
    };
    let config = VolumeConfig::new(PolicyConfig::parse(configuration.policy).unwrap());
    let handle = sluice_fuse::mount(storage, &path("mnt"), options, config).unwrap_or_else(|error| panic!("{error}"));
    println!("mounted");
    let handle = Arc::new(handle);
    let orphaned = handle.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        let _ = orphaned.unmount_lazily();
    });
    handle.wait().unwrap();
}

/// A directory in which there is one subdirectory for each run.
pub struct Place {
    dir: tempfile::TempDir,
    pub configuration: Configuration,
    server: Option<Child>,
    runs: usize,
}

/// Operations of a mount that hangs fail when it is unmounted: whoever was in them would end the program, by that failure, before its server
/// is killed.
struct WaitsForTheEnd(Arc<AtomicBool>);

impl Drop for WaitsForTheEnd {
    fn drop(&mut self) {
        while self.0.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

/// What is wrong, and the calls that led to it.
pub type Failure = (String, Vec<String>);

impl Place {
    pub fn new(configuration: Configuration) -> Place {
        let dir = common::place();
        for target in ["t0", "t1", "t2"] {
            fs::create_dir(dir.path().join(target)).unwrap();
        }
        let mut place = Place { dir, configuration, server: None, runs: 0 };
        place.mount();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn mount(&mut self) {
        if self.configuration.bed == Bed::Plain {
            return;
        }
        let mut server = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serves_for_the_other_tests", "--nocapture"])
            .env(SERVE, self.configuration.name())
            .env(SERVE_IN, self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("mounted")), "it could not be mounted");
        // What the process still says, so that it need not wait for a reader.
        std::thread::spawn(move || lines.count());
        self.server = Some(server);
    }

    pub fn unmount(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let until = Instant::now() + common::LIMIT;
        let path = self.path("mnt").canonicalize().unwrap();
        while let Err(error) = sluice_fuse::unmount(&path, false) {
            // A process that another test is just starting may hold our closed files until it runs its program.
            assert!(matches!(error, MountError::Busy { .. }) && Instant::now() < until, "{error}");
            std::thread::yield_now();
        }
        assert!(common::bounded(move || server.wait()).unwrap().success(), "the serving process failed");
    }

    fn world(&mut self) -> World {
        self.runs += 1;
        let name = format!("run{}", self.runs);
        let source = self.path("source").join(&name);
        match self.configuration.bed {
            Bed::Plain => World::new(&source, None),
            Bed::Directory => World::new(&self.path("mnt").join(name), Some(source)),
            Bed::Striped => World::new(&self.path("mnt").join(name), None),
        }
    }

    /// Runs a sequence from the start. `meddle` is called before each operation.
    pub fn run(&mut self, ops: &[Op], mut meddle: impl FnMut(&World)) -> Result<World, Failure> {
        let mut world = self.world();
        let (ended, ending) = mpsc::channel::<()>();
        // All prepared: a thread that waits for a page may hold the lock that is needed to get memory.
        let name = self.configuration.name();
        let message = format!(
            "{name} hangs; run it again with\n  SLUICE_MODEL={name} SLUICE_OPS='{}' cargo test -p sluice-fuse --test model \
             random\n",
            op::written(ops)
        );
        let mountpoint = self.path("mnt");
        let server = self.server.as_ref().map(rustix::process::Pid::from_child);
        let limit = std::env::var(LIMIT_S).map_or(4 * common::LIMIT, |s| Duration::from_secs(s.parse().unwrap()));
        if let (Some(server), Ok(_)) = (server, std::env::var(HANG)) {
            rustix::process::kill_process(server, Signal::STOP).unwrap();
        }
        let hangs = Arc::new(AtomicBool::new(false));
        let _waits = WaitsForTheEnd(hangs.clone());
        std::thread::spawn(move || {
            if ending.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                hangs.store(true, Ordering::SeqCst);
                // Past the test harness, which keeps what is printed to itself and would not come to show it.
                let _ = io::stderr().write_all(message.as_bytes());
                // Nothing else ends those who wait for a page: this fails all requests of the mount.
                let forced = rustix::mount::unmount(&mountpoint, UnmountFlags::FORCE);
                let detached = rustix::mount::unmount(&mountpoint, UnmountFlags::DETACH);
                if let (Err(error), Err(_)) = (forced, detached) {
                    let _ = writeln!(io::stderr(), "and could not be unmounted: {error}");
                }
                if let Some(server) = server {
                    let _ = rustix::process::kill_process(server, Signal::KILL);
                }
                std::process::exit(HUNG);
            }
        });
        let mut all = || {
            for op in ops {
                meddle(&world);
                world.apply(op)?;
            }
            world.compare_all()
        };
        let result = all();
        world.close_all();
        drop(ended);
        match result {
            Ok(()) => Ok(world),
            Err(wrong) => Err((wrong, world.told)),
        }
    }

    /// The same, and everything must be there after mounting again.
    pub fn run_and_mount_again(&mut self, ops: &[Op]) -> Result<(), Failure> {
        let mut world = self.run(ops, |_| ())?;
        self.unmount();
        self.mount();
        world.told.push("mounted again".into());
        let result = world.compare_all();
        let _ = fs::remove_dir_all(&world.dir);
        result.map_err(|wrong| (wrong, world.told))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = sluice_fuse::unmount(&self.path("mnt"), true);
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
