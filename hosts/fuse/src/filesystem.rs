//! The FUSE operations: the namespace goes straight to the storage, reads and writes to the scheduler.
//!
//! Permissions, POSIX and `flock` locks and `O_APPEND` offsets are the kernel's (`default_permissions`, no lock operations
//! here). The umask is the storage's, because it does not apply where a directory has a default access control list.
//! `copy_file_range` is left to the kernel too, which then reads and writes. Operations that may wait for a device are handed
//! to a pool of threads, so that others are answered meanwhile.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr,
    ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use sluice_runtime::{Done, Host};
use sluice_storage::{Creator, SetAttr, SetTime};

use crate::coherence::Change;
use crate::core::{Answer, Core, Requester, SluiceFs, answer_xattr, before, visible_names};
use crate::handles::{DirHandle, Handle};
use crate::inodes::sent_time;
use crate::{CacheMode, MountOptions};

/// The reply that a read or write waits for. Dropped without an answer it becomes an I/O error.
#[derive(Debug)]
pub struct Ticket(Reply);

#[derive(Debug)]
enum Reply {
    Read(ReplyData, Asker),
    Write(Written, Asker),
}

/// What is left to do for a write that has ended.
#[derive(Debug)]
struct Written {
    reply: ReplyWrite,
    /// Ends before the answer.
    change: Option<Change>,
    sync: Option<Box<Durably>>,
}

impl Written {
    fn end(self, result: io::Result<usize>) {
        let Written { reply, change, sync } = self;
        drop(change);
        match (result, sync) {
            (Ok(bytes), Some(sync)) if bytes > 0 => sync.answer(reply, bytes as u32),
            (Ok(bytes), _) => reply.written(bytes as u32),
            (Err(error), _) => reply.error(error.into()),
        }
    }
}

/// This write is to be durable before it is answered, unlike others through the same open file (`RWF_DSYNC`, `RWF_SYNC`).
/// Where there is a cache the kernel sends an `fsync` for that, and none where there is not.
struct Durably {
    core: Arc<Core>,
    handle: Arc<Handle>,
    metadata: bool,
}

impl Durably {
    fn wanted(core: &Arc<Core>, fh: &FileHandle, flags: i32) -> Option<Box<Durably>> {
        let handle = core.files.get(fh);
        let missing = flags & !handle.synchronous & libc::O_SYNC;
        if missing == 0 || handle.cached {
            return None;
        }
        let metadata = flags & libc::O_SYNC == libc::O_SYNC;
        Some(Box::new(Durably { core: core.clone(), handle: core.files.share(fh), metadata }))
    }

    fn answer(self, reply: ReplyWrite, bytes: u32) {
        let Durably { core, handle, metadata } = self;
        let shared = core.clone();
        core.syncs.run(move || match shared.data.sync(&handle.file, metadata) {
            Ok(()) => reply.written(bytes),
            Err(error) => reply.error(error.into()),
        });
    }
}

impl std::fmt::Debug for Durably {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Durably").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

/// Who a read or write is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asker {
    /// A call, which takes what was moved before an error.
    Call,
    /// The kernel's page cache. It takes a short read for the end of the file, and does not look how much of a write that it
    /// makes later was done: part of it would never be written, and no `fsync` say so.
    Pages,
}

/// The FUSE side of the scheduler: passes results back to the kernel.
pub struct FuseHost;

impl Host for FuseHost {
    type Ticket = Ticket;

    fn complete_in_part(&self, ticket: Ticket, done: Done<'_>, error: io::Error) {
        let (Reply::Read(_, asker) | Reply::Write(_, asker)) = &ticket.0;
        let result = if *asker == Asker::Pages { Err(error) } else { Ok(done) };
        self.complete(ticket, result);
    }

    fn complete(&self, ticket: Ticket, result: io::Result<Done<'_>>) {
        match (ticket.0, result) {
            (Reply::Read(reply, _), Ok(Done::Read(data))) => reply.data(data),
            (Reply::Write(written, _), Ok(Done::Written(bytes))) => written.end(Ok(bytes)),
            (Reply::Read(reply, _), Err(error)) => reply.error(error.into()),
            (Reply::Write(written, _), Err(error)) => written.end(Err(error)),
            // An answer of the other kind: dropping the reply says I/O error.
            (_, Ok(_)) => tracing::error!("a request was completed with the wrong kind of result"),
        }
    }
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

impl Filesystem for SluiceFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        configure(config, &self.options, InitFlags::empty());
        // With HANDLE_KILLPRIV_V2 the kernel does not ask for an attribute before each write.
        let offered = config.capabilities();
        let more = InitFlags::FUSE_HANDLE_KILLPRIV_V2 | InitFlags::FUSE_EXPORT_SUPPORT;
        let _ = config.add_capabilities(more & offered);
        // With access control lists the umask is not the kernel's to apply: a default list takes its place.
        let acl = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        if offered.contains(acl) {
            let _ = config.add_capabilities(acl);
        }
        Ok(())
    }

    fn destroy(&mut self) {
        guarded("destroy", || self.end());
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let find = || -> Answer<_> {
            let inode = self.inodes.looked_up(self.find(parent, name)?);
            let before = before(&inode);
            match self.namespace.getattr(&inode.node) {
                Ok(attr) => Ok((inode, before, attr)),
                Err(error) => {
                    self.0.forget(inode.ino, 1);
                    Err(error.into())
                }
            }
        };
        answer!(reply, find(), (inode, before, attr) => self.answer_entry(inode, before, attr, reply));
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        guarded("forget", || self.0.forget(ino, nlookup));
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let get = || -> Answer<_> {
            if let Some(fh) = &fh {
                let handle = self.files.get(fh);
                let before = before(&handle.inode);
                return Ok((handle.inode.clone(), before, self.namespace.getattr_open(&handle.file)?));
            }
            let inode = self.inodes.get(ino)?;
            let before = before(&inode);
            let attr = self.namespace.getattr(&inode.node)?;
            Ok((inode, before, attr))
        };
        answer!(reply, get(), (inode, before, attr) => self.answer_attr(inode, before, attr, reply));
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
        let requester = Requester::from(req);
        let inode = match self.inodes.get(ino) {
            Ok(inode) => inode,
            Err(error) => return reply.error(error),
        };
        let handle = fh.map(|fh| self.files.share(&fh));
        let core = self.0.clone();
        let work = move || {
            let file = handle.as_ref().map(|handle| &handle.file);
            answer!(reply, core.set_attributes(requester, &inode, file, set),
                attr => reply.attr(&core.attr_ttl(&attr), &attr));
        };
        // Truncation frees blocks and waits for writes.
        if size.is_some() { self.syncs.run(work) } else { work() }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let get = || -> Answer<_> { Ok(self.namespace.readlink(&self.inodes.get(ino)?.node)?) };
        answer!(reply, get(), to => reply.data(to.as_bytes()));
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let make = || {
            self.under(parent, |dir| {
                let make = |creator: &Creator| self.namespace.mknod(dir, name, mode, rdev.into(), creator);
                self.on_behalf(req.into(), mode, umask, make)
            })
        };
        answer!(reply, make(), (inode, attr) => self.entry(reply, &inode, &attr));
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let make = || {
            self.under(parent, |dir| {
                let make = |creator: &Creator| self.namespace.mkdir(dir, name, mode & 0o7777, creator);
                self.on_behalf(req.into(), mode, umask, make)
            })
        };
        answer!(reply, make(), (inode, attr) => self.entry(reply, &inode, &attr));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let make = || {
            self.under(parent, |dir| {
                let make = |creator: &Creator| self.namespace.symlink(dir, name, target.as_os_str(), creator);
                self.on_behalf(req.into(), 0, 0, make)
            })
        };
        answer!(reply, make(), (inode, attr) => self.entry(reply, &inode, &attr));
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let link = || {
            let inode = self.inodes.get(ino)?;
            let _change = self.change(&inode);
            self.under(newparent, |dir| self.namespace.link(&inode.node, dir, newname))
        };
        answer!(reply, link(), (inode, attr) => self.entry(reply, &inode, &attr));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || -> Answer<_> { Ok(self.namespace.unlink(&self.inodes.get(parent)?.node, name)?) };
        answer!(reply, remove(), () => reply.ok());
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || -> Answer<_> { Ok(self.namespace.rmdir(&self.inodes.get(parent)?.node, name)?) };
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
        answer!(reply, self.0.rename((parent, name), (newparent, newname), flags.bits()), () => reply.ok());
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        guarded("open", || self.0.open(req.into(), ino, flags.0, reply));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let create = || self.0.create(req.into(), parent, name, (mode, umask), flags);
        answer!(reply, create(), made => self.answer_created(req.into(), made, flags, reply));
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        guarded("read", move || {
            let handle = self.files.get(&fh);
            let app = self.apps.of_caller(&handle.last, req.pid(), req.uid());
            // The kernel tells an owner of locks where it reads for a call, and none where it fills pages.
            let asker = if lock_owner.is_some() { Asker::Call } else { Asker::Pages };
            self.volume.read(&handle.file, app, offset, size, Ticket(Reply::Read(reply, asker)));
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
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        guarded("write", move || {
            let handle = self.files.get(&fh);
            let inode = &handle.inode;
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) && inode.set_id.load(Ordering::Relaxed) {
                self.drop_set_id(req.into(), inode);
            }
            if inode.capable.load(Ordering::SeqCst) && self.drops_capabilities() {
                self.drop_capabilities(inode);
            }
            // The kernel's cache writes in nobody's name.
            let pages = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
            let late = req.pid() == 0 || pages;
            let app = if late { handle.opener } else { self.apps.of_caller(&handle.last, req.pid(), req.uid()) };
            let change = (self.options.cache == CacheMode::Auto).then(|| self.change(inode));
            let asker = if pages { Asker::Pages } else { Asker::Call };
            let written = Written { reply, change, sync: Durably::wanted(&self.0, &fh, flags.0) };
            self.volume.write(&handle.file, app, offset, data, Ticket(Reply::Write(written, asker)));
        });
    }

    /// What was acknowledged is in the storage. Where that may still fail when it writes (NFS), closing says so; for the
    /// others the kernel stops asking.
    fn flush(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        if !self.namespace.reports_at_close() {
            return reply.error(Errno::ENOSYS);
        }
        if !self.files.get(&fh).writable {
            return reply.ok();
        }
        let (core, handle) = (self.0.clone(), self.files.share(&fh));
        let flush = move || -> Answer<_> { Ok(core.namespace.flush(&handle.file)?) };
        self.closes.run(move || answer!(reply, flush(), () => reply.ok()));
    }

    fn fsync(&self, req: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let (core, handle) = (self.0.clone(), self.files.share(&fh));
        let sync = move || -> Answer<_> { Ok(core.data.sync(&handle.file, !datasync)?) };
        self.syncs.sync(req.pid(), sync, move |result| answer!(reply, result, () => reply.ok()));
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
            let handle = self.files.take(fh);
            self.close(&handle);
            drop(handle);
            reply.ok();
        });
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let open = || -> Answer<_> {
            Ok(self.dirs.add(DirHandle { inode: self.inodes.get(ino)?, entries: Default::default() }))
        };
        answer!(reply, open(), fh => reply.opened(fh, FopenFlags::empty()));
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let dir = self.dirs.get(&fh);
        guarded("readdir", move || match self.list(dir, offset) {
            Ok(entries) => {
                for (at, entry) in (offset + 1..).zip(entries.iter().skip(offset as usize)) {
                    let kind = self.kind_of(dir, entry);
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
            let dir = self.dirs.get(&fh);
            let entries = match self.list(dir, offset) {
                Ok(entries) => entries,
                Err(error) => return reply.error(error),
            };
            let mut any = false;
            for (at, entry) in (offset + 1..).zip(entries.iter().skip(offset as usize)) {
                let name = OsStr::from_bytes(entry.name.as_bytes());
                let (attr, generation, looked_up) = match self.listed(dir, entry) {
                    Ok(Some(listed)) => listed,
                    Ok(None) => continue,
                    Err(_) if any => break,
                    Err(error) => return reply.error(error),
                };
                let ttl = looked_up.map_or(Duration::ZERO, |_| self.ttl(&attr));
                if reply.add(attr.ino, at, name, &ttl, &attr, generation) {
                    if let Some(ino) = looked_up {
                        self.0.forget(ino, 1);
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
            drop(self.dirs.take(fh));
            reply.ok();
        });
    }

    fn fsyncdir(&self, req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let (core, dir) = (self.0.clone(), self.dirs.share(&fh));
        let sync = move || -> Answer<_> { Ok(core.namespace.fsync_dir(&dir.inode.node)?) };
        self.syncs.sync(req.pid(), sync, move |result| answer!(reply, result, () => reply.ok()));
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        answer!(reply, self.namespace.statfs().map_err(Errno::from), fs => reply.statfs(
            fs.blocks, fs.bfree, fs.bavail, fs.files, fs.ffree, fs.bsize, fs.namelen, fs.frsize,
        ));
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        answer!(reply, self.set_xattr(req.into(), ino, name, value, flags), () => reply.ok());
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        guarded("getxattr", move || answer_xattr(reply, size, self.get_xattr(req.into(), ino, name)));
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let list = || -> Answer<_> {
            let names = self.namespace.listxattr(&self.inodes.get(ino)?.node)?;
            Ok(visible_names(req.into(), names))
        };
        guarded("listxattr", move || answer_xattr(reply, size, list()));
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, self.remove_xattr(ino, name), () => reply.ok());
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (core, handle, requester) = (self.0.clone(), self.files.share(&fh), Requester::from(req));
        self.syncs.run(move || {
            answer!(reply, core.allocate(requester, &handle, mode, offset, length), () => reply.ok());
        });
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        // The kernel does not write its cache back before it asks, so a copy would miss what is still in it. Without
        // this operation it takes files to be all data.
        if self.options.cache == CacheMode::Writeback {
            return reply.error(Errno::ENOSYS);
        }
        let (core, handle) = (self.0.clone(), self.files.share(&fh));
        let inode = handle.inode.clone();
        let seek =
            move |core: &Core| -> Answer<u64> { Ok(core.namespace.seek_data(&handle.file, offset as u64, whence)?) };
        if !inode.is_written() {
            return answer!(reply, seek(&core), to => reply.offset(to as i64));
        }
        // What was written through a mapping may be in the kernel's pages alone.
        self.invalidator.pool.run(move || {
            core.invalidator.drop_pages(inode.ino);
            answer!(reply, seek(&core), to => reply.offset(to as i64));
        });
    }

    // The kernel does the following by itself when it is told that nobody else does. The FUSE library would say so as well,
    // but log each call, and any user can call.

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _req: &Request, _ino: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        _fh_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}

/// Agrees with the kernel on features and sizes; what it does not offer is left out.
pub(crate) fn configure(config: &mut KernelConfig, options: &MountOptions, more: InitFlags) {
    // Not FUSE_AUTO_INVAL_DATA, and FUSE_ASYNC_DIO without the cache only: see `coherence`.
    let cache = match options.cache {
        CacheMode::None => InitFlags::FUSE_ASYNC_DIO,
        CacheMode::Auto => InitFlags::empty(),
        CacheMode::Writeback => InitFlags::FUSE_WRITEBACK_CACHE,
    };
    let wanted = InitFlags::FUSE_PARALLEL_DIROPS
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
