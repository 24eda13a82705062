//! What the FUSE operations have in common: attributes, opening and creating, the kernel's cache.

use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyEntry,
    ReplyOpen, ReplyXattr, Request,
};
use sluice_runtime::Volume;
use sluice_storage::{Attr, Creator, Data, DirEntries, DirEntry, FileRef, Namespace, NodeRef, SetAttr};

use crate::apps::{Apps, LastCaller};
use crate::coherence::{Change, Coherence, Invalidator, Verdict};
use crate::filesystem::FuseHost;
use crate::handles::{DirHandle, Handle, Handles};
use crate::inodes::{Inode, Inodes, SET_ID, kind};
use crate::pool::Pool;
use crate::syncs::Syncs;
use crate::{CacheMode, MountOptions, announced, groups};

pub(crate) type Answer<T> = Result<T, Errno>;

/// The attribute with what a program may do whoever starts it.
const CAPABILITIES: &str = "security.capability";

pub(crate) struct Core {
    pub(crate) namespace: Arc<dyn Namespace>,
    pub(crate) data: Arc<dyn Data>,
    pub(crate) volume: Arc<Volume<FuseHost>>,
    pub(crate) apps: Arc<Apps>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) files: Arc<Handles<Handle>>,
    pub(crate) dirs: Handles<DirHandle>,
    pub(crate) options: MountOptions,
    /// For what waits for a device.
    pub(crate) syncs: Syncs,
    /// For closing where it may wait: not behind those who sync.
    pub(crate) closes: Pool,
    pub(crate) invalidator: Arc<Invalidator>,
}

/// Shared with operations that go on after the FUSE library's call has returned.
pub(crate) struct SluiceFs(pub(crate) Arc<Core>);

impl Deref for SluiceFs {
    type Target = Arc<Core>;

    fn deref(&self) -> &Arc<Core> {
        &self.0
    }
}

/// Whose request it is.
#[derive(Clone, Copy)]
pub(crate) struct Requester {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl From<&Request> for Requester {
    fn from(req: &Request) -> Requester {
        Requester { pid: req.pid(), uid: req.uid(), gid: req.gid() }
    }
}

impl Requester {
    /// The kernel decides by CAP_FSETID, which it does not tell; it is root's.
    pub(crate) fn keeps_set_id(self) -> bool {
        self.uid == 0
    }

    fn is_in_group(self, gid: u32) -> bool {
        self.gid == gid || groups::of_thread(self.pid).contains(&gid)
    }
}

/// How an open file is to use the kernel's cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheUse {
    /// The mount has none.
    None,
    Cached,
    /// Others use it.
    Beside,
}

impl CacheUse {
    fn flags(self) -> FopenFlags {
        match self {
            // The kernel is never asked to drop pages when it opens: see `coherence`.
            CacheUse::Cached => FopenFlags::FOPEN_KEEP_CACHE,
            CacheUse::Beside => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_KEEP_CACHE,
            CacheUse::None => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        }
    }
}

/// Attributes, generation, and the number if the entry counts as looked up.
type Listed = (FileAttr, Generation, Option<INodeNo>);

/// A file that was just made, and is open.
pub(crate) struct Created {
    inode: Arc<Inode>,
    attr: Attr,
    file: FileRef,
}

impl Core {
    /// Attributes for the kernel, noted in the inode.
    pub(crate) fn noted(&self, inode: &Inode, attr: &Attr) -> FileAttr {
        inode.note(attr);
        let mut told = self.inodes.file_attr(attr);
        // What has no blocks programs take for one hole (`tar --sparse` does), while the kernel may have data that it has not
        // sent yet: what was written through a mapping, or with a cache of writes, of which it knows the size alone.
        let may_have_data = attr.size > 0 || self.options.cache == CacheMode::Writeback;
        if told.blocks == 0 && told.kind == FileType::RegularFile && may_have_data && inode.is_written() {
            told.blocks = 1;
        }
        told
    }

    /// Makes or links an object in a directory; its entry counts as a look-up.
    pub(crate) fn under(
        &self,
        parent: INodeNo,
        make: impl FnOnce(&NodeRef) -> io::Result<NodeRef>,
    ) -> Answer<(Arc<Inode>, Attr)> {
        let node = make(&self.inodes.get(parent)?.node)?;
        let attr = self.namespace.getattr(&node)?;
        let inode = self.inodes.looked_up(node);
        Ok((inode, attr))
    }

    /// A look-up, also by number alone (`.` and `..`, for file handles).
    pub(crate) fn find(&self, parent: INodeNo, name: &OsStr) -> Answer<NodeRef> {
        let dots = name == "." || name == "..";
        let node = if dots { self.inodes.find(parent)? } else { self.inodes.get(parent)?.node.clone() };
        if name == "." || name == ".." && parent == INodeNo::ROOT {
            return Ok(node);
        }
        Ok(self.namespace.lookup(&node, name)?)
    }

    /// Calls `make` with whom an object is made for. The kernel has checked the permissions, but the storage acts as this
    /// user, and is refused where only a supplementary group permits it, so the groups are looked up then; and for a file
    /// that is to be set-group-ID, which only members may make.
    pub(crate) fn on_behalf<T>(
        &self,
        requester: Requester,
        mode: u32,
        umask: u32,
        make: impl Fn(&Creator) -> io::Result<T>,
    ) -> io::Result<T> {
        let Requester { pid, uid, gid } = requester;
        let set_gid = mode & libc::S_ISGID != 0;
        let groups = if uid != 0 && set_gid { groups::of_thread(pid) } else { Vec::new() };
        let creator = Creator { uid, gid, groups, umask };
        match make(&creator) {
            Err(error) if uid != 0 && !set_gid && error.kind() == io::ErrorKind::PermissionDenied => {
                match groups::of_thread(pid) {
                    groups if groups.is_empty() => Err(error),
                    groups => make(&Creator { groups, ..creator }),
                }
            }
            result => result,
        }
    }

    /// Time for which attributes hold. Of a file with set-ID bits they do not: a write takes these away, and the kernel
    /// does not ask after one.
    pub(crate) fn attr_ttl(&self, attr: &FileAttr) -> Duration {
        let set_id = attr.kind == FileType::RegularFile && u32::from(attr.perm) & SET_ID != 0;
        if set_id { Duration::ZERO } else { self.options.attr_timeout }
    }

    /// Time for which name and attributes hold, where the protocol takes just one.
    pub(crate) fn ttl(&self, attr: &FileAttr) -> Duration {
        self.attr_ttl(attr).min(self.options.entry_timeout)
    }

    pub(crate) fn entry(&self, reply: ReplyEntry, inode: &Inode, attr: &Attr) {
        let attr = self.noted(inode, attr);
        reply.entry_with_ttls(&self.attr_ttl(&attr), &self.options.entry_timeout, &attr, inode.generation);
    }

    /// Answers with attributes, after dropping pages that do not belong to them. `before`: [`Coherence::before`].
    pub(crate) fn answer_attr(self: &Arc<Self>, inode: Arc<Inode>, before: u64, attr: Attr, reply: ReplyAttr) {
        let answer = move |core: &Core, inode: &Inode| {
            let attr = core.noted(inode, &attr);
            reply.attr(&core.attr_ttl(&attr), &attr);
        };
        if self.is_current(&inode, before, &attr) {
            return answer(self, &inode);
        }
        let core = self.clone();
        self.invalidator.pool.run(move || {
            core.refresh(&inode);
            answer(&core, &inode);
        });
    }

    /// As [`Core::answer_attr`], for a look-up.
    pub(crate) fn answer_entry(self: &Arc<Self>, inode: Arc<Inode>, before: u64, attr: Attr, reply: ReplyEntry) {
        if self.is_current(&inode, before, &attr) {
            return self.entry(reply, &inode, &attr);
        }
        let core = self.clone();
        self.invalidator.pool.run(move || {
            core.refresh(&inode);
            core.entry(reply, &inode, &attr);
        });
    }

    /// Whether the kernel's pages, if it may have any, can stay.
    fn is_current(&self, inode: &Inode, before: u64, attr: &Attr) -> bool {
        if self.options.cache != CacheMode::Auto {
            return true;
        }
        let Some(mut pages) = inode.coherence.try_lock() else { return true };
        !pages.are_known() || inode.coherence.judge(&mut pages, before, attr) != Verdict::Drop
    }

    /// Drops the pages of a file that somebody else changed. On a thread of the invalidator's pool.
    fn refresh(&self, inode: &Inode) {
        let mut pages = inode.coherence.lock();
        let before = inode.coherence.before();
        // Before the pages go: what is read afterwards is at least as new.
        let Ok(attr) = self.namespace.getattr(&inode.node) else { return };
        if inode.coherence.judge(&mut pages, before, &attr) == Verdict::Drop {
            self.invalidator.drop_pages(inode.ino);
            inode.coherence.dropped(&mut pages, before, &attr);
        }
    }

    /// Flags for the storage: `O_APPEND` offsets come from the kernel, and a write-back cache must read the pages
    /// around what it writes.
    fn storage_flags(&self, flags: i32) -> i32 {
        let flags = flags & !(libc::O_APPEND | libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY);
        let flags = if self.options.no_atime { flags | libc::O_NOATIME } else { flags };
        let write_only = flags & libc::O_ACCMODE == libc::O_WRONLY;
        if self.options.cache == CacheMode::Writeback && write_only {
            flags & !libc::O_ACCMODE | libc::O_RDWR
        } else {
            flags
        }
    }

    fn handle(
        &self,
        requester: Requester,
        inode: Arc<Inode>,
        file: FileRef,
        flags: i32,
        cache: CacheUse,
    ) -> FileHandle {
        self.volume.opened(&file);
        let writable = is_writable(flags);
        let last = LastCaller::default();
        inode.writers.fetch_add(writable.into(), Ordering::SeqCst);
        // Only writes come without a caller, so readers need not be asked after yet.
        let opener =
            if writable { self.apps.of_caller(&last, requester.pid, requester.uid) } else { Default::default() };
        let (synchronous, cached) = (flags & libc::O_SYNC, cache == CacheUse::Cached);
        self.files.add(Handle { file, inode, writable, synchronous, cached, opener, last })
    }

    /// How an open file uses the cache; counted as open if it does. `None`: only a thread that may wait can tell.
    fn cache_use(&self, inode: &Inode, file: &FileRef, flags: i32, may_wait: bool) -> Option<CacheUse> {
        // O_DIRECT is the kernel's affair where there is a cache: see `coherence`.
        if self.options.cache == CacheMode::None {
            return Some(CacheUse::None);
        }
        let mut pages = if may_wait { inode.coherence.lock() } else { inode.coherence.try_lock()? };
        if self.options.cache == CacheMode::Auto {
            let before = inode.coherence.before();
            let verdict = self.namespace.getattr_open(file).map(|attr| {
                inode.note(&attr);
                (inode.coherence.judge(&mut pages, before, &attr), attr)
            });
            match verdict {
                Ok((Verdict::Drop, _)) if !may_wait => return None,
                Ok((Verdict::Drop, attr)) => {
                    self.invalidator.drop_pages(inode.ino);
                    inode.coherence.dropped(&mut pages, before, &attr);
                }
                // Beside the cache for reading only: what is written beside it others would not read from it.
                Ok((Verdict::Bypass, _)) | Err(_) if !is_writable(flags) => return Some(CacheUse::Beside),
                _ => {}
            }
        }
        inode.coherence.opened(&mut pages, is_writable(flags));
        Some(CacheUse::Cached)
    }

    /// Opens a file and answers, perhaps later.
    pub(crate) fn open(self: &Arc<Self>, requester: Requester, ino: INodeNo, flags: i32, reply: ReplyOpen) {
        let (inode, file) = match self.open_storage(ino, flags) {
            Ok(opened) => opened,
            Err(error) => return reply.error(error),
        };
        if let Some(cache) = self.cache_use(&inode, &file, flags, false) {
            return reply.opened(self.handle(requester, inode, file, flags, cache), cache.flags());
        }
        let core = self.clone();
        self.invalidator.pool.run(move || {
            let cache = core.cache_use(&inode, &file, flags, true).expect("may wait");
            reply.opened(core.handle(requester, inode, file, flags, cache), cache.flags());
        });
    }

    /// Whether capabilities of a program must be taken away here when it is written. Of what goes by its cache the kernel
    /// does that; else the file system below, which on several targets does not see all that is written.
    pub(crate) fn drops_capabilities(&self) -> bool {
        self.options.cache == CacheMode::None && self.data.layout().targets() > 1
    }

    /// Takes them away.
    pub(crate) fn drop_capabilities(&self, inode: &Arc<Inode>) {
        inode.capable.store(false, Ordering::SeqCst);
        match self.namespace.removexattr(&inode.node, CAPABILITIES.as_ref()) {
            Err(error) if error.raw_os_error() != Some(libc::ENODATA) => {
                tracing::warn!(%error, "a written file keeps its capabilities");
            }
            _ => {}
        }
    }

    fn open_storage(&self, ino: INodeNo, flags: i32) -> Answer<(Arc<Inode>, FileRef)> {
        let inode = self.inodes.get(ino)?;
        let wanted = self.storage_flags(flags);
        let file = match self.namespace.open(&inode.node, wanted) {
            // The storage's owner may write but not read: then the cache has to do without reading. Or it may read, but
            // is not the file's owner, so the time of access changes.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) && wanted != flags => {
                self.namespace.open(&inode.node, flags & !libc::O_APPEND)?
            }
            result => result?,
        };
        if is_writable(flags)
            && self.drops_capabilities()
            && self.namespace.getxattr(&inode.node, CAPABILITIES.as_ref()).is_ok()
        {
            inode.capable.store(true, Ordering::SeqCst);
        }
        Ok((inode, file))
    }

    pub(crate) fn create(
        &self,
        requester: Requester,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask): (u32, u32),
        flags: i32,
    ) -> Answer<Created> {
        let parent = self.inodes.get(parent)?;
        // Always exclusive: if the name appeared meanwhile nobody checked the file's permissions yet. The kernel looks
        // the name up again on ESTALE, and opens what it finds.
        let exclusive = self.storage_flags(flags) | libc::O_EXCL;
        let mode = mode & 0o7777;
        let create = |creator: &Creator| self.namespace.create(&parent.node, name, mode, exclusive, creator);
        let (node, file) = match self.on_behalf(requester, mode, umask, create) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && flags & libc::O_EXCL == 0 => {
                return Err(Errno::ESTALE);
            }
            result => result?,
        };
        let attr = self.namespace.getattr_open(&file)?;
        let inode = self.inodes.looked_up(node);
        inode.note(&attr);
        Ok(Created { inode, attr, file })
    }

    /// Answers for what [`Core::create`] made, perhaps later.
    pub(crate) fn answer_created(
        self: &Arc<Self>,
        requester: Requester,
        made: Created,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let answer = move |core: &Core, Created { inode, attr, file }: Created, cache: CacheUse| {
            let fh = core.handle(requester, inode.clone(), file, flags, cache);
            let attr = core.noted(&inode, &attr);
            reply.created(&core.ttl(&attr), &attr, inode.generation, fh, cache.flags());
        };
        if let Some(cache) = self.cache_use(&made.inode, &made.file, flags, false) {
            return answer(self, made, cache);
        }
        // Somebody found the new file at once, and its pages are just being dropped.
        let core = self.clone();
        self.invalidator.pool.run(move || {
            let cache = core.cache_use(&made.inode, &made.file, flags, true).expect("may wait");
            answer(&core, made, cache);
        });
    }

    /// Begins a change of a file, after a look for those of others.
    pub(crate) fn change(&self, inode: &Arc<Inode>) -> Change {
        let coherence = &inode.coherence;
        if self.options.cache == CacheMode::Auto
            && coherence.is_quiet()
            && let Some(mut pages) = coherence.try_lock()
            && pages.are_known()
        {
            let before = coherence.before();
            if let Ok(attr) = self.namespace.getattr(&inode.node) {
                coherence.judge(&mut pages, before, &attr);
            }
        }
        Change::begin(inode)
    }

    /// Closes what the kernel has released.
    pub(crate) fn close(&self, handle: &Handle) {
        handle.inode.writers.fetch_sub(handle.writable.into(), Ordering::SeqCst);
        if !handle.cached {
            return;
        }
        let coherence = &handle.inode.coherence;
        if handle.writable && self.options.cache == CacheMode::Auto {
            // What this handle wrote is what the cache holds, so the next open need not drop it.
            let mut pages = coherence.lock();
            let before = coherence.before();
            if let Ok(attr) = self.namespace.getattr_open(&handle.file) {
                coherence.judge(&mut pages, before, &attr);
            }
        }
        coherence.closed(handle.writable);
    }

    /// Takes the set-ID bits away from a file whose contents somebody other than root changes.
    pub(crate) fn drop_set_id(&self, requester: Requester, inode: &Arc<Inode>) {
        let _change = self.change(inode);
        let change = || -> io::Result<()> {
            let _modes = inode.modes.lock();
            let attr = self.namespace.getattr(&inode.node)?;
            let gone = lost_set_id(requester, &attr);
            self.remove_mode(inode, &attr, gone)
        };
        if let Err(error) = change() {
            tracing::debug!(%error, "a written file keeps its set-ID bits");
        }
    }

    fn remove_mode(&self, inode: &Inode, attr: &Attr, gone: u32) -> io::Result<()> {
        if gone != 0 {
            let mode = Some(attr.mode & 0o7777 & !gone);
            self.namespace.setattr(&inode.node, None, SetAttr { mode, ..SetAttr::default() })?;
        }
        inode.set_id.store(attr.mode & SET_ID & !gone != 0, Ordering::Relaxed);
        Ok(())
    }

    /// Waits for what was asked of a file before, for who is about to change its size or take away its data. The kernel sends
    /// neither while a call reads or writes, but it does so during asynchronous ones (AIO), which it offers without the
    /// cache: what was to be cut off would come back.
    fn settle(&self, inode: &Inode) {
        if self.options.cache == CacheMode::None {
            self.volume.wait_idle_number(inode.node.id());
        }
    }

    pub(crate) fn set_attributes(
        &self,
        requester: Requester,
        inode: &Arc<Inode>,
        file: Option<&FileRef>,
        set: SetAttr,
    ) -> Answer<FileAttr> {
        if set.size.is_some() {
            self.settle(inode);
        }
        let modes = (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()).then(|| inode.modes.lock());
        // The storage gives a file away as root, who would keep set-group-ID on one that is not executable.
        let given = (set.uid.is_some() || set.gid.is_some()) && !requester.keeps_set_id();
        let lost = if given { lost_set_id(requester, &self.namespace.getattr(&inode.node)?) } else { 0 };
        let _change = self.change(inode);
        let mut attr = self.namespace.setattr(&inode.node, file, set)?;
        if attr.mode & lost != 0 {
            self.remove_mode(inode, &attr, lost)?;
            attr = self.namespace.getattr(&inode.node)?;
        }
        inode.note(&attr);
        drop(modes);
        if set.size.is_some() && !requester.keeps_set_id() && attr.mode & SET_ID != 0 {
            self.drop_set_id(requester, inode);
            attr = self.namespace.getattr(&inode.node)?;
        }
        Ok(self.noted(inode, &attr))
    }

    pub(crate) fn allocate(
        &self,
        requester: Requester,
        handle: &Handle,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Answer<()> {
        self.settle(&handle.inode);
        let _change = self.change(&handle.inode);
        let caller = self.caller_of(requester, &handle.inode);
        Ok(self.namespace.fallocate(&handle.file, mode, offset, len, &caller)?)
    }

    pub(crate) fn set_xattr(
        &self,
        requester: Requester,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Answer<()> {
        if announced::is_ours(name) {
            return self.announce(requester, name, value);
        }
        let inode = self.inodes.get(ino)?;
        let _modes = (name == "system.posix_acl_access").then(|| inode.modes.lock());
        let _change = self.change(&inode);
        self.namespace.setxattr(&inode.node, name, value, flags, &self.caller_of(requester, &inode))?;
        if name == CAPABILITIES {
            inode.capable.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// A process says something of itself. Once more what it is served as is only read.
    fn announce(&self, requester: Requester, name: &OsStr, value: &[u8]) -> Answer<()> {
        let Requester { pid, uid, .. } = requester;
        let is_heard = if name == announced::JOB {
            self.apps.announce(pid, uid, announced::name_in(value).ok_or(Errno::EINVAL)?)
        } else if name == announced::PHASE {
            self.apps.phase(pid, value)
        } else {
            return Err(Errno::EOPNOTSUPP);
        };
        if is_heard { Ok(()) } else { Err(Errno::EINVAL) }
    }

    pub(crate) fn get_xattr(&self, requester: Requester, ino: INodeNo, name: &OsStr) -> Answer<Vec<u8>> {
        if name == announced::APP {
            return Ok(self.apps.name(self.apps.of(requester.pid, requester.uid).0).into_bytes());
        }
        Ok(self.namespace.getxattr(&self.inodes.get(ino)?.node, name)?)
    }

    pub(crate) fn remove_xattr(&self, ino: INodeNo, name: &OsStr) -> Answer<()> {
        let inode = self.inodes.get(ino)?;
        let _change = self.change(&inode);
        Ok(self.namespace.removexattr(&inode.node, name)?)
    }

    pub(crate) fn rename(&self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr), flags: u32) -> Answer<()> {
        let (old, new) = (self.inodes.get(from.0)?, self.inodes.get(to.0)?);
        let exchanged = (flags & libc::RENAME_EXCHANGE != 0).then(|| self.change_of_name(&new, to.1));
        let _changes = (self.change_of_name(&old, from.1), exchanged);
        Ok(self.namespace.rename(&old.node, from.1, &new.node, to.1, flags)?)
    }

    /// A file is about to get another name, which is a change of it, too. Not looked for where nothing is compared.
    fn change_of_name(&self, dir: &Inode, name: &OsStr) -> Option<Change> {
        let node = (self.options.cache == CacheMode::Auto).then(|| self.namespace.lookup(&dir.node, name))?.ok()?;
        Some(self.change(&self.inodes.get(self.inodes.number(node.id())).ok()?))
    }

    /// Who changes an object. Members of its group may leave it set-group-ID, so the groups are looked up if it is.
    fn caller_of(&self, requester: Requester, inode: &Inode) -> Creator {
        let Requester { pid, uid, gid } = requester;
        let set_gid = || self.namespace.getattr(&inode.node).is_ok_and(|attr| attr.mode & libc::S_ISGID != 0);
        let groups = if uid != 0 && set_gid() { groups::of_thread(pid) } else { Vec::new() };
        Creator { uid, gid, groups, umask: 0 }
    }

    /// The directory's entries, from position `from`, with the positions that follow them.
    pub(crate) fn list(&self, dir: &DirHandle, from: u64) -> Answer<Arc<DirEntries>> {
        let mut entries = dir.entries.lock();
        // One that was opened anew may go on where another one was, as users of file handles do.
        if from == 0 || entries.is_empty() {
            *entries = Arc::new(self.namespace.readdir(&dir.inode.node)?);
        }
        Ok(entries.clone())
    }

    /// What an entry of a directory is; looked at where the storage does not list that.
    pub(crate) fn kind_of(&self, dir: &DirHandle, entry: &DirEntry) -> FileType {
        let look = || {
            let node = self.namespace.lookup(&dir.inode.node, OsStr::from_bytes(entry.name.as_bytes())).ok()?;
            kind((self.namespace.getattr(&node).ok()?.mode >> 12) as u8)
        };
        kind(entry.kind).or_else(look).unwrap_or(FileType::RegularFile)
    }

    /// An entry for a list with attributes; `None` if it is gone.
    pub(crate) fn listed(&self, dir: &DirHandle, entry: &DirEntry) -> Answer<Option<Listed>> {
        // These two the kernel does not count as looked up.
        if matches!(entry.name.as_bytes(), b"." | b"..") {
            let attr = self.inodes.file_attr(&self.namespace.getattr(&dir.inode.node)?);
            return Ok(Some((FileAttr { ino: self.inodes.number(entry.ino), ..attr }, Generation(0), None)));
        }
        let find = || {
            let node = self.namespace.lookup(&dir.inode.node, OsStr::from_bytes(entry.name.as_bytes()))?;
            Ok((self.namespace.getattr(&node)?, node))
        };
        match find() {
            Ok((attr, node)) => {
                let inode = self.inodes.looked_up(node);
                Ok(Some((self.noted(&inode, &attr), inode.generation, Some(inode.ino))))
            }
            Err::<_, io::Error>(error) => match error.raw_os_error() {
                // Removed since.
                Some(libc::ENOENT) => Ok(None),
                // There may be another answer soon.
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EINTR | libc::EAGAIN) => Err(error.into()),
                // The mount of another user's program, or of one that has died. Who looks at it is told; the others are there.
                _ => Ok(Some((self.inodes.unknown_attr(self.kind_of(dir, entry)), Generation(0), None))),
            },
        }
    }

    /// The kernel does not know an object any more. Those that still have a name stay for users of file handles.
    pub(crate) fn forget(&self, ino: INodeNo, lookups: u64) {
        if let Some(inode) = self.inodes.forget(ino, lookups)
            && self.namespace.getattr(&inode.node).is_ok_and(|attr| attr.nlink > 0)
        {
            self.inodes.keep(inode);
        }
    }

    /// The mount has ended: ends what is under way and lets everything go.
    pub(crate) fn end(&self) {
        self.syncs.close();
        self.closes.close();
        self.invalidator.end();
        self.files.clear();
        self.dirs.clear();
        self.inodes.clear();
    }
}

/// The set-ID bits that go when this requester changes or gives away a file. Set-group-ID without group execution once meant
/// mandatory locking: members of the group keep it.
fn lost_set_id(requester: Requester, attr: &Attr) -> u32 {
    if attr.mode & libc::S_IFMT != libc::S_IFREG {
        return 0;
    }
    let kept = attr.mode & libc::S_IXGRP == 0 && requester.is_in_group(attr.gid);
    attr.mode & if kept { libc::S_ISUID } else { libc::S_ISUID | libc::S_ISGID }
}

fn is_writable(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// The names of a list that a user may see, as the kernel shows them on other file systems: not `trusted.*`, which are
/// for those with CAP_SYS_ADMIN, whom the kernel does not tell; they are root here.
pub(crate) fn visible_names(requester: Requester, names: Vec<u8>) -> Vec<u8> {
    if requester.uid == 0 || !names.windows(8).any(|part| part == b"trusted.") {
        return names;
    }
    names.split_inclusive(|&b| b == 0).filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect()
}

pub(crate) fn answer_xattr(reply: ReplyXattr, size: u32, value: Answer<Vec<u8>>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(error),
    }
}

/// To be taken before the attributes of an object that the kernel may have pages of.
pub(crate) fn before(inode: &Inode) -> u64 {
    Coherence::before(&inode.coherence)
}
