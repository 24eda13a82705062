//! Memory as `O_DIRECT` wants it, and mappings of files.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const ALIGNMENT: usize = 4096;

/// Bytes that begin at a page.
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub fn zeroed(len: usize) -> Aligned {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Aligned { memory, start, len }
    }

    pub fn of(data: &[u8]) -> Aligned {
        let mut aligned = Aligned::zeroed(data.len());
        aligned.bytes_mut().copy_from_slice(data);
        aligned
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// A part of a file in memory, shared with the file.
pub struct Mapping {
    base: *mut libc::c_void,
    mapped: usize,
    start: usize,
    len: usize,
}

impl Mapping {
    /// The file must not become shorter while this lives.
    pub fn new(file: &File, at: u64, len: usize, write: bool) -> io::Result<Mapping> {
        let start = at as usize % ALIGNMENT;
        let mapped = start + len;
        let protection = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let offset = (at - start as u64) as libc::off_t;
        // SAFETY: a fresh mapping at an address of the kernel's choice, taken away when this is dropped.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, libc::MAP_SHARED, file.as_raw_fd(), offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { base, mapped, start, len })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped there until this is dropped, and the test does nothing else meanwhile.
        unsafe { std::slice::from_raw_parts(self.base.cast::<u8>().add(self.start), self.len) }
    }

    /// Only of a mapping that was made for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; it is borrowed mutably, and mapped for writing.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast::<u8>().add(self.start), self.len) }
    }

    /// Waits until what was written is in the file system.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping made above.
        match unsafe { libc::msync(self.base, self.mapped, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, of which nothing is borrowed any more.
        unsafe { libc::munmap(self.base, self.mapped) };
    }
}
