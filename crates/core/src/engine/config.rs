//! Settings of an engine.

use crate::offset_tree::NODES_MAX;
use crate::policy::ConfigError;
use crate::queues::BatchLimits;

/// Whether requests that overlap keep their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ordering {
    /// A request that overlaps an earlier one that is not complete, at least one of the two being a write, is dispatched
    /// after that one completes.
    #[default]
    Strict,
    /// Requests are reordered freely: for hosts that order conflicting requests themselves.
    None,
}

/// Settings of an [`Engine`](crate::Engine). Those marked *live* can be changed later with [`Engine::set_limits`](crate::Engine::set_limits).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// Most requests outstanding (queued or in flight) at a time, 1 to 67,108,862.
    pub capacity: u32,
    /// Most files with outstanding requests at a time; at least 1. What is remembered of recent files (where they were
    /// last read, how well they aggregated) shares these places.
    pub files_max: u32,
    /// Whether overlapping requests keep their order.
    pub ordering: Ordering,
    /// *Live.* A request that could have been dispatched for this many nanoseconds goes next, whatever the policy
    /// prefers; 0: never.
    pub max_wait_ns: u64,
    /// *Live.* Most bytes in a batch of more than one request; at least 1.
    pub batch_bytes_max: u64,
    /// *Live.* Most requests in a batch; at least 1.
    pub batch_requests_max: u32,
    /// *Live.* Most batches in flight at a time; 0: no limit. Not applied to policies that bypass the queue.
    pub in_flight_max: u32,
    /// Length in nanoseconds of the windows of [`Stats`](crate::Stats); at least 1.
    pub window_ns: u64,
    /// Applications counted separately in the statistics.
    pub apps_max: u32,
    /// Trace events kept for [`Engine::poll_event`](crate::Engine::poll_event); 0: none.
    pub events: u32,
}

impl Default for EngineConfig {
    /// 32,768 requests, 2,048 files, strict ordering, `max_wait` 500 ms, batches of at most 1 MiB and 256 requests, no
    /// limit in flight, statistics by the second for 64 applications, no events.
    fn default() -> EngineConfig {
        EngineConfig {
            capacity: 32_768,
            files_max: 2_048,
            ordering: Ordering::Strict,
            max_wait_ns: 500_000_000,
            batch_bytes_max: 1 << 20,
            batch_requests_max: 256,
            in_flight_max: 0,
            window_ns: 1_000_000_000,
            apps_max: 64,
            events: 0,
        }
    }
}

impl EngineConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let range = |key: &str, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(ConfigError::BadValue {
                key: key.to_owned(),
                value: value.to_string(),
                expected: format!("a number from {min} to {max}"),
            })
        };
        let any = u64::MAX;
        range("capacity", self.capacity.into(), 1, (NODES_MAX - 1).into())?;
        range("files_max", self.files_max.into(), 1, (NODES_MAX - 1).into())?;
        range("batch_bytes_max", self.batch_bytes_max, 1, any)?;
        range("batch_requests_max", self.batch_requests_max.into(), 1, u32::MAX.into())?;
        range("window", self.window_ns, 1, any)
    }

    pub(super) fn batch_limits(&self) -> BatchLimits {
        BatchLimits { bytes: self.batch_bytes_max, requests: self.batch_requests_max }
    }
}
