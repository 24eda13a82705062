//! The protocols of the runtime, checked: everything runs on one thread, in an order of its threads that a seed draws, and
//! a checker looks whether each request is told exactly once, overlapping ones keep their order, and nobody waits for ever.
//!
//! `cargo test -p sluice-runtime --features model --test model` runs it; `SLUICE_MODEL_ROUNDS=100000` looks longer,
//! `SLUICE_MODEL_SEED=7` elsewhere. A failure prints the seed and the schedule.
//!
//! The threads, locks and atomics are shuttle's: sequentially consistent, so what this does not see are faults of weaker
//! orderings.

#[path = "model/checker.rs"]
mod checker;
#[path = "model/faults.rs"]
mod faults;
#[path = "model/protocols.rs"]
mod protocols;
#[path = "model/volumes.rs"]
mod volumes;
