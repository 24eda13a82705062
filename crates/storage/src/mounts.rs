//! The kernel's table of mounts, which can be read whatever has died (proc_pid_mountinfo(5)).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Something that is mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// The number of the mount itself, which it keeps when it is moved or a directory above it is renamed. Another one may have it
    /// once this one is gone.
    pub id: u32,
    /// The number of the mount that it is mounted on.
    pub parent: u32,
    /// Numbers of its device, as `7:0`.
    pub device: String,
    /// Where it is mounted, with no symbolic links.
    pub path: PathBuf,
    /// Options of the mount itself, as `ro,nosuid`.
    pub options: String,
    /// File system type.
    pub kind: String,
    /// What is mounted: a device, an address, a name.
    pub source: PathBuf,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut fields = line.split(|&byte| byte == b' ');
        let text = |field| String::from_utf8_lossy(field).into_owned();
        let path = |field| PathBuf::from(OsStr::from_bytes(&unescape(field)));
        let mut number = || text(fields.next()?).parse().ok();
        Some(Mount {
            id: number()?,
            parent: number()?,
            device: text(fields.next()?),
            path: path(fields.nth(1)?),
            options: text(fields.next()?),
            // Any number of fields comes before the dash.
            kind: text(fields.by_ref().skip_while(|&field| field != b"-").nth(1)?),
            source: path(fields.next()?),
        })
    }
}

/// Everything that is mounted, the latest last. O(mounts).
///
/// # Errors
/// If the table cannot be read: then nobody knows what is mounted.
pub fn table() -> io::Result<Vec<Mount>> {
    read(Path::new("/proc/self/mountinfo"))
}

/// Everything that another process has mounted, if that is in another namespace than what this one has: mounts that it took
/// with it, as into a container, stay in use there after they were unmounted here. None for processes that are gone.
/// O(its mounts).
#[must_use]
pub fn elsewhere(process: u32) -> Vec<Mount> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let process = process.to_string();
    match namespace(&process) {
        Some(other) if Some(&other) != namespace("self").as_ref() => {
            read(&Path::new("/proc").join(process).join("mountinfo")).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

fn read(table: &Path) -> io::Result<Vec<Mount>> {
    Ok(fs::read(table)?.split(|&byte| byte == b'\n').filter_map(Mount::parse).collect())
}

/// The mounts at exactly this path, which has no symbolic links, without touching them. They lie on top of each other: paths
/// lead to the last.
///
/// # Errors
/// As [`table`].
pub fn at(path: &Path) -> io::Result<Vec<Mount>> {
    Ok(table()?.into_iter().filter(|mount| mount.path == path).collect())
}

/// Which of these mounts, which are all, a path with no symbolic links leads to: what is mounted on a directory above hides what
/// is below. None if the top is not among them (`chroot`) and nothing is mounted on the way. O(mounts) for each directory.
#[must_use]
pub fn reached<'a>(table: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    // The top is mounted on itself, or on what this process does not see.
    let is_top = |mount: &Mount| table.iter().all(|other| other.id != mount.parent || mount.parent == mount.id);
    let mut at: Option<&Mount> = None;
    let mut dirs: Vec<_> = path.ancestors().collect();
    dirs.reverse();
    for dir in dirs {
        let is_next = |mount: &&Mount, at: Option<&Mount>| {
            mount.path == dir && at.map_or_else(|| is_top(mount), |at| mount.parent == at.id && mount.id != at.id)
        };
        while let Some(next) = table.iter().find(|mount| is_next(mount, at)) {
            at = Some(next);
        }
    }
    at
}

/// Whether anything is known to be mounted at exactly this path.
#[must_use]
pub fn is_mount_point(path: &Path) -> bool {
    at(path).is_ok_and(|mounts| !mounts.is_empty())
}

/// Where the device with these numbers (`7:0`) is mounted, the latest mount first.
#[must_use]
pub fn of_device(numbers: &str) -> Vec<PathBuf> {
    let mounts = table().unwrap_or_default().into_iter().rev();
    mounts.filter(|mount| mount.device == numbers).map(|mount| mount.path).collect()
}

/// Tables of mounts, the kernel's as `/etc/fstab`, have white space and backslashes as three octal digits.
#[must_use]
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood_whatever_is_in_them() {
        let mount = Mount::parse(b"29 1 7:0 / /mnt/a\\040b\\1 rw,nosuid shared:1 - ext4 /dev/loop0 rw").unwrap();
        assert_eq!((mount.id, mount.parent, mount.device.as_str()), (29, 1, "7:0"));
        assert_eq!(mount.path, Path::new("/mnt/a b\\1"));
        assert_eq!(mount.options, "rw,nosuid");
        assert_eq!((mount.kind.as_str(), mount.source.as_path()), ("ext4", Path::new("/dev/loop0")));
        for line in
            ["", "29 1 7:0 / /mnt", "29 x 7:0 / /mnt rw - ext4 /dev/loop0 rw", "29 1 7:0 / /mnt rw ext4 /dev/loop0 rw"]
        {
            assert_eq!(Mount::parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn a_path_leads_to_what_is_mounted_on_top_and_into_what_is_mounted_above() {
        let table = |lines: &[&str]| -> Vec<Mount> {
            let whole = |line: &&str| Mount::parse(format!("{line} rw - ext4 /dev/loop0 rw").as_bytes()).unwrap();
            lines.iter().map(whole).collect()
        };
        let to = |mounts: &[Mount], path: &str| reached(mounts, Path::new(path)).map(|mount| mount.id);
        // In any order: the newest kernels sort by number, and a mount that was moved has an old one.
        let plain = table(&["40 20 0:4 / /a/b", "20 1 8:1 / /", "50 40 0:5 / /a/b", "60 20 0:6 / /c"]);
        assert_eq!(
            [to(&plain, "/a/b"), to(&plain, "/a/b/x"), to(&plain, "/a"), to(&plain, "/c")].map(Option::unwrap),
            [50, 50, 20, 60]
        );
        // Mounted on /a afterwards: /a/b is not seen any more, and neither is what is mounted there.
        let hidden = table(&["20 20 8:1 / /", "40 20 0:4 / /a/b", "50 20 0:5 / /a"]);
        assert_eq!(to(&hidden, "/a/b"), Some(50));
        // The top is not a mount of its own.
        let inside = table(&["40 20 0:4 / /a"]);
        assert_eq!((to(&inside, "/a/b"), to(&inside, "/b")), (Some(40), None));
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(is_mount_point(Path::new("/")));
        let root = at(Path::new("/")).unwrap().remove(0);
        assert!(of_device(&root.device).contains(&root.path));
        assert!(!is_mount_point(Path::new("/no/such/place")));
    }
}
