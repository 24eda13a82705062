//! What a coordinator does for its nodes: one module for each role behind one trait.

use std::fmt::Debug;

use sluice_adapt::orchestrator::Report;
use sluice_core::{GatePlan, Time};

use crate::seen::{Kind, Seen};
use crate::wire;

/// A node, from when it joins until it leaves. One that comes back is another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u64);

/// Who is to do something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// All nodes of a kind, and those that join later.
    Every(Kind),
    /// One.
    Node(NodeId),
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Use an algorithm.
    Policy {
        /// Its name.
        name: String,
        /// Length of its time windows in nanoseconds, if it has some; else 0.
        window_ns: u64,
    },
    /// Report locality, and serve one object at a time.
    Gate {
        /// Length of a window in nanoseconds: reports are wanted once in each.
        window_ns: u64,
        /// Who is served when, by the coordinator's clock; `None`: everything is served as it comes.
        plan: Option<GatePlan>,
    },
}

/// A decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Directive {
    /// Who.
    pub to: To,
    /// What.
    pub action: Action,
}

/// Decides something for all nodes. A state machine: times are arguments (of the coordinator's clock, in nanoseconds since 1970,
/// never going back), and nothing waits.
///
/// The coordinator sees to everything else: who is there, lost and doubled messages, numbering decisions, telling them to nodes that
/// missed them. A node that joins gets what was last said to all of its kind.
pub trait Role: Debug + Send {
    /// Which one this is.
    fn kind(&self) -> wire::Role;

    /// A node has announced what it saw. The first time it joins by that. O(log nodes), as it may be called thousands of times
    /// a second.
    fn announced(&mut self, now: Time, node: NodeId, seen: &Seen);

    /// A node has reported the locality of what it serves. Nobody does that who was not told to ([`Action::Gate`]).
    fn reported(&mut self, now: Time, node: NodeId, report: &Report) {
        let _ = (now, node, report);
    }

    /// A node has left, or has been silent for too long.
    fn left(&mut self, now: Time, node: NodeId);

    /// When [`Role::decide`] is to be called next; `None`: not before something is announced.
    fn due(&self) -> Option<Time>;

    /// What is to be done from now on. Called when it is due; may be called earlier.
    fn decide(&mut self, now: Time) -> Vec<Directive>;

    /// What it has learned, to be kept over restarts.
    fn save(&self) -> serde_json::Value;

    /// What was saved before.
    ///
    /// # Errors
    /// If that cannot be: with the reason. Nothing changes then.
    fn load(&mut self, now: Time, saved: serde_json::Value) -> Result<(), String>;

    /// What it knows and does, for people and programs: an object.
    fn status(&self) -> serde_json::Value;
}
