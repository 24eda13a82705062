//! From `struct sluice_options` to settings.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use sluice_adapt::selector::{Device, Kind, Model, Prior};
use sluice_core::{Anticipation, ConfigError, EngineConfig, Ordering, PolicyConfig};
use sluice_runtime::{ClockKind, Driving, SchedulerConfig};

use crate::status::{Failure, SLUICE_ERR_CONFIG, SLUICE_ERR_INVALID};
use crate::types::{
    SLUICE_OWN_THREAD, SLUICE_REALTIME, SLUICE_SHARED, SLUICE_UNORDERED, SLUICE_WAIT_UNBOUNDED, Versioned,
    sluice_cancelled_fn, sluice_options, sluice_start_batch_fn, sluice_start_fn,
};

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

/// What of the options is a client's.
pub(crate) struct ClientOptions {
    pub(crate) start: sluice_start_fn,
    pub(crate) start_batch: sluice_start_batch_fn,
    pub(crate) cancelled: sluice_cancelled_fn,
    pub(crate) user: *mut c_void,
    /// None: all.
    pub(crate) targets: Option<Range<u32>>,
}

impl ClientOptions {
    fn of(options: &sluice_options) -> Result<ClientOptions, Failure> {
        if options.start.is_none() || options.cancelled.is_none() {
            return Err(Failure::new(SLUICE_ERR_INVALID, c"the callbacks start and cancelled are required"));
        }
        let (first, count) = (options.target_first, options.target_count);
        let end = first.checked_add(count).ok_or(Failure::new(
            SLUICE_ERR_INVALID,
            c"target_first + target_count is beyond the largest number of a target",
        ))?;
        if first > 0 && count == 0 {
            return Err(Failure::new(SLUICE_ERR_INVALID, c"target_first without target_count: say how many targets"));
        }
        Ok(ClientOptions {
            start: options.start,
            start_batch: options.start_batch,
            cancelled: options.cancelled,
            user: options.user,
            targets: (count > 0).then_some(first..end),
        })
    }
}

/// The client of a scheduler's own, unless all join later.
pub(crate) fn own_client(options: &sluice_options) -> Result<Option<ClientOptions>, Failure> {
    if options.flags & SLUICE_SHARED == 0 {
        return ClientOptions::of(options).map(Some);
    }
    let is_client = options.start.is_some() || options.start_batch.is_some() || options.cancelled.is_some();
    if is_client || options.target_first > 0 || options.target_count > 0 {
        let text =
            c"SLUICE_SHARED makes a scheduler without a client: callbacks and targets are those of sluice_attach()";
        return Err(Failure::new(SLUICE_ERR_INVALID, text));
    }
    Ok(None)
}

/// A client that joins: it has no settings of a scheduler.
pub(crate) fn joining_client(options: &sluice_options) -> Result<ClientOptions, Failure> {
    let client = ClientOptions::of(options)?;
    let clients_own = sluice_options {
        struct_size: options.struct_size,
        start: options.start,
        start_batch: options.start_batch,
        cancelled: options.cancelled,
        user: options.user,
        target_first: options.target_first,
        target_count: options.target_count,
        ..sluice_options::empty()
    };
    if !clients_own.same_settings(options) {
        let text = c"a client has callbacks and targets; all else in the options is the scheduler's and must be 0";
        return Err(Failure::new(SLUICE_ERR_INVALID, text));
    }
    Ok(client)
}

impl sluice_options {
    /// All but what is a client's.
    fn same_settings(&self, other: &sluice_options) -> bool {
        self.flags == other.flags
            && self.policy == other.policy
            && (self.shards, self.capacity, self.files_max) == (other.shards, other.capacity, other.files_max)
            && (self.in_flight_max, self.batch_bytes_max) == (other.in_flight_max, other.batch_bytes_max)
            && (self.batch_requests_max, self.apps_max) == (other.batch_requests_max, other.apps_max)
            && (self.max_wait_ns, self.window_ns) == (other.max_wait_ns, other.window_ns)
            && self.positioning_ns == other.positioning_ns
            && (self.selector, self.selector_state) == (other.selector, other.selector_state)
    }
}

/// Who chooses.
///
/// # Safety
/// `options.selector` is null or a string that ends with a 0.
unsafe fn selector(options: &sluice_options) -> Result<Kind, Failure> {
    if options.selector.is_null() {
        return Ok(Kind::Fixed);
    }
    // SAFETY: by the contract.
    let text = unsafe { CStr::from_ptr(options.selector) }.to_string_lossy();
    text.parse().map_err(|error| Failure::made(SLUICE_ERR_CONFIG, error))
}

/// How to choose; with [`Kind::Fixed`] nobody does.
///
/// # Safety
/// `options.selector` and `options.selector_state` are null or strings that end with a 0.
pub(crate) unsafe fn selection(options: &sluice_options) -> Result<sluice_select::Options, Failure> {
    // SAFETY: by the contract.
    let (kind, state) = unsafe { (selector(options)?, path(options.selector_state)) };
    if kind == Kind::Fixed && state.is_some() {
        let text = c"selector_state is where a selector keeps what it learns, and there is none: set selector";
        return Err(Failure::new(SLUICE_ERR_INVALID, text));
    }
    let device = if options.positioning_ns > 0 { Device::Disk } else { Device::Unknown };
    let model = || Model::shipped().map_err(|error| Failure::made(SLUICE_ERR_CONFIG, error.to_string()));
    let prior = if kind.asks_model() { Some(Box::new(model()?) as Box<dyn Prior>) } else { None };
    let likeliest_first = options.policy.is_null();
    Ok(sluice_select::Options { kind, device, prior, state, likeliest_first, ..Default::default() })
}

/// A path, or none.
///
/// # Safety
/// `text` is null or a string.
pub(crate) unsafe fn path(text: *const c_char) -> Option<PathBuf> {
    // SAFETY: by the contract.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?;
    Some(PathBuf::from(OsStr::from_bytes(text.to_bytes())))
}

/// Settings that can be changed while running, and nothing else.
pub(crate) fn limits(options: &sluice_options, current: &EngineConfig) -> Result<EngineConfig, Failure> {
    let live = sluice_options {
        struct_size: options.struct_size,
        in_flight_max: options.in_flight_max,
        batch_bytes_max: options.batch_bytes_max,
        batch_requests_max: options.batch_requests_max,
        max_wait_ns: options.max_wait_ns,
        positioning_ns: options.positioning_ns,
        ..sluice_options::empty()
    };
    if !live.same_settings(options) {
        let text =
            c"only in_flight_max, batch_bytes_max, batch_requests_max, max_wait_ns and positioning_ns can be changed";
        return Err(Failure::new(SLUICE_ERR_INVALID, text));
    }
    let default = EngineConfig::default();
    Ok(EngineConfig {
        max_wait_ns: max_wait_ns(options, &default),
        batch_bytes_max: or(options.batch_bytes_max, default.batch_bytes_max),
        batch_requests_max: or(options.batch_requests_max, default.batch_requests_max),
        in_flight_max: options.in_flight_max,
        anticipation: anticipation(options),
        ..current.clone()
    })
}

fn max_wait_ns(options: &sluice_options, default: &EngineConfig) -> u64 {
    match options.max_wait_ns {
        0 => default.max_wait_ns,
        SLUICE_WAIT_UNBOUNDED => 0,
        given => given,
    }
}

fn anticipation(options: &sluice_options) -> Option<Anticipation> {
    (options.positioning_ns > 0).then(|| Anticipation::for_device(options.positioning_ns, DISK_BYTES_PER_S))
}

/// What a hard disk transfers in a second.
const DISK_BYTES_PER_S: u64 = 100_000_000;

/// The scheduler's settings.
///
/// # Safety
/// `options.policy` and `options.selector` are null or strings that end with a 0.
pub(crate) unsafe fn settings(options: &sluice_options) -> Result<SchedulerConfig, Failure> {
    let unknown = options.flags & !(SLUICE_OWN_THREAD | SLUICE_UNORDERED | SLUICE_SHARED | SLUICE_REALTIME);
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
        max_wait_ns: max_wait_ns(options, &default),
        batch_bytes_max: or(options.batch_bytes_max, default.batch_bytes_max),
        batch_requests_max: or(options.batch_requests_max, default.batch_requests_max),
        in_flight_max: options.in_flight_max,
        anticipation: anticipation(options),
        window_ns: match options.window_ns {
            // SAFETY: by the contract.
            0 if unsafe { selector(options)? } != Kind::Fixed => sluice_select::WINDOW_NS,
            given => or(given, default.window_ns),
        },
        apps_max: or(options.apps_max, default.apps_max),
        events: 0,
    };
    let own_thread = options.flags & SLUICE_OWN_THREAD != 0;
    Ok(SchedulerConfig {
        shards: options.shards.max(1) as usize,
        engine,
        driving: if own_thread { Driving::Thread } else { Driving::Caller },
        clock: if options.flags & SLUICE_REALTIME == 0 { ClockKind::Start } else { ClockKind::Realtime },
        ..SchedulerConfig::new(policy)
    })
}
