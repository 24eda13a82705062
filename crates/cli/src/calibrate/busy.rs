//! Whether others use the device.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Busy for a larger share of the time than this, a device is in use.
const BUSY: f64 = 0.1;
/// Bytes of a sector in the kernel's statistics.
const SECTOR: f64 = 512.0;

/// A block device, and what it has done (Documentation/block/stat.rst).
pub(super) struct Watched {
    pub(super) name: String,
    stat: PathBuf,
    before: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Counts {
    sectors: u64,
    busy_ms: u64,
}

/// What others did meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Use {
    /// Share of the time in which the device was busy, 0 to 1.
    pub(super) share: f64,
    pub(super) bytes_per_s: f64,
}

impl Use {
    pub(super) fn is_busy(&self) -> bool {
        self.share > BUSY
    }
}

fn counts(text: &str) -> Option<Counts> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(Counts { sectors: fields.get(2)? + fields.get(6)?, busy_ms: *fields.get(9)? })
}

impl Watched {
    /// The device below a path, from now on; none if that is no block device: memory, a network.
    pub(super) fn of(path: &Path) -> Option<Watched> {
        let number = std::fs::metadata(path).ok()?.dev();
        let link = |number: u64| format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
        let device = Path::new(&link(number)).canonicalize().ok().or_else(|| {
            // Some file systems have a number of their own.
            let source = std::fs::metadata(source(path)?).ok()?;
            Path::new(&link(source.rdev())).canonicalize().ok()
        })?;
        // Others may use another partition of it.
        let device = if device.join("partition").exists() { device.parent()?.to_owned() } else { device };
        let stat = device.join("stat");
        let before = counts(&std::fs::read_to_string(&stat).ok()?)?;
        Some(Watched { name: device.file_name()?.to_string_lossy().into_owned(), stat, before })
    }

    /// What it has done since, which was so long ago.
    pub(super) fn so_far(&self, since: Duration) -> Option<Use> {
        let now = counts(&std::fs::read_to_string(&self.stat).ok()?)?;
        let seconds = since.as_secs_f64().max(1e-3);
        Some(Use {
            share: (now.busy_ms.saturating_sub(self.before.busy_ms) as f64 / 1e3 / seconds).min(1.0),
            bytes_per_s: now.sectors.saturating_sub(self.before.sectors) as f64 * SECTOR / seconds,
        })
    }
}

/// What is mounted where a path is.
fn source(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let mounts = sluice_storage::mounts::table().ok()?.into_iter().filter(|mount| path.starts_with(&mount.path));
    mounts.max_by_key(|mount| mount.path.as_os_str().len()).map(|mount| mount.source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_busy_by_the_time_it_was_at_work() {
        let dir = tempfile::tempdir().unwrap();
        let stat = dir.path().join("stat");
        let write = |busy_ms: u64, sectors: u64| {
            std::fs::write(&stat, format!("  10 0 {sectors} 5 7 0 100 9 0 {busy_ms} 44 0 0 0 0\n")).unwrap();
        };
        write(1_000, 2_000);
        let before = counts(&std::fs::read_to_string(&stat).unwrap()).unwrap();
        assert_eq!(before, Counts { sectors: 2_100, busy_ms: 1_000 });
        let watched = Watched { name: "sdx".into(), stat: stat.clone(), before };
        write(1_040, 2_000);
        assert!(!watched.so_far(Duration::from_secs(1)).unwrap().is_busy());
        write(1_500, 4_000);
        let used = watched.so_far(Duration::from_secs(2)).unwrap();
        assert!(used.is_busy());
        assert_eq!(used, Use { share: 0.25, bytes_per_s: 2_000.0 * SECTOR / 2.0 });
        std::fs::write(&stat, "x y").unwrap();
        assert_eq!(watched.so_far(Duration::from_secs(1)), None);
    }

    #[test]
    fn what_has_no_device_is_not_watched() {
        assert!(Watched::of(Path::new("/proc")).is_none() && Watched::of(Path::new("/none")).is_none());
    }
}
