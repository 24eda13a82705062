//! File handles: names for objects that outlive descriptors, and that no other object ever has (they contain the inode's
//! generation).
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::{Errno, Result};

const MAX: usize = libc::MAX_HANDLE_SZ as usize;

/// As the system has it, with room for the longest handle.
#[repr(C)]
struct Raw {
    bytes: libc::c_uint,
    kind: libc::c_int,
    data: [u8; MAX],
}

/// Kind (4 bytes) and content of a handle, and the mount that it is on.
pub(super) fn of(fd: impl AsFd) -> Result<(Box<[u8]>, i32)> {
    at(fd, c"", libc::AT_EMPTY_PATH)
}

/// As [`of`] for a name in a directory; symbolic links are not followed.
pub(super) fn at(dir: impl AsFd, name: &CStr, flags: i32) -> Result<(Box<[u8]>, i32)> {
    let mut raw = Raw { bytes: MAX as u32, kind: 0, data: [0; MAX] };
    let mut mount = 0;
    // SAFETY: `raw` has the layout of `file_handle` and says how much room it has.
    let done = unsafe {
        let handle = std::ptr::from_mut(&mut raw).cast();
        libc::name_to_handle_at(dir.as_fd().as_raw_fd(), name.as_ptr(), handle, &raw mut mount, flags)
    };
    if done != 0 {
        return Err(last_error());
    }
    let used = (raw.bytes as usize).min(MAX);
    Ok(([&raw.kind.to_ne_bytes()[..], &raw.data[..used]].concat().into(), mount))
}

/// Opens (`O_PATH`) the object that a handle from [`of`] means. `mount`: any descriptor on its file system that is not
/// `O_PATH`.
///
/// # Errors
/// `ESTALE` if it is gone; `EPERM` without the right to.
pub(super) fn open(mount: &OwnedFd, handle: &[u8]) -> Result<OwnedFd> {
    let (kind, data) = handle.split_at(4);
    let kind = libc::c_int::from_ne_bytes(kind.try_into().expect("4 bytes"));
    let mut raw = Raw { bytes: data.len() as u32, kind, data: [0; MAX] };
    // The system makes none that is longer.
    raw.data.get_mut(..data.len()).ok_or(Errno::STALE)?.copy_from_slice(data);
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: as above.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), std::ptr::from_mut(&mut raw).cast(), flags) };
    // SAFETY: a new descriptor that nobody else knows.
    if fd < 0 { Err(last_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
