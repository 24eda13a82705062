//! The objects that a directory storage remembers, and how they are found again.
//!
//! While anybody holds an object there is one [`PosixNode`] for it, in the registry. It mostly has an `O_PATH` descriptor;
//! when the [cache](super::cache) took that away it is reopened by its file handle where the file system has handles and
//! the process may use them, else by its name in its parent's node. Either way it is the same object or `ESTALE`: handles
//! contain the generation, and what was found by name must have the same device, inode number and handle (or, without
//! handles, time of birth).

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags, Stat, Statx, StatxFlags};
use rustix::io::Errno;

use super::cache::{CACHE, Descriptors, Evict, Eviction, Place, copy_to_keep, is_reserve, with_room};
use super::{handle, is_none_left};
use crate::Node;

const SHARDS: usize = 64;

/// Device and inode number.
type Key = (u64, u64);

pub(super) fn key(stat: &Stat) -> Key {
    (stat.st_dev, stat.st_ino)
}

/// What all nodes of a storage share.
pub(super) struct Shared {
    device: u64,
    /// For handles: a descriptor on the top's file system that is not `O_PATH`, and its mount. `None` where handles cannot
    /// be opened.
    mount: Option<(OwnedFd, i32)>,
    shards: [Mutex<HashMap<u64, Weak<PosixNode>>>; SHARDS],
    /// Live objects whose id is not the natural one because another one had that.
    displaced: Mutex<HashMap<Key, u64>>,
    displaced_count: AtomicUsize,
    /// The id of the top's node.
    top: OnceLock<u64>,
    /// Held for writing by renames, for reading by what finds names: nodes know where they are.
    pub(super) names: RwLock<()>,
    /// Renames begun and ended: while this is odd, nodes may not be where they believe to be.
    renames: AtomicU64,
}

pub(super) struct PosixNode {
    body: Arc<Body>,
    /// How often it is open as a file.
    pub(super) opens: AtomicUsize,
}

/// What the cache may hold on to as well.
struct Body {
    shared: Arc<Shared>,
    id: u64,
    key: Key,
    /// As it was when the object was found: who changes it knows it better.
    mode: u32,
    state: Mutex<State>,
    /// Where it was last seen; `None` for the top, and for what lost that name.
    location: Mutex<Option<Location>>,
    place: Place,
}

struct State {
    fd: Option<Arc<OwnedFd>>,
    /// The descriptor must stay while this is not 0: there is no other way to the object, or soon may not be.
    pins: u32,
    /// Known once the descriptor was closed for the first time.
    identity: Option<Identity>,
}

/// What tells an object from another one with the same inode number.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Identity {
    Handle { handle: Box<[u8]>, mount: i32 },
    Birth(i64, u32),
    Unknown,
}

#[derive(Clone)]
pub(super) struct Location {
    pub(super) parent: Arc<PosixNode>,
    pub(super) name: Box<OsStr>,
}

impl Node for PosixNode {
    fn id(&self) -> u64 {
        self.body.id
    }
}

impl Shared {
    /// `by_handle`: use file handles if that works here.
    pub(super) fn new(top: &OwnedFd, stat: &Stat, by_handle: bool) -> Arc<Shared> {
        let mount = || {
            let fd = sys::openat(top, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
            let (handle, mount) = handle::of(&fd).ok()?;
            handle::open(&fd, &handle).ok()?;
            Some((fd, mount))
        };
        Arc::new(Shared {
            device: stat.st_dev,
            mount: if by_handle { mount() } else { None },
            shards: std::array::from_fn(|_| Mutex::default()),
            displaced: Mutex::default(),
            displaced_count: AtomicUsize::new(0),
            top: OnceLock::new(),
            names: RwLock::new(()),
            renames: AtomicU64::new(0),
        })
    }

    pub(super) fn by_handle(&self) -> bool {
        self.mount.is_some()
    }

    /// Opens an object by a handle from [`PosixNode::handle`], also one of an earlier process.
    pub(super) fn open_handle(&self, handle: &[u8]) -> io::Result<OwnedFd> {
        let (mount, _) = self.mount.as_ref().filter(|_| handle.len() > 4).ok_or(Errno::OPNOTSUPP)?;
        Ok(with_room(|| handle::open(mount, handle)).map_err(stale)?)
    }

    /// The top directory's node.
    pub(super) fn top(self: &Arc<Shared>, fd: OwnedFd, stat: &Stat) -> Arc<PosixNode> {
        let node = self.node(Some(fd), None, stat, None);
        node.body.state.lock().pins = 1;
        CACHE.remove(&node.body.place);
        let _ = self.top.set(node.id());
        node
    }

    /// How many objects are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Names change until the result is dropped. For who holds [`Shared::names`] for writing, and reopens nothing by name
    /// meanwhile.
    pub(super) fn renaming(&self) -> impl Drop + '_ {
        struct Renaming<'a>(&'a AtomicU64);
        impl Drop for Renaming<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.renames.fetch_add(1, Ordering::SeqCst);
        Renaming(&self.renames)
    }

    fn shard(&self, id: u64) -> &Mutex<HashMap<u64, Weak<PosixNode>>> {
        &self.shards[mix(id) as usize % SHARDS]
    }

    /// The id that an object gets if no other has it: stable, so that programs that compare inode numbers find hard links
    /// even if the object was forgotten in between.
    fn natural_id(&self, key: Key) -> u64 {
        if key.0 == self.device { key.1 } else { mix(mix(key.0) ^ key.1) }
    }

    fn known(&self, id: u64) -> Option<Arc<PosixNode>> {
        self.shard(id).lock().get(&id).and_then(Weak::upgrade)
    }

    /// The id of an object: the one that it has if it is remembered, else the one that it would get.
    pub(super) fn first_id(&self, key: Key) -> u64 {
        if self.displaced_count.load(Ordering::Relaxed) > 0
            && let Some(id) = self.displaced.lock().get(&key)
        {
            return *id;
        }
        self.natural_id(key)
    }

    /// The node of an object, if it is remembered. If inode numbers were reused it may be another object's.
    pub(super) fn find(&self, stat: &Stat) -> Option<Arc<PosixNode>> {
        self.known(self.first_id(key(stat))).filter(|node| node.body.key == key(stat))
    }

    /// The node of an object that was just found: the one that is remembered, or a new one. Without a descriptor there
    /// must be an identity.
    pub(super) fn node(
        self: &Arc<Shared>,
        fd: Option<OwnedFd>,
        identity: Option<Identity>,
        stat: &Stat,
        location: Option<Location>,
    ) -> Arc<PosixNode> {
        // Only what leads down from the top is a location: others could make a circle of references.
        let location = location.filter(|at| !matches!(at.name.as_bytes(), b"." | b".."));
        let fd = fd.map(Arc::new);
        let key = key(stat);
        let mut id = self.first_id(key);
        loop {
            if let Some(node) = self.known(id) {
                if node.body.key == key && node.body.is_same(fd.as_ref(), identity.as_ref()) {
                    node.body.keep(fd);
                    let mut known = node.body.location.lock();
                    if known.is_none() && self.top.get() != Some(&id) {
                        *known = location;
                    }
                    drop(known);
                    return node;
                }
                id = mix(id);
                continue;
            }
            let body = Body {
                shared: self.clone(),
                id,
                key,
                mode: stat.st_mode,
                state: Mutex::new(State { fd: fd.clone(), pins: 0, identity: identity.clone() }),
                location: Mutex::new(location.clone()),
                place: Place::new(),
            };
            let node = Arc::new(PosixNode { body: Arc::new(body), opens: AtomicUsize::new(0) });
            let mut shard = self.shard(id).lock();
            if shard.get(&id).is_some_and(|other| other.strong_count() > 0) {
                drop(shard); // somebody else found it at the same time
                continue;
            }
            shard.insert(id, Arc::downgrade(&node));
            drop(shard);
            if id != self.natural_id(key) {
                let mut displaced = self.displaced.lock();
                displaced.insert(key, id);
                self.displaced_count.store(displaced.len(), Ordering::Relaxed);
            }
            if fd.is_some() {
                CACHE.insert(node.body.clone());
            }
            return node;
        }
    }
}

impl PosixNode {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.body.mode)
    }

    /// Kind and permissions (`st_mode`) that the object had when it was found.
    pub(super) fn mode_found(&self) -> u32 {
        self.body.mode
    }

    pub(super) fn inode(&self) -> u64 {
        self.body.key.1
    }

    pub(super) fn device(&self) -> u64 {
        self.body.key.0
    }

    pub(super) fn belongs_to(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.body.shared, shared)
    }

    /// An `O_PATH` descriptor of the object, reopened if need be.
    ///
    /// # Errors
    /// `ESTALE` if the object is gone; `EMFILE` if the process has no descriptor left.
    pub(super) fn fd(&self) -> io::Result<Arc<OwnedFd>> {
        match self.body.open_fd() {
            Some(fd) => Ok(fd),
            None => self.reopen(),
        }
    }

    /// The object's attributes; by its name, if the process has no descriptor left.
    pub(super) fn stat(&self) -> io::Result<Stat> {
        match self.fd() {
            Ok(fd) => Ok(sys::fstat(fd)?),
            Err(none) if is_none_left(&none) => self.stat_by_name().ok_or(none),
            Err(error) => Err(error),
        }
    }

    /// `None` if its directory has no descriptor either, or the name is not known to be this object's.
    #[cold]
    fn stat_by_name(&self) -> Option<Stat> {
        let Location { parent, name } = self.body.location.lock().clone()?;
        let dir = parent.body.open_fd()?;
        let is_same = || self.body.is_same(None, Some(&Identity::at(&dir, &name)));
        let look = || sys::statat(&dir, &*name, AtFlags::SYMLINK_NOFOLLOW).ok();
        // Of one object: looked at before and after.
        look().filter(|stat| key(stat) == self.body.key && is_same())?;
        look().filter(|stat| key(stat) == self.body.key)
    }

    #[cold]
    fn reopen(&self) -> io::Result<Arc<OwnedFd>> {
        if let Some(fd) = self.body.reopen_by_handle()? {
            return Ok(self.body.keep(Some(fd)).expect("just given"));
        }
        let shared = &self.body.shared;
        let before = shared.renames.load(Ordering::SeqCst);
        match self.reopen_by_name() {
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {
                if let Some(fd) = self.body.open_fd() {
                    return Ok(fd); // kept meanwhile by who removed it
                }
                if before.is_multiple_of(2) && shared.renames.load(Ordering::SeqCst) == before {
                    return Err(error);
                }
                // Not while this thread has the lock: nothing is renamed meanwhile then.
                let _names = shared.names.read_recursive();
                self.reopen_by_name()
            }
            result => result,
        }
    }

    /// From the nearest directory above that is open. Not recursive: trees can be deep. `ESTALE` also if a part of the way is
    /// being renamed.
    fn reopen_by_name(&self) -> io::Result<Arc<OwnedFd>> {
        let mut missing: Vec<(Arc<Body>, Location)> = Vec::new();
        let mut at = self.body.clone();
        let mut dir = loop {
            let location = at.location.lock().clone().ok_or(Errno::STALE)?;
            let parent = location.parent.body.clone();
            missing.push((at, location));
            match parent.open_fd() {
                Some(fd) => break fd,
                None => match parent.reopen_by_handle()? {
                    Some(fd) => break parent.keep(Some(fd)).expect("just given"),
                    None => at = parent,
                },
            }
        };
        for (body, location) in missing.into_iter().rev() {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = with_room(|| sys::openat(&dir, &*location.name, flags, Mode::empty()));
            let fd = Arc::new(found.map_err(stale)?);
            if key(&sys::fstat(&fd)?) != body.key || !body.is_same(Some(&fd), None) {
                return Err(Errno::STALE.into());
            }
            dir = body.keep(Some(fd)).expect("just given");
        }
        Ok(dir)
    }

    /// A handle that [`Shared::open_handle`] opens; empty if there is none.
    pub(super) fn handle(&self) -> io::Result<Vec<u8>> {
        let own = self.body.shared.mount.as_ref().map(|(_, mount)| *mount);
        let handle = handle::of(self.fd()?).ok().filter(|(_, mount)| Some(*mount) == own);
        Ok(handle.map(|(handle, _)| handle.into_vec()).unwrap_or_default())
    }

    /// Names from the top, or `None` if the object lost the name that it was found by.
    pub(super) fn path(&self, top: u64) -> Option<Vec<u8>> {
        let mut names: Vec<Box<OsStr>> = Vec::new();
        let mut next = (self.id() != top).then(|| self.body.location.lock().clone());
        while let Some(location) = next {
            let Location { parent, name } = location?;
            names.push(name);
            next = (parent.id() != top).then(|| parent.body.location.lock().clone());
        }
        let names: Vec<&[u8]> = names.iter().rev().map(|name| name.as_bytes()).collect();
        Some(names.join(&b'/'))
    }

    pub(super) fn is_at(&self, parent: &PosixNode, name: &OsStr) -> bool {
        self.body.location.lock().as_ref().is_some_and(|at| at.is(parent, name))
    }

    pub(super) fn moved(&self, to: Location) {
        let before = self.body.location.lock().replace(to);
        drop(before); // may be the last reference to a directory's node
    }

    /// Forgets this name, if a rename has not given it another one since.
    pub(super) fn lost(&self, parent: &PosixNode, name: &OsStr) {
        let before = self.body.location.lock().take_if(|at| at.is(parent, name));
        drop(before);
    }

    /// Keeps the descriptor until as many [`PosixNode::unpin`]: the object may lose what leads to it.
    ///
    /// # Errors
    /// As [`PosixNode::fd`]; `EMFILE` also if only the reserve is left.
    pub(super) fn pin(&self) -> io::Result<Arc<OwnedFd>> {
        let fd = self.fd()?;
        // Without the lock: to make room others may be closed.
        let fd = if is_reserve(&fd) { Arc::new(copy_to_keep(&fd)?) } else { fd };
        let mut state = self.body.state.lock();
        state.pins += 1;
        let kept = match &state.fd {
            Some(has) if !is_reserve(has) => has.clone(),
            _ => state.fd.insert(fd).clone(),
        };
        drop(state);
        CACHE.remove(&self.body.place);
        Ok(kept)
    }

    /// It keeps its descriptor, or is just being looked at.
    pub(super) fn is_pinned(&self) -> bool {
        self.body.state.try_lock().is_some_and(|state| state.pins > 0)
    }

    /// Somebody has it open as a file.
    pub(super) fn is_open_file(&self) -> bool {
        self.opens.load(Ordering::SeqCst) > 0
    }

    pub(super) fn unpin(&self) {
        let mut state = self.body.state.lock();
        state.pins -= 1;
        let evictable = state.pins == 0;
        drop(state);
        if evictable {
            CACHE.insert(self.body.clone());
        }
    }

    /// As the cache would.
    #[cfg(test)]
    pub(super) fn try_close(&self) -> bool {
        let evicted = matches!(self.body.evict(), Eviction::Done(_));
        CACHE.remove(&self.body.place);
        evicted
    }

    #[cfg(test)]
    pub(super) fn is_open(&self) -> bool {
        self.body.state.lock().fd.is_some()
    }
}

impl Drop for PosixNode {
    fn drop(&mut self) {
        let Body { shared, id, key, place, location, .. } = &*self.body;
        let mut shard = shared.shard(*id).lock();
        // Somebody may have found the object anew since the last reference went.
        if shard.get(id).is_some_and(|known| known.strong_count() == 0) {
            shard.remove(id);
        }
        drop(shard);
        if *id != shared.natural_id(*key) {
            let mut displaced = shared.displaced.lock();
            if displaced.get(key) == Some(id) {
                displaced.remove(key);
            }
            shared.displaced_count.store(displaced.len(), Ordering::Relaxed);
        }
        CACHE.remove(place);
        // The parents that nobody else holds, one after the other: trees can be deeper than the stack.
        let mut next = location.lock().take();
        while let Some(Location { parent, .. }) = next {
            next = Arc::into_inner(parent).and_then(|node| node.body.location.lock().take());
        }
    }
}

impl Body {
    fn open_fd(&self) -> Option<Arc<OwnedFd>> {
        self.place.touch();
        self.state.lock().fd.clone()
    }

    /// Takes a descriptor of the object, unless it has one; returns the one it has.
    fn keep(self: &Arc<Body>, fd: Option<Arc<OwnedFd>>) -> Option<Arc<OwnedFd>> {
        let mut state = self.state.lock();
        if let Some(has) = &state.fd {
            return Some(has.clone());
        }
        let kept = fd?;
        state.fd = Some(kept.clone());
        let cached = state.pins == 0;
        drop(state);
        if cached {
            CACHE.insert(self.clone());
        }
        Some(kept)
    }

    /// `None` if that is not the way.
    fn reopen_by_handle(&self) -> io::Result<Option<Arc<OwnedFd>>> {
        let Some((mount_fd, mount_id)) = &self.shared.mount else { return Ok(None) };
        let handle = match &self.state.lock().identity {
            Some(Identity::Handle { handle, mount }) if mount == mount_id => handle.clone(),
            _ => return Ok(None),
        };
        match with_room(|| handle::open(mount_fd, &handle)) {
            // The process gave the right up.
            Err(Errno::PERM) => Ok(None),
            fd => {
                let fd = fd.map_err(stale)?;
                // Number and handle were asked for one after the other where there was no descriptor: they may be of two
                // objects, if somebody made the name another one's in between.
                if key(&sys::fstat(&fd)?) == self.key { Ok(Some(Arc::new(fd))) } else { Err(Errno::STALE.into()) }
            }
        }
    }

    fn is_same(&self, fd: Option<&Arc<OwnedFd>>, identity: Option<&Identity>) -> bool {
        let state = self.state.lock();
        // Whoever is held open keeps its inode number to itself.
        if state.fd.is_some() {
            return true;
        }
        match (&state.identity, fd, identity) {
            (Some(known), _, Some(found)) => known == found,
            (Some(known), Some(fd), None) => *known == Identity::of(fd),
            _ => false,
        }
    }
}

impl Evict for Body {
    fn place(&self) -> &Place {
        &self.place
    }

    fn evict(&self) -> Eviction {
        let (Some(mut state), Some(location)) = (self.state.try_lock(), self.location.try_lock()) else {
            return Eviction::Busy;
        };
        if state.pins > 0 {
            return Eviction::Never;
        }
        let State { fd: Some(fd), identity, .. } = &mut *state else { return Eviction::Done(None) };
        let identity = identity.get_or_insert_with(|| Identity::of(fd));
        let by_handle = matches!((&*identity, &self.shared.mount),
            (Identity::Handle { mount, .. }, Some((_, own))) if mount == own);
        if !by_handle && location.is_none() {
            state.pins += 1;
            return Eviction::Never;
        }
        Eviction::Done(state.fd.take().map(|fd| Box::new(fd) as Descriptors))
    }
}

impl Identity {
    pub(super) fn of(fd: impl AsFd) -> Identity {
        if let Ok((handle, mount)) = handle::of(&fd) {
            return Identity::Handle { handle, mount };
        }
        Identity::of_birth(sys::statx(&fd, "", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME))
    }

    /// As [`Identity::of`] of what a name in a directory leads to, which takes no descriptor.
    pub(super) fn at(dir: impl AsFd, name: &OsStr) -> Identity {
        if let Some(Ok((handle, mount))) = CString::new(name.as_bytes()).ok().map(|name| handle::at(&dir, &name, 0)) {
            return Identity::Handle { handle, mount };
        }
        Identity::of_birth(sys::statx(&dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME))
    }

    fn of_birth(stat: rustix::io::Result<Statx>) -> Identity {
        match stat {
            Ok(stat) if stat.stx_mask & StatxFlags::BTIME.bits() != 0 => {
                Identity::Birth(stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)
            }
            _ => Identity::Unknown,
        }
    }
}

impl Location {
    pub(super) fn new(parent: &Arc<PosixNode>, name: &OsStr) -> Location {
        Location { parent: parent.clone(), name: name.into() }
    }

    fn is(&self, parent: &PosixNode, name: &OsStr) -> bool {
        std::ptr::eq(&*self.parent, parent) && &*self.name == name
    }
}

/// What leads nowhere any more.
fn stale(error: Errno) -> Errno {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::STALE,
        error => error,
    }
}

/// Spreads bits (the finaliser of splitmix64); a bijection without short cycles in practice.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
