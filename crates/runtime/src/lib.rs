//! The threaded driver of the Sluicegate engine.
//!
//! Two layers:
//!
//! * a [`Scheduler`] drives one or more engines ("shards") for [clients](Client) that execute requests themselves
//!   ([`Executor`], [`Callbacks`]);
//! * [`Volume`] is file I/O over a [`Storage`](sluice_storage::Storage): it splits logical requests by the storage's
//!   layout, schedules the pieces, executes what the engines dispatch and puts the results together ([`Host`]).
//!
//! # First steps
//! ```
//! use sluice_core::{AppId, FileId, Op, Outcome, PolicyConfig, Request, TargetId};
//! use sluice_runtime::{Callbacks, Scheduler, SchedulerConfig, Shutdown};
//!
//! let host = Callbacks::new(
//!     |part, started| started.complete(part.id, Outcome::ok(part.request.len)), // do the I/O, then report it
//!     |request, errno| eprintln!("{request:?} was dropped: error {errno}"),
//! );
//! let scheduler = Scheduler::start(SchedulerConfig::new(PolicyConfig::parse("sjf")?))?;
//! let client = scheduler.attach(std::sync::Arc::new(host))?;
//! let (file, app, target) = (FileId(1), AppId(0), TargetId(0));
//! client.submit(0, Request { cookie: 7, file, app, target, op: Op::Read, offset: 0, len: 4096 })?;
//! scheduler.shutdown(Shutdown::Drain { timeout: std::time::Duration::from_secs(1) });
//! assert_eq!(scheduler.snapshot().total.total().completed(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! `examples/host.rs` is a program that reads a file through it; `docs/embedding.md` is the guide.
//!
//! # How an engine is driven
//! An engine is a state machine that one thread at a time may touch. Everything that changes it (a submission, a
//! completion, another algorithm) is a command in one ordered queue. Whoever leaves a command there becomes the engine's
//! holder, unless another thread is; then that one finds it. The holder turns commands into *effects*: batches to start,
//! clients to tell. It carries them out after it has let the engine go, so a client that is told may call anything. Nobody
//! waits for a scheduler thread to wake up, and nobody queues at a lock. One thread, asleep otherwise, drives an engine
//! whose policy wants to be called at a certain time.

#![deny(unsafe_code)]

mod bell;
mod callback;
mod client;
mod clock;
mod effects;
mod gate;
mod holder;
mod inbox;
mod monitor;
mod names;
mod parked;
mod predictor;
mod record;
mod scheduler;
mod shard;
mod striped;
mod sync;
mod token;
mod volume;
mod windows;

pub use callback::{Callbacks, Cancelled, StartBatch, StartOne};
pub use client::{Completer, Executor, Started, SubmitError};
pub use clock::{Clock, ClockKind};
pub use effects::calling_nobody;
pub use monitor::Monitor;
pub use names::FileNames;
pub use record::{Observer, RecordError, RecordOptions, Recording};
pub use scheduler::{
    AttachError, Client, Scheduler, SchedulerConfig, ShardSnapshot, Shutdown, ShutdownReport, Snapshot, StartError,
};
pub use shard::Driving;
#[cfg(feature = "model")]
pub use sync::sabotage;
pub use volume::{Done, Engines, Host, Volume, VolumeConfig, VolumeSnapshot, Workers};
