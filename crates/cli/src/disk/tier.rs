//! The SSD before a disk: prepared when the disk is made, emptied and given back when it is removed.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use serde::Serialize;
use sluice_notation::{parse_bytes, show_bytes, show_size};
use sluice_tier::format::{LOG_START, SECTOR};
use sluice_tier::{Config, Device, FileDevice, Geometry, OpenError};

use super::state::{self, Disk};
use crate::mount::{is_in_use, open_device};
use crate::{output, tier};

const SIZE_MIN: u64 = 4 << 20;
const SIZE_MAX: u64 = 1 << 44;
const SIZE: u64 = 2 << 30;
/// Superblocks, and the area at a multiple of 4K.
const OVERHEAD: u64 = 16 << 10;
const SEGMENT_MIN: u64 = 64 << 10;
const SEGMENT_MAX: u64 = 4 << 20;
/// The superblocks, and what the log begins with: by them an SSD is known, also as one that a tier was taken off.
const KNOWN_BY: u64 = LOG_START + SECTOR as u64;
/// What of an SSD is filled with zeros, one part after the other: whoever is killed has left one that is known, or empty.
const ZEROED: [Range<u64>; 2] = [KNOWN_BY..tier::START as u64, 0..KNOWN_BY];

#[derive(clap::Args)]
pub(super) struct Options {
    /// An SSD that takes the disk's random writes and keeps what is read again (docs/tier.md): a directory, in which a file NAME.tier is
    /// made, a file, or a block device [default: none]
    #[arg(long, value_name = "SSD")]
    tier: Option<PathBuf>,
    /// Bytes of the SSD, half of them for writes, half for what is read [default: 2G of a file that is made, else all]
    #[arg(long, value_name = "BYTES", requires = "tier")]
    tier_size: Option<String>,
    /// Setting of the tier, as `sluice tier settings` lists them; may be given several times
    #[arg(long, value_name = "KEY=VALUE", requires = "tier")]
    tier_set: Vec<String>,
}

impl Options {
    /// What the tier is to be. Finds whatever can be wrong before anything is made.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn plan(&self, name: &str) -> anyhow::Result<Option<state::Tier>> {
        let Some(given) = &self.tier else { return Ok(None) };
        let ssd = match given.is_dir() {
            true => given.join(format!("{name}.tier")),
            false => given.clone(),
        };
        let at = || format!("--tier {}", given.display());
        let (Some(dir), Some(file)) = (ssd.parent(), ssd.file_name()) else { bail!("{}: cannot be an SSD", at()) };
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let ssd = dir.canonicalize().with_context(at)?.join(file);
        let there = ssd.exists().then(|| FileDevice::open(&ssd, false)).transpose().with_context(at)?;
        let most = there.as_ref().map_or(SIZE_MAX, Device::size);
        let size_bytes = match &self.tier_size {
            None => there.as_ref().map_or(SIZE, Device::size),
            Some(text) => parse_bytes(text).with_context(|| {
                let (least, most) = (show_bytes(SIZE_MIN), show_bytes(most));
                format!("--tier-size {text}: cannot be used; expected {least} to {most}, like 8G")
            })?,
        };
        if !(SIZE_MIN..=most).contains(&size_bytes) {
            let (least, most, size) = (show_bytes(SIZE_MIN), show_bytes(most), show_bytes(size_bytes));
            bail!("{}: a tier of {size} cannot be; expected {least} to {most} (--tier-size)", at());
        }
        // Whoever removes the disk writes back, and not a process that somebody waits for.
        let (mut settings, mut all) = (vec!["unload=off".to_owned()], Config::default());
        for text in &self.tier_set {
            let wrong = || format!("--tier-set {text}");
            let (key, value) = text.split_once('=').context("expected KEY=VALUE").with_context(wrong)?;
            all.set(key, value).map_err(anyhow::Error::msg).with_context(wrong)?;
            // The process that serves it, now or later, was started elsewhere.
            let is_path = ["profile", "failure-mark"].contains(&key) && value != "none";
            let value = if is_path { std::path::absolute(value)?.display().to_string() } else { value.to_owned() };
            settings.push(format!("{key}={value}"));
        }
        Ok(Some(state::Tier { ssd, made: there.is_none(), ready: false, size_bytes, settings }))
    }
}

/// The real disk by its absolute name, and its size. The name stays as given: where `/dev/disk/by-id/...` leads is found anew at each
/// start, and which disk is `/dev/sdb` may change.
///
/// # Errors
/// If it is not there, in use, or no disk.
pub(super) fn real(given: &Path) -> anyhow::Result<(PathBuf, u64)> {
    let at = || format!("--disk {}", given.display());
    let path = std::path::absolute(given).with_context(at)?;
    let kind = fs::metadata(&path).with_context(at)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        bail!("{}: is neither a file nor a block device", at());
    }
    match FileDevice::open(&path, true) {
        Ok(device) => Ok((path, device.size())),
        Err(error) if is_in_use(&error) => {
            bail!("--disk {error}; it must be nobody else's: unmount it, and end whatever else uses it")
        }
        Err(error) => Err(error).context("--disk"),
    }
}

/// Divides the SSD.
///
/// # Errors
/// If something is on it that may be needed, and what the system says.
pub(super) fn make(disk: &Disk, plan: &state::Tier) -> anyhow::Result<()> {
    let below = disk.below();
    let name = below.to_str().with_context(|| format!("{}: expected a name in UTF-8", below.display()))?;
    let device = FileDevice::open(&below, true)?;
    tier::divide(&plan.ssd, &device, name, geometry(plan.size_bytes), false).map(drop)
}

fn geometry(bytes: u64) -> Geometry {
    let half = bytes.saturating_sub(OVERHEAD) / 2;
    let unit = 1 << (half / 16).clamp(SEGMENT_MIN, SEGMENT_MAX).ilog2();
    let (part, unit_bytes) = (half / unit * unit, unit as u32);
    Geometry { queue_bytes: part, segment_bytes: unit_bytes, area_bytes: part, slot_bytes: unit_bytes }
}

/// The section of the configuration of `sluice mount`; sluice.example.toml explains the keys.
#[derive(Serialize)]
pub(super) struct Section {
    disk: PathBuf,
    ssd: PathBuf,
    file: String,
    settings: Vec<String>,
}

impl Section {
    pub(super) fn of(disk: &Disk) -> Option<Section> {
        let tier = disk.tier.as_ref()?;
        let (ssd, settings) = (tier.ssd.clone(), tier.settings.clone());
        Some(Section { disk: disk.below(), ssd, file: disk.image_name(), settings })
    }
}

/// Takes the tier off a disk that nobody serves any more. What only the SSD has goes to a real disk; that of an emulated one
/// goes with it. `emptied` is called when nothing on the SSD is needed any more, before that is given back.
///
/// # Errors
/// If a real disk would not have everything then; by `force` an SSD may be missing, or have failed with what only it had.
pub(super) fn take_off(
    disk: &Disk,
    plan: &state::Tier,
    force: bool,
    emptied: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let at = || format!("the tier on {}", plan.ssd.display());
    if !plan.ssd.exists() {
        if plan.ready && !disk.emulated {
            let what =
                format!("{}: it is not there, and what only it has {} does not have", at(), disk.below().display());
            if !force {
                bail!("{what}; bring it back, or remove the disk with --force");
            }
            output::tell(format_args!("{what}"));
        }
        return Ok(());
    }
    let ssd = open_device(&plan.ssd).with_context(at)?;
    let below = disk.below();
    // A name may lead elsewhere after a restart: nothing is done to what is not this disk's.
    if let Err(what) = is_of(&ssd, &below) {
        let what = format!("{}: {what}", at());
        if plan.ready && !disk.emulated && !force {
            bail!("{what}; bring back the SSD of {}, or remove the disk with --force", below.display());
        }
        if plan.ready {
            output::tell(format_args!("{what}; it stays as it is"));
        }
        return Ok(());
    }
    let ssd = Arc::new(ssd);
    if !disk.emulated {
        // Also by force: what is in use now can be written back later.
        match write_back(&below, ssd.clone(), plan) {
            Err(error) if error.downcast_ref::<OpenError>().is_some_and(may_lack) => {
                let what = format!("{}: {error:#}", at());
                if !force {
                    bail!("{what}; or remove the disk with --force");
                }
                output::tell(format_args!("{what}"));
            }
            other => other.with_context(at)?,
        }
    }
    emptied()?;
    if plan.made {
        return fs::remove_file(&plan.ssd).with_context(at);
    }
    fill_with_zeros(&ssd).with_context(at)
}

fn fill_with_zeros(ssd: &FileDevice) -> io::Result<()> {
    for part in ZEROED {
        ssd.write(&vec![0; (part.end - part.start) as usize], part.start)?;
        ssd.flush()?;
    }
    Ok(())
}

/// Whether the SSD has the tier of this disk, or what is left of one that was taken off, or nothing; else what it has.
fn is_of(ssd: &FileDevice, below: &Path) -> Result<(), String> {
    let left = || Ok::<bool, io::Error>(sluice_tier::was_taken_off(ssd)? || tier::begins_empty(ssd)?);
    match sluice_tier::made_for(ssd) {
        Ok(disk) if Path::new(&disk) == below => Ok(()),
        Ok(disk) => Err(format!("it has the tier of {disk}")),
        Err(OpenError::NoTier(_)) if left().map_err(|error| error.to_string())? => Ok(()),
        Err(OpenError::NoTier(_)) => Err("it has no tier, and is not empty".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The disk lacks what only the SSD had, or may: that is for somebody to know before it is removed.
fn may_lack(error: &OpenError) -> bool {
    matches!(error, OpenError::Lost { .. } | OpenError::Mark { .. })
}

fn write_back(below: &Path, ssd: Arc<FileDevice>, plan: &state::Tier) -> anyhow::Result<()> {
    let disk = Arc::new(open_device(below)?);
    let mut config = Config::default();
    for (key, value) in plan.settings.iter().filter_map(|text| text.split_once('=')) {
        config.set(key, value).map_err(anyhow::Error::msg)?;
    }
    config.prefetch = false;
    config.disk_name.get_or_insert(below.display().to_string());
    if config.failure_mark.is_none() {
        config.failure_mark = sluice_tier::failure_mark_of(below)?;
    }
    let tier = match sluice_tier::Tier::open(disk, ssd, config) {
        Ok(tier) => tier,
        // Taken off before, or given up when it failed: the disk has everything.
        Err(OpenError::NoTier(_) | OpenError::Failed(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    tier.detach()?;
    let bytes = tier.status().counts.written_back_bytes;
    if bytes > 0 {
        output::say(format_args!("{} written back to {}", show_size(bytes as f64), below.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 4 << 20;

    fn take_off(disk: &Disk, plan: &state::Tier, force: bool) -> anyhow::Result<()> {
        super::take_off(disk, plan, force, || Ok(()))
    }

    /// A disk that is a file.
    fn below_tier(real: &Path) -> Disk {
        let disk = Disk::new("d", String::new(), 1 << 20, real.with_extension("d"));
        Disk { emulated: false, disk: Some(real.to_owned()), ..disk }
    }

    /// After a restart the name of an SSD may be another one's.
    #[test]
    fn what_is_not_this_disks_is_never_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let ssd = dir.path().join("ssd");
        let real = dir.path().join("disk");
        fs::write(&real, vec![3; 1 << 20]).unwrap();
        let emulated = Disk::new("d", "null".into(), 1 << 20, dir.path().join("d"));
        let below = Disk { emulated: false, disk: Some(real.clone()), ..emulated.clone() };
        for (made, disk) in [(false, &emulated), (true, &emulated), (false, &below), (true, &below)] {
            let tier =
                |ready| state::Tier { ssd: ssd.clone(), made, ready, size_bytes: BYTES as u64, settings: Vec::new() };
            fs::write(&ssd, vec![7; BYTES]).unwrap();
            assert_eq!(take_off(disk, &tier(true), false).is_ok(), disk.emulated, "made: {made}");
            take_off(disk, &tier(true), true).unwrap();
            take_off(disk, &tier(false), false).unwrap();
            assert!(fs::read(&ssd).unwrap() == vec![7; BYTES], "made: {made}");
            // Another disk's tier.
            fs::write(&ssd, vec![0; BYTES]).unwrap();
            let other = FileDevice::open(&real, true).unwrap();
            tier::divide(&ssd, &other, "/another", geometry(BYTES as u64), true).unwrap();
            drop(other);
            let before = fs::read(&ssd).unwrap();
            assert_eq!(take_off(disk, &tier(true), false).is_ok(), disk.emulated, "made: {made}");
            take_off(disk, &tier(true), true).unwrap();
            assert!(fs::read(&ssd).unwrap() == before, "made: {made}");
        }
    }

    #[test]
    fn an_ssd_is_given_back_empty_also_if_that_was_interrupted() {
        let dir = tempfile::tempdir().unwrap();
        let (ssd, real) = (dir.path().join("ssd"), dir.path().join("disk"));
        fs::write(&real, vec![3; 1 << 20]).unwrap();
        fs::write(&ssd, vec![0; BYTES]).unwrap();
        let disk = below_tier(&real);
        let plan = state::Tier {
            ssd: ssd.clone(),
            made: false,
            ready: true,
            size_bytes: BYTES as u64,
            settings: vec!["rule=always".to_owned(), "unload=off".to_owned()],
        };
        let open = || -> Arc<FileDevice> { Arc::new(open_device(&ssd).unwrap()) };
        for interrupted in [false, true] {
            make(&disk, &plan).unwrap();
            let below = Arc::new(open_device(&real).unwrap());
            let config = Config { rule: sluice_tier::Rule::Always, ..Config::default() };
            let tier = sluice_tier::Tier::open(below, open(), config).unwrap();
            tier.write(&[9; 512], 4096, true).unwrap();
            drop(tier);
            if interrupted {
                // Written back, and not yet emptied.
                write_back(&real, open(), &plan).unwrap();
            }
            take_off(&disk, &plan, false).unwrap();
            assert_eq!(fs::read(&real).unwrap()[4096..][..513], [&[9; 512][..], &[3]].concat());
            assert!(fs::read(&ssd).unwrap()[..tier::START].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn an_ssd_is_known_until_it_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let (ssd, real) = (dir.path().join("ssd"), dir.path().join("disk"));
        fs::write(&real, vec![3; 1 << 20]).unwrap();
        fs::write(&ssd, vec![0; BYTES]).unwrap();
        let emulated = Disk::new("e", "null".into(), 1 << 20, dir.path().join("e"));
        fs::create_dir_all(emulated.below().parent().unwrap()).unwrap();
        fs::write(emulated.below(), vec![3; 1 << 20]).unwrap();
        // As it is noted when this begins.
        let plan = state::Tier {
            ssd: ssd.clone(),
            made: false,
            ready: false,
            size_bytes: BYTES as u64,
            settings: vec!["rule=always".to_owned(), "unload=off".to_owned()],
        };
        let open = || -> Arc<FileDevice> { Arc::new(open_device(&ssd).unwrap()) };
        for disk in [below_tier(&real), emulated] {
            for cut in [4096_u64, 8192, 512 << 10] {
                let at = ZEROED.iter().position(|part| part.contains(&cut)).unwrap();
                // What was written and not flushed need not become durable in order.
                for interrupted in [ZEROED[at].start..cut, cut..ZEROED[at].end] {
                    make(&disk, &plan).unwrap();
                    let below = Arc::new(open_device(&disk.below()).unwrap());
                    let config = Config { rule: sluice_tier::Rule::Always, ..Config::default() };
                    let tier = sluice_tier::Tier::open(below, open(), config).unwrap();
                    // The log is longer than what is zeroed of it.
                    tier.write(&vec![9; 768 << 10], 0, true).unwrap();
                    drop(tier);
                    if !disk.emulated {
                        write_back(&real, open(), &plan).unwrap();
                    }
                    for part in ZEROED[..at].iter().chain([&interrupted]) {
                        open().write(&vec![0; (part.end - part.start) as usize], part.start).unwrap();
                    }
                    take_off(&disk, &plan, false).unwrap();
                    let begins = &fs::read(&ssd).unwrap()[..tier::START];
                    assert!(begins.iter().all(|&byte| byte == 0), "{interrupted:?}, emulated: {}", disk.emulated);
                }
            }
        }
    }

    /// A mark that cannot be read may say that the SSD failed, and an SSD that did may have had what the disk has not.
    #[test]
    fn an_ssd_of_which_something_may_be_lost_is_kept_until_somebody_knows() {
        let dir = tempfile::tempdir().unwrap();
        let (ssd, real, mark) = (dir.path().join("ssd"), dir.path().join("disk"), dir.path().join("mark"));
        fs::write(&real, vec![3; 1 << 20]).unwrap();
        fs::write(&ssd, vec![0; BYTES]).unwrap();
        let disk = below_tier(&real);
        let settings = vec!["rule=always".to_owned(), format!("failure-mark={}", mark.display())];
        let plan = state::Tier { ssd: ssd.clone(), made: false, ready: true, size_bytes: BYTES as u64, settings };
        make(&disk, &plan).unwrap();
        // No file.
        fs::create_dir(&mark).unwrap();
        let before = fs::read(&ssd).unwrap();
        let error = format!("{:#}", take_off(&disk, &plan, false).unwrap_err());
        assert!(error.contains("--force") && error.contains("mark"), "{error}");
        assert!(fs::read(&ssd).unwrap() == before);
        take_off(&disk, &plan, true).unwrap();
        assert!(fs::read(&ssd).unwrap()[..tier::START].iter().all(|&byte| byte == 0));
    }

    /// Its first 64K are zeros.
    #[test]
    fn a_btrfs_is_no_empty_ssd() {
        let dir = tempfile::tempdir().unwrap();
        let (ssd, real) = (dir.path().join("ssd"), dir.path().join("disk"));
        fs::write(&real, vec![0; 1 << 20]).unwrap();
        let mut bytes = vec![0; BYTES];
        bytes[(64 << 10) + 64..][..8].copy_from_slice(b"_BHRfS_M");
        fs::write(&ssd, &bytes).unwrap();
        let device = FileDevice::open(&real, true).unwrap();
        let error = tier::divide(&ssd, &device, "/disk", geometry(BYTES as u64), false).unwrap_err();
        assert!(error.to_string().contains("is not empty"), "{error}");
        assert!(fs::read(&ssd).unwrap() == bytes);
    }
}
