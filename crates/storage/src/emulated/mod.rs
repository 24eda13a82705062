//! Emulated devices: real bytes, computed times.
//!
//! Wraps a storage and gives each of its targets one device model ([`sluice_device`]). A read or write does the real I/O
//! on the inner storage and returns when the *model* says that the device would have finished it (later, if the real I/O
//! took longer: an *overrun*, counted in the statistics). A device serves as many commands at a time as the model has
//! lanes (a disk: one); the calls that wait are its queue, from which the model picks as the device's firmware would.
//! `fsync` costs a flush on every target.
//! **The namespace costs nothing**: look-ups, attributes, truncation and so on pass straight through.
//!
//! Waiting is absolute: a command starts when the one before it on its lane was due, not when its thread woke up, so
//! errors of the timer do not add up while the device is busy.
//!
//! # Where a file's bytes are
//! Each 64 MiB of each piece of a file gets the next free 64 MiB of the device when first touched, so a file is contiguous
//! except where several grow at once. Space is not given back when a file is removed; when the device is full, the oldest
//! extents are taken again, and what they held gets a new place when next touched. This bounds the map to one entry for
//! each 64 MiB of the device.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use sluice_device::{Command, ModelError, Op, model};

use crate::{Attr, DirEntries, FileRef, Layout, NodeRef, OpenFile, SetAttr, StatFs, Storage};

mod queue;

use queue::Queue;
pub use queue::{DeviceStats, TimerError};

/// A storage with emulated service times; see the [module documentation](self).
pub struct Emulated {
    inner: Arc<dyn Storage>,
    model: String,
    queues: Vec<Queue>,
}

struct EmulatedFile(FileRef);

impl OpenFile for EmulatedFile {
    fn id(&self) -> u64 {
        self.0.id()
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
    fn raw_fd(&self, _target: usize) -> Option<RawFd> {
        None
    }
}

impl Emulated {
    /// Emulates a device of this model (a shipped one's name, or a path) for each target of `inner`. Target `i`'s has the
    /// seed `seed + i`.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn new(inner: Arc<dyn Storage>, model_name: &str, seed: u64) -> Result<Emulated, ModelError> {
        let queues = (0..u64::from(inner.layout().targets()))
            .map(|target| Ok(Queue::new(model(model_name, seed.wrapping_add(target))?)))
            .collect::<Result<_, _>>()?;
        Ok(Emulated { inner, model: model_name.to_owned(), queues })
    }

    fn transfer<R>(&self, op: Op, file: &FileRef, target: usize, range: (u64, usize), io: impl FnOnce() -> R) -> R {
        let queue = &self.queues[target];
        let commands = queue.place(file.id(), range.0, range.1 as u64);
        let mut io = Some(io);
        let mut result = None;
        for (address, len) in commands {
            let io = io.take();
            queue.serve(Command { op, address, len }, || {
                if let Some(io) = io {
                    result = Some(io());
                }
            });
        }
        result.unwrap_or_else(|| io.take().expect("not called if there was no command")())
    }
}

impl Storage for Emulated {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }
    fn describe(&self) -> String {
        format!("emulated {} over {}", self.model, self.inner.describe())
    }
    fn emulated(&self) -> bool {
        true
    }
    fn device_stats(&self) -> Vec<DeviceStats> {
        self.queues.iter().map(Queue::stats).collect()
    }

    fn file_path(&self, file: &FileRef) -> Option<Vec<u8>> {
        self.inner.file_path(inner(file))
    }

    fn root(&self) -> NodeRef {
        self.inner.root()
    }
    fn lookup(&self, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        self.inner.lookup(parent, name)
    }
    fn getattr(&self, node: &NodeRef) -> io::Result<Attr> {
        self.inner.getattr(node)
    }
    fn getattr_open(&self, file: &FileRef) -> io::Result<Attr> {
        self.inner.getattr_open(inner(file))
    }
    fn setattr(&self, node: &NodeRef, file: Option<&FileRef>, set: SetAttr) -> io::Result<Attr> {
        self.inner.setattr(node, file.map(inner), set)
    }
    fn readlink(&self, node: &NodeRef) -> io::Result<CString> {
        self.inner.readlink(node)
    }
    fn mknod(&self, parent: &NodeRef, name: &OsStr, mode: u32, rdev: u64, owner: (u32, u32)) -> io::Result<NodeRef> {
        self.inner.mknod(parent, name, mode, rdev, owner)
    }
    fn mkdir(&self, parent: &NodeRef, name: &OsStr, mode: u32, owner: (u32, u32)) -> io::Result<NodeRef> {
        self.inner.mkdir(parent, name, mode, owner)
    }
    fn symlink(&self, parent: &NodeRef, name: &OsStr, to: &OsStr, owner: (u32, u32)) -> io::Result<NodeRef> {
        self.inner.symlink(parent, name, to, owner)
    }
    fn link(&self, node: &NodeRef, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        self.inner.link(node, parent, name)
    }
    fn unlink(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()> {
        self.inner.unlink(parent, name)
    }
    fn rmdir(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()> {
        self.inner.rmdir(parent, name)
    }
    fn rename(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        new_parent: &NodeRef,
        new_name: &OsStr,
        flags: u32,
    ) -> io::Result<()> {
        self.inner.rename(parent, name, new_parent, new_name, flags)
    }
    fn readdir(&self, node: &NodeRef) -> io::Result<DirEntries> {
        self.inner.readdir(node)
    }
    fn statfs(&self) -> io::Result<StatFs> {
        self.inner.statfs()
    }
    fn setxattr(&self, node: &NodeRef, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()> {
        self.inner.setxattr(node, name, value, flags)
    }
    fn getxattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<Vec<u8>> {
        self.inner.getxattr(node, name)
    }
    fn listxattr(&self, node: &NodeRef) -> io::Result<Vec<u8>> {
        self.inner.listxattr(node)
    }
    fn removexattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<()> {
        self.inner.removexattr(node, name)
    }

    fn open(&self, node: &NodeRef, flags: i32) -> io::Result<FileRef> {
        Ok(Arc::new(EmulatedFile(self.inner.open(node, flags)?)))
    }
    fn create(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        mode: u32,
        flags: i32,
        owner: (u32, u32),
    ) -> io::Result<(NodeRef, FileRef)> {
        let (node, file) = self.inner.create(parent, name, mode, flags, owner)?;
        Ok((node, Arc::new(EmulatedFile(file))))
    }
    fn fsync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        let flush = Command { op: Op::Flush, address: 0, len: 0 };
        // Every device flushes at its own pace, so each needs someone to wait for it.
        std::thread::scope(|scope| {
            for queue in &self.queues[1..] {
                scope.spawn(|| queue.serve(flush, || ()));
            }
            self.queues[0].serve(flush, || self.inner.fsync(inner(file), metadata))
        })
    }
    fn fsync_dir(&self, node: &NodeRef) -> io::Result<()> {
        self.inner.fsync_dir(node)
    }
    fn fallocate(&self, file: &FileRef, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        self.inner.fallocate(inner(file), mode, offset, len)
    }
    fn seek_data(&self, file: &FileRef, offset: u64, whence: i32) -> io::Result<u64> {
        self.inner.seek_data(inner(file), offset, whence)
    }

    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        self.transfer(Op::Read, file, target, (offset, len), || self.inner.read(inner(file), target, offset, bufs))
    }
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        self.transfer(Op::Write, file, target, (offset, len), || self.inner.write(inner(file), target, offset, bufs))
    }
}

/// # Panics
/// If `file` is another storage's: a mistake in the program.
fn inner(file: &FileRef) -> &FileRef {
    &file.as_any().downcast_ref::<EmulatedFile>().expect("a file of another storage").0
}

#[cfg(test)]
mod tests;
