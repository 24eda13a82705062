//! The one door to an engine: everything that changes it is a command, and commands are carried out in the order in which
//! they came.

use std::sync::Arc;

use sluice_core::{Outcome, Request, RequestId};

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{ArrayQueue, Mutex};

/// Places beside one for each request: for settings, cancellations and questions, and for reports of requests that are not
/// in flight. Who finds no place drives the engine until there is one.
const EXTRA: usize = 64;

/// What a thread brings along that holds the engine itself: it comes right after what is in the inbox, so it need not go
/// through there.
#[derive(Clone, Copy)]
pub(crate) enum Brought<'a> {
    Nothing,
    Submit(Request),
    SubmitAll(&'a [Request]),
    Complete(&'a [(RequestId, Outcome)]),
}

impl Brought<'_> {
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Brought::Nothing)
    }

    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Brought::Nothing)
    }
}

/// What changes an engine. `C` is what the rarer changes work on.
pub(crate) enum Command<C> {
    /// A request of a client.
    Submit { request: Request, client: u16 },
    /// A dispatched request has ended.
    Complete { id: RequestId, outcome: Outcome },
    /// All else, with its answer.
    Control(Box<dyn FnOnce(&mut C) + Send>),
}

pub(crate) struct Inbox<C>(ArrayQueue<Command<C>>);

impl<C> Inbox<C> {
    /// For an engine of `capacity` requests: each is in here once at most, as a submission or as a completion.
    pub(crate) fn new(capacity: u32) -> Inbox<C> {
        Inbox(ArrayQueue::new(capacity as usize + EXTRA))
    }

    /// Gives the command back if there is no place.
    pub(crate) fn push(&self, command: Command<C>) -> Result<(), Command<C>> {
        self.0.push(command)
    }

    pub(crate) fn pop(&self) -> Option<Command<C>> {
        self.0.pop()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The answer to a control command.
pub(crate) struct Reply<T> {
    value: Mutex<Option<T>>,
    ready: AtomicBool,
}

impl<T> Reply<T> {
    pub(crate) fn new() -> Arc<Reply<T>> {
        Arc::new(Reply { value: Mutex::new(None), ready: AtomicBool::new(false) })
    }

    pub(crate) fn set(&self, value: T) {
        *self.value.lock() = Some(value);
        self.ready.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }

    /// Once, when it is ready.
    pub(crate) fn take(&self) -> T {
        self.value.lock().take().expect("asked for once, when it is there")
    }
}
