//! Each protocol broken on purpose: the checker must see it, or it would see nothing else either.

use sluice_runtime::sabotage::Fault;
use sluice_runtime::{Driving, Shutdown};

use crate::checker::{Completes, expect_seen};
use crate::protocols::{a_pair, callers, cancelling, crossing, ending, leaving, stalled};
use crate::volumes::{bypass_order, whole_operations};

#[test]
fn a_holder_that_forgets_work_is_seen() {
    expect_seen(Fault::TokenForgetsWork, 2_000, a_pair);
}

#[test]
fn a_gate_that_wakes_nobody_is_seen() {
    expect_seen(Fault::GateWakesNobody, 2_000, || callers("noop", Driving::Caller, Completes::Later));
}

#[test]
fn a_waiter_that_does_not_look_again_is_seen() {
    expect_seen(Fault::GateSleepsUnchecked, 40_000, || callers("noop", Driving::Caller, Completes::Later));
}

#[test]
fn a_cancellation_answered_wrongly_is_seen() {
    expect_seen(Fault::CancelAlwaysSucceeds, 2_000, || cancelling(Driving::Caller));
}

#[test]
fn an_end_before_everybody_was_told_is_seen() {
    let fail = Shutdown::Fail(libc::EIO);
    expect_seen(Fault::LeavesEarly, 2_000, move || ending("to-agg", Driving::Thread, Completes::AtOnce, fail));
}

#[test]
fn a_client_that_leaves_too_early_is_seen() {
    let fail = Shutdown::Fail(libc::EIO);
    expect_seen(Fault::LeavesEarly, 2_000, move || leaving(Driving::Thread, fail));
}

#[test]
fn a_request_forgotten_in_front_of_the_engine_is_seen() {
    expect_seen(Fault::StalledForgotten, 500, || stalled(Driving::Caller));
}

#[test]
fn a_thread_that_serves_nobody_while_it_waits_is_seen() {
    expect_seen(Fault::WaiterServesNobody, 5_000, crossing);
}

#[test]
fn pieces_that_overtake_each_other_are_seen() {
    expect_seen(Fault::PiecesUnordered, 5_000, || whole_operations(2, "to"));
}

#[test]
fn a_bypass_that_does_not_look_is_seen() {
    expect_seen(Fault::BypassUnchecked, 5_000, bypass_order);
}
