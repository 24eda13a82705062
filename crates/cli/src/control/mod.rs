//! The control socket of a mount: `sluice status`, `policy`, `trace` and `unmount` talk through it with the process that serves.
//!
//! One Unix socket for each mount, in a directory that only its owner enters, named after the mountpoint. Both sides send
//! one JSON object a line; every line carries the version of the protocol.
//!
//! ```text
//! > {"version":1,"command":"status"}
//! < {"version":1,"ok":true,"status":{"policy":{"name":"mlf","params":[["quantum","8K"],["wait_time","900us"]]},...}}
//! > {"version":1,"command":"set_policy","name":"mlf","params":[["wait_time","1ms"]]}
//! < {"version":1,"ok":true}
//! > {"version":1,"command":"trace_start","path":"/home/me/run.slt"}
//! < {"version":1,"ok":true}
//! > {"version":1,"command":"unmount","lazy":false}
//! < {"version":1,"ok":false,"error":"/mnt/x: in use; ..."}
//! ```
//!
//! The socket is `/run/sluice/NAME.sock` for root, and `$XDG_RUNTIME_DIR/sluice/NAME.sock` (or, without that variable,
//! `/tmp/sluice-UID/NAME.sock`) for others; `SLUICE_RUNTIME_DIR` overrides the directory. Only the user who mounted, and
//! root, may ask. After a line that is not understood the server says so and hangs up.

mod client;
mod elsewhere;
mod protocol;
mod server;
mod window;

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

pub(crate) use client::{Client, connect, forget};
pub(crate) use protocol::{App, Command, Flow, Latency, Predict, Recorded, Status};
pub(crate) use server::{Served, Server, start_recording};
pub(crate) use window::Window;

/// What whoever asks a selector is told where there is none.
pub(crate) const NOBODY_CHOOSES: &str = "nobody chooses here: this mount was made with --policy, --param or --selector fixed (or a \
     configuration file that says so); unmount it, then mount it without them, or with --selector bandit";

/// Overrides where sockets are.
const DIR_VARIABLE: &str = "SLUICE_RUNTIME_DIR";

/// Where this user's sockets may be, the preferred place first.
fn directories() -> Vec<PathBuf> {
    if let Some(dir) = std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()) {
        return vec![dir.into()];
    }
    let uid = rustix::process::geteuid();
    let mut dirs = Vec::new();
    if uid.is_root() {
        dirs.push("/run/sluice".into());
    }
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        dirs.push(Path::new(&dir).join("sluice"));
    }
    if !uid.is_root() {
        dirs.push(format!("/tmp/sluice-{}", uid.as_raw()).into());
    }
    dirs
}

/// A name for a mountpoint that is short, tells people which it is, and is different for each: its last part and a hash
/// (FNV-1a) of all.
pub(crate) fn key(mountpoint: &Path) -> String {
    let hash = sluice_storage::fnv1a(mountpoint.as_os_str().as_bytes());
    let last = mountpoint.file_name().unwrap_or_default().to_string_lossy();
    let last: String = last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(32).collect();
    format!("{last}-{hash:016x}")
}

/// Makes the directory for sockets, open to nobody else.
fn make_directory() -> anyhow::Result<PathBuf> {
    let mut failures = Vec::new();
    for dir in directories() {
        match private_directory(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) => failures.push(format!("{}: {error}", dir.display())),
        }
    }
    bail!("no place for the control socket ({}); name one in the variable {DIR_VARIABLE}", failures.join("; "))
}

fn private_directory(dir: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Not through a link: somebody else may have put it there.
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("is not a directory of this user"));
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// The path by which a mount is known, found without touching the mount itself: that may be dead.
///
/// # Errors
/// If the directory above it is not there.
pub(crate) fn canonical(mountpoint: &Path) -> anyhow::Result<PathBuf> {
    if let Ok(path) = mountpoint.canonicalize() {
        return Ok(path);
    }
    let named = |what: &str| format!("{}: {what}", mountpoint.display());
    let absolute = std::path::absolute(mountpoint).with_context(|| named("cannot be resolved"))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        bail!(named("is not a mountpoint"));
    };
    Ok(parent.canonicalize().with_context(|| named("cannot be resolved"))?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_short_readable_and_different() {
        let long = format!("/mnt/{}", "ä".repeat(200));
        let keys: Vec<String> =
            ["/mnt/a", "/srv/a", "/mnt/a b", "/", &long].iter().map(|p| key(Path::new(p))).collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(key.len() <= 49 && key.is_ascii() && !key.contains('/'), "{key}");
            assert!(!keys[..at].contains(key), "{key}");
        }
        assert!(keys[0].starts_with("a-"));
        assert_eq!(keys[0], key(Path::new("/mnt/a")), "the same in every program");
    }

    #[test]
    fn a_dead_or_missing_mountpoint_still_has_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        assert_eq!(canonical(&dir.path().join("gone")).unwrap(), real.join("gone"));
        assert!(canonical(&dir.path().join("no/where")).unwrap_err().to_string().contains("no/where"));
    }

    #[test]
    fn a_directory_that_others_enter_is_closed_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        private_directory(&open).unwrap();
        assert_eq!(fs::metadata(&open).unwrap().mode() & 0o777, 0o700);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&open, &link).unwrap();
        assert!(private_directory(&link).is_err());
    }
}
