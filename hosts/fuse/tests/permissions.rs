//! Owners, modes and access control lists come out as on the plain directory, whatever the umask, the default list, the
//! set-ID bits and the groups of whoever acts.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::Mount;
use common::aio::Aio;
use common::wrap::{Gate, Hooks, wrap};
use rustix::fs::{XattrFlags, lgetxattr, setxattr};
use sluice_fuse::CacheMode;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NOBODY: u32 = 65534;
/// Of which the acting user is a member, and of which not.
const MEMBER: u32 = 4321;
const STRANGER: u32 = 5432;

/// The kernel's form of a list, of entries like `u::rwx`, `g:4321:r-x`, `m::r--`, `o::---`.
fn acl(text: &str) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for entry in text.split(',') {
        let fields: Vec<&str> = entry.split(':').collect();
        let tag: u16 = match (fields[0], fields[1].is_empty()) {
            ("u", true) => 0x01,
            ("u", false) => 0x02,
            ("g", true) => 0x04,
            ("g", false) => 0x08,
            ("m", _) => 0x10,
            _ => 0x20,
        };
        let bit = |letter, bit| if fields[2].contains(letter) { bit } else { 0u16 };
        bytes.extend(tag.to_le_bytes());
        bytes.extend((bit('r', 4) | bit('w', 2) | bit('x', 1)).to_le_bytes());
        bytes.extend(fields[1].parse().unwrap_or(u32::MAX).to_le_bytes());
    }
    bytes
}

/// What matters of everything below a directory.
fn listing(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let mut text = format!("{:o} {}:{} ", meta.mode(), meta.uid(), meta.gid());
            for name in [ACCESS, DEFAULT] {
                let mut value = [0; 256];
                if let Ok(len) = lgetxattr(&path, name, &mut value) {
                    text.push_str(&format!("{name}={:x?} ", &value[..len]));
                }
            }
            found.insert(path.strip_prefix(dir).unwrap().display().to_string(), text);
            if meta.is_dir() {
                todo.push(path);
            }
        }
    }
    found
}

fn act(script: &str, dir: &Path, groups: &str) -> (bool, String) {
    let (user, groups) = (format!("--reuid={NOBODY}"), format!("--groups={groups}"));
    let group = format!("--regid={NOBODY}");
    let mut command = Command::new("setpriv");
    let output = command.args([&user, &group, &groups]).args(["sh", "-c", script]).current_dir(dir).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Runs the same script as an ordinary user below both directories and compares what comes out.
fn same(m: &common::Mount, what: &str, prepare: &dyn Fn(&Path), script: &str, groups: &str) {
    let plain = tempfile::tempdir_in(m.source("..")).unwrap();
    fs::set_permissions(plain.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (there, here) = (plain.path().join("case"), m.path("case"));
    let mut results = Vec::new();
    for dir in [&there, &here] {
        fs::create_dir(dir).unwrap();
        prepare(dir);
        results.push(act(script, dir, groups).0);
    }
    let (expected, through, below) = (listing(&there), listing(&here), listing(&m.source("case")));
    assert_eq!(expected, through, "{what}, through the mount");
    assert_eq!(expected, below, "{what}, in the source");
    assert_eq!(results[0], results[1], "{what}: success");
    fs::remove_dir_all(&here).unwrap();
}

fn works(m: &common::Mount) -> bool {
    if !common::is_root() {
        eprintln!("SKIP: not root, cannot become another user: this test did NOT run");
        return false;
    }
    let probe = m.source("probe");
    fs::create_dir(&probe).unwrap();
    let works = setxattr(&probe, DEFAULT, &acl("u::rwx,g::r-x,o::---"), XattrFlags::empty()).is_ok();
    fs::remove_dir(&probe).unwrap();
    if !works {
        eprintln!("SKIP: no access control lists in the temporary directory: this test did NOT run");
    }
    works
}

each_mode! {
    fn what_is_created(m) {
        if !works(m) {
            return;
        }
        let lists = [
            None,
            Some("u::rwx,g::r-x,o::---"),
            Some("u::rwx,g::rwx,o::rwx"),
            Some("u::rwx,u:1234:rwx,g::r-x,g:4321:rw-,m::rwx,o::---"),
            Some("u::rw-,u:1234:rwx,g::---,m::r--,o::r--"),
        ];
        let create = "for u in 022 077 000 027; do umask $u; touch f$u; mkdir d$u d$u/e; touch d$u/e/f; mkfifo p$u; \
            ln -s x l$u; mknod q$u p; cp /bin/true prog$u; install -m 2755 /dev/null s$u; install -m 6711 /dev/null t$u; \
            mkdir -m 3777 n$u; (set -C; : > k$u); done; chmod 2775 f022; true";
        for list in lists {
            for mode in [0o777, 0o2777] {
                for group in [MEMBER, STRANGER] {
                    let prepare = |dir: &Path| {
                        std::os::unix::fs::chown(dir, None, Some(group)).unwrap();
                        fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
                        if let Some(list) = list {
                            setxattr(dir, DEFAULT, &acl(list), XattrFlags::empty()).unwrap();
                        }
                    };
                    let what = format!("default {list:?}, directory {mode:o} of group {group}");
                    same(m, &what, &prepare, create, &format!("{MEMBER},7"));
                }
            }
        }
    }

    /// With set-ID bits in the call itself, which shells cannot say.
    fn files_created_with_set_id_bits(m) {
        if !works(m) {
            return;
        }
        let create = "import os\nfor u in (0o22, 0o77, 0):\n os.umask(u)\n for m in (0o2775, 0o2767, 0o6777, 0o444, 0):\n  \
            os.close(os.open('f%o-%o' % (u, m), os.O_CREAT | os.O_EXCL | os.O_RDWR, m)); \
            os.mknod('n%o-%o' % (u, m), m); os.mkdir('d%o-%o' % (u, m), m)";
        for mode in [0o777, 0o2777] {
            for group in [MEMBER, STRANGER] {
                let prepare = |dir: &Path| {
                    std::os::unix::fs::chown(dir, None, Some(group)).unwrap();
                    fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
                };
                let script = format!("exec python3 -c \"{create}\"");
                same(m, &format!("{mode:o} of group {group}"), &prepare, &script, &format!("{MEMBER},7"));
            }
        }
    }

    fn what_only_a_group_may_do(m) {
        if !works(m) {
            return;
        }
        for (group, mode) in [(MEMBER, 0o2770), (MEMBER, 0o770), (STRANGER, 0o770), (MEMBER, 0o750)] {
            let prepare = |dir: &Path| {
                std::os::unix::fs::chown(dir, None, Some(group)).unwrap();
                fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
            };
            let what = format!("directory {mode:o} of group {group}");
            // The directory is entered as root.
            same(m, &what, &prepare, "touch f; mkdir d; ln -s x l; mkfifo p", &MEMBER.to_string());
        }
    }

    fn set_id_bits_and_lists(m) {
        if !works(m) {
            return;
        }
        let set_list = format!(
            "import os; os.setxattr('f', '{ACCESS}', bytes({:?}))", acl("u::rwx,u:1234:r--,g::r-x,m::r-x,o::r--"));
        let allocate = "import os; f = os.open('f', os.O_RDWR); os.posix_fallocate(f, 0, 10000)";
        let scripts = [
            format!("python3 -c \"{set_list}\""),
            format!("python3 -c \"{allocate}\""),
            "echo x >> f".to_owned(),
            ": > f".to_owned(),
            "chmod g+s f".to_owned(),
            format!("chgrp {MEMBER} f"),
        ];
        for script in &scripts {
            for group in [NOBODY, MEMBER, STRANGER] {
                for mode in [0o6777, 0o2755, 0o4755, 0o2767] {
                    let prepare = |dir: &Path| {
                        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
                        fs::write(dir.join("f"), b"#!/bin/sh\n").unwrap();
                        std::os::unix::fs::chown(dir.join("f"), Some(NOBODY), Some(group)).unwrap();
                        fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(mode)).unwrap();
                    };
                    // With a write-back cache the bits go when the data comes.
                    let script = format!("{script}; sync -d f");
                    same(m, &format!("{script}, {mode:o} of group {group}"), &prepare, &script, &MEMBER.to_string());
                }
            }
        }
    }
}

/// As direct I/O wants it.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// The kernel lets nobody change a mode while somebody writes, but for asynchronous writes.
#[test]
fn a_change_of_mode_while_a_write_takes_set_id_bits_away_stays() {
    if !common::is_root() {
        return eprintln!("SKIP: not root, cannot become another user: this test did NOT run");
    }
    let gate = Arc::new(Gate::default());
    let hooks = Arc::new(Hooks { mode: Some((0o777, gate.clone())), ..Hooks::default() });
    let Some(m) = Mount::wrapped(CacheMode::None, |_| (), |storage| wrap(storage, &hooks)) else { return };
    fs::write(m.source("f"), [0; 8192]).unwrap();
    let (path, set) = (m.path("f"), |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)));
    set(&path, 0o4777).unwrap();
    let written = path.clone();
    let writer = std::thread::spawn(move || {
        // SAFETY: of this thread alone, and no memory is involved.
        unsafe { libc::setfsuid(NOBODY) };
        let file = fs::OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(written).unwrap();
        Aio::new().write(&file, &Page([1; 4096]).0, 0);
    });
    gate.wait_for(1);
    let (done, wait) = std::sync::mpsc::channel();
    let changed = path.clone();
    let changer = std::thread::spawn(move || done.send(set(&changed, 0o700)));
    // It waits for the other, or the other's must not be the last word.
    let _ = wait.recv_timeout(std::time::Duration::from_secs(1));
    gate.open();
    writer.join().unwrap();
    let _ = changer.join().unwrap();
    assert_eq!(fs::metadata(m.source("f")).unwrap().mode() & 0o7777, 0o700);
    m.finish();
}
