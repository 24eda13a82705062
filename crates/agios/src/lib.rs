//! `libagios`: the public calls of AGIOS v2 over the Sluicegate engine, for programs written for it. The header is
//! `include/agios.h`.
//!
//! AGIOS names requests by their attributes; [`outstanding`] finds them. Its configuration file is read by [`config`].

mod calls;
mod config;
mod outstanding;
mod syntax;

pub use calls::*;
