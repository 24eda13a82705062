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
        let mut request = Iocb {
            opcode: 1,
            fd: file.as_raw_fd() as u32,
            buffer: buffer.as_ptr() as u64,
            bytes: buffer.len() as u64,
            offset: offset as i64,
            ..Iocb::default()
        };
        let list = [&raw mut request];
        let mut event = [0u64; 4];
        // SAFETY: the request and its buffer live until its end, which is waited for here; one event is four words.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_io_submit, self.0, 1, list.as_ptr()), 1);
            let none = std::ptr::null::<libc::timespec>();
            assert_eq!(libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, event.as_mut_ptr(), none), 1);
        }
        assert_eq!(event[2] as i64, buffer.len() as i64, "bytes written, or the error");
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: nothing is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}
