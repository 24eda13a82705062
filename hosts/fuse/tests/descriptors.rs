//! A mount whose process has no descriptor left. Alone in its process: the limit is the process's.

mod common;

use std::fs::File;

use common::{Mount, bounded, is_root};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_fuse::{CacheMode, MountState};

#[test]
fn without_a_descriptor_a_mount_is_unmounted_all_the_same() {
    if !is_root() {
        return eprintln!("SKIP: not root, unmounting needs fusermount3 and descriptors for it: this test did NOT run");
    }
    let Some(mount) = Mount::new(CacheMode::Auto) else { return };
    let before = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(256), ..before };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut all = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        all.push(file);
    }
    let (ended, read_only) = (mount.handle().unmount(), mount.handle().is_read_only());
    drop(all);
    setrlimit(Resource::Nofile, before).unwrap();
    ended.unwrap();
    assert!(!read_only.unwrap());
    assert_eq!(sluice_fuse::state(mount.handle().mountpoint()).unwrap(), MountState::Absent);
    let _ = bounded(move || mount.handle().wait());
}
