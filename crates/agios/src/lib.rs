//! `libagios`: the public calls of AGIOS v2 over the Sluicegate engine, for programs written for it. The header is
//! `include/agios.h`.
//!
//! AGIOS names requests by their attributes; [`in_flight`] finds them. [`scheduler`] is what is between its calls and the
//! engine, [`current`] the one that is running, [`services`] recording and predicting. Its configuration file is read by
//! [`config`].

mod calls;
mod config;
mod current;
mod in_flight;
mod scheduler;
mod services;
mod syntax;

pub use calls::*;

fn complain(what: &str) {
    eprintln!("agios: {what}");
}
