//! Who uses a block device or what is mounted from it.

use std::fs;
use std::path::{Path, PathBuf};

use sluice_storage::mounts;

/// How many are named.
const SHOWN: usize = 5;

/// An error for a device or mount point in use.
pub(super) fn in_use(path: &Path) -> String {
    let mut users = users(path);
    let more = users.len().saturating_sub(SHOWN);
    users.truncate(SHOWN);
    let by = match (users.join(", "), more) {
        (by, _) if by.is_empty() => String::new(),
        (by, 0) => format!(" by {by}"),
        (by, more) => format!(" by {by} and {more} more"),
    };
    format!(
        "{} is in use{by}; end that, or remove the disk with --force, as if the drive was pulled out",
        path.display()
    )
}

/// Processes that have the device, or something below the mount point, open or as their directory, or mounted in a namespace of
/// their own: `fio (process 12)`.
pub(super) fn users(path: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let name = |process: u32| fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default().trim().to_owned();
    let user = |process: u32| {
        let elsewhere = if uses(process, path) {
            ""
        } else if has_mounted(process, path) {
            ", in a mount namespace of its own"
        } else {
            return None;
        };
        Some(format!("{} (process {process}{elsewhere})", name(process)))
    };
    numbers.into_iter().filter_map(user).collect()
}

/// Whether the device, or something below the mount point, is mounted where a process is and this one is not.
fn has_mounted(process: u32, path: &Path) -> bool {
    mounts::elsewhere(process).iter().any(|mount| mount.source == path || mount.path.starts_with(path))
}

fn uses(process: u32, path: &Path) -> bool {
    let of = |what: &str| PathBuf::from(format!("/proc/{process}/{what}"));
    let open = fs::read_dir(of("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    // This process itself holds what it is just looking at, but may also have been started in it.
    let open = open.filter(|_| process != std::process::id());
    // The links are read and not followed, so nothing that has died is touched.
    [of("cwd"), of("root")].into_iter().chain(open).any(|link| fs::read_link(link).is_ok_and(|to| to.starts_with(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    #[test]
    fn users_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert!(!in_use(&path).contains("process"));
        let mut child = Command::new("cat").current_dir(&path).stdin(Stdio::piped()).spawn().unwrap();
        let said = in_use(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(said.contains(&format!("in use by cat (process {})", child.id())), "{said}");
    }

    #[test]
    fn users_elsewhere_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let mut there = Command::new("unshare");
        there.args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs none \"$0\" && echo && exec cat",
        ]);
        let mut child = there.arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let is_mounted = child.stdout.as_mut().unwrap().read_exact(&mut [0]).is_ok();
        let said = in_use(&path);
        drop(child.stdin.take());
        child.wait().unwrap();
        let user = format!("(process {}, in a mount namespace of its own)", child.id());
        // Some systems leave namespaces to root.
        assert!(!is_mounted || said.contains(&user), "{said}");
    }
}
