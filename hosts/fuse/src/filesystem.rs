//! The FUSE operations: the namespace goes straight to the storage, reads and writes to the scheduler.
//!
//! Permissions, POSIX and `flock` locks, `O_APPEND` offsets and umask are the kernel's (`default_permissions`, no lock
//! operations here). `copy_file_range` is left to the kernel too, which then reads and writes.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use sluice_runtime::{Done, Host, Volume};
use sluice_storage::{Attr, Creator, FileRef, NodeRef, SetAttr, SetTime, Storage};

use crate::apps::{Apps, LastCaller};
use crate::inodes::{DirHandle, Handle, Inode, Inodes, SET_ID, kind, sent_time};
use crate::{CacheMode, MountOptions};

/// The reply that a read or write waits for. Dropped without an answer it becomes an I/O error.
#[derive(Debug)]
pub struct Ticket(Reply);

#[derive(Debug)]
enum Reply {
    Read(ReplyData),
    Write(ReplyWrite),
}

/// The FUSE side of the scheduler: passes results back to the kernel.
#[derive(Debug)]
pub struct FuseHost;

impl Host for FuseHost {
    type Ticket = Ticket;

    fn complete(&self, ticket: Ticket, result: io::Result<Done<'_>>) {
        match (ticket.0, result) {
            (Reply::Read(reply), Ok(Done::Read(data))) => reply.data(data),
            (Reply::Write(reply), Ok(Done::Written(bytes))) => reply.written(bytes as u32),
            (Reply::Read(reply), Err(error)) => reply.error(error.into()),
            (Reply::Write(reply), Err(error)) => reply.error(error.into()),
            // An answer of the other kind: dropping the reply says I/O error.
            (_, Ok(_)) => tracing::error!("a request was completed with the wrong kind of result"),
        }
    }
}

pub(crate) struct SluiceFs {
    pub(crate) storage: Storage,
    pub(crate) volume: Arc<Volume<FuseHost>>,
    pub(crate) apps: Arc<Apps>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) options: MountOptions,
}

/// A panic fails its own request (the reply answers when it is dropped) and leaves the thread alive for the next.
fn guarded(operation: &'static str, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!(operation, "a file system operation panicked; the caller gets an I/O error");
    }
}

/// Answers with a value or an error.
macro_rules! answer {
    ($reply:ident, $result:expr, $value:pat => $good:expr) => {
        guarded(stringify!($reply), move || match $result {
            Ok($value) => $good,
            Err(error) => $reply.error(error),
        })
    };
}

type Answer<T> = Result<T, Errno>;

impl SluiceFs {
    /// Attributes for the kernel, noted in the inode.
    fn noted(&self, inode: &Inode, attr: &Attr) -> FileAttr {
        inode.note(attr);
        self.inodes.file_attr(attr)
    }

    /// Tells the kernel about an object: counts a look-up.
    fn tell(&self, node: NodeRef) -> Answer<FileAttr> {
        let attr = self.storage.namespace.getattr(&node)?;
        Ok(self.noted(&self.inodes.told(node), &attr))
    }

    fn under(&self, parent: INodeNo, make: impl FnOnce(&NodeRef) -> io::Result<NodeRef>) -> Answer<FileAttr> {
        self.tell(make(&self.inodes.get(parent)?.node)?)
    }

    /// Time for which name and attributes hold, where the protocol takes just one.
    fn ttl(&self) -> Duration {
        self.options.attr_timeout.min(self.options.entry_timeout)
    }

    fn entry(&self, reply: ReplyEntry, attr: &FileAttr) {
        reply.entry_with_ttls(&self.options.attr_timeout, &self.options.entry_timeout, attr, Generation(0));
    }

    /// Flags for the storage: `O_APPEND` offsets come from the kernel, and a write-back cache must read the pages
    /// around what it writes.
    fn storage_flags(&self, flags: i32) -> i32 {
        let flags = flags & !(libc::O_APPEND | libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY);
        let write_only = flags & libc::O_ACCMODE == libc::O_WRONLY;
        if self.options.cache == CacheMode::Writeback && write_only {
            flags & !libc::O_ACCMODE | libc::O_RDWR
        } else {
            flags
        }
    }

    fn handle(&self, req: &Request, inode: Arc<Inode>, file: FileRef, flags: i32) -> Handle {
        self.volume.opened(&file);
        let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let last = LastCaller::default();
        // Only writes come without a caller, so readers need not be asked after yet.
        let opener = if writable { self.apps.of_caller(&last, req.pid(), req.uid()) } else { Default::default() };
        Handle { file, inode, writable, opener, last }
    }

    /// How the kernel is to treat an open file.
    fn open_mode(&self, inode: &Inode, file: &FileRef, flags: i32) -> FopenFlags {
        // Without FOPEN_DIRECT_IO the kernel serialises the O_DIRECT writes to a file.
        if self.options.cache == CacheMode::None || flags & libc::O_DIRECT != 0 {
            return FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        }
        let keep = self.options.cache == CacheMode::Writeback
            || self.storage.namespace.getattr_open(file).is_ok_and(|attr| inode.note(&attr));
        if keep { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() }
    }

    /// Takes the set-ID bits away from a file whose contents somebody other than root changes.
    fn drop_set_id(&self, inode: &Inode) {
        let change = || -> io::Result<()> {
            let attr = self.storage.namespace.getattr(&inode.node)?;
            let mut gone = attr.mode & libc::S_ISUID;
            // Set-group-ID without group execution once meant mandatory locking.
            if attr.mode & libc::S_IXGRP != 0 {
                gone |= attr.mode & libc::S_ISGID;
            }
            if gone != 0 {
                let mode = Some(attr.mode & 0o7777 & !gone);
                self.storage.namespace.setattr(&inode.node, None, SetAttr { mode, ..SetAttr::default() })?;
            }
            inode.set_id.store(attr.mode & SET_ID & !gone != 0, Ordering::Relaxed);
            Ok(())
        };
        if let Err(error) = change() {
            tracing::warn!(%error, "a written file keeps its set-ID bits");
        }
    }

    fn set_attributes(&self, req: &Request, ino: INodeNo, fh: Option<FileHandle>, set: SetAttr) -> Answer<FileAttr> {
        let inode = self.inodes.get(ino)?;
        let file = fh.as_ref().map(|fh| &Handle::of(fh).file);
        let mut attr = self.storage.namespace.setattr(&inode.node, file, set)?;
        if set.size.is_some() && req.uid() != 0 && attr.mode & SET_ID != 0 {
            self.drop_set_id(&inode);
            attr = self.storage.namespace.getattr(&inode.node)?;
        }
        Ok(self.noted(&inode, &attr))
    }

    fn create_file(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Answer<(FileAttr, FileHandle, FopenFlags)> {
        let parent = self.inodes.get(parent)?;
        // Always exclusive: if the name appeared meanwhile nobody checked the file's permissions yet. The kernel looks
        // the name up again on ESTALE, and opens what it finds.
        let exclusive = self.storage_flags(flags) | libc::O_EXCL;
        let (node, file) =
            match self.storage.namespace.create(&parent.node, name, mode & 0o7777, exclusive, &creator(req)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && flags & libc::O_EXCL == 0 => {
                    return Err(Errno::ESTALE);
                }
                result => result?,
            };
        let attr = self.storage.namespace.getattr_open(&file)?;
        let inode = self.inodes.told(node);
        let attr = self.noted(&inode, &attr);
        let mode = self.open_mode(&inode, &file, flags);
        Ok((attr, self.handle(req, inode, file, flags).into_raw(), mode))
    }

    /// The directory's entries, from position `from`, with the positions that follow them.
    fn list(&self, dir: &DirHandle, from: u64) -> Answer<Arc<sluice_storage::DirEntries>> {
        let mut entries = dir.entries.lock();
        if from == 0 {
            *entries = Arc::new(self.storage.namespace.readdir(&dir.inode.node)?);
        }
        Ok(entries.clone())
    }

    fn xattr(reply: ReplyXattr, size: u32, value: Answer<Vec<u8>>) {
        match value {
            Ok(value) if size == 0 => reply.size(value.len() as u32),
            Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
            Ok(value) => reply.data(&value),
            Err(error) => reply.error(error),
        }
    }
}

fn creator(req: &Request) -> Creator {
    Creator::new(req.uid(), req.gid())
}

impl Filesystem for SluiceFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // With HANDLE_KILLPRIV_V2 the kernel does not ask for an attribute before each write.
        configure(config, &self.options, InitFlags::FUSE_HANDLE_KILLPRIV_V2 | InitFlags::FUSE_POSIX_ACL);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer!(reply, self.under(parent, |dir| self.storage.namespace.lookup(dir, name)), attr => self.entry(reply, &attr));
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        guarded("forget", || self.inodes.forget(ino, nlookup));
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let get = || -> Answer<FileAttr> {
            if let Some(fh) = &fh {
                let handle = Handle::of(fh);
                return Ok(self.noted(&handle.inode, &self.storage.namespace.getattr_open(&handle.file)?));
            }
            let inode = self.inodes.get(ino)?;
            Ok(self.noted(&inode, &self.storage.namespace.getattr(&inode.node)?))
        };
        answer!(reply, get(), attr => reply.attr(&self.options.attr_timeout, &attr));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let time = |time| match time {
            TimeOrNow::Now => SetTime::Now,
            TimeOrNow::SpecificTime(time) => {
                let (seconds, nanos) = sent_time(time);
                SetTime::At(seconds, nanos)
            }
        };
        let set = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
        };
        answer!(reply, self.set_attributes(req, ino, fh, set), attr => reply.attr(&self.options.attr_timeout, &attr));
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let get = || -> Answer<_> { Ok(self.storage.namespace.readlink(&self.inodes.get(ino)?.node)?) };
        answer!(reply, get(), to => reply.data(to.as_bytes()));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let make = |dir: &NodeRef| self.storage.namespace.mknod(dir, name, mode, rdev.into(), &creator(req));
        answer!(reply, self.under(parent, make), attr => self.entry(reply, &attr));
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let make = |dir: &NodeRef| self.storage.namespace.mkdir(dir, name, mode & 0o7777, &creator(req));
        answer!(reply, self.under(parent, make), attr => self.entry(reply, &attr));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let make = |dir: &NodeRef| self.storage.namespace.symlink(dir, name, target.as_os_str(), &creator(req));
        answer!(reply, self.under(parent, make), attr => self.entry(reply, &attr));
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let link = || {
            let inode = self.inodes.get(ino)?;
            self.under(newparent, |dir| self.storage.namespace.link(&inode.node, dir, newname))
        };
        answer!(reply, link(), attr => self.entry(reply, &attr));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || -> Answer<_> { Ok(self.storage.namespace.unlink(&self.inodes.get(parent)?.node, name)?) };
        answer!(reply, remove(), () => reply.ok());
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || -> Answer<_> { Ok(self.storage.namespace.rmdir(&self.inodes.get(parent)?.node, name)?) };
        answer!(reply, remove(), () => reply.ok());
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || -> Answer<_> {
            let (from, to) = (self.inodes.get(parent)?, self.inodes.get(newparent)?);
            Ok(self.storage.namespace.rename(&from.node, name, &to.node, newname, flags.bits())?)
        };
        answer!(reply, rename(), () => reply.ok());
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let open = || -> Answer<_> {
            let inode = self.inodes.get(ino)?;
            let wanted = self.storage_flags(flags.0);
            let file = match self.storage.namespace.open(&inode.node, wanted) {
                // The storage's owner may write but not read: then the cache has to do without reading.
                Err(error) if error.raw_os_error() == Some(libc::EACCES) && wanted != flags.0 => {
                    self.storage.namespace.open(&inode.node, flags.0 & !libc::O_APPEND)?
                }
                result => result?,
            };
            let mode = self.open_mode(&inode, &file, flags.0);
            Ok((self.handle(req, inode, file, flags.0).into_raw(), mode))
        };
        answer!(reply, open(), (fh, mode) => reply.opened(fh, mode));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = || self.create_file(req, parent, name, mode, flags);
        answer!(reply, made(), (attr, fh, how) => reply.created(&self.ttl(), &attr, Generation(0), fh, how));
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        guarded("read", move || {
            let handle = Handle::of(&fh);
            let app = self.apps.of_caller(&handle.last, req.pid(), req.uid());
            self.volume.read(&handle.file, app, offset, size, Ticket(Reply::Read(reply)));
        });
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        guarded("write", move || {
            let handle = Handle::of(&fh);
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) && handle.inode.set_id.load(Ordering::Relaxed)
            {
                self.drop_set_id(&handle.inode);
            }
            // The kernel's cache writes in nobody's name.
            let late = req.pid() == 0 || write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
            let app = if late { handle.opener } else { self.apps.of_caller(&handle.last, req.pid(), req.uid()) };
            self.volume.write(&handle.file, app, offset, data, Ticket(Reply::Write(reply)));
        });
    }

    /// Nothing is held back here: what was acknowledged is in the storage. The kernel stops asking.
    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let sync = || -> Answer<_> { Ok(self.storage.data.sync(&Handle::of(&fh).file, !datasync)?) };
        answer!(reply, sync(), () => reply.ok());
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
        guarded("release", move || {
            let handle = Handle::take(fh);
            if handle.writable && self.options.cache == CacheMode::Auto {
                // What this handle wrote is what the cache holds: the next open need not drop it.
                if let Ok(attr) = self.storage.namespace.getattr_open(&handle.file) {
                    handle.inode.note(&attr);
                }
            }
            drop(handle);
            reply.ok();
        });
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let open =
            || -> Answer<_> { Ok(DirHandle { inode: self.inodes.get(ino)?, entries: Default::default() }.into_raw()) };
        answer!(reply, open(), fh => reply.opened(fh, FopenFlags::empty()));
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        guarded("readdir", move || match self.list(DirHandle::of(&fh), offset) {
            Ok(entries) => {
                for (at, entry) in (offset + 1..).zip(entries.iter().skip(offset as usize)) {
                    let kind = kind(entry.kind).unwrap_or(fuser::FileType::RegularFile);
                    let name = OsStr::from_bytes(entry.name.as_bytes());
                    if reply.add(self.inodes.number(entry.ino), at, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(error),
        });
    }

    fn readdirplus(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        guarded("readdirplus", move || {
            let dir = DirHandle::of(&fh);
            let entries = match self.list(dir, offset) {
                Ok(entries) => entries,
                Err(error) => return reply.error(error),
            };
            let mut any = false;
            for (at, entry) in (offset + 1..).zip(entries.iter().skip(offset as usize)) {
                let name = OsStr::from_bytes(entry.name.as_bytes());
                // These two the kernel does not count as looked up.
                let dots = matches!(entry.name.as_bytes(), b"." | b"..");
                let found = if dots {
                    self.storage.namespace.getattr(&dir.inode.node).map(|attr| (self.inodes.file_attr(&attr), None))
                } else {
                    self.storage.namespace.lookup(&dir.inode.node, name).and_then(|node| {
                        let attr = self.storage.namespace.getattr(&node)?;
                        let inode = self.inodes.told(node);
                        Ok((self.noted(&inode, &attr), Some(self.inodes.number(attr.ino))))
                    })
                };
                let (mut attr, told) = match found {
                    Ok(found) => found,
                    // Removed since: not there any more.
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                    Err(_) if any => break,
                    Err(error) => return reply.error(error.into()),
                };
                if dots {
                    attr.ino = self.inodes.number(entry.ino);
                }
                if reply.add(attr.ino, at, name, &self.ttl(), &attr, Generation(0)) {
                    if let Some(ino) = told {
                        self.inodes.forget(ino, 1);
                    }
                    break;
                }
                any = true;
            }
            reply.ok();
        });
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        guarded("releasedir", move || {
            drop(DirHandle::take(fh));
            reply.ok();
        });
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let sync = || -> Answer<_> { Ok(self.storage.namespace.fsync_dir(&DirHandle::of(&fh).inode.node)?) };
        answer!(reply, sync(), () => reply.ok());
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        answer!(reply, self.storage.namespace.statfs().map_err(Errno::from), fs => reply.statfs(
            fs.blocks, fs.bfree, fs.bavail, fs.files, fs.ffree, fs.bsize, fs.namelen, fs.frsize,
        ));
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set =
            || -> Answer<_> { Ok(self.storage.namespace.setxattr(&self.inodes.get(ino)?.node, name, value, flags)?) };
        answer!(reply, set(), () => reply.ok());
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let get = || -> Answer<_> { Ok(self.storage.namespace.getxattr(&self.inodes.get(ino)?.node, name)?) };
        guarded("getxattr", move || SluiceFs::xattr(reply, size, get()));
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let list = || -> Answer<_> { Ok(self.storage.namespace.listxattr(&self.inodes.get(ino)?.node)?) };
        guarded("listxattr", move || SluiceFs::xattr(reply, size, list()));
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || -> Answer<_> { Ok(self.storage.namespace.removexattr(&self.inodes.get(ino)?.node, name)?) };
        answer!(reply, remove(), () => reply.ok());
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
        let allocate =
            || -> Answer<_> { Ok(self.storage.namespace.fallocate(&Handle::of(&fh).file, mode, offset, length)?) };
        answer!(reply, allocate(), () => reply.ok());
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        // The kernel does not write its cache back before it asks, so a copy would miss what is still in it. Without
        // this operation it takes files to be all data.
        if self.options.cache == CacheMode::Writeback {
            return reply.error(Errno::ENOSYS);
        }
        let seek =
            || -> Answer<u64> { Ok(self.storage.namespace.seek_data(&Handle::of(&fh).file, offset as u64, whence)?) };
        answer!(reply, seek(), to => reply.offset(to as i64));
    }
}

/// Agrees with the kernel on features and sizes; what it does not offer is left out.
pub(crate) fn configure(config: &mut KernelConfig, options: &MountOptions, more: InitFlags) {
    let cache = match options.cache {
        CacheMode::None => InitFlags::empty(),
        CacheMode::Auto => InitFlags::FUSE_AUTO_INVAL_DATA,
        CacheMode::Writeback => InitFlags::FUSE_WRITEBACK_CACHE,
    };
    let wanted = InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
        | cache
        | more;
    let offered = config.capabilities();
    let _ = config.add_capabilities(wanted & offered);
    // Each of these answers a value out of range with the nearest one in range.
    if let Err(nearest) = config.set_max_write(options.max_write) {
        let _ = config.set_max_write(nearest);
    }
    if let Err(nearest) = config.set_max_readahead(options.max_readahead) {
        let _ = config.set_max_readahead(nearest);
    }
    let _ = config.set_max_background(options.max_background.max(1));
    if let Some(threshold) = options.congestion_threshold {
        let _ = config.set_congestion_threshold(threshold.max(1));
    }
}
