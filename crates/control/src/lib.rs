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
//! seeds. Around them are thin drivers: `node` (feature `node`) in whatever has a scheduler, which never waits for it, and `serve`
//! (feature `coordinator`).

#![forbid(unsafe_code)]

mod clock;
mod coordinator;
mod council;
mod node;
mod role;
mod seen;
mod state;
pub mod wire;

pub use clock::{Estimate, epoch};
pub use coordinator::{Coordinator, Limits, NodeStatus, Refusal, SessionId, Status};
pub use council::{ARMS, Classify, Council, by_rule};
pub use node::{Node, Step};
pub use role::{Action, Directive, NodeId, Role, To};
pub use seen::{InForce, Kind, Seen};
pub use state::{StateError, from_text, to_text};
