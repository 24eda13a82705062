//! A storage that does nothing, at once: for measuring what is around it.
//!
//! It has one directory in which every decimal number is a regular file of the same size. Reads leave the buffers as they
//! are, writes are forgotten, and nothing can be made, removed or changed.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::{Attr, DirEntries, FileRef, Layout, Node, NodeRef, OpenFile, SetAttr, StatFs, Storage};

/// See the [module documentation](self).
pub struct NullStorage {
    layout: Layout,
    size: u64,
}

/// Id 1 is the top directory, file `n` has id `n + 2`.
struct Object(u64);

impl Node for Object {
    fn id(&self) -> u64 {
        self.0
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl OpenFile for Object {
    fn id(&self) -> u64 {
        self.0
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
    fn raw_fd(&self, _target: usize) -> Option<RawFd> {
        None
    }
    fn never_waits(&self) -> bool {
        true
    }
}

impl NullStorage {
    /// Every file has `size` bytes.
    #[must_use]
    pub fn new(layout: Layout, size: u64) -> NullStorage {
        NullStorage { layout, size }
    }

    fn attr(&self, ino: u64) -> Attr {
        let (mode, size) = if ino == 1 { (libc::S_IFDIR | 0o755, 0) } else { (libc::S_IFREG | 0o644, self.size) };
        let (uid, gid, time) = (0, 0, (0, 0));
        Attr {
            ino,
            mode,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size,
            blocks: 0,
            blksize: 4096,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }
}

const READ_ONLY: Errno = Errno::ROFS;

impl Storage for NullStorage {
    fn layout(&self) -> Layout {
        self.layout
    }
    fn describe(&self) -> String {
        "nothing (reads and writes do not happen)".to_owned()
    }
    fn root(&self) -> NodeRef {
        Arc::new(Object(1))
    }
    fn lookup(&self, _: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        let number: Option<u32> = name.to_str().and_then(|name| name.parse().ok());
        Ok(Arc::new(Object(u64::from(number.ok_or(Errno::NOENT)?) + 2)))
    }
    fn getattr(&self, node: &NodeRef) -> io::Result<Attr> {
        Ok(self.attr(node.id()))
    }
    fn getattr_open(&self, file: &FileRef) -> io::Result<Attr> {
        Ok(self.attr(file.id()))
    }
    fn setattr(&self, _: &NodeRef, _: Option<&FileRef>, _: SetAttr) -> io::Result<Attr> {
        Err(READ_ONLY.into())
    }
    fn readlink(&self, _: &NodeRef) -> io::Result<CString> {
        Err(Errno::INVAL.into())
    }
    fn mknod(&self, _: &NodeRef, _: &OsStr, _: u32, _: u64, _: (u32, u32)) -> io::Result<NodeRef> {
        Err(READ_ONLY.into())
    }
    fn mkdir(&self, _: &NodeRef, _: &OsStr, _: u32, _: (u32, u32)) -> io::Result<NodeRef> {
        Err(READ_ONLY.into())
    }
    fn symlink(&self, _: &NodeRef, _: &OsStr, _: &OsStr, _: (u32, u32)) -> io::Result<NodeRef> {
        Err(READ_ONLY.into())
    }
    fn link(&self, _: &NodeRef, _: &NodeRef, _: &OsStr) -> io::Result<NodeRef> {
        Err(READ_ONLY.into())
    }
    fn unlink(&self, _: &NodeRef, _: &OsStr) -> io::Result<()> {
        Err(READ_ONLY.into())
    }
    fn rmdir(&self, _: &NodeRef, _: &OsStr) -> io::Result<()> {
        Err(READ_ONLY.into())
    }
    fn rename(&self, _: &NodeRef, _: &OsStr, _: &NodeRef, _: &OsStr, _: u32) -> io::Result<()> {
        Err(READ_ONLY.into())
    }
    fn readdir(&self, _: &NodeRef) -> io::Result<DirEntries> {
        Ok(DirEntries::new())
    }
    fn statfs(&self) -> io::Result<StatFs> {
        Ok(StatFs::default())
    }
    fn setxattr(&self, _: &NodeRef, _: &OsStr, _: &[u8], _: i32) -> io::Result<()> {
        Err(READ_ONLY.into())
    }
    fn getxattr(&self, _: &NodeRef, _: &OsStr) -> io::Result<Vec<u8>> {
        Err(Errno::NODATA.into())
    }
    fn listxattr(&self, _: &NodeRef) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn removexattr(&self, _: &NodeRef, _: &OsStr) -> io::Result<()> {
        Err(READ_ONLY.into())
    }
    fn open(&self, node: &NodeRef, _: i32) -> io::Result<FileRef> {
        if node.id() == 1 { Err(Errno::ISDIR.into()) } else { Ok(Arc::new(Object(node.id()))) }
    }
    fn create(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        _: u32,
        flags: i32,
        _: (u32, u32),
    ) -> io::Result<(NodeRef, FileRef)> {
        let node = self.lookup(parent, name).map_err(|_| READ_ONLY)?;
        let file = self.open(&node, flags)?;
        Ok((node, file))
    }
    fn fsync(&self, _: &FileRef, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn fsync_dir(&self, _: &NodeRef) -> io::Result<()> {
        Ok(())
    }
    fn fallocate(&self, _: &FileRef, _: i32, _: u64, _: u64) -> io::Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
    fn seek_data(&self, _: &FileRef, offset: u64, whence: i32) -> io::Result<u64> {
        match whence {
            _ if offset >= self.size => Err(Errno::NXIO.into()),
            libc::SEEK_HOLE => Ok(self.size),
            _ => Ok(offset),
        }
    }
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        debug_assert!(file.id() > 1);
        let size = self.layout.target_size(target as u32, self.size);
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        Ok(len.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX)))
    }
    fn write(&self, _: &FileRef, _: usize, _: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }
}
