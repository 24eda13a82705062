//! The functions.

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::time::Duration;

use sluice_core::{AppId, Counters, Histogram, Op, policy};
use sluice_predict::Source;

use crate::handle::sluice;
use crate::instance::{Coordinated, Instance};
use crate::options::{self, path};
use crate::status::{Failure, SLUICE_ERR_INVALID, answer, describe, last};
use crate::types::{
    SLUICE_LAST_WINDOW, SLUICE_TOTAL, list, read, read_list, sluice_app, sluice_completion, sluice_counters,
    sluice_options, sluice_request, sluice_slice, write,
};

/// The version of the library: major * 1,000,000 + minor * 1,000 + patch.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
        + part(env!("CARGO_PKG_VERSION_MINOR")) * 1_000
        + part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// A few words about a code. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_strerror(code: c_int) -> *const c_char {
    describe(code).as_ptr()
}

/// A sentence about the last call on this thread that failed; valid until the next one that does. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_last_error() -> *const c_char {
    last()
}

/// The name of an algorithm, counted from 0; NULL beyond the last.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_policy_name(index: usize) -> *const c_char {
    // The table's names have no end mark, so each has a copy here, made once.
    static NAMES: std::sync::OnceLock<Vec<std::ffi::CString>> = std::sync::OnceLock::new();
    let names = NAMES.get_or_init(|| {
        policy::table().iter().map(|info| std::ffi::CString::new(info.name).unwrap_or_default()).collect()
    });
    names.get(index).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Creates a scheduler and starts its thread. `*out` is NULL on failure.
///
/// The handle is also that of a client, which has the callbacks given here and submits and completes with it; unless
/// SLUICE_SHARED says that clients join later.
///
/// # Safety
/// `options` and `out` point to such structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_create(options: *const sluice_options, out: *mut *mut sluice) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        unsafe { clear(out)? };
        // SAFETY: by the contract.
        let options = unsafe { read(options)? };
        let client = options::own_client(&options)?;
        // SAFETY: by the contract.
        let (config, selection) = unsafe { (options::settings(&options)?, options::selection(&options)?) };
        let handle = sluice::create(|handle| Instance::start(config, client.as_ref(), selection, handle))?;
        // SAFETY: by the contract.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// # Safety
/// `out` is null or writable.
unsafe fn clear(out: *mut *mut sluice) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::new(SLUICE_ERR_INVALID, c"there is no place for the result: out is NULL"));
    }
    // SAFETY: by the contract.
    unsafe { out.write(std::ptr::null_mut()) };
    Ok(())
}

/// Lets a further client join a scheduler, at any time. Of the options it has the callbacks, `user`, and the targets, which
/// must be no other client's; all else must be 0. `*out` is the client, NULL on failure: it submits, completes and cancels
/// its own requests, and hears of those only. Everything else concerns the whole scheduler, whichever handle it is called
/// with.
///
/// # Safety
/// `s` came from `sluice_create`, `options` and `out` point to such structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_attach(s: *mut sluice, options: *const sluice_options, out: *mut *mut sluice) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        unsafe { clear(out)? };
        // SAFETY: by the contract.
        let (call, options) = unsafe { (sluice::enter(s)?, read(options)?) };
        let client = options::joining_client(&options)?;
        let handle = sluice::create(|handle| call.instance().attach(&client, handle))?;
        // SAFETY: by the contract.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// Lets a client leave: it accepts no more requests and waits until those accepted have been dispatched and completed. What
/// is still queued after `timeout_ns` fails (`cancelled` is called with ETIMEDOUT; with 0 at once, with ECANCELED). Other
/// clients go on. When it has left its callbacks are not called any more, and calls with `client` answer
/// SLUICE_ERR_CLOSED. SLUICE_ERR_TIMEOUT: it has not left yet, as some of its requests are in flight; complete them and call
/// again. A client is to be detached also when its scheduler was destroyed. Not from inside a callback.
///
/// # Safety
/// `client` came from `sluice_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_detach(client: *mut sluice, timeout_ns: u64) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(client)? };
        call.instance().leave(Duration::from_nanos(timeout_ns))?;
        sluice::destroy(call)
    })
}

/// Submits a request. It may be dispatched, and callbacks may run, before this returns. If `id` is not NULL it receives a
/// number to cancel the request by; that costs a little more. In a callback the request is dispatched after it, or inside
/// this call, but no more than a few calls deep. `id` is written last, after callbacks that run meanwhile: it must not lie in
/// what they free.
///
/// # Safety
/// `s` came from `sluice_create`, `request` points to such a struct, `id` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_submit(s: *mut sluice, request: *const sluice_request, id: *mut u64) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let (call, request) = unsafe { (sluice::enter(s)?, read(request)?.checked()?) };
        if id.is_null() {
            return call.instance().submit(request);
        }
        let number = call.instance().submit_numbered(request)?;
        // SAFETY: by the contract.
        unsafe { id.write(number) };
        Ok(())
    })
}

/// As sluice_submit() without a number, but waits while the queue is full; in a callback it answers SLUICE_ERR_IN_CALLBACK
/// then.
///
/// # Safety
/// See `sluice_submit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_submit_wait(s: *mut sluice, request: *const sluice_request) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let (call, request) = unsafe { (sluice::enter(s)?, read(request)?.checked()?) };
        call.instance().submit_wait(request)
    })
}

/// Submits `count` requests that belong together, in order, as sluice_submit() does without a number. Requests that follow each
/// other and go to the same shard are all queued before any of them is dispatched, so that neighbours go as one (unless another
/// thread drives the shard just then, or SLUICE_OWN_THREAD was asked for). Stops at the first that is refused and answers why;
/// `accepted`, if not NULL, receives how many came before it. All have the `struct_size` of the first. If `op`, `reserved` or the
/// range of bytes of one of them is not valid none is accepted. `accepted` is written last, after callbacks that run meanwhile.
///
/// # Safety
/// `s` came from `sluice_create`, `requests` points to `count` such structs, `accepted` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_submit_list(
    s: *mut sluice,
    requests: *const sluice_request,
    count: usize,
    accepted: *mut usize,
) -> c_int {
    answer(|| {
        if !accepted.is_null() {
            // SAFETY: by the contract.
            unsafe { accepted.write(0) };
        }
        // SAFETY: by the contract.
        let (call, list) = unsafe { (sluice::enter(s)?, read_list(requests, count)?) };
        let list = list.iter().map(sluice_request::checked).collect::<Result<Vec<_>, _>>()?;
        let (number, result) = match call.instance().submit_list(&list) {
            Ok(number) => (number, Ok(())),
            Err((number, failure)) => (number, Err(failure)),
        };
        if !accepted.is_null() {
            // SAFETY: by the contract.
            unsafe { accepted.write(number) };
        }
        result
    })
}

/// Reports that a dispatched request ended: bytes moved, and 0 or an errno. From any thread, also inside the callback. May
/// dispatch, and run callbacks, on this thread.
///
/// # Safety
/// `s` came from `sluice_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_complete(s: *mut sluice, id: u64, bytes: u32, error: c_int) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        call.instance().complete(&sluice_completion { id, bytes, error })
    })
}

/// Reports several ends. All that can be are reported; if any is refused, the code is that of the first such.
///
/// # Safety
/// `s` came from `sluice_create`, `done` points to `count` structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_complete_all(s: *mut sluice, done: *const sluice_completion, count: usize) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let (call, done) = unsafe { (sluice::enter(s)?, list(done, count, c"the list of completions is NULL")?) };
        done.iter().map(|done| call.instance().complete(done)).fold(Ok(()), Result::and)
    })
}

/// Takes back a request that was not dispatched yet; its callbacks are not called then.
///
/// # Safety
/// `s` came from `sluice_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_cancel(s: *mut sluice, id: u64) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        call.instance().cancel(id)
    })
}

/// Changes the algorithm, with requests queued and in flight: "sjf", "mlf wait_time=500us". On an error nothing changes. A selector
/// chooses no more then, until the name "adaptive" is given; where there is one this is not for callbacks.
///
/// # Safety
/// `s` came from `sluice_create`, `policy` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_set_policy(s: *mut sluice, policy: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        if policy.is_null() {
            return Err(Failure::new(SLUICE_ERR_INVALID, c"the policy is NULL"));
        }
        // SAFETY: by the contract.
        if unsafe { CStr::from_ptr(policy) } == c"adaptive" {
            return call.instance().adapt();
        }
        // SAFETY: by the contract.
        call.instance().set_policy(&unsafe { options::policy(policy)? })
    })
}

/// Changes settings with requests queued and in flight: in_flight_max, batch_bytes_max, batch_requests_max, max_wait_ns and
/// positioning_ns, as sluice_create() takes them (0: the default). All else in the options must be 0. On an error nothing changes.
/// SLUICE_ERR_INVALID also if a selector chooses. Not inside callbacks.
///
/// # Safety
/// `s` came from `sluice_create`, `options` is null or has as many bytes as its `struct_size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_set_limits(s: *mut sluice, options: *const sluice_options) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let (call, options) = unsafe { (sluice::enter(s)?, read(options)?) };
        call.instance().set_limits(&options)
    })
}

/// Serves one application after the other from now on, each in its slice of a window that repeats, in this order; requests of the
/// others wait meanwhile. 2 to 16 slices, one of them for SLUICE_OTHERS. Windows begin at `epoch_ns` (since 1970, whatever clock
/// the scheduler has), and each time that all slices have passed, so that schedulers that were told the same serve the same. It
/// ends after `lasts_ns` unless it is set again, or with a `count` of 0. A slice whose application has had nothing outstanding for
/// `idle_ns` is cut short; 0: never. A request that has waited for `max_wait_ns` and a window goes nevertheless. See
/// docs/orchestration.md. On an error nothing changes. Not inside callbacks.
///
/// # Safety
/// `s` came from `sluice_create`, `slices` points to `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_set_gate(
    s: *mut sluice,
    slices: *const sluice_slice,
    count: usize,
    epoch_ns: u64,
    lasts_ns: u64,
    idle_ns: u64,
) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        let wanted = c"a gate needs 2 to 16 slices, or none to be taken away";
        if count > sluice_core::OBJECTS_MAX {
            return Err(Failure::new(SLUICE_ERR_INVALID, wanted));
        }
        // SAFETY: by the contract.
        let slices = unsafe { list(slices, count, wanted)? };
        call.instance().set_gate(slices, epoch_ns, lasts_ns, idle_ns)
    })
}

/// Records every request that is submitted from now on, in a new file that `sluice trace` reads; file N has the path "file N".
/// SLUICE_ERR_INVALID if it cannot be written or is not empty, or a recording is running. Not inside callbacks.
///
/// # Safety
/// `s` came from `sluice_create`, `path` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_trace_start(s: *mut sluice, path: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let (call, path) = unsafe { (sluice::enter(s)?, options::path(path)) };
        call.instance().start_recording(&path.ok_or(Failure::new(SLUICE_ERR_INVALID, c"the path is NULL"))?)
    })
}

/// Ends the recording: all that was submitted before is in the file then. SLUICE_ERR_INVALID if there was none, or the file
/// is not complete. Not inside callbacks.
///
/// # Safety
/// `s` came from `sluice_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_trace_stop(s: *mut sluice) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        call.instance().stop_recording()
    })
}

/// Writes the algorithm and its parameters, as sluice_set_policy() reads them, into `text`; SLUICE_ERR_INVALID if it does
/// not fit.
///
/// # Safety
/// `s` came from `sluice_create`, `text` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_get_policy(s: *mut sluice, text: *mut c_char, size: usize) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        let policy = call.instance().policy();
        let mut line = policy.name().to_owned();
        for (key, value) in policy.describe() {
            line.push_str(&format!(" {key}={value}"));
        }
        // SAFETY: by the contract.
        unsafe { give(&line, text, size) }
    })
}

/// Writes what the selector sees, what it chose, what it expected and got, and what else there was, as a JSON object into `text`:
/// the fields of `selection` in docs/status.md, on one line. SLUICE_ERR_INVALID if it does not fit (8 KiB always do) or nobody
/// chooses. Not inside callbacks.
///
/// # Safety
/// `s` came from `sluice_create`, `text` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_explain(s: *mut sluice, text: *mut c_char, size: usize) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        // SAFETY: by the contract.
        unsafe { give(&call.instance().explain()?, text, size) }
    })
}

/// Listens to a coordinator (`sluice coordinate`) from now on, which chooses the algorithm: `address` is HOST:PORT, `name` names
/// this scheduler among all that listen to it, `token_file` has the coordinator's secret in its first line (NULL: it has none).
/// It may be there or not, come and go; a thread sees to that, and nothing waits for it. Create the scheduler with `twins` and the
/// number of data servers if it forwards to some, and with short windows (window_ns), a quarter of a second: what it is goes by
/// the algorithm that it was created with, or that sluice_set_policy() has set. `address` NULL: to none any more.
/// SLUICE_ERR_INVALID if the address, name or file is no good, or a selector chooses: then whom it listened to before it still
/// listens to. Not inside callbacks.
///
/// # Safety
/// `s` came from `sluice_create`, the others are null or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_coordinate(
    s: *mut sluice,
    address: *const c_char,
    name: *const c_char,
    token_file: *const c_char,
) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let (call, token) = unsafe { (sluice::enter(s)?, options::path(token_file)) };
        if address.is_null() {
            return call.instance().coordinate(None);
        }
        if name.is_null() {
            return Err(Failure::new(SLUICE_ERR_INVALID, c"the name is NULL"));
        }
        // SAFETY: by the contract; they are not null.
        let (address, name) =
            unsafe { (CStr::from_ptr(address).to_string_lossy(), CStr::from_ptr(name).to_string_lossy()) };
        call.instance().coordinate(Some(&Coordinated { address: &address, name: &name, token }))
    })
}

/// Writes how it is with the coordinator, as a JSON object into `text`: the fields of `coordinator` in docs/status.md, on one line.
/// SLUICE_ERR_INVALID if it does not fit (1 KiB always does) or nobody is listened to. Not inside callbacks.
///
/// # Safety
/// `s` came from `sluice_create`, `text` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_coordination(s: *mut sluice, text: *mut c_char, size: usize) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        // SAFETY: by the contract.
        unsafe { give(&call.instance().coordination()?, text, size) }
    })
}

/// The processes of the application `app` for which `speaker` speaks (a machine, or whatever the host tells apart) say that all of them
/// compute (`computes` is not 0), or that some do I/O: goes to the coordinator with the next report, if that orchestrates. Of a
/// speaker's words the one with the highest number holds, for ten minutes, however late it comes. SLUICE_ERR_INVALID if the library
/// was built without coordinators.
///
/// # Safety
/// `s` came from `sluice_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_activity(
    s: *mut sluice,
    app: u32,
    speaker: u64,
    number: u64,
    computes: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        call.instance().hear(AppId(app), speaker, number, computes != 0)
    })
}

/// Answers GET /metrics for Prometheus (OpenMetrics; docs/operation.md lists the names) at `address`, ADDRESS:PORT, from now on, in a
/// thread of its own; NULL: nowhere any more. Whoever reaches the address can read it. SLUICE_ERR_INVALID if it is no address: what
/// was before goes on then. SLUICE_ERR_SYSTEM if it cannot be listened at. Not inside callbacks.
///
/// # Safety
/// `s` came from `sluice_create`, `address` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_metrics(s: *mut sluice, address: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        // SAFETY: by the contract.
        let address = (!address.is_null()).then(|| unsafe { CStr::from_ptr(address) }.to_string_lossy());
        call.instance().measure(address.as_deref())
    })
}

/// # Safety
/// `text` is null or has room for `size` bytes.
unsafe fn give(line: &str, text: *mut c_char, size: usize) -> Result<(), Failure> {
    if text.is_null() || size <= line.len() {
        return Err(Failure::made(SLUICE_ERR_INVALID, format!("{} bytes are needed", line.len() + 1)));
    }
    // SAFETY: it has room for the line and the end mark.
    unsafe {
        std::ptr::copy_nonoverlapping(line.as_ptr().cast(), text, line.len());
        text.add(line.len()).write(0);
    }
    Ok(())
}

/// Reckons with this profile of the device, which `sluice profile` has measured, from the next call of
/// sluice_predict_load(), sluice_predict_learn() or sluice_coordinate() on; NULL: the device is not known. Without a profile nothing is waited
/// for. SLUICE_ERR_INVALID if it cannot be read.
///
/// # Safety
/// `s` came from `sluice_create`, `profile` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_predict_profile(s: *mut sluice, profile: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        // SAFETY: by the contract.
        call.instance().set_profile(unsafe { path(profile) })
    })
}

/// Predicts requests from the traces of `n` earlier runs, in which file N has the path "file N"; with `n` = 0 nothing is
/// predicted any more. Algorithms that aggregate hold batches for what is about to come, as long as that pays. Reads the
/// traces before it returns; requests go on meanwhile. SLUICE_ERR_INVALID if one cannot be read: nothing changes then. Not
/// inside callbacks.
///
/// # Safety
/// `s` came from `sluice_create`, `paths` points to `n` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_predict_load(s: *mut sluice, paths: *const *const c_char, n: usize) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        if n == 0 {
            return call.instance().predict(&Source::Off, None);
        }
        let null = c"paths, or one of them, is NULL";
        // SAFETY: by the contract.
        let each = unsafe { list(paths, n, null)? };
        // SAFETY: by the contract.
        let files: Option<Vec<PathBuf>> = each.iter().map(|&text| unsafe { path(text) }).collect();
        let files = files.ok_or(Failure::new(SLUICE_ERR_INVALID, null))?;
        call.instance().predict(&Source::Files(files), None)
    })
}

/// Learns what repeats, and predicts it. `state_path`: where what was learned is kept from run to run, which is read first if
/// it exists; NULL: nowhere. Files whose numbers differ are taken as one series of files that are used in the same way. Not
/// inside callbacks.
///
/// # Safety
/// `s` came from `sluice_create`, `state_path` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_predict_learn(s: *mut sluice, state_path: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        // SAFETY: by the contract.
        call.instance().predict(&Source::Learn, unsafe { path(state_path) })
    })
}

fn percentiles(of: &Histogram) -> (u64, u64, u64) {
    (of.percentile_ns(50.0), of.percentile_ns(99.0), of.max_ns())
}

fn counters(instance: &Instance, which: c_int) -> Result<(Counters, u32, u32), Failure> {
    let snapshot = instance.snapshot();
    let counters = match which {
        SLUICE_TOTAL => snapshot.total.total(),
        SLUICE_LAST_WINDOW => snapshot.total.last_window().clone(),
        _ => return Err(Failure::new(SLUICE_ERR_INVALID, c"which must be SLUICE_TOTAL or SLUICE_LAST_WINDOW")),
    };
    let sum = |of: fn(&sluice_runtime::ShardSnapshot) -> u32| snapshot.shards.iter().map(of).sum();
    Ok((counters, sum(|shard| shard.queued), sum(|shard| shard.in_flight)))
}

/// Fills counters: SLUICE_TOTAL or SLUICE_LAST_WINDOW. `out->struct_size` must be set.
///
/// # Safety
/// `s` came from `sluice_create`, `out` points to such a struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_stats(s: *mut sluice, which: c_int, out: *mut sluice_counters) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        let (counters, queued, in_flight) = counters(call.instance(), which)?;
        let both =
            |of: fn(&sluice_core::OpCounts) -> u64| [Op::Read, Op::Write].map(|op| of(&counters.ops[op.index()]));
        let (wait_p50_ns, wait_p99_ns, wait_max_ns) = percentiles(&counters.wait);
        let (service_p50_ns, service_p99_ns, service_max_ns) = percentiles(&counters.service);
        let value = sluice_counters {
            struct_size: 0,
            batch_requests_max: counters.batch_requests_max,
            span_ns: counters.len_ns,
            submitted: both(|op| op.submitted),
            completed: both(|op| op.completed),
            errors: both(|op| op.errors),
            bytes: both(|op| op.bytes),
            batches: counters.batches,
            batched_requests: counters.batched_requests,
            cancelled: counters.cancelled,
            blocked: counters.blocked,
            expired: counters.expired,
            stale: call.instance().stale(),
            queued,
            in_flight,
            wait_p50_ns,
            wait_p99_ns,
            wait_max_ns,
            service_p50_ns,
            service_p99_ns,
            service_max_ns,
        };
        // SAFETY: by the contract.
        unsafe { write(out, value) }
    })
}

/// Fills the counters of applications, most bytes first. `*count`: in, the room in `out`; out, how many there are, which
/// may be more than there was room for.
///
/// # Safety
/// `s` came from `sluice_create`, `out` has room for `*count` structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_app_stats(
    s: *mut sluice,
    which: c_int,
    out: *mut sluice_app,
    count: *mut usize,
) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        // SAFETY: by the contract.
        let Some(count) = (unsafe { count.as_mut() }) else {
            return Err(Failure::new(SLUICE_ERR_INVALID, c"count is NULL"));
        };
        if out.is_null() && *count > 0 {
            return Err(Failure::new(SLUICE_ERR_INVALID, c"out is NULL although count says there is room"));
        }
        let (mut counters, ..) = counters(call.instance(), which)?;
        counters.apps.sort_by_key(|app| std::cmp::Reverse(app.bytes));
        for (at, app) in counters.apps.iter().take(*count).enumerate() {
            let (latency_p50_ns, latency_p99_ns, latency_max_ns) = percentiles(&app.latency);
            let value = sluice_app {
                app: app.app.map_or(u64::MAX, |app| app.0.into()),
                completed: app.completed,
                bytes: app.bytes,
                latency_p50_ns,
                latency_p99_ns,
                latency_max_ns,
            };
            // SAFETY: by the contract, as `at` is below the room given.
            unsafe { out.add(at).write(value) };
        }
        *count = counters.apps.len();
        Ok(())
    })
}

/// Accepts no more requests, and waits until those accepted have been dispatched and completed. What is still queued after
/// `timeout_ns` fails: its `cancelled` is called with ETIMEDOUT, and the result is SLUICE_ERR_TIMEOUT. With 0, whatever is
/// queued fails at once with ECANCELED. Requests in flight can be completed afterwards. Not from inside a callback.
///
/// # Safety
/// `s` came from `sluice_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_shutdown(s: *mut sluice, timeout_ns: u64) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        call.instance().shutdown(Duration::from_nanos(timeout_ns))
    })
}

/// Shuts down as sluice_shutdown(s, 0) if that was not done, waits for calls that are under way on other threads, and
/// frees the scheduler. Calls with `s` that come later answer SLUICE_ERR_CLOSED. Not from inside a callback.
///
/// # Safety
/// `s` came from `sluice_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_destroy(s: *mut sluice) -> c_int {
    answer(|| {
        // SAFETY: by the contract.
        let call = unsafe { sluice::enter(s)? };
        call.instance().shutdown(Duration::ZERO)?;
        call.instance().end_waits();
        sluice::destroy(call)
    })
}
