//! The kernel's mount table, which can be read whatever has died.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where the device with these numbers (`7:0`) is mounted, the latest mount first.
pub(super) fn of_device(numbers: &str) -> Vec<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<PathBuf> =
        lines(&table).filter(|line| line.0 == numbers.as_bytes()).map(|line| line.1).collect();
    found.reverse();
    found
}

/// Whether anything is mounted at exactly this path.
pub(super) fn is_mount_point(path: &Path) -> bool {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    lines(&table).any(|line| line.1 == path)
}

/// Numbers of the device, and mount point, of each line.
fn lines(table: &[u8]) -> impl Iterator<Item = (&[u8], PathBuf)> {
    table.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let (numbers, path) = (fields.nth(2)?, fields.nth(1)?);
        Some((numbers, PathBuf::from(OsStr::from_bytes(&unescape(path)))))
    })
}

/// The kernel writes white space and backslashes as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
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
    fn mount_points_are_found_by_device() {
        let table = b"29 1 7:0 / /mnt/a\\040b rw - ext4 /dev/loop0 rw\n30 1 7:1 / /mnt/c rw - xfs /dev/loop1 rw\n";
        let found: Vec<_> = lines(table).collect();
        assert_eq!(found[0], (&b"7:0"[..], "/mnt/a b".into()));
        assert_eq!(found[1], (&b"7:1"[..], "/mnt/c".into()));
        assert_eq!(found.len(), 2, "an empty line is no mount");
    }

    #[test]
    fn the_root_is_a_mount_point() {
        assert!(is_mount_point(Path::new("/")));
        assert!(!is_mount_point(Path::new("/no/such/place")));
    }
}
