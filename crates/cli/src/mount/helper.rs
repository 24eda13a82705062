//! How `mount -t fuse.sluice SOURCE MOUNTPOINT -o OPTIONS` and `/etc/fstab` get here.
//!
//! `mount` runs `/sbin/mount.fuse.sluice`, if there is one, and else `/sbin/mount.fuse` of libfuse, which runs `sluice SOURCE
//! MOUNTPOINT -o OPTIONS`. Both become `sluice mount --daemon`. A source of several directories, `/disk0:/disk1`, is a
//! striped volume.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, bail};

/// The arguments of `sluice` for a call by `mount`; `None` if this is not one.
///
/// # Errors
/// If the call asks for something that is not supported.
pub(crate) fn arguments(args: &[OsString]) -> anyhow::Result<Option<Vec<OsString>>> {
    let program = args.first().and_then(|arg| Path::new(arg).file_name()).unwrap_or_default();
    let by_name = program.as_bytes().starts_with(b"mount.");
    // Its paths are absolute, or `none`: `mount` is our command.
    let by_libfuse = args.len() == 5 && args[3] == "-o" && !args[1].as_bytes().starts_with(b"-") && args[1] != "mount";
    if !by_name && !by_libfuse {
        return Ok(None);
    }
    translate(&args[1..]).map(Some)
}

fn translate(args: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    const USAGE: &str = "mount.fuse.sluice SOURCE MOUNTPOINT [-o OPTIONS]";
    let [source, mountpoint, rest @ ..] = args else { bail!("{USAGE}") };
    let mut result: Vec<OsString> = vec!["mount".into()];
    let (mut rest, mut remount) = (rest.iter(), false);
    while let Some(arg) = rest.next() {
        match arg.to_str() {
            Some("-o") => {
                let options = rest.next().context(USAGE)?;
                remount |= options.as_bytes().split(|&byte| byte == b',').any(|option| option == b"remount");
                result.extend(["-o".into(), options.clone()]);
            }
            // The type, which is known.
            Some("-t") => drop(rest.next().context(USAGE)?),
            // Not to be noted in /etc/mtab, and be talkative: both mean nothing here.
            Some("-n" | "-v") => {}
            _ => bail!("{}: not supported; {USAGE}", arg.display()),
        }
    }
    if remount {
        result.push(mountpoint.clone());
        return Ok(result);
    }
    result.push("--daemon".into());
    let several = source.as_bytes().contains(&b':') && !Path::new(source).exists();
    if several {
        for dir in source.as_bytes().split(|&byte| byte == b':') {
            result.extend(["--target".into(), OsStr::from_bytes(dir).to_owned()]);
        }
    } else if source != "none" {
        result.push(source.clone());
    }
    result.push(mountpoint.clone());
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(line: &str) -> Option<String> {
        let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let args = arguments(&args).unwrap()?;
        Some(args.iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn calls_by_mount_are_recognised() {
        let direct = called("/sbin/mount.fuse.sluice /src /mnt -n -o rw,noexec -t fuse.sluice");
        assert_eq!(direct.as_deref(), Some("mount -o rw,noexec --daemon /src /mnt"));
        assert_eq!(
            called("sluice /src /mnt -o rw,dev,suid").as_deref(),
            Some("mount -o rw,dev,suid --daemon /src /mnt")
        );
        let striped = called("mount.fuse.sluice /no/such/a:/no/such/b /mnt");
        assert_eq!(striped.as_deref(), Some("mount --daemon --target /no/such/a --target /no/such/b /mnt"));
        let again = called("mount.fuse.sluice /src /mnt -o remount,ro");
        assert_eq!(again.as_deref(), Some("mount -o remount,ro /mnt"));
        let by_options = called("mount.fuse.sluice none /mnt -o config=/etc/sluice.toml");
        assert_eq!(by_options.as_deref(), Some("mount -o config=/etc/sluice.toml --daemon /mnt"));
        assert_eq!(called("sluice mount /src /mnt"), None);
        assert_eq!(called("sluice mount /mnt -o config=/etc/sluice.toml"), None, "what has the source is in there");
        assert_eq!(called("sluice status /mnt"), None);
        assert!(arguments(&["mount.fuse.sluice".into(), "/a".into(), "/b".into(), "-f".into()]).is_err());
    }
}
