//! DualPar, data-driven execution of MPI programs: a ghost of each process runs ahead and tells what it will read, and all that
//! is read in one sorted batch (X. Zhang, *Rethinking the Design and Implementation of the I/O Software Stack for
//! High-Performance Computing*, dissertation, Wayne State University, 2012, chapter 3).

mod batch;
pub mod calls;
mod collect;
pub mod ghost;
pub mod group;
pub mod memcached;
pub mod memory;
pub mod mode;
pub mod plan;
pub mod process;
pub mod ring;
pub mod spans;
