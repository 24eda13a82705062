//! The functions that the shared objects call. Nothing unwinds out of them: what cannot be done is a null pointer or 0, and the
//! caller leaves the call to the MPI library.

#![allow(non_camel_case_types, reason = "the names are C's")]

mod collective;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::flat::{Combiner, Flat, Range, Told};
pub use collective::*;

/// A flattened type.
pub struct sluice_flat(Flat);

/// Ranges of a file or of memory.
pub struct sluice_ranges(Vec<Range>);

fn guarded<T>(make: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(make)).ok().flatten()
}

fn boxed<T>(make: impl FnOnce() -> Option<T>) -> *mut T {
    guarded(make).map_or(ptr::null_mut(), |made| Box::into_raw(Box::new(made)))
}

/// # Safety
/// `len` elements at `data`, or `len` is 0.
unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    // SAFETY: as the caller promises.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } }
}

/// A type of `size` bytes without holes.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_flat_basic(size: i64) -> *mut sluice_flat {
    boxed(|| Flat::basic(size).map(sluice_flat))
}

/// The type that a constructor made of `kids`; numbers in the order of [`Combiner`]. Null: not understood, too many
/// ranges, or MPI tells something else of it. What it would be wrong about is not used.
///
/// # Safety
/// As many numbers and kids as said, kids from these functions; `told` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_flat_compose(
    combiner: Combiner,
    numbers: *const i64,
    number_count: usize,
    kids: *const *const sluice_flat,
    kid_count: usize,
    told: *const Told,
) -> *mut sluice_flat {
    // SAFETY: as the caller promises.
    let (numbers, kids, told) = unsafe { (slice(numbers, number_count), slice(kids, kid_count), *told) };
    boxed(|| {
        // SAFETY: null or from these functions.
        let kids: Option<Vec<&Flat>> = kids.iter().map(|kid| unsafe { kid.as_ref() }.map(|kid| &kid.0)).collect();
        Flat::compose(combiner, numbers, &kids?, told).map(sluice_flat)
    })
}

/// Another handle of the same type.
///
/// # Safety
/// Null or from these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_flat_copy(flat: *const sluice_flat) -> *mut sluice_flat {
    // SAFETY: as the caller promises.
    boxed(|| unsafe { flat.as_ref() }.map(|flat| sluice_flat(flat.0.clone())))
}

/// # Safety
/// Null or from these functions, and used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_flat_free(flat: *mut sluice_flat) {
    if !flat.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(flat) });
    }
}

/// Whether it can be a file type: offsets that never go back.
///
/// # Safety
/// Null or from these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_flat_is_ascending(flat: *const sluice_flat) -> i32 {
    // SAFETY: as the caller promises.
    i32::from(unsafe { flat.as_ref() }.is_some_and(|flat| flat.0.is_ascending()))
}

/// Data bytes.
///
/// # Safety
/// Null or from these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_flat_size(flat: *const sluice_flat) -> i64 {
    // SAFETY: as the caller promises.
    unsafe { flat.as_ref() }.map_or(0, |flat| flat.0.size())
}

/// The ranges of bytes `from..from + len` of what repetitions of the type from `base` on hold: of a view of a file
/// (`base` is its displacement), or of memory. Null: not understood, or too many.
///
/// # Safety
/// Null or from these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_ranges_of(
    flat: *const sluice_flat,
    base: i64,
    from: i64,
    len: i64,
) -> *mut sluice_ranges {
    // SAFETY: as the caller promises.
    boxed(|| unsafe { flat.as_ref() }?.0.ranges_of(base, from, len).map(sluice_ranges))
}

/// Where they are, and in `count` how many.
///
/// # Safety
/// From these functions; `count` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_ranges_list(ranges: *const sluice_ranges, count: *mut usize) -> *const Range {
    // SAFETY: as the caller promises.
    unsafe {
        *count = (*ranges).0.len();
        (*ranges).0.as_ptr()
    }
}

/// # Safety
/// Null or from these functions, and used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_ranges_free(ranges: *mut sluice_ranges) {
    if !ranges.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(ranges) });
    }
}
