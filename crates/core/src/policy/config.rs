//! Names and parameters of algorithms as users write them: `sjf`, or `mlf` with `wait_time = 900us`.

use super::{PolicyInfo, table};
use crate::request::AppId;
use std::fmt;

/// What a parameter measures, and so how it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A number of bytes: `65536`, `64K`, `1M` (powers of 1,024).
    Bytes,
    /// A duration: `900us`, `1ms`, `0.25s`, or 0. Other numbers need their unit (ns, us, ms, s).
    Duration,
    /// `true` or `false`.
    Bool,
    /// A number.
    Count,
    /// A number for each application: written `KEY.APP = number`, and plain `KEY = number` for all others.
    PerApp,
}

/// A parameter of an algorithm.
#[derive(Debug)]
pub struct ParamInfo {
    /// The name users write.
    pub key: &'static str,
    /// What it measures.
    pub kind: Kind,
    /// Value if not given: bytes, nanoseconds, 0 or 1, or a number.
    pub default: u64,
    /// Least allowed value.
    pub min: u64,
    /// Largest allowed value.
    pub max: u64,
    /// One line for people.
    pub help: &'static str,
}

impl ParamInfo {
    /// The default, as users write it.
    #[must_use]
    pub fn show_default(&self) -> String {
        show_value(self.kind, self.default)
    }

    /// The least and the largest allowed value, as users write them.
    #[must_use]
    pub fn range(&self) -> (String, String) {
        (show_value(self.kind, self.min), show_value(self.kind, self.max))
    }
}

/// An algorithm and its parameters, all of them valid.
#[derive(Clone)]
pub struct PolicyConfig {
    info: &'static PolicyInfo,
    values: Vec<u64>,
    per_app: Vec<(usize, AppId, u64)>,
}

/// A configuration that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// No algorithm has this name.
    UnknownPolicy {
        /// What was given.
        name: String,
    },
    /// The algorithm has no such parameter.
    UnknownParam {
        /// The algorithm.
        policy: &'static str,
        /// What was given.
        key: String,
    },
    /// The value cannot be read, or is out of range.
    BadValue {
        /// The parameter.
        key: String,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: String,
    },
}

impl ConfigError {
    /// The names that would have been right here (to suggest the nearest one); empty for a bad value.
    #[must_use]
    pub fn known(&self) -> Vec<&'static str> {
        match self {
            ConfigError::UnknownPolicy { .. } => table().iter().map(|p| p.name).collect(),
            ConfigError::UnknownParam { policy, .. } => {
                let info = table().iter().find(|p| p.name == *policy);
                info.map_or_else(Vec::new, |p| p.params.iter().map(|p| p.key).collect())
            }
            ConfigError::BadValue { .. } => Vec::new(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::UnknownPolicy { name } => {
                write!(f, "no algorithm is called {name:?}; there are {}", self.known().join(", "))
            }
            ConfigError::UnknownParam { policy, key } if self.known().is_empty() => {
                write!(f, "{policy} has no parameters, so it cannot take {key:?}")
            }
            ConfigError::UnknownParam { policy, key } => {
                write!(f, "{policy} has no parameter {key:?}; it has {}", self.known().join(", "))
            }
            ConfigError::BadValue { key, value, expected } => {
                write!(f, "{key} = {value:?} is not usable: expected {expected}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl PolicyConfig {
    /// The algorithm called `name`, with its default parameters.
    ///
    /// # Errors
    /// [`ConfigError::UnknownPolicy`].
    pub fn parse(name: &str) -> Result<PolicyConfig, ConfigError> {
        let info = table().iter().find(|p| p.name == name);
        let info = *info.ok_or_else(|| ConfigError::UnknownPolicy { name: name.to_owned() })?;
        Ok(PolicyConfig { info, values: info.params.iter().map(|p| p.default).collect(), per_app: Vec::new() })
    }

    /// Sets one parameter.
    ///
    /// # Errors
    /// If the algorithm does not have it, or the value cannot be read or is out of range.
    pub fn with(mut self, key: &str, value: &str) -> Result<PolicyConfig, ConfigError> {
        let unknown = || ConfigError::UnknownParam { policy: self.info.name, key: key.to_owned() };
        if let Some(at) = self.info.params.iter().position(|p| p.key == key) {
            self.values[at] = read_value(key, &self.info.params[at], value)?;
            return Ok(self);
        }
        let (base, app) = key.split_once('.').ok_or_else(unknown)?;
        let at = self.info.params.iter().position(|p| p.key == base && p.kind == Kind::PerApp).ok_or_else(unknown)?;
        let app = app.parse().map(AppId).map_err(|_| ConfigError::BadValue {
            key: key.to_owned(),
            value: app.to_owned(),
            expected: format!("{base}.N with N the number of an application"),
        })?;
        let number = read_value(key, &self.info.params[at], value)?;
        self.per_app.retain(|&(p, a, _)| (p, a) != (at, app));
        self.per_app.push((at, app, number));
        Ok(self)
    }

    /// The row of the table.
    #[must_use]
    pub fn info(&self) -> &'static PolicyInfo {
        self.info
    }

    /// The algorithm's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.info.name
    }

    /// A parameter in its own unit: bytes, nanoseconds, a number, 0 or 1; `None` if the algorithm does not have it.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<u64> {
        self.info.params.iter().position(|param| param.key == key).map(|at| self.values[at])
    }

    /// All parameters as users write them.
    #[must_use]
    pub fn describe(&self) -> Vec<(String, String)> {
        let show = |at: usize, value: u64| show_value(self.info.params[at].kind, value);
        let plain = self.values.iter().enumerate().map(|(at, &v)| (self.info.params[at].key.to_owned(), show(at, v)));
        let apps =
            self.per_app.iter().map(|&(at, app, v)| (format!("{}.{}", self.info.params[at].key, app.0), show(at, v)));
        plain.chain(apps).collect()
    }

    pub(crate) fn params(&self) -> Params<'_> {
        Params(self)
    }
}

impl fmt::Debug for PolicyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info.name)?;
        for (key, value) in self.describe() {
            write!(f, " {key}={value}")?;
        }
        Ok(())
    }
}

impl PartialEq for PolicyConfig {
    fn eq(&self, other: &PolicyConfig) -> bool {
        self.info.name == other.info.name && self.values == other.values && self.per_app == other.per_app
    }
}

/// Parameter values for a policy under construction.
#[derive(Debug)]
pub struct Params<'a>(&'a PolicyConfig);

impl Params<'_> {
    /// Value of the parameter `key` of this policy's own table row.
    ///
    /// # Panics
    /// If the row has no such parameter: a mistake in the policy's own file.
    #[must_use]
    pub fn get(&self, key: &str) -> u64 {
        self.0.values[self.index(key)]
    }

    /// A [`Kind::Bool`] parameter.
    #[must_use]
    pub fn flag(&self, key: &str) -> bool {
        self.get(key) != 0
    }

    /// The values given for single applications.
    pub fn per_app(&self, key: &str) -> impl Iterator<Item = (AppId, u64)> + '_ {
        let at = self.index(key);
        self.0.per_app.iter().filter(move |(p, ..)| *p == at).map(|&(_, app, value)| (app, value))
    }

    fn index(&self, key: &str) -> usize {
        let at = self.0.info.params.iter().position(|p| p.key == key);
        at.unwrap_or_else(|| panic!("{} has no parameter {key}", self.0.info.name))
    }
}

/// Units of a kind, the largest first.
fn units(kind: Kind) -> &'static [(&'static str, u64)] {
    match kind {
        Kind::Bytes => &[("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)],
        Kind::Duration => &[("ms", 1_000_000), ("us", 1_000), ("ns", 1), ("s", 1_000_000_000)],
        Kind::Bool | Kind::Count | Kind::PerApp => &[],
    }
}

fn read_value(key: &str, info: &ParamInfo, text: &str) -> Result<u64, ConfigError> {
    let bad = || ConfigError::BadValue { key: key.to_owned(), value: text.to_owned(), expected: expected(info) };
    let text_ = text.trim();
    if info.kind == Kind::Bool {
        return text_.parse::<bool>().map(u64::from).map_err(|_| bad());
    }
    let plain = text_.parse::<f64>().is_ok_and(|number| number != 0.0);
    if info.kind == Kind::Duration && plain {
        let expected = format!("{}; write the unit: {text_}us or {text_}ms", expected(info));
        return Err(ConfigError::BadValue { key: key.to_owned(), value: text.to_owned(), expected });
    }
    let (number, unit) = match units(info.kind).iter().find(|(u, _)| text_.ends_with(u)) {
        Some((suffix, unit)) => (text_.strip_suffix(suffix).unwrap_or(text_).trim_end(), *unit),
        None => (text_, 1),
    };
    let value = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(unit).ok_or_else(bad)?,
        Err(_) => {
            let real: f64 = number.parse().map_err(|_| bad())?;
            let scaled = real * unit as f64;
            // 8.2 is none of the numbers that there are: a little less.
            let whole = scaled.round();
            if !(0.0..9.0e18).contains(&scaled) || (scaled - whole).abs() > 1e-12 * whole {
                return Err(bad());
            }
            whole as u64
        }
    };
    if (info.min..=info.max).contains(&value) { Ok(value) } else { Err(bad()) }
}

fn expected(info: &ParamInfo) -> String {
    let (min, max) = (show_value(info.kind, info.min), show_value(info.kind, info.max));
    match info.kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::Bytes => format!("bytes from {min} to {max}, like 64K or 1M"),
        Kind::Duration => format!("a duration from {min} to {max}, like 900us or 1ms"),
        Kind::Count | Kind::PerApp => format!("a number from {min} to {max}"),
    }
}

fn show_value(kind: Kind, value: u64) -> String {
    if kind == Kind::Bool {
        return (value != 0).to_string();
    }
    let mut units: Vec<_> = units(kind).to_vec();
    units.sort_by_key(|(_, unit)| std::cmp::Reverse(*unit));
    match units.iter().find(|(_, unit)| value >= *unit && value.is_multiple_of(*unit)) {
        Some((suffix, unit)) => format!("{}{suffix}", value / unit),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_default_is_in_range_and_survives_a_round_trip() {
        for info in table() {
            let config = PolicyConfig::parse(info.name).unwrap();
            let mut again = PolicyConfig::parse(info.name).unwrap();
            for (key, value) in config.describe() {
                again = again.with(&key, &value).unwrap_or_else(|e| panic!("{}: {e}", info.name));
            }
            assert_eq!(config, again);
        }
    }

    #[test]
    fn parts_of_a_unit_are_read_as_they_are_written() {
        for (text, ns) in [("8.2ms", 8_200_000), ("4.1ms", 4_100_000), ("0.5us", 500), ("1.001ms", 1_001_000)] {
            let config = PolicyConfig::parse("mlf").unwrap().with("wait_time", text).unwrap();
            let shown: Vec<_> = config.describe().into_iter().filter(|(key, _)| key == "wait_time").collect();
            assert_eq!(parse_ns(&shown[0].1), ns, "{text}: {shown:?}");
        }
        assert!(PolicyConfig::parse("mlf").unwrap().with("wait_time", "1.0000001us").is_err());
    }

    fn parse_ns(text: &str) -> u64 {
        let digits = text.trim_end_matches(char::is_alphabetic);
        let unit = match &text[digits.len()..] {
            "us" => 1_000,
            "ms" => 1_000_000,
            _ => 1,
        };
        digits.parse::<u64>().unwrap() * unit
    }

    #[test]
    fn errors_say_what_is_allowed() {
        let error = PolicyConfig::parse("sfj").unwrap_err();
        assert!(error.to_string().contains("sjf"), "{error}");
        let error = PolicyConfig::parse("mlf").unwrap().with("wait_tim", "1ms").unwrap_err();
        assert!(error.to_string().contains("wait_time"), "{error}");
        let error = PolicyConfig::parse("mlf").unwrap().with("wait_time", "-1").unwrap_err();
        assert!(error.to_string().contains("like 900us"), "{error}");
        let error = PolicyConfig::parse("mlf").unwrap().with("wait_time", "3").unwrap_err();
        assert!(error.to_string().contains("write the unit: 3us or 3ms"), "{error}");
        let error = PolicyConfig::parse("noop").unwrap().with("x", "1").unwrap_err();
        assert!(error.to_string().contains("no parameters"), "{error}");
    }

    #[test]
    fn durations_need_a_unit_and_zero_does_not() {
        for info in table() {
            for param in info.params.iter().filter(|param| param.kind == Kind::Duration) {
                let with = |value: &str| PolicyConfig::parse(info.name).unwrap().with(param.key, value);
                let millis = param.min.div_ceil(1_000_000).max(1);
                assert!(with(&format!("{millis}ms")).is_ok(), "{} {}", info.name, param.key);
                for bare in [(millis * 1_000_000).to_string(), format!(" {millis}"), "1e6".to_owned(), "1.5".to_owned()]
                {
                    let error = with(&bare).expect_err("it has no unit").to_string();
                    assert!(error.contains("write the unit"), "{error}");
                }
                assert_eq!(with("0").is_ok(), param.min == 0, "{} {}", info.name, param.key);
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(policy in 0..table().len(), key in "[a-z_.0-9]{0,16}", value in ".{0,24}") {
            let config = PolicyConfig::parse(table()[policy].name).unwrap();
            for known in table()[policy].params {
                let _ = config.clone().with(known.key, &value);
                let _ = config.clone().with(&format!("{}.{key}", known.key), &value);
            }
            let _ = config.with(&key, &value);
        }
    }
}
