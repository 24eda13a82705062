//! `libsluice`: the engine and its driver behind C functions. `include/sluice.h` is generated from here.
//!
//! * [`calls`]: the functions, each a thin translation. Nothing unwinds out of them.
//! * [`handle`]: what makes a late, repeated or forked call an error code rather than undefined behaviour.
//! * [`instance`]: schedulers, and clients whose executors are hosts' callbacks.
//! * [`in_flight`]: which requests hosts were given.
//! * `announced`: what programs say that they do.
//! * [`types`]: the structs, versioned by their size.
//! * [`status`]: codes and messages.

#![allow(non_camel_case_types, reason = "the names are C's")]

#[cfg(feature = "network")]
mod announced;
mod calls;
mod handle;
mod in_flight;
mod instance;
mod options;
mod status;
mod types;

pub use calls::*;
pub use handle::sluice;
pub use status::*;
pub use types::*;
