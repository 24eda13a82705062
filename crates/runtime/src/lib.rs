//! The threaded driver of the Sluicegate engine.
//!
//! Two layers:
//!
//! * [`Runtime`] drives one or more engines ("shards") for a host that executes requests itself ([`Executor`],
//!   [`Callbacks`]);
//! * [`Volume`] is file I/O over a [`Storage`](sluice_storage::Storage): it splits logical requests by the storage's
//!   layout, schedules the pieces, executes what the engines dispatch and puts the results together ([`Host`]).
//!
//! # How an engine is driven
//! An engine is a state machine that one thread at a time may touch. With [`Driving::Caller`] that is whoever submits or
//! completes: it leaves what it has in a lock-free queue and tries to take the engine; if another thread has it, that
//! one finds it in the queue. So nobody waits for a scheduler thread to wake up, and nobody queues at a lock. One
//! thread, asleep otherwise, drives an engine whose policy wants to be called at a certain time.

#![deny(unsafe_code)]

mod callback;
mod clock;
mod gate;
mod names;
mod record;
mod runtime;
mod server;
mod shard;
mod volume;

pub use callback::{Callbacks, Cancelled, StartBatch, StartOne};
pub use clock::{Clock, ClockKind};
pub use names::FileNames;
pub use record::{Observer, RecordError, Recording};
pub use runtime::{
    Driving, Executor, Runtime, RuntimeConfig, ShardSnapshot, Shutdown, ShutdownReport, Snapshot, StartError,
    SubmitError,
};
pub use shard::Completer;
pub use volume::{Done, Engines, Host, Volume, VolumeConfig, VolumeSnapshot, Workers};
