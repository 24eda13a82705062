//! `sluice disk create`.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use rustix::mount::MountFlags;
use serde::Serialize;
use sluice_notation::{counted, parse_bytes, show_bytes, show_size};
use sluice_storage::emulated::EXTENT;
use sluice_storage::mounts;

use super::interrupt::Interrupt;
use super::loops::Loop;
use super::state::{Disk, Locked, Phase, Store, check_name};
use super::{list, queue, state, teardown, tier};
use crate::output::{self, Usage};
use crate::{control, suggest};

/// Sizes are multiples of this: a page, of which no part is ever read to write the rest.
const UNIT: u64 = 4096;
const SIZE_MIN: u64 = 1 << 20;
const DRIVES_MAX: u32 = 16;
/// Requests in a drive at a time: what serial ATA drives take.
const DEPTH: u32 = 32;
/// The kernel makes this of whatever is less (its `BLKDEV_MIN_RQ`), and says nothing.
const DEPTH_MIN: u32 = 4;
/// Requests that a loop device takes, unless its module was told otherwise.
const DEPTH_MAX: u32 = 128;
/// Of `linux/prctl.h`: the process is in the way of dirty memory to its disk.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Makes a block device with an emulated drive's timing, with or without a file system
///
/// Its bytes are in a sparse file, which bypasses the page cache; its service times are computed by the model. Everything
/// that is measured on it is emulated; with --disk it is a real disk instead, before which an SSD stands (--tier). It stays
/// until `sluice disk remove NAME`; `sluice disk up` brings it back after a restart of the machine.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to call it
    name: String,
    /// Device model: hdd-7200, ssd-sata, nvme, ..., or a model's file (docs/devices.md) [default: none, which
    /// needs --disk]
    #[arg(short, long, value_parser = suggest::models(), hide_possible_values = true, required_unless_present = "disk")]
    model: Option<String>,
    /// A real disk, block device or file, instead of an emulated one: what is on it stays [default: none]
    #[arg(long, value_name = "DISK", requires = "tier",
        conflicts_with_all = ["model", "size", "stripe", "mkfs", "dir", "seed"])]
    disk: Option<PathBuf>,
    #[command(flatten)]
    ssd: tier::Options,
    /// How large it is, in bytes or like 20G (powers of 1,024) [default: as large as the model]
    #[arg(short, long, value_name = "BYTES")]
    size: Option<String>,
    /// The kernel's I/O scheduler: none, mq-deadline, bfq, kyber [default: mq-deadline for emulated hard disks, else none]
    #[arg(long, value_name = "NAME",
        value_parser = suggest::choice(&["none", "mq-deadline", "bfq", "kyber"]), hide_possible_values = true)]
    scheduler: Option<String>,
    /// Requests at the device at a time, from 4, the kernel's least, to 128; what exceeds them waits in the scheduler [default: 32
    /// for each drive, up to 128]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(DEPTH_MIN)..=i64::from(DEPTH_MAX)))]
    queue_depth: Option<u32>,
    /// RAID-0: so many emulated drives of the model behind the device, which shares the size among them [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(DRIVES_MAX)))]
    stripe: Option<u32>,
    /// Bytes on one drive before the next one's turn [default: 64K]
    #[arg(long, value_name = "BYTES", requires = "stripe")]
    stripe_size: Option<String>,
    /// Make a file system on it [default: none]
    #[arg(long, value_name = "TYPE", value_parser = ["ext4", "xfs"])]
    mkfs: Option<String>,
    /// Mount the file system there, with --disk the one that is on it; the directory is made, and removed with the disk, if there
    /// is none [default: not mounted]
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Directory in which a directory NAME is made for the image [default: /var/lib/sluice/disks]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Start of the emulation's random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Makes the disk, or nothing.
///
/// # Errors
/// Whatever keeps it from being made; what was made until then is taken back.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    check_name(&args.name)?;
    let store = Store::open()?;
    // Before its own SSD looks like one that is too small, or in use.
    if let Some(old) = store.load(&args.name)? {
        refuse(&old, list::problem(&old))?;
    }
    let mut disk = plan(args, &store)?;
    store.make()?;
    let lock = clear(&store, &args.name)?;
    // Only now: a disk that was cleared away may have been there.
    if let Err(error) = settle(args, &mut disk) {
        lock.forget()?;
        return Err(error);
    }
    let interrupt = Interrupt::catch()?;
    lock.save(&disk)?;
    let result = make(&mut disk, args.seed, &lock, &interrupt);
    let device = match result {
        Ok(device) => device,
        Err(error) => return Err(take_back(lock, disk, error)),
    };
    output::line(summary(&disk, &device));
    output::say(format_args!("To end: sluice disk remove {}", disk.name));
    Ok(ExitCode::SUCCESS)
}

/// What the disk is to be. Finds whatever can be wrong before anything is made.
fn plan(args: &Args, store: &Store) -> anyhow::Result<Disk> {
    if args.mount.is_some() && args.mkfs.is_none() && args.disk.is_none() {
        bail!(Usage("--mount: there is no file system; make one with --mkfs ext4".to_owned()));
    }
    let Some(model_name) = &args.model else { return plan_real(args, store) };
    let model = sluice_device::model(model_name, args.seed)?;
    let rotates = model.rotates();
    let drives = args.stripe.unwrap_or(1);
    let most = (model.capacity_bytes() / EXTENT * EXTENT).saturating_mul(drives.into()).max(SIZE_MIN);
    let size = args.size.as_ref().map_or(Ok(most), |text| size(text, "--size", SIZE_MIN, most))?;
    let stripe = args.stripe_size.as_ref().map_or(Ok(64 << 10), |text| size_of_stripe(text))?;
    let scheduler = args.scheduler.clone().unwrap_or_else(|| queue::default_scheduler(rotates).to_owned());
    queue::expect_scheduler(&scheduler)?;
    let tier = args.ssd.plan(&args.name)?;
    if tier.is_some() && drives > 1 {
        bail!("--tier: an SSD stands before one drive; leave --stripe out");
    }
    if let Some(kind) = &args.mkfs {
        expect_mkfs(kind)?;
    }
    let dir = match &args.dir {
        Some(dir) if dir.is_file() => bail!("--dir {}: is not a directory", dir.display()),
        Some(dir) => dir.canonicalize().with_context(|| format!("--dir {}", dir.display()))?,
        None => store.path().to_owned(),
    };
    // The emulation is another process, and perhaps in another directory.
    let shipped = sluice_device::models().iter().any(|shipped| shipped.name == model_name);
    let model = if shipped { model_name.clone() } else { fs::canonicalize(model_name)?.display().to_string() };
    Ok(Disk {
        rotates,
        drives,
        stripe_bytes: (drives > 1).then_some(stripe),
        queue_depth: args.queue_depth.unwrap_or((DEPTH * drives).min(DEPTH_MAX)),
        scheduler,
        filesystem: args.mkfs.clone(),
        tier,
        ..Disk::new(&args.name, model, size, dir.join(&args.name))
    })
}

/// The same for a real disk. It has a queue of its own, so that its requests are not sorted above the tier.
fn plan_real(args: &Args, store: &Store) -> anyhow::Result<Disk> {
    let given = args.disk.as_deref().context("--model or --disk: one is needed")?;
    expect_untiered(given, &args.name, store)?;
    let (path, size) = tier::real(given)?;
    let scheduler = args.scheduler.clone().unwrap_or_else(|| queue::NONE.to_owned());
    queue::expect_scheduler(&scheduler)?;
    Ok(Disk {
        emulated: false,
        disk: Some(path),
        tier: args.ssd.plan(&args.name)?,
        queue_depth: args.queue_depth.unwrap_or(DEPTH),
        scheduler,
        ..Disk::new(&args.name, String::new(), size, store.path().join(&args.name))
    })
}

/// That no other disk has a tier before this one, also one that does not run: what only its SSD has would later be written
/// over what is on the disk by then.
fn expect_untiered(given: &Path, name: &str, store: &Store) -> anyhow::Result<()> {
    let Ok(path) = given.canonicalize() else { return Ok(()) };
    for other in store.names()?.iter().filter(|other| *other != name) {
        let Ok(Some(disk)) = store.load(other) else { continue };
        let below = disk.disk.as_ref().and_then(|below| below.canonicalize().ok());
        // Until its removal has ended: what is left on its SSD may look like a tier in use.
        let is_removed = disk.phase == Phase::Removing;
        if below.as_ref() == Some(&path) && disk.tier.is_some_and(|tier| tier.ready || is_removed) {
            bail!(
                "--disk {}: the disk {other} has a tier before it; remove that first: sluice disk remove {other}",
                given.display()
            );
        }
    }
    Ok(())
}

/// Looks at the places where the disk is to be.
fn settle(args: &Args, disk: &mut Disk) -> anyhow::Result<()> {
    if disk.dir.exists() {
        bail!("{} exists and is not this disk's; choose another name or --dir", disk.dir.display());
    }
    if let Some(tier) = &mut disk.tier {
        tier.made = !tier.ssd.exists();
    }
    if let Some(path) = &args.mount {
        let path = mount_point(path)?;
        disk.made_mount_point = !path.exists();
        disk.mount_point = Some(path);
    }
    Ok(())
}

fn size(text: &str, option: &str, least: u64, most: u64) -> anyhow::Result<u64> {
    let bytes = parse_bytes(text).filter(|bytes| bytes % UNIT == 0 && (least..=most).contains(bytes));
    bytes.with_context(|| {
        let (least, most) = (show_bytes(least), show_bytes(most));
        format!(
            "{option} {text}: cannot be used; expected a multiple of 4K from {least} to {most} (what the model holds)"
        )
    })
}

fn size_of_stripe(text: &str) -> anyhow::Result<u64> {
    let most = 1 << 30;
    let bytes = parse_bytes(text).filter(|bytes| bytes % UNIT == 0 && (UNIT..=most).contains(bytes));
    bytes.with_context(|| {
        format!("--stripe-size {text}: cannot be used; expected a multiple of 4K from 4K to 1G, like 64K")
    })
}

fn mount_point(path: &Path) -> anyhow::Result<PathBuf> {
    let path = control::canonical(path).context("--mount")?;
    if path.exists() && !path.is_dir() {
        bail!("--mount {}: is not a directory", path.display());
    }
    if mounts::is_mount_point(&path) {
        bail!("--mount {}: something is mounted there already; choose another directory", path.display());
    }
    Ok(path)
}

/// The program that makes file systems of this kind.
fn expect_mkfs(kind: &str) -> anyhow::Result<PathBuf> {
    let (program, package) = (format!("mkfs.{kind}"), if kind == "xfs" { "xfsprogs" } else { "e2fsprogs" });
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where administrators' programs are is not in everybody's PATH.
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = dirs.map(|dir| dir.join(&program)).find(|file| file.is_file());
    found.with_context(|| format!("--mkfs {kind}: there is no {program} here; install it (apt install {package})"))
}

/// What is wrong with a disk that may be cleared away.
fn refuse(old: &Disk, problem: Option<String>) -> anyhow::Result<String> {
    let (name, what) = (&old.name, old.describe());
    match problem {
        None => bail!("{name}: there is such a disk already ({what}); remove it first, or choose another name"),
        Some(problem) if old.tier.is_some() && old.phase.was_ready() => bail!(
            "{name}: there is such a disk already ({what}), but {problem}; bring it back with what is on it (sluice disk up {name}), \
             or remove it"
        ),
        Some(problem) => Ok(problem),
    }
}

/// Takes the name, and clears away what is left of a disk that has it but does not work.
fn clear<'a>(store: &'a Store, name: &str) -> anyhow::Result<Locked<'a>> {
    let lock = store.lock(name)?;
    let Some(old) = lock.load()? else { return Ok(lock) };
    let problem = refuse(&old, list::problem(&old))?;
    teardown::remove(lock, old, false)
        .with_context(|| format!("{name}: an old one is broken ({problem}), and stays"))?;
    output::tell(format_args!("{name}: cleared away an old one that was broken: {problem}"));
    store.lock(name)
}

/// Makes everything, from the bottom up.
fn make(disk: &mut Disk, seed: u64, lock: &Locked<'_>, interrupt: &Interrupt) -> anyhow::Result<Loop> {
    make_directories(disk)?;
    configure(disk, seed)?;
    if let Some(tier) = disk.tier.clone() {
        // What has a tier has one drive, so that there is nothing to deal out.
        if disk.emulated {
            make_image(disk, &disk.below())?;
        }
        tier::make(disk, &tier)?;
        disk.tier = Some(state::Tier { ready: true, ..tier });
        lock.save(disk)?;
        serve(disk, interrupt)?;
    } else {
        serve(disk, interrupt)?;
        make_image(disk, &disk.image())?;
    }
    let device = attach(disk, lock, interrupt)?;
    if let Some(kind) = &disk.filesystem {
        make_filesystem(kind, &device, interrupt)?;
    }
    if let Some(path) = &disk.mount_point {
        mount(disk.filesystem.as_deref(), &device, path)?;
    }
    interrupt.check()?;
    disk.phase = Phase::Ready;
    lock.save(disk)?;
    Ok(device)
}

/// Makes the block device of an image that is served.
pub(super) fn attach(disk: &mut Disk, lock: &Locked<'_>, interrupt: &Interrupt) -> anyhow::Result<Loop> {
    interrupt.check()?;
    let device = Loop::attach(&disk.image())?;
    let before = queue::begin(&device.sysfs())?;
    let wanted = before.of_disk(disk.scheduler.clone(), disk.queue_depth, disk.rotates);
    disk.queue_before = Some(before);
    lock.save(disk)?;
    queue::apply(&device.sysfs(), &wanted)?;
    Ok(device)
}

fn make_directories(disk: &Disk) -> anyhow::Result<()> {
    let new = |path: &Path| {
        let made = fs::DirBuilder::new().mode(0o700).create(path);
        made.with_context(|| format!("making the directory {}", path.display()))
    };
    new(&disk.dir)?;
    disk.targets().iter().try_for_each(|target| new(target))?;
    new(&disk.emulation())
}

/// A configuration of `sluice mount`; sluice.example.toml explains the keys.
#[derive(Serialize)]
struct Config {
    mount: MountSection,
    volume: VolumeSection,
    device: DeviceSection,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<tier::Section>,
    scheduler: SchedulerSection,
    log: LogSection,
}

#[derive(Serialize)]
struct MountSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<PathBuf>,
    mountpoint: PathBuf,
    name: String,
    cache: &'static str,
    max_background: u32,
}

#[derive(Serialize)]
struct VolumeSection {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    targets: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stripe: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_target: Option<&'static str>,
    direct: bool,
}

#[derive(Serialize)]
struct DeviceSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    emulate: Option<String>,
    seed: u64,
}

#[derive(Serialize)]
struct SchedulerSection {
    policy: &'static str,
    in_flight: u32,
    workers: &'static str,
    workers_max: u32,
    group_commit: &'static str,
}

#[derive(Serialize)]
struct LogSection {
    file: PathBuf,
}

/// Everything that the device has is handed to the drives at once (`noop`, one worker for each request): scheduling is the
/// kernel's part here, and the choice among what it has is the drive's.
fn config(disk: &Disk, seed: u64) -> Config {
    let mut targets = disk.targets();
    let source = (disk.drives == 1).then(|| targets.remove(0));
    Config {
        mount: MountSection {
            source,
            mountpoint: disk.emulation(),
            name: format!("sluice-disk-{}", disk.name),
            cache: "none",
            // Requests are split at 1 MiB on their way, so there may be more than the device has.
            max_background: 4 * DEPTH_MAX,
        },
        volume: VolumeSection {
            targets,
            stripe: disk.stripe_bytes.map(|bytes| bytes.to_string()),
            // The disk's first byte is on its first drive.
            first_target: disk.stripe_bytes.map(|_| "zero"),
            direct: true,
        },
        device: DeviceSection { emulate: disk.emulated.then(|| disk.model.clone()), seed },
        tier: tier::Section::of(disk),
        scheduler: SchedulerSection {
            policy: "noop",
            in_flight: 0,
            workers: "threads",
            workers_max: disk.queue_depth,
            // A drive flushes when it is told to.
            group_commit: "off",
        },
        log: LogSection { file: disk.log() },
    }
}

/// Says how the disk is served.
fn configure(disk: &Disk, seed: u64) -> anyhow::Result<()> {
    let text = toml::to_string(&config(disk, seed)).context("the configuration of the emulation")?;
    let path = disk.config();
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// Starts the process that serves the disk as configured.
pub(super) fn serve(disk: &Disk, interrupt: &Interrupt) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["mount", "--daemon", "--config"]).arg(disk.config());
    // Inherited. While it is written back to the disk, memory may be short, and then the kernel must not make the process
    // wait for just that. A container may forbid it; that is no reason to have no disk.
    io_flusher(true);
    // Not to be ended by a signal: the process that it starts would come up all the same.
    let started = interrupt.run(&mut command, false);
    io_flusher(false);
    started.with_context(|| format!("starting the process behind {}", disk.describe()))?;
    interrupt.check()
}

fn io_flusher(on: bool) {
    const ZERO: libc::c_ulong = 0;
    // SAFETY: takes numbers, and changes how this thread's and its children's memory is allocated, nothing else.
    let _ = unsafe { libc::prctl(PR_SET_IO_FLUSHER, libc::c_ulong::from(on), ZERO, ZERO, ZERO) };
}

/// Makes the sparse image; through the emulation, which deals it out to the drives if there are several.
fn make_image(disk: &Disk, path: &Path) -> anyhow::Result<()> {
    let made = || OpenOptions::new().write(true).create_new(true).open(path)?.set_len(disk.size_bytes);
    made().with_context(|| format!("making the image {} of {}", path.display(), show_bytes(disk.size_bytes)))
}

/// Makes a file system that leaves nothing for the background, where it would disturb what is measured.
fn make_filesystem(kind: &str, device: &Loop, interrupt: &Interrupt) -> anyhow::Result<()> {
    // A new image has nothing to discard, and is all zeros: what is not written stays a hole. Earlier mke2fs than 1.47 do
    // not know that word, and write zeros.
    let attempts: &[&[&str]] = match kind {
        "ext4" => &[
            &["-q", "-E", "nodiscard,assume_storage_prezeroed=1"],
            &["-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
        ],
        _ => &[&["-q", "-f", "-K"]],
    };
    let program = expect_mkfs(kind)?;
    let run = |options: &&[&str]| interrupt.run(Command::new(&program).args(*options).arg(device.path()), true);
    let [first, rest @ ..] = attempts else { bail!("no way to make {kind}") };
    rest.iter().fold(run(first), |result, options| result.or_else(|_| run(options)))
}

/// Mounts the file system on the device, of whatever kind if none is said.
pub(super) fn mount(kind: Option<&str>, device: &Loop, path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path).with_context(|| format!("making the mount point {}", path.display()))?;
    let Some(kind) = kind else {
        // Which kinds there are, and how each is recognised, is that program's.
        let output = Command::new("mount").arg(device.path()).arg(path).output().context("starting mount")?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if !output.status.success() {
            bail!("mounting {} on {}: {said}", device.path().display(), path.display());
        }
        return Ok(());
    };
    let mounted = rustix::mount::mount(device.path(), path, kind, MountFlags::empty(), c"");
    mounted.with_context(|| {
        format!("mounting the {kind} of {} on {} (has this kernel {kind}?)", device.path().display(), path.display())
    })
}

/// Removes what was made until an error, and adds to the error if that does not go well.
fn take_back(lock: Locked<'_>, disk: Disk, error: anyhow::Error) -> anyhow::Error {
    let name = disk.name.clone();
    let log = fs::read_to_string(disk.log()).unwrap_or_default();
    let last = log.lines().rev().find(|line| line.contains("ERROR")).map(|line| format!("; its log says: {line}"));
    match teardown::remove(lock, disk, false) {
        Ok(()) => anyhow::anyhow!("{name}: {error:#}{}; nothing of it is left", last.unwrap_or_default()),
        Err(left) => anyhow::anyhow!("{name}: {error:#}; and some of it is left ({left:#}): sluice disk remove {name}"),
    }
}

pub(super) fn summary(disk: &Disk, device: &Loop) -> String {
    let stripe =
        disk.stripe_bytes.map_or_else(String::new, |bytes| format!(", striped by {}", show_size(bytes as f64)));
    let filesystem = match (&disk.filesystem, &disk.mount_point) {
        (Some(kind), Some(path)) => format!(", {kind} on {}", path.display()),
        (Some(kind), None) => format!(", {kind}"),
        (None, Some(path)) => format!(", mounted on {}", path.display()),
        _ => String::new(),
    };
    format!(
        "{} is {}: {}{stripe}, {}, scheduler {}, {} at a time{filesystem}",
        disk.name,
        device.path().display(),
        disk.describe(),
        show_size(disk.size_bytes as f64),
        disk.scheduler,
        counted(disk.queue_depth.into(), "request")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_pages_that_the_model_holds() {
        assert_eq!(size("20G", "--size", SIZE_MIN, 1 << 40).unwrap(), 20 << 30);
        for text in ["", "x", "0", "4095", "1000001", "2T"] {
            let error = size(text, "--size", SIZE_MIN, 1 << 40).unwrap_err().to_string();
            assert!(error.contains("multiple of 4K from 1M to 1T"), "{error}");
        }
        assert_eq!(size_of_stripe("64K").unwrap(), 65536);
        assert!(size_of_stripe("1000").is_err());
    }

    #[test]
    fn a_disk_gets_no_other_tier_before_it_has_lost_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("disk");
        fs::write(&real, "").unwrap();
        let store = Store::at(dir.path().to_owned());
        let new = Disk::new("d", String::new(), 1 << 20, dir.path().join("d"));
        for (phase, ready, may) in [
            (Phase::Creating, false, true),
            (Phase::Ready, true, false),
            (Phase::Removing, true, false),
            (Phase::Removing, false, false),
        ] {
            let tier = state::Tier { ssd: "/ssd".into(), made: true, ready, size_bytes: 0, settings: Vec::new() };
            let disk = Disk { phase, disk: Some(real.clone()), tier: Some(tier), ..new.clone() };
            store.lock("d").unwrap().save(&disk).unwrap();
            assert_eq!(expect_untiered(&real, "e", &store).is_ok(), may, "{phase:?}, ready: {ready}");
        }
    }

    #[test]
    fn the_configuration_is_one_of_mount() {
        let dir = tempfile::tempdir().unwrap();
        let one = Disk { queue_depth: 7, ..Disk::new("d", "hdd-7200".into(), 1 << 30, dir.path().join("a \"b\"")) };
        let four = Disk { drives: 4, stripe_bytes: Some(65536), ..one.clone() };
        for disk in [one, four] {
            let path = dir.path().join("c.toml");
            fs::write(&path, toml::to_string(&config(&disk, 3)).unwrap()).unwrap();
            let mut settings = crate::config::Settings::default();
            crate::config::read(&path, &mut settings).unwrap();
            assert_eq!(settings.mountpoint, Some(disk.emulation()));
            assert_eq!(settings.source.is_some(), disk.drives == 1);
            assert_eq!(settings.targets.len() as u32, if disk.drives == 1 { 0 } else { disk.drives });
            assert_eq!(settings.stripe, disk.stripe_bytes);
            assert_eq!((settings.emulate.as_deref(), settings.seed), (Some("hdd-7200"), 3));
            assert!(settings.direct && settings.policy.as_deref() == Some("noop") && settings.in_flight == Some(0));
            assert_eq!(settings.group_commit(true).unwrap(), None);
        }
    }
}
