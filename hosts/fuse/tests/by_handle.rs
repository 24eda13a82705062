//! Files opened by handle, as an NFS server above the mount does, after the kernel has forgotten them.

mod common;

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sluice_fuse::CacheMode;

#[repr(C)]
#[derive(Clone)]
struct Handle {
    bytes: u32,
    kind: i32,
    id: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    let mut handle = Handle { bytes: 128, kind: 0, id: [0; 128] };
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut mount = 0;
    // SAFETY: the kernel writes at most the bytes announced, and one number.
    let result = unsafe {
        libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), &raw mut handle, &raw mut mount, 0)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    handle
}

fn open(mount: &File, handle: &Handle, flags: i32) -> io::Result<File> {
    let mut handle = handle.clone();
    // SAFETY: the kernel reads the handle and returns a new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut handle, flags);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(File::from_raw_fd(fd as i32)) }
    }
}

/// Makes the kernel forget what nobody uses.
fn forget(m: &common::Mount) -> bool {
    let until = std::time::Instant::now() + common::LIMIT;
    while m.handle().known_objects() > 0 {
        if fs::write("/proc/sys/vm/drop_caches", "2").is_err() {
            eprintln!("SKIP: the kernel cannot be asked to forget: this test did NOT run");
            return false;
        }
        assert!(std::time::Instant::now() < until, "{} objects are known", m.handle().known_objects());
    }
    true
}

fn text(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

fn check(m: &common::Mount) {
    if !common::is_root() {
        return eprintln!("SKIP: not root, cannot open by handle: this test did NOT run");
    }
    fs::create_dir_all(m.path("a/b")).unwrap();
    fs::write(m.path("a/b/file"), b"contents").unwrap();
    let (file, dir) = (handle_of(&m.path("a/b/file")), handle_of(&m.path("a/b")));
    m.settle(0);
    let root = File::open(m.path("")).unwrap();
    if !forget(m) {
        return;
    }
    assert_eq!(text(open(&root, &file, libc::O_RDONLY).unwrap()), "contents");
    // Directories are connected up to the top.
    let opened = open(&root, &dir, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
    let path = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
    assert_eq!(path, m.path("a/b"));
    drop(opened);
    assert!(forget(m));
    fs::rename(m.path("a/b/file"), m.path("moved")).unwrap();
    assert!(forget(m));
    assert_eq!(text(open(&root, &file, libc::O_RDONLY).unwrap()), "contents", "under another name");
    // A file with the same number is another file.
    assert!(forget(m));
    fs::remove_file(m.path("moved")).unwrap();
    for i in 0..100 {
        fs::write(m.path(&format!("new{i}")), b"somebody else's").unwrap();
    }
    m.settle(0);
    for known in [true, false] {
        assert!(known || forget(m));
        let error = open(&root, &file, libc::O_RDONLY).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "removed");
    }
    drop(root);
}

#[test]
fn what_was_forgotten_is_found_by_handle() {
    let Some(m) = common::Mount::new(CacheMode::Auto) else { return };
    check(&m);
    m.finish();
}

#[test]
fn what_was_forgotten_is_found_by_handle_striped() {
    let Some(m) = common::Mount::striped(CacheMode::Auto, 2) else { return };
    check(&m);
    m.finish();
}
