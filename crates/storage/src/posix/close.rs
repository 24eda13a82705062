//! Closing a file and hearing about it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd};

use rustix::fs::fstatfs;

use super::cache::with_room;

/// Numbers of file systems whose writes can only fail at once, or when they are synced: those on local devices and in memory.
const LOCAL: [u32; 14] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683E, // Btrfs
    0x0102_1994, // tmpfs
    0x8584_58F6, // ramfs
    0xF2F5_2010, // F2FS
    0x2FC1_2FC1, // ZFS
    0xCA45_1A4E, // bcachefs
    0x794C_7630, // overlayfs
    0x2011_BAB0, // exFAT
    0x4D44,      // FAT
    0x7366_746E, // NTFS
    0x5265_4973, // ReiserFS
    0x3153_464A, // JFS
];

/// Whether closing a file may report an error there (NFS, SMB, Lustre, FUSE and whatever is not known here).
pub(super) fn reports(dir: BorrowedFd<'_>) -> bool {
    fstatfs(dir).is_ok_and(|stat| !LOCAL.contains(&(stat.f_type as u32)))
}

/// What closing the file reports; the file stays open.
pub(super) fn report(file: BorrowedFd<'_>) -> io::Result<()> {
    let copy = with_room(|| rustix::io::fcntl_dupfd_cloexec(file, 0))?.into_raw_fd();
    // SAFETY: the descriptor was made above and belongs to nobody else.
    if unsafe { libc::close(copy) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // Closed all the same.
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}
