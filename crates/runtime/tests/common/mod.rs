//! A volume over real files in a temporary directory, with faults if wanted.
#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::{CString, OsStr};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use sluice_runtime::{Done, Host};
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::striped::{StripedOptions, StripedStorage};
use sluice_storage::{Attr, DirEntries, FileRef, Layout, NodeRef, OpenFile, SetAttr, StatFs, Storage};

/// A plain directory, or several striped by 4 KiB.
pub fn storage(dir: &std::path::Path, targets: usize) -> Arc<dyn Storage> {
    if targets == 1 {
        return Arc::new(PosixStorage::open(dir, PosixOptions::default()).unwrap());
    }
    let dirs: Vec<_> = (0..targets).map(|target| dir.join(format!("t{target}"))).collect();
    dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    Arc::new(StripedStorage::create_or_open(&dirs, StripedOptions { stripe: Some(4096), direct: false }).unwrap())
}

pub fn create(storage: &Arc<dyn Storage>, name: &str) -> FileRef {
    storage.create(&storage.root(), OsStr::new(name), 0o644, libc::O_RDWR, (0, 0)).unwrap().1
}

/// A ticket, and the bytes read, the number of bytes written, or the error.
pub type Ended = (u64, Result<Vec<u8>, i32>);

/// Keeps what it is told.
#[derive(Default)]
pub struct Results {
    ended: Mutex<Vec<Ended>>,
    more: Condvar,
}

impl Host for Results {
    type Ticket = u64;

    fn complete(&self, ticket: u64, result: io::Result<Done<'_>>) {
        let result = match result {
            Ok(Done::Read(data)) => Ok(data.to_vec()),
            Ok(Done::Written(bytes)) => Ok((bytes as u64).to_le_bytes().to_vec()),
            Err(error) => Err(error.raw_os_error().unwrap_or(-1)),
        };
        self.ended.lock().push((ticket, result));
        self.more.notify_all();
    }
}

impl Results {
    /// Waits for `count` results and takes them, by ticket.
    pub fn take(&self, count: usize) -> Vec<Ended> {
        let mut ended = self.ended.lock();
        while ended.len() < count {
            self.more.wait(&mut ended);
        }
        let mut taken = std::mem::take(&mut *ended);
        taken.sort_by_key(|(ticket, _)| *ticket);
        taken
    }
}

/// A storage that fails at one byte, gives less than asked, or blocks while a gate is closed.
pub struct Faulty {
    inner: Arc<dyn Storage>,
    /// Calls that touch this byte of a target's file fail or stop before it.
    bad: u64,
    /// Every call moves at most this many bytes.
    short: usize,
    calls: AtomicU64,
    gate: Mutex<bool>,
    opened: Condvar,
}

struct FaultyFile(FileRef);

impl OpenFile for FaultyFile {
    fn id(&self) -> u64 {
        self.0.id()
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
    fn raw_fd(&self, _: usize) -> Option<RawFd> {
        None
    }
}

fn inner(file: &FileRef) -> &FileRef {
    &file.as_any().downcast_ref::<FaultyFile>().expect("a file of this storage").0
}

impl Faulty {
    pub fn new(inner: Arc<dyn Storage>) -> Faulty {
        let (calls, gate, opened) = (AtomicU64::new(0), Mutex::new(true), Condvar::new());
        Faulty { inner, bad: u64::MAX, short: usize::MAX, calls, gate, opened }
    }

    #[must_use]
    pub fn with_faults(self, bad: u64, short: usize) -> Faulty {
        Faulty { bad, short, ..self }
    }

    pub fn set_open(&self, open: bool) {
        *self.gate.lock() = open;
        self.opened.notify_all();
    }

    /// Calls that have begun.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// How many bytes of `len` at `offset` to move.
    fn allowed(&self, offset: u64, len: usize) -> io::Result<usize> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut open = self.gate.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
        if offset == self.bad {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let before_bad = self.bad.checked_sub(offset).map_or(len, |gap| usize::try_from(gap).unwrap_or(len));
        Ok(len.min(before_bad).min(self.short))
    }
}

macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result { self.inner.$name($($arg),*) })*
    };
}

impl Storage for Faulty {
    forward! {
        fn layout() -> Layout;
        fn describe() -> String;
        fn root() -> NodeRef;
        fn lookup(parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef>;
        fn getattr(node: &NodeRef) -> io::Result<Attr>;
        fn readlink(node: &NodeRef) -> io::Result<CString>;
        fn mknod(parent: &NodeRef, name: &OsStr, mode: u32, rdev: u64, owner: (u32, u32)) -> io::Result<NodeRef>;
        fn mkdir(parent: &NodeRef, name: &OsStr, mode: u32, owner: (u32, u32)) -> io::Result<NodeRef>;
        fn symlink(parent: &NodeRef, name: &OsStr, to: &OsStr, owner: (u32, u32)) -> io::Result<NodeRef>;
        fn link(node: &NodeRef, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef>;
        fn unlink(parent: &NodeRef, name: &OsStr) -> io::Result<()>;
        fn rmdir(parent: &NodeRef, name: &OsStr) -> io::Result<()>;
        fn rename(parent: &NodeRef, name: &OsStr, to: &NodeRef, new_name: &OsStr, flags: u32) -> io::Result<()>;
        fn readdir(node: &NodeRef) -> io::Result<DirEntries>;
        fn statfs() -> io::Result<StatFs>;
        fn setxattr(node: &NodeRef, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()>;
        fn getxattr(node: &NodeRef, name: &OsStr) -> io::Result<Vec<u8>>;
        fn listxattr(node: &NodeRef) -> io::Result<Vec<u8>>;
        fn removexattr(node: &NodeRef, name: &OsStr) -> io::Result<()>;
        fn fsync_dir(node: &NodeRef) -> io::Result<()>;
    }

    fn getattr_open(&self, file: &FileRef) -> io::Result<Attr> {
        self.inner.getattr_open(inner(file))
    }
    fn setattr(&self, node: &NodeRef, file: Option<&FileRef>, set: SetAttr) -> io::Result<Attr> {
        self.inner.setattr(node, file.map(inner), set)
    }
    fn open(&self, node: &NodeRef, flags: i32) -> io::Result<FileRef> {
        Ok(Arc::new(FaultyFile(self.inner.open(node, flags)?)))
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
        Ok((node, Arc::new(FaultyFile(file))))
    }
    fn fsync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.inner.fsync(inner(file), metadata)
    }
    fn fallocate(&self, file: &FileRef, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        self.inner.fallocate(inner(file), mode, offset, len)
    }
    fn seek_data(&self, file: &FileRef, offset: u64, whence: i32) -> io::Result<u64> {
        self.inner.seek_data(inner(file), offset, whence)
    }

    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let mut memory = vec![0; self.allowed(offset, len)?];
        let read = self.inner.read(inner(file), target, offset, &mut [IoSliceMut::new(&mut memory)])?;
        let mut left = &memory[..read];
        for buf in bufs {
            let (now, later) = left.split_at(left.len().min(buf.len()));
            buf[..now.len()].copy_from_slice(now);
            left = later;
        }
        Ok(read)
    }

    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let memory: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let allowed = self.allowed(offset, memory.len())?;
        self.inner.write(inner(file), target, offset, &[IoSlice::new(&memory[..allowed])])
    }
}

/// Numbers from a seed (Knuth's MMIX generator).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
