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
    assert!(!as_posix(&file).try_close(), "it has no name");
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
