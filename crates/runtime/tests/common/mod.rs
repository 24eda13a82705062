//! A volume over real files in a temporary directory, with faults if wanted.
#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;

use parking_lot::{Condvar, Mutex};
use sluice_runtime::{Done, Host};
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::striped::{StripedOptions, StripedStorage};
use sluice_storage::{Creator, Data, FileRef, Layout, Storage};

/// A plain directory, or several striped by 4 KiB.
pub fn storage(dir: &std::path::Path, targets: usize) -> Storage {
    if targets == 1 {
        return PosixStorage::open(dir, PosixOptions::default()).unwrap().into();
    }
    let dirs: Vec<_> = (0..targets).map(|target| dir.join(format!("t{target}"))).collect();
    dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    StripedStorage::create_or_open(&dirs, StripedOptions { stripe: Some(4096), ..StripedOptions::default() })
        .unwrap()
        .into()
}

pub fn create(storage: &Storage, name: &str) -> FileRef {
    let tree = &storage.namespace;
    tree.create(&tree.root(), OsStr::new(name), 0o644, libc::O_RDWR, &Creator::process()).unwrap().1
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

/// Longest time any test waits for anything.
pub const LIMIT: std::time::Duration = std::time::Duration::from_secs(120);

/// Fails the test (leaving the thread) unless it ends in time.
pub fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || _ = tell.send(work()));
    match told.recv_timeout(LIMIT) {
        Ok(value) => value,
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: it has panicked"),
        Err(RecvTimeoutError::Timeout) => {
            eprintln!("HANG: {what}");
            std::process::exit(77);
        }
    }
}

/// Data that fails at one byte, gives less than asked, or blocks while a gate is closed.
pub struct Faulty {
    inner: Arc<dyn Data>,
    /// Calls that touch this byte of a target's file fail or stop before it.
    bad: u64,
    /// Every call moves at most this many bytes.
    short: usize,
    calls: AtomicU64,
    gate: Mutex<bool>,
    opened: Condvar,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Data>) -> Faulty {
        let (calls, gate, opened) = (AtomicU64::new(0), Mutex::new(true), Condvar::new());
        Faulty { inner, bad: u64::MAX, short: usize::MAX, calls, gate, opened }
    }

    #[must_use]
    pub fn with_faults(self, bad: u64, short: usize) -> Faulty {
        Faulty { bad, short, ..self }
    }

    /// The same tree, its data with these faults.
    pub fn over(plain: &Storage, bad: u64, short: usize) -> (Arc<Faulty>, Storage) {
        let faulty = Arc::new(Faulty::new(plain.data.clone()).with_faults(bad, short));
        (faulty.clone(), Storage { data: faulty, ..plain.clone() })
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

impl Data for Faulty {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        self.inner.sync(file, metadata)
    }
    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        self.inner.size_at_least(file, end)
    }

    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let mut memory = vec![0; self.allowed(offset, len)?];
        let read = self.inner.read(file, target, offset, &mut [IoSliceMut::new(&mut memory)])?;
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
        self.inner.write(file, target, offset, &[IoSlice::new(&memory[..allowed])])
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
