use clap::{Arg, ArgAction, Command};

use super::pages::PAGES;
use super::*;

/// Every command that help shows, with its path: `trace info`.
fn commands() -> Vec<(String, Command)> {
    fn walk(command: &Command, path: &str, all: &mut Vec<(String, Command)>) {
        all.push((path.to_owned(), command.clone()));
        for child in command.get_subcommands().filter(|child| !child.is_hide_set() && child.get_name() != "help") {
            walk(child, format!("{path} {}", child.get_name()).trim_start(), all);
        }
    }
    let mut root = crate::command();
    root.build();
    let mut all = Vec::new();
    walk(&root, "", &mut all);
    all
}

/// An option's help as it is printed.
fn help_of(arg: &Arg) -> String {
    arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default()
}

#[test]
fn every_command_says_what_it_is_for_in_one_line() {
    for (path, command) in commands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!((10..=85).contains(&about.chars().count()) && !about.contains('\n'), "{path}: {about:?}");
        assert!(about.starts_with(|c: char| c.is_uppercase()) && !about.ends_with('.'), "{path}: {about:?}");
    }
}

#[test]
fn every_command_has_examples_environment_and_exit_status() {
    let all = commands();
    for (path, command) in &all {
        let text = command.clone().render_long_help().to_string();
        for part in ["Usage: sluice", "Examples:\n  sluice", "Environment:\n  ", "NO_COLOR", "Exit status:\n  0 "] {
            assert!(text.contains(part), "sluice {path} --help lacks {part:?}:\n{text}");
        }
    }
    for page in PAGES {
        assert!(all.iter().any(|(path, _)| path == page.command), "there is no command {:?}", page.command);
    }
}

#[test]
fn examples_are_command_lines_that_are_understood() {
    for page in PAGES {
        for (line, _) in page.examples {
            let first = line.split([';', '|', '>', '<', '&']).next().unwrap_or_default();
            let words: Vec<&str> = first.split_whitespace().collect();
            assert_eq!(words[0], "sluice", "{line}");
            let own = page.command.split(' ').take_while(|word| !word.is_empty());
            assert!(own.zip(&words[1..]).all(|(name, word)| name == *word), "{line} is no example of {}", page.command);
            let parsed = crate::command().try_get_matches_from(&words);
            let shows_help = |error: &clap::Error| error.kind() == clap::error::ErrorKind::DisplayHelp;
            assert!(parsed.as_ref().err().is_none_or(shows_help), "{line}: {}", parsed.unwrap_err());
        }
    }
}

/// What is not given has a value all the same, which help tells: with its unit, if it has one.
#[test]
fn every_value_has_a_default_or_is_none() {
    for (path, command) in commands() {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional()) {
            let takes_one = matches!(arg.get_action(), ArgAction::Set);
            if !takes_one || arg.is_required_set() {
                continue;
            }
            let name = format!("sluice {path} --{}", arg.get_long().unwrap_or_default());
            let told = help_of(arg);
            let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
            assert!(!defaults.is_empty() || told.contains("[default: "), "{name} does not tell its default: {told}");
            let value = arg.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
            let has_unit = |text: &str| text.ends_with(|c: char| c.is_alphabetic());
            if matches!(value.as_deref(), Some("TIME" | "DURATION" | "BYTES" | "SIZE")) {
                let inside = told.split_once("[default: ").map(|(_, rest)| rest.trim_end_matches(']').to_owned());
                let shown = defaults.first().map(|value| value.to_string()).or(inside).unwrap_or_default();
                assert!(has_unit(&shown), "{name}: the default {shown:?} has no unit");
            }
        }
    }
}

#[test]
fn manual_pages_have_the_sections_of_manual_pages() {
    let dir = tempfile::tempdir().unwrap();
    man::run(&man::Args { dir: dir.path().to_owned() }, crate::command()).unwrap();
    let pages: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(pages.len(), commands().len());
    for path in pages {
        let text = std::fs::read_to_string(&path).unwrap();
        for section in
            [".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", "\"EXIT STATUS\"", ".SH ENVIRONMENT", ".SH EXAMPLES"]
        {
            assert!(text.contains(section), "{} has no {section}", path.display());
        }
    }
}
