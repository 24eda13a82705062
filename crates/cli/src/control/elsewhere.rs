//! Copies of a mount in other mount namespaces: as long as there is one, the process that serves the mount goes on.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The mount at a canonical path, as all tables of mounts name it, while it is there.
pub(super) fn device(mountpoint: &Path) -> Option<Vec<u8>> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    // What is mounted last is on top.
    lines(&table).filter(|line| line.at == escaped(mountpoint)).last().map(|line| line.device.to_vec())
}

/// Whether nothing is mounted at a canonical path any more; not if nobody knows.
pub(super) fn is_gone(mountpoint: &Path) -> bool {
    fs::read("/proc/self/mountinfo").is_ok_and(|table| !lines(&table).any(|line| line.at == escaped(mountpoint)))
}

/// A process, with its name, of each other namespace that has the mount, as far as they can be seen.
pub(super) fn holders(device: &[u8]) -> Vec<String> {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let mut seen: HashSet<PathBuf> = own.into_iter().collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let holds = |process: &PathBuf| {
        let namespace = fs::read_link(process.join("ns/mnt")).ok();
        let is_new = namespace.is_some_and(|namespace| seen.insert(namespace));
        is_new && fs::read(process.join("mountinfo")).is_ok_and(|table| lines(&table).any(|line| line.device == device))
    };
    let shown = |process: PathBuf| {
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        Some(format!("{} ({})", process.file_name()?.to_str()?, name.trim_end()))
    };
    processes.filter(holds).filter_map(shown).collect()
}

struct Line<'a> {
    device: &'a [u8],
    at: &'a [u8],
}

/// Of a table of mounts: see proc_pid_mountinfo(5).
fn lines(table: &[u8]) -> impl Iterator<Item = Line<'_>> {
    table.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ').skip(2);
        Some(Line { device: fields.next()?, at: fields.nth(1)? })
    })
}

/// As tables of mounts write a path.
fn escaped(path: &Path) -> Vec<u8> {
    let escape = |&byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        other => vec![other],
    };
    path.as_os_str().as_bytes().iter().flat_map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_mounts_are_read() {
        let table =
            b"40 29 0:52 / /mnt/a\\040b rw - fuse.sluice sluice rw\nnonsense\n41 29 0:53 / /mnt rw - tmpfs x rw\n";
        let read: Vec<_> = lines(table).map(|line| (line.device, line.at)).collect();
        assert_eq!(read, [(&b"0:52"[..], &b"/mnt/a\\040b"[..]), (b"0:53", b"/mnt")]);
        assert_eq!(escaped(Path::new("/mnt/a b")), b"/mnt/a\\040b");
        assert!(device(Path::new("/proc")).is_some() && device(Path::new("/no/where")).is_none());
        assert!(!is_gone(Path::new("/proc")) && is_gone(Path::new("/no/where")));
    }
}
