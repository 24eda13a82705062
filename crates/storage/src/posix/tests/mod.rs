use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

mod creation;
mod descriptors;
mod open_files;

const ME: fn() -> Creator = Creator::process;

fn storage(direct: bool) -> (TempDir, PosixStorage) {
    let dir = tempfile::tempdir().unwrap();
    let storage = PosixStorage::open(dir.path(), PosixOptions { direct }).unwrap();
    (dir, storage)
}

fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().and_then(|error| error.raw_os_error()).expect("an error of the operating system")
}

fn create(storage: &PosixStorage, name: &str) -> (NodeRef, FileRef) {
    storage.create(&storage.root(), name.as_ref(), 0o640, libc::O_WRONLY | libc::O_EXCL, &ME()).unwrap()
}

fn read(storage: &PosixStorage, file: &FileRef, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let n = storage.read(file, 0, offset, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn objects_survive_rename_and_unlink() {
    let (_dir, storage) = storage(false);
    let root = storage.root();
    let (node, file) = create(&storage, "a");
    storage.write(&file, 0, 0, &[IoSlice::new(b"one"), IoSlice::new(b"two")]).unwrap();
    storage.rename(&root, "a".as_ref(), &root, "b".as_ref(), 0).unwrap();
    assert_eq!(storage.lookup(&root, "b".as_ref()).unwrap().id(), node.id());
    assert_eq!(errno(storage.lookup(&root, "a".as_ref())), libc::ENOENT);
    storage.unlink(&root, "b".as_ref()).unwrap();
    assert_eq!(read(&storage, &file, 2, 100), b"etwo", "a file opened for writing can be read");
    let attr = storage.setattr(&node, None, SetAttr { size: Some(2), ..SetAttr::default() }).unwrap();
    assert_eq!((attr.size, attr.nlink), (2, 0));
    let again = storage.open(&node, libc::O_RDONLY).unwrap();
    assert_eq!(read(&storage, &again, 0, 100), b"on");
    assert_eq!(storage.getattr_open(&again).unwrap().ino, node.id());
}

#[test]
fn creation_has_the_exact_mode_and_owner() {
    let (dir, storage) = storage(false);
    let root = storage.root();
    let me = ME();
    storage.create(&root, "f".as_ref(), 0o4626, libc::O_RDWR, &me).unwrap();
    storage.mkdir(&root, "d".as_ref(), 0o1737, &me).unwrap();
    storage.mknod(&root, "p".as_ref(), libc::S_IFIFO | 0o622, 0, &me).unwrap();
    let mode = |name: &str| dir.path().join(name).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d"), mode("p")), (0o4626, 0o1737, 0o622));
    let fifo = storage.lookup(&root, "p".as_ref()).unwrap();
    assert_eq!(errno(storage.open(&fifo, libc::O_RDONLY)), libc::ENXIO);
    if me.uid == 0 {
        storage.symlink(&root, "s".as_ref(), "gone".as_ref(), &Creator::new(12, 34)).unwrap();
        let (node, _) = storage.create(&root, "g".as_ref(), 0o4755, libc::O_RDWR, &Creator::new(12, 34)).unwrap();
        let attr = storage.getattr(&node).unwrap();
        assert_eq!((attr.uid, attr.gid, attr.mode & 0o7777), (12, 34, 0o4755));
        let link = dir.path().join("s").symlink_metadata().unwrap();
        assert_eq!((link.uid(), link.gid()), (12, 34));
        // A set-group-ID directory passes its group on.
        let shared = storage.mkdir(&root, "shared".as_ref(), 0o770, &Creator::new(1, 77)).unwrap();
        let set_gid = SetAttr { mode: Some(0o2770), ..SetAttr::default() };
        storage.setattr(&shared, None, set_gid).unwrap();
        let (node, _) = storage.create(&shared, "x".as_ref(), 0o600, libc::O_RDWR, &Creator::new(5, 6)).unwrap();
        let attr = storage.getattr(&node).unwrap();
        assert_eq!((attr.uid, attr.gid), (5, 77));
        let sub = storage.mkdir(&shared, "y".as_ref(), 0o700, &Creator::new(5, 6)).unwrap();
        assert_eq!(storage.getattr(&sub).unwrap().mode & 0o7777, 0o2700);
    }
}

#[test]
fn what_was_made_without_times_of_access_keeps_that() {
    let (_dir, storage) = storage(false);
    for (name, no_atime) in [("a", 0), ("b", libc::O_NOATIME)] {
        let flags = libc::O_RDWR | libc::O_EXCL | no_atime;
        let (_, file) = storage.create(&storage.root(), name.as_ref(), 0o600, flags, &ME()).unwrap();
        let kept = sys::fcntl_getfl(open(&file).unwrap().bytes().unwrap().fd()).unwrap();
        assert_eq!(kept.contains(OFlags::NOATIME), no_atime != 0, "{name}");
    }
}

#[test]
fn namespace() {
    let (_dir, storage) = storage(false);
    let root = storage.root();
    let (a, _) = create(&storage, "a");
    let (b, _) = create(&storage, "b");
    assert_eq!(errno(storage.create(&root, "a".as_ref(), 0o600, libc::O_EXCL, &ME())), libc::EEXIST);
    let (opened, _) = storage.create(&root, "a".as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
    assert_eq!(opened.id(), a.id());
    assert_eq!(errno(storage.rename(&root, "a".as_ref(), &root, "b".as_ref(), libc::RENAME_NOREPLACE)), libc::EEXIST);
    storage.rename(&root, "a".as_ref(), &root, "b".as_ref(), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!(storage.lookup(&root, "a".as_ref()).unwrap().id(), b.id());
    let sub = storage.mkdir(&root, "sub".as_ref(), 0o700, &ME()).unwrap();
    storage.link(&a, &sub, "hard".as_ref()).unwrap();
    assert_eq!(storage.getattr(&a).unwrap().nlink, 2);
    let soft = storage.symlink(&sub, "soft".as_ref(), "to where".as_ref(), &ME()).unwrap();
    assert_eq!(storage.readlink(&soft).unwrap().as_bytes(), b"to where");
    let times = SetAttr { mtime: Some(SetTime::At(7, 8)), atime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(storage.setattr(&soft, None, times).unwrap().mtime, (7, 8));
    storage.link(&soft, &sub, "soft2".as_ref()).unwrap();
    let mut names: Vec<_> = storage.readdir(&sub).unwrap().into_iter().map(|e| (e.name, e.kind)).collect();
    names.sort();
    let expected = [
        (".", libc::DT_DIR),
        ("..", libc::DT_DIR),
        ("hard", libc::DT_REG),
        ("soft", libc::DT_LNK),
        ("soft2", libc::DT_LNK),
    ];
    assert_eq!(names, expected.map(|(name, kind)| (CString::new(name).unwrap(), kind)));
    assert_eq!(errno(storage.rmdir(&root, "sub".as_ref())), libc::ENOTEMPTY);
    for name in ["hard", "soft", "soft2"] {
        storage.unlink(&sub, name.as_ref()).unwrap();
    }
    storage.fsync_dir(&sub).unwrap();
    storage.rmdir(&root, "sub".as_ref()).unwrap();
    assert!(storage.statfs().unwrap().blocks > 0);
}

#[test]
fn lists_have_the_numbers_that_attributes_have_on_other_devices_too() {
    let (dir, storage) = storage(false);
    let at = dir.path().join("nested");
    std::fs::create_dir(&at).unwrap();
    if let Err(error) = rustix::mount::mount("none", &at, "tmpfs", rustix::mount::MountFlags::empty(), c"") {
        return eprintln!("SKIP: no mounting here ({error}): this test did NOT run");
    }
    std::fs::create_dir(at.join("sub")).unwrap();
    std::fs::write(at.join("file"), b"x").unwrap();
    std::fs::write(dir.path().join("file"), b"x").unwrap();
    let nested = storage.lookup(&storage.root(), "nested".as_ref()).unwrap();
    let numbers = |dir: &NodeRef, names: &[&str]| -> Vec<(u64, u64)> {
        let entries = storage.readdir(dir).unwrap();
        let of = |name: &&str| {
            let listed = entries.iter().find(|entry| entry.name.as_bytes() == name.as_bytes()).unwrap().ino;
            let found = storage.lookup(dir, (*name).as_ref()).unwrap();
            (listed, storage.getattr(&found).unwrap().ino)
        };
        names.iter().map(of).collect()
    };
    let numbers = [numbers(&storage.root(), &["file"]), numbers(&nested, &["sub", "file"])].concat();
    drop((nested, storage));
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(numbers.iter().all(|(listed, found)| listed == found), "{numbers:?}");
}

#[test]
fn extended_attributes_also_of_symbolic_links() {
    let (_dir, storage) = storage(false);
    let root = storage.root();
    let (node, _) = create(&storage, "f");
    let name: &OsStr = "user.colour".as_ref();
    storage.setxattr(&node, name, b"blue", 0, &ME()).unwrap();
    assert_eq!(storage.getxattr(&node, name).unwrap(), b"blue");
    assert!(storage.listxattr(&node).unwrap().ends_with(b"user.colour\0"));
    assert_eq!(errno(storage.setxattr(&node, name, b"", libc::XATTR_CREATE, &ME())), libc::EEXIST);
    storage.removexattr(&node, name).unwrap();
    assert_eq!(errno(storage.getxattr(&node, name)), libc::ENODATA);
    // The link's own attributes, not those of the file it leads to.
    let soft = storage.symlink(&root, "s".as_ref(), "f".as_ref(), &ME()).unwrap();
    assert!(storage.setxattr(&soft, name, b"x", 0, &ME()).is_err(), "user attributes are for files and directories");
    if ME().uid == 0 {
        storage.setxattr(&soft, "trusted.t".as_ref(), b"x", 0, &ME()).unwrap();
        assert_eq!(errno(storage.getxattr(&node, "trusted.t".as_ref())), libc::ENODATA);
        assert_eq!(storage.getxattr(&soft, "trusted.t".as_ref()).unwrap(), b"x");
    }
}

#[test]
fn holes() {
    let (_dir, storage) = storage(false);
    let (_, file) = create(&storage, "f");
    storage.write(&file, 0, 1 << 20, &[IoSlice::new(&[1; 4096])]).unwrap();
    assert_eq!(storage.seek_data(&file, 0, libc::SEEK_DATA).unwrap(), 1 << 20);
    assert_eq!(storage.seek_data(&file, 0, libc::SEEK_HOLE).unwrap(), 0);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    storage.fallocate(&file, punch, 1 << 20, 4096, &ME()).unwrap();
    assert_eq!(errno(storage.seek_data(&file, 0, libc::SEEK_DATA)), libc::ENXIO);
    assert_eq!(storage.getattr_open(&file).unwrap().size, (1 << 20) + 4096);
}

#[test]
fn what_is_in_memory_can_be_read_without_waiting_and_descriptors_outlive_their_file() {
    let (_dir, storage) = storage(false);
    let (node, file) = create(&storage, "f");
    storage.write(&file, 0, 0, &[IoSlice::new(&[7; 5000])]).unwrap();
    let mut bytes = [0; 6000];
    let (a, b) = bytes.split_at_mut(100);
    // A file system may not know how to say what is in memory.
    if let Some(read) = storage.try_read(&file, 0, 0, &mut [IoSliceMut::new(a), IoSliceMut::new(b)]).unwrap() {
        assert_eq!((read, bytes[4999], bytes[5000]), (5000, 7, 0));
    }
    assert!(!storage.never_waits(&file));
    assert_eq!(storage.size_at_least(&file, 1).unwrap(), 5000);
    let fd = storage.descriptor(&file, 0).expect("buffered");
    storage.unlink(&storage.root(), "f".as_ref()).unwrap();
    drop((node, file));
    assert_eq!(rustix::io::pread(&*fd, &mut bytes[..], 0).unwrap(), 5000);
}

#[test]
fn more_buffers_than_one_call_takes() {
    let (_dir, storage) = storage(false);
    let (_, file) = create(&storage, "f");
    let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    let slices: Vec<IoSlice<'_>> = bytes.chunks(2).map(IoSlice::new).collect();
    assert_eq!(storage.write(&file, 0, 3, &slices).unwrap(), bytes.len());
    let mut back = vec![0; 6000];
    let mut slices: Vec<IoSliceMut<'_>> = back.chunks_mut(2).map(IoSliceMut::new).collect();
    assert_eq!(storage.read(&file, 0, 3, &mut slices).unwrap(), bytes.len());
    assert_eq!(back[..bytes.len()], bytes);
}

/// An error in the middle of one read; the plainest one is memory that cannot be written to.
#[test]
#[allow(unsafe_code)]
fn a_read_that_an_error_stops_gives_what_came_before() {
    let (_dir, storage) = storage(false);
    let (_, file) = create(&storage, "f");
    storage.write(&file, 0, 0, &[IoSlice::new(&[7; 8192])]).unwrap();
    let kinds = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, of which only the kernel uses the second half, which it may not.
    let memory = unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, kinds, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(memory.byte_add(4096), 4096, libc::PROT_NONE), 0);
        crate::Segment::new(memory.cast(), 8192)
    };
    let read = |offset, part| storage.read(&file, 0, offset, crate::Segment::for_read(&mut [part]));
    assert_eq!(read(0, memory).unwrap(), 4096);
    assert_eq!(errno(read(4096, memory.part(4096, 4096))), libc::EFAULT, "asking for the rest tells why");
    // SAFETY: nobody uses it any more.
    assert_eq!(unsafe { libc::munmap(memory.start().cast(), 8192) }, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Whatever the alignment of offset, length and memory, direct I/O does what plain memory would.
    #[test]
    fn direct_io_is_coherent(
        ops in proptest::collection::vec((any::<bool>(), 0usize..40_000, 0usize..30_000, 0usize..600, any::<bool>()), 1..20),
    ) {
        let dir = tempfile::tempdir().unwrap();
        // A file system in memory may not have direct I/O.
        let Ok(storage) = PosixStorage::open(dir.path(), PosixOptions { direct: true }) else { return Ok(()) };
        let (_, file) = create(&storage, "f");
        prop_assert!(storage.descriptor(&file, 0).is_none());
        let mut model: Vec<u8> = Vec::new();
        for (i, (write, offset, len, shift, round)) in ops.into_iter().enumerate() {
            let (offset, len, shift) =
                if round { (offset / 4096 * 4096, len / 4096 * 4096, 0) } else { (offset, len, shift) };
            // A misaligned start in memory, and two buffers.
            let mut memory = Bytes::new(shift, len);
            let cut = if round { len / 8192 * 4096 } else { len / 3 };
            if write {
                memory.bytes().fill(i as u8 + 1);
                let (a, b) = memory.bytes().split_at(cut);
                prop_assert_eq!(storage.write(&file, 0, offset as u64, &[IoSlice::new(a), IoSlice::new(b)]).unwrap(), len);
                if len > 0 {
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].fill(i as u8 + 1);
                }
            } else {
                let (a, b) = memory.bytes().split_at_mut(cut);
                let got = storage.read(&file, 0, offset as u64, &mut [IoSliceMut::new(a), IoSliceMut::new(b)]).unwrap();
                let expected = &model[offset.min(model.len())..(offset + len).min(model.len())];
                prop_assert_eq!(got, expected.len());
                prop_assert!(&memory.bytes()[..got] == expected);
            }
        }
        storage.sync(&file, false).unwrap();
        prop_assert!(std::fs::read(dir.path().join("f")).unwrap() == model);
    }
}

/// Memory at a chosen distance from a page boundary.
struct Bytes(Vec<u8>, usize, usize);

impl Bytes {
    fn new(shift: usize, len: usize) -> Bytes {
        let memory = vec![0; len + shift + 4096];
        let start = memory.as_ptr().addr().next_multiple_of(4096) - memory.as_ptr().addr() + shift;
        Bytes(memory, start, len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0[self.1..self.1 + self.2]
    }
}
