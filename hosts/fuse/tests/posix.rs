//! What programs expect of a file system, through real mounts in each cache mode.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};

use common::as_nobody;
use rustix::fs::{FallocateFlags, FlockOperation, RenameFlags, XattrFlags};
use sluice_fuse::CacheMode;

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

each_mode! {
    fn write_read_and_truncate(m) {
        let data = pattern(1, 3_000_001);
        fs::write(m.path("a"), &data).unwrap();
        assert_eq!(fs::read(m.path("a")).unwrap(), data);
        let file = OpenOptions::new().read(true).write(true).open(m.path("a")).unwrap();
        file.write_all_at(b"middle", 1_000_000).unwrap();
        let mut six = [0; 6];
        file.read_exact_at(&mut six, 1_000_000).unwrap();
        assert_eq!(&six, b"middle");
        assert_eq!(file.read_at(&mut six, 3_000_001).unwrap(), 0, "end of file");
        file.set_len(10).unwrap();
        assert_eq!(fs::read(m.path("a")).unwrap(), data[..10]);
        file.set_len(20).unwrap();
        assert_eq!(fs::read(m.path("a")).unwrap()[10..], [0; 10]);
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        assert_eq!(fs::metadata(m.source("a")).unwrap().len(), 20);
        fs::write(m.path("a"), b"short").unwrap();
        assert_eq!(fs::read(m.path("a")).unwrap(), b"short", "O_TRUNC");
        OpenOptions::new().write(true).open(m.path("a")).unwrap().set_len(2).unwrap();
        assert_eq!(fs::read(m.path("a")).unwrap(), b"sh");
    }

    fn what_is_written_is_in_the_source_after_unmounting_or_fsync(m) {
        let mut file = File::create(m.path("a")).unwrap();
        file.write_all(&pattern(2, 100_000)).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(m.source("a")).unwrap(), pattern(2, 100_000));
    }

    fn append_goes_to_the_end(m) {
        let open = || OpenOptions::new().append(true).create(true).open(m.path("log")).unwrap();
        let (mut a, mut b) = (open(), open());
        for i in 0..200 {
            writeln!(a, "a{i}").unwrap();
            writeln!(b, "b{i}").unwrap();
        }
        let text = fs::read_to_string(m.path("log")).unwrap();
        let expected: String = (0..200).map(|i| format!("a{i}\nb{i}\n")).collect();
        assert_eq!(text, expected);
    }

    fn names(m) {
        fs::write(m.path("a"), b"a").unwrap();
        fs::write(m.path("b"), b"b").unwrap();
        let mut old = File::open(m.path("b")).unwrap();
        fs::rename(m.path("a"), m.path("b")).unwrap();
        assert_eq!(fs::read(m.path("b")).unwrap(), b"a");
        let mut text = String::new();
        old.read_to_string(&mut text).unwrap();
        assert_eq!(text, "b", "the replaced file lives on while it is open");
        assert_eq!(errno(fs::metadata(m.path("a"))), libc::ENOENT);

        fs::create_dir(m.path("d")).unwrap();
        fs::write(m.path("d/x"), b"x").unwrap();
        assert_eq!(errno(fs::remove_dir(m.path("d"))), libc::ENOTEMPTY);
        assert_eq!(errno(fs::create_dir(m.path("d"))), libc::EEXIST);
        fs::rename(m.path("d/x"), m.path("y")).unwrap();
        fs::remove_dir(m.path("d")).unwrap();
        let dir = File::open(m.path("")).unwrap();
        let rename = |flags| rustix::fs::renameat_with(&dir, "y", &dir, "b", flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!((fs::read(m.path("b")).unwrap(), fs::read(m.path("y")).unwrap()), (b"x".into(), b"a".into()));
        assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(m.path("b"))), libc::EEXIST);
        assert_eq!(errno(fs::File::create(m.path(&"n".repeat(256)))), libc::ENAMETOOLONG);
        dir.sync_all().unwrap();
    }

    fn unlinked_open_files_live_on(m) {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(m.path("a")).unwrap();
        fs::remove_file(m.path("a")).unwrap();
        file.write_all_at(&pattern(3, 50_000), 10).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 50_010);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.set_len(20_000).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        file.sync_all().unwrap();
        let mut back = vec![0; 20_000];
        file.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(back[10..], pattern(3, 50_000)[..19_990]);
        assert!(fs::read_dir(m.path("")).unwrap().next().is_none());
    }

    fn links(m) {
        fs::write(m.path("a"), b"one").unwrap();
        fs::hard_link(m.path("a"), m.path("b")).unwrap();
        let (a, b) = (fs::metadata(m.path("a")).unwrap(), fs::metadata(m.path("b")).unwrap());
        assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
        fs::write(m.path("b"), b"two!").unwrap();
        assert_eq!(fs::read(m.path("a")).unwrap(), b"two!", "one page cache for both names");
        fs::remove_file(m.path("a")).unwrap();
        assert_eq!(fs::metadata(m.path("b")).unwrap().nlink(), 1);
        symlink("b", m.path("s")).unwrap();
        assert_eq!(fs::read_link(m.path("s")).unwrap().to_str(), Some("b"));
        assert_eq!(fs::read(m.path("s")).unwrap(), b"two!");
        symlink("/nowhere/at all", m.path("t")).unwrap();
        assert_eq!(errno(fs::read(m.path("t"))), libc::ENOENT);
        assert!(fs::symlink_metadata(m.path("t")).unwrap().file_type().is_symlink());
        rustix::fs::mknodat(rustix::fs::CWD, m.path("f"), rustix::fs::FileType::Fifo, 0o640.into(), 0).unwrap();
        assert_eq!(fs::metadata(m.path("f")).unwrap().mode(), libc::S_IFIFO | 0o640);
    }

    fn times_at_the_ends_of_time(m) {
        fs::write(m.path("a"), b"").unwrap();
        for seconds in [i64::MIN, i64::MIN + 1, -1, i64::MAX] {
            let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 5 };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(rustix::fs::CWD, m.path("a"), &times, rustix::fs::AtFlags::empty()).unwrap();
            // The directory's file system may not reach so far; with a write-back cache the kernel believes itself.
            let (here, there) = (fs::metadata(m.path("a")).unwrap(), fs::metadata(m.source("a")).unwrap());
            if m.mode != CacheMode::Writeback {
                assert_eq!((here.mtime(), here.mtime_nsec()), (there.mtime(), there.mtime_nsec()), "{seconds}");
            }
        }
    }

    fn attributes_and_times(m) {
        fs::write(m.path("a"), b"x").unwrap();
        let times = |s, ns| rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: s, tv_nsec: ns },
            last_modification: rustix::fs::Timespec { tv_sec: s + 1, tv_nsec: ns },
        };
        for (s, ns) in [(1_000_000_000, 123_456_789), (-5, 250_000_000), (-1_000, 0)] {
            rustix::fs::utimensat(rustix::fs::CWD, m.path("a"), &times(s, ns), rustix::fs::AtFlags::empty()).unwrap();
            let meta = fs::metadata(m.path("a")).unwrap();
            assert_eq!((meta.atime(), meta.atime_nsec(), meta.mtime(), meta.mtime_nsec()), (s, ns, s + 1, ns));
            let there = fs::metadata(m.source("a")).unwrap();
            assert_eq!((there.mtime(), there.mtime_nsec()), (s + 1, ns));
        }
        let before = fs::metadata(m.path("a")).unwrap().modified().unwrap();
        fs::write(m.path("a"), b"y").unwrap();
        assert!(fs::metadata(m.path("a")).unwrap().modified().unwrap() > before);
        fs::set_permissions(m.path("a"), fs::Permissions::from_mode(0o4711)).unwrap();
        assert_eq!(fs::metadata(m.path("a")).unwrap().mode() & 0o7777, 0o4711);
        let stat = rustix::fs::statvfs(m.path("")).unwrap();
        let there = rustix::fs::statvfs(m.source("")).unwrap();
        assert_eq!((stat.f_blocks, stat.f_frsize, stat.f_namemax), (there.f_blocks, there.f_frsize, there.f_namemax));
    }

    fn extended_attributes(m) {
        fs::write(m.path("a"), b"x").unwrap();
        let path = m.path("a");
        match rustix::fs::setxattr(&path, "user.color", b"blue", XattrFlags::CREATE) {
            Err(rustix::io::Errno::OPNOTSUPP) => return eprintln!("SKIP: no user xattrs in the temporary directory"),
            result => result.unwrap(),
        }
        assert_eq!(rustix::fs::setxattr(&path, "user.color", b"", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
        let mut value = [0; 64];
        assert_eq!(rustix::fs::getxattr(&path, "user.color", &mut value).unwrap(), 4);
        assert_eq!(rustix::fs::getxattr(&path, "user.color", &mut value[..2]), Err(rustix::io::Errno::RANGE));
        assert_eq!(rustix::fs::getxattr(&path, "user.none", &mut value), Err(rustix::io::Errno::NODATA));
        let listed = rustix::fs::listxattr(&path, &mut value).unwrap();
        assert!(value[..listed].split(|&b| b == 0).any(|name| name == b"user.color"));
        rustix::fs::removexattr(&path, "user.color").unwrap();
        assert_eq!(rustix::fs::getxattr(&path, "user.color", &mut value), Err(rustix::io::Errno::NODATA));
    }

    fn ten_thousand_entries(m) {
        fs::create_dir(m.source("many")).unwrap();
        for i in 0..10_000 {
            File::create(m.source(&format!("many/file-with-a-name-{i:05}"))).unwrap();
        }
        let names = || -> Vec<_> { fs::read_dir(m.path("many")).unwrap().map(|e| e.unwrap().file_name()).collect() };
        let mut all = names();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 10_000);
        // Removing while reading: each remaining entry comes exactly once.
        let mut seen = 0;
        for entry in fs::read_dir(m.path("many")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
            seen += 1;
        }
        assert_eq!((seen, names().len()), (10_000, 0));
        fs::remove_dir(m.path("many")).unwrap();
        assert!(m.handle().known_objects() < 100, "forgotten objects are freed: {}", m.handle().known_objects());
    }

    fn directory_positions_stay(m) {
        for i in 0..1000 {
            File::create(m.source(&format!("{i}"))).unwrap();
        }
        let mut dir = rustix::fs::Dir::read_from(File::open(m.path("")).unwrap()).unwrap();
        let first: Vec<_> = (&mut dir).map(|e| e.unwrap().file_name().to_owned()).collect();
        assert_eq!(first.len(), 1002);
        dir.rewind();
        fs::write(m.path("new"), b"").unwrap();
        assert_eq!(dir.count(), 1003, "rewinding shows new entries");
    }

    fn shared_mapping(m) {
        let data = pattern(4, 40_000);
        fs::write(m.path("a"), &data).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(m.path("a")).unwrap();
        // SAFETY: a fresh mapping at an address of the kernel's choice, taken away below.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), 40_000, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED,
                file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        // SAFETY: 40,000 bytes are mapped there, and only this reference uses them.
        let mapped = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), 40_000) };
        assert_eq!(mapped, data);
        mapped[12_345] = b'!';
        mapped[39_999] = b'?';
        // SAFETY: the mapping made above.
        unsafe {
            assert_eq!(libc::msync(at, 40_000, libc::MS_SYNC), 0);
            assert_eq!(libc::munmap(at, 40_000), 0);
        }
        let there = fs::read(m.source("a")).unwrap();
        assert_eq!((there[12_345], there[39_999], there.len()), (b'!', b'?', 40_000));
        let mut byte = [0];
        file.read_exact_at(&mut byte, 12_345).unwrap();
        assert_eq!(&byte, b"!");
    }

    fn sparse_files_and_allocation(m) {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(m.path("a")).unwrap();
        file.write_all_at(b"end", 1 << 30).unwrap();
        file.sync_all().unwrap();
        assert_eq!(file.metadata().unwrap().len(), (1 << 30) + 3);
        assert!(fs::metadata(m.source("a")).unwrap().blocks() < 1000, "a hole stays a hole");
        let mut zeros = [1; 100];
        file.read_exact_at(&mut zeros, 1 << 29).unwrap();
        assert_eq!(zeros, [0; 100]);
        // SEEK_DATA and SEEK_HOLE: right everywhere, and exact where the kernel has no dirty cache of its own.
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
        match m.mode {
            CacheMode::Writeback => assert_eq!((data, hole), (0, (1 << 30) + 3)),
            _ => assert_eq!((data, hole), (1 << 30, 0)),
        }
        file.seek(SeekFrom::Start(0)).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        assert!(fs::metadata(m.source("a")).unwrap().blocks() >= 2048);
        file.write_all_at(&[7; 20_000], 0).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 8192).unwrap();
        let mut back = vec![0; 20_000];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back[..4096].iter().chain(&back[12_288..]).all(|&b| b == 7));
        assert!(back[4096..12_288].iter().all(|&b| b == 0));
    }

    fn where_a_mapping_was_written_to_there_is_no_hole(m) {
        const LEN: usize = 1 << 20;
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(m.path("a")).unwrap();
        file.set_len(LEN as u64).unwrap();
        // SAFETY: a fresh mapping at an address of the kernel's choice, taken away below.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        // SAFETY: as many bytes are mapped there, and only this reference uses them.
        let mapped = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), LEN) };
        // The mapping keeps the file open for writing.
        drop(file);
        let reader = File::open(m.path("a")).unwrap();
        for (place, byte) in [(LEN / 2, 7), (LEN / 4, 8)] {
            mapped[place] = byte;
            assert_ne!(fs::metadata(m.path("a")).unwrap().blocks(), 0, "not one hole");
            let data = rustix::fs::seek(&reader, rustix::fs::SeekFrom::Data(0)).unwrap();
            assert!(data <= place as u64, "data from {data} on, not {place}");
            let copied = std::process::Command::new("cp")
                .arg("--sparse=always").arg(m.path("a")).arg(m.path("b")).status().unwrap();
            assert!(copied.success());
            assert_eq!(fs::read(m.path("b")).unwrap()[place], byte);
        }
        // SAFETY: the mapping made above.
        assert_eq!(unsafe { libc::munmap(at, LEN) }, 0);
        assert_eq!(fs::read(m.path("a")).unwrap()[LEN / 2], 7);
    }

    fn what_was_just_written_has_blocks(m) {
        let file = File::create(m.path("a")).unwrap();
        file.write_all_at(&pattern(6, 5000), 0).unwrap();
        assert_ne!(fs::metadata(m.path("a")).unwrap().blocks(), 0, "tar would take it for one hole");
    }

    fn copying_with_holes_loses_nothing(m) {
        let file = File::create(m.path("a")).unwrap();
        file.write_all_at(&pattern(5, 5000), 2_000_000).unwrap();
        // cp looks for holes, and copies with copy_file_range where it can.
        for how in ["auto", "always", "never"] {
            let status = std::process::Command::new("cp")
                .arg(format!("--sparse={how}")).arg(m.path("a")).arg(m.path("b")).status().unwrap();
            assert!(status.success());
            assert_eq!(fs::read(m.path("b")).unwrap()[2_000_000..], pattern(5, 5000));
        }
    }

    fn locks(m) {
        let (a, b) = (File::create(m.path("a")).unwrap(), File::open(m.path("a")).unwrap());
        rustix::fs::flock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
        let again = rustix::fs::flock(&b, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(again, Err(rustix::io::Errno::AGAIN));
        rustix::fs::flock(&a, FlockOperation::Unlock).unwrap();
        rustix::fs::flock(&b, FlockOperation::NonBlockingLockExclusive).unwrap();
        // POSIX locks are a process's: another one must meet them.
        rustix::fs::fcntl_lock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
        let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\n\
            try: fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\nexcept OSError: sys.exit(7)\n";
        let other = std::process::Command::new("python3").args(["-c", script]).arg(m.path("a")).status();
        match other {
            Ok(status) => assert_eq!(status.code(), Some(7)),
            Err(_) => eprintln!("SKIP: no python3 for a second process with POSIX locks"),
        }
    }

    fn other_users(m) {
        if !common::is_root() {
            return eprintln!("SKIP: not root, cannot become another user");
        }
        let at = |name: &str| m.path(name).display().to_string();
        fs::set_permissions(m.path(""), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(m.path("mine"), b"secret").unwrap();
        fs::set_permissions(m.path("mine"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(m.path("open"), b"hello").unwrap();
        assert!(!as_nobody(&format!("cat {}", at("mine"))).status.success(), "permission bits");
        assert_eq!(as_nobody(&format!("cat {}", at("open"))).stdout, b"hello");
        assert!(!as_nobody(&format!("rm -f {}", at("open"))).status.success(), "sticky directory");
        assert!(!as_nobody(&format!("chown nobody {}", at("open"))).status.success());

        let script = format!(
            "umask 027; cd {} && touch f && mkdir d && ln -s x l && mkfifo p && (umask 0; touch g)", at(""));
        let output = as_nobody(&script);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for (name, mode) in [("f", 0o640), ("d", 0o750), ("p", 0o640), ("g", 0o666)] {
            let meta = fs::metadata(m.source(name)).unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (65534, 65534, mode), "{name}");
        }
        assert_eq!(fs::symlink_metadata(m.source("l")).unwrap().uid(), 65534);
        // Files that their owner may not write can still be written by the one who makes them.
        assert!(as_nobody(&format!("umask 0777; echo hi > {}", at("readonly"))).status.success());
        assert_eq!(fs::read(m.path("readonly")).unwrap(), b"hi\n");

        // A set-group-ID directory hands its group on.
        fs::create_dir(m.path("team")).unwrap();
        std::os::unix::fs::chown(m.path("team"), None, Some(4321)).unwrap();
        fs::set_permissions(m.path("team"), fs::Permissions::from_mode(0o2777)).unwrap();
        assert!(as_nobody(&format!("cd {} && touch f && mkdir d", at("team"))).status.success());
        assert_eq!(fs::metadata(m.path("team/f")).unwrap().gid(), 4321);
        let below = fs::metadata(m.path("team/d")).unwrap();
        assert_eq!((below.gid(), below.mode() & libc::S_ISGID), (4321, libc::S_ISGID));
    }

    fn set_id_bits_go_when_others_write(m) {
        if !common::is_root() {
            return eprintln!("SKIP: not root, cannot become another user");
        }
        fs::set_permissions(m.path(""), fs::Permissions::from_mode(0o777)).unwrap();
        let path = m.path("tool").display().to_string();
        for how in [format!("echo x >> {path}"), format!("truncate -s 3 {path}"), format!(": > {path}")] {
            fs::write(m.path("tool"), b"#!/bin/sh\n").unwrap();
            fs::set_permissions(m.path("tool"), fs::Permissions::from_mode(0o6777)).unwrap();
            let seen = as_nobody(&format!("stat -c %a {path}; {how}; stat -c %a {path}"));
            assert_eq!(String::from_utf8_lossy(&seen.stdout), "6777\n777\n", "{how}: seen at once");
            File::open(m.path("tool")).unwrap().sync_all().unwrap();
            assert_eq!(fs::metadata(m.source("tool")).unwrap().mode() & 0o7777, 0o777, "{how}");
        }
        fs::set_permissions(m.path("tool"), fs::Permissions::from_mode(0o6777)).unwrap();
        OpenOptions::new().append(true).open(m.path("tool")).unwrap().write_all(b"x").unwrap();
        assert_eq!(fs::metadata(m.path("tool")).unwrap().mode() & 0o7777, 0o6777, "root's writes keep them");
    }

    fn names_of_trusted_attributes_are_not_shown_to_others(m) {
        if !common::is_root() {
            return eprintln!("SKIP: not root, cannot set trusted attributes");
        }
        let path = m.path("a");
        fs::write(&path, b"x").unwrap();
        let list = format!(
            "import os; print([n for n in os.listxattr('{}') if not n.startswith('security')])", path.display());
        let python = format!("python3 -c \"{list}\"");
        for name in ["user.a", "trusted.b", "user.trusted.c"] {
            let none = rustix::fs::XattrFlags::empty();
            if let Err(error) = rustix::fs::setxattr(&path, name, b"1", none) {
                return eprintln!("SKIP: {name}: {error}");
            }
        }
        assert_eq!(String::from_utf8_lossy(&as_nobody(&python).stdout), "['user.a', 'user.trusted.c']\n");
        let root = std::process::Command::new("sh").args(["-c", &python]).output().unwrap();
        let root = String::from_utf8_lossy(&root.stdout).into_owned();
        assert!(root.contains("'trusted.b'") && root.contains("'user.a'"), "{root}");
    }

    fn direct_io(m) {
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(true)
            .custom_flags(libc::O_DIRECT).open(m.path("a"));
        let file = open.unwrap();
        let data = pattern(6, 1 << 21);
        file.write_all_at(&data, 0).unwrap();
        let mut back = vec![0; 1 << 21];
        file.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(back, data);
        // Beside a buffered reader and writer of the same file.
        let buffered = OpenOptions::new().read(true).write(true).open(m.path("a")).unwrap();
        buffered.write_all_at(b"cached", 8192).unwrap();
        file.read_exact_at(&mut back[..4096], 8192).unwrap();
        assert_eq!(&back[..6], b"cached");
        file.write_all_at(&vec![9; 4096], 8192).unwrap();
        buffered.read_exact_at(&mut back[..4096], 8192).unwrap();
        assert_eq!(back[..4096], [9; 4096]);
    }
}

#[test]
fn changes_behind_the_mount_are_seen() {
    for mode in [CacheMode::None, CacheMode::Auto] {
        let Some(m) = common::Mount::new(mode) else { return };
        fs::write(m.path("a"), b"first").unwrap();
        assert_eq!(fs::read(m.path("a")).unwrap(), b"first");
        m.settle(0);
        fs::write(m.source("a"), b"other").unwrap();
        assert_eq!(fs::read(m.path("a")).unwrap(), b"other", "{mode:?}: at once when opened anew");
        let open = File::open(m.path("a")).unwrap();
        fs::write(m.source("a"), b"third").unwrap();
        let until = std::time::Instant::now() + common::LIMIT;
        let mut text = [0; 5];
        while &text != b"third" {
            assert!(std::time::Instant::now() < until, "{mode:?}: seen through an open file after the timeout");
            open.metadata().unwrap();
            open.read_exact_at(&mut text, 0).unwrap();
            std::thread::yield_now();
        }
        fs::rename(m.source("a"), m.source("b")).unwrap();
        while fs::metadata(m.path("a")).is_ok() {
            assert!(std::time::Instant::now() < until, "{mode:?}: the old name goes");
            std::thread::yield_now();
        }
        assert_eq!(fs::read(m.path("b")).unwrap(), b"third");
        drop(open);
        m.finish();
    }
}

#[test]
fn with_noatime_reading_through_what_made_a_file_does_not_change_its_time_of_access() {
    let Some(m) = common::Mount::with(CacheMode::None, |options| options.no_atime = true) else { return };
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(m.path("a")).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    let old = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    rustix::fs::utimensat(rustix::fs::CWD, m.source("a"), &times, rustix::fs::AtFlags::empty()).unwrap();
    assert_eq!(file.read_at(&mut [0; 1], 0).unwrap(), 1);
    assert_eq!(fs::metadata(m.source("a")).unwrap().atime(), 1_000_000_000);
    drop(file);
    m.finish();
}
