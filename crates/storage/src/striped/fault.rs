//! Where a kill is simulated in tests: every step that changes something on disk asks here first.

#[cfg(not(test))]
#[inline]
pub(super) fn step() -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(super) use armed::{disarm, kill_after, step};

#[cfg(test)]
mod armed {
    use std::cell::Cell;
    use std::io;

    thread_local!(static LEFT: Cell<Option<u32>> = const { Cell::new(None) });

    /// Lets `steps` more steps happen on this thread and none after them.
    pub(in super::super) fn kill_after(steps: u32) {
        LEFT.set(Some(steps));
    }

    /// Back to life. True if the kill had struck.
    pub(in super::super) fn disarm() -> bool {
        LEFT.replace(None) == Some(0)
    }

    pub(in super::super) fn step() -> io::Result<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => Err(rustix::io::Errno::CANCELED.into()),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}
