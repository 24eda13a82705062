//! What the host for MPI programs decides, with no MPI in it: the shared objects of `hosts/mpiio` ask through C functions
//! ([`calls`]), do what they are told, and report how it went.
//!
//! * [`flat`]: derived datatypes as lists of byte ranges, and which bytes of a file an access through a view covers.

/// Data-driven execution; its functions for the shared objects are part of this library.
pub use sluice_dualpar as dualpar;

pub mod calls;
pub mod flat;
