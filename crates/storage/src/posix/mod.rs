//! One directory as a storage.
//!
//! A [`Node`] is an `O_PATH` descriptor, so it stays the same object whatever happens to its names. What an `O_PATH`
//! descriptor cannot do itself goes through `/proc/self/fd/N`, a link that the kernel resolves to the very object.
//!
//! Node ids: the inode number for objects on the top directory's device, if it is below 2^48; everything else (other
//! file systems mounted below the top, file systems with hashed 64-bit inode numbers) gets the next number from 2^48
//! up, remembered for the life of the storage at some 50 bytes per such object. So two objects never share an id.
//!
//! The caller's umask applies to nothing: modes are set exactly, and new objects get the owner asked for, except that
//! the group comes from the parent where that is set-group-ID, as Linux has it.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{
    self as sys, AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Stat, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    Attr, Creator, Data, DirEntries, DirEntry, FileRef, Layout, Namespace, Node, NodeRef, OpenFile, SetAttr, SetTime,
    StatFs, file_as, node_as,
};

mod bytes;
mod close;

use bytes::Bytes;

/// How a [`PosixStorage`] does its I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PosixOptions {
    /// Bypass the page cache (`O_DIRECT`). Requests of any alignment stay correct: reads that are not aligned go through
    /// an aligned buffer, and of such writes the first and last page go through the page cache.
    pub direct: bool,
}

/// A directory; see the [module documentation](self).
pub struct PosixStorage {
    path: PathBuf,
    options: PosixOptions,
    root: NodeRef,
    ids: Ids,
    /// Errors may come when a file is closed.
    reports_at_close: bool,
    /// Listing a directory does not change its time of access.
    no_atime: AtomicBool,
}

struct PosixNode {
    fd: OwnedFd,
    id: u64,
    kind: FileType,
}

struct PosixFile {
    bytes: Bytes,
    id: u64,
}

impl Node for PosixNode {
    fn id(&self) -> u64 {
        self.id
    }
}

impl OpenFile for PosixFile {
    fn id(&self) -> u64 {
        self.id
    }
}

impl PosixStorage {
    /// Opens the directory at `path`, and raises the process's limit of open descriptors to the most it may have.
    ///
    /// # Errors
    /// What the operating system says; `Unsupported` if `direct` is asked of a file system without `O_DIRECT`.
    pub fn open(path: impl AsRef<Path>, options: PosixOptions) -> io::Result<PosixStorage> {
        let limit = getrlimit(Resource::Nofile);
        // Best effort: with a low limit the storage works until it runs out, and then says so (EMFILE).
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
        let path = path.as_ref();
        let fd = sys::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let stat = sys::fstat(&fd)?;
        if options.direct && !bytes::supports_direct(&fd) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{}: the file system does not support O_DIRECT; use buffered I/O", path.display()),
            ));
        }
        let ids = Ids { device: stat.st_dev, others: Mutex::default() };
        let reports_at_close = close::reports(fd.as_fd());
        let root = Arc::new(PosixNode { fd, id: ids.of(&stat), kind: FileType::Directory });
        let no_atime = AtomicBool::new(false);
        Ok(PosixStorage { path: path.to_owned(), options, root, ids, reports_at_close, no_atime })
    }

    /// The path the directory was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The object's inode number on its device: unlike its id the same after a restart.
    pub(crate) fn inode(&self, node: &NodeRef) -> io::Result<u64> {
        Ok(sys::fstat(&own(node)?.fd)?.st_ino)
    }

    /// One of the object's current paths, relative to the top; of no use for one that has none left.
    pub(crate) fn path_of(&self, node: &NodeRef) -> io::Result<Vec<u8>> {
        let path = sys::readlink(link(&own(node)?.fd), Vec::new())?.into_bytes();
        let top = sys::readlink(link(&own(&self.root)?.fd), Vec::new())?.into_bytes();
        let inner = path.strip_prefix(&top[..]).ok_or(Errno::XDEV)?;
        Ok(inner.strip_prefix(b"/").unwrap_or(inner).to_vec())
    }

    /// Looks a relative path up from the top.
    pub(crate) fn resolve(&self, path: &[u8]) -> io::Result<NodeRef> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.map(OsStr::from_bytes).try_fold(self.root(), |dir, name| self.lookup(&dir, name))
    }

    fn node(&self, fd: OwnedFd) -> io::Result<Arc<PosixNode>> {
        let stat = sys::fstat(&fd)?;
        Ok(Arc::new(PosixNode { fd, id: self.ids.of(&stat), kind: FileType::from_raw_mode(stat.st_mode) }))
    }

    fn find(&self, parent: &NodeRef, name: &OsStr) -> io::Result<Arc<PosixNode>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.node(sys::openat(&own(parent)?.fd, name, flags, Mode::empty())?)
    }

    /// Gives a new object its owner and exact mode, and returns its node.
    fn adopt(&self, parent: &NodeRef, node: Arc<PosixNode>, mode: u32, creator: &Creator) -> io::Result<NodeRef> {
        let setgid = sys::fstat(&own(parent)?.fd)?.st_mode & libc::S_ISGID != 0;
        let stat = sys::fstat(&node.fd)?;
        let gid = if setgid { stat.st_gid } else { creator.gid };
        if (stat.st_uid, stat.st_gid) != (creator.uid, gid) {
            chown(&node.fd, Some(creator.uid), Some(gid))?;
        }
        if node.kind != FileType::Symlink {
            let inherited = if setgid && node.kind == FileType::Directory { libc::S_ISGID } else { 0 };
            let wanted = mode & 0o7777 | inherited;
            // Asked anew: giving a file away may have cleared its set-ID bits.
            if sys::fstat(&node.fd)?.st_mode & 0o7777 != wanted {
                sys::chmod(link(&node.fd), Mode::from_raw_mode(wanted))?;
            }
        }
        Ok(node)
    }

    fn attr(&self, stat: &Stat) -> Attr {
        Attr {
            ino: self.ids.of(stat),
            mode: stat.st_mode,
            nlink: stat.st_nlink as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            blksize: stat.st_blksize as u32,
            atime: (stat.st_atime, stat.st_atime_nsec as u32),
            mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
            ctime: (stat.st_ctime, stat.st_ctime_nsec as u32),
        }
    }
}

impl Namespace for PosixStorage {
    fn file_path(&self, file: &FileRef) -> Option<Vec<u8>> {
        let path = sys::readlink(link(open(file).ok()?.bytes.fd()), Vec::new()).ok()?.into_bytes();
        let top = sys::readlink(link(&own(&self.root).ok()?.fd), Vec::new()).ok()?.into_bytes();
        let inner = path.strip_prefix(&top[..])?;
        let inner = inner.strip_prefix(b"/").unwrap_or(inner);
        Some(inner.strip_suffix(b" (deleted)").unwrap_or(inner).to_vec())
    }

    fn root(&self) -> NodeRef {
        self.root.clone()
    }

    fn lookup(&self, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        Ok(self.find(parent, name)?)
    }

    fn getattr(&self, node: &NodeRef) -> io::Result<Attr> {
        Ok(self.attr(&sys::fstat(&own(node)?.fd)?))
    }

    fn getattr_open(&self, file: &FileRef) -> io::Result<Attr> {
        Ok(self.attr(&sys::fstat(open(file)?.bytes.fd())?))
    }

    fn setattr(&self, node: &NodeRef, file: Option<&FileRef>, set: SetAttr) -> io::Result<Attr> {
        let node = own(node)?;
        if set.uid.is_some() || set.gid.is_some() {
            chown(&node.fd, set.uid, set.gid)?;
        }
        if let Some(mode) = set.mode {
            if node.kind == FileType::Symlink {
                return Err(Errno::OPNOTSUPP.into());
            }
            sys::chmod(link(&node.fd), Mode::from_raw_mode(mode & 0o7777))?;
        }
        if let Some(size) = set.size {
            match file.map(open).transpose()?.filter(|file| file.bytes.writable()) {
                Some(file) => sys::ftruncate(file.bytes.fd(), size)?,
                None => {
                    node.expect_file()?;
                    let fd = sys::open(link(&node.fd), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                    sys::ftruncate(fd, size)?;
                }
            }
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
            sys::utimensat(&node.fd, "", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(self.attr(&sys::fstat(&node.fd)?))
    }

    fn readlink(&self, node: &NodeRef) -> io::Result<CString> {
        Ok(sys::readlinkat(&own(node)?.fd, "", Vec::new())?)
    }

    fn mknod(&self, parent: &NodeRef, name: &OsStr, mode: u32, rdev: u64, creator: &Creator) -> io::Result<NodeRef> {
        let kind = FileType::from_raw_mode(mode);
        sys::mknodat(&own(parent)?.fd, name, kind, Mode::from_raw_mode(mode & 0o7777), rdev)?;
        self.adopt(parent, self.find(parent, name)?, mode, creator)
    }

    fn mkdir(&self, parent: &NodeRef, name: &OsStr, mode: u32, creator: &Creator) -> io::Result<NodeRef> {
        sys::mkdirat(&own(parent)?.fd, name, Mode::from_raw_mode(mode & 0o7777))?;
        self.adopt(parent, self.find(parent, name)?, mode, creator)
    }

    fn symlink(&self, parent: &NodeRef, name: &OsStr, to: &OsStr, creator: &Creator) -> io::Result<NodeRef> {
        sys::symlinkat(to, &own(parent)?.fd, name)?;
        self.adopt(parent, self.find(parent, name)?, 0, creator)
    }

    fn link(&self, node: &NodeRef, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        let (fd, dir) = (&own(node)?.fd, &own(parent)?.fd);
        match sys::linkat(fd, "", dir, name, AtFlags::EMPTY_PATH) {
            // Without CAP_DAC_READ_SEARCH older kernels refuse the empty path in this way.
            Err(Errno::NOENT) => sys::linkat(CWD, link(fd), dir, name, AtFlags::SYMLINK_FOLLOW)?,
            result => result?,
        }
        Ok(node.clone())
    }

    fn unlink(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()> {
        Ok(sys::unlinkat(&own(parent)?.fd, name, AtFlags::empty())?)
    }

    fn rmdir(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()> {
        Ok(sys::unlinkat(&own(parent)?.fd, name, AtFlags::REMOVEDIR)?)
    }

    fn rename(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        new_parent: &NodeRef,
        new_name: &OsStr,
        flags: u32,
    ) -> io::Result<()> {
        let (from, to) = (&own(parent)?.fd, &own(new_parent)?.fd);
        Ok(sys::renameat_with(from, name, to, new_name, RenameFlags::from_bits_retain(flags))?)
    }

    fn readdir(&self, node: &NodeRef) -> io::Result<DirEntries> {
        let node = own(node)?;
        let fd = match self.no_atime.load(Ordering::Relaxed) {
            true => open_dir_with(&node.fd, OFlags::NOATIME).or_else(|_| open_dir(&node.fd))?,
            false => open_dir(&node.fd)?,
        };
        let mut entries = DirEntries::new();
        for entry in Dir::new(fd)? {
            let entry = entry?;
            entries.push(DirEntry {
                name: entry.file_name().to_owned(),
                ino: entry.ino(),
                kind: (entry.file_type().as_raw_mode() >> 12) as u8,
            });
        }
        Ok(entries)
    }

    fn statfs(&self) -> io::Result<StatFs> {
        let fs = sys::fstatvfs(&own(&self.root)?.fd)?;
        Ok(StatFs {
            blocks: fs.f_blocks,
            bfree: fs.f_bfree,
            bavail: fs.f_bavail,
            files: fs.f_files,
            ffree: fs.f_ffree,
            bsize: fs.f_bsize as u32,
            frsize: fs.f_frsize as u32,
            namelen: fs.f_namemax as u32,
        })
    }

    // The kernel does not follow a symbolic link reached through /proc/self/fd any further, so these calls act on the
    // object itself even if it is one.

    fn setxattr(&self, node: &NodeRef, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()> {
        let flags = XattrFlags::from_bits_retain(flags as u32);
        Ok(sys::setxattr(link(&own(node)?.fd), name, value, flags)?)
    }

    fn getxattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<Vec<u8>> {
        let path = link(&own(node)?.fd);
        sized(
            |buffer| {
                if buffer.is_empty() { sys::getxattr_query(&path, name) } else { sys::getxattr(&path, name, buffer) }
            },
        )
    }

    fn listxattr(&self, node: &NodeRef) -> io::Result<Vec<u8>> {
        let path = link(&own(node)?.fd);
        sized(|buffer| if buffer.is_empty() { sys::listxattr_query(&path) } else { sys::listxattr(&path, buffer) })
    }

    fn removexattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<()> {
        Ok(sys::removexattr(link(&own(node)?.fd), name)?)
    }

    fn open(&self, node: &NodeRef, flags: i32) -> io::Result<FileRef> {
        let node = own(node)?;
        node.expect_file()?;
        let bytes = Bytes::reopen(node.fd.as_fd(), OFlags::from_bits_retain(flags as u32), self.options.direct)?;
        Ok(Arc::new(PosixFile { bytes, id: node.id }))
    }

    fn create(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        mode: u32,
        flags: i32,
        creator: &Creator,
    ) -> io::Result<(NodeRef, FileRef)> {
        let flags = OFlags::from_bits_retain(flags as u32);
        // Another process may make or remove the name between two calls; one of them settles it.
        loop {
            let new = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDWR;
            // Readable and writable until it has its descriptors: a process that is not root could not reopen it.
            match sys::openat(&own(parent)?.fd, name, new, Mode::from_raw_mode(mode & 0o7777 | 0o600)) {
                Ok(fd) => {
                    let node = self.node(sys::open(link(&fd), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)?;
                    let bytes = Bytes::reopen(node.fd.as_fd(), flags - OFlags::TRUNC, self.options.direct)?;
                    let file = Arc::new(PosixFile { bytes, id: node.id });
                    return Ok((self.adopt(parent, node, mode, creator)?, file));
                }
                Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => match self.lookup(parent, name) {
                    Ok(node) => {
                        let file = self.open(&node, flags.bits() as i32)?;
                        return Ok((node, file));
                    }
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn fsync_dir(&self, node: &NodeRef) -> io::Result<()> {
        Ok(sys::fsync(open_dir(&own(node)?.fd)?)?)
    }

    fn fallocate(&self, file: &FileRef, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        Ok(sys::fallocate(open(file)?.bytes.fd(), FallocateFlags::from_bits_retain(mode as u32), offset, len)?)
    }

    fn reports_at_close(&self) -> bool {
        self.reports_at_close
    }

    fn flush(&self, file: &FileRef) -> io::Result<()> {
        close::report(open(file)?.bytes.fd())
    }

    fn keep_access_times(&self) -> io::Result<()> {
        self.no_atime.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn seek_data(&self, file: &FileRef, offset: u64, whence: i32) -> io::Result<u64> {
        let to = match whence {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL.into()),
        };
        // The descriptor's file position is nobody's: all I/O gives its own offset.
        Ok(sys::seek(open(file)?.bytes.fd(), to)?)
    }
}

impl Data for PosixStorage {
    fn layout(&self) -> Layout {
        Layout::single()
    }

    fn describe(&self) -> String {
        let how = if self.options.direct { "direct" } else { "buffered" };
        format!("directory {}, {how} I/O", self.path.display())
    }

    fn read(&self, file: &FileRef, _target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(open(file)?.bytes.read(offset, bufs)?)
    }

    fn write(&self, file: &FileRef, _target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        Ok(open(file)?.bytes.write(offset, bufs)?)
    }

    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        let fd = open(file)?.bytes.fd();
        let result = if metadata { sys::fsync(fd) } else { sys::fdatasync(fd) };
        Ok(result?)
    }

    fn try_read(
        &self,
        file: &FileRef,
        _target: usize,
        offset: u64,
        bufs: &mut [io::IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        Ok(open(file)?.bytes.try_read(offset, bufs)?)
    }

    /// `None` with [`PosixOptions::direct`]: plain calls would fail on requests that are not aligned.
    fn descriptor(&self, file: &FileRef, _target: usize) -> Option<Arc<OwnedFd>> {
        open(file).ok()?.bytes.plain().cloned()
    }

    fn size_at_least(&self, file: &FileRef, _end: u64) -> io::Result<u64> {
        Ok(sys::fstat(open(file)?.bytes.fd())?.st_size as u64)
    }
}

impl PosixNode {
    /// Only regular files are opened here: opening a FIFO would block, a device would act.
    fn expect_file(&self) -> io::Result<()> {
        match self.kind {
            FileType::RegularFile => Ok(()),
            FileType::Directory => Err(Errno::ISDIR.into()),
            FileType::Symlink => Err(Errno::LOOP.into()),
            _ => Err(Errno::NXIO.into()),
        }
    }
}

/// Assigns node ids; see the [module documentation](self).
struct Ids {
    device: u64,
    others: Mutex<HashMap<(u64, u64), u64>>,
}

impl Ids {
    const FIRST_OTHER: u64 = 1 << 48;

    fn of(&self, stat: &Stat) -> u64 {
        if stat.st_dev == self.device && stat.st_ino < Self::FIRST_OTHER {
            return stat.st_ino;
        }
        let mut others = self.others.lock();
        let next = Self::FIRST_OTHER + others.len() as u64;
        *others.entry((stat.st_dev, stat.st_ino)).or_insert(next)
    }
}

fn own(node: &NodeRef) -> io::Result<&PosixNode> {
    node_as(node)
}

fn open(file: &FileRef) -> io::Result<&PosixFile> {
    file_as(file)
}

/// The path that leads to the object of an open descriptor.
fn link(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

fn open_dir(fd: impl AsFd) -> rustix::io::Result<OwnedFd> {
    open_dir_with(fd, OFlags::empty())
}

fn open_dir_with(fd: impl AsFd, more: OFlags) -> rustix::io::Result<OwnedFd> {
    sys::openat(fd, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | more, Mode::empty())
}

fn chown(fd: &OwnedFd, uid: Option<u32>, gid: Option<u32>) -> rustix::io::Result<()> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    sys::chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: sys::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: sys::UTIME_NOW },
        Some(SetTime::At(seconds, nanoseconds)) => Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

/// Calls `get` with an empty buffer for the size and then with one of that size, again if the value grew meanwhile.
fn sized(get: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Vec<u8>> {
    loop {
        let mut value = vec![0; get(&mut [])?];
        if value.is_empty() {
            return Ok(value);
        }
        match get(&mut value) {
            Ok(len) => {
                value.truncate(len);
                return Ok(value);
            }
            Err(Errno::RANGE) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The descriptor as the data functions take it.
type Fd<'a> = BorrowedFd<'a>;

#[cfg(test)]
mod tests;
