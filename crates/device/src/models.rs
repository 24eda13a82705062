//! Finding and building models.

use std::path::Path;

use crate::{Device, hdd, null, raid0, ssd};

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

macro_rules! shipped {
    ($($name:literal: $description:literal;)*) => {
        &[$(Model {
            name: $name,
            description: $description,
            text: include_str!(concat!("../models/", $name, ".toml")),
        }),*]
    };
}

/// The models that come with the program.
#[must_use]
pub const fn models() -> &'static [Model] {
    shipped! {
        "hdd-7200": "7200 rpm SATA hard disk of about 2010, 500 GB";
        "ssd-sata": "SATA solid-state drive, 480 GB";
        "nvme": "NVMe solid-state drive, 1 TB";
        "null": "takes no time";
        "pastel": "Pastel: hard disk, Hitachi HDS7225SC, 250 GB";
        "graphene": "Graphene: hard disk, Hitachi HDS72103, 320 GB";
        "bali-hdd": "Bali: hard disk, Seagate ST91000640NS, 1 TB";
        "suno": "Suno: RAID-0 of 2 SAS disks, Seagate ST9300653SS";
        "chimint": "Chimint: RAID-0 of 2 SAS disks, Seagate ST3300657SS-H";
        "taurus": "Taurus: RAID-0 of 2 SAS disks, Seagate ST3300657SS";
        "edel": "Edel: solid-state drive, Micron C400, 64 GB";
        "graphite": "Graphite: solid-state drive, Intel DC S3500, 300 GB";
        "bali-ssd": "Bali: solid-state drive, Samsung 840, 500 GB";
    }
}

/// Builds a device from its parameters and a seed.
type Build = fn(&str, u64) -> Result<Box<dyn Device>, String>;

/// The kinds of models: what `kind` in a model's file may say.
const KINDS: &[(&str, Build)] =
    &[("hdd", hdd::build), ("ssd", ssd::build), ("raid0", raid0::build), ("null", null::build)];

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
    build(text, seed).map_err(|reason| ModelError::Invalid { name: name.to_owned(), reason })
}

/// As [`parse`], with the reason alone.
pub(crate) fn build(text: &str, seed: u64) -> Result<Box<dyn Device>, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let kinds = || KINDS.iter().map(|kind| kind.0).collect::<Vec<_>>().join(", ");
    let kind = table.get("kind").and_then(toml::Value::as_str);
    let kind = kind.ok_or_else(|| format!("`kind` is missing; kinds: {}", kinds()))?;
    let row = KINDS.iter().find(|row| row.0 == kind);
    let (_, build) = row.ok_or_else(|| format!("unknown kind '{kind}'; kinds: {}", kinds()))?;
    build(text, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Op, Pending};
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
        let text = models().iter().find(|model| model.name == "suno").unwrap().text;
        assert!(error(&text.replace("surfaces", "colours")).contains("member: "));
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in "\\PC*", key in "[a-z_]{1,20}", value in any::<f64>()) {
            let _ = parse("x", &text, 0);
            let _ = parse("x", &format!("kind = 'hdd'\n{key} = {value:?}"), 0);
        }

        /// Whatever a parameter is changed to, the model is refused or works.
        #[test]
        fn any_parameters_are_refused_or_work(model in 0..models().len(), line in 0usize..24, value in prop_oneof![
            any::<f64>().prop_map(|v| format!("{v:?}")), any::<i64>().prop_map(|v| v.to_string()),
            (0u32..100).prop_map(|v| v.to_string())], at in any::<u64>()) {
            let text = models()[model].text;
            let mut parameters = text.lines().filter(|l| l.contains(" = ") && !l.starts_with('#'));
            let Some(old) = parameters.nth(line) else { return Ok(()) };
            let key = old.split(' ').next().unwrap();
            if let Ok(mut device) = parse("x", &text.replace(old, &format!("{key} = {value}")), 0) {
                let mut now = 5;
                for op in [Op::Read, Op::Write, Op::Write, Op::Flush, Op::Read] {
                    let command = Command { op, address: at, len: at % (1 << 24) };
                    device.pick(now, &[Pending { command, arrived_ns: 1 }, Pending { command, arrived_ns: 2 }]);
                    now += device.service(now, command).total_ns;
                }
            }
        }

        /// The same calls to the same model, the same answers; and a longer command takes an idle device no less.
        #[test]
        fn models_are_deterministic_and_monotonic(model in 0..models().len(), seed: u64, lens in (1u64..1 << 23, 1u64..1 << 23),
            commands in proptest::collection::vec((0u64..1 << 40, 1u64..1 << 20, any::<bool>(), any::<bool>()), 1..30)) {
            let run = |last: u64| {
                let mut device = super::model(models()[model].name, seed).unwrap();
                let (mut now, mut end) = (0, 0);
                let mut services = Vec::new();
                for &(address, len, write, follow) in &commands {
                    let op = if write { Op::Write } else { Op::Read };
                    let address = if follow { end } else { address };
                    services.push(device.service(now, Command { op, address, len }));
                    now += services.last().unwrap().total_ns;
                    end = address + len;
                }
                let quiet = now + 60_000_000_000;
                services.push(device.service(quiet, Command { op: Op::Read, address: 1 << 33, len: last }));
                services
            };
            let (short, long) = (run(lens.0.min(lens.1)), run(lens.0.max(lens.1)));
            prop_assert_eq!(&short, &run(lens.0.min(lens.1)));
            prop_assert!(short.last().unwrap().total_ns <= long.last().unwrap().total_ns);
        }
    }
}
