//! What is different about volumes of several targets.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::time::Instant;

use common::Mount;
use rustix::fs::{FallocateFlags, XattrFlags, getxattr, setxattr};
use sluice_fuse::CacheMode;

/// Some capabilities of a program, as `setcap cap_net_raw+ep` sets them.
const CAPABILITIES: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// As direct I/O wants it.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// Something that is done to a file at an offset.
type Change<'a> = &'a dyn Fn(&File, u64);

/// Who changes a program must not get its rights, also where the change is on another target than these.
#[test]
fn capabilities_go_when_a_file_is_written() {
    for mode in [CacheMode::None, CacheMode::Auto, CacheMode::Writeback] {
        let Some(m) = Mount::striped(mode, 3) else { return };
        let path = m.path("program");
        File::create(&path).unwrap();
        let open = |more| OpenOptions::new().write(true).custom_flags(more).open(&path).unwrap();
        let early = open(0);
        let write = |file: &File, at| file.write_all_at(&[2], at + 7).unwrap();
        let write_page = |file: &File, at| file.write_all_at(&Page([2; 4096]).0, at).unwrap();
        let punch = |file: &File, at| {
            rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, 4096).unwrap();
        };
        let cut = |file: &File, at| file.set_len(at + 4095).unwrap();
        for at in [4096, 8192, 0] {
            let changes: [(&str, Option<i32>, Change<'_>); 5] = [
                ("write", Some(0), &write),
                ("write to what was open", None, &write),
                ("direct write", Some(libc::O_DIRECT), &write_page),
                ("hole", Some(0), &punch),
                ("truncation", Some(0), &cut),
            ];
            for (what, flags, change) in changes {
                fs::write(&path, [1; 3 * 4096]).unwrap();
                if let Err(error) = setxattr(&path, "security.capability", &CAPABILITIES, XattrFlags::empty()) {
                    return eprintln!("SKIP: no capabilities of files here ({error}): this test did NOT run");
                }
                let late = flags.map(open);
                let file = late.as_ref().unwrap_or(&early);
                change(file, at);
                file.sync_all().unwrap();
                let left = getxattr(&path, "security.capability", &mut [0; 64]);
                assert_eq!(left, Err(rustix::io::Errno::NODATA), "{mode:?}, {what} at {at}");
            }
        }
        drop(early);
        m.finish();
    }
}

/// A file has its parts together again: after a rename that a target refused at first, or when somebody put one back.
#[test]
fn a_part_that_is_there_again_is_found() {
    let Some(m) = Mount::striped(CacheMode::Auto, 3) else { return };
    // The parts of a file that begins on target 0, but for one.
    let part = |target: u8| {
        let path = m.source(&format!("{target}/a"));
        fs::write(&path, [target; 4096]).unwrap();
        let mode = if target == 0 { 0o644 } else { 0o1600 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    [0, 2].into_iter().for_each(part);
    let read = || fs::read(m.path("a")).map_err(|error| error.raw_os_error());
    assert_eq!(read(), Err(Some(libc::EIO)));
    part(1);
    let whole: Vec<u8> = (0..3).flat_map(|target| [target; 4096]).collect();
    let until = Instant::now() + common::LIMIT;
    while read().as_ref() != Ok(&whole) {
        assert!(Instant::now() < until, "never found");
        std::thread::yield_now();
    }
    m.finish();
}
