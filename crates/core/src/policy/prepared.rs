//! An algorithm built before the engine is asked to use it.

use super::{Policy, PolicyConfig, PolicyContext};
use crate::engine::EngineConfig;

/// An algorithm with all its tables, ready for an engine: [`Engine::set_policy`](crate::Engine::set_policy) exchanges it
/// for the one in force and neither allocates nor fails. Build it, and drop the one handed back, where no lock is held.
#[derive(Debug)]
pub struct PreparedPolicy {
    config: PolicyConfig,
    context: PolicyContext,
    algorithm: Box<dyn Policy>,
    /// It has belonged to an engine and remembers requests.
    used: bool,
}

impl PreparedPolicy {
    /// Builds an algorithm for engines with these settings. O(`capacity + files_max`) time and memory.
    #[must_use]
    pub fn new(policy: &PolicyConfig, engine: &EngineConfig) -> PreparedPolicy {
        let context = PolicyContext { capacity: engine.capacity, queues: engine.files_max.saturating_mul(2) };
        let algorithm = (policy.info().build)(&policy.params(), context);
        PreparedPolicy { config: policy.clone(), context, algorithm, used: false }
    }

    /// The algorithm and its parameters.
    #[must_use]
    pub fn config(&self) -> &PolicyConfig {
        &self.config
    }

    /// Itself, if it is new and made for engines of this size; else a new one that is.
    pub(crate) fn fresh(mut self, engine: &EngineConfig) -> PreparedPolicy {
        let fits = self.context.capacity >= engine.capacity && self.context.queues / 2 >= engine.files_max;
        if self.used || !fits {
            self = PreparedPolicy::new(&self.config, engine);
        }
        self.used = true;
        self
    }

    pub(crate) fn algorithm(&self) -> &dyn Policy {
        &*self.algorithm
    }

    pub(crate) fn algorithm_mut(&mut self) -> &mut dyn Policy {
        &mut *self.algorithm
    }
}
