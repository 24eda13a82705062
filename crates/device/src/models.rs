//! Finding and building models.

use std::borrow::Cow;
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
    /// The model takes no time: measuring it would never end.
    #[error("device model {name} takes no time: there is nothing to measure")]
    TakesNoTime {
        /// Name or path of the model.
        name: String,
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
        "grimoire": "Grimoire: hard disk, SAS, 10,000 rpm, 600 GB";
        "darwin-hdd": "Darwin: RAID-0 of 2 SAS disks, HP MM0500FAMYT";
        "darwin-ssd": "Darwin: solid-state drive, HP MK0120EAVDT, 120 GB";
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
    parse(name_or_path, &text(name_or_path)?, seed)
}

/// The parameters of a shipped model or of the one in a file.
fn text(name_or_path: &str) -> Result<Cow<'static, str>, ModelError> {
    if let Some(model) = models().iter().find(|model| model.name == name_or_path) {
        return Ok(Cow::Borrowed(model.text));
    }
    match std::fs::read_to_string(Path::new(name_or_path)) {
        Ok(text) => Ok(Cow::Owned(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let known: Vec<&str> = models().iter().map(|model| model.name).collect();
            Err(ModelError::Unknown { name: name_or_path.to_owned(), known: known.join(", ") })
        }
        Err(error) => Err(ModelError::Io { path: name_or_path.to_owned(), error }),
    }
}

/// As [`model`], with some parameters replaced: those of the members, if the model is an array of others.
///
/// # Errors
/// As [`model`]'s, and if the model has no such parameter.
pub fn model_with(name_or_path: &str, parameters: &[(String, f64)], seed: u64) -> Result<Box<dyn Device>, ModelError> {
    if parameters.is_empty() {
        return model(name_or_path, seed);
    }
    let invalid = |reason: String| ModelError::Invalid { name: name_or_path.to_owned(), reason };
    let text = text(name_or_path)?;
    let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| invalid(error.to_string()))?;
    for (key, value) in parameters {
        let table = match table.get_mut("member") {
            Some(toml::Value::Table(member)) => member,
            _ => &mut table,
        };
        let old = table.get(key).or_else(|| OPTIONAL.iter().find(|(name, _)| name == key).map(|(_, value)| value));
        let new = match old {
            Some(toml::Value::Integer(_)) => toml::Value::Integer(value.round() as i64),
            Some(toml::Value::Float(_)) => toml::Value::Float(*value),
            _ => {
                let is_number = |value: &toml::Value| matches!(value, toml::Value::Integer(_) | toml::Value::Float(_));
                let known: Vec<&str> =
                    table.iter().filter(|(_, value)| is_number(value)).map(|(key, _)| key.as_str()).collect();
                let optional = OPTIONAL.iter().map(|(name, _)| *name);
                let known: Vec<&str> = known.into_iter().chain(optional).collect();
                return Err(invalid(format!("it has no number called `{key}`; there are {}", known.join(", "))));
            }
        };
        table.insert(key.clone(), new);
    }
    build(&table.to_string(), seed).map_err(invalid)
}

/// Parameters that a model's file may leave out.
static OPTIONAL: [(&str, toml::Value); 2] =
    [("read_on_arrival", toml::Value::Float(0.0)), ("fill", toml::Value::Float(1.0))];

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
    fn parameters_are_replaced_by_name() {
        let with = |name: &str, key: &str, value: f64| model_with(name, &[(key.to_owned(), value)], 1);
        let random = |mut device: Box<dyn Device>| {
            device.service(1 << 40, Command { op: Op::Read, address: 200_000_000_000, len: 4096 }).total_ns
        };
        let (slow, usual) = (with("hdd-7200", "overhead_read_us", 50_000.0), with("hdd-7200", "queue_depth", 4.0));
        assert!(random(slow.unwrap()) > random(usual.unwrap()) + 30_000_000);
        assert!(with("suno", "overhead_read_us", 500.0).is_ok() && with("hdd-7200", "read_on_arrival", 1.0).is_ok());
        let error = |result: Result<Box<dyn Device>, ModelError>| result.err().unwrap().to_string();
        assert!(error(with("hdd-7200", "overhead_red_us", 5.0)).contains("overhead_read_us"));
        assert!(error(with("hdd-7200", "kind", 5.0)).contains("no number"));
        assert!(error(with("nvme", "channels", 0.0)).contains("channels"));
        assert!(error(with("nvme", "read_on_arrival", 1.0)).contains("read_on_arrival"));
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
