//! `libagios`: the public calls of AGIOS v2 over the Sluicegate engine, for programs written for it. The header is
//! `include/agios.h`.
//!
//! AGIOS names requests by their attributes; [`in_flight`] finds them. [`scheduler`] is what is between its calls and the
//! engine, [`current`] the one that is running, [`services`] recording and predicting. Its configuration file is read by
//! [`config`].

use std::io::Write as _;

mod calls;
mod config;
mod current;
mod in_flight;
mod scheduler;
mod services;
mod syntax;

pub use calls::*;

fn complain(what: &str) {
    // Whatever becomes of it: standard error may be closed, or on a full disk.
    let _ = writeln!(std::io::stderr(), "agios: {what}");
}
