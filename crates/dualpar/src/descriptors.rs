//! Descriptors of our own in the program's process, which may need all that it is allowed: ours are beyond those where the system
//! lets a process have more, else they are few.

use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// How many there may be beyond the program's own.
const BEYOND: libc::rlim_t = 4096;
/// Where the program may have so many, that costs more (the system's table is as long as the highest number) than it brings.
const PLENTY: libc::rlim_t = 16384;
/// One of so many that the program may have can be ours.
const SHARE: libc::rlim_t = 8;

/// Of the limit, which is another one for a moment.
static CHANGING: Mutex<()> = Mutex::new(());

/// Another descriptor of what `descriptor` is of, closed when another program is started.
///
/// # Errors
/// The program may need what there is; or as of dup().
pub fn duplicate(descriptor: BorrowedFd<'_>) -> Result<OwnedFd> {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = limit()?;
    if let Ok(beyond) = duplicate_beyond(descriptor, limit) {
        return Ok(beyond);
    }
    if least_free()? < limit.rlim_cur / SHARE {
        duplicate_from(descriptor, 0)
    } else {
        Err(Error::from_raw_os_error(libc::EMFILE))
    }
}

/// Whether there is no better number for a descriptor of ours that is there already.
#[must_use]
pub fn may_stay(descriptor: BorrowedFd<'_>) -> bool {
    let number = descriptor.as_raw_fd() as libc::rlim_t;
    limit().is_ok_and(|limit| limit.rlim_cur >= PLENTY && number < limit.rlim_cur / SHARE)
}

/// A longer table of descriptors has the system wait for all processors, some milliseconds, where several threads use it: in the middle
/// of a program's I/O. Without them it does not, and the table stays as long as it was made.
pub fn make_room() {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Ok(limit), Ok(nothing)) = (limit(), std::fs::File::open("/dev/null")) {
        drop(duplicate_beyond(nothing.as_fd(), limit));
    }
}

/// One that is not among those that `limit` allows.
fn duplicate_beyond(descriptor: BorrowedFd<'_>, limit: libc::rlimit) -> Result<OwnedFd> {
    let wider = limit.rlim_cur.saturating_add(BEYOND).min(limit.rlim_max);
    if limit.rlim_cur >= PLENTY || wider <= limit.rlim_cur {
        return Err(Error::from_raw_os_error(libc::EMFILE));
    }
    set_limit(libc::rlimit { rlim_cur: wider, ..limit })?;
    let beyond = duplicate_from(descriptor, limit.rlim_cur);
    set_limit(limit)?;
    beyond
}

/// The number that the next descriptor has. Nothing of `descriptor` is closed to find that out: locks of its file would go.
fn least_free() -> Result<libc::rlim_t> {
    Ok(std::fs::File::open("/dev/null")?.as_raw_fd() as libc::rlim_t)
}

fn duplicate_from(descriptor: BorrowedFd<'_>, least: libc::rlim_t) -> Result<OwnedFd> {
    // SAFETY: the descriptor is open; a number.
    let made = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least as libc::c_int) };
    // SAFETY: the system has just made it.
    if made < 0 { Err(Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(made) }) }
}

fn limit() -> Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for it.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        Ok(limit)
    } else {
        Err(Error::last_os_error())
    }
}

fn set_limit(limit: libc::rlimit) -> Result<()> {
    // SAFETY: a limit is there.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}
