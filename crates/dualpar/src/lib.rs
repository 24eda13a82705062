//! DualPar, data-driven execution of MPI programs: a ghost of each process runs ahead and tells what it will read, and all that
//! is read in one sorted batch (X. Zhang, *Rethinking the Design and Implementation of the I/O Software Stack for
//! High-Performance Computing*, dissertation, Wayne State University, 2012, chapter 3).
//!
//! ```text
//!     calls ── process ──┬─ mode                 whether (decisions: no I/O, no clock)
//!                        ├─ ghost                what the program will read: a forked copy, confined
//!                        ├─ group, limits        the processes of a node agree; who waits for whom, and how long
//!                        ├─ batch ─── plan, spans, demand, memcached ── ring
//!                        └─ collect ─ plan       writes
//! ```
//!
//! Deviations from the dissertation: the mode is decided by each process, from what its node's processes do, not by a daemon
//! beside the metadata server; ghosts are confined by the kernel instead of a modified library; what is to be written waits in the
//! node's memory, not in the cache; holes between writes are not filled; and see [`mode`].

mod batch;
pub mod calls;
mod collect;
pub mod demand;
pub mod descriptors;
pub mod ghost;
pub mod group;
pub mod limits;
pub mod memcached;
pub mod memory;
pub mod mode;
pub mod plan;
pub mod process;
pub mod ring;
pub mod spans;
