//! Loop devices.
//!
//! Asked of the kernel itself rather than of `losetup`: `LOOP_CONFIGURE` (Linux 5.8) binds file, block size and direct I/O in
//! one step, so that nobody ever sees half a device, and says `EBUSY` if another process took the device that
//! `LOOP_CTL_GET_FREE` named, which is then asked again.
//!
//! The devices are not bound with `LO_FLAGS_AUTOCLEAR`: that unbinds a device when its last user leaves, so one without a
//! file system would be gone before its first user came. Unbinding one in use (`LOOP_CLR_FD`) sets that flag.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sluice_storage::mounts;

use super::devices;

const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// How often another process may be faster.
const ATTEMPTS: u32 = 100;
/// How long a device may be held by others, like udev, which looks at every change.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for a process that was killed and is not seen any more: it leaves when its last request has ended.
const PATIENCE_WITH_THE_DEAD: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

/// A loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loop {
    number: u32,
}

impl Loop {
    /// Binds a free device to the file, with direct I/O and 512-byte sectors.
    ///
    /// # Errors
    /// If there is none, or the file cannot be read and written directly; it is not bound then.
    pub(super) fn attach(image: &Path) -> anyhow::Result<Loop> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control");
        let control = control.context("/dev/loop-control: this kernel has no loop devices (modprobe loop)")?;
        let file = OpenOptions::new().read(true).write(true).open(image);
        let file = file.with_context(|| image.display().to_string())?;
        let device = bind(&control, &file, image)?;
        let direct = fs::read_to_string(device.sysfs().join("loop/dio")).is_ok_and(|text| text.trim() == "1");
        if !direct {
            let detached = device.detach(|| ());
            bail!(
                "{}: refuses direct I/O on {}, so what is on it would be in memory twice{}",
                device.path().display(),
                image.display(),
                detached.err().map_or_else(String::new, |error| format!("; and it stays bound: {error:#}"))
            );
        }
        Ok(device)
    }

    /// All devices that are bound to a file of this name, in whatever directory: the kernel knows a file whose mount has
    /// been taken out of sight by the rest of its path only.
    pub(super) fn bound_to(file_name: &str) -> Vec<Loop> {
        let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("loop")?.parse().ok());
        let mut found: Vec<Loop> = numbers.map(|number| Loop { number }).collect();
        found.retain(|device| device.file().is_some_and(|file| is_named(&file, file_name)));
        found.sort_by_key(|device| device.number);
        found
    }

    pub(super) fn path(&self) -> PathBuf {
        format!("/dev/loop{}", self.number).into()
    }

    pub(super) fn sysfs(&self) -> PathBuf {
        format!("/sys/block/loop{}", self.number).into()
    }

    /// Major and minor number as the mount table has them.
    pub(super) fn numbers(&self) -> Option<String> {
        fs::read_to_string(self.sysfs().join("dev")).ok().map(|text| text.trim().to_owned())
    }

    /// The file that it is bound to.
    fn file(&self) -> Option<PathBuf> {
        let path = fs::read(self.sysfs().join("loop/backing_file")).ok()?;
        Some(Path::new(std::ffi::OsStr::from_bytes(path.trim_ascii_end())).to_owned())
    }

    /// Unbinds the device, which nobody uses; does something `before`, when that is certain.
    ///
    /// # Errors
    /// If somebody uses it, and who that is.
    pub(super) fn detach(&self, before: impl FnOnce()) -> anyhow::Result<()> {
        let at = self.path();
        let Some(file) = self.file() else { return Ok(()) };
        let device = self.open_alone()?;
        before();
        clear(&device).with_context(|| format!("unbinding {}", at.display()))?;
        drop(device);
        wait_until_free(&at, || self.file().as_ref() != Some(&file))
    }

    /// That nobody but a mount has it open.
    ///
    /// # Errors
    /// If somebody has, also after a moment.
    pub(super) fn expect_unused(&self) -> anyhow::Result<()> {
        let at = self.path();
        wait_until_free(&at, || devices::users(&at).is_empty())
    }

    /// Opens the device when nobody else has it.
    fn open_alone(&self) -> anyhow::Result<File> {
        let (at, start) = (self.path(), Instant::now());
        loop {
            // Exclusively: refused while it is mounted, also where this process cannot see that, or part of something.
            let opened = open(&at, libc::O_EXCL);
            // Others that have it open are looked for: the kernel would unbind it behind them, and not say so.
            let seen = !devices::users(&at).is_empty();
            let patience = match opened {
                Ok(device) if !seen => return Ok(device),
                Ok(_) => PATIENCE,
                Err(error) if error.raw_os_error() != Some(libc::EBUSY) => {
                    return Err(error).with_context(|| at.display().to_string());
                }
                Err(_) if seen || self.is_mounted() => PATIENCE,
                Err(_) => PATIENCE_WITH_THE_DEAD,
            };
            if start.elapsed() > patience {
                bail!(devices::in_use(&at));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn is_mounted(&self) -> bool {
        self.numbers().is_some_and(|numbers| !mounts::of_device(&numbers).is_empty())
    }

    /// Unbinds the device as soon as its last user has left.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn detach_later(&self) -> anyhow::Result<()> {
        let at = self.path();
        let device = open(&at, 0).with_context(|| at.display().to_string())?;
        clear(&device).with_context(|| format!("unbinding {}", at.display()))
    }
}

fn wait_until_free(at: &Path, is_free: impl Fn() -> bool) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !is_free() {
        if Instant::now() > until {
            bail!(devices::in_use(at));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn bind(control: &File, file: &File, image: &Path) -> anyhow::Result<Loop> {
    for _ in 0..ATTEMPTS {
        // SAFETY: takes no argument and touches no memory.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        let number = u32::try_from(number).map_err(|_| io::Error::last_os_error()).context("finding a loop device")?;
        let device = Loop { number };
        let at = device.path();
        let opened = open(&at, libc::O_RDWR).with_context(|| format!("{}: has /dev this node?", at.display()))?;
        match configure(&opened, file.as_raw_fd(), image) {
            Ok(()) => return Ok(device),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("binding {} to {}", at.display(), image.display()));
            }
        }
    }
    bail!("no free loop device: others took each one first, {ATTEMPTS} times")
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    // Writing goes by the flags alone; a device that is only to be unbound must not look written to.
    let write = flags & libc::O_ACCMODE == libc::O_RDWR;
    OpenOptions::new().read(true).write(write).custom_flags(flags & !libc::O_ACCMODE).open(path)
}

fn configure(device: &File, image: RawFd, name: &Path) -> io::Result<()> {
    let mut info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_DIRECT_IO,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    // For `losetup`, which shows the whole path from elsewhere; the last byte stays 0.
    let name = name.file_name().unwrap_or_default().as_bytes();
    let len = name.len().min(info.file_name.len() - 1);
    info.file_name[..len].copy_from_slice(&name[..len]);
    let config = Config { fd: image as u32, block_size: 512, info, reserved: [0; 8] };
    // SAFETY: the argument is a loop_config, which the kernel only reads, and only during the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn clear(device: &File) -> io::Result<()> {
    // SAFETY: takes no argument and touches no memory.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD) } {
        0.. => Ok(()),
        _ => match io::Error::last_os_error() {
            // Not bound: somebody else was faster.
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
            error => Err(error),
        },
    }
}

/// Whether the kernel's word for a bound file names this one, removed or not.
fn is_named(file: &Path, name: &str) -> bool {
    let last = file.file_name().unwrap_or_default().as_bytes();
    last == name.as_bytes() || last.strip_suffix(b" (deleted)") == Some(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_recognised_in_whatever_directory() {
        for path in ["/a/b/x.img", "/x.img", "/a/x.img (deleted)"] {
            assert!(is_named(Path::new(path), "x.img"), "{path}");
        }
        for path in ["/a/xx.img", "/x.img/y", "/x.img (deleted) (deleted)", ""] {
            assert!(!is_named(Path::new(path), "x.img"), "{path}");
        }
    }
}
