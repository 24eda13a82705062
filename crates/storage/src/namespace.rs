//! The tree of names: look-up, creation, attributes.

use std::any::Any;
use std::ffi::{CString, OsStr};
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

/// A reference to a file system object, kept for as long as it lives even if it is renamed or unlinked
/// (an `O_PATH` descriptor on every target for the directory-based storages).
pub trait Node: Any + Send + Sync {
    /// Identity of the object within this storage: equal for two nodes exactly if they are the same object (hard links
    /// included) as long as one of them is alive.
    fn id(&self) -> u64;

    /// False if something of the object was not there when it was looked up: then a later look-up may find more.
    fn is_whole(&self) -> bool {
        true
    }
}

/// An open regular file.
pub trait OpenFile: Any + Send + Sync {
    /// [`Node::id`] of the opened object.
    fn id(&self) -> u64;

    /// The target that has the file's first stripe: the same for as long as the file exists. Less than the number of targets;
    /// 0 where there is one. Costs nothing.
    fn first_target(&self) -> u32 {
        0
    }
}

/// Shared reference to a [`Node`].
pub type NodeRef = Arc<dyn Node>;
/// Shared reference to an [`OpenFile`].
pub type FileRef = Arc<dyn OpenFile>;

/// Attributes of an object, of the logical file where it is striped. Times are seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// [`Node::id`].
    pub ino: u64,
    /// File type and permission bits (`st_mode`).
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of special files.
    pub rdev: u64,
    /// Logical size in bytes.
    pub size: u64,
    /// 512-byte blocks allocated on all targets together.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: (i64, u32),
    /// Last modification of the data, the latest over the targets.
    pub mtime: (i64, u32),
    /// Last change of the attributes.
    pub ctime: (i64, u32),
}

/// A new time for [`SetAttr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// Seconds and nanoseconds since 1970.
    At(i64, u32),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Logical size: truncates or extends.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last modification.
    pub mtime: Option<SetTime>,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Name, without `/`.
    pub name: CString,
    /// Inode number as the storage reports it (informative: the id comes from a look-up).
    pub ino: u64,
    /// File type as in `d_type` (`DT_REG`, `DT_DIR`...).
    pub kind: u8,
}

/// A snapshot of a directory's entries, `.` and `..` included, in a stable order for as long as it is open.
pub type DirEntries = Vec<DirEntry>;

/// Capacity, as in `statvfs`, summed over the targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for ordinary users.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred block size in bytes.
    pub bsize: u32,
    /// Fragment size in bytes: the unit of `blocks`.
    pub frsize: u32,
    /// Longest name.
    pub namelen: u32,
}

/// On whose behalf something is made: it belongs to this user, and the parent's default access control list and
/// set-group-ID bit, quotas and the rest apply as if this user had made it without anything in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creator {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Permission bits to leave out, unless the parent's default access control list decides.
    pub umask: u32,
}

impl Creator {
    /// A user in one group, with no umask.
    #[must_use]
    pub fn new(uid: u32, gid: u32) -> Creator {
        Creator { uid, gid, groups: Vec::new(), umask: 0 }
    }

    /// The user and group that this process acts as.
    #[must_use]
    pub fn process() -> Creator {
        Creator::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }
}

/// A tree of files on one or more targets. All calls may come from many threads at once and may block.
///
/// Errors are the operating system's (`io::Error::raw_os_error` is always set), as a host passes them on. A node of another
/// storage gives `EXDEV`, an open file of another storage `EINVAL`.
/// The caller is trusted: permission checks are the host's (a FUSE mount uses the kernel's).
pub trait Namespace: Send + Sync {
    /// A current path of an open file, relative to the top, on the first target; `None` if the storage cannot tell. A file
    /// without a name keeps its last one. Not fast: for what is asked once a file.
    fn file_path(&self, file: &FileRef) -> Option<Vec<u8>> {
        let _ = file;
        None
    }

    // ---- namespace -------------------------------------------------------------------------------------------

    /// The top directory.
    fn root(&self) -> NodeRef;
    /// Looks up `name` in the directory `parent` (`.` and `..` are not resolved).
    fn lookup(&self, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef>;
    /// Attributes, `size` being the logical one.
    fn getattr(&self, node: &NodeRef) -> io::Result<Attr>;
    /// Attributes of an open file; cheaper than [`Namespace::getattr`] and right for unlinked files.
    fn getattr_open(&self, file: &FileRef) -> io::Result<Attr>;
    /// Changes attributes; through `file` where given (an unlinked file, a file opened for writing).
    fn setattr(&self, node: &NodeRef, file: Option<&FileRef>, set: SetAttr) -> io::Result<Attr>;
    /// Target of a symbolic link.
    fn readlink(&self, node: &NodeRef) -> io::Result<CString>;
    /// Makes a special file, FIFO or regular file (`mode` with type bits); permissions as in `open`.
    fn mknod(&self, parent: &NodeRef, name: &OsStr, mode: u32, rdev: u64, creator: &Creator) -> io::Result<NodeRef>;
    /// Makes a directory.
    fn mkdir(&self, parent: &NodeRef, name: &OsStr, mode: u32, creator: &Creator) -> io::Result<NodeRef>;
    /// Makes a symbolic link to `to`.
    fn symlink(&self, parent: &NodeRef, name: &OsStr, to: &OsStr, creator: &Creator) -> io::Result<NodeRef>;
    /// Makes a hard link to `node`.
    fn link(&self, node: &NodeRef, parent: &NodeRef, name: &OsStr) -> io::Result<NodeRef>;
    /// Removes a name that is not a directory.
    fn unlink(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, parent: &NodeRef, name: &OsStr) -> io::Result<()>;
    /// Renames; `flags` as in `renameat2` (`RENAME_NOREPLACE`, `RENAME_EXCHANGE`).
    fn rename(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        new_parent: &NodeRef,
        new_name: &OsStr,
        flags: u32,
    ) -> io::Result<()>;
    /// Lists a directory.
    fn readdir(&self, node: &NodeRef) -> io::Result<DirEntries>;
    /// Capacity.
    fn statfs(&self) -> io::Result<StatFs>;
    /// Sets an extended attribute; `flags` as in `setxattr`. A file may lose its set-group-ID bit to an access control list
    /// from this caller.
    fn setxattr(&self, node: &NodeRef, name: &OsStr, value: &[u8], flags: i32, caller: &Creator) -> io::Result<()>;
    /// Value of an extended attribute.
    fn getxattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<Vec<u8>>;
    /// Names of the extended attributes, each ended by a NUL.
    fn listxattr(&self, node: &NodeRef) -> io::Result<Vec<u8>>;
    /// Removes an extended attribute.
    fn removexattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<()>;

    // ---- files -----------------------------------------------------------------------------------------------

    /// Opens a regular file. `flags` as in `open`; `O_CREAT`, `O_EXCL` and `O_APPEND` are the caller's business.
    fn open(&self, node: &NodeRef, flags: i32) -> io::Result<FileRef>;
    /// Creates (or, without `O_EXCL`, opens) and opens a regular file. Of what is made here `O_NOATIME` is kept as far as the
    /// process may: it fails nothing.
    fn create(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        mode: u32,
        flags: i32,
        creator: &Creator,
    ) -> io::Result<(NodeRef, FileRef)>;
    /// Makes a directory durable on every target.
    fn fsync_dir(&self, node: &NodeRef) -> io::Result<()>;
    /// Allocates, punches holes...: `mode` as in `fallocate`, logical offsets. `EOPNOTSUPP` where it cannot be done.
    /// The file loses set-ID bits if this caller may not keep them.
    fn fallocate(&self, file: &FileRef, mode: i32, offset: u64, len: u64, caller: &Creator) -> io::Result<()>;
    /// Whether closing a file may report that what was written failed: where [`Namespace::flush`] does more than nothing.
    fn reports_at_close(&self) -> bool {
        false
    }
    /// A user closes a file that stays open for others: reports what closing does (`ENOSPC`, `EDQUOT`, `EIO` of a network
    /// file system that writes behind).
    fn flush(&self, file: &FileRef) -> io::Result<()> {
        let _ = file;
        Ok(())
    }
    /// From now on listing a directory does not change its time of access; `O_NOATIME` does the same for a file that is
    /// opened with it. As far as the process may: it must own the directory or be privileged.
    fn keep_access_times(&self) -> io::Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// `SEEK_DATA`/`SEEK_HOLE` on logical offsets.
    fn seek_data(&self, file: &FileRef, offset: u64, whence: i32) -> io::Result<u64>;
}
