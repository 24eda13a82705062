//! A storage that waits or fails where a test wants it to.

use std::collections::HashSet;
use std::ffi::{CString, OsStr};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use sluice_storage::{Attr, Creator, Data, DirEntries, FileRef, Layout, Namespace, NodeRef, SetAttr, StatFs, Storage};

/// Stops those who come until it is opened.
#[derive(Default)]
pub struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock();
        state.1 += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| !state.0);
    }

    pub fn open(&self) {
        self.state.lock().0 = true;
        self.changed.notify_all();
    }

    /// Waits until so many have come.
    pub fn wait_for(&self, arrivals: usize) {
        let mut state = self.state.lock();
        let late = self.changed.wait_while_for(&mut state, |state| state.1 < arrivals, super::LIMIT).timed_out();
        assert!(!late, "{} came, not {arrivals}", state.1);
    }
}

/// What to do at the operations that wait.
#[derive(Default)]
pub struct Hooks {
    pub gate: Option<Arc<Gate>>,
    /// Who writes waits.
    pub writes: Option<Arc<Gate>>,
    /// Who gives a file these permissions waits.
    pub mode: Option<(u32, Arc<Gate>)>,
    /// What closing reports, if not 0.
    pub at_close: AtomicI32,
    /// A name that is listed and cannot be looked up, as the mount of another user's program.
    pub closed: Option<&'static str>,
    /// Lists say of nothing what it is, as those of some file systems.
    pub untyped: bool,
    /// A byte of each file that cannot be read (`EIO`), and where there is no space for one that is written, if not 0.
    pub bad: AtomicU64,
    /// Numbers of files that cannot be synced (`EIO`).
    pub unsyncable: Mutex<HashSet<u64>>,
}

impl Hooks {
    /// How many bytes of `len` from `offset` on can be moved.
    fn room(&self, offset: u64, len: usize, error: i32) -> io::Result<usize> {
        match self.bad.load(Ordering::SeqCst) {
            bad if bad == 0 || bad < offset || bad >= offset + len as u64 => Ok(len),
            bad if bad == offset => Err(io::Error::from_raw_os_error(error)),
            bad => Ok((bad - offset) as usize),
        }
    }

    fn pass(&self) {
        if let Some(gate) = &self.gate {
            gate.pass();
        }
    }
}

pub fn wrap(storage: Storage, hooks: &Arc<Hooks>) -> Storage {
    let data = Arc::new(HookedData(storage.data, hooks.clone()));
    Storage { namespace: Arc::new(HookedNames(storage.namespace, hooks.clone())), data }
}

struct HookedData(Arc<dyn Data>, Arc<Hooks>);
struct HookedNames(Arc<dyn Namespace>, Arc<Hooks>);

macro_rules! pass_on {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($arg: $kind),*) -> $out { self.0.$name($($arg),*) })*
    };
}

impl Data for HookedData {
    pass_on! {
        fn layout() -> Layout;
        fn describe() -> String;
        fn size_at_least(file: &FileRef, end: u64) -> io::Result<u64>;
    }
    fn read(&self, file: &FileRef, on: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        let [buf, ..] = bufs else { return Ok(0) };
        let room = self.1.room(offset, buf.len(), libc::EIO)?;
        self.0.read(file, on, offset, &mut [io::IoSliceMut::new(&mut buf[..room])])
    }
    fn write(&self, file: &FileRef, on: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let [buf, ..] = bufs else { return Ok(0) };
        if let Some(gate) = &self.1.writes {
            gate.pass();
        }
        let room = self.1.room(offset, buf.len(), libc::ENOSPC)?;
        self.0.write(file, on, offset, &[io::IoSlice::new(&buf[..room])])
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.1.pass();
        match self.1.unsyncable.lock().contains(&file.id()) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => self.0.sync(file, metadata),
        }
    }
}

impl Namespace for HookedNames {
    pass_on! {
        fn root() -> NodeRef;
        fn getattr(node: &NodeRef) -> io::Result<Attr>;
        fn getattr_open(file: &FileRef) -> io::Result<Attr>;
        fn readlink(node: &NodeRef) -> io::Result<CString>;
        fn mknod(parent: &NodeRef, name: &OsStr, mode: u32, rdev: u64, creator: &Creator) -> io::Result<NodeRef>;
        fn mkdir(parent: &NodeRef, name: &OsStr, mode: u32, creator: &Creator) -> io::Result<NodeRef>;
        fn symlink(parent: &NodeRef, name: &OsStr, to: &OsStr, creator: &Creator) -> io::Result<NodeRef>;
        fn link(node: &NodeRef, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef>;
        fn unlink(parent: &NodeRef, name: &OsStr) -> io::Result<()>;
        fn rmdir(parent: &NodeRef, name: &OsStr) -> io::Result<()>;
        fn rename(a: &NodeRef, b: &OsStr, c: &NodeRef, d: &OsStr, flags: u32) -> io::Result<()>;
        fn statfs() -> io::Result<StatFs>;
        fn setxattr(n: &NodeRef, name: &OsStr, value: &[u8], flags: i32, caller: &Creator) -> io::Result<()>;
        fn getxattr(node: &NodeRef, name: &OsStr) -> io::Result<Vec<u8>>;
        fn listxattr(node: &NodeRef) -> io::Result<Vec<u8>>;
        fn removexattr(node: &NodeRef, name: &OsStr) -> io::Result<()>;
        fn open(node: &NodeRef, flags: i32) -> io::Result<FileRef>;
        fn create(a: &NodeRef, b: &OsStr, m: u32, flags: i32, creator: &Creator) -> io::Result<(NodeRef, FileRef)>;
        fn seek_data(file: &FileRef, offset: u64, whence: i32) -> io::Result<u64>;
    }
    fn lookup(&self, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        if self.1.closed.is_some_and(|closed| name == closed) {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        self.0.lookup(parent, name)
    }
    fn readdir(&self, node: &NodeRef) -> io::Result<DirEntries> {
        let mut entries = self.0.readdir(node)?;
        if self.1.untyped {
            entries.iter_mut().for_each(|entry| entry.kind = libc::DT_UNKNOWN);
        }
        Ok(entries)
    }
    fn setattr(&self, node: &NodeRef, file: Option<&FileRef>, set: SetAttr) -> io::Result<Attr> {
        if set.size.is_some() {
            self.1.pass();
        }
        if let Some((mode, gate)) = &self.1.mode
            && set.mode == Some(*mode)
        {
            gate.pass();
        }
        self.0.setattr(node, file, set)
    }
    fn fsync_dir(&self, node: &NodeRef) -> io::Result<()> {
        self.1.pass();
        self.0.fsync_dir(node)
    }
    fn fallocate(&self, file: &FileRef, mode: i32, offset: u64, len: u64, caller: &Creator) -> io::Result<()> {
        self.1.pass();
        self.0.fallocate(file, mode, offset, len, caller)
    }
    fn reports_at_close(&self) -> bool {
        true
    }
    fn flush(&self, file: &FileRef) -> io::Result<()> {
        match self.1.at_close.load(Ordering::SeqCst) {
            0 => self.0.flush(file),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}
