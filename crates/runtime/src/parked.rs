//! What a thread has to carry out and leaves lying while it calls a host or waits.

use std::cell::RefCell;
use std::sync::Arc;

use sluice_core::TargetId;

use crate::client::Completer;
use crate::effects::{Effect, Effects, Recipient, carry_out_deferred, start_deferred, telling_later};

/// Lists of effects of frames further down this thread's stack, which are calling a host just now. While that call waits
/// for something, others have to get what is in there.
pub(crate) struct Parked {
    /// Lists of this thread, with this one.
    depth: usize,
    /// On a thread that is about to end and keeps no lists any more.
    apart: Option<Effects<Completer>>,
}

/// One client, to each engine.
pub(crate) type Owners = Arc<[Completer]>;

/// The one to the engine of a target.
pub(crate) fn owner(owners: &[Completer], target: TargetId) -> &Completer {
    &owners[if owners.len() == 1 { 0 } else { target.0 as usize }]
}

crate::sync::thread_cell! {
    static PARKED: RefCell<Vec<(Owners, Effects<Completer>)>> = RefCell::new(Vec::new());
}

impl Parked {
    /// Keeps the list, all of one client, of any of its engines, until [`Parked::take`].
    pub(crate) fn put(owners: &Owners, effects: Effects<Completer>) -> Parked {
        let mut apart = Some(effects);
        let put = |parked: &RefCell<Vec<(Owners, Effects<Completer>)>>| {
            let mut parked = parked.borrow_mut();
            parked.extend(apart.take().map(|effects| (owners.clone(), effects)));
            parked.len()
        };
        let depth = PARKED.try_with(put).unwrap_or(0);
        Parked { depth, apart }
    }

    /// What is left of it.
    pub(crate) fn take(self) -> Effects<Completer> {
        let take = || {
            PARKED.with(|parked| {
                debug_assert_eq!(parked.borrow().len(), self.depth, "frames end in order");
                parked.borrow_mut().pop().map_or_else(Effects::default, |(_, effects)| effects)
            })
        };
        self.apart.unwrap_or_else(take)
    }
}

/// To be called before this thread waits for anything: others get what it has dispatched.
pub(crate) fn before_waiting() {
    carry_out_deferred();
    carry_out_parked();
}

/// To be called before this thread takes a lock with which it may wait, and with which it calls no host: what it has
/// dispatched has places, and nobody else starts it. [`tell_late`](crate::effects::tell_late) must follow.
pub(crate) fn before_locking() {
    start_deferred();
    // Hosts hear later of what was cancelled.
    telling_later(carry_out_parked);
}

fn carry_out_parked() {
    let take = || {
        let next = |parked: &RefCell<Vec<(Owners, Effects<Completer>)>>| {
            let mut parked = parked.borrow_mut();
            parked.iter_mut().find_map(|(owners, effects)| Some((owners.clone(), effects.pop_own()?)))
        };
        PARKED.try_with(next).ok().flatten()
    };
    while let Some((owners, effect)) = take() {
        match effect {
            Effect::Start(batch) => owner(&owners, batch.parts()[0].request.target).start(&batch, None),
            Effect::Cancel(refused) => owner(&owners, refused.0.target).cancelled(&refused.0, refused.1),
        }
    }
}
