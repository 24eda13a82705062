//! Choosing the configuration while running.
//!
//! A [`Selector`] is told of every [window](Load) that has closed, and answers with an [`Arm`] when another one is to be used from
//! now on. It keeps, for each [kind of workload](Context), what each arm has been seen to gain ([`Knowledge`]); a workload
//! that comes back gets its best arm at once. What is not known is tried, within bounds. No clock, no thread, no randomness: the
//! same windows lead to the same decisions.
//!
//! # How it decides
//! * *Reward*: the logarithm of the work done per busy second, of the busiest engine ([`Load::rate`]). Windows without a choice (one request at a time)
//!   reward nothing; when there are only such for a while, the cheapest arm is used.
//! * *Straddling*: the window in which an arm or the workload changed is credited to nobody. A workload has changed when two windows in
//!   a row are of another class, when one is of a class that is known to be served badly, or when the test of Page and Hinkley
//!   ([`PageHinkley`]) says so of request size, mix or concurrency; when it says so of the reward, evidence is doubted, and what lost
//!   may be tried again, unless the rate comes back at once.
//! * *In step or apart*: an arm that brings programs that take turns in a file into step is not judged while it does, nor for a second
//!   before; it goes on while only the order of requests changes.
//! * *Memory below* ([`Settings::memory_below`]): what was written is written back during what comes. After a change of arms windows
//!   are credited to nobody until as many bytes were written as are held, which is learned from when such changes take effect. A
//!   window that asks for the same in another order, and is served as fast as expected, belongs to the workload that is there.
//! * *Trying*: the arm with the largest expected improvement (Mockus 1978) over the arm in use is tried for some windows, if that is
//!   enough for the time that is left, if its expected loss is at most [`Settings::loss_max`], and if there is budget:
//!   [`Settings::explore_share`] of the time with load, and a first allowance for devices of its kind. What is
//!   expected of arms that were not tried follows from those that were, by what they have in common.
//! * *Changing*: only if the gain over the time for which the workload is expected to last is more than the change costs, which is
//!   measured.

mod arm;
mod budget;
mod change;
mod context;
mod doubt;
mod explain;
mod held;
mod knowledge;
mod live;
mod load;
mod measured;
mod meter;
mod model;
mod parts;
pub(crate) mod random;
mod related;
mod replace;
mod state;
mod workload;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use arm::{Arm, ArmError, arms};
pub use change::{Direction, PageHinkley};
pub use context::{CLASSES_VERSION, Context};
pub use explain::{Alternative, Change, Explanation, Pattern, Record, Why};
pub use knowledge::{CONTEXTS_MAX, Expectation, Knowledge, Known, Value};
pub use live::{Selector, Settings};
pub use load::Load;
pub use measured::Measured;
pub use meter::Unevenness;
pub use model::{INPUTS, MODEL_VERSION, Model, ModelError, PURPOSE, SHIPPED_MODEL, inputs};
pub use state::{BYTES_MAX, StateError};

/// Who chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Nobody: what was set stays.
    #[default]
    Fixed,
    /// A model that was trained elsewhere.
    Tree,
    /// What was seen here.
    Bandit,
    /// What was seen here, and what a model says of what was not.
    #[serde(rename = "tree+bandit")]
    TreeBandit,
}

impl Kind {
    /// Names, as users write them.
    pub const NAMES: [(&str, Kind); 4] =
        [("fixed", Kind::Fixed), ("tree", Kind::Tree), ("bandit", Kind::Bandit), ("tree+bandit", Kind::TreeBandit)];

    /// Whether it asks a model.
    #[must_use]
    pub fn asks_model(self) -> bool {
        matches!(self, Kind::Tree | Kind::TreeBandit)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Kind::NAMES.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Kind, String> {
        let known = Kind::NAMES.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
        known.ok_or_else(|| format!("{text:?} is no selector; there are fixed, tree, bandit, tree+bandit"))
    }
}

/// What is known of the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// They are rotational: distance costs time.
    Disk,
    /// They have none.
    Flash,
    /// Nothing.
    #[default]
    Unknown,
}

impl Device {
    /// Seconds that may be spent on trying before any were earned.
    pub(crate) fn burn_in_s(self) -> f64 {
        match self {
            Device::Disk => 60.0,
            Device::Unknown => 20.0,
            Device::Flash => 1.0,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Device::Disk => "rotational devices",
            Device::Flash => "non-rotational devices",
            Device::Unknown => "devices of which nothing is known",
        })
    }
}

/// A selector that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// It is to ask a model, and there is none.
    #[error("selector {0} asks a model, and none was given: use bandit, which needs none and learns from what it sees")]
    NoModel(Kind),
}

/// What is expected of arms before they were tried: a model that was trained elsewhere.
pub trait Prior: Send + fmt::Debug {
    /// What it is, for people.
    fn name(&self) -> String;

    /// Throughput that is expected of an arm when the device sees this load, relative to any reference that is the same for all arms
    /// of one load (1.2: a fifth more than the reference). `None`: the model knows nothing of this arm or this load.
    fn expected(&self, load: &Load, device: Device, arm: &Arm) -> Option<f64>;
}
