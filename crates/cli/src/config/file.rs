//! Reads a configuration file; mistakes are answered with file, line and the nearest name.

use std::path::Path;

use anyhow::{Context, anyhow};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Settings;
use super::keys::{self, KEYS, PARAMS};
use super::value::Given;
use crate::input;

/// Reads the file at `path` over `settings`.
///
/// # Errors
/// If it cannot be read, is not TOML, or has a key or value that is not known.
pub(crate) fn read(path: &Path, settings: &mut Settings) -> anyhow::Result<()> {
    let name = input::name(path);
    let text = input::text(path).with_context(|| format!("the configuration file {name} cannot be read"))?;
    let base = path.parent().unwrap_or(Path::new(""));
    parse(&text, &name, base, settings)
}

/// A file's text, and how to point at a place in it.
struct Source<'a> {
    name: &'a str,
    text: &'a str,
    base: &'a Path,
}

impl Source<'_> {
    fn at(&self, offset: usize, what: impl std::fmt::Display) -> anyhow::Error {
        let line = 1 + self.text.as_bytes()[..offset.min(self.text.len())].iter().filter(|&&b| b == b'\n').count();
        anyhow!("{}, line {line}: {what}", self.name)
    }
}

fn parse(text: &str, name: &str, base: &Path, settings: &mut Settings) -> anyhow::Result<()> {
    let source = Source { name, text, base };
    let document = DeTable::parse(text)
        .map_err(|error| source.at(error.span().map_or(0, |span| span.start), error.message().replace('\n', ", ")))?;
    let mut params_at = 0;
    for (section, content) in document.get_ref() {
        let Some(table) = content.get_ref().as_table() else {
            return Err(source.at(section.span().start, outside_sections(section.get_ref())));
        };
        let section_name: &str = section.get_ref();
        if !keys::sections().contains(&section_name) {
            let hint = sluice_notation::hint(section_name, keys::sections());
            return Err(source.at(section.span().start, format!("unknown section [{section_name}]{hint}")));
        }
        for (key, value) in table {
            if section_name == "scheduler" && key.get_ref() == "params" {
                params_at = key.span().start;
                settings.params = params(&source, key.span().start, value)?;
            } else {
                set(&source, section_name, key, value, settings)?;
            }
        }
    }
    // Parameters belong to an algorithm, so they can be judged only now.
    settings.policy().map(drop).map_err(|error| source.at(policy_place(&document, params_at), error))
}

/// A key before the first section.
fn outside_sections(key: &str) -> String {
    match KEYS.iter().find(|known| known.name == key) {
        Some(known) => format!("{key} belongs into the section [{}]", known.section),
        None => format!("{key} stands outside the sections [{}]", keys::sections().join("], [")),
    }
}

fn policy_place(document: &Spanned<DeTable<'_>>, params_at: usize) -> usize {
    if params_at != 0 {
        return params_at;
    }
    let scheduler = document.get_ref().get("scheduler").and_then(|section| section.get_ref().as_table());
    scheduler.and_then(|table| table.get("policy")).map_or(0, |value| value.span().start)
}

fn set(
    source: &Source<'_>,
    section: &str,
    key: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
    settings: &mut Settings,
) -> anyhow::Result<()> {
    let name: &str = key.get_ref();
    let Some(known) = keys::find(section, name) else {
        return Err(source.at(key.span().start, unknown_key(section, name)));
    };
    let bad = |expected: &str| {
        let written = &source.text[value.span()];
        source.at(value.span().start, format!("{section}.{name} = {written} cannot be used; expected {expected}"))
    };
    let texts = texts(value.get_ref()).ok_or_else(|| bad("a text, a number, true or false, or a list of texts"))?;
    let given = Given { texts, base: source.base };
    (known.set)(settings, &given).map_err(|expected| bad(&expected))
}

fn unknown_key(section: &str, name: &str) -> String {
    if let Some(elsewhere) = KEYS.iter().find(|known| known.name == name) {
        return format!("[{section}] has no key {name}, but [{}] has", elsewhere.section);
    }
    let names: Vec<&str> = KEYS.iter().filter(|known| known.section == section).map(|known| known.name).collect();
    let hint = sluice_notation::hint(name, names.clone());
    let all = names.join(", ");
    // After a question mark a sentence begins.
    if hint.is_empty() {
        format!("[{section}] has no key {name}; it has {all}")
    } else {
        format!("[{section}] has no key {name}{hint} It has {all}")
    }
}

fn params(source: &Source<'_>, at: usize, value: &Spanned<DeValue<'_>>) -> anyhow::Result<Vec<(String, String)>> {
    let table = value.get_ref().as_table().ok_or_else(|| source.at(at, format!("[{PARAMS}] must be a section")))?;
    let mut params = Vec::new();
    for (key, value) in table {
        let name: &str = key.get_ref();
        // `weight.3 = 5` is a table to TOML.
        if let Some(numbers) = value.get_ref().as_table() {
            for (number, value) in numbers {
                params.push((format!("{name}.{}", number.get_ref()), one(source, value)?));
            }
        } else {
            params.push((name.to_owned(), one(source, value)?));
        }
    }
    Ok(params)
}

fn one(source: &Source<'_>, value: &Spanned<DeValue<'_>>) -> anyhow::Result<String> {
    match texts(value.get_ref()) {
        Some(texts) if texts.len() == 1 && value.get_ref().as_array().is_none() => Ok(texts[0].clone()),
        _ => Err(source.at(value.span().start, "a parameter is a text, a number, or true or false")),
    }
}

/// The value as text; a list as several. Numbers are kept as they were written.
fn texts(value: &DeValue<'_>) -> Option<Vec<String>> {
    match value {
        DeValue::String(text) => Some(vec![text.to_string()]),
        DeValue::Integer(number) if number.radix() == 10 => Some(vec![number.as_str().to_owned()]),
        DeValue::Float(number) => Some(vec![number.as_str().to_owned()]),
        DeValue::Boolean(flag) => Some(vec![flag.to_string()]),
        DeValue::Array(list) => list.iter().map(|entry| entry.get_ref().as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = include_str!("../../../../sluice.example.toml");

    fn parsed(text: &str) -> anyhow::Result<Settings> {
        let mut settings = Settings::default();
        parse(text, "test.toml", Path::new("/etc/sluice"), &mut settings)?;
        Ok(settings)
    }

    fn error(text: &str) -> String {
        parsed(text).unwrap_err().to_string()
    }

    /// A line `#key = value` is a setting; explanations have a space after the `#`.
    fn uncommented() -> String {
        let set = |line: &str| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => format!("{rest}\n"),
            _ => format!("{line}\n"),
        };
        EXAMPLE.lines().map(set).collect()
    }

    #[test]
    fn the_example_sets_nothing_as_it_is() {
        assert_eq!(format!("{:?}", parsed(EXAMPLE).unwrap()), format!("{:?}", Settings::default()));
    }

    #[test]
    fn the_example_has_every_key_and_shows_the_defaults() {
        let text = uncommented();
        let document: toml::Table = text.parse().unwrap();
        for key in KEYS {
            assert!(
                document[key.section].get(key.name).is_some(),
                "{}.{} is not in the example",
                key.section,
                key.name
            );
        }
        let mut settings = parsed(&text).unwrap();
        let default = Settings::default();
        assert_eq!(settings.source.take().unwrap(), Path::new("/scratch"));
        assert!(settings.mountpoint.take().is_some() && settings.log.take().is_some());
        assert_eq!(std::mem::take(&mut settings.mount.name), "scratch");
        assert!(settings.emulate.take().is_some() && !settings.targets.is_empty());
        // Named, they are what they are, also where nobody would choose another.
        assert_eq!(settings.policy.take().as_deref(), Some(settings.policy().unwrap().name()));
        assert!(
            settings.learned.take().is_some() && settings.decisions.take().is_some() && settings.model.take().is_some()
        );
        assert!(
            settings.coordinator.take().is_some()
                && settings.token_file.take().is_some()
                && settings.node.take().is_some()
        );
        assert!(settings.metrics.take().is_some());
        let tier = &mut settings.tier;
        assert!(tier.disk.take().is_some() && tier.ssd.take().is_some() && tier.file.take().is_some());
        let prediction = &mut settings.prediction;
        assert!(
            settings.record.take().is_some()
                && prediction.profile.take().is_some()
                && prediction.state.take().is_some()
        );
        assert_eq!(prediction.margin.take(), Some(sluice_adapt::predictor::Settings::default().margin));
        // Not given, it is that of the volume.
        assert_eq!(settings.stripe.take(), Some(sluice_storage::striped::DEFAULT_STRIPE));
        assert_eq!(settings.first_target.take(), Some(sluice_storage::striped::FirstTarget::Hash));
        // These depend on who mounts.
        settings.mount.allow_other = default.mount.allow_other;
        settings.targets = Vec::new();
        assert_eq!(format!("{settings:?}"), format!("{default:?}"));
    }

    #[test]
    fn the_example_names_every_parameter_of_every_algorithm() {
        for info in sluice_core::policy::table() {
            let row = EXAMPLE.lines().find(|line| line.starts_with(&format!("#   {} ", info.name))).unwrap_or_default();
            for param in info.params {
                assert!(row.contains(&format!("  {} = ", param.key)), "{} of {} is missing", param.key, info.name);
            }
        }
    }

    #[test]
    fn mistakes_name_file_line_and_nearest_key() {
        assert_eq!(
            error("[mount]\n\nchache = \"none\"\n").split(" It has").next(),
            Some("test.toml, line 3: [mount] has no key chache; did you mean \"cache\"?")
        );
        assert!(
            error("[mount]\ncache = \"fast\"")
                .contains("line 2: mount.cache = \"fast\" cannot be used; expected one of none")
        );
        assert!(error("[mount]\nstripe = 1").contains("[mount] has no key stripe, but [volume] has"));
        assert!(error("policy = \"sjf\"").contains("policy belongs into the section [scheduler]"));
        assert!(error("[shceduler]").contains("did you mean \"scheduler\"?"));
        assert!(error("\n[mount\n").contains("test.toml, line 2:"));
        assert!(error("[mount]\ncache = [1]").contains("line 2"));
        assert!(error("[scheduler]\npolicy = \"sfj\"").contains("line 2"));
        assert!(error("[scheduler]\npolicy = \"sfj\"").contains("did you mean \"sjf\"?"));
        let text = "[scheduler]\npolicy = \"mlf\"\n[scheduler.params]\nwait_tine = \"1ms\"";
        assert!(error(text).contains("did you mean \"wait_time\"?"), "{}", error(text));
    }

    #[test]
    fn paths_count_from_the_file() {
        let settings = parsed("[mount]\nsource = \"data\"\n[volume]\ntargets = [\"a\", \"/b\"]").unwrap();
        assert_eq!(settings.source.unwrap(), Path::new("/etc/sluice/data"));
        assert_eq!(settings.targets, [Path::new("/etc/sluice/a"), Path::new("/b")]);
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "\\PC*", key in 0..KEYS.len(), value in "\\PC{0,12}") {
            let _ = parsed(&text);
            let (section, name) = (KEYS[key].section, KEYS[key].name);
            let _ = parsed(&format!("[{section}]\n{name} = {value}"));
            let _ = parsed(&format!("[{section}]\n{name} = {value:?}"));
        }
    }
}
