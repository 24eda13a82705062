//! Values as users write them, in the file and on the command line alike.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// One value from a user.
pub(crate) struct Given<'a> {
    /// What was written; more than one entry only for a list.
    pub(crate) texts: Vec<String>,
    /// Relative paths count from here.
    pub(crate) base: &'a Path,
}

/// What would have been right.
pub(crate) type Expected = String;

impl Given<'_> {
    pub(crate) fn text(&self) -> Result<&str, Expected> {
        match self.texts.as_slice() {
            [one] if !one.is_empty() => Ok(one),
            _ => Err("one text".to_owned()),
        }
    }

    pub(crate) fn path(&self) -> Result<PathBuf, Expected> {
        self.text().map(|text| self.base.join(text)).map_err(|_| "a path".to_owned())
    }

    pub(crate) fn paths(&self) -> Result<Vec<PathBuf>, Expected> {
        let any_empty = self.texts.iter().any(String::is_empty);
        if any_empty {
            Err("a list of paths".to_owned())
        } else {
            Ok(self.texts.iter().map(|t| self.base.join(t)).collect())
        }
    }

    pub(crate) fn names(&self) -> Result<Vec<String>, Expected> {
        let fits = |name: &String| !name.is_empty() && !name.contains(['=', '\0']);
        if self.texts.iter().all(fits) {
            Ok(self.texts.clone())
        } else {
            Err("a list of names of environment variables".to_owned())
        }
    }

    pub(crate) fn flag(&self) -> Result<bool, Expected> {
        self.text().ok().and_then(|text| text.parse().ok()).ok_or_else(|| "true or false".to_owned())
    }

    pub(crate) fn count(&self, min: u64, max: u64) -> Result<u64, Expected> {
        let number = self.text().ok().and_then(|text| text.parse().ok());
        number.filter(|n| (min..=max).contains(n)).ok_or_else(|| format!("a number from {min} to {max}"))
    }

    pub(crate) fn bytes(&self, min: u64, max: u64) -> Result<u64, Expected> {
        let number = self.text().ok().and_then(parse_bytes);
        number.filter(|n| (min..=max).contains(n)).ok_or_else(|| {
            let (min, max) = (show_bytes(min), show_bytes(max));
            format!("bytes from {min} to {max}, like 65536, 64K or 1M (powers of 1,024)")
        })
    }

    pub(crate) fn duration(&self) -> Result<Duration, Expected> {
        let parsed = self.text().ok().and_then(parse_duration);
        parsed.ok_or_else(|| "a duration like 500ms, 1s or 0 (units: ns, us, ms, s, min)".to_owned())
    }

    pub(crate) fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, Expected> {
        let text = self.text().unwrap_or_default();
        choices.iter().find(|choice| choice.0 == text).map(|choice| choice.1).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|choice| choice.0).collect();
            format!("one of {}", names.join(", "))
        })
    }
}

/// `65536`, `64K`, `1M`, `2GiB`: powers of 1,024.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].trim().trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The shortest way to write it that [`parse_bytes`] reads back.
pub(crate) fn show_bytes(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.iter().find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(shift, name)| format!("{}{name}", bytes >> shift))
}

/// `500ms`, `0.25s`, `2min`; a number alone only if it is 0, since its unit would be a guess.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let unit_ns = match text[digits..].trim() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "" if number == 0.0 => 0.0,
        _ => return None,
    };
    let ns = number * unit_ns;
    // Beyond 100 years nobody means it.
    (ns <= 3.2e18).then(|| Duration::from_nanos(ns.round() as u64))
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
}
