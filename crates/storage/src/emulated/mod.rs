//! Emulated devices: real bytes, computed times.
//!
//! Wraps a storage's data and gives each of its targets one device model ([`sluice_device`]). A read or write does the real I/O
//! on the inner storage and returns when the *model* says that the device would have finished it (later, if the real I/O
//! took longer: an *overrun*, counted in the statistics). A device serves as many commands at a time as the model has
//! lanes (a disk: one); the calls that wait are its queue, from which the model picks as the device's firmware would.
//! Syncing costs a flush on every target.
//! **The namespace costs nothing**: look-ups, attributes, truncation and so on do not come here.
//!
//! Waiting is absolute: a command starts when the one before it on its lane was due, not when its thread woke up, so
//! errors of the timer do not add up while the device is busy.
//!
//! # Where a file's bytes are
//! A file that is there when it is first touched, like the image of a disk, lies in one piece on the device. Each further
//! 64 MiB of each piece of a file gets the next free 64 MiB of the device when first touched, so a file that grows is
//! contiguous, too, except where several grow at once. Space is not given back when a file is removed; when the device is full, the oldest
//! extents are taken again, and what they held gets a new place when next touched. This bounds the map to one entry for
//! each 64 MiB of the device.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use sluice_device::{Command, ModelError, Op, model};

use crate::{Data, FileRef, Layout};

mod queue;

use queue::Queue;
pub use queue::{DeviceStats, EXTENT, TimerError};

/// Data with emulated service times; see the [module documentation](self).
pub struct Emulated {
    inner: Arc<dyn Data>,
    model: String,
    queues: Vec<Queue>,
}

impl Emulated {
    /// Emulates a device of this model (a shipped one's name, or a path) for each target of `inner`. Target `i`'s has the
    /// seed `seed + i`.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn new(inner: Arc<dyn Data>, model_name: &str, seed: u64) -> Result<Emulated, ModelError> {
        let queues = (0..u64::from(inner.layout().targets()))
            .map(|target| Ok(Queue::new(model(model_name, seed.wrapping_add(target))?)))
            .collect::<Result<_, _>>()?;
        Ok(Emulated { inner, model: model_name.to_owned(), queues })
    }

    /// Has the devices write what they hold and forget what they have read: what comes next pays for nothing that was before, and
    /// gains nothing by it.
    pub fn settle(&self) {
        self.flush_and(|| ());
        self.queues.iter().for_each(Queue::drop_read_cache);
    }

    /// Flushes every device, and does `io` meanwhile.
    fn flush_and<R>(&self, io: impl FnOnce() -> R) -> R {
        let flush = Command { op: Op::Flush, address: 0, len: 0 };
        // Every device flushes at its own pace, so each needs someone to wait for it.
        let wait = move |queue: &Queue| queue.serve(flush, || ());
        std::thread::scope(|scope| {
            let start = |queue| std::thread::Builder::new().spawn_scoped(scope, move || wait(queue)).is_err();
            let alone: Vec<&Queue> = self.queues[1..].iter().filter(|queue| start(queue)).collect();
            let result = self.queues[0].serve(flush, io);
            // Those that the system refused a thread are waited for here.
            alone.into_iter().for_each(wait);
            result
        })
    }

    /// Size of a target's part of a file, if it has no hole at the end.
    fn size_on(&self, target: usize, file: &FileRef) -> Option<u64> {
        let size = self.inner.size_at_least(file, u64::MAX).ok()?;
        Some(self.inner.layout().of(&**file).target_size(target as u32, size))
    }

    fn transfer<R>(&self, op: Op, file: &FileRef, target: usize, range: (u64, usize), io: impl FnOnce() -> R) -> R {
        let queue = &self.queues[target];
        // If its size is not known it is laid out as it is touched.
        let size = || self.size_on(target, file).unwrap_or(0);
        let commands = queue.place(file.id(), range.0, range.1 as u64, size);
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

impl Data for Emulated {
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

    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        // Where a file ends no device is asked: readers look there for what is behind a short read.
        if offset > 0 && self.size_on(target, file).is_some_and(|size| size <= offset) {
            return self.inner.read(file, target, offset, bufs);
        }
        let len = bufs.iter().map(|buf| buf.len()).sum();
        self.transfer(Op::Read, file, target, (offset, len), || self.inner.read(file, target, offset, bufs))
    }
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        self.transfer(Op::Write, file, target, (offset, len), || self.inner.write(file, target, offset, bufs))
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.flush_and(|| self.inner.sync(file, metadata))
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.inner.size_at_least(file, end)
    }
    fn trim(&self, file: &FileRef, before: u64, range: Range<u64>, written: u64) -> io::Result<()> {
        self.inner.trim(file, before, range, written)
    }
}

#[cfg(test)]
mod tests;
