//! `-o`: options as `mount` and `/etc/fstab` have them. Each is honoured or refused; none is ignored unless it is for
//! `mount` itself.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{StatVfsMountFlags, statvfs};
use sluice_fuse::Remount;
use sluice_storage::mounts;

use crate::config::{self, Settings};

/// For `mount`, `systemd` and people, not for a file system.
const OF_OTHERS: [&str; 13] = [
    "defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "group", "nogroup", "owner", "noowner",
    "nofail", "_netdev",
];
/// What is the case anyway.
const ALWAYS: [&str; 9] = [
    "async",
    "atime",
    "diratime",
    "norelatime",
    "nostrictatime",
    "nolazytime",
    "default_permissions",
    "nomand",
    "loud",
];
/// Those that this file knows by name, for suggestions.
const KNOWN: [&str; 21] = [
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
    "lazytime",
    "sync",
    "dirsync",
    "allow_other",
    "fsname",
    "remount",
    "config",
    "target",
    "log",
];

/// Those of them that have a value.
const VALUED: [&str; 4] = ["fsname", "config", "target", "log"];

/// All options of several lists, `ro,noexec` and the like.
fn split(lists: &[String]) -> impl Iterator<Item = &str> + Clone {
    lists.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|option| !option.is_empty())
}

/// The configuration files that the options name; they come before everything else.
pub(super) fn config_files(lists: &[String]) -> Vec<PathBuf> {
    split(lists).filter_map(|option| option.strip_prefix("config=")).map(PathBuf::from).collect()
}

/// The options with which a table like `/etc/fstab` mounts something there: `mount -o remount,ro MOUNTPOINT` hands them over beside what
/// is asked for.
pub(super) fn of_table(table: &str, mountpoint: &Path) -> String {
    let of_line = |line: &str| {
        let mut fields = line.split_whitespace();
        let place = fields.nth(1).filter(|_| !line.trim_start().starts_with('#'))?;
        let place = PathBuf::from(OsString::from_vec(mounts::unescape(place.as_bytes())));
        let options = fields.nth(1)?;
        // Components, so that a slash at the end is none.
        place.components().eq(mountpoint.components()).then(|| options.to_owned())
    };
    table.lines().filter_map(of_line).next_back().unwrap_or_default()
}

/// What to change about a living mount, if that is asked for. `known`: options that it was mounted with, which stay.
///
/// # Errors
/// If an option cannot be changed.
pub(super) fn remount(lists: &[String], known: &str) -> anyhow::Result<Option<Remount>> {
    if !split(lists).any(|option| option == "remount") {
        return Ok(None);
    }
    let mut change = Remount::default();
    for option in split(lists) {
        match option {
            "ro" => change.read_only = Some(true),
            "rw" => change.read_only = Some(false),
            "suid" => change.suid = Some(true),
            "nosuid" => change.suid = Some(false),
            "dev" => change.dev = Some(true),
            "nodev" => change.dev = Some(false),
            "exec" => change.no_exec = Some(false),
            "noexec" => change.no_exec = Some(true),
            // As the mount has them already: `mount` repeats what it finds in its table.
            "remount" | "relatime" | "allow_other" | "noatime" => {}
            _ if is_of_others(option) || ALWAYS.contains(&option) => {}
            _ if ["user_id=", "group_id=", "rootmode=", "fd=", "max_read=", "subtype=", "fsname="]
                .iter()
                .any(|start| option.starts_with(start)) => {}
            _ if split(&[known.to_owned()]).any(|one| one == option) => {}
            _ => bail!(fixed(option)),
        }
    }
    Ok(Some(change))
}

fn fixed(option: &str) -> String {
    format!(
        "-o {option}: cannot be changed while it is mounted, only ro, rw, suid, nosuid, dev, nodev, exec and noexec can; \
         unmount, and mount anew"
    )
}

/// Checks what [`remount`] takes for given.
///
/// # Errors
/// If the mount does not have it.
pub(super) fn check_remount(lists: &[String], mountpoint: &Path) -> anyhow::Result<()> {
    let has_noatime = || statvfs(mountpoint).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOATIME));
    if split(lists).any(|option| option == "noatime") && !has_noatime() {
        bail!(fixed("noatime"));
    }
    Ok(())
}

fn is_of_others(option: &str) -> bool {
    OF_OTHERS.contains(&option)
        || ["x-", "X-", "comment=", "uhelper=", "helper="].iter().any(|start| option.starts_with(start))
}

/// Takes the options over.
///
/// # Errors
/// If one is not known, cannot be honoured, or has a value that cannot be used.
pub(super) fn apply(lists: &[String], settings: &mut Settings) -> anyhow::Result<()> {
    let (mut targets, mut no_dir_atime) = (Vec::new(), None);
    for option in split(lists) {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let mount = &mut settings.mount;
        match (name, value) {
            ("ro", None) => mount.read_only = true,
            ("rw", None) => mount.read_only = false,
            ("suid", None) => mount.suid = true,
            ("nosuid", None) => mount.suid = false,
            ("dev", None) => mount.dev = true,
            ("nodev", None) => mount.dev = false,
            ("exec", None) => mount.no_exec = false,
            ("noexec", None) => mount.no_exec = true,
            ("noatime", None) => mount.no_atime = true,
            ("relatime", None) => mount.no_atime = false,
            ("nodiratime", None) => no_dir_atime = Some(option),
            ("allow_other", None) => mount.allow_other = true,
            ("fsname", Some(value)) => value.clone_into(&mut mount.name),
            ("subtype", Some(_)) | ("config", Some(_)) => {}
            ("target", Some(value)) => targets.push(PathBuf::from(value)),
            ("log", Some(value)) => settings.log = Some(value.into()),
            ("strictatime" | "lazytime", None) => bail!(
                "-o {option}: cannot be had: reads that the kernel's cache answers change no time of access. Without \
                 it times are kept as the directory's own file system has it; noatime changes none"
            ),
            ("sync" | "dirsync", None) => bail!(
                "-o {option}: not supported; mount the file system below with {option}: then everything written \
                 through this mount is synchronous, too"
            ),
            ("remount", None) => bail!("-o remount: there is nothing to mount then; give the mountpoint alone"),
            _ if is_of_others(option) || ALWAYS.contains(&option) => {}
            (_, Some(value)) => {
                let section = config::section_of(name).with_context(|| unknown(name))?;
                settings.set(section, name, &[value.to_owned()], &format!("-o {name}"))?;
            }
            (_, None) if VALUED.contains(&name) || config::section_of(name).is_some() => {
                bail!("-o {name}: needs a value: {name}=VALUE")
            }
            (_, None) => bail!(unknown(name)),
        }
    }
    if !targets.is_empty() {
        settings.targets = targets;
        settings.source = None;
    }
    if let Some(option) = no_dir_atime.filter(|_| !settings.mount.no_atime) {
        bail!("-o {option}: directories alone cannot be excepted; noatime changes no time of access at all");
    }
    Ok(())
}

/// To be asked when it is known what is mounted: access times are those of the directories below.
///
/// # Errors
/// If `relatime` was asked for and a directory's file system keeps none.
pub(super) fn check_times(lists: &[String], settings: &Settings) -> anyhow::Result<()> {
    if !split(lists).any(|option| option == "relatime") || settings.mount.no_atime {
        return Ok(());
    }
    for dir in settings.source.iter().chain(&settings.targets) {
        if statvfs(dir).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOATIME)) {
            bail!(
                "-o relatime: cannot be had: the file system of {} is mounted with noatime, so there are no times of \
                 access; leave it out, or use noatime",
                dir.display()
            );
        }
    }
    Ok(())
}

fn unknown(name: &str) -> String {
    let names = KNOWN.into_iter().chain(config::key_names());
    format!("-o {name}: unknown option{}", sluice_notation::hint(name, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(list: &str) -> anyhow::Result<Settings> {
        let mut settings = Settings::default();
        apply(&[list.to_owned()], &mut settings)?;
        Ok(settings)
    }

    #[test]
    fn options_are_honoured_or_refused() {
        let settings =
            applied("rw,noexec,noatime,nodiratime,suid,fsname=x,cache=none,policy=sjf,x-systemd.y=1").unwrap();
        assert!(settings.mount.no_exec && settings.mount.no_atime && settings.mount.suid && !settings.mount.dev);
        assert_eq!((settings.mount.name.as_str(), settings.policy.as_deref()), ("x", Some("sjf")));
        assert_eq!(settings.mount.cache, sluice_fuse::CacheMode::None);
        assert_eq!(applied("target=/a,target=/b,stripe=4K").unwrap().targets.len(), 2);
        for (list, expected) in [
            ("strictatime", "noatime changes none"),
            ("nodiratime", "noatime changes no time"),
            ("sync", "mount the file system below with sync"),
            ("noexecc", "did you mean \"noexec\"?"),
            ("chache=none", "did you mean \"cache\"?"),
            ("cache=some", "cannot be used"),
            ("nonempty", "unknown option"),
            ("cache", "-o cache: needs a value: cache=VALUE"),
            ("fsname", "needs a value"),
        ] {
            let error = applied(list).unwrap_err().to_string();
            assert!(error.contains(expected), "{list}: {error}");
        }
    }

    #[test]
    fn a_living_mount_can_change_a_few() {
        let lists = |list: &str| vec![list.to_owned()];
        assert_eq!(remount(&lists("ro"), "").unwrap(), None);
        let change = remount(&lists("rw,relatime,user_id=0,remount,ro,noexec"), "").unwrap().unwrap();
        assert_eq!(change, Remount { read_only: Some(true), no_exec: Some(true), ..Remount::default() });
        assert!(remount(&lists("remount,cache=none"), "").unwrap_err().to_string().contains("mount anew"));
        let table =
            "# /src /mnt sluice cache=auto 0 0\n/src /m\\040t sluice policy=hbrr,cache=none,_netdev 0 0\n/a /b ext4\n";
        let known = of_table(table, Path::new("/m t"));
        assert_eq!(
            (known.as_str(), of_table(table, Path::new("/mnt")).as_str()),
            ("policy=hbrr,cache=none,_netdev", "")
        );
        let change = remount(&lists("policy=hbrr,cache=none,_netdev,remount,ro"), &known).unwrap().unwrap();
        assert_eq!(change.read_only, Some(true));
        let error = remount(&lists("remount,policy=sjf,cache=none"), &known).unwrap_err().to_string();
        assert!(error.starts_with("-o policy=sjf:"), "{error}");
    }
}
