//! The council: which time window the I/O nodes of a system use (Bez et al. 2019, *Adaptive Request Scheduling for the I/O
//! Forwarding Layer*).
//!
//! Each [`Situation`] has a [`Bandit`] of its own, which learns from the rewards of the arms that were used there; what similar
//! situations have learned is where a new one begins ([`Knowledge`]). [`EpsilonGreedy`] is the paper's method, in its place if that is wanted ([`Method`]).
//! No clock, no thread, no I/O; random numbers come from the caller, or from a seed.

mod bandit;
mod epsilon;
mod knowledge;

pub use bandit::{Arms, Bandit, Hopes, Prior};
pub use epsilon::{EPSILON, EpsilonGreedy};
pub use knowledge::{Knowledge, Method, Op, Pattern, SITUATIONS_MAX, Situation};
