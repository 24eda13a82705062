//! What the host for MPI programs decides, with no MPI in it: the shared objects of `hosts/mpiio` ask through C functions
//! ([`calls`]), do what they are told, and report how it went.
//!
//! * [`flat`]: derived datatypes as lists of byte ranges, and which bytes of a file an access through a view covers.

pub mod calls;
pub mod flat;
