//! Graphs of GlusterFS (volfiles), bottom up.

use std::fmt::Write as _;
use std::path::Path;

use crate::config::Scheduling;

/// Volumes, each above those that it names.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    text: String,
}

impl Graph {
    /// Adds a volume.
    pub(crate) fn volume(&mut self, name: &str, kind: &str, options: &[(&str, &str)], below: &[&str]) -> &mut Graph {
        let text = &mut self.text;
        // Writing to a text cannot fail.
        _ = writeln!(text, "volume {name}\n  type {kind}");
        options.iter().for_each(|(key, value)| _ = writeln!(text, "  option {key} {value}"));
        if !below.is_empty() {
            _ = writeln!(text, "  subvolumes {}", below.join(" "));
        }
        text.push_str("end-volume\n\n");
        self
    }

    /// Adds a translator `sluice`, if there is to be one, above `below`; its name, or that of what is below.
    pub(crate) fn sluice(
        &mut self,
        name: &str,
        translator: &Path,
        scheduling: &Scheduling,
        scheduler: &str,
        below: &str,
    ) -> String {
        let Some(policy) = &scheduling.policy else { return below.to_owned() };
        // GlusterFS looks for types below its own directory, and has no other way to be told where one is.
        let file = translator.with_extension("");
        let kind = format!("../../../../../..{}", file.display());
        let mut options = vec![("policy", policy.as_str())];
        if !scheduling.parameters.is_empty() {
            options.push(("policy-parameters", &scheduling.parameters));
        }
        if !scheduler.is_empty() {
            options.push(("scheduler", scheduler));
        }
        options.extend(scheduling.options.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        self.volume(name, &kind, &options, &[below]);
        name.to_owned()
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}
