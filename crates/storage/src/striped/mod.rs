//! RAID-0 over several directories.
//!
//! Every target holds the same tree of names. The bytes of a regular file are dealt out to its pieces on the targets by
//! [`Layout`], from a target on that is [chosen](FirstTarget) when it is made; a piece that ends early is a hole.
//! **Target 0 decides** what exists and holds owners, modes, link targets and extended attributes; the other targets'
//! objects belong to the process's user (so an owner's quota counts on target 0 only), closed to others: directories
//! with mode 0700, files with those that tell where they begin (`place.rs`). The size of a file is what its
//! longest-reaching piece implies, the times of its last access and modification the latest of its pieces'. Hard links and
//! special files work like everything else.
//!
//! # Crash safety
//! The process may be killed at any moment; the next [`StripedStorage::create_or_open`] finds every operation done or not
//! begun:
//!
//! * *Making* something (a hard link too) ends with target 0, *removing* begins there. What a kill leaves on other targets
//!   is an *orphan*: not visible, and removed when its name is made again, or by [`check`].
//! * *Renames*, and *truncations* that change several pieces, are first written to a journal on target 0. A rename that a
//!   target refuses is taken back. Where it replaced something that is not possible: then it is tried again before every
//!   change of names until it is done, these fail until then, and a file whose parts are not together gives `EIO`.
//! * Writes to several pieces are as atomic as any file system's: each piece may be written or not. An extension with
//!   `fallocate` shows only when all its space is there. Setting a time may leave the later of the old and the new one.
//!
//! Nothing is synced for this: the model is a process that dies, not a machine. After a power failure run [`check`].
//!
//! A file whose piece is missing (someone removed it on one target), or whose pieces do not tell where it begins (someone
//! changed their permissions), gives `EIO` when opened, and a trace event names it.

use std::borrow::Cow;
use std::cell::{LazyCell, RefCell};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::hash::{BuildHasher, Hash, RandomState};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use rustix::io::Errno;

use crate::posix::{PosixOptions, PosixStorage};
use crate::{
    Attr, Creator, Data, DirEntries, FileRef, Layout, Namespace, Node, NodeRef, OpenFile, SetAttr, StatFs, file_as,
    node_as,
};

mod change;
mod check;
mod fault;
mod journal;
mod place;
mod size;
mod volume;

use change::Renamed;
pub use check::{Finding, Repair, Report, check};
pub use journal::fnv1a;
use journal::{Intent, Journal};
pub use place::FirstTarget;
use place::Places;
use size::{Floor, Sizes};
pub use volume::StripedError;

/// Stripe size of new volumes, in bytes.
pub const DEFAULT_STRIPE: u64 = 64 << 10;

/// The extended attribute that tells any program where a regular file's bytes are: `STRIPE FIRST TARGETS`, bytes of a stripe,
/// the target that it begins on, how many there are. It is not listed, so that no copy takes it along, and cannot be set.
pub const LAYOUT: &str = "user.sluice.layout";

/// How a volume is striped, fixed when it is made, and how its I/O is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StripedOptions {
    /// Stripe size in bytes. `None`: the volume's own; [`DEFAULT_STRIPE`] for a new one.
    pub stripe: Option<u64>,
    /// Which targets files begin on. `None`: as the volume has it; [`FirstTarget::Hash`] for a new one, if its directories'
    /// file systems keep permission bits. Earlier versions cannot open a volume that has this.
    pub first: Option<FirstTarget>,
    /// As [`PosixOptions::direct`]. Stripes should then be a multiple of 4096 bytes.
    pub direct: bool,
}

/// A striped volume; see the [module documentation](self).
pub struct StripedStorage {
    targets: Vec<PosixStorage>,
    /// Of a file that begins on target 0.
    layout: Layout,
    places: Places,
    root: NodeRef,
    journal: Journal,
    /// Held for writing by renames, which change what paths in the journal mean, and for reading by everything else.
    tree: RwLock<Option<Renamed>>,
    /// Keep the pieces of one name together: who changes a name holds its lock for writing, who looks it up for reading.
    names: [RwLock<()>; 64],
    hasher: RandomState,
    sizes: Sizes,
    /// Threads that sync targets at the moment.
    syncing: AtomicUsize,
    /// To whom the objects on the targets but the first belong.
    process: Creator,
    _locks: Vec<File>,
}

struct StripedNode {
    /// `None` where the piece is missing or of another kind.
    pieces: Vec<Option<NodeRef>>,
    /// Target 0's.
    id: u64,
    /// `S_IFMT` bits.
    kind: u32,
    /// The target that a regular file begins on; `None` if its pieces do not tell.
    first: Option<u32>,
}

struct StripedFile {
    pieces: Vec<FileRef>,
    /// For truncations, which need the file's path.
    node: NodeRef,
    layout: Layout,
    floor: Arc<Floor>,
}

impl Node for StripedNode {
    fn id(&self) -> u64 {
        self.id
    }

    fn is_whole(&self) -> bool {
        self.first.is_some() && self.pieces.iter().all(Option::is_some)
    }
}

impl OpenFile for StripedFile {
    fn id(&self) -> u64 {
        self.node.id()
    }

    fn first_target(&self) -> u32 {
        self.layout.first()
    }
}

impl StripedNode {
    fn on(&self, target: usize) -> io::Result<&NodeRef> {
        self.pieces[target].as_ref().ok_or_else(|| Errno::IO.into())
    }

    /// Target 0's piece, which every node has.
    fn first(&self) -> &NodeRef {
        self.pieces[0].as_ref().expect("a node comes from target 0")
    }

    fn is_file(&self) -> bool {
        self.kind == libc::S_IFREG
    }
}

impl StripedStorage {
    /// Opens the volume on these directories, in the order in which it was made, or makes one if all are empty. Finishes
    /// what a killed process left half done.
    ///
    /// # Errors
    /// Anything that does not fit together. Nothing is changed then.
    pub fn create_or_open(dirs: &[PathBuf], options: StripedOptions) -> Result<StripedStorage, StripedError> {
        StripedStorage::assemble(dirs, true, options)
    }

    fn assemble(dirs: &[PathBuf], create: bool, options: StripedOptions) -> Result<StripedStorage, StripedError> {
        let (volume, locks) = volume::claim(dirs, create, options)?;
        let direct = options.direct;
        let open = |dir: &PathBuf| PosixStorage::open(dir, PosixOptions { direct }).map_err(volume::at(dir));
        let targets = dirs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let pieces = targets.iter().map(|target| Some(target.root())).collect();
        let (id, kind) = (targets[0].root().id(), libc::S_IFDIR);
        let root: NodeRef = Arc::new(StripedNode { pieces, id, kind, first: Some(0) });
        let storage = StripedStorage {
            layout: Layout::striped(dirs.len() as u32, volume.stripe_bytes),
            places: Places::new(dirs.len() as u32, volume.first()),
            journal: Journal::open(&dirs[0]).map_err(volume::at(&dirs[0]))?,
            root,
            targets,
            tree: RwLock::default(),
            names: std::array::from_fn(|_| RwLock::default()),
            hasher: RandomState::new(),
            sizes: Sizes::default(),
            syncing: AtomicUsize::new(0),
            process: Creator::process(),
            _locks: locks,
        };
        storage.recover().map_err(volume::at(&dirs[0]))?;
        Ok(storage)
    }

    /// Names at the top that are the volume's own.
    fn reserved(&self, parent: &NodeRef, name: &OsStr) -> bool {
        parent.id() == self.root.id() && name.as_bytes().starts_with(volume::RESERVED.as_bytes())
    }

    /// Users cannot see the volume's own names, nor make them.
    fn expect_free(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()> {
        if self.reserved(parent, name) { Err(Errno::ACCESS.into()) } else { Ok(()) }
    }

    fn expect_visible(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()> {
        if self.reserved(parent, name) { Err(Errno::NOENT.into()) } else { Ok(()) }
    }

    fn name_lock(&self, parent: &NodeRef, name: &OsStr) -> &RwLock<()> {
        struct Name<'a>(u64, &'a OsStr);
        impl Hash for Name<'_> {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                (self.0, self.1).hash(state);
            }
        }
        &self.names[self.hasher.hash_one(Name(parent.id(), name)) as usize % self.names.len()]
    }

    /// Looks up all pieces. The caller holds the name's lock, and knows of a rename that is not done everywhere.
    fn find(&self, parent: &StripedNode, name: &OsStr, renamed: Option<&Renamed>) -> io::Result<StripedNode> {
        let first = self.targets[0].lookup(parent.first(), name)?;
        let kind = self.targets[0].kind(&first)?;
        let id = first.id();
        let inode = self.targets[0].inode(&first)?;
        let mut pieces = vec![Some(first)];
        for (index, (target, dir)) in self.targets.iter().zip(&parent.pieces).enumerate().skip(1) {
            // Only what is not there is missing: after another error it may be found the next time.
            let piece = match dir.as_ref().map(|dir| fault::look().and_then(|()| target.lookup(dir, name))) {
                None => None,
                Some(Err(error)) if error.raw_os_error() == Some(libc::ENOENT) => None,
                Some(found) => Some(found?),
            };
            let fits = |piece: &NodeRef| {
                let belongs = |other| renamed.is_none_or(|renamed| renamed.fits(inode, index, other));
                target.kind(piece).is_ok_and(|other| other == kind) && target.inode(piece).is_ok_and(belongs)
            };
            pieces.push(piece.filter(fits));
        }
        let first = self.begin_of(kind, &pieces);
        Ok(StripedNode { pieces, id, kind, first })
    }

    /// The target that an object with these pieces begins on; `None` if they do not tell.
    fn begin_of(&self, kind: u32, pieces: &[Option<NodeRef>]) -> Option<u32> {
        if kind == libc::S_IFREG { self.places.read(self.modes(pieces)) } else { Some(0) }
    }

    /// The permissions of the pieces on the targets but the first.
    fn modes(&self, pieces: &[Option<NodeRef>]) -> impl Iterator<Item = io::Result<u32>> {
        let pieces = self.targets.iter().zip(pieces).skip(1);
        pieces.map(|(target, piece)| target.mode_found(piece.as_ref().ok_or(Errno::NOENT)?))
    }

    /// Where a regular file's bytes are. A guess, for the sizes that are shown, unless it is [whole](Self::expect_whole).
    fn layout_of(&self, node: &StripedNode) -> Layout {
        self.layout.starting_at(node.first.unwrap_or(0))
    }

    /// The attribute [`LAYOUT`] of a regular file.
    fn told_layout(&self, node: &StripedNode) -> io::Result<Vec<u8>> {
        let no_such = || io::Error::from_raw_os_error(libc::ENODATA);
        let layout = if node.kind == libc::S_IFREG { self.layout_of(node) } else { return Err(no_such()) };
        let stripe = layout.stripe().ok_or_else(no_such)?;
        Ok(format!("{stripe} {} {}", layout.first(), layout.targets()).into_bytes())
    }

    /// `EIO`, with a trace event that names what is wrong where, unless the node is whole.
    fn expect_whole(&self, node: &StripedNode) -> io::Result<()> {
        if node.is_whole() {
            return Ok(());
        }
        let missing = node.pieces.iter().position(Option::is_none);
        let path = self.targets[0].path_of(node.first()).unwrap_or_default();
        let path = String::from_utf8_lossy(&path);
        match missing {
            Some(missing) => tracing::error!(
                %path,
                target_dir = %self.targets[missing].path().display(),
                "this object's part on a target is missing or of another kind; \
                 check the volume, and restore the part or remove the object"
            ),
            None => tracing::error!(
                %path,
                "the permissions of this file's parts, which tell where it begins, were changed on a target; \
                 check the volume, and restore them or remove the file"
            ),
        }
        Err(Errno::IO.into())
    }

    /// One regular file's attributes from those of its pieces.
    fn combine(&self, layout: Layout, pieces: impl Iterator<Item = io::Result<(usize, Attr)>>) -> io::Result<Attr> {
        let mut whole: Option<Attr> = None;
        for piece in pieces {
            let (target, piece) = piece?;
            let size = layout.logical_size(target as u32, piece.size);
            whole = Some(match whole {
                None => Attr { size, ..piece },
                Some(first) => Attr {
                    size: first.size.max(size),
                    blocks: first.blocks + piece.blocks,
                    atime: first.atime.max(piece.atime),
                    mtime: first.mtime.max(piece.mtime),
                    ctime: first.ctime.max(piece.ctime),
                    ..first
                },
            });
        }
        Ok(whole.expect("at least one target"))
    }
}

/// Each target with the part of its file that a logical range covers: one stretch, as striping keeps the order.
fn parts(layout: Layout, offset: u64, len: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    let end = offset.saturating_add(len);
    (0..layout.targets()).filter_map(move |target| {
        let (from, to) = (layout.target_size(target, offset), layout.target_size(target, end));
        (from < to).then_some((target as usize, from, to - from))
    })
}

impl Namespace for StripedStorage {
    fn file_path(&self, file: &FileRef) -> Option<Vec<u8>> {
        self.targets[0].file_path(&open(file).ok()?.pieces[0])
    }

    fn root(&self) -> NodeRef {
        self.root.clone()
    }

    fn lookup(&self, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        self.expect_visible(parent, name)?;
        let tree = self.tree.read();
        let _name = self.name_lock(parent, name).read();
        Ok(Arc::new(self.find(own(parent)?, name, tree.as_ref())?))
    }

    fn getattr(&self, node: &NodeRef) -> io::Result<Attr> {
        let node = own(node)?;
        if !node.is_file() {
            return self.targets[0].getattr(node.first());
        }
        let pieces = node.pieces.iter().enumerate().filter_map(|(target, piece)| Some((target, piece.as_ref()?)));
        let attributes = pieces.map(|(target, piece)| Ok((target, self.targets[target].getattr(piece)?)));
        self.combine(self.layout_of(node), attributes)
    }

    fn getattr_open(&self, file: &FileRef) -> io::Result<Attr> {
        let StripedFile { pieces, layout, .. } = open(file)?;
        let pieces = pieces.iter().zip(&self.targets).enumerate();
        self.combine(*layout, pieces.map(|(index, (piece, target))| Ok((index, target.getattr_open(piece)?))))
    }

    fn setattr(&self, node: &NodeRef, file: Option<&FileRef>, set: SetAttr) -> io::Result<Attr> {
        self.change_attributes(own(node)?, file.map(open).transpose()?, set)?;
        self.getattr(node)
    }

    fn readlink(&self, node: &NodeRef) -> io::Result<CString> {
        self.targets[0].readlink(own(node)?.first())
    }

    fn mknod(&self, parent: &NodeRef, name: &OsStr, mode: u32, rdev: u64, creator: &Creator) -> io::Result<NodeRef> {
        let kind = mode & libc::S_IFMT;
        let first = LazyCell::new(|| self.places.next());
        self.make(parent, name, |target, dir| match (target, kind) {
            (0, _) => self.targets[0].mknod(dir, name, mode, rdev, creator),
            // 0 stands for a regular file.
            (_, libc::S_IFREG | 0) => {
                let mode = self.places.mode(target, *first);
                let node = self.targets[target].mknod(dir, name, kind | mode, rdev, &self.process)?;
                self.expect_mode(target, (dir, name), &node, mode)?;
                Ok(node)
            }
            _ => self.targets[target].mknod(dir, name, kind | 0o600, rdev, &self.process),
        })
    }

    fn mkdir(&self, parent: &NodeRef, name: &OsStr, mode: u32, creator: &Creator) -> io::Result<NodeRef> {
        self.make(parent, name, |target, dir| match target {
            0 => self.targets[0].mkdir(dir, name, mode, creator),
            _ => self.targets[target].mkdir(dir, name, 0o700, &self.process),
        })
    }

    fn symlink(&self, parent: &NodeRef, name: &OsStr, to: &OsStr, creator: &Creator) -> io::Result<NodeRef> {
        let creator = |target| if target == 0 { creator } else { &self.process };
        self.make(parent, name, |target, dir| self.targets[target].symlink(dir, name, to, creator(target)))
    }

    fn link(&self, node: &NodeRef, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        self.expect_whole(own(node)?)?;
        self.make(parent, name, |target, dir| self.targets[target].link(own(node)?.on(target)?, dir, name))
    }

    fn unlink(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()> {
        self.remove(parent, name, PosixStorage::unlink)
    }

    fn rmdir(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()> {
        self.remove(parent, name, PosixStorage::rmdir)
    }

    fn rename(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        new_parent: &NodeRef,
        new_name: &OsStr,
        flags: u32,
    ) -> io::Result<()> {
        self.change_name((parent, name), (new_parent, new_name), flags)
    }

    fn readdir(&self, node: &NodeRef) -> io::Result<DirEntries> {
        let mut entries = self.targets[0].readdir(own(node)?.first())?;
        entries.retain(|entry| !self.reserved(node, OsStr::from_bytes(entry.name.as_bytes())));
        Ok(entries)
    }

    fn statfs(&self) -> io::Result<StatFs> {
        let mut sum = self.targets[0].statfs()?;
        for target in &self.targets[1..] {
            let one = target.statfs()?;
            let blocks = |n: u64| (u128::from(n) * u128::from(one.frsize) / u128::from(sum.frsize.max(1))) as u64;
            sum.blocks += blocks(one.blocks);
            sum.bfree += blocks(one.bfree);
            sum.bavail += blocks(one.bavail);
            // Every file takes an inode on every target.
            sum.files = sum.files.min(one.files);
            sum.ffree = sum.ffree.min(one.ffree);
            sum.namelen = sum.namelen.min(one.namelen);
        }
        Ok(sum)
    }

    fn setxattr(&self, node: &NodeRef, name: &OsStr, value: &[u8], flags: i32, caller: &Creator) -> io::Result<()> {
        if name == LAYOUT {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        self.targets[0].setxattr(own(node)?.first(), name, value, flags, caller)
    }

    fn getxattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<Vec<u8>> {
        if name == LAYOUT {
            return self.told_layout(own(node)?);
        }
        self.targets[0].getxattr(own(node)?.first(), name)
    }

    fn listxattr(&self, node: &NodeRef) -> io::Result<Vec<u8>> {
        self.targets[0].listxattr(own(node)?.first())
    }

    fn removexattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<()> {
        self.targets[0].removexattr(own(node)?.first(), name)
    }

    fn open(&self, node: &NodeRef, flags: i32) -> io::Result<FileRef> {
        self.open_pieces(node, flags)
    }

    fn create(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        mode: u32,
        flags: i32,
        creator: &Creator,
    ) -> io::Result<(NodeRef, FileRef)> {
        // The file is opened as it is made: later its mode may forbid that even to its owner.
        let pieces = RefCell::new(vec![None; self.targets.len()]);
        let open_flags = flags & !libc::O_TRUNC | libc::O_EXCL;
        let first = LazyCell::new(|| self.places.next());
        let create = |target: usize, dir: &NodeRef| {
            let ours = || (self.places.mode(target, *first), &self.process);
            let (mode, creator) = if target == 0 { (mode, creator) } else { ours() };
            // What was made before is about to be removed, and must not be open then. (Of what exists it tries again.)
            let failed = |error: &io::Error| {
                if error.kind() != io::ErrorKind::AlreadyExists {
                    pieces.borrow_mut().fill(None);
                }
            };
            let (node, file) = self.targets[target].create(dir, name, mode, open_flags, creator).inspect_err(failed)?;
            if target > 0 {
                self.expect_mode(target, (dir, name), &node, mode)?;
            }
            pieces.borrow_mut()[target] = Some(file);
            Ok(node)
        };
        loop {
            match self.make(parent, name, create) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) && flags & libc::O_EXCL == 0 => {
                    match self.lookup(parent, name) {
                        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {} // removed meanwhile
                        node => {
                            let node = node?;
                            let file = self.open(&node, flags)?;
                            return Ok((node, file));
                        }
                    }
                }
                made => {
                    let node = made?;
                    let pieces = pieces.take().into_iter().map(|piece| piece.expect("made on every target")).collect();
                    return Ok((node.clone(), self.file(pieces, &node)?));
                }
            }
        }
    }

    fn fsync_dir(&self, node: &NodeRef) -> io::Result<()> {
        (0..self.targets.len()).try_for_each(|target| self.targets[target].fsync_dir(own(node)?.on(target)?))
    }

    fn reports_at_close(&self) -> bool {
        self.targets.iter().any(Namespace::reports_at_close)
    }

    /// The first error, after all targets were asked.
    fn flush(&self, file: &FileRef) -> io::Result<()> {
        let pieces = &open(file)?.pieces;
        let results: Vec<_> = self.targets.iter().zip(pieces).map(|(target, piece)| target.flush(piece)).collect();
        results.into_iter().collect()
    }

    fn keep_access_times(&self) -> io::Result<()> {
        self.targets.iter().try_for_each(Namespace::keep_access_times)
    }

    fn fallocate(&self, file: &FileRef, mode: i32, offset: u64, len: u64, caller: &Creator) -> io::Result<()> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        let &StripedFile { ref pieces, layout, .. } = open(file)?;
        // What moves bytes to other offsets would move them to other targets.
        if !matches!(mode & !KEEP, 0 | libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_UNSHARE_RANGE)
            && mode != libc::FALLOC_FL_PUNCH_HOLE | KEEP
        {
            return Err(Errno::OPNOTSUPP.into());
        }
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::FBIG)?;
        self.journal.expect_erased()?;
        self.drop_set_id(file, caller)?;
        for (target, from, len) in parts(layout, offset, len) {
            fault::step()?;
            self.targets[target].fallocate(&pieces[target], mode | KEEP, from, len, &self.process)?;
        }
        if mode & KEEP == 0 && self.getattr_open(file)?.size < end {
            // Not as a truncation: others may write beyond the end meanwhile, and this cannot make a piece shorter.
            let (target, at) = layout.locate(end - 1);
            let target = target as usize;
            fault::step()?;
            self.targets[target].fallocate(&pieces[target], 0, at, 1, &self.process)?;
        }
        Ok(())
    }

    fn seek_data(&self, file: &FileRef, offset: u64, whence: i32) -> io::Result<u64> {
        let size = self.getattr_open(file)?.size;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        // The next data or hole of the file is the first of the targets' next ones.
        let mut nearest = None;
        let StripedFile { pieces, layout, .. } = open(file)?;
        for (target, piece) in (0u32..).zip(pieces) {
            let from = layout.target_size(target, offset);
            let found = match self.targets[target as usize].seek_data(piece, from, whence) {
                // Past the piece's end all is hole.
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => (whence == libc::SEEK_HOLE).then_some(from),
                found => Some(found?),
            };
            let found = found.map(|at| layout.logical(target, at).max(offset));
            nearest = [nearest, found].into_iter().flatten().min();
        }
        nearest.map(|at| at.min(size)).ok_or_else(|| Errno::NXIO.into())
    }
}

impl Data for StripedStorage {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn describe(&self) -> String {
        let dirs: Vec<Cow<'_, str>> = self.targets.iter().map(|target| target.path().to_string_lossy()).collect();
        match self.layout.stripe() {
            Some(stripe) => {
                let size = if stripe % 1024 == 0 { format!("{} KiB", stripe / 1024) } else { format!("{stripe} B") };
                format!("striped volume, stripes of {size} over {}", dirs.join(", "))
            }
            None => format!("striped volume on {} alone", dirs[0]),
        }
    }

    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        self.targets[target].read(&open(file)?.pieces[target], 0, offset, bufs)
    }

    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let StripedFile { pieces, layout, floor, .. } = open(file)?;
        self.journal.expect_erased()?;
        let turn = floor.turn();
        let written = self.targets[target].write(&pieces[target], 0, offset, bufs)?;
        if written > 0 {
            floor.raise(turn, layout.logical(target as u32, offset + written as u64 - 1) + 1);
        }
        Ok(written)
    }

    fn sync(&self, file: &FileRef, metadata: bool) -> io::Result<()> {
        let pieces = &open(file)?.pieces;
        let others = self.targets.len() - 1;
        // Devices flush side by side; the threads cost little next to that, but there must be an end of them.
        let threads = Counted::more(&self.syncing, others);
        if threads.before + others > SYNCING_MAX {
            drop(threads);
            let each = pieces.iter().zip(&self.targets).map(|(piece, target)| target.sync(piece, metadata));
            return each.fold(Ok(()), Result::and);
        }
        std::thread::scope(|scope| {
            let sync = |target: usize| self.targets[target].sync(&pieces[target], metadata);
            let jobs: Vec<_> = (1..self.targets.len())
                // Without a thread it is done here.
                .map(|target| std::thread::Builder::new().spawn_scoped(scope, move || sync(target)).map_err(|_| target))
                .collect();
            let first = sync(0);
            let ended = |job: Result<std::thread::ScopedJoinHandle<'_, io::Result<()>>, usize>| match job {
                Ok(job) => job.join().unwrap_or_else(|_| Err(Errno::IO.into())),
                Err(target) => sync(target),
            };
            jobs.into_iter().map(ended).fold(first, Result::and)
        })
    }

    fn try_read(
        &self,
        file: &FileRef,
        target: usize,
        offset: u64,
        bufs: &mut [io::IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        self.targets[target].try_read(&open(file)?.pieces[target], 0, offset, bufs)
    }

    fn descriptor(&self, file: &FileRef, target: usize) -> Option<Arc<OwnedFd>> {
        self.journal.expect_erased().ok()?;
        self.targets[target].descriptor(open(file).ok()?.pieces.get(target)?, 0)
    }

    fn size_at_least(&self, file: &FileRef, end: u64) -> io::Result<u64> {
        let floor = &open(file)?.floor;
        let known = floor.bytes();
        if known >= end { Ok(known) } else { floor.sample(|| Ok(self.getattr_open(file)?.size)) }
    }

    fn trim(&self, file: &FileRef, before: u64, range: Range<u64>, written: u64) -> io::Result<()> {
        if self.targets.len() == 1 {
            return Ok(());
        }
        let moved = if written > 0 { range.start + written } else { 0 };
        let size = before.max(moved);
        let now = self.getattr_open(file)?.size;
        // Beyond the range somebody else has written since.
        if now <= size || now > range.end {
            return Ok(());
        }
        let file = open(file)?;
        self.resize(own(&file.node)?, Some(file), size)
    }
}

/// Most threads that sync targets at a time, for all callers together.
const SYNCING_MAX: usize = 64;

/// A share in a counter, given back when dropped.
struct Counted<'a> {
    counter: &'a AtomicUsize,
    share: usize,
    before: usize,
}

impl Counted<'_> {
    fn more(counter: &AtomicUsize, share: usize) -> Counted<'_> {
        Counted { counter, share, before: counter.fetch_add(share, Ordering::Relaxed) }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.share, Ordering::Relaxed);
    }
}

fn own(node: &NodeRef) -> io::Result<&StripedNode> {
    node_as(node)
}

fn open(file: &FileRef) -> io::Result<&StripedFile> {
    file_as(file)
}

#[cfg(test)]
mod tests;
