//! Objects that are remembered without a descriptor.

use std::process::Command;

use super::creation::Mounted;
use super::*;
use crate::striped::{StripedOptions, StripedStorage};

/// A storage that reopens by handle, if it can here, and one that reopens by name.
fn both() -> Vec<(TempDir, PosixStorage)> {
    [true, false]
        .into_iter()
        .map(|by_handle| {
            let dir = tempfile::tempdir().unwrap();
            let storage = PosixStorage::open_with(dir.path(), PosixOptions::default(), by_handle).unwrap();
            assert!(by_handle || !storage.shared.by_handle());
            (dir, storage)
        })
        .collect()
}

fn close(node: &NodeRef) {
    assert!(node_as::<PosixNode>(node).unwrap().try_close(), "can be reopened");
}

fn is_open(node: &NodeRef) -> bool {
    node_as::<PosixNode>(node).unwrap().is_open()
}

#[test]
fn there_is_one_node_for_each_object_and_it_comes_back() {
    for (_dir, storage) in both() {
        let root = storage.root();
        let sub = storage.mkdir(&root, "sub".as_ref(), 0o700, &ME()).unwrap();
        let deep = storage.mkdir(&sub, "deep".as_ref(), 0o700, &ME()).unwrap();
        let (node, _) = storage.create(&deep, "f".as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
        assert!(Arc::ptr_eq(&storage.lookup(&deep, "f".as_ref()).unwrap(), &node));
        [&sub, &deep, &node].into_iter().for_each(close);
        assert_eq!(storage.getattr(&node).unwrap().ino, node.id());
        [&sub, &deep, &node].into_iter().for_each(close);
        assert!(Arc::ptr_eq(&storage.lookup(&deep, "f".as_ref()).unwrap(), &node), "also while it is closed");
        // Renamed while closed, the directory above too.
        storage.rename(&deep, "f".as_ref(), &sub, "g".as_ref(), 0).unwrap();
        storage.rename(&root, "sub".as_ref(), &root, "bus".as_ref(), 0).unwrap();
        [&sub, &deep, &node].into_iter().for_each(close);
        assert_eq!(storage.getattr(&node).unwrap().ino, node.id());
        assert_eq!(storage.path_of(&node).unwrap(), b"bus/g");
        let (other, _) = storage.create(&root, "x".as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
        storage.rename(&root, "x".as_ref(), &sub, "g".as_ref(), libc::RENAME_EXCHANGE).unwrap();
        [&other, &node].into_iter().for_each(close);
        assert_eq!(storage.path_of(&node).unwrap(), b"x");
        assert_eq!(storage.path_of(&other).unwrap(), b"bus/g");
        assert_eq!(storage.getattr(&other).unwrap().ino, other.id());
        assert_eq!(storage.getattr(&node).unwrap().ino, node.id());
        let count = storage.shared.len();
        drop((node, other, deep));
        assert_eq!(storage.shared.len(), count - 3, "nobody holds them");
    }
}

#[test]
fn what_is_removed_stays_with_who_holds_it() {
    for (_dir, storage) in both() {
        let root = storage.root();
        let make = |name: &str| storage.create(&root, name.as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap().0;
        let dir = storage.mkdir(&root, "d".as_ref(), 0o700, &ME()).unwrap();
        let (gone, replaced, linked) = (make("gone"), make("replaced"), make("linked"));
        storage.link(&linked, &root, "other".as_ref()).unwrap();
        [&dir, &gone, &replaced, &linked].into_iter().for_each(close);
        storage.unlink(&root, "gone".as_ref()).unwrap();
        storage.rmdir(&root, "d".as_ref()).unwrap();
        make("new");
        storage.rename(&root, "new".as_ref(), &root, "replaced".as_ref(), 0).unwrap();
        storage.unlink(&root, "linked".as_ref()).unwrap();
        // Others use many descriptors meanwhile.
        let many: Vec<NodeRef> = (0..100).map(|n| make(&n.to_string())).collect();
        with_room(|| Ok(())).unwrap();
        for (node, links) in [(&gone, 0), (&dir, 0), (&replaced, 0), (&linked, 1)] {
            let attr = storage.getattr(node).unwrap();
            assert_eq!((attr.ino, if node.id() == dir.id() { 0 } else { attr.nlink }), (node.id(), links));
        }
        storage.open(&gone, libc::O_RDWR).unwrap();
        assert!(Arc::ptr_eq(&storage.lookup(&root, "other".as_ref()).unwrap(), &linked));
        drop(many);
    }
}

#[test]
fn removals_at_the_same_time_leave_a_removed_object_with_who_holds_it() {
    for (_dir, storage) in both() {
        let root = storage.root();
        for round in 0..200 {
            let (node, _) = storage.create(&root, "a".as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
            // Two names of one object go, or one name is removed twice.
            if round % 2 == 0 {
                storage.link(&node, &root, "b".as_ref()).unwrap();
            }
            let (storage, root, together) = (&storage, &root, &std::sync::Barrier::new(2));
            let removed = std::thread::scope(|scope| {
                let remove = |name: &'static str| {
                    scope.spawn(move || {
                        together.wait();
                        storage.unlink(root, name.as_ref()).is_ok()
                    })
                };
                let both = [remove("a"), remove(if round % 2 == 0 { "b" } else { "a" })];
                both.into_iter().map(|thread| thread.join().unwrap()).filter(|done| *done).count()
            });
            assert_eq!(removed, if round % 2 == 0 { 2 } else { 1 });
            assert!(!node_as::<PosixNode>(&node).unwrap().try_close(), "there is no other way to it, round {round}");
            assert_eq!(storage.getattr(&node).unwrap().nlink, 0);
        }
    }
}

/// Where it was is looked up while it goes elsewhere.
#[test]
fn an_object_that_is_being_renamed_comes_back() {
    for (_dir, storage) in both() {
        let root = storage.root();
        let dirs = ["d", "e"].map(|name| storage.mkdir(&root, name.as_ref(), 0o700, &ME()).unwrap());
        let (node, _) = storage.create(&dirs[0], "a".as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..1_000 {
                    let (from, to) = (&dirs[round % 2], &dirs[(round + 1) % 2]);
                    storage.rename(from, "a".as_ref(), to, "a".as_ref(), 0).unwrap();
                }
                over.store(true, Ordering::SeqCst);
            });
            while !over.load(Ordering::SeqCst) {
                node_as::<PosixNode>(&node).unwrap().try_close();
                assert_eq!(storage.getattr(&node).unwrap().ino, node.id());
            }
        });
    }
}

#[test]
fn an_object_that_is_being_removed_stays_with_who_holds_it() {
    for (_dir, storage) in both() {
        let root = storage.root();
        for _ in 0..200 {
            let (node, file) = storage.create(&root, "a".as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
            drop(file);
            let over = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    storage.unlink(&root, "a".as_ref()).unwrap();
                    over.store(true, Ordering::SeqCst);
                });
                while !over.load(Ordering::SeqCst) {
                    node_as::<PosixNode>(&node).unwrap().try_close();
                    assert_eq!(storage.getattr(&node).unwrap().ino, node.id());
                }
            });
            assert_eq!(storage.getattr(&node).unwrap().nlink, 0);
        }
    }
}

#[test]
fn what_others_replaced_is_stale_and_never_something_else() {
    for (dir, storage) in both() {
        let root = storage.root();
        for round in 0..50 {
            let name = format!("f{round}");
            let (node, file) = storage.create(&root, name.as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
            drop(file);
            close(&node);
            // Most file systems give the new file the old one's inode number.
            std::fs::remove_file(dir.path().join(&name)).unwrap();
            std::fs::write(dir.path().join(&name), "other").unwrap();
            assert_eq!(errno(storage.getattr(&node)), libc::ESTALE);
            let new = storage.lookup(&root, name.as_ref()).unwrap();
            assert_ne!(new.id(), node.id(), "ids are of live objects");
            assert_eq!(storage.getattr(&new).unwrap().size, 5);
            drop(node);
            assert!(Arc::ptr_eq(&storage.lookup(&root, name.as_ref()).unwrap(), &new));
        }
        assert_eq!(storage.shared.len(), 1, "only the top is left");
    }
}

#[test]
fn a_failed_removal_changes_nothing() {
    for (_dir, storage) in both() {
        let root = storage.root();
        let dir = storage.mkdir(&root, "d".as_ref(), 0o700, &ME()).unwrap();
        storage.mkdir(&dir, "e".as_ref(), 0o700, &ME()).unwrap();
        assert_eq!(errno(storage.rmdir(&root, "d".as_ref())), libc::ENOTEMPTY);
        close(&dir);
        assert!(!is_open(&dir));
        assert_eq!(storage.readdir(&dir).unwrap().len(), 3);
    }
}

#[test]
fn paths_may_be_longer_than_the_system_allows() {
    let (_dir, storage) = storage(false);
    let name = "n".repeat(250);
    let mut at = storage.root();
    for _ in 0..20 {
        at = storage.mkdir(&at, name.as_ref(), 0o700, &ME()).unwrap();
    }
    let (node, file) = storage.create(&at, "f".as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
    storage.rename(&at, "f".as_ref(), &at, "g".as_ref(), 0).unwrap();
    assert_eq!(storage.path_of(&node).unwrap().len(), 20 * 251 + 1);
    assert!(storage.file_path(&file).unwrap().ends_with(b"/g"));
}

/// Runs this test program's `name` alone, in a process with so many descriptors and no right to more.
pub(super) fn limited(descriptors: u32, name: &str, place: &Path) {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -n {descriptors} && exec \"$0\" --exact \"$1\" --nocapture"));
    command.arg(program).arg(format!("posix::tests::{name}")).env("SLUICE_TEST_PLACE", place);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

pub(super) fn place() -> Option<PathBuf> {
    std::env::var_os("SLUICE_TEST_PLACE").map(PathBuf::from)
}

pub(super) fn used() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn many_objects_need_few_descriptors() {
    for (descriptors, files) in [(1024, 1_500), (256, 600)] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("files"), files.to_string()).unwrap();
        limited(descriptors, "descriptors::inner_many_objects", dir.path());
    }
}

/// Remembers every file of a tree, as a kernel does, and then visits them all again.
#[test]
fn inner_many_objects() {
    let Some(place) = place() else { return };
    let files: usize = std::fs::read_to_string(place.join("files")).unwrap().parse().unwrap();
    let dirs = [0, 1, 2].map(|n| place.join(n.to_string()));
    dirs.iter().chain([&place.join("single")]).for_each(|dir| std::fs::create_dir(dir).unwrap());
    let single = || PosixStorage::open_with(&place.join("single"), PosixOptions::default(), true).unwrap();
    let by_name = PosixStorage::open_with(&place.join("single"), PosixOptions::default(), false).unwrap();
    let striped =
        StripedStorage::create_or_open(&dirs, StripedOptions { stripe: Some(4096), ..StripedOptions::default() })
            .unwrap();
    for tree in [&single() as &dyn Namespace, &by_name, &striped] {
        let root = tree.root();
        let mut nodes = Vec::new();
        for n in 0..files / 100 {
            let dir = match tree.mkdir(&root, format!("d{n}").as_ref(), 0o700, &ME()) {
                Ok(dir) => dir,
                Err(_) => tree.lookup(&root, format!("d{n}").as_ref()).unwrap(),
            };
            for n in 0..100 {
                let (node, _) = tree.create(&dir, format!("f{n}").as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
                nodes.push((node, dir.clone(), n));
            }
        }
        for (node, dir, n) in &nodes {
            assert_eq!(tree.getattr(node).unwrap().ino, node.id());
            assert_eq!(tree.lookup(dir, format!("f{n}").as_ref()).unwrap().id(), node.id());
        }
        // Files removed while they are known.
        for (node, dir, n) in nodes.iter().rev().take(50) {
            tree.unlink(dir, format!("f{n}").as_ref()).unwrap();
            assert_eq!(tree.getattr(node).unwrap().nlink, 0);
        }
        let (node, ..) = nodes.last().unwrap();
        tree.open(node, libc::O_RDWR).unwrap();
    }
    assert!(used() < 700, "{} descriptors", used());
}

#[test]
fn without_descriptors_creation_fails_cleanly_and_the_rest_works() {
    let dir = tempfile::tempdir().unwrap();
    limited(256, "descriptors::inner_no_descriptors", dir.path());
}

#[test]
fn inner_no_descriptors() {
    let Some(place) = place() else { return };
    // Without handles open files keep their descriptors.
    let storage = PosixStorage::open_with(&place, PosixOptions::default(), false).unwrap();
    let root = storage.root();
    let known: Vec<NodeRef> =
        (0..50).map(|n| storage.mkdir(&root, format!("d{n}").as_ref(), 0o700, &ME()).unwrap()).collect();
    let mut open = Vec::new();
    let error = loop {
        let name = format!("f{}", open.len());
        match storage.create(&root, name.as_ref(), 0o600, libc::O_RDWR, &ME()) {
            Ok(made) => open.push(made),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    assert!(open.len() > 200, "open files may use what is there but the reserve: {}", open.len());
    // Nothing was left behind, and names can still be looked up.
    let name = format!("f{}", open.len());
    assert_eq!(errno(storage.lookup(&root, name.as_ref())), libc::ENOENT);
    let (first, file) = open.swap_remove(0);
    if storage.shared.by_handle() {
        assert_eq!(storage.lookup(&root, "f0".as_ref()).unwrap().id(), first.id());
    }
    drop(file);
    storage.create(&root, name.as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
    drop(open);
    for node in &known {
        assert_eq!(storage.getattr(node).unwrap().ino, node.id());
    }
}

/// Overlays have none, unless asked for. `None` where there can be none of them; the directories below are to be kept.
fn without_handles() -> Option<(Mounted, TempDir)> {
    let (below, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dirs = ["lower", "upper", "work"].map(|name| below.path().join(name));
    dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let [lower, upper, work] = dirs.map(|dir| dir.display().to_string());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let mount = Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(at.path()).output();
    let mounted = mount.is_ok_and(|output| output.status.success()).then(|| Mounted(at))?;
    handle::of(std::fs::File::open(mounted.0.path()).unwrap()).is_err().then_some((mounted, below))
}

#[test]
fn what_was_made_is_told_of_without_descriptors_and_handles() {
    let Some((mounted, _below)) = without_handles() else {
        eprintln!("skipped: no file system without file handles here");
        return;
    };
    limited(256, "descriptors::inner_no_descriptors_nor_handles", mounted.0.path());
}

#[test]
fn inner_no_descriptors_nor_handles() {
    let Some(place) = place() else { return };
    let storage = PosixStorage::open(&place, PosixOptions::default()).unwrap();
    let root = storage.root();
    let fill = || std::iter::from_fn(|| std::fs::File::open("/dev/null").ok());
    let mut others = Vec::from_iter(fill());
    let made = |name: &str, made: io::Result<NodeRef>| {
        let made = made.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(storage.getattr(&made).unwrap().ino, made.id());
        assert_eq!(storage.lookup(&root, name.as_ref()).unwrap().id(), made.id());
        (name.to_owned(), made)
    };
    let nodes = [
        made("d", storage.mkdir(&root, "d".as_ref(), 0o700, &ME())),
        made("s", storage.symlink(&root, "s".as_ref(), "d".as_ref(), &ME())),
        made("p", storage.mknod(&root, "p".as_ref(), libc::S_IFIFO | 0o600, 0, &ME())),
    ];
    assert_eq!(storage.open(&nodes[2].1, libc::O_RDONLY).err().unwrap().raw_os_error(), Some(libc::ENXIO));
    // The last ones that are free are not for what stays open.
    others.truncate(others.len() - 2);
    assert_eq!(errno(storage.create(&root, "f".as_ref(), 0o600, libc::O_RDWR, &ME())), libc::EMFILE);
    assert_eq!(errno(storage.lookup(&root, "f".as_ref())), libc::ENOENT, "nor is it made");
    others.drain(..2);
    let (node, file) = storage.create(&root, "f".as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
    close(&node);
    others.extend(fill());
    assert_eq!(storage.getattr_open(&file).unwrap().ino, node.id());
    // What has another object's name by now is not looked at.
    std::fs::rename(place.join("s"), place.join("p")).unwrap();
    assert_eq!(errno(storage.getattr(&nodes[2].1)), libc::EMFILE);
    drop(others);
    assert_eq!(errno(storage.getattr(&nodes[2].1)), libc::ESTALE);
    assert_eq!(storage.getattr(&nodes[0].1).unwrap().mode & libc::S_IFMT, libc::S_IFDIR);
    storage.mkdir(&nodes[0].1, "below".as_ref(), 0o700, &ME()).unwrap();
}

#[test]
fn threads_that_fight_for_names_and_descriptors_keep_their_objects() {
    let dir = tempfile::tempdir().unwrap();
    // What is removed and held by somebody gets none of the reserve (an eighth).
    limited(148, "descriptors::inner_fight", dir.path());
}

/// Files never change what is in them; whoever holds one must always find the same there, whatever happened to its names
/// and descriptors.
#[test]
fn inner_fight() {
    let Some(place) = place() else { return };
    for by_handle in [true, false] {
        let place = place.join(by_handle.to_string());
        std::fs::create_dir(&place).unwrap();
        let storage = PosixStorage::open_with(&place, PosixOptions::default(), by_handle).unwrap();
        let root = storage.root();
        let dirs = ["a", "b", "c"].map(|name| storage.mkdir(&root, name.as_ref(), 0o700, &ME()).unwrap());
        let content = |node: &NodeRef| -> io::Result<Vec<u8>> {
            let file = storage.open(node, libc::O_RDONLY)?;
            Ok(read(&storage, &file, 0, 100))
        };
        std::thread::scope(|scope| {
            for thread in 1..=6u64 {
                let (storage, dirs, content) = (&storage, &dirs, &content);
                scope.spawn(move || {
                    let mut held: Vec<(NodeRef, Vec<u8>)> = Vec::new();
                    let mut state = thread;
                    for turn in 0..1_500 {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let pick = |shift: u32| {
                            (&dirs[(state >> shift) as usize % 3], format!("{}", (state >> (shift + 3)) % 12))
                        };
                        let ((from, a), (to, b)) = (pick(20), pick(30));
                        let (a, b): (&OsStr, &OsStr) = (a.as_ref(), b.as_ref());
                        // Any of these may lose its race. Removed files that are held each need a descriptor, so few are held.
                        match state >> 60 {
                            0..5 => {
                                if let Ok((node, file)) =
                                    storage.create(from, a, 0o600, libc::O_EXCL | libc::O_RDWR, &ME())
                                {
                                    let text = format!("{thread}-{turn}").into_bytes();
                                    storage.write(&file, 0, 0, &[IoSlice::new(&text)]).unwrap();
                                    held.push((node, text));
                                }
                            }
                            5..7 => _ = storage.unlink(from, a),
                            7..9 => _ = storage.rename(from, a, to, b, 0),
                            9 => _ = storage.rename(from, a, to, b, libc::RENAME_EXCHANGE),
                            10 => _ = storage.lookup(from, a).and_then(|node| storage.link(&node, to, b)),
                            _ => {
                                if let Ok(node) = storage.lookup(from, a) {
                                    let text = content(&node).expect("held, so it is there");
                                    // Just made: its maker has not written yet.
                                    if !text.is_empty() {
                                        held.push((node, text));
                                    }
                                }
                            }
                        }
                        if held.len() > 6 {
                            held.swap_remove((state >> 40) as usize % held.len());
                        }
                        if let Some((node, text)) = held.get((state >> 33) as usize % held.len().max(1)) {
                            assert_eq!(content(node).unwrap(), *text, "thread {thread}, turn {turn}");
                            assert_eq!(storage.getattr(node).unwrap().ino, node.id());
                        }
                    }
                });
            }
        });
        drop(dirs);
        assert_eq!(storage.shared.len(), 1, "only the top is left");
    }
    assert!(used() < 100);
}

#[test]
fn a_deep_tree_is_forgotten_without_a_deep_stack() {
    const DEPTH: usize = 2000;
    let (dir, storage) = storage(false);
    let mut at = storage.root();
    for _ in 0..DEPTH {
        at = storage.mkdir(&at, "d".as_ref(), 0o700, &ME()).unwrap();
    }
    assert_eq!(storage.shared.len(), DEPTH + 1);
    // Each directory holds the one above it.
    std::thread::Builder::new().stack_size(64 << 10).spawn(move || drop(at)).unwrap().join().unwrap();
    assert_eq!(storage.shared.len(), 1);
    // From the top: what removes directories recursively needs a descriptor for each level.
    let (top, next) = (dir.path().join("d"), dir.path().join("next"));
    while std::fs::rename(top.join("d"), &next).is_ok() {
        std::fs::remove_dir(&top).unwrap();
        std::fs::rename(&next, &top).unwrap();
    }
}

#[test]
fn looking_up_dot_dot_makes_no_circle() {
    let (_dir, storage) = storage(false);
    let root = storage.root();
    let outer = storage.mkdir(&root, "a".as_ref(), 0o700, &ME()).unwrap();
    let inner = storage.mkdir(&outer, "b".as_ref(), 0o700, &ME()).unwrap();
    for (dir, up) in [(&outer, &root), (&inner, &outer)] {
        assert_eq!(storage.lookup(dir, "..".as_ref()).unwrap().id(), up.id());
        assert_eq!(storage.lookup(dir, ".".as_ref()).unwrap().id(), dir.id());
    }
    assert_eq!(storage.path_of(&inner).unwrap(), b"a/b");
    drop((outer, inner));
    assert_eq!(storage.shared.len(), 1, "nothing is held by what it holds");
}

#[test]
fn what_is_no_handle_leads_to_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let storage = PosixStorage::open(dir.path(), PosixOptions::default()).unwrap();
    if !storage.shared.by_handle() {
        eprintln!("skipped: no file handles here");
        return;
    }
    for len in [0, 4, 5, 100, 132, 133, 5_000] {
        assert!(storage.reopen(&vec![0x55; len]).is_err(), "{len} bytes");
    }
}

#[test]
fn a_number_and_a_handle_of_two_objects_lead_to_neither() {
    let dir = tempfile::tempdir().unwrap();
    let storage = PosixStorage::open(dir.path(), PosixOptions::default()).unwrap();
    if !storage.shared.by_handle() {
        eprintln!("skipped: no file handles here");
        return;
    }
    let root = storage.root();
    for name in ["a", "b"] {
        storage.create(&root, name.as_ref(), 0o600, libc::O_RDWR, &ME()).unwrap();
    }
    // As if somebody exchanged the two between two looks at a name.
    let top = storage.root.fd().unwrap();
    let stat = sys::statat(&*top, "a", AtFlags::SYMLINK_NOFOLLOW).unwrap();
    let identity = Identity::at(&*top, "b".as_ref());
    let location = Location::new(&storage.root, "a".as_ref());
    let node: NodeRef = storage.shared.node(None, Some(identity), &stat, Some(location));
    assert_eq!(storage.getattr(&node).unwrap_err().raw_os_error(), Some(libc::ESTALE));
}
