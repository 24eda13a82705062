//! From `struct sluice_options` to settings.

use std::ffi::{CStr, c_char};

use sluice_core::{ConfigError, EngineConfig, Ordering, PolicyConfig};
use sluice_runtime::{Driving, RuntimeConfig};

use crate::status::{Failure, SLUICE_ERR_CONFIG, SLUICE_ERR_INVALID};
use crate::types::{SLUICE_OWN_THREAD, SLUICE_UNORDERED, SLUICE_WAIT_UNBOUNDED, sluice_options};

/// The best all-rounder measured (docs/benchmarks.md).
const POLICY: &str = "hbrr";

/// As many as the number of a request has room for.
pub(crate) const SHARDS_MAX: u32 = 64;

const CAPACITY_MAX: u32 = (1 << 26) - 2;

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::made(SLUICE_ERR_CONFIG, error.to_string())
    }
}

/// Reads `name key=value ...`.
///
/// # Safety
/// `text` is null or a string that ends with a 0.
pub(crate) unsafe fn policy(text: *const c_char) -> Result<PolicyConfig, Failure> {
    if text.is_null() {
        return Ok(PolicyConfig::parse(POLICY)?);
    }
    // SAFETY: by the contract.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|_| Failure::new(SLUICE_ERR_INVALID, c"the policy is not UTF-8"))?;
    let mut words = text.split_whitespace();
    let mut config = PolicyConfig::parse(words.next().unwrap_or(""))?;
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| {
            Failure::made(
                SLUICE_ERR_CONFIG,
                format!("{word:?} is not a parameter: expected key=value, like wait_time=500us"),
            )
        })?;
        config = config.with(key, value)?;
    }
    Ok(config)
}

fn or<T: Default + PartialEq>(given: T, default: T) -> T {
    if given == T::default() { default } else { given }
}

/// # Safety
/// `options.policy` is null or a string that ends with a 0.
pub(crate) unsafe fn settings(options: &sluice_options) -> Result<RuntimeConfig, Failure> {
    if options.start.is_none() || options.cancelled.is_none() {
        return Err(Failure::new(SLUICE_ERR_INVALID, c"the callbacks start and cancelled are required"));
    }
    let unknown = options.flags & !(SLUICE_OWN_THREAD | SLUICE_UNORDERED);
    if unknown != 0 {
        return Err(Failure::made(SLUICE_ERR_INVALID, format!("unknown flags {unknown:#x}")));
    }
    if options.shards > SHARDS_MAX {
        return Err(Failure::made(SLUICE_ERR_CONFIG, format!("shards must be from 1 to {SHARDS_MAX}")));
    }
    // SAFETY: by the contract.
    let policy = unsafe { policy(options.policy)? };
    if options.shards > 1 && policy.info().shared_engine {
        let text = format!("{} coordinates the data servers in one engine: shards must be 1", policy.name());
        return Err(Failure::made(SLUICE_ERR_CONFIG, text));
    }
    let default = EngineConfig::default();
    let capacity = or(options.capacity, default.capacity);
    if capacity > CAPACITY_MAX {
        // Said here because the table of what is in flight is made before the engine looks at it.
        return Err(Failure::made(SLUICE_ERR_CONFIG, format!("capacity must be from 1 to {CAPACITY_MAX}")));
    }
    let engine = EngineConfig {
        capacity,
        files_max: or(options.files_max, default.files_max.min(capacity)),
        ordering: if options.flags & SLUICE_UNORDERED == 0 { Ordering::Strict } else { Ordering::None },
        max_wait_ns: match options.max_wait_ns {
            0 => default.max_wait_ns,
            SLUICE_WAIT_UNBOUNDED => 0,
            given => given,
        },
        batch_bytes_max: or(options.batch_bytes_max, default.batch_bytes_max),
        batch_requests_max: or(options.batch_requests_max, default.batch_requests_max),
        in_flight_max: options.in_flight_max,
        window_ns: or(options.window_ns, default.window_ns),
        apps_max: or(options.apps_max, default.apps_max),
        events: 0,
    };
    let own_thread = options.flags & SLUICE_OWN_THREAD != 0;
    Ok(RuntimeConfig {
        shards: options.shards.max(1) as usize,
        engine,
        driving: if own_thread { Driving::Thread } else { Driving::Caller },
        ..RuntimeConfig::new(policy)
    })
}
