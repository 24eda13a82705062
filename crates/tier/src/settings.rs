//! Settings as people write them: `KEY=VALUE`, the same in every host.

use std::time::Duration;

use sluice_core::PolicyConfig;
use sluice_device::profile::Profile;
use sluice_notation::{hint, parse_bytes, parse_duration};

use crate::config::Config;
use crate::locality::Rule;

/// A setting.
pub struct Setting {
    /// Its name.
    pub key: &'static str,
    /// What it is without being set.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
    set: fn(&mut Config, &str) -> Option<()>,
}

/// All of them.
pub const SETTINGS: &[Setting] = &[
    Setting {
        key: "rule",
        default: "cost",
        help: "when writes go to the SSD: cost, paper, always or never",
        set: rule,
    },
    Setting { key: "start", default: "1.5", help: "they begin to above this H (rule paper: 4)", set: start },
    Setting { key: "stop", default: "1.1", help: "and end to below this one (rule paper: 2)", set: stop },
    Setting {
        key: "profile",
        default: "none",
        help: "the disk's profile (`sluice profile`), for the rule cost",
        set: profile,
    },
    Setting {
        key: "ghost",
        default: "aioli",
        help: "algorithm of the ghost queue, with parameters behind it: aioli:wait_time=0",
        set: ghost,
    },
    Setting {
        key: "ghost-requests",
        default: "1024",
        help: "most requests in the ghost queue",
        set: |config, text| number(&mut config.ghost_requests, text),
    },
    Setting {
        key: "bypass",
        default: "1M",
        help: "requests of this size and more go to the disk; none: never",
        set: |config, text| {
            config.bypass_bytes = if text == "none" { u64::MAX } else { parse_bytes(text)? };
            Some(())
        },
    },
    Setting {
        key: "high",
        default: "0.75",
        help: "share of the log in use at which write-back does not wait for idleness",
        set: |config, text| share(&mut config.high, text),
    },
    Setting {
        key: "low",
        default: "0.5",
        help: "share to which it then brings the log",
        set: |config, text| share(&mut config.low, text),
    },
    Setting {
        key: "write-back",
        default: "1M",
        help: "most bytes in one write to the disk",
        set: |config, text| {
            config.writeback_bytes = usize::try_from(parse_bytes(text)?).ok()?;
            Some(())
        },
    },
    Setting {
        key: "fill",
        default: "64K",
        help: "pieces with at most so many bytes between them go to the disk in one write, with those; 0: never",
        set: |config, text| {
            config.fill_bytes = parse_bytes(text)?;
            Some(())
        },
    },
    Setting {
        key: "idle",
        default: "20ms",
        help: "the disk is idle when nobody has used it for so long",
        set: |config, text| duration(&mut config.idle, text),
    },
    Setting {
        key: "idle-bytes",
        default: "64M",
        help: "idle time is used from so many bytes on, or when nothing has come for `quiet`",
        set: |config, text| {
            config.idle_bytes = parse_bytes(text)?;
            Some(())
        },
    },
    Setting {
        key: "quiet",
        default: "1s",
        help: "see idle-bytes",
        set: |config, text| duration(&mut config.quiet, text),
    },
    Setting {
        key: "prefetch",
        default: "on",
        help: "slots that are read again are copied to the SSD",
        set: |config, text| switch(&mut config.prefetch, text),
    },
    Setting {
        key: "prefetch-count",
        default: "2",
        help: "above this counter",
        set: |config, text| number(&mut config.prefetch_count, text),
    },
    Setting {
        key: "used-pause",
        default: "0.4",
        help: "prefetching pauses when less than this share of it is used",
        set: |config, text| share(&mut config.used_pause, text),
    },
    Setting {
        key: "used-resume",
        default: "0.6",
        help: "and goes on above this one",
        set: |config, text| share(&mut config.used_resume, text),
    },
    Setting {
        key: "durable-writes",
        default: "off",
        help: "each write is made durable before it is acknowledged",
        set: |config, text| switch(&mut config.durable_writes, text),
    },
    Setting {
        key: "extents",
        default: "8388608",
        help: "most extents in the mapping table, about 150 bytes of memory each",
        set: |config, text| number(&mut config.extents_max, text),
    },
    Setting {
        key: "unload",
        default: "on",
        help: "ending writes everything back",
        set: |config, text| switch(&mut config.unload, text),
    },
    Setting {
        key: "disk-name",
        default: "none",
        help: "the name for which the tier was made, if the disk has another one now",
        set: |config, text| {
            config.disk_name = (text != "none").then(|| text.to_owned());
            Some(())
        },
    },
    Setting {
        key: "failure-mark",
        default: "none",
        help: "file, not on the SSD, that tells of an SSD that failed; none: nbdkit and `sluice tier` use DISK.tier-failed for a disk \
               that is a file",
        set: |config, text| {
            // Whoever runs it may change its directory later.
            config.failure_mark = if text == "none" { None } else { Some(std::path::absolute(text).ok()?) };
            Some(())
        },
    },
    Setting {
        key: "salvage",
        default: "off",
        help: "goes on where durable records are missing",
        set: |config, text| switch(&mut config.salvage, text),
    },
];

impl Config {
    /// Sets one.
    ///
    /// # Errors
    /// In words, if there is no such setting or the value cannot be used.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else {
            let known = SETTINGS.iter().map(|setting| setting.key);
            return Err(format!("there is no setting {key}{}", hint(key, known)));
        };
        (setting.set)(self, value)
            .ok_or_else(|| format!("{key}={value}: cannot be used; {} [default: {}]", setting.help, setting.default))
    }
}

fn rule(config: &mut Config, text: &str) -> Option<()> {
    config.rule = match text {
        "paper" => Rule::paper(),
        "cost" => Rule::cost(),
        "always" => Rule::Always,
        "never" => Rule::Never,
        _ => return None,
    };
    Some(())
}

fn start(config: &mut Config, text: &str) -> Option<()> {
    match &mut config.rule {
        Rule::Ratio { start, .. } | Rule::Cost { start, .. } => positive(start, text),
        _ => None,
    }
}

fn stop(config: &mut Config, text: &str) -> Option<()> {
    match &mut config.rule {
        Rule::Ratio { stop, .. } | Rule::Cost { stop, .. } => positive(stop, text),
        _ => None,
    }
}

fn profile(config: &mut Config, text: &str) -> Option<()> {
    config.rule = Rule::from_profile(&Profile::load(text).ok()?, 16 << 10);
    Some(())
}

fn ghost(config: &mut Config, text: &str) -> Option<()> {
    let mut words = text.split(':');
    let mut policy = PolicyConfig::parse(words.next()?).ok()?;
    for word in words {
        let (key, value) = word.split_once('=')?;
        policy = policy.with(key, value).ok()?;
    }
    config.ghost_policy = policy;
    Some(())
}

fn positive(to: &mut f64, text: &str) -> Option<()> {
    *to = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)?;
    Some(())
}

fn share(to: &mut f64, text: &str) -> Option<()> {
    *to = text.parse().ok().filter(|share| (0.0..=1.0).contains(share))?;
    Some(())
}

fn number<T: std::str::FromStr + PartialOrd + From<u8>>(to: &mut T, text: &str) -> Option<()> {
    *to = text.parse().ok().filter(|number| *number >= T::from(1))?;
    Some(())
}

fn duration(to: &mut Duration, text: &str) -> Option<()> {
    *to = parse_duration(text)?;
    Some(())
}

fn switch(to: &mut bool, text: &str) -> Option<()> {
    *to = match text {
        "on" | "true" | "yes" => true,
        "off" | "false" | "no" => false,
        _ => return None,
    };
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_takes_its_default_and_refuses_what_it_cannot_use() {
        let mut config = Config::default();
        for setting in SETTINGS.iter().filter(|setting| setting.key != "profile") {
            config.set(setting.key, setting.default).unwrap();
            if ["failure-mark", "disk-name"].contains(&setting.key) {
                continue;
            }
            let error = config.set(setting.key, "?").unwrap_err();
            assert!(error.starts_with(setting.key) && error.contains(setting.help), "{error}");
        }
        config.set("ghost", "aioli:wait_time=0").unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
        let error = config.set("idel", "1s").unwrap_err();
        assert!(error.contains("idle"), "{error}");
        config.set("failure-mark", "failed").unwrap();
        assert_eq!(config.failure_mark, Some(std::env::current_dir().unwrap().join("failed")));
        config.set("rule", "never").unwrap();
        assert!(config.set("start", "4").is_err(), "there is nothing to start");
    }
}
