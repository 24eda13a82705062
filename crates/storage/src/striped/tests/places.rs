//! Which target files begin on.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::SetTime;
use crate::striped::place::{BEGINS, FOLLOWS};

/// Makes a file of `len` bytes that tell where they belong, and closes it.
fn fill(storage: &StripedStorage, name: &str, len: usize) -> u32 {
    let (_, file) = create(storage, &storage.root(), name).unwrap();
    write(storage, &file, 0, &bytes_of(name, len));
    file.first_target()
}

fn bytes_of(name: &str, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ name.len() as u8 ^ name.as_bytes()[name.len() - 1]).collect()
}

fn open_named(storage: &StripedStorage, name: &str) -> io::Result<FileRef> {
    storage.open(&storage.lookup(&storage.root(), name.as_ref())?, libc::O_RDWR)
}

fn mode(path: PathBuf) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

fn set_mode(path: PathBuf, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Bytes that each target has.
fn held(volume: &Volume) -> Vec<u64> {
    let bytes = |dir: &PathBuf| {
        let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        let files = files.filter(|entry| !entry.file_name().as_bytes().starts_with(b".sluice-"));
        files.map(|entry| entry.metadata().unwrap().len()).sum()
    };
    volume.dirs.iter().map(bytes).collect()
}

#[test]
fn small_files_fill_all_targets_alike() {
    for (targets, files, len) in [(2, 20, 40_000)].into_iter().chain((2..=8).map(|targets| (targets, 400, 1_000))) {
        let volume = Volume { number: 10 - targets as u64, ..Volume::new(targets) };
        let storage = volume.open(DEFAULT_STRIPE).unwrap();
        (0..files).for_each(|file| _ = fill(&storage, &file.to_string(), len));
        let fair = (files * len / targets) as u64;
        for held in held(&volume) {
            assert!(held.abs_diff(fair) * 10 <= fair, "{held} bytes of {fair} on one of {targets} targets");
        }
    }
}

#[test]
fn a_file_keeps_its_place_whatever_becomes_of_its_names() {
    let volume = Volume { number: 1, ..Volume::new(3) };
    let storage = volume.open(64).unwrap();
    let root = storage.root();
    let mut places: Vec<u32> = ["a", "b", "c", "d"].map(|name| fill(&storage, name, 1000)).to_vec();
    assert!((0..3).all(|target| places.contains(&target)), "{places:?}");
    storage.rename(&root, "a".as_ref(), &root, "b".as_ref(), libc::RENAME_EXCHANGE).unwrap();
    places.swap(0, 1);
    storage.rename(&root, "c".as_ref(), &root, "d".as_ref(), 0).unwrap();
    places[3] = places[2];
    let node = storage.lookup(&root, "d".as_ref()).unwrap();
    storage.link(&node, &root, "e".as_ref()).unwrap();
    // What users change of a file are the permissions of target 0's piece.
    storage.setattr(&node, None, SetAttr { mode: Some(0o444), ..SetAttr::default() }).unwrap();
    drop((storage, root, node));
    let storage = volume.open(64).unwrap();
    for (name, place, was) in
        [("a", places[0], "b"), ("b", places[1], "a"), ("d", places[3], "c"), ("e", places[3], "c")]
    {
        let file = open_named(&storage, name).unwrap();
        assert_eq!(file.first_target(), place, "{name}");
        assert_eq!(read(&storage, &file, 0, 2000), bytes_of(was, 1000), "{name}");
        for target in 1..3 {
            let expected = if target == place as usize { BEGINS } else { FOLLOWS };
            assert_eq!(mode(volume.dirs[target].join(name)), expected);
        }
    }
    assert_eq!(mode(volume.dirs[0].join("d")), 0o444);
    // What is made otherwise than by opening it has a place, too.
    storage.mknod(&storage.root(), "node".as_ref(), libc::S_IFREG | 0o640, 0, &ME()).unwrap();
    storage.mknod(&storage.root(), "fifo".as_ref(), libc::S_IFIFO | 0o640, 0, &ME()).unwrap();
    let file = open_named(&storage, "node").unwrap();
    write(&storage, &file, 0, &[9; 500]);
    assert_eq!(read(&storage, &file, 0, 500), [9; 500]);
    drop((storage, file));
    assert_eq!(check(&volume.dirs, Repair::No).unwrap(), Report { objects: 6, ..Report::default() });
}

/// As `rsync -a` and `cp -a` do: permissions, and no extended attributes.
#[test]
fn places_are_in_a_copy_of_the_targets() {
    let volume = Volume { number: 1, ..Volume::new(3) };
    let storage = volume.open(64).unwrap();
    ["a", "b", "c", "d"].iter().for_each(|name| _ = fill(&storage, name, 1000));
    let before = contents(&storage);
    drop(storage);
    let copy = Volume::new(3);
    for (from, to) in volume.dirs.iter().zip(&copy.dirs) {
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::write(to.join(entry.file_name()), std::fs::read(entry.path()).unwrap()).unwrap();
            set_mode(to.join(entry.file_name()), mode(entry.path()));
        }
    }
    assert_eq!(contents(&copy.open(64).unwrap()), before);
    assert!(check(&copy.dirs, Repair::No).unwrap().clean());
}

#[test]
fn where_permissions_were_changed_there_are_no_bytes_instead_of_wrong_ones() {
    let volume = Volume { number: 1, ..Volume::new(3) };
    let storage = volume.open(64).unwrap();
    let places: Vec<u32> = ["a", "b", "c", "d"].map(|name| fill(&storage, name, 1000)).to_vec();
    assert_eq!(places, [1, 0, 2, 1]);
    drop(storage);
    set_mode(volume.dirs[1].join("a"), 0o600);
    set_mode(volume.dirs[2].join("b"), 0o644);
    set_mode(volume.dirs[1].join("c"), BEGINS);
    let storage = volume.open(64).unwrap();
    let root = storage.root();
    for name in ["a", "b", "c"] {
        assert_eq!(errno(open_named(&storage, name)), libc::EIO, "{name}");
        let node = storage.lookup(&root, name.as_ref()).unwrap();
        storage.getattr(&node).unwrap();
        assert_eq!(errno(storage.setattr(&node, None, SetAttr { size: Some(1), ..SetAttr::default() })), libc::EIO);
        assert_eq!(errno(storage.link(&node, &root, "new".as_ref())), libc::EIO);
    }
    let file = open_named(&storage, "d").unwrap();
    assert_eq!(read(&storage, &file, 0, 2000), bytes_of("d", 1000));
    drop((storage, root, file));
    let report = check(&volume.dirs, Repair::Discard).unwrap();
    let found: Vec<_> = report.unplaced.iter().map(|found| (found.target, found.path.to_str().unwrap())).collect();
    assert_eq!(found, [(1, "a"), (2, "b"), (1, "c"), (2, "c")]);
    assert!(!report.clean() && report.missing.is_empty());
    // Put right, or removed, all is well.
    set_mode(volume.dirs[1].join("a"), BEGINS);
    set_mode(volume.dirs[2].join("b"), FOLLOWS);
    let storage = volume.open(64).unwrap();
    storage.unlink(&storage.root(), "c".as_ref()).unwrap();
    for name in ["a", "b"] {
        assert_eq!(read(&storage, &open_named(&storage, name).unwrap(), 0, 2000), bytes_of(name, 1000));
    }
    drop(storage);
    assert_eq!(check(&volume.dirs, Repair::No).unwrap(), Report { objects: 3, ..Report::default() });
}

/// A truncation that cannot be finished for that reason closes the file and not the volume.
#[test]
fn a_truncation_in_the_journal_of_a_file_whose_place_is_lost() {
    let volume = Volume { number: 1, ..Volume::new(3) };
    let storage = volume.open(64).unwrap();
    ["a", "b"].iter().for_each(|name| _ = fill(&storage, name, 1000));
    let node = storage.lookup(&storage.root(), "a".as_ref()).unwrap();
    fault::kill_after(2);
    assert!(storage.setattr(&node, None, SetAttr { size: Some(10), ..SetAttr::default() }).is_err());
    fault::disarm();
    drop((storage, node));
    set_mode(volume.dirs[1].join("a"), 0o600);
    let storage = volume.open(64).unwrap();
    assert_eq!(errno(open_named(&storage, "a")), libc::EIO);
    assert_eq!(read(&storage, &open_named(&storage, "b").unwrap(), 0, 2000), bytes_of("b", 1000));
}

/// A volume as versions made it that knew only format 1, written here by hand.
fn old_volume() -> Volume {
    let volume = Volume::new(3);
    let bytes = bytes_of("old", 1000);
    for (index, dir) in volume.dirs.iter().enumerate() {
        let text = format!(
            "# A target of a striped volume. Do not change or move this file.\nformat = 1\n\
             volume = \"6a1ff1e6-35a4-4ea5-9d0b-c2a5b1a3a8ee\"\nstripe_bytes = 64\ntargets = 3\nindex = {index}\n"
        );
        std::fs::write(dir.join(".sluice-volume"), text).unwrap();
        let part: Vec<u8> = bytes.chunks(64).skip(index).step_by(3).flatten().copied().collect();
        std::fs::write(dir.join("old"), part).unwrap();
        set_mode(dir.join("old"), if index == 0 { 0o640 } else { 0o600 });
    }
    volume
}

#[test]
fn old_volumes_stay_as_they_are() {
    let volume = old_volume();
    let described = || volume.dirs.iter().map(|dir| std::fs::read(dir.join(".sluice-volume")).unwrap());
    let before: Vec<_> = described().collect();
    assert!(matches!(
        volume.open_as(64, Some(FirstTarget::Hash)).err(),
        Some(StripedError::WrongFirst { found: FirstTarget::Zero, expected: FirstTarget::Hash, .. })
    ));
    for first in [None, Some(FirstTarget::Zero)] {
        let storage = volume.open_as(64, first).unwrap();
        let file = open_named(&storage, "old").unwrap();
        assert_eq!(read(&storage, &file, 0, 2000), bytes_of("old", 1000));
        // Whatever permissions pieces have.
        set_mode(volume.dirs[1].join("old"), BEGINS);
        assert_eq!(open_named(&storage, "old").unwrap().first_target(), 0);
        set_mode(volume.dirs[1].join("old"), 0o600);
    }
    let storage = volume.open(64).unwrap();
    for name in ["a", "b", "c"] {
        assert_eq!(fill(&storage, name, 200), 0);
        let sizes = [0, 1, 2].map(|target| volume.dirs[target].join(name).metadata().unwrap().len());
        assert_eq!(sizes, [64 + 8, 64, 64]);
        assert_eq!([1, 2].map(|target| mode(volume.dirs[target].join(name))), [0o600; 2]);
    }
    drop(storage);
    assert!(before.into_iter().eq(described()));
    assert_eq!(check(&volume.dirs, Repair::No).unwrap(), Report { objects: 4, ..Report::default() });
}

#[test]
fn volumes_are_told_apart_by_their_format() {
    let described = |volume: &Volume| std::fs::read_to_string(volume.dirs[0].join(".sluice-volume")).unwrap();
    for (targets, first, format) in [
        (2, None, 2),
        (2, Some(FirstTarget::Hash), 2),
        (2, Some(FirstTarget::Zero), 1),
        (1, None, 1),
        (1, Some(FirstTarget::Hash), 1),
    ] {
        let volume = Volume::new(targets);
        drop(volume.open_as(64, first).unwrap());
        assert!(described(&volume).contains(&format!("\nformat = {format}\n")), "{targets} {first:?}");
        volume.open_as(64, first).unwrap();
        volume.open_as(64, None).unwrap();
    }
    let volume = Volume::new(2);
    drop(volume.open(64).unwrap());
    let wrong = volume.open_as(64, Some(FirstTarget::Zero)).err().unwrap();
    assert!(matches!(wrong, StripedError::WrongFirst { found: FirstTarget::Hash, .. }), "{wrong}");
    // The targets must agree, as the files of one format are not where the other has them.
    let text = std::fs::read_to_string(volume.dirs[1].join(".sluice-volume")).unwrap();
    std::fs::write(volume.dirs[1].join(".sluice-volume"), text.replace("format = 2", "format = 1")).unwrap();
    assert!(matches!(volume.open(64).err(), Some(StripedError::Damaged { .. })));
}

/// A default access control list on a target that takes the permissions away which tell where a file begins.
#[test]
fn a_file_is_not_made_where_its_place_would_not_be_kept() {
    let volume = Volume { number: 1, ..Volume::new(3) };
    let storage = volume.open(64).unwrap();
    let entry = |tag: u16, permissions: u16| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
    };
    let list = [2_u32.to_le_bytes().to_vec(), entry(1, 6), entry(4, 0), entry(32, 0)].concat();
    let top = PosixStorage::open(&volume.dirs[1], PosixOptions::default()).unwrap();
    if let Err(error) = top.setxattr(&top.root(), "system.posix_acl_default".as_ref(), &list, 0, &ME()) {
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
        eprintln!("skipped: no access control lists here");
        return;
    }
    let root = storage.root();
    assert_eq!(errno(create(&storage, &root, "a")), libc::EOPNOTSUPP, "it would begin on target 1");
    let made =
        storage.mknod(&root, "a".as_ref(), libc::S_IFREG | 0o600, 0, &ME()).map(|node| own(&node).unwrap().first);
    assert_eq!(made.unwrap(), Some(0));
    storage.places.number.store(1, Ordering::Relaxed);
    let made = storage.mknod(&root, "b".as_ref(), libc::S_IFREG | 0o600, 0, &ME());
    assert_eq!(errno(made.map(drop)), libc::EOPNOTSUPP);
    drop((storage, root));
    assert_eq!(
        check(&volume.dirs, Repair::No).unwrap(),
        Report { objects: 1, ..Report::default() },
        "nothing is left of it"
    );
}

/// Files are read where they are: that is not target 0 for most small ones.
#[test]
fn the_time_of_last_access_is_that_of_any_piece() {
    let volume = Volume { number: 1, ..Volume::new(3) };
    let storage = volume.open(64).unwrap();
    for (name, place) in [("a", 1), ("b", 0), ("c", 2)] {
        assert_eq!(fill(&storage, name, 10), place);
        let node = storage.lookup(&storage.root(), name.as_ref()).unwrap();
        let set = |atime| {
            let set = SetAttr { atime: Some(SetTime::At(atime, 0)), ..SetAttr::default() };
            assert_eq!(storage.setattr(&node, None, set).unwrap().atime, (atime, 0), "{name}");
        };
        set(2_000);
        set(1_000);
        // As reading would, where the file system keeps such times.
        let piece = storage.targets[place as usize].lookup(&storage.targets[place as usize].root(), name.as_ref());
        let read = SetAttr { atime: Some(SetTime::At(3_000, 5)), ..SetAttr::default() };
        storage.targets[place as usize].setattr(&piece.unwrap(), None, read).unwrap();
        assert_eq!(storage.getattr(&node).unwrap().atime, (3_000, 5), "{name}");
        assert_eq!(storage.getattr_open(&open_named(&storage, name).unwrap()).unwrap().atime, (3_000, 5));
    }
}

#[test]
fn programs_are_told_where_the_bytes_of_a_file_are() {
    let volume = Volume::new(3);
    let storage = volume.open(64).unwrap();
    let root = storage.root();
    for name in ["a", "b", "c", "d"] {
        drop(create(&storage, &root, name).unwrap());
        let node = storage.lookup(&root, name.as_ref()).unwrap();
        let first = own(&node).unwrap().first.unwrap();
        let told = storage.getxattr(&node, LAYOUT.as_ref()).unwrap();
        assert_eq!(told, format!("64 {first} 3").into_bytes());
        assert_eq!(errno(storage.setxattr(&node, LAYOUT.as_ref(), b"1 0 1", 0, &ME())), libc::EPERM);
        assert!(!storage.listxattr(&node).unwrap().ends_with(b"layout\0"));
    }
    assert_eq!(errno(storage.getxattr(&root, LAYOUT.as_ref())), libc::ENODATA, "a directory is on all of them");
}
