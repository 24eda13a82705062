//! Who, where and when of a profile.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use sluice_device::profile::Profile;

use crate::control;

/// Fills in what only the caller of the profiler knows.
pub(super) fn fill(profile: &mut Profile, device: &str, emulated: bool) {
    profile.device = device.to_owned();
    profile.emulated = emulated;
    profile.host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    profile.date = rfc3339(since.as_secs());
}

/// Whether the path lies in a mount that says that its devices are emulated.
pub fn is_emulated(path: &Path) -> bool {
    let Ok(path) = control::canonical(path) else { return false };
    let served = path.ancestors().find_map(|dir| control::connect(dir).ok().flatten());
    served.is_some_and(|mut client| client.status().is_ok_and(|status| status.emulated))
}

/// `2026-01-31T12:00:00Z` of seconds since 1970 (H. Hinnant, *chrono-compatible low-level date algorithms*).
fn rfc3339(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
