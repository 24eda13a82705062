//! Measured numbers for people: sizes in powers of 1,024 (KiB, MiB), rates in powers of 1,000 (MB/s, as data sheets and
//! networks have them), times in the unit that suits them; three significant digits, two where no more are known.
//!
//! What people type, and what a configuration holds, is exact and is [`show_bytes`](crate::show_bytes)'s. JSON has bytes and
//! seconds.

/// So many significant digits of a number that is not 0: its value rounded to them, and how many stand behind the point.
fn rounded(value: f64, digits: usize) -> (f64, usize) {
    let text = format!("{value:.*e}", digits - 1);
    let exponent = text.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok()).unwrap_or(0);
    (text.parse().unwrap_or(value), usize::try_from(digits as i32 - 1 - exponent).unwrap_or(0))
}

fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let (value, decimals) = rounded(value, digits);
    format!("{value:.decimals$}")
}

/// Three significant digits: `0.0123`, `1.23`, `123`; larger numbers are whole.
#[must_use]
pub fn show_number(value: f64) -> String {
    if value.abs() < 1e3 { significant(value, 3) } else { format!("{value:.0}") }
}

/// A size: `512 B`, `64 KiB`, `1.53 MiB`.
#[must_use]
pub fn show_size(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value.abs() >= 1023.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    // What is whole is exact, and says so.
    let number = if value.fract() == 0.0 { format!("{value:.0}") } else { show_number(value) };
    format!("{number} {}", UNITS[unit])
}

/// Bytes a second: `860 KB/s`, `12.3 MB/s`, in powers of 1,000.
#[must_use]
pub fn show_rate(bytes_per_s: f64) -> String {
    const UNITS: [&str; 5] = ["B/s", "KB/s", "MB/s", "GB/s", "TB/s"];
    let (mut value, mut unit) = (bytes_per_s, 0);
    while value.abs() >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1e3, unit + 1);
    }
    format!("{} {}", show_number(value), UNITS[unit])
}

fn time(ns: f64, digits: usize) -> String {
    const UNITS: [(f64, &str); 5] = [(1e3, "ns"), (1e6, "us"), (1e9, "ms"), (120e9, "s"), (7_200e9, "min")];
    if ns == 0.0 || !ns.is_finite() {
        return format!("{ns} s");
    }
    // Rounded first: 999.9 us are 1.00 ms.
    let (ns, _) = rounded(ns, digits);
    let found = UNITS.iter().position(|(end, _)| ns.abs() < *end);
    let (scale, unit) = match found {
        Some(at @ 0..=3) => ([1.0, 1e3, 1e6, 1e9][at], UNITS[at].1),
        Some(_) => (60e9, "min"),
        None => (3_600e9, "h"),
    };
    format!("{} {unit}", significant(ns / scale, digits))
}

/// A time: `870 ns`, `1.53 ms`, `12.3 s`, `2.00 h`.
#[must_use]
pub fn show_time(ns: f64) -> String {
    time(ns, 3)
}

/// A time of which two digits are known, like a percentile read from buckets that are up to 12.5 % wide: `1.5 ms`, `13 s`.
#[must_use]
pub fn show_time_roughly(ns: f64) -> String {
    time(ns, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let cases =
            [(0.0, "0"), (0.012345, "0.0123"), (9.996, "10.0"), (12.34, "12.3"), (999.6, "1000"), (-1.5, "-1.50")];
        for (value, text) in cases {
            assert_eq!(show_number(value), text);
        }
        assert_eq!(show_number(123_456.7), "123457");
    }

    #[test]
    fn sizes_are_binary_and_exact_ones_say_so() {
        let cases: [(f64, &str); 8] = [
            (0.0, "0 B"),
            (1023.0, "1023 B"),
            (1023.9, "1.00 KiB"),
            (65_536.0, "64 KiB"),
            (1_600_000.0, "1.53 MiB"),
            (20.0 * 1_073_741_824.0, "20 GiB"),
            (1_048_575.0, "1.00 MiB"),
            (1e18, "888 PiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(show_size(bytes), text);
        }
    }

    #[test]
    fn rates_count_in_thousands() {
        for (rate, text) in [(0.0, "0 B/s"), (999.9, "1.00 KB/s"), (12_345_678.0, "12.3 MB/s"), (2e9, "2.00 GB/s")] {
            assert_eq!(show_rate(rate), text);
        }
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let cases = [
            (0.0, "0 s"),
            (870.0, "870 ns"),
            (12_340.0, "12.3 us"),
            (999_900.0, "1.00 ms"),
            (1e9, "1.00 s"),
            (90e9, "90.0 s"),
            (300e9, "5.00 min"),
            (7_200e9, "2.00 h"),
        ];
        for (ns, text) in cases {
            assert_eq!(show_time(ns), text);
        }
        for (ns, text) in
            [(2_013_265_900.0, "2.0 s"), (13_421_772.0, "13 ms"), (134e6, "130 ms"), (999_000.0, "1.0 ms")]
        {
            assert_eq!(show_time_roughly(ns), text);
        }
    }
}
