//! Where a kill, or an error of a target, is simulated in tests: every step that changes something on disk asks here
//! first.

#[cfg(not(test))]
#[inline]
pub(super) fn step() -> std::io::Result<()> {
    Ok(())
}

/// The process was "killed".
#[cfg(not(test))]
#[inline]
pub(super) fn is_dead() -> bool {
    false
}

/// Asked before a name is looked up on a target but the first, and before what the journal names is looked for.
#[cfg(not(test))]
#[inline]
pub(super) fn look() -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(super) use armed::{before_step, disarm, fail_after, fail_looks, is_dead, kill_after, look, step};

#[cfg(test)]
mod armed {
    use std::cell::{Cell, RefCell};
    use std::io;

    type Work = Box<dyn FnOnce()>;

    thread_local! {
        /// What somebody else does right before a step.
        static MEANWHILE: RefCell<Option<(u32, Work)>> = const { RefCell::new(None) };
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
        /// Steps that succeed, and those after them that fail.
        static FAIL: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
        static FAIL_LOOKS: Cell<bool> = const { Cell::new(false) };
    }

    /// Lets `steps` more steps happen on this thread, and the `count` after them fail as on a read-only file system.
    pub(in super::super) fn fail_after(steps: u32, count: u32) {
        FAIL.set((steps, count));
    }

    pub(in super::super) fn fail_looks(fail: bool) {
        FAIL_LOOKS.set(fail);
    }

    pub(in super::super) fn look() -> io::Result<()> {
        if FAIL_LOOKS.get() { Err(rustix::io::Errno::MFILE.into()) } else { Ok(()) }
    }

    /// Lets `steps` more steps happen on this thread and none after them.
    pub(in super::super) fn kill_after(steps: u32) {
        LEFT.set(Some(steps));
    }

    pub(in super::super) fn is_dead() -> bool {
        LEFT.get() == Some(0)
    }

    /// Back to life. True if the kill had struck.
    pub(in super::super) fn disarm() -> bool {
        LEFT.replace(None) == Some(0)
    }

    /// Does `work` after so many more steps of this thread, before the next.
    pub(in super::super) fn before_step(steps: u32, work: impl FnOnce() + 'static) {
        MEANWHILE.set(Some((steps, Box::new(work))));
    }

    pub(in super::super) fn step() -> io::Result<()> {
        match MEANWHILE.take() {
            Some((0, work)) => work(),
            Some((steps, work)) => MEANWHILE.set(Some((steps - 1, work))),
            None => {}
        }
        match FAIL.get() {
            (_, 0) => {}
            (0, count) => {
                FAIL.set((0, count - 1));
                return Err(rustix::io::Errno::ROFS.into());
            }
            (steps, count) => FAIL.set((steps - 1, count)),
        }
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
