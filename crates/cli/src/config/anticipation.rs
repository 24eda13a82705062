//! How long the devices may be kept idle for the streams they serve: what it costs them to move.

use std::time::Duration;

use anyhow::Context;
use sluice_adapt::device::Estimate;
use sluice_core::Anticipation;
use sluice_device::profile::Profile;
use sluice_device::profiler::Modelled;

use super::{DeviceKind, Profiling, Settings};

/// What a mount does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Anticipate {
    /// As the device's profile or its emulated model says, and where somebody said that the devices are hard disks.
    #[default]
    Auto,
    Off,
    /// As if it cost so long to move.
    Positioning(Duration),
}

/// What moving costs a hard disk of which no more is known, and what it transfers in a second.
const DISK: (u64, u64) = (8_000_000, 100_000_000);
/// A device that moves faster than this has no arm: there is nothing to anticipate.
const ARM_NS: u64 = 1_000_000;
/// Size of the requests by which moving is measured, and how many there are.
const BYTES: u64 = 64 << 10;
const REQUESTS: u64 = 64;

/// What `settings` mean for the engines.
///
/// # Errors
/// If the profile or the model cannot be read.
pub(super) fn of(settings: &Settings) -> anyhow::Result<Option<Anticipation>> {
    let (positioning_ns, bytes_per_s) = match settings.anticipation {
        Anticipate::Off => return Ok(None),
        Anticipate::Positioning(time) => (u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), DISK.1),
        // That is for what it serves to say.
        Anticipate::Auto if settings.profiling == Profiling::Auto && settings.device == DeviceKind::Auto => {
            return Ok(None);
        }
        Anticipate::Auto => match (&settings.prediction.profile, &settings.emulate) {
            (Some(path), _) => of_profile(&Profile::load(path).context("the device's profile cannot be read")?),
            (None, Some(model)) => of_model(model, settings.seed)?,
            (None, None) if settings.device == DeviceKind::Disk => DISK,
            (None, None) => return Ok(None),
        },
    };
    Ok((positioning_ns >= ARM_NS).then(|| Anticipation::for_device(positioning_ns, bytes_per_s)))
}

/// What moving costs the device, if syncs may be put off for each other on it (`scheduler.group_commit`). `disks`: the system says
/// that there is an arm to move.
///
/// # Errors
/// If the profile or the model cannot be read.
pub(super) fn of_syncs(settings: &Settings, disks: bool) -> anyhow::Result<Option<Duration>> {
    let positioning_ns = match settings.group_commit {
        Anticipate::Off => None,
        Anticipate::Positioning(time) => return Ok(Some(time)),
        Anticipate::Auto => {
            let auto = Settings { anticipation: Anticipate::Auto, ..settings.clone() };
            of(&auto)?.map(|known| known.positioning_ns).or(disks.then_some(DISK.0))
        }
    };
    Ok(positioning_ns.map(Duration::from_nanos))
}

/// For a device that was learned from what it serves.
pub(super) fn of_learned(learned: &Estimate) -> Option<Anticipation> {
    let positioning_ns = learned.positioning_ns.map_or(DISK.0, |ns| ns as u64);
    let bytes_per_s = learned.read_bytes_per_s.map_or(DISK.1, |rate| rate as u64);
    (positioning_ns >= ARM_NS).then(|| Anticipation::for_device(positioning_ns, bytes_per_s))
}

fn of_profile(profile: &Profile) -> (u64, u64) {
    let read = sluice_device::Op::Read;
    of_times(profile.random_ns(read, BYTES), profile.ttp_ns(read, BYTES))
}

/// From the times of a random and of a sequential read of [`BYTES`].
fn of_times(random_ns: u64, sequential_ns: u64) -> (u64, u64) {
    (random_ns.saturating_sub(sequential_ns), BYTES * 1_000_000_000 / sequential_ns.max(1))
}

/// As a profile of the emulated model would say, in virtual time.
fn of_model(name: &str, seed: u64) -> anyhow::Result<(u64, u64)> {
    let device = sluice_device::model(name, seed)?;
    let blocks = (device.capacity_bytes() / BYTES).max(1);
    let mut target = Modelled::new(device, u64::MAX);
    let mut mean = |place: &dyn Fn(u64) -> u64| {
        let times = (0..REQUESTS).map(|n| target.request(sluice_device::Op::Read, place(n) % blocks * BYTES, BYTES));
        times.sum::<u64>() / REQUESTS
    };
    let sequential_ns = mean(&|n| n);
    // Multiples of the golden ratio are spread evenly.
    let random_ns = mean(&|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16) % blocks);
    Ok(of_times(random_ns, sequential_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl Fn(&mut Settings)) -> Option<Anticipation> {
        let mut settings = Settings::default();
        change(&mut settings);
        of(&settings).unwrap()
    }

    #[test]
    fn only_devices_that_are_known_to_move_are_waited_for() {
        assert_eq!(with(|_| {}), None);
        assert_eq!(with(|s| s.device = DeviceKind::Flash), None);
        assert_eq!(with(|s| s.device = DeviceKind::Disk).map(|a| a.positioning_ns), Some(DISK.0));
        assert_eq!(with(|s| s.emulate = Some("ssd-sata".to_owned())), None);
        let emulated = with(|s| s.emulate = Some("hdd-7200".to_owned())).unwrap();
        assert!((5_000_000..15_000_000).contains(&emulated.positioning_ns), "{emulated:?}");
        let off = |s: &mut Settings| (s.emulate, s.anticipation) = (Some("hdd-7200".to_owned()), Anticipate::Off);
        assert_eq!(with(off), None);
        let given = with(|s| s.anticipation = Anticipate::Positioning(Duration::from_millis(3))).unwrap();
        assert_eq!((given.positioning_ns, given.near_bytes), (3_000_000, 300_000));
    }

    #[test]
    fn syncs_are_put_off_only_where_there_is_an_arm_whatever_reads_wait_for() {
        let with = |disks, change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            of_syncs(&settings, disks).unwrap()
        };
        let usual = Some(Duration::from_nanos(DISK.0));
        assert_eq!(with(false, |_| {}), None);
        assert_eq!(with(true, |_| {}), usual);
        assert_eq!(with(false, |s| s.emulate = Some("ssd-sata".to_owned())), None);
        assert!(with(true, |s| s.emulate = Some("hdd-7200".to_owned())).is_some());
        assert_eq!(with(true, |s| (s.device, s.anticipation) = (DeviceKind::Disk, Anticipate::Off)), usual);
        assert_eq!(with(true, |s| (s.device, s.group_commit) = (DeviceKind::Disk, Anticipate::Off)), None);
        let given = Duration::from_millis(1);
        assert_eq!(with(false, |s| s.group_commit = Anticipate::Positioning(Duration::from_millis(1))), Some(given));
    }
}
