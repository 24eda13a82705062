//! The calls. One scheduler in a process, as with AGIOS.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::hash::{DefaultHasher, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use sluice_core::{AppId, Batch, EngineConfig, FileId, Op, Outcome, Part, Request, TargetId};
use sluice_runtime::{Completer, Driving, Executor, Runtime, RuntimeConfig, Shutdown};

use crate::config::Config;
use crate::outstanding::{Key, Outstanding};

/// Reads the file that AGIOS reads without being told.
const DEFAULT_FILE: &str = "/etc/agios.conf";

/// Most requests outstanding, and files that they are for.
const CAPACITY: u32 = 131_072;
const FILES_MAX: u32 = 65_536;

/// How long the end waits for releases.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

type ProcessOne = unsafe extern "C" fn(i64) -> *mut c_void;
type ProcessMany = unsafe extern "C" fn(*mut i64, i32) -> *mut c_void;

struct Scheduler {
    runtime: Runtime<Host>,
    queue_id_max: i32,
    /// Queues are data servers, not applications: a file's parts on them are files of their own.
    queues_are_targets: bool,
}

struct Host {
    one: ProcessOne,
    many: Option<ProcessMany>,
    outstanding: Outstanding,
}

static SCHEDULER: RwLock<Option<Arc<Scheduler>>> = RwLock::new(None);

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

fn complain(what: &str) {
    eprintln!("agios: {what}");
}

impl Host {
    /// Hands over parts that are contiguous; none was cancelled.
    fn process(&self, parts: &[Part]) {
        match (parts, self.many) {
            ([], _) => {}
            ([_, _, ..], Some(many)) => {
                let mut identifiers: Vec<i64> = parts.iter().map(|part| part.request.cookie as i64).collect();
                // SAFETY: the program's function, for as many identifiers.
                unsafe { many(identifiers.as_mut_ptr(), identifiers.len() as i32) };
            }
            (parts, _) => {
                // SAFETY: the program's function.
                parts.iter().for_each(|part| _ = unsafe { (self.one)(part.request.cookie as i64) });
            }
        }
    }
}

impl Executor for Host {
    fn start(&self, batch: &Batch, _: usize, completer: &Completer) {
        let outer = IN_CALLBACK.replace(true);
        let parts = batch.parts();
        let mut from = 0;
        for (at, part) in parts.iter().enumerate() {
            if !self.outstanding.dispatched(Key::of(&part.request), part.id) {
                completer.complete(part.id, Outcome::ok(0));
                // What is on its two sides is not contiguous.
                self.process(&parts[from..at]);
                from = at + 1;
            }
        }
        self.process(&parts[from..]);
        IN_CALLBACK.set(outer);
    }

    fn cancelled(&self, request: &Request, _: usize, _: i32) {
        self.outstanding.refused(Key::of(request));
    }
}

/// # Safety
/// `path` is null or a string.
unsafe fn configuration(path: *const c_char) -> Config {
    // SAFETY: by the contract.
    let given = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_string_lossy());
    let given = given.filter(|path| !path.is_empty());
    let path = given.as_deref().unwrap_or(DEFAULT_FILE);
    match std::fs::read_to_string(path) {
        Ok(text) => Config::parse(path, &text),
        Err(error) => {
            let mut config = Config::default();
            if given.is_some() {
                config.warnings.push(format!("{path}: {error}; all settings have their defaults"));
            }
            config
        }
    }
}

/// Starts the scheduler.
///
/// # Safety
/// The functions have these types, `config_file` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_init(
    process_request: Option<ProcessOne>,
    process_requests: Option<ProcessMany>,
    config_file: *const c_char,
    max_queue_id: i32,
) -> bool {
    let init = || {
        let one = process_request.ok_or("agios_init: process_request is NULL")?;
        if max_queue_id < 0 {
            return Err("agios_init: max_queue_id is negative".to_owned());
        }
        let mut current = SCHEDULER.write();
        if current.is_some() {
            return Err("agios_init: it runs already; call agios_exit first".to_owned());
        }
        // SAFETY: by the contract.
        let mut config = unsafe { configuration(config_file) };
        let policy = config.policy(max_queue_id as u32 + 1);
        config.warnings.iter().for_each(|warning| complain(warning));
        let policy = policy.map_err(|what| format!("agios_init: {what}"))?;
        let queues_are_targets = policy.info().shared_engine;
        let engine = EngineConfig { capacity: CAPACITY, files_max: FILES_MAX, ..EngineConfig::default() };
        let settings = RuntimeConfig {
            engine,
            // Programs may hold a lock that their callback takes, too.
            driving: Driving::Thread,
            name: "agios".to_owned(),
            ..RuntimeConfig::new(policy)
        };
        let host = Host { one, many: process_requests, outstanding: Outstanding::new() };
        let runtime = Runtime::start(Arc::new(host), settings).map_err(|error| format!("agios_init: {error}"))?;
        *current = Some(Arc::new(Scheduler { runtime, queue_id_max: max_queue_id, queues_are_targets }));
        Ok(())
    };
    report(init)
}

/// Runs a call. False on an error, which is printed, and on a panic.
fn report(call: impl FnOnce() -> Result<(), String>) -> bool {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => true,
        Ok(Err(what)) => {
            complain(&what);
            false
        }
        Err(_) => false,
    }
}

/// Stops the scheduler; what is queued is dispatched first.
#[unsafe(no_mangle)]
pub extern "C" fn agios_exit() {
    report(|| {
        if IN_CALLBACK.get() {
            return Err("agios_exit: not from inside a callback".to_owned());
        }
        let Some(scheduler) = scheduler() else { return Ok(()) };
        // Still known meanwhile: what is dispatched is to be released.
        let left = scheduler.runtime.shutdown(Shutdown::Drain { timeout: EXIT_TIMEOUT });
        SCHEDULER.write().take();
        if left.failed + left.in_flight > 0 {
            let text = format!("{} requests were never dispatched, {} never released", left.failed, left.in_flight);
            return Err(format!("agios_exit: {text}"));
        }
        Ok(())
    });
}

/// A number for a file's name. Two of 65,536 files share one with a probability below 1 to 8 thousand million.
fn file_number(name: &CStr) -> FileId {
    let mut hasher = DefaultHasher::new();
    hasher.write(name.to_bytes());
    FileId(hasher.finish())
}

/// # Safety
/// `file_id` is null or a string.
unsafe fn key(file_id: *const c_char, kind: i32, offset: i64, len: i64) -> Result<Key, String> {
    if file_id.is_null() {
        return Err("file_id is NULL".to_owned());
    }
    let op = match kind {
        0 => Op::Read,
        1 => Op::Write,
        other => return Err(format!("type is {other}; it must be RT_READ or RT_WRITE")),
    };
    let offset = u64::try_from(offset).map_err(|_| format!("offset {offset} is negative"))?;
    let len = u32::try_from(len).map_err(|_| format!("len {len} is not between 0 and {}", u32::MAX))?;
    // SAFETY: by the contract.
    Ok(Key { file: file_number(unsafe { CStr::from_ptr(file_id) }), op, offset, len })
}

fn scheduler() -> Option<Arc<Scheduler>> {
    SCHEDULER.read().clone()
}

/// Gives a request to the scheduler.
///
/// # Safety
/// `file_id` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_add_request(
    file_id: *const c_char,
    kind: i32,
    offset: i64,
    len: i64,
    identifier: i64,
    queue_id: i32,
) -> bool {
    report(|| {
        let named = |what: String| format!("agios_add_request: {what}");
        // SAFETY: by the contract.
        let key = unsafe { key(file_id, kind, offset, len) }.map_err(named)?;
        let scheduler = scheduler().ok_or_else(|| named("agios_init was not called".to_owned()))?;
        if !(0..=scheduler.queue_id_max).contains(&queue_id) {
            return Err(named(format!("queue_id {queue_id} is not between 0 and {}", scheduler.queue_id_max)));
        }
        let request = Request {
            cookie: identifier as u64,
            file: key.file,
            app: AppId(queue_id as u32),
            target: TargetId(if scheduler.queues_are_targets { queue_id as u32 } else { 0 }),
            op: key.op,
            offset: key.offset,
            len: key.len,
        };
        let outstanding = &scheduler.runtime.executor().outstanding;
        outstanding.queued(key);
        let waits = !IN_CALLBACK.get();
        let runtime = &scheduler.runtime;
        let submitted = if waits { runtime.submit(0, request) } else { runtime.try_submit(0, request) };
        submitted.map_err(|error| {
            outstanding.refused(key);
            named(error.to_string())
        })
    })
}

/// A request that was handed over is done.
///
/// # Safety
/// `file_id` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_release_request(file_id: *const c_char, kind: i32, len: i64, offset: i64) -> bool {
    let call = || {
        // SAFETY: by the contract.
        let key = unsafe { key(file_id, kind, offset, len) }.ok()?;
        let scheduler = scheduler()?;
        let id = scheduler.runtime.executor().outstanding.released(key)?;
        scheduler.runtime.completer(0).complete(id, Outcome::ok(key.len));
        Some(())
    };
    matches!(catch_unwind(AssertUnwindSafe(call)), Ok(Some(())))
}

/// Takes back a request that was not handed over yet.
///
/// # Safety
/// `file_id` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_cancel_request(file_id: *const c_char, kind: i32, len: i64, offset: i64) -> bool {
    let call = || {
        // SAFETY: by the contract.
        let key = unsafe { key(file_id, kind, offset, len) }.ok()?;
        Some(scheduler()?.runtime.executor().outstanding.cancelled(key))
    };
    matches!(catch_unwind(AssertUnwindSafe(call)), Ok(Some(true)))
}
