//! The functions that the host for MPI programs calls (`hosts/mpiio`). Nothing unwinds out of them: what fails is left to
//! the MPI library.

use crate::descriptors;
use crate::ghost;
use crate::group::Group;
use crate::memory::Memory;
use crate::mode::Settings;
use crate::plan::Range;
use crate::process::{Answer, Counters, Process, Setup};
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);

thread_local! {
    /// This thread is in [`with`]: it comes again only from a handler of a signal.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn with<T>(otherwise: T, work: impl FnOnce(&mut Process) -> T) -> T {
    if INSIDE.replace(true) {
        return otherwise;
    }
    let result = with_process(otherwise, work);
    INSIDE.set(false);
    result
}

fn with_process<T>(otherwise: T, work: impl FnOnce(&mut Process) -> T) -> T {
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(process) = process.as_mut() else { return otherwise };
    catch_unwind(AssertUnwindSafe(|| work(process))).unwrap_or(otherwise)
}

/// # Safety
/// Null, or a string.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    // SAFETY: as the caller promises.
    if text.is_null() { None } else { unsafe { CStr::from_ptr(text) }.to_str().ok() }
}

/// # Safety
/// `len` elements at `data`, or `len` is 0.
unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    // SAFETY: as the caller promises.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } }
}

/// Begins in this process, which is number `place` of the `places` on its node; number 0 makes the file `path` for what they
/// share before the others call this, and removes it when all have. `servers`: addresses, separated by commas, or null.
/// `no_ghosts`: why there can be none, or null. 0 if that failed.
///
/// # Safety
/// Null or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_dualpar_start(
    path: *const c_char,
    place: usize,
    places: usize,
    servers: *const c_char,
    run: u64,
    is_forced: bool,
    no_ghosts: *const c_char,
) -> i32 {
    // SAFETY: as the caller promises.
    let (path, servers, no_ghosts) = unsafe { (text(path), text(servers), text(no_ghosts)) };
    let start = || {
        let group = match path.map(Path::new) {
            Some(path) if place == 0 => Group::create(path, places),
            Some(path) => Group::attach(path, place),
            None => Group::alone(),
        };
        let servers =
            servers.unwrap_or_default().split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let settings = Settings { forced: is_forced, ..Settings::default() };
        let no_ghosts = no_ghosts.map(str::to_owned);
        Some(Process::new(Setup { group: group.ok()?, servers, run, settings, no_ghosts }))
    };
    let made = catch_unwind(start).ok().flatten();
    let is_made = made.is_some();
    *PROCESS.lock().unwrap_or_else(PoisonError::into_inner) = made;
    i32::from(is_made)
}

/// Whether all processes of the node have begun, and can watch over each other.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_is_complete() -> i32 {
    with(0, |process| i32::from(process.is_complete()))
}

/// Ends; what was collected is written.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_stop() {
    with((), Process::flush_own);
    // The handler of a signal that ends the program may have come from within `with`: what that holds it would wait for for ever.
    if !ghost::is_ghost() && !INSIDE.get() {
        *PROCESS.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A file that was opened, alone or with other processes, through a descriptor of the caller; its file system is told of batches if it
/// `listens`. Its number, or -1 if nothing can be done for it.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_open(
    descriptor: i32,
    is_readable: bool,
    is_writable: bool,
    is_shared: bool,
    listens: bool,
) -> i32 {
    if descriptor < 0 {
        return -1;
    }
    // SAFETY: not -1; a descriptor that is not open gives an error.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    with(-1, |process| {
        let index = process.open(descriptor, is_readable, is_writable, is_shared);
        index.inspect(|&index| process.announces(index, listens)).map_or(-1, |index| index as i32)
    })
}

/// Whether a descriptor need not be exchanged for one of [`sluice_dualpar_descriptor`].
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_may_stay(descriptor: i32) -> bool {
    // SAFETY: not -1; only its number is used.
    descriptor >= 0
        && catch_unwind(|| descriptors::may_stay(unsafe { BorrowedFd::borrow_raw(descriptor) })).unwrap_or(false)
}

/// Another descriptor of the same, which is not one of those that the program may need; -1 if there is none to be had.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_descriptor(descriptor: i32) -> i32 {
    if descriptor < 0 {
        return -1;
    }
    // SAFETY: not -1; a descriptor that is not open gives an error.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    catch_unwind(|| descriptors::duplicate(descriptor).map_or(-1, IntoRawFd::into_raw_fd)).unwrap_or(-1)
}

/// Has the system make the room for such descriptors, which it does not take back. To be called before there are threads.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_make_room() {
    let _ = catch_unwind(descriptors::make_room);
}

fn index(file: i32) -> usize {
    usize::try_from(file).unwrap_or(usize::MAX)
}

/// Before a file is closed. `errno` of a collected write that failed, or 0. Puts what was done for it into `room`, as a JSON
/// object with a zero byte behind it; nothing if there is no room for that.
///
/// # Safety
/// `len` bytes at `room` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_dualpar_close(file: i32, room: *mut c_char, len: usize) -> i32 {
    let (result, counters) = with((Ok(()), Counters::default()), |process| process.close(index(file)));
    // SAFETY: as the caller promises.
    unsafe { put(&counters.to_string(), room, len) };
    result.err().unwrap_or(0)
}

/// # Safety
/// `len` bytes at `room` can be written.
unsafe fn put(text: &str, room: *mut c_char, len: usize) -> bool {
    let fits = text.len() < len;
    if fits {
        // SAFETY: there is room for the text and one byte more.
        unsafe {
            room.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            room.add(text.len()).write(0);
        }
    }
    fits
}

/// Before a file is synchronised. `errno` of a collected write that failed, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_sync(file: i32) -> i32 {
    with(0, |process| process.sync(index(file)).err().unwrap_or(0))
}

/// Whether nothing is done for a file now, so that its calls may go past these functions but for [`sluice_dualpar_other`].
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_is_idle(file: i32) -> i32 {
    with(0, |process| i32::from(process.is_idle(index(file))))
}

/// Before anything else is done with a file than the calls of these functions.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_other(file: i32) {
    with((), |process| process.before_other(index(file)));
}

/// Before and after messages.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_message() {
    with((), Process::message);
}

/// A blocking read. 0: for the MPI library, and then told by [`sluice_dualpar_passed`]; 1: done; 2: this is a ghost, which
/// goes on as if `bytes` had been read. Ranges of the file, and addresses of memory, in the order of the data.
///
/// # Safety
/// As many ranges as said; the memory can be written; `bytes` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_dualpar_read(
    file: i32,
    ranges: *const Range,
    range_count: usize,
    memory: *const Range,
    memory_count: usize,
    bytes: *mut u64,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe { serve(file, (ranges, range_count), (memory, memory_count), bytes, Process::read) }
}

/// A blocking write, like [`sluice_dualpar_read`].
///
/// # Safety
/// As there; the memory can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_dualpar_write(
    file: i32,
    ranges: *const Range,
    range_count: usize,
    memory: *const Range,
    memory_count: usize,
    bytes: *mut u64,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe { serve(file, (ranges, range_count), (memory, memory_count), bytes, Process::write) }
}

type List = (*const Range, usize);

/// # Safety
/// See [`sluice_dualpar_read`].
unsafe fn serve(
    file: i32,
    ranges: List,
    memory: List,
    bytes: *mut u64,
    call: impl FnOnce(&mut Process, usize, &[Range], Memory<'_>) -> Answer,
) -> i32 {
    // SAFETY: as the caller promises.
    let (ranges, memory) = unsafe { (slice(ranges.0, ranges.1), Memory::new(slice(memory.0, memory.1))) };
    match with(Answer::Pass, |process| call(process, index(file), ranges, memory)) {
        Answer::Pass => 0,
        Answer::Served => 1,
        Answer::Ghost(moved) => {
            // SAFETY: as the caller promises.
            unsafe { bytes.write(moved) };
            2
        }
    }
}

/// After a blocking read or write was left to the MPI library.
///
/// # Safety
/// As many ranges as said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_dualpar_passed(file: i32, ranges: *const Range, range_count: usize, is_write: bool) {
    // SAFETY: as the caller promises.
    let ranges = unsafe { slice(ranges, range_count) };
    with((), |process| process.passed(index(file), ranges, is_write));
}

/// Whether this process is a ghost.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_is_ghost() -> i32 {
    i32::from(ghost::is_ghost())
}

/// Ends this ghost.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dualpar_end_ghost() {
    ghost::end()
}

/// Puts why there are no ghosts into `room`, with a zero byte, and returns 1, if there should be some and that was not said yet.
///
/// # Safety
/// `len` bytes at `room` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_dualpar_complaint(room: *mut c_char, len: usize) -> i32 {
    let complaint = with(None, Process::complaint);
    // SAFETY: as the caller promises.
    i32::from(complaint.is_some_and(|text| unsafe { put(&text, room, len) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_program_may_end_in_a_handler_of_a_signal_that_came_within_a_call() {
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: no strings.
            assert_eq!(unsafe { sluice_dualpar_start(null(), 0, 1, null(), 1, false, null()) }, 1);
            with((), |_| sluice_dualpar_stop());
            assert_eq!(with(0, |_| 1), 1, "what goes on after the handler still has its process");
            sluice_dualpar_stop();
            assert_eq!(with(0, |_| 1), 0);
            tell.send(()).unwrap();
        });
        told.recv_timeout(Duration::from_secs(60)).expect("it waits for itself");
        thread.join().unwrap();
    }
}
