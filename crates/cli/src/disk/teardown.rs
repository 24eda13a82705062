//! Taking a disk apart, whatever is left of it.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use sluice_storage::mounts;

use super::loops::Loop;
use super::state::{self, Disk, Locked, Phase};
use super::{devices, queue, tier};
use crate::{output, unmount};

/// How long a `sluice mount` whose starter was killed may need to come up, or a killed one to be gone.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Removes everything of a disk, from the top: file system, loop device, emulation, image, state. What is not there any more
/// is no error, so a removal that was interrupted is finished by the next.
///
/// By `force` nobody's use of it counts: the emulation is broken off first, so that every request fails at once and nothing
/// waits for a slow disk; users see a drive that was pulled out, and the loop device goes with the last of them.
///
/// # Errors
/// If somebody uses it, and what the system says. The rest of the disk is still there, and known, then.
pub(super) fn remove(lock: Locked<'_>, mut disk: Disk, force: bool) -> anyhow::Result<()> {
    if force {
        begin(&lock, &mut disk)?;
        break_off(&disk.emulation())?;
    }
    unbind(&disk, force)?;
    // Until here somebody's use of it leaves the disk as it was.
    begin(&lock, &mut disk)?;
    end_emulation(&disk.emulation())?;
    if let Some(tier) = disk.tier.clone() {
        // Who is killed from then on may leave no SSD, or one that is half zeros: nothing on it is needed any more.
        let emptied = Disk { tier: Some(state::Tier { ready: false, ..tier.clone() }), ..disk.clone() };
        tier::take_off(&disk, &tier, force, || lock.save(&emptied))?;
        disk.tier = None;
        lock.save(&disk)?;
    }
    remove_files(&disk)?;
    if let Some(mount_point) = disk.mount_point.filter(|_| disk.made_mount_point) {
        // What others have put there meanwhile is theirs.
        let _ = fs::remove_dir(mount_point);
    }
    lock.forget()
}

/// Unmounts what is on the device, and frees it.
///
/// # Errors
/// If somebody uses it and not `force`, and what the system says.
pub(super) fn unbind(disk: &Disk, force: bool) -> anyhow::Result<()> {
    for device in Loop::bound_to(&disk.image_name()) {
        if !force {
            // Before anything is unmounted: who is refused leaves the disk as it was.
            device.expect_unused()?;
        }
        unmount_all(&device, force)?;
        let restore = || restore_queue(&device, disk);
        if force {
            restore();
            device.detach_later()?;
        } else {
            device.detach(restore)?;
        }
    }
    Ok(())
}

fn begin(lock: &Locked<'_>, disk: &mut Disk) -> anyhow::Result<()> {
    disk.phase = Phase::Removing;
    lock.save(disk)
}

fn break_off(emulation: &Path) -> anyhow::Result<()> {
    if !mounts::is_mount_point(emulation) {
        return Ok(());
    }
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    unmount_fs(emulation, flags).with_context(|| format!("breaking off {}", emulation.display()))
}

/// Loop devices keep their settings for whoever comes next.
fn restore_queue(device: &Loop, disk: &Disk) {
    let restored = disk.queue_before.as_ref().map_or(Ok(()), |before| queue::restore(&device.sysfs(), before));
    if let Err(error) = restored {
        // The disk goes all the same.
        output::tell(format_args!("{error:#}"));
    }
}

fn unmount_all(device: &Loop, force: bool) -> anyhow::Result<()> {
    let flags = UnmountFlags::NOFOLLOW | if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    for path in device.numbers().map(|numbers| mounts::of_device(&numbers)).unwrap_or_default() {
        match unmount_fs(&path, flags) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => bail!(devices::in_use(&path)),
            result => result.with_context(|| format!("unmounting {}", path.display()))?,
        }
    }
    Ok(())
}

fn unmount_fs(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    match rustix::mount::unmount(path, flags) {
        // Not mounted: somebody else was faster.
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

/// Ends the mount, and removes its mount point. One whose starter was killed may just be coming up, so this goes on until
/// the mount point is gone, without which nothing can come.
///
/// # Errors
/// If it is in use, and what the system says.
pub(super) fn end_emulation(path: &Path) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let ended = if mounts::is_mount_point(path) { unmount::end(path, false).map(drop) } else { Ok(()) };
        let removed = ended.and_then(|()| match fs::remove_dir(path) {
            Err(error) if is_not_there(&error) => Ok(()),
            result => result.with_context(|| format!("removing {}", path.display())),
        });
        match removed {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn is_not_there(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Removes what a disk has made, and nothing else: `--dir` may be anywhere.
fn remove_files(disk: &Disk) -> anyhow::Result<()> {
    let gone = |path: &Path, result: io::Result<()>| match result {
        Err(error) if is_not_there(&error) => Ok(()),
        result => result.with_context(|| format!("removing {}", path.display())),
    };
    crate::control::forget(&disk.emulation());
    for target in disk.targets() {
        gone(&target, fs::remove_dir_all(&target))?;
    }
    for file in [disk.config(), disk.log()] {
        gone(&file, fs::remove_file(&file))?;
    }
    gone(&disk.dir, fs::remove_dir(&disk.dir))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use super::state::{Store, Tier};
    use super::*;

    #[test]
    fn a_removal_that_was_killed_when_the_ssds_file_was_gone_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("disk");
        fs::write(&real, vec![3; 1 << 20]).unwrap();
        let file = File::create(dir.path().join("ssd")).unwrap();
        file.set_len(4 << 20).unwrap();
        // Nobody can remove that, so the first removal ends where it removes the file.
        let ssd = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let plan = Tier { ssd, made: true, ready: true, size_bytes: 4 << 20, settings: Vec::new() };
        let disk = Disk::new("d", String::new(), 1 << 20, dir.path().join("d"));
        let disk = Disk { emulated: false, disk: Some(real), tier: Some(plan.clone()), ..disk };
        tier::make(&disk, &plan).unwrap();
        let store = Store::at(dir.path().join("state"));
        store.make().unwrap();
        let lock = store.lock("d").unwrap();
        lock.save(&disk).unwrap();
        assert!(remove(lock, disk, false).is_err());
        let lock = store.lock("d").unwrap();
        let left = lock.load().unwrap().unwrap();
        let gone = Tier { ssd: dir.path().join("gone"), ..left.tier.clone().unwrap() };
        remove(lock, Disk { tier: Some(gone), ..left }, false).unwrap();
        assert!(store.load("d").unwrap().is_none());
    }
}
