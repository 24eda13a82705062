//! What AGIOS's configuration file means here.

use std::path::PathBuf;

use sluice_core::PolicyConfig;

use crate::services::Wanted;
use crate::syntax::{Setting, Value, read};

/// AGIOS's own default.
const DEFAULT_ALGORITHM: &str = "sjf";

/// Of recordings, where the file names none.
const DEFAULT_PREFIX: &str = "agios_trace";
const DEFAULT_SUFFIX: &str = "slt";

/// Keys of AGIOS that mean nothing here, and why.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("select_algorithm_period", "there is no dynamic selection here"),
    ("select_algorithm_min_reqnumber", "there is no dynamic selection here"),
    ("performance_values", "there is no dynamic selection here"),
    ("max_trace_buffer_size", "a trace's buffers are of fixed size here"),
    ("enable_SW", "every algorithm can be used at any time"),
];

/// Settings, and what the user should be told.
#[derive(Debug, Default)]
pub(crate) struct Config {
    algorithm: Option<String>,
    starting: Option<String>,
    waiting_ns: Option<u64>,
    aioli_quantum: Option<u64>,
    mlf_quantum: Option<u64>,
    sw_window_ms: Option<u64>,
    twins_window_us: Option<u64>,
    records: bool,
    trace_prefix: Option<String>,
    trace_suffix: Option<String>,
    wanted: Wanted,
    pub(crate) warnings: Vec<String>,
}

impl Config {
    /// Reads a file's text. What cannot be used is warned about; the rest counts.
    pub(crate) fn parse(name: &str, text: &str) -> Config {
        let mut config = Config::default();
        match read(text) {
            Ok(settings) => settings.iter().for_each(|setting| config.take(name, setting)),
            Err((line, what)) => {
                config.warnings.push(format!("{name}:{line}: {what}; all settings have their defaults"))
            }
        }
        config
    }

    fn take(&mut self, name: &str, setting: &Setting) {
        let key = setting.path.strip_prefix("library_options.").unwrap_or(&setting.path);
        let number = |unit: &str| match setting.value {
            Value::Number(number) if number >= 0 => Ok(Some(number as u64)),
            _ => Err(format!("{key} must be a number {unit}")),
        };
        let text = || match &setting.value {
            Value::Text(text) => Ok(Some(text.clone())),
            _ => Err(format!("{key} must be a text in quotes")),
        };
        let taken = match key {
            "default_algorithm" => text().map(|value| self.algorithm = value),
            "starting_algorithm" => text().map(|value| self.starting = value),
            "waiting_time" => number("of nanoseconds").map(|value| self.waiting_ns = value),
            "aioli_quantum" => number("of bytes").map(|value| self.aioli_quantum = value),
            "mlf_quantum" => number("of bytes").map(|value| self.mlf_quantum = value),
            "SW_window" => number("of milliseconds").map(|value| self.sw_window_ms = value),
            "twins_window" => number("of microseconds").map(|value| self.twins_window_us = value),
            "trace" => match setting.value {
                Value::Bool(records) => {
                    self.records = records;
                    Ok(())
                }
                _ => Err("trace must be true or false".to_owned()),
            },
            "trace_file_prefix" => text().map(|value| self.trace_prefix = value),
            "trace_file_sufix" => text().map(|value| self.trace_suffix = value),
            "sluice_predict" => text().map(|value| {
                let paths = value.iter().flat_map(|value| value.split(':')).filter(|path| !path.is_empty());
                self.wanted.traces = paths.map(PathBuf::from).collect();
            }),
            "sluice_learn" => text().map(|value| self.wanted.learned = value.map(PathBuf::from)),
            "sluice_profile" => text().map(|value| self.wanted.profile = value.map(PathBuf::from)),
            other => match WITHOUT_EFFECT.iter().find(|(known, _)| *known == other) {
                Some(_) => Ok(()),
                None => Err(format!("unknown key {}", setting.path)),
            },
        };
        if let Err(what) = taken {
            self.warnings.push(format!("{name}:{}: {what}; ignored", setting.line));
        }
    }

    /// What is to be recorded and predicted.
    pub(crate) fn services(&mut self) -> Wanted {
        let mut wanted = std::mem::take(&mut self.wanted);
        if self.records {
            let name = |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.to_owned());
            let names = (name(&self.trace_prefix, DEFAULT_PREFIX), name(&self.trace_suffix, DEFAULT_SUFFIX));
            wanted.recordings = Some(names);
        }
        if !wanted.traces.is_empty() && wanted.learned.take().is_some() {
            self.warnings.push("sluice_learn: predicted is from the traces of sluice_predict; ignored".to_owned());
        }
        if wanted.profile.is_none() && (!wanted.traces.is_empty() || wanted.learned.is_some()) {
            self.warnings.push("without sluice_profile, the device's profile, nothing is waited for".to_owned());
        }
        wanted
    }

    /// The algorithm for this many queues.
    ///
    /// # Errors
    /// If there is none of that name, or a parameter is out of range.
    pub(crate) fn policy(&mut self, queues: u32) -> Result<PolicyConfig, String> {
        let wanted = self.algorithm.clone().unwrap_or_else(|| DEFAULT_ALGORITHM.to_owned());
        let name = if is_dynamic(&wanted) {
            let starting = self.starting.clone().unwrap_or_else(|| DEFAULT_ALGORITHM.to_owned());
            self.warnings
                .push(format!("{wanted}: there is no dynamic selection here; {starting} is used all the time"));
            starting
        } else {
            wanted
        };
        let mut policy = PolicyConfig::parse(&plain(&name)).map_err(|error| error.to_string())?;
        let quantum = if policy.name() == "mlf" { self.mlf_quantum } else { self.aioli_quantum };
        let window_ns = match policy.name() {
            "twins" => self.twins_window_us.map(|us| us.saturating_mul(1_000)),
            _ => self.sw_window_ms.map(|ms| ms.saturating_mul(1_000_000)),
        };
        let given = [
            ("quantum", quantum.map(|bytes| bytes.to_string())),
            ("wait_time", self.waiting_ns.map(|ns| format!("{ns}ns"))),
            ("window", window_ns.map(|ns| format!("{ns}ns"))),
            ("servers", Some(queues.to_string())),
        ];
        let known: Vec<&str> = policy.info().params.iter().map(|param| param.key).collect();
        for (key, value) in given.into_iter().filter(|(key, _)| known.contains(key)) {
            if let Some(value) = value {
                policy = policy.with(key, &value).map_err(|error| error.to_string())?;
            }
        }
        Ok(policy)
    }
}

/// AGIOS's name as it is written here: `TO-agg`, `TOAGG` and `to_agg` are one.
fn plain(name: &str) -> String {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    match letters.to_ascii_lowercase().as_str() {
        "toagg" | "timeorderagg" => "to-agg".to_owned(),
        "timeorder" => "to".to_owned(),
        other => other.to_owned(),
    }
}

fn is_dynamic(name: &str) -> bool {
    let plain = plain(name);
    plain.starts_with("dyn") || plain.contains("bandit")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str, queues: u32) -> (String, Vec<(String, String)>, Vec<String>) {
        let mut config = Config::parse("x.conf", text);
        let policy = config.policy(queues).unwrap();
        (policy.name().to_owned(), policy.describe(), config.warnings)
    }

    fn value<'a>(described: &'a [(String, String)], key: &str) -> &'a str {
        &described.iter().find(|(k, _)| k == key).unwrap().1
    }

    #[test]
    fn units_are_those_of_agios() {
        let text = "library_options : { trace = false; default_algorithm = \"aIOLi\"; waiting_time = 700000; aioli_quantum = 8192; mlf_quantum = 4096; };";
        let (name, params, warnings) = described(text, 1);
        assert_eq!(name, "aioli");
        assert_eq!((value(&params, "wait_time"), value(&params, "quantum")), ("700us", "8K"));
        assert!(warnings.is_empty(), "{warnings:?}");
        let (name, params, _) = described("default_algorithm = \"TWINS\"; twins_window = 2000;", 5);
        assert_eq!((name.as_str(), value(&params, "window"), value(&params, "servers")), ("twins", "2ms", "5"));
        let (name, params, _) = described("default_algorithm = \"SW\"; SW_window = 250;", 1);
        assert_eq!((name.as_str(), value(&params, "window")), ("sw", "250ms"));
    }

    #[test]
    fn names_of_agios_are_known() {
        for (theirs, ours) in
            [("MLF", "mlf"), ("TO-agg", "to-agg"), ("TOAGG", "to-agg"), ("TO", "to"), ("NOOP", "noop"), ("WFQ", "wfq")]
        {
            assert_eq!(described(&format!("default_algorithm = \"{theirs}\";"), 1).0, ours);
        }
        assert_eq!(described("", 1).0, "sjf");
        let (name, _, warnings) = described("default_algorithm = \"DYN_TREE\"; starting_algorithm = \"MLF\";", 1);
        assert_eq!((name.as_str(), warnings.len()), ("mlf", 1));
    }

    #[test]
    fn what_is_recorded_and_predicted() {
        let wanted = |text: &str| {
            let mut config = Config::parse("x.conf", text);
            (config.services(), config.warnings)
        };
        assert_eq!(wanted("trace = false; trace_file_prefix = \"/tmp/x\";"), (Wanted::default(), vec![]));
        let names = Some(("/tmp/x".to_owned(), "slt".to_owned()));
        assert_eq!(wanted("trace = true; trace_file_prefix = \"/tmp/x\";").0.recordings, names);
        let (both, warnings) =
            wanted("sluice_predict = \"a:b\"; sluice_learn = \"c\"; sluice_profile = \"p\"; trace = false;");
        assert_eq!((both.traces, both.learned), (vec!["a".into(), "b".into()], None));
        assert!(warnings.len() == 1 && warnings[0].starts_with("sluice_learn"), "{warnings:?}");
        let (learned, warnings) = wanted("sluice_learn = \"c\";");
        assert_eq!(learned.learned, Some("c".into()));
        assert!(warnings.len() == 1 && warnings[0].contains("sluice_profile"), "{warnings:?}");
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let (_, _, warnings) = described("colour = 1;\ntrace = 1;\nSW_window = \"long\";", 1);
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].starts_with("x.conf:1: unknown key colour"), "{warnings:?}");
        assert!(warnings[2].starts_with("x.conf:3: SW_window must be a number of milliseconds"), "{warnings:?}");
        assert!(Config::parse("x", "default_algorithm = \"magic\";").policy(1).is_err());
        assert!(Config::parse("x", "default_algorithm = \"MLF\"; mlf_quantum = 0;").policy(1).is_err());
    }
}
