//! What executes scheduled requests.
//!
//! A [`Storage`] is a tree of files whose bytes live on one or more *targets* (data servers, disks). It has two faces:
//!
//! * the *namespace* face (look-up, create, rename, attributes...), which hosts call directly, and
//! * the *data* face ([`Storage::read`], [`Storage::write`]), which only the runtime calls, one call for each batch the
//!   engine dispatched, on one target and at offsets *within the target's file*.
//!
//! [`Layout`] translates between a file's logical offsets and (target, offset in the target's file).
//!
//! | storage | what it is |
//! |---|---|
//! | [`posix`] | one directory |
//! | [`striped`] | RAID-0 over several directories |
//! | [`emulated`] | wraps another storage: one emulated device for each target |
//! | [`null`] | does nothing, at once: for measuring what is around it |

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

pub mod emulated;
mod layout;
pub mod null;
pub mod posix;
pub mod striped;

pub use layout::{Layout, Piece, Pieces};
pub use striped::fnv1a;

/// A reference to a file system object, kept for as long as it lives even if it is renamed or unlinked
/// (an `O_PATH` descriptor on every target for the directory-based storages).
pub trait Node: Send + Sync + std::any::Any {
    /// Identity of the object within this storage: equal for two nodes exactly if they are the same object (hard links
    /// included) as long as one of them is alive.
    fn id(&self) -> u64;
    /// For the implementations to get their own type back.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// An open regular file.
pub trait OpenFile: Send + Sync + std::any::Any {
    /// [`Node::id`] of the opened object.
    fn id(&self) -> u64;
    /// For the implementations to get their own type back.
    fn as_any(&self) -> &dyn std::any::Any;
    /// The descriptor on which the target's bytes can be read and written with plain system calls (`preadv`, `pwritev`,
    /// io_uring) at the offsets given to [`Storage::read`] with the same effect, or `None` if the storage must do it.
    fn raw_fd(&self, target: usize) -> Option<RawFd>;
    /// Reads and writes of this file never wait for a device, so that any thread may do them at any time.
    fn never_waits(&self) -> bool {
        false
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

/// A tree of files on one or more targets. All calls may come from many threads at once and may block.
///
/// Errors are the operating system's (`io::Error::raw_os_error` is always set), as a host passes them on.
/// The caller is trusted: permission checks are the host's (a FUSE mount uses the kernel's).
pub trait Storage: Send + Sync {
    /// How logical offsets map to targets.
    fn layout(&self) -> Layout;

    /// One line for people: what this storage is, with the word "emulated" if it is.
    fn describe(&self) -> String;

    /// True if service times are emulated. Every output that shows a figure must then say so.
    fn emulated(&self) -> bool {
        false
    }

    /// What the emulated devices have done, one for each target; empty if nothing is emulated.
    fn device_stats(&self) -> Vec<emulated::DeviceStats> {
        Vec::new()
    }

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
    /// Attributes of an open file; cheaper than [`Storage::getattr`] and right for unlinked files.
    fn getattr_open(&self, file: &FileRef) -> io::Result<Attr>;
    /// Changes attributes; through `file` where given (an unlinked file, a file opened for writing).
    fn setattr(&self, node: &NodeRef, file: Option<&FileRef>, set: SetAttr) -> io::Result<Attr>;
    /// Target of a symbolic link.
    fn readlink(&self, node: &NodeRef) -> io::Result<CString>;
    /// Makes a special file, FIFO or regular file (`mode` with type bits); owned by `uid`:`gid`.
    fn mknod(&self, parent: &NodeRef, name: &OsStr, mode: u32, rdev: u64, owner: (u32, u32)) -> io::Result<NodeRef>;
    /// Makes a directory.
    fn mkdir(&self, parent: &NodeRef, name: &OsStr, mode: u32, owner: (u32, u32)) -> io::Result<NodeRef>;
    /// Makes a symbolic link to `to`.
    fn symlink(&self, parent: &NodeRef, name: &OsStr, to: &OsStr, owner: (u32, u32)) -> io::Result<NodeRef>;
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
    /// Sets an extended attribute; `flags` as in `setxattr`.
    fn setxattr(&self, node: &NodeRef, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()>;
    /// Value of an extended attribute.
    fn getxattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<Vec<u8>>;
    /// Names of the extended attributes, each ended by a NUL.
    fn listxattr(&self, node: &NodeRef) -> io::Result<Vec<u8>>;
    /// Removes an extended attribute.
    fn removexattr(&self, node: &NodeRef, name: &OsStr) -> io::Result<()>;

    // ---- files -----------------------------------------------------------------------------------------------

    /// Opens a regular file. `flags` as in `open`; `O_CREAT`, `O_EXCL` and `O_APPEND` are the caller's business.
    fn open(&self, node: &NodeRef, flags: i32) -> io::Result<FileRef>;
    /// Creates (or, without `O_EXCL`, opens) and opens a regular file.
    fn create(
        &self,
        parent: &NodeRef,
        name: &OsStr,
        mode: u32,
        flags: i32,
        owner: (u32, u32),
    ) -> io::Result<(NodeRef, FileRef)>;
    /// Makes what was written durable on every target; without `metadata` as `fdatasync`.
    fn fsync(&self, file: &FileRef, metadata: bool) -> io::Result<()>;
    /// Makes a directory durable on every target.
    fn fsync_dir(&self, node: &NodeRef) -> io::Result<()>;
    /// Allocates, punches holes...: `mode` as in `fallocate`, logical offsets. `EOPNOTSUPP` where it cannot be done.
    fn fallocate(&self, file: &FileRef, mode: i32, offset: u64, len: u64) -> io::Result<()>;
    /// `SEEK_DATA`/`SEEK_HOLE` on logical offsets.
    fn seek_data(&self, file: &FileRef, offset: u64, whence: i32) -> io::Result<u64>;

    // ---- data: called by the runtime only, with what the engine dispatched -----------------------------------

    /// Reads from `target`'s file at `offset` into `bufs`, in order. Returns the bytes read, less than asked only at the
    /// end of the target's file (which may be before the logical end: the caller fills holes with zeros).
    fn read(&self, file: &FileRef, target: usize, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize>;
    /// Writes `bufs`, in order, to `target`'s file at `offset`. Returns the bytes written; less than asked only together
    /// with a reason that the next call would report (a full device).
    fn write(&self, file: &FileRef, target: usize, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<usize>;
}
