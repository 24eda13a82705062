//! `sluice tier`: SSDs as the longer memory of a disk's scheduler.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use sluice_notation::{counted, parse_bytes, show_bytes, show_size};
use sluice_tier::{Check, Config, Device, FileDevice, Geometry, OpenError, SETTINGS, Tier};

use crate::output;

/// Prepares an SSD that takes a disk's random writes, looks at it, empties it
///
/// The disk with the SSD before it is a block device that nbdkit serves: nbdkit sluice disk=DISK ssd=SSD. These
/// commands are for when it does not.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Divides an SSD (a file or block device) for use with a disk; what is on it is lost
    Create {
        /// The SSD: a block device, a file, or the name of a file that is made
        ssd: PathBuf,
        /// The disk: a file or block device
        #[arg(long)]
        disk: PathBuf,
        /// Size of the log that takes writes
        #[arg(long, value_name = "SIZE", default_value = "8G")]
        queue: String,
        /// Size of the area that slots are prefetched into; 0: none
        #[arg(long, value_name = "SIZE", default_value = "8G")]
        area: String,
        /// Size of a slot, a multiple of 4K
        #[arg(long, value_name = "SIZE", default_value = "4M")]
        slot: String,
        /// Size of the log's segments, a multiple of 512
        #[arg(long, value_name = "SIZE", default_value = "4M")]
        segment: String,
        /// Also over something that is there
        #[arg(long)]
        force: bool,
    },
    /// Reads all of the log, compares checksums, and tells what is in it; changes nothing
    Check {
        /// The SSD
        ssd: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Writes all that only the SSD has back to the disk
    Flush {
        #[command(flatten)]
        pair: Pair,
    },
    /// The same, and takes the tier off the SSD
    Detach {
        #[command(flatten)]
        pair: Pair,
    },
    /// Lists what can be set where a tier is used
    Settings,
}

/// An SSD and its disk.
#[derive(clap::Args)]
pub(crate) struct Pair {
    /// The SSD
    ssd: PathBuf,
    /// The disk [default: the one that the tier was made for]
    #[arg(long)]
    disk: Option<PathBuf>,
    /// Where the failure of the SSD was noted [default: for a disk that is a file DISK.tier-failed]
    #[arg(long, value_name = "FILE")]
    failure_mark: Option<PathBuf>,
    /// Use what is left where records that were durable are missing: what they held is what was there before
    #[arg(long)]
    salvage: bool,
}

/// Does it.
///
/// # Errors
/// If something is no tier, is in use, or fails.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create { ssd, disk, queue, area, slot, segment, force } => {
            let size = |option: &str, text: &str, expected: &str| {
                parse_bytes(text).with_context(|| format!("{option} {text}: cannot be used; expected {expected}"))
            };
            let part = |option: &str, text: &str, expected: &str| {
                let bytes = u32::try_from(size(option, text, expected)?);
                bytes.with_context(|| format!("{option} {text}: cannot be used; expected {expected}"))
            };
            let geometry = Geometry {
                queue_bytes: size("--queue", queue, "at least four segments, like 8G")?,
                area_bytes: size("--area", area, "a size like 8G, or 0")?,
                slot_bytes: part("--slot", slot, "a multiple of 4K up to 1G, like 4M")?,
                segment_bytes: part("--segment", segment, "a multiple of 512 from 4K to 1G, like 4M")?,
            };
            let name = sluice_tier::disk_name_of(disk).with_context(|| format!("--disk {}", disk.display()))?;
            let name = name.to_str().with_context(|| format!("--disk {}: expected a name in UTF-8", disk.display()))?;
            divide(ssd, &FileDevice::open(disk, true)?, name, geometry, *force)?;
            output::say(format_args!(
                "{}: {} for writes, {} for what is read, for {name}",
                ssd.display(),
                show_bytes(geometry.queue_bytes),
                show_bytes(geometry.area_bytes)
            ));
        }
        Command::Check { ssd, json } => return check(ssd, *json),
        Command::Flush { pair } => {
            let tier = open(pair)?;
            let result = tier.write_all_back();
            told(&tier, result)?;
            tier.end()?;
        }
        Command::Detach { pair } => {
            let tier = open(pair)?;
            let result = tier.detach();
            told(&tier, result)?;
        }
        Command::Settings => {
            for setting in SETTINGS {
                output::line(format_args!("{:<16} {} [default: {}]", setting.key, setting.help, setting.default));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Divides an SSD, which is made if it is not there, for use with a disk of this name.
///
/// # Errors
/// If something is on it that may be needed and not `force`, and what the system says.
pub(crate) fn divide(ssd: &Path, disk: &dyn Device, name: &str, geometry: Geometry, force: bool) -> anyhow::Result<()> {
    let made = !ssd.exists();
    let device = if made {
        // Superblocks, and the area at a multiple of 4K.
        let bytes = geometry.queue_bytes.saturating_add(geometry.area_bytes).saturating_add(16 << 10);
        FileDevice::create(ssd, bytes)?
    } else {
        let device = FileDevice::open(ssd, true)?;
        if !force {
            refuse(ssd, &device)?;
        }
        device
    };
    let result = Tier::create(disk, name, &device, geometry);
    if result.is_err() && made {
        let _ = std::fs::remove_file(ssd);
    }
    Ok(result?)
}

/// What has to be zeros for an SSD to count as empty. More than 64K: there btrfs and others have their first block.
pub(crate) const START: usize = 1 << 20;

/// Nothing is where file systems, tables of partitions and the like begin.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn begins_empty(device: &dyn Device) -> io::Result<bool> {
    let mut start = vec![0; device.size().min(START as u64) as usize];
    device.read(&mut start, 0)?;
    Ok(start.iter().all(|&byte| byte == 0))
}

/// If what is there may be needed.
fn refuse(path: &Path, device: &FileDevice) -> anyhow::Result<()> {
    match sluice_tier::check(device) {
        Ok(found) if found.detached => Ok(()),
        Ok(found) => bail!(
            "{}: holds a tier of {} with {} that the disk may not have; `sluice tier detach` empties it, `sluice tier create --force` loses that",
            path.display(),
            found.disk,
            counted(found.log.dirty_bytes, "byte")
        ),
        Err(OpenError::NoTier(_)) => match begins_empty(device)? {
            true => Ok(()),
            false => bail!("{}: is not empty; `sluice tier create --force` uses it all the same", path.display()),
        },
        Err(error) => bail!("{error}; `sluice tier create --force` makes a new one"),
    }
}

fn open(pair: &Pair) -> anyhow::Result<Tier> {
    let ssd = FileDevice::open(&pair.ssd, true)?;
    let made_for = sluice_tier::check(&ssd)?.disk;
    // Who names another one knows that it has another name now.
    let path = pair.disk.as_deref().unwrap_or(Path::new(&made_for));
    let disk = FileDevice::open(path, true)?;
    // What an SSD that failed still holds is older than what the disk has.
    let failure_mark = match &pair.failure_mark {
        Some(mark) => Some(mark.clone()),
        None => sluice_tier::failure_mark_of(path)?,
    };
    let config = Config { salvage: pair.salvage, prefetch: false, failure_mark, ..Config::default() };
    Ok(Tier::open(Arc::new(disk), Arc::new(ssd), config)?)
}

fn told(tier: &Tier, result: io::Result<()>) -> anyhow::Result<()> {
    let status = tier.status();
    output::say(format_args!("{} written back", show_size(status.counts.written_back_bytes as f64)));
    if let Some((first, last)) = status.recovery.missing {
        output::tell(format_args!("records {first} to {last} were missing: what they held is as it was before them"));
    }
    result?;
    if status.lost_bytes > 0 {
        bail!("{} on the SSD cannot be read, and were not written back", counted(status.lost_bytes, "byte"));
    }
    Ok(())
}

fn check(ssd: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let found: Check = sluice_tier::check(&FileDevice::open(ssd, false)?)?;
    let log = &found.log;
    let damaged = log.lost_bytes > 0 || log.missing.is_some();
    if json {
        output::pretty_json(&found)?;
    } else {
        output::line(format_args!("disk        {} ({})", found.disk, show_bytes(found.disk_bytes)));
        let format = format_args!("format {}, opened {}", found.format, counted(found.epoch, "time"));
        output::line(format_args!(
            "tier        {format}, {}",
            if found.detached { "everything written back" } else { "in use" }
        ));
        let (segments, records) = (counted(log.segments.into(), "segment"), counted(log.records, "record"));
        output::line(format_args!(
            "log         {} with {segments} and {records} in use",
            show_bytes(found.queue_bytes)
        ));
        output::line(format_args!("            {} that the disk may not have", counted(log.dirty_bytes, "byte")));
        output::line(format_args!("area        {}", show_bytes(found.area_bytes)));
        if log.torn {
            output::line("            the last record was not finished; nothing waited for it");
        }
        if let Some((first, last)) = log.missing {
            output::line(format_args!("DAMAGED     records {first} to {last} were durable and cannot be read"));
        }
        if log.lost_bytes > 0 {
            output::line(format_args!("DAMAGED     {} do not match their checksums", counted(log.lost_bytes, "byte")));
        }
    }
    Ok(if damaged { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
