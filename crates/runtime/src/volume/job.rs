//! A dispatched batch on its way to the thread that executes it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;

use sluice_core::Part;

use crate::shard::Completer;

/// A batch.
pub(super) struct Job {
    pub(super) parts: Vec<Part>,
    pub(super) completer: Completer,
    /// What the first call on its first run gave already, where somebody else made it (the ring).
    pub(super) first: Option<io::Result<usize>>,
}

thread_local! {
    static SCOPE: Scope = const { Scope { volume: Cell::new(0), jobs: RefCell::new(VecDeque::new()) } };
}

/// While a thread handles requests of a volume, the batches that get dispatched on it are collected here: they are
/// executed outside the engine's lock, and where possible on this thread.
struct Scope {
    /// Address of the volume, 0 for none.
    volume: Cell<usize>,
    jobs: RefCell<VecDeque<Job>>,
}

/// Leaves the job to this thread if it collects the jobs of `volume`, or gives it back.
pub(super) fn collect(volume: usize, job: Job) -> Option<Job> {
    SCOPE.with(|scope| {
        if scope.volume.get() != volume {
            return Some(job);
        }
        scope.jobs.borrow_mut().push_back(job);
        None
    })
}

/// The first job collected, and whether there are more.
pub(super) fn take() -> Option<(Job, bool)> {
    SCOPE.with(|scope| {
        let mut jobs = scope.jobs.borrow_mut();
        jobs.pop_front().map(|job| (job, !jobs.is_empty()))
    })
}

/// Identifies this thread among those that run.
pub(super) fn thread_token() -> usize {
    SCOPE.with(|scope| std::ptr::from_ref(scope).addr())
}

/// Makes this thread collect the jobs of a volume until dropped. If it does so already for another volume, this one's
/// jobs go to other threads.
pub(super) struct Inside {
    entered: bool,
}

impl Inside {
    pub(super) fn enter(volume: usize) -> Inside {
        let entered = SCOPE.with(|scope| scope.volume.get() == 0 && scope.volume.replace(volume) == 0);
        Inside { entered }
    }

    /// True if this call began the collecting, and so has to see to what was collected.
    pub(super) fn outermost(&self) -> bool {
        self.entered
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.entered {
            SCOPE.with(|scope| scope.volume.set(0));
        }
    }
}
