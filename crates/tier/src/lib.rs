//! An SSD as extension of the disk scheduler's queue (iTransformer: X. Zhang, K. Davis, S. Jiang, *iTransformer: Using SSD to
//! improve disk scheduling for high-performance I/O*, IPDPS 2012; Zhang's dissertation, chapter 6).
//!
//! A [`Tier`] lies between whoever reads and writes a disk and the disk. Random writes go to a log on the SSD and are written
//! back in offset order when the disk is idle or the log fills; slots that are read again and again are copied to the SSD.
//! What was acknowledged after a flush is there after any crash. What is promised, and what not: `docs/tier.md`.
//!
//! | module | what |
//! |---|---|
//! | [`mod@format`] | what lies on the SSD |
//! | [`map`] | which bytes are in the log: the mapping table |
//! | [`locality`], [`slots`] | decisions: what goes to the SSD, what is prefetched. State machines without I/O |
//! | [`pace`] | what is written back, given up and loaded, and when |
//! | [`device`] | disk and SSD: files, block devices, files of any [`sluice_storage::Data`] |
//! | [`OneFile`] | a tier as a storage, for hosts that serve files |
//! | [`crash`] | devices that lose power and fail, a model of what must survive: for tests and `sluice-bench tier` |

#![forbid(unsafe_code)]

mod append;
mod config;
pub mod crash;
pub mod device;
pub mod format;
pub mod locality;
mod maintain;
pub mod map;
mod one_file;
pub mod pace;
mod recover;
mod runner;
mod settings;
pub mod slots;
mod stats;
mod tier;

pub use config::{Config, Geometry, OpenError, disk_name_of, failure_mark_of};
pub use device::{DataDevice, Device, FileDevice};
pub use locality::{Decision, Rule};
pub use one_file::OneFile;
pub use recover::{Check, Report, check, made_for, was_taken_off};
pub use runner::Runner;
pub use settings::{SETTINGS, Setting};
pub use stats::{Health, Status};
pub use tier::{Tier, User};

#[cfg(test)]
mod tests;
