//! Sizes, times and rates.

use std::time::Duration;

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..digits], text[digits..].trim())
}

/// `65536`, `64K`, `1M`, `2GiB`: powers of 1,024.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The shortest way to write a size that [`parse_bytes`] reads back.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.iter().find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(shift, name)| format!("{}{name}", bytes >> shift))
}

/// `500ms`, `0.25s`, `2min`; a number alone only if it is 0, since its unit would be a guess.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text);
    let number: f64 = number.parse().ok()?;
    let unit_ns = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" | "m" => 60e9,
        "" if number == 0.0 => 0.0,
        _ => return None,
    };
    let ns = number * unit_ns;
    // Beyond 30 years nobody means it.
    (ns <= 1e18).then(|| Duration::from_nanos(ns.round() as u64))
}

/// `1Gbit/s`, `125MB/s` (powers of 1,000) in bytes per second.
#[must_use]
pub fn parse_rate(text: &str) -> Option<u64> {
    let (number, unit) = split(text.trim().trim_end_matches("/s"));
    let number: f64 = number.parse().ok()?;
    let unit = match unit {
        "Kbit" => 125.0,
        "Mbit" => 125e3,
        "Gbit" => 125e6,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    let rate = number * unit;
    (1.0..=1e15).contains(&rate).then(|| rate.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_read_as_people_write_them() {
        let sizes = [("0", 0), ("65536", 65536), ("64K", 65536), ("64 KiB", 65536), ("1M", 1 << 20), ("2GB", 2 << 30)];
        for (text, bytes) in sizes {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1.5M", "64X", "99999999999999999999", "99999999999T", "é"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        for bytes in [0, 1, 1023, 1024, 1 << 20, 3 << 30, u64::MAX] {
            assert_eq!(parse_bytes(&show_bytes(bytes)), Some(bytes));
        }
        let durations =
            [("0", 0), ("500ms", 500_000_000), ("0.25s", 250_000_000), ("900 us", 900_000), ("1min", 60_000_000_000)];
        for (text, ns) in durations {
            assert_eq!(parse_duration(text), Some(Duration::from_nanos(ns)), "{text}");
        }
        for text in ["", "5", "ms", "-1s", "1h", "1e9s", "1..2s", "9999999999999s", "é"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn rates_count_in_thousands() {
        assert_eq!(parse_rate("1Gbit/s"), Some(125_000_000));
        assert_eq!(parse_rate("12.5MB/s"), Some(12_500_000));
        assert_eq!(parse_rate("1"), None);
    }
}
