//! Data servers, I/O nodes and clients of GlusterFS with the translator `sluice` in them.
//!
//! GlusterFS is the distributed engine: network, clients, namespace and failure detection are its own. A cluster is one process
//! for each machine's role, and what a process is to do stands in its graph (volfile). [`Config`] says what is wanted;
//! [`Plan`] is what that comes to, without touching anything; [`running`] starts, watches and ends it on this machine.
//!
//! ```text
//!     client      protocol/client                                             to an I/O node (or to all data servers)
//!     I/O node    protocol/client, sluice: for each data server; distribution; protocol/server
//!     data server storage/posix, io-threads, sluice, access-control, locks; protocol/server
//! ```

#![forbid(unsafe_code)]

mod config;
mod graph;
mod links;
mod plan;
pub mod running;

pub use config::{Config, Coordination, Distribution, Emulation};
pub use links::{Links, LinksConfig, LinksStatus};
pub use plan::{Machine, Plan, Role};
