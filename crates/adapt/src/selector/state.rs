//! What was learned, as a text that survives restarts.
//!
//! A first line, `sluice-selector 1 crc32=0123abcd bytes=N`, then so many bytes of JSON. Anything that is not exactly that, or that
//! says what cannot be, is refused as a whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sluice_core::WindowFeatures;

use super::context::CLASSES_VERSION;
use super::knowledge::{CONTEXTS_MAX, GAIN_MAX, Known, WEIGHT_MAX};
use super::live::COST_MAX_S;
use super::meter::Unevenness;
use super::{Arm, Context, Device, Knowledge};

/// Version of the format.
const VERSION: u32 = 1;
const MAGIC: &str = "sluice-selector";
/// Longer states are none.
pub const BYTES_MAX: usize = 16 << 20;
/// Most arms of a context.
pub(super) const ARMS_MAX: usize = 64;
/// No logarithm of a rate is further from 0, and what is expected by a level within this and a gain is a number that can be written.
const LEVEL_MAX: f64 = 200.0;
/// No load lasts for longer, three centuries, and how uncertain a gain of that age is can be written, too.
const CLOCK_MAX_S: f64 = 1e10;

/// A state that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It is something else.
    #[error("it does not begin like what a selector has learned")]
    Other,
    /// Another version of the program wrote it.
    #[error("it is of version {0}, and this program reads version {VERSION}")]
    Version(u32),
    /// What was learned is about features or classes that mean something else now.
    #[error("it was made for other features of windows (version {found}, here {wanted})")]
    Features {
        /// Those of the state.
        found: String,
        /// Those of this program.
        wanted: String,
    },
    /// It is not what was written.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// It was learned together with what it is to be merged with.
    #[error(
        "of {0} it knows to the last digit what a file before it knows: the two are the same or have a common past, which would \
         count twice"
    )]
    Shared(Context),
    /// It was learned on devices of another kind.
    #[error("it was learned on {found}, not on {wanted}")]
    OtherDevice {
        /// Those here.
        wanted: Device,
        /// Those of the state.
        found: Device,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    features: String,
    device: Device,
    clock_s: f64,
    budget_s: f64,
    switch_s: f64,
    #[serde(default)]
    held_bytes: Option<f64>,
    contexts: BTreeMap<String, Known>,
}

/// What the gains were learned by.
fn features() -> String {
    format!("{}.{CLASSES_VERSION}", WindowFeatures::VERSION)
}

impl Knowledge {
    /// The text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let body = Body {
            features: features(),
            device: self.device,
            clock_s: self.clock_s,
            budget_s: self.budget_s,
            switch_s: self.switch_s,
            held_bytes: self.held_bytes,
            contexts: self.contexts.iter().map(|(context, known)| (context.to_string(), known.kept())).collect(),
        };
        let body = serde_json::to_string_pretty(&body).expect("numbers and texts");
        let (sum, bytes) = (crc32fast::hash(body.as_bytes()), body.len());
        format!("{MAGIC} {VERSION} crc32={sum:08x} bytes={bytes}\n{body}")
    }

    /// Reads it.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn from_text(text: &[u8]) -> Result<Knowledge, StateError> {
        let damaged = |why: &str| StateError::Damaged(why.to_owned());
        let end = text.iter().take(128).position(|byte| *byte == b'\n').ok_or(StateError::Other)?;
        let head = std::str::from_utf8(&text[..end]).map_err(|_| StateError::Other)?;
        let mut words = head.split(' ');
        if words.next() != Some(MAGIC) {
            return Err(StateError::Other);
        }
        let version: u32 = words.next().and_then(|v| v.parse().ok()).ok_or_else(|| damaged("no version"))?;
        if version != VERSION {
            return Err(StateError::Version(version));
        }
        let mut number = |name: &str, radix| {
            let word = words.next().and_then(|word| word.strip_prefix(name));
            word.and_then(|word| u64::from_str_radix(word, radix).ok()).ok_or_else(|| damaged("the first line"))
        };
        let (sum, bytes) = (number("crc32=", 16)?, number("bytes=", 10)?);
        let body = &text[end + 1..];
        if body.len() > BYTES_MAX {
            return Err(damaged("it is far too long"));
        }
        if body.len() as u64 != bytes {
            return Err(StateError::Damaged(format!("{} bytes instead of {bytes}", body.len())));
        }
        if head != format!("{MAGIC} {VERSION} crc32={sum:08x} bytes={bytes}") || u64::from(crc32fast::hash(body)) != sum
        {
            return Err(damaged("the checksum is another one"));
        }
        let body: Body = serde_json::from_slice(body).map_err(|error| StateError::Damaged(error.to_string()))?;
        if body.features != features() {
            return Err(StateError::Features { found: body.features, wanted: features() });
        }
        body.check().map_err(StateError::Damaged)
    }
}

impl Body {
    /// What it says, if that can be.
    fn check(self) -> Result<Knowledge, String> {
        let range = |what: &str, value: f64, least: f64, most: f64| {
            if (least..=most).contains(&value) { Ok(value) } else { Err(format!("{what} is {value}")) }
        };
        if self.contexts.len() > CONTEXTS_MAX {
            return Err(format!("{} contexts", self.contexts.len()));
        }
        let clock_s = range("clock_s", self.clock_s, 0.0, CLOCK_MAX_S)?;
        let mut contexts = BTreeMap::new();
        for (name, known) in self.contexts {
            let context = Context::parse(&name).ok_or_else(|| format!("{name:?} is no kind of workload"))?;
            range("level", known.level, -LEVEL_MAX, LEVEL_MAX)?;
            range("stay_s", known.stay_s, 0.0, 1e12)?;
            range("seen_s", known.seen_s, 0.0, clock_s)?;
            range("uneven", known.uneven.variance, 0.0, Unevenness::MAX)?;
            range("uneven", known.uneven.usual, 0.0, Unevenness::MAX)?;
            if known.arms.len().max(known.looks.len()) > ARMS_MAX {
                return Err(format!("{} arms", known.arms.len()));
            }
            for arm in known.looks.keys().chain(&known.last) {
                Arm::parse(arm).map_err(|error| error.to_string())?;
            }
            for (arm, value) in &known.arms {
                Arm::parse(arm).map_err(|error| error.to_string())?;
                range("gain", value.gain, -GAIN_MAX, GAIN_MAX)?;
                range("variance", value.variance, 0.0, 50.0)?;
                range("weight", value.weight, 0.0, WEIGHT_MAX)?;
                range("seen_s", value.seen_s, 0.0, clock_s)?;
            }
            contexts.insert(context, known);
        }
        Ok(Knowledge {
            device: self.device,
            clock_s,
            budget_s: range("budget_s", self.budget_s, -1e6, 1e6)?,
            switch_s: range("switch_s", self.switch_s, 0.0, COST_MAX_S)?,
            held_bytes: self.held_bytes.map(|bytes| range("held_bytes", bytes, 0.0, 1e15)).transpose()?,
            contexts,
        })
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::EngineConfig;

    use super::super::{Kind, Selector, Settings, arms};
    use super::*;

    fn some() -> Knowledge {
        let mut knowledge = Knowledge::new(Device::Disk);
        (knowledge.clock_s, knowledge.budget_s) = (12.5, 3.25);
        for (at, context) in ["r2.q0.d1.f1.a0", "w0.q0.d3.f2.a1"].into_iter().enumerate() {
            let known = knowledge.enter(Context::parse(context).unwrap());
            known.credit("hbrr anticipation=on", 0.1 * at as f64, 3.0);
            known.credit("noop", -0.2, 4.0);
            known.uneven = Unevenness { variance: 0.5, usual: 0.25, differences: 4 + at as u32 };
        }
        knowledge
    }

    #[test]
    fn what_was_written_is_read() {
        let knowledge = some();
        assert_eq!(Knowledge::from_text(knowledge.to_text().as_bytes()), Ok(knowledge));
    }

    /// To the last digit: that is how states are told that have a common past.
    #[test]
    fn numbers_are_read_as_they_were_written() {
        let mut knowledge = some();
        for n in 1..10_000 {
            knowledge.clock_s = 20.0 + f64::from(n) / 7.0;
            knowledge.switch_s = 1.0 / f64::from(n);
            assert_eq!(Knowledge::from_text(knowledge.to_text().as_bytes()).as_ref(), Ok(&knowledge), "{n}");
        }
    }

    /// What was best may need something that this host has not.
    #[test]
    fn it_begins_with_the_best_arm_that_there_is() {
        let mut knowledge = Knowledge::new(Device::Disk);
        let known = knowledge.enter(Context::parse("r2.q0.d1.f1.a0").unwrap());
        for (arm, gain) in [("hbrr anticipation=on", 0.0), ("sjf", -0.1), ("noop", -1.5)] {
            known.credit(arm, gain, 9.0);
        }
        let arms = arms(Device::Disk, &EngineConfig::default());
        let settings = Settings::new(Kind::Bandit, Device::Disk);
        let mut selector = Selector::new(settings, arms, &Arm::parse("noop").unwrap(), None).unwrap();
        selector.remember(knowledge).unwrap();
        selector.begin_where_it_ended();
        assert_eq!(selector.arm().to_string(), "sjf");
    }

    /// In JSON there is no infinity: it would be null, which whoever reads a log of decisions takes for damage.
    #[test]
    fn the_most_that_is_read_can_be_shown() {
        let value = super::super::Value { gain: GAIN_MAX, variance: 50.0, weight: 0.0, seen_s: 0.0 };
        let uncertainty = (2.0 * value.deviation(CLOCK_MAX_S)).exp();
        assert!(uncertainty.is_finite() && (LEVEL_MAX + GAIN_MAX).exp().is_finite(), "{uncertainty}");
    }

    #[test]
    fn a_state_with_any_byte_damaged_or_missing_is_refused() {
        let text = some().to_text().into_bytes();
        let mut tried = 0;
        for at in (0..text.len()).step_by((text.len() / 250).max(1)) {
            for bit in [0x01, 0x80] {
                let mut bad = text.clone();
                bad[at] ^= bit;
                assert!(Knowledge::from_text(&bad).is_err(), "byte {at}");
            }
            assert!(Knowledge::from_text(&text[..at]).is_err(), "cut at {at}");
            tried += 1;
        }
        assert!(tried >= 200, "{tried} positions");
        assert!(Knowledge::from_text(&[text, b"x".to_vec()].concat()).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused_although_its_checksum_is_right() {
        let with = |from: &str, to: &str| {
            let text = some().to_text();
            let body = text.split_once('\n').unwrap().1.replacen(from, to, 1);
            assert_ne!(body, text.split_once('\n').unwrap().1, "{from} is there");
            let sum = crc32fast::hash(body.as_bytes());
            let text = format!("{MAGIC} 1 crc32={sum:08x} bytes={}\n{body}", body.len());
            Knowledge::from_text(text.as_bytes()).unwrap_err().to_string()
        };
        assert!(with("r2.q0.d1.f1.a0", "r2.q0.d1.f1.a2").contains("no kind of workload"));
        assert!(with("\"noop\"", "\"nope\"").contains("no algorithm"));
        assert!(with("\"gain\": -0.2", "\"gain\": 1e99").contains("gain"));
        assert!(with("\"weight\": 1.0", "\"weight\": -1.0").contains("weight"));
        for level in ["1e3", "-201.0"] {
            assert!(with("\"level\": 0.0", &format!("\"level\": {level}")).contains("level is"), "{level}");
        }
        for variance in ["-0.1", "2.1"] {
            assert!(
                with("\"variance\": 0.5", &format!("\"variance\": {variance}")).contains("uneven is"),
                "{variance}"
            );
        }
        assert!(with("\"clock_s\": 12.5", "\"clock_s\": 1e11").contains("clock_s is"));
        assert!(with(&format!("\"features\": \"{}\"", features()), "\"features\": \"1.0\"").contains("other features"));
        assert!(with("\"disk\"", "\"tape\"").contains("unknown variant"));
        let newer = some().to_text().replacen("selector 1", "selector 2", 1);
        assert_eq!(Knowledge::from_text(newer.as_bytes()), Err(StateError::Version(2)));
        assert_eq!(Knowledge::from_text(b"#!/bin/sh\n"), Err(StateError::Other));
    }
}
