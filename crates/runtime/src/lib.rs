//! The threaded driver of the Sluicegate engine.
//!
//! Two layers:
//!
//! * [`Runtime`] drives one or more engines ("shards") for a host that executes requests itself ([`Executor`],
//!   [`Callbacks`]);
//! * [`Volume`] is file I/O over a [`Storage`](sluice_storage::Storage): it splits logical requests by the storage's
//!   layout, schedules the pieces, executes what the engines dispatch and puts the results together ([`Host`]).
//!
//! # First steps
//! ```
//! use sluice_core::{AppId, FileId, Op, Outcome, PolicyConfig, Request, TargetId};
//! use sluice_runtime::{Callbacks, Runtime, RuntimeConfig, Shutdown};
//!
//! let host = Callbacks::new(
//!     |part, _, completer| completer.complete(part.id, Outcome::ok(part.request.len)), // do the I/O, then report it
//!     |request, _, errno| eprintln!("{request:?} was dropped: error {errno}"),
//! );
//! let runtime = Runtime::start(host.into(), RuntimeConfig::new(PolicyConfig::parse("sjf")?))?;
//! let (file, app, target) = (FileId(1), AppId(0), TargetId(0));
//! runtime.submit(0, Request { cookie: 7, file, app, target, op: Op::Read, offset: 0, len: 4096 })?;
//! runtime.shutdown(Shutdown::Drain { timeout: std::time::Duration::from_secs(1) });
//! assert_eq!(runtime.snapshot().total.total().completed(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! `examples/host.rs` is a program that reads a file through it; `docs/embedding.md` is the guide.
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
pub use record::{Observer, RecordError, RecordOptions, Recording};
pub use runtime::{
    Driving, Executor, Runtime, RuntimeConfig, ShardSnapshot, Shutdown, ShutdownReport, Snapshot, StartError,
    SubmitError,
};
pub use shard::Completer;
pub use volume::{Done, Engines, Host, Volume, VolumeConfig, VolumeSnapshot, Workers};
