use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

mod chaos;
mod failures;
mod places;

const ME: fn() -> Creator = Creator::process;

struct Volume {
    _top: TempDir,
    dirs: Vec<PathBuf>,
    /// What the numbers of files are counted from each time the volume is opened.
    number: u64,
}

impl Volume {
    fn new(targets: usize) -> Volume {
        let top = tempfile::tempdir().unwrap();
        let dirs: Vec<PathBuf> = (0..targets).map(|i| top.path().join(i.to_string())).collect();
        dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        Volume { _top: top, dirs, number: 0 }
    }

    fn open(&self, stripe: u64) -> Result<StripedStorage, StripedError> {
        self.open_as(stripe, None)
    }

    fn open_as(&self, stripe: u64, first: Option<FirstTarget>) -> Result<StripedStorage, StripedError> {
        let options = StripedOptions { stripe: Some(stripe), first, direct: false };
        let storage = StripedStorage::create_or_open(&self.dirs, options)?;
        storage.places.number.store(self.number, Ordering::Relaxed);
        Ok(storage)
    }
}

fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().and_then(|error| error.raw_os_error()).expect("an error of the operating system")
}

fn create(storage: &StripedStorage, parent: &NodeRef, name: &str) -> io::Result<(NodeRef, FileRef)> {
    storage.create(parent, name.as_ref(), 0o640, libc::O_RDWR | libc::O_EXCL, &ME())
}

fn write(storage: &StripedStorage, file: &FileRef, offset: u64, bytes: &[u8]) {
    for piece in storage.layout().of(&**file).split(offset, bytes.len() as u64) {
        let at = (piece.logical - offset) as usize;
        let part = &bytes[at..at + piece.len as usize];
        let n = storage.write(file, piece.target as usize, piece.offset, &[IoSlice::new(part)]).unwrap();
        assert_eq!(n, part.len());
    }
}

/// As the runtime reads: short pieces below the end of the file are holes.
fn read(storage: &StripedStorage, file: &FileRef, offset: u64, len: usize) -> Vec<u8> {
    let size = storage.getattr_open(file).unwrap().size;
    let mut bytes = vec![0; len.min(size.saturating_sub(offset) as usize)];
    for piece in storage.layout().of(&**file).split(offset, bytes.len() as u64) {
        let at = (piece.logical - offset) as usize;
        let part = &mut bytes[at..at + piece.len as usize];
        storage.read(file, piece.target as usize, piece.offset, &mut [IoSliceMut::new(part)]).unwrap();
    }
    bytes
}

/// The whole tree: path, kind, and the bytes of files or the target of links.
fn contents(storage: &StripedStorage) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    fn walk(storage: &StripedStorage, dir: &NodeRef, path: PathBuf, out: &mut BTreeMap<PathBuf, (u32, Vec<u8>)>) {
        for entry in storage.readdir(dir).unwrap() {
            let name = OsStr::from_bytes(entry.name.as_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let node = storage.lookup(dir, name).unwrap();
            let attr = storage.getattr(&node).unwrap();
            let bytes = match attr.mode & libc::S_IFMT {
                libc::S_IFREG => {
                    let file = storage.open(&node, libc::O_RDONLY).expect("every part of the file is there");
                    read(storage, &file, 0, attr.size as usize)
                }
                libc::S_IFLNK => storage.readlink(&node).unwrap().into_bytes(),
                _ => Vec::new(),
            };
            out.insert(path.join(name), (attr.mode, bytes));
            if attr.mode & libc::S_IFMT == libc::S_IFDIR {
                walk(storage, &node, path.join(name), out);
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(storage, &storage.root(), PathBuf::new(), &mut out);
    out
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, usize),
    Truncate(u64),
    Allocate(u64, u64, bool),
    Read(u64, usize),
    Rename,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u64..3000, 1usize..900).prop_map(|(at, len)| Op::Write(at, len)),
        2 => (0u64..4000).prop_map(Op::Truncate),
        1 => (0u64..4000, 1u64..900, any::<bool>()).prop_map(|(at, len, keep)| Op::Allocate(at, len, keep)),
        3 => (0u64..4000, 0usize..2000).prop_map(|(at, len)| Op::Read(at, len)),
        1 => Just(Op::Rename),
        1 => Just(Op::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn like_a_file_in_memory(
        (targets, number, old) in (1usize..5, any::<u64>(), any::<bool>()),
        stripe in 1u64..300,
        ops in proptest::collection::vec(op(), 1..40)
    ) {
        let volume = Volume { number, ..Volume::new(targets) };
        let mut storage = volume.open_as(stripe, old.then_some(FirstTarget::Zero)).unwrap();
        let mut names = ["a", "b"];
        let (_, mut file) = create(&storage, &storage.root(), "a").unwrap();
        let mut model: Vec<u8> = Vec::new();
        for (i, op) in ops.into_iter().enumerate() {
            match op {
                Op::Write(at, len) => {
                    let bytes = vec![i as u8 + 1; len];
                    write(&storage, &file, at, &bytes);
                    let at = at as usize;
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                }
                Op::Truncate(size) => {
                    let node = storage.lookup(&storage.root(), names[0].as_ref()).unwrap();
                    let file = (i % 2 == 0).then_some(&file);
                    let attr = storage.setattr(&node, file, SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
                    prop_assert_eq!(attr.size, size);
                    model.resize(size as usize, 0);
                }
                Op::Allocate(at, len, keep) => {
                    let mode = if keep { libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE } else { 0 };
                    storage.fallocate(&file, mode, at, len, &ME()).unwrap();
                    let end = (at + len) as usize;
                    if keep {
                        let size = model.len();
                        model[(at as usize).min(size)..end.min(size)].fill(0);
                    } else {
                        model.resize(model.len().max(end), 0);
                    }
                }
                Op::Read(at, len) => {
                    let from = (at as usize).min(model.len());
                    let expected = &model[from..(at as usize + len).min(model.len()).max(from)];
                    prop_assert!(read(&storage, &file, at, len) == expected);
                }
                Op::Rename => {
                    let root = storage.root();
                    storage.rename(&root, names[0].as_ref(), &root, names[1].as_ref(), 0).unwrap();
                    names.swap(0, 1);
                }
                Op::Reopen => {
                    drop((storage, file));
                    storage = volume.open(stripe).unwrap();
                    let node = storage.lookup(&storage.root(), names[0].as_ref()).unwrap();
                    file = storage.open(&node, libc::O_RDWR).unwrap();
                }
            }
            prop_assert_eq!(storage.getattr_open(&file).unwrap().size, model.len() as u64);
        }
        prop_assert!(read(&storage, &file, 0, model.len()) == model);
        drop((storage, file));
        let report = check(&volume.dirs, Repair::No).unwrap();
        prop_assert_eq!(report, Report { objects: 1, ..Report::default() });
    }

    #[test]
    fn any_volume_file_is_taken(text in "\\PC*", bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let file = std::path::Path::new("f");
        prop_assert!(volume::Volume::parse(&text, file).is_err());
        prop_assert!(volume::Volume::parse(&String::from_utf8_lossy(&bytes), file).is_err());
        let text = format!("format = 1\nvolume = \"x\"\n{text}");
        let _ = volume::Volume::parse(&text, file);
    }
}

#[test]
fn namespace() {
    let volume = Volume::new(3);
    let storage = volume.open(4096).unwrap();
    let root = storage.root();
    let (a, file) = create(&storage, &root, "a").unwrap();
    write(&storage, &file, 0, &[7; 20_000]);
    assert_eq!(errno(create(&storage, &root, "a")), libc::EEXIST);
    let dir = storage.mkdir(&root, "d".as_ref(), 0o750, &ME()).unwrap();
    assert_eq!(errno(storage.mkdir(&root, "d".as_ref(), 0o750, &ME())), libc::EEXIST);
    assert_eq!(storage.getattr(&dir).unwrap().mode & 0o7777, 0o750);
    storage.link(&a, &dir, "hard".as_ref()).unwrap();
    let hard = storage.lookup(&dir, "hard".as_ref()).unwrap();
    assert_eq!((hard.id(), storage.getattr(&hard).unwrap().nlink), (a.id(), 2));
    storage.unlink(&root, "a".as_ref()).unwrap();
    storage.symlink(&dir, "soft".as_ref(), "hard".as_ref(), &ME()).unwrap();
    storage.mknod(&dir, "fifo".as_ref(), libc::S_IFIFO | 0o600, 0, &ME()).unwrap();
    storage.rename(&dir, "soft".as_ref(), &dir, "hard".as_ref(), libc::RENAME_EXCHANGE).unwrap();
    let soft = storage.lookup(&dir, "soft".as_ref()).unwrap();
    assert_eq!(soft.id(), a.id());
    assert_eq!(errno(storage.rename(&root, "d".as_ref(), &dir, "x".as_ref(), 0)), libc::EINVAL);
    let times = SetAttr { mtime: Some(crate::SetTime::At(5, 6)), ..SetAttr::default() };
    let attr = storage.setattr(&soft, None, times).unwrap();
    assert_eq!((attr.size, attr.mtime), (20_000, (5, 6)));
    storage.rename(&root, "d".as_ref(), &root, "e".as_ref(), libc::RENAME_NOREPLACE).unwrap();
    assert_eq!(errno(storage.rmdir(&root, "e".as_ref())), libc::ENOTEMPTY);
    storage.unlink(&dir, "soft".as_ref()).unwrap();
    let attr = storage.setattr(&a, None, SetAttr { size: Some(9000), ..SetAttr::default() }).unwrap();
    assert_eq!((attr.size, attr.nlink), (9000, 0), "an unlinked file can still be truncated");
    assert_eq!(read(&storage, &file, 0, 20_000), [7; 9000]);
    storage.sync(&file, true).unwrap();
    storage.fsync_dir(&dir).unwrap();
    drop(storage);
    assert_eq!(check(&volume.dirs, Repair::No).unwrap(), Report { objects: 3, ..Report::default() });
}

#[test]
fn holes_are_found_across_targets() {
    let volume = Volume::new(2);
    let storage = volume.open(4096).unwrap();
    let (_, file) = create(&storage, &storage.root(), "f").unwrap();
    write(&storage, &file, 4096 * 5, &[1; 8192]);
    let seek = |at, whence| storage.seek_data(&file, at, whence);
    assert_eq!(seek(0, libc::SEEK_DATA).unwrap(), 4096 * 5);
    assert_eq!(seek(100, libc::SEEK_HOLE).unwrap(), 100);
    assert_eq!(seek(4096 * 5, libc::SEEK_HOLE).unwrap(), 4096 * 7);
    assert_eq!(seek(4096 * 6 + 5, libc::SEEK_DATA).unwrap(), 4096 * 6 + 5);
    assert_eq!(errno(seek(4096 * 7, libc::SEEK_DATA)), libc::ENXIO);
}

#[test]
fn the_volumes_own_names_are_out_of_reach() {
    let volume = Volume::new(2);
    let storage = volume.open(4096).unwrap();
    let root = storage.root();
    let name: &OsStr = ".sluice-volume".as_ref();
    assert!(storage.readdir(&root).unwrap().iter().all(|entry| !entry.name.as_bytes().starts_with(b".sluice")));
    assert_eq!(errno(storage.lookup(&root, name)), libc::ENOENT);
    assert_eq!(errno(storage.unlink(&root, name)), libc::ENOENT);
    assert_eq!(errno(create(&storage, &root, ".sluice-journal")), libc::EACCES);
    create(&storage, &root, "a").unwrap();
    assert_eq!(errno(storage.rename(&root, "a".as_ref(), &root, name, 0)), libc::EACCES);
    assert_eq!(errno(storage.rename(&root, name, &root, "b".as_ref(), 0)), libc::ENOENT);
    let dir = storage.mkdir(&root, "d".as_ref(), 0o700, &ME()).unwrap();
    create(&storage, &dir, ".sluice-volume").expect("below the top the names are free");
}

#[test]
fn wrong_targets_are_refused() {
    let volume = Volume::new(3);
    drop(volume.open(4096).unwrap());
    let other = Volume::new(3);
    drop(other.open(4096).unwrap());
    let open = |dirs: &[&PathBuf], stripe| {
        let dirs: Vec<PathBuf> = dirs.iter().map(|dir| (*dir).clone()).collect();
        StripedStorage::create_or_open(&dirs, StripedOptions { stripe: Some(stripe), ..StripedOptions::default() })
            .err()
            .expect("refused")
    };
    let [a, b, c] = &volume.dirs[..] else { unreachable!() };
    assert!(matches!(open(&[], 4096), StripedError::NoTargets));
    assert!(matches!(open(&[a, b, c], 0), StripedError::Stripe(0)));
    assert!(matches!(open(&[a, b, a], 4096), StripedError::Twice { .. }));
    assert!(matches!(open(&[a, c, b], 4096), StripedError::Order { found: 2, expected: 1, .. }));
    assert!(matches!(open(&[a, b], 4096), StripedError::Count { found: 3, expected: 2, .. }));
    assert!(matches!(open(&[a, b, c], 8192), StripedError::WrongStripe { found: 4096, .. }));
    assert!(matches!(open(&[a, b, &other.dirs[2]], 4096), StripedError::Foreign { .. }));
    let empty = Volume::new(1);
    assert!(matches!(open(&[a, b, &empty.dirs[0]], 4096), StripedError::Missing { .. }));
    let strange = Volume::new(1);
    std::fs::write(strange.dirs[0].join("precious"), "x").unwrap();
    assert!(matches!(open(&[&strange.dirs[0], &empty.dirs[0]], 4096), StripedError::NotEmpty { .. }));
    let _in_use = volume.open(4096).unwrap();
    assert!(matches!(open(&[a, b, c], 4096), StripedError::InUse { .. }));
    let file = other.dirs[1].join(".sluice-volume");
    std::fs::write(&file, "format = 9\nnew = true").unwrap();
    assert!(matches!(other.open(4096).err(), Some(StripedError::Format { found: 9, .. })));
    std::fs::write(&file, "format = 1\nstripe_bytes = ").unwrap();
    assert!(matches!(other.open(4096).err(), Some(StripedError::Damaged { .. })));
}

#[test]
fn a_missing_part_is_an_error_and_the_rest_works() {
    let volume = Volume::new(2);
    let storage = volume.open(4096).unwrap();
    let root = storage.root();
    let dir = storage.mkdir(&root, "d".as_ref(), 0o700, &ME()).unwrap();
    for name in ["lost", "kept", "changed"] {
        create(&storage, &dir, name).unwrap();
    }
    std::fs::remove_file(volume.dirs[1].join("d/lost")).unwrap();
    std::fs::remove_file(volume.dirs[1].join("d/changed")).unwrap();
    std::fs::create_dir(volume.dirs[1].join("d/changed")).unwrap();
    std::fs::write(volume.dirs[1].join("d/orphan"), "x").unwrap();
    let open = |name: &str| storage.open(&storage.lookup(&dir, name.as_ref()).unwrap(), libc::O_RDWR);
    assert_eq!(errno(open("lost")), libc::EIO);
    assert_eq!(errno(open("changed")), libc::EIO);
    open("kept").unwrap();
    // The name of the lost file, moved onto a healthy one, must not take over that one's part.
    storage.rename(&dir, "lost".as_ref(), &dir, "kept".as_ref(), 0).unwrap();
    assert_eq!(errno(open("kept")), libc::EIO);
    drop(storage);
    let report = check(&volume.dirs, Repair::Discard).unwrap();
    let found = |list: &[Finding]| list.iter().map(|f| (f.path.clone(), f.repaired)).collect::<Vec<_>>();
    assert_eq!(found(&report.orphans), [("d/orphan".into(), true)]);
    assert_eq!(found(&report.missing), [("d/kept".into(), false)]);
    assert_eq!(found(&report.mismatched), [("d/changed".into(), false)]);
    assert!(!report.clean());
    let storage = volume.open(4096).unwrap();
    let dir = storage.lookup(&storage.root(), "d".as_ref()).unwrap();
    storage.unlink(&dir, "kept".as_ref()).unwrap();
    storage.unlink(&dir, "changed".as_ref()).unwrap();
    drop(storage);
    assert_eq!(check(&volume.dirs, Repair::No).unwrap(), Report { objects: 1, ..Report::default() });
}

/// One operation on the tree that [`tree`] makes.
type Act = fn(&StripedStorage, &NodeRef, &NodeRef) -> io::Result<()>;

const ACTS: &[(&str, Act)] = &[
    ("create", |s, root, _| create(s, root, "new").map(drop)),
    ("make a node", |s, root, _| s.mknod(root, "new".as_ref(), libc::S_IFREG | 0o600, 0, &ME()).map(drop)),
    ("mkdir", |s, root, _| s.mkdir(root, "new".as_ref(), 0o700, &ME()).map(drop)),
    ("symlink", |s, _, dir| s.symlink(dir, "new".as_ref(), "x".as_ref(), &ME()).map(drop)),
    ("link", |s, root, dir| s.link(&s.lookup(root, "a".as_ref())?, dir, "new".as_ref()).map(drop)),
    ("unlink", |s, root, _| s.unlink(root, "a".as_ref())),
    ("rmdir", |s, root, _| s.rmdir(root, "empty".as_ref())),
    ("rename", |s, root, dir| s.rename(root, "a".as_ref(), dir, "new".as_ref(), libc::RENAME_NOREPLACE)),
    ("replace", |s, root, dir| s.rename(root, "a".as_ref(), dir, "b".as_ref(), 0)),
    ("replace a directory", |s, root, _| s.rename(root, "d".as_ref(), root, "empty".as_ref(), 0)),
    ("rename with whiteout", |s, root, dir| s.rename(root, "a".as_ref(), dir, "new".as_ref(), libc::RENAME_WHITEOUT)),
    ("exchange", |s, root, dir| s.rename(root, "empty".as_ref(), dir, "b".as_ref(), libc::RENAME_EXCHANGE)),
    ("truncate", |s, root, _| {
        let a = s.lookup(root, "a".as_ref())?;
        s.setattr(&a, None, SetAttr { size: Some(333), ..SetAttr::default() }).map(drop)
    }),
    ("open and truncate", |s, _, dir| s.open(&s.lookup(dir, "b".as_ref())?, libc::O_WRONLY | libc::O_TRUNC).map(drop)),
    ("extend", |s, root, _| {
        let a = s.lookup(root, "a".as_ref())?;
        s.setattr(&a, None, SetAttr { size: Some(33_333), ..SetAttr::default() }).map(drop)
    }),
    ("allocate", |s, root, _| {
        let file = s.open(&s.lookup(root, "a".as_ref())?, libc::O_RDWR)?;
        s.fallocate(&file, 0, 100, 20_000, &ME())
    }),
];

fn tree(storage: &StripedStorage) -> (NodeRef, NodeRef) {
    let root = storage.root();
    let dir = storage.mkdir(&root, "d".as_ref(), 0o700, &ME()).unwrap();
    storage.mkdir(&root, "empty".as_ref(), 0o700, &ME()).unwrap();
    for (parent, name, byte, len) in [(&root, "a", 1, 5000), (&dir, "b", 2, 7000)] {
        let (_, file) = create(storage, parent, name).unwrap();
        write(storage, &file, 0, &vec![byte; len]);
    }
    (root, dir)
}

/// Kills every operation after each of its steps (and the recovery after each of its own): after reopening everything is
/// as before or as after, and only orphans, which a check removes, show that something happened.
#[test]
fn a_kill_at_any_moment_leaves_the_old_or_the_new_state() {
    // The first file of each begins on another target.
    for ((what, act), number) in ACTS.iter().flat_map(|act| [0, 1, 3].map(|number| (act, number))) {
        let done = Volume { number, ..Volume::new(3) };
        let storage = done.open(64).unwrap();
        let (root, dir) = tree(&storage);
        let before = contents(&storage);
        act(&storage, &root, &dir).unwrap();
        let after = contents(&storage);
        assert_ne!(before, after);
        let mut kills = 0;
        'kills: loop {
            for recovery in 0.. {
                let volume = Volume { number, ..Volume::new(3) };
                let storage = volume.open(64).unwrap();
                let (root, dir) = tree(&storage);
                fault::kill_after(kills);
                let result = act(&storage, &root, &dir);
                let killed = fault::disarm();
                drop((storage, root, dir));
                if !killed {
                    result.unwrap();
                    break 'kills;
                }
                // The first attempt to recover is killed too.
                fault::kill_after(recovery);
                drop(volume.open(64));
                let again = fault::disarm();
                let storage = volume.open(64).unwrap();
                let now = contents(&storage);
                assert!(now == before || now == after, "{what}, killed after {kills} steps: {now:#?}");
                // The operation, or its like, is possible whatever was left behind.
                let (root, dir) = (storage.root(), storage.lookup(&storage.root(), "d".as_ref()));
                if now == before {
                    act(&storage, &root, &dir.unwrap()).unwrap();
                    assert_eq!(contents(&storage), after, "{what} again, killed after {kills} steps");
                }
                drop((storage, root));
                let report = check(&volume.dirs, Repair::Discard).unwrap();
                assert!(report.missing.is_empty() && report.mismatched.is_empty(), "{what}: {report:?}");
                assert!(check(&volume.dirs, Repair::No).unwrap().orphans.is_empty());
                assert_eq!(contents(&volume.open(64).unwrap()), after);
                if !again {
                    break;
                }
            }
            kills += 1;
        }
        assert!(kills > 1, "{what} has steps");
    }
}

#[test]
fn a_kill_while_the_volume_is_made() {
    for kills in 0..3 {
        let volume = Volume::new(3);
        fault::kill_after(kills);
        assert!(volume.open(64).is_err());
        fault::disarm();
        volume.open(128).unwrap();
    }
}

#[test]
fn orphans_do_not_come_back() {
    let volume = Volume::new(2);
    let storage = volume.open(64).unwrap();
    let (root, _) = tree(&storage);
    fault::kill_after(1);
    assert!(storage.unlink(&root, "a".as_ref()).is_err());
    fault::disarm();
    drop((storage, root));
    let storage = volume.open(64).unwrap();
    let (_, file) = create(&storage, &storage.root(), "a").unwrap();
    assert_eq!(storage.getattr_open(&file).unwrap().size, 0, "nothing of the old file shows");
}

/// Threads that fight for a few names: whatever wins, the pieces of every name stay together.
#[test]
fn threads_do_not_mix_pieces_up() {
    let volume = Volume::new(3);
    let storage = volume.open(64).unwrap();
    let (root, dir) = tree(&storage);
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let (storage, root, dir) = (&storage, &root, &dir);
            scope.spawn(move || {
                let mut state = thread;
                for _ in 0..300 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let pick = |shift: u32| {
                        (
                            if state >> shift & 1 == 0 { root } else { dir },
                            ["a", "b", "c"][(state >> shift) as usize % 3],
                        )
                    };
                    let ((from, a), (to, b)) = (pick(40), pick(50));
                    // Any of these may lose its race.
                    let _ = match state >> 60 {
                        0..4 => {
                            create(storage, from, a).map(|(_, file)| write(storage, &file, 0, &[thread as u8; 200]))
                        }
                        4..6 => storage.unlink(from, a.as_ref()),
                        6..9 => storage.rename(from, a.as_ref(), to, b.as_ref(), 0),
                        9..11 => storage.rename(from, a.as_ref(), to, b.as_ref(), libc::RENAME_EXCHANGE),
                        11..13 => storage
                            .lookup(from, a.as_ref())
                            .and_then(|node| storage.link(&node, to, b.as_ref()).map(drop)),
                        _ => storage
                            .lookup(from, a.as_ref())
                            .and_then(|node| storage.open(&node, libc::O_RDWR | libc::O_TRUNC).map(drop)),
                    };
                }
            });
        }
    });
    // Hard links tell whether pieces were paired wrongly: each must have the same names on every target.
    let links = |target: usize| {
        let mut names: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
        for (path, name) in ["a", "b", "c", "d/a", "d/b", "d/c"].map(|name| (volume.dirs[target].join(name), name)) {
            if let Ok(meta) = std::fs::metadata(path) {
                names.entry(std::os::unix::fs::MetadataExt::ino(&meta)).or_default().push(name.into());
            }
        }
        names.into_values().collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(links(0), links(1));
    assert_eq!(links(0), links(2));
    drop(storage);
    assert!(check(&volume.dirs, Repair::No).unwrap().clean());
}

#[test]
fn a_file_that_nobody_may_write_can_be_made_and_written() {
    let volume = Volume::new(2);
    drop(volume.open(4096).unwrap());
    let make = |storage: &StripedStorage| {
        let (node, file) =
            storage.create(&storage.root(), "f".as_ref(), 0o444, libc::O_RDWR | libc::O_EXCL, &ME()).unwrap();
        write(storage, &file, 0, &[7; 10_000]);
        assert_eq!(read(storage, &file, 0, 20_000), [7; 10_000]);
        assert_eq!(storage.getattr(&node).unwrap().mode & 0o7777, 0o444);
        storage.unlink(&storage.root(), "f".as_ref()).unwrap();
    };
    make(&volume.open(4096).unwrap());
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Again without the right to override permissions, which root has.
    for dir in &volume.dirs {
        std::os::unix::fs::chown(dir, Some(12), Some(34)).unwrap();
        for entry in std::fs::read_dir(dir).unwrap() {
            std::os::unix::fs::chown(entry.unwrap().path(), Some(12), Some(34)).unwrap();
        }
    }
    std::fs::set_permissions(volume._top.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let ordinary = || {
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_gid(rustix::fs::Gid::from_raw(34)).unwrap();
        rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(12)).unwrap();
        let storage = volume.open(4096).unwrap();
        make(&storage);
        let root = storage.root();
        // Nothing is left of what fails.
        let closed = storage.mkdir(&root, "closed".as_ref(), 0o555, &ME()).unwrap();
        assert_eq!(errno(create(&storage, &closed, "x")), libc::EACCES);
        drop(storage);
        assert_eq!(check(&volume.dirs, Repair::No).unwrap(), Report { objects: 1, ..Report::default() });
    };
    // The thread ends with its rights.
    std::thread::scope(|scope| scope.spawn(ordinary).join()).unwrap();
}

#[test]
fn sizes_are_known_without_asking_until_a_truncation() {
    let volume = Volume::new(3);
    let storage = volume.open(4096).unwrap();
    let (node, file) = create(&storage, &storage.root(), "f").unwrap();
    let other = storage.open(&node, libc::O_RDONLY).unwrap();
    write(&storage, &file, 0, &[1; 50_000]);
    assert_eq!(storage.size_at_least(&other, 50_000).unwrap(), 50_000);
    assert_eq!(open(&other).unwrap().floor.bytes(), 50_000);
    // Behind its back: known sizes are not asked for again, others are.
    std::fs::File::options().write(true).open(volume.dirs[0].join("f")).unwrap().set_len(4096 * 30).unwrap();
    assert_eq!(storage.size_at_least(&other, 49_999).unwrap(), 50_000);
    assert_eq!(storage.size_at_least(&other, 50_001).unwrap(), 4096 * 88);
    for (size, through) in [(9_000, Some(&file)), (5_000, None), (70_000, None), (10, Some(&file))] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        storage.setattr(&node, through, set).unwrap();
        assert_eq!(storage.size_at_least(&other, 1 << 30).unwrap(), size);
    }
    storage.open(&node, libc::O_WRONLY | libc::O_TRUNC).unwrap();
    assert_eq!(storage.size_at_least(&other, 1).unwrap(), 0);
}

#[test]
fn a_failed_write_does_not_leave_the_file_longer() {
    let volume = Volume::new(3);
    let storage = volume.open(4096).unwrap();
    let (_, file) = create(&storage, &storage.root(), "f").unwrap();
    let size = || storage.getattr_open(&file).unwrap().size;
    // Size before, start of the failing write, bytes it moved from its start. Of the last one the part that is written is on
    // the target where the file ended, within a block.
    for (before, start, moved) in
        [(0, 0, 0), (100, 100, 0), (100, 100, 50), (6000, 3000, 5000), (100, 90_000, 0), (100, 95_000, 0)]
    {
        storage.setattr(&open(&file).unwrap().node, None, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        write(&storage, &file, 0, &vec![1; before]);
        let (range, sampled) = (start..start + 30_000, storage.size_at_least(&file, start + 30_000).unwrap());
        // All parts but one, as if that one's device were full.
        let layout = storage.layout().of(&*file);
        let full = layout.locate(start + moved).0;
        for piece in layout.split(start, 30_000) {
            if piece.target != full || piece.logical + piece.len <= start + moved {
                let part = vec![3; piece.len as usize];
                storage.write(&file, piece.target as usize, piece.offset, &[IoSlice::new(&part)]).unwrap();
            }
        }
        let expected = if moved > 0 { start + moved } else { before as u64 }.max(before as u64);
        write(&storage, &file, start, &vec![3; moved as usize]);
        assert!(size() > expected, "longer for now");
        for _ in 0..2 {
            storage.trim(&file, sampled, range.clone(), moved).unwrap();
            assert_eq!(size(), expected, "{before} {start} {moved}");
        }
        assert!(storage.size_at_least(&file, 100_000).unwrap() < 100_000);
    }
    // What others wrote beyond stays.
    write(&storage, &file, 500_000, &[4; 10]);
    storage.trim(&file, 0, 0..30_000, 0).unwrap();
    assert_eq!(size(), 500_010);
}

#[test]
fn zeroing_and_whiteouts() {
    let volume = Volume::new(3);
    let storage = volume.open(4096).unwrap();
    let root = storage.root();
    let (node, file) = create(&storage, &root, "f").unwrap();
    write(&storage, &file, 0, &[1; 30_000]);
    let zero = |mode: i32, at, len| storage.fallocate(&file, libc::FALLOC_FL_ZERO_RANGE | mode, at, len, &ME());
    match zero(0, 1_000, 20_000) {
        // As the directory itself.
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        Ok(()) => {
            zero(libc::FALLOC_FL_KEEP_SIZE, 29_000, 90_000).unwrap();
            let mut expected = vec![1; 29_000];
            expected[1_000..21_000].fill(0);
            expected.resize(30_000, 0);
            assert_eq!(read(&storage, &file, 0, 50_000), expected);
            zero(0, 29_000, 11_000).unwrap();
            assert_eq!(storage.getattr(&node).unwrap().size, 40_000);
        }
    }
    let collapse = storage.fallocate(&file, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096, &ME());
    assert_eq!(errno(collapse), libc::EOPNOTSUPP);

    let dir = storage.mkdir(&root, "d".as_ref(), 0o700, &ME()).unwrap();
    let whiteout = storage.rename(&root, "f".as_ref(), &dir, "g".as_ref(), libc::RENAME_WHITEOUT);
    match whiteout.map_err(|error| error.raw_os_error()) {
        Err(code) => assert_eq!(code, Some(libc::EINVAL), "the file system has none"),
        Ok(()) => {
            assert_eq!(storage.lookup(&dir, "g".as_ref()).unwrap().id(), node.id());
            let left = storage.getattr(&storage.lookup(&root, "f".as_ref()).unwrap()).unwrap();
            assert_eq!((left.mode & libc::S_IFMT, left.rdev), (libc::S_IFCHR, 0));
            assert_eq!(errno(storage.rename(&root, "d".as_ref(), &root, "f".as_ref(), 4 | 2)), libc::EINVAL);
        }
    }
    drop(storage);
    assert_eq!(check(&volume.dirs, Repair::No).unwrap().missing, []);
}

#[test]
fn set_id_bits_go_when_a_user_allocates() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let volume = Volume::new(2);
    let storage = volume.open(4096).unwrap();
    let (node, file) = create(&storage, &storage.root(), "f").unwrap();
    for (caller, expected) in [(Creator::new(0, 0), 0o6777), (Creator::new(12, 34), 0o777)] {
        storage.setattr(&node, None, SetAttr { mode: Some(0o6777), ..SetAttr::default() }).unwrap();
        storage.fallocate(&file, 0, 4096, 4096, &caller).unwrap();
        assert_eq!(storage.getattr(&node).unwrap().mode & 0o7777, expected);
    }
}

/// The journal finds a file again that has other names than the one it was known by.
#[test]
fn a_kill_while_a_file_is_truncated_that_lost_its_name() {
    for kills in 0..20 {
        let volume = Volume::new(3);
        let storage = volume.open(64).unwrap();
        if storage.targets[0].handle(&storage.targets[0].root()).unwrap().is_empty() {
            eprintln!("skipped: no file handles here");
            return;
        }
        let root = storage.root();
        let (node, file) = create(&storage, &root, "a").unwrap();
        write(&storage, &file, 0, &[1; 5000]);
        storage.link(&node, &root, "b".as_ref()).unwrap();
        storage.unlink(&root, "a".as_ref()).unwrap();
        fault::kill_after(kills);
        let result = storage.setattr(&node, None, SetAttr { size: Some(333), ..SetAttr::default() });
        let killed = fault::disarm();
        drop((file, node, root, storage));
        let storage = volume.open(64).unwrap();
        let sizes: Vec<u64> = volume.dirs.iter().map(|dir| dir.join("b").metadata().unwrap().len()).collect();
        let whole = |size| (0..3).map(|target| storage.layout().target_size(target, size)).collect::<Vec<_>>();
        assert!(sizes == whole(5000) || sizes == whole(333), "killed after {kills} steps: {sizes:?}");
        if !killed {
            result.unwrap();
            assert!(kills > 3);
            return;
        }
    }
    panic!("never came to its end");
}

#[test]
fn renames_and_truncations_work_below_long_paths() {
    let volume = Volume::new(2);
    let storage = volume.open(4096).unwrap();
    let name = "n".repeat(250);
    let mut at = storage.root();
    for _ in 0..20 {
        at = storage.mkdir(&at, name.as_ref(), 0o700, &ME()).unwrap();
    }
    let (node, file) = create(&storage, &at, "f").unwrap();
    write(&storage, &file, 0, &[1; 20_000]);
    storage.rename(&at, "f".as_ref(), &at, "g".as_ref(), 0).unwrap();
    storage.setattr(&node, None, SetAttr { size: Some(10), ..SetAttr::default() }).unwrap();
    assert_eq!(storage.getattr(&node).unwrap().size, 10);
}

#[test]
fn syncing_needs_no_more_threads_than_allowed() {
    let volume = Volume::new(3);
    let storage = volume.open(4096).unwrap();
    let (_, file) = create(&storage, &storage.root(), "f").unwrap();
    write(&storage, &file, 0, &[1; 20_000]);
    let others = Counted::more(&storage.syncing, SYNCING_MAX - 1);
    storage.sync(&file, false).unwrap();
    drop(others);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| storage.sync(&file, true).unwrap());
        }
    });
    assert_eq!(storage.syncing.load(Ordering::Relaxed), 0);
}
