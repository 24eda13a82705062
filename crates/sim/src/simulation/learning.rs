//! Getting to know the servers' devices by what they serve.

use sluice_adapt::device::{Estimate, Learner};
use sluice_core::ServedBatch;

use super::Simulation;

/// Batches of a window that are learned from, at most.
const SERVED_MAX: usize = 512;

/// Learns what one server's device is like.
pub(super) struct Learning {
    learner: Learner,
    served: Vec<ServedBatch>,
}

impl Learning {
    /// `page_cache`: the server has one.
    pub(super) fn new(page_cache: bool) -> Learning {
        Learning { learner: Learner::new(page_cache), served: Vec::with_capacity(SERVED_MAX) }
    }

    pub(super) fn estimate(&self) -> Estimate {
        self.learner.estimate()
    }
}

impl Simulation<'_> {
    /// A window of a data server is over.
    pub(super) fn learn_device(&mut self, node: u32) {
        let node = &mut self.nodes[node as usize];
        if let Some(learning) = &mut node.learning {
            learning.served = node.engine.served(std::mem::take(&mut learning.served));
            learning.served.iter().for_each(|batch| learning.learner.served(0, batch));
            // The first list that comes back is that of an engine that was given none.
            learning.served.clear();
            learning.served.reserve(SERVED_MAX);
        }
    }
}
