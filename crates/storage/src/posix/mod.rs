//! One directory as a storage.
//!
//! What an `O_PATH` descriptor cannot do itself goes through `/proc/self/fd/N`, a link that the kernel resolves to the very
//! object. Objects that are remembered need not be open; `node.rs` tells how they are found again. A removed object keeps
//! its descriptor for as long as anybody holds it.
//!
//! Node ids: the inode number for objects on the top directory's device, a hash of device and inode number for others. If
//! two live objects would share an id, the later one gets another.
//!
//! Objects are made as their creator (`identity.rs`), so owner, group, mode and access control lists are what they would
//! be had the creator made them in the directory itself. Without the right to act as others (`CAP_SETUID`, `CAP_SETGID`)
//! everything belongs to the process's user. The process's own umask applies to nothing.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
mod cache;
mod close;
mod file;
mod handle;
mod identity;
mod node;

use bytes::Bytes;
use cache::{CACHE, FILES, to_keep, with_room};
use file::PosixFile;
use identity::{acting_as, acting_as_user};
use node::{Identity, Location, PosixNode, Shared, key};

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
    root: Arc<PosixNode>,
    shared: Arc<Shared>,
    /// Errors may come when a file is closed.
    reports_at_close: bool,
    /// Open files may do without descriptors for a while.
    reopens: bool,
    /// Listing a directory does not change its time of access.
    no_atime: AtomicBool,
}

impl PosixStorage {
    /// Opens the directory at `path`, and raises the process's limit of open descriptors to the most it may have.
    ///
    /// # Errors
    /// What the operating system says; `Unsupported` if `direct` is asked of a file system without `O_DIRECT`.
    pub fn open(path: impl AsRef<Path>, options: PosixOptions) -> io::Result<PosixStorage> {
        PosixStorage::open_with(path.as_ref(), options, true)
    }

    /// `by_handle`: reopen objects by file handles if that is possible.
    fn open_with(path: &Path, options: PosixOptions, by_handle: bool) -> io::Result<PosixStorage> {
        let limit = getrlimit(Resource::Nofile);
        // Best effort: with a low limit fewer files can be open at a time.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
        CACHE.fit_to_limit();
        FILES.fit_to_limit();
        let fd = sys::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let stat = sys::fstat(&fd)?;
        if options.direct && !bytes::supports_direct(&fd) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{}: the file system does not support O_DIRECT; use buffered I/O", path.display()),
            ));
        }
        let reports_at_close = close::reports(fd.as_fd());
        let shared = Shared::new(&fd, &stat, by_handle);
        let root = shared.top(fd, &stat);
        let reopens = shared.by_handle() && !reports_at_close && file::may_open_all();
        let no_atime = AtomicBool::new(false);
        Ok(PosixStorage { path: path.to_owned(), options, root, shared, reports_at_close, reopens, no_atime })
    }

    /// The path the directory was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn own<'a>(&self, node: &'a NodeRef) -> io::Result<&'a PosixNode> {
        let own: &PosixNode = node_as(node)?;
        if own.belongs_to(&self.shared) {
            return Ok(own);
        }
        tracing::error!(node = node.id(), "a node was given to a directory that it does not come from");
        Err(Errno::XDEV.into())
    }

    /// As [`PosixStorage::own`], to refer to from nodes below.
    fn parent(&self, node: &NodeRef) -> io::Result<Arc<PosixNode>> {
        self.own(node)?;
        Arc::downcast::<PosixNode>(node.clone()).map_err(|_| Errno::XDEV.into())
    }

    /// The object's inode number on its device: unlike its id the same after a restart.
    pub(crate) fn inode(&self, node: &NodeRef) -> io::Result<u64> {
        Ok(self.own(node)?.inode())
    }

    /// What [`PosixStorage::reopen`] takes; empty if the file system, or the process's rights, do not allow that.
    pub(crate) fn handle(&self, node: &NodeRef) -> io::Result<Vec<u8>> {
        self.own(node)?.handle()
    }

    /// An object by its handle, whatever names it has.
    pub(crate) fn reopen(&self, handle: &[u8]) -> io::Result<NodeRef> {
        let fd = self.shared.open_handle(handle)?;
        let stat = sys::fstat(&fd)?;
        Ok(self.shared.node(Some(fd), None, &stat, None))
    }

    /// `S_IFMT` bits.
    pub(crate) fn kind(&self, node: &NodeRef) -> io::Result<u32> {
        Ok(self.own(node)?.kind().as_raw_mode())
    }

    /// Permission bits that the object had when it was found: for those that never change. Costs nothing.
    pub(crate) fn mode_found(&self, node: &NodeRef) -> io::Result<u32> {
        Ok(self.own(node)?.mode_found() & 0o7777)
    }

    /// One of the object's current paths, relative to the top; of no use for one that has none left. Paths have any
    /// length.
    pub(crate) fn path_of(&self, node: &NodeRef) -> io::Result<Vec<u8>> {
        let node = self.own(node)?;
        match node.path(self.root.id()) {
            Some(path) => Ok(path),
            None => self.inner_path(&sys::readlink(link(&node.fd()?), Vec::new())?).ok_or_else(|| Errno::XDEV.into()),
        }
    }

    /// What a path has below the top.
    fn inner_path(&self, path: &CStr) -> Option<Vec<u8>> {
        let top = sys::readlink(link(self.root.fd().ok()?), Vec::new()).ok()?.into_bytes();
        let inner = path.to_bytes().strip_prefix(&top[..])?;
        match inner {
            [b'/', inner @ ..] => Some(inner.to_vec()),
            inner if inner.is_empty() || top == b"/" => Some(inner.to_vec()),
            _ => None,
        }
    }

    /// Looks a relative path up from the top.
    pub(crate) fn resolve(&self, path: &[u8]) -> io::Result<NodeRef> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.map(OsStr::from_bytes).try_fold(self.root(), |dir, name| self.lookup(&dir, name))
    }

    fn find(&self, parent: &NodeRef, name: &OsStr) -> io::Result<Arc<PosixNode>> {
        let _names = self.shared.names.read();
        let parent = self.parent(parent)?;
        let dir = parent.fd()?;
        let location = Location::new(&parent, name);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match with_room(|| sys::openat(&dir, name, flags, Mode::empty())) {
            Ok(fd) => {
                let stat = sys::fstat(&fd)?;
                Ok(self.shared.node(Some(fd), None, &stat, Some(location)))
            }
            // All descriptors are with open files: do without one.
            Err(none @ (Errno::MFILE | Errno::NFILE)) => {
                let stat = || sys::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
                let mut before = stat()?;
                // Of one object, unless somebody changes the name all the time; reopening it then looks again.
                for _ in 0..LOOKS {
                    let identity = Identity::at(&dir, name);
                    let after = stat()?;
                    if key(&before) == key(&after) {
                        return Ok(self.shared.node(None, Some(identity), &after, Some(location)));
                    }
                    before = after;
                }
                Err(none.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn opened(&self, bytes: Bytes, node: Arc<PosixNode>, flags: OFlags) -> FileRef {
        Arc::new(PosixFile::new(bytes, node, (flags, self.options.direct), self.reopens))
    }

    /// The node of a file that was just made. Needs no descriptor if there is none: then the file must not fail any more.
    fn created(&self, parent: &NodeRef, name: &OsStr, file: &OwnedFd) -> io::Result<Arc<PosixNode>> {
        let _names = self.shared.names.read();
        let location = Location::new(&self.parent(parent)?, name);
        let stat = sys::fstat(file)?;
        match sys::open(link(file), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(self.shared.node(Some(fd), None, &stat, Some(location))),
            Err(_) => Ok(self.shared.node(None, Some(Identity::of(file)), &stat, Some(location))),
        }
    }

    /// Makes an object as its creator, and looks it up. Whatever has the name by then is left as it is.
    fn make(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        creator: &Creator,
        make: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
    ) -> io::Result<NodeRef> {
        let dir = self.own(parent)?.fd()?;
        acting_as(creator, || Ok(make(&dir)?))?;
        Ok(self.find(parent, name)?)
    }

    /// Sees to it that what loses this name stays what it is for those who hold it. To be undone if the name stays.
    ///
    /// # Errors
    /// `EMFILE` if it is an open file and no descriptor is left to keep it with: it must not lose its name then.
    fn before_loss(&self, dir: &OwnedFd, parent: &PosixNode, name: &OsStr) -> io::Result<Option<Loss>> {
        let found = sys::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let Some(node) = found.and_then(|stat| self.shared.find(&stat)) else { return Ok(None) };
        let named = node.is_at(parent, name);
        let pinned = match node.pin() {
            Err(none) if is_none_left(&none) && node.is_open_file() => return Err(none),
            // Of no consequence as a rule: nobody has it open.
            Err(error) => {
                tracing::debug!(%error, ?name, "a removed object cannot be kept; who still uses it will see ESTALE");
                None
            }
            Ok(fd) => Some(fd),
        };
        Ok(Some(Loss { node, pinned, named, by_handle: self.shared.by_handle() }))
    }

    /// Sees to it that no want of descriptors keeps this name from being removed, until the result is dropped.
    ///
    /// # Errors
    /// `EMFILE` if there is such a want.
    pub(crate) fn prepare_loss(&self, parent: &NodeRef, name: &OsStr) -> io::Result<impl Drop + use<>> {
        struct Prepared(Option<Loss>);
        impl Drop for Prepared {
            fn drop(&mut self) {
                if let Some(Loss { node, pinned: Some(_), .. }) = self.0.take() {
                    node.unpin();
                }
            }
        }
        let parent = self.own(parent)?;
        Ok(Prepared(self.before_loss(&*parent.fd()?, parent, name)?))
    }

    fn lose(&self, parent: &NodeRef, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        let parent = self.own(parent)?;
        let dir = parent.fd()?;
        let loss = self.before_loss(&dir, parent, name)?;
        let result = sys::unlinkat(&*dir, name, flags);
        if let Some(loss) = loss {
            loss.settle(result.is_ok(), parent, name);
        }
        Ok(result?)
    }

    /// Notes the new place of what a rename put somewhere. The caller holds the names.
    fn arrived(&self, dir: &OwnedFd, parent: &Arc<PosixNode>, name: &OsStr) {
        let node = sys::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok().and_then(|stat| self.shared.find(&stat));
        if let Some(node) = node {
            node.moved(Location::new(parent, name));
        }
    }

    fn attr(&self, id: u64, stat: &Stat) -> Attr {
        Attr {
            ino: id,
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

/// An object that is about to lose a name.
struct Loss {
    node: Arc<PosixNode>,
    pinned: Option<Arc<OwnedFd>>,
    /// It is the name that the node knows.
    named: bool,
    by_handle: bool,
}

impl Loss {
    fn is_gone_from(&self, dir: &OwnedFd, name: &OsStr) -> bool {
        sys::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_ino != self.node.inode())
    }

    fn settle(self, lost: bool, parent: &PosixNode, name: &OsStr) {
        if lost {
            self.node.lost(parent, name);
        }
        let Some(fd) = self.pinned else { return };
        // Asked now: other names may have gone at the same time.
        let gone = self.node.kind() == FileType::Directory || sys::fstat(fd).is_ok_and(|stat| stat.st_nlink == 0);
        if !lost || !gone && (self.by_handle || !self.named) {
            self.node.unpin();
        }
    }
}

impl Namespace for PosixStorage {
    fn file_path(&self, file: &FileRef) -> Option<Vec<u8>> {
        let file = open(file).ok()?;
        // The kernel knows best, except for what was reopened by handle, and for long paths.
        let told = sys::readlink(link(file.bytes().ok()?.fd()), Vec::new());
        let told = told.ok().and_then(|path| self.inner_path(&path));
        let path = told.or_else(|| file.node().path(self.root.id()))?;
        Some(path.strip_suffix(b" (deleted)").unwrap_or(&path).to_vec())
    }

    fn root(&self) -> NodeRef {
        self.root.clone()
    }

    fn lookup(&self, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        Ok(self.find(parent, name)?)
    }

    fn getattr(&self, node: &NodeRef) -> io::Result<Attr> {
        Ok(self.attr(node.id(), &self.own(node)?.stat()?))
    }

    fn getattr_open(&self, file: &FileRef) -> io::Result<Attr> {
        let file = open(file)?;
        Ok(self.attr(file.id(), &file.stat()?))
    }

    fn setattr(&self, node: &NodeRef, file: Option<&FileRef>, set: SetAttr) -> io::Result<Attr> {
        let own = self.own(node)?;
        let fd = own.fd()?;
        if set.uid.is_some() || set.gid.is_some() {
            chown(&fd, set.uid, set.gid)?;
        }
        if let Some(mode) = set.mode {
            if own.kind() == FileType::Symlink {
                return Err(Errno::OPNOTSUPP.into());
            }
            sys::chmod(link(&fd), Mode::from_raw_mode(mode & 0o7777))?;
        }
        if let Some(size) = set.size {
            match file.map(open).transpose()?.filter(|file| file.writable()) {
                Some(file) => file.change(|bytes| sys::ftruncate(bytes.fd(), size))??,
                None => {
                    own.expect_file()?;
                    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                    let fd = with_room(|| sys::open(link(&fd), flags, Mode::empty()))?;
                    sys::ftruncate(fd, size)?;
                }
            }
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
            sys::utimensat(&*fd, "", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(self.attr(node.id(), &sys::fstat(&fd)?))
    }

    fn readlink(&self, node: &NodeRef) -> io::Result<CString> {
        Ok(sys::readlinkat(&*self.own(node)?.fd()?, "", Vec::new())?)
    }

    fn mknod(&self, parent: &NodeRef, name: &OsStr, mode: u32, rdev: u64, creator: &Creator) -> io::Result<NodeRef> {
        let (kind, mode) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode & 0o7777));
        self.make(parent, name, creator, |dir| sys::mknodat(dir, name, kind, mode, rdev))
    }

    fn mkdir(&self, parent: &NodeRef, name: &OsStr, mode: u32, creator: &Creator) -> io::Result<NodeRef> {
        self.make(parent, name, creator, |dir| sys::mkdirat(dir, name, Mode::from_raw_mode(mode & 0o7777)))
    }

    fn symlink(&self, parent: &NodeRef, name: &OsStr, to: &OsStr, creator: &Creator) -> io::Result<NodeRef> {
        self.make(parent, name, creator, |dir| sys::symlinkat(to, dir, name))
    }

    fn link(&self, node: &NodeRef, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        let (fd, dir) = (self.own(node)?.fd()?, self.own(parent)?.fd()?);
        match sys::linkat(&*fd, "", &*dir, name, AtFlags::EMPTY_PATH) {
            // Without CAP_DAC_READ_SEARCH older kernels refuse the empty path in this way.
            Err(Errno::NOENT) => sys::linkat(CWD, link(&fd), &*dir, name, AtFlags::SYMLINK_FOLLOW)?,
            result => result?,
        }
        Ok(node.clone())
    }

    fn unlink(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()> {
        self.lose(parent, name, AtFlags::empty())
    }

    fn rmdir(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()> {
        self.lose(parent, name, AtFlags::REMOVEDIR)
    }

    fn rename(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        new_parent: &NodeRef,
        new_name: &OsStr,
        flags: u32,
    ) -> io::Result<()> {
        let _names = self.shared.names.write();
        let (parent, new_parent) = (self.parent(parent)?, self.parent(new_parent)?);
        let (from, to) = (parent.fd()?, new_parent.fd()?);
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let loss = if exchange { None } else { self.before_loss(&to, &new_parent, new_name)? };
        let _renaming = self.shared.renaming();
        let result = sys::renameat_with(&*from, name, &*to, new_name, RenameFlags::from_bits_retain(flags));
        // A rename between two names of one object does nothing.
        let lost = result.is_ok() && loss.as_ref().is_some_and(|loss| loss.is_gone_from(&to, new_name));
        if let Some(loss) = loss {
            loss.settle(lost, &new_parent, new_name);
        }
        result?;
        self.arrived(&to, &new_parent, new_name);
        if exchange {
            self.arrived(&from, &parent, name);
        }
        Ok(())
    }

    fn readdir(&self, node: &NodeRef) -> io::Result<DirEntries> {
        let dir = self.own(node)?;
        let node = dir.fd()?;
        let fd = match self.no_atime.load(Ordering::Relaxed) {
            true => open_dir_with(&node, OFlags::NOATIME).or_else(|_| open_dir(&node))?,
            false => open_dir(&node)?,
        };
        let mut entries = DirEntries::new();
        for entry in Dir::new(fd)? {
            let entry = entry?;
            entries.push(DirEntry {
                name: entry.file_name().to_owned(),
                // Programs compare it with that of the attributes.
                ino: self.shared.first_id((dir.device(), entry.ino())),
                kind: (entry.file_type().as_raw_mode() >> 12) as u8,
            });
        }
        Ok(entries)
    }

    fn statfs(&self) -> io::Result<StatFs> {
        let fs = sys::fstatvfs(&*self.root.fd()?)?;
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

    fn setxattr(&self, node: &NodeRef, name: &OsStr, value: &[u8], flags: i32, caller: &Creator) -> io::Result<()> {
        let flags = XattrFlags::from_bits_retain(flags as u32);
        let fd = self.own(node)?.fd()?;
        let set = || Ok(sys::setxattr(link(&fd), name, value, flags)?);
        // A new access control list may cost the file its set-group-ID bit, which depends on the caller's groups.
        if name == "system.posix_acl_access" { acting_as_user(caller, set) } else { set() }
    }

    fn getxattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<Vec<u8>> {
        let fd = self.own(node)?.fd()?;
        let path = link(&fd);
        sized(
            |buffer| {
                if buffer.is_empty() { sys::getxattr_query(&path, name) } else { sys::getxattr(&path, name, buffer) }
            },
        )
    }

    fn listxattr(&self, node: &NodeRef) -> io::Result<Vec<u8>> {
        let fd = self.own(node)?.fd()?;
        let path = link(&fd);
        sized(|buffer| if buffer.is_empty() { sys::listxattr_query(&path) } else { sys::listxattr(&path, buffer) })
    }

    fn removexattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<()> {
        Ok(sys::removexattr(link(self.own(node)?.fd()?), name)?)
    }

    fn open(&self, node: &NodeRef, flags: i32) -> io::Result<FileRef> {
        let node = self.parent(node)?;
        node.expect_file()?;
        let flags = OFlags::from_bits_retain(flags as u32);
        let bytes = Bytes::reopen(node.fd()?.as_fd(), flags, self.options.direct, false)?;
        Ok(self.opened(bytes, node, flags))
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
            let dir = self.own(parent)?.fd()?;
            // Not as the creator, and not where a refusal would fail what was made: see below.
            let kept = Bytes::kept(flags) - OFlags::NOATIME;
            let new = kept | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR;
            let mode = Mode::from_raw_mode(mode & 0o7777);
            let made = to_keep(&*dir, || match acting_as(creator, || Ok(sys::openat(&*dir, name, new, mode)?)) {
                Ok(fd) => Ok(fd),
                Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            });
            match made {
                Ok(fd) => {
                    let refused = flags.contains(OFlags::NOATIME) && set_no_atime(&fd).is_err();
                    let flags = if refused { flags - OFlags::NOATIME } else { flags };
                    let node = self.created(parent, name, &fd)?;
                    let bytes = Bytes::created(fd, flags, self.options.direct);
                    return Ok((node.clone(), self.opened(bytes, node, flags)));
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
        Ok(sys::fsync(open_dir(&self.own(node)?.fd()?)?)?)
    }

    fn fallocate(&self, file: &FileRef, mode: i32, offset: u64, len: u64, caller: &Creator) -> io::Result<()> {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        // Set-ID bits go unless the caller may keep them.
        open(file)?.change(|bytes| acting_as_user(caller, || Ok(sys::fallocate(bytes.fd(), mode, offset, len)?)))?
    }

    fn reports_at_close(&self) -> bool {
        self.reports_at_close
    }

    fn flush(&self, file: &FileRef) -> io::Result<()> {
        close::report(open(file)?.bytes()?.fd())
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
        Ok(sys::seek(open(file)?.bytes()?.fd(), to)?)
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
        Ok(open(file)?.bytes()?.read(offset, bufs)?)
    }

    fn write(&self, file: &FileRef, _target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        Ok(open(file)?.change(|bytes| bytes.write(offset, bufs))??)
    }

    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        open(file)?.sync(metadata)
    }

    fn try_read(
        &self,
        file: &FileRef,
        _target: usize,
        offset: u64,
        bufs: &mut [io::IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        Ok(open(file)?.bytes()?.try_read(offset, bufs)?)
    }

    /// `None` with [`PosixOptions::direct`]: plain calls would fail on requests that are not aligned.
    fn descriptor(&self, file: &FileRef, _target: usize) -> Option<Arc<OwnedFd>> {
        open(file).ok()?.lend()
    }

    fn size_at_least(&self, file: &FileRef, _end: u64) -> io::Result<u64> {
        Ok(open(file)?.stat()?.st_size as u64)
    }
}

impl PosixNode {
    /// Only regular files are opened here: opening a FIFO would block, a device would act.
    fn expect_file(&self) -> io::Result<()> {
        match self.kind() {
            FileType::RegularFile => Ok(()),
            FileType::Directory => Err(Errno::ISDIR.into()),
            FileType::Symlink => Err(Errno::LOOP.into()),
            _ => Err(Errno::NXIO.into()),
        }
    }
}

/// The process has no descriptor left.
fn is_none_left(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn open(file: &FileRef) -> io::Result<&PosixFile> {
    file_as(file)
}

/// How often a name is looked at that always is another object's.
const LOOKS: u32 = 100;

/// The path that leads to the object of an open descriptor.
fn link(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

fn open_dir(fd: impl AsFd) -> rustix::io::Result<OwnedFd> {
    open_dir_with(fd, OFlags::empty())
}

fn open_dir_with(fd: impl AsFd, more: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
    with_room(|| sys::openat(&fd, ".", flags, Mode::empty()))
}

/// From now on reading through this descriptor does not change the time of access.
fn set_no_atime(fd: &OwnedFd) -> rustix::io::Result<()> {
    sys::fcntl_setfl(fd, sys::fcntl_getfl(fd)? | OFlags::NOATIME)
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
