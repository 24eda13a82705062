//! Codes and messages.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Done.
pub const SLUICE_OK: c_int = 0;
/// An argument is missing or makes no sense.
pub const SLUICE_ERR_INVALID: c_int = -1;
/// As many requests as the scheduler holds are outstanding. Try again after a completion, or use sluice_submit_wait().
pub const SLUICE_ERR_FULL: c_int = -2;
/// The scheduler was shut down or destroyed.
pub const SLUICE_ERR_CLOSED: c_int = -3;
/// No such request: it never was, was completed, or was cancelled.
pub const SLUICE_ERR_STALE: c_int = -4;
/// The request was dispatched already and cannot be cancelled any more.
pub const SLUICE_ERR_IN_FLIGHT: c_int = -5;
/// Not allowed from inside a callback, where it could wait for the end of that callback.
pub const SLUICE_ERR_IN_CALLBACK: c_int = -6;
/// The scheduler belongs to the parent process; its threads do not exist in this one. Create one after fork().
pub const SLUICE_ERR_FORKED: c_int = -7;
/// No such algorithm or parameter, or a value out of range.
pub const SLUICE_ERR_CONFIG: c_int = -8;
/// The system refused a thread or memory.
pub const SLUICE_ERR_SYSTEM: c_int = -9;
/// The time given was too short.
pub const SLUICE_ERR_TIMEOUT: c_int = -10;
/// A bug in the library. The scheduler may be unusable.
pub const SLUICE_ERR_INTERNAL: c_int = -11;

/// Why a call fails.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    /// Allocated only where that is not on the way of every request.
    pub(crate) message: Message,
}

#[derive(Debug)]
pub(crate) enum Message {
    Fixed(&'static CStr),
    Made(String),
}

impl Failure {
    pub(crate) const fn new(code: c_int, message: &'static CStr) -> Failure {
        Failure { code, message: Message::Fixed(message) }
    }

    pub(crate) fn made(code: c_int, message: impl Into<String>) -> Failure {
        Failure { code, message: Message::Made(message.into()) }
    }
}

pub(crate) const FULL: Failure = Failure::new(
    SLUICE_ERR_FULL,
    c"the queue is full: complete some requests first, or create it with a larger capacity",
);
pub(crate) const CLOSED: Failure = Failure::new(SLUICE_ERR_CLOSED, c"the scheduler was shut down");
pub(crate) const STALE: Failure = Failure::new(
    SLUICE_ERR_STALE,
    c"no such request is in flight: it was completed before, cancelled, or the number never came from here",
);
pub(crate) const IN_CALLBACK: Failure = Failure::new(
    SLUICE_ERR_IN_CALLBACK,
    c"not from inside a callback: it would wait for the thread that it is called on; hand it to another thread",
);

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call: keeps its message, and turns a panic into a code.
pub(crate) fn answer(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return SLUICE_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
            Failure::made(SLUICE_ERR_INTERNAL, format!("internal error: {}", text.unwrap_or("unknown")))
        }
    };
    let message = match failure.message {
        Message::Fixed(text) => text.to_owned(),
        Message::Made(text) => CString::new(text.replace('\0', "?")).unwrap_or_default(),
    };
    // Fails only while the thread ends; nobody can ask then.
    let _ = LAST.try_with(|last| *last.borrow_mut() = message);
    failure.code
}

pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// One line about a code.
pub(crate) fn describe(code: c_int) -> &'static CStr {
    match code {
        SLUICE_OK => c"success",
        SLUICE_ERR_INVALID => c"invalid argument",
        SLUICE_ERR_FULL => c"the queue is full",
        SLUICE_ERR_CLOSED => c"the scheduler was shut down",
        SLUICE_ERR_STALE => c"no such request",
        SLUICE_ERR_IN_FLIGHT => c"the request was dispatched already",
        SLUICE_ERR_IN_CALLBACK => c"not allowed from inside a callback",
        SLUICE_ERR_FORKED => c"the scheduler belongs to the parent process",
        SLUICE_ERR_CONFIG => c"no such algorithm or parameter, or a value out of range",
        SLUICE_ERR_SYSTEM => c"the system refused a resource",
        SLUICE_ERR_TIMEOUT => c"timed out",
        SLUICE_ERR_INTERNAL => c"internal error",
        _ => c"unknown error code",
    }
}
