//! What Sluicegate learns about workloads, and what it does with it.
//!
//! * [`predictor`]: what recorded runs tell about the requests of the next run;
//! * [`features`]: what the requests of a window are like;
//! * [`detector`]: which access pattern that is;
//! * [`forest`]: decision trees that were trained elsewhere;
//! * [`council`]: which time window the I/O nodes of a system use;
//! * [`selector`]: which configuration serves a workload best, tried out while it runs;
//! * [`orchestrator`]: which programs are served one at a time on all servers;
//! * [`device`]: what the device below is like, by what it serves.
//!
//! Everything here is a pure state machine: no clock, no thread, no I/O but reading traces.

#![forbid(unsafe_code)]

pub mod council;
pub mod detector;
pub mod device;
pub mod features;
pub mod forest;
pub mod net;
pub mod orchestrator;
pub mod predictor;
pub mod selector;
