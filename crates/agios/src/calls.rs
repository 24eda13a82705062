//! The calls. One scheduler in a process, as with AGIOS.

use std::ffi::{CStr, OsStr, c_char};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_core::{FileId, Op};

use crate::complain;
use crate::config::Config;
use crate::current;
use crate::in_flight::Key;
use crate::scheduler::{Host, ProcessMany, ProcessOne, Scheduler, is_in_callback};

/// Reads the file that AGIOS reads without being told.
const DEFAULT_FILE: &str = "/etc/agios.conf";

/// Taken while a scheduler starts or ends.
static CHANGING: Mutex<()> = Mutex::new(());

/// # Safety
/// `path` is null or a string.
unsafe fn configuration(path: *const c_char) -> Config {
    // SAFETY: by the contract.
    let given = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_bytes());
    let given = given.filter(|path| !path.is_empty()).map(|path| Path::new(OsStr::from_bytes(path)));
    let path = given.unwrap_or(Path::new(DEFAULT_FILE));
    let read = std::fs::read(path);
    let path = path.to_string_lossy();
    match read {
        // A comment may be in another encoding.
        Ok(bytes) => Config::parse(&path, &String::from_utf8_lossy(&bytes)),
        Err(error) => {
            let mut config = Config::default();
            if given.is_some() || error.kind() != ErrorKind::NotFound {
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
        if is_in_callback() {
            return Err("agios_init: not from inside a callback".to_owned());
        }
        if max_queue_id < 0 {
            return Err("agios_init: max_queue_id is negative".to_owned());
        }
        let _changing = CHANGING.lock();
        if current::get().is_some() {
            return Err("agios_init: it runs already; call agios_exit first".to_owned());
        }
        // SAFETY: by the contract.
        let mut config = unsafe { configuration(config_file) };
        let policy = config.policy(max_queue_id as u32 + 1);
        let wanted = config.services();
        config.warnings.iter().for_each(|warning| complain(warning));
        let host = Host::new(one, process_requests);
        let started = policy.and_then(|policy| Scheduler::start(host, policy, max_queue_id, &wanted));
        let scheduler = started.map_err(|what| format!("agios_init: {what}"))?;
        current::set(Some(&Arc::new(scheduler)));
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
        if is_in_callback() {
            return Err("agios_exit: not from inside a callback".to_owned());
        }
        let _changing = CHANGING.lock();
        let Some(scheduler) = current::get() else { return Ok(()) };
        // Still known meanwhile: what is dispatched is to be released.
        let left = scheduler.shutdown();
        current::set(None);
        if left.queued + left.in_flight > 0 {
            let text = format!("{} requests were never dispatched, {} never released", left.queued, left.in_flight);
            return Err(format!("agios_exit: {text}"));
        }
        Ok(())
    });
}

/// A number for a file's name. Two of 65,536 files share one with a probability below 1 to 8 thousand million.
///
/// MurmurHash64A (Appleby 2008), which is public domain: names come with every call, and are short.
fn file_number(name: &[u8]) -> FileId {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |word: u64| {
        let word = word.wrapping_mul(FACTOR);
        (word ^ word >> 47).wrapping_mul(FACTOR)
    };
    let (words, rest) = name.as_chunks::<8>();
    let mut hash = (name.len() as u64).wrapping_mul(FACTOR);
    for word in words {
        hash = (hash ^ mix(u64::from_le_bytes(*word))).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |last, &byte| last << 8 | u64::from(byte));
        hash = (hash ^ last).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(FACTOR);
    FileId(hash ^ hash >> 47)
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
    Ok(Key { file: file_number(unsafe { CStr::from_ptr(file_id) }.to_bytes()), op, offset, len })
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
        let added = current::with(|scheduler| scheduler.add(key, identifier, queue_id));
        added.unwrap_or_else(|| Err("agios_init was not called".to_owned())).map_err(named)
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
        current::with(|scheduler| scheduler.release(key))
    };
    matches!(catch_unwind(AssertUnwindSafe(call)), Ok(Some(true)))
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
        current::with(|scheduler| scheduler.cancel(key))
    };
    matches!(catch_unwind(AssertUnwindSafe(call)), Ok(Some(true)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_that_are_alike_have_different_numbers() {
        // More than a program is likely to have open. By chance, two of them share one with a probability of 1 to 10^8.
        let names = (0..100_000).flat_map(|n| [format!("file.{n}"), format!("/scratch/job{}/rank{:05}.dat", n % 7, n)]);
        let prefixes = (0..64).map(|n| "a".repeat(n));
        let numbers: Vec<FileId> = names.chain(prefixes).map(|name| file_number(name.as_bytes())).collect();
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
    }
}
