//! Finds and mends what does not fit between the targets of a volume.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{StripedError, StripedNode, StripedOptions, StripedStorage, own, volume};
use crate::posix::PosixStorage;
use crate::{Namespace, NodeRef};

/// One object on one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The target, from 0.
    pub target: usize,
    /// Path from the volume's top.
    pub path: PathBuf,
    /// Whether it was mended.
    pub repaired: bool,
    /// Bytes of an orphan and all below it; 0 for others.
    pub bytes: u64,
}

/// What [`check`] mends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    /// Nothing.
    No,
    /// What takes no bytes from anybody.
    Safe,
    /// Also orphans that have bytes: what the removal of a file left behind when it was killed, and what is left of a file
    /// whose first part somebody has removed, look alike.
    Discard,
}

/// What [`check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Objects of all kinds that the volume has.
    pub objects: u64,
    /// On a target but not on target 0: left behind by a process that was killed, or all that there is if target 0 has lost
    /// its part. Mended by removing them; see [`Repair`].
    pub orphans: Vec<Finding>,
    /// On target 0 but not on the target. Mended by making them anew, except for regular files, whose bytes are lost:
    /// restore such a file's part, or remove the file.
    pub missing: Vec<Finding>,
    /// Of another kind than on target 0. Never mended: someone changed the targets themselves.
    pub mismatched: Vec<Finding>,
    /// Parts of files whose permissions, which tell which target the file begins on, are not what the volume gave them, or
    /// contradict those on another target. Never mended: only a copy of the target tells what they were.
    pub unplaced: Vec<Finding>,
}

impl Report {
    /// True if all is well, or was made so.
    #[must_use]
    pub fn clean(&self) -> bool {
        let all = [&self.orphans, &self.missing, &self.mismatched, &self.unplaced];
        all.into_iter().flatten().all(|finding| finding.repaired)
    }
}

/// Compares the targets of a volume that is not in use. Opening it for this finishes what the journal holds.
///
/// # Errors
/// As [`StripedStorage::create_or_open`], and errors reading the directories.
pub fn check(dirs: &[PathBuf], repair: Repair) -> Result<Report, StripedError> {
    let storage = StripedStorage::assemble(dirs, false, StripedOptions::default())?;
    let mut report = Report::default();
    walk(&storage, repair, &mut report).map_err(volume::at(&dirs[0]))?;
    Ok(report)
}

fn names(storage: &StripedStorage, node: &StripedNode, target: usize, top: bool) -> io::Result<BTreeSet<OsString>> {
    let Some(dir) = &node.pieces[target] else { return Ok(BTreeSet::new()) };
    let names = storage.targets[target].readdir(dir)?.into_iter().map(|entry| entry.name.into_bytes());
    let own = |name: &[u8]| {
        matches!(name, b"." | b"..") || top && (name.starts_with(volume::RESERVED.as_bytes()) || name == b"lost+found")
    };
    Ok(names.filter(|name| !own(name)).map(|name| OsStr::from_bytes(&name).to_owned()).collect())
}

/// Not recursive: trees can be deeper than the stack.
fn walk(storage: &StripedStorage, repair: Repair, report: &mut Report) -> io::Result<()> {
    let mut dirs: Vec<(NodeRef, OsString, PathBuf)> = Vec::new();
    look(storage, &storage.root(), Path::new(""), repair, report, &mut dirs)?;
    while let Some((dir, name, path)) = dirs.pop() {
        // Looked up again: as many as there are below one directory need not be remembered.
        let child: NodeRef = Arc::new(storage.find(own(&dir)?, &name, None)?);
        look(storage, &child, &path, repair, report, &mut dirs)?;
    }
    Ok(())
}

/// Compares what the targets have in a directory. The directories in there are left to `dirs`, the first one last.
fn look(
    storage: &StripedStorage,
    dir: &NodeRef,
    path: &Path,
    repair: Repair,
    report: &mut Report,
    dirs: &mut Vec<(NodeRef, OsString, PathBuf)>,
) -> io::Result<()> {
    let node = own(dir)?;
    let top = dir.id() == storage.root.id();
    let first = names(storage, node, 0, top)?;
    for target in 1..storage.targets.len() {
        for name in names(storage, node, target, top)?.difference(&first) {
            let dir = node.on(target)?;
            let bytes = bytes_below(&storage.targets[target], dir, name)?;
            let remove = repair == Repair::Discard || repair == Repair::Safe && bytes == 0;
            let repaired = remove && storage.remove_tree(target, dir, name).is_ok();
            report.orphans.push(Finding { target, path: path.join(name), repaired, bytes });
        }
    }
    let before = dirs.len();
    for name in &first {
        report.objects += 1;
        let mut child = storage.find(node, name, None)?;
        for target in 1..storage.targets.len() {
            if child.pieces[target].is_some() {
                continue;
            }
            let piece = node.pieces[target].as_ref();
            let mut finding = Finding { target, path: path.join(name), repaired: false, bytes: 0 };
            if piece.is_some_and(|dir| storage.targets[target].lookup(dir, name).is_ok()) {
                report.mismatched.push(finding);
                continue;
            }
            if let (true, Some(dir)) = (repair != Repair::No, piece) {
                child.pieces[target] = remake(storage, &child, target, dir, name).ok();
                finding.repaired = child.pieces[target].is_some();
            }
            report.missing.push(finding);
        }
        if child.first.is_none() && child.pieces.iter().all(Option::is_some) {
            for target in storage.places.suspects(storage.modes(&child.pieces)) {
                report.unplaced.push(Finding { target, path: path.join(name), repaired: false, bytes: 0 });
            }
        }
        if child.kind == libc::S_IFDIR {
            dirs.push((dir.clone(), name.clone(), path.join(name)));
        }
    }
    dirs[before..].reverse();
    Ok(())
}

/// Bytes of a regular file, or of all below a directory.
fn bytes_below(target: &PosixStorage, dir: &NodeRef, name: &OsStr) -> io::Result<u64> {
    let (mut bytes, mut left) = (0, vec![(dir.clone(), name.to_owned())]);
    while let Some((dir, name)) = left.pop() {
        let node = target.lookup(&dir, &name)?;
        let attr = target.getattr(&node)?;
        match attr.mode & libc::S_IFMT {
            libc::S_IFREG => bytes += attr.size,
            libc::S_IFDIR => {
                let names = target.readdir(&node)?.into_iter().map(|entry| entry.name.into_bytes());
                let names = names.filter(|name| !matches!(&name[..], b"." | b".."));
                left.extend(names.map(|name| (node.clone(), OsString::from_vec(name))));
            }
            _ => {}
        }
    }
    Ok(bytes)
}

/// Makes what a target lacks and what holds no bytes.
fn remake(
    storage: &StripedStorage,
    node: &StripedNode,
    target: usize,
    dir: &NodeRef,
    name: &OsStr,
) -> io::Result<NodeRef> {
    let to = &storage.targets[target];
    match node.kind {
        libc::S_IFREG => Err(rustix::io::Errno::IO.into()),
        libc::S_IFDIR => to.mkdir(dir, name, 0o700, &storage.process),
        libc::S_IFLNK => {
            let link = storage.targets[0].readlink(node.first())?;
            to.symlink(dir, name, OsStr::from_bytes(link.as_bytes()), &storage.process)
        }
        kind => {
            let rdev = storage.targets[0].getattr(node.first())?.rdev;
            to.mknod(dir, name, kind | 0o600, rdev, &storage.process)
        }
    }
}
