//! A runtime whose executor is the host's callbacks.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_core::{Batch, CancelError, Outcome, PolicyConfig, Request, RequestId};
use sluice_runtime::{Completer, Executor, Runtime, RuntimeConfig, Shutdown, Snapshot, StartError, SubmitError};

use crate::handle::{InCallback, not_in_callback, sluice};
use crate::status::{
    CLOSED, FULL, Failure, SLUICE_ERR_CONFIG, SLUICE_ERR_FULL, SLUICE_ERR_IN_FLIGHT, SLUICE_ERR_INVALID,
    SLUICE_ERR_SYSTEM, SLUICE_ERR_TIMEOUT, STALE,
};
use crate::types::{
    sluice_cancelled_fn, sluice_completion, sluice_options, sluice_part, sluice_start_batch_fn, sluice_start_fn,
};

/// A request's number: its generation in the upper half, then its shard, then its slot.
const SLOT_BITS: u32 = 26;

pub(crate) struct Instance {
    runtime: Runtime<Host>,
    /// Completions refused.
    stale: AtomicU64,
}

/// The host's side, and which requests it was given.
struct Host {
    start: sluice_start_fn,
    start_batch: sluice_start_batch_fn,
    cancelled: sluice_cancelled_fn,
    user: *mut c_void,
    handle: *mut sluice,
    /// For each shard and slot: the generation of the request in flight there, plus 1; or 0. The engine itself learns of a
    /// completion only later; this tells at once whether it can be right.
    in_flight: Vec<Box<[AtomicU64]>>,
}

// SAFETY: `user` and `handle` are only handed to the callbacks, which the host made for any thread (documented).
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

thread_local! {
    static PARTS: RefCell<Vec<sluice_part>> = const { RefCell::new(Vec::new()) };
}

fn to_number(shard: usize, id: RequestId) -> u64 {
    let bits = id.to_bits();
    bits & 0xffff_ffff_0000_0000 | (shard as u64) << SLOT_BITS | bits & 0xffff_ffff
}

/// Shard, slot, generation.
fn from_number(number: u64) -> (usize, usize, u64) {
    let low = number as u32;
    ((low >> SLOT_BITS) as usize, (low & ((1 << SLOT_BITS) - 1)) as usize, number >> 32)
}

impl Host {
    fn place(&self, shard: usize, slot: usize) -> Option<&AtomicU64> {
        self.in_flight.get(shard)?.get(slot)
    }

    fn note_in_flight(&self, shard: usize, id: RequestId) -> u64 {
        let number = to_number(shard, id);
        let (_, slot, generation) = from_number(number);
        if let Some(place) = self.place(shard, slot) {
            place.store(generation + 1, Ordering::Release);
        }
        number
    }
}

impl Executor for Host {
    fn start(&self, batch: &Batch, shard: usize, _: &Completer) {
        let _inside = InCallback::enter();
        match (batch.parts(), self.start_batch, self.start) {
            (parts @ [_, _, ..], Some(start_batch), _) => {
                let mut list = PARTS.take();
                list.clear();
                list.extend(parts.iter().map(|part| sluice_part::of(self.note_in_flight(shard, part.id), part)));
                // SAFETY: the host's function, under the conditions documented for it.
                unsafe { start_batch(self.user, self.handle, list.as_ptr(), list.len()) };
                PARTS.set(list);
            }
            (parts, _, Some(start)) => {
                for part in parts {
                    let part = sluice_part::of(self.note_in_flight(shard, part.id), part);
                    // SAFETY: as above.
                    unsafe { start(self.user, self.handle, &raw const part) };
                }
            }
            _ => unreachable!("start was checked when the options were read"),
        }
    }

    fn cancelled(&self, request: &Request, _: usize, errno: i32) {
        let _inside = InCallback::enter();
        if let Some(cancelled) = self.cancelled {
            let part = sluice_part::new(0, request);
            // SAFETY: as above.
            unsafe { cancelled(self.user, self.handle, &raw const part, errno) };
        }
    }
}

fn refused(error: SubmitError) -> Failure {
    match error {
        SubmitError::Full(_) => FULL,
        SubmitError::Closed => CLOSED,
        SubmitError::RangeOverflow => Failure::new(SLUICE_ERR_INVALID, c"offset + len is beyond the largest offset"),
    }
}

impl Instance {
    pub(crate) fn start(
        config: RuntimeConfig,
        options: &sluice_options,
        handle: *mut sluice,
    ) -> Result<Instance, Failure> {
        let places = || (0..config.engine.capacity).map(|_| AtomicU64::new(0)).collect();
        let host = Host {
            start: options.start,
            start_batch: options.start_batch,
            cancelled: options.cancelled,
            user: options.user,
            handle,
            in_flight: (0..config.shards).map(|_| places()).collect(),
        };
        let runtime = Runtime::start(Arc::new(host), config).map_err(|error| match error {
            StartError::Config(error) => error.into(),
            error @ StartError::System { .. } => Failure::made(SLUICE_ERR_SYSTEM, error.to_string()),
        })?;
        Ok(Instance { runtime, stale: AtomicU64::new(0) })
    }

    fn shard(&self, request: &Request) -> usize {
        match self.runtime.shards() {
            1 => 0,
            shards => request.target.0 as usize % shards,
        }
    }

    pub(crate) fn submit(&self, request: Request) -> Result<(), Failure> {
        self.runtime.try_submit(self.shard(&request), request).map_err(refused)
    }

    pub(crate) fn submit_wait(&self, request: Request) -> Result<(), Failure> {
        match self.submit(request) {
            Err(failure) if failure.code == SLUICE_ERR_FULL => {}
            result => return result,
        }
        not_in_callback()?;
        self.runtime.submit(self.shard(&request), request).map_err(refused)
    }

    /// Submits and returns the number to cancel it by.
    pub(crate) fn submit_numbered(&self, request: Request) -> Result<u64, Failure> {
        not_in_callback()?;
        let shard = self.shard(&request);
        Ok(to_number(shard, self.runtime.submit_with_id(shard, request).map_err(refused)?))
    }

    pub(crate) fn complete(&self, done: &sluice_completion) -> Result<(), Failure> {
        let (shard, slot, generation) = from_number(done.id);
        let place = self.runtime.executor().place(shard, slot);
        let taken = place.map(|p| p.compare_exchange(generation + 1, 0, Ordering::AcqRel, Ordering::Relaxed));
        if !matches!(taken, Some(Ok(_))) {
            self.stale.fetch_add(1, Ordering::Relaxed);
            return Err(STALE);
        }
        let id = RequestId::from_bits(generation << 32 | slot as u64);
        self.runtime.completer(shard).complete(id, Outcome { bytes: done.bytes, error: done.error });
        Ok(())
    }

    pub(crate) fn cancel(&self, number: u64) -> Result<(), Failure> {
        not_in_callback()?;
        let (shard, slot, generation) = from_number(number);
        if shard >= self.runtime.shards() {
            return Err(STALE);
        }
        let id = RequestId::from_bits(generation << 32 | slot as u64);
        match self.runtime.cancel(shard, id) {
            Ok(_) => Ok(()),
            Err(CancelError::Stale) => Err(STALE),
            Err(CancelError::InFlight) => {
                Err(Failure::new(SLUICE_ERR_IN_FLIGHT, c"the request was dispatched already; complete it instead"))
            }
        }
    }

    pub(crate) fn set_policy(&self, policy: &PolicyConfig) -> Result<(), Failure> {
        not_in_callback()?;
        if self.runtime.shards() > 1 && policy.info().shared_engine {
            let text = format!("{} coordinates the data servers in one engine: create it with 1 shard", policy.name());
            return Err(Failure::made(SLUICE_ERR_CONFIG, text));
        }
        self.runtime.set_policy(policy);
        Ok(())
    }

    pub(crate) fn policy(&self) -> PolicyConfig {
        self.runtime.policy()
    }

    pub(crate) fn snapshot(&self) -> Result<Snapshot, Failure> {
        not_in_callback()?;
        Ok(self.runtime.snapshot())
    }

    pub(crate) fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    /// No requests from now on; waits for those that were accepted, or fails those that are queued.
    pub(crate) fn shutdown(&self, timeout: Duration, errno: i32) -> Result<(), Failure> {
        not_in_callback()?;
        let how = if timeout.is_zero() { Shutdown::Fail(errno) } else { Shutdown::Drain { timeout } };
        let report = self.runtime.shutdown(how);
        if timeout.is_zero() || report.failed + report.in_flight == 0 {
            return Ok(());
        }
        let text = format!("{} requests were failed, {} are still in flight", report.failed, report.in_flight);
        Err(Failure::made(SLUICE_ERR_TIMEOUT, text))
    }
}
