//! Models of storage devices: how long a request takes, computed rather than measured.
//!
//! A [`Device`] is a deterministic state machine: the time is an argument, nothing waits, and a model built from the same
//! parameters and seed gives the same answers to the same calls. The same model so serves a simulator in virtual time and
//! an emulation that sleeps in real time.
//!
//! A *kind* of model is a file of code (one row of a table); a *model* is a kind with parameters in a TOML file (units are
//! in the names). Shipped ones ([`models()`]) are found by name, others by path ([`model`]).
//!
//! | kind | what it is |
//! |---|---|
//! | `hdd` | hard disk: seek curve, rotation, zones, read-ahead, write cache, command queue |
//! | `ssd` | flash drive, SATA or NVMe: channels and dies, mapping, garbage collection |
//! | `raid0` | stripes over equal members of another kind |
//! | `null` | a fixed time |
//!
//! Where files lie on a device is for its [`Places`] to say, in the simulator as in the emulation.
//!
//! What a device is like can be measured and kept in a file: [`profile`].

mod hdd;
mod models;
mod null;
mod parameter;
mod places;
pub mod profile;
pub mod profiler;
mod raid0;
mod ssd;

pub use models::{Model, ModelError, model, model_with, models, parse};
pub use places::Places;

/// What a device is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
    /// Makes written bytes durable; address and length mean nothing.
    Flush,
}

/// A command to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub op: Op,
    /// First byte. Beyond the capacity the device wraps round.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

/// A command that waits in the device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The command.
    pub command: Command,
    /// When it arrived, in nanoseconds since the epoch of all the times that the device is given.
    pub arrived_ns: u64,
}

/// Where the time of one command goes, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// In all.
    pub total_ns: u64,
    /// Moving to the place.
    pub seek_ns: u64,
    /// Waiting for the medium to come round.
    pub rotation_ns: u64,
    /// Bytes between where the command before ended and where this one starts.
    pub distance_bytes: u64,
}

/// A device model.
///
/// Whoever drives it keeps the commands that have arrived in a list. While there are some, and fewer than
/// [`Device::lanes`] are under way, it lets the device [`pick`](Device::pick) one and calls
/// [`service`](Device::service), whose answer says when that command ends.
///
/// The times given to `service` never go back. A device with one lane gets the next command no earlier than the end of
/// the one before; one with more keeps account of what is busy inside it until when, so it also answers sensibly if it
/// is given more commands than it has lanes.
pub trait Device: Send {
    /// Size in bytes.
    fn capacity_bytes(&self) -> u64;

    /// How many commands may be under way at a time; at least 1.
    fn lanes(&self) -> u32 {
        1
    }

    /// Whether distance costs time: whether there is an arm to move.
    fn rotates(&self) -> bool {
        false
    }

    /// Which of the waiting commands (not empty, oldest first) to begin next, as the device's own queueing would.
    fn pick(&self, now_ns: u64, pending: &[Pending]) -> usize {
        let _ = (now_ns, pending);
        0
    }

    /// Begins a command at `now_ns`. It ends `total_ns` later, which includes waiting for what is busy inside the device.
    fn service(&mut self, now_ns: u64, command: Command) -> Service;

    /// Forgets what it has read and kept, so that it has to be read again.
    fn drop_read_cache(&mut self) {}
}
