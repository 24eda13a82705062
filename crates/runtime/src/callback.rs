//! Host callbacks as an executor.

use sluice_core::{Batch, Part, Request};

use crate::client::{Executor, Started};

/// Called with one dispatched request and what to report its end to.
pub type StartOne = Box<dyn Fn(&Part, &Started<'_>) + Send + Sync>;
/// Called with a whole batch.
pub type StartBatch = Box<dyn Fn(&Batch, &Started<'_>) + Send + Sync>;
/// Called with a request that will never be started, and the error number.
pub type Cancelled = Box<dyn Fn(&Request, i32) + Send + Sync>;

/// An [`Executor`] made of a host's functions. They are called under the rules of [`Executor::start`].
pub struct Callbacks {
    one: StartOne,
    batch: Option<StartBatch>,
    cancelled: Cancelled,
}

impl Callbacks {
    /// `one` gets the parts of a batch in offset order.
    pub fn new(
        one: impl Fn(&Part, &Started<'_>) + Send + Sync + 'static,
        cancelled: impl Fn(&Request, i32) + Send + Sync + 'static,
    ) -> Callbacks {
        Callbacks { one: Box::new(one), batch: None, cancelled: Box::new(cancelled) }
    }

    /// Batches of several requests go to `batch` instead.
    #[must_use]
    pub fn with_batch(mut self, batch: impl Fn(&Batch, &Started<'_>) + Send + Sync + 'static) -> Callbacks {
        self.batch = Some(Box::new(batch));
        self
    }
}

impl Executor for Callbacks {
    fn start(&self, batch: &Batch, started: &Started<'_>) {
        match &self.batch {
            Some(together) if batch.requests() > 1 => together(batch, started),
            _ => batch.parts().iter().for_each(|part| (self.one)(part, started)),
        }
    }

    fn cancelled(&self, request: &Request, errno: i32) {
        (self.cancelled)(request, errno);
    }
}
