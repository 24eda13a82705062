//! Targets that refuse something while the process lives on.

use super::*;
use crate::striped::journal::boot_id;

const SIZE: usize = 300;

/// A volume of three targets with the files `a` and `b`, of one byte each all over, and a free name `c`.
fn two_files() -> (Volume, StripedStorage, NodeRef) {
    let volume = Volume::new(3);
    let storage = volume.open(16).unwrap();
    let root = storage.root();
    for (name, byte) in [("a", 1), ("b", 2)] {
        write(&storage, &create(&storage, &root, name).unwrap().1, 0, &[byte; SIZE]);
    }
    (volume, storage, root)
}

#[test]
fn a_rename_that_a_target_refuses_is_taken_back_where_nothing_was_replaced() {
    for (to, flags) in
        [("c", 0), ("c", libc::RENAME_NOREPLACE), ("c", libc::RENAME_WHITEOUT), ("b", libc::RENAME_EXCHANGE)]
    {
        let mut refused = 0;
        // The first steps are the journal's and target 0's.
        for steps in 2.. {
            let (volume, storage, root) = two_files();
            let before = contents(&storage);
            fault::fail_after(steps, 1);
            let result = storage.rename(&root, "a".as_ref(), &root, to.as_ref(), flags);
            fault::fail_after(0, 0);
            match result.map_err(|error| error.raw_os_error()) {
                Ok(()) => break,
                Err(Some(libc::EINVAL)) if flags == libc::RENAME_WHITEOUT => {
                    eprintln!("skipped: no whiteouts here");
                    refused = 1;
                    break;
                }
                Err(code) => assert_eq!(code, Some(libc::EROFS)),
            }
            refused += 1;
            assert_eq!(contents(&storage), before, "{to} {flags} {steps}");
            storage.rename(&root, "a".as_ref(), &root, "d".as_ref(), 0).expect("nothing is left to be done");
            drop((storage, root));
            assert!(check(&volume.dirs, Repair::No).unwrap().clean());
        }
        assert!(refused > 0);
    }
}

#[test]
fn a_refused_rename_that_replaced_something_is_done_before_anything_else() {
    for (again, target) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let (volume, storage, root) = two_files();
        fault::fail_after(1 + target, 1);
        assert_eq!(errno(storage.rename(&root, "a".as_ref(), &root, "b".as_ref(), 0)), libc::EROFS);
        fault::fail_after(0, 0);
        // Parts of two files are not taken for one.
        let open = |storage: &StripedStorage, name: &str| {
            storage.open(&storage.lookup(&storage.root(), name.as_ref())?, libc::O_RDWR)
        };
        assert_eq!(errno(open(&storage, "b")), libc::EIO);
        assert_eq!(errno(open(&storage, "a")), libc::ENOENT);
        // While the target refuses it, nothing is done that would take what is still under the old name.
        fault::fail_after(0, 1);
        assert_eq!(errno(create(&storage, &root, "a")), libc::EROFS);
        fault::fail_after(0, 1);
        assert_eq!(errno(storage.unlink(&root, "b".as_ref())), libc::EROFS);
        fault::fail_after(0, 1);
        assert_eq!(errno(storage.rename(&root, "b".as_ref(), &root, "c".as_ref(), 0)), libc::EROFS);
        fault::fail_after(0, 0);
        let storage = match again {
            true => {
                drop((storage, root));
                volume.open(16).unwrap()
            }
            false => storage,
        };
        create(&storage, &storage.root(), "a").unwrap();
        let bytes: Vec<_> = contents(&storage).into_values().map(|(_, bytes)| bytes).collect();
        assert_eq!(bytes, [vec![], vec![1; SIZE]]);
        drop(storage);
        assert_eq!(check(&volume.dirs, Repair::No).unwrap(), Report { objects: 2, ..Report::default() });
    }
}

#[test]
fn a_failed_look_is_an_error_and_not_a_missing_part() {
    let (_volume, storage, root) = two_files();
    fault::fail_looks(true);
    let found = storage.lookup(&root, "a".as_ref());
    fault::fail_looks(false);
    assert_eq!(errno(found), libc::EMFILE);
    let node = storage.lookup(&root, "a".as_ref()).unwrap();
    assert_eq!(read(&storage, &storage.open(&node, libc::O_RDONLY).unwrap(), 0, SIZE), [1; SIZE]);
}

#[test]
fn allocation_takes_nothing_from_those_who_write_at_the_same_time() {
    let volume = Volume::new(2);
    let storage = volume.open(4096).unwrap();
    let root = storage.root();
    const LEN: usize = 40 * 4096;
    for round in 0..300 {
        let name = round.to_string();
        let (_, file) = create(&storage, &root, &name).unwrap();
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                for at in (0..LEN).step_by(4096) {
                    write(&storage, &file, at as u64, &[1; 4096]);
                }
            });
            start.wait();
            for end in (4096..LEN as u64 / 2).step_by(4096) {
                storage.fallocate(&file, 0, end - 4096, 4096, &ME()).unwrap();
            }
        });
        assert!(read(&storage, &file, 0, LEN) == [1; LEN], "round {round}");
        storage.unlink(&root, name.as_ref()).unwrap();
    }
}

/// A record that is there again after a power failure, because its erasure was not.
#[test]
fn a_truncation_from_before_the_system_was_started_is_not_repeated() {
    if boot_id().is_empty() {
        eprintln!("skipped: nothing tells one start of the system from another");
        return;
    }
    for (boot, expected) in [("another", SIZE as u64), (boot_id(), 10), ("", 10)] {
        let (volume, storage, root) = two_files();
        let node = storage.lookup(&root, "a".as_ref()).unwrap();
        let inodes = (0..3).map(|target| storage.targets[target].inode(own(&node)?.on(target)?).map(|ino| ino as i64));
        let inodes = inodes.collect::<io::Result<_>>().unwrap();
        let intent = Intent::Truncate { path: b"a".to_vec(), inodes, size: 10, handles: vec![], boot: boot.into() };
        storage.journal.begin(&intent).unwrap().keep();
        drop((storage, root, node));
        let storage = volume.open(16).unwrap();
        let node = storage.lookup(&storage.root(), "a".as_ref()).unwrap();
        assert_eq!(storage.getattr(&node).unwrap().size, expected, "{boot}");
        assert_eq!(storage.journal.pending().unwrap(), None);
    }
}

#[test]
fn a_truncation_is_not_forgotten_because_the_file_could_not_be_looked_at() {
    let (volume, storage, root) = two_files();
    let node = storage.lookup(&root, "a".as_ref()).unwrap();
    let inodes = (0..3).map(|target| storage.targets[target].inode(own(&node)?.on(target)?).map(|ino| ino as i64));
    let inodes = inodes.collect::<io::Result<_>>().unwrap();
    let boot = boot_id().to_owned();
    let intent = Intent::Truncate { path: b"a".to_vec(), inodes, size: 10, handles: vec![], boot };
    storage.journal.begin(&intent).unwrap().keep();
    drop((storage, root, node));
    fault::fail_looks(true);
    let opened = volume.open(16);
    fault::fail_looks(false);
    assert!(opened.is_err(), "no descriptor was left to look");
    let storage = volume.open(16).unwrap();
    let node = storage.lookup(&storage.root(), "a".as_ref()).unwrap();
    assert_eq!(storage.getattr(&node).unwrap().size, 10);
    assert_eq!(storage.journal.pending().unwrap(), None);
}

/// Another thread gives a file another size when this one has looked at it and is about to change the pieces.
#[test]
fn truncations_at_the_same_time_are_one_after_the_other() {
    for (size, other) in [(230, 7), (7, 230), (0, 300), (300, 0), (229, 300)] {
        let volume = Volume::new(3);
        let storage = Arc::new(volume.open(16).unwrap());
        let (node, file) = create(&storage, &storage.root(), "f").unwrap();
        write(&storage, &file, 0, &[1; 230]);
        let resize = |size| {
            let (storage, node) = (storage.clone(), node.clone());
            move || _ = storage.setattr(&node, None, SetAttr { size: Some(size), ..SetAttr::default() }).unwrap()
        };
        let (elsewhere, (tell, told)) = (resize(other), std::sync::mpsc::channel());
        let (thread, join) = std::sync::mpsc::channel();
        fault::before_step(0, move || {
            let elsewhere = std::thread::spawn(move || {
                elsewhere();
                let _ = tell.send(());
            });
            thread.send(elsewhere).unwrap();
            // It may have to wait for us.
            let _ = told.recv_timeout(std::time::Duration::from_millis(200));
        });
        resize(size)();
        join.recv().unwrap().join().unwrap();
        let found = read(&storage, &file, 0, SIZE);
        let (shorter, longer) = (size.min(other) as usize, size.max(other) as usize);
        let right = match found.len() {
            len if len == shorter => found == vec![1; len],
            // Cut first, it is longer again, but all behind is a hole.
            len if len == longer => [shorter, 230].iter().any(|&data| {
                let data = data.min(len);
                found[..data] == vec![1; data] && found[data..].iter().all(|byte| *byte == 0)
            }),
            _ => false,
        };
        assert!(right, "{size} and {other}: {} bytes, {found:?}", found.len());
    }
}

/// As the record of a truncation, one of a rename may be there again after a power failure. The new file has the number that
/// the renamed one had on the first target, as file systems give numbers of removed files again, but not on the others.
#[test]
fn a_rename_from_before_the_system_was_started_removes_nothing() {
    if boot_id().is_empty() {
        eprintln!("skipped: nothing tells one start of the system from another");
        return;
    }
    for (boot, renamed) in [("another", false), (boot_id(), true)] {
        let (volume, storage, root) = two_files();
        let inodes = |name: &str| storage.inodes(own(&root).unwrap(), name.as_ref()).unwrap();
        let (from_inodes, to_inodes) = (vec![inodes("b")[0], 1, 1], vec![0; 3]);
        let (from, to) = (b"a".to_vec(), b"b".to_vec());
        let boot = boot.to_owned();
        let intent = Intent::Rename { from, to, exchange: false, whiteout: false, from_inodes, to_inodes, boot };
        storage.journal.begin(&intent).unwrap().keep();
        drop((storage, root));
        let storage = volume.open(16).unwrap();
        let node = storage.lookup(&storage.root(), "b".as_ref()).unwrap();
        // In the same start of the system it says what was about to be done.
        assert_eq!(storage.open(&node, libc::O_RDONLY).is_ok(), !renamed);
        assert_eq!(storage.journal.pending().unwrap(), None);
    }
}

/// A rename that a power failure cut short is still finished where the record fits what is there.
#[test]
fn a_rename_from_before_the_system_was_started_is_finished_where_it_fits() {
    for replaces in [false, true] {
        let (volume, storage, root) = two_files();
        let (from, to) = ("a", if replaces { "b" } else { "c" });
        let inodes = |name: &str| storage.inodes(own(&root).unwrap(), name.as_ref()).unwrap();
        let intent = Intent::Rename {
            from: from.into(),
            to: to.into(),
            exchange: false,
            whiteout: false,
            from_inodes: inodes(from),
            to_inodes: inodes(to),
            boot: "another".into(),
        };
        storage.journal.begin(&intent).unwrap().keep();
        std::fs::rename(volume.dirs[0].join(from), volume.dirs[0].join(to)).unwrap();
        drop((storage, root));
        let storage = volume.open(16).unwrap();
        let node = storage.lookup(&storage.root(), to.as_ref()).unwrap();
        assert_eq!(read(&storage, &storage.open(&node, libc::O_RDONLY).unwrap(), 0, SIZE), [1; SIZE]);
    }
}

/// What is left of a record after a power failure, or where it could not be erased, may name directories that were removed
/// since. The volume opens all the same, and what can be finished is.
#[test]
fn a_rename_whose_directories_are_gone_keeps_nobody_out() {
    for (boot, done) in [("another", false), ("another", true), (boot_id(), false), (boot_id(), true)] {
        let (volume, storage, root) = two_files();
        let dir = storage.mkdir(&root, "d".as_ref(), 0o755, &Creator::process()).unwrap();
        write(&storage, &create(&storage, &dir, "a").unwrap().1, 0, &[3; SIZE]);
        let from_inodes = storage.inodes(own(&dir).unwrap(), "a".as_ref()).unwrap();
        let (from, to) = (b"d/a".to_vec(), if done { b"c".to_vec() } else { b"e/c".to_vec() });
        let (to_inodes, boot) = (vec![0; 3], boot.to_owned());
        let intent = Intent::Rename { from, to, exchange: false, whiteout: false, from_inodes, to_inodes, boot };
        storage.journal.begin(&intent).unwrap().keep();
        drop((storage, root, dir));
        for top in &volume.dirs[..if done { 1 } else { 3 }] {
            std::fs::rename(top.join("d/a"), top.join("c")).unwrap();
            std::fs::remove_dir(top.join("d")).unwrap();
        }
        let storage = volume.open(16).unwrap();
        let node = storage.lookup(&storage.root(), "c".as_ref()).unwrap();
        assert_eq!(read(&storage, &storage.open(&node, libc::O_RDONLY).unwrap(), 0, SIZE), [3; SIZE]);
        assert_eq!(storage.journal.pending().unwrap(), None);
    }
}

/// The piece on target 0 is shorter than it could be: there is a hole. Somebody writes there meanwhile.
#[test]
fn a_truncation_that_changes_no_size_takes_nothing_that_is_written_meanwhile() {
    let volume = Volume { number: 0, ..Volume::new(3) };
    let storage = Arc::new(volume.open(16).unwrap());
    let (node, file) = create(&storage, &storage.root(), "a").unwrap();
    assert_eq!(file.first_target(), 0);
    write(&storage, &file, 40, &[1; 8]);
    let before = storage.getattr(&node).unwrap();
    let (other, same) = (storage.clone(), file.clone());
    fault::before_step(0, move || write(&other, &same, 0, &[2; 16]));
    let after = storage.setattr(&node, None, SetAttr { size: Some(48), ..SetAttr::default() }).unwrap();
    assert_eq!(after.size, 48);
    assert!(after.mtime >= before.mtime);
    assert_eq!(read(&storage, &file, 0, 48), [&[2; 16][..], &[0; 24], &[1; 8]].concat());
}

#[test]
fn what_could_not_be_erased_from_the_journal_is_not_repeated_after_other_changes() {
    let cut = |storage: &StripedStorage, size| {
        let node = storage.lookup(&storage.root(), "a".as_ref()).unwrap();
        storage.setattr(&node, None, SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
    };
    for failures in [1, 2] {
        let (volume, storage, root) = two_files();
        let file = storage.open(&storage.lookup(&root, "a".as_ref()).unwrap(), libc::O_RDWR).unwrap();
        // The record, and three parts.
        fault::fail_after(4, failures);
        cut(&storage, 10).expect("it is done, if not over");
        assert!(storage.journal.pending().unwrap().is_some(), "its record could not be erased");
        if failures > 1 {
            let data = [IoSlice::new(&[9; 16])];
            assert_eq!(errno(storage.write(&file, 0, 0, &data)), libc::EROFS, "it would be lost");
        }
        write(&storage, &file, 0, &[9; SIZE]);
        fault::kill_after(0);
        drop((file, root, storage));
        fault::disarm();
        let storage = volume.open(16).unwrap();
        let file = storage.open(&storage.lookup(&storage.root(), "a".as_ref()).unwrap(), libc::O_RDWR).unwrap();
        assert_eq!(read(&storage, &file, 0, SIZE), [9; SIZE], "{failures}");
    }
    // Names, too: `b` may have the inode number on target 0 next that the rename put there.
    let (_volume, storage, root) = two_files();
    fault::fail_after(4, 2);
    storage.rename(&root, "a".as_ref(), &root, "b".as_ref(), 0).unwrap();
    assert!(storage.journal.pending().unwrap().is_some());
    assert_eq!(errno(storage.unlink(&root, "b".as_ref())), libc::EROFS);
    storage.unlink(&root, "b".as_ref()).unwrap();
    assert_eq!(storage.journal.pending().unwrap(), None);
}

#[test]
fn trees_may_be_deeper_than_the_stack() {
    const DEPTH: usize = 3_000;
    let volume = Volume::new(2);
    let storage = volume.open(16).unwrap();
    let name = OsStr::new("d");
    let work = move || {
        let mut dirs = vec![storage.root()];
        for _ in 0..DEPTH {
            let last = dirs.last().unwrap();
            dirs.push(storage.mkdir(last, name, 0o700, &ME()).unwrap());
        }
        // As many orphans, side by side with them.
        let mut orphan = storage.targets[1].mkdir(&storage.targets[1].root(), "o".as_ref(), 0o700, &ME()).unwrap();
        for _ in 0..DEPTH {
            orphan = storage.targets[1].mkdir(&orphan, name, 0o700, &ME()).unwrap();
        }
        drop((orphan, storage));
        let report = check(&volume.dirs, Repair::Safe).unwrap();
        assert_eq!((report.objects, report.orphans.len(), report.clean()), (DEPTH as u64, 1, true));
        // Whoever clears up after the test needs a stack for that.
        let storage = volume.open(16).unwrap();
        let mut dirs = vec![storage.root()];
        (0..DEPTH).for_each(|at| dirs.push(storage.lookup(&dirs[at], name).unwrap()));
        (0..DEPTH).rev().for_each(|at| storage.rmdir(&dirs[at], name).unwrap());
        volume
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap();
}

#[test]
fn a_record_for_other_targets_changes_nothing() {
    for inodes in [vec![], vec![1], vec![1; 9]] {
        let (volume, storage, root) = two_files();
        let before = contents(&storage);
        let (from, to, boot) = (b"/a".to_vec(), b"/b".to_vec(), boot_id().to_owned());
        let (from_inodes, to_inodes) = (inodes.clone(), inodes);
        let rename = Intent::Rename { from, to, exchange: false, whiteout: false, from_inodes, to_inodes, boot };
        storage.journal.begin(&rename).unwrap().keep();
        drop((storage, root));
        let storage = volume.open(16).unwrap();
        assert_eq!(contents(&storage), before);
        assert_eq!(storage.journal.pending().unwrap(), None);
    }
}
