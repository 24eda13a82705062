//! What programs expect of a file system beyond reading and writing.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::common::{Place, is_root};
use crate::{Program, bash, policies, shell, succeeds};

pub const SEMANTICS: [(&str, Program); 8] = [
    ("append", append),
    ("mapping", mapping),
    ("sparse files", sparse),
    ("allocation", allocation),
    ("unlinked files", unlinked),
    ("locks", locks),
    ("extended attributes", attributes),
    ("other users", other_users),
];

fn append(dir: &Path) {
    shell(dir, include_str!("scripts/append.sh"));
}

/// A shared mapping and the file are the same bytes.
fn mapping(dir: &Path) {
    const LEN: usize = 300_000;
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(dir.join("mapped")).unwrap();
    let before: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    file.write_all_at(&before, 0).unwrap();
    // SAFETY: a fresh mapping at an address of the kernel's choice, taken away below.
    let at = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), LEN, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    // SAFETY: so many bytes are mapped there, and only this reference uses them.
    let mapped = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), LEN) };
    assert!(mapped == before, "the mapping shows what was written");
    let mut after = before;
    for page in (0..LEN).step_by(4096) {
        mapped[page] = 0xAA;
        after[page] = 0xAA;
    }
    // SAFETY: the mapping made above.
    unsafe {
        assert_eq!(libc::msync(at, LEN, libc::MS_SYNC), 0, "{}", std::io::Error::last_os_error());
        assert_eq!(libc::munmap(at, LEN), 0);
    }
    drop(file);
    assert!(fs::read(dir.join("mapped")).unwrap() == after, "the file shows what was mapped");
}

fn sparse(dir: &Path) {
    shell(dir, include_str!("scripts/sparse.sh"));
}

fn allocation(dir: &Path) {
    shell(dir, include_str!("scripts/allocation.sh"));
}

/// An open file without a name lives until it is closed.
fn unlinked(dir: &Path) {
    let path = dir.join("gone");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let data: Vec<u8> = (0..200_000).map(|at| (at % 253) as u8).collect();
    file.write_all_at(&data, 1000).unwrap();
    file.set_len(150_000).unwrap();
    file.sync_all().unwrap();
    let mut back = vec![0; 149_000];
    file.read_exact_at(&mut back, 1000).unwrap();
    assert!(back == data[..149_000]);
    let meta = file.metadata().unwrap();
    assert_eq!((meta.len(), meta.nlink()), (150_000, 0));
    File::create_new(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "the name is another file's now");
}

/// 10,000 entries: listed, looked at, some removed and made anew under each algorithm.
pub fn large_directory(place: &Place, dir: &Path) {
    let name = |n: usize| dir.join(format!("a-file-with-a-long-name-{n:05}"));
    for n in 0..10_000 {
        File::create_new(name(n)).unwrap();
    }
    let list = || {
        let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let all: Vec<_> = (0..10_000).map(name).collect();
    for (round, info) in policies().into_iter().enumerate() {
        place.good(&["policy", "@mnt", info.name]);
        assert!(list() == all, "each once, under {}", info.name);
        assert!(all.iter().all(|path| fs::metadata(path).unwrap().is_file()));
        let changed = round * 100..(round + 1) * 100;
        changed.clone().for_each(|n| fs::remove_file(name(n)).unwrap());
        assert_eq!(list().len(), 9_900);
        changed.for_each(|n| fs::write(name(n), b"new").unwrap());
    }
}

/// Of both kinds, between processes. That they also hold under load SQLite shows.
fn locks(dir: &Path) {
    shell(dir, include_str!("scripts/locks.sh"));
}

fn attributes(dir: &Path) {
    let path = dir.join("file");
    fs::write(&path, b"x").unwrap();
    match rustix::fs::setxattr(&path, "user.colour", b"blue", XattrFlags::CREATE) {
        Err(Errno::OPNOTSUPP) => return eprintln!("SKIP: no user attributes in the temporary directory"),
        result => result.unwrap(),
    }
    rustix::fs::setxattr(&path, "user.large", &[7; 2000], XattrFlags::empty()).unwrap();
    assert_eq!(rustix::fs::setxattr(&path, "user.colour", b"", XattrFlags::CREATE), Err(Errno::EXIST));
    let renamed = dir.join("renamed");
    fs::rename(&path, &renamed).unwrap();
    let mut value = [0; 4000];
    let len = rustix::fs::getxattr(&renamed, "user.colour", &mut value).unwrap();
    assert_eq!(&value[..len], b"blue");
    let len = rustix::fs::getxattr(&renamed, "user.large", &mut value).unwrap();
    assert_eq!(value[..len], [7; 2000]);
    let len = rustix::fs::listxattr(&renamed, &mut value).unwrap();
    let names: Vec<&[u8]> = value[..len].split(|byte| *byte == 0).collect();
    assert!(names.contains(&&b"user.colour"[..]) && names.contains(&&b"user.large"[..]));
    rustix::fs::removexattr(&renamed, "user.colour").unwrap();
    assert_eq!(rustix::fs::getxattr(&renamed, "user.colour", &mut value), Err(Errno::NODATA));
}

/// The mount lets other users in, and keeps them from what is not theirs.
fn other_users(dir: &Path) {
    if !is_root() {
        return eprintln!("SKIP: not root, cannot become another user");
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(dir.join("secret"), b"secret").unwrap();
    fs::set_permissions(dir.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(dir.join("public"), b"hello").unwrap();
    let inner = bash(include_str!("scripts/other_user.sh"));
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(inner.get_program());
    succeeds(command.args(inner.get_args()).current_dir(dir));
    for (name, mode) in [("inner", 0o750), ("inner/theirs", 0o640)] {
        let meta = fs::metadata(dir.join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (65534, 65534, mode), "{name}");
    }
    assert_eq!(fs::read(dir.join("inner/theirs")).unwrap(), b"mine\nmore\n");
}
