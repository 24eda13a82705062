//! What the host for MPI programs decides, with no MPI in it: the shared objects of `hosts/mpiio` ask through C functions
//! ([`calls`]), do what they are told, and report how it went.
//!
//! * [`flat`]: derived datatypes as lists of byte ranges, and which bytes of a file an access through a view covers.
//! * [`layout`]: which data server has which bytes.
//! * [`plan`]: Resonant I/O: who accesses what in a collective call, and in which order.
//! * [`choose`]: whether that is better than what the library does.
//! * [`decide`]: both, of the calls on a file.
//! * [`list`]: many ranges of a file from and to memory.
//! * [`report`]: what was done.

/// Data-driven execution; its functions for the shared objects are part of this library.
pub use sluice_dualpar as dualpar;

pub mod calls;
pub mod choose;
pub mod decide;
pub mod flat;
mod known;
pub mod layout;
pub mod list;
pub mod plan;
pub mod report;
