//! What can be chosen.

use std::fmt;

use sluice_core::{EngineConfig, PolicyConfig};

use super::Device;

/// A configuration that can be chosen: the algorithm, and what it needs beside it. Whatever is not said here stays as the
/// host set it.
///
/// As text, an algorithm's name, its parameters that are not the default ones, and settings: `hbrr`, `aioli wait_time=2ms`,
/// `sjf anticipation=on in_flight=4 batch_bytes=4194304`.
#[derive(Clone, PartialEq, Debug)]
pub struct Arm {
    /// The algorithm and its parameters.
    pub policy: PolicyConfig,
    /// The device may be kept idle for a stream, as the host says how ([`EngineConfig::anticipation`]).
    pub anticipation: bool,
    /// Batches in flight in each engine; `None`: as the host says.
    pub in_flight: Option<u32>,
    /// Most bytes in a batch; `None`: as the host says.
    pub batch_bytes: Option<u64>,
}

/// An arm that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is no configuration to choose: {reason}")]
pub struct ArmError {
    text: String,
    reason: String,
}

impl Arm {
    /// An algorithm alone.
    #[must_use]
    pub fn new(policy: PolicyConfig) -> Arm {
        Arm { policy, anticipation: false, in_flight: None, batch_bytes: None }
    }

    /// What an engine does that has this algorithm and these settings.
    #[must_use]
    pub fn in_force(policy: PolicyConfig, host: &EngineConfig) -> Arm {
        let arm = Arm::new(policy);
        Arm { anticipation: host.anticipation.is_some() && arm.may_anticipate(), ..arm }
    }

    /// Reads what [`Arm`]'s `Display` writes.
    ///
    /// # Errors
    /// If there is no such algorithm, it has no such parameter, or a value cannot be used.
    pub fn parse(text: &str) -> Result<Arm, ArmError> {
        let failed = |reason: String| ArmError { text: text.chars().take(80).collect(), reason };
        let mut words = text.split_whitespace();
        let name = words.next().ok_or_else(|| failed("it names no algorithm".to_owned()))?;
        let mut arm = Arm::new(PolicyConfig::parse(name).map_err(|error| failed(error.to_string()))?);
        for word in words {
            let (key, value) =
                word.split_once('=').ok_or_else(|| failed(format!("{word:?} is not of the form key=value")))?;
            let number = || value.parse::<u64>().ok().filter(|n| *n > 0).ok_or_else(|| format!("{key} takes a number"));
            match key {
                "anticipation" if value == "on" => arm.anticipation = true,
                "anticipation" if value == "off" => arm.anticipation = false,
                "anticipation" => return Err(failed("anticipation is on or off".to_owned())),
                "in_flight" => {
                    let n = number().and_then(|n| u32::try_from(n).map_err(|error| error.to_string()));
                    arm.in_flight = Some(n.map_err(failed)?);
                }
                "batch_bytes" => arm.batch_bytes = Some(number().map_err(failed)?),
                _ => arm.policy = arm.policy.with(key, value).map_err(|error| failed(error.to_string()))?,
            }
        }
        if arm.anticipation && !arm.may_anticipate() {
            return Err(failed(format!("{name} has no part in anticipation")));
        }
        Ok(arm)
    }

    /// Whether the algorithm leaves anything to anticipate.
    fn may_anticipate(&self) -> bool {
        let info = self.policy.info();
        !info.bypasses_queue && !info.shared_engine
    }

    /// Costs nothing: whatever comes is let through.
    #[must_use]
    pub fn is_cheapest(&self) -> bool {
        self.policy.info().bypasses_queue
    }

    /// The settings of an engine under this arm. `host`: as the host set it.
    #[must_use]
    pub fn limits(&self, host: &EngineConfig) -> EngineConfig {
        EngineConfig {
            anticipation: host.anticipation.filter(|_| self.anticipation),
            in_flight_max: self.in_flight.unwrap_or(host.in_flight_max),
            batch_bytes_max: self.batch_bytes.unwrap_or(host.batch_bytes_max),
            ..host.clone()
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.policy.name();
        f.write_str(name)?;
        let usual = PolicyConfig::parse(name).map(|policy| policy.describe()).unwrap_or_default();
        for (key, value) in self.policy.describe().into_iter().filter(|param| !usual.contains(param)) {
            write!(f, " {key}={value}")?;
        }
        if self.anticipation {
            f.write_str(" anticipation=on")?;
        }
        if let Some(n) = self.in_flight {
            write!(f, " in_flight={n}")?;
        }
        if let Some(bytes) = self.batch_bytes {
            write!(f, " batch_bytes={bytes}")?;
        }
        Ok(())
    }
}

/// For rotational devices, the likeliest first: what is tried first when nothing is known.
const DISK: [&str; 9] = [
    "hbrr anticipation=on",
    "noop",
    "aioli",
    "to-agg anticipation=on",
    "sjf",
    "hbrr",
    "to-agg",
    "sjf anticipation=on",
    "mlf anticipation=on",
];
/// The same where the host says nothing of anticipation.
const DISK_WITHOUT: [&str; 6] = ["hbrr", "noop", "aioli", "sjf", "to-agg", "mlf"];
/// For devices without: to let everything through is hard to beat there.
const FLASH: [&str; 3] = ["noop", "to-agg", "hbrr"];
/// For devices of which nothing is known.
const UNKNOWN: [&str; 6] = ["noop", "hbrr", "sjf", "aioli", "to-agg", "mlf"];

/// The arms for a device, in the order in which they are tried when nothing is known; the first is where to begin. None
/// anticipates where `host` says that there is nothing to anticipate.
#[must_use]
pub fn arms(device: Device, host: &EngineConfig) -> Vec<Arm> {
    let names: &[&str] = match device {
        Device::Disk if host.anticipation.is_some() => &DISK,
        Device::Disk => &DISK_WITHOUT,
        Device::Flash => &FLASH,
        Device::Unknown => &UNKNOWN,
    };
    names.iter().map(|name| Arm::parse(name).expect("the names of the tables above")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluice_core::Anticipation;

    #[test]
    fn arms_are_written_as_they_are_read() {
        for text in ["noop", "aioli wait_time=2ms", "sjf anticipation=on in_flight=4 batch_bytes=4194304"] {
            assert_eq!(Arm::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Arm::parse("hbrr anticipation=off ranges=8").unwrap().to_string(), "hbrr");
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        for (text, why) in [
            ("", "names no algorithm"),
            ("sfj", "no algorithm is called"),
            ("hbrr quick", "key=value"),
            ("hbrr quick=1", "no parameter"),
            ("hbrr in_flight=0", "takes a number"),
            ("hbrr in_flight=99999999999", "out of range"),
            ("hbrr anticipation=maybe", "on or off"),
            ("noop anticipation=on", "no part"),
        ] {
            let error = Arm::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_device_without_an_arm_begins_at_noop() {
        let host = EngineConfig::default();
        assert!(arms(Device::Flash, &host)[0].is_cheapest() && arms(Device::Unknown, &host)[0].is_cheapest());
        assert!(arms(Device::Disk, &host).iter().all(|arm| !arm.anticipation), "the host says nothing of moving");
        let host = EngineConfig { anticipation: Some(Anticipation::for_device(8_000_000, 100_000_000)), ..host };
        let disk = arms(Device::Disk, &host);
        assert!(disk[0].anticipation && disk.iter().any(Arm::is_cheapest));
        assert_eq!(disk[0].limits(&host).anticipation, host.anticipation);
        assert_eq!(Arm::parse("hbrr in_flight=3").unwrap().limits(&host).in_flight_max, 3);
        assert_eq!(Arm::parse("hbrr in_flight=3").unwrap().limits(&host).anticipation, None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}", word in "[a-z_]{0,12}=[a-z0-9]{0,9}") {
            let _ = Arm::parse(&text);
            let _ = Arm::parse(&format!("hbrr {word}"));
        }
    }
}
