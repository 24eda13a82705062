//! Settings of an engine.

use crate::offset_tree::NODES_MAX;
use crate::policy::ConfigError;
use crate::queues::BatchLimits;
use crate::streams::Anticipation;

/// Most requests, and most files: tables for more would not fit into a machine. The trees could hold more.
const TABLE_MAX: u32 = (1 << 26) - 2;
const _: () = assert!(TABLE_MAX < NODES_MAX);
const APPS_MAX: u32 = 1 << 16;
const EVENTS_MAX: u32 = 1 << 26;

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
    /// Most files with outstanding requests at a time, 1 to 67,108,862. What is remembered of recent files (where they were
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
    /// *Live.* Whether, and how, the device is kept idle for a moment for the stream that it has just served. Not
    /// applied to policies that bypass the queue or share an engine between data servers. A request may then wait for
    /// `max_wait_ns` and one slice for each stream that has waited longer, and one for what belongs to none. `None`: it is not.
    pub anticipation: Option<Anticipation>,
    /// Length in nanoseconds of the windows of [`Stats`](crate::Stats); at least 1.
    pub window_ns: u64,
    /// Applications counted separately in the statistics, 65,536 at most.
    pub apps_max: u32,
    /// Trace events kept for [`Engine::poll_event`](crate::Engine::poll_event), 67,108,864 at most; 0: none.
    pub events: u32,
}

impl Default for EngineConfig {
    /// 32,768 requests, 2,048 files, strict ordering, `max_wait` 500 ms, batches of at most 1 MiB and 256 requests, no
    /// limit in flight, no anticipation, statistics by the second for 64 applications, no events.
    fn default() -> EngineConfig {
        EngineConfig {
            capacity: 32_768,
            files_max: 2_048,
            ordering: Ordering::Strict,
            max_wait_ns: 500_000_000,
            batch_bytes_max: 1 << 20,
            batch_requests_max: 256,
            in_flight_max: 0,
            anticipation: None,
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
        range("capacity", self.capacity.into(), 1, TABLE_MAX.into())?;
        range("files_max", self.files_max.into(), 1, TABLE_MAX.into())?;
        range("batch_bytes_max", self.batch_bytes_max, 1, any)?;
        range("batch_requests_max", self.batch_requests_max.into(), 1, u32::MAX.into())?;
        if let Some(anticipation) = &self.anticipation {
            range("positioning", anticipation.positioning_ns, 1, any)?;
            range("near", anticipation.near_bytes, 1, any)?;
            range("slice", anticipation.slice_ns, 1, any)?;
        }
        range("window", self.window_ns, 1, any)?;
        range("apps_max", self.apps_max.into(), 0, APPS_MAX.into())?;
        range("events", self.events.into(), 0, EVENTS_MAX.into())
    }

    pub(super) fn batch_limits(&self) -> BatchLimits {
        BatchLimits { bytes: self.batch_bytes_max, requests: self.batch_requests_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers of all sizes, and those next to a power of two.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0..4_u64, (0..64_u32, 0..3_u64).prop_map(|(bit, above)| ((1 << bit) - 1_u64).saturating_add(above))]
    }

    fn narrow(number: u64) -> u32 {
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    proptest! {
        /// The ranges as documented at the fields, and an error that names the first setting that is out of its range.
        #[test]
        fn settings_are_accepted_exactly_in_their_ranges(numbers in [(); 9].map(|()| number())) {
            let [capacity, files, max_wait_ns, batch_bytes_max, batch_requests, in_flight, window_ns, apps, events] =
                numbers;
            let config = EngineConfig {
                capacity: narrow(capacity),
                files_max: narrow(files),
                ordering: Ordering::Strict,
                max_wait_ns,
                batch_bytes_max,
                batch_requests_max: narrow(batch_requests),
                in_flight_max: narrow(in_flight),
                anticipation: None,
                window_ns,
                apps_max: narrow(apps),
                events: narrow(events),
            };
            let wrong = [
                ("capacity", config.capacity.into(), (1..=67_108_862).contains(&config.capacity)),
                ("files_max", config.files_max.into(), (1..=67_108_862).contains(&config.files_max)),
                ("batch_bytes_max", batch_bytes_max, batch_bytes_max > 0),
                ("batch_requests_max", config.batch_requests_max.into(), config.batch_requests_max > 0),
                ("window", window_ns, window_ns > 0),
                ("apps_max", config.apps_max.into(), config.apps_max <= 65_536),
                ("events", config.events.into(), config.events <= 67_108_864),
            ]
            .into_iter()
            .find(|(.., is_right)| !is_right);
            match (config.check(), wrong) {
                (Ok(()), None) => {}
                (Err(ConfigError::BadValue { key, value, expected }), Some((name, number, _))) => {
                    prop_assert_eq!((key.as_str(), value), (name, number.to_string()));
                    prop_assert!(expected.starts_with("a number from "), "{}", expected);
                }
                (answer, wrong) => prop_assert!(false, "{answer:?} for {wrong:?}"),
            }
        }
    }
}
