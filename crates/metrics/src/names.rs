//! The names. `docs/operation.md` has the same list; a test compares.

/// What a metric is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows; its name ends in `_total` where it is read.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How many took how long, in seconds.
    Histogram,
}

/// A metric.
#[derive(Debug)]
pub struct Metric {
    /// As in queries.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($name:literal $kind:ident $labels:tt $help:literal;)*) => {
        /// All of them.
        pub static METRICS: &[Metric] = &[$(Metric { name: $name, kind: Kind::$kind, labels: &$labels, help: $help },)*];
    };
}

metrics! {
    "sluice_requests" Counter ["op"] "Requests completed, with or without an error";
    "sluice_bytes" Counter ["op"] "Bytes moved";
    "sluice_errors" Counter ["op"] "Requests that failed";
    "sluice_batches" Counter [] "Batches dispatched";
    "sluice_batched_requests" Counter [] "Requests in them";
    "sluice_blocked" Counter [] "Requests that waited for an earlier one that they overlap";
    "sluice_expired" Counter [] "Batches that went first because of max_wait";
    "sluice_queued" Gauge [] "Requests that wait";
    "sluice_in_flight" Gauge [] "Requests dispatched and not completed";
    "sluice_wait_seconds" Histogram [] "From submission to dispatch";
    "sluice_service_seconds" Histogram [] "From dispatch to completion";
    "sluice_policy" Gauge ["policy"] "1 for the algorithm in force";
    "sluice_window_seconds" Gauge [] "Time window of the algorithm in force; 0: it has none";
    "sluice_node_connected" Gauge ["coordinator"] "1 if the coordinator answers";
    "sluice_node_announcements" Counter ["coordinator"] "Announcements sent";
    "sluice_node_decisions" Counter ["coordinator"] "Decisions carried out";
    "sluice_node_disconnections" Counter ["coordinator"] "Connections that failed or ended";
    "sluice_node_clock_offset_seconds" Gauge ["coordinator"] "The coordinator's clock minus the scheduler's";
    "sluice_coordinator_nodes" Gauge [] "Nodes that are there";
    "sluice_coordinator_announcements" Counter [] "Announcements taken";
    "sluice_coordinator_decisions" Counter [] "Decisions made";
    "sluice_coordinator_missing" Counter [] "Numbers missing between messages of nodes";
    "sluice_coordinator_stale" Counter [] "Messages that were late or doubled";
    "sluice_coordinator_refused" Counter [] "Messages that no node sends";
    "sluice_coordinator_lost" Counter [] "Nodes that were silent for too long, or began anew";
    "sluice_coordinator_node_silent_seconds" Gauge ["node"] "Since a node was heard last";
}

/// A metric by its name.
///
/// # Panics
/// If there is none: names are written in the sources.
#[must_use]
pub fn name(name: &str) -> &'static Metric {
    METRICS.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name} is no metric"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_documentation() {
        let text = include_str!("../../../docs/operation.md");
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `sluice_")?.split('`').next());
        let documented: Vec<String> = rows.map(|rest| format!("sluice_{rest}")).collect();
        let row = |metric: &Metric| {
            let total = if metric.kind == Kind::Counter { "_total" } else { "" };
            let labels =
                if metric.labels.is_empty() { String::new() } else { format!("{{{}}}", metric.labels.join(",")) };
            format!("{}{total}{labels}", metric.name)
        };
        assert_eq!(documented, METRICS.iter().map(row).collect::<Vec<_>>());
    }
}
