//! The orchestrator: which programs are served one at a time on all data servers, and for how long (IOrchestrator: Zhang 2012,
//! chapter 5).
//!
//! Each server [reports](Report) the locality of what it serves; [`Orchestrator::decide`] makes a [`Plan`] of it, which servers
//! [follow](Follower) by themselves: it says when windows begin, how they are divided, and when it expires. So slices agree on
//! all servers without a message for each, and whoever hears no more of the orchestrator is back to normal scheduling after one
//! window. No clock, no thread, no I/O; times are those of a clock that all share, in nanoseconds.
//!
//! Deviations from the paper, each a [setting](Settings): values are compared as means over a window, since one sample of a
//! filter that gives 7/8 to the newest is little more than the last gap; the distances of all programs together are those
//! measured while nobody was served alone (else a plan would take away its own reason); distances are also compared as the times
//! that the device needs for them; a plan must bring something: it is
//! tried, and refused where all programs together are not faster with it, as where a local algorithm that anticipates does
//! it all already.
//!
//! Other than in the paper, too: programs may say themselves that they compute ([`Activity`]), and then leave their slices to others
//! at once.

mod activity;
mod decide;
mod follower;
mod meter;
mod seek;
mod verdict;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use sluice_core::{AppId, GatePlan, GateSlice, Time};

pub use activity::Activity;
pub use decide::{Orchestrator, Phase, StateError};
pub use follower::{Follow, Follower};
pub use seek::SeekTimes;

/// Most servers that are known at a time.
pub const SERVERS_MAX: usize = 4_096;
/// Most programs that are known at a time.
pub const PROGRAMS_MAX: usize = 1_024;

/// How a window is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Slicing {
    /// Inversely to the objects' reuse distances; programs that are not eligible are one object together.
    Inverse,
    /// Every program has the same, eligible or not: what the paper compares with.
    Even,
}

/// A plan must bring something.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Trial {
    /// Windows without a plan, and then with one, that are compared, at most; 1 to 64. Fewer with a plan where the difference is
    /// beyond doubt.
    pub windows: u32,
    /// One window without a plan is enough where the times that the device needs for distances promise so much more than what is
    /// done without, as a share of that.
    pub promise_min: f64,
    /// Share by which all programs together must be faster.
    pub gain_min: f64,
    /// After so many nanoseconds it is tried again, whatever came of it; after twice the time when it was refused again.
    pub again_ns: u64,
}

/// How an orchestrator decides.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Length of a window in nanoseconds; at least 1 ms.
    pub window_ns: u64,
    /// Standard deviations over the servers must be below this share of the mean (condition 1).
    pub deviation_max: f64,
    /// The distances of all programs must be so many times those of the program (condition 2).
    pub ratio_min: f64,
    /// The same of the times that the device needs to get so far: where moving within a program takes about as long as moving
    /// between programs, nothing is to be gained. 0: not asked, as in the paper.
    pub seek_ratio_min: f64,
    /// Least share of the window of an object that has requests.
    pub share_min: f64,
    /// How a window is divided.
    pub slicing: Slicing,
    /// Reuse distances count by byte rather than by request: else a program has the more of a window the smaller its requests
    /// are.
    pub by_bytes: bool,
    /// A slice that runs empty for so many nanoseconds is cut short; `None`: never, as in the paper.
    pub idle_ns: Option<u64>,
    /// Compare the last values of filters, as the paper does, rather than their means.
    pub last_values: bool,
    /// Plans are tried; `None`: a plan is good if its programs are eligible, as in the paper.
    pub trial: Option<Trial>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            window_ns: 500_000_000,
            deviation_max: 0.2,
            ratio_min: 1.5,
            share_min: 0.05,
            slicing: Slicing::Inverse,
            by_bytes: true,
            seek_ratio_min: 1.5,
            idle_ns: None,
            last_values: false,
            trial: Some(Trial { windows: 4, promise_min: 0.5, gain_min: 0.05, again_ns: 120_000_000_000 }),
        }
    }
}

impl Settings {
    /// As the paper decides, but for means in the place of samples.
    #[must_use]
    pub fn paper() -> Settings {
        Settings { seek_ratio_min: 0.0, by_bytes: false, trial: None, ..Settings::default() }
    }
}

/// A smoothed quantity, as servers report it: the last value, and the mean of the values since the last report.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Value {
    /// After the last observation.
    pub last: f64,
    /// Mean.
    pub mean: f64,
    /// Observations.
    pub count: u64,
}

impl From<sluice_core::Smoothed> for Value {
    fn from(value: sluice_core::Smoothed) -> Value {
        Value { last: value.last, mean: value.mean, count: value.count }
    }
}

/// A program at a server.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ProgramReport {
    /// Which: the same at all servers.
    pub program: String,
    /// Requests dispatched since the last report.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// `SL_ij` in bytes.
    pub distance: Value,
    /// How long the device takes to move as far as that, in nanoseconds.
    pub seek_ns: u64,
    /// `RD_ij` in nanoseconds: observed only while it had the server.
    pub reuse: Value,
    /// Since its last request was completed, in nanoseconds; 0 also where a server does not say so.
    pub idle_ns: u64,
}

/// What a server has seen since its last report.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Which server.
    pub server: u64,
    /// Grows with each report of a server.
    pub number: u64,
    /// The time that it covers, in nanoseconds; ends at `at`.
    pub window_ns: u64,
    /// When it was made.
    pub at: u64,
    /// The plan in force during all of it; 0: none; `None`: that changed.
    pub plan: Option<u64>,
    /// `SL_i` in bytes.
    pub distance: Value,
    /// `SeekTime_i`: how long the device takes to move as far as that, in nanoseconds.
    pub seek_ns: u64,
    /// Reuse distances of all that are no object of their own, in nanoseconds.
    pub others: Value,
    /// Programs with requests.
    pub programs: Vec<ProgramReport>,
    /// What programs have said to this server of themselves, each once, with requests or without.
    pub activities: Vec<Activity>,
}

/// A slice of each window.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlanSlice {
    /// Whose; empty: of all that no other slice names.
    pub programs: Vec<String>,
    /// In nanoseconds.
    pub len_ns: u64,
}

/// What servers are to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// A later plan has a larger number, also after a restart without memory.
    pub number: u64,
    /// A window begins then, and each time that all slices have passed.
    pub epoch: u64,
    /// In force from then on.
    pub from: u64,
    /// Not in force from then on.
    pub expires: u64,
    /// Slices of a window; none: normal scheduling from now on.
    pub slices: Vec<PlanSlice>,
    /// See [`Settings::idle_ns`].
    pub idle_ns: Option<u64>,
}

impl Plan {
    /// The plan as an engine follows it; `app` has the application of a program's name. Programs that are none are left out.
    #[must_use]
    pub fn gate(&self, app: impl Fn(&str) -> Option<AppId>) -> GatePlan {
        let slice = |slice: &PlanSlice| GateSlice {
            apps: slice.programs.iter().filter_map(|name| app(name)).collect(),
            len_ns: slice.len_ns,
        };
        GatePlan {
            epoch: Time(self.epoch),
            from: Time(self.from),
            expires: Time(self.expires),
            slices: self.slices.iter().map(slice).collect(),
            idle_ns: self.idle_ns,
        }
    }
}
