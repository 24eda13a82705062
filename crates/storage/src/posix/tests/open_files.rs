//! Open files without descriptors.

use super::descriptors::{limited, place, used};
use super::*;
use crate::striped::{StripedOptions, StripedStorage};

fn write<S: Data>(storage: &S, file: &FileRef, bytes: &[u8]) {
    let target = storage.layout().of(&**file).locate(0).0 as usize;
    assert_eq!(storage.write(file, target, 0, &[IoSlice::new(bytes)]).unwrap(), bytes.len());
}

fn as_posix(file: &FileRef) -> &PosixFile {
    open(file).unwrap()
}

/// A storage whose open files can be closed, if there can be one here.
fn closing() -> Option<(TempDir, PosixStorage)> {
    let (dir, storage) = storage(false);
    if storage.reopens {
        return Some((dir, storage));
    }
    eprintln!("skipped: needs root, and a local file system with handles");
    None
}

#[test]
fn more_files_are_open_than_there_are_descriptors() {
    let Some((_dir, _)) = closing() else { return };
    let dir = tempfile::tempdir().unwrap();
    limited(1024, "open_files::inner_many_open", dir.path());
}

#[test]
fn inner_many_open() {
    const FILES: usize = 1_000;
    let Some(place) = place() else { return };
    let dirs = [0, 1, 2].map(|n| place.join(n.to_string()));
    dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let storage =
        StripedStorage::create_or_open(&dirs, StripedOptions { stripe: Some(4096), ..StripedOptions::default() })
            .unwrap();
    let root = storage.root();
    // As it was when they were written: of most nothing was synced.
    let text = |n: usize, target: usize| format!("file {n} on {target}").into_bytes();
    let files: Vec<(NodeRef, FileRef)> = (0..FILES)
        .map(|n| {
            let name = n.to_string();
            let (node, file) = storage.create(&root, name.as_ref(), 0o400, libc::O_RDWR, &ME()).unwrap();
            for target in 0..3 {
                storage.write(&file, target, 0, &[IoSlice::new(&text(n, target))]).unwrap();
            }
            // Some lose their name, some their mode, while they are open.
            match n % 5 {
                0 if n < 200 => storage.unlink(&root, name.as_ref()).unwrap(),
                1 => storage.rename(&root, name.as_ref(), &root, format!("r{n}").as_ref(), 0).unwrap(),
                2 => {
                    storage.setattr(&node, None, SetAttr { mode: Some(0), ..SetAttr::default() }).unwrap();
                }
                _ => {}
            }
            (node, file)
        })
        .collect();
    assert!(used() <= 1024);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (storage, files, text) = (&storage, &files, &text);
            scope.spawn(move || {
                for turn in 0..FILES {
                    let n = (turn * 7 + thread * 250) % FILES;
                    let file = &files[n].1;
                    for target in 0..3 {
                        let mut bytes = [0; 100];
                        let got = storage.read(file, target, 0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
                        assert_eq!(&bytes[..got], text(n, target), "file {n}");
                    }
                    assert_eq!(storage.getattr_open(file).unwrap().ino, files[n].0.id());
                    if n.is_multiple_of(50) {
                        storage.sync(file, true).unwrap();
                    }
                }
            });
        }
    });
    drop(files);
    assert!(used() < 600, "{} descriptors", used());
}

/// Files without names, for each of which a descriptor must be kept, have all that there are.
#[test]
fn what_must_stay_open_leaves_others_room() {
    let Some((_dir, _)) = closing() else { return };
    let dir = tempfile::tempdir().unwrap();
    limited(256, "open_files::inner_nameless", dir.path());
}

#[test]
fn inner_nameless() {
    let Some(place) = place() else { return };
    let dirs = ["a", "b", "c", "single"].map(|name| place.join(name));
    dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let options = StripedOptions { stripe: Some(4096), ..StripedOptions::default() };
    nameless(&PosixStorage::open(&dirs[3], PosixOptions::default()).unwrap(), &dirs[3]);
    let first = used();
    nameless(&StripedStorage::create_or_open(&dirs[..3], options).unwrap(), &dirs[1]);
    assert!(used() < first + 100, "{} descriptors are left of {first}", used());
}

fn nameless<S: Namespace + Data>(storage: &S, below: &Path) {
    let root = storage.root();
    // The storage has what there is in use; the test looks for itself in the end.
    let spare = std::fs::File::open("/dev/null").unwrap();
    let text = |n: usize| format!("file {n}").into_bytes();
    let make = |n: usize, name: &str| {
        let (node, file) = storage.create(&root, name.as_ref(), 0o600, libc::O_RDWR, &ME())?;
        write(storage, &file, &text(n));
        io::Result::Ok((node, file))
    };
    let check = |n: usize, file: &FileRef| {
        let mut bytes = [0; 20];
        let target = storage.layout().of(&**file).locate(0).0 as usize;
        let got = storage.read(file, target, 0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
        assert_eq!(&bytes[..got], text(n), "file {n}");
    };
    // More than there are descriptors for, which is no harm while they have names.
    let mut open: Vec<_> = (0..300).map(|n| make(n, &n.to_string()).unwrap().1).collect();
    let refused = |result: io::Result<()>| result.map_err(|error| assert_eq!(error.raw_os_error(), Some(libc::EMFILE)));
    let gone: Vec<bool> = (0..300)
        .map(|n| match n % 2 {
            0 => refused(storage.unlink(&root, n.to_string().as_ref())).is_ok(),
            _ => {
                storage.mknod(&root, "new".as_ref(), libc::S_IFREG | 0o600, 0, &ME()).unwrap();
                let done = refused(storage.rename(&root, "new".as_ref(), &root, n.to_string().as_ref(), 0)).is_ok();
                assert!(done || storage.unlink(&root, "new".as_ref()).is_ok(), "nobody has it open");
                done
            }
        })
        .collect();
    let kept = gone.iter().filter(|gone| !**gone).count();
    assert!((50..260).contains(&kept), "{kept} of 300 could not lose their names");
    // Nor can files be opened that must be kept open.
    let error = (0..300).find_map(|n| {
        let (name, n) = (format!("o{n}"), open.len());
        let made = make(n, &name).map(|(_, file)| open.push(file));
        let gone = made.and_then(|()| storage.unlink(&root, name.as_ref()));
        gone.err().map(|error| (error.raw_os_error(), name))
    });
    let (error, name) = error.expect("there is an end of it");
    assert_eq!(error, Some(libc::EMFILE));
    // What needs descriptors for a moment goes on: for who looks, makes names, reads and writes what is open.
    assert!(storage.readdir(&root).unwrap().len() >= kept);
    for n in 0..300 {
        let name = n.to_string();
        let found = storage.lookup(&root, name.as_ref());
        match (gone[n], n % 2) {
            (true, 0) => assert_eq!(errno(found), libc::ENOENT),
            (gone, _) => assert_eq!(storage.getattr(&found.unwrap()).unwrap().size == 0, gone, "file {n}"),
        }
        let dir = storage.mkdir(&root, format!("d{n}").as_ref(), 0o700, &ME()).unwrap();
        assert_eq!(storage.getattr(&dir).unwrap().mode & 0o777, 0o700);
    }
    open.iter().enumerate().for_each(|(n, file)| check(n, file));
    // On no target is anything left of what went, nor missing of what stayed.
    let found = storage.lookup(&root, name.as_ref()).is_ok();
    drop(spare);
    let count = |prefix: char| {
        let names = std::fs::read_dir(below).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(prefix)).count()
    };
    assert_eq!(count('o'), usize::from(found));
    // Whoever closes something makes room for somebody else.
    open.drain(..50).enumerate().for_each(|(n, file)| check(n, &file));
    let (_, file) = make(1000, "again").unwrap();
    storage.unlink(&root, "again".as_ref()).unwrap();
    check(1000, &file);
}

#[test]
fn a_closed_file_goes_on_where_it_was() {
    let Some((dir, storage)) = closing() else { return };
    let root = storage.root();
    let (node, file) = create(&storage, "a");
    let own = as_posix(&file);
    assert!(own.try_close() && !own.is_open());
    assert_eq!(storage.getattr_open(&file).unwrap().ino, node.id(), "needs none");
    assert!(!own.is_open());
    write(&storage, &file, b"one");
    assert!(own.is_open() && !own.try_close(), "not synced");
    storage.sync(&file, false).unwrap();
    assert!(own.try_close());
    // What it was opened with does not happen again, and a mode that forbids everything does not matter.
    let truncated = storage.open(&node, libc::O_RDWR | libc::O_TRUNC).unwrap();
    write(&storage, &truncated, b"three");
    storage.sync(&truncated, true).unwrap();
    storage.setattr(&node, None, SetAttr { mode: Some(0), ..SetAttr::default() }).unwrap();
    assert!(as_posix(&truncated).try_close());
    node_as::<PosixNode>(&node).unwrap().try_close();
    assert_eq!(read(&storage, &truncated, 0, 9), b"three");
    storage.rename(&root, "a".as_ref(), &root, "b".as_ref(), 0).unwrap();
    assert!(as_posix(&truncated).try_close());
    storage.unlink(&root, "b".as_ref()).unwrap();
    assert_eq!(read(&storage, &truncated, 0, 9), b"three");
    assert_eq!(read(&storage, &file, 0, 9), b"three");
    assert!(as_posix(&file).try_close(), "its node leads to it");
    assert_eq!(read(&storage, &file, 0, 9), b"three");
    storage.setattr(&node, Some(&file), SetAttr { size: Some(2), ..SetAttr::default() }).unwrap();
    assert_eq!(read(&storage, &file, 0, 9), b"th");
    // Removed underneath: that one keeps its descriptor, and one that had none is told the truth.
    for closed in [false, true] {
        let (node, file) = create(&storage, "c");
        write(&storage, &file, b"x");
        storage.sync(&file, true).unwrap();
        assert!(!closed || as_posix(&file).try_close());
        node_as::<PosixNode>(&node).unwrap().try_close();
        std::fs::remove_file(dir.path().join("c")).unwrap();
        if closed {
            let read = storage.read(&file, 0, 0, &mut [IoSliceMut::new(&mut [0; 4])]);
            assert_eq!(errno(read), libc::ESTALE);
        } else {
            assert!(!as_posix(&file).try_close());
            assert_eq!(read(&storage, &file, 0, 9), b"x");
        }
    }
}

#[test]
fn a_lent_descriptor_is_not_closed_and_what_is_written_with_it_counts() {
    let Some((_dir, storage)) = closing() else { return };
    let (_, file) = create(&storage, "a");
    let own = as_posix(&file);
    let lent = storage.descriptor(&file, 0).unwrap();
    assert!(!own.try_close());
    storage.sync(&file, false).unwrap();
    rustix::io::pwrite(&lent, b"late", 0).unwrap();
    drop(lent);
    assert!(!own.try_close(), "written after the sync");
    own.settle();
    assert!(own.try_close());
    let reading = storage.open(&storage.lookup(&storage.root(), "a".as_ref()).unwrap(), libc::O_RDONLY).unwrap();
    drop(storage.descriptor(&reading, 0).unwrap());
    assert!(as_posix(&reading).try_close(), "nothing can have been written");
    assert_eq!(read(&storage, &file, 0, 9), b"late");
}

/// A full device that notices only when data is written back.
#[test]
fn an_error_of_syncing_to_close_is_told_by_the_next_sync() {
    let Some((_dir, storage)) = closing() else { return };
    let (_, file) = create(&storage, "a");
    write(&storage, &file, b"one");
    as_posix(&file).fail_settling(Errno::NOSPC);
    assert!(as_posix(&file).try_close());
    assert_eq!(errno(storage.sync(&file, false)), libc::ENOSPC);
    storage.sync(&file, false).unwrap();
}
