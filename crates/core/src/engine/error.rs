//! What an engine may answer instead.

use std::fmt;

/// The handle belongs to no outstanding request: it was completed or cancelled, or never came from this engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale;

/// Why a request was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// `capacity` requests are outstanding, or requests to `files_max` files. Submit again after a completion.
    Full,
    /// `offset + len` is beyond 2^64 - 1.
    RangeOverflow,
}

/// Why a completion was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompleteError {
    /// See [`Stale`].
    Stale,
    /// The request was not dispatched yet.
    NotDispatched,
}

/// Why a request could not be cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelError {
    /// See [`Stale`].
    Stale,
    /// The request is dispatched already; its completion must be reported.
    InFlight,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request is not outstanding: it was completed or cancelled before")
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full => "the scheduler's queue is full; submit again after a completion",
            SubmitError::RangeOverflow => "the byte range ends beyond the largest offset",
        })
    }
}

impl fmt::Display for CompleteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompleteError::Stale => Stale.fmt(f),
            CompleteError::NotDispatched => f.write_str("the request was not dispatched yet"),
        }
    }
}

impl fmt::Display for CancelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CancelError::Stale => Stale.fmt(f),
            CancelError::InFlight => f.write_str("the request is dispatched already"),
        }
    }
}

impl std::error::Error for Stale {}
impl std::error::Error for SubmitError {}
impl std::error::Error for CompleteError {}
impl std::error::Error for CancelError {}
