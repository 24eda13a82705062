//! What Sluicegate learns about workloads, and what it does with it.
//!
//! * [`predictor`]: what recorded runs tell about the requests of the next run;
//! * [`selector`]: which configuration serves a workload best, tried out while it runs.
//!
//! Everything here is a pure state machine: no clock, no thread, no I/O but reading traces.

#![forbid(unsafe_code)]

pub mod predictor;
pub mod selector;
