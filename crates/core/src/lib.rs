//! The Sluicegate request scheduling engine.
//!
//! An [`Engine`] takes file I/O requests from a host, reorders and aggregates them by one of the [algorithms](policy),
//! and gives them back in batches. It is a state machine: it does no I/O, reads no clock, starts no thread, has no
//! global state, and allocates nothing while it runs. The same code therefore serves in a file server, in a simulator
//! with virtual time, and in tests.

#![forbid(unsafe_code)]

mod batch;
mod delay;
mod engine;
mod event;
mod files;
mod gate;
mod group_commit;
mod heap;
mod histogram;
mod id_map;
mod list;
mod locality;
mod offset_tree;
mod ordering;
pub mod policy;
mod probe;
mod queues;
mod request;
mod stats;
mod streams;

pub use batch::{Batch, Part};
pub use delay::{Chosen, Expected, Predictor, WaitReport, Work};
pub use engine::{CancelError, CompleteError, Engine, EngineConfig, Ordering, Stale, SubmitError};
pub use event::{Event, Stage};
pub use files::QueueId;
pub use gate::{APPS_MAX as GATE_APPS_MAX, GateError, GatePlan, GateSlice, GateStatus, OBJECTS_MAX};
pub use group_commit::{GroupCommit, GroupCommitCounts, SyncTicket};
pub use histogram::Histogram;
pub use locality::{AppLocality, DeviceLocality, LOCALITY_APPS, LocalityConfig, Placement, Smoothed};
pub use policy::{ConfigError, PolicyConfig, PreparedPolicy};
pub use probe::ServedBatch;
pub use queues::{Extent, Queues, Slot};
pub use request::{AppId, FileId, Op, Outcome, Request, RequestId, TargetId, Time};
pub use stats::{AppCounts, Counters, DurationFeatures, OpCounts, OpFeatures, Stats, WindowFeatures};
pub use streams::Anticipation;

// The conformance suite again, from inside the crate, where the table has the template for new policies, too.
#[cfg(test)]
extern crate self as sluice_core;
#[cfg(test)]
#[path = "../tests/conformance.rs"]
mod conformance;
