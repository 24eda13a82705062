//! The volume file: what keeps a striped volume from being put together wrongly.
//!
//! Every target has a TOML file `.sluice-volume` at its top, written once when the volume is made, target 0's last. A
//! lock on each top directory, which the kernel drops when the process ends, keeps a second process out.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::place::{BEGINS, FOLLOWS};
use super::{FirstTarget, StripedOptions};

/// Names at the top of a target that start so belong to the volume, not to its users.
pub(super) const RESERVED: &str = ".sluice-";
const FILE: &str = ".sluice-volume";
/// Every file begins on target 0.
const FORMAT_ZERO: u32 = 1;
/// The permissions of files' parts tell where they begin (see [`place`](super::place)).
const FORMAT_HASH: u32 = 2;
/// Largest stripe in bytes.
const STRIPE_MAX: u64 = 1 << 40;

/// Why a striped volume cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StripedError {
    /// No directory given.
    #[error("a striped volume needs at least one target directory")]
    NoTargets,
    /// Stripe size out of range.
    #[error("a stripe of {0} bytes is out of range: give 1 byte to 1 TiB, best a multiple of 4096")]
    Stripe(u64),
    /// One directory given twice.
    #[error("{dir} is given twice (or under two names): every target needs a directory of its own")]
    Twice {
        /// The second mention.
        dir: PathBuf,
    },
    /// Another process has the volume open.
    #[error("{dir} is in use by another process: stop that one, or unmount its mount, first")]
    InUse {
        /// The target.
        dir: PathBuf,
    },
    /// Something else is in a directory that is to become a target.
    #[error("{dir} is not empty and not part of a striped volume: give an empty directory to make a new volume")]
    NotEmpty {
        /// The target.
        dir: PathBuf,
    },
    /// Some targets belong to a volume and this one does not.
    #[error(
        "{dir} has no {FILE} file, as targets of a striped volume have: is its disk mounted, and is it the right directory? \
         A target cannot be replaced, because its part of every file is nowhere else"
    )]
    Missing {
        /// The target.
        dir: PathBuf,
    },
    /// Target of another volume.
    #[error(
        "{dir} belongs to another volume ({found}; the first target's is {expected}): give the targets of one volume"
    )]
    Foreign {
        /// The target.
        dir: PathBuf,
        /// Its volume.
        found: String,
        /// The first target's volume.
        expected: String,
    },
    /// Targets in the wrong order.
    #[error(
        "{dir} is target {found} of its volume but was given as target {expected}: give the targets in their order"
    )]
    Order {
        /// The target.
        dir: PathBuf,
        /// Its place.
        found: u32,
        /// Where it was given.
        expected: u32,
    },
    /// Too few or too many targets.
    #[error("the volume in {dir} has {found} targets but {expected} were given: give all of them")]
    Count {
        /// The target.
        dir: PathBuf,
        /// Targets of the volume.
        found: u32,
        /// Targets given.
        expected: u32,
    },
    /// Another stripe size than the volume's.
    #[error(
        "the volume in {dir} has stripes of {found} bytes, not {expected}: the size is fixed when a volume is made"
    )]
    WrongStripe {
        /// The target.
        dir: PathBuf,
        /// The volume's, in bytes.
        found: u64,
        /// The one asked for, in bytes.
        expected: u64,
    },
    /// Files begin on other targets than asked for.
    #[error(
        "in the volume in {dir} the targets that files begin on are chosen by `{found}`, not `{expected}`: this is fixed \
         when a volume is made"
    )]
    WrongFirst {
        /// The first target.
        dir: PathBuf,
        /// The volume's rule.
        found: FirstTarget,
        /// The one asked for.
        expected: FirstTarget,
    },
    /// The file system does not keep the permissions that tell where a file begins.
    #[error(
        "the file system of {dir} does not keep permission bits, which tell where files begin: give another directory, or \
         let all files begin on the first target (`zero`)"
    )]
    NoModes {
        /// The target.
        dir: PathBuf,
    },
    /// Written by another version.
    #[error(
        "{file} has format {found}, this program knows {FORMAT_ZERO} and {FORMAT_HASH}: use the version that made the \
         volume, or a newer one"
    )]
    Format {
        /// The volume file.
        file: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Not a volume file.
    #[error("{file} is damaged ({reason}): restore it from another target's, which differs only in `index`")]
    Damaged {
        /// The volume file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The operating system refused.
    #[error("{path}: {error}")]
    Io {
        /// Of what.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// For use with `map_err`: adds the path to an error.
pub(super) fn at<E: Into<io::Error>>(path: &Path) -> impl FnOnce(E) -> StripedError {
    move |error| StripedError::Io { path: path.to_owned(), error: error.into() }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Volume {
    format: u32,
    pub(super) volume: String,
    pub(super) stripe_bytes: u64,
    targets: u32,
    index: u32,
}

impl Volume {
    pub(super) fn parse(text: &str, file: &Path) -> Result<Volume, StripedError> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let damaged = |reason: String| StripedError::Damaged { file: file.to_owned(), reason };
        // The format first: what else is in the file depends on it.
        let version: Version = toml::from_str(text).map_err(|error| damaged(error.message().to_owned()))?;
        if !(FORMAT_ZERO..=FORMAT_HASH).contains(&version.format) {
            return Err(StripedError::Format { file: file.to_owned(), found: version.format });
        }
        let volume: Volume = toml::from_str(text).map_err(|error| damaged(error.message().to_owned()))?;
        if !(1..=STRIPE_MAX).contains(&volume.stripe_bytes) || volume.index >= volume.targets {
            return Err(damaged("stripe_bytes or index out of range".to_owned()));
        }
        Ok(volume)
    }

    /// Which target the files of the volume begin on.
    pub(super) fn first(&self) -> FirstTarget {
        if self.format == FORMAT_HASH { FirstTarget::Hash } else { FirstTarget::Zero }
    }

    fn read(dir: &Path) -> Result<Option<Volume>, StripedError> {
        let file = dir.join(FILE);
        match fs::read(&file) {
            Ok(bytes) => Volume::parse(&String::from_utf8_lossy(&bytes), &file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(&file)(error)),
        }
    }

    /// Written beside and renamed: the file is there whole or not at all.
    fn write(&self, dir: &Path) -> Result<(), StripedError> {
        let (new, file) = (dir.join(".sluice-volume.new"), dir.join(FILE));
        let text = format!(
            "# A target of a striped volume. Do not change or move this file.\n{}",
            toml::to_string(self).expect("plain numbers and strings")
        );
        fs::write(&new, text).and_then(|()| File::open(&new)?.sync_all()).map_err(at(&new))?;
        fs::rename(&new, &file).map_err(at(&file))
    }
}

/// Checks that the directories are the targets of one volume, in order, making the volume if they are all empty.
/// Returns the volume and the locks that keep it from being opened twice. Unless `create` is set only opens.
pub(super) fn claim(
    dirs: &[PathBuf],
    create: bool,
    options: StripedOptions,
) -> Result<(Volume, Vec<File>), StripedError> {
    let stripe = options.stripe;
    if dirs.is_empty() {
        return Err(StripedError::NoTargets);
    }
    if let Some(stripe) = stripe.filter(|stripe| !(1..=STRIPE_MAX).contains(stripe)) {
        return Err(StripedError::Stripe(stripe));
    }
    let (mut seen, mut locks, mut volumes) = (Vec::new(), Vec::new(), Vec::new());
    for dir in dirs {
        let lock = File::open(dir).map_err(at(dir))?;
        let meta = lock.metadata().map_err(at(dir))?;
        if seen.contains(&(meta.dev(), meta.ino())) {
            return Err(StripedError::Twice { dir: dir.clone() });
        }
        seen.push((meta.dev(), meta.ino()));
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StripedError::InUse { dir: dir.clone() }),
            result => result.map_err(at(dir))?,
        }
        locks.push(lock);
        volumes.push(Volume::read(dir)?);
    }
    let targets = dirs.len() as u32;
    if volumes[0].is_none() {
        // Target 0's file is written last, so a volume without it is one whose making was cut short, or a mistake.
        for dir in dirs {
            if !empty(dir).map_err(at(dir))? {
                return Err(match volumes.iter().any(Option::is_some) {
                    true => StripedError::Missing { dir: dirs[0].clone() },
                    false => StripedError::NotEmpty { dir: dir.clone() },
                });
            }
        }
        if !create {
            return Err(StripedError::Missing { dir: dirs[0].clone() });
        }
        let stripe = stripe.unwrap_or(super::DEFAULT_STRIPE);
        let format = format_for(dirs, options.first, keeps_modes)?;
        let random = Path::new("/proc/sys/kernel/random/uuid");
        let id = fs::read_to_string(random).map_err(at(random))?.trim().to_owned();
        for (index, dir) in dirs.iter().enumerate().rev() {
            super::fault::step().map_err(at(dir))?;
            let volume = Volume { format, volume: id.clone(), stripe_bytes: stripe, targets, index: index as u32 };
            volume.write(dir)?;
            volumes[index] = Some(volume);
        }
    }
    let mut checked: Vec<Volume> = Vec::new();
    for (expected, (dir, volume)) in dirs.iter().zip(volumes).enumerate() {
        let (dir, expected) = (dir.clone(), expected as u32);
        let Some(volume) = volume else { return Err(StripedError::Missing { dir }) };
        let first = checked.first().unwrap_or(&volume);
        if volume.volume != first.volume {
            return Err(StripedError::Foreign { dir, found: volume.volume.clone(), expected: first.volume.clone() });
        }
        if volume.targets != targets {
            return Err(StripedError::Count { dir, found: volume.targets, expected: targets });
        }
        if volume.index != expected {
            return Err(StripedError::Order { dir, found: volume.index, expected });
        }
        let stripe = stripe.unwrap_or(first.stripe_bytes);
        if volume.stripe_bytes != stripe {
            return Err(StripedError::WrongStripe { dir, found: volume.stripe_bytes, expected: stripe });
        }
        if volume.format != first.format {
            let reason = format!("its format is {}, the first target's {}", volume.format, first.format);
            return Err(StripedError::Damaged { file: dir.join(FILE), reason });
        }
        // On one target there is no choice.
        if let Some(expected) = options.first.filter(|expected| targets > 1 && *expected != volume.first()) {
            return Err(StripedError::WrongFirst { dir, found: volume.first(), expected });
        }
        checked.push(volume);
    }
    Ok((checked.swap_remove(0), locks))
}

/// The format of a new volume: the oldest that does, so that earlier versions can open it. `keeps_modes` tells whether a
/// directory's files keep their permissions.
fn format_for(
    dirs: &[PathBuf],
    first: Option<FirstTarget>,
    keeps_modes: impl Fn(&Path) -> io::Result<bool>,
) -> Result<u32, StripedError> {
    if dirs.len() == 1 || first == Some(FirstTarget::Zero) {
        return Ok(FORMAT_ZERO);
    }
    for dir in &dirs[1..] {
        if keeps_modes(dir).map_err(at(dir))? {
            continue;
        }
        if first.is_some() {
            return Err(StripedError::NoModes { dir: dir.clone() });
        }
        tracing::warn!(
            target_dir = %dir.display(),
            "this file system does not keep permission bits: every file of the new volume begins on its first target, \
             which small files fill alone"
        );
        return Ok(FORMAT_ZERO);
    }
    Ok(FORMAT_HASH)
}

/// Whether files in a directory keep the permission bits that they are given.
fn keeps_modes(dir: &Path) -> io::Result<bool> {
    let path = dir.join(".sluice-modes");
    let file = File::create(&path)?;
    let kept = [BEGINS, FOLLOWS].into_iter().all(|mode| {
        let set = file.set_permissions(Permissions::from_mode(mode));
        set.and_then(|()| file.metadata()).is_ok_and(|found| found.mode() & 0o7777 == mode)
    });
    fs::remove_file(&path)?;
    Ok(kept)
}

/// Whether nothing but the volume's own files and a file system's `lost+found` is there.
fn empty(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name != "lost+found" && !name.as_encoded_bytes().starts_with(RESERVED.as_bytes()) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_permissions_files_begin_on_the_first_target_unless_that_was_excluded() {
        let dirs: Vec<PathBuf> = ["/a", "/b", "/c"].map(PathBuf::from).to_vec();
        let format = |without: &str, first| format_for(&dirs, first, |dir| Ok(dir != Path::new(without)));
        assert_eq!(format("", None).unwrap(), FORMAT_HASH);
        // Target 0's permissions are the users'.
        assert_eq!(format("/a", Some(FirstTarget::Hash)).unwrap(), FORMAT_HASH);
        assert_eq!(format("/c", None).unwrap(), FORMAT_ZERO);
        assert_eq!(format("/c", Some(FirstTarget::Zero)).unwrap(), FORMAT_ZERO);
        let refused = format("/c", Some(FirstTarget::Hash));
        assert!(matches!(refused, Err(StripedError::NoModes { dir }) if dir == Path::new("/c")));
        let unknown = format_for(&dirs, None, |_| Err(io::ErrorKind::PermissionDenied.into()));
        assert!(matches!(unknown, Err(StripedError::Io { .. })));
    }

    #[test]
    fn permissions_are_tried_out_and_nothing_is_left_of_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(keeps_modes(dir.path()).unwrap());
        // As a process left it that was killed.
        fs::write(dir.path().join(".sluice-modes"), "").unwrap();
        assert!(keeps_modes(dir.path()).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
