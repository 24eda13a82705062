//! After errors, killed processes, storms of forgetting and a mount that is torn down under load nothing stays behind. The
//! only test of its program: it counts the process's descriptors.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use common::{Mount, bounded};
use sluice_fuse::CacheMode;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn eventually(what: &str, mut came: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + common::LIMIT;
    while !came() {
        assert!(std::time::Instant::now() < until, "never: {what}");
        std::thread::yield_now();
    }
}

/// Opens and fails in all ways.
fn errors(m: &Mount) {
    fs::write(m.path("read-only"), b"x").unwrap();
    fs::create_dir(m.path("dir")).unwrap();
    for i in 0..200 {
        assert!(File::open(m.path("none")).is_err());
        assert!(OpenOptions::new().write(true).create_new(true).open(m.path("read-only")).is_err());
        assert!(OpenOptions::new().write(true).open(m.path("dir")).is_err());
        assert!(fs::read_dir(m.path("read-only")).is_err());
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(m.path("read-only"));
        drop(direct);
        let file = File::create(m.path(&format!("gone{}", i % 7))).unwrap();
        fs::remove_file(m.path(&format!("gone{}", i % 7))).unwrap();
        assert!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(5)).is_err());
        drop((file, fs::read_dir(m.path("")).unwrap().next()));
    }
}

/// Processes that die in the middle of what they do.
fn killed(m: &Mount) {
    let script =
        "while :; do cp big copy$$; cat big copy$$ > /dev/null; sync -d copy$$; rm -f copy$$; ls -l > /dev/null; done";
    fs::write(m.path("big"), vec![7; 3 << 20]).unwrap();
    for round in 0..5 {
        let start = |_| {
            let mut command = Command::new("setsid");
            command.args(["sh", "-c", script]).current_dir(m.path("")).stderr(Stdio::null());
            command.spawn().unwrap()
        };
        let mut children: Vec<_> = (0..4).map(start).collect();
        eventually("they work", || m.handle().open_files() > round % 3);
        for child in &mut children {
            let group = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}

/// Makes the kernel know many objects and forget them again.
fn storm(m: &Mount) {
    fs::create_dir(m.path("many")).unwrap();
    for i in 0..3000 {
        File::create(m.source(&format!("many/{i}"))).unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..2 {
                    assert_eq!(
                        fs::read_dir(m.path("many"))
                            .unwrap()
                            .filter(|e| e.as_ref().unwrap().metadata().is_ok())
                            .count(),
                        3000
                    );
                    let _ = fs::write("/proc/sys/vm/drop_caches", "2");
                }
            });
        }
    });
    fs::remove_dir_all(m.path("many")).unwrap();
}

#[test]
fn nothing_stays_behind() {
    if !common::fuse_works() {
        return;
    }
    // Whatever the first mount of a process opens once.
    Mount::new(CacheMode::None).unwrap().finish();
    eventually("the number settles", || descriptors() < 64);
    let before = descriptors();
    for mode in [CacheMode::None, CacheMode::Auto, CacheMode::Writeback] {
        let m = Mount::new(mode).unwrap();
        errors(&m);
        killed(&m);
        storm(&m);
        m.settle(0);
        m.finish();
        eventually("all descriptors are closed", || descriptors() <= before);

        // Out of sight under load: what is open works on and ends.
        let m = Mount::new(mode).unwrap();
        let (over, path, working) = (AtomicBool::new(false), m.path("f"), AtomicU32::new(0));
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                    working.fetch_add(1, Ordering::Relaxed);
                    while !over.load(Ordering::Relaxed) {
                        std::os::unix::fs::FileExt::read_exact_at(&file, &mut [0; 4096], 8192).unwrap();
                        std::os::unix::fs::FileExt::write_all_at(&file, &[2; 4096], 8192).unwrap();
                        let _ = File::open(&path);
                    }
                });
            }
            eventually("they work", || working.load(Ordering::Relaxed) == 4);
            m.handle().unmount_lazily().unwrap();
            over.store(true, Ordering::Relaxed);
        });
        m.handle().wait().unwrap();
        drop(m);
        eventually("all descriptors are closed", || descriptors() <= before);

        aborted(mode);
        eventually("all descriptors are closed", || descriptors() <= before);
    }
}

/// The kernel cuts the connection, and says nothing about what was open.
fn aborted(mode: CacheMode) {
    let m = Mount::new(mode).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = m.path("").canonicalize().unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == at.to_str()).unwrap();
    let minor = line.split(' ').nth(2).unwrap().split(':').nth(1).unwrap();
    let abort = format!("/sys/fs/fuse/connections/{minor}/abort");
    let files: Vec<_> = (0..20).map(|i| File::create(m.path(&format!("{i}"))).unwrap()).collect();
    if fs::write(&abort, "1").is_err() {
        return eprintln!("SKIP: {abort} cannot be written: aborting was NOT tested");
    }
    drop(files);
    let _ = m.handle().unmount_lazily();
    bounded(move || {
        let _ = m.handle().wait();
        assert_eq!((m.handle().open_files(), m.handle().known_objects()), (0, 0));
    });
}
