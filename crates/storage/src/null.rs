//! A storage that does nothing, at once: for measuring what is around it.
//!
//! It has one directory in which every decimal number is a regular file of the same size. Reads leave the buffers as they
//! are, writes are forgotten, and nothing can be made, removed or changed.
//!
//! [`NullStorage::asynchronous`] takes every transfer that is started and ends it from a thread of its own.

use std::ffi::{CString, OsStr};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::io::Errno;

use crate::{
    Attr, Creator, Data, DirEntries, Direction, FileRef, Layout, Namespace, Node, NodeRef, OpenFile, SetAttr, Started,
    StatFs, Transfer,
};

/// See the [module documentation](self).
pub struct NullStorage {
    layout: Layout,
    size: u64,
    ender: Option<Ender>,
}

/// The thread that ends transfers. It ends itself when the channel closes.
struct Ender {
    transfers: Sender<Transfer>,
    thread: JoinHandle<()>,
}

/// Id 1 is the top directory, file `n` has id `n + 2`.
struct Object(u64);

impl Node for Object {
    fn id(&self) -> u64 {
        self.0
    }
}

impl OpenFile for Object {
    fn id(&self) -> u64 {
        self.0
    }
}

impl NullStorage {
    /// Every file has `size` bytes.
    #[must_use]
    pub fn new(layout: Layout, size: u64) -> NullStorage {
        NullStorage { layout, size, ender: None }
    }

    /// As [`NullStorage::new`], but transfers that are started end from another thread, in their order.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn asynchronous(layout: Layout, size: u64) -> io::Result<NullStorage> {
        let (transfers, started) = channel::<Transfer>();
        let end = move || {
            for transfer in started {
                let len = moved(layout, size, &transfer);
                transfer.end(Ok(len));
            }
        };
        let thread = std::thread::Builder::new().name("sluice-null".to_owned()).spawn(end)?;
        Ok(NullStorage { layout, size, ender: Some(Ender { transfers, thread }) })
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

impl Namespace for NullStorage {
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
    fn mknod(&self, _: &NodeRef, _: &OsStr, _: u32, _: u64, _: &Creator) -> io::Result<NodeRef> {
        Err(READ_ONLY.into())
    }
    fn mkdir(&self, _: &NodeRef, _: &OsStr, _: u32, _: &Creator) -> io::Result<NodeRef> {
        Err(READ_ONLY.into())
    }
    fn symlink(&self, _: &NodeRef, _: &OsStr, _: &OsStr, _: &Creator) -> io::Result<NodeRef> {
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
    fn setxattr(&self, _: &NodeRef, _: &OsStr, _: &[u8], _: i32, _: &Creator) -> io::Result<()> {
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
        _: &Creator,
    ) -> io::Result<(NodeRef, FileRef)> {
        let node = self.lookup(parent, name).map_err(|_| READ_ONLY)?;
        let file = self.open(&node, flags)?;
        Ok((node, file))
    }
    fn fsync_dir(&self, _: &NodeRef) -> io::Result<()> {
        Ok(())
    }
    fn fallocate(&self, _: &FileRef, _: i32, _: u64, _: u64, _: &Creator) -> io::Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
    fn seek_data(&self, _: &FileRef, offset: u64, whence: i32) -> io::Result<u64> {
        match whence {
            _ if offset >= self.size => Err(Errno::NXIO.into()),
            libc::SEEK_HOLE => Ok(self.size),
            _ => Ok(offset),
        }
    }
}

impl Data for NullStorage {
    fn layout(&self) -> Layout {
        self.layout
    }
    fn describe(&self) -> String {
        "nothing (reads and writes do not happen)".to_owned()
    }
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        debug_assert!(file.id() > 1);
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        Ok(len.min(left(self.layout, self.size, target, offset)))
    }
    fn write(&self, _: &FileRef, _: usize, _: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }
    fn sync(&self, _: &FileRef, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn never_waits(&self, _: &FileRef) -> bool {
        self.ender.is_none()
    }
    fn size_at_least(&self, _: &FileRef, _: u64) -> io::Result<u64> {
        Ok(self.size)
    }
    fn start(&self, transfer: Transfer) -> Started {
        match &self.ender {
            None => Started::Unsupported(transfer),
            Some(ender) => match ender.transfers.send(transfer) {
                Ok(()) => Started::Accepted,
                Err(back) => Started::Unsupported(back.0),
            },
        }
    }
}

impl Drop for NullStorage {
    fn drop(&mut self) {
        let Some(Ender { transfers, thread }) = self.ender.take() else { return };
        drop(transfers);
        // Whoever is told of an end may drop the last reference.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

/// Bytes that a target's file has from `offset` on.
fn left(layout: Layout, size: u64, target: usize, offset: u64) -> usize {
    let size = layout.target_size(target as u32, size);
    usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX)
}

fn moved(layout: Layout, size: u64, transfer: &Transfer) -> usize {
    match transfer.direction {
        Direction::Read => transfer.len().min(left(layout, size, transfer.target, transfer.offset)),
        Direction::Write => transfer.len(),
    }
}
