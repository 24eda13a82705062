//! The lines that go over the control socket.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sluice_core::{AppCounts, Counters, Histogram, Op};

use super::window::Window;
use crate::predict;

/// Version of the protocol; both sides must speak the same.
pub(super) const VERSION: u32 = 1;
/// Longest line that a server reads, in bytes.
pub(super) const LINE_MAX: u64 = 64 << 10;

/// A client's line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) version: u32,
    #[serde(flatten)]
    pub(super) command: Command,
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(crate) enum Command {
    /// The state of the mount.
    Status,
    /// Another algorithm.
    SetPolicy {
        /// Its name.
        name: String,
        /// Its parameters, as users write them.
        #[serde(default)]
        params: Vec<(String, String)>,
    },
    /// Record every request in a new file.
    TraceStart {
        /// The file, as an absolute path.
        path: PathBuf,
        /// With checksums of the data.
        #[serde(default)]
        checksums: bool,
    },
    /// End the recording.
    TraceStop,
    /// Predict from something else from now on.
    Predict {
        /// What.
        from: Predict,
    },
    /// The selector goes on after somebody has chosen by hand.
    Adapt,
    /// Keep what the selector has learned now.
    Keep,
    /// The end.
    Unmount {
        /// Out of sight at once, even if in use.
        #[serde(default)]
        lazy: bool,
    },
}

/// What to predict from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Predict {
    /// Nothing.
    Off,
    /// What repeats.
    Learn,
    /// Traces, by absolute paths.
    Files(Vec<PathBuf>),
}

/// A recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) path: String,
    pub(crate) entries: u64,
    /// Requests lost because the recorder could not keep up.
    pub(crate) dropped: u64,
    /// Why nothing is written any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
}

impl From<sluice_runtime::Recording> for Recorded {
    fn from(recording: sluice_runtime::Recording) -> Recorded {
        let sluice_runtime::Recording { path, entries, dropped, failed } = recording;
        Recorded { path: path.display().to_string(), entries, dropped, failed }
    }
}

/// The server's line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) version: u32,
    pub(super) ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Box<Status>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) recorded: Option<Recorded>,
}

impl Reply {
    pub(super) fn done() -> Reply {
        Reply { version: VERSION, ok: true, error: None, status: None, recorded: None }
    }

    pub(super) fn status(status: Status) -> Reply {
        Reply { status: Some(Box::new(status)), ..Reply::done() }
    }

    pub(super) fn recorded(recorded: Recorded) -> Reply {
        Reply { recorded: Some(recorded), ..Reply::done() }
    }

    pub(super) fn refused(error: impl Into<String>) -> Reply {
        Reply { ok: false, error: Some(error.into()), ..Reply::done() }
    }
}

/// An algorithm with all its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) params: Vec<(String, String)>,
}

/// How long devices are kept idle for the streams they serve.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Anticipating {
    /// What moving costs a device, in milliseconds.
    pub(crate) positioning_ms: f64,
    /// How long a stream is served while others wait, in milliseconds.
    pub(crate) slice_ms: f64,
    /// How far from its last request, in bytes, a stream may go on.
    pub(crate) near_bytes: u64,
}

impl From<sluice_core::Anticipation> for Anticipating {
    fn from(anticipation: sluice_core::Anticipation) -> Anticipating {
        Anticipating {
            positioning_ms: anticipation.positioning_ns as f64 / 1e6,
            slice_ms: anticipation.slice_ns as f64 / 1e6,
            near_bytes: anticipation.near_bytes,
        }
    }
}

/// How syncs of several programs are put off so that they go together.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GroupCommit {
    /// What moving costs a device, in milliseconds.
    pub(crate) positioning_ms: f64,
    /// Syncs that came, and the groups in which they were carried out.
    pub(crate) syncs: u64,
    pub(crate) groups: u64,
    /// Syncs that were put off, and for how long in the mean.
    pub(crate) held: u64,
    pub(crate) held_mean_ms: f64,
    /// Times that somebody who was expected did not come.
    pub(crate) missed: u64,
}

impl GroupCommit {
    /// If any are put off.
    pub(super) fn of(told: sluice_fuse::GroupCommits) -> Option<GroupCommit> {
        let counts = told.counts;
        (told.positioning_ns > 0).then(|| GroupCommit {
            positioning_ms: told.positioning_ns as f64 / 1e6,
            syncs: counts.syncs,
            groups: counts.groups,
            held: counts.held,
            held_mean_ms: counts.held_ns as f64 / 1e6 / counts.held.max(1) as f64,
            missed: counts.missed,
        })
    }
}

/// Programs that are served one at a time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Gate {
    /// Objects that have a slice, all others among them.
    pub(crate) objects: usize,
    /// The one that is served, from 0.
    pub(crate) open: usize,
    /// For how long it will still be.
    pub(crate) left_ms: f64,
    /// Length of a window.
    pub(crate) window_ms: f64,
    /// Requests held back now.
    pub(crate) held: u32,
    /// Slices that have begun, in all engines together.
    pub(crate) slices: u64,
    /// Of them, those cut short.
    pub(crate) cuts: u64,
    /// Held requests that went because they had waited too long.
    pub(crate) overdue: u64,
    /// Held requests that went because others waited for them.
    pub(crate) called: u64,
}

impl Gate {
    /// Of all engines, which follow the same plan.
    pub(super) fn of(at: sluice_core::Time, shards: &[sluice_runtime::ShardSnapshot]) -> Option<Gate> {
        let all = || shards.iter().filter_map(|shard| shard.gate.as_ref());
        let first = all().find(|gate| gate.plan.is_some())?;
        let plan = first.plan.as_ref()?;
        Some(Gate {
            objects: plan.slices.len(),
            open: first.open,
            left_ms: first.until.since(at) as f64 / 1e6,
            window_ms: plan.window_ns() as f64 / 1e6,
            held: all().map(|gate| gate.held).sum(),
            slices: all().map(|gate| gate.changes).sum(),
            cuts: all().map(|gate| gate.cuts).sum(),
            overdue: all().map(|gate| gate.overdue).sum(),
            called: all().map(|gate| gate.called).sum(),
        })
    }
}

/// A mount at one moment: what `sluice status --json` prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) program_version: String,
    pub(crate) pid: u32,
    pub(crate) mountpoint: String,
    pub(crate) uptime_s: f64,
    pub(crate) policy: Policy,
    pub(crate) storage: String,
    /// Service times are emulated: the figures are those of a device that is not there.
    pub(crate) emulated: bool,
    pub(crate) cache: String,
    pub(crate) read_only: bool,
    pub(crate) targets: u32,
    pub(crate) engines: usize,
    /// Batches that may be in flight in each engine; 0: as many as there are workers.
    pub(crate) in_flight_max: u32,
    /// How devices are kept idle for streams, unless they are not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) anticipation: Option<Anticipating>,
    /// How syncs are put together, unless they are not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) group_commit: Option<GroupCommit>,
    /// Whether programs are served one at a time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) gate: Option<Gate>,
    pub(crate) workers: String,
    pub(crate) queued: u32,
    pub(crate) in_flight: u32,
    pub(crate) known_objects: usize,
    /// The last full window (a second, unless set otherwise); empty if nothing happened.
    pub(crate) recent: Flow,
    /// Since the mount began.
    pub(crate) total: Flow,
    pub(crate) apps: Vec<App>,
    /// The last closed window of each engine that had one.
    #[serde(default)]
    pub(crate) windows: Vec<Window>,
    /// The recording that is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recording: Option<Recorded>,
    /// What is predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prediction: Option<predict::Status>,
    /// What was learned of the devices, if anybody learns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<sluice_select::DeviceStatus>,
    /// What is chosen and why, if somebody chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) selection: Option<sluice_select::Status>,
    /// How it is with the coordinator, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) coordinator: Option<sluice_control::AgentStatus>,
    /// The SSD before the disk, if there is one: what `docs/tier.md` says of its status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tier: Option<serde_json::Value>,
    /// What a user should know.
    pub(crate) notes: Vec<String>,
}

/// What passed in some stretch of time. A request is a piece here: what a call of an application was split into for one
/// target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Flow {
    pub(crate) seconds: f64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) read_mb_s: f64,
    pub(crate) write_mb_s: f64,
    pub(crate) requests_per_s: f64,
    pub(crate) errors: u64,
    pub(crate) batches: u64,
    pub(crate) mean_aggregation: f64,
    pub(crate) batch_requests_max: u32,
    pub(crate) mean_depth: f64,
    pub(crate) depth_max: u32,
    pub(crate) expired: u64,
    /// Batches that went first because they go on with the stream that is being served.
    #[serde(default)]
    pub(crate) continued: u64,
    pub(crate) blocked: u64,
    pub(crate) wait: Latency,
    pub(crate) service: Latency,
}

/// A distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p95_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

/// One application since the mount began.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct App {
    /// Its number, for parameters like `weight.NUMBER`; absent where several are counted together.
    pub(crate) number: Option<u32>,
    pub(crate) name: String,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    /// In the last full window.
    pub(crate) recent_mb_s: f64,
    /// From arrival to completion.
    pub(crate) latency: Latency,
    /// What its processes do, if they say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) phases: Option<Phases>,
}

/// What the processes of an application do, as they say.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Phases {
    pub(crate) computing: u32,
    pub(crate) in_io: u32,
    pub(crate) in_batch: u32,
    pub(crate) batches: u64,
    pub(crate) batch_bytes: u64,
}

impl From<sluice_fuse::Phases> for Phases {
    fn from(said: sluice_fuse::Phases) -> Phases {
        let sluice_fuse::Phases { computing, in_io, in_batch, batches, batch_bytes } = said;
        Phases { computing, in_io, in_batch, batches, batch_bytes }
    }
}

impl Latency {
    fn of(histogram: &Histogram) -> Latency {
        let us = |ns: u64| ns as f64 / 1e3;
        Latency {
            mean_us: us(histogram.mean_ns()),
            p50_us: us(histogram.percentile_ns(50.0)),
            p95_us: us(histogram.percentile_ns(95.0)),
            p99_us: us(histogram.percentile_ns(99.0)),
            max_us: us(histogram.max_ns()),
        }
    }
}

impl Flow {
    /// The counters of `seconds`.
    pub(super) fn of(counters: &Counters, seconds: f64) -> Flow {
        let [read, write] = [Op::Read, Op::Write].map(|op| counters.ops[op.index()]);
        let per_s = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        Flow {
            seconds,
            reads: read.completed,
            writes: write.completed,
            read_bytes: read.bytes,
            write_bytes: write.bytes,
            read_mb_s: per_s(read.bytes as f64 / 1e6),
            write_mb_s: per_s(write.bytes as f64 / 1e6),
            requests_per_s: per_s(counters.completed() as f64),
            errors: read.errors + write.errors,
            batches: counters.batches,
            mean_aggregation: counters.mean_aggregation(),
            batch_requests_max: counters.batch_requests_max,
            mean_depth: counters.mean_depth(),
            depth_max: counters.depth_max,
            expired: counters.expired,
            continued: counters.continued,
            blocked: counters.blocked,
            wait: Latency::of(&counters.wait),
            service: Latency::of(&counters.service),
        }
    }
}

impl App {
    /// An application's counters, with those of the last window if it was active there.
    pub(super) fn of(total: &AppCounts, recent: Option<&AppCounts>, recent_s: f64, name: String) -> App {
        let recent_bytes = recent.map_or(0, |recent| recent.bytes);
        App {
            number: total.app.map(|app| app.0),
            name,
            requests: total.completed,
            bytes: total.bytes,
            recent_mb_s: if recent_s > 0.0 { recent_bytes as f64 / 1e6 / recent_s } else { 0.0 },
            latency: Latency::of(&total.latency),
            phases: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_the_documentation_says() {
        let line = r#"{"version":1,"command":"set_policy","name":"mlf","params":[["wait_time","1ms"]]}"#;
        let question: Question = serde_json::from_str(line).unwrap();
        assert_eq!(question.version, 1);
        let params = vec![("wait_time".to_owned(), "1ms".to_owned())];
        assert_eq!(question.command, Command::SetPolicy { name: "mlf".into(), params });
        assert_eq!(serde_json::to_string(&question).unwrap(), line);
        let short: Question = serde_json::from_str(r#"{"version":1,"command":"unmount"}"#).unwrap();
        assert_eq!(short.command, Command::Unmount { lazy: false });
        assert_eq!(serde_json::to_string(&Reply::done()).unwrap(), r#"{"version":1,"ok":true}"#);
    }

    /// With all that there can be.
    fn selection() -> sluice_select::Status {
        use sluice_adapt::selector::{Alternative, Change, Explanation, Pattern, Why};
        let (arm, verdict) = (String::new(), String::new());
        let alternative = Alternative { arm, gain_percent: 0.0, uncertainty_percent: 0.0, windows: 0.0, verdict };
        let explanation = Explanation {
            model: Some(String::new()),
            workload: Some(String::new()),
            context: Some(String::new()),
            pattern: Some(Pattern { why: Some(String::new()), ..Default::default() }),
            expected_mb_s: Some(0.0),
            alternatives: vec![alternative],
            last_change: Some(Change { ago_s: 0.0, from: String::new(), to: String::new(), why: Why::Better }),
            ..Default::default()
        };
        let (state, log) = (Some("state".into()), Some("log".into()));
        sluice_select::Status { explanation, note: Some("note".into()), state, log, ..Default::default() }
    }

    /// With all that there can be.
    fn device() -> sluice_select::DeviceStatus {
        let some = Some(0.0);
        let sizes =
            vec![sluice_select::SizeStatus { sequential_us: some, random_us: some, ratio: some, ..Default::default() }];
        sluice_select::DeviceStatus {
            positioning_ms: some,
            read_mb_s: some,
            write_mb_s: some,
            sizes,
            state: Some("state".into()),
            note: Some("note".into()),
            ..Default::default()
        }
    }

    /// Programs rely on it: nothing goes, and nothing comes without a word.
    #[test]
    fn every_field_is_documented_and_every_documented_one_is_there() {
        let learned = predict::Learned { state: Some("state".into()), ..Default::default() };
        let traces = vec![predict::TraceUse::default()];
        let status = Status {
            anticipation: Some(Anticipating::default()),
            group_commit: Some(GroupCommit::default()),
            gate: Some(Gate::default()),
            apps: vec![App { phases: Some(Default::default()), ..App::default() }],
            windows: vec![Window::default()],
            recording: Some(Recorded { path: String::new(), entries: 0, dropped: 0, failed: Some(String::new()) }),
            prediction: Some(predict::Status { learned: Some(learned), traces, ..Default::default() }),
            device: Some(device()),
            selection: Some(selection()),
            coordinator: Some(sluice_control::AgentStatus::default()),
            tier: Some(serde_json::Value::Null),
            ..Default::default()
        };
        let mut printed = serde_json::to_value(&status).unwrap();
        printed["schema"] = 1.into();
        let mut objects = 0;
        let mut lines = include_str!("../../../../docs/status.md").lines();
        while let Some(head) = lines.find(|line| line.starts_with("| field")) {
            let rows = lines.by_ref().skip(1).take_while(|line| line.starts_with('|'));
            let mut documented: Vec<&str> = rows.flat_map(quoted).collect();
            documented.sort_unstable();
            let paths = match quoted(head) {
                paths if paths.is_empty() => vec![""],
                paths => paths,
            };
            for path in paths {
                let pointer: String = path.split('.').map(|name| format!("/{}", name.replace("[]", "/0"))).collect();
                let object = printed.pointer(if path.is_empty() { "" } else { &pointer }).unwrap();
                let mut there: Vec<&String> = object.as_object().unwrap().keys().collect();
                there.sort_unstable();
                assert_eq!(there, documented, "{path:?} in docs/status.md");
                objects += 1;
            }
        }
        assert_eq!(objects, 30, "tables that are found");
    }

    /// What stands in backticks in the first cell of a row.
    fn quoted(row: &str) -> Vec<&str> {
        row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2).collect()
    }
}
