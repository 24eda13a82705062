//! Copies of a mount in other mount namespaces: as long as there is one, the process that serves the mount goes on.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use sluice_storage::mounts;

/// The numbers of the device mounted at a canonical path, as all tables of mounts have them, while it is there.
pub(super) fn device(mountpoint: &Path) -> Option<String> {
    // What is mounted last is on top.
    mounts::at(mountpoint).ok()?.pop().map(|mount| mount.device)
}

/// Whether nothing is mounted at a canonical path any more; not if nobody knows.
pub(super) fn is_gone(mountpoint: &Path) -> bool {
    mounts::at(mountpoint).is_ok_and(|mounts| mounts.is_empty())
}

/// A process, with its name, of each other namespace that has the mount, as far as they can be seen.
pub(super) fn holders(device: &str) -> Vec<String> {
    let mut seen: HashSet<PathBuf> = HashSet::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |process: &u32| {
        let namespace = fs::read_link(format!("/proc/{process}/ns/mnt"));
        let is_new = namespace.is_ok_and(|namespace| seen.insert(namespace));
        is_new && mounts::elsewhere(*process).iter().any(|mount| mount.device == device)
    };
    let shown = |process: u32| {
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        format!("{process} ({})", name.trim_end())
    };
    numbers.filter(holds).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_is_told_from_what_is_not() {
        assert!(device(Path::new("/proc")).is_some() && device(Path::new("/no/where")).is_none());
        assert!(!is_gone(Path::new("/proc")) && is_gone(Path::new("/no/where")));
    }
}
