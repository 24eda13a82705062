//! Operations that change several targets, each in the order that makes it safe (see the [module](super)).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use rustix::io::Errno;

use super::journal::boot_id;
use super::{Intent, StripedFile, StripedNode, StripedStorage, fault, own};
use crate::posix::PosixStorage;
use crate::{Creator, DirEntries, FileRef, Layout, Namespace, NodeRef, SetAttr, SetTime};

/// A directory and a name in it.
type Name<'a> = (&'a NodeRef, &'a OsStr);

/// A rename that target 0 has done. While one or more of the others have not, and it cannot be undone, names do not
/// change: its record stays in the journal.
pub(super) struct Renamed {
    from: (NodeRef, OsString),
    to: (NodeRef, OsString),
    /// What each target had under the names before, 0 for nothing.
    from_inodes: Vec<i64>,
    to_inodes: Vec<i64>,
    exchange: bool,
    whiteout: bool,
}

/// A directory of orphans that is being removed.
struct Emptied {
    dir: NodeRef,
    name: OsString,
    node: NodeRef,
    /// What is still in there.
    rest: DirEntries,
}

impl Renamed {
    /// Whether a target's inode belongs to target 0's `first`, as far as this rename knows.
    pub(super) fn fits(&self, first: u64, target: usize, inode: u64) -> bool {
        let known = [&self.from_inodes, &self.to_inodes].into_iter().find(|inodes| inodes[0] == first as i64);
        known.is_none_or(|inodes| inodes[target] == inode as i64)
    }
}

impl StripedStorage {
    /// The lock of the tree, for what changes names or enters the journal: not while a rename waits for its other half.
    ///
    /// # Errors
    /// What still keeps that rename from being done, or the journal from being erased.
    fn tree(&self) -> io::Result<RwLockReadGuard<'_, Option<Renamed>>> {
        self.journal.expect_erased()?;
        loop {
            let tree = self.tree.read();
            if tree.is_none() {
                return Ok(tree);
            }
            drop(tree);
            drop(self.tree_alone()?);
        }
    }

    fn tree_alone(&self) -> io::Result<RwLockWriteGuard<'_, Option<Renamed>>> {
        let mut tree = self.tree.write();
        if let Some(renamed) = &*tree {
            self.settle_all(renamed)?;
            self.journal.clear()?;
            *tree = None;
        }
        Ok(tree)
    }

    /// Makes a name with `op` on every target, target 0 last.
    pub(super) fn make(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        op: impl Fn(usize, &NodeRef) -> io::Result<NodeRef>,
    ) -> io::Result<NodeRef> {
        self.expect_free(parent, name)?;
        let _tree = self.tree()?;
        let _name = self.name_lock(parent, name).write();
        let parent = own(parent)?;
        if !gone(&self.targets[0].lookup(parent.first(), name))? {
            return Err(Errno::EXIST.into());
        }
        self.expect_whole(parent)?;
        let mut pieces = vec![None; self.targets.len()];
        for target in (0..self.targets.len()).rev() {
            let dir = parent.on(target)?;
            let made = fault::step().and_then(|()| match op(target, dir) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) && target > 0 => {
                    self.remove_tree(target, dir, name)?;
                    fault::step()?;
                    op(target, dir)
                }
                made => made,
            });
            match made {
                Ok(piece) => pieces[target] = Some(piece),
                Err(error) => {
                    for target in target + 1..self.targets.len() {
                        // What stays is an orphan.
                        let _ = self.remove_tree(target, parent.on(target)?, name);
                    }
                    return Err(error);
                }
            }
        }
        let first = pieces[0].as_ref().expect("made last");
        let (id, kind) = (first.id(), self.targets[0].kind(first)?);
        let first = self.begin_of(kind, &pieces);
        Ok(Arc::new(StripedNode { pieces, id, kind, first }))
    }

    /// `EOPNOTSUPP` unless a new file's piece has the permissions that tell where the file begins. Then it is removed.
    pub(super) fn expect_mode(&self, target: usize, at: Name<'_>, piece: &NodeRef, mode: u32) -> io::Result<()> {
        let storage = &self.targets[target];
        let has = storage.mode_found(piece)?;
        if has == mode {
            return Ok(());
        }
        tracing::error!(
            name = ?at.1,
            target_dir = %storage.path().display(),
            "a file cannot be made: its part got mode {has:04o} where it needs {mode:04o}, which tells where the file \
             begins; does a default access control list, or an option of its file system's mount, change modes there?"
        );
        // What stays is an orphan.
        let _ = self.remove_tree(target, at.0, at.1);
        Err(Errno::OPNOTSUPP.into())
    }

    /// Removes a name with `op` on target 0, and then whatever has it elsewhere.
    pub(super) fn remove(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        op: fn(&PosixStorage, &NodeRef, &OsStr) -> io::Result<()>,
    ) -> io::Result<()> {
        self.expect_visible(parent, name)?;
        let _tree = self.tree()?;
        let _name = self.name_lock(parent, name).write();
        let parent = own(parent)?;
        let _prepared = self.prepare_loss(parent, name)?;
        fault::step()?;
        op(&self.targets[0], parent.first(), name)?;
        for target in 1..self.targets.len() {
            let Some(dir) = &parent.pieces[target] else { continue };
            fault::step()?;
            if op(&self.targets[target], dir, name).is_err()
                && let Err(error) = self.remove_tree(target, dir, name)
            {
                let dir = self.targets[target].path().display();
                tracing::warn!(%error, target_dir = %dir, ?name, "a removed object's part stays as an orphan");
            }
        }
        Ok(())
    }

    /// Sees to it that no target refuses to let this name go for want of descriptors after others did.
    fn prepare_loss(&self, parent: &StripedNode, name: &OsStr) -> io::Result<Vec<impl Drop + use<>>> {
        let dirs = self.targets.iter().zip(&parent.pieces);
        dirs.filter_map(|(target, dir)| Some(target.prepare_loss(dir.as_ref()?, name))).collect()
    }

    /// Removes whatever a target (not target 0) has under a name. Directories there contain orphans only. Not recursive: trees
    /// can be deeper than the stack.
    pub(super) fn remove_tree(&self, target: usize, dir: &NodeRef, name: &OsStr) -> io::Result<()> {
        debug_assert!(target > 0, "target 0 decides");
        let storage = &self.targets[target];
        let mut open = Vec::from_iter(self.remove_leaf(target, dir, name)?);
        while let Some(last) = open.last_mut() {
            match last.rest.pop() {
                Some(entry) if matches!(entry.name.as_bytes(), b"." | b"..") => {}
                Some(entry) => {
                    let node = last.node.clone();
                    open.extend(self.remove_leaf(target, &node, OsStr::from_bytes(entry.name.as_bytes()))?);
                }
                None => {
                    fault::step()?;
                    storage.rmdir(&last.dir, &last.name)?;
                    open.pop();
                }
            }
        }
        Ok(())
    }

    /// Removes what a target has under a name, if anything; a directory is to be emptied first.
    fn remove_leaf(&self, target: usize, dir: &NodeRef, name: &OsStr) -> io::Result<Option<Emptied>> {
        let storage = &self.targets[target];
        let node = match storage.lookup(dir, name) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            node => node?,
        };
        if storage.getattr(&node)?.mode & libc::S_IFMT != libc::S_IFDIR {
            fault::step()?;
            return storage.unlink(dir, name).map(|()| None);
        }
        let rest = storage.readdir(&node)?;
        Ok(Some(Emptied { dir: dir.clone(), name: name.to_owned(), node, rest }))
    }

    pub(super) fn change_name(&self, from: Name<'_>, to: Name<'_>, flags: u32) -> io::Result<()> {
        self.expect_visible(from.0, from.1)?;
        self.expect_free(to.0, to.1)?;
        let (exchange, whiteout) = (flags & libc::RENAME_EXCHANGE != 0, flags & libc::RENAME_WHITEOUT != 0);
        let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
        if flags & !known != 0 || exchange && flags != libc::RENAME_EXCHANGE {
            return Err(Errno::INVAL.into());
        }
        let mut tree = self.tree_alone()?;
        let (from_dir, to_dir) = (own(from.0)?, own(to.0)?);
        self.expect_whole(from_dir)?;
        self.expect_whole(to_dir)?;
        let from_inodes = self.inodes(from_dir, from.1)?;
        let to_inodes = self.inodes(to_dir, to.1)?;
        if from_inodes[0] == to_inodes[0] && from_inodes[0] != 0 && flags & libc::RENAME_NOREPLACE == 0 {
            return Ok(()); // two names of one file: nothing changes, says POSIX
        }
        let _prepared = if exchange { Vec::new() } else { self.prepare_loss(to_dir, to.1)? };
        let entry = self.journal.begin(&Intent::Rename {
            from: self.path(from_dir, from.1)?,
            to: self.path(to_dir, to.1)?,
            exchange,
            whiteout,
            from_inodes: from_inodes.clone(),
            to_inodes: to_inodes.clone(),
            boot: boot_id().to_owned(),
        })?;
        fault::step()?;
        self.targets[0].rename(from_dir.first(), from.1, to_dir.first(), to.1, flags)?;
        let (from, to) = ((from.0.clone(), from.1.to_owned()), (to.0.clone(), to.1.to_owned()));
        let renamed = Renamed { from, to, from_inodes, to_inodes, exchange, whiteout };
        let Err(error) = self.settle_all(&renamed) else { return Ok(()) };
        // What was replaced on target 0 is gone; everything else can be as it was.
        let undone = (exchange || renamed.to_inodes[0] == 0) && self.undo(&renamed).is_ok();
        if !undone {
            let (from, to) = (&renamed.from.1, &renamed.to.1);
            tracing::error!(?from, ?to, "no names change on this volume until this rename could be done everywhere");
            entry.keep();
            *tree = Some(renamed);
        }
        Err(error)
    }

    /// Brings all targets but the first to the state after a rename that the first has done; all that can be, and then
    /// the first error.
    fn settle_all(&self, renamed: &Renamed) -> io::Result<()> {
        let Renamed { from, to, from_inodes, to_inodes, exchange, whiteout } = renamed;
        let (from_dir, to_dir) = (own(&from.0)?, own(&to.0)?);
        let mut result = Ok(());
        for target in 1..self.targets.len() {
            let (a, b) = ((from_dir.on(target)?, &*from.1), (to_dir.on(target)?, &*to.1));
            let inodes = (from_inodes[target], to_inodes[target]);
            if let Err(error) = self.settle(target, a, b, inodes, (*exchange, *whiteout)) {
                let dir = self.targets[target].path().display();
                tracing::error!(%error, target_dir = %dir, from = ?from.1, to = ?to.1, "a rename failed on one target");
                result = result.and(Err(error));
            }
        }
        result
    }

    /// Takes a rename back that replaced nothing, target 0 last: until then it counts as done.
    fn undo(&self, renamed: &Renamed) -> io::Result<()> {
        let Renamed { from, to, from_inodes, to_inodes, exchange, .. } = renamed;
        let (from_dir, to_dir) = (own(&from.0)?, own(&to.0)?);
        for target in 1..self.targets.len() {
            let (a, b) = ((from_dir.on(target)?, &*from.1), (to_dir.on(target)?, &*to.1));
            if *exchange {
                self.settle(target, a, b, (to_inodes[target], from_inodes[target]), (true, false))?;
            } else {
                self.settle(target, b, a, (from_inodes[target], 0), (false, false))?;
            }
        }
        fault::step()?;
        let flags = if *exchange { libc::RENAME_EXCHANGE } else { 0 }; // a whiteout is replaced
        self.targets[0].rename(to_dir.first(), &to.1, from_dir.first(), &from.1, flags)
    }

    /// Brings a target but the first to the state after a rename, from the one before it or after it: `from` and `to` are
    /// the inode numbers that the names had before, 0 for none.
    fn settle(
        &self,
        target: usize,
        a: Name<'_>,
        b: Name<'_>,
        (from, to): (i64, i64),
        (exchange, whiteout): (bool, bool),
    ) -> io::Result<()> {
        let storage = &self.targets[target];
        let (at_a, at_b) = (self.inode(target, a)?, self.inode(target, b)?);
        let rename = |a: Name<'_>, b: Name<'_>, flags| {
            fault::step()?;
            storage.rename(a.0, a.1, b.0, b.1, flags)
        };
        if exchange {
            match (from != 0 && at_a == from, to != 0 && at_b == to) {
                (true, true) => rename(a, b, libc::RENAME_EXCHANGE),
                (true, false) if to == 0 => rename(a, b, 0),
                (false, true) if from == 0 => rename(b, a, 0),
                _ => Ok(()),
            }
        } else if whiteout {
            self.settle(target, a, b, (from, to), (false, false))?;
            if self.inode(target, a)? == 0 {
                fault::step()?;
                storage.mknod(a.0, a.1, libc::S_IFCHR | 0o600, 0, &self.process)?;
            }
            Ok(())
        } else if from != 0 && at_b == from {
            Ok(())
        } else if from != 0 && at_a == from {
            match rename(a, b, 0) {
                // An orphan of another kind, or a directory of orphans, is in the way.
                Err(error) if error.raw_os_error().is_some_and(|code| IN_THE_WAY.contains(&code)) => {
                    self.remove_tree(target, b.0, b.1)?;
                    rename(a, b, 0)
                }
                renamed => renamed,
            }
        } else {
            // The part is missing; what the name had belongs to the object that was replaced.
            self.remove_tree(target, b.0, b.1)
        }
    }

    fn inode(&self, target: usize, (dir, name): Name<'_>) -> io::Result<i64> {
        match self.targets[target].lookup(dir, name) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(0),
            node => Ok(self.targets[target].inode(&node?)? as i64),
        }
    }

    /// What each target has under a name.
    pub(super) fn inodes(&self, parent: &StripedNode, name: &OsStr) -> io::Result<Vec<i64>> {
        let dirs = parent.pieces.iter().enumerate();
        dirs.map(|(target, dir)| dir.as_ref().map_or(Ok(0), |dir| self.inode(target, (dir, name)))).collect()
    }

    fn path(&self, parent: &StripedNode, name: &OsStr) -> io::Result<Vec<u8>> {
        Ok([&self.targets[0].path_of(parent.first())?[..], b"/", name.as_bytes()].concat())
    }

    pub(super) fn change_attributes(
        &self,
        node: &StripedNode,
        file: Option<&StripedFile>,
        set: SetAttr,
    ) -> io::Result<()> {
        let first = file.map(|file| &file.pieces[0]);
        let times = SetAttr { atime: set.atime, mtime: set.mtime, ..SetAttr::default() };
        let others = SetAttr { size: None, atime: None, mtime: None, ..set };
        if others != SetAttr::default() {
            fault::step()?;
            self.targets[0].setattr(node.first(), first, others)?;
        }
        if let Some(size) = set.size {
            self.resize(node, file, size)?;
        }
        if times != SetAttr::default() {
            let all = if node.is_file() { self.targets.len() } else { 1 };
            for target in (0..all).rev() {
                let Some(piece) = &node.pieces[target] else { continue };
                fault::step()?;
                self.targets[target].setattr(piece, file.map(|file| &file.pieces[target]), times)?;
            }
        }
        Ok(())
    }

    /// Truncates or extends to the logical `size`.
    pub(super) fn resize(&self, node: &StripedNode, file: Option<&StripedFile>, size: u64) -> io::Result<()> {
        if !node.is_file() {
            return Err(if node.kind == libc::S_IFDIR { Errno::ISDIR } else { Errno::INVAL }.into());
        }
        if size > i64::MAX as u64 {
            return Err(Errno::FBIG.into());
        }
        self.expect_whole(node)?;
        let _tree = self.tree()?;
        let floor = self.sizes.of(node.id);
        let _alone = floor.resizing.lock();
        let _truncating = floor.truncating(size);
        let first = self.targets[0].getattr(node.first())?;
        let mut sizes = vec![first.size];
        for target in 1..self.targets.len() {
            sizes.push(self.targets[target].getattr(node.on(target)?)?.size);
        }
        let changes = resizes(self.layout_of(node), &sizes, size);
        if changes.is_empty() {
            return self.touch(node);
        }
        let mut entry = None;
        if changes.len() > 1 && first.nlink > 0 {
            let inodes = (0..self.targets.len()).map(|target| Ok(self.targets[target].inode(node.on(target)?)? as i64));
            let inodes = inodes.collect::<io::Result<_>>()?;
            let path = self.targets[0].path_of(node.first()).unwrap_or_default();
            let handles = (0..self.targets.len()).map(|target| self.targets[target].handle(node.on(target)?));
            let handles = handles.collect::<io::Result<_>>()?;
            let boot = boot_id().to_owned();
            entry = Some(self.journal.begin(&Intent::Truncate { path, inodes, size, handles, boot })?);
        }
        for (target, size) in changes {
            fault::step()?;
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.targets[target].setattr(node.on(target)?, file.map(|file| &file.pieces[target]), set)?;
        }
        drop(entry);
        Ok(())
    }

    /// What a truncation does that changes no size. Not done by one: there may be a hole at the piece's end, and others may
    /// have written there since its size was asked for.
    fn touch(&self, node: &StripedNode) -> io::Result<()> {
        let set = |atime| {
            fault::step()?;
            let times = SetAttr { atime, mtime: Some(SetTime::Now), ..SetAttr::default() };
            self.targets[0].setattr(node.first(), None, times).map(drop)
        };
        match set(None) {
            // Of somebody else's file, as truncating it, only this is allowed.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => set(Some(SetTime::Now)),
            result => result,
        }
    }

    pub(super) fn open_pieces(&self, node: &NodeRef, flags: i32) -> io::Result<FileRef> {
        let striped = own(node)?;
        if striped.is_file() {
            self.expect_whole(striped)?;
        }
        let keep = flags & !libc::O_TRUNC;
        let open = |target: usize| self.targets[target].open(striped.on(target)?, keep);
        let pieces = (0..self.targets.len()).map(open).collect::<io::Result<_>>()?;
        let file = self.file(pieces, node)?;
        if flags & libc::O_TRUNC != 0 {
            self.resize(striped, Some(super::open(&file)?), 0)?;
        }
        Ok(file)
    }

    /// An open file, of a node that is whole.
    pub(super) fn file(&self, pieces: Vec<FileRef>, node: &NodeRef) -> io::Result<FileRef> {
        let layout = self.layout.starting_at(own(node)?.first.ok_or(Errno::IO)?);
        Ok(Arc::new(StripedFile { pieces, node: node.clone(), layout, floor: self.sizes.of(node.id()) }))
    }

    /// As the kernel does when a user without the right to set-ID files of others changes such a file: it must happen
    /// even if none of the change is on target 0.
    pub(super) fn drop_set_id(&self, file: &FileRef, caller: &Creator) -> io::Result<()> {
        let first = own(&super::open(file)?.node)?.first();
        let mode = self.targets[0].getattr(first)?.mode;
        let group = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
        let gone = mode & (libc::S_ISUID | group);
        if gone != 0 && caller.uid != 0 {
            let set = SetAttr { mode: Some(mode & 0o7777 & !gone), ..SetAttr::default() };
            self.targets[0].setattr(first, None, set)?;
        }
        Ok(())
    }

    /// Carries through what the journal holds, after a kill.
    pub(super) fn recover(&self) -> io::Result<()> {
        match self.journal.pending()? {
            None => return self.journal.clear(),
            Some(Intent::Rename { from_inodes, to_inodes, .. })
                if [&from_inodes, &to_inodes].iter().any(|inodes| inodes.len() != self.targets.len()) =>
            {
                tracing::error!("the journal holds a rename on another number of targets: it is not repeated");
            }
            Some(Intent::Rename { from, to, exchange, whiteout, from_inodes, to_inodes, boot }) => {
                // What a record says that outlived a power failure may be older than what was synced since: numbers may be
                // those of other objects.
                let old = is_of_another_start(&boot);
                let ends = |target: &PosixStorage| -> io::Result<_> {
                    let parent =
                        |path: &[u8]| target.resolve(&path[..path.iter().rposition(|b| *b == b'/').unwrap_or(0)]);
                    Ok((parent(&from)?, parent(&to)?))
                };
                let name =
                    |path: &[u8]| OsStr::from_bytes(path.rsplit(|b| *b == b'/').next().unwrap_or(path)).to_owned();
                let (a, b) = (name(&from), name(&to));
                // A directory may be gone since: then the record is as old as that.
                let first = |path: &[u8]| match self.targets[0].resolve(path) {
                    Err(error) if error.raw_os_error().is_some_and(|code| NOT_THERE.contains(&code)) => Ok(0),
                    node => Ok::<_, io::Error>(self.targets[0].inode(&node?)? as i64),
                };
                let done = first(&to)? == from_inodes[0] && (!exchange || first(&from)? == to_inodes[0]);
                for target in 1..if done { self.targets.len() } else { 0 } {
                    match ends(&self.targets[target]) {
                        Ok((dir_a, dir_b)) => {
                            let (a, b) = ((&dir_a, &*a), (&dir_b, &*b));
                            let inodes = (from_inodes[target], to_inodes[target]);
                            if !old || inodes.0 != 0 && inodes == (self.inode(target, a)?, self.inode(target, b)?) {
                                self.settle(target, a, b, inodes, (exchange, whiteout))?;
                            }
                        }
                        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {
                            tracing::error!(%error, target, "a rename's directory is missing on a target");
                        }
                        Err(error) => return Err(error),
                    }
                }
                tracing::info!(done, from = %a.display(), to = %b.display(), "a rename was cut short");
            }
            Some(Intent::Truncate { path, boot, .. }) if is_of_another_start(&boot) => {
                let path = String::from_utf8_lossy(&path);
                tracing::warn!(%path, "the journal holds a truncation from before the last start of the system: not repeated");
            }
            Some(Intent::Truncate { path, inodes, size, handles, .. }) => {
                let pieces = (self.targets.iter().zip(&inodes).enumerate())
                    .map(|(at, (target, inode))| find_again(target, &path, *inode, handles.get(at)))
                    .collect::<io::Result<Vec<_>>>()
                    .inspect_err(|error| {
                        let path = String::from_utf8_lossy(&path);
                        tracing::error!(%error, %path, "a truncation was cut short, and the file cannot be looked at to finish it");
                    })?;
                let path = String::from_utf8_lossy(&path);
                if pieces.iter().any(Option::is_none) || pieces.len() != self.targets.len() {
                    tracing::warn!(%path, "a truncation was cut short, and the file is gone");
                } else if let Some(first) = self.begin_of(libc::S_IFREG, &pieces) {
                    let sizes = (self.targets.iter().zip(pieces.iter().flatten()))
                        .map(|(target, piece)| Ok(target.getattr(piece)?.size))
                        .collect::<io::Result<Vec<u64>>>()?;
                    for (target, size) in resizes(self.layout.starting_at(first), &sizes, size) {
                        fault::step()?;
                        let set = SetAttr { size: Some(size), ..SetAttr::default() };
                        let piece = pieces[target].as_ref().expect("just checked");
                        self.targets[target].setattr(piece, None, set)?;
                    }
                    tracing::info!(%path, size, "a truncation was cut short; it is now done");
                } else {
                    // Nobody can open it, nor may the volume be closed to all because of it.
                    tracing::error!(
                        %path,
                        size,
                        "a truncation was cut short and cannot be finished: the permissions of the file's parts, which \
                         tell where it begins, were changed; restore them, and truncate the file again"
                    );
                }
            }
        }
        fault::step()?;
        self.journal.clear()
    }
}

/// Whether a record was written before the system was started.
fn is_of_another_start(boot: &str) -> bool {
    !boot.is_empty() && boot != boot_id()
}

/// The pieces to change, and to what size, for a file to have the logical `size`.
fn resizes(layout: Layout, sizes: &[u64], size: u64) -> Vec<(usize, u64)> {
    let last = size.checked_sub(1).map(|last| layout.locate(last).0);
    let wanted = |target: u32| layout.target_size(target, size);
    let targets = (0u32..).zip(sizes);
    // A piece may be shorter (a hole), but not longer; the one with the last byte must reach it.
    let wrong = |target: u32, have: u64| have > wanted(target) || last == Some(target) && have < wanted(target);
    targets.filter(|&(t, &have)| wrong(t, have)).map(|(t, _)| (t as usize, wanted(t))).collect()
}

/// One target's part of a file that the journal names, by its path or, if it has lost that, its handle; `None` if it is
/// gone.
///
/// # Errors
/// Everything else that keeps it from being found: what is to be done to it is not done then.
fn find_again(target: &PosixStorage, path: &[u8], inode: i64, handle: Option<&Vec<u8>>) -> io::Result<Option<NodeRef>> {
    let right = |piece: &NodeRef| target.inode(piece).is_ok_and(|found| found as i64 == inode);
    let there = |found: io::Result<NodeRef>| match found {
        Ok(piece) => Ok(Some(piece).filter(right)),
        Err(error) if error.raw_os_error().is_some_and(|code| NOT_THERE.contains(&code)) => Ok(None),
        Err(error) => Err(error),
    };
    let named = there(fault::look().and_then(|()| target.resolve(path)))?;
    match handle {
        // Where it was written there were no handles.
        Some(handle) if named.is_none() && !handle.is_empty() => there(target.reopen(handle)),
        _ => Ok(named),
    }
}

/// What a look-up says of what does not exist (any more).
const NOT_THERE: [i32; 3] = [libc::ENOENT, libc::ENOTDIR, libc::ESTALE];

/// What a rename fails with because of what has the new name.
const IN_THE_WAY: [i32; 4] = [libc::EISDIR, libc::ENOTDIR, libc::ENOTEMPTY, libc::EEXIST];

/// Whether a look-up found nothing; other errors are passed on.
fn gone<T>(found: &io::Result<T>) -> io::Result<bool> {
    match found {
        Ok(_) => Ok(false),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(true),
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Err(Errno::IO.into()),
        },
    }
}
