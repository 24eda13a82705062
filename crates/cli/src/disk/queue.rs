//! The request queue of a block device, through sysfs.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

pub(super) const NONE: &str = "none";
/// What the kernel gives a hard disk by itself.
const OF_HARD_DISKS: &str = "mq-deadline";

/// How a queue is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) scheduler: String,
    /// Requests that the driver takes at a time.
    pub(super) depth: u32,
    pub(super) rotates: bool,
    /// Largest command in KiB; disks of earlier versions left it as it was.
    #[serde(default)]
    pub(super) transfer_kb: Option<u32>,
}

/// Largest command of an emulated disk, in KiB: a larger one would pass FUSE as two requests (256 pages each), which two threads hand
/// over in whichever order they wake, and the disk would serve halves of commands.
const TRANSFER_KB: u32 = 1024;
const TRANSFER: &str = "max_sectors_kb";

impl Settings {
    /// What a disk is to have on a queue that was like this.
    pub(super) fn of_disk(&self, scheduler: String, depth: u32, rotates: bool) -> Settings {
        Settings { scheduler, depth, rotates, transfer_kb: self.transfer_kb.map(|before| before.min(TRANSFER_KB)) }
    }
}

/// The scheduler of disks whose user names none.
pub(super) fn default_scheduler(rotates: bool) -> &'static str {
    let offered = |name| any_device().is_none_or(|sysfs| offered(&sysfs).iter().any(|known| known == name));
    if rotates && offered(OF_HARD_DISKS) { OF_HARD_DISKS } else { NONE }
}

/// Says early that the kernel has no such scheduler; loads its module if there is one.
///
/// # Errors
/// With the schedulers that there are.
pub(super) fn expect_scheduler(name: &str) -> anyhow::Result<()> {
    // Without any loop device yet only the attempt tells.
    any_device().map_or(Ok(()), |sysfs| expect_offered(&sysfs, name))
}

fn any_device() -> Option<std::path::PathBuf> {
    let entries = fs::read_dir("/sys/block").ok()?.flatten();
    let mut loops = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("loop"));
    loops.next().map(|entry| entry.path())
}

/// The scheduler that is chosen now.
pub(super) fn scheduler(sysfs: &Path) -> Option<String> {
    let text = fs::read_to_string(sysfs.join("queue/scheduler")).ok()?;
    chosen(&text).map(str::to_owned)
}

fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|name| name.strip_prefix('[')?.strip_suffix(']'))
}

fn offered(sysfs: &Path) -> Vec<String> {
    let text = fs::read_to_string(sysfs.join("queue/scheduler")).unwrap_or_default();
    text.split_whitespace().map(|name| name.trim_matches(['[', ']']).to_owned()).collect()
}

fn expect_offered(sysfs: &Path, name: &str) -> anyhow::Result<()> {
    let has = || offered(sysfs).iter().any(|known| known == name);
    if !has() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        // The modules are bfq, kyber-iosched, mq-deadline; all have the alias. If there is none, that is said below.
        let load =
            Command::new("modprobe").args(["-q", "--", &format!("{name}-iosched")]).stdin(Stdio::null()).output();
        drop(load);
    }
    if has() {
        return Ok(());
    }
    let known = offered(sysfs);
    let hint = sluice_notation::hint(name, known.iter().map(String::as_str));
    bail!("this kernel has no I/O scheduler {name:?}, nor a module of it{hint}; it offers {}", known.join(", "));
}

/// How the queue of a device is that has just been bound. Sets its scheduler to none.
///
/// # Errors
/// What the system says.
pub(super) fn begin(sysfs: &Path) -> anyhow::Result<Settings> {
    let scheduler = scheduler(sysfs).unwrap_or_else(|| NONE.to_owned());
    let rotates = read(sysfs, "rotational")? == "1";
    // With a scheduler the depth is the scheduler's.
    write(sysfs, "scheduler", NONE)?;
    let depth = read(sysfs, "nr_requests")?;
    let depth = depth.parse().with_context(|| format!("{}: nr_requests is {depth:?}", sysfs.display()))?;
    let transfer_kb = read(sysfs, TRANSFER)?.parse().ok();
    Ok(Settings { scheduler, depth, rotates, transfer_kb })
}

/// Makes a queue that has no scheduler as wanted. The order matters:
///
/// * The depth first, while there is no scheduler: then it is the number of requests that the *driver* takes at a time,
///   as a drive's command queue, and stays so when a scheduler comes, which keeps what exceeds it. The number written
///   later is how many requests wait in the scheduler and the drive together; the kernel's own rule for drives is twice
///   the depth.
/// * Then whether it rotates, before the scheduler: BFQ looks when it is chosen, and idles for rotating devices only.
///
/// # Errors
/// If there is no such scheduler, and what the system says.
pub(super) fn apply(sysfs: &Path, wanted: &Settings) -> anyhow::Result<()> {
    expect_offered(sysfs, &wanted.scheduler)?;
    write(sysfs, "nr_requests", &wanted.depth.to_string())?;
    write(sysfs, "rotational", if wanted.rotates { "1" } else { "0" })?;
    if let Some(transfer_kb) = wanted.transfer_kb {
        write(sysfs, TRANSFER, &transfer_kb.to_string())?;
    }
    if wanted.scheduler != NONE {
        write(sysfs, "scheduler", &wanted.scheduler)?;
        write(sysfs, "nr_requests", &(2 * wanted.depth).to_string())?;
    }
    Ok(())
}

/// Makes a queue as it was: loop devices keep their settings for whoever comes next.
///
/// # Errors
/// What the system says.
pub(super) fn restore(sysfs: &Path, before: &Settings) -> anyhow::Result<()> {
    write(sysfs, "scheduler", NONE)?;
    // Without a scheduler the kernel shows the largest depth whatever it is, and ignores a number that it shows.
    let almost = before.depth.saturating_sub(1).max(1);
    write(sysfs, "nr_requests", &almost.to_string())?;
    write(sysfs, "nr_requests", &before.depth.to_string())?;
    write(sysfs, "rotational", if before.rotates { "1" } else { "0" })?;
    let transfer = before.transfer_kb.map_or(Ok(()), |transfer_kb| write(sysfs, TRANSFER, &transfer_kb.to_string()));
    write(sysfs, "scheduler", &before.scheduler).and(transfer)
}

fn read(sysfs: &Path, key: &str) -> anyhow::Result<String> {
    let path = sysfs.join("queue").join(key);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.trim().to_owned())
}

fn write(sysfs: &Path, key: &str, value: &str) -> anyhow::Result<()> {
    let path = sysfs.join("queue").join(key);
    fs::write(&path, value).with_context(|| format!("writing {value} to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directory with a queue as sysfs has it.
    fn queue(scheduler: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("queue")).unwrap();
        let kept = [("nr_requests", "128\n"), ("rotational", "0\n"), (TRANSFER, "1280\n")];
        for (key, value) in [("scheduler", scheduler)].into_iter().chain(kept) {
            fs::write(dir.path().join("queue").join(key), value).unwrap();
        }
        dir
    }

    #[test]
    fn schedulers_are_read() {
        let dir = queue("none mq-deadline [bfq] kyber\n");
        assert_eq!(scheduler(dir.path()).as_deref(), Some("bfq"));
        assert_eq!(offered(dir.path()), ["none", "mq-deadline", "bfq", "kyber"]);
        assert_eq!(scheduler(Path::new("/no/such/device")), None);
    }

    #[test]
    fn a_scheduler_that_is_not_there_is_answered_with_those_that_are() {
        let dir = queue("[none] mq-deadline\n");
        let error = expect_offered(dir.path(), "mq-deadlin").unwrap_err().to_string();
        assert!(
            error.contains("offers none, mq-deadline") && error.contains("did you mean \"mq-deadline\"?"),
            "{error}"
        );
        expect_offered(dir.path(), "mq-deadline").unwrap();
    }

    #[test]
    fn a_queue_is_taken_and_given_back() {
        let dir = queue("none [bfq]\n");
        let before = begin(dir.path()).unwrap();
        let found = Settings { scheduler: "bfq".into(), depth: 128, rotates: false, transfer_kb: Some(1280) };
        assert_eq!(before, found);
        let of = |key| read(dir.path(), key).unwrap();
        fs::write(dir.path().join("queue/scheduler"), "[none] bfq").unwrap();
        apply(dir.path(), &before.of_disk("bfq".into(), 32, true)).unwrap();
        assert_eq!((of("scheduler"), of("nr_requests"), of("rotational")), ("bfq".into(), "64".into(), "1".into()));
        assert_eq!(of(TRANSFER), "1024", "what one request of FUSE carries");
        restore(dir.path(), &before).unwrap();
        assert_eq!((of("scheduler"), of("nr_requests"), of("rotational")), ("bfq".into(), "128".into(), "0".into()));
        assert_eq!(of(TRANSFER), "1280");
    }
}
