//! A descriptor put aside for when the process has none left: open files may use all of them, but unmounting and finding out
//! who asks must go on.

use std::io;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

/// Costs a descriptor, and nothing else.
static SPARE: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Puts a descriptor aside, unless there is one.
pub(crate) fn keep() {
    let mut spare = SPARE.lock();
    if spare.is_none() {
        *spare = rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
    }
}

/// Does what needs one descriptor for a short time, with the spare one if there is no other.
///
/// # Errors
/// Those of `work`; `EMFILE` also where somebody else took the spare one's place.
pub(crate) fn with_descriptor<R>(work: impl Fn() -> io::Result<R>) -> io::Result<R> {
    match work() {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            // One at a time.
            let mut spare = SPARE.lock();
            drop(spare.take());
            let result = work();
            drop(spare);
            keep();
            result
        }
        result => result,
    }
}
