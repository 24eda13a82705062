//! Whether anything can be lost: devices that lose power and fail, histories of operations on a tier over them, and a model of
//! what must be there afterwards.
//!
//! As CrashMonkey does (Mohan et al., *Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing*, OSDI 2018) and
//! dm-log-writes, everything that reaches a device is recorded; a crash is a prefix of the record, of which everything up to
//! each device's last flush is there, and of the rest any part, in any order, down to single sectors. For tests and for
//! `sluice-bench tier`.

mod history;
pub mod kill;
mod model;
mod random;
mod recorder;

pub use history::{Counts, Plan, run};
pub use random::Random;
pub use recorder::{Fault, Recorder, Tape};
