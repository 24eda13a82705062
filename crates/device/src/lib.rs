//! Models of storage devices: how long a request takes, computed rather than measured.
//!
//! A [`Device`] is a deterministic state machine: the time is an argument, nothing waits, and a model built from the same
//! parameters and seed gives the same answers to the same calls. The same model so serves a simulator in virtual time and
//! an emulation that sleeps in real time.
//!
//! A *kind* of model is a file of code (one row of `KINDS`); a *model* is a kind with parameters in a TOML file (units are
//! in the names). Shipped ones ([`models`]) are found by name, others by path ([`model`]).

use std::path::Path;

mod hdd;

/// What a device is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
    /// Makes written bytes durable; address and length mean nothing.
    Flush,
}

/// A command to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub op: Op,
    /// First byte. Beyond the capacity the device wraps round.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

/// A command that waits in the device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The command.
    pub command: Command,
    /// When it arrived, in nanoseconds since the epoch of all the times that the device is given.
    pub arrived_ns: u64,
}

/// Where the time of one command goes, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// In all.
    pub total_ns: u64,
    /// Moving to the place.
    pub seek_ns: u64,
    /// Waiting for the medium to come round.
    pub rotation_ns: u64,
    /// Bytes between where the command before ended and where this one starts.
    pub distance_bytes: u64,
}

/// A device model. One command is served at a time.
pub trait Device: Send {
    /// Size in bytes.
    fn capacity_bytes(&self) -> u64;

    /// Which of the waiting commands (not empty, oldest first) to serve next, as the device's own queueing would.
    fn pick(&self, now_ns: u64, pending: &[Pending]) -> usize {
        let _ = (now_ns, pending);
        0
    }

    /// Serves a command from `now_ns` on, which must not be before the end of the one before.
    fn service(&mut self, now_ns: u64, command: Command) -> Service;
}

/// Why there is no such model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Not a shipped model and not a file.
    #[error("no device model or file named '{name}'; models: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The shipped models.
        known: String,
    },
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The file is not a model.
    #[error("device model {name}: {reason}")]
    Invalid {
        /// Name or path of the model.
        name: String,
        /// What is wrong, with the place.
        reason: String,
    },
}

/// A shipped model.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// What [`model`] finds it by.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// The parameters, as TOML: a starting point for one's own.
    pub text: &'static str,
}

/// The models that come with the program.
#[must_use]
pub const fn models() -> &'static [Model] {
    &[Model {
        name: "hdd-7200",
        description: "7200 rpm SATA hard disk of about 2010, 500 GB",
        text: include_str!("../models/hdd-7200.toml"),
    }]
}

/// Builds a device from its parameters and a seed.
type Build = fn(&str, u64) -> Result<Box<dyn Device>, String>;

/// The kinds of models: what `kind` in a model's file may say.
const KINDS: &[(&str, Build)] = &[("hdd", hdd::build)];

/// Builds the shipped model of that name, or the one in the file at that path.
///
/// # Errors
/// If there is none, or it does not make sense; says what and where.
pub fn model(name_or_path: &str, seed: u64) -> Result<Box<dyn Device>, ModelError> {
    if let Some(model) = models().iter().find(|model| model.name == name_or_path) {
        return parse(name_or_path, model.text, seed);
    }
    match std::fs::read_to_string(Path::new(name_or_path)) {
        Ok(text) => parse(name_or_path, &text, seed),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let known: Vec<&str> = models().iter().map(|model| model.name).collect();
            Err(ModelError::Unknown { name: name_or_path.to_owned(), known: known.join(", ") })
        }
        Err(error) => Err(ModelError::Io { path: name_or_path.to_owned(), error }),
    }
}

/// Builds the model with these parameters; `name` is for errors.
///
/// # Errors
/// If they are not TOML, lack a parameter, have an unknown one, or one that is out of range.
pub fn parse(name: &str, text: &str, seed: u64) -> Result<Box<dyn Device>, ModelError> {
    let build = || {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let kinds = || KINDS.iter().map(|kind| kind.0).collect::<Vec<_>>().join(", ");
        let kind = table.get("kind").and_then(toml::Value::as_str);
        let kind = kind.ok_or_else(|| format!("`kind` is missing; kinds: {}", kinds()))?;
        let row = KINDS.iter().find(|row| row.0 == kind);
        let (_, build) = row.ok_or_else(|| format!("unknown kind '{kind}'; kinds: {}", kinds()))?;
        build(text, seed)
    };
    build().map_err(|reason| ModelError::Invalid { name: name.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shipped_models_build() {
        for shipped in models() {
            assert!(model(shipped.name, 1).unwrap().capacity_bytes() > 0);
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        let error = |name: &str| model(name, 0).err().unwrap().to_string();
        assert!(error("hdd-9000").contains("hdd-7200"));
        let error = |text: &str| parse("mine", text, 0).err().unwrap().to_string();
        assert!(error("kind = 'tape'").contains("kinds: hdd"));
        assert!(error("").contains("kinds: hdd"));
        let text = models()[0].text;
        assert!(error(&format!("{text}\ncolour = 1")).contains("colour"));
        assert!(error(&text.replace("surfaces = 4", "")).contains("surfaces"));
        assert!(error(&text.replace("surfaces = 4", "surfaces = 0")).contains("surfaces"));
        assert!(error(&text.replace("outer_rate_mb_s = 125.0", "outer_rate_mb_s = nan")).contains("outer_rate_mb_s"));
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in "\\PC*", key in "[a-z_]{1,20}", value in any::<f64>()) {
            let _ = parse("x", &text, 0);
            let _ = parse("x", &format!("kind = 'hdd'\n{key} = {value:?}"), 0);
        }

        /// Whatever a parameter is changed to, the model is refused or works.
        #[test]
        fn any_parameters_are_refused_or_work(line in 0usize..16, value in prop_oneof![
            any::<f64>().prop_map(|v| format!("{v:?}")), any::<i64>().prop_map(|v| v.to_string())], at in any::<u64>()) {
            let text = models()[0].text;
            let mut parameters = text.lines().filter(|l| l.contains(" = ") && !l.starts_with('#')).skip(1);
            let Some(old) = parameters.nth(line) else { return Ok(()) };
            let key = old.split(' ').next().unwrap();
            if let Ok(mut device) = parse("x", &text.replace(old, &format!("{key} = {value}")), 0) {
                let command = Command { op: Op::Read, address: at, len: at % (1 << 30) };
                device.service(5, command);
                device.pick(7, &[Pending { command, arrived_ns: 6 }]);
            }
        }
    }
}
