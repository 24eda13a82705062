//! What `--help` and the manual pages say of a command beside its options: examples, environment, exit status.

pub(crate) mod completions;
pub(crate) mod man;
mod pages;

use std::fmt::Write as _;

use clap::Command;

use pages::{COMMON_VARIABLES, PAGES};

/// A command's part of the manual that its options do not tell.
pub(crate) struct Page {
    /// The command, as in `trace info`; empty for `sluice` itself.
    command: &'static str,
    /// Command lines, and what each does.
    examples: &'static [(&'static str, &'static str)],
    /// Environment variables beside those of all commands.
    variables: &'static [Variable],
    /// What exit status 0 means.
    success: &'static str,
    /// What exit status 1 means.
    failure: &'static str,
    /// Whether SIGINT or SIGTERM end it with a status of its own.
    interruptible: bool,
}

/// A name and what it does.
type Variable = (&'static str, &'static str);

impl Page {
    fn of(command: &str) -> Option<&'static Page> {
        PAGES.iter().find(|page| page.command == command)
    }

    fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.variables.iter().chain(COMMON_VARIABLES)
    }

    /// Whether it uses what there is of a trace or log.
    fn may_be_partial(&self) -> bool {
        let reads = ["info", "stats", "cat", "merge", "convert", "import", "replay", "predict"];
        self.command == "trace" || self.command.strip_prefix("trace ").is_some_and(|name| reads.contains(&name))
    }

    /// Every exit status with what it means.
    fn statuses(&self) -> Vec<(&'static str, &'static str)> {
        let mut all = vec![
            ("0", self.success),
            ("1", self.failure),
            ("2", "an option or a command that there is not, or without what it takes"),
        ];
        all.extend(self.may_be_partial().then_some(("3", "a part was missing; standard error says which")));
        all.extend(self.interruptible.then_some(("130", "it was interrupted (SIGINT, SIGTERM, SIGHUP)")));
        all
    }

    /// Below the options of `--help`.
    fn text(&self) -> String {
        let mut text = String::from("Examples:\n");
        for (line, what) in self.examples {
            let _ = writeln!(text, "  {line}\n{}", indented(what));
        }
        text.push_str("\nEnvironment:\n");
        for (name, what) in self.variables() {
            let _ = writeln!(text, "  {name}\n{}", indented(what));
        }
        text.push_str("\nExit status:\n");
        for (status, what) in self.statuses() {
            let _ = writeln!(text, "  {status:<4} {what}");
        }
        text.trim_end().to_owned()
    }
}

/// Lines that no terminal breaks, below what they explain.
fn indented(text: &str) -> String {
    let mut lines = vec![String::from("     ")];
    for word in text.split(' ') {
        if lines.last().is_some_and(|line| line.len() + word.len() > 76) {
            lines.push(String::from("     "));
        }
        lines.last_mut().expect("there is a line").extend([" ", word]);
    }
    lines.join("\n")
}

/// The command with all that its help says.
pub(crate) fn with_pages(command: Command) -> Command {
    add(command, "")
}

fn add(command: Command, path: &str) -> Command {
    let page = Page::of(path);
    let command = command.mut_subcommands(|child| {
        let path = format!("{path} {}", child.get_name());
        add(child, path.trim_start())
    });
    match page {
        Some(page) => command.after_long_help(page.text()),
        None => command,
    }
}

#[cfg(test)]
mod tests;
