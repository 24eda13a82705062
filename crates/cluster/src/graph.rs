//! Graphs of GlusterFS (volfiles), bottom up.

use std::fmt::Write as _;
use std::path::Path;

use sluice_core::PolicyConfig;

use crate::config::Scheduling;

/// Where in an I/O node a translator stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Number of the I/O node.
    pub(crate) node: u32,
    /// Number of the data server.
    pub(crate) target: u32,
    /// How many data servers there are.
    pub(crate) targets: u32,
}

/// The parameters of an algorithm. One that takes turns with the data servers is told which I/O node it is in, and how many
/// servers there are.
fn parameters_at(scheduling: &Scheduling, policy: &str, place: Option<Place>) -> String {
    let mut text = scheduling.parameters.split_whitespace().collect::<Vec<_>>().join(" ");
    let takes_turns = PolicyConfig::parse(policy).is_ok_and(|policy| policy.info().shared_engine);
    if let Some(place) = place.filter(|_| takes_turns) {
        for (key, value) in [("servers", place.targets), ("node", place.node)] {
            if !text.split_whitespace().any(|word| word.starts_with(&format!("{key}="))) {
                text = format!("{text} {key}={value}");
            }
        }
    }
    text.trim_start().to_owned()
}

/// Words that mean something in a graph.
const KEYWORDS: [&str; 5] = ["volume", "type", "option", "subvolumes", "end-volume"];

/// The translator as a type. GlusterFS looks for types below its own directory, and has no other way to be told where one is.
fn kind_of(translator: &Path) -> String {
    format!("../../../../../..{}", translator.with_extension("").display())
}

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
        for (key, value) in options {
            let quote = if value.contains(char::is_whitespace) || KEYWORDS.contains(value) { "\"" } else { "" };
            _ = writeln!(text, "  option {key} {quote}{value}{quote}");
        }
        if !below.is_empty() {
            _ = writeln!(text, "  subvolumes {}", below.join(" "));
        }
        text.push_str("end-volume\n\n");
        self
    }

    /// Adds a translator `sluice`, if there is to be one, above `below`; its name, or that of what is below. `{machine}` in the
    /// values of options is the name of the machine that it is in: files of their own for all of them.
    pub(crate) fn sluice(
        &mut self,
        name: &str,
        machine: &str,
        translator: &Path,
        scheduling: &Scheduling,
        place: Option<Place>,
        below: &str,
    ) -> String {
        let Some(policy) = &scheduling.policy else { return below.to_owned() };
        let kind = kind_of(translator);
        let mut options = vec![("policy", policy.as_str())];
        let (parameters, target);
        if let Some(place) = place {
            target = place.target.to_string();
            options.extend([("scheduler", "node"), ("target", &target)]);
        }
        parameters = parameters_at(scheduling, policy, place);
        if !parameters.is_empty() {
            options.push(("policy-parameters", &parameters));
        }
        let values: Vec<String> =
            scheduling.options.values().map(|value| value.replace("{machine}", machine)).collect();
        options.extend(scheduling.options.keys().map(String::as_str).zip(values.iter().map(String::as_str)));
        self.volume(name, &kind, &options, &[below]);
        name.to_owned()
    }

    /// Adds a translator `sluice` above `below` that marks what passes as of the job that its program names, or else of this one.
    pub(crate) fn job(&mut self, translator: &Path, job: Option<&str>, below: &str) {
        let options: Vec<_> = [("announce", "on")].into_iter().chain(job.map(|job| ("job", job))).collect();
        self.volume("job", &kind_of(translator), &options, &[below]);
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}
