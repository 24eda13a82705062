//! The kernel's asynchronous I/O, of which no package is needed.

use std::fs::File;
use std::os::fd::AsRawFd;

/// One context.
pub struct Aio(libc::c_ulong);

#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

impl Aio {
    pub fn new() -> Aio {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word.
        assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 8, &mut context) }, 0);
        Aio(context)
    }

    /// Writes `buffer` and waits until the kernel reports the end.
    pub fn write(&self, file: &File, buffer: &[u8], offset: u64) {
        // SAFETY: the buffer lives until the end, which is waited for here.
        unsafe { self.begin_write(file, buffer, offset) };
        assert_eq!(self.end(), buffer.len() as i64, "bytes written, or the error");
    }

    /// Begins to write `buffer`.
    ///
    /// # Safety
    /// The buffer lives until [`Aio::end`] has returned.
    pub unsafe fn begin_write(&self, file: &File, buffer: &[u8], offset: u64) {
        let mut request = Iocb {
            opcode: 1,
            fd: file.as_raw_fd() as u32,
            buffer: buffer.as_ptr() as u64,
            bytes: buffer.len() as u64,
            offset: offset as i64,
            ..Iocb::default()
        };
        let list = [&raw mut request];
        // SAFETY: the kernel copies the request; the caller keeps its buffer.
        assert_eq!(unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, list.as_ptr()) }, 1);
    }

    /// Waits for the end of one write; gives the bytes written, or the error.
    pub fn end(&self) -> i64 {
        let (mut event, none) = ([0u64; 4], std::ptr::null::<libc::timespec>());
        // SAFETY: one event is four words.
        assert_eq!(unsafe { libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, event.as_mut_ptr(), none) }, 1);
        event[2] as i64
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: nothing is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}
