//! Values as users write them, in the file and on the command line alike.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_notation::{parse_bytes, parse_duration, show_bytes};

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
