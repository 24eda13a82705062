//! Values as people write them in a scenario, and the reader that knows where each one stands.

use std::cell::RefCell;
use std::fmt;

use sluice_notation::{hint, parse_bytes, parse_duration, parse_rate, show_bytes};

use super::keys;

/// Something in a scenario that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// Where: the file, if there is one.
    pub file: Option<String>,
    /// The key, as in `servers.policy`; empty if it is about the whole.
    pub key: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl ScenarioError {
    pub(crate) fn new(key: impl Into<String>, reason: impl Into<String>) -> ScenarioError {
        ScenarioError { file: None, key: key.into(), reason: reason.into() }
    }

    /// The same, naming the file.
    #[must_use]
    pub fn in_file(mut self, file: impl Into<String>) -> ScenarioError {
        self.file.get_or_insert(file.into());
        self
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in self.file.iter().chain(Some(&self.key).filter(|key| !key.is_empty())) {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for ScenarioError {}

pub(crate) type Result<T> = std::result::Result<T, ScenarioError>;

/// A table of a scenario that is being read. Every key that is asked for is a known one; [`Reader::finish`] refuses others.
pub(crate) struct Reader<'a> {
    pub(super) table: &'a toml::Table,
    /// As users see it, with names or numbers of list entries.
    path: String,
    /// As in the list of keys.
    pattern: String,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(table: &'a toml::Table) -> Reader<'a> {
        Reader { table, path: String::new(), pattern: String::new(), asked: RefCell::new(Vec::new()) }
    }

    /// A table that is not there, so that all its keys have their defaults.
    pub(crate) fn absent(name: &str, empty: &'a toml::Table) -> Reader<'a> {
        Reader { path: name.to_owned(), pattern: name.to_owned(), ..Reader::new(empty) }
    }

    pub(crate) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(crate) fn error(&self, key: &str, reason: impl Into<String>) -> ScenarioError {
        ScenarioError::new(self.at(key), reason)
    }

    pub(crate) fn raw(&self, key: &'static str) -> Option<&'a toml::Value> {
        self.asked.borrow_mut().push(key);
        let pattern = if self.pattern.is_empty() { key.to_owned() } else { format!("{}.{key}", self.pattern) };
        debug_assert!(keys::find(&pattern).is_some(), "{pattern} is not in the list of keys");
        self.table.get(key)
    }

    fn read<T>(
        &self,
        key: &'static str,
        expected: &str,
        read: impl Fn(&toml::Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.raw(key) else { return Ok(None) };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.error(key, format!("is {value}, must be {expected}"))),
        }
    }

    pub(crate) fn text(&self, key: &'static str) -> Result<Option<String>> {
        self.read(key, "a text", |value| value.as_str().map(str::to_owned))
    }

    /// A text, or a whole number as one: a shell takes the quotes of `--set key="2"`.
    pub(crate) fn text_or_number(&self, key: &'static str) -> Result<Option<String>> {
        let number = |value: &toml::Value| value.as_integer().map(|number| number.to_string());
        self.read(key, "a text or a number", |value| value.as_str().map(str::to_owned).or_else(|| number(value)))
    }

    pub(crate) fn flag(&self, key: &'static str, default: bool) -> Result<bool> {
        Ok(self.read(key, "true or false", toml::Value::as_bool)?.unwrap_or(default))
    }

    pub(crate) fn count(&self, key: &'static str, default: u64, min: u64, max: u64) -> Result<u64> {
        let read = |value: &toml::Value| {
            let number = value.as_integer().and_then(|n| u64::try_from(n).ok());
            number.filter(|n| (min..=max).contains(n))
        };
        Ok(self.read(key, &format!("a number from {min} to {max}"), read)?.unwrap_or(default))
    }

    /// Any number of 64 bits. TOML's own go only half as far; larger ones are texts.
    pub(crate) fn number(&self, key: &'static str, default: u64) -> Result<u64> {
        let read = |value: &toml::Value| match value {
            toml::Value::String(text) => text.parse().ok(),
            value => value.as_integer().and_then(|n| u64::try_from(n).ok()),
        };
        let expected = "a number from 0 to 18446744073709551615 (in quotes if it is above 9223372036854775807)";
        Ok(self.read(key, expected, read)?.unwrap_or(default))
    }

    pub(crate) fn bytes(&self, key: &'static str, min: u64, max: u64) -> Result<Option<u64>> {
        let expected = format!("bytes from {} to {}, like 8192, \"8K\" or \"1G\"", show_bytes(min), show_bytes(max));
        self.read(key, &expected, |value| as_bytes(value).filter(|n| (min..=max).contains(n)))
    }

    /// One size, or a list of the least and the largest.
    pub(crate) fn size(&self, key: &'static str, max: u64) -> Result<Option<(u64, u64)>> {
        let fits = |n: &u64| (1..=max).contains(n);
        let read = |value: &toml::Value| match value.as_array() {
            None => as_bytes(value).filter(fits).map(|n| (n, n)),
            Some(two) if two.len() == 2 => {
                let (least, most) = (as_bytes(&two[0]).filter(fits)?, as_bytes(&two[1]).filter(fits)?);
                (least <= most).then_some((least, most))
            }
            Some(_) => None,
        };
        let expected =
            format!("bytes up to {}, like \"64K\", or least and largest, like [\"1K\", \"10K\"]", show_bytes(max));
        self.read(key, &expected, read)
    }

    pub(crate) fn duration(&self, key: &'static str, default: u64) -> Result<u64> {
        let read = |value: &toml::Value| {
            value
                .as_str()
                .and_then(parse_duration)
                .map(|time| time.as_nanos() as u64)
                .or((value.as_integer() == Some(0)).then_some(0))
        };
        Ok(self.read(key, "a duration like \"900us\", \"1.5ms\", \"2s\" or 0", read)?.unwrap_or(default))
    }

    /// Bytes per second.
    pub(crate) fn rate(&self, key: &'static str, default: u64) -> Result<u64> {
        let read =
            |value: &toml::Value| value.as_str().and_then(parse_rate).or((value.as_integer() == Some(0)).then_some(0));
        let expected = "a rate like \"1Gbit/s\" or \"125MB/s\", or 0 for no limit";
        Ok(self.read(key, expected, read)?.unwrap_or(default))
    }

    /// Millionths of 1.
    pub(crate) fn share(&self, key: &'static str, default: u64) -> Result<u64> {
        let read = |value: &toml::Value| {
            let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64))?;
            (0.0..=1.0).contains(&number).then(|| (number * 1e6).round() as u64)
        };
        Ok(self.read(key, "a number from 0 to 1", read)?.unwrap_or(default))
    }

    /// A number from 0 to `most`.
    pub(crate) fn factor(&self, key: &'static str, default: f64, most: f64) -> Result<f64> {
        let read = |value: &toml::Value| {
            let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64))?;
            (0.0..=most).contains(&number).then_some(number)
        };
        Ok(self.read(key, &format!("a number from 0 to {most}"), read)?.unwrap_or(default))
    }

    pub(crate) fn choice<T: Copy>(&self, key: &'static str, default: T, choices: &[(&'static str, T)]) -> Result<T> {
        let Some(value) = self.raw(key) else { return Ok(default) };
        let given = value.as_str().unwrap_or_default();
        if let Some(choice) = choices.iter().find(|choice| choice.0 == given) {
            return Ok(choice.1);
        }
        let names: Vec<&str> = choices.iter().map(|choice| choice.0).collect();
        let hint = hint(given, names.iter().copied());
        Err(self.error(key, format!("is {value}, must be one of {}{hint}", names.join(", "))))
    }

    /// The table of that name; empty if it is not there.
    pub(crate) fn table(&self, key: &'static str) -> Result<Option<Reader<'a>>> {
        let Some(value) = self.raw(key) else { return Ok(None) };
        let Some(table) = value.as_table() else { return Err(self.error(key, "must be a table")) };
        Ok(Some(self.below(key, self.at(key), table)))
    }

    /// The list of tables of that name.
    pub(crate) fn tables(&self, key: &'static str) -> Result<Vec<Reader<'a>>> {
        let Some(value) = self.raw(key) else { return Ok(Vec::new()) };
        let wrong = || self.error(key, format!("must be a list of tables, written [[{}]]", self.at(key)));
        let list = value.as_array().ok_or_else(wrong)?;
        let entry = |(number, value): (usize, &'a toml::Value)| {
            let table = value.as_table().ok_or_else(wrong)?;
            let name = table.get("name").and_then(toml::Value::as_str).map_or(number.to_string(), str::to_owned);
            Ok(self.below(key, format!("{}.{name}", self.at(key)), table))
        };
        list.iter().enumerate().map(entry).collect()
    }

    fn below(&self, key: &str, path: String, table: &'a toml::Table) -> Reader<'a> {
        let pattern = if self.pattern.is_empty() { key.to_owned() } else { format!("{}.{key}", self.pattern) };
        Reader { table, path, pattern, asked: RefCell::new(Vec::new()) }
    }

    /// Refuses keys that nobody has asked for.
    pub(crate) fn finish(self) -> Result<()> {
        self.check_all()
    }

    /// The same for a reader that is not one's own.
    pub(crate) fn check_all(&self) -> Result<()> {
        let asked = self.asked.borrow();
        match self.table.keys().find(|key| !asked.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                let hint = hint(key, asked.iter().copied());
                Err(self.error(key, format!("there is no such key{hint}")))
            }
        }
    }
}

fn as_bytes(value: &toml::Value) -> Option<u64> {
    value.as_integer().and_then(|n| u64::try_from(n).ok()).or_else(|| value.as_str().and_then(parse_bytes))
}
