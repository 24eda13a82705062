//! Settings of a volume.

use sluice_core::{EngineConfig, PolicyConfig};

use crate::clock::ClockKind;
use crate::shard::Driving;

/// How many engines a volume has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engines {
    /// One for each target, or one for all if the policy at the start coordinates targets.
    #[default]
    Auto,
    /// One for each target.
    PerTarget,
    /// One for all.
    Shared,
}

/// Who executes what is not executed in the submitting thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Workers {
    /// The faster one in general: threads.
    #[default]
    Auto,
    /// A pool of threads.
    Threads,
    /// io_uring for files whose storage gives descriptors, if the system allows it; else threads.
    Ring,
}

/// Settings of a [`Volume`](crate::Volume).
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Settings of each engine. With `in_flight_max` 0, as many batches as there can be workers are in flight: more would
    /// only queue behind the policy's back.
    pub engine: EngineConfig,
    /// The algorithm.
    pub policy: PolicyConfig,
    /// Number of engines.
    pub engines: Engines,
    /// Who executes.
    pub workers: Workers,
    /// Most worker threads, and most operations in the ring for each target. At least 1.
    pub threads_max: u32,
    /// Largest request given to an engine, in bytes; larger ones are split.
    pub request_bytes_max: u32,
    /// Most memory for data on its way, in bytes; requests beyond wait. One request may exceed it when it is alone.
    pub buffer_bytes_max: u64,
    /// Requests may be executed in the thread that submits them.
    pub inline: bool,
    /// Who drives the engines.
    pub driving: Driving,
    /// What times count from.
    pub clock: ClockKind,
}

impl VolumeConfig {
    /// The defaults, with this algorithm.
    #[must_use]
    pub fn new(policy: PolicyConfig) -> VolumeConfig {
        VolumeConfig {
            engine: EngineConfig::default(),
            policy,
            engines: Engines::default(),
            workers: Workers::default(),
            threads_max: 16,
            request_bytes_max: 1 << 20,
            buffer_bytes_max: 256 << 20,
            inline: true,
            driving: Driving::default(),
            clock: ClockKind::default(),
        }
    }
}

impl Default for VolumeConfig {
    /// With the table's first algorithm that lets requests through at once.
    fn default() -> VolumeConfig {
        let table = sluice_core::policy::table();
        let first = table.iter().find(|info| info.bypasses_queue).unwrap_or(&table[0]);
        VolumeConfig::new(PolicyConfig::parse(first.name).expect("a name from the table"))
    }
}
