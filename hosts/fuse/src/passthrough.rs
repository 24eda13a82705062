//! The least a FUSE file system can do: what the scheduler's cost is measured against.
//!
//! Same kernel settings and open flags as the real one; each read and write is one `pread` or `pwrite` in the thread
//! that took the request. Just enough operations for a benchmark with plain files.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::RwLock;

use crate::filesystem::configure;
use crate::session::{Mounted, serve};
use crate::{CacheMode, MountError, MountOptions, attach};

const TTL: Duration = Duration::from_secs(1);

struct Passthrough {
    paths: RwLock<HashMap<u64, PathBuf>>,
    options: MountOptions,
}

/// A mounted pass-through. Dropping it unmounts.
pub struct PassthroughMount(Mounted);

/// Mounts the plain pass-through of `source` at `mountpoint`.
///
/// # Errors
/// See [`MountError`].
pub fn mount(source: &Path, mountpoint: &Path, options: &MountOptions) -> Result<PassthroughMount, MountError> {
    let path = attach::prepare(mountpoint, &[source.to_owned()])?;
    let paths = RwLock::new(HashMap::from([(1, source.to_owned())]));
    Ok(PassthroughMount(serve(Passthrough { paths, options: options.clone() }, &path, options, |_| ())?))
}

impl PassthroughMount {
    /// Unmounts and waits for the end.
    ///
    /// # Errors
    /// [`MountError::Busy`] if somebody uses the mount.
    pub fn unmount(self) -> Result<(), MountError> {
        self.0.unmount(false)?;
        let _ = self.0.wait();
        Ok(())
    }
}

impl Passthrough {
    fn path(&self, ino: INodeNo) -> io::Result<PathBuf> {
        self.paths.read().get(&ino.0).cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    fn entry(&self, path: PathBuf) -> io::Result<FileAttr> {
        let attr = attr(&std::fs::symlink_metadata(&path)?);
        self.paths.write().insert(attr.ino.0, path);
        Ok(attr)
    }

    fn open_flags(&self) -> FopenFlags {
        if self.options.cache == CacheMode::None {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            FopenFlags::FOPEN_KEEP_CACHE
        }
    }
}

/// The open file behind a handle, borrowed.
fn file(fh: FileHandle) -> std::mem::ManuallyDrop<File> {
    // SAFETY: the descriptor was put into the handle by `handle` and is closed by `release` only, which comes last.
    std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fh.0 as i32) })
}

fn handle(file: File) -> FileHandle {
    FileHandle(file.into_raw_fd() as u64)
}

fn attr(meta: &std::fs::Metadata) -> FileAttr {
    FileAttr {
        ino: INodeNo(meta.ino()),
        size: meta.size(),
        blocks: meta.blocks(),
        atime: meta.accessed().unwrap_or(UNIX_EPOCH),
        mtime: meta.modified().unwrap_or(UNIX_EPOCH),
        ctime: UNIX_EPOCH + Duration::new(meta.ctime().unsigned_abs(), meta.ctime_nsec() as u32),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(meta.file_type()).unwrap_or(FileType::RegularFile),
        perm: (meta.mode() & 0o7777) as u16,
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: meta.rdev() as u32,
        blksize: meta.blksize() as u32,
        flags: 0,
    }
}

impl Filesystem for Passthrough {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        configure(config, &self.options, InitFlags::empty());
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.path(parent).and_then(|dir| self.entry(dir.join(name))) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.path(ino).and_then(std::fs::symlink_metadata) {
            Ok(meta) => {
                let attr = attr(&meta);
                reply.attr(&TTL, &FileAttr { ino, ..attr });
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = || {
            let path = self.path(ino)?;
            if let Some(size) = size {
                File::options().write(true).open(&path)?.set_len(size)?;
            }
            std::fs::symlink_metadata(path)
        };
        match change() {
            Ok(meta) => reply.attr(&TTL, &attr(&meta)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.path(parent).and_then(|dir| std::fs::remove_file(dir.join(name))) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let write = flags.0 & libc::O_ACCMODE != libc::O_RDONLY;
        match self.path(ino).and_then(|path| File::options().read(true).write(write).open(path)) {
            Ok(file) => reply.opened(handle(file), self.open_flags()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let create = || {
            let path = self.path(parent)?.join(name);
            let file = File::options().read(true).write(true).create(true).truncate(false).mode(mode).open(&path)?;
            Ok((self.entry(path)?, file))
        };
        match create() {
            Ok((attr, file)) => reply.created(&TTL, &attr, Generation(0), handle(file), self.open_flags()),
            Err::<_, io::Error>(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size as usize {
                buffer.resize(size as usize, 0);
            }
            match file(fh).read_at(&mut buffer[..size as usize], offset) {
                Ok(n) => reply.data(&buffer[..n]),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match file(fh).write_at(data, offset) {
            Ok(n) => reply.written(n as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        match file(fh).sync_all() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        drop(std::mem::ManuallyDrop::into_inner(file(fh)));
        reply.ok();
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = rustix::fs::FallocateFlags::from_bits_retain(mode as u32);
        match rustix::fs::fallocate(&*file(fh), mode, offset, length) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(Errno::from_i32(error.raw_os_error())),
        }
    }

    // Unlike the defaults these do not log; the kernel does not ask again.
    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _offset: i64, _whence: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }
}
