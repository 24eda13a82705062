//! What is made through the storage is what its creator would have made in the directory itself.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// An access control list as the attributes of that name have it.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const NOBODY: u32 = u32::MAX;
const OWNER: u16 = 1;
const USER: u16 = 2;
const GROUP: u16 = 4;
const NAMED_GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// What a user can see of an object but its times.
fn seen(path: &Path) -> (u32, u32, u32, Option<Vec<u8>>, Option<Vec<u8>>) {
    let meta = path.symlink_metadata().unwrap();
    let xattr = |name: &str| {
        let mut value = vec![0; 1000];
        sys::lgetxattr(path, name, &mut value).ok().map(|len| value[..len].to_vec())
    };
    let (access, default) = (xattr("system.posix_acl_access"), xattr("system.posix_acl_default"));
    (meta.mode(), meta.uid(), meta.gid(), access, default)
}

/// The same things made in two directories alike, one through a storage, must look the same.
#[test]
fn access_control_lists_umask_and_set_gid_are_as_in_the_directory_itself() {
    if ME().uid != 0 {
        eprintln!("skipped: needs root");
        return;
    }
    let closed = acl(&[(OWNER, 7, NOBODY), (GROUP, 5, NOBODY), (OTHER, 0, NOBODY)]);
    let named = acl(&[
        (OWNER, 7, NOBODY),
        (USER, 6, 4242),
        (GROUP, 5, NOBODY),
        (NAMED_GROUP, 7, 4343),
        (MASK, 7, NOBODY),
        (OTHER, 4, NOBODY),
    ]);
    let callers = [
        Creator { uid: 0, gid: 0, groups: vec![], umask: 0o22 },
        Creator { uid: 12, gid: 34, groups: vec![], umask: 0o77 },
        Creator { uid: 12, gid: 34, groups: vec![77], umask: 0o27 },
        Creator { uid: 12, gid: 34, groups: vec![], umask: 0 },
    ];
    let top = tempfile::tempdir().unwrap();
    std::fs::set_permissions(top.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut cases = 0;
    for (which, default) in [None, Some(&closed), Some(&named)].into_iter().enumerate() {
        for set_gid in [0, 0o2000] {
            for (who, caller) in callers.iter().enumerate() {
                let dirs = ["plain", "stored"].map(|name| top.path().join(format!("{name}{which}{set_gid}{who}")));
                for dir in &dirs {
                    std::fs::create_dir(dir).unwrap();
                    std::os::unix::fs::chown(dir, Some(12), Some(77)).unwrap();
                    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o777 | set_gid)).unwrap();
                    if let Some(default) = default
                        && let Err(error) = sys::setxattr(dir, "system.posix_acl_default", default, XattrFlags::empty())
                    {
                        eprintln!("skipped: no access control lists here ({error})");
                        return;
                    }
                }
                let fifo = libc::S_IFIFO;
                // By hand.
                acting_as(caller, || {
                    let dir = sys::open(&dirs[0], OFlags::PATH, Mode::empty())?;
                    for mode in [0o666, 0o600, 0o2775, 0o4777] {
                        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                        sys::openat(&dir, format!("f{mode:o}"), flags, Mode::from_raw_mode(mode))?;
                        sys::mknodat(&dir, format!("p{mode:o}"), FileType::Fifo, Mode::from_raw_mode(mode), 0)?;
                        sys::mkdirat(&dir, format!("d{mode:o}"), Mode::from_raw_mode(mode))?;
                    }
                    sys::symlinkat("x", &dir, "s")?;
                    Ok(())
                })
                .unwrap();
                // Through the storage.
                let storage = PosixStorage::open(&dirs[1], PosixOptions::default()).unwrap();
                let root = storage.root();
                for mode in [0o666, 0o600, 0o2775, 0o4777] {
                    let flags = libc::O_EXCL | libc::O_RDWR;
                    storage.create(&root, format!("f{mode:o}").as_ref(), mode, flags, caller).unwrap();
                    storage.mknod(&root, format!("p{mode:o}").as_ref(), fifo | mode, 0, caller).unwrap();
                    storage.mkdir(&root, format!("d{mode:o}").as_ref(), mode, caller).unwrap();
                }
                storage.symlink(&root, "s".as_ref(), "x".as_ref(), caller).unwrap();
                let all = |dir: &Path| -> BTreeMap<_, _> {
                    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
                    entries.map(|entry| (entry.file_name(), seen(&entry.path()))).collect()
                };
                assert_eq!(all(&dirs[0]), all(&dirs[1]), "default list {which}, set-gid {set_gid:o}, {caller:?}");
                cases += all(&dirs[0]).len();
            }
        }
    }
    assert_eq!(cases, 3 * 2 * 4 * 13);
}

/// Somebody who may write to the directory swaps what was just made for root's file: it must stay root's.
#[test]
fn nobody_gets_what_is_not_theirs_by_swapping_names() {
    if ME().uid != 0 {
        eprintln!("skipped: needs root");
        return;
    }
    let (dir, storage) = storage(false);
    let (root, path) = (storage.root(), dir.path());
    let caller = Creator::new(65_534, 65_534);
    let round = AtomicU32::new(0);
    const ROUNDS: u32 = 500;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let dir = sys::open(path, OFlags::PATH, Mode::empty()).unwrap();
            while let now @ ..ROUNDS = round.load(Ordering::Relaxed) {
                let _ = sys::renameat_with(&dir, format!("n{now}"), &dir, format!("s{now}"), RenameFlags::EXCHANGE);
            }
        });
        for now in 0..ROUNDS {
            let secret = path.join(format!("s{now}"));
            std::fs::create_dir(&secret).unwrap();
            std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o700)).unwrap();
            let secret = std::fs::File::open(secret).unwrap();
            round.store(now, Ordering::Relaxed);
            storage.mkdir(&root, format!("n{now}").as_ref(), 0o777, &caller).unwrap();
            let meta = secret.metadata().unwrap();
            round.store(ROUNDS * u32::from(meta.uid() != 0 || meta.mode() & 0o7777 != 0o700), Ordering::Relaxed);
            assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o700), "given away in round {now}");
        }
        round.store(ROUNDS, Ordering::Relaxed);
    });
}

/// xfstests generic/375: a list set by an owner who is not in the file's group costs the set-group-ID bit.
#[test]
fn an_access_control_list_from_outside_the_group_takes_the_set_gid_bit() {
    if ME().uid != 0 {
        eprintln!("skipped: needs root");
        return;
    }
    let (dir, storage) = storage(false);
    let list = acl(&[(OWNER, 7, NOBODY), (USER, 5, 4242), (GROUP, 7, NOBODY), (MASK, 7, NOBODY), (OTHER, 5, NOBODY)]);
    let (node, _) = create(&storage, "f");
    let path = dir.path().join("f");
    for (groups, gid, expected) in [(vec![], 34, 0), (vec![77], 34, 0o2000), (vec![], 77, 0o2000)] {
        let caller = Creator { uid: 12, gid, groups, umask: 0 };
        std::os::unix::fs::chown(&path, Some(12), Some(77)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o2777)).unwrap();
        match storage.setxattr(&node, "system.posix_acl_access".as_ref(), &list, 0, &caller) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                eprintln!("skipped: no access control lists here");
                return;
            }
            result => result.unwrap(),
        }
        assert_eq!(path.metadata().unwrap().mode() & 0o2000, expected, "{caller:?}");
    }
    // The same for space.
    let file = storage.open(&node, libc::O_RDWR).unwrap();
    for (uid, expected) in [(0, 0o6777), (12, 0o777)] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
        storage.fallocate(&file, 0, 0, 4096, &Creator::new(uid, 34)).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, expected);
    }
}

/// Unmounts what was mounted there.
pub(super) struct Mounted(pub(super) TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// A file system half of which is root's alone; `None` where that cannot be had.
fn half_reserved() -> Option<Mounted> {
    let (image, at) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
    image.as_file().set_len(1 << 20).unwrap();
    let done = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let made = done(Command::new("mke2fs").args(["-q", "-t", "ext4", "-m", "50", "-N", "2000"]).arg(image.path()))
        && done(Command::new("mount").args(["-o", "loop"]).args([image.path(), at.path()]));
    made.then(|| Mounted(at))
}

/// Quotas and the space that is root's depend on the same right of the process. (Of the two, the latter is everywhere.)
#[test]
fn creators_have_no_more_space_than_they_may() {
    let Some(place) = half_reserved() else {
        eprintln!("skipped: needs root, mke2fs and loop devices");
        return;
    };
    let storage = PosixStorage::open(place.0.path(), PosixOptions::default()).unwrap();
    let root = storage.root();
    let make = |i: u32, uid| storage.mkdir(&root, i.to_string().as_ref(), 0o700, &Creator::new(uid, uid));
    let full = (0..2_000).map(|i| make(i, 4242)).find_map(Result::err).expect("an end of the space");
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    let fs = storage.statfs().unwrap();
    assert!(fs.bfree > 200 && fs.ffree > 200 && fs.bavail < 10, "{fs:?}");
    make(2_000, 0).unwrap();
}
