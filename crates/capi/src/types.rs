//! The structs of the interface. Those with a `struct_size` may grow at their end: the caller says how much it knows.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;

use sluice_core::{AppId, FileId, Op, Part, Request, TargetId};

use crate::handle::sluice;
use crate::status::{Failure, SLUICE_ERR_INVALID, SLUICE_ERR_SYSTEM};

/// Reads bytes.
pub const SLUICE_READ: u32 = 0;
/// Writes bytes.
pub const SLUICE_WRITE: u32 = 1;

/// Callbacks run on a thread of the scheduler, never inside a call of yours. Costs a hand-over between threads; right for
/// callbacks that may take long. Without it they run on whichever thread calls the library, or on one of its own after many in
/// one call or when an algorithm has waited; on several at a time. A callback must not wait, by a
/// lock or a condition of its own, for one that is to run on the same thread, nor two of two schedulers for each other.
pub const SLUICE_OWN_THREAD: u32 = 1;
/// Requests that overlap may be reordered: for hosts that order conflicting requests themselves.
pub const SLUICE_UNORDERED: u32 = 2;
/// The scheduler has no client of its own: all join it with sluice_attach(). Callbacks and targets are NULL and 0 then.
pub const SLUICE_SHARED: u32 = 4;
/// Its clock counts from 1970, so that schedulers of several processes and machines agree about the windows of `twins`, as
/// far as the machines' clocks do. Without it a clock begins with its scheduler.
pub const SLUICE_REALTIME: u32 = 8;

/// In `max_wait_ns`: a request may wait for ever.
pub const SLUICE_WAIT_UNBOUNDED: u64 = u64::MAX;

/// Which counters: since the start.
pub const SLUICE_TOTAL: c_int = 0;
/// Which counters: of the last window (1 s, or `window_ns`) that has ended.
pub const SLUICE_LAST_WINDOW: c_int = 1;

/// In `struct sluice_slice`: all applications that no other slice names.
pub const SLUICE_OTHERS: u32 = u32::MAX;

/// Whose turn it is in each window, and for how long. This struct never changes its size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_slice {
    /// How long, in nanoseconds; at least 1.
    pub len_ns: u64,
    /// The application, or SLUICE_OTHERS.
    pub app: u32,
    /// 0.
    pub reserved: u32,
}

/// A request, as submitted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_request {
    /// sizeof(struct sluice_request).
    pub struct_size: u32,
    /// SLUICE_READ or SLUICE_WRITE.
    pub op: u32,
    /// The file, by a number of yours.
    pub file: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes; may be 0.
    pub len: u32,
    /// Who asks: a job, a program, a user.
    pub app: u32,
    /// Which data server holds the bytes; chooses the shard (target modulo shards). 0 where there is one.
    pub target: u32,
    /// 0.
    pub reserved: u32,
    /// Yours; given back with the request.
    pub cookie: u64,
}

/// A dispatched request. This struct never changes its size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_part {
    /// What to complete it by.
    pub id: u64,
    /// As submitted.
    pub cookie: u64,
    /// As submitted.
    pub file: u64,
    /// As submitted. In a batch, where the part before ends.
    pub offset: u64,
    /// As submitted.
    pub len: u32,
    /// SLUICE_READ or SLUICE_WRITE.
    pub op: u32,
    /// As submitted.
    pub app: u32,
    /// As submitted.
    pub target: u32,
}

/// How a dispatched request ended. This struct never changes its size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_completion {
    /// From the part.
    pub id: u64,
    /// Bytes read or written; may be less than asked for.
    pub bytes: u32,
    /// 0, or the errno.
    pub error: i32,
}

/// Called with a request that goes next. Must not throw or longjmp; see docs/embedding.md for what it may call.
pub type sluice_start_fn = Option<unsafe extern "C" fn(user: *mut c_void, s: *mut sluice, part: *const sluice_part)>;
/// Called with two or more requests for the same file and operation, each beginning where the one before ends. The array
/// is valid during the call only.
pub type sluice_start_batch_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, s: *mut sluice, parts: *const sluice_part, count: usize)>;
/// Called with a request that was accepted but will never be started (its id is 0), and the errno to fail it with.
pub type sluice_cancelled_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, s: *mut sluice, part: *const sluice_part, error: c_int)>;

/// How to create a scheduler. Everything that is 0 has its default. Make it with SLUICE_OPTIONS_INIT or by zeroing it and
/// setting `struct_size`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_options {
    /// sizeof(struct sluice_options).
    pub struct_size: u32,
    /// SLUICE_OWN_THREAD, SLUICE_UNORDERED, SLUICE_SHARED, SLUICE_REALTIME.
    pub flags: u32,
    /// Algorithm and parameters, like "sjf" or "mlf wait_time=500us quantum=16K". NULL: "hbrr".
    pub policy: *const c_char,
    /// Required.
    pub start: sluice_start_fn,
    /// NULL: `start` is called for each part of a batch, in offset order.
    pub start_batch: sluice_start_batch_fn,
    /// Required.
    pub cancelled: sluice_cancelled_fn,
    /// Handed to the callbacks.
    pub user: *mut c_void,
    /// Number of engines, 1 to 64; requests go to the one of their target. 0: 1. `twins` needs 1.
    pub shards: u32,
    /// Most requests outstanding in a shard, 1 to 67,108,862. 0: 32,768.
    pub capacity: u32,
    /// Most files with outstanding requests in a shard. 0: 2,048, but not more than `capacity`.
    pub files_max: u32,
    /// Most batches in flight in a shard at a time: the host's parallelism. 0: no limit, so that nothing is ever held back.
    pub in_flight_max: u32,
    /// Most bytes in a batch of more than one request. 0: 1 MiB.
    pub batch_bytes_max: u64,
    /// Most requests in a batch. 0: 256.
    pub batch_requests_max: u32,
    /// Applications counted separately. 0: 64.
    pub apps_max: u32,
    /// A request that waits longer goes next whatever the algorithm prefers. 0: 500 ms. Or SLUICE_WAIT_UNBOUNDED.
    pub max_wait_ns: u64,
    /// Length of the windows of the statistics. 0: 1 s, with a selector 100 ms.
    pub window_ns: u64,
    /// The first target of this client, where several share the scheduler: a target belongs to one client.
    pub target_first: u32,
    /// Number of its targets. 0: all, so that it is the only client.
    pub target_count: u32,
    /// What it costs the device to read from another place rather than go on where it is, of a hard disk about 8 ms: it is
    /// then kept idle for a moment where waiting for the next read of the stream it serves costs less. 0: never.
    pub positioning_ns: u64,
    /// Who chooses the algorithm, and whether to wait as `positioning_ns` says, while the scheduler is in use. NULL or "fixed":
    /// nobody. "bandit": what serves each kind of workload best is tried out (docs/selection.md); "tree": a model that comes with the
    /// library says it; "tree+bandit": what that says is begun with. With `positioning_ns` 0 nothing is known of the device, and of those the
    /// model says nothing. On a thread of the library that runs no callbacks. `policy` is where it begins; NULL: with what was best before, else
    /// noop, or hbrr if `positioning_ns` is set. Anything else is SLUICE_ERR_CONFIG. See sluice_explain().
    pub selector: *const c_char,
    /// A file in which the selector keeps what it has learned from run to run, every 30 s and at the end. NULL: nowhere. What is damaged
    /// there, or about devices of another kind, is renamed to *.damaged-SECONDS. SLUICE_ERR_INVALID without a selector.
    pub selector_state: *const c_char,
}

/// Counters over some stretch of time, all shards together. Indices: SLUICE_READ, SLUICE_WRITE. Times in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct sluice_counters {
    /// sizeof(struct sluice_counters).
    pub struct_size: u32,
    /// Largest batch in requests.
    pub batch_requests_max: u32,
    /// Length of the stretch.
    pub span_ns: u64,
    /// Requests submitted.
    pub submitted: [u64; 2],
    /// Requests completed.
    pub completed: [u64; 2],
    /// Of those, with an error.
    pub errors: [u64; 2],
    /// Bytes that they moved.
    pub bytes: [u64; 2],
    /// Batches dispatched.
    pub batches: u64,
    /// Requests in them; divided by `batches`: the mean aggregation.
    pub batched_requests: u64,
    /// Requests cancelled.
    pub cancelled: u64,
    /// Requests that an earlier overlapping one blocked.
    pub blocked: u64,
    /// Batches that went because something in them had waited `max_wait_ns`.
    pub expired: u64,
    /// Completions refused with SLUICE_ERR_STALE since the start.
    pub stale: u64,
    /// Requests that wait now.
    pub queued: u32,
    /// Requests in flight now.
    pub in_flight: u32,
    /// From submission to dispatch: median.
    pub wait_p50_ns: u64,
    /// 99th percentile.
    pub wait_p99_ns: u64,
    /// Largest.
    pub wait_max_ns: u64,
    /// From dispatch to completion: median.
    pub service_p50_ns: u64,
    /// 99th percentile.
    pub service_p99_ns: u64,
    /// Largest.
    pub service_max_ns: u64,
}

/// Counters of one application. This struct never changes its size.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct sluice_app {
    /// The application; UINT64_MAX collects all beyond `apps_max`.
    pub app: u64,
    /// Requests completed.
    pub completed: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// From submission to completion, in nanoseconds: median.
    pub latency_p50_ns: u64,
    /// 99th percentile.
    pub latency_p99_ns: u64,
    /// Largest.
    pub latency_max_ns: u64,
}

impl sluice_part {
    pub(crate) fn new(id: u64, request: &Request) -> sluice_part {
        sluice_part {
            id,
            cookie: request.cookie,
            file: request.file.0,
            offset: request.offset,
            len: request.len,
            op: request.op.index() as u32,
            app: request.app.0,
            target: request.target.0,
        }
    }

    /// `id`: what the host completes it by.
    pub(crate) fn of(id: u64, part: &Part) -> sluice_part {
        sluice_part::new(id, &part.request)
    }
}

/// The least that a versioned struct of the interface must have had: its size in the first release.
pub(crate) trait Versioned: Copy {
    /// In its first release.
    const SIZE_MIN: usize;
    const NAME: &'static str;
    /// What was not known to the caller.
    fn empty() -> Self;
}

impl Versioned for sluice_request {
    const SIZE_MIN: usize = size_of::<sluice_request>();
    const NAME: &'static str = "sluice_request";
    fn empty() -> Self {
        // SAFETY: integers only.
        unsafe { std::mem::zeroed() }
    }
}

impl Versioned for sluice_options {
    const SIZE_MIN: usize = std::mem::offset_of!(sluice_options, target_first);
    const NAME: &'static str = "sluice_options";
    fn empty() -> Self {
        // SAFETY: integers, pointers that may be null, and optional functions.
        unsafe { std::mem::zeroed() }
    }
}

impl Versioned for sluice_counters {
    const SIZE_MIN: usize = size_of::<sluice_counters>();
    const NAME: &'static str = "sluice_counters";
    fn empty() -> Self {
        sluice_counters::default()
    }
}

/// How much of a struct the caller has, from its first field.
///
/// # Safety
/// `from` is null or points to at least the `struct_size`, and if that is plausible, to as many bytes.
unsafe fn caller_size<T: Versioned>(from: *const T) -> Result<usize, Failure> {
    if from.is_null() || !from.is_aligned() {
        return Err(Failure::made(SLUICE_ERR_INVALID, format!("the {} is NULL or misaligned", T::NAME)));
    }
    // SAFETY: by the contract, and every versioned struct begins with its size.
    let size = unsafe { from.cast::<u32>().read() } as usize;
    if size < T::SIZE_MIN || size > 4096 {
        let text = format!("struct_size of the {} is {size}; set it to sizeof(struct {})", T::NAME, T::NAME);
        return Err(Failure::made(SLUICE_ERR_INVALID, text));
    }
    Ok(size)
}

/// Reads a struct of any version. Fields that this version does not know must be 0.
///
/// # Safety
/// See [`caller_size`].
pub(crate) unsafe fn read<T: Versioned>(from: *const T) -> Result<T, Failure> {
    // SAFETY: by the contract.
    let size = unsafe { caller_size(from)? };
    let known = size_of::<T>();
    if size == known {
        // SAFETY: as large as the struct is here.
        return Ok(unsafe { from.read() });
    }
    let mut value = T::empty();
    // SAFETY: both have that many bytes, and any prefix of fields is valid.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast(), size.min(known)) };
    for at in known..size {
        // SAFETY: within the caller's struct.
        if unsafe { from.cast::<u8>().add(at).read() } != 0 {
            let text = format!("the {} has fields that this version of libsluice does not know", T::NAME);
            return Err(Failure::made(SLUICE_ERR_INVALID, text));
        }
    }
    Ok(value)
}

/// Refuses a list that no memory is large enough for: its length is a mistake, a negative number perhaps.
fn expect_possible(count: usize, size: usize) -> Result<(), Failure> {
    if count <= isize::MAX as usize / size {
        return Ok(());
    }
    Err(Failure::made(SLUICE_ERR_INVALID, format!("a list of {count} elements: there is no memory for so many")))
}

/// A list of the caller's. `null`: what to say if it is NULL (or misaligned).
///
/// # Safety
/// `from` is null or points to as many.
pub(crate) unsafe fn list<'a, T>(from: *const T, count: usize, null: &'static CStr) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() || !from.is_aligned() {
        return Err(Failure::new(SLUICE_ERR_INVALID, null));
    }
    expect_possible(count, size_of::<T>())?;
    // SAFETY: by the contract, and no longer than memory is.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// Reads structs of any version that follow each other, all of the same.
///
/// # Safety
/// `from` is null or points to `count` structs, each as [`caller_size`] wants it.
pub(crate) unsafe fn read_list<T: Versioned>(from: *const T, count: usize) -> Result<Vec<T>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: by the contract.
    let size = unsafe { caller_size(from)? };
    expect_possible(count, size)?;
    if size % align_of::<T>() != 0 {
        let text = format!("struct_size of the {} is {size}, which is no size of an element of a list", T::NAME);
        return Err(Failure::made(SLUICE_ERR_INVALID, text));
    }
    let mut list = Vec::new();
    let no_memory = |_| Failure::new(SLUICE_ERR_SYSTEM, c"no memory for a copy of the list");
    list.try_reserve_exact(count).map_err(no_memory)?;
    for at in 0..count {
        // SAFETY: within the caller's list, whose elements have that size.
        let element = unsafe { from.cast::<u8>().add(at * size).cast::<T>() };
        // SAFETY: by the contract.
        let own = unsafe { caller_size(element)? };
        if own != size {
            let text = format!("struct_size of the first {} is {size}, of another one {own}", T::NAME);
            return Err(Failure::made(SLUICE_ERR_INVALID, text));
        }
        // SAFETY: by the contract.
        list.push(unsafe { read(element)? });
    }
    Ok(list)
}

/// Fills a struct of any version, as far as both sides know it.
///
/// # Safety
/// See [`caller_size`]; it is writable, too.
pub(crate) unsafe fn write<T: Versioned>(to: *mut T, value: T) -> Result<(), Failure> {
    // SAFETY: by the contract.
    let size = unsafe { caller_size(to.cast_const())? };
    let (head, known) = (size_of::<u32>(), size_of::<T>());
    let from = (&raw const value).cast::<u8>();
    // SAFETY: both have that many bytes. The size stays the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from.add(head), to.cast::<u8>().add(head), size.min(known) - head) };
    for at in known..size {
        // SAFETY: within the caller's struct.
        unsafe { to.cast::<u8>().add(at).write(0) };
    }
    Ok(())
}

impl sluice_request {
    pub(crate) fn checked(&self) -> Result<Request, Failure> {
        let op = match self.op {
            SLUICE_READ => Op::Read,
            SLUICE_WRITE => Op::Write,
            _ => return Err(Failure::new(SLUICE_ERR_INVALID, c"op must be SLUICE_READ or SLUICE_WRITE")),
        };
        if self.reserved != 0 {
            return Err(Failure::new(SLUICE_ERR_INVALID, c"reserved must be 0"));
        }
        if self.offset.checked_add(self.len.into()).is_none() {
            return Err(Failure::new(SLUICE_ERR_INVALID, c"offset + len is beyond the largest offset"));
        }
        Ok(Request {
            cookie: self.cookie,
            file: FileId(self.file),
            app: AppId(self.app),
            target: TargetId(self.target),
            op,
            offset: self.offset,
            len: self.len,
        })
    }
}
