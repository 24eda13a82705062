//! What is open. The kernel's file handle is a pointer to it.

use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::Arc;

use fuser::FileHandle;
use parking_lot::Mutex;
use sluice_core::AppId;
use sluice_storage::{DirEntries, FileRef};

use crate::apps::LastCaller;
use crate::inodes::Inode;

const SHARDS: usize = 16;

/// An open regular file.
pub(crate) struct Handle {
    pub(crate) file: FileRef,
    pub(crate) inode: Arc<Inode>,
    pub(crate) writable: bool,
    /// Of the flags that it was opened with, those that make each write durable.
    pub(crate) synchronous: i32,
    /// Reads and writes go through the kernel's page cache.
    pub(crate) cached: bool,
    /// Whose the writes are that the kernel makes on its own.
    pub(crate) opener: AppId,
    pub(crate) last: LastCaller,
}

/// An open directory.
pub(crate) struct DirHandle {
    pub(crate) inode: Arc<Inode>,
    /// Taken when reading starts at the beginning, so that positions mean the same until the next rewind.
    pub(crate) entries: Mutex<Arc<DirEntries>>,
}

/// All open objects of a kind. Looked at only when one is opened or closed.
pub(crate) struct Handles<T> {
    shards: Vec<Mutex<HashSet<u64>>>,
    kind: PhantomData<Arc<T>>,
}

impl<T> Handles<T> {
    pub(crate) fn new() -> Handles<T> {
        Handles { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), kind: PhantomData }
    }

    fn shard(&self, number: u64) -> &Mutex<HashSet<u64>> {
        // Neighbours differ in these bits.
        &self.shards[(number >> 6) as usize % SHARDS]
    }

    /// Opens; the number is the kernel's until [`Handles::take`].
    pub(crate) fn add(&self, handle: T) -> FileHandle {
        let number = Arc::into_raw(Arc::new(handle)).expose_provenance() as u64;
        self.shard(number).lock().insert(number);
        FileHandle(number)
    }

    /// The object behind a number that the kernel got from [`Handles::add`].
    pub(crate) fn get<'a>(&self, fh: &'a FileHandle) -> &'a T {
        // SAFETY: the kernel sends back the numbers it was given, and nothing for a handle after its release, which it
        // sends once, after all other requests for it were answered. Only `take`, for `release`, and `clear`, after the
        // last request, take the value back.
        unsafe { &*std::ptr::with_exposed_provenance(fh.0 as usize) }
    }

    /// As [`Handles::get`], for another thread.
    pub(crate) fn share(&self, fh: &FileHandle) -> Arc<T> {
        let pointer = std::ptr::with_exposed_provenance::<T>(fh.0 as usize);
        // SAFETY: as in `get`; the pointer came from `Arc::into_raw` and its count is above zero.
        unsafe {
            Arc::increment_strong_count(pointer);
            Arc::from_raw(pointer)
        }
    }

    /// Closes.
    pub(crate) fn take(&self, fh: FileHandle) -> Arc<T> {
        self.shard(fh.0).lock().remove(&fh.0);
        // SAFETY: as in `get`; called by `release` and `clear` only, which take the number off the list once.
        unsafe { Arc::from_raw(std::ptr::with_exposed_provenance(fh.0 as usize)) }
    }

    /// How many are open.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Closes what the kernel did not: it sends nothing for open files when a mount is aborted. To be called after the
    /// last request.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let numbers = std::mem::take(&mut *shard.lock());
            numbers.into_iter().for_each(|number| drop(self.take(FileHandle(number))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_opened_is_closed_once() {
        let (value, handles) = (Arc::new(7), Handles::new());
        let (a, b) = (handles.add(value.clone()), handles.add(value.clone()));
        assert_eq!((**handles.get(&a), handles.len()), (7, 2));
        let shared = handles.share(&a);
        drop(handles.take(a));
        assert_eq!((**shared, handles.len(), Arc::strong_count(&value)), (7, 1, 3));
        drop(shared);
        let _ = b;
        handles.clear();
        assert_eq!((handles.len(), Arc::strong_count(&value)), (0, 1));
    }
}
