//! Looking for a request by what it is.

use super::Engine;
use crate::queues::State;
use crate::request::{Request, RequestId};

impl Engine {
    /// The oldest request that was not dispatched and is one of those `wanted`. O(`capacity`): for what is rare.
    #[must_use]
    pub fn find(&self, wanted: impl Fn(&Request) -> bool) -> Option<RequestId> {
        let queues = &self.queues;
        (0..queues.capacity())
            .filter(|&slot| !matches!(queues.entries[slot as usize].state, State::Free { .. } | State::InFlight { .. }))
            .filter(|&slot| wanted(&queues.request(slot)))
            .min_by_key(|&slot| queues.entries[slot as usize].arrived)
            .map(|slot| queues.id(slot))
    }
}
