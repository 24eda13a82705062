//! Discrete-event simulation of parallel I/O, with the production engine in the loop.
//!
//! A [`scenario`] (a TOML file) describes client processes with their [`workload`]s, links, I/O nodes and data servers with
//! an [`Engine`](sluice_core::Engine) each, and devices. [`simulate`] runs it in virtual time. The same scenario and seed
//! give the same outcome on every machine, which [`Outcome::digest`] shows.

#![forbid(unsafe_code)]

mod calendar;
mod chaos;
mod labels;
mod link;
mod random;
pub mod scenario;
mod simulation;
mod slab;
mod sweep;
pub mod workload;

pub use chaos::{ChaosFailure, ChaosReport, chaos, chaos_many, chaos_scenario};
pub use labels::{Label, SEEDS_MIN, labels, larger, ties};
pub use simulation::{
    Adaptive, AppOutcome, Bin, CacheOutcome, DataDrivenCounts, DeviceOutcome, Durations, Failure, FaultCounts,
    NodesOutcome, Options, OrchestrationOutcome, Outcome, PatternWindow, Point, PredictionCounts, ProgramOutcome,
    Record, ResonantCounts, Selector, Setup, TierOutcome, Truth, Window, forecast, jain, simulate, simulate_predicted,
    simulate_with, windows_csv,
};
pub use sweep::{Estimate, Sweep, SweepError, improvements, sweep};
