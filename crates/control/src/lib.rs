//! Control over several machines: nodes tell a coordinator what they see, and it tells them what to do.
//!
//! ```text
//!     node                                   coordinator
//!     scheduler ── driver ── Node  ═ gRPC ═  driver ── Coordinator ── roles: Council, ...
//!                  (thread)  pure            (thread)  pure           pure
//! ```
//!
//! [`Node`] and [`Coordinator`] are state machines without clock, thread or I/O; so are the [`Role`]s. They expect
//! messages to be lost, late, doubled and reordered, and either side to end at any moment: `tests/simulation.rs` does all of that by
//! seeds. Around them are thin drivers: `Agent` (feature `node`) in whatever has a scheduler, which never waits for it, and `serve`
//! (feature `coordinator`).

#![forbid(unsafe_code)]

#[cfg(feature = "node")]
mod agent;
#[cfg(feature = "node")]
mod announced;
mod bucket;
mod clock;
#[cfg(feature = "node")]
mod connect;
mod coordinator;
mod council;
mod gated;
#[cfg(feature = "coordinator")]
mod lines;
mod locality;
mod member;
mod node;
#[cfg(feature = "node")]
mod orchestrated;
mod orchestrator;
#[cfg(feature = "coordinator")]
mod record;
mod role;
mod seen;
#[cfg(feature = "coordinator")]
pub mod serve;
mod state;
mod steady;
pub mod wire;

#[cfg(feature = "node")]
pub use agent::{Agent, AgentStatus, Options};
#[cfg(feature = "node")]
pub use announced::{Announced, Doing};
pub use clock::{Estimate, epoch};
#[cfg(feature = "node")]
pub use connect::{Address, read_token};
pub use coordinator::{Coordinator, Limits, NodeStatus, Refusal, SessionId, Status, Unusable};
pub use council::{ARMS, Classify, Council, by_node, by_rule};
pub use gated::{Follow, Gated};
pub use node::{Node, Step};
pub use orchestrator::Orchestrator;
pub use role::{Action, Directive, NodeId, Role, To};
pub use seen::{InForce, Kind, Seen};
pub use state::{StateError, from_text, to_text};
