//! Windows of the engines' statistics: their features as a data set, and whoever chooses algorithms by them.

use std::fmt::Write as _;

use sluice_core::{DurationFeatures, EngineConfig, OpFeatures, PolicyConfig, PreparedPolicy, WindowFeatures};

use super::{Failure, Simulation, node_policy};
use crate::calendar::Event;
use crate::scenario::Place;

/// What an engine saw in a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Whose engine it is.
    pub place: Place,
    /// The algorithm that was in force at the end of the window.
    pub policy: &'static str,
    /// What was asked for.
    pub features: WindowFeatures,
}

/// What an engine is to do from now on.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The algorithm; `twins` is told its `servers` and `node` afterwards.
    pub policy: PolicyConfig,
    /// The *live* settings ([`Engine::set_limits`](sluice_core::Engine::set_limits)); `None`: as they are.
    pub limits: Option<EngineConfig>,
}

/// Chooses algorithms while a simulation runs.
pub trait Selector {
    /// A window of an engine is over in which it saw something. Returns what it is to do from now on, if that is something else
    /// than `current`. `limits`: the engine's settings now.
    fn window_closed(
        &mut self,
        place: Place,
        features: &WindowFeatures,
        current: &PolicyConfig,
        limits: &EngineConfig,
    ) -> Option<Setup>;
}

impl Simulation<'_> {
    /// Plans the ends of windows, if anybody wants to know them.
    pub(super) fn plan_windows(&mut self) {
        if !self.export_windows && self.selector.is_none() && self.patterns.is_none() && !self.learns_devices {
            return;
        }
        for node in 0..self.nodes.len() as u32 {
            let length = self.nodes[node as usize].window_ns();
            self.calendar.plan(length, Event::Window(node));
            self.periodic += 1;
        }
    }

    /// A window of a node is over.
    pub(super) fn window(&mut self, node: u32) -> Result<(), Failure> {
        let now = self.calendar.now();
        let here = &mut self.nodes[node as usize];
        let place = if node < self.io_nodes { Place::IoNode(node) } else { Place::Server(node - self.io_nodes) };
        let clock = here.clock(now);
        here.engine.roll(clock);
        self.close_patterns(node, clock);
        self.learn_device(node);
        let here = &mut self.nodes[node as usize];
        let mut changed = false;
        while let Some(features) = here.engine.closed_window() {
            if self.export_windows {
                self.windows.push(Window { place, policy: here.policy.name(), features });
            }
            let (policy, limits) = (&here.policy, here.engine.config());
            let chosen = self.selector.as_mut().and_then(|it| it.window_closed(place, &features, policy, limits));
            if let Some(Setup { policy, limits }) = chosen {
                let number = if node < self.io_nodes { node } else { node - self.io_nodes };
                here.policy = node_policy(&policy, number, self.servers);
                if let Some(limits) = limits {
                    here.engine.set_limits(&limits).map_err(|error| Failure::Setup(error.to_string()))?;
                    // It has them again after a restart.
                    here.config = here.engine.config().clone();
                    if let (Some(check), Some(_)) = (&mut self.check, limits.anticipation) {
                        check.anticipates(node);
                    }
                }
                drop(here.engine.set_policy(clock, PreparedPolicy::new(&here.policy, &here.config)));
                changed = true;
                self.policy_changes += 1;
            }
        }
        self.plan_again(self.nodes[node as usize].window_ns(), Event::Window(node));
        let here = &mut self.nodes[node as usize];
        if changed && !here.down { self.pump(node) } else { Ok(()) }
    }
}

/// The features of windows as CSV, a line for each, with the name of each column in the first. Times are nanoseconds.
#[must_use]
pub fn windows_csv(windows: &[Window]) -> String {
    let mut text = String::from("place,policy,features_version,start_ns,end_ns");
    for op in ["read", "write"] {
        for name in OPS {
            let _ = write!(text, ",{op}_{name}");
        }
    }
    text.push_str(",files,apps,targets,batches,batch_requests_mean,batch_requests_max,depth_mean,depth_max");
    for kind in ["wait", "service"] {
        for name in ["count", "mean_ns", "p50_ns", "p99_ns", "max_ns"] {
            let _ = write!(text, ",{kind}_{name}");
        }
    }
    text.push_str(",blocked,expired,cancelled,refused\n");
    for Window { place, policy, features: f } in windows {
        let place = match place {
            Place::Server(number) => format!("server {number}"),
            Place::IoNode(number) => format!("io_node {number}"),
        };
        let _ = write!(text, "{place},{policy},{},{},{}", WindowFeatures::VERSION, f.start.0, f.end.0);
        f.ops.iter().for_each(|op| write_op(&mut text, op));
        let _ = write!(
            text,
            ",{},{},{},{},{:.6},{},{:.6},{}",
            f.files,
            f.apps,
            f.targets,
            f.batches,
            f.batch_requests_mean,
            f.batch_requests_max,
            f.depth_mean,
            f.depth_max
        );
        for DurationFeatures { count, mean_ns, p50_ns, p99_ns, max_ns } in [f.wait, f.service] {
            let _ = write!(text, ",{count},{mean_ns},{p50_ns},{p99_ns},{max_ns}");
        }
        let _ = writeln!(text, ",{},{},{},{}", f.blocked, f.expired, f.cancelled, f.refused);
    }
    text
}

/// Columns of an operation, in the order of [`write_op`].
const OPS: [&str; 13] = [
    "requests",
    "bytes",
    "size_min",
    "size_mean",
    "size_max",
    "distances",
    "distance_mean",
    "distance_abs_mean",
    "distance_normalised",
    "contiguous",
    "completed",
    "errors",
    "moved",
];

fn write_op(text: &mut String, op: &OpFeatures) {
    let OpFeatures { requests, bytes, size_min, size_mean, size_max, distances, .. } = *op;
    let _ = write!(text, ",{requests},{bytes},{size_min},{size_mean:.6},{size_max},{distances}");
    for value in [op.distance_mean, op.distance_abs_mean, op.distance_normalised, op.contiguous] {
        let _ = write!(text, ",{value:.6}");
    }
    let _ = write!(text, ",{},{},{}", op.completed, op.errors, op.moved);
}
