//! A tier as a storage.

use std::any::Any;
use std::ffi::{CString, OsStr};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use sluice_storage::emulated::DeviceStats;
use sluice_storage::{
    Attr, Creator, Data, DirEntries, DirEntry, FileRef, Layout, Namespace, Node, NodeRef, OpenFile, SetAttr, StatFs,
};

use crate::tier::{Tier, User};

const ROOT: u64 = 1;
const FILE: u64 = 2;
const BLOCK: u32 = 4096;
/// What is refused: there is this file, and nothing else.
const FIXED: Errno = Errno::PERM;

/// A tier as a storage, for hosts that serve files: one directory with one file, which is the disk.
///
/// The file can be read, written, synced and, where the disk frees space, punched. Nothing can be made, removed, renamed or
/// truncated, so that no change of names can come between the log and the bytes it holds.
pub struct OneFile {
    tier: Arc<Tier>,
    name: CString,
    /// What emulates the disk.
    emulation: Option<Arc<dyn Data>>,
}

struct Object(u64);

impl Node for Object {
    fn id(&self) -> u64 {
        self.0
    }
}

/// The file, opened.
struct Opened {
    /// Each write is durable when it returns (`O_SYNC`, `O_DSYNC`).
    synchronous: bool,
    /// Whoever has opened it hears of each flush that failed.
    user: User,
}

impl Opened {
    fn of(file: &FileRef) -> io::Result<&Opened> {
        Ok((&**file as &dyn Any).downcast_ref().ok_or(Errno::XDEV)?)
    }
}

impl OpenFile for Opened {
    fn id(&self) -> u64 {
        FILE
    }
}

impl OneFile {
    /// The tier as a file of this name. `emulation`: what the disk's times come from, if they are emulated.
    ///
    /// # Errors
    /// `InvalidInput` if the name is none of a file.
    pub fn new(tier: Arc<Tier>, name: &OsStr, emulation: Option<Arc<dyn Data>>) -> io::Result<OneFile> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.contains(&b'/') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{}: not a file's name", name.display())));
        }
        Ok(OneFile { tier, name: CString::new(bytes)?, emulation })
    }

    fn attr(&self, id: u64) -> Attr {
        let (mode, size) =
            if id == ROOT { (libc::S_IFDIR | 0o700, 0) } else { (libc::S_IFREG | 0o600, self.tier.size()) };
        let time = (0, 0);
        Attr {
            ino: id,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: size / 512,
            blksize: BLOCK,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }
}

/// As storages say it; the tier has told in words what happened.
fn coded(error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() { error } else { Errno::IO.into() }
}

impl Namespace for OneFile {
    fn root(&self) -> NodeRef {
        Arc::new(Object(ROOT))
    }
    fn lookup(&self, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef> {
        match parent.id() {
            ROOT if name.as_bytes() == self.name.as_bytes() => Ok(Arc::new(Object(FILE))),
            ROOT => Err(Errno::NOENT.into()),
            _ => Err(Errno::NOTDIR.into()),
        }
    }
    fn getattr(&self, node: &NodeRef) -> io::Result<Attr> {
        Ok(self.attr(node.id()))
    }
    fn getattr_open(&self, file: &FileRef) -> io::Result<Attr> {
        Ok(self.attr(file.id()))
    }
    fn setattr(&self, node: &NodeRef, _: Option<&FileRef>, set: SetAttr) -> io::Result<Attr> {
        // Times are not kept.
        let times = SetAttr { atime: set.atime, mtime: set.mtime, ..SetAttr::default() };
        if set == times { Ok(self.attr(node.id())) } else { Err(FIXED.into()) }
    }
    fn readlink(&self, _: &NodeRef) -> io::Result<CString> {
        Err(Errno::INVAL.into())
    }
    fn mknod(&self, _: &NodeRef, _: &OsStr, _: u32, _: u64, _: &Creator) -> io::Result<NodeRef> {
        Err(FIXED.into())
    }
    fn mkdir(&self, _: &NodeRef, _: &OsStr, _: u32, _: &Creator) -> io::Result<NodeRef> {
        Err(FIXED.into())
    }
    fn symlink(&self, _: &NodeRef, _: &OsStr, _: &OsStr, _: &Creator) -> io::Result<NodeRef> {
        Err(FIXED.into())
    }
    fn link(&self, _: &NodeRef, _: &NodeRef, _: &OsStr) -> io::Result<NodeRef> {
        Err(FIXED.into())
    }
    fn unlink(&self, _: &NodeRef, _: &OsStr) -> io::Result<()> {
        Err(FIXED.into())
    }
    fn rmdir(&self, _: &NodeRef, _: &OsStr) -> io::Result<()> {
        Err(FIXED.into())
    }
    fn rename(&self, _: &NodeRef, _: &OsStr, _: &NodeRef, _: &OsStr, _: u32) -> io::Result<()> {
        Err(FIXED.into())
    }
    fn readdir(&self, node: &NodeRef) -> io::Result<DirEntries> {
        if node.id() != ROOT {
            return Err(Errno::NOTDIR.into());
        }
        let entry = |name: CString, ino, kind| DirEntry { name, ino, kind };
        Ok(vec![
            entry(c".".to_owned(), ROOT, libc::DT_DIR),
            entry(c"..".to_owned(), ROOT, libc::DT_DIR),
            entry(self.name.clone(), FILE, libc::DT_REG),
        ])
    }
    fn statfs(&self) -> io::Result<StatFs> {
        let blocks = self.tier.size() / u64::from(BLOCK);
        Ok(StatFs { blocks, files: 2, bsize: BLOCK, frsize: BLOCK, namelen: 255, ..StatFs::default() })
    }
    fn setxattr(&self, _: &NodeRef, _: &OsStr, _: &[u8], _: i32, _: &Creator) -> io::Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
    fn getxattr(&self, _: &NodeRef, _: &OsStr) -> io::Result<Vec<u8>> {
        Err(Errno::NODATA.into())
    }
    fn listxattr(&self, _: &NodeRef) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn removexattr(&self, _: &NodeRef, _: &OsStr) -> io::Result<()> {
        Err(Errno::NODATA.into())
    }
    fn open(&self, node: &NodeRef, flags: i32) -> io::Result<FileRef> {
        // Part of O_SYNC, too.
        let synchronous = flags & libc::O_DSYNC != 0;
        match node.id() {
            FILE => Ok(Arc::new(Opened { synchronous, user: self.tier.user() })),
            _ => Err(Errno::ISDIR.into()),
        }
    }
    fn create(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        _: u32,
        flags: i32,
        _: &Creator,
    ) -> io::Result<(NodeRef, FileRef)> {
        let node = self.lookup(parent, name).map_err(|_| FIXED)?;
        let file = self.open(&node, flags)?;
        Ok((node, file))
    }
    fn fsync_dir(&self, _: &NodeRef) -> io::Result<()> {
        Ok(())
    }
    fn fallocate(&self, _: &FileRef, mode: i32, offset: u64, len: u64, _: &Creator) -> io::Result<()> {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let grows = !mode.contains(FallocateFlags::KEEP_SIZE)
            && offset.checked_add(len).is_none_or(|end| end > self.tier.size());
        let mode = mode - FallocateFlags::KEEP_SIZE;
        let trim = mode == FallocateFlags::PUNCH_HOLE;
        // Where that is no more than writing zeros, whoever asks knows better whether they are needed.
        if !self.tier.trims() || !(trim || mode == FallocateFlags::ZERO_RANGE) {
            return Err(Errno::OPNOTSUPP.into());
        }
        if grows {
            return Err(Errno::NOSPC.into());
        }
        let end = offset.saturating_add(len).min(self.tier.size());
        self.tier.zero(offset, end.saturating_sub(offset), trim, false).map_err(coded)
    }
    fn seek_data(&self, _: &FileRef, offset: u64, whence: i32) -> io::Result<u64> {
        match whence {
            _ if offset >= self.tier.size() => Err(Errno::NXIO.into()),
            libc::SEEK_HOLE => Ok(self.tier.size()),
            _ => Ok(offset),
        }
    }
}

impl Data for OneFile {
    fn layout(&self) -> Layout {
        Layout::single()
    }
    fn describe(&self) -> String {
        let status = self.tier.status();
        format!("{} with a tier on {}", status.disk, status.ssd)
    }
    fn emulated(&self) -> bool {
        self.emulation.as_ref().is_some_and(|emulation| emulation.emulated())
    }
    fn device_stats(&self) -> Vec<DeviceStats> {
        self.emulation.as_ref().map_or_else(Vec::new, |emulation| emulation.device_stats())
    }
    fn read(&self, _: &FileRef, _: usize, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut at = offset;
        for buf in bufs {
            let len = buf.len().min(usize::try_from(self.tier.size().saturating_sub(at)).unwrap_or(usize::MAX));
            self.tier.read(&mut buf[..len], at).map_err(coded)?;
            at += len as u64;
        }
        Ok((at - offset) as usize)
    }
    fn write(&self, file: &FileRef, _: usize, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let opened = Opened::of(file)?;
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        if offset.checked_add(len as u64).is_none_or(|end| end > self.tier.size()) {
            return Err(Errno::NOSPC.into());
        }
        let mut at = offset;
        for buf in bufs {
            self.tier.write(buf, at, false).map_err(coded)?;
            at += buf.len() as u64;
        }
        if opened.synchronous && len > 0 {
            self.tier.flush_for(&opened.user).map_err(coded)?;
        }
        Ok(len)
    }
    fn sync(&self, file: &FileRef, _: bool) -> io::Result<()> {
        self.tier.flush_for(&Opened::of(file)?.user).map_err(coded)
    }
    fn size_at_least(&self, _: &FileRef, _: u64) -> io::Result<u64> {
        Ok(self.tier.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use crate::{Config, Device, FileDevice, Geometry, Rule};
    use sluice_storage::Storage;

    /// A device whose flushes are counted; the next one may fail.
    struct Watched(FileDevice, AtomicU64, AtomicBool);

    impl Device for Watched {
        fn size(&self) -> u64 {
            self.0.size()
        }
        fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            self.0.read(buf, offset)
        }
        fn write(&self, buf: &[u8], offset: u64) -> io::Result<()> {
            self.0.write(buf, offset)
        }
        fn flush(&self) -> io::Result<()> {
            self.1.fetch_add(1, Ordering::SeqCst);
            if self.2.swap(false, Ordering::SeqCst) { Err(io::Error::other("not flushed")) } else { self.0.flush() }
        }
        fn describe(&self) -> String {
            self.0.describe()
        }
    }

    /// A disk, an SSD, and the file; writes go to the one that the rule says.
    fn watched(dir: &Path, rule: Rule) -> (Arc<Watched>, Arc<Watched>, Storage) {
        let make = |name: &str, bytes| {
            let device = FileDevice::create(dir.join(name), bytes).unwrap();
            Arc::new(Watched(device, AtomicU64::new(0), AtomicBool::new(false)))
        };
        let (disk, ssd) = (make("disk", 1 << 20), make("ssd", 2 << 20));
        let geometry =
            Geometry { queue_bytes: 1 << 20, segment_bytes: 64 << 10, area_bytes: 64 << 10, slot_bytes: 64 << 10 };
        Tier::create(&*disk, "disk", &*ssd, geometry).unwrap();
        let tier = Tier::open(disk.clone(), ssd.clone(), Config { rule, ..Config::default() }).unwrap();
        (disk, ssd, OneFile::new(Arc::new(tier), OsStr::new("disk.img"), None).unwrap().into())
    }

    #[test]
    fn whoever_has_it_open_hears_of_a_flush_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, _, Storage { namespace, data }) = watched(dir.path(), Rule::Never);
        let node = namespace.lookup(&namespace.root(), OsStr::new("disk.img")).unwrap();
        let open = || namespace.open(&node, libc::O_RDWR).unwrap();
        let (one, other) = (open(), open());
        data.write(&other, 0, 4096, &[IoSlice::new(&[1; 4096])]).unwrap();
        disk.2.store(true, Ordering::SeqCst);
        for file in [&one, &other] {
            assert!(data.sync(file, true).is_err(), "it may have lost what was written");
            assert!(data.sync(file, true).is_ok(), "once");
        }
        assert!(data.sync(&open(), true).is_ok(), "that was before");
    }

    /// Where the kernel has no cache it asks for no flush after such a write.
    #[test]
    fn what_is_written_synchronously_is_flushed_when_it_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let (_, ssd, Storage { namespace, data }) = watched(dir.path(), Rule::Always);
        let node = namespace.lookup(&namespace.root(), OsStr::new("disk.img")).unwrap();
        for (flags, is_flushed) in [(0, false), (libc::O_DSYNC, true), (libc::O_SYNC, true)] {
            let file = namespace.open(&node, libc::O_RDWR | flags).unwrap();
            let before = ssd.1.load(Ordering::SeqCst);
            assert_eq!(data.write(&file, 0, 4096, &[IoSlice::new(&[1; 4096])]).unwrap(), 4096);
            assert_eq!(ssd.1.load(Ordering::SeqCst) > before, is_flushed, "{flags:o}");
        }
    }

    #[test]
    fn the_disk_is_the_only_file_and_stays_as_large_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, bytes| FileDevice::create(dir.path().join(name), bytes).unwrap();
        let (disk, ssd) = (make("disk", 1 << 20), make("ssd", 2 << 20));
        let geometry =
            Geometry { queue_bytes: 1 << 20, segment_bytes: 64 << 10, area_bytes: 64 << 10, slot_bytes: 64 << 10 };
        Tier::create(&disk, "disk", &ssd, geometry).unwrap();
        let config = Config { rule: Rule::Always, ..Config::default() };
        let tier = Arc::new(Tier::open(Arc::new(disk), Arc::new(ssd), config).unwrap());
        for name in ["", "a/b", "a\0b"] {
            assert!(OneFile::new(tier.clone(), OsStr::new(name), None).is_err(), "{name:?}");
        }
        let Storage { namespace, data } = OneFile::new(tier.clone(), OsStr::new("disk.img"), None).unwrap().into();
        let root = namespace.root();
        assert!(namespace.lookup(&root, OsStr::new("other")).is_err());
        let node = namespace.lookup(&root, OsStr::new("disk.img")).unwrap();
        assert_eq!(namespace.getattr(&node).unwrap().size, 1 << 20);
        let file = namespace.open(&node, libc::O_RDWR).unwrap();
        let end = (1 << 20) - 4096;
        let (ones, mut read) = (vec![1; 4096], vec![9; 8192]);
        assert_eq!(data.write(&file, 0, end, &[IoSlice::new(&ones[..512]), IoSlice::new(&ones[512..])]).unwrap(), 4096);
        assert_eq!(tier.status().dirty_bytes, 4096, "it is in the log");
        // Reads end at the end, and nothing is written beyond.
        assert_eq!(data.read(&file, 0, end, &mut [IoSliceMut::new(&mut read)]).unwrap(), 4096);
        assert!(read[..4096] == ones);
        let beyond = data.write(&file, 0, end + 1, &[IoSlice::new(&ones)]).unwrap_err();
        assert_eq!(beyond.raw_os_error(), Some(libc::ENOSPC));
        data.sync(&file, true).unwrap();
        // What would make it larger is refused, and what reaches beyond the end without that is not.
        let zero = |mode| namespace.fallocate(&file, libc::FALLOC_FL_ZERO_RANGE | mode, end, 8192, &Creator::process());
        assert_eq!(zero(0).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        zero(libc::FALLOC_FL_KEEP_SIZE).unwrap();
        // What is punched reads as zeros, whatever the log had.
        let user = Creator::process();
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        namespace.fallocate(&file, punch, end, 4096, &user).unwrap();
        assert_eq!(data.read(&file, 0, end, &mut [IoSliceMut::new(&mut read[..4096])]).unwrap(), 4096);
        assert!(read[..4096].iter().all(|&byte| byte == 0));
        for refused in [
            namespace.fallocate(&file, 0, 0, 2 << 20, &user).map(drop),
            namespace.setattr(&node, Some(&file), SetAttr { size: Some(0), ..SetAttr::default() }).map(drop),
            namespace.unlink(&root, OsStr::new("disk.img")),
            namespace.rename(&root, OsStr::new("disk.img"), &root, OsStr::new("x"), 0),
        ] {
            assert!(refused.unwrap_err().raw_os_error().is_some());
        }
        assert!(data.describe().contains("with a tier on") && !data.emulated());
    }
}
