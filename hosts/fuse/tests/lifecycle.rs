//! Mounting and unmounting. What is left when a daemon dies, and mounting without root, is tested with the real program in
//! `crates/cli/tests`.

mod common;

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::process::Command;
use std::sync::Arc;

use common::{Mount, bounded, fuse_works, mount_at, options, place, unmount};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_core::PolicyConfig;
use sluice_fuse::{CacheMode, MountError};
use sluice_runtime::VolumeConfig;
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::{Data, FileRef, Layout, Storage};

#[test]
fn mistakes_are_explained() {
    if !fuse_works() {
        return;
    }
    let dir = place();
    let auto = || options(CacheMode::Auto, dir.path());
    let at = dir.path().join("mnt");
    let fails = |options| match mount_at(dir.path(), options) {
        Ok(_) => panic!("must not mount"),
        Err(error) => {
            assert!(error.to_string().contains(dir.path().to_str().unwrap()), "says where: {error}");
            error
        }
    };
    fs::write(at.join("x"), b"").unwrap();
    assert!(matches!(fails(auto()), MountError::NotEmpty { .. }));
    fs::remove_file(at.join("x")).unwrap();
    fs::remove_dir(&at).unwrap();
    assert!(matches!(fails(auto()), MountError::Missing { .. }));
    fs::write(&at, b"").unwrap();
    assert!(matches!(fails(auto()), MountError::NotADirectory { .. }));
    fs::remove_file(&at).unwrap();
    // Round about, through a link.
    fs::create_dir(dir.path().join("source/inner")).unwrap();
    symlink("source/inner", &at).unwrap();
    assert!(matches!(fails(auto()), MountError::Overlap { .. }));
    fs::remove_file(&at).unwrap();
    symlink(".", &at).unwrap();
    assert!(matches!(fails(auto()), MountError::Overlap { .. }));
    fs::remove_file(&at).unwrap();
    fs::create_dir(&at).unwrap();
    let first = mount_at(dir.path(), auto()).unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(fails(auto()), MountError::AlreadyMounted { .. }));
    unmount(&first);
    bounded(move || first.wait()).unwrap();
}

/// From what a process says to what an orchestrator is told: engines measure locality by the job's number.
#[test]
fn a_job_that_a_process_names_is_the_program_of_its_requests() {
    if !fuse_works() {
        return;
    }
    let dir = place();
    fs::write(dir.path().join("source/data"), vec![7; 1 << 20]).unwrap();
    let storage = PosixStorage::open(dir.path().join("source"), PosixOptions::default()).unwrap();
    let config = VolumeConfig::new(PolicyConfig::parse("sjf").unwrap());
    let options = options(CacheMode::None, dir.path());
    let mount = sluice_fuse::mount(storage.into(), &dir.path().join("mnt"), options, config).unwrap();
    let scheduler = mount.volume().scheduler();
    scheduler.watch_locality(Some(1 << 30));
    let file = File::open(dir.path().join("mnt/data")).unwrap();
    let say = |name, text: &str| setxattr_of(&file, name, text.as_bytes());
    let read = |offset| {
        let mut room = [0; 4096];
        file.read_exact_at(&mut room, offset).unwrap();
    };
    read(0);
    let before: Vec<_> = scheduler.locality(0).unwrap().1.iter().map(|seen| seen.app).collect();
    // Also through a file that may not be written. Nobody waits long for a job's name, so that it may take some requests.
    say("system.sluice.job", "run-17").unwrap();
    let until = std::time::Instant::now() + common::LIMIT;
    let program = loop {
        assert!(std::time::Instant::now() < until, "the job has no requests");
        (1..9).for_each(|n| read(n * 65_536));
        let mut seen = scheduler.locality(0).unwrap().1.into_iter();
        let of_job = seen.find(|seen| mount.app_name(seen.app).starts_with("job=run-17 uid="));
        if let Some(program) = of_job.filter(|program| program.requests >= 8) {
            break program;
        }
    };
    assert!(!before.contains(&program.app));
    let phases = |text: &str| {
        say("system.sluice.phase", text).unwrap();
        mount.app_phases(program.app).unwrap()
    };
    assert_eq!(phases("io").in_io, 1);
    assert_eq!((phases("batch 65536").in_batch, phases("batch end").batch_bytes), (1, 65_536));
    // What the coordinator is told of it, and how long ago its last request was served.
    let (programs, began) = (mount.programs(), std::time::Instant::now());
    let said = || programs.activities().into_iter().find(|said| said.app == program.app).unwrap();
    assert!(!said().computes);
    read(0);
    phases("compute");
    let now = scheduler.clock().now();
    let served = scheduler.locality(0).unwrap().1.into_iter().find(|seen| seen.app == program.app).unwrap();
    let computing = said();
    assert!(computing.computes && computing.lasts <= began.elapsed());
    assert!(served.completed.is_some_and(|completed| completed <= now), "{served:?}");
    assert!(!{
        phases("io");
        said().computes
    });
    // What cannot be heard is refused, and nothing of it is stored.
    for (name, text) in [("system.sluice.job", "a b"), ("system.sluice.phase", "sleep"), ("system.sluice.app", "uid=0")]
    {
        assert!(say(name, text).is_err(), "{name} {text}");
    }
    drop(file);
    unmount(&mount);
    bounded(move || mount.wait()).unwrap();
}

fn setxattr_of(file: &File, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::fsetxattr(file, name, value, rustix::fs::XattrFlags::empty())
}

/// Where mounts are shared it would be in the storage, and whoever goes there deep enough would stop all threads.
#[test]
fn a_mountpoint_in_the_storage_under_another_name_is_refused() {
    let dir = place();
    let [source, alias] = ["source", "mnt"].map(|name| dir.path().join(name));
    fs::create_dir_all(source.join("a/b")).unwrap();
    if let Err(error) = rustix::mount::mount_bind(&source, &alias) {
        return eprintln!("SKIP: no mounting here ({error}): this test did NOT run");
    }
    let prepared =
        ["a/b", "a", ""].map(|below| sluice_fuse::check_mountpoint(&alias.join(below), std::slice::from_ref(&source)));
    rustix::mount::unmount(&alias, rustix::mount::UnmountFlags::DETACH).unwrap();
    for result in prepared {
        assert!(matches!(result, Err(MountError::Overlap { .. } | MountError::NoDevice { .. })), "{result:?}");
    }
}

/// One that whoever mounts has (`ulimit -f`) ended the process that serves the mount when anybody wrote more.
#[test]
fn a_limit_of_the_size_of_files_ends_no_mount() {
    // Far beyond what other tests write, whose mounts raise it, too.
    let hard = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: Some(64 << 20), maximum: hard }).unwrap();
    let Some(mount) = Mount::new(CacheMode::None) else { return };
    let to = format!("of={}", mount.path("f").display());
    let args = ["--fsize=unlimited:unlimited", "dd", "if=/dev/zero", &to, "bs=1", "count=1", "seek=67108864"];
    let written = Command::new("prlimit").args(args).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    // Where it cannot be raised so far whoever writes is told so.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    assert_ne!(u64::from_str_radix(ignored, 16).unwrap() & 1 << (libc::SIGXFSZ - 1), 0, "{ignored}");
}

#[test]
fn dead_mounts_of_others_are_left_alone() {
    if !fuse_works() || !common::is_root() {
        return eprintln!("SKIP: not root, cannot mount directly: this test did NOT run");
    }
    let dir = place();
    let at = dir.path().join("mnt");
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&device));
    let data = CString::new(data).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("other", &at, "fuse.other", flags, &*data).unwrap();
    drop(device);
    assert_eq!(fs::metadata(&at).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    let refused = mount_at(dir.path(), options(CacheMode::Auto, dir.path()));
    let text = refused.err().expect("not mounted").to_string();
    assert!(text.contains("another program") && text.contains("fuse.other") && text.contains("umount -l"), "{text}");
    assert_eq!(fs::metadata(&at).unwrap_err().raw_os_error(), Some(libc::ENOTCONN), "still there");
    // Below it neither.
    let mut inside = options(CacheMode::Auto, dir.path());
    inside.sources.clear();
    let error = sluice_fuse::check_mountpoint(&at.join("below"), &inside.sources).unwrap_err();
    assert!(matches!(error, MountError::InDeadMount { .. }), "{error}");
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH).unwrap();
    let handle = mount_at(dir.path(), options(CacheMode::Auto, dir.path())).unwrap();
    unmount(&handle);
    bounded(move || handle.wait()).unwrap();
}

#[test]
fn a_mount_in_use_says_so() {
    let Some(m) = Mount::new(CacheMode::Auto) else { return };
    let mut file = File::create(m.path("a")).unwrap();
    assert!(matches!(m.handle().unmount(), Err(MountError::Busy { .. })));
    file.write_all(b"still works").unwrap();
    m.handle().unmount_lazily().unwrap();
    file.write_all(b", even now").unwrap();
    assert!(!m.handle().is_over());
    drop(file);
    assert_eq!(fs::read(m.source("a")).unwrap(), b"still works, even now");
    m.handle().wait().unwrap();
}

#[test]
fn others_may_unmount_and_dropping_unmounts() {
    let Some(m) = Mount::new(CacheMode::Auto) else { return };
    let until = std::time::Instant::now() + common::LIMIT;
    while !Command::new("umount").arg(m.path("")).status().unwrap().success() {
        assert!(std::time::Instant::now() < until, "in use");
    }
    m.handle().wait().unwrap();
    assert!(m.handle().is_over());
    m.finish();

    let dir = place();
    drop(mount_at(dir.path(), options(CacheMode::Auto, dir.path())));
    assert!(fs::read_dir(dir.path().join("mnt")).unwrap().next().is_none());
}

/// It is found by its number: the table of mounts has another path then.
#[test]
fn a_mount_below_a_directory_that_was_renamed_is_found() {
    if !fuse_works() {
        return;
    }
    let dir = place();
    let [before, after] = ["before", "after"].map(|name| dir.path().join(name));
    fs::create_dir_all(before.join("mnt")).unwrap();
    let storage = PosixStorage::open(dir.path().join("source"), PosixOptions::default()).unwrap();
    let mut options = options(CacheMode::Auto, dir.path());
    options.read_only = true;
    let handle = sluice_fuse::mount(storage.into(), &before.join("mnt"), options, VolumeConfig::default()).unwrap();
    fs::rename(&before, &after).unwrap();
    assert!(handle.is_read_only().unwrap());
    let used = File::open(after.join("mnt")).unwrap();
    assert!(matches!(handle.unmount(), Err(MountError::Busy { .. })));
    drop(used);
    unmount(&handle);
    bounded(move || handle.wait()).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(after.to_str().unwrap()), "still mounted");
}

#[test]
fn unmounting_writes_everything_back() {
    let Some(m) = Mount::new(CacheMode::Writeback) else { return };
    let data: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251) as u8).collect();
    for chunk in 0..5 {
        fs::write(m.path(&format!("f{chunk}")), &data[chunk..]).unwrap();
    }
    unmount(m.handle());
    for chunk in 0..5 {
        assert_eq!(fs::read(m.source(&format!("f{chunk}"))).unwrap(), data[chunk..]);
    }
}

#[test]
fn one_thread_serves_everybody() {
    let Some(m) = Mount::with(CacheMode::Auto, |options| options.threads = 1) else { return };
    std::thread::scope(|scope| {
        for i in 0..8 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || {
                for round in 0..50 {
                    fs::write(&path, vec![round; 10_000]).unwrap();
                    assert_eq!(fs::read(&path).unwrap(), vec![round; 10_000]);
                }
                fs::remove_file(path).unwrap();
            });
        }
    });
    m.finish();
}

/// Data that fails in the worst way when it is to be synced.
struct Panicky(Arc<dyn Data>);

impl Data for Panicky {
    fn layout(&self) -> Layout {
        self.0.layout()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn read(&self, f: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read(f, target, offset, bufs)
    }
    fn write(&self, f: &FileRef, target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(f, target, offset, bufs)
    }
    fn sync(&self, _: &FileRef, _: bool) -> io::Result<()> {
        panic!("on purpose: the test wants to see what happens");
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.0.size_at_least(file, end)
    }
}

#[test]
fn a_panic_fails_one_call_only() {
    if !fuse_works() {
        return;
    }
    let dir = place();
    let plain = Storage::from(PosixStorage::open(dir.path().join("source"), PosixOptions::default()).unwrap());
    let storage = Storage { data: Arc::new(Panicky(plain.data)), namespace: plain.namespace };
    let at = dir.path().join("mnt");
    let mut options = options(CacheMode::Auto, dir.path());
    options.threads = 2;
    let handle = sluice_fuse::mount(storage, &at, options, VolumeConfig::default()).unwrap();
    let synced = File::create(at.join("s")).unwrap();
    for _ in 0..5 {
        assert_eq!(synced.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    drop(synced);
    fs::write(at.join("a"), b"alive").unwrap();
    assert_eq!(fs::read(at.join("a")).unwrap(), b"alive");
    unmount(&handle);
    bounded(move || handle.wait()).unwrap();
}
